/* The router: which experts a token goes to, and with which weights. Every tensor-parallel rank has all rows and the whole
 * router, and so makes the same choice and the same gradient; just what experts' outputs say about the weights is a sum over
 * ranks. Losses are per micro-batch, weighted by its tokens that count.
 *
 * Of equal probabilities the lower expert is chosen, so that the choice depends on nothing else. */

#include "parallel/block.h"

static int64_t experts_of(const struct hkt__block *block)
{
    return block->config->shape.experts;
}

static int64_t top_k_of(const struct hkt__block *block)
{
    return block->config->shape.top_k;
}

static void *get(struct hkt__block *block, int64_t count, size_t bytes, enum hkt__memory_class kind)
{
    void *data = NULL;

    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__memory_zalloc(block->memory, kind, (uint64_t)count * bytes, &data));
    return data;
}

/* The k largest of p[experts], largest first. */
static void choose_row(const struct hkt__block *block, const double *p, int32_t *choice, double *gates)
{
    const int64_t experts = experts_of(block), k = top_k_of(block);
    double sum = 0;

    for (int64_t i = 0; i < k; i++) {
        int32_t best = -1;

        for (int32_t e = 0; e < experts; e++) {
            bool is_taken = false;

            for (int64_t j = 0; j < i; j++)
                is_taken = is_taken || choice[j] == e;
            if (!is_taken && (best < 0 || p[e] > p[best]))
                best = e;
        }
        choice[i] = best;
        gates[i] = p[best];
        sum += p[best];
    }
    for (int64_t i = 0; i < k && block->config->renormalise; i++)
        gates[i] /= sum;
}

static void *real_row(const struct hkt__block *block, void *rows, int64_t row)
{
    return (char *)rows + (size_t)(row * experts_of(block)) * block->ops->real_bytes;
}

static void make_probs(struct hkt__block *block, const struct hkt__moe_call *call)
{
    const int64_t experts = experts_of(block);
    const struct hkt__gemm gemm = { .trans_b = 1,
                                    .m = block->rows,
                                    .n = experts,
                                    .k = block->hidden,
                                    .alpha = 1,
                                    .a = call->in,
                                    .b = call->weights->router.value,
                                    .c = call->saved->logits,
                                    .lda = block->hidden,
                                    .ldb = block->hidden,
                                    .ldc = experts };

    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__gemm_to_real(block->math, &gemm));
    if (hkt__block_ok(block))
        block->real_ops->softmax(call->saved->probs, call->saved->logits, block->rows, experts);
}

void hkt__moe_choose(struct hkt__block *block, const struct hkt__moe_call *call)
{
    const int64_t experts = experts_of(block), k = top_k_of(block), rows = block->rows;
    struct hkt__moe_saved *saved = call->saved;

    saved->logits = hkt__block_get_real(block, rows * experts);
    saved->probs = hkt__block_get_real(block, rows * experts);
    saved->gates = get(block, rows * k, sizeof *saved->gates, HKT__MEMORY_ACTIVATION);
    saved->choice = get(block, rows * k, sizeof *saved->choice, HKT__MEMORY_ACTIVATION);
    double *row = get(block, experts, sizeof *row, HKT__MEMORY_BUFFER);

    make_probs(block, call);
    for (int64_t r = 0; hkt__block_ok(block) && r < rows; r++) {
        block->real_ops->to_f64(row, real_row(block, saved->probs, r), experts);
        choose_row(block, row, saved->choice + r * k, saved->gates + r * k);
    }
    hkt__memory_free(block->memory, row);
}

/* Scratch of one row, experts each. */
struct row {
    double *p, *dp, *logits, *z, *balance;
};

/* dgate -> derivative by the logits, in row->dp. */
static void row_grad(const struct hkt__block *block, const struct hkt__moe_call *call, const struct row *row,
                     int64_t r, const double *dgate)
{
    const struct hkt__gpt_config *config = block->config;
    const int64_t experts = experts_of(block), k = top_k_of(block);
    const int32_t *choice = call->saved->choice + r * k;
    const double *gates = call->saved->gates + r * k;
    const double weight = call->site->scale * (double)call->site->tokens;
    double along = 0, sum = 0, dot = 0;

    block->real_ops->to_f64(row->p, real_row(block, call->saved->probs, r), experts);
    block->real_ops->to_f64(row->logits, real_row(block, call->saved->logits, r), experts);
    for (int64_t e = 0; e < experts; e++)
        row->dp[e] = config->balance_weight * weight * row->balance[e];
    for (int64_t i = 0; i < k; i++) {
        along += dgate[i] * gates[i];
        sum += row->p[choice[i]];
    }
    for (int64_t i = 0; i < k; i++)
        row->dp[choice[i]] += config->renormalise ? (dgate[i] - along) / sum : dgate[i];
    for (int64_t e = 0; e < experts; e++)
        dot += row->dp[e] * row->p[e];
    hkt_moe_z_loss(row->logits, (int)experts, row->z);
    for (int64_t e = 0; e < experts; e++)
        row->dp[e] = (row->dp[e] - dot) * row->p[e] + config->z_weight * weight / (double)block->rows * row->z[e];
}

void hkt__moe_choose_grad(struct hkt__block *block, const struct hkt__moe_call *call, double *dgate)
{
    const int64_t experts = experts_of(block), k = top_k_of(block), rows = block->rows;
    double *scratch = get(block, 5 * experts, sizeof *scratch, HKT__MEMORY_BUFFER);

    call->kept->dlogits = hkt__block_get(block, rows * experts);
    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__link_all_reduce(&block->tp, dgate, rows * k, HKT_F64, HKT_SUM));
    if (hkt__block_ok(block)) {
        const struct row row = { scratch, scratch + experts, scratch + 2 * experts, scratch + 3 * experts,
                                 scratch + 4 * experts };

        hkt_moe_balance_grad(call->saved->plan->chosen, (int)experts, rows, (int)k, row.balance);
        for (int64_t r = 0; r < rows; r++) {
            row_grad(block, call, &row, r, dgate + r * k);
            block->ops->from_f64((char *)call->kept->dlogits + (size_t)(r * experts) * block->ops->store_bytes,
                                 row.dp, experts);
        }
    }
    hkt__memory_free(block->memory, scratch);
}
