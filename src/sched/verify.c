/* The verifier's entry: do the schedules belong together, then one stage after the other (see verify_int.h). Each stage
 * has a file of its own; none of them trusts the builder or another module beyond the geometry of cells.c. */
#include "sched/verify_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/mem.h"

/* Exact sets cost nranks / 8 bytes a cell: at 256 ranks the largest rows need about 10 MB, at 1024 a gigabyte. */
#define EXACT_RANKS_DEFAULT 256

enum hkt_status hkt__proof_fail(struct hkt__proof *v, const char *format, ...)
{
    const struct hkt__sched *sched = v->scheds[0];
    char *text = v->report->failure;
    const size_t room = sizeof v->report->failure;
    va_list args;
    int used = snprintf(text, room, "%s %s, %d ranks%s: ", hkt_coll_name(sched->coll), sched->algo, (int)v->nranks,
                        sched->in_place ? ", in place" : "");

    if (used < 0 || (size_t)used >= room)
        used = 0;
    va_start(args, format);
    vsnprintf(text + used, room - (size_t)used, format, args);
    va_end(args);
    return hkt__fail(HKT_ERR_BUG, "%s", text);
}

enum hkt_status hkt__proof_nomem(void)
{
    return hkt__fail(HKT_ERR_NOMEM, "no memory to verify a schedule; fewer ranks need less");
}

static bool belong_together(const struct hkt__sched *a, const struct hkt__sched *b)
{
    return b->coll == a->coll && strcmp(b->algo, a->algo) == 0 && b->nranks == a->nranks && b->root == a->root
           && b->in_place == a->in_place && b->cuts == a->cuts && b->uniform_blocks == a->uniform_blocks;
}

static enum hkt_status check_together(struct hkt__sched *const *scheds, int nranks, int64_t *out_nsteps)
{
    int64_t nsteps = 0;

    if (scheds == NULL || nranks < 1 || nranks > HKT_RANKS_MAX)
        return hkt__fail(HKT_ERR_INVALID, "verify: give the schedules of 1 to %d ranks, not %d", HKT_RANKS_MAX, nranks);
    for (int r = 0; r < nranks; r++) {
        if (scheds[r] == NULL || scheds[r]->algo == NULL)
            return hkt__fail(HKT_ERR_INVALID, "verify: the schedule of rank %d is missing", r);
        if (scheds[r]->rank != r || scheds[r]->nranks != nranks || !belong_together(scheds[0], scheds[r]))
            return hkt__fail(HKT_ERR_INVALID,
                             "verify: the schedule at index %d is not rank %d of %d of the same collective, "
                             "algorithm, root and grid as rank 0's",
                             r, r, nranks);
        if (scheds[r]->cuts < 1 || scheds[r]->nsteps < 0)
            return hkt__fail(HKT_ERR_INVALID, "verify: the schedule of rank %d has %d cuts and %d steps", r,
                             (int)scheds[r]->cuts, (int)scheds[r]->nsteps);
        nsteps += scheds[r]->nsteps;
    }
    if (scheds[0]->coll >= HKT_COLL_COUNT || scheds[0]->coll == HKT_SEND_RECV)
        return hkt__fail(HKT_ERR_INVALID, "verify: %s promises nothing that could be proved",
                         hkt_coll_name(scheds[0]->coll));
    if (nsteps > INT32_MAX / 2)
        return hkt__fail(HKT_ERR_INVALID, "verify: %lld steps are too many; use fewer ranks", (long long)nsteps);
    *out_nsteps = nsteps;
    return HKT_OK;
}

static enum hkt_status init(struct hkt__proof *v)
{
    const size_t nranks = (size_t)v->nranks, nsteps = (size_t)v->nsteps;

    v->base = hkt__calloc(nranks + 1, sizeof *v->base);
    v->home = hkt__calloc(nranks * HKT__BUF_COUNT, sizeof *v->home);
    v->own_home = hkt__calloc(nranks + 1, sizeof *v->own_home);
    v->rank_of = hkt__calloc(nsteps, sizeof *v->rank_of);
    v->match = hkt__calloc(nsteps, sizeof *v->match);
    v->queue = hkt__calloc(nsteps, sizeof *v->queue);
    v->before = hkt__calloc(nsteps, sizeof *v->before);
    v->order = hkt__calloc(nsteps, sizeof *v->order);
    if (v->base == NULL || v->home == NULL || v->own_home == NULL || v->rank_of == NULL || v->match == NULL
        || v->queue == NULL || v->before == NULL || v->order == NULL)
        return hkt__proof_nomem();
    for (int32_t r = 0; r < v->nranks; r++) {
        const int32_t first = v->base[r], count = v->scheds[r]->nsteps;

        v->base[r + 1] = first + count;
        for (int32_t i = first; i < first + count; i++) {
            v->rank_of[i] = r;
            v->match[i] = v->before[i] = -1;
        }
    }
    return HKT_OK;
}

static void fini(struct hkt__proof *v)
{
    hkt__free(v->base);
    hkt__free(v->home);
    hkt__free(v->own_home);
    hkt__free(v->rank_of);
    hkt__free(v->match);
    hkt__free(v->queue);
    hkt__free(v->before);
    hkt__free(v->order);
    hkt__free(v->cells);
    hkt__free(v->sets);
    hkt__free(v->classes);
    hkt__free(v->touches);
    hkt__free(v->readers);
    hkt__free(v->seen);
    hkt__free(v->pairs);
}

static int64_t chunks_moved(const struct hkt__sched *sched)
{
    int64_t chunks = 0;

    for (int32_t i = 0; i < sched->nsteps; i++) {
        const struct hkt__step *s = &sched->steps[i];

        for (int32_t k = 0; k < s->arg_count; k++) {
            const struct hkt__arg *arg = &sched->args[s->arg_first + k];

            if (s->kind == HKT__SEND || arg->rank != sched->rank)
                chunks += arg->x.count;
        }
    }
    return chunks;
}

static void count_volume(struct hkt__proof *v)
{
    for (int32_t r = 0; r < v->nranks; r++) {
        const int64_t chunks = chunks_moved(v->scheds[r]);

        if (chunks > v->report->bytes_chunks_max)
            v->report->bytes_chunks_max = chunks;
    }
}

enum hkt_status hkt__verify(struct hkt__sched *const *scheds, int nranks, int exact_ranks_max,
                            struct hkt_verify_report *out_report)
{
    static enum hkt_status (*const stages[])(struct hkt__proof *) = {
        hkt__proof_form, hkt__proof_match, hkt__proof_order, hkt__proof_values, hkt__proof_races, hkt__proof_barrier,
    };
    const int64_t start_ns = hkt__now_ns();
    const int exact_max = exact_ranks_max < 0 ? EXACT_RANKS_DEFAULT : exact_ranks_max;
    struct hkt_verify_report report = { .nranks = nranks };
    struct hkt__proof v = { .scheds = scheds, .nranks = nranks, .report = &report };
    int64_t nsteps = 0;
    enum hkt_status rc = check_together(scheds, nranks, &nsteps);

    if (rc != HKT_OK)
        return rc;
    v.nsteps = (int32_t)nsteps;
    v.words = nranks <= exact_max ? (nranks + 63) / 64 : 0;
    report.exact = v.words > 0;
    report.steps = nsteps;
    rc = init(&v);
    for (size_t i = 0; i < sizeof stages / sizeof *stages && rc == HKT_OK; i++)
        rc = stages[i](&v);
    if (rc == HKT_OK)
        count_volume(&v);
    fini(&v);
    report.seconds = (double)(hkt__now_ns() - start_ns) * 1e-9;
    if (rc == HKT_OK || rc == HKT_ERR_BUG)
        *out_report = report;
    return rc;
}
