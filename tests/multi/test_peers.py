#!/usr/bin/env python3
"""The comparison with other libraries (benchmarks/peers/run), with hocket alone and tiny sizes. What could break: a
driver that does not build, a conversation that hangs, wrong results that pass, output that does not parse, processes
or shared memory left behind. Usage: test_peers.py HOCKET SOURCE_ROOT"""
import argparse
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom

HOCKET, ROOT = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
PEERS = os.path.join(ROOT, 'benchmarks', 'peers')
RUN = os.path.join(PEERS, 'run')
SMALL = ['--quick', '--only', 'hocket', '--no-build', '--build', os.path.dirname(HOCKET), '--ranks', '2', '--rounds',
         '2', '--budget-ms', '2']
SECONDS = 100
# Runs are of one version of hocket, which is then nobody's commit: what is committed meanwhile would make it another one.
ENVIRONMENT = {**os.environ, 'GIT_DIR': os.devnull}

sys.dont_write_bytecode = True
sys.path.insert(0, PEERS)
import sets # noqa: E402 (after the path)

# Ranks that meet nobody and send nothing: what they call a result is what the buffer held before.
WRONG_DRIVER = r'''
#include <stdlib.h>
#include "bench_loop.h"
static int call(void *context, const struct bench_call *call) { (void)context; (void)call; return 0; }
int main(int argc, char **argv)
{
    const struct bench_driver driver = { .rank = (int)strtol(getenv("RANK"), NULL, 10), .nranks = 2, .call = call };
    return bench_serve(&driver, argc, argv);
}
'''
FAILING_CALL = ('return 0; }', 'return -1; }')


def run(*arguments):
    return subprocess.run([sys.executable, RUN, *arguments], text=True, capture_output=True, timeout=SECONDS,
                          env=ENVIRONMENT, check=False)


def shared_directories():
    return set(glob.glob('/dev/shm/hocket-peers-*'))


def processes_that_mention(text):
    found = []
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            with open(path, 'rb') as file:
                if text.encode() in file.read():
                    found.append(int(path.split('/')[2]))
        except OSError:
            pass # ended meanwhile
    return found


class Peers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.before = shared_directories()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_all_collectives(self):
        done = run(*SMALL, '--twice', '--sizes', '8,1M', '--out', self.path('out'))
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path('out.json'), encoding='utf-8') as file:
            result = json.load(file)
        self.assertEqual(len(result['cases']), 5 * 2 + 1)
        for case in result['cases']:
            self.assertEqual(case['wrong'], 0, case)
            # A set that other work on the machine makes 20 times as slow as the other gets no more turns, but never both.
            self.assertEqual(max(len(turns) for turns in case['rounds'].values()), 2, case)
            self.assertGreater(min(case['median_us'].values()), 0)
            self.assertGreater(case['bound_us'], 0)
            self.assertEqual(len(case['bound_rounds']), 2 if case['bytes'] == 1 << 20 else 0, case)
        panels = xml.dom.minidom.parse(self.path('out.svg')).getElementsByTagName('path')
        self.assertGreater(len(panels), 5 * 3)
        with open(self.path('out.md'), encoding='utf-8') as file:
            page = file.read()
        self.assertIn(done.stdout[:-1], page)
        self.assertIn('(out.svg)', page)
        self.assertIn('wrong elements: 0', page)
        self.assertEqual(shared_directories(), self.before)

    def test_wrong_usage(self):
        for arguments, words in ((['--sizes', '3'], 'is no size'), (['--ranks', '1'], 'no number of ranks'),
                                 (['--colls', 'sum'], 'no collective'), (['--only', 'nobody'], 'no such library'),
                                 (['--mpi', 'x'], 'NAME=PREFIX'), (['--out', '/nowhere/x'], 'no directory'),
                                 (['--ranks', '64', '--sizes', '1G'], 'use smaller --sizes')):
            done = run(*SMALL, *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
        done = run('--only', 'hocket', '--no-build', '--build', self.folder.name)
        self.assertEqual(done.returncode, 1)
        self.assertIn('./quickstart', done.stderr)

    def test_absent_library_is_reported(self):
        done = run(*SMALL[:2], 'hocket,ghost', *SMALL[3:], '--mpi', f'ghost={self.folder.name}', '--colls', 'barrier',
                   '--out', self.path('out'))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('ghost is left out: no ', done.stderr)
        self.assertIn('left out: ghost', done.stdout)

    def test_termination_leaves_nothing(self):
        with subprocess.Popen([sys.executable, RUN, *SMALL, '--rounds', '1000', '--out', self.path('out')], text=True,
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + SECONDS
            while not (fresh := shared_directories() - self.before) or not processes_that_mention(min(fresh)):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=SECONDS)
            self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(shared_directories(), self.before)
        while processes_that_mention(min(fresh)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_parts_are_put_together(self):
        arguments = [*SMALL, '--sizes', '8', '--colls', 'all_reduce,broadcast', '--out', self.path('out')]
        for minutes, code, count in (('0', 3, 0), ('1', 0, 2)):
            done = run(*arguments, '--resume', '--minutes', minutes)
            self.assertEqual(done.returncode, code, done.stderr)
            with open(self.path('out.json'), encoding='utf-8') as file:
                self.assertEqual(len(json.load(file)['cases']), count)
        self.assertNotIn('ranks all_reduce', run(*arguments, '--resume').stderr) # measured already
        done = run(*arguments, '--resume', '--rounds', '3')
        self.assertEqual(done.returncode, 2)
        self.assertIn('differs in "parts"', done.stderr)

    def test_regret_is_terminated(self):
        with subprocess.Popen([sys.executable, os.path.join(ROOT, 'benchmarks', 'regret'), '--hocket', HOCKET, '--ranks', '2',
                               '--transports', 'shm'], env={**os.environ, 'TMPDIR': self.folder.name},
                              stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + SECONDS
            while not (folders := glob.glob(self.path('hocket regret *'))) or not processes_that_mention(min(folders)):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(SECONDS), 128 + signal.SIGTERM)
        self.assertEqual(glob.glob(self.path('hocket regret *')), [])
        while processes_that_mention(min(folders)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def driver(self, source):
        with open(self.path('driver.c'), 'w', encoding='utf-8') as file:
            file.write(source)
        subprocess.run(['cc', '-D_GNU_SOURCE', '-I', PEERS, os.path.join(PEERS, 'bench_loop.c'), self.path('driver.c'),
                        '-o', self.path('driver')], check=True)
        return {'key': 'test', 'program': self.path('driver'), 'env': {},
                'launch': lambda ranks, crowded: [HOCKET, 'run', '-n', str(ranks)]}

    def turns(self, library, colls):
        """(what a driver says of a turn of each collective, the reason of its failure)"""
        options = argparse.Namespace(pin=True, keep_malloc=True)
        part = {'ranks': 2, 'buffer_bytes': 8192, 'samples_min': 5, 'samples_max': 5, 'budget_ms': 1}
        one = sets.Set(library, False, part, options, self.folder.name)
        one.await_ready()
        said = [one.turn(coll, 64, part) for coll in colls]
        sets.end_all([one])
        return said, one.failure

    def test_wrong_results_are_counted(self):
        colls = ['all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'all_to_all']
        said, failure = self.turns(self.driver(WRONG_DRIVER), colls)
        self.assertIsNone(failure)
        for coll, figures in zip(colls, said):
            self.assertGreater(figures['wrong'], 0, coll)

    def test_failed_call_ends_the_set_with_a_reason(self):
        said, failure = self.turns(self.driver(WRONG_DRIVER.replace(*FAILING_CALL)), ['all_reduce', 'broadcast'])
        self.assertEqual(said, [None, None])
        self.assertIn('all_reduce of 64 elements failed', failure)


unittest.main()
