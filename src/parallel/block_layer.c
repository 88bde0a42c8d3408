/* A layer: x + attention(norm(x)), then that + MLP(norm(that)), the MLP dense or of experts. Backward finds everything that
 * forward saved, or runs forward again up to what it needs; both lead through the same calls, so to the same bits.
 *
 * Biases that stand behind a reduction are added after it, once, by every rank to its own rows. Their gradients, and those of
 * norms, are sums over rows: of this rank's rows only where the rows are cut. */
#include <string.h>

#include "parallel/block.h"

void *hkt__block_norm(struct hkt__block *block, const struct hkt__norm_weights *weights, const void *x,
                      struct hkt__norm_saved *saved)
{
    const bool has_mean = block->config->norm == HKT__NORM_LAYER;
    void *y = hkt__block_get(block, block->rows_here * block->hidden);

    saved->x = x;
    saved->mean = has_mean ? hkt__block_get_real(block, block->rows_here) : NULL;
    saved->rstd = hkt__block_get_real(block, block->rows_here);
    const struct hkt__norm norm = { .rows = block->rows_here,
                                    .cols = block->hidden,
                                    .eps = block->config->norm_eps,
                                    .x = x,
                                    .gamma = weights->gamma.value,
                                    .beta = weights->beta.value,
                                    .y = y,
                                    .mean = saved->mean,
                                    .rstd = saved->rstd };

    if (hkt__block_ok(block))
        block->ops->norm(&norm);
    return y;
}

static void norm_drop(struct hkt__block *block, struct hkt__norm_saved *saved)
{
    hkt__block_drop(block, &saved->mean);
    hkt__block_drop(block, &saved->rstd);
}

void hkt__block_norm_grad(struct hkt__block *block, const struct hkt__norm_weights *weights,
                          struct hkt__norm_saved *saved, void *d)
{
    const struct hkt__norm norm = { .rows = block->rows_here,
                                    .cols = block->hidden,
                                    .eps = block->config->norm_eps,
                                    .x = saved->x,
                                    .gamma = weights->gamma.value,
                                    .beta = weights->beta.value,
                                    .mean = saved->mean,
                                    .rstd = saved->rstd,
                                    .dy = d,
                                    .dx = d,
                                    .dgamma = weights->gamma.grad,
                                    .dbeta = weights->beta.grad };

    if (hkt__block_ok(block))
        block->ops->norm_grad(&norm);
    norm_drop(block, saved);
}

void hkt__block_dropout(struct hkt__block *block, int what, const struct hkt__block_site *site, const void *x, void *y)
{
    const int64_t elems = block->rows_here * block->hidden;

    if (!hkt__block_ok(block))
        return;
    if (!site->has_dropout || block->config->dropout == 0) {
        if (x != y)
            memcpy(y, x, (size_t)elems * block->ops->store_bytes);
        return;
    }
    const struct hkt__dropout dropout = {
        .region = { .rows = block->rows_here,
                    .cols = block->hidden,
                    .first_row = site->first_row + block->first_here,
                    .cols_all = block->hidden },
        .rng = { .seed = block->config->seed,
                 .site = hkt__rng_site((unsigned)what, (unsigned)site->layer, site->step) },
        .p = block->config->dropout,
        .x = x,
        .y = y,
    };

    block->ops->dropout(&dropout);
}

/* What stands between a block and the residual. */
struct join {
    const struct hkt__weight *bias;
    const struct hkt__block_site *site;
    int what;
};

/* out = x + dropout(part + bias); part is changed. out may be part. */
static void join_add(struct hkt__block *block, const struct join *join, const void *x, void *part, void *out)
{
    if (!hkt__block_ok(block))
        return;
    if (join->bias->value != NULL)
        block->ops->bias(part, join->bias->value, block->rows_here, block->hidden);
    hkt__block_dropout(block, join->what, join->site, part, part);
    block->ops->add(out, x, part, block->rows_here * block->hidden);
}

/* Gradient of `part`, of all rows; given. */
static void *join_grad(struct hkt__block *block, const struct join *join, const void *dout)
{
    void *d = hkt__block_get(block, block->rows_here * block->hidden);

    hkt__block_dropout(block, join->what, join->site, dout, d);
    if (hkt__block_ok(block) && join->bias->grad != NULL)
        block->ops->bias_grad(join->bias->grad, d, block->rows_here, block->hidden);
    return hkt__tp_gather(block, d);
}

static const struct hkt__weight no_weight = { NULL, NULL };

static bool has_experts(const struct hkt__layer_weights *weights)
{
    return weights->experts != NULL;
}

static struct join attention_join(const struct hkt__layer_weights *weights, const struct hkt__block_site *site)
{
    const struct join join = { &weights->attn_bias, site, HKT__SITE_ATTENTION };

    return join;
}

static struct join mlp_join(const struct hkt__layer_weights *weights, const struct hkt__block_site *site)
{
    /* Experts add their own biases, before their results are weighted. */
    const struct join join = { has_experts(weights) ? &no_weight : &weights->mlp.out_bias, site, HKT__SITE_MLP };

    return join;
}

void hkt__layer_forward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                        const struct hkt__block_site *site, const struct hkt__layer_io *io,
                        struct hkt__layer_saved *saved)
{
    const struct join attention = attention_join(weights, site), mlp = mlp_join(weights, site);

    saved->attention.in = hkt__tp_gather(block, hkt__block_norm(block, &weights->norm1, io->x, &saved->norm1));
    saved->middle = hkt__tp_reduce(block, hkt__attention_forward(block, weights, site, &saved->attention));
    join_add(block, &attention, io->x, saved->middle, saved->middle);
    saved->mlp_in = hkt__tp_gather(block, hkt__block_norm(block, &weights->norm2, saved->middle, &saved->norm2));
    void *y = io->out == NULL ? NULL : hkt__block_get(block, block->rows * block->hidden);

    if (has_experts(weights)) {
        const struct hkt__moe_call call = { weights, site, saved->mlp_in, &saved->moe, NULL };

        hkt__moe_forward(block, &call, y);
    } else {
        saved->mlp.rows = block->rows;
        saved->mlp.in = saved->mlp_in;
        hkt__mlp_forward(block, &weights->mlp, &saved->mlp, y);
    }
    saved->is_whole = true;
    if (io->out == NULL)
        return;
    y = hkt__tp_reduce(block, y);
    join_add(block, &mlp, saved->middle, y, io->out);
    hkt__block_drop(block, &y);
}

void hkt__layer_forget(struct hkt__block *block, struct hkt__layer_saved *saved)
{
    struct hkt__layer_kept none = { 0 };

    if (block->config->recompute == HKT_RECOMPUTE_SELECTIVE) {
        hkt__block_drop(block, &saved->attention.y);
        hkt__block_drop(block, &saved->attention.lse);
    } else if (block->config->recompute == HKT_RECOMPUTE_FULL)
        hkt__layer_drop(block, saved, &none);
}

/* dout -> gradient of the layer's middle through the MLP, this rank's rows; given. */
static void *mlp_backward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                          const struct hkt__block_site *site, const struct hkt__layer_grad *grad)
{
    struct hkt__layer_saved *saved = grad->saved;
    struct hkt__layer_kept *kept = grad->kept;
    const struct join mlp = mlp_join(weights, site);
    const int64_t elems = block->rows * block->hidden, here = block->rows_here * block->hidden;

    kept->mlp_dy = join_grad(block, &mlp, grad->dout);
    void *d = hkt__block_get(block, elems);

    if (!has_experts(weights)) {
        kept->mlp.dy = kept->mlp_dy;
        hkt__mlp_backward(block, &weights->mlp, &saved->mlp, &kept->mlp, d);
        d = hkt__tp_reduce(block, d);
    } else {
        const struct hkt__moe_call call = { weights, site, saved->mlp_in, &saved->moe, &kept->moe };
        void *router = hkt__block_get(block, elems);

        hkt__moe_backward(block, &call, kept->mlp_dy, d, router);
        d = hkt__tp_reduce(block, d);
        if (hkt__block_ok(block))
            block->ops->add(d, d, (char *)router + (size_t)(block->first_here * block->hidden) * block->ops->store_bytes,
                            here);
        hkt__block_drop(block, &router);
    }
    hkt__block_norm_grad(block, &weights->norm2, &saved->norm2, d);
    if (hkt__block_ok(block))
        block->ops->add(d, d, grad->dout, here);
    return d;
}

void hkt__layer_backward(struct hkt__block *block, const struct hkt__layer_weights *weights,
                         const struct hkt__block_site *site, const struct hkt__layer_grad *grad)
{
    const struct join attention = attention_join(weights, site);
    struct hkt__layer_saved *saved = grad->saved;

    if (!saved->is_whole) {
        struct hkt__block_site quiet = *site;
        const struct hkt__layer_io io = { grad->x, NULL };

        quiet.result = NULL;
        hkt__layer_forward(block, weights, &quiet, &io, saved);
    }
    void *dmiddle = mlp_backward(block, weights, site, grad);

    grad->kept->attention.dy = join_grad(block, &attention, dmiddle);
    void *d = hkt__attention_backward(block, weights, site, &saved->attention, &grad->kept->attention);

    d = hkt__tp_reduce(block, d);
    hkt__block_norm_grad(block, &weights->norm1, &saved->norm1, d);
    if (hkt__block_ok(block))
        block->ops->add(grad->dx, d, dmiddle, block->rows_here * block->hidden);
    hkt__block_drop(block, &d);
    hkt__block_drop(block, &dmiddle);
    hkt__block_drop(block, &saved->middle);
}

void hkt__layer_weights(struct hkt__block *block, const struct hkt__layer_weights *weights,
                        struct hkt__layer_saved *saved, struct hkt__layer_kept *kept)
{
    if (has_experts(weights)) {
        const struct hkt__moe_call call = { weights, NULL, saved->mlp_in, &saved->moe, &kept->moe };

        hkt__moe_weights(block, &call);
    } else
        hkt__mlp_weights(block, &weights->mlp, &saved->mlp, &kept->mlp);
    hkt__attention_weights(block, weights, &saved->attention, &kept->attention);
    hkt__layer_drop(block, saved, kept);
}

void hkt__layer_drop(struct hkt__block *block, struct hkt__layer_saved *saved, struct hkt__layer_kept *kept)
{
    norm_drop(block, &saved->norm1);
    norm_drop(block, &saved->norm2);
    hkt__attention_drop(block, &saved->attention, &kept->attention);
    hkt__mlp_drop(block, &saved->mlp, &kept->mlp);
    hkt__moe_drop(block, &saved->moe, &kept->moe);
    hkt__block_drop(block, &saved->middle);
    hkt__block_drop(block, &saved->mlp_in);
    hkt__block_drop(block, &kept->mlp_dy);
    saved->is_whole = false;
}
