"""The libraries under test: how each is found, built and started, and with which settings.

A library is a dictionary: key, name, version, settings (text for the report), program (path of its driver), launch (a function
of the number of ranks and whether they outnumber the cores that gives the command line before the program) and env. Settings
are the best known for ranks on one host; the same malloc settings hold for all."""
import json
import os
import shutil
import subprocess

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


def compile_driver(command, sources, output):
    """Run `command sources -o output` unless output is newer than all sources."""
    inputs = [os.path.join(HERE, source) for source in sources + ['bench_loop.h']]
    if os.path.exists(output) and all(os.path.getmtime(path) < os.path.getmtime(output) for path in inputs):
        return output
    os.makedirs(os.path.dirname(output), exist_ok=True)
    line = [command[0]] + inputs[:-1] + command[1:] + ['-o', output]
    done = subprocess.run(line, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise Missing(f'{" ".join(line)} failed:\n{done.stdout}')
    return output


def compile_loop(out):
    """The shared loop as an object, for the driver in C++."""
    return compile_driver(['cc', '-c'] + C_FLAGS, ['bench_loop.c'], os.path.join(out, 'bench_loop.o'))


def build_type(build):
    with open(os.path.join(build, 'meson-info', 'intro-buildoptions.json'), encoding='utf-8') as file:
        options = {option['name']: option['value'] for option in json.load(file)}
    return f"{options['buildtype']}, -O{options['optimization']}"


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
            'settings': 'hocket run; defaults', 'env': {}, 'launch': lambda ranks, crowded: [command, 'run', '-n', str(ranks)]}


def openmpi_launch(mpirun):
    def launch(ranks, crowded):
        line = [mpirun, '-n', str(ranks), '--oversubscribe', '--bind-to', 'none', '--mca', 'pml', 'ob1', '--mca', 'btl',
                'self,vader']
        return line + (['--mca', 'mpi_yield_when_idle', '1'] if crowded else [])
    return launch


def mpich_launch(mpirun):
    def launch(ranks, crowded):
        line = [mpirun, '-n', str(ranks), '-bind-to', 'none']
        return line + (['-env', 'MPIR_CVAR_POLLS_BEFORE_YIELD', '1'] if crowded else [])
    return launch


def mpi(key, name, mpicc, mpirun, packages, out):
    """Any MPI: what its mpirun says about itself decides how it is started."""
    for command in (mpicc, mpirun):
        if not shutil.which(command):
            raise Missing(f'no {command}: {APT}{packages}' if packages else f'no {command}')
    about = subprocess.run([mpirun, '--version'], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
    is_open = 'Open MPI' in about or 'OpenRTE' in about
    version = first_line(mpirun, '--version') if is_open else next(
        (line.split(':')[1].strip() for line in about.split('\n') if 'Version:' in line), '?')
    program = compile_driver([mpicc] + C_FLAGS, ['bench_loop.c', 'mpi_bench.c'], os.path.join(out, key + '_bench'))
    if is_open:
        settings = ('mpirun --bind-to none --mca pml ob1 --mca btl self,vader (shared memory; CMA where allowed); '
                    'mpi_yield_when_idle 1 where ranks outnumber cores')
    else:
        settings = 'mpirun -bind-to none; MPIR_CVAR_POLLS_BEFORE_YIELD=1 where ranks outnumber cores'
    return {'key': key, 'name': name, 'version': version, 'program': program, 'settings': settings,
            'env': {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'},
            'launch': openmpi_launch(mpirun) if is_open else mpich_launch(mpirun)}


def gloo(build, out):
    if not shutil.which('c++'):
        raise Missing(f'no c++: {APT}g++')
    if not os.path.exists('/usr/include/gloo/allreduce.h'):
        raise Missing(f'no gloo/allreduce.h: {APT}libgloo-dev')
    loop = compile_loop(out)
    program = compile_driver(['c++', '-O2', '-std=c++17', '-Wall', loop, '-lgloo', '-lpthread'], ['gloo_bench.cc'],
                             os.path.join(out, 'gloo_bench'))
    version = first_line('dpkg-query', '-W', '-f', '${Version}', 'libgloo-dev') or '?'
    command = os.path.join(build, 'hocket')
    return {'key': 'gloo', 'name': 'Gloo', 'version': version, 'program': program, 'env': {},
            'settings': 'TCP on 127.0.0.1; options objects reused; the faster of ring and bcube for all_reduce, of its own and of '
                        'all_reduce for reduce_scatter, which is in place; started by hocket run',
            'launch': lambda ranks, crowded: [command, 'run', '-n', str(ranks)]}


def find(options, out):
    """(libraries, reasons): all that were asked for and are here, hocket first; and why the others are not."""
    makers = {
        'hocket': lambda: hocket(options.build, out),
        'openmpi': lambda: mpi('openmpi', 'Open MPI', 'mpicc.openmpi', 'mpirun.openmpi', 'openmpi-bin libopenmpi-dev', out),
        'mpich': lambda: mpi('mpich', 'MPICH', 'mpicc.mpich', 'mpirun.mpich', 'mpich libmpich-dev', out),
        'gloo': lambda: gloo(options.build, out),
    }
    for extra in options.mpi:
        key, _, prefix = extra.partition('=')
        tools = [os.path.join(prefix, 'bin', tool) for tool in ('mpicc', 'mpirun')]
        makers[key] = lambda key=key, tools=tools: mpi(key, key, tools[0], tools[1], '', out)
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
        found.insert(1, dict(found[0], key='hocket2', name='hocket again', settings='a second set of the same, for the noise'))
    return found, reasons
