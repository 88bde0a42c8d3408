/* Opening transports that are modules. A module is opened when it is first asked for - named in a list of transports, or
 * wanted because its hardware is there, or shown by `hocket info` - and never closed: libraries under it keep threads and
 * handlers. Where it is absent or unfit, the reason is kept, and everything works as if it did not exist.
 *
 * Modules lie beside libhocket.so: in the folder of the build as in that of the installation; HOCKET_MODULES names
 * another one. Programs that contain this file themselves (tests) have none beside them, so they need the setting. */
#include "transport/modules.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/settings.h"
#include "hocket/info.h"
#include "transport/machine.h"
#include "transport/module.h"

#define VERSION (HKT_VERSION_MAJOR * 10000 + HKT_VERSION_MINOR * 100 + HKT_VERSION_PATCH)

/** A module and what became of it. Guarded by the lock until is_tried; then constant. */
struct module {
    const char *name, *summary, *mend;
    bool (*is_wanted)(void);
    struct hkt__tp_caps typical; /* while it cannot be asked */
    bool is_tried;
    enum hkt_status status;
    char why[HKT__ERROR_TEXT_MAX];
    struct hkt__tp_ops ops;      /* its own, defaults overlaid */
};

static bool when_named(void)
{
    return false;
}

/* Typical prices: verbs on 100 Gbit/s adapters, about 2 us and 11 GB/s; ucx and cuda_p2p within a host, see ucx.c and cuda_p2p.c. */
static struct module modules[] = {
    {.name = "verbs", .summary = "InfiniBand and RoCE: RDMA by libibverbs",
     .mend = "build hocket where libibverbs-dev is installed, and install libibverbs1 here; or use tcp over the same network",
     .is_wanted = hkt__machine_has_rdma, .typical = {.latency_ns = 2000, .ns_per_byte = 0.09}},
    {.name = "ucx", .summary = "whatever UCX reaches; used where HOCKET_TRANSPORT names it",
     .mend = "build hocket where libucx-dev is installed, and install libucx0 here; or use shm and tcp",
     .is_wanted = when_named, .typical = {.latency_ns = 1500, .ns_per_byte = 0.25}},
    {.name = "cuda_p2p", .summary = "devices of one host, by their copy engines; used where HOCKET_TRANSPORT names it",
     .mend = "install it from the same build; or use thread and shm",
     .is_wanted = when_named, .typical = {.flags = HKT__TP_POLLED, .latency_ns = 20000, .ns_per_byte = 0.08}},
};
#define MODULE_COUNT ((int)(sizeof modules / sizeof modules[0]))

/* ---- what modules borrow ---- */

static enum hkt_status host_fail(enum hkt_status status, int sys_errno, int peer, const char *text)
{
    if (sys_errno == 0)
        return hkt__fail_peer(status, peer, "%s", text);
    errno = sys_errno;
    return hkt__fail_sys(status, "%s", text);
}

static int host_log_level(int subsystem)
{
    return hkt__log_level((enum hkt__log_subsystem)subsystem);
}

static void host_log(int subsystem, int level, const char *text)
{
    hkt__log((enum hkt__log_subsystem)subsystem, (enum hkt__log_level)level, "%s", text);
}

static const struct hkt__module_host host = {
    .abi = HKT__MODULE_ABI, .error_here = hkt__error_here, .fail = host_fail, .log_level = host_log_level,
    .log = host_log, .calloc = hkt__calloc, .calloc_line = hkt__calloc_line, .realloc = hkt__realloc, .free = hkt__free,
    .pages_alloc = hkt__pages_alloc, .pages_free = hkt__pages_free, .settings_get = hkt__settings_get,
    .transport_find = hkt__transport_find,
};

/* ---- opening ---- */

/** Folder of the library that contains this function; "." if the system does not tell. */
static void own_folder(char *out_folder, size_t bytes)
{
    Dl_info info;
    char full[PATH_MAX];
    const bool is_known = dladdr(&host, &info) != 0 && info.dli_fname != NULL && realpath(info.dli_fname, full) != NULL;
    char *slash = is_known ? strrchr(full, '/') : NULL;

    if (slash != NULL)
        *slash = '\0';
    snprintf(out_folder, bytes, "%s", slash != NULL ? full : ".");
}

static enum hkt_status find_path(const struct module *module, char *out_path, size_t bytes)
{
    const struct hkt__settings *settings;
    const enum hkt_status rc = hkt__settings_get(&settings);
    char folder[PATH_MAX];

    if (rc < 0)
        return rc;
    if (settings->modules[0] != '\0')
        snprintf(folder, sizeof folder, "%s", settings->modules);
    else
        own_folder(folder, sizeof folder);
    const int used = snprintf(out_path, bytes, "%s/hocket_%s.so", folder, module->name);

    if (used < 0 || (size_t)used >= bytes)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "the path of the modules, %.100s..., is too long", folder);
    if (access(out_path, R_OK) != 0)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "there is no %s: %s", out_path, module->mend);
    return HKT_OK;
}

/** Is the module of this very build? Then its table is taken. */
static enum hkt_status admit(struct module *module, const char *path, hkt__module_entry *entry)
{
    const struct hkt__module *answer = entry(&host);

    if (answer == NULL || answer->abi != HKT__MODULE_ABI || answer->ops_bytes != sizeof(struct hkt__tp_ops) ||
        answer->settings_bytes != sizeof(struct hkt__settings) || answer->version != VERSION)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s is of another version of hocket than the library: install both from one "
                         "build", path);
    module->ops = *answer->transport;
    hkt__transport_fill(&module->ops);
    if (strcmp(module->ops.name, module->name) != 0)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s holds the transport %s: its name is wrong", path, module->ops.name);
    return HKT_OK;
}

static enum hkt_status open_module(struct module *module)
{
    char path[PATH_MAX];
    const enum hkt_status rc = find_path(module, path, sizeof path);
    hkt__module_entry *entry = NULL;

    if (rc < 0)
        return rc;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (handle == NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s: %s", dlerror(), module->mend);
    void *symbol = dlsym(handle, HKT__MODULE_ENTRY);

    memcpy(&entry, &symbol, sizeof entry); /* as POSIX has it: C knows no way from object to function pointers */
    if (entry == NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s is no module of hocket: it has no %s", path, HKT__MODULE_ENTRY);
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "opened %s", path);
    return admit(module, path, entry);
}

/** OK, or UNSUPPORTED with the reason, the same each time. */
static enum hkt_status need(struct module *module)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&lock);
    if (!module->is_tried) {
        module->status = open_module(module);
        if (module->status < 0)
            snprintf(module->why, sizeof module->why, "%s", hkt_last_error());
        module->is_tried = true;
    }
    pthread_mutex_unlock(&lock);
    return module->status < 0 ? hkt__fail(module->status, "%s", module->why) : HKT_OK;
}

/* ---- stand-ins ---- */

static enum hkt_status probe_on(int index, const struct hkt__settings *settings)
{
    const enum hkt_status rc = need(&modules[index]);

    return rc < 0 ? rc : modules[index].ops.probe(settings);
}

static void query_on(int index, const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)
{
    const struct hkt__error saved = *hkt__error_here();

    assert(tp == NULL); /* instances have the module's own operations */
    if (need(&modules[index]) < 0) {
        *hkt__error_here() = saved;
        *out_caps = modules[index].typical;
        return;
    }
    modules[index].ops.query(tp, out_caps);
}

static enum hkt_status open_on(int index, const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    enum hkt_status rc = need(&modules[index]);

    if (rc == HKT_OK)
        rc = modules[index].ops.open(params, out_tp);
    if (rc == HKT_OK)
        (*out_tp)->ops = &modules[index].ops; /* with defaults, which the module does not know */
    return rc;
}

static void describe_on(int index, char *out_text, size_t bytes)
{
    const struct hkt__error saved = *hkt__error_here();

    if (need(&modules[index]) == HKT_OK && modules[index].ops.describe != NULL)
        modules[index].ops.describe(out_text, bytes);
    else
        snprintf(out_text, bytes, "%s", modules[index].summary);
    *hkt__error_here() = saved;
}

/* The operations without an object to find the module by: one of each per module. */
#define MODULE_ENTRIES(i)                                                                                              \
    static enum hkt_status probe_##i(const struct hkt__settings *settings)                                            \
    {                                                                                                                  \
        return probe_on(i, settings);                                                                                  \
    }                                                                                                                  \
    static void query_##i(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)                                    \
    {                                                                                                                  \
        query_on(i, tp, out_caps);                                                                                     \
    }                                                                                                                  \
    static enum hkt_status open_##i(const struct hkt__tp_params *params, struct hkt__tp **out_tp)                     \
    {                                                                                                                  \
        return open_on(i, params, out_tp);                                                                             \
    }                                                                                                                  \
    static void describe_##i(char *out_text, size_t bytes)                                                            \
    {                                                                                                                  \
        describe_on(i, out_text, bytes);                                                                               \
    }
MODULE_ENTRIES(0)
MODULE_ENTRIES(1)
MODULE_ENTRIES(2)
#undef MODULE_ENTRIES

#define STUB(i) {.probe = probe_##i, .query = query_##i, .open = open_##i, .describe = describe_##i}
static struct hkt__tp_ops stubs[] = {STUB(0), STUB(1), STUB(2)}; /* names are filled in at once, before any other thread reads */
#undef STUB
_Static_assert(sizeof stubs / sizeof stubs[0] == sizeof modules / sizeof modules[0], "a stand-in for each module");

const struct hkt__tp_ops *hkt__module_stub(int index)
{
    if (index < 0 || index >= MODULE_COUNT)
        return NULL;
    stubs[index].name = modules[index].name;
    stubs[index].summary = modules[index].summary;
    stubs[index].is_wanted = modules[index].is_wanted;
    return &stubs[index];
}
