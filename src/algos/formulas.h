/* Costs of the algorithms as functions of p, for the rows of the registry.
 *   rounds:   messages that follow each other on the longest path of one slice, if a rank can handle any number at
 *             once; a bound that is met when p is a power of two, or of the row's radix.
 *   messages: messages (signals included) that the busiest rank sends, or receives, whichever is more.
 *   volume:   what the busiest rank sends, or receives, or reads and writes at peers, whichever is most; in units of
 *             n, the collective's total vector. */
#ifndef HOCKET_ALGOS_FORMULAS_H
#define HOCKET_ALGOS_FORMULAS_H

typedef double hkt__formula(int nranks);

/** Ranks that use the memory of a root at once, where p - 1 want to (direct_user.c). */
int hkt__borrowers(int nranks);

/* Any of the three. L is ceil(log2 p), l is floor(log2 p). With one rank all are 0. */
hkt__formula hkt__cost_0, hkt__cost_1, hkt__cost_2;
hkt__formula hkt__cost_log, hkt__cost_2_log;          /* L, 2 L */
hkt__formula hkt__cost_log_floor, hkt__cost_log_both; /* l, L + l */
hkt__formula hkt__cost_linear, hkt__cost_2_linear;    /* p - 1, 2 (p - 1) */
hkt__formula hkt__cost_half;                          /* p / 2 */
hkt__formula hkt__cost_share, hkt__cost_2_share;      /* (p - 1) / p, 2 (p - 1) / p */
hkt__formula hkt__rounds_borrow;                      /* 2 for every hkt__borrowers(p) of p - 1 ranks */
hkt__formula hkt__cost_block;                         /* 1 / p */
/* Folding adds two rounds, one message and one n where p is no power of two. */
hkt__formula hkt__rounds_doubling, hkt__messages_doubling; /* l; this is the volume, too */
hkt__formula hkt__rounds_rabenseifner, hkt__messages_rabenseifner, hkt__volume_rabenseifner; /* 2 l; 2 (P - 1) / P */
hkt__formula hkt__rounds_tree, hkt__messages_tree, hkt__volume_tree, hkt__rounds_tree_up;
hkt__formula hkt__rounds_blocks, hkt__messages_blocks, hkt__volume_blocks;
/* To the base of a radix: digits of p - 1; values of each that occur and are not 0; such digits of 1 .. p - 1, over p. */
hkt__formula hkt__rounds_bruck3, hkt__rounds_bruck4, hkt__rounds_bruck8;
hkt__formula hkt__messages_bruck3, hkt__messages_bruck4, hkt__messages_bruck8;
hkt__formula hkt__volume_bruck2, hkt__volume_bruck3, hkt__volume_bruck4, hkt__volume_bruck8;
hkt__formula hkt__rounds_circulant4, hkt__rounds_circulant8; /* divisions of p by the radix down to 1; parcels of all these */
hkt__formula hkt__messages_circulant4, hkt__messages_circulant8;
hkt__formula hkt__messages_grid, hkt__volume_grid;
/* With the default levels: how many there are, twice that, messages to the others of each group, and twice that; these taken one
 * by one, then a round per level; depth of binomial trees of each level when messages overlap (down), or are taken one by one (up). */
hkt__formula hkt__rounds_levels, hkt__rounds_2_levels, hkt__messages_levels, hkt__messages_2_levels, hkt__rounds_levels_both;
hkt__formula hkt__rounds_levels_down, hkt__rounds_levels_up;
hkt__formula hkt__volume_levels; /* all-to-all: (g - 1) / g for each */
hkt__formula hkt__rounds_leaders, hkt__messages_leaders; /* all-reduce; the latter is the volume, too */
hkt__formula hkt__rounds_leaders_gather, hkt__messages_leaders_gather, hkt__volume_leaders_gather;

#endif
