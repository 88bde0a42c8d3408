/* Moving bytes without looking at them. */
#include "kernels/copy.cuh"

/* Bytes of one unit of a row: one warp copies a unit, so that long rows have many and short ones share a block. */
#define UNIT_BYTES ((size_t)16384)
#define WARP 32

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
