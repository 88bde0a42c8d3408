/* What could break: a block handed out twice when uses nest, too small, or lost; a thread that ends leaves its blocks behind
 * (the address sanitizer looks); a second take of the same size allocates again. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/keep.h"
#include "core/mem.h"

static struct hkt__kept take(size_t bytes)
{
    const struct hkt__kept block = hkt__keep_take(HKT__KEEP_BATCH, bytes);

    assert_non_null(block.memory);
    assert_true(block.bytes >= bytes);
    memset(block.memory, 0x5a, block.bytes);
    return block;
}

static void *use(void *arg)
{
    (void)arg;
    hkt__keep_give(HKT__KEEP_BATCH, take(100));
    hkt__keep_give(HKT__KEEP_BATCH, take(5000));
    return NULL;
}

static void blocks_are_kept_by_this_thread(void **state)
{
    (void)state;
    hkt__keep_give(HKT__KEEP_BATCH, take(100));

    /* What fits is kept; what does not replaces it; from then on nothing is allocated. All threads are counted: there are none. */
    const uint64_t before = hkt__mem_count();

    hkt__keep_give(HKT__KEEP_BATCH, take(100));
    hkt__keep_give(HKT__KEEP_BATCH, take(1));
    assert_true(hkt__mem_count() == before);
    hkt__keep_give(HKT__KEEP_BATCH, take(5000));
    assert_true(hkt__mem_count() == before + 1);
    hkt__keep_give(HKT__KEEP_BATCH, take(4999));
    assert_true(hkt__mem_count() == before + 1);
}

static void blocks_are_freed_with_a_thread_that_ends(void **state)
{
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

static void uses_nest(void **state)
{
    struct hkt__kept outer = take(64), inner = take(64);

    (void)state;
    assert_ptr_not_equal(outer.memory, inner.memory);
    assert_true(hkt__keep_grow(&inner, 6000));
    memset(inner.memory, 1, 6000);
    hkt__keep_give(HKT__KEEP_BATCH, inner);
    hkt__keep_give(HKT__KEEP_BATCH, outer); /* the smaller one is freed */
    outer = hkt__keep_take(HKT__KEEP_BATCH, 1);
    assert_true(outer.bytes >= 6000);
    hkt__keep_give(HKT__KEEP_BATCH, outer);
}

static void out_of_memory_loses_nothing(void **state)
{
    struct hkt__kept block;

    (void)state;
    hkt__mem_fail_at(1);
    block = hkt__keep_take(HKT__KEEP_GROUP, 10);
    assert_null(block.memory);
    hkt__keep_give(HKT__KEEP_GROUP, block);
    block = hkt__keep_take(HKT__KEEP_GROUP, 10);
    assert_non_null(block.memory);
    memset(block.memory, 7, 10);
    hkt__mem_fail_at(1);
    assert_false(hkt__keep_grow(&block, 20));
    assert_true(block.bytes == 10 && ((char *)block.memory)[9] == 7);
    hkt__keep_give(HKT__KEEP_GROUP, block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_kept_by_this_thread),
        cmocka_unit_test(blocks_are_freed_with_a_thread_that_ends),
        cmocka_unit_test(uses_nest),
        cmocka_unit_test(out_of_memory_loses_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
