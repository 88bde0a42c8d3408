/* What the blocks of a model compute with on one rank, and the blocks themselves: attention, MLP, experts, embedding, head,
 * and the layer made of them. Each has three parts, as a schedule may ask for them: forward, backward (gradient of the input)
 * and weights (gradients of the matrices).
 *
 * Rows are the tokens of a micro-batch, sequence after sequence. Inside a block every tensor-parallel rank has all rows and a
 * part of the columns; between blocks it has all columns (`hidden`) of its rows: all rows, or with sequence parallelism
 * rows_here of them. hkt__tp_gather and hkt__tp_reduce lead from one to the other.
 *
 * Failures stick: the first is kept in block->status, and from then on every function here does nothing. Buffers that a
 * function was to give are then NULL or undefined, and can be freed. Whoever began a step looks once, at the end. */
#ifndef HOCKET_PARALLEL_BLOCK_H
#define HOCKET_PARALLEL_BLOCK_H

#include <stdbool.h>

#include "parallel/gemm.h"
#include "parallel/gpt.h"

struct hkt__block {
    const struct hkt__gpt_config *config;
    struct hkt__math *math;
    const struct hkt__math_ops *ops, *real_ops; /* real_ops: kernels whose store type is the real one */
    struct hkt__memory *memory;
    struct hkt__link tp, ep; /* tp.axis is SP with sequence parallelism */
    enum hkt_status status;
    bool is_cut; /* sequence parallelism over more than one rank */
    int64_t hidden, head_dim, rows, rows_here, first_here;
    int64_t heads, kv_heads, first_head;     /* of this rank; first_head: of its query heads, in the model */
    struct hkt_range vocab;                  /* of this rank */
    int32_t *positions;                      /* [rows] */
    void *cosines, *sines;                   /* rotary; NULL without */
};

/** A parameter tensor as bound now. */
struct hkt__weight {
    const void *value;
    void *grad;
};
struct hkt__norm_weights {
    struct hkt__weight gamma, beta;
};
struct hkt__mlp_weights {
    struct hkt__weight gate, gate_bias; /* gate [width][hidden]; gated: up follows it in memory: [2 * width][hidden] */
    struct hkt__weight out, out_bias;   /* [hidden][width] */
    int64_t width;                      /* of this rank */
};
struct hkt__layer_weights {
    int layer;
    struct hkt__norm_weights norm1, norm2;
    struct hkt__weight qkv, qkv_bias; /* q, k and v of this rank's heads, one after the other */
    struct hkt__weight attn_out, attn_bias;
    struct hkt__mlp_weights mlp;      /* without experts */
    struct hkt__weight router;        /* [experts][hidden]; value NULL: no experts */
    struct hkt__mlp_weights *experts; /* [experts of this rank] */
};

/** Which layer of which micro-batch. */
struct hkt__block_site {
    uint64_t step;
    int64_t first_row;
    int layer;
    bool has_dropout;               /* where config says so; false: evaluation */
    double scale;                   /* of gradients */
    int64_t tokens;                 /* that count: weight of balance and z-loss */
    struct hkt__gpt_result *result; /* where losses and drops are added; NULL: nowhere (recompute) */
    struct hkt_step_routing *routing; /* what the layer's experts were sent; NULL: not wanted */
};

/* ---- memory and status ---- */

static inline bool hkt__block_ok(const struct hkt__block *block)
{
    return block->status == HKT_OK;
}
void hkt__block_note(struct hkt__block *block, enum hkt_status rc);
/** Elements of the store type, or of the real one; NULL after a failure. */
void *hkt__block_get(struct hkt__block *block, int64_t elems);
void *hkt__block_get_real(struct hkt__block *block, int64_t elems);
/** Frees and clears. */
void hkt__block_drop(struct hkt__block *block, void **data);

/* ---- tensor parallelism (linear_par.c) ---- */

/** This rank's rows to all rows. Takes `here` and gives the result, which is `here` itself unless the rows are cut. */
void *hkt__tp_gather(struct hkt__block *block, void *here);
/** All rows, of which each rank has a part of the sum, to this rank's rows of the sum. Takes `whole`, gives the result. */
void *hkt__tp_reduce(struct hkt__block *block, void *whole);

/** Column-parallel or row-parallel is a matter of which part of the matrix the rank has: both are these. */
void hkt__block_linear(struct hkt__block *block, const struct hkt__linear *linear);
void hkt__block_linear_grad(struct hkt__block *block, const struct hkt__linear *linear);
void hkt__block_linear_weights(struct hkt__block *block, const struct hkt__linear *linear);

/* ---- norms and what stands around a block (block_layer.c) ---- */

struct hkt__norm_saved {
    const void *x; /* borrowed */
    void *mean, *rstd;
};
/** Gives the normalised rows. */
void *hkt__block_norm(struct hkt__block *block, const struct hkt__norm_weights *weights, const void *x,
                      struct hkt__norm_saved *saved);
/** In place on d. Drops what was saved. */
void hkt__block_norm_grad(struct hkt__block *block, const struct hkt__norm_weights *weights,
                          struct hkt__norm_saved *saved, void *d);
enum { HKT__SITE_EMBEDDING = 1, HKT__SITE_ATTENTION, HKT__SITE_MLP, HKT__SITE_INIT, HKT__SITE_WEIGHTS };
/** y = dropout(x) over this rank's rows, or a copy. y may be x. */
void hkt__block_dropout(struct hkt__block *block, int what, const struct hkt__block_site *site, const void *x, void *y);

/* ---- attention (attention_par.c) ---- */

struct hkt__attention_saved {
    void *in;  /* store [rows][hidden], gathered */
    void *qkv; /* store [rows][(heads + 2 kv_heads) * head_dim], turned */
    void *y;   /* store [rows][heads * head_dim] */
    void *lse; /* real [rows * heads] */
};
/** What backward leaves for the weights. */
struct hkt__attention_kept {
    void *dy, *dqkv;
};
/** in -> this rank's part of the output [rows][hidden]. */
void *hkt__attention_forward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                             const struct hkt__block_site *site, struct hkt__attention_saved *saved);
/** kept->dy [rows][hidden] -> this rank's part of the gradient of `in`. */
void *hkt__attention_backward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                              const struct hkt__block_site *site, struct hkt__attention_saved *saved,
                              struct hkt__attention_kept *kept);
void hkt__attention_weights(struct hkt__block *block, const struct hkt__layer_weights *weights,
                            struct hkt__attention_saved *saved, struct hkt__attention_kept *kept);
void hkt__attention_drop(struct hkt__block *block, struct hkt__attention_saved *saved,
                         struct hkt__attention_kept *kept);

/* ---- MLP (block_mlp.c) ---- */

struct hkt__mlp_saved {
    int64_t rows;
    const void *in; /* store [rows][hidden], borrowed */
    void *pre;      /* store [rows][width], gated: [rows][2 * width] */
    void *mid;      /* store [rows][width] */
};
struct hkt__mlp_kept {
    const void *dy; /* borrowed */
    void *dpre;
};
/** saved->in, rows are set -> y [rows][hidden]: this rank's part, without out_bias. y NULL: not wanted. */
void hkt__mlp_forward(struct hkt__block *block, const struct hkt__mlp_weights *weights, struct hkt__mlp_saved *saved,
                      void *y);
/** kept->dy -> dx [rows][hidden], this rank's part. */
void hkt__mlp_backward(struct hkt__block *block, const struct hkt__mlp_weights *weights, struct hkt__mlp_saved *saved,
                       struct hkt__mlp_kept *kept, void *dx);
void hkt__mlp_weights(struct hkt__block *block, const struct hkt__mlp_weights *weights, struct hkt__mlp_saved *saved,
                      struct hkt__mlp_kept *kept);
void hkt__mlp_drop(struct hkt__block *block, struct hkt__mlp_saved *saved, struct hkt__mlp_kept *kept);

/* ---- experts (moe_layer.c) ---- */

struct hkt__moe_saved {
    struct hkt_moe_plan *plan;
    void *probs;    /* real [rows][experts] */
    void *logits;   /* real [rows][experts] */
    double *gates;  /* [rows][top_k] weights of a token's experts */
    int32_t *choice; /* [rows][top_k] */
    void *arrived;  /* store [arrivals][hidden], in order of experts */
    void *results;  /* store [slots][hidden]: what experts made of this rank's tokens, of this rank's part of the width */
    struct hkt__mlp_saved *expert; /* [experts of this rank] */
    int nexperts;
};
struct hkt__moe_kept {
    void *arrived_grad; /* store [arrivals][hidden] */
    void *dlogits;      /* store [rows][experts] */
    struct hkt__mlp_kept *expert;
};
/** One layer's experts and one micro-batch. */
struct hkt__moe_call {
    const struct hkt__layer_weights *weights;
    const struct hkt__block_site *site;
    const void *in; /* store [rows][hidden] */
    struct hkt__moe_saved *saved;
    struct hkt__moe_kept *kept; /* NULL in forward */
};
/** in -> y [rows][hidden], this rank's part. y NULL: not wanted. */
void hkt__moe_forward(struct hkt__block *block, const struct hkt__moe_call *call, void *y);
/** dy [rows][hidden] -> dx, this rank's part, without what comes through the router, which is whole: router_dx. */
void hkt__moe_backward(struct hkt__block *block, const struct hkt__moe_call *call, const void *dy, void *dx,
                       void *router_dx);
void hkt__moe_weights(struct hkt__block *block, const struct hkt__moe_call *call);
void hkt__moe_drop(struct hkt__block *block, struct hkt__moe_saved *saved, struct hkt__moe_kept *kept);

/** The router's choice (moe_router.c): logits, probabilities, choices and weights from call->in. */
void hkt__moe_choose(struct hkt__block *block, const struct hkt__moe_call *call);
/** Gradients of the weights, added up over tp -> kept->dlogits. dgate [rows * top_k] is changed. */
void hkt__moe_choose_grad(struct hkt__block *block, const struct hkt__moe_call *call, double *dgate);
/** Rows between slots and arrivals (moe_exchange.c); back: from the experts. */
void hkt__moe_exchange(struct hkt__block *block, const struct hkt_moe_plan *plan, const void *from, void *to,
                       bool is_back);
/** How many slots each rank sends to each expert of this one: counts[ranks * local experts]. */
void hkt__moe_exchange_counts(struct hkt__block *block, const struct hkt_moe_plan *plan, int64_t *counts);

/* ---- a layer (block_layer.c) ---- */

struct hkt__layer_saved {
    struct hkt__norm_saved norm1, norm2;
    struct hkt__attention_saved attention;
    void *middle; /* store [rows_here][hidden]: after attention */
    void *mlp_in; /* store [rows][hidden], gathered */
    struct hkt__mlp_saved mlp;
    struct hkt__moe_saved moe;
    bool is_whole; /* all of it is here; false: it must be computed again from the layer's input */
};
struct hkt__layer_kept {
    struct hkt__attention_kept attention;
    void *mlp_dy;
    struct hkt__mlp_kept mlp;
    struct hkt__moe_kept moe;
};
/** Store [rows_here][hidden]. x is borrowed until backward. out NULL: just save what backward needs. */
struct hkt__layer_io {
    const void *x;
    void *out;
};
void hkt__layer_forward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                        const struct hkt__block_site *site, const struct hkt__layer_io *io,
                        struct hkt__layer_saved *saved);
/** What of `saved` config.recompute lets go after forward. */
void hkt__layer_forget(struct hkt__block *block, struct hkt__layer_saved *saved);

/** What backward of a layer reads and writes. */
struct hkt__layer_grad {
    const void *x; /* the layer's input */
    const void *dout;
    void *dx;
    struct hkt__layer_saved *saved;
    struct hkt__layer_kept *kept;
};
void hkt__layer_backward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                         const struct hkt__block_site *site, const struct hkt__layer_grad *grad);
/** Adds the gradients of the matrices, and drops everything. */
void hkt__layer_weights(struct hkt__block *block, const struct hkt__layer_weights *weights,
                        struct hkt__layer_saved *saved, struct hkt__layer_kept *kept);
void hkt__layer_drop(struct hkt__block *block, struct hkt__layer_saved *saved, struct hkt__layer_kept *kept);

/* ---- vocabulary (vocab_embedding.c, vocab_head.c) ---- */

struct hkt__embedding_weights {
    struct hkt__weight words, positions; /* [vocab.count][hidden]; [positions][hidden] or NULL */
};
/** ids[rows] -> y [rows_here][hidden], given. */
void *hkt__embedding_forward(struct hkt__block *block, const struct hkt__embedding_weights *weights,
                             const struct hkt__block_site *site, const int32_t *ids);
/** dy [rows_here][hidden], taken. All of it is gradients of weights. */
void hkt__embedding_weights(struct hkt__block *block, const struct hkt__embedding_weights *weights,
                            const struct hkt__block_site *site, const int32_t *ids, void *dy);

struct hkt__head_weights {
    struct hkt__norm_weights norm;
    struct hkt__weight words; /* [vocab.count][hidden] */
};
struct hkt__head_saved {
    struct hkt__norm_saved norm;
    void *in;      /* store [rows][hidden], gathered */
    void *dlogits; /* store [rows][vocab.count] */
};
struct hkt__head_call {
    const struct hkt__head_weights *weights;
    const struct hkt__block_site *site;
    const int32_t *targets; /* [rows] */
    struct hkt__head_saved *saved;
};
/** x [rows_here][hidden] -> losses of tokens, added to site->result. has_grad: saves what backward needs. */
void hkt__head_forward(struct hkt__block *block, const struct hkt__head_call *call, const void *x, bool has_grad);
/** Gives the gradient of x. */
void *hkt__head_backward(struct hkt__block *block, const struct hkt__head_call *call);
void hkt__head_weights(struct hkt__block *block, const struct hkt__head_call *call);
void hkt__head_drop(struct hkt__block *block, struct hkt__head_saved *saved);

#endif
