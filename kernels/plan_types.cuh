/* The reductions of plans: one kernel for a dtype, which chooses the operation as it runs. One for each pair would cost the
 * compiler the whole interpreter 60 times over. */
#ifndef HOCKET_KERNELS_PLAN_TYPES_CUH
#define HOCKET_KERNELS_PLAN_TYPES_CUH

#include "kernels/ops.cuh"
#include "kernels/plan.cuh"

#include "device/kernels.h"

/** Is the pair one that launch.c asks for? It maps those of equal bits to one: averages to sums, signed integers to unsigned
 *  ones but for order, bits to those of bytes, and bool to the logical operations of bytes. */
__host__ __device__ constexpr bool plan_has(hkt_op op, hkt_dtype dtype)
{
    const bool is_signed = dtype == HKT_INT8 || dtype == HKT_INT16 || dtype == HKT_INT32 || dtype == HKT_INT64;
    const bool is_bits = op == HKT_BAND || op == HKT_BOR || op == HKT_BXOR;

    return op != HKT_AVG && dtype != HKT_BOOL && (!is_signed || op == HKT_MIN || op == HKT_MAX) &&
           (!is_bits || dtype == HKT_UINT8);
}

/** An operation with as many vectors in flight as leave registers for the interpreter. */
template <class Op> struct plan_op : Op {
    static constexpr int most = sizeof(typename Op::lane) == 1 ? 1 : sizeof(typename Op::lane) == 2 ? 2 : 4;
    static constexpr int many = Op::many < most ? Op::many : most;
};

template <hkt_dtype own> struct plan_type {
    static constexpr bool reduces = true;

    template <class Sources> HKT__DEVICE static void fold_all(int chosen, char *to, const Sources &srcs, uint64_t bytes)
    {
#define ROW(op, dtype, name)                                                                                           \
    if constexpr (dtype == own && plan_has(op, dtype))                                                                 \
        if (chosen == op)                                                                                              \
            fold(plan_op<name>(), to, srcs, bytes / sizeof(name::code), whole_block());
        HKT__REDUCE_TABLE(ROW)
#undef ROW
    }
};

#define PLAN_KERNEL(dtype)                                                                                             \
    case dtype:                                                                                                        \
        return HKT__KERNEL_ADDRESS(plan_run<plan_type<dtype>>);

#endif
