#!/usr/bin/env python3
"""What nvcc made of the kernels, for each generation of GPUs: no register was spilled, no stack is used, no local memory
is touched, and every kernel that moves elements loads and stores 16 bytes at a time.

Instructions are decoded from the binaries by what Volta and all later generations share: 16 bytes each, the operation in
bits 0 to 11, the width of an access in bits 73 to 75. Usage: compiled.py GENERATION[,GENERATION...] FOLDER..., each folder with
report.txt and *.cubin."""
import collections
import glob
import os
import re
import struct
import sys

OPERATIONS = {0x381: 'LDG', 0x981: 'LDG', 0x386: 'STG', 0x986: 'STG', 0x983: 'LDL', 0x387: 'STL', 0x987: 'STL'}
WIDTHS = (8, 8, 16, 16, 32, 64, 128, 128)
BYTEWISE = ('plan_note',) # reads its parameters


def accesses(cubin):
    """kernel -> Counter of (operation, width)"""
    with open(cubin, 'rb') as file:
        data = file.read()
    table, = struct.unpack_from('<Q', data, 40)
    entry_bytes, nsections, names = struct.unpack_from('<HHH', data, 58)
    sections = [struct.unpack_from('<IIQQQQIIQQ', data, table + i * entry_bytes) for i in range(nsections)]
    found = {}
    for section in sections:
        name = data[sections[names][4] + section[0]:].split(b'\0', 1)[0].decode()
        if not name.startswith('.text.'):
            continue
        count = collections.Counter()
        for at in range(section[4], section[4] + section[5], 16):
            low, high = struct.unpack_from('<QQ', data, at)
            if low & 0xfff in OPERATIONS:
                count[OPERATIONS[low & 0xfff], WIDTHS[high >> 9 & 7]] += 1
        found[name[len('.text.'):]] = count
    return found


def reported(text):
    """(kernel, generation) -> the three counts of bytes that must be 0"""
    return {(m[1], m[2]): tuple(map(int, m.groups()[2:])) for m in re.finditer(
        r"entry function '(\S+)' for '(\S+)'\n(?:.*\n)??.*Function properties.*\n"
        r'\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads', text)}


def check(folder, generations, wrong):
    with open(os.path.join(folder, 'report.txt'), encoding='utf-8') as file:
        report = reported(file.read())
    nkernels = 0
    for generation in generations:
        cubins = glob.glob(os.path.join(folder, f'*{generation}.cubin'))
        if len(cubins) != 1:
            wrong.append(f'{folder}: {len(cubins)} binaries for {generation}')
            continue
        for kernel, count in accesses(cubins[0]).items():
            nkernels += 1
            where = f'{kernel} for {generation}'
            if report.get((kernel, generation)) != (0, 0, 0):
                wrong.append(f'{where}: stack, spill stores and loads: {report.get((kernel, generation))} bytes')
            if any(operation in ('LDL', 'STL') for operation, _ in count):
                wrong.append(f'{where}: uses local memory: {dict(count)}')
            if not any(name in kernel for name in BYTEWISE) and min(count['LDG', 128], count['STG', 128]) == 0:
                wrong.append(f'{where}: no 16-byte loads or stores: {dict(count)}')
    return nkernels


def main():
    wrong = []
    generations = ['sm_' + number for number in sys.argv[1].split(',')]
    nkernels = sum(check(folder, generations, wrong) for folder in sys.argv[2:])
    print(*wrong, sep='\n')
    print(f'{nkernels} compiled kernels looked at, {len(wrong)} things to mend')
    sys.exit(1 if wrong or nkernels == 0 else 0)


main()
