/* Memory of devices: a mapping each, backed by an anonymous file so that other processes can map it too. A guard page
 * lies before and behind, and the bytes are never what a program hopes for: 0xcd at first, 0xdd before they go.
 *
 * An IPC handle names the process and its file descriptor; /proc/PID/fd opens it. Nothing of it outlives the processes. */
#include "memory.h"
#include "stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OF_DEVICE 0xcd
#define FREED 0xdd

/* What is inside a handle. */
struct handle {
    char magic[8];
    int pid, fd, device;
    size_t bytes;
};
#define MAGIC "emu-ipc"

static struct region *regions; /* under emu_runtime.lock */
static int nregions;

static bool is_of_host(const struct region *region)
{
    return region->kind == KIND_HOST || region->kind == KIND_PINNED;
}

struct region *emu_region_find(const void *p)
{
    struct region *region;

    for (region = regions; region != NULL; region = region->next)
        if ((const char *)p >= region->base && (const char *)p < region->base + region->bytes)
            return region;
    return NULL;
}

bool emu_is_allocated(const void *p, size_t bytes)
{
    const struct region *region;
    bool inside;

    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find(p);
    inside = region != NULL && bytes <= (size_t)(region->base + region->bytes - (const char *)p);
    pthread_mutex_unlock(&emu_runtime.lock);
    return inside;
}

void *emu_reach(const void *p)
{
    const struct region *region;
    char *reach = (char *)p;

    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find(p);
    if (region != NULL)
        reach = region->reach + ((const char *)p - region->base);
    pthread_mutex_unlock(&emu_runtime.lock);
    return reach;
}

int emu_device_of(const void *p)
{
    const struct region *region;
    int device;

    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find(p);
    device = region != NULL && !is_of_host(region) ? region->device : -1;
    pthread_mutex_unlock(&emu_runtime.lock);
    return device;
}

void emu_region_list(struct region *region)
{
    pthread_mutex_lock(&emu_runtime.lock);
    region->next = regions;
    regions = region;
    ++nregions;
    pthread_mutex_unlock(&emu_runtime.lock);
}

void emu_region_unlist(const struct region *region)
{
    struct region **link = &regions;

    while (*link != region)
        link = &(*link)->next;
    *link = region->next;
    --nregions;
}

/** The program may not touch the memory, as it cannot touch a GPU's: only copies can, by a mapping of their own. */
static bool make_blind(struct region *region, size_t used)
{
    char *second = mmap(NULL, used, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);

    if (second == MAP_FAILED || mprotect(region->map + GRAIN, used, PROT_NONE) != 0)
        return false;
    region->reach = second + (region->base - region->map - GRAIN);
    return true;
}

/** Maps a file of `bytes` between guards and lists it; its end touches the guard as closely as 256 bytes, the alignment
 *  of cudaMalloc, allow. NULL: no memory. Takes fd when it succeeds. */
static struct region *add(int fd, size_t bytes, enum kind kind, int device)
{
    const size_t used = (bytes + GRAIN - 1) / GRAIN * GRAIN, whole = used + 2 * GRAIN;
    struct region *region = calloc(1, sizeof *region);
    char *map = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (region == NULL || map == MAP_FAILED
        || mmap(map + GRAIN, used, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        if (map != MAP_FAILED)
            munmap(map, whole);
        free(region);
        return NULL;
    }
    region->map = map;
    region->map_bytes = whole;
    region->base = map + GRAIN + (used - (bytes + 255) / 256 * 256);
    region->reach = region->base;
    region->bytes = bytes;
    region->device = device;
    region->fd = fd;
    region->references = 1;
    region->kind = kind;
    if (kind != KIND_HOST && emu_setting("EMU_BLIND", 0) != 0 && !make_blind(region, used)) {
        munmap(map, whole);
        free(region);
        return NULL;
    }
    emu_region_list(region);
    return region;
}

static cudaError_t allocate(void **p, size_t bytes, enum kind kind)
{
    struct region *region;
    int fd;

    if (p == NULL)
        return emu_note(cudaErrorInvalidValue);
    *p = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (emu_unsafe_call() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (bytes > (size_t)emu_setting("EMU_MEMORY_MB", 1024) << 20)
        return emu_note(cudaErrorMemoryAllocation);
    fd = memfd_create("emu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)((bytes + GRAIN - 1) / GRAIN * GRAIN)) != 0
        || (region = add(fd, bytes, kind, emu_device())) == NULL) {
        if (fd >= 0)
            close(fd);
        return emu_note(cudaErrorMemoryAllocation);
    }
    memset(region->reach, OF_DEVICE, bytes);
    *p = region->base;
    return cudaSuccess;
}

/** cudaFree takes all that CUDA allocates on devices. */
static bool is_freed_as(const struct region *region, enum kind kind)
{
    return region->kind == kind || (kind == KIND_DEVICE && (region->kind == KIND_POOL || region->kind == KIND_MANAGED));
}

/** Takes p, a start of an allocation of the kind, off the list; drops one reference of an imported one. */
static cudaError_t release(void *p, enum kind kind)
{
    struct region *region;

    if (p == NULL && kind != KIND_IMPORTED)
        return cudaSuccess;
    if (emu_unsafe_call() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    emu_drain(-1); /* as cudaFree does */
    pthread_mutex_lock(&emu_runtime.lock);
    for (region = regions; region != NULL; region = region->next)
        if (region->base == p && is_freed_as(region, kind))
            break;
    if (region != NULL && --region->references == 0) {
        emu_region_unlist(region);
    } else if (region != NULL) {
        pthread_mutex_unlock(&emu_runtime.lock);
        return cudaSuccess;
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    if (region == NULL)
        return emu_note(kind == KIND_PINNED ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue);
    if (kind == KIND_PINNED) {
        free(region);
        return cudaSuccess;
    }
    if (kind != KIND_IMPORTED)
        memset(region->reach, FREED, region->bytes);
    if (region->reach != region->base)
        munmap(region->reach - (region->base - region->map - GRAIN), region->map_bytes - 2 * GRAIN);
    munmap(region->map, region->map_bytes);
    close(region->fd);
    free(region);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    const cudaError_t rc = emu_enter(__func__);

    return rc != cudaSuccess ? rc : allocate(p, bytes, KIND_DEVICE);
}

/* From a pool: in the order of the stream, which here is at once. */
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream)
{
    const cudaError_t rc = emu_enter(__func__);

    (void)stream;
    return rc != cudaSuccess ? rc : allocate(p, bytes, KIND_POOL);
}

cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned flags)
{
    const cudaError_t rc = emu_enter(__func__);

    (void)flags;
    return rc != cudaSuccess ? rc : allocate(p, bytes, KIND_MANAGED);
}

cudaError_t cudaFree(void *p)
{
    const cudaError_t rc = emu_enter(__func__);

    return rc != cudaSuccess ? rc : release(p, KIND_DEVICE);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    const cudaError_t rc = emu_enter(__func__);

    (void)flags;
    return rc != cudaSuccess ? rc : allocate(p, bytes, KIND_HOST);
}

cudaError_t cudaFreeHost(void *p)
{
    const cudaError_t rc = emu_enter(__func__);

    return rc != cudaSuccess ? rc : release(p, KIND_HOST);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    const cudaError_t rc = emu_enter(__func__);
    struct region *region;

    if (rc != cudaSuccess)
        return rc;
    if (p == NULL || bytes == 0 || flags > cudaHostRegisterPortable)
        return emu_note(cudaErrorInvalidValue);
    if (emu_is_allocated(p, 1))
        return emu_note(cudaErrorHostMemoryAlreadyRegistered);
    region = calloc(1, sizeof *region);
    if (region == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    region->base = region->reach = p;
    region->bytes = bytes;
    region->device = emu_device();
    region->references = 1;
    region->kind = KIND_PINNED;
    emu_region_list(region);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    const cudaError_t rc = emu_enter(__func__);

    return rc != cudaSuccess ? rc : release(p, KIND_PINNED);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p)
{
    const cudaError_t rc = emu_enter(__func__);
    const struct region *region;

    if (rc != cudaSuccess)
        return rc;
    if (attributes == NULL)
        return emu_note(cudaErrorInvalidValue);
    *attributes = (struct cudaPointerAttributes){ .type = cudaMemoryTypeUnregistered, .device = -2,
                                                  .hostPointer = (void *)p };
    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find(p);
    if (region != NULL)
        *attributes = (struct cudaPointerAttributes){
            .type = region->kind == KIND_MANAGED ? cudaMemoryTypeManaged
                    : is_of_host(region)         ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeDevice,
            .device = region->device,
            .devicePointer = (void *)p,
            .hostPointer = is_of_host(region) ? (void *)p : NULL,
        };
    pthread_mutex_unlock(&emu_runtime.lock);
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
    const cudaError_t rc = emu_enter(__func__);
    const struct region *region;
    struct handle inside = { .magic = MAGIC, .pid = getpid() };

    if (rc != cudaSuccess)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    region = emu_region_find(p);
    if (region != NULL && region->kind == KIND_DEVICE) {
        inside.fd = region->fd;
        inside.device = region->device;
        inside.bytes = region->bytes;
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    if (inside.bytes == 0)
        return emu_note(cudaErrorInvalidValue);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &inside, sizeof inside);
    return cudaSuccess;
}

/** An import of the same handle: gets another reference. */
static void *open_again(const cudaIpcMemHandle_t *handle)
{
    struct region *region;
    void *p = NULL;

    pthread_mutex_lock(&emu_runtime.lock);
    for (region = regions; region != NULL && p == NULL; region = region->next)
        if (region->kind == KIND_IMPORTED && memcmp(&region->handle, handle, sizeof *handle) == 0) {
            ++region->references;
            p = region->base;
        }
    pthread_mutex_unlock(&emu_runtime.lock);
    return p;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned flags)
{
    const cudaError_t rc = emu_enter(__func__);
    struct handle inside;
    struct region *region;
    char path[64];
    int fd;

    if (rc != cudaSuccess)
        return rc;
    memcpy(&inside, &handle, sizeof inside);
    if (emu_setting("EMU_IPC", 1) == 0) /* as in containers that share no processes */
        return emu_note(cudaErrorNotSupported);
    if (flags != cudaIpcMemLazyEnablePeerAccess || memcmp(inside.magic, MAGIC, sizeof inside.magic) != 0)
        return emu_note(cudaErrorInvalidValue);
    if (inside.pid == getpid()) /* CUDA refuses handles of the own process */
        return emu_note(cudaErrorInvalidResourceHandle);
    if ((*p = open_again(&handle)) != NULL)
        return cudaSuccess;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", inside.pid, inside.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || (region = add(fd, inside.bytes, KIND_IMPORTED, inside.device)) == NULL) {
        if (fd >= 0)
            close(fd);
        return emu_note(cudaErrorMapBufferObjectFailed);
    }
    region->handle = handle;
    *p = region->base;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    const cudaError_t rc = emu_enter(__func__);

    return rc != cudaSuccess ? rc : release(p, KIND_IMPORTED);
}

int emu_live_regions(void)
{
    int n;

    pthread_mutex_lock(&emu_runtime.lock);
    n = nregions;
    pthread_mutex_unlock(&emu_runtime.lock);
    return n;
}
