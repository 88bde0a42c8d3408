/* What the drivers of all libraries share, so that they differ in the calls under test and in nothing else: buffers,
 * contents, checks, the timed loop, the statistics and the conversation with benchmarks/peers/run.
 *
 * One set of processes per library lives for the whole benchmark and sleeps unless it is its turn. The ranks of a set
 * meet in a page of shared memory of the benchmark's own, never through the library under test.
 *
 * A turn: fill the buffers, call once, check; warm up; then samples. A sample is a batch of calls back to back (one
 * call where a call takes 20 us or more, else as many as fill 20 us), started from a common barrier; its time per
 * call is that of the slowest rank. The last call is checked too. Reported: median, minimum, p99 of the samples. */
#ifndef HOCKET_PEERS_BENCH_LOOP_H
#define HOCKET_PEERS_BENCH_LOOP_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bench_coll {
    BENCH_ALL_REDUCE,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_BROADCAST,
    BENCH_ALL_TO_ALL,
    BENCH_BARRIER,
    BENCH_COLL_COUNT
};

/** One call: float sum, root 0. `count` is elements of one block: the whole buffer for all_reduce and broadcast, the
 *  part of one rank for the others. broadcast works on `recv` alone. */
struct bench_call {
    enum bench_coll coll;
    size_t count;
    float *send;
    float *recv;
};

/** A library under test. Functions return 0, or -1 after printing the reason to stderr, which ends the benchmark. */
struct bench_driver {
    int rank, nranks;
    void *context;
    int (*prepare)(void *context, const struct bench_call *call); /* before a turn, untimed; may be NULL */
    int (*call)(void *context, const struct bench_call *call);
    void *(*allocate)(void *context, size_t bytes); /* a buffer that lives as long as the process; NULL: malloc */
    int reduce_scatter_in_place; /* 1: it leaves its result at the start of `send` (and garbage behind) */
    int all_reduce_in_place; /* 1: it leaves its result in `send` */
};

/** Serve turns until benchmarks/peers/run closes the conversation; argv as run passes it: DIRECTORY MAX_BYTES PIN.
 *  Returns the exit code of the process. */
int bench_serve(const struct bench_driver *driver, int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
