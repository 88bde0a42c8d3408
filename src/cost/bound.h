/* The least time a collective can take, whatever the algorithm. */
#ifndef HOCKET_COST_BOUND_H
#define HOCKET_COST_BOUND_H

#include "cost/select.h"
#include "hocket/plan.h"

/** is_memory: ranks share memory; else a network is between them. */
void hkt__bound(const struct hkt__select_args *args, const struct hkt__prices *prices, bool is_memory,
                struct hkt_bound *out_bound);

#endif
