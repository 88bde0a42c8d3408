/* What could break: a collective that the formulas do not know, or know too well: bytes counted in a step differ from those
 * predicted, for some ZeRO stage, schedule, kind of recompute, cut of sequence, experts or type; in a later step, or after an
 * evaluation, they are others; memory held of a class is not what its formula says. Every rank compares every kind of parallelism
 * and of collective, exactly; experts in the sum over ranks. Closed forms of the papers hold for the plainest cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"
#include "parallel/train_state.h"
#include "ranks.h"
#include "text.h"

/* A row of the table. */
struct mode {
    const char *name;
    int nranks, dp, tp, pp, ep, zero, shard, sp, chunks;
    enum hkt_pipe_kind schedule;
    enum hkt_recompute recompute;
    int every, keep, prefetch, no_overlap;
    int experts, dense_layers, is_sgd, is_modern, is_untied; /* modern: RMS norm, gated, rotary, no biases */
    double capacity;
    enum hkt_dtype dtype; /* 0: F32 */
    double loss_scale;
    int micros; /* 0: MICROS */
};

#define GPIPE HKT_PIPE_GPIPE
#define INTERLEAVED HKT_PIPE_INTERLEAVED
#define ZB HKT_PIPE_ZB_H1
#define SELECTIVE HKT_RECOMPUTE_SELECTIVE
#define FULL HKT_RECOMPUTE_FULL

static const struct mode modes[] = {
    { "one rank", .nranks = 1 },
    { "dp, stage 0", .nranks = 3, .dp = 3, .no_overlap = 1 },
    { "dp, stage 1", .nranks = 2, .dp = 2, .zero = 1 },
    { "dp, stage 1, bf16, loss scale", .nranks = 2, .dp = 2, .zero = 1, .dtype = HKT_BF16, .loss_scale = 1024 },
    { "dp, stage 2", .nranks = 3, .dp = 3, .zero = 2 },
    { "dp, stage 2, reduced every micro-batch", .nranks = 2, .dp = 2, .zero = 2, .every = 1 },
    { "dp, stage 3", .nranks = 3, .dp = 3, .zero = 3, .prefetch = 1 },
    { "dp, stage 3, untied, no prefetch", .nranks = 2, .dp = 2, .zero = 3, .is_untied = 1, .no_overlap = 1 },
    { "dp, stage 3, kept, prefetch 3", .nranks = 2, .dp = 2, .zero = 3, .keep = 1, .prefetch = 3 },
    { "dp, stage 3, kept, untied, every, bf16", .nranks = 2, .dp = 2, .zero = 3, .keep = 1, .every = 1, .is_untied = 1, .dtype = HKT_BF16 },
    { "dp, stage 3, zb-h1 on one stage", .nranks = 2, .dp = 2, .zero = 3, .schedule = ZB, .prefetch = 9 },
    { "dp, stage 3, zb-h1, kept, untied", .nranks = 2, .dp = 2, .zero = 3, .schedule = ZB, .keep = 1, .is_untied = 1, .prefetch = 1 },
    { "hybrid, stage 1", .nranks = 4, .dp = 4, .zero = 1, .shard = 2 },
    { "hybrid, stage 2, every", .nranks = 4, .dp = 4, .zero = 2, .shard = 2, .every = 1 },
    { "hybrid, stage 3", .nranks = 4, .dp = 4, .zero = 3, .shard = 2, .prefetch = 2 },
    { "tp", .nranks = 2, .tp = 2 },
    { "tp, modern", .nranks = 2, .tp = 2, .is_modern = 1, .is_untied = 1 },
    { "tp, copied heads", .nranks = 4, .tp = 4 },
    { "tp, selective", .nranks = 2, .tp = 2, .recompute = SELECTIVE },
    { "tp, full, bf16", .nranks = 2, .tp = 2, .recompute = FULL, .dtype = HKT_BF16 },
    { "sp", .nranks = 2, .tp = 2, .sp = 1 },
    { "sp, modern", .nranks = 2, .tp = 2, .sp = 1, .is_modern = 1 },
    { "sp, full", .nranks = 2, .tp = 2, .sp = 1, .recompute = FULL },
    { "sp, copied heads, bf16", .nranks = 4, .tp = 4, .sp = 1, .dtype = HKT_BF16 },
    { "pp, gpipe", .no_overlap = 1, .nranks = 2, .pp = 2, .schedule = GPIPE },
    { "pp, 1f1b", .nranks = 3, .pp = 3 },
    { "pp, 1f1b, untied", .nranks = 2, .pp = 2, .is_untied = 1 },
    { "pp, interleaved", .no_overlap = 1, .nranks = 2, .pp = 2, .schedule = INTERLEAVED, .chunks = 2 },
    { "pp, zb-h1, bf16", .no_overlap = 1, .nranks = 2, .pp = 2, .schedule = ZB, .dtype = HKT_BF16 },
    { "pp, sp", .no_overlap = 1, .nranks = 4, .tp = 2, .pp = 2, .sp = 1, .recompute = SELECTIVE },
    { "pp, interleaved, stage 3", .no_overlap = 1, .nranks = 4, .dp = 2, .pp = 2, .zero = 3, .schedule = INTERLEAVED, .chunks = 2, .prefetch = 1 },
    { "pp, zb-h1, stage 3", .nranks = 4, .dp = 2, .pp = 2, .zero = 3, .schedule = ZB, .prefetch = 2 },
    { "pp, zb-h1, stage 3, kept, every", .no_overlap = 1, .nranks = 4, .dp = 2, .pp = 2, .zero = 3, .schedule = ZB, .keep = 1, .every = 1 },
    { "pp, 1f1b, stage 2, every, tied", .nranks = 4, .dp = 2, .pp = 2, .zero = 2, .every = 1 },
    { "pp, gpipe, stage 3, kept, full", .nranks = 4, .dp = 2, .pp = 2, .zero = 3, .keep = 1, .schedule = GPIPE, .recompute = FULL },
    { "experts, ep", .nranks = 2, .dp = 2, .ep = 2, .experts = 4 },
    { "experts, ep, dropped", .nranks = 2, .dp = 2, .ep = 2, .experts = 4, .capacity = 0.8 },
    { "experts, ep, full, stage 3", .nranks = 4, .dp = 4, .ep = 2, .experts = 4, .zero = 3, .recompute = FULL },
    { "experts, tp, ep, stage 1", .nranks = 4, .dp = 2, .tp = 2, .ep = 2, .experts = 4, .zero = 1 },
    { "experts, sp, ep, stage 2", .nranks = 4, .dp = 2, .tp = 2, .ep = 2, .sp = 1, .experts = 2, .zero = 2 },
    { "experts, no ep, hybrid", .nranks = 4, .dp = 4, .experts = 3, .zero = 2, .shard = 2 },
    { "experts behind a dense layer, gated, selective", .nranks = 2, .dp = 2, .ep = 2, .experts = 4, .is_modern = 1, .dense_layers = 1,
      .recompute = SELECTIVE, .schedule = INTERLEAVED, .chunks = 2, .is_sgd = 1 },
    { "experts, pp, ep", .no_overlap = 1, .nranks = 4, .dp = 2, .pp = 2, .ep = 2, .experts = 2, .schedule = ZB, .zero = 1 },
    { "all of it", .nranks = 8, .dp = 2, .tp = 2, .pp = 2, .ep = 2, .sp = 1, .experts = 2, .zero = 3, .prefetch = 1, .schedule = INTERLEAVED,
      .chunks = 2, .recompute = FULL, .dtype = HKT_BF16 },
};
enum { MODES = sizeof modes / sizeof modes[0], MICROS = 3, LAYERS = 4 };

static double (*kept)[3]; /* [RANKS_MAX], shared with ranks: the peak with 2 and 4 micro-batches, the formula */

static int or_one(int value)
{
    return value > 0 ? value : 1;
}

static struct hkt_train_config config_of(const struct mode *m)
{
    struct hkt_train_config c = hkt_train_defaults();

    c.shape = (struct hkt_shape){ .layers = LAYERS, .heads = 4, .kv_heads = 2, .hidden = 10, .head_dim = 4, .ffn = 7, .vocab = 269,
                                  .positions = m->is_modern ? 0 : 9, .biases = !m->is_modern, .tied = !m->is_untied,
                                  .gated = m->is_modern, .experts = m->experts, .dense_layers = m->dense_layers, .dense_ffn = 5, .top_k = m->experts > 0 ? 2 : 0 };
    const int micros = m->micros > 0 ? m->micros : MICROS;

    c.layout = (struct hkt_layout){ .dp = m->dp, .tp = m->tp, .pp = m->pp, .ep = m->ep, .zero = m->zero, .shard = m->shard,
                                    .sequence_parallel = m->sp, .chunks = m->chunks,
                                    .schedule = m->schedule == HKT_PIPE_FORWARD ? HKT_PIPE_1F1B : m->schedule,
                                    .global_batch = micros * or_one(m->dp), .micro_batch = 1, .seq = 8 };
    c.norm = m->is_modern ? HKT_TRAIN_RMS_NORM : HKT_TRAIN_LAYER_NORM;
    c.data = text_path;
    c.held_out = 0.2;
    c.dtype = m->dtype == 0 ? HKT_F32 : m->dtype;
    c.capacity_factor = m->capacity;
    c.loss_scale = m->loss_scale;
    c.recompute = m->recompute;
    c.optimizer = m->is_sgd ? HKT_TRAIN_SGD : HKT_TRAIN_ADAMW; /* without momentum: no state */
    c.keep_gathered = m->keep;
    c.reduce_every = m->every;
    c.overlap = !m->no_overlap;
    c.prefetch = m->prefetch;
    c.bucket_bytes = m->zero < 2 ? 4096 : 0;
    return c;
}

static void require_ok(struct ranks_rank *rank, enum hkt_status got, const char *what)
{
    ranks_require(rank, got == HKT_OK, "%s: %s", what, hkt_parallel_last_error());
}

/* ---- bytes of collectives ---- */

static void require_equal(struct ranks_rank *rank, const char *axis, const struct hkt_coll_bytes *got,
                          const struct hkt_coll_bytes *want)
{
    static const char *const names[] = { "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "send" };
    const double got_all[] = { got->all_reduce, got->reduce_scatter, got->all_gather, got->all_to_all, got->send };
    const double want_all[] = { want->all_reduce, want->reduce_scatter, want->all_gather, want->all_to_all, want->send };
    const struct mode *m = rank->arg;

    for (int i = 0; i < 5; i++)
        ranks_require(rank, got_all[i] == want_all[i], "%s: %s of %s counts %.0f bytes, the formula says %.0f", m->name, names[i], axis,
                      got_all[i], want_all[i]);
}

static void compare(struct ranks_rank *rank, const struct hkt_trainer *t)
{
    struct hkt_step_bytes got, want;
    double ep[2];

    require_ok(rank, hkt_trainer_step_bytes(t, &got, &want), "the formula");
    require_equal(rank, "dp", &got.dp, &want.dp);
    require_equal(rank, "tp", &got.tp, &want.tp);
    require_equal(rank, "sp", &got.sp, &want.sp);
    require_equal(rank, "pp", &got.pp, &want.pp);
    require_equal(rank, "scalars", &got.scalars, &want.scalars);
    ep[0] = hkt_coll_bytes_sum(&got.ep);
    ep[1] = hkt_coll_bytes_sum(&want.ep);
    if (rank->nranks > 1)
        ranks_require_ok(rank, hkt_all_reduce(ep, ep, 2, HKT_F64, HKT_SUM, rank->comm, NULL), "sum");
    ranks_require(rank, ep[0] == ep[1] && got.ep.all_to_all == hkt_coll_bytes_sum(&got.ep),
                  "%s: to experts %.0f bytes, the formula says %.0f", ((const struct mode *)rank->arg)->name, ep[0], ep[1]);
}

/* ---- bytes of memory ---- */

/* Every class is what the formula says; messages that travel while the stage computes may leave earlier than it must think. */
static void check_memory(struct ranks_rank *rank, const struct hkt_trainer *t)
{
    const struct mode *m = rank->arg;
    struct hkt_step_memory got, want;

    require_ok(rank, hkt_trainer_step_memory(t, &got, &want), "the formula of memory");
    const bool may_leave_early = m->pp > 1 && !m->no_overlap;
    const struct {
        const char *name;
        double got, want;
    } rows[] = { { "parameters", got.param, want.param }, { "gradients", got.grad, want.grad },
                 { "optimizer state", got.optimizer, want.optimizer }, { "gathered units", got.comm, want.comm },
                 { "activations", got.activation, want.activation } };

    for (int i = 0; i < 5; i++)
        ranks_require(rank, rows[i].got == rows[i].want || (i == 4 && may_leave_early && rows[i].got < rows[i].want),
                      "%s, rank %d: %.0f bytes of %s, the formula says %.0f", m->name, rank->rank, rows[i].got, rows[i].name, rows[i].want);
    if (m->experts == 2) { /* of which each token goes to two: as even as can be, so it need not be told */
        struct hkt_step_memory_opts even = hkt__train_memory_opts(t);

        even.routing = NULL;
        require_ok(rank, hkt_count_memory(&even, &got), "an even routing");
        ranks_require(rank, got.activation == want.activation, "%s: %.0f bytes of activations, an even routing takes %.0f", m->name,
                      want.activation, got.activation);
    }
    ranks_require(rank, hkt_trainer_memory(t, m->dtype == HKT_BF16 ? "grad" : "main_grad") == 0, "%s: gradients are of one class", m->name);
}

static void run(struct ranks_rank *rank)
{
    const struct hkt_train_config config = config_of(rank->arg);
    struct hkt_trainer *t = NULL;
    double held_out;

    require_ok(rank, hkt_trainer_create(&config, rank->comm, &t), "create");
    for (int step = 0; step < 3; step++) {
        struct hkt_train_report report;

        require_ok(rank, hkt_trainer_step(t, &report), "step");
        compare(rank, t);
        check_memory(rank, t);
        if (step == 1)
            require_ok(rank, hkt_trainer_evaluate(t, 1, &held_out), "evaluate"); /* leaves nothing behind */
        if (config.capacity_factor > 0)
            ranks_require(rank, report.dropped > 0, "nothing was dropped");
    }
    require_ok(rank, hkt_trainer_destroy(t), "destroy");
}

static void counted_is_predicted(void **state)
{
    (void)state;
    for (int i = 0; i < MODES; i++) {
        struct mode mode = modes[i];
        const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = mode.nranks, .leaves_descriptors = true, .fn = run, .arg = &mode };

        if (ranks_small() && i % 4 != 0 && i != MODES - 1)
            continue;
        ranks_run(&job);
    }
}

/* ---- activations ---- */

/* Counter of each rank: the most held, with few micro-batches; then with more, of which each adds what it keeps. */
static void measure_kept(struct ranks_rank *rank)
{
    const struct mode *m = rank->arg;
    const struct hkt_train_config config = config_of(m);
    struct hkt_train_report report;
    struct hkt_trainer *t = NULL;

    require_ok(rank, hkt_trainer_create(&config, rank->comm, &t), "create");
    require_ok(rank, hkt_trainer_step(t, &report), "step");
    const struct hkt_step_opts opts = hkt__train_step_opts(t);

    kept[rank->rank][m->micros / 2 - 1] = (double)hkt_trainer_memory(t, "activation");
    kept[rank->rank][2] = hkt_count_kept(&opts);
    require_ok(rank, hkt_trainer_destroy(t), "destroy");
}

static void kept_activations(void **state)
{
    static const struct mode shapes[] = {
        { "one rank", .nranks = 1 },
        { "one rank, modern, selective, bf16", .nranks = 1, .is_modern = 1, .recompute = SELECTIVE, .dtype = HKT_BF16 },
        { "one rank, full", .nranks = 1, .recompute = FULL },
        { "tp", .nranks = 2, .tp = 2 },
        { "tp, copied heads, modern", .nranks = 4, .tp = 4, .is_modern = 1 },
        { "sp, bf16", .nranks = 2, .tp = 2, .sp = 1, .dtype = HKT_BF16 },
        { "sp, full", .nranks = 2, .tp = 2, .sp = 1, .recompute = FULL },
        { "pp", .nranks = 3, .pp = 3 },
        { "experts, each of them always chosen, sp", .nranks = 2, .tp = 2, .sp = 1, .experts = 2, .dense_layers = 1 },
        { "pp, sp, selective, stage 3", .nranks = 8, .dp = 2, .tp = 2, .pp = 2, .sp = 1, .recompute = SELECTIVE, .zero = 3 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct mode mode = shapes[i];
        const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = mode.nranks, .leaves_descriptors = true, .fn = measure_kept,
                                       .arg = &mode };

        if (ranks_small() && mode.nranks > 2)
            continue;
        mode.schedule = GPIPE; /* all are held at once */
        for (mode.micros = 2; mode.micros <= 4; mode.micros += 2)
            ranks_run(&job);
        for (int rank = 0; rank < mode.nranks; rank++)
            if (kept[rank][1] - kept[rank][0] != 2 * kept[rank][2])
                fail_msg("%s: two micro-batches more hold %.0f bytes more, the formula says %.0f each", mode.name,
                         kept[rank][1] - kept[rank][0], kept[rank][2]);
    }
}

/* ---- closed forms ---- */

static struct hkt_step_bytes count(struct hkt_step_opts opts)
{
    struct hkt_step_bytes bytes;

    opts.element_bytes = 2;
    opts.real_bytes = 4;
    if (hkt_count_step(&opts, &bytes) != HKT_OK)
        fail_msg("%s", hkt_parallel_last_error());
    return bytes;
}

/* ZeRO: stages 1 and 2 move what stage 0 does where gradients have the parameters' size, stage 3 half as much again. */
static void stages_in_the_paper(void **state)
{
    const double n = 1e6;
    struct hkt_step_opts o = { .shape = { .layers = 1, .heads = 1, .hidden = 8, .vocab = 8 },
                               .layout = { .nranks = 4, .dp = 4, .global_batch = 4, .micro_batch = 1, .seq = 8, .schedule = HKT_PIPE_1F1B },
                               .dense = { n, 0 }, .layers = 1 };

    (void)state;
    const struct hkt_coll_bytes plain = count(o).dp;

    assert_true(plain.all_reduce == 4 * n && hkt_coll_bytes_sum(&plain) == 4 * n);
    o.layout.zero = 1;
    assert_true(count(o).dp.reduce_scatter == 4 * n && count(o).dp.all_gather == 2 * n);
    o.layout.zero = 3;
    assert_true(count(o).dp.reduce_scatter == 4 * n && count(o).dp.all_gather == 4 * n);
    o.keep_gathered = 1;
    assert_true(count(o).dp.all_gather == 2 * n);
    /* Eight micro-batches, each reduced and gathered twice. */
    o.keep_gathered = 0;
    o.reduce_every = 1;
    o.layout.global_batch = 32;
    assert_true(count(o).dp.reduce_scatter == 32 * n && count(o).dp.all_gather == 32 * n);
    o.layout.shard = 2;
    assert_true(count(o).dp.all_reduce == 8 * n / 2 * 4);
}

/* A layer of Megatron: four all-reduces; with its sequence cut, as many bytes in gathers and scatters. */
static void layers_of_megatron(void **state)
{
    struct hkt_step_opts o = { .shape = { .layers = 6, .heads = 4, .hidden = 64, .vocab = 100 },
                               .layout = { .nranks = 12, .tp = 4, .pp = 3, .global_batch = 5, .micro_batch = 1, .seq = 32,
                                           .schedule = HKT_PIPE_1F1B },
                               .stage = 1, .layers = 2 };
    const double message = hkt_message_bytes(32, 1, 64, 2);

    (void)state;
    assert_true(hkt_wire_all_reduce(count(o).tp.all_reduce, 4) == 5 * 2 * hkt_tp_layer_bytes(message, 4, 4));
    assert_true(count(o).pp.send == 5 * 2 * message);
    const double cut = hkt_wire_all_reduce(count(o).tp.all_reduce, 4);

    o.layout.sequence_parallel = 1;
    const struct hkt_step_bytes sp = count(o);

    assert_true(sp.tp.all_reduce == 0);
    assert_true(hkt_wire_all_gather(sp.sp.all_gather, 4) + hkt_wire_reduce_scatter(sp.sp.reduce_scatter, 4) == cut);
    assert_true(sp.sp.all_reduce == 2 * 2 * 64 * 4); /* norms: no biases here */
    assert_true(sp.pp.send == 5 * 2 * hkt_pp_message_bytes(message, 4, 1));
    o.recompute = HKT_RECOMPUTE_FULL;
    assert_true(count(o).sp.all_gather == sp.sp.all_gather * 1.5 && count(o).sp.reduce_scatter == sp.sp.reduce_scatter * 1.25);
}

static void experts_and_refusals(void **state)
{
    struct hkt_step_opts o = { .shape = { .layers = 2, .heads = 4, .hidden = 64, .vocab = 100, .experts = 8, .top_k = 2 },
                               .layout = { .nranks = 4, .dp = 4, .ep = 4, .global_batch = 12, .micro_batch = 1, .seq = 32,
                                           .schedule = HKT_PIPE_1F1B },
                               .layers = 2, .expert_layers = 2, .pairs = 3 * 32 * 2 * 2 };
    struct hkt_step_bytes bytes = { .pp.send = 77 };

    (void)state;
    const double counts = 3 * 2 * 8 * 8;

    assert_true(hkt_wire_all_to_all(count(o).ep.all_to_all - counts, 4) == 3 * 2 * hkt_ep_layer_bytes(32, 2, 64, 2, 4));
    assert_true(count(o).dp.all_reduce == 0);
    o.stage = 1;
    assert_int_equal(hkt_count_step(&o, &bytes), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_parallel_last_error(), "stage 1 of pp 1"));
    o.layout.dp = 5;
    assert_int_equal(hkt_count_step(&o, &bytes), HKT_ERR_INVALID);
    assert_true(bytes.pp.send == 77);
}

/* One layer on one rank, by hand: forward leaves 5 rows of hidden beside its inner ones; the most is held in backward. */
static void memory_of_one_layer(void **state)
{
    static const int stages[] = { 0, 1 };
    const struct hkt_pipe_opts one_stage = { .kind = HKT_PIPE_GPIPE, .stages = 1, .micros = 2 };
    struct hkt_pipe *pipe = NULL;
    struct hkt_step_memory_opts o = {
        .step = { .shape = { .layers = 1, .heads = 2, .hidden = 8, .ffn = 32, .vocab = 8 },
                  .layout = { .nranks = 1, .dp = 1, .global_batch = 2, .micro_batch = 1, .seq = 4, .schedule = HKT_PIPE_GPIPE },
                  .rms_norm = 1, .element_bytes = 4, .real_bytes = 4, .dense = { 1000, 64 }, .layers = 1 },
        .stage_first = stages, .moments = 2,
    };
    struct hkt_step_memory m = { .comm = -1 };
    const double row = 4 * 8 * 4, one = 4 * 4; /* [rows][hidden], [rows] */

    (void)state;
    assert_int_equal(hkt_pipe_create(&one_stage, &pipe), HKT_OK);
    o.pipe = pipe;
    for (int64_t k = 1;; k++) { /* every allocation fails once */
        hkt__parallel_alloc_fail_at(k);
        const enum hkt_status rc = hkt_count_memory(&o, &m);

        hkt__parallel_alloc_fail_at(0);
        if (rc == HKT_OK)
            break;
        assert_true(rc == HKT_ERR_NOMEM && m.comm == -1 && k < 20);
    }
    assert_true(m.param == 4000 && m.grad == 4000 && m.optimizer == 8000 && m.comm == 0);
    /* A micro-batch keeps x, the input of attention, q, k, v, its result, what follows, the MLP's input, 4 rows before and after
     * the activation; then the last x, its norm and logits of the width of a row; statistics, and a number for each head. */
    const double stays = row * (1 + 1 + 3 + 1 + 1 + 1 + 4 + 4) + row * 3 + one * (2 + 2 + 1);

    assert_true(hkt_count_kept(&o.step) == stays);
    /* The head's backward is over: input, norm and logits are gone, their gradient is there; so is that of the layer's input. The
     * MLP's: of its output, of its input, of what is between (4 rows). */
    const double in_mlp = stays - row * 3 - one + 2 * row + 2 * row + 4 * row;
    /* Attention's, when the MLP's are done (statistics of a norm are gone): gradients of the MLP's output and of the middle, those
     * of attention's output, result, q, k and v. */
    const double in_attention = stays - row * 3 - 2 * one + 2 * row + row + row + row + row + 3 * row;

    assert_true(m.activation == stays + fmax(in_mlp, in_attention));
    o.step.layout.zero = 2;
    assert_int_equal(hkt_count_memory(&o, &m), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_parallel_last_error(), "so their sizes are wanted"));
    o.step.layout.zero = 0;
    o.step.layout.global_batch = 3;
    assert_int_equal(hkt_count_memory(&o, &m), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_parallel_last_error(), "and 2 micro-batches for a layout of 1 with 1 and 3"));
    hkt_pipe_destroy(pipe);
}

static int make_text(void **state)
{
    (void)state;
    kept = mmap(NULL, RANKS_MAX * sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return kept != MAP_FAILED && text_make(2000) ? 0 : -1;
}

static int remove_text(void **state)
{
    (void)state;
    return text_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counted_is_predicted),
        cmocka_unit_test(kept_activations),
        cmocka_unit_test(memory_of_one_layer),
        cmocka_unit_test(stages_in_the_paper),
        cmocka_unit_test(layers_of_megatron),
        cmocka_unit_test(experts_and_refusals),
    };

    return cmocka_run_group_tests_name("step_bytes", tests, make_text, remove_text);
}
