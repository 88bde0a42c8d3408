/* Pairwise exchange: each rank sends every block straight to the rank it is for. p-1 rounds, (p-1)/p n, the least
 * possible, and no forwarding; serves uneven blocks as well.
 *
 * Round k sends to r+k and receives from r-k (modulo p). Reduce-scatter adds what arrives to its own block.
 * Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005. */
#include "algos/builders.h"

#include "core/bits.h"

void hkt__build_reduce_scatter_pairwise(struct hkt__builder *b)
{
    const int r = b->rank;

    for (int k = 1; k < b->nranks; k++) {
        hkt__send(b, hkt__rank_at(b, k), 0, hkt__in(b, r + k));
        hkt__recv_reduce(b, hkt__rank_at(b, -k), 0, hkt__out(b, 0), k == 1 ? hkt__in(b, r) : hkt__out(b, 0));
    }
}

/* In place, what two ranks exchange lies in the same memory on both sides, and neither could receive before it has
 * sent. So the lower rank of a pair receives aside (two slots in turn) and copies. Pairs with r + partner = k (mod p)
 * meet in round k: then both wait only for earlier rounds. */
static void all_to_all_in_place(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;
    int nused = 0;

    hkt__set_scratch(b, p < 3 ? 1 : 2);
    for (int k = 0; k < p; k++) {
        const int partner = hkt__mod((int64_t)k - r, p);
        const struct hkt__operand block = hkt__out(b, partner);

        if (partner == r)
            continue;
        hkt__send(b, partner, 0, block);
        if (r > partner) {
            hkt__recv(b, partner, 0, block);
        } else {
            const struct hkt__operand aside = hkt__scratch(b, nused++ % 2, block);

            hkt__recv(b, partner, 0, aside);
            hkt__copy(b, 0, block, aside);
        }
    }
}

void hkt__build_all_to_all_pairwise(struct hkt__builder *b)
{
    const int r = b->rank;

    if (b->in_place) {
        all_to_all_in_place(b);
        return;
    }
    for (int k = 1; k < b->nranks; k++) {
        hkt__send(b, hkt__rank_at(b, k), 0, hkt__in(b, r + k));
        hkt__recv(b, hkt__rank_at(b, -k), 0, hkt__out(b, r - k));
    }
    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, r));
}
