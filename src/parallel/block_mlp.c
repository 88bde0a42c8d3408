/* The MLP of a layer, or of one expert: column-parallel, activation, row-parallel. With a gate, the two matrices lie one after
 * the other and are one product; a rank has the same range of both. */

#include "parallel/block.h"

static bool is_gated(const struct hkt__block *block)
{
    return block->config->shape.gated;
}

static int64_t pre_width(const struct hkt__block *block, const struct hkt__mlp_weights *weights)
{
    return is_gated(block) ? 2 * weights->width : weights->width;
}

static struct hkt__swiglu swiglu_of(const struct hkt__block *block, const struct hkt__mlp_weights *weights,
                                    const struct hkt__mlp_saved *saved)
{
    const struct hkt__swiglu swiglu = { .rows = saved->rows,
                                        .cols = weights->width,
                                        .gate = saved->pre,
                                        .up = (char *)saved->pre + (size_t)weights->width * block->ops->store_bytes,
                                        .ld_gate = 2 * weights->width,
                                        .ld_up = 2 * weights->width,
                                        .y = saved->mid };

    return swiglu;
}

void hkt__mlp_forward(struct hkt__block *block, const struct hkt__mlp_weights *weights, struct hkt__mlp_saved *saved,
                      void *y)
{
    saved->pre = hkt__block_get(block, saved->rows * pre_width(block, weights));
    saved->mid = hkt__block_get(block, saved->rows * weights->width);
    hkt__block_linear(block, &(struct hkt__linear){ .rows = saved->rows,
                                                    .in = block->hidden,
                                                    .out = pre_width(block, weights),
                                                    .x = saved->in,
                                                    .weight = weights->gate.value,
                                                    .bias = weights->gate_bias.value,
                                                    .y = saved->pre });
    if (hkt__block_ok(block) && is_gated(block)) {
        const struct hkt__swiglu swiglu = swiglu_of(block, weights, saved);

        block->ops->swiglu(&swiglu);
    } else if (hkt__block_ok(block))
        block->ops->gelu(saved->mid, saved->pre, saved->rows * weights->width);
    if (y != NULL)
        hkt__block_linear(block, &(struct hkt__linear){ .rows = saved->rows,
                                                        .in = weights->width,
                                                        .out = block->hidden,
                                                        .x = saved->mid,
                                                        .weight = weights->out.value,
                                                        .y = y });
}

void hkt__mlp_backward(struct hkt__block *block, const struct hkt__mlp_weights *weights, struct hkt__mlp_saved *saved,
                       struct hkt__mlp_kept *kept, void *dx)
{
    void *dmid = hkt__block_get(block, saved->rows * weights->width);

    hkt__block_linear_grad(block, &(struct hkt__linear){ .rows = saved->rows,
                                                         .in = weights->width,
                                                         .out = block->hidden,
                                                         .weight = weights->out.value,
                                                         .dy = kept->dy,
                                                         .dx = dmid });
    if (hkt__block_ok(block) && is_gated(block)) {
        struct hkt__swiglu swiglu = swiglu_of(block, weights, saved);

        swiglu.dy = dmid;
        swiglu.dgate = saved->pre;
        swiglu.dup = (char *)saved->pre + (size_t)weights->width * block->ops->store_bytes;
        block->ops->swiglu_grad(&swiglu);
        kept->dpre = saved->pre;
        saved->pre = NULL;
        hkt__block_drop(block, &dmid);
    } else if (hkt__block_ok(block)) {
        block->ops->gelu_grad(dmid, dmid, saved->pre, saved->rows * weights->width);
        kept->dpre = dmid;
        dmid = NULL;
        hkt__block_drop(block, &saved->pre);
    }
    hkt__block_drop(block, &dmid); /* after a failure */
    hkt__block_linear_grad(block, &(struct hkt__linear){ .rows = saved->rows,
                                                         .in = block->hidden,
                                                         .out = pre_width(block, weights),
                                                         .weight = weights->gate.value,
                                                         .dy = kept->dpre,
                                                         .dx = dx });
}

void hkt__mlp_weights(struct hkt__block *block, const struct hkt__mlp_weights *weights, struct hkt__mlp_saved *saved,
                      struct hkt__mlp_kept *kept)
{
    hkt__block_linear_weights(block, &(struct hkt__linear){ .rows = saved->rows,
                                                            .in = weights->width,
                                                            .out = block->hidden,
                                                            .x = saved->mid,
                                                            .dy = kept->dy,
                                                            .dweight = weights->out.grad });
    hkt__block_linear_weights(block, &(struct hkt__linear){ .rows = saved->rows,
                                                            .in = block->hidden,
                                                            .out = pre_width(block, weights),
                                                            .x = saved->in,
                                                            .dy = kept->dpre,
                                                            .dweight = weights->gate.grad,
                                                            .dbias = weights->gate_bias.grad });
}

void hkt__mlp_drop(struct hkt__block *block, struct hkt__mlp_saved *saved, struct hkt__mlp_kept *kept)
{
    hkt__block_drop(block, &saved->pre);
    hkt__block_drop(block, &saved->mid);
    hkt__block_drop(block, &kept->dpre);
}
