/* How fast the kernels are on a GPU: bytes moved per second, reads and writes counted, beside a copy by the device's own
 * means measured in the same run; and how long launches take. Each figure is the median of several batches, whose results
 * are checked. Not a test of speed: it fails only when a call does, or a result is wrong.
 * Usage: test_gpu_speed [small], small: to see that it works. */
#include "device_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

#define BATCHES_MAX 9
#define LAUNCHES 256 /* of a batch: fewer than a stream holds before the host must wait */
#define AIM 0.90     /* of the device's copy, for sums of f32 and bf16 from 64 MiB on */
#define BLOCKS_PER_SM 4 /* 2048 threads, as many as a multiprocessor holds */

struct setting {
    const struct hkt__cuda_module *module;
    cudaStream_t stream;
    struct hkt__kernel_on on;
    size_t bytes;
    int batches, calls; /* calls of a batch */
    char *dst, *srcs[4];
};

/** Enqueues one call; returns the bytes it reads and writes. */
typedef size_t one_call(const struct setting *s, enum hkt_dtype dtype, int nsrcs);

static size_t by_device(const struct setting *s, enum hkt_dtype dtype, int nsrcs)
{
    (void)dtype, (void)nsrcs;
    must(cudaMemcpyAsync(s->dst, s->srcs[0], s->bytes, cudaMemcpyDeviceToDevice, s->stream));
    return 2 * s->bytes;
}

static size_t by_copy(const struct setting *s, enum hkt_dtype dtype, int nsrcs)
{
    const struct hkt__copy_args args = { s->dst, s->srcs[0], s->bytes, 1, s->bytes, s->bytes };

    (void)dtype, (void)nsrcs;
    must(s->module->copy(&args, &s->on));
    return 2 * s->bytes;
}

static size_t by_sum(const struct setting *s, enum hkt_dtype dtype, int nsrcs)
{
    struct hkt__reduce_args args = { .dst = s->dst, .count = s->bytes / hkt_dtype_size(dtype), .nsrcs = nsrcs };

    for (int j = 0; j < nsrcs; ++j)
        args.srcs[j] = s->srcs[j];
    must(s->module->reduce(&args, HKT_SUM, dtype, &s->on));
    return (size_t)(nsrcs + 1) * s->bytes;
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/** Median GB/s. All sources hold zeros, so every sum and copy must too. */
static double measure(const struct setting *s, one_call *call, enum hkt_dtype dtype, int nsrcs)
{
    double rates[BATCHES_MAX];
    char *result = malloc(s->bytes);
    size_t wrong = 0;

    assert_non_null(result);
    must(cudaMemsetAsync(s->dst, 0xff, s->bytes, s->stream));
    call(s, dtype, nsrcs);
    must(cudaStreamSynchronize(s->stream));
    for (int b = 0; b < s->batches; ++b) {
        const double start = now_s();
        size_t moved = 0;

        for (int i = 0; i < s->calls; ++i)
            moved += call(s, dtype, nsrcs);
        must(cudaStreamSynchronize(s->stream));
        rates[b] = (double)moved / (now_s() - start) * 1e-9;
    }
    must(cudaMemcpyAsync(result, s->dst, s->bytes, cudaMemcpyDeviceToHost, s->stream));
    must(cudaStreamSynchronize(s->stream));
    for (size_t i = 0; i < s->bytes; ++i)
        wrong += result[i] != 0;
    free(result);
    assert_int_equal(wrong, 0);
    qsort(rates, (size_t)s->batches, sizeof *rates, by_value);
    return rates[s->batches / 2];
}

static size_t largest_bytes = (size_t)256 << 20;
static bool is_small;

static void setting_open(struct setting *s, size_t bytes)
{
    int nsms;
    void *p;

    *s = (struct setting){ .module = hkt__cuda_module(), .batches = is_small ? 1 : BATCHES_MAX };
    must(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    must(cudaDeviceGetAttribute(&nsms, cudaDevAttrMultiProcessorCount, 0));
    s->on = (struct hkt__kernel_on){ s->stream, nsms * BLOCKS_PER_SM };
    for (int j = 0; j < 5; ++j) {
        must(cudaMalloc(&p, bytes));
        must(cudaMemsetAsync(p, 0, bytes, s->stream));
        *(j < 4 ? &s->srcs[j] : &s->dst) = p;
    }
}

static void setting_close(struct setting *s)
{
    for (int j = 0; j < 5; ++j)
        must(cudaFree(j < 4 ? s->srcs[j] : s->dst));
    must(cudaStreamDestroy(s->stream));
}

/** Sums of one size beside a copy; returns the least that those of f32 and bf16 reach of it. */
static double sums_beside_a_copy(const struct setting *s)
{
    static const enum hkt_dtype dtypes[] = { HKT_F32, HKT_BF16, HKT_F16, HKT_F64, HKT_INT32, HKT_UINT8, HKT_F8E4M3 };
    const double copy = measure(s, by_device, HKT_UINT8, 1), own = measure(s, by_copy, HKT_UINT8, 1);
    double least = 1e9;

    printf("%10zu %10s %10s %8.1f %8.2f\n", s->bytes, "cudaMemcpy", "-", copy, 1.0);
    printf("%10zu %10s %10s %8.1f %8.2f\n", s->bytes, "copy", "-", own, own / copy);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; ++d)
        for (int nsrcs = 2; nsrcs <= 4; nsrcs += 2) {
            const double rate = measure(s, by_sum, dtypes[d], nsrcs);

            printf("%10zu %8s/%d %10s %8.1f %8.2f\n", s->bytes, "sum", nsrcs, hkt_dtype_name(dtypes[d]), rate, rate / copy);
            if (d < 2 && rate / copy < least)
                least = rate / copy;
        }
    return least;
}

static void kernels_beside_a_copy(void **state)
{
    static const int shifts[] = { 12, 8, 4, 2, 0 }; /* of 256 MiB: 64 KiB, 1, 16, 64, 256 MiB */
    struct setting s;
    double least = 1e9;

    (void)state;
    setting_open(&s, largest_bytes);
    printf("%10s %10s %10s %8s %8s\n", "bytes", "kernel", "type", "GB/s", "of copy");
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; ++i) {
        s.bytes = largest_bytes >> shifts[i];
        s.calls = is_small ? 1 : s.bytes < (size_t)16 << 20 ? 64 : 8;
        const double share = sums_beside_a_copy(&s);

        if (shifts[i] <= 2 && share < least)
            least = share;
    }
    printf("sums of f32 and bf16 of %zu bytes and more: %.2f of the device's copy or more; the aim is %.2f, %s\n",
           largest_bytes >> 2, least, AIM, least >= AIM ? "reached" : "not reached");
    setting_close(&s);
}

/** The smallest kernel, of one block: what enqueueing it costs the host, how soon it follows another, how soon it is known
 *  to have run when nothing else is there. */
static void launches(void **state)
{
    const int n = is_small ? 8 : LAUNCHES;
    double enqueued[BATCHES_MAX], following[BATCHES_MAX], alone[LAUNCHES];
    unsigned char result[16];
    struct setting s;

    (void)state;
    setting_open(&s, sizeof result);
    s.bytes = sizeof result;
    s.on.blocks_max = 1;
    must(cudaMemsetAsync(s.dst, 0xff, s.bytes, s.stream));
    by_copy(&s, HKT_UINT8, 1);
    must(cudaStreamSynchronize(s.stream));
    for (int b = 0; b < s.batches; ++b) {
        const double start = now_s();

        for (int i = 0; i < n; ++i)
            by_copy(&s, HKT_UINT8, 1);
        enqueued[b] = (now_s() - start) / n * 1e6;
        must(cudaStreamSynchronize(s.stream));
        following[b] = (now_s() - start) / n * 1e6;
    }
    for (int i = 0; i < n; ++i) {
        const double start = now_s();

        by_copy(&s, HKT_UINT8, 1);
        must(cudaStreamSynchronize(s.stream));
        alone[i] = (now_s() - start) * 1e6;
    }
    must(cudaMemcpyAsync(result, s.dst, sizeof result, cudaMemcpyDeviceToHost, s.stream));
    must(cudaStreamSynchronize(s.stream));
    for (size_t i = 0; i < sizeof result; ++i)
        assert_int_equal(result[i], 0);
    qsort(enqueued, (size_t)s.batches, sizeof *enqueued, by_value);
    qsort(following, (size_t)s.batches, sizeof *following, by_value);
    qsort(alone, (size_t)n, sizeof *alone, by_value);
    printf("a launch of one block: %.2f us to enqueue, %.2f us one after another, %.2f us with waiting for it alone (medians)\n",
           enqueued[s.batches / 2], following[s.batches / 2], alone[n / 2]);
    setting_close(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(launches), cmocka_unit_test(kernels_beside_a_copy) };

    is_small = argc > 1 && strcmp(argv[1], "small") == 0;
    if (is_small)
        largest_bytes = (size_t)1 << 16;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
