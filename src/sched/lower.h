/* Lowering passes: from what the builder wrote to what the executor runs. Each keeps the meaning; tests re-verify the
 * result of every pass on every registry row. Passes edit a schedule in place. */
#ifndef HOCKET_SCHED_LOWER_H
#define HOCKET_SCHED_LOWER_H

#include "sched/ir.h"

/** Drop dependencies implied by queue order and by other dependencies (transitive reduction). */
HKT_NODISCARD enum hkt_status hkt__lower_drop_implied(struct hkt__sched *sched);
/** Link RECV or RECV_REDUCE y with the SEND of the same y that depends on it, where the executor may forward each
 *  slice from the incoming to the outgoing slot in one pass over memory. Sets step.fused on both. */
HKT_NODISCARD enum hkt_status hkt__lower_fuse(struct hkt__sched *sched);
/** Write `nslices` slices out as one schedule over a grid of nslices * cuts chunks per block, with SCRATCH in
 *  `instances` copies: the order that the executor gives to slices, as steps and dependencies. For verification
 *  (slicing is proved, not believed) and for explain. Chunk c of slice s is chunk c * nslices + s of the result, slot k
 *  of instance e slot k * instances + e; ranks whose schedules signal each other exchange signals before they reuse
 *  scratch, on one lane more. Gives *out_sched. UNSUPPORTED: too large, or no lane left. */
HKT_NODISCARD enum hkt_status hkt__lower_unroll(const struct hkt__sched *sched, int nslices, int instances,
                                                struct hkt__sched **out_sched);
/** All passes in the order the executor wants: drop implied, then fuse. */
HKT_NODISCARD enum hkt_status hkt__lower(struct hkt__sched *sched);

/** What a vector is best cut in: as much as leaves slices enough to overlap, from `least` to `most`. Depends on what all ranks
 *  know alone. */
size_t hkt__slice_bytes(size_t least, size_t most, size_t vector_bytes);
/** How many slices a call is cut in, so that no chunk exceeds slice_bytes and SCRATCH in `instances` copies fits
 *  scratch_bytes; at least 1, and the same on all ranks for the same arguments (cuts and scratch_chunks of a schedule
 *  are). block_elems_max: elements of the largest block over all ranks. *out_scratch_pitch: bytes between scratch
 *  slots, the largest chunk rounded up to a cache line; 0 when there is nothing to move. Fails (UNSUPPORTED) when even
 *  one element per chunk does not fit the scratch. */
HKT_NODISCARD enum hkt_status hkt__lower_slices(const struct hkt__sched *sched, size_t block_elems_max,
                                                size_t elem_bytes, size_t slice_bytes, size_t scratch_bytes,
                                                int instances, int32_t *out_nslices, size_t *out_scratch_pitch);

#endif
