/* A second opinion on schedules, for tests: naive, slow, and sharing nothing with the verifier but the geometry of
 * cells.c. It runs all ranks on numbers, in random orders and with buffered messages, and looks for races among all
 * pairs of accesses. For schedules whose steps are well formed, of few ranks. */
#ifndef HOCKET_TESTS_ORACLE_H
#define HOCKET_TESTS_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/ir.h"

struct oracle;

/** NULL when messages do not match. The schedules must outlive the oracle. */
struct oracle *oracle_create(struct hkt__sched *const *scheds, int nranks);
void oracle_destroy(struct oracle *o);

/** "" or two accesses without order; in a barrier, also two ranks without order. */
const char *oracle_find_race(struct oracle *o);
/** One run in an order drawn from the seed; with rendezvous, a SEND waits for its receive. "" or what is wrong. */
const char *oracle_run(struct oracle *o, uint64_t seed, bool has_rendezvous);
/** Was every result of the last run one step's sum of all ranks' inputs, in rank order from 0 on? */
bool oracle_is_ordered(const struct oracle *o);
/** Does every step happen after the same steps in both? They must have the same steps. */
bool oracle_same_order(const struct oracle *a, const struct oracle *b);
/** Do two steps of a rank touch a common cell, one of them writing it? */
bool oracle_conflict(const struct oracle *o, int rank, int step, int other);

#endif
