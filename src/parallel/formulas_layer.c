/* What a layer's activations take on one rank, in the order in which block_layer.c and moe_layer.c make and drop them.
 *
 * Forward leaves the inputs of attention and of the MLP (all rows), statistics of two norms, what is between the two, queries, keys
 * and values, attention's result with a number for each row and head, and the MLP's inner rows before and after the activation;
 * with experts, the router's numbers and for each pair its way to an expert and back. Selective recompute lets attention's result
 * go, full recompute all of it. */
#include <math.h>

#include "hocket/shard.h"
#include "parallel/formulas_memory.h"

static int64_t or_one(int64_t value)
{
    return value > 0 ? value : 1;
}

/* Of each token top_k pairs, of which every expert, and so every rank, has the same number; an expert has those of all ranks that
 * share experts. */
static struct hkt_step_routing even_routing(const struct hkt_step_opts *o, double rows)
{
    const double pairs = rows * (double)or_one(o->shape.top_k), all = pairs * (double)or_one(o->layout.ep);

    return (struct hkt_step_routing){ pairs, pairs, o->shape.experts > 0 ? ceil(all / o->shape.experts) : 0 };
}

static void size_mlp(const struct hkt_step_opts *o, double rows, struct hkt__sizes *z)
{
    const struct hkt_shape *s = &o->shape;
    const int tp = (int)or_one(o->layout.tp);
    const int64_t ffn = s->ffn > 0 ? s->ffn : 4 * s->hidden;
    const int64_t dense = s->experts > 0 && s->dense_ffn > 0 ? s->dense_ffn : ffn;
    const double width = (double)hkt_shard_even(dense, tp, o->tp_rank).count, of_expert = (double)hkt_shard_even(ffn, tp, o->tp_rank).count;
    const double experts = s->experts, pre = s->gated ? 2 : 1;

    z->pre = rows * pre * width * o->element_bytes;
    z->mid = rows * width * o->element_bytes;
    z->row = (double)s->hidden * o->element_bytes;
    z->expert_pre = pre * of_expert * o->element_bytes;
    z->expert_mid = of_expert * o->element_bytes;
    /* Logits and probabilities; of each choice the expert and its weight. */
    z->routes = rows * (2 * experts * o->real_bytes + (double)or_one(s->top_k) * (double)(sizeof(int32_t) + sizeof(double)));
    z->dlogits = rows * experts * o->element_bytes;
    z->even = even_routing(o, rows);
}

enum hkt_status hkt__sizes_of(const struct hkt_step_opts *o, struct hkt__sizes *out_sizes)
{
    const struct hkt_shape *s = &o->shape;
    const int tp = (int)or_one(o->layout.tp);
    const double rows = (double)(o->layout.micro_batch * o->layout.seq);
    const double head_dim = (double)(s->head_dim > 0 ? s->head_dim : s->hidden / s->heads);
    struct hkt_head_shard heads;
    const enum hkt_status rc = hkt_shard_heads(s->heads, s->kv_heads > 0 ? s->kv_heads : s->heads, tp, o->tp_rank, &heads);

    if (rc < 0)
        return rc;
    struct hkt__sizes z = { .is_cut = o->layout.sequence_parallel && tp > 1, .recompute = o->recompute };
    const double here = z.is_cut ? rows / tp : rows;

    z.whole = rows * (double)s->hidden * o->element_bytes;
    z.here = here * (double)s->hidden * o->element_bytes;
    z.statistics = here * (o->rms_norm ? 1 : 2) * o->real_bytes;
    z.queries = rows * (double)heads.q.count * head_dim * o->element_bytes;
    z.qkv = rows * (double)(heads.q.count + 2 * heads.kv.count) * head_dim * o->element_bytes;
    z.lse = rows * (double)heads.q.count * o->real_bytes;
    z.logits = rows * (double)hkt_shard_vocab(s->vocab, 1, tp, o->tp_rank).rows.count * o->element_bytes;
    z.numbers = 4 * rows * o->real_bytes;
    size_mlp(o, rows, &z);
    *out_sizes = z;
    return HKT_OK;
}

/* ---- between blocks ---- */

void hkt__meter_reduce(struct hkt__meter *m, const struct hkt__sizes *z)
{
    if (!z->is_cut)
        return;
    hkt__take(m, z->here);
    hkt__drop(m, z->whole);
}

void hkt__meter_gather(struct hkt__meter *m, const struct hkt__sizes *z)
{
    if (!z->is_cut)
        return;
    hkt__take(m, z->whole);
    hkt__drop(m, z->here);
}

void hkt__meter_norm(struct hkt__meter *m, const struct hkt__sizes *z)
{
    hkt__take(m, z->here + z->statistics);
    hkt__meter_gather(m, z);
}

/* ---- experts ---- */

/* Slots arrive in the order of senders, and are copied in that of experts. */
static void travel(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    hkt__take(m, 2 * r->arrivals * z->row);
    hkt__drop(m, (r->slots + r->arrivals) * z->row);
}

/* The way back: in the order of senders, then home. */
static void travel_back(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    hkt__take(m, r->arrivals * z->row);
    hkt__take(m, r->slots * z->row);
    hkt__drop(m, 2 * r->arrivals * z->row);
}

static void experts_forward(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    hkt__take(m, z->routes);
    hkt__take(m, r->slots * z->row);
    travel(m, z, r);
    hkt__take(m, r->arrivals * (z->row + z->expert_pre + z->expert_mid));
    travel_back(m, z, r);
}

/* Leaves the gradients of what arrived and of the logits. */
static void experts_backward(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    hkt__take(m, r->slots * z->row);
    hkt__take(m, z->dlogits);
    hkt__drop(m, r->slots * z->row); /* the results of forward */
    travel(m, z, r);
    hkt__take(m, r->arrivals * z->row);
    hkt__take(m, r->largest * z->expert_mid);
    hkt__drop(m, r->largest * z->expert_mid);
    travel_back(m, z, r);
    hkt__drop(m, r->slots * z->row);
}

/* ---- a layer ---- */

static double mlp_saved(const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    return r == NULL ? z->pre + z->mid : z->routes + r->slots * z->row + r->arrivals * (z->row + z->expert_pre + z->expert_mid);
}

static void forward(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r, bool has_out)
{
    hkt__meter_norm(m, z);
    hkt__take(m, z->qkv + z->queries + z->lse + z->whole);
    hkt__meter_reduce(m, z);
    hkt__meter_norm(m, z);
    if (has_out)
        hkt__take(m, z->whole);
    if (r == NULL)
        hkt__take(m, z->pre + z->mid);
    else
        experts_forward(m, z, r);
    if (!has_out)
        return;
    hkt__meter_reduce(m, z);
    hkt__drop(m, z->here);
}

void hkt__meter_forward(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    forward(m, z, r, true);
    if (z->recompute == HKT_RECOMPUTE_SELECTIVE)
        hkt__drop(m, z->queries + z->lse);
    else if (z->recompute == HKT_RECOMPUTE_FULL)
        hkt__drop(m, 2 * z->whole + 2 * z->statistics + z->here + z->qkv + z->queries + z->lse + mlp_saved(z, r));
}

/* The gradient of a block's output, all rows. */
static void join_grad(struct hkt__meter *m, const struct hkt__sizes *z)
{
    hkt__take(m, z->here);
    hkt__meter_gather(m, z);
}

static void mlp_backward(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    join_grad(m, z);
    hkt__take(m, z->whole);
    if (r == NULL) {
        hkt__take(m, z->mid); /* then it is the gradient of pre, in the place of pre; gated it goes, and that lies in pre */
        hkt__drop(m, z->mid);
        hkt__meter_reduce(m, z);
    } else {
        hkt__take(m, z->whole); /* what comes through the router */
        experts_backward(m, z, r);
        hkt__meter_reduce(m, z);
        hkt__drop(m, z->whole);
    }
    hkt__drop(m, z->statistics);
}

void hkt__meter_backward(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    if (z->recompute == HKT_RECOMPUTE_FULL)
        forward(m, z, r, false);
    mlp_backward(m, z, r);
    join_grad(m, z);
    if (z->recompute == HKT_RECOMPUTE_SELECTIVE)
        hkt__take(m, z->queries + z->lse);
    hkt__take(m, z->queries + z->qkv);
    hkt__drop(m, z->queries + z->qkv + z->lse);
    hkt__take(m, z->whole);
    hkt__meter_reduce(m, z);
    hkt__drop(m, z->statistics + 3 * z->here); /* both gradients, and what stood between attention and MLP */
}

void hkt__meter_weights(struct hkt__meter *m, const struct hkt__sizes *z, const struct hkt_step_routing *r)
{
    const double inner = r == NULL ? z->pre + z->mid
                                   : z->routes + z->dlogits + r->arrivals * (2 * z->row + z->expert_pre + z->expert_mid);

    /* Inputs of attention and MLP, gradients of what they gave; attention's result, gradients of q, k and v. */
    hkt__drop(m, 4 * z->whole + z->queries + z->qkv + inner);
}
