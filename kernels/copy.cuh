/* Bytes from one place to another by some threads: vectors as in fold.cuh, the few bytes before and after them singly. */
#ifndef HOCKET_KERNELS_COPY_CUH
#define HOCKET_KERNELS_COPY_CUH

#include "kernels/fold.cuh"

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

#endif
