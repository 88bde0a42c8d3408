/* The executor of pipeline schedules. */
#include "parallel/pipe_run.h"

#include <stdbool.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/pipe.h"

enum side { IN, OUT };

/* buffer[side][is_grad][chunk * micros + micro]. */
struct runner {
    const struct hkt__pipe_run *run;
    const struct hkt_pipe *pipe;
    void **buffers;
};

static void **buffer_of(const struct runner *r, enum side side, bool is_grad, const struct hkt_pipe_op *op)
{
    const int cells = r->pipe->chunks * r->pipe->micros;

    return &r->buffers[((int)side * 2 + is_grad) * cells + op->chunk * r->pipe->micros + op->micro];
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

static enum hkt_status compute(const struct runner *r, const struct hkt_pipe_op *op)
{
    const struct hkt_pipe *pipe = r->pipe;
    const int at = hkt__pipe_virtual(pipe, r->run->stage, op->chunk), last = pipe->stages * pipe->chunks - 1;
    const bool is_grad = op->kind == HKT_PIPE_B;
    enum hkt_status rc = HKT_OK;

    if (op->kind == HKT_PIPE_W)
        return r->run->compute(r->run->arg, op, NULL, NULL);
    void **in = buffer_of(r, IN, is_grad, op), **out = buffer_of(r, OUT, is_grad, op);

    if (is_grad ? at > 0 : at < last)
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

static bool is_grad_message(const struct hkt_pipe_op *op)
{
    return op->kind == HKT_PIPE_SEND_GRAD || op->kind == HKT_PIPE_RECV_GRAD;
}

static enum hkt_status start_message(const struct runner *r, const struct hkt_pipe_op *op)
{
    const struct hkt__pipe_run *run = r->run;
    void **buffer = buffer_of(r, hkt__pipe_is_send(op->kind) ? OUT : IN, is_grad_message(op), op);

    if (hkt__pipe_is_send(op->kind))
        return hkt__link_send(run->link, *buffer, run->elems, run->dtype, op->peer);
    const enum hkt_status rc = get(r, buffer);

    return rc < 0 ? rc : hkt__link_recv(run->link, *buffer, run->elems, run->dtype, op->peer);
}

/* The messages [first, end) together. */
static enum hkt_status exchange(const struct runner *r, int first, int end)
{
    const struct hkt_pipe_op *ops = r->pipe->ops;
    enum hkt_status rc = hkt_group_start();

    if (rc < 0)
        return hkt__parallel_pass(rc, "pp");
    for (int i = first; i < end && rc == HKT_OK; i++)
        rc = start_message(r, &ops[i]);
    const enum hkt_status ended = hkt_group_end();

    if (rc == HKT_OK && ended < 0)
        rc = hkt__parallel_pass(ended, "pp");
    for (int i = first; i < end && rc == HKT_OK; i++)
        if (hkt__pipe_is_send(ops[i].kind))
            drop(r, buffer_of(r, OUT, is_grad_message(&ops[i]), &ops[i]));
    return rc;
}

enum hkt_status hkt__pipe_run(const struct hkt__pipe_run *run)
{
    const struct hkt_pipe *pipe = run->pipe;
    const size_t nbuffers = (size_t)4 * (size_t)(pipe->chunks * pipe->micros);
    struct runner r = { run, pipe, hkt__parallel_calloc(nbuffers, sizeof(void *)) };
    enum hkt_status rc = HKT_OK;

    if (r.buffers == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory to run a schedule of %d micro-batches", pipe->micros);
    for (int i = pipe->first[run->stage]; i < pipe->first[run->stage + 1] && rc == HKT_OK;) {
        int end = i;

        while (end < pipe->first[run->stage + 1] && !hkt__pipe_is_compute(pipe->ops[end].kind))
            end++;
        rc = end == i ? compute(&r, &pipe->ops[i]) : exchange(&r, i, end);
        i = end == i ? i + 1 : end;
    }
    for (size_t i = 0; i < nbuffers; i++)
        hkt__memory_free(run->memory, r.buffers[i]);
    hkt__parallel_free(r.buffers);
    return rc;
}
