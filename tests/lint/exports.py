#!/usr/bin/env python3
"""Each library exports exactly the functions that its headers in include/hocket declare, each marked HKT_API: those of
parallel.h and the headers it gathers are libhocket_parallel.so's, all others libhocket.so's.
Usage: exports.py SOURCE_ROOT NM LIBHOCKET_SO [LIBHOCKET_PARALLEL_SO]"""
import os
import re
import subprocess
import sys

import source

DECLARATION = re.compile(r'(?<!\w)(hkt_[a-z]\w*)\s*\(')


def gathered(root, umbrella):
    """The umbrella and every header of include/hocket it includes, directly or not."""
    found, ahead = set(), [umbrella]
    while ahead:
        path = ahead.pop()
        if path not in found and os.path.exists(os.path.join(root, path)):
            found.add(path)
            text = source.code(source.read(root, path), keep_strings=True)
            ahead += ['include/' + name for name in re.findall(r'#\s*include\s*"(hocket/[^"]+)"', text)]
    return found


def declared(root, paths, report):
    """name -> (path, line)"""
    found = {}
    for path in sorted(paths):
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


def compare(report, want, library, have, script):
    report.looked_at += len(set(want) | have)
    for name in sorted(set(want) - have):
        report.find(*want[name], f'{name} is declared but not in {library}; define it, or drop the declaration')
    for name in sorted(have - set(want)):
        report.find(script, 1, f'{name} is exported but no public header declares it; rename it to hkt__ or make it static')


def main():
    root, nm, library = sys.argv[1:4]
    report = source.Report('exported functions')
    parallel = gathered(root, 'include/hocket/parallel.h') - gathered(root, 'include/hocket/hocket.h')
    others = set(source.files(root, ('include',), ('.h',))) - parallel
    compare(report, declared(root, others, report), 'libhocket.so', exported(nm, library), 'src/libhocket.map')
    if len(sys.argv) > 4:
        compare(report, declared(root, parallel, report), 'libhocket_parallel.so', exported(nm, sys.argv[4]),
                'src/libhocket_parallel.map')
    report.end()


main()
