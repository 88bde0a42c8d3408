/* Where ranks are, and what follows from it: groups at each level, orders, factors. Everything is a function of the places of
 * all ranks, so ranks that have exchanged their places agree without another word. */
#ifndef HOCKET_TOPOLOGY_ORDER_H
#define HOCKET_TOPOLOGY_ORDER_H

#include <sched.h>

#include "topology/topo.h"

/** What one rank tells the others: the numbers of the parts that hold all its CPUs. -1: it is not confined to one (or the
 *  system shows none). Plain data, the same layout everywhere; fits in the first exchange of a job. */
struct hkt__topo_place {
    uint64_t host; /* hkt__topo_host_id */
    int32_t rack, package, numa, l3, core;
    int32_t unit; /* gpu or pu */
};

/** Place of the node on which a rank runs. */
void hkt__topo_place_at(const struct hkt_topo *topo, int32_t node, struct hkt__topo_place *out_place);
/** Place of a rank of a host (a node of topo) that may run on these CPUs; CPUs that the host does not show are ignored. */
void hkt__topo_place_cpus(const struct hkt_topo *topo, int32_t host, const cpu_set_t *cpus,
                          struct hkt__topo_place *out_place);
/** Own place, from the affinity of this thread and what /sys shows; some twenty small files per CPU. Where the
 *  machine cannot be read, only the host is known. */
void hkt__topo_place_here(struct hkt__topo_place *out_place);

/** Places of ranks on nodes of a graph. INVALID: no such node. */
HKT_NODISCARD enum hkt_status hkt__topo_places(const struct hkt_topo *topo, const int *nodes, int nranks,
                                               struct hkt__topo_place *out_places);
/** What joins the host around a node to others; numbers that are not known are 0. */
void hkt__topo_host_link(const struct hkt_topo *topo, int node, struct hkt_topo_link *out_link);

/** The public order, opened. Groups of a level are numbered along the ring. */
struct hkt_topo_order {
    int32_t nranks, nfactors;
    int32_t *ring;     /* [position] rank */
    int32_t *position; /* [rank] */
    int32_t ngroups[HKT_TOPO_LEVEL_COUNT];
    int32_t
        *first[HKT_TOPO_LEVEL_COUNT]; /* [ngroups + 1] positions: group g is ring[first[g]] .. ring[first[g + 1] - 1] */
    int32_t *group[HKT_TOPO_LEVEL_COUNT]; /* [rank] */
    enum hkt_topo_level
        factor[HKT_TOPO_LEVEL_COUNT]; /* [nfactors] levels that split further than the one below, inside out */
};

/** From the places of the ranks of a communicator. Hosts and racks come in the order of their lowest rank, the parts of a
 *  host by number. Gives *out_order. */
HKT_NODISCARD enum hkt_status hkt__topo_order(const struct hkt__topo_place *places, int nranks,
                                              struct hkt_topo_order **out_order);

#endif
