/* From orders of compute to a whole schedule: messages are put in by time.
 *
 * The compute is run in virtual time. A message exists from the end of the operation that makes it; on both of its
 * stages it is placed before the first operation that starts at or after that time, and messages of one stage are
 * sorted by (time, kind, micro-batch, virtual stage). So there is one order of all operations of all stages (by time,
 * messages before compute that starts then) that every stage's list follows, and the earliest operation that is not
 * yet done can always proceed: no deadlock, with no message ever buffered. hkt_pipe_check proves it again for each
 * schedule. */
#include <stdlib.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/pipe.h"

/* A message as one of its two stages sees it. */
struct message {
    int64_t time;
    int stage;
    int key; /* kind, micro-batch, boundary in one number: equal on both stages */
    struct hkt_pipe_op op;
};

static int compare(const void *a, const void *b)
{
    const struct message *x = a, *y = b;

    if (x->stage != y->stage)
        return x->stage < y->stage ? -1 : 1;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

/* The two ends of what virtual stage k sends to `to`. Returns 2, or 0 when both are on one stage. */
static int put_message(const struct hkt_pipe *pipe, struct message *out, int micro, int k, int to)
{
    const int from_stage = k % pipe->stages, to_stage = to % pipe->stages, is_grad = to < k;
    const int key = (is_grad * pipe->micros + micro) * pipe->stages * pipe->chunks + k;

    if (from_stage == to_stage)
        return 0;
    out[0] = (struct message){
        0, from_stage, key, { is_grad ? HKT_PIPE_SEND_GRAD : HKT_PIPE_SEND_ACT, micro, k / pipe->stages, to_stage }
    };
    out[1] = (struct message){
        0, to_stage, key, { is_grad ? HKT_PIPE_RECV_GRAD : HKT_PIPE_RECV_ACT, micro, to / pipe->stages, from_stage }
    };
    return 2;
}

static int list_messages(const struct hkt_pipe *pipe, const int64_t *done, struct message *out)
{
    const int nvirtual = pipe->stages * pipe->chunks;
    int count = 0;

    for (int k = 0; k < nvirtual; k++)
        for (int micro = 0; micro < pipe->micros; micro++) {
            const int before = count;

            if (k < nvirtual - 1)
                count += put_message(pipe, out + count, micro, k, k + 1);
            for (int i = before; i < count; i++)
                out[i].time = done[hkt__pipe_cell(pipe, HKT_PIPE_F, k, micro)];
            const int between = count;

            if (k > 0 && pipe->kind != HKT_PIPE_FORWARD)
                count += put_message(pipe, out + count, micro, k, k - 1);
            for (int i = between; i < count; i++)
                out[i].time = done[hkt__pipe_cell(pipe, HKT_PIPE_B, k, micro)];
        }
    qsort(out, (size_t)count, sizeof *out, compare);
    return count;
}

/* Merge the messages into the lists of compute; start[i] is when compute operation i starts. */
static void merge(const struct hkt_pipe *compute, const int64_t *start, const struct message *messages, int count,
                  struct hkt_pipe *out)
{
    int next = 0, used = 0;

    for (int stage = 0; stage < compute->stages; stage++) {
        out->first[stage] = used;
        for (int i = compute->first[stage]; i < compute->first[stage + 1]; i++) {
            while (next < count && messages[next].stage == stage && messages[next].time <= start[i])
                out->ops[used++] = messages[next++].op;
            out->ops[used++] = compute->ops[i];
        }
        while (next < count && messages[next].stage == stage)
            out->ops[used++] = messages[next++].op;
    }
    out->first[compute->stages] = used;
}

/* Lists of compute alone. */
static enum hkt_status make_compute(struct hkt_pipe *pipe)
{
    pipe->first = hkt__parallel_calloc((size_t)pipe->stages + 1, sizeof *pipe->first);
    for (int stage = 0; pipe->first != NULL && stage < pipe->stages; stage++)
        pipe->first[stage + 1] = pipe->first[stage] + hkt__pipe_order(pipe, stage, NULL);
    if (pipe->first != NULL)
        pipe->ops = hkt__parallel_calloc((size_t)hkt__pipe_nops(pipe), sizeof *pipe->ops);
    if (pipe->first == NULL || pipe->ops == NULL)
        return HKT_ERR_NOMEM;
    for (int stage = 0; stage < pipe->stages; stage++)
        hkt__pipe_order(pipe, stage, pipe->ops + pipe->first[stage]);
    return HKT_OK;
}

/* All steps, into an empty `out` of known size; `compute` has its lists. */
static enum hkt_status make_whole(const struct hkt_pipe *compute, const struct hkt_pipe_times *times,
                                  struct hkt_pipe *out)
{
    const size_t nops = (size_t)hkt__pipe_nops(compute), nmessages = 4 * hkt__pipe_cells(compute) / 3;
    const struct hkt__pipe_clock clock = { *times, NULL };
    struct hkt_pipe_sim sim = { .stages = compute->stages };
    int64_t *done = hkt__parallel_calloc(hkt__pipe_cells(compute), sizeof *done);
    struct message *messages = hkt__parallel_calloc(nmessages, sizeof *messages);
    enum hkt_status rc = HKT_ERR_NOMEM;

    sim.start = hkt__parallel_calloc(nops, sizeof *sim.start);
    sim.end = hkt__parallel_calloc(nops, sizeof *sim.end);
    sim.busy = hkt__parallel_calloc((size_t)compute->stages, sizeof *sim.busy);
    out->ops = hkt__parallel_calloc(nops + nmessages, sizeof *out->ops);
    out->first = hkt__parallel_calloc((size_t)compute->stages + 1, sizeof *out->first);
    if (done != NULL && messages != NULL && sim.start != NULL && sim.end != NULL && sim.busy != NULL && out->ops != NULL
        && out->first != NULL) {
        rc = hkt__pipe_flow(compute, &clock, &sim, done) ? HKT_OK : HKT_ERR_BUG;
        if (rc == HKT_OK)
            merge(compute, sim.start, messages, list_messages(compute, done, messages), out);
    }
    hkt__parallel_free(sim.start);
    hkt__parallel_free(sim.end);
    hkt__parallel_free(sim.busy);
    hkt__parallel_free(done);
    hkt__parallel_free(messages);
    return rc;
}

static enum hkt_status check_opts(const struct hkt_pipe_opts *opts)
{
    const struct hkt_pipe_times *times = &opts->times;
    const int chunks = opts->chunks == 0 ? 1 : opts->chunks;

    if ((unsigned)opts->kind >= HKT_PIPE_KIND_COUNT)
        return hkt__parallel_fail(HKT_ERR_INVALID, "there is no pipeline schedule %d", (int)opts->kind);
    if (opts->stages < 1 || opts->stages > HKT_PIPE_STAGES_MAX || opts->micros < 1 || chunks < 1)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "a pipeline of %d stages, %d micro-batches and %d chunks; there must be 1 "
                                  "to %d stages and at least one of the others",
                                  opts->stages, opts->micros, chunks, HKT_PIPE_STAGES_MAX);
    if (opts->kind == HKT_PIPE_INTERLEAVED && chunks < 2)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "an interleaved schedule has at least 2 chunks per stage, not %d; with "
                                  "1 it is 1f1b",
                                  chunks);
    if (opts->kind != HKT_PIPE_INTERLEAVED && opts->kind != HKT_PIPE_FORWARD && chunks > 1)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%d chunks per stage need the interleaved schedule; %s has 1",
                                  chunks, hkt_pipe_kind_name(opts->kind));
    if ((int64_t)opts->stages * chunks * opts->micros > HKT_PIPE_OPS_MAX / 7)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED,
                                  "%d stages * %d chunks * %d micro-batches are more operations than a "
                                  "schedule may have (%d)",
                                  opts->stages, chunks, opts->micros, HKT_PIPE_OPS_MAX);
    if (times->f < 0 || times->b < 0 || times->w < 0 || times->send < 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "durations must not be negative");
    return HKT_OK;
}

enum hkt_status hkt_pipe_create(const struct hkt_pipe_opts *opts, struct hkt_pipe **out_pipe)
{
    if (opts == NULL || out_pipe == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_pipe_create: opts and out_pipe must not be NULL");
    enum hkt_status rc = check_opts(opts);

    if (rc < 0)
        return rc;
    struct hkt_pipe compute = {
        opts->kind, opts->stages, opts->micros, opts->chunks == 0 ? 1 : opts->chunks, opts->kind == HKT_PIPE_ZB_H1,
        NULL,       NULL
    };
    struct hkt_pipe_times times = hkt__pipe_times_or_unit(&opts->times);
    struct hkt_pipe *pipe = hkt__parallel_calloc(1, sizeof *pipe);

    /* Operations that take no time would stand at the same time as what they wait for. */
    times.f = times.f < 1 ? 1 : times.f;
    times.b = times.b < 1 ? 1 : times.b;
    times.w = times.w < 1 ? 1 : times.w;
    rc = make_compute(&compute);
    if (pipe == NULL)
        rc = HKT_ERR_NOMEM;
    if (rc == HKT_OK) {
        *pipe = compute;
        pipe->ops = NULL;
        pipe->first = NULL;
        rc = make_whole(&compute, &times, pipe);
    }
    hkt__parallel_free(compute.ops);
    hkt__parallel_free(compute.first);
    if (rc < 0) {
        hkt_pipe_destroy(pipe);
        return hkt__parallel_fail(rc,
                                  rc == HKT_ERR_NOMEM ? "no memory for a %s schedule of %d stages and %d micro-batches"
                                                      : "the %s schedule of %d stages and %d micro-batches cannot run",
                                  hkt_pipe_kind_name(opts->kind), opts->stages, opts->micros);
    }
    rc = hkt_pipe_check(pipe);
    if (rc < 0) {
        hkt_pipe_destroy(pipe);
        return rc;
    }
    *out_pipe = pipe;
    return HKT_OK;
}

void hkt_pipe_destroy(struct hkt_pipe *pipe)
{
    if (pipe == NULL)
        return;
    hkt__parallel_free(pipe->ops);
    hkt__parallel_free(pipe->first);
    hkt__parallel_free(pipe);
}
