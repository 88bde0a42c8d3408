/* What could break: a layout changes the mathematics. A bias is added by each rank, a gradient lost or counted twice where an
 * embedding is tied, a head's key on several ranks, norms see only their own rows, a stage trains on the last micro-batch
 * only, a softmax knows only its own words. Each case is compared with one rank, all gradients and the loss, in f64: to
 * 1e-11 where sums are split, to the last bit where they are not. Shapes are odd: 101 words, a width of 50, micro-batches
 * with different numbers of tokens that count, one with none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gpt_rig.h"

enum { KEPT = 8 };
static struct rig_result *kept[KEPT], *reference, *result, *narrow;

/* Sets the reference: what one rank makes of it. Many layouts are compared with the same, so the last ones are kept. */
static void one_rank(const struct hkt__gpt_config *config, int micros)
{
    static struct rig_case made[KEPT];
    static int oldest;
    struct rig_case plain;

    memset(&plain, 0, sizeof plain); /* padding is compared, too */
    plain.config = *config;
    plain.schedule = HKT_PIPE_GPIPE;
    plain.micros = micros;
    plain.config.chunks = 0;
    plain.config.stage_first = NULL;
    plain.config.sequence_parallel = 0;
    plain.config.recompute = HKT_RECOMPUTE_NONE;
    for (int i = 0; i < KEPT; i++)
        if (memcmp(&made[i], &plain, sizeof plain) == 0) {
            reference = kept[i];
            return;
        }
    reference = kept[oldest];
    made[oldest] = plain;
    rig_run(&plain, 1, reference);
    oldest = (oldest + 1) % KEPT;
}

static void against_one_rank(const struct rig_case *run, int nranks, int dp, double bound)
{
    char what[200];

    snprintf(what, sizeof what, "%s, sp %d, %s, %d micro-batches, recompute %d, %s", run->layout,
             run->config.sequence_parallel, hkt_pipe_kind_name(run->schedule), run->micros, (int)run->config.recompute,
             run->config.shape.experts > 0 ? "experts" : run->config.shape.gated ? "gated" : "plain");
    one_rank(&run->config, run->micros * dp);
    rig_run(run, nranks, result);
    rig_compare(what, result, reference, bound);
}

static void tensor_parallel(void **state)
{
    (void)state;
    for (int tp = 2; tp <= 4; tp *= 2)
        for (int sp = 0; sp <= 1; sp++)
            for (int modern = 0; modern <= 1; modern++) {
                struct rig_case run = { .layout = tp == 2 ? "tp:2" : "tp:4",
                                        .config = modern ? tiny_modern() : tiny(),
                                        .schedule = HKT_PIPE_GPIPE,
                                        .micros = 2 };

                run.config.sequence_parallel = sp;
                run.config.dropout = run.config.attention_dropout = 0.1;
                against_one_rank(&run, tp, 1, 1e-11);
            }
}

static void pipelines(void **state)
{
    static const char *const layouts[] = { "", "tp:1", "pp:2", "pp:3", "pp:4" };

    (void)state;
    for (int pp = 1; pp <= 4; pp++)
        for (int kind = HKT_PIPE_GPIPE; kind < HKT_PIPE_KIND_COUNT; kind++)
            for (int tied = 0; tied <= 1; tied++) {
                struct rig_case run = { .layout = layouts[pp],
                                        .config = tiny(),
                                        .schedule = (enum hkt_pipe_kind)kind,
                                        .micros = 5 };

                run.config.shape.tied = tied;
                run.config.dropout = run.config.attention_dropout = 0.1;
                run.config.chunks = kind == HKT_PIPE_INTERLEAVED ? 2 : 1;
                if (pp * run.config.chunks > run.config.shape.layers)
                    continue;
                /* Untied, nothing is added up in another order. */
                against_one_rank(&run, pp, 1, tied && pp > 1 ? 1e-11 : 0);
            }
}

static struct hkt__gpt_config model(int which)
{
    return which == 0 ? tiny() : which == 1 ? tiny_modern() : tiny_experts();
}

static void describe(const int sizes[4], char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "tp:%d dp:%d=ep:%d*edp:%d pp:%d", sizes[1], sizes[0], sizes[3], sizes[0] / sizes[3],
             sizes[2]);
}

/* dp, tp, pp, ep; every schedule, the sequence cut or not, in turn the kinds of recompute and of model. */
static void run_layout(const int sizes[4])
{
    static int turn;
    char layout[64];

    describe(sizes, layout, sizeof layout);
    for (int kind = HKT_PIPE_GPIPE; kind < HKT_PIPE_KIND_COUNT; kind++)
        for (int sp = 0; sp <= (sizes[1] > 1); sp++) {
            struct rig_case run = { .layout = layout,
                                    .config = model(sizes[3] > 1 ? 2 : turn / 2 % 3),
                                    .schedule = (enum hkt_pipe_kind)kind,
                                    .micros = sizes[2] > 1 ? 3 : 2 };

            run.config.chunks = kind == HKT_PIPE_INTERLEAVED ? 2 : 1;
            if (sizes[2] * run.config.chunks > run.config.shape.layers || (++turn % 41 != 0 && ranks_small()))
                continue;
            run.config.sequence_parallel = sp;
            run.config.dropout = run.config.attention_dropout = 0.2;
            run.config.recompute = (enum hkt_recompute)(turn % 3);
            against_one_rank(&run, sizes[0] * sizes[1] * sizes[2], sizes[0], 1e-11);
        }
}

static void all_layouts_of_few_ranks(void **state)
{
    (void)state;
    for (int dp = 1; dp <= 4; dp++)
        for (int tp = 1; dp * tp <= 4; tp++)
            for (int pp = 1; dp * tp * pp <= 4; pp++)
                for (int ep = 1; ep <= dp; ep++)
                    if (tp != 3 && dp % ep == 0 && 4 % ep == 0 && dp * tp * pp > 1)
                        run_layout((const int[4]){ dp, tp, pp, ep });
}

/* Six and eight ranks: together, each pair of sizes. */
static void layouts_of_many_ranks(void **state)
{
    static const int layouts[][4] = {
        { 3, 2, 1, 1 }, { 1, 2, 3, 1 }, { 3, 1, 2, 1 }, { 2, 2, 2, 2 }, { 2, 2, 2, 1 },
        { 1, 4, 2, 1 }, { 4, 2, 1, 4 }, { 2, 1, 4, 2 }, { 4, 1, 2, 2 }, { 2, 4, 1, 2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        run_layout(layouts[i]);
}

/* Fewer words than ranks; stages by hand; one layer a stage; axes in another order. */
static void odd_shapes(void **state)
{
    static const int by_hand[] = { 0, 1, 4 };
    struct rig_case run = { .layout = "tp:4", .config = tiny(), .schedule = HKT_PIPE_GPIPE, .micros = 2 };

    (void)state;
    run.config.shape.vocab = 3;
    against_one_rank(&run, 4, 1, 1e-11);
    run.config = tiny_modern();
    run.config.shape.vocab = 3;
    run.config.sequence_parallel = 1;
    against_one_rank(&run, 4, 1, 1e-11);
    run.layout = "pp:2 tp:2";
    run.config = tiny();
    run.config.stage_first = by_hand;
    run.schedule = HKT_PIPE_ZB_H1;
    against_one_rank(&run, 4, 1, 1e-11);
    run.layout = "pp:4 dp:2";
    run.config = tiny_modern();
    run.schedule = HKT_PIPE_1F1B;
    run.micros = 1;
    against_one_rank(&run, 8, 2, 1e-11);
}

static void experts(void **state)
{
    static const struct {
        const char *layout;
        int nranks, dp, sp;
        enum hkt_pipe_kind kind;
    } cases[] = {
        { "dp:2=ep:2*edp:1", 2, 2, 0, HKT_PIPE_GPIPE },
        { "tp:2", 2, 1, 0, HKT_PIPE_GPIPE },
        { "tp:2", 2, 1, 1, HKT_PIPE_GPIPE },
        { "dp:4=ep:2*edp:2", 4, 4, 0, HKT_PIPE_GPIPE },
        { "dp:4=ep:4*edp:1", 4, 4, 0, HKT_PIPE_GPIPE },
        { "tp:2 dp:2=ep:2*edp:1", 4, 2, 1, HKT_PIPE_GPIPE },
        { "dp:2=ep:2*edp:1 pp:2", 4, 2, 0, HKT_PIPE_ZB_H1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig_case run = { .layout = cases[i].layout,
                                .config = tiny_experts(),
                                .schedule = cases[i].kind,
                                .micros = 2 };

        run.config.sequence_parallel = cases[i].sp;
        run.config.drop = i % 2 == 0 ? HKT_MOE_DROP_LATE : HKT_MOE_DROP_LIGHT;
        against_one_rank(&run, cases[i].nranks, cases[i].dp, 1e-11);
        assert_true(result->dropped > 0 && result->dropped < result->routed / 2);
    }
}

/* Few tokens and many experts: some get none, on some ranks none of theirs does. */
static void idle_experts(void **state)
{
    static const char *const layouts[] = { "dp:2=ep:2*edp:1", "tp:2 dp:2=ep:2*edp:1", "dp:4=ep:4*edp:1" };
    int idle = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rig_case run = { .layout = layouts[i], .config = tiny_experts(), .schedule = HKT_PIPE_GPIPE, .micros = 1 };

        run.config.shape.experts = 8;
        run.config.shape.top_k = 1;
        run.config.seq = 2;
        run.config.micro_batch = 1;
        run.config.renormalise = 0;
        run.config.capacity_factor = 0;
        against_one_rank(&run, i == 0 ? 2 : 4, i == 2 ? 4 : 2, 1e-11);
    }
    for (int i = 0; i < result->nparams; i++)
        idle += strstr(result->tensor[i].name, "expert") != NULL && rig_largest(result, i) == 0;
    assert_true(idle > 0);
}

static double gradient_error(const struct rig_result *got)
{
    double error = 0, norm = 0;

    for (int64_t e = 0; e < reference->elems; e++) {
        const double d = got->grad[e] - reference->grad[e];

        error += d * d;
        norm += reference->grad[e] * reference->grad[e];
    }
    return sqrt(error / norm);
}

/* Against one rank in f64: f32 within its rounding; bf16 hardly further than one rank in bf16 is. */
static void narrow_types(void **state)
{
    static const struct {
        const char *layout;
        int nranks, dp, sp;
    } cases[] = { { "tp:2", 2, 1, 1 }, { "tp:4", 4, 1, 0 }, { "dp:2 pp:2", 4, 2, 0 }, { "tp:2 dp:2", 4, 2, 1 } };
    const enum hkt_dtype types[] = { HKT_F32, HKT_BF16 };

    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        const size_t c = i / 2;
        struct rig_case run = { .layout = cases[c].layout, .config = i / 2 % 2 == 0 ? tiny() : tiny_modern(),
                                .schedule = HKT_PIPE_1F1B, .micros = 2 };
        struct rig_case one;

        one_rank(&run.config, 2 * cases[c].dp);
        run.config.dtype = types[i % 2];
        one = (struct rig_case){ .config = run.config, .schedule = HKT_PIPE_GPIPE, .micros = 2 * cases[c].dp };
        rig_run(&one, 1, narrow);
        run.config.sequence_parallel = cases[c].sp;
        rig_run(&run, cases[c].nranks, result);
        const double alone = gradient_error(narrow), here = gradient_error(result);
        const double bound = types[i % 2] == HKT_F32 ? 1e-4 : 1.5 * alone, loss = result->loss / reference->loss - 1;

        if (!(here <= bound) || !(fabs(loss) <= (types[i % 2] == HKT_F32 ? 1e-5 : 2e-2)))
            fail_msg("%s in %s: gradients are off by %.3g, on one rank by %.3g; the loss by %.3g", cases[c].layout,
                     hkt_dtype_name(types[i % 2]), here, alone, loss);
    }
}

static int setup(void **state)
{
    (void)state;
    bool ok = true;

    for (int i = 0; i < KEPT; i++)
        ok &= (kept[i] = rig_alloc()) != NULL;
    narrow = rig_alloc();
    result = rig_alloc();
    return !ok || result == NULL || narrow == NULL;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < KEPT; i++)
        rig_free(kept[i]);
    rig_free(result);
    rig_free(narrow);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(pipelines),
        cmocka_unit_test(all_layouts_of_few_ranks),
        cmocka_unit_test(layouts_of_many_ranks),
        cmocka_unit_test(odd_shapes),
        cmocka_unit_test(experts),
        cmocka_unit_test(idle_experts),
        cmocka_unit_test(narrow_types),
    };

    return cmocka_run_group_tests_name("gpt_ranks", tests, setup, teardown);
}
