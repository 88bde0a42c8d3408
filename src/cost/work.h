/* What a schedule makes a rank do, counted from its steps: messages, and bytes by what happens to them, as multiples of the
 * collective's whole vector n. The cost model prices these counts; nothing about a machine is in them. */
#ifndef HOCKET_COST_WORK_H
#define HOCKET_COST_WORK_H

#include "algos/registry.h"

struct hkt__work {
    double rounds;    /* messages that follow each other on the critical path (the registry's formula) */
    double messages;  /* sent and received, signals included */
    double sent;      /* bytes / n put into channels */
    double received;  /* taken out of channels, to be stored or reduced */
    double copied;    /* moved within this rank's memory */
    double reduced;   /* inputs of reductions beyond the first of each */
    double read;      /* read from memory of peers */
    double written;   /* written to memory of peers */
    double accesses;  /* operands read from or written to memory of peers: system calls, where it is copied */
};

/** Work of one rank's schedule. */
void hkt__work_count(const struct hkt__sched *sched, struct hkt__work *out_work);

/** Work of the busiest rank, each count by itself; looks at all ranks when there are few, else at a sample that is the
 *  same everywhere. Builds schedules: for the control plane. */
HKT_NODISCARD enum hkt_status hkt__work_of(const struct hkt__algo *algo, int nranks, bool in_place,
                                           struct hkt__work *out_work);

#endif
