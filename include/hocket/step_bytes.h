/* What the collectives of one training step work on, by kind of parallelism and of collective, for one rank: exactly what the
 * runtime counts (hkt_trainer_step_bytes), by formula alone. Pure functions; a planner asks them before anything runs.
 *
 * Bytes are those of the whole vector (all blocks of a gather or scatter), or of what the rank sends (all-to-all, messages
 * between stages). What then crosses wires follows from hocket/formulas.h: hkt_wire_all_reduce and the others. */
#ifndef HOCKET_STEP_BYTES_H
#define HOCKET_STEP_BYTES_H

#include "hocket/formulas.h"
#include "hocket/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hkt_coll_bytes {
    double all_reduce, reduce_scatter, all_gather, all_to_all, send;
};
HKT_API double hkt_coll_bytes_sum(const struct hkt_coll_bytes *bytes);

struct hkt_step_bytes {
    struct hkt_coll_bytes dp, tp, sp, pp, ep;
    struct hkt_coll_bytes scalars; /* losses, counts and the norm, over all ranks: the same in every layout */
};

/** A flat buffer of parameters as this rank's tp, pp and ep cuts leave it, padded (hocket/shard.h). */
struct hkt_step_flat {
    double elems;
    double embedding_elems; /* of them, in the unit of the embedding */
};

/** A step of a rank. Sizes at 0 are 1. */
struct hkt_step_opts {
    struct hkt_shape shape;
    struct hkt_layout layout;
    enum hkt_recompute recompute;
    int rms_norm;      /* norms have no biases, whatever the shape says */
    int reduce_every;  /* ZeRO 2, 3: gradients are reduced after every micro-batch */
    int keep_gathered; /* ZeRO 3: parameters stay from forward to backward */
    int gathers_pairs; /* tokens reach experts by all-gather, not all-to-all */
    double element_bytes; /* of parameters and activations */
    double real_bytes;    /* of gradients and statistics */
    int stage, tp_rank;
    int layers, expert_layers; /* on this stage, in all its chunks; how many of them have experts */
    struct hkt_step_flat dense, experts;
    double pairs; /* (token, expert) pairs of this rank that were kept, in all layers and micro-batches; with uneven routing bytes
                   * are right for the sum over ranks, not for each */
};

/** Errors   INVALID: a layout that hkt_layout_check refuses, or a stage or rank that is not in it */
HKT_API HKT_NODISCARD enum hkt_status hkt_count_step(const struct hkt_step_opts *opts, struct hkt_step_bytes *out_bytes);

/** Bytes of activations that one micro-batch keeps on the rank from F to B, in all chunks of the stage; so many micro-batches at once
 *  as hkt_pipe_peak says (of interleaved schedules a chunk each). Experts: as if each had the same, and none dropped any; what an
 *  uneven routing keeps, and the most that is held at once, says hkt_count_memory (hocket/step_memory.h). -1: heads do not divide. */
HKT_API double hkt_count_kept(const struct hkt_step_opts *opts);

#ifdef __cplusplus
}
#endif
#endif
