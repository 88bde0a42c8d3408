/* What could break: an algorithm for groups of ranks is right for the groups it makes up itself (which the registry tests
 * prove) and wrong for those of a machine: uneven levels, three of them, a group of all ranks. Or it is right and sends
 * between groups what it promises to keep inside. Or groups that cannot be are taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "algos/levels.h"
#include "registry_cases.h"
#include "sched/lower.h"

static const struct hkt__levels shapes[] = {
    { 2, { 2, 2 }, 1 },        { 2, { 4, 2 }, 0 },    { 2, { 2, 4 }, 1 },       { 2, { 3, 5 }, 1 }, { 2, { 5, 3 }, 2 }, { 1, { 6 }, 1 },
    { 3, { 2, 4, 3 }, 2 },     { 3, { 3, 2, 2 }, 1 }, { 4, { 2, 2, 2, 2 }, 2 }, { 2, { 16, 2 }, 1 },
    { 2, { 8, 8 }, 1 },        { 3, { 4, 4, 4 }, 1 }, { 2, { 2, 31 }, 1 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], UNROLLED_RANKS = 12 };

static int ranks_of(const struct hkt__levels *levels)
{
    int nranks = 1;

    for (int i = 0; i < levels->count; i++)
        nranks *= levels->sizes[i];
    return nranks;
}

static void unroll(struct cases_plan *plan)
{
    for (int rank = 0; rank < plan->nranks; rank++) {
        struct hkt__sched *unrolled = NULL;

        if (hkt__lower_unroll(plan->scheds[rank], 3, 2, &unrolled) != HKT_OK)
            fail_msg("%s %s: %s", hkt_coll_name(plan->algo->info.coll), plan->algo->info.name, hkt_last_error());
        hkt__sched_destroy(plan->scheds[rank]);
        plan->scheds[rank] = unrolled;
    }
}

static void prove(const struct hkt__algo *algo, const struct hkt__levels *levels, int root, bool in_place)
{
    const struct hkt__algo_case c = { ranks_of(levels), 0, root, in_place, levels };
    struct hkt_verify_report report;
    struct cases_plan plan;

    cases_build_case(&plan, algo, &c);
    cases_verify(&plan, "with groups, as built", &report);
    for (int rank = 0; rank < plan.nranks; rank++)
        assert_int_equal(hkt__lower(plan.scheds[rank]), HKT_OK);
    cases_verify(&plan, "with groups, lowered", &report);
    if (plan.nranks <= UNROLLED_RANKS) {
        unroll(&plan);
        cases_verify(&plan, "with groups, 3 slices in 2 instances of scratch", &report);
    }
    cases_free(&plan);
}

static void rows_are_right_for_given_groups(void **state)
{
    int rows = 0;

    (void)state;
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];

        if (!algo->by_groups)
            continue;
        rows++;
        for (int s = 0; s < SHAPES; s++) {
            const int nranks = ranks_of(&shapes[s]), step = nranks <= 16 ? 1 : nranks / 3;

            for (int in_place = 0; in_place < 2; in_place++)
                for (int root = 0; root < (cases_is_rooted(algo) ? nranks : 1); root += step)
                    prove(algo, &shapes[s], root, in_place != 0);
        }
    }
    assert_int_equal(rows, 13);
}

/* Chunks that the busiest rank sends beyond its group of `inner` ranks, and messages. */
static void count_outside(const struct cases_plan *plan, int inner, int64_t *out_chunks, int64_t *out_messages)
{
    *out_chunks = *out_messages = 0;
    for (int rank = 0; rank < plan->nranks; rank++) {
        int64_t chunks = 0, messages = 0;

        for (int i = 0; i < plan->scheds[rank]->nsteps; i++) {
            const struct hkt__step *step = &plan->scheds[rank]->steps[i];
            const bool sends = step->kind == HKT__SEND || step->kind == HKT__SIGNAL;

            if (!sends || step->peer / inner == rank / inner)
                continue;
            messages++;
            if (step->kind == HKT__SEND)
                chunks += plan->scheds[rank]->args[step->arg_first].x.count;
        }
        *out_chunks = chunks > *out_chunks ? chunks : *out_chunks;
        *out_messages = messages > *out_messages ? messages : *out_messages;
    }
}

/* 4 ranks per host, 3 hosts: what leaves a host, in chunks (n is 12, but 1 where whole vectors travel) and messages. */
static void little_leaves_a_group(void **state)
{
    static const struct hkt__levels levels = { 2, { 4, 3 }, 1 };
    static const struct {
        enum hkt_coll coll;
        const char *name;
        int chunks, messages;
    } promises[] = {
        { HKT_ALL_REDUCE, "hierarchical", 4, 4 },     /* 2 (3-1)/3 of the n/4 that is each rank's */
        { HKT_ALL_REDUCE, "leaders", 2, 2 }, /* whole vectors: to the other survivor, and to the leader that stands aside */
        { HKT_REDUCE_SCATTER, "hierarchical", 2, 2 }, /* (3-1)/3 n/4 */
        { HKT_ALL_GATHER, "hierarchical", 2, 2 },
        { HKT_ALL_GATHER, "leaders", 8, 2 }, /* what two hosts have */
        { HKT_REDUCE_SCATTER_V, "hierarchical", 2, 2 },
        { HKT_ALL_GATHER_V, "hierarchical", 2, 2 },
        { HKT_BROADCAST, "hierarchical", 2, 2 }, /* the vector to both other hosts */
        { HKT_REDUCE, "hierarchical", 1, 1 },
        { HKT_GATHER, "hierarchical", 4, 1 }, /* what its host has */
        { HKT_SCATTER, "hierarchical", 8, 2 },
        { HKT_ALL_TO_ALL, "hierarchical", 8, 2 }, /* every block for another host must leave, in a message each */
        { HKT_BARRIER, "hierarchical", 0, 2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof promises / sizeof promises[0]; i++) {
        const struct hkt__algo *algo = hkt__algo_find(promises[i].coll, promises[i].name);
        const struct hkt__algo_case c = { 12, 0, 0, false, &levels };
        int64_t chunks, messages;
        struct cases_plan plan;

        assert_non_null(algo);
        cases_build_case(&plan, algo, &c);
        count_outside(&plan, 4, &chunks, &messages);
        if (chunks != promises[i].chunks || messages != promises[i].messages)
            fail_msg("%s %s: %d chunks in %d messages leave a group", hkt_coll_name(algo->info.coll), algo->info.name,
                     (int)chunks, (int)messages);
        cases_free(&plan);
    }
}

static void groups_that_cannot_be_are_refused(void **state)
{
    static const struct {
        struct hkt__levels levels;
        int nranks;
        const char *word;
    } cases[] = {
        { { 2, { 4, 2 }, 0 }, 12, "multiply to 12" },
        { { 2, { 4, 4 }, 0 }, 8, "multiply to 8" },
        { { 2, { 5, 1 }, 0 }, 5, "groups of 1" },
        { { 3, { 4, -1, -2 }, 0 }, 8, "groups of -1" },
        { { 0, { 0 }, 0 }, 8, "0 levels" },
        { { HKT__LEVELS_MAX + 1, { 2, 2 }, 0 }, 4, "17 levels" },
        { { 2, { 65536, 65536 }, 0 }, 8, "groups of 65536" },
    };
    const struct hkt__algo *algo =
        hkt__algo_find(HKT_BARRIER, "dissemination"); /* minds no groups, but sees nonsense */
    struct hkt__sched *sched = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct hkt__algo_case c = { cases[i].nranks, 0, 0, false, &cases[i].levels };

        assert_int_equal(hkt__algo_build_case(algo, &c, &sched), HKT_ERR_INVALID);
        if (strstr(hkt_last_error(), cases[i].word) == NULL)
            fail_msg("no \"%s\" in: %s", cases[i].word, hkt_last_error());
        assert_null(sched);
    }
    assert_int_equal(hkt__algo_build(hkt__algo_find(HKT_ALL_REDUCE, "hierarchical"), 13, 0, 0, false, &sched),
                     HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "no prime"));
}

static void default_levels_make_all_ranks(void **state)
{
    (void)state;
    for (int p = 1; p <= HKT_RANKS_MAX; p += p < 2000 ? 1 : 997) {
        const struct hkt__levels levels = hkt__levels_default(p);

        assert_int_equal(hkt__levels_check(&levels, p), HKT_OK);
        for (int i = 0; i < levels.count; i++) {
            const struct hkt__level level = hkt__level(&levels, i, p - 1);

            assert_int_equal(level.at, level.size - 1); /* the last rank is the last of its groups */
            assert_int_equal(hkt__level_member(&level, p - 1, level.at), p - 1);
        }
    }
    const struct hkt__levels many = hkt__levels_default(65536), two = hkt__levels_default(12);

    assert_int_equal(many.count, 8);
    assert_int_equal(two.count, 2);
    assert_int_equal(two.sizes[0], 3);
    assert_int_equal(two.sizes[1], 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_levels_make_all_ranks),
        cmocka_unit_test(groups_that_cannot_be_are_refused),
        cmocka_unit_test(little_leaves_a_group),
        cmocka_unit_test(rows_are_right_for_given_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
