/* Floating formats on the device: the conversions of src/device/formats.h, from and to f32. f16 and bf16 use the
 * hardware where there is some; the 8-bit formats are computed, since the hardware's conversions saturate where the
 * contract asks for infinity or NaN (docs/numerics.md, rule 11). A NaN always becomes the quiet positive one. */
#ifndef HOCKET_KERNELS_FORMATS_CUH
#define HOCKET_KERNELS_FORMATS_CUH

#include <string.h>

#include "kernels/device.cuh"

HKT__DEVICE float f32_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

HKT__DEVICE uint32_t bits_of_f32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/** A small format as numbers: see struct hkt__format. */
template <int bits_, int mantissa_bits_, int bias_, uint32_t largest_, uint32_t overflow_, uint32_t nan_> struct format {
    static constexpr int bits = bits_, mantissa_bits = mantissa_bits_, bias = bias_;
    static constexpr uint32_t largest = largest_, overflow = overflow_, nan = nan_;
    /* Exponent field of 2^(1 - bias - mantissa_bits), the smallest subnormal, and of 2^23 times it, as f32. */
    static constexpr int unit_exponent = 127 + 1 - bias - mantissa_bits, anchor_exponent = unit_exponent + 23;
};
using format_f16 = format<16, 10, 15, 0x7c00, 0x7c00, 0x7e00>;
using format_bf16 = format<16, 7, 127, 0x7f80, 0x7f80, 0x7fc0>;
using format_f8e4m3 = format<8, 3, 7, 0x7e, 0x7f, 0x7f>;
using format_f8e5m2 = format<8, 2, 15, 0x7c, 0x7c, 0x7e>;

/** hkt__decode. */
template <class F> HKT__DEVICE float decode(uint32_t code)
{
    const uint32_t sign = code >> (F::bits - 1) << 31, magnitude = code & ((1u << (F::bits - 1)) - 1);
    uint32_t bits;

    if (magnitude > F::largest)
        return f32_of_bits(0x7fc00000);
    if (magnitude == F::overflow)
        bits = 0x7f800000;
    else if (magnitude < (1u << F::mantissa_bits))
        bits = bits_of_f32(float(magnitude) * f32_of_bits(uint32_t(F::unit_exponent) << 23));
    else
        bits = (magnitude << (23 - F::mantissa_bits)) + (uint32_t(127 - F::bias) << 23);
    return f32_of_bits(sign | bits);
}

/** hkt__encode. */
template <class F> HKT__DEVICE uint32_t encode(float value)
{
    constexpr int shift = 23 - F::mantissa_bits;
    constexpr uint32_t rebias = uint32_t(127 - F::bias) << 23, normal_min = rebias + (1u << 23);
    constexpr uint32_t anchor = uint32_t(F::anchor_exponent) << 23;
    const uint32_t bits = bits_of_f32(value), magnitude = bits & 0x7fffffff, sign = bits >> 31 << (F::bits - 1);
    uint32_t code;

    if (magnitude > 0x7f800000)
        return F::nan;
    if (magnitude < normal_min) {
        code = bits_of_f32(f32_of_bits(magnitude) + f32_of_bits(anchor)) - anchor;
    } else {
        code = magnitude - rebias;
        code = (code + (1u << (shift - 1)) - 1 + ((code >> shift) & 1)) >> shift;
    }
    if (code > F::largest)
        code = F::overflow;
    return code > F::largest ? F::nan : sign | code;
}

#ifdef __CUDA_ARCH__
template <> HKT__DEVICE float decode<format_f16>(uint32_t code)
{
    return f32_of_f16_bits(uint16_t(code));
}

template <> HKT__DEVICE uint32_t encode<format_f16>(float value)
{
    return value == value ? f16_bits_of_f32(value) : format_f16::nan;
}

template <> HKT__DEVICE uint32_t encode<format_bf16>(float value)
{
    return value == value ? bf16_bits_of_f32(value) : format_bf16::nan;
}
#endif

template <> HKT__DEVICE float decode<format_bf16>(uint32_t code)
{
    return f32_of_bits(code << 16);
}

/** What each floating dtype is: the unsigned type of its codes, the type it is computed in, and the way in and out. The
 *  way in leaves NaNs as they are; the way out makes each the one NaN. */
template <class F, class Code> struct small_float {
    using code = Code;
    using real = float;
    static constexpr uint32_t largest = F::largest, nan = F::nan;

    static HKT__DEVICE float enter(Code x) { return decode<F>(x); }
    static HKT__DEVICE Code leave(float x) { return Code(encode<F>(x)); }
};
using f16 = small_float<format_f16, uint16_t>;
using bf16 = small_float<format_bf16, uint16_t>;
using f8e4m3 = small_float<format_f8e4m3, uint8_t>;
using f8e5m2 = small_float<format_f8e5m2, uint8_t>;

struct f32 {
    using code = uint32_t;
    using real = float;
    static constexpr uint32_t largest = 0x7f800000, nan = 0x7fc00000;

    static HKT__DEVICE float enter(uint32_t x) { return f32_of_bits(x); }
    static HKT__DEVICE uint32_t leave(float x) { return x == x ? bits_of_f32(x) : nan; }
};

struct f64 {
    using code = uint64_t;
    using real = double;
    static constexpr uint64_t largest = UINT64_C(0x7ff0000000000000), nan = UINT64_C(0x7ff8000000000000);

    static HKT__DEVICE double enter(uint64_t x)
    {
        double value;

        memcpy(&value, &x, sizeof value);
        return value;
    }
    static HKT__DEVICE uint64_t leave(double x)
    {
        uint64_t bits;

        memcpy(&bits, &x, sizeof bits);
        return x == x ? bits : nan;
    }
};

#endif
