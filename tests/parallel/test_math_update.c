/* What could break: an optimizer's formula or its order; bits that depend on how a range is cut; a master that is not kept;
 * an exact sum that is not exact, not order-free, or overflows its digits; a loss of bf16 updates that the master must catch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "numbers.h"
#include "parallel/math_ops.h"

#define N 103

static double p[N], g[N], m[N], v[N], want_p[N], want_m[N], want_v[N];

static int setup(void **state)
{
    (void)state;
    numbers(p, N);
    numbers(g, N);
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    memcpy(want_p, p, sizeof p);
    memset(want_m, 0, sizeof m);
    memset(want_v, 0, sizeof v);
    return 0;
}

/* As torch.optim.AdamW's loop over single tensors is documented, step by step. */
static void adamw_equals_formula(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F64);
    struct hkt__adamw adamw = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1 };
    const struct hkt__optimizer_range range = { .elems = N, .param = p, .grad = g, .moment1 = m, .moment2 = v, .grad_scale = 0.5 };

    (void)state;
    for (adamw.step = 1; adamw.step <= 5; adamw.step++) {
        numbers(g, N);
        ops->adamw(&range, &adamw);
        for (int i = 0; i < N; i++) {
            double grad = g[i] * 0.5;

            want_p[i] -= adamw.lr * adamw.weight_decay * want_p[i];
            want_m[i] = 0.9 * want_m[i] + (1 - 0.9) * grad;
            want_v[i] = 0.999 * want_v[i] + (1 - 0.999) * grad * grad;
            double m_hat = want_m[i] / (1 - pow(0.9, (double)adamw.step)), v_hat = want_v[i] / (1 - pow(0.999, (double)adamw.step));

            want_p[i] -= adamw.lr * m_hat / (sqrt(v_hat) + adamw.eps);
        }
        assert_near("p", p, want_p, N, 1e-14);
        assert_near("m", m, want_m, N, 1e-14);
        assert_near("v", v, want_v, N, 1e-14);
    }
}

static void sgd_equals_formula(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F64);
    struct hkt__optimizer_range range = { .elems = N, .param = p, .grad = g, .moment1 = m, .grad_scale = 2 };

    (void)state;
    for (int step = 0; step < 6; step++) {
        struct hkt__sgd sgd = { .lr = 0.1, .momentum = step < 3 ? 0 : 0.9, .weight_decay = 0.01 };

        range.moment1 = step < 3 ? NULL : m;
        numbers(g, N);
        ops->sgd(&range, &sgd);
        for (int i = 0; i < N; i++) {
            double grad = 2 * g[i] + sgd.weight_decay * want_p[i];

            want_m[i] = sgd.momentum * want_m[i] + grad;
            want_p[i] -= sgd.lr * (step < 3 ? grad : want_m[i]);
        }
        if (step == 2)
            memset(want_m, 0, sizeof want_m);
        assert_near("p", p, want_p, N, 1e-14);
    }
}

/* The same range in one piece and in pieces of every length, in f32: the same bits. */
static void cuts_do_not_show(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F32);
    const struct hkt__adamw adamw = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 2 };
    float whole[4][N], part[4][N], start[4][N];

    (void)state;
    for (int a = 0; a < 4; a++)
        for (int i = 0; i < N; i++)
            start[a][i] = (float)fabs(number());
    memcpy(whole, start, sizeof whole);
    ops->adamw(&(struct hkt__optimizer_range){ .elems = N, .param = whole[0], .grad = whole[1], .moment1 = whole[2],
                                               .moment2 = whole[3], .grad_scale = 0.3 },
               &adamw);
    for (int length = 1; length < N; length++) {
        memcpy(part, start, sizeof part);
        for (int i = 0; i < N; i += length) {
            int count = N - i < length ? N - i : length;

            ops->adamw(&(struct hkt__optimizer_range){ .elems = count, .param = part[0] + i, .grad = part[1] + i,
                                                       .moment1 = part[2] + i, .moment2 = part[3] + i, .grad_scale = 0.3 },
                       &adamw);
        }
        assert_memory_equal(part, whole, sizeof part);
    }
}

/* 1000 updates of 2^-9 are lost in bf16, and kept by the master: 1 + 1000 * 2^-9 = 2.953125. */
static void master_keeps_small_updates(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_BF16);
    const double one = 1;
    uint16_t param;
    float master = 1, grad = -0x1p-9f;
    double now;

    (void)state;
    ops->from_f64(&param, &one, 1);
    for (int i = 0; i < 1000; i++)
        ops->sgd(&(struct hkt__optimizer_range){ .elems = 1, .param = &param, .master = &master, .grad = &grad, .grad_scale = 1 },
                 &(struct hkt__sgd){ .lr = 1 });
    assert_true(master == 2.953125f);
    ops->to_f64(&now, &param, 1);
    assert_true(now == 2.953125);
}

/* --- Exact sums ------------------------------------------------------------------------------------------------------------ */

static double exact_of(const double *x, int64_t n)
{
    struct hkt__exact sum;

    hkt__exact_clear(&sum);
    hkt__math_ops_of(HKT_F64)->exact_add(&sum, x, n);
    return hkt__exact_value(&sum);
}

static void exact_sums_cancel(void **state)
{
    const double x[] = { 1e308, 1, 1e-300, -1e308, 5e-324, 1.7e308, -1.7e308, -1 };
    const double y[] = { -3, 1, 0x1p-60, -0x1p-61 };
    const double big[] = { 1.7976931348623157e308, 1.7976931348623157e308, -1.7976931348623157e308 };

    (void)state;
    assert_true(exact_of(x, 8) == 1e-300 + 5e-324);
    assert_true(exact_of(y, 4) == -2 + 0x1p-61);
    assert_true(exact_of(y, 2) == -2);
    assert_true(exact_of(big, 3) == 1.7976931348623157e308);
    assert_true(exact_of(x, 0) == 0);
    assert_true(exact_of((double[]){ 5e-324, 5e-324 }, 2) == 1e-323);
    assert_true(exact_of((double[]){ -0.0 }, 1) == 0);
}

static void exact_sums_see_no_order(void **state)
{
    enum { COUNT = 5000 };
    static float narrow[COUNT];
    const struct hkt__math_ops *f32 = hkt__math_ops_of(HKT_F32);
    struct hkt__exact forward, parts, part;
    long double sum = 0;

    (void)state;
    for (int i = 0; i < COUNT; i++)
        narrow[i] = (float)ldexp(number(), i % 80 - 40);
    hkt__exact_clear(&forward);
    f32->exact_add_squares(&forward, narrow, COUNT);
    hkt__exact_clear(&parts);
    for (int i = COUNT; i > 0; i -= i < 77 ? i : 77) { /* from the end, as other ranks' shards would come */
        int count = i < 77 ? i : 77;

        hkt__exact_clear(&part);
        f32->exact_add_squares(&part, narrow + i - count, count);
        hkt__exact_merge(&parts, &part);
    }
    assert_memory_equal(&forward, &parts, sizeof parts);
    for (int i = 0; i < COUNT; i++)
        sum += (long double)narrow[i] * narrow[i];
    assert_true(fabs(hkt__exact_value(&forward) / (double)sum - 1) < 4e-16);
}

/* Digits of ranks that an all-reduce added without carrying. */
/* Long runs are summed in chunks: the same digits as one by one, wherever exponents lie, and where chunks cannot be cut. */
static void exact_squares_of_chunks_are_exact(void **state)
{
    enum { CHUNKS = 3 * 2048 + 77 };
    static const struct {
        int low, high; /* exponents */
    } ranges[] = { { -3, 3 }, { -30, 0 }, { -149, 0 }, { -149, 127 }, { 60, 127 }, { -149, -120 } };
    const char *const sets[] = { "base", "avx2", "avx512" };
    float *narrow = calloc(CHUNKS, sizeof *narrow);
    double *wide = calloc(CHUNKS, sizeof *wide);

    (void)state;
    assert_true(narrow != NULL && wide != NULL);
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        struct hkt__exact want[2], got;

        hkt__exact_clear(&want[0]);
        hkt__exact_clear(&want[1]);
        for (int i = 0; i < CHUNKS; i++) {
            const double place = ranges[r].low + (ranges[r].high - ranges[r].low) * (number() + 1) / 2;

            narrow[i] = i % 5 == 0 ? 0 : (float)(number() * exp2(place));
            wide[i] = number() * exp2(5 * place);
            hkt__exact_add(&want[0], (double)narrow[i] * (double)narrow[i]);
            hkt__exact_add(&want[1], wide[i] * wide[i]);
        }
        for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++)
            for (int type = 0; type < 2; type++) {
                const struct hkt__math_ops *ops = hkt__math_ops_in(type == 0 ? HKT_F32 : HKT_F64, sets[s]);

                hkt__exact_clear(&got);
                if (ops == NULL)
                    continue;
                ops->exact_add_squares(&got, type == 0 ? (void *)narrow : (void *)wide, CHUNKS);
                assert_memory_equal(&got, &want[type], sizeof got);
            }
    }
    narrow[5000] = -INFINITY;
    narrow[100] = NAN;
    struct hkt__exact odd;

    hkt__exact_clear(&odd);
    hkt__math_ops_of(HKT_F32)->exact_add_squares(&odd, narrow, CHUNKS);
    assert_int_equal(odd.not_finite, 2);
    free(narrow);
    free(wide);
}

static void exact_digits_may_be_added(void **state)
{
    struct hkt__exact all, one;
    int64_t *words = (int64_t *)&all;

    (void)state;
    assert_int_equal(sizeof all, HKT__EXACT_WORDS * sizeof(int64_t));
    hkt__exact_clear(&all);
    hkt__exact_clear(&one);
    hkt__exact_add(&one, -0x1.fffffffffffffp-3);
    for (int rank = 0; rank < 1000; rank++)
        for (int i = 0; i < HKT__EXACT_WORDS; i++)
            words[i] += ((int64_t *)&one)[i];
    assert_true(hkt__exact_value(&all) == -0x1.fffffffffffffp-3 * 1000);
}

static void exact_sums_report_what_is_not_finite(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F32);
    const float x[] = { 1, INFINITY, NAN, -INFINITY, 2 };
    struct hkt__exact sum;

    (void)state;
    hkt__exact_clear(&sum);
    ops->exact_add_squares(&sum, x, 5);
    assert_int_equal(sum.not_finite, 3);
    assert_true(isnan(hkt__exact_value(&sum)));
}

/* The largest f32 squared, often: far above f32, exact here. */
static void exact_squares_do_not_overflow(void **state)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(HKT_F32);
    const float x[] = { 0x1.fffffep127f, 0x1p-149f };
    struct hkt__exact sum;

    (void)state;
    hkt__exact_clear(&sum);
    for (int i = 0; i < 1024; i++)
        ops->exact_add_squares(&sum, x, 2);
    assert_true(hkt__exact_value(&sum) == 1024 * 0x1.fffffcp255 + 1024 * 0x1p208);
    for (int i = 0; i < 1024; i++)
        hkt__exact_put(&sum, -((double)x[0] * (double)x[0]));
    assert_true(hkt__exact_value(&sum) == 1024 * 0x1p-298);
}

#define CASE(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(adamw_equals_formula),
        CASE(sgd_equals_formula),
        CASE(cuts_do_not_show),
        CASE(master_keeps_small_updates),
        CASE(exact_sums_cancel),
        CASE(exact_sums_see_no_order),
        CASE(exact_squares_of_chunks_are_exact),
        CASE(exact_digits_may_be_added),
        CASE(exact_sums_report_what_is_not_finite),
        CASE(exact_squares_do_not_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
