/* Sends and receives on streams of CUDA: those of a group on a communicator are one launch, on the first one's stream, which
 * waits for the others' and for which they wait.
 *
 * Not all ranks take part in a message, so messages cannot begin what all must agree upon: before the communicator's first
 * collective, allocation or registration of devices they go through the host, on both sides, since both make their calls in one order. */

#include "comm/far.h"
#include "core/log.h"
#include "core/mem.h"

_Static_assert(HKT_GROUP_OPS_MAX <= HKT__CUDA_MESSAGES_MAX, "a group is one launch");

/** The streams of a group, each once; the launch is on the first. */
struct streams {
    const struct hkt__far_stream *list[HKT__FAR_STREAMS];
    int n, is_capturing;
};

static enum hkt_status add_stream(struct streams *streams, const struct hkt__far_stream *stream)
{
    int is_capturing = 0, error;

    for (int i = 0; i < streams->n; i++)
        if (streams->list[i]->stream == stream->stream)
            return HKT_OK;
    if (streams->n == HKT__FAR_STREAMS)
        return hkt__fail(HKT_ERR_INVALID, "sends and receives of a communicator in a group use at most %d CUDA streams",
                         HKT__FAR_STREAMS);
    error = stream->cuda->stream_is_capturing(stream->stream, stream->device, &is_capturing);
    if (error != 0)
        return hkt__cuda_failed(stream->cuda, error, "tell whether a stream is captured");
    if (streams->n > 0 && is_capturing != streams->is_capturing)
        return hkt__fail(HKT_ERR_INVALID, "sends and receives of a group: all streams must be captured, or none");
    streams->list[streams->n++] = stream;
    streams->is_capturing = is_capturing;
    return HKT_OK;
}

static enum hkt_status find_streams(const struct hkt__call *calls, size_t count, struct streams *streams)
{
    enum hkt_status rc = HKT_OK;

    *streams = (struct streams){.n = 0};
    for (size_t i = 0; i < count && rc == HKT_OK; i++) {
        rc = hkt__far_enter_device(calls[i].comm, calls[i].far->device, hkt_coll_name(calls[i].coll));
        if (rc == HKT_OK)
            rc = add_stream(streams, calls[i].far);
    }
    return rc;
}

/** `to` goes on after what `from` was given so far. */
static int join(const struct hkt__far *far, const struct hkt__far_stream *from, const struct hkt__far_stream *to)
{
    const int error = from->cuda->event_record(far->fork, from->stream);

    return error != 0 ? error : from->cuda->stream_wait(to->stream, far->fork);
}

static enum hkt_status copy_to_self(const struct hkt_comm *comm, const struct hkt__call *recv, const struct hkt__call *send)
{
    const size_t bytes = send->count * hkt_dtype_size(send->dtype);
    const struct hkt__far_stream *on = comm->far->on;
    const int error = bytes > 0 && recv->out != send->in ? on->cuda->stream_copy(recv->out, send->in, bytes, on->stream) : 0;

    return error == 0 ? HKT_OK : hkt__cuda_failed(on->cuda, error, "copy what a rank sends to itself");
}

/** Those to other ranks, as the device has them. */
static enum hkt_status list_messages(struct hkt__far *far, const struct hkt__call *calls, size_t count, size_t *out_count)
{
    size_t n = 0;

    if (count > far->list_room) {
        struct hkt__cuda_message *list = hkt__realloc(far->list, count, sizeof *list);

        if (list == NULL)
            return hkt__fail(HKT_ERR_NOMEM, "no memory for %zu messages", count);
        far->list = list;
        far->list_room = count;
    }
    for (size_t i = 0; i < count; i++)
        if (calls[i].root != far->comm->rank)
            far->list[n++] = (struct hkt__cuda_message){
                .peer = calls[i].root, .is_send = calls[i].is_send, .memory = calls[i].is_send ? calls[i].in : calls[i].out,
                .bytes = calls[i].count * hkt_dtype_size(calls[i].dtype)};
    *out_count = n;
    return HKT_OK;
}

/** All streams have been joined: what runs on the first. */
static enum hkt_status enqueue(struct hkt__far *far, const struct hkt__call *calls, size_t count)
{
    struct hkt__cuda_messages_call call = {.stream = far->on->stream, .channels = far->channels,
                                           .blocks_max = hkt__far_blocks_max(far)};
    enum hkt_status rc = list_messages(far, calls, count, &call.count);

    if (rc == HKT_OK)
        rc = hkt__p2p_self(far->comm, calls, count, copy_to_self);
    call.list = far->list;
    return rc == HKT_OK ? hkt__cuda_messages_launch(far->messages, &call) : rc;
}

static enum hkt_status run(struct hkt__far *far, const struct streams *streams, const struct hkt__call *calls, size_t count)
{
    const struct hkt__far_stream *on = streams->list[0];
    enum hkt_status rc;
    int error = 0, after = 0;

    for (int i = 1; i < streams->n && error == 0; i++)
        error = join(far, streams->list[i], on);
    if (error == 0)
        error = hkt__far_order(far, on, streams->is_capturing);
    if (error != 0)
        return hkt__cuda_failed(on->cuda, error, "order streams");
    far->on = on;
    rc = enqueue(far, calls, count);
    if (!streams->is_capturing)
        error = hkt__far_mark(far, on);
    for (int i = 1; i < streams->n; i++) {
        after = join(far, on, streams->list[i]);
        error = error != 0 ? error : after;
        if (!streams->is_capturing)
            atomic_store_explicit(&far->seen_on[i], (uintptr_t)streams->list[i]->stream + 1, memory_order_release); /* V1 */
    }
    if (rc < 0 || error == 0)
        return rc;
    return hkt__cuda_failed(on->cuda, error, "finish sends and receives");
}

enum hkt_status hkt__far_messages(struct hkt_comm *comm, const struct hkt__call *calls, size_t count)
{
    struct streams streams;
    enum hkt_status rc = find_streams(calls, count, &streams);
    int before = 0, error;

    if (rc < 0)
        return rc;
    struct hkt__far *far = comm->far;
    const struct hkt__cuda_module *cuda = comm->cuda;

    if (far->path != HKT__FAR_PLANS) {
        if (streams.is_capturing)
            return hkt__fail(HKT_ERR_UNSUPPORTED, "%s cannot be captured: %s", calls[0].is_send ? "send" : "recv",
                             far->path == HKT__FAR_STAGED ? far->text : "a collective on a CUDA stream or hkt_mem_alloc_device must come before, by all ranks");
        if (far->path == HKT__FAR_UNKNOWN)
            hkt__log(HKT__SUB_COMM, HKT__LOG_INFO, "%s: a send or receive on a CUDA stream goes through memory of the host, for no "
                     "collective or hkt_mem_alloc_device came before", comm->name);
        return HKT_IN_PROGRESS;
    }
    error = cuda->device_use(far->peers.device, &before);
    if (error != 0)
        return hkt__cuda_failed(cuda, error, "use a stream's device");
    rc = run(far, &streams, calls, count);
    error = before != far->peers.device ? cuda->device_use(before, &(int){0}) : 0;
    if (rc < 0 || error == 0)
        return rc;
    return hkt__cuda_failed(cuda, error, "give the device before back");
}
