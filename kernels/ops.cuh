/* The operations, under the names that device/kernels.h gives the host's: sum_f32, min_i8, land_u8. An operation says how
 * one element's code enters as a value, how two values combine, and how a value leaves as a code; fold.cuh does the
 * rest. They keep no state, except the factors of scaling.
 *
 * `by_source`: elements enter by enter_of, which is told of which source they are.
 *
 * `lane` is what a vector is taken apart into: codes, but for operations that work on several at a time. `many` vectors a
 * thread keeps in flight, so that the 2048 threads of a multiprocessor cover the memory's latency: four, or two where 16
 * accumulators a vector do not leave registers for more. */
#ifndef HOCKET_KERNELS_OPS_CUH
#define HOCKET_KERNELS_OPS_CUH

#include "kernels/formats.cuh"
#include "kernels/kernels.h"

/** Integers narrower than 32 bits are computed in 32: sums, products and bits depend on no higher bit, and order is that
 *  of the value. Unsigned, so that they wrap. */
template <class Code> struct wide {
    using type = uint32_t;
};
template <> struct wide<uint64_t> {
    using type = uint64_t;
};

template <class Code> struct on_ints {
    static constexpr bool is_float = false, by_source = false;
    static constexpr int many = sizeof(Code) == 1 ? 2 : 4;
    using code = Code;
    using lane = Code;
    using value = typename wide<Code>::type;

    HKT__DEVICE value enter(Code x) const { return x; }
    HKT__DEVICE value combine(value a, value) const { return a; } /* of operations on one source: never called */
    HKT__DEVICE Code leave(value x) const { return Code(x); }
};

template <class Code> struct sum_ints : on_ints<Code> {
    using value = typename on_ints<Code>::value;
    HKT__DEVICE value combine(value a, value b) const { return a + b; }
};
template <class Code> struct prod_ints : on_ints<Code> {
    using value = typename on_ints<Code>::value;
    HKT__DEVICE value combine(value a, value b) const { return a * b; }
};
template <class Code> struct min_ints : on_ints<Code> {
    using value = typename on_ints<Code>::value;
    HKT__DEVICE value combine(value a, value b) const { return b < a ? b : a; }
};
template <class Code> struct max_ints : on_ints<Code> {
    using value = typename on_ints<Code>::value;
    HKT__DEVICE value combine(value a, value b) const { return b > a ? b : a; }
};

/** Signed ones by order: the sign bit flipped, they order as unsigned ones do. */
template <class Code, template <class> class Unsigned> struct signed_order : Unsigned<Code> {
    using value = typename Unsigned<Code>::value;
    static constexpr Code sign = Code(Code(1) << (8 * sizeof(Code) - 1));

    HKT__DEVICE value enter(Code x) const { return Code(x ^ sign); }
    HKT__DEVICE Code leave(value x) const { return Code(Code(x) ^ sign); }
};

/** Four bytes at a time; a byte alone is the lowest of four. */
struct on_words {
    static constexpr bool is_float = false, by_source = false;
    static constexpr int many = 4;
    using code = uint8_t;
    using lane = uint32_t;
    using value = uint32_t;

    HKT__DEVICE uint32_t enter(uint32_t x) const { return x; }
    HKT__DEVICE uint32_t leave(uint32_t x) const { return x; }
};

/** The bytes add apart: the seven low bits of each cannot carry into its neighbour, the eighth adds without carry. */
struct sum_bytes : on_words {
    HKT__DEVICE uint32_t combine(uint32_t a, uint32_t b) const
    {
        return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
    }
};

/* Bits do not see the size of elements: a call on wider ones is made one on bytes (launch.c). */
struct band_bits : on_words {
    HKT__DEVICE uint32_t combine(uint32_t a, uint32_t b) const { return a & b; }
};
struct bor_bits : on_words {
    HKT__DEVICE uint32_t combine(uint32_t a, uint32_t b) const { return a | b; }
};
struct bxor_bits : on_words {
    HKT__DEVICE uint32_t combine(uint32_t a, uint32_t b) const { return a ^ b; }
};

/** The logical ones: elements enter as 0 or 1, and stay so. */
template <class Code, class Bits> struct truth : on_ints<Code> {
    using value = typename on_ints<Code>::value;
    HKT__DEVICE value enter(Code x) const { return x != 0; }
    HKT__DEVICE value combine(value a, value b) const { return Bits().combine(uint32_t(a), uint32_t(b)); }
};

template <class Float> struct on_floats {
    static constexpr bool is_float = true, by_source = false;
    using code = typename Float::code;
    using lane = code;
    using value = typename Float::real;
    static constexpr int many = sizeof(code) == 1 ? 2 : 4;

    HKT__DEVICE value enter(code x) const { return Float::enter(x); }
    HKT__DEVICE value combine(value a, value) const { return a; }
    HKT__DEVICE code leave(value x) const { return Float::leave(x); }
};
template <class Float> struct sum_floats : on_floats<Float> {
    using value = typename Float::real;
    HKT__DEVICE value combine(value a, value b) const { return a + b; }
};
template <class Float> struct prod_floats : on_floats<Float> {
    using value = typename Float::real;
    HKT__DEVICE value combine(value a, value b) const { return a * b; }
};

/** Order of floats, on codes: the sign flipped (positive) or all bits flipped (negative), they order as unsigned numbers,
 *  -0 below +0. NaN enters as what wins: above all for a maximum, below all for a minimum. */
template <class Float, bool is_max> struct order_floats {
    static constexpr bool is_float = true, by_source = false;
    using code = typename Float::code;
    using lane = code;
    using value = typename wide<code>::type;
    static constexpr int many = sizeof(code) == 1 ? 2 : 4;
    static constexpr code sign = code(code(1) << (8 * sizeof(code) - 1));

    HKT__DEVICE value enter(code x) const
    {
        const code key = code(x & sign ? ~x : x | sign);
        const bool is_nan = code(x & ~sign) > code(Float::largest);

        return is_nan ? code(is_max ? ~code(0) : 0) : key;
    }
    HKT__DEVICE value combine(value a, value b) const { return is_max ? (b > a ? b : a) : (b < a ? b : a); }
    HKT__DEVICE code leave(value key) const
    {
        const code x = code(key), back = code(x & sign ? x ^ sign : ~x);

        return code(back & ~sign) > code(Float::largest) ? code(Float::nan) : back;
    }
};

/** src[i] * factor and src[i] / factor: a fold of one source. */
template <class Float> struct multiply_floats : on_floats<Float> {
    using real = typename Float::real;
    real factor;

    explicit HKT__DEVICE multiply_floats(const hkt__scale_args &a) : factor(real(a.factor)) {}
    HKT__DEVICE typename Float::code leave(real x) const { return Float::leave(x * factor); }
};
template <class Float> struct divide_floats : on_floats<Float> {
    using real = typename Float::real;
    real factor;

    explicit HKT__DEVICE divide_floats(const hkt__scale_args &a) : factor(real(a.factor)) {}
    HKT__DEVICE typename Float::code leave(real x) const { return Float::leave(x / factor); }
};
template <class Code> struct multiply_ints : on_ints<Code> {
    using value = typename on_ints<Code>::value;
    value factor;

    explicit HKT__DEVICE multiply_ints(const hkt__scale_args &a) : factor(value(a.integer)) {}
    HKT__DEVICE Code leave(value x) const { return Code(x * factor); }
};
/** Number: the dtype itself, signed or not; Wide: what it is divided in, which holds any divisor. Truncates toward zero. */
template <class Code, class Number, class Wide> struct divide_ints : on_ints<Code> {
    static constexpr int many = 1; /* dividing takes longer than reading, and many registers */
    using value = typename on_ints<Code>::value;
    Wide factor;

    explicit HKT__DEVICE divide_ints(const hkt__scale_args &a) : factor(Wide(a.integer)) {}
    HKT__DEVICE Code leave(value x) const { return Code(Wide(Number(Code(x))) / factor); }
};

#define HKT__INT_OPS(bits)                                                                                             \
    using prod_u##bits = prod_ints<uint##bits##_t>;                                                                    \
    using min_u##bits = min_ints<uint##bits##_t>;                                                                      \
    using max_u##bits = max_ints<uint##bits##_t>;                                                                      \
    using min_i##bits = signed_order<uint##bits##_t, min_ints>;                                                        \
    using max_i##bits = signed_order<uint##bits##_t, max_ints>;                                                        \
    using band_u##bits = band_bits;                                                                                    \
    using bor_u##bits = bor_bits;                                                                                      \
    using bxor_u##bits = bxor_bits;                                                                                    \
    using land_u##bits = truth<uint##bits##_t, band_bits>;                                                             \
    using lor_u##bits = truth<uint##bits##_t, bor_bits>;                                                               \
    using lxor_u##bits = truth<uint##bits##_t, bxor_bits>;
HKT__INT_OPS(8)
HKT__INT_OPS(16)
HKT__INT_OPS(32)
HKT__INT_OPS(64)
using sum_u8 = sum_bytes;
using sum_u16 = sum_ints<uint16_t>;
using sum_u32 = sum_ints<uint32_t>;
using sum_u64 = sum_ints<uint64_t>;

#define HKT__FLOAT_OPS(name)                                                                                           \
    using sum_##name = sum_floats<name>;                                                                               \
    using prod_##name = prod_floats<name>;                                                                             \
    using min_##name = order_floats<name, false>;                                                                      \
    using max_##name = order_floats<name, true>;
HKT__FLOAT_OPS(f16)
HKT__FLOAT_OPS(bf16)
HKT__FLOAT_OPS(f32)
HKT__FLOAT_OPS(f64)
HKT__FLOAT_OPS(f8e4m3)
HKT__FLOAT_OPS(f8e5m2)

#endif
