/* The parts of `hocket topo`: one graph, and what N ranks on it look like, in three forms. */
#ifndef HOCKET_TOOLS_TOPO_H
#define HOCKET_TOOLS_TOPO_H

#include <stdbool.h>
#include <stdio.h>

#include "hocket/topo.h"

struct topo_view {
    const struct hkt_topo *topo;
    char source[160]; /* where the graph comes from, for people */
    bool full;        /* text: every node, alike or not */
    int nranks;       /* 0: without ranks; then what follows is not set */
    bool dealt;       /* the ranks were dealt to parts of the kind `by`; else they are a job's, where it put them */
    enum hkt_topo_kind by;
    int root;
    int *nodes; /* [rank] where it runs */
    struct hkt_topo_order *order;
    int32_t *parents; /* [rank] in the tree, -1: the root */
};

/** Print to stdout; the exit code. */
int topo_text(const struct topo_view *view);
int topo_json(const struct topo_view *view);
/** Draw into a file; false when it cannot be written. */
bool topo_svg(const struct topo_view *view, FILE *file);

/** "2 NUMA nodes", "1 L3 cache". */
void topo_count_text(int count, enum hkt_topo_kind kind, char *out_text, size_t bytes);
/** "4 ranks per NUMA node, 2 NUMA nodes per host": the levels of an order that split ranks. */
void topo_hierarchy_text(const struct hkt_topo_order *order, char *out_text, size_t bytes);
/** About how much, for people: "32MiB", "10.7GiB". */
void topo_size_text(uint64_t size_bytes, char *out_text, size_t bytes);
/** "cache 15GB/s 30ns (assumed)". */
void topo_link_text(const struct hkt_topo_link *link, char *out_text, size_t bytes);
/** "0-3, 8, 12-15": numbers as they come, runs shortened; cut with "..." when there is no room. */
void topo_ranges(const int32_t *numbers, int count, char *out_text, size_t bytes);
/** The nodes from `node` on, siblings that follow each other, whose subtrees look alike; 1 at least. Names and numbers
 *  may differ. */
int topo_alike(const struct hkt_topo *topo, int node);

#endif
