/* Lowering: dropping implied dependencies, fusing a receive with the send that forwards it, and the number of slices.
 * (Writing slices out is unroll.c.)
 *
 * Dropping. Program order is a topological order, and a schedule is a set of queues, each a chain. So what a step comes
 * after is a vector with one entry per queue, "so many of this queue's steps are done", and a dependency is implied
 * when the vector of the queue's previous step, or of a later dependency, covers it. This is the transitive reduction.
 * Where the vectors would take too much room, only the last dependency on each queue is kept: less is dropped, nothing
 * is lost. */
#include "sched/lower.h"

#include <assert.h>
#include <string.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/mem.h"
#include "sched/queues.h"

/* Vector entries of a full reduction: 16 MiB, some ten milliseconds. */
#define CLOCKS_MAX ((int64_t)1 << 22)

#define SLICES_WANTED 8 /* of a vector, before they become larger than the least */

struct reducer {
    const struct hkt__sched *sched;
    struct hkt__queues queues;
    int32_t *clocks;  /* [step][queue]; NULL: too many */
    int32_t *last;    /* [queue]: latest step of the queue so far, -1: none */
    int32_t *reached; /* [queue]: what the current step is known to come after */
    int32_t *sorted;  /* dependencies of the current step, latest first */
    int32_t *deps;    /* the result */
    int32_t ndeps;
};

static enum hkt_status reducer_init(struct reducer *r, const struct hkt__sched *sched)
{
    enum hkt_status rc = hkt__queues_init(&r->queues, sched);
    const size_t nqueues = (size_t)r->queues.count;

    r->sched = sched;
    if (rc != HKT_OK)
        return rc;
    const bool has_clocks = (int64_t)nqueues * sched->nsteps <= CLOCKS_MAX;

    if (has_clocks)
        r->clocks = hkt__calloc((size_t)sched->nsteps * nqueues, sizeof *r->clocks);
    r->last = hkt__calloc(nqueues, sizeof *r->last);
    r->reached = hkt__calloc(nqueues, sizeof *r->reached);
    r->sorted = hkt__calloc((size_t)sched->ndeps, sizeof *r->sorted);
    r->deps = hkt__calloc((size_t)sched->ndeps, sizeof *r->deps);
    if ((has_clocks && r->clocks == NULL) || r->last == NULL || r->reached == NULL || r->sorted == NULL
        || r->deps == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to reduce the dependencies of %d steps", (int)sched->nsteps);
    memset(r->last, -1, nqueues * sizeof *r->last);
    return HKT_OK;
}

static void reducer_fini(struct reducer *r)
{
    hkt__queues_fini(&r->queues);
    hkt__free(r->clocks);
    hkt__free(r->last);
    hkt__free(r->reached);
    hkt__free(r->sorted);
    hkt__free(r->deps);
}

/* reached = max(reached, what step `before` comes after, itself included). */
static void reach(struct reducer *r, int32_t before)
{
    const int32_t queue = r->queues.of_step[before], done = r->queues.position[before] + 1;

    if (r->clocks != NULL) {
        const int32_t *clock = &r->clocks[(int64_t)before * r->queues.count];

        for (int32_t q = 0; q < r->queues.count; q++)
            r->reached[q] = clock[q] > r->reached[q] ? clock[q] : r->reached[q];
    } else if (done > r->reached[queue]) {
        r->reached[queue] = done;
    }
}

static void sort_latest_first(int32_t *values, int32_t count)
{
    /* The builder gives ascending order: reversed, the insertions below have nothing to do. */
    for (int32_t i = 0; i < count / 2; i++) {
        const int32_t swap = values[i];

        values[i] = values[count - 1 - i];
        values[count - 1 - i] = swap;
    }
    for (int32_t i = 1; i < count; i++) {
        const int32_t value = values[i];
        int32_t at = i;

        for (; at > 0 && values[at - 1] < value; at--)
            values[at] = values[at - 1];
        values[at] = value;
    }
}

/* Append the dependencies of a step that nothing implies, in ascending order. */
static int32_t reduce_step(struct reducer *r, int32_t index)
{
    const struct hkt__step *step = &r->sched->steps[index];
    const int32_t queue = r->queues.of_step[index];
    int32_t kept = 0;

    memset(r->reached, 0, (size_t)r->queues.count * sizeof *r->reached);
    if (r->last[queue] >= 0)
        reach(r, r->last[queue]);
    if (step->dep_count > 0)
        memcpy(r->sorted, &r->sched->deps[step->dep_first], (size_t)step->dep_count * sizeof *r->sorted);
    sort_latest_first(r->sorted, step->dep_count);
    for (int32_t i = 0; i < step->dep_count; i++) {
        const int32_t dep = r->sorted[i];

        assert(dep >= 0 && dep < index);
        if (r->reached[r->queues.of_step[dep]] > r->queues.position[dep])
            continue;
        reach(r, dep);
        r->sorted[kept++] = dep;
    }
    for (int32_t i = 0; i < kept; i++)
        r->deps[r->ndeps + i] = r->sorted[kept - 1 - i];
    r->ndeps += kept;
    r->reached[queue] = r->queues.position[index] + 1;
    if (r->clocks != NULL)
        memcpy(&r->clocks[(int64_t)index * r->queues.count], r->reached, (size_t)r->queues.count * sizeof *r->reached);
    r->last[queue] = index;
    return kept;
}

enum hkt_status hkt__lower_drop_implied(struct hkt__sched *sched)
{
    struct reducer r = { 0 };
    enum hkt_status rc = reducer_init(&r, sched);

    for (int32_t i = 0; rc == HKT_OK && i < sched->nsteps; i++) {
        const int32_t first = r.ndeps, kept = reduce_step(&r, i); /* reads the step's old range */

        sched->steps[i].dep_first = first;
        sched->steps[i].dep_count = kept;
    }
    if (rc == HKT_OK) {
        int32_t *old = sched->deps;

        sched->deps = r.deps;
        sched->ndeps = r.ndeps;
        r.deps = old;
    }
    reducer_fini(&r);
    return rc;
}

static bool same_span(const struct hkt__span *a, const struct hkt__span *b)
{
    return a->start == b->start && a->stride == b->stride && a->modulus == b->modulus;
}

static bool same_operand(const struct hkt__operand *a, const struct hkt__operand *b)
{
    return a->buf == b->buf && a->like_buf == b->like_buf && a->count == b->count && same_span(&a->at, &b->at)
           && same_span(&a->like, &b->like);
}

static void write_cells(const struct hkt__sched *sched, const struct hkt__operand *y, int32_t step, int32_t *writer)
{
    const int32_t base = y->count > 0 ? hkt__cell_base(sched, y->buf) : 0;

    for (int32_t i = 0; i < y->count; i++)
        writer[base + hkt__span_at(&y->at, i)] = step;
}

/* The one step that wrote all of x last, -1 if there is none. */
static int32_t sole_writer(const struct hkt__sched *sched, const struct hkt__operand *x, const int32_t *writer)
{
    const int32_t base = hkt__cell_base(sched, x->buf), first = writer[base + hkt__span_at(&x->at, 0)];

    for (int32_t i = 1; i < x->count; i++)
        if (writer[base + hkt__span_at(&x->at, i)] != first)
            return -1;
    return first;
}

static bool depends_on(const struct hkt__sched *sched, const struct hkt__step *step, int32_t on)
{
    for (int32_t i = 0; i < step->dep_count; i++)
        if (sched->deps[step->dep_first + i] == on)
            return true;
    return false;
}

static void fuse_send(struct hkt__sched *sched, int32_t index, const int32_t *writer)
{
    struct hkt__step *send = &sched->steps[index];
    const struct hkt__operand *x = &sched->args[send->arg_first].x;
    const int32_t from = x->count > 0 ? sole_writer(sched, x, writer) : -1;

    if (from < 0)
        return;
    struct hkt__step *recv = &sched->steps[from];

    if ((recv->kind != HKT__RECV && recv->kind != HKT__RECV_REDUCE) || recv->fused >= 0 || !same_operand(&recv->dst, x)
        || !depends_on(sched, send, from))
        return;
    recv->fused = index;
    send->fused = from;
}

enum hkt_status hkt__lower_fuse(struct hkt__sched *sched)
{
    const size_t ncells = (size_t)hkt__cell_count(sched);
    int32_t *writer = hkt__calloc(ncells, sizeof *writer);

    if (writer == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to fuse a schedule over %zu chunks", ncells);
    memset(writer, -1, ncells * sizeof *writer);
    for (int32_t i = 0; i < sched->nsteps; i++)
        sched->steps[i].fused = -1;
    for (int32_t i = 0; i < sched->nsteps; i++) {
        const struct hkt__step *step = &sched->steps[i];

        if (step->kind == HKT__SEND)
            fuse_send(sched, i, writer);
        if (step->kind == HKT__WRITE)
            for (int32_t k = 1; k < step->arg_count; k++)
                if (sched->args[step->arg_first + k].rank == sched->rank)
                    write_cells(sched, &sched->args[step->arg_first + k].x, i, writer);
        /* SIGNAL and WAIT count as writes: between them the peer may write. */
        write_cells(sched, &step->dst, i, writer);
    }
    hkt__free(writer);
    return HKT_OK;
}

enum hkt_status hkt__lower(struct hkt__sched *sched)
{
    /* Dropping first: a send whose dependency on the receive is implied by something else that comes after the receive
     * cannot run together with it, and must not take the link from one that can. */
    enum hkt_status rc = hkt__lower_drop_implied(sched);

    return rc == HKT_OK ? hkt__lower_fuse(sched) : rc;
}

size_t hkt__slice_bytes(size_t least, size_t most, size_t vector_bytes)
{
    const size_t share = vector_bytes / SLICES_WANTED;

    return share < least ? least : share > most ? most : share;
}

enum hkt_status hkt__lower_slices(const struct hkt__sched *sched, size_t block_elems_max, size_t elem_bytes,
                                  size_t slice_bytes, size_t scratch_bytes, int instances, int32_t *out_nslices,
                                  size_t *out_scratch_pitch)
{
    const size_t cuts = (size_t)sched->cuts, slots = (size_t)sched->scratch_chunks * (size_t)instances;
    size_t chunk_elems = slice_bytes / elem_bytes; /* at most so many in a chunk */

    assert(elem_bytes > 0 && instances > 0);
    if (chunk_elems == 0)
        chunk_elems = 1;
    if (slots > 0) {
        const size_t pitch_max = scratch_bytes / slots / HKT__LINE * HKT__LINE, fit = pitch_max / elem_bytes;

        if (fit == 0)
            return hkt__fail(HKT_ERR_UNSUPPORTED,
                             "%s %s over %d ranks needs scratch of %zu slots of at least %zu bytes, "
                             "and %zu bytes are there: raise the scratch size or take another algorithm",
                             hkt_coll_name(sched->coll), sched->algo, (int)sched->nranks, slots,
                             hkt__round_up(elem_bytes, HKT__LINE), scratch_bytes);
        if (fit < chunk_elems)
            chunk_elems = fit;
    }
    /* A chunk is ceil(ceil(block / nslices) / cuts) elements; it is at most chunk_elems exactly when nslices is at
     * least ceil(block / (chunk_elems * cuts)). */
    const size_t slice_elems = chunk_elems > block_elems_max / cuts ? block_elems_max : chunk_elems * cuts;
    const size_t nslices = block_elems_max == 0 ? 1 : (block_elems_max - 1) / slice_elems + 1;

    if (nslices > INT32_MAX)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s %s: %zu slices are too many: raise the slice size",
                         hkt_coll_name(sched->coll), sched->algo, nslices);
    const size_t in_slice = block_elems_max == 0 ? 0 : (block_elems_max - 1) / nslices + 1;
    const size_t in_chunk = in_slice == 0 ? 0 : (in_slice - 1) / cuts + 1;

    *out_nslices = (int32_t)nslices;
    *out_scratch_pitch = hkt__round_up(in_chunk * elem_bytes, HKT__LINE);
    return HKT_OK;
}
