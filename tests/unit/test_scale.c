/* What could break: integer division that rounds instead of truncating or mishandles a sign or the smallest value;
 * products of small integers that overflow int; small floats divided in their own precision or rounded twice; a
 * lane or tail of a vector version; the instruction set asked for not the one used. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/settings.h"
#include "device/kernels.h"

static const enum hkt_dtype floats[] = {HKT_F16, HKT_BF16, HKT_F32, HKT_F64, HKT_F8E4M3, HKT_F8E5M2};
#define NFLOATS (sizeof floats / sizeof floats[0])

static void use_isa(const char *name)
{
    setenv("HOCKET_ISA", name, 1);
    hkt__settings_reset();
}

static int forget_isa(void **state)
{
    (void)state;
    unsetenv("HOCKET_ISA");
    hkt__settings_reset();
    return 0;
}

/* Every code of a 16-bit lane, or as many of a wider type, spread over its range. */
static void fill(unsigned char *buffer, size_t count, enum hkt_dtype dtype)
{
    const size_t size = hkt_dtype_size(dtype);

    for (size_t i = 0; i < count; ++i) {
        const uint64_t code = size <= 2 ? i : i * UINT64_C(0x9e3779b97f4a7c15) >> (size == 4 ? 32 : 0);

        memcpy(buffer + i * size, &code, size);
    }
}

static void every_instruction_set_scales_like_plain_c(void **state)
{
    static const double factors[] = {1, 2, 3, 7, 65536, 0.1f, -1, 0x1p-20, 0x1p-140f, 0x1.8p100, 0, -0.0, INFINITY, NAN,
                                     1.0009765625, 0.5009765625f, 0x1.0101p-7};
    static unsigned char src[65536 * 8], want[65536 * 8], got[65536 * 8];
    const struct hkt__kernels *c = hkt__kernels_get(HKT__ISA_C);

    (void)state;
    for (size_t n = 0; n < NFLOATS; ++n) {
        const enum hkt_dtype dtype = floats[n];
        const size_t count = hkt_dtype_size(dtype) > 2 ? 4096 : 65536, size = hkt_dtype_size(dtype);

        fill(src, count, dtype);
        for (size_t f = 0; f < sizeof factors / sizeof factors[0]; ++f) {
            for (int is_divide = 0; is_divide <= 1; ++is_divide) {
                (is_divide ? c->divide : c->multiply)[dtype](want, src, count, factors[f]);
                for (int isa = 1; isa <= (int)hkt__isa_best(); ++isa) {
                    const struct hkt__kernels *k = hkt__kernels_get((enum hkt__isa)isa);

                    (is_divide ? k->divide : k->multiply)[dtype](got, src, count, factors[f]);
                    if (memcmp(want, got, count * size) != 0)
                        fail_msg("%s %s %a differs under %s", hkt_dtype_name(dtype), is_divide ? "/" : "*", factors[f],
                                 hkt__isa_name((enum hkt__isa)isa));
                }
            }
        }
    }
}

static void all_small_counts_in_place_and_unaligned(void **state)
{
    static unsigned char src[2048], want[2048], got[2048 + 64];

    (void)state;
    for (size_t n = 0; n < NFLOATS; ++n) {
        const enum hkt_dtype dtype = floats[n];
        const size_t size = hkt_dtype_size(dtype);

        fill(src, sizeof src / size, dtype);
        for (int isa = 0; isa <= (int)hkt__isa_best(); ++isa) {
            for (size_t count = 0; count * size < 330; ++count) {
                memset(got, 0xa5, sizeof got);
                memcpy(got + 1, src, count * size);
                hkt__kernels_get(HKT__ISA_C)->divide[dtype](want, src, count, 3);
                hkt__kernels_get((enum hkt__isa)isa)->divide[dtype](got + 1, got + 1, count, 3);
                assert_int_equal(got[0], 0xa5);
                assert_memory_equal(got + 1, want, count * size);
                for (size_t i = 0; i < 64; ++i)
                    assert_int_equal(got[1 + count * size + i], 0xa5);
            }
        }
    }
}

/* The division itself, against arithmetic: in f64 for small floats, whose quotient then rounds once more to f32
 * without harm (see test_reduce.c). */
static void floats_divide_and_multiply_in_f32(void **state)
{
    static uint16_t x[65536], y[65536];
    uint16_t scalar = 0;

    (void)state;
    for (size_t n = 0; n < NFLOATS; ++n) {
        const enum hkt_dtype dtype = floats[n];

        if (dtype == HKT_F32 || dtype == HKT_F64)
            continue;
        const size_t size = hkt_dtype_size(dtype), count = size == 1 ? 256 : 65536;

        hkt__from_f32(&scalar, dtype, 3);
        fill((unsigned char *)x, count, dtype);
        hkt__premultiply(y, x, count, dtype, &scalar);
        for (size_t i = 0; i < count; ++i) {
            uint16_t want = 0, got = 0;

            memcpy(&got, (char *)y + i * size, size);
            hkt__from_f32(&want, dtype, (float)((double)hkt__to_f32((char *)x + i * size, dtype) * 3.0));
            assert_int_equal(got, want);
        }
        memcpy(y, x, sizeof y);
        hkt__divide(y, count, dtype, 3);
        for (size_t i = 0; i < count; ++i) {
            uint16_t want = 0, got = 0;

            memcpy(&got, (char *)y + i * size, size);
            hkt__from_f32(&want, dtype, (float)((double)hkt__to_f32((char *)x + i * size, dtype) / 3.0));
            assert_int_equal(got, want);
        }
    }
}

static void wide_floats_divide_and_multiply(void **state)
{
    float f[] = {1, -7, 0x1p-149f, INFINITY, -0.0f};
    double d[] = {1, -7, 0x1p-1074, INFINITY, -0.0};
    const float third = 1.0f / 3, sevenths = -7.0f / 3;
    const float half = 0.5f;
    const double quarter = 0.25;

    (void)state;
    hkt__divide(f, 5, HKT_F32, 3);
    hkt__divide(d, 5, HKT_F64, 3);
    assert_true(f[0] == third && f[1] == sevenths && f[2] == 0 && isinf(f[3]) && f[4] == 0 && signbit(f[4]));
    assert_true(d[0] == 1.0 / 3 && d[1] == -7.0 / 3 && d[2] == 0 && isinf(d[3]) && d[4] == 0 && signbit(d[4]));
    hkt__premultiply(f, f, 2, HKT_F32, &half);
    hkt__premultiply(d, d, 2, HKT_F64, &quarter);
    assert_true(f[0] == third / 2 && f[1] == sevenths / 2);
    assert_true(d[0] == 1.0 / 3 / 4 && d[1] == -7.0 / 3 / 4);
}

#define INTEGERS_DIVIDE(type, dtype, n, ...)                                                                   \
    do {                                                                                                       \
        type x[] = {__VA_ARGS__}, y[] = {__VA_ARGS__};                                                         \
                                                                                                               \
        hkt__divide(x, sizeof x / sizeof x[0], dtype, n);                                                      \
        for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i)                                                    \
            assert_true(x[i] == (type)(y[i] / (type)(n)));                                                     \
    } while (0)

static void integers_divide_truncating(void **state)
{
    int8_t small[] = {INT8_MIN, -1, 1, 127};

    (void)state;
    INTEGERS_DIVIDE(int8_t, HKT_INT8, 3, INT8_MIN, -5, -3, -2, -1, 0, 1, 2, 3, 5, INT8_MAX);
    INTEGERS_DIVIDE(uint8_t, HKT_UINT8, 3, 0, 1, 2, 3, 5, 128, UINT8_MAX);
    INTEGERS_DIVIDE(int16_t, HKT_INT16, 7, INT16_MIN, -8, -7, -6, 0, 6, 7, 8, INT16_MAX);
    INTEGERS_DIVIDE(uint16_t, HKT_UINT16, 7, 0, 6, 7, 8, 32768, UINT16_MAX);
    INTEGERS_DIVIDE(int32_t, HKT_INT32, 65536, INT32_MIN, -65537, -65536, -65535, 0, 65535, 65536, INT32_MAX);
    INTEGERS_DIVIDE(uint32_t, HKT_UINT32, 65536, 0, 65535, 65536, UINT32_C(1) << 31, UINT32_MAX);
    INTEGERS_DIVIDE(int64_t, HKT_INT64, 10, INT64_MIN, -11, -10, -9, 0, 9, 10, 11, INT64_MAX);
    INTEGERS_DIVIDE(uint64_t, HKT_UINT64, 10, 0, 9, 10, UINT64_C(1) << 63, UINT64_MAX);
    hkt__divide(small, 4, HKT_INT8, 1000); /* n does not fit the type */
    for (int i = 0; i < 4; ++i)
        assert_int_equal(small[i], 0);
}

static void bool_is_not_divided(void **state)
{
    unsigned char truth[] = {0, 1, 1};

    (void)state;
    hkt__divide(truth, 3, HKT_BOOL, 2);
    assert_int_equal(truth[0] + truth[1] + truth[2], 2);
}

#define INTEGERS_MULTIPLY(type, dtype, factor, ...)                                                            \
    do {                                                                                                       \
        type x[] = {__VA_ARGS__}, y[sizeof x / sizeof x[0]];                                                   \
        const type scalar = factor;                                                                            \
                                                                                                               \
        hkt__premultiply(y, x, sizeof x / sizeof x[0], dtype, &scalar);                                        \
        for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i)                                                    \
            assert_true(y[i] == (type)((uint64_t)x[i] * (uint64_t)scalar));                                    \
        hkt__premultiply(x, x, sizeof x / sizeof x[0], dtype, &scalar);                                        \
        assert_memory_equal(x, y, sizeof x);                                                                   \
    } while (0)

static void integers_multiply_and_wrap(void **state)
{
    (void)state;
    INTEGERS_MULTIPLY(int8_t, HKT_INT8, -3, INT8_MIN, -1, 0, 1, 43, INT8_MAX);
    INTEGERS_MULTIPLY(uint8_t, HKT_UINT8, 255, 0, 1, 255);
    INTEGERS_MULTIPLY(int16_t, HKT_INT16, -3, INT16_MIN, -1, 0, 1, INT16_MAX);
    INTEGERS_MULTIPLY(uint16_t, HKT_UINT16, 65535, 0, 1, 46341, 65535);
    INTEGERS_MULTIPLY(int32_t, HKT_INT32, -3, INT32_MIN, -1, 0, 1, INT32_MAX);
    INTEGERS_MULTIPLY(uint32_t, HKT_UINT32, UINT32_MAX, 0, 1, UINT32_MAX);
    INTEGERS_MULTIPLY(int64_t, HKT_INT64, -3, INT64_MIN, -1, 0, 1, INT64_MAX);
    INTEGERS_MULTIPLY(uint64_t, HKT_UINT64, UINT64_MAX, 0, 1, UINT64_MAX);
}

static void the_setting_caps_the_instruction_set(void **state)
{
    (void)state;
    hkt__settings_reset();
    const enum hkt__isa best = hkt__isa_best();

    for (int isa = 0; isa < HKT__ISA_COUNT; ++isa) {
        use_isa(hkt__isa_name((enum hkt__isa)isa));
        assert_int_equal(hkt__isa_best(), isa < (int)best ? isa : (int)best);
    }
    use_isa("c");
    floats_divide_and_multiply_in_f32(state);
    assert_string_equal(hkt__isa_name(HKT__ISA_COUNT), "?");
    assert_string_equal(hkt__isa_name((enum hkt__isa)-1), "?");
    setenv("HOCKET_RECORDER", "nonsense", 1); /* settings that do not load cap nothing */
    hkt__settings_reset();
    assert_int_equal(hkt__isa_best(), best);
    unsetenv("HOCKET_RECORDER");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_scales_like_plain_c),
        cmocka_unit_test(all_small_counts_in_place_and_unaligned),
        cmocka_unit_test(floats_divide_and_multiply_in_f32),
        cmocka_unit_test(wide_floats_divide_and_multiply),
        cmocka_unit_test(integers_divide_truncating),
        cmocka_unit_test(bool_is_not_divided),
        cmocka_unit_test(integers_multiply_and_wrap),
        cmocka_unit_test_teardown(the_setting_caps_the_instruction_set, forget_isa),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
