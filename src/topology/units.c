/* Amounts with units: whole numbers inside, text with at most a few decimals outside, nothing lost on the way. */
#include "topology/units.h"

#include <stdio.h>
#include <string.h>

#include "hocket/topo.h"

struct unit {
    const char *suffix;
    uint64_t factor;
};

static const struct unit rate_units[] = {
    { "TB/s", UINT64_C(1000000000000) },
    { "GB/s", 1000000000 },
    { "MB/s", 1000000 },
    { "kB/s", 1000 },
    { "B/s", 1 },
    { NULL, 0 },
};
static const struct unit time_units[] = {
    { "s", 1000000000 }, { "ms", 1000000 }, { "us", 1000 }, { "ns", 1 }, { NULL, 0 }
};
static const struct unit size_units[] = {
    { "TiB", UINT64_C(1) << 40 },
    { "GiB", UINT64_C(1) << 30 },
    { "MiB", UINT64_C(1) << 20 },
    { "KiB", UINT64_C(1) << 10 },
    { "B", 1 },
    { NULL, 0 },
};

/** The number in front; returns what follows it, NULL when there is none or it has more than 19 or 6 digits. */
static const char *take_number(const char *text, uint64_t *out_whole, uint64_t *out_part, uint64_t *out_scale)
{
    const size_t digits = strspn(text, "0123456789");

    if (digits == 0 || digits > 19)
        return NULL;
    *out_whole = *out_part = 0;
    *out_scale = 1;
    for (size_t i = 0; i < digits; i++)
        *out_whole = *out_whole * 10 + (uint64_t)(text[i] - '0');
    text += digits;
    if (*text != '.')
        return text;
    const size_t decimals = strspn(text + 1, "0123456789");

    if (decimals == 0 || decimals > 6)
        return NULL;
    for (size_t i = 1; i <= decimals; i++) {
        *out_part = *out_part * 10 + (uint64_t)(text[i] - '0');
        *out_scale *= 10;
    }
    return text + 1 + decimals;
}

static bool parse(const char *text, const struct unit *units, uint64_t *out)
{
    uint64_t whole, part, scale;
    const char *suffix = take_number(text, &whole, &part, &scale);

    if (suffix == NULL)
        return false;
    for (; units->suffix != NULL; units++) {
        if (strcmp(units->suffix, suffix) != 0)
            continue;
        /* part < 10^6 and factor < 2^41: no overflow. */
        if (whole > (UINT64_MAX - units->factor) / units->factor || part * units->factor % scale != 0)
            return false;
        *out = whole * units->factor + part * units->factor / scale;
        return true;
    }
    return false;
}

bool hkt__parse_rate(const char *text, uint64_t *out_bytes_per_s)
{
    return parse(text, rate_units, out_bytes_per_s);
}

bool hkt__parse_time(const char *text, uint64_t *out_ns)
{
    return parse(text, time_units, out_ns);
}

bool hkt__parse_size(const char *text, uint64_t *out_bytes)
{
    return parse(text, size_units, out_bytes);
}

static void print(uint64_t value, const struct unit *units, char *out, size_t bytes)
{
    while (units[1].suffix != NULL && (value < units->factor || value % units->factor * 1000 % units->factor != 0))
        units++;
    unsigned part = (unsigned)(value % units->factor * 1000 / units->factor);
    int decimals = 3;

    while (part != 0 && part % 10 == 0) {
        part /= 10;
        decimals--;
    }
    if (part != 0)
        snprintf(out, bytes, "%llu.%0*u%s", (unsigned long long)(value / units->factor), decimals, part, units->suffix);
    else
        snprintf(out, bytes, "%llu%s", (unsigned long long)(value / units->factor), units->suffix);
}

void hkt_topo_rate_text(uint64_t bytes_per_s, char *out_text, size_t bytes)
{
    print(bytes_per_s, rate_units, out_text, bytes);
}

void hkt_topo_time_text(uint64_t latency_ns, char *out_text, size_t bytes)
{
    print(latency_ns, time_units, out_text, bytes);
}

void hkt_topo_size_text(uint64_t size_bytes, char *out_text, size_t bytes)
{
    print(size_bytes, size_units, out_text, bytes);
}
