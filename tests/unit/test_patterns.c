/* What could break: index arithmetic that several algorithms share. A tree might lose a rank, hold one twice, or be
 * deeper than promised; a halving or a fold might not reach 1 or a power of two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "algos/patterns.h"
#include "core/bits.h"

enum { RANKS = 600 };

static void binomial_subtrees_are_ranges_that_make_up_their_parents(void **state)
{
    (void)state;
    assert_int_equal(hkt__binomial_parent(0), -1);
    for (int p = 1; p <= RANKS; p++) {
        assert_int_equal(hkt__binomial_size(p, 0), p);
        for (int v = 0; v < p; v++) {
            int end = v + 1; /* v itself, then its children's subtrees one after the other */

            for (int k = 0; k < hkt__binomial_children(p, v); k++) {
                const int child = v + (1 << k);

                assert_int_equal(child, end);
                assert_int_equal(hkt__binomial_parent(child), v);
                end += hkt__binomial_size(p, child);
            }
            assert_int_equal(end, v + hkt__binomial_size(p, v));
            assert_true(v == 0 || hkt__binomial_size(p, v) <= hkt__binomial_size_max(p));
        }
        assert_in_range(hkt__binomial_size_max(p), p > 1, p / 2);
    }
}

static void halving_ends_at_one(void **state)
{
    (void)state;
    for (int p = 1; p <= RANKS; p++) {
        const struct hkt__halving halving = hkt__halving(p);

        assert_int_equal(halving.rounds, hkt__log2_ceil((unsigned)p));
        assert_int_equal(halving.width[0], p);
        assert_int_equal(halving.width[halving.rounds], 1);
        for (int k = 0; k < halving.rounds; k++)
            assert_int_equal(halving.width[k + 1], (halving.width[k] + 1) / 2);
    }
    assert_int_equal(hkt__halving(65536).rounds, 16);
    for (int radix = 3; radix < 9; radix++)
        for (int p = 1, rounds = 0; p <= 65536; p *= radix, rounds++) {
            assert_int_equal(hkt__dividing(p, radix).rounds, rounds);
            assert_int_equal(hkt__dividing(p + 1, radix).rounds, rounds + 1);
            assert_int_equal(hkt__dividing(p + 1, radix).width[1], p / radix + 1);
        }
}

static void fold_keeps_a_power_of_two_and_seats_every_guest(void **state)
{
    (void)state;
    for (int p = 1; p <= RANKS; p++) {
        int nsurvivors = 0, nguests = 0;

        for (int rank = 0; rank < p; rank++) {
            const struct hkt__fold fold = hkt__fold(p, rank);

            assert_true(hkt__is_pow2((unsigned)fold.survivors) && fold.survivors <= p && 2 * fold.survivors > p);
            if (fold.index < 0) {
                assert_true(hkt__fold(p, rank + 1).has_guest);
                nguests++;
                continue;
            }
            assert_int_equal(fold.index, nsurvivors++);
            assert_int_equal(hkt__fold_rank(&fold, fold.index), rank);
            assert_true(!fold.has_guest || hkt__fold(p, rank - 1).index < 0);
        }
        assert_int_equal(nsurvivors, hkt__fold(p, 0).survivors);
        assert_int_equal(nguests, hkt__fold(p, 0).extra);
    }
}

typedef struct hkt__btree tree_fn(int nranks, int rank);

static void check_tree(tree_fn *tree, int p)
{
    int nroots = 0, nchildren = 0;

    for (int rank = 0; rank < p; rank++) {
        const struct hkt__btree node = tree(p, rank);
        int depth = 0;

        nroots += node.parent < 0;
        assert_in_range(node.nchildren, 0, node.parent < 0 ? 1 : 2);
        nchildren += node.nchildren;
        for (int i = 0; i < node.nchildren; i++)
            assert_int_equal(tree(p, node.children[i]).parent, rank);
        for (int at = rank; at >= 0 && depth <= p; at = tree(p, at).parent)
            depth++;
        assert_true(depth - 1 <= hkt__log2_ceil((unsigned)p)); /* and so no cycles */
    }
    assert_int_equal(nroots, 1);
    assert_int_equal(nchildren, p - 1);
}

static void binary_trees_span_all_ranks_in_log_depth(void **state)
{
    (void)state;
    for (int p = 1; p <= RANKS; p++) {
        check_tree(hkt__btree, p);
        check_tree(hkt__btree_twin, p);
    }
    check_tree(hkt__btree, 4608);
    check_tree(hkt__btree_twin, 4608);
}

/* The point of having two: nobody is inner in both, but for two ranks when p is odd. */
static void twin_trees_share_the_work(void **state)
{
    (void)state;
    for (int p = 2; p <= RANKS; p++)
        for (int rank = 0; rank < p; rank++) {
            const bool is_exempt = p % 2 == 1 && rank < 2;
            const int children = hkt__btree(p, rank).nchildren, twins = hkt__btree_twin(p, rank).nchildren;

            assert_true(children == 0 || twins == 0 || is_exempt);
            assert_in_range(children + twins, 0, 2);
        }
}

/* For broadcast both have the root of the broadcast as theirs, and nobody else works in both. */
static void twin_trees_at_one_root_share_the_work(void **state)
{
    (void)state;
    for (int p = 1; p <= RANKS; p++) {
        check_tree(hkt__btree_twin_at_root, p);
        assert_int_equal(hkt__btree_twin_at_root(p, 0).parent, -1);
        for (int rank = 1; rank < p; rank++)
            assert_true(hkt__btree(p, rank).nchildren == 0 || hkt__btree_twin_at_root(p, rank).nchildren == 0);
    }
}

static void swing_meets_in_pairs_and_reaches_what_the_places_say(void **state)
{
    (void)state;
    for (int steps = 0, p = 1; p <= 1024; p *= 2, steps++) {
        int places[1024] = { 0 };

        for (int rank = 0; rank < p; rank++)
            places[hkt__swing_place(p, rank)]++;
        for (int i = 0; i < p; i++)
            assert_int_equal(places[i], 1);
        for (int step = 0; step < steps; step++)
            for (int rank = 0; rank < p; rank++) {
                const int partner = hkt__swing_partner(p, rank, step), half = p >> (step + 1);

                assert_int_equal(hkt__swing_partner(p, partner, step), rank);
                /* Alike but for the bits not settled yet, and then on the other side. */
                assert_int_equal(hkt__swing_place(p, rank) / half, (hkt__swing_place(p, partner) / half) ^ 1);
            }
    }
    assert_int_equal(hkt__swing_partner(64, 0, 0), 1);
    assert_int_equal(hkt__swing_partner(64, 0, 1), 63);
    assert_int_equal(hkt__swing_partner(64, 0, 2), 3);
    assert_int_equal(hkt__swing_partner(64, 0, 3), 59);
    assert_int_equal(hkt__swing_partner(64, 0, 4), 11);
}

/* Sender and receiver mean the same block, a rank sends only what it has, and gets every block once. */
static void blocks_reach_every_rank_once(void **state)
{
    static bool has[RANKS][64];
    static struct hkt__blocks plans[RANKS];

    (void)state;
    for (int p = 2; p <= 130; p++)
        for (int count = 1; count <= 16; count += 5) {
            memset(has, 0, sizeof has);
            for (int rank = 0; rank < p; rank++)
                plans[rank] = hkt__blocks(p, rank, count);
            assert_int_equal(plans[0].end - plans[0].first, count + hkt__log2_ceil((unsigned)p) - 1);
            for (int i = plans[0].first; i < plans[0].end; i++) {
                for (int rank = 0; rank < p; rank++) {
                    const struct hkt__block_round out = hkt__block_round(&plans[rank], i);
                    const struct hkt__block_round in = hkt__block_round(&plans[(rank + out.skip) % p], i);

                    assert_int_equal(out.send, in.receive);
                    assert_true(rank == 0 || out.send < 0 || has[rank][out.send]);
                }
                for (int rank = 0; rank < p; rank++) {
                    const int got = hkt__block_round(&plans[rank], i).receive;

                    assert_true(got < 0 || !has[rank][got]);
                    if (got >= 0)
                        has[rank][got] = true;
                }
            }
            for (int rank = 1; rank < p; rank++)
                for (int k = 0; k < count; k++)
                    assert_true(has[rank][k]);
        }
    assert_true(hkt__blocks(65536, 65535, hkt__block_count(65536)).end > 0);
}

static void near_squares_divide(void **state)
{
    (void)state;
    for (int p = 1; p <= RANKS; p++) {
        const int a = hkt__near_square(p);

        assert_true(p % a == 0 && a <= p / a);
        for (int i = a + 1; i <= p / i; i++)
            assert_true(p % i != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(binomial_subtrees_are_ranges_that_make_up_their_parents),
        cmocka_unit_test(halving_ends_at_one),
        cmocka_unit_test(fold_keeps_a_power_of_two_and_seats_every_guest),
        cmocka_unit_test(binary_trees_span_all_ranks_in_log_depth),
        cmocka_unit_test(twin_trees_share_the_work),
        cmocka_unit_test(twin_trees_at_one_root_share_the_work),
        cmocka_unit_test(swing_meets_in_pairs_and_reaches_what_the_places_say),
        cmocka_unit_test(blocks_reach_every_rank_once),
        cmocka_unit_test(near_squares_divide),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
