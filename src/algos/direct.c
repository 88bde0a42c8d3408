/* Direct algorithms on shared scratch: ranks that can address each other's scratch memory put there what others need,
 * signal, and read what they want where it lies. No message carries data.
 *
 * One-shot all-reduce: everybody reads all inputs: one round, (p-1) n read. Two-shot: rank r reads and sums chunk r,
 *   then everybody reads the p results: two rounds, 2(p-1)/p n. The others are half of one or the other.
 * A sum takes its arguments in rank order on every rank, and 16- and 8-bit types are rounded once.
 * A peer's scratch stays readable until the end of the slice, so nothing is handed back.
 * Sources: the traffic counts follow from the definitions; compare the one- and two-shot kernels of inference
 *   libraries and the symmetric-memory kernels of NCCL. */
#include "algos/builders.h"

#include "core/bits.h"
#include "core/mem.h"

struct hkt__arg *hkt__args_new(struct hkt__builder *b)
{
    struct hkt__arg *args = hkt__calloc((size_t)b->nranks, sizeof *args);

    if (args == NULL)
        hkt__builder_fail(b, HKT_ERR_NOMEM, "no memory for the arguments of a reduction");
    return args;
}

/* Tell every other rank that x is there to be read, and wait until all have told this rank. */
static void publish(struct hkt__builder *b, struct hkt__operand x)
{
    for (int k = 1; k < b->nranks; k++)
        hkt__signal(b, hkt__rank_at(b, k), 0, x);
    for (int k = 1; k < b->nranks; k++)
        hkt__wait(b, hkt__rank_at(b, -k), 0, hkt__nothing());
}

/* Where rank `holder` has put its IN chunk for rank `reader`: p-1 slots, in rank order after the holder. */
static struct hkt__operand parcel(struct hkt__builder *b, int holder, int reader, struct hkt__operand like)
{
    return hkt__scratch(b, hkt__mod((int64_t)reader - holder - 1, b->nranks), like);
}

/* Put the chunks of all others in scratch, hand each to its reader, and wait for theirs. */
static void publish_parcels(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;
    const struct hkt__operand others = hkt__range(b, HKT__IN, r + 1, 1, p - 1);

    hkt__copy(b, 0, hkt__scratch(b, 0, others), others);
    for (int k = 1; k < p; k++) {
        const int reader = hkt__rank_at(b, k);

        hkt__signal(b, reader, 0, parcel(b, r, reader, hkt__in(b, reader)));
    }
    for (int k = 1; k < p; k++)
        hkt__wait(b, hkt__rank_at(b, -k), 0, hkt__nothing());
}

/* sum = this rank's chunk of all inputs, in rank order. */
static void reduce_parcels(struct hkt__builder *b, struct hkt__operand sum)
{
    const int r = b->rank;
    const struct hkt__operand own = hkt__in(b, r);
    struct hkt__arg *args = hkt__args_new(b);

    if (args == NULL)
        return;
    for (int i = 0; i < b->nranks; i++)
        args[i] = hkt__at(i, i == r ? own : parcel(b, i, r, own));
    hkt__reduce(b, 0, sum, args, b->nranks);
    hkt__free(args);
}

void hkt__build_all_reduce_one_shot(struct hkt__builder *b)
{
    const struct hkt__operand in = hkt__in_all(b), shown = hkt__scratch(b, 0, in);
    struct hkt__arg *args = hkt__args_new(b);

    if (args == NULL)
        return;
    for (int i = 0; i < b->nranks; i++)
        args[i] = hkt__at(i, shown);
    hkt__copy(b, 0, shown, in);
    publish(b, shown);
    hkt__reduce(b, 0, hkt__out_all(b), args, b->nranks);
    hkt__free(args);
}

void hkt__build_all_reduce_two_shot(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;

    hkt__set_cuts(b, p);
    const struct hkt__operand sum = hkt__scratch(b, p - 1, hkt__in(b, r));

    publish_parcels(b);
    reduce_parcels(b, sum);
    publish(b, sum);
    hkt__copy(b, 0, hkt__out(b, r), sum);
    for (int k = 1; k < p; k++) {
        const int owner = hkt__rank_at(b, k);
        const struct hkt__arg theirs = hkt__at(owner, hkt__scratch(b, p - 1, hkt__out(b, owner)));

        hkt__reduce(b, 0, hkt__out(b, owner), &theirs, 1);
    }
}

void hkt__build_reduce_scatter_direct(struct hkt__builder *b)
{
    publish_parcels(b);
    reduce_parcels(b, hkt__out(b, 0));
}

void hkt__build_all_gather_direct(struct hkt__builder *b)
{
    const struct hkt__operand own = hkt__in(b, 0), shown = hkt__scratch(b, 0, own);

    hkt__copy(b, 0, shown, own);
    publish(b, shown);
    hkt__copy(b, 0, hkt__out(b, b->rank), own);
    for (int k = 1; k < b->nranks; k++) {
        const int owner = hkt__rank_at(b, k);
        const struct hkt__arg theirs = hkt__at(owner, hkt__scratch(b, 0, hkt__out(b, owner)));

        hkt__reduce(b, 0, hkt__out(b, owner), &theirs, 1);
    }
}

void hkt__build_all_to_all_direct(struct hkt__builder *b)
{
    const int r = b->rank;

    publish_parcels(b);
    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, r));
    for (int k = 1; k < b->nranks; k++) {
        const int source = hkt__rank_at(b, k);
        const struct hkt__arg theirs = hkt__at(source, parcel(b, source, r, hkt__out(b, source)));

        hkt__reduce(b, 0, hkt__out(b, source), &theirs, 1);
    }
}

void hkt__build_broadcast_direct(struct hkt__builder *b)
{
    const struct hkt__operand out = hkt__out(b, 0), shown = hkt__scratch(b, 0, out);
    const struct hkt__arg theirs = hkt__at(b->root, shown);

    if (b->rank != b->root) {
        hkt__wait(b, b->root, 0, hkt__nothing());
        hkt__reduce(b, 0, out, &theirs, 1);
        return;
    }
    hkt__copy(b, 0, shown, hkt__in(b, 0));
    for (int k = 1; k < b->nranks; k++)
        hkt__signal(b, hkt__rank_at(b, k), 0, shown);
    hkt__copy(b, 0, out, hkt__in(b, 0));
}

void hkt__build_reduce_direct(struct hkt__builder *b)
{
    const struct hkt__operand in = hkt__in(b, 0), shown = hkt__scratch(b, 0, in);
    struct hkt__arg *args;

    if (b->rank != b->root) {
        hkt__copy(b, 0, shown, in);
        hkt__signal(b, b->root, 0, shown);
        return;
    }
    args = hkt__args_new(b);
    if (args == NULL)
        return;
    for (int i = 0; i < b->nranks; i++)
        args[i] = hkt__at(i, i == b->rank ? in : shown);
    for (int k = 1; k < b->nranks; k++)
        hkt__wait(b, hkt__rank_at(b, k), 0, hkt__nothing());
    hkt__reduce(b, 0, hkt__out(b, 0), args, b->nranks);
    hkt__free(args);
}
