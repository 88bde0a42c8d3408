/* What could break: bytes counted into the wrong class or not taken out; a peak that misses the highest point; reuse that hands
 * out a block twice, keeps more than allowed or loses blocks; alignment; what stays at the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "numbers.h"
#include "parallel/fail.h"
#include "parallel/memory.h"

static void classes_are_counted(void **state)
{
    struct hkt__memory memory;
    void *a, *b, *c;

    (void)state;
    hkt__memory_init(&memory, 0);
    assert_int_equal(hkt__memory_zalloc(&memory, HKT__MEMORY_PARAM, 1000, &a), HKT_OK);
    assert_int_equal(hkt__memory_alloc(&memory, HKT__MEMORY_GRAD, 300, &b), HKT_OK);
    assert_int_equal((uintptr_t)a % HKT__MEMORY_ALIGN, 0);
    assert_int_equal((uintptr_t)b % HKT__MEMORY_ALIGN, 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(((char *)a)[i], 0);
    hkt__memory_free(&memory, a);
    assert_int_equal(hkt__memory_alloc(&memory, HKT__MEMORY_GRAD, 50, &c), HKT_OK);
    assert_int_equal(memory.used[HKT__MEMORY_PARAM], 0);
    assert_int_equal(memory.peak[HKT__MEMORY_PARAM], 1000);
    assert_int_equal(memory.used[HKT__MEMORY_GRAD], 350);
    assert_int_equal(memory.largest[HKT__MEMORY_GRAD], 300);
    assert_int_equal(memory.used_all, 350);
    assert_int_equal(memory.peak_all, 1300); /* not 1350, the sum of the peaks */
    hkt__memory_mark(&memory);
    assert_int_equal(memory.peak[HKT__MEMORY_PARAM], 0);
    assert_int_equal(memory.peak_all, 350);
    hkt__memory_free(&memory, NULL);
    hkt__memory_free(&memory, b);
    assert_int_equal(hkt__memory_fini(&memory), HKT_ERR_BUG);
    assert_non_null(strstr(hkt__parallel_error(), "class grad: 50 bytes"));
    hkt__memory_free(&memory, c);
    assert_int_equal(hkt__memory_fini(&memory), HKT_OK);
}

/* A thousand random steps with three hundred sizes, more than chains, against a plain list of what is live. */
static void reuse_hands_out_each_block_once(void **state)
{
    enum { LIVE = 60 };
    struct hkt__memory memory;
    unsigned char *live[LIVE] = { 0 };
    uint64_t bytes[LIVE] = { 0 }, sum = 0;

    (void)state;
    hkt__memory_init(&memory, 1u << 20);
    for (int step = 0; step < 20000; step++) {
        int i = (int)((number() + 1) * LIVE / 2);

        if (live[i] != NULL) {
            for (uint64_t k = 0; k < bytes[i]; k += 61)
                assert_int_equal(live[i][k], i);
            sum -= bytes[i];
            hkt__memory_free(&memory, live[i]);
            live[i] = NULL;
        } else {
            void *data;

            bytes[i] = (uint64_t)((number() + 1) * 150) * 64 + (uint64_t)i;
            assert_int_equal(hkt__memory_alloc(&memory, HKT__MEMORY_ACTIVATION, bytes[i], &data), HKT_OK);
            live[i] = data;
            memset(data, i, bytes[i]);
            sum += bytes[i];
        }
        assert_int_equal(memory.used[HKT__MEMORY_ACTIVATION], sum);
        assert_true(memory.kept <= memory.kept_max);
    }
    assert_true(memory.calls < 6000); /* of about 10000 requests */
    for (int i = 0; i < LIVE; i++)
        hkt__memory_free(&memory, live[i]);
    assert_int_equal(hkt__memory_fini(&memory), HKT_OK);
    assert_int_equal(memory.kept, 0);
}

/* A step that asks for the same sizes as the last one asks the system for nothing. */
static void steady_state_asks_for_nothing(void **state)
{
    struct hkt__memory memory;
    void *data[5];
    uint64_t calls = 0;

    (void)state;
    hkt__memory_init(&memory, 1u << 24);
    for (int step = 0; step < 4; step++) {
        for (uint64_t i = 0; i < 5; i++)
            assert_int_equal(hkt__memory_alloc(&memory, HKT__MEMORY_BUFFER, (i / 2 + 1) * 10000, &data[i]), HKT_OK);
        for (int i = 0; i < 5; i++)
            hkt__memory_free(&memory, data[i]);
        if (step == 0)
            calls = memory.calls;
        assert_int_equal(memory.calls, calls);
    }
    assert_int_equal(hkt__memory_fini(&memory), HKT_OK);
}

static void failure_names_class_and_bytes(void **state)
{
    struct hkt__memory memory;
    void *data = &memory;

    (void)state;
    hkt__memory_init(&memory, 0);
    memory.fail_at = 1;
    assert_int_equal(hkt__memory_alloc(&memory, HKT__MEMORY_OPTIMIZER, 77, &data), HKT_ERR_NOMEM);
    assert_ptr_equal(data, &memory);
    assert_non_null(strstr(hkt__parallel_error(), "77 bytes of class optimizer"));
    assert_int_equal(hkt__memory_alloc(&memory, HKT__MEMORY_OPTIMIZER, UINT64_MAX - 10, &data), HKT_ERR_NOMEM);
    assert_int_equal(memory.used_all, 0);
    assert_int_equal(hkt__memory_fini(&memory), HKT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_counted),           cmocka_unit_test(reuse_hands_out_each_block_once),
        cmocka_unit_test(steady_state_asks_for_nothing), cmocka_unit_test(failure_names_class_and_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
