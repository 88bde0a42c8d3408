"""torch.distributed's Gloo under benchmarks/peers/run: TCP on loopback, the calls as a user of PyTorch makes them.

The loop is that of all drivers (bench_loop.c, here as a shared library); only its callback is Python, and what Python and torch
cost per call belongs to what is measured. torch sums in place, so all_reduce leaves its result in what it sends. The tensors
of a turn are made before it. Usage: torch_bench.py LOOP DIRECTORY MAX_BYTES PIN, started by `hocket run`."""
import ctypes
import datetime
import os
import sys
import traceback

import torch
import torch.distributed as dist

COLLS = ['all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'all_to_all', 'barrier'] # enum bench_coll


class Call(ctypes.Structure):
    """struct bench_call"""
    _fields_ = [('coll', ctypes.c_int), ('count', ctypes.c_size_t), ('send', ctypes.c_void_p), ('recv', ctypes.c_void_p)]


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Call))
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Driver(ctypes.Structure):
    """struct bench_driver"""
    _fields_ = [('rank', ctypes.c_int), ('nranks', ctypes.c_int), ('context', ctypes.c_void_p), ('prepare', CALLBACK),
                ('call', CALLBACK), ('allocate', ALLOCATE), ('reduce_scatter_in_place', ctypes.c_int),
                ('all_reduce_in_place', ctypes.c_int)]


def tensor(address, count):
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


def operation(call, nranks):
    """A function without arguments that makes the call."""
    name, count = COLLS[call.coll], call.count
    if name == 'barrier':
        return dist.barrier
    if name == 'broadcast':
        whole = tensor(call.recv, count)
        return lambda: dist.broadcast(whole, 0)
    if name == 'all_reduce':
        whole = tensor(call.send, count)
        return lambda: dist.all_reduce(whole)
    send = tensor(call.send, count * (1 if name == 'all_gather' else nranks))
    recv = tensor(call.recv, count * (1 if name == 'reduce_scatter' else nranks))
    make = {'reduce_scatter': dist.reduce_scatter_tensor, 'all_gather': dist.all_gather_into_tensor,
            'all_to_all': dist.all_to_all_single}[name]
    return lambda: make(recv, send)


def guarded(function):
    """As a callback: what it raises is told and ends the benchmark."""
    def callback(context, call):
        try:
            function(call.contents)
            return 0
        except Exception: # noqa: BLE001 (nothing may pass through C)
            traceback.print_exc()
            return -1
    return CALLBACK(callback)


def main():
    loop, arguments = sys.argv[1], [sys.argv[0], *sys.argv[2:]]
    rank, nranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(arguments[1], 'torch-store'), nranks)
    dist.init_process_group('gloo', store=store, rank=rank, world_size=nranks, timeout=datetime.timedelta(seconds=120))
    current = [dist.barrier]

    def prepare(call):
        current[0] = operation(call, nranks)

    driver = Driver(rank=rank, nranks=nranks, prepare=guarded(prepare), call=guarded(lambda call: current[0]()),
                    all_reduce_in_place=1)
    argv = (ctypes.c_char_p * len(arguments))(*(text.encode() for text in arguments))
    with torch.no_grad():
        code = ctypes.CDLL(loop).bench_serve(ctypes.byref(driver), len(arguments), argv)
    sys.stderr.flush()
    os._exit(code) # peers that left first must not make the end of the process group wait


main()
