/* What could break: the layer's failure text loses hocket's own, or leaks from one thread to another; an allocation
 * overflows unseen, is not zeroed or not aligned. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/hocket.h"
#include "hocket/parallel.h"
#include "parallel/alloc.h"
#include "parallel/fail.h"

static void a_text_is_kept(void **state)
{
    (void)state;
    assert_int_equal(hkt__parallel_fail(HKT_ERR_INVALID, "%d heads", 30), HKT_ERR_INVALID);
    assert_string_equal(hkt_parallel_last_error(), "30 heads");
}

static void failures_of_hocket_are_quoted(void **state)
{
    struct hkt_topo *topo = NULL;
    char want[HKT__PARALLEL_TEXT_MAX];
    const enum hkt_status status = hkt_topo_synthetic("nonsense", &topo);

    (void)state;
    assert_int_equal(status, HKT_ERR_INVALID);
    assert_int_equal(hkt__parallel_pass(status, "the machine"), status);
    snprintf(want, sizeof want, "the machine: %s", hkt_last_error());
    assert_string_equal(hkt_parallel_last_error(), want);
    assert_non_null(strstr(want, "nonsense"));
}

static void long_texts_are_cut(void **state)
{
    static char text[2 * HKT__PARALLEL_TEXT_MAX];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    hkt__parallel_fail(HKT_ERR_INVALID, "%s", text);
    assert_int_equal(strlen(hkt_parallel_last_error()), HKT__PARALLEL_TEXT_MAX - 1);
}

static void *fail_elsewhere(void *arg)
{
    *(size_t *)arg = strlen(hkt_parallel_last_error());
    hkt__parallel_fail(HKT_ERR_INVALID, "elsewhere");
    return NULL;
}

static void texts_are_per_thread(void **state)
{
    pthread_t thread;
    size_t length = 1;

    (void)state;
    hkt__parallel_fail(HKT_ERR_INVALID, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &length), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(length, 0);
    assert_string_equal(hkt_parallel_last_error(), "here");
}

static void memory_is_zeroed_aligned_counted_and_can_fail(void **state)
{
    const uint64_t before = hkt__parallel_alloc_count();
    unsigned char *bytes = hkt__parallel_calloc(7, 13);

    (void)state;
    assert_non_null(bytes);
    assert_int_equal((uintptr_t)bytes % HKT__PARALLEL_ALIGN, 0);
    for (int i = 0; i < 7 * 13; i++)
        assert_int_equal(bytes[i], 0);
    hkt__parallel_free(bytes);
    bytes = hkt__parallel_calloc(0, 8);
    assert_non_null(bytes);
    hkt__parallel_free(bytes);
    hkt__parallel_free(NULL);
    assert_null(hkt__parallel_calloc(SIZE_MAX, 2));
    assert_null(hkt__parallel_calloc(SIZE_MAX - 5, 1));
    assert_int_equal(hkt__parallel_alloc_count() - before, 4);

    hkt__parallel_alloc_fail_at(2);
    void *first = hkt__parallel_calloc(1, 1), *second = hkt__parallel_calloc(1, 1), *third = hkt__parallel_calloc(1, 1);

    assert_non_null(first);
    assert_null(second);
    assert_non_null(third);
    hkt__parallel_free(first);
    hkt__parallel_free(third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_kept),
        cmocka_unit_test(failures_of_hocket_are_quoted),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(texts_are_per_thread),
        cmocka_unit_test(memory_is_zeroed_aligned_counted_and_can_fail),
    };

    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
