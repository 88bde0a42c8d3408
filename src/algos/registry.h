/* One table of all algorithms. Adding one = a builder function in a file here and a row in registry.c. */
#ifndef HOCKET_ALGOS_REGISTRY_H
#define HOCKET_ALGOS_REGISTRY_H

#include "hocket/plan.h"
#include "sched/build.h"

/** Writes the schedule of b->rank; errors are kept in the builder. */
typedef void hkt__build_fn(struct hkt__builder *b);

struct hkt__algo {
    struct hkt_algo_info info;
    hkt__build_fn *build;
    /** "" or why the case cannot be served ("needs a power-of-two number of ranks"). NULL: serves all. */
    const char *(*restriction)(int nranks, bool in_place);
    /** What the schedules cost in closed form, as tests/model counts them; algos/formulas.h says what each means. (The choice
     *  goes by the schedules themselves: src/cost.) */
    double (*rounds)(int nranks);
    double (*messages)(int nranks);
    double (*volume)(int nranks);
    bool user_direct; /* reads IN/OUT of peers, not only their SCRATCH */
    bool by_groups;   /* is for ranks in groups of one size (levels.h) */
    int radix;        /* rows of one builder differ in it; any from 2 on will do (0: the builder has none) */
    size_t bytes_min;  /* by default only for vectors of so many bytes, of all ranks of a core together */
    /** Reductions: every result chunk is one REDUCE over the inputs of all ranks, in rank order from 0 on. So all rows
     *  that say so give the same bits. */
    bool ordered;
};

#define HKT__ALGOS_MAX 128

/** Rows are ordered by collective. The v-variants have rows of their own. */
extern const struct hkt__algo hkt__algos[];
extern const int hkt__algo_count;

/** NULL (and hkt__fail INVALID, naming the ones there are) when no row fits. */
const struct hkt__algo *hkt__algo_find(enum hkt_coll coll, const char *name);

/** Build one rank's schedule. */
struct hkt__algo_case {
    int nranks, rank, root;
    bool in_place;
    const struct hkt__levels *levels; /* NULL: nothing is known. Algorithms that do not mind groups ignore it */
};
HKT_NODISCARD enum hkt_status hkt__algo_build_case(const struct hkt__algo *algo, const struct hkt__algo_case *c,
                                                   struct hkt__sched **out_sched);
HKT_NODISCARD enum hkt_status hkt__algo_build(const struct hkt__algo *algo, int nranks, int rank, int root,
                                              bool in_place, struct hkt__sched **out_sched);

#endif
