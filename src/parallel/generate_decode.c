/* One token through the model: the blocks of training over one row, with the keys and values of the tokens before from a
 * cache. Two all-reduces a layer, one for the embedding, and a gather of the logits. */
#include <math.h>
#include <string.h>

#include "parallel/generate_state.h"

/* The normalised row; given. */
static void *norm(struct hkt__block *block, const struct hkt__norm_weights *weights, const void *x)
{
    struct hkt__norm_saved saved = { NULL, NULL, NULL };
    void *y = hkt__block_norm(block, weights, x, &saved);

    hkt__block_drop(block, &saved.mean);
    hkt__block_drop(block, &saved.rstd);
    return y;
}

/* x += the sum of `part` over ranks + bias; takes part. */
static void join(struct hkt__block *block, void *part, const struct hkt__weight *bias, void *x)
{
    part = hkt__tp_reduce(block, part);
    if (hkt__block_ok(block) && bias != NULL && bias->value != NULL)
        block->ops->bias(part, bias->value, 1, block->hidden);
    if (hkt__block_ok(block))
        block->ops->add(x, x, part, block->hidden);
    hkt__block_drop(block, &part);
}

/* q of this token turned in place, k and v put into the cache. */
static void remember(struct hkt_generator *g, int layer, void *qkv)
{
    struct hkt__block *block = &g->gpt->block;
    const size_t bytes = block->ops->store_bytes;
    const int64_t q_width = block->heads * block->head_dim, kv_width = block->kv_heads * block->head_dim;
    const struct hkt__rotary rotary = { .rows = 1, .heads = block->heads + block->kv_heads, .head_dim = block->head_dim,
                                        .ld = q_width + 2 * kv_width, .x = qkv, .positions = block->positions,
                                        .cosines = block->cosines, .sines = block->sines, .pairs = HKT__ROTARY_HALVES };
    const size_t at = (size_t)(g->read * kv_width) * bytes;

    if (!hkt__block_ok(block))
        return;
    if (block->cosines != NULL)
        block->ops->rotary(&rotary);
    memcpy((char *)g->keys[layer] + at, (char *)qkv + (size_t)q_width * bytes, (size_t)kv_width * bytes);
    memcpy((char *)g->values[layer] + at, (char *)qkv + (size_t)(q_width + kv_width) * bytes, (size_t)kv_width * bytes);
}

static void *attention(struct hkt_generator *g, const struct hkt__layer_weights *weights, int layer, const void *in)
{
    struct hkt__block *block = &g->gpt->block;
    const int64_t d = block->head_dim, q_width = block->heads * d, kv_width = block->kv_heads * d;
    void *qkv = hkt__block_get(block, q_width + 2 * kv_width), *y = hkt__block_get(block, q_width);
    void *part = hkt__block_get(block, block->hidden);

    hkt__block_linear(block, &(struct hkt__linear){ .rows = 1, .in = block->hidden, .out = q_width + 2 * kv_width, .x = in,
                                                    .weight = weights->qkv.value, .bias = weights->qkv_bias.value, .y = qkv });
    remember(g, layer, qkv);
    const struct hkt__attention call = {
        .batch = 1, .queries = 1, .keys = g->read + 1, .heads = block->heads, .kv_heads = block->kv_heads, .head_dim = d,
        .scale = 1 / sqrt((double)d), .q = qkv, .k = g->keys[layer], .v = g->values[layer], .ld_q = q_width + 2 * kv_width,
        .ld_k = kv_width, .ld_v = kv_width, .ld_y = q_width, .kv_rows = g->positions, .y = y,
    };

    if (hkt__block_ok(block))
        hkt__block_note(block, block->ops->attention_decode(block->math, &call));
    hkt__block_linear(block, &(struct hkt__linear){ .rows = 1, .in = q_width, .out = block->hidden, .x = y,
                                                    .weight = weights->attn_out.value, .y = part });
    hkt__block_drop(block, &qkv);
    hkt__block_drop(block, &y);
    return part;
}

static void *mlp(struct hkt__block *block, const struct hkt__layer_weights *weights, const struct hkt__block_site *site,
                 const void *in)
{
    void *part = hkt__block_get(block, block->hidden);

    if (weights->experts != NULL) {
        struct hkt__moe_saved saved = { 0 };
        struct hkt__moe_kept kept = { 0 };
        const struct hkt__moe_call call = { weights, site, in, &saved, NULL };

        hkt__moe_forward(block, &call, part);
        hkt__moe_drop(block, &saved, &kept);
    } else {
        struct hkt__mlp_saved saved = { .rows = 1, .in = in };

        hkt__mlp_forward(block, &weights->mlp, &saved, part);
        hkt__block_drop(block, &saved.pre);
        hkt__block_drop(block, &saved.mid);
    }
    return part;
}

static void layer(struct hkt_generator *g, int number, const struct hkt__block_site *site, void *x)
{
    struct hkt__block *block = &g->gpt->block;
    struct hkt__layer_weights weights;
    void *in;

    hkt__gpt_layer_weights(g->gpt, number, &weights);
    in = norm(block, &weights.norm1, x);
    join(block, attention(g, &weights, number, in), &weights.attn_bias, x);
    hkt__block_drop(block, &in);
    in = norm(block, &weights.norm2, x);
    join(block, mlp(block, &weights, site, in), weights.experts != NULL ? NULL : &weights.mlp.out_bias, x);
    hkt__block_drop(block, &in);
}

static struct hkt__weight weight(const struct hkt__gpt *gpt, int unit, enum hkt__gpt_tensor tensor)
{
    return hkt__gpt_weight(gpt, gpt->index[unit][tensor]);
}

/* Logits of this rank's words, then of all: everyone chooses from the same numbers. */
static void head(struct hkt_generator *g, const void *x)
{
    struct hkt__gpt *gpt = g->gpt;
    struct hkt__block *block = &gpt->block;
    const int last = gpt->config.shape.layers + 1, tp = block->tp.size;
    const struct hkt__norm_weights norms = { weight(gpt, last, HKT__T_NORM_LAST), weight(gpt, last, HKT__T_NORM_LAST_BIAS) };
    const struct hkt__weight words =
        gpt->config.shape.tied ? weight(gpt, 0, HKT__T_WTE) : weight(gpt, last, HKT__T_HEAD);
    void *in = norm(block, &norms, x);
    const struct hkt__gemm gemm = { .trans_b = 1, .m = 1, .n = block->vocab.count, .k = block->hidden, .alpha = 1, .a = in,
                                    .b = words.value, .c = g->part, .lda = block->hidden, .ldb = block->hidden,
                                    .ldc = block->vocab.count };
    size_t counts[HKT__GENERATE_RANKS_MAX];

    if (hkt__block_ok(block) && block->vocab.count > 0)
        hkt__block_note(block, hkt__gemm_to_real(block->math, &gemm));
    hkt__block_drop(block, &in);
    for (int r = 0; r < tp; r++)
        counts[r] = (size_t)hkt_shard_vocab(g->vocab, gpt->config.vocab_multiple, tp, r).rows.count;
    if (hkt__block_ok(block) && tp > 1)
        hkt__block_note(block, hkt__link_all_gather_v(&block->tp, g->part, g->whole, counts, block->ops->real));
    if (hkt__block_ok(block))
        block->real_ops->to_f64(g->logits, tp > 1 ? g->whole : g->part, g->vocab);
}

enum hkt_status hkt__generate_read(struct hkt_generator *g, int32_t token)
{
    struct hkt__gpt *gpt = g->gpt;
    struct hkt__block *block = &gpt->block;
    struct hkt__gpt_result ignored;
    const struct hkt__embedding_weights weights = { weight(gpt, 0, HKT__T_WTE), weight(gpt, 0, HKT__T_WPE) };
    struct hkt__block_site site = { .result = &ignored };

    memset(&ignored, 0, sizeof ignored);
    block->rows = block->rows_here = 1;
    block->positions[0] = (int32_t)g->read;
    void *x = hkt__embedding_forward(block, &weights, &site, &token);

    for (int i = 0; i < gpt->config.shape.layers; i++) {
        site.layer = i;
        layer(g, i, &site, x);
    }
    head(g, x);
    hkt__block_drop(block, &x);
    if (hkt__block_ok(block))
        g->read++;
    return block->status;
}
