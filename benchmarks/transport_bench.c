/* What a transport costs between two ranks on two cores: latency of small frames, one way, and streaming bandwidth with a
 * copy into and out of the frames.
 *
 *   transport_bench [TRANSPORT...]        default: all that need not be named to be used
 *
 * One way latency = half a round trip; GB/s = bytes of payload / time, 10^9. Ranks are processes (threads for "thread")
 * pinned to CPUs 0 and 1 where that is possible. Each row: 51 timed samples after a warm-up; minimum, median and p99 of the
 * samples are printed, in ns or GB/s. Every payload received is checked. Two yardsticks are measured in the same run: two
 * bare cache lines, one written by each rank (what any exchange of messages must pay), and memcpy. Polls pause the core
 * between looks: with a tight loop everything is 20-30 ns slower here, the yardstick included. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "../tests/conform/rig.h"
#include "core/clock.h"

enum { SAMPLES = 51, STREAM_BYTES = 1 << 20 };

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_row(const char *transport, const char *what, size_t bytes, double *samples, const char *unit)
{
    qsort(samples, SAMPLES, sizeof *samples, compare);
    printf("%-8s %-22s %8zu  %10.2f %10.2f %10.2f  %s\n", transport, what, bytes, samples[0], samples[SAMPLES / 2],
           samples[SAMPLES - 1], unit);
    fflush(stdout);
}

static void pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set); /* on one core the figures show that */
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void send_frame(struct hkt__chan *chan, const unsigned char *data, size_t bytes)
{
    const struct hkt__stamp stamp = { 0 };
    struct hkt__room room;
    enum hkt_status rc;

    do {
        while ((rc = chan->ops->tx_begin(chan, bytes, &room)) == HKT_AGAIN)
            relax();
        RIG_EQUAL(rc, HKT_OK);
        memcpy(room.data, data, room.bytes);
        RIG_EQUAL(chan->ops->tx_end(chan, room.bytes, &stamp), HKT_OK);
        data += room.bytes;
        bytes -= room.bytes;
    } while (bytes > 0);
}

static void receive_frame(struct hkt__chan *chan, unsigned char *data, size_t bytes)
{
    struct hkt__view view;
    enum hkt_status rc;

    do {
        while ((rc = chan->ops->rx_begin(chan, &view)) == HKT_AGAIN)
            relax();
        RIG_EQUAL(rc, HKT_OK);
        memcpy(data, view.data, view.bytes);
        chan->ops->rx_end(chan);
        data += view.bytes;
        bytes -= view.bytes;
    } while (bytes > 0);
}

static void latency(struct rig_dom *dom, size_t bytes, int rounds)
{
    struct hkt__chan *tx = dom->tx[1 - dom->rank->rank][0], *rx = dom->rx[1 - dom->rank->rank][0];
    unsigned char out[4096] = { 0 }, in[4096] = { 0 };
    double samples[SAMPLES];

    for (int sample = -3; sample < SAMPLES; sample++) {
        const int64_t start_ns = hkt__now_ns();

        for (int round = 0; round < rounds; round++) {
            if (dom->rank->rank == 0) {
                memcpy(out, &round, bytes < sizeof round ? bytes : sizeof round);
                send_frame(tx, out, bytes);
                receive_frame(rx, in, bytes);
                RIG_EQUAL(memcmp(in, out, bytes), 0);
            } else {
                receive_frame(rx, in, bytes);
                send_frame(tx, in, bytes);
            }
        }
        if (sample >= 0)
            samples[sample] = (double)(hkt__now_ns() - start_ns) / rounds / 2;
    }
    if (dom->rank->rank == 0)
        print_row(dom->rank->transport, "one way", bytes, samples, "ns");
}

static void bandwidth(struct rig_dom *dom, size_t bytes, int rounds)
{
    struct hkt__chan *tx = dom->tx[1 - dom->rank->rank][0], *rx = dom->rx[1 - dom->rank->rank][0];
    unsigned char *data = calloc(1, STREAM_BYTES);
    double samples[SAMPLES];

    RIG_CHECK(data != NULL);
    memset(data, dom->rank->rank == 0 ? 0x5a : 1, STREAM_BYTES);
    for (int sample = -3; sample < SAMPLES; sample++) {
        const int64_t start_ns = hkt__now_ns();

        for (int round = 0; round < rounds; round++)
            for (size_t at = 0; at + bytes <= STREAM_BYTES; at += bytes) {
                if (dom->rank->rank == 0)
                    send_frame(tx, data + at, bytes);
                else
                    receive_frame(rx, data + at, bytes);
            }
        if (dom->rank->rank == 0)
            receive_frame(rx, (unsigned char[8]){ 0 }, 8);
        else
            send_frame(tx, (const unsigned char[8]){ 0 }, 8);
        if (sample >= 0)
            samples[sample] = (double)(STREAM_BYTES / bytes * bytes) * rounds / (double)(hkt__now_ns() - start_ns);
    }
    for (size_t at = 0; at < STREAM_BYTES / bytes * bytes; at++)
        RIG_EQUAL(data[at], 0x5a);
    if (dom->rank->rank == 0)
        print_row(dom->rank->transport, "stream, 1 MiB buffers", bytes, samples, "GB/s");
    free(data);
}

/* The floor: a line per direction, and nothing but a counter in it. */
static void floor_lines(struct rig_rank *rank, _Atomic uint32_t *lines)
{
    const uint32_t rounds = 1000;
    _Atomic uint32_t *out = lines + 64 * rank->rank, *in = lines + 64 * (1 - rank->rank);
    double samples[SAMPLES];
    uint32_t value = 0;

    for (int sample = -3; sample < SAMPLES; sample++) {
        const int64_t start_ns = hkt__now_ns();

        for (uint32_t round = 0; round < rounds; round++) {
            value++;
            if (rank->rank == 0)
                atomic_store_explicit(out, value, memory_order_release);
            while (atomic_load_explicit(in, memory_order_acquire) != value)
                relax();
            if (rank->rank == 1)
                atomic_store_explicit(out, value, memory_order_release);
        }
        if (sample >= 0)
            samples[sample] = (double)(hkt__now_ns() - start_ns) / rounds / 2;
    }
    if (rank->rank == 0)
        print_row("-", "cache line, one way", 4, samples, "ns");
}

static void floor_copy(struct rig_rank *rank)
{
    unsigned char *from = calloc(1, STREAM_BYTES), *to = calloc(1, STREAM_BYTES);
    double samples[SAMPLES];

    RIG_CHECK(from != NULL && to != NULL);
    memset(from, 1, STREAM_BYTES);
    for (int sample = -3; sample < SAMPLES; sample++) {
        const int64_t start_ns = hkt__now_ns();

        for (int round = 0; round < 20; round++) {
            from[round] = (unsigned char)(sample + round);
            memcpy(to, from, STREAM_BYTES);
            RIG_EQUAL(to[round], from[round]);
        }
        if (sample >= 0)
            samples[sample] = 20.0 * STREAM_BYTES / (double)(hkt__now_ns() - start_ns);
    }
    if (rank->rank == 0)
        print_row("-", "memcpy, 1 MiB", STREAM_BYTES, samples, "GB/s");
    free(from);
    free(to);
}

static void body(struct rig_rank *rank, const void *arg)
{
    static const size_t latency_sizes[] = { 0, 8, 32, 64, 1024, 4096 };
    static const size_t stream_sizes[] = { 1024, 8192, 32768, 262144 };
    const bool is_tcp = strcmp(rank->transport, "tcp") == 0;
    struct rig_dom dom;

    pin(rank->rank);
    rig_dom_open(rank, 1, 0, &dom);
    floor_lines(rank, *(_Atomic uint32_t *const *)arg);
    rig_barrier(rank);
    floor_copy(rank);
    rig_barrier(rank);
    for (size_t i = 0; i < sizeof latency_sizes / sizeof latency_sizes[0]; i++)
        latency(&dom, latency_sizes[i], is_tcp ? 50 : 1000);
    for (size_t i = 0; i < sizeof stream_sizes / sizeof stream_sizes[0]; i++)
        bandwidth(&dom, stream_sizes[i], is_tcp ? 1 : 4);
    rig_barrier(rank);
    rig_dom_close(&dom);
}

static int run(const char *transport)
{
    _Atomic uint32_t *line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct rig_opts opts = { .transport = transport, .nranks = 2, .is_threads = strcmp(transport, "thread") == 0,
                                   .deadline_ms = 120000, .victim = -1 };

    if (line == MAP_FAILED)
        return -1;
    const int rc = rig_run(&opts, body, &line);

    munmap((void *)line, 4096);
    return rc;
}

int main(int argc, char **argv)
{
    int nfailed = 0;
    const struct hkt__tp_ops *table;

    printf("%-8s %-22s %8s  %10s %10s %10s\n", "", "", "bytes", "min", "median", "p99");
    for (int i = 1; i < argc; i++)
        nfailed += run(argv[i]) != 0;
    for (int i = 0; argc == 1 && (table = hkt__transport_get(i)) != NULL; i++)
        if (table->is_wanted())
            nfailed += run(table->name) != 0;
    return nfailed > 0;
}
