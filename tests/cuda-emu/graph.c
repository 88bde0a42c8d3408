/* Graphs: what a stream is given while it is captured, to be enqueued again as often as the program likes. One stream at a
 * time goes into a graph: forks into others by events are not emulated. As on CUDA, calls that could wait for something
 * spoil a capture, on all threads, unless the thread has asked otherwise. */
#include "stream.h"

#include <stdlib.h>

struct CUgraphExec_st {
    struct CUgraph_st graph;
};

static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t emu_unsafe_call(void)
{
    bool spoils = false;

    if (thread_mode == cudaStreamCaptureModeRelaxed)
        return cudaSuccess;
    pthread_mutex_lock(&emu_runtime.lock);
    spoils = emu_spoils_capture();
    pthread_mutex_unlock(&emu_runtime.lock);
    return spoils ? emu_note(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

static void clear(struct CUgraph_st *graph)
{
    while (graph->first != NULL) {
        struct emu_op *op = graph->first;

        graph->first = op->next;
        emu_op_free(op);
    }
}

static void count_objects(int more)
{
    pthread_mutex_lock(&emu_runtime.lock);
    emu_count_objects(more);
    pthread_mutex_unlock(&emu_runtime.lock);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    const cudaError_t rc = emu_enter(__func__);
    const enum cudaStreamCaptureMode before = thread_mode;

    if (rc != cudaSuccess)
        return rc;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    const cudaError_t rc = emu_enter(__func__);
    struct CUgraph_st *graph;
    bool is_taken;

    if (rc != cudaSuccess)
        return rc;
    if (stream == NULL)
        return emu_note(cudaErrorStreamCaptureUnsupported);
    graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    graph->tail = &graph->first;
    graph->mode = mode;
    pthread_mutex_lock(&emu_runtime.lock);
    is_taken = *emu_stream_graph(stream) != NULL;
    if (!is_taken) {
        *emu_stream_graph(stream) = graph;
        emu_count_objects(1);
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    if (is_taken)
        free(graph);
    return is_taken ? emu_note(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out_graph)
{
    const cudaError_t rc = emu_enter(__func__);
    struct CUgraph_st *graph;

    if (rc != cudaSuccess)
        return rc;
    if (stream == NULL || out_graph == NULL)
        return emu_note(cudaErrorInvalidValue);
    pthread_mutex_lock(&emu_runtime.lock);
    graph = *emu_stream_graph(stream);
    *emu_stream_graph(stream) = NULL;
    pthread_mutex_unlock(&emu_runtime.lock);
    if (graph == NULL)
        return emu_note(cudaErrorInvalidValue);
    if (!graph->is_invalid) {
        *out_graph = graph;
        return cudaSuccess;
    }
    clear(graph);
    free(graph);
    count_objects(-1);
    return emu_note(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    const cudaError_t rc = emu_enter(__func__);
    const struct CUgraph_st *graph;

    if (rc != cudaSuccess)
        return rc;
    *status = cudaStreamCaptureStatusNone;
    if (stream == NULL)
        return cudaSuccess;
    pthread_mutex_lock(&emu_runtime.lock);
    graph = *emu_stream_graph(stream);
    if (graph != NULL)
        *status = graph->is_invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    pthread_mutex_unlock(&emu_runtime.lock);
    return cudaSuccess;
}

static bool copy_ops(struct CUgraph_st *to, const struct CUgraph_st *from)
{
    *to = (struct CUgraph_st){ .tail = &to->first };
    for (const struct emu_op *op = from->first; op != NULL; op = op->next) {
        struct emu_op *copy = emu_op_copy(op);

        if (copy == NULL) {
            clear(to);
            return false;
        }
        *to->tail = copy;
        to->tail = &copy->next;
    }
    return true;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (graph == NULL || executable == NULL || flags != 0)
        return emu_note(cudaErrorInvalidValue);
    *executable = calloc(1, sizeof **executable);
    if (*executable == NULL || !copy_ops(&(*executable)->graph, graph)) {
        free(*executable);
        *executable = NULL;
        return emu_note(cudaErrorMemoryAllocation);
    }
    count_objects(1);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    cudaError_t rc = emu_enter(__func__);
    struct CUgraph_st again;

    if (rc != cudaSuccess)
        return rc;
    if (executable == NULL)
        return emu_note(cudaErrorInvalidValue);
    if (!copy_ops(&again, &executable->graph))
        return emu_note(cudaErrorMemoryAllocation);
    while (again.first != NULL && rc == cudaSuccess) {
        struct emu_op *op = again.first;

        again.first = op->next;
        rc = emu_enqueue(stream, op);
    }
    clear(&again);
    return rc;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (executable == NULL)
        return emu_note(cudaErrorInvalidValue);
    clear(&executable->graph);
    free(executable);
    count_objects(-1);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (graph == NULL)
        return emu_note(cudaErrorInvalidValue);
    clear(graph);
    free(graph);
    count_objects(-1);
    return cudaSuccess;
}
