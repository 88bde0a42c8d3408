/* `hocket topo` for people: the tree of parts, parts that look alike once with their number; then the links that are not to
 * the part around, and the levels, ring and tree of the ranks. */
#include <stdlib.h>
#include <string.h>

#include "tools.h"
#include "topo.h"

#define LINK_COLUMN 34

static const char *const names[HKT_TOPO_KIND_COUNT][2] = {
    [HKT_TOPO_NET] = { "net", "nets" },
    [HKT_TOPO_RACK] = { "rack", "racks" },
    [HKT_TOPO_HOST] = { "host", "hosts" },
    [HKT_TOPO_PACKAGE] = { "package", "packages" },
    [HKT_TOPO_NUMA] = { "NUMA node", "NUMA nodes" },
    [HKT_TOPO_L3] = { "L3 cache", "L3 caches" },
    [HKT_TOPO_CORE] = { "core", "cores" },
    [HKT_TOPO_PU] = { "CPU", "CPUs" },
    [HKT_TOPO_SWITCH] = { "switch", "switches" },
    [HKT_TOPO_GPU] = { "GPU", "GPUs" },
    [HKT_TOPO_NIC] = { "NIC", "NICs" },
};

/* The kind of part that a level is. */
static const enum hkt_topo_kind level_kinds[HKT_TOPO_LEVEL_COUNT] = { HKT_TOPO_L3,   HKT_TOPO_NUMA, HKT_TOPO_PACKAGE,
                                                                      HKT_TOPO_HOST, HKT_TOPO_RACK, HKT_TOPO_NET };

void topo_count_text(int count, enum hkt_topo_kind kind, char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "%d %s", count, names[kind][count != 1]);
}

void topo_size_text(uint64_t size_bytes, char *out_text, size_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double size = (double)size_bytes;
    int unit = 0;

    while (size >= 1024 && unit < 4) {
        size /= 1024;
        unit++;
    }
    snprintf(out_text, bytes, "%.*f%s", size < 100 && size_bytes % 1024 != 0 ? 1 : 0, size, units[unit]);
}

void topo_link_text(const struct hkt_topo_link *link, char *out_text, size_t bytes)
{
    char rate[32], time[32];

    hkt_topo_rate_text(link->bytes_per_s, rate, sizeof rate);
    hkt_topo_time_text(link->latency_ns, time, sizeof time);
    snprintf(out_text, bytes, "%s%s%s%s%s (%s)", hkt_topo_link_name(link->kind), link->bytes_per_s != 0 ? " " : "",
             link->bytes_per_s != 0 ? rate : "", link->latency_ns != 0 ? " " : "", link->latency_ns != 0 ? time : "",
             hkt_topo_source_name(link->source));
}

void topo_ranges(const int32_t *numbers, int count, char *out_text, size_t bytes)
{
    size_t used = 0;

    out_text[0] = '\0';
    for (int i = 0, end; i < count; i = end) {
        char range[32];

        end = i + 1;
        while (end < count && numbers[end] == numbers[end - 1] + 1)
            end++;
        if (end - i > 1)
            snprintf(range, sizeof range, "%s%d%s%d", i > 0 ? ", " : "", numbers[i], end - i > 2 ? "-" : ", ",
                     numbers[end - 1]);
        else
            snprintf(range, sizeof range, "%s%d", i > 0 ? ", " : "", numbers[i]);
        if (used + strlen(range) + 6 > bytes) {
            snprintf(out_text + used, bytes - used, ", ...");
            return;
        }
        used += (size_t)snprintf(out_text + used, bytes - used, "%s", range);
    }
}

static bool same_link(const struct hkt_topo_link *x, const struct hkt_topo_link *y)
{
    if (x == NULL || y == NULL)
        return x == y;
    return x->kind == y->kind && x->source == y->source && x->bytes_per_s == y->bytes_per_s
           && x->latency_ns == y->latency_ns;
}

static bool look_alike(const struct hkt_topo *topo, int a, int b)
{
    const int count = hkt_topo_node_get(topo, a)->end - a;

    if (hkt_topo_node_get(topo, b)->end - b != count)
        return false;
    for (int i = 0; i < count; i++) {
        const struct hkt_topo_node *x = hkt_topo_node_get(topo, a + i), *y = hkt_topo_node_get(topo, b + i);

        if (x->kind != y->kind || x->end - a != y->end - b || x->bytes != y->bytes
            || !same_link(hkt_topo_link_get(topo, x->uplink), hkt_topo_link_get(topo, y->uplink)))
            return false;
    }
    return true;
}

int topo_alike(const struct hkt_topo *topo, int node)
{
    const struct hkt_topo_node *first = hkt_topo_node_get(topo, node);
    const int end = first->parent >= 0 ? hkt_topo_node_get(topo, first->parent)->end : first->end;
    int count = 1;

    for (int next = first->end; next < end && look_alike(topo, node, next); next = hkt_topo_node_get(topo, next)->end)
        count++;
    return count;
}

static void print_counts(const struct topo_view *view)
{
    int counts[HKT_TOPO_KIND_COUNT] = { 0 };
    const struct hkt_topo_node *node;
    const char *comma = "";
    char text[32];

    for (int i = 0; (node = hkt_topo_node_get(view->topo, i)) != NULL; i++)
        counts[node->kind]++;
    printf("%s\n", view->source);
    for (int kind = HKT_TOPO_RACK; kind < HKT_TOPO_KIND_COUNT; kind++) {
        if (counts[kind] == 0)
            continue;
        topo_count_text(counts[kind], (enum hkt_topo_kind)kind, text, sizeof text);
        printf("%s%s", comma, text);
        comma = ", ";
    }
    puts("\n");
}

/* The pus of a core, on its line. */
static void append_pus(const struct hkt_topo *topo, int core, char *text, size_t bytes)
{
    const struct hkt_topo_node *node = hkt_topo_node_get(topo, core);
    int32_t pus[64];
    int count = 0;
    char list[80];

    for (int i = core + 1; i < node->end && count < 64; i++)
        pus[count++] = hkt_topo_node_get(topo, i)->index;
    if (count == 0)
        return;
    topo_ranges(pus, count, list, sizeof list);
    snprintf(text + strlen(text), bytes - strlen(text), " (pu %s)", list);
}

static void print_node(const struct topo_view *view, int id, int depth, int alike)
{
    const struct hkt_topo_node *node = hkt_topo_node_get(view->topo, id);
    const struct hkt_topo_link *link = hkt_topo_link_get(view->topo, node->uplink);
    const char *kind = hkt_topo_kind_name(node->kind);
    char text[256], numbers[96], size[32];

    if (alike > 1)
        snprintf(text, sizeof text, "%*s%d x %s", 2 * depth, "", alike, kind);
    else
        snprintf(text, sizeof text, "%*s%s %d", 2 * depth, "", kind, node->index);
    if (alike == 1 && node->name[0] != '\0')
        snprintf(text + strlen(text), sizeof text - strlen(text), " %s", node->name);
    if (alike == 1 && node->kind == HKT_TOPO_CORE)
        append_pus(view->topo, id, text, sizeof text);
    if (node->bytes != 0) {
        topo_size_text(node->bytes, size, sizeof size);
        snprintf(text + strlen(text), sizeof text - strlen(text), " %s", size);
    }
    if (link == NULL) {
        puts(text);
        return;
    }
    topo_link_text(link, numbers, sizeof numbers);
    printf("%-*s %s\n", LINK_COLUMN, text, numbers);
}

static void print_tree(const struct topo_view *view)
{
    /* Open nodes: where the part ends that is printed, and where to go on, behind those that look like it. */
    struct {
        int end, resume;
    } open[32];
    const struct hkt_topo_node *node;
    int depth = 0;

    for (int i = 0; (node = hkt_topo_node_get(view->topo, i)) != NULL;) {
        const int alike = view->full ? 1 : topo_alike(view->topo, i);

        if (node->kind != HKT_TOPO_PU)
            print_node(view, i, depth, alike);
        open[depth].end = open[depth].resume = node->end;
        for (int k = 1; k < alike; k++)
            open[depth].resume = hkt_topo_node_get(view->topo, open[depth].resume)->end;
        depth++;
        i++;
        while (depth > 0 && open[depth - 1].end == i)
            i = open[--depth].resume;
    }
}

static const struct hkt_topo_node *end_of(const struct hkt_topo *topo, const struct hkt_topo_link *link, bool b)
{
    return hkt_topo_node_get(topo, b ? link->b : link->a);
}

/* Links that follow each other and differ in nothing but the numbers of their ends. */
static int links_alike(const struct hkt_topo *topo, int first)
{
    const struct hkt_topo_link *one = hkt_topo_link_get(topo, first), *other;
    int count = 1;

    while ((other = hkt_topo_link_get(topo, first + count)) != NULL && same_link(one, other)
           && end_of(topo, one, false)->kind == end_of(topo, other, false)->kind
           && end_of(topo, one, true)->kind == end_of(topo, other, true)->kind)
        count++;
    return count;
}

static void print_links(const struct topo_view *view)
{
    const struct hkt_topo *topo = view->topo;
    const struct hkt_topo_link *link;
    bool any = false;

    for (int i = 0, alike; (link = hkt_topo_link_get(topo, i)) != NULL; i += alike) {
        const struct hkt_topo_node *a = end_of(topo, link, false), *b = end_of(topo, link, true);
        char text[96], numbers[96];

        alike = 1;
        if (b->uplink == i)
            continue;
        if (!any)
            puts("\nother links");
        any = true;
        alike = view->full ? 1 : links_alike(topo, i);
        if (alike > 1)
            snprintf(text, sizeof text, "  %d x %s - %s", alike, hkt_topo_kind_name(a->kind),
                     hkt_topo_kind_name(b->kind));
        else
            snprintf(text, sizeof text, "  %s %d - %s %d", hkt_topo_kind_name(a->kind), a->index,
                     hkt_topo_kind_name(b->kind), b->index);
        topo_link_text(link, numbers, sizeof numbers);
        printf("%-*s %s\n", LINK_COLUMN, text, numbers);
    }
}

void topo_hierarchy_text(const struct hkt_topo_order *order, char *out_text, size_t bytes)
{
    struct hkt_topo_factor factor;
    int below = -1; /* kind of the parts that the next factor counts; -1: ranks */
    size_t used = 0;

    snprintf(out_text, bytes, "one rank");
    for (int i = 0; hkt_topo_order_factor(order, i, &factor) == HKT_OK && used < bytes; i++) {
        char many[64];

        if (below < 0)
            snprintf(many, sizeof many, "%d rank%s", factor.most, factor.most > 1 ? "s" : "");
        else
            topo_count_text(factor.most, (enum hkt_topo_kind)below, many, sizeof many);
        used += (size_t)snprintf(out_text + used, bytes - used, "%s%s%s per %s", i > 0 ? ", " : "",
                                 factor.least != factor.most ? "up to " : "", many,
                                 factor.level == HKT_TOPO_LEVEL_ALL ? "job" : names[level_kinds[factor.level]][0]);
        below = (int)level_kinds[factor.level];
    }
}

static void print_levels(const struct topo_view *view)
{
    char shape[512];

    printf("\n%d ranks %s%s\n  level    groups  ranks in each\n", view->nranks, view->dealt ? "by " : "where they run",
           view->dealt ? hkt_topo_kind_name(view->by) : "");
    for (int l = 0; l < HKT_TOPO_LEVEL_COUNT; l++) {
        const enum hkt_topo_level level = (enum hkt_topo_level)l;
        const int32_t *first;
        const int groups = hkt_topo_order_groups(view->order, level, &first);
        int least = view->nranks, most = 0;

        for (int g = 0; g < groups; g++) {
            least = first[g + 1] - first[g] < least ? first[g + 1] - first[g] : least;
            most = first[g + 1] - first[g] > most ? first[g + 1] - first[g] : most;
        }
        printf("  %-8s %6d  %d", hkt_topo_level_name(level), groups, least);
        if (most != least)
            printf(" to %d", most);
        putchar('\n');
    }
    topo_hierarchy_text(view->order, shape, sizeof shape);
    printf("  hierarchy: %s\n", shape);
}

/* How far each hop of the ring goes: the number of hops whose ends have this node kind as the innermost around them. */
static void print_ring(const struct topo_view *view)
{
    const int32_t *ring = hkt_topo_order_ring(view->order);
    int hops[HKT_TOPO_KIND_COUNT] = { 0 };
    char text[2048];
    const char *comma = "";

    topo_ranges(ring, view->nranks, text, sizeof text);
    printf("  ring: %s\n", text);
    if (view->nranks < 2)
        return;
    for (int i = 0; i < view->nranks; i++) {
        const int a = view->nodes[ring[i]], b = view->nodes[ring[(i + 1) % view->nranks]];

        hops[hkt_topo_node_get(view->topo, hkt_topo_common(view->topo, a, b))->kind]++;
    }
    fputs("  hops: ", stdout);
    for (int kind = HKT_TOPO_KIND_COUNT - 1; kind >= 0; kind--) {
        if (hops[kind] == 0)
            continue;
        printf("%s%d within one %s", comma, hops[kind], names[kind][0]);
        comma = ", ";
    }
    putchar('\n');
}

static int tree_depth(const struct topo_view *view)
{
    int deepest = 0;

    for (int r = 0; r < view->nranks; r++) {
        int depth = 0;

        for (int up = view->parents[r]; up >= 0; up = view->parents[up])
            depth++;
        deepest = depth > deepest ? depth : deepest;
    }
    return deepest;
}

#define TREE_RANKS_SHOWN 64

/* Children of each rank, the far ones first: they have the longest way before them. */
static void print_rank_tree(const struct topo_view *view)
{
    const int32_t *ring = hkt_topo_order_ring(view->order);
    const int shown = view->full || view->nranks <= TREE_RANKS_SHOWN ? view->nranks : TREE_RANKS_SHOWN;
    int32_t *children = calloc((size_t)view->nranks, sizeof *children);
    char text[1024];

    printf("  tree: root %d, %d deep\n", view->root, tree_depth(view));
    for (int r = 0; r < shown && children != NULL; r++) {
        int count = 0;

        for (int i = view->nranks; i-- > 0;)
            if (view->parents[ring[i]] == r)
                children[count++] = ring[i];
        if (count == 0)
            continue;
        topo_ranges(children, count, text, sizeof text);
        printf("    %d -> %s\n", r, text);
    }
    if (shown < view->nranks)
        printf("    ... (--full shows all %d)\n", view->nranks);
    free(children);
}

int topo_text(const struct topo_view *view)
{
    print_counts(view);
    print_tree(view);
    print_links(view);
    if (view->nranks > 0) {
        print_levels(view);
        print_ring(view);
        print_rank_tree(view);
    }
    return TOOL_OK;
}
