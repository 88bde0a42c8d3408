/* Element-wise kernels of one pair of types: sums, conversions, activations. Template of kernels.c. Outputs may be inputs,
 * at the same place; LANEWISE tells the compiler that elements are independent. */
static void N(add)(void *to, const void *from_a, const void *from_b, int64_t n)
{
    STORE *y = to;
    const STORE *a = from_a, *b = from_b;

    LANEWISE
    for (int64_t i = 0; i < n; i++)
        N(put)(y + i, N(get)(a + i) + N(get)(b + i));
}

static void N(scale)(void *to, double alpha, int64_t n)
{
    STORE *y = to;
    REAL factor = (REAL)alpha;

    LANEWISE
    for (int64_t i = 0; i < n; i++)
        N(put)(y + i, factor * N(get)(y + i));
}

static void N(from_real)(void *to, const void *from, int64_t n)
{
    STORE *y = to;
    const REAL *x = from;

    LANEWISE
    for (int64_t i = 0; i < n; i++)
        N(put)(y + i, x[i]);
}

static void N(to_real)(void *to, const void *from, int64_t n)
{
    REAL *y = to;
    const STORE *x = from;

    LANEWISE
    for (int64_t i = 0; i < n; i++)
        y[i] = N(get)(x + i);
}

static void N(add_to_real)(void *to, const void *from, int64_t n)
{
    REAL *y = to;
    const STORE *x = from;

    LANEWISE
    for (int64_t i = 0; i < n; i++)
        y[i] += N(get)(x + i);
}

static void N(from_f64)(void *to, const double *x, int64_t n)
{
    STORE *y = to;

    for (int64_t i = 0; i < n; i++)
        N(put)(y + i, (REAL)x[i]);
}

static void N(to_f64)(double *y, const void *from, int64_t n)
{
    const STORE *x = from;

    for (int64_t i = 0; i < n; i++)
        y[i] = (double)N(get)(x + i);
}

static void N(bias)(void *to, const void *bias, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        N(add)((STORE *)to + r * cols, (STORE *)to + r * cols, bias, cols);
}

static void N(bias_grad)(void *dbias, const void *dy, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        N(add_to_real)(dbias, (const STORE *)dy + r * cols, cols);
}

/* --- Activations ---------------------------------------------------------------------------------------------------- */

/* Hendrycks & Gimpel 2016: 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3). */
#define GELU_2U(x) ((REAL)1.5957691216057308 * ((x) + (REAL)0.044715 * (x) * (x) * (x)))
#define GELU_2U_SLOPE(x) ((REAL)1.5957691216057308 * (1 + (REAL)0.134145 * (x) * (x)))

static void N(gelu)(void *to, const void *from, int64_t n)
{
    STORE *y = to;
    const STORE *x = from;

    LANEWISE
    for (int64_t i = 0; i < n; i++) {
        REAL v = N(get)(x + i);

        N(put)(y + i, v * N(sigmoid)(GELU_2U(v)));
    }
}

static void N(gelu_grad)(void *to, const void *from_dy, const void *from_x, int64_t n)
{
    STORE *dx = to;
    const STORE *dy = from_dy, *x = from_x;

    LANEWISE
    for (int64_t i = 0; i < n; i++) {
        REAL v = N(get)(x + i), s = N(sigmoid)(GELU_2U(v));

        N(put)(dx + i, N(get)(dy + i) * (s + v * s * (1 - s) * GELU_2U_SLOPE(v)));
    }
}
#undef GELU_2U
#undef GELU_2U_SLOPE

/* x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2, which keeps its digits for negative x. */
static void N(gelu_erf)(void *to, const void *from, int64_t n)
{
    STORE *y = to;
    const STORE *x = from;

    for (int64_t i = 0; i < n; i++) {
        REAL v = N(get)(x + i);

        N(put)(y + i, v * (REAL)0.5 * REAL_ERFC(v * (REAL)-0.70710678118654752));
    }
}

static void N(gelu_erf_grad)(void *to, const void *from_dy, const void *from_x, int64_t n)
{
    STORE *dx = to;
    const STORE *dy = from_dy, *x = from_x;

    for (int64_t i = 0; i < n; i++) {
        REAL v = N(get)(x + i), phi = (REAL)0.3989422804014327 * N(exp)(v * v * (REAL)-0.5);

        N(put)(dx + i, N(get)(dy + i) * ((REAL)0.5 * REAL_ERFC(v * (REAL)-0.70710678118654752) + v * phi));
    }
}

static void N(swiglu)(const struct hkt__swiglu *s)
{
    const int64_t cols = s->cols;

    for (int64_t r = 0; r < s->rows; r++) {
        const STORE *gate = (const STORE *)s->gate + r * s->ld_gate, *up = (const STORE *)s->up + r * s->ld_up;
        STORE *y = (STORE *)s->y + r * cols;

        LANEWISE
        for (int64_t c = 0; c < cols; c++) {
            REAL g = N(get)(gate + c);

            N(put)(y + c, g * N(sigmoid)(g) * N(get)(up + c));
        }
    }
}

static void N(swiglu_grad)(const struct hkt__swiglu *s)
{
    const int64_t cols = s->cols;

    for (int64_t r = 0; r < s->rows; r++) {
        const STORE *gate = (const STORE *)s->gate + r * s->ld_gate, *up = (const STORE *)s->up + r * s->ld_up;
        const STORE *dy = (const STORE *)s->dy + r * cols;
        STORE *dgate = (STORE *)s->dgate + r * s->ld_gate, *dup = (STORE *)s->dup + r * s->ld_up;

        LANEWISE
        for (int64_t c = 0; c < cols; c++) {
            REAL g = N(get)(gate + c), u = N(get)(up + c), d = N(get)(dy + c), sigmoid = N(sigmoid)(g);

            N(put)(dgate + c, d * u * sigmoid * (1 + g * (1 - sigmoid)));
            N(put)(dup + c, d * g * sigmoid);
        }
    }
}

/* --- Tables and positions ------------------------------------------------------------------------------------------- */

static void N(embedding)(const struct hkt__embedding *e)
{
    for (int64_t r = 0; r < e->rows; r++) {
        int64_t at = (int64_t)e->ids[r] - e->first;
        STORE *y = (STORE *)e->y + r * e->cols;

        if (at < 0 || at >= e->count)
            memset(y, 0, (size_t)e->cols * sizeof(STORE));
        else
            memcpy(y, (const STORE *)e->table + at * e->cols, (size_t)e->cols * sizeof(STORE));
    }
}

static void N(embedding_grad)(const struct hkt__embedding *e)
{
    for (int64_t r = 0; r < e->rows; r++) {
        int64_t at = (int64_t)e->ids[r] - e->first;

        if (at >= 0 && at < e->count)
            N(add_to_real)((REAL *)e->dtable + at * e->cols, (const STORE *)e->dy + r * e->cols, e->cols);
    }
}

static void N(rotary)(const struct hkt__rotary *t)
{
    int64_t half = t->head_dim / 2;
    int64_t step = t->pairs == HKT__ROTARY_HALVES ? 1 : 2, other = t->pairs == HKT__ROTARY_HALVES ? half : 1;
    REAL direction = t->inverse ? -1 : 1;

    for (int64_t r = 0; r < t->rows; r++) {
        const REAL *cosine = (const REAL *)t->cosines + t->positions[r] * half;
        const REAL *sine = (const REAL *)t->sines + t->positions[r] * half;

        for (int64_t h = 0; h < t->heads; h++) {
            STORE *x = (STORE *)t->x + r * t->ld + h * t->head_dim;

            LANEWISE
            for (int64_t i = 0; i < half; i++) {
                REAL a = N(get)(x + i * step), b = N(get)(x + i * step + other), s = direction * sine[i];

                N(put)(x + i * step, a * cosine[i] - b * s);
                N(put)(x + i * step + other, a * s + b * cosine[i]);
            }
        }
    }
}
