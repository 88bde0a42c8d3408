#!/usr/bin/env python3
"""Every header compiles alone, included twice, as C17 without warnings; every public one also as C++17; guards are
named after the file; none hides a header of the system (the folder of a target is searched first). Usage: headers.py SOURCE_ROOT C_COMPILER [CXX_COMPILER]"""
import re
import subprocess
import sys

import source

WARNINGS = ['-Wall', '-Wextra', '-Wpedantic', '-Wshadow', '-Werror', '-fsyntax-only', '-Iinclude', '-Isrc', '-Itools',
            '-I.', '-D_GNU_SOURCE']

# Not headers but templates: source files include them with macros set.
TEMPLATES = {'src/device/kernels_vec.h', 'src/device/kernels_spread.h', 'src/parallel/gemm_kernels.h'} | {
    f'src/parallel/kernels_{part}.h' for part in ('attention', 'end', 'pointwise', 'random', 'real', 'rows', 'table', 'update')}


# Headers of C17, and those of POSIX that lie in no folder.
SYSTEM = set("""assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg
    stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype
    aio cpio dirent dlfcn fcntl fmtmsg fnmatch ftw getopt glob grp iconv ifaddrs langinfo libgen link monetary mqueue ndbm
    netdb nl_types poll pthread pwd regex sched search semaphore spawn strings syslog tar termios unistd utime
    wordexp""".split())


def compile_alone(root, report, path, command):
    name = path.split('/', 1)[1] if path.startswith(('include/', 'src/', 'tools/')) else path
    report.looked_at += 1
    result = subprocess.run(command + WARNINGS + ['-'], input=f'#include "{name}"\n#include "{name}"\n', text=True,
                            capture_output=True, cwd=root, check=False)
    if result.returncode != 0:
        first = next((line for line in result.stderr.splitlines() if 'error' in line), result.stderr.strip())
        report.find(path, 1, f'does not compile alone ({command[0]} {command[-1]}): {first}; include what it uses')


def check_guard(root, report, path):
    text = source.read(root, path)
    guard = re.search(r'^#ifndef (\w+)\n#define \1$', text, re.M)
    parts = re.sub(r'\.h$', '', path).upper().split('/')
    want = '_'.join(['HOCKET'] + [part for part in parts[1:] if part != 'HOCKET' or len(parts) > 3]) + '_H'
    if parts[0] == 'INCLUDE':
        want = f'HOCKET_{parts[-1]}_H'
    elif parts[0] == 'TOOLS':
        want = f'HOCKET_TOOLS_{parts[-1]}_H'.replace('TOOLS_TOOLS', 'TOOLS')
    if not guard:
        report.find(path, 1, f'no include guard; name it {want}')
    elif guard.group(1) != want:
        report.find(path, source.line_of(text, guard.start()), f'guard {guard.group(1)}; name it {want}')


def check_name(report, path):
    name = path.rsplit('/', 1)[-1]
    if name.removesuffix('.h') in SYSTEM:
        report.find(path, 1, f'files of this folder that include <{name}> get this one; give it another name')


def main():
    root, cc = sys.argv[1], sys.argv[2]
    cxx = sys.argv[3] if len(sys.argv) > 3 else None
    report = source.Report('headers alone')
    for path in source.files(root, ('include', 'src', 'tools'), ('.h',)):
        if path in TEMPLATES:
            continue
        compile_alone(root, report, path, [cc, '-xc', '-std=c17'])
        check_guard(root, report, path)
        check_name(report, path)
        if cxx and path.startswith('include/'):
            compile_alone(root, report, path, [cxx, '-xc++', '-std=c++17'])
    if not cxx:
        print('no C++ compiler: the public headers were not tried as C++17; install g++')
    report.end()


main()
