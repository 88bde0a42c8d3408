/* Routing tokens to experts: who goes where, who is dropped, and in which order they travel. Pure bookkeeping:
 * choices come from a router, numbers are moved by hkt_all_to_all_v with the counts made here.
 *
 * A token has top_k choices; (token, choice) is a pair, number token * top_k + choice. Pairs that are kept get slots,
 * sorted by expert and within one by pair. Experts are dealt to ranks in contiguous blocks (hkt_shard_even), so the
 * slots for a rank are contiguous: slots are the send buffer. What arrives is sorted by sender, then expert;
 * `arrival` puts it in order of experts.
 *
 * Choices, drops and their order do not depend on how many ranks share the experts: layout never changes the
 * mathematics. */
#ifndef HOCKET_MOE_H
#define HOCKET_MOE_H

#include <stddef.h>
#include <stdint.h>

#include "hocket/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Whom an expert drops that is chosen more often than its capacity. */
enum hkt_moe_drop {
    HKT_MOE_DROP_LATE,  /* keeps first choices in order of tokens, then second choices, ... */
    HKT_MOE_DROP_LIGHT, /* keeps the largest weights; equal ones as above */
};

struct hkt_moe_opts {
    int64_t tokens; /* most in one routing */
    int experts, top_k;
    int ranks;        /* that share the experts */
    int rank;         /* this one */
    int64_t capacity; /* pairs an expert takes per routing (hkt_moe_capacity); 0: all */
    enum hkt_moe_drop drop;
};

/** A plan, made once and routed anew for each micro-batch; routing allocates nothing. Arrays belong to the plan and
 *  hold the last routing. */
struct hkt_moe_plan {
    int experts, top_k, ranks, rank;
    int first_expert, nlocal; /* experts of this rank */
    int64_t tokens, capacity;
    enum hkt_moe_drop drop;
    int64_t nslots; /* pairs kept */
    int64_t ndropped;
    int64_t *chosen;                   /* [experts] pairs that chose it, dropped ones included */
    int64_t *kept;                     /* [experts] */
    int64_t *first_slot;               /* [experts + 1] */
    int64_t *pair_of_slot;             /* [nslots] */
    int64_t *slot_of_pair;             /* [tokens * top_k]; -1: dropped, or no choice */
    size_t *send_counts, *send_displs; /* [ranks] in slots */
    /* After hkt_moe_plan_receive: */
    int64_t narrivals;
    size_t *recv_counts, *recv_displs; /* [ranks] */
    int64_t *first_row; /* [nlocal + 1] rows of each local expert, in order of experts, then senders, then slots */
    int64_t *arrival;   /* [narrivals] row i is element arrival[i] of the receive buffer */
    void *scratch;
};

/** Owns     gives *out_plan, released by hkt_moe_plan_destroy
 *  Errors   INVALID, NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_moe_plan_create(const struct hkt_moe_opts *opts,
                                                          struct hkt_moe_plan **out_plan);
/** NULL is allowed. */
HKT_API void hkt_moe_plan_destroy(struct hkt_moe_plan *plan);

/** Route `tokens` tokens: choice[tokens * top_k], -1 for none (padding). weight, of the same size, is read when light
 *  ones are dropped, else it may be NULL.
 *  Errors   INVALID names token and expert; the plan is then that of no tokens */
HKT_API HKT_NODISCARD enum hkt_status hkt_moe_plan_route(struct hkt_moe_plan *plan, int64_t tokens,
                                                         const int32_t *choice, const float *weight);
/** What arrives: counts[ranks * nlocal], how many slots each rank sends to each expert of this one (an all-to-all of
 *  kept[]).
 *  Errors   INVALID: a count that is negative or more than a rank can send */
HKT_API HKT_NODISCARD enum hkt_status hkt_moe_plan_receive(struct hkt_moe_plan *plan, const int64_t *counts);

/* ---- what keeps experts busy ---- */

/** Balance loss E * sum of f_i * p_i (Switch, Fedus et al. 2021): f_i = chosen_i / (tokens * top_k), p_i =
 *  prob_sums_i / tokens, the mean router probability. 1 when balanced, for any E and top_k, since f is divided by
 *  top_k. The sums may be over one micro-batch or, added up first, over many. 0 without tokens. */
HKT_API double hkt_moe_balance_loss(const int64_t *chosen, const double *prob_sums, int experts, int64_t tokens,
                                    int top_k);
/** Its derivative by the probability of expert i of any token: out_grad[experts]. */
HKT_API void hkt_moe_balance_grad(const int64_t *chosen, int experts, int64_t tokens, int top_k, double *out_grad);
/** One token's part of the z-loss (ST-MoE, Zoph et al. 2022): (log of the sum of exp(logits))^2; the loss is the mean
 *  over tokens. out_grad[experts] is its derivative by the logits; NULL: not wanted. */
HKT_API double hkt_moe_z_loss(const double *logits, int experts, double *out_grad);
/** Balance without a loss (DeepSeek-V3): the bias that is added to the logits for choosing alone goes `step` up for
 *  experts chosen less than the mean, down for those chosen more. */
HKT_API void hkt_moe_bias_update(const int64_t *chosen, int experts, double step, double *bias);

#ifdef __cplusplus
}
#endif
#endif
