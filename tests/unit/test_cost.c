/* What could break: the choice of algorithm is a chain of small sums, and a wrong one still chooses something. So: what known
 * schedules do is counted by hand here; predictions grow with bytes; the least one wins, unless a measured choice says
 * otherwise. The file of measured choices comes from outside: every way to get it wrong must be an error that names the place,
 * and no text whatever may crash or leak (the leak check is the sanitizer's). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "cost/bound.h"
#include "cost/select.h"

static const struct hkt__algo *find(enum hkt_coll coll, const char *name)
{
    const struct hkt__algo *algo = hkt__algo_find(coll, name);

    assert_non_null(algo);
    return algo;
}

static struct hkt__profile profile_of(enum hkt_coll coll, const char *name, int nranks)
{
    struct hkt__profile profile;

    assert_int_equal(hkt__profile_make(find(coll, name), NULL, nranks, false, &profile), HKT_OK);
    return profile;
}

static void near(double value, double expected)
{
    if (value < expected - 1e-9 || value > expected + 1e-9)
        fail_msg("%g, not %g", value, expected);
}

static void ring_is_counted(void **state)
{
    const struct hkt__profile ring = profile_of(HKT_ALL_REDUCE, "ring", 4);

    (void)state;
    assert_int_equal(ring.nlooks, 1); /* all ranks do the same */
    near(ring.mean.messages, 12);     /* 2 (p-1) sent, as many received */
    near(ring.mean.parcels, 12);
    near(ring.mean.sent, 1.5);
    near(ring.mean.received, 1.5);
    near(ring.mean.reduced, 0.75);
    near(ring.mean.accesses, 0);
    assert_int_equal(ring.npaths, 2);
    near(ring.paths[0].waits.rounds, 6);
    near(ring.paths[1].work.sent + ring.paths[1].work.received, 3); /* what one rank does is all on the path */
}

static void recursive_doubling_is_counted(void **state)
{
    const struct hkt__profile doubling = profile_of(HKT_ALL_REDUCE, "recursive_doubling", 4);

    (void)state;
    near(doubling.mean.messages, 4);
    near(doubling.mean.sent, 2);
    near(doubling.mean.received, 2);
    near(doubling.mean.reduced, 2);
    near(doubling.paths[0].waits.rounds, 2);
}

/** Ranks run ahead where one receives nothing; in a scatter and all-gather the root receives too. */
static void who_receives_nothing_runs_ahead(void **state)
{
    (void)state;
    assert_true(profile_of(HKT_BROADCAST, "binomial", 4).wait < 1);
    assert_true(profile_of(HKT_REDUCE, "binomial", 4).wait < 1);
    /* Two ranks of a double tree wait for each other, whoever else runs ahead. */
    assert_true(profile_of(HKT_BROADCAST, "double_tree", 4).wait > profile_of(HKT_BROADCAST, "binomial", 4).wait);
    assert_true(profile_of(HKT_BROADCAST, "direct", 4).alternate > profile_of(HKT_REDUCE, "direct", 4).alternate);
    assert_true(profile_of(HKT_REDUCE, "direct", 4).alternate > 0);
    near(profile_of(HKT_ALL_GATHER, "direct", 4).alternate, 0); /* all give and take */
    near(profile_of(HKT_BROADCAST, "scatter_all_gather", 4).wait, 1);
    near(profile_of(HKT_ALL_REDUCE, "ring", 4).wait, 1);
}

/** Ranks 0 and 1 on one core, 2 and 3 on another. */
static void a_root_makes_its_core_the_busiest(void **state)
{
    const struct hkt__topo_place places[4] = {{.core = 0}, {.core = 0}, {.core = 1}, {.core = 1}};
    struct hkt__profile profile;
    struct hkt__site site;

    (void)state;
    assert_int_equal(hkt__site_make(places, 4, &site), HKT_OK);
    hkt__site_crowd(&site, 2, false);
    assert_int_equal(hkt__profile_make(find(HKT_SCATTER, "linear"), &site, 4, false, &profile), HKT_OK);
    assert_int_equal(profile.ncores, 2);
    near(profile.cores[0].messages, 2 + 0.91 * 2); /* both ends of the message to the neighbour are cheaper */
    near(profile.cores[1].messages, 2);
    near(profile.mean.messages, (profile.cores[0].messages + profile.cores[1].messages) / 4);
    hkt__site_fini(&site);
}

static void two_shot_is_counted(void **state)
{
    const struct hkt__profile two_shot = profile_of(HKT_ALL_REDUCE, "two_shot", 4);

    (void)state;
    near(two_shot.mean.messages, 0.93 * 12); /* signals and waits, which count for less */
    near(two_shot.mean.sent, 0);
    near(two_shot.mean.reduced, 0.75);
    near(two_shot.mean.fresh, 0.75 + 0.5 * 0.75 + 0.25 + 0.75); /* laid out, read as inputs side by side, summed, read as sums */
    near(two_shot.mean.copied, 0.25 + 0.34 * 0.75); /* the own sum; those of others, which are stored */
    near(two_shot.mean.accesses, 6);
    near(two_shot.mean.read, 0);
    near(profile_of(HKT_ALL_TO_ALL, "direct_user", 4).mean.stored, 0.34 * 0.75);
    near(profile_of(HKT_ALL_TO_ALL, "write_user", 4).mean.stored, 0.51 * 0.75); /* read here, for them */
    near(profile_of(HKT_ALL_TO_ALL, "write_user", 4).mean.written, 0.75);
    const struct hkt__profile gives = profile_of(HKT_ALL_GATHER, "write_user", 4);

    near(gives.mean.copied + gives.mean.stored, (0.51 + 0.34) * 0.25); /* the own block is read once for all places */
    near(profile_of(HKT_REDUCE_SCATTER, "direct_user", 4).mean.bounced, 3 * 0.75); /* pieces of three inputs at a time */
}

static void a_root_is_busier_than_the_mean(void **state)
{
    const struct hkt__profile linear = profile_of(HKT_GATHER, "linear", 4);
    double most = 0;

    (void)state;
    assert_true(linear.nlooks >= 2);
    for (int32_t i = 0; i < linear.nlooks; i++)
        most = linear.looks[i].received > most ? linear.looks[i].received : most;
    near(most, 0.75);
    near(linear.mean.received, 0.75 / 4);
}

static struct hkt__prices memory_prices(double crowd)
{
    struct hkt__prices prices;

    hkt__prices_init(&prices, 160, 0.07, true, crowd);
    prices.l1_bytes = 48 << 10; /* not this machine's */
    prices.l2_bytes = 1 << 21;
    prices.llc_bytes = 1 << 25;
    return prices;
}

/** Messages that a call of 8 bytes pays for over sockets. */
static double socket_messages(enum hkt_coll coll, const char *name, double crowd)
{
    const struct hkt__profile profile = profile_of(coll, name, 4);
    const struct hkt__model_args args = {.bytes = coll == HKT_BARRIER ? 0 : 8, .touched = 1, .slice_bytes = 65536, .scratch_bytes = 1 << 20};
    struct hkt__prices prices;
    double amounts[HKT__PRICE_COUNT];

    hkt__prices_init(&prices, 6000, 0.33, false, crowd);
    hkt__model_amounts(&profile, &prices, &args, amounts);
    return amounts[HKT__PRICE_MESSAGE];
}

static void sockets_have_no_signals_and_take_batches(void **state)
{
    (void)state;
    near(socket_messages(HKT_BARRIER, "dissemination", 1), 4 * 1.1); /* three peers */
    /* Who waits pays all of a message where ranks share cores too, who runs ahead a part of it. */
    near(socket_messages(HKT_ALL_REDUCE, "recursive_doubling", 2), 2 * socket_messages(HKT_ALL_REDUCE, "recursive_doubling", 1));
    assert_true(socket_messages(HKT_REDUCE, "binomial", 2) < 0.5 * socket_messages(HKT_REDUCE, "ordered", 2));
    assert_true(socket_messages(HKT_REDUCE, "binomial", 2) < socket_messages(HKT_REDUCE, "binomial", 1));
}

static void predictions_grow_with_bytes(void **state)
{
    const int ranks[] = {2, 3, 4, 8, 40};
    struct hkt__prices variants[3] = {memory_prices(1), memory_prices(2), {.crowd = 0}};

    (void)state;
    hkt__prices_init(&variants[2], 6000, 0.33, false, 1);
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];

        for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
            struct hkt__profile profile;

            if (algo->restriction != NULL && algo->restriction(ranks[r], false)[0] != '\0')
                continue;
            assert_int_equal(hkt__profile_make(algo, NULL, ranks[r], false, &profile), HKT_OK);
            for (int v = 0; v < 3; v++) {
                double last = 0;

                for (size_t bytes = 0; bytes <= (size_t)1 << 30; bytes = bytes < 8 ? 8 : bytes * 3) {
                    const struct hkt__model_args args = {.bytes = bytes, .touched = 2, .slice_bytes = 65536, .scratch_bytes = 4 << 20,
                                                         .one_slice = algo->user_direct, .far = algo->user_direct && v == 0};
                    const double ns = hkt__model_ns(&profile, &variants[v], &args);

                    if (!(ns > 0 && ns >= last))
                        fail_msg("%s %s, %d ranks, prices %d: %zu bytes take %g ns, fewer took %g",
                                 hkt_coll_name(algo->info.coll), algo->info.name, ranks[r], v, bytes, ns, last);
                    last = ns;
                }
            }
        }
    }
}

static double model_ns(enum hkt_coll coll, const char *algo, int nranks, double crowd, size_t bytes)
{
    const struct hkt__prices prices = memory_prices(crowd);
    const struct hkt__profile profile = profile_of(coll, algo, nranks);
    const struct hkt__model_args args = {.bytes = bytes, .touched = 2, .slice_bytes = 65536, .scratch_bytes = 4 << 20};

    return hkt__model_ns(&profile, &prices, &args);
}

/** Two small messages on lanes of their own take less than one that is not small, which takes less than two such. */
static void small_messages_go_in_one_step(void **state)
{
    (void)state;
    assert_true(model_ns(HKT_BROADCAST, "double_tree", 2, 1, 64) > model_ns(HKT_BROADCAST, "binomial", 2, 1, 64));
    assert_true(model_ns(HKT_BROADCAST, "double_tree", 2, 1, 1960) < model_ns(HKT_BROADCAST, "binomial", 2, 1, 1960));
    assert_true(model_ns(HKT_BROADCAST, "double_tree", 2, 1, 4096) > model_ns(HKT_BROADCAST, "binomial", 2, 1, 4096));
    assert_true(model_ns(HKT_BROADCAST, "binomial", 2, 1, 1028) > 1.2 * model_ns(HKT_BROADCAST, "binomial", 2, 1, 1024));
}

/** Where 8 ranks share 2 cores a second round in which all wait for all takes a turn more, and three of one message hardly one. */
static void waiting_for_all_takes_turns(void **state)
{
    static const char *const algos[3] = {"direct", "direct_user", "recursive_doubling"};
    const struct hkt__prices prices = memory_prices(4);
    const struct hkt__model_args args = {.bytes = 64, .touched = 2, .slice_bytes = 65536, .scratch_bytes = 4 << 20};
    struct hkt__topo_place places[8] = {{.core = 0}};
    struct hkt__site site;
    double ns[3];

    (void)state;
    for (int i = 4; i < 8; i++)
        places[i].core = 1;
    assert_int_equal(hkt__site_make(places, 8, &site), HKT_OK);
    hkt__site_crowd(&site, 4, false);
    for (int i = 0; i < 3; i++) {
        struct hkt__profile profile;

        assert_int_equal(hkt__profile_make(find(HKT_ALL_GATHER, algos[i]), &site, 8, false, &profile), HKT_OK);
        ns[i] = hkt__model_ns(&profile, &prices, &args);
    }
    assert_true(ns[1] > 1.3 * ns[0]);
    assert_true(ns[2] < 1.2 * ns[0]);
    hkt__site_fini(&site);
}

static struct hkt__select_args some_args(size_t bytes)
{
    return (struct hkt__select_args){.coll = HKT_ALL_REDUCE, .nranks = 4, .direct_ok = true, .copy_ok = true, .bytes = bytes,
                                     .slice_bytes = 65536, .scratch_bytes = 4 << 20};
}

/** Of one row for all it serves; prices of sockets, or of a network, where they are not of memory. */
static void expect_above_bound(const struct hkt__algo *algo, struct hkt__select_args *args, const struct hkt__prices *prices,
                               struct hkt__work_table *table)
{
    const bool is_memory = args->direct_ok;
    struct hkt_bound bound;
    double ns = 0;

    args->coll = algo->info.coll;
    for (int in_place = 0; in_place < 2; in_place++) {
        args->in_place = in_place;
        if (hkt__unfit(algo, args)[0] != '\0')
            continue;
        for (args->bytes = 0; args->bytes <= (size_t)1 << 28; args->bytes = args->bytes < 8 ? 8 : args->bytes * 64) {
            assert_int_equal(hkt__select_predict(algo, args, prices, table, NULL, &ns), HKT_OK);
            hkt__bound(args, prices, is_memory, &bound);
            if (ns < 999 * bound.time_us)
                fail_msg("%s %s, %d ranks, %zu bytes, in place %d, memory %d: predicted %g us, the bound is %g",
                         hkt_coll_name(args->coll), algo->info.name, args->nranks, args->bytes, in_place, is_memory, ns / 1e3,
                         bound.time_us);
        }
    }
}

/** 4 ranks on as many hosts, or on 2. */
static void expect_above_bound_of_hosts(int nhosts)
{
    const struct hkt__topo_place places[4] = {{.host = 0}, {.host = (uint64_t)nhosts / 4}, {.host = (uint64_t)nhosts / 2},
                                              {.host = (uint64_t)nhosts - 1}};
    struct hkt__select_args args = some_args(0);
    struct hkt__prices prices = memory_prices(1);
    struct hkt__work_table *table;
    struct hkt__site site;

    hkt__prices_net(&prices, 1.25e9, 0);
    assert_int_equal(hkt__site_make(places, 4, &site), HKT_OK);
    assert_int_equal(hkt__work_table_create(&table), HKT_OK);
    args.direct_ok = args.copy_ok = false;
    args.site = &site;
    for (int i = 0; i < hkt__algo_count; i++)
        expect_above_bound(&hkt__algos[i], &args, &prices, table);
    hkt__work_table_destroy(table);
    hkt__site_fini(&site);
}

static void nothing_is_predicted_below_the_bound(void **state)
{
    const int ranks[] = {1, 2, 3, 4, 8, 32};
    struct hkt__prices variants[3] = {memory_prices(1), memory_prices(2), {.crowd = 0}};

    (void)state;
    hkt__prices_init(&variants[2], 6000, 0.33, false, 1);
    for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
        struct hkt__work_table *table;

        assert_int_equal(hkt__work_table_create(&table), HKT_OK);
        for (int v = 0; v < 6; v++) {
            struct hkt__select_args args = some_args(0);

            args.nranks = ranks[r];
            args.direct_ok = args.copy_ok = v / 2 < 2;
            args.user_ok = args.copy_ok && v % 2 == 0;
            for (int i = 0; i < hkt__algo_count; i++)
                expect_above_bound(&hkt__algos[i], &args, &variants[v / 2], table);
        }
        hkt__work_table_destroy(table);
    }
    expect_above_bound_of_hosts(2);
    expect_above_bound_of_hosts(4);
}

static void the_least_prediction_wins(void **state)
{
    const struct hkt__prices prices = memory_prices(1);
    struct hkt__work_table *table;

    (void)state;
    assert_int_equal(hkt__work_table_create(&table), HKT_OK);
    for (size_t bytes = 4; bytes < (size_t)1 << 28; bytes *= 7) {
        const struct hkt__select_args args = some_args(bytes);
        struct hkt__choice choice;
        double least;

        assert_int_equal(hkt__select(&args, &prices, table, &choice), HKT_OK);
        assert_false(choice.is_tuned);
        assert_int_equal(hkt__select_predict(choice.algo, &args, &prices, table, NULL, &least), HKT_OK);
        for (int i = 0; i < hkt__algo_count; i++) {
            double terms[HKT__PRICE_COUNT], sum = 0, ns;

            if (hkt__algos[i].info.coll != args.coll || hkt__unfit(&hkt__algos[i], &args)[0] != '\0')
                continue;
            assert_int_equal(hkt__select_predict(&hkt__algos[i], &args, &prices, table, terms, &ns), HKT_OK);
            assert_true(ns * 1.03 >= least); /* or one that is hardly more */
            for (int k = 0; k < HKT__PRICE_COUNT; k++)
                sum += terms[k];
            assert_true(sum > 0.999999 * ns && sum < 1.000001 * ns);
        }
    }
    hkt__work_table_destroy(table);
}

static double cut_ns(const struct hkt__algo *algo, struct hkt__select_args args, const struct hkt__prices *prices,
                     struct hkt__work_table *table, size_t slice_bytes, int lanes)
{
    struct hkt__cut cut;

    args.slice_bytes = slice_bytes;
    args.slices_set = true;
    args.lanes = lanes;
    assert_int_equal(hkt__select_cut(algo, &args, prices, table, &cut), HKT_OK);
    assert_int_equal(cut.slice_bytes, slice_bytes);
    assert_int_equal(cut.lanes, lanes);
    return cut.ns;
}

/** Over sockets large vectors are best cut in larger slices than usual, over a link that is far away on several lanes. In memory none
 *  of it pays. The choice is no worse than what the user could force, but for a tie. */
static void slices_and_lanes_are_weighed(void **state)
{
    enum { MEMORY, SOCKETS, FAR };
    static const struct {
        int where;
        size_t bytes;
        bool longer, wider;
    } cases[] = {{MEMORY, 64 << 20, false, false}, {SOCKETS, 65536, false, false}, {SOCKETS, 64 << 20, true, false}, {FAR, 64 << 20, true, true}};
    struct hkt__topo_place places[4];
    struct hkt__site site;
    const struct hkt__algo *ring = find(HKT_ALL_REDUCE, "ring");

    (void)state;
    for (int r = 0; r < 4; r++)
        places[r] = (struct hkt__topo_place){.host = (uint64_t)r + 1, .rack = -1, .package = -1, .numa = -1, .l3 = -1, .core = 0, .unit = -1};
    assert_int_equal(hkt__site_make(places, 4, &site), HKT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hkt__prices prices = memory_prices(1);
        struct hkt__select_args args = some_args(cases[i].bytes);
        struct hkt__work_table *table;
        struct hkt__choice choice;
        struct hkt__cut cut;

        if (cases[i].where == SOCKETS)
            hkt__prices_init(&prices, 8000, 0.2, false, 1);
        if (cases[i].where == FAR) {
            hkt__prices_net(&prices, 1e9, 500000);
            args.site = &site;
        }
        args.lanes_max = 4;
        args.direct_ok = false;
        assert_int_equal(hkt__work_table_create(&table), HKT_OK);
        assert_int_equal(hkt__select(&args, &prices, table, &choice), HKT_OK);
        assert_int_equal(hkt__select_cut(choice.algo, &args, &prices, table, &cut), HKT_OK);
        assert_memory_equal(&cut, &choice.cut, sizeof cut); /* the choice is of both */
        assert_int_equal(hkt__select_cut(ring, &args, &prices, table, &cut), HKT_OK);
        assert_int_equal(cut.slice_bytes > args.slice_bytes, cases[i].longer);
        assert_int_equal(cut.lanes > 1, cases[i].wider);
        for (size_t slice_bytes = args.slice_bytes; slice_bytes <= 8 * args.slice_bytes; slice_bytes *= 2)
            for (int lanes = 1; lanes <= 4; lanes *= 2)
                assert_true(cut.ns <= 1.031 * cut_ns(ring, args, &prices, table, slice_bytes, lanes));
        hkt__work_table_destroy(table);
    }
    hkt__site_fini(&site);
}

/** Of those that are left it does not matter for what sizes they are meant. */
static void what_is_forbidden_is_not_chosen(void **state)
{
    const struct hkt__algo *left = find(HKT_ALL_GATHER, "write_user");
    const struct hkt__prices prices = memory_prices(1);
    struct hkt__select_args args = some_args(1024);
    struct hkt__work_table *table;
    struct hkt__choice choice = {.algo = NULL};
    struct hkt__wish wish = {.forced = {NULL}};

    (void)state;
    args.coll = HKT_ALL_GATHER;
    args.wish = &wish;
    assert_int_equal(hkt__work_table_create(&table), HKT_OK);
    assert_int_equal(hkt__select(&args, &prices, table, &choice), HKT_OK);
    assert_ptr_not_equal(choice.algo, left);
    for (int i = 0; i < hkt__algo_count; i++)
        wish.forbidden[i] = &hkt__algos[i] != left;
    assert_int_equal(hkt__select(&args, &prices, table, &choice), HKT_OK);
    assert_ptr_equal(choice.algo, left);
    wish.forbidden[left - hkt__algos] = true;
    assert_int_equal(hkt__select(&args, &prices, table, &choice), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "; HOCKET_ALGO forbids ring, "));
    assert_non_null(strstr(hkt_last_error(), ", write_user, "));
    args.coll = HKT_ALL_REDUCE;
    args.in_place = true;
    wish.forbidden[find(HKT_ALL_REDUCE, "one_shot_user") - hkt__algos] = false;
    assert_false(hkt__select_serves(&args));
    assert_int_equal(hkt__select(&args, &prices, table, &choice), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), " in place; one_shot_user: not in place: ranks read"));
    args.in_place = false;
    assert_true(hkt__select_serves(&args));
    hkt__work_table_destroy(table);
}

/* ---- tables ---- */

static const struct hkt__tune_key here = {.version = "0.1.0", .cpu = "Some CPU @ 2 GHz", .transport = "shm", .cores = 2,
                                          .l2_bytes = 1 << 21, .llc_bytes = 1 << 25, .host_ranks = 4};

static struct hkt__tune_row a_row(const char *algo, uint64_t from, uint64_t to)
{
    return (struct hkt__tune_row){.coll = HKT_ALL_REDUCE, .algo = (int32_t)(find(HKT_ALL_REDUCE, algo) - hkt__algos), .nranks = 4,
                                  .bytes_from = from, .bytes_to = to, .measured_us = 12.345678};
}

/** Text of a file with one table of two rows: ring from 0 to 999, exchange from 500 to 2000. */
static char *a_text(void)
{
    struct hkt__tune_table *table = hkt__calloc(1, sizeof *table);
    char *text;

    assert_non_null(table);
    for (int i = 0; i < HKT__PRICE_COUNT; i++)
        table->price[i] = 0.5 + i;
    table->rows[table->nrows++] = a_row("ring", 0, 999);
    table->rows[table->nrows++] = a_row("exchange", 500, 2000);
    assert_int_equal(hkt__tune_print(NULL, "t.json", &here, table, &text), HKT_OK);
    hkt__free(table);
    return text;
}

static struct hkt__tune *parse(const char *text, const struct hkt__tune_key *key, int *out_skipped)
{
    struct hkt__tune *tune = NULL;

    if (hkt__tune_parse(text, "t.json", key, &tune, out_skipped) < 0)
        fail_msg("%s", hkt_last_error());
    return tune;
}

static void a_table_comes_back_as_written(void **state)
{
    int skipped = -1;
    char *text = a_text();
    struct hkt__tune *tune = parse(text, &here, &skipped);

    (void)state;
    assert_int_equal(skipped, 0);
    assert_int_equal(tune->ntables, 1);
    assert_int_equal(hkt__tune_check(tune), HKT_OK);
    assert_int_equal(hkt__tune_find(tune, "shm"), 0);
    assert_int_equal(hkt__tune_find(tune, "tcp"), -1);
    assert_int_equal(hkt__tune_find(NULL, "shm"), -1);
    for (int i = 0; i < HKT__PRICE_COUNT; i++)
        near(tune->tables[0].price[i], 0.5 + i);
    assert_int_equal(tune->tables[0].nrows, 2);
    assert_int_equal(tune->tables[0].rows[1].bytes_to, 2000);
    near(tune->tables[0].rows[1].measured_us, 12.35);
    hkt__free(tune);
    hkt__free(text);
}

static void measured_choices_win(void **state)
{
    const struct hkt__prices prices = memory_prices(1);
    static const struct {
        size_t bytes;
        const char *algo; /* NULL: not by measurement */
    } cases[] = {{0, "ring"}, {999, "ring"}, {1000, "exchange"}, {2000, "exchange"}, {2001, NULL}};
    struct hkt__work_table *table;
    struct hkt__choice choice;
    int skipped;
    char *text = a_text();
    struct hkt__tune *tune = parse(text, &here, &skipped);

    (void)state;
    assert_int_equal(hkt__work_table_create(&table), HKT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hkt__select_args args = some_args(cases[i].bytes);

        args.tuned = &tune->tables[0];
        assert_int_equal(hkt__select(&args, &prices, table, &choice), HKT_OK);
        assert_int_equal(choice.is_tuned, cases[i].algo != NULL);
        if (cases[i].algo != NULL)
            assert_string_equal(choice.algo->info.name, cases[i].algo);
        args.in_place = true; /* another case */
        assert_null(hkt__select_tuned(&args));
        args.in_place = false;
        args.nranks = 3;
        assert_null(hkt__select_tuned(&args));
        args.nranks = 4;
        args.ordered = true; /* rank order was asked for: ring does not serve */
        assert_true(hkt__select_tuned(&args) == NULL || hkt__select_tuned(&args)->algo != tune->tables[0].rows[0].algo);
    }
    hkt__work_table_destroy(table);
    hkt__free(tune);
    hkt__free(text);
}

static void other_machines_tables_are_kept_and_skipped(void **state)
{
    struct hkt__tune_key other = here, tcp = here;
    struct hkt__tune_table *table = hkt__calloc(1, sizeof *table);
    char *one = a_text(), *two, *three;
    int skipped;

    (void)state;
    assert_non_null(table);
    other.cores = 64;
    snprintf(tcp.transport, sizeof tcp.transport, "tcp");
    assert_int_equal(hkt__tune_print(one, "t.json", &other, table, &two), HKT_OK);
    struct hkt__tune *tune = parse(two, &here, &skipped);

    assert_int_equal(skipped, 1);
    assert_int_equal(tune->ntables, 1);
    assert_int_equal(tune->tables[0].nrows, 2);
    hkt__free(tune);
    assert_int_equal(hkt__tune_print(two, "t.json", &tcp, table, &three), HKT_OK); /* beside */
    hkt__free(two);
    assert_int_equal(hkt__tune_print(three, "t.json", &here, table, &two), HKT_OK); /* in place of the first */
    tune = parse(two, &here, &skipped);
    assert_int_equal(skipped, 1);
    assert_int_equal(tune->ntables, 2);
    assert_int_equal(tune->tables[hkt__tune_find(tune, "shm")].nrows, 0);
    hkt__free(tune);
    assert_int_equal(hkt__tune_print("[1]", "t.json", &here, table, &two), HKT_ERR_INVALID); /* someone's own file */
    assert_non_null(strstr(hkt_last_error(), "t.json"));
    hkt__free(one);
    hkt__free(two);
    hkt__free(three);
    hkt__free(table);
}

/** The text with its first `from` replaced. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    const size_t bytes = strlen(text) + strlen(to) + 1;
    char *result = hkt__calloc(bytes, 1);

    if (at == NULL)
        fail_msg("\"%s\" is not in the text", from);
    assert_non_null(result);
    snprintf(result, bytes, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return result;
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *from, *to, *place, *expected;
    } mistakes[] = {
        {"\"format\"", "\"fromat\"", "fromat", "no such key"},
        {"hocket tune 1", "hocket tune 2", "format", "hocket tune 1"},
        {"\"tables\":", "\"tables\": 3, \"t\":", "t", "no such key"},
        {"{", "", "t.json:", "JSON"},
        {"\"prices\":\t{", "\"prices\": {,", "t.json:13:", "JSON"},
        {"\"cpu\"", "\"gpu\"", "tables[0].machine.gpu", "no such key"},
        {"\"cores\":\t2", "\"cores\":\t\"2\"", "tables[0].machine.cores", "a number"},
        {"\"cores\":\t2", "\"cores\":\t2.5", "tables[0].machine.cores", "a whole number"},
        {"\"cores\":\t2", "\"cores\":\t2, \"cores\": 2", "tables[0].machine.cores", "once"},
        {"\"l2_bytes\":\t2097152", "\"l2_bytes\":\t-1", "tables[0].machine.l2_bytes", "a number from 0"},
        {"\"call_ns\":\t0.5", "\"call_ns\":\t1e999", "tables[0].prices.call_ns", "a number"},
        {"\"call_ns\":\t0.5,", "", "tables[0].prices.call_ns", "a number"},
        {"\"call_ns\"", "\"cal_ns\"", "tables[0].prices.cal_ns", "no such key"},
        {"\"choices\":\t[", "\"choices\":\t[7, ", "tables[0].choices[0]", "an object"},
        {"all_reduce", "all_rdeuce", "tables[0].choices[0].collective", "a collective"},
        {"\"exchange\"", "\"binomial\"", "tables[0].choices[1].algorithm", "an algorithm"},
        {"\"in_place\":\tfalse", "\"in_place\":\t0", "tables[0].choices[0].in_place", "true or false"},
        {"\"bytes_from\":\t500", "\"bytes_from\":\t5000", "tables[0].choices[1].bytes_to", "at least bytes_from"},
        {"\"bytes_to\":\t999", "\"bytes_to\":\t1e30", "tables[0].choices[0].bytes_to", "a number"},
        {"\"measured_us\"", "\"measured\"", "tables[0].choices[0].measured", "no such key"},
        {"\"choices\"", "\"choice\"", "tables[0].choice", "no such key"},
        {"\"tables\":\t[{", "\"tables\":\t[{}, {", "tables[0].machine", "an object"},
    };
    char *text = a_text();

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        char *wrong = replaced(text, mistakes[i].from, mistakes[i].to);
        struct hkt__tune *tune = (struct hkt__tune *)&state;
        int skipped = 77;

        if (hkt__tune_parse(wrong, "t.json", &here, &tune, &skipped) != HKT_ERR_INVALID)
            fail_msg("\"%s\" was taken", mistakes[i].to);
        if (strncmp(hkt_last_error(), "t.json:", 7) != 0 || strstr(hkt_last_error(), mistakes[i].place) == NULL ||
            strstr(hkt_last_error(), mistakes[i].expected) == NULL)
            fail_msg("mistake %zu (%s): %s", i, mistakes[i].to, hkt_last_error());
        assert_true(tune == (struct hkt__tune *)&state && skipped == 77);
        hkt__free(wrong);
    }
    hkt__free(text);
}

static void too_many_rows_are_refused(void **state)
{
    struct hkt__tune_table *table = hkt__calloc(1, sizeof *table);
    struct hkt__tune *tune;
    char *text, *more;
    int skipped;

    (void)state;
    assert_non_null(table);
    for (table->nrows = 0; table->nrows < HKT__TUNE_ROWS_MAX; table->nrows++)
        table->rows[table->nrows] = a_row("ring", 1, 2);
    assert_int_equal(hkt__tune_print(NULL, "t.json", &here, table, &text), HKT_OK);
    assert_true(strlen(text) * HKT__TUNE_TABLES_MAX * 4 < HKT__TUNE_FILE_MAX); /* some machines fit a file */
    tune = parse(text, &here, &skipped);
    assert_int_equal(tune->tables[0].nrows, HKT__TUNE_ROWS_MAX);
    hkt__free(tune);
    more = replaced(text, "\"choices\":\t[", "\"choices\":\t[{\"collective\": \"barrier\", \"ranks\": 4, \"in_place\": false, "
                    "\"registered\": false, \"bytes_from\": 0, \"bytes_to\": 0, \"algorithm\": \"flat\", \"measured_us\": 1}, ");
    assert_int_equal(hkt__tune_parse(more, "t.json", &here, &tune, &skipped), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "at most 1024"));
    hkt__free(more);
    hkt__free(text);
    hkt__free(table);
}

/** xorshift64*: Vigna, ACM TOMS 42(4), 2016. */
static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return *seed * 0x2545F4914F6CDD1Du;
}

static void no_text_crashes(void **state)
{
    uint64_t seed = 20261129;
    char *text = a_text();
    const size_t bytes = strlen(text);
    const char pieces[] = "{}[]\",:0-9eE.tfn\\u \n";
    int taken = 0;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 3000; round++) {
        char *wrong = hkt__strdup(text);
        const uint64_t changes = 1 + next_random(&seed) % 4;
        struct hkt__tune *tune = NULL;
        int skipped;

        assert_non_null(wrong);
        for (uint64_t i = 0; i < changes; i++) {
            char *at = &wrong[next_random(&seed) % bytes];

            if (next_random(&seed) % 3 == 0)
                *at = (char)(1 + next_random(&seed) % 255);
            else
                *at = pieces[next_random(&seed) % (sizeof pieces - 1)];
        }
        if (round % 7 == 0)
            wrong[next_random(&seed) % bytes] = '\0';
        if (hkt__tune_parse(wrong, "t.json", &here, &tune, &skipped) == HKT_OK) {
            assert_int_equal(hkt__tune_check(tune), HKT_OK);
            taken++;
        }
        hkt__free(tune);
        hkt__free(wrong);
    }
    assert_true(taken < 2000); /* most changes are noticed; a digit for a digit is not */
    hkt__free(text);
}

static void nonsense_from_rank_0_is_refused(void **state)
{
    char *text = a_text();
    int skipped;
    struct hkt__tune *tune = parse(text, &here, &skipped);

    (void)state;
    tune->tables[0].rows[0].algo = hkt__algo_count;
    assert_int_equal(hkt__tune_check(tune), HKT_ERR_INVALID);
    tune->tables[0].rows[0].algo = (int32_t)(find(HKT_BROADCAST, "chain") - hkt__algos);
    assert_int_equal(hkt__tune_check(tune), HKT_ERR_INVALID);
    tune->tables[0].nrows = HKT__TUNE_ROWS_MAX + 1;
    assert_int_equal(hkt__tune_check(tune), HKT_ERR_INVALID);
    tune->ntables = -1;
    assert_int_equal(hkt__tune_check(tune), HKT_ERR_INVALID);
    hkt__free(tune);
    hkt__free(text);
}

static void out_of_memory_is_reported(void **state)
{
    char *text = a_text(), *again;
    struct hkt__tune *tune;
    struct hkt__profile profile;
    struct hkt__tune_table *table = hkt__calloc(1, sizeof *table);
    int skipped;

    (void)state;
    assert_non_null(table);
    hkt__mem_fail_at(1);
    assert_int_equal(hkt__tune_parse(text, "t.json", &here, &tune, &skipped), HKT_ERR_NOMEM);
    hkt__mem_fail_at(1);
    assert_int_equal(hkt__tune_print(text, "t.json", &here, table, &again), HKT_ERR_NOMEM);
    for (int64_t k = 1;; k++) {
        hkt__mem_fail_at(k);
        const enum hkt_status rc = hkt__profile_make(find(HKT_ALL_REDUCE, "two_shot"), NULL, 4, false, &profile);

        hkt__mem_fail_at(0);
        if (rc == HKT_OK)
            break;
        assert_int_equal(rc, HKT_ERR_NOMEM);
    }
    hkt__free(table);
    hkt__free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_is_counted),
        cmocka_unit_test(recursive_doubling_is_counted),
        cmocka_unit_test(who_receives_nothing_runs_ahead),
        cmocka_unit_test(a_root_makes_its_core_the_busiest),
        cmocka_unit_test(two_shot_is_counted),
        cmocka_unit_test(a_root_is_busier_than_the_mean),
        cmocka_unit_test(sockets_have_no_signals_and_take_batches),
        cmocka_unit_test(predictions_grow_with_bytes),
        cmocka_unit_test(small_messages_go_in_one_step),
        cmocka_unit_test(waiting_for_all_takes_turns),
        cmocka_unit_test(nothing_is_predicted_below_the_bound),
        cmocka_unit_test(the_least_prediction_wins),
        cmocka_unit_test(slices_and_lanes_are_weighed),
        cmocka_unit_test(what_is_forbidden_is_not_chosen),
        cmocka_unit_test(a_table_comes_back_as_written),
        cmocka_unit_test(measured_choices_win),
        cmocka_unit_test(other_machines_tables_are_kept_and_skipped),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(too_many_rows_are_refused),
        cmocka_unit_test(no_text_crashes),
        cmocka_unit_test(nonsense_from_rank_0_is_refused),
        cmocka_unit_test(out_of_memory_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
