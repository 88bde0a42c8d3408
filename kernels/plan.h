/* Programs of the device executor as the host writes them and the kernel reads them: plain numbers, no pointers, one block of
 * memory. See exec/plan.h for what queues, entries and dependencies mean; these are their counterparts.
 *
 * An arena, the part of a rank's memory that peers reach, holds what they write: counters of messages that came and of room
 * that became free, slots of frames, and scratch. Each counter has one writer and only grows. */
#ifndef HOCKET_KERNELS_PLAN_H
#define HOCKET_KERNELS_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "hocket/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HKT__PLAN_THREADS
#define HKT__PLAN_THREADS 384    /* of a block: three warps in each quarter of a multiprocessor, with 168 registers a thread */
#endif
#define HKT__PLAN_RANKS_MAX 64   /* block sizes of each rank must fit the parameters of a launch */
#define HKT__PLAN_LANES_MAX 16   /* lanes * replicas */
#define HKT__PLAN_CURSORS_MAX 192 /* queues a block can serve: they lie in shared memory */
#define HKT__PLAN_SLOTS 4        /* frames in flight in a channel */
#define HKT__PLAN_INSTANCES 2    /* of scratch, a lane */
#define HKT__PLAN_POOLS 64       /* of memory that all ranks map */
#define HKT__PLAN_POOL_SHIFT 48  /* a word that names a pool has offsets below this bit */
#define HKT__PLAN_MESSAGES_HERE (2 * HKT__PLAN_RANKS_MAX) /* that the parameters of a launch have room for */

/** In pinned memory that host and device share. The host writes abort, the device the rest. */
struct hkt__plan_watch {
    uint64_t abort;   /* not 0: launches end as soon as they see it */
    uint64_t aborted; /* not 0: one did */
    uint64_t waiting; /* for what: 1 + kind of queue (enum hkt__plan_queue_kind), peer << 8, slice << 32; 0: not known */
    uint64_t reserved[5];
};

/* Strided, wrapping ranges of chunks: struct hkt__span and hkt__operand. */
struct hkt__plan_span {
    int32_t start, stride, modulus;
};
enum hkt__plan_buf { HKT__PLAN_IN, HKT__PLAN_OUT, HKT__PLAN_SCRATCH };
struct hkt__plan_operand {
    int32_t rank; /* that holds it */
    int16_t buf, like_buf;
    int32_t count;
    struct hkt__plan_span at, like;
};

enum hkt__plan_kind {
    HKT__PLAN_SEND,
    HKT__PLAN_RECV,
    HKT__PLAN_RECV_REDUCE,
    HKT__PLAN_COPY,
    HKT__PLAN_REDUCE,
    HKT__PLAN_WRITE,
    HKT__PLAN_SIGNAL,
    HKT__PLAN_WAIT
};
struct hkt__plan_entry {
    int16_t kind, uses_scratch;
    int32_t arg_first, arg_count; /* operands. SEND, COPY, REDUCE: the sources. WRITE: the source, then the places.
                                     RECV_REDUCE: the addend */
    int32_t dst;                  /* operand; -1: none */
    int32_t dep_first, dep_count;
    int32_t feeder, feeder_pos;   /* SEND: of the receive whose bytes it forwards as they come; -1: none */
};
struct hkt__plan_need {
    int32_t queue, count;
};

enum hkt__plan_queue_kind { HKT__PLAN_RX, HKT__PLAN_TX, HKT__PLAN_LOCAL };
struct hkt__plan_queue_row {
    int16_t kind, lane;
    int32_t peer;
    int32_t first, count;
};

/** A send or a receive of a launch of messages. */
struct hkt__plan_message {
    uint64_t address, bytes;
};

/** Stores messages to a table in memory of the device: by value, so that what is captured keeps them. */
struct hkt__plan_note {
    struct hkt__plan_message *table;
    uint32_t count;
    struct hkt__plan_message messages[HKT__PLAN_MESSAGES_HERE];
};

/** What exec/device.c makes of a plan. Arrays are the maker's. */
struct hkt__plan_program {
    enum hkt_coll coll;
    const char *algo;                  /* borrowed from the registry */
    int32_t nranks, rank, cuts, nlanes, scratch_chunks;
    int32_t blocks[2];                 /* of IN and OUT on this rank */
    int32_t direct, user_direct;       /* touches memory of peers: their scratch; their IN and OUT too */
    int32_t reduces;                   /* has entries that reduce */
    int32_t nqueues, nentries, noperands, nneeds;
    const struct hkt__plan_queue_row *queues;
    const struct hkt__plan_entry *entries;
    const struct hkt__plan_operand *operands;
    const struct hkt__plan_need *needs;
};

/** Where things lie in an arena, in bytes from its start. Words are of 8 bytes. "of a channel": [peer * lanes + lane]. */
struct hkt__plan_layout {
    uint64_t published; /* words: address and place in a pool (0: in none) of IN, then of OUT. By the owner */
    uint64_t own;       /* four words of a channel: frames sent and received, Simple and LL. For the owner alone */
    uint64_t rounds;    /* a word of a lane: rounds of direct plans run. For the owner alone */
    uint64_t came;      /* a word of a channel: frames that came by Simple. By the sender, release */
    uint64_t room[2];   /* a word of a channel: frames used, of Simple and of LL. By the receiver, release */
    uint64_t finished;  /* a word of a channel: rounds of direct plans the peer has finished. By the peer, release */
    uint64_t slots;     /* HKT__PLAN_SLOTS frames of a channel: Simple. By the sender */
    uint64_t ll;        /* the same, of LL: words of 4 bytes of data, then 4 that say that they are there. By the sender, and
                           emptied by the receiver */
    uint64_t stage;     /* ll_bytes of a lane. For the owner alone */
    uint64_t scratch;   /* scratch_bytes of a lane. By the owner and, in direct plans, by peers */
    uint64_t bytes;
};

/** One launch, by value. Pointers are the device's. */
struct hkt__plan_args {
    const struct hkt__plan_queue_row *queues;
    const struct hkt__plan_entry *entries;
    const struct hkt__plan_operand *operands;
    const struct hkt__plan_need *needs;
    char *const *arenas;
    char *const *pools;              /* [pool * nranks + rank]: where this device sees that rank's part; NULL: there are none */
    struct hkt__plan_watch *watch;
    char *in, *out;
    struct hkt__plan_layout layout;
    uint64_t scratch_bytes, scratch_pitch; /* of a lane; between slots */
    uint64_t count;                  /* elements of a block, unless counts say otherwise */
    uint64_t in_pool, out_pool;      /* for peers: pool << HKT__PLAN_POOL_SHIFT | 1 + offset in it, or 0: in none */
    uint64_t ll_most;                /* messages of at most so many bytes go by LL; signals never do */
    uint32_t slot_bytes, ll_bytes, elem_bytes;
    int32_t op;                      /* set by the launch */
    int32_t is_scaled;               /* a pre-multiplied sum: IN is multiplied as it is read, */
    double factor;                   /* floats by this, */
    uint64_t integer;                /* integers by that */
    int32_t rank, nranks, lanes, nlanes, cuts, nqueues, nslices, channels;
    int32_t replicas_here;           /* of each block: block b serves those from b * replicas_here on */
    int16_t direct, user_direct, has_counts[2], has_displs[2];
    uint64_t counts[2][HKT__PLAN_RANKS_MAX], displs[2][HKT__PLAN_RANKS_MAX];

    /* Launches of messages. Queue q has those from firsts[q] to firsts[q + 1], and its k-th is of its round k. They stand in
     * table or, where that is NULL, address i in displs[i / RANKS_MAX][i % RANKS_MAX] and bytes so in counts. */
    const struct hkt__plan_message *table;
    uint32_t part_bytes;             /* each replica takes a part of a message that has so many bytes for it; 0: a collective */
    int32_t parts_most;              /* at most so many parts: all ranks alike */
    uint16_t firsts[2 * HKT__PLAN_RANKS_MAX];
};

#ifdef __cplusplus
}
#endif
#endif
