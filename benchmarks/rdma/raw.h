/* What a device gives without hocket: the loops of perftest's ib_write_bw and ib_write_lat, in the process that measures all
 * else, so that one follows the other within milliseconds. Between two ranks; one RC queue pair, MTU as large as the port's. */
#ifndef HOCKET_BENCHMARKS_RAW_H
#define HOCKET_BENCHMARKS_RAW_H

#include <infiniband/verbs.h>
#include <stddef.h>

#define RAW_BYTES_MAX ((size_t)1 << 20) /* of one message */

struct raw {
    int rank;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory;       /* what is written here by the peer, then what is written from */
    uint64_t peer_memory;
    uint32_t peer_key;
};

/** Give the peer `bytes` of mine, and get its own at *out_theirs. 0: it worked. */
typedef int raw_exchange(int rank, const void *mine, void *out_theirs, size_t bytes, void *arg);

/** Open a device by name, port 1, the GID of this index. 0, or -1 with a line on stderr. */
int raw_open(struct raw *raw, int rank, const char *device, int gid_index, raw_exchange *exchange, void *arg);
void raw_close(struct raw *raw);
/** Write `count` messages, 128 of them under way at most, each with a completion, as ib_write_bw does. 0: all are acknowledged. */
int raw_stream(struct raw *raw, size_t bytes, int count);
/** One turn of ib_write_lat: 8 bytes there and back, each end looking at its memory. 0: done. turn: 1, 2, ... */
int raw_ping(struct raw *raw, unsigned turn);

#endif
