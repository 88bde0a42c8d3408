/* The FIFO queues of one rank's schedule: sends per (peer, lane), receives per (peer, lane), local work per lane.
 * Steps of one queue are done in program order; see ir.h. */
#ifndef HOCKET_SCHED_QUEUES_H
#define HOCKET_SCHED_QUEUES_H

#include "sched/ir.h"

enum hkt__queue_kind { HKT__QUEUE_TX, HKT__QUEUE_RX, HKT__QUEUE_LOCAL };

static inline enum hkt__queue_kind hkt__queue_kind(const struct hkt__step *step)
{
    switch (step->kind) {
    case HKT__SEND:
    case HKT__SIGNAL: return HKT__QUEUE_TX;
    case HKT__RECV:
    case HKT__RECV_REDUCE:
    case HKT__WAIT: return HKT__QUEUE_RX;
    default: return HKT__QUEUE_LOCAL;
    }
}

struct hkt__queues {
    int32_t count;     /* queues in use, numbered in the order of their first steps */
    int32_t *of_step;  /* [nsteps]: queue of each step */
    int32_t *position; /* [nsteps]: its place in the queue */
};

/** NOMEM, or OK; release with fini in both cases. */
HKT_NODISCARD enum hkt_status hkt__queues_init(struct hkt__queues *queues, const struct hkt__sched *sched);
void hkt__queues_fini(struct hkt__queues *queues);

#endif
