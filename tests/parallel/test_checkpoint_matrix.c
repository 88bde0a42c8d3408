/* What could break: an element of a parameter or a moment comes back as another one's, or not at all, when a checkpoint of one
 * layout is loaded in a second one; what an earlier state left shows through; in the same layout a resumed run has other bits
 * than one that never stopped. Twelve layouts (data, tensor, sequence, pipeline with uneven and interleaved stages, experts, all
 * ZeRO stages, hybrid), each to each, for two models: tied with experts, and untied, gated, dense. The state is compared in
 * memory, element by element at its place in the whole tensor, before the files come into it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <math.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/train_state.h"
#include "ranks.h"
#include "text.h"

enum { STEPS = 4, SAVED_AT = 2, PARAMS_MAX = 256, ELEMS_MAX = 60000 };

struct layout {
    int nranks, dp, tp, pp, ep, zero, shard, sp, chunks;
    enum hkt_pipe_kind schedule;
    int every, prefetch;
};

static const struct layout layouts[] = {
    { .nranks = 1 },
    { .nranks = 2, .dp = 2, .zero = 1 },
    { .nranks = 3, .dp = 3, .zero = 2, .every = 1 },
    { .nranks = 4, .dp = 4, .zero = 3, .prefetch = 2 },
    { .nranks = 4, .dp = 4, .zero = 3, .shard = 2 },
    { .nranks = 4, .dp = 4, .ep = 2, .zero = 2 },
    { .nranks = 2, .tp = 2, .sp = 1 },
    { .nranks = 4, .tp = 4, .zero = 0 }, /* each key-value head on two ranks */
    { .nranks = 2, .pp = 2, .schedule = HKT_PIPE_ZB_H1, .zero = 3 },
    { .nranks = 4, .dp = 2, .pp = 2, .chunks = 2, .schedule = HKT_PIPE_INTERLEAVED, .zero = 1 },
    { .nranks = 3, .pp = 3, .schedule = HKT_PIPE_GPIPE },
    { .nranks = 8, .dp = 2, .tp = 2, .pp = 2, .ep = 2, .sp = 1, .zero = 1 },
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* The whole model's parameters and moments, each element where its whole tensor has it. */
struct state {
    double elems[HKT__STATE_COUNT][ELEMS_MAX];
};
struct run {
    struct state saved, end;          /* after SAVED_AT steps, and after STEPS */
    double loss[STEPS], norm[STEPS];
};

/* Memory that the ranks' processes share with the test. */
static struct run *runs; /* [LAYOUTS] */

struct job {
    bool is_dense; /* the model without experts */
    int layout;
    char (*path)[300]; /* [LAYOUTS] */
};

static struct hkt_train_config config_of(const struct job *job)
{
    const struct layout *l = &layouts[job->layout];
    struct hkt_train_config c = hkt_train_defaults();

    c.shape = (struct hkt_shape){ .layers = 5, .heads = 4, .kv_heads = 2, .hidden = 10, .head_dim = 4, .ffn = 7, .vocab = 269 };
    if (job->is_dense) {
        c.shape.gated = 1;
        c.norm = HKT_TRAIN_RMS_NORM;
    } else {
        c.shape.experts = 2;
        c.shape.top_k = 1;
        c.shape.positions = 9;
        c.shape.biases = c.shape.tied = 1;
    }
    c.layout = (struct hkt_layout){ .dp = l->dp, .tp = l->tp, .pp = l->pp, .ep = job->is_dense ? 1 : l->ep, .zero = l->zero,
                                    .shard = l->shard, .sequence_parallel = l->sp, .chunks = l->chunks,
                                    .schedule = l->schedule == HKT_PIPE_FORWARD ? HKT_PIPE_1F1B : l->schedule,
                                    .global_batch = 24, .micro_batch = 12 / (l->dp > 0 ? l->dp : 1), .seq = 4 };
    c.data = text_path;
    c.dtype = HKT_F64;
    c.clip = 0.3; /* below every norm here */
    c.lr = 3e-3;
    c.warmup_steps = 2;
    c.decay_steps = 10;
    c.balance_weight = c.z_weight = 0; /* they are means over a micro-batch, and these are not of one size here */
    c.reduce_every = l->every;
    c.prefetch = l->prefetch;
    c.bucket_bytes = l->zero < 2 ? 4096 : 0;
    return c;
}

static void require_ok(struct ranks_rank *rank, enum hkt_status got, const char *what)
{
    ranks_require(rank, got == HKT_OK, "%s: %s", what, hkt_parallel_last_error());
}

/* ---- the state in memory ---- */

/* Where each whole tensor begins. */
static void places(struct ranks_rank *rank, const struct hkt__own *own, int64_t *out_first)
{
    int64_t at = 0;

    ranks_require(rank, own->nparams <= PARAMS_MAX, "%d tensors", own->nparams);
    for (int p = 0; p < own->nparams; p++) {
        int64_t elems = 1;

        for (int d = 0; d < own->params[p].ndims; d++)
            elems *= own->params[p].shape[d];
        out_first[p] = at;
        at += elems;
    }
    ranks_require(rank, at <= ELEMS_MAX, "%lld elements", (long long)at);
}

static void copy_state(struct ranks_rank *rank, const struct hkt_trainer *t, struct state *out)
{
    const struct hkt__own *own = hkt__gpt_own(t->gpt);
    int64_t first[PARAMS_MAX];

    places(rank, own, first);
    for (int state = 0; state < HKT__STATE_COUNT; state++) {
        struct hkt__own_cursor cursor = { 0 };
        struct hkt__run run;

        while (hkt__own_next(own, true, &cursor, &run))
            memcpy(&out->elems[state][first[run.param] + run.global_first],
                   hkt__engine_state(t->engine, &run, (enum hkt__state)state), (size_t)run.count * sizeof(double));
    }
}

/* Everything that this rank updates, counted or not; and what forward reads, where it is whole. */
static void require_state(struct ranks_rank *rank, const struct hkt_trainer *t, const struct state *want, const char *what)
{
    static const char *const names[] = { "the parameter", "the first moment", "the second moment" };
    const struct hkt__own *own = hkt__gpt_own(t->gpt);
    int64_t first[PARAMS_MAX];

    places(rank, own, first);
    for (int state = 0; state < HKT__STATE_COUNT; state++) {
        struct hkt__own_cursor cursor = { 0 };
        struct hkt__run run;

        while (hkt__own_next(own, false, &cursor, &run))
            ranks_require(rank,
                          memcmp(&want->elems[state][first[run.param] + run.global_first],
                                 hkt__engine_state(t->engine, &run, (enum hkt__state)state),
                                 (size_t)run.count * sizeof(double)) == 0,
                          "%s: %s of %s differs in elements %lld to %lld", what, names[state], own->params[run.param].name,
                          (long long)run.global_first, (long long)(run.global_first + run.count - 1));
    }
    for (int p = 0; p < own->nparams && t->config.layout.zero < 3; p++) {
        const double *held = hkt__engine_param(t->engine, p);

        for (int64_t i = 0, count; i < own->held[p].local_count; i += count) {
            const int64_t global = hkt__held_global(&own->params[p], &own->held[p], i, &count);

            ranks_require(rank,
                          memcmp(&want->elems[HKT__STATE_MASTER][first[p] + global], held + i, (size_t)count * sizeof *held) == 0,
                          "%s: forward would read another %s", what, own->params[p].name);
        }
    }
}

/* ---- saving in each layout ---- */

static void step(struct ranks_rank *rank, struct hkt_trainer *t, struct hkt_train_report *out_report)
{
    require_ok(rank, hkt_trainer_step(t, out_report), "step");
}

static void save(struct ranks_rank *rank)
{
    const struct job *job = rank->arg;
    const struct hkt_train_config config = config_of(job);
    struct run *run = &runs[job->layout];
    struct hkt_trainer *t = NULL;

    require_ok(rank, hkt_trainer_create(&config, rank->comm, &t), "create");
    for (int s = 0; s < STEPS; s++) {
        struct hkt_train_report report;

        step(rank, t, &report);
        if (rank->rank == 0) {
            run->loss[s] = report.loss;
            run->norm[s] = report.grad_norm;
        }
        if (s + 1 == SAVED_AT) {
            copy_state(rank, t, &run->saved);
            require_ok(rank, hkt_trainer_save(t, job->path[job->layout], job->layout % 2), "save");
        }
    }
    copy_state(rank, t, &run->end);
    require_ok(rank, hkt_trainer_destroy(t), "destroy");
}

/* ---- loading in each ---- */

static double apart(double a, double b)
{
    return fabs(a - b) / fabs(b);
}

/* All; under the sanitizers a few of the first model, and fewer of the second. */
static bool is_run(bool is_dense, int layout)
{
    return !ranks_small() || (layout % 3 == 0 && layout != 3) || (!is_dense && (layout == 3 || layout == 5 || layout == 8));
}

/* All pairs of the first model. */
static bool is_wanted(const struct job *job, int from)
{
    const int every = job->is_dense || ranks_small() ? 3 : 1;

    return is_run(job->is_dense, from) && (from == job->layout || (from + job->layout) % every == 0);
}

/* One trainer goes from checkpoint to checkpoint, and trains between: nothing of the last one may stay. */
static void load(struct ranks_rank *rank)
{
    const struct job *job = rank->arg;
    const struct hkt_train_config config = config_of(job);
    struct hkt_trainer *t = NULL;

    require_ok(rank, hkt_trainer_create(&config, rank->comm, &t), "create");
    for (int from = 0; from < LAYOUTS; from++) {
        const bool is_same = from == job->layout;
        const struct run *want = &runs[from];
        char what[64];

        if (!is_wanted(job, from))
            continue;
        snprintf(what, sizeof what, "saved in layout %d, loaded in %d", from, job->layout);
        require_ok(rank, hkt_trainer_resume(t, job->path[from]), what);
        ranks_require(rank, hkt_trainer_steps(t) == SAVED_AT, "%s: step %lld", what, (long long)hkt_trainer_steps(t));
        require_state(rank, t, &want->saved, what);
        for (int s = SAVED_AT; s < (is_same ? STEPS : SAVED_AT + 1); s++) {
            struct hkt_train_report report;

            step(rank, t, &report);
            const double worst = fmax(apart(report.loss, want->loss[s]), apart(report.grad_norm, want->norm[s]));

            ranks_require(rank, worst <= (is_same ? 0 : 1e-10), "%s: step %d is %g apart", what, s + 1, worst);
        }
        if (is_same)
            require_state(rank, t, &want->end, "trained on in the same layout");
    }
    require_ok(rank, hkt_trainer_destroy(t), "destroy");
}

static void run_ranks(ranks_fn *fn, struct job *job)
{
    static const char *const in_rank_order[] = { "HOCKET_DETERMINISTIC=rank_order", NULL };
    const struct ranks_job ranks = { .kind = RANKS_THREADS, .nranks = layouts[job->layout].nranks, .settings = in_rank_order,
                                     .leaves_descriptors = true, .fn = fn, .arg = job };
    struct ranks_shared *shared = NULL;

    if (!ranks_try(&ranks, &shared))
        fail_msg("layout %d, %s: %s", job->layout, job->is_dense ? "dense" : "experts", shared->text);
    ranks_release(shared);
}

static void each_to_each(bool is_dense)
{
    char path[LAYOUTS][300];
    struct job job = { .is_dense = is_dense, .path = path };

    for (int i = 0; i < LAYOUTS; i++)
        snprintf(path[i], sizeof path[i], "%s/%s%d", folder, is_dense ? "dense" : "experts", i);
    for (job.layout = 0; job.layout < LAYOUTS; job.layout++)
        if (is_run(is_dense, job.layout))
            run_ranks(save, &job);
    for (job.layout = 0; job.layout < LAYOUTS; job.layout++)
        if (is_run(is_dense, job.layout))
            run_ranks(load, &job);
}

static void tied_with_experts(void **state)
{
    (void)state;
    each_to_each(false);
}

static void untied_and_dense(void **state)
{
    (void)state;
    each_to_each(true);
}

/* Layouts differ by rounding, so a checkpoint compared with the wrong run would be noticed. */
static void runs_have_states_of_their_own(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS; i++)
        assert_true(!is_run(true, i) || (runs[i].loss[0] > 5 && memcmp(&runs[i].saved, &runs[i].end, sizeof runs[i].saved) != 0));
    assert_true(memcmp(&runs[0].saved, &runs[6].saved, sizeof runs[0].saved) != 0);
}

static int make_text(void **state)
{
    (void)state;
    runs = mmap(NULL, LAYOUTS * sizeof *runs, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return runs != MAP_FAILED && text_make(4000) ? 0 : -1;
}

static int remove_text(void **state)
{
    (void)state;
    munmap(runs, LAYOUTS * sizeof *runs);
    return text_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tied_with_experts),
        cmocka_unit_test(untied_and_dense),
        cmocka_unit_test(runs_have_states_of_their_own),
    };

    return cmocka_run_group_tests_name("checkpoint_matrix", tests, make_text, remove_text);
}
