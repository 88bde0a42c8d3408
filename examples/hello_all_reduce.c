/* The smallest hocket program: every rank contributes its number, every rank receives the sum.
 *
 *   build/hocket run -n 4 build/examples/hello_all_reduce
 *
 * It also starts unchanged under mpirun, torchrun and srun; alone it is one rank. */
#include <hocket/hocket.h>
#include <stdio.h>
#include <stdlib.h>

static void require(enum hkt_status status, const char *what)
{
    if (status == HKT_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, hkt_status_name(status), hkt_last_error());
    exit(1);
}

int main(void)
{
    struct hkt_comm *comm;
    float mine[4], sum[4];

    require(hkt_comm_init_env(&comm, NULL), "joining the job");
    const int rank = hkt_comm_rank(comm), nranks = hkt_comm_size(comm);

    for (int i = 0; i < 4; i++)
        mine[i] = (float)(rank + i);

    /* send buffer, receive buffer, elements, type, operation, communicator, stream (NULL: return when done) */
    require(hkt_all_reduce(mine, sum, 4, HKT_F32, HKT_SUM, comm, NULL), "all-reduce");

    printf("rank %d of %d: %g %g %g %g\n", rank, nranks, sum[0], sum[1], sum[2], sum[3]);
    require(hkt_comm_destroy(comm), "leaving the job");
    return 0;
}
