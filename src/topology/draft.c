/* Drafts of graphs: what the sources write into, and its conversion to the canonical form. Every node is entered in a hash
 * table by its identity (host, kind, index), so that a second one of the same identity is refused where it appears and
 * merging finds nodes in constant time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "topology/topo.h"

struct hkt__topo_draft {
    struct hkt_topo_node *nodes;
    int32_t *hosts;  /* [node]: enclosing host, -1: none */
    int32_t *depths; /* [node] */
    struct hkt_topo_link *links;
    int32_t *table; /* identity -> node + 1; 0: empty. Open addressing, a power of two of places, at most half full */
    int32_t nnodes, node_room, nlinks, link_room, table_room;
    enum hkt_status status;
};

struct hkt__topo_draft *hkt__topo_draft_create(void)
{
    struct hkt__topo_draft *draft = hkt__calloc(1, sizeof *draft);

    if (draft == NULL)
        (void)hkt__fail(HKT_ERR_NOMEM, "no memory for a topology");
    return draft;
}

void hkt__topo_draft_destroy(struct hkt__topo_draft *draft)
{
    if (draft == NULL)
        return;
    hkt__free(draft->nodes);
    hkt__free(draft->hosts);
    hkt__free(draft->depths);
    hkt__free(draft->links);
    hkt__free(draft->table);
    hkt__free(draft);
}

enum hkt_status hkt__topo_draft_status(const struct hkt__topo_draft *draft)
{
    return draft->status;
}

const struct hkt_topo_node *hkt__topo_draft_node(const struct hkt__topo_draft *draft, int32_t node)
{
    return &draft->nodes[node];
}

int32_t hkt__topo_draft_host(const struct hkt__topo_draft *draft, int32_t node)
{
    return draft->hosts[node];
}

static uint32_t hash(int32_t host, enum hkt_topo_kind kind, int32_t index)
{
    uint64_t x = ((uint64_t)(uint32_t)host << 32 | (uint32_t)index) * UINT64_C(0x9e3779b97f4a7c15) + (unsigned)kind;

    x = (x ^ x >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(x >> 32);
}

/** A host's identity is of the graph, not of itself. */
static int32_t scope(const struct hkt__topo_draft *draft, int32_t node)
{
    return draft->hosts[node] == node ? -1 : draft->hosts[node];
}

/** Place of an identity in the table: where it is, or where it would go. */
static int32_t *place(const struct hkt__topo_draft *draft, int32_t host, enum hkt_topo_kind kind, int32_t index)
{
    const uint32_t mask = (uint32_t)draft->table_room - 1;

    for (uint32_t i = hash(host, kind, index) & mask;; i = (i + 1) & mask) {
        const int32_t node = draft->table[i] - 1;

        if (node < 0
            || (draft->nodes[node].kind == kind && draft->nodes[node].index == index && scope(draft, node) == host))
            return &draft->table[i];
    }
}

int32_t hkt__topo_draft_find(const struct hkt__topo_draft *draft, int32_t host, enum hkt_topo_kind kind, int32_t index)
{
    return draft->table_room == 0 ? -1 : *place(draft, host, kind, index) - 1;
}

static bool grow_nodes(struct hkt__topo_draft *draft)
{
    const int32_t room = draft->node_room == 0 ? 64 : draft->node_room * 2;
    struct hkt_topo_node *nodes = hkt__realloc(draft->nodes, (size_t)room, sizeof *nodes);

    draft->nodes = nodes != NULL ? nodes : draft->nodes;
    int32_t *hosts = hkt__realloc(draft->hosts, (size_t)room, sizeof *hosts);

    draft->hosts = hosts != NULL ? hosts : draft->hosts;
    int32_t *depths = hkt__realloc(draft->depths, (size_t)room, sizeof *depths);

    draft->depths = depths != NULL ? depths : draft->depths;
    int32_t *table = hkt__calloc((size_t)room * 2, sizeof *table);

    if (nodes == NULL || hosts == NULL || depths == NULL || table == NULL) {
        hkt__free(table);
        draft->status = hkt__fail(HKT_ERR_NOMEM, "no memory for a topology of %d nodes", room);
        return false;
    }
    hkt__free(draft->table);
    draft->table = table;
    draft->table_room = room * 2;
    draft->node_room = room;
    for (int32_t i = 0; i < draft->nnodes; i++)
        *place(draft, scope(draft, i), draft->nodes[i].kind, draft->nodes[i].index) = i + 1;
    return true;
}

/** "" or why a node cannot be added. */
static const char *refuse(const struct hkt__topo_draft *draft, const struct hkt_topo_node *node)
{
    static _Thread_local char why[160];
    const char *kind = hkt_topo_kind_name(node->kind);

    why[0] = '\0';
    if (draft->nnodes >= HKT_TOPO_NODES_MAX) {
        snprintf(why, sizeof why, "more than %d nodes", HKT_TOPO_NODES_MAX);
    } else if (node->parent < 0) {
        if (node->kind != HKT_TOPO_NET || draft->nnodes > 0)
            snprintf(why, sizeof why, "a graph has one root, a net; %s %d lies in nothing", kind, node->index);
    } else if (!hkt__topo_may_hold(draft->nodes[node->parent].kind, node->kind)) {
        snprintf(why, sizeof why, "a %s cannot lie in a %s", kind, hkt_topo_kind_name(draft->nodes[node->parent].kind));
    } else if (draft->depths[node->parent] + 1 >= HKT__TOPO_DEPTH_MAX) {
        snprintf(why, sizeof why, "nodes lie at most %d deep", HKT__TOPO_DEPTH_MAX);
    } else if (node->index < 0) {
        snprintf(why, sizeof why, "%s %d: numbers begin at 0", kind, node->index);
    } else if (hkt__topo_draft_find(draft, node->kind == HKT_TOPO_HOST ? -1 : draft->hosts[node->parent], node->kind,
                                    node->index)
               >= 0) {
        snprintf(why, sizeof why, "there are two of %s %d%s", kind, node->index,
                 draft->hosts[node->parent] >= 0 ? " in one host" : "");
    }
    return why;
}

/** Names go into texts as one word. */
static void copy_name(char out[HKT_TOPO_NAME_MAX], const char *name)
{
    size_t i = 0;

    for (; name[i] != '\0' && i + 1 < HKT_TOPO_NAME_MAX; i++)
        out[i] = name[i] > ' ' && name[i] <= '~' ? name[i] : '_';
    memset(out + i, 0, HKT_TOPO_NAME_MAX - i);
}

int32_t hkt__topo_draft_add(struct hkt__topo_draft *draft, const struct hkt_topo_node *node)
{
    if (draft->status < 0)
        return -1;
    if (refuse(draft, node)[0] != '\0') {
        draft->status = hkt__fail(HKT_ERR_INVALID, "%s", refuse(draft, node));
        return -1;
    }
    if (draft->nnodes == draft->node_room && !grow_nodes(draft))
        return -1;
    const int32_t id = draft->nnodes++;

    draft->nodes[id] = (struct hkt_topo_node){ .kind = node->kind,
                                               .index = node->index,
                                               .parent = node->parent < 0 ? -1 : node->parent,
                                               .uplink = -1,
                                               .id = node->id,
                                               .bytes = node->bytes };
    copy_name(draft->nodes[id].name, node->name);
    draft->hosts[id] = node->kind == HKT_TOPO_HOST ? id : node->parent < 0 ? -1 : draft->hosts[node->parent];
    draft->depths[id] = node->parent < 0 ? 0 : draft->depths[node->parent] + 1;
    *place(draft, scope(draft, id), node->kind, node->index) = id + 1;
    return id;
}

void hkt__topo_draft_link(struct hkt__topo_draft *draft, const struct hkt_topo_link *link)
{
    struct hkt_topo_link *new;

    if (draft->status < 0)
        return;
    if (link->a == link->b || link->bytes_per_s > HKT__TOPO_RATE_MAX || link->latency_ns > HKT__TOPO_LATENCY_MAX) {
        draft->status = hkt__fail(HKT_ERR_INVALID, link->a == link->b ? "a link joins two nodes, not one to itself"
                                                                      : "a link has at most 1000TB/s and 100ms");
        return;
    }
    if (draft->nlinks == draft->link_room) {
        const int32_t room = draft->link_room == 0 ? 64 : draft->link_room * 2;
        struct hkt_topo_link *links =
            draft->nlinks < 4 * HKT_TOPO_NODES_MAX ? hkt__realloc(draft->links, (size_t)room, sizeof *links) : NULL;

        if (links == NULL) {
            draft->status = hkt__fail(HKT_ERR_NOMEM, "no memory for a topology of more than %d links", draft->nlinks);
            return;
        }
        draft->links = links;
        draft->link_room = room;
    }
    new = &draft->links[draft->nlinks++];
    *new = *link;
    if (link->b < link->a) {
        new->a = link->b;
        new->b = link->a;
    }
    /* A parent was added before its child, so it is a. */
    if (draft->nodes[new->b].parent == new->a && draft->nodes[new->b].uplink < 0)
        draft->nodes[new->b].uplink = draft->nlinks - 1;
}

void hkt__topo_draft_assume(struct hkt__topo_draft *draft)
{
    for (int32_t i = 1; i < draft->nnodes; i++) {
        struct hkt_topo_link link;

        if (draft->nodes[i].uplink >= 0 || !hkt__topo_typical(draft->nodes[i].kind, &link))
            continue;
        link.a = draft->nodes[i].parent;
        link.b = i;
        hkt__topo_draft_link(draft, &link);
    }
}

/* Finishing. */

struct sibling {
    int32_t parent, kind, index, node;
};

static int compare_siblings(const void *x, const void *y)
{
    const struct sibling *a = x, *b = y;

    if (a->parent != b->parent)
        return a->parent < b->parent ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/** out_new[node of the draft] = its number in preorder. */
static enum hkt_status number_nodes(const struct hkt__topo_draft *draft, int32_t *out_new)
{
    const int32_t n = draft->nnodes;
    struct sibling *siblings = hkt__calloc((size_t)n, sizeof *siblings);
    int32_t *first = hkt__calloc((size_t)n + 1, sizeof *first), *stack = hkt__calloc((size_t)n, sizeof *stack);
    int32_t depth = 0, next = 0;
    enum hkt_status rc = HKT_OK;

    if (siblings == NULL || first == NULL || stack == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory to order %d nodes", n);
        goto free_arrays;
    }
    for (int32_t i = 0; i < n; i++)
        siblings[i] =
            (struct sibling){ draft->nodes[i].parent, (int32_t)draft->nodes[i].kind, draft->nodes[i].index, i };
    qsort(siblings, (size_t)n, sizeof *siblings, compare_siblings);
    for (int32_t i = 0, parent = 0; parent <= n; parent++) {
        while (i < n && siblings[i].parent < parent)
            i++;
        first[parent] = i;
    }
    stack[depth++] = 0; /* the root was added first */
    while (depth > 0) {
        const int32_t node = stack[--depth];

        out_new[node] = next++;
        for (int32_t i = first[node + 1]; i-- > first[node];)
            stack[depth++] = siblings[i].node;
    }

free_arrays:
    hkt__free(siblings);
    hkt__free(first);
    hkt__free(stack);
    return rc;
}

static void place_nodes(const struct hkt__topo_draft *draft, const int32_t *new_of, struct hkt_topo *topo)
{
    for (int32_t i = 0; i < draft->nnodes; i++) {
        struct hkt_topo_node *node = &topo->nodes[new_of[i]];

        *node = draft->nodes[i];
        node->parent = node->parent < 0 ? -1 : new_of[node->parent];
        node->uplink = -1;
        node->end = new_of[i] + 1;
    }
    for (int32_t i = draft->nnodes - 1; i > 0; i--) {
        struct hkt_topo_node *parent = &topo->nodes[topo->nodes[i].parent];

        if (parent->end < topo->nodes[i].end)
            parent->end = topo->nodes[i].end;
    }
}

static int compare_links(const void *x, const void *y)
{
    const struct hkt_topo_link *a = x, *b = y;

    if (a->a != b->a)
        return a->a < b->a ? -1 : 1;
    if (a->b != b->b)
        return a->b < b->b ? -1 : 1;
    return a->kind < b->kind ? -1 : a->kind > b->kind;
}

static int compare_ends(const void *x, const void *y)
{
    const struct hkt_topo_link *a = x, *b = y;

    return a->b < b->b ? -1 : a->b > b->b;
}

static enum hkt_status place_links(const struct hkt__topo_draft *draft, const int32_t *new_of, struct hkt_topo *topo)
{
    int32_t up = 0, other = draft->nlinks;

    for (int32_t i = 0; i < draft->nlinks; i++) {
        const struct hkt_topo_link *link = &draft->links[i];
        const bool is_up = draft->nodes[link->b].uplink == i;
        struct hkt_topo_link *new = &topo->links[is_up ? up++ : --other];

        *new = *link;
        new->a = new_of[link->a] < new_of[link->b] ? new_of[link->a] : new_of[link->b];
        new->b = new_of[link->a] < new_of[link->b] ? new_of[link->b] : new_of[link->a];
    }
    topo->nuplinks = up;
    qsort(topo->links, (size_t)up, sizeof *topo->links, compare_ends);
    qsort(topo->links + up, (size_t)(topo->nlinks - up), sizeof *topo->links, compare_links);
    for (int32_t i = 0; i < up; i++)
        topo->nodes[topo->links[i].b].uplink = i;
    for (int32_t i = up; i < topo->nlinks; i++) {
        const struct hkt_topo_link *link = &topo->links[i];
        const int32_t uplink = topo->nodes[link->b].uplink;
        const bool again = i > up && compare_links(link - 1, link) == 0;

        if (again || (uplink >= 0 && compare_links(&topo->links[uplink], link) == 0)) {
            char a[HKT_TOPO_NAME_MAX], b[HKT_TOPO_NAME_MAX];

            hkt__topo_node_text(topo, link->a, a, sizeof a);
            hkt__topo_node_text(topo, link->b, b, sizeof b);
            return hkt__fail(HKT_ERR_INVALID, "two %s links join %s and %s", hkt_topo_link_name(link->kind), a, b);
        }
    }
    return HKT_OK;
}

enum hkt_status hkt__topo_draft_finish(struct hkt__topo_draft *draft, struct hkt_topo **out_topo)
{
    enum hkt_status rc = draft->status;
    struct hkt_topo *topo = hkt__calloc(1, sizeof *topo);
    int32_t *new_of = hkt__calloc((size_t)draft->nnodes + 1, sizeof *new_of);

    if (rc == HKT_OK && draft->nnodes == 0)
        rc = hkt__fail(HKT_ERR_INVALID, "a graph without nodes");
    if (rc < 0)
        goto destroy;
    if (topo != NULL) {
        topo->nnodes = draft->nnodes;
        topo->nlinks = draft->nlinks;
        topo->nodes = hkt__calloc((size_t)topo->nnodes, sizeof *topo->nodes);
        topo->links = hkt__calloc((size_t)topo->nlinks + 1, sizeof *topo->links);
    }
    if (topo == NULL || new_of == NULL || topo->nodes == NULL || topo->links == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for a topology of %d nodes", draft->nnodes);
        goto destroy;
    }
    rc = number_nodes(draft, new_of);
    if (rc < 0)
        goto destroy;
    place_nodes(draft, new_of, topo);
    rc = place_links(draft, new_of, topo);

destroy:
    hkt__free(new_of);
    hkt__topo_draft_destroy(draft);
    if (rc < 0)
        hkt_topo_destroy(topo);
    else
        *out_topo = topo;
    return rc;
}
