/* Plans that reduce integers. */
#include "kernels/plan_types.cuh"

const void *hkt__kernel_plan_ints(enum hkt_dtype dtype)
{
    switch (dtype) {
        PLAN_KERNEL(HKT_INT8)
        PLAN_KERNEL(HKT_UINT8)
        PLAN_KERNEL(HKT_INT16)
        PLAN_KERNEL(HKT_UINT16)
        PLAN_KERNEL(HKT_INT32)
        PLAN_KERNEL(HKT_UINT32)
        PLAN_KERNEL(HKT_INT64)
        PLAN_KERNEL(HKT_UINT64)
    default:
        return nullptr;
    }
}
