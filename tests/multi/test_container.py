#!/usr/bin/env python3
"""The command in what a container is: a /dev/shm of 64 MB, or none, no copies between processes, one CPU, its own PIDs. What
could break: shared memory that needs /dev/shm, a large message that waits for a copy that is refused, ranks that spin on the
only CPU while the one with work waits, a loss that `hocket info` does not name, something left behind.
Usage: test_container.py HOCKET DENY_COPIES [unittest arguments]"""
import json
import os
import subprocess
import sys
import unittest

HOCKET, DENY_COPIES = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
DEADLINE_S = 100
COLLECTIVES = ('all_reduce', 'all_gather', 'broadcast', 'all_to_all')
LARGE = (4 if os.environ.get('HOCKET_TEST_SMALL') else 64) << 20
SIZES = ('-b', '8', '-e', str(LARGE), '-i', str(LARGE - 8), '-n', '1', '-w', '1') # the two sizes
PREFIXES = ('HOCKET_', 'OMPI_', 'PMI', 'SLURM_', 'MPI_', 'PMIX_', 'TORCHELASTIC_')

# Run by the first process of the container; $1: the only CPU, $2: deny_copies, $3...: the command. Afterwards, what lies in
# /dev/shm, and every process but this one.
SMALL_SHM = 'mount -t tmpfs -o size=64m,mode=1777 shm /dev/shm\n'
# A /dev of few devices, as a minimal container has.
NO_SHM = '''mount -t tmpfs -o mode=755 dev /mnt
for device in null zero full random urandom; do
    : >/mnt/$device
    mount --bind /dev/$device /mnt/$device
done
ln -s /proc/self/fd /mnt/fd
mount --move /mnt /dev
'''
RUN = '''cpu=$1 deny=$2; shift 2
code=0
taskset -c "$cpu" "$deny" "$@" || code=$?
if [ -d /dev/shm ]; then ls -A /dev/shm | sed 's/^/left behind: /'; fi
for process in /proc/[0-9]*; do
    if [ "$process" != /proc/1 ] && [ -r "$process/cmdline" ]; then
        tr '\\0' ' ' <"$process/cmdline" | sed -n 's/^..*$/left behind: &/p'
    fi
done
exit $code
'''


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}


def contain(setup, *command, **env):
    """Run a command in a container; its result."""
    wall = ['unshare', '--mount', '--pid', '--ipc', '--fork', '--kill-child', '--mount-proc']
    if os.geteuid() != 0:
        wall += ['--user', '--map-root-user']
    cpu = str(min(os.sched_getaffinity(0)))
    return subprocess.run([*wall, 'sh', '-euc', setup + RUN, 'sh', cpu, DENY_COPIES, *command],
                          env={**clean_environment(), **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=DEADLINE_S, check=False)


def setUpModule():
    for setup in (SMALL_SHM, NO_SHM):
        try:
            result = contain(setup, 'true')
        except OSError as error:
            raise unittest.SkipTest(f'no containers here: {error}') from error
        if result.returncode != 0:
            raise unittest.SkipTest(f'no containers here: {result.stderr.strip() or "deny_copies failed"}')


class Container(unittest.TestCase):
    def output(self, setup, *command, **env):
        result = contain(setup, *command, **env)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn('left behind', result.stdout)
        return result.stdout, result.stderr

    def check_collective(self, setup, coll):
        out, log = self.output(setup, HOCKET, 'run', '-n', '4', HOCKET, 'perf', coll, *SIZES, HOCKET_TRANSPORT='shm',
                               HOCKET_DEBUG='transport=info')
        self.assertIn('4 ranks', out)
        self.assertIn('Out of bounds values : 0 OK', out)
        rows = [int(line.split()[0]) for line in out.splitlines() if line.strip() and not line.startswith('#')]
        self.assertEqual(len(rows), 2, out)
        self.assertEqual(rows[1], LARGE, out)
        self.assertIn('no copies from process', log)

    def test_collectives_with_a_small_shm(self):
        for coll in COLLECTIVES:
            with self.subTest(coll=coll):
                self.check_collective(SMALL_SHM, coll)

    def test_all_reduce_without_any_shm(self):
        self.check_collective(NO_SHM, 'all_reduce')

    def test_info_says_what_is_lost(self):
        for setup, shm in ((SMALL_SHM, (True, '64 MiB')), (NO_SHM, (False, 'absent'))):
            with self.subTest(shm=shm):
                out, _ = self.output(setup, HOCKET, 'info', '--json')
                rows = {row['name']: (row['present'], row['reason']) for row in json.loads(out)['features']}
                self.assertTrue(rows['shm'][0], rows)
                self.assertFalse(rows['cores'][0], rows)
                self.assertRegex(rows['cores'][1], '^1 CPU ')
                self.assertFalse(rows['copies'][0], rows)
                for words in ('process_vm_readv', 'Operation not permitted', 'seccomp', 'copied twice'):
                    self.assertIn(words, rows['copies'][1])
                self.assertEqual(rows['/dev/shm'][0], shm[0])
                self.assertIn(shm[1], rows['/dev/shm'][1])

    def test_the_choice_knows_what_is_lost(self):
        """What is chosen here is what would be chosen with HOCKET_CMA=0."""
        why = (HOCKET, 'explain', 'all_reduce', '--why', '-n', '4', '--bytes', '64M')
        inside, _ = self.output(SMALL_SHM, *why)
        self.assertEqual(inside, self.output(SMALL_SHM, *why, HOCKET_CMA='0')[0])
        self.assertRegex(inside, r'two_shot_user .*needs buffers that peers can reach')

    def test_info_outside(self):
        """The same questions, with the answers of this machine."""
        result = subprocess.run([HOCKET, 'info', '--json'], env=clean_environment(), capture_output=True, text=True,
                                timeout=DEADLINE_S, check=True)
        rows = {row['name']: (row['present'], row['reason']) for row in json.loads(result.stdout)['features']}
        cores = int(rows['cores'][1].split()[0]) # fewer than there are where a quota says so
        self.assertEqual(rows['cores'][0], cores > 1)
        self.assertIn(cores, range(1, len(os.sched_getaffinity(0)) + 1))
        result = subprocess.run([HOCKET, 'info', '--json'], env={**clean_environment(), 'HOCKET_CMA': '0'},
                                capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        rows = {row['name']: (row['present'], row['reason']) for row in json.loads(result.stdout)['features']}
        self.assertFalse(rows['copies'][0])
        self.assertIn('HOCKET_CMA=0', rows['copies'][1])


if __name__ == '__main__':
    unittest.main()
