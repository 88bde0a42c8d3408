/* The profile of an algorithm (work.h). With few ranks all are looked at and their critical path is found. With more a sample:
 * ranks of the first host and of one in the middle, which tell what a host's link carries, and the last; then waits are those of
 * the longest chain of receives within one rank, which is all there is to it where ranks do alike. Where they do not, as in
 * trees, all schedules are run on paper after all, unless there are too many steps. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "cost/path.h"
#include "sched/queues.h"

#define OTHERS_FITTED 3.0 /* other ranks of a host: what its messages cost each other was measured with so many */
#define NET_WAITS 60 /* a message between hosts, in messages within one: which chain is the longest */

/** Whom to look at. */
struct sample {
    int number[HKT__PROFILE_LOOKS];  /* in the row's schedules */
    int host[HKT__PROFILE_LOOKS];    /* 0, 1, ...: hosts in the sample, -1: none of them */
    double weight[HKT__PROFILE_LOOKS]; /* ranks of the host that it stands for */
    int count;
};

struct maker {
    const struct hkt__algo *algo;
    struct hkt__footing footing;
    int nranks;
    bool in_place;
    struct sample sample;
    struct hkt__sched *scheds[HKT__PROFILE_LOOKS];
};

/** What all ranks put in, in whole vectors. */
static double sources(enum hkt_coll coll, int nranks)
{
    return coll == HKT_BROADCAST || coll == HKT_SCATTER || coll == HKT_GATHER || coll == HKT_ALL_GATHER ||
           coll == HKT_ALL_GATHER_V ? 1 : nranks;
}

/* Ranks that only give need not wait for the others, and those that only take are not waited for: ranks run ahead, by a few frames
 * or the instances of scratch. The share of waiting that is left (fitted, as prices are); more where messages go round in a circle
 * of ranks, none of which runs ahead of the others, as in double trees. */
#define RUN_AHEAD 0.1
#define RUN_AHEAD_CIRCLE 0.5
/* The same where ranks share cores, of one that gives in scratch to all others, or takes so: its core waits for theirs and theirs
 * for it (fitted for 4 on 2). On cores of their own they hardly do: it fills one instance while they read another. */
#define ALTERNATE_GIVER 0.35
#define ALTERNATE_TAKER 0.21

/** Whether messages go round in a circle; rank i sends to those in sends_to[i]. */
static bool has_circle(const uint32_t sends_to[HKT__PROFILE_LOOKS], int nranks)
{
    uint32_t left = (1u << nranks) - 1; /* of which all send to somebody left */

    for (bool is_less = true; is_less;) {
        is_less = false;
        for (int i = 0; i < nranks; i++)
            if ((left >> i & 1) != 0 && (sends_to[i] & left) == 0) {
                left &= ~(1u << i);
                is_less = true;
            }
    }
    return left != 0;
}

static uint32_t receivers_of(const struct hkt__sched *sched)
{
    uint32_t ranks = 0;

    for (int32_t i = 0; i < sched->nsteps; i++)
        if (hkt__queue_kind(&sched->steps[i]) == HKT__QUEUE_TX)
            ranks |= 1u << sched->steps[i].peer;
    return ranks;
}

static bool receives(const struct hkt__sched *sched)
{
    for (int32_t i = 0; i < sched->nsteps; i++)
        if (hkt__queue_kind(&sched->steps[i]) == HKT__QUEUE_RX)
            return true;
    return false;
}

/** Up to `most` ranks of a host, evenly. */
static void sample_host(const struct maker *maker, int32_t host, int slot, int most, struct sample *sample)
{
    const struct hkt_topo_order *order = maker->footing.site->order;
    const int32_t *first = order->first[HKT_TOPO_LEVEL_HOST];
    const int members = first[host + 1] - first[host], looks = members < most ? members : most;

    for (int i = 0; i < looks; i++) {
        const int rank = order->ring[first[host] + (int)((int64_t)i * (members - 1) / (looks > 1 ? looks - 1 : 1))];

        sample->number[sample->count] = hkt__site_number(maker->footing.site, maker->algo, rank);
        sample->host[sample->count] = slot;
        sample->weight[sample->count++] = (double)members / looks;
    }
}

static void choose_sample(struct maker *maker)
{
    const struct hkt__site *site = maker->footing.site;
    const int nhosts = site != NULL ? site->nhosts : 1;
    struct sample *sample = &maker->sample;

    if (maker->nranks > HKT__PROFILE_LOOKS && nhosts > 1) {
        sample_host(maker, 0, 0, HKT__PROFILE_LOOKS / 2, sample);
        sample_host(maker, nhosts / 2, 1, HKT__PROFILE_LOOKS / 2, sample);
        return;
    }
    sample->count = maker->nranks < HKT__PROFILE_LOOKS ? maker->nranks : HKT__PROFILE_LOOKS;
    for (int i = 0; i < sample->count; i++) {
        /* The first ranks, the last, and some between. */
        sample->number[i] = (int)((int64_t)i * (maker->nranks - 1) / (sample->count > 1 ? sample->count - 1 : 1));
        const int rank = maker->footing.ranks != NULL ? maker->footing.ranks[sample->number[i]] : sample->number[i];

        sample->host[i] = site != NULL && nhosts > 1 ? site->order->group[HKT_TOPO_LEVEL_HOST][rank] : -1;
        sample->weight[i] = 1;
    }
}

static enum hkt_status build(const struct maker *maker, int number, struct hkt__sched **out_sched)
{
    const struct hkt__site *site = maker->footing.site;
    const struct hkt__algo_case c = {.nranks = maker->nranks, .rank = number, .root = 0, .in_place = maker->in_place,
                                     .levels = hkt__site_levels(site)};

    return hkt__algo_build_case(maker->algo, &c, out_sched);
}

/** Ranks that this one exchanges messages with, `share` of each; and how many it sends in a row. */
static enum hkt_status count_peers(const struct maker *maker, const struct hkt__sched *sched, double share,
                                   struct hkt__profile *profile)
{
    const size_t lanes = (size_t)sched->nlanes;
    bool *seen = hkt__calloc((size_t)sched->nranks, sizeof *seen);
    int32_t *sent = hkt__calloc((size_t)sched->nranks * lanes, sizeof *sent);
    const bool ok = seen != NULL && sent != NULL;

    for (int32_t i = 0; i < sched->nsteps && ok; i++) {
        const struct hkt__step *step = &sched->steps[i];

        if (step->peer < 0)
            continue;
        if (step->kind == HKT__SEND && ++sent[(size_t)step->peer * lanes + step->lane] > profile->in_a_row)
            profile->in_a_row++;
        if (seen[step->peer])
            continue;
        seen[step->peer] = true;
        profile->peers += share;
        profile->net_peers += hkt__footing_link(&maker->footing, sched->rank, step->peer).is_net ? share : 0;
    }
    hkt__free(seen);
    hkt__free(sent);
    return ok ? HKT_OK : hkt__fail(HKT_ERR_NOMEM, "no memory to count the peers of %s", maker->algo->info.name);
}

static void add_look(struct hkt__profile *profile, const struct hkt__work *work, int looks)
{
    hkt__work_add(&profile->mean, work, 1.0 / looks);
    for (int32_t i = 0; i < profile->nlooks; i++)
        if (memcmp(&profile->looks[i], work, sizeof *work) == 0)
            return;
    profile->looks[profile->nlooks++] = *work;
}

/** What each core does, where ranks take turns on it: a root makes its own the busiest. */
static void add_cores(const struct maker *maker, const struct hkt__work *works, struct hkt__profile *profile)
{
    const struct hkt__site *site = maker->footing.site;

    if (site == NULL || !site->is_shared || maker->sample.count < maker->nranks)
        return;
    for (int i = 0; i < maker->nranks; i++) {
        const int32_t core = site->core[maker->footing.ranks != NULL ? maker->footing.ranks[i] : i];

        hkt__work_add(&profile->cores[core], &works[i], 1);
        profile->ncores = core >= profile->ncores ? core + 1 : profile->ncores;
    }
}

/** What the links of hosts carry. */
static void find_wire(const struct maker *maker, const struct hkt__work *works, struct hkt__profile *profile)
{
    const struct sample *sample = &maker->sample;

    for (int host = 0; host < HKT__PROFILE_LOOKS; host++) {
        double sent = 0, received = 0, messages = 0, busiest = 0;

        for (int i = 0; i < sample->count; i++) {
            if (sample->host[i] != host)
                continue;
            messages += sample->weight[i] * works[i].net_messages;
            busiest = works[i].net_messages > busiest ? works[i].net_messages : busiest;
            sent += sample->weight[i] * works[i].net_sent;
            received += sample->weight[i] * works[i].net_received;
        }
        profile->wire = sent > profile->wire ? sent : profile->wire;
        profile->wire = received > profile->wire ? received : profile->wire;
        profile->net_others = fmax(profile->net_others, fmin(messages - busiest, OTHERS_FITTED * busiest));
    }
}

static double length(const struct hkt__waits *waits)
{
    return waits->rounds + NET_WAITS * waits->net_rounds;
}

/** A chain of receives: what is waited for, and how many messages that is. */
struct chain {
    struct hkt__waits waits;
    int32_t messages;
};

static void extend(struct chain *chain, const struct chain *by)
{
    if (length(&by->waits) > length(&chain->waits))
        *chain = *by;
}

/** The longest chain of receives within one rank's schedule. */
static enum hkt_status find_chain(const struct hkt__footing *footing, const struct hkt__sched *sched, struct chain *out_chain)
{
    struct hkt__queues queues;
    enum hkt_status rc = hkt__queues_init(&queues, sched);
    struct chain *ends = rc == HKT_OK ? hkt__calloc((size_t)sched->nsteps + 1, sizeof *ends) : NULL;
    struct chain *last = rc == HKT_OK ? hkt__calloc((size_t)queues.count + 1, sizeof *last) : NULL;

    if (rc == HKT_OK && (ends == NULL || last == NULL))
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for the waits of %s", sched->algo);
    for (int32_t i = 0; i < sched->nsteps && rc == HKT_OK; i++) {
        const struct hkt__step *step = &sched->steps[i];

        ends[i] = last[queues.of_step[i]];
        for (int32_t d = 0; d < step->dep_count; d++)
            extend(&ends[i], &ends[sched->deps[step->dep_first + d]]);
        if (hkt__queue_kind(step) == HKT__QUEUE_RX) {
            const struct hkt__link link = hkt__footing_link(footing, sched->rank, step->peer);

            *(link.is_net ? &ends[i].waits.net_rounds : &ends[i].waits.rounds) += link.wait;
            ends[i].messages++;
        }
        last[queues.of_step[i]] = ends[i];
        extend(out_chain, &ends[i]);
    }
    hkt__free(ends);
    hkt__free(last);
    hkt__queues_fini(&queues);
    return rc;
}

/** Run the schedules of all ranks on paper. */
static enum hkt_status run_all(const struct maker *maker, struct hkt__profile *profile)
{
    struct hkt__sched **scheds = hkt__calloc((size_t)maker->nranks, sizeof(struct hkt__sched *));
    enum hkt_status rc = HKT_OK;
    int64_t steps = 0;

    if (scheds == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for %d schedules", maker->nranks);
    for (int i = 0; i < maker->nranks && rc == HKT_OK && steps <= HKT__PATH_STEPS_MAX; i++) {
        rc = build(maker, i, &scheds[i]);
        steps += rc == HKT_OK ? scheds[i]->nsteps : 0;
    }
    if (rc == HKT_OK && steps <= HKT__PATH_STEPS_MAX)
        rc = hkt__path_find(&maker->footing, scheds, maker->nranks, profile);
    for (int i = 0; i < maker->nranks; i++)
        hkt__sched_destroy(scheds[i]);
    hkt__free(scheds);
    return rc;
}

/** Waits of a sample. */
static enum hkt_status find_waits(const struct maker *maker, struct hkt__profile *profile)
{
    const double formula = maker->algo->rounds(maker->nranks);
    struct chain longest = {{0, 0}, 0};
    double steps = 0;
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < maker->sample.count && rc == HKT_OK; i++) {
        rc = find_chain(&maker->footing, maker->scheds[i], &longest);
        steps += (double)maker->scheds[i]->nsteps / maker->sample.count;
    }
    profile->waits = longest.waits;
    if (rc < 0 || longest.messages >= 0.75 * formula)
        return rc;
    if (steps * maker->nranks <= HKT__PATH_STEPS_MAX)
        return run_all(maker, profile);
    if (maker->algo->by_groups) /* the formula knows other groups than the site */
        return HKT_OK;
    const double scale = longest.messages > 0 ? formula / longest.messages : 0;

    profile->waits = (struct hkt__waits){longest.waits.rounds * scale, longest.waits.net_rounds * scale};
    if (longest.messages == 0)
        profile->waits.rounds = formula;
    return HKT_OK;
}

static enum hkt_status look(struct maker *maker, struct hkt__profile *profile)
{
    const int looks = maker->sample.count;
    const bool has_all = looks == maker->nranks;
    struct hkt__work works[HKT__PROFILE_LOOKS];
    uint32_t sends_to[HKT__PROFILE_LOOKS];
    int givers = 0, takers = 0; /* ranks that do nothing else */
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < looks && rc == HKT_OK; i++) {
        rc = build(maker, maker->sample.number[i], &maker->scheds[i]);
        if (rc < 0)
            break;
        hkt__work_count(&maker->footing, maker->scheds[i], &works[i]);
        rc = count_peers(maker, maker->scheds[i], 1.0 / looks, profile);
        givers += !receives(maker->scheds[i]);
        sends_to[i] = has_all ? receivers_of(maker->scheds[i]) : 0;
        takers += has_all && sends_to[i] == 0;
        add_look(profile, &works[i], looks);
        profile->cuts = maker->scheds[i]->cuts;
        profile->nlanes = maker->scheds[i]->nlanes;
        profile->scratch_chunks = maker->scheds[i]->scratch_chunks;
    }
    if (rc < 0)
        return rc;
    profile->runs_ahead = givers > 0;
    /* Between hosts all is counted nevertheless: what a call takes by itself is long there, and mostly waited for. */
    if ((givers > 0 || takers > 0) && (maker->footing.site == NULL || maker->footing.site->nhosts == 1))
        profile->wait = has_all && has_circle(sends_to, looks) ? RUN_AHEAD_CIRCLE : RUN_AHEAD;
    if (has_all && maker->algo->info.needs_direct && !maker->algo->user_direct)
        profile->alternate = givers == 1 ? ALTERNATE_GIVER : takers == 1 ? ALTERNATE_TAKER : 0;
    find_wire(maker, works, profile);
    add_cores(maker, works, profile);
    return HKT_OK;
}

enum hkt_status hkt__profile_make(const struct hkt__algo *algo, const struct hkt__site *site, int nranks, bool in_place,
                                  struct hkt__profile *out_profile)
{
    struct hkt__profile profile = {.waits = {algo->rounds(nranks), 0}, .wait = 1,
                                   .touches_peers = algo->info.needs_direct && nranks > 1,
                                   .nranks = nranks, .sources = sources(algo->info.coll, nranks),
                                   .has_one_source = algo->info.coll == HKT_BROADCAST || algo->info.coll == HKT_SCATTER,
                                   .blocks = hkt__vector_blocks(algo->info.coll, nranks)};
    struct maker maker = {.algo = algo, .footing = {site, hkt__site_ranks(site, algo)}, .nranks = nranks, .in_place = in_place};

    choose_sample(&maker);
    enum hkt_status rc = look(&maker, &profile);

    if (rc == HKT_OK && maker.sample.count == nranks)
        rc = hkt__path_find(&maker.footing, maker.scheds, nranks, &profile);
    if (rc == HKT_OK && profile.npaths == 0 && nranks > 1)
        rc = find_waits(&maker, &profile);
    for (int i = 0; i < maker.sample.count; i++)
        hkt__sched_destroy(maker.scheds[i]);
    if (rc == HKT_OK)
        *out_profile = profile;
    return rc;
}
