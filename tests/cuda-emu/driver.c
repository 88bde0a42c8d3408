/* What hocket asks of CUDA's driver itself: what memory a pointer is of, and memory that is made, mapped and named in steps.
 * A name is a file descriptor, here of the memory's anonymous file.
 *
 * As CUDA has it, memory that was mapped is reached by nobody before cuMemSetAccess, and lives while a handle or a mapping does. */
#include <cuda.h>

#include "memory.h"
#include "stream.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/** Memory made by cuMemCreate, or one that another process made. */
struct emu_memory {
    size_t bytes;
    int fd, device, references; /* under emu_runtime.lock */
    bool is_named;              /* may be given to other processes */
};

/** Addresses that nothing else takes. */
struct range {
    struct range *next;
    char *base;
    size_t bytes;
};
static struct range *ranges; /* under emu_runtime.lock */

static struct emu_memory *memory_of(CUmemGenericAllocationHandle handle)
{
    return (struct emu_memory *)(uintptr_t)handle;
}

/** Under the lock. */
static void drop(struct emu_memory *memory)
{
    if (--memory->references > 0)
        return;
    close(memory->fd);
    free(memory);
    emu_count_objects(-1);
}

/** A new memory with one reference; takes fd when it succeeds. */
static struct emu_memory *adopt(int fd, size_t bytes, int device, bool is_named)
{
    struct emu_memory *memory = calloc(1, sizeof *memory);

    if (memory == NULL)
        return NULL;
    *memory = (struct emu_memory){ .bytes = bytes, .fd = fd, .device = device, .references = 1, .is_named = is_named };
    pthread_mutex_lock(&emu_runtime.lock);
    emu_count_objects(1);
    pthread_mutex_unlock(&emu_runtime.lock);
    return memory;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    const CUresult rc = emu_enter(__func__);
    struct emu_memory *memory;
    int fd;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (flags != 0 || bytes == 0 || bytes % GRAIN != 0 || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return emu_note(cudaErrorInvalidValue);
    fd = memfd_create("emu-mem", MFD_CLOEXEC);
    memory = fd < 0 || ftruncate(fd, (off_t)bytes) != 0
                 ? NULL
                 : adopt(fd, bytes, prop->location.id, prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (memory == NULL) {
        if (fd >= 0)
            close(fd);
        return emu_note(cudaErrorMemoryAllocation);
    }
    *handle = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    const CUresult rc = emu_enter(__func__);

    if (rc != CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    drop(memory_of(handle));
    pthread_mutex_unlock(&emu_runtime.lock);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *p)
{
    const CUresult rc = emu_enter(__func__);
    const struct region *region;

    if (rc != CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find(p);
    if (region != NULL && region->memory != NULL) {
        ++region->memory->references;
        *handle = (uintptr_t)region->memory;
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    return region != NULL && region->memory != NULL ? CUDA_SUCCESS : (CUresult)emu_note(cudaErrorInvalidValue);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    const CUresult rc = emu_enter(__func__);
    const struct emu_memory *memory = memory_of(handle);
    int fd;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !memory->is_named)
        return emu_note(cudaErrorInvalidValue);
    fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return emu_note(cudaErrorUnknown);
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)
{
    const CUresult rc = emu_enter(__func__);
    int fd = (int)(intptr_t)shareable;
    struct emu_memory *memory;
    off_t bytes;

    if (rc != CUDA_SUCCESS)
        return rc;
    bytes = lseek(fd, 0, SEEK_END);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || bytes <= 0)
        return emu_note(cudaErrorInvalidValue);
    if (emu_setting("EMU_IPC", 1) == 0)
        return emu_note(cudaErrorNotSupported);
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    memory = fd < 0 ? NULL : adopt(fd, (size_t)bytes, emu_device(), true);
    if (memory == NULL) {
        if (fd >= 0)
            close(fd);
        return emu_note(cudaErrorUnknown);
    }
    *handle = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

/* --- Addresses ------------------------------------------------------------------------------------------------------ */

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags)
{
    const CUresult rc = emu_enter(__func__);
    struct range *range;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (bytes == 0 || bytes % GRAIN != 0 || alignment != 0 || at != 0 || flags != 0)
        return emu_note(cudaErrorInvalidValue);
    range = calloc(1, sizeof *range);
    if (range == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    range->bytes = bytes;
    range->base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range->base == MAP_FAILED) {
        free(range);
        return emu_note(cudaErrorMemoryAllocation);
    }
    pthread_mutex_lock(&emu_runtime.lock);
    range->next = ranges;
    ranges = range;
    emu_count_objects(1);
    pthread_mutex_unlock(&emu_runtime.lock);
    *p = (uintptr_t)range->base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes)
{
    const CUresult rc = emu_enter(__func__);
    struct range **link, *range;

    if (rc != CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    for (link = &ranges; (range = *link) != NULL; link = &range->next)
        if ((uintptr_t)range->base == p && range->bytes == bytes)
            break;
    if (range != NULL) {
        *link = range->next;
        emu_count_objects(-1);
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    if (range == NULL)
        return emu_note(cudaErrorInvalidValue);
    munmap(range->base, range->bytes);
    free(range);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    const CUresult rc = emu_enter(__func__);
    struct emu_memory *memory = memory_of(handle);
    char *base = (char *)(uintptr_t)p, *reach;
    struct region *region;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (offset != 0 || flags != 0 || bytes > memory->bytes || (region = calloc(1, sizeof *region)) == NULL)
        return emu_note(cudaErrorInvalidValue);
    reach = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (reach == MAP_FAILED || mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) == MAP_FAILED) {
        if (reach != MAP_FAILED)
            munmap(reach, bytes);
        free(region);
        return emu_note(cudaErrorMapBufferObjectFailed);
    }
    *region = (struct region){ .base = base, .reach = reach, .bytes = bytes, .device = memory->device, .fd = -1, .references = 1,
                               .kind = KIND_MAPPED, .memory = memory };
    emu_region_list(region);
    pthread_mutex_lock(&emu_runtime.lock);
    ++memory->references;
    pthread_mutex_unlock(&emu_runtime.lock);
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    const CUresult rc = emu_enter(__func__);
    int protection = PROT_READ | PROT_WRITE;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (count != 1 || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return emu_note(cudaErrorInvalidValue);
    if (emu_setting("EMU_BLIND", 0) != 0)
        protection = PROT_NONE;
    return mprotect((void *)(uintptr_t)p, bytes, protection) == 0 ? CUDA_SUCCESS : (CUresult)emu_note(cudaErrorInvalidValue);
}

CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
    const CUresult rc = emu_enter(__func__);
    struct region *region;

    if (rc != CUDA_SUCCESS)
        return rc;
    emu_drain(-1);
    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find((void *)(uintptr_t)p);
    if (region != NULL && region->kind == KIND_MAPPED && (uintptr_t)region->base == p && region->bytes == bytes) {
        emu_region_unlist(region);
        drop(region->memory);
    } else {
        region = NULL;
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    if (region == NULL)
        return emu_note(cudaErrorInvalidValue);
    munmap(region->reach, bytes);
    (void)!mmap(region->base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    free(region);
    return CUDA_SUCCESS;
}

/* --- Questions ------------------------------------------------------------------------------------------------------ */

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr p)
{
    const CUresult rc = emu_enter(__func__);
    const struct region *region;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (!emu_is_bound())
        return (CUresult)emu_note((cudaError_t)CUDA_ERROR_INVALID_CONTEXT);
    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find((void *)(uintptr_t)p);
    if (region != NULL && region->device != emu_device()) /* as it is seen to be */
        region = NULL;
    if (region != NULL) {
        *base = (uintptr_t)region->base;
        *bytes = region->bytes;
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    return region != NULL ? CUDA_SUCCESS : (CUresult)emu_note(cudaErrorInvalidValue);
}

/** Of memory that is not CUDA's all is 0. */
static void answer(const struct region *region, CUpointer_attribute attribute, void *out)
{
    const bool is_host = region != NULL && (region->kind == KIND_HOST || region->kind == KIND_PINNED);
    const bool is_named = region != NULL && region->memory != NULL && region->memory->is_named;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = region == NULL ? 0 : is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)out = region != NULL && region->kind == KIND_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = region != NULL ? region->device : -2;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)out = region != NULL && region->kind == KIND_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)out = is_named ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(const void **)out = region != NULL && region->kind == KIND_POOL ? region : NULL;
        break;
    }
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr p)
{
    const CUresult rc = emu_enter(__func__);
    const struct region *region;

    if (rc != CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find((void *)(uintptr_t)p);
    for (unsigned i = 0; i < count; i++)
        answer(region, attributes[i], data[i]);
    pthread_mutex_unlock(&emu_runtime.lock);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } table[] = {
#define ROW(name) { #name, (void (*)(void))name }
        ROW(cuPointerGetAttributes), ROW(cuMemGetAddressRange), ROW(cuMemRelease), ROW(cuMemRetainAllocationHandle),
        ROW(cuMemExportToShareableHandle), ROW(cuMemImportFromShareableHandle), ROW(cuMemAddressReserve), ROW(cuMemAddressFree),
        ROW(cuMemMap), ROW(cuMemSetAccess), ROW(cuMemUnmap), ROW(cuDeviceGet), ROW(cuDeviceGetAttribute),
        ROW(cuMemGetHandleForAddressRange),
#undef ROW
    };
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (flags != cudaEnableDefault || version > CUDART_VERSION)
        return emu_note(cudaErrorInvalidValue);
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, symbol) == 0) {
            memcpy(function, &table[i].function, sizeof *function);
            *result = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}
