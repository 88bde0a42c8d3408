/* The mathematics of one rank: every formula of the transformer, forward and backward, on row-major memory. It knows nothing
 * of layouts or peers; what needs several ranks (a softmax over a split vocabulary) comes in parts with the gap between.
 *
 * Two types matter. The *store* type is that of parameters, activations and their gradients: f32, f64 or bf16. The *real* type
 * is what is computed in: f32 for bf16, otherwise the store type. In the real type are also: saved statistics (mean, rstd,
 * log-sum-exp), and gradients of parameters, which are always added to what is there (so micro-batches accumulate in it).
 * hkt__math_ops_of(dtype) gives one table per store type, so callers write no switch.
 *
 * Same call, same bits: every sum has a fixed order, no operation is contracted, and all instruction sets give the same bits.
 * Only matrix products (parallel/gemm.h) depend on the library and CPU behind them, but not on the run. */
#ifndef HOCKET_PARALLEL_MATH_OPS_H
#define HOCKET_PARALLEL_MATH_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "hocket/types.h"
#include "parallel/exact.h"
#include "parallel/memory.h"
#include "parallel/rng.h"

/** Layer norm (mean, beta not NULL) or RMS norm (mean and beta NULL) over the columns. */
struct hkt__norm {
    int64_t rows, cols;
    double eps;
    const void *x, *gamma, *beta; /* store [rows][cols], [cols], [cols] or NULL */
    void *y;                      /* forward: store [rows][cols] */
    void *mean, *rstd;            /* real [rows]; forward writes, backward reads; mean NULL: RMS norm */
    const void *dy;               /* backward: store [rows][cols] */
    void *dx;                     /* store [rows][cols], overwritten; NULL: not wanted; may be dy */
    void *dgamma, *dbeta;         /* real [cols], added to in row order; NULL: not wanted */
};

/** Gated unit y = silu(gate) * up. The two halves may lie in one matrix: each has a distance between rows (ld, elements). */
struct hkt__swiglu {
    int64_t rows, cols;
    const void *gate, *up;   /* store */
    int64_t ld_gate, ld_up;
    void *y;                 /* store [rows][cols]; forward */
    const void *dy;          /* store [rows][cols]; backward */
    void *dgate, *dup;       /* store, ld as gate and up; may be gate and up themselves */
};

/** Rows of a table: y[r] = table[id[r] - first], or 0 when the id is outside [first, first + rows of the table). */
struct hkt__embedding {
    int64_t rows, cols;      /* of y */
    int64_t first, count;    /* the ids this shard of the table holds */
    const int32_t *ids;      /* [rows], global ids; outside the shard: zeros */
    const void *table;       /* store [count][cols] */
    void *y;                 /* store [rows][cols]; forward */
    const void *dy;          /* store [rows][cols]; backward */
    void *dtable;            /* real [count][cols], added to in row order */
};

enum hkt__rotary_pairs {
    HKT__ROTARY_NEIGHBOURS,  /* element 2i turns with 2i + 1 */
    HKT__ROTARY_HALVES       /* element i turns with i + d/2 (Hugging Face's Llama) */
};

/** Rotary positions, in place on x. inverse != 0 turns back, which is the gradient's transformation. */
struct hkt__rotary {
    int64_t rows, heads, head_dim, ld;
    void *x;                  /* store [rows], ld elements apart, each [heads][head_dim] */
    const int32_t *positions; /* [rows] */
    const void *cosines, *sines; /* real [positions][head_dim / 2], from hkt__rotary_table */
    enum hkt__rotary_pairs pairs;
    int inverse;
};

/** Softmax cross-entropy over a vocabulary of which this rank holds columns [first, first + cols). In order: row_max, then
 *  the maximum over ranks; row_sums, then the sum over ranks of sum_exp and target_logit; loss and grad from those. */
struct hkt__cross_entropy {
    int64_t rows, cols, first;
    const void *logits;       /* store [rows][cols] */
    const int32_t *targets;   /* [rows], global ids; < 0: the row does not count */
    void *row_max;            /* real [rows]: row_max writes the local one; the others read the global one */
    void *sum_exp;            /* real [rows]: sum of exp(logit - row_max) */
    void *target_logit;       /* real [rows]: 0 where the target is elsewhere */
    void *loss;               /* real [rows]: loss = log(sum_exp) + row_max - target_logit; 0 for rows not counted */
    void *dlogits;            /* store [rows][cols], may be logits: grad = (softmax - onehot) * scale, 0 for rows not counted */
    double scale;
};

/** A flat range of parameters for the optimizer. */
struct hkt__optimizer_range {
    int64_t elems;
    void *param;             /* store */
    void *master;            /* real; NULL when the store type is the real type: then param is its own master */
    const void *grad;        /* real */
    void *moment1, *moment2; /* real; moment2 unused by SGD, moment1 by SGD without momentum */
    double grad_scale;       /* grad is multiplied by it: 1 / loss scale, 1 / tokens and the clip factor in one */
};

/** AdamW (Loshchilov & Hutter 2019), in PyTorch's order of operations. step counts from 1. */
struct hkt__adamw {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;
};

/** g += weight_decay * p; buffer = momentum * buffer + g; p -= lr * buffer (PyTorch's SGD). */
struct hkt__sgd {
    double lr, momentum, weight_decay;
};

/** Elements of a matrix that lie on this rank, by their place in the whole one: what random numbers are keyed by. */
struct hkt__region {
    int64_t rows, cols;
    int64_t first_row, first_col; /* place of element (0, 0) */
    const int64_t *row_of;        /* [rows] global row of each row here, instead of first_row + r; or NULL */
    int64_t cols_all;             /* columns of the whole matrix */
};

/** Dropout: y = x / (1 - p) where an element is kept, else 0. Backward is the same call on the gradient: no mask is saved. */
struct hkt__dropout {
    struct hkt__region region;
    struct hkt__rng rng;
    double p;                /* probability of dropping, 0 <= p < 1 */
    const void *x;           /* store [rows][cols] */
    void *y;                 /* may be x */
};

/** Dropout of attention's weights, after the softmax. Whether the weight of key j is dropped for a query is a function of its
 *  row in the whole batch, its head in the whole model, and j: number
 *  ((row / 2 * heads_all + head) * ceil(keys / 64) + j / 64) * 128 + row % 2 * 64 + j % 64 of the stream. */
struct hkt__attention_dropout {
    double p;              /* 0: none */
    struct hkt__rng rng;
    int64_t first_row;     /* of the call's first query */
    int64_t first_head, heads_all;
};

/** Attention: causal, query i sees keys 0 .. i + (keys - queries). Query head g uses key head g / (heads / kv_heads).
 *  ld: elements between rows of one sequence; sequence b starts at row b * queries (keys for k, v, dk, dv). */
struct hkt__attention {
    int64_t batch, queries, keys, heads, kv_heads, head_dim;
    double scale;                 /* usually 1 / sqrt(head_dim) */
    const void *q, *k, *v;        /* store */
    int64_t ld_q, ld_k, ld_v, ld_y;
    int64_t kv_rows;              /* rows between the sequences of k and v; 0: keys (a cache has room for more) */
    void *y;                      /* store; forward writes, backward reads */
    void *lse;                    /* real [batch][heads][queries]: log of the sum of exp(scores); forward, NULL: not wanted */
    const void *dy;               /* store, ld_y */
    void *dq, *dk, *dv;           /* store, ld_q, ld_k, ld_v; overwritten; may be q, k, v */
    struct hkt__attention_dropout dropout; /* the same in forward and backward; decoding has none */
};

struct hkt__math;
struct hkt__gemm;

/** The kernels of one store type. Shapes and aliasing as in the structs above. n and rows may be 0. None can fail except
 *  those that return a status: these need scratch memory (class buffer), and fail with NOMEM. */
struct hkt__math_ops {
    enum hkt_dtype store, real;
    size_t store_bytes, real_bytes;

    /* y = a + b; y may be a or b. */
    void (*add)(void *y, const void *a, const void *b, int64_t n);
    /* y = alpha * y. */
    void (*scale)(void *y, double alpha, int64_t n);
    /* Real to store and back, rounding to nearest even. */
    void (*from_real)(void *y, const void *x, int64_t n);
    void (*to_real)(void *y, const void *x, int64_t n);
    /* From and to f64, for tests, checkpoints and scalars. */
    void (*from_f64)(void *y, const double *x, int64_t n);
    void (*to_f64)(double *y, const void *x, int64_t n);

    /* y[r][c] += bias[c]; dbias[c] (real) += sum over rows of dy[r][c]. */
    void (*bias)(void *y, const void *bias, int64_t rows, int64_t cols);
    void (*bias_grad)(void *dbias, const void *dy, int64_t rows, int64_t cols);

    void (*norm)(const struct hkt__norm *norm);
    void (*norm_grad)(const struct hkt__norm *norm);

    /* Element-wise activations; dx may be dy. gelu: the tanh form of GPT-2 ("gelu_new"); gelu_erf: the exact one. */
    void (*gelu)(void *y, const void *x, int64_t n);
    void (*gelu_grad)(void *dx, const void *dy, const void *x, int64_t n);
    void (*gelu_erf)(void *y, const void *x, int64_t n);
    void (*gelu_erf_grad)(void *dx, const void *dy, const void *x, int64_t n);
    void (*swiglu)(const struct hkt__swiglu *swiglu);
    void (*swiglu_grad)(const struct hkt__swiglu *swiglu);

    void (*embedding)(const struct hkt__embedding *embedding);
    void (*embedding_grad)(const struct hkt__embedding *embedding);
    void (*rotary)(const struct hkt__rotary *rotary);

    /* Softmax of each row, and dx = (dy - sum(dy * y)) * y; y may be x, dx may be dy. */
    void (*softmax)(void *y, const void *x, int64_t rows, int64_t cols);
    void (*softmax_grad)(void *dx, const void *dy, const void *y, int64_t rows, int64_t cols);
    void (*cross_entropy_max)(const struct hkt__cross_entropy *ce);
    void (*cross_entropy_sums)(const struct hkt__cross_entropy *ce);
    void (*cross_entropy_loss)(const struct hkt__cross_entropy *ce);
    void (*cross_entropy_grad)(const struct hkt__cross_entropy *ce);

    enum hkt_status (*attention)(struct hkt__math *math, const struct hkt__attention *attention);
    enum hkt_status (*attention_grad)(struct hkt__math *math, const struct hkt__attention *attention);
    /* queries == 1, no lse: one token against a cache; nothing is copied. */
    enum hkt_status (*attention_decode)(struct hkt__math *math, const struct hkt__attention *attention);

    void (*dropout)(const struct hkt__dropout *dropout);
    /* y[rows][cols] = mean + deviation * normal: the elements of the whole matrix that lie in the region. */
    void (*normal)(void *y, const struct hkt__region *region, const struct hkt__rng *rng, double deviation);

    void (*adamw)(const struct hkt__optimizer_range *range, const struct hkt__adamw *adamw);
    void (*sgd)(const struct hkt__optimizer_range *range, const struct hkt__sgd *sgd);
    /* Add x (real) or its squares to an exact sum, whose value depends on no order. */
    void (*exact_add)(struct hkt__exact *sum, const void *x, int64_t n);
    void (*exact_add_squares)(struct hkt__exact *sum, const void *x, int64_t n);
};

/** The table for a store type (F32, F64, BF16), in the best instruction set of this CPU; NULL for another type. */
const struct hkt__math_ops *hkt__math_ops_of(enum hkt_dtype store);
/** The same in a named instruction set ("base", "avx2", "avx512"); NULL when this build or CPU lacks it. For tests. */
const struct hkt__math_ops *hkt__math_ops_in(enum hkt_dtype store, const char *isa);

/** What a rank computes with: the table and a scratch buffer that grows to the largest need. One thread uses it. */
struct hkt__math {
    const struct hkt__math_ops *ops;
    struct hkt__memory *memory;
    void *scratch;
    uint64_t scratch_bytes;
    void *pack;              /* of matrix products; a buffer of fixed size, or NULL when they need none */
};

/** Errors: INVALID for a dtype that is no store type; NOMEM. */
HKT_NODISCARD enum hkt_status hkt__math_init(struct hkt__math *math, enum hkt_dtype store,
                                             struct hkt__memory *memory);
void hkt__math_fini(struct hkt__math *math);
/** At least `bytes` of scratch, contents undefined, valid until the next call of this. Errors: NOMEM. */
HKT_NODISCARD enum hkt_status hkt__math_scratch(struct hkt__math *math, uint64_t bytes, void **out_scratch);

struct hkt__rotary_angles {
    int64_t head_dim;
    double base; /* 10000 in the paper (Su et al. 2021) */
};
/** Tables for hkt__math_ops.rotary, real [positions][head_dim / 2]: angle(p, i) = p * base^(-2i / head_dim). */
void hkt__rotary_table(const struct hkt__math_ops *ops, void *cosines, void *sines, int64_t positions,
                       const struct hkt__rotary_angles *angles);

#endif
