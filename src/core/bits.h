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

/** Part i of `total` cut in `parts` as even as can be, larger parts first: [*out_first, *out_first + *out_count). */
static inline void hkt__split(size_t total, size_t parts, size_t i, size_t *out_first, size_t *out_count)
{
    const size_t base = total / parts, rest = total % parts;

    *out_first = i * base + (i < rest ? i : rest);
    *out_count = base + (i < rest);
}

#endif
