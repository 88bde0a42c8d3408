/* Normal numbers by Box and Muller (Ann. Math. Stat. 29, 1958): two words give two numbers, sqrt(-2 ln u) * cos and sin of
 * 2 pi w. Logarithm and circle are computed here, by series whose remainders lie below 2^-53, from additions,
 * multiplications, divisions and square roots alone; these are exact to the last bit by IEEE 754, so replicas on
 * different machines start from the same bits. This file must not be compiled with contraction. */
#include "parallel/rng.h"

#include <math.h>
#include <string.h>

uint32_t hkt__rng_bits(const struct hkt__rng *rng, uint64_t index)
{
    uint32_t words[4];

    hkt__rng_block(rng, index / 4, words);
    return words[index % 4];
}

static double uniform_of(uint32_t word)
{
    return ((double)word + 0.5) * 0x1p-32;
}

double hkt__rng_uniform(const struct hkt__rng *rng, uint64_t index)
{
    return uniform_of(hkt__rng_bits(rng, index));
}

/* x = 2^e * m with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172. */
static double log_of(double x)
{
    uint64_t bits;
    double m;

    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;

    bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;

    for (int k = 23; k >= 1; k -= 2)
        sum = sum * s2 + 1.0 / k;
    return (double)e * 0.69314718055994531 + 2 * s * sum;
}

/* cos and sin of 2 pi * word / 2^32: the upper bits name the octant exactly, the rest is below pi/4. */
static void circle_of(uint32_t word, double out[2])
{
    uint32_t quarter = (word + 0x20000000u) >> 30;
    double angle = (double)(int32_t)(word - (quarter << 30)) * (6.2831853071795865 * 0x1p-32);
    double a2 = angle * angle, c = 0, s = 0;

    for (int k = 18; k >= 2; k -= 2)
        c = (1 - c) * a2 / (double)(k * (k - 1));
    for (int k = 19; k >= 3; k -= 2)
        s = (1 - s) * a2 / (double)(k * (k - 1));
    c = 1 - c;
    s = (1 - s) * angle;

    out[0] = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
    out[1] = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
}

void hkt__rng_normal_block(const struct hkt__rng *rng, uint64_t block, double out[4])
{
    uint32_t words[4];

    hkt__rng_block(rng, block, words);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2 * log_of(uniform_of(words[i]))), circle[2];

        circle_of(words[i + 1], circle);
        out[i] = radius * circle[0];
        out[i + 1] = radius * circle[1];
    }
}

double hkt__rng_normal(const struct hkt__rng *rng, uint64_t index)
{
    double four[4];

    hkt__rng_normal_block(rng, index / 4, four);
    return four[index % 4];
}
