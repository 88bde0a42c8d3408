/* What the C++ that translate.py writes calls. A register is a number of its width; `as` reads one as another type of
 * the same bits, `set` writes one, extended as the value's type says. */
#ifndef HOCKET_CUDA_EMU_PTX_RUN_H
#define HOCKET_CUDA_EMU_PTX_RUN_H

#include <stdint.h>
#include <string.h>
#include <type_traits>

extern "C" {
#include "device/device.h"
}
#include "engine.h"

template <class T, class R> static inline T as(R r)
{
    T t{};

    memcpy(&t, &r, sizeof t < sizeof r ? sizeof t : sizeof r);
    return t;
}

template <class R, class T> static inline void set(R &r, T value)
{
    if constexpr (std::is_integral_v<T> && std::is_integral_v<R>) {
        r = static_cast<R>(value);
    } else {
        static_assert(sizeof(R) == sizeof(T), "a register of another width");
        memcpy(&r, &value, sizeof r);
    }
}

/* Shifts by the width or more give 0, or the sign. */
template <class T> static inline T shifted_left(T a, uint32_t n)
{
    return n >= 8 * sizeof a ? T(0) : T(std::make_unsigned_t<T>(a) << n);
}

template <class T> static inline T shifted_right(T a, uint32_t n)
{
    if (n >= 8 * sizeof a)
        return std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
    return T(a >> n);
}

/** shf.r.wrap: the low word of (high:low) >> n. */
static inline uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t n)
{
    return uint32_t((uint64_t(high) << 32 | low) >> (n & 31));
}

/** prmt without a mode: each nibble of `selector` picks a byte of b:a, or its sign eight times. */
static inline uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t result = 0;

    for (int i = 0; i < 4; ++i) {
        const uint32_t pick = selector >> (4 * i);
        uint32_t byte = uint32_t(bytes >> (8 * (pick & 7))) & 0xff;

        if (pick & 8)
            byte = byte & 0x80 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}

/** bfi: `bits` low bits of a, put into b from `at` on. */
template <class T> static inline T inserted(T a, T b, uint32_t at, uint32_t bits)
{
    const T mask = T(shifted_left<T>(T(shifted_left<T>(1, bits) - 1), at));

    return T((b & ~mask) | (shifted_left<T>(a, at) & mask));
}

static inline float f32_of_f16(uint16_t code)
{
    return hkt__to_f32(&code, HKT_F16);
}

/** As the hardware has it: its NaN is all ones but the sign. */
static inline uint16_t to_small(float x, enum hkt_dtype dtype)
{
    uint16_t code = 0x7fff;

    if (x == x)
        hkt__from_f32(&code, dtype, x);
    return code;
}

#endif
