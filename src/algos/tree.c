/* Binomial trees, rooted anywhere: with v = (rank - root) mod p the parent of v is v without its lowest set bit, and
 * the subtree of v is the range [v, v + size).
 *
 * Broadcast and reduce move the whole vector along each edge: ceil(log2 p) rounds of n. Gather and scatter move only
 *   what belongs to the subtree: ceil(log2 p) rounds, (p-1)/p n at the root; inner ranks keep their subtree in
 * scratch. Children with the largest subtree come first on the way down and last on the way up, as they have the
 * longest way. Source: folklore; costs as in Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005. */
#include "algos/builders.h"
#include "algos/patterns.h"

static int parent_of(const struct hkt__builder *b, int v)
{
    return hkt__from_vrank(b, hkt__binomial_parent(v));
}

static int child_of(const struct hkt__builder *b, int v, int k)
{
    return hkt__from_vrank(b, v + (1 << k));
}

void hkt__build_broadcast_binomial(struct hkt__builder *b)
{
    const int v = hkt__vrank(b), nchildren = hkt__binomial_children(b->nranks, v);

    if (v != 0)
        hkt__recv(b, parent_of(b, v), 0, hkt__out(b, 0));
    for (int k = nchildren - 1; k >= 0; k--)
        hkt__send(b, child_of(b, v, k), 0, v == 0 ? hkt__in(b, 0) : hkt__out(b, 0));
    if (v == 0)
        hkt__copy(b, 0, hkt__out(b, 0), hkt__in(b, 0));
}

void hkt__build_reduce_binomial(struct hkt__builder *b)
{
    const int v = hkt__vrank(b), nchildren = hkt__binomial_children(b->nranks, v);
    struct hkt__operand sum = hkt__in(b, 0);

    hkt__set_scratch(b, hkt__binomial_size_max(b->nranks) > 1 ? 1 : 0);
    for (int k = 0; k < nchildren; k++) {
        const struct hkt__operand next = v == 0 ? hkt__out(b, 0) : hkt__scratch(b, 0, hkt__in(b, 0));

        hkt__recv_reduce(b, child_of(b, v, k), 0, next, sum);
        sum = next;
    }
    if (v != 0)
        hkt__send(b, parent_of(b, v), 0, sum);
}

/* Slots of scratch that every rank reserves: leaves pass the user's memory on directly. */
static int subtree_slots(const struct hkt__builder *b)
{
    const int max = hkt__binomial_size_max(b->nranks);

    return max > 1 ? max : 0;
}

/* The blocks [first, first + count) of the subtree of v: in the user's buffer at the root, else in scratch. */
static struct hkt__operand subtree(struct hkt__builder *b, enum hkt__buf user, int first, int count)
{
    const enum hkt__buf one_block = user == HKT__IN ? HKT__OUT : HKT__IN;

    if (b->rank == b->root)
        return hkt__range(b, user, b->root + first, 1, count);
    return hkt__scratch(b, first, hkt__range(b, one_block, 0, 0, count));
}

void hkt__build_gather_binomial(struct hkt__builder *b)
{
    const int p = b->nranks, v = hkt__vrank(b), nchildren = hkt__binomial_children(p, v);

    hkt__set_scratch(b, subtree_slots(b));
    if (nchildren == 0) {
        hkt__send(b, parent_of(b, v), 0, hkt__in(b, 0));
        return;
    }
    for (int k = 0; k < nchildren; k++)
        hkt__recv(b, child_of(b, v, k), 0, subtree(b, HKT__OUT, 1 << k, hkt__binomial_size(p, v + (1 << k))));
    hkt__copy(b, 0, subtree(b, HKT__OUT, 0, 1), hkt__in(b, 0));
    if (v != 0)
        hkt__send(b, parent_of(b, v), 0, subtree(b, HKT__OUT, 0, hkt__binomial_size(p, v)));
}

void hkt__build_scatter_binomial(struct hkt__builder *b)
{
    const int p = b->nranks, v = hkt__vrank(b), nchildren = hkt__binomial_children(p, v);

    hkt__set_scratch(b, subtree_slots(b));
    if (nchildren == 0) {
        hkt__recv(b, parent_of(b, v), 0, hkt__out(b, 0));
        return;
    }
    if (v != 0)
        hkt__recv(b, parent_of(b, v), 0, subtree(b, HKT__IN, 0, hkt__binomial_size(p, v)));
    for (int k = nchildren - 1; k >= 0; k--)
        hkt__send(b, child_of(b, v, k), 0, subtree(b, HKT__IN, 1 << k, hkt__binomial_size(p, v + (1 << k))));
    hkt__copy(b, 0, hkt__out(b, 0), subtree(b, HKT__IN, 0, 1));
}
