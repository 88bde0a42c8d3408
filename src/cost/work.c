/* See work.h. */
#include "cost/work.h"

#define RANKS_LOOKED_AT 16

/** Blocks of the whole vector: the parts that the size of a collective is counted in. */
static double vector_blocks(const struct hkt__sched *sched)
{
    switch (sched->coll) {
    case HKT_ALL_REDUCE:
    case HKT_BROADCAST:
    case HKT_REDUCE:
    case HKT_BARRIER:
        return 1;
    default:
        return sched->nranks;
    }
}

static void count_args(const struct hkt__sched *sched, const struct hkt__step *step, double chunk, struct hkt__work *work)
{
    for (int32_t i = 0; i < step->arg_count; i++) {
        const struct hkt__arg *arg = &sched->args[step->arg_first + i];
        const bool is_target = step->kind == HKT__WRITE && i > 0;
        const double share = chunk * arg->x.count;

        if (arg->rank != sched->rank) {
            *(is_target ? &work->written : &work->read) += share;
            work->accesses++;
        } else if (is_target || step->kind == HKT__COPY) {
            work->copied += share;
        }
        if (step->kind == HKT__REDUCE && i > 0)
            work->reduced += share;
    }
}

void hkt__work_count(const struct hkt__sched *sched, struct hkt__work *out_work)
{
    const double chunk = 1.0 / (vector_blocks(sched) * sched->cuts);
    struct hkt__work work = {0};

    for (int32_t i = 0; i < sched->nsteps; i++) {
        const struct hkt__step *step = &sched->steps[i];

        work.messages += step->peer >= 0;
        if (step->kind == HKT__SEND)
            work.sent += chunk * sched->args[step->arg_first].x.count;
        else if (step->kind == HKT__RECV || step->kind == HKT__RECV_REDUCE)
            work.received += chunk * step->dst.count;
        else
            count_args(sched, step, chunk, &work);
        if (step->kind == HKT__RECV_REDUCE)
            work.reduced += chunk * step->dst.count;
    }
    *out_work = work;
}

static void keep_most(struct hkt__work *most, const struct hkt__work *work)
{
    double *to = &most->rounds;
    const double *from = &work->rounds;

    _Static_assert(sizeof *most == 9 * sizeof(double), "all counts are doubles");
    for (int i = 0; i < 9; i++)
        to[i] = from[i] > to[i] ? from[i] : to[i];
}

enum hkt_status hkt__work_of(const struct hkt__algo *algo, int nranks, bool in_place, struct hkt__work *out_work)
{
    const int looks = nranks < RANKS_LOOKED_AT ? nranks : RANKS_LOOKED_AT;
    struct hkt__work most = {.rounds = algo->rounds(nranks)};

    for (int i = 0; i < looks; i++) {
        /* The first ranks, the last, and some between. */
        const int rank = (int)((int64_t)i * (nranks - 1) / (looks > 1 ? looks - 1 : 1));
        struct hkt__sched *sched;
        struct hkt__work work;
        const enum hkt_status rc = hkt__algo_build(algo, nranks, rank, 0, in_place, &sched);

        if (rc < 0)
            return rc;
        hkt__work_count(sched, &work);
        hkt__sched_destroy(sched);
        keep_most(&most, &work);
    }
    *out_work = most;
    return HKT_OK;
}
