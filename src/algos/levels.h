/* Groups of ranks, and groups of groups: which ranks are near each other. Consecutive ranks are: with sizes {4, 2}
 * ranks 0..3 are one group, 4..7 another, and both one group of groups; of hosts with 4 ranks each, say. A rank's
 * place is the digits of its number, those of the innermost level first. Groups of a level are of one size; machines
 * whose groups are not are described with fewer levels. */
#ifndef HOCKET_ALGOS_LEVELS_H
#define HOCKET_ALGOS_LEVELS_H

#include "sched/build.h"

#define HKT__LEVELS_MAX 16 /* of two ranks each: HKT_RANKS_MAX */
#define HKT__LEVEL_SPLIT_ABOVE 8 /* members that exchange with each other all at once */

struct hkt__levels {
    int count;
    int sizes[HKT__LEVELS_MAX]; /* members of a group, from the inside out; their product is the number of ranks */
    int near_count;             /* levels inside a host; 0: not known */
};

/** What suits p ranks of which nothing is known: p = a b with a <= b as near as can be, and so on while they are
 *  above 8. One level for primes. */
struct hkt__levels hkt__levels_default(int nranks);
/** Those the builder was given, else the default. */
struct hkt__levels hkt__levels_of(const struct hkt__builder *b);
/** Levels whose groups a leader may speak for: those inside a host, and at least one, but not the outermost. */
int hkt__levels_led(const struct hkt__levels *levels);
/** OK, or INVALID: they do not make nranks ranks. */
HKT_NODISCARD enum hkt_status hkt__levels_check(const struct hkt__levels *levels, int nranks);

/** A rank's group at one level: the ranks whose digits differ from its own at that level only. */
struct hkt__level {
    int size, at;       /* members; which of them the rank is */
    int stride, period; /* between the numbers of two members; size * stride */
};
struct hkt__level hkt__level(const struct hkt__levels *levels, int index, int rank);

/** Number of the j-th member of the rank's group. */
static inline int hkt__level_member(const struct hkt__level *level, int rank, int j)
{
    return rank + (j - level->at) * level->stride;
}

#endif
