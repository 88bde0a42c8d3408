/* See site.h. */
#include "cost/site.h"

#include "core/error.h"
#include "core/mem.h"

/* Inside a host a message is a few cache lines on their way; to the 160 ns that this takes through a shared L3 cache come
 * the latencies that the graph assumes for the links beyond it (topology/kinds.c), twice: 40 ns to another cache, 60 to another
 * NUMA node, 160 to another package. Bytes: a core's own rate is the narrowest link but between packages, whose link all
 * cores share. Across racks there is a switch more. Ratios, since the prices they multiply are measured. */
static const struct hkt__link links[HKT_TOPO_LEVEL_COUNT] = {
    [HKT_TOPO_LEVEL_L3] = {false, false, 1, 1},      [HKT_TOPO_LEVEL_NUMA] = {false, false, 1.25, 1.2},
    [HKT_TOPO_LEVEL_PACKAGE] = {false, false, 1.4, 1.3}, [HKT_TOPO_LEVEL_HOST] = {false, false, 2, 1.8},
    [HKT_TOPO_LEVEL_RACK] = {true, false, 1, 1},     [HKT_TOPO_LEVEL_ALL] = {true, false, 1.3, 1},
};

/* Ranks of one core take turns: what one wrote lies in the caches of the other (fitted for 4 ranks on 2 cores, 2026-11-30). Not so
 * what the kernel copies to a socket and from it: there near ranks gain nothing. */
#define CORE_WAIT 0.91
#define CORE_BYTES 0.47

/** Ranks of the groups of a level. */
static void count_members(const struct hkt_topo_order *order, enum hkt_topo_level level, int *out_least, int *out_most)
{
    *out_least = order->nranks;
    *out_most = 0;
    for (int32_t g = 0; g < order->ngroups[level]; g++) {
        const int members = order->first[level][g + 1] - order->first[level][g];

        *out_least = members < *out_least ? members : *out_least;
        *out_most = members > *out_most ? members : *out_most;
    }
}

/** Append a level of `size` groups of what is there; members of one exchange all at once, so many are split further. */
static void add_level(struct hkt__levels *levels, int size)
{
    const struct hkt__levels parts = hkt__levels_default(size);

    if (size <= HKT__LEVEL_SPLIT_ABOVE) {
        levels->sizes[levels->count++] = size;
        return;
    }
    for (int i = 0; i < parts.count; i++)
        levels->sizes[levels->count++] = parts.sizes[i];
}

/** The levels whose groups are of one size each; an uneven one inside a host is passed over. Hosts that differ leave nothing to
 *  build a hierarchy on. */
static void find_levels(struct hkt__site *site)
{
    const struct hkt_topo_order *order = site->order;
    struct hkt__levels levels = {0};
    int inner = 1, known = 0, least, most;

    for (int f = 0; f < order->nfactors; f++) {
        const enum hkt_topo_level level = order->factor[f];

        count_members(order, level, &least, &most);
        if (least == most) {
            add_level(&levels, most / inner);
            inner = most;
            known++;
            if (order->ngroups[level] == site->nhosts)
                levels.near_count = levels.count;
        } else if (order->ngroups[level] == site->nhosts) {
            site->uneven = "needs as many ranks on each host";
            return;
        }
    }
    if (known > 1)
        site->levels = levels;
}

/** Number the cores that ranks are bound to, along the ring, and find the most ranks that one has. */
static void number_cores(const struct hkt__topo_place *places, struct hkt__site *site)
{
    const int32_t *ring = site->order->ring;
    int32_t core = -1, here = 0;

    for (int i = 0; i < site->order->nranks; i++) {
        const struct hkt__topo_place *at = &places[ring[i]], *before = &places[ring[i > 0 ? i - 1 : 0]];

        if (at->core < 0) {
            site->core_ranks = 0;
            return;
        }
        if (i == 0 || at->core != before->core || at->package != before->package || at->host != before->host) {
            core++;
            here = 0;
        }
        site->core[ring[i]] = core;
        site->core_ranks = ++here > site->core_ranks ? here : site->core_ranks;
    }
}

enum hkt_status hkt__site_make(const struct hkt__topo_place *places, int nranks, struct hkt__site *out_site)
{
    struct hkt__site site = {.is_in_order = true, .uneven = ""};
    const enum hkt_status rc = hkt__topo_order(places, nranks, &site.order);

    if (rc < 0)
        return rc;
    site.core = hkt__calloc((size_t)nranks, sizeof *site.core);
    if (site.core == NULL) {
        hkt__site_fini(&site);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the cores of %d ranks", nranks);
    }
    site.nhosts = site.order->ngroups[HKT_TOPO_LEVEL_HOST];
    for (int i = 0; i < nranks; i++)
        site.is_in_order &= site.order->ring[i] == i;
    find_levels(&site);
    number_cores(places, &site);
    *out_site = site;
    return HKT_OK;
}

void hkt__site_crowd(struct hkt__site *site, double crowd, bool over_sockets)
{
    site->over_sockets = over_sockets;
    site->is_shared = crowd > 1 && site->core_ranks > 1;
}

void hkt__site_fini(struct hkt__site *site)
{
    hkt_topo_order_destroy(site->order);
    hkt__free(site->core);
    site->order = NULL;
    site->core = NULL;
}

const int32_t *hkt__site_ranks(const struct hkt__site *site, const struct hkt__algo *algo)
{
    const bool sorts = site != NULL && !site->is_in_order && !algo->info.needs_direct && !algo->ordered &&
                       algo->info.coll != HKT_ALL_TO_ALL_V;

    return sorts ? site->order->ring : NULL;
}

int32_t hkt__site_number(const struct hkt__site *site, const struct hkt__algo *algo, int rank)
{
    return hkt__site_ranks(site, algo) != NULL ? site->order->position[rank] : rank;
}

struct hkt__link hkt__site_link(const struct hkt__site *site, int rank_a, int rank_b)
{
    int level = HKT_TOPO_LEVEL_L3;

    if (site != NULL && site->is_shared && site->core[rank_a] == site->core[rank_b])
        return (struct hkt__link){false, true, site->over_sockets ? 1 : CORE_WAIT, site->over_sockets ? 1 : CORE_BYTES};
    while (site != NULL && level < HKT_TOPO_LEVEL_ALL && site->order->group[level][rank_a] != site->order->group[level][rank_b])
        level++;
    return links[level];
}
