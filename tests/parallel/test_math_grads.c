/* What could break: a backward formula that is not the derivative of its forward. Every one is compared in f64 with central
 * differences of the loss sum(w * y) for random w, on odd shapes that leave tails beside full vectors. Gradients of parameters
 * must add to what is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "numbers.h"
#include "parallel/gemm.h"
#include "parallel/math_ops.h"

#define MOST 8192

static const struct hkt__math_ops *ops;
static struct hkt__memory memory;
static struct hkt__math math;
static double x[MOST], dx[MOST], y[MOST], w[MOST], p[MOST], dp[MOST], q[MOST], dq[MOST], r[MOST], dr[MOST];
static double stat1[MOST], stat2[MOST], spare[MOST];

static int setup(void **state)
{
    (void)state;
    hkt__memory_init(&memory, 0);
    assert_int_equal(hkt__math_init(&math, HKT_F64, &memory), HKT_OK);
    ops = math.ops;
    double *all[] = { x, w, p, q, r };

    for (int i = 0; i < 5; i++)
        numbers(all[i], MOST);
    memset(dp, 0, sizeof dp);
    memset(dq, 0, sizeof dq);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hkt__math_fini(&math);
    return hkt__memory_fini(&memory) == HKT_OK ? 0 : -1;
}

static double weighted(int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += w[i] * y[i];
    return sum;
}

/* --- Linear ----------------------------------------------------------------------------------------------------------- */

static double linear_loss(void *context)
{
    const struct hkt__linear *linear = context;

    assert_int_equal(hkt__linear_forward(&math, linear), HKT_OK);
    return weighted(linear->rows * linear->out);
}

static void linear_gradients(void **state)
{
    struct hkt__linear linear = { .rows = 5, .in = 11, .out = 7, .x = x, .weight = p, .bias = q, .y = y, .dy = w, .dx = dx,
                                  .dweight = dp, .dbias = dq };

    (void)state;
    assert_int_equal(hkt__linear_input_grad(&math, &linear), HKT_OK);
    assert_int_equal(hkt__linear_weight_grad(&math, &linear), HKT_OK);
    assert_gradient("x", linear_loss, &linear, x, dx, 5 * 11, 1);
    assert_gradient("weight", linear_loss, &linear, p, dp, 7 * 11, 1);
    assert_gradient("bias", linear_loss, &linear, q, dq, 7, 1);

    memcpy(spare, dp, sizeof spare);
    assert_int_equal(hkt__linear_weight_grad(&math, &linear), HKT_OK);
    for (int i = 0; i < 7 * 11; i++)
        assert_true(dp[i] == 2 * spare[i]);
}

/* --- Norms -------------------------------------------------------------------------------------------------------------- */

static double norm_loss(void *context)
{
    const struct hkt__norm *norm = context;

    ops->norm(norm);
    return weighted(norm->rows * norm->cols);
}

static void norm_gradients(void **state)
{
    (void)state;
    for (int is_rms = 0; is_rms < 2; is_rms++)
        for (int64_t cols = 1; cols <= 37; cols += 9) {
            struct hkt__norm norm = { .rows = 4, .cols = cols, .eps = 1e-2, .x = x, .gamma = p, .beta = is_rms ? NULL : q, .y = y,
                                      .mean = is_rms ? NULL : stat1, .rstd = stat2, .dy = w, .dx = dx, .dgamma = dp,
                                      .dbeta = is_rms ? NULL : dq };

            memset(dp, 0, sizeof dp);
            memset(dq, 0, sizeof dq);
            ops->norm(&norm);
            ops->norm_grad(&norm);
            assert_gradient("x", norm_loss, &norm, x, dx, 4 * cols, 1);
            assert_gradient("gamma", norm_loss, &norm, p, dp, cols, 1);
            if (!is_rms)
                assert_gradient("beta", norm_loss, &norm, q, dq, cols, 1);
        }
}

/* The two halves of backward may be asked for one at a time, and dx may overwrite dy. */
static void norm_backward_can_be_split(void **state)
{
    struct hkt__norm norm = { .rows = 6, .cols = 19, .eps = 1e-5, .x = x, .gamma = p, .beta = q, .y = y, .mean = stat1,
                              .rstd = stat2, .dy = w, .dx = dx, .dgamma = dp, .dbeta = dq };

    (void)state;
    ops->norm(&norm);
    ops->norm_grad(&norm);
    memset(r, 0, sizeof r);
    memset(dr, 0, sizeof dr);
    norm.dx = NULL;
    norm.dgamma = r;
    norm.dbeta = dr;
    ops->norm_grad(&norm);
    assert_memory_equal(r, dp, 19 * sizeof *r);
    assert_memory_equal(dr, dq, 19 * sizeof *dr);
    memcpy(spare, w, sizeof spare);
    norm.dy = norm.dx = spare;
    norm.dgamma = norm.dbeta = NULL;
    ops->norm_grad(&norm);
    assert_memory_equal(spare, dx, 6 * 19 * sizeof *dx);
}

/* --- Activations ------------------------------------------------------------------------------------------------------------ */

#define POINTS 83

struct activation {
    void (*forward)(void *y, const void *x, int64_t n);
    void (*backward)(void *dx, const void *dy, const void *x, int64_t n);
};

static double activation_loss(void *context)
{
    ((const struct activation *)context)->forward(y, x, POINTS);
    return weighted(POINTS);
}

static void gelu_gradients(void **state)
{
    struct activation both[2] = { { ops->gelu, ops->gelu_grad }, { ops->gelu_erf, ops->gelu_erf_grad } };

    (void)state;
    for (int i = 0; i < POINTS; i++)
        x[i] *= 6;
    for (int i = 0; i < 2; i++) {
        both[i].backward(dx, w, x, POINTS);
        assert_gradient("x", activation_loss, &both[i], x, dx, POINTS, 1);
    }
}

/* 0.5 x (1 + tanh(...)) and x Phi(x) as their papers write them. */
static void gelu_values(void **state)
{
    (void)state;
    for (int i = 0; i < POINTS; i++)
        x[i] = (i - 41) * 0.25;
    ops->gelu(y, x, POINTS);
    for (int i = 0; i < POINTS; i++)
        spare[i] = 0.5 * x[i] * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
    assert_near("tanh", y, spare, POINTS, 1e-15);
    ops->gelu_erf(y, x, POINTS);
    for (int i = 0; i < POINTS; i++)
        spare[i] = 0.5 * x[i] * (1 + erf(x[i] / sqrt(2)));
    assert_near("erf", y, spare, POINTS, 1e-15);
}

static double swiglu_loss(void *context)
{
    const struct hkt__swiglu *swiglu = context;

    ops->swiglu(swiglu);
    return weighted(swiglu->rows * swiglu->cols);
}

/* Gate and up in one matrix, side by side, as one product makes them. */
static void swiglu_gradients(void **state)
{
    struct hkt__swiglu swiglu = { .rows = 3, .cols = 13, .gate = x, .up = x + 13, .ld_gate = 26, .ld_up = 26, .y = y, .dy = w,
                                  .dgate = dx, .dup = dx + 13 };

    (void)state;
    ops->swiglu_grad(&swiglu);
    assert_gradient("gate and up", swiglu_loss, &swiglu, x, dx, 3 * 26, 1);
}

/* --- Tables, positions, softmax ---------------------------------------------------------------------------------------------- */

static double embedding_loss(void *context)
{
    const struct hkt__embedding *embedding = context;

    ops->embedding(embedding);
    return weighted(embedding->rows * embedding->cols);
}

static void embedding_gradients(void **state)
{
    const int32_t ids[7] = { 5, 9, 3, 5, 0, 5, 12 }; /* repeated ones; 3, 0 and 12 lie in other shards */
    struct hkt__embedding embedding = { .rows = 7, .cols = 9, .first = 4, .count = 7, .ids = ids, .table = p, .y = y, .dy = w,
                                        .dtable = dp };

    (void)state;
    ops->embedding_grad(&embedding);
    assert_gradient("table", embedding_loss, &embedding, p, dp, 7 * 9, 1);
    embedding_loss(&embedding);
    for (int i = 0; i < 9; i++)
        assert_true(y[2 * 9 + i] == 0 && y[4 * 9 + i] == 0 && y[6 * 9 + i] == 0 && y[i] == p[9 + i]);
}

#define ROTARY_ROWS 6
#define ROTARY_ELEMS (ROTARY_ROWS * 2 * 10)

static double rotary_loss(void *context)
{
    memcpy(y, x, sizeof y);
    ops->rotary(context);
    return weighted(ROTARY_ELEMS);
}

static void rotary_gradients(void **state)
{
    const int32_t positions[ROTARY_ROWS] = { 0, 1, 2, 7, 0, 30 };
    struct hkt__rotary rotary = { .rows = ROTARY_ROWS, .heads = 2, .head_dim = 10, .ld = 20, .positions = positions,
                                  .cosines = stat1, .sines = stat2 };

    (void)state;
    hkt__rotary_table(ops, stat1, stat2, 31, &(struct hkt__rotary_angles){ 10, 10000 });
    for (int pairs = HKT__ROTARY_NEIGHBOURS; pairs <= HKT__ROTARY_HALVES; pairs++) {
        rotary.pairs = (enum hkt__rotary_pairs)pairs;
        rotary.inverse = 1;
        rotary.x = dx;
        memcpy(dx, w, sizeof dx);
        ops->rotary(&rotary);
        rotary.inverse = 0;
        rotary.x = y;
        assert_gradient("x", rotary_loss, &rotary, x, dx, ROTARY_ELEMS, 1);
    }
    /* Element 1 of position 1 turns by 1 radian with element 6 when halves are paired. */
    assert_near("turned", &(double){ y[20 + 0] }, &(double){ x[20] * cos(1) - x[20 + 5] * sin(1) }, 1, 1e-15);
}

static double softmax_loss(void *context)
{
    (void)context;
    ops->softmax(y, x, 3, 21);
    return weighted(3 * 21);
}

static void softmax_gradients(void **state)
{
    (void)state;
    softmax_loss(NULL);
    ops->softmax_grad(dx, w, y, 3, 21);
    assert_gradient("x", softmax_loss, NULL, x, dx, 3 * 21, 1);
}

/* --- Cross-entropy over a split vocabulary ----------------------------------------------------------------------------------- */

#define ROWS 5
#define VOCAB 101
#define SHARDS 3
static const int64_t cut[SHARDS + 1] = { 0, 34, 68, 101 };
static const int32_t targets[ROWS] = { 0, 100, 34, -1, 67 };

static struct hkt__cross_entropy shard_of(int shard, double *logits, double *row_max, double *sums)
{
    double *mine = logits + ROWS * cut[shard]; /* shards one after another, each [ROWS][its columns] */

    return (struct hkt__cross_entropy){ .rows = ROWS, .cols = cut[shard + 1] - cut[shard], .first = cut[shard], .logits = mine,
                                        .targets = targets, .row_max = row_max, .sum_exp = sums,
                                        .target_logit = sums + ROWS, .loss = sums + 2 * ROWS, .scale = 0.25 };
}

/* What three ranks would do: maximum, then sums, over the shards. Returns the sum of the losses times the scale. */
static double cross_entropy_loss(void *context)
{
    double max[ROWS], part[3 * ROWS], *all = context;

    for (int i = 0; i < ROWS; i++)
        max[i] = -INFINITY;
    for (int shard = 0; shard < SHARDS; shard++) {
        struct hkt__cross_entropy ce = shard_of(shard, x, part, part);

        ops->cross_entropy_max(&ce);
        for (int i = 0; i < ROWS; i++)
            max[i] = part[i] > max[i] ? part[i] : max[i];
    }
    memset(all, 0, 4 * ROWS * sizeof *all);
    memcpy(all + 3 * ROWS, max, sizeof max);
    for (int shard = 0; shard < SHARDS; shard++) {
        struct hkt__cross_entropy ce = shard_of(shard, x, max, part);

        ops->cross_entropy_sums(&ce);
        for (int i = 0; i < 2 * ROWS; i++)
            all[i] += part[i];
    }
    struct hkt__cross_entropy ce = shard_of(0, x, max, all);
    double loss = 0;

    ops->cross_entropy_loss(&ce);
    for (int i = 0; i < ROWS; i++)
        loss += all[2 * ROWS + i] * 0.25;
    return loss;
}

static void cross_entropy_gradients(void **state)
{
    double all[4 * ROWS];

    (void)state;
    for (int i = 0; i < ROWS * VOCAB; i++)
        x[i] *= 5;
    cross_entropy_loss(all);
    for (int shard = 0; shard < SHARDS; shard++) {
        struct hkt__cross_entropy ce = shard_of(shard, x, all + 3 * ROWS, all);

        ce.dlogits = dx + ROWS * cut[shard];
        ops->cross_entropy_grad(&ce);
    }
    assert_gradient("logits", cross_entropy_loss, all, x, dx, ROWS * VOCAB, 1);
    assert_true(all[2 * ROWS + 3] == 0); /* a row that does not count */
}

/* Logits that were gathered before must not be summed again, which would give 1.133 (Megatron-LM issue 7452). */
static void cross_entropy_value(void **state)
{
    double logits[4] = { 0, 1, 2, 3 }, max = 3, sum[2] = { 0, 0 }, target[2] = { 0, 0 }, loss;
    const int32_t want = 3;

    (void)state;
    for (int shard = 0; shard < 2; shard++) {
        struct hkt__cross_entropy ce = { .rows = 1, .cols = 2, .first = 2 * shard, .logits = logits + 2 * shard, .targets = &want,
                                         .row_max = &max, .sum_exp = &sum[shard], .target_logit = &target[shard] };

        ops->cross_entropy_sums(&ce);
    }
    sum[0] += sum[1];
    target[0] += target[1];
    ops->cross_entropy_loss(&(struct hkt__cross_entropy){ .rows = 1, .targets = &want, .row_max = &max, .sum_exp = sum,
                                                          .target_logit = target, .loss = &loss });
    assert_near("loss", &loss, &(double){ 0.44018969856119533 }, 1, 1e-15);
}

/* --- Attention -------------------------------------------------------------------------------------------------------------------- */

static double attention_loss(void *context)
{
    const struct hkt__attention *attention = context;

    assert_int_equal(ops->attention(&math, attention), HKT_OK);
    return weighted(attention->batch * attention->queries * attention->ld_y);
}

/* Two query heads to a key head, more than one tile, and keys that came before the first query. */
static void attention_gradients(void **state)
{
    struct hkt__attention a = { .batch = 2, .queries = 66, .keys = 69, .heads = 4, .kv_heads = 2, .head_dim = 3, .scale = 0.7,
                                .q = p, .k = q, .v = r, .ld_q = 12, .ld_k = 6, .ld_v = 6, .ld_y = 12, .y = y, .lse = stat1,
                                .dy = w, .dq = dp, .dk = dq, .dv = dr };

    (void)state;
    attention_loss(&a);
    assert_int_equal(ops->attention_grad(&math, &a), HKT_OK);
    assert_gradient("q", attention_loss, &a, p, dp, 2 * 66 * 12, 7);
    assert_gradient("k", attention_loss, &a, q, dq, 2 * 69 * 6, 5);
    assert_gradient("v", attention_loss, &a, r, dr, 2 * 69 * 6, 5);
}

/* As many key heads as query heads, and one for all. */
static void attention_gradients_of_other_heads(void **state)
{
    (void)state;
    for (int64_t kv_heads = 1; kv_heads <= 3; kv_heads += 2) {
        const int64_t width = 3 * 5, kv_width = kv_heads * 5;
        struct hkt__attention a = { .batch = 2, .queries = 7, .keys = 7, .heads = 3, .kv_heads = kv_heads, .head_dim = 5,
                                    .scale = 0.4, .q = p, .k = q, .v = r, .ld_q = width, .ld_k = kv_width, .ld_v = kv_width,
                                    .ld_y = width, .y = y, .lse = stat1, .dy = w, .dq = dp, .dk = dq, .dv = dr };

        attention_loss(&a);
        assert_int_equal(ops->attention_grad(&math, &a), HKT_OK);
        assert_gradient("q", attention_loss, &a, p, dp, 2 * 7 * width, 1);
        assert_gradient("k", attention_loss, &a, q, dq, 2 * 7 * kv_width, 1);
        assert_gradient("v", attention_loss, &a, r, dr, 2 * 7 * kv_width, 1);
    }
}

/* --- Dropout ---------------------------------------------------------------------------------------------------------------------- */

static double dropout_loss(void *context)
{
    struct hkt__dropout dropout = *(const struct hkt__dropout *)context;

    dropout.x = x;
    dropout.y = y;
    ops->dropout(&dropout);
    return weighted(dropout.region.rows * dropout.region.cols);
}

/* No mask is saved: backward must drop what forward dropped, with the same factor. */
static void dropout_gradients(void **state)
{
    struct hkt__dropout dropout = { .region = { .rows = 6, .cols = 37, .first_row = 5, .cols_all = 37 },
                                    .rng = { 3, hkt__rng_site(3, 1, 4) }, .p = 0.3, .x = w, .y = dx };
    int dropped = 0;

    (void)state;
    ops->dropout(&dropout);
    assert_gradient("x", dropout_loss, &dropout, x, dx, 6 * 37, 1);
    for (int i = 0; i < 6 * 37; i++)
        dropped += dx[i] == 0;
    assert_true(dropped > 0 && dropped < 6 * 37);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(linear_gradients),
        CASE(norm_gradients),
        CASE(norm_backward_can_be_split),
        CASE(gelu_gradients),
        CASE(gelu_values),
        CASE(swiglu_gradients),
        CASE(embedding_gradients),
        CASE(rotary_gradients),
        CASE(softmax_gradients),
        CASE(cross_entropy_gradients),
        CASE(cross_entropy_value),
        CASE(attention_gradients),
        CASE(attention_gradients_of_other_heads),
        CASE(dropout_gradients),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
