/* What could break: numbers along the ring that are no permutation, or are given to algorithms that must keep theirs; levels that
 * do not fit the numbers, or are made up where hosts differ; bytes between hosts counted on the wrong side, or not at all where
 * only a sample of ranks is looked at; a choice that sends more over the link of a host than it must. Counts are compared with
 * naive ones over the steps of all ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "cost/select.h"

enum { RANKS_MAX = 64 };

static const struct hkt__algo *find(enum hkt_coll coll, const char *name)
{
    const struct hkt__algo *algo = hkt__algo_find(coll, name);

    assert_non_null(algo);
    return algo;
}

static void near(double value, double expected)
{
    if (value < expected - 1e-9 || value > expected + 1e-9)
        fail_msg("%.12g, not %.12g", value, expected);
}

/** hosts[r] of each rank; caches, when given, are L3 caches within the host. */
static struct hkt__site site_of(const int *hosts, const int *caches, int nranks)
{
    struct hkt__topo_place places[RANKS_MAX];
    struct hkt__site site;

    for (int r = 0; r < nranks; r++)
        places[r] = (struct hkt__topo_place){.host = 1000 - (uint64_t)hosts[r], .rack = -1, .package = -1, .numa = -1,
                                             .l3 = caches != NULL ? caches[r] : -1, .core = -1, .unit = -1};
    assert_int_equal(hkt__site_make(places, nranks, &site), HKT_OK);
    return site;
}

static struct hkt__site regular_site(int nhosts, int per_host, bool dealt_round)
{
    int hosts[RANKS_MAX];

    for (int r = 0; r < nhosts * per_host; r++)
        hosts[r] = dealt_round ? r % nhosts : r / per_host;
    return site_of(hosts, NULL, nhosts * per_host);
}

static void ranks_dealt_round_are_numbered_by_host(void **state)
{
    struct hkt__site site = regular_site(3, 2, true);
    static const int32_t expected[] = {0, 3, 1, 4, 2, 5};
    const int32_t *ranks = hkt__site_ranks(&site, find(HKT_ALL_REDUCE, "ring"));

    (void)state;
    assert_false(site.is_in_order);
    assert_int_equal(site.nhosts, 3);
    assert_memory_equal(ranks, expected, sizeof expected);
    for (int r = 0; r < 6; r++)
        assert_int_equal(ranks[hkt__site_number(&site, find(HKT_BROADCAST, "binomial"), r)], r);
    assert_int_equal(site.levels.count, 2);
    assert_int_equal(site.levels.sizes[0], 2);
    assert_int_equal(site.levels.sizes[1], 3);
    hkt__site_fini(&site);
}

/** What sums in the order of ranks, or reads memory by rank, keeps the ranks' own numbers. */
static void some_rows_are_never_renumbered(void **state)
{
    struct hkt__site site = regular_site(2, 2, true);
    int kept = 0, sorted = 0;

    (void)state;
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];
        const bool keeps = algo->ordered || algo->info.needs_direct || algo->user_direct || algo->info.coll == HKT_ALL_TO_ALL_V;

        assert_int_equal(hkt__site_ranks(&site, algo) == NULL, keeps);
        assert_int_equal(hkt__site_number(&site, algo, 1), keeps ? 1 : 2);
        kept += keeps;
        sorted += !keeps;
    }
    assert_true(kept > 10 && sorted > 30);
    assert_null(hkt__site_ranks(NULL, find(HKT_ALL_REDUCE, "ring")));
    hkt__site_fini(&site);
    site = regular_site(2, 2, false);
    assert_true(site.is_in_order);
    assert_null(hkt__site_ranks(&site, find(HKT_ALL_REDUCE, "ring")));
    hkt__site_fini(&site);
}

static void uneven_groups_make_no_levels(void **state)
{
    static const int uneven[] = {0, 0, 0, 1, 1, 2}, even[] = {0, 0, 0, 1, 1, 1}, caches[] = {0, 0, 1, 0, 0, 1}, one[] = {0, 0, 0, 0};
    struct hkt__select_args args = {.coll = HKT_ALL_REDUCE, .nranks = 6, .bytes = 1000};
    struct hkt__site site = site_of(uneven, NULL, 6);

    (void)state;
    args.site = &site;
    assert_int_equal(site.levels.count, 0);
    assert_non_null(strstr(hkt__unfit(find(HKT_ALL_REDUCE, "hierarchical"), &args), "as many ranks on each host"));
    assert_string_equal(hkt__unfit(find(HKT_ALL_REDUCE, "ring"), &args), "");
    hkt__site_fini(&site);
    site = site_of(even, caches, 6); /* 2 + 1 ranks by cache: passed over, the hosts count */
    assert_int_equal(site.levels.count, 2);
    assert_int_equal(site.levels.sizes[0], 3);
    assert_int_equal(site.levels.sizes[1], 2);
    assert_string_equal(hkt__unfit(find(HKT_ALL_REDUCE, "hierarchical"), &args), "");
    hkt__site_fini(&site);
    site = site_of(one, NULL, 4); /* nothing is known: the row makes up its groups */
    assert_int_equal(site.levels.count, 0);
    assert_null(hkt__site_levels(&site));
    assert_string_equal(site.uneven, "");
    hkt__site_fini(&site);
}

static void many_groups_are_split(void **state)
{
    struct hkt__site site = regular_site(16, 4, false);

    (void)state;
    assert_int_equal(site.levels.count, 3);
    assert_int_equal(site.levels.sizes[0], 4);
    assert_int_equal(site.levels.sizes[1], 4);
    assert_int_equal(site.levels.sizes[2], 4);
    assert_int_equal(site.levels.near_count, 1);
    assert_int_equal(hkt__levels_check(&site.levels, 64), HKT_OK);
    hkt__site_fini(&site);
}

/** Bytes / n that the busiest host sends or receives, counted over the steps of all ranks. */
static double naive_wire(const struct hkt__algo *algo, const struct hkt__site *site, int nranks)
{
    const int32_t *ranks = hkt__site_ranks(site, algo), *hosts = site->order->group[HKT_TOPO_LEVEL_HOST];
    double sent[RANKS_MAX] = {0}, received[RANKS_MAX] = {0}, most = 0;

    for (int v = 0; v < nranks; v++) {
        const struct hkt__algo_case c = {nranks, v, 0, false, hkt__site_levels(site)};
        struct hkt__sched *sched;

        assert_int_equal(hkt__algo_build_case(algo, &c, &sched), HKT_OK);
        const double chunk = 1.0 / sched->cuts / hkt__vector_blocks(algo->info.coll, nranks);

        for (int32_t i = 0; i < sched->nsteps; i++) {
            const struct hkt__step *step = &sched->steps[i];
            const int own = hosts[ranks != NULL ? ranks[v] : v];
            const int other = step->peer < 0 ? own : hosts[ranks != NULL ? ranks[step->peer] : step->peer];

            if (own == other)
                continue;
            if (step->kind == HKT__SEND)
                sent[own] += chunk * sched->args[step->arg_first].x.count;
            else if (step->kind == HKT__RECV || step->kind == HKT__RECV_REDUCE)
                received[own] += chunk * step->dst.count;
        }
        hkt__sched_destroy(sched);
    }
    for (int h = 0; h < site->nhosts; h++) {
        most = sent[h] > most ? sent[h] : most;
        most = received[h] > most ? received[h] : most;
    }
    return most;
}

static void links_are_counted_as_all_steps_say(void **state)
{
    struct hkt__site sites[] = {regular_site(2, 2, false), regular_site(2, 2, true), regular_site(4, 4, true),
                                regular_site(3, 3, false), regular_site(1, 4, false)};
    const int nranks[] = {4, 4, 16, 9, 4};

    (void)state;
    for (size_t s = 0; s < sizeof sites / sizeof sites[0]; s++) {
        for (int i = 0; i < hkt__algo_count; i++) {
            const struct hkt__algo *algo = &hkt__algos[i];
            struct hkt__profile profile;

            if (algo->info.needs_direct || (algo->restriction != NULL && algo->restriction(nranks[s], false)[0] != '\0'))
                continue;
            assert_int_equal(hkt__profile_make(algo, &sites[s], nranks[s], false, &profile), HKT_OK);
            near(profile.wire, naive_wire(algo, &sites[s], nranks[s]));
            if (sites[s].nhosts == 1)
                near(profile.mean.net_messages, 0);
            else
                near(profile.mean.net_sent * nranks[s] > 0 || algo->info.coll == HKT_BARRIER, 1);
        }
        hkt__site_fini(&sites[s]);
    }
}

/** Of 64 ranks only some are looked at: where all hosts do alike that is enough. */
static void a_sample_tells_what_a_link_carries(void **state)
{
    static const char *const names[] = {"ring", "circulant", "rabenseifner", "recursive_doubling", "hierarchical", "ordered",
                                        "near_first"};
    struct hkt__site site = regular_site(8, 8, true);
    struct hkt__profile profile;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct hkt__algo *algo = find(HKT_ALL_REDUCE, names[i]);

        assert_int_equal(hkt__profile_make(algo, &site, 64, false, &profile), HKT_OK);
        near(profile.wire, naive_wire(algo, &site, 64));
    }
    /* A binomial tree over 8 hosts of 8: three hops between hosts, three inside; the root's host sends n to three others. */
    assert_int_equal(hkt__profile_make(find(HKT_BROADCAST, "binomial"), &site, 64, false, &profile), HKT_OK);
    near(profile.wire, 3);
    assert_true(profile.npaths > 0);
    near(profile.paths[0].waits.net_rounds, 3);
    near(profile.paths[0].waits.rounds, 3);
    hkt__site_fini(&site);
}

static void waits_are_told_apart(void **state)
{
    struct hkt__site site = regular_site(2, 2, false);
    struct hkt__profile profile;

    (void)state;
    assert_int_equal(hkt__profile_make(find(HKT_ALL_REDUCE, "recursive_doubling"), &site, 4, false, &profile), HKT_OK);
    near(profile.paths[0].waits.rounds, 1);
    near(profile.paths[0].waits.net_rounds, 1);
    near(profile.mean.net_messages, 2);
    near(profile.mean.messages, 2);
    near(profile.mean.net_sent, 1);
    near(profile.peers, 2);
    near(profile.net_peers, 1);
    assert_int_equal(hkt__profile_make(find(HKT_ALL_REDUCE, "ring"), &site, 4, false, &profile), HKT_OK);
    near(profile.paths[0].waits.net_rounds, 3); /* each message goes on by one rank, and every other hop leaves a host */
    hkt__site_fini(&site);
}

/** Numbers that a launcher gives make no difference to what is numbered along the ring. */
static void the_order_of_ranks_does_not_matter(void **state)
{
    struct hkt__site by_host = regular_site(4, 4, false), round = regular_site(4, 4, true);

    (void)state;
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];
        struct hkt__profile a, b;

        if (hkt__site_ranks(&round, algo) == NULL || (algo->restriction != NULL && algo->restriction(16, false)[0] != '\0'))
            continue;
        assert_int_equal(hkt__profile_make(algo, &by_host, 16, false, &a), HKT_OK);
        assert_int_equal(hkt__profile_make(algo, &round, 16, false, &b), HKT_OK);
        near(a.wire, b.wire);
        near(a.mean.net_sent, b.mean.net_sent);
        near(a.paths[0].waits.net_rounds, b.paths[0].waits.net_rounds);
    }
    hkt__site_fini(&by_host);
    hkt__site_fini(&round);
}

/** Inside a host what is farther costs more: two packages against one. */
static void distance_inside_a_host_costs(void **state)
{
    static const int hosts[] = {0, 0, 0, 0}, caches[] = {0, 1, 2, 3};
    struct hkt__site near_site = site_of(hosts, NULL, 4), far_site = site_of(hosts, caches, 4);
    struct hkt__profile a, b;

    (void)state;
    assert_int_equal(hkt__profile_make(find(HKT_ALL_REDUCE, "ring"), &near_site, 4, false, &a), HKT_OK);
    assert_int_equal(hkt__profile_make(find(HKT_ALL_REDUCE, "ring"), &far_site, 4, false, &b), HKT_OK);
    assert_true(b.mean.received > a.mean.received && b.paths[0].waits.rounds > a.paths[0].waits.rounds);
    near(b.mean.net_messages, 0);
    near(b.mean.reduced, a.mean.reduced); /* that is not between ranks */
    hkt__site_fini(&near_site);
    hkt__site_fini(&far_site);
}

/** Ranks 0 and 1 on one core, 2 and 3 on another: what passes between the two of a core is cheaper, and a last wait for the other
 *  core dearer, but only where ranks outnumber CPUs: two of a core with two CPUs run at the same time. */
static void ranks_of_one_core_take_turns(void **state)
{
    struct hkt__topo_place places[4];
    struct hkt__site site;
    struct hkt__profile alone, doubling, hierarchical;

    (void)state;
    for (int r = 0; r < 4; r++)
        places[r] = (struct hkt__topo_place){.host = 7, .rack = -1, .package = -1, .numa = -1, .l3 = -1, .core = r / 2, .unit = -1};
    assert_int_equal(hkt__site_make(places, 4, &site), HKT_OK);
    assert_false(hkt__site_link(&site, 0, 1).is_core);
    assert_int_equal(hkt__profile_make(find(HKT_ALL_GATHER, "recursive_doubling"), &site, 4, false, &alone), HKT_OK);
    hkt__site_crowd(&site, 2, false);
    assert_true(hkt__site_link(&site, 0, 1).is_core && hkt__site_link(&site, 3, 2).is_core);
    assert_false(hkt__site_link(&site, 1, 2).is_core);
    assert_int_equal(hkt__profile_make(find(HKT_ALL_GATHER, "recursive_doubling"), &site, 4, false, &doubling), HKT_OK);
    assert_int_equal(hkt__profile_make(find(HKT_ALL_GATHER, "hierarchical"), &site, 4, false, &hierarchical), HKT_OK);
    assert_true(doubling.mean.received < alone.mean.received);
    /* Both wait once inside and once across: the one last across, the other first, with one block instead of two. */
    assert_true(hierarchical.paths[0].waits.rounds < doubling.paths[0].waits.rounds);
    assert_true(hierarchical.mean.received < doubling.mean.received);
    hkt__site_crowd(&site, 2, true); /* the kernel copies between them as between others */
    assert_true(hkt__site_link(&site, 0, 1).is_core);
    near(hkt__site_link(&site, 0, 1).bytes, 1);
    near(hkt__site_link(&site, 0, 1).wait, 1);
    hkt__site_fini(&site);
}

static void large_vectors_cross_links_with_the_fewest_bytes(void **state)
{
    static const struct {
        int nhosts, per_host;
    } shapes[] = {{2, 2}, {4, 2}, {3, 4}, {8, 8}};
    static const enum hkt_coll colls[] = {HKT_ALL_REDUCE, HKT_REDUCE_SCATTER, HKT_ALL_GATHER};
    struct hkt__prices prices;

    (void)state;
    hkt__prices_init(&prices, 160, 0.07, true, 1);
    hkt__prices_net(&prices, 125e6, 20000); /* a link of 1 Gbit/s is what counts */
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const int nranks = shapes[s].nhosts * shapes[s].per_host;
        struct hkt__site site = regular_site(shapes[s].nhosts, shapes[s].per_host, false);

        for (size_t c = 0; c < sizeof colls / sizeof colls[0]; c++) {
            const struct hkt__select_args args = {.coll = colls[c], .nranks = nranks, .bytes = 64 << 20, .slice_bytes = 65536,
                                                  .scratch_bytes = 4 << 20, .site = &site};
            const double hosts = shapes[s].nhosts, least = (colls[c] == HKT_ALL_REDUCE ? 2 : 1) * (hosts - 1) / hosts;
            struct hkt__work_table *table;
            struct hkt__choice choice;

            assert_int_equal(hkt__work_table_create(&table), HKT_OK);
            assert_int_equal(hkt__select(&args, &prices, table, &choice), HKT_OK);
            near(naive_wire(choice.algo, &site, nranks), least);
            hkt__work_table_destroy(table);
        }
        hkt__site_fini(&site);
    }
}

static void out_of_memory_is_reported(void **state)
{
    struct hkt__topo_place places[4] = {{.host = 1}, {.host = 2}, {.host = 1}, {.host = 2}};
    int failures = 0;

    (void)state;
    for (long at = 1; at < 500; at++) {
        struct hkt__profile profile;
        struct hkt__site site;

        hkt__mem_fail_at(at);
        enum hkt_status rc = hkt__site_make(places, 4, &site);

        if (rc == HKT_OK) {
            rc = hkt__profile_make(find(HKT_ALL_REDUCE, "hierarchical"), &site, 4, false, &profile);
            hkt__site_fini(&site);
        }
        hkt__mem_fail_at(0);
        assert_true(rc == HKT_OK || rc == HKT_ERR_NOMEM);
        failures += rc != HKT_OK;
        if (rc == HKT_OK)
            break;
    }
    assert_true(failures > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_dealt_round_are_numbered_by_host),
        cmocka_unit_test(some_rows_are_never_renumbered),
        cmocka_unit_test(uneven_groups_make_no_levels),
        cmocka_unit_test(many_groups_are_split),
        cmocka_unit_test(links_are_counted_as_all_steps_say),
        cmocka_unit_test(a_sample_tells_what_a_link_carries),
        cmocka_unit_test(waits_are_told_apart),
        cmocka_unit_test(the_order_of_ranks_does_not_matter),
        cmocka_unit_test(distance_inside_a_host_costs),
        cmocka_unit_test(ranks_of_one_core_take_turns),
        cmocka_unit_test(large_vectors_cross_links_with_the_fewest_bytes),
        cmocka_unit_test(out_of_memory_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
