/* What this machine can do at all: the physical bounds that collectives on host memory are held against.
 *
 *   probe [--json] [--quick] [--max-bytes N]
 *
 * Bandwidth: kernels that read k arrays and write m, with ordinary and with non-temporal stores, on one core and on
 * all at once, for working sets from the first cache to far beyond it. Counted are bytes read plus bytes written
 * (10^9 bytes/s); what the hardware reads before it overwrites a line is not counted, so a kernel that avoids that
 * shows it. "2 to 2" is the inner loop of an all-reduce between two ranks: the sum of two inputs, stored to both.
 * Latency: one cache line from core to core and one switch between two threads of one core, each half a round trip.
 *
 * Every figure is the best of several repetitions: a bound is what the machine can do when nothing disturbs it. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { CORES_MAX = 64, ARRAYS_MAX = 8, SIZES_MAX = 16, STAGGER_BYTES = 320 };
static const size_t first_bytes = (size_t)16 << 10;

struct arrays {
    const float *in[ARRAYS_MAX];
    float *out[ARRAYS_MAX];
    size_t count; /* of each; a multiple of 16 */
};
typedef void (*kernel_function)(const struct arrays *arrays);

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- kernels ---- */

static void copy_libc(const struct arrays *arrays)
{
    memcpy(arrays->out[0], arrays->in[0], arrays->count * sizeof(float));
}

#if defined(__x86_64__)
/* Arrays are aligned to 64 bytes. Inlined with constants, so that the inner loops unroll. */
__attribute__((target("avx2"), always_inline)) static inline void sum_avx2(const struct arrays *arrays, int inputs,
                                                                           int outputs, bool non_temporal)
{
    for (size_t i = 0; i < arrays->count; i += 8) {
        __m256 sum = _mm256_load_ps(arrays->in[0] + i);

        for (int k = 1; k < inputs; k++)
            sum = _mm256_add_ps(sum, _mm256_load_ps(arrays->in[k] + i));
        for (int m = 0; m < outputs; m++) {
            if (non_temporal)
                _mm256_stream_ps(arrays->out[m] + i, sum);
            else
                _mm256_store_ps(arrays->out[m] + i, sum);
        }
    }
    if (non_temporal)
        _mm_sfence();
}
#define SUM_ATTRIBUTES __attribute__((target("avx2"), optimize("unroll-loops")))
#if defined(__clang__)
#undef SUM_ATTRIBUTES
#define SUM_ATTRIBUTES __attribute__((target("avx2")))
#endif
#define SUM(arrays, inputs, outputs, non_temporal) sum_avx2(arrays, inputs, outputs, non_temporal)
#else
#define SUM_ATTRIBUTES
static inline void sum_plain(const struct arrays *arrays, int inputs, int outputs)
{
    for (size_t i = 0; i < arrays->count; i++) {
        float sum = arrays->in[0][i];

        for (int k = 1; k < inputs; k++)
            sum += arrays->in[k][i];
        for (int m = 0; m < outputs; m++)
            arrays->out[m][i] = sum;
    }
}
#define SUM(arrays, inputs, outputs, non_temporal) sum_plain(arrays, inputs, outputs)
#endif

/* X(name, inputs, outputs, non-temporal) */
#define KERNEL_TABLE(X)                                                                                                \
    X(copy_1_to_1, 1, 1, false)                                                                                        \
    X(copy_1_to_1_nt, 1, 1, true)                                                                                      \
    X(sum_2_to_1, 2, 1, false)                                                                                         \
    X(sum_2_to_1_nt, 2, 1, true)                                                                                       \
    X(sum_4_to_1, 4, 1, false)                                                                                         \
    X(sum_4_to_1_nt, 4, 1, true)                                                                                       \
    X(sum_2_to_2, 2, 2, false)                                                                                         \
    X(sum_2_to_2_nt, 2, 2, true)                                                                                       \
    X(sum_4_to_4, 4, 4, false)                                                                                         \
    X(sum_4_to_4_nt, 4, 4, true)

#define KERNEL_FUNCTION(name, inputs, outputs, non_temporal)                                                           \
    SUM_ATTRIBUTES static void name(const struct arrays *arrays)                                                       \
    {                                                                                                                  \
        SUM(arrays, inputs, outputs, non_temporal);                                                                    \
    }
KERNEL_TABLE(KERNEL_FUNCTION)

static const struct kernel {
    const char *name;
    int inputs, outputs;
    kernel_function run;
} kernels[] = { { "copy_libc", 1, 1, copy_libc },
#define KERNEL_ROW(name, inputs, outputs, non_temporal) { #name, inputs, outputs, name },
                KERNEL_TABLE(KERNEL_ROW) };
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

/* ---- bandwidth ---- */

struct probe {
    int cores, repetitions, sizes;
    int64_t span_ns; /* of one repetition */
    size_t max_bytes;
    int cpu_of[CORES_MAX];
    pthread_barrier_t barrier;
    double rate[CORES_MAX];             /* of the repetition at hand; each worker its own */
    double gbps[2][KERNELS][SIZES_MAX]; /* one core; all */
    double line_ns, switch_ns;
};
struct worker {
    struct probe *probe;
    int core;
    char *memory;
};

static void pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* Cut `bytes` of memory in equal arrays, with gaps so that equal indexes do not meet in one set of the cache. */
static struct arrays cut(char *memory, size_t bytes, const struct kernel *kernel)
{
    const int parts = kernel->inputs + kernel->outputs;
    const size_t part_bytes = bytes / (size_t)parts / 64 * 64;
    struct arrays arrays = { .count = part_bytes / sizeof(float) };

    for (int i = 0; i < parts; i++) {
        float *start = (float *)(void *)(memory + (size_t)i * (part_bytes + STAGGER_BYTES));

        if (i < kernel->inputs)
            arrays.in[i] = start;
        else
            arrays.out[i - kernel->inputs] = start;
    }
    return arrays;
}

static double rate(const struct kernel *kernel, const struct arrays *arrays, int64_t span_ns)
{
    const double bytes = (double)arrays->count * sizeof(float) * (kernel->inputs + kernel->outputs);
    const int64_t start_ns = now_ns();
    int64_t took_ns, passes = 0;

    do {
        kernel->run(arrays);
        passes++;
        took_ns = now_ns() - start_ns;
    } while (took_ns < span_ns);
    return bytes * (double)passes / (double)took_ns;
}

/* One kernel at one size, best of the repetitions; all workers call it together. */
static void measure(struct worker *worker, int all, int index, int size)
{
    struct probe *probe = worker->probe;
    const struct kernel *kernel = &kernels[index];
    const struct arrays arrays = cut(worker->memory, first_bytes << (2 * size), kernel);

    kernel->run(&arrays);
    for (int repetition = 0; repetition < probe->repetitions; repetition++) {
        pthread_barrier_wait(&probe->barrier);
        if (all || worker->core == 0)
            probe->rate[worker->core] = rate(kernel, &arrays, probe->span_ns);
        pthread_barrier_wait(&probe->barrier);
        if (worker->core == 0) {
            double sum = 0;

            for (int core = 0; core < (all ? probe->cores : 1); core++)
                sum += probe->rate[core];
            if (sum > probe->gbps[all][index][size])
                probe->gbps[all][index][size] = sum;
        }
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    const size_t huge_bytes = (size_t)2 << 20, bytes = worker->probe->max_bytes + 2 * huge_bytes;

    pin(worker->probe->cpu_of[worker->core]);
    char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        fprintf(stderr, "no memory for %zu bytes: use --max-bytes\n", bytes);
        exit(1);
    }
    madvise(map, bytes, MADV_HUGEPAGE);
    memset(map, 0, bytes); /* zeros add up to zeros, whatever the kernel and however often */
    worker->memory = map + (huge_bytes - (uintptr_t)map % huge_bytes);
    for (int all = 0; all < 2; all++)
        for (int size = 0; size < worker->probe->sizes; size++)
            for (int kernel = 0; kernel < KERNELS; kernel++)
                measure(worker, all, kernel, size);
    munmap(map, bytes);
    return NULL;
}

static void measure_bandwidth(struct probe *probe)
{
    static struct worker workers[CORES_MAX];
    pthread_t threads[CORES_MAX];

    pthread_barrier_init(&probe->barrier, NULL, (unsigned)probe->cores);
    for (int core = 0; core < probe->cores; core++) {
        workers[core] = (struct worker){ .probe = probe, .core = core };
        if (pthread_create(&threads[core], NULL, work, &workers[core]) != 0) {
            fprintf(stderr, "no thread\n");
            exit(1);
        }
    }
    for (int core = 0; core < probe->cores; core++)
        pthread_join(threads[core], NULL);
    pthread_barrier_destroy(&probe->barrier);
}

/* ---- latency ---- */

#define LATENCY_NS 1000000000 /* ten times what all repetitions take on idle cores, and more */

struct pong {
    _Alignas(128) atomic_int ping;
    _Alignas(128) atomic_int pong;
    int cpu, rounds;
    bool yields;
};

static void await(atomic_int *flag, int value, bool yields)
{
    while (atomic_load_explicit(flag, memory_order_acquire) != value) {
        if (yields)
            sched_yield();
#if defined(__x86_64__)
        else
            __builtin_ia32_pause();
#endif
    }
}

static void *answer(void *argument)
{
    struct pong *pong = argument;

    pin(pong->cpu);
    for (int round = 1; round <= pong->rounds; round++) {
        await(&pong->ping, round, pong->yields);
        atomic_store_explicit(&pong->pong, round, memory_order_release);
    }
    return NULL;
}

/* Nanoseconds one way between this thread on cpu `here` and another on cpu `there`; best of `repetitions`, or of those that fit into
 * LATENCY_NS where other work keeps the two from running at once. */
static double one_way_ns(int here, int there, int rounds, int repetitions)
{
    const int64_t end_ns = now_ns() + LATENCY_NS;
    double best = 1e18;

    for (int repetition = 0; repetition < repetitions && (repetition == 0 || now_ns() < end_ns); repetition++) {
        struct pong pong = { .cpu = there, .rounds = rounds, .yields = here == there };
        pthread_t thread;

        pin(here);
        if (pthread_create(&thread, NULL, answer, &pong) != 0)
            return 0;
        atomic_store_explicit(&pong.ping, 1, memory_order_release);
        await(&pong.pong, 1, true); /* the thread is there */
        const int64_t start_ns = now_ns();
        for (int round = 2; round <= rounds; round++) {
            atomic_store_explicit(&pong.ping, round, memory_order_release);
            await(&pong.pong, round, pong.yields);
        }
        const double took_ns = (double)(now_ns() - start_ns) / (rounds - 1) / 2;
        pthread_join(thread, NULL);
        best = took_ns < best ? took_ns : best;
    }
    return best;
}

/* ---- output ---- */

static void print_json(const struct probe *probe)
{
    printf("{\"cores\": %d, \"line_ns\": %.1f, \"switch_ns\": %.1f, \"working_set_bytes\": [", probe->cores,
           probe->line_ns, probe->switch_ns);
    for (int size = 0; size < probe->sizes; size++)
        printf("%s%zu", size ? ", " : "", first_bytes << (2 * size));
    printf("], \"gbps\": {");
    for (int all = 0; all < 2; all++) {
        printf("%s\"%s\": {", all ? ", " : "", all ? "all_cores" : "one_core");
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            printf("%s\"%s\": [", kernel ? ", " : "", kernels[kernel].name);
            for (int size = 0; size < probe->sizes; size++)
                printf("%s%.2f", size ? ", " : "", probe->gbps[all][kernel][size]);
            printf("]");
        }
        printf("}");
    }
    printf("}}\n");
}

static void print_text(const struct probe *probe)
{
    printf("cache line, core to core: %.0f ns one way; switch between two threads of a core: %.0f ns\n", probe->line_ns,
           probe->switch_ns);
    for (int all = 0; all < 2; all++) {
        printf("\nGB/s read + written, %d core%s; columns: working set per core\n%-16s", all ? probe->cores : 1,
               all && probe->cores > 1 ? "s together" : "", "");
        for (int size = 0; size < probe->sizes; size++)
            printf(" %6zuK", (first_bytes << (2 * size)) / 1024);
        printf("\n");
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            printf("%-16s", kernels[kernel].name);
            for (int size = 0; size < probe->sizes; size++)
                printf(" %7.1f", probe->gbps[all][kernel][size]);
            printf("\n");
        }
    }
}

int main(int argc, char **argv)
{
    static struct probe probe = { .repetitions = 5, .span_ns = 8000000, .max_bytes = (size_t)256 << 20 };
    bool json = false;
    cpu_set_t allowed;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--quick") == 0) {
            probe.repetitions = 3;
            probe.span_ns = 1000000;
        } else if (strcmp(argv[i], "--max-bytes") == 0 && i + 1 < argc) {
            probe.max_bytes = (size_t)strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr,
                    "usage: probe [--json] [--quick] [--max-bytes N]\n"
                    "GB/s of copying and summing kernels and ns of a cache line's way; N bytes per core at most, "
                    "16384 to 2^40, default 2^28\n");
            return strcmp(argv[i], "--help") == 0 ? 0 : 2;
        }
    }
    if (probe.max_bytes < first_bytes || probe.max_bytes > (size_t)1 << 40) {
        fprintf(stderr, "--max-bytes: 16384 to 2^40\n");
        return 2;
    }
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2")) {
        fprintf(stderr, "needs AVX2\n");
        return 1;
    }
#endif
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE && probe.cores < CORES_MAX; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            probe.cpu_of[probe.cores++] = cpu;
    while (probe.sizes < SIZES_MAX && first_bytes << (2 * probe.sizes) <= probe.max_bytes)
        probe.sizes++;
    if (probe.cores > 1)
        probe.line_ns = one_way_ns(probe.cpu_of[0], probe.cpu_of[1], 1000, 100);
    probe.switch_ns = one_way_ns(probe.cpu_of[0], probe.cpu_of[0], 200, 50);
    measure_bandwidth(&probe);
    (json ? print_json : print_text)(&probe);
    return 0;
}
