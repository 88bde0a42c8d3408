/* Two ranks that measure in many short rounds, each of all things in turn within a second: the bare device (raw.h), hocket, and,
 * compiled by an MPI library's mpicc with -DWITH_MPI, that one. Where a device is as unsteady as Soft-RoCE only ratios
 * within a round say anything.
 *
 *   rounds DEVICE GID_INDEX ROUNDS    both ranks, joined by their environment (or by MPI); rank 0 prints a line for each figure:
 *                                     round, name, GB/s that each rank sends or microseconds of a small message, one way */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hocket/hocket.h>

#include "raw.h"
#ifdef WITH_MPI
#include <mpi.h>
#endif

enum { LARGE = 8 << 20, HALF = LARGE / 2, PINGS = 150, PING_BYTES = 8 };

struct bench {
    struct hkt_comm *comm;
    int rank, round;
    struct raw raw;
    unsigned turn;
    unsigned char *own[2], *pinned[2]; /* LARGE bytes each: allocated as usual; by hkt_mem_alloc */
};

static double now_us(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void end_if(int is_wrong, const char *what)
{
    if (!is_wrong)
        return;
    fprintf(stderr, "rounds: %s: %s\n", what, hkt_last_error());
    exit(1);
}

static void require(enum hkt_status rc, const char *what)
{
    end_if(rc != HKT_OK, what);
}

static int exchange(int rank, const void *mine, void *out_theirs, size_t bytes, void *arg)
{
    unsigned char both[512];

    if (2 * bytes > sizeof both || hkt_all_gather(mine, both, bytes, HKT_UINT8, arg, NULL) != HKT_OK)
        return -1;
    memcpy(out_theirs, both + (size_t)(1 - rank) * bytes, bytes);
    return 0;
}

/* ---- what is timed ---- */

typedef void large_fn(struct bench *b, size_t message);

static void raw_one_way(struct bench *b, size_t message)
{
    if (b->rank == 0)
        end_if(raw_stream(&b->raw, message, (int)(HALF / message)) != 0, "raw");
}

static void raw_both_ways(struct bench *b, size_t message)
{
    end_if(raw_stream(&b->raw, message, (int)(HALF / message)) != 0, "raw");
}

static void one_way(struct bench *b, size_t message)
{
    (void)message;
    require(hkt_broadcast(b->own[b->rank], b->own[b->rank], HALF, HKT_UINT8, 0, b->comm, NULL), "broadcast");
}

static void all_gather(struct bench *b, size_t message)
{
    (void)message;
    require(hkt_all_gather(b->own[0], b->own[1], HALF, HKT_UINT8, b->comm, NULL), "all_gather");
}

static void all_gather_pinned(struct bench *b, size_t message)
{
    (void)message;
    require(hkt_all_gather(b->pinned[0], b->pinned[1], HALF, HKT_UINT8, b->comm, NULL), "all_gather");
}

static void all_reduce(struct bench *b, size_t message)
{
    (void)message;
    require(hkt_all_reduce(b->own[0], b->own[1], LARGE / 4, HKT_F32, HKT_SUM, b->comm, NULL), "all_reduce");
}

static void ping(struct bench *b)
{
    for (int way = 0; way < 2; way++)
        require((b->rank ^ way) == 0 ? hkt_send(b->own[0], PING_BYTES, HKT_UINT8, 1 - b->rank, b->comm, NULL)
                                     : hkt_recv(b->own[0], PING_BYTES, HKT_UINT8, 1 - b->rank, b->comm, NULL), "ping");
}

static void ping_raw(struct bench *b)
{
    end_if(raw_ping(&b->raw, ++b->turn) != 0, "raw ping");
}

#ifdef WITH_MPI
static void mpi_one_way(struct bench *b, size_t message)
{
    (void)message;
    MPI_Bcast(b->own[0], HALF, MPI_CHAR, 0, MPI_COMM_WORLD);
}

static void mpi_all_gather(struct bench *b, size_t message)
{
    (void)message;
    MPI_Allgather(b->own[0], HALF, MPI_CHAR, b->own[1], HALF, MPI_CHAR, MPI_COMM_WORLD);
}

static void mpi_all_reduce(struct bench *b, size_t message)
{
    (void)message;
    MPI_Allreduce(b->own[0], b->own[1], LARGE / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void mpi_ping(struct bench *b)
{
    for (int way = 0; way < 2; way++)
        if ((b->rank ^ way) == 0)
            MPI_Send(b->own[0], PING_BYTES, MPI_CHAR, 1 - b->rank, 0, MPI_COMM_WORLD);
        else
            MPI_Recv(b->own[0], PING_BYTES, MPI_CHAR, 1 - b->rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
#endif

/* ---- the rounds ---- */

static const struct {
    const char *name;
    large_fn *fn;
    size_t message, sent;              /* sent: bytes that a rank sends */
} larges[] = {
    {"raw_one_way_64K", raw_one_way, 65536, HALF},
    {"raw_one_way_256K", raw_one_way, 262144, HALF},
    {"raw_one_way_1M", raw_one_way, 1048576, HALF},
    {"one_way", one_way, 0, HALF},
    {"raw_both_ways_64K", raw_both_ways, 65536, HALF},
    {"raw_both_ways_256K", raw_both_ways, 262144, HALF},
    {"raw_both_ways_1M", raw_both_ways, 1048576, HALF},
    {"all_gather", all_gather, 0, HALF},
    {"all_gather_pinned", all_gather_pinned, 0, HALF},
    {"all_reduce", all_reduce, 0, LARGE},
#ifdef WITH_MPI
    {"mpi_one_way", mpi_one_way, 0, HALF},
    {"mpi_all_gather", mpi_all_gather, 0, HALF},
    {"mpi_all_reduce", mpi_all_reduce, 0, LARGE},
#endif
};

static const struct {
    const char *name;
    void (*fn)(struct bench *b);
} smalls[] = {
    {"raw_ping", ping_raw},
    {"ping", ping},
#ifdef WITH_MPI
    {"mpi_ping", mpi_ping},
#endif
};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/** The longer of both ranks' times. */
static double longest(struct bench *b, double us)
{
    double theirs = 0;

    end_if(exchange(b->rank, &us, &theirs, sizeof us, b->comm) != 0, "times");
    return us > theirs ? us : theirs;
}

static void do_round(struct bench *b)
{
    double times[PINGS];

    for (size_t i = 0; i < sizeof larges / sizeof larges[0]; i++) {
        require(hkt_barrier(b->comm, NULL), "barrier");
        const double start_us = now_us();

        larges[i].fn(b, larges[i].message);
        const double us = longest(b, now_us() - start_us);

        if (b->rank == 0)
            printf("%d %s %.4f\n", b->round, larges[i].name, (double)larges[i].sent / us / 1e3);
    }
    for (size_t i = 0; i < sizeof smalls / sizeof smalls[0]; i++) {
        double sum = 0;

        require(hkt_barrier(b->comm, NULL), "barrier");
        for (int k = 0; k < PINGS; k++) {
            const double start_us = now_us();

            smalls[i].fn(b);
            times[k] = (now_us() - start_us) / 2;
            sum += times[k];
        }
        qsort(times, PINGS, sizeof times[0], by_value);
        if (b->rank == 0)
            printf("%d %s %.1f\n%d %s_mean %.1f\n", b->round, smalls[i].name, times[PINGS / 2], b->round, smalls[i].name, sum / PINGS);
    }
    fflush(stdout);
}

static void open_all(struct bench *b, const char *device, int gid_index)
{
    require(hkt_comm_init_env(&b->comm, NULL), "joining");
    b->rank = hkt_comm_rank(b->comm);
    end_if(raw_open(&b->raw, b->rank, device, gid_index, exchange, b->comm) != 0, "raw");
    for (int i = 0; i < 2; i++) {
        void *memory;

        require(hkt_mem_alloc(&memory, LARGE, b->comm), "memory");
        b->pinned[i] = memory;
        b->own[i] = calloc(LARGE, 1);
        end_if(b->own[i] == NULL, "memory");
    }
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    char *end = NULL;
    const long gid_index = argc == 4 ? strtol(argv[2], &end, 10) : -1, rounds = argc == 4 ? strtol(argv[3], &end, 10) : 0;

    if (gid_index < 0 || gid_index > 255 || rounds < 1 || rounds > 1000 || *end != '\0') {
        fprintf(stderr, "usage: rounds DEVICE GID_INDEX ROUNDS\n");
        return 2;
    }
#ifdef WITH_MPI
    char rank[16];

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    snprintf(rank, sizeof rank, "%d", b.rank);
    setenv("HOCKET_RANK", rank, 1);
#endif
    open_all(&b, argv[1], (int)gid_index);
    for (b.round = -1; b.round < rounds; b.round++) /* the first is not counted */
        do_round(&b);
    require(hkt_barrier(b.comm, NULL), "barrier");
    raw_close(&b.raw);
    for (int i = 0; i < 2; i++) {
        require(hkt_mem_free(b.pinned[i], b.comm), "memory");
        free(b.own[i]);
    }
    require(hkt_comm_destroy(b.comm), "the end");
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    return 0;
}
