/* What could break: a group that is no piece of the ring, levels that do not nest, ranks that disagree because something but
 * their places went in, a tree that enters a group twice, factors that miss ranks. Every property is checked against a naive
 * computation on random places, and on the machines the design names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/mem.h"
#include "topology/order.h"

static uint64_t seed;

static uint32_t pick(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % below;
}

static struct hkt_topo_order *order_of(const struct hkt__topo_place *places, int nranks)
{
    struct hkt_topo_order *order = NULL;

    assert_int_equal(hkt__topo_order(places, nranks, &order), HKT_OK);
    return order;
}

/** Whether two ranks are in one group, by definition: all numbers down to the level are equal. */
static bool together(const struct hkt__topo_place *a, const struct hkt__topo_place *b, enum hkt_topo_level level)
{
    return level == HKT_TOPO_LEVEL_ALL
           || (a->rack == b->rack
               && (level >= HKT_TOPO_LEVEL_RACK
                   || (a->host == b->host
                       && (level >= HKT_TOPO_LEVEL_HOST
                           || (a->package == b->package
                               && (level >= HKT_TOPO_LEVEL_PACKAGE
                                   || (a->numa == b->numa && (level >= HKT_TOPO_LEVEL_NUMA || a->l3 == b->l3))))))));
}

static void check_groups(const struct hkt_topo_order *order, const struct hkt__topo_place *places)
{
    const int n = order->nranks;

    for (int i = 0; i < n; i++) {
        assert_true(order->ring[i] >= 0 && order->ring[i] < n);
        assert_int_equal(order->position[order->ring[i]], i);
    }
    for (int l = 0; l < HKT_TOPO_LEVEL_COUNT; l++) {
        const enum hkt_topo_level level = (enum hkt_topo_level)l;
        const int32_t *first;

        assert_int_equal(hkt_topo_order_groups(order, level, &first), order->ngroups[l]);
        assert_int_equal(first[0], 0);
        assert_int_equal(first[order->ngroups[l]], n);
        for (int g = 0; g < order->ngroups[l]; g++) {
            assert_true(first[g] < first[g + 1]);
            for (int i = first[g]; i < first[g + 1]; i++)
                assert_int_equal(order->group[l][order->ring[i]], g);
        }
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                assert_int_equal(order->group[l][a] == order->group[l][b], together(&places[a], &places[b], level));
    }
    assert_int_equal(order->ngroups[HKT_TOPO_LEVEL_ALL], 1);
}

/** Ranks of one part together. */
static void check_factors(const struct hkt_topo_order *order)
{
    struct hkt_topo_factor factor;
    int below = order->nranks, last = -1, i = 0;
    int64_t most = 1, least = 1;

    for (; hkt_topo_order_factor(order, i, &factor) == HKT_OK; i++) {
        assert_true((int)factor.level > last);
        assert_true(factor.groups < below);
        assert_int_equal(factor.groups, order->ngroups[factor.level]);
        assert_true(factor.least >= 1 && factor.least <= factor.most && factor.most > 1);
        assert_true((int64_t)factor.least * factor.groups <= below && (int64_t)factor.most * factor.groups >= below);
        most *= factor.most;
        least *= factor.least;
        below = factor.groups;
        last = (int)factor.level;
    }
    assert_int_equal(below, 1);
    assert_true(least <= order->nranks && most >= order->nranks);
    assert_int_equal(i, order->nfactors);
    assert_int_equal(hkt_topo_order_factor(order, -1, &factor), HKT_ERR_INVALID);
}

static void check_tree(const struct hkt_topo_order *order, int root)
{
    const int n = order->nranks;
    int32_t *parents = calloc((size_t)n, sizeof *parents);
    struct hkt_topo_factor factor;
    int deepest = 0, bound = 0;

    assert_int_equal(hkt_topo_order_tree(order, root, parents), HKT_OK);
    for (int r = 0; r < n; r++) {
        int depth = 0;

        assert_int_equal(parents[r] < 0, r == root);
        for (int up = r; up != root; up = parents[up])
            assert_true(++depth < n);
        deepest = depth > deepest ? depth : deepest;
    }
    for (int i = 0; hkt_topo_order_factor(order, i, &factor) == HKT_OK; i++)
        bound += hkt__log2_ceil((unsigned)factor.most);
    assert_true(deepest <= bound);
    for (int l = 0; l < HKT_TOPO_LEVEL_COUNT; l++) {
        for (int g = 0; g < order->ngroups[l]; g++) {
            int entered = 0;

            for (int r = 0; r < n; r++)
                entered += order->group[l][r] == g && (r == root || order->group[l][parents[r]] != g);
            assert_int_equal(entered, 1);
        }
    }
    free(parents);
}

static void random_places_give_orders(void **state)
{
    struct hkt__topo_place places[40];

    (void)state;
    for (uint64_t s = 1; s <= 400; s++) {
        seed = s;
        print_message("%s", s == 1 ? "seeds 1 to 400\n" : "");
        const int n = 1 + (int)pick(40);
        const uint32_t hosts = 1 + pick(5), parts = 1 + pick(3);

        for (int r = 0; r < n; r++) {
            const uint32_t host = pick(hosts);

            places[r] = (struct hkt__topo_place){
                .host = host * UINT64_C(0x9e3779b97f4a7c15), /* ids in no order */
                .rack = s % 3 == 0 ? (int32_t)(host / 2) : -1,
                .package = (int32_t)pick(parts) - (s % 5 == 0),
                .numa = (int32_t)pick(parts + 1) - (s % 5 == 0),
                .l3 = (int32_t)pick(parts + 1) - (s % 2 == 0),
                .core = (int32_t)pick(4) - 1,
                .unit = -1,
            };
        }
        struct hkt_topo_order *order = order_of(places, n);

        check_groups(order, places);
        check_factors(order);
        for (int root = 0; root < n; root += 1 + n / 5)
            check_tree(order, root);
        hkt_topo_order_destroy(order);
    }
}

/** An order of ranks dealt to a machine, rank r being number shuffle[r] along it. */
static struct hkt_topo_order *shuffled(const char *line, int nranks, enum hkt_topo_kind by, uint64_t with_seed,
                                       int *out_shuffle)
{
    struct hkt_topo *topo = NULL;
    struct hkt_topo_order *order = NULL;
    int *dealt = calloc((size_t)nranks, sizeof *dealt), *nodes = calloc((size_t)nranks, sizeof *nodes);

    if (hkt_topo_synthetic(line, &topo) != HKT_OK || hkt_topo_deal(topo, nranks, by, HKT_TOPO_SPREAD, dealt) != HKT_OK)
        fail_msg("%s: %s", line, hkt_last_error());
    for (int r = 0; r < nranks; r++)
        out_shuffle[r] = r;
    seed = with_seed;
    for (int r = nranks - 1; r > 0 && with_seed != 0; r--) {
        const int other = (int)pick((uint32_t)r + 1), kept = out_shuffle[r];

        out_shuffle[r] = out_shuffle[other];
        out_shuffle[other] = kept;
    }
    for (int r = 0; r < nranks; r++)
        nodes[r] = dealt[out_shuffle[r]];
    assert_int_equal(hkt_topo_order_create(topo, nodes, nranks, &order), HKT_OK);
    hkt_topo_destroy(topo);
    free(dealt);
    free(nodes);
    return order;
}

static void assert_factors(const struct hkt_topo_order *order, const char *want)
{
    struct hkt_topo_factor factor;
    char text[256] = "";

    for (int i = 0; hkt_topo_order_factor(order, i, &factor) == HKT_OK; i++) {
        assert_int_equal(factor.least, factor.most);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d %s", i > 0 ? ", " : "", factor.most,
                 hkt_topo_level_name(factor.level));
    }
    assert_string_equal(text, want);
}

/* Whatever ranks were started where, the hierarchy is that of the machine, and the ring crosses each boundary once per group. */
static void machines_of_the_design(void **state)
{
    static const struct {
        const char *line;
        int nranks;
        enum hkt_topo_kind by;
        const char *factors;
    } cases[] = {
        { "package:2 numa:4 l3:2 core:8", 128, HKT_TOPO_CORE, "8 l3, 2 numa, 4 package, 2 host" },
        { "package:2 numa:4 l3:2 core:8", 16, HKT_TOPO_CORE, "2 numa, 4 package, 2 host" },
        { "package:2 numa:4 l3:2 core:8", 8, HKT_TOPO_NUMA, "4 package, 2 host" },
        { "package:2 numa:1 gpu:8 nic:8", 8, HKT_TOPO_GPU, "4 numa, 2 host" },
        { "host:64 package:2 numa:4 l3:2 core:8", 512, HKT_TOPO_CORE, "4 package, 2 host, 64 all" },
        { "host:64 core:8", 512, HKT_TOPO_CORE, "8 host, 64 all" },
        { "rack:4 host:4 package:2 core:2", 64, HKT_TOPO_CORE, "2 package, 2 host, 4 rack, 4 all" },
        { "host:8 core:4", 8, HKT_TOPO_HOST, "8 all" },
        { "core:4", 1, HKT_TOPO_CORE, "" },
    };
    int shuffle[512];

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (uint64_t s = 0; s < 4; s++) {
            struct hkt_topo_order *order = shuffled(cases[c].line, cases[c].nranks, cases[c].by, s, shuffle);
            const int n = order->nranks;

            assert_factors(order, cases[c].factors);
            for (int l = 0; l < HKT_TOPO_LEVEL_ALL; l++) {
                int crossings = 0;

                for (int i = 0; i < n; i++)
                    crossings += order->group[l][order->ring[i]] != order->group[l][order->ring[(i + 1) % n]];
                assert_int_equal(crossings, order->ngroups[l] > 1 ? order->ngroups[l] : 0);
            }
            for (int i = 0; i < n && s == 0; i++)
                assert_int_equal(order->ring[i], i);
            check_tree(order, (int)(s * 7) % n);
            hkt_topo_order_destroy(order);
        }
    }
}

static void irregular_groups_are_counted(void **state)
{
    /* Hosts with 3, 1 and 2 ranks; those of the first on two packages. */
    const struct hkt__topo_place places[] = {
        { 9, -1, 0, 0, 0, 0, -1 }, { 5, -1, 0, 0, 0, 0, -1 }, { 9, -1, 1, 1, 8, 8, -1 },
        { 7, -1, 0, 0, 0, 0, -1 }, { 9, -1, 1, 1, 8, 9, -1 }, { 5, -1, 0, 0, 0, 1, -1 },
    };
    static const int32_t ring[] = { 0, 2, 4, 1, 5, 3 };
    struct hkt_topo_order *order = order_of(places, 6);
    struct hkt_topo_factor factor;

    (void)state;
    assert_memory_equal(order->ring, ring, sizeof ring);
    assert_int_equal(order->nfactors, 3);
    assert_int_equal(hkt_topo_order_factor(order, 0, &factor), HKT_OK);
    assert_int_equal(factor.level, HKT_TOPO_LEVEL_L3);
    assert_int_equal(factor.groups, 4);
    assert_int_equal(factor.least, 1);
    assert_int_equal(factor.most, 2);
    assert_int_equal(hkt_topo_order_factor(order, 1, &factor), HKT_OK);
    assert_int_equal(factor.level, HKT_TOPO_LEVEL_HOST);
    assert_int_equal(factor.groups, 3);
    assert_int_equal(factor.most, 2);
    assert_int_equal(hkt_topo_order_factor(order, 2, &factor), HKT_OK);
    assert_int_equal(factor.level, HKT_TOPO_LEVEL_ALL);
    assert_int_equal(factor.most, 3);
    hkt_topo_order_destroy(order);
}

/* Ranks that may run anywhere on their host are one group of it at all levels, beside those that are bound. */
static void ranks_that_are_not_bound(void **state)
{
    struct hkt__topo_place places[8];
    struct hkt_topo_order *order;

    (void)state;
    for (int r = 0; r < 8; r++)
        places[r] = (struct hkt__topo_place){ (uint64_t)(r / 4), -1, -1, -1, -1, -1, -1 };
    order = order_of(places, 8);
    assert_factors(order, "4 host, 2 all");
    hkt_topo_order_destroy(order);
    places[1] = (struct hkt__topo_place){ 0, -1, 0, 0, 0, 0, -1 };
    places[2] = (struct hkt__topo_place){ 0, -1, 0, 0, 0, 1, -1 };
    order = order_of(places, 8);
    check_groups(order, places);
    assert_int_equal(order->ngroups[HKT_TOPO_LEVEL_L3], 3);
    assert_int_equal(order->ngroups[HKT_TOPO_LEVEL_HOST], 2);
    hkt_topo_order_destroy(order);
}

static void ids_of_hosts_decide_nothing(void **state)
{
    struct hkt__topo_place places[12];
    struct hkt_topo_order *x, *y;

    (void)state;
    for (int r = 0; r < 12; r++)
        places[r] = (struct hkt__topo_place){ .host = (uint64_t)(r % 3), .rack = -1, .core = r / 3, .unit = -1 };
    x = order_of(places, 12);
    for (int r = 0; r < 12; r++)
        places[r].host = UINT64_MAX - places[r].host;
    y = order_of(places, 12);
    assert_memory_equal(x->ring, y->ring, 12 * sizeof *x->ring);
    assert_int_equal(x->ring[0], 0);
    hkt_topo_order_destroy(x);
    hkt_topo_order_destroy(y);
}

/* Hosts in a file may lack ids: each is itself. */
static void hosts_without_ids_are_told_apart(void **state)
{
    struct hkt_topo *topo = NULL;
    struct hkt_topo_order *order = NULL;
    int nodes[4];

    (void)state;
    assert_int_equal(hkt_topo_synthetic("host:2 core:2", &topo), HKT_OK);
    for (int32_t i = 0; i < topo->nnodes; i++)
        topo->nodes[i].id = 0;
    assert_int_equal(hkt_topo_deal(topo, 4, HKT_TOPO_CORE, HKT_TOPO_SPREAD, nodes), HKT_OK);
    assert_int_equal(hkt_topo_order_create(topo, nodes, 4, &order), HKT_OK);
    assert_int_equal(order->ngroups[HKT_TOPO_LEVEL_HOST], 2);
    hkt_topo_order_destroy(order);
    order = NULL;
    nodes[2] = topo->nnodes;
    assert_int_equal(hkt_topo_order_create(topo, nodes, 4, &order), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "rank 2"));
    assert_int_equal(hkt_topo_order_create(topo, nodes, 0, &order), HKT_ERR_INVALID);
    assert_null(order);
    hkt_topo_destroy(topo);
}

static void a_wrong_root_is_refused(void **state)
{
    const struct hkt__topo_place place = { 0 };
    struct hkt_topo_order *order = order_of(&place, 1);
    int32_t parent = 5;

    (void)state;
    assert_int_equal(hkt_topo_order_tree(order, 1, &parent), HKT_ERR_INVALID);
    assert_int_equal(hkt_topo_order_tree(order, -1, &parent), HKT_ERR_INVALID);
    assert_int_equal(parent, 5);
    assert_int_equal(hkt_topo_order_tree(order, 0, &parent), HKT_OK);
    assert_int_equal(parent, -1);
    hkt_topo_order_destroy(order);
}

static void many_ranks(void **state)
{
    static struct hkt__topo_place places[65536];
    static int32_t parents[65536];
    struct hkt_topo_order *order;

    (void)state;
    for (int r = 0; r < 65536; r++)
        places[r] = (struct hkt__topo_place){
            .host = (uint64_t)(r % 8192) + 1, .rack = r % 8192 / 32, .package = r / 32768, .core = r / 8192, .unit = -1
        };
    order = order_of(places, 65536);
    assert_factors(order, "4 l3, 2 host, 32 rack, 256 all");
    assert_int_equal(hkt_topo_order_tree(order, 65535, parents), HKT_OK);
    assert_int_equal(parents[65535], -1);
    hkt_topo_order_destroy(order);
}

static void ordering_survives_every_failed_allocation(void **state)
{
    const struct hkt__topo_place places[3] = { { .host = 1 }, { .host = 2 }, { .host = 1 } };

    (void)state;
    for (int64_t k = 1;; k++) {
        struct hkt_topo_order *order = NULL;

        hkt__mem_fail_at(k);
        const enum hkt_status rc = hkt__topo_order(places, 3, &order);

        hkt__mem_fail_at(0);
        hkt_topo_order_destroy(order);
        if (rc == HKT_OK)
            break;
        assert_int_equal(rc, HKT_ERR_NOMEM);
        assert_null(order);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_places_give_orders),
        cmocka_unit_test(machines_of_the_design),
        cmocka_unit_test(irregular_groups_are_counted),
        cmocka_unit_test(ranks_that_are_not_bound),
        cmocka_unit_test(ids_of_hosts_decide_nothing),
        cmocka_unit_test(hosts_without_ids_are_told_apart),
        cmocka_unit_test(a_wrong_root_is_refused),
        cmocka_unit_test(many_ranks),
        cmocka_unit_test(ordering_survives_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
