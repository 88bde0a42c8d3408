/* The walk of one stage through its schedule that adds up what it holds: operations as gpt_run.c makes them, messages as pipe_run.c
 * passes them on. */
#include "hocket/step_memory.h"

#include <string.h>

#include "hocket/shard.h"
#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/formulas_memory.h"
#include "parallel/pipe.h"

struct walk {
    const struct hkt_step_memory_opts *o;
    const struct hkt_pipe *pipe;
    struct hkt__sizes z;
    struct hkt__meter activation;
    struct hkt__books books;
    int *brought_by; /* [2][chunks * micros] of activations and of gradients: 1 + the batch of messages that brings it */
    int *sends;      /* [batches] messages that leave */
    int nbatches, nleft;
    int stage, last; /* last: the last virtual stage */
    bool is_tied, is_tied_here; /* here: the embedding is on two stages, of which this is one */
};

/* An operation: where it is. */
struct place {
    int micro, first, nlayers;
    bool is_first, is_last;
};

static struct place place_of(const struct walk *w, const struct hkt_pipe_op *op)
{
    const int at = hkt__pipe_virtual(w->pipe, w->stage, op->chunk), *first = w->o->stage_first;

    return (struct place){ op->micro, first[at], first[at + 1] - first[at], at == 0, at == w->last };
}

/* NULL: a layer without experts. */
static const struct hkt_step_routing *routing_of(const struct walk *w, const struct place *p, int layer)
{
    const struct hkt_shape *shape = &w->o->step.shape;

    if (shape->experts == 0 || layer < shape->dense_layers)
        return NULL;
    return w->o->routing == NULL ? &w->z.even : &w->o->routing[p->micro * shape->layers + layer];
}

static bool is_split(const struct walk *w)
{
    return w->pipe->splits_backward != 0;
}

/* ---- units ---- */

enum { FORWARD = HKT__BOOKS_PARAM, BACKWARD = HKT__BOOKS_PARAM | HKT__BOOKS_GRAD | HKT__BOOKS_BACKWARD,
       WEIGHTS = HKT__BOOKS_GRAD | HKT__BOOKS_BACKWARD };

static int head_unit(const struct walk *w)
{
    return w->o->step.shape.layers + 1;
}

static void begin_head(struct walk *w, unsigned use)
{
    hkt__books_begin(&w->books, head_unit(w), use);
    if (w->is_tied)
        hkt__books_begin(&w->books, 0, use);
}

static void end_head(struct walk *w, unsigned use)
{
    if (w->is_tied)
        hkt__books_end(&w->books, 0, use);
    hkt__books_end(&w->books, head_unit(w), use);
}

static void added(struct walk *w, const struct place *p, int unit)
{
    const bool is_due = p->micro == w->pipe->micros - 1 || w->o->step.reduce_every;

    if (is_due && (unit > 0 || !w->is_tied_here))
        hkt__books_final(&w->books, unit);
}

/* ---- operations ---- */

static void embed(struct walk *w)
{
    struct hkt__meter *m = &w->activation;

    hkt__books_begin(&w->books, 0, FORWARD);
    hkt__take(m, w->z.whole);
    hkt__meter_reduce(m, &w->z);
    if (w->o->step.shape.positions > 0) {
        hkt__take(m, w->z.here);
        hkt__drop(m, w->z.here);
    }
    hkt__books_end(&w->books, 0, FORWARD);
}

static void embedding_backward(struct walk *w, const struct place *p, unsigned use)
{
    struct hkt__meter *m = &w->activation;

    hkt__books_begin(&w->books, 0, use);
    hkt__meter_gather(m, &w->z);
    hkt__drop(m, w->z.whole);
    hkt__books_end(&w->books, 0, use);
    added(w, p, 0);
}

static void head_forward(struct walk *w)
{
    struct hkt__meter *m = &w->activation;

    begin_head(w, FORWARD);
    hkt__meter_norm(m, &w->z);
    hkt__take(m, w->z.logits + w->z.numbers);
    hkt__drop(m, w->z.numbers);
    end_head(w, FORWARD);
}

/* Leaves the gradient of its input in the place of the input. */
static void head_backward(struct walk *w, const struct place *p)
{
    struct hkt__meter *m = &w->activation;

    begin_head(w, BACKWARD);
    hkt__take(m, w->z.whole);
    hkt__meter_reduce(m, &w->z);
    hkt__drop(m, w->z.statistics + w->z.here);
    if (!is_split(w))
        hkt__drop(m, w->z.whole + w->z.logits);
    end_head(w, BACKWARD);
    if (!is_split(w))
        added(w, p, head_unit(w));
}

static void forward(struct walk *w, const struct place *p)
{
    if (p->is_first)
        embed(w);
    for (int i = 0; i < p->nlayers; i++) {
        const int layer = p->first + i;

        if (i < p->nlayers - 1 || p->is_last)
            hkt__take(&w->activation, w->z.here);
        hkt__books_begin(&w->books, 1 + layer, FORWARD);
        hkt__meter_forward(&w->activation, &w->z, routing_of(w, p, layer));
        hkt__books_end(&w->books, 1 + layer, FORWARD);
    }
    if (p->is_last)
        head_forward(w);
}

static void backward(struct walk *w, const struct place *p)
{
    struct hkt__meter *m = &w->activation;
    bool is_owned = p->is_last;

    if (p->is_last)
        head_backward(w, p);
    for (int i = p->nlayers - 1; i >= 0; i--) {
        const int layer = p->first + i;
        const bool is_sent = i == 0 && !p->is_first;
        const struct hkt_step_routing *routing = routing_of(w, p, layer);

        hkt__take(m, is_sent ? 0 : w->z.here);
        hkt__books_begin(&w->books, 1 + layer, BACKWARD);
        hkt__meter_backward(m, &w->z, routing);
        if (!is_split(w))
            hkt__meter_weights(m, &w->z, routing);
        hkt__books_end(&w->books, 1 + layer, BACKWARD);
        if (!is_split(w))
            added(w, p, 1 + layer);
        /* The gradient of its output, and its input, unless they are messages. */
        hkt__drop(m, (is_owned ? w->z.here : 0) + (is_sent ? 0 : w->z.here));
        is_owned = !is_sent;
    }
    if (p->is_first && !is_split(w))
        embedding_backward(w, p, BACKWARD);
}

static void weights(struct walk *w, const struct place *p)
{
    if (p->is_last) {
        begin_head(w, WEIGHTS);
        hkt__drop(&w->activation, w->z.whole + w->z.logits);
        end_head(w, WEIGHTS);
        added(w, p, head_unit(w));
    }
    for (int i = p->nlayers - 1; i >= 0; i--) {
        const int layer = p->first + i;

        hkt__books_begin(&w->books, 1 + layer, WEIGHTS);
        hkt__meter_weights(&w->activation, &w->z, routing_of(w, p, layer));
        hkt__books_end(&w->books, 1 + layer, WEIGHTS);
        added(w, p, 1 + layer);
    }
    if (p->is_first)
        embedding_backward(w, p, WEIGHTS);
}

/* ---- messages ---- */

static int *bringer(struct walk *w, const struct hkt_pipe_op *op, bool is_grad)
{
    return &w->brought_by[(is_grad * w->pipe->chunks + op->chunk) * w->pipe->micros + op->micro];
}

/* Batches up to this one are over: what they sent has left. */
static void await(struct walk *w, int number)
{
    for (; w->nleft < number; w->nleft++)
        hkt__drop(&w->activation, w->sends[w->nleft] * w->z.here);
}

static void compute(struct walk *w, const struct hkt_pipe_op *op)
{
    const struct place p = place_of(w, op);
    const bool is_grad = op->kind == HKT_PIPE_B, gives = is_grad ? !p.is_first : !p.is_last;

    if (op->kind == HKT_PIPE_W) {
        weights(w, &p);
        return;
    }
    await(w, *bringer(w, op, is_grad));
    hkt__take(&w->activation, gives ? w->z.here : 0);
    if (is_grad)
        backward(w, &p);
    else
        forward(w, &p);
    if (is_grad) /* the messages that came for it */
        hkt__drop(&w->activation, (p.is_first ? 0 : w->z.here) + (p.is_last ? 0 : w->z.here));
}

static void exchange(struct walk *w, int first, int end)
{
    for (int i = first; i < end; i++) {
        const struct hkt_pipe_op *op = &w->pipe->ops[i];

        if (hkt__pipe_is_send(op->kind))
            w->sends[w->nbatches]++;
        else {
            hkt__take(&w->activation, w->z.here);
            *bringer(w, op, op->kind == HKT_PIPE_RECV_GRAD) = w->nbatches + 1;
        }
    }
    w->nbatches++;
    if (!w->o->overlap)
        await(w, w->nbatches);
}

static void walk_all(struct walk *w)
{
    const struct hkt_pipe *pipe = w->pipe;

    for (int i = pipe->first[w->stage], end; i < pipe->first[w->stage + 1]; i = end) {
        for (end = i; end < pipe->first[w->stage + 1] && !hkt__pipe_is_compute(pipe->ops[end].kind);)
            end++;
        if (end > i)
            exchange(w, i, end);
        else
            compute(w, &pipe->ops[end++]);
    }
    await(w, w->nbatches);
    if (w->is_tied_here) {
        const struct hkt_step_opts *o = &w->o->step;
        const int tp = o->layout.tp > 0 ? o->layout.tp : 1;
        const double other = (double)(hkt_shard_vocab(o->shape.vocab, 1, tp, o->tp_rank).rows.count * o->shape.hidden) * o->real_bytes;

        hkt__take(&w->books.comm, other);
        hkt__drop(&w->books.comm, other);
        hkt__books_final(&w->books, 0);
    }
    hkt__books_finish(&w->books);
}

/* ---- all ---- */

static void add_flat(const struct hkt_step_memory_opts *o, const struct hkt_step_flat *flat, int shards, struct hkt_step_memory *out)
{
    const double real = o->step.real_bytes;
    const struct hkt_param_bytes bytes = { .param = o->step.element_bytes, .grad = real,
                                           .master = o->step.element_bytes == real ? 0 : real,
                                           .moment1 = o->moments > 0 ? real : 0, .moment2 = o->moments > 1 ? real : 0 };
    const struct hkt_state_bytes state = hkt_count_state(flat->elems, &bytes, o->step.layout.zero, shards);

    out->param += state.param;
    out->grad += state.grad;
    out->optimizer += state.optimizer;
}

static enum hkt_status check(const struct hkt_step_memory_opts *o)
{
    struct hkt_step_bytes bytes;
    const struct hkt_layout *l = &o->step.layout;
    const int pp = l->pp > 0 ? l->pp : 1, chunks = l->chunks > 0 ? l->chunks : 1;
    const int micros = (int)hkt_layout_micros(l);
    const struct hkt_pipe *pipe = o->pipe;
    const enum hkt_status rc = hkt_count_step(&o->step, &bytes); /* refuses a layout, stage or rank that is none */

    if (rc == HKT_OK && (pipe->stages != pp || pipe->chunks != chunks || pipe->micros != micros || pipe->kind == HKT_PIPE_FORWARD))
        return hkt__parallel_fail(HKT_ERR_INVALID, "a schedule (%s) of %d stages with %d chunks and %d micro-batches for a layout of %d "
                                  "with %d and %d; they must agree, and train", hkt_pipe_kind_name(pipe->kind), pipe->stages, pipe->chunks,
                                  pipe->micros, pp, chunks, micros);
    if (rc == HKT_OK && l->zero >= 2 && o->units == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "ZeRO stage %d moves units, so their sizes are wanted", l->zero);
    return rc;
}

static enum hkt_status walk_init(struct walk *w, const struct hkt_step_memory_opts *o)
{
    const int stage = o->step.stage, nops = o->pipe->first[stage + 1] - o->pipe->first[stage];
    enum hkt_status rc;

    memset(w, 0, sizeof *w);
    w->o = o;
    w->pipe = o->pipe;
    w->stage = stage;
    w->last = o->pipe->stages * o->pipe->chunks - 1;
    w->is_tied = o->step.shape.tied != 0;
    w->is_tied_here = w->is_tied && o->pipe->stages > 1 && (stage == 0 || stage == o->pipe->stages - 1);
    rc = hkt__sizes_of(&o->step, &w->z);
    if (rc == HKT_OK)
        rc = hkt__books_init(&w->books, o);
    if (rc < 0)
        return rc;
    w->brought_by = hkt__parallel_calloc(2 * (size_t)(o->pipe->chunks * o->pipe->micros), sizeof *w->brought_by);
    w->sends = hkt__parallel_calloc((size_t)nops + 1, sizeof *w->sends);
    return w->brought_by != NULL && w->sends != NULL
               ? HKT_OK
               : hkt__parallel_fail(HKT_ERR_NOMEM, "no memory to walk a schedule of %d operations", nops);
}

static void walk_fini(struct walk *w)
{
    hkt__books_fini(&w->books);
    hkt__parallel_free(w->brought_by);
    hkt__parallel_free(w->sends);
}

enum hkt_status hkt_count_memory(const struct hkt_step_memory_opts *o, struct hkt_step_memory *out_memory)
{
    struct hkt_step_memory memory = { 0 };
    struct walk w;
    enum hkt_status rc = check(o);

    if (rc < 0)
        return rc;
    rc = walk_init(&w, o);
    if (rc == HKT_OK) {
        const struct hkt_layout *l = &o->step.layout;
        const int dp = l->dp > 0 ? l->dp : 1, shards = l->zero > 0 && l->shard > 0 ? l->shard : dp;

        walk_all(&w);
        add_flat(o, &o->step.dense, shards, &memory);
        add_flat(o, &o->step.experts, l->ep > 1 ? dp / l->ep : shards, &memory);
        memory.grad += w.books.grad.peak;
        memory.activation = w.activation.peak;
        memory.comm = w.books.comm.peak;
        /* What is left over is a walk that drops other than it took. */
        if (w.activation.now != 0 || w.books.grad.now != 0 || w.books.comm.now != 0)
            rc = hkt__parallel_fail(HKT_ERR_BUG, "a step of %s leaves %g bytes of activations, %g of gradients and %g of units",
                                    hkt_pipe_kind_name(o->pipe->kind), w.activation.now, w.books.grad.now, w.books.comm.now);
    }
    walk_fini(&w);
    if (rc == HKT_OK)
        *out_memory = memory;
    return rc;
}
