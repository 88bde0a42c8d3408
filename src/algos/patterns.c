/* Index arithmetic of the algorithms: see patterns.h. Trees follow the shapes of NCCL's double binary tree (lowest set
 * bit), halving follows Traeff (arXiv 2410.14234). */
#include "algos/patterns.h"

#include <assert.h>

#include "core/bits.h"

int hkt__binomial_size(int nranks, int v)
{
    const int span = v & -v;

    return v == 0 || span > nranks - v ? nranks - v : span;
}

int hkt__binomial_parent(int v)
{
    return v == 0 ? -1 : v & (v - 1);
}

int hkt__binomial_children(int nranks, int v)
{
    return hkt__log2_ceil((unsigned)hkt__binomial_size(nranks, v));
}

int hkt__binomial_size_max(int nranks)
{
    int max = 0;

    for (int v = 1; v < nranks; v *= 2)
        if (hkt__binomial_size(nranks, v) > max)
            max = hkt__binomial_size(nranks, v);
    return max;
}

struct hkt__halving hkt__halving(int nranks)
{
    struct hkt__halving halving = { .width = { nranks } };
    int width = nranks;

    while (width > 1) {
        width = (width + 1) / 2;
        halving.width[++halving.rounds] = width;
    }
    return halving;
}

struct hkt__fold hkt__fold(int nranks, int rank)
{
    const int survivors = 1 << hkt__log2_floor((unsigned)nranks), extra = nranks - survivors;
    const bool is_paired = rank < 2 * extra;

    return (struct hkt__fold){
        .survivors = survivors,
        .extra = extra,
        .index = !is_paired      ? rank - extra
                 : rank % 2 == 0 ? -1
                                 : rank / 2,
        .has_guest = is_paired && rank % 2 == 1,
    };
}

int hkt__fold_rank(const struct hkt__fold *fold, int index)
{
    assert(index >= 0 && index < fold->survivors);
    return index < fold->extra ? 2 * index + 1 : index + fold->extra;
}

static void add_child(struct hkt__btree *tree, int child)
{
    tree->children[tree->nchildren++] = child;
}

struct hkt__btree hkt__btree(int nranks, int rank)
{
    struct hkt__btree tree = { .parent = -1 };
    const int low = rank & -rank;

    if (rank == 0) {
        if (nranks > 1)
            add_child(&tree, 1 << hkt__log2_floor((unsigned)nranks - 1));
        return tree;
    }
    tree.parent = (rank ^ low) | (2 * low);
    if (tree.parent >= nranks)
        tree.parent = rank ^ low;
    for (int step = low / 2; step > 0; step /= 2) {
        if (rank + step < nranks) {
            add_child(&tree, rank + step);
            break;
        }
    }
    if (low > 1)
        add_child(&tree, rank - low / 2); /* always a full subtree */
    return tree;
}

struct hkt__btree hkt__btree_twin(int nranks, int rank)
{
    const bool mirror = nranks % 2 == 0;
    struct hkt__btree tree = hkt__btree(nranks, mirror ? nranks - 1 - rank : hkt__mod((int64_t)rank - 1, nranks));

    for (int i = 0; i < tree.nchildren; i++)
        tree.children[i] = mirror ? nranks - 1 - tree.children[i] : (tree.children[i] + 1) % nranks;
    if (tree.parent >= 0)
        tree.parent = mirror ? nranks - 1 - tree.parent : (tree.parent + 1) % nranks;
    return tree;
}
