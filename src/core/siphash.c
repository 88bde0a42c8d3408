/* SipHash-2-4 after J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012, section 2.
 * Two compression rounds a word, four to finish; all words are little-endian whatever the machine. */
#include "core/siphash.h"

struct sip_state {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate_left(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void sip_round(struct sip_state *s)
{
    s->v0 += s->v1;
    s->v1 = rotate_left(s->v1, 13) ^ s->v0;
    s->v0 = rotate_left(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotate_left(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotate_left(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotate_left(s->v1, 17) ^ s->v2;
    s->v2 = rotate_left(s->v2, 32);
}

static void sip_absorb(struct sip_state *s, uint64_t word)
{
    s->v3 ^= word;
    sip_round(s);
    sip_round(s);
    s->v0 ^= word;
}

/* The first `bytes` (at most 8) bytes at p as a little-endian number. */
static uint64_t load_le(const unsigned char *p, size_t bytes)
{
    uint64_t word = 0;

    for (size_t i = 0; i < bytes; i++)
        word |= (uint64_t)p[i] << (8 * i);
    return word;
}

uint64_t hkt__siphash(const unsigned char key[16], const void *data, size_t bytes)
{
    const uint64_t k0 = load_le(key, 8), k1 = load_le(key + 8, 8);
    const unsigned char *p = data;
    struct sip_state s = {.v0 = k0 ^ 0x736f6d6570736575, .v1 = k1 ^ 0x646f72616e646f6d,
                          .v2 = k0 ^ 0x6c7967656e657261, .v3 = k1 ^ 0x7465646279746573};
    size_t left = bytes;

    for (; left >= 8; left -= 8, p += 8)
        sip_absorb(&s, load_le(p, 8));
    sip_absorb(&s, load_le(p, left) | (uint64_t)bytes << 56);
    s.v2 ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
