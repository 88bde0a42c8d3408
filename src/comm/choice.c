/* The choice of algorithm, laid open: what the user forces and forbids, and what is weighed for a case, by a communicator or
 * without one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/call.h"
#include "core/log.h"
#include "core/mem.h"
#include "cost/bound.h"
#include "hocket/tune.h"
#include "transport/cores.h"
#include "transport/machine.h"

#define CANDIDATES_MAX 32 /* of one collective */

/** One "coll=algo" or "coll=^algo" of a list. */
static enum hkt_status parse_wish(const char *text, size_t bytes, struct hkt__wish *wish)
{
    char item[128];
    enum hkt_coll coll;

    snprintf(item, sizeof item, "%.*s", (int)bytes, text);
    char *equals = strchr(item, '=');

    if (equals == NULL)
        return hkt__fail(HKT_ERR_INVALID, "algorithm list: \"%s\" is neither COLLECTIVE=ALGORITHM nor COLLECTIVE=^ALGORITHM "
                         "(HOCKET_ALGO, config.algo)", item);
    *equals = '\0';
    const bool forbids = equals[1] == '^';
    const struct hkt__algo *algo = hkt_coll_parse(item, &coll) < 0 ? NULL : hkt__algo_find(coll, equals + 1 + forbids);

    if (algo == NULL)
        return hkt__error_context(HKT_ERR_INVALID, "algorithm list");
    if (forbids) {
        wish->forbidden[algo - hkt__algos] = true;
        return HKT_OK;
    }
    if (wish->forced[coll] != NULL && wish->forced[coll] != algo)
        return hkt__fail(HKT_ERR_INVALID, "algorithm list: %s is to be both %s and %s (HOCKET_ALGO, config.algo)", item,
                         wish->forced[coll]->info.name, algo->info.name);
    wish->forced[coll] = algo;
    return HKT_OK;
}

enum hkt_status hkt__algo_list_parse(const char *list, struct hkt__wish *out_wish)
{
    struct hkt__wish wish = {.forced = {NULL}};
    enum hkt_status rc = HKT_OK;

    while (list != NULL && *list != '\0' && rc == HKT_OK) {
        const size_t bytes = strcspn(list, ",");

        if (bytes > 0)
            rc = parse_wish(list, bytes, &wish);
        list += bytes + (list[bytes] == ',');
    }
    if (rc == HKT_OK)
        *out_wish = wish;
    return rc;
}

/** What one choice depends on, but for the case. */
struct weighing {
    const struct hkt__select_args *args;
    const struct hkt__prices *prices;
    struct hkt__work_table *table;
};

static int by_time(const void *a, const void *b)
{
    const struct hkt_candidate *x = a, *y = b;
    const bool x_fits = x->unfit[0] == '\0', y_fits = y->unfit[0] == '\0';

    if (x->chosen != y->chosen)
        return y->chosen - x->chosen;
    if (x_fits != y_fits)
        return y_fits - x_fits;
    return (x->predicted_us > y->predicted_us) - (x->predicted_us < y->predicted_us);
}

static enum hkt_status weigh(const struct weighing *w, const struct hkt__algo *algo, struct hkt_candidate *out_candidate)
{
    struct hkt_candidate candidate = {.algo = algo->info.name, .unfit = hkt__unfit(algo, w->args),
                                      .tuned = w->args->tuned != NULL};
    double ns = 0;
    enum hkt_status rc = HKT_OK;

    if (candidate.unfit[0] == '\0') {
        struct hkt__cut cut = {0};

        rc = hkt__select_cut(algo, w->args, w->prices, w->table, &cut);
        if (rc == HKT_OK)
            rc = hkt__select_predict(algo, w->args, w->prices, w->table, candidate.terms_us, &ns);
        candidate.slice_bytes = cut.slice_bytes;
        candidate.slices = cut.slices;
        candidate.lanes = cut.lanes;
    }
    candidate.predicted_us = ns / 1e3;
    for (int i = 0; i < HKT__PRICE_COUNT; i++)
        candidate.terms_us[i] /= 1e3;
    *out_candidate = candidate;
    return rc;
}

static enum hkt_status weigh_all(const struct weighing *w, struct hkt_candidate *out_candidates, int capacity, int *out_count)
{
    const struct hkt__tune_row *tuned = hkt__select_tuned(w->args);
    struct hkt__choice choice = {.algo = NULL};
    enum hkt_status rc = hkt__select(w->args, w->prices, w->table, &choice);
    int count = 0;

    if (rc == HKT_ERR_UNSUPPORTED)
        rc = HKT_OK; /* the list says why each does not serve */
    for (int i = 0; i < hkt__algo_count && rc == HKT_OK; i++) {
        struct hkt_candidate candidate;

        if (hkt__algos[i].info.coll != w->args->coll)
            continue;
        rc = weigh(w, &hkt__algos[i], &candidate);
        candidate.chosen = &hkt__algos[i] == choice.algo;
        candidate.forced = candidate.chosen && choice.is_forced;
        candidate.measured_us = candidate.chosen && choice.is_tuned ? tuned->measured_us : 0;
        if (count < capacity)
            out_candidates[count] = candidate;
        count++;
    }
    if (rc < 0)
        return rc;
    if (count > 0 && capacity > 0)
        qsort(out_candidates, (size_t)(count < capacity ? count : capacity), sizeof *out_candidates, by_time);
    *out_count = count;
    return HKT_OK;
}

/** "ring 71.20", and its slices and lanes where there are several. */
static size_t print_other(char *text, size_t bytes, const char *before, const struct hkt_candidate *other)
{
    const int used = snprintf(text, bytes, "%s%s %.2f", before, other->algo, other->predicted_us);

    if (other->slices < 2 || used < 0 || (size_t)used >= bytes)
        return (size_t)used;
    return (size_t)used + (size_t)snprintf(text + used, bytes - (size_t)used, " (%d slices, %d lanes)", other->slices, other->lanes);
}

void hkt__choice_log(const struct hkt_comm *comm, const struct hkt__select_args *args, const struct hkt__choice *choice,
                     const struct hkt__bind *bind)
{
    const struct weighing weighing = {args, &comm->routes.prices, comm->planning.work};
    struct hkt_candidate candidates[CANDIDATES_MAX];
    struct hkt_bound bound;
    char others[640] = "";
    size_t used = 0;
    int count = 0;

    if (weigh_all(&weighing, candidates, CANDIDATES_MAX, &count) < 0)
        return;
    hkt__bound(args, &comm->routes.prices, comm->routes.all_memory, &bound);
    for (int i = 1; i < count && i < CANDIDATES_MAX && used < sizeof others; i++)
        if (candidates[i].unfit[0] == '\0')
            used += print_other(others + used, sizeof others - used, used > 0 ? ", " : "; others: ", &candidates[i]);
    hkt__log(HKT__SUB_PLAN, HKT__LOG_INFO,
             "%s: %s of %zu bytes over %d ranks: %s, %d slices, %d lanes, predicted %.2f us%s; bound %.2f%s", comm->name,
             hkt_coll_name(args->coll), args->bytes, comm->nranks, choice->algo->info.name, bind->nslices, bind->channels,
             candidates[0].predicted_us, choice->is_forced ? " (forced)" : choice->is_tuned ? " (chosen by measurement)" : "",
             bound.time_us, others);
}

/** Between described hosts: what all of them like. */
static size_t net_slice_bytes(const struct hkt_choice_query *query, int nhosts)
{
    size_t least = nhosts > 1 ? SIZE_MAX : 0;

    for (int r = 0; r < query->nranks && nhosts > 1; r++) {
        struct hkt_topo_link link;

        hkt__topo_host_link(query->topo, query->nodes[r], &link);
        const double ns_per_byte = link.bytes_per_s > 0 ? 1e9 / (double)link.bytes_per_s : 0;
        const size_t likes = hkt__tcp_slice_bytes(ns_per_byte, nhosts == query->nranks);

        least = likes < least ? likes : least;
    }
    return least;
}

/** As a communicator would have it: over this transport alone, between hosts over it and sockets. */
static size_t slice_bytes(const struct hkt__settings *settings, const struct hkt__tp_caps *caps,
                          const struct hkt_choice_query *query, int nhosts)
{
    const size_t own = caps->slice_bytes > HKT__SLICE_BYTES ? caps->slice_bytes : HKT__SLICE_BYTES, net = net_slice_bytes(query, nhosts);

    if (settings->slice_bytes > 0)
        return (size_t)settings->slice_bytes;
    return net > own ? hkt__slice_bytes(HKT__SLICE_BYTES, net, query->bytes) : own;
}

static enum hkt_status find_caps(const char *transport, struct hkt__tp_caps *out_caps)
{
    const struct hkt__tp_ops *ops;
    char names[128];

    for (int t = 0; transport != NULL && (ops = hkt__transport_get(t)) != NULL; t++) {
        if (strcmp(ops->name, transport) != 0)
            continue;
        ops->query(NULL, out_caps);
        return HKT_OK;
    }
    hkt__transport_names(names, sizeof names);
    return hkt__fail(HKT_ERR_INVALID, "there is no transport \"%s\": %s", transport != NULL ? transport : "", names);
}

/** Measured choices for a job on this host that is only thought of. Gives *out_tune; NULL: none. */
static enum hkt_status load_tune(const struct hkt__settings *settings, int nranks, struct hkt__tune **out_tune)
{
    struct hkt__tune_key key;

    hkt__tune_key_make(nranks, hkt__machine_cores(), &key);
    return hkt__tune_load(settings, &key, out_tune);
}

static bool query_is_sound(const struct hkt_choice_query *query, const void *out)
{
    return query != NULL && out != NULL && query->coll >= 0 && query->coll < HKT_COLL_COUNT;
}

/** What a communicator that is only thought of would choose by. */
struct thought {
    bool is_memory;                          /* all ranks share memory */
    struct hkt__site site;                   /* owned; args.site points to it */
    struct hkt__select_args args;
    struct hkt__prices prices;
    struct hkt__tune *tune;                  /* owned; args.tuned points into it */
    struct hkt__wish wish;                   /* args.wish points to it */
};

/** Whether ranks of this machine that outnumber its CPUs each keep to one (job.c); if so, which. */
static bool find_homes(const struct hkt_choice_query *query, bool may_keep, struct hkt__topo_place *places)
{
    const int share = query->crowd >= 2 && query->crowd < query->nranks ? (int)query->crowd : 0;

    if (query->topo != NULL || !may_keep || share < 2 || query->crowd > share || query->nranks % share != 0)
        return false;
    for (int r = 0; r < query->nranks; r++)
        places[r].core = r / share;
    return true;
}

/** The machines that the query names, or one, whose ranks may keep to its cores. */
static enum hkt_status find_site(const struct hkt_choice_query *query, bool is_memory, bool may_keep, struct hkt__site *out_site)
{
    struct hkt__topo_place *places = hkt__calloc((size_t)query->nranks, sizeof *places);
    enum hkt_status rc = HKT_OK;

    if (places == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the places of %d ranks", query->nranks);
    if (query->topo != NULL)
        rc = hkt__topo_places(query->topo, query->nodes, query->nranks, places);
    const bool is_known = find_homes(query, is_memory && may_keep, places) || query->topo != NULL;

    if (rc == HKT_OK)
        rc = hkt__site_make(places, query->nranks, out_site);
    hkt__free(places);
    if (rc == HKT_OK && is_known)
        hkt__site_crowd(out_site, query->crowd, !is_memory);
    return rc;
}

/** Caches of a described machine, not of this one. */
static void set_caches(const struct hkt_choice_query *query, struct hkt__prices *prices)
{
    const int l3 = hkt_topo_ancestor(query->topo, query->nodes[0], HKT_TOPO_L3);
    const uint64_t bytes = l3 >= 0 ? hkt_topo_node_get(query->topo, l3)->bytes : 0;

    prices->l1_bytes = 48 << 10; /* graphs do not say; of recent servers */
    prices->l2_bytes = 2 << 20;
    prices->llc_bytes = bytes > 0 ? (double)bytes : 32 << 20;
}

/** Prices for the machines of a query. */
static void set_prices(const struct hkt_choice_query *query, const struct hkt__tp_caps *caps, struct thought *thought)
{
    struct hkt__prices *prices = &thought->prices;
    struct hkt_topo_link link;

    hkt__prices_init(prices, caps->latency_ns, caps->ns_per_byte, (caps->flags & HKT__TP_MEMORY) != 0, query->crowd);
    if (query->topo != NULL)
        set_caches(query, prices);
    if (thought->site.nhosts > 1) {
        hkt__topo_host_link(query->topo, query->nodes[0], &link);
        hkt__prices_net(prices, (double)link.bytes_per_s, (double)link.latency_ns);
    }
    if (thought->args.tuned != NULL)
        memcpy(prices->price, thought->args.tuned->price, sizeof prices->price);
    if (query->prices != NULL)
        memcpy(prices->price, query->prices, sizeof prices->price);
}

/** The table of `hocket tune` that holds for a query; NULL: none. Those of this machine say nothing about others. */
static const struct hkt__tune_table *find_table(const struct hkt_choice_query *query, const struct thought *thought)
{
    const int tuned = query->topo == NULL ? hkt__tune_find(thought->tune, query->transport) : -1;

    return tuned >= 0 ? &thought->tune->tables[tuned] : NULL;
}

static void forget(struct thought *thought)
{
    hkt__site_fini(&thought->site);
    hkt__free(thought->tune);
}

/** On this machine what the system allows; of one that is described, what the settings do. */
static bool may_copy(const struct hkt_choice_query *query, const struct hkt__settings *settings)
{
    return query->topo != NULL ? settings->cma != 0 : hkt__machine_copies(settings) == HKT_OK;
}

static enum hkt_status think(const struct hkt_choice_query *query, struct thought *out)
{
    const struct hkt__settings *settings;
    struct hkt__tp_caps caps;
    enum hkt_status rc;

    if (query->nranks < 1 || query->nranks > HKT_RANKS_MAX)
        return hkt__fail(HKT_ERR_INVALID, "%d ranks: there are 1 to %d", query->nranks, HKT_RANKS_MAX);
    if (query->topo != NULL && query->nodes == NULL)
        return hkt__fail(HKT_ERR_INVALID, "a query with a topology says on which node each rank runs");
    *out = (struct thought){0};
    rc = hkt__settings_get(&settings);
    if (rc == HKT_OK)
        rc = hkt__algo_list_parse(settings->algo, &out->wish);
    if (rc == HKT_OK)
        rc = find_caps(query->transport, &caps);
    if (rc == HKT_OK)
        rc = find_site(query, (caps.flags & HKT__TP_MEMORY) != 0, settings->spread, &out->site);
    if (rc == HKT_OK)
        rc = load_tune(settings, query->nranks, &out->tune);
    if (rc < 0) {
        forget(out);
        return rc;
    }
    const bool is_memory = (caps.flags & HKT__TP_MEMORY) != 0 && out->site.nhosts == 1;

    out->is_memory = is_memory;
    out->args = (struct hkt__select_args){
        .coll = query->coll, .nranks = query->nranks, .bytes = query->bytes,
        .in_place = query->in_place && hkt__in_place_is_agreed(query->coll),
        .direct_ok = is_memory, .user_ok = is_memory && ((caps.flags & HKT__TP_USER) != 0 || query->registered),
        .copy_ok = is_memory && may_copy(query, settings), .ordered = settings->deterministic[0] != '\0',
        .slice_bytes = slice_bytes(settings, &caps, query, out->site.nhosts), .slices_set = settings->slice_bytes > 0,
        .lanes = (int)settings->lanes, .lanes_max = HKT__COLL_LANES, .scratch_bytes = (size_t)settings->scratch_bytes,
        .site = &out->site, .tuned = find_table(query, out), .wish = &out->wish};
    set_prices(query, &caps, out);
    return HKT_OK;
}

enum hkt_status hkt_plan_candidates(const struct hkt_choice_query *query, struct hkt_candidate *out_candidates,
                                    int capacity, int *out_count)
{
    struct hkt__work_table *table;
    struct thought thought;
    enum hkt_status rc;

    if (!query_is_sound(query, out_count))
        return hkt__fail(HKT_ERR_INVALID, "hkt_plan_candidates: query and out_count must not be NULL");
    rc = think(query, &thought);
    if (rc < 0)
        return hkt__error_context(rc, "hkt_plan_candidates");
    rc = hkt__work_table_create(&table);
    if (rc == HKT_OK) {
        const struct weighing weighing = {&thought.args, &thought.prices, table};

        rc = weigh_all(&weighing, out_candidates, capacity, out_count);
        hkt__work_table_destroy(table);
    }
    forget(&thought);
    return rc;
}

enum hkt_status hkt_plan_bound(const struct hkt_choice_query *query, struct hkt_bound *out_bound)
{
    struct thought thought;
    enum hkt_status rc;

    if (!query_is_sound(query, out_bound))
        return hkt__fail(HKT_ERR_INVALID, "hkt_plan_bound: query and out_bound must not be NULL");
    rc = think(query, &thought);
    if (rc < 0)
        return hkt__error_context(rc, "hkt_plan_bound");
    hkt__bound(&thought.args, &thought.prices, thought.is_memory, out_bound);
    forget(&thought);
    return HKT_OK;
}

enum hkt_status hkt_comm_candidates(struct hkt_comm *comm, const struct hkt_choice_query *query,
                                    struct hkt_candidate *out_candidates, int capacity, int *out_count)
{
    if (comm == NULL || !query_is_sound(query, out_count))
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_candidates: comm, query and out_count must not be NULL");
    const struct hkt__select_args args = {
        .coll = query->coll, .nranks = comm->nranks, .bytes = query->bytes,
        .in_place = query->in_place && hkt__in_place_is_agreed(query->coll),
        .direct_ok = comm->routes.all_memory,
        .user_ok = comm->routes.all_user || (comm->routes.all_memory && query->registered),
        .copy_ok = comm->routes.all_copy, .ordered = comm->options.ordered, .slice_bytes = hkt__comm_slice_bytes(comm, query->bytes),
        .slices_set = comm->options.slice_bytes_set > 0, .lanes = comm->options.channels, .lanes_max = HKT__COLL_LANES,
        .scratch_bytes = comm->env.scratch_bytes, .site = &comm->site, .tuned = hkt__comm_tuned(comm), .wish = &comm->options.wish};
    struct hkt__prices prices = comm->routes.prices;
    const struct weighing weighing = {&args, &prices, comm->planning.work};

    if (query->prices != NULL)
        memcpy(prices.price, query->prices, sizeof prices.price);
    return weigh_all(&weighing, out_candidates, capacity, out_count);
}
