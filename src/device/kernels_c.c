/* The kernels in plain C: the definition that every vector version must match bit for bit, and what runs on
 * processors without one. All reductions are instances of one loop: the first source enters, the others are
 * combined in order, the result leaves. Elements are read and written as unsigned codes of their size, so nothing
 * can overflow or trap. */
#include "device/formats.h"
#include "device/kernels.h"

/* An instance of the loop for elements of type `code`, folded as `value`: value enter(code), value combine(value,
 * value), code leave(value). changes_one: a single source enters and leaves like several; else it is copied. */
#define FOLD_FROM(changes_one, name, code, value, enter, combine, leave)                                       \
    static void name(void *dst, const void *const *srcs, int nsrcs, size_t count)                              \
    {                                                                                                          \
        if (nsrcs == 1 && !(changes_one)) {                                                                    \
            hkt__copy_bytes(dst, srcs[0], count * sizeof(code), 0);                                            \
            return;                                                                                            \
        }                                                                                                      \
        for (size_t i = 0; i < count; ++i) {                                                                   \
            value acc = enter(load_##code(srcs[0], i));                                                        \
                                                                                                               \
            for (int j = 1; j < nsrcs; ++j)                                                                    \
                acc = combine(acc, enter(load_##code(srcs[j], i)));                                            \
            store_##code(dst, i, leave(acc));                                                                  \
        }                                                                                                      \
    }
#define FOLD(name, code, value, enter, combine, leave) FOLD_FROM(0, name, code, value, enter, combine, leave)
#define FOLD_TRUTH(name, code, enter, combine) FOLD_FROM(1, name, code, code, enter, combine, same_##code)

/* dst[i] = src[i] op factor, in `real`. */
#define SCALE(name, code, real, enter, op, leave)                                                              \
    static void name(void *dst, const void *src, size_t count, double factor)                                  \
    {                                                                                                          \
        for (size_t i = 0; i < count; ++i)                                                                     \
            store_##code(dst, i, leave(enter(load_##code(src, i)) op (real)factor));                           \
    }

/* Unaligned access. */
#define ACCESS(code)                                                                                           \
    static inline code load_##code(const void *p, size_t i)                                                    \
    {                                                                                                          \
        code x;                                                                                                \
                                                                                                               \
        memcpy(&x, (const char *)p + i * sizeof x, sizeof x);                                                  \
        return x;                                                                                              \
    }                                                                                                          \
    static inline void store_##code(void *p, size_t i, code x)                                                 \
    {                                                                                                          \
        memcpy((char *)p + i * sizeof x, &x, sizeof x);                                                        \
    }                                                                                                          \
    static inline code same_##code(code x)                                                                     \
    {                                                                                                          \
        return x;                                                                                              \
    }
ACCESS(uint8_t)
ACCESS(uint16_t)
ACCESS(uint32_t)
ACCESS(uint64_t)

/* Integers of `bits` bits. Products are formed in 64 unsigned bits: uint16_t would promote to int and overflow it. */
#define INTEGERS(bits, code, sign)                                                                             \
    static inline code add_u##bits(code a, code b) { return (code)(a + b); }                                   \
    static inline code mul_u##bits(code a, code b) { return (code)((uint64_t)a * b); }                         \
    static inline code lesser_u##bits(code a, code b) { return b < a ? b : a; }                                \
    static inline code greater_u##bits(code a, code b) { return b > a ? b : a; }                               \
    static inline code lesser_i##bits(code a, code b) { return (sign)b < (sign)a ? b : a; }                    \
    static inline code greater_i##bits(code a, code b) { return (sign)b > (sign)a ? b : a; }                   \
    static inline code and_u##bits(code a, code b) { return a & b; }                                           \
    static inline code or_u##bits(code a, code b) { return a | b; }                                            \
    static inline code xor_u##bits(code a, code b) { return a ^ b; }                                           \
    static inline code truth_u##bits(code a) { return a != 0; }                                                \
    FOLD(sum_u##bits, code, code, same_##code, add_u##bits, same_##code)                                       \
    FOLD(prod_u##bits, code, code, same_##code, mul_u##bits, same_##code)                                      \
    FOLD(min_u##bits, code, code, same_##code, lesser_u##bits, same_##code)                                    \
    FOLD(max_u##bits, code, code, same_##code, greater_u##bits, same_##code)                                   \
    FOLD(min_i##bits, code, code, same_##code, lesser_i##bits, same_##code)                                    \
    FOLD(max_i##bits, code, code, same_##code, greater_i##bits, same_##code)                                   \
    FOLD(band_u##bits, code, code, same_##code, and_u##bits, same_##code)                                      \
    FOLD(bor_u##bits, code, code, same_##code, or_u##bits, same_##code)                                        \
    FOLD(bxor_u##bits, code, code, same_##code, xor_u##bits, same_##code)                                      \
    FOLD_TRUTH(land_u##bits, code, truth_u##bits, and_u##bits)                                                 \
    FOLD_TRUTH(lor_u##bits, code, truth_u##bits, or_u##bits)                                                   \
    FOLD_TRUTH(lxor_u##bits, code, truth_u##bits, xor_u##bits)
INTEGERS(8, uint8_t, int8_t)
INTEGERS(16, uint16_t, int16_t)
INTEGERS(32, uint32_t, int32_t)
INTEGERS(64, uint64_t, int64_t)

/* Sum and product of floats, in `real`. */
#define FLOATS(format, code, real)                                                                             \
    FOLD(sum_##format, code, real, real_of_##format, add_##real, code_of_##format)                             \
    FOLD(prod_##format, code, real, real_of_##format, mul_##real, code_of_##format)                            \
    SCALE(multiply_##format, code, real, real_of_##format, *, code_of_##format)                                \
    SCALE(divide_##format, code, real, real_of_##format, /, code_of_##format)

static inline float add_float(float a, float b) { return a + b; }
static inline float mul_float(float a, float b) { return a * b; }
static inline double add_double(double a, double b) { return a + b; }
static inline double mul_double(double a, double b) { return a * b; }

static inline float real_of_f32(uint32_t code)
{
    return hkt__f32_of(code);
}

static inline uint32_t code_of_f32(float x)
{
    return x == x ? hkt__f32_bits(x) : HKT__F32_NAN;
}
FLOATS(f32, uint32_t, float)

static inline double real_of_f64(uint64_t code)
{
    double x;

    memcpy(&x, &code, sizeof x);
    return x;
}

static inline uint64_t code_of_f64(double x)
{
    return x == x ? hkt__f64_bits(x) : HKT__F64_NAN;
}
FLOATS(f64, uint64_t, double)

#define SMALL_FLOATS(suffix, code, format)                                                                     \
    static inline float real_of_##suffix(code x) { return hkt__decode(x, format); }                            \
    static inline code code_of_##suffix(float x) { return (code)hkt__encode(x, format); }                      \
    FLOATS(suffix, code, float)
SMALL_FLOATS(f16, uint16_t, hkt__format_f16)
SMALL_FLOATS(bf16, uint16_t, hkt__format_bf16)
SMALL_FLOATS(f8e4m3, uint8_t, hkt__format_f8e4m3)
SMALL_FLOATS(f8e5m2, uint8_t, hkt__format_f8e5m2)

/* Minimum and maximum of floats, on the codes: `largest` is the code of the largest value, above it are the NaNs. The
 * order of codes with the sign flipped (positive), or all bits flipped (negative), is the order of values, with
 * -0 < +0. */
#define FLOAT_ORDER(suffix, code, largest, nan)                                                                \
    static inline int is_nan_##suffix(code x) { return (code)(x << 1) > (code)((code)(largest) << 1); }        \
    static inline code key_##suffix(code x)                                                                    \
    {                                                                                                          \
        const code sign = (code)((code)1 << (8 * sizeof x - 1));                                               \
                                                                                                               \
        return x & sign ? (code)~x : x | sign;                                                                 \
    }                                                                                                          \
    static inline code lesser_##suffix(code a, code b)                                                         \
    {                                                                                                          \
        return is_nan_##suffix(a) || is_nan_##suffix(b) ? nan : key_##suffix(b) < key_##suffix(a) ? b : a;     \
    }                                                                                                          \
    static inline code greater_##suffix(code a, code b)                                                        \
    {                                                                                                          \
        return is_nan_##suffix(a) || is_nan_##suffix(b) ? nan : key_##suffix(b) > key_##suffix(a) ? b : a;     \
    }                                                                                                          \
    FOLD(min_##suffix, code, code, same_##code, lesser_##suffix, same_##code)                                  \
    FOLD(max_##suffix, code, code, same_##code, greater_##suffix, same_##code)
FLOAT_ORDER(f16, uint16_t, 0x7c00, 0x7e00)
FLOAT_ORDER(bf16, uint16_t, 0x7f80, 0x7fc0)
FLOAT_ORDER(f8e4m3, uint8_t, 0x7e, 0x7f)
FLOAT_ORDER(f8e5m2, uint8_t, 0x7c, 0x7e)
FLOAT_ORDER(f32, uint32_t, HKT__F32_INF, HKT__F32_NAN)
FLOAT_ORDER(f64, uint64_t, HKT__F64_INF, HKT__F64_NAN)

const struct hkt__kernels hkt__kernels_c = {
    .reduce = {HKT__REDUCE_TABLE(HKT__REDUCE_ROW)},
    .multiply = {HKT__SCALE_TABLE(HKT__MULTIPLY_ROW)},
    .divide = {HKT__SCALE_TABLE(HKT__DIVIDE_ROW)},
};
