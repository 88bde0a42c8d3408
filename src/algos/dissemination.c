/* Barriers. Dissemination: in round k rank r signals r + 2^k and waits for r - 2^k (modulo p), so that after
 * ceil(log2 p) rounds it has heard, through others, of all. Flat: everybody signals everybody, one round of p-1
 * signals; faster for a few ranks.
 *
 * Source: Hensgen, Finkel, Manber, Two algorithms for barrier synchronization, IJPP 17(1), 1988. */
#include "algos/builders.h"

void hkt__build_barrier_dissemination(struct hkt__builder *b)
{
    for (int step = 1; step < b->nranks; step *= 2) {
        hkt__signal_all_done(b, hkt__rank_at(b, step), 0);
        hkt__wait(b, hkt__rank_at(b, -step), 0, hkt__nothing());
    }
}

void hkt__build_barrier_flat(struct hkt__builder *b)
{
    for (int k = 1; k < b->nranks; k++)
        hkt__signal_all_done(b, hkt__rank_at(b, k), 0);
    for (int k = 1; k < b->nranks; k++)
        hkt__wait(b, hkt__rank_at(b, -k), 0, hkt__nothing());
}
