/* `hocket topo --json`: nodes and links as they are in the graph, and what follows for the ranks. */
#include <cjson/cJSON.h>
#include <inttypes.h>

#include "tools.h"
#include "topo.h"

static cJSON *nodes_json(const struct hkt_topo *topo)
{
    const struct hkt_topo_node *node;
    cJSON *list = cJSON_CreateArray();
    char id[24];

    for (int i = 0; (node = hkt_topo_node_get(topo, i)) != NULL; i++) {
        cJSON *row = cJSON_CreateObject();

        cJSON_AddStringToObject(row, "kind", hkt_topo_kind_name(node->kind));
        cJSON_AddNumberToObject(row, "index", node->index);
        cJSON_AddNumberToObject(row, "parent", node->parent);
        if (node->name[0] != '\0')
            cJSON_AddStringToObject(row, "name", node->name);
        if (node->id != 0) {
            snprintf(id, sizeof id, "%" PRIx64, node->id); /* 64 bits do not fit in a JSON number */
            cJSON_AddStringToObject(row, "id", id);
        }
        if (node->bytes != 0)
            cJSON_AddNumberToObject(row, "bytes", (double)node->bytes);
        cJSON_AddItemToArray(list, row);
    }
    return list;
}

static cJSON *links_json(const struct hkt_topo *topo)
{
    const struct hkt_topo_link *link;
    cJSON *list = cJSON_CreateArray();

    for (int i = 0; (link = hkt_topo_link_get(topo, i)) != NULL; i++) {
        cJSON *row = cJSON_CreateObject();

        cJSON_AddNumberToObject(row, "a", link->a);
        cJSON_AddNumberToObject(row, "b", link->b);
        cJSON_AddStringToObject(row, "kind", hkt_topo_link_name(link->kind));
        if (link->bytes_per_s != 0)
            cJSON_AddNumberToObject(row, "bytes_per_s", (double)link->bytes_per_s);
        if (link->latency_ns != 0)
            cJSON_AddNumberToObject(row, "latency_ns", link->latency_ns);
        cJSON_AddStringToObject(row, "source", hkt_topo_source_name(link->source));
        cJSON_AddItemToArray(list, row);
    }
    return list;
}

static cJSON *levels_json(const struct topo_view *view)
{
    cJSON *list = cJSON_CreateArray();
    const int32_t *ring = hkt_topo_order_ring(view->order);

    for (int l = 0; l < HKT_TOPO_LEVEL_COUNT; l++) {
        cJSON *row = cJSON_CreateObject(), *groups = cJSON_AddArrayToObject(row, "groups");
        const int32_t *first;
        const int count = hkt_topo_order_groups(view->order, (enum hkt_topo_level)l, &first);

        cJSON_AddStringToObject(row, "level", hkt_topo_level_name((enum hkt_topo_level)l));
        for (int g = 0; g < count; g++)
            cJSON_AddItemToArray(groups, cJSON_CreateIntArray(ring + first[g], first[g + 1] - first[g]));
        cJSON_AddItemToArray(list, row);
    }
    return list;
}

static cJSON *factors_json(const struct topo_view *view)
{
    cJSON *list = cJSON_CreateArray();
    struct hkt_topo_factor factor;

    for (int i = 0; hkt_topo_order_factor(view->order, i, &factor) == HKT_OK; i++) {
        cJSON *row = cJSON_CreateObject();

        cJSON_AddStringToObject(row, "level", hkt_topo_level_name(factor.level));
        cJSON_AddNumberToObject(row, "groups", factor.groups);
        cJSON_AddNumberToObject(row, "least", factor.least);
        cJSON_AddNumberToObject(row, "most", factor.most);
        cJSON_AddItemToArray(list, row);
    }
    return list;
}

int topo_json(const struct topo_view *view)
{
    cJSON *root = cJSON_CreateObject();

    cJSON_AddStringToObject(root, "source", view->source);
    cJSON_AddItemToObject(root, "nodes", nodes_json(view->topo));
    cJSON_AddItemToObject(root, "links", links_json(view->topo));
    if (view->nranks > 0) {
        cJSON *ranks = cJSON_AddObjectToObject(root, "ranks");

        if (view->dealt)
            cJSON_AddStringToObject(ranks, "by", hkt_topo_kind_name(view->by));
        cJSON_AddItemToObject(ranks, "nodes", cJSON_CreateIntArray(view->nodes, view->nranks));
        cJSON_AddItemToObject(ranks, "ring", cJSON_CreateIntArray(hkt_topo_order_ring(view->order), view->nranks));
        cJSON_AddItemToObject(ranks, "parents", cJSON_CreateIntArray(view->parents, view->nranks));
        cJSON_AddItemToObject(ranks, "levels", levels_json(view));
        cJSON_AddItemToObject(ranks, "factors", factors_json(view));
    }
    return hkt_tool_print_json("topo", root);
}
