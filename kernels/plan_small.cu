/* Plans that reduce 16- and 8-bit floats. */
#include "kernels/plan_types.cuh"

const void *hkt__kernel_plan_small(enum hkt_dtype dtype)
{
    switch (dtype) {
        PLAN_KERNEL(HKT_F16)
        PLAN_KERNEL(HKT_BF16)
        PLAN_KERNEL(HKT_F8E4M3)
        PLAN_KERNEL(HKT_F8E5M2)
    default:
        return nullptr;
    }
}
