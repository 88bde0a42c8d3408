/* The last norm, the head and the loss. Each tensor-parallel rank makes the logits of its range of the vocabulary; what crosses
 * ranks is three numbers a token (maximum; sum of exponentials and the target's logit), never logits. */
#include "parallel/block.h"

static struct hkt__linear linear_of(const struct hkt__block *block, const struct hkt__head_call *call)
{
    const struct hkt__linear linear = { .rows = block->rows,
                                        .in = block->hidden,
                                        .out = block->vocab.count,
                                        .weight = call->weights->words.value };

    return linear;
}

static void add_losses(struct hkt__block *block, const struct hkt__head_call *call, const void *losses)
{
    struct hkt__gpt_result *result = call->site->result;

    block->real_ops->exact_add(&result->loss, losses, block->rows);
    result->tokens += call->site->tokens;
}

/* Losses, and with has_grad gradients in the place of logits. */
static void cross_entropy(struct hkt__block *block, const struct hkt__head_call *call, void *logits, bool has_grad)
{
    const enum hkt_dtype real = block->ops->real;
    const int64_t rows = block->rows;
    void *numbers = hkt__block_get_real(block, 4 * rows);

    if (hkt__block_ok(block)) {
        char *at = numbers;
        const size_t step = (size_t)rows * block->ops->real_bytes;
        const struct hkt__cross_entropy ce = { .rows = rows,
                                               .cols = block->vocab.count,
                                               .first = block->vocab.first,
                                               .logits = logits,
                                               .targets = call->targets,
                                               .row_max = at,
                                               .sum_exp = at + step,
                                               .target_logit = at + 2 * step,
                                               .loss = at + 3 * step,
                                               .dlogits = logits,
                                               .scale = call->site->scale };

        block->ops->cross_entropy_max(&ce);
        hkt__block_note(block, hkt__link_all_reduce(&block->tp, ce.row_max, rows, real, HKT_MAX));
        if (hkt__block_ok(block))
            block->ops->cross_entropy_sums(&ce);
        if (hkt__block_ok(block)) /* sum_exp and target_logit lie side by side */
            hkt__block_note(block, hkt__link_all_reduce(&block->tp, ce.sum_exp, 2 * rows, real, HKT_SUM));
        if (hkt__block_ok(block)) {
            block->ops->cross_entropy_loss(&ce);
            add_losses(block, call, ce.loss);
            if (has_grad)
                block->ops->cross_entropy_grad(&ce);
        }
    }
    hkt__block_drop(block, &numbers);
}

void hkt__head_forward(struct hkt__block *block, const struct hkt__head_call *call, const void *x, bool has_grad)
{
    struct hkt__head_saved *saved = call->saved;
    struct hkt__linear linear = linear_of(block, call);

    saved->in = hkt__tp_gather(block, hkt__block_norm(block, &call->weights->norm, x, &saved->norm));
    saved->dlogits = hkt__block_get(block, block->rows * block->vocab.count);
    linear.x = saved->in;
    linear.y = saved->dlogits;
    hkt__block_linear(block, &linear);
    cross_entropy(block, call, saved->dlogits, has_grad);
}

void *hkt__head_backward(struct hkt__block *block, const struct hkt__head_call *call)
{
    struct hkt__linear linear = linear_of(block, call);
    void *d = hkt__block_get(block, block->rows * block->hidden);

    linear.dy = call->saved->dlogits;
    linear.dx = d;
    hkt__block_linear_grad(block, &linear);
    d = hkt__tp_reduce(block, d);
    hkt__block_norm_grad(block, &call->weights->norm, &call->saved->norm, d);
    return d;
}

void hkt__head_weights(struct hkt__block *block, const struct hkt__head_call *call)
{
    struct hkt__linear linear = linear_of(block, call);

    linear.x = call->saved->in;
    linear.dy = call->saved->dlogits;
    linear.dweight = call->weights->words.grad;
    hkt__block_linear_weights(block, &linear);
    hkt__head_drop(block, call->saved);
}

void hkt__head_drop(struct hkt__block *block, struct hkt__head_saved *saved)
{
    hkt__block_drop(block, &saved->norm.mean);
    hkt__block_drop(block, &saved->norm.rstd);
    hkt__block_drop(block, &saved->in);
    hkt__block_drop(block, &saved->dlogits);
}
