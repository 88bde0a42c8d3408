/* An MLP of experts: tokens go to the ranks that hold their experts, through them, back, and are added up with the router's
 * weights. Tensor parallelism cuts each expert like any MLP: what comes back is a part of the sum, and so is the gradient of
 * a weight; the bias behind an expert is added by the first rank alone.
 *
 * Slots are in the order of hkt_moe_plan (sorted by expert), arrivals in the order in which they came, rows in the order of
 * this rank's experts. Dropped choices contribute nothing, and get no gradient. */
#include <math.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/block.h"
#include "parallel/fail.h"

static char *row_at(const struct hkt__block *block, const void *rows, int64_t row)
{
    return (char *)rows + (size_t)(row * block->hidden) * block->ops->store_bytes;
}

/* Scratch, and books of experts: zeros. */
static void *get(struct hkt__block *block, int64_t count, size_t bytes)
{
    void *data = NULL;

    if (hkt__block_ok(block))
        hkt__block_note(block,
                        hkt__memory_zalloc(block->memory, HKT__MEMORY_BUFFER, (uint64_t)count * bytes, &data));
    return data;
}

static void route(struct hkt__block *block, const struct hkt__moe_call *call)
{
    const struct hkt__gpt_config *config = block->config;
    const int top_k = config->shape.top_k, experts = config->shape.experts;
    struct hkt__moe_saved *saved = call->saved;
    const struct hkt_moe_opts opts = {
        .tokens = block->rows,
        .experts = experts,
        .top_k = top_k,
        .ranks = block->ep.size,
        .rank = block->ep.rank,
        .capacity = config->capacity_factor > 0
                        ? hkt_moe_capacity(block->rows, top_k, experts, config->capacity_factor)
                        : 0,
        .drop = config->drop,
    };
    float *weight = get(block, block->rows * top_k, sizeof *weight);

    for (int64_t i = 0; hkt__block_ok(block) && i < block->rows * top_k; i++)
        weight[i] = (float)saved->gates[i];
    if (hkt__block_ok(block))
        hkt__block_note(block, hkt_moe_plan_create(&opts, &saved->plan));
    if (hkt__block_ok(block))
        hkt__block_note(block, hkt_moe_plan_route(saved->plan, block->rows, saved->choice, weight));
    hkt__memory_free(block->memory, weight);
    if (!hkt__block_ok(block))
        return;
    int64_t *counts = get(block, (int64_t)block->ep.size * saved->plan->nlocal, sizeof *counts);

    hkt__moe_exchange_counts(block, saved->plan, counts);
    if (hkt__block_ok(block))
        hkt__block_note(block, hkt_moe_plan_receive(saved->plan, counts));
    hkt__memory_free(block->memory, counts);
}

/* What memory this routing takes: for whoever compares it with the formula. */
static void note_routing(const struct hkt__moe_call *call)
{
    const struct hkt_moe_plan *plan = call->saved->plan;
    struct hkt_step_routing *routing = call->site->routing;

    if (routing == NULL)
        return;
    *routing = (struct hkt_step_routing){ .slots = (double)plan->nslots, .arrivals = (double)plan->narrivals };
    for (int e = 0; e < plan->nlocal; e++)
        routing->largest = fmax(routing->largest, (double)(plan->first_row[e + 1] - plan->first_row[e]));
}

/* Slots [slots][hidden], taken -> rows of this rank's experts, given. */
static void *dispatch(struct hkt__block *block, const struct hkt_moe_plan *plan, void *slots)
{
    void *arrivals = hkt__block_get(block, plan->narrivals * block->hidden);
    void *rows = hkt__block_get(block, plan->narrivals * block->hidden);

    hkt__moe_exchange(block, plan, slots, arrivals, false);
    hkt__block_drop(block, &slots);
    for (int64_t i = 0; hkt__block_ok(block) && i < plan->narrivals; i++)
        memcpy(row_at(block, rows, i), row_at(block, arrivals, plan->arrival[i]),
               (size_t)block->hidden * block->ops->store_bytes);
    hkt__block_drop(block, &arrivals);
    return rows;
}

/* The way back: takes rows, gives slots. */
static void *collect(struct hkt__block *block, const struct hkt_moe_plan *plan, void *rows)
{
    void *arrivals = hkt__block_get(block, plan->narrivals * block->hidden);
    void *slots = hkt__block_get(block, plan->nslots * block->hidden);

    for (int64_t i = 0; hkt__block_ok(block) && i < plan->narrivals; i++)
        memcpy(row_at(block, arrivals, plan->arrival[i]), row_at(block, rows, i),
               (size_t)block->hidden * block->ops->store_bytes);
    hkt__block_drop(block, &rows);
    hkt__moe_exchange(block, plan, arrivals, slots, true);
    hkt__block_drop(block, &arrivals);
    return slots;
}

/* Rows of this rank's experts through them; given. */
static void *run_experts(struct hkt__block *block, const struct hkt__moe_call *call)
{
    struct hkt__moe_saved *saved = call->saved;
    const struct hkt_moe_plan *plan = saved->plan;
    void *out = hkt__block_get(block, plan->narrivals * block->hidden);

    saved->nexperts = plan->nlocal;
    saved->expert = get(block, plan->nlocal, sizeof *saved->expert);
    for (int e = 0; hkt__block_ok(block) && e < plan->nlocal; e++) {
        const struct hkt__mlp_weights *weights = &call->weights->experts[e];
        struct hkt__mlp_saved *mlp = &saved->expert[e];
        void *y = row_at(block, out, plan->first_row[e]);

        mlp->rows = plan->first_row[e + 1] - plan->first_row[e];
        mlp->in = row_at(block, saved->arrived, plan->first_row[e]);
        hkt__mlp_forward(block, weights, mlp, y);
        if (hkt__block_ok(block) && weights->out_bias.value != NULL && block->tp.rank == 0)
            block->ops->bias(y, weights->out_bias.value, mlp->rows, block->hidden);
    }
    return out;
}

/* y[token] = sum over its choices of weight * slot; weights NULL: all 1. */
static void combine(struct hkt__block *block, const struct hkt_moe_plan *plan, const double *weights,
                    const void *slots, void *y)
{
    const int64_t cols = block->hidden;
    double *sum = get(block, 2 * cols, sizeof *sum), *row = sum == NULL ? NULL : sum + cols;

    for (int64_t t = 0; hkt__block_ok(block) && t < block->rows; t++) {
        memset(sum, 0, (size_t)cols * sizeof *sum);
        for (int64_t pair = t * plan->top_k; pair < (t + 1) * plan->top_k; pair++) {
            if (plan->slot_of_pair[pair] < 0)
                continue;
            const double weight = weights == NULL ? 1 : weights[pair];

            block->ops->to_f64(row, row_at(block, slots, plan->slot_of_pair[pair]), cols);
            for (int64_t c = 0; c < cols; c++)
                sum[c] += weight * row[c];
        }
        block->ops->from_f64(row_at(block, y, t), sum, cols);
    }
    hkt__memory_free(block->memory, sum);
}

/* Rows of tokens, copied to their slots; given. */
static void *to_slots(struct hkt__block *block, const struct hkt_moe_plan *plan, const void *rows)
{
    void *slots = hkt__block_get(block, plan->nslots * block->hidden);

    for (int64_t s = 0; hkt__block_ok(block) && s < plan->nslots; s++)
        memcpy(row_at(block, slots, s), row_at(block, rows, plan->pair_of_slot[s] / plan->top_k),
               (size_t)block->hidden * block->ops->store_bytes);
    return slots;
}

/* Losses and drops of this routing. */
static void report(struct hkt__block *block, const struct hkt__moe_call *call)
{
    struct hkt__gpt_result *result = call->site->result;
    const struct hkt__moe_saved *saved = call->saved;
    const int64_t experts = block->config->shape.experts;
    const double tokens = (double)call->site->tokens;

    if (result == NULL)
        return;
    double *row = get(block, 2 * experts, sizeof *row), *sums = row == NULL ? NULL : row + experts, z = 0;

    for (int64_t r = 0; hkt__block_ok(block) && r < block->rows; r++) {
        const size_t at = (size_t)(r * experts) * block->ops->real_bytes;

        block->real_ops->to_f64(row, (const char *)saved->probs + at, experts);
        for (int64_t e = 0; e < experts; e++)
            sums[e] += row[e];
        block->real_ops->to_f64(row, (const char *)saved->logits + at, experts);
        z += hkt_moe_z_loss(row, (int)experts, NULL);
    }
    if (hkt__block_ok(block)) {
        result->balance += block->config->balance_weight * tokens
                           * hkt_moe_balance_loss(saved->plan->chosen, sums, (int)experts, block->rows,
                                                  block->config->shape.top_k);
        result->z += block->config->z_weight * tokens * z / (double)block->rows;
        result->dropped += saved->plan->ndropped;
        result->routed += block->rows * block->config->shape.top_k;
    }
    hkt__memory_free(block->memory, row);
}

void hkt__moe_forward(struct hkt__block *block, const struct hkt__moe_call *call, void *y)
{
    struct hkt__moe_saved *saved = call->saved;

    hkt__moe_choose(block, call);
    route(block, call);
    if (!hkt__block_ok(block))
        return;
    note_routing(call);
    saved->arrived = dispatch(block, saved->plan, to_slots(block, saved->plan, call->in));
    saved->results = collect(block, saved->plan, run_experts(block, call));
    if (y != NULL)
        combine(block, saved->plan, saved->gates, saved->results, y);
    report(block, call);
}

/* Gradients of the weights, of this rank's part -> dgate; of the slots, in the place of the copies of dy. */
static void slots_grad(struct hkt__block *block, const struct hkt__moe_call *call, void *slots, double *dgate)
{
    const struct hkt__moe_saved *saved = call->saved;
    const struct hkt_moe_plan *plan = saved->plan;
    const int64_t cols = block->hidden;
    double *d = get(block, 2 * cols, sizeof *d), *result = d == NULL ? NULL : d + cols;

    for (int64_t s = 0; hkt__block_ok(block) && s < plan->nslots; s++) {
        const int64_t pair = plan->pair_of_slot[s];
        double dot = 0;

        block->ops->to_f64(d, row_at(block, slots, s), cols);
        block->ops->to_f64(result, row_at(block, saved->results, s), cols);
        for (int64_t c = 0; c < cols; c++) {
            dot += d[c] * result[c];
            d[c] *= saved->gates[pair];
        }
        dgate[pair] = dot;
        block->ops->from_f64(row_at(block, slots, s), d, cols);
    }
    hkt__memory_free(block->memory, d);
}

void hkt__moe_backward(struct hkt__block *block, const struct hkt__moe_call *call, const void *dy, void *dx,
                       void *router_dx)
{
    struct hkt__moe_saved *saved = call->saved;
    struct hkt__moe_kept *kept = call->kept;
    double *dgate = get(block, block->rows * block->config->shape.top_k, sizeof *dgate);

    if (!hkt__block_ok(block))
        return;
    const struct hkt_moe_plan *plan = saved->plan;
    void *slots = to_slots(block, plan, dy);

    slots_grad(block, call, slots, dgate);
    hkt__moe_choose_grad(block, call, dgate);
    hkt__memory_free(block->memory, dgate);
    hkt__block_drop(block, &saved->results);
    kept->arrived_grad = dispatch(block, plan, slots);
    kept->expert = get(block, plan->nlocal, sizeof *kept->expert);
    void *rows = hkt__block_get(block, plan->narrivals * block->hidden);

    for (int e = 0; hkt__block_ok(block) && e < plan->nlocal; e++) {
        kept->expert[e].dy = row_at(block, kept->arrived_grad, plan->first_row[e]);
        hkt__mlp_backward(block, &call->weights->experts[e], &saved->expert[e], &kept->expert[e],
                          row_at(block, rows, plan->first_row[e]));
    }
    void *back = collect(block, plan, rows);

    combine(block, plan, NULL, back, dx);
    hkt__block_drop(block, &back);
    hkt__block_linear_grad(block, &(struct hkt__linear){ .rows = block->rows,
                                                         .in = block->hidden,
                                                         .out = block->config->shape.experts,
                                                         .weight = call->weights->router.value,
                                                         .dy = kept->dlogits,
                                                         .dx = router_dx });
}

void hkt__moe_weights(struct hkt__block *block, const struct hkt__moe_call *call)
{
    struct hkt__moe_saved *saved = call->saved;
    struct hkt__moe_kept *kept = call->kept;

    for (int e = 0; hkt__block_ok(block) && e < saved->nexperts; e++) {
        const struct hkt__mlp_weights *weights = &call->weights->experts[e];

        hkt__mlp_weights(block, weights, &saved->expert[e], &kept->expert[e]);
        if (hkt__block_ok(block) && weights->out_bias.grad != NULL)
            block->ops->bias_grad(weights->out_bias.grad, kept->expert[e].dy, saved->expert[e].rows, block->hidden);
    }
    hkt__block_linear_weights(block, &(struct hkt__linear){ .rows = block->rows,
                                                            .in = block->hidden,
                                                            .out = block->config->shape.experts,
                                                            .x = call->in,
                                                            .dy = kept->dlogits,
                                                            .dweight = call->weights->router.grad });
}

void hkt__moe_drop(struct hkt__block *block, struct hkt__moe_saved *saved, struct hkt__moe_kept *kept)
{
    struct hkt__mlp_kept none = { 0 };

    for (int e = 0; saved->expert != NULL && e < saved->nexperts; e++)
        hkt__mlp_drop(block, &saved->expert[e], kept->expert != NULL ? &kept->expert[e] : &none);
    hkt_moe_plan_destroy(saved->plan);
    hkt__memory_free(block->memory, saved->logits);
    hkt__memory_free(block->memory, saved->probs);
    hkt__memory_free(block->memory, saved->gates);
    hkt__memory_free(block->memory, saved->choice);
    hkt__memory_free(block->memory, saved->arrived);
    hkt__memory_free(block->memory, saved->results);
    hkt__memory_free(block->memory, saved->expert);
    hkt__memory_free(block->memory, kept->arrived_grad);
    hkt__memory_free(block->memory, kept->dlogits);
    hkt__memory_free(block->memory, kept->expert);
    memset(saved, 0, sizeof *saved);
    memset(kept, 0, sizeof *kept);
}
