/* Conversions between f32 and the small formats. A thread makes 16 bytes of the small one: 8 or 16 elements. */
#include "kernels/fold.cuh"
#include "kernels/formats.cuh"

HKT__DEVICE bool is_aligned(const void *a, const void *b)
{
    return ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) & 15) == 0;
}

template <class Small> __global__ void __launch_bounds__(HKT__KERNEL_THREADS) widen(const __grid_constant__ hkt__convert_args a)
{
    using code = typename Small::code;
    constexpr int lanes = 16 / sizeof(code);
    const workers w = whole_grid();
    const size_t vectors = is_aligned(a.dst, a.src) ? a.count / lanes : 0;

    for (size_t i = w.self; i < vectors; i += w.count) {
        vector<code> in;
        vector<uint32_t> out;

        in.bits = load16(bytes_at(a.src, i * 16));
#pragma unroll
        for (int e = 0; e < lanes; ++e) {
            out.codes[e % 4] = f32::leave(Small::enter(in.codes[e]));
            if (e % 4 == 3)
                store16(bytes_at(a.dst, i * 16 * (4 / sizeof(code)) + e / 4 * 16), out.bits);
        }
    }
    for (size_t i = vectors * lanes + w.self; i < a.count; i += w.count)
        store_bytes<uint32_t>(bytes_at(a.dst, i * 4),
                              f32::leave(Small::enter(load_bytes<code>(bytes_at(a.src, i * sizeof(code))))));
}

template <class Small> __global__ void __launch_bounds__(HKT__KERNEL_THREADS) narrow(const __grid_constant__ hkt__convert_args a)
{
    using code = typename Small::code;
    constexpr int lanes = 16 / sizeof(code);
    const workers w = whole_grid();
    const size_t vectors = is_aligned(a.dst, a.src) ? a.count / lanes : 0;

    for (size_t i = w.self; i < vectors; i += w.count) {
        vector<code> out;
        vector<uint32_t> in[lanes / 4];

#pragma unroll
        for (int u = 0; u < lanes / 4; ++u)
            in[u].bits = load16(bytes_at(a.src, i * 16 * (4 / sizeof(code)) + u * 16));
#pragma unroll
        for (int e = 0; e < lanes; ++e)
            out.codes[e] = Small::leave(f32::enter(in[e / 4].codes[e % 4]));
        store16(bytes_at(a.dst, i * 16), out.bits);
    }
    for (size_t i = vectors * lanes + w.self; i < a.count; i += w.count)
        store_bytes<code>(bytes_at(a.dst, i * sizeof(code)),
                          Small::leave(f32::enter(load_bytes<uint32_t>(bytes_at(a.src, i * 4)))));
}

const void *hkt__kernel_convert(enum hkt_dtype to, enum hkt_dtype from)
{
#define PAIR(dtype, name)                                                                                              \
    if (from == HKT_F32 && to == dtype)                                                                                \
        return HKT__KERNEL_ADDRESS(narrow<name>);                                                                      \
    if (to == HKT_F32 && from == dtype)                                                                                \
        return HKT__KERNEL_ADDRESS(widen<name>);
    PAIR(HKT_F16, f16)
    PAIR(HKT_BF16, bf16)
    PAIR(HKT_F8E4M3, f8e4m3)
    PAIR(HKT_F8E5M2, f8e5m2)
#undef PAIR
    return nullptr;
}
