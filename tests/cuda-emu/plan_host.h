/* The host executor as the measure of the device's: all ranks of a schedule in one thread, over channels that keep
 * whatever they are given. */
#ifndef HOCKET_CUDA_EMU_PLAN_HOST_H
#define HOCKET_CUDA_EMU_PLAN_HOST_H

#include "exec/exec.h"

#define PLAN_HOST_RANKS 8

/** Runs plans[rank] with binds[rank] for all ranks to the end. False: a rank failed or all wait for each other. */
bool plan_host_run(struct hkt__plan *const *plans, const struct hkt__bind *binds, int nranks);

#endif
