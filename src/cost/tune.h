/* What `hocket tune` measured, as the choice uses it. A file holds tables of several machines; of those that describe this
 * one, a job takes one per set of transports. The struct has no pointers: rank 0 sends it to all others as it is, so that
 * all choose alike. */
#ifndef HOCKET_COST_TUNE_H
#define HOCKET_COST_TUNE_H

#include "cost/model.h"

#define HKT__TUNE_TABLES_MAX 4
#define HKT__TUNE_ROWS_MAX 1024
#define HKT__TUNE_FILE_MAX (8 << 20) /* bytes: a full table has 300000 */

/** What a table is valid for: everything must be equal. */
struct hkt__tune_key {
    char version[16], cpu[64], transport[32];
    int64_t cores;                 /* that the ranks of a host may use together */
    int64_t l2_bytes, llc_bytes;
    int64_t host_ranks;            /* ranks of the job on one host */
};

/** A choice that was measured, for sizes bytes_from to bytes_to. */
struct hkt__tune_row {
    uint8_t coll, in_place, registered, unused;
    int32_t algo;                  /* row of the registry */
    int64_t nranks;
    uint64_t bytes_from, bytes_to;
    double measured_us;            /* of the algorithm at its smallest size, as measured near it */
};

struct hkt__tune_table {
    char transport[32];
    double price[HKT__PRICE_COUNT];
    int32_t nrows;
    struct hkt__tune_row rows[HKT__TUNE_ROWS_MAX];
};

struct hkt__tune {
    int32_t ntables;
    struct hkt__tune_table tables[HKT__TUNE_TABLES_MAX];
};

/** Read a file's text. Tables of other machines (key without its transport) are counted and skipped. INVALID names `name`,
 *  the line or the key, and what is expected there. Gives *out_tune. */
HKT_NODISCARD enum hkt_status hkt__tune_parse(const char *text, const char *name, const struct hkt__tune_key *key,
                                              struct hkt__tune **out_tune, int *out_skipped);

/** A file's text with `table` in it, in place of one with the same key; old: the text so far, NULL: none. Gives *out_text,
 *  released by hkt__free. INVALID: old is no such file. */
HKT_NODISCARD enum hkt_status hkt__tune_print(const char *old, const char *name, const struct hkt__tune_key *key,
                                              const struct hkt__tune_table *table, char **out_text);

/** Is what another rank sent within bounds? INVALID when not. */
HKT_NODISCARD enum hkt_status hkt__tune_check(const struct hkt__tune *tune);

/** Index of the table for a set of transports; -1: none. tune may be NULL. */
int hkt__tune_find(const struct hkt__tune *tune, const char *transport);

#endif
