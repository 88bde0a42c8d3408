/* Which calls are worth measuring: all collectives that reduce or move fixed counts, out of place and in place where that
 * changes what may be chosen, with ordinary and with shared buffers. */
#include <stdio.h>
#include <string.h>

#include "tools.h"
#include "tune.h"

bool tune_measures(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_ALL_GATHER || coll == HKT_BROADCAST ||
           coll == HKT_REDUCE || coll == HKT_ALL_TO_ALL || coll == HKT_GATHER || coll == HKT_SCATTER || coll == HKT_BARRIER;
}

static bool counts_whole(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_BROADCAST || coll == HKT_REDUCE;
}

size_t tune_round_bytes(const struct tune_rank *rank, enum hkt_coll coll, size_t bytes)
{
    const size_t unit = counts_whole(coll) ? 4 : 4 * (size_t)rank->nranks;

    return bytes < unit ? unit : bytes / unit * unit;
}

static void fill_sizes(const struct tune_rank *rank, int factor, struct tune_series *series)
{
    const struct tune_options *options = rank->options;

    series->count = 0;
    if (series->kind.coll == HKT_BARRIER) {
        series->sizes[series->count++] = 0;
        return;
    }
    for (size_t bytes = options->bytes_min; bytes <= options->bytes_max && series->count < TUNE_SIZES_MAX;
         bytes *= (size_t)factor) {
        const size_t rounded = tune_round_bytes(rank, series->kind.coll, bytes);

        if (series->count == 0 || rounded > series->sizes[series->count - 1])
            series->sizes[series->count++] = rounded;
    }
}

bool tune_series_get(const struct tune_rank *rank, int index, int factor, struct tune_series *out_series)
{
    for (int coll = 0; coll < HKT_COLL_COUNT; coll++) {
        if (!rank->options->colls[coll] || !tune_measures((enum hkt_coll)coll))
            continue;
        for (int variant = 0; variant < 4; variant++) {
            const bool in_place = (variant & 1) != 0, registered = (variant & 2) != 0;

            if ((in_place && !hkt_tool_in_place_counts((enum hkt_coll)coll)) || (registered && (!rank->has_memory || coll == HKT_BARRIER)))
                continue;
            if (index-- > 0)
                continue;
            out_series->kind = (struct tune_case){.coll = (enum hkt_coll)coll, .in_place = in_place, .registered = registered};
            fill_sizes(rank, factor, out_series);
            return true;
        }
    }
    return false;
}

void tune_query(const struct tune_case *c, const double *prices, struct hkt_choice_query *out_query)
{
    *out_query = (struct hkt_choice_query){.coll = c->coll, .bytes = c->bytes, .in_place = c->in_place,
                                           .registered = c->registered, .prices = prices};
}

/** The collective's so-manieth row. */
static int row_of(enum hkt_coll coll, const char *name)
{
    struct hkt_algo_info info;
    int row = 0;

    for (int i = 0; hkt_algo_get(i, &info) == HKT_OK; i++) {
        if (info.coll != coll)
            continue;
        if (strcmp(info.name, name) == 0)
            return row;
        row++;
    }
    return -1;
}

int tune_candidates(const struct tune_rank *rank, const struct tune_case *c, const double *prices,
                    struct hkt_candidate out_candidates[TUNE_ALGOS_MAX])
{
    struct hkt_candidate sorted[TUNE_ALGOS_MAX];
    struct hkt_choice_query query;
    int count = 0;

    tune_query(c, prices, &query);
    if (hkt_comm_candidates(rank->comm, &query, sorted, TUNE_ALGOS_MAX, &count) < 0) {
        hkt_tool_say("tune", "%s", hkt_last_error());
        return -1;
    }
    if (count > TUNE_ALGOS_MAX)
        count = TUNE_ALGOS_MAX;
    for (int i = 0; i < count; i++) {
        const int row = row_of(c->coll, sorted[i].algo);

        if (row >= 0 && row < count)
            out_candidates[row] = sorted[i];
    }
    return count;
}

const char *tune_case_text(const struct tune_case *c, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s of %zu bytes%s%s", hkt_coll_name(c->coll), c->bytes, c->in_place ? ", in place" : "",
             c->registered ? ", shared buffers" : "");
    return text;
}
