/* The critical path of an algorithm: schedules of all ranks run together on paper, each rank a core of its own, and what is
 * done along the longest chain of waits is counted. One slice pays for its path; the slices after it pay for the busiest
 * rank alone, since they overlap. */
#ifndef HOCKET_COST_PATH_H
#define HOCKET_COST_PATH_H

#include "cost/work.h"

#define HKT__PATH_STEPS_MAX 24576 /* of all ranks together: more are not worth the time */

/** Fill profile->paths: for small messages (waiting counts most) and for large ones (bytes do). None where there are more
 *  steps than that. */
HKT_NODISCARD enum hkt_status hkt__path_find(const struct hkt__footing *footing, struct hkt__sched *const *scheds, int nranks,
                                             struct hkt__profile *profile);

#endif
