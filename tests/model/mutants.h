/* Seeded defects: each mutator makes one small change in one rank's schedule, of the kind that a slip in a builder or a
 * lowering pass would make. */
#ifndef HOCKET_TESTS_MUTANTS_H
#define HOCKET_TESTS_MUTANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/ir.h"

/* Where and what was changed; steps as they were numbered before. */
struct mutant_site {
    int rank, step, other;
    char what[96];
};

struct mutator {
    const char *name;
    /** A changed copy of sched, or NULL when nothing in it could be changed in this way. */
    struct hkt__sched *(*make)(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site);
};

extern const struct mutator mutators[];
extern const int mutator_count;

#endif
