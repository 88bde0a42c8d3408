/* Where a rank is: the innermost node that holds all its CPUs; and the dealing of ranks to the cores or GPUs of a machine. */
#include <string.h>

#include "core/error.h"
#include "topology/detect.h"
#include "topology/order.h"

/** Number of the part of a kind around a node, -1: none. */
static int32_t number_around(const struct hkt_topo *topo, int32_t node, enum hkt_topo_kind kind)
{
    const int found = hkt_topo_ancestor(topo, node, kind);

    return found < 0 ? -1 : topo->nodes[found].index;
}

void hkt__topo_place_at(const struct hkt_topo *topo, int32_t node, struct hkt__topo_place *out_place)
{
    const int host = hkt_topo_ancestor(topo, node, HKT_TOPO_HOST);
    const enum hkt_topo_kind kind = topo->nodes[node].kind;

    *out_place = (struct hkt__topo_place){
        .host = host >= 0 ? topo->nodes[host].id : 0,
        .rack = number_around(topo, node, HKT_TOPO_RACK),
        .package = number_around(topo, node, HKT_TOPO_PACKAGE),
        .numa = number_around(topo, node, HKT_TOPO_NUMA),
        .l3 = number_around(topo, node, HKT_TOPO_L3),
        .core = number_around(topo, node, HKT_TOPO_CORE),
        .unit = kind == HKT_TOPO_PU || kind == HKT_TOPO_GPU ? topo->nodes[node].index : -1,
    };
}

void hkt__topo_place_cpus(const struct hkt_topo *topo, int32_t host, const cpu_set_t *cpus,
                          struct hkt__topo_place *out_place)
{
    int32_t node = -1;

    for (int32_t i = host; i < topo->nodes[host].end; i++) {
        const struct hkt_topo_node *pu = &topo->nodes[i];

        if (pu->kind == HKT_TOPO_PU && pu->index < CPU_SETSIZE && CPU_ISSET(pu->index, cpus))
            node = node < 0 ? i : hkt_topo_common(topo, node, i);
    }
    hkt__topo_place_at(topo, node < 0 ? host : node, out_place);
}

void hkt__topo_place_here(struct hkt__topo_place *out_place)
{
    const struct hkt__topo_detect_opts opts = { .reader = HKT__TOPO_READ_SYSFS };
    const struct hkt__error kept = *hkt__error_here();
    struct hkt_topo *topo = NULL;
    cpu_set_t all;

    *out_place = (struct hkt__topo_place){ hkt__topo_host_id(), -1, -1, -1, -1, -1, -1 };
    memset(&all, 0xff, sizeof all);
    if (hkt__topo_detect(&opts, &topo) != HKT_OK) {
        *hkt__error_here() = kept; /* it is no failure */
        return;
    }
    /* The graph holds what this thread may use, and nothing else. */
    hkt__topo_place_cpus(topo, hkt__topo_find(topo, 0, HKT_TOPO_HOST, -1), &all, out_place);
    hkt_topo_destroy(topo);
}

void hkt__topo_host_link(const struct hkt_topo *topo, int node, struct hkt_topo_link *out_link)
{
    const int host = hkt_topo_ancestor(topo, node, HKT_TOPO_HOST);

    *out_link = (struct hkt_topo_link){ .kind = HKT_TOPO_NETWORK };
    if (host >= 0 && topo->nodes[host].uplink >= 0)
        *out_link = topo->links[topo->nodes[host].uplink];
}

enum hkt_status hkt_topo_deal(const struct hkt_topo *topo, int nranks, enum hkt_topo_kind by, enum hkt_topo_deal deal,
                              int *out_nodes)
{
    const enum hkt_topo_kind unit = by == HKT_TOPO_GPU ? HKT_TOPO_GPU : HKT_TOPO_CORE;
    const char *unit_name = hkt_topo_kind_name(unit), *by_name = hkt_topo_kind_name(by);
    const int32_t count = hkt__topo_count(topo, 0, unit);
    int32_t rank = 0, nth = 0;

    if (nranks < 1 || by == HKT_TOPO_NET || by == HKT_TOPO_PU || by == HKT_TOPO_SWITCH || by == HKT_TOPO_NIC)
        return hkt__fail(HKT_ERR_INVALID,
                         "%d ranks cannot be dealt by %s; by core, l3, numa, package, host, rack or gpu", nranks,
                         by_name);
    if (count < (deal == HKT_TOPO_SHARE ? 1 : nranks))
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%d ranks, but %d %s%s", nranks, count, unit_name, count == 1 ? "" : "s");
    /* Rank r gets unit number r, or number r * count / nranks; both grow with r. */
    for (int32_t i = 0; i < topo->nnodes && rank < nranks; i++) {
        if (topo->nodes[i].kind != unit)
            continue;
        const int node = unit == HKT_TOPO_GPU ? i : hkt_topo_ancestor(topo, i, by);

        while (rank < nranks && nth == (deal == HKT_TOPO_COMPACT ? rank : (int32_t)((int64_t)rank * count / nranks))) {
            if (node < 0)
                return hkt__fail(HKT_ERR_UNSUPPORTED, "the system shows no %s around %s %d", by_name, unit_name,
                                 topo->nodes[i].index);
            out_nodes[rank++] = node;
        }
        nth++;
    }
    return HKT_OK;
}
