/* Building and proving one row of the registry for all its ranks; see registry_cases.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "registry_cases.h"

#include "core/mem.h"

void cases_build_case(struct cases_plan *plan, const struct hkt__algo *algo, const struct hkt__algo_case *c)
{
    struct hkt__algo_case one = *c;

    *plan = (struct cases_plan){ hkt__calloc((size_t)c->nranks, sizeof *plan->scheds), algo, c->nranks, c->root,
                                 c->in_place };
    assert_non_null(plan->scheds);
    for (one.rank = 0; one.rank < c->nranks; one.rank++)
        if (hkt__algo_build_case(algo, &one, &plan->scheds[one.rank]) != HKT_OK)
            fail_msg("%s", hkt_last_error());
}

void cases_build(struct cases_plan *plan, const struct hkt__algo *algo, int nranks, int root, bool in_place)
{
    cases_build_case(plan, algo, &(struct hkt__algo_case){ nranks, 0, root, in_place, NULL });
}

void cases_free(struct cases_plan *plan)
{
    for (int rank = 0; rank < plan->nranks; rank++)
        hkt__sched_destroy(plan->scheds[rank]);
    hkt__free(plan->scheds);
}

void cases_verify(const struct cases_plan *plan, const char *stage, struct hkt_verify_report *out_report)
{
    memset(out_report, 0, sizeof *out_report);
    if (hkt__verify(plan->scheds, plan->nranks, -1, out_report) != HKT_OK)
        fail_msg("%s, root %d: %s", stage, plan->root, hkt_last_error());
    if (!out_report->same_bits)
        fail_msg("%s %s, %d ranks, %s: ranks associate a chunk differently", hkt_coll_name(plan->algo->info.coll),
                 plan->algo->info.name, plan->nranks, stage);
}
