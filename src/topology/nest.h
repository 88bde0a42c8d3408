/* From what the system reports about one host, each part with the set of CPUs that share it, to nodes in nodes. Used by all
 * sources that look at the machine they run on. */
#ifndef HOCKET_TOPOLOGY_NEST_H
#define HOCKET_TOPOLOGY_NEST_H

#include <sched.h>

#include "topology/topo.h"

/** Package, NUMA node, L3, core, PU: cpus are those it has, whether this process may use them or not. Devices: the cpus next
 *  to them. CPUs from CPU_SETSIZE on (1024) are not seen. */
struct hkt__topo_item {
    enum hkt_topo_kind kind;
    int32_t index;  /* -1: the lowest of its cpus */
    int32_t inside; /* devices: item of the switch above, before this one in the list; -1: none */
    int32_t node;   /* out: -1 if left out */
    uint64_t bytes;
    uint64_t up_bytes_per_s;  /* devices: of the link to what they hang on; 0: not known */
    uint64_t net_bytes_per_s; /* nic: of the network */
    cpu_set_t cpus;
    char name[HKT_TOPO_NAME_MAX];
};

struct hkt__topo_items {
    struct hkt__topo_item *list;
    int32_t count, room;
};

/** NOMEM. cpus may be empty and are ignored then, unless it is a device. */
HKT_NODISCARD enum hkt_status hkt__topo_items_add(struct hkt__topo_items *items, const struct hkt__topo_item *item);
void hkt__topo_items_free(struct hkt__topo_items *items);

/** Add to a host what has a CPU in `allowed`, and what a device hangs on. Of NUMA nodes with equal CPUs only the first is
 *  taken (the others are memory that no CPU is nearer to). */
HKT_NODISCARD enum hkt_status hkt__topo_nest(struct hkt__topo_draft *draft, int32_t host, struct hkt__topo_items *items,
                                             const cpu_set_t *allowed);

#endif
