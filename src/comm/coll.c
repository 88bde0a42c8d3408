/* The public collectives: each describes its call; checking, queueing and running are the same for all. */
#include "hocket/coll.h"

#include "comm/call.h"

enum hkt_status hkt_all_reduce(const void *sendbuf, void *recvbuf, size_t count, enum hkt_dtype dtype, enum hkt_op op,
                               struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_ALL_REDUCE, .dtype = dtype, .op = op, .root = -1, .in = sendbuf,
                             .out = recvbuf, .count = count, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_reduce(const void *sendbuf, void *recvbuf, size_t count, enum hkt_dtype dtype, enum hkt_op op,
                           int root, struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_REDUCE, .dtype = dtype, .op = op, .root = root, .in = sendbuf, .out = recvbuf,
                             .count = count, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_broadcast(const void *sendbuf, void *recvbuf, size_t count, enum hkt_dtype dtype, int root,
                              struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_BROADCAST, .dtype = dtype, .op = HKT_OP_COUNT, .root = root, .in = sendbuf,
                             .out = recvbuf, .count = count, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_reduce_scatter(const void *sendbuf, void *recvbuf, size_t recvcount, enum hkt_dtype dtype,
                                   enum hkt_op op, struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_REDUCE_SCATTER, .dtype = dtype, .op = op, .root = -1, .in = sendbuf,
                             .out = recvbuf, .count = recvcount, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_all_gather(const void *sendbuf, void *recvbuf, size_t sendcount, enum hkt_dtype dtype,
                               struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_ALL_GATHER, .dtype = dtype, .op = HKT_OP_COUNT, .root = -1, .in = sendbuf,
                             .out = recvbuf, .count = sendcount, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_all_to_all(const void *sendbuf, void *recvbuf, size_t count, enum hkt_dtype dtype,
                               struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_ALL_TO_ALL, .dtype = dtype, .op = HKT_OP_COUNT, .root = -1, .in = sendbuf,
                             .out = recvbuf, .count = count, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_gather(const void *sendbuf, void *recvbuf, size_t count, enum hkt_dtype dtype, int root,
                           struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_GATHER, .dtype = dtype, .op = HKT_OP_COUNT, .root = root, .in = sendbuf,
                             .out = recvbuf, .count = count, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_scatter(const void *sendbuf, void *recvbuf, size_t count, enum hkt_dtype dtype, int root,
                            struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_SCATTER, .dtype = dtype, .op = HKT_OP_COUNT, .root = root, .in = sendbuf,
                             .out = recvbuf, .count = count, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_barrier(struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_BARRIER, .dtype = HKT_UINT8, .op = HKT_OP_COUNT, .root = -1, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_all_gather_v(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                 const size_t *displs, enum hkt_dtype dtype, struct hkt_comm *comm,
                                 struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_ALL_GATHER_V, .dtype = dtype, .op = HKT_OP_COUNT, .root = -1, .in = sendbuf,
                             .out = recvbuf, .count = sendcount, .comm = comm,
                             .blocks = {.recv_counts = recvcounts, .recv_displs = displs}};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_reduce_scatter_v(const void *sendbuf, void *recvbuf, const size_t *recvcounts, enum hkt_dtype dtype,
                                     enum hkt_op op, struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_REDUCE_SCATTER_V, .dtype = dtype, .op = op, .root = -1, .in = sendbuf,
                             .out = recvbuf, .comm = comm, .blocks = {.send_counts = recvcounts}};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_all_to_all_v(const void *sendbuf, void *recvbuf, const struct hkt_blocks *blocks,
                                 enum hkt_dtype dtype, struct hkt_comm *comm, struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_ALL_TO_ALL_V, .dtype = dtype, .op = HKT_OP_COUNT, .root = -1, .in = sendbuf,
                             .out = recvbuf, .comm = comm};

    if (blocks == NULL)
        return hkt__fail(HKT_ERR_INVALID, "all_to_all_v: blocks is NULL");
    call.blocks = *blocks;
    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_send(const void *buf, size_t count, enum hkt_dtype dtype, int peer, struct hkt_comm *comm,
                         struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_SEND_RECV, .dtype = dtype, .op = HKT_OP_COUNT, .root = peer, .is_send = true,
                             .in = buf, .count = count, .comm = comm};

    return hkt__call_submit(&call, stream);
}

enum hkt_status hkt_recv(void *buf, size_t count, enum hkt_dtype dtype, int peer, struct hkt_comm *comm,
                         struct hkt_stream *stream)
{
    struct hkt__call call = {.coll = HKT_SEND_RECV, .dtype = dtype, .op = HKT_OP_COUNT, .root = peer, .out = buf,
                             .count = count, .comm = comm};

    return hkt__call_submit(&call, stream);
}
