/* Operations, bubbles, and what experts take. */
#include <math.h>
#include <stddef.h>

#include "hocket/formulas.h"

double hkt_params_estimate(int64_t layers, int64_t hidden, int64_t vocab, int64_t seq)
{
    const double L = (double)layers, h = (double)hidden;

    return 12 * L * h * h + 13 * L * h + (double)(vocab + seq) * h;
}

double hkt_flops_model(int64_t batch, int64_t layers, int64_t hidden, int64_t vocab, int64_t seq)
{
    const double L = (double)layers, h = (double)hidden, s = (double)seq;

    return 72 * (double)batch * L * s * h * h * (1 + s / (6 * h) + (double)vocab / (12 * h * L));
}

double hkt_flops_recomputed(int64_t batch, int64_t layers, int64_t hidden, int64_t vocab, int64_t seq)
{
    const double L = (double)layers, h = (double)hidden, s = (double)seq;

    return 96 * (double)batch * L * s * h * h * (1 + s / (6 * h) + (double)vocab / (16 * h * L));
}

double hkt_train_seconds(double tokens, double params, int devices, double flops_per_s)
{
    return 8 * tokens * params / (devices * flops_per_s);
}

struct hkt_bubble hkt_bubble_of(double ideal, double bubble)
{
    const struct hkt_bubble names = { bubble / (ideal + bubble), bubble / ideal, ideal / (ideal + bubble) };

    return names;
}

double hkt_bubble_miscounted(int stages, int micros)
{
    const double work = (double)micros * stages;

    return work / (work + 2.0 * stages - 2);
}

static const struct hkt_pipe_method methods[] = {
    { "1f1b", 1, 1, 0, 1, 1 },     { "zb-h1", 1, 1, 0, 1, 1 },        { "zb-h2", 1, 2, 0, 1, 1 },
    { "zb-v", 1, 1, 0, 2, 1 },     { "v-half", 1, 0.5, 0, 2, 1 },     { "v-min", 1, 1.0 / 3, 0, 2, 1 },
    { "dualpipe", 2, 1, 1, 1, 1 }, { "dualpipe-v", 2, 1, 1, 1, 0.5 },
};
enum { M_1F1B, M_ZB_H1, M_ZB_H2, M_ZB_V, M_V_HALF, M_V_MIN, M_DUALPIPE, M_DUALPIPE_V };

const struct hkt_pipe_method *hkt_pipe_method_get(int index)
{
    return index >= 0 && index < (int)(sizeof methods / sizeof methods[0]) ? &methods[index] : NULL;
}

double hkt_pipe_method_bubble(const struct hkt_pipe_method *method, int stages,
                              const struct hkt_pipe_method_times *times)
{
    const double p = stages, f = times->f, b = times->b, w = times->w, plain = (p - 1) * (f + b);

    switch (method - methods) {
    case M_1F1B:
        return plain;
    case M_ZB_H1:
        return plain - (p - 1) * 2 * w;
    case M_V_HALF:
        return plain / 2;
    case M_V_MIN:
        return plain * 2 / 3;
    case M_DUALPIPE:
    case M_DUALPIPE_V:
        return (p / 2 - 1) * (times->both + b - 3 * w);
    default: /* zb-h2, zb-v */
        return 0;
    }
}

/* The quotient is exact only in real numbers: 80 tokens, top-1 of 8, factor 1.1 are 11, not the 12 that rounding up
 * 11.000000000000002 gives. */
int64_t hkt_moe_capacity(int64_t tokens, int top_k, int experts, double factor)
{
    const double wanted = (double)tokens * top_k / experts * factor;

    return (int64_t)ceil(wanted - wanted * 1e-12);
}
