#!/usr/bin/env python3
"""libhocket.so exports exactly the functions that include/hocket declares, each marked HKT_API.
Usage: exports.py SOURCE_ROOT NM LIBHOCKET_SO"""
import re
import subprocess
import sys

import source

DECLARATION = re.compile(r'(?<!\w)(hkt_[a-z]\w*)\s*\(')


def declared(root, report):
    """name -> (path, line)"""
    found = {}
    for path in source.files(root, ('include',), ('.h',)):
        text = source.code(source.read(root, path))
        text = re.sub(r'^[ \t]*#(?:[^\n\\]|\\\n|\\.)*', lambda m: re.sub(r'[^\n]', ' ', m.group()), text, flags=re.M)
        for statement in re.finditer(r'[^;{}]*;', text):
            match = DECLARATION.search(statement.group())
            if not match or 'typedef' in statement.group():
                continue
            line = source.line_of(text, statement.start() + match.start())
            found[match.group(1)] = (path, line)
            if 'HKT_API' not in statement.group():
                report.find(path, line, f'{match.group(1)} is declared without HKT_API; add it')
    return found


def exported(nm, library):
    lines = subprocess.run([nm, '-D', '--defined-only', library], text=True, capture_output=True, check=True).stdout
    names = [line.split()[-1] for line in lines.splitlines() if line.split()[-2] in 'TDBRVWi']
    return {name.split('@')[0] for name in names}


def main():
    root, nm, library = sys.argv[1:4]
    report = source.Report('exported functions')
    want, have = declared(root, report), exported(nm, library)
    report.looked_at = len(set(want) | have)
    for name in sorted(set(want) - have):
        report.find(*want[name], f'{name} is declared but not in libhocket.so; define it, or drop the declaration')
    for name in sorted(have - set(want)):
        report.find('src/libhocket.map', 1, f'{name} is exported but no public header declares it; rename it to hkt__ or '
                                            'make it static')
    report.end()


main()
