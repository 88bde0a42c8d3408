/* Losses and the bias that keep experts evenly busy. */
#include <math.h>

#include "hocket/moe.h"

double hkt_moe_balance_loss(const int64_t *chosen, const double *prob_sums, int experts, int64_t tokens, int top_k)
{
    double sum = 0;

    if (tokens == 0)
        return 0;
    for (int i = 0; i < experts; i++)
        sum += (double)chosen[i] / ((double)tokens * top_k) * (prob_sums[i] / (double)tokens);
    return experts * sum;
}

void hkt_moe_balance_grad(const int64_t *chosen, int experts, int64_t tokens, int top_k, double *out_grad)
{
    for (int i = 0; i < experts; i++)
        out_grad[i] = tokens == 0 ? 0 : experts * ((double)chosen[i] / ((double)tokens * top_k)) / (double)tokens;
}

double hkt_moe_z_loss(const double *logits, int experts, double *out_grad)
{
    double most = logits[0], sum = 0;

    for (int i = 1; i < experts; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int i = 0; i < experts; i++)
        sum += exp(logits[i] - most);
    const double z = most + log(sum);

    for (int i = 0; out_grad != NULL && i < experts; i++)
        out_grad[i] = 2 * z * exp(logits[i] - most) / sum;
    return z * z;
}

void hkt_moe_bias_update(const int64_t *chosen, int experts, double step, double *bias)
{
    int64_t total = 0;

    for (int i = 0; i < experts; i++)
        total += chosen[i];
    for (int i = 0; i < experts; i++) { /* chosen < total / experts, in whole numbers */
        const int64_t mine = chosen[i] * experts;

        bias[i] += mine < total ? step : mine > total ? -step : 0;
    }
}
