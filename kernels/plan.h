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

#define HKT__PLAN_RANKS_MAX 64   /* block sizes of each rank must fit the parameters of a launch */
#define HKT__PLAN_LANES_MAX 16   /* lanes * replicas */
#define HKT__PLAN_CURSORS_MAX 192 /* queues a block can serve: they lie in shared memory */
#define HKT__PLAN_SLOTS 4        /* frames in flight in a channel */
#define HKT__PLAN_INSTANCES 2    /* of scratch, a lane */

/** In pinned memory that host and device share. The host writes abort, the device the rest. */
struct hkt__plan_watch {
    uint32_t abort;    /* not 0: launches end as soon as they see it */
    uint32_t aborted;  /* blocks that ended so */
    int32_t queue_kind, peer, slice; /* what one of them was waiting for: enum hkt__plan_queue_kind */
    uint32_t reserved[11];
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

/** What exec/device.c makes of a plan. Arrays are the maker's. */
struct hkt__plan_program {
    int32_t nranks, rank, cuts, nlanes, scratch_chunks;
    int32_t blocks[2];                 /* of IN and OUT on this rank */
    int32_t direct, user_direct;       /* touches memory of peers: their scratch; their IN and OUT too */
    int32_t nqueues, nentries, noperands, nneeds;
    const struct hkt__plan_queue_row *queues;
    const struct hkt__plan_entry *entries;
    const struct hkt__plan_operand *operands;
    const struct hkt__plan_need *needs;
};

#ifdef __cplusplus
}
#endif
#endif
