/* The project's own matrix product for one real type and one instruction set; a template that is included with REAL and
 * VEC_BYTES, MR (rows of the register tile) and N(name) defined. After Goto & van de Geijn, "Anatomy of high-performance
 * matrix multiplication", ACM TOMS 34(3), 2008: panels of A and B are copied into the order in which a tile of MR x NR
 * sums in registers reads them. Sums run over k in order, so blocking does not show in the bits except through KC. */
#define LANES (VEC_BYTES / (int)sizeof(REAL))
#define NR (2 * LANES)

typedef REAL N(gemm_vec) __attribute__((vector_size(VEC_BYTES)));

static _Thread_local struct {
    _Alignas(64) REAL a[MC * KC];
    _Alignas(64) REAL b[KC * NC];
} N(pack);

/* Panels of `width` rows of op(X), each as [k][width], short panels filled with zeros. */
static void N(pack_panels)(REAL *to, const REAL *from, const int64_t stride[2], const int64_t shape[2], int width)
{
    for (int64_t i = 0; i < shape[0]; i += width) {
        int64_t wide = shape[0] - i < width ? shape[0] - i : width;

        for (int64_t k = 0; k < shape[1]; k++, to += width) {
            const REAL *column = from + i * stride[0] + k * stride[1];

            for (int64_t j = 0; j < wide; j++)
                to[j] = column[j * stride[0]];
            for (int64_t j = wide; j < width; j++)
                to[j] = 0;
        }
    }
}

/* tile[MR][NR] = the product of a panel of A and a panel of B. */
static void N(tile)(REAL *tile, const REAL *a, const REAL *b, int64_t kc)
{
    N(gemm_vec) sum[MR][2] = { { { 0 } } };

    for (int64_t k = 0; k < kc; k++, a += MR, b += NR) {
        N(gemm_vec) b0, b1;

        memcpy(&b0, b, sizeof b0);
        memcpy(&b1, b + LANES, sizeof b1);
        for (int i = 0; i < MR; i++) {
            sum[i][0] += a[i] * b0;
            sum[i][1] += a[i] * b1;
        }
    }
    memcpy(tile, sum, sizeof sum);
}

/* C += alpha * A B for packed blocks of mc x kc and kc x nc. */
static void N(block)(const struct hkt__gemm *gemm, REAL *c, int64_t mc, int64_t nc, int64_t kc)
{
    REAL tile[MR * NR];

    for (int64_t j = 0; j < nc; j += NR)
        for (int64_t i = 0; i < mc; i += MR) {
            int64_t high = mc - i < MR ? mc - i : MR, wide = nc - j < NR ? nc - j : NR;

            N(tile)(tile, N(pack).a + i * kc, N(pack).b + j * kc, kc);
            for (int64_t r = 0; r < high; r++)
                for (int64_t s = 0; s < wide; s++)
                    c[(i + r) * gemm->ldc + j + s] += (REAL)gemm->alpha * tile[r * NR + s];
        }
}

static void N(scale_c)(const struct hkt__gemm *gemm)
{
    REAL *c = gemm->c;

    for (int64_t i = 0; i < gemm->m; i++)
        for (int64_t j = 0; j < gemm->n; j++)
            c[i * gemm->ldc + j] = gemm->beta == 0 ? 0 : (REAL)gemm->beta * c[i * gemm->ldc + j];
}

static void N(gemm)(const struct hkt__gemm *gemm)
{
    const int64_t a_stride[2] = { gemm->trans_a ? 1 : gemm->lda, gemm->trans_a ? gemm->lda : 1 };
    const int64_t b_stride[2] = { gemm->trans_b ? gemm->ldb : 1, gemm->trans_b ? 1 : gemm->ldb }; /* of op(B)^T */
    const REAL *a = gemm->a, *b = gemm->b;

    if (gemm->beta != 1)
        N(scale_c)(gemm);
    for (int64_t j = 0; j < gemm->n; j += NC)
        for (int64_t k = 0; k < gemm->k; k += KC) {
            int64_t nc = gemm->n - j < NC ? gemm->n - j : NC, kc = gemm->k - k < KC ? gemm->k - k : KC;

            N(pack_panels)(N(pack).b, b + j * b_stride[0] + k * b_stride[1], b_stride, (int64_t[]){ nc, kc }, NR);
            for (int64_t i = 0; i < gemm->m; i += MC) {
                int64_t mc = gemm->m - i < MC ? gemm->m - i : MC;

                N(pack_panels)(N(pack).a, a + i * a_stride[0] + k * a_stride[1], a_stride, (int64_t[]){ mc, kc }, MR);
                N(block)(gemm, (REAL *)gemm->c + i * gemm->ldc + j, mc, nc, kc);
            }
        }
}
#undef LANES
#undef NR
