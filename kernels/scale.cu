/* Scaling by one factor: the pre-multiplied sum's multiplication and the average's division. A fold of one source. */
#include "kernels/fold.cuh"
#include "kernels/ops.cuh"

#include "device/kernels.h"

template <class Op> __global__ void __launch_bounds__(HKT__KERNEL_THREADS) scale(const __grid_constant__ hkt__scale_args a)
{
    fold(Op(a), a.dst, one_source{a.src}, a.count, whole_grid());
}

const void *hkt__kernel_multiply(enum hkt_dtype dtype)
{
#define ROW(dtype, name)                                                                                               \
    case dtype:                                                                                                        \
        return HKT__KERNEL_ADDRESS(scale<multiply_floats<name>>);
    switch (dtype) {
        HKT__SCALE_TABLE(ROW)
    case HKT_INT8:
    case HKT_UINT8:
        return HKT__KERNEL_ADDRESS(scale<multiply_ints<uint8_t>>);
    case HKT_INT16:
    case HKT_UINT16:
        return HKT__KERNEL_ADDRESS(scale<multiply_ints<uint16_t>>);
    case HKT_INT32:
    case HKT_UINT32:
        return HKT__KERNEL_ADDRESS(scale<multiply_ints<uint32_t>>);
    case HKT_INT64:
    case HKT_UINT64:
        return HKT__KERNEL_ADDRESS(scale<multiply_ints<uint64_t>>);
    default:
        return nullptr;
    }
#undef ROW
}

const void *hkt__kernel_divide(enum hkt_dtype dtype)
{
#define ROW(dtype, name)                                                                                               \
    case dtype:                                                                                                        \
        return HKT__KERNEL_ADDRESS(scale<divide_floats<name>>);
    switch (dtype) {
        HKT__SCALE_TABLE(ROW)
    case HKT_INT8:
        return HKT__KERNEL_ADDRESS(scale<divide_ints<uint8_t, int8_t, int32_t>>);
    case HKT_UINT8:
        return HKT__KERNEL_ADDRESS(scale<divide_ints<uint8_t, uint8_t, uint32_t>>);
    case HKT_INT16:
        return HKT__KERNEL_ADDRESS(scale<divide_ints<uint16_t, int16_t, int32_t>>);
    case HKT_UINT16:
        return HKT__KERNEL_ADDRESS(scale<divide_ints<uint16_t, uint16_t, uint32_t>>);
    case HKT_INT32:
        return HKT__KERNEL_ADDRESS(scale<divide_ints<uint32_t, int32_t, int32_t>>);
    case HKT_UINT32:
        return HKT__KERNEL_ADDRESS(scale<divide_ints<uint32_t, uint32_t, uint32_t>>);
    case HKT_INT64:
        return HKT__KERNEL_ADDRESS(scale<divide_ints<uint64_t, int64_t, int64_t>>);
    case HKT_UINT64:
        return HKT__KERNEL_ADDRESS(scale<divide_ints<uint64_t, uint64_t, uint64_t>>);
    default:
        return nullptr;
    }
#undef ROW
}
