/* Direct algorithms on the users' own buffers, for ranks that are threads of one process: nothing is staged. Each rank
 * signals which part of its buffers another may use, and before it ends takes that part back by waiting for the other's
 * signal: so the caller never sees a buffer that a peer still touches.
 *
 * Memory traffic is the least possible: every input is read once and every output written once (two-shot all-reduce:
 *   rank r reads chunk r of all inputs and writes the sum to all outputs).
 * In place is served where no rank touches a chunk that another one changes: two-shot, reduce-scatter and the all-gather that
 *   writes (chunk r is rank r's alone, everywhere) and the one that reads; not one-shot and all-to-all.
 * Source: derived; the same idea as XPMEM-based collectives, e.g. Open MPI's XHC. */
#include "algos/builders.h"
#include "algos/formulas.h"

#include "core/mem.h"

/* What rank `peer` may use of this rank's memory; the other side's view of it is the builder's business. */
typedef struct hkt__operand lent_fn(struct hkt__builder *b, int peer);

static struct hkt__operand whole_in(struct hkt__builder *b, int peer)
{
    (void)peer;
    return hkt__in_all(b);
}

static struct hkt__operand in_of_peer(struct hkt__builder *b, int peer)
{
    return hkt__in(b, peer);
}

/* In IN the peer reads, in OUT it writes the same chunk: one signal stands for both. */
static struct hkt__operand out_of_peer(struct hkt__builder *b, int peer)
{
    return hkt__out(b, peer);
}

static void lend(struct hkt__builder *b, lent_fn *lent)
{
    for (int k = 1; k < b->nranks; k++)
        hkt__signal(b, hkt__rank_at(b, k), 0, lent(b, hkt__rank_at(b, k)));
    for (int k = 1; k < b->nranks; k++)
        hkt__wait(b, hkt__rank_at(b, -k), 0, hkt__nothing());
}

static void take_back(struct hkt__builder *b, lent_fn *lent)
{
    for (int k = 1; k < b->nranks; k++)
        hkt__signal(b, hkt__rank_at(b, k), 0, hkt__nothing());
    for (int k = 1; k < b->nranks; k++)
        hkt__wait(b, hkt__rank_at(b, -k), 0, lent(b, hkt__rank_at(b, -k)));
}

/* y = x of all ranks, in rank order. */
static void reduce_all(struct hkt__builder *b, struct hkt__operand y, struct hkt__operand x)
{
    struct hkt__arg *args = hkt__args_new(b);

    if (args == NULL)
        return;
    for (int i = 0; i < b->nranks; i++)
        args[i] = hkt__at(i, x);
    hkt__reduce(b, 0, y, args, b->nranks);
    hkt__free(args);
}

void hkt__build_all_reduce_one_shot_user(struct hkt__builder *b)
{
    lend(b, whole_in);
    reduce_all(b, hkt__out_all(b), hkt__in_all(b));
    take_back(b, whole_in);
}

void hkt__build_all_reduce_two_shot_user(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;
    struct hkt__arg *to;

    hkt__set_cuts(b, p);
    to = hkt__args_new(b);
    if (to == NULL)
        return;
    for (int k = 1; k < p; k++)
        to[k - 1] = hkt__at(hkt__rank_at(b, k), hkt__out(b, r));
    lend(b, out_of_peer);
    reduce_all(b, hkt__out(b, r), hkt__in(b, r));
    hkt__write(b, 0, to, p - 1, hkt__out(b, r));
    take_back(b, out_of_peer);
    hkt__free(to);
}

void hkt__build_reduce_scatter_direct_user(struct hkt__builder *b)
{
    lend(b, in_of_peer);
    reduce_all(b, hkt__out(b, 0), hkt__in(b, b->rank));
    take_back(b, in_of_peer);
}

void hkt__build_all_gather_direct_user(struct hkt__builder *b)
{
    lend(b, whole_in);
    hkt__copy(b, 0, hkt__out(b, b->rank), hkt__in(b, 0));
    for (int k = 1; k < b->nranks; k++) {
        const int owner = hkt__rank_at(b, k);
        const struct hkt__arg theirs = hkt__at(owner, hkt__in(b, 0));

        hkt__reduce(b, 0, hkt__out(b, owner), &theirs, 1);
    }
    take_back(b, whole_in);
}

void hkt__build_all_to_all_direct_user(struct hkt__builder *b)
{
    const int r = b->rank;

    lend(b, in_of_peer);
    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, r));
    for (int k = 1; k < b->nranks; k++) {
        const int source = hkt__rank_at(b, k);
        const struct hkt__arg theirs = hkt__at(source, hkt__in(b, r));

        hkt__reduce(b, 0, hkt__out(b, source), &theirs, 1);
    }
    take_back(b, in_of_peer);
}

/* Writing instead of reading: a rank's block comes from memory once, read by its own core, however many want it; and a system call
 * that writes is the faster one beyond the caches. Below, a block that was read is where it will be used. */
void hkt__build_all_gather_write_user(struct hkt__builder *b)
{
    const int p = b->nranks;
    struct hkt__arg *to = hkt__args_new(b);

    if (to == NULL)
        return;
    for (int k = 1; k <= p; k++)
        to[k - 1] = hkt__at(hkt__rank_at(b, k), hkt__out(b, b->rank));
    lend(b, out_of_peer);
    hkt__write(b, 0, to, p, hkt__in(b, 0));
    take_back(b, out_of_peer);
    hkt__free(to);
}

void hkt__build_all_to_all_write_user(struct hkt__builder *b)
{
    const int r = b->rank;

    lend(b, out_of_peer);
    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, r));
    for (int k = 1; k < b->nranks; k++) {
        const int reader = hkt__rank_at(b, k);
        const struct hkt__arg theirs = hkt__at(reader, hkt__out(b, r));

        hkt__write(b, 0, &theirs, 1, hkt__in(b, reader));
    }
    take_back(b, out_of_peer);
}

/* The root lends its memory first and moves its own block while the others do theirs. Where all want the same bytes, to so
 * many at once: copies by system calls slow each other down at the same pages (Chakraborty, Subramoni, Panda: contention-aware
 * kernel-assisted collectives, CLUSTER 2017). Not so where each has pages of its own: gather and scatter of 96 KB to 4.7 MB took
 * 1.3 to 2.1 times as long with 4 of 7 or 8 of 15 at once (two cores, 2026-11-30). */
static void lend_from_root(struct hkt__builder *b, lent_fn *lent, struct hkt__operand own, struct hkt__operand own_in)
{
    const int at_once = lent == whole_in ? hkt__borrowers(b->nranks) : b->nranks - 1;

    for (int k = 1; k < b->nranks + at_once; k++) {
        if (k > at_once)
            hkt__wait(b, hkt__rank_at(b, k - at_once), 0, lent(b, hkt__rank_at(b, k - at_once)));
        if (k < b->nranks)
            hkt__signal(b, hkt__rank_at(b, k), 0, lent(b, hkt__rank_at(b, k)));
        if (k == at_once)
            hkt__copy(b, 0, own, own_in);
    }
}

static void read_from_root(struct hkt__builder *b, int chunk)
{
    const struct hkt__arg theirs = hkt__chunk_at(b, b->root, HKT__IN, chunk);

    hkt__wait(b, b->root, 0, hkt__nothing());
    hkt__reduce(b, 0, hkt__out(b, 0), &theirs, 1);
    hkt__signal(b, b->root, 0, hkt__nothing());
}

void hkt__build_broadcast_direct_user(struct hkt__builder *b)
{
    if (b->rank == b->root)
        lend_from_root(b, whole_in, hkt__out(b, 0), hkt__in(b, 0));
    else
        read_from_root(b, 0);
}

/* The rank at distance v after the root reads all chunks but v, and the root writes that one to it: so every core moves
 * (p - 1) / p n, where that of the root would else wait while the others move n. The root copies its own OUT last: others wait
 * for what it writes. */
static struct hkt__operand all_but_one(struct hkt__builder *b, int v)
{
    return hkt__range(b, HKT__IN, v + 1, 1, b->nranks - 1);
}

static void share_as_root(struct hkt__builder *b)
{
    const int p = b->nranks, at_once = hkt__borrowers(p);

    for (int k = 1; k <= at_once; k++)
        hkt__signal(b, hkt__rank_at(b, k), 0, all_but_one(b, k));
    for (int k = 1; k < p; k++) {
        const struct hkt__arg theirs = hkt__chunk_at(b, hkt__rank_at(b, k), HKT__OUT, k);

        hkt__wait(b, hkt__rank_at(b, k), 0, hkt__nothing());
        hkt__write(b, 0, &theirs, 1, hkt__in(b, k));
    }
    hkt__copy(b, 0, hkt__out_all(b), hkt__in_all(b));
    for (int k = 1; k < p; k++) {
        hkt__wait(b, hkt__rank_at(b, k), 0, all_but_one(b, k));
        if (k + at_once < p)
            hkt__signal(b, hkt__rank_at(b, k + at_once), 0, all_but_one(b, k + at_once));
    }
    for (int k = 1; k < p; k++)
        hkt__signal(b, hkt__rank_at(b, k), 0, hkt__nothing());
}

void hkt__build_broadcast_shared_user(struct hkt__builder *b)
{
    const int v = hkt__vrank(b);

    hkt__set_cuts(b, b->nranks);
    if (v == 0) {
        share_as_root(b);
        return;
    }
    struct hkt__arg theirs = hkt__chunk_at(b, b->root, HKT__IN, v + 1);

    theirs.x.count = b->nranks - 1;
    hkt__signal(b, b->root, 0, hkt__out(b, v));
    hkt__wait(b, b->root, 0, hkt__nothing());
    hkt__reduce(b, 0, hkt__range(b, HKT__OUT, v + 1, 1, b->nranks - 1), &theirs, 1);
    hkt__signal(b, b->root, 0, hkt__nothing());
    hkt__wait(b, b->root, 0, hkt__out(b, v));
}

void hkt__build_scatter_direct_user(struct hkt__builder *b)
{
    if (b->rank == b->root)
        lend_from_root(b, in_of_peer, hkt__out(b, 0), hkt__in(b, b->root));
    else
        read_from_root(b, b->rank);
}

/* Every rank writes its own block: at the root alone they would come one after the other. */
void hkt__build_gather_direct_user(struct hkt__builder *b)
{
    if (b->rank == b->root) {
        lend_from_root(b, out_of_peer, hkt__out(b, b->root), hkt__in(b, 0));
        return;
    }
    const struct hkt__arg theirs = hkt__chunk_at(b, b->root, HKT__OUT, b->rank);

    hkt__wait(b, b->root, 0, hkt__nothing());
    hkt__write(b, 0, &theirs, 1, hkt__in(b, 0));
    hkt__signal(b, b->root, 0, hkt__nothing());
}
