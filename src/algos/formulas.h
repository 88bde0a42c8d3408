/* Costs of the algorithms as functions of p, for the rows of the registry.
 *   rounds: messages that follow each other on the longest path (of one slice).
 *   volume: elements that the busiest rank sends, or receives, or reads from peers, whichever is most; in units of n, the
 *           collective's total vector. */
#ifndef HOCKET_ALGOS_FORMULAS_H
#define HOCKET_ALGOS_FORMULAS_H

typedef double hkt__formula(int nranks);

/* Rounds. L is ceil(log2 p), l is floor(log2 p). */
hkt__formula hkt__rounds_1, hkt__rounds_2, hkt__rounds_3;
hkt__formula hkt__rounds_log, hkt__rounds_2_log;              /* L, 2 L */
hkt__formula hkt__rounds_linear, hkt__rounds_2_linear;        /* p - 1, 2 (p - 1) */
hkt__formula hkt__rounds_half;                                /* p / 2 */
hkt__formula hkt__rounds_doubling, hkt__rounds_rabenseifner;  /* l, 2 l; and 2 more when p is no power of two */
hkt__formula hkt__rounds_tree;                                /* 2 depth of the double binary tree */
/* Volumes. */
hkt__formula hkt__volume_0, hkt__volume_1;
hkt__formula hkt__volume_share, hkt__volume_2_share;          /* (p - 1) / p, 2 (p - 1) / p */
hkt__formula hkt__volume_linear;                              /* p - 1 */
hkt__formula hkt__volume_log;                                 /* L */
hkt__formula hkt__volume_doubling, hkt__volume_rabenseifner;  /* l, 2 (P - 1) / P; and 1 more when p is no power of two */
hkt__formula hkt__volume_tree;                                /* up to 3 halves a tree, two trees */
hkt__formula hkt__volume_bruck;                               /* all-to-all: binary digits of 1 .. p - 1, over p */

#endif
