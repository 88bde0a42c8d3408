/* The model, opened: what its files share. */
#ifndef HOCKET_PARALLEL_GPT_STATE_H
#define HOCKET_PARALLEL_GPT_STATE_H

#include "parallel/block.h"
#include "parallel/gpt.h"

/** Tensors of a unit, experts' aside. */
enum hkt__gpt_tensor {
    HKT__T_WTE,
    HKT__T_WPE,
    HKT__T_NORM1,
    HKT__T_NORM1_BIAS,
    HKT__T_NORM2,
    HKT__T_NORM2_BIAS,
    HKT__T_ATTN_BIAS, /* of the projection back */
    HKT__T_MLP_BIAS,
    HKT__T_Q,
    HKT__T_K,
    HKT__T_V,
    HKT__T_Q_BIAS,
    HKT__T_K_BIAS,
    HKT__T_V_BIAS,
    HKT__T_ATTN_OUT,
    HKT__T_GATE, /* of the ungated MLP: its only first matrix */
    HKT__T_GATE_BIAS,
    HKT__T_UP,
    HKT__T_UP_BIAS,
    HKT__T_MLP_OUT,
    HKT__T_ROUTER,
    HKT__T_NORM_LAST,
    HKT__T_NORM_LAST_BIAS,
    HKT__T_HEAD,
    HKT__T_COUNT
};
enum { HKT__T_EXPERT_COUNT = 4 }; /* tensors of an expert that are looked up: gate and out, with their biases */

/** Activations of one chunk and micro-batch between forward and the end of backward. */
struct hkt__gpt_slot {
    void **x;                         /* [layers of the chunk + 1] input of each layer, then the last output; x[0] is the
                                         executor's unless this is the first virtual stage, the last only kept for the head */
    struct hkt__layer_saved *saved;   /* [layers of the chunk] */
    struct hkt__layer_kept *kept;
    struct hkt__head_saved head;
    void *embedding_grad;
};

struct hkt__gpt {
    struct hkt__gpt_config config;
    struct hkt_mesh *mesh;
    int rank, pp, stage, chunks;
    int *stage_first; /* [pp * chunks + 1] */
    struct hkt__link pp_link, copies; /* copies: ranks of tp that hold the same key-value heads */
    struct hkt__traffic traffic;
    struct hkt__math math;
    struct hkt__block block;

    struct hkt__param *params;
    struct hkt__gpt_param *infos;
    int nparams;
    int (*index)[HKT__T_COUNT]; /* [units] place in params, -1: none */
    int *expert_index;          /* [units][experts][HKT__T_EXPERT_COUNT] */
    struct hkt__own *own;
    struct hkt__mlp_weights *experts; /* [experts of this rank] scratch */
    void *(*param)[HKT__FLAT_COUNT]; /* [units] where the unit's range begins */
    void *(*grad)[HKT__FLAT_COUNT];

    /* Of the step in progress. */
    const struct hkt__gpt_step *step;
    struct hkt__gpt_result *result;
    struct hkt__gpt_slot *slots; /* [chunks][micros] */
    int nslots;
};

/** List the tensors of the whole model: params, infos, index. Errors: NOMEM. */
HKT_NODISCARD enum hkt_status hkt__gpt_list_params(struct hkt__gpt *gpt);
/** A tensor of a unit as bound now; value and grad NULL when there is none, or it is not held. */
struct hkt__weight hkt__gpt_weight(const struct hkt__gpt *gpt, int index);
/** Weights of a layer; those of experts are valid until the next call. */
void hkt__gpt_layer_weights(const struct hkt__gpt *gpt, int layer, struct hkt__layer_weights *out_weights);

/** Release what a step left (after a failure), and the table of slots. */
void hkt__gpt_drop_slots(struct hkt__gpt *gpt);
/** Add up over ranks what this rank has a part of, once a unit's gradients are there (gpt_finish.c). */
void hkt__gpt_finish_unit(struct hkt__gpt *gpt, int unit);
/** The gradient of a tied embedding over its two stages. */
void hkt__gpt_finish_tied(struct hkt__gpt *gpt);
/** Is the embedding on two stages, of which this is one? */
bool hkt__gpt_is_tied_here(const struct hkt__gpt *gpt);

/** Is the layer's MLP made of experts? */
static inline int hkt__gpt_has_experts(const struct hkt__gpt_config *config, int layer)
{
    return config->shape.experts > 0 && layer >= config->shape.dense_layers;
}

#endif
