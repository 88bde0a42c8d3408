/* What could break: the calls of hocket/plan.h take numbers and names from outside, so each wrong one must become an
 * error that says so and leave the outputs alone; running out of memory anywhere must be reported and leak nothing (the
 * leak check is the sanitizer's). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "hocket/plan.h"

static const struct hkt_plan_query good = { HKT_ALL_REDUCE, "ring", 4, 0, 0, 0 };

static void rows_are_complete_and_unique(void **state)
{
    const int count = hkt_algo_count();

    (void)state;
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        struct hkt_algo_info info, other;

        assert_int_equal(hkt_algo_get(i, &info), HKT_OK);
        assert_true(info.name[0] != '\0' && info.summary[0] != '\0' && info.restriction != NULL);
        assert_true(info.steps[0] != '\0' && info.bytes[0] != '\0' && info.source[0] != '\0');
        assert_int_equal(hkt_algo_check(info.coll, info.name, 16, 0), HKT_OK);
        for (int k = 0; k < i; k++) {
            assert_int_equal(hkt_algo_get(k, &other), HKT_OK);
            assert_false(other.coll == info.coll && strcmp(other.name, info.name) == 0);
        }
    }
}

static void wrong_arguments_are_refused(void **state)
{
    struct hkt_algo_info info = { .name = "untouched" };

    (void)state;
    assert_int_equal(hkt_algo_get(-1, &info), HKT_ERR_INVALID);
    assert_int_equal(hkt_algo_get(hkt_algo_count(), &info), HKT_ERR_INVALID);
    assert_int_equal(hkt_algo_get(0, NULL), HKT_ERR_INVALID);
    assert_string_equal(info.name, "untouched");
    assert_int_equal(hkt_algo_check(HKT_ALL_REDUCE, "no_such", 4, 0), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "ring")); /* names the ones there are */
    assert_int_equal(hkt_algo_check(HKT_ALL_REDUCE, NULL, 4, 0), HKT_ERR_INVALID);
    assert_int_equal(hkt_algo_check(HKT_COLL_COUNT, "ring", 4, 0), HKT_ERR_INVALID);
    assert_int_equal(hkt_algo_check(HKT_ALL_REDUCE, "ring", 0, 0), HKT_ERR_INVALID);
    assert_int_equal(hkt_algo_check(HKT_ALL_REDUCE, "ring", HKT_RANKS_MAX + 1, 0), HKT_ERR_INVALID);
    assert_int_equal(hkt_algo_check(HKT_ALL_GATHER, "recursive_doubling", 6, 0), HKT_ERR_UNSUPPORTED);
    assert_int_equal(hkt_algo_check(HKT_ALL_GATHER, "recursive_doubling", 8, 0), HKT_OK);
}

static void wrong_queries_are_refused(void **state)
{
    struct hkt_verify_report report = { .nranks = 77 };
    struct hkt_plan_query query = good;

    (void)state;
    assert_int_equal(hkt_plan_verify(NULL, &report), HKT_ERR_INVALID);
    assert_int_equal(hkt_plan_verify(&good, NULL), HKT_ERR_INVALID);
    assert_int_equal(hkt_plan_print(&good, HKT_PLAN_BY_RANK, NULL), HKT_ERR_INVALID);
    assert_int_equal(hkt_plan_print(&good, (enum hkt_plan_format)(HKT_PLAN_JSON + 1), stdout), HKT_ERR_INVALID);
    query.nranks = -1;
    assert_int_equal(hkt_plan_verify(&query, &report), HKT_ERR_INVALID);
    query = (struct hkt_plan_query){ HKT_BROADCAST, "binomial", 4, 4, 0, 0 };
    assert_int_equal(hkt_plan_verify(&query, &report), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "root 4"));
    query.root = -1;
    assert_int_equal(hkt_plan_print(&query, HKT_PLAN_JSON, stdout), HKT_ERR_INVALID);
    assert_int_equal(report.nranks, 77);
    query = good;
    query.root = 9; /* this collective has no root */
    assert_int_equal(hkt_plan_verify(&query, &report), HKT_OK);
}

static void a_plan_is_proved_and_printed(void **state)
{
    struct hkt_verify_report report;
    struct hkt_plan_query query = good;
    FILE *file = tmpfile();

    (void)state;
    assert_non_null(file);
    for (query.lowered = 0; query.lowered < 2; query.lowered++)
        for (query.in_place = 0; query.in_place < 2; query.in_place++) {
            assert_int_equal(hkt_plan_verify(&query, &report), HKT_OK);
            assert_int_equal(report.nranks, 4);
            assert_int_equal(report.exact, 1);
            assert_int_equal(report.rounds, 6);
            assert_int_equal(report.chunks_checked, 16);
            assert_int_equal(report.bytes_chunks_max, 6);
            assert_int_equal(report.same_bits, 1);
            assert_string_equal(report.failure, "");
            for (int format = HKT_PLAN_BY_STEP; format <= HKT_PLAN_JSON; format++)
                assert_int_equal(hkt_plan_print(&query, (enum hkt_plan_format)format, file), HKT_OK);
        }
    assert_true(ftell(file) > 0);
    fclose(file);
}

static void every_failed_allocation_is_reported(void **state)
{
    FILE *file = tmpfile();
    struct hkt_plan_query query = good;

    (void)state;
    assert_non_null(file);
    query.lowered = 1;
    for (int print = 0; print < 2; print++) {
        enum hkt_status rc = HKT_ERR_NOMEM;
        int64_t k = 0;

        while (rc == HKT_ERR_NOMEM) {
            struct hkt_verify_report report = { .nranks = 77 };

            hkt__mem_fail_at(++k);
            rc = print ? hkt_plan_print(&query, HKT_PLAN_BY_STEP, file) : hkt_plan_verify(&query, &report);
            hkt__mem_fail_at(0);
            assert_true(rc == HKT_OK || rc == HKT_ERR_NOMEM);
            assert_true(rc == HKT_OK || report.nranks == 77);
            assert_true(k < 10000);
        }
        assert_true(k > 20);
    }
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_complete_and_unique),        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(wrong_queries_are_refused),           cmocka_unit_test(a_plan_is_proved_and_printed),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
