/* The compiled form of a schedule, shared by plan.c and run.c. */
#ifndef HOCKET_EXEC_PLAN_H
#define HOCKET_EXEC_PLAN_H

#include "exec/exec.h"

enum hkt__queue_kind { HKT__QUEUE_RX, HKT__QUEUE_TX, HKT__QUEUE_LOCAL };

/** "Queue `queue` has done `count` entries of the slice." */
struct hkt__plan_dep {
    int32_t queue, count;
};

struct hkt__entry {
    uint8_t kind;                 /* enum hkt__step_kind */
    bool uses_scratch;
    bool is_lasting;              /* SEND: what it sends from IN or OUT is not written any more, so it can be lent until the end */
    bool is_spread;               /* REDUCE: the next entry of the queue is the WRITE that stores its result elsewhere */
    struct hkt__operand dst;
    int32_t arg_first, arg_count;
    int32_t dep_first, dep_count;
    int32_t feeder, feeder_pos;   /* SEND: queue and position of the receive whose bytes are forwarded as they arrive,
                                     instead of waiting for all of it; -1: none */
};

struct hkt__plan_queue {
    uint8_t kind, lane;
    bool is_prompt;               /* its first entry sends one chunk of IN or OUT and waits for nothing of this call */
    int32_t peer;                 /* -1: local */
    int32_t first, count;         /* entries */
};

struct hkt__plan {
    struct hkt__sched shape;      /* the schedule's header; its arrays stay NULL */
    bool direct, user_direct, only_receives;
    int32_t nqueues, nlinks;      /* links: queues with a peer */
    struct hkt__plan_queue *queues;
    struct hkt__entry *entries;
    struct hkt__arg *args;
    struct hkt__plan_dep *deps;
};

#endif
