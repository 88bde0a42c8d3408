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
        return (struct hkt__link){false, false, 1, 1};
    return hkt__site_link(footing->site, footing->ranks != NULL ? footing->ranks[a] : a,
                          footing->ranks != NULL ? footing->ranks[b] : b);
}

/* What comes from peers is stored here too, which takes a share of what a copy does: a copy reads as well. In place not where blocks
 * have just been read, and lie in the caches of a core of one's own. */
#define STORE_SHARE 0.34

static double store_share(const struct hkt__sched *sched, bool is_crowded)
{
    const bool is_replaced = sched->coll == HKT_ALL_TO_ALL || sched->coll == HKT_REDUCE_SCATTER;

    return sched->in_place && is_replaced && !is_crowded ? 0 : STORE_SHARE;
}

/* What is given to peers by writing is read here, and more of it where all write and ranks share cores, as if each line of theirs
 * were fetched first. */
#define GIVE_SHARE 0.51
#define GIVE_SHARE_CROWDED 0.61

/* Lines of several inputs that are read side by side are on their way at the same time: all-reduces in one round of 4 ranks were
 * priced too high next to all-gathers and broadcasts without this. */
#define STREAMS_SHARE 0.5

static void add_args(const struct hkt__footing *footing, const struct hkt__sched *sched, const struct hkt__step *step,
                     double chunk, struct hkt__work *work)
{
    const bool is_crowded = footing->site != NULL && footing->site->is_shared;
    const double give_share = is_crowded && sched->coll != HKT_BROADCAST ? GIVE_SHARE_CROWDED : GIVE_SHARE;
    bool is_staged = false, is_given = false; /* from scratch of peers; to peers */
    int32_t nfetched = 0;                     /* inputs of peers */
    double again = 0;

    for (int32_t i = 0; i < step->arg_count; i++) {
        const struct hkt__arg *arg = &sched->args[step->arg_first + i];
        const bool is_target = step->kind == HKT__WRITE && i > 0;
        const bool is_result = sched->args[step->arg_first].x.buf != HKT__IN;
        const double share = chunk * arg->x.count;

        if (arg->rank != sched->rank) {
            const struct hkt__link link = hkt__footing_link(footing, sched->rank, arg->rank);

            const double streams = step->arg_count > 2 && arg->x.buf == HKT__SCRATCH ? STREAMS_SHARE : 1;

            *(is_target                    ? &work->written
              : arg->x.buf == HKT__SCRATCH ? &work->fresh
              : arg->x.buf == HKT__OUT     ? &work->relayed
                                           : &work->read) += share * link.bytes * streams;
            work->accesses += link.wait;
            work->puts += is_target && is_result && !sched->in_place ? link.wait : 0;
            work->parcels += arg->x.buf == HKT__SCRATCH;
        } else if (is_target) {
            work->copied += share;
            work->stored -= (1 - STORE_SHARE) * share; /* read once for all places, unless system calls take them */
        } else if (step->kind == HKT__COPY) {
            *(step->dst.buf == HKT__SCRATCH ? &work->fresh : &work->copied) += share;
        } else if (arg->x.buf == HKT__SCRATCH) {
            again += STORE_SHARE * share; /* received, stored, and read again */
        }
        if (step->kind == HKT__REDUCE && i > 0)
            work->reduced += share;
        nfetched += arg->rank != sched->rank && !is_target;
        is_given |= arg->rank != sched->rank && is_target && !is_result;
        is_staged |= arg->rank != sched->rank && arg->x.buf == HKT__SCRATCH;
    }
    *(is_staged && !is_crowded ? &work->fresh : &work->copied) += again; /* while a peer on another core reads it too */
    if (nfetched > 0 && step->dst.buf != HKT__SCRATCH)
        *(is_staged ? &work->copied : &work->stored) += store_share(sched, is_crowded) * chunk * step->dst.count;
    if (step->kind == HKT__WRITE && !is_given && !sched->in_place) { /* a sum: in registers, but put down for system calls */
        const double share = chunk * sched->args[step->arg_first].x.count;

        work->copied += share;
        work->stored -= share;
    }
    if (is_given)
        work->stored += give_share * chunk * sched->args[step->arg_first].x.count;
    if (step->kind == HKT__REDUCE && step->arg_count > 1) {
        work->bounced += nfetched * nfetched * chunk * step->dst.count;
        work->fresh += step->dst.buf == HKT__SCRATCH ? chunk * step->dst.count : 0; /* for peers to read */
    }
}

/* A signal has no bytes to place, nor a buffer to look up; but a message that fits the line of its header takes hardly more since
 * small calls take a third fewer instructions. */
#define SIGNAL_SHARE 0.93

/** A message, at one end. */
static void add_message(const struct hkt__sched *sched, const struct hkt__step *step, const struct hkt__link *link,
                        double chunk, struct hkt__work *work)
{
    const double factor = link->is_net ? chunk : chunk * link->bytes;
    const bool is_signal = step->kind == HKT__SIGNAL || step->kind == HKT__WAIT;

    *(link->is_net ? &work->net_messages : &work->messages) += link->is_net ? 1 : link->wait * (is_signal ? SIGNAL_SHARE : 1);
    if (!link->is_net && (step->kind == HKT__SEND || step->kind == HKT__SIGNAL))
        work->posts += link->wait * (is_signal ? SIGNAL_SHARE : 1);
    if (is_signal) {
        work->signals += link->is_net ? 0 : link->wait * (1 - SIGNAL_SHARE);
        return;
    }
    work->parcels += !link->is_net;
    if (step->kind == HKT__SEND)
        *(link->is_net ? &work->net_sent : &work->sent) += factor * sched->args[step->arg_first].x.count;
    else
        *(link->is_net ? &work->net_received : &work->received) += factor * step->dst.count;
    if (step->kind == HKT__RECV_REDUCE)
        work->reduced += chunk * step->dst.count;
}

/* A copy within a rank's memory is begun at once. */
#define COPY_STEP 0.53

/** Each input of a reduction is looked up and begun. */
static double steps_of(const struct hkt__sched *sched, const struct hkt__step *step)
{
    if (step->kind == HKT__REDUCE)
        return step->arg_count;
    return step->kind == HKT__COPY && sched->args[step->arg_first].rank == sched->rank && step->dst.buf != HKT__SCRATCH ? COPY_STEP : 1;
}

void hkt__work_add_step(const struct hkt__footing *footing, const struct hkt__sched *sched, const struct hkt__step *step,
                        struct hkt__work *work)
{
    const double chunk = 1.0 / ((double)hkt__vector_blocks(sched->coll, sched->nranks) * sched->cuts);

    if (step->peer < 0) {
        work->steps += steps_of(sched, step);
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
