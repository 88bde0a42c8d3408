/* Random numbers without state: number i of stream (seed, site) is a function of these three, so that an element of a
 * parameter or of a dropout mask is the same wherever it lies and in whatever order it is made.
 * Source: Philox4x32-10, Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef HOCKET_PARALLEL_RNG_H
#define HOCKET_PARALLEL_RNG_H

#include <stdint.h>

struct hkt__rng {
    uint64_t seed;
    uint64_t site;   /* what the numbers are for; see hkt__rng_site */
};

/** A site: 8 bits of what, 16 bits of layer, 40 bits of step. Distinct arguments give distinct sites. */
static inline uint64_t hkt__rng_site(unsigned what, unsigned layer, uint64_t step)
{
    return (uint64_t)(what & 0xffu) << 56 | (uint64_t)(layer & 0xffffu) << 40 | (step & 0xffffffffffu);
}

/** The block cipher: ten rounds on a counter of 128 bits with a key of 64. */
static inline void hkt__philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/** Four words: numbers 4 * block .. 4 * block + 3 of the stream. */
static inline void hkt__rng_block(const struct hkt__rng *rng, uint64_t block, uint32_t out[4])
{
    const uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)rng->site,
                                  (uint32_t)(rng->site >> 32) };
    const uint32_t key[2] = { (uint32_t)rng->seed, (uint32_t)(rng->seed >> 32) };

    hkt__philox4x32(counter, key, out);
}

/** Number `index` of the stream: 32 random bits. */
uint32_t hkt__rng_bits(const struct hkt__rng *rng, uint64_t index);
/** Number `index` as a uniform one in (0, 1), never 0 or 1. */
double hkt__rng_uniform(const struct hkt__rng *rng, uint64_t index);
/** Number `index` of a standard normal stream (|x| < 6.8), the same bits on every IEEE machine: no libm is asked. */
double hkt__rng_normal(const struct hkt__rng *rng, uint64_t index);
/** Numbers 4 * block .. 4 * block + 3 of the standard normal stream. */
void hkt__rng_normal_block(const struct hkt__rng *rng, uint64_t block, double out[4]);

#endif
