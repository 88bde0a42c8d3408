/* Small integer helpers. */
#ifndef HOCKET_CORE_BITS_H
#define HOCKET_CORE_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** floor(log2(x)), x >= 1. */
static inline int hkt__log2_floor(unsigned x)
{
    return 31 - __builtin_clz(x);
}

/** ceil(log2(x)), x >= 1: rounds of a dissemination over x ranks. */
static inline int hkt__log2_ceil(unsigned x)
{
    return x <= 1 ? 0 : hkt__log2_floor(x - 1) + 1;
}

static inline bool hkt__is_pow2(unsigned x)
{
    return x != 0 && (x & (x - 1)) == 0;
}

/** Non-negative remainder: rank arithmetic. modulus >= 1. */
static inline int hkt__mod(int64_t x, int modulus)
{
    const int64_t r = x % modulus;

    return (int)(r < 0 ? r + modulus : r);
}

static inline size_t hkt__round_up(size_t x, size_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

#endif
