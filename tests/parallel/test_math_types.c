/* What could break: a kernel of one store type or instruction set that computes something else. Every kernel without a matrix
 * product must give the same bits in all instruction sets; f32 and bf16 must agree with f64 to their rounding; exp, which is
 * the project's own, with libm over its whole range; ranks that are threads must not share a buffer. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "numbers.h"
#include "parallel/gemm.h"
#include "parallel/math_ops.h"

#define ROWS 5
#define COLS 77
#define N (ROWS * COLS)
#define OUTPUTS 24

/* Inputs in f64, and per run the same in the store type; outputs back in f64. */
static double input[6][N];

struct run {
    const struct hkt__math_ops *ops;
    _Alignas(64) char in[6][N * 8];
    _Alignas(64) char real[4][N * 8];
    int count;
    const char *name[OUTPUTS];
    double out[OUTPUTS][N];
};

static void put(struct run *run, const char *name, const void *data, int is_real)
{
    const struct hkt__math_ops *ops = is_real ? hkt__math_ops_of(run->ops->real) : run->ops;

    assert_in_range(run->count, 0, OUTPUTS - 1);
    run->name[run->count] = name;
    ops->to_f64(run->out[run->count++], data, N);
}

/* Zeroed memory for an output, so that what a kernel does not write compares equal. */
static void *output(void)
{
    static _Alignas(64) char memory[N * 8];

    memset(memory, 0, sizeof memory);
    return memory;
}

static void run_pointwise(struct run *run)
{
    const struct hkt__math_ops *ops = run->ops;
    struct hkt__swiglu swiglu = { .rows = ROWS, .cols = COLS, .gate = run->in[0], .up = run->in[1], .ld_gate = COLS,
                                  .ld_up = COLS, .y = output(), .dy = run->in[2] };
    void *y = swiglu.y;

    ops->swiglu(&swiglu);
    put(run, "swiglu", y, 0);
    swiglu.dgate = y;
    swiglu.dup = run->real[0];
    ops->swiglu_grad(&swiglu);
    put(run, "dgate", y, 0);
    put(run, "dup", run->real[0], 0);
    ops->gelu(y, run->in[0], N);
    put(run, "gelu", y, 0);
    ops->gelu_grad(y, run->in[1], run->in[0], N);
    put(run, "gelu_grad", y, 0);
    ops->gelu_erf(y, run->in[0], N);
    put(run, "gelu_erf", y, 0);
    ops->gelu_erf_grad(y, run->in[1], run->in[0], N);
    put(run, "gelu_erf_grad", y, 0);
    ops->add(y, run->in[0], run->in[1], N);
    ops->scale(y, 0.3, N);
    ops->bias(y, run->in[2], ROWS, COLS);
    put(run, "add, scale, bias", y, 0);
    memset(run->real[0], 0, sizeof run->real[0]);
    ops->bias_grad(run->real[0], run->in[0], ROWS, COLS);
    put(run, "bias_grad", run->real[0], 1);
}

static void run_rows(struct run *run)
{
    const struct hkt__math_ops *ops = run->ops;
    void *y = output();
    struct hkt__norm norm = { .rows = ROWS, .cols = COLS, .eps = 1e-5, .x = run->in[0], .gamma = run->in[1], .beta = run->in[2],
                              .y = y, .mean = run->real[0], .rstd = run->real[1], .dy = run->in[3], .dx = y,
                              .dgamma = run->real[2], .dbeta = run->real[3] };

    memset(run->real, 0, sizeof run->real);
    for (int is_rms = 0; is_rms < 2; is_rms++) {
        ops->norm(&norm);
        put(run, "norm", y, 0);
        ops->norm_grad(&norm);
        put(run, "norm dx", y, 0);
        put(run, "norm dgamma", run->real[2], 1);
        norm.mean = norm.dbeta = NULL;
        norm.beta = NULL;
    }
    ops->softmax(y, run->in[0], ROWS, COLS);
    put(run, "softmax", y, 0);
    ops->softmax_grad(y, run->in[0], run->in[4], ROWS, COLS);
    put(run, "softmax_grad", y, 0);

    const int32_t targets[ROWS] = { 3, -1, 76, 100, 0 };
    struct hkt__cross_entropy ce = { .rows = ROWS, .cols = COLS, .logits = run->in[0], .targets = targets,
                                     .row_max = run->real[0], .sum_exp = run->real[1], .target_logit = run->real[2],
                                     .loss = run->real[3], .dlogits = y, .scale = 0.125 };

    memset(run->real, 0, sizeof run->real);
    ops->cross_entropy_max(&ce);
    ops->cross_entropy_sums(&ce);
    ops->cross_entropy_loss(&ce);
    put(run, "loss", run->real[3], 1);
    ops->cross_entropy_grad(&ce);
    put(run, "dlogits", y, 0);
}

static void run_updates(struct run *run)
{
    const struct hkt__math_ops *ops = run->ops, *real = hkt__math_ops_of(ops->real);
    struct hkt__optimizer_range range = { .elems = N, .param = run->in[0], .grad = run->real[0], .moment1 = run->real[1],
                                          .moment2 = run->real[2], .grad_scale = 0.7 };

    memset(run->real, 0, sizeof run->real);
    real->from_f64(run->real[0], input[5], N);
    if (ops->store != ops->real) {
        range.master = run->real[3];
        real->from_f64(range.master, input[0], N);
    }
    ops->sgd(&range, &(struct hkt__sgd){ .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01 });
    ops->adamw(&range, &(struct hkt__adamw){ .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1, .step = 3 });
    put(run, "adamw", run->in[0], 0);
    put(run, "moment1", run->real[1], 1);
    put(run, "moment2", run->real[2], 1);
}

static int run_all(struct run *run, const struct hkt__math_ops *ops)
{
    memset(run, 0, sizeof *run);
    if (ops == NULL)
        return 0;
    run->ops = ops;
    for (int i = 0; i < 6; i++)
        ops->from_f64(run->in[i], input[i], N);
    run_pointwise(run);
    run_rows(run);
    run_updates(run);
    return 1;
}

static struct run base, other;

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++)
        numbers(input[i], N);
    for (int i = 0; i < N; i++) {
        input[0][i] *= 5;
        input[4][i] = fabs(input[4][i]) / COLS;
    }
    return 0;
}

static void all_sets_give_the_same_bits(void **state)
{
    static const enum hkt_dtype types[] = { HKT_F32, HKT_F64, HKT_BF16 };
    static const char *const sets[] = { "avx2", "avx512" };
    int compared = 0;

    (void)state;
    for (int t = 0; t < 3; t++) {
        assert_true(run_all(&base, hkt__math_ops_in(types[t], "base")));
        for (int s = 0; s < 2; s++) {
            if (!run_all(&other, hkt__math_ops_in(types[t], sets[s])))
                continue;
            for (int i = 0; i < base.count; i++)
                if (memcmp(base.out[i], other.out[i], sizeof base.out[i]) != 0)
                    fail_msg("%s in %s: %s differs from base", base.name[i], hkt_dtype_name(types[t]), sets[s]);
            compared++;
        }
    }
    print_message("compared %d times with base\n", compared);
}

/* f32: 24 bits, sums of 77 and a few operations after each other: 100 roundings of the largest. bf16: inputs and outputs are
 * rounded to 8 bits, so the reference gets rounded inputs, and one rounding of the output (2^-9) is allowed beside f32's. */
static void narrow_types_agree_with_f64(void **state)
{
    static const enum hkt_dtype types[] = { HKT_F32, HKT_BF16 };
    static const double bounds[] = { 100 * 0x1p-24, 0x1p-8 };
    static double keep[6][N];

    (void)state;
    memcpy(keep, input, sizeof keep);
    for (int t = 0; t < 2; t++) {
        const struct hkt__math_ops *ops = hkt__math_ops_of(types[t]);
        static char narrow[N * 8];

        for (int i = 0; i < 6; i++) {
            ops->from_f64(narrow, keep[i], N);
            ops->to_f64(input[i], narrow, N);
        }
        assert_true(run_all(&base, hkt__math_ops_of(HKT_F64)));
        assert_true(run_all(&other, ops));
        assert_int_equal(base.count, other.count);
        for (int i = 0; i < base.count; i++) {
            /* Three roundings where y goes through memory three times. */
            double bound = strchr(base.name[i], ',') != NULL ? 3 * bounds[t] : bounds[t];

            assert_near(base.name[i], other.out[i], base.out[i], N, bound);
        }
    }
    memcpy(input, keep, sizeof input);
}

/* exp as cross_entropy_sums of one column, over all arguments that give a normal number. */
static void exp_is_accurate(void **state)
{
    const struct hkt__math_ops *f32 = hkt__math_ops_of(HKT_F32), *f64 = hkt__math_ops_of(HKT_F64);
    const int32_t target = 0;
    double worst32 = 0, worst64 = 0;

    (void)state;
    for (int i = 0; i < 200001; i++) {
        double x = -700 + i * (1400.0 / 200000), zero = 0, got, unused;
        float x32 = (float)(x / 8.2), zero32 = 0, got32, unused32;
        struct hkt__cross_entropy ce = { .rows = 1, .cols = 1, .logits = &x, .targets = &target, .row_max = &zero,
                                         .sum_exp = &got, .target_logit = &unused };

        f64->cross_entropy_sums(&ce);
        ce = (struct hkt__cross_entropy){ .rows = 1, .cols = 1, .logits = &x32, .targets = &target, .row_max = &zero32,
                                          .sum_exp = &got32, .target_logit = &unused32 };
        f32->cross_entropy_sums(&ce);
        worst64 = fmax(worst64, fabs(got / exp(x) - 1) * 0x1p53);
        worst32 = fmax(worst32, fabs((double)got32 / exp((double)x32) - 1) * 0x1p24);
    }
    print_message("exp: off by at most %.2f (f64) and %.2f (f32) half units in the last place\n", worst64, worst32);
    assert_true(worst64 < 4 && worst32 < 4);
}

/* Far below, at infinity, at NaN; a softmax row with -inf in it. */
static void exp_at_its_ends(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F32);
    float x[20], y[20];

    (void)state;
    for (int i = 0; i < 20; i++)
        x[i] = i == 7 ? -INFINITY : i == 3 ? -1000 : 0;
    ops->softmax(y, x, 1, 20);
    assert_true(y[7] == 0 && y[3] == 0 && fabsf(y[0] - 1.0f / 18) < 1e-7f);
    x[5] = NAN;
    ops->softmax(y, x, 1, 20);
    assert_true(isnan(y[0]));
    x[0] = -200;
    x[1] = 200;
    ops->gelu(y, x, 2);
    assert_true(y[0] == 0 && y[1] == 200);
}

/* To nearest, ties to even; infinities and NaN survive; 1 + 2^-9 is 1, as the need for master weights says. */
static void bf16_rounding(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_BF16);
    const double x[] = { 1 + 0x1p-9, 1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-8 + 0x1p-20, INFINITY, -INFINITY, 3.5e38, -0.0 };
    const double want[] = { 1, 1, 1 + 0x1p-6, 1 + 0x1p-7, INFINITY, -INFINITY, INFINITY, -0.0 };
    uint16_t stored[8];
    double back[8], nan = NAN;

    (void)state;
    ops->from_f64(stored, x, 8);
    ops->to_f64(back, stored, 8);
    assert_memory_equal(back, want, sizeof want);
    ops->from_f64(stored, &nan, 1);
    ops->to_f64(back, stored, 1);
    assert_true(isnan(back[0]));
}

/* Attention in the narrow types against f64 on the same (rounded) inputs. */
static void attention_in_narrow_types(void **state)
{
    static const enum hkt_dtype types[] = { HKT_F64, HKT_F32, HKT_BF16 };
    enum { S = 70, H = 4, KV = 2, D = 8, QE = S * H * D, KE = S * KV * D };
    static double q[QE], k[KE], v[KE], dy[QE], out[3][4][QE];
    static char in[5][QE * 8], lse[H * S * 8], grad[3][QE * 8];
    static const double bounds[] = { 0, 300 * 0x1p-24, 4 * 0x1p-8 };

    (void)state;
    double *all[] = { q, k, v, dy };
    const int sizes[] = { QE, KE, KE, QE };
    const struct hkt__math_ops *narrowest = hkt__math_ops_of(HKT_BF16);

    for (int i = 0; i < 4; i++) {
        numbers(all[i], sizes[i]);
        narrowest->from_f64(in[i], all[i], sizes[i]);
        narrowest->to_f64(all[i], in[i], sizes[i]);
    }
    for (int t = 0; t < 3; t++) {
        struct hkt__memory memory;
        struct hkt__math math;

        hkt__memory_init(&memory, 0);
        assert_int_equal(hkt__math_init(&math, types[t], &memory), HKT_OK);
        for (int i = 0; i < 4; i++)
            math.ops->from_f64(in[i], all[i], sizes[i]);
        struct hkt__attention a = { .batch = 1, .queries = S, .keys = S, .heads = H, .kv_heads = KV, .head_dim = D,
                                    .scale = 0.5, .q = in[0], .k = in[1], .v = in[2], .ld_q = H * D, .ld_k = KV * D,
                                    .ld_v = KV * D, .ld_y = H * D, .y = in[4], .lse = lse, .dy = in[3], .dq = grad[0],
                                    .dk = grad[1], .dv = grad[2] };

        assert_int_equal(math.ops->attention(&math, &a), HKT_OK);
        assert_int_equal(math.ops->attention_grad(&math, &a), HKT_OK);
        math.ops->to_f64(out[t][0], in[4], QE);
        for (int i = 0; i < 3; i++)
            math.ops->to_f64(out[t][i + 1], grad[i], i == 0 ? QE : KE);
        for (int i = 0; i < 4 && t > 0; i++)
            assert_near("attention", out[t][i], out[0][i], i < 2 ? QE : KE, bounds[t]);
        hkt__math_fini(&math);
        assert_int_equal(hkt__memory_fini(&memory), HKT_OK);
    }
}

/* Ranks may be threads of one process: each has its own account and scratch, and nothing else is shared. */
enum { THREAD_S = 96, THREAD_E = THREAD_S * 2 * 16 };

struct rank {
    pthread_t thread;
    enum hkt_status status;
    float y[THREAD_E], dq[THREAD_E], dk[THREAD_E], dv[THREAD_E], lse[2 * THREAD_S], weight_grad[32 * 32];
};

static float thread_in[4][THREAD_E];

static void *one_rank(void *arg)
{
    struct rank *rank = arg;
    struct hkt__memory memory;
    struct hkt__math math;
    struct hkt__attention a = { .batch = 1, .queries = THREAD_S, .keys = THREAD_S, .heads = 2, .kv_heads = 2, .head_dim = 16,
                                .scale = 0.25, .q = thread_in[0], .k = thread_in[1], .v = thread_in[2], .ld_q = 32, .ld_k = 32,
                                .ld_v = 32, .ld_y = 32, .y = rank->y, .lse = rank->lse, .dy = thread_in[3], .dq = rank->dq,
                                .dk = rank->dk, .dv = rank->dv };
    struct hkt__linear linear = { .rows = THREAD_S, .in = 32, .out = 32, .x = thread_in[0], .dy = thread_in[1],
                                  .dweight = rank->weight_grad };

    hkt__memory_init(&memory, 0);
    rank->status = hkt__math_init(&math, HKT_F32, &memory);
    for (int i = 0; i < 20 && rank->status == HKT_OK; i++) {
        memset(rank->weight_grad, 0, sizeof rank->weight_grad);
        rank->status = math.ops->attention(&math, &a);
        if (rank->status == HKT_OK)
            rank->status = math.ops->attention_grad(&math, &a);
        if (rank->status == HKT_OK)
            rank->status = hkt__linear_weight_grad(&math, &linear);
    }
    hkt__math_fini(&math);
    if (rank->status == HKT_OK)
        rank->status = hkt__memory_fini(&memory);
    return NULL;
}

static void ranks_may_be_threads(void **state)
{
    enum { RANKS = 4 };
    static struct rank ranks[RANKS + 1];

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < THREAD_E; k++)
            thread_in[i][k] = (float)number();
    one_rank(&ranks[RANKS]); /* alone */
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, one_rank, &ranks[i]), 0);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(pthread_join(ranks[i].thread, NULL), 0);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, HKT_OK);
        assert_memory_equal(ranks[i].y, ranks[RANKS].y, sizeof(struct rank) - offsetof(struct rank, y));
    }
}

static void other_types_are_refused(void **state)
{
    struct hkt__memory memory;
    struct hkt__math math;

    (void)state;
    hkt__memory_init(&memory, 0);
    assert_int_equal(hkt__math_init(&math, HKT_INT32, &memory), HKT_ERR_INVALID);
    assert_null(hkt__math_ops_in(HKT_F32, "avx1024"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(all_sets_give_the_same_bits, setup),
        cmocka_unit_test_setup(narrow_types_agree_with_f64, setup),
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(exp_at_its_ends),
        cmocka_unit_test(bf16_rounding),
        cmocka_unit_test(attention_in_narrow_types),
        cmocka_unit_test(ranks_may_be_threads),
        cmocka_unit_test(other_types_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
