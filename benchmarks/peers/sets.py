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

# Temporary buffers that libraries take from malloc stay with the process instead of being mapped anew for every call: a
# fresh page costs microseconds. It is the best setting for all of them, and the same for all.
MALLOC_ENV = {'MALLOC_MMAP_MAX_': '0', 'MALLOC_TRIM_THRESHOLD_': str(1 << 40), 'MALLOC_TOP_PAD_': str(1 << 20)}


class SetFailed(Exception):
    """A library that did not start, failed in a call, or took too long."""


class Set:
    def __init__(self, library, ranks, crowded, options, directory):
        self.library, self.directory = library, os.path.join(directory, f"{library['key']}-{ranks}")
        os.mkdir(self.directory)
        with open(os.path.join(self.directory, 'page'), 'wb') as page:
            page.truncate(PAGE_BYTES)
        for name in ('commands', 'results'):
            os.mkfifo(os.path.join(self.directory, name))
        self.results = os.open(os.path.join(self.directory, 'results'), os.O_RDONLY | os.O_NONBLOCK)
        self.commands = os.open(os.path.join(self.directory, 'commands'), os.O_RDWR) # both ways: opens without a reader
        self.pending = b''
        command = library['launch'](ranks, crowded) + [library['program'], self.directory, str(options.buffer_bytes),
                                                       '0' if crowded or not options.pin else '1']
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
            self.end()
            return None

    def turn(self, coll, count, options):
        """One turn; the driver's figures, or None when the set has failed."""
        def step():
            os.write(self.commands, f'{coll} {count} {options.samples_min} {options.samples_max} '
                                    f'{options.budget_ms * 1000}\n'.encode())
            return json.loads(self.read_line(TURN_SECONDS))
        return self.guard(step)

    def end(self):
        """End of the conversation: rank 0 reads the end of file and all ranks leave; by force where that takes long."""
        if self.commands < 0:
            return
        os.close(self.commands)
        os.close(self.results)
        self.commands = -1
        seconds = END_SECONDS if not self.failure else 0.1
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number:
                self.process.send_signal(number)
            try:
                self.process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                seconds = 10
