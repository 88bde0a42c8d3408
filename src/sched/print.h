/* Printers: the schedule as people read it. Formats are held by golden tests. */
#ifndef HOCKET_SCHED_PRINT_H
#define HOCKET_SCHED_PRINT_H

#include <stdio.h>

#include "hocket/plan.h"
#include "sched/ir.h"

/** Prints scheds[nranks]. BY_STEP needs consistent schedules (it runs them to find rounds). SYSTEM when file fails. */
HKT_NODISCARD enum hkt_status hkt__print(struct hkt__sched *const *scheds, int nranks, enum hkt_plan_format format,
                                         FILE *file);

#endif
