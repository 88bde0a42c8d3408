/* What could break: a layout changes what is trained (loss, norm of the gradient, held-out loss); replicas of a tensor part, by a
 * bit; a ZeRO stage, schedule or prefetch changes bits; a checkpoint of one layout gives another model, or another future, in a
 * second one; resuming is not bit for bit what going on would have been; an overflow is skipped by some ranks only, or leaves
 * something behind; cached decoding gives other logits than training does, or other tokens on more ranks; what cannot be is tried,
 * or refused without its numbers. Odd shapes throughout: three layers, 255 + 14 words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"
#include "parallel/generate_state.h"
#include "parallel/train_state.h"
#include "ranks.h"
#include "text.h"

enum { STEPS = 4, SAVED_AT = 2 };

struct layout {
    int nranks, dp, tp, pp, ep, zero, shard, sp, chunks;
    enum hkt_pipe_kind schedule;
    int keep, every, no_overlap, prefetch, micro;
    enum hkt_recompute recompute;
    const int *stages;
};

/* One step's numbers. */
struct numbers {
    double loss, norm;
};
struct outcome {
    struct numbers step[STEPS + 1];
    double held_out;
};

struct job {
    struct layout layout;
    int experts, dropout, no_clip;
    double loss_scale;
    enum hkt_dtype dtype;
    enum hkt_train_optimizer optimizer;
    const char *save, *resume; /* save after SAVED_AT steps; resume before the first */
    int is_async;
    const char *text;
    struct ranks_shared *shared;
};


static void require_ok(struct ranks_rank *rank, enum hkt_status got, const char *what)
{
    ranks_require(rank, got == HKT_OK, "%s: %s", what, hkt_parallel_last_error());
}

static struct hkt_train_config config_of(const struct job *job)
{
    const struct layout *l = &job->layout;
    struct hkt_train_config c = hkt_train_defaults();

    c.shape = (struct hkt_shape){ .layers = 3, .heads = 4, .kv_heads = 2, .hidden = 20, .head_dim = 6, .ffn = 27,
                                  .vocab = 269, .positions = 9, .biases = 1, .tied = 1, .experts = job->experts,
                                  .top_k = job->experts > 0 ? 2 : 0 };
    c.layout = (struct hkt_layout){ .dp = l->dp, .tp = l->tp, .pp = l->pp, .ep = l->ep, .zero = l->zero, .shard = l->shard,
                                    .sequence_parallel = l->sp, .chunks = l->chunks, .schedule = l->schedule,
                                    .global_batch = 12, .micro_batch = l->micro > 0 ? l->micro : 1, .seq = 8 };
    c.data = job->text;
    c.held_out = 0.2;
    c.dtype = job->dtype;
    c.optimizer = job->optimizer;
    c.momentum = 0.9;
    c.dropout = c.attention_dropout = job->dropout ? 0.1 : 0;
    c.clip = job->no_clip ? 0 : 0.3; /* below every norm here: a wrong norm changes parameters */
    c.warmup_steps = 2;
    c.decay_steps = 10;
    c.lr = job->optimizer == HKT_TRAIN_SGD ? 0.5 : 3e-3;
    c.balance_weight = c.z_weight = 0.01;
    c.keep_gathered = l->keep;
    c.reduce_every = l->every;
    c.overlap = !l->no_overlap;
    c.prefetch = l->prefetch;
    c.bucket_bytes = 4096;
    c.check = 1;
    c.loss_scale = job->loss_scale;
    c.recompute = l->recompute;
    c.stage_layers = l->stages;
    return c;
}

static void put(struct job *job, struct ranks_rank *rank, int index, double value)
{
    int64_t bits;

    (void)job;
    memcpy(&bits, &value, sizeof bits);
    atomic_store(&rank->shared->counters[index], bits);
}

/* Counters 0 .. 2 * STEPS - 1: loss and norm; 2 * STEPS: held out. */
static void train(struct ranks_rank *rank)
{
    struct job *job = rank->arg;
    struct hkt_trainer *trainer = NULL;
    const struct hkt_train_config config = config_of(job);
    double held_out = 0;

    require_ok(rank, hkt_trainer_create(&config, rank->comm, &trainer), "create");
    if (job->resume != NULL)
        require_ok(rank, hkt_trainer_resume(trainer, job->resume), "resume");
    for (int step = (int)hkt_trainer_steps(trainer) + 1; step <= STEPS; step++) {
        struct hkt_train_report report;

        require_ok(rank, hkt_trainer_step(trainer, &report), "step");
        ranks_require(rank, report.step == step && report.tokens == 12 * 8, "step %d has %lld tokens", step,
                      (long long)report.tokens);
        if (rank->rank == 0) {
            put(job, rank, 2 * (step - 1), report.loss);
            put(job, rank, 2 * (step - 1) + 1, report.grad_norm);
        }
        if (step == SAVED_AT && job->save != NULL)
            require_ok(rank, hkt_trainer_save(trainer, job->save, job->is_async), "save");
    }
    require_ok(rank, hkt_trainer_evaluate(trainer, 1, &held_out), "evaluate");
    if (rank->rank == 0)
        put(job, rank, 2 * STEPS, held_out);
    require_ok(rank, hkt_trainer_destroy(trainer), "destroy");
}

static const char *const in_rank_order[] = { "HOCKET_DETERMINISTIC=rank_order", NULL };

static double counter(const struct ranks_shared *shared, int index)
{
    const int64_t bits = atomic_load(&shared->counters[index]);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static struct outcome run(struct job job)
{
    struct ranks_shared *shared = NULL;
    struct outcome outcome;

    job.text = text_path;
    if (job.layout.schedule == HKT_PIPE_FORWARD)
        job.layout.schedule = HKT_PIPE_1F1B;
    const struct ranks_job ranks = { .kind = RANKS_THREADS, .nranks = job.layout.nranks, .settings = in_rank_order,
                                     .leaves_descriptors = true, .fn = train, .arg = &job };

    if (!ranks_try(&ranks, &shared)) {
        char text[RANKS_TEXT_MAX];

        snprintf(text, sizeof text, "%s", shared->text);
        ranks_release(shared);
        fail_msg("%d ranks, dp %d tp %d pp %d ep %d zero %d: %s", job.layout.nranks, job.layout.dp, job.layout.tp,
                 job.layout.pp, job.layout.ep, job.layout.zero, text);
    }
    for (int step = 0; step < STEPS; step++)
        outcome.step[step] = (struct numbers){ counter(shared, 2 * step), counter(shared, 2 * step + 1) };
    outcome.held_out = counter(shared, 2 * STEPS);
    ranks_release(shared);
    return outcome;
}

static double apart(double a, double b)
{
    return fabs(a - b) / fabs(b);
}

/* Largest relative difference from step `from` on. */
static double distance(const struct outcome *a, const struct outcome *b, int from)
{
    double worst = apart(a->held_out, b->held_out);

    for (int step = from; step < STEPS; step++) {
        worst = fmax(worst, apart(a->step[step].loss, b->step[step].loss));
        worst = fmax(worst, apart(a->step[step].norm, b->step[step].norm));
    }
    return worst;
}

static const struct layout one = { .nranks = 1 };

static void require_close(struct job job, const struct outcome *want, double tolerance)
{
    const struct outcome got = run(job);
    const struct layout *l = &job.layout;
    const double worst = distance(&got, want, 0);

    if (!(worst <= tolerance))
        fail_msg("dp %d tp %d pp %d ep %d zero %d shard %d sp %d schedule %s: %g apart; last loss %.17g, not %.17g, norm %.17g, "
                 "not %.17g", l->dp, l->tp, l->pp, l->ep, l->zero, l->shard, l->sp, hkt_pipe_kind_name(l->schedule), worst,
                 got.step[STEPS - 1].loss, want->step[STEPS - 1].loss, got.step[STEPS - 1].norm, want->step[STEPS - 1].norm);
}

/* ---- layouts ---- */

static const struct layout layouts[] = {
    { .nranks = 2, .dp = 2, .zero = 0 },
    { .nranks = 2, .dp = 2, .zero = 3, .prefetch = 2 },
    { .nranks = 2, .tp = 2 },
    { .nranks = 2, .tp = 2, .sp = 1, .zero = 2 },
    { .nranks = 2, .pp = 2, .micro = 2 },
    { .nranks = 2, .pp = 2, .schedule = HKT_PIPE_ZB_H1, .zero = 3, .micro = 4, .stages = (const int[]){ 1, 2 } },
    { .nranks = 3, .dp = 3, .zero = 1 },
    { .nranks = 3, .pp = 3, .schedule = HKT_PIPE_GPIPE, .micro = 6 },
    { .nranks = 4, .tp = 4 },
    { .nranks = 4, .dp = 2, .tp = 2, .zero = 3, .keep = 1 },
    { .nranks = 4, .dp = 2, .pp = 2, .schedule = HKT_PIPE_ZB_H1, .zero = 2, .every = 1 },
    { .nranks = 4, .tp = 2, .pp = 2, .sp = 1, .zero = 1 },
    { .nranks = 4, .dp = 4, .zero = 3, .shard = 2 },
    { .nranks = 6, .dp = 3, .pp = 2, .zero = 2, .recompute = HKT_RECOMPUTE_FULL },
    { .nranks = 8, .dp = 2, .tp = 2, .pp = 2, .zero = 1 },
};

static void every_layout_trains_the_same_model(void **state)
{
    const struct outcome adamw = run((struct job){ .layout = one, .dtype = HKT_F64 });
    const struct outcome sgd = run((struct job){ .layout = one, .dtype = HKT_F64, .optimizer = HKT_TRAIN_SGD, .dropout = 1 });

    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        if (ranks_small() && (layouts[i].nranks > 4 || i % 6 != 0))
            continue;
        require_close((struct job){ .layout = layouts[i], .dtype = HKT_F64 }, &adamw, 1e-10);
        if (i % 2 == 1) /* recompute and cut sequences meet dropout; a wrong factor of gradients meets SGD */
            require_close((struct job){ .layout = layouts[i], .dtype = HKT_F64, .optimizer = HKT_TRAIN_SGD, .dropout = 1 },
                          &sgd, 1e-10);
    }
}

/* A bit of rank 2's copy flips; all ranks say so after the next step. */
static void flip(struct ranks_rank *rank)
{
    struct job *job = rank->arg;
    const struct hkt_train_config config = config_of(job);
    struct hkt_trainer *t = NULL;
    struct hkt_train_report report = { .step = -1 };

    require_ok(rank, hkt_trainer_create(&config, rank->comm, &t), "create");
    require_ok(rank, hkt_trainer_step(t, &report), "step");
    if (rank->rank == 2)
        ((unsigned char *)hkt__engine_param(t->engine, 3))[2] ^= 1; /* of the mantissa; the last ones the next update may round away */
    ranks_require(rank, hkt_trainer_step(t, &report) == HKT_ERR_CORRUPT && report.step == 1, "a flipped bit was not noticed");
    ranks_require_text(rank, hkt_parallel_last_error(), "step 2: rank 2 has other bits in transformer.h.0.");
    ranks_require_text(rank, hkt_parallel_last_error(), "than rank 0, though both hold the same (2 of 3 agree with rank 0)");
    require_ok(rank, hkt_trainer_destroy(t), "destroy");
}

static void a_flipped_bit_is_noticed(void **state)
{
    struct job job = { .layout = { .dp = 3, .schedule = HKT_PIPE_1F1B }, .dtype = HKT_F32, .text = text_path };
    const struct ranks_job ranks = { .kind = RANKS_THREADS, .nranks = 3, .settings = in_rank_order, .leaves_descriptors = true,
                                     .fn = flip, .arg = &job };

    (void)state;
    ranks_run(&ranks);
}

/* The first loss scale is too large: all ranks skip steps, without a trace but a smaller scale, until it is not; it grows again. */
static void overflow(struct ranks_rank *rank)
{
    struct job *job = rank->arg;
    const struct hkt_train_config config = config_of(job);
    struct hkt_train_report report = { .skipped = 1 };
    struct hkt_trainer *t = NULL;
    double scale = job->loss_scale, before, after = 0;
    int32_t skips = 0;

    require_ok(rank, hkt_trainer_create(&config, rank->comm, &t), "create");
    require_ok(rank, hkt_trainer_evaluate(t, 1, &before), "evaluate");
    while (report.skipped && skips < 100) {
        require_ok(rank, hkt_trainer_step(t, &report), "step");
        ranks_require(rank, report.loss_scale == scale, "a scale of %g, not %g", report.loss_scale, scale);
        if (!report.skipped || skips == 0)
            require_ok(rank, hkt_trainer_evaluate(t, 1, &after), "evaluate");
        ranks_require(rank, (after == before) == (report.skipped != 0), "a step was %s, the loss is %.17g after %.17g",
                      report.skipped ? "skipped" : "made", after, before);
        skips += report.skipped;
        if (report.skipped) {
            ranks_require(rank, hkt__engine_clock_get(t->engine).loss_scale == scale / 2, "the scale is not halved");
            scale /= 32; /* the test has less time than training */
            hkt__engine_clock_set(t->engine, &(struct hkt__engine_clock){ 0, scale, 0 });
        }
    }
    const int32_t mine = skips;

    ranks_require_ok(rank, hkt_all_reduce(&skips, &skips, 1, HKT_INT32, HKT_SUM, rank->comm, NULL), "sum");
    ranks_require(rank, mine > 0 && mine < 100 && skips == mine * rank->nranks, "%d steps skipped, %d on all ranks", mine, skips);
    hkt__engine_clock_set(t->engine, &(struct hkt__engine_clock){ 1, 1024, 1999 });
    for (int i = 0; i < 2; i++) {
        require_ok(rank, hkt_trainer_step(t, &report), "step");
        ranks_require(rank, report.loss_scale == 1024 * (i + 1) && !report.skipped, "a scale of %g", report.loss_scale);
    }
    require_ok(rank, hkt_trainer_destroy(t), "destroy");
}

static void overflows_are_skipped_by_all(void **state)
{
    static const struct layout some[] = { { .nranks = 2, .dp = 2, .zero = 2 }, { .nranks = 4, .tp = 2, .pp = 2 } };
    const struct outcome want = run((struct job){ .layout = some[0], .dtype = HKT_F64 });

    (void)state;
    for (int i = ranks_small() ? 1 : 0; i < 2; i++) {
        struct job job = { .layout = some[i], .dtype = HKT_F32, .loss_scale = 0x1p126, .text = text_path };
        const struct ranks_job ranks = { .kind = RANKS_THREADS, .nranks = some[i].nranks, .settings = in_rank_order,
                                         .leaves_descriptors = true, .fn = overflow, .arg = &job };

        job.layout.schedule = HKT_PIPE_1F1B;
        ranks_run(&ranks);
    }
    require_close((struct job){ .layout = some[0], .dtype = HKT_F64, .loss_scale = 1024 }, &want, 1e-14);
}

/* ---- all of them ---- */

/* What one rank does, by optimizer, dropout, clipping and experts. */
static const struct outcome *reference_of(const struct job *job)
{
    static struct outcome known[16];
    static bool is_known[16];
    const int i = (job->optimizer == HKT_TRAIN_SGD) + 2 * job->dropout + 4 * job->no_clip + 8 * (job->experts > 0);

    if (!is_known[i])
        known[i] = run((struct job){ .layout = one, .dtype = HKT_F64, .optimizer = job->optimizer, .dropout = job->dropout,
                                     .no_clip = job->no_clip, .experts = job->experts });
    is_known[i] = true;
    return &known[i];
}

/* A layout in turn with every other choice. zero 4: hybrid. */
static void run_tuple(struct layout layout, int zero, int turn)
{
    static const int micros[] = { 1, 1, 3, 2, 1, 6, 4 };
    const int sequences = 12 / layout.dp;
    struct job job = { .dtype = HKT_F64, .optimizer = turn % 2 == 0 ? HKT_TRAIN_ADAMW : HKT_TRAIN_SGD, .dropout = turn / 2 % 2,
                       .no_clip = turn % 5 == 0, .experts = layout.ep > 1 || turn % 4 == 0 ? 4 : 0 };

    layout.zero = zero < 4 ? zero : 1 + turn % 3;
    layout.shard = zero < 4 ? 0 : 2;
    layout.recompute = (enum hkt_recompute)(turn % 3);
    layout.micro = job.experts == 0 && sequences % micros[turn % 7] == 0 ? micros[turn % 7] : 1; /* balance is a micro-batch's mean */
    layout.every = layout.zero >= 2 && turn % 4 == 1;
    layout.keep = layout.zero == 3 && turn % 3 == 1;
    layout.prefetch = turn % 4;
    layout.no_overlap = turn % 3 == 2;
    job.layout = layout;
    require_close(job, reference_of(&job), 1e-11);
}

/* dp, tp, pp, ep on up to four ranks, sequence cut or not, all schedules, ZeRO 0 to 3 and hybrid. First: the turn of the first. */
static int run_tuples(int stride, int first)
{
    int turn = 0, count = 0;

    for (int code = 0; code < 4 * 4 * 3 * 4 * 2 * 4 * 5; code++) {
        const int dp = 1 + code % 4, tp = 1 + code / 4 % 4, pp = 1 + code / 16 % 3, ep = 1 + code / 48 % 4, sp = code / 192 % 2;
        const enum hkt_pipe_kind kind = (enum hkt_pipe_kind)(HKT_PIPE_GPIPE + code / 384 % 4);
        const int chunks = kind == HKT_PIPE_INTERLEAVED ? 2 : 1, zero = code / 1536;

        if (dp * tp * pp > 4 || dp * tp * pp == 1 || tp == 3 || dp % ep != 0 || 4 % ep != 0 || sp > (tp > 1) || pp * chunks > 3
            || (zero == 4 && dp != 4) || turn++ % stride != 0)
            continue;
        run_tuple((struct layout){ .nranks = dp * tp * pp, .dp = dp, .tp = tp, .pp = pp, .ep = ep, .sp = sp, .chunks = chunks,
                                   .schedule = kind }, zero, first + turn);
        count++;
    }
    print_message("%d of %d tuples\n", count, turn);
    return count;
}

/* One in many; with HOCKET_TEST_ALL=N each, N times, each time with other choices: half a minute a time. */
static void tuples_of_few_ranks(void **state)
{
    const char *all = getenv("HOCKET_TEST_ALL");
    char *end = NULL;
    const long rounds = all != NULL ? strtol(all, &end, 10) : 0;

    (void)state;
    assert_true(end == NULL || (end != all && *end == '\0' && rounds > 0));
    for (int i = 0; i < rounds; i++)
        assert_true(run_tuples(1, 11 * i) > 300); /* no period of a choice divides by 11 */
    if (rounds == 0)
        assert_true(run_tuples(ranks_small() ? 167 : 59, 0) > 0);
}

static void experts_train_the_same_model(void **state)
{
    static const struct layout with_experts[] = {
        { .nranks = 2, .dp = 2, .ep = 2 },
        { .nranks = 4, .dp = 4, .ep = 2, .zero = 3 },
        { .nranks = 4, .dp = 2, .tp = 2, .ep = 2, .zero = 1 },
    };
    const struct outcome want = run((struct job){ .layout = one, .dtype = HKT_F64, .experts = 3 });
    const struct outcome even = run((struct job){ .layout = one, .dtype = HKT_F64, .experts = 4 });

    const struct outcome rough = run((struct job){ .layout = one, .dtype = HKT_F32, .experts = 4 });

    (void)state;
    /* As long as no choice of a router lies within rounding: here none does in four steps. */
    require_close((struct job){ .layout = { .nranks = 2, .dp = 2, .ep = 2 }, .dtype = HKT_F32, .experts = 4 }, &rough, 1e-5);
    require_close((struct job){ .layout = { .nranks = 2, .pp = 2 }, .dtype = HKT_F64, .experts = 3 }, &want, 1e-10);
    for (size_t i = 0; i < sizeof with_experts / sizeof with_experts[0]; i++)
        require_close((struct job){ .layout = with_experts[i], .dtype = HKT_F64, .experts = 4 }, &even, 1e-10);
}

static void stages_and_schedules_give_the_same_bits(void **state)
{
    static const struct layout same[] = {
        { .nranks = 2, .dp = 2, .zero = 1, .prefetch = 1 }, { .nranks = 2, .dp = 2, .zero = 2, .no_overlap = 1 },
        { .nranks = 2, .dp = 2, .zero = 3, .prefetch = 3 }, { .nranks = 2, .dp = 2, .zero = 3, .keep = 1, .no_overlap = 1 },
        { .nranks = 2, .dp = 2, .zero = 3, .recompute = HKT_RECOMPUTE_SELECTIVE },
    };
    const enum hkt_dtype dtypes[] = { HKT_F32, HKT_BF16 };

    (void)state;
    for (int d = 0; d < 2; d++) {
        const struct outcome want = run((struct job){ .layout = { .nranks = 2, .dp = 2 }, .dtype = dtypes[d], .dropout = 1 });

        for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
            if (!ranks_small() || i % 2 == (size_t)d) /* sanitizers: each layout once */
                require_close((struct job){ .layout = same[i], .dtype = dtypes[d], .dropout = 1 }, &want, 0);
    }
}

/* ---- checkpoints ---- */

static void bf16_and_sgd_resume_bit_for_bit(void **state)
{
    const struct layout layout = { .nranks = 2, .dp = 2, .zero = 2 };
    char path[300];

    (void)state;
    snprintf(path, sizeof path, "%s/bf16", folder);
    for (int sgd = 0; sgd < 2; sgd++) {
        const enum hkt_train_optimizer optimizer = sgd ? HKT_TRAIN_SGD : HKT_TRAIN_ADAMW;
        const struct outcome want = run((struct job){ .layout = layout, .dtype = HKT_BF16, .save = path, .optimizer = optimizer,
                                                      .dropout = 1 });
        const struct outcome got = run((struct job){ .layout = layout, .dtype = HKT_BF16, .resume = path,
                                                     .optimizer = optimizer, .dropout = 1 });

        assert_true(distance(&got, &want, SAVED_AT) == 0);
    }
}

static void evaluation_drops_nothing(void **state)
{
    struct job job = { .layout = one, .dtype = HKT_F64, .text = text_path };
    struct hkt_train_config config = config_of(&job);
    double loss[2] = { 0, 1 };

    (void)state;
    config.layout.schedule = HKT_PIPE_1F1B;
    for (int i = 0; i < 2; i++) {
        struct hkt_trainer *trainer = NULL;

        config.dropout = config.attention_dropout = 0.5 * i;
        assert_int_equal(hkt_trainer_create(&config, NULL, &trainer), HKT_OK);
        assert_int_equal(hkt_trainer_evaluate(trainer, 1, &loss[i]), HKT_OK);
        assert_int_equal(hkt_trainer_destroy(trainer), HKT_OK);
    }
    assert_true(loss[0] == loss[1]);
}

static void another_model_is_not_resumed(void **state)
{
    struct job job = { .layout = one, .dtype = HKT_F64, .text = text_path };
    struct hkt_train_config config = config_of(&job);
    struct hkt_trainer *trainer = NULL;
    struct hkt_train_report report;
    char path[300];

    (void)state;
    config.layout.schedule = HKT_PIPE_1F1B;
    snprintf(path, sizeof path, "%s/other", folder);
    assert_int_equal(hkt_trainer_create(&config, NULL, &trainer), HKT_OK);
    assert_int_equal(hkt_trainer_resume(trainer, path), HKT_ERR_SYSTEM);
    assert_non_null(strstr(hkt_parallel_last_error(), "holds no checkpoint"));
    assert_int_equal(hkt_trainer_step(trainer, &report), HKT_OK);
    assert_int_equal(hkt_trainer_save(trainer, path, 0), HKT_OK);
    assert_int_equal(hkt_trainer_destroy(trainer), HKT_OK);
    config.shape.hidden = 28;
    assert_int_equal(hkt_trainer_create(&config, NULL, &trainer), HKT_OK);
    assert_int_equal(hkt_trainer_resume(trainer, path), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_parallel_last_error(), "whose hidden is 20, this one's is 28"));
    assert_int_equal(hkt_trainer_load_weights(trainer, path), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_parallel_last_error(), "this model's is"));
    assert_int_equal(hkt_trainer_destroy(trainer), HKT_OK);
}

/* GPT-2 as Hugging Face publishes it: names without "transformer.", f16 numbers, nothing of ours in the header. Each number is
 * one that tells its place. */
static double half_at(uint64_t i)
{
    return 0.0625 * (1 + (double)(i % 1024) / 1024); /* bits 0x2c00 + i % 1024 */
}

static void write_as_published(const char *from, const char *to)
{
    struct hkt__st_file file;
    char path[512], *head = NULL;
    uint64_t end = 0;

    snprintf(path, sizeof path, "%s/model.safetensors", from);
    assert_int_equal(hkt__st_open(path, &file), HKT_OK);
    for (int t = 0; t < file.ntensors; t++) {
        assert_int_equal(strncmp(file.tensors[t].name, "transformer.", 12), 0);
        memmove(file.tensors[t].name, file.tensors[t].name + 12, strlen(file.tensors[t].name + 12) + 1);
        file.tensors[t].dtype = HKT_F16;
    }
    assert_int_equal(hkt__st_layout(file.tensors, file.ntensors, NULL, &head, &end), HKT_OK);
    assert_true(access(to, F_OK) == 0 || mkdir(to, 0700) == 0);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    FILE *out = fopen(path, "wb");

    assert_non_null(out);
    assert_int_equal(fwrite(head, 1, file.tensors[0].first, out), file.tensors[0].first);
    for (uint64_t i = 0; i < (end - file.tensors[0].first) / 2; i++) {
        const uint16_t bits = (uint16_t)(0x2c00 + i % 1024);

        assert_int_equal(fwrite(&bits, 2, 1, out), 1);
    }
    assert_int_equal(fclose(out), 0);
    hkt__parallel_free(head);
    hkt__st_close(&file);
}

static void published_weights_are_read(void **state)
{
    struct job job = { .layout = { .nranks = 1, .schedule = HKT_PIPE_1F1B }, .dtype = HKT_F64, .text = text_path };
    const struct hkt_train_config config = config_of(&job);
    struct hkt_trainer *trainer = NULL;
    struct hkt__st_file file;
    char ours[300], theirs[300], step[340], path[400];
    double value;

    (void)state;
    snprintf(ours, sizeof ours, "%s/ours", folder);
    snprintf(theirs, sizeof theirs, "%s/theirs", folder);
    assert_int_equal(hkt_trainer_create(&config, NULL, &trainer), HKT_OK);
    assert_int_equal(hkt_trainer_save(trainer, ours, 0), HKT_OK);
    snprintf(step, sizeof step, "%s/step-00000000", ours);
    write_as_published(step, theirs);
    assert_int_equal(hkt_trainer_load_weights(trainer, theirs), HKT_OK);
    assert_int_equal(hkt_trainer_save(trainer, ours, 0), HKT_OK);
    assert_int_equal(hkt_trainer_resume(trainer, theirs), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_parallel_last_error(), "hocket train did not write it"));
    assert_int_equal(hkt_trainer_destroy(trainer), HKT_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", step);
    assert_int_equal(hkt__st_open(path, &file), HKT_OK);
    const uint64_t first = file.tensors[0].first;

    assert_non_null(hkt__st_find(&file, "transformer.h.2.attn.c_attn.weight"));
    assert_int_equal(hkt__st_find(&file, "transformer.h.2.attn.c_attn.weight")->shape[0], 20); /* Conv1D: [in][out] */
    for (int t = 0; t < file.ntensors; t++)
        for (uint64_t at = 0; at < file.tensors[t].bytes; at += 8) {
            assert_int_equal(hkt__st_read(&file, &file.tensors[t], at, &value, 8), HKT_OK);
            assert_true(value == half_at((file.tensors[t].first + at - first) / 8));
        }
    hkt__st_close(&file);
}

/* Counter 0: bytes of parameters that ranks have read, together. */
static void count_reads(struct ranks_rank *rank)
{
    struct job *job = rank->arg;
    const struct hkt_train_config config = config_of(job);
    struct hkt_trainer *t = NULL;
    char path[400];
    uint64_t bytes = 0;

    require_ok(rank, hkt_trainer_create(&config, rank->comm, &t), "create");
    const struct hkt__checkpoint checkpoint = { .own = hkt__gpt_own(t->gpt), .infos = t->infos, .engine = t->engine,
                                                .ops = hkt__gpt_ops(t->gpt), .memory = &t->memory, .comm = t->save_comm };

    require_ok(rank, hkt__checkpoint_find(job->resume, path, sizeof path), "find");
    require_ok(rank, hkt__checkpoint_load(&checkpoint, path, true, &bytes), "load");
    atomic_fetch_add(&rank->shared->counters[0], (int64_t)bytes);
    ranks_require(rank, rank->nranks == 1 || bytes <= (uint64_t)hkt_trainer_params(t) * 8 * 2 / (uint64_t)rank->nranks,
                  "%llu bytes read by one rank", (unsigned long long)bytes);
    if (rank->rank == 0)
        atomic_store(&rank->shared->counters[1], hkt_trainer_params(t) * 8);
    require_ok(rank, hkt_trainer_destroy(t), "destroy");
}

static void ranks_read_just_their_part(void **state)
{
    char path[300];

    (void)state;
    snprintf(path, sizeof path, "%s/reads", folder);
    run((struct job){ .layout = { .nranks = 2, .tp = 2 }, .dtype = HKT_F64, .save = path });
    for (int nranks = 1; nranks <= 4; nranks++) {
        struct job job = { .layout = { .nranks = nranks, .dp = nranks, .zero = 3, .schedule = HKT_PIPE_1F1B }, .dtype = HKT_F64,
                           .resume = path, .text = text_path };
        const struct ranks_job ranks = { .kind = RANKS_THREADS, .nranks = nranks, .fn = count_reads, .arg = &job,
                                         .leaves_descriptors = true };
        struct ranks_shared *shared = NULL;

        if (!ranks_try(&ranks, &shared))
            fail_msg("%d ranks: %s", nranks, shared->text);
        assert_int_equal(atomic_load(&shared->counters[0]), atomic_load(&shared->counters[1])); /* each element once */
        ranks_release(shared);
    }
}

/* ---- decoding ---- */

struct decode_job {
    const char *dir;
    enum hkt_dtype dtype;
};

/* Mean loss of the first held-out sequence by cached decoding, and some likeliest tokens. */
static void decode(struct ranks_rank *rank)
{
    const struct decode_job *job = rank->arg;
    const struct hkt_generate_config config = { .dir = job->dir, .dtype = job->dtype };
    struct hkt_generator *generator = NULL;
    FILE *file = fopen(text_path, "rb");
    unsigned char bytes[9];
    double logits[269], loss = 0;
    long all;

    ranks_require(rank, file != NULL && fseek(file, 0, SEEK_END) == 0, "the text");
    all = ftell(file);
    ranks_require(rank, fseek(file, all - (long)((double)all * 0.2), SEEK_SET) == 0 && fread(bytes, 1, 9, file) == 9, "the text");
    fclose(file);
    require_ok(rank, hkt_generator_create(&config, rank->comm, &generator), "generator");
    for (int i = 0; i < 8; i++) {
        const int32_t token = bytes[i];
        double sum = 0;

        require_ok(rank, hkt_generator_prompt(generator, &token, 1), "prompt");
        require_ok(rank, hkt_generator_logits(generator, logits), "logits");
        for (int v = 0; v < 269; v++)
            sum += exp(logits[v]);
        loss += (log(sum) - logits[bytes[i + 1]]) / 8;
    }
    int32_t token = -1;

    require_ok(rank, hkt_generator_next(generator, &token), "next");
    ranks_require(rank, hkt_generator_next(generator, &token) == HKT_ERR_INVALID, "the tenth of 9 positions");
    ranks_require_text(rank, hkt_parallel_last_error(), "all 9 positions are used");
    /* Of nine tokens: two in each of three layers, and one for the embedding. */
    ranks_require(rank, hkt__gpt_traffic(generator->gpt)->calls[HKT__TRAFFIC_TP][HKT_ALL_REDUCE] == (rank->nranks > 1 ? 9 * 7 : 0),
                  "all-reduces of nine tokens");
    if (rank->rank == 0) {
        put(NULL, rank, 0, loss);
        put(NULL, rank, 1, token);
    }
    require_ok(rank, hkt_generator_destroy(generator), "destroy");
}

static void held_out_of_one(struct ranks_rank *rank)
{
    struct job *job = rank->arg;
    struct hkt_train_config config = config_of(job);
    struct hkt_trainer *trainer = NULL;
    double loss = 0;

    config.layout.global_batch = 1;
    require_ok(rank, hkt_trainer_create(&config, NULL, &trainer), "create");
    require_ok(rank, hkt_trainer_resume(trainer, job->resume), "resume");
    require_ok(rank, hkt_trainer_evaluate(trainer, 1, &loss), "evaluate");
    put(job, rank, 0, loss);
    require_ok(rank, hkt_trainer_destroy(trainer), "destroy");
}

static struct ranks_shared *run_ranks(int nranks, ranks_fn *fn, void *arg)
{
    const struct ranks_job ranks = { .kind = RANKS_THREADS, .nranks = nranks, .fn = fn, .arg = arg, .leaves_descriptors = true };
    struct ranks_shared *shared = NULL;

    if (!ranks_try(&ranks, &shared))
        fail_msg("%d ranks: %s", nranks, shared->text);
    return shared;
}

static void cached_decoding_is_the_model_that_was_trained(void **state)
{
    char path[300];

    (void)state;
    for (int experts = 0; experts <= 3; experts += 3) {
        snprintf(path, sizeof path, "%s/decode%d", folder, experts);
        run((struct job){ .layout = { .nranks = 2, .dp = 2 }, .dtype = HKT_F64, .experts = experts, .save = path });
        struct job job = { .layout = { .nranks = 1, .schedule = HKT_PIPE_1F1B }, .dtype = HKT_F64, .experts = experts,
                           .resume = path, .text = text_path };
        struct ranks_shared *shared = run_ranks(1, held_out_of_one, &job);
        const double want = counter(shared, 0);
        double token = -1;

        ranks_release(shared);
        for (int nranks = 1; nranks <= 4; nranks *= 2) {
            struct decode_job decoding = { path, HKT_F64 };

            shared = run_ranks(nranks, decode, &decoding);
            const double got = counter(shared, 0);

            if (apart(got, want) > 1e-12)
                fail_msg("%d ranks: the loss by cached decoding is %.17g, not %.17g", nranks, got, want);
            assert_true(nranks == 1 || counter(shared, 1) == token);
            token = counter(shared, 1);
            ranks_release(shared);
        }
    }
}

/* ---- refusals ---- */

static void refuse(struct hkt_train_config config, const char *why)
{
    struct hkt_trainer *trainer = NULL;

    assert_true(hkt_trainer_create(&config, NULL, &trainer) < 0);
    assert_null(trainer);
    if (strstr(hkt_parallel_last_error(), why) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", hkt_parallel_last_error(), why);
}

static void the_impossible_is_refused_with_its_numbers(void **state)
{
    struct job job = { .layout = { .nranks = 1, .schedule = HKT_PIPE_1F1B }, .dtype = HKT_F32, .text = text_path };
    const struct hkt_train_config good = config_of(&job);
    struct hkt_train_config c;

    (void)state;
    c = good, c.layout.dp = 2, refuse(c, "2");
    c = good, c.layout.seq = 11, refuse(c, "sequences of 11 tokens, but 9 positions");
    c = good, c.shape.vocab = 100, refuse(c, "a vocabulary of 100");
    c = good, c.shape.kv_heads = 3, refuse(c, "3");
    c = good, c.dtype = HKT_F16, refuse(c, "training in half");
    c = good, c.data = "/nonexistent/text", refuse(c, "/nonexistent/text cannot be read");
    c = good, c.held_out = 1, refuse(c, "a share of 1 cannot be held out");
    c = good, c.mesh = "tp dp", refuse(c, "must name tp, dp and pp");
    c = good, c.mesh = "tp dp dp", refuse(c, "is no order of the axes");
    c = good, c.reduce_every = 1, refuse(c, "use stage 2 or 3");
    c = good, c.prefetch = 17, c.layout.zero = 3, refuse(c, "prefetch of 17 units");
}

/* ---- a text, and a folder for checkpoints ---- */

static int make_text(void **state)
{
    (void)state;
    return text_make(4000) ? 0 : -1;
}

static int remove_text(void **state)
{
    (void)state;
    return text_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_trains_the_same_model),
        cmocka_unit_test(tuples_of_few_ranks),
        cmocka_unit_test(a_flipped_bit_is_noticed),
        cmocka_unit_test(overflows_are_skipped_by_all),
        cmocka_unit_test(experts_train_the_same_model),
        cmocka_unit_test(stages_and_schedules_give_the_same_bits),
        cmocka_unit_test(bf16_and_sgd_resume_bit_for_bit),
        cmocka_unit_test(another_model_is_not_resumed),
        cmocka_unit_test(evaluation_drops_nothing),
        cmocka_unit_test(published_weights_are_read),
        cmocka_unit_test(ranks_read_just_their_part),
        cmocka_unit_test(cached_decoding_is_the_model_that_was_trained),
        cmocka_unit_test(the_impossible_is_refused_with_its_numbers),
    };

    return cmocka_run_group_tests_name("train", tests, make_text, remove_text);
}
