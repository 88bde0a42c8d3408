/* What could break: a pair is lost, sent twice or to another expert; drops are not counted, take the wrong pairs, or
 * depend on how many ranks share the experts; the way back is not the inverse; experts without tokens, ranks without
 * experts and tokens without a choice break the arithmetic; the losses are off by the factor top_k or E. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"

enum { TOKENS_MAX = 40, EXPERTS_MAX = 9, K_MAX = 3, RANKS_MAX = 5 };

static struct hkt_moe_plan *make(struct hkt_moe_opts opts)
{
    struct hkt_moe_plan *plan = NULL;

    if (hkt_moe_plan_create(&opts, &plan) != HKT_OK)
        fail_msg("%s", hkt_parallel_last_error());
    return plan;
}

static void route(struct hkt_moe_plan *plan, int64_t tokens, const int32_t *choice, const float *weight)
{
    if (hkt_moe_plan_route(plan, tokens, choice, weight) != HKT_OK)
        fail_msg("%s", hkt_parallel_last_error());
}

static void a_small_routing(void **state)
{
    /* Three experts of capacity 2, top-2. Expert 0 is chosen by tokens 0, 1, 3 first and by 2 second. */
    static const int32_t choice[] = { 0, 1, 0, 1, 1, 0, 0, 1 };
    static const float weight[] = { .6f, .4f, .7f, .3f, .5f, .9f, .8f, .1f };
    struct hkt_moe_plan *plan = make((struct hkt_moe_opts){ 4, 3, 2, 2, 0, 2, HKT_MOE_DROP_LATE });

    (void)state;
    route(plan, 4, choice, NULL);
    assert_int_equal(plan->chosen[0], 4);
    assert_int_equal(plan->chosen[1], 4);
    assert_int_equal(plan->chosen[2], 0);
    assert_int_equal(plan->kept[0], 2);
    assert_int_equal(plan->ndropped, 4);
    assert_int_equal(plan->nslots, 4);
    static const int64_t kept_late[] = { 0, 2, 1,
                                         4 }; /* expert 0: first choices of tokens 0 and 1; expert 1: the first choice
                                                          of token 2, then the second of token 0 */

    assert_memory_equal(plan->pair_of_slot, kept_late, sizeof kept_late);
    assert_int_equal(plan->send_counts[0], 4); /* rank 0 has experts 0 and 1, rank 1 has expert 2 without tokens */
    assert_int_equal(plan->send_counts[1], 0);
    hkt_moe_plan_destroy(plan);

    plan = make((struct hkt_moe_opts){ 4, 3, 2, 2, 0, 2, HKT_MOE_DROP_LIGHT });
    route(plan, 4, choice, weight);
    static const int64_t kept_light[] = { 5, 6, 1, 4 }; /* expert 0: .9 and .8; expert 1: .5 and .4 */

    assert_memory_equal(plan->pair_of_slot, kept_light, sizeof kept_light);
    assert_int_equal(plan->slot_of_pair[0], -1);
    assert_int_equal(plan->slot_of_pair[5], 0);
    hkt_moe_plan_destroy(plan);
}

/* A random routing: some tokens without a choice, weights with ties. */
static void random_routing(int64_t tokens, int experts, int top_k, int32_t *choice, float *weight)
{
    for (int64_t token = 0; token < tokens; token++) {
        const int none = rand() % 8 == 0, start = rand() % experts;

        for (int k = 0; k < top_k; k++) {
            choice[token * top_k + k] = none ? -1 : (start + k * (1 + rand() % 2 * (experts > 2 * top_k))) % experts;
            weight[token * top_k + k] = (float)(rand() % 4) / 4;
        }
    }
}

/* Is pair a kept before pair b? */
static int goes_first(const struct hkt_moe_plan *plan, const float *weight, int64_t a, int64_t b)
{
    if (plan->drop == HKT_MOE_DROP_LIGHT && weight[a] != weight[b])
        return weight[a] > weight[b];
    if (a % plan->top_k != b % plan->top_k)
        return a % plan->top_k < b % plan->top_k;
    return a < b;
}

/* By definition: a pair is kept if fewer than `capacity` pairs of its expert go before it. */
static void check_drops(const struct hkt_moe_plan *plan, int64_t tokens, const int32_t *choice, const float *weight)
{
    int64_t dropped = 0;

    for (int64_t pair = 0; pair < tokens * plan->top_k; pair++) {
        int64_t before = 0;

        if (choice[pair] < 0) {
            assert_int_equal(plan->slot_of_pair[pair], -1);
            continue;
        }
        for (int64_t other = 0; other < tokens * plan->top_k; other++)
            before += other != pair && choice[other] == choice[pair] && goes_first(plan, weight, other, pair);
        const int keeps = plan->capacity == 0 || before < plan->capacity;

        assert_int_equal(plan->slot_of_pair[pair] >= 0, keeps);
        dropped += !keeps;
    }
    assert_int_equal(plan->ndropped, dropped);
}

static void check_slots(const struct hkt_moe_plan *plan, const int32_t *choice)
{
    size_t sent = 0;

    for (int expert = 0; expert < plan->experts; expert++)
        for (int64_t slot = plan->first_slot[expert]; slot < plan->first_slot[expert + 1]; slot++) {
            assert_int_equal(choice[plan->pair_of_slot[slot]], expert);
            assert_int_equal(plan->slot_of_pair[plan->pair_of_slot[slot]], slot);
            assert_true(slot == plan->first_slot[expert] || plan->pair_of_slot[slot] > plan->pair_of_slot[slot - 1]);
        }
    for (int rank = 0; rank < plan->ranks; rank++) {
        assert_int_equal(plan->send_displs[rank], sent);
        sent += plan->send_counts[rank];
    }
    assert_int_equal(sent, plan->nslots);
    assert_int_equal(plan->first_slot[plan->experts], plan->nslots);
}

/* All ranks exchange by hand: every slot of every rank arrives at the rank of its expert, in the promised order. */
static void check_exchange(struct hkt_moe_plan **plans, const int32_t (*choices)[TOKENS_MAX * K_MAX])
{
    const int ranks = plans[0]->ranks;

    for (int to = 0; to < ranks; to++) {
        struct hkt_moe_plan *plan = plans[to];
        int64_t counts[RANKS_MAX * EXPERTS_MAX], buffer[RANKS_MAX * TOKENS_MAX * K_MAX];

        for (int from = 0; from < ranks; from++)
            for (int expert = 0; expert < plan->nlocal; expert++)
                counts[from * plan->nlocal + expert] = plans[from]->kept[plan->first_expert + expert];
        assert_int_equal(hkt_moe_plan_receive(plan, counts), HKT_OK);
        for (int from = 0; from < ranks; from++) {
            assert_int_equal(plan->recv_counts[from], plans[from]->send_counts[to]);
            for (size_t i = 0; i < plan->recv_counts[from]; i++) /* what moves: sender and pair */
                buffer[plan->recv_displs[from] + i] =
                    from * 1000 + plans[from]->pair_of_slot[plans[from]->send_displs[to] + i];
        }
        int64_t row = 0, before = -1;

        for (int expert = 0; expert < plan->nlocal; expert++, before = -1)
            for (; row < plan->first_row[expert + 1]; row++) {
                const int64_t what = buffer[plan->arrival[row]];

                assert_int_equal(choices[what / 1000][what % 1000], plan->first_expert + expert);
                assert_true(what > before); /* by sender, then pair */
                before = what;
            }
        assert_int_equal(row, plan->narrivals);
    }
}

static void every_pair_goes_to_its_expert(void **state)
{
    static int32_t choices[RANKS_MAX][TOKENS_MAX * K_MAX];
    static float weights[RANKS_MAX][TOKENS_MAX * K_MAX];

    (void)state;
    srand(3);
    for (int round = 0; round < 400; round++) {
        struct hkt_moe_plan *plans[RANKS_MAX];
        const int ranks = 1 + rand() % RANKS_MAX, experts = 1 + rand() % EXPERTS_MAX;
        const int top_k = 1 + rand() % (experts < K_MAX ? experts : K_MAX);
        const struct hkt_moe_opts opts = {
            TOKENS_MAX, experts, top_k, ranks, 0, rand() % 3 * 4, rand() % 2 ? HKT_MOE_DROP_LATE : HKT_MOE_DROP_LIGHT
        };

        for (int rank = 0; rank < ranks; rank++) {
            const int64_t tokens = rand() % 5 == 0 ? 0 : rand() % (TOKENS_MAX + 1); /* a rank may have none */
            struct hkt_moe_opts mine = opts;

            mine.rank = rank;
            plans[rank] = make(mine);
            for (int again = 0; again < 2; again++) { /* a plan is used many times */
                random_routing(tokens, experts, top_k, choices[rank], weights[rank]);
                route(plans[rank], tokens, choices[rank], weights[rank]);
            }
            check_drops(plans[rank], tokens, choices[rank], weights[rank]);
            check_slots(plans[rank], choices[rank]);
        }
        check_exchange(plans, (const int32_t(*)[TOKENS_MAX * K_MAX]) choices);
        for (int rank = 0; rank < ranks; rank++)
            hkt_moe_plan_destroy(plans[rank]);
    }
}

/* Slots, drops and their order are the same however many ranks share the experts. */
static void the_layout_changes_nothing(void **state)
{
    static int32_t choice[TOKENS_MAX * 2];
    static float weight[TOKENS_MAX * 2];

    (void)state;
    srand(5);
    random_routing(TOKENS_MAX, 8, 2, choice, weight);
    for (int drop = 0; drop < 2; drop++) {
        struct hkt_moe_opts opts = { TOKENS_MAX, 8, 2, 1, 0, 7, (enum hkt_moe_drop)drop };
        struct hkt_moe_plan *alone = make(opts);

        route(alone, TOKENS_MAX, choice, weight);
        assert_true(alone->ndropped > 0);
        for (opts.ranks = 2; opts.ranks <= 8; opts.ranks++) {
            struct hkt_moe_plan *plan = make(opts);

            route(plan, TOKENS_MAX, choice, weight);
            assert_int_equal(plan->nslots, alone->nslots);
            assert_memory_equal(plan->pair_of_slot, alone->pair_of_slot, (size_t)plan->nslots * sizeof(int64_t));
            hkt_moe_plan_destroy(plan);
        }
        hkt_moe_plan_destroy(alone);
    }
}

/* One expert, top-1: the identity, which makes a layer of experts a dense one, bit for bit. */
static void one_expert_is_dense(void **state)
{
    static const int32_t zeros[TOKENS_MAX] = { 0 };
    struct hkt_moe_plan *plan = make((struct hkt_moe_opts){ TOKENS_MAX, 1, 1, 1, 0, 0, HKT_MOE_DROP_LATE });
    const int64_t counts[] = { TOKENS_MAX };

    (void)state;
    route(plan, TOKENS_MAX, zeros, NULL);
    assert_int_equal(hkt_moe_plan_receive(plan, counts), HKT_OK);
    for (int64_t i = 0; i < TOKENS_MAX; i++) {
        assert_int_equal(plan->slot_of_pair[i], i);
        assert_int_equal(plan->arrival[i], i);
    }
    hkt_moe_plan_destroy(plan);
}

static void impossible_routings(void **state)
{
    static const int32_t choice[] = { 0, 1, 2, 3 };
    static const int64_t too_many[] = { 2, 3 }, negative[] = { -1, 0 };
    const struct hkt_moe_opts opts = { 4, 3, 1, 1, 0, 2, HKT_MOE_DROP_LIGHT };
    struct hkt_moe_plan *plan = make(opts), *none = NULL;

    (void)state;
    assert_int_equal(hkt_moe_plan_route(plan, 4, choice, (const float *)choice), HKT_ERR_INVALID);
    assert_string_equal(hkt_parallel_last_error(), "token 3 chose expert 3 of 3");
    assert_int_equal(plan->nslots, 0);
    assert_int_equal(hkt_moe_plan_route(plan, 5, choice, NULL), HKT_ERR_INVALID);
    assert_int_equal(hkt_moe_plan_route(plan, 2, choice, NULL), HKT_ERR_INVALID); /* no weights to drop by */
    assert_int_equal(hkt_moe_plan_route(plan, 0, NULL, NULL), HKT_OK);
    hkt_moe_plan_destroy(plan);
    plan = make((struct hkt_moe_opts){ 4, 2, 1, 1, 0, 0, HKT_MOE_DROP_LATE });
    assert_int_equal(hkt_moe_plan_receive(plan, too_many), HKT_ERR_INVALID);
    assert_string_equal(hkt_parallel_last_error(), "rank 0 sends 3 tokens to expert 1, of at most 4 in all");
    assert_int_equal(hkt_moe_plan_receive(plan, negative), HKT_ERR_INVALID);
    hkt_moe_plan_destroy(plan);
    hkt_moe_plan_destroy(NULL);
    assert_int_equal(hkt_moe_plan_create(&(struct hkt_moe_opts){ 4, 3, 4, 1, 0, 0, HKT_MOE_DROP_LATE }, &none),
                     HKT_ERR_INVALID);
    assert_string_equal(hkt_parallel_last_error(), "top-4 of 3 experts; it must be 1 to 3");
    assert_int_equal(
        hkt_moe_plan_create(&(struct hkt_moe_opts){ INT64_MAX / 8, 3, 1, 1, 0, 0, HKT_MOE_DROP_LATE }, &none),
        HKT_ERR_INVALID);
    enum hkt_status status = HKT_ERR_NOMEM;

    for (int k = 1; status != HKT_OK; k++) {
        hkt__parallel_alloc_fail_at(k);
        status = hkt_moe_plan_create(&opts, &none);
        assert_true(status == HKT_OK || (status == HKT_ERR_NOMEM && none == NULL));
    }
    hkt__parallel_alloc_fail_at(0);
    hkt_moe_plan_destroy(none);
}

/* ---- losses ---- */

static void balance_loss(void **state)
{
    (void)state;
    for (int experts = 1; experts <= 16; experts *= 2)
        for (int top_k = 1; top_k <= experts && top_k <= 4; top_k *= 2) {
            int64_t chosen[16];
            double sums[16];

            for (int i = 0; i < experts; i++) {
                chosen[i] = 64 * top_k / experts;
                sums[i] = 64.0 / experts;
            }
            assert_true(hkt_moe_balance_loss(chosen, sums, experts, 64, top_k) == 1); /* balanced: 1 for any E and K */
        }
    const int64_t all_to_one[8] = { 64 };
    const double certain[8] = { 64 };
    double grad[8];

    assert_true(hkt_moe_balance_loss(all_to_one, certain, 8, 64, 1) == 8);
    assert_true(hkt_moe_balance_loss(all_to_one, certain, 8, 0, 1) == 0);
    /* The loss is linear in the probabilities: its value is the gradient times the sums. */
    hkt_moe_balance_grad(all_to_one, 8, 64, 1, grad);
    assert_true(grad[0] * 64 == 8 && grad[1] == 0);
    hkt_moe_balance_grad(all_to_one, 8, 0, 1, grad);
    assert_true(grad[0] == 0);
}

static void z_loss(void **state)
{
    const double zeros[4] = { 0 }, logits[4] = { 0.5, -1.25, 2, 0.125 }, large[2] = { 1000, 1000 };
    double grad[4];

    (void)state;
    assert_true(fabs(hkt_moe_z_loss(zeros, 4, NULL) - log(4) * log(4)) < 1e-15);
    assert_true(fabs(hkt_moe_z_loss(large, 2, NULL) - (1000 + log(2)) * (1000 + log(2))) < 1e-9); /* no overflow */
    (void)hkt_moe_z_loss(logits, 4, grad);
    for (int i = 0; i < 4; i++) {
        const double step = 1e-5;
        double up[4], down[4];

        memcpy(up, logits, sizeof up);
        memcpy(down, logits, sizeof down);
        up[i] += step;
        down[i] -= step;
        assert_true(fabs((hkt_moe_z_loss(up, 4, NULL) - hkt_moe_z_loss(down, 4, NULL)) / (2 * step) - grad[i]) < 1e-8);
    }
}

static void bias_moves_towards_the_idle(void **state)
{
    const int64_t chosen[] = { 3, 0, 2, 3 }; /* mean 2 */
    double bias[] = { 1, 1, 1, 1 };

    (void)state;
    hkt_moe_bias_update(chosen, 4, 0.25, bias);
    assert_true(bias[0] == 0.75 && bias[1] == 1.25 && bias[2] == 1 && bias[3] == 0.75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_routing),
        cmocka_unit_test(every_pair_goes_to_its_expert),
        cmocka_unit_test(the_layout_changes_nothing),
        cmocka_unit_test(one_expert_is_dense),
        cmocka_unit_test(impossible_routings),
        cmocka_unit_test(balance_loss),
        cmocka_unit_test(z_loss),
        cmocka_unit_test(bias_moves_towards_the_idle),
    };

    return cmocka_run_group_tests_name("moe_plan", tests, NULL, NULL);
}
