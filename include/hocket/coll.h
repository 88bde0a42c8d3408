/* Collectives, point-to-point and groups. Arguments stand in NCCL's order.
 *
 * Common to all:
 *  Units    counts and displacements are elements of dtype
 *  Owns     buffers are borrowed until the call returns (stream == NULL) or the stream has passed it
 *           they may lie in memory of CUDA devices: see docs/gpu.md for order and cost
 *  In place as noted with each call; any other overlap of send and receive buffer is HKT_ERR_INVALID
 *  Threads  one caller per communicator at a time; all ranks call in the same order
 *  Errors   INVALID, UNSUPPORTED: nothing was sent, the communicator stays usable. MISMATCH, PEER_LOST, TIMEOUT,
 *           ABORTED, CORRUPT, NOMEM, SYSTEM: the communicator has failed on all ranks
 *  Result   bitwise the same on every rank and in every run of the same call; see docs/numerics.md
 *  Count 0  is legal everywhere: nothing moves, but the signature is still checked where ranks talk */
#ifndef HOCKET_COLL_H
#define HOCKET_COLL_H

#include "hocket/comm.h"
#include "hocket/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/** recvbuf[count] = op over ranks of sendbuf[count]. In place: sendbuf == recvbuf. */
HKT_API HKT_NODISCARD enum hkt_status hkt_all_reduce(const void *sendbuf, void *recvbuf, size_t count,
                                                     enum hkt_dtype dtype, enum hkt_op op, struct hkt_comm *comm,
                                                     struct hkt_stream *stream);

/** As hkt_all_reduce, result on `root` only; recvbuf is ignored elsewhere. In place: sendbuf == recvbuf. */
HKT_API HKT_NODISCARD enum hkt_status hkt_reduce(const void *sendbuf, void *recvbuf, size_t count, enum hkt_dtype dtype,
                                                 enum hkt_op op, int root, struct hkt_comm *comm,
                                                 struct hkt_stream *stream);

/** recvbuf[count] = root's sendbuf[count]; sendbuf is ignored elsewhere. In place: sendbuf == recvbuf. */
HKT_API HKT_NODISCARD enum hkt_status hkt_broadcast(const void *sendbuf, void *recvbuf, size_t count,
                                                    enum hkt_dtype dtype, int root, struct hkt_comm *comm,
                                                    struct hkt_stream *stream);

/** recvbuf[recvcount] = this rank's block of the op over ranks of sendbuf[nranks * recvcount].
 *  In place: recvbuf == sendbuf + rank * recvcount (the other blocks of sendbuf may then be overwritten). */
HKT_API HKT_NODISCARD enum hkt_status hkt_reduce_scatter(const void *sendbuf, void *recvbuf, size_t recvcount,
                                                         enum hkt_dtype dtype, enum hkt_op op, struct hkt_comm *comm,
                                                         struct hkt_stream *stream);

/** recvbuf[nranks * sendcount] = all sendbuf[sendcount] in rank order. In place: sendbuf == recvbuf + rank * sendcount. */
HKT_API HKT_NODISCARD enum hkt_status hkt_all_gather(const void *sendbuf, void *recvbuf, size_t sendcount,
                                                     enum hkt_dtype dtype, struct hkt_comm *comm,
                                                     struct hkt_stream *stream);

/** Block j of sendbuf[nranks * count] goes to rank j, block i of recvbuf[nranks * count] comes from rank i.
 *  In place: sendbuf == recvbuf. */
HKT_API HKT_NODISCARD enum hkt_status hkt_all_to_all(const void *sendbuf, void *recvbuf, size_t count,
                                                     enum hkt_dtype dtype, struct hkt_comm *comm,
                                                     struct hkt_stream *stream);

/** root's recvbuf[nranks * count] = all sendbuf[count]. In place at root: sendbuf == recvbuf + root * count. */
HKT_API HKT_NODISCARD enum hkt_status hkt_gather(const void *sendbuf, void *recvbuf, size_t count, enum hkt_dtype dtype,
                                                 int root, struct hkt_comm *comm, struct hkt_stream *stream);

/** recvbuf[count] = block `rank` of root's sendbuf[nranks * count]. In place at root: recvbuf == sendbuf + root * count. */
HKT_API HKT_NODISCARD enum hkt_status hkt_scatter(const void *sendbuf, void *recvbuf, size_t count,
                                                  enum hkt_dtype dtype, int root, struct hkt_comm *comm,
                                                  struct hkt_stream *stream);

/** Return when every rank has entered. */
HKT_API HKT_NODISCARD enum hkt_status hkt_barrier(struct hkt_comm *comm, struct hkt_stream *stream);

/** All-gather with recvcounts[nranks] elements from each rank, placed at displs[nranks] (NULL: packed). All ranks pass
 *  equal counts; sendcount == recvcounts[rank]. In place: sendbuf == recvbuf + displs[rank]. */
HKT_API HKT_NODISCARD enum hkt_status hkt_all_gather_v(const void *sendbuf, size_t sendcount, void *recvbuf,
                                                       const size_t *recvcounts, const size_t *displs,
                                                       enum hkt_dtype dtype, struct hkt_comm *comm,
                                                       struct hkt_stream *stream);

/** Reduce-scatter with recvcounts[nranks] elements for each rank, packed in sendbuf. All ranks pass equal counts.
 *  In place: recvbuf == sendbuf + this rank's displacement (the other blocks of sendbuf may then be overwritten). */
HKT_API HKT_NODISCARD enum hkt_status hkt_reduce_scatter_v(const void *sendbuf, void *recvbuf, const size_t *recvcounts,
                                                           enum hkt_dtype dtype, enum hkt_op op, struct hkt_comm *comm,
                                                           struct hkt_stream *stream);

/** The blocks of an all-to-all-v, in elements; each array has nranks entries and is borrowed like the buffers. */
struct hkt_blocks {
    const size_t *send_counts, *send_displs, *recv_counts, *recv_displs;
};
/** send_counts[j] elements at send_displs[j] go to rank j; what rank i sends must equal recv_counts[i] here.
 *  Not in place. */
HKT_API HKT_NODISCARD enum hkt_status hkt_all_to_all_v(const void *sendbuf, void *recvbuf,
                                                       const struct hkt_blocks *blocks, enum hkt_dtype dtype,
                                                       struct hkt_comm *comm, struct hkt_stream *stream);

/** Point-to-point: matched in order per pair of ranks; counts and dtypes must agree. Outside a group a blocking send
 *  may wait for its receiver: exchange inside one group. peer == rank is allowed within a group. */
HKT_API HKT_NODISCARD enum hkt_status hkt_send(const void *buf, size_t count, enum hkt_dtype dtype, int peer,
                                               struct hkt_comm *comm, struct hkt_stream *stream);
HKT_API HKT_NODISCARD enum hkt_status hkt_recv(void *buf, size_t count, enum hkt_dtype dtype, int peer,
                                               struct hkt_comm *comm, struct hkt_stream *stream);

/** Calls between start and end are collected (per thread) and progress together at the outermost end: sends and
 *  receives cannot deadlock each other, and one thread may drive several communicators. Operations on one communicator
 *  keep their order. All must use stream NULL, or the same stream. At most HKT_GROUP_OPS_MAX operations. */
#define HKT_GROUP_OPS_MAX 4096
HKT_API HKT_NODISCARD enum hkt_status hkt_group_start(void);
HKT_API HKT_NODISCARD enum hkt_status hkt_group_end(void);

/** Sum of scalar * x: each rank's input is multiplied by *scalar (of dtype) first. Floating dtypes and integers.
 *  Owns     copies *scalar; the handle lives until hkt_op_destroy or the communicator's end */
HKT_API HKT_NODISCARD enum hkt_status hkt_op_create_premulsum(enum hkt_op *out_op, const void *scalar,
                                                              enum hkt_dtype dtype, struct hkt_comm *comm);

/** out[i] = f(a[i], b[i]) for i < count; out may be a or b. Must be commutative and associative. */
typedef void (*hkt_op_function)(void *out, const void *a, const void *b, size_t count, enum hkt_dtype dtype, void *arg);
/** A reduction by callback, run on the host by whichever thread runs the operation. All ranks create their operations
 *  in the same order: the handle is part of the signature. */
HKT_API HKT_NODISCARD enum hkt_status hkt_op_create_callback(enum hkt_op *out_op, hkt_op_function function, void *arg,
                                                             struct hkt_comm *comm);
HKT_API HKT_NODISCARD enum hkt_status hkt_op_destroy(enum hkt_op op, struct hkt_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
