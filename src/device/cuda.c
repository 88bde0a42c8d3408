/* Finding and opening hocket_cuda.so: see cuda.h. It lies beside the library or, in a build directory, in kernels/. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME "hocket_cuda.so"

/* What the first hkt__cuda_open found; written under `lock`, never taken back. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_tried;
static const struct hkt__cuda_module *opened;
static char why_not[512];

static bool is_off(const char *on)
{
    return strcmp(on, "off") == 0;
}

/** The kernel side of the driver, here or through Windows. */
static bool has_driver(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

/** The first of the places where the module may lie that has it. */
static bool find(char *out_path, size_t bytes)
{
    static const char *const places[] = { "", "../kernels/", "kernels/" };
    Dl_info here;
    const char *slash;

    if (dladdr(&is_tried, &here) == 0 || (slash = strrchr(here.dli_fname, '/')) == NULL)
        return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(out_path, bytes, "%.*s/%s" NAME, (int)(slash - here.dli_fname), here.dli_fname, places[i]);
        if (access(out_path, R_OK) == 0)
            return true;
    }
    return false;
}

/** Opens a module and asks how many devices there are. NULL: why_not is set. */
static const struct hkt__cuda_module *open_at(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct hkt__cuda_module *(*entry)(void) = NULL;
    const struct hkt__cuda_module *module = NULL;
    int ndevices = 0, rc;

    if (handle == NULL) {
        snprintf(why_not, sizeof why_not, "%s", dlerror());
        return NULL;
    }
    *(void **)&entry = dlsym(handle, "hkt__cuda_module"); /* as POSIX has it */
    if (entry != NULL)
        module = entry();
    if (module == NULL || module->abi != HKT__CUDA_ABI) {
        snprintf(why_not, sizeof why_not, "%s is not of this version of hocket", path);
        dlclose(handle);
        return NULL;
    }
    rc = module->device_count(&ndevices);
    if (rc == 0 && ndevices > 0)
        return module;
    snprintf(why_not, sizeof why_not, "%s", rc != 0 ? module->error_text(rc) : "there is no device");
    return NULL; /* stays loaded: the driver may have been started */
}

static const struct hkt__cuda_module *open_first(const char *on)
{
    char path[4096];

    if (*on != '\0')
        return open_at(on);
    if (!has_driver()) {
        snprintf(why_not, sizeof why_not, "no NVIDIA driver is loaded (no /dev/nvidiactl); host memory only");
        return NULL;
    }
    if (!find(path, sizeof path)) {
        snprintf(why_not, sizeof why_not, "there is a driver but no " NAME " beside the library; build with nvcc");
        return NULL;
    }
    return open_at(path);
}

const struct hkt__cuda_module *hkt__cuda_open(const char *on, char *out_why, size_t bytes)
{
    const struct hkt__cuda_module *module;

    if (is_off(on)) {
        snprintf(out_why, bytes, "switched off by HOCKET_CUDA");
        return NULL;
    }
    pthread_mutex_lock(&lock);
    if (!is_tried)
        opened = open_first(on);
    is_tried = true;
    module = opened;
    snprintf(out_why, bytes, "%s", why_not);
    pthread_mutex_unlock(&lock);
    return module;
}

const struct hkt__cuda_module *hkt__cuda_in_use(const char *on)
{
    char why[sizeof why_not];

    if (*on == '\0') {
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

        if (driver == NULL)
            return NULL;
        dlclose(driver); /* the process's own reference remains */
    }
    return hkt__cuda_open(on, why, sizeof why);
}

void hkt__cuda_describe(const struct hkt__cuda_module *module, char *out_text, size_t bytes)
{
    int ndevices = 0, can = 0, ncan = 0;

    if (module->device_count(&ndevices) != 0) {
        snprintf(out_text, bytes, "a device was there, and is lost");
        return;
    }
    for (int device = 0; device < ndevices; device++)
        ncan += module->dmabuf_can(device, &can) == 0 && can;
    snprintf(out_text, bytes, "%d device%s; calls on CUDA streams run there, others through pinned memory of the host; network adapters "
             "may read memory of %d of them (dmabuf)", ndevices, ndevices == 1 ? "" : "s", ncan);
}
