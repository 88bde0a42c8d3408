/* What could break: a schedule that is proved on paper stops, or brings a message to the wrong operation, when ranks
 * really send and receive it; ranks that run it are idle longer, or shorter, than the simulation and the closed form of its bubble
 * say. Each stage is a rank; messages are too large to be buffered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/pipe_run.h"
#include "ranks.h"

enum { MICROS_MAX = 5, CHUNKS_MAX = 3, ELEMS = 40000 };

/* What is in a message: which micro-batch, from which virtual stage, which way. */
static int64_t mark(int micro, int from, int is_grad)
{
    return micro * 1000 + from * 10 + is_grad;
}

/* Buffers of one stage, by [is_grad][chunk][micro-batch]. */
struct stage {
    const struct hkt_pipe *pipe;
    int64_t got[2][CHUNKS_MAX][MICROS_MAX][2]; /* first and last element of what came */
    int64_t *buffers;
};

/* One batch: all its messages progress together. */
static void run_batch(struct ranks_rank *rank, struct stage *stage, int first, int end)
{
    const struct hkt_pipe *pipe = stage->pipe;

    ranks_require_ok(rank, hkt_group_start(), "hkt_group_start");
    for (int i = first; i < end; i++) {
        const struct hkt_pipe_op *op = &pipe->ops[i];
        const int is_send = op->kind == HKT_PIPE_SEND_ACT || op->kind == HKT_PIPE_SEND_GRAD;
        int64_t *buffer = stage->buffers + (size_t)(i - first) * ELEMS;

        for (int e = 0; e < ELEMS; e++)
            buffer[e] =
                is_send ? mark(op->micro, op->chunk * pipe->stages + rank->rank, op->kind == HKT_PIPE_SEND_GRAD) : -1;
        if (is_send)
            ranks_require_ok(rank, hkt_send(buffer, ELEMS, HKT_INT64, op->peer, rank->comm, NULL), "hkt_send");
        else
            ranks_require_ok(rank, hkt_recv(buffer, ELEMS, HKT_INT64, op->peer, rank->comm, NULL), "hkt_recv");
    }
    ranks_require_ok(rank, hkt_group_end(), "hkt_group_end");
    for (int i = first; i < end; i++) {
        const struct hkt_pipe_op *op = &pipe->ops[i];
        const int64_t *buffer = stage->buffers + (size_t)(i - first) * ELEMS;

        if (op->kind == HKT_PIPE_RECV_ACT || op->kind == HKT_PIPE_RECV_GRAD) {
            stage->got[op->kind == HKT_PIPE_RECV_GRAD][op->chunk][op->micro][0] = buffer[0];
            stage->got[op->kind == HKT_PIPE_RECV_GRAD][op->chunk][op->micro][1] = buffer[ELEMS - 1];
        }
    }
}

/* Has what this operation needs come, from where it must? */
static void check_input(struct ranks_rank *rank, const struct stage *stage, const struct hkt_pipe_op *op)
{
    const struct hkt_pipe *pipe = stage->pipe;
    const int k = op->chunk * pipe->stages + rank->rank, is_grad = op->kind == HKT_PIPE_B;
    const int from = is_grad ? k + 1 : k - 1;

    if (pipe->stages == 1 || op->kind == HKT_PIPE_W || from < 0 || from == pipe->stages * pipe->chunks)
        return;
    for (int i = 0; i < 2; i++)
        ranks_require(rank, stage->got[is_grad][op->chunk][op->micro][i] == mark(op->micro, from, is_grad),
                      "%s %d of virtual stage %d got %lld", hkt_pipe_op_name(op->kind), op->micro, k,
                      (long long)stage->got[is_grad][op->chunk][op->micro][i]);
}

static void run_schedule(struct ranks_rank *rank, const struct hkt_pipe_opts *opts)
{
    int64_t *buffers = malloc((size_t)4 * MICROS_MAX * ELEMS * sizeof *buffers);
    struct hkt_pipe *pipe = NULL;
    struct stage stage = { 0 };

    ranks_require(rank, buffers != NULL, "no memory");
    ranks_require(rank, hkt_pipe_create(opts, &pipe) == HKT_OK, "%s", hkt_parallel_last_error());
    stage.pipe = pipe;
    stage.buffers = buffers;
    for (int i = pipe->first[rank->rank]; i < pipe->first[rank->rank + 1];) {
        int end = i;

        if (pipe->ops[i].peer < 0) {
            check_input(rank, &stage, &pipe->ops[i++]);
            continue;
        }
        while (end < pipe->first[rank->rank + 1] && pipe->ops[end].peer >= 0)
            end++;
        ranks_require(rank, end - i <= 4 * MICROS_MAX, "a batch of %d", end - i);
        run_batch(rank, &stage, i, end);
        i = end;
    }
    hkt_pipe_destroy(pipe);
    free(buffers);
}

static void run_all(struct ranks_rank *rank)
{
    for (int kind = 0; kind < HKT_PIPE_KIND_COUNT; kind++)
        for (int micros = 1; micros <= MICROS_MAX; micros += 2)
            for (int chunks = 2; chunks <= (kind == HKT_PIPE_INTERLEAVED ? CHUNKS_MAX : 2); chunks++) {
                const struct hkt_pipe_opts opts = { .kind = (enum hkt_pipe_kind)kind,
                                                    .stages = rank->nranks,
                                                    .micros = micros,
                                                    .chunks = kind == HKT_PIPE_INTERLEAVED ? chunks : 1 };

                run_schedule(rank, &opts);
            }
}

static void run(enum ranks_kind kind, int nranks)
{
    const struct ranks_job job = { .kind = kind, .nranks = nranks, .fn = run_all };

    ranks_run(&job);
}

static void threads_run_every_schedule(void **state)
{
    (void)state;
    for (int nranks = 1; nranks <= 4; nranks++)
        run(RANKS_THREADS, nranks);
}

static void processes_run_every_schedule(void **state)
{
    (void)state;
    run(RANKS_PROCESSES, 2);
    run(RANKS_PROCESSES, 4);
}

/* ---- a trace in virtual time ---- */

/* A stage that takes no real time. What it sends is when it was done. */
struct virtual_stage {
    const struct hkt_pipe *pipe;
    const struct hkt_pipe_sim *sim;
    struct hkt_pipe_times times;
    int64_t now, busy;
    int wrong; /* operations at other times than the simulation has; the last of them */
    int64_t start, want;
};

static int64_t duration(const struct virtual_stage *v, const struct hkt_pipe_op *op)
{
    if (op->kind == HKT_PIPE_F)
        return v->times.f;
    return op->kind == HKT_PIPE_W ? v->times.w : v->times.b + (v->pipe->splits_backward ? 0 : v->times.w);
}

static enum hkt_status compute_virtually(void *arg, const struct hkt_pipe_op *op, const void *in, void *out)
{
    struct virtual_stage *v = arg;
    const int64_t i = op - v->pipe->ops, takes = duration(v, op);

    if (in != NULL) {
        int64_t made;

        memcpy(&made, in, sizeof made);
        made += v->pipe->stages > 1 ? v->times.send : 0;
        v->now = made > v->now ? made : v->now;
    }
    if (v->now != v->sim->start[i] || v->now + takes != v->sim->end[i]) {
        v->wrong++;
        v->start = v->now;
        v->want = v->sim->start[i];
    }
    v->now += takes;
    v->busy += takes;
    if (out != NULL)
        memcpy(out, &v->now, sizeof v->now);
    return HKT_OK;
}

/* Through the executor that training runs on. */
static void trace_schedule(struct ranks_rank *rank, const struct hkt_pipe_opts *opts, struct hkt_stream *stream)
{
    struct hkt__traffic traffic = { 0 };
    struct hkt__memory memory;
    struct hkt_pipe *pipe = NULL;
    struct hkt_pipe_sim *sim = NULL;
    const struct hkt_pipe_sim_opts sim_opts = { opts->times, 0, NULL };
    const struct hkt__link link = { .comm = rank->comm, .stream = stream, .traffic = &traffic, .axis = HKT__TRAFFIC_PP,
                                    .size = rank->nranks, .rank = rank->rank };

    hkt__memory_init(&memory, 0);
    ranks_require(rank, hkt_pipe_create(opts, &pipe) == HKT_OK && hkt_pipe_simulate(pipe, &sim_opts, &sim) == HKT_OK, "%s",
                  hkt_parallel_last_error());
    struct virtual_stage stage = { .pipe = pipe, .sim = sim, .times = opts->times };
    const struct hkt__pipe_run run = { .pipe = pipe, .stage = rank->rank, .link = &link, .memory = &memory, .elems = 1,
                                       .dtype = HKT_INT64, .compute = compute_virtually, .arg = &stage };
    int64_t makespan = 0;

    ranks_require(rank, hkt__pipe_run(&run) == HKT_OK, "%s", hkt_parallel_last_error());
    ranks_require(rank, stage.wrong == 0, "%s: %d operations were at other times, one at %lld, not %lld",
                  hkt_pipe_kind_name(opts->kind), stage.wrong, (long long)stage.start, (long long)stage.want);
    ranks_require_ok(rank, hkt_all_reduce(&stage.now, &makespan, 1, HKT_INT64, HKT_MAX, rank->comm, NULL), "makespan");
    const int64_t bubble = opts->times.send == 0 ? hkt_pipe_bubble(opts) : -1;

    ranks_require(rank, bubble < 0 || makespan - stage.busy == bubble, "%s: idle %lld, the closed form says %lld",
                  hkt_pipe_kind_name(opts->kind), (long long)(makespan - stage.busy), (long long)bubble);
    hkt_pipe_sim_destroy(sim);
    hkt_pipe_destroy(pipe);
    ranks_require(rank, hkt__memory_fini(&memory) == HKT_OK, "%s", hkt_parallel_last_error());
}

static void trace_all(struct ranks_rank *rank)
{
    static const struct hkt_pipe_times times[] = { { 1, 1, 1, 0 }, { 2, 2, 1, 0 }, { 5, 4, 3, 0 }, { 3, 4, 2, 1 }, { 2, 3, 3, 7 } };
    struct hkt_stream *stream = NULL;

    ranks_require_ok(rank, hkt_stream_create(&stream), "hkt_stream_create");
    for (int kind = 0; kind < HKT_PIPE_KIND_COUNT; kind++)
        for (int micros = 1; micros <= (ranks_small() ? 4 : 12); micros += micros < 4 ? 1 : 4)
            for (size_t t = ranks_small() ? 2 : 0; t < sizeof times / sizeof times[0]; t++) {
                const struct hkt_pipe_opts opts = { .kind = (enum hkt_pipe_kind)kind, .stages = rank->nranks, .micros = micros,
                                                    .chunks = kind == HKT_PIPE_INTERLEAVED ? 2 + (int)t % 2 : 1, .times = times[t] };

                trace_schedule(rank, &opts, ((int)t + micros) % 2 == 0 ? stream : NULL);
            }
    hkt_stream_destroy(stream);
}

static void traces_are_as_simulated(void **state)
{
    (void)state;
    for (int nranks = 2; nranks <= (ranks_small() ? 3 : 4); nranks++) {
        const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = nranks, .fn = trace_all };

        ranks_run(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traces_are_as_simulated),
        cmocka_unit_test(threads_run_every_schedule),
        cmocka_unit_test(processes_run_every_schedule),
    };

    return cmocka_run_group_tests_name("pipe_ranks", tests, NULL, NULL);
}
