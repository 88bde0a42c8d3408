/* Cutting a text into words as GPT-2 does, by its pattern
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * of which the first alternative that fits counts. So a word takes the space before it along, and of other white space before a
 * word only the last character stands apart. Source: github.com/openai/gpt-2, encoder.py. */
#include <string.h>

#include "parallel/tokens.h"

size_t hkt__char_read(const unsigned char *text, size_t bytes, uint32_t *out_code_point)
{
    static const uint32_t lowest[] = { 0, 0, 0x80, 0x800, 0x10000 }; /* of a character of so many bytes */
    const unsigned char lead = text[0];
    const size_t count = lead < 0x80 ? 1 : lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf8 ? 4 : 0;
    uint32_t code = lead;

    if (count == 0 || count > bytes)
        return 0;
    if (count > 1)
        code = lead & (0x7fu >> count);
    for (size_t i = 1; i < count; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3fu);
    }
    if (code < lowest[count] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    *out_code_point = code;
    return count;
}

/* The class of the character that begins here, and its bytes. */
static enum hkt__char_class read_class(const unsigned char *text, size_t bytes, size_t *out_bytes)
{
    uint32_t code = 0;

    *out_bytes = hkt__char_read(text, bytes, &code);
    if (*out_bytes == 0) {
        *out_bytes = 1;
        return HKT__CHAR_OTHER;
    }
    return hkt__char_class_of(code);
}

/* Bytes of the characters of one class from here on; *out_last: of the last of them. */
static size_t run_bytes(const unsigned char *text, size_t bytes, enum hkt__char_class which, size_t *out_last)
{
    size_t at = 0, one;

    while (at < bytes && read_class(text + at, bytes - at, &one) == which) {
        at += one;
        *out_last = one;
    }
    return at;
}

static size_t contraction_bytes(const unsigned char *text, size_t bytes)
{
    static const char *const endings[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };

    for (size_t i = 0; text[0] == '\'' && i < sizeof endings / sizeof endings[0]; i++)
        if (strlen(endings[i]) <= bytes && memcmp(text, endings[i], strlen(endings[i])) == 0)
            return strlen(endings[i]);
    return 0;
}

size_t hkt__word_bytes(const unsigned char *text, size_t bytes)
{
    const size_t contraction = contraction_bytes(text, bytes), space = text[0] == ' ' && bytes > 1;
    size_t last = 0;

    if (contraction > 0)
        return contraction;
    const enum hkt__char_class first = read_class(text + space, bytes - space, &last);

    if (first != HKT__CHAR_SPACE)
        return space + run_bytes(text + space, bytes - space, first, &last);
    const size_t run = run_bytes(text, bytes, HKT__CHAR_SPACE, &last);

    return run == bytes || run == last ? run : run - last;
}
