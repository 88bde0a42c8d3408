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

/* Squares of a chunk one by one. */
static void N(exact_put_squares)(struct hkt__exact *sum, const REAL *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        hkt__exact_put(sum, (double)x[i] * (double)x[i]);
}

/* The sum of n = EXACT_CHUNK squares, none above 2^top, exactly: each is cut into three pieces that are multiples of
 * 2^(top - 38), 2^(top - 76), 2^(top - 114), so that pieces of one kind add up in a double without rounding (38 bits, and 8 for
 * as many pieces in a lane, are less than its 53). False, and nothing is added: a square has bits below the last piece.
 * Source: the extraction of Rump, Ogita & Oishi, "Accurate floating-point summation", SIAM J. Sci. Comput. 31(1), 2008. */
static int N(exact_squares_cut)(struct hkt__exact *sum, const REAL *x, int top)
{
    N(doubles) piece[EXACT_PIECES] = { { 0 } };
    N(masks) rest = { 0 };
    double shifter[EXACT_PIECES], lane[EXACT_LANES];

    for (int p = 0; p < EXACT_PIECES; p++)
        shifter[p] = ldexp(1.5, top + 52 - EXACT_PIECE_BITS * (p + 1)); /* its last bit is the piece's */
    for (int64_t i = 0; i < EXACT_CHUNK; i += EXACT_LANES) {
        N(eight) part;

        memcpy(&part, x + i, sizeof part);
        N(doubles) left = __builtin_convertvector(part, N(doubles));

        left *= left;
        for (int p = 0; p < EXACT_PIECES; p++) {
            const N(doubles) cut = (left + shifter[p]) - shifter[p];

            piece[p] += cut;
            left -= cut;
        }
        rest |= left != 0;
    }
    for (int l = 0; l < EXACT_LANES; l++)
        if (rest[l] != 0)
            return 0;
    for (int p = 0; p < EXACT_PIECES; p++) {
        memcpy(lane, &piece[p], sizeof lane);
        for (int l = 0; l < EXACT_LANES; l++)
            hkt__exact_put(sum, lane[l]);
    }
    return 1;
}

/* A chunk, cut where its largest square is far from the ends of a double's range, and none is infinite or no number. */
static void N(exact_chunk)(struct hkt__exact *sum, const REAL *x)
{
    N(vec) most = { 0 }, odd = { 0 };
    REAL lane[LANES], largest = 0;
    int top = 0;

    for (int64_t i = 0; i < EXACT_CHUNK; i += LANES) {
        const N(vec) here = N(load_real)(x + i);

        most = N(larger)(most, N(larger)(here, -here));
        odd += here * 0; /* infinities and what is no number stay */
    }
    memcpy(lane, &most, sizeof lane);
    for (int l = 0; l < LANES; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    const int is_finite = N(lanes_sum)(odd) == 0;

    if (is_finite && largest == 0)
        return;
    (void)frexp((double)largest, &top); /* largest < 2^top */
    if (!is_finite || top < EXACT_TOP_MIN || top > EXACT_TOP_MAX || !N(exact_squares_cut)(sum, x, 2 * top))
        N(exact_put_squares)(sum, x, EXACT_CHUNK);
}

static void N(exact_add_squares)(struct hkt__exact *sum, const void *from, int64_t n)
{
    const REAL *x = from;
    int64_t i = 0;

    for (; i + EXACT_CHUNK <= n; i += EXACT_CHUNK) {
        N(exact_chunk)(sum, x + i);
        hkt__exact_settle(sum);
    }
    N(exact_put_squares)(sum, x + i, n - i);
    hkt__exact_settle(sum);
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
