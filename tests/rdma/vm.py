"""Nodes with RDMA devices, for tests on machines that have none: User-Mode Linux kernels with Soft-RoCE (rxe), which run
programs of this machine as they are. A node boots in a second, has one CPU, sees the host's files (writes go to memory, except
below `writable`), and per network card i an interface ethi, 198.18.(79+i).(node+1), MTU 9000, with the device rxei. The cards
of all nodes hang on one bridge per i, in a network namespace that ends with the run, as do all processes.

The kernel is made once by tests/rdma/build_kernel; it lies at HOCKET_RDMA_KERNEL, or in the user's cache folder."""
import collections
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
Result = collections.namedtuple('Result', 'code out')
# What a node's environment keeps of the caller's; the rest is the test's own.
KEPT = ('PATH', 'HOME', 'LANG', 'UBSAN_OPTIONS')


class Unavailable(Exception):
    """No nodes can be had here; says why, and the mend."""


def kernel_path():
    cache = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    return os.environ.get('HOCKET_RDMA_KERNEL') or os.path.join(cache, 'hocket', 'rdma', 'linux.uml')


def require():
    """The kernel's path. Raises Unavailable."""
    path = kernel_path()
    if not os.access(path, os.X_OK):
        raise Unavailable(f'there is no kernel {path}: `tests/rdma/build_kernel {path}` makes it once, in some 10 minutes')
    if os.geteuid() != 0:
        raise Unavailable('it takes root to make the network between nodes')
    for tool, package in (('busybox', 'busybox-static'), ('ip', 'iproute2'), ('rdma', 'iproute2'), ('unshare', 'util-linux')):
        if not shutil.which(tool, path='/usr/sbin:/usr/bin:/sbin:/bin'):
            raise Unavailable(f'there is no {tool}: apt-get install {package}')
    probe = subprocess.run(['unshare', '-n', '-m', '-p', '--fork', '--mount-proc', 'ip', 'tuntap', 'add', 'tap0', 'mode', 'tap'],
                           capture_output=True, text=True)
    if probe.returncode != 0:
        raise Unavailable(f'network namespaces or /dev/net/tun are not to be had here: {probe.stderr.strip()}')
    return path


def write_job(job, script, nodes, nics, env, writable):
    """Everything the nodes read: environment, script, mounts, names."""
    root = '/mnt/root'
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | env
    environment |= {'NODES': str(nodes), 'NICS': str(nics), 'FOLDER': os.getcwd()}
    lines = [f'o {root} overlay lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work', f'p {root}/proc proc', f's {root}/sys sysfs',
             f'd {root}/dev devtmpfs', f't {root}/dev/pts devpts X-mount.mkdir',
             f't {root}/dev/shm tmpfs mode=1777,X-mount.mkdir', f't {root}/run tmpfs mode=755']
    lines += [f'h {root}{path} hostfs {path}' for path in (job, *writable)]
    lines += [f'{root}{job}/{name} {root}{to} none bind' for name, to in (('hosts', '/etc/hosts'), ('cpuinfo', '/proc/cpuinfo'))]
    with open('/proc/cpuinfo') as file: # the guest's own says too little for perftest
        cpuinfo = file.read().split('\n\n')[0] + '\n\n'
    texts = {'env': ''.join(f'export {name}={shlex.quote(value)}\n' for name, value in environment.items()),
             'script': script, 'fstab': '\n'.join(lines) + '\n', 'cpuinfo': cpuinfo,
             'hosts': '127.0.0.1 localhost\n' + ''.join(f'198.18.79.{node + 1} node{node}\n' for node in range(nodes))}
    for name, text in texts.items():
        with open(os.path.join(job, name), 'w') as file:
            file.write(text)


def start_node(job, kernel, node, nics, memory, taps):
    cards = [f'vec{i}:transport=tap,ifname={tap},mac=02:00:00:00:{79 + i:02x}:{node:02x},mtu=9000' for i, tap in enumerate(taps)]
    with open(os.path.join(job, f'console.{node}'), 'w') as console:
        return subprocess.Popen(
            [kernel, f'mem={memory}M', 'root=/dev/root', 'rootfstype=hostfs', 'hostfs=/', 'ro', f'init={HERE}/node_init',
             f'uml_dir={job}', f'umid=n{node}', 'quiet', 'con=null', 'con0=null,fd:2', *cards, f'HOCKET_VM={job}',
             f'HOCKET_NODE={node}'], stdin=subprocess.DEVNULL, stdout=console, stderr=console)


def inside(job, kernel, nodes, nics, memory, wire_mtu):
    """In the namespaces: the network, the nodes, and waiting for them."""
    def ip(*words):
        subprocess.run(['ip', *words], check=True)

    if nodes > 1:
        for i in range(nics):
            ip('link', 'add', f'br{i}', 'type', 'bridge', 'mcast_snooping', '0')
            ip('link', 'set', f'br{i}', 'mtu', '9000', 'up') # of ports too: those that are not told otherwise
    running = []
    for node in range(nodes):
        taps = [f'tap{node}.{i}' for i in range(nics)] if nodes > 1 else []
        for i, tap in enumerate(taps):
            ip('tuntap', 'add', tap, 'mode', 'tap')
            mtu = wire_mtu if i == 0 else 9000
            ip('link', 'set', tap, 'mtu', str(mtu), 'txqueuelen', '20000', 'master', f'br{i}', 'up')
        running.append(start_node(job, kernel, node, nics, memory, taps))
    for process in running:
        process.wait()
    return 0


def run(script, nodes=1, nics=1, env=None, writable=(), timeout=120, memory=512, wire_mtu=9000):
    """Run a bash script on each node at once (NODE, NODES in its environment). A Result per node; code None: it did not end
    before the deadline. wire_mtu: larger packets are lost between the cards eth0, without a word."""
    kernel = require()
    # Short, since sockets of the kernel are named after it.
    job = tempfile.mkdtemp(prefix='hocket-vm-', dir='/tmp')
    write_job(job, script, nodes, nics, env or {}, writable)
    yard = subprocess.Popen(
        ['setpriv', '--pdeathsig', 'KILL', 'unshare', '-n', '-m', '-p', '--fork', '--kill-child', '--mount-proc', sys.executable,
         os.path.abspath(__file__), job, kernel, str(nodes), str(nics), str(memory), str(wire_mtu)], stdin=subprocess.DEVNULL)
    try:
        yard.wait(timeout)
    except subprocess.TimeoutExpired:
        pass
    finally:
        yard.send_signal(signal.SIGKILL) if yard.poll() is None else None
        yard.wait()
    results = []
    for node in range(nodes):
        def read(name):
            path = os.path.join(job, f'{name}.{node}')
            if not os.path.exists(path):
                return ''
            with open(path, errors='replace') as file:
                return file.read()
        code = read('code').strip()
        results.append(Result(int(code) if code else None, read('out') or ('' if code else read('console')[-3000:])))
    shutil.rmtree(job, ignore_errors=True)
    return results


if __name__ == '__main__':
    sys.dont_write_bytecode = True
    sys.exit(inside(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:7])))
