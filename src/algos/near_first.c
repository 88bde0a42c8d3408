/* Near-first reduce-scatter and all-gather: ceil(log2 p) rounds and the fewest bytes for every p, like the circulant
 * pair, but with the large messages between near ranks: the reduce-scatter starts with n/2 to the next rank and ends
 * with one chunk half way round; the all-gather is the same backwards. Where ranks that are near share a switch or a
 * host, little leaves it. (Bruck's all-gather has it the other way round: its large messages go far.)
 *
 * A rank names chunks by how far they lie behind it. In round k of the reduce-scatter it has partial sums of those at
 *   multiples of 2^k; it sends the odd multiples to rank r-2^k, whose even multiples they are, and adds to its own even
 *   ones what comes from r+2^k. The all-gather sends the even multiples to r+2^k, for k downwards.
 * Cost ceil(log2 p) a + (p-1)/p n b each; all-reduce is one after the other.
 * Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, arXiv 2506.20252; here
 *   all chunks of a round travel together. */
#include "algos/builders.h"
#include "algos/patterns.h"

/* Chunks behind .. behind + (count-1) * stride behind this rank, as inputs. */
static struct hkt__operand inputs(struct hkt__builder *b, int behind, int stride, int count)
{
    return hkt__range(b, HKT__IN, b->rank - behind, -stride, count);
}

/* Their partial sums. In scratch there are slots for chunks at even distances only: the others are never summed
 * here. */
static struct hkt__operand sums(struct hkt__builder *b, enum hkt__place place, int behind, int stride, int count)
{
    if (place == HKT__PLACE_OUT)
        return hkt__range(b, HKT__OUT, b->rank - behind, -stride, count);
    return hkt__slots(b, behind / 2, stride / 2, inputs(b, behind, stride, count));
}

/* Chunks that travel in the round of distance d: odd multiples of d below p. */
static int count_at(int nranks, int d)
{
    return (nranks - d + 2 * d - 1) / (2 * d);
}

static void reduce_scatter(struct hkt__builder *b, enum hkt__place place, struct hkt__operand result)
{
    const int p = b->nranks;

    for (int d = 1; d < p; d *= 2) {
        const int count = count_at(p, d), last = d + (count - 1) * 2 * d;
        struct hkt__operand given = inputs(b, d, 2 * d, count), kept = inputs(b, 0, 2 * d, count);

        if (d > 1) {
            /* Nothing was ever added to the farthest chunk of an odd number: it goes as it came. */
            if (last == p - 1)
                hkt__copy(b, 0, sums(b, place, last, 2 * d, 1), inputs(b, last, 2 * d, 1));
            given = sums(b, place, d, 2 * d, count);
            kept = sums(b, place, 0, 2 * d, count);
        }
        hkt__send(b, hkt__rank_at(b, -d), 0, given);
        hkt__recv_reduce(b, hkt__rank_at(b, d), 0, 2 * d >= p ? result : sums(b, place, 0, 2 * d, count), kept);
    }
}

/* `own` is OUT chunk `rank`, or a copy of it. */
static void all_gather(struct hkt__builder *b, struct hkt__operand own)
{
    const int p = b->nranks, r = b->rank;
    int d = 1;

    while (2 * d < p)
        d *= 2;
    for (; d > 0; d /= 2) {
        const int count = count_at(p, d);

        hkt__send(b, hkt__rank_at(b, d), 0, count == 1 ? own : hkt__range(b, HKT__OUT, r, -2 * d, count));
        hkt__recv(b, hkt__rank_at(b, -d), 0, hkt__range(b, HKT__OUT, r - d, -2 * d, count));
    }
}

void hkt__build_all_reduce_near_first(struct hkt__builder *b)
{
    hkt__set_cuts(b, b->nranks);
    reduce_scatter(b, HKT__PLACE_OUT, hkt__out(b, b->rank));
    all_gather(b, hkt__out(b, b->rank));
}

void hkt__build_reduce_scatter_near_first(struct hkt__builder *b)
{
    reduce_scatter(b, HKT__PLACE_SCRATCH, hkt__out(b, 0));
}

void hkt__build_all_gather_near_first(struct hkt__builder *b)
{
    hkt__copy(b, 0, hkt__out(b, b->rank), hkt__in(b, 0));
    all_gather(b, hkt__in(b, 0));
}
