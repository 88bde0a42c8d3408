/* What this build and this machine offer. */
#ifndef HOCKET_INFO_H
#define HOCKET_INFO_H

#include <stdio.h>

#include "hocket/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HKT_VERSION_MAJOR 0
#define HKT_VERSION_MINOR 1
#define HKT_VERSION_PATCH 0

/** major * 10000 + minor * 100 + patch of the library that is loaded. */
HKT_API int hkt_version(void);

/** CPUs that this process may use: those of its affinity, but no more than the CPU quota of its cgroup (docker run --cpus),
 *  rounded up. At least 1. */
HKT_API int hkt_cores(void);

/** CPU time per time that the cgroup of this process and those around it leave it at most, in CPUs; 0: no limit. root: of the file
 *  system, "" as a rule. */
HKT_API double hkt_cpu_quota(const char *root);

/** One thing that may be here or not: a transport, what the machine allows, a CPU feature, a module. */
struct hkt_feature {
    const char *kind;      /* "transport", "machine", "cpu", "module" */
    const char *name;
    int present;
    const char *reason;    /* what it is, or why it is absent and what would bring it */
};
/** Row i of the table; INVALID past the end. Probing may open and close sockets and memory, nothing stays. */
HKT_API HKT_NODISCARD enum hkt_status hkt_feature_get(int index, struct hkt_feature *out_feature);

/** One setting read from the environment at the library's first use. */
struct hkt_setting {
    const char *name;      /* HOCKET_... */
    const char *type;      /* "int", "bytes", "ms", "string", "flag" */
    const char *range;
    const char *fallback;  /* default as text */
    const char *help;
    const char *value;     /* in force now, as text */
    int is_set;            /* 1: given by the environment */
};
HKT_API HKT_NODISCARD enum hkt_status hkt_setting_get(int index, struct hkt_setting *out_setting);

#ifdef __cplusplus
}
#endif
#endif
