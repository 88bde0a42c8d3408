/* Neighbour exchange: an all-gather in which a rank talks only to its two neighbours, alternately, and from the second
 * round on forwards the pair of blocks it has just received. Half the rounds of the ring; even p.
 *
 * Pair m = rank / 2. Round 0 swaps blocks inside the pair. Then the pairs that an even rank receives are m-1, m+1, m-2,
 * m+2, ...; an odd rank mirrors that: m+1, m-1, ... Indices are modulo p/2.
 * Cost p/2 rounds, (p-1)/p n. Source: Chen et al., Performance evaluation of allgather algorithms on terascale Linux
 * cluster with fast Ethernet, HPC-Asia 2005. */
#include "algos/builders.h"

void hkt__build_all_gather_neighbor_exchange(struct hkt__builder *b)
{
    const int r = b->rank, away = r % 2 == 0 ? -1 : 1; /* direction of the neighbour in another pair */
    const int mate = r - away, other = hkt__rank_at(b, away);
    int newest = r / 2; /* pair received last */

    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, 0));
    hkt__send(b, mate, 0, hkt__in(b, 0));
    hkt__recv(b, mate, 0, hkt__out(b, mate));
    for (int k = 1; k < b->nranks / 2; k++) {
        const bool is_outward = k % 2 == 1;
        const int next = r / 2 + away * (is_outward ? (k + 1) / 2 : -k / 2);

        hkt__send(b, is_outward ? other : mate, 0, hkt__range(b, HKT__OUT, 2 * newest, 1, 2));
        hkt__recv(b, is_outward ? other : mate, 0, hkt__range(b, HKT__OUT, 2 * next, 1, 2));
        newest = next;
    }
}
