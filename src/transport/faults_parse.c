/* Parser of HOCKET_FAULTS. Strict: an injection that silently does nothing would make a test worthless. */
#include <stdbool.h>
#include <string.h>

#include "core/error.h"
#include "transport/faulty.h"

/* Decimal digits of text[0..bytes); false when there is anything else, or nothing, or too much. */
static bool parse_count(const char *text, size_t bytes, uint64_t *out_value)
{
    uint64_t value = 0;

    if (bytes == 0 || bytes > 18)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    *out_value = value;
    return true;
}

/* 0, 1, 0.25. Not strtod: its decimal point depends on the application's locale. */
static bool parse_probability(const char *text, size_t bytes, double *out_value)
{
    const char *point = memchr(text, '.', bytes);
    const size_t whole_bytes = point != NULL ? (size_t)(point - text) : bytes;
    uint64_t whole, fraction = 0;
    double scale = 1;

    if (!parse_count(text, whole_bytes, &whole))
        return false;
    if (point != NULL) {
        if (!parse_count(point + 1, bytes - whole_bytes - 1, &fraction))
            return false;
        for (size_t i = whole_bytes + 1; i < bytes; i++)
            scale *= 10;
    }
    const double value = (double)whole + (double)fraction / scale;

    if (value > 1)
        return false;
    *out_value = value;
    return true;
}

static bool parse_item(const char *item, size_t bytes, struct hkt__faults *faults)
{
    const struct {
        const char *name;
        double *probability;
        uint64_t *count;
    } known[] = {
        { "seed", NULL, &faults->seed },         { "drop", &faults->drop, NULL },   { "dup", &faults->dup, NULL },
        { "corrupt", &faults->corrupt, NULL },   { "delay", &faults->delay, NULL }, { "short", &faults->short_room, NULL },
        { "lend", &faults->lend, NULL },         { "kill", NULL, &faults->kill },
    };
    const char *equals = memchr(item, '=', bytes);
    const size_t name_bytes = equals != NULL ? (size_t)(equals - item) : bytes;

    for (size_t i = 0; equals != NULL && i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i].name) != name_bytes || memcmp(known[i].name, item, name_bytes) != 0)
            continue;
        return known[i].count != NULL ? parse_count(equals + 1, bytes - name_bytes - 1, known[i].count)
                                      : parse_probability(equals + 1, bytes - name_bytes - 1, known[i].probability);
    }
    return false;
}

enum hkt_status hkt__faults_parse(const char *text, struct hkt__faults *out_faults)
{
    struct hkt__faults faults = { .seed = 1 };

    for (const char *item = text;;) {
        const size_t bytes = strcspn(item, ",");

        if (!parse_item(item, bytes, &faults))
            return hkt__fail(HKT_ERR_INVALID, "HOCKET_FAULTS \"%s\": \"%.*s\" is not understood; items are seed=N, kill=N, "
                             "and drop, dup, corrupt, delay, short, lend with a probability from 0 to 1 (drop=0.01)", text,
                             (int)bytes, item);
        if (item[bytes] == '\0')
            break;
        item += bytes + 1;
    }
    *out_faults = faults;
    return HKT_OK;
}
