"""Several hosts on one machine, for tests and benchmarks over tcp.

A host is a set of namespaces with a mount of everything by which a program could tell that it shares a machine: network, host
name, PIDs with /proc, IPC, /dev/shm, /sys, boot id, machine id, /etc/hosts. The hosts hang on one or more bridges that live in
namespaces of their own, so no packet leaves the machine. Shared all the same: files elsewhere, processors, the clock.

    with Hosts(3, rate='1gbit') as hosts:
        process = hosts.start(2, ['hostname'])

Nothing has a name: no entry of `ip netns`, no file. All processes of all hosts live below one PID namespace (the yard), whose
first process ends when its standard input does, which happens at close() and at the death of the caller, by any signal. The
kernel then kills everything in it and removes the interfaces. Any number of yards can exist at a time.

Needs iproute2, util-linux and either root or a kernel that lets users make namespaces; raises Unavailable with the reason
where that is not so."""
import ipaddress
import os
import select
import signal
import subprocess
import tempfile
import time

START_SECONDS = 60
REFUSALS = ('not permitted', 'Permission denied', 'not supported', 'Unknown device type', 'No space left', 'Invalid argument')

# The first process of a yard or host, once it is set up: its orphans are reaped by the kernel, as SIGCHLD is ignored.
HOLD = 'trap "" CHLD; echo ready; exec cat >/dev/null'
YARD = 'set -e; mount -t proc proc /proc; ip link set lo up; ' + HOLD
# $1: name, $2: text of /etc/hosts. A new /sys hides the cgroups, which programs ask for their cores.
HOST = '''set -e
mount -t proc proc /proc
mount -t tmpfs -o mode=755 run /run
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
if mount -t sysfs sysfs /sys; then mount --move /run/cgroup /sys/fs/cgroup; fi
mount -t tmpfs -o mode=1777 shm /dev/shm
hostname "$1"
cat /proc/sys/kernel/random/uuid >/run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
if [ -e /etc/machine-id ]; then
    tr -d - </run/boot_id >/run/machine-id
    mount --bind /run/machine-id /etc/machine-id
fi
printf "%s" "$2" >/run/hosts
mount --bind /run/hosts /etc/hosts
ip link set lo up
''' + HOLD


class Unavailable(Exception):
    """This machine does not let us make hosts."""


def parents():
    """Process -> its parent, of all."""
    found = {}
    for name in os.listdir('/proc'):
        if name.isdigit():
            try:
                with open(f'/proc/{name}/stat', encoding='utf-8', errors='replace') as file:
                    found[int(name)] = int(file.read().rpartition(')')[2].split()[1])
            except OSError:
                pass # it ended meanwhile
    return found


def last_descendant(pid):
    """The end of a chain of only children."""
    above = parents()
    while True:
        below = [child for child, parent in above.items() if parent == pid]
        if len(below) != 1:
            return pid
        pid = below[0]


class Holder:
    """A process that keeps namespaces alive until its standard input ends."""

    def __init__(self, command):
        self.errors = tempfile.TemporaryFile()
        self.pid = None # of the first process inside, as seen from here
        try:
            # A session of its own: an interrupt from the terminal must not take it away before its users.
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                            start_new_session=True)
        except OSError as error:
            raise Unavailable(f'{command[0]}: {error.strerror} (apt-get install util-linux iproute2)') from error

    def await_ready(self, deadline):
        out = self.process.stdout
        ready = select.select([out], [], [], max(0, deadline - time.monotonic()))[0]
        if not ready or out.readline() != b'ready\n':
            refuse(self.end(), 'a host did not start')
        self.pid = last_descendant(self.process.pid)

    def end(self):
        """Everything inside is killed; returns what went to stderr."""
        if self.process.stdin.closed:
            return ''
        self.process.stdin.close()
        self.pid = None
        try:
            self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill() # --kill-child then ends the rest
            self.process.wait()
        self.process.stdout.close()
        self.errors.seek(0)
        text = self.errors.read().decode(errors='replace')
        self.errors.close()
        return text


def refuse(text, what):
    """Raise Unavailable when the text says that the system does not allow it, else an error of ours."""
    last = (text.strip() or 'no reason given').splitlines()[-1]
    if any(word in text for word in REFUSALS):
        raise Unavailable(f'{what}: {last} (root, or unprivileged user namespaces, and veth and bridge in the kernel are needed)')
    raise RuntimeError(f'{what}: {text.strip()}')


def rate_mbits(rate):
    """Of a rate as tc understands it: 200mbit, 1gbit."""
    number = float(rate[:-4])
    return round(number * {'kbit': 0.001, 'mbit': 1, 'gbit': 1000}[rate[-4:]])


class Hosts:
    """count hosts, alive until close(); host i is named host<i>. Its interface eth<k> is on network k and has an address of
    each family of `families`. rate (as tc understands it, 1gbit): of each interface, in each direction. Interfaces then say so, as
    cards do (/sys/class/net/eth0/speed), unless shows_rate is False: they say 10 Gbit/s where nothing limits them."""

    def __init__(self, count, rate=None, mtu=1500, networks=1, families=(4, 6), shows_rate=True):
        self.count, self.networks, self.families, self.shows_rate = count, networks, families, shows_rate
        self.hosts, self.yard = [], None
        self.user = [] if os.geteuid() == 0 else ['--user', '--preserve-credentials']
        try:
            self._make(rate, mtu)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()

    def close(self):
        """End all processes of all hosts and remove everything. May be called twice."""
        for holder in [self.yard] + self.hosts: # the end of the yard is the end of all hosts
            if holder is not None:
                holder.end()
        self.hosts, self.yard = [], None

    def _make(self, rate, mtu):
        deadline = time.monotonic() + START_SECONDS
        own_user = [] if os.geteuid() == 0 else ['--user', '--map-root-user']
        self.yard = Holder(['unshare', *own_user, '--net', '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', YARD])
        self.yard.await_ready(deadline)
        names = '127.0.0.1 localhost\n::1 localhost\n'
        for host in range(self.count):
            names += ''.join(f'{self.address(host, family=family)} host{host}\n' for family in self.families)
        self.hosts = [None] * self.count
        for host in range(self.count):
            self.hosts[host] = Holder([*self._enter(self.yard, '--mount', '--net', '--pid'), 'unshare', '--net', '--uts', '--ipc',
                                       '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', HOST, 'host', f'host{host}',
                                       names])
        for holder in self.hosts:
            holder.await_ready(deadline)
        self._connect(rate, mtu)

    def _connect(self, rate, mtu):
        lines = []
        for k in range(self.networks):
            lines += [f'link add br{k} mtu {mtu} type bridge mcast_snooping 0', f'link set br{k} up']
            for i, holder in enumerate(self.hosts):
                lines += [f'link add p{i}n{k} mtu {mtu} type veth peer name eth{k} mtu {mtu} netns {holder.pid}',
                          f'link set p{i}n{k} master br{k} up']
        self._batch(self.yard, 'ip', lines)
        for i, holder in enumerate(self.hosts):
            lines = []
            for k in range(self.networks):
                lines += [f'link set eth{k} up']
                lines += [f'addr add {self.address(i, k, family)}/{24 if family == 4 else 64} dev eth{k}' +
                          (' nodad' if family == 6 else '') for family in self.families]
            self._batch(holder, 'ip', lines)
        if rate:
            # At least a whole segment of 64 KiB must pass at once, or throughput falls far below the rate; and what passes at
            # once after a pause is faster than the link, so not much more.
            shape = f'root tbf rate {rate} burst 96kb latency 20ms'
            for i, holder in enumerate(self.hosts):
                self._batch(holder, 'tc', [f'qdisc add dev eth{k} {shape}' for k in range(self.networks)])
            self._batch(self.yard, 'tc', [f'qdisc add dev p{i}n{k} {shape}' for i in range(self.count)
                                          for k in range(self.networks)])
            if self.shows_rate:
                self._show(rate)

    def _show(self, rate):
        """Interfaces of all hosts say that this is their speed, where /sys is the host's own."""
        script = f'echo {rate_mbits(rate)} >/run/speed; ' + '; '.join(
            f'mount --bind /run/speed /sys/class/net/eth{k}/speed' for k in range(self.networks))
        for holder in self.hosts:
            subprocess.run([*self._enter(holder, '--mount', '--net'), 'sh', '-c', script], capture_output=True,
                           timeout=START_SECONDS, check=False)

    def _enter(self, holder, *namespaces):
        return ['nsenter', '--target', str(holder.pid), *self.user, *namespaces]

    def _batch(self, holder, tool, lines):
        """Have ip or tc do all lines in a holder's network namespace."""
        done = subprocess.run([*self._enter(holder, '--net'), tool, '-batch', '-'], input='\n'.join(lines) + '\n', text=True,
                              capture_output=True, timeout=START_SECONDS, check=False)
        if done.returncode != 0:
            refuse(done.stderr, f'{tool} cannot set up the network')

    def address(self, host, network=0, family=4):
        """Text of a host's address. 198.18.0.0/15 is set aside for benchmarks (RFC 2544), fd00::/8 for private use."""
        base = int(ipaddress.ip_address('198.18.0.0' if family == 4 else 'fd68:6f63:6b65::'))
        step = 256 if family == 4 else 1 << 64
        return str(ipaddress.ip_address(base + network * step + host + 1))

    def command(self, host, command):
        """The command line that runs a command on a host, for whoever is to start it: ends with its code or signal, and takes it
        with it when it is killed, or when its parent dies."""
        enter = self._enter(self.hosts[host], '--mount', '--uts', '--ipc', '--net', '--pid', f'--wdns={os.getcwd()}')
        return [*enter, 'setpriv', '--pdeathsig', 'KILL', '--', *command]

    def start(self, host, command, env=None, **options):
        """Start a command on a host: a Popen. env: added to the caller's."""
        options.setdefault('stdin', subprocess.DEVNULL)
        return subprocess.Popen(self.command(host, command), env={**os.environ, **(env or {})}, **options)

    def set_link(self, host, up, network=0):
        """Pull out, or plug in, the cable at the switch: the host itself sees no carrier."""
        self._batch(self.yard, 'ip', [f'link set p{host}n{network} {"up" if up else "down"}'])

    def set_port(self, host, joined, network=0):
        """Have the switch forward for a host, or not: the host still sees a carrier, but nobody hears it."""
        self._batch(self.yard, 'ip', [f'link set p{host}n{network} ' + (f'master br{network}' if joined else 'nomaster')])

    def crash(self, host):
        """The host with all its processes and interfaces is gone."""
        self.hosts[host].end()


class Result:
    """How a command ended: code (negative: signal; None: it was still running and was killed), out, err."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f'code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}'


class Job:
    """Ranks on hosts: `per_host` on each of the hosts `where`, rank r on where[r // per_host]. Their output goes to files, so
    none blocks on a pipe. env(rank) gives variables beyond those by which they meet; port: where rank 0 listens."""

    def __init__(self, hosts, where, per_host, command, env=lambda rank: {}):
        self.hosts, self.nranks = hosts, len(where) * per_host
        self.processes, self.files = [], []
        try:
            for rank in range(self.nranks):
                files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
                self.files.append(files)
                self.processes.append(hosts.start(where[rank // per_host], command, env(rank), stdout=files[0],
                                                  stderr=files[1]))
        except BaseException:
            self.end()
            raise

    def text(self, rank, which=0):
        """What a rank has written to stdout (0) or stderr (1) so far."""
        size = os.fstat(self.files[rank][which].fileno()).st_size
        return os.pread(self.files[rank][which].fileno(), size, 0).decode(errors='replace')

    def wait(self, seconds, ranks=None):
        """Wait for all ranks, or those given, and return a Result for each; those that take too long are killed."""
        deadline = time.monotonic() + seconds
        results = []
        for rank in range(self.nranks) if ranks is None else ranks:
            try:
                code = self.processes[rank].wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            results.append(Result(code, self.text(rank), self.text(rank, 1)))
        if ranks is None or any(result.code is None for result in results):
            self.end()
        return results

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        for files in self.files:
            for file in files:
                file.close()
        self.processes, self.files = [], []


def meet_env(hosts, where, per_host, port, token='hosts', family=4, network=0):
    """The environment of a rank, by which it finds the others: for Job's env."""
    address = hosts.address(where[0], network, family)
    root = f'{address}:{port}' if family == 4 else f'[{address}]:{port}'

    def env(rank):
        return {'HOCKET_RANK': str(rank), 'HOCKET_SIZE': str(len(where) * per_host), 'HOCKET_ROOT': root,
                'HOCKET_TOKEN': token, 'HOCKET_LOCAL_RANK': str(rank % per_host), 'HOCKET_LOCAL_SIZE': str(per_host)}
    return env


def end_on_signals():
    """Turn SIGTERM and SIGHUP into SystemExit, so that `with` blocks are left in order."""
    def leave(number, frame):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
