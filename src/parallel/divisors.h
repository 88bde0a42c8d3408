/* Divisors, to name a legal choice beside the illegal one. */
#ifndef HOCKET_PARALLEL_DIVISORS_H
#define HOCKET_PARALLEL_DIVISORS_H

#include <stdint.h>
#include <stdio.h>

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

/** "3 or 6", or "6" when both are. Use as hkt__either(a, b).text within one expression. */
struct hkt__either {
    char text[48];
};
static inline struct hkt__either hkt__either(int64_t a, int64_t b)
{
    struct hkt__either either;

    if (a == b)
        snprintf(either.text, sizeof either.text, "%lld", (long long)a);
    else
        snprintf(either.text, sizeof either.text, "%lld or %lld", (long long)a, (long long)b);
    return either;
}

#endif
