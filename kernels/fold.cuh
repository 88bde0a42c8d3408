/* The one loop of all kernels on elements: dst[i] = leave(enter(srcs[0][i]) combine enter(srcs[1][i]) ...).
 *
 * The stretch of dst that 16-byte stores can cover is cut in vectors, dealt to the workers in turn, several in flight at
 * a time; the few elements before and after it go byte by byte. A source whose vectors are not aligned as dst's are is
 * read with load16_loose. Nothing outside dst's elements is written, and element i of every source is read by the thread
 * that then stores element i of dst: dst may be one of the sources. */
#ifndef HOCKET_KERNELS_FOLD_CUH
#define HOCKET_KERNELS_FOLD_CUH

#include "kernels/device.cuh"
#include "kernels/kernels.h"

template <class Code> union vector {
    uint4 bits;
    Code codes[16 / sizeof(Code)];

    HKT__DEVICE vector() {}
};

HKT__DEVICE const char *bytes_at(const void *p, size_t offset)
{
    return static_cast<const char *>(p) + offset;
}

HKT__DEVICE char *bytes_at(void *p, size_t offset)
{
    return static_cast<char *>(p) + offset;
}

/** An element at any address. */
template <class Code> HKT__DEVICE Code load_bytes(const void *p)
{
    const uint8_t *bytes = static_cast<const uint8_t *>(p);
    uint64_t code = 0;

#pragma unroll
    for (unsigned i = 0; i < sizeof(Code); ++i)
        code |= uint64_t(bytes[i]) << (8 * i);
    return Code(code);
}

template <class Code> HKT__DEVICE void store_bytes(void *p, Code code)
{
    uint8_t *bytes = static_cast<uint8_t *>(p);

#pragma unroll
    for (unsigned i = 0; i < sizeof(Code); ++i)
        bytes[i] = uint8_t(uint64_t(code) >> (8 * i));
}

/** What is folded: the sources of a reduction, or one source, which the compiler then sees to be one. */
struct listed_sources {
    const hkt__reduce_args &a;

    HKT__DEVICE int count() const { return a.nsrcs; }
    HKT__DEVICE const void *at(int j) const { return a.srcs[j]; }
};

struct one_source {
    const void *src;

    HKT__DEVICE constexpr int count() const { return 1; }
    HKT__DEVICE const void *at(int) const { return src; }
};

/** How a call is cut: bytes before the first vector, vectors, and whether all sources are aligned there. */
struct cut {
    size_t head, vectors;
    bool is_aligned;
};

template <class Sources> HKT__DEVICE cut cut_of(const void *dst, const Sources &srcs, size_t bytes, size_t element)
{
    cut c = {(16 - (reinterpret_cast<uintptr_t>(dst) & 15)) & 15, 0, true};

    if (c.head % element != 0 || c.head > bytes) { /* no element of dst starts a vector, or there is none */
        c.head = bytes;
        return c;
    }
    c.vectors = (bytes - c.head) / 16;
    for (int j = 0; j < srcs.count(); ++j)
        c.is_aligned &= ((reinterpret_cast<uintptr_t>(srcs.at(j)) + c.head) & 15) == 0;
    return c;
}

/** The fold of one operation into dst, by parts. */
template <class Op, class Sources> struct folder {
    using code = typename Op::code;
    using lane = typename Op::lane;
    static constexpr int lanes = 16 / sizeof(lane);

    const Op &op;
    void *dst;
    const Sources &srcs;

    HKT__DEVICE typename Op::value enter(int j, lane x) const
    {
        if constexpr (Op::by_source)
            return op.enter_of(j, x);
        else
            return op.enter(x);
    }

    /** The elements before `head` and from `tail` on, byte by byte. */
    HKT__DEVICE void edges(size_t head, size_t tail, size_t count, workers w) const
    {
#pragma unroll 1
        for (size_t e = w.self; e < head + (count - tail); e += w.count) {
            const size_t at = (e < head ? e : e - head + tail) * sizeof(code);
            typename Op::value acc = enter(0, load_bytes<code>(bytes_at(srcs.at(0), at)));

#pragma unroll 1
            for (int j = 1; j < srcs.count(); ++j)
                acc = op.combine(acc, enter(j, load_bytes<code>(bytes_at(srcs.at(j), at))));
            store_bytes(bytes_at(dst, at), code(op.leave(acc)));
        }
    }

    /** `many` vectors of source j, at byte offsets offset + u * step. */
    template <int many, bool is_aligned>
    HKT__DEVICE void load(vector<lane> *in, int j, size_t offset, size_t step) const
    {
#pragma unroll
        for (int u = 0; u < many; ++u) {
            const char *p = bytes_at(srcs.at(j), offset + u * step);

            in[u].bits = is_aligned ? load16(p) : load16_loose(p);
        }
    }

    template <int many, bool is_aligned> HKT__DEVICE void vectors(size_t offset, size_t step) const
    {
        typename Op::value acc[many][lanes];
        vector<lane> in[many];

        load<many, is_aligned>(in, 0, offset, step);
#pragma unroll
        for (int k = 0; k < many * lanes; ++k)
            acc[k / lanes][k % lanes] = enter(0, in[k / lanes].codes[k % lanes]);
#pragma unroll 1
        for (int j = 1; j < srcs.count(); ++j) {
            load<many, is_aligned>(in, j, offset, step);
#pragma unroll
            for (int k = 0; k < many * lanes; ++k)
                acc[k / lanes][k % lanes] =
                    op.combine(acc[k / lanes][k % lanes], enter(j, in[k / lanes].codes[k % lanes]));
        }
#pragma unroll
        for (int u = 0; u < many; ++u) {
#pragma unroll
            for (int e = 0; e < lanes; ++e)
                in[u].codes[e] = op.leave(acc[u][e]);
            store16(bytes_at(dst, offset + u * step), in[u].bits);
        }
    }
};

/** dst[0 .. count - 1]. */
template <class Op, class Sources>
HKT__DEVICE void fold(const Op &op, void *dst, const Sources &srcs, size_t count, workers w)
{
    using code = typename Op::code;
    constexpr int many = Op::many;
    const folder<Op, Sources> f = {op, dst, srcs};
    const cut c = cut_of(dst, srcs, count * sizeof(code), sizeof(code));
    size_t i = w.self;

    if (c.is_aligned)
        for (; i + (many - 1) * w.count < c.vectors; i += many * w.count)
            f.template vectors<many, true>(c.head + i * 16, w.count * 16);
#pragma unroll 1
    for (; i < c.vectors; i += w.count)
        f.template vectors<1, false>(c.head + i * 16, 0);
    f.edges(c.head / sizeof(code), (c.head + c.vectors * 16) / sizeof(code), count, w);
}

template <class Op> __global__ void __launch_bounds__(HKT__KERNEL_THREADS) reduce(const __grid_constant__ hkt__reduce_args a)
{
    fold(Op(), a.dst, listed_sources{a}, a.count, whole_grid());
}

/** The address of reduce<Op> where `is_here`; otherwise another file has it and none is made. */
template <class Op, bool is_here> struct reduce_address {
    static const void *get() { return nullptr; }
};
template <class Op> struct reduce_address<Op, true> {
    static const void *get() { return HKT__KERNEL_ADDRESS(reduce<Op>); }
};

#endif
