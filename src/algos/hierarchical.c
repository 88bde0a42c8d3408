/* Hierarchical algorithms: for ranks in groups (levels.h), such as hosts on a network with several ranks each. What
 * goes between groups goes once, or as one part per member, which all work at the same time ("rails").
 *
 * All-reduce: a reduce-scatter inside each group, then among the ranks of equal place in the groups of the next
 *   level, and so on outwards; then the all-gathers backwards. With g ranks per host n/g of a rank's vector leaves
 *   its host, where a flat algorithm may send all of it. Each level exchanges directly, all with all at once; what
 *   arrives is added where it lies. (Setting it aside, to sum all of a level in one step, cost 10 to 30 % more between
 *   2 and 4 hosts of 2 and 4 ranks.) Messages of a level and phase do not wait for each other, sum of (size - 1)
 *   of them, 2(p-1)/p n. Without a description of the machine it is the mixed-radix form of halving and doubling.
 * Broadcast: down a binomial tree of the outermost level, then in each group; reduce: the same backwards. Barrier: up
 *   to the first rank and down.
 * Sources: the "split rail" all-reduce of UCC; Hidayetoglu et al., HiCCL, arXiv 2408.05962 (factors of p as levels). */
#include "algos/builders.h"
#include "algos/levels.h"
#include "algos/patterns.h"

/* Where partial sums lie: in IN or OUT, chunk by chunk, or in scratch from slot `area` on, those of this rank's
 * group. */
struct sums {
    enum hkt__buf buf;
    int area;
};

/* Chunks that member j of the group is to have: their numbers are those of its rank in all digits up to this
 * level's. */
static struct hkt__operand share(struct hkt__builder *b, enum hkt__buf buf, const struct hkt__level *level, int j)
{
    return hkt__range(b, buf, b->rank % level->stride + j * level->stride, level->period, b->nranks / level->period);
}

static struct hkt__operand sums_for(struct hkt__builder *b, const struct sums *sums, const struct hkt__level *level,
                                    int j)
{
    if (sums->buf != HKT__SCRATCH)
        return share(b, sums->buf, level, j);
    return hkt__slots(b, sums->area + j, level->size, share(b, HKT__IN, level, j));
}

/* Each member gets its share from all others and adds them up, in an order of its own. */
static void reduce_scatter_level(struct hkt__builder *b, const struct hkt__level *level, const struct sums *sums,
                                 struct hkt__operand result)
{
    struct hkt__operand so_far = sums_for(b, sums, level, level->at);

    for (int k = 1; k < level->size; k++) {
        const int j = (level->at + k) % level->size;

        hkt__send(b, hkt__level_member(level, b->rank, j), 0, sums_for(b, sums, level, j));
    }
    for (int k = 1; k < level->size; k++, so_far = result) {
        const int j = (level->at - k + level->size) % level->size;

        hkt__recv_reduce(b, hkt__level_member(level, b->rank, j), 0, result, so_far);
    }
}

/* Members exchange what they have; `own` is this rank's share, or a copy of it. */
static void all_gather_level(struct hkt__builder *b, const struct hkt__level *level, struct hkt__operand own)
{
    for (int k = 1; k < level->size; k++) {
        const int to = (level->at + k) % level->size, from = (level->at - k + level->size) % level->size;

        hkt__send(b, hkt__level_member(level, b->rank, to), 0, own);
        hkt__recv(b, hkt__level_member(level, b->rank, from), 0, share(b, HKT__OUT, level, from));
    }
}

void hkt__build_all_reduce_hierarchical(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);

    hkt__set_cuts(b, b->nranks);
    for (int i = 0; i < levels.count; i++) {
        const struct hkt__level level = hkt__level(&levels, i, b->rank);
        const struct sums sums = { i == 0 ? HKT__IN : HKT__OUT, 0 };

        reduce_scatter_level(b, &level, &sums, share(b, HKT__OUT, &level, level.at));
    }
    for (int i = levels.count - 1; i >= 0; i--) {
        const struct hkt__level level = hkt__level(&levels, i, b->rank);

        all_gather_level(b, &level, share(b, HKT__OUT, &level, level.at));
    }
}

void hkt__build_reduce_scatter_hierarchical(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);
    struct sums sums = { HKT__IN, 0 };
    int free_slot = 0;

    for (int i = 0; i < levels.count; i++) {
        const struct hkt__level level = hkt__level(&levels, i, b->rank);
        const int count = b->nranks / level.period, area = free_slot;
        const struct hkt__operand like = share(b, HKT__IN, &level, level.at);

        reduce_scatter_level(b, &level, &sums, count > 1 ? hkt__scratch(b, area, like) : hkt__out(b, 0));
        sums = (struct sums){ HKT__SCRATCH, area };
        free_slot += count;
    }
}

void hkt__build_all_gather_hierarchical(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);

    hkt__copy(b, 0, hkt__out(b, b->rank), hkt__in(b, 0));
    for (int i = levels.count - 1; i >= 0; i--) {
        const struct hkt__level level = hkt__level(&levels, i, b->rank);

        all_gather_level(b, &level, i == levels.count - 1 ? hkt__in(b, 0) : share(b, HKT__OUT, &level, level.at));
    }
}

/* The innermost level at which a rank is not where `other` is; all further out others speak for it. */
static int level_of_difference(const struct hkt__levels *levels, int rank, int other)
{
    int i = 0;

    while (i < levels->count && hkt__level(levels, i, rank).at == hkt__level(levels, i, other).at)
        i++;
    return i;
}

/* The rank's group as a binomial tree whose root is where the root's place is. */
struct tree {
    struct hkt__level level;
    int root_at, v; /* v: place relative to the root's */
};

static struct tree tree_at(struct hkt__builder *b, const struct hkt__levels *levels, int i)
{
    const struct hkt__level level = hkt__level(levels, i, b->rank);
    const int root_at = hkt__level(levels, i, b->root).at;

    return (struct tree){ level, root_at, (level.at - root_at + level.size) % level.size };
}

static int tree_member(const struct hkt__builder *b, const struct tree *tree, int v)
{
    return hkt__level_member(&tree->level, b->rank, (tree->root_at + v) % tree->level.size);
}

void hkt__build_broadcast_hierarchical(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);
    const int outermost = level_of_difference(&levels, b->rank, b->root);

    for (int i = outermost < levels.count ? outermost : levels.count - 1; i >= 0; i--) {
        const struct tree tree = tree_at(b, &levels, i);

        if (tree.v != 0)
            hkt__recv(b, tree_member(b, &tree, hkt__binomial_parent(tree.v)), 0, hkt__out(b, 0));
        for (int k = hkt__binomial_children(tree.level.size, tree.v) - 1; k >= 0; k--)
            hkt__send(b, tree_member(b, &tree, tree.v + (1 << k)), 0,
                      b->rank == b->root ? hkt__in(b, 0) : hkt__out(b, 0));
    }
    if (b->rank == b->root)
        hkt__copy(b, 0, hkt__out(b, 0), hkt__in(b, 0));
}

void hkt__build_reduce_hierarchical(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);
    const int outermost = level_of_difference(&levels, b->rank, b->root);
    struct hkt__operand sum = hkt__in(b, 0);

    hkt__set_scratch(b, 1);
    for (int i = 0; i <= outermost && i < levels.count; i++) {
        const struct tree tree = tree_at(b, &levels, i);

        for (int k = 0; k < hkt__binomial_children(tree.level.size, tree.v); k++) {
            const struct hkt__operand next = b->rank == b->root ? hkt__out(b, 0) : hkt__scratch(b, 0, hkt__in(b, 0));

            hkt__recv_reduce(b, tree_member(b, &tree, tree.v + (1 << k)), 0, next, sum);
            sum = next;
        }
        if (tree.v != 0)
            hkt__send(b, tree_member(b, &tree, hkt__binomial_parent(tree.v)), 0, sum);
    }
}

void hkt__build_barrier_hierarchical(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);
    const int led = level_of_difference(&levels, b->rank, 0); /* this rank is the first of its groups at levels below */

    for (int i = 0; i < led; i++) {
        const struct hkt__level level = hkt__level(&levels, i, b->rank);

        for (int j = 1; j < level.size; j++)
            hkt__wait(b, hkt__level_member(&level, b->rank, j), 0, hkt__nothing());
    }
    if (led < levels.count) {
        const struct hkt__level level = hkt__level(&levels, led, b->rank);

        hkt__signal_all_done(b, hkt__level_member(&level, b->rank, 0), 0);
        hkt__wait(b, hkt__level_member(&level, b->rank, 0), 0, hkt__nothing());
    }
    for (int i = led - 1; i >= 0; i--) {
        const struct hkt__level level = hkt__level(&levels, i, b->rank);

        for (int j = 1; j < level.size; j++)
            hkt__signal_all_done(b, hkt__level_member(&level, b->rank, j), 0);
    }
}
