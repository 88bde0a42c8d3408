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

/** The two halves of a pre-multiplied sum. */
template <hkt_dtype dtype> struct plan_scaling {
    static constexpr bool is_here = false;
};
template <class Sum, class Multiply> struct plan_scaling_of {
    static constexpr bool is_here = true;
    using sum = Sum;
    using multiply = Multiply;
};
#define ROW(dtype, name)                                                                                               \
    template <> struct plan_scaling<dtype> : plan_scaling_of<sum_floats<name>, multiply_floats<name>> {};
HKT__SCALE_TABLE(ROW)
#undef ROW
template <> struct plan_scaling<HKT_UINT8> : plan_scaling_of<sum_ints<uint8_t>, multiply_ints<uint8_t>> {};
template <> struct plan_scaling<HKT_UINT16> : plan_scaling_of<sum_ints<uint16_t>, multiply_ints<uint16_t>> {};
template <> struct plan_scaling<HKT_UINT32> : plan_scaling_of<sum_ints<uint32_t>, multiply_ints<uint32_t>> {};
template <> struct plan_scaling<HKT_UINT64> : plan_scaling_of<sum_ints<uint64_t>, multiply_ints<uint64_t>> {};

/** A sum whose sources in the set `scaled` are multiplied as they enter, and rounded as hkt__premultiply rounds them. */
template <class Scaling> struct scaled_sum : plan_op<typename Scaling::sum> {
    static constexpr bool by_source = true;
    using base = typename Scaling::sum;
    typename Scaling::multiply multiply;
    uint64_t scaled;

    HKT__DEVICE scaled_sum(const hkt__scale_args &factor, uint64_t set) : multiply(factor), scaled(set) {}
    HKT__DEVICE typename base::value enter_of(int j, typename base::code x) const
    {
        return base::enter(scaled >> j & 1 ? multiply.leave(multiply.enter(x)) : x);
    }
};

template <hkt_dtype own> struct plan_type {
    static constexpr bool reduces = true;

    template <class Sources>
    HKT__DEVICE static void fold_scaled(const hkt__plan_args &a, uint64_t scaled, char *to, const Sources &srcs, uint64_t bytes)
    {
        using scaling = plan_scaling<own>;

        if constexpr (scaling::is_here)
            fold(scaled_sum<scaling>({nullptr, nullptr, 0, a.factor, a.integer}, scaled), to, srcs,
                 bytes / sizeof(typename scaling::sum::code), whole_block());
    }

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
