/* Writing the text form of a graph (text.h). What it writes, from_text.c reads back as the same graph. */
#include <inttypes.h>
#include <stdio.h>

#include "core/error.h"
#include "topology/text.h"

static void write_link(const struct hkt_topo_link *link, FILE *file)
{
    char rate[32] = "-", time[32] = "-";

    if (link->bytes_per_s != 0)
        hkt_topo_rate_text(link->bytes_per_s, rate, sizeof rate);
    if (link->latency_ns != 0)
        hkt_topo_time_text(link->latency_ns, time, sizeof time);
    fprintf(file, "%s:%s:%s:%s", hkt_topo_link_name(link->kind), rate, time, hkt_topo_source_name(link->source));
}

static void write_node(const struct hkt_topo *topo, int32_t id, int depth, FILE *file)
{
    const struct hkt_topo_node *node = &topo->nodes[id];
    char size[32];

    fprintf(file, "%*s%s %d", 2 * depth, "", hkt_topo_kind_name(node->kind), node->index);
    if (node->name[0] != '\0')
        fprintf(file, " name=%s", node->name);
    if (node->id != 0)
        fprintf(file, " id=%" PRIx64, node->id);
    if (node->bytes != 0) {
        hkt_topo_size_text(node->bytes, size, sizeof size);
        fprintf(file, " bytes=%s", size);
    }
    if (node->uplink >= 0) {
        fputs(" link=", file);
        write_link(&topo->links[node->uplink], file);
    }
    putc('\n', file);
}

enum hkt_status hkt_topo_save(const struct hkt_topo *topo, FILE *file)
{
    int32_t ends[HKT__TOPO_DEPTH_MAX];
    int depth = 0;

    fputs("hocket-topology 1\n", file);
    for (int32_t i = 0; i < topo->nnodes; i++) {
        while (depth > 0 && ends[depth - 1] <= i)
            depth--;
        write_node(topo, i, depth, file);
        ends[depth++] = topo->nodes[i].end;
    }
    for (int32_t i = topo->nuplinks; i < topo->nlinks; i++) {
        char a[HKT_TOPO_NAME_MAX], b[HKT_TOPO_NAME_MAX];

        hkt__topo_node_text(topo, topo->links[i].a, a, sizeof a);
        hkt__topo_node_text(topo, topo->links[i].b, b, sizeof b);
        fprintf(file, "link %s %s ", a, b);
        write_link(&topo->links[i], file);
        putc('\n', file);
    }
    return ferror(file) ? hkt__fail_sys(HKT_ERR_SYSTEM, "a topology could not be written") : HKT_OK;
}
