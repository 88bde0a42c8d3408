/* Nesting by CPU sets. Parts are placed from the largest set to the smallest, and owner[cpu] is the smallest part placed so
 * far that has this CPU: the part around the next one is found among the owners of its own CPUs. Sets of real machines are
 * nested or disjoint; where one is not, the part goes to the next one around that has all its CPUs. */
#include "topology/nest.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"

enum hkt_status hkt__topo_items_add(struct hkt__topo_items *items, const struct hkt__topo_item *item)
{
    if (item->kind < HKT_TOPO_SWITCH && CPU_COUNT(&item->cpus) == 0)
        return HKT_OK;
    if (items->count == items->room) {
        const int32_t room = items->room == 0 ? 64 : items->room * 2;
        struct hkt__topo_item *list =
            items->count < HKT_TOPO_NODES_MAX ? hkt__realloc(items->list, (size_t)room, sizeof *list) : NULL;

        if (list == NULL)
            return hkt__fail(HKT_ERR_NOMEM, "no memory for more than %d parts of this machine", items->count);
        items->list = list;
        items->room = room;
    }
    items->list[items->count++] = *item;
    return HKT_OK;
}

void hkt__topo_items_free(struct hkt__topo_items *items)
{
    hkt__free(items->list);
    *items = (struct hkt__topo_items){ 0 };
}

struct part {
    int32_t around; /* item; -1: the host */
    bool needed;
};

struct nest {
    struct hkt__topo_item *list;
    struct part *parts; /* [item] */
    int32_t *order;     /* parts from the outside in */
    int32_t count;
    int32_t owner[CPU_SETSIZE]; /* item, -1: none */
};

static int lowest_cpu(const cpu_set_t *cpus)
{
    int cpu = 0;

    while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, cpus))
        cpu++;
    return cpu;
}

static bool has_all(const cpu_set_t *outer, const cpu_set_t *inner)
{
    cpu_set_t both;

    CPU_AND(&both, outer, inner);
    return CPU_EQUAL(&both, inner);
}

/** The smallest part placed that has all these CPUs and may hold the kind; -1: the host. */
static int32_t around(const struct nest *nest, const cpu_set_t *cpus, enum hkt_topo_kind kind)
{
    int32_t i = CPU_COUNT(cpus) > 0 ? nest->owner[lowest_cpu(cpus)] : -1;

    while (i >= 0 && !(has_all(&nest->list[i].cpus, cpus) && hkt__topo_may_hold(nest->list[i].kind, kind)))
        i = nest->parts[i].around;
    return i;
}

struct sort_key {
    int32_t ncpus, kind, index, item;
};

/** ncpus: -1 for devices. */
static int compare_parts(const void *x, const void *y)
{
    const struct sort_key *a = x, *b = y;

    if (a->ncpus != b->ncpus)
        return a->ncpus > b->ncpus ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/** Largest first, at equal sets by kind; devices, which are in no order, last and as they came. */
static enum hkt_status sort_parts(struct nest *nest)
{
    struct sort_key *keys = hkt__calloc((size_t)nest->count + 1, sizeof *keys);

    if (keys == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to order %d parts of this machine", nest->count);
    for (int32_t i = 0; i < nest->count; i++) {
        const struct hkt__topo_item *item = &nest->list[i];
        const bool device = item->kind >= HKT_TOPO_SWITCH;

        keys[i] = (struct sort_key){ device ? -1 : CPU_COUNT(&item->cpus),
                                     device ? HKT_TOPO_SWITCH : (int32_t)item->kind, device ? i : item->index, i };
    }
    qsort(keys, (size_t)nest->count, sizeof *keys, compare_parts);
    for (int32_t i = 0; i < nest->count; i++)
        nest->order[i] = keys[i].item;
    hkt__free(keys);
    return HKT_OK;
}

static void place_part(struct nest *nest, int32_t i, const cpu_set_t *allowed)
{
    const struct hkt__topo_item *item = &nest->list[i];
    struct part *part = &nest->parts[i];
    cpu_set_t both;

    if (item->kind >= HKT_TOPO_SWITCH) {
        part->around = item->inside >= 0 ? item->inside : around(nest, &item->cpus, item->kind);
        for (int32_t k = i; k >= 0; k = nest->parts[k].around)
            nest->parts[k].needed = true;
        return;
    }
    part->around = around(nest, &item->cpus, item->kind);
    CPU_AND(&both, &item->cpus, allowed);
    part->needed = CPU_COUNT(&both) > 0;
    const int32_t now = nest->owner[lowest_cpu(&item->cpus)];

    if (now >= 0 && nest->list[now].kind == item->kind) {
        part->needed = false; /* memory without CPUs of its own, or the same part twice */
        return;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &item->cpus))
            nest->owner[cpu] = i;
}

static void add_links(struct hkt__topo_draft *draft, const struct hkt__topo_item *item)
{
    struct hkt_topo_link link = { .b = item->node, .a = hkt__topo_draft_node(draft, item->node)->parent };

    if (item->up_bytes_per_s != 0) {
        link.kind = HKT_TOPO_PCIE;
        link.source = HKT_TOPO_HWLOC;
        link.bytes_per_s = item->up_bytes_per_s;
        hkt__topo_draft_link(draft, &link);
    }
    if (item->net_bytes_per_s != 0) {
        link.a = 0;
        link.kind = HKT_TOPO_NETWORK;
        link.source = HKT_TOPO_SYSFS;
        link.bytes_per_s = item->net_bytes_per_s;
        hkt__topo_draft_link(draft, &link);
    }
}

static void add_nodes(struct nest *nest, struct hkt__topo_draft *draft, int32_t host)
{
    for (int32_t i = 0; i < nest->count && hkt__topo_draft_status(draft) == HKT_OK; i++) {
        struct hkt__topo_item *item = &nest->list[nest->order[i]];
        int32_t outer = nest->parts[nest->order[i]].around;
        struct hkt_topo_node node = { .kind = item->kind, .index = item->index, .bytes = item->bytes };

        if (!nest->parts[nest->order[i]].needed)
            continue;
        while (outer >= 0 && nest->list[outer].node < 0)
            outer = nest->parts[outer].around;
        node.parent = outer >= 0 ? nest->list[outer].node : host;
        if (node.index < 0)
            node.index = lowest_cpu(&item->cpus);
        memcpy(node.name, item->name, sizeof node.name);
        item->node = hkt__topo_draft_add(draft, &node);
        if (item->node >= 0)
            add_links(draft, item);
    }
}

enum hkt_status hkt__topo_nest(struct hkt__topo_draft *draft, int32_t host, struct hkt__topo_items *items,
                               const cpu_set_t *allowed)
{
    struct nest *nest = hkt__calloc(1, sizeof *nest);
    enum hkt_status rc = HKT_OK;

    if (nest != NULL) {
        nest->list = items->list;
        nest->count = items->count;
        nest->parts = hkt__calloc((size_t)items->count + 1, sizeof *nest->parts);
        nest->order = hkt__calloc((size_t)items->count + 1, sizeof *nest->order);
    }
    if (nest == NULL || nest->parts == NULL || nest->order == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for %d parts of this machine", items->count);
        goto free_nest;
    }
    rc = sort_parts(nest);
    if (rc < 0)
        goto free_nest;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        nest->owner[cpu] = -1;
    for (int32_t i = 0; i < nest->count; i++) {
        nest->list[i].node = -1;
        nest->parts[i].around = -1;
    }
    for (int32_t i = 0; i < nest->count; i++)
        place_part(nest, nest->order[i], allowed);
    add_nodes(nest, draft, host);
    rc = hkt__topo_draft_status(draft);

free_nest:
    if (nest != NULL) {
        hkt__free(nest->parts);
        hkt__free(nest->order);
    }
    hkt__free(nest);
    return rc;
}
