/* Sums in rank order over messages: whoever sums a chunk receives every input of it aside and adds them up in one step,
 * rank 0's first. One association and one rounding whatever the algorithm, size or transport: what HOCKET_DETERMINISTIC
 * asks for (docs/numerics.md).
 *
 * Reduce-scatter: every block straight to the rank it is for: one round, (p-1)/p n, the least possible; p-1 slots of
 *   scratch, which slices bound. All-reduce: the same with chunk r for rank r, then everybody sends its sum to
 *   everybody. Reduce: the same, then everybody sends its sum to the root. Two rounds, 2(p-1)/p n.
 * Source: direct from the definition; compare the two-shot algorithm of direct.c. */
#include "algos/builders.h"

#include "core/mem.h"

/* sum = chunk `rank` of all ranks' IN, in rank order; p-1 slots hold those of the others. */
static void sum_own_chunk(struct hkt__builder *b, struct hkt__operand sum)
{
    const int p = b->nranks, r = b->rank;
    const struct hkt__operand own = hkt__in(b, r);
    struct hkt__arg *args = hkt__args_new(b);

    if (args == NULL)
        return;
    for (int k = 1; k < p; k++)
        hkt__send(b, hkt__rank_at(b, k), 0, hkt__in(b, r + k));
    args[r] = hkt__at(r, own);
    for (int k = 1; k < p; k++) {
        const int peer = hkt__rank_at(b, -k);

        args[peer] = hkt__at(r, hkt__scratch(b, k - 1, own));
        hkt__recv(b, peer, 0, args[peer].x);
    }
    hkt__reduce(b, 0, sum, args, p);
    hkt__free(args);
}

void hkt__build_reduce_scatter_ordered(struct hkt__builder *b)
{
    sum_own_chunk(b, hkt__out(b, 0));
}

void hkt__build_all_reduce_ordered(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;

    hkt__set_cuts(b, p);
    sum_own_chunk(b, hkt__out(b, r));
    for (int k = 1; k < p; k++) {
        hkt__send(b, hkt__rank_at(b, k), 0, hkt__out(b, r));
        hkt__recv(b, hkt__rank_at(b, -k), 0, hkt__out(b, r - k));
    }
}

void hkt__build_reduce_ordered(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;

    hkt__set_cuts(b, p);
    hkt__set_scratch(b, p); /* the root needs no slot for its sum, but all ranks reserve alike */
    if (r != b->root) {
        const struct hkt__operand sum = hkt__scratch(b, p - 1, hkt__in(b, r));

        sum_own_chunk(b, sum);
        hkt__send(b, b->root, 0, sum);
        return;
    }
    sum_own_chunk(b, hkt__out(b, r));
    for (int k = 1; k < p; k++)
        hkt__recv(b, hkt__rank_at(b, -k), 0, hkt__out(b, r - k));
}
