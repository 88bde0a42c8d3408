/* Attention by heads: each tensor-parallel rank has some query heads, and the key-value heads these look at. Where there are
 * more ranks than key-value heads, several ranks have the same one; each then has a part of its gradient, which is added up
 * over them when a step ends (gpt_run.c). */
#include <math.h>

#include "parallel/block.h"

static int64_t width(const struct hkt__block *block)
{
    return (block->heads + 2 * block->kv_heads) * block->head_dim;
}

static char *at(const struct hkt__block *block, const void *data, int64_t elems)
{
    return (char *)data + (size_t)elems * block->ops->store_bytes;
}

/* The shape of the kernel's call, on q, k and v side by side. */
static struct hkt__attention shape_of(const struct hkt__block *block, const struct hkt__block_site *site,
                                      const struct hkt__attention_saved *saved)
{
    const int64_t seq = block->config->seq, d = block->head_dim, ld = width(block);
    const struct hkt__attention attention = {
        .batch = block->rows / seq,
        .queries = seq,
        .keys = seq,
        .heads = block->heads,
        .kv_heads = block->kv_heads,
        .head_dim = d,
        .scale = 1 / sqrt((double)d),
        .q = saved->qkv,
        .k = at(block, saved->qkv, block->heads * d),
        .v = at(block, saved->qkv, (block->heads + block->kv_heads) * d),
        .ld_q = ld,
        .ld_k = ld,
        .ld_v = ld,
        .ld_y = block->heads * d,
        .y = saved->y,
        .lse = saved->lse,
        .dropout = { .p = site->has_dropout ? block->config->attention_dropout : 0,
                     .rng = { .seed = block->config->seed,
                              .site = hkt__rng_site(HKT__SITE_WEIGHTS, (unsigned)site->layer, site->step) },
                     .first_row = site->first_row,
                     .first_head = block->first_head,
                     .heads_all = block->config->shape.heads },
    };

    return attention;
}

/* q and k lie side by side, and turn alike. */
static void turn(struct hkt__block *block, void *qkv, int inverse)
{
    const struct hkt__rotary rotary = { .rows = block->rows,
                                        .heads = block->heads + block->kv_heads,
                                        .head_dim = block->head_dim,
                                        .ld = width(block),
                                        .x = qkv,
                                        .positions = block->positions,
                                        .cosines = block->cosines,
                                        .sines = block->sines,
                                        .pairs = HKT__ROTARY_HALVES,
                                        .inverse = inverse };

    if (block->cosines != NULL && hkt__block_ok(block))
        block->ops->rotary(&rotary);
}

/* Softmax of scores over values: what selective recompute makes again. */
static void core(struct hkt__block *block, const struct hkt__block_site *site, struct hkt__attention_saved *saved)
{
    saved->y = hkt__block_get(block, block->rows * block->heads * block->head_dim);
    saved->lse = hkt__block_get_real(block, block->rows * block->heads);
    if (!hkt__block_ok(block))
        return;
    const struct hkt__attention attention = shape_of(block, site, saved);

    hkt__block_note(block, block->ops->attention(block->math, &attention));
}

void *hkt__attention_forward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                             const struct hkt__block_site *site, struct hkt__attention_saved *saved)
{
    saved->qkv = hkt__block_get(block, block->rows * width(block));
    hkt__block_linear(block, &(struct hkt__linear){ .rows = block->rows,
                                                    .in = block->hidden,
                                                    .out = width(block),
                                                    .x = saved->in,
                                                    .weight = weights->qkv.value,
                                                    .bias = weights->qkv_bias.value,
                                                    .y = saved->qkv });
    turn(block, saved->qkv, 0);
    core(block, site, saved);
    void *y = hkt__block_get(block, block->rows * block->hidden);

    hkt__block_linear(block, &(struct hkt__linear){ .rows = block->rows,
                                                    .in = block->heads * block->head_dim,
                                                    .out = block->hidden,
                                                    .x = saved->y,
                                                    .weight = weights->attn_out.value,
                                                    .y = y });
    return y;
}

void *hkt__attention_backward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                              const struct hkt__block_site *site, struct hkt__attention_saved *saved,
                              struct hkt__attention_kept *kept)
{
    const int64_t q_width = block->heads * block->head_dim;

    if (saved->y == NULL)
        core(block, site, saved);
    void *dy = hkt__block_get(block, block->rows * q_width);

    hkt__block_linear_grad(block, &(struct hkt__linear){ .rows = block->rows,
                                                         .in = q_width,
                                                         .out = block->hidden,
                                                         .weight = weights->attn_out.value,
                                                         .dy = kept->dy,
                                                         .dx = dy });
    kept->dqkv = hkt__block_get(block, block->rows * width(block));
    if (hkt__block_ok(block)) {
        struct hkt__attention attention = shape_of(block, site, saved);

        attention.dy = dy;
        attention.dq = kept->dqkv;
        attention.dk = at(block, kept->dqkv, q_width);
        attention.dv = at(block, kept->dqkv, q_width + block->kv_heads * block->head_dim);
        hkt__block_note(block, block->ops->attention_grad(block->math, &attention));
    }
    hkt__block_drop(block, &dy);
    hkt__block_drop(block, &saved->qkv);
    hkt__block_drop(block, &saved->lse);
    turn(block, kept->dqkv, 1);
    void *dx = hkt__block_get(block, block->rows * block->hidden);

    hkt__block_linear_grad(block, &(struct hkt__linear){ .rows = block->rows,
                                                         .in = block->hidden,
                                                         .out = width(block),
                                                         .weight = weights->qkv.value,
                                                         .dy = kept->dqkv,
                                                         .dx = dx });
    return dx;
}

void hkt__attention_weights(struct hkt__block *block, const struct hkt__layer_weights *weights,
                            struct hkt__attention_saved *saved, struct hkt__attention_kept *kept)
{
    hkt__block_linear_weights(block, &(struct hkt__linear){ .rows = block->rows,
                                                            .in = block->heads * block->head_dim,
                                                            .out = block->hidden,
                                                            .x = saved->y,
                                                            .dy = kept->dy,
                                                            .dweight = weights->attn_out.grad });
    hkt__block_linear_weights(block, &(struct hkt__linear){ .rows = block->rows,
                                                            .in = block->hidden,
                                                            .out = width(block),
                                                            .x = saved->in,
                                                            .dy = kept->dqkv,
                                                            .dweight = weights->qkv.grad,
                                                            .dbias = weights->qkv_bias.grad });
}

void hkt__attention_drop(struct hkt__block *block, struct hkt__attention_saved *saved,
                         struct hkt__attention_kept *kept)
{
    hkt__block_drop(block, &saved->in);
    hkt__block_drop(block, &saved->qkv);
    hkt__block_drop(block, &saved->y);
    hkt__block_drop(block, &saved->lse);
    hkt__block_drop(block, &kept->dy);
    hkt__block_drop(block, &kept->dqkv);
}
