/* The kinds of nodes and links: names, what may lie in what, and typical numbers for links nobody has measured. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "topology/topo.h"

#define BIT(kind) (1u << (kind))
#define HOLDS_DEVICES (BIT(HKT_TOPO_HOST) | BIT(HKT_TOPO_PACKAGE) | BIT(HKT_TOPO_NUMA))
#define HOLDS_CORES (HOLDS_DEVICES | BIT(HKT_TOPO_L3))

static const char *const kind_names[HKT_TOPO_KIND_COUNT] = {
#define KIND_NAME(name, text) [name] = text,
    HKT_TOPO_KIND_TABLE(KIND_NAME)
#undef KIND_NAME
};
static const char *const link_names[HKT_TOPO_LINK_COUNT] = {
#define LINK_NAME(name, text) [name] = text,
    HKT_TOPO_LINK_TABLE(LINK_NAME)
#undef LINK_NAME
};
static const char *const source_names[HKT_TOPO_SOURCE_COUNT] = {
#define SOURCE_NAME(name, text) [name] = text,
    HKT_TOPO_SOURCE_TABLE(SOURCE_NAME)
#undef SOURCE_NAME
};

/* Which kinds a node of each kind may lie in. NUMA nodes and L3 caches nest either way: an AMD NUMA node has several L3,
 * an Intel L3 with sub-NUMA clusters has several NUMA nodes. */
static const unsigned outer_kinds[HKT_TOPO_KIND_COUNT] = {
    [HKT_TOPO_RACK] = BIT(HKT_TOPO_NET),
    [HKT_TOPO_HOST] = BIT(HKT_TOPO_NET) | BIT(HKT_TOPO_RACK),
    [HKT_TOPO_PACKAGE] = BIT(HKT_TOPO_HOST) | BIT(HKT_TOPO_NUMA),
    [HKT_TOPO_NUMA] = BIT(HKT_TOPO_HOST) | BIT(HKT_TOPO_PACKAGE) | BIT(HKT_TOPO_L3),
    [HKT_TOPO_L3] = BIT(HKT_TOPO_HOST) | BIT(HKT_TOPO_PACKAGE) | BIT(HKT_TOPO_NUMA),
    [HKT_TOPO_CORE] = HOLDS_CORES,
    [HKT_TOPO_PU] = HOLDS_CORES | BIT(HKT_TOPO_CORE),
    [HKT_TOPO_SWITCH] = HOLDS_DEVICES | BIT(HKT_TOPO_SWITCH),
    [HKT_TOPO_GPU] = HOLDS_DEVICES | BIT(HKT_TOPO_SWITCH),
    [HKT_TOPO_NIC] = HOLDS_DEVICES | BIT(HKT_TOPO_SWITCH),
};

/* Numbers for links that no source knows; none for switches, which are of many kinds. Latencies are such that a cache line between two cores takes 60 ns within an L3,
 * 100 within a NUMA node, 120 within a package and 220 across packages, and a small message between hosts 5 us: the middle
 * of what is published for x86 servers (50-120 ns same socket, 150-300 ns across; 5 us is a usual alpha). Bandwidths: one
 * core copies about 10-20 GB/s; an AMD core complex reads about 50 GB/s; a NUMA node of 4 DDR5 channels gives about 100;
 * NCCL takes 12 GB/s for PCI Express 3.0 x16 and for a network it knows nothing of, and 6 to 40 between sockets. */
static const struct hkt_topo_link typical[HKT_TOPO_KIND_COUNT] = {
    [HKT_TOPO_RACK] = { .kind = HKT_TOPO_NETWORK, .latency_ns = 500 },
    [HKT_TOPO_HOST] = { .kind = HKT_TOPO_NETWORK, .bytes_per_s = 12000000000, .latency_ns = 2500 },
    [HKT_TOPO_PACKAGE] = { .kind = HKT_TOPO_SOCKET, .bytes_per_s = 20000000000, .latency_ns = 50 },
    [HKT_TOPO_NUMA] = { .kind = HKT_TOPO_MEMORY, .bytes_per_s = 100000000000, .latency_ns = 10 },
    [HKT_TOPO_L3] = { .kind = HKT_TOPO_MEMORY, .bytes_per_s = 50000000000, .latency_ns = 20 },
    [HKT_TOPO_CORE] = { .kind = HKT_TOPO_CACHE, .bytes_per_s = 15000000000, .latency_ns = 30 },
    [HKT_TOPO_GPU] = { .kind = HKT_TOPO_PCIE, .bytes_per_s = 12000000000, .latency_ns = 500 },
    [HKT_TOPO_NIC] = { .kind = HKT_TOPO_PCIE, .bytes_per_s = 12000000000, .latency_ns = 500 },
};

bool hkt__topo_may_hold(enum hkt_topo_kind outer, enum hkt_topo_kind inner)
{
    return (outer_kinds[inner] & BIT(outer)) != 0;
}

bool hkt__topo_typical(enum hkt_topo_kind kind, struct hkt_topo_link *out_link)
{
    *out_link = typical[kind];
    out_link->source = HKT_TOPO_ASSUMED;
    return typical[kind].latency_ns != 0;
}

static int find(const char *const *names, int count, const char *text)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    return -1;
}

int hkt__topo_kind_find(const char *text)
{
    return find(kind_names, HKT_TOPO_KIND_COUNT, text);
}

int hkt__topo_link_find(const char *text)
{
    return find(link_names, HKT_TOPO_LINK_COUNT, text);
}

int hkt__topo_source_find(const char *text)
{
    return find(source_names, HKT_TOPO_SOURCE_COUNT, text);
}

const char *hkt_topo_kind_name(enum hkt_topo_kind kind)
{
    return (unsigned)kind < HKT_TOPO_KIND_COUNT ? kind_names[kind] : "?";
}

const char *hkt_topo_link_name(enum hkt_topo_link_kind kind)
{
    return (unsigned)kind < HKT_TOPO_LINK_COUNT ? link_names[kind] : "?";
}

const char *hkt_topo_source_name(enum hkt_topo_source source)
{
    return (unsigned)source < HKT_TOPO_SOURCE_COUNT ? source_names[source] : "?";
}

enum hkt_status hkt_topo_kind_parse(const char *text, enum hkt_topo_kind *out_kind)
{
    const int kind = hkt__topo_kind_find(text);
    char known[128] = "";
    size_t used = 0;

    if (kind >= 0) {
        *out_kind = (enum hkt_topo_kind)kind;
        return HKT_OK;
    }
    for (int i = 0; i < HKT_TOPO_KIND_COUNT; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", kind_names[i]);
    return hkt__fail(HKT_ERR_INVALID, "\"%.32s\" is no part of a machine; there are %s", text, known);
}
