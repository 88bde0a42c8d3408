/* Steps of a trainer: a batch chosen, run through the model, and reported alike on all ranks. */
#include <math.h>
#include <string.h>

#include "parallel/exact.h"
#include "parallel/engine_parts.h"
#include "parallel/fail.h"
#include "parallel/train_state.h"

#define PI 3.14159265358979323846

/* Warm-up, then a cosine, then lr_min. step from 1. */
static double rate(const struct hkt_train_config *c, int64_t step)
{
    if (step < c->warmup_steps)
        return c->lr * (double)step / (double)c->warmup_steps;
    if (c->decay_steps <= c->warmup_steps)
        return c->lr;
    if (step >= c->decay_steps)
        return c->lr_min;
    const double share = (double)(step - c->warmup_steps) / (double)(c->decay_steps - c->warmup_steps);

    return c->lr_min + (c->lr - c->lr_min) * 0.5 * (1 + cos(PI * share));
}

/* This rank's part of the batch: `take` tells the sequence at a place of the whole batch. */
static void fill(struct hkt_trainer *t, int64_t number,
                 void (*take)(const struct hkt_trainer *t, int64_t number, int64_t index, int32_t *ids, int32_t *targets))
{
    const struct hkt_layout *l = &t->config.layout;
    const int64_t first = hkt_mesh_coord(t->mesh, "dp", t->rank) * (l->global_batch / l->dp);

    for (int64_t m = 0; m < t->nmicros; m++) {
        const int64_t place = m * l->micro_batch;

        for (int64_t s = 0; s < l->micro_batch; s++)
            take(t, number, first + place + s, t->ids + (place + s) * l->seq, t->targets + (place + s) * l->seq);
        t->micros[m] = (struct hkt__gpt_micro){ t->ids + place * l->seq, t->targets + place * l->seq,
                                                (first + place) * l->seq };
    }
}

static void take_train(const struct hkt_trainer *t, int64_t number, int64_t index, int32_t *ids, int32_t *targets)
{
    hkt__data_train(&t->data, number, index, t->config.layout.seq, ids, targets);
}

static void take_held(const struct hkt_trainer *t, int64_t number, int64_t index, int32_t *ids, int32_t *targets)
{
    hkt__data_held(&t->data, number * t->config.layout.global_batch + index, t->config.layout.seq, ids, targets);
}

/* What is summed over all ranks: exactly, so in any order. */
struct totals {
    struct hkt__exact loss, balance, z;
    int64_t tokens, dropped;
};

/* Of tensor-parallel ranks, which have the same, one speaks. Loss and tokens are 0 but on the last stage. */
static enum hkt_status add_up(struct hkt_trainer *t, const struct hkt__gpt_result *result, struct totals *totals)
{
    const struct hkt__link world = { .comm = t->comm, .traffic = hkt__gpt_traffic(t->gpt), .axis = HKT__TRAFFIC_SCALARS,
                                     .size = t->nranks, .rank = t->rank };
    enum hkt_status rc;

    memset(totals, 0, sizeof *totals);
    if (hkt_mesh_coord(t->mesh, "tp", t->rank) == 0) {
        totals->loss = result->loss;
        hkt__exact_add(&totals->balance, result->balance);
        hkt__exact_add(&totals->z, result->z);
        totals->tokens = result->tokens;
        totals->dropped = result->dropped;
    }
    struct hkt__exact *sums[] = { &totals->loss, &totals->balance, &totals->z };

    for (size_t i = 0; i < 3; i++)
        hkt__exact_settle(sums[i]);
    rc = hkt__link_all_reduce(&world, totals, sizeof *totals / sizeof(int64_t), HKT_INT64, HKT_SUM);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < 3; i++)
        hkt__exact_settle(sums[i]);
    return HKT_OK;
}

static enum hkt_status run_model(struct hkt_trainer *t, const struct hkt_pipe *pipe, int64_t number, struct totals *totals)
{
    struct hkt__gpt_hooks hooks = hkt__train_hooks;
    const struct hkt__gpt_step step = {
        .pipe = pipe, .micros = t->micros, .number = (uint64_t)number, .scale = hkt__engine_loss_scale(t->engine),
        .reduces_every = t->config.reduce_every, .no_dropout = pipe->kind == HKT_PIPE_FORWARD, .hooks = &hooks,
        .routing = pipe->kind == HKT_PIPE_FORWARD ? NULL : t->routing,
    };
    struct hkt__gpt_result result;

    hooks.arg = t;
    memset(&result, 0, sizeof result);
    const enum hkt_status rc = hkt__gpt_forward_backward(t->gpt, &step, &result);

    t->dropped = result.dropped;
    return rc == HKT_OK ? add_up(t, &result, totals) : rc;
}

/* A new measurement begins: of a step, or of what comes between two. */
static void mark_memory(struct hkt_trainer *t)
{
    for (int c = 0; c < HKT__MEMORY_COUNT; c++)
        t->peak[c] = t->memory.peak[c] > t->peak[c] ? t->memory.peak[c] : t->peak[c];
    hkt__memory_mark(&t->memory);
}

static void note_memory(struct hkt_trainer *t, struct hkt_train_report *report)
{
    report->memory_bytes = t->memory.peak_all > t->between ? t->memory.peak_all : t->between;
    memcpy(t->step_peak, t->memory.peak, sizeof t->step_peak);
    mark_memory(t);
}

static int64_t waited_ns(const struct hkt_trainer *t)
{
    int64_t ns = 0;

    for (int a = 0; a < HKT__TRAFFIC_COUNT; a++)
        ns += t->timeline.waited_ns[a];
    return ns;
}

enum hkt_status hkt_trainer_step(struct hkt_trainer *t, struct hkt_train_report *out_report)
{
    const int64_t begin = hkt__timeline_now(), waited = waited_ns(t), number = t->step + 1;
    struct hkt__engine_result result;
    struct hkt_train_report report = { .step = number, .lr = rate(&t->config, number) };
    const struct hkt__traffic before = *hkt__gpt_traffic(t->gpt);
    struct totals totals;
    enum hkt_status rc = hkt__engine_start(t->engine);

    t->between = t->memory.peak_all;
    mark_memory(t);
    fill(t, number, take_train);
    if (rc == HKT_OK)
        rc = run_model(t, t->pipe, number, &totals);
    if (rc == HKT_OK)
        rc = hkt__engine_step(t->engine, (double)totals.tokens, report.lr, &result);
    if (rc < 0)
        return rc;
    t->step = number;
    report.tokens = totals.tokens;
    report.loss = hkt__exact_value(&totals.loss) / (double)totals.tokens;
    report.balance = hkt__exact_value(&totals.balance) / (double)totals.tokens;
    report.z = hkt__exact_value(&totals.z) / (double)totals.tokens;
    report.dropped = totals.dropped;
    report.grad_norm = result.norm;
    report.skipped = result.skipped;
    report.loss_scale = result.scale;
    report.seconds = (double)(hkt__timeline_now() - begin) * 1e-9;
    report.comm_seconds = (double)(waited_ns(t) - waited) * 1e-9;
    hkt__timeline_settle(&t->timeline);
    note_memory(t, &report);
    hkt__train_note_traffic(t, &before);
    rc = hkt__train_check(t);
    if (rc == HKT_OK)
        *out_report = report;
    return rc;
}

enum hkt_status hkt_trainer_evaluate(struct hkt_trainer *t, int batches, double *out_loss)
{
    struct hkt__exact loss;
    int64_t tokens = 0;

    if (hkt__data_held_count(&t->data, t->config.layout.seq) == 0 || batches < 1)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%lld bytes are held out, of which %d batches of sequences of %lld tokens "
                                  "were asked for", (long long)t->data.held_out, batches, (long long)t->config.layout.seq);
    hkt__exact_clear(&loss);
    for (int b = 0; b < batches; b++) {
        struct totals totals;

        fill(t, b, take_held);
        t->is_evaluating = true;
        const enum hkt_status rc = run_model(t, t->forward, b, &totals);

        t->is_evaluating = false;
        if (rc < 0)
            return rc;
        hkt__exact_merge(&loss, &totals.loss);
        tokens += totals.tokens;
    }
    *out_loss = hkt__exact_value(&loss) / (double)tokens;
    return HKT_OK;
}
