/* What training costs, by formula: bytes of state, of messages and of activations, bubbles, floating-point
 * operations. Pure functions, used by the runtime to say what it will do and by the planner to choose; numbers are
 * doubles (whole up to 2^53). GB is 1e9 bytes, GiB is 2^30. Sources stand with each; symbols as in Narayanan et al.
 * 2021: s sequence, b micro-batch, h hidden size, a heads, L layers, V vocabulary, t p d sizes of tensor, pipeline
 * and data parallelism. */
#ifndef HOCKET_FORMULAS_H
#define HOCKET_FORMULAS_H

#include <stdint.h>

#include "hocket/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- state: parameters, gradients, optimizer ---- */

/** Bytes per parameter. */
struct hkt_param_bytes {
    const char *name;
    double param; /* as forward reads it */
    double grad;  /* as backward adds it up */
    double
        main_grad; /* a wide copy that the optimizer makes of the gradient it updates with; 0: it reads grad itself */
    double master; /* wide copy of the parameter; 0: none */
    double moment1, moment2;
};
/** The common recipes, index 0 on; NULL past the end:
 *    mixed16      2 2 0 4 4 4  bf16 or f16 with f32 master (ZeRO, K = 12): the default
 *    bf16-12      2 2 0 0 4 4  bf16 without master: small updates are lost
 *    mixed18      2 4 0 4 4 4  bf16 with f32 gradients (Megatron-LM)
 *    mixed20      2 2 4 4 4 4  f16 with an f32 copy of the gradients (Megatron-LM, DeepSpeed)
 *    f32-16       4 4 0 0 4 4  all f32                                                                         */
HKT_API const struct hkt_param_bytes *hkt_param_bytes_get(int index);
/** By name, or as numbers "param,grad,master,moment1,moment2" ("2,2,4,4,4"). INVALID lists the names. */
HKT_API HKT_NODISCARD enum hkt_status hkt_param_bytes_parse(const char *text, struct hkt_param_bytes *out_bytes);

/** Bytes on one rank. optimizer holds main_grad, master and moments. */
struct hkt_state_bytes {
    double param, grad, optimizer, total;
};
/** `params` parameters, ZeRO stage 0 to 3 over `shards` ranks: stage 1 shards the optimizer, 2 the gradients too, 3
 *  the parameters too (Rajbhandari et al. 2020). */
HKT_API struct hkt_state_bytes hkt_count_state(double params, const struct hkt_param_bytes *bytes, int zero,
                                               int shards);

/** ZeRO-Offload: optimizer on the host. */
struct hkt_offload_bytes {
    double device;     /* parameters */
    double host;       /* optimizer, and the gradients in f32 */
    double host_least; /* optimizer alone, gradients used as they come */
    double bus;        /* gradients down and parameters up, per step */
};
HKT_API struct hkt_offload_bytes hkt_count_offload(double params, const struct hkt_param_bytes *bytes);

/* ---- bytes that a rank sends ---- */

/** Bandwidth-optimal collectives over n ranks on a buffer of `bytes` (the whole vector, not a rank's part):
 *  all-reduce 2 (n - 1) / n, reduce-scatter and all-gather (n - 1) / n, all-to-all (n - 1) / n of what each rank
 *  holds. */
HKT_API double hkt_wire_all_reduce(double bytes, int n);
HKT_API double hkt_wire_reduce_scatter(double bytes, int n);
HKT_API double hkt_wire_all_gather(double bytes, int n);
HKT_API double hkt_wire_all_to_all(double bytes, int n);

/** Data parallelism per step. */
struct hkt_dp_opts {
    int zero;         /* 0 to 3 */
    int inner;        /* ranks that shard with each other */
    int outer;        /* replicas of these (hybrid); 0, 1: none */
    int micros;       /* micro-batches per step; 0: 1 */
    int reduce_every; /* 1: gradients are reduced after every micro-batch, 0: once at the end */
    int keep_gathered; /* ZeRO 3: 1: parameters stay from forward to backward, gathered once per micro-batch, not twice */
    double grad_bytes, param_bytes; /* of the whole model as this rank's tp and pp cut leaves it */
};
struct hkt_dp_bytes {
    double reduce;  /* inner: reduce-scatter, or all-reduce at stage 0 */
    double gather;  /* inner: all-gather of parameters */
    double replica; /* outer: all-reduce of the shard */
    double total;
};
HKT_API struct hkt_dp_bytes hkt_count_dp(const struct hkt_dp_opts *opts);

/** One message between layers: s * b * h elements. */
HKT_API double hkt_message_bytes(int64_t seq, int64_t batch, int64_t hidden, double element_bytes);
/** Tensor parallelism, one transformer layer of one micro-batch: two all-reduces forward and two backward; sequence
 *  parallelism puts an all-gather and a reduce-scatter in the place of each, with the same bytes. */
HKT_API double hkt_tp_layer_bytes(double message, int tp, int allreduces);
/** Pipeline, one boundary, one micro-batch, one way; with sequence parallelism each tensor-parallel rank sends its
 *  part. */
HKT_API double hkt_pp_message_bytes(double message, int tp, int sequence_parallel);
/** Experts, one layer of one micro-batch: all-to-all there and back, forward and backward: 4 times; uniform routing.
 *  `tokens` of this rank. */
HKT_API double hkt_ep_layer_bytes(double tokens, int top_k, int64_t hidden, double element_bytes, int ep);

/* ---- activations ---- */

enum hkt_recompute {
    HKT_RECOMPUTE_NONE,
    HKT_RECOMPUTE_SELECTIVE, /* the core of attention: scores, softmax, dropout, over values */
    HKT_RECOMPUTE_FULL,      /* of a layer only its input is kept */
};

struct hkt_act_opts {
    int64_t seq, batch, hidden, heads;
    int tp; /* 0: 1 */
    int sequence_parallel;
    int online_softmax;      /* 1: scores are never stored (FlashAttention); saves what selective recompute saves */
    int sharded_checkpoints; /* full recompute: 1: the kept input is cut over tp */
    enum hkt_recompute recompute;
};
/** Bytes that one layer keeps for backward, 16-bit activations, dropout masks of one byte: s b h (34 + 5 a s / h), as
 *  Korthikanti et al. 2022 count it. 34 is bytes, not elements. */
HKT_API double hkt_act_layer_bytes(const struct hkt_act_opts *opts);
/** On the first stage of 1F1B: p micro-batches of L / p layers, so L layers; interleaving with v chunks adds
 *  (p - 1) / (p v). */
HKT_API double hkt_act_stage_bytes(double layer_bytes, int64_t layers, int pp, int chunks);
/** Share of a step's model operations that recompute adds: selective s / (6 h), full one more forward pass. */
HKT_API double hkt_recompute_share(enum hkt_recompute recompute, int64_t seq, int64_t hidden);
/** KV cache: 2 L B S kv_heads head_dim elements. */
HKT_API double hkt_kv_bytes(int64_t layers, int64_t batch, int64_t seq, int64_t kv_width, double element_bytes);

/* ---- operations ---- */

/** The size that papers print: P = 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)). */
HKT_API double hkt_params_estimate(int64_t layers, int64_t hidden, int64_t vocab, int64_t seq);
/** Floating-point operations of a step on `batch` sequences: 72 B L s h^2 (1 + s / (6 h) + V / (12 h L)) of the
 *  model; with full recompute 96 B L s h^2 (1 + s / (6 h) + V / (16 L h)) in all. */
HKT_API double hkt_flops_model(int64_t batch, int64_t layers, int64_t hidden, int64_t vocab, int64_t seq);
HKT_API double hkt_flops_recomputed(int64_t batch, int64_t layers, int64_t hidden, int64_t vocab, int64_t seq);
/** Seconds to train on `tokens`: 8 T P / (n X), X operations per second and device, full recompute. */
HKT_API double hkt_train_seconds(double tokens, double params, int devices, double flops_per_s);

/* ---- bubbles ---- */

/** The three names for one thing, with `ideal` the time of compute of a device. */
struct hkt_bubble {
    double fraction;   /* bubble / (ideal + bubble): (p - 1) / (m + p - 1) */
    double ratio;      /* bubble / ideal: (p - 1) / m */
    double efficiency; /* 1 - fraction */
};
HKT_API struct hkt_bubble hkt_bubble_of(double ideal, double bubble);
/** m p / (m p + 2 p - 2), found in notes as the efficiency of a pipeline. It adds the work of the whole machine to
 *  the idle time of one device; kept to explain, not to plan with. */
HKT_API double hkt_bubble_miscounted(int stages, int micros);

/** What published schedules promise, in the units of their authors. */
struct hkt_pipe_method {
    const char *name;
    double params;      /* as a multiple of 1F1B's */
    double activations; /* as a multiple of those of p micro-batches */
    int extra;          /* micro-batches on top */
    double messages;    /* bytes between stages, as a multiple of 1F1B's */
    double devices;     /* as a multiple of p */
};
/** Index 0 on, NULL past the end: 1f1b, zb-h1 (ZB1P), zb-h2 (ZB2P), zb-v, v-half, v-min, dualpipe, dualpipe-v.
 *  Source   Qi et al. 2024 (two papers); DualPipe's README */
HKT_API const struct hkt_pipe_method *hkt_pipe_method_get(int index);

/** Times of one micro-batch on one stage. */
struct hkt_pipe_method_times {
    double f;
    double b;    /* the whole backward pass */
    double w;    /* the part of b that is gradients of weights */
    double both; /* an F and a B that run together (DualPipe) */
};
/** Bubble over p stages: 1f1b (p - 1)(f + b); zb-h1 (p - 1)(f + b - 2 w); dualpipe (p / 2 - 1)(both + b - 3 w); zb-h2
 *  and zb-v 0; v-half half and v-min two thirds of 1f1b's, for f = b - w = w. */
HKT_API double hkt_pipe_method_bubble(const struct hkt_pipe_method *method, int stages,
                                      const struct hkt_pipe_method_times *times);

/* ---- experts ---- */

/** Tokens that an expert takes: ceil(tokens * top_k / experts * factor). */
HKT_API int64_t hkt_moe_capacity(int64_t tokens, int top_k, int experts, double factor);

#ifdef __cplusplus
}
#endif
#endif
