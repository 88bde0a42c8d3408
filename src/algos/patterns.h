/* Index arithmetic that several algorithms share: who talks to whom, and about which chunks. Pure functions of
 * (p, rank); nothing here knows a schedule. */
#ifndef HOCKET_ALGOS_PATTERNS_H
#define HOCKET_ALGOS_PATTERNS_H

#include <stdbool.h>

/* Binomial tree on ranks 0..p-1 with root 0: the parent of v is v without its lowest set bit, so that the subtree of v
 * is the consecutive range [v, v + size). */

/** Ranks in the subtree of v. */
int hkt__binomial_size(int nranks, int v);
/** Parent of v; -1 for the root. */
int hkt__binomial_parent(int v);
/** Children of v are v + 2^k for k in [0, this). Child k has the k-th smallest subtree. */
int hkt__binomial_children(int nranks, int v);
/** Largest subtree of any rank but the root. */
int hkt__binomial_size_max(int nranks);

/* Halving of the circulant algorithms (Traeff): widths p, ceil(p/2), ... down to 1. */
struct hkt__halving {
    int rounds;    /* ceil(log2 p) */
    int width[32]; /* [0, rounds]: width[0] = p, width[rounds] = 1 */
};
struct hkt__halving hkt__halving(int nranks);
/** The same to another base than 2: widths p, ceil(p/radix), ... */
struct hkt__halving hkt__dividing(int nranks, int radix);

/* Folding to a power of two: of the first 2 * extra ranks the even ones hand their input to the odd ones and wait. */
struct hkt__fold {
    int survivors;  /* largest power of two <= p */
    int extra;      /* p - survivors */
    int index;      /* of this rank among the survivors; -1: it has handed its input on */
    bool has_guest; /* a survivor that also holds the input of rank - 1 */
};
struct hkt__fold hkt__fold(int nranks, int rank);
/** Rank of a survivor by its index. */
int hkt__fold_rank(const struct hkt__fold *fold, int index);

/* Binary tree of logarithmic depth on ranks 0..p-1 with root 0, whose leaves are the odd ranks; and its twin, in which
 * leaves and inner ranks change places (but for ranks 0 and 1 when p is odd). The root has one child, the others up to
 * two; the deepest rank is ceil(log2 p) edges below the root. */
struct hkt__btree {
    int parent;      /* -1 at the root */
    int children[2]; /* the later one has the deeper subtree, or both are alike */
    int nchildren;
};
struct hkt__btree hkt__btree(int nranks, int rank);
/** The twin: mirrored (even p) or shifted by one (odd p). */
struct hkt__btree hkt__btree_twin(int nranks, int rank);
/** A twin whose root is 0 as well: ranks 1.. mirrored (odd p) or shifted by one (even p). No other rank is inner in
 *  both. */
struct hkt__btree hkt__btree_twin_at_root(int nranks, int rank);

/* Swing (De Sensi et al.): in step s < log2 p an even rank meets the one rho(s) = (1 - (-2)^(s+1)) / 3 ahead: 1, -1,
 * 3, -5, 11, ...; odd ranks the other way. p is a power of two. */

/** Whom rank meets in step s. */
int hkt__swing_partner(int nranks, int rank, int step);
/** A numbering such that the ranks that rank can reach in steps s, s+1, ... are those whose places differ from its
 *  own in the last log2 p - s bits only. */
int hkt__swing_place(int nranks, int rank);

/* Broadcast of blocks 0..count-1 on the circulant graph (Traeff): ceil(log2 p) - 1 + count rounds, the fewest
 * possible for ranks that send and receive one block a round. In round i a rank sends to the one `skip` ahead and
 * receives from the one `skip` behind; skips come round after ceil(log2 p) rounds. Ranks count from the root, 0. */
struct hkt__blocks {
    struct hkt__halving halving; /* skips are its widths, from 1 up */
    int nranks, rank, count;
    int first, end;              /* rounds are [first, end) */
    int sends[32], receives[32]; /* by round modulo ceil(log2 p): block, less what the round adds */
};
/** Blocks that suit p ranks: 4 ceil(log2 p), so that the L - 1 rounds at the end matter little; at most 64. */
int hkt__block_count(int nranks);
struct hkt__blocks hkt__blocks(int nranks, int rank, int count);
/** One round; -1: no block. */
struct hkt__block_round {
    int skip, send, receive;
} hkt__block_round(const struct hkt__blocks *blocks, int round);

/** The largest divisor of p that is not above its square root: 1 for primes. */
int hkt__near_square(int nranks);

#endif
