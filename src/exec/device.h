/* From a lowered plan to a program for the device executor (device/cuda_plan.h): the same queues, entries and
 * dependencies in the device's format. */
#ifndef HOCKET_EXEC_DEVICE_H
#define HOCKET_EXEC_DEVICE_H

#include "device/cuda_plan.h"
#include "exec/plan.h"

/** Translates a plan and copies it to the device. UNSUPPORTED, with the reason: a plan that device memory cannot run, by
 *  what all ranks have alike (plan->direct, user_direct, nranks, lanes) or by this rank's own schedule: the group votes,
 *  and falls back to staging together. */
HKT_NODISCARD enum hkt_status hkt__device_plan_make(const struct hkt__cuda_module *module,
                                                    const struct hkt__cuda_peers *peers, const struct hkt__plan *plan,
                                                    struct hkt__cuda_plan **out_plan);

/** How hkt__device_plan_enqueue will cut a call; the bits of floats depend on nslices. UNSUPPORTED: the scratch is too small. */
HKT_NODISCARD enum hkt_status hkt__device_plan_cut(const struct hkt__cuda_plan *plan, const struct hkt__cuda_call *call,
                                                   struct hkt__cuda_cut *out_cut);

/** Enqueues a call of a plan, and returns. UNSUPPORTED: it cannot run on this device, and why; nothing was enqueued, and since
 *  that depends on what all ranks have alike only, no rank enqueued it. SYSTEM: CUDA's text. */
HKT_NODISCARD enum hkt_status hkt__device_plan_enqueue(const struct hkt__cuda_plan *plan, const struct hkt__cuda_call *call);

#endif
