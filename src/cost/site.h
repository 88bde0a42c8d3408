/* Where the ranks of a communicator run, as algorithms and prices see it: the order in which schedules number them, the groups
 * that hierarchical algorithms work on, and how near two ranks are. A function of the places of all ranks, so that ranks that
 * have exchanged these see the same site.
 *
 * Numbers. A schedule's rank number v is the v-th rank along the ring of the topology order, so that neighbours are near
 * whatever numbers a launcher gave them; not where ranks address each other's memory, which is near anyhow, nor where inputs are
 * summed in the order of ranks. Blocks of a vector that belong to ranks are numbered alike in the schedule, and lie where the
 * collective says. */
#ifndef HOCKET_COST_SITE_H
#define HOCKET_COST_SITE_H

#include "algos/levels.h"
#include "algos/registry.h"
#include "topology/order.h"

struct hkt__site {
    struct hkt_topo_order *order; /* owned */
    struct hkt__levels levels;    /* of numbers along the ring; count 0: one group, or groups of several sizes */
    int nhosts;
    bool is_in_order;             /* ranks are numbered along the ring already */
    int32_t *core;                /* [rank] number of the core that it is bound to. Owned */
    int32_t core_ranks;           /* the most that are bound to one; 0: some are bound to none */
    bool is_shared, over_sockets; /* ranks of one core take turns; their messages go through the kernel (hkt__site_crowd) */
    const char *uneven;           /* "" or why there are no levels though there are groups; lives for ever */
};

/** Gives *out_site, released by hkt__site_fini. NOMEM. */
HKT_NODISCARD enum hkt_status hkt__site_make(const struct hkt__topo_place *places, int nranks, struct hkt__site *out_site);
/** Ranks per CPU on each host: above 1 those that are bound to one core take turns; over memory, messages between these cost less.
 *  Before anything is counted for the site. */
void hkt__site_crowd(struct hkt__site *site, double crowd, bool over_sockets);
void hkt__site_fini(struct hkt__site *site);

/** The rank of each number of the row's schedules; NULL: the numbers are the ranks. site may be NULL. */
const int32_t *hkt__site_ranks(const struct hkt__site *site, const struct hkt__algo *algo);
/** The number of a rank in the row's schedules. */
int32_t hkt__site_number(const struct hkt__site *site, const struct hkt__algo *algo, int rank);
/** For building the row's schedules; NULL: nothing is known. site may be NULL. */
static inline const struct hkt__levels *hkt__site_levels(const struct hkt__site *site)
{
    return site != NULL && site->levels.count > 0 ? &site->levels : NULL;
}

/** What a message between two ranks costs, next to one inside an L3 cache or, across hosts, inside a rack. */
struct hkt__link {
    bool is_net;
    bool is_core;                 /* both take turns on one core */
    double wait, bytes;           /* factors */
};
struct hkt__link hkt__site_link(const struct hkt__site *site, int rank_a, int rank_b);

#endif
