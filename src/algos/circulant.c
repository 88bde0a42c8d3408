/* Circulant reduce-scatter and all-gather: ceil(log2 p) rounds, the fewest bytes possible, every p without folding.
 *
 * With widths q = p, ceil(p/2), ..., 1 and d = ceil(q/2): in the reduce-scatter round of width q rank r still has to
 *   do the q chunks r, r+1, ..., r+q-1; it sends the partial sums of the upper ones, r+d .. r+q-1, to rank r+d, whose
 *   own lower ones they are, and goes on with the d lower ones. The all-gather is the same backwards: send chunks
 *   r .. r+(q-d)-1 to r-d. Indices are modulo p.
 * Cost ceil(log2 p) a + (p-1)/p n b each; all-reduce is one after the other.
 * With another radix than 2, d = ceil(q/radix): the second d chunks go to r+d, the third to r+2d, and so on, all in one
 *   round. Fewer rounds, of up to radix-1 messages, and the same bytes; with radix >= p everybody sends to everybody.
 * Sources: Traeff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, arXiv 2410.14234; for the radix, Bruck
 *   et al. (see bruck.c), whose all-gather for k ports it is, but for widths that are no powers: with them no round is
 *   nearly empty. */
#include "algos/builders.h"
#include "algos/patterns.h"

struct hkt__operand hkt__partials(struct hkt__builder *b, enum hkt__place place, int first, int offset, int count)
{
    if (place == HKT__PLACE_OUT)
        return hkt__range(b, HKT__OUT, first + offset, 1, count);
    return hkt__scratch(b, offset, hkt__range(b, HKT__IN, first + offset, 1, count));
}

/* Chunks of the message that goes `away` places; of q chunks the sender keeps the first d. */
static int parcel(int q, int d, int away)
{
    return d < q - away ? d : q - away;
}

/* Chunks are named by their offset from `first`. Partial sums exist of offsets [0, nsums); those above are still
 * inputs: all before round 0, and for radix 2 and odd p one before round 1. That one is sent in round 1, copied to lie
 * beside the sums that go with it, so that a round is one message. (For a larger radix parcels of round 0 are full but for
 * the last, so that sums exist of all that is kept.) */
void hkt__circulant_reduce_scatter(struct hkt__builder *b, enum hkt__place place, int first, struct hkt__operand result)
{
    const struct hkt__halving dividing = hkt__dividing(b->nranks, b->radix);
    int nsums = 0;

    for (int k = 0; k < dividing.rounds; k++) {
        const int q = dividing.width[k], d = dividing.width[k + 1];
        const bool has_sums = nsums > d;

        if (has_sums)
            hkt__copy(b, 0, hkt__partials(b, place, first, nsums, q - nsums),
                      hkt__range(b, HKT__IN, first + nsums, 1, q - nsums));
        for (int away = d; away < q; away += d) {
            const int count = parcel(q, d, away);

            hkt__send(b, hkt__rank_at(b, away), 0, has_sums ? hkt__partials(b, place, first, away, count)
                                                            : hkt__range(b, HKT__IN, first + away, 1, count));
        }
        for (int away = d; away < q; away += d) {
            const int count = parcel(q, d, away);
            const struct hkt__operand sum = d == 1 ? result : hkt__partials(b, place, first, 0, count);
            const struct hkt__operand kept = nsums > 0 ? hkt__partials(b, place, first, 0, count)
                                                       : hkt__range(b, HKT__IN, first, 1, count);

            hkt__recv_reduce(b, hkt__rank_at(b, -away), 0, sum, away == d ? kept : sum);
        }
        nsums = k == 0 ? parcel(q, d, d) : d;
    }
}

void hkt__circulant_all_gather(struct hkt__builder *b, int first, struct hkt__operand own)
{
    const struct hkt__halving dividing = hkt__dividing(b->nranks, b->radix);

    for (int k = dividing.rounds - 1; k >= 0; k--) {
        const int q = dividing.width[k], d = dividing.width[k + 1];

        for (int away = d; away < q; away += d) {
            const int count = parcel(q, d, away);

            hkt__send(b, hkt__rank_at(b, -away), 0, count == 1 ? own : hkt__range(b, HKT__OUT, first, 1, count));
        }
        for (int away = d; away < q; away += d)
            hkt__recv(b, hkt__rank_at(b, away), 0, hkt__range(b, HKT__OUT, first + away, 1, parcel(q, d, away)));
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
