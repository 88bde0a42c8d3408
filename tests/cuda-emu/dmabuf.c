/* Memory of devices as other drivers may know it: in place of a dmabuf an open file, positioned where it begins (emu.h). */
#include <cuda.h>

#include "engine.h"
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define DMA_BUF_SUPPORTED 124
#define DMA_BUF_FD 1

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    const CUresult rc = emu_enter(__func__);

    if (rc == CUDA_SUCCESS)
        *device = ordinal;
    return rc != CUDA_SUCCESS || ordinal < emu_device_count() ? rc : (CUresult)cudaErrorInvalidDevice;
}

static bool has_dmabuf(int device)
{
    const long how = emu_setting("EMU_DMABUF", 1);

    return how != 0 && (how != 2 || device == 0);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    const CUresult rc = emu_enter(__func__);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (attribute != DMA_BUF_SUPPORTED)
        return cudaErrorInvalidValue;
    *value = has_dmabuf(device);
    return CUDA_SUCCESS;
}

/** The allocation that has bytes in these pages. Under the lock. */
static const struct region *region_in(uintptr_t first, size_t bytes)
{
    const struct region *region = NULL;

    for (uintptr_t at = first; at < first + bytes && region == NULL; at += 256) /* as allocations are aligned */
        region = emu_region_find((const void *)at);
    return region;
}

/** Opens the file behind pages of an allocation where these begin, for others to map: like a dmabuf, it keeps the memory. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr first, size_t bytes, int type, unsigned long long flags)
{
    const CUresult rc = emu_enter(__func__);
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const bool is_other = emu_setting("EMU_DMABUF", 1) == 3;
    const struct region *region;
    off_t at = -1;
    int fd = -1;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (type != DMA_BUF_FD || flags != 0 || first % page != 0 || bytes == 0 || bytes % page != 0)
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&emu_runtime.lock);
    region = region_in((uintptr_t)first, bytes);
    if (region != NULL && region->kind == KIND_DEVICE && has_dmabuf(region->device)) {
        const uintptr_t begin = (uintptr_t)region->map + GRAIN, end = (uintptr_t)region->map + region->map_bytes - GRAIN;
        char path[64];

        snprintf(path, sizeof path, "/proc/self/fd/%d", region->fd);
        if (first >= begin && first + bytes <= end) {
            at = (off_t)(first - begin);
            fd = is_other ? memfd_create("emu", MFD_CLOEXEC) : open(path, O_RDWR | O_CLOEXEC);
        }
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    if (at < 0)
        return cudaErrorNotSupported;
    if (fd < 0 || (is_other && ftruncate(fd, at + (off_t)bytes) != 0) || lseek(fd, at, SEEK_SET) != at) {
        if (fd >= 0)
            close(fd);
        return cudaErrorUnknown;
    }
    *(int *)handle = fd;
    return CUDA_SUCCESS;
}
