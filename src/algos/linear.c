/* Linear gather and scatter: the root exchanges with every rank directly. One round, no forwarding and no scratch; best
 * for large blocks. The root handles p-1 messages. Source: direct from the definition. */
#include "algos/builders.h"

void hkt__build_gather_linear(struct hkt__builder *b)
{
    if (b->rank != b->root) {
        hkt__send(b, b->root, 0, hkt__in(b, 0));
        return;
    }
    for (int k = 1; k < b->nranks; k++)
        hkt__recv(b, hkt__rank_at(b, k), 0, hkt__out(b, b->rank + k));
    hkt__copy(b, 0, hkt__out(b, b->rank), hkt__in(b, 0));
}

void hkt__build_scatter_linear(struct hkt__builder *b)
{
    if (b->rank != b->root) {
        hkt__recv(b, b->root, 0, hkt__out(b, 0));
        return;
    }
    for (int k = 1; k < b->nranks; k++)
        hkt__send(b, hkt__rank_at(b, k), 0, hkt__in(b, b->rank + k));
    hkt__copy(b, 0, hkt__out(b, 0), hkt__in(b, b->rank));
}
