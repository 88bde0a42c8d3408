/* Shared by the registry tests: schedules of all ranks of one row, proved together. A failure names the case. */
#ifndef HOCKET_TESTS_MODEL_REGISTRY_CASES_H
#define HOCKET_TESTS_MODEL_REGISTRY_CASES_H

#include "algos/registry.h"
#include "sched/verify.h"

struct cases_plan {
    struct hkt__sched **scheds;
    const struct hkt__algo *algo;
    int nranks, root;
    bool in_place;
};

static inline bool cases_is_rooted(const struct hkt__algo *algo)
{
    const enum hkt_coll coll = algo->info.coll;

    return coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER;
}

static inline bool cases_serves(const struct hkt__algo *algo, int nranks, bool in_place)
{
    return algo->restriction == NULL || algo->restriction(nranks, in_place)[0] == '\0';
}

/** Builds all ranks; fails the test with the library's message. Release with cases_free. */
void cases_build(struct cases_plan *plan, const struct hkt__algo *algo, int nranks, int root, bool in_place);
/** The same with groups of ranks; the case's rank is ignored. */
void cases_build_case(struct cases_plan *plan, const struct hkt__algo *algo, const struct hkt__algo_case *c);
void cases_free(struct cases_plan *plan);
/** Proves the schedules, which may have been lowered in the meantime: `stage` says how, for messages. */
void cases_verify(const struct cases_plan *plan, const char *stage, struct hkt_verify_report *out_report);

#endif
