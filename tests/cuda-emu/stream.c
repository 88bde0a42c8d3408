/* Streams and events. An event is two counts: how often it was recorded, and how many of these records are done. The
 * default stream is CUDA's "legacy" one: it waits for all streams of its device that did not opt out, and they for it. */
#include "stream.h"

#include <stdlib.h>

#define DEVICES_MAX 64

struct CUstream_st {
    struct CUstream_st *next;
    struct emu_op *first, *last;
    uint64_t enqueued, completed;
    struct CUgraph_st *graph; /* that it is captured into */
    int device, references; /* references: the user, and operations that wait for it */
    bool is_blocking;       /* takes part in the default stream's order */
    bool is_closing;
};

struct CUevent_st {
    uint64_t recorded, done;
    int references;
};

/* All under emu_runtime.lock. */
static struct CUstream_st *streams, *defaults[DEVICES_MAX];
static int nobjects;

struct CUgraph_st **emu_stream_graph(cudaStream_t stream)
{
    return &stream->graph;
}

void emu_count_objects(int more)
{
    nobjects += more;
}

bool emu_spoils_capture(void)
{
    bool spoils = false;

    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->graph != NULL && stream->graph->mode == cudaStreamCaptureModeGlobal)
            spoils = stream->graph->is_invalid = true;
    return spoils;
}

static void drop_stream(struct CUstream_st *stream)
{
    if (--stream->references == 0)
        free(stream);
}

static void drop_event(struct CUevent_st *event)
{
    if (--event->references == 0)
        free(event);
}

/** Does what an operation without `run` does. Under the lock. */
static void run_order(struct emu_op *op)
{
    if (op->is_record) {
        if (op->event->done < op->count)
            op->event->done = op->count;
    } else {
        while (op->stream != NULL ? op->stream->completed < op->count : op->event->done < op->count)
            pthread_cond_wait(&emu_runtime.changed, &emu_runtime.lock);
    }
    if (op->stream != NULL)
        drop_stream(op->stream);
    if (op->event != NULL)
        drop_event(op->event);
}

static void *stream_main(void *argument)
{
    struct CUstream_st *self = argument;

    pthread_mutex_lock(&emu_runtime.lock);
    for (;;) {
        struct emu_op *op = self->first;

        if (op == NULL && self->is_closing)
            break;
        if (op == NULL) {
            pthread_cond_wait(&emu_runtime.changed, &emu_runtime.lock);
            continue;
        }
        self->first = op->next;
        if (op->run != NULL) {
            pthread_mutex_unlock(&emu_runtime.lock);
            op->run(op);
            pthread_mutex_lock(&emu_runtime.lock);
        } else {
            run_order(op);
        }
        free(op);
        ++self->completed;
        pthread_cond_broadcast(&emu_runtime.changed);
    }
    for (struct CUstream_st **link = &streams; *link != NULL; link = &(*link)->next)
        if (*link == self) {
            *link = self->next;
            break;
        }
    drop_stream(self);
    pthread_mutex_unlock(&emu_runtime.lock);
    return NULL;
}

/** Under the lock; NULL: no memory or no thread. */
static struct CUstream_st *new_stream(int device, bool is_blocking)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    pthread_t thread;

    if (stream == NULL)
        return NULL;
    stream->device = device;
    stream->is_blocking = is_blocking;
    stream->references = 1;
    if (pthread_create(&thread, NULL, stream_main, stream) != 0) {
        free(stream);
        return NULL;
    }
    pthread_detach(thread);
    stream->next = streams;
    streams = stream;
    return stream;
}

/** Under the lock. */
static void append(struct CUstream_st *stream, struct emu_op *op)
{
    op->next = NULL;
    if (stream->first == NULL)
        stream->first = op;
    else
        stream->last->next = op;
    stream->last = op;
    ++stream->enqueued;
    pthread_cond_broadcast(&emu_runtime.changed);
}

struct emu_op *emu_op_new(void (*run)(struct emu_op *op))
{
    struct emu_op *op = calloc(1, sizeof *op);

    if (op != NULL)
        op->run = run;
    return op;
}

/** Makes `stream` wait for what `other` has now. Under the lock. */
static bool order_after(struct CUstream_st *stream, struct CUstream_st *other)
{
    struct emu_op *op;

    if (other == stream || other->completed == other->enqueued)
        return true;
    op = emu_op_new(NULL);
    if (op == NULL)
        return false;
    op->stream = other;
    op->count = other->enqueued;
    ++other->references;
    append(stream, op);
    return true;
}

/** The operation becomes part of a graph. Under the lock. */
static void record(struct CUgraph_st *graph, struct emu_op *op)
{
    op->next = NULL;
    *graph->tail = op;
    graph->tail = &op->next;
}

/** Whether a stream that the default one of the device would have to wait for is being captured, which that spoils. Under
 *  the lock. */
static bool is_captured(int device)
{
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->device == device && stream->is_blocking && stream->graph != NULL)
            return stream->graph->is_invalid = true;
    return false;
}

cudaError_t emu_enqueue(cudaStream_t stream, struct emu_op *op)
{
    const int device = stream != NULL ? stream->device : emu_device();
    bool is_ordered = true;

    pthread_mutex_lock(&emu_runtime.lock);
    if (stream != NULL ? stream->graph != NULL : is_captured(device)) {
        if (stream != NULL)
            record(stream->graph, op);
        pthread_mutex_unlock(&emu_runtime.lock);
        if (stream == NULL)
            emu_op_free(op);
        return stream != NULL ? cudaSuccess : emu_note(cudaErrorStreamCaptureImplicit);
    }
    if (stream == NULL) {
        if (defaults[device] == NULL)
            defaults[device] = new_stream(device, true);
        stream = defaults[device];
        is_ordered = stream != NULL;
        for (struct CUstream_st *other = streams; other != NULL && is_ordered; other = other->next)
            if (other->device == device && other->is_blocking)
                is_ordered = order_after(stream, other);
    } else if (stream->is_blocking && defaults[device] != NULL) {
        is_ordered = order_after(stream, defaults[device]);
    }
    if (is_ordered)
        append(stream, op);
    pthread_mutex_unlock(&emu_runtime.lock);
    if (!is_ordered)
        emu_op_free(op);
    return is_ordered ? cudaSuccess : emu_note(cudaErrorMemoryAllocation);
}

void emu_drain(int device)
{
    struct CUstream_st *stream;

    pthread_mutex_lock(&emu_runtime.lock);
    do {
        for (stream = streams; stream != NULL; stream = stream->next)
            if ((device < 0 || stream->device == device) && stream->completed < stream->enqueued)
                break;
        if (stream != NULL)
            pthread_cond_wait(&emu_runtime.changed, &emu_runtime.lock);
    } while (stream != NULL);
    pthread_mutex_unlock(&emu_runtime.lock);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (stream == NULL || (flags & ~(unsigned)cudaStreamNonBlocking) != 0)
        return emu_note(cudaErrorInvalidValue);
    pthread_mutex_lock(&emu_runtime.lock);
    *stream = new_stream(emu_device(), flags == cudaStreamDefault);
    nobjects += *stream != NULL;
    pthread_mutex_unlock(&emu_runtime.lock);
    return *stream != NULL ? cudaSuccess : emu_note(cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (stream == NULL)
        return emu_note(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&emu_runtime.lock);
    stream->is_closing = true; /* what it has still runs */
    --nobjects;
    pthread_cond_broadcast(&emu_runtime.changed);
    pthread_mutex_unlock(&emu_runtime.lock);
    return cudaSuccess;
}

/** Whether what is given to the stream becomes part of a graph: there the order of its operations is that of events too. */
static bool captures(cudaStream_t stream)
{
    bool yes;

    pthread_mutex_lock(&emu_runtime.lock);
    yes = stream != NULL && stream->graph != NULL;
    pthread_mutex_unlock(&emu_runtime.lock);
    return yes;
}

/** The stream meant; NULL: the default one, which nothing has used yet. Under the lock. */
static struct CUstream_st *meant(cudaStream_t stream)
{
    return stream != NULL ? stream : defaults[emu_device()];
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    const cudaError_t rc = emu_enter(__func__);
    uint64_t until;

    if (rc != cudaSuccess)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    stream = meant(stream);
    if (stream != NULL && stream->graph != NULL) {
        stream->graph->is_invalid = true;
        pthread_mutex_unlock(&emu_runtime.lock);
        return emu_note(cudaErrorStreamCaptureUnsupported);
    }
    if (stream != NULL) {
        until = stream->enqueued;
        ++stream->references;
        while (stream->completed < until)
            pthread_cond_wait(&emu_runtime.changed, &emu_runtime.lock);
        drop_stream(stream);
    }
    pthread_mutex_unlock(&emu_runtime.lock);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    const cudaError_t rc = emu_enter(__func__);
    bool is_done;

    if (rc != cudaSuccess)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    stream = meant(stream);
    is_done = stream == NULL || stream->completed == stream->enqueued;
    const bool is_captured_now = stream != NULL && stream->graph != NULL;

    if (is_captured_now)
        stream->graph->is_invalid = true;
    pthread_mutex_unlock(&emu_runtime.lock);
    if (is_captured_now)
        return emu_note(cudaErrorStreamCaptureUnsupported);
    return emu_answer(is_done);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    const cudaError_t rc = emu_enter(__func__);
    struct emu_op *op;

    if (rc != cudaSuccess)
        return rc;
    if (event == NULL || flags != 0)
        return emu_note(event == NULL ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue);
    if (captures(stream))
        return cudaSuccess;
    op = emu_op_new(NULL);
    if (op == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&emu_runtime.lock);
    op->event = event;
    op->count = event->recorded; /* never recorded: nothing to wait for */
    ++event->references;
    pthread_mutex_unlock(&emu_runtime.lock);
    return emu_enqueue(stream, op);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (event == NULL || flags != cudaEventDisableTiming) /* times are not emulated */
        return emu_note(cudaErrorInvalidValue);
    *event = calloc(1, sizeof **event);
    if (*event == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    (*event)->references = 1;
    pthread_mutex_lock(&emu_runtime.lock);
    ++nobjects;
    pthread_mutex_unlock(&emu_runtime.lock);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (event == NULL)
        return emu_note(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&emu_runtime.lock);
    --nobjects;
    drop_event(event);
    pthread_mutex_unlock(&emu_runtime.lock);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    const cudaError_t rc = emu_enter(__func__);
    struct emu_op *op;

    if (rc != cudaSuccess)
        return rc;
    if (event == NULL)
        return emu_note(cudaErrorInvalidResourceHandle);
    if (captures(stream))
        return cudaSuccess;
    op = emu_op_new(NULL);
    if (op == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&emu_runtime.lock);
    op->event = event;
    op->is_record = true;
    op->count = ++event->recorded;
    ++event->references;
    pthread_mutex_unlock(&emu_runtime.lock);
    return emu_enqueue(stream, op);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const cudaError_t rc = emu_enter(__func__);
    bool is_done;

    if (rc != cudaSuccess)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    is_done = event->done == event->recorded;
    pthread_mutex_unlock(&emu_runtime.lock);
    return emu_answer(is_done);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const cudaError_t rc = emu_enter(__func__);
    uint64_t until;

    if (rc != cudaSuccess)
        return rc;
    pthread_mutex_lock(&emu_runtime.lock);
    until = event->recorded;
    while (event->done < until)
        pthread_cond_wait(&emu_runtime.changed, &emu_runtime.lock);
    pthread_mutex_unlock(&emu_runtime.lock);
    return cudaSuccess;
}

int emu_live_objects(void)
{
    int n = emu_live_regions();

    pthread_mutex_lock(&emu_runtime.lock);
    n += nobjects;
    pthread_mutex_unlock(&emu_runtime.lock);
    return n;
}
