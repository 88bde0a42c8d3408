/* Kernels of one pair of types that change parameters or make random numbers. Template of kernels.c. Every element is
 * treated alike, so how a range is cut into shards does not show in the bits. */

static void N(adamw)(const struct hkt__optimizer_range *o, const struct hkt__adamw *h)
{
    const REAL *grad = o->grad, factor = (REAL)o->grad_scale, eps = (REAL)h->eps;
    const REAL beta1 = (REAL)h->beta1, beta2 = (REAL)h->beta2, rest1 = (REAL)(1 - h->beta1), rest2 = (REAL)(1 - h->beta2);
    const REAL keep = (REAL)(1 - h->lr * h->weight_decay);
    const REAL rate = (REAL)(h->lr / (1 - pow(h->beta1, (double)h->step)));
    const REAL root2 = (REAL)(1 / sqrt(1 - pow(h->beta2, (double)h->step)));
    REAL *master = o->master != NULL ? o->master : o->param, *m = o->moment1, *v = o->moment2;
    const int64_t n = o->elems; /* a copy: the compiler cannot know that stores leave *o alone */

    LANEWISE
    for (int64_t i = 0; i < n; i++) {
        REAL g = grad[i] * factor, m_new = beta1 * m[i] + rest1 * g, v_new = beta2 * v[i] + rest2 * (g * g);

        m[i] = m_new;
        v[i] = v_new;
        master[i] = keep * master[i] - rate * (m_new / (REAL_SQRT(v_new) * root2 + eps));
    }
    if (o->master != NULL)
        N(from_real)(o->param, master, n);
}

static void N(sgd)(const struct hkt__optimizer_range *o, const struct hkt__sgd *h)
{
    const REAL *grad = o->grad, factor = (REAL)o->grad_scale;
    const REAL rate = (REAL)h->lr, momentum = (REAL)h->momentum, decay = (REAL)h->weight_decay;
    REAL *master = o->master != NULL ? o->master : o->param, *m = o->moment1;
    const int64_t n = o->elems;

    if (h->momentum == 0) {
        LANEWISE
        for (int64_t i = 0; i < n; i++)
            master[i] -= rate * (grad[i] * factor + decay * master[i]);
    } else {
        LANEWISE
        for (int64_t i = 0; i < n; i++) {
            REAL velocity = momentum * m[i] + (grad[i] * factor + decay * master[i]);

            m[i] = velocity;
            master[i] -= rate * velocity;
        }
    }
    if (o->master != NULL)
        N(from_real)(o->param, master, n);
}

static void N(exact_add)(struct hkt__exact *sum, const void *from, int64_t n)
{
    const REAL *x = from;

    for (int64_t i = 0; i < n;) {
        int64_t end = n - i < HKT__EXACT_PUTS_MAX ? n : i + HKT__EXACT_PUTS_MAX;

        for (; i < end; i++)
            hkt__exact_put(sum, (double)x[i]);
        hkt__exact_settle(sum);
    }
}

static void N(exact_add_squares)(struct hkt__exact *sum, const void *from, int64_t n)
{
    const REAL *x = from;

    for (int64_t i = 0; i < n;) {
        int64_t end = n - i < HKT__EXACT_PUTS_MAX ? n : i + HKT__EXACT_PUTS_MAX;

        for (; i < end; i++)
            hkt__exact_put(sum, (double)x[i] * (double)x[i]);
        hkt__exact_settle(sum);
    }
}

/* --- Random numbers by place ---------------------------------------------------------------------------------------- */

static int64_t N(region_index)(const struct hkt__region *region, int64_t r)
{
    int64_t row = region->row_of != NULL ? region->row_of[r] : region->first_row + r;

    return row * region->cols_all + region->first_col;
}

static void N(dropout)(const struct hkt__dropout *t)
{
    const struct hkt__region *region = &t->region;
    const uint32_t limit = (uint32_t)(t->p * 0x1p32); /* p < 1 */
    const REAL factor = (REAL)(1 / (1 - t->p));

    for (int64_t r = 0; r < region->rows; r++) {
        const uint64_t at = (uint64_t)N(region_index)(region, r);

        for (int64_t c = 0; c < region->cols;) {
            const uint64_t begin = at + (uint64_t)c, skip = begin % 4; /* a row need not begin at a block */
            const int64_t rest = region->cols - c, here = RANDOM_COUNT - (int64_t)skip, count = rest < here ? rest : here;
            const STORE *x = (const STORE *)t->x + r * region->cols + c;
            STORE *y = (STORE *)t->y + r * region->cols + c;
            uint32_t word[RANDOM_COUNT];

            random_numbers(&t->rng, begin / 4, word);
            LANEWISE
            for (int64_t i = 0; i < count; i++)
                N(put)(y + i, word[skip + (uint64_t)i] < limit ? 0 : N(get)(x + i) * factor);
            c += count;
        }
    }
}

static void N(normal)(void *to, const struct hkt__region *region, const struct hkt__rng *rng, double deviation)
{
    STORE *y = to;

    for (int64_t r = 0; r < region->rows; r++) {
        uint64_t at = (uint64_t)N(region_index)(region, r), end = at + (uint64_t)region->cols;

        while (at < end) { /* a row need not begin at a block */
            double normal[4];
            uint64_t block = at / 4;

            hkt__rng_normal_block(rng, block, normal);
            for (; at < end && at / 4 == block; at++, y++)
                N(put)(y, (REAL)(deviation * normal[at % 4]));
        }
    }
}
