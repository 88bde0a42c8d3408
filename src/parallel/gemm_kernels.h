/* The project's own matrix product for one real type and one instruction set; a template that is included with REAL,
 * VEC_BYTES, MR (rows of the register tile) and N(name) defined. After Goto & van de Geijn, "Anatomy of high-performance
 * matrix multiplication", ACM TOMS 34(3), 2008: panels of A and B are copied into the order in which a tile of MR x NR
 * sums in registers reads them. Sums run over k in order, so of the blocking only KC shows in the bits:
 * how k is cut depends on k alone. */
#define LANES (VEC_BYTES / (int)sizeof(REAL))
#define NR (2 * LANES)

typedef REAL N(gemm_vec) __attribute__((vector_size(VEC_BYTES)));
typedef REAL N(quad) __attribute__((vector_size(4 * sizeof(REAL))));

/* to[k][j] = from[j][k] for 4 x 4, rows of `from` ld apart, of `to` width apart. */
INLINE void N(transpose_4x4)(REAL *to, int64_t width, const REAL *from, int64_t ld)
{
    N(quad) a, b, c, d;

    memcpy(&a, from, sizeof a);
    memcpy(&b, from + ld, sizeof b);
    memcpy(&c, from + 2 * ld, sizeof c);
    memcpy(&d, from + 3 * ld, sizeof d);
    N(quad) ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    N(quad) cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);

    a = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    b = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    c = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    d = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
    memcpy(to, &a, sizeof a);
    memcpy(to + width, &b, sizeof b);
    memcpy(to + 2 * width, &c, sizeof c);
    memcpy(to + 3 * width, &d, sizeof d);
}

/* One panel: to[k][width] from `wide` <= width rows of op(X), whose k is next to k (each row contiguous). Rows are too
 * short for the CPU to foresee the next ones. */
INLINE void N(pack_rows)(REAL *to, const REAL *from, int64_t ld, const int64_t shape[2], int width)
{
    int64_t wide = shape[0], kc = shape[1], j = 0;

    for (; j + 4 <= wide; j += 4) {
        int64_t k = 0;

        for (; k + 4 <= kc; k += 4) {
            for (int i = 4; i < 8; i++)
                __builtin_prefetch(from + (j + i) * ld + k);
            N(transpose_4x4)(to + k * width + j, width, from + j * ld + k, ld);
        }
        for (; k < kc; k++)
            for (int i = 0; i < 4; i++)
                to[k * width + j + i] = from[(j + i) * ld + k];
    }
    for (; j < width; j++)
        for (int64_t k = 0; k < kc; k++)
            to[k * width + j] = j < wide ? from[j * ld + k] : 0;
}

/* All panels where rows are next to each other (each k contiguous): read as they lie, written to all panels. */
INLINE void N(pack_cols)(REAL *to, const REAL *from, int64_t ld, const int64_t shape[2], int width)
{
    const int64_t high = shape[0], kc = shape[1];

    for (int64_t k = 0; k < kc; k++, to += width, from += ld) {
        REAL *at = to;
        int64_t i = 0;

        for (; i + width <= high; i += width, at += width * kc) {
            __builtin_prefetch(from + PACK_AHEAD * ld + i);
            memcpy(at, from + i, (size_t)width * sizeof *at);
        }
        for (int64_t j = 0; i < high && j < width; j++)
            at[j] = i + j < high ? from[i + j] : 0;
    }
}

/* Panels of `width` rows of op(X), shape[0] rows of shape[1] in all; short panels are filled with zeros. */
INLINE void N(pack_panels)(REAL *to, const REAL *from, const int64_t ld_across[2], const int64_t shape[2], int width)
{
    int64_t ld = ld_across[0];

    if (ld_across[1]) {
        N(pack_cols)(to, from, ld, shape, width);
        return;
    }
    for (int64_t i = 0; i < shape[0]; i += width, to += width * shape[1]) {
        const int64_t panel[2] = { shape[0] - i < width ? shape[0] - i : width, shape[1] };

        N(pack_rows)(to, from + i * ld, ld, panel, width);
    }
}

static void N(pack_a)(REAL *to, const REAL *from, const int64_t ld_across[2], const int64_t shape[2])
{
    N(pack_panels)(to, from, ld_across, shape, MR);
}

static void N(pack_b)(REAL *to, const REAL *from, const int64_t ld_across[2], const int64_t shape[2])
{
    N(pack_panels)(to, from, ld_across, shape, NR);
}

/* What one pass over a block of k does with C: C = alpha * sum + beta * C. Only the first pass has a beta other than 1, so
 * C is written once more than it is read, and with beta 0 never read before it is written. */
struct N(out) {
    REAL alpha, beta;
    int64_t ldc;
};

INLINE void N(store_row)(const struct N(out) *out, REAL *c, const N(gemm_vec) sum[2])
{
    for (int half = 0; half < 2; half++, c += LANES) {
        N(gemm_vec) value = out->alpha * sum[half], old;

        if (out->beta != 0) {
            memcpy(&old, c, sizeof old);
            value += out->beta * old;
        }
        memcpy(c, &value, sizeof value);
    }
}

/* Panels of an operand: at[p * panel + k * step + i] is row or column i of panel p. Packed, or as the operand lies. */
struct N(panels) {
    const REAL *at;
    int64_t step, panel;
};

/* sum += column k of a panel of A times row k of a panel of B. Panels of B are longer than the first-level cache, so what
 * is needed PREFETCH_STEPS later is asked for. */
INLINE void N(tile_step)(N(gemm_vec) sum[][2], const REAL *a, const struct N(panels) *b, int rows)
{
    N(gemm_vec) b0, b1;

    __builtin_prefetch(b->at + PREFETCH_STEPS * b->step);
    __builtin_prefetch(b->at + PREFETCH_STEPS * b->step + LANES);
    memcpy(&b0, b->at, sizeof b0);
    memcpy(&b1, b->at + LANES, sizeof b1);
    for (int i = 0; i < rows; i++) {
        sum[i][0] += a[i] * b0;
        sum[i][1] += a[i] * b1;
    }
}

/* The product of a panel of A and a panel of B, shape[2] long, into shape[0] <= rows rows and shape[1] columns of C; rows is
 * a constant where this is inlined, so that the sums stay in registers. C is needed when the loop is over: it is asked for
 * piece by piece, for all at once would hold up the panels. */
INLINE void N(tile_rows)(const struct N(out) *out, REAL *c, const struct N(panels) ab[2], const int64_t shape[3],
                         int rows)
{
    N(gemm_vec) sum[MR][2] = { { { 0 } } };
    const int64_t high = shape[0], wide = shape[1], kc = shape[2], a_step = ab[0].step;
    const REAL *a = ab[0].at;
    struct N(panels) b = ab[1];
    int64_t k = 0;

    for (int64_t piece = 0; piece < 2 * high && k + 8 <= kc; piece++) {
        __builtin_prefetch(c + piece / 2 * out->ldc + piece % 2 * LANES, 1);
        for (const int64_t end = k + 8; k < end; k++, a += a_step, b.at += b.step)
            N(tile_step)(sum, a, &b, rows);
    }
    for (; k < kc; k++, a += a_step, b.at += b.step)
        N(tile_step)(sum, a, &b, rows);
    if (high == rows && wide == NR) {
        UNROLL
        for (int i = 0; i < rows; i++)
            N(store_row)(out, c + i * out->ldc, sum[i]);
        return;
    }
    REAL flat[MR * NR];
    const struct N(out) plain = { .alpha = 1 };

    UNROLL
    for (int i = 0; i < rows; i++)
        N(store_row)(&plain, flat + i * NR, sum[i]);
    for (int64_t r = 0; r < high; r++)
        for (int64_t s = 0; s < wide; s++) {
            REAL *at = c + r * out->ldc + s;

            *at = out->beta != 0 ? out->alpha * flat[r * NR + s] + out->beta * *at : out->alpha * flat[r * NR + s];
        }
}

static void N(tile)(const struct N(out) *out, REAL *c, const struct N(panels) ab[2], const int64_t shape[3])
{
    if (shape[0] > 2 * MR / 3)
        N(tile_rows)(out, c, ab, shape, MR);
    else if (shape[0] > MR / 3)
        N(tile_rows)(out, c, ab, shape, 2 * MR / 3);
    else
        N(tile_rows)(out, c, ab, shape, MR / 3);
}

/* C = alpha * A B + beta * C for blocks of shape[0] x shape[2] and shape[2] x shape[1]. */
static void N(block)(const struct N(out) *out, REAL *c, const struct N(panels) ab[2], const int64_t shape[3])
{
    struct N(panels) at[2] = { ab[0], ab[1] };

    for (int64_t j = 0; j < shape[1]; j += NR, at[1].at += ab[1].panel) {
        at[0].at = ab[0].at;
        for (int64_t i = 0; i < shape[0]; i += MR, at[0].at += ab[0].panel) {
            const int64_t high = shape[0] - i < MR ? shape[0] - i : MR, wide = shape[1] - j < NR ? shape[1] - j : NR;

            N(tile)(out, c + i * out->ldc + j, at, (int64_t[]){ high, wide, shape[2] });
        }
    }
}

/* C = beta * C: what remains of the product when k is 0, or when sums are added one by one. */
static void N(scale_c)(const struct hkt__gemm *gemm)
{
    const REAL beta = (REAL)gemm->beta;
    const int64_t n = gemm->n;

    for (int64_t i = 0; i < gemm->m; i++) {
        REAL *c = (REAL *)gemm->c + i * gemm->ldc;

        if (beta == 0)
            memset(c, 0, (size_t)n * sizeof *c);
        else
            for (int64_t j = 0; j < n; j++)
                c[j] *= beta;
    }
}

/* Few rows against rows of B (decoding): each element is a dot product, nothing is copied. */
static void N(thin)(const struct hkt__gemm *gemm)
{
    const int64_t depth = gemm->k;

    for (int64_t j = 0; j < gemm->n; j++)
        for (int64_t i = 0; i < gemm->m; i++) {
            const REAL *a = (const REAL *)gemm->a + i * gemm->lda, *b = (const REAL *)gemm->b + j * gemm->ldb;
            N(gemm_vec) sum[4] = { { 0 } };
            REAL lane[LANES], tail = 0;
            int64_t k = 0;

            for (; k + 4 * LANES <= depth; k += 4 * LANES)
                for (int s = 0; s < 4; s++) {
                    N(gemm_vec) x, y;

                    memcpy(&x, a + k + s * LANES, sizeof x);
                    memcpy(&y, b + k + s * LANES, sizeof y);
                    sum[s] += x * y;
                }
            for (; k < depth; k++)
                tail += a[k] * b[k];
            sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
            memcpy(lane, &sum[0], sizeof lane);
            for (int s = 0; s < LANES; s++)
                tail += lane[s];
            ((REAL *)gemm->c)[i * gemm->ldc + j] += (REAL)gemm->alpha * tail;
        }
}

/* Whether an operand of k times ld lies as panels do, and is so small that copying it costs more than it helps: those of
 * attention. `across`: its rows are next to each other; `ragged`: its last panel is too short for a tile. */
static int N(is_as_packed)(int64_t k, int64_t ld, int across, int ragged)
{
    return across && !ragged && k <= HKT__GEMM_KC && k * ld <= DIRECT_MAX;
}

static struct N(panels) N(panels_a)(const struct hkt__gemm *gemm, REAL *pack, const int64_t from[2],
                                    const int64_t shape[2])
{
    const int64_t ld[2] = { gemm->lda, gemm->trans_a }, i = from[0], k = from[1];
    const REAL *a = (const REAL *)gemm->a + (gemm->trans_a ? k * gemm->lda + i : i * gemm->lda + k);

    if (N(is_as_packed)(gemm->k, gemm->lda, gemm->trans_a, gemm->m % (MR / 3) != 0))
        return (struct N(panels)){ a, gemm->lda, MR };
    N(pack_a)(pack, a, ld, shape);
    return (struct N(panels)){ pack, MR, MR * shape[1] };
}

static struct N(panels) N(panels_b)(const struct hkt__gemm *gemm, REAL *pack, const int64_t from[2],
                                    const int64_t shape[2])
{
    const int64_t ld[2] = { gemm->ldb, !gemm->trans_b }, j = from[0], k = from[1];
    const REAL *b = (const REAL *)gemm->b + (gemm->trans_b ? j * gemm->ldb + k : k * gemm->ldb + j);

    if (N(is_as_packed)(gemm->k, gemm->ldb, !gemm->trans_b, gemm->n % NR != 0))
        return (struct N(panels)){ b, gemm->ldb, NR };
    N(pack_b)(pack, b, ld, shape);
    return (struct N(panels)){ pack, NR, NR * shape[1] };
}

/* Columns [j, j + nc) of C against [k, k + kc) of the sum. */
static void N(slab)(const struct hkt__gemm *gemm, REAL *pack, const int64_t from[2], const int64_t shape[2])
{
    const int64_t j = from[0], k = from[1], nc = shape[0], kc = shape[1];
    const struct N(out) out = { (REAL)gemm->alpha, k == 0 ? (REAL)gemm->beta : 1, gemm->ldc };
    struct N(panels) ab[2] = { [1] = N(panels_b)(gemm, pack + HKT__GEMM_MC * HKT__GEMM_KC, from, shape) };

    for (int64_t i = 0; i < gemm->m; i += HKT__GEMM_MC) {
        const int64_t mc = gemm->m - i < HKT__GEMM_MC ? gemm->m - i : HKT__GEMM_MC;

        ab[0] = N(panels_a)(gemm, pack, (int64_t[]){ i, k }, (int64_t[]){ mc, kc });
        N(block)(&out, (REAL *)gemm->c + i * gemm->ldc + j, ab, (int64_t[]){ mc, nc, kc });
    }
}

/* The size of blocks of `whole`, a multiple of `unit` as max is: as few as max allows, all equal but the last. */
static int64_t N(share)(int64_t whole, int64_t max, int64_t unit)
{
    const int64_t blocks = (whole + max - 1) / max;

    return ((whole + blocks - 1) / blocks + unit - 1) / unit * unit;
}

static void N(gemm)(const struct hkt__gemm *gemm, void *pack)
{
    const int is_thin = gemm->m <= 2 && !gemm->trans_a && gemm->trans_b;

    if ((is_thin && gemm->beta != 1) || gemm->k == 0)
        N(scale_c)(gemm);
    if (is_thin) {
        N(thin)(gemm);
        return;
    }
    const int64_t nc_most = gemm->n > 0 ? N(share)(gemm->n, HKT__GEMM_NC, NR) : 1;
    const int64_t kc_most = gemm->k > 0 ? N(share)(gemm->k, HKT__GEMM_KC, 8) : 1;

    for (int64_t j = 0; j < gemm->n; j += nc_most)
        for (int64_t k = 0; k < gemm->k; k += kc_most) {
            const int64_t nc = gemm->n - j < nc_most ? gemm->n - j : nc_most;
            const int64_t kc = gemm->k - k < kc_most ? gemm->k - k : kc_most;

            N(slab)(gemm, pack, (int64_t[]){ j, k }, (int64_t[]){ nc, kc });
        }
}
#undef LANES
#undef NR
