/* Exchange: every rank sends its whole input to every other and adds up all of them in rank order. One round, on any
 * transport: for the smallest vectors on few ranks, where a message carries its payload inline and a second round costs
 * more than p-1 messages in the first. 16- and 8-bit types are rounded once.
 *
 * Cost a + (p-1) n b per rank, (p-1) n scratch. Source: direct from the definition. */
#include "algos/builders.h"

#include "core/mem.h"

void hkt__build_all_reduce_exchange(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;
    const struct hkt__operand in = hkt__in_all(b);
    struct hkt__arg *args = hkt__args_new(b);

    if (args == NULL)
        return;
    args[r] = hkt__at(r, in);
    for (int k = 1; k < p; k++)
        hkt__send(b, hkt__rank_at(b, k), 0, in);
    for (int k = 1; k < p; k++) {
        const int peer = hkt__rank_at(b, -k);

        args[peer] = hkt__at(r, hkt__scratch(b, k - 1, in));
        hkt__recv(b, peer, 0, args[peer].x);
    }
    hkt__reduce(b, 0, hkt__out_all(b), args, p);
    hkt__free(args);
}
