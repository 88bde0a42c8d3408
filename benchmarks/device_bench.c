/* Speed of the reduce and copy kernels, per instruction set and size, next to memcpy of the same size measured in
 * alternation: compare the ratio, not the figures, of two machines or two minutes.
 *
 * GB/s counts the bytes of the destination (a sum of k sources reads k times as much). Each figure is from 21 timed
 * batches of at least 50 us; median shown, with the fastest and the 99th percentile (here the slowest) per call.
 *
 *   device_bench               a short list of operations
 *   device_bench DTYPE [OP]    one of them (default: sum) with 2, 4 and 16 sources */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/clock.h"
#include "device/kernels.h"

#define BATCHES 21
#define BATCH_NS 50000
#define TOO_SLOW_NS 20000000 /* a call this long gets no row: smaller sizes have told enough */
#define SOURCES_MAX 16
#define BYTES_MAX ((size_t)32 << 20)

/* Tiny; within L1; a slot of the shared-memory transport; L2; beyond. */
static const size_t sizes[] = {8, 64, 1024, 32 << 10, 256 << 10, 4 << 20, BYTES_MAX};

struct job {
    enum hkt_op op;
    enum hkt_dtype dtype;
    int nsrcs; /* 0: streaming copy */
};

static const struct job short_list[] = {
    {HKT_SUM, HKT_F32, 2},  {HKT_SUM, HKT_F64, 2},    {HKT_SUM, HKT_INT32, 2},  {HKT_SUM, HKT_F16, 2},
    {HKT_SUM, HKT_BF16, 2}, {HKT_SUM, HKT_F8E4M3, 2}, {HKT_MAX, HKT_F32, 2},    {HKT_PROD, HKT_INT64, 2},
    {HKT_SUM, HKT_F32, 8},  {HKT_SUM, HKT_BF16, 8},   {HKT_SUM, HKT_UINT8, 0},
};

static char *dst, *sources[SOURCES_MAX];

struct timing {
    double min_ns, median_ns, max_ns; /* per call */
};

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void call_once(const struct job *job, enum hkt__isa isa, size_t bytes)
{
    if (job == NULL)
        memcpy(dst, sources[0], bytes);
    else if (job->nsrcs == 0)
        hkt__kernels_get(isa)->copy_streaming(dst, sources[0], bytes);
    else
        hkt__reduce_get(job->op, job->dtype, isa)(dst, (const void *const *)sources, job->nsrcs,
                                                 bytes / hkt_dtype_size(job->dtype));
}

/* Nanoseconds of `calls` calls. job NULL: memcpy. */
static double time_batch(const struct job *job, enum hkt__isa isa, size_t bytes, int calls)
{
    const int64_t start = hkt__now_ns();

    for (int i = 0; i < calls; ++i) {
        call_once(job, isa, bytes);
        __asm__ volatile("" : : "r"(dst) : "memory");
    }
    return (double)(hkt__now_ns() - start);
}

static struct timing summary(double *ns, int calls)
{
    qsort(ns, BATCHES, sizeof ns[0], compare_doubles);
    return (struct timing){ns[0] / calls, ns[BATCHES / 2] / calls, ns[BATCHES - 1] / calls};
}

static void measure(const struct job *job, enum hkt__isa isa, size_t bytes)
{
    double kernel_ns[BATCHES], memcpy_ns[BATCHES];
    int calls = 1;

    if (time_batch(job, isa, bytes, 1) > TOO_SLOW_NS)
        return;
    while (time_batch(job, isa, bytes, calls) < BATCH_NS && calls < 1 << 24)
        calls *= 2;
    for (int i = 0; i < BATCHES; ++i) {
        kernel_ns[i] = time_batch(job, isa, bytes, calls);
        memcpy_ns[i] = time_batch(NULL, isa, bytes, calls);
    }
    const struct timing kernel = summary(kernel_ns, calls), copy = summary(memcpy_ns, calls);

    printf("%-6s %-9s %2d %-7s %9zu %11.1f %11.1f %11.1f %8.2f %8.2f %6.2f\n",
           job->nsrcs == 0 ? "copy" : hkt_op_name(job->op), job->nsrcs == 0 ? "streaming" : hkt_dtype_name(job->dtype),
           job->nsrcs == 0 ? 1 : job->nsrcs, hkt__isa_name(isa), bytes, kernel.min_ns, kernel.median_ns, kernel.max_ns,
           (double)bytes / kernel.median_ns, (double)bytes / copy.median_ns, copy.median_ns / kernel.median_ns);
}

static void measure_all_sizes(const struct job *job)
{
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
        for (int isa = 0; isa <= (int)hkt__isa_best(); ++isa) {
            if (job->nsrcs != 0 || hkt__kernels_get((enum hkt__isa)isa)->copy_streaming != NULL)
                measure(job, (enum hkt__isa)isa, sizes[s]);
        }
    }
}

/* Touched once before use; on huge pages where the system lends them, so that page walks do not hide the kernels. */
static char *buffer_of(size_t bytes)
{
    char *memory = aligned_alloc((size_t)2 << 20, bytes);

    if (memory == NULL) {
        fprintf(stderr, "device_bench: out of memory\n");
        exit(1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}

static int usage(void)
{
    fprintf(stderr, "usage: device_bench [DTYPE [OP]]: %s\n", hkt_last_error());
    return 2;
}

int main(int argc, char **argv)
{
    static const int source_counts[] = {2, 4, 16};
    struct job job = {HKT_SUM, HKT_F32, 2};

    if (argc > 3 || (argc > 1 && hkt_dtype_parse(argv[1], &job.dtype) != HKT_OK) ||
        (argc > 2 && hkt_op_parse(argv[2], &job.op) != HKT_OK) || hkt_op_check(job.op, job.dtype) != HKT_OK)
        return usage();
    dst = buffer_of(BYTES_MAX);
    for (int j = 0; j < (argc > 1 ? SOURCES_MAX : 8); ++j)
        sources[j] = buffer_of(BYTES_MAX);
    printf("# GB/s: bytes of the destination per median call; ratio: to memcpy of the same size, in alternation\n"
           "%-6s %-9s %2s %-7s %9s %11s %11s %11s %8s %8s %6s\n", "# op", "dtype", "k", "isa", "bytes", "min ns",
           "median ns", "p99 ns", "GB/s", "memcpy", "ratio");
    if (argc > 1) {
        for (size_t k = 0; k < sizeof source_counts / sizeof source_counts[0]; ++k) {
            job.nsrcs = source_counts[k];
            measure_all_sizes(&job);
        }
    } else {
        for (size_t i = 0; i < sizeof short_list / sizeof short_list[0]; ++i)
            measure_all_sizes(&short_list[i]);
    }
    for (int j = 0; j < SOURCES_MAX; ++j)
        free(sources[j]);
    free(dst);
    return 0;
}
