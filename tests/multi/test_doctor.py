#!/usr/bin/env python3
"""hocket doctor. What could break: a limit that is not seen, a line without a mend, a verdict or exit code that does not fit
the lines, and ranks that do not measure each other. Machines are faked as trees of /proc, /sys and /dev.
Usage: test_doctor.py HOCKET [unittest arguments]"""
import json
import os
import resource
import subprocess
import sys
import tempfile
import unittest

HOCKET = os.path.abspath(sys.argv.pop(1))
LEVELS = ('ok', 'warn', 'fail')


def limit(kind, value):
    def apply():
        resource.setrlimit(kind, (value, value))
    return apply


class Case(unittest.TestCase):
    def doctor(self, *args, before=None, launcher=()):
        """The JSON, after what holds for every answer has been checked."""
        result = subprocess.run([*launcher, HOCKET, 'doctor', '--json', *args], capture_output=True, text=True, timeout=100,
                                check=False, stdin=subprocess.DEVNULL, preexec_fn=before)
        answer = json.loads(result.stdout)
        levels = [line['level'] for host in answer['hosts'] for line in host['findings']]
        self.assertEqual(answer['worst'], max(levels, key=LEVELS.index))
        self.assertEqual(result.returncode, 1 if answer['worst'] == 'fail' else 0, result.stderr)
        return answer

    def lines(self, *args, **options):
        """check -> its lines."""
        found = {}
        for line in self.doctor(*args, **options)['hosts'][0]['findings']:
            found.setdefault(line['check'], []).append(line)
        return found

    def fake(self, files):
        """A machine that has just these files."""
        root = tempfile.TemporaryDirectory(prefix='hocket-doctor-')
        self.addCleanup(root.cleanup)
        for path, text in files.items():
            full = root.name + path
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, 'w', encoding='utf-8') as file:
                file.write(text + '\n')
        return root.name

    def one(self, lines, check, level, word):
        self.assertEqual([line['level'] for line in lines[check]], [level], lines[check])
        self.assertIn(word, lines[check][0]['figure'])
        if level != 'ok':
            self.assertNotEqual(lines[check][0]['mend'], '')


class Machine(Case):
    def test_this_machine(self):
        lines = self.lines()
        self.assertGreaterEqual(set(lines), {'memlock', 'open files', '/dev/shm', 'cores', 'copies', 'interface'})

    def test_open_files(self):
        self.one(self.lines(before=limit(resource.RLIMIT_NOFILE, 200)), 'open files', 'fail', '200')
        self.one(self.lines(before=limit(resource.RLIMIT_NOFILE, 512)), 'open files', 'warn', '512')

    def test_memlock_matters_where_there_is_rdma(self):
        before = limit(resource.RLIMIT_MEMLOCK, 65536)
        self.one(self.lines('--root', self.fake({'/dev/shm/x': ''}), before=before), 'memlock', 'ok', '64 KiB')
        root = self.fake({'/sys/class/infiniband/a0/ports/1/state': '4: ACTIVE'})
        self.one(self.lines('--root', root, before=before), 'memlock', 'fail', '64 KiB')

    def test_cgroup_limits_of_it_and_above_it(self):
        lines = self.lines('--root', self.fake({
            '/proc/self/cgroup': '0::/outer/inner', '/sys/fs/cgroup/outer/inner/cpu.max': 'max 100000',
            '/sys/fs/cgroup/outer/cpu.max': '50000 100000', '/sys/fs/cgroup/outer/inner/memory.max': '536870912',
            '/sys/fs/cgroup/outer/memory.max': '8589934592', '/sys/fs/cgroup/outer/inner/pids.max': 'max'}))
        self.one(lines, 'cgroup cpu', 'warn', '0.50 cores')
        self.one(lines, 'cgroup memory', 'warn', '512 MiB')
        self.assertNotIn('cgroup pids', lines)
        lines = self.lines('--root', self.fake({
            '/proc/self/cgroup': '1:cpu,cpuacct:/x', '/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us': '150000',
            '/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us': '100000'}))
        self.one(lines, 'cgroup cpu', 'warn' if os.sysconf('SC_NPROCESSORS_ONLN') > 1 else 'ok', '1.50 cores')

    def test_interfaces(self):
        lines = self.lines('--root', self.fake({
            '/sys/class/net/lo/operstate': 'unknown', '/sys/class/net/e0/operstate': 'up', '/sys/class/net/e0/mtu': '1500',
            '/sys/class/net/e0/speed': '25000', '/sys/class/net/e1/operstate': 'down'}))
        self.one(lines, 'interface', 'warn', 'e0: up, MTU 1500, 25000 Mbit/s')
        self.one(self.lines('--root', self.fake({'/sys/class/net/lo/operstate': 'unknown'})), 'interface', 'warn', 'none is up')

    def test_rdma_ports_gids_and_access(self):
        port, none = '/sys/class/infiniband/r0/ports/1', '0000:' * 7 + '0000'
        files = {port + '/state': '1: DOWN', port + '/rate': '25 Gb/sec (1X EDR)', port + '/link_layer': 'Ethernet',
                 port + '/gids/0': 'fe80:' + none[5:], port + '/gids/1': none, port + '/gid_attrs/types/0': 'RoCE v2'}
        lines = self.lines('--root', self.fake(files))
        self.one(lines, 'RDMA port', 'warn', 'r0:1: Ethernet, 1: DOWN')
        self.one(lines, 'GIDs', 'warn', 'r0:1: 1, of which 0')
        self.one(lines, 'RDMA access', 'fail', 'no /dev/infiniband')
        files |= {port + '/state': '4: ACTIVE', port + '/gids/1': '0000:0000:0000:0000:0000:ffff:c000:0201',
                  port + '/gid_attrs/types/1': 'RoCE v2', '/dev/infiniband/uverbs0': ''}
        lines = self.lines('--root', self.fake(files))
        self.one(lines, 'RDMA port', 'ok', 'ACTIVE')
        self.one(lines, 'GIDs', 'ok', '2, of which 1')
        self.assertNotIn('RDMA access', lines)


class Job(Case):
    def test_ranks_measure_each_other(self):
        answer = self.doctor(launcher=[HOCKET, 'run', '-n', '3'])
        self.assertEqual(answer['nodes'], ['rank 0', 'rank 1', 'rank 2'])
        for table in ('gbytes_per_s', 'latency_us'):
            for i, row in enumerate(answer[table]):
                self.assertEqual([value > 0 for value in row], [i != k for k in range(3)], table)
        self.assertIn('all 6 reached', str(answer['hosts'][0]['findings']))
        self.assertEqual(len(answer['hosts']), 1)

    def test_wrong_use(self):
        for args in (['--roof'], ['x'], ['--root']):
            result = subprocess.run([HOCKET, 'doctor', *args], capture_output=True, text=True, timeout=100, check=False)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count('\n')), (2, '', 1), args)


if __name__ == '__main__':
    unittest.main(verbosity=2)
