#!/usr/bin/env python3
"""`hocket perf`, from outside, as people who benchmark use it. What could break: a wrong argument taken for another one or
refused without saying which, a run that stopped half way but ends like one that passed, a wrong element not seen, a file
for results found unwritable only when they are there, tables and JSON that disagree, bytes on the wire below what the
collective needs. Usage: test_perf.py HOCKET [unittest arguments]"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HOCKET = os.path.abspath(sys.argv.pop(1))
COLLECTIVES = ('all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'reduce', 'all_to_all', 'gather', 'scatter',
               'barrier', 'all_gather_v', 'reduce_scatter_v', 'all_to_all_v', 'send_recv')
FEW = ('all_reduce', 'reduce', 'all_gather_v') # under the sanitizers
QUICK = ('-b', '8', '-n', '2', '-w', '1')
COLUMNS = ('time', 'alg_bw', 'bus_bw', 'nwrong', 'p50', 'p99')


def hocket(*args, **env):
    return subprocess.run([HOCKET, *args], capture_output=True, text=True, timeout=50, check=False,
                          stdin=subprocess.DEVNULL, env={**os.environ, **env})


def perf(nranks, *args, **env):
    return hocket('run', '-n', str(nranks), HOCKET, 'perf', *args, **env)


def rows_of(text):
    return [line.split() for line in text.splitlines() if line.startswith('  ')]


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = directory.name

    def succeed(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ''), result.args)
        self.assertRegex(result.stdout, r'(?m)^# Out of bounds values : 0 OK$')
        return result.stdout


class WrongCalls(Case):
    def test_each_is_one_line_that_names_it(self):
        for args, *words in (
                ((), 'which collective', 'all_gather_v'), (('foo',), '"foo"', 'all_gather_v'),
                (('all_reduce', 'more'), '"more"', 'too many'), (('all_reduce', '--nope'), '--nope'),
                (('all_reduce', '-g', '0'), '-g'), (('all_reduce', '-b'), '-b', 'value'),
                (('all_reduce', '--algo'), '--algo', 'value'),
                (('all_reduce', '-b', 'abc'), '-b', '"abc"'), (('all_reduce', '--minbytes', '-5'), '--minbytes', '"-5"'),
                (('all_reduce', '-e', 'nan'), '-e', '"nan"'), (('all_reduce', '-e', 'inf'), '-e', '"inf"'),
                (('all_reduce', '-b', '8', '-e', '4'), '--maxbytes', '--minbytes'), (('all_reduce', '-e', '8'), '32M'),
                (('all_reduce', '-i', '0'), '-i', '"0"'), (('all_reduce', '-f', '1'), '-f', '"1"'),
                (('all_reduce', '-n', '0'), '-n', '"0"'), (('all_reduce', '-n', '99999999999999999999'), '-n'),
                (('all_reduce', '-w', '-1'), '-w', '"-1"'), (('all_reduce', '-z', '2'), '-z', '"2"'),
                (('all_reduce', '-a', '5'), '-a', '"5"'), (('all_reduce', '-t', '0'), '-t', '"0"'),
                (('all_reduce', '-R', '1'), '-R', '"1"'), (('all_reduce', '-c', 'x'), '-c', '"x"'),
                (('all_reduce', '-d', 'flaot'), '-d', 'flaot', 'bfloat16'), (('all_reduce', '-o', 'add'), '-o', 'add', 'lxor'),
                (('all_reduce', '-d', 'float', '-o', 'band'), 'band', 'float'), (('broadcast', '-r', '-2'), '-r', '"-2"'),
                (('broadcast', '-r', '5'), 'root 5'), (('--replay', 'gpt5'), 'gpt5', 'gpt2-124m'),
                (('all_gather', '--replay', 'gpt2-124m'), '--replay', 'all_reduce'),
                (('--replay', 'gpt2-124m', '-d', 'double'), '--replay', 'float'),
                (('--replay', 'gpt2-124m', '-o', 'max'), '--replay', 'sum'),
                (('all_reduce', '--per-tensor'), '--per-tensor', '--replay')):
            with self.subTest(args=args):
                result = hocket('perf', *args)
                self.assertEqual((result.returncode, result.stdout), (2, ''), result.stderr)
                self.assertEqual(result.stderr.count('\n'), 1, result.stderr)
                self.assertTrue(result.stderr.startswith('hocket perf: '), result.stderr)
                for word in (*words, 'hocket perf --help'):
                    self.assertIn(word, result.stderr)

    def test_names_that_the_library_does_not_know_are_refused_by_one_rank_too(self):
        for nranks in (1, 2):
            for args, word in ((('--transport', 'pigeon'), 'pigeon'), (('--transport', '^shm,^tcp'), '^tcp'),
                               (('--algo', 'rign'), 'rign'), (('--algo', ''), '""')):
                with self.subTest(nranks=nranks, args=args):
                    result = perf(nranks, 'all_reduce', *QUICK, *args)
                    self.assertEqual((result.returncode, result.stdout), (1, ''))
                    self.assertIn(word, result.stderr)

    def test_a_file_that_cannot_be_written_is_found_before_the_run(self):
        for path in (os.path.join(self.path, 'none', 'x.json'), self.path):
            with self.subTest(path=path):
                result = perf(3, 'all_reduce', *QUICK, '--json', path)
                self.assertEqual((result.returncode, result.stdout), (1, ''))
                said = [line for line in result.stderr.splitlines() if not line.startswith('hocket run:')]
                self.assertEqual(len(said), 1, 'rank 0 says it, once')
                self.assertIn(path, said[0])

    def test_too_little_memory_is_one_line_a_rank(self):
        result = perf(2, 'all_reduce', '-b', '8', '-e', '900T')
        self.assertEqual((result.returncode, result.stdout), (1, ''))
        self.assertIn('--maxbytes', result.stderr)


class Stopped(Case):
    def test_a_run_that_fails_does_not_end_like_one_that_passed(self):
        file = os.path.join(self.path, 'x.json')
        result = perf(3, 'all_reduce', *QUICK, '--algo', 'swing', '--json', file)
        self.assertEqual(result.returncode, 1)
        self.assertIn('power-of-two', result.stderr)
        self.assertNotIn('OK', result.stdout)
        self.assertIn('stopped', result.stdout)
        with open(file, encoding='utf-8') as json_file:
            self.assertEqual(json.load(json_file)['completed'], False)

    def test_a_wrong_element_is_seen(self):
        for transport in ('shm', 'tcp'):
            with self.subTest(transport=transport):
                result = perf(2, 'all_reduce', '-b', '64K', '-n', '2', '-w', '0', '-c', '2000', '--transport', transport,
                              '--algo', 'ring', HOCKET_FAULTS='seed=3,corrupt=0.01')
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertRegex(result.stderr, 'element [0-9]+ of part 0 is wrong')
                self.assertIn('FAILED', result.stdout)
                self.assertNotIn('OK', result.stdout)

    def test_what_is_not_possible_in_place_is_left_out(self):
        file = os.path.join(self.path, 'x.json')
        result = perf(3, 'all_reduce', *QUICK, '-R', '2', '--algo', 'one_shot_user', '--json', file)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count('in place is left out'), 1, result.stderr)
        self.assertEqual([len(row) for row in rows_of(result.stdout)], [12])
        with open(file, encoding='utf-8') as json_file:
            self.assertNotIn('in_place', json.load(json_file)['results'][0])


class Tables(Case):
    def check_side(self, row, side, count):
        self.assertEqual(side['nwrong'], 0)
        self.assertGreater(side['time'], 0)
        self.assertLessEqual(side['p50'], side['p99'])
        for text, name in zip(row[count:count + 6], COLUMNS):
            self.assertAlmostEqual(float(text), side[name], delta=0.005 + 1e-6 * abs(side[name]))
        self.assertGreaterEqual(float(row[count + 6]) if row[count + 6] != '-' else 1, 0.99, 'fewer bytes than necessary')

    def test_all_types_operations_and_roots_of_every_collective(self):
        for coll in FEW if os.environ.get('HOCKET_TEST_SMALL') else COLLECTIVES:
            with self.subTest(collective=coll):
                file = os.path.join(self.path, 'x.json')
                text = self.succeed(perf(3, coll, '-b', '1', '-e', '300', '-f', '299', '-d', 'all', '-o', 'all', '-r', 'all', '-n',
                                         '2', '-w', '0', '--json', file))
                with open(file, encoding='utf-8') as json_file:
                    report = json.load(json_file)
                rows = rows_of(text)
                self.assertEqual((report['collective'], report['out_of_bounds'], report['completed']), (coll, 0, True))
                self.assertEqual(len(rows), len(report['results']))
                self.assertEqual(len(rows), len({tuple(row[:5]) for row in rows}) if coll != 'barrier' else 1)
                if coll in ('all_reduce', 'reduce'):
                    per_root = 2 * (15 * 11 - 6 * 6 - 3) # sizes; all but 6 on 6 floats and arithmetic on bool
                    self.assertEqual(len(rows), per_root * (3 if coll == 'reduce' else 1))
                for row, result in zip(rows, report['results']):
                    self.assertEqual(row[:5], [f'{result["size"]:.0f}', str(result['count']), result['type'], result['redop'],
                                               str(result['root'])])
                    self.check_side(row, result['out_of_place'], 5)
                    if 'in_place' in result:
                        self.check_side(row, result['in_place'], 12)

    def test_flags_of_nccl_tests(self):
        text = self.succeed(perf(2, 'all_reduce', '--minbytes', '1K', '--maxbytes', '3K', '--stepbytes', '1K', '--iters', '3',
                                 '--warmup_iters', '0', '--datatype', 'half', '--op', 'max', '--root', '1', '--check', '2',
                                 '--blocking', '1', '--average', '3', '--nthreads', '2'))
        self.assertIn('4 ranks', text)
        self.assertEqual([row[:5] for row in rows_of(text)],
                         [[str(1024 * i), str(512 * i), 'half', 'max', '-1'] for i in (1, 2, 3)])

    def test_unchecked(self):
        result = perf(2, 'all_gather', *QUICK, '-c', '0')
        self.assertEqual(result.returncode, 0)
        self.assertNotIn('Out of bounds', result.stdout)
        self.assertEqual([row[8] for row in rows_of(result.stdout)], ['N/A'])

    def test_replay(self):
        """Against a list and a rule of buckets written down anew."""
        d = 768
        layer = [d, d, d * 3 * d, 3 * d, d * d, d, d, d, d * 4 * d, 4 * d, 4 * d * d, d]
        tensors = [50257 * d, 1024 * d] + 12 * layer + [d, d]
        buckets = [0]
        for elems in reversed(tensors):
            buckets[-1] += elems
            if 4 * buckets[-1] >= (2**20 if len(buckets) == 1 else 25 * 2**20):
                buckets.append(0)
        buckets = [elems for elems in buckets if elems > 0]
        both = ((('--replay', 'gpt2-124m'), len(buckets)), (('all_reduce', '--replay', 'gpt2-124m', '--per-tensor'), len(tensors)))
        for args, calls in both[:1] if os.environ.get('HOCKET_TEST_SMALL') else both:
            text = self.succeed(perf(2, *args, '-n', '1', '-w', '0'))
            row, = rows_of(text)
            self.assertEqual((row[0], int(row[-6]), int(row[-5])), ('gpt2-124m', calls, 124439808 * 4))


if __name__ == '__main__':
    unittest.main(verbosity=2)
