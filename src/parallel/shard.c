/* Even parts, vocabulary, heads, layers over stages. */
#include "hocket/shard.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "parallel/alloc.h"
#include "parallel/divisors.h"
#include "parallel/fail.h"

struct hkt_range hkt_shard_even(int64_t total, int parts, int index)
{
    const int64_t base = total / parts, rest = total % parts;
    const struct hkt_range range = { index * base + (index < rest ? index : rest), base + (index < rest) };

    return range;
}

struct hkt_vocab_shard hkt_shard_vocab(int64_t vocab, int64_t multiple, int tp, int index)
{
    const int64_t unit = tp * multiple, padded = (vocab + unit - 1) / unit * unit, block = padded / tp;
    const int64_t first = index * block < vocab ? index * block : vocab;
    const int64_t end = (index + 1) * block < vocab ? (index + 1) * block : vocab;
    const struct hkt_vocab_shard shard = { { first, end - first }, block, padded };

    return shard;
}

/* Query heads in equal parts, and each kv head on the same number of ranks. */
static bool tp_is_legal(int heads, int kv_heads, int tp)
{
    return heads % tp == 0 && (tp <= kv_heads ? kv_heads % tp == 0 : tp % kv_heads == 0);
}

/* Nearest legal tp on each side; 1 and heads always are. */
static void legal_neighbours(int heads, int kv_heads, int tp, int *out_below, int *out_above)
{
    *out_below = *out_above = tp < heads ? tp : heads;
    while (!tp_is_legal(heads, kv_heads, *out_below))
        --*out_below;
    while (!tp_is_legal(heads, kv_heads, *out_above))
        ++*out_above;
}

enum hkt_status hkt_shard_heads(int heads, int kv_heads, int tp, int index, struct hkt_head_shard *out_shard)
{
    int below, above;

    if (heads < 1 || kv_heads < 1 || tp < 1 || index < 0 || index >= tp || out_shard == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_shard_heads: %d heads, %d kv heads, rank %d of tp %d", heads,
                                  kv_heads, index, tp);
    if (heads % kv_heads != 0)
        return hkt__parallel_fail(
            HKT_ERR_INVALID, "%d heads cannot share %d kv heads evenly; %s kv heads would do", heads, kv_heads,
            hkt__either(hkt__divisor_below(heads, kv_heads), hkt__divisor_above(heads, kv_heads)).text);
    legal_neighbours(heads, kv_heads, tp, &below, &above);
    if (heads % tp != 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%d heads do not divide by tp %d; tp %s would do", heads, tp,
                                  hkt__either(below, above).text);
    if (!tp_is_legal(heads, kv_heads, tp))
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "%d kv heads and tp %d: one must divide the other, so that each kv head is on the "
                                  "same number of ranks; tp %s would do",
                                  kv_heads, tp, hkt__either(below, above).text);
    out_shard->q = hkt_shard_even(heads, tp, index);
    out_shard->copies = tp <= kv_heads ? 1 : tp / kv_heads;
    out_shard->copy = index % out_shard->copies;
    out_shard->kv = hkt_shard_even(kv_heads, tp / out_shard->copies, index / out_shard->copies);
    return HKT_OK;
}

/* Weight of layers [first, end) as stage `stage`. */
static double stage_weight(const struct hkt_stage_opts *opts, const double *before, int stage, int first, int end)
{
    return before[end] - before[first] + (stage == 0 ? opts->first_extra : 0)
           + (stage == opts->stages - 1 ? opts->last_extra : 0);
}

/* best[stage * (layers + 1) + first]: least cost of layers [first, layers) over the stages from `stage` on. The cost
 * is the heaviest stage when most == NULL, else the sum of squares among the splits in which no stage weighs more
 * than *most. */
static void fill(const struct hkt_stage_opts *opts, const double *before, const double *most, double *best)
{
    const int layers = opts->layers, row = layers + 1;

    for (int stage = opts->stages - 1; stage >= 0; stage--)
        for (int first = 0; first <= layers; first++) {
            double least = INFINITY;

            for (int end = first + 1; end <= layers; end++) {
                const double weight = stage_weight(opts, before, stage, first, end);
                double rest = end == layers ? 0 : INFINITY;

                if (most != NULL && weight > *most)
                    break;
                if (stage < opts->stages - 1)
                    rest = best[(stage + 1) * row + end];
                const double cost = most == NULL ? fmax(weight, rest) : weight * weight + rest;

                least = cost < least ? cost : least;
            }
            best[stage * row + first] = least;
        }
}

/* Walk along the best costs; of equal ones the longest stage. */
static void walk(const struct hkt_stage_opts *opts, const double *before, double most, const double *best,
                 int *out_first)
{
    const int row = opts->layers + 1;

    out_first[0] = 0;
    for (int stage = 0; stage < opts->stages - 1; stage++) {
        int longest = -1;

        for (int end = out_first[stage] + 1; end <= opts->layers; end++) {
            const double weight = stage_weight(opts, before, stage, out_first[stage], end);

            if (weight <= most
                && weight * weight + best[(stage + 1) * row + end] <= best[stage * row + out_first[stage]])
                longest = end;
        }
        out_first[stage + 1] = longest;
    }
    out_first[opts->stages] = opts->layers;
}

enum hkt_status hkt_stage_split(const struct hkt_stage_opts *opts, int *out_first)
{
    if (opts == NULL || out_first == NULL || opts->stages < 1 || opts->layers < 1)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_stage_split: a NULL, or no layers or stages");
    if (opts->layers < opts->stages)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%d layers cannot fill %d stages; use at most %d stages",
                                  opts->layers, opts->stages, opts->layers);
    if (!(opts->first_extra >= 0) || !(opts->last_extra >= 0))
        return hkt__parallel_fail(HKT_ERR_INVALID, "first_extra and last_extra must not be negative");
    if (opts->weights == NULL && opts->first_extra == 0 && opts->last_extra == 0) {
        for (int stage = 0; stage <= opts->stages; stage++)
            out_first[stage] =
                stage == opts->stages ? opts->layers : (int)hkt_shard_even(opts->layers, opts->stages, stage).first;
        return HKT_OK;
    }
    for (int i = 0; opts->weights != NULL && i < opts->layers; i++)
        if (!(opts->weights[i] > 0))
            return hkt__parallel_fail(HKT_ERR_INVALID, "layer %d has weight %g; weights must be positive", i,
                                      opts->weights[i]);
    const size_t row = (size_t)opts->layers + 1;
    double *before = hkt__parallel_calloc(row, sizeof *before);
    double *best = hkt__parallel_calloc(row * (size_t)opts->stages, sizeof *best);
    enum hkt_status rc = HKT_OK;

    if (before == NULL || best == NULL) {
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory to split %d layers", opts->layers);
    } else {
        for (int i = 0; i < opts->layers; i++)
            before[i + 1] = before[i] + (opts->weights == NULL ? 1 : opts->weights[i]);
        fill(opts, before, NULL, best);
        const double most = best[0];

        fill(opts, before, &most, best);
        walk(opts, before, most, best, out_first);
    }
    hkt__parallel_free(before);
    hkt__parallel_free(best);
    return rc;
}
