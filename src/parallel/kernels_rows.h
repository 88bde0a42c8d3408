/* Kernels of one pair of types that sum along rows: norms, softmax, cross-entropy. Template of kernels.c. */

/* --- Norms ---------------------------------------------------------------------------------------------------------- */

/* sum of (x[i] - mean)^power, power 1 or 2. */
static REAL N(moment)(const STORE *x, int64_t n, REAL mean, int power)
{
    N(vec) lanes = { 0 };
    REAL tail = 0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        N(vec) d = N(load)(x + i) - mean;

        lanes += power == 2 ? d * d : d;
    }
    for (; i < n; i++) {
        REAL d = N(get)(x + i) - mean;

        tail += power == 2 ? d * d : d;
    }
    return N(lanes_sum)(lanes) + tail;
}

static void N(norm)(const struct hkt__norm *m)
{
    const STORE *gamma = m->gamma, *beta = m->beta;
    const int64_t cols = m->cols; /* a copy: the compiler cannot know that stores leave *m alone */

    for (int64_t r = 0; r < m->rows; r++) {
        const STORE *x = (const STORE *)m->x + r * cols;
        STORE *y = (STORE *)m->y + r * cols;
        REAL count = (REAL)cols, mean = 0;

        if (m->mean != NULL)
            mean = ((REAL *)m->mean)[r] = N(moment)(x, cols, 0, 1) / count;
        REAL rstd = 1 / REAL_SQRT(N(moment)(x, cols, mean, 2) / count + (REAL)m->eps);

        ((REAL *)m->rstd)[r] = rstd;
        if (beta == NULL) {
            LANEWISE
            for (int64_t c = 0; c < cols; c++)
                N(put)(y + c, (N(get)(x + c) - mean) * rstd * N(get)(gamma + c));
        } else {
            LANEWISE
            for (int64_t c = 0; c < cols; c++)
                N(put)(y + c, (N(get)(x + c) - mean) * rstd * N(get)(gamma + c) + N(get)(beta + c));
        }
    }
}

/* With g = dy * gamma and xhat the normalised x: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), RMS without mean(g). */
static void N(norm_grad_row)(const struct hkt__norm *m, int64_t r, REAL mean, REAL rstd)
{
    const int64_t cols = m->cols;
    const STORE *x = (const STORE *)m->x + r * cols, *dy = (const STORE *)m->dy + r * cols, *gamma = m->gamma;
    STORE *dx = (STORE *)m->dx + r * cols;
    N(vec) lanes_g = { 0 }, lanes_gx = { 0 };
    REAL sum_g = 0, sum_gx = 0, count = (REAL)cols;
    int64_t c = 0;

    for (; c + LANES <= cols; c += LANES) {
        N(vec) g = N(load)(dy + c) * N(load)(gamma + c);

        lanes_g += g;
        lanes_gx += g * ((N(load)(x + c) - mean) * rstd);
    }
    for (; c < cols; c++) {
        REAL g = N(get)(dy + c) * N(get)(gamma + c);

        sum_g += g;
        sum_gx += g * ((N(get)(x + c) - mean) * rstd);
    }
    REAL mean_g = m->mean != NULL ? (N(lanes_sum)(lanes_g) + sum_g) / count : 0;
    REAL mean_gx = (N(lanes_sum)(lanes_gx) + sum_gx) / count;

    LANEWISE
    for (int64_t i = 0; i < cols; i++) {
        REAL g = N(get)(dy + i) * N(get)(gamma + i), xhat = (N(get)(x + i) - mean) * rstd;

        N(put)(dx + i, rstd * (g - mean_g - xhat * mean_gx));
    }
}

static void N(norm_grad)(const struct hkt__norm *m)
{
    REAL *dgamma = m->dgamma;
    const int64_t cols = m->cols;

    for (int64_t r = 0; r < m->rows; r++) {
        const STORE *x = (const STORE *)m->x + r * cols, *dy = (const STORE *)m->dy + r * cols;
        REAL mean = m->mean != NULL ? ((const REAL *)m->mean)[r] : 0, rstd = ((const REAL *)m->rstd)[r];

        if (m->dbeta != NULL)
            N(add_to_real)(m->dbeta, dy, cols);
        if (dgamma != NULL) {
            LANEWISE
            for (int64_t c = 0; c < cols; c++)
                dgamma[c] += N(get)(dy + c) * ((N(get)(x + c) - mean) * rstd);
        }
        if (m->dx != NULL)
            N(norm_grad_row)(m, r, mean, rstd);
    }
}

/* --- Softmax -------------------------------------------------------------------------------------------------------- */

/* sum of exp(x[i] - max), eight vectors at a time through a buffer, so that exp is free to run in lanes. */
static REAL N(sum_exp)(const STORE *x, int64_t n, REAL max)
{
    REAL part[8 * LANES], total = 0;

    for (int64_t i = 0; i < n; i += 8 * LANES) {
        int64_t count = n - i < 8 * LANES ? n - i : 8 * LANES;

        for (int64_t j = 0; j < count; j++)
            part[j] = N(exp)(N(get)(x + i + j) - max);
        total += N(sum)(part, count);
    }
    return total;
}

static void N(softmax)(void *to, const void *from, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows && cols > 0; r++) {
        const STORE *x = (const STORE *)from + r * cols;
        STORE *y = (STORE *)to + r * cols;
        REAL max = N(largest)(x, cols), factor = 1 / N(sum_exp)(x, cols, max);

        LANEWISE
        for (int64_t c = 0; c < cols; c++)
            N(put)(y + c, N(exp)(N(get)(x + c) - max) * factor);
    }
}

static void N(softmax_grad)(void *to, const void *from_dy, const void *from_y, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        const STORE *dy = (const STORE *)from_dy + r * cols, *y = (const STORE *)from_y + r * cols;
        STORE *dx = (STORE *)to + r * cols;
        REAL dot = 0;

        for (int64_t c = 0; c < cols; c++)
            dot += N(get)(dy + c) * N(get)(y + c);
        LANEWISE
        for (int64_t c = 0; c < cols; c++)
            N(put)(dx + c, (N(get)(dy + c) - dot) * N(get)(y + c));
    }
}

/* --- Cross-entropy over a part of the vocabulary -------------------------------------------------------------------- */

static void N(cross_entropy_max)(const struct hkt__cross_entropy *ce)
{
    for (int64_t r = 0; r < ce->rows; r++)
        ((REAL *)ce->row_max)[r] =
            ce->cols > 0 ? N(largest)((const STORE *)ce->logits + r * ce->cols, ce->cols) : (REAL)-INFINITY;
}

static void N(cross_entropy_sums)(const struct hkt__cross_entropy *ce)
{
    for (int64_t r = 0; r < ce->rows; r++) {
        const STORE *logits = (const STORE *)ce->logits + r * ce->cols;
        int64_t at = (int64_t)ce->targets[r] - ce->first;
        int is_here = ce->targets[r] >= 0 && at >= 0 && at < ce->cols;

        ((REAL *)ce->sum_exp)[r] = N(sum_exp)(logits, ce->cols, ((const REAL *)ce->row_max)[r]);
        ((REAL *)ce->target_logit)[r] = is_here ? N(get)(logits + at) : 0;
    }
}

static void N(cross_entropy_loss)(const struct hkt__cross_entropy *ce)
{
    const REAL *max = ce->row_max, *sum = ce->sum_exp, *target = ce->target_logit;

    for (int64_t r = 0; r < ce->rows; r++)
        ((REAL *)ce->loss)[r] = ce->targets[r] >= 0 ? REAL_LOG(sum[r]) + (max[r] - target[r]) : 0;
}

static void N(cross_entropy_grad)(const struct hkt__cross_entropy *ce)
{
    const int64_t cols = ce->cols;

    for (int64_t r = 0; r < ce->rows; r++) {
        const STORE *logits = (const STORE *)ce->logits + r * cols;
        STORE *dlogits = (STORE *)ce->dlogits + r * cols;
        REAL max = ((const REAL *)ce->row_max)[r], factor = (REAL)ce->scale / ((const REAL *)ce->sum_exp)[r];
        int64_t at = (int64_t)ce->targets[r] - ce->first;

        if (ce->targets[r] < 0) {
            memset(dlogits, 0, (size_t)cols * sizeof(STORE));
            continue;
        }
        /* The target's own is rounded once: in a narrow type, softmax - 1 of a rounded softmax would lose digits. */
        REAL own = at >= 0 && at < cols ? N(exp)(N(get)(logits + at) - max) * factor - (REAL)ce->scale : 0;

        LANEWISE
        for (int64_t c = 0; c < cols; c++)
            N(put)(dlogits + c, N(exp)(N(get)(logits + c) - max) * factor);
        if (at >= 0 && at < cols)
            N(put)(dlogits + at, own);
    }
}
