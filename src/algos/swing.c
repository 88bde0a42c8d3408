/* Swing all-reduce: halving, then doubling, like Rabenseifner's, with partners 1, 1, 3, 5, 11, ... ranks away,
 * alternately ahead and behind, instead of 1, 2, 4, 8, ...: on rings and tori, where a message occupies every link on
 * its way, the large first exchanges stay short. Powers of two.
 *
 * Chunks go by the ranks' places (hkt__swing_place), so that what a rank can still reach is one range.
 * Cost 2 log2 p a + 2(p-1)/p n b. Source: De Sensi et al., Swing: short-cutting rings for higher bandwidth allreduce,
 *   NSDI 2024, arXiv 2401.09356. */
#include "algos/builders.h"
#include "algos/patterns.h"

void hkt__build_all_reduce_swing(struct hkt__builder *b)
{
    const int p = b->nranks, place = hkt__swing_place(p, b->rank);
    enum hkt__buf sums = HKT__IN; /* where the partial sums are before the first exchange */
    int step = 0;

    hkt__set_cuts(b, p);
    for (int count = p / 2; count > 0; count /= 2, step++) {
        const int partner = hkt__swing_partner(p, b->rank, step), keep = place / count * count, give = keep ^ count;

        hkt__send(b, partner, 0, hkt__range(b, sums, give, 1, count));
        hkt__recv_reduce(b, partner, 0, hkt__range(b, HKT__OUT, keep, 1, count), hkt__range(b, sums, keep, 1, count));
        sums = HKT__OUT;
    }
    for (int count = 1; count < p; count *= 2) {
        const int partner = hkt__swing_partner(p, b->rank, --step), have = place / count * count;

        hkt__send(b, partner, 0, hkt__range(b, HKT__OUT, have, 1, count));
        hkt__recv(b, partner, 0, hkt__range(b, HKT__OUT, have ^ count, 1, count));
    }
}
