/* Moving bytes without looking at them. */
#include "kernels/fold.cuh"

/* Bytes of one unit of a row: one warp copies a unit, so that long rows have many and short ones share a block. */
#define UNIT_BYTES ((size_t)16384)
#define WARP 32

HKT__DEVICE void copy_four(char *dst, const char *src, size_t step)
{
    uint4 x[4];

#pragma unroll
    for (int u = 0; u < 4; ++u)
        x[u] = load16(src + u * step);
#pragma unroll
    for (int u = 0; u < 4; ++u)
        store16(dst + u * step, x[u]);
}

HKT__DEVICE void copy_bytes(char *dst, const char *src, size_t bytes, workers w)
{
    const cut c = cut_of(dst, one_source{src}, bytes, 1);
    size_t i = w.self;

    for (size_t b = w.self; b < c.head; b += w.count)
        dst[b] = src[b];
    if (c.is_aligned)
        for (; i + 3 * w.count < c.vectors; i += 4 * w.count)
            copy_four(dst + c.head + i * 16, src + c.head + i * 16, w.count * 16);
    for (; i < c.vectors; i += w.count)
        store16(dst + c.head + i * 16, load16_loose(src + c.head + i * 16));
    for (size_t b = c.head + c.vectors * 16 + w.self; b < bytes; b += w.count)
        dst[b] = src[b];
}

__global__ void __launch_bounds__(HKT__KERNEL_THREADS) copy_rows(const __grid_constant__ hkt__copy_args a)
{
    const workers all = whole_grid(), lanes = {all.self % WARP, WARP};
    const size_t per_row = (a.row_bytes + UNIT_BYTES - 1) / UNIT_BYTES;

    for (size_t u = all.self / WARP; u < a.rows * per_row; u += all.count / WARP) {
        const size_t row = u / per_row, first = u % per_row * UNIT_BYTES, rest = a.row_bytes - first;

        copy_bytes(bytes_at(a.dst, row * a.dst_pitch + first), bytes_at(a.src, row * a.src_pitch + first),
                   rest < UNIT_BYTES ? rest : UNIT_BYTES, lanes);
    }
}

const void *hkt__kernel_copy(void)
{
    return HKT__KERNEL_ADDRESS(copy_rows);
}
