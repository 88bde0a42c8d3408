#!/usr/bin/env python3
"""Plants bugs in copies of the kernels, one at a time, and expects the tests on the emulation to find each: they would
otherwise pass for no reason. Usage: mutants.py few|all SOURCE_ROOT CXX LIBRARY... (what test_cuda_kernels is linked
from). `few` takes one of each kind of bug, some ten seconds; `ninja cuda-mutants` plants all."""
import os
import shutil
import subprocess
import sys
import tempfile

# (file, what stands there once, what is put in its place, part of the kernels to compile, orders of threads); the first
# FEW are a barrier that is missing, an access out of bounds, one that is misaligned.
FEW = 3
MUTANTS = [
    ('checksum.cu', '    __syncthreads();\n', '', 'move', ('forward', 'backward')),
    ('move.cu', 'i < c.vectors; i += w.count', 'i <= c.vectors; i += w.count', 'move', ('forward',)),
    ('fold.cuh', ' + c.head) & 15) == 0;', ') & 15) == 0;', 'move', ('forward',)),
    ('checksum.cu', 'a.bytes - last);', 'a.bytes - first);', 'move', ('forward',)),
    ('convert.cu', 'store_bytes<uint32_t>(bytes_at(a.dst, i * 4)', 'store_bytes<uint32_t>(bytes_at(a.dst, i * 2)', 'move',
     ('forward',)),
    ('device.cuh', 'memcpy(&x, p, sizeof x);', 'x = load16(p);', 'move', ('forward',)),
    ('formats.cuh', ' - 1 + ((code >> shift) & 1)', '', 'move', ('forward',)),
    ('formats.cuh', 'if (code > F::largest)\n        code = F::overflow;', '', 'move', ('forward',)),
    ('move.cu', 'row * a.src_pitch', 'row * a.dst_pitch', 'move', ('forward',)),
    ('ops.cuh', 'leave(x / factor)', 'leave(x * (1 / factor))', 'move', ('forward',)),
    ('fold.cuh', 'head + (count - tail)', 'head', 'reduce', ('forward',)),
    ('ops.cuh', '0x80808080u', '0x00808080u', 'reduce', ('forward',)),
    ('ops.cuh', '{ return Code(x ^ sign); }', '{ return x; }', 'reduce', ('forward',)),
    ('ops.cuh', 'is_max ? ~code(0) : 0', 'is_max ? 0 : 0', 'reduce', ('forward',)),
]
FLAGS = ['-std=c++17', '-O0', '-w', '-DHKT__CUDA_EMU', '-fno-strict-aliasing', '-ffp-contract=off', '-fno-exceptions',
         '-fno-rtti', '-rdynamic']


def build(root, cxx, libraries, mutant, folder):
    """Compiles and links the tests with one bug in; returns the program."""
    name, old, new, part, _ = mutant
    kernels, here = os.path.join(folder, 'kernels'), os.path.join(root, 'tests', 'cuda-emu')
    shutil.copytree(os.path.join(root, 'kernels'), kernels)
    path = os.path.join(kernels, name)
    with open(path, encoding='utf-8') as file:
        text = file.read()
    if text.count(old) != 1:
        sys.exit(f'kernels/{name}: "{old}" stands there {text.count(old)} times, not once; mend the mutant')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text.replace(old, new))
    program = os.path.join(folder, 'test')
    includes = [f'-I{path}' for path in (folder, here, f'{here}/include', f'{root}/include', f'{root}/src')]
    subprocess.run([cxx, *FLAGS, *includes, os.path.join(here, f'kernels_{part}.cc'), '-o', program, '-Wl,--start-group',
                    *libraries, '-Wl,--end-group', '-lcmocka', '-lpthread', '-ldl', '-lm'], check=True)
    return program


def is_found(program, orders):
    for order in orders:
        run = subprocess.run([program], env={**os.environ, 'EMU_ORDER': order, 'EMU_FRESH': '1', 'EMU_TIMEOUT_S': '10'}, timeout=60,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if run.returncode != 0:
            return True
    return False


def main():
    root, cxx, libraries = sys.argv[2], sys.argv[3], sys.argv[4:]
    mutants = MUTANTS[:FEW] if sys.argv[1] == 'few' else MUTANTS
    missed = 0
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix='hocket-mutant-') as folder:
            if not is_found(build(root, cxx, libraries, mutant, folder), mutant[4]):
                missed += 1
                print(f'not found: kernels/{mutant[0]}: "{mutant[1]}" replaced by "{mutant[2]}"')
    print(f'{len(mutants)} bugs planted, {len(mutants) - missed} found')
    sys.exit(1 if missed else 0)


main()
