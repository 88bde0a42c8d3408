#!/usr/bin/env python3
"""Writes tokens_letters.c: which characters are letters, numbers or white space in the Unicode version of this Python."""
import sys
import unicodedata

SPACES = {*range(9, 14), 0x20, 0x85, 0xa0, 0x1680, *range(0x2000, 0x200b), 0x2028, 0x2029, 0x202f, 0x205f, 0x3000}


def class_of(code):
    kind = unicodedata.category(chr(code))[0]
    return 3 if code in SPACES else {'L': 1, 'N': 2}.get(kind, 0)


def main():
    starts, last = [], -1
    for code in range(sys.maxunicode + 1):
        if class_of(code) != last:
            last = class_of(code)
            starts.append(f'0x{code << 2 | last:x}')
    lines, line = [], '   '
    for start in starts:
        if len(line) + len(start) + 2 > 120:
            lines.append(line)
            line = '   '
        line += f' {start},'
    print(f"""/* Which characters are letters, numbers (categories L and N) or white space (White_Space), in Unicode {unicodedata.unidata_version}.
 * Written by tokens_letters.py: each entry is four times the first character of a range, plus its class. */
#include "parallel/tokens.h"

static const uint32_t starts[] = {{""")
    print('\n'.join(lines + [line]))
    print("""};

enum hkt__char_class hkt__char_class_of(uint32_t code_point)
{
    size_t low = 0, high = sizeof starts / sizeof starts[0];

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (starts[middle] >> 2 <= code_point)
            low = middle;
        else
            high = middle;
    }
    return (enum hkt__char_class)(starts[low] & 3);
}""")


main()
