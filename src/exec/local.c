/* Local and direct steps: copies, reductions and writes, on the own memory and on that of peers.
 *
 * Memory of a peer is touched where it lies if this process can address it; else it is copied: straight into place, or
 * into a bounce buffer of cache size when it is to be reduced. Results that peers get too (WRITE follows REDUCE) are stored
 * to all places without being read from memory again, from registers or, where there is no kernel for that or system calls move
 * them, in pieces that stay in a cache: 2 p n bytes of traffic for an all-reduce, the least possible. */
#include <string.h>

#include "core/mem.h"
#include "exec/run.h"

#define READ_BYTES ((size_t)131072)  /* of the bounce buffer: copies of arguments */
#define STORE_STRIDE ((size_t)1024)
#define NEAR_PIECE ((size_t)8192)   /* a sum on its way to several places stays in the first-level cache */
#define FAR_PIECE ((size_t)65536)    /* unless it goes by system calls, which want larger pieces */
#define WRITE_PIECE ((size_t)262144) /* of what goes to several places, by system calls too: in a second-level cache */
/* Touched by one rank: from here on lines are asked for ahead, and results leave the caches before anybody reads them. Measured for 2
 * ranks with second-level caches of 2 MiB: all_reduce of 1 MiB (2 MiB here) takes 36 us with the first, 58 without and 51 past the
 * caches; of 2 MiB 151 and 106; reduce_scatter of 1 MiB (1.5 MiB) 29 with the first, 20 without. */
#define BEYOND_MIN ((size_t)2 << 20)
#define PAST_MIN ((size_t)3 << 20)
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

/** Bytes that all operands have contiguous at the cursor, at most `most`. */
static size_t common_bytes(const struct hkt__run *run, const struct hkt__arg *args, int32_t count, const struct hkt__cursor *at,
                           size_t most)
{
    for (int32_t i = 0; i < count; i++) {
        const size_t bytes = hkt__segment_at(run, &args[i].x, args[i].rank, at).bytes;

        most = bytes < most ? bytes : most;
    }
    return most;
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

/** Where data are of which this rank touches `places` times as much as an operand's slice of `total` bytes. */
static enum hkt__reach reach_of(const struct hkt__run *run, size_t total, int32_t places)
{
    const size_t touched = total * (size_t)places * (size_t)run->bind->nslices;

    return touched >= PAST_MIN ? HKT__REACH_PAST : touched >= BEYOND_MIN ? HKT__REACH_BEYOND : HKT__REACH_CACHED;
}

/** to->data[0..to->bytes) = the arguments at the cursor, in order, in one go: so they are rounded once, and it may be one of them. */
static enum hkt_status fold_args(struct hkt__run *run, const struct hkt__entry *entry, const struct hkt__cursor *at,
                                 const struct hkt__segment *to, enum hkt__reach reach)
{
    const struct hkt__arg *args = &run->plan->args[entry->arg_first];
    const void **srcs = run->env->srcs;
    const size_t bytes = to->bytes;
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
    if (reach != HKT__REACH_CACHED && run->bind->spread != NULL && run->bind->callback == NULL)
        run->bind->spread(&(struct hkt__spread){.dsts = &to->data, .srcs = srcs, .ndsts = 1, .nsrcs = entry->arg_count,
                                               .count = bytes / run->bind->elem_bytes, .reach = reach});
    else
        hkt__run_fold(run, to->data, srcs, entry->arg_count, bytes);
    return HKT_OK;
}

static enum hkt_status reduce_args(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry,
                                   size_t total)
{
    /* A callback takes two inputs at a time: its result so far must not lie on an input still to come. */
    const bool staged = run->bind->callback != NULL && entry->arg_count > 2;
    const size_t limit = staged && piece_limit(run, entry) > NEAR_PIECE ? NEAR_PIECE : piece_limit(run, entry);
    char *sum = run->env->bounce + READ_BYTES;
    const bool is_kept = entry->dst.buf == HKT__SCRATCH || run->plan->shape.in_place || staged; /* used soon, or read just now */
    const enum hkt__reach reach = is_kept ? HKT__REACH_CACHED : reach_of(run, total, entry->arg_count + 1);

    while (cursor->done < total) {
        struct hkt__segment to = hkt__segment_at(run, &entry->dst, run->env->rank, cursor);
        char *place = to.data;
        const size_t bytes = common_bytes(run, &run->plan->args[entry->arg_first], entry->arg_count, cursor,
                                          to.bytes < limit ? to.bytes : limit);
        to = (struct hkt__segment){staged ? sum : place, bytes};
        const enum hkt_status rc = fold_args(run, entry, cursor, &to, reach);

        if (rc < 0)
            return rc;
        if (staged)
            memcpy(place, sum, bytes);
        hkt__segment_advance(run, &entry->dst, cursor, bytes);
    }
    if (reach == HKT__REACH_PAST)
        hkt__stores_settle();
    return HKT_OK;
}

/** Results in place of inputs all of which this rank has read just now: these lines are in its caches, and stores past the caches would
 *  throw them out first. 12 MiB in place: all_reduce by two_shot of 2 ranks took 3.0 ms so and takes 1.8, of 4 6.4 and 4.3, all_to_all by
 *  direct 1.34 and 0.9, 5.1 and 3.5 (2026-11-30). */
static bool is_replaced(const struct hkt__run *run)
{
    const struct hkt__sched *shape = &run->plan->shape;

    return shape->in_place && (shape->coll == HKT_ALL_REDUCE || shape->coll == HKT_ALL_TO_ALL || shape->coll == HKT_REDUCE_SCATTER);
}

/** One piece to one place, which may be a peer's. Of a large call lines are asked for ahead, across the pages of 4 KiB that the
 *  processor's own prefetchers stop at, and results go past the caches. Scratch does not: peers read it soon. 16 MiB among 8 ranks
 *  on 2 cores: all_reduce 16.4 ms instead of 19.6, broadcast by scratch 6.0 instead of 7.0 (2026-11-30). */
static enum hkt_status store(struct hkt__run *run, const struct hkt__arg *to, void *at, const void *from, size_t bytes)
{
    char *place = at;
    const enum hkt__reach reach = to->x.buf == HKT__SCRATCH || is_replaced(run) ? HKT__REACH_BEYOND : HKT__REACH_PAST;

    count_direct(run, to->rank, bytes);
    if (hkt__is_far(run, &to->x, to->rank))
        return peer_write(run, to->rank, at, from, bytes);
    if (!run->bind->streaming)
        hkt__copy_loosely(at, from, bytes, false);
    else if (at != from)
        hkt__spread_bytes_get(hkt__isa_best())(
            &(struct hkt__spread){.dsts = &place, .srcs = &from, .ndsts = 1, .nsrcs = 1, .count = bytes, .reach = reach});
    return HKT_OK;
}

/** Where an operand lies at the cursor, of which `bytes` are to be used. */
static char *locate(struct hkt__run *run, const struct hkt__arg *arg, const struct hkt__cursor *at, size_t bytes)
{
    count_direct(run, arg->rank, bytes);
    return hkt__segment_at(run, &arg->x, arg->rank, at).data;
}

/** A REDUCE and the WRITE after it where all lies in this address space: nothing is put down in between. */
static void spread_near(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry, size_t total)
{
    const struct hkt__arg *from = &run->plan->args[entry->arg_first], *to = &run->plan->args[entry[1].arg_first];
    struct hkt__spread spread = {.dsts = run->env->places, .srcs = run->env->srcs, .ndsts = entry[1].arg_count,
                                 .nsrcs = entry->arg_count};

    spread.reach = reach_of(run, total, run->plan->shape.in_place ? spread.nsrcs : spread.nsrcs + spread.ndsts);
    if (run->plan->shape.in_place && spread.reach == HKT__REACH_PAST)
        spread.reach = HKT__REACH_BEYOND; /* results go where inputs were just read from: these lines are in the cache */
    while (cursor->done < total) {
        const size_t bytes = common_bytes(run, to, spread.ndsts, cursor, common_bytes(run, from, spread.nsrcs, cursor, SIZE_MAX));

        for (int32_t i = 0; i < spread.nsrcs; i++)
            run->env->srcs[i] = locate(run, &from[i], cursor, bytes);
        for (int32_t i = 0; i < spread.ndsts; i++)
            run->env->places[i] = locate(run, &to[i], cursor, bytes);
        spread.count = bytes / run->bind->elem_bytes;
        run->bind->spread(&spread);
        hkt__segment_advance(run, &entry->dst, cursor, bytes);
    }
    if (spread.reach == HKT__REACH_PAST)
        hkt__stores_settle();
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
    const struct hkt__arg *from = &run->plan->args[entry->arg_first], *to = &run->plan->args[entry[1].arg_first];
    const size_t limit = piece_limit(run, entry), piece = count_far(run, to, entry[1].arg_count) > 0 ? FAR_PIECE : NEAR_PIECE;
    /* In place the results go where inputs were just read from: these lines are in the cache. */
    const bool streaming = run->bind->streaming && !run->plan->shape.in_place;
    char *sum = run->env->bounce + READ_BYTES;

    cursor->is_spread = true;
    if (run->bind->spread != NULL && run->bind->callback == NULL && limit == SIZE_MAX && piece == NEAR_PIECE) {
        spread_near(run, cursor, entry, total);
        return HKT_OK;
    }
    while (cursor->done < total) {
        const size_t bytes = common_bytes(run, to, entry[1].arg_count, cursor,
                                          common_bytes(run, from, entry->arg_count, cursor, limit < piece ? limit : piece));
        const struct hkt__segment into = {sum, bytes};
        enum hkt_status rc = fold_args(run, entry, cursor, &into, HKT__REACH_CACHED);
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
    return HKT_OK;
}

/** to = from, segment by segment; either may lie at another rank. */
static enum hkt_status copy_operand(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__arg *to,
                                    const struct hkt__arg *from)
{
    const size_t total = hkt__operand_bytes(run, &from->x, cursor->slice);
    const bool far = hkt__is_far(run, &from->x, from->rank);
    const struct hkt__bind_device *device = hkt__is_on_device(run, &from->x) || hkt__is_on_device(run, &to->x) ? run->bind->device : NULL;
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
            rc = store(run, to, dst.data, src.data, bytes);
        hkt__segment_advance(run, &from->x, cursor, bytes);
    }
    if (run->bind->streaming)
        hkt__stores_settle();
    return rc;
}

/** A WRITE: each piece of its source goes to all places while it is in the cache; first to those that a system call reaches. */
static enum hkt_status write_args(struct hkt__run *run, const struct hkt__entry *entry, int32_t slice)
{
    const struct hkt__arg *from = &run->plan->args[entry->arg_first], *to = from + 1;
    const int32_t nto = entry->arg_count - 1, far = count_far(run, to, nto);
    const size_t total = hkt__operand_bytes(run, &from->x, slice), piece = far > 0 && nto > 1 ? WRITE_PIECE : SIZE_MAX;
    hkt__spread_fn *copy = hkt__spread_bytes_get(hkt__isa_best());
    const void *source;
    struct hkt__spread spread = {.dsts = run->env->places, .srcs = &source, .ndsts = nto - far, .nsrcs = 1,
                                 .reach = reach_of(run, total, 1 + nto)};
    struct hkt__cursor at = {.slice = slice};

    while (at.done < total) {
        const size_t bytes = common_bytes(run, from, entry->arg_count, &at, piece);
        int32_t nplaces = 0;

        source = hkt__segment_at(run, &from->x, from->rank, &at).data;
        for (int32_t i = 0; i < nto; i++) {
            char *place = locate(run, &to[i], &at, bytes);
            enum hkt_status rc = HKT_OK;

            if (hkt__is_far(run, &to[i].x, to[i].rank))
                rc = peer_write(run, to[i].rank, place, source, bytes);
            else
                run->env->places[nplaces++] = place;
            if (rc < 0)
                return rc;
        }
        spread.count = bytes;
        if (nplaces > 0)
            copy(&spread);
        hkt__segment_advance(run, &from->x, &at, bytes);
    }
    if (spread.reach == HKT__REACH_PAST)
        hkt__stores_settle();
    return HKT_OK;
}

enum hkt_status hkt__step_local(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry)
{
    const struct hkt__arg *args = &run->plan->args[entry->arg_first];
    const struct hkt__arg dst = {run->env->rank, entry->dst};

    if (entry->kind == HKT__WRITE && cursor->is_spread) {
        cursor->is_spread = false;
        return HKT_OK;
    }
    if (entry->kind == HKT__WRITE && run->bind->device == NULL)
        return write_args(run, entry, cursor->slice);
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
