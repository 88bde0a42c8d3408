/* Broadcast and reduce of blocks on the circulant graph: the vector is cut in blocks, and in every round every rank
 * sends one and receives one, to and from ranks whose distances come round in turns of ceil(log2 p). After
 * ceil(log2 p) - 1 + (number of blocks) rounds all have all: the fewest possible for any p, where a chain needs p
 * rounds to fill and a binomial tree keeps most links idle. Reduce is the same backwards, with partial sums.
 *
 * Who sends which block when is computed by each rank for itself in O(log^2 p) steps (patterns.c). Four blocks per
 *   round of a turn: the root sends (5 L - 1) / (4 L) n, at most a quarter more than n; slices do the rest.
 * Sources: Traeff, Round-optimal n-block broadcast schedules in logarithmic time, arXiv 2312.11236; Optimal broadcast
 *   schedules in logarithmic time with applications to broadcast, all-broadcast, reduction and all-reduction, arXiv
 *   2407.18004. */
#include "algos/builders.h"
#include "algos/patterns.h"

void hkt__build_broadcast_blocks(struct hkt__builder *b)
{
    const int v = hkt__vrank(b), count = hkt__block_count(b->nranks);
    const struct hkt__blocks blocks = hkt__blocks(b->nranks, v, count);

    hkt__set_cuts(b, count);
    for (int i = blocks.first; i < blocks.end; i++) {
        const struct hkt__block_round round = hkt__block_round(&blocks, i);

        if (round.send >= 0)
            hkt__send(b, hkt__rank_at(b, round.skip), 0, v == 0 ? hkt__in(b, round.send) : hkt__out(b, round.send));
        if (round.receive >= 0)
            hkt__recv(b, hkt__rank_at(b, -round.skip), 0, hkt__out(b, round.receive));
    }
    if (v == 0)
        hkt__copy(b, 0, hkt__out_all(b), hkt__in_all(b));
}

/* Partial sums lie in OUT at the root and in scratch elsewhere; a block without any is its input. */
void hkt__build_reduce_blocks(struct hkt__builder *b)
{
    const int v = hkt__vrank(b), count = hkt__block_count(b->nranks);
    const struct hkt__blocks blocks = hkt__blocks(b->nranks, v, count);
    uint64_t summed = 0; /* by block */

    hkt__set_cuts(b, count);
    hkt__set_scratch(b, b->nranks > 2 ? count : 0); /* of two ranks none passes anything on */
    for (int i = blocks.end - 1; i >= blocks.first; i--) {
        const struct hkt__block_round round = hkt__block_round(&blocks, i); /* what goes the other way */

        if (round.send >= 0) {
            const struct hkt__operand in = hkt__in(b, round.send);
            const struct hkt__operand sum = v == 0 ? hkt__out(b, round.send) : hkt__scratch(b, round.send, in);

            hkt__recv_reduce(b, hkt__rank_at(b, round.skip), 0, sum, (summed >> round.send & 1) != 0 ? sum : in);
            summed |= UINT64_C(1) << round.send;
        }
        if (round.receive >= 0) {
            const struct hkt__operand in = hkt__in(b, round.receive);

            hkt__send(b, hkt__rank_at(b, -round.skip), 0,
                      (summed >> round.receive & 1) != 0 ? hkt__scratch(b, round.receive, in) : in);
        }
    }
}
