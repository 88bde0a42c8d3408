/* The most that one rank holds in a training step, class by class: exactly what the runtime counts (hkt_trainer_step_memory), by
 * formula alone. Pure functions, for the runtime's table and for a planner.
 *
 * Parameters, gradients and optimizer state are shards or wholes of the flat buffers. What comes and goes (activations, gathered
 * units, gradients on their way) depends on the order of things, so the functions walk a schedule and add up sizes, as the runtime
 * walks it and allocates; hkt_count_kept (hocket/step_bytes.h) says what stays of each micro-batch. Not counted: scratch of kernels
 * and books (class "buffer"). */
#ifndef HOCKET_STEP_MEMORY_H
#define HOCKET_STEP_MEMORY_H

#include "hocket/pipeline.h"
#include "hocket/step_bytes.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Elements of a unit (embedding, a layer, or head) in the two flat buffers of a rank, in whole buckets; 0: nothing is here. */
struct hkt_step_unit {
    double dense, experts;
};

/** Pairs of one layer's experts in one micro-batch: those this rank kept of its own tokens, those that came to its experts, and
 *  the most that came to one of them. */
struct hkt_step_routing {
    double slots, arrivals, largest;
};

struct hkt_step_memory_opts {
    struct hkt_step_opts step;    /* layers and expert_layers of the whole stage, and pairs, are not read */
    const struct hkt_pipe *pipe;  /* of the step's pp, chunks and micro-batches */
    const int *stage_first;       /* [pp * chunks + 1] layers of virtual stages (hkt_stage_split) */
    const struct hkt_step_unit *units; /* [layers + 2]: embedding, layers, head. Read in stages 2 and 3; NULL below */
    const struct hkt_step_routing *routing; /* [micro-batches][layers]; NULL: each rank and expert has the same, and nothing is dropped */
    int moments;                  /* of the optimizer: AdamW 2, SGD with momentum 1 */
    int prefetch;                 /* ZeRO 3: layers gathered ahead */
    int overlap; /* 1: communication has a stream. What a stage sends then stays until the rank must wait for a later message: a
                  * bound for `activation`, which is less where messages are quicker; all else is the same as counted */
};

/** Bytes; `grad` in the wide type where parameters are narrower. */
struct hkt_step_memory {
    double param, grad, optimizer;
    double activation; /* kept for backward, their gradients, and messages between stages */
    double comm;       /* gathered units, and the other half of a tied embedding's gradient */
};

/** Errors   INVALID: a layout that hkt_layout_check refuses, or a stage, rank or schedule that is not of it; NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_count_memory(const struct hkt_step_memory_opts *opts,
                                                       struct hkt_step_memory *out_memory);

#ifdef __cplusplus
}
#endif
#endif
