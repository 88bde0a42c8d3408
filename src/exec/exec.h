/* The executor: runs a lowered schedule for one rank over channels and memory.
 *
 * A plan is a set of queues (sends per peer and lane, receives per peer and lane, local work per lane); each queue has
 * one cursor that counts the entries it has done. A dependency is then a comparison: "queue q has done n entries of
 * this slice". No per-step state, no ready list; slices flow through the queues at their own pace, bounded by channel
 * credit and by the number of scratch instances, which sends keep to even where no scratch is used (run.c). Polling never
 * blocks; waiting is exec/wait.h. Steady state allocates nothing, takes no lock, makes no system call except the
 * transport's own. */
#ifndef HOCKET_EXEC_EXEC_H
#define HOCKET_EXEC_EXEC_H

#include <stdatomic.h>

#include "device/device.h"
#include "sched/ir.h"
#include "transport/transport.h"

struct hkt__plan;
struct hkt__run;

/** Compile a lowered schedule into queues; copies what it needs. Gives *out_plan. direct: the algorithm touches memory
 *  of peers (the same answer on all ranks, whatever this rank's own steps are); user_direct: IN and OUT too, whose
 *  addresses each run then publishes. */
HKT_NODISCARD enum hkt_status hkt__plan_create(const struct hkt__sched *sched, bool direct, bool user_direct,
                                               struct hkt__plan **out_plan);
void hkt__plan_destroy(struct hkt__plan *plan);

/** What the caller must know to bind a plan: its grid, scratch and lanes. */
const struct hkt__sched *hkt__plan_shape(const struct hkt__plan *plan);
/** True when the plan touches memory of peers, so that its scratch lies in the window. */
bool hkt__plan_is_direct(const struct hkt__plan *plan);
/** True when the plan sends nothing to others, but receives. */
bool hkt__plan_only_receives(const struct hkt__plan *plan);
/** Peers and lanes a plan talks to, so that the caller can open channels before the first run. */
int hkt__plan_links(const struct hkt__plan *plan);
void hkt__plan_link(const struct hkt__plan *plan, int index, int *out_peer, int *out_lane);

/** First bytes of every rank's window, read by peers, written by the owner alone (line by line). */
struct hkt__window_head {
    /* Slices of direct plans this rank has finished, over all operations: peers' scratch of older ones is free.
     * Release by the owner (W1) after its last access to peers' scratch of the slice; acquire by peers (W2). */
    _Alignas(64) _Atomic uint64_t slices_done;
    /* The current operation's IN and OUT, for plans that touch them in place; ordered by the plan's SIGNAL/WAIT. */
    _Alignas(64) struct hkt__published {
        uint64_t address;                    /* in the owner's process */
        uint64_t offset;                     /* 1 + where it lies in the owner's shared memory; 0: elsewhere */
    } buffers[2];
    /* Where the owner last waited: 1 + the core, 0: it has not. A hint (exec/seats.h). */
    _Alignas(64) _Atomic int32_t seat;
};

/** How this rank touches the memory of a peer, nearest first: by its address, in its shared memory, by copying. */
struct hkt__peer_memory {
    bool is_same_process;
    char *base;                              /* of its shared memory, in this address space; NULL: none */
    struct hkt__tp_dom *dom;                 /* for copies */
};

/** Where runs of one communicator find things. Arrays are indexed [peer * lanes + lane]; entries that no plan uses yet
 *  are NULL. Owned by the communicator, used by the one thread that runs its operations. */
struct hkt__exec_env {
    struct hkt__chan **tx, **rx;
    int nranks, rank, lanes;
    struct hkt__window_head *const *windows; /* [rank], NULL where not addressable */
    struct hkt__peer_memory *memory;         /* [rank] */
    struct hkt__tp *memory_tp;               /* whose shared memory the own buffers may lie in; NULL: none */
    const void **srcs;                       /* [nranks]: room for the arguments of one reduction, */
    char **places;                           /* [nranks]: and for where its result goes */
    char *bounce;                            /* HKT__BOUNCE_BYTES: what is copied from peers, and sums on their way out */
    size_t window_bytes;                     /* of each window, head included */
    char *scratch;                           /* for plans that keep to themselves */
    size_t scratch_bytes;
    uint64_t direct_slices;                  /* slices of direct plans run so far: the same on all ranks */
    uint64_t peers_done;                     /* lower bound of all peers' slices_done */
    uint64_t bytes_sent, bytes_received, bytes_direct;
    bool crc;
};

#define HKT__BOUNCE_BYTES (131072 + 65536) /* stays in a core's second-level cache beside what it is reduced with */
#define HKT__SCRATCH_INSTANCES 4 /* slices in flight that use scratch; a multiple of the channels used */

/** Bytes of one scratch instance, for hkt__lower_slices. */
size_t hkt__exec_instance_bytes(const struct hkt__exec_env *env, bool direct);

/** Buffers of a call that lie in memory of a device: only `copy` and those who read memory by themselves touch them (tx_lend).
 *  For plans that move and do not reduce, nor touch memory of peers. */
struct hkt__bind_device {
    bool has[2];                     /* IN, OUT */
    /** Between any two of host and device; done on return. */
    enum hkt_status (*copy)(void *arg, void *dst, const void *src, size_t bytes);
    void *arg;
};

/** One call bound to a plan. */
struct hkt__bind {
    const void *in;
    void *out;
    size_t elem_bytes;
    struct hkt__grid grid;
    size_t chunk_bytes;              /* of each chunk of IN and OUT, which lie one after the other, where that is so: blocks alike,
                                        in one piece each, in one slice. 0: the grid tells */
    int32_t nslices;
    int32_t channels;                /* replicas of the plan's lanes; slices are dealt round-robin */
    int32_t lane_first;              /* the plan's lane 0 is this channel lane */
    size_t scratch_pitch;            /* bytes between scratch slots */
    bool streaming;                  /* results are large: stores past the caches pay */
    bool empty_frames;               /* messages of no bytes are sent all the same, so that their stamps are compared */
    hkt__reduce_fn *reduce;          /* NULL for movement */
    hkt__spread_fn *spread;          /* the same for results that go to several places; NULL: none */
    hkt_op_function callback;        /* instead of reduce, for user operations */
    void *callback_arg;
    const struct hkt__bind_device *device; /* borrowed while the call runs; NULL: all is the host's */
    enum hkt_dtype dtype;
    struct hkt__stamp stamp;
};

/** Room for runs of plans with at most `queues` queues and channels replicas; grows by hkt__run_reserve, which is the
 *  only call here that allocates. */
HKT_NODISCARD enum hkt_status hkt__run_create(struct hkt__exec_env *env, struct hkt__run **out_run);
HKT_NODISCARD enum hkt_status hkt__run_reserve(struct hkt__run *run, const struct hkt__plan *plan, int channels);
void hkt__run_destroy(struct hkt__run *run);

/** Start a call; the plan's channels are open and the run reserved for it. Borrows bind until the run is over. */
void hkt__run_start(struct hkt__run *run, const struct hkt__plan *plan, const struct hkt__bind *bind);
/** Do what can be done now. OK: finished. IN_PROGRESS: something moved. AGAIN: nothing could move. Failures: PEER_LOST,
 *  CORRUPT, MISMATCH from here, others from the transport; the run is then over. */
HKT_NODISCARD enum hkt_status hkt__run_poll(struct hkt__run *run);
/** One line about what the run waits for, for timeouts: queue, peer, slice. */
void hkt__run_describe(const struct hkt__run *run, char *out_text, size_t bytes);
/** Rank the first blocked queue waits for, -1 if none. */
int hkt__run_blocked_on(const struct hkt__run *run);
/** The one route of all that would let the run go on, given the route to each rank; -1: there are several, or none is known. */
int hkt__run_blocked_route(const struct hkt__run *run, const unsigned char *route_of);

#endif
