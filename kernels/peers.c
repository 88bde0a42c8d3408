/* What devices reach beside their own memory: each other's, that of other processes, the host's. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/runtime.h"

_Static_assert(sizeof(struct hkt__cuda_handle) == sizeof(cudaIpcMemHandle_t), "a handle is CUDA's");

int hkt__cuda_device_current(int *out_device)
{
    return (int)cudaGetDevice(out_device);
}

int hkt__cuda_device_use(int device, int *out_before)
{
    return hkt__cuda_enter(device, out_before);
}

int hkt__cuda_device_place(int device, char *out_text, size_t bytes)
{
    return (int)cudaDeviceGetPCIBusId(out_text, (int)bytes, device);
}

int hkt__cuda_device_multiprocessors(int device, int *out_count)
{
    return (int)cudaDeviceGetAttribute(out_count, cudaDevAttrMultiProcessorCount, device);
}

int hkt__cuda_peer_enable(int device, int peer)
{
    int before, can = 0, rc;

    if (device == peer)
        return cudaSuccess;
    rc = (int)cudaDeviceCanAccessPeer(&can, device, peer);
    if (rc == cudaSuccess && !can)
        rc = cudaErrorPeerAccessUnsupported;
    if (rc == cudaSuccess)
        rc = hkt__cuda_enter(device, &before);
    if (rc != cudaSuccess)
        return rc;
    rc = (int)cudaDeviceEnablePeerAccess(peer, 0);
    (void)cudaGetLastError(); /* told by the status: not again by a later call of the user's */
    if (rc == cudaErrorPeerAccessAlreadyEnabled)
        rc = cudaSuccess;
    return hkt__cuda_leave(rc, device, before);
}

int hkt__cuda_ipc_handle(void *p, int device, struct hkt__cuda_handle *out_handle)
{
    cudaIpcMemHandle_t handle;
    int before, rc = hkt__cuda_enter(device, &before);

    if (rc != cudaSuccess)
        return rc;
    rc = (int)cudaIpcGetMemHandle(&handle, p);
    if (rc == cudaSuccess)
        memcpy(out_handle, &handle, sizeof handle);
    return hkt__cuda_leave(rc, device, before);
}

int hkt__cuda_ipc_open(const struct hkt__cuda_handle *handle, int device, void **out)
{
    cudaIpcMemHandle_t theirs;
    void *p = NULL;
    int before, rc = hkt__cuda_enter(device, &before);

    if (rc != cudaSuccess)
        return rc;
    memcpy(&theirs, handle, sizeof theirs);
    rc = (int)cudaIpcOpenMemHandle(&p, theirs, cudaIpcMemLazyEnablePeerAccess);
    (void)cudaGetLastError();
    if (rc != cudaSuccess)
        p = NULL;
    rc = hkt__cuda_leave(rc, device, before);
    if (rc == cudaSuccess)
        *out = p;
    else if (p != NULL)
        (void)cudaIpcCloseMemHandle(p); /* the caller is told that there is none */
    return rc;
}

int hkt__cuda_ipc_close(void *p, int device)
{
    int before, rc = hkt__cuda_enter(device, &before);

    return rc != cudaSuccess ? rc : hkt__cuda_leave((int)cudaIpcCloseMemHandle(p), device, before);
}

int hkt__cuda_mapped_alloc(void **out, size_t bytes)
{
    void *p = NULL;
    const cudaError_t rc = cudaHostAlloc(&p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);

    if (rc == cudaSuccess)
        *out = memset(p, 0, bytes);
    return (int)rc;
}

int hkt__cuda_mapped_free(void *p)
{
    return (int)cudaFreeHost(p);
}
