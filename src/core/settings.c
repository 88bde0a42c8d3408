/* Settings from the environment. The table in settings.h is the only list; this file reads every row once, strictly:
 * a value that does not parse, or is out of range, is an error with the variable, the value, what is allowed and an
 * example. Nothing is allocated: texts are copied to static memory, since the environment may change afterwards.
 * An empty variable counts as unset. */
#include "core/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/log.h"

#define TEXT_MAX 512 /* bytes of a value, the terminating zero included */

enum kind { KIND_int, KIND_bytes, KIND_ms, KIND_string, KIND_flag };

struct row {
    const char *name, *type, *fallback, *help;
    enum kind kind;
    int64_t min, max;
    size_t offset; /* of the field in struct hkt__settings */
};

#define ROW(field, name, type, min, max, fallback, help)                                                               \
    { name, #type, fallback, help, KIND_##type, min, max, offsetof(struct hkt__settings, field) },
static const struct row rows[] = { HKT__SETTINGS_TABLE(ROW) };
#undef ROW

#define ROW_COUNT (sizeof rows / sizeof rows[0])

/* Strings with a fixed set of values; "" is always allowed. */
static const struct {
    const char *name;
    const char *choices[5];
} choice_rows[] = {
    { "HOCKET_CUDA_DMABUF", { "off", "on" } },
    { "HOCKET_DETERMINISTIC", { "rank_order" } },
    { "HOCKET_ISA", { "c", "sse2", "avx2", "avx512" } },
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    struct hkt__settings settings;
    enum hkt_status status;
    char error[HKT__ERROR_TEXT_MAX];
    char text[ROW_COUNT][TEXT_MAX]; /* value in force */
    char range[ROW_COUNT][96];
    bool is_set[ROW_COUNT];
    char tune_path[TEXT_MAX + 32];
} loaded;

/* Digits with an optional minus; *out_rest is what follows. False when there is no number or it does not fit. */
static bool parse_number(const char *text, int64_t *out_value, const char **out_rest)
{
    const char *digits = text[0] == '-' ? text + 1 : text;
    char *end;

    if (digits[0] < '0' || digits[0] > '9')
        return false;
    errno = 0;
    *out_value = strtoll(text, &end, 10);
    *out_rest = end;
    return errno == 0;
}

/* A unit of a number; "" allows a bare number. */
struct unit {
    const char *text;
    int64_t factor;
};

static bool parse_with_unit(const char *text, const struct unit *units, int64_t *out_value)
{
    const char *rest;
    int64_t value;

    if (!parse_number(text, &value, &rest) || value < 0)
        return false;
    for (; units->text != NULL; units++)
        if (strcmp(units->text, rest) == 0)
            return !__builtin_mul_overflow(value, units->factor, out_value);
    return false;
}

static const struct unit byte_units[] = {
    { "", 1 },        { "K", 1 << 10 }, { "k", 1 << 10 },          { "M", 1 << 20 },          { "m", 1 << 20 },
    { "G", 1 << 30 }, { "g", 1 << 30 }, { "T", INT64_C(1) << 40 }, { "t", INT64_C(1) << 40 }, { NULL, 0 },
};

/* No bare numbers: "600" reads as seconds to some and as milliseconds to others. */
static const struct unit ms_units[] = {
    { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 }, { NULL, 0 },
};

enum hkt_status hkt__parse_bytes(const char *text, int64_t *out_bytes)
{
    int64_t bytes;

    if (!parse_with_unit(text, byte_units, &bytes))
        return hkt__fail(HKT_ERR_INVALID, "\"%.64s\" is no byte count; write e.g. 4096, 64K, 4M, 1G", text);
    *out_bytes = bytes;
    return HKT_OK;
}

enum hkt_status hkt__parse_ms(const char *text, int64_t *out_ms)
{
    int64_t ms;

    if (!parse_with_unit(text, ms_units, &ms))
        return hkt__fail(HKT_ERR_INVALID, "\"%.64s\" is no time; give number and unit, e.g. 500ms, 10s, 2m, 1h", text);
    *out_ms = ms;
    return HKT_OK;
}

/* The value in the largest unit that divides it. */
static void format_with_unit(char *out, size_t bytes, int64_t value, const struct unit *units)
{
    const struct unit *best = units;

    for (const struct unit *unit = units; unit->text != NULL; unit++)
        if (value % unit->factor == 0 && value >= unit->factor && unit->factor > best->factor)
            best = unit;
    snprintf(out, bytes, "%" PRId64 "%s", value / best->factor, best->text);
}

static void format_range(const struct row *row, char *out, size_t bytes)
{
    char low[32], high[32];

    switch (row->kind) {
    case KIND_string:
        snprintf(out, bytes, "text");
        for (size_t i = 0; i < sizeof choice_rows / sizeof choice_rows[0]; i++)
            if (strcmp(choice_rows[i].name, row->name) == 0) {
                size_t used = 0;

                for (int j = 0; choice_rows[i].choices[j] != NULL; j++)
                    used +=
                        (size_t)snprintf(out + used, bytes - used, "%s%s", j > 0 ? "|" : "", choice_rows[i].choices[j]);
            }
        return;
    case KIND_flag:
        snprintf(out, bytes, "0|1");
        return;
    case KIND_int:
        snprintf(out, bytes, "%" PRId64 "..%" PRId64, row->min, row->max);
        return;
    case KIND_bytes:
    case KIND_ms:
        format_with_unit(low, sizeof low, row->min, row->kind == KIND_ms ? ms_units : byte_units);
        format_with_unit(high, sizeof high, row->max, row->kind == KIND_ms ? ms_units : byte_units);
        snprintf(out, bytes, "%s..%s", low, high);
        return;
    }
}

static enum hkt_status bad_value(size_t index, const char *text)
{
    return hkt__fail(HKT_ERR_INVALID, "%s=%.64s is not valid: allowed is %s (%s; default \"%s\")", rows[index].name,
                     text, loaded.range[index], rows[index].type, rows[index].fallback);
}

static enum hkt_status load_number(size_t index, const char *text)
{
    const struct row *row = &rows[index];
    const char *rest = "";
    int64_t value = 0;
    bool ok;

    if (row->kind == KIND_bytes || row->kind == KIND_ms)
        ok = parse_with_unit(text, row->kind == KIND_ms ? ms_units : byte_units, &value);
    else
        ok = parse_number(text, &value, &rest) && rest[0] == '\0';
    if (!ok || value < row->min || value > row->max)
        return bad_value(index, text);
    memcpy((char *)&loaded.settings + row->offset, &value, sizeof value);
    return HKT_OK;
}

static enum hkt_status load_string(size_t index, const char *text)
{
    const char *value = loaded.text[index];

    for (size_t i = 0; i < sizeof choice_rows / sizeof choice_rows[0]; i++) {
        if (strcmp(choice_rows[i].name, rows[index].name) != 0 || text[0] == '\0')
            continue;
        int j = 0;

        while (choice_rows[i].choices[j] != NULL && strcmp(choice_rows[i].choices[j], text) != 0)
            j++;
        if (choice_rows[i].choices[j] == NULL)
            return bad_value(index, text);
    }
    memcpy((char *)&loaded.settings + rows[index].offset, &value, sizeof value);
    return HKT_OK;
}

static enum hkt_status load_row(size_t index)
{
    const struct row *row = &rows[index];
    const char *text = getenv(row->name);

    loaded.is_set[index] = text != NULL && text[0] != '\0';
    if (!loaded.is_set[index])
        text = row->fallback;
    snprintf(loaded.text[index], TEXT_MAX, "%s", text);
    if (strlen(text) >= TEXT_MAX)
        return hkt__fail(HKT_ERR_INVALID, "%s is longer than %d bytes", row->name, TEXT_MAX - 1);
    return row->kind == KIND_string ? load_string(index, text) : load_number(index, text);
}

/* Rules that a row of the table cannot say. */
static enum hkt_status check_rules(void)
{
    unsigned char levels[HKT__SUB_COUNT];

    if (!hkt__is_pow2((unsigned)loaded.settings.shm_slots))
        return hkt__fail(HKT_ERR_INVALID,
                         "HOCKET_SHM_SLOTS=%" PRId64 " is not valid: it must be a power of two, 2..256",
                         loaded.settings.shm_slots);
    if (loaded.settings.slice_bytes > 0 && loaded.settings.slice_bytes < HKT__SLICE_LEAST)
        return hkt__fail(HKT_ERR_INVALID, "HOCKET_SLICE_BYTES=%" PRId64 " is not valid: it must be 0, or %d..16777216",
                         loaded.settings.slice_bytes, HKT__SLICE_LEAST);
    if (hkt__log_parse(loaded.settings.debug, levels) != HKT_OK)
        return hkt__error_context(HKT_ERR_INVALID, "HOCKET_DEBUG=%.64s is not valid", loaded.settings.debug);
    return HKT_OK;
}

/* The default follows the XDG base directory specification. */
static void find_tune_path(void)
{
    const char *given = loaded.settings.tune, *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *path = loaded.tune_path;

    path[0] = '\0';
    if (strcmp(given, "off") == 0)
        return;
    if (given[0] != '\0')
        snprintf(path, sizeof loaded.tune_path, "%s", given);
    else if (cache != NULL && cache[0] == '/' && strlen(cache) < TEXT_MAX)
        snprintf(path, sizeof loaded.tune_path, "%s/hocket/tune.json", cache);
    else if (home != NULL && home[0] == '/' && strlen(home) < TEXT_MAX)
        snprintf(path, sizeof loaded.tune_path, "%s/.cache/hocket/tune.json", home);
}

/* The first wrong row is reported; the others are read all the same, for hkt_setting_get. */
static void load(void)
{
    const struct hkt__error saved = *hkt__error_here();
    enum hkt_status first = HKT_OK;

    for (size_t i = 0; i < ROW_COUNT; i++)
        format_range(&rows[i], loaded.range[i], sizeof loaded.range[i]);
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const enum hkt_status status = load_row(i);

        if (status != HKT_OK && first == HKT_OK) {
            first = status;
            memcpy(loaded.error, hkt__error_here()->text, sizeof loaded.error);
        }
    }
    if (first == HKT_OK) {
        find_tune_path();
        first = check_rules();
        memcpy(loaded.error, hkt__error_here()->text, sizeof loaded.error);
    }
    loaded.status = first;
    *hkt__error_here() = saved;
}

enum hkt_status hkt__settings_get(const struct hkt__settings **out_settings)
{
    pthread_once(&once, load);
    if (loaded.status != HKT_OK)
        return hkt__fail(loaded.status, "%s", loaded.error);
    *out_settings = &loaded.settings;
    return HKT_OK;
}

const char *hkt__settings_tune_path(void)
{
    return loaded.tune_path;
}

enum hkt_status hkt_setting_get(int index, struct hkt_setting *out_setting)
{
    if (index < 0 || (size_t)index >= ROW_COUNT)
        return hkt__fail(HKT_ERR_INVALID, "there is no setting %d; there are %zu, from 0", index, ROW_COUNT);
    if (out_setting == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_setting_get needs a place for its result, not NULL");
    pthread_once(&once, load);
    const struct row *row = &rows[index];
    /* The token is a secret: whoever reads the output of `hocket info` must not be able to join the job. */
    const bool is_secret = strcmp(row->name, "HOCKET_TOKEN") == 0 && loaded.is_set[index];

    *out_setting = (struct hkt_setting){
        .name = row->name,
        .type = row->type,
        .range = loaded.range[index],
        .fallback = row->fallback,
        .help = row->help,
        .value = is_secret ? "(hidden)" : loaded.text[index],
        .is_set = loaded.is_set[index],
    };
    return HKT_OK;
}

void hkt__settings_reset(void)
{
    static const pthread_once_t fresh = PTHREAD_ONCE_INIT;

    once = fresh;
    hkt__log_reset();
}
