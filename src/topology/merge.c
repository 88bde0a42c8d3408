/* Merging views. Views are taken host by host and, within a host, rank by rank; a node is the same as one that is there if it
 * has its kind and number (devices with a name: its kind and name) in the same host. */
#include "topology/merge.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"

struct view {
    uint64_t host;
    int32_t rank, first; /* first: lowest rank of its host */
    struct hkt_topo *topo;
};

struct merging {
    struct hkt__topo_draft *draft;
    int32_t host, nhosts;
    int32_t *devices; /* nodes of the host at hand that have names */
    int32_t ndevices, room;
};

static int compare_hosts(const void *x, const void *y)
{
    const struct view *a = x, *b = y;

    if (a->host != b->host)
        return a->host < b->host ? -1 : 1;
    return a->rank < b->rank ? -1 : 1;
}

static int compare_views(const void *x, const void *y)
{
    const struct view *a = x, *b = y;

    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->rank < b->rank ? -1 : 1;
}

static enum hkt_status note_device(struct merging *merging, int32_t node)
{
    if (merging->ndevices == merging->room) {
        const int32_t room = merging->room == 0 ? 16 : merging->room * 2;
        int32_t *devices = hkt__realloc(merging->devices, (size_t)room, sizeof *devices);

        if (devices == NULL)
            return hkt__fail(HKT_ERR_NOMEM, "no memory to merge topologies");
        merging->devices = devices;
        merging->room = room;
    }
    merging->devices[merging->ndevices++] = node;
    return HKT_OK;
}

/** The node that is there already, -1: none. A device with a taken number but another name gets the next free number. */
static int32_t find_same(const struct merging *merging, struct hkt_topo_node *node)
{
    if (node->kind < HKT_TOPO_SWITCH || node->name[0] == '\0')
        return hkt__topo_draft_find(merging->draft, merging->host, node->kind, node->index);
    for (int32_t i = 0; i < merging->ndevices; i++) {
        const struct hkt_topo_node *there = hkt__topo_draft_node(merging->draft, merging->devices[i]);

        if (there->kind == node->kind && strcmp(there->name, node->name) == 0)
            return merging->devices[i];
    }
    while (hkt__topo_draft_find(merging->draft, merging->host, node->kind, node->index) >= 0 && node->index < INT32_MAX)
        node->index++;
    return -1;
}

static int32_t add_host(struct merging *merging, struct hkt_topo_node *node)
{
    node->parent = 0;
    node->index = merging->nhosts++;
    merging->host = hkt__topo_draft_add(merging->draft, node);
    merging->ndevices = 0;
    return merging->host;
}

/** new_of[node of the view] in the merged graph; is_new: added by this view. */
static enum hkt_status add_view_nodes(struct merging *merging, const struct view *view, bool is_new_host,
                                      int32_t *new_of, bool *is_new)
{
    for (int32_t i = 0; i < view->topo->nnodes; i++) {
        struct hkt_topo_node node = view->topo->nodes[i];

        if (node.kind == HKT_TOPO_NET || (node.kind == HKT_TOPO_HOST && !is_new_host)) {
            new_of[i] = node.kind == HKT_TOPO_NET ? 0 : merging->host;
            continue;
        }
        new_of[i] = node.kind == HKT_TOPO_HOST ? -1 : find_same(merging, &node);
        if (new_of[i] >= 0)
            continue;
        is_new[i] = true;
        node.parent = node.parent >= 0 ? new_of[node.parent] : -1;
        new_of[i] = node.kind == HKT_TOPO_HOST ? add_host(merging, &node) : hkt__topo_draft_add(merging->draft, &node);
        if (new_of[i] < 0)
            return hkt__topo_draft_status(merging->draft);
        const enum hkt_status rc =
            node.kind >= HKT_TOPO_SWITCH && node.name[0] != '\0' ? note_device(merging, new_of[i]) : HKT_OK;

        if (rc < 0)
            return rc;
    }
    return HKT_OK;
}

static enum hkt_status add_view(struct merging *merging, const struct view *view, bool is_new_host)
{
    const struct hkt_topo *topo = view->topo;
    int32_t *new_of = hkt__calloc((size_t)topo->nnodes, sizeof *new_of);
    bool *is_new = hkt__calloc((size_t)topo->nnodes, sizeof *is_new);
    enum hkt_status rc;

    if (new_of == NULL || is_new == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory to merge a topology of %d nodes", topo->nnodes);
        goto free_arrays;
    }
    rc = add_view_nodes(merging, view, is_new_host, new_of, is_new);
    for (int32_t i = 0; i < topo->nlinks && rc == HKT_OK; i++) {
        struct hkt_topo_link link = topo->links[i];

        /* Both ends there before: so was the link. */
        if (!is_new[link.a] && !is_new[link.b])
            continue;
        link.a = new_of[link.a];
        link.b = new_of[link.b];
        hkt__topo_draft_link(merging->draft, &link);
        rc = hkt__topo_draft_status(merging->draft);
    }

free_arrays:
    hkt__free(new_of);
    hkt__free(is_new);
    return rc;
}

/** Unpack the views that are there; *out_count of them. */
static enum hkt_status open_views(const unsigned char *const *blobs, const size_t *bytes, int nranks,
                                  struct view *views, int *out_count)
{
    for (int r = 0; r < nranks; r++) {
        struct view *view = &views[*out_count];
        enum hkt_status rc;

        if (bytes[r] == 0)
            continue;
        rc = hkt__topo_unpack(blobs[r], bytes[r], &view->topo);
        if (rc < 0)
            return hkt__error_context(rc, "what rank %d sees of its host", r);
        (*out_count)++;
        if (hkt__topo_count(view->topo, 0, HKT_TOPO_HOST) != 1 || hkt__topo_count(view->topo, 0, HKT_TOPO_RACK) != 0)
            return hkt__fail_peer(HKT_ERR_INVALID, r, "what rank %d sees is not one host", r);
        view->host = view->topo->nodes[hkt__topo_find(view->topo, 0, HKT_TOPO_HOST, -1)].id;
        view->rank = r;
    }
    return HKT_OK;
}

static enum hkt_status merge_views(struct merging *merging, struct view *views, int count)
{
    const struct hkt_topo_node net = { .kind = HKT_TOPO_NET, .parent = -1 };
    enum hkt_status rc;

    qsort(views, (size_t)count, sizeof *views, compare_hosts);
    for (int i = 0; i < count; i++)
        views[i].first = i > 0 && views[i].host == views[i - 1].host ? views[i - 1].first : views[i].rank;
    qsort(views, (size_t)count, sizeof *views, compare_views);
    hkt__topo_draft_add(merging->draft, &net);
    rc = hkt__topo_draft_status(merging->draft);
    for (int i = 0; i < count && rc == HKT_OK; i++)
        rc = add_view(merging, &views[i], i == 0 || views[i].first != views[i - 1].first);
    return rc;
}

enum hkt_status hkt__topo_merge(const unsigned char *const *views, const size_t *bytes, int nranks,
                                struct hkt_topo **out_topo)
{
    struct view *opened = hkt__calloc((size_t)nranks + 1, sizeof *opened);
    struct merging merging = { .draft = hkt__topo_draft_create(), .host = -1 };
    int count = 0;
    enum hkt_status rc = HKT_ERR_NOMEM;

    if (opened == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory to merge the topologies of %d ranks", nranks);
        goto destroy;
    }
    if (merging.draft == NULL)
        goto destroy;
    rc = open_views(views, bytes, nranks, opened, &count);
    if (rc == HKT_OK)
        rc = merge_views(&merging, opened, count);
    if (rc == HKT_OK) {
        rc = hkt__topo_draft_finish(merging.draft, out_topo);
        merging.draft = NULL;
    }

destroy:
    for (int i = 0; opened != NULL && i <= count && i < nranks; i++)
        hkt_topo_destroy(opened[i].topo);
    hkt__free(opened);
    hkt__free(merging.devices);
    hkt__topo_draft_destroy(merging.draft);
    return rc;
}

/** Blobs of different lengths, padded to the longest. */
static enum hkt_status gather_padded(const unsigned char *blob, size_t bytes, size_t longest,
                                     hkt__topo_gather_fn *gather, void *arg, unsigned char *out)
{
    unsigned char *padded = hkt__calloc(longest + 1, 1);

    if (padded == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to exchange topologies");
    if (bytes > 0)
        memcpy(padded, blob, bytes);
    const enum hkt_status rc = gather(arg, padded, longest, out);

    hkt__free(padded);
    return rc;
}

enum hkt_status hkt__topo_exchange(const struct hkt_topo *own, int nranks, hkt__topo_gather_fn *gather, void *arg,
                                   struct hkt_topo **out_topo)
{
    const size_t n = (size_t)nranks;
    unsigned char *blob = NULL, *all = NULL;
    const unsigned char **views = hkt__calloc(n, sizeof *views);
    size_t *sizes = hkt__calloc(n, sizeof *sizes), bytes = 0, longest = 0;
    enum hkt_status rc = HKT_OK;

    if (views == NULL || sizes == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory to exchange the topologies of %d ranks", nranks);
        goto free_all;
    }
    if (own != NULL && hkt__topo_pack(own, &blob, &bytes) < 0)
        bytes = 0; /* the others go on without this view */
    rc = gather(arg, &bytes, sizeof bytes, sizes);
    if (rc < 0)
        goto free_all;
    for (int r = 0; r < nranks; r++)
        longest = sizes[r] > longest ? sizes[r] : longest;
    all = longest > 0 ? hkt__calloc(n, longest) : NULL;
    if (longest > 0 && all == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for topologies of %d ranks, %zu bytes each", nranks, longest);
        goto free_all;
    }
    if (longest > 0)
        rc = gather_padded(blob, bytes, longest, gather, arg, all);
    for (size_t r = 0; r < n && rc == HKT_OK; r++)
        views[r] = all + r * longest;
    if (rc == HKT_OK)
        rc = hkt__topo_merge(views, sizes, nranks, out_topo);

free_all:
    hkt__free(blob);
    hkt__free(all);
    hkt__free(views);
    hkt__free(sizes);
    return rc;
}
