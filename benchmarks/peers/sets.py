"""A set: the processes of one library, alive for all cases of one number of ranks, asleep unless it is their turn. See
bench_loop.c for the other side of the conversation."""
import json
import os
import select
import signal
import subprocess
import time

PAGE_BYTES = 1 << 20
START_SECONDS, TURN_SECONDS, END_SECONDS = 120, 180, 20
HURRY_SECONDS, FORCE_SECONDS = 2, 3 # to leave when the benchmark is interrupted; to heed a signal

# Temporary buffers that libraries take from malloc stay with the process instead of being mapped anew for every call: a
# fresh page costs microseconds. It is the best setting for all of them, and the same for all.
MALLOC_ENV = {'MALLOC_MMAP_MAX_': '0', 'MALLOC_TRIM_THRESHOLD_': str(1 << 40), 'MALLOC_TOP_PAD_': str(1 << 20)}


class SetFailed(Exception):
    """A library that did not start, failed in a call, or took too long."""


class Set:
    def __init__(self, library, crowded, part, options, directory):
        self.library = library
        self.directory = os.path.join(directory, f"{library['key']}-{part['ranks']}-{part['buffer_bytes']}")
        os.mkdir(self.directory)
        with open(os.path.join(self.directory, 'page'), 'wb') as page:
            page.truncate(PAGE_BYTES)
        for name in ('commands', 'results'):
            os.mkfifo(os.path.join(self.directory, name))
        self.results = os.open(os.path.join(self.directory, 'results'), os.O_RDONLY | os.O_NONBLOCK)
        self.commands = os.open(os.path.join(self.directory, 'commands'), os.O_RDWR) # both ways: opens without a reader
        self.pending = b''
        command = library['launch'](part['ranks'], crowded)
        command += [library['program'], self.directory, str(part['buffer_bytes']), '1' if options.pin and not crowded else '0']
        env = dict(os.environ, TMPDIR=self.directory, **library['env'])
        if options.keep_malloc:
            env.update(MALLOC_ENV)
        self.log_path = os.path.join(self.directory, 'log')
        with open(self.log_path, 'wb') as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                            start_new_session=True)
        self.failure = None

    def log_tail(self):
        with open(self.log_path, encoding='utf-8', errors='replace') as log:
            lines = [line.strip() for line in log if line.strip(' -=\n')]
        return ' | '.join(lines[:6])[:400]

    def read_line(self, seconds):
        deadline = time.monotonic() + seconds
        while b'\n' not in self.pending:
            if time.monotonic() > deadline:
                raise SetFailed(f'no answer within {seconds} s')
            ready = select.select([self.results], [], [], 0.2)[0]
            got = os.read(self.results, 65536) if ready else b''
            self.pending += got
            if not got and self.process.poll() is not None:
                raise SetFailed(f'ended with code {self.process.returncode}: {self.log_tail()}')
            if ready and not got:
                time.sleep(0.05) # the writer is gone; its process is about to end
        line, self.pending = self.pending.split(b'\n', 1)
        return line.decode()

    def await_ready(self):
        self.guard(lambda: self.read_line(START_SECONDS))

    def guard(self, step):
        """Run a step of the conversation; a failure ends the set, not the benchmark."""
        if self.failure:
            return None
        try:
            return step()
        except SetFailed as error:
            self.failure = str(error)
            end_all([self], 0)
            return None

    def turn(self, coll, count, part):
        """One turn; the driver's figures, or None when the set has failed."""
        def step():
            os.write(self.commands, f"{coll} {count} {part['samples_min']} {part['samples_max']} "
                                    f"{part['budget_ms'] * 1000}\n".encode())
            return json.loads(self.read_line(TURN_SECONDS))
        return self.guard(step)

    def hang_up(self):
        """End the conversation: rank 0 reads the end of file, and all ranks leave after the turn they are in."""
        if self.commands < 0:
            return
        os.close(self.commands)
        os.close(self.results)
        self.commands = -1


def processes_of(directory):
    """The processes that have the directory of a set in their command lines: its launcher and its ranks."""
    found = []
    for name in os.listdir('/proc'):
        if name.isdigit():
            try:
                with open(f'/proc/{name}/cmdline', 'rb') as file:
                    if directory.encode() in file.read().split(b'\0'):
                        found.append(int(name))
            except OSError:
                pass # it ended meanwhile
    return found


def shared_files_of(processes):
    """What they have mapped of /dev/shm: a library that is killed cannot remove it."""
    found = set()
    for pid in processes:
        try:
            with open(f'/proc/{pid}/maps', encoding='utf-8', errors='replace') as file:
                found.update(line.split(None, 5)[5].strip() for line in file if ' /dev/shm/' in line)
        except OSError:
            pass # it ended meanwhile
    return found


def await_end(running, seconds):
    """Those that are left after so many seconds."""
    deadline = time.monotonic() + seconds
    for one in running:
        try:
            one.process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
    return [one for one in running if one.process.poll() is None]


def end_all(running, seconds=END_SECONDS):
    """End the conversations; all sets leave at the same time, after the turn they are in. Those that have not left in time,
    and ranks whose launcher has gone without them, are made to."""
    for one in running:
        one.hang_up()
    left = await_end(running, seconds)
    processes = [pid for one in running for pid in processes_of(one.directory)]
    files = shared_files_of(processes)
    for one in left:
        one.process.send_signal(signal.SIGTERM)
    await_end(left, FORCE_SECONDS)
    for pid in [pid for one in running for pid in processes_of(one.directory)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass # it ended meanwhile
    await_end(left, FORCE_SECONDS)
    for path in files:
        if os.path.exists(path):
            os.unlink(path)
