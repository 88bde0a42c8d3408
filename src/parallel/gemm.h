/* Matrix products, row-major: C = alpha * op(A) op(B) + beta * C. By a CBLAS library where there is one, else by the
 * project's own blocked product (gemm_kernels.h); also by the own one where OpenBLAS does not know the CPU and falls back to
 * kernels of twenty years ago (0.3.21, of Debian 12, does on Intel's fifth Xeon generation: 32 GF/s of 150 in f32).
 *
 * Same shapes and values, same bits, run after run, as long as the number of threads stays. Rows of C do not depend on each
 * other's values, but their bits may depend on the number of rows. */
#ifndef HOCKET_PARALLEL_GEMM_H
#define HOCKET_PARALLEL_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include "hocket/status.h"

struct hkt__math;

/** op(A) is [m][k]: A is [m][k], or [k][m] when trans_a. op(B) is [k][n]: B is [k][n], or [n][k] when trans_b. ld: elements
 *  between rows as stored. With beta 0, C is not read. m, n, k may be 0. */
struct hkt__gemm {
    int trans_a, trans_b;
    int64_t m, n, k;
    double alpha, beta;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
};

/** All three in f32, in f64. Cannot fail. pack: hkt__gemm_pack_bytes of it, aligned to 64 bytes (struct hkt__math has it). */
void hkt__gemm_f32(const struct hkt__gemm *gemm, void *pack);
void hkt__gemm_f64(const struct hkt__gemm *gemm, void *pack);
/** Room the product in use needs to rearrange its operands, for elements of `real_bytes`; 0 when it needs none. */
uint64_t hkt__gemm_pack_bytes(size_t real_bytes);

/** A, B and C in the store type of `math` (see parallel/math_ops.h). Errors: NOMEM for scratch, only with bf16. */
HKT_NODISCARD enum hkt_status hkt__gemm(struct hkt__math *math, const struct hkt__gemm *gemm);
/** A and B in the store type, C in the real type: gradients of weights, logits. */
HKT_NODISCARD enum hkt_status hkt__gemm_to_real(struct hkt__math *math, const struct hkt__gemm *gemm);

/** A linear layer y = x W^T + bias. W is [out][in], so that a shard of its outputs is a range of rows. Its three products are
 *  separate calls: a schedule may put the gradient of the weight later (zero bubble). */
struct hkt__linear {
    int64_t rows, in, out;
    const void *x;          /* store [rows][in] */
    const void *weight;     /* store [out][in] */
    int64_t ld_weight;      /* elements between rows of weight and dweight; 0: in */
    const void *bias;       /* store [out], or NULL */
    void *y;                /* store [rows][out] */
    const void *dy;         /* store [rows][out] */
    void *dx;               /* store [rows][in], overwritten */
    void *dweight, *dbias;  /* real, added to; NULL: not wanted */
};
HKT_NODISCARD enum hkt_status hkt__linear_forward(struct hkt__math *math, const struct hkt__linear *linear);
/** dx = dy W. Reads dy, weight. */
HKT_NODISCARD enum hkt_status hkt__linear_input_grad(struct hkt__math *math, const struct hkt__linear *linear);
/** dW += dy^T x, dbias += sum of dy over rows. Reads x, dy. */
HKT_NODISCARD enum hkt_status hkt__linear_weight_grad(struct hkt__math *math, const struct hkt__linear *linear);

/** Threads of the products of this process (not of this rank). A rank should have cores / local ranks, at least 1. */
void hkt__gemm_threads_set(int threads);
/** Which product is in use: the library's own words, or "own (avx2)". */
const char *hkt__gemm_name(void);

enum hkt__gemm_choice {
    HKT__GEMM_BY_RULE,   /* the library, unless it has nothing for this CPU */
    HKT__GEMM_LIBRARY,   /* where there is one */
    HKT__GEMM_OWN
};
/** For tests and comparison, before any struct hkt__math is made. */
void hkt__gemm_choose(enum hkt__gemm_choice choice);

#endif
