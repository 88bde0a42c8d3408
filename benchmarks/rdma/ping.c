/* Half of a round trip between ranks 0 and 1: the time of a small message one way, as ib_write_lat counts it.
 *
 *   ping BYTES ROUNDS    both ranks, joined by their environment; rank 0 prints microseconds: median, least, 99th percentile */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <hocket/hocket.h>

enum { WARMUP = 100, BYTES_MAX = 1 << 20 };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double now_us(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/** One message there and back. */
static enum hkt_status turn(struct hkt_comm *comm, unsigned char *data, size_t bytes)
{
    const int rank = hkt_comm_rank(comm);
    enum hkt_status rc = HKT_OK;

    for (int way = 0; way < 2 && rc == HKT_OK; way++)
        rc = (rank ^ way) == 0 ? hkt_send(data, bytes, HKT_UINT8, 1 - rank, comm, NULL)
                               : hkt_recv(data, bytes, HKT_UINT8, 1 - rank, comm, NULL);
    return rc;
}

int main(int argc, char **argv)
{
    static unsigned char data[BYTES_MAX];
    const size_t bytes = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
    const long rounds = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    double *times = rounds > 0 ? calloc((size_t)rounds, sizeof *times) : NULL;
    struct hkt_comm *comm;

    if (times == NULL || bytes == 0 || bytes > BYTES_MAX) {
        fprintf(stderr, "usage: ping BYTES ROUNDS\n");
        return 2;
    }
    enum hkt_status rc = hkt_comm_init_env(&comm, NULL);

    for (long i = -WARMUP; i < rounds && rc == HKT_OK; i++) {
        const double start_us = now_us();

        rc = turn(comm, data, bytes);
        if (i >= 0)
            times[i] = (now_us() - start_us) / 2;
    }
    if (rc != HKT_OK) {
        fprintf(stderr, "ping: %s\n", hkt_last_error());
        return 1;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_value);
    double sum = 0;

    for (long i = 0; i < rounds; i++)
        sum += times[i];
    if (hkt_comm_rank(comm) == 0)
        printf("%zu bytes, %ld rounds: %.1f us, least %.1f, p99 %.1f, mean %.1f\n", bytes, rounds, times[rounds / 2], times[0],
               times[rounds * 99 / 100], sum / (double)rounds);
    free(times);
    return hkt_comm_destroy(comm) == HKT_OK ? 0 : 1;
}
