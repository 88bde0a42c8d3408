/* What could break: the cipher's rounds; numbers that depend on the shard, on its order or on the type; a stream that repeats
 * at another site or seed; normal numbers whose logarithm or circle is wrong somewhere; dropout that drops another share, or
 * whose backward drops other elements. Known answers: the vectors of Random123 (kat_vectors, philox4x32 10). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "numbers.h"
#include "parallel/math_ops.h"

static void philox_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } rows[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t out[4];

        hkt__philox4x32(rows[i].counter, rows[i].key, out);
        assert_memory_equal(out, rows[i].out, sizeof out);
    }
}

static void seed_site_and_index_all_count(void **state)
{
    const struct hkt__rng rng = { 7, hkt__rng_site(1, 2, 3) };
    const uint64_t sites[] = { hkt__rng_site(2, 2, 3), hkt__rng_site(1, 3, 3), hkt__rng_site(1, 2, 4), hkt__rng_site(1, 2, 3) ^ 1 };

    (void)state;
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++)
        assert_int_not_equal(hkt__rng_bits(&rng, 5), hkt__rng_bits(&(struct hkt__rng){ 7, sites[i] }, 5));
    assert_int_not_equal(hkt__rng_bits(&rng, 5), hkt__rng_bits(&(struct hkt__rng){ 7 + ((uint64_t)1 << 32), rng.site }, 5));
    assert_int_not_equal(hkt__rng_bits(&rng, 5), hkt__rng_bits(&rng, 5 + ((uint64_t)1 << 34)));
}

/* The four numbers of a block against Box and Muller by libm, at words that reach every octant and both ends. */
static void normal_equals_libm(void **state)
{
    const struct hkt__rng rng = { 3, 9 };
    double worst = 0;

    (void)state;
    for (uint64_t block = 0; block < 20000; block++) {
        uint32_t word[4];
        double four[4], want[4];

        hkt__rng_block(&rng, block, word);
        hkt__rng_normal_block(&rng, block, four);
        for (int i = 0; i < 4; i += 2) {
            double radius = sqrt(-2 * log(((double)word[i] + 0.5) * 0x1p-32));
            double angle = 2 * 3.14159265358979323846 * ((double)word[i + 1] * 0x1p-32);

            want[i] = radius * cos(angle);
            want[i + 1] = radius * sin(angle);
        }
        for (int i = 0; i < 4; i++) {
            worst = fabs(four[i] - want[i]) > worst ? fabs(four[i] - want[i]) : worst;
            assert_true(four[i] == hkt__rng_normal(&rng, 4 * block + (uint64_t)i));
        }
    }
    assert_true(worst < 8e-15); /* |x| < 7; libm's angle alone is rounded by 4e-16 * 2 pi */
}

/* Bounds at five standard errors of the moments of n numbers. */
static void normal_moments(void **state)
{
    const struct hkt__rng rng = { 1, 1 };
    const int n = 200000;
    double sum = 0, square = 0, cube = 0, fourth = 0;

    (void)state;
    for (int i = 0; i < n; i++) {
        double x = hkt__rng_normal(&rng, (uint64_t)i);

        sum += x;
        square += x * x;
        cube += x * x * x;
        fourth += x * x * x * x;
    }
    assert_true(fabs(sum / n) < 5 / sqrt(n));
    assert_true(fabs(square / n - 1) < 5 * sqrt(2.0 / n));
    assert_true(fabs(cube / n) < 5 * sqrt(15.0 / n));
    assert_true(fabs(fourth / n - 3) < 5 * sqrt(96.0 / n));
}

/* --- Layout ------------------------------------------------------------------------------------------------------------- */

#define ROWS 7
#define COLS 13

static const int64_t cuts[] = { 0, 1, 6, 13 };
static const int64_t order[ROWS] = { 5, 0, 6, 2, 1, 4, 3 };

/* The whole matrix put together from three column shards whose rows come in another order. */
static void initial_numbers_do_not_depend_on_layout(void **state)
{
    const struct hkt__rng rng = { 42, hkt__rng_site(3, 1, 0) };
    const struct hkt__region whole = { .rows = ROWS, .cols = COLS, .cols_all = COLS };
    enum hkt_dtype types[] = { HKT_F32, HKT_F64, HKT_BF16 };
    double first[ROWS * COLS];

    (void)state;
    for (int t = 0; t < 3; t++) {
        const struct hkt__math_ops *ops = hkt__math_ops_of(types[t]);
        char all[ROWS * COLS * 8], part[ROWS * COLS * 8];

        ops->normal(all, &whole, &rng, 0.02);
        for (int s = 0; s < 3; s++) {
            struct hkt__region shard = { .rows = ROWS, .cols = cuts[s + 1] - cuts[s], .first_col = cuts[s], .row_of = order,
                                         .cols_all = COLS };
            size_t bytes = (size_t)shard.cols * ops->store_bytes;

            ops->normal(part, &shard, &rng, 0.02);
            for (int r = 0; r < ROWS; r++)
                assert_memory_equal(part + (size_t)r * bytes, all + (size_t)(order[r] * COLS + cuts[s]) * ops->store_bytes,
                                    bytes);
        }
        double values[ROWS * COLS];

        ops->to_f64(values, all, ROWS * COLS);
        if (types[t] == HKT_F32)
            memcpy(first, values, sizeof first);
        if (types[t] == HKT_F64)
            for (int i = 0; i < ROWS * COLS; i++)
                assert_true((double)(float)values[i] == first[i] && values[i] == 0.02 * hkt__rng_normal(&rng, (uint64_t)i));
    }
}

static void dropout_does_not_depend_on_layout(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F32);
    struct hkt__dropout whole = { .region = { .rows = ROWS, .cols = COLS, .cols_all = COLS }, .rng = { 1, 2 }, .p = 0.3 };
    float x[ROWS * COLS], y[ROWS * COLS], z[ROWS * COLS];
    int dropped = 0;

    (void)state;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(i + 1);
    whole.x = x;
    whole.y = y;
    ops->dropout(&whole);
    for (int i = 0; i < ROWS * COLS; i++) {
        assert_true(y[i] == 0 || y[i] == x[i] * (float)(1 / (1 - 0.3)));
        dropped += y[i] == 0;
    }
    assert_in_range(dropped, 8, 50); /* 27 expected, five deviations of 4.4 */
    for (int s = 0; s < 3; s++) {
        struct hkt__dropout shard = whole;

        shard.region.row_of = order;
        shard.region.first_col = cuts[s];
        shard.region.cols = cuts[s + 1] - cuts[s];
        for (int r = 0; r < ROWS; r++)
            memcpy(z + r * shard.region.cols, x + order[r] * COLS + cuts[s], (size_t)shard.region.cols * sizeof *x);
        shard.x = z;
        shard.y = z;
        ops->dropout(&shard);
        for (int r = 0; r < ROWS; r++)
            assert_memory_equal(z + r * shard.region.cols, y + order[r] * COLS + cuts[s],
                                (size_t)shard.region.cols * sizeof *x);
    }
}

/* Rows longer than are made at a time, from every place within a block, against the numbers one at a time. */
static void dropout_equals_the_stream(void **state)
{
    enum { LONG = 300 };
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F64);
    double x[2 * LONG], y[2 * LONG];

    (void)state;
    for (int i = 0; i < 2 * LONG; i++)
        x[i] = i + 1;
    for (int64_t first = 0; first < 9; first++) {
        struct hkt__dropout t = { .region = { .rows = 2, .cols = LONG, .first_row = (int64_t)1 << 40, .first_col = first,
                                              .cols_all = 1009 },
                                  .rng = { 77, hkt__rng_site(5, 6, 7) }, .p = 0.25, .x = x, .y = y };

        ops->dropout(&t);
        for (int64_t i = 0; i < 2 * LONG; i++) {
            uint64_t index = (((uint64_t)1 << 40) + (uint64_t)(i / LONG)) * 1009 + (uint64_t)(first + i % LONG);
            int is_dropped = hkt__rng_bits(&t.rng, index) < (uint32_t)1 << 30;

            assert_true(y[i] == (is_dropped ? 0 : x[i] * (1 / 0.75)));
        }
    }
}

static void dropout_of_nothing_is_identity(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F64);
    double x[COLS];
    struct hkt__dropout t = { .region = { .rows = 1, .cols = COLS, .cols_all = COLS, .first_row = 1000000007 }, .x = x, .y = x };

    (void)state;
    for (int i = 0; i < COLS; i++)
        x[i] = i + 1;
    ops->dropout(&t);
    for (int i = 0; i < COLS; i++)
        assert_true(x[i] == i + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(seed_site_and_index_all_count),
        cmocka_unit_test(normal_equals_libm),
        cmocka_unit_test(normal_moments),
        cmocka_unit_test(initial_numbers_do_not_depend_on_layout),
        cmocka_unit_test(dropout_does_not_depend_on_layout),
        cmocka_unit_test(dropout_equals_the_stream),
        cmocka_unit_test(dropout_of_nothing_is_identity),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
