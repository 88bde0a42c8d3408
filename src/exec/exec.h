/* The executor: runs a lowered plan for one rank over channels and memory.
 *
 * A plan is a set of queues (sends per peer and lane, receives per peer and lane, local work per lane); each queue has
 * one cursor that counts (slice, step) positions done. A dependency is then a comparison: "queue q has done position k
 * of this slice". No per-step state, no ready list; slices flow through the queues at their own pace, bounded by channel
 * credit and by scratch instances. Polling never blocks; waiting is exec/wait.h. Steady state allocates nothing, takes no
 * lock, makes no system call except the transport's own. */
#ifndef HOCKET_EXEC_EXEC_H
#define HOCKET_EXEC_EXEC_H

#include "device/device.h"
#include "sched/ir.h"
#include "transport/transport.h"

struct hkt__plan;

/** Compile a lowered schedule into queues; takes nothing, copies what it needs. Gives *out_plan. */
HKT_NODISCARD enum hkt_status hkt__plan_create(const struct hkt__sched *sched, struct hkt__plan **out_plan);
void hkt__plan_destroy(struct hkt__plan *plan);

/** Peers and lanes a plan talks to, so that the caller can open channels before the first run. */
int hkt__plan_links(const struct hkt__plan *plan);
void hkt__plan_link(const struct hkt__plan *plan, int index, int *out_peer, int *out_lane);

/** Where a run finds things. Arrays are indexed [peer * lanes + lane]; entries the plan does not use may be NULL. */
struct hkt__exec_env {
    struct hkt__chan *const *tx, *const *rx;
    int lanes;
    void *const *windows;            /* [rank]: base of each rank's scratch window, own included */
    uint64_t bytes_sent, bytes_received, bytes_direct; /* counters, kept by the executor */
    bool crc;
};

/** One call bound to a plan. */
struct hkt__bind {
    const void *in;
    void *out;
    size_t elem_bytes;
    struct hkt__grid grid;
    int32_t nslices;
    size_t scratch_pitch;            /* bytes between scratch slots */
    int scratch_instances;           /* copies of SCRATCH, for slices in flight */
    hkt__reduce_fn *reduce;          /* NULL for movement */
    struct hkt__stamp stamp;
};

#endif
