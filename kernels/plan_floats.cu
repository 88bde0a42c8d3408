/* Plans that reduce f32 and f64. */
#include "kernels/plan_types.cuh"

const void *hkt__kernel_plan_floats(enum hkt_dtype dtype)
{
    switch (dtype) {
        PLAN_KERNEL(HKT_F32)
        PLAN_KERNEL(HKT_F64)
    default:
        return nullptr;
    }
}
