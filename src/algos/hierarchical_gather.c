/* Gather and scatter for ranks in groups (levels.h): up a tree inside each group to the member in the root's place, then in
 * the same way across groups; scatter backwards. Of each host one rank sends all that its host has.
 *
 * The tree of a group halves it: the root leads its half, the first of the other half leads that, and so on. So the blocks of
 * a subtree are those of consecutive ranks, wherever the root is, and travel as one piece; inner ranks keep them in scratch.
 * Cost: sum over levels of floor(log2 g) rounds, (p-1)/p n at the root. Source: derived from the binomial trees of tree.c. */
#include "algos/builders.h"
#include "algos/levels.h"

enum { CHILDREN_MAX = 32 }; /* a root has the most, ceil(log2 g) at each level, 20 for HKT_RANKS_MAX ranks by threes */

/* What `rank` leads: blocks of ranks first, first + 1, ... */
struct subtree {
    int rank, first, count;
};

struct node {
    struct subtree own;
    int parent;
    int nchildren;
    struct subtree children[CHILDREN_MAX]; /* of the outer levels first; those of a level with the largest first */
};

/* Down the tree of one group, from the whole, led by member `lead`, through the halves that the rank is in. */
static void add_level(struct node *node, const struct hkt__level *level, int rank, int lead)
{
    const int group = rank - level->at * level->stride - rank % level->stride;
    int low = 0, high = level->size;

    while (high - low > 1) {
        const int count = high - low, larger = low + (count + 1) / 2;
        const int middle = lead < larger ? larger : low + count / 2; /* the lead's half is not the smaller one */
        const bool is_low = lead < middle;
        const int other = is_low ? middle : low;
        const struct subtree half = { hkt__level_member(level, rank, other), group + other * level->stride,
                                      (is_low ? high - middle : middle - low) * level->stride };

        if (level->at == lead)
            node->children[node->nchildren++] = half;
        if (level->at == other) {
            node->parent = hkt__level_member(level, rank, lead);
            node->own = half;
        }
        if ((level->at < middle) != is_low)
            lead = other;
        if (level->at < middle)
            high = middle;
        else
            low = middle;
    }
}

/* Below the level at which the rank's place is not the root's it leads its groups; further out others speak for it. */
static struct node node_of(const struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);
    struct node node = { { b->rank, 0, b->nranks }, -1, 0, { { 0 } } };
    int outermost = 0;

    while (outermost < levels.count - 1 && hkt__level(&levels, outermost, b->rank).at == hkt__level(&levels, outermost, b->root).at)
        outermost++;
    for (int i = outermost; i >= 0; i--) {
        const struct hkt__level level = hkt__level(&levels, i, b->rank);

        add_level(&node, &level, b->rank, hkt__level(&levels, i, b->root).at);
    }
    return node;
}

/* Slots of scratch that every rank reserves, for the largest subtree but the root's; leaves need none. */
static int subtree_slots(const struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);
    const struct hkt__level outermost = hkt__level(&levels, levels.count - 1, b->rank);
    const int largest = outermost.size / 2 * outermost.stride;

    return largest > 1 ? largest : 0;
}

static struct hkt__operand blocks_of(struct hkt__builder *b, const struct node *node, enum hkt__buf user, int first, int count)
{
    const enum hkt__buf one_block = user == HKT__IN ? HKT__OUT : HKT__IN;

    if (b->rank == b->root)
        return hkt__range(b, user, first, 1, count);
    return hkt__scratch(b, first - node->own.first, hkt__range(b, one_block, 0, 0, count));
}

void hkt__build_gather_hierarchical(struct hkt__builder *b)
{
    const struct node node = node_of(b);

    hkt__set_scratch(b, subtree_slots(b));
    if (node.own.count == 1) {
        hkt__send(b, node.parent, 0, hkt__in(b, 0));
        return;
    }
    for (int k = node.nchildren - 1; k >= 0; k--)
        hkt__recv(b, node.children[k].rank, 0,
                  blocks_of(b, &node, HKT__OUT, node.children[k].first, node.children[k].count));
    hkt__copy(b, 0, blocks_of(b, &node, HKT__OUT, b->rank, 1), hkt__in(b, 0));
    if (b->rank != b->root)
        hkt__send(b, node.parent, 0, blocks_of(b, &node, HKT__OUT, node.own.first, node.own.count));
}

void hkt__build_scatter_hierarchical(struct hkt__builder *b)
{
    const struct node node = node_of(b);

    hkt__set_scratch(b, subtree_slots(b));
    if (node.own.count == 1) {
        hkt__recv(b, node.parent, 0, hkt__out(b, 0));
        return;
    }
    if (b->rank != b->root)
        hkt__recv(b, node.parent, 0, blocks_of(b, &node, HKT__IN, node.own.first, node.own.count));
    for (int k = 0; k < node.nchildren; k++)
        hkt__send(b, node.children[k].rank, 0,
                  blocks_of(b, &node, HKT__IN, node.children[k].first, node.children[k].count));
    hkt__copy(b, 0, hkt__out(b, 0), blocks_of(b, &node, HKT__IN, b->rank, 1));
}
