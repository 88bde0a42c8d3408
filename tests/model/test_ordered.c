/* What could break: a row of the registry claims to sum in rank order, and for some number of ranks, some root or in
 * place adds in another order, in two steps, or differently on one rank: HOCKET_DETERMINISTIC would then pick
 * algorithms that round differently. Or a row that does sum in rank order does not say so; or a reducing collective
 * has no ordered row that every transport can run, so that the setting leaves nothing to choose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "oracle.h"
#include "registry_cases.h"
#include "sched/lower.h"

enum { RANKS = 16, RANKS_TELLING = 9 };

static bool reduces(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_REDUCE_SCATTER_V;
}

/* Runs the schedules on numbers: did every rank's result come from one step, in rank order? */
static bool is_ordered(const struct hkt__algo *algo, int nranks, int root, bool in_place)
{
    struct cases_plan plan;

    cases_build(&plan, algo, nranks, root, in_place);
    for (int rank = 0; rank < nranks; rank++)
        assert_int_equal(hkt__lower(plan.scheds[rank]), HKT_OK);
    struct oracle *o = oracle_create(plan.scheds, nranks);

    assert_non_null(o);
    assert_string_equal(oracle_run(o, 1, false), "");
    const bool ordered = oracle_is_ordered(o);

    oracle_destroy(o);
    cases_free(&plan);
    return ordered;
}

static void flagged_rows_sum_in_rank_order(void **state)
{
    int rows = 0;

    (void)state;
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];

        if (!algo->ordered)
            continue;
        assert_true(reduces(algo->info.coll));
        rows++;
        for (int nranks = 1; nranks <= RANKS; nranks++)
            for (int in_place = 0; in_place < 2; in_place++)
                for (int root = 0; root < (cases_is_rooted(algo) ? nranks : 1); root += nranks < 5 ? 1 : nranks / 3)
                    if (cases_serves(algo, nranks, in_place != 0) && !is_ordered(algo, nranks, root, in_place != 0))
                        fail_msg("%s %s, %d ranks, root %d%s: not in rank order, though the row says so",
                                 hkt_coll_name(algo->info.coll), algo->info.name, nranks, root,
                                 in_place ? ", in place" : "");
    }
    assert_true(rows >= 13);
}

/* And so the test above can fail. */
static void other_rows_do_not(void **state)
{
    (void)state;
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];
        bool ordered = true;

        if (algo->ordered || !reduces(algo->info.coll))
            continue;
        for (int nranks = 3; nranks <= RANKS_TELLING; nranks++)
            if (cases_serves(algo, nranks, false))
                ordered = ordered && is_ordered(algo, nranks, 0, false);
        if (ordered)
            fail_msg("%s %s sums in rank order and does not say so", hkt_coll_name(algo->info.coll), algo->info.name);
    }
}

static void every_reduction_has_an_ordered_row_for_every_case(void **state)
{
    (void)state;
    for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
        int nservants = 0;

        for (int i = 0; i < hkt__algo_count; i++)
            nservants += (int)hkt__algos[i].info.coll == coll && hkt__algos[i].ordered
                         && !hkt__algos[i].info.needs_direct && hkt__algos[i].restriction == NULL;
        if (reduces((enum hkt_coll)coll) && nservants == 0)
            fail_msg("%s has no ordered row that serves every case", hkt_coll_name((enum hkt_coll)coll));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flagged_rows_sum_in_rank_order),
        cmocka_unit_test(other_rows_do_not),
        cmocka_unit_test(every_reduction_has_an_ordered_row_for_every_case),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
