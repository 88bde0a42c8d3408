/* Index arithmetic of the algorithms: see patterns.h. Trees follow the shapes of NCCL's double binary tree (lowest set
 * bit), halving follows Traeff (arXiv 2410.14234), as do schedules of blocks (arXiv 2312.11236, 2407.18004); swing: De
 * Sensi et al., arXiv 2401.09356. */
#include "algos/patterns.h"

#include <assert.h>

#include "core/bits.h"

int hkt__binomial_size(int nranks, int v)
{
    const int span = v & -v;

    return v == 0 || span > nranks - v ? nranks - v : span;
}

int hkt__binomial_parent(int v)
{
    return v == 0 ? -1 : v & (v - 1);
}

int hkt__binomial_children(int nranks, int v)
{
    return hkt__log2_ceil((unsigned)hkt__binomial_size(nranks, v));
}

int hkt__binomial_size_max(int nranks)
{
    int max = 0;

    for (int v = 1; v < nranks; v *= 2)
        if (hkt__binomial_size(nranks, v) > max)
            max = hkt__binomial_size(nranks, v);
    return max;
}

struct hkt__halving hkt__dividing(int nranks, int radix)
{
    struct hkt__halving dividing = { .width = { nranks } };
    int width = nranks;

    while (width > 1) {
        width = (width - 1) / radix + 1;
        dividing.width[++dividing.rounds] = width;
    }
    return dividing;
}

struct hkt__halving hkt__halving(int nranks)
{
    return hkt__dividing(nranks, 2);
}

struct hkt__fold hkt__fold(int nranks, int rank)
{
    const int survivors = 1 << hkt__log2_floor((unsigned)nranks), extra = nranks - survivors;
    const bool is_paired = rank < 2 * extra;

    return (struct hkt__fold){
        .survivors = survivors,
        .extra = extra,
        .index = !is_paired      ? rank - extra
                 : rank % 2 == 0 ? -1
                                 : rank / 2,
        .has_guest = is_paired && rank % 2 == 1,
    };
}

int hkt__fold_rank(const struct hkt__fold *fold, int index)
{
    assert(index >= 0 && index < fold->survivors);
    return index < fold->extra ? 2 * index + 1 : index + fold->extra;
}

static void add_child(struct hkt__btree *tree, int child)
{
    tree->children[tree->nchildren++] = child;
}

struct hkt__btree hkt__btree(int nranks, int rank)
{
    struct hkt__btree tree = { .parent = -1 };
    const int low = rank & -rank;

    if (rank == 0) {
        if (nranks > 1)
            add_child(&tree, 1 << hkt__log2_floor((unsigned)nranks - 1));
        return tree;
    }
    tree.parent = (rank ^ low) | (2 * low);
    if (tree.parent >= nranks)
        tree.parent = rank ^ low;
    for (int step = low / 2; step > 0; step /= 2) {
        if (rank + step < nranks) {
            add_child(&tree, rank + step);
            break;
        }
    }
    if (low > 1)
        add_child(&tree, rank - low / 2); /* always a full subtree */
    return tree;
}

struct hkt__btree hkt__btree_twin(int nranks, int rank)
{
    const bool mirror = nranks % 2 == 0;
    struct hkt__btree tree = hkt__btree(nranks, mirror ? nranks - 1 - rank : hkt__mod((int64_t)rank - 1, nranks));

    for (int i = 0; i < tree.nchildren; i++)
        tree.children[i] = mirror ? nranks - 1 - tree.children[i] : (tree.children[i] + 1) % nranks;
    if (tree.parent >= 0)
        tree.parent = mirror ? nranks - 1 - tree.parent : (tree.parent + 1) % nranks;
    return tree;
}

/* Of rank `rank` in the tree, whose ranks other than 0 have changed places: `at` is its place, `away` undoes that. */
static int twin_place(int nranks, int rank)
{
    return rank == 0 ? 0 : nranks % 2 == 1 ? nranks - rank : rank == 1 ? nranks - 1 : rank - 1;
}

static int twin_rank(int nranks, int place)
{
    return place == 0 ? 0 : nranks % 2 == 1 ? nranks - place : place == nranks - 1 ? 1 : place + 1;
}

struct hkt__btree hkt__btree_twin_at_root(int nranks, int rank)
{
    struct hkt__btree tree = hkt__btree(nranks, twin_place(nranks, rank));

    for (int i = 0; i < tree.nchildren; i++)
        tree.children[i] = twin_rank(nranks, tree.children[i]);
    if (tree.parent >= 0)
        tree.parent = twin_rank(nranks, tree.parent);
    return tree;
}

int hkt__swing_partner(int nranks, int rank, int step)
{
    const int64_t power = (int64_t)2 << step, ahead = (step % 2 == 0 ? 1 + power : 1 - power) / 3;

    return hkt__mod(rank % 2 == 0 ? rank + ahead : rank - ahead, nranks);
}

/* Two meetings take an even rank, at steps s and s+1, 2^(s+1) ranks away. So the even ranks that one can reach from
 * step s on are those that agree with it in the last s+1 bits, and the odd ones their partners: halves of even ranks
 * are told apart by ever higher bits, which makes the place of an even rank its bits in reverse. */
int hkt__swing_place(int nranks, int rank)
{
    const int steps = hkt__log2_floor((unsigned)nranks);
    const int even = steps == 0 || rank % 2 == 0 ? rank : hkt__swing_partner(nranks, rank, steps - 1);
    int place = 0;

    for (int bit = 1; bit < steps; bit++)
        place = 2 * place + (even >> bit & 1);
    return steps == 0 ? 0 : 2 * place + rank % 2;
}

static int skip_of(const struct hkt__halving *halving, int k)
{
    return halving->width[halving->rounds - k];
}

/* The block that a rank gets first: the largest skip of the sum of decreasing skips that makes up the rank; the root
 * has no such block. */
static int base_block(const struct hkt__halving *halving, int rank)
{
    for (int k = halving->rounds - 1; k >= 0; k--) {
        const int skip = skip_of(halving, k);

        if (rank == skip)
            return k;
        if (rank > skip)
            rank -= skip;
    }
    return halving->rounds;
}

/* Blocks come to a rank along sums of decreasing skips, and belong to the last skip of the sum. In the k-th round a
 * rank gets its block from skip k behind, which must have got it before: from a place that lies that far behind or
 * further. */
struct search {
    const struct hkt__halving *halving;
    int rank;      /* + p, so that the root lies a whole turn behind */
    int limit;     /* places found so far are at or beyond it */
    unsigned free; /* skips not used yet */
    int nfound;
    int *found; /* [rounds] skips */
};

/* Depth first over the sums that start with `at`; each level uses a smaller skip, so it is at most log2 p deep. */
static void search_from(struct search *s, int at, int skip_max)
{
    for (int e = skip_max; e >= 0 && s->nfound < s->halving->rounds; e--) {
        const int next = at + skip_of(s->halving, e);

        if ((s->free >> e & 1) == 0 || next > s->rank - skip_of(s->halving, s->nfound) || next >= s->limit)
            continue;
        if (next <= s->rank - skip_of(s->halving, s->nfound + 1))
            search_from(s, next, e - 1);
        if (s->nfound == s->halving->rounds || at > s->rank - skip_of(s->halving, s->nfound + 1))
            return;
        s->found[s->nfound++] = e;
        s->free &= ~(1u << e);
        s->limit = next;
    }
}

/* Blocks that a rank receives in rounds 0, 1, ...: its base block and, counted back from it, those of one turn
 * before. */
static void find_receives(const struct hkt__halving *halving, int rank, int *out_receives)
{
    const int nrounds = halving->rounds, nranks = halving->width[0], base = base_block(halving, rank);
    struct search search = { halving, nranks + rank, 2 * nranks, (2u << nrounds) - 1, 0, out_receives };

    search.free &= ~(1u << base);
    search_from(&search, 0, nrounds);
    assert(search.nfound == nrounds);
    for (int k = 0; k < nrounds; k++)
        out_receives[k] = out_receives[k] == nrounds ? base : out_receives[k] - nrounds;
}

int hkt__block_count(int nranks)
{
    return 4 * hkt__log2_ceil((unsigned)nranks);
}

struct hkt__blocks hkt__blocks(int nranks, int rank, int count)
{
    struct hkt__blocks blocks = { hkt__halving(nranks), nranks, rank, count, 0, 0, { 0 }, { 0 } };
    const int nrounds = blocks.halving.rounds;

    if (nrounds == 0)
        return blocks;
    blocks.first =
        (nrounds - (count + nrounds - 1) % nrounds) % nrounds; /* so that the last round is the last of its turn */
    blocks.end = blocks.first + count + nrounds - 1;
    find_receives(&blocks.halving, rank, blocks.receives);
    for (int k = 0; k < nrounds; k++) { /* what the receiver receives */
        int theirs[32];

        find_receives(&blocks.halving, (rank + skip_of(&blocks.halving, k)) % nranks, theirs);
        blocks.sends[k] = theirs[k];
    }
    return blocks;
}

/* Block numbers below 0 stand for nothing, those beyond the last for the last. */
static int block_in(const struct hkt__blocks *blocks, int number)
{
    return number < 0 ? -1 : number < blocks->count ? number : blocks->count - 1;
}

struct hkt__block_round hkt__block_round(const struct hkt__blocks *blocks, int round)
{
    const int k = round % blocks->halving.rounds, add = round - k - blocks->first;
    const int skip = skip_of(&blocks->halving, k);
    const bool is_to_root = (blocks->rank + skip) % blocks->nranks == 0;

    return (struct hkt__block_round){
        .skip = skip,
        .send = is_to_root ? -1 : block_in(blocks, blocks->sends[k] + add),
        .receive = blocks->rank == 0 ? -1 : block_in(blocks, blocks->receives[k] + add),
    };
}

int hkt__near_square(int nranks)
{
    int divisor = 1;

    for (int i = 2; i <= nranks / i; i++)
        if (nranks % i == 0)
            divisor = i;
    return divisor;
}
