/* The executor of pipeline schedules. */
#include "parallel/pipe_run.h"

#include <stdbool.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/pipe.h"

enum side { IN, OUT };

/* Messages that travel together: operations [first, end) of the schedule. */
struct batch {
    int first, end;
    struct hkt_event *event;
};

/* buffer[side][is_grad][chunk * micros + micro]; brought_by, as long: 1 + the batch that brings it, 0: it is here. */
struct runner {
    const struct hkt__pipe_run *run;
    const struct hkt_pipe *pipe;
    void **buffers;
    int *brought_by;
    struct batch *batches; /* on their way, or done */
    int nbatches, nleft;   /* begun; known to be over. Without a stream both stay 0 */
};

static int index_of(const struct runner *r, enum side side, bool is_grad, const struct hkt_pipe_op *op)
{
    const int cells = r->pipe->chunks * r->pipe->micros;

    return ((int)side * 2 + is_grad) * cells + op->chunk * r->pipe->micros + op->micro;
}

static void **buffer_of(const struct runner *r, enum side side, bool is_grad, const struct hkt_pipe_op *op)
{
    return &r->buffers[index_of(r, side, is_grad, op)];
}

static enum hkt_status get(const struct runner *r, void **out_buffer)
{
    return hkt__memory_alloc(r->run->memory, HKT__MEMORY_ACTIVATION,
                             (uint64_t)r->run->elems * hkt_dtype_size(r->run->dtype), out_buffer);
}

static void drop(const struct runner *r, void **buffer)
{
    hkt__memory_free(r->run->memory, *buffer);
    *buffer = NULL;
}

/* On one stage the result is the next chunk's input (of gradients: that of the chunk before). */
static void hand_over(const struct runner *r, const struct hkt_pipe_op *op, bool is_grad)
{
    struct hkt_pipe_op next = *op;

    next.chunk += is_grad ? -1 : 1;
    void **from = buffer_of(r, OUT, is_grad, op);

    if (r->pipe->stages > 1 || *from == NULL)
        return;
    *buffer_of(r, IN, is_grad, &next) = *from;
    *from = NULL;
}

static bool is_grad_message(const struct hkt_pipe_op *op)
{
    return op->kind == HKT_PIPE_SEND_GRAD || op->kind == HKT_PIPE_RECV_GRAD;
}

/* What a batch sent has left, and what it brought is here. */
static void settle(struct runner *r, const struct batch *batch)
{
    for (int i = batch->first; i < batch->end; i++) {
        const struct hkt_pipe_op *op = &r->pipe->ops[i];

        if (hkt__pipe_is_send(op->kind))
            drop(r, buffer_of(r, OUT, is_grad_message(op), op));
        else
            r->brought_by[index_of(r, IN, is_grad_message(op), op)] = 0;
    }
}

static enum hkt_status wait_for(const struct runner *r, const struct batch *batch)
{
    const struct hkt__link *link = r->run->link;
    const struct hkt__span span = { .begin_ns = hkt__timeline_now(), .axis = link->axis };
    const enum hkt_status rc = hkt_event_synchronize(batch->event);

    if (link->traffic != NULL)
        hkt__timeline_waited(link->traffic->timeline, HKT__SPAN_WAIT, &span);
    return rc;
}

/* Batches end in their order; settle those that are over, and wait until `number` of them are. */
static enum hkt_status await(struct runner *r, int number)
{
    while (r->nleft < r->nbatches) {
        struct batch *batch = &r->batches[r->nleft];
        const enum hkt_status rc = r->nleft < number ? wait_for(r, batch) : hkt_event_query(batch->event);

        if (rc == HKT_IN_PROGRESS)
            break;
        if (rc < 0)
            return hkt__parallel_pass(rc, "pp");
        settle(r, batch);
        r->nleft++;
    }
    return HKT_OK;
}

static enum hkt_status compute(struct runner *r, const struct hkt_pipe_op *op)
{
    const struct hkt_pipe *pipe = r->pipe;
    const int at = hkt__pipe_virtual(pipe, r->run->stage, op->chunk), last = pipe->stages * pipe->chunks - 1;
    const bool is_grad = op->kind == HKT_PIPE_B;
    enum hkt_status rc = HKT_OK;

    if (op->kind == HKT_PIPE_W)
        return r->run->compute(r->run->arg, op, NULL, NULL);
    void **in = buffer_of(r, IN, is_grad, op), **out = buffer_of(r, OUT, is_grad, op);

    rc = await(r, r->brought_by[index_of(r, IN, is_grad, op)]);
    if (rc == HKT_OK && (is_grad ? at > 0 : at < last))
        rc = get(r, out);
    if (rc == HKT_OK)
        rc = r->run->compute(r->run->arg, op, *in, *out);
    if (rc < 0)
        return rc;
    hand_over(r, op, is_grad);
    if (is_grad || pipe->kind == HKT_PIPE_FORWARD) {
        drop(r, in);
        drop(r, buffer_of(r, IN, false, op));
    }
    return HKT_OK;
}

static enum hkt_status start_message(struct runner *r, const struct hkt_pipe_op *op)
{
    const struct hkt__pipe_run *run = r->run;
    const bool is_grad = is_grad_message(op);
    void **buffer = buffer_of(r, hkt__pipe_is_send(op->kind) ? OUT : IN, is_grad, op);

    if (hkt__pipe_is_send(op->kind))
        return hkt__link_send(run->link, *buffer, run->elems, run->dtype, op->peer);
    const enum hkt_status rc = get(r, buffer);

    r->brought_by[index_of(r, IN, is_grad, op)] = r->nbatches + 1;
    return rc < 0 ? rc : hkt__link_recv(run->link, *buffer, run->elems, run->dtype, op->peer);
}

/* The messages [first, end) together; without a stream they are over afterwards. */
static enum hkt_status exchange(struct runner *r, int first, int end)
{
    struct batch *batch = &r->batches[r->nbatches];
    const int64_t bytes = (end - first) * r->run->elems * (int64_t)hkt_dtype_size(r->run->dtype);
    const int64_t begin = hkt__link_begin(r->run->link);
    enum hkt_status rc = hkt_group_start();

    if (rc < 0)
        return hkt__parallel_pass(rc, "pp");
    for (int i = first; i < end && rc == HKT_OK; i++)
        rc = start_message(r, &r->pipe->ops[i]);
    const enum hkt_status ended = hkt_group_end();

    hkt__link_end(r->run->link, begin, "messages", bytes);
    if (rc == HKT_OK && ended < 0)
        rc = hkt__parallel_pass(ended, "pp");
    if (rc < 0)
        return rc;
    batch->first = first;
    batch->end = end;
    if (r->run->link->stream == NULL) {
        settle(r, batch);
        return HKT_OK;
    }
    rc = hkt_event_create(&batch->event);
    r->nbatches++;
    if (rc == HKT_OK)
        rc = hkt_event_record(batch->event, r->run->link->stream);
    return rc < 0 ? hkt__parallel_pass(rc, "pp") : await(r, 0);
}

/* Every operation of the stage. */
static enum hkt_status run_all(struct runner *r)
{
    const struct hkt_pipe *pipe = r->pipe;
    const int stage = r->run->stage;
    enum hkt_status rc = HKT_OK;

    for (int i = pipe->first[stage]; i < pipe->first[stage + 1] && rc == HKT_OK;) {
        int end = i;

        while (end < pipe->first[stage + 1] && !hkt__pipe_is_compute(pipe->ops[end].kind))
            end++;
        rc = end == i ? compute(r, &pipe->ops[i]) : exchange(r, i, end);
        i = end == i ? i + 1 : end;
    }
    return rc;
}

/* Nothing is on its way any more, whatever happened: buffers may be freed. */
static enum hkt_status drain(struct runner *r, enum hkt_status rc)
{
    const struct hkt__link *link = r->run->link;

    if (r->pipe->stages == 1 || link->stream == NULL)
        return rc;
    const struct hkt__span span = { .begin_ns = hkt__timeline_now(), .axis = link->axis };
    const enum hkt_status ended = hkt_stream_synchronize(link->stream);

    if (link->traffic != NULL)
        hkt__timeline_waited(link->traffic->timeline, HKT__SPAN_WAIT, &span);
    return rc == HKT_OK && ended < 0 ? hkt__parallel_pass(ended, "pp") : rc;
}

enum hkt_status hkt__pipe_run(const struct hkt__pipe_run *run)
{
    const struct hkt_pipe *pipe = run->pipe;
    const size_t nbuffers = (size_t)4 * (size_t)(pipe->chunks * pipe->micros);
    const size_t nops = (size_t)(pipe->first[run->stage + 1] - pipe->first[run->stage]);
    struct runner r = { .run = run,
                        .pipe = pipe,
                        .buffers = hkt__parallel_calloc(nbuffers, sizeof(void *)),
                        .brought_by = hkt__parallel_calloc(nbuffers, sizeof(int)),
                        .batches = hkt__parallel_calloc(nops, sizeof(struct batch)) };
    enum hkt_status rc;

    if (r.buffers == NULL || r.brought_by == NULL || r.batches == NULL)
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory to run a schedule of %d micro-batches", pipe->micros);
    else
        rc = drain(&r, run_all(&r));
    for (size_t i = 0; r.buffers != NULL && i < nbuffers; i++)
        hkt__memory_free(run->memory, r.buffers[i]);
    for (int i = 0; i < r.nbatches; i++)
        hkt_event_destroy(r.batches[i].event);
    hkt__parallel_free(r.buffers);
    hkt__parallel_free(r.brought_by);
    hkt__parallel_free(r.batches);
    return rc;
}
