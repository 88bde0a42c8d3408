/* What could break: a code decoded to a wrong value, ties not going to the even code, a carry lost between mantissa
 * and exponent, subnormals flushed or misrounded, the wrong threshold of overflow, a NaN that becomes a number or
 * infinity, a lost sign of zero. All codes are tried; rounding is tried at, just below and just above every
 * boundary, and by a search for the nearest value in double, which shares nothing with the code tested. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"

/* The formats again, as their standards write them. */
struct layout {
    enum hkt_dtype dtype;
    const char *name;
    int bits, exponent_bits, mantissa_bits, bias;
    uint32_t last_finite, inf, nan; /* inf 0: there is none */
};

static const struct layout layouts[] = {
    {HKT_F16, "f16", 16, 5, 10, 15, 0x7bff, 0x7c00, 0x7e00},
    {HKT_BF16, "bf16", 16, 8, 7, 127, 0x7f7f, 0x7f80, 0x7fc0},
    {HKT_F8E4M3, "f8e4m3", 8, 4, 3, 7, 0x7e, 0, 0x7f},
    {HKT_F8E5M2, "f8e5m2", 8, 5, 2, 15, 0x7b, 0x7c, 0x7e},
};
#define NLAYOUTS (sizeof layouts / sizeof layouts[0])

static uint32_t encode(const struct layout *l, float value)
{
    uint16_t half = 0;
    uint8_t byte = 0;

    if (l->bits == 16) {
        hkt__from_f32(&half, l->dtype, value);
        return half;
    }
    hkt__from_f32(&byte, l->dtype, value);
    return byte;
}

static float decode(const struct layout *l, uint32_t code)
{
    const uint16_t half = (uint16_t)code;
    const uint8_t byte = (uint8_t)code;

    return hkt__to_f32(l->bits == 16 ? (const void *)&half : &byte, l->dtype);
}

/* Value of a finite code without sign; also of the first code past the finite ones, as if the range went on. */
static double magnitude_of(const struct layout *l, uint32_t code)
{
    const int exponent = (int)(code >> l->mantissa_bits), mantissa = (int)(code & ((1u << l->mantissa_bits) - 1));

    if (exponent == 0)
        return ldexp(mantissa, 1 - l->bias - l->mantissa_bits);
    return ldexp((1 << l->mantissa_bits) + mantissa, exponent - l->bias - l->mantissa_bits);
}

/* Code of what is too large for the format. */
static uint32_t beyond(const struct layout *l, uint32_t sign)
{
    return l->inf != 0 ? sign | l->inf : l->nan;
}

static uint32_t f32_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void check(const struct layout *l, float value, uint32_t want)
{
    const uint32_t got = encode(l, value);

    if (got != want)
        fail_msg("%s: %a is encoded as 0x%x, want 0x%x", l->name, value, got, want);
}

static void every_code_decodes_to_its_value(void **state)
{
    (void)state;
    for (size_t n = 0; n < NLAYOUTS; ++n) {
        const struct layout *l = &layouts[n];
        const uint32_t sign = 1u << (l->bits - 1);

        for (uint32_t code = 0; code < 2 * sign; ++code) {
            const uint32_t magnitude = code & (sign - 1);
            const float value = decode(l, code);
            double want = magnitude_of(l, magnitude);

            if (l->inf != 0 && magnitude == l->inf)
                want = INFINITY;
            if (magnitude > (l->inf != 0 ? l->inf : l->last_finite)) {
                assert_int_equal(f32_bits(value), 0x7fc00000);
                continue;
            }
            want = code & sign ? -want : want;
            if ((double)value != want || !signbit(value) != !signbit(want))
                fail_msg("%s 0x%x is %a, want %a", l->name, code, value, want);
        }
    }
}

static void every_code_survives_the_round_trip(void **state)
{
    (void)state;
    for (size_t n = 0; n < NLAYOUTS; ++n) {
        const struct layout *l = &layouts[n];

        for (uint32_t code = 0; code < 1u << l->bits; ++code) {
            const float value = decode(l, code);

            check(l, value, isnan(value) ? l->nan : code);
        }
    }
}

/* Between two neighbours c and c + 1 lies the tie; next to it on either side the answer is clear. After the last
 * finite code comes the value that would be next, as IEEE 754 defines overflow. */
static void ties_go_to_even_and_neighbours_to_the_nearest(void **state)
{
    (void)state;
    for (size_t n = 0; n < NLAYOUTS; ++n) {
        const struct layout *l = &layouts[n];

        for (uint32_t code = 0; code <= l->last_finite; ++code) {
            const double tie = (magnitude_of(l, code) + magnitude_of(l, code + 1)) / 2;
            const float below = nextafterf((float)tie, 0), above = nextafterf((float)tie, INFINITY);

            assert_true((double)(float)tie == tie);
            for (uint32_t sign = 0; sign <= 1u << (l->bits - 1); sign += 1u << (l->bits - 1)) {
                const float s = sign != 0 ? -1.0f : 1.0f;
                const uint32_t up = code < l->last_finite ? sign | (code + 1) : beyond(l, sign);

                check(l, s * below, sign | code);
                check(l, s * (float)tie, code % 2 == 0 ? sign | code : up);
                check(l, s * above, up);
            }
        }
    }
}

/* Nearest finite code, or the one past the last, by bisection. */
static uint32_t nearest(const struct layout *l, float value)
{
    const uint32_t sign = signbit(value) ? 1u << (l->bits - 1) : 0;
    const double x = fabs((double)value);
    uint32_t low = 0, high = l->last_finite + 1;

    if (x >= magnitude_of(l, high))
        return beyond(l, sign);
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;

        if (magnitude_of(l, middle) <= x)
            low = middle;
        else
            high = middle;
    }
    const double down = x - magnitude_of(l, low), up = magnitude_of(l, high) - x;
    const uint32_t code = down < up || (down == up && low % 2 == 0) ? low : high;

    return code > l->last_finite ? beyond(l, sign) : sign | code;
}

static void sampled_f32_go_to_the_nearest(void **state)
{
    uint32_t x = 1;

    (void)state;
    for (size_t n = 0; n < NLAYOUTS; ++n) {
        for (int i = 0; i < 200000; ++i) {
            float value;

            x = x * 1664525u + 1013904223u; /* all 2^32 values in turn; bits of every exponent */
            const uint32_t bits = x ^ x >> 15;

            memcpy(&value, &bits, sizeof value);
            if (!isnan(value))
                check(&layouts[n], value, nearest(&layouts[n], value));
        }
    }
}

static void extremes(void **state)
{
    static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7f900000};

    (void)state;
    for (size_t n = 0; n < NLAYOUTS; ++n) {
        const struct layout *l = &layouts[n];
        const uint32_t sign = 1u << (l->bits - 1);

        for (size_t i = 0; i < sizeof nans / sizeof nans[0]; ++i) {
            float value;

            memcpy(&value, &nans[i], sizeof value);
            check(l, value, l->nan);
        }
        check(l, INFINITY, beyond(l, 0));
        check(l, -INFINITY, beyond(l, sign));
        check(l, 0.0f, 0);
        check(l, -0.0f, sign);
        check(l, 0x1p-149f, 0);
        check(l, -0x1p-149f, sign);
        check(l, 0x1.fffffep127f, beyond(l, 0));
    }
    check(&layouts[2], 448.0f, 0x7e);
    check(&layouts[2], 464.0f, 0x7e);
    check(&layouts[2], 465.0f, 0x7f);
    check(&layouts[3], 57344.0f, 0x7b);
    check(&layouts[3], 61440.0f, 0x7c);
    check(&layouts[0], 65504.0f, 0x7bff);
    check(&layouts[0], 65520.0f, 0x7c00);
}

static void f32_passes_unchanged(void **state)
{
    const float value = 0x1.234568p-3f;
    char unaligned[5] = {0};

    (void)state;
    hkt__from_f32(unaligned + 1, HKT_F32, value);
    assert_true(hkt__to_f32(unaligned + 1, HKT_F32) == value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_decodes_to_its_value),
        cmocka_unit_test(every_code_survives_the_round_trip),
        cmocka_unit_test(ties_go_to_even_and_neighbours_to_the_nearest),
        cmocka_unit_test(sampled_f32_go_to_the_nearest),
        cmocka_unit_test(extremes),
        cmocka_unit_test(f32_passes_unchanged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
