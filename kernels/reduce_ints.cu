/* The reductions of integers and bool. Which kernel serves which pair is the host's table (device/kernels.h). */
#include "kernels/fold.cuh"
#include "kernels/ops.cuh"

#include "device/kernels.h"

const void *hkt__kernel_reduce_ints(enum hkt_op op, enum hkt_dtype dtype)
{
#define ROW(op, dtype, name)                                                                                           \
    case op * HKT_DTYPE_COUNT + dtype:                                                                                 \
        return reduce_address<name, !name::is_float>::get();
    switch (op * HKT_DTYPE_COUNT + dtype) {
        HKT__REDUCE_TABLE(ROW)
    default:
        return nullptr;
    }
#undef ROW
}
