/* What could break: a layout changes the mathematics. A bias is added by each rank, a gradient lost or counted twice where an
 * embedding is tied, a head's key on several ranks, norms see only their own rows, a stage trains on the last micro-batch
 * only, a softmax knows only its own words. Each case is compared with one rank, all gradients and the loss, in f64: to
 * 1e-11 where sums are split, to the last bit where they are not. Shapes are odd: 101 words, a width of 50, micro-batches
 * with different numbers of tokens that count, one with none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpt_rig.h"

static struct hkt__gpt_config tiny(void)
{
    const struct hkt__gpt_config config = {
        .shape = { .layers = 4,
                   .heads = 4,
                   .kv_heads = 2,
                   .hidden = 24,
                   .ffn = 50,
                   .vocab = 101,
                   .positions = 16,
                   .biases = 1,
                   .tied = 1 },
        .dtype = HKT_F64,
        .seq = 8,
        .micro_batch = 2,
        .seed = 3,
        .init_deviation = 0.15,
    };

    return config;
}

/* SwiGLU, RMS norm, rotary, untied, no biases. */
static struct hkt__gpt_config tiny_modern(void)
{
    struct hkt__gpt_config config = tiny();

    config.shape.gated = 1;
    config.shape.positions = 0;
    config.shape.biases = 0;
    config.shape.tied = 0;
    config.norm = HKT__NORM_RMS;
    return config;
}

static struct hkt__gpt_config tiny_experts(void)
{
    struct hkt__gpt_config config = tiny_modern();

    config.shape.experts = 4;
    config.shape.top_k = 2;
    config.shape.ffn = 18;
    config.shape.biases = 1;
    config.shape.dense_layers = 1;
    config.capacity_factor = 1.25;
    config.balance_weight = 0.1;
    config.z_weight = 0.01;
    config.renormalise = 1;
    return config;
}

static struct rig_result *reference, *result;

static void one_rank(const struct hkt__gpt_config *config, int micros)
{
    const struct rig_case run = { .config = *config, .schedule = HKT_PIPE_GPIPE, .micros = micros };
    struct rig_case plain = run;

    plain.config.chunks = 0;
    plain.config.sequence_parallel = 0;
    plain.config.recompute = HKT_RECOMPUTE_NONE;
    rig_run(&plain, 1, reference);
}

static void against_one_rank(const struct rig_case *run, int nranks, int dp, double bound)
{
    char what[160];

    snprintf(what, sizeof what, "%s, sp %d, %s, %d micro-batches", run->layout, run->config.sequence_parallel,
             hkt_pipe_kind_name(run->schedule), run->micros);
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
                run.config.dropout = 0.1;
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
                run.config.dropout = 0.1;
                run.config.chunks = kind == HKT_PIPE_INTERLEAVED ? 2 : 1;
                if (pp * run.config.chunks > run.config.shape.layers)
                    continue;
                /* Untied, nothing is added up in another order. */
                against_one_rank(&run, pp, 1, tied && pp > 1 ? 1e-11 : 0);
            }
}

static void mixed(void **state)
{
    static const struct {
        const char *layout;
        int nranks, dp, micros, sp, modern;
        enum hkt_pipe_kind kind;
    } cases[] = {
        { "dp:2", 2, 2, 2, 0, 0, HKT_PIPE_GPIPE },
        { "dp:3", 3, 3, 2, 0, 1, HKT_PIPE_GPIPE },
        { "tp:2 pp:2", 4, 1, 3, 1, 0, HKT_PIPE_1F1B },
        { "tp:2 pp:2", 4, 1, 3, 0, 1, HKT_PIPE_ZB_H1 },
        { "pp:2 tp:2", 4, 1, 1, 1, 1, HKT_PIPE_ZB_H1 },
        { "tp:2 dp:2", 4, 2, 2, 1, 0, HKT_PIPE_GPIPE },
        { "pp:2 dp:2", 4, 2, 3, 0, 0, HKT_PIPE_INTERLEAVED },
        { "tp:2 dp:2 pp:2", 8, 2, 2, 1, 0, HKT_PIPE_1F1B },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig_case run = { .layout = cases[i].layout,
                                .config = cases[i].modern ? tiny_modern() : tiny(),
                                .schedule = cases[i].kind,
                                .micros = cases[i].micros };

        run.config.sequence_parallel = cases[i].sp;
        run.config.dropout = 0.2;
        run.config.chunks = cases[i].kind == HKT_PIPE_INTERLEAVED ? 2 : 1;
        against_one_rank(&run, cases[i].nranks, cases[i].dp, 1e-11);
    }
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

static int setup(void **state)
{
    (void)state;
    reference = rig_alloc();
    result = rig_alloc();
    return reference == NULL || result == NULL;
}

static int teardown(void **state)
{
    (void)state;
    rig_free(reference);
    rig_free(result);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(pipelines),
        cmocka_unit_test(mixed),
        cmocka_unit_test(experts),
    };

    return cmocka_run_group_tests_name("gpt_ranks", tests, setup, teardown);
}
