/* What could break: in rooted collectives and v-variants one rank may be in place and another not (the root alone has two
 * buffers; a rank with an empty block passes what it likes), and nobody tells the others. So nothing that peers see of a
 * rank's schedule may depend on its placement: whether an algorithm serves the case, how scratch and lanes are laid out,
 * which messages and signals go to and come from each peer on each lane, in which order and of which chunks, and what is
 * read from or written to memory of peers. src/comm relies on it (hkt__in_place_is_agreed), no other test would notice: the
 * verifier proves ranks that are all alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "algos/registry.h"
#include "registry_cases.h"
#include "sched/lower.h"

enum { RANKS = 17 };

static bool is_a_ranks_own_affair(const struct hkt__algo *algo)
{
    return cases_is_rooted(algo) || algo->info.coll == HKT_ALL_GATHER_V || algo->info.coll == HKT_REDUCE_SCATTER_V;
}

static bool is_outgoing(const struct hkt__step *step)
{
    return step->kind == HKT__SEND || step->kind == HKT__SIGNAL;
}

static bool is_signal(const struct hkt__step *step)
{
    return step->kind == HKT__SIGNAL || step->kind == HKT__WAIT;
}

/** The chunks a message consists of, as peers see them: sizes, not places. Signals have none. */
static const struct hkt__operand *message(const struct hkt__sched *sched, const struct hkt__step *step)
{
    return step->kind == HKT__SEND ? &sched->args[step->arg_first].x : &step->dst;
}

static bool same_chunks(const struct hkt__sched *a, const struct hkt__operand *x, const struct hkt__sched *b,
                        const struct hkt__operand *y)
{
    if (x->count != y->count)
        return false;
    for (int32_t i = 0; i < x->count; i++)
        if (hkt__size_class(a, a->rank, (enum hkt__buf)x->like_buf, hkt__span_at(&x->like, i)) !=
            hkt__size_class(b, b->rank, (enum hkt__buf)y->like_buf, hkt__span_at(&y->like, i)))
            return false;
    return true;
}

/** The next step from `from` on in the queue of a peer, lane and direction; -1: none. */
static int32_t next_in_queue(const struct hkt__sched *sched, int32_t from, const struct hkt__step *like)
{
    for (int32_t i = from; i < sched->nsteps; i++)
        if (sched->steps[i].peer >= 0 && sched->steps[i].peer == like->peer && sched->steps[i].lane == like->lane &&
            is_outgoing(&sched->steps[i]) == is_outgoing(like))
            return i;
    return -1;
}

static void fail_case(const struct hkt__sched *sched, const char *what)
{
    fail_msg("%s %s, rank %d of %d, root %d: %s depends on in place", hkt_coll_name(sched->coll), sched->algo, sched->rank,
             sched->nranks, sched->root, what);
}

/** Each queue of a has the messages of b's, in order. Called both ways round, so neither has more. */
static void compare_queues(const struct hkt__sched *a, const struct hkt__sched *b)
{
    /* Where each queue of b has come to; the same step is never looked for twice. */
    int32_t reached[RANKS][2][HKT__LANES_MAX] = {0};

    for (int32_t i = 0; i < a->nsteps; i++) {
        const struct hkt__step *step = &a->steps[i];

        if (step->peer < 0)
            continue;
        int32_t *from = &reached[step->peer][is_outgoing(step)][step->lane];
        const int32_t other = next_in_queue(b, *from, step);

        if (other < 0)
            fail_case(a, "the number of messages");
        *from = other + 1;
        if (is_signal(step) != is_signal(&b->steps[other]))
            fail_case(a, "what is a message and what a signal");
        if (!is_signal(step) && !same_chunks(a, message(a, step), b, message(b, &b->steps[other])))
            fail_case(a, "what a message carries");
    }
}

static bool same_span(const struct hkt__span *x, const struct hkt__span *y)
{
    return x->start == y->start && x->stride == y->stride && x->modulus == y->modulus;
}

static bool same_arg(const struct hkt__arg *a, const struct hkt__arg *b)
{
    return a->rank == b->rank && a->x.buf == b->x.buf && a->x.like_buf == b->x.like_buf && a->x.count == b->x.count &&
           same_span(&a->x.at, &b->x.at) && same_span(&a->x.like, &b->x.like);
}

/** What is touched at peers, in order. */
static void compare_remote(const struct hkt__sched *a, const struct hkt__sched *b)
{
    int32_t j = 0;

    for (int32_t i = 0; i < a->nargs; i++) {
        if (a->args[i].rank == a->rank)
            continue;
        while (j < b->nargs && b->args[j].rank == b->rank)
            j++;
        if (j == b->nargs || !same_arg(&a->args[i], &b->args[j]))
            fail_case(a, "what is touched at peers");
        j++;
    }
}

static void compare_placements(const struct hkt__algo *algo, int nranks, int rank, int root)
{
    struct hkt__sched *apart = NULL, *inside = NULL;

    assert_int_equal(hkt__algo_build(algo, nranks, rank, root, false, &apart), HKT_OK);
    assert_int_equal(hkt__algo_build(algo, nranks, rank, root, true, &inside), HKT_OK);
    assert_int_equal(hkt__lower(apart), HKT_OK);
    assert_int_equal(hkt__lower(inside), HKT_OK);
    if (apart->cuts != inside->cuts || apart->nlanes != inside->nlanes ||
        apart->scratch_chunks != inside->scratch_chunks || apart->uniform_blocks != inside->uniform_blocks)
        fail_case(apart, "the layout");
    compare_queues(apart, inside);
    compare_queues(inside, apart);
    compare_remote(apart, inside);
    compare_remote(inside, apart);
    hkt__sched_destroy(apart);
    hkt__sched_destroy(inside);
}

static void peers_do_not_see_in_place(void **state)
{
    int rows = 0;

    (void)state;
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];

        if (!is_a_ranks_own_affair(algo))
            continue;
        rows++;
        for (int nranks = 1; nranks <= RANKS; nranks++) {
            if (cases_serves(algo, nranks, false) != cases_serves(algo, nranks, true))
                fail_msg("%s %s serves %d ranks only in one placement: ranks cannot agree on it",
                         hkt_coll_name(algo->info.coll), algo->info.name, nranks);
            for (int rank = 0; rank < nranks && cases_serves(algo, nranks, false); rank++)
                for (int root = 0; root < (cases_is_rooted(algo) ? nranks : 1); root++)
                    compare_placements(algo, nranks, rank, root);
        }
    }
    assert_true(rows >= 15);
}

/** The comparison can fail: an all-to-all in place needs scratch. */
static void a_difference_is_noticed(void **state)
{
    const struct hkt__algo *pairwise = hkt__algo_find(HKT_ALL_TO_ALL, "pairwise");
    struct hkt__sched *apart = NULL, *inside = NULL;

    (void)state;
    assert_int_equal(hkt__algo_build(pairwise, 4, 0, 0, false, &apart), HKT_OK);
    assert_int_equal(hkt__algo_build(pairwise, 4, 0, 0, true, &inside), HKT_OK);
    assert_true(apart->scratch_chunks != inside->scratch_chunks);
    hkt__sched_destroy(apart);
    hkt__sched_destroy(inside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_do_not_see_in_place),
        cmocka_unit_test(a_difference_is_noticed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
