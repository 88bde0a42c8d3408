/* Memory of devices as other drivers know it: a dmabuf, from which adapters of networks read without the host's help. The runtime
 * has no such calls, only the driver. */
#include <cuda_runtime_api.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "kernels/runtime.h"

/* Of CUDA's driver interface (cuda.h), which has these since 11.7. Its errors have the runtime's numbers. */
#define DMABUF_SUPPORTED 124 /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */
#define RANGE_DMABUF 1       /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */
typedef int get_device(int *device, int ordinal);
typedef int get_attribute(int *value, int attribute, int device);
typedef int get_handle(void *handle, unsigned long long first, size_t bytes, int type, unsigned long long flags);

int hkt__cuda_dmabuf_can(int device, int *out_yes)
{
    void *attribute = NULL, *get = NULL;
    get_attribute *ask;
    get_device *name;
    int yes = 0, handle = 0, rc = hkt__cuda_driver_find("cuDeviceGet", &get);

    if (rc == cudaSuccess)
        rc = hkt__cuda_driver_find("cuDeviceGetAttribute", &attribute);
    *(void **)&name = get;
    *(void **)&ask = attribute;
    if (rc == cudaSuccess)
        rc = name(&handle, device);
    if (rc == cudaSuccess)
        rc = ask(&yes, DMABUF_SUPPORTED, handle);
    if (rc == cudaSuccess)
        *out_yes = yes != 0;
    return rc;
}

int hkt__cuda_dmabuf_open(const void *p, size_t bytes, int *out_fd, size_t *out_offset)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)p / page * page;
    const size_t whole = ((uintptr_t)p - first + bytes + page - 1) / page * page;
    void *function = NULL;
    get_handle *get;
    int fd = -1, rc = hkt__cuda_driver_find("cuMemGetHandleForAddressRange", &function);

    *(void **)&get = function;
    if (rc == cudaSuccess)
        rc = get(&fd, first, whole, RANGE_DMABUF, 0);
    if (rc != cudaSuccess)
        return rc;
    *out_fd = fd;
    *out_offset = (size_t)((uintptr_t)p - first);
    return cudaSuccess;
}
