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

/** Makes `device` current. OK: *out_user is what was. */
static cudaError_t enter(int device, int *out_user)
{
    const cudaError_t rc = cudaGetDevice(out_user);

    return rc != cudaSuccess || *out_user == device ? rc : cudaSetDevice(device);
}

/** The user's device again. Returns rc, or why that failed. */
static int leave(cudaError_t rc, int device, int user)
{
    const cudaError_t back = user != device ? cudaSetDevice(user) : cudaSuccess;

    return (int)(rc != cudaSuccess ? rc : back);
}

int hkt__cuda_copy_wait(void *dst, const void *src, size_t bytes, int device)
{
    int user;
    cudaError_t rc = enter(device, &user);

    if (rc != cudaSuccess)
        return (int)rc;
    rc = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, NULL);
    if (rc == cudaSuccess)
        rc = cudaStreamSynchronize(NULL);
    return leave(rc, device, user);
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
    int user;
    cudaError_t rc = enter(device, &user);

    if (rc != cudaSuccess)
        return (int)rc;
    rc = cudaMalloc(&p, bytes);
    if (rc == cudaSuccess)
        *out = p;
    return leave(rc, device, user);
}

int hkt__cuda_device_free(void *p)
{
    return (int)cudaFree(p);
}

const char *hkt__cuda_error_text(int rc)
{
    return cudaGetErrorString((cudaError_t)rc);
}
