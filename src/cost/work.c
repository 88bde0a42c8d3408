/* See work.h. */
#include "cost/work.h"

int32_t hkt__vector_blocks(enum hkt_coll coll, int nranks)
{
    switch (coll) {
    case HKT_ALL_REDUCE:
    case HKT_BROADCAST:
    case HKT_REDUCE:
    case HKT_BARRIER:
        return 1;
    default:
        return nranks;
    }
}

void hkt__work_add(struct hkt__work *to, const struct hkt__work *work, double factor)
{
    double *sum = &to->messages;
    const double *more = &work->messages;

    _Static_assert(sizeof *work == HKT__WORK_COUNTS * sizeof(double), "all counts are doubles");
    for (int i = 0; i < HKT__WORK_COUNTS; i++)
        sum[i] += factor * more[i];
}

struct hkt__link hkt__footing_link(const struct hkt__footing *footing, int a, int b)
{
    if (footing->site == NULL)
        return (struct hkt__link){false, 1, 1};
    return hkt__site_link(footing->site, footing->ranks != NULL ? footing->ranks[a] : a,
                          footing->ranks != NULL ? footing->ranks[b] : b);
}

static void add_args(const struct hkt__footing *footing, const struct hkt__sched *sched, const struct hkt__step *step,
                     double chunk, struct hkt__work *work)
{
    for (int32_t i = 0; i < step->arg_count; i++) {
        const struct hkt__arg *arg = &sched->args[step->arg_first + i];
        const bool is_target = step->kind == HKT__WRITE && i > 0;
        const bool is_result = sched->args[step->arg_first].x.buf != HKT__IN;
        const double share = chunk * arg->x.count;

        if (arg->rank != sched->rank) {
            const struct hkt__link link = hkt__footing_link(footing, sched->rank, arg->rank);

            *(is_target && !is_result      ? &work->read /* moved out of the user's buffer, whoever does it */
              : is_target                  ? &work->written
              : arg->x.buf == HKT__SCRATCH ? &work->fresh
              : arg->x.buf == HKT__OUT     ? &work->relayed
                                           : &work->read) += share * link.bytes;
            work->accesses += link.wait;
            work->parcels += arg->x.buf == HKT__SCRATCH;
        } else if (is_target || step->kind == HKT__COPY) {
            *(step->dst.buf == HKT__SCRATCH && !is_target ? &work->fresh : &work->copied) += share;
        }
        if (step->kind == HKT__REDUCE && i > 0)
            work->reduced += share;
    }
}

/** A message, at one end. */
static void add_message(const struct hkt__sched *sched, const struct hkt__step *step, const struct hkt__link *link,
                        double chunk, struct hkt__work *work)
{
    const double factor = link->is_net ? chunk : chunk * link->bytes;

    *(link->is_net ? &work->net_messages : &work->messages) += link->is_net ? 1 : link->wait;
    if (!link->is_net && (step->kind == HKT__SEND || step->kind == HKT__SIGNAL))
        work->posts += link->wait;
    if (step->kind == HKT__SIGNAL || step->kind == HKT__WAIT)
        return;
    work->parcels += !link->is_net;
    if (step->kind == HKT__SEND)
        *(link->is_net ? &work->net_sent : &work->sent) += factor * sched->args[step->arg_first].x.count;
    else
        *(link->is_net ? &work->net_received : &work->received) += factor * step->dst.count;
    if (step->kind == HKT__RECV_REDUCE)
        work->reduced += chunk * step->dst.count;
}

void hkt__work_add_step(const struct hkt__footing *footing, const struct hkt__sched *sched, const struct hkt__step *step,
                        struct hkt__work *work)
{
    const double chunk = 1.0 / ((double)hkt__vector_blocks(sched->coll, sched->nranks) * sched->cuts);

    if (step->peer < 0) {
        work->steps++;
        add_args(footing, sched, step, chunk, work);
        return;
    }
    const struct hkt__link link = hkt__footing_link(footing, sched->rank, step->peer);

    add_message(sched, step, &link, chunk, work);
}

void hkt__work_count(const struct hkt__footing *footing, const struct hkt__sched *sched, struct hkt__work *out_work)
{
    *out_work = (struct hkt__work){0};
    for (int32_t i = 0; i < sched->nsteps; i++)
        hkt__work_add_step(footing, sched, &sched->steps[i], out_work);
}
