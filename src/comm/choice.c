/* The choice of algorithm, laid open: what a communicator weighs for a case, without a communicator. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm_int.h"

static int by_time(const void *a, const void *b)
{
    const struct hkt_candidate *x = a, *y = b;
    const bool x_fits = x->unfit[0] == '\0', y_fits = y->unfit[0] == '\0';

    if (x_fits != y_fits)
        return y_fits - x_fits;
    return (x->predicted_us > y->predicted_us) - (x->predicted_us < y->predicted_us);
}

static enum hkt_status find_caps(const char *transport, struct hkt__tp_caps *out_caps)
{
    const struct hkt__tp_ops *ops;

    for (int t = 0; transport != NULL && (ops = hkt__transport_get(t)) != NULL; t++) {
        if (strcmp(ops->name, transport) != 0)
            continue;
        ops->query(NULL, out_caps);
        return HKT_OK;
    }
    return hkt__fail(HKT_ERR_INVALID, "there is no transport \"%s\": thread, shm or tcp", transport != NULL ? transport : "");
}

enum hkt_status hkt_plan_candidates(const struct hkt_choice_query *query, struct hkt_candidate *out_candidates,
                                    int capacity, int *out_count)
{
    const struct hkt__settings *settings;
    struct hkt__work_table *table;
    struct hkt__prices prices;
    struct hkt__tp_caps caps;
    enum hkt_status rc;
    int count = 0;

    if (query == NULL || out_count == NULL || query->nranks < 1 || query->nranks > HKT_RANKS_MAX)
        return hkt__fail(HKT_ERR_INVALID, "hkt_plan_candidates: query and out_count must not be NULL, ranks 1..%d",
                         HKT_RANKS_MAX);
    rc = hkt__settings_get(&settings);
    if (rc == HKT_OK)
        rc = find_caps(query->transport, &caps);
    if (rc == HKT_OK)
        rc = hkt__work_table_create(&table);
    if (rc < 0)
        return rc;
    const bool is_memory = (caps.flags & HKT__TP_MEMORY) != 0;
    const struct hkt__select_args args = {
        .coll = query->coll, .nranks = query->nranks, .in_place = query->in_place, .bytes = query->bytes,
        .direct_ok = is_memory, .user_ok = (caps.flags & HKT__TP_USER) != 0 || (is_memory && query->registered),
        .copy_ok = is_memory && settings->cma != 0, .ordered = settings->deterministic[0] != '\0',
        .slice_bytes = (size_t)settings->slice_bytes};

    hkt__prices_init(&prices, caps.latency_ns, caps.ns_per_byte, is_memory, query->crowd);
    for (int i = 0; i < hkt__algo_count && rc == HKT_OK; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];
        struct hkt_candidate candidate = {.algo = algo->info.name};
        double ns = 0;

        if (algo->info.coll != query->coll)
            continue;
        candidate.unfit = hkt__unfit(algo, &args);
        if (candidate.unfit[0] == '\0')
            rc = hkt__select_predict(algo, &args, &prices, table, &ns);
        candidate.predicted_us = ns / 1e3;
        if (count < capacity)
            out_candidates[count] = candidate;
        count++;
    }
    hkt__work_table_destroy(table);
    if (rc < 0)
        return rc;
    if (count > 0 && capacity > 0) {
        qsort(out_candidates, (size_t)(count < capacity ? count : capacity), sizeof *out_candidates, by_time);
        out_candidates[0].chosen = out_candidates[0].unfit[0] == '\0';
    }
    *out_count = count;
    return HKT_OK;
}
