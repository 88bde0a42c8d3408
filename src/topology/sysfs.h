/* What /sys says about CPUs, and how fast NICs are. */
#ifndef HOCKET_TOPOLOGY_SYSFS_H
#define HOCKET_TOPOLOGY_SYSFS_H

#include "topology/nest.h"

/** PUs in `allowed` under `root` ("/sys"), the cores, L3 caches and packages around them, and all NUMA nodes. SYSTEM when it
 *  does not even list the CPUs. */
HKT_NODISCARD enum hkt_status hkt__topo_sysfs_items(const char *root, const cpu_set_t *allowed,
                                                    struct hkt__topo_items *items);

/** Rate of a network interface or InfiniBand device in bytes per second; 0: not known, or it is down. */
uint64_t hkt__topo_sysfs_nic_rate(const char *root, const char *name);

/** "0-3,8,10-11" into a set; false: something else. CPUs beyond the set are dropped. */
bool hkt__parse_cpu_list(const char *text, cpu_set_t *out_cpus);

#endif
