/* The calls of hocket/plan.h: rows of the registry, and schedules of all ranks printed or proved. Arguments come from
 * outside, so everything is checked here and nothing is asserted. */
#include "hocket/plan.h"

#include "algos/registry.h"
#include "core/error.h"
#include "core/mem.h"
#include "sched/lower.h"
#include "sched/print.h"
#include "sched/verify.h"

/* The schedules of all ranks. */
struct plan {
    struct hkt__sched **scheds;
    int nranks;
};

int hkt_algo_count(void)
{
    return hkt__algo_count;
}

enum hkt_status hkt_algo_get(int index, struct hkt_algo_info *out_info)
{
    if (out_info == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_algo_get: out_info is NULL");
    if (index < 0 || index >= hkt__algo_count)
        return hkt__fail(HKT_ERR_INVALID, "hkt_algo_get: index %d is not in [0, %d)", index, hkt__algo_count);
    *out_info = hkt__algos[index].info;
    return HKT_OK;
}

/* Find the row, and check that it serves the case. */
static enum hkt_status find(enum hkt_coll coll, const char *name, int nranks, int in_place,
                            const struct hkt__algo **out_algo)
{
    const struct hkt__algo *algo = hkt__algo_find(coll, name);

    if (algo == NULL)
        return HKT_ERR_INVALID;
    if (nranks < 1 || nranks > HKT_RANKS_MAX)
        return hkt__fail(HKT_ERR_INVALID, "%s %s: the number of ranks, %d, is not in [1, %d]", hkt_coll_name(coll),
                         name, nranks, HKT_RANKS_MAX);
    const char *why = algo->restriction != NULL ? algo->restriction(nranks, in_place != 0) : "";

    if (why[0] != '\0')
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s %s on %d ranks%s: %s", hkt_coll_name(coll), name, nranks,
                         in_place ? ", in place" : "", why);
    *out_algo = algo;
    return HKT_OK;
}

enum hkt_status hkt_algo_check(enum hkt_coll coll, const char *algo, int nranks, int in_place)
{
    const struct hkt__algo *row;

    return find(coll, algo, nranks, in_place, &row);
}

static bool is_rooted(enum hkt_coll coll)
{
    return coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER;
}

static void release(struct plan *plan)
{
    for (int r = 0; plan->scheds != NULL && r < plan->nranks; r++)
        hkt__sched_destroy(plan->scheds[r]);
    hkt__free(plan->scheds);
}

/* Build, and lower if asked. Release the plan also after an error. */
static enum hkt_status build(const struct hkt_plan_query *query, struct plan *plan)
{
    const struct hkt__algo *algo = NULL;
    enum hkt_status rc;

    if (query == NULL)
        return hkt__fail(HKT_ERR_INVALID, "the plan query is NULL");
    rc = find(query->coll, query->algo, query->nranks, query->in_place, &algo);
    if (rc != HKT_OK)
        return rc;
    const int root = is_rooted(query->coll) ? query->root : 0;

    if (root < 0 || root >= query->nranks)
        return hkt__fail(HKT_ERR_INVALID, "%s %s: root %d is not in [0, %d)", hkt_coll_name(query->coll), query->algo,
                         root, query->nranks);
    plan->scheds = hkt__calloc((size_t)query->nranks, sizeof *plan->scheds);
    if (plan->scheds == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the schedules of %d ranks", query->nranks);
    plan->nranks = query->nranks;
    for (int r = 0; r < plan->nranks && rc == HKT_OK; r++) {
        rc = hkt__algo_build(algo, plan->nranks, r, root, query->in_place != 0, &plan->scheds[r]);
        if (rc == HKT_OK && query->lowered)
            rc = hkt__lower(plan->scheds[r]);
    }
    return rc;
}

enum hkt_status hkt_plan_print(const struct hkt_plan_query *query, enum hkt_plan_format format, FILE *file)
{
    struct plan plan = { 0 };
    enum hkt_status rc;

    if (file == NULL || (unsigned)format > HKT_PLAN_JSON)
        return hkt__fail(HKT_ERR_INVALID, "hkt_plan_print: %s", file == NULL ? "file is NULL" : "no such format");
    rc = build(query, &plan);
    if (rc == HKT_OK)
        rc = hkt__print(plan.scheds, plan.nranks, format, file);
    release(&plan);
    return rc;
}

enum hkt_status hkt_plan_verify(const struct hkt_plan_query *query, struct hkt_verify_report *out_report)
{
    struct plan plan = { 0 };
    enum hkt_status rc;

    if (out_report == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_plan_verify: out_report is NULL");
    rc = build(query, &plan);
    if (rc == HKT_OK)
        rc = hkt__verify(plan.scheds, plan.nranks, -1, out_report);
    release(&plan);
    return rc;
}
