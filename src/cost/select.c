/* See select.h. */
#include "cost/select.h"

#include <stdio.h>

#include "core/error.h"
#include "core/mem.h"

/* Predictions that differ by less are alike: between ranks of a host; between hosts. */
#define TIE 0.025
#define TIE_HOSTS 0.01
/* Slices and lanes other than the usual must save as much of the time. */
#define TIE_CUT 0.03
/* The largest slices that were measured (docs/bench/2026-11-30-cuts.md); larger ones are the user's or a transport's affair. */
#define SLICE_MOST ((size_t)512 << 10)
/* Rows that take longer than so many times the least, cut as usual, are not cut otherwise: other cuts save up to a third. */
#define WORTH_CUTTING 1.5

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

static struct hkt__model_args model_args(const struct hkt__algo *algo, const struct hkt__select_args *args, size_t slice_bytes, int lanes)
{
    return (struct hkt__model_args){.bytes = args->bytes, .touched = hkt__touched_share(args), .slice_bytes = slice_bytes, .lanes = lanes,
                                    .scratch_bytes = args->scratch_bytes, .one_slice = algo->user_direct,
                                    .host_ranks = args->nranks / (args->site != NULL ? args->site->nhosts : 1),
                                    .far = algo->user_direct && !args->user_ok};
}

/** As usual, or as the user says. Who touches memory of peers has no channels to replicate. */
static void cut_as_usual(const struct hkt__algo *algo, const struct hkt__select_args *args, const struct hkt__prices *prices,
                         const struct hkt__profile *profile, struct hkt__cut *out_cut)
{
    const int most = args->lanes_max > 0 ? args->lanes_max : 1;
    int lanes = algo->info.needs_direct || args->lanes < 1 ? 1 : args->lanes;

    while (lanes > 1 && lanes * profile->nlanes > most)
        lanes /= 2;
    const struct hkt__model_args model = model_args(algo, args, args->slice_bytes, lanes);

    *out_cut = (struct hkt__cut){args->slice_bytes, (int)hkt__model_slices(profile, &model), lanes,
                                 hkt__model_ns(profile, prices, &model)};
}

/** Cuts that a row is weighed in: the usual one first, then by how near they are to it. */
struct cuts {
    struct hkt__cut list[12]; /* four sizes of slices, three numbers of lanes */
    int count;
};

/** Add slices of a size on all numbers of lanes, unless a size before makes as many. */
static void add_cuts(const struct hkt__algo *algo, const struct hkt__select_args *args, const struct hkt__prices *prices,
                     const struct hkt__profile *profile, size_t slice_bytes, struct cuts *cuts)
{
    const bool is_usual = slice_bytes == args->slice_bytes, is_free = args->lanes == 0 && !algo->info.needs_direct;
    struct hkt__model_args model = model_args(algo, args, slice_bytes, cuts->list[0].lanes);
    const int slices = (int)hkt__model_slices(profile, &model);

    for (int i = 0; i < cuts->count && !is_usual; i++)
        if (cuts->list[i].slices == slices)
            return;
    for (int lanes = cuts->list[0].lanes; lanes == cuts->list[0].lanes || (is_free && lanes <= slices && lanes * profile->nlanes <= args->lanes_max);
         lanes *= 2) {
        model.lanes = lanes;
        if (!is_usual || lanes != cuts->list[0].lanes)
            cuts->list[cuts->count++] = (struct hkt__cut){slice_bytes, slices, lanes, hkt__model_ns(profile, prices, &model)};
    }
}

/** Look for a better cut than the usual one. */
static void improve_cut(const struct hkt__algo *algo, const struct hkt__select_args *args, const struct hkt__prices *prices,
                        const struct hkt__profile *profile, struct hkt__cut *cut)
{
    static const size_t factors[] = {1, 2, 4, 8};
    const size_t usual = args->slice_bytes, most = usual > SLICE_MOST ? usual : SLICE_MOST;
    struct cuts cuts = {.list = {*cut}, .count = 1};
    double least = cut->ns;

    if (algo->user_direct)
        return;
    for (int i = 0; i < (args->slices_set ? 1 : 4); i++) {
        const size_t slice_bytes = usual * factors[i];

        if (slice_bytes <= most)
            add_cuts(algo, args, prices, profile, slice_bytes, &cuts);
    }
    for (int i = 1; i < cuts.count; i++)
        least = cuts.list[i].ns < least ? cuts.list[i].ns : least;
    for (int i = 0; i < cuts.count; i++) {
        if (cuts.list[i].ns > least * (1 + TIE_CUT))
            continue;
        *cut = cuts.list[i];
        return;
    }
}

enum hkt_status hkt__select_cut(const struct hkt__algo *algo, const struct hkt__select_args *args, const struct hkt__prices *prices,
                                struct hkt__work_table *table, struct hkt__cut *out_cut)
{
    const struct hkt__profile *profile = NULL;
    const enum hkt_status rc = find_profile(algo, args, table, &profile);

    if (rc < 0)
        return rc;
    cut_as_usual(algo, args, prices, profile, out_cut);
    improve_cut(algo, args, prices, profile, out_cut);
    return HKT_OK;
}

enum hkt_status hkt__select_predict(const struct hkt__algo *algo, const struct hkt__select_args *args, const struct hkt__prices *prices,
                                    struct hkt__work_table *table, double *out_terms, double *out_ns)
{
    double amounts[HKT__PRICE_COUNT], ns = 0;
    const struct hkt__profile *profile = NULL;
    struct hkt__cut cut;
    enum hkt_status rc = hkt__select_cut(algo, args, prices, table, &cut);

    if (rc == HKT_OK)
        rc = find_profile(algo, args, table, &profile);
    if (rc < 0)
        return rc;
    const struct hkt__model_args model = model_args(algo, args, cut.slice_bytes, cut.lanes);

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
    struct hkt__cut cut;
    double rounds, copied;                 /* messages in a row; share of the vector, by all ranks on average */
    int32_t cuts;
};

/** Among predictions that are nearly alike: between hosts what was made for the groups; inside one what
 *  copies less, if it waits for no more messages in a row: others wait for who copies before it sends. And what sends as
 *  much in more parts, on lanes of their own, finds room in more channels: 96 KB to one other rank took 7 us so, else 9. */
static bool is_preferred(const struct hkt__select_args *args, const struct weighed *a, const struct weighed *b)
{
    if (args->site != NULL && args->site->nhosts > 1)
        return args->site->levels.count > 0 && a->algo->by_groups && (!b->algo->by_groups || a->cut.ns < b->cut.ns);
    return a->rounds <= b->rounds && (a->copied < b->copied || (a->copied <= b->copied && a->cuts > 1 && b->cuts == 1));
}

/** With slices and lanes as usual. */
static enum hkt_status weigh(const struct hkt__algo *algo, const struct hkt__select_args *args, const struct hkt__prices *prices,
                             struct hkt__work_table *table, struct weighed *out)
{
    const struct hkt__profile *profile = NULL;
    const enum hkt_status rc = find_profile(algo, args, table, &profile);

    if (rc < 0)
        return rc;
    const struct hkt__waits *waits = profile->npaths > 0 ? &profile->paths[0].waits : &profile->waits;

    out->algo = algo;
    cut_as_usual(algo, args, prices, profile, &out->cut);
    out->rounds = waits->rounds + waits->net_rounds;
    out->cuts = profile->cuts;
    out->copied = profile->mean.copied + profile->mean.stored + profile->mean.fresh;
    return HKT_OK;
}

static const struct weighed *least_of(const struct weighed *rows, int count)
{
    const struct weighed *least = &rows[0];

    for (int i = 1; i < count; i++)
        least = rows[i].cut.ns < least->cut.ns ? &rows[i] : least;
    return least;
}

/** The least prediction over rows, slices and lanes, or one that is nearly as small and preferred: which ones are nearly as
 *  small is known when the least is. by_size: without what is meant for larger vectors. */
static enum hkt_status choose(const struct hkt__select_args *args, const struct hkt__prices *prices, struct hkt__work_table *table,
                              bool by_size, struct hkt__choice *choice)
{
    const double tie = args->site != NULL && args->site->nhosts > 1 ? TIE_HOSTS : TIE;
    struct weighed rows[HKT__ALGOS_MAX];
    int count = 0;

    for (int i = 0; i < hkt__algo_count; i++) {
        if (hkt__algos[i].info.coll != args->coll ||
            (by_size && (double)args->bytes * prices->crowd < (double)hkt__algos[i].bytes_min) ||
            hkt__unfit(&hkt__algos[i], args)[0] != '\0')
            continue;
        const enum hkt_status rc = weigh(&hkt__algos[i], args, prices, table, &rows[count++]);

        if (rc < 0)
            return rc;
    }
    if (count == 0)
        return HKT_OK;
    const double worth = least_of(rows, count)->cut.ns * WORTH_CUTTING;

    for (int i = 0; i < count; i++) {
        const struct hkt__profile *profile = NULL;

        if (rows[i].cut.ns <= worth && find_profile(rows[i].algo, args, table, &profile) == HKT_OK)
            improve_cut(rows[i].algo, args, prices, profile, &rows[i].cut);
    }
    const double nearly = least_of(rows, count)->cut.ns * (1 + tie);
    const struct weighed *best = least_of(rows, count);

    for (int i = 0; i < count; i++)
        if (rows[i].cut.ns <= nearly && is_preferred(args, &rows[i], best))
            best = &rows[i];
    choice->algo = best->algo;
    choice->cut = best->cut;
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
    const struct hkt__algo *forced = args->wish != NULL ? args->wish->forced[args->coll] : NULL;
    const struct hkt__tune_row *tuned = forced == NULL ? hkt__select_tuned(args) : NULL;
    struct hkt__choice choice = {.is_tuned = tuned != NULL, .is_forced = forced != NULL};
    enum hkt_status rc = HKT_OK;

    if (forced != NULL) {
        if (hkt__unfit(forced, args)[0] != '\0')
            return hkt__fail(HKT_ERR_UNSUPPORTED, "%s: the forced algorithm %s does not serve %d ranks%s: %s",
                             hkt_coll_name(args->coll), forced->info.name, args->nranks, args->in_place ? " in place" : "",
                             hkt__unfit(forced, args));
        choice.algo = forced;
    } else if (tuned != NULL) {
        choice.algo = &hkt__algos[tuned->algo];
    }
    if (choice.algo != NULL) {
        rc = hkt__select_cut(choice.algo, args, prices, table, &choice.cut);
    } else {
        rc = choose(args, prices, table, true, &choice);
        if (rc == HKT_OK && choice.algo == NULL) /* all others are forbidden */
            rc = choose(args, prices, table, false, &choice);
    }
    if (rc < 0)
        return rc;
    if (choice.algo == NULL)
        return fail_to_choose(args);
    *out_choice = choice;
    return HKT_OK;
}
