/* Pipelined chains: the vector runs through all ranks in the order root, root+1, ... (reduce: towards the root), cut in
 * slices that follow each other, so that all links work at once.
 *
 * Cost (p-2+S)(a + n/S b) with S slices: n b for large n, the best possible, but p-1 hops before the last rank has
 * anything. Source: folklore; see Chan et al., Collective communication: theory, practice, and experience, CCPE 19(13),
 * 2007. */
#include "algos/builders.h"

void hkt__build_broadcast_chain(struct hkt__builder *b)
{
    const int v = hkt__vrank(b);

    if (v != 0)
        hkt__recv(b, hkt__rank_at(b, -1), 0, hkt__out(b, 0));
    if (v != b->nranks - 1)
        hkt__send(b, hkt__rank_at(b, 1), 0, v == 0 ? hkt__in(b, 0) : hkt__out(b, 0));
    if (v == 0)
        hkt__copy(b, 0, hkt__out(b, 0), hkt__in(b, 0));
}

void hkt__build_reduce_chain(struct hkt__builder *b)
{
    const int v = hkt__vrank(b);
    struct hkt__operand sum = hkt__in(b, 0);

    hkt__set_scratch(b, b->nranks > 2 ? 1 : 0);
    if (v != b->nranks - 1) {
        const struct hkt__operand own = sum;

        sum = v == 0 ? hkt__out(b, 0) : hkt__scratch(b, 0, own);
        hkt__recv_reduce(b, hkt__rank_at(b, 1), 0, sum, own);
    }
    if (v != 0)
        hkt__send(b, hkt__rank_at(b, -1), 0, sum);
}
