/* Reading, writing, vectors, sums and exp for one pair of types. A template, included by kernels.c with STORE, REAL, INT (of
 * REAL's width), N(name) defined, and IS_BF16 when STORE is 16 bits of a float.
 *
 * Vectors are 64 bytes in every instruction set and the compiler cuts them to what the CPU has, so sums have the same order
 * and bits everywhere. Loops over elements without sums are left to the compiler: lane by lane there is nothing to order. */
#define LANES (64 / (int)sizeof(REAL))

typedef REAL N(vec) __attribute__((vector_size(64)));
typedef INT N(ivec) __attribute__((vector_size(64)));
typedef double N(doubles) __attribute__((vector_size(64)));
typedef int64_t N(masks) __attribute__((vector_size(64)));
typedef REAL N(eight) __attribute__((vector_size(8 * sizeof(REAL))));

#ifdef IS_BF16
typedef uint16_t N(svec) __attribute__((vector_size(32)));

INLINE float N(get)(const uint16_t *p)
{
    uint32_t bits = (uint32_t)*p << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* To nearest, ties to even; a NaN stays one. */
INLINE void N(put)(uint16_t *p, float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40u;

    *p = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

INLINE N(vec) N(load)(const uint16_t *p)
{
    N(svec) half;
    N(vec) v;

    memcpy(&half, p, sizeof half);
    N(ivec) bits = __builtin_convertvector(half, N(ivec)) << 16;

    memcpy(&v, &bits, sizeof v);
    return v;
}
#else
INLINE REAL N(get)(const STORE *p)
{
    return *p;
}

INLINE void N(put)(STORE *p, REAL x)
{
    *p = x;
}

INLINE N(vec) N(load)(const STORE *p)
{
    N(vec) v;

    memcpy(&v, p, sizeof v);
    return v;
}
#endif

INLINE N(vec) N(load_real)(const REAL *p)
{
    N(vec) v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* Lanes in a fixed tree: each half onto the other. */
INLINE REAL N(lanes_sum)(N(vec) v)
{
    REAL lane[LANES];

    memcpy(lane, &v, sizeof lane);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

INLINE N(vec) N(larger)(N(vec) a, N(vec) b)
{
    N(ivec) mask = a > b, bits_a, bits_b;
    N(vec) v;

    memcpy(&bits_a, &a, sizeof a);
    memcpy(&bits_b, &b, sizeof b);
    bits_a = (bits_a & mask) | (bits_b & ~mask);
    memcpy(&v, &bits_a, sizeof v);
    return v;
}

/* sum of x[i]. */
static REAL N(sum)(const REAL *x, int64_t n)
{
    N(vec) lanes = { 0 };
    REAL tail = 0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        lanes += N(load_real)(x + i);
    for (; i < n; i++)
        tail += x[i];
    return N(lanes_sum)(lanes) + tail;
}

/* sum of x[i] * y[i], x stored, y real. */
static REAL N(dot)(const STORE *x, const REAL *y, int64_t n)
{
    N(vec) lanes = { 0 };
    REAL tail = 0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        lanes += N(load)(x + i) * N(load_real)(y + i);
    for (; i < n; i++)
        tail += N(get)(x + i) * y[i];
    return N(lanes_sum)(lanes) + tail;
}

/* The largest of x[0 .. n), n > 0. */
static REAL N(largest)(const STORE *x, int64_t n)
{
    REAL best = N(get)(x);
    int64_t i = 0;

    if (n >= LANES) {
        REAL lane[LANES];
        N(vec) lanes = N(load)(x);

        for (i = LANES; i + LANES <= n; i += LANES)
            lanes = N(larger)(lanes, N(load)(x + i));
        memcpy(lane, &lanes, sizeof lane);
        for (int l = 0; l < LANES; l++)
            best = lane[l] > best ? lane[l] : best;
    }
    for (; i < n; i++)
        best = N(get)(x + i) > best ? N(get)(x + i) : best;
    return best;
}

#ifdef IS_BF16
/* The same of reals. */
static REAL N(largest_real)(const REAL *x, int64_t n)
{
    REAL best = x[0];
    int64_t i = 0;

    if (n >= LANES) {
        REAL lane[LANES];
        N(vec) lanes = N(load_real)(x);

        for (i = LANES; i + LANES <= n; i += LANES)
            lanes = N(larger)(lanes, N(load_real)(x + i));
        memcpy(lane, &lanes, sizeof lane);
        for (int l = 0; l < LANES; l++)
            best = lane[l] > best ? lane[l] : best;
    }
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}
#else
#define largest_real_f32 largest_f32
#define largest_real_f64 largest_f64
#endif

/* exp(x) = 2^k * exp(r), |r| <= ln 2 / 2, by its series up to where the remainder is below the rounding. k is found by
 * adding 1.5 * 2^(mantissa bits): its low bits then are k, ready to become an exponent. Below the smallest normal
 * number the result is 0, above the largest infinite; NaN stays NaN. At most 2 units in the last place off. */
INLINE REAL N(exp)(REAL x)
{
    const int is_wide = sizeof(REAL) == 8;
    const REAL low = (REAL)(is_wide ? -708.0 : -87.0), high = (REAL)(is_wide ? 709.0 : 88.0);
    const REAL shifter = (REAL)(is_wide ? 0x1.8p52 : 0x1.8p23), one = 1;
    const REAL ln2_high = (REAL)(is_wide ? 0x1.62e42fee00000p-1 : 0x1.62e400p-1);
    const REAL ln2_low = (REAL)(is_wide ? 0x1.a39ef35793c76p-33 : 0x1.7f7d1cp-20);
    REAL y = x < low ? low : x;

    y = y > high ? high : y;
    REAL shifted = y * (REAL)1.4426950408889634 + shifter, k = shifted - shifter;
    REAL r = (y - k * ln2_high) - k * ln2_low, sum = 1;

    if (is_wide) {
        sum = sum * r * (REAL)(1.0 / 13) + 1;
        sum = sum * r * (REAL)(1.0 / 12) + 1;
        sum = sum * r * (REAL)(1.0 / 11) + 1;
        sum = sum * r * (REAL)(1.0 / 10) + 1;
        sum = sum * r * (REAL)(1.0 / 9) + 1;
        sum = sum * r * (REAL)(1.0 / 8) + 1;
    }
    sum = sum * r * (REAL)(1.0 / 7) + 1;
    sum = sum * r * (REAL)(1.0 / 6) + 1;
    sum = sum * r * (REAL)(1.0 / 5) + 1;
    sum = sum * r * (REAL)(1.0 / 4) + 1;
    sum = sum * r * (REAL)(1.0 / 3) + 1;
    sum = sum * r * (REAL)0.5 + 1;
    sum = sum * r + 1;

    INT bits, one_bits;
    REAL power;

    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&one_bits, &one, sizeof one_bits);
    bits = (INT)((UINT)bits << (is_wide ? 52 : 23)) + one_bits;
    memcpy(&power, &bits, sizeof power);
    sum *= power;
    sum = x < low ? 0 : sum;
    return x > high ? (REAL)INFINITY : sum;
}

/* 1 / (1 + exp(-x)). */
INLINE REAL N(sigmoid)(REAL x)
{
    return 1 / (1 + N(exp)(-x));
}
