/* `hocket train`: trains a GPT on a text, in any layout. Rank 0 speaks; the others do the same in silence. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools.h"
#include "train.h"

#define TRACE_STEPS 3

struct run {
    struct train_options options;
    struct hkt_comm *comm;
    struct hkt_trainer *trainer;
    struct train_point *points; /* one a step */
    long count;
    bool speaks;
};

static int failed(const struct run *run, const char *what)
{
    /* Every rank fails alike; one tells, unless only another knows why. */
    if (run->speaks)
        hkt_tool_say("train", "%s: %s", what, hkt_parallel_last_error());
    return TOOL_FAILED;
}

/* Who is with whom. */
static void print_groups(const struct run *run)
{
    const struct hkt_mesh_print_opts opts = { .all_groups = 1 };
    struct hkt_mesh *mesh = NULL;

    if (hkt_mesh_create(hkt_trainer_mesh(run->trainer), hkt_comm_size(run->comm), &mesh) < 0
        || hkt_mesh_print(mesh, stdout, &opts) < 0)
        hkt_tool_say("train", "--groups: %s", hkt_parallel_last_error());
    hkt_mesh_destroy(mesh);
}

/* What sharding costs with several micro-batches: it is supported, and dear. */
static void print_cost(const struct hkt_train_config *c)
{
    const long long micros = c->layout.global_batch / c->layout.dp / c->layout.micro_batch;

    if (c->layout.zero == 3 && c->layout.dp > 1 && micros > 1)
        printf("zero 3 gathers each layer %lld times a step%s, with %lld micro-batches\n", micros * (c->keep_gathered ? 1 : 2),
               c->keep_gathered ? "" : " (--keep-gathered: half as often)", micros);
    if (c->reduce_every && c->layout.dp > 1 && micros > 1)
        printf("--reduce-every reduces gradients %lld times a step, not once\n", micros);
}

static void print_head(const struct run *run)
{
    const struct hkt_layout *l = &run->options.config.layout;
    const struct hkt_tokenizer *tokenizer = hkt_trainer_tokenizer(run->trainer);
    const int64_t bytes = hkt_trainer_data_bytes(run->trainer), tokens = hkt_trainer_data_tokens(run->trainer);

    printf("%lld parameters (%s), %lld bytes of text, mesh %s, zero %d, schedule %s\n",
           (long long)hkt_trainer_params(run->trainer), hkt_dtype_name(run->options.config.dtype), (long long)bytes,
           hkt_trainer_mesh(run->trainer), l->zero, hkt_pipe_kind_name(l->schedule));
    if (tokenizer != NULL)
        printf("%lld tokens of a vocabulary of %lld, %.3f bytes a token\n", (long long)tokens,
               (long long)hkt_tokenizer_vocab(tokenizer), (double)bytes / (double)tokens);
    printf("%lld sequences of %lld tokens a step, in micro-batches of %lld\n", (long long)l->global_batch, (long long)l->seq,
           (long long)l->micro_batch);
    print_cost(&run->options.config);
    if (run->options.shows_groups)
        print_groups(run);
    printf("%8s %9s %9s %10s %9s %8s\n", "step", "loss", "norm", "tokens/s", "memory", "waiting");
    fflush(stdout);
}

static void print_line(const struct run *run)
{
    const struct train_point *point = &run->points[run->count - 1];
    const struct hkt_train_report *r = &point->report;
    char memory[32];

    snprintf(memory, sizeof memory, "%.1f MiB", (double)r->memory_bytes / 1048576);
    printf("%8lld %9.4f %9.3f %10.0f %9s %7.1f%%", (long long)r->step, r->loss, r->grad_norm, (double)r->tokens / r->seconds,
           memory, 100 * r->comm_seconds / r->seconds);
    if (!isnan(point->held_out))
        printf("  held out %.4f", point->held_out);
    if (r->dropped > 0)
        printf("  dropped %lld", (long long)r->dropped);
    puts(r->skipped ? "  overflow, skipped" : "");
    fflush(stdout);
}

/* Whether something that happens each `every` steps happens after this one; every 0: at the end. */
static bool is_due(long every, long step, long last)
{
    return step == last || (every > 0 && step % every == 0);
}

/* The last steps are traced; fewer when there are not as many. */
static bool begins_trace(const struct run *run, long step)
{
    const long first = run->options.steps - TRACE_STEPS + 1;

    return run->options.trace != NULL && (step == first || (run->count == 1 && step > first));
}

/* Collective. */
static int write_log(const struct run *run, bool is_end)
{
    const struct train_options *o = &run->options;
    struct train_bytes bytes;
    int code;

    if (run->count == 0 || (!is_end && o->svg == NULL && o->json == NULL))
        return TOOL_OK;
    code = train_add_bytes(run->trainer, run->comm, &bytes);
    if (!run->speaks || code != TOOL_OK)
        return code;
    if (is_end)
        train_print_bytes(&bytes, o->config.layout.pp > 1 && o->config.overlap);
    if (o->svg != NULL)
        code = train_write_svg(o->svg, run->points, run->count);
    const struct train_log log = { o, run->trainer, run->points, run->count, &bytes };

    if (o->json != NULL && code == TOOL_OK)
        code = train_write_json(o->json, &log);
    return code;
}

static int one_step(struct run *run, long step)
{
    const struct train_options *o = &run->options;
    struct train_point *point = &run->points[run->count++];

    point->held_out = NAN;
    if (begins_trace(run, step) && hkt_trainer_trace(run->trainer, 1) < 0)
        return failed(run, "a trace");
    if (hkt_trainer_step(run->trainer, &point->report) < 0)
        return failed(run, "a step");
    if (!isfinite(point->report.loss)) {
        if (run->speaks)
            hkt_tool_say("train", "step %ld: the loss is %g; a lower --lr may help", step, point->report.loss);
        return TOOL_FAILED;
    }
    if (o->eval_batches > 0 && o->config.held_out > 0 && is_due(o->eval_every, step, o->steps)
        && hkt_trainer_evaluate(run->trainer, (int)o->eval_batches, &point->held_out) < 0)
        return failed(run, "held-out text");
    if (run->speaks && (step == 1 || is_due(o->every, step, o->steps) || !isnan(point->held_out)))
        print_line(run);
    if (o->save == NULL || !is_due(o->save_every, step, o->steps))
        return TOOL_OK;
    if (hkt_trainer_save(run->trainer, o->save, !o->saves_sync) < 0)
        return failed(run, "a checkpoint");
    return step < o->steps ? write_log(run, false) : TOOL_OK; /* whatever ends the run, this much is there */
}

/* Whether a file or folder can be written there, as far as can be told without making it. */
static bool can_write(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[4096] = ".";

    if (access(path, F_OK) == 0)
        return access(path, W_OK) == 0;
    if (slash != NULL)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return access(folder, W_OK | X_OK) == 0;
}

/* What cannot be written is told before hours of training, not after. Collective: rank 0 looks. */
static int check_outputs(const struct run *run)
{
    const struct train_options *o = &run->options;
    const char *const paths[] = { o->json, o->svg, o->trace, o->save };
    int32_t code = TOOL_OK;

    for (size_t i = 0; i < sizeof paths / sizeof paths[0] && run->speaks; i++)
        if (paths[i] != NULL && !can_write(paths[i])) {
            hkt_tool_say("train", "%s cannot be written: %s", paths[i], strerror(errno));
            code = TOOL_FAILED;
        }
    if (hkt_all_reduce(&code, &code, 1, HKT_INT32, HKT_MAX, run->comm, NULL) < 0)
        return TOOL_FAILED;
    return code;
}

static int train(struct run *run)
{
    const struct train_options *o = &run->options;
    int code = check_outputs(run);

    if (code != TOOL_OK)
        return code;
    if (o->weights != NULL && hkt_trainer_load_weights(run->trainer, o->weights) < 0)
        return failed(run, "--weights");
    if (o->resume != NULL && hkt_trainer_resume(run->trainer, o->resume) < 0)
        return failed(run, "--resume");
    const long first = (long)hkt_trainer_steps(run->trainer) + 1;

    if (first > o->steps) {
        if (run->speaks)
            hkt_tool_say("train", "%s is of step %ld, and --steps %ld is where to end: nothing is left to do", o->resume, first - 1,
                         o->steps);
        return TOOL_FAILED;
    }
    if (run->speaks)
        print_head(run);
    run->points = calloc((size_t)(o->steps - first + 1), sizeof *run->points);
    if (run->points == NULL) {
        hkt_tool_say("train", "no memory for a log of %ld steps", o->steps);
        return TOOL_FAILED;
    }
    for (long step = first; step <= o->steps && code == TOOL_OK; step++)
        code = one_step(run, step);
    if (code == TOOL_OK && o->trace != NULL && run->count > 0 && hkt_trainer_trace_write(run->trainer, o->trace) < 0)
        return failed(run, "--trace");
    return code == TOOL_OK ? write_log(run, true) : code;
}

static int close_run(struct run *run, int code)
{
    /* A save in progress ends here. */
    if (run->trainer != NULL && hkt_trainer_destroy(run->trainer) < 0 && code == TOOL_OK)
        code = failed(run, "the end");
    free(run->points);
    if (run->comm != NULL && hkt_comm_destroy(run->comm) < 0 && code == TOOL_OK)
        code = TOOL_FAILED;
    return code;
}

int hkt_tool_train(int argc, char **argv)
{
    static struct run run;
    int code;

    run.speaks = hkt_tool_is_first();
    code = train_options_read(argc, argv, run.speaks, &run.options);
    if (code >= 0)
        return code;
    if (!run.options.is_fast && setenv("HOCKET_DETERMINISTIC", "rank_order", 0) != 0)
        return TOOL_FAILED;
    if (hkt_comm_init_env(&run.comm, NULL) < 0) {
        hkt_tool_say("train", "%s", hkt_last_error());
        return TOOL_FAILED;
    }
    run.speaks = hkt_comm_rank(run.comm) == 0;
    const enum hkt_status rc = hkt_trainer_create(&run.options.config, run.comm, &run.trainer);

    if (rc < 0) {
        run.trainer = NULL;
        if (run.speaks)
            hkt_tool_say("train", "%s", hkt_parallel_last_error());
        return close_run(&run, rc == HKT_ERR_INVALID || rc == HKT_ERR_UNSUPPORTED ? TOOL_USAGE : TOOL_FAILED);
    }
    return close_run(&run, train(&run));
}
