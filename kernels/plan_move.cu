/* Plans that move bytes without looking at them; and what tells them of more messages than a launch's parameters hold. */
#include "kernels/plan.cuh"

__global__ void plan_note(const __grid_constant__ hkt__plan_note a)
{
    for (unsigned i = threadIdx.x; i < a.count; i += blockDim.x)
        a.table[i] = a.messages[i];
}

const void *hkt__kernel_plan_move(void)
{
    return HKT__KERNEL_ADDRESS(plan_run<plan_moves>);
}

const void *hkt__kernel_plan_note(void)
{
    return HKT__KERNEL_ADDRESS(plan_note);
}
