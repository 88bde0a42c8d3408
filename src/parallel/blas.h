/* Somebody else's matrix product: a CBLAS library of this machine, opened when a product is first made, so that programs which
 * make none (hocket perf, run, info) do not wait for it: OpenBLAS takes 5 ms and a thread per core to start. */
#ifndef HOCKET_PARALLEL_BLAS_H
#define HOCKET_PARALLEL_BLAS_H

#include "parallel/gemm.h"

/** Opened once, then constant, for all threads. */
struct hkt__blas {
    /* Row-major, as cblas.h has them; its enumerations are ints. */
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                  const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double *a, int lda,
                  const double *b, int ldb, double beta, double *c, int ldc);
    void (*set_threads)(int threads); /* NULL: it keeps its own number */
    const char *name;                 /* its own words */
    int is_blind;                     /* has nothing made for this CPU */
};

/** The library, or NULL: there is none, or the build was told to do without (-Dblas=false). */
const struct hkt__blas *hkt__blas_open(void);

void hkt__blas_f32(const struct hkt__blas *blas, const struct hkt__gemm *gemm);
void hkt__blas_f64(const struct hkt__blas *blas, const struct hkt__gemm *gemm);

#endif
