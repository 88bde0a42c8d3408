/* This machine as a graph: which source is asked, and for what. */
#ifndef HOCKET_TOPOLOGY_DETECT_H
#define HOCKET_TOPOLOGY_DETECT_H

#include "topology/nest.h"

/** A number that is equal for all processes of one running system, and no other. */
uint64_t hkt__topo_host_id(void);

enum hkt__topo_reader { HKT__TOPO_READ_ANY, HKT__TOPO_READ_HWLOC, HKT__TOPO_READ_SYSFS };

struct hkt__topo_detect_opts {
    enum hkt__topo_reader reader; /* ANY: hwloc where the build has it, else /sys */
    const char *sysfs;            /* NULL: "/sys" */
    const cpu_set_t *allowed;     /* NULL: the affinity of this thread */
    bool devices;                 /* NICs and GPUs too (hwloc only); takes some 50 ms */
};

/** The graph of one host: a net with it. Typical numbers are put where nothing is known. UNSUPPORTED: a reader that this
 *  build does not have. */
HKT_NODISCARD enum hkt_status hkt__topo_detect(const struct hkt__topo_detect_opts *opts, struct hkt_topo **out_topo);

/** What hwloc reports. *out_here: whether it is this machine; HWLOC_XMLFILE and HWLOC_SYNTHETIC make it another. */
HKT_NODISCARD enum hkt_status hkt__topo_hwloc_items(bool devices, struct hkt__topo_items *items, bool *out_here);
const char *hkt__topo_hwloc_version(void);

#endif
