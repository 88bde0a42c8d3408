/* A GPT over the ranks of a mesh: the transformer of hocket/layout.h's struct hkt_shape, cut by tensor, sequence, pipeline
 * and expert parallelism (axes tp, pp, and ep as a part of dp). It computes losses and gradients; it never sends gradients
 * over dp and never changes parameters: that is the training engine's part, which meets it at the flat buffers of
 * parallel/ownership.h and in the hooks below.
 *
 * Units are what is used, gathered and reduced together: unit 0 the embeddings, unit 1 + l layer l, unit layers + 1 the
 * final norm and the head. A tied head is in unit 0, which the last stage then holds too.
 *
 * Gradients are added to (in the real type) what is in the gradient buffers: the sum over micro-batches and tokens of
 * step.scale * d loss(token). Nothing is divided here; 1 / tokens belongs to who knows all tokens. When a unit's
 * gradients are reported they are complete over tp, and over the two stages of a tied embedding: each rank holds for its
 * elements the sum over its own micro-batches, equal on all tensor-parallel ranks that hold the same element.
 *
 * Layout does not change the mathematics: initial values and dropout are functions of an element's place in the whole
 * tensor, and all schedules and kinds of recompute give the same bits. */
#ifndef HOCKET_PARALLEL_GPT_H
#define HOCKET_PARALLEL_GPT_H

#include <stdint.h>

#include "hocket/formulas.h"
#include "hocket/layout.h"
#include "hocket/mesh.h"
#include "hocket/moe.h"
#include "hocket/pipeline.h"
#include "hocket/step_memory.h"
#include "parallel/exact.h"
#include "parallel/math_ops.h"
#include "parallel/memory.h"
#include "parallel/ownership.h"
#include "parallel/traffic.h"

enum hkt__norm_kind { HKT__NORM_LAYER, HKT__NORM_RMS };

/** How tokens reach experts on other ranks. Both give the same bits. */
enum hkt__moe_dispatch {
    HKT__MOE_ALL_TO_ALL,
    HKT__MOE_ALL_GATHER /* everything to everyone: the reference for tests */
};

/** Fields at 0 take the value in brackets. */
struct hkt__gpt_config {
    struct hkt_shape shape; /* positions 0: rotary. Not supported: shared experts, latent attention */
    enum hkt__norm_kind norm;
    double norm_eps;    /* [1e-5] */
    double rotary_base; /* [10000] */
    enum hkt_dtype dtype; /* store type of parameters and activations: F32, F64 or BF16 */
    int64_t seq, micro_batch; /* tokens of a sequence, sequences of a micro-batch */
    double dropout;     /* after embedding, attention and MLP */
    double attention_dropout; /* of attention's weights, after the softmax */
    uint64_t seed;      /* of dropout and initial values */
    double init_deviation; /* [0.02]; of projections back into the residual divided by sqrt(2 * layers) */
    enum hkt_recompute recompute;
    int sequence_parallel; /* norms, dropout and what is between layers are cut along rows over tp */
    int chunks;            /* [1] per stage, as in the schedules that will be run */
    int overlap; /* 1: messages between stages travel on a stream of their own while stages compute */
    const int *stage_first; /* [pp * chunks + 1] layers of virtual stages; NULL: hkt_stage_split. Borrowed for create */
    int64_t vocab_multiple; /* [1] */
    /* Experts (shape.experts > 0). */
    double capacity_factor; /* [0: no limit] */
    enum hkt_moe_drop drop;
    double balance_weight, z_weight; /* of the two losses, each a mean over a micro-batch and weighted by its tokens */
    int renormalise;                 /* 1: weights of a token's experts add up to 1 */
    enum hkt__moe_dispatch dispatch;
    /* Flat buffers: as in struct hkt__own_opts. */
    const char *shard_axis, *expert_shard_axis;
    int64_t align, bucket_elems;
    int unit_buckets;
};

/** A parameter tensor of the whole model. Weights of linear layers are [out][in]. */
struct hkt__gpt_param {
    char name[96];     /* "transformer.h.0.attn.c_attn.q.weight"; as `file_name` where a file's tensor is not a part */
    char file_name[96]; /* Hugging Face's GPT-2 name: "transformer.h.0.attn.c_attn.weight" */
    int file_parts, file_part; /* of the out dimension of that tensor: q, k, v; sizes are as the parts' own */
    int file_transposed;       /* 1: a file has it as [in][out] (Conv1D) */
    int tensor;                /* enum hkt__gpt_tensor */
};

struct hkt__gpt; /* opened in parallel/gpt_state.h */

/** Collective over the mesh, which must be attached (or of one rank) and outlive the model.
 *  Owns     gives *out_gpt, released by hkt__gpt_destroy
 *  Errors   INVALID, UNSUPPORTED name the numbers; NOMEM; those of hkt_mesh_comm */
HKT_NODISCARD enum hkt_status hkt__gpt_create(const struct hkt__gpt_config *config, struct hkt_mesh *mesh, int rank,
                                              struct hkt__memory *memory, struct hkt__gpt **out_gpt);
/** NULL is allowed. */
void hkt__gpt_destroy(struct hkt__gpt *gpt);

/** The ownership map, with own->params in the order of units; flat buffers are as long as own->flat[f]->padded. */
const struct hkt__own *hkt__gpt_own(const struct hkt__gpt *gpt);
/** More on own->params[index]. */
const struct hkt__gpt_param *hkt__gpt_param_info(const struct hkt__gpt *gpt, int index);
/** The kernels' table: store and real type of the buffers. */
const struct hkt__math_ops *hkt__gpt_ops(const struct hkt__gpt *gpt);
/** Counted collectives; the engine adds its own (dp). */
struct hkt__traffic *hkt__gpt_traffic(struct hkt__gpt *gpt);

/** [pp * chunks + 1] layers of virtual stages. */
const int *hkt__gpt_stage_first(const struct hkt__gpt *gpt);
int hkt__gpt_units(const struct hkt__gpt *gpt); /* layers + 2 */
/** Elements of a unit in a flat buffer, padding up to the next unit's included; count 0: nothing of it is held. With
 *  unit_buckets they are whole buckets. */
struct hkt_range hkt__gpt_unit_range(const struct hkt__gpt *gpt, int unit, int flat);

/** Where a unit's range lies: param in the store type, grad in the real type, either NULL for what is not there now.
 *  Borrowed until bound anew. */
void hkt__gpt_bind_unit(struct hkt__gpt *gpt, int unit, int flat, void *param, void *grad);
/** The same for all units of a whole flat buffer. */
void hkt__gpt_bind_flat(struct hkt__gpt *gpt, int flat, void *param, void *grad);

/** Initial values of the elements of a tensor that this rank holds, in the store type of `ops` (F32 for a master). */
void hkt__gpt_init_tensor(const struct hkt__gpt *gpt, int index, const struct hkt__math_ops *ops, void *out);
/** Initial values of all bound parameters. */
void hkt__gpt_init(struct hkt__gpt *gpt);

enum hkt__gpt_use {
    HKT__GPT_FORWARD,  /* parameters are read */
    HKT__GPT_BACKWARD, /* parameters are read, gradients added to */
    HKT__GPT_WEIGHT    /* gradients are added to, in the part of backward that a schedule put apart */
};

/** Called in the thread of the step, in the same order on all ranks of a dp and tp group. Any may be NULL; a status
 *  other than OK ends the step. */
struct hkt__gpt_hooks {
    void *arg;
    /* The unit is about to be used: what is needed must be bound when it returns, and stay so until the matching `done`,
     * gradients until `grad` has been told (with reduces_every each time, else the last time). */
    enum hkt_status (*use)(void *arg, int unit, enum hkt__gpt_use use);
    enum hkt_status (*done)(void *arg, int unit, enum hkt__gpt_use use);
    /* All gradients of a micro-batch were added to this unit; is_last: of all micro-batches. They are complete over tp and
     * stages only if is_last, or with step.reduces_every (then they are complete sums of this micro-batch, if the
     * hook clears them). Of a tied embedding over two stages just the last is reported. */
    enum hkt_status (*grad)(void *arg, int unit, int micro, int is_last);
};

/** A micro-batch, the same on all tensor-parallel and pipeline ranks. */
struct hkt__gpt_micro {
    const int32_t *ids;     /* [micro_batch * seq] */
    const int32_t *targets; /* < 0: does not count; NULL with forward_only: no loss is made */
    int64_t first_row;      /* number of its first token in the whole batch: what dropout is keyed by */
};

struct hkt__gpt_step {
    const struct hkt_pipe *pipe; /* stages as the mesh's pp, chunks as config; kind FORWARD: no gradients */
    const struct hkt__gpt_micro *micros; /* [pipe->micros] */
    uint64_t number;    /* of the step: for dropout */
    double scale;       /* of gradients */
    int reduces_every;  /* see hooks.grad */
    int no_dropout;     /* evaluation */
    const struct hkt__gpt_hooks *hooks; /* NULL: none */
    struct hkt_step_routing *routing;   /* [micros][layers of the model], written where layers of this stage have experts; NULL: not
                                           wanted */
};

/** Sums over this rank's micro-batches. loss and tokens are complete on every rank of the last stage, and 0 elsewhere;
 *  balance, z and drops are of the layers of this stage, the same on its tensor-parallel ranks. */
struct hkt__gpt_result {
    struct hkt__exact loss; /* sum over tokens that count */
    int64_t tokens;
    double balance, z;      /* weighted and times tokens, so that (loss + balance + z) / tokens is what is minimised */
    int64_t dropped, routed; /* (token, choice) pairs */
};

/** Run the step's micro-batches through the schedule. Collective over tp, pp and ep.
 *  Errors   INVALID, NOMEM, those of hooks and collectives. After an error the model can only be destroyed */
HKT_NODISCARD enum hkt_status hkt__gpt_forward_backward(struct hkt__gpt *gpt, const struct hkt__gpt_step *step,
                                                        struct hkt__gpt_result *out_result);

#endif
