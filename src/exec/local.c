/* Local and direct steps: copies, reductions and writes, on the own memory and on that of peers.
 *
 * Memory of a peer is touched where it lies if this process can address it; else it is copied: straight into place, or
 * into a bounce buffer of cache size when it is to be reduced. Reductions whose result peers get too (WRITE follows
 * REDUCE) go in pieces that stay in the first-level cache, so that the result is stored to all places without being read
 * from memory again: 2 p n bytes of traffic for an all-reduce, the least possible. */
#include <string.h>

#include "core/mem.h"
#include "exec/run.h"

#define READ_BYTES ((size_t)131072)  /* of the bounce buffer: copies of arguments */
#define STORE_STRIDE ((size_t)1024)
#define NEAR_PIECE ((size_t)8192)   /* a sum on its way to several places stays in the first-level cache */
#define FAR_PIECE ((size_t)65536)    /* unless it goes by system calls, which want larger pieces */
_Static_assert(READ_BYTES + FAR_PIECE == HKT__BOUNCE_BYTES, "the bounce buffer has two parts");

static enum hkt_status peer_read(struct hkt__run *run, int rank, void *to, const void *from, size_t bytes)
{
    struct hkt__tp_dom *dom = run->env->memory[rank].dom;

    return dom->ops->peer_read(dom, rank, to, (uint64_t)(uintptr_t)from, bytes);
}

static enum hkt_status peer_write(struct hkt__run *run, int rank, void *to, const void *from, size_t bytes)
{
    struct hkt__tp_dom *dom = run->env->memory[rank].dom;

    return dom->ops->peer_write(dom, rank, (uint64_t)(uintptr_t)to, from, bytes);
}

static void count_direct(struct hkt__run *run, int rank, size_t bytes)
{
    if (rank != run->env->rank)
        run->env->bytes_direct += bytes;
}

/** Bytes that all operands of a reduction have contiguous at the cursor, at most `most`. */
static size_t common_bytes(const struct hkt__run *run, const struct hkt__entry *entry, const struct hkt__cursor *at,
                           size_t most)
{
    const struct hkt__arg *args = &run->plan->args[entry->arg_first];
    size_t bytes = hkt__segment_at(run, &entry->dst, run->env->rank, at).bytes;

    for (int32_t i = 0; i < entry->arg_count; i++) {
        const size_t from = hkt__segment_at(run, &args[i].x, args[i].rank, at).bytes;

        bytes = from < bytes ? from : bytes;
    }
    return bytes < most ? bytes : most;
}

static int32_t count_far(const struct hkt__run *run, const struct hkt__arg *args, int32_t count)
{
    int32_t far = 0;

    for (int32_t i = 0; i < count; i++)
        far += hkt__is_far(run, &args[i].x, args[i].rank);
    return far;
}

/** Largest piece a reduction goes in: all of it, unless arguments must be copied here first. */
static size_t piece_limit(const struct hkt__run *run, const struct hkt__entry *entry)
{
    const int32_t far = count_far(run, &run->plan->args[entry->arg_first], entry->arg_count);

    return far == 0 ? SIZE_MAX : READ_BYTES / (size_t)far / HKT__LINE * HKT__LINE;
}

/** to[0..bytes) = the arguments at the cursor, in order, in one go: so they are rounded once, and `to` may be one of them. */
static enum hkt_status fold_args(struct hkt__run *run, const struct hkt__entry *entry, const struct hkt__cursor *at,
                                 void *to, size_t bytes)
{
    const struct hkt__arg *args = &run->plan->args[entry->arg_first];
    const void **srcs = run->env->srcs;
    char *bounce = run->env->bounce;

    for (int32_t i = 0; i < entry->arg_count; i++) {
        const struct hkt__segment from = hkt__segment_at(run, &args[i].x, args[i].rank, at);

        count_direct(run, args[i].rank, bytes);
        srcs[i] = from.data;
        if (!hkt__is_far(run, &args[i].x, args[i].rank))
            continue;
        const enum hkt_status rc = peer_read(run, args[i].rank, bounce, from.data, bytes);

        if (rc < 0)
            return rc;
        srcs[i] = bounce;
        bounce += bytes;
    }
    hkt__run_fold(run, to, srcs, entry->arg_count, bytes);
    return HKT_OK;
}

static enum hkt_status reduce_args(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry,
                                   size_t total)
{
    /* A callback takes two inputs at a time: its result so far must not lie on an input still to come. */
    const bool staged = run->bind.callback != NULL && entry->arg_count > 2;
    const size_t limit = staged && piece_limit(run, entry) > NEAR_PIECE ? NEAR_PIECE : piece_limit(run, entry);
    char *sum = run->env->bounce + READ_BYTES;

    while (cursor->done < total) {
        const size_t bytes = common_bytes(run, entry, cursor, limit);
        const struct hkt__segment to = hkt__segment_at(run, &entry->dst, run->env->rank, cursor);
        const enum hkt_status rc = fold_args(run, entry, cursor, staged ? sum : to.data, bytes);

        if (rc < 0)
            return rc;
        if (staged)
            memcpy(to.data, sum, bytes);
        hkt__segment_advance(run, &entry->dst, cursor, bytes);
    }
    return HKT_OK;
}

/** One piece to one place, which may be a peer's. */
static enum hkt_status store(struct hkt__run *run, const struct hkt__arg *to, void *at, const void *from, size_t bytes,
                             bool streaming)
{
    count_direct(run, to->rank, bytes);
    if (hkt__is_far(run, &to->x, to->rank))
        return peer_write(run, to->rank, at, from, bytes);
    hkt__copy_loosely(at, from, bytes, streaming);
    return HKT_OK;
}

/** Store the piece of a sum in the bounce buffer to all its places in this address space. If past the caches, the inputs of
 *  the next piece are asked for in between: reads alone, or such stores alone, keep the memory half as busy (a sixth of a
 *  16 MiB all-reduce of 2 ranks). */
static void store_near(struct hkt__run *run, const struct hkt__entry *entry, int32_t nplaces, size_t bytes, bool streaming)
{
    const struct hkt__exec_env *env = run->env;
    const char *sum = env->bounce + READ_BYTES;
    const size_t stride = streaming ? STORE_STRIDE : bytes;

    for (size_t at = 0; at < bytes; at += stride) {
        const size_t part = bytes - at < stride ? bytes - at : stride;

        for (int32_t i = 0; i < nplaces; i++)
            hkt__copy_loosely(env->places[i] + at, sum + at, part, streaming);
        for (int32_t i = 0; i < entry->arg_count && streaming; i++)
            for (size_t line = 0; line < part; line += HKT__LINE) /* beyond the last piece it does no harm */
                __builtin_prefetch((const char *)env->srcs[i] + bytes + at + line);
    }
}

/** A REDUCE and the WRITE after it in one pass: each piece of the sum is stored to all its places from the cache. */
static enum hkt_status spread_args(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry,
                                   size_t total)
{
    const struct hkt__arg *to = &run->plan->args[entry[1].arg_first];
    const size_t limit = piece_limit(run, entry), piece = count_far(run, to, entry[1].arg_count) > 0 ? FAR_PIECE : NEAR_PIECE;
    /* In place the results go where inputs were just read from: these lines are in the cache. */
    const bool streaming = run->bind.streaming && !run->plan->shape.in_place;
    char *sum = run->env->bounce + READ_BYTES;

    while (cursor->done < total) {
        size_t bytes = common_bytes(run, entry, cursor, limit < piece ? limit : piece);

        for (int32_t i = 1; i < entry[1].arg_count; i++) {
            const size_t room = hkt__segment_at(run, &to[i].x, to[i].rank, cursor).bytes;

            bytes = room < bytes ? room : bytes;
        }
        enum hkt_status rc = fold_args(run, entry, cursor, sum, bytes);
        int32_t nplaces = 0;

        for (int32_t i = 0; i < entry[1].arg_count && rc == HKT_OK; i++) {
            char *place = hkt__segment_at(run, &to[i].x, to[i].rank, cursor).data;

            count_direct(run, to[i].rank, bytes);
            if (hkt__is_far(run, &to[i].x, to[i].rank))
                rc = peer_write(run, to[i].rank, place, sum, bytes);
            else
                run->env->places[nplaces++] = place;
        }
        if (rc < 0)
            return rc;
        store_near(run, entry, nplaces, bytes, streaming);
        hkt__segment_advance(run, &entry->dst, cursor, bytes);
    }
    if (streaming)
        hkt__stores_settle();
    cursor->is_spread = true;
    return HKT_OK;
}

/** to = from, segment by segment; either may lie at another rank. */
static enum hkt_status copy_operand(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__arg *to,
                                    const struct hkt__arg *from)
{
    const size_t total = hkt__operand_bytes(run, &from->x, cursor->slice);
    const bool far = hkt__is_far(run, &from->x, from->rank);
    const struct hkt__bind_device *device = hkt__is_on_device(run, &from->x) || hkt__is_on_device(run, &to->x) ? run->bind.device : NULL;
    enum hkt_status rc = HKT_OK;

    while (cursor->done < total && rc == HKT_OK) {
        const struct hkt__segment src = hkt__segment_at(run, &from->x, from->rank, cursor);
        const struct hkt__segment dst = hkt__segment_at(run, &to->x, to->rank, cursor);
        const size_t bytes = src.bytes < dst.bytes ? src.bytes : dst.bytes;

        count_direct(run, from->rank, bytes);
        if (device != NULL)
            rc = device->copy(device->arg, dst.data, src.data, bytes);
        else if (far)
            rc = peer_read(run, from->rank, dst.data, src.data, bytes);
        else
            rc = store(run, to, dst.data, src.data, bytes, run->bind.streaming);
        hkt__segment_advance(run, &from->x, cursor, bytes);
    }
    if (run->bind.streaming)
        hkt__stores_settle();
    return rc;
}

enum hkt_status hkt__step_local(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry)
{
    const struct hkt__arg *args = &run->plan->args[entry->arg_first];
    const struct hkt__arg dst = {run->env->rank, entry->dst};

    if (entry->kind == HKT__WRITE && cursor->is_spread) {
        cursor->is_spread = false;
        return HKT_OK;
    }
    if (entry->kind == HKT__WRITE) {
        for (int32_t i = 1; i < entry->arg_count; i++) {
            struct hkt__cursor at = {.slice = cursor->slice};
            const enum hkt_status rc = copy_operand(run, &at, &args[i], &args[0]);

            if (rc < 0)
                return rc;
        }
        return HKT_OK;
    }
    if (entry->kind == HKT__COPY || entry->arg_count == 1)
        return copy_operand(run, cursor, &dst, &args[0]);
    const size_t total = hkt__operand_bytes(run, &entry->dst, cursor->slice);

    if (entry->is_spread && hkt__deps_are_done(run, cursor, entry + 1))
        return spread_args(run, cursor, entry, total);
    return reduce_args(run, cursor, entry, total);
}
