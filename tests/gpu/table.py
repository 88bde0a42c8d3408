#!/usr/bin/env python3
"""How fast collectives are on devices, by `hocket perf`, whose results are checked: what a small all-reduce takes, and GB/s of
every collective with 2, 4 and 8 ranks of one device; then, where there are more devices, with a rank on each. What can break:
a wrong result, a call that was meant to run on the device and went through memory of the host. No figure is judged.

Usage: table.py HOCKET [--seconds N] [--dry]     N: when they are over, what was not measured is named (default 145);
                                                 --dry: small and few, to see that it works. HOCKET_CUDA names the module."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

SIZES = ('16K', '1M', '64M')
DRY_SIZES = ('256', '4K')
COLLECTIVES = ('all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'reduce', 'all_to_all', 'send_recv', 'gather', 'scatter',
               'all_gather_v', 'reduce_scatter_v', 'all_to_all_v')
FORCED = (('all_reduce', 'one_shot'), ('all_reduce', 'two_shot'), ('all_reduce', 'ring'), ('all_reduce', 'double_tree'),
          ('all_reduce', 'circulant'), ('reduce_scatter', 'direct'), ('reduce_scatter', 'ring'), ('all_gather', 'direct'),
          ('all_gather', 'ring'), ('broadcast', 'direct'), ('broadcast', 'chain'))
ONE_DEVICE = {'CUDA_VISIBLE_DEVICES': os.environ.get('CUDA_VISIBLE_DEVICES', '0').split(',')[0], 'EMU_DEVICES': '1'}


class Table:
    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.seconds
        self.problems, self.left_out = [], []

    def perf(self, coll, nranks, *args, env=ONE_DEVICE, on_device=True):
        """The results of `hocket perf`; None: it failed or there was no time."""
        what = ' '.join((coll, f'-g {nranks}', *args))
        left = self.end - time.monotonic()
        if left < 1:
            self.left_out.append(what)
            return None
        with tempfile.NamedTemporaryFile(suffix='.json') as file:
            command = [self.options.hocket, 'perf', coll, '-g', str(nranks), *args, '--json', file.name]
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False, stdin=subprocess.DEVNULL,
                                     env={**os.environ, 'HOCKET_DEBUG': 'plan=info', **env})
            except subprocess.TimeoutExpired:
                self.left_out.append(what)
                return None
            if run.returncode != 0:
                self.problems.append(f'{what}: exit code {run.returncode}: {run.stderr.strip()[-500:]}')
                return None
            report = json.load(file)
        if report['out_of_bounds'] != 0 or not report['completed']:
            self.problems.append(f'{what}: {report["out_of_bounds"]} wrong elements')
        host = [line for line in (run.stdout + run.stderr).splitlines() if 'through memory of the host' in line]
        if (host != []) == on_device:
            self.problems.append(f'{what}: ' + (host[0] if host else 'it should have gone through memory of the host'))
        return [result['out_of_place'] for result in report['results']]

    def row(self, nranks, coll, args=(), note='', **how):
        sizes = DRY_SIZES if self.options.dry else SIZES
        few = ('-n', '2', '-w', '1') if self.options.dry else ('-n', '10', '-w', '3')
        results = self.perf(coll, nranks, '-b', sizes[0], '-e', sizes[-1], '-f', '16' if self.options.dry else '64', *few, *args, **how)
        cells = [f'{result["bus_bw"]:10.2f}' for result in results] if results else [f'{"-":>10}'] * len(sizes)
        print(f'{nranks:5} {coll:16} {note:20}', *cells, flush=True)

    def head(self, title):
        print(f'\n{title}\n{"ranks":>5} {"collective":16} {"algorithm":20}',
              *(f'{size:>10}' for size in (DRY_SIZES if self.options.dry else SIZES)))

    def small(self, ranks):
        print('\nall-reduce of 8 bytes, microseconds: p50 and p99 of a call alone, with waiting for its stream; calls one after '
              f'another\n{"ranks":>5} {"p50":>10} {"p99":>10} {"in a row":>10}')
        for nranks in ranks:
            times = ('-n', '20', '-w', '2') if self.options.dry else ('-n', '2000', '-w', '200')
            alone = self.perf('all_reduce', nranks, '-b', '8', '-z', '1', *times)
            row = self.perf('all_reduce', nranks, '-b', '8', *times)
            if alone and row:
                print(f'{nranks:5} {alone[0]["p50"]:10.2f} {alone[0]["p99"]:10.2f} {row[0]["time"]:10.2f}', flush=True)

    def on_one_device(self, ranks):
        self.head('GB/s (busbw) out of place, float, ranks of one device, by bytes')
        for coll in COLLECTIVES:
            for nranks in ranks:
                self.row(nranks, coll)
        for coll, algo in FORCED:
            for nranks in ranks:
                self.row(nranks, coll, ('--algo', algo), algo)
        host = {**ONE_DEVICE, 'HOCKET_CUDA_DIRECT': '0'}
        self.row(2, 'all_reduce', note='(by the host)', env=host, on_device=False)
        self.row(2, 'all_reduce', ('--transport', 'cuda_p2p,tcp'), '(by cuda_p2p)', env=host, on_device=False)

    def on_several(self):
        devices = device_count(self.options.dry)
        if devices < 2:
            return
        self.head(f'the same, with a rank on each of {devices} devices')
        for coll in COLLECTIVES[:1 if self.options.dry else None]:
            self.row(devices, coll, env={})


def device_count(dry):
    if dry:
        return 2 # as many as the emulation has
    if 'CUDA_VISIBLE_DEVICES' in os.environ:
        return len(os.environ['CUDA_VISIBLE_DEVICES'].split(','))
    try:
        run = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return len(run.stdout.splitlines())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('hocket')
    parser.add_argument('--seconds', type=float, default=145)
    parser.add_argument('--dry', action='store_true')
    table = Table(parser.parse_args())
    ranks = (2,) if table.options.dry else (2, 4, 8)
    table.small(ranks)
    table.on_one_device(ranks)
    table.on_several()
    for what in table.left_out:
        print(f'not measured, for the time was over: {what}')
    for problem in table.problems:
        print(f'WRONG: {problem}')
    return 1 if table.problems else 0


sys.exit(main())
