/* What each step does with bytes: operands become segments of memory, frames are filled, emptied, reduced. */
#include <string.h>

#include "core/error.h"
#include "exec/call.h"
#include "exec/run.h"

#define SEND_FROM_MIN 4096 /* below, a copy costs less than a frame in two parts, and pieces join in one frame */

/** Bytes of piece i. */
static size_t piece_bytes(const struct hkt__run *run, const struct hkt__operand *x, int32_t i, int32_t slice)
{
    size_t first, count;

    if (run->bind->chunk_bytes > 0)
        return run->bind->chunk_bytes;
    hkt__grid_span(&run->bind->grid, x->like_buf, hkt__span_at(&x->like, i), slice, run->bind->nslices, &first, &count);
    return count * run->bind->elem_bytes;
}

/** Base of a buffer as it lies at `rank`. */
static char *buffer_base(const struct hkt__run *run, int buf, int rank, int32_t slice)
{
    const struct hkt__exec_env *env = run->env;
    const bool direct = run->plan->direct;

    if (buf == HKT__SCRATCH) {
        const uint64_t count = direct ? run->direct_base + (uint64_t)slice : (uint64_t)slice, instance = count % HKT__SCRATCH_INSTANCES;
        char *base = direct ? (char *)(env->windows[rank] + 1) : env->scratch;

        return base + instance * hkt__exec_instance_bytes(env, direct) +
               (count / HKT__SCRATCH_INSTANCES & (run->scratch_shifts - 1)) * run->scratch_shift;
    }
    if (rank != env->rank) {
        const struct hkt__published *theirs = &env->windows[rank]->buffers[buf];
        const struct hkt__peer_memory *memory = &env->memory[rank];

        if (!memory->is_same_process && theirs->offset != 0)
            return memory->base + (theirs->offset - 1);
        return (char *)(uintptr_t)theirs->address;
    }
    return buf == HKT__OUT ? run->bind->out : (char *)(uintptr_t)run->bind->in;
}

bool hkt__is_far(const struct hkt__run *run, const struct hkt__operand *x, int rank)
{
    return rank != run->env->rank && x->buf != HKT__SCRATCH && !run->env->memory[rank].is_same_process &&
           run->env->windows[rank]->buffers[x->buf].offset == 0;
}

static struct hkt__segment piece_segment(const struct hkt__run *run, const struct hkt__operand *x, int rank, int32_t i,
                                         int32_t slice)
{
    const int32_t chunk = hkt__span_at(&x->at, i);
    char *base = buffer_base(run, x->buf, rank, slice);
    size_t first, count;

    if (x->buf == HKT__SCRATCH)
        return (struct hkt__segment){base + (size_t)chunk * run->bind->scratch_pitch, piece_bytes(run, x, i, slice)};
    if (run->bind->chunk_bytes > 0)
        return (struct hkt__segment){base + (size_t)chunk * run->bind->chunk_bytes, run->bind->chunk_bytes};
    hkt__grid_span(&run->bind->grid, x->buf, chunk, slice, run->bind->nslices, &first, &count);
    return (struct hkt__segment){base + first * run->bind->elem_bytes, count * run->bind->elem_bytes};
}

size_t hkt__operand_bytes(const struct hkt__run *run, const struct hkt__operand *x, int32_t slice)
{
    size_t total = 0;

    for (int32_t i = 0; i < x->count; i++)
        total += piece_bytes(run, x, i, slice);
    return total;
}

void hkt__step_measure(const struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__operand *x)
{
    cursor->whole = NULL;
    if (x->count != 1) {
        cursor->total = hkt__operand_bytes(run, x, cursor->slice);
        return;
    }
    const struct hkt__segment segment = piece_segment(run, x, run->env->rank, 0, cursor->slice);

    cursor->whole = segment.data;
    cursor->total = segment.bytes;
}

struct hkt__segment hkt__segment_at(const struct hkt__run *run, const struct hkt__operand *x, int rank,
                                    const struct hkt__cursor *at)
{
    struct hkt__segment segment = {NULL, 0};

    if (at->piece == x->count - 1) { /* most operands have one piece */
        segment = piece_segment(run, x, rank, at->piece, at->slice);
        segment.data += at->offset;
        segment.bytes -= at->offset;
        return segment;
    }
    for (int32_t i = at->piece; i < x->count; i++) {
        struct hkt__segment next = piece_segment(run, x, rank, i, at->slice);

        if (i == at->piece) {
            next.data += at->offset;
            next.bytes -= at->offset;
        }
        if (next.bytes == 0)
            continue;
        if (segment.bytes == 0)
            segment = next;
        else if (segment.data + segment.bytes == next.data)
            segment.bytes += next.bytes;
        else
            break;
    }
    return segment;
}

void hkt__segment_advance(const struct hkt__run *run, const struct hkt__operand *x, struct hkt__cursor *at,
                          size_t bytes)
{
    at->done += bytes;
    at->offset += bytes;
    while (at->piece < x->count - 1) {
        const size_t piece = piece_bytes(run, x, at->piece, at->slice);

        if (at->offset < piece)
            return;
        at->offset -= piece;
        at->piece++;
    }
}

/** The segment at the cursor of the operand that its entry moves. */
static inline struct hkt__segment moving_segment(const struct hkt__run *run, const struct hkt__operand *x, const struct hkt__cursor *at)
{
    if (at->whole != NULL)
        return (struct hkt__segment){at->whole + at->done, at->total - at->done};
    return hkt__segment_at(run, x, run->env->rank, at);
}

/** Move the cursor over `bytes` of the operand that its entry moves. */
static inline void moving_advance(const struct hkt__run *run, const struct hkt__operand *x, struct hkt__cursor *at, size_t bytes)
{
    if (at->whole == NULL) {
        hkt__segment_advance(run, x, at, bytes);
        return;
    }
    at->done += bytes;
    at->offset += bytes;
}

static struct hkt__chan *channel(const struct hkt__run *run, const struct hkt__cursor *cursor, struct hkt__chan **table)
{
    const struct hkt__plan_queue *queue = &run->plan->queues[cursor->queue];
    const int lane = run->bind->lane_first + cursor->replica * run->plan->shape.nlanes + queue->lane;

    return table[queue->peer * run->env->lanes + lane];
}

/** The stamp of a message: where block sizes differ by rank, its count is that of the message. */
static struct hkt__stamp message_stamp(const struct hkt__run *run, const struct hkt__cursor *cursor)
{
    struct hkt__stamp stamp = run->bind->stamp;

    if (!run->plan->shape.uniform_blocks)
        stamp.count = cursor->total / run->bind->elem_bytes;
    return stamp;
}

/** Send a frame whose payload is at `data`: in the room, or anywhere if the channel takes it from there. */
static enum hkt_status publish(struct hkt__run *run, const struct hkt__cursor *cursor, struct hkt__chan *chan,
                               const void *data, const struct hkt__room *room, size_t bytes)
{
    struct hkt__stamp stamp = message_stamp(run, cursor);

    if (run->env->crc && bytes > 0)
        stamp.crc = hkt__crc32c(0, data, bytes);
    return data == room->data ? chan->ops->tx_end(chan, bytes, &stamp) : chan->ops->tx_end_from(chan, data, bytes, &stamp);
}

/** Copy between a frame and memory of the operand x. */
static enum hkt_status copy_bytes(const struct hkt__run *run, const struct hkt__operand *x, void *to, const void *from, size_t bytes)
{
    const struct hkt__bind_device *device = run->bind->device;

    if (hkt__is_on_device(run, x))
        return device->copy(device->arg, to, from, bytes);
    memcpy(to, from, bytes);
    return HKT_OK;
}

/** Fill one frame with at most `bytes` from the operand, whole elements. */
static enum hkt_status fill_frame(const struct hkt__run *run, const struct hkt__operand *x, struct hkt__cursor cursor, char *frame,
                                  size_t bytes)
{
    enum hkt_status rc = HKT_OK;

    while (bytes > 0 && rc == HKT_OK) {
        struct hkt__segment from = hkt__segment_at(run, x, run->env->rank, &cursor);

        if (from.bytes > bytes)
            from.bytes = bytes;
        rc = copy_bytes(run, x, frame, from.data, from.bytes);
        hkt__segment_advance(run, x, &cursor, from.bytes);
        frame += from.bytes;
        bytes -= from.bytes;
    }
    return rc;
}

bool hkt__step_is_lent(const struct hkt__run *run, const struct hkt__cursor *cursor)
{
    struct hkt__chan *chan = channel(run, cursor, run->env->tx);

    return chan != NULL && chan->ops->tx_is_lent != NULL && chan->ops->tx_is_lent(chan);
}

/** Send the next frame from where it lies and leave it there, of at most *bytes. AGAIN: it cannot be. */
static enum hkt_status lend_frame(struct hkt__run *run, const struct hkt__cursor *cursor, const struct hkt__operand *x,
                                  struct hkt__chan *chan, size_t *bytes)
{
    const struct hkt__segment from = hkt__segment_at(run, x, run->env->rank, cursor);
    const size_t most = from.bytes < *bytes ? from.bytes : *bytes;
    struct hkt__stamp stamp = message_stamp(run, cursor);

    if (run->env->crc && hkt__is_on_device(run, x))
        return HKT_AGAIN; /* the checksum is made where the frame is */
    if (run->env->crc && most > 0)
        stamp.crc = hkt__crc32c(0, from.data, most);
    const enum hkt_status rc = chan->ops->tx_lend(chan, from.data, most, &stamp);

    if (rc == HKT_OK) {
        *bytes = most;
        run->has_lent = true;
    }
    return rc;
}

/** Send the next frame, of at most *bytes, by the way that copies least; gives its bytes. */
static enum hkt_status send_frame(struct hkt__run *run, const struct hkt__cursor *cursor, const struct hkt__entry *entry,
                                  const struct hkt__room *room, size_t *bytes)
{
    struct hkt__chan *chan = channel(run, cursor, run->env->tx);
    const struct hkt__operand *x = &run->plan->args[entry->arg_first].x;
    struct hkt__segment from = {NULL, 0};

    if (entry->is_lasting && chan->ops->tx_lend != NULL) {
        const enum hkt_status rc = lend_frame(run, cursor, x, chan, bytes);

        if (rc != HKT_AGAIN)
            return rc;
    }
    if (chan->ops->tx_end_from != NULL && !hkt__is_on_device(run, x))
        from = moving_segment(run, x, cursor);
    if (from.bytes >= SEND_FROM_MIN) {
        *bytes = from.bytes < *bytes ? from.bytes : *bytes;
        return publish(run, cursor, chan, from.data, room, *bytes);
    }
    const enum hkt_status rc = cursor->whole != NULL ? copy_bytes(run, x, room->data, cursor->whole + cursor->done, *bytes)
                                                     : fill_frame(run, x, *cursor, room->data, *bytes);

    return rc == HKT_OK ? publish(run, cursor, chan, room->data, room, *bytes) : rc;
}

/** Is the operand of a SEND one small piece of memory of the host, none of it sent, all of which may go out? */
static bool is_small(const struct hkt__run *run, const struct hkt__cursor *cursor, size_t limit)
{
    return cursor->total - 1 < HKT__TP_SMALL && cursor->whole != NULL && cursor->done == 0 && limit >= cursor->total &&
           run->bind->device == NULL;
}

/** Send all of a small operand in one step. */
static enum hkt_status send_small(struct hkt__run *run, struct hkt__cursor *cursor, struct hkt__chan *chan)
{
    struct hkt__stamp stamp = message_stamp(run, cursor);

    if (run->env->crc)
        stamp.crc = hkt__crc32c(0, cursor->whole, cursor->total);
    const enum hkt_status rc = chan->ops->tx_small(chan, cursor->whole, cursor->total, &stamp);

    if (rc != HKT_OK)
        return rc;
    cursor->done = cursor->total;
    run->env->bytes_sent += cursor->total;
    return HKT_OK;
}

/** Send frame by frame, at most `limit` bytes of the operand. */
static enum hkt_status send_frames(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry,
                                   size_t limit)
{
    struct hkt__chan *chan = channel(run, cursor, run->env->tx);
    const struct hkt__operand *x = &run->plan->args[entry->arg_first].x;
    enum hkt_status result = HKT_AGAIN;

    if (limit > cursor->total)
        limit = cursor->total;
    while (cursor->done < cursor->total) {
        struct hkt__room room;
        size_t bytes = limit - cursor->done;

        if (bytes == 0)
            return result;
        enum hkt_status rc = chan->ops->tx_begin(chan, bytes, &room);

        if (rc != HKT_OK)
            return rc == HKT_AGAIN ? result : rc;
        if (room.bytes < bytes)
            bytes = room.bytes - room.bytes % run->bind->elem_bytes;
        rc = send_frame(run, cursor, entry, &room, &bytes);
        if (rc != HKT_OK)
            return rc;
        moving_advance(run, x, cursor, bytes);
        run->env->bytes_sent += bytes;
        result = HKT_IN_PROGRESS;
    }
    return HKT_OK;
}

enum hkt_status hkt__step_send(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry,
                               size_t limit)
{
    struct hkt__chan *chan = channel(run, cursor, run->env->tx);

    if (is_small(run, cursor, limit) && chan->ops->tx_small != NULL)
        return send_small(run, cursor, chan);
    return send_frames(run, cursor, entry, limit);
}

bool hkt__step_send_at_once(struct hkt__run *run, const struct hkt__cursor *cursor, const struct hkt__entry *entry)
{
    struct hkt__chan *chan = channel(run, cursor, run->env->tx);
    const struct hkt__operand *x = &run->plan->args[entry->arg_first].x;
    const struct hkt__bind *bind = run->bind;
    const char *base = x->buf == HKT__OUT ? bind->out : bind->in;
    const size_t bytes = bind->chunk_bytes;

    if (chan->ops->tx_small == NULL ||
        chan->ops->tx_small(chan, base + (size_t)hkt__span_at(&x->at, 0) * bytes, bytes, &bind->stamp) != HKT_OK)
        return false;
    run->env->bytes_sent += bytes;
    return true;
}

/** Does a frame belong to the message that the cursor receives? */
static bool is_expected(const struct hkt__run *run, const struct hkt__cursor *cursor, const struct hkt__stamp *stamp)
{
    const struct hkt__stamp *own = &run->bind->stamp;
    const size_t count = run->plan->shape.uniform_blocks ? own->count : cursor->total / run->bind->elem_bytes;

    return stamp->op_seq == own->op_seq && stamp->call == own->call && stamp->count == count && stamp->root == own->root;
}

/** Look at the next frame and check that it belongs here. to: where its payload had better come; bytes == 0: nowhere. */
static enum hkt_status next_frame(const struct hkt__run *run, const struct hkt__cursor *cursor, struct hkt__chan *chan,
                                  const struct hkt__segment *to, struct hkt__view *out_view)
{
    const size_t bytes_max = cursor->total - cursor->done;
    const enum hkt_status rc = to->bytes > 0 ? chan->ops->rx_into(chan, to->data, to->bytes, out_view)
                                             : chan->ops->rx_begin(chan, out_view);

    if (rc != HKT_OK)
        return rc;
    const struct hkt__stamp *stamp = &out_view->stamp;

    if (!is_expected(run, cursor, stamp)) {
        const struct hkt__stamp own = message_stamp(run, cursor);

        return hkt__stamp_mismatch(chan->peer, &own, stamp);
    }
    /* What is left is whole elements: only a part of it needs to be divided, which takes as long as twenty instructions. */
    if (out_view->bytes != bytes_max && (out_view->bytes > bytes_max || out_view->bytes == 0 ||
                                         out_view->bytes % run->bind->elem_bytes != 0))
        return hkt__fail_peer(HKT_ERR_CORRUPT, chan->peer, "a frame of %zu bytes from rank %d where %zu were left",
                              out_view->bytes, chan->peer, bytes_max);
    if (run->env->crc && out_view->bytes > 0 &&
        stamp->crc != hkt__crc32c(0, out_view->data, out_view->bytes))
        return hkt__fail_peer(HKT_ERR_CORRUPT, chan->peer, "a frame from rank %d fails its CRC32C", chan->peer);
    return HKT_OK;
}

void hkt__run_fold(const struct hkt__run *run, void *dst, const void *const *srcs, int nsrcs, size_t bytes)
{
    const struct hkt__bind *bind = run->bind;
    const size_t count = bytes / bind->elem_bytes;

    if (bind->callback == NULL) {
        bind->reduce(dst, srcs, nsrcs, count);
        return;
    }
    if (nsrcs == 1 && dst != srcs[0])
        memcpy(dst, srcs[0], bytes);
    for (int i = 1; i < nsrcs; i++)
        bind->callback(dst, i == 1 ? srcs[0] : dst, srcs[i], count, bind->dtype, bind->callback_arg);
}

/** Use a frame's payload: copied to dst, unless it came there, or reduced with the local addend into dst. */
static enum hkt_status drain_frame(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry,
                                   const struct hkt__view *view)
{
    const char *data = view->data;
    size_t left = view->bytes;
    enum hkt_status rc = HKT_OK;

    while (left > 0 && rc == HKT_OK) {
        struct hkt__segment to = moving_segment(run, &entry->dst, cursor);
        size_t bytes = to.bytes < left ? to.bytes : left;

        if (entry->kind == HKT__RECV_REDUCE) {
            const struct hkt__operand *addend = &run->plan->args[entry->arg_first].x;
            const struct hkt__segment with = hkt__segment_at(run, addend, run->env->rank, cursor);
            const void *srcs[2] = {with.data, data};

            bytes = with.bytes < bytes ? with.bytes : bytes;
            hkt__run_fold(run, to.data, srcs, 2, bytes);
        } else if (to.data != data) {
            rc = copy_bytes(run, &entry->dst, to.data, data, bytes);
        }
        moving_advance(run, &entry->dst, cursor, bytes);
        data += bytes;
        left -= bytes;
    }
    return rc;
}

enum hkt_status hkt__step_recv(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry)
{
    struct hkt__chan *chan = channel(run, cursor, run->env->rx);
    const bool is_into = entry->kind == HKT__RECV && chan->ops->rx_into != NULL && !hkt__is_on_device(run, &entry->dst);
    bool moved = false;

    while (cursor->done < cursor->total) {
        struct hkt__segment to = {NULL, 0};
        struct hkt__view view;

        if (is_into)
            to = moving_segment(run, &entry->dst, cursor);
        enum hkt_status rc = next_frame(run, cursor, chan, &to, &view);

        if (rc != HKT_OK)
            return rc == HKT_AGAIN && moved ? HKT_IN_PROGRESS : rc;
        rc = drain_frame(run, cursor, entry, &view);
        if (rc != HKT_OK)
            return rc;
        run->env->bytes_received += view.bytes;
        chan->ops->rx_end(chan);
        moved = true;
        /* Hand over after each frame, so that a send fed by this receive can forward it while it is in the cache. */
        if (cursor->done < cursor->total)
            return HKT_IN_PROGRESS;
    }
    return HKT_OK;
}

enum hkt_status hkt__step_signal(struct hkt__run *run, struct hkt__cursor *cursor)
{
    struct hkt__chan *chan = channel(run, cursor, run->env->tx);
    struct hkt__room room;
    const enum hkt_status rc = chan->ops->tx_begin(chan, 0, &room);

    return rc != HKT_OK ? rc : publish(run, cursor, chan, room.data, &room, 0);
}

enum hkt_status hkt__step_wait(struct hkt__run *run, struct hkt__cursor *cursor)
{
    struct hkt__chan *chan = channel(run, cursor, run->env->rx);
    const struct hkt__segment nowhere = {NULL, 0};
    struct hkt__view view;
    const enum hkt_status rc = next_frame(run, cursor, chan, &nowhere, &view);

    if (rc == HKT_OK)
        chan->ops->rx_end(chan);
    return rc;
}
