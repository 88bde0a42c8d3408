/* The machines a job runs on, as a graph: racks, hosts, packages, NUMA nodes, shared L3 caches, cores, and the GPUs and NICs
 * that hang on them, with the links between them. It comes from this machine, from a text file, or from one line that
 * describes a machine; from it come the order of ranks in rings and trees and the levels of hierarchical algorithms.
 * A graph does not change once it is made: any number of threads may read it. */
#ifndef HOCKET_TOPO_H
#define HOCKET_TOPO_H

#include <stdint.h>
#include <stdio.h>

#include "hocket/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HKT_TOPO_NAME_MAX 64
#define HKT_TOPO_NODES_MAX 262144 /* nodes of one graph */

/* X(name, text, holds): kinds of nodes, from the outside in. */
#define HKT_TOPO_KIND_TABLE(X)                                                                                         \
    X(HKT_TOPO_NET, "net")         /* what joins the hosts; the root of every graph */                                 \
    X(HKT_TOPO_RACK, "rack")       /* hosts on one switch */                                                           \
    X(HKT_TOPO_HOST, "host")       /* one running system */                                                            \
    X(HKT_TOPO_PACKAGE, "package") /* what sits in one socket */                                                       \
    X(HKT_TOPO_NUMA, "numa")       /* memory, and the cores next to it */                                              \
    X(HKT_TOPO_L3, "l3")           /* cores that share a last-level cache */                                           \
    X(HKT_TOPO_CORE, "core")                                                                                           \
    X(HKT_TOPO_PU, "pu")         /* what the system calls a CPU: a hardware thread */                                  \
    X(HKT_TOPO_SWITCH, "switch") /* PCI Express switch, or NVSwitch */                                                 \
    X(HKT_TOPO_GPU, "gpu")                                                                                             \
    X(HKT_TOPO_NIC, "nic")

enum hkt_topo_kind {
#define HKT_TOPO_KIND_ENUM(name, text) name,
    HKT_TOPO_KIND_TABLE(HKT_TOPO_KIND_ENUM)
#undef HKT_TOPO_KIND_ENUM
        HKT_TOPO_KIND_COUNT
};

/* X(name, text): kinds of links. */
#define HKT_TOPO_LINK_TABLE(X)                                                                                         \
    X(HKT_TOPO_CACHE, "cache")   /* through a shared cache */                                                          \
    X(HKT_TOPO_MEMORY, "memory") /* through the memory of a NUMA node or package */                                    \
    X(HKT_TOPO_SOCKET, "socket") /* between packages: UPI, xGMI */                                                     \
    X(HKT_TOPO_NVLINK, "nvlink")                                                                                       \
    X(HKT_TOPO_PCIE, "pcie")                                                                                           \
    X(HKT_TOPO_NETWORK, "network")

enum hkt_topo_link_kind {
#define HKT_TOPO_LINK_ENUM(name, text) name,
    HKT_TOPO_LINK_TABLE(HKT_TOPO_LINK_ENUM)
#undef HKT_TOPO_LINK_ENUM
        HKT_TOPO_LINK_COUNT
};

/* X(name, text): where the numbers of a link come from. */
#define HKT_TOPO_SOURCE_TABLE(X)                                                                                       \
    X(HKT_TOPO_ASSUMED, "assumed") /* typical of its kind; nobody looked */                                            \
    X(HKT_TOPO_GIVEN, "given")     /* written by who described the machine */                                          \
    X(HKT_TOPO_HWLOC, "hwloc")     /* hwloc reports it */                                                              \
    X(HKT_TOPO_SYSFS, "sysfs")     /* the kernel reports it */                                                         \
    X(HKT_TOPO_MEASURED, "measured")

enum hkt_topo_source {
#define HKT_TOPO_SOURCE_ENUM(name, text) name,
    HKT_TOPO_SOURCE_TABLE(HKT_TOPO_SOURCE_ENUM)
#undef HKT_TOPO_SOURCE_ENUM
        HKT_TOPO_SOURCE_COUNT
};

/** Nodes stand in preorder: the subtree of node i is [i, end), and its parent has a smaller number. */
struct hkt_topo_node {
    enum hkt_topo_kind kind;
    int32_t index;  /* unique for its kind within a host. package, numa, pu: the system's number; l3, core: their
                          lowest pu; gpu, nic, switch: counted. Of net, rack, host: unique in the graph */
    int32_t parent; /* -1: the root */
    int32_t end;
    int32_t uplink;               /* link to the parent; -1: nothing is known about it */
    uint64_t id;                  /* host: equal in the views of all processes of one system; else 0 */
    uint64_t bytes;               /* numa: memory; l3: size; 0: not known */
    char name[HKT_TOPO_NAME_MAX]; /* host name, PCI address, interface; "" when there is none */
};

/** One direction of a link; both directions are alike. a < b. */
struct hkt_topo_link {
    int32_t a, b;
    enum hkt_topo_link_kind kind;
    enum hkt_topo_source source;
    uint64_t bytes_per_s; /* 0: not known */
    uint32_t latency_ns;  /* 0: not known */
};

struct hkt_topo;

/** This machine, as far as this process may use it: cores outside its affinity mask or cgroup are left out.
 *  Owns     gives *out_topo, released by hkt_topo_destroy
 *  Errors   SYSTEM, NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_detect(struct hkt_topo **out_topo);
/** From a file that hkt_topo_save or a person wrote. INVALID names file, line and what is allowed there. */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_load(const char *path, struct hkt_topo **out_topo);
/** From one line: KIND:COUNT words from the outside in, each COUNT per parent; GPUs and NICs per host. For instance
 *  "host:64 package:2 numa:4 l3:2 core:8", "package:2 gpu:8 nvswitch:1 nic:8"; KIND:COUNT@BANDWIDTH,LATENCY sets the link
 *  of each to its parent. INVALID quotes the word that is wrong. */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_synthetic(const char *line, struct hkt_topo **out_topo);
/** NULL is allowed. */
HKT_API void hkt_topo_destroy(struct hkt_topo *topo);

/** Write the text form; hkt_topo_load yields the same graph again. */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_save(const struct hkt_topo *topo, FILE *file);

HKT_API int hkt_topo_node_count(const struct hkt_topo *topo);
HKT_API int hkt_topo_link_count(const struct hkt_topo *topo);
/** NULL past the end; valid while the graph lives. */
HKT_API const struct hkt_topo_node *hkt_topo_node_get(const struct hkt_topo *topo, int index);
HKT_API const struct hkt_topo_link *hkt_topo_link_get(const struct hkt_topo *topo, int index);

/** "net", "host", ...; never NULL. */
HKT_API const char *hkt_topo_kind_name(enum hkt_topo_kind kind);
HKT_API const char *hkt_topo_link_name(enum hkt_topo_link_kind kind);
HKT_API const char *hkt_topo_source_name(enum hkt_topo_source source);
/** The kind of that name; INVALID lists them. */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_kind_parse(const char *text, enum hkt_topo_kind *out_kind);
/** "12.5GB/s", "90ns", "32MiB": exact, in the largest unit that needs at most three decimals. bytes: room at out_text. */
HKT_API void hkt_topo_rate_text(uint64_t bytes_per_s, char *out_text, size_t bytes);
HKT_API void hkt_topo_time_text(uint64_t latency_ns, char *out_text, size_t bytes);
HKT_API void hkt_topo_size_text(uint64_t size_bytes, char *out_text, size_t bytes);
/** What hkt_topo_detect reads in this build: version of hwloc, or "" when it was built without and reads /sys. */
HKT_API const char *hkt_topo_hwloc_version(void);

/** Innermost node around both. */
HKT_API int hkt_topo_common(const struct hkt_topo *topo, int a, int b);
/** Enclosing node of a kind, the node itself included; -1: there is none. */
HKT_API int hkt_topo_ancestor(const struct hkt_topo *topo, int node, enum hkt_topo_kind kind);
/** Bandwidth of the narrowest link and sum of latencies from a to b: over links that join them, or through a switch that
 *  joins them, else up and down the tree. A number that is not known counts as 0; kind is that of the narrowest link. */
HKT_API void hkt_topo_route(const struct hkt_topo *topo, int a, int b, struct hkt_topo_link *out_route);

/** How ranks are dealt to a machine. */
enum hkt_topo_deal {
    HKT_TOPO_COMPACT, /* rank i gets the i-th core or GPU */
    HKT_TOPO_SPREAD,  /* as even as can be over all of them, in order */
    HKT_TOPO_SHARE    /* the same, also where ranks outnumber them: neighbours share one */
};
/** A place for each of nranks: the core, l3, numa, package, host or gpu (`by`) it gets. No core or GPU is given to two, but
 *  by HKT_TOPO_SHARE.
 *  Errors   UNSUPPORTED: fewer cores or GPUs than ranks, or none; the text counts them */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_deal(const struct hkt_topo *topo, int nranks, enum hkt_topo_kind by,
                                                    enum hkt_topo_deal deal, int *out_nodes);

/** The order of ranks on a machine, and its levels. */
struct hkt_topo_order;

enum hkt_topo_level {
    HKT_TOPO_LEVEL_L3,
    HKT_TOPO_LEVEL_NUMA,
    HKT_TOPO_LEVEL_PACKAGE,
    HKT_TOPO_LEVEL_HOST,
    HKT_TOPO_LEVEL_RACK,
    HKT_TOPO_LEVEL_ALL,
    HKT_TOPO_LEVEL_COUNT
};

/** nodes[r] is where rank r runs. Gives *out_order, which holds no reference to topo. */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_order_create(const struct hkt_topo *topo, const int *nodes, int nranks,
                                                            struct hkt_topo_order **out_order);
HKT_API void hkt_topo_order_destroy(struct hkt_topo_order *order);
/** Ranks such that neighbours are close: [nranks], every group of every level is a contiguous part of it. */
HKT_API const int32_t *hkt_topo_order_ring(const struct hkt_topo_order *order);
/** Number of groups at a level; with out_first != NULL: group g is the part [first[g], first[g + 1]) of the ring. */
HKT_API int hkt_topo_order_groups(const struct hkt_topo_order *order, enum hkt_topo_level level,
                                  const int32_t **out_first);
/** A level that splits the ranks further than the one below it: factor i of the hierarchy, from the inside out. Each of
 *  its groups holds `least` to `most` groups of the factor below (of ranks, for i = 0). */
struct hkt_topo_factor {
    enum hkt_topo_level level;
    int groups, least, most;
};
/** INVALID past the end. One rank has no factors. */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_order_factor(const struct hkt_topo_order *order, int index,
                                                            struct hkt_topo_factor *out_factor);
/** A tree over all ranks that enters each group of each level once: out_parents[rank], -1 for the root. Binomial among the
 *  groups inside a group. */
HKT_API HKT_NODISCARD enum hkt_status hkt_topo_order_tree(const struct hkt_topo_order *order, int root,
                                                          int32_t *out_parents);
/** "l3", "numa", "package", "host", "rack", "all"; never NULL. */
HKT_API const char *hkt_topo_level_name(enum hkt_topo_level level);

#ifdef __cplusplus
}
#endif
#endif
