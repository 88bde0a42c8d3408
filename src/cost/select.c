/* See select.h. */
#include "cost/select.h"

#include <stdio.h>

#include "core/error.h"
#include "core/mem.h"

/* Predictions that differ by less are alike: between ranks of a host; between hosts. */
#define TIE 0.025
#define TIE_HOSTS 0.01

/** Profiles by registry row and placement, made when first asked for. */
struct hkt__work_table {
    struct entry {
        int nranks;                  /* 0: not counted yet */
        struct hkt__profile *profile;
    } *entries;                      /* [hkt__algo_count * 2] */
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
    for (int i = 0; i < hkt__algo_count * 2; i++)
        hkt__free(table->entries[i].profile);
    hkt__free(table->entries);
    hkt__free(table);
}

static bool reduces(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_REDUCE_SCATTER_V;
}

const char *hkt__unfit(const struct hkt__algo *algo, const struct hkt__select_args *args)
{
    if (args->wish != NULL && args->wish->forbidden[algo - hkt__algos])
        return "forbidden (HOCKET_ALGO)";
    if (algo->user_direct && !args->user_ok && !args->copy_ok)
        return "needs buffers that peers can reach: threads, memory of hkt_mem_alloc, or a system that allows copies "
               "between processes (HOCKET_CMA, ptrace_scope)";
    if (algo->info.needs_direct && !args->direct_ok)
        return "needs memory that all peers can address (ranks of one host, over shm or threads)";
    if (args->ordered && !algo->ordered && reduces(algo->info.coll))
        return "does not sum in rank order (HOCKET_DETERMINISTIC=rank_order)";
    if (algo->by_groups && args->site != NULL && args->site->uneven[0] != '\0')
        return args->site->uneven;
    return algo->restriction == NULL ? "" : algo->restriction(args->nranks, args->in_place);
}

/** Roots of broadcasts are in place as a rule, but the choice may not hang on it: it is that rank's affair. */
static bool weigh_in_place(const struct hkt__select_args *args)
{
    return args->in_place || args->coll == HKT_BROADCAST;
}

static enum hkt_status find_profile(const struct hkt__algo *algo, const struct hkt__select_args *args,
                                    struct hkt__work_table *table, const struct hkt__profile **out_profile)
{
    const bool in_place = weigh_in_place(args);
    struct entry *entry = &table->entries[(algo - hkt__algos) * 2 + in_place];

    if (entry->profile == NULL)
        entry->profile = hkt__calloc(1, sizeof *entry->profile);
    if (entry->profile == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the costs of %s", algo->info.name);
    if (entry->nranks != args->nranks) {
        const enum hkt_status rc = hkt__profile_make(algo, args->site, args->nranks, in_place, entry->profile);

        if (rc < 0)
            return rc;
        entry->nranks = args->nranks;
    }
    *out_profile = entry->profile;
    return HKT_OK;
}

double hkt__touched_share(const struct hkt__select_args *args)
{
    switch (args->coll) {
    case HKT_REDUCE_SCATTER:
    case HKT_ALL_GATHER:
    case HKT_GATHER:
    case HKT_SCATTER:
        return args->in_place ? 1 : 1 + 1.0 / args->nranks;
    default:
        return weigh_in_place(args) ? 1 : 2;
    }
}

enum hkt_status hkt__select_predict(const struct hkt__algo *algo, const struct hkt__select_args *args,
                                    const struct hkt__prices *prices, struct hkt__work_table *table, double *out_terms,
                                    double *out_ns)
{
    const struct hkt__model_args model = {.bytes = args->bytes, .touched = hkt__touched_share(args), .slice_bytes = args->slice_bytes,
                                          .scratch_bytes = args->scratch_bytes, .one_slice = algo->user_direct,
                                          .host_ranks = args->nranks / (args->site != NULL ? args->site->nhosts : 1),
                                          .far = algo->user_direct && !args->user_ok};
    double amounts[HKT__PRICE_COUNT], ns = 0;
    const struct hkt__profile *profile = NULL;
    const enum hkt_status rc = find_profile(algo, args, table, &profile);

    if (rc < 0)
        return rc;
    hkt__model_amounts(profile, prices, &model, amounts);
    for (int i = 0; i < HKT__PRICE_COUNT; i++) {
        amounts[i] *= prices->price[i];
        ns += amounts[i];
        if (out_terms != NULL)
            out_terms[i] = amounts[i];
    }
    *out_ns = ns;
    return HKT_OK;
}

const struct hkt__tune_row *hkt__select_tuned(const struct hkt__select_args *args)
{
    for (int32_t i = 0; args->tuned != NULL && i < args->tuned->nrows; i++) {
        const struct hkt__tune_row *row = &args->tuned->rows[i];

        if (row->coll == args->coll && row->nranks == args->nranks && row->in_place == args->in_place &&
            row->registered == args->user_ok && row->bytes_from <= args->bytes && args->bytes <= row->bytes_to &&
            hkt__unfit(&hkt__algos[row->algo], args)[0] == '\0')
            return row;
    }
    return NULL;
}

/** A row that serves the case. */
struct weighed {
    const struct hkt__algo *algo;          /* NULL: none yet */
    double ns, rounds, copied;             /* messages in a row; share of the vector, by all ranks on average */
    int32_t cuts;
};

/** Among predictions that are nearly alike: between hosts what was made for the groups; inside one what
 *  copies less, if it waits for no more messages in a row: others wait for who copies before it sends. And what sends as
 *  much in more parts, on lanes of their own, finds room in more channels: 96 KB to one other rank took 7 us so, else 9. */
static bool is_preferred(const struct hkt__select_args *args, const struct weighed *a, const struct weighed *b)
{
    if (args->site != NULL && args->site->nhosts > 1)
        return args->site->levels.count > 0 && a->algo->by_groups && (!b->algo->by_groups || a->ns < b->ns);
    return a->rounds <= b->rounds && (a->copied < b->copied || (a->copied <= b->copied && a->cuts > 1 && b->cuts == 1));
}

static enum hkt_status weigh(const struct hkt__algo *algo, const struct hkt__select_args *args, const struct hkt__prices *prices,
                             struct hkt__work_table *table, struct weighed *out)
{
    const struct hkt__profile *profile = NULL;
    enum hkt_status rc = hkt__select_predict(algo, args, prices, table, NULL, &out->ns);

    if (rc == HKT_OK)
        rc = find_profile(algo, args, table, &profile);
    if (rc < 0)
        return rc;
    const struct hkt__waits *waits = profile->npaths > 0 ? &profile->paths[0].waits : &profile->waits;

    out->algo = algo;
    out->rounds = waits->rounds + waits->net_rounds;
    out->cuts = profile->cuts;
    out->copied = profile->mean.copied + profile->mean.stored + profile->mean.fresh;
    return HKT_OK;
}

/** The least prediction, or one that is nearly as small and preferred. Twice through the registry: which ones are nearly as
 *  small is known when the least is. by_size: without what is meant for larger vectors. */
static enum hkt_status choose(const struct hkt__select_args *args, const struct hkt__prices *prices, struct hkt__work_table *table,
                              bool by_size, const struct hkt__algo **out_algo)
{
    const double tie = args->site != NULL && args->site->nhosts > 1 ? TIE_HOSTS : TIE;
    struct weighed least = {.algo = NULL}, best;

    for (int pass = 0; pass < 2; pass++) {
        best = least;
        for (int i = 0; i < hkt__algo_count; i++) {
            struct weighed one;

            if (hkt__algos[i].info.coll != args->coll ||
                (by_size && (double)args->bytes * prices->crowd < (double)hkt__algos[i].bytes_min) ||
                hkt__unfit(&hkt__algos[i], args)[0] != '\0')
                continue;
            const enum hkt_status rc = weigh(&hkt__algos[i], args, prices, table, &one);

            if (rc < 0)
                return rc;
            if (pass == 0 ? least.algo == NULL || one.ns < least.ns
                          : one.ns <= least.ns * (1 + tie) && is_preferred(args, &one, &best))
                *(pass == 0 ? &least : &best) = one;
        }
    }
    *out_algo = best.algo;
    return HKT_OK;
}

bool hkt__select_serves(const struct hkt__select_args *args)
{
    const struct hkt__algo *forced = args->wish != NULL ? args->wish->forced[args->coll] : NULL;

    for (int i = 0; i < hkt__algo_count; i++)
        if (hkt__algos[i].info.coll == args->coll && (forced == NULL || forced == &hkt__algos[i]) &&
            hkt__unfit(&hkt__algos[i], args)[0] == '\0')
            return true;
    return false;
}

/** Says why there is no choice: which algorithms the user forbids, and why the others do not serve. */
static enum hkt_status fail_to_choose(const struct hkt__select_args *args)
{
    char forbidden[512] = "", others[512] = "";
    size_t used[2] = {0, 0};

    for (int i = 0; i < hkt__algo_count; i++) {
        const bool is_forbidden = args->wish != NULL && args->wish->forbidden[i];
        char *text = is_forbidden ? forbidden : others;
        size_t *at = &used[!is_forbidden];

        if (hkt__algos[i].info.coll != args->coll || *at >= sizeof forbidden)
            continue;
        if (is_forbidden)
            *at += (size_t)snprintf(text + *at, sizeof forbidden - *at, "%s%s", *at > 0 ? ", " : "; HOCKET_ALGO forbids ",
                                    hkt__algos[i].info.name);
        else
            *at += (size_t)snprintf(text + *at, sizeof others - *at, "; %s: %s", hkt__algos[i].info.name,
                                    hkt__unfit(&hkt__algos[i], args));
    }
    return hkt__fail(HKT_ERR_UNSUPPORTED, "no algorithm serves %s over %d ranks%s%s%s", hkt_coll_name(args->coll), args->nranks,
                     args->in_place ? " in place" : "", others, forbidden);
}

enum hkt_status hkt__select(const struct hkt__select_args *args, const struct hkt__prices *prices,
                            struct hkt__work_table *table, struct hkt__choice *out_choice)
{
    const struct hkt__algo *forced = args->wish != NULL ? args->wish->forced[args->coll] : NULL, *best = NULL;
    const struct hkt__tune_row *tuned = forced == NULL ? hkt__select_tuned(args) : NULL;
    enum hkt_status rc = HKT_OK;

    if (forced != NULL) {
        if (hkt__unfit(forced, args)[0] != '\0')
            return hkt__fail(HKT_ERR_UNSUPPORTED, "%s: the forced algorithm %s does not serve %d ranks%s: %s",
                             hkt_coll_name(args->coll), forced->info.name, args->nranks, args->in_place ? " in place" : "",
                             hkt__unfit(forced, args));
        best = forced;
    } else if (tuned != NULL) {
        best = &hkt__algos[tuned->algo];
    } else {
        rc = choose(args, prices, table, true, &best);
        if (rc == HKT_OK && best == NULL) /* all others are forbidden */
            rc = choose(args, prices, table, false, &best);
    }
    if (rc < 0)
        return rc;
    if (best == NULL)
        return fail_to_choose(args);
    *out_choice = (struct hkt__choice){.algo = best, .is_tuned = tuned != NULL, .is_forced = forced != NULL};
    return HKT_OK;
}
