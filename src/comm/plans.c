/* The plan cache: schedules are built, lowered and compiled once per (algorithm, root, in place), and serve every size. */
#include "comm/comm_int.h"
#include "core/log.h"
#include "core/mem.h"
#include "sched/lower.h"
#include "sched/verify.h"

static uint64_t plan_key(const struct hkt__algo *algo, int root, bool in_place)
{
    return 1 + ((uint64_t)(algo - hkt__algos) << 24 | (uint64_t)(root & 0x7fffff) << 1 | in_place);
}

static uint32_t plan_slot(uint64_t key)
{
    return (uint32_t)(key * 0x9E3779B97F4A7C15u >> 40) % HKT__PLANS_MAX; /* Fibonacci hashing, Knuth vol. 3, 6.4 */
}

static enum hkt_status build_rank(const struct hkt_comm *comm, const struct hkt__algo *algo, int rank, int root,
                                  bool in_place, struct hkt__sched **out_sched)
{
    const struct hkt__algo_case c = {.nranks = comm->nranks, .rank = hkt__site_number(&comm->site, algo, rank),
                                     .root = hkt__site_number(&comm->site, algo, root), .in_place = in_place,
                                     .levels = hkt__site_levels(&comm->site)};

    return hkt__algo_build_case(algo, &c, out_sched);
}

/** From numbers of the schedule to ranks (cost/site.h). Chunks keep theirs: the grid of a call says where they lie. */
static void name_ranks(struct hkt__sched *sched, const int32_t *ranks)
{
    sched->rank = ranks[sched->rank];
    sched->root = ranks[sched->root];
    for (int32_t i = 0; i < sched->nsteps; i++)
        if (sched->steps[i].peer >= 0)
            sched->steps[i].peer = ranks[sched->steps[i].peer];
    for (int32_t i = 0; i < sched->nargs; i++)
        sched->args[i].rank = ranks[sched->args[i].rank];
}

/** HOCKET_VERIFY: prove the schedules of all ranks before this rank runs its own. */
static enum hkt_status verify_all(const struct hkt_comm *comm, const struct hkt__algo *algo, int root, bool in_place)
{
    struct hkt__sched **scheds = hkt__calloc((size_t)comm->nranks, sizeof(struct hkt__sched *));
    const int32_t *ranks = hkt__site_ranks(&comm->site, algo);
    struct hkt_verify_report report;
    enum hkt_status rc = HKT_OK;

    if (scheds == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to verify %s", algo->info.name);
    for (int r = 0; r < comm->nranks && rc == HKT_OK; r++) {
        rc = build_rank(comm, algo, ranks != NULL ? ranks[r] : r, root, in_place, &scheds[r]);
        if (rc == HKT_OK)
            rc = hkt__lower(scheds[r]);
    }
    if (rc == HKT_OK)
        rc = hkt__verify(scheds, comm->nranks, -1, &report);
    for (int r = 0; r < comm->nranks; r++)
        hkt__sched_destroy(scheds[r]);
    hkt__free(scheds);
    return rc;
}

static enum hkt_status build_plan(struct hkt_comm *comm, const struct hkt__algo *algo, int root, bool in_place,
                                  struct hkt__plan **out_plan)
{
    const int32_t *ranks = hkt__site_ranks(&comm->site, algo);
    struct hkt__sched *sched;
    enum hkt_status rc = comm->job->settings->verify ? verify_all(comm, algo, root, in_place) : HKT_OK;

    if (rc < 0)
        return rc;
    rc = build_rank(comm, algo, comm->rank, root, in_place, &sched);
    if (rc < 0)
        return rc;
    rc = hkt__lower(sched);
    if (ranks != NULL)
        name_ranks(sched, ranks);
    /* A rank alone touches nobody's memory, and has no window. */
    if (rc == HKT_OK)
        rc = hkt__plan_create(sched, comm->nranks > 1 && algo->info.needs_direct, comm->nranks > 1 && algo->user_direct,
                              out_plan);
    hkt__sched_destroy(sched);
    hkt__log(HKT__SUB_PLAN, HKT__LOG_DEBUG, "%s: built %s/%s root %d%s: %s", comm->name, hkt_coll_name(algo->info.coll),
             algo->info.name, root, in_place ? " in place" : "", hkt_status_name(rc));
    return rc;
}

/** Forget everything: simpler than eviction, and as rare (more than HKT__PLANS_MAX roots and algorithms in use). */
static void forget_plans(struct hkt__plans *plans)
{
    for (int i = 0; i < HKT__PLANS_MAX; i++) {
        hkt__plan_destroy(plans->table[i].plan);
        plans->table[i] = (struct hkt__cached_plan){0};
    }
    plans->count = 0;
    plans->generation++;
}

enum hkt_status hkt__plans_get(struct hkt_comm *comm, const struct hkt__algo *algo, int root, bool in_place,
                               struct hkt__cached_plan **out_cached)
{
    struct hkt__plans *plans = &comm->planning.plans;
    const uint64_t key = plan_key(algo, root, in_place);
    uint32_t slot = plan_slot(key);
    struct hkt__plan *plan;

    for (; plans->table[slot].key != 0; slot = (slot + 1) % HKT__PLANS_MAX) {
        if (plans->table[slot].key == key) {
            *out_cached = &plans->table[slot];
            return HKT_OK;
        }
    }
    const enum hkt_status rc = build_plan(comm, algo, root, in_place, &plan);

    if (rc < 0)
        return rc;
    if (plans->count >= HKT__PLANS_MAX * 3 / 4) {
        forget_plans(plans);
        slot = plan_slot(key);
    }
    plans->table[slot] = (struct hkt__cached_plan){.key = key, .plan = plan};
    plans->count++;
    plans->built++;
    *out_cached = &plans->table[slot];
    return HKT_OK;
}

void hkt__plans_fini(struct hkt__plans *plans)
{
    if (plans->table != NULL)
        forget_plans(plans);
    hkt__free(plans->table);
}

enum hkt_status hkt__comm_link(struct hkt_comm *comm, int peer, int lane)
{
    const size_t at = (size_t)peer * HKT__COMM_LANES + (size_t)lane;
    struct hkt__tp_dom *dom = comm->routes.doms[comm->routes.tp_of[peer]];

    if (comm->env.tx[at] != NULL)
        return HKT_OK;
    return dom->ops->chan_open(dom, peer, lane, &comm->env.tx[at], &comm->env.rx[at]);
}

enum hkt_status hkt__plans_link(struct hkt_comm *comm, struct hkt__cached_plan *cached, int channels)
{
    const int links = hkt__plan_links(cached->plan), nlanes = hkt__plan_shape(cached->plan)->nlanes;
    enum hkt_status result = HKT_OK;

    if (cached->channels_open >= channels)
        return HKT_OK;
    /* Ask for all, every time: peers connect in any order, and one that waits must not hold up the others. */
    for (int i = 0; i < links * channels; i++) {
        int peer, lane;

        hkt__plan_link(cached->plan, i % links, &peer, &lane);
        const enum hkt_status rc = hkt__comm_link(comm, peer, lane + i / links * nlanes);

        if (rc < 0)
            return rc;
        if (rc != HKT_OK)
            result = rc;
    }
    if (result == HKT_OK)
        cached->channels_open = channels;
    return result;
}

int hkt__plans_missing(const struct hkt_comm *comm, const struct hkt__cached_plan *cached, int channels)
{
    const int links = hkt__plan_links(cached->plan), nlanes = hkt__plan_shape(cached->plan)->nlanes;

    for (int i = 0; i < links * channels; i++) {
        int peer, lane;

        hkt__plan_link(cached->plan, i % links, &peer, &lane);
        if (comm->env.tx[(size_t)peer * HKT__COMM_LANES + (size_t)(lane + i / links * nlanes)] == NULL)
            return peer;
    }
    return -1;
}
