#!/usr/bin/env python3
"""The same programs under every launcher: ranks get rank, size and meeting place from the variables that the launcher
sets. What could break: a variable misread, two jobs on one host meeting each other, ranks of one launcher waiting for an
address that it does not give. torchrun, srun and Hydra are played by setting what they set; mpirun and srun are also run
for real where they are installed. Usage: test_launchers.py HOCKET HELLO [unittest arguments]"""
import os
import shutil
import socket
import subprocess
import sys
import unittest

HOCKET, HELLO = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
DEADLINE_S = 100
PERF = ('-b', '8', '-e', '32K', '-f', '64', '-n', '5', '-w', '1')
PREFIXES = ('HOCKET_', 'OMPI_', 'PMI', 'SLURM_', 'MPI_', 'PMIX_', 'TORCHELASTIC_')
NAMES = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')


def clean_environment():
    return {name: value for name, value in os.environ.items()
            if name == 'SLURM_CONF' or (not name.startswith(PREFIXES) and name not in NAMES)}


KEPT = []


def free_port():
    """A port that the kernel gives to nobody else while this test runs: a socket keeps it. Both that and hocket's listener say
    SO_REUSEADDR, so the listener may come."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(('127.0.0.1', 0))
    KEPT.append(keeper)
    return keeper.getsockname()[1]


def torchrun(rank, size, key):
    return {'RANK': rank, 'WORLD_SIZE': size, 'LOCAL_RANK': rank, 'LOCAL_WORLD_SIZE': size, 'MASTER_ADDR': '127.0.0.1',
            'MASTER_PORT': key, 'TORCHELASTIC_RUN_ID': f'run {key}'}


def plain_torch(rank, size, key):
    return {'RANK': rank, 'WORLD_SIZE': size, 'MASTER_ADDR': 'localhost', 'MASTER_PORT': key}


def srun(rank, size, key):
    return {'SLURM_PROCID': rank, 'SLURM_NTASKS': size, 'SLURM_STEP_NUM_TASKS': size, 'SLURM_LOCALID': rank,
            'SLURM_JOB_ID': key, 'SLURM_STEP_ID': 0, 'SLURM_JOB_NUM_NODES': 1, 'SLURM_STEP_NUM_NODES': 1,
            'SLURM_JOB_NODELIST': socket.gethostname(), 'SLURM_STEP_NODELIST': socket.gethostname()}


def srun_pmi2(rank, size, key):
    return {'PMI_RANK': rank, 'PMI_SIZE': size, **srun(rank, size, key)}


def open_mpi(rank, size, key):
    return {'OMPI_COMM_WORLD_RANK': rank, 'OMPI_COMM_WORLD_SIZE': size, 'OMPI_COMM_WORLD_LOCAL_RANK': rank,
            'OMPI_COMM_WORLD_LOCAL_SIZE': size, 'PMIX_NAMESPACE': f'{key}1', 'OMPI_MCA_ess_base_jobid': key}


def hydra(rank, size, key):
    return {'PMI_RANK': rank, 'PMI_SIZE': size, 'MPI_LOCALRANKID': rank, 'MPI_LOCALNRANKS': size,
            'PMI_PORT': f'{socket.gethostname()}:{key}'}


def hocket_run(rank, size, key):
    return {'HOCKET_RANK': rank, 'HOCKET_SIZE': size, 'HOCKET_ROOT': f'127.0.0.1:{key}'}


LAUNCHERS = (torchrun, plain_torch, srun, srun_pmi2, open_mpi, hydra, hocket_run)


def launch(launcher, size, command, key=None, **more):
    """Start all ranks as the launcher would; (stderr, stdout, exit code) of each."""
    key = key or free_port()
    ranks = [subprocess.Popen(command, env={**clean_environment(), **more,
                                            **{name: str(value) for name, value in launcher(rank, size, key).items()}},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(size)]
    try:
        outputs = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
        return [(err, out, rank.returncode) for (out, err), rank in zip(outputs, ranks)]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()


def run(*command, **env):
    return subprocess.run(command, env={**clean_environment(), **env}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=DEADLINE_S, check=False)


class Case(unittest.TestCase):
    def check_hello(self, text, size):
        want = [f'rank {rank} of {size}: ' + ' '.join(str(size * (size - 1) // 2 + i * size) for i in range(4))
                for rank in range(size)]
        self.assertEqual(sorted(line for line in text.splitlines() if line.startswith('rank ')), sorted(want), text)

    def check_perf(self, text, size):
        self.assertIn(f'{size} ranks', text)
        self.assertIn('Out of bounds values : 0 OK', text)
        rows = [line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith('#')]
        self.assertEqual(rows, ['8', '512', '32768'], text)


class Played(Case):
    def test_hello_under_every_launcher(self):
        for launcher in LAUNCHERS:
            for size in (1, 2, 4):
                with self.subTest(launcher=launcher.__name__, size=size):
                    results = launch(launcher, size, [HELLO])
                    for err, _, code in results:
                        self.assertEqual(code, 0, err)
                    self.check_hello(''.join(out for _, out, _ in results), size)

    def test_perf_under_every_launcher(self):
        for launcher in LAUNCHERS:
            with self.subTest(launcher=launcher.__name__):
                results = launch(launcher, 3, [HOCKET, 'perf', 'all_reduce', *PERF])
                for err, _, code in results:
                    self.assertEqual(code, 0, err)
                self.check_perf(results[0][1], 3)

    def test_two_jobs_at_once_do_not_meet(self):
        for launcher in (srun, open_mpi, hydra):
            with self.subTest(launcher=launcher.__name__):
                first, second = free_port(), free_port()
                # The second job starts while the first is under way: one of its ranks is late.
                early = subprocess.Popen([HELLO], env={**clean_environment(), **{
                    name: str(value) for name, value in launcher(1, 2, first).items()}}, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, text=True)
                try:
                    for err, _, code in launch(launcher, 3, [HELLO], second):
                        self.assertEqual(code, 0, err)
                    late = run(HELLO, **{name: str(value) for name, value in launcher(0, 2, first).items()})
                    self.assertEqual(late.returncode, 0, late.stderr)
                    self.check_hello(late.stdout + early.communicate(timeout=DEADLINE_S)[0], 2)
                finally:
                    if early.poll() is None:
                        early.kill()
                        early.wait()
                    early.stdout.close()

    def test_what_is_missing_is_named(self):
        for env, words in (({'RANK': '0', 'WORLD_SIZE': '2'}, ('MASTER_ADDR',)),
                           ({'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1'}, ('MASTER_PORT',)),
                           ({'HOCKET_RANK': '0'}, ('HOCKET_SIZE',)),
                           ({'HOCKET_RANK': '0', 'HOCKET_SIZE': '2'}, ('HOCKET_ROOT',)),
                           ({'HOCKET_RANK': '7', 'HOCKET_SIZE': '2', 'HOCKET_ROOT': '127.0.0.1:1'}, ('HOCKET_RANK', '7')),
                           ({'HOCKET_RANK': 'x', 'HOCKET_SIZE': '2', 'HOCKET_ROOT': '127.0.0.1:1'}, ('HOCKET_RANK', 'x')),
                           ({'HOCKET_RANK': '0', 'HOCKET_SIZE': '2', 'HOCKET_ROOT': 'nowhere'}, ('HOCKET_ROOT', 'nowhere')),
                           ({'HOCKET_SLICE_BYTES': 'many'}, ('HOCKET_SLICE_BYTES', 'many')),
                           ({'HOCKET_ALGO': 'all_reduce=rign'}, ('rign', 'ring'))):
            with self.subTest(**env):
                result = run(HELLO, **env)
                self.assertEqual(result.returncode, 1, result.stdout)
                for word in words:
                    self.assertIn(word, result.stderr)
                self.assertLessEqual(len(result.stderr.splitlines()), 1, 'one line, please')

    def test_transports_that_cannot_be_are_named(self):
        for transport, words in (('pigeon', ('pigeon', 'shm', 'tcp')), ('thread', ('HOCKET_TRANSPORT', 'thread'))):
            with self.subTest(transport=transport):
                for err, _, code in launch(hocket_run, 2, [HELLO], HOCKET_TRANSPORT=transport):
                    self.assertEqual(code, 1, err)
                    for word in words:
                        self.assertIn(word, err)

    def test_a_stranger_is_refused(self):
        """Rank 1 of another job, with another token, at our address: it is told, and we go on without it."""
        port = free_port()
        ours = {'HOCKET_SIZE': '2', 'HOCKET_ROOT': f'127.0.0.1:{port}', 'HOCKET_TOKEN': 'ours'}
        root = subprocess.Popen([HELLO], env={**clean_environment(), **ours, 'HOCKET_RANK': '0'},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            stranger = run(HELLO, **{**ours, 'HOCKET_RANK': '1', 'HOCKET_TOKEN': 'theirs'})
            self.assertEqual(stranger.returncode, 1)
            self.assertIn('HKT_ERR_AUTH', stranger.stderr)
            self.assertIn('HOCKET_TOKEN', stranger.stderr)
            friend = run(HELLO, **{**ours, 'HOCKET_RANK': '1'})
            self.assertEqual(friend.returncode, 0, friend.stderr)
            self.check_hello(friend.stdout + root.communicate(timeout=DEADLINE_S)[0], 2)
        finally:
            if root.poll() is None:
                root.kill()
                root.wait()
            root.stdout.close()

    def test_an_address_to_listen_on_does_not_hide_a_local_root(self):
        """`hocket run` and single-host launchers tell all ranks a loopback address: there rank 0 must be found."""
        for address in ('::1', '127.0.0.2'):
            with self.subTest(address=address):
                result = run(HOCKET, 'run', '-n', '2', HELLO, HOCKET_ADDRESS=address, HOCKET_INIT_TIMEOUT='30s')
                self.assertEqual(result.returncode, 0, result.stderr)
                self.check_hello(result.stdout, 2)

    def test_a_taken_port_is_named(self):
        with socket.socket() as taken:
            taken.bind(('127.0.0.1', 0))
            taken.listen()
            root = f'127.0.0.1:{taken.getsockname()[1]}'
            result = run(HELLO, HOCKET_RANK='0', HOCKET_SIZE='2', HOCKET_ROOT=root, HOCKET_INIT_TIMEOUT='500ms')
        self.assertEqual(result.returncode, 1)
        self.assertIn('is taken', result.stderr)
        self.assertIn('HOCKET_ROOT', result.stderr)


class Real(Case):
    def test_mpirun(self):
        if shutil.which('mpirun') is None:
            self.skipTest('no mpirun here: install openmpi-bin')
        allow = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'PRTE_ALLOW_RUN_AS_ROOT': '1',
                 'PRTE_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
        base = ['mpirun', '--oversubscribe', '-n', '4']
        if 'Open MPI' not in run('mpirun', '--version').stdout:
            base = ['mpirun', '-n', '4'] # Hydra
        result = run(*base, HELLO, **allow)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.check_hello(result.stdout, 4)
        result = run(*base, HOCKET, 'perf', 'all_reduce', *PERF, **allow)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.check_perf(result.stdout, 4)

    def test_srun(self):
        if shutil.which('srun') is None or run('sinfo', '-h').returncode != 0:
            self.skipTest('no Slurm here')
        result = run('srun', '-n', '4', '--overcommit', HELLO)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.check_hello(result.stdout, 4)


if __name__ == '__main__':
    unittest.main(warnings='ignore') # of sockets that are kept
