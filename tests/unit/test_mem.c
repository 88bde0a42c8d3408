/* What could break: a product that wraps around, memory that is not zero or not aligned, a failure hook that fails the
 * wrong allocation or forever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/mem.h"

static void assert_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(bytes[i], 0);
}

static void calloc_zeroes(void **state)
{
    unsigned char *bytes = hkt__calloc(100, 7);

    (void)state;
    assert_non_null(bytes);
    assert_zero(bytes, 700);
    hkt__free(bytes);
}

static void calloc_line_zeroes_and_aligns(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < 300; bytes += 37) {
        unsigned char *memory = hkt__calloc_line(1, bytes);

        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % HKT__LINE, 0);
        assert_zero(memory, bytes);
        hkt__free(memory);
    }
}

static void zero_sizes_give_memory(void **state)
{
    void *a = hkt__calloc(0, 8), *b = hkt__calloc(8, 0), *c = hkt__calloc_line(0, 0), *d = hkt__realloc(NULL, 0, 0);

    (void)state;
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    assert_non_null(d);
    hkt__free(a);
    hkt__free(b);
    hkt__free(c);
    hkt__free(d);
}

static void overflow_is_null(void **state)
{
    /* volatile: else the compiler sees the product and warns about it. */
    volatile size_t half = SIZE_MAX / 2 + 1;

    (void)state;
    assert_null(hkt__calloc(half, 2));
    assert_null(hkt__calloc_line(half, 2));
    assert_null(hkt__calloc_line(half + (half - 2), 1));
    assert_null(hkt__realloc(NULL, half, 2));
}

static void realloc_failure_keeps_the_old_block(void **state)
{
    int *numbers = hkt__calloc(4, sizeof *numbers);

    (void)state;
    assert_non_null(numbers);
    numbers[3] = 42;
    hkt__mem_fail_at(1);
    assert_null(hkt__realloc(numbers, 8, sizeof *numbers));
    assert_int_equal(numbers[3], 42);
    int *more = hkt__realloc(numbers, 8, sizeof *numbers);

    assert_non_null(more);
    assert_int_equal(more[3], 42);
    hkt__free(more);
}

static void fail_at_fails_exactly_the_kth(void **state)
{
    (void)state;
    for (int64_t k = 1; k <= 5; k++) {
        hkt__mem_fail_at(k);
        for (int64_t i = 1; i <= 7; i++) {
            void *memory = i % 2 != 0 ? hkt__calloc(1, 1) : hkt__strdup("text");

            if (i == k)
                assert_null(memory);
            else
                assert_non_null(memory);
            hkt__free(memory);
        }
    }
    hkt__mem_fail_at(0);
}

static void count_counts_allocations(void **state)
{
    const uint64_t before = hkt__mem_count();
    void *a = hkt__calloc(1, 1), *b = hkt__calloc_line(1, 1);
    char *c = hkt__strdup("c");

    (void)state;
    hkt__free(a);
    hkt__free(b);
    hkt__free(c);
    assert_int_equal(hkt__mem_count() - before, 3);
}

static void pages_are_zeroed_counted_and_given_back(void **state)
{
    const size_t bytes = (size_t)1 << 40; /* more than there is memory: pages are taken when touched */
    const uint64_t before = hkt__mem_count();
    unsigned char *pages = hkt__pages_alloc(12345), *many = hkt__pages_alloc(bytes);

    (void)state;
    assert_non_null(pages);
    assert_int_equal((uintptr_t)pages % HKT__LINE, 0);
    for (size_t i = 0; i < 12345; i++)
        assert_int_equal(pages[i], 0);
    pages[12344] = 1;
    if (many != NULL) /* some systems do not promise what they do not have */
        assert_int_equal(many[bytes - 1], 0);
    hkt__pages_free(pages, 12345);
    hkt__pages_free(many, bytes);
    hkt__pages_free(NULL, 12345);
    assert_int_equal(hkt__mem_count() - before, 2);
    assert_null(hkt__pages_alloc(0));
    hkt__mem_fail_at(1);
    assert_null(hkt__pages_alloc(1));
    hkt__mem_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calloc_zeroes),
        cmocka_unit_test(calloc_line_zeroes_and_aligns),
        cmocka_unit_test(zero_sizes_give_memory),
        cmocka_unit_test(overflow_is_null),
        cmocka_unit_test(realloc_failure_keeps_the_old_block),
        cmocka_unit_test(fail_at_fails_exactly_the_kth),
        cmocka_unit_test(count_counts_allocations),
        cmocka_unit_test(pages_are_zeroed_counted_and_given_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
