/* The same two ranks as MPI programs have them, for benchmarks/rdma/run: a small message there and back, and large
 * collectives. Compiled with an MPI library's own mpicc. Prints what ping and `hocket perf` are read for. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define LARGE (8 << 20)
#define WARMUP 50

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_value);
    return times[count / 2] * 1e6;
}

static void ping(int rank, int rounds)
{
    double *times = calloc((size_t)rounds, sizeof *times);
    char data[8] = {0};

    if (times == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = -WARMUP; i < rounds; i++) {
        const double start = MPI_Wtime();

        for (int way = 0; way < 2; way++)
            if ((rank ^ way) == 0)
                MPI_Send(data, sizeof data, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD);
            else
                MPI_Recv(data, sizeof data, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (i >= 0)
            times[i] = (MPI_Wtime() - start) / 2;
    }
    if (rank == 0)
        printf("ping %.1f us\n", median(times, rounds));
    free(times);
}

static void large(int rank, int rounds)
{
    double *gather = calloc((size_t)rounds, sizeof *gather), *reduce = calloc((size_t)rounds, sizeof *reduce);
    float *in = calloc(LARGE, 1), *out = calloc(LARGE, 1);
    const int count = LARGE / (int)sizeof *in;

    if (gather == NULL || reduce == NULL || in == NULL || out == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = -1; i < rounds; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();

        MPI_Allgather(in, count / 2, MPI_FLOAT, out, count / 2, MPI_FLOAT, MPI_COMM_WORLD);
        if (i >= 0)
            gather[i] = MPI_Wtime() - start;
        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0)
            reduce[i] = MPI_Wtime() - start;
    }
    if (rank == 0)
        printf("all_gather %.1f us\nall_reduce %.1f us\n", median(gather, rounds), median(reduce, rounds));
    free(gather);
    free(reduce);
    free(in);
    free(out);
}

int main(int argc, char **argv)
{
    const long asked = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    const int rounds = asked > 0 && asked < 1000 ? (int)asked : 6;
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    ping(rank, 500);
    large(rank, rounds);
    MPI_Finalize();
    return 0;
}
