/* The floating formats as numbers, and the scalar conversions between f32 and the small ones that define them. The
 * vector kernels use the same parameters lane by lane.
 *
 * A small format packs sign, exponent (biased) and mantissa, as IEEE 754 does. Codes above `largest` (sign aside) are
 * NaN. Source: IEEE 754-2019 for binary16; OCP 8-bit Floating Point Specification (OFP8), rev. 1.0, 2023, for f8. */
#ifndef HOCKET_DEVICE_FORMATS_H
#define HOCKET_DEVICE_FORMATS_H

#include <stdint.h>
#include <string.h>

struct hkt__format {
    int bits, mantissa_bits, bias;
    uint32_t largest;  /* code of the largest value that is not NaN: infinity, or 448 in f8e4m3 */
    uint32_t overflow; /* code of what lies beyond the finite: infinity, or NaN in f8e4m3 */
    uint32_t nan;      /* the quiet positive NaN */
    float unit;        /* smallest subnormal: 2^(1 - bias - mantissa_bits) */
};

static const struct hkt__format hkt__format_f16 = {16, 10, 15, 0x7c00, 0x7c00, 0x7e00, 0x1p-24f};
static const struct hkt__format hkt__format_bf16 = {16, 7, 127, 0x7f80, 0x7f80, 0x7fc0, 0x1p-133f};
static const struct hkt__format hkt__format_f8e4m3 = {8, 3, 7, 0x7e, 0x7f, 0x7f, 0x1p-9f};
static const struct hkt__format hkt__format_f8e5m2 = {8, 2, 15, 0x7c, 0x7c, 0x7e, 0x1p-16f};

#define HKT__F32_INF UINT32_C(0x7f800000)
#define HKT__F32_NAN UINT32_C(0x7fc00000)
#define HKT__F64_INF UINT64_C(0x7ff0000000000000)
#define HKT__F64_NAN UINT64_C(0x7ff8000000000000)

static inline float hkt__f32_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t hkt__f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint64_t hkt__f64_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/** Exact value of a code. */
static inline float hkt__decode(uint32_t code, struct hkt__format f)
{
    const uint32_t sign = code >> (f.bits - 1), magnitude = code & ((1u << (f.bits - 1)) - 1);
    const uint32_t rebias = (uint32_t)(127 - f.bias) << 23;
    uint32_t bits;

    if (magnitude > f.largest)
        return hkt__f32_of(HKT__F32_NAN);
    if (magnitude == f.overflow)
        bits = HKT__F32_INF;
    else if (magnitude < (1u << f.mantissa_bits))
        bits = hkt__f32_bits((float)magnitude * f.unit);
    else
        bits = (magnitude << (23 - f.mantissa_bits)) + rebias;
    return hkt__f32_of(sign << 31 | bits);
}

/** Nearest code, ties to even. The integer addition rounds a normal number: a carry out of the mantissa moves on to
 *  the exponent, as it must. Below the normal range a floating addition rounds instead: the sum has unit as its
 *  last place. */
static inline uint32_t hkt__encode(float value, struct hkt__format f)
{
    const uint32_t bits = hkt__f32_bits(value), magnitude = bits & 0x7fffffff, sign = bits >> 31 << (f.bits - 1);
    const int shift = 23 - f.mantissa_bits;
    const uint32_t rebias = (uint32_t)(127 - f.bias) << 23, normal_min = rebias + (1u << 23);
    const float anchor = f.unit * 0x1p23f;
    uint32_t code;

    if (magnitude > HKT__F32_INF)
        return f.nan;
    if (magnitude < normal_min) {
        code = hkt__f32_bits(hkt__f32_of(magnitude) + anchor) - hkt__f32_bits(anchor);
    } else {
        code = magnitude - rebias;
        code = (code + (1u << (shift - 1)) - 1 + ((code >> shift) & 1)) >> shift;
    }
    if (code > f.largest)
        code = f.overflow;
    return code > f.largest ? f.nan : sign | code;
}

#endif
