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

#endif
