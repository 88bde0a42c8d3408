/* Recursive doubling and halving: in each of log2 p rounds rank r exchanges with the rank whose number differs in one
 * bit. All-gather doubles what a rank has, reduce-scatter halves what it still has to do, both for powers of two.
 *
 * All-reduce serves any p by folding: with P the largest power of two <= p, each of the first p-P even ranks hands its
 *   input to its odd neighbour, the P others go on, and the result is handed back.
 * Recursive doubling exchanges whole vectors: log2 P rounds of n. Rabenseifner exchanges halves, quarters, ... and
 *   mirrors them: 2 log2 P rounds, 2(P-1)/P n. Folding adds two rounds and n bytes on the ranks it concerns.
 * Sources: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19(1),
 *   2005; Rabenseifner, Optimization of collective reduction operations, ICCS 2004. */
#include "algos/builders.h"
#include "algos/patterns.h"

static struct hkt__operand in_part(struct hkt__builder *b, int first, int count)
{
    return hkt__range(b, HKT__IN, first, 1, count);
}

static struct hkt__operand out_part(struct hkt__builder *b, int first, int count)
{
    return hkt__range(b, HKT__OUT, first, 1, count);
}

/* A rank that takes no part in the rounds: its odd neighbour stands in for it. */
static void be_guest(struct hkt__builder *b)
{
    hkt__send(b, b->rank + 1, 0, hkt__in_all(b));
    hkt__recv(b, b->rank + 1, 0, hkt__out_all(b));
}

/* A rank sends its sum while it receives the partner's, so the new sum must go to other memory, or no message could
 * leave before one has arrived: OUT and scratch take turns, such that the last sum lands in OUT. In place an odd number
 * of rounds would begin in the memory it sends; that round alone receives aside and adds then. */
static bool first_lands_in_out(const struct hkt__fold *fold)
{
    bool in_out = true;

    for (int bit = 2; bit < fold->survivors; bit *= 2)
        in_out = !in_out;
    return in_out;
}

struct hkt__operand hkt__doubling_start(struct hkt__builder *b, const struct hkt__fold *fold)
{
    return b->in_place || !first_lands_in_out(fold) ? hkt__out_all(b) : hkt__scratch(b, 0, hkt__in_all(b));
}

void hkt__double_sums(struct hkt__builder *b, const struct hkt__fold *fold, int stride, struct hkt__operand sum)
{
    const struct hkt__operand out = hkt__out_all(b), aside = hkt__scratch(b, 0, hkt__in_all(b));
    bool sum_in_out = sum.buf == HKT__OUT || (sum.buf == HKT__IN && b->in_place);
    bool next_in_out = first_lands_in_out(fold);

    for (int bit = 1; bit < fold->survivors; bit *= 2, next_in_out = !next_in_out) {
        const int partner = hkt__fold_rank(fold, fold->index ^ bit) * stride;
        const struct hkt__operand next = next_in_out ? out : aside;

        hkt__send(b, partner, 0, sum);
        if (sum_in_out && next_in_out) {
            hkt__recv(b, partner, 0, aside);
            hkt__reduce(b, 0, out, (struct hkt__arg[]){ hkt__at(b->rank, out), hkt__at(b->rank, aside) }, 2);
        } else {
            hkt__recv_reduce(b, partner, 0, next, sum);
        }
        sum = next;
        sum_in_out = next_in_out;
    }
}

void hkt__build_all_reduce_recursive_doubling(struct hkt__builder *b)
{
    const struct hkt__fold fold = hkt__fold(b->nranks, b->rank);

    struct hkt__operand sum = hkt__in_all(b);

    hkt__set_scratch(b, 1); /* guests need none, but all ranks reserve alike */
    if (fold.index < 0) {
        be_guest(b);
        return;
    }
    if (fold.has_guest) {
        sum = hkt__doubling_start(b, &fold);
        hkt__recv_reduce(b, b->rank - 1, 0, sum, hkt__in_all(b));
    }
    hkt__double_sums(b, &fold, 1, sum);
    if (fold.has_guest)
        hkt__send(b, b->rank - 1, 0, hkt__out_all(b));
}

void hkt__build_all_reduce_rabenseifner(struct hkt__builder *b)
{
    const struct hkt__fold fold = hkt__fold(b->nranks, b->rank);
    enum hkt__buf sums = HKT__IN; /* where the partial sums are before the first exchange */
    int first = 0, count = fold.survivors, s = fold.index;

    hkt__set_cuts(b, fold.survivors);
    if (s < 0) {
        be_guest(b);
        return;
    }
    if (fold.has_guest) {
        hkt__recv_reduce(b, b->rank - 1, 0, hkt__out_all(b), hkt__in_all(b));
        sums = HKT__OUT;
    }
    for (int bit = 1; bit < fold.survivors; bit *= 2) {
        const int partner = hkt__fold_rank(&fold, s ^ bit);

        count /= 2;
        const int keep = s & bit ? first + count : first, give = s & bit ? first : first + count;

        hkt__send(b, partner, 0, hkt__range(b, sums, give, 1, count));
        hkt__recv_reduce(b, partner, 0, out_part(b, keep, count), hkt__range(b, sums, keep, 1, count));
        first = keep;
        sums = HKT__OUT;
    }
    for (int bit = fold.survivors / 2; bit > 0; bit /= 2) {
        const int partner = hkt__fold_rank(&fold, s ^ bit), other = s & bit ? first - count : first + count;

        hkt__send(b, partner, 0, out_part(b, first, count));
        hkt__recv(b, partner, 0, out_part(b, other, count));
        first = s & bit ? other : first;
        count *= 2;
    }
    if (fold.has_guest)
        hkt__send(b, b->rank - 1, 0, hkt__out_all(b));
}

/* Blocks still to be reduced here, as `count` from `first` on: the half with this rank's bit, then a quarter, ... Their
 * partial sums lie in slot (block mod p/2), the last one goes to OUT. */
void hkt__build_reduce_scatter_recursive_halving(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;
    int first = 0;

    for (int count = p / 2; count > 0; count /= 2) {
        const int keep = r & count ? first + count : first, give = r & count ? first : first + count;
        struct hkt__operand given = in_part(b, give, count), kept = in_part(b, keep, count), sum;

        if (count < p / 2) {
            given = hkt__scratch(b, give % (p / 2), given);
            kept = hkt__scratch(b, keep % (p / 2), kept);
        }
        sum = count == 1 ? hkt__out(b, 0) : hkt__scratch(b, keep % (p / 2), in_part(b, keep, count));
        hkt__send(b, r ^ count, 0, given);
        hkt__recv_reduce(b, r ^ count, 0, sum, kept);
        first = keep;
    }
}

void hkt__build_all_gather_recursive_doubling(struct hkt__builder *b)
{
    const int r = b->rank;

    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, 0));
    for (int count = 1; count < b->nranks; count *= 2) {
        const int first = r & ~(count - 1);

        hkt__send(b, r ^ count, 0, count == 1 ? hkt__in(b, 0) : out_part(b, first, count));
        hkt__recv(b, r ^ count, 0, out_part(b, first ^ count, count));
    }
}
