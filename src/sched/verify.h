/* The verifier: runs all ranks symbolically, together, and proves a set of schedules right, or says where it is wrong.
 * See hkt_plan_verify in hocket/plan.h for what is proved. */
#ifndef HOCKET_SCHED_VERIFY_H
#define HOCKET_SCHED_VERIFY_H

#include "hocket/plan.h"
#include "sched/ir.h"

/** scheds[nranks], schedule of rank i at index i; all of one collective, algorithm, root and cuts.
 *  Exact contribution sets when nranks <= exact_ranks_max (negative: the default), fingerprints above.
 *  OK: report filled. HKT_ERR_BUG: a schedule is wrong, report->failure and hkt_last_error() hold the counterexample.
 *  NOMEM, INVALID (the schedules do not belong together). */
HKT_NODISCARD enum hkt_status hkt__verify(struct hkt__sched *const *scheds, int nranks, int exact_ranks_max,
                                          struct hkt_verify_report *out_report);

#endif
