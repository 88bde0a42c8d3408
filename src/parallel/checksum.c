/* Sums of what a file holds, and where they stand in its header. */
#include "parallel/checksum.h"

#include <string.h>

enum { DIGITS = 16 };

static const char key[] = "\"" HKT__ST_CHECKSUM_KEY "\":\"";

/* One-to-one in `bits` for every place: odd multipliers and shifts that xor can undo (constants of SplitMix64; Steele et al.,
 * OOPSLA 2014). */
static uint64_t mix(uint64_t place, uint64_t bits)
{
    uint64_t x = bits + (place + 1) * 0x9E3779B97F4A7C15u;

    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t hkt__st_sum(uint64_t place, const void *elems, int64_t count, size_t bytes)
{
    uint64_t sum = 0;

    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0;

        memcpy(&bits, (const char *)elems + (size_t)i * bytes, bytes);
        sum += mix(place + (uint64_t)i * bytes, bits);
    }
    return sum;
}

/* Where the digits stand; NULL: nowhere. */
static const char *find_digits(const char *text, size_t count)
{
    const size_t room = sizeof key - 1 + strlen(HKT__ST_CHECKSUM_BLANK);

    for (const char *p = text; count >= room && p != NULL;) {
        p = memchr(p, key[0], count - room + 1 - (size_t)(p - text));
        if (p != NULL && memcmp(p, key, sizeof key - 1) == 0)
            return p + sizeof key - 1;
        if (p != NULL && (size_t)(++p - text) > count - room)
            break;
    }
    return NULL;
}

/* Of a header as if its checksum were blank. */
static uint64_t sum_header(const char *text, size_t count, const char *digits)
{
    const size_t blank = strlen(HKT__ST_CHECKSUM_BLANK), at = (size_t)(digits - text);
    uint64_t sum = hkt__st_sum(0, text, (int64_t)at, 1);

    sum += hkt__st_sum(at, HKT__ST_CHECKSUM_BLANK, (int64_t)blank, 1);
    return sum + hkt__st_sum(at + blank, digits + blank, (int64_t)(count - at - blank), 1);
}

static void put_digits(char *to, uint64_t value)
{
    for (int i = DIGITS - 1; i >= 0; i--, value >>= 4)
        to[i] = "0123456789abcdef"[value & 15];
}

static bool take_digits(const char *from, uint64_t *out_value)
{
    *out_value = 0;
    for (int i = 0; i < DIGITS; i++) {
        const char *digit = from[i] != '\0' ? strchr("0123456789abcdef", from[i]) : NULL;

        if (digit == NULL)
            return false;
        *out_value = *out_value << 4 | (uint64_t)(digit - "0123456789abcdef");
    }
    return true;
}

bool hkt__st_seal(char *text, size_t count, const uint64_t sums[HKT__ST_SUMS])
{
    const char *digits = find_digits(text, count);

    if (digits == NULL)
        return false;
    char *to = text + (digits - text);

    put_digits(to, sum_header(text, count, digits));
    for (int i = 0; i < HKT__ST_SUMS; i++)
        put_digits(to + (i + 1) * DIGITS, sums[i]);
    return true;
}

enum hkt__st_seal_state hkt__st_unseal(const char *text, size_t count, uint64_t out_sums[HKT__ST_SUMS])
{
    const char *digits = find_digits(text, count);
    uint64_t header = 0;
    bool is_whole;

    if (digits == NULL)
        return HKT__ST_NOT_SEALED;
    is_whole = take_digits(digits, &header) && header == sum_header(text, count, digits);
    for (int i = 0; i < HKT__ST_SUMS; i++)
        is_whole = take_digits(digits + (i + 1) * DIGITS, &out_sums[i]) && is_whole;
    return is_whole ? HKT__ST_SEALED : HKT__ST_SEAL_BROKEN;
}
