/* An MPI library under benchmarks/peers/run: compiled with its own mpicc, started by its own mpirun. */
#include <mpi.h>

#include "bench_loop.h"

static int call(void *context, const struct bench_call *call)
{
    const int count = (int)call->count; /* 64 MB of floats and less */
    int rc = MPI_ERR_ARG;

    (void)context;
    switch (call->coll) {
    case BENCH_ALL_REDUCE:
        rc = MPI_Allreduce(call->send, call->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE_SCATTER:
        rc = MPI_Reduce_scatter_block(call->send, call->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_GATHER:
        rc = MPI_Allgather(call->send, count, MPI_FLOAT, call->recv, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BENCH_BROADCAST:
        rc = MPI_Bcast(call->recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_TO_ALL:
        rc = MPI_Alltoall(call->send, count, MPI_FLOAT, call->recv, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BENCH_BARRIER:
        rc = MPI_Barrier(MPI_COMM_WORLD);
        break;
    case BENCH_COLL_COUNT:
        break;
    }
    return rc == MPI_SUCCESS ? 0 : -1; /* errors are fatal by default and print their text */
}

int main(int argc, char **argv)
{
    struct bench_driver driver = { .call = call };

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &driver.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &driver.nranks);
    const int code = bench_serve(&driver, argc, argv);

    MPI_Finalize();
    return code;
}
