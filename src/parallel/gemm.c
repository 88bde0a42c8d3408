/* Matrix products: the library's or the own one; bf16 by way of f32, in panels, so that no whole weight is widened. */
#include "parallel/gemm.h"

#include <stdatomic.h>

#include "parallel/blas.h"
#include "parallel/isa.h"
#include "parallel/math_ops.h"

#define PANEL_COLS 512 /* columns of op(B) widened to f32 at a time */

static const struct hkt__gemm_own *const owns[] = {
#define GEMM_ROW(isa) &hkt__gemm_own_##isa,
    HKT__ISA_TABLE(GEMM_ROW)
#undef GEMM_ROW
};

static atomic_int chosen; /* enum hkt__gemm_choice; relaxed: set before any product is made */

void hkt__gemm_choose(enum hkt__gemm_choice choice)
{
    atomic_store_explicit(&chosen, choice, memory_order_relaxed);
}

/* The library to use, or NULL: the own product. */
static const struct hkt__blas *library(void)
{
    const int choice = atomic_load_explicit(&chosen, memory_order_relaxed);
    const struct hkt__blas *blas = choice == HKT__GEMM_OWN ? NULL : hkt__blas_open();

    return blas != NULL && choice == HKT__GEMM_BY_RULE && blas->is_blind ? NULL : blas;
}

void hkt__gemm_threads_set(int threads)
{
    const struct hkt__blas *blas = library();

    if (blas != NULL && blas->set_threads != NULL) /* the own product has one */
        blas->set_threads(threads < 1 ? 1 : threads);
}

const char *hkt__gemm_name(void)
{
    static const char *const names[] = {
#define GEMM_NAME(isa) "own (" #isa ")",
        HKT__ISA_TABLE(GEMM_NAME)
#undef GEMM_NAME
    };

    const struct hkt__blas *blas = library();

    return blas != NULL ? blas->name : names[hkt__isa_best()];
}

uint64_t hkt__gemm_pack_bytes(size_t real_bytes)
{
    return library() != NULL ? 0 : (uint64_t)HKT__GEMM_KC * (HKT__GEMM_MC + HKT__GEMM_NC) * real_bytes;
}

void hkt__gemm_f32(const struct hkt__gemm *gemm, void *pack)
{
    const struct hkt__blas *blas = library();

    if (blas != NULL)
        hkt__blas_f32(blas, gemm);
    else
        owns[hkt__isa_best()]->f32(gemm, pack);
}

void hkt__gemm_f64(const struct hkt__gemm *gemm, void *pack)
{
    const struct hkt__blas *blas = library();

    if (blas != NULL)
        hkt__blas_f64(blas, gemm);
    else
        owns[hkt__isa_best()]->f64(gemm, pack);
}

static void widen(const struct hkt__math_ops *ops, float *to, const uint16_t *from, const int64_t shape[2], int64_t ld)
{
    for (int64_t r = 0; r < shape[0]; r++)
        ops->to_real(to + r * shape[1], from + r * ld, shape[1]);
}

/* Columns [j, j + cols) of C. wide holds op(A) whole, then the panel of B, then of C when C is bf16. */
static void bf16_panel(const struct hkt__math *math, const struct hkt__gemm *g, float *wide, const int64_t part[2],
                       int is_c_real)
{
    const struct hkt__math_ops *ops = math->ops;
    int64_t j = part[0], cols = part[1];
    float *b = wide + g->m * g->k, *c = b + g->k * PANEL_COLS;
    const int64_t b_shape[2] = { g->trans_b ? cols : g->k, g->trans_b ? g->k : cols };
    struct hkt__gemm real = *g;

    real.n = cols;
    real.a = wide;
    real.lda = g->trans_a ? g->m : g->k;
    widen(ops, b, (const uint16_t *)g->b + (g->trans_b ? j * g->ldb : j), b_shape, g->ldb);
    real.b = b;
    real.ldb = b_shape[1];
    if (is_c_real) {
        real.c = (float *)g->c + j;
        hkt__gemm_f32(&real, math->pack);
        return;
    }
    real.c = c;
    real.ldc = cols;
    if (g->beta != 0)
        widen(ops, c, (const uint16_t *)g->c + j, (const int64_t[]){ g->m, cols }, g->ldc);
    hkt__gemm_f32(&real, math->pack);
    for (int64_t r = 0; r < g->m; r++)
        ops->from_real((uint16_t *)g->c + r * g->ldc + j, c + r * cols, cols);
}

static enum hkt_status bf16_gemm(struct hkt__math *math, const struct hkt__gemm *g, int is_c_real)
{
    int64_t elems = g->m * g->k + g->k * PANEL_COLS + (is_c_real ? 0 : g->m * PANEL_COLS);
    void *wide = NULL;
    enum hkt_status rc = hkt__math_scratch(math, (uint64_t)elems * sizeof(float), &wide);

    if (rc != HKT_OK)
        return rc;
    widen(math->ops, wide, g->a, (const int64_t[]){ g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k }, g->lda);
    for (int64_t j = 0; j < g->n; j += PANEL_COLS)
        bf16_panel(math, g, wide, (const int64_t[]){ j, g->n - j < PANEL_COLS ? g->n - j : PANEL_COLS }, is_c_real);
    return HKT_OK;
}

static enum hkt_status gemm_any(struct hkt__math *math, const struct hkt__gemm *gemm, int is_c_real)
{
    if (math->ops->store == HKT_BF16)
        return bf16_gemm(math, gemm, is_c_real);
    if (math->ops->store == HKT_F32)
        hkt__gemm_f32(gemm, math->pack);
    else
        hkt__gemm_f64(gemm, math->pack);
    return HKT_OK;
}

enum hkt_status hkt__gemm(struct hkt__math *math, const struct hkt__gemm *gemm)
{
    return gemm_any(math, gemm, 0);
}

enum hkt_status hkt__gemm_to_real(struct hkt__math *math, const struct hkt__gemm *gemm)
{
    return gemm_any(math, gemm, 1);
}

/* --- The linear layer ----------------------------------------------------------------------------------------------- */

static int64_t ld_weight(const struct hkt__linear *l)
{
    return l->ld_weight ? l->ld_weight : l->in;
}

enum hkt_status hkt__linear_forward(struct hkt__math *math, const struct hkt__linear *l)
{
    const struct hkt__gemm gemm = { .trans_b = 1, .m = l->rows, .n = l->out, .k = l->in, .alpha = 1, .a = l->x,
                                    .lda = l->in, .b = l->weight, .ldb = ld_weight(l), .c = l->y, .ldc = l->out };
    enum hkt_status rc = hkt__gemm(math, &gemm);

    if (rc == HKT_OK && l->bias != NULL)
        math->ops->bias(l->y, l->bias, l->rows, l->out);
    return rc;
}

enum hkt_status hkt__linear_input_grad(struct hkt__math *math, const struct hkt__linear *l)
{
    const struct hkt__gemm gemm = { .m = l->rows, .n = l->in, .k = l->out, .alpha = 1, .a = l->dy, .lda = l->out,
                                    .b = l->weight, .ldb = ld_weight(l), .c = l->dx, .ldc = l->in };

    return hkt__gemm(math, &gemm);
}

enum hkt_status hkt__linear_weight_grad(struct hkt__math *math, const struct hkt__linear *l)
{
    const struct hkt__gemm gemm = { .trans_a = 1, .m = l->out, .n = l->in, .k = l->rows, .alpha = 1, .beta = 1,
                                    .a = l->dy, .lda = l->out, .b = l->x, .ldb = l->in, .c = l->dweight,
                                    .ldc = ld_weight(l) };
    enum hkt_status rc = l->dweight != NULL ? hkt__gemm_to_real(math, &gemm) : HKT_OK;

    if (rc == HKT_OK && l->dbias != NULL)
        math->ops->bias_grad(l->dbias, l->dy, l->rows, l->out);
    return rc;
}
