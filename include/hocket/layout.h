/* The shape of a transformer, the layout that trains it, and which layouts are possible. A layout is refused before
 * anything is allocated, with the numbers that do not fit and the nearest that do. */
#ifndef HOCKET_LAYOUT_H
#define HOCKET_LAYOUT_H

#include <stdint.h>

#include "hocket/pipeline.h"
#include "hocket/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A decoder-only transformer. Fields at 0 take the value in brackets. */
struct hkt_shape {
    int layers, heads;
    int kv_heads;     /* [heads] */
    int experts;      /* [0: dense] experts of each layer's MLP */
    int shared;       /* experts that every token passes, of the same size */
    int top_k;        /* [1] experts per token, with experts */
    int dense_layers; /* the first layers, without experts, with dense_ffn */
    int64_t hidden;
    int64_t head_dim;  /* [hidden / heads] */
    int64_t ffn;       /* [4 * hidden] inner width of an MLP, or of one expert */
    int64_t dense_ffn; /* [ffn] */
    int64_t vocab;
    int64_t positions; /* learned positions; 0: none (rotary) */
    int gated;         /* 1: SwiGLU, three matrices; 0: two */
    int biases;        /* 1: linear layers and norms have biases (GPT-2) */
    int tied;          /* 1: the head is the embedding */
    int64_t kv_rank; /* latent attention (DeepSeek): keys and values come from so many numbers; 0: ordinary attention */
    int64_t q_rank;  /* with it: queries from so many */
    int64_t rope_dim; /* with it: dimensions of a head with positions, on top of head_dim */
    int64_t v_dim;    /* with it: of a head's value */
};

/** Parameters, part by part. */
struct hkt_shape_params {
    int64_t attention; /* of a layer: q, k, v and output */
    int64_t norms;     /* of a layer */
    int64_t mlp;       /* of a layer with experts: router, experts and shared ones; else the MLP */
    int64_t dense_mlp; /* of the first dense_layers */
    int64_t expert;    /* of one expert */
    int64_t embedding; /* words and positions */
    int64_t head;      /* final norm, and the output matrix unless tied */
    int64_t total;
    int64_t active; /* that a token passes, embeddings included */
};
HKT_API struct hkt_shape_params hkt_count_params(const struct hkt_shape *shape);

/** Parameters on a pipeline stage that has layers [first, end): with the embedding if first is 0, with the head if
 *  end is the last; the embedding again where a tied head is on another stage than it. */
HKT_API int64_t hkt_shape_stage_params(const struct hkt_shape *shape, int first, int end);

/** How training is cut. Sizes at 0 are 1. */
struct hkt_layout {
    int nranks;
    int dp, tp, pp;
    int ep;                /* inside dp */
    int chunks;            /* per stage, interleaved */
    int sequence_parallel; /* 1: norms and dropout are cut along the sequence over tp */
    int zero;              /* 0 to 3 */
    int shard;             /* dp ranks that shard with each other; 0: all; else dp / shard replicas (hybrid) */
    int64_t global_batch;  /* sequences per step */
    int64_t micro_batch;   /* sequences */
    int64_t seq;
    enum hkt_pipe_kind schedule;
};

/** Micro-batches per step and data-parallel rank; 0 when they do not divide. */
HKT_API int64_t hkt_layout_micros(const struct hkt_layout *layout);

/** Can this shape be trained in this layout? Everything that need not divide does not have to: layers over stages,
 *  vocabulary and MLP width over tp, parameters over shards, micro-batches over stages.
 *  Errors   INVALID names the numbers, what they must obey and the nearest that do */
HKT_API HKT_NODISCARD enum hkt_status hkt_layout_check(const struct hkt_shape *shape, const struct hkt_layout *layout);

#ifdef __cplusplus
}
#endif
#endif
