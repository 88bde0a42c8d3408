#!/usr/bin/env python3
"""The examples do what they say. What could break: the result depends on the number of ranks, or differs from a count made
without hocket; a rank that cannot go on leaves the others waiting. Usage: test_examples.py HOCKET BYTE_PAIRS
[unittest arguments]"""
import os
import random
import subprocess
import sys
import tempfile
import unittest
from collections import Counter

HOCKET, BYTE_PAIRS = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
DEADLINE_S = 60


def run(nranks, folder):
    return subprocess.run([HOCKET, 'run', '-n', str(nranks), BYTE_PAIRS, folder], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def show(byte):
    return f"'{chr(byte)}' " if 32 < byte < 127 else f'0x{byte:02x}'


def expected(folder):
    """What byte_pairs prints, counted here."""
    counts, files = Counter(), 0
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        files += 1
        with open(path, 'rb') as file:
            data = file.read()
        counts.update(zip(data, data[1:]))
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:20]
    lines = [f'{files} files in {folder}, most frequent byte pairs:']
    lines += [f'{i:2d}. {show(pair[0])} {show(pair[1])} {count:10d}' for i, (pair, count) in enumerate(top, 1)]
    return '\n'.join(lines) + '\n'


class BytePairs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='hocket pairs ')
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, data):
        with open(os.path.join(self.folder, name), 'wb') as file:
            file.write(data)

    def check(self, nranks):
        result = run(nranks, self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, expected(self.folder), f'{nranks} ranks')

    def test_any_number_of_ranks_counts_alike(self):
        source = random.Random(1)
        for i in range(7):
            self.write(f'text{i}', b' '.join(source.choice((b'hocket', b'ring', b'tree', b'\xc3\xa4'))
                                             for _ in range(source.randrange(3000))))
        self.write('noise', source.randbytes(50000))
        self.write('empty', b'')
        self.write('one', b'x')
        os.mkdir(os.path.join(self.folder, 'folder'))
        for nranks in (1, 3, 5):
            self.check(nranks)

    def test_fewer_files_than_ranks(self):
        self.write('alone', b'abab')
        self.check(3)

    def test_no_files(self):
        self.check(2)

    def test_a_folder_that_is_not_there(self):
        for nranks in (1, 3):
            result = run(nranks, os.path.join(self.folder, 'nowhere'))
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn('nowhere: No such file or directory', result.stderr)
            self.assertEqual(result.stdout, '')

    def test_one_rank_that_cannot_read_ends_all(self):
        for i in range(5):
            self.write(f'{i}', b'abc' * 1000)
        os.symlink('/proc/self/mem', os.path.join(self.folder, '1 bad')) # a regular file whose first byte is no memory
        for nranks in (1, 3):
            result = run(nranks, self.folder)
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn('1 bad: Input/output error', result.stderr)
            self.assertEqual(result.stdout, '')


if __name__ == '__main__':
    unittest.main()
