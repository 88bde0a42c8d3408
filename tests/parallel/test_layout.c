/* What could break: parameters are counted otherwise than published; a layout that cannot be is accepted and fails
 * late, or one that can be is refused; a refusal hides its numbers or names a neighbour that is illegal too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "hocket/parallel.h"

static struct hkt_shape gpt2(int layers, int64_t hidden, int heads, int64_t vocab)
{
    return (struct hkt_shape){
        .layers = layers, .hidden = hidden, .heads = heads, .vocab = vocab, .positions = 1024, .biases = 1, .tied = 1
    };
}

static struct hkt_shape llama(int layers, int64_t hidden, int heads, int kv_heads, int64_t ffn)
{
    return (struct hkt_shape){ .layers = layers,
                               .hidden = hidden,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .ffn = ffn,
                               .vocab = 128256,
                               .gated = 1 };
}

static int64_t total(struct hkt_shape shape)
{
    return hkt_count_params(&shape).total;
}

static void published_parameter_counts(void **state)
{
    struct hkt_shape llama2[] = { llama(32, 4096, 32, 32, 11008), llama(40, 5120, 40, 40, 13824),
                                  llama(80, 8192, 64, 8, 28672) };

    (void)state;
    assert_int_equal(total(gpt2(12, 768, 12, 50257)), 124439808);
    assert_int_equal(total(gpt2(24, 1024, 16, 50257)), 354823168);
    assert_int_equal(total(gpt2(36, 1280, 20, 50257)), 774030080);
    assert_int_equal(total(gpt2(48, 1600, 25, 50257)), 1557611200);
    assert_int_equal(total(gpt2(12, 768, 12, 50304)), 124475904);
    for (int i = 0; i < 3; i++)
        llama2[i].vocab = 32000;
    assert_int_equal(total(llama2[0]), 6738415616);
    assert_int_equal(total(llama2[1]), 13015864320);
    assert_int_equal(total(llama2[2]), 68976648192);
    assert_int_equal(total(llama(32, 4096, 32, 8, 14336)), 8030261248);
    assert_int_equal(total(llama(80, 8192, 64, 8, 28672)), 70553706496);
    assert_int_equal(total(llama(126, 16384, 128, 8, 53248)), 405853388800);
}

static void experts_are_counted(void **state)
{
    /* Mixtral 8x7B: 46,702,792,704 parameters, of which 12,879,925,248 are active. */
    struct hkt_shape shape = llama(32, 4096, 32, 8, 14336);

    (void)state;
    shape.vocab = 32000;
    shape.experts = 8;
    shape.top_k = 2;
    assert_int_equal(hkt_count_params(&shape).total, 46702792704);
    assert_int_equal(hkt_count_params(&shape).active, 12879925248);
    shape.dense_layers = 1;
    shape.dense_ffn = 100;
    shape.shared = 1;
    assert_int_equal(hkt_count_params(&shape).total, 46702792704 - (int64_t)4096 * 8 - (int64_t)8 * 3 * 4096 * 14336
                                                         + 3 * 4096 * 100 + (int64_t)31 * 3 * 4096 * 14336);
}

static void deepseek_v3(void **state)
{
    const struct hkt_shape shape = { .layers = 61,
                                     .heads = 128,
                                     .experts = 256,
                                     .shared = 1,
                                     .top_k = 8,
                                     .dense_layers = 3,
                                     .hidden = 7168,
                                     .head_dim = 128,
                                     .ffn = 2048,
                                     .dense_ffn = 18432,
                                     .vocab = 129280,
                                     .gated = 1,
                                     .kv_rank = 512,
                                     .q_rank = 1536,
                                     .rope_dim = 64,
                                     .v_dim = 128 };
    const struct hkt_shape_params params = hkt_count_params(&shape);

    (void)state;
    assert_int_equal(params.total, 671026404352);
    assert_int_equal(params.active / 10000000, 3755); /* 37.55 B, with both embeddings */
}

/* Stages add up to the model, plus the second copy of a tied embedding. */
static void parameters_of_stages(void **state)
{
    struct hkt_shape shape = { .layers = 7,
                               .heads = 4,
                               .hidden = 16,
                               .vocab = 101,
                               .positions = 8,
                               .biases = 1,
                               .experts = 4,
                               .top_k = 2,
                               .dense_layers = 3,
                               .dense_ffn = 24 };

    (void)state;
    for (shape.tied = 0; shape.tied < 2; shape.tied++)
        for (int a = 1; a < 6; a++)
            for (int b = a + 1; b < 7; b++)
                assert_int_equal(hkt_shape_stage_params(&shape, 0, a) + hkt_shape_stage_params(&shape, a, b)
                                     + hkt_shape_stage_params(&shape, b, 7),
                                 hkt_count_params(&shape).total + shape.tied * 101 * 16);
    assert_int_equal(hkt_shape_stage_params(&shape, 0, 7), hkt_count_params(&shape).total);
}

/* ---- layouts ---- */

static const struct hkt_shape base_shape = { .layers = 12, .heads = 30, .hidden = 480, .kv_heads = 6, .vocab = 101 };
static const struct hkt_layout base_layout = {
    .nranks = 8, .dp = 4, .tp = 2, .pp = 1, .global_batch = 16, .micro_batch = 2, .seq = 32, .schedule = HKT_PIPE_1F1B
};

static void refuse(struct hkt_shape shape, struct hkt_layout layout, const char *want)
{
    assert_int_equal(hkt_layout_check(&shape, &layout), HKT_ERR_INVALID);
    assert_string_equal(hkt_parallel_last_error(), want);
}

static void accept(struct hkt_shape shape, struct hkt_layout layout)
{
    if (hkt_layout_check(&shape, &layout) != HKT_OK)
        fail_msg("%s", hkt_parallel_last_error());
}

static void impossible_layouts_name_numbers_and_neighbours(void **state)
{
    struct hkt_shape shape = base_shape;
    struct hkt_layout layout = base_layout;

    (void)state;
    accept(shape, layout);
    layout = (struct hkt_layout){ .nranks = 64, .dp = 8, .tp = 4, .pp = 3 };
    refuse(shape, layout,
           "dp*tp*pp = 8*4*3 = 96, but there are 64 ranks, which tp*pp = 12 does not divide; tp*pp = 8 or 16 "
           "would do");
    layout.pp = 4;
    refuse(shape, layout, "dp*tp*pp = 8*4*4 = 128, but there are 64 ranks; dp 4 would fit");
    layout = base_layout;
    layout.dp = 2;
    layout.tp = 4;
    refuse(shape, layout, "30 heads do not divide by tp 4; tp 3 or 6 would do");
    layout = base_layout;
    layout.micro_batch = 3;
    refuse(shape, layout,
           "a global batch of 16 sequences does not divide by dp 4 * micro-batch 3 = 12; 12 or 24 would do");
    layout.micro_batch = 1;
    layout.global_batch = 10;
    refuse(shape, layout,
           "a global batch of 10 sequences does not divide by dp 4 * micro-batch 1 = 4; 8 or 12 would do");
    assert_int_equal(hkt_layout_micros(&layout), 0);
    layout.global_batch = 512;
    assert_int_equal(hkt_layout_micros(&layout), 128);
    layout = (struct hkt_layout){ .nranks = 128, .dp = 128, .global_batch = 64 };
    refuse(shape, layout,
           "a global batch of 64 sequences is less than one micro-batch of 1 for each of dp 128; the batch must be "
           "at least 128, or dp at most 64");
    layout = base_layout;
    layout.ep = 2;
    refuse(shape, layout, "ep 2, but the model has no experts; use ep 1");
    shape.experts = 6;
    shape.top_k = 2;
    accept(shape, layout);
    layout.ep = 3;
    refuse(shape, layout, "ep 3 must divide dp 4 and the 6 experts; ep 2 would do");
    layout.ep = 4;
    refuse(shape, layout, "ep 4 must divide dp 4 and the 6 experts; ep 2 would do");
    shape.top_k = 7;
    refuse(shape, layout, "top-7 of 6 experts; at most 6");
    shape = base_shape;
    layout = base_layout;
    layout.shard = 3;
    refuse(shape, layout, "shard 3 does not divide dp 4; shard 2 or 4 would do");
    layout.shard = 0;
    layout.seq = 33;
    accept(shape, layout);
    layout.sequence_parallel = 1;
    refuse(shape, layout,
           "with sequence parallelism tp 2 does not divide the sequence of 33; with sequence parallelism tp 1 or 3 "
           "would do");
    layout = base_layout;
    layout.zero = 4;
    refuse(shape, layout, "ZeRO has stages 0 to 3, not 4");
    layout.zero = 3;
    layout.dp = -1;
    refuse(shape, layout,
           "ranks, dp, tp, pp, ep, chunks, shard, global batch and micro-batch must be at least 1; one is -1");
    layout = base_layout;
    shape.positions = 16;
    refuse(shape, layout, "a sequence of 32 is longer than the model's 16 learned positions");
    shape = base_shape;
    shape.hidden = 481;
    refuse(shape, layout, "heads 30 does not divide hidden size 481; heads 13 or 37 would do");
    shape.head_dim = 16;
    accept(shape, layout);
}

static void pipelines(void **state)
{
    struct hkt_shape shape = base_shape;
    struct hkt_layout layout = { .nranks = 8, .pp = 8, .global_batch = 3, .schedule = HKT_PIPE_ZB_H1 };

    (void)state;
    accept(shape, layout); /* 12 layers over 8 stages, 3 micro-batches: nothing divides, all is well */
    layout.chunks = 2;
    refuse(shape, layout,
           "12 layers cannot fill pp 8 * 2 chunks = 16 stages, each needs one; pp * chunks may be at most 12");
    shape.layers = 16;
    refuse(shape, layout, "2 chunks per stage need the interleaved schedule; zb-h1 has 1");
    layout.schedule = HKT_PIPE_INTERLEAVED;
    accept(shape, layout);
    layout.chunks = 0;
    refuse(shape, layout, "an interleaved schedule has at least 2 chunks per stage; with 1 it is 1f1b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_parameter_counts),
        cmocka_unit_test(experts_are_counted),
        cmocka_unit_test(deepseek_v3),
        cmocka_unit_test(parameters_of_stages),
        cmocka_unit_test(impossible_layouts_name_numbers_and_neighbours),
        cmocka_unit_test(pipelines),
    };

    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
