/* Plans that move bytes without looking at them. */
#include "kernels/plan.cuh"

const void *hkt__kernel_plan_move(void)
{
    return HKT__KERNEL_ADDRESS(plan_run<plan_moves>);
}
