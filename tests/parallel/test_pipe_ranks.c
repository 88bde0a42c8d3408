/* What could break: a schedule that is proved on paper stops, or brings a message to the wrong operation, when ranks
 * really send and receive it. Each stage is a rank; messages are too large to be buffered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/parallel.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_run_every_schedule),
        cmocka_unit_test(processes_run_every_schedule),
    };

    return cmocka_run_group_tests_name("pipe_ranks", tests, NULL, NULL);
}
