"""The least time a small collective can take on this machine, from what benchmarks/probe.c measured before the run. For LARGE ones
bound_bench.c moves the same bytes in turns with the libraries: what memory can do changes from minute to minute in a virtual machine.

Bytes: every input byte is read once and every output byte written once, by some core. With n the larger buffer of a
rank and p ranks: all_reduce and all_to_all read p n and write p n; reduce_scatter reads p n and writes n; all_gather
reads n and writes p n; broadcast reads n and writes (p - 1) n. Divided by the greatest rate of reading and writing
that any kernel of the probe reached with as much data per core.
Latency: one cache line from core to core; where r ranks share a core, r - 1 switches between them.
A lower bound, not an estimate: data that another core wrote last never comes at the rate of one's own cache."""
import math

LARGE = 1 << 20 # bytes of the larger buffer of a rank


def moved_bytes(coll, ranks, size):
    return {'all_reduce': 2 * ranks, 'all_to_all': 2 * ranks, 'reduce_scatter': ranks + 1, 'all_gather': ranks + 1,
            'broadcast': ranks, 'barrier': 0}[coll] * size


def best_rate(rates, sizes, per_core):
    """GB/s at a working set, the best kernel's, between the measured sizes by logarithm."""
    best = [max(kernel[i] for kernel in rates.values()) for i in range(len(sizes))]
    if per_core <= sizes[0]:
        return best[0]
    for i in range(1, len(sizes)):
        if per_core <= sizes[i]:
            share = math.log(per_core / sizes[i - 1]) / math.log(sizes[i] / sizes[i - 1])
            return best[i - 1] * (best[i] / best[i - 1]) ** share
    return best[-1]


def bound_us(probe, coll, ranks, size):
    if not probe:
        return None
    cores = min(ranks, probe['cores'])
    latency = probe['line_ns'] if cores > 1 else 0
    latency += (math.ceil(ranks / cores) - 1) * probe['switch_ns']
    moved = moved_bytes(coll, ranks, size)
    if moved == 0:
        return latency / 1e3
    rate = best_rate(probe['gbps']['all_cores'], probe['working_set_bytes'], moved / cores)
    if cores < probe['cores']:
        rate = min(rate, cores * best_rate(probe['gbps']['one_core'], probe['working_set_bytes'], moved / cores))
    return latency / 1e3 + moved / rate / 1e3
