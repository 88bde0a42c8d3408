/* The graph, and the draft from which it is made. A draft takes nodes and links in any order in which parents come before
 * children; finishing it puts the nodes in preorder, siblings by kind and index, so that equal machines give equal graphs
 * whatever the order of discovery. A graph never changes afterwards.
 *
 * Identity. Within a host a node is (kind, index); the sources number nodes alike (see include/hocket/topo.h), so views of
 * several processes of a host can be merged, and what hwloc and /sys say can be compared. */
#ifndef HOCKET_TOPOLOGY_TOPO_H
#define HOCKET_TOPOLOGY_TOPO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hocket/topo.h"

struct hkt_topo {
    struct hkt_topo_node *nodes;
    struct hkt_topo_link *links; /* [0, nuplinks): of children to parents, by child; then the others by (a, b, kind) */
    int32_t nnodes, nlinks, nuplinks;
};

#define HKT__TOPO_DEPTH_MAX 16 /* nodes on a path; kinds nest strictly, only switches may hold each other */
/* Such that sums over a route fit. */
#define HKT__TOPO_RATE_MAX UINT64_C(1000000000000000)
#define HKT__TOPO_LATENCY_MAX 100000000

/* Drafts. The first failure sticks: what follows is ignored, and finish returns it. */
struct hkt__topo_draft;

/** NULL when memory is out (recorded). */
struct hkt__topo_draft *hkt__topo_draft_create(void);
void hkt__topo_draft_destroy(struct hkt__topo_draft *draft);
/** Number of the new node, -1 on failure. Of `node` the fields parent (-1: the root), kind, index, id, bytes and name are
 *  read. INVALID: a kind that cannot lie there, an index taken, too many nodes. */
int32_t hkt__topo_draft_add(struct hkt__topo_draft *draft, const struct hkt_topo_node *node);
/** Of `link` all fields are read; a and b in any order. */
void hkt__topo_draft_link(struct hkt__topo_draft *draft, const struct hkt_topo_link *link);
/** Node of that identity, -1: none. host: the host's node; -1 for kinds outside hosts. */
int32_t hkt__topo_draft_find(const struct hkt__topo_draft *draft, int32_t host, enum hkt_topo_kind kind, int32_t index);
const struct hkt_topo_node *hkt__topo_draft_node(const struct hkt__topo_draft *draft, int32_t node);
/** Host around a node, -1: none. */
int32_t hkt__topo_draft_host(const struct hkt__topo_draft *draft, int32_t node);
enum hkt_status hkt__topo_draft_status(const struct hkt__topo_draft *draft);
/** Give each node that has no link to its parent one with typical numbers, source "assumed". */
void hkt__topo_draft_assume(struct hkt__topo_draft *draft);
/** Takes the draft, on failure too. */
HKT_NODISCARD enum hkt_status hkt__topo_draft_finish(struct hkt__topo_draft *draft, struct hkt_topo **out_topo);

/* Kinds (kinds.c). */
bool hkt__topo_may_hold(enum hkt_topo_kind outer, enum hkt_topo_kind inner);
/** Typical numbers of the link between a node of this kind and its parent; false: there are none. */
bool hkt__topo_typical(enum hkt_topo_kind kind, struct hkt_topo_link *out_link);
/** -1: there is no such name. */
int hkt__topo_kind_find(const char *text);
int hkt__topo_link_find(const char *text);
int hkt__topo_source_find(const char *text);

/* Queries (graph.c). */
static inline bool hkt__topo_contains(const struct hkt_topo *topo, int32_t outer, int32_t inner)
{
    return outer <= inner && inner < topo->nodes[outer].end;
}
/** First node of a kind and index in a subtree, -1: none. index -1: any. */
int32_t hkt__topo_find(const struct hkt_topo *topo, int32_t within, enum hkt_topo_kind kind, int32_t index);
/** Nodes of a kind in a subtree. */
int32_t hkt__topo_count(const struct hkt_topo *topo, int32_t within, enum hkt_topo_kind kind);
/** "host0/gpu3", "net0": names a node in texts. */
void hkt__topo_node_text(const struct hkt_topo *topo, int32_t node, char *out_text, size_t bytes);
bool hkt__topo_equal(const struct hkt_topo *x, const struct hkt_topo *y);

#endif
