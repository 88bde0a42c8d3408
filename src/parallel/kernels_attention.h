/* Attention of one pair of types: forward, backward, and decoding of one token. Template of kernels.c.
 *
 * Scores exist for one tile of queries x keys at a time. Forward keeps for each query the largest score so far, the sum of
 * exp(score - largest) and the weighted sum of values, and rescales the sums when a larger score comes; backward rebuilds the
 * tiles from the saved log-sum-exp. Source: Milakov & Gimelshein 2018 (online softmax); Dao et al., "FlashAttention",
 * NeurIPS 2022. Heads are copied out of their rows once per tile loop, widened if stored narrow, so that all products run
 * on dense matrices. */
#define TILE_Q 64
#define TILE_K DROP_KEYS

/* Scratch of one call, cut out of one block of reals. keys * d each: k, v, dk, dv; TILE_Q * d each: q, y, dy, dq. */
struct N(work) {
    REAL *k, *v, *dk, *dv, *q, *y, *dy, *dq, *scores, *dscores, *max, *sum;
    void *pack; /* for products */
};

static enum hkt_status N(work_get)(struct hkt__math *math, const struct hkt__attention *a, int is_backward,
                                   struct N(work) *out_work)
{
    int64_t whole = a->keys * a->head_dim, tile = TILE_Q * a->head_dim, tiles = TILE_Q * TILE_K;
    int64_t elems = (is_backward ? 4 : 2) * (whole + tile) + (is_backward ? 2 : 1) * tiles + 2 * TILE_Q;
    void *memory = NULL;
    enum hkt_status rc = hkt__math_scratch(math, (uint64_t)elems * sizeof(REAL), &memory);

    if (rc != HKT_OK)
        return rc;
    struct N(work) work = { .k = memory, .pack = math->pack };

    work.v = work.k + whole;
    work.q = work.v + whole;
    work.y = work.q + tile;
    work.scores = work.y + tile;
    work.max = work.scores + tiles;
    work.sum = work.max + TILE_Q;
    if (is_backward) {
        work.dk = work.sum + TILE_Q;
        work.dv = work.dk + whole;
        work.dy = work.dv + whole;
        work.dq = work.dy + tile;
        work.dscores = work.dq + tile;
    }
    *out_work = work;
    return HKT_OK;
}

static void N(head_in)(REAL *to, const void *rows, int64_t ld, const int64_t shape[2])
{
    for (int64_t r = 0; r < shape[0]; r++)
        N(to_real)(to + r * shape[1], (const STORE *)rows + r * ld, shape[1]);
}

static void N(head_out)(void *rows, int64_t ld, const REAL *from, const int64_t shape[2])
{
    for (int64_t r = 0; r < shape[0]; r++)
        N(from_real)((STORE *)rows + r * ld, from + r * shape[1], shape[1]);
}

static void N(product)(const struct N(work) *w, struct hkt__gemm gemm)
{
    REAL_GEMM(&gemm, w->pack);
}

/* Where head `head` of row `row` of a stored matrix begins. */
#define AT(base, row, ld, head) ((STORE *)(base) + (row) * (ld) + (head) * a->head_dim)
#define AT_CONST(base, row, ld, head) ((const STORE *)(base) + (row) * (ld) + (head) * a->head_dim)

static int64_t N(kv_row)(const struct hkt__attention *a, int64_t b)
{
    return b * (a->kv_rows ? a->kv_rows : a->keys);
}

/* A tile: queries [i, i + nq) of sequence b against keys [j, j + nk), under one head. */
struct N(tile) {
    int64_t b, head, i, nq, j, nk;
};

/* How many keys of the tile query r of it may see. */
static int64_t N(seen)(const struct hkt__attention *a, const struct N(tile) *t, int64_t r)
{
    int64_t seen = a->keys - a->queries + t->i + r + 1 - t->j;

    return seen < 0 ? 0 : seen < t->nk ? seen : t->nk;
}

static void N(scores)(const struct hkt__attention *a, const struct N(work) *w, const struct N(tile) *t)
{
    N(product)(w, (struct hkt__gemm){ .trans_b = 1, .m = t->nq, .n = t->nk, .k = a->head_dim, .alpha = a->scale, .a = w->q,
                                   .lda = a->head_dim, .b = w->k + t->j * a->head_dim, .ldb = a->head_dim,
                                   .c = w->scores, .ldc = TILE_K });
}

/* keep[c] = 1 / (1 - p), or 0 where query r of the tile drops key j + c. */
static void N(keep)(const struct hkt__attention *a, const struct N(tile) *t, int64_t r, struct drop_numbers *numbers,
                    REAL *keep)
{
    const uint32_t *word = drop_row(a, numbers, t->b * a->queries + t->i + r, t->head, t->j / TILE_K);
    const uint32_t limit = (uint32_t)(a->dropout.p * 0x1p32); /* p < 1 */
    const REAL factor = (REAL)(1 / (1 - a->dropout.p));

    LANEWISE
    for (int64_t c = 0; c < TILE_K; c++)
        keep[c] = word[c] < limit ? 0 : factor;
}

/* x *= keep, for all queries of the tile; x has its shape. */
static void N(drop)(const struct hkt__attention *a, const struct N(tile) *t, REAL *x)
{
    struct drop_numbers numbers = { .first = UINT64_MAX };

    for (int64_t r = 0; a->dropout.p > 0 && r < t->nq; r++) {
        REAL keep[TILE_K], *row = x + r * TILE_K;
        const int64_t nk = t->nk;

        N(keep)(a, t, r, &numbers, keep);
        LANEWISE
        for (int64_t c = 0; c < nk; c++)
            row[c] *= keep[c];
    }
}

/* Scores of row r become weights exp(score - largest so far); earlier sums are brought to that largest. */
static void N(online)(const struct hkt__attention *a, const struct N(work) *w, const struct N(tile) *t, int64_t r)
{
    REAL *score = w->scores + r * TILE_K, *y = w->y + r * a->head_dim, max = w->max[r];
    const int64_t seen = N(seen)(a, t, r), unseen_end = t->nk, d = a->head_dim;

    if (seen > 0) {
        REAL here = N(largest_real)(score, seen);

        max = here > max ? here : max;
    }
    REAL shrink = max == w->max[r] ? 1 : N(exp)(w->max[r] - max);

    for (int64_t c = 0; c < seen; c++)
        score[c] = N(exp)(score[c] - max);
    for (int64_t c = seen; c < unseen_end; c++)
        score[c] = 0;
    w->sum[r] = w->sum[r] * shrink + N(sum)(score, seen);
    w->max[r] = max;
    if (shrink != 1)
        for (int64_t c = 0; c < d; c++)
            y[c] *= shrink;
}

/* All keys for queries [t->i, t->i + t->nq) of one head, whose keys and values are in the work. */
static void N(forward_tiles)(const struct hkt__attention *a, const struct N(work) *w, struct N(tile) *t)
{
    int64_t end = a->keys - a->queries + t->i + t->nq;

    memset(w->y, 0, (size_t)(t->nq * a->head_dim) * sizeof(REAL));
    for (int64_t r = 0; r < t->nq; r++) {
        w->max[r] = (REAL)-INFINITY;
        w->sum[r] = 0;
    }
    for (t->j = 0; t->j < end; t->j += TILE_K) {
        t->nk = end - t->j < TILE_K ? end - t->j : TILE_K;
        N(scores)(a, w, t);
        for (int64_t r = 0; r < t->nq; r++)
            N(online)(a, w, t, r);
        N(drop)(a, t, w->scores); /* their sum is that of all */
        N(product)(w, (struct hkt__gemm){ .m = t->nq, .n = a->head_dim, .k = t->nk, .alpha = 1, .beta = 1, .a = w->scores,
                                       .lda = TILE_K, .b = w->v + t->j * a->head_dim, .ldb = a->head_dim, .c = w->y,
                                       .ldc = a->head_dim });
    }
}

static void N(forward_head)(const struct hkt__attention *a, const struct N(work) *w, int64_t b, int64_t head)
{
    for (int64_t i = 0; i < a->queries; i += TILE_Q) {
        struct N(tile) t = { .b = b, .head = head, .i = i, .nq = a->queries - i < TILE_Q ? a->queries - i : TILE_Q };
        const int64_t shape[2] = { t.nq, a->head_dim };
        int64_t row = b * a->queries + i;

        N(head_in)(w->q, AT_CONST(a->q, row, a->ld_q, head), a->ld_q, shape);
        N(forward_tiles)(a, w, &t);
        for (int64_t r = 0; r < t.nq; r++) {
            REAL *y = w->y + r * a->head_dim, factor = 1 / w->sum[r];

            for (int64_t c = 0; c < a->head_dim; c++)
                y[c] *= factor;
            if (a->lse != NULL)
                ((REAL *)a->lse)[(b * a->heads + head) * a->queries + i + r] = w->max[r] + REAL_LOG(w->sum[r]);
        }
        N(head_out)(AT(a->y, row, a->ld_y, head), a->ld_y, w->y, shape);
    }
}

static enum hkt_status N(attention)(struct hkt__math *math, const struct hkt__attention *a)
{
    const int64_t shape[2] = { a->keys, a->head_dim }, group = a->heads / a->kv_heads;
    struct N(work) work;
    enum hkt_status rc = N(work_get)(math, a, 0, &work);

    if (rc != HKT_OK)
        return rc;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t kv = 0; kv < a->kv_heads; kv++) {
            N(head_in)(work.k, AT_CONST(a->k, N(kv_row)(a, b), a->ld_k, kv), a->ld_k, shape);
            N(head_in)(work.v, AT_CONST(a->v, N(kv_row)(a, b), a->ld_v, kv), a->ld_v, shape);
            for (int64_t g = 0; g < group; g++)
                N(forward_head)(a, &work, b, kv * group + g);
        }
    return HKT_OK;
}

/* --- Backward ------------------------------------------------------------------------------------------------------- */

/* The weights P of a tile from the saved log-sum-exp, then dS = P * (dP - D) in place of dP = dy v^T. D is in w->sum: the sum
 * of P * dP over all keys, which is y * dy with dropout too. What was dropped is then dropped from P, and from dP at once. */
static void N(weights)(const struct hkt__attention *a, const struct N(work) *w, const struct N(tile) *t, const REAL *lse)
{
    N(scores)(a, w, t);
    N(product)(w, (struct hkt__gemm){ .trans_b = 1, .m = t->nq, .n = t->nk, .k = a->head_dim, .alpha = 1, .a = w->dy,
                                   .lda = a->head_dim, .b = w->v + t->j * a->head_dim, .ldb = a->head_dim,
                                   .c = w->dscores, .ldc = TILE_K });
    N(drop)(a, t, w->dscores);
    for (int64_t r = 0; r < t->nq; r++) {
        REAL *p = w->scores + r * TILE_K, *dp = w->dscores + r * TILE_K, shift = lse[r], dot = w->sum[r];
        const int64_t seen = N(seen)(a, t, r), nk = t->nk;

        for (int64_t c = 0; c < seen; c++)
            p[c] = N(exp)(p[c] - shift);
        for (int64_t c = seen; c < nk; c++)
            p[c] = 0;
        for (int64_t c = 0; c < nk; c++)
            dp[c] = p[c] == 0 ? 0 : p[c] * (dp[c] - dot);
    }
    N(drop)(a, t, w->scores);
}

static void N(backward_tile)(const struct hkt__attention *a, const struct N(work) *w, const struct N(tile) *t)
{
    int64_t d = a->head_dim;

    N(product)(w, (struct hkt__gemm){ .trans_a = 1, .m = t->nk, .n = d, .k = t->nq, .alpha = 1, .beta = 1, .a = w->scores,
                                   .lda = TILE_K, .b = w->dy, .ldb = d, .c = w->dv + t->j * d, .ldc = d });
    N(product)(w, (struct hkt__gemm){ .m = t->nq, .n = d, .k = t->nk, .alpha = a->scale, .beta = 1, .a = w->dscores,
                                   .lda = TILE_K, .b = w->k + t->j * d, .ldb = d, .c = w->dq, .ldc = d });
    N(product)(w, (struct hkt__gemm){ .trans_a = 1, .m = t->nk, .n = d, .k = t->nq, .alpha = a->scale, .beta = 1,
                                   .a = w->dscores, .lda = TILE_K, .b = w->q, .ldb = d, .c = w->dk + t->j * d,
                                   .ldc = d });
}

static void N(backward_head)(const struct hkt__attention *a, const struct N(work) *w, int64_t b, int64_t head)
{
    for (int64_t i = 0; i < a->queries; i += TILE_Q) {
        struct N(tile) t = { .b = b, .head = head, .i = i, .nq = a->queries - i < TILE_Q ? a->queries - i : TILE_Q };
        const int64_t shape[2] = { t.nq, a->head_dim };
        int64_t row = b * a->queries + i, end = a->keys - a->queries + i + t.nq;
        const REAL *lse = (const REAL *)a->lse + (b * a->heads + head) * a->queries + i;

        N(head_in)(w->q, AT_CONST(a->q, row, a->ld_q, head), a->ld_q, shape);
        N(head_in)(w->dy, AT_CONST(a->dy, row, a->ld_y, head), a->ld_y, shape);
        for (int64_t r = 0; r < t.nq; r++)
            w->sum[r] = N(dot)(AT_CONST(a->y, row + r, a->ld_y, head), w->dy + r * a->head_dim, a->head_dim);
        memset(w->dq, 0, (size_t)(t.nq * a->head_dim) * sizeof(REAL));
        for (t.j = 0; t.j < end; t.j += TILE_K) {
            t.nk = end - t.j < TILE_K ? end - t.j : TILE_K;
            N(weights)(a, w, &t, lse);
            N(backward_tile)(a, w, &t);
        }
        N(head_out)(AT(a->dq, row, a->ld_q, head), a->ld_q, w->dq, shape);
    }
}

static enum hkt_status N(attention_grad)(struct hkt__math *math, const struct hkt__attention *a)
{
    const int64_t shape[2] = { a->keys, a->head_dim }, group = a->heads / a->kv_heads;
    struct N(work) work;
    enum hkt_status rc = N(work_get)(math, a, 1, &work);

    if (rc != HKT_OK)
        return rc;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t kv = 0; kv < a->kv_heads; kv++) {
            int64_t row = N(kv_row)(a, b);

            N(head_in)(work.k, AT_CONST(a->k, row, a->ld_k, kv), a->ld_k, shape);
            N(head_in)(work.v, AT_CONST(a->v, row, a->ld_v, kv), a->ld_v, shape);
            memset(work.dk, 0, (size_t)(a->keys * a->head_dim) * sizeof(REAL));
            memset(work.dv, 0, (size_t)(a->keys * a->head_dim) * sizeof(REAL));
            for (int64_t g = 0; g < group; g++)
                N(backward_head)(a, &work, b, kv * group + g);
            N(head_out)(AT(a->dk, row, a->ld_k, kv), a->ld_k, work.dk, shape);
            N(head_out)(AT(a->dv, row, a->ld_v, kv), a->ld_v, work.dv, shape);
        }
    return HKT_OK;
}

/* --- One token against a cache -------------------------------------------------------------------------------------- */

static void N(decode_head)(const struct hkt__attention *a, const struct N(work) *w, int64_t b, int64_t head)
{
    int64_t d = a->head_dim, kv = head / (a->heads / a->kv_heads), row = N(kv_row)(a, b);
    REAL max = (REAL)-INFINITY, sum = 0;

    N(to_real)(w->q, AT_CONST(a->q, b, a->ld_q, head), d);
    memset(w->y, 0, (size_t)d * sizeof(REAL));
    for (int64_t j = 0; j < a->keys; j += TILE_K) {
        int64_t count = a->keys - j < TILE_K ? a->keys - j : TILE_K;
        REAL before = max;

        for (int64_t c = 0; c < count; c++) {
            w->scores[c] = (REAL)a->scale * N(dot)(AT_CONST(a->k, row + j + c, a->ld_k, kv), w->q, d);
            max = w->scores[c] > max ? w->scores[c] : max;
        }
        REAL shrink = max == before ? 1 : N(exp)(before - max);

        for (int64_t c = 0; c < count; c++)
            w->scores[c] = N(exp)(w->scores[c] - max);
        sum = sum * shrink + N(sum)(w->scores, count);
        for (int64_t i = 0; i < d; i++)
            w->y[i] *= shrink;
        for (int64_t c = 0; c < count; c++) {
            const STORE *value = AT_CONST(a->v, row + j + c, a->ld_v, kv);

            LANEWISE
            for (int64_t i = 0; i < d; i++)
                w->y[i] += w->scores[c] * N(get)(value + i);
        }
    }
    for (int64_t i = 0; i < d; i++)
        N(put)(AT(a->y, b, a->ld_y, head) + i, w->y[i] / sum);
}

static enum hkt_status N(attention_decode)(struct hkt__math *math, const struct hkt__attention *a)
{
    const struct hkt__attention no_copy = { .head_dim = a->head_dim };
    struct N(work) work;
    enum hkt_status rc = N(work_get)(math, &no_copy, 0, &work);

    if (rc != HKT_OK)
        return rc;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t head = 0; head < a->heads; head++)
            N(decode_head)(a, &work, b, head);
    return HKT_OK;
}
#undef AT
#undef AT_CONST
