#!/usr/bin/env python3
"""hocket run, from outside. What could break: the wrong rank blamed when several die at once, an exit code lost, a signal
passed on twice or not at all, lines of ranks mixed, and above all processes left behind: after a normal end (daemons),
after a failure, after kill -9 of the launcher or of its supervisor. Usage: test_run.py HOCKET [unittest arguments]"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HOCKET = os.path.abspath(sys.argv.pop(1))
DEADLINE_S = 30 # of every wait: generous, the machine may be busy

# Whoever started the tests may ignore signals (nohup, a background job): ranks would inherit that, and a shell cannot trap
# what was ignored when it started.
for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, signal.SIG_DFL)


def run(*args, **kwargs):
    kwargs.setdefault('stdin', subprocess.DEVNULL)
    return subprocess.run([HOCKET, 'run', *args], capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False,
                          **kwargs)


def shell(nranks, script, *options, **kwargs):
    return run('-n', str(nranks), *options, 'sh', '-c', script, **kwargs)


def processes_with(mark):
    """Pids of living processes that have `mark` in their command line."""
    found = []
    for name in os.listdir('/proc'):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f'/proc/{name}/cmdline', 'rb') as file:
                if mark.encode() in file.read():
                    found.append(int(name))
        except OSError:
            pass # it ended meanwhile
    return found


def wait_until(condition, what):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f'waited {DEADLINE_S} s in vain: {what}')
        time.sleep(0.01)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix='hocket test ')
        self.path = self.folder.name
        # A number of seconds nobody else sleeps for: marks our processes.
        self.mark = f'100000.{os.getpid()}{time.monotonic_ns() % 1000000:06d}'
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(self.kill_marked)

    def kill_marked(self):
        for pid in processes_with(self.mark):
            os.kill(pid, signal.SIGKILL)

    def file(self, name):
        return os.path.join(self.path, name)

    def assert_none_left(self):
        self.assertEqual(processes_with(self.mark), [], 'processes were left behind')

    def start(self, nranks, script, *options):
        process = subprocess.Popen([HOCKET, 'run', '-n', str(nranks), *options, 'sh', '-c', script], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   cwd=self.path)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(lambda: process.poll() is None and (process.kill(), process.wait()))
        return process

    def wait_for_files(self, *names):
        wait_until(lambda: all(os.path.exists(self.file(name)) for name in names), f'files {names}')


class Start(Case):
    def test_environment(self):
        result = shell(3, 'echo $HOCKET_RANK $HOCKET_SIZE $HOCKET_LOCAL_RANK $HOCKET_LOCAL_SIZE $RANK $WORLD_SIZE '
                          '$LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $HOCKET_ROOT $HOCKET_TOKEN $MASTER_PORT')
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = sorted(line.split() for line in result.stdout.splitlines())
        self.assertEqual(len(lines), 3)
        for rank, words in enumerate(lines):
            self.assertEqual(words[:9], [str(rank), '3'] * 4 + ['127.0.0.1'])
            self.assertRegex(words[9], r'^127\.0\.0\.1:\d+$')
            self.assertRegex(words[10], r'^[0-9a-f]{32}$')
            self.assertEqual(words[9:], lines[0][9:])
            self.assertNotEqual(words[9].split(':')[1], words[11])

    def test_rank_0_can_listen_at_the_root_address(self):
        program = ('import os, socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); '
                   'a, p = os.environ["HOCKET_ROOT"].split(":"); s.bind((a, int(p))); s.listen(); '
                   'c = socket.create_connection((a, int(p)), 5); print("met")')
        result = run('-n', '1', sys.executable, '-c', program)
        self.assertEqual((result.returncode, result.stdout), (0, 'met\n'), result.stderr)

    def test_two_jobs_have_two_tokens(self):
        tokens = {shell(1, 'echo $HOCKET_TOKEN').stdout for _ in range(3)}
        self.assertEqual(len(tokens), 3)

    def test_arguments_are_passed_unchanged(self):
        result = run('-n', '1', 'printf', '%s|', '-n', '--tag-output', 'a b', '')
        self.assertEqual(result.stdout, '-n|--tag-output|a b||')

    def test_program_in_a_path_with_spaces(self):
        with open(self.file('my program'), 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\necho here $RANK\n')
        os.chmod(self.file('my program'), 0o755)
        self.assertEqual(run('-n', '1', self.file('my program')).stdout, 'here 0\n')

    def test_stdin_goes_to_rank_0_only(self):
        result = subprocess.run([HOCKET, 'run', '-n', '3', '-T', 'cat'], input='for you\n', capture_output=True, text=True,
                                timeout=DEADLINE_S, check=False)
        self.assertEqual(result.stdout, '[0] for you\n')

    def test_many_ranks(self):
        result = shell(100, 'echo $RANK')
        self.assertEqual(sorted(map(int, result.stdout.split())), list(range(100)))
        self.assertEqual(result.returncode, 0)


class Usage(Case):
    def assert_usage(self, args, word):
        result = run(*args)
        self.assertEqual(result.returncode, 2, args)
        self.assertIn(word, result.stderr)
        self.assertEqual(result.stderr.count('\n'), 1, 'one clear line')

    def test_wrong_calls(self):
        for args, word in ((['true'], '-n N'), (['-n'], 'needs a value'), (['-n', '2'], 'which program'),
                           (['-n', '0', 'true'], '1 to 4096'), (['-n', '-3', 'true'], '1 to 4096'),
                           (['-n', '5000', 'true'], '1 to 4096'), (['-n', '2x', 'true'], '1 to 4096'),
                           (['-n', '1e3', 'true'], '1 to 4096'), (['-n', '99999999999999999999', 'true'], '1 to 4096'),
                           (['-n', '2', '--timeout', '0', 'true'], 'seconds'),
                           (['-n', '2', '--timeout', 'nan', 'true'], 'seconds'),
                           (['-n', '2', '--grace', '-1', 'true'], 'seconds'),
                           (['-n', '2', '--what', 'true'], '--what')):
            self.assert_usage(args, word)

    def test_help(self):
        result = run('--help')
        self.assertEqual(result.returncode, 0)
        self.assertIn('--tag-output', result.stdout)

    def test_program_missing(self):
        result = run('-n', '3', 'no-such-program-here')
        self.assertEqual((result.returncode, result.stdout), (127, ''))
        self.assertIn('no-such-program-here', result.stderr)
        self.assertEqual(result.stderr.count('\n'), 1)

    def test_program_not_executable(self):
        with open(self.file('data'), 'w', encoding='utf-8') as file:
            file.write('no program\n')
        result = run('-n', '3', self.file('data'))
        self.assertEqual(result.returncode, 126)
        self.assertIn('chmod +x', result.stderr)


class Failure(Case):
    def test_exit_code_of_the_first(self):
        result = shell(3, f'[ $RANK = 1 ] && exit 7; exec sleep {self.mark}', '--grace', '0')
        self.assertEqual(result.returncode, 7)
        self.assertRegex(result.stderr, r'rank 1 \(pid \d+\) failed first: exit code 7')
        self.assertIn('ending the others (SIGTERM, after 5 s SIGKILL): 0, 2', result.stderr)
        self.assert_none_left()

    def test_signal_becomes_128_plus_number(self):
        result = shell(2, '[ $RANK = 1 ] && kill -SEGV $$; exec sleep 0.1')
        self.assertEqual(result.returncode, 128 + signal.SIGSEGV)
        self.assertRegex(result.stderr, r'rank 1 \(pid \d+\) failed first: killed by SIGSEGV')

    def test_an_early_success_is_no_failure(self):
        result = shell(3, '[ $RANK = 1 ] || sleep 0.2; exit 0')
        self.assertEqual((result.returncode, result.stderr), (0, ''))

    def test_others_may_report_for_themselves(self):
        result = shell(3, '[ $RANK = 2 ] && exit 3; sleep 0.3; echo "rank $RANK: a peer was lost"; exit 9',
                       '--grace', str(DEADLINE_S))
        self.assertEqual(result.returncode, 3)
        self.assertEqual(sorted(result.stdout.splitlines()), ['rank 0: a peer was lost', 'rank 1: a peer was lost'])
        self.assertNotIn('SIGTERM', result.stderr)

    def test_order_of_death_decides_also_when_seen_together(self):
        """Ranks 3, then 0, then 2 die while the supervisor is stopped, so it sees all of them in one wake-up."""
        job = self.start(4, 'echo $PPID >sup.$RANK.new; mv sup.$RANK.new sup.$RANK; '
                            'while [ ! -e die.$RANK ]; do sleep 0.01; done; echo $$ >dead.$RANK; exit 1$RANK', '-g', '9')
        self.wait_for_files('sup.0', 'sup.1', 'sup.2', 'sup.3')
        with open(self.file('sup.0'), encoding='utf-8') as file:
            supervisor = int(file.read())
        os.kill(supervisor, signal.SIGSTOP)
        for rank in (3, 0, 2, 1):
            open(self.file(f'die.{rank}'), 'w', encoding='utf-8').close()
            self.wait_for_files(f'dead.{rank}')
            wait_until(lambda r=rank: self.is_zombie(r), f'end of rank {rank}')
        os.kill(supervisor, signal.SIGCONT)
        self.assertEqual(job.wait(DEADLINE_S), 13)
        self.assertIn('rank 3', job.stderr.read())

    def is_zombie(self, rank):
        with open(self.file(f'dead.{rank}'), encoding='utf-8') as file:
            pid = file.read().strip()
        if not pid:
            return False
        with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
            return file.read().rsplit(')', 1)[1].split()[0] == 'Z'

    def test_sigkill_for_who_ignores_sigterm(self):
        result = shell(2, f'[ $RANK = 1 ] && exit 4; trap "" TERM; sleep {self.mark} & wait; sleep {self.mark}',
                       '--grace', '0')
        self.assertEqual(result.returncode, 4)
        self.assert_none_left()

    def test_timeout(self):
        result = shell(3, f'[ $RANK = 1 ] || exec sleep {self.mark}', '--timeout', '0.3')
        self.assertEqual(result.returncode, 124)
        self.assertIn('timed out after 0.3 s; still running: 0, 2', result.stderr)
        self.assert_none_left()

    def test_timeout_not_reached(self):
        self.assertEqual(shell(2, 'exit 0', '--timeout', '60').returncode, 0)


class Signals(Case):
    def test_each_is_passed_on_once_to_every_rank(self):
        names = ('TERM', 'INT', 'HUP', 'USR1', 'USR2', 'QUIT')
        traps = ' '.join(f"trap 'echo {name} >>got.$RANK; [ {name} = QUIT ] && exit 0' {name};" for name in names)
        for name in names[:-1]:
            with self.subTest(name):
                job = self.start(2, f'rm -f got.$RANK; {traps} >ready.$RANK; while :; do sleep 0.01; done')
                self.wait_for_files('ready.0', 'ready.1')
                job.send_signal(getattr(signal, 'SIG' + name))
                wait_until(lambda: all(os.path.exists(self.file(f'got.{rank}')) for rank in (0, 1)), name)
                job.send_signal(signal.SIGQUIT)
                self.assertEqual(job.wait(DEADLINE_S), 0, job.stderr.read())
                for rank in (0, 1):
                    with open(self.file(f'got.{rank}'), encoding='utf-8') as file:
                        self.assertEqual(file.read().split(), [name, 'QUIT'])
                    os.unlink(self.file(f'ready.{rank}'))
                    os.unlink(self.file(f'got.{rank}'))

    def test_signals_reach_what_a_rank_has_started(self):
        job = self.start(1, f'sleep {self.mark} & echo >ready.0; wait')
        self.wait_for_files('ready.0')
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(DEADLINE_S), 128 + signal.SIGTERM)
        self.assertIn('passed on', job.stderr.read())
        self.assert_none_left()

    def test_third_signal_ends_by_force(self):
        job = self.start(2, f'trap "" INT TERM; echo >ready.$RANK; while :; do sleep {self.mark}; done')
        self.wait_for_files('ready.0', 'ready.1')
        sent = 0
        while job.poll() is None and sent < 100: # two at once merge into one, so three may be too few
            job.send_signal(signal.SIGINT)
            sent += 1
            time.sleep(0.3)
        self.assertGreaterEqual(sent, 3)
        self.assertEqual(job.wait(DEADLINE_S), 128 + signal.SIGKILL)
        self.assert_none_left()


class NothingLeft(Case):
    # A child, an orphan, and an orphaned daemon in a session of its own that ignores SIGTERM and SIGHUP. Their output is
    # elsewhere, else who reads the job's output would wait for them.
    FAMILY = ("sleep {m} >/dev/null 2>&1 & (sleep {m} >/dev/null 2>&1 &); "
              "(setsid sh -c 'trap \"\" TERM HUP; sleep {m}; sleep {m}' >/dev/null 2>&1 &); echo $PPID >ready.$RANK; ")

    def family(self, rest):
        return self.FAMILY.format(m=self.mark) + rest

    def start_family(self):
        job = self.start(3, self.family(f'sleep {self.mark}'))
        self.wait_for_files('ready.0', 'ready.1', 'ready.2')
        wait_until(lambda: len(processes_with(self.mark)) >= 3 * 6, 'the families')
        return job

    def test_after_kill_9_of_the_launcher(self):
        job = self.start_family()
        job.kill()
        job.wait(DEADLINE_S)
        wait_until(lambda: not processes_with(self.mark), 'end of the families')

    def test_after_kill_9_of_the_supervisor(self):
        job = self.start_family()
        with open(self.file('ready.0'), encoding='utf-8') as file:
            os.kill(int(file.read()), signal.SIGKILL)
        self.assertEqual(job.wait(DEADLINE_S), 128 + signal.SIGKILL)
        self.assert_none_left() # first: who is left would hold the pipe below open
        self.assertIn('supervisor was killed', job.stderr.read())

    def test_after_a_failure(self):
        result = shell(2, f'[ $RANK = 1 ] && exit 5; {self.family("wait")}', '--grace', '0', cwd=self.path)
        self.assertEqual(result.returncode, 5)
        self.assert_none_left()

    def test_daemons_end_with_the_job(self):
        result = shell(2, self.family('exit 0'), cwd=self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_none_left()


class TaggedOutput(Case):
    def test_lines_of_ranks_do_not_mix(self):
        result = shell(4, 'i=0; while [ $i -lt 500 ]; do printf "%s" "r$RANK line $i "; printf "%0*d\\n" $((i % 97 + 1)) 0; '
                          'echo "r$RANK err $i" >&2; i=$((i + 1)); done', '-T')
        self.assertEqual(result.returncode, 0)
        out, err = result.stdout.splitlines(), result.stderr.splitlines()
        for rank in range(4):
            self.assertEqual([line for line in out if line.startswith(f'[{rank}] ')],
                             [f'[{rank}] r{rank} line {i} ' + '0' * (i % 97 + 1) for i in range(500)])
            self.assertEqual([line for line in err if line.startswith(f'[{rank}] ')],
                             [f'[{rank}] r{rank} err {i}' for i in range(500)])
        self.assertEqual((len(out), len(err)), (2000, 2000))

    def test_long_line_stays_whole(self):
        result = shell(2, 'head -c 300000 /dev/zero | tr "\\0" "a$RANK"; echo', '--tag-output')
        lines = sorted(result.stdout.splitlines())
        self.assertEqual([len(line) for line in lines], [300004, 300004])

    def test_last_line_without_newline_and_empty_lines(self):
        self.assertEqual(shell(1, 'printf "\\n\\nend"', '-T').stdout, '[0] \n[0] \n[0] end\n')

    def test_a_closed_reader_ends_the_job(self):
        job = self.start(2, 'while :; do echo y; done', '-T')
        self.assertEqual(job.stdout.readline()[3:], ' y\n')
        job.stdout.close()
        self.assertEqual(job.wait(DEADLINE_S), 128 + signal.SIGPIPE)


if __name__ == '__main__':
    unittest.main(verbosity=2)
