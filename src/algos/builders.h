/* Every builder: one function per row of the registry, and the phases that several of them are made of.
 * Inside a builder p >= 2; a single rank is served by hkt__algo_build. */
#ifndef HOCKET_ALGOS_BUILDERS_H
#define HOCKET_ALGOS_BUILDERS_H

#include "algos/registry.h"

/* ring.c */
hkt__build_fn hkt__build_all_reduce_ring, hkt__build_reduce_scatter_ring, hkt__build_all_gather_ring;
/* recursive.c */
hkt__build_fn hkt__build_all_reduce_recursive_doubling, hkt__build_all_reduce_rabenseifner;
hkt__build_fn hkt__build_reduce_scatter_recursive_halving, hkt__build_all_gather_recursive_doubling;
/* circulant.c */
hkt__build_fn hkt__build_all_reduce_circulant, hkt__build_reduce_scatter_circulant, hkt__build_all_gather_circulant;
/* double_tree.c */
hkt__build_fn hkt__build_all_reduce_double_tree, hkt__build_broadcast_double_tree, hkt__build_reduce_double_tree;
/* swing.c */
hkt__build_fn hkt__build_all_reduce_swing;
/* near_first.c */
hkt__build_fn hkt__build_all_reduce_near_first, hkt__build_reduce_scatter_near_first, hkt__build_all_gather_near_first;
/* blocks.c */
hkt__build_fn hkt__build_broadcast_blocks, hkt__build_reduce_blocks;
/* exchange.c */
hkt__build_fn hkt__build_all_reduce_exchange;
/* ordered.c */
hkt__build_fn hkt__build_all_reduce_ordered, hkt__build_reduce_scatter_ordered, hkt__build_reduce_ordered;
/* tree.c */
hkt__build_fn hkt__build_broadcast_binomial, hkt__build_reduce_binomial;
hkt__build_fn hkt__build_gather_binomial, hkt__build_scatter_binomial;
/* chain.c */
hkt__build_fn hkt__build_broadcast_chain, hkt__build_reduce_chain;
/* composed.c */
hkt__build_fn hkt__build_broadcast_scatter_all_gather, hkt__build_reduce_reduce_scatter_gather;
/* linear.c */
hkt__build_fn hkt__build_gather_linear, hkt__build_scatter_linear;
/* bruck.c */
hkt__build_fn hkt__build_all_gather_bruck, hkt__build_all_to_all_bruck;
/* hierarchical.c */
hkt__build_fn hkt__build_all_reduce_hierarchical, hkt__build_reduce_scatter_hierarchical;
hkt__build_fn hkt__build_all_gather_hierarchical, hkt__build_broadcast_hierarchical;
hkt__build_fn hkt__build_reduce_hierarchical, hkt__build_barrier_hierarchical;
/* leaders.c */
hkt__build_fn hkt__build_all_reduce_leaders, hkt__build_all_gather_leaders;
/* hierarchical_gather.c */
hkt__build_fn hkt__build_gather_hierarchical, hkt__build_scatter_hierarchical;
/* grid.c */
hkt__build_fn hkt__build_all_to_all_grid, hkt__build_all_to_all_hierarchical;
/* neighbor.c */
hkt__build_fn hkt__build_all_gather_neighbor_exchange;
/* pairwise.c */
hkt__build_fn hkt__build_reduce_scatter_pairwise, hkt__build_all_to_all_pairwise;
/* dissemination.c */
hkt__build_fn hkt__build_barrier_dissemination, hkt__build_barrier_flat;
/* direct.c */
hkt__build_fn hkt__build_all_reduce_one_shot, hkt__build_all_reduce_two_shot;
hkt__build_fn hkt__build_reduce_scatter_direct, hkt__build_all_gather_direct, hkt__build_all_to_all_direct;
hkt__build_fn hkt__build_broadcast_direct, hkt__build_reduce_direct;
/* direct_user.c */
hkt__build_fn hkt__build_all_reduce_one_shot_user, hkt__build_all_reduce_two_shot_user;
hkt__build_fn hkt__build_reduce_scatter_direct_user, hkt__build_all_gather_direct_user;
hkt__build_fn hkt__build_all_to_all_direct_user, hkt__build_broadcast_direct_user;
hkt__build_fn hkt__build_all_gather_write_user, hkt__build_all_to_all_write_user;
hkt__build_fn hkt__build_broadcast_shared_user;
hkt__build_fn hkt__build_gather_direct_user, hkt__build_scatter_direct_user;

/** Where a reduce-scatter phase keeps its partial results: in the chunks of OUT, or in slots of SCRATCH. */
enum hkt__place { HKT__PLACE_OUT, HKT__PLACE_SCRATCH };
/** Partials of `count` chunks, those `offset`, offset + 1, ... places after chunk `first`. */
struct hkt__operand hkt__partials(struct hkt__builder *b, enum hkt__place place, int first, int offset, int count);
/** Circulant reduce-scatter of p chunks of IN: this rank ends with chunk `first` reduced, in `result` (one chunk; it
 *  may be hkt__partials(b, place, first, 0, 1)). Rank r + d must pass first + d. */
void hkt__circulant_reduce_scatter(struct hkt__builder *b, enum hkt__place place, int first,
                                   struct hkt__operand result);
/** Circulant all-gather of p chunks of OUT. This rank's is chunk `first`; `own` is it, or a copy of it. */
void hkt__circulant_all_gather(struct hkt__builder *b, int first, struct hkt__operand own);

struct hkt__fold;
/** Where a rank that does not begin with IN should gather the sum it begins the doubling with: OUT or slot 0 of scratch, which
 *  the doubling uses. */
struct hkt__operand hkt__doubling_start(struct hkt__builder *b, const struct hkt__fold *fold);
/** Exchanges of whole sums between the survivors of a fold, the i-th of which is rank i * stride before folding (see
 *  hkt__fold_rank). `sum` is IN or hkt__doubling_start; the result lands in OUT. */
void hkt__double_sums(struct hkt__builder *b, const struct hkt__fold *fold, int stride, struct hkt__operand sum);

/** Zeroed room for one argument per rank; NULL after recording NOMEM. Release with hkt__free. */
struct hkt__arg *hkt__args_new(struct hkt__builder *b);

/** The operand of a SIGNAL or WAIT that hands over nothing. */
static inline struct hkt__operand hkt__nothing(void)
{
    return (struct hkt__operand){ .at = { 0, 1, 1 }, .like = { 0, 1, 1 } };
}

/** As hkt__scratch, with slots `stride` apart from `first` on. */
static inline struct hkt__operand hkt__slots(struct hkt__builder *b, int first, int stride, struct hkt__operand like)
{
    struct hkt__operand x = hkt__scratch(b, first, like);

    if (like.count > 0)
        x.at = (struct hkt__span){ first, stride, first + (like.count - 1) * stride + 1 };
    return x;
}

#endif
