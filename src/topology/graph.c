/* Questions to a graph. Nodes stand in preorder, so a subtree is a range and most answers are short loops. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "topology/topo.h"

void hkt_topo_destroy(struct hkt_topo *topo)
{
    if (topo == NULL)
        return;
    hkt__free(topo->nodes);
    hkt__free(topo->links);
    hkt__free(topo);
}

int hkt_topo_node_count(const struct hkt_topo *topo)
{
    return topo->nnodes;
}

int hkt_topo_link_count(const struct hkt_topo *topo)
{
    return topo->nlinks;
}

const struct hkt_topo_node *hkt_topo_node_get(const struct hkt_topo *topo, int index)
{
    return index >= 0 && index < topo->nnodes ? &topo->nodes[index] : NULL;
}

const struct hkt_topo_link *hkt_topo_link_get(const struct hkt_topo *topo, int index)
{
    return index >= 0 && index < topo->nlinks ? &topo->links[index] : NULL;
}

int hkt_topo_common(const struct hkt_topo *topo, int a, int b)
{
    while (!hkt__topo_contains(topo, a, b))
        a = topo->nodes[a].parent;
    return a;
}

int hkt_topo_ancestor(const struct hkt_topo *topo, int node, enum hkt_topo_kind kind)
{
    while (node >= 0 && topo->nodes[node].kind != kind)
        node = topo->nodes[node].parent;
    return node;
}

int32_t hkt__topo_find(const struct hkt_topo *topo, int32_t within, enum hkt_topo_kind kind, int32_t index)
{
    for (int32_t i = within; i < topo->nodes[within].end; i++)
        if (topo->nodes[i].kind == kind && (index < 0 || topo->nodes[i].index == index))
            return i;
    return -1;
}

int32_t hkt__topo_count(const struct hkt_topo *topo, int32_t within, enum hkt_topo_kind kind)
{
    int32_t count = 0;

    for (int32_t i = within; i < topo->nodes[within].end; i++)
        count += topo->nodes[i].kind == kind;
    return count;
}

void hkt__topo_node_text(const struct hkt_topo *topo, int32_t node, char *out_text, size_t bytes)
{
    const struct hkt_topo_node *it = &topo->nodes[node];
    const int host = hkt_topo_ancestor(topo, node, HKT_TOPO_HOST);

    if (host >= 0 && host != node)
        snprintf(out_text, bytes, "host%d/%s%d", topo->nodes[host].index, hkt_topo_kind_name(it->kind), it->index);
    else
        snprintf(out_text, bytes, "%s%d", hkt_topo_kind_name(it->kind), it->index);
}

static bool same_node(const struct hkt_topo_node *x, const struct hkt_topo_node *y)
{
    return x->kind == y->kind && x->index == y->index && x->parent == y->parent && x->end == y->end
           && x->uplink == y->uplink && x->id == y->id && x->bytes == y->bytes && strcmp(x->name, y->name) == 0;
}

static bool same_link(const struct hkt_topo_link *x, const struct hkt_topo_link *y)
{
    return x->a == y->a && x->b == y->b && x->kind == y->kind && x->source == y->source
           && x->bytes_per_s == y->bytes_per_s && x->latency_ns == y->latency_ns;
}

bool hkt__topo_equal(const struct hkt_topo *x, const struct hkt_topo *y)
{
    if (x->nnodes != y->nnodes || x->nlinks != y->nlinks || x->nuplinks != y->nuplinks)
        return false;
    for (int32_t i = 0; i < x->nnodes; i++)
        if (!same_node(&x->nodes[i], &y->nodes[i]))
            return false;
    for (int32_t i = 0; i < x->nlinks; i++)
        if (!same_link(&x->links[i], &y->links[i]))
            return false;
    return true;
}

/** Put one more link at the end of a route. */
static void extend(struct hkt_topo_link *route, const struct hkt_topo_link *link)
{
    route->latency_ns += link->latency_ns;
    if (link->bytes_per_s != 0 && (route->bytes_per_s == 0 || link->bytes_per_s < route->bytes_per_s)) {
        route->bytes_per_s = link->bytes_per_s;
        route->kind = link->kind;
        route->source = link->source;
    }
}

static void climb(const struct hkt_topo *topo, int32_t from, int32_t to, struct hkt_topo_link *route)
{
    for (int32_t i = from; i != to; i = topo->nodes[i].parent)
        if (topo->nodes[i].uplink >= 0)
            extend(route, &topo->links[topo->nodes[i].uplink]);
}

/** The link that joins two nodes outside the tree, NULL: none. */
static const struct hkt_topo_link *joint(const struct hkt_topo *topo, int32_t a, int32_t b)
{
    for (int32_t i = topo->nuplinks; i < topo->nlinks; i++) {
        const struct hkt_topo_link *link = &topo->links[i];

        if ((link->a == a && link->b == b) || (link->a == b && link->b == a))
            return link;
    }
    return NULL;
}

/** Through switches that are linked to both ends, all of them together; false: there is none. */
static bool through_switches(const struct hkt_topo *topo, int32_t a, int32_t b, struct hkt_topo_link *out_route)
{
    bool found = false;

    for (int32_t i = topo->nuplinks; i < topo->nlinks; i++) {
        const struct hkt_topo_link *link = &topo->links[i];
        const int32_t via = link->a == a ? link->b : link->b == a ? link->a : -1;
        const struct hkt_topo_link *second =
            via >= 0 && topo->nodes[via].kind == HKT_TOPO_SWITCH ? joint(topo, via, b) : NULL;
        struct hkt_topo_link one = { .kind = link->kind, .source = link->source };

        if (second == NULL)
            continue;
        extend(&one, link);
        extend(&one, second);
        if (!found)
            *out_route = one;
        else
            out_route->bytes_per_s += one.bytes_per_s;
        found = true;
    }
    return found;
}

void hkt_topo_route(const struct hkt_topo *topo, int a, int b, struct hkt_topo_link *out_route)
{
    const struct hkt_topo_link *direct = joint(topo, a, b);
    struct hkt_topo_link route = { 0 };

    if (direct != NULL) {
        route = *direct;
    } else if (!through_switches(topo, a, b, &route)) {
        const int top = hkt_topo_common(topo, a, b);

        climb(topo, a, top, &route);
        climb(topo, b, top, &route);
    }
    route.a = a < b ? a : b;
    route.b = a < b ? b : a;
    *out_route = route;
}
