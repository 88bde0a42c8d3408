/* Numbers for the tests of the mathematics: random ones from a seed, comparison with a bound, and derivatives by central
 * differences. Include after cmocka.h. */
#ifndef HOCKET_TESTS_PARALLEL_NUMBERS_H
#define HOCKET_TESTS_PARALLEL_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* xorshift64*, not the generator under test. */
static uint64_t numbers_state = 88172645463325252u;

static inline double number(void)
{
    numbers_state ^= numbers_state >> 12;
    numbers_state ^= numbers_state << 25;
    numbers_state ^= numbers_state >> 27;
    return (double)(numbers_state * 2685821657736338717u >> 11) * 0x1p-52 - 1; /* in [-1, 1) */
}

static inline void numbers(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = number();
}

static inline double largest_of(const double *x, int64_t n)
{
    double largest = 0;

    for (int64_t i = 0; i < n; i++)
        largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
    return largest;
}

/* |a[i] - b[i]| <= bound * max |b|; a NaN anywhere fails. */
static inline void assert_near(const char *what, const double *a, const double *b, int64_t n, double bound)
{
    double limit = bound * largest_of(b, n);

    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= limit))
            fail_msg("%s[%lld]: %.17g, expected %.17g, differ by %.3g, allowed %.3g", what, (long long)i, a[i], b[i],
                     a[i] - b[i], limit);
}

/* A loss as a function of its context; the gradient of it with respect to x[n] is dx, says the code under test. Every
 * `stride`-th element is checked. With h = 2e-5 the formula's error is h^2 f''' / 6 and eps |loss| / h, below 1e-9 each for
 * the smooth functions here, whose derivatives are about 1; 1e-7 is demanded. */
static inline void assert_gradient(const char *what, double (*loss)(void *), void *context, double *x, const double *dx,
                                   int64_t n, int64_t stride)
{
    const double h = 2e-5;
    double limit = 1e-7 * (largest_of(dx, n) + 1e-3);

    for (int64_t i = 0; i < n; i += stride) {
        double keep = x[i];

        x[i] = keep + h;
        double above = loss(context);
        x[i] = keep - h;
        double below = loss(context);
        x[i] = keep;
        double slope = (above - below) / (2 * h);

        if (!(fabs(slope - dx[i]) <= limit))
            fail_msg("d %s[%lld]: %.12g, by differences %.12g, allowed %.3g apart", what, (long long)i, dx[i], slope, limit);
    }
}

#endif
