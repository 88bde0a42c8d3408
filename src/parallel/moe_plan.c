/* Slots, drops and the order of arrivals. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hocket/moe.h"
#include "hocket/shard.h"
#include "parallel/alloc.h"
#include "parallel/fail.h"

/* A pair that chose an expert. `order` is the order in which late ones lose: first choices before second ones. */
struct pair {
    int32_t expert;
    float weight;
    int64_t order, number;
};

static int compare(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static enum hkt_status check_opts(const struct hkt_moe_opts *opts)
{
    if (opts == NULL || opts->tokens < 0 || opts->experts < 1 || opts->ranks < 1 || opts->rank < 0
        || opts->rank >= opts->ranks || opts->capacity < 0)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "hkt_moe_plan_create: NULL, no experts or ranks, or a negative number");
    if (opts->top_k < 1 || opts->top_k > opts->experts)
        return hkt__parallel_fail(HKT_ERR_INVALID, "top-%d of %d experts; it must be 1 to %d", opts->top_k,
                                  opts->experts, opts->experts);
    if (opts->tokens > INT64_MAX / 64 / opts->top_k / opts->ranks)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%lld tokens * top-%d * %d ranks are too many",
                                  (long long)opts->tokens, opts->top_k, opts->ranks);
    return HKT_OK;
}

/* Most slots that this rank can be sent by one: all pairs of its tokens, or what its experts take. */
static int64_t most_from_one(const struct hkt_moe_plan *plan)
{
    const int64_t pairs = plan->tokens * plan->top_k, taken = plan->capacity * plan->nlocal;

    return plan->capacity == 0 || pairs < taken ? pairs : taken;
}

static bool allocate(struct hkt_moe_plan *plan)
{
    const size_t experts = (size_t)plan->experts, ranks = (size_t)plan->ranks;
    const size_t pairs = (size_t)(plan->tokens * plan->top_k), arrivals = (size_t)most_from_one(plan) * ranks;

    plan->chosen = hkt__parallel_calloc(experts, sizeof *plan->chosen);
    plan->kept = hkt__parallel_calloc(experts, sizeof *plan->kept);
    plan->first_slot = hkt__parallel_calloc(experts + 1, sizeof *plan->first_slot);
    plan->pair_of_slot = hkt__parallel_calloc(pairs, sizeof *plan->pair_of_slot);
    plan->slot_of_pair = hkt__parallel_calloc(pairs, sizeof *plan->slot_of_pair);
    plan->send_counts = hkt__parallel_calloc(ranks, sizeof *plan->send_counts);
    plan->send_displs = hkt__parallel_calloc(ranks, sizeof *plan->send_displs);
    plan->recv_counts = hkt__parallel_calloc(ranks, sizeof *plan->recv_counts);
    plan->recv_displs = hkt__parallel_calloc(ranks, sizeof *plan->recv_displs);
    plan->first_row = hkt__parallel_calloc((size_t)plan->nlocal + 1, sizeof *plan->first_row);
    plan->arrival = hkt__parallel_calloc(arrivals, sizeof *plan->arrival);
    plan->scratch = hkt__parallel_calloc(pairs, sizeof(struct pair));
    return plan->chosen != NULL && plan->kept != NULL && plan->first_slot != NULL && plan->pair_of_slot != NULL
           && plan->slot_of_pair != NULL && plan->send_counts != NULL && plan->send_displs != NULL
           && plan->recv_counts != NULL && plan->recv_displs != NULL && plan->first_row != NULL && plan->arrival != NULL
           && plan->scratch != NULL;
}

enum hkt_status hkt_moe_plan_create(const struct hkt_moe_opts *opts, struct hkt_moe_plan **out_plan)
{
    const enum hkt_status rc = check_opts(opts);

    if (rc < 0)
        return rc;
    struct hkt_moe_plan *plan = hkt__parallel_calloc(1, sizeof *plan);

    if (plan == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the routes of %lld tokens", (long long)opts->tokens);
    const struct hkt_range mine = hkt_shard_even(opts->experts, opts->ranks, opts->rank);

    plan->experts = opts->experts;
    plan->top_k = opts->top_k;
    plan->ranks = opts->ranks;
    plan->rank = opts->rank;
    plan->first_expert = (int)mine.first;
    plan->nlocal = (int)mine.count;
    plan->tokens = opts->tokens;
    plan->capacity = opts->capacity;
    plan->drop = opts->drop;
    if (!allocate(plan)) {
        hkt_moe_plan_destroy(plan);
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the routes of %lld tokens", (long long)opts->tokens);
    }
    *out_plan = plan;
    return HKT_OK;
}

void hkt_moe_plan_destroy(struct hkt_moe_plan *plan)
{
    if (plan == NULL)
        return;
    hkt__parallel_free(plan->chosen);
    hkt__parallel_free(plan->kept);
    hkt__parallel_free(plan->first_slot);
    hkt__parallel_free(plan->pair_of_slot);
    hkt__parallel_free(plan->slot_of_pair);
    hkt__parallel_free(plan->send_counts);
    hkt__parallel_free(plan->send_displs);
    hkt__parallel_free(plan->recv_counts);
    hkt__parallel_free(plan->recv_displs);
    hkt__parallel_free(plan->first_row);
    hkt__parallel_free(plan->arrival);
    hkt__parallel_free(plan->scratch);
    hkt__parallel_free(plan);
}

static void clear(struct hkt_moe_plan *plan)
{
    plan->nslots = plan->ndropped = plan->narrivals = 0;
    memset(plan->chosen, 0, (size_t)plan->experts * sizeof *plan->chosen);
    memset(plan->kept, 0, (size_t)plan->experts * sizeof *plan->kept);
    memset(plan->first_slot, 0, ((size_t)plan->experts + 1) * sizeof *plan->first_slot);
    memset(plan->send_counts, 0, (size_t)plan->ranks * sizeof *plan->send_counts);
    memset(plan->send_displs, 0, (size_t)plan->ranks * sizeof *plan->send_displs);
}

/* Decide which pairs stay: slot_of_pair is 0 for these, -1 for the others. In order of choices, then tokens. */
static void keep_early(struct hkt_moe_plan *plan, int64_t tokens, const int32_t *choice)
{
    for (int k = 0; k < plan->top_k; k++)
        for (int64_t token = 0; token < tokens; token++) {
            const int64_t pair = token * plan->top_k + k;
            const int32_t expert = choice[pair];
            const bool stays = expert >= 0 && (plan->capacity == 0 || plan->kept[expert] < plan->capacity);

            plan->slot_of_pair[pair] = stays ? 0 : -1;
            if (expert >= 0)
                plan->chosen[expert]++;
            if (stays)
                plan->kept[expert]++;
        }
}

static void keep_heavy(struct hkt_moe_plan *plan, int64_t tokens, const int32_t *choice, const float *weight)
{
    struct pair *pairs = plan->scratch;
    int64_t count = 0;

    for (int64_t pair = 0; pair < tokens * plan->top_k; pair++) {
        plan->slot_of_pair[pair] = -1;
        if (choice[pair] < 0)
            continue;
        plan->chosen[choice[pair]]++;
        pairs[count++] = (struct pair){ choice[pair], isnan(weight[pair]) ? -INFINITY : weight[pair],
                                        pair % plan->top_k * tokens + pair / plan->top_k, pair };
    }
    qsort(pairs, (size_t)count, sizeof *pairs, compare);
    for (int64_t i = 0; i < count; i++)
        if (plan->kept[pairs[i].expert] < plan->capacity) {
            plan->kept[pairs[i].expert]++;
            plan->slot_of_pair[pairs[i].number] = 0;
        }
}

/* Number the pairs that stay, expert by expert; and what goes to each rank. */
static void number_slots(struct hkt_moe_plan *plan, int64_t tokens, const int32_t *choice)
{
    for (int expert = 0; expert < plan->experts; expert++) {
        plan->first_slot[expert + 1] = plan->first_slot[expert] + plan->kept[expert];
        plan->ndropped += plan->chosen[expert] - plan->kept[expert];
        plan->kept[expert] = 0; /* counted again below, as the next free slot */
    }
    plan->nslots = plan->first_slot[plan->experts];
    for (int64_t pair = 0; pair < tokens * plan->top_k; pair++) {
        if (plan->slot_of_pair[pair] < 0)
            continue;
        const int64_t slot = plan->first_slot[choice[pair]] + plan->kept[choice[pair]]++;

        plan->slot_of_pair[pair] = slot;
        plan->pair_of_slot[slot] = pair;
    }
    for (int rank = 0; rank < plan->ranks; rank++) {
        const struct hkt_range experts = hkt_shard_even(plan->experts, plan->ranks, rank);

        plan->send_displs[rank] = (size_t)plan->first_slot[experts.first];
        plan->send_counts[rank] = (size_t)plan->first_slot[experts.first + experts.count] - plan->send_displs[rank];
    }
}

enum hkt_status hkt_moe_plan_route(struct hkt_moe_plan *plan, int64_t tokens, const int32_t *choice,
                                   const float *weight)
{
    const bool by_weight = plan->drop == HKT_MOE_DROP_LIGHT && plan->capacity > 0;

    clear(plan);
    if (tokens < 0 || tokens > plan->tokens)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%lld tokens, but the plan was made for at most %lld",
                                  (long long)tokens, (long long)plan->tokens);
    if (tokens > 0 && (choice == NULL || (by_weight && weight == NULL)))
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_moe_plan_route: no choices, or no weights to drop by");
    for (int64_t pair = 0; pair < tokens * plan->top_k; pair++)
        if (choice[pair] < -1 || choice[pair] >= plan->experts)
            return hkt__parallel_fail(HKT_ERR_INVALID, "token %lld chose expert %d of %d",
                                      (long long)(pair / plan->top_k), (int)choice[pair], plan->experts);
    if (by_weight)
        keep_heavy(plan, tokens, choice, weight);
    else
        keep_early(plan, tokens, choice);
    number_slots(plan, tokens, choice);
    return HKT_OK;
}

enum hkt_status hkt_moe_plan_receive(struct hkt_moe_plan *plan, const int64_t *counts)
{
    const int64_t most = most_from_one(plan);
    int64_t total = 0, row = 0;

    plan->narrivals = 0;
    for (int rank = 0; rank < plan->ranks; rank++) {
        int64_t sent = 0;

        for (int expert = 0; expert < plan->nlocal; expert++) {
            const int64_t count = counts[rank * plan->nlocal + expert];

            if (count < 0 || count > most - sent)
                return hkt__parallel_fail(HKT_ERR_INVALID,
                                          "rank %d sends %lld tokens to expert %d, of at most %lld in all", rank,
                                          (long long)count, plan->first_expert + expert, (long long)most);
            sent += count;
        }
        plan->recv_displs[rank] = (size_t)total;
        plan->recv_counts[rank] = (size_t)sent;
        total += sent;
    }
    for (int expert = 0; expert < plan->nlocal; expert++) {
        plan->first_row[expert] = row;
        for (int rank = 0; rank < plan->ranks; rank++) {
            int64_t at = (int64_t)plan->recv_displs[rank];

            for (int before = 0; before < expert; before++)
                at += counts[rank * plan->nlocal + before];
            for (int64_t i = 0; i < counts[rank * plan->nlocal + expert]; i++)
                plan->arrival[row++] = at + i;
        }
    }
    plan->first_row[plan->nlocal] = row;
    plan->narrivals = total;
    return HKT_OK;
}
