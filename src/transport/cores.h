/* CPUs that ranks may use: which ones (affinity), and how much of them (the quota of a cgroup, docker run --cpus). */
#ifndef HOCKET_TRANSPORT_CORES_H
#define HOCKET_TRANSPORT_CORES_H

#include <sched.h>
#include <stdint.h>

#define HKT__CPUS_PARTS 8 /* of CPU_SETSIZE each: 8192, the most that Linux is built for */

/** The kernel refuses a set that is smaller than its own, so one cpu_set_t does not do for all machines. */
struct hkt__cpus {
    cpu_set_t part[HKT__CPUS_PARTS];
};

/** Which CPUs this thread may use; empty when the system does not tell. */
void hkt__cpus_get(struct hkt__cpus *out_cpus);
int hkt__cpus_count(const struct hkt__cpus *cpus);

/** CPU time per time that a cgroup leaves its processes. */
struct hkt__quota {
    double cpus;       /* 0: no limit */
    uint64_t group;    /* of which cgroup it is: equal for processes that share it, on one host */
};

/** The least quota from this process's cgroup up to the root; root: of the file system, "" as a rule. */
void hkt__quota_get(const char *root, struct hkt__quota *out_quota);

/** As many CPUs as quotas of cgroups, together `quota` (0: none), allow to use of `cpus`. At least 1. */
int hkt__cores_within(int cpus, double quota);

/** CPUs that this process may use, by affinity and quota. At least 1. */
int hkt__machine_cores(void);

#endif
