/* See select.h. */
#include "cost/select.h"

#include "core/error.h"
#include "core/mem.h"

/** Work by registry row and placement. */
struct hkt__work_table {
    struct entry {
        int nranks;            /* 0: not counted yet */
        struct hkt__work work;
    } *entries;                /* [hkt__algo_count * 2] */
};

enum hkt_status hkt__work_table_create(struct hkt__work_table **out_table)
{
    struct hkt__work_table *table = hkt__calloc(1, sizeof *table);

    if (table != NULL)
        table->entries = hkt__calloc((size_t)hkt__algo_count * 2, sizeof *table->entries);
    if (table == NULL || table->entries == NULL) {
        hkt__free(table);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a table of costs");
    }
    *out_table = table;
    return HKT_OK;
}

void hkt__work_table_destroy(struct hkt__work_table *table)
{
    if (table == NULL)
        return;
    hkt__free(table->entries);
    hkt__free(table);
}

static bool reduces(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_REDUCE_SCATTER_V;
}

const char *hkt__unfit(const struct hkt__algo *algo, const struct hkt__select_args *args)
{
    if (algo->user_direct && !args->user_ok && !args->copy_ok)
        return "needs buffers that peers can reach: threads, memory of hkt_mem_alloc, or a system that allows copies "
               "between processes (HOCKET_CMA, ptrace_scope)";
    if (algo->info.needs_direct && !args->direct_ok)
        return "needs memory that all peers can address (ranks of one host, over shm or threads)";
    if (args->ordered && !algo->ordered && reduces(algo->info.coll))
        return "does not sum in rank order (HOCKET_DETERMINISTIC=rank_order)";
    return algo->restriction == NULL ? "" : algo->restriction(args->nranks, args->in_place);
}

enum hkt_status hkt__select_predict(const struct hkt__algo *algo, const struct hkt__select_args *args,
                                    const struct hkt__prices *prices, struct hkt__work_table *table, double *out_ns)
{
    struct entry *entry = &table->entries[(algo - hkt__algos) * 2 + args->in_place];
    const struct hkt__model_args model = {.bytes = args->bytes, .slice_bytes = args->slice_bytes,
                                          .pipelined = algo->pipelined, .far = algo->user_direct && !args->user_ok};

    if (entry->nranks != args->nranks) {
        const enum hkt_status rc = hkt__work_of(algo, args->nranks, args->in_place, &entry->work);

        if (rc < 0)
            return rc;
        entry->nranks = args->nranks;
    }
    *out_ns = hkt__model_ns(&entry->work, prices, &model);
    return HKT_OK;
}

enum hkt_status hkt__select(const struct hkt__select_args *args, const struct hkt__prices *prices,
                            struct hkt__work_table *table, const struct hkt__algo **out_algo)
{
    const struct hkt__algo *best = NULL;
    double best_ns = 0;

    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];
        double ns;

        if (algo->info.coll != args->coll || hkt__unfit(algo, args)[0] != '\0')
            continue;
        const enum hkt_status rc = hkt__select_predict(algo, args, prices, table, &ns);

        if (rc < 0)
            return rc;
        if (best == NULL || ns < best_ns) {
            best = algo;
            best_ns = ns;
        }
    }
    if (best == NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "no algorithm serves %s over %d ranks%s", hkt_coll_name(args->coll),
                         args->nranks, args->in_place ? " in place" : "");
    *out_algo = best;
    return HKT_OK;
}
