/* What could break: a transposition, a stride, a tail of a tile or block, alpha and beta, an empty dimension, in the library's
 * product and in the project's own; the panels of bf16. Data are small integers, so every order of the sum gives the same bits
 * and equality is demanded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "numbers.h"
#include "parallel/gemm.h"
#include "parallel/isa.h"

#define MOST (700 * 700)

static double *a, *b, *c, *want;
static char *stored[3];
static void *pack;
static struct hkt__memory memory;

static int setup(void **state)
{
    (void)state;
    a = calloc(MOST, sizeof *a);
    b = calloc(MOST, sizeof *b);
    c = calloc(MOST, sizeof *c);
    want = calloc(MOST, sizeof *want);
    for (int i = 0; i < 3; i++)
        assert_non_null(stored[i] = calloc(MOST, sizeof(double)));
    assert_true(a && b && c && want);
    hkt__memory_init(&memory, 0);
    hkt__gemm_choose(HKT__GEMM_OWN);
    assert_int_equal(hkt__memory_alloc(&memory, HKT__MEMORY_BUFFER, hkt__gemm_pack_bytes(8), &pack), HKT_OK);
    hkt__gemm_choose(HKT__GEMM_BY_RULE);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hkt__memory_free(&memory, pack);
    free(a);
    free(b);
    free(c);
    free(want);
    for (int i = 0; i < 3; i++)
        free(stored[i]);
    return hkt__memory_fini(&memory) == HKT_OK ? 0 : -1;
}

static void integers(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = floor(number() * 4);
}

static void formula(const struct hkt__gemm *g)
{
    memcpy(want, c, MOST * sizeof *want);
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;

            for (int64_t k = 0; k < g->k; k++)
                sum += a[g->trans_a ? k * g->lda + i : i * g->lda + k] * b[g->trans_b ? j * g->ldb + k : k * g->ldb + j];
            want[i * g->ldc + j] = g->alpha * sum + (g->beta == 0 ? 0 : g->beta * c[i * g->ldc + j]);
        }
}

/* One shape in one type; C in the store type or in the real type. */
static void check(struct hkt__math *math, struct hkt__gemm g, int is_real)
{
    const struct hkt__math_ops *ops = math->ops, *out = is_real ? hkt__math_ops_of(ops->real) : ops;
    int64_t elems = g.m * g.ldc;

    integers(a, (g.trans_a ? g.k : g.m) * g.lda);
    integers(b, (g.trans_b ? g.n : g.k) * g.ldb);
    integers(c, elems);
    formula(&g);
    ops->from_f64(stored[0], a, (g.trans_a ? g.k : g.m) * g.lda);
    ops->from_f64(stored[1], b, (g.trans_b ? g.n : g.k) * g.ldb);
    if (g.beta == 0)
        for (int64_t i = 0; i < g.m; i++)
            for (int64_t j = 0; j < g.n; j++)
                c[i * g.ldc + j] = NAN; /* must not be read */
    out->from_f64(stored[2], c, elems);
    g.a = stored[0];
    g.b = stored[1];
    g.c = stored[2];
    assert_int_equal(is_real ? hkt__gemm_to_real(math, &g) : hkt__gemm(math, &g), HKT_OK);
    out->to_f64(c, stored[2], elems);
    for (int64_t i = 0; i < elems; i++) {
        double expected = want[i];

        if (out->store == HKT_BF16) { /* exact sums, rounded once */
            uint16_t narrow[1];

            out->from_f64(narrow, &expected, 1);
            out->to_f64(&expected, narrow, 1);
        }
        if (!(c[i] == expected))
            fail_msg("%s m=%lld n=%lld k=%lld trans %d %d: C[%lld] is %g, expected %g", hkt_dtype_name(ops->store),
                     (long long)g.m, (long long)g.n, (long long)g.k, g.trans_a, g.trans_b, (long long)i, c[i], expected);
    }
}

static void shapes(struct hkt__math *math)
{
    static const int64_t rows[][3] = { { 1, 1, 1 }, { 5, 7, 3 }, { 64, 64, 64 }, { 13, 33, 17 }, { 1, 100, 50 }, { 100, 1, 9 },
                                       { 97, 65, 257 }, { 12, 520, 5 }, { 200, 33, 20 }, { 2, 40, 150 }, { 30, 70, 800 }, { 8, 800, 9 }, { 4, 4, 0 }, { 0, 3, 3 }, { 3, 0, 3 } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int trans = 0; trans < 4; trans++) {
            struct hkt__gemm g = { .trans_a = trans & 1, .trans_b = trans >> 1, .m = rows[i][0], .n = rows[i][1],
                                   .k = rows[i][2], .alpha = trans == 2 ? 2 : 1, .beta = trans % 3 };

            g.lda = (g.trans_a ? g.m : g.k) + 3;
            g.ldb = (g.trans_b ? g.k : g.n) + (trans & 1 ? 0 : 2);
            g.ldc = g.n + 1;
            check(math, g, 0);
            check(math, g, 1);
        }
}

static void all_types(enum hkt__gemm_choice choice)
{
    static const enum hkt_dtype types[] = { HKT_F32, HKT_F64, HKT_BF16 };

    hkt__gemm_choose(choice);
    for (int t = 0; t < 3; t++) {
        struct hkt__math math;

        assert_int_equal(hkt__math_init(&math, types[t], &memory), HKT_OK);
        shapes(&math);
        hkt__math_fini(&math);
    }
    hkt__gemm_choose(HKT__GEMM_BY_RULE);
}

static void library_products_equal_formula(void **state)
{
    (void)state;
    all_types(HKT__GEMM_LIBRARY);
}

static void own_products_equal_formula(void **state)
{
    (void)state;
    all_types(HKT__GEMM_OWN);
}

/* Every instruction set of this CPU, on a shape of several blocks with tails. */
static void own_products_in_every_set(void **state)
{
    static const struct hkt__gemm_own *const owns[] = {
#define ROW(isa) &hkt__gemm_own_##isa,
        HKT__ISA_TABLE(ROW)
#undef ROW
    };
    struct hkt__gemm g = { .trans_b = 1, .m = 131, .n = 600, .k = 300, .alpha = 1, .lda = 300, .ldb = 300, .ldc = 600 };

    (void)state;
    integers(a, g.m * g.lda);
    integers(b, g.n * g.ldb);
    formula(&g);
    for (int i = 0; i < HKT__ISA_COUNT; i++) {
        if (!hkt__isa_is_here((enum hkt__isa)i))
            continue;
        g.a = a;
        g.b = b;
        g.c = c;
        owns[i]->f64(&g, pack);
        assert_memory_equal(c, want, (size_t)(g.m * g.ldc) * sizeof *c);
    }
}

static void own_product_is_accurate(void **state)
{
    struct hkt__gemm g = { .m = 70, .n = 90, .k = 600, .alpha = 1, .lda = 600, .ldb = 90, .ldc = 90 };

    (void)state;
    numbers(a, g.m * g.lda);
    numbers(b, g.k * g.ldb);
    formula(&g);
    g.a = a;
    g.b = b;
    g.c = c;
    hkt__gemm_choose(HKT__GEMM_OWN);
    hkt__gemm_f64(&g, pack);
    hkt__gemm_choose(HKT__GEMM_BY_RULE);
    assert_near("C", c, want, g.m * g.ldc, 600 * 0x1p-53);
}

static void same_bits_every_time(void **state)
{
    struct hkt__gemm g = { .trans_b = 1, .m = 200, .n = 150, .k = 333, .alpha = 1, .lda = 333, .ldb = 333, .ldc = 150 };

    (void)state;
    numbers(a, g.m * g.lda);
    numbers(b, g.n * g.ldb);
    g.a = a;
    g.b = b;
    for (int i = 0; i < 4; i++) {
        g.c = i == 0 ? want : c;
        hkt__gemm_f64(&g, pack);
        if (i > 0)
            assert_memory_equal(c, want, (size_t)(g.m * g.ldc) * sizeof *c);
    }
}

static void bf16_without_memory_fails(void **state)
{
    struct hkt__math math;
    const struct hkt__gemm g = { .m = 3, .n = 3, .k = 3, .alpha = 1, .a = a, .b = b, .c = c, .lda = 3, .ldb = 3, .ldc = 3 };

    (void)state;
    assert_int_equal(hkt__math_init(&math, HKT_BF16, &memory), HKT_OK);
    memory.fail_at = 1;
    assert_int_equal(hkt__gemm(&math, &g), HKT_ERR_NOMEM);
    assert_int_equal(hkt__gemm(&math, &g), HKT_OK);
    hkt__math_fini(&math);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(library_products_equal_formula),
        CASE(own_products_equal_formula),
        CASE(own_products_in_every_set),
        CASE(own_product_is_accurate),
        CASE(same_bits_every_time),
        CASE(bf16_without_memory_fails),
    };

    hkt__gemm_threads_set(1);
    print_message("products by: %s\n", hkt__gemm_name());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
