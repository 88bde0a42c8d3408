"""The hocket command, called as a user calls it: the base of the tests that look at it from outside."""
import os
import subprocess
import sys
import unittest

HOCKET = os.path.abspath(sys.argv.pop(1))  # each such test's first argument


def hocket(*args, cpus=None, **env):
    """Runs it with `env` added to the environment, on `cpus` alone where they are given."""
    limit = (lambda: os.sched_setaffinity(0, cpus)) if cpus else None
    return subprocess.run([HOCKET, *args], capture_output=True, text=True, timeout=100, check=False, preexec_fn=limit,
                          stdin=subprocess.DEVNULL, env={**os.environ, **env})


class Case(unittest.TestCase):
    def output(self, *args, **kwargs):
        result = hocket(*args, **kwargs)
        self.assertEqual((result.returncode, result.stderr), (0, ''), args)
        return result.stdout

    def assert_usage(self, *args, word):
        result = hocket(*args)
        self.assertEqual((result.returncode, result.stdout), (2, ''), args)
        self.assertIn(word, result.stderr)
        self.assertEqual(result.stderr.count('\n'), 1, f'one clear line: {result.stderr}')
