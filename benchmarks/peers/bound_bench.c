/* The memory bound as a "library" under benchmarks/peers/run: it moves the bytes that a collective cannot do without, by plain
 * loops, on all ranks' cores at once, and nothing else. It takes its turns beside the libraries, so that what they reach of it
 * is a quotient of times measured within a second or two of each other; a virtual machine's memory is not the same a minute later.
 *
 *   env BOUND_RANKS=p bound_bench DIRECTORY MAX_BYTES PIN
 *
 * The ranks are processes made by fork that map all buffers, on huge pages where they can be had. With p ranks: all_reduce reads slice
 * r of all inputs and stores the sum to all outputs, reduce_scatter to one; all_gather stores a block to all outputs; all_to_all
 * stores each block to its reader; broadcast stores slice r of the root's buffer to all others. Before each turn stores past the
 * caches and ordinary ones are tried, and the faster of the two is used. */
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "bench_loop.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { RANKS_MAX = 64, TRIES = 5, SLICE_ALIGN = 16, POLLS_BEFORE_YIELD = 1000 };
static const size_t huge_bytes = (size_t)2 << 20;

/* In memory that all ranks map. */
struct shared {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint phase;
    int64_t took_ns[RANKS_MAX];
};

struct bound {
    int rank, nranks, allocated;
    struct shared *shared;
    float *buffers[RANKS_MAX][2]; /* send, recv */
    bool past_caches;
};

struct move {
    float *from[RANKS_MAX], *to[RANKS_MAX];
    int nfrom, nto;
    size_t count;
};

/* ---- loops ---- */

/* Elements [first, end), one by one. */
static void move_few(const struct move *move, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        float sum = move->from[0][i];

        for (int k = 1; k < move->nfrom; k++)
            sum += move->from[k][i];
        for (int m = 0; m < move->nto; m++)
            move->to[m][i] = sum;
    }
}

#if defined(__x86_64__)
enum { LINE_FLOATS = 16, AHEAD_FLOATS = 256 };

/* Whole lines from `first` on, where all of `to` are aligned; gives where they end. Inlined with constants for few arrays. */
__attribute__((target("avx512f"), always_inline)) static inline size_t move_lines_avx512(const struct move *move, size_t first,
                                                                                       int nfrom, int nto, bool past_caches)
{
    size_t i = first;

    for (; i + LINE_FLOATS <= move->count; i += LINE_FLOATS) {
        __m512 sum = _mm512_loadu_ps(move->from[0] + i);

        __builtin_prefetch(move->from[0] + i + AHEAD_FLOATS);
        for (int k = 1; k < nfrom; k++) {
            __builtin_prefetch(move->from[k] + i + AHEAD_FLOATS);
            sum = _mm512_add_ps(sum, _mm512_loadu_ps(move->from[k] + i));
        }
        for (int m = 0; m < nto; m++) {
            if (past_caches)
                _mm512_stream_ps(move->to[m] + i, sum);
            else
                _mm512_store_ps(move->to[m] + i, sum);
        }
    }
    _mm_sfence();
    return i;
}

__attribute__((target("avx2"), always_inline)) static inline size_t move_lines_avx2(const struct move *move, size_t first, int nfrom,
                                                                                   int nto, bool past_caches)
{
    size_t i = first;

    for (; i + LINE_FLOATS / 2 <= move->count; i += LINE_FLOATS / 2) {
        __m256 sum = _mm256_loadu_ps(move->from[0] + i);

        for (int k = 1; k < nfrom; k++)
            sum = _mm256_add_ps(sum, _mm256_loadu_ps(move->from[k] + i));
        for (int m = 0; m < nto; m++) {
            if (past_caches)
                _mm256_stream_ps(move->to[m] + i, sum);
            else
                _mm256_store_ps(move->to[m] + i, sum);
        }
    }
    _mm_sfence();
    return i;
}

#define MOVE_WITH(set, isa, name, nfrom, nto)                                                                                   \
    __attribute__((target(isa))) static size_t name##_##set(const struct move *move, size_t first, bool past_caches)            \
    {                                                                                                                           \
        return past_caches ? move_lines_##set(move, first, nfrom, nto, true) : move_lines_##set(move, first, nfrom, nto, false); \
    }
#define MOVE(name, nfrom, nto)                                                                                                  \
    MOVE_WITH(avx512, "avx512f", name, nfrom, nto)                                                                              \
    MOVE_WITH(avx2, "avx2", name, nfrom, nto)                                                                                   \
    static size_t name(const struct move *move, size_t first, bool past_caches)                                                 \
    {                                                                                                                           \
        return __builtin_cpu_supports("avx512f") ? name##_avx512(move, first, past_caches) : name##_avx2(move, first, past_caches); \
    }
MOVE(move_1_to_1, 1, 1)
MOVE(move_2_to_1, 2, 1)
MOVE(move_1_to_2, 1, 2)
MOVE(move_2_to_2, 2, 2)
MOVE(move_any, move->nfrom, move->nto)

static void move_bytes(const struct move *move, bool past_caches)
{
    static size_t (*const few[2][2])(const struct move *, size_t, bool) = { { move_1_to_1, move_1_to_2 },
                                                                            { move_2_to_1, move_2_to_2 } };
    /* All targets are aligned alike: the same place in buffers that begin at pages. */
    const size_t head = (size_t)(-(uintptr_t)move->to[0] % (LINE_FLOATS * sizeof(float))) / sizeof(float);
    const size_t first = head < move->count ? head : move->count;

    move_few(move, 0, first);
    move_few(move, (move->nfrom <= 2 && move->nto <= 2 ? few[move->nfrom - 1][move->nto - 1] : move_any)(move, first, past_caches),
             move->count);
}
#else
static void move_bytes(const struct move *move, bool past_caches)
{
    (void)past_caches;
    move_few(move, 0, move->count);
}
#endif

/* ---- the collectives ---- */

/* The part of this rank where `count` elements are shared out; whole lines. */
static size_t slice_at(const struct bound *bound, size_t count, int rank)
{
    return rank == bound->nranks ? count : count / (size_t)bound->nranks * (size_t)rank / SLICE_ALIGN * SLICE_ALIGN;
}

/* All ranks' buffers of a kind, at an element. */
static void all_at(const struct bound *bound, int kind, size_t at, float **out)
{
    for (int rank = 0; rank < bound->nranks; rank++)
        out[rank] = bound->buffers[rank][kind] + at;
}

static void move_blocks(const struct bound *bound, size_t count)
{
    for (int k = 1; k <= bound->nranks; k++) {
        const size_t other = (size_t)((bound->rank + k) % bound->nranks);
        const struct move move = { .from = { bound->buffers[bound->rank][0] + other * count },
                                   .to = { bound->buffers[other][1] + (size_t)bound->rank * count },
                                   .nfrom = 1, .nto = 1, .count = count };

        move_bytes(&move, bound->past_caches);
    }
}

static void do_work(const struct bound *bound, const struct bench_call *call)
{
    const int rank = bound->rank, nranks = bound->nranks;
    const size_t first = slice_at(bound, call->count, rank), slice = slice_at(bound, call->count, rank + 1) - first;
    const size_t block = (size_t)rank * call->count;
    struct move move = { .from = { bound->buffers[rank][0] }, .nfrom = 1, .nto = nranks, .count = call->count };

    switch (call->coll) {
    case BENCH_ALL_REDUCE:
    case BENCH_REDUCE_SCATTER:
        all_at(bound, 0, call->coll == BENCH_ALL_REDUCE ? first : block, move.from);
        all_at(bound, 1, call->coll == BENCH_ALL_REDUCE ? first : 0, move.to);
        move.nfrom = nranks;
        if (call->coll == BENCH_ALL_REDUCE) {
            move.count = slice;
        } else {
            move.to[0] = bound->buffers[rank][1];
            move.nto = 1;
        }
        break;
    case BENCH_ALL_GATHER:
        all_at(bound, 1, block, move.to);
        break;
    case BENCH_BROADCAST:
        all_at(bound, 1, first, move.to);
        move.from[0] = move.to[0];
        move.to[0] = move.to[nranks - 1];
        move.nto = nranks - 1;
        move.count = slice;
        break;
    default: /* a barrier moves nothing */
        if (call->coll == BENCH_ALL_TO_ALL)
            move_blocks(bound, call->count);
        return;
    }
    move_bytes(&move, bound->past_caches);
}

/* ---- ranks ---- */

static void meet(struct bound *bound)
{
    struct shared *shared = bound->shared;
    const unsigned phase = atomic_load_explicit(&shared->phase, memory_order_relaxed); /* cannot change before we arrive */

    /* M1: acquire-release, so that the last to arrive holds what all others wrote */
    if (atomic_fetch_add_explicit(&shared->arrived, 1, memory_order_acq_rel) == bound->nranks - 1) {
        atomic_store_explicit(&shared->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&shared->phase, phase + 1, memory_order_release); /* M2: passes it on; pairs with M3 */
        return;
    }
    for (int polls = 0; atomic_load_explicit(&shared->phase, memory_order_acquire) == phase; polls++) /* M3 */
        if (polls >= POLLS_BEFORE_YIELD)
            sched_yield();
}

static int call_all(void *context, const struct bench_call *call)
{
    struct bound *bound = context;

    do_work(bound, call);
    meet(bound);
    return 0;
}

/* The least time of all ranks together with one kind of stores. The first call warms up. */
static int64_t try_stores(struct bound *bound, const struct bench_call *call, bool past_caches)
{
    int64_t best_ns = INT64_MAX;

    bound->past_caches = past_caches;
    for (int i = 0; i <= TRIES; i++) {
        struct timespec start, end;
        int64_t slowest_ns = 0;

        meet(bound);
        clock_gettime(CLOCK_MONOTONIC, &start);
        call_all(bound, call);
        clock_gettime(CLOCK_MONOTONIC, &end);
        bound->shared->took_ns[bound->rank] = (int64_t)(end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec;
        meet(bound);
        for (int rank = 0; rank < bound->nranks; rank++)
            slowest_ns = bound->shared->took_ns[rank] > slowest_ns ? bound->shared->took_ns[rank] : slowest_ns;
        meet(bound);
        if (i > 0 && slowest_ns < best_ns)
            best_ns = slowest_ns;
    }
    return best_ns;
}

/* All ranks see the same times. */
static int prepare(void *context, const struct bench_call *call)
{
    struct bound *bound = context;
    const int64_t ordinary_ns = try_stores(bound, call, false), past_ns = try_stores(bound, call, true);

    bound->past_caches = past_ns < ordinary_ns;
    return 0;
}

static void *allocate(void *context, size_t bytes)
{
    struct bound *bound = context;

    (void)bytes; /* it is there already */
    return bound->buffers[bound->rank][bound->allocated++];
}

/* Shared memory for the ranks to come, of huge pages if the system has any: these need addresses and offsets that are multiples of
 * their size. */
static char *map_shared(size_t bytes)
{
    char *room = mmap(NULL, bytes + huge_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *memory;

    if (room == MAP_FAILED)
        return NULL;
    memory = mmap(room + -(uintptr_t)room % huge_bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    for (size_t at = 0; at < bytes; at += huge_bytes)
        ((volatile char *)memory)[at] = 0;
    madvise(memory, bytes, MADV_COLLAPSE); /* Linux 6.1, where the system does not make them by itself */
    return memory;
}

static bool map_buffers(struct bound *bound, size_t bytes)
{
    const size_t pitch = (bytes + huge_bytes - 1) / huge_bytes * huge_bytes;
    char *memory = map_shared(2 * (size_t)bound->nranks * pitch);

    bound->shared = mmap(NULL, sizeof *bound->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!memory || bound->shared == MAP_FAILED)
        return false;
    for (int i = 0; i < 2 * bound->nranks; i++)
        bound->buffers[i / 2][i % 2] = (float *)(void *)(memory + (size_t)i * pitch);
    return true;
}

int main(int argc, char **argv)
{
    static struct bound bound;
    const char *ranks = getenv("BOUND_RANKS");
    int code, others = 0;

    bound.nranks = ranks ? (int)strtol(ranks, NULL, 10) : 0;
    if (argc != 4 || bound.nranks < 1 || bound.nranks > RANKS_MAX || !map_buffers(&bound, (size_t)strtoull(argv[2], NULL, 10))) {
        fprintf(stderr, "started by benchmarks/peers/run, with memory for all buffers\n");
        return 2;
    }
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) {
        fprintf(stderr, "needs AVX2\n");
        return 1;
    }
#endif
    for (int rank = 1; rank < bound.nranks && bound.rank == 0; rank++) {
        const pid_t child = fork();

        if (child < 0)
            return 1;
        bound.rank = child == 0 ? rank : 0;
    }
    const struct bench_driver driver = { .rank = bound.rank, .nranks = bound.nranks, .context = &bound, .prepare = prepare,
                                         .call = call_all, .allocate = allocate };
    code = bench_serve(&driver, argc, argv);
    while (bound.rank == 0 && wait(&others) > 0)
        code = others != 0 ? 1 : code;
    return code;
}
