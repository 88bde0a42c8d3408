#!/usr/bin/env python3
"""Plants bugs in copies of the kernels, one at a time, and expects the tests on the emulation to find each: they would
otherwise pass for no reason. Usage: mutants.py few|all|order SOURCE_ROOT CXX LIBRARY... (what the tests are linked from; first
those of test_cuda_kernels and test_cuda_plan), or mutants.py host SOURCE_ROOT CC MODULE LIBRARY... for bugs in what the host does
with memory of devices (MODULE: the emulated one; first test_cuda_memory). `few` takes one of each kind of bug, some ten seconds; `ninja cuda-mutants`
plants all and, in a build with the thread sanitizer, those in the order of memory that nothing else can see."""
import os
import shutil
import subprocess
import sys
import tempfile

# (file, what stands there once, what is put in its place, part of the kernels to compile, orders of threads); the first
# FEW are an access out of bounds, one that is misaligned.
FEW = 2
MUTANTS = [
    ('copy.cuh', 'i < c.vectors; i += w.count', 'i <= c.vectors; i += w.count', 'move', ('forward',)),
    ('fold.cuh', ' + c.head) & 15) == 0;', ') & 15) == 0;', 'move', ('forward',)),
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
# Of the executor: counters, barriers, words, scratch. Most differ in time only, so all orders of threads are tried. The first
# is a barrier that is missing; others of the kind are found when a test hangs, which takes seconds.
ALL = ('forward', 'backward', 'random:7')
PLAN_MUTANTS = [
    ('plan.cuh', '        __syncthreads(); /* A */\n', '', 'plan', ALL),
    ('plan.cuh', '        store_word_sys(words + at / 4, 0);\n', '', 'plan', ALL),
    ('plan.cuh', '        __syncthreads(); /* B */\n', '', 'plan', ALL),
    ('plan.cuh', '        __syncthreads(); /* the sources before were read */\n', '', 'plan', ALL),
    ('plan.cuh', '        __syncthreads(); /* the stage is full */\n', '', 'plan', ALL),
    ('plan.cuh', 'c.frames[0] = plan_own_counts(a, c)[0];', '', 'plan', ALL),
    ('plan.cuh', 'c.frames[1] = plan_own_counts(a, c)[1];', 'c.frames[1] = 1;', 'plan', ALL),
    ('plan.cuh', 'return c.frames[protocol] - c.known[protocol] < HKT__PLAN_SLOTS;', 'return true;', 'plan', ALL),
    ('plan.cuh', 'return c.known[PLAN_SIMPLE] > c.frames[PLAN_SIMPLE];', 'return true;', 'plan', ALL),
    ('plan.cuh', '/* P6 */\n            return false;', '\n            return true;', 'plan', ALL),
    ('plan.cuh', '+ HKT__PLAN_INSTANCES <= round)\n        return false;', '+ HKT__PLAN_INSTANCES <= round)\n        return true;',
     'plan', ALL),
    ('plan.cuh', '<< 32 | unsigned(need.count)))', '<< 32 | (unsigned(need.count) - 1)))', 'plan', ALL),
    ('plan.cuh', 'load_word_block(&feeder.done) >= c.done + c.bytes', 'true', 'plan', ALL),
    ('plan.cuh', 'load_word_sys(&a.watch->abort) == 0)', 'true)', 'plan', ALL),
    ('plan_places.cuh', 'return base + (at < rest);', 'return base;', 'plan', ALL),
    ('plan_places.cuh', '    if (i >= a.firsts[queue + 1])\n        return 0;\n', '', 'plan', ALL),
    ('plan_places.cuh', 'const unsigned i = a.firsts[queue] + round,', 'const unsigned i = a.firsts[queue],', 'plan', ALL),
    ('plan_places.cuh', 'first = replica * each;', 'first = 0;', 'plan', ALL),
    ('plan.cuh', 'set |= uint64_t(w.srcs[j].buf == HKT__PLAN_IN) << j;', 'set |= uint64_t(1) << j;', 'plan', ALL),
    ('plan.cuh', 'e.kind == HKT__PLAN_RECV_REDUCE || a.is_scaled}', 'e.kind == HKT__PLAN_RECV_REDUCE}', 'plan', ALL),
    ('plan_types.cuh', 'scaled >> j & 1 ?', 'scaled ?', 'plan', ALL),
    ('plan_move.cu', 'a.messages[i];', 'a.messages[0];', 'plan', ALL),
    ('plan.cuh', 'return c.known[PLAN_SIMPLE] > c.frames[PLAN_SIMPLE];',
     'return e.kind == HKT__PLAN_WAIT || c.known[PLAN_SIMPLE] > c.frames[PLAN_SIMPLE];', 'plan', ALL),
]
# Of buffers that are registered: src/device.
HOST_MUTANTS = [
    ('cuda_registered.c', '(char *)base + offer->offset', '(char *)base'),
    ('cuda_registered.c', '    if (reg->kept == NULL)\n', '    if (reg->kept != NULL)\n'),
    ('cuda_registered.c', 'maps[peer].base = base;', 'maps[peer].base = NULL;'),
    ('cuda_registered.c', 'bytes > 0 ? module->memory_unmap(base, bytes) :', ''),
    ('cuda_registered.c', 'reg->bytes > out_memory->bytes - offset', 'reg->bytes > out_memory->bytes'),
    ('cuda_registered.c', 'out_memory->kind == HKT__CUDA_MANAGED || ', ''),
]
# The two ends of each pair of labels; on x86 the processor keeps the order by itself, so only the sanitizer can tell.
ORDER_MUTANTS = [
    ('device.cuh', '__atomic_store_n(p, x, __ATOMIC_RELEASE);', '__atomic_store_n(p, x, __ATOMIC_RELAXED);', 'plan', ('random:7',)),
    ('device.cuh', 'return __atomic_load_n(p, __ATOMIC_ACQUIRE);', 'return __atomic_load_n(p, __ATOMIC_RELAXED);', 'plan',
     ('random:7',)),
    ('plan.cuh', '        __syncthreads(); /* B */\n', '', 'plan', ('random:7',)),
]
FLAGS = ['-std=c++17', '-O0', '-w', '-DHKT__CUDA_EMU', '-fno-strict-aliasing', '-ffp-contract=off', '-fno-exceptions',
         '-fno-rtti', '-rdynamic']


def build(root, cxx, libraries, mutant, folder, is_order):
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
    tests, libraries = libraries[part == 'plan'], libraries[2:]
    flags = FLAGS + (['-fsanitize=thread', '-DHKT__PLAN_THREADS=32'] if is_order else ['-DHKT__PLAN_THREADS=64'])
    includes = [f'-I{path}' for path in (folder, here, f'{here}/include', f'{root}/include', f'{root}/src')]
    subprocess.run([cxx, *flags, *includes, os.path.join(here, f'kernels_{part}.cc'), '-o', program, '-Wl,--start-group',
                    tests, *libraries, '-Wl,--end-group', '-lcmocka', '-lpthread', '-ldl', '-lm'], check=True)
    return program


def build_host(root, cc, libraries, mutant, folder):
    """The same of the library's own code: what is compiled here is linked instead of the original."""
    name, old, new = mutant
    with open(os.path.join(root, 'src', 'device', name), encoding='utf-8') as file:
        text = file.read()
    if text.count(old) != 1:
        sys.exit(f'src/device/{name}: "{old}" stands there {text.count(old)} times, not once; mend the mutant')
    source, program = os.path.join(folder, 'mutant.c'), os.path.join(folder, 'test')
    with open(source, 'w', encoding='utf-8') as file:
        file.write(text.replace(old, new))
    subprocess.run([cc, '-std=c17', '-D_GNU_SOURCE', '-w', *(f'-I{root}/{path}' for path in ('src', 'include', '.')), source,
                    '-o', program, '-Wl,--start-group', *libraries, '-Wl,--end-group', '-lcmocka', '-lpthread', '-ldl', '-lm'],
                   check=True)
    return program


def is_found(program, orders, *args):
    for order in orders:
        run = subprocess.run([program, *args], env={**os.environ, 'EMU_ORDER': order, 'EMU_FRESH': '1', 'EMU_TIMEOUT_S': '5', 'HOCKET_TEST_SMALL': '1',
                                                  'TSAN_OPTIONS': 'halt_on_error=1'}, timeout=100,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if run.returncode != 0:
            return True
    return False


def plant_host():
    root, cc, module, libraries = sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:]
    missed = 0
    for mutant in HOST_MUTANTS:
        with tempfile.TemporaryDirectory(prefix='hocket-mutant-') as folder:
            if not is_found(build_host(root, cc, libraries, mutant, folder), ('forward',), module):
                missed += 1
                print(f'not found: src/device/{mutant[0]}: "{mutant[1]}" replaced by "{mutant[2]}"')
    print(f'{len(HOST_MUTANTS)} bugs planted, {len(HOST_MUTANTS) - missed} found')
    sys.exit(1 if missed else 0)


def main():
    if sys.argv[1] == 'host':
        plant_host()
    root, cxx, libraries = sys.argv[2], sys.argv[3], sys.argv[4:]
    mutants = {'few': MUTANTS[:FEW] + PLAN_MUTANTS[:1], 'all': MUTANTS + PLAN_MUTANTS, 'order': ORDER_MUTANTS}[sys.argv[1]]
    missed = 0
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix='hocket-mutant-') as folder:
            if not is_found(build(root, cxx, libraries, mutant, folder, sys.argv[1] == 'order'), mutant[4]):
                missed += 1
                print(f'not found: kernels/{mutant[0]}: "{mutant[1]}" replaced by "{mutant[2]}"')
    print(f'{len(mutants)} bugs planted, {len(mutants) - missed} found')
    sys.exit(1 if missed else 0)


main()
