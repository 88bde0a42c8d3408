/* Tables in memory: see tune.h. */
#include "cost/tune.h"

#include <math.h>
#include <string.h>

#include "core/error.h"

static bool row_is_sound(const struct hkt__tune_row *row)
{
    return row->algo >= 0 && row->algo < hkt__algo_count && row->coll == hkt__algos[row->algo].info.coll &&
           row->bytes_from <= row->bytes_to;
}

enum hkt_status hkt__tune_check(const struct hkt__tune *tune)
{
    bool ok = tune->ntables >= 0 && tune->ntables <= HKT__TUNE_TABLES_MAX;

    for (int32_t t = 0; ok && t < tune->ntables; t++) {
        const struct hkt__tune_table *table = &tune->tables[t];

        ok = table->nrows >= 0 && table->nrows <= HKT__TUNE_ROWS_MAX &&
             memchr(table->transport, '\0', sizeof table->transport) != NULL;
        for (int i = 0; i < HKT__PRICE_COUNT && ok; i++)
            ok = isfinite(table->price[i]) && table->price[i] >= 0;
        for (int32_t i = 0; ok && i < table->nrows; i++)
            ok = row_is_sound(&table->rows[i]);
    }
    return ok ? HKT_OK : hkt__fail(HKT_ERR_INVALID, "rank 0 sent a table of measured choices that makes no sense here: do "
                                   "all ranks run the same hocket?");
}

int hkt__tune_find(const struct hkt__tune *tune, const char *transport)
{
    for (int32_t t = 0; tune != NULL && t < tune->ntables; t++)
        if (strcmp(tune->tables[t].transport, transport) == 0)
            return t;
    return -1;
}
