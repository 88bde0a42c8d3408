#!/usr/bin/env python3
"""Words and calls that have no place here, by a table: what, where, why, what instead. Usage: words.py SOURCE_ROOT"""
import re
import sys

import source

ANY = ('include', 'src', 'tools', 'examples', 'benchmarks', 'tests', 'docs', 'kernels', 'python')
C = ('include', 'src', 'tools', 'examples', 'benchmarks', 'tests', 'kernels')
LIBRARY = ('src',)

# (pattern, in comments too, folders, files excepted, the mend)
RULES = [
    (r'\b(TODO|FIXME|XXX)\b', True, ANY, r'tests/lint/words\.py', 'finish it, or file it where the project keeps its issues'),
    (r'\b(strcpy|strcat|sprintf|vsprintf|gets|strncpy)\s*\(', False, C, '', 'use snprintf, or memcpy with a size that is checked'),
    (r'\balloca\s*\(', False, C, '', 'use an array of fixed size, or core/mem.h'),
    (r'\b(atoi|atol|atoll|atof)\s*\(', False, C, '', 'these cannot tell an error; use strtol and check its end'),
    (r'\btypedef\s+(?:struct|union)\b\s*\w*\s*(?:\{|\w+\s*;)', False, C, r'tests/cuda-emu/include/cuda(_runtime_api)?\.h', 'no typedefs of structs: write "struct name" everywhere'),
    (r'(?<![\w.>])(malloc|calloc|realloc|strdup|free|aligned_alloc|posix_memalign)\s*\(', False, LIBRARY,
     r'src/(core/mem|parallel/(alloc|memory))\.c', 'use core/mem.h (parallel/alloc.h): it counts, checks overflow and can be made to fail'),
    (r'(?<![\w.>])(printf|puts|putchar|perror|exit|abort)\s*\(', False, LIBRARY, '', 'the library returns errors (core/error.h); it '
     'does not print or exit'),
    (r'(?<![\w.>])(getenv|secure_getenv|setenv)\s*\(', False, LIBRARY, r'src/core/settings\.c', 'add a row to the table in core/settings.h '
     '(the bootstrap is handed a getenv)'),
    (r'(?<![\w.>])(usleep|sleep)\s*\(', False, LIBRARY, '', 'nothing sleeps as synchronisation: wait with a deadline'),
]


def main():
    root, report = sys.argv[1], source.Report('words')
    for path in source.files(root, ANY, source.TEXT_ENDINGS):
        text = source.read(root, path)
        plain = source.code(text) if path.endswith(('.c', '.h', '.cu', '.cuh')) else ''
        report.looked_at += 1
        for pattern, in_comments, folders, excepted, mend in RULES:
            if path.split('/')[0] not in folders or (excepted and re.fullmatch(excepted, path)):
                continue
            where = text if in_comments else plain
            for match in re.finditer(pattern, where):
                report.find(path, source.line_of(where, match.start()), f'{match.group().strip()}: {mend}')
    report.end()


main()
