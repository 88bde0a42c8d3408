/* Unrolling: nslices slices of a schedule as one schedule, in the order the executor gives them, so that the verifier
 * can prove slicing instead of us believing it.
 *
 * The executor's rules, written out as steps and dependencies:
 *  - every queue runs slice 0, then slice 1, ...: here the steps of slice s stand before those of slice s + 1;
 *  - slices share no element of IN and OUT, so nothing else orders them there;
 *  - slice s uses instance s mod `instances` of SCRATCH: its steps that touch scratch, here or at a peer, come after
 *    all steps of slice s - instances at this rank, and at every rank it exchanges signals with. The latter is a SIGNAL
 *    and a WAIT per such rank on a lane of their own. (Memory of a peer is touched only under a grant, so ranks without
 *    signals between them share no memory; the executor may wait for more ranks than that.)
 *
 * Numbering: chunk c of slice s becomes chunk c * nslices + s, slot k of instance e slot k * instances + e. At run time
 * slices cut a block first and chunks cut the slice, so the pieces of a block stand in another order; but the map is
 * one to one, the same at all ranks, and keeps strided operands strided. */
#include <assert.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "sched/lower.h"
#include "sched/queues.h"

struct unroller {
    const struct hkt__sched *from;
    struct hkt__sched *to;
    struct hkt__queues queues;
    int nslices, instances;
    int32_t *ends;       /* last step of each queue in one slice, ascending */
    bool *is_first_user; /* [step]: first of its queue to touch scratch */
    int32_t *partners;   /* ranks with signals to or from here, if scratch is used */
    int32_t npartners;
    int32_t sync_lane;
    int64_t nsteps_max, ndeps_max;
};

static bool uses_scratch(const struct hkt__sched *sched, const struct hkt__step *step)
{
    bool uses = step->dst.count > 0 && step->dst.buf == HKT__SCRATCH;

    for (int32_t i = 0; i < step->arg_count; i++) {
        const struct hkt__operand *x = &sched->args[step->arg_first + i].x;

        uses = uses || (x->count > 0 && x->buf == HKT__SCRATCH);
    }
    return uses;
}

/* Fill ends, is_first_user and partners. */
static enum hkt_status survey(struct unroller *u)
{
    const struct hkt__sched *from = u->from;
    const size_t nsteps = (size_t)from->nsteps, nqueues = (size_t)u->queues.count;
    bool *is_seen = hkt__calloc(nqueues > (size_t)from->nranks ? nqueues : (size_t)from->nranks, sizeof *is_seen);

    u->ends = hkt__calloc(nqueues, sizeof *u->ends);
    u->is_first_user = hkt__calloc(nsteps, sizeof *u->is_first_user);
    u->partners = hkt__calloc((size_t)from->nranks, sizeof *u->partners);
    if (is_seen == NULL || u->ends == NULL || u->is_first_user == NULL || u->partners == NULL) {
        hkt__free(is_seen);
        return hkt__fail(HKT_ERR_NOMEM, "no memory to unroll a schedule");
    }
    int32_t nends = u->queues.count;

    for (int32_t i = from->nsteps - 1; i >= 0; i--)
        if (!is_seen[u->queues.of_step[i]]) {
            is_seen[u->queues.of_step[i]] = true;
            u->ends[--nends] = i;
        }
    memset(is_seen, 0, nqueues * sizeof *is_seen);
    for (int32_t i = 0; i < from->nsteps; i++)
        if (uses_scratch(from, &from->steps[i]) && !is_seen[u->queues.of_step[i]])
            u->is_first_user[i] = is_seen[u->queues.of_step[i]] = true;
    memset(is_seen, 0, (size_t)from->nranks * sizeof *is_seen);
    for (int32_t i = 0; from->scratch_chunks > 0 && i < from->nsteps; i++) {
        const struct hkt__step *step = &from->steps[i];

        if ((step->kind == HKT__SIGNAL || step->kind == HKT__WAIT) && !is_seen[step->peer]) {
            is_seen[step->peer] = true;
            u->partners[u->npartners++] = step->peer;
        }
    }
    hkt__free(is_seen);
    return HKT_OK;
}

/* Grid and arrays of the result. Instances are waited for from slice `instances` on. */
static enum hkt_status make_room(struct unroller *u)
{
    const struct hkt__sched *from = u->from;
    const int64_t reuses = u->nslices > u->instances ? u->nslices - u->instances : 0, nends = u->queues.count;
    const int64_t chunks = (int64_t)from->cuts * u->nslices * from->nranks;
    const int64_t slots = (int64_t)from->scratch_chunks * u->instances;
    const int64_t nsteps = (int64_t)from->nsteps * u->nslices + reuses * 2 * u->npartners;
    const int64_t nargs = (int64_t)from->nargs * u->nslices;
    int64_t first_users = 0;

    for (int32_t i = 0; i < from->nsteps; i++)
        first_users += u->is_first_user[i];
    const int64_t ndeps = (int64_t)from->ndeps * u->nslices + reuses * u->npartners * nends
                          + reuses * first_users * (nends + u->npartners);

    if (chunks > INT32_MAX / 2 || slots > INT32_MAX / 2 || nsteps > INT32_MAX || nargs > INT32_MAX || ndeps > INT32_MAX)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s %s in %d slices is too large to write out", hkt_coll_name(from->coll),
                         from->algo, u->nslices);
    if (u->npartners > 0 && reuses > 0 && from->nlanes == HKT__LANES_MAX)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s %s uses all %d lanes, and writing slices out needs one more",
                         hkt_coll_name(from->coll), from->algo, HKT__LANES_MAX);
    struct hkt__sched *to = hkt__calloc(1, sizeof *to);

    if (to == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to unroll a schedule");
    *to = *from;
    to->cuts = from->cuts * u->nslices;
    to->scratch_chunks = (int32_t)slots;
    u->sync_lane = from->nlanes;
    to->nlanes = from->nlanes + (u->npartners > 0 && reuses > 0);
    to->nsteps = to->nargs = to->ndeps = 0;
    to->steps = hkt__calloc((size_t)nsteps, sizeof *to->steps);
    to->args = hkt__calloc((size_t)nargs, sizeof *to->args);
    to->deps = hkt__calloc((size_t)ndeps, sizeof *to->deps);
    u->to = to;
    u->nsteps_max = nsteps;
    u->ndeps_max = ndeps;
    if (to->steps == NULL || to->args == NULL || to->deps == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to unroll a schedule");
    return HKT_OK;
}

/* Steps before the first of slice s. */
static int32_t slice_base(const struct unroller *u, int slice)
{
    const int reuses = slice >= u->instances ? slice - u->instances + 1 : 0;

    return slice * u->from->nsteps + reuses * 2 * u->npartners;
}

static struct hkt__span interleave(struct hkt__span span, int32_t ways, int32_t way)
{
    return (struct hkt__span){ span.start * ways + way, span.stride * ways, span.modulus * ways };
}

static struct hkt__operand slice_operand(const struct unroller *u, struct hkt__operand x, int slice)
{
    if (x.count == 0)
        return x;
    if (x.buf == HKT__SCRATCH)
        x.at = interleave(x.at, u->instances, slice % u->instances);
    else
        x.at = interleave(x.at, u->nslices, slice);
    x.like = interleave(x.like, u->nslices, slice);
    return x;
}

/* Dependencies on the last steps of slice - instances, here. */
static void after_slice(struct unroller *u, int slice)
{
    struct hkt__sched *to = u->to;
    const int32_t base = slice_base(u, slice - u->instances);

    for (int32_t i = 0; i < u->queues.count; i++)
        to->deps[to->ndeps++] = base + u->ends[i];
}

/* Before slice s: tell the partners that this rank is done with the scratch it will use, and hear the same of them. */
static void add_syncs(struct unroller *u, int slice)
{
    struct hkt__sched *to = u->to;

    for (int32_t i = 0; i < 2 * u->npartners; i++) {
        const bool is_signal = i < u->npartners;
        struct hkt__step *step = &to->steps[to->nsteps++];

        *step = (struct hkt__step){
            .kind = is_signal ? HKT__SIGNAL : HKT__WAIT,
            .lane = (uint8_t)u->sync_lane,
            .peer = u->partners[i % u->npartners],
            .arg_first = to->nargs,
            .dep_first = to->ndeps,
            .fused = -1,
        };
        step->dst.at.modulus = step->dst.like.modulus = 1;
        if (is_signal)
            after_slice(u, slice);
        step->dep_count = to->ndeps - step->dep_first;
    }
}

static void add_step(struct unroller *u, int slice, int32_t index)
{
    const struct hkt__sched *from = u->from;
    const struct hkt__step *old = &from->steps[index];
    struct hkt__sched *to = u->to;
    struct hkt__step *step = &to->steps[to->nsteps++];
    const int32_t base = slice_base(u, slice);

    *step = *old;
    step->dst = slice_operand(u, old->dst, slice);
    step->arg_first = to->nargs;
    for (int32_t i = 0; i < old->arg_count; i++) {
        const struct hkt__arg *arg = &from->args[old->arg_first + i];

        to->args[to->nargs++] = (struct hkt__arg){ arg->rank, slice_operand(u, arg->x, slice) };
    }
    step->dep_first = to->ndeps;
    if (slice >= u->instances && u->is_first_user[index]) {
        after_slice(u, slice);
        for (int32_t i = 0; i < u->npartners; i++)
            to->deps[to->ndeps++] = base - u->npartners + i; /* the WAITs */
    }
    for (int32_t i = 0; i < old->dep_count; i++)
        to->deps[to->ndeps++] = base + from->deps[old->dep_first + i];
    step->dep_count = to->ndeps - step->dep_first;
    if (old->fused >= 0)
        step->fused = base + old->fused;
}

enum hkt_status hkt__lower_unroll(const struct hkt__sched *sched, int nslices, int instances,
                                  struct hkt__sched **out_sched)
{
    struct unroller u = { .from = sched, .nslices = nslices, .instances = instances };
    enum hkt_status rc = hkt__queues_init(&u.queues, sched);

    assert(nslices >= 1 && instances >= 1);
    if (rc == HKT_OK)
        rc = survey(&u);
    if (rc == HKT_OK)
        rc = make_room(&u);
    for (int slice = 0; rc == HKT_OK && slice < nslices; slice++) {
        if (slice >= instances && u.npartners > 0)
            add_syncs(&u, slice);
        assert(u.to->nsteps == slice_base(&u, slice));
        for (int32_t i = 0; i < sched->nsteps; i++)
            add_step(&u, slice, i);
    }
    if (rc == HKT_OK) {
        assert(u.to->nsteps == u.nsteps_max && u.to->ndeps == u.ndeps_max);
        *out_sched = u.to;
        u.to = NULL;
    }
    hkt__sched_destroy(u.to);
    hkt__queues_fini(&u.queues);
    hkt__free(u.ends);
    hkt__free(u.is_first_user);
    hkt__free(u.partners);
    return rc;
}
