/* Memory that somebody else allocated on a device: what it is, and how other processes may map it. The runtime does not tell;
 * the driver does, whose functions are looked up here, since nothing links with it. Both number their errors alike. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/runtime.h"

/** Functions of the driver, as of its version 12.0. */
struct driver {
    CUresult (*attributes)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
    CUresult (*range)(CUdeviceptr *, size_t *, CUdeviceptr);
    CUresult (*retain)(CUmemGenericAllocationHandle *, void *);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*export)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
    CUresult (*import)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*give_back)(CUdeviceptr, size_t);
};
static const struct {
    const char *symbol;
    size_t at;
} symbols[] = {
    { "cuPointerGetAttributes", offsetof(struct driver, attributes) },
    { "cuMemGetAddressRange", offsetof(struct driver, range) },
    { "cuMemRetainAllocationHandle", offsetof(struct driver, retain) },
    { "cuMemRelease", offsetof(struct driver, release) },
    { "cuMemExportToShareableHandle", offsetof(struct driver, export) },
    { "cuMemImportFromShareableHandle", offsetof(struct driver, import) },
    { "cuMemAddressReserve", offsetof(struct driver, reserve) },
    { "cuMemMap", offsetof(struct driver, map) },
    { "cuMemSetAccess", offsetof(struct driver, access) },
    { "cuMemUnmap", offsetof(struct driver, unmap) },
    { "cuMemAddressFree", offsetof(struct driver, give_back) },
};

int hkt__cuda_driver_find(const char *symbol, void **out_function)
{
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t rc = cudaGetDriverEntryPointByVersion(symbol, out_function, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t rc = cudaGetDriverEntryPoint(symbol, out_function, cudaEnableDefault, &result);
#endif

    (void)cudaGetLastError(); /* told by the status: not again by a later call of the user's */
    return rc == cudaSuccess && result != cudaDriverEntryPointSuccess ? cudaErrorNotSupported : (int)rc;
}

/** Looked up at the first use, all together: what is begun can then be undone. */
static int driver_get(const struct driver **out_driver)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct driver driver; /* under the lock, until it is whole */
    static bool is_whole;
    int rc = cudaSuccess;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols && !is_whole && rc == cudaSuccess; i++) {
        void *function = NULL;

        rc = hkt__cuda_driver_find(symbols[i].symbol, &function);
        memcpy((char *)&driver + symbols[i].at, &function, sizeof function);
    }
    is_whole |= rc == cudaSuccess;
    pthread_mutex_unlock(&lock);
    *out_driver = &driver;
    return rc;
}

/** What the driver says of a pointer; of memory that is not CUDA's, zeros. */
struct answers {
    unsigned type, is_managed, is_for_ipc;
    unsigned long long names; /* set of CUmemAllocationHandleType */
    void *pool;
    int device;
};

static int ask(const struct driver *driver, CUdeviceptr p, struct answers *out)
{
    CUpointer_attribute attributes[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                         CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                         CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
    void *data[] = { &out->type, &out->is_managed, &out->is_for_ipc, &out->names, &out->pool, &out->device };

    *out = (struct answers){ .device = -1 };
    return (int)driver->attributes(sizeof data / sizeof *data, attributes, data, p);
}

static enum hkt__cuda_kind kind_of(const struct answers *is)
{
    if (is->is_managed)
        return HKT__CUDA_MANAGED;
    if (is->type != CU_MEMORYTYPE_DEVICE)
        return HKT__CUDA_HOST;
    if (is->pool != NULL)
        return HKT__CUDA_POOLED;
    if (is->is_for_ipc)
        return HKT__CUDA_WHOLE;
    return (is->names & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 ? HKT__CUDA_NAMED : HKT__CUDA_NAMELESS;
}

/** The allocation around an address. The driver tells it only where a context of the memory's device is current: the runtime
 *  makes it so when the device is set, even to what it was. */
static int range_of(const struct driver *driver, CUdeviceptr at, int device, CUdeviceptr *out_base, size_t *out_bytes)
{
    int before, rc = (int)cudaGetDevice(&before);

    if (rc == cudaSuccess)
        rc = (int)cudaSetDevice(device);
    if (rc != cudaSuccess)
        return rc;
    rc = (int)driver->range(out_base, out_bytes, at);
    return hkt__cuda_leave(rc, device, before);
}

int hkt__cuda_memory_find(const void *p, struct hkt__cuda_memory *out_memory)
{
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    const struct driver *driver;
    struct hkt__cuda_memory memory;
    CUdeviceptr base = 0;
    struct answers is;
    int rc = driver_get(&driver);

    if (rc == cudaSuccess)
        rc = ask(driver, at, &is);
    if (rc != cudaSuccess)
        return rc;
    memory = (struct hkt__cuda_memory){ .kind = kind_of(&is), .device = is.device };
    if (memory.kind != HKT__CUDA_HOST && memory.kind != HKT__CUDA_MANAGED)
        rc = range_of(driver, at, is.device, &base, &memory.bytes);
    if (rc != cudaSuccess)
        return rc;
    memory.base = (char *)(uintptr_t)base;
    *out_memory = memory;
    return cudaSuccess;
}

/** A call that fails is made again once: what is held is memory. */
static int release(const struct driver *driver, CUmemGenericAllocationHandle handle)
{
    const int rc = (int)driver->release(handle);

    return rc == cudaSuccess ? rc : (int)driver->release(handle);
}

int hkt__cuda_memory_export(const void *p, int *out_fd)
{
    CUmemGenericAllocationHandle handle;
    const struct driver *driver;
    int fd = -1, released, rc = driver_get(&driver);

    if (rc == cudaSuccess)
        rc = (int)driver->retain(&handle, (void *)(uintptr_t)p);
    if (rc != cudaSuccess)
        return rc;
    rc = (int)driver->export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    released = release(driver, handle);
    if (rc == cudaSuccess) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* it holds the memory: not in programs that others start */
        *out_fd = fd;                         /* whatever became of the handle */
    }
    return rc != cudaSuccess ? rc : released;
}

/** Gives addresses to an allocation, and a device access. */
static int map(const struct driver *driver, CUmemGenericAllocationHandle handle, size_t bytes, int device, void **out)
{
    const CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
                                     .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUdeviceptr at = 0;
    int rc = (int)driver->reserve(&at, bytes, 0, 0, 0);

    if (rc != cudaSuccess)
        return rc;
    rc = (int)driver->map(at, bytes, 0, handle, 0);
    if (rc == cudaSuccess) {
        rc = (int)driver->access(at, bytes, &access, 1);
        if (rc != cudaSuccess)
            (void)driver->unmap(at, bytes);
    }
    if (rc != cudaSuccess)
        (void)driver->give_back(at, bytes);
    else
        *out = (void *)(uintptr_t)at;
    return rc;
}

int hkt__cuda_memory_import(int fd, size_t bytes, int device, void **out)
{
    CUmemGenericAllocationHandle handle;
    const struct driver *driver;
    void *p = NULL;
    int before, released, rc = driver_get(&driver);

    if (rc == cudaSuccess)
        rc = hkt__cuda_enter(device, &before);
    if (rc != cudaSuccess)
        return rc;
    rc = (int)driver->import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (rc == cudaSuccess) {
        rc = map(driver, handle, bytes, device, &p);
        released = release(driver, handle); /* the mapping keeps what it maps */
        rc = rc != cudaSuccess ? rc : released;
    }
    rc = hkt__cuda_leave(rc, device, before);
    if (rc == cudaSuccess)
        *out = p;
    else if (p != NULL)
        (void)hkt__cuda_memory_unmap(p, bytes); /* the caller is told that there is none */
    return rc;
}

int hkt__cuda_memory_unmap(void *p, size_t bytes)
{
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    const struct driver *driver;
    int rc = driver_get(&driver);

    if (rc == cudaSuccess)
        rc = (int)driver->unmap(at, bytes);
    if (rc != cudaSuccess)
        return rc;
    rc = (int)driver->give_back(at, bytes);
    return rc == cudaSuccess ? rc : (int)driver->give_back(at, bytes); /* nobody asks again: it is unmapped */
}
