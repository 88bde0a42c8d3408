/* Double binary tree: the vector is cut in two halves, and each half is summed up one binary tree and sent back down
 * it, or only one of both (reduce, broadcast). The trees are twins: whoever is inner in one is a leaf in the other,
 * so each rank sends and receives at most 2 n although a tree alone would leave half of them idle. Each tree has a
 * lane of its own; slices follow each other up and down, so the depth is paid once.
 *
 * Cost about 3 log2 p a + 2 n b with many slices: 2 messages a level up, one after the other, and 1 down. Any p.
 * Sources: Sanders, Speck, Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel
 *   Computing 35(12), 2009; the tree shape is the one NCCL uses since 2.4. */
#include "algos/builders.h"
#include "algos/patterns.h"

/* All-reduce. */
static void up_and_down(struct hkt__builder *b, const struct hkt__btree *tree, int half)
{
    const struct hkt__operand out = hkt__out(b, half);
    struct hkt__operand sum = hkt__in(b, half);

    for (int i = 0; i < tree->nchildren; i++) {
        hkt__recv_reduce(b, tree->children[i], half, out, sum);
        sum = out;
    }
    if (tree->parent >= 0) {
        hkt__send(b, tree->parent, half, sum);
        hkt__recv(b, tree->parent, half, out);
    }
    for (int i = tree->nchildren - 1; i >= 0; i--)
        hkt__send(b, tree->children[i], half, out);
}

void hkt__build_all_reduce_double_tree(struct hkt__builder *b)
{
    const struct hkt__btree tree = hkt__btree(b->nranks, b->rank), twin = hkt__btree_twin(b->nranks, b->rank);

    hkt__set_cuts(b, 2);
    up_and_down(b, &tree, 0);
    up_and_down(b, &twin, 1);
}

/* Ranks of a tree count from the root; each half has a lane of its own. */
static void down(struct hkt__builder *b, const struct hkt__btree *tree, int half)
{
    if (tree->parent >= 0)
        hkt__recv(b, hkt__from_vrank(b, tree->parent), half, hkt__out(b, half));
    for (int i = tree->nchildren - 1; i >= 0; i--)
        hkt__send(b, hkt__from_vrank(b, tree->children[i]), half,
                  tree->parent >= 0 ? hkt__out(b, half) : hkt__in(b, half));
}

static void up(struct hkt__builder *b, const struct hkt__btree *tree, int half)
{
    struct hkt__operand sum = hkt__in(b, half);

    for (int i = 0; i < tree->nchildren; i++) {
        const struct hkt__operand next = tree->parent < 0 ? hkt__out(b, half) : hkt__scratch(b, half, sum);

        hkt__recv_reduce(b, hkt__from_vrank(b, tree->children[i]), half, next, sum);
        sum = next;
    }
    if (tree->parent >= 0)
        hkt__send(b, hkt__from_vrank(b, tree->parent), half, sum);
}

void hkt__build_broadcast_double_tree(struct hkt__builder *b)
{
    const int v = hkt__vrank(b);
    const struct hkt__btree tree = hkt__btree(b->nranks, v), twin = hkt__btree_twin_at_root(b->nranks, v);

    hkt__set_cuts(b, 2);
    down(b, &tree, 0);
    down(b, &twin, 1);
    if (v == 0)
        hkt__copy(b, 0, hkt__out_all(b), hkt__in_all(b));
}

void hkt__build_reduce_double_tree(struct hkt__builder *b)
{
    const int v = hkt__vrank(b);
    const struct hkt__btree tree = hkt__btree(b->nranks, v), twin = hkt__btree_twin_at_root(b->nranks, v);

    hkt__set_cuts(b, 2);
    hkt__set_scratch(b, b->nranks > 2 ? 2 : 0);
    up(b, &tree, 0);
    up(b, &twin, 1);
}
