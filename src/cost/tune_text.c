/* The file of `hocket tune`: JSON that people may read and edit, and that is read strictly: an unknown key, a missing one, a
 * number out of range are errors, since a typo that is ignored would silently undo a choice.
 *
 *   {"format": "hocket tune 1", "tables": [
 *     {"machine": {"version", "cpu", "cores", "l2_bytes", "llc_bytes", "ranks_per_host", "transport"},
 *      "prices": {one number for each row of cost/prices.h},
 *      "choices": [{"collective", "ranks", "in_place", "registered", "bytes_from", "bytes_to", "algorithm",
 *                   "measured_us"}, ...]}, ...]}
 *
 * Of choices that overlap the first counts. Tables of other machines and versions are not looked into. */
#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "cost/tune.h"

#define FORMAT "hocket tune 1"
#define BYTES_MAX 1e15 /* exact as a double */

/** Where we are, for errors. */
struct place {
    const char *name;  /* of the file */
    char path[96];     /* "tables[0].prices" */
};

static enum hkt_status refuse(const struct place *place, const char *key, const char *expected)
{
    return hkt__fail(HKT_ERR_INVALID, "%s: %s%s%s: expected %s", place->name, place->path,
                     place->path[0] != '\0' && key[0] != '\0' ? "." : "", key, expected);
}

__attribute__((format(printf, 2, 3))) static struct place inside(const struct place *place, const char *format, ...)
{
    struct place deeper = *place;
    const size_t used = strlen(deeper.path);
    va_list args;

    va_start(args, format);
    vsnprintf(deeper.path + used, sizeof deeper.path - used, format, args);
    va_end(args);
    return deeper;
}

/** Every key must be one of the known ones, once. */
static enum hkt_status check_keys(const cJSON *object, const struct place *place, const char *const *known)
{
    if (!cJSON_IsObject(object))
        return refuse(place, "", "an object");
    for (const cJSON *item = object->child; item != NULL; item = item->next) {
        int i = 0;

        while (known[i] != NULL && strcmp(known[i], item->string) != 0)
            i++;
        if (known[i] == NULL)
            return refuse(place, item->string, "no such key");
        if (cJSON_GetObjectItemCaseSensitive(object, item->string) != item)
            return refuse(place, item->string, "the key once");
    }
    return HKT_OK;
}

static enum hkt_status get_number(const cJSON *object, const struct place *place, const char *key, double most,
                                  double *out_value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    char expected[64];

    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble) || item->valuedouble < 0 || item->valuedouble > most) {
        snprintf(expected, sizeof expected, "a number from 0 to %g", most);
        return refuse(place, key, expected);
    }
    *out_value = item->valuedouble;
    return HKT_OK;
}

static enum hkt_status get_whole(const cJSON *object, const struct place *place, const char *key, double most,
                                 int64_t *out_value)
{
    double value = 0;
    const enum hkt_status rc = get_number(object, place, key, most, &value);

    if (rc < 0)
        return rc;
    if (value != floor(value))
        return refuse(place, key, "a whole number");
    *out_value = (int64_t)value;
    return HKT_OK;
}

static enum hkt_status get_text(const cJSON *object, const struct place *place, const char *key, char *out_text, size_t bytes)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    char expected[64];

    if (!cJSON_IsString(item) || strlen(item->valuestring) >= bytes) {
        snprintf(expected, sizeof expected, "a text of at most %zu bytes", bytes - 1);
        return refuse(place, key, expected);
    }
    snprintf(out_text, bytes, "%s", item->valuestring);
    return HKT_OK;
}

static enum hkt_status get_flag(const cJSON *object, const struct place *place, const char *key, uint8_t *out_flag)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

    if (!cJSON_IsBool(item))
        return refuse(place, key, "true or false");
    *out_flag = cJSON_IsTrue(item) != 0;
    return HKT_OK;
}

static enum hkt_status parse_machine(const cJSON *machine, const struct place *place, struct hkt__tune_key *key)
{
    static const char *const known[] = {"version", "cpu", "cores", "l2_bytes", "llc_bytes", "ranks_per_host", "transport",
                                        NULL};
    enum hkt_status rc = check_keys(machine, place, known);

    if (rc == HKT_OK)
        rc = get_text(machine, place, "version", key->version, sizeof key->version);
    if (rc == HKT_OK)
        rc = get_text(machine, place, "cpu", key->cpu, sizeof key->cpu);
    if (rc == HKT_OK)
        rc = get_whole(machine, place, "cores", HKT_RANKS_MAX, &key->cores);
    if (rc == HKT_OK)
        rc = get_whole(machine, place, "l2_bytes", BYTES_MAX, &key->l2_bytes);
    if (rc == HKT_OK)
        rc = get_whole(machine, place, "llc_bytes", BYTES_MAX, &key->llc_bytes);
    if (rc == HKT_OK)
        rc = get_whole(machine, place, "ranks_per_host", HKT_RANKS_MAX, &key->host_ranks);
    if (rc == HKT_OK)
        rc = get_text(machine, place, "transport", key->transport, sizeof key->transport);
    return rc;
}

static bool same_machine(const struct hkt__tune_key *a, const struct hkt__tune_key *b)
{
    return strcmp(a->version, b->version) == 0 && strcmp(a->cpu, b->cpu) == 0 && a->cores == b->cores &&
           a->l2_bytes == b->l2_bytes && a->llc_bytes == b->llc_bytes && a->host_ranks == b->host_ranks;
}

static enum hkt_status parse_prices(const cJSON *prices, const struct place *place, double out_price[HKT__PRICE_COUNT])
{
    const char *known[HKT__PRICE_COUNT + 1] = {NULL};
    enum hkt_status rc;

    for (int i = 0; i < HKT__PRICE_COUNT; i++)
        known[i] = hkt__price_infos[i].name;
    rc = check_keys(prices, place, known);
    for (int i = 0; i < HKT__PRICE_COUNT && rc == HKT_OK; i++)
        rc = get_number(prices, place, known[i], 1e9, &out_price[i]);
    return rc;
}

static enum hkt_status parse_algo(const cJSON *choice, const struct place *place, struct hkt__tune_row *row)
{
    char coll_name[32], algo_name[64];
    enum hkt_coll coll;
    enum hkt_status rc = get_text(choice, place, "collective", coll_name, sizeof coll_name);

    if (rc == HKT_OK)
        rc = get_text(choice, place, "algorithm", algo_name, sizeof algo_name);
    if (rc < 0)
        return rc;
    if (hkt_coll_parse(coll_name, &coll) < 0)
        return refuse(place, "collective", "the name of a collective, such as all_reduce");
    const struct hkt__algo *algo = hkt__algo_find(coll, algo_name);

    if (algo == NULL)
        return refuse(place, "algorithm", "an algorithm of the collective (`hocket explain --list`)");
    row->coll = (uint8_t)coll;
    row->algo = (int32_t)(algo - hkt__algos);
    return HKT_OK;
}

static enum hkt_status parse_choice(const cJSON *choice, const struct place *place, struct hkt__tune_row *row)
{
    static const char *const known[] = {"collective", "ranks", "in_place", "registered", "bytes_from", "bytes_to",
                                        "algorithm", "measured_us", NULL};
    int64_t from = 0, to = 0;
    enum hkt_status rc = check_keys(choice, place, known);

    if (rc == HKT_OK)
        rc = parse_algo(choice, place, row);
    if (rc == HKT_OK)
        rc = get_whole(choice, place, "ranks", HKT_RANKS_MAX, &row->nranks);
    if (rc == HKT_OK)
        rc = get_flag(choice, place, "in_place", &row->in_place);
    if (rc == HKT_OK)
        rc = get_flag(choice, place, "registered", &row->registered);
    if (rc == HKT_OK)
        rc = get_whole(choice, place, "bytes_from", BYTES_MAX, &from);
    if (rc == HKT_OK)
        rc = get_whole(choice, place, "bytes_to", BYTES_MAX, &to);
    if (rc == HKT_OK)
        rc = get_number(choice, place, "measured_us", 1e12, &row->measured_us);
    if (rc == HKT_OK && from > to)
        rc = refuse(place, "bytes_to", "at least bytes_from");
    row->bytes_from = (uint64_t)from;
    row->bytes_to = (uint64_t)to;
    return rc;
}

static enum hkt_status parse_choices(const cJSON *choices, const struct place *place, struct hkt__tune_table *table)
{
    char expected[64];
    enum hkt_status rc = HKT_OK;

    if (!cJSON_IsArray(choices))
        return refuse(place, "", "an array");
    for (const cJSON *choice = choices->child; choice != NULL && rc == HKT_OK; choice = choice->next) {
        const struct place here = inside(place, "[%d]", table->nrows);

        if (table->nrows == HKT__TUNE_ROWS_MAX) {
            snprintf(expected, sizeof expected, "at most %d choices", HKT__TUNE_ROWS_MAX);
            return refuse(place, "", expected);
        }
        rc = parse_choice(choice, &here, &table->rows[table->nrows]);
        table->nrows++;
    }
    return rc;
}

static enum hkt_status parse_table(const cJSON *item, const struct place *place, const struct hkt__tune_key *key,
                                   struct hkt__tune *tune, int *skipped)
{
    static const char *const known[] = {"machine", "prices", "choices", NULL};
    struct hkt__tune_key theirs = {0};
    struct place here = inside(place, ".machine");
    enum hkt_status rc = check_keys(item, place, known);

    if (rc == HKT_OK)
        rc = parse_machine(cJSON_GetObjectItemCaseSensitive(item, "machine"), &here, &theirs);
    if (rc < 0)
        return rc;
    if (!same_machine(&theirs, key)) {
        ++*skipped;
        return HKT_OK;
    }
    if (hkt__tune_find(tune, theirs.transport) >= 0)
        return refuse(&here, "transport", "one table for each transport of a machine");
    if (tune->ntables == HKT__TUNE_TABLES_MAX)
        return refuse(place, "", "no more tables of this machine");
    struct hkt__tune_table *table = &tune->tables[tune->ntables++];

    memcpy(table->transport, theirs.transport, sizeof table->transport);
    here = inside(place, ".prices");
    rc = parse_prices(cJSON_GetObjectItemCaseSensitive(item, "prices"), &here, table->price);
    here = inside(place, ".choices");
    return rc < 0 ? rc : parse_choices(cJSON_GetObjectItemCaseSensitive(item, "choices"), &here, table);
}

/** cJSON keeps the place of the last error in a global, which two threads would write at once. */
static pthread_mutex_t parser = PTHREAD_MUTEX_INITIALIZER;

/** The root object, its format checked. Gives *out_root, released by cJSON_Delete. */
static enum hkt_status parse_root(const char *text, const char *name, cJSON **out_root)
{
    static const char *const known[] = {"format", "tables", NULL};
    const struct place place = {.name = name};
    const char *end = text;
    char format[32] = "";
    int line = 1;

    pthread_mutex_lock(&parser);
    cJSON *root = cJSON_ParseWithOpts(text, &end, 1);
    pthread_mutex_unlock(&parser);
    if (root == NULL) {
        for (const char *at = text; end != NULL && at < end; at++)
            line += *at == '\n';
        return hkt__fail(HKT_ERR_INVALID, "%s:%d: expected JSON, as `hocket tune` writes it", name, line);
    }
    enum hkt_status rc = check_keys(root, &place, known);

    if (rc == HKT_OK)
        rc = get_text(root, &place, "format", format, sizeof format);
    if (rc == HKT_OK && strcmp(format, FORMAT) != 0)
        rc = refuse(&place, "format", "\"" FORMAT "\"");
    if (rc == HKT_OK && !cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(root, "tables")))
        rc = refuse(&place, "tables", "an array");
    if (rc < 0) {
        cJSON_Delete(root);
        return rc;
    }
    *out_root = root;
    return HKT_OK;
}

enum hkt_status hkt__tune_parse(const char *text, const char *name, const struct hkt__tune_key *key,
                                struct hkt__tune **out_tune, int *out_skipped)
{
    cJSON *root;
    int index = 0, skipped = 0;
    enum hkt_status rc = parse_root(text, name, &root);

    if (rc < 0)
        return rc;
    struct hkt__tune *tune = hkt__calloc(1, sizeof *tune);

    if (tune == NULL)
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for the tables of %s", name);
    for (const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "tables")->child; item != NULL && rc == HKT_OK;
         item = item->next) {
        const struct place top = {.name = name}, place = inside(&top, "tables[%d]", index++);

        rc = parse_table(item, &place, key, tune, &skipped);
    }
    cJSON_Delete(root);
    if (rc < 0) {
        hkt__free(tune);
        return rc;
    }
    *out_tune = tune;
    *out_skipped = skipped;
    return HKT_OK;
}

static cJSON *print_machine(const struct hkt__tune_key *key)
{
    cJSON *machine = cJSON_CreateObject();

    cJSON_AddStringToObject(machine, "version", key->version);
    cJSON_AddStringToObject(machine, "cpu", key->cpu);
    cJSON_AddNumberToObject(machine, "cores", (double)key->cores);
    cJSON_AddNumberToObject(machine, "l2_bytes", (double)key->l2_bytes);
    cJSON_AddNumberToObject(machine, "llc_bytes", (double)key->llc_bytes);
    cJSON_AddNumberToObject(machine, "ranks_per_host", (double)key->host_ranks);
    cJSON_AddStringToObject(machine, "transport", key->transport);
    return machine;
}

/** Four digits say all that a measurement knows. */
static double rounded(double value)
{
    const double scale = value > 0 ? pow(10, 3 - floor(log10(value))) : 1;

    return round(value * scale) / scale;
}

static cJSON *print_choice(const struct hkt__tune_row *row)
{
    cJSON *choice = cJSON_CreateObject();

    cJSON_AddStringToObject(choice, "collective", hkt_coll_name((enum hkt_coll)row->coll));
    cJSON_AddNumberToObject(choice, "ranks", (double)row->nranks);
    cJSON_AddBoolToObject(choice, "in_place", row->in_place);
    cJSON_AddBoolToObject(choice, "registered", row->registered);
    cJSON_AddNumberToObject(choice, "bytes_from", (double)row->bytes_from);
    cJSON_AddNumberToObject(choice, "bytes_to", (double)row->bytes_to);
    cJSON_AddStringToObject(choice, "algorithm", hkt__algos[row->algo].info.name);
    cJSON_AddNumberToObject(choice, "measured_us", rounded(row->measured_us));
    return choice;
}

static cJSON *print_table(const struct hkt__tune_key *key, const struct hkt__tune_table *table)
{
    cJSON *item = cJSON_CreateObject(), *prices, *choices;

    cJSON_AddItemToObject(item, "machine", print_machine(key));
    prices = cJSON_AddObjectToObject(item, "prices");
    for (int i = 0; i < HKT__PRICE_COUNT; i++)
        cJSON_AddNumberToObject(prices, hkt__price_infos[i].name, rounded(table->price[i]));
    choices = cJSON_AddArrayToObject(item, "choices");
    for (int32_t i = 0; i < table->nrows; i++)
        cJSON_AddItemToArray(choices, print_choice(&table->rows[i]));
    return item;
}

/** Take out the table with this key; other tables stay as they are, even those no one here understands. */
static void drop_same(cJSON *tables, const struct hkt__tune_key *key)
{
    const struct place nowhere = {.name = ""};

    for (cJSON *item = tables->child, *next; item != NULL; item = next) {
        struct hkt__tune_key theirs = {0};

        next = item->next;
        if (parse_machine(cJSON_GetObjectItemCaseSensitive(item, "machine"), &nowhere, &theirs) == HKT_OK &&
            same_machine(&theirs, key) && strcmp(theirs.transport, key->transport) == 0)
            cJSON_Delete(cJSON_DetachItemViaPointer(tables, item));
    }
}

enum hkt_status hkt__tune_print(const char *old, const char *name, const struct hkt__tune_key *key,
                                const struct hkt__tune_table *table, char **out_text)
{
    cJSON *root = NULL;
    const enum hkt_status rc = old != NULL ? parse_root(old, name, &root) : HKT_OK;

    if (rc < 0)
        return rc;
    if (root == NULL) {
        root = cJSON_CreateObject();
        cJSON_AddStringToObject(root, "format", FORMAT);
        cJSON_AddArrayToObject(root, "tables");
    }
    cJSON *tables = cJSON_GetObjectItemCaseSensitive(root, "tables");

    drop_same(tables, key);
    cJSON_AddItemToArray(tables, print_table(key, table));
    char *text = cJSON_Print(root), *copy = text != NULL ? hkt__strdup(text) : NULL;

    cJSON_Delete(root);
    cJSON_free(text);
    if (copy == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the text of %s", name);
    *out_text = copy;
    return HKT_OK;
}
