/* The bytes of one training step, collective by collective. Derivations stand with each; docs/parallelism.md has the table. */
#include "hocket/step_bytes.h"

#include <string.h>

#include "hocket/shard.h"
#include "parallel/exact.h"
#include "parallel/fail.h"
#include "parallel/formulas_memory.h"

/* A step with its zeros filled in. */
struct step {
    const struct hkt_step_opts *o;
    int dp, tp, pp, ep, chunks;
    double micros, rows, hidden;
    double message;      /* rows x hidden */
    int is_cut;          /* rows are cut over tp between blocks */
    int is_first, is_last;
    int splits_backward; /* the schedule has a W of its own */
    int ties_stages;     /* the embedding is on two stages */
    double words;        /* of this tp rank */
};

static int or_one(int value)
{
    return value > 0 ? value : 1;
}

static struct step step_of(const struct hkt_step_opts *o)
{
    const struct hkt_layout *l = &o->layout;
    struct step s = { .o = o, .dp = or_one(l->dp), .tp = or_one(l->tp), .pp = or_one(l->pp), .ep = or_one(l->ep),
                      .chunks = or_one(l->chunks), .micros = (double)hkt_layout_micros(l),
                      .rows = (double)(l->micro_batch * l->seq), .hidden = (double)o->shape.hidden };

    s.message = s.rows * s.hidden * o->element_bytes;
    s.is_cut = l->sequence_parallel && s.tp > 1;
    s.is_first = o->stage == 0;
    s.is_last = o->stage == s.pp - 1;
    s.splits_backward = l->schedule == HKT_PIPE_ZB_H1;
    s.ties_stages = o->shape.tied && s.pp > 1;
    s.words = (double)hkt_shard_vocab(o->shape.vocab, 1, s.tp, o->tp_rank).rows.count;
    return s;
}

/* ---- data parallelism ---- */

/* How often a step gathers a layer, and the embedding, in ZeRO 3. Each use ends with the parameters freed, so they are gathered once
 * per use: forward and backward. The embedding is used by the lookup and, tied, by the head; the gradient of a lookup needs no
 * parameters, but only a schedule with a W of its own knows. If parameters stay until backward, that is what frees them. */
static void count_gathers(const struct step *s, double *out_layer, double *out_embedding)
{
    const int head = s->o->shape.tied && s->is_last, backward = (s->is_first && !s->splits_backward) + head;
    const int forward = s->is_first + head;

    *out_layer = s->micros * (s->o->keep_gathered ? 1 : 2);
    *out_embedding = s->micros * (forward + backward);
    if (s->o->keep_gathered)
        *out_embedding = backward > 0 ? s->micros * backward : forward > 0;
}

/* A flat buffer over `inner` ranks that shard it, and `outer` replicas of these. */
static void add_flat(const struct step *s, const struct hkt_step_flat *flat, int inner, int outer, struct hkt_coll_bytes *out)
{
    const struct hkt_step_opts *o = s->o;
    const double layers = flat->elems - flat->embedding_elems, reductions = o->reduce_every ? s->micros : 1;
    /* Where two stages have a part of its gradient they add it up when all micro-batches are in. */
    const double elems = layers * reductions + flat->embedding_elems * (s->ties_stages ? 1 : reductions);
    double layer_gathers = 0, embedding_gathers = 0;

    if (outer > 1)
        out->all_reduce += elems / inner * o->real_bytes;
    if (inner == 1)
        return;
    *(o->layout.zero == 0 ? &out->all_reduce : &out->reduce_scatter) += elems * o->real_bytes;
    if (o->layout.zero == 3)
        count_gathers(s, &layer_gathers, &embedding_gathers);
    else if (o->layout.zero > 0)
        layer_gathers = embedding_gathers = 1;
    out->all_gather += (layers * layer_gathers + flat->embedding_elems * embedding_gathers) * o->element_bytes;
}

static void add_dp(const struct step *s, struct hkt_coll_bytes *out)
{
    const struct hkt_layout *l = &s->o->layout;
    const int shard = l->zero > 0 && l->shard > 0 ? l->shard : s->dp;

    add_flat(s, &s->o->dense, shard, s->dp / shard, out);
    if (s->ep > 1)
        add_flat(s, &s->o->experts, s->dp / s->ep, 1, out);
    else
        add_flat(s, &s->o->experts, shard, s->dp / shard, out);
}

/* ---- inside layers ---- */

/* Messages of rows x hidden: into the blocks of a layer (gathers, which are nothing where rows are not cut), and out of them
 * (reductions, each way). A layer has two of each, forward and backward. Full recompute runs a layer again up to the input of its
 * last product: both ways in, one out. The embedding has a way out forward, and in backward; the head the other way round. */
static void count_messages(const struct step *s, double *out_in, double *out_out)
{
    const double again = s->o->recompute == HKT_RECOMPUTE_FULL ? s->o->layers : 0, ends = s->is_first + s->is_last;

    *out_in = s->micros * (4.0 * s->o->layers + 2 * again + ends);
    *out_out = s->micros * (4.0 * s->o->layers + again + ends);
}

/* Gradients of which tensor-parallel ranks have a part each, once a step. */
static double shared_grads(const struct step *s)
{
    const struct hkt_step_opts *o = s->o;
    const struct hkt_shape *shape = &o->shape;
    const double norm = 1 + (shape->biases && !o->rms_norm), bias = shape->biases != 0;
    const double layers = o->layers * (2 * norm + bias) + (o->layers - o->expert_layers) * bias;
    const double times = o->reduce_every ? s->micros : 1;
    double elems = times * (layers + (s->is_last ? norm : 0)) * s->hidden;

    if (s->is_first)
        elems += (s->ties_stages ? 1 : times) * (double)shape->positions * s->hidden;
    return elems * o->real_bytes;
}

/* Keys and values whose head several ranks hold: their gradients, once a step. */
static enum hkt_status copied_heads(const struct step *s, double *out_bytes)
{
    const struct hkt_shape *shape = &s->o->shape;
    const int kv_heads = shape->kv_heads > 0 ? shape->kv_heads : shape->heads;
    const int64_t head_dim = shape->head_dim > 0 ? shape->head_dim : shape->hidden / shape->heads;
    struct hkt_head_shard heads;
    const enum hkt_status rc = hkt_shard_heads(shape->heads, kv_heads, s->tp, s->o->tp_rank, &heads);

    if (rc < 0)
        return rc;
    const double width = 2 * (double)(heads.kv.count * head_dim), times = s->o->reduce_every ? s->micros : 1;

    *out_bytes = heads.copies > 1 ? times * s->o->layers * width * (s->hidden + (shape->biases != 0)) * s->o->real_bytes : 0;
    return HKT_OK;
}

static enum hkt_status add_tp(const struct step *s, struct hkt_coll_bytes *out)
{
    const struct hkt_step_opts *o = s->o;
    double in, out_of, copied = 0;
    const enum hkt_status rc = copied_heads(s, &copied);

    if (rc < 0 || s->tp == 1)
        return rc;
    count_messages(s, &in, &out_of);
    *(s->is_cut ? &out->reduce_scatter : &out->all_reduce) += out_of * s->message;
    if (s->is_cut) {
        out->all_gather += in * s->message;
        out->all_reduce += shared_grads(s);
    }
    out->all_reduce += copied;
    /* The softmax: a maximum, then a sum and the target's logit, of each row. */
    if (s->is_last)
        out->all_reduce += s->micros * 3 * s->rows * o->real_bytes;
    /* The gradient of the router's weights, in double. */
    out->all_reduce += s->micros * o->expert_layers * s->rows * or_one(o->shape.top_k) * (double)sizeof(double);
    return HKT_OK;
}

/* ---- between stages, and to experts ---- */

/* Every chunk but the last of all sends activations, every one but the first of all gradients; a tied embedding's gradient
 * crosses once. */
static void add_pp(const struct step *s, struct hkt_coll_bytes *out)
{
    const double message = s->is_cut ? s->message / s->tp : s->message;

    if (s->pp == 1)
        return;
    out->send += s->micros * message * (2 * s->chunks - s->is_first - s->is_last);
    if (s->ties_stages && (s->is_first || s->is_last))
        out->send += s->words * s->hidden * s->o->real_bytes;
}

/* There and back, forward and backward, and both once more with full recompute; before each forward everyone says how many pairs
 * it has for each expert. */
static void add_ep(const struct step *s, struct hkt_coll_bytes *out)
{
    const struct hkt_step_opts *o = s->o;
    const int forwards = o->recompute == HKT_RECOMPUTE_FULL ? 2 : 1;
    const double routings = s->micros * o->expert_layers, exchanges = 2 * (1 + forwards);
    const double pairs = exchanges * o->pairs * s->hidden * o->element_bytes;

    if (s->ep == 1)
        return;
    out->all_to_all += forwards * routings * o->shape.experts * (double)sizeof(int64_t);
    if (o->gathers_pairs)
        out->all_gather += s->ep * pairs + exchanges * routings * s->ep * s->ep * (double)sizeof(uint64_t);
    else
        out->all_to_all += pairs;
}

/* ---- what stays for backward ---- */

/* A layer: its input, and what its forward leaves (formulas_layer.c). The head: input, normalised input, gradients of logits. */
double hkt_count_kept(const struct hkt_step_opts *o)
{
    struct hkt__meter dense = { 0, 0 }, experts = { 0, 0 };
    struct hkt__sizes z;

    if (hkt__sizes_of(o, &z) < 0)
        return -1;
    hkt__meter_forward(&dense, &z, NULL);
    hkt__meter_forward(&experts, &z, &z.even);
    const double layers = (o->layers - o->expert_layers) * dense.now + o->expert_layers * experts.now;
    const double head = o->stage == or_one(o->layout.pp) - 1 ? z.here + z.statistics + z.whole + z.logits : 0;

    return o->layers * z.here + layers + head;
}

/* ---- all ---- */

double hkt_coll_bytes_sum(const struct hkt_coll_bytes *b)
{
    return b->all_reduce + b->reduce_scatter + b->all_gather + b->all_to_all + b->send;
}

enum hkt_status hkt_count_step(const struct hkt_step_opts *opts, struct hkt_step_bytes *out_bytes)
{
    struct hkt_step_bytes bytes;
    enum hkt_status rc = hkt_layout_check(&opts->shape, &opts->layout);

    if (rc < 0)
        return rc;
    const struct step s = step_of(opts);

    if (opts->stage < 0 || opts->stage >= s.pp || opts->tp_rank < 0 || opts->tp_rank >= s.tp)
        return hkt__parallel_fail(HKT_ERR_INVALID, "stage %d of pp %d, rank %d of tp %d: there is no such rank", opts->stage, s.pp,
                                  opts->tp_rank, s.tp);
    memset(&bytes, 0, sizeof bytes);
    add_dp(&s, &bytes.dp);
    rc = add_tp(&s, s.is_cut ? &bytes.sp : &bytes.tp);
    add_pp(&s, &bytes.pp);
    add_ep(&s, &bytes.ep);
    /* The norm; then loss, balance, z, tokens and drops. */
    if (s.dp * s.tp * s.pp > 1)
        bytes.scalars.all_reduce = (HKT__EXACT_WORDS + 3 * HKT__EXACT_WORDS + 2) * (double)sizeof(int64_t);
    if (rc == HKT_OK)
        *out_bytes = bytes;
    return rc;
}
