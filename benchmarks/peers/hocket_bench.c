/* hocket under benchmarks/peers/run: started by `hocket run`, through the public API alone. With
 * PEERS_MEMORY=symmetric in the environment the buffers come from hkt_mem_alloc, which the other libraries have no
 * equal of; else from malloc. */
#include <hocket/hocket.h>
#include <hocket/mem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_loop.h"

static int call(void *context, const struct bench_call *call)
{
    struct hkt_comm *comm = context;
    enum hkt_status rc = HKT_ERR_INVALID;

    switch (call->coll) {
    case BENCH_ALL_REDUCE:
        rc = hkt_all_reduce(call->send, call->recv, call->count, HKT_F32, HKT_SUM, comm, NULL);
        break;
    case BENCH_REDUCE_SCATTER:
        rc = hkt_reduce_scatter(call->send, call->recv, call->count, HKT_F32, HKT_SUM, comm, NULL);
        break;
    case BENCH_ALL_GATHER:
        rc = hkt_all_gather(call->send, call->recv, call->count, HKT_F32, comm, NULL);
        break;
    case BENCH_BROADCAST:
        rc = hkt_broadcast(call->recv, call->recv, call->count, HKT_F32, 0, comm, NULL);
        break;
    case BENCH_ALL_TO_ALL:
        rc = hkt_all_to_all(call->send, call->recv, call->count, HKT_F32, comm, NULL);
        break;
    case BENCH_BARRIER:
        rc = hkt_barrier(comm, NULL);
        break;
    case BENCH_COLL_COUNT:
        break;
    }
    if (rc == HKT_OK)
        return 0;
    fprintf(stderr, "%s\n", hkt_last_error());
    return -1;
}

/* Released with the communicator. */
static void *allocate_symmetric(void *context, size_t bytes)
{
    void *memory;

    if (hkt_mem_alloc(&memory, bytes, context) == HKT_OK)
        return memory;
    fprintf(stderr, "%s\n", hkt_last_error());
    return NULL;
}

int main(int argc, char **argv)
{
    const char *memory = getenv("PEERS_MEMORY");
    struct hkt_comm *comm;

    if (hkt_comm_init_env(&comm, NULL) < 0) {
        fprintf(stderr, "%s\n", hkt_last_error());
        return 1;
    }
    const struct bench_driver driver = {
        .rank = hkt_comm_rank(comm),
        .nranks = hkt_comm_size(comm),
        .context = comm,
        .call = call,
        .allocate = memory && strcmp(memory, "symmetric") == 0 ? allocate_symmetric : NULL,
    };
    const int code = bench_serve(&driver, argc, argv);

    return hkt_comm_destroy(comm) < 0 ? 1 : code;
}
