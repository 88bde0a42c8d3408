/* The table of all algorithms, ordered by collective. In the texts p is the number of ranks, n the bytes of the
 * collective's total vector (all-gather: its output; reduce-scatter: the input of one rank; gather, scatter and
 * all-to-all: p blocks), L = ceil(log2 p), P the largest power of two <= p, g the members of a group, by level.
 * `steps` counts messages that follow each other, `bytes` what the busiest rank sends (where it says so: receives, or
 * reads from its peers). */
#include "algos/registry.h"

#include "algos/builders.h"
#include "algos/formulas.h"
#include "algos/patterns.h"
#include "core/bits.h"

static const char *power_of_two(int nranks, bool in_place)
{
    (void)in_place;
    return hkt__is_pow2((unsigned)nranks) ? "" : "needs a power-of-two number of ranks";
}

static const char *even(int nranks, bool in_place)
{
    (void)in_place;
    return nranks == 1 || nranks % 2 == 0 ? "" : "needs an even number of ranks";
}

/* With so few ranks the next smaller radix there is, or pairwise exchange, does the same. */
#define ABOVE(least)                                                                                                   \
    static const char *above_##least(int nranks, bool in_place)                                                        \
    {                                                                                                                  \
        (void)in_place;                                                                                                \
        return nranks == 1 || nranks > least ? "" : "needs more than " #least " ranks";                                \
    }
ABOVE(2)
ABOVE(3)
ABOVE(4)
ABOVE(8)
#undef ABOVE

static const char *composite(int nranks, bool in_place)
{
    (void)in_place;
    return nranks == 1 || hkt__near_square(nranks) > 1 ? "" : "needs a number of ranks that is no prime";
}

static const char *two_buffers(int nranks, bool in_place)
{
    return nranks == 1 || !in_place ? "" : "not in place: ranks read each other's input while they write their output";
}

static const char *two_buffers_v(int nranks, bool in_place)
{
    (void)nranks;
    return in_place ? "not defined in place" : "";
}

#define SRC_RING "Patarasuk, Yuan, JPDC 69(2), 2009"
#define SRC_TRG "Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005"
#define SRC_RAB "Rabenseifner, ICCS 2004"
#define SRC_CIRC "Traeff, arXiv 2410.14234, 2024"
#define SRC_TREE2 "Sanders, Speck, Traeff, Parallel Computing 35(12), 2009; tree shape of NCCL 2.4"
#define SRC_BRUCK "Bruck et al., IEEE TPDS 8(11), 1997"
#define SRC_CHAN "Chan et al., CCPE 19(13), 2007"
#define SRC_VDG "Barnett et al., SHPCC 1994, with " SRC_CIRC
#define SRC_NEIGH "Chen et al., HPC-Asia 2005"
#define SRC_BARRIER "Hensgen, Finkel, Manber, IJPP 17(1), 1988"
#define SRC_DEF "from the definition"
#define SRC_DIRECT "from the definition, on shared scratch"
#define SRC_SWING "De Sensi et al., NSDI 2024"
#define SRC_PAT "Jeaugey, arXiv 2506.20252, 2025"
#define SRC_LEADERS "Sistare, vandeVaart, Loh, SC 1999"
#define SRC_BLOCKS "Traeff, arXiv 2407.18004, 2024"
#define SRC_HIER "Hidayetoglu et al., arXiv 2408.05962, 2024"
#define SRC_USER "from the definition, on the users' buffers (as XPMEM-based collectives)"

#define USER_NOTE "buffers that peers can reach"
/* Beyond the second-level caches of the ranks: 1 MB among 2 took 41 us by writes and 52 by reads, 512 KB 20 and 22 (2026-11-30). */
#define WRITE_MIN ((size_t)1 << 20) /* above the rows that read: the first of equal predictions is taken */
#define WRITE_NOTE "; by default from 1 MB on, or as much together of the ranks of a core"

#define GROUPS_NOTE "ranks in groups of one size; no prime"

/* All rows have one shape. */
/* clang-format off */
const struct hkt__algo hkt__algos[] = {
    /* ------------------------------------------------------------------------------------------- all_reduce */
    { .info = { HKT_ALL_REDUCE, "ring",
                "reduce-scatter, then all-gather, round a ring: fewest bytes, one neighbour", "",
                "2(p-1)", "2(p-1)/p n", SRC_RING, 0 },
      .build = hkt__build_all_reduce_ring,
      .rounds = hkt__cost_2_linear, .messages = hkt__cost_2_linear, .volume = hkt__cost_2_share },
    { .info = { HKT_ALL_REDUCE, "circulant",
                "reduce-scatter, then all-gather, in log rounds and fewest bytes for any p", "",
                "2L", "2(p-1)/p n", SRC_CIRC, 0 },
      .build = hkt__build_all_reduce_circulant, .radix = 2,
      .rounds = hkt__cost_2_log, .messages = hkt__cost_2_log, .volume = hkt__cost_2_share },
    { .info = { HKT_ALL_REDUCE, "rabenseifner", "halving, then doubling, between ranks that differ in one bit", "",
                "2 log2 P (+2 unless p = P)", "2(P-1)/P n (+n unless p = P)", SRC_RAB, 0 },
      .build = hkt__build_all_reduce_rabenseifner,
      .rounds = hkt__rounds_rabenseifner, .messages = hkt__messages_rabenseifner, .volume = hkt__volume_rabenseifner },
    { .info = { HKT_ALL_REDUCE, "recursive_doubling",
                "whole vectors between ranks that differ in one bit: fewest rounds", "",
                "log2 P (+2 unless p = P)", "log2 P n (+n unless p = P)", SRC_TRG, 0 },
      .build = hkt__build_all_reduce_recursive_doubling,
      .rounds = hkt__rounds_doubling, .messages = hkt__messages_doubling, .volume = hkt__messages_doubling },
    { .info = { HKT_ALL_REDUCE, "double_tree", "each half up and down its own binary tree, in pipelined slices", "",
                "about 3 log2 p, once for all slices", "2n", SRC_TREE2, 0 },
      .build = hkt__build_all_reduce_double_tree,
      .rounds = hkt__rounds_tree, .messages = hkt__messages_tree, .volume = hkt__volume_tree },
    { .info = { HKT_ALL_REDUCE, "swing", "halving, then doubling, with partners 1, 1, 3, 5, 11, ... away: for rings and tori",
                "power-of-two ranks", "2 log2 p", "2(p-1)/p n", SRC_SWING, 0 },
      .build = hkt__build_all_reduce_swing, .restriction = power_of_two,
      .rounds = hkt__cost_2_log, .messages = hkt__cost_2_log, .volume = hkt__cost_2_share },
    { .info = { HKT_ALL_REDUCE, "near_first", "as circulant, with the large messages between near ranks; any p", "",
                "2L", "2(p-1)/p n", SRC_PAT, 0 },
      .build = hkt__build_all_reduce_near_first,
      .rounds = hkt__cost_2_log, .messages = hkt__cost_2_log, .volume = hkt__cost_2_share },
    { .info = { HKT_ALL_REDUCE, "hierarchical",
                "reduce-scatter inside groups, then across them, outwards; all-gathers backwards: little leaves a group",
                GROUPS_NOTE, "g per level (2 (g-1) messages)", "2(p-1)/p n", SRC_HIER, 0 },
      .build = hkt__build_all_reduce_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_levels_both, .messages = hkt__messages_2_levels, .volume = hkt__cost_2_share },
    { .info = { HKT_ALL_REDUCE, "leaders",
                "the first rank of each group sums for it, those exchange whole sums as in recursive_doubling, and hand them on",
                GROUPS_NOTE, "log2 (p/g) + g", "(log2 (p/g) + g - 1) n", SRC_LEADERS ", with " SRC_TRG, 0 },
      .build = hkt__build_all_reduce_leaders, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_leaders, .messages = hkt__messages_leaders, .volume = hkt__messages_leaders },
    { .info = { HKT_ALL_REDUCE, "exchange", "everybody sends all to everybody and sums in rank order: one round", "",
                "1 (p-1 messages)", "(p-1) n", SRC_DEF, 0 },
      .build = hkt__build_all_reduce_exchange, .ordered = true,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_linear },
    { .info = { HKT_ALL_REDUCE, "ordered", "each chunk summed in rank order by one rank, which sends it to everybody", "",
                "2 (2(p-1) messages)", "2(p-1)/p n", SRC_DEF, 0 },
      .build = hkt__build_all_reduce_ordered, .ordered = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_2_share },
    { .info = { HKT_ALL_REDUCE, "two_shot", "sum a chunk from all peers' scratch, then read the other sums", "",
                "2 (2(p-1) signals)", "2(p-1)/p n read", SRC_DIRECT, 1 },
      .build = hkt__build_all_reduce_two_shot, .ordered = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_2_share },
    { .info = { HKT_ALL_REDUCE, "one_shot", "sum everything from all peers' scratch", "",
                "1 (p-1 signals)", "(p-1) n read", SRC_DIRECT, 1 },
      .build = hkt__build_all_reduce_one_shot, .ordered = true,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_linear },
    { .info = { HKT_ALL_REDUCE, "two_shot_user", "sum a chunk from all inputs and store it to all outputs", USER_NOTE,
                "2 (2(p-1) signals)", "2(p-1)/p n read and written", SRC_USER, 1 },
      .build = hkt__build_all_reduce_two_shot_user, .user_direct = true, .ordered = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_2_share },
    { .info = { HKT_ALL_REDUCE, "one_shot_user", "sum everything from all inputs", USER_NOTE "; not in place",
                "2 (2(p-1) signals)", "(p-1) n read", SRC_USER, 1 },
      .build = hkt__build_all_reduce_one_shot_user, .restriction = two_buffers, .user_direct = true, .ordered = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_linear },

    /* --------------------------------------------------------------------------------------- reduce_scatter */
    { .info = { HKT_REDUCE_SCATTER, "ring", "partial sums travel round a ring and collect one block a step", "",
                "p-1", "(p-1)/p n", SRC_RING, 0 },
      .build = hkt__build_reduce_scatter_ring,
      .rounds = hkt__cost_linear, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "circulant", "half of what is left goes to one rank in each round; any p", "",
                "L", "(p-1)/p n", SRC_CIRC, 0 },
      .build = hkt__build_reduce_scatter_circulant, .radix = 2,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "circulant:4", "a quarter of what is left stays, to three ranks go the others", "above 4 ranks",
                "L/2 (of up to 3 messages)", "(p-1)/p n", SRC_CIRC "; " SRC_BRUCK, 0 },
      .build = hkt__build_reduce_scatter_circulant, .radix = 4, .restriction = above_4,
      .rounds = hkt__messages_circulant4, .messages = hkt__messages_circulant4, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "circulant:8", "an eighth of what is left stays, to seven ranks go the others", "above 8 ranks",
                "L/3 (of up to 7 messages)", "(p-1)/p n", SRC_CIRC "; " SRC_BRUCK, 0 },
      .build = hkt__build_reduce_scatter_circulant, .radix = 8, .restriction = above_8,
      .rounds = hkt__messages_circulant8, .messages = hkt__messages_circulant8, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "recursive_halving",
                "half of what is left, between ranks that differ in one bit", "power-of-two ranks",
                "log2 p", "(p-1)/p n", SRC_TRG, 0 },
      .build = hkt__build_reduce_scatter_recursive_halving, .restriction = power_of_two,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "pairwise", "each block straight to the rank that sums it", "",
                "p-1", "(p-1)/p n", SRC_TRG, 0 },
      .build = hkt__build_reduce_scatter_pairwise,
      .rounds = hkt__cost_linear, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "near_first", "as circulant, with the large messages between near ranks; any p", "",
                "L", "(p-1)/p n", SRC_PAT, 0 },
      .build = hkt__build_reduce_scatter_near_first,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "hierarchical", "inside groups, then across them, outwards: little leaves a group",
                GROUPS_NOTE, "g-1 per level", "(p-1)/p n", SRC_HIER, 0 },
      .build = hkt__build_reduce_scatter_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__messages_levels, .messages = hkt__messages_levels, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "ordered", "each block straight to the rank that sums it, in rank order", "",
                "1 (p-1 messages)", "(p-1)/p n", SRC_DEF, 0 },
      .build = hkt__build_reduce_scatter_ordered, .ordered = true,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "direct", "sum the own block from all peers' scratch", "",
                "1 (p-1 signals)", "(p-1)/p n read", SRC_DIRECT, 1 },
      .build = hkt__build_reduce_scatter_direct, .ordered = true,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER, "direct_user", "sum the own block from all inputs", USER_NOTE,
                "2 (2(p-1) signals)", "(p-1)/p n read", SRC_USER, 1 },
      .build = hkt__build_reduce_scatter_direct_user, .user_direct = true, .ordered = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_share },

    /* ------------------------------------------------------------------------------------------- all_gather */
    { .info = { HKT_ALL_GATHER, "ring", "blocks travel round a ring", "",
                "p-1", "(p-1)/p n", SRC_RING, 0 },
      .build = hkt__build_all_gather_ring,
      .rounds = hkt__cost_linear, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "circulant", "the circulant reduce-scatter backwards; any p", "",
                "L", "(p-1)/p n", SRC_CIRC, 0 },
      .build = hkt__build_all_gather_circulant, .radix = 2,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "circulant:4", "what a rank has grows fourfold each round; to 4 ranks in one round", "above 2 ranks",
                "L/2 (of up to 3 messages)", "(p-1)/p n", SRC_CIRC "; " SRC_BRUCK, 0 },
      .build = hkt__build_all_gather_circulant, .radix = 4, .restriction = above_2,
      .rounds = hkt__rounds_circulant4, .messages = hkt__messages_circulant4, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "circulant:8", "what a rank has grows eightfold each round; to 8 ranks in one round", "above 4 ranks",
                "L/3 (of up to 7 messages)", "(p-1)/p n", SRC_CIRC "; " SRC_BRUCK, 0 },
      .build = hkt__build_all_gather_circulant, .radix = 8, .restriction = above_4,
      .rounds = hkt__rounds_circulant8, .messages = hkt__messages_circulant8, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "bruck", "what a rank has doubles each round; near ranks first; any p", "",
                "L", "(p-1)/p n", SRC_BRUCK, 0 },
      .build = hkt__build_all_gather_bruck,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "recursive_doubling",
                "what a rank has doubles, between ranks that differ in one bit", "power-of-two ranks",
                "log2 p", "(p-1)/p n", SRC_TRG, 0 },
      .build = hkt__build_all_gather_recursive_doubling, .restriction = power_of_two,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "neighbor_exchange",
                "pairs of blocks between the two neighbours in turn", "even ranks",
                "p/2", "(p-1)/p n", SRC_NEIGH, 0 },
      .build = hkt__build_all_gather_neighbor_exchange, .restriction = even,
      .rounds = hkt__cost_half, .messages = hkt__cost_half, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "near_first", "as circulant, with the large messages between near ranks; any p", "",
                "L", "(p-1)/p n", SRC_PAT, 0 },
      .build = hkt__build_all_gather_near_first,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "hierarchical", "across groups, then inside them, inwards: little leaves a group",
                GROUPS_NOTE, "1 per level (g-1 messages)", "(p-1)/p n", SRC_HIER, 0 },
      .build = hkt__build_all_gather_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_levels, .messages = hkt__messages_levels, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "leaders",
                "the first rank of each group gathers for it, those exchange as in circulant, and hand all on",
                GROUPS_NOTE, "L(p/g) + 2", "(g - g/p) n", SRC_LEADERS ", with " SRC_CIRC, 0 },
      .build = hkt__build_all_gather_leaders, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_leaders_gather, .messages = hkt__messages_leaders_gather, .volume = hkt__volume_leaders_gather },
    { .info = { HKT_ALL_GATHER, "direct", "read every block from its rank's scratch", "",
                "1 (p-1 signals)", "(p-1)/p n read", SRC_DIRECT, 1 },
      .build = hkt__build_all_gather_direct,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "write_user", "write the own block to every output", USER_NOTE WRITE_NOTE,
                "2 (2(p-1) signals)", "(p-1)/p n written", SRC_USER, 1 },
      .build = hkt__build_all_gather_write_user, .user_direct = true, .bytes_min = WRITE_MIN,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER, "direct_user", "read every block from its rank's input", USER_NOTE,
                "2 (2(p-1) signals)", "(p-1)/p n read", SRC_USER, 1 },
      .build = hkt__build_all_gather_direct_user, .user_direct = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_share },

    /* -------------------------------------------------------------------------------------------- broadcast */
    { .info = { HKT_BROADCAST, "binomial", "whole vectors down a binomial tree: fewest rounds", "",
                "L", "L n", SRC_TRG, 0 },
      .build = hkt__build_broadcast_binomial,
      .rounds = hkt__cost_log_floor, .messages = hkt__cost_log, .volume = hkt__cost_log },
    { .info = { HKT_BROADCAST, "chain", "slices follow each other through all ranks", "",
                "p-1, once for all slices", "n", SRC_CHAN, 0 },
      .build = hkt__build_broadcast_chain,
      .rounds = hkt__cost_linear, .messages = hkt__cost_1, .volume = hkt__cost_1 },
    { .info = { HKT_BROADCAST, "scatter_all_gather", "chunks down a binomial tree, then a circulant all-gather", "",
                "2L", "2(p-1)/p n", SRC_VDG, 0 },
      .build = hkt__build_broadcast_scatter_all_gather,
      .rounds = hkt__cost_log_both, .messages = hkt__cost_2_log, .volume = hkt__cost_2_share },
    { .info = { HKT_BROADCAST, "double_tree", "each half down its own binary tree, in pipelined slices", "",
                "L, once for all slices", "n", SRC_TREE2, 0 },
      .build = hkt__build_broadcast_double_tree,
      .rounds = hkt__cost_log, .messages = hkt__cost_2, .volume = hkt__cost_1 },
    { .info = { HKT_BROADCAST, "blocks", "4L blocks on a circulant graph, one in and one out a round: fewest rounds for any p", "",
                "about L + 4, of one block each", "(5L-1)/(4L) n", SRC_BLOCKS, 0 },
      .build = hkt__build_broadcast_blocks,
      .rounds = hkt__rounds_blocks, .messages = hkt__messages_blocks, .volume = hkt__volume_blocks },
    { .info = { HKT_BROADCAST, "hierarchical", "down a binomial tree across groups, then inside them", GROUPS_NOTE,
                "sum of log2 g", "sum of log2 g n", SRC_HIER, 0 },
      .build = hkt__build_broadcast_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_levels_down, .messages = hkt__rounds_levels_up, .volume = hkt__rounds_levels_up },
    { .info = { HKT_BROADCAST, "direct", "everybody reads the root's scratch", "",
                "1 (p-1 signals)", "n read", SRC_DIRECT, 1 },
      .build = hkt__build_broadcast_direct,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_1 },
    { .info = { HKT_BROADCAST, "direct_user", "everybody reads the root's input", USER_NOTE,
                "2 ceil((p-1)/8) (p-1 signals each)", "n read", SRC_USER, 1 },
      .build = hkt__build_broadcast_direct_user, .user_direct = true,
      .rounds = hkt__rounds_borrow, .messages = hkt__cost_linear, .volume = hkt__cost_1 },
    { .info = { HKT_BROADCAST, "shared_user", "everybody reads the root's input, but for a chunk that the root writes", USER_NOTE,
                "2 ceil((p-1)/8) (2(p-1) signals each)", "(p-1)/p n read, or written", SRC_USER, 1 },
      .build = hkt__build_broadcast_shared_user, .user_direct = true,
      .rounds = hkt__rounds_borrow, .messages = hkt__cost_2_linear, .volume = hkt__cost_share },

    /* ----------------------------------------------------------------------------------------------- reduce */
    { .info = { HKT_REDUCE, "binomial", "whole vectors up a binomial tree: fewest rounds", "",
                "L", "n (the root receives L n)", SRC_TRG, 0 },
      .build = hkt__build_reduce_binomial,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_log },
    { .info = { HKT_REDUCE, "chain", "slices follow each other through all ranks and collect", "",
                "p-1, once for all slices", "n", SRC_CHAN, 0 },
      .build = hkt__build_reduce_chain,
      .rounds = hkt__cost_linear, .messages = hkt__cost_1, .volume = hkt__cost_1 },
    { .info = { HKT_REDUCE, "reduce_scatter_gather", "circulant reduce-scatter, then chunks up a binomial tree", "",
                "2L", "2(p-1)/p n received by the root", SRC_RAB ", with " SRC_CIRC, 0 },
      .build = hkt__build_reduce_reduce_scatter_gather,
      .rounds = hkt__cost_log_both, .messages = hkt__cost_2_log, .volume = hkt__cost_2_share },
    { .info = { HKT_REDUCE, "double_tree", "each half up its own binary tree, in pipelined slices", "",
                "about 2 log2 p, once for all slices", "n", SRC_TREE2, 0 },
      .build = hkt__build_reduce_double_tree,
      .rounds = hkt__rounds_tree_up, .messages = hkt__cost_2, .volume = hkt__cost_1 },
    { .info = { HKT_REDUCE, "blocks", "the broadcast of blocks backwards: fewest rounds for any p", "",
                "about L + 4, of one block each", "(5L-1)/(4L) n received by the root", SRC_BLOCKS, 0 },
      .build = hkt__build_reduce_blocks,
      .rounds = hkt__rounds_blocks, .messages = hkt__messages_blocks, .volume = hkt__volume_blocks },
    { .info = { HKT_REDUCE, "hierarchical", "up a binomial tree inside groups, then across them", GROUPS_NOTE,
                "sum of log2 g", "n (the root receives sum of log2 g n)", SRC_HIER, 0 },
      .build = hkt__build_reduce_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_levels_up, .messages = hkt__rounds_levels_up, .volume = hkt__rounds_levels_up },
    { .info = { HKT_REDUCE, "ordered", "each chunk summed in rank order by one rank, which sends it to the root", "",
                "2 (2(p-1) messages)", "2(p-1)/p n received by the root", SRC_DEF, 0 },
      .build = hkt__build_reduce_ordered, .ordered = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_2_share },
    { .info = { HKT_REDUCE, "direct", "the root sums everything from all peers' scratch", "",
                "1 (p-1 signals)", "(p-1) n read by the root", SRC_DIRECT, 1 },
      .build = hkt__build_reduce_direct, .ordered = true,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_linear },

    /* ------------------------------------------------------------------------------------------- all_to_all */
    { .info = { HKT_ALL_TO_ALL, "pairwise", "each block straight to its rank; in place through two scratch slots", "",
                "1 (p-1 messages)", "(p-1)/p n", SRC_TRG, 0 },
      .build = hkt__build_all_to_all_pairwise,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_ALL_TO_ALL, "bruck",
                "blocks travel by the binary digits of their distance: log rounds, small blocks", "",
                "L", "digits of 1..p-1 that are not 0 / p n, about L/2 n", SRC_BRUCK, 0 },
      .build = hkt__build_all_to_all_bruck, .radix = 2,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__volume_bruck2 },
    { .info = { HKT_ALL_TO_ALL, "bruck:3", "the same to the base of 3", "above 2 ranks",
                "log3 p (of up to 2 messages)", "digits that are not 0 / p n, about 0.42L n", SRC_BRUCK, 0 },
      .build = hkt__build_all_to_all_bruck, .radix = 3, .restriction = above_2,
      .rounds = hkt__rounds_bruck3, .messages = hkt__messages_bruck3, .volume = hkt__volume_bruck3 },
    { .info = { HKT_ALL_TO_ALL, "bruck:4", "the same to the base of 4", "above 3 ranks",
                "L/2 (of up to 3 messages)", "digits that are not 0 / p n, about 3L/8 n", SRC_BRUCK, 0 },
      .build = hkt__build_all_to_all_bruck, .radix = 4, .restriction = above_3,
      .rounds = hkt__rounds_bruck4, .messages = hkt__messages_bruck4, .volume = hkt__volume_bruck4 },
    { .info = { HKT_ALL_TO_ALL, "bruck:8", "the same to the base of 8", "above 8 ranks",
                "L/3 (of up to 7 messages)", "digits that are not 0 / p n, about 7L/24 n", SRC_BRUCK, 0 },
      .build = hkt__build_all_to_all_bruck, .radix = 8, .restriction = above_8,
      .rounds = hkt__rounds_bruck8, .messages = hkt__messages_bruck8, .volume = hkt__volume_bruck8 },
    { .info = { HKT_ALL_TO_ALL, "grid", "along the rows, then along the columns, of a grid of p = a b ranks, near a square",
                "ranks that are no prime", "2 (a+b-2 messages)", "(2p-a-b)/p n", SRC_BRUCK, 0 },
      .build = hkt__build_all_to_all_grid, .restriction = composite,
      .rounds = hkt__cost_2, .messages = hkt__messages_grid, .volume = hkt__volume_grid },
    { .info = { HKT_ALL_TO_ALL, "hierarchical", "inside groups, then across them, outwards: few messages leave a group", GROUPS_NOTE,
                "1 per level (g-1 messages)", "sum of (g-1)/g n", SRC_BRUCK, 0 },
      .build = hkt__build_all_to_all_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_levels, .messages = hkt__messages_levels, .volume = hkt__volume_levels },
    { .info = { HKT_ALL_TO_ALL, "direct", "read every block from its rank's scratch", "",
                "1 (p-1 signals)", "(p-1)/p n read", SRC_DIRECT, 1 },
      .build = hkt__build_all_to_all_direct,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_ALL_TO_ALL, "write_user", "write every block to its rank's output", USER_NOTE "; not in place" WRITE_NOTE,
                "2 (2(p-1) signals)", "(p-1)/p n written", SRC_USER, 1 },
      .build = hkt__build_all_to_all_write_user, .restriction = two_buffers, .user_direct = true, .bytes_min = WRITE_MIN,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_share },
    { .info = { HKT_ALL_TO_ALL, "direct_user", "read every block from its rank's input", USER_NOTE "; not in place",
                "2 (2(p-1) signals)", "(p-1)/p n read", SRC_USER, 1 },
      .build = hkt__build_all_to_all_direct_user, .restriction = two_buffers, .user_direct = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_2_linear, .volume = hkt__cost_share },

    /* --------------------------------------------------------------------------------------- gather, scatter */
    { .info = { HKT_GATHER, "binomial", "subtrees up a binomial tree: few messages at the root", "",
                "L", "(p-1)/p n received by the root", SRC_TRG, 0 },
      .build = hkt__build_gather_binomial,
      .rounds = hkt__cost_log_floor, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_GATHER, "linear", "every rank sends to the root", "",
                "1 (p-1 messages)", "(p-1)/p n received by the root", SRC_DEF, 0 },
      .build = hkt__build_gather_linear,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_GATHER, "hierarchical", "subtrees up a tree inside groups, then across them", GROUPS_NOTE,
                "sum of log2 g", "(p-1)/p n received by the root", SRC_HIER, 0 },
      .build = hkt__build_gather_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_levels_down, .messages = hkt__rounds_levels_up, .volume = hkt__cost_share },
    { .info = { HKT_GATHER, "direct_user", "every rank writes its block to the root's output", USER_NOTE,
                "2 (p-1 signals each)", "n/p written by each rank", SRC_USER, 1 },
      .build = hkt__build_gather_direct_user, .user_direct = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_linear, .volume = hkt__cost_block },
    { .info = { HKT_SCATTER, "binomial", "subtrees down a binomial tree: few messages at the root", "",
                "L", "(p-1)/p n sent by the root", SRC_TRG, 0 },
      .build = hkt__build_scatter_binomial,
      .rounds = hkt__cost_log_floor, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_SCATTER, "linear", "the root sends to every rank", "",
                "1 (p-1 messages)", "(p-1)/p n sent by the root", SRC_DEF, 0 },
      .build = hkt__build_scatter_linear,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_SCATTER, "hierarchical", "subtrees down a tree across groups, then inside them", GROUPS_NOTE,
                "sum of log2 g", "(p-1)/p n sent by the root", SRC_HIER, 0 },
      .build = hkt__build_scatter_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_levels_down, .messages = hkt__rounds_levels_up, .volume = hkt__cost_share },
    { .info = { HKT_SCATTER, "direct_user", "every rank reads its block from the root's input", USER_NOTE,
                "2 (p-1 signals each)", "n/p read by each rank", SRC_USER, 1 },
      .build = hkt__build_scatter_direct_user, .user_direct = true,
      .rounds = hkt__cost_2, .messages = hkt__cost_linear, .volume = hkt__cost_block },

    /* ---------------------------------------------------------------------------------------------- barrier */
    { .info = { HKT_BARRIER, "dissemination", "signals 1, 2, 4, ... ranks ahead", "",
                "L", "0", SRC_BARRIER, 0 },
      .build = hkt__build_barrier_dissemination,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_0 },
    { .info = { HKT_BARRIER, "hierarchical", "signals to the first rank of each group, outwards, and back", GROUPS_NOTE,
                "2 per level", "0", SRC_HIER, 0 },
      .build = hkt__build_barrier_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_2_levels, .messages = hkt__messages_levels, .volume = hkt__cost_0 },
    { .info = { HKT_BARRIER, "flat", "everybody signals everybody: for few ranks", "",
                "1 (p-1 signals)", "0", SRC_DEF, 0 },
      .build = hkt__build_barrier_flat,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_0 },

    /* ------------------------------------------------------------------------------------------- v-variants */
    { .info = { HKT_ALL_GATHER_V, "ring", "blocks travel round a ring", "",
                "p-1", "n without the next rank's block", SRC_RING, 0 },
      .build = hkt__build_all_gather_ring,
      .rounds = hkt__cost_linear, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER_V, "circulant", "far ranks first, log rounds; any p", "",
                "L", "up to n", SRC_CIRC, 0 },
      .build = hkt__build_all_gather_circulant, .radix = 2,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER_V, "bruck", "what a rank has doubles each round; near ranks first; any p", "",
                "L", "up to n", SRC_BRUCK, 0 },
      .build = hkt__build_all_gather_bruck,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER_V, "hierarchical", "across groups, then inside them, inwards: little leaves a group",
                GROUPS_NOTE, "1 per level (g-1 messages)", "up to n", SRC_HIER, 0 },
      .build = hkt__build_all_gather_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__rounds_levels, .messages = hkt__messages_levels, .volume = hkt__cost_share },
    { .info = { HKT_ALL_GATHER_V, "direct", "read every block from its rank's scratch", "",
                "1 (p-1 signals)", "n without the own block, read", SRC_DIRECT, 1 },
      .build = hkt__build_all_gather_direct,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER_V, "ring", "partial sums travel round a ring and collect one block a step", "",
                "p-1", "n without the own block", SRC_RING, 0 },
      .build = hkt__build_reduce_scatter_ring,
      .rounds = hkt__cost_linear, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER_V, "circulant", "half of what is left goes to one rank in each round; any p", "",
                "L", "n without the own block", SRC_CIRC, 0 },
      .build = hkt__build_reduce_scatter_circulant, .radix = 2,
      .rounds = hkt__cost_log, .messages = hkt__cost_log, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER_V, "pairwise", "each block straight to the rank that sums it", "",
                "p-1", "n without the own block", SRC_TRG, 0 },
      .build = hkt__build_reduce_scatter_pairwise,
      .rounds = hkt__cost_linear, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER_V, "hierarchical", "inside groups, then across them, outwards: little leaves a group",
                GROUPS_NOTE, "g-1 per level", "n without the own block", SRC_HIER, 0 },
      .build = hkt__build_reduce_scatter_hierarchical, .by_groups = true, .restriction = composite,
      .rounds = hkt__messages_levels, .messages = hkt__messages_levels, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER_V, "ordered", "each block straight to the rank that sums it, in rank order", "",
                "1 (p-1 messages)", "n without the own block", SRC_DEF, 0 },
      .build = hkt__build_reduce_scatter_ordered, .ordered = true,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_REDUCE_SCATTER_V, "direct", "sum the own block from all peers' scratch", "",
                "1 (p-1 signals)", "p-1 times the own block, read", SRC_DIRECT, 1 },
      .build = hkt__build_reduce_scatter_direct, .ordered = true,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
    { .info = { HKT_ALL_TO_ALL_V, "pairwise", "each block straight to its rank", "not in place",
                "1 (p-1 messages)", "all but the own block", SRC_TRG, 0 },
      .build = hkt__build_all_to_all_pairwise, .restriction = two_buffers_v,
      .rounds = hkt__cost_1, .messages = hkt__cost_linear, .volume = hkt__cost_share },
};
/* clang-format on */

_Static_assert(sizeof hkt__algos / sizeof hkt__algos[0] <= HKT__ALGOS_MAX, "there is a place for what the user says of each");
const int hkt__algo_count = (int)(sizeof hkt__algos / sizeof hkt__algos[0]);
