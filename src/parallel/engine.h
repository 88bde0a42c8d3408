/* The training engine: it holds parameters, gradients and optimizer state of one rank, moves them between data-parallel
 * ranks as a ZeRO stage says, and makes the step. It knows tensors by the ownership map alone; the model asks it for pointers.
 *
 *  stage 0   everything whole everywhere; gradients all-reduced
 *  stage 1   optimizer state sharded: reduce-scatter, update of the shard, all-gather of parameters
 *  stage 2   gradients sharded too: a unit's are reduced when they are final, and freed
 *  stage 3   parameters sharded too: a unit is gathered before use and freed after it
 *
 * Where the shard axis is a part of dp (hybrid), shards are all-reduced over the replicas besides.
 *
 * Invariant: with the same ranks, the same gradients give the same bits in all stages, for every size of buckets, with and
 * without overlap, for every prefetch depth, provided that reductions are in rank order (HOCKET_DETERMINISTIC=rank_order):
 * gradients are summed over micro-batches here, then over ranks, once; the norm is exact (parallel/exact.h); updates treat
 * each element alike. With reduce_every the order is another one, the same in stages 2 and 3.
 *
 * One thread uses an engine. Communication runs on its stream when overlap is on; it allocates nothing there. */
#ifndef HOCKET_PARALLEL_ENGINE_H
#define HOCKET_PARALLEL_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "hocket/coll.h"
#include "parallel/math_ops.h"
#include "parallel/ownership.h"
#include "parallel/traffic.h"

#define HKT__PREFETCH_MAX 16

enum hkt__optimizer { HKT__ADAMW, HKT__SGD };

struct hkt__engine_opts {
    struct hkt_mesh *mesh;             /* attached; borrowed as long as the engine lives, as the next three */
    const struct hkt__own *own;        /* with unit_buckets in stages 2 and 3 */
    const struct hkt__math_ops *ops;   /* of the store type */
    struct hkt__memory *memory;
    struct hkt__traffic *traffic;      /* borrowed; counts dp, and the norm; NULL: not wanted */
    /* Told where elements of a unit lie now: from the beginning of its first bucket in stages 2 and 3; where nothing is
     * of it, NULL. In stages 0 and 1 nothing moves, and it is called once per flat buffer, with unit -1. */
    void (*bind)(void *arg, int unit, int flat, void *param, void *grad);
    void *bind_arg;
    int zero;                          /* stage */
    const char *shard_axis;            /* as in the ownership map; hybrid: the part of dp that shards; NULL: dp */
    const char *replica_axis;          /* hybrid: the other part; NULL: none */
    int prefetch;                      /* stage 3: units gathered ahead, at most HKT__PREFETCH_MAX */
    int backward_first;                /* stage 3: lowest unit that backward comes to, so that none below is gathered ahead */
    bool overlap;                      /* communicate on a stream while the caller computes */
    bool keep_gathered;                /* stage 3: parameters stay from forward to backward */
    bool only_params;                  /* stage 0: no gradients, no moments: parameters are read, not trained */
    bool reduce_every;                 /* stages 2, 3: gradients are reduced after every micro-batch, not once per step */
    enum hkt__optimizer optimizer;
    double beta1, beta2, eps, weight_decay; /* AdamW; decay only of tensors with two dimensions or more */
    double momentum;                   /* SGD */
    double clip;                       /* largest norm of the gradient; 0: none */
    double loss_scale;                 /* first loss scale, adapted to overflows; 0: 1 and never adapted */
    int scale_growth_steps;            /* good steps after which the loss scale doubles; 0: 2000 */
};

struct hkt__engine;

/** Collective over the mesh. Parameters are zero until hkt__engine_param_set.
 *  Errors   INVALID names what does not fit; NOMEM; those of communicators */
HKT_NODISCARD enum hkt_status hkt__engine_create(const struct hkt__engine_opts *opts, struct hkt__engine **out_engine);
/** Not collective; NULL is allowed. */
void hkt__engine_destroy(struct hkt__engine *engine);

/* ---- what the model calls ---- */

enum { HKT__USE_PARAM = 1, HKT__USE_GRAD = 2, HKT__USE_BACKWARD = 4 };

/** The parameters (USE_PARAM) of a unit can be read, and its gradients (USE_GRAD) added to, until the matching end.
 *  USE_BACKWARD says which unit comes next. Uses may nest. Units that hold nothing here are legal. */
HKT_NODISCARD enum hkt_status hkt__engine_begin(struct hkt__engine *engine, int unit, unsigned use);
HKT_NODISCARD enum hkt_status hkt__engine_end(struct hkt__engine *engine, int unit, unsigned use);
/** Nothing more will be added to the unit's gradients in this step (reduce_every: in this micro-batch). */
HKT_NODISCARD enum hkt_status hkt__engine_final(struct hkt__engine *engine, int unit);
/** Store elements of tensor `param` as held here, and its gradients (real elements), while its unit is in use. */
void *hkt__engine_param(const struct hkt__engine *engine, int param);
void *hkt__engine_grad(const struct hkt__engine *engine, int param);

/* ---- what the training loop calls ---- */

/** By this the model must multiply the gradient of the summed loss. */
double hkt__engine_loss_scale(const struct hkt__engine *engine);
/** Gradients become zero. Call before the first micro-batch of a step. */
HKT_NODISCARD enum hkt_status hkt__engine_start(struct hkt__engine *engine);

struct hkt__engine_result {
    double norm;      /* of the gradient of the mean loss, before clipping */
    bool skipped;     /* gradients overflowed: nothing changed but the loss scale */
    double scale;     /* loss scale of this step */
};
/** Finish the reductions, and make the step: the mean over `tokens`, the number of tokens in the whole batch. Collective
 *  over the mesh. */
HKT_NODISCARD enum hkt_status hkt__engine_step(struct hkt__engine *engine, double tokens, double lr,
                                               struct hkt__engine_result *out_result);
/** After a resume: steps made (AdamW's correction), loss scale, good steps since it changed. */
struct hkt__engine_clock {
    int64_t steps;
    double loss_scale;
    int64_t good_steps;
};
struct hkt__engine_clock hkt__engine_clock_get(const struct hkt__engine *engine);
void hkt__engine_clock_set(struct hkt__engine *engine, const struct hkt__engine_clock *clock);

/** Set tensor `param` from all its elements as held here (store type). What is not of this rank's shard is ignored. */
void hkt__engine_param_set(struct hkt__engine *engine, int param, const void *local);
/** Gather what others changed: after hkt__engine_state was written. Collective. */
HKT_NODISCARD enum hkt_status hkt__engine_publish(struct hkt__engine *engine);

/* ---- what checkpoints read and write ---- */

enum hkt__state { HKT__STATE_MASTER, HKT__STATE_MOMENT1, HKT__STATE_MOMENT2, HKT__STATE_COUNT };
/** Real elements of a run of hkt__own_next; NULL when the optimizer has no such state. The master is the parameter itself
 *  where the store type is the real type. */
void *hkt__engine_state(const struct hkt__engine *engine, const struct hkt__run *run, enum hkt__state state);

/** Whether the optimizer has such state; the same on all ranks. */
bool hkt__engine_has_state(const struct hkt__engine *engine, enum hkt__state state);

#endif
