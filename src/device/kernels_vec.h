/* The kernels on vectors of VB bytes, in GCC's vector extension; a source file per instruction set defines VB and
 * KERNELS (the name of the table), includes this, and is compiled with that set's flags. A template: it does not
 * compile alone.
 *
 * One loop serves all. A vector read from a source `enters` as parts: one vector of the same lanes, or two or four
 * of f32 for 16- and 8-bit floats; parts are combined with those of the other sources in registers; and the result
 * leaves as one vector. All work is lane by lane, so a vector may be put together from any bytes. Invariants:
 *  - Every source byte a store may overwrite has been read before (dst may be a source). The last vector of a
 *    buffer overlaps the one before it, so it is computed first and stored last.
 *  - Nothing outside [0, bytes) is touched.
 *  - The same bits as kernels_c.c. */
#include "device/formats.h"
#include "device/kernels.h"

#include <immintrin.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline))

typedef uint64_t vec __attribute__((vector_size(VB)));
typedef uint8_t vu8 __attribute__((vector_size(VB)));
typedef uint16_t vu16 __attribute__((vector_size(VB)));
typedef uint32_t vu32 __attribute__((vector_size(VB)));
typedef uint64_t vu64 __attribute__((vector_size(VB)));
typedef int8_t vi8 __attribute__((vector_size(VB)));
typedef int16_t vi16 __attribute__((vector_size(VB)));
typedef int32_t vi32 __attribute__((vector_size(VB)));
typedef int64_t vi64 __attribute__((vector_size(VB)));
typedef float vf32 __attribute__((vector_size(VB)));
typedef double vf64 __attribute__((vector_size(VB)));

#define SPLAT(bits)                                                                                            \
    INLINE vu##bits splat_u##bits(uint##bits##_t x) { return (vu##bits){0} + x; }
SPLAT(8)
SPLAT(16)
SPLAT(32)
SPLAT(64)

/* Lanes of a where the mask is all ones, of b where it is zero. */
INLINE vec pick(vec mask, vec a, vec b)
{
    return (a & mask) | (b & ~mask);
}

/* --- Memory ----------------------------------------------------------------------------------------------------- */

INLINE vec load(const char *p)
{
    vec v;

    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(char *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

INLINE uint64_t load_word(const char *p, size_t bytes)
{
    uint64_t word = 0;

    memcpy(&word, p, bytes);
    return word;
}

INLINE void store_word(char *p, uint64_t word, size_t bytes)
{
    memcpy(p, &word, bytes);
}

/* 1 <= bytes < 16: the first and the last 2^k bytes side by side, where 2^k <= bytes < 2^(k+1). They overlap, and
 * store_below_16 writes the overlap twice, the same both times. Cheaper than memcpy with a variable count. */
INLINE vec load_below_16(const char *p, size_t bytes)
{
    vec v = {0};

    if (bytes >= 8) {
        v[0] = load_word(p, 8);
        v[1] = load_word(p + bytes - 8, 8);
    } else if (bytes >= 4) {
        v[0] = load_word(p, 4) | load_word(p + bytes - 4, 4) << 32;
    } else if (bytes >= 2) {
        v[0] = load_word(p, 2) | load_word(p + bytes - 2, 2) << 16;
    } else {
        v[0] = load_word(p, 1);
    }
    return v;
}

INLINE void store_below_16(char *p, vec v, size_t bytes)
{
    if (bytes >= 8) {
        store_word(p, v[0], 8);
        store_word(p + bytes - 8, v[1], 8);
    } else if (bytes >= 4) {
        store_word(p, v[0], 4);
        store_word(p + bytes - 4, v[0] >> 32, 4);
    } else if (bytes >= 2) {
        store_word(p, v[0], 2);
        store_word(p + bytes - 2, v[0] >> 16, 2);
    } else {
        store_word(p, v[0], 1);
    }
}

/* The same for any 1 <= bytes < VB. */
#if VB == 16
INLINE vec load_part(const char *p, size_t bytes)
{
    return load_below_16(p, bytes);
}

INLINE void store_part(char *p, vec v, size_t bytes)
{
    store_below_16(p, v, bytes);
}
#elif VB == 32
INLINE vec load_part(const char *p, size_t bytes)
{
    if (bytes < 16)
        return load_below_16(p, bytes);
    return (vec)_mm256_loadu2_m128i((const __m128i *)(p + bytes - 16), (const __m128i *)p);
}

INLINE void store_part(char *p, vec v, size_t bytes)
{
    if (bytes < 16)
        store_below_16(p, v, bytes);
    else
        _mm256_storeu2_m128i((__m128i *)(p + bytes - 16), (__m128i *)p, (__m256i)v);
}
#else
INLINE vec load_part(const char *p, size_t bytes)
{
    __m256i low, high = _mm256_setzero_si256();

    if (bytes < 16)
        return load_below_16(p, bytes);
    if (bytes < 32) {
        low = _mm256_loadu2_m128i((const __m128i *)(p + bytes - 16), (const __m128i *)p);
    } else {
        low = _mm256_loadu_si256((const __m256i *)p);
        high = _mm256_loadu_si256((const __m256i *)(p + bytes - 32));
    }
    return (vec)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

INLINE void store_part(char *p, vec v, size_t bytes)
{
    const __m256i low = _mm512_castsi512_si256((__m512i)v);

    if (bytes < 16) {
        store_below_16(p, v, bytes);
    } else if (bytes < 32) {
        _mm256_storeu2_m128i((__m128i *)(p + bytes - 16), (__m128i *)p, low);
    } else {
        _mm256_storeu_si256((__m256i *)p, low);
        _mm256_storeu_si256((__m256i *)(p + bytes - 32), _mm512_extracti64x4_epi64((__m512i)v, 1));
    }
}
#endif

/* Store past the caches, at a multiple of VB. */
INLINE void stream(char *p, vec v)
{
#if VB == 16
    _mm_stream_si128((__m128i *)p, (__m128i)v);
#elif VB == 32
    _mm256_stream_si256((__m256i *)p, (__m256i)v);
#else
    _mm512_stream_si512((__m512i *)p, (__m512i)v);
#endif
}

/* Copy past the caches. Later stores may become visible before these until hkt__stores_settle. */
static void copy_streaming(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    const size_t head = -(uintptr_t)to % VB < bytes ? -(uintptr_t)to % VB : bytes;

    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= VB; to += VB, from += VB, bytes -= VB)
        stream(to, load(from));
    memcpy(to, from, bytes);
}

/* --- The loop --------------------------------------------------------------------------------------------------- */

/* What a vector of elements becomes while it is folded. A kernel uses 1, 2 or 4 of them. */
struct parts {
    vec p[4];
};

/* How much code a kernel is worth. PAIRS: a copy of the loop for two sources, which is what most schedules fold, with
 * both pointers in registers. BY_FOUR: four vectors at a time, so that little is spent on fetching pointers; not for
 * kernels whose parts would then exceed the registers. TRUTH: plain, and a single source is folded too, not copied. */
enum shape { PLAIN, PAIRS, PAIRS_BY_FOUR, TRUTH };

struct kernel {
    void (*enter)(struct parts *out, vec elements);
    void (*combine)(struct parts *acc, const struct parts *x);
    vec (*leave)(const struct parts *acc);
    enum shape shape;
};

INLINE vec fold_one(const char *const *srcs, int nsrcs, size_t at, struct kernel k)
{
    struct parts acc, x;

    k.enter(&acc, load(srcs[0] + at));
    for (int j = 1; j < nsrcs; ++j) {
        k.enter(&x, load(srcs[j] + at));
        k.combine(&acc, &x);
    }
    return k.leave(&acc);
}

INLINE vec fold_part(const char *const *srcs, int nsrcs, size_t at, size_t bytes, struct kernel k)
{
    struct parts acc, x;

    k.enter(&acc, load_part(srcs[0] + at, bytes));
    for (int j = 1; j < nsrcs; ++j) {
        k.enter(&x, load_part(srcs[j] + at, bytes));
        k.combine(&acc, &x);
    }
    return k.leave(&acc);
}

/* Four vectors at once: out[0..3]. */
INLINE void fold_four(vec *out, const char *const *srcs, int nsrcs, size_t at, struct kernel k)
{
    struct parts a, b, c, d, x;

    k.enter(&a, load(srcs[0] + at));
    k.enter(&b, load(srcs[0] + at + VB));
    k.enter(&c, load(srcs[0] + at + 2 * VB));
    k.enter(&d, load(srcs[0] + at + 3 * VB));
    for (int j = 1; j < nsrcs; ++j) {
        const char *src = srcs[j] + at;

        k.enter(&x, load(src));
        k.combine(&a, &x);
        k.enter(&x, load(src + VB));
        k.combine(&b, &x);
        k.enter(&x, load(src + 2 * VB));
        k.combine(&c, &x);
        k.enter(&x, load(src + 3 * VB));
        k.combine(&d, &x);
    }
    out[0] = k.leave(&a);
    out[1] = k.leave(&b);
    out[2] = k.leave(&c);
    out[3] = k.leave(&d);
}

INLINE void fold_all(char *dst, const char *const *srcs, int nsrcs, size_t bytes, struct kernel k)
{
    size_t at = 0;

    if (bytes < VB) {
        if (bytes > 0)
            store_part(dst, fold_part(srcs, nsrcs, 0, bytes, k), bytes);
        return;
    }
    const vec last = fold_one(srcs, nsrcs, bytes - VB, k);

    for (; k.shape == PAIRS_BY_FOUR && bytes - at > 4 * VB; at += 4 * VB) {
        vec four[4];

        fold_four(four, srcs, nsrcs, at, k);
        for (int i = 0; i < 4; ++i)
            store(dst + at + i * VB, four[i]);
    }
    for (; bytes - at > VB; at += VB)
        store(dst + at, fold_one(srcs, nsrcs, at, k));
    store(dst + bytes - VB, last);
}

INLINE void fold(void *dst, const void *const *srcs, int nsrcs, size_t bytes, struct kernel k)
{
    if (nsrcs == 2 && (k.shape == PAIRS || k.shape == PAIRS_BY_FOUR)) {
        const char *const two[2] = {srcs[0], srcs[1]};

        fold_all(dst, two, 2, bytes, k);
    } else if (nsrcs >= 2 || k.shape == TRUTH) {
        fold_all(dst, (const char *const *)srcs, nsrcs, bytes, k);
    } else {
        hkt__copy_bytes(dst, srcs[0], bytes, 0);
    }
}

#include "device/kernels_spread.h"

/* dst = src combined with the same parts everywhere: scaling. */
INLINE void map(char *dst, const char *src, const struct parts *factor, size_t bytes, struct kernel k)
{
    struct parts x;

    if (bytes < VB) {
        if (bytes > 0) {
            k.enter(&x, load_part(src, bytes));
            k.combine(&x, factor);
            store_part(dst, k.leave(&x), bytes);
        }
        return;
    }
    k.enter(&x, load(src + bytes - VB));
    k.combine(&x, factor);
    const vec last = k.leave(&x);

    for (size_t at = 0; bytes - at > VB; at += VB) {
        k.enter(&x, load(src + at));
        k.combine(&x, factor);
        store(dst + at, k.leave(&x));
    }
    store(dst + bytes - VB, last);
}

#define FOLD(name, element_bytes, shape, enter, combine, leave)                                                \
    static void name(void *dst, const void *const *srcs, int nsrcs, size_t count)                              \
    {                                                                                                          \
        fold(dst, srcs, nsrcs, count * (element_bytes), (struct kernel){enter, combine, leave, shape});        \
    }

/* --- Integers --------------------------------------------------------------------------------------------------- */

INLINE void enter_same(struct parts *out, vec elements)
{
    out->p[0] = elements;
}

INLINE vec leave_same(const struct parts *acc)
{
    return acc->p[0];
}

/* acc = expression in x (acc so far) and y (the next source), both of type `lanes`. */
#define COMBINE(name, lanes, expression)                                                                       \
    INLINE void name(struct parts *acc, const struct parts *next)                                              \
    {                                                                                                          \
        const lanes x = (lanes)acc->p[0], y = (lanes)next->p[0];                                               \
                                                                                                               \
        acc->p[0] = (vec)(expression);                                                                         \
    }
COMBINE(combine_and, vec, x & y)
COMBINE(combine_or, vec, x | y)
COMBINE(combine_xor, vec, x ^ y)

/* Truth values are masks while they are folded, 0 or 1 outside. */
#define INTEGERS(bits)                                                                                         \
    COMBINE(add_u##bits, vu##bits, x + y)                                                                      \
    COMBINE(mul_u##bits, vu##bits, x *y)                                                                       \
    COMBINE(lesser_u##bits, vu##bits, pick((vec)(y < x), (vec)y, (vec)x))                                      \
    COMBINE(greater_u##bits, vu##bits, pick((vec)(y > x), (vec)y, (vec)x))                                     \
    COMBINE(lesser_i##bits, vi##bits, pick((vec)(y < x), (vec)y, (vec)x))                                      \
    COMBINE(greater_i##bits, vi##bits, pick((vec)(y > x), (vec)y, (vec)x))                                     \
    INLINE void enter_truth_u##bits(struct parts *out, vec elements)                                           \
    {                                                                                                          \
        out->p[0] = (vec)((vu##bits)elements != splat_u##bits(0));                                             \
    }                                                                                                          \
    INLINE vec leave_truth_u##bits(const struct parts *acc)                                                    \
    {                                                                                                          \
        return acc->p[0] & (vec)splat_u##bits(1);                                                              \
    }                                                                                                          \
    FOLD(sum_u##bits, bits / 8, PAIRS_BY_FOUR, enter_same, add_u##bits, leave_same)                                 \
    SPREAD(u##bits, bits / 8, enter_same, add_u##bits, leave_same)                                             \
    FOLD(prod_u##bits, bits / 8, PLAIN, enter_same, mul_u##bits, leave_same)                                   \
    FOLD(min_u##bits, bits / 8, PLAIN, enter_same, lesser_u##bits, leave_same)                                 \
    FOLD(max_u##bits, bits / 8, PLAIN, enter_same, greater_u##bits, leave_same)                                \
    FOLD(min_i##bits, bits / 8, PLAIN, enter_same, lesser_i##bits, leave_same)                                 \
    FOLD(max_i##bits, bits / 8, PLAIN, enter_same, greater_i##bits, leave_same)                                \
    FOLD(land_u##bits, bits / 8, TRUTH, enter_truth_u##bits, combine_and, leave_truth_u##bits)                 \
    FOLD(lor_u##bits, bits / 8, TRUTH, enter_truth_u##bits, combine_or, leave_truth_u##bits)                   \
    FOLD(lxor_u##bits, bits / 8, TRUTH, enter_truth_u##bits, combine_xor, leave_truth_u##bits)
INTEGERS(8)
INTEGERS(16)
INTEGERS(32)
INTEGERS(64)

/* Bitwise operations do not see the element size. */
FOLD(band_u8, 1, PLAIN, enter_same, combine_and, leave_same)
FOLD(bor_u8, 1, PLAIN, enter_same, combine_or, leave_same)
FOLD(bxor_u8, 1, PLAIN, enter_same, combine_xor, leave_same)

#define BITWISE(name, bits)                                                                                    \
    static void name##_u##bits(void *dst, const void *const *srcs, int nsrcs, size_t count)                    \
    {                                                                                                          \
        name##_u8(dst, srcs, nsrcs, count * (bits / 8));                                                       \
    }
#define BITWISE_WIDER(name) BITWISE(name, 16) BITWISE(name, 32) BITWISE(name, 64)
BITWISE_WIDER(band)
BITWISE_WIDER(bor)
BITWISE_WIDER(bxor)

/* --- Minimum and maximum of floats: as integers, on the codes ----------------------------------------------- */

/* Codes of negative values get their other bits flipped, which makes the order of signed integers the order of
 * values (its own inverse). NaN enters as the value that wins: the positive one is above +inf, the negative one
 * below -inf. */
#define FLOAT_ORDER(suffix, bits, largest, nan)                                                                \
    INLINE vec key_##suffix(vec code)                                                                          \
    {                                                                                                          \
        return code ^ ((vec)((vi##bits)code < (vi##bits){0}) & (vec)(splat_u##bits(-1) >> 1));                 \
    }                                                                                                          \
    INLINE vec is_nan_##suffix(vec code)                                                                       \
    {                                                                                                          \
        const vi##bits magnitude = (vi##bits)((vu##bits)code & (splat_u##bits(-1) >> 1));                      \
                                                                                                               \
        return (vec)(magnitude > (vi##bits)splat_u##bits(largest));                                            \
    }                                                                                                          \
    INLINE void enter_max_##suffix(struct parts *out, vec code)                                                \
    {                                                                                                          \
        out->p[0] = key_##suffix(pick(is_nan_##suffix(code), (vec)splat_u##bits(nan), code));                  \
    }                                                                                                          \
    INLINE vec leave_max_##suffix(const struct parts *acc)                                                     \
    {                                                                                                          \
        return key_##suffix(acc->p[0]);                                                                        \
    }                                                                                                          \
    INLINE void enter_min_##suffix(struct parts *out, vec code)                                                \
    {                                                                                                          \
        out->p[0] = key_##suffix(code | is_nan_##suffix(code));                                                \
    }                                                                                                          \
    INLINE vec leave_min_##suffix(const struct parts *acc)                                                     \
    {                                                                                                          \
        const vec code = key_##suffix(acc->p[0]);                                                              \
                                                                                                               \
        return pick(is_nan_##suffix(code), (vec)splat_u##bits(nan), code);                                     \
    }                                                                                                          \
    FOLD(max_##suffix, bits / 8, PLAIN, enter_max_##suffix, greater_i##bits, leave_max_##suffix)               \
    FOLD(min_##suffix, bits / 8, PLAIN, enter_min_##suffix, lesser_i##bits, leave_min_##suffix)
FLOAT_ORDER(f16, 16, 0x7c00, 0x7e00)
FLOAT_ORDER(bf16, 16, 0x7f80, 0x7fc0)
FLOAT_ORDER(f8e4m3, 8, 0x7e, 0x7f)
FLOAT_ORDER(f8e5m2, 8, 0x7c, 0x7e)
FLOAT_ORDER(f32, 32, HKT__F32_INF, HKT__F32_NAN)
FLOAT_ORDER(f64, 64, HKT__F64_INF, HKT__F64_NAN)

/* --- Sum, product and scaling of floats --------------------------------------------------------------------- */

COMBINE(add_f32x1, vf32, x + y)
COMBINE(mul_f32x1, vf32, x *y)
COMBINE(div_f32x1, vf32, x / y)
COMBINE(add_f64x1, vf64, x + y)
COMBINE(mul_f64x1, vf64, x *y)
COMBINE(div_f64x1, vf64, x / y)

#define COMBINE_F32(name, op, nparts)                                                                          \
    INLINE void name(struct parts *acc, const struct parts *next)                                              \
    {                                                                                                          \
        for (int i = 0; i < nparts; ++i)                                                                       \
            acc->p[i] = (vec)((vf32)acc->p[i] op (vf32)next->p[i]);                                            \
    }
COMBINE_F32(add_f32x2, +, 2)
COMBINE_F32(mul_f32x2, *, 2)
COMBINE_F32(div_f32x2, /, 2)
COMBINE_F32(add_f32x4, +, 4)
COMBINE_F32(mul_f32x4, *, 4)
COMBINE_F32(div_f32x4, /, 4)

/* Whether any lane of either is NaN: rare, so that making it the one NaN is left to a branch. */
INLINE bool any_nan_f32(vec a, vec b)
{
#if VB == 16
    return __builtin_expect(_mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b)) != 0, 0);
#elif VB == 32
    return __builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0, 0);
#else
    return __builtin_expect(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0, 0);
#endif
}

INLINE bool any_nan_f64(vec a, vec b)
{
#if VB == 16
    return __builtin_expect(_mm_movemask_pd(_mm_cmpunord_pd((__m128d)a, (__m128d)b)) != 0, 0);
#elif VB == 32
    return __builtin_expect(_mm256_movemask_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_UNORD_Q)) != 0, 0);
#else
    return __builtin_expect(_mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_UNORD_Q) != 0, 0);
#endif
}

INLINE vec one_nan_f32(vec x)
{
    return pick((vec)((vf32)x != (vf32)x), (vec)splat_u32(HKT__F32_NAN), x);
}

INLINE vec leave_f32(const struct parts *acc)
{
    return any_nan_f32(acc->p[0], acc->p[0]) ? one_nan_f32(acc->p[0]) : acc->p[0];
}

INLINE vec leave_f64(const struct parts *acc)
{
    const vf64 x = (vf64)acc->p[0];

    return any_nan_f64((vec)x, (vec)x) ? pick((vec)(x != x), splat_u64(HKT__F64_NAN), (vec)x) : (vec)x;
}

/* bf16: the even elements and the odd ones of a vector, each the upper half of an f32 lane. */
INLINE void enter_bf16(struct parts *out, vec elements)
{
    out->p[0] = (vec)((vu32)elements << 16);
    out->p[1] = (vec)((vu32)elements & splat_u32(0xffff0000));
}

/* Rounded, in the upper half of each lane. Not for NaN, except the one that has no low bits. */
INLINE vu32 round_bf16(vec part)
{
    const vu32 bits = (vu32)part;

    return bits + splat_u32(0x7fff) + ((bits >> 16) & splat_u32(1));
}

INLINE vec leave_bf16(const struct parts *acc)
{
    vec even = acc->p[0], odd = acc->p[1];

    if (any_nan_f32(even, odd)) {
        even = one_nan_f32(even);
        odd = one_nan_f32(odd);
    }
    return (vec)(round_bf16(even) >> 16 | (round_bf16(odd) & splat_u32(0xffff0000)));
}

/* hkt__decode on every lane. */
INLINE vec decode(vu32 code, struct hkt__format f)
{
    const vu32 magnitude = code & splat_u32((1u << (f.bits - 1)) - 1), sign = (code ^ magnitude) << (32 - f.bits);
    const vu32 normal = (magnitude << (23 - f.mantissa_bits)) + splat_u32((uint32_t)(127 - f.bias) << 23);
    const vec subnormal = (vec)(__builtin_convertvector((vi32)magnitude, vf32) * f.unit);
    vec bits = pick((vec)((vi32)magnitude < (vi32)splat_u32(1u << f.mantissa_bits)), subnormal, (vec)normal);

    if (f.overflow == f.largest)
        bits = pick((vec)(magnitude == splat_u32(f.overflow)), (vec)splat_u32(HKT__F32_INF), bits);
    bits = pick((vec)((vi32)magnitude > (vi32)splat_u32(f.largest)), (vec)splat_u32(HKT__F32_NAN), bits);
    return bits | (vec)sign;
}

/* hkt__encode on every lane. */
INLINE vu32 encode(vec part, struct hkt__format f)
{
    const int shift = 23 - f.mantissa_bits;
    const uint32_t rebias = (uint32_t)(127 - f.bias) << 23, normal_min = rebias + (1u << 23);
    const vu32 bits = (vu32)part, magnitude = bits & splat_u32(0x7fffffff), sign = (bits ^ magnitude) >> (32 - f.bits);
    const vf32 anchor = (vf32)splat_u32(hkt__f32_bits(f.unit * 0x1p23f));
    const vu32 low = (vu32)((vf32)magnitude + anchor) - (vu32)anchor, rest = magnitude - splat_u32(rebias);
    const vu32 high = (rest + splat_u32((1u << (shift - 1)) - 1) + ((rest >> shift) & splat_u32(1))) >> shift;
    vec code = pick((vec)((vi32)magnitude < (vi32)splat_u32(normal_min)), (vec)low, (vec)high);
    const vec over = (vec)((vi32)code > (vi32)splat_u32(f.largest));
    vec nan = (vec)((vf32)part != (vf32)part);

    code = pick(over, (vec)splat_u32(f.overflow), code) | (vec)sign;
    if (f.overflow != f.largest)
        nan |= over;
    return (vu32)pick(nan, (vec)splat_u32(f.nan), code);
}

#if VB == 16
INLINE void enter_f16(struct parts *out, vec elements)
{
    out->p[0] = decode((vu32)elements & splat_u32(0xffff), hkt__format_f16);
    out->p[1] = decode((vu32)elements >> 16, hkt__format_f16);
}

INLINE vec leave_f16(const struct parts *acc)
{
    return (vec)(encode(acc->p[0], hkt__format_f16) | encode(acc->p[1], hkt__format_f16) << 16);
}
#else
/* f16 by the processor's conversions (F16C): the first half of the elements, and the second. A quiet positive NaN
 * stays one. */
INLINE void enter_f16(struct parts *out, vec elements)
{
#if VB == 32
    out->p[0] = (vec)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)elements));
    out->p[1] = (vec)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)elements, 1));
#else
    out->p[0] = (vec)_mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)elements));
    out->p[1] = (vec)_mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)elements, 1));
#endif
}

INLINE vec leave_f16(const struct parts *acc)
{
    vec low = acc->p[0], high = acc->p[1];

    if (any_nan_f32(low, high)) {
        low = one_nan_f32(low);
        high = one_nan_f32(high);
    }
#if VB == 32
    return (vec)_mm256_set_m128i(_mm256_cvtps_ph((__m256)high, 0), _mm256_cvtps_ph((__m256)low, 0));
#else
    return (vec)_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph((__m512)low, 0)),
                                   _mm512_cvtps_ph((__m512)high, 0), 1);
#endif
}
#endif

/* f8: byte i of every 32-bit lane is part i. */
#define F8(suffix, format)                                                                                     \
    INLINE void enter_##suffix(struct parts *out, vec elements)                                                \
    {                                                                                                          \
        for (int i = 0; i < 4; ++i)                                                                            \
            out->p[i] = decode((vu32)elements >> (8 * i) & splat_u32(0xff), format);                           \
    }                                                                                                          \
    INLINE vec leave_##suffix(const struct parts *acc)                                                         \
    {                                                                                                          \
        vu32 elements = encode(acc->p[0], format);                                                             \
                                                                                                               \
        for (int i = 1; i < 4; ++i)                                                                            \
            elements |= encode(acc->p[i], format) << (8 * i);                                                  \
        return (vec)elements;                                                                                  \
    }
F8(f8e4m3, hkt__format_f8e4m3)
F8(f8e5m2, hkt__format_f8e5m2)

#define SCALE(name, element_bytes, factor_vec, enter, combine, leave)                                          \
    static void name(void *dst, const void *src, size_t count, double factor)                                  \
    {                                                                                                          \
        const vec f = (vec)(factor_vec);                                                                       \
        const struct parts factors = {{f, f, f, f}};                                                           \
                                                                                                               \
        map(dst, src, &factors, count * (element_bytes), (struct kernel){enter, combine, leave, PLAIN});       \
    }
#define FLOATS(suffix, bytes, factor_vec, shape, parts, enter, leave)                                          \
    FOLD(sum_##suffix, bytes, shape, enter, add_##parts, leave)                                                \
    FOLD(prod_##suffix, bytes, PLAIN, enter, mul_##parts, leave)                                               \
    SCALE(multiply_##suffix, bytes, factor_vec, enter, mul_##parts, leave)                                     \
    SCALE(divide_##suffix, bytes, factor_vec, enter, div_##parts, leave)
#define F32_FACTOR splat_u32(hkt__f32_bits((float)factor))
FLOATS(f32, 4, F32_FACTOR, PAIRS_BY_FOUR, f32x1, enter_same, leave_f32)
FLOATS(f64, 8, splat_u64(hkt__f64_bits(factor)), PAIRS_BY_FOUR, f64x1, enter_same, leave_f64)
FLOATS(f16, 2, F32_FACTOR, PAIRS, f32x2, enter_f16, leave_f16)
FLOATS(bf16, 2, F32_FACTOR, PAIRS, f32x2, enter_bf16, leave_bf16)
SPREAD(f32, 4, enter_same, add_f32x1, leave_f32)
SPREAD(f64, 8, enter_same, add_f64x1, leave_f64)
SPREAD(f16, 2, enter_f16, add_f32x2, leave_f16)
SPREAD(bf16, 2, enter_bf16, add_f32x2, leave_bf16)
FLOATS(f8e4m3, 1, F32_FACTOR, PLAIN, f32x4, enter_f8e4m3, leave_f8e4m3)
FLOATS(f8e5m2, 1, F32_FACTOR, PLAIN, f32x4, enter_f8e5m2, leave_f8e5m2)

const struct hkt__kernels KERNELS = {
    .reduce = {HKT__REDUCE_TABLE(HKT__REDUCE_ROW)},
    .multiply = {HKT__SCALE_TABLE(HKT__MULTIPLY_ROW)},
    .divide = {HKT__SCALE_TABLE(HKT__DIVIDE_ROW)},
    .spread_sum = {HKT__SPREAD_TABLE(HKT__SPREAD_ROW)},
    .copy_streaming = copy_streaming,
};
