/* Counting parameters, and refusing layouts that cannot be. */
#include "hocket/layout.h"

#include <stddef.h>

#include "hocket/shard.h"
#include "parallel/divisors.h"
#include "parallel/fail.h"

static int64_t or_else(int64_t value, int64_t otherwise)
{
    return value == 0 ? otherwise : value;
}

/* Queries, keys, values and output; latent attention has two norms without biases inside. */
static int64_t attention_params(const struct hkt_shape *shape)
{
    const int64_t h = shape->hidden, heads = shape->heads, kv_heads = or_else(shape->kv_heads, heads);
    const int64_t dim = or_else(shape->head_dim, h / heads);

    if (shape->kv_rank > 0)
        return (h + 1) * shape->q_rank + shape->q_rank * heads * (dim + shape->rope_dim)
               + h * (shape->kv_rank + shape->rope_dim) + shape->kv_rank + shape->kv_rank * heads * (dim + shape->v_dim)
               + heads * shape->v_dim * h;
    return 2 * h * heads * dim + 2 * h * kv_heads * dim + shape->biases * (heads * dim + 2 * kv_heads * dim + h);
}

struct hkt_shape_params hkt_count_params(const struct hkt_shape *shape)
{
    const int64_t h = shape->hidden, ffn = or_else(shape->ffn, 4 * h);
    const int64_t dense_ffn = or_else(shape->dense_ffn, ffn), b = shape->biases, matrices = shape->gated ? 3 : 2;
    const int64_t inner_biases = b * (matrices - 1), top_k = or_else(shape->top_k, 1);
    struct hkt_shape_params p;

    p.attention = attention_params(shape);
    p.norms = 2 * h * (1 + b);
    p.expert = matrices * h * ffn + inner_biases * ffn + b * h;
    p.dense_mlp = matrices * h * dense_ffn + inner_biases * dense_ffn + b * h;
    p.mlp = shape->experts == 0 ? p.expert : (shape->experts + shape->shared) * p.expert + h * shape->experts;
    p.embedding = (shape->vocab + shape->positions) * h;
    p.head = h * (1 + b) + (shape->tied ? 0 : shape->vocab * h);
    const int64_t sparse = shape->layers - shape->dense_layers;

    p.total = shape->layers * (p.attention + p.norms) + sparse * p.mlp + shape->dense_layers * p.dense_mlp + p.embedding
              + p.head;
    p.active = p.total - (shape->experts == 0 ? 0 : sparse * (shape->experts - top_k) * p.expert);
    return p;
}

int64_t hkt_shape_stage_params(const struct hkt_shape *shape, int first, int end)
{
    const struct hkt_shape_params p = hkt_count_params(shape);
    const int dense_end = end < shape->dense_layers ? end : shape->dense_layers;
    const int64_t dense = first < dense_end ? dense_end - first : 0;
    int64_t params = (end - first) * (p.attention + p.norms) + dense * p.dense_mlp + (end - first - dense) * p.mlp;

    params += first == 0 ? p.embedding : 0;
    params += end == shape->layers ? p.head : 0;
    return params + (end == shape->layers && first > 0 && shape->tied ? shape->vocab * shape->hidden : 0);
}

/* A layout with its zeros filled in. */
struct cut {
    int64_t nranks, dp, tp, pp, ep, chunks, shard, global_batch, micro_batch;
};

static struct cut cut_of(const struct hkt_layout *layout)
{
    const struct cut cut = { or_else(layout->nranks, 1),
                             or_else(layout->dp, 1),
                             or_else(layout->tp, 1),
                             or_else(layout->pp, 1),
                             or_else(layout->ep, 1),
                             or_else(layout->chunks, 1),
                             or_else(layout->shard, or_else(layout->dp, 1)),
                             or_else(layout->global_batch, 1),
                             or_else(layout->micro_batch, 1) };

    return cut;
}

int64_t hkt_layout_micros(const struct hkt_layout *layout)
{
    const struct cut cut = cut_of(layout);

    return cut.global_batch % (cut.dp * cut.micro_batch) != 0 ? 0 : cut.global_batch / (cut.dp * cut.micro_batch);
}

static enum hkt_status check_product(const struct cut *cut)
{
    const int64_t product = cut->dp * cut->tp * cut->pp, others = cut->tp * cut->pp;

    if (product == cut->nranks)
        return HKT_OK;
    if (cut->nranks % others == 0)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "dp*tp*pp = %lld*%lld*%lld = %lld, but there are %lld ranks; dp %lld would fit",
                                  (long long)cut->dp, (long long)cut->tp, (long long)cut->pp, (long long)product,
                                  (long long)cut->nranks, (long long)(cut->nranks / others));
    return hkt__parallel_fail(
        HKT_ERR_INVALID,
        "dp*tp*pp = %lld*%lld*%lld = %lld, but there are %lld ranks, which tp*pp = %lld does not divide; "
        "tp*pp = %s would do",
        (long long)cut->dp, (long long)cut->tp, (long long)cut->pp, (long long)product, (long long)cut->nranks,
        (long long)others,
        hkt__either(hkt__divisor_below(cut->nranks, others), hkt__divisor_above(cut->nranks, others)).text);
}

/* `part` must divide `whole`; the text says what both are. */
static enum hkt_status must_divide(int64_t part, const char *part_is, int64_t whole, const char *whole_is)
{
    if (whole % part == 0)
        return HKT_OK;
    return hkt__parallel_fail(HKT_ERR_INVALID, "%s %lld does not divide %s %lld; %s %s would do", part_is,
                              (long long)part, whole_is, (long long)whole, part_is,
                              hkt__either(hkt__divisor_below(whole, part), hkt__divisor_above(whole, part)).text);
}

static enum hkt_status check_batch(const struct cut *cut)
{
    const int64_t unit = cut->dp * cut->micro_batch, below = cut->global_batch / unit * unit;

    if (cut->global_batch % unit == 0)
        return HKT_OK;
    if (below == 0)
        return hkt__parallel_fail(
            HKT_ERR_INVALID,
            "a global batch of %lld sequences is less than one micro-batch of %lld for each of dp %lld; "
            "the batch must be at least %lld, or dp at most %lld",
            (long long)cut->global_batch, (long long)cut->micro_batch, (long long)cut->dp, (long long)unit,
            (long long)or_else(cut->global_batch / cut->micro_batch, 1));
    return hkt__parallel_fail(
        HKT_ERR_INVALID,
        "a global batch of %lld sequences does not divide by dp %lld * micro-batch %lld = %lld; %s would do",
        (long long)cut->global_batch, (long long)cut->dp, (long long)cut->micro_batch, (long long)unit,
        hkt__either(below, below + unit).text);
}

static enum hkt_status check_model(const struct hkt_shape *shape, const struct cut *cut)
{
    struct hkt_head_shard heads;
    enum hkt_status rc = HKT_OK;

    if (shape->head_dim == 0)
        rc = must_divide(shape->heads, "heads", shape->hidden, "hidden size");
    if (rc == HKT_OK)
        rc = hkt_shard_heads(shape->heads, (int)or_else(shape->kv_heads, shape->heads), (int)cut->tp, 0, &heads);
    if (rc == HKT_OK && or_else(shape->ffn, 4 * shape->hidden) < cut->tp)
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "an MLP of width %lld cannot be cut over tp %lld",
                                (long long)or_else(shape->ffn, 4 * shape->hidden), (long long)cut->tp);
    if (rc == HKT_OK && shape->layers < cut->pp * cut->chunks)
        rc = hkt__parallel_fail(
            HKT_ERR_INVALID,
            "%d layers cannot fill pp %lld * %lld chunks = %lld stages, each needs one; pp * chunks may be "
            "at most %d",
            shape->layers, (long long)cut->pp, (long long)cut->chunks, (long long)(cut->pp * cut->chunks),
            shape->layers);
    return rc;
}

static enum hkt_status check_experts(const struct hkt_shape *shape, const struct cut *cut)
{
    if (shape->experts == 0)
        return cut->ep == 1 ? HKT_OK
                            : hkt__parallel_fail(HKT_ERR_INVALID, "ep %lld, but the model has no experts; use ep 1",
                                                 (long long)cut->ep);
    if (shape->top_k > shape->experts)
        return hkt__parallel_fail(HKT_ERR_INVALID, "top-%d of %d experts; at most %d", shape->top_k, shape->experts,
                                  shape->experts);
    int64_t common = cut->dp, rest = shape->experts; /* to be the greatest common divisor */

    while (rest != 0) {
        const int64_t before = common % rest;

        common = rest;
        rest = before;
    }
    if (common % cut->ep == 0)
        return HKT_OK;
    return hkt__parallel_fail(
        HKT_ERR_INVALID, "ep %lld must divide dp %lld and the %d experts; ep %s would do", (long long)cut->ep,
        (long long)cut->dp, shape->experts,
        hkt__either(hkt__divisor_below(common, cut->ep), hkt__divisor_above(common, cut->ep)).text);
}

static enum hkt_status check_schedule(const struct hkt_layout *layout, const struct cut *cut)
{
    if ((unsigned)layout->schedule >= HKT_PIPE_KIND_COUNT)
        return hkt__parallel_fail(HKT_ERR_INVALID, "there is no pipeline schedule %d", (int)layout->schedule);
    if (cut->chunks > 1 && layout->schedule != HKT_PIPE_INTERLEAVED)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%lld chunks per stage need the interleaved schedule; %s has 1",
                                  (long long)cut->chunks, hkt_pipe_kind_name(layout->schedule));
    if (cut->chunks < 2 && layout->schedule == HKT_PIPE_INTERLEAVED)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "an interleaved schedule has at least 2 chunks per stage; with 1 it is "
                                  "1f1b");
    return HKT_OK;
}

enum hkt_status hkt_layout_check(const struct hkt_shape *shape, const struct hkt_layout *layout)
{
    if (shape == NULL || layout == NULL || shape->layers < 1 || shape->heads < 1 || shape->hidden < 1
        || shape->vocab < 1)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "hkt_layout_check: a NULL, or a model without layers, heads, hidden size or "
                                  "vocabulary");
    const struct cut cut = cut_of(layout);
    const int64_t all[] = { cut.nranks, cut.dp,    cut.tp,           cut.pp,         cut.ep,
                            cut.chunks, cut.shard, cut.global_batch, cut.micro_batch };
    enum hkt_status rc = HKT_OK;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] < 1 || (i < 7 && all[i] > 1 << 20))
            return hkt__parallel_fail(HKT_ERR_INVALID,
                                      "ranks, dp, tp, pp, ep, chunks, shard, global batch and micro-batch must "
                                      "be at least 1; one is %lld",
                                      (long long)all[i]);
    if (layout->zero < 0 || layout->zero > 3)
        return hkt__parallel_fail(HKT_ERR_INVALID, "ZeRO has stages 0 to 3, not %d", layout->zero);
    rc = check_product(&cut);
    if (rc == HKT_OK)
        rc = check_model(shape, &cut);
    if (rc == HKT_OK)
        rc = check_experts(shape, &cut);
    if (rc == HKT_OK)
        rc = must_divide(cut.shard, "shard", cut.dp, "dp");
    if (rc == HKT_OK)
        rc = check_batch(&cut);
    if (rc == HKT_OK && layout->sequence_parallel && layout->seq > 0)
        rc = must_divide(cut.tp, "with sequence parallelism tp", layout->seq, "the sequence of");
    if (rc == HKT_OK && shape->positions > 0 && layout->seq > shape->positions)
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "a sequence of %lld is longer than the model's %lld learned positions",
                                (long long)layout->seq, (long long)shape->positions);
    return rc < 0 ? rc : check_schedule(layout, &cut);
}
