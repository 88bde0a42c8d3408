/* Divisors, to name a legal choice beside the illegal one. */
#ifndef HOCKET_PARALLEL_DIVISORS_H
#define HOCKET_PARALLEL_DIVISORS_H

#include <stdint.h>

/** Largest divisor of n at most x; n, x >= 1. */
static inline int64_t hkt__divisor_below(int64_t n, int64_t x)
{
    int64_t d = x < n ? x : n;

    while (n % d != 0)
        d--;
    return d;
}

/** Smallest divisor of n at least x; n itself when x is larger. n, x >= 1. */
static inline int64_t hkt__divisor_above(int64_t n, int64_t x)
{
    int64_t d = x < n ? x : n;

    while (n % d != 0)
        d++;
    return d;
}

#endif
