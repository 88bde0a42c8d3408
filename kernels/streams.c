/* Streams, events, and whether a stream is being captured into a graph. */
#include <cuda_runtime_api.h>

#include "kernels/kernels.h"
#include "kernels/runtime.h"

_Static_assert(HKT__CUDA_NOT_READY == cudaErrorNotReady, "as CUDA has it");

int hkt__cuda_stream_create(void **out_stream, int device)
{
    cudaStream_t stream = NULL;
    int before, rc = hkt__cuda_enter(device, &before);

    if (rc != cudaSuccess)
        return rc;
    rc = hkt__cuda_leave((int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), device, before);
    if (rc == cudaSuccess)
        *out_stream = stream;
    else if (stream != NULL)
        (void)cudaStreamDestroy(stream); /* the caller is told that there is none */
    return rc;
}

int hkt__cuda_stream_destroy(void *stream)
{
    return (int)cudaStreamDestroy((cudaStream_t)stream);
}

int hkt__cuda_stream_query(void *stream, int device)
{
    int before, rc = hkt__cuda_enter(device, &before);

    if (rc != cudaSuccess)
        return rc;
    rc = (int)cudaStreamQuery((cudaStream_t)stream);
    return hkt__cuda_leave(rc, device, before);
}

int hkt__cuda_stream_is_capturing(void *stream, int device, int *out_yes)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    int before, rc = hkt__cuda_enter(device, &before);

    if (rc != cudaSuccess)
        return rc;
    rc = (int)cudaStreamIsCapturing((cudaStream_t)stream, &status);
    if (rc == cudaSuccess)
        *out_yes = status != cudaStreamCaptureStatusNone;
    return hkt__cuda_leave(rc, device, before);
}

int hkt__cuda_capture_mode(int *mode)
{
    enum cudaStreamCaptureMode exchanged = (enum cudaStreamCaptureMode)*mode;
    const cudaError_t rc = cudaThreadExchangeStreamCaptureMode(&exchanged);

    if (rc == cudaSuccess)
        *mode = (int)exchanged;
    return (int)rc;
}

int hkt__cuda_event_create(void **out_event, int device)
{
    cudaEvent_t event = NULL;
    int before, rc = hkt__cuda_enter(device, &before);

    if (rc != cudaSuccess)
        return rc;
    rc = hkt__cuda_leave((int)cudaEventCreateWithFlags(&event, cudaEventDisableTiming), device, before);
    if (rc == cudaSuccess)
        *out_event = event;
    else if (event != NULL)
        (void)cudaEventDestroy(event); /* the caller is told that there is none */
    return rc;
}

int hkt__cuda_event_destroy(void *event)
{
    return (int)cudaEventDestroy((cudaEvent_t)event);
}

int hkt__cuda_event_record(void *event, void *stream)
{
    return (int)cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
}

int hkt__cuda_event_query(void *event)
{
    return (int)cudaEventQuery((cudaEvent_t)event);
}

int hkt__cuda_stream_wait(void *stream, void *event)
{
    return (int)cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
}

int hkt__cuda_stream_copy(void *dst, const void *src, size_t bytes, void *stream)
{
    return (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)stream);
}

int hkt__cuda_stream_set(void *p, int value, size_t bytes, void *stream)
{
    return (int)cudaMemsetAsync(p, value, bytes, (cudaStream_t)stream);
}

int hkt__cuda_stream_call(void *stream, void (*function)(void *user), void *user)
{
    return (int)cudaLaunchHostFunc((cudaStream_t)stream, function, user);
}
