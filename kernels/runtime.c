/* The calls of the CUDA runtime that the library needs, for those who do not see CUDA's headers. Each leaves the calling
 * thread's current device as it was: that is the user's. */
#include <cuda_runtime_api.h>

#include "kernels/runtime.h"

int hkt__cuda_device_count(int *out_count)
{
    int count = 0;
    const cudaError_t rc = cudaGetDeviceCount(&count);

    if (rc == cudaSuccess)
        *out_count = count;
    (void)cudaGetLastError(); /* told by the status: not again by a later call of the user's */
    return (int)rc;
}

int hkt__cuda_where_is(const void *p, int *out_device)
{
    struct cudaPointerAttributes attributes = { .type = cudaMemoryTypeUnregistered };
    const cudaError_t rc = cudaPointerGetAttributes(&attributes, p);

    if (rc == cudaSuccess)
        *out_device = attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
    return (int)rc;
}

int hkt__cuda_enter(int device, int *out_before)
{
    const cudaError_t rc = cudaGetDevice(out_before);

    return (int)(rc != cudaSuccess || *out_before == device ? rc : cudaSetDevice(device));
}

int hkt__cuda_leave(int rc, int device, int before)
{
    const cudaError_t back = before != device ? cudaSetDevice(before) : cudaSuccess;

    return rc != cudaSuccess ? rc : (int)back;
}

int hkt__cuda_copy_wait(void *dst, const void *src, size_t bytes, int device)
{
    int user, rc = hkt__cuda_enter(device, &user);

    if (rc != cudaSuccess)
        return rc;
    rc = (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, NULL);
    if (rc == cudaSuccess)
        rc = (int)cudaStreamSynchronize(NULL);
    return hkt__cuda_leave(rc, device, user);
}

int hkt__cuda_pin(void *p, size_t bytes)
{
    return (int)cudaHostRegister(p, bytes, cudaHostRegisterPortable);
}

int hkt__cuda_unpin(void *p)
{
    return (int)cudaHostUnregister(p);
}

int hkt__cuda_device_alloc(void **out, size_t bytes, int device)
{
    void *p = NULL;
    int user, rc = hkt__cuda_enter(device, &user);

    if (rc != cudaSuccess)
        return rc;
    rc = hkt__cuda_leave((int)cudaMalloc(&p, bytes), device, user);
    if (rc == cudaSuccess)
        *out = p;
    else if (p != NULL)
        (void)cudaFree(p); /* the caller is told that there is none */
    return rc;
}

int hkt__cuda_device_free(void *p)
{
    return (int)cudaFree(p);
}

const char *hkt__cuda_error_text(int rc)
{
    return cudaGetErrorString((cudaError_t)rc);
}
