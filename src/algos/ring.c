/* Rings: every rank sends to the next rank only and receives from the one before.
 *
 * Reduce-scatter: in step k rank r passes on the partial result of chunk r-1-k and adds its own input to that of chunk
 *   r-2-k; after p-1 steps it holds chunk r complete. All-gather: in step k it passes on chunk r-k. All-reduce is one
 *   after the other. Indices are modulo p.
 * Cost (p-1) rounds of n/p each; twice that for all-reduce: 2(p-1) a + 2(p-1)/p n b. Optimal in bytes for every p, and
 *   each link carries one message a round; latency grows with p.
 * Source: Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009. */
#include "algos/builders.h"

void hkt__build_all_reduce_ring(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank, next = hkt__rank_at(b, 1), prev = hkt__rank_at(b, -1);

    hkt__set_cuts(b, p);
    for (int k = 0; k < p - 1; k++) {
        hkt__send(b, next, 0, k == 0 ? hkt__in(b, r - 1) : hkt__out(b, r - 1 - k));
        hkt__recv_reduce(b, prev, 0, hkt__out(b, r - 2 - k), hkt__in(b, r - 2 - k));
    }
    for (int k = 0; k < p - 1; k++) {
        hkt__send(b, next, 0, hkt__out(b, r - k));
        hkt__recv(b, prev, 0, hkt__out(b, r - 1 - k));
    }
}

/* A partial result only passes through, so two slots in turn hold it: one is filled while the other is sent. With a
 * single slot every rank would wait for the next one to take its message, all round the ring. */
void hkt__build_reduce_scatter_ring(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank, next = hkt__rank_at(b, 1), prev = hkt__rank_at(b, -1);
    struct hkt__operand sum = hkt__in(b, r - 1);

    for (int k = 0; k < p - 1; k++) {
        const struct hkt__operand own = hkt__in(b, r - 2 - k);

        hkt__send(b, next, 0, sum);
        sum = k == p - 2 ? hkt__out(b, 0) : hkt__scratch(b, k % 2, own);
        hkt__recv_reduce(b, prev, 0, sum, own);
    }
}

void hkt__build_all_gather_ring(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank, next = hkt__rank_at(b, 1), prev = hkt__rank_at(b, -1);

    for (int k = 0; k < p - 1; k++) {
        hkt__send(b, next, 0, k == 0 ? hkt__in(b, 0) : hkt__out(b, r - k));
        hkt__recv(b, prev, 0, hkt__out(b, r - 1 - k));
    }
    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, 0));
}
