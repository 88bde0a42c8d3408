/* The order of ranks: sorted by rack, host, package, NUMA node, L3, core, so that neighbours along the ring are close and
 * each group of each level is one piece of it. A level's groups are cut where any number down to that level changes; hence
 * levels nest by construction, whatever the machines report. */
#include "topology/order.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"

static const char *const level_names[HKT_TOPO_LEVEL_COUNT] = { "l3", "numa", "package", "host", "rack", "all" };

const char *hkt_topo_level_name(enum hkt_topo_level level)
{
    return (unsigned)level < HKT_TOPO_LEVEL_COUNT ? level_names[level] : "?";
}

/* Numbers from the outside in; a level is cut by those up to its own. */
enum { KEY_RACK, KEY_HOST, KEY_PACKAGE, KEY_NUMA, KEY_L3, KEY_CORE, KEY_UNIT, KEY_RANK, KEYS };

static const int keys_of_level[HKT_TOPO_LEVEL_COUNT] = {
    [HKT_TOPO_LEVEL_L3] = KEY_L3,     [HKT_TOPO_LEVEL_NUMA] = KEY_NUMA, [HKT_TOPO_LEVEL_PACKAGE] = KEY_PACKAGE,
    [HKT_TOPO_LEVEL_HOST] = KEY_HOST, [HKT_TOPO_LEVEL_RACK] = KEY_RACK, [HKT_TOPO_LEVEL_ALL] = -1,
};

struct row {
    int32_t key[KEYS];
    uint64_t host;
};

static int compare_rows(const void *x, const void *y)
{
    const struct row *a = x, *b = y;

    for (int k = 0; k < KEYS; k++)
        if (a->key[k] != b->key[k])
            return a->key[k] < b->key[k] ? -1 : 1;
    return 0;
}

static int compare_hosts(const void *x, const void *y)
{
    const struct row *a = x, *b = y;

    if (a->host != b->host)
        return a->host < b->host ? -1 : 1;
    return a->key[KEY_RANK] < b->key[KEY_RANK] ? -1 : 1;
}

static int compare_racks(const void *x, const void *y)
{
    const struct row *a = x, *b = y;

    if (a->key[KEY_RACK] != b->key[KEY_RACK])
        return a->key[KEY_RACK] < b->key[KEY_RACK] ? -1 : 1;
    return a->key[KEY_RANK] < b->key[KEY_RANK] ? -1 : 1;
}

/** Number racks and hosts by the lowest rank in them, so that the ring begins near rank 0 and hash values decide nothing. */
static void number_outside(struct row *rows, int nranks)
{
    int32_t first = 0;

    qsort(rows, (size_t)nranks, sizeof *rows, compare_hosts);
    for (int i = 0; i < nranks; i++) {
        first = i > 0 && rows[i].host == rows[i - 1].host ? first : rows[i].key[KEY_RANK];
        rows[i].key[KEY_HOST] = first;
    }
    qsort(rows, (size_t)nranks, sizeof *rows, compare_racks);
    for (int i = 0, rack = -2; i < nranks; i++) {
        first = i > 0 && rows[i].key[KEY_RACK] == rack ? first : rows[i].key[KEY_RANK];
        rack = rows[i].key[KEY_RACK];
        rows[i].key[KEY_RACK] = first;
    }
}

static bool same_group(const struct row *a, const struct row *b, int keys)
{
    for (int k = 0; k <= keys; k++)
        if (a->key[k] != b->key[k])
            return false;
    return true;
}

static void cut_level(struct hkt_topo_order *order, const struct row *rows, enum hkt_topo_level level)
{
    int32_t count = 0;

    for (int32_t i = 0; i < order->nranks; i++) {
        if (i == 0 || !same_group(&rows[i - 1], &rows[i], keys_of_level[level]))
            order->first[level][count++] = i;
        order->group[level][rows[i].key[KEY_RANK]] = count - 1;
    }
    order->first[level][count] = order->nranks;
    order->ngroups[level] = count;
}

void hkt_topo_order_destroy(struct hkt_topo_order *order)
{
    if (order == NULL)
        return;
    hkt__free(order->ring);
    hkt__free(order->position);
    for (int level = 0; level < HKT_TOPO_LEVEL_COUNT; level++) {
        hkt__free(order->first[level]);
        hkt__free(order->group[level]);
    }
    hkt__free(order);
}

static struct hkt_topo_order *allocate(int nranks)
{
    struct hkt_topo_order *order = hkt__calloc(1, sizeof *order);
    bool ok = order != NULL;

    if (!ok)
        return NULL;
    order->nranks = nranks;
    order->ring = hkt__calloc((size_t)nranks, sizeof *order->ring);
    order->position = hkt__calloc((size_t)nranks, sizeof *order->position);
    ok = order->ring != NULL && order->position != NULL;
    for (int level = 0; level < HKT_TOPO_LEVEL_COUNT && ok; level++) {
        order->first[level] = hkt__calloc((size_t)nranks + 1, sizeof(int32_t));
        order->group[level] = hkt__calloc((size_t)nranks, sizeof(int32_t));
        ok = order->first[level] != NULL && order->group[level] != NULL;
    }
    if (ok)
        return order;
    hkt_topo_order_destroy(order);
    return NULL;
}

/** Whether all ranks know their part at a level; what joins the ranks of a group is then that part. */
static bool is_known(const struct hkt__topo_place *places, int nranks, enum hkt_topo_level level)
{
    for (int r = 0; r < nranks; r++) {
        const int32_t numbers[HKT_TOPO_LEVEL_COUNT] = { places[r].l3,      places[r].numa,
                                                        places[r].package, 0,
                                                        places[r].rack,    0 };

        if (numbers[level] < 0)
            return false;
    }
    return true;
}

/** Of levels with equal groups the innermost that is known speaks for all: its links are those that the groups use. */
static void find_factors(struct hkt_topo_order *order, const struct hkt__topo_place *places)
{
    int32_t below = order->nranks;

    for (int level = 0, end; level < HKT_TOPO_LEVEL_COUNT; level = end) {
        int known = level;

        for (end = level + 1; end < HKT_TOPO_LEVEL_COUNT && order->ngroups[end] == order->ngroups[level];)
            end++;
        while (known < end && !is_known(places, order->nranks, (enum hkt_topo_level)known))
            known++;
        if (order->ngroups[level] != below)
            order->factor[order->nfactors++] = (enum hkt_topo_level)(known < end ? known : level);
        below = order->ngroups[level];
    }
}

enum hkt_status hkt__topo_order(const struct hkt__topo_place *places, int nranks, struct hkt_topo_order **out_order)
{
    struct row *rows = hkt__calloc((size_t)nranks, sizeof *rows);
    struct hkt_topo_order *order = allocate(nranks);

    if (rows == NULL || order == NULL) {
        hkt__free(rows);
        hkt_topo_order_destroy(order);
        return hkt__fail(HKT_ERR_NOMEM, "no memory to order %d ranks", nranks);
    }
    for (int r = 0; r < nranks; r++)
        rows[r] = (struct row){ { places[r].rack, 0, places[r].package, places[r].numa, places[r].l3, places[r].core,
                                  places[r].unit, r },
                                places[r].host };
    number_outside(rows, nranks);
    qsort(rows, (size_t)nranks, sizeof *rows, compare_rows);
    for (int32_t i = 0; i < nranks; i++) {
        order->ring[i] = rows[i].key[KEY_RANK];
        order->position[order->ring[i]] = i;
    }
    for (int level = 0; level < HKT_TOPO_LEVEL_COUNT; level++)
        cut_level(order, rows, (enum hkt_topo_level)level);
    find_factors(order, places);
    hkt__free(rows);
    *out_order = order;
    return HKT_OK;
}

enum hkt_status hkt__topo_places(const struct hkt_topo *topo, const int *nodes, int nranks,
                                 struct hkt__topo_place *out_places)
{
    for (int r = 0; r < nranks; r++) {
        if (nodes[r] < 0 || nodes[r] >= topo->nnodes)
            return hkt__fail(HKT_ERR_INVALID, "rank %d is on node %d of %d", r, nodes[r], topo->nnodes);
        hkt__topo_place_at(topo, nodes[r], &out_places[r]);
        /* In a file hosts may have no id, and two of them the same. */
        out_places[r].host = (uint64_t)hkt_topo_ancestor(topo, nodes[r], HKT_TOPO_HOST);
    }
    return HKT_OK;
}

enum hkt_status hkt_topo_order_create(const struct hkt_topo *topo, const int *nodes, int nranks,
                                      struct hkt_topo_order **out_order)
{
    struct hkt__topo_place *places;
    enum hkt_status rc;

    if (nranks < 1)
        return hkt__fail(HKT_ERR_INVALID, "an order of %d ranks: there must be one at least", nranks);
    places = hkt__calloc((size_t)nranks, sizeof *places);
    if (places == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to order %d ranks", nranks);
    rc = hkt__topo_places(topo, nodes, nranks, places);
    if (rc == HKT_OK)
        rc = hkt__topo_order(places, nranks, out_order);
    hkt__free(places);
    return rc;
}

const int32_t *hkt_topo_order_ring(const struct hkt_topo_order *order)
{
    return order->ring;
}

int hkt_topo_order_groups(const struct hkt_topo_order *order, enum hkt_topo_level level, const int32_t **out_first)
{
    if (out_first != NULL)
        *out_first = order->first[level];
    return order->ngroups[level];
}

/** Where the groups of the factor below begin: every rank is one below factor 0. Returns their number. */
static int32_t below_factor(const struct hkt_topo_order *order, int factor, const int32_t **out_first)
{
    *out_first = factor > 0 ? order->first[order->factor[factor - 1]] : NULL;
    return factor > 0 ? order->ngroups[order->factor[factor - 1]] : order->nranks;
}

enum hkt_status hkt_topo_order_factor(const struct hkt_topo_order *order, int index, struct hkt_topo_factor *out_factor)
{
    const int32_t *inner;

    if (index < 0 || index >= order->nfactors)
        return hkt__fail(HKT_ERR_INVALID, "factor %d of %d", index, order->nfactors);
    const enum hkt_topo_level level = order->factor[index];
    const int32_t ninner = below_factor(order, index, &inner);
    struct hkt_topo_factor factor = { .level = level, .groups = order->ngroups[level], .least = order->nranks };

    for (int32_t g = 0, i = 0; g < factor.groups; g++) {
        const int32_t end = order->first[level][g + 1], begin = i;

        while (i < ninner && (inner != NULL ? inner[i] : i) < end)
            i++;
        factor.least = i - begin < factor.least ? i - begin : factor.least;
        factor.most = i - begin > factor.most ? i - begin : factor.most;
    }
    *out_factor = factor;
    return HKT_OK;
}

/** The leaders of the groups in one group, in the order of the ring but with its own first, joined by a binomial tree. */
static void join_group(const int32_t *leaders, int32_t count, int32_t own, int32_t *out_parents)
{
    for (int32_t i = 1; i < count; i++)
        out_parents[leaders[(own + i) % count]] = leaders[(own + (i & (i - 1))) % count];
}

enum hkt_status hkt_topo_order_tree(const struct hkt_topo_order *order, int root, int32_t *out_parents)
{
    int32_t *leaders; /* of the groups of the factor below, in the order of the ring */

    if (root < 0 || root >= order->nranks)
        return hkt__fail(HKT_ERR_INVALID, "root %d is no rank of %d", root, order->nranks);
    leaders = hkt__calloc((size_t)order->nranks, sizeof *leaders);
    if (leaders == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a tree of %d ranks", order->nranks);
    memcpy(leaders, order->ring, (size_t)order->nranks * sizeof *leaders);
    for (int f = 0; f < order->nfactors; f++) {
        const enum hkt_topo_level level = order->factor[f];
        const int32_t *inner;
        const int32_t ninner = below_factor(order, f, &inner);

        for (int32_t g = 0, i = 0; g < order->ngroups[level]; g++) {
            const int32_t end = order->first[level][g + 1], begin = i;
            int32_t own = 0;

            for (; i < ninner && (inner != NULL ? inner[i] : i) < end; i++)
                own = leaders[i] == root ? i - begin : own;
            join_group(leaders + begin, i - begin, own, out_parents);
            leaders[g] = leaders[begin + own];
        }
    }
    out_parents[root] = -1;
    hkt__free(leaders);
    return HKT_OK;
}
