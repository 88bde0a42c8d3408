/* Circulant reduce-scatter and all-gather: ceil(log2 p) rounds, the fewest bytes possible, every p without folding.
 *
 * With widths q = p, ceil(p/2), ..., 1 and d = ceil(q/2): in the reduce-scatter round of width q rank r still has to
 *   do the q chunks r, r+1, ..., r+q-1; it sends the partial sums of the upper ones, r+d .. r+q-1, to rank r+d, whose
 *   own lower ones they are, and goes on with the d lower ones. The all-gather is the same backwards: send chunks
 *   r .. r+(q-d)-1 to r-d. Indices are modulo p.
 * Cost ceil(log2 p) a + (p-1)/p n b each; all-reduce is one after the other.
 * Source: Traeff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, arXiv 2410.14234. */
#include "algos/builders.h"
#include "algos/patterns.h"

struct hkt__operand hkt__partials(struct hkt__builder *b, enum hkt__place place, int first, int offset, int count)
{
    if (place == HKT__PLACE_OUT)
        return hkt__range(b, HKT__OUT, first + offset, 1, count);
    return hkt__scratch(b, offset, hkt__range(b, HKT__IN, first + offset, 1, count));
}

/* Chunks are named by their offset from `first`. Partial sums exist of offsets [0, nsums); those above are still
 * inputs: all before round 0, and for odd p one before round 1. That one is sent in round 1, copied to lie beside the
 * sums that go with it, so that a round is one message. */
void hkt__circulant_reduce_scatter(struct hkt__builder *b, enum hkt__place place, int first, struct hkt__operand result)
{
    const struct hkt__halving halving = hkt__halving(b->nranks);
    int nsums = 0;

    for (int k = 0; k < halving.rounds; k++) {
        const int q = halving.width[k], d = halving.width[k + 1], moved = q - d;
        struct hkt__operand given = hkt__range(b, HKT__IN, first + d, 1, moved);
        struct hkt__operand kept = hkt__range(b, HKT__IN, first, 1, moved);

        if (nsums > 0)
            kept = hkt__partials(b, place, first, 0, moved);
        if (nsums > d) {
            hkt__copy(b, 0, hkt__partials(b, place, first, nsums, q - nsums),
                      hkt__range(b, HKT__IN, first + nsums, 1, q - nsums));
            given = hkt__partials(b, place, first, d, moved);
        }
        hkt__send(b, hkt__rank_at(b, d), 0, given);
        hkt__recv_reduce(b, hkt__rank_at(b, -d), 0, d == 1 ? result : hkt__partials(b, place, first, 0, moved), kept);
        nsums = k == 0 ? moved : d;
    }
}

void hkt__circulant_all_gather(struct hkt__builder *b, int first, struct hkt__operand own)
{
    const struct hkt__halving halving = hkt__halving(b->nranks);

    for (int k = halving.rounds - 1; k >= 0; k--) {
        const int d = halving.width[k + 1], moved = halving.width[k] - d;

        hkt__send(b, hkt__rank_at(b, -d), 0, moved == 1 ? own : hkt__range(b, HKT__OUT, first, 1, moved));
        hkt__recv(b, hkt__rank_at(b, d), 0, hkt__range(b, HKT__OUT, first + d, 1, moved));
    }
}

void hkt__build_all_reduce_circulant(struct hkt__builder *b)
{
    hkt__set_cuts(b, b->nranks);
    hkt__circulant_reduce_scatter(b, HKT__PLACE_OUT, b->rank, hkt__out(b, b->rank));
    hkt__circulant_all_gather(b, b->rank, hkt__out(b, b->rank));
}

void hkt__build_reduce_scatter_circulant(struct hkt__builder *b)
{
    hkt__circulant_reduce_scatter(b, HKT__PLACE_SCRATCH, b->rank, hkt__out(b, 0));
}

void hkt__build_all_gather_circulant(struct hkt__builder *b)
{
    hkt__copy(b, 0, hkt__out(b, b->rank), hkt__in(b, 0));
    hkt__circulant_all_gather(b, b->rank, hkt__in(b, 0));
}
