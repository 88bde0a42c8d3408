#!/usr/bin/env python3
"""Each #include of a file of ours obeys the layers (docs/architecture.md): a folder sees its own layer's files and the
listed ones below, never up or sideways. Usage: layers.py SOURCE_ROOT"""
import os
import re
import sys

import source

# Folder -> the folders it may include from, itself aside. 'hocket' is include/hocket.
LAYERS = {
    'include/hocket': ['hocket'],
    'src/core': ['hocket'],
    'src/sched': ['hocket', 'core'],
    'src/topology': ['hocket', 'core'],
    'src/transport': ['hocket', 'core'],
    'src/device': ['hocket', 'core', 'kernels'],
    'src/cuda_p2p': ['hocket', 'core', 'transport', 'device', 'kernels'],
    'src/algos': ['hocket', 'core', 'sched'],
    'src/cost': ['hocket', 'core', 'sched', 'topology', 'algos'],
    'src/exec': ['hocket', 'core', 'sched', 'transport', 'device'],
    'src/comm': ['hocket', 'core', 'sched', 'topology', 'transport', 'device', 'algos', 'cost', 'exec', 'kernels'],
    'src/parallel': ['hocket'],
    'src/nccl': ['hocket'],
    'kernels': ['hocket', 'device'],
    'tools': ['hocket'],
    'examples': ['hocket'],
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*("([^"]+)"|<(hocket/[^>]+)>)', re.M)


def folder_of(path):
    return next((folder for folder in LAYERS if path.startswith(folder + '/')), None)


def check(report, root, path, line, target):
    folder = folder_of(path)
    own = folder.split('/')[-1]
    if target == 'emu_kernel.h': # the emulation's, in place of CUDA's own headers
        return
    if '/' not in target:
        if folder not in ('tools', 'examples') or not os.path.exists(os.path.join(root, folder, target)):
            report.find(path, line, f'"{target}" has no folder; write "{own}/{target}"')
        return
    layer = target.split('/')[0]
    if layer != own and layer not in LAYERS[folder]:
        report.find(path, line, f'{folder} may not see {layer}/ (it may see {", ".join(LAYERS[folder])}); move what is '
                                'shared down a layer, or pass it in from above')
    elif not any(os.path.exists(os.path.join(root, base, target)) for base in ('include', 'src', '')):
        report.find(path, line, f'there is no file {target}')


def main():
    root, report = sys.argv[1], source.Report('layers (includes)')
    for path in source.files(root, ('include', 'src', 'kernels', 'tools', 'examples'), ('.c', '.h', '.cu', '.cuh')):
        text = source.code(source.read(root, path), keep_strings=True)
        if folder_of(path) is None:
            report.find(path, 1, 'its folder has no row in the layer table; add one to tests/lint/layers.py and to '
                                 'docs/architecture.md')
            continue
        for match in INCLUDE.finditer(text):
            report.looked_at += 1
            check(report, root, path, source.line_of(text, match.start()), match.group(2) or match.group(3))
    report.end()


main()
