/* What could break: an algorithm is wrong for some number of ranks, some root, or in place; a lowering pass or slicing
 * breaks one that was right; the costs in the registry are not what the schedule does; a row promises what its builder
 * refuses; a builder leaks or misreports when memory runs out. Every row is proved for every p up to 64 here; larger p
 * are in test_registry_large.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "registry_cases.h"
#include "sched/lower.h"

enum { RANKS_ALL = 64, RANKS_SMALL = 12, RANKS_UNROLL = 9, RANKS_RADIX = 17 };

static int ranks_all(void)
{
    return getenv("HOCKET_TEST_SMALL") != NULL ? RANKS_SMALL : RANKS_ALL;
}

/* Roots looked at: all on few ranks, else the first, the second and the last. */
static int root_count(const struct hkt__algo *algo, int nranks)
{
    return !cases_is_rooted(algo) ? 1 : nranks <= 8 ? nranks : 3;
}

static int root_at(int nranks, int i)
{
    return nranks > 8 && i == 2 ? nranks - 1 : i;
}

typedef void case_fn(const struct hkt__algo *algo, int nranks, int root, bool in_place);

/* Calls f for every case of every row with nranks_min..nranks_max ranks. */
static void for_cases(int nranks_min, int nranks_max, case_fn *f)
{
    for (int i = 0; i < hkt__algo_count; i++)
        for (int nranks = nranks_min; nranks <= nranks_max; nranks++)
            for (int in_place = 0; in_place < 2; in_place++)
                for (int k = 0; k < root_count(&hkt__algos[i], nranks); k++)
                    if (cases_serves(&hkt__algos[i], nranks, in_place != 0))
                        f(&hkt__algos[i], nranks, root_at(nranks, k), in_place != 0);
}

/* What one rank does, in chunks and messages. */
struct traffic {
    int64_t sent, received, direct, messages_out, messages_in;
};

static void count_step(const struct hkt__sched *sched, const struct hkt__step *step, struct traffic *traffic)
{
    const struct hkt__arg *args = sched->args + step->arg_first;

    traffic->messages_out += step->kind == HKT__SEND || step->kind == HKT__SIGNAL;
    traffic->messages_in += step->kind == HKT__RECV || step->kind == HKT__RECV_REDUCE || step->kind == HKT__WAIT;
    if (step->kind == HKT__SEND)
        traffic->sent += args[0].x.count;
    if (step->kind == HKT__RECV || step->kind == HKT__RECV_REDUCE)
        traffic->received += step->dst.count;
    for (int k = 0; k < step->arg_count; k++)
        if (args[k].rank != sched->rank)
            traffic->direct += args[k].x.count;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool is_power(int nranks, int radix)
{
    while (nranks % radix == 0)
        nranks /= radix;
    return nranks == 1;
}

/* Rounds are a bound, met by powers of the radix; messages and volume are exact. */
static void compare_costs(const struct cases_plan *plan, const struct hkt_verify_report *report)
{
    const struct hkt__algo *algo = plan->algo;
    const enum hkt_coll coll = algo->info.coll;
    const int nranks = plan->nranks, radix = algo->radix > 0 ? algo->radix : 2;
    const bool is_one_block = coll == HKT_ALL_REDUCE || coll == HKT_BROADCAST || coll == HKT_REDUCE;
    int64_t messages = 0, chunks = 0;

    for (int rank = 0; rank < nranks; rank++) {
        struct traffic traffic = { 0 };

        for (int i = 0; i < plan->scheds[rank]->nsteps; i++)
            count_step(plan->scheds[rank], &plan->scheds[rank]->steps[i], &traffic);
        messages = larger(messages, larger(traffic.messages_out, traffic.messages_in));
        chunks = larger(chunks, larger(traffic.direct, larger(traffic.sent, traffic.received)));
    }
    const int64_t total = (int64_t)plan->scheds[0]->cuts * (is_one_block ? 1 : nranks);
    const double rounds = algo->rounds(nranks), volume = algo->volume(nranks) * (double)total;

    if ((double)report->rounds > rounds || (is_power(nranks, radix) && (double)report->rounds != rounds))
        fail_msg("%s %s, %d ranks: %d rounds, the registry says %g", hkt_coll_name(coll), algo->info.name, nranks,
                 report->rounds, rounds);
    if ((double)messages != algo->messages(nranks))
        fail_msg("%s %s, %d ranks: %d messages, the registry says %g", hkt_coll_name(coll), algo->info.name, nranks,
                 (int)messages, algo->messages(nranks));
    if ((double)chunks - volume > 1e-6 || volume - (double)chunks > 1e-6)
        fail_msg("%s %s, %d ranks: %d of %d chunks, the registry says %g", hkt_coll_name(coll), algo->info.name, nranks,
                 (int)chunks, (int)total, volume);
}

static void prove_raw_and_lowered(const struct hkt__algo *algo, int nranks, int root, bool in_place)
{
    struct hkt_verify_report raw, lowered;
    struct cases_plan plan;

    cases_build(&plan, algo, nranks, root, in_place);
    cases_verify(&plan, "as built", &raw);
    if (!in_place) /* else it may need more: an all-to-all in place takes turns */
        compare_costs(&plan, &raw);
    for (int rank = 0; rank < nranks; rank++)
        assert_int_equal(hkt__lower(plan.scheds[rank]), HKT_OK);
    cases_verify(&plan, "lowered", &lowered);
    assert_int_equal(lowered.messages, raw.messages);
    assert_int_equal(lowered.rounds, raw.rounds);
    cases_free(&plan);
}

static void every_row_is_right_and_costs_what_it_says(void **state)
{
    (void)state;
    for_cases(1, ranks_all(), prove_raw_and_lowered);
}

static void prove_unrolled(const struct hkt__algo *algo, int nranks, int root, bool in_place)
{
    struct hkt_verify_report report;
    struct cases_plan plan;

    cases_build(&plan, algo, nranks, root, in_place);
    for (int rank = 0; rank < nranks; rank++) {
        struct hkt__sched *unrolled = NULL;

        assert_int_equal(hkt__lower(plan.scheds[rank]), HKT_OK);
        if (hkt__lower_unroll(plan.scheds[rank], 3, 2, &unrolled) != HKT_OK)
            fail_msg("%s %s, %d ranks: %s", hkt_coll_name(algo->info.coll), algo->info.name, nranks, hkt_last_error());
        hkt__sched_destroy(plan.scheds[rank]);
        plan.scheds[rank] = unrolled;
    }
    cases_verify(&plan, "3 slices in 2 instances of scratch", &report);
    cases_free(&plan);
}

static void every_row_is_right_in_slices(void **state)
{
    (void)state;
    for_cases(1, RANKS_UNROLL, prove_unrolled);
}

static void rows_are_complete_and_in_order(void **state)
{
    (void)state;
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *row = &hkt__algos[i];
        const char *const texts[] = { row->info.name, row->info.summary, row->info.steps, row->info.bytes,
                                      row->info.source };

        for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
            assert_non_null(texts[k]);
            assert_true(texts[k][0] != '\0' && strchr(texts[k], '\n') == NULL && strchr(texts[k], '|') == NULL);
        }
        assert_non_null(row->info.restriction);
        assert_true(row->build != NULL && row->rounds != NULL && row->messages != NULL && row->volume != NULL);
        assert_true(row->restriction == NULL || row->info.restriction[0] != '\0');
        assert_true(!row->user_direct || row->info.needs_direct);
        assert_true(i == 0 || hkt__algos[i - 1].info.coll <= row->info.coll);
        assert_ptr_equal(hkt__algo_find(row->info.coll, row->info.name), row); /* and so no name twice */
    }
}

/* The choice must never come up empty: each collective has a row that needs neither shared memory nor a special p, in
 * place where that exists. */
static void every_collective_has_a_row_for_every_case(void **state)
{
    (void)state;
    for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
        int nservants = 0;

        for (int i = 0; i < hkt__algo_count; i++)
            nservants += (int)hkt__algos[i].info.coll == coll && !hkt__algos[i].info.needs_direct
                         && (hkt__algos[i].restriction == NULL || coll == HKT_ALL_TO_ALL_V);
        if (nservants == 0)
            fail_msg("%s has no row that serves every case", hkt_coll_name((enum hkt_coll)coll));
    }
}

/* The rows are for few radices; their builders serve all. */
static void prove_radices(const struct hkt__algo *row, int nranks, int root, bool in_place)
{
    struct hkt__algo algo = *row;

    algo.restriction = NULL;
    for (algo.radix = 2; row->radix == 2 && algo.radix <= nranks + 1; algo.radix++) {
        struct hkt_verify_report report;
        struct cases_plan plan;

        cases_build(&plan, &algo, nranks, root, in_place);
        cases_verify(&plan, "of another radix", &report);
        cases_free(&plan);
    }
}

static void builders_serve_every_radix(void **state)
{
    (void)state;
    for_cases(2, RANKS_RADIX, prove_radices);
}

/* needs_direct must hold exactly for the rows whose schedules touch peers' memory. */
static void check_direct(const struct hkt__algo *algo, int nranks, int root, bool in_place)
{
    struct cases_plan plan;
    bool touches_scratch = false, touches_user = false;

    cases_build(&plan, algo, nranks, root, in_place);
    for (int rank = 0; rank < nranks; rank++)
        for (int i = 0; i < plan.scheds[rank]->nargs; i++) {
            const struct hkt__arg *arg = &plan.scheds[rank]->args[i];

            touches_scratch |= arg->rank != rank && arg->x.buf == HKT__SCRATCH;
            touches_user |= arg->rank != rank && arg->x.buf != HKT__SCRATCH;
        }
    if ((touches_scratch || touches_user) != (algo->info.needs_direct != 0) || touches_user != algo->user_direct)
        fail_msg("%s %s: needs_direct or user_direct does not fit the schedule", hkt_coll_name(algo->info.coll),
                 algo->info.name);
    cases_free(&plan);
}

static void direct_flags_fit_the_schedules(void **state)
{
    (void)state;
    for_cases(4, 4, check_direct);
}

static void refusals_name_the_case(void **state)
{
    struct hkt__sched *sched = NULL;
    const struct hkt__algo *halving = hkt__algo_find(HKT_REDUCE_SCATTER, "recursive_halving");
    const struct hkt__algo *one_shot = hkt__algo_find(HKT_ALL_REDUCE, "one_shot_user");

    (void)state;
    assert_non_null(halving);
    assert_int_equal(hkt__algo_build(halving, 6, 0, 0, false, &sched), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "power-of-two"));
    assert_non_null(one_shot);
    assert_int_equal(hkt__algo_build(one_shot, 4, 0, 0, true, &sched), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "not in place"));
    assert_int_equal(hkt__algo_build(one_shot, 4, 4, 0, false, &sched), HKT_ERR_INVALID);
    assert_null(sched);

    assert_ptr_equal(hkt__algo_find(HKT_ALL_TO_ALL, "bruck:2"), hkt__algo_find(HKT_ALL_TO_ALL, "bruck"));
    assert_ptr_equal(hkt__algo_find(HKT_ALL_REDUCE, "circulant:2"), hkt__algo_find(HKT_ALL_REDUCE, "circulant"));
    assert_null(hkt__algo_find(HKT_ALL_TO_ALL, "bruck:"));
    assert_null(hkt__algo_find(HKT_ALL_TO_ALL, "bruck:4:2"));
    assert_null(hkt__algo_find(HKT_ALL_REDUCE, "ring:2"));
    assert_null(hkt__algo_find(HKT_GATHER, "rign"));
    assert_non_null(strstr(hkt_last_error(), "binomial, linear"));
    assert_null(hkt__algo_find(HKT_GATHER, NULL));
    assert_null(hkt__algo_find(HKT_SEND_RECV, "ring"));
}

/* Every allocation of every builder fails once. */
static void fail_allocations(const struct hkt__algo *algo, int nranks, int root, bool in_place)
{
    enum hkt_status rc = HKT_ERR_NOMEM;
    int64_t k = 0;

    while (rc != HKT_OK) {
        struct hkt__sched *sched = NULL;

        assert_in_range(++k, 1, 1000);
        hkt__mem_fail_at(k);
        rc = hkt__algo_build(algo, nranks, nranks - 1, root, in_place, &sched);
        hkt__mem_fail_at(0);
        assert_true(rc == HKT_OK || rc == HKT_ERR_NOMEM);
        assert_true((sched != NULL) == (rc == HKT_OK));
        hkt__sched_destroy(sched);
    }
}

static void builders_survive_every_failing_allocation(void **state)
{
    (void)state;
    for_cases(4, 5, fail_allocations);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_complete_and_in_order),
        cmocka_unit_test(every_collective_has_a_row_for_every_case),
        cmocka_unit_test(direct_flags_fit_the_schedules),
        cmocka_unit_test(refusals_name_the_case),
        cmocka_unit_test(builders_survive_every_failing_allocation),
        cmocka_unit_test(every_row_is_right_and_costs_what_it_says),
        cmocka_unit_test(every_row_is_right_in_slices),
        cmocka_unit_test(builders_serve_every_radix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
