/* Rounds: runs the schedules of all ranks together, without data, and dates every step. */
#ifndef HOCKET_SCHED_ROUNDS_H
#define HOCKET_SCHED_ROUNDS_H

#include "sched/ir.h"

/** Steps of all ranks are numbered through: step i of rank r is first[r] + i.
 *  A message (a send with its receive, a signal with its wait) has round 1 + the largest round among the steps its two
 *  ends come after, by dependency or in their queues. A local step has the largest round among the steps it comes
 *  after, 0 if there is none: it runs once the messages of that round are in. */
struct hkt__rounds {
    int32_t *first; /* [nranks + 1] */
    int32_t *round; /* [steps] */
    int32_t *mate;  /* [steps]: the other end of a message, numbered through; -1 for local steps */
    int32_t count;  /* the last round */
};

/** scheds[nranks], rank i at index i. INVALID when an end has no other end or the schedules wait for each other in a
 *  circle; the text names a rank and step. Release with fini in all cases. */
HKT_NODISCARD enum hkt_status hkt__rounds_init(struct hkt__rounds *rounds, struct hkt__sched *const *scheds,
                                               int nranks);
void hkt__rounds_fini(struct hkt__rounds *rounds);

#endif
