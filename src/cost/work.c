/* See work.h. */
#include "cost/work.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "cost/path.h"

/** Blocks of the whole vector: the parts that the size of a collective is counted in. */
static int32_t vector_blocks(enum hkt_coll coll, int nranks)
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

/** Where there is a root, ranks that only give need not wait for the others: they run ahead, by a few frames or by the
 *  instances of scratch. Not where peers use their very buffers. The shares are fitted, as prices are. */
static double waiting_share(const struct hkt__algo *algo)
{
    const enum hkt_coll coll = algo->info.coll;
    const bool is_rooted = coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER;

    return !is_rooted || algo->user_direct ? 1 : algo->info.needs_direct ? 0.6 : 0.1;
}

void hkt__work_add(struct hkt__work *to, const struct hkt__work *work, double factor)
{
    double *sum = &to->messages;
    const double *more = &work->messages;

    _Static_assert(sizeof *work == 12 * sizeof(double), "all counts are doubles");
    for (int i = 0; i < 12; i++)
        sum[i] += factor * more[i];
}

static void add_args(const struct hkt__sched *sched, const struct hkt__step *step, double chunk, struct hkt__work *work)
{
    for (int32_t i = 0; i < step->arg_count; i++) {
        const struct hkt__arg *arg = &sched->args[step->arg_first + i];
        const bool is_target = step->kind == HKT__WRITE && i > 0;
        const double share = chunk * arg->x.count;

        if (arg->rank != sched->rank) {
            *(is_target                    ? &work->written
              : arg->x.buf == HKT__SCRATCH ? &work->fresh
              : arg->x.buf == HKT__OUT     ? &work->relayed
                                           : &work->read) += share;
            work->accesses++;
            work->parcels += arg->x.buf == HKT__SCRATCH;
        } else if (is_target || step->kind == HKT__COPY) {
            *(step->dst.buf == HKT__SCRATCH && !is_target ? &work->fresh : &work->copied) += share;
        }
        if (step->kind == HKT__REDUCE && i > 0)
            work->reduced += share;
    }
}

void hkt__work_add_step(const struct hkt__sched *sched, const struct hkt__step *step, struct hkt__work *work)
{
    const double chunk = 1.0 / ((double)vector_blocks(sched->coll, sched->nranks) * sched->cuts);

    if (step->peer >= 0)
        work->messages++;
    else
        work->steps++;
    work->parcels += step->kind == HKT__SEND || step->kind == HKT__RECV || step->kind == HKT__RECV_REDUCE;
    if (step->kind == HKT__SEND)
        work->sent += chunk * sched->args[step->arg_first].x.count;
    else if (step->kind == HKT__RECV || step->kind == HKT__RECV_REDUCE)
        work->received += chunk * step->dst.count;
    else
        add_args(sched, step, chunk, work);
    if (step->kind == HKT__RECV_REDUCE)
        work->reduced += chunk * step->dst.count;
}

void hkt__work_count(const struct hkt__sched *sched, struct hkt__work *out_work)
{
    *out_work = (struct hkt__work){0};
    for (int32_t i = 0; i < sched->nsteps; i++)
        hkt__work_add_step(sched, &sched->steps[i], out_work);
}

/** Ranks that this one exchanges messages with; -1: no memory. */
static int count_peers(const struct hkt__sched *sched)
{
    bool *seen = hkt__calloc((size_t)sched->nranks, sizeof *seen);
    int count = 0;

    if (seen == NULL)
        return -1;
    for (int32_t i = 0; i < sched->nsteps; i++) {
        const int32_t peer = sched->steps[i].peer;

        if (peer >= 0 && !seen[peer]) {
            seen[peer] = true;
            count++;
        }
    }
    hkt__free(seen);
    return count;
}

static void add_look(struct hkt__profile *profile, const struct hkt__work *work, int looks)
{
    hkt__work_add(&profile->mean, work, 1.0 / looks);
    for (int32_t i = 0; i < profile->nlooks; i++)
        if (memcmp(&profile->looks[i], work, sizeof *work) == 0)
            return;
    profile->looks[profile->nlooks++] = *work;
}

enum hkt_status hkt__profile_make(const struct hkt__algo *algo, int nranks, bool in_place,
                                  struct hkt__profile *out_profile)
{
    const int looks = nranks < HKT__PROFILE_LOOKS ? nranks : HKT__PROFILE_LOOKS;
    struct hkt__profile profile = {.rounds = algo->rounds(nranks), .wait = waiting_share(algo),
                                   .blocks = vector_blocks(algo->info.coll, nranks)};
    struct hkt__sched *scheds[HKT__PROFILE_LOOKS] = {NULL};
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < looks && rc == HKT_OK; i++) {
        /* The first ranks, the last, and some between. */
        const int rank = (int)((int64_t)i * (nranks - 1) / (looks > 1 ? looks - 1 : 1));
        struct hkt__work work;

        rc = hkt__algo_build(algo, nranks, rank, 0, in_place, &scheds[i]);
        if (rc < 0)
            break;
        hkt__work_count(scheds[i], &work);
        const int peers = count_peers(scheds[i]);

        if (peers < 0)
            rc = hkt__fail(HKT_ERR_NOMEM, "no memory to count the peers of %s", algo->info.name);
        profile.peers += (double)peers / looks;
        add_look(&profile, &work, looks);
        profile.cuts = scheds[i]->cuts;
        profile.scratch_chunks = scheds[i]->scratch_chunks;
    }
    if (rc == HKT_OK && looks == nranks)
        rc = hkt__path_find(scheds, nranks, &profile);
    for (int i = 0; i < looks; i++)
        hkt__sched_destroy(scheds[i]);
    if (rc == HKT_OK)
        *out_profile = profile;
    return rc;
}
