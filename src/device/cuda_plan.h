/* Plans on a device: one kernel launch runs this rank's whole part of a collective. The kernel (kernels/plan.cuh) interprets
 * steps in device memory, and reaches peers through mapped memory alone: each rank has one arena, an allocation of its device
 * that every peer's device maps.
 *
 * Who does what. The communicator makes the arenas, maps those of the peers, verifies the mappings, votes, and says by struct
 * hkt__cuda_peers what it got. exec/device.h turns a plan into a program; the calls here copy a program to the device and
 * launch it. Everything that must agree between ranks is marked "all ranks alike".
 *
 * Order. Launches of one communicator run one after another, in call order, the same on all ranks: they share the arena. The
 * caller keeps them on one stream, or orders its streams by events. All counters live in the arena and only ever grow, so
 * nothing is cleared between launches, and a launch that was captured in a graph may run again and again. Two ranks of one
 * process may share a device; they need streams of their own, and their launches must fit the device together (ranks_here).
 *
 * Nothing here allocates, copies or synchronises after hkt__cuda_plan_make. */
#ifndef HOCKET_DEVICE_CUDA_PLAN_H
#define HOCKET_DEVICE_CUDA_PLAN_H

#include <stdbool.h>

#include "device/cuda.h"
#include "kernels/plan.h"

/** How arenas are cut; all ranks alike. */
struct hkt__cuda_shape {
    int32_t nranks;
    int32_t lanes;         /* channels per peer and direction: most lanes * replicas of one plan */
    uint32_t slot_bytes;   /* of one frame; a multiple of 16 */
    uint32_t ll_bytes;     /* payload of one frame of the LL protocol; a multiple of 16 */
    uint64_t scratch_bytes; /* of one lane */
};

/** What hocket takes when nothing else is asked for: bounded at some 40 MiB an arena, whatever nranks is. */
void hkt__cuda_shape_default(int nranks, struct hkt__cuda_shape *out_shape);
/** Bytes of an arena of that shape. */
size_t hkt__cuda_arena_bytes(const struct hkt__cuda_shape *shape);

/** Memory of users that all ranks map, in pools, each with a part of every rank. Pools come and go while no launch that uses
 *  them runs; their numbers are the same on all ranks. */
struct hkt__cuda_pools {
    char *const *table;          /* on the device: as hkt__plan_args has it */
    char *own[HKT__PLAN_POOLS];  /* this rank's parts; NULL: there is no such pool */
    size_t bytes[HKT__PLAN_POOLS];
};

/** One communicator's view of its group. The arrays are the caller's, and outlive its plans. */
struct hkt__cuda_peers {
    int32_t rank, nranks, device;
    int32_t ranks_here;          /* ranks of the group on this device, this one included: they share its multiprocessors */
    struct hkt__cuda_shape shape;
    void *const *arenas;         /* [nranks]: where this device sees each rank's arena; the own one at [rank] */
    bool is_one_process;         /* all ranks are threads of this process: their pointers are valid on this device */
    const struct hkt__cuda_pools *pools; /* NULL: there are none. Read at each launch */
    struct hkt__plan_watch *watch;           /* pinned memory of the host, zeroed: see kernels/plan.h */
    struct hkt__plan_watch *watch_on_device; /* the same, as the device sees it */
};

/** Makes the own arena ready, before any peer may touch it: cleared once, for the communicator's life. Waits. */
HKT_NODISCARD enum hkt_status hkt__cuda_arena_clear(const struct hkt__cuda_module *module,
                                                    const struct hkt__cuda_peers *peers);

/** The watch: allocated, zeroed, seen by the device. Gives both addresses. */
HKT_NODISCARD enum hkt_status hkt__cuda_watch_make(const struct hkt__cuda_module *module, int device,
                                                   struct hkt__plan_watch **out_watch,
                                                   struct hkt__plan_watch **out_on_device);
void hkt__cuda_watch_free(const struct hkt__cuda_module *module, struct hkt__plan_watch *watch);
/** Launches that run, and those to come, end soon without a result. Any thread, any time; never waits. */
void hkt__cuda_abort(struct hkt__plan_watch *watch);
/** One line on what an aborted launch was waiting for: "a message of rank 3 in slice 2"; "" when none was aborted. */
void hkt__cuda_watch_describe(const struct hkt__plan_watch *watch, char *out_text, size_t bytes);

/** A program on the device. */
struct hkt__cuda_plan;

/** Copies the program to the device. Allocates; waits on a stream of its own, so it may be called while the user captures. */
HKT_NODISCARD enum hkt_status hkt__cuda_plan_make(const struct hkt__cuda_module *module, const struct hkt__cuda_peers *peers,
                                                  const struct hkt__plan_program *program, struct hkt__cuda_plan **out_plan);
/** No launch of it may run. NULL is allowed. */
void hkt__cuda_plan_free(struct hkt__cuda_plan *plan);

/** What the input of a pre-multiplied sum is multiplied by. */
struct hkt__cuda_factor {
    double factor;               /* floats by this, */
    uint64_t integer;            /* integers by that */
};

/** One call of a plan. */
struct hkt__cuda_call {
    const void *in;
    void *out;
    void *stream;                /* a cudaStream_t of peers->device */
    enum hkt_dtype dtype;
    enum hkt_op op;              /* of reductions; AVG folds like SUM (module->divide is the caller's), the pre-multiplied sum is
                                    SUM with a factor. Ignored by plans that only move bytes */
    const struct hkt__cuda_factor *factor; /* NULL: none. Not in place, where plans use IN as
                                    they like; nor with those that touch users' buffers of peers */
    size_t count;                /* elements of a block, as struct hkt__grid has it */
    const size_t *counts[2];     /* v-variants: elements of each block of IN and OUT; NULL: uniform */
    const size_t *displs[2];     /* where each block starts; NULL: packed */
    size_t block_elems_max;      /* of the largest block of any rank; 0: known to nobody (all_to_all_v). All ranks alike */
    size_t slice_bytes;          /* largest chunk wanted; 0: chosen here. All ranks alike */
    int32_t channels_max;        /* replicas wanted at most, >= 1: the width of the call. All ranks alike */
    int32_t blocks_max;          /* thread blocks of this launch at most, >= 1: multiprocessors it may take. Each rank as it likes:
                                    replicas beyond it share blocks */
    bool no_ll;                  /* keep to the Simple protocol. All ranks alike */
};

/** Where and how a kernel runs. */
struct hkt__cuda_start {
    void *stream;
    int32_t blocks_max;
    enum hkt_op op;
    enum hkt_dtype dtype;
};

/** How a call is cut; all ranks alike. exec/device.c chooses. */
struct hkt__cuda_cut {
    int32_t nslices, channels;
    size_t scratch_pitch;        /* bytes between slots of scratch */
    bool use_ll;
};

/** For exec/device.c; the communicator calls hkt__device_plan_enqueue there. */
HKT_NODISCARD enum hkt_status hkt__cuda_plan_launch(const struct hkt__cuda_plan *plan, const struct hkt__cuda_call *call,
                                                    const struct hkt__cuda_cut *cut);
/** The same for what cuda_messages.h makes of a plan: what all its launches have alike; the blocks that may run at a time; the
 *  launch, of args->channels replicas. op: HKT_OP_COUNT where nothing is reduced. */
const struct hkt__plan_args *hkt__cuda_plan_args(const struct hkt__cuda_plan *plan);
int32_t hkt__cuda_plan_blocks(const struct hkt__cuda_plan *plan, int32_t blocks_max);
HKT_NODISCARD enum hkt_status hkt__cuda_plan_start(const struct hkt__cuda_plan *plan, struct hkt__plan_args *args,
                                                   const struct hkt__cuda_start *start);
const struct hkt__plan_program *hkt__cuda_plan_program(const struct hkt__cuda_plan *plan); /* without its arrays */
const struct hkt__cuda_peers *hkt__cuda_plan_peers(const struct hkt__cuda_plan *plan);

#endif
