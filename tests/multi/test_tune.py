#!/usr/bin/env python3
"""hocket tune, and what its table does. What could break: a table that cannot be read back, ranks that choose differently
because only one has the table (they would hang, or compute nonsense), a forced algorithm that is overruled, a broken table
that is used in silence, and a broken cache that keeps every program from starting. Usage: test_tune.py HOCKET [unittest
arguments]"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

HOCKET = os.path.abspath(sys.argv.pop(1))
SMALL = ('-c', 'all_reduce,barrier', '-b', '8', '-e', '4K', '-f', '512', '-r', '3')


def run(*args, **env):
    clean = {name: value for name, value in os.environ.items() if not name.startswith('HOCKET_')}
    return subprocess.run([HOCKET, *args], capture_output=True, text=True, timeout=100, check=False,
                          stdin=subprocess.DEVNULL, env={**clean, **env})


class Tune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix='hocket tune ')
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = os.path.join(cls.folder.name, 'deep', 'tune.json')
        result = run('tune', '-n', '2', *SMALL, '-o', cls.path, HOCKET_TUNE='off')
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        cls.told = result.stdout
        with open(cls.path, encoding='utf-8') as file:
            cls.written = json.load(file)

    def write(self, root, name='edited.json'):
        path = os.path.join(self.folder.name, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(root if isinstance(root, str) else json.dumps(root, indent=1))
        return path

    def edited(self, **changes):
        """The table with one choice: all_reduce of any size by `algorithm`."""
        root = json.loads(json.dumps(self.written))
        choice = {'collective': 'all_reduce', 'ranks': 2, 'in_place': False, 'registered': False, 'bytes_from': 0,
                  'bytes_to': 1000000, 'algorithm': 'ordered', 'measured_us': 1.0, **changes}
        root['tables'][0]['choices'] = [choice]
        return root

    def choices(self, rank_0_path, *options, nranks=2, **env):
        """(return code, algorithm by rank, all of stderr) of a job whose rank 0 alone knows the table."""
        script = f'if [ "$HOCKET_RANK" = 0 ]; then HOCKET_TUNE="{rank_0_path}"; else HOCKET_TUNE=off; fi; ' \
                 'export HOCKET_TUNE; exec "$@"'
        result = run('run', '-n', str(nranks), '-T', 'sh', '-c', script, 'sh', HOCKET, 'perf', 'all_reduce', '-b', '1K', '-n',
                     '2', '-w', '1', *options, HOCKET_DEBUG='plan=info', **env)
        found = re.findall(r'(?m)^\[(\d+)\].*all_reduce of 1024 bytes over \d ranks: (\w+), .* us(.*); bound ', result.stderr)
        return result.returncode, [(int(rank), algo, how) for rank, algo, how in found], result.stderr

    def test_table(self):
        self.assertEqual(self.written['format'], 'hocket tune 1')
        self.assertEqual(len(self.written['tables']), 1)
        table = self.written['tables'][0]
        self.assertEqual((table['machine']['ranks_per_host'], table['machine']['transport']), (2, 'shm'))
        self.assertTrue(all(price > 0 for price in table['prices'].values()))
        self.assertTrue({row['collective'] for row in table['choices']} <= {'all_reduce', 'barrier'})
        self.assertIn(self.path, self.told)
        self.assertRegex(self.told, rf'(?m)^\d+ cases, \d+ contested .* starts .*\n{len(table["choices"])} choices; table for 2 ranks over shm')
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ['tune.json'], 'nothing is left beside it')

    def test_choices_cover_all_sizes(self):
        ends, starts, algos = {}, {}, {}
        for row in self.written['tables'][0]['choices']:
            kind = (row['collective'], row['in_place'], row['registered'])
            self.assertEqual(row['bytes_from'], ends.get(kind, -1) + 1, row)
            self.assertGreaterEqual(row['bytes_to'], row['bytes_from'], row)
            if algos.get(kind) == row['algorithm'] and ends[kind] < 10**6: # the same choice goes on: its time is told anew
                self.assertGreater(row['bytes_from'], 2 * starts[kind], row)
            ends[kind], starts[kind], algos[kind] = row['bytes_to'], row['bytes_from'], row['algorithm']
        self.assertLessEqual(set(ends.values()), {10**15})

    def test_a_second_job_is_added_and_replaced(self):
        for count in (2, 2):
            result = run('tune', '-n', '3', '-c', 'barrier,gather', '-e', '4K', '-f', '9', '-r', '3', '-t', 'tcp', '-o',
                         self.write(self.written, 'two.json'), HOCKET_TUNE='off')
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(os.path.join(self.folder.name, 'two.json'), encoding='utf-8') as file:
                tables = json.load(file)['tables']
            self.assertEqual(len(tables), count)
            self.assertEqual(tables[0], self.written['tables'][0])

    def test_all_ranks_choose_by_rank_0s_table(self):
        path = self.write(self.edited())
        code, found, text = self.choices(path)
        self.assertEqual(code, 0, text)
        self.assertEqual({(rank, algo) for rank, algo, how in found if 'by measurement' in how},
                         {(0, 'ordered'), (1, 'ordered')}, text)

    def test_prices_of_rank_0_hold_for_all(self):
        root = self.edited(algorithm='ring', bytes_from=5, bytes_to=6) # another size
        prices = root['tables'][0]['prices']
        for name in prices: # messages cost a second, all else nothing: ordered, ring and the like are out
            prices[name] = 1e9 if name in ('message_ns', 'round_ns') else 1e-3
        code, found, text = self.choices(self.write(root))
        self.assertEqual(code, 0, text)
        out_of_place = [algo for _, algo, _ in found]
        self.assertTrue(out_of_place and set(out_of_place) <= {'recursive_doubling', 'exchange', 'one_shot'}, text)
        self.assertEqual({rank for rank, _, _ in found}, {0, 1})

    def test_force_wins(self):
        code, found, text = self.choices(self.write(self.edited()), HOCKET_ALGO='all_reduce=circulant')
        self.assertEqual(code, 0, text)
        self.assertEqual({algo for _, algo, _ in found}, {'circulant'}, text)

    def test_a_forbidden_one_is_not_chosen(self):
        code, found, text = self.choices(self.write(self.edited()), HOCKET_ALGO='all_reduce=^ordered,all_reduce=^ring')
        self.assertEqual(code, 0, text)
        self.assertTrue(found and 'ordered' not in {algo for _, algo, _ in found}, text)
        line = next(line for line in text.splitlines() if 'all_reduce of 1024' in line)
        self.assertRegex(line, r' \d+ slices, 1 lanes, predicted \S+ us; bound \d+\.\d\d; others: \w+ \d+\.\d\d, \w+ ')
        self.assertNotRegex(line, r'ordered|ring \d')

    def test_other_jobs_do_not_use_it(self):
        code, found, text = self.choices(self.write(self.edited(ranks=3)), nranks=3)
        self.assertEqual(code, 0, text)
        self.assertNotIn('by measurement', text)
        self.assertRegex(text, r'plan warn: .* 1 of 1 tables are for other machines')
        text = run('explain', 'all_reduce', '--why', '-n', '3', HOCKET_TUNE=self.write(self.edited())).stdout
        self.assertRegex(text, r'default prices\n.*edited\.json has no table for 3 ranks of this machine over shm\n')
        root = self.edited()
        root['tables'][0]['machine']['cpu'] = 'Some other CPU'
        code, found, text = self.choices(self.write(root))
        self.assertEqual((code, [how for _, _, how in found if 'measure' in how]), (0, []), text)

    def test_a_broken_table_fails_all_ranks(self):
        code, _, text = self.choices(self.write(self.edited(algorithm='rang')))
        self.assertEqual(code, 1, text)
        for rank in (0, 1):
            self.assertRegex(text, rf'(?m)^\[{rank}\].*edited\.json: tables\[0\]\.choices\[0\]\.algorithm: expected')
        code, _, text = self.choices(self.write('{"format": "hocket tune 1",\n\n  "tables": [}'))
        self.assertEqual(code, 1, text)
        self.assertRegex(text, r'edited\.json:3: expected JSON')
        code, _, text = self.choices(os.path.join(self.folder.name, 'absent.json'))
        self.assertEqual(code, 1, text)
        self.assertIn('there is no such file', text)

    def test_a_broken_cache_only_warns(self):
        cache = os.path.join(self.folder.name, 'cache')
        os.makedirs(os.path.join(cache, 'hocket'), exist_ok=True)
        self.write('nonsense', os.path.join('cache', 'hocket', 'tune.json'))
        result = run('run', '-n', '2', HOCKET, 'perf', 'barrier', '-n', '2', XDG_CACHE_HOME=cache, HOCKET_DEBUG='warn')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('measured choices are not used', result.stderr)
        result = run('run', '-n', '2', HOCKET, 'perf', 'barrier', '-n', '2', XDG_CACHE_HOME=cache, HOCKET_DEBUG='warn',
                     HOCKET_TUNE='off')
        self.assertNotIn('measured', result.stderr)

    def test_the_default_place(self):
        home = os.path.join(self.folder.name, 'home')
        result = run('tune', '-n', '2', '-c', 'barrier', '-e', '4K', '-r', '3', HOME=home, XDG_CACHE_HOME='')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(os.path.exists(os.path.join(home, '.cache', 'hocket', 'tune.json')))
        result = run('explain', 'all_reduce', '--why', '-n', '2', HOME=home, XDG_CACHE_HOME='')
        self.assertIn('prices measured by hocket tune', result.stdout)

    def test_someone_elses_file_is_not_overwritten(self):
        path = self.write('{"precious": 1}', 'mine.json')
        result = run('tune', '-n', '2', '-c', 'barrier', '-e', '4K', '-r', '3', '-o', path, HOCKET_TUNE='off')
        self.assertEqual(result.returncode, 1)
        self.assertIn('mine.json: precious', result.stderr)
        with open(path, encoding='utf-8') as file:
            self.assertEqual(file.read(), '{"precious": 1}')

    def test_why_tells(self):
        path = self.write(self.edited(measured_us=7.25))
        text = run('explain', 'all_reduce', '--why', '-n', '2', '--bytes', '1K', HOCKET_TUNE=path).stdout
        self.assertRegex(text, r'(?m)^  ordered .*chosen: the fastest of those measured near this size, 7\.25 us')
        self.assertRegex(text, r'(?m)^  bound .*GB/s.*$')
        text = run('explain', 'all_reduce', '--why', '-n', '2', '--bytes', '1K', HOCKET_TUNE='off').stdout
        self.assertIn('default prices', text)
        cores = int(re.search(r'(\d+) CPUs? that this process may use', run('info').stdout)[1])
        alone, shared = (run('explain', 'barrier', '--why', '-n', str(count * cores)).stdout for count in (1, 3))
        self.assertIn(' 1 ranks per core', alone)
        self.assertIn(' 3 ranks per core', shared)
        text = run('explain', 'all_reduce', '--why', '-n', '2', HOCKET_TUNE=path, HOCKET_ALGO='all_reduce=ring').stdout
        self.assertRegex(text, r'\n  ring .*chosen: forced \(HOCKET_ALGO\)\n')
        text = run('explain', 'all_reduce', '--why', '-n', '2', HOCKET_TUNE=path, HOCKET_ALGO='all_reduce=^ordered').stdout
        self.assertRegex(text, r'\n  ordered +- +forbidden \(HOCKET_ALGO\)\n')
        for wrong, word in (('all_reduce=^rang', 'there are: ring'), ('all_reduce=ring,all_reduce=swing', 'both ring and swing'),
                            ('ring', 'neither'), ('rang=ring', 'no collective "rang"')):
            result = run('explain', 'all_reduce', '--why', '-n', '2', HOCKET_ALGO=wrong)
            self.assertEqual((result.returncode, result.stdout), (2, ''), wrong)
            self.assertIn(word, result.stderr)
        why = json.loads(run('explain', 'all_reduce', '--why', '-n', '2', '--json', HOCKET_TUNE=path).stdout)
        self.assertTrue(why['tuned'] and why['bound_us'] > 0)

    def test_check(self):
        path = os.path.join(self.folder.name, 'check.json')
        result = run('tune', '-n', '2', '--check', *SMALL, '--json', path, HOCKET_TUNE=self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r'(?m)^2 ranks over shm, by measured choices: \d+ cases; regret mean ')
        with open(path, encoding='utf-8') as file:
            rows = json.load(file)
        self.assertTrue(all(row['measured_us'] > 0 for row in rows))
        for row in rows:
            self.assertAlmostEqual(sum(row['terms_us']), row['predicted_us'], delta=1e-6 + row['predicted_us'] * 1e-6)

    def test_a_table_that_cannot_be_written_is_found_before_measuring(self):
        for path in (self.folder.name, os.path.join(self.path, 'below a file.json')):
            with self.subTest(path=path):
                result = run('tune', '-n', '2', *SMALL, '-o', path)
                self.assertEqual((result.returncode, result.stdout), (1, ''))
                said = [line for line in result.stderr.splitlines() if not line.startswith('hocket run:')]
                self.assertEqual(len(said), 1, 'rank 0 says it, once')
                self.assertIn(path, said[0])
        result = run('tune', '-n', '2', '--check', *SMALL, '--json', self.folder.name)
        self.assertEqual((result.returncode, result.stdout), (1, ''))
        self.assertIn('Is a directory', result.stderr)

    def test_a_file_that_nobody_could_read_is_not_written(self):
        """It holds a table of another machine, and with this one's would be larger than hocket reads."""
        root = json.loads(json.dumps(self.written))
        root['tables'][0]['machine']['cpu'] = 'x'
        path = self.write(root)
        root['tables'][0]['machine']['cpu'] *= (8 << 20) - os.path.getsize(path) - 1000
        before = os.path.getsize(self.write(root))
        result = run('tune', '-n', '2', '-c', 'barrier', '-r', '3', '-o', path, HOCKET_TUNE='off')
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(f'{path} would have more than {8 << 20} bytes', result.stderr)
        self.assertEqual(os.path.getsize(path), before)

    def test_wrong_calls(self):
        for args, word in ((('-n', '1'), '-n'), (('--rounds', '2'), '-r'), (('-c', 'all_rdeuce'), 'all_rdeuce'),
                           (('more',), 'more'), (('--colour',), '--colour'), (('-b', '1M', '-e', '1K'), 'less'),
                           (('-o',), 'needs a value'), (('-c', ''), '-c'), (('-c', 'all_gather_v'), 'all_gather_v'),
                           (('-j', 'x'), '--check'), (('-C', '-o', 'x'), '--output')):
            result = run('tune', *args)
            self.assertEqual((result.returncode, result.stdout), (2, ''), args)
            self.assertIn(word, result.stderr)


if __name__ == '__main__':
    unittest.main(verbosity=2)
