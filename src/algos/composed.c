/* Broadcast and reduce for large vectors, composed of a tree and a circulant phase. With v = (rank - root) mod p,
 * chunk v of p belongs to rank v.
 *
 * Broadcast: scatter the chunks down a binomial tree, then all-gather them (van de Geijn). Reduce: reduce-scatter,
 *   then gather up the tree (Rabenseifner). 2 ceil(log2 p) rounds, 2(p-1)/p n at the root; where a binomial tree moves
 *   the whole vector log2 p times.
 * Sources: Barnett et al., Interprocessor collective communication library, SHPCC 1994; Rabenseifner, ICCS 2004; with
 *   the phases of circulant.c, which serve any p. */
#include "algos/builders.h"
#include "algos/patterns.h"

/* Chunks of the subtree of v as v holds them, from its own on. */
static struct hkt__operand scattered(struct hkt__builder *b, int v, int offset, int count)
{
    return hkt__range(b, v == 0 ? HKT__IN : HKT__OUT, v + offset, 1, count);
}

/* The all-gather also brings the root its own data back: its share of the bytes is the same as everybody's, and it
 * needs no copy of IN but for the chunk it starts from. */
void hkt__build_broadcast_scatter_all_gather(struct hkt__builder *b)
{
    const int p = b->nranks, v = hkt__vrank(b);

    hkt__set_cuts(b, p);
    if (v != 0)
        hkt__recv(b, hkt__from_vrank(b, hkt__binomial_parent(v)), 0, scattered(b, v, 0, hkt__binomial_size(p, v)));
    for (int k = hkt__binomial_children(p, v) - 1; k >= 0; k--)
        hkt__send(b, hkt__from_vrank(b, v + (1 << k)), 0, scattered(b, v, 1 << k, hkt__binomial_size(p, v + (1 << k))));
    if (v == 0)
        hkt__copy(b, 0, hkt__out(b, 0), hkt__in(b, 0));
    hkt__circulant_all_gather(b, v, v == 0 ? hkt__in(b, 0) : hkt__out(b, v));
}

void hkt__build_reduce_reduce_scatter_gather(struct hkt__builder *b)
{
    const int p = b->nranks, v = hkt__vrank(b);
    const enum hkt__place place = v == 0 ? HKT__PLACE_OUT : HKT__PLACE_SCRATCH;

    hkt__set_cuts(b, p);
    hkt__set_scratch(b, (p + 1) / 2); /* the widest round, and no subtree but the root's is larger */
    hkt__circulant_reduce_scatter(b, place, v, hkt__partials(b, place, v, 0, 1));
    for (int k = 0; k < hkt__binomial_children(p, v); k++)
        hkt__recv(b, hkt__from_vrank(b, v + (1 << k)), 0,
                  hkt__partials(b, place, v, 1 << k, hkt__binomial_size(p, v + (1 << k))));
    if (v != 0)
        hkt__send(b, hkt__from_vrank(b, hkt__binomial_parent(v)), 0,
                  hkt__partials(b, place, v, 0, hkt__binomial_size(p, v)));
}
