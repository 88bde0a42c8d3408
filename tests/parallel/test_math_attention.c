/* What could break: tiles at their edges (63, 64, 65 queries or keys), keys that came before the first query, heads that share
 * keys, rows with a stride, rescaling when a larger score comes late, a buffer of queries x keys, decoding that differs from
 * the whole, dropout of other weights backward than forward or by place in the call. Compared in f64 with attention as its formula is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "numbers.h"
#include "parallel/gemm.h"
#include "parallel/math_ops.h"

#define BOUND 1e-12

static struct hkt__memory memory;
static struct hkt__math math;

/* Memory of one problem in f64: inputs, outputs and gradients, and what the reference says. */
struct problem {
    struct hkt__attention a;
    double *q, *k, *v, *y, *dy, *dq, *dk, *dv, *lse, *want_y, *want_dq, *want_dk, *want_dv, *want_lse;
};

static double *doubles(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);

    assert_non_null(x);
    numbers(x, n);
    return x;
}

static struct problem make(int64_t queries, int64_t keys, const int64_t heads[2], int64_t d)
{
    struct problem p = { 0 };
    const int64_t batch = 2, pad = 3;
    int64_t q_elems = batch * queries * (heads[0] * d + pad), k_elems = batch * keys * (heads[1] * d + pad);

    p.q = doubles(q_elems);
    p.y = doubles(q_elems);
    p.dy = doubles(q_elems);
    p.dq = doubles(q_elems);
    p.want_y = doubles(q_elems);
    p.want_dq = doubles(q_elems);
    p.k = doubles(k_elems);
    p.v = doubles(k_elems);
    p.dk = doubles(k_elems);
    p.dv = doubles(k_elems);
    p.want_dk = doubles(k_elems);
    p.want_dv = doubles(k_elems);
    p.lse = doubles(batch * heads[0] * queries);
    p.want_lse = doubles(batch * heads[0] * queries);
    for (int64_t i = 0; i < q_elems; i++)
        p.q[i] *= 8; /* scores far apart: rescaling happens */
    p.a = (struct hkt__attention){ .batch = batch, .queries = queries, .keys = keys, .heads = heads[0], .kv_heads = heads[1],
                                   .head_dim = d, .scale = 1 / sqrt((double)d), .q = p.q, .k = p.k, .v = p.v,
                                   .ld_q = heads[0] * d + pad, .ld_k = heads[1] * d + pad, .ld_v = heads[1] * d + pad,
                                   .ld_y = heads[0] * d + pad, .y = p.y, .lse = p.lse, .dy = p.dy, .dq = p.dq, .dk = p.dk,
                                   .dv = p.dv };
    return p;
}

static void done(struct problem *p)
{
    double *all[] = { p->q, p->k, p->v, p->y, p->dy, p->dq, p->dk, p->dv, p->lse, p->want_y, p->want_dq, p->want_dk,
                      p->want_dv, p->want_lse };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* What the weight of key j is multiplied by: 1 without dropout; the number by the formula of struct hkt__attention_dropout. */
static double kept(const struct hkt__attention *a, const int64_t query[3], int64_t j)
{
    const struct hkt__attention_dropout *d = &a->dropout;
    const int64_t row = d->first_row + query[0] * a->queries + query[2], head = d->first_head + query[1];
    const int64_t index = ((row / 2 * d->heads_all + head) * ((a->keys + 63) / 64) + j / 64) * 128 + row % 2 * 64 + j % 64;

    if (d->p == 0)
        return 1;
    return hkt__rng_bits(&d->rng, (uint64_t)index) < d->p * 0x1p32 ? 0 : 1 / (1 - d->p);
}

/* One query: its weights over the keys it sees, their log-sum-exp, its output. */
static int64_t reference_query(const struct problem *p, int64_t b, int64_t head, int64_t i, double *weight)
{
    const struct hkt__attention *a = &p->a;
    int64_t kv = head / (a->heads / a->kv_heads), seen = a->keys - a->queries + i + 1, d = a->head_dim;
    const double *q = p->q + (b * a->queries + i) * a->ld_q + head * d;
    double *y = p->want_y + (b * a->queries + i) * a->ld_y + head * d, max = -INFINITY, sum = 0;

    for (int64_t j = 0; j < seen; j++) {
        weight[j] = a->scale * dot(q, p->k + (b * a->keys + j) * a->ld_k + kv * d, d);
        max = weight[j] > max ? weight[j] : max;
    }
    for (int64_t j = 0; j < seen; j++)
        sum += weight[j] = exp(weight[j] - max);
    memset(y, 0, (size_t)d * sizeof *y);
    for (int64_t j = 0; j < seen; j++) {
        weight[j] /= sum;
        for (int64_t c = 0; c < d; c++)
            y[c] += weight[j] * kept(a, (const int64_t[]){ b, head, i }, j) * p->v[(b * a->keys + j) * a->ld_v + kv * d + c];
    }
    p->want_lse[(b * a->heads + head) * a->queries + i] = max + log(sum);
    return seen;
}

static void reference_query_grad(struct problem *p, int64_t b, int64_t head, int64_t i, const double *weight)
{
    const struct hkt__attention *a = &p->a;
    int64_t kv = head / (a->heads / a->kv_heads), seen = a->keys - a->queries + i + 1, d = a->head_dim;
    int64_t at = (b * a->queries + i) * a->ld_q + head * d;
    double mean = dot(p->want_y + at, p->dy + at, d);

    for (int64_t j = 0; j < seen; j++) {
        int64_t key = (b * a->keys + j) * a->ld_k + kv * d;
        const double keep = kept(a, (const int64_t[]){ b, head, i }, j);
        double ds = weight[j] * (keep * dot(p->dy + at, p->v + key, d) - mean) * a->scale;

        for (int64_t c = 0; c < d; c++) {
            p->want_dv[key + c] += keep * weight[j] * p->dy[at + c];
            p->want_dq[at + c] += ds * p->k[key + c];
            p->want_dk[key + c] += ds * p->q[at + c];
        }
    }
}

/* Everything by the formula. What lies between the heads of two rows must be as in the outputs, so it is copied. */
static void reference(struct problem *p)
{
    const struct hkt__attention *a = &p->a;
    size_t q_bytes = (size_t)(a->batch * a->queries * a->ld_q) * sizeof(double);
    size_t k_bytes = (size_t)(a->batch * a->keys * a->ld_k) * sizeof(double);
    double *weight = doubles(a->keys);

    memcpy(p->want_y, p->y, q_bytes);
    memcpy(p->want_dq, p->dq, q_bytes);
    memcpy(p->want_dk, p->dk, k_bytes);
    memcpy(p->want_dv, p->dv, k_bytes);
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t row = b * a->queries; row < (b + 1) * a->queries; row++)
            memset(p->want_dq + row * a->ld_q, 0, (size_t)(a->heads * a->head_dim) * sizeof(double));
        for (int64_t row = b * a->keys; row < (b + 1) * a->keys; row++) {
            memset(p->want_dk + row * a->ld_k, 0, (size_t)(a->kv_heads * a->head_dim) * sizeof(double));
            memset(p->want_dv + row * a->ld_v, 0, (size_t)(a->kv_heads * a->head_dim) * sizeof(double));
        }
    }
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t head = 0; head < a->heads; head++)
            for (int64_t i = 0; i < a->queries; i++) {
                reference_query(p, b, head, i, weight);
                reference_query_grad(p, b, head, i, weight);
            }
    free(weight);
}

static int setup(void **state)
{
    (void)state;
    hkt__memory_init(&memory, 0);
    assert_int_equal(hkt__math_init(&math, HKT_F64, &memory), HKT_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hkt__math_fini(&math);
    return hkt__memory_fini(&memory) == HKT_OK ? 0 : -1;
}

static void compare(int64_t queries, int64_t keys, const int64_t heads[2], const struct hkt__attention_dropout *dropout)
{
    struct problem p = make(queries, keys, heads, 5 + 11 * (heads[0] % 2));
    const struct hkt__attention *a = &p.a;

    p.a.dropout = *dropout;
    reference(&p);
    assert_int_equal(math.ops->attention(&math, a), HKT_OK);
    assert_near("y", p.y, p.want_y, a->batch * queries * a->ld_y, BOUND);
    assert_near("lse", p.lse, p.want_lse, a->batch * a->heads * queries, BOUND);
    assert_int_equal(math.ops->attention_grad(&math, a), HKT_OK);
    assert_near("dq", p.dq, p.want_dq, a->batch * queries * a->ld_q, BOUND);
    assert_near("dk", p.dk, p.want_dk, a->batch * keys * a->ld_k, BOUND);
    assert_near("dv", p.dv, p.want_dv, a->batch * keys * a->ld_v, BOUND);
    done(&p);
}

static const struct hkt__attention_dropout no_dropout;

static void tiled_equals_formula(void **state)
{
    static const int64_t lengths[] = { 1, 2, 63, 64, 65, 130 };
    static const int64_t heads[][2] = { { 1, 1 }, { 4, 2 }, { 3, 3 }, { 4, 1 } };

    (void)state;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
            compare(lengths[l], lengths[l], heads[h], &no_dropout);
}

/* Rows that begin odd and even, heads in the midst of others; some rows lose all they see. */
static void dropout_equals_formula(void **state)
{
    static const int64_t cases[][2] = { { 1, 1 }, { 5, 5 }, { 65, 65 }, { 130, 130 }, { 3, 66 } };
    static const int64_t heads[2] = { 4, 2 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct hkt__attention_dropout dropout = { .p = i % 2 == 0 ? 0.3 : 0.75, .rng = { 5, hkt__rng_site(3, 2, 1) },
                                                        .first_row = 1000 + (int64_t)i, .first_head = 4, .heads_all = 11 };

        compare(cases[i][0], cases[i][1], heads, &dropout);
    }
}

static void queries_may_follow_a_past(void **state)
{
    static const int64_t cases[][2] = { { 1, 200 }, { 3, 66 }, { 64, 65 }, { 65, 128 }, { 70, 170 } };
    static const int64_t heads[2] = { 4, 2 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        compare(cases[i][0], cases[i][1], heads, &no_dropout);
}

static void gradients_may_overwrite_inputs(void **state)
{
    static const int64_t heads[2] = { 4, 2 };
    struct problem p = make(100, 100, heads, 6);
    struct hkt__attention in_place = p.a;

    (void)state;
    assert_int_equal(math.ops->attention(&math, &p.a), HKT_OK);
    assert_int_equal(math.ops->attention_grad(&math, &p.a), HKT_OK);
    in_place.dq = p.q;
    in_place.dk = p.k;
    in_place.dv = p.v;
    assert_int_equal(math.ops->attention_grad(&math, &in_place), HKT_OK);
    for (int64_t row = 0; row < 200; row++) {
        assert_memory_equal(p.q + row * p.a.ld_q, p.dq + row * p.a.ld_q, 24 * sizeof(double));
        assert_memory_equal(p.k + row * p.a.ld_k, p.dk + row * p.a.ld_k, 12 * sizeof(double));
        assert_memory_equal(p.v + row * p.a.ld_v, p.dv + row * p.a.ld_v, 12 * sizeof(double));
    }
    done(&p);
}

/* A head's bits do not depend on which other heads are here: heads over ranks change nothing. */
static void heads_are_independent(void **state)
{
    static const int64_t heads[2] = { 4, 2 };
    struct problem p = make(90, 90, heads, 8);

    p.a.dropout = (struct hkt__attention_dropout){ .p = 0.2, .rng = { 5, 6 }, .first_row = 7, .heads_all = 4 };
    struct hkt__attention half = p.a;

    (void)state;
    half.dropout.first_head = 2;
    assert_int_equal(math.ops->attention(&math, &p.a), HKT_OK);
    assert_int_equal(math.ops->attention_grad(&math, &p.a), HKT_OK);
    half.heads = 2;
    half.kv_heads = 1;
    half.q = p.q + 16;
    half.k = p.k + 8;
    half.v = p.v + 8;
    half.y = p.want_y + 16;
    half.dy = p.dy + 16;
    half.dq = p.want_dq + 16;
    half.dk = p.want_dk + 8;
    half.dv = p.want_dv + 8;
    assert_int_equal(math.ops->attention(&math, &half), HKT_OK);
    assert_int_equal(math.ops->attention_grad(&math, &half), HKT_OK);
    for (int64_t row = 0; row < 180; row++) {
        assert_memory_equal(p.y + row * p.a.ld_y + 16, p.want_y + row * p.a.ld_y + 16, 16 * sizeof(double));
        assert_memory_equal(p.dq + row * p.a.ld_q + 16, p.want_dq + row * p.a.ld_q + 16, 16 * sizeof(double));
        assert_memory_equal(p.dk + row * p.a.ld_k + 8, p.want_dk + row * p.a.ld_k + 8, 8 * sizeof(double));
        assert_memory_equal(p.dv + row * p.a.ld_v + 8, p.want_dv + row * p.a.ld_v + 8, 8 * sizeof(double));
    }
    done(&p);
}

/* Token after token against a cache with more room than tokens equals the whole at once. */
static void decoding_equals_the_whole(void **state)
{
    enum { TOKENS = 131, ROOM = 150 };
    static const int64_t heads[2] = { 4, 2 };
    struct problem p = make(TOKENS, TOKENS, heads, 9);
    int64_t ld = p.a.ld_k;
    double *k = calloc(2 * ROOM, (size_t)ld * sizeof *k), *v = calloc(2 * ROOM, (size_t)ld * sizeof *v);
    double q[2 * 36], y[2 * 36];

    (void)state;
    assert_non_null(k);
    assert_non_null(v);
    assert_int_equal(math.ops->attention(&math, &p.a), HKT_OK);
    for (int64_t t = 0; t < TOKENS; t++) {
        for (int64_t b = 0; b < 2; b++) {
            memcpy(k + (b * ROOM + t) * ld, p.k + (b * TOKENS + t) * ld, (size_t)ld * sizeof *k);
            memcpy(v + (b * ROOM + t) * ld, p.v + (b * TOKENS + t) * ld, (size_t)ld * sizeof *v);
            memcpy(q + b * 36, p.q + (b * TOKENS + t) * p.a.ld_q, sizeof q / 2);
        }
        struct hkt__attention one = { .batch = 2, .queries = 1, .keys = t + 1, .heads = 4, .kv_heads = 2, .head_dim = 9,
                                      .scale = p.a.scale, .q = q, .k = k, .v = v, .ld_q = 36, .ld_k = ld, .ld_v = ld,
                                      .ld_y = 36, .kv_rows = ROOM, .y = y };

        assert_int_equal(math.ops->attention_decode(&math, &one), HKT_OK);
        for (int64_t b = 0; b < 2; b++)
            assert_near("y", y + b * 36, p.y + (b * TOKENS + t) * p.a.ld_y, 36, BOUND);
        memset(y, 0, sizeof y);
        assert_int_equal(math.ops->attention(&math, &one), HKT_OK); /* the general form takes a cache, too */
        for (int64_t b = 0; b < 2; b++)
            assert_near("y", y + b * 36, p.y + (b * TOKENS + t) * p.a.ld_y, 36, BOUND);
    }
    free(k);
    free(v);
    done(&p);
}

/* Scratch grows with the keys, not with their square: 4 (forward) or 8 (backward) tiles and heads, counted exactly. */
static void no_square_buffer(void **state)
{
    static const int64_t heads[2] = { 2, 2 };
    const uint64_t keys = 1500, d = 4, tile = 64;
    const uint64_t before = memory.used_all; /* what products need */
    struct problem p = make((int64_t)keys, (int64_t)keys, heads, (int64_t)d);

    (void)state;
    assert_int_equal(math.ops->attention(&math, &p.a), HKT_OK);
    assert_int_equal(memory.peak_all - before, 8 * (2 * (keys + tile) * d + tile * tile + 2 * tile));
    assert_int_equal(math.ops->attention_grad(&math, &p.a), HKT_OK);
    assert_int_equal(memory.peak_all - before, 8 * (4 * (keys + tile) * d + 2 * tile * tile + 2 * tile));
    assert_true(memory.peak_all - before < 8 * keys * keys / 50);
    done(&p);
}

static void without_memory_it_fails(void **state)
{
    static const int64_t heads[2] = { 1, 1 };
    struct problem p = make(10, 10, heads, 4);

    (void)state;
    memory.fail_at = 1;
    assert_int_equal(math.ops->attention(&math, &p.a), HKT_ERR_NOMEM);
    memory.fail_at = 1;
    assert_int_equal(math.ops->attention_grad(&math, &p.a), HKT_ERR_NOMEM);
    memory.fail_at = 1;
    assert_int_equal(math.ops->attention_decode(&math, &p.a), HKT_ERR_NOMEM);
    done(&p);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(tiled_equals_formula),  CASE(queries_may_follow_a_past), CASE(gradients_may_overwrite_inputs),
        CASE(heads_are_independent), CASE(decoding_equals_the_whole), CASE(no_square_buffer),
        CASE(without_memory_it_fails), CASE(dropout_equals_formula),
    };

    hkt__gemm_threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
