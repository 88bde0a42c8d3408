/* Schedules without running them: list the algorithms, print what each rank does, prove it right. For tools, tests,
 * teaching. Nothing here needs a communicator. */
#ifndef HOCKET_PLAN_H
#define HOCKET_PLAN_H

#include <stdio.h>

#include "hocket/topo.h"
#include "hocket/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One row of the algorithm registry. Strings live as long as the library. */
struct hkt_algo_info {
    enum hkt_coll coll;
    const char *name;          /* unique within the collective */
    const char *summary;       /* one line */
    const char *restriction;   /* "" or why it does not serve every case, e.g. "power-of-two ranks" */
    const char *steps;         /* rounds on the critical path as a formula in p */
    const char *bytes;         /* bytes sent by the busiest rank as a formula in p and n */
    const char *source;        /* paper or derivation */
    int needs_direct;          /* 1: peers' memory must be addressable (threads, shm) */
};
/** Number of rows; row i in [0, count). hkt_algo_get returns INVALID out of range. */
HKT_API int hkt_algo_count(void);
HKT_API HKT_NODISCARD enum hkt_status hkt_algo_get(int index, struct hkt_algo_info *out_info);
/** HKT_OK if the algorithm serves this case; otherwise UNSUPPORTED or INVALID with the reason in hkt_last_error(). */
HKT_API HKT_NODISCARD enum hkt_status hkt_algo_check(enum hkt_coll coll, const char *algo, int nranks, int in_place);

/** What to build. */
struct hkt_plan_query {
    enum hkt_coll coll;
    const char *algo;
    int nranks;
    int root;        /* rooted collectives */
    int in_place;
    int lowered;     /* 1: after the lowering passes, as executed; 0: as the builder wrote it */
};

enum hkt_plan_format { HKT_PLAN_BY_STEP, HKT_PLAN_BY_RANK, HKT_PLAN_JSON };

/** Print the schedule of all ranks: by step (who sends which chunk to whom in each round), by rank, or JSON. */
HKT_API HKT_NODISCARD enum hkt_status hkt_plan_print(const struct hkt_plan_query *query, enum hkt_plan_format format,
                                                     FILE *file);

/** What a verification looked at. */
struct hkt_verify_report {
    int nranks;
    int exact;                /* 1: exact contribution sets; 0: 61-bit fingerprints (two independent seeds) */
    int64_t steps;            /* over all ranks */
    int64_t messages;         /* matched send/receive and signal/wait pairs */
    int64_t races_checked;    /* ordered pairs of conflicting accesses */
    int64_t chunks_checked;   /* result chunks proved */
    int64_t bytes_chunks_max; /* chunks sent by the busiest rank */
    int rounds;               /* length of the critical path in messages */
    int same_bits;            /* 1: all ranks associate each result chunk alike */
    double seconds;
    char failure[512];        /* "" or the counterexample */
};
/** Run all ranks symbolically and prove: exactly-once result, matching, no deadlock even without buffering, no race,
 *  scratch in bounds, same association on all ranks.
 *  Errors   INVALID: no such algorithm or case; BUG: the schedule is wrong, failure says where */
HKT_API HKT_NODISCARD enum hkt_status hkt_plan_verify(const struct hkt_plan_query *query,
                                                      struct hkt_verify_report *out_report);

#define HKT_PRICE_COUNT 42   /* rows of the cost model: see hocket/tune.h */

/** A case to choose an algorithm for. */
struct hkt_choice_query {
    enum hkt_coll coll;
    int nranks;
    size_t bytes;            /* the whole vector: of the buffer in all_reduce, broadcast, reduce; of all blocks elsewhere */
    int in_place;            /* counts in all_reduce, reduce_scatter, all_gather, all_to_all; else it is a rank's own affair */
    const char *transport;   /* "thread", "shm" or "tcp" */
    int registered;          /* 1: the buffers are memory of hkt_mem_alloc */
    double crowd;            /* ranks per core, at least 1 */
    const double *prices;    /* [HKT_PRICE_COUNT] to predict with; NULL: those in force */
    const struct hkt_topo *topo; /* machines to run on, tcp between hosts; NULL: one, whose ranks are near each other,
                                  * and over memory, where as many share each core, keep to it (HOCKET_SPREAD) */
    const int *nodes;        /* with topo: [nranks] where each rank runs (hkt_topo_deal) */
};
/** One registry row of the collective, as the choice sees it. */
struct hkt_candidate {
    const char *algo;
    const char *unfit;       /* "" or why it does not serve the case; predicted_us is then 0 */
    double predicted_us;
    double terms_us[HKT_PRICE_COUNT]; /* of predicted_us, by price */
    size_t slice_bytes;      /* what the vector is cut in for it: of the sizes that were weighed the best for this row */
    int slices, lanes;       /* that makes so many slices, dealt to so many replicas of its channels */
    double measured_us;      /* of the chosen one, where `hocket tune` measured it; else 0 */
    int chosen;
    int forced;              /* chosen because HOCKET_ALGO says so; what that forbids is unfit */
    int tuned;               /* predicted at the prices of `hocket tune` for this machine, not at the defaults */
};
/** What a communicator of this kind would weigh, the chosen first, then by predicted time, unfit ones last. *out_count is
 *  what there are; at most `capacity` are stored. Measured choices count if the file of `hocket tune` has them for this
 *  machine and nranks on one host; so does HOCKET_ALGO.
 *  Errors   INVALID: no such transport or ranks, HOCKET_ALGO names what there is not */
HKT_API HKT_NODISCARD enum hkt_status hkt_plan_candidates(const struct hkt_choice_query *query,
                                                          struct hkt_candidate *out_candidates, int capacity,
                                                          int *out_count);

/** The least time a collective can take, whatever the algorithm. */
struct hkt_bound {
    double time_us;
    double bytes;            /* that must move */
    double ns_per_byte;      /* at the price of moving them once */
    char text[160];          /* the same as a formula with numbers */
};
/** For the query's case, at the prices in force: no prediction is below it. Several hosts: what must cross the link
 *  of the busiest. One, shared memory: every input is read, every result written, all ranks together, over the cores.
 *  Network: what the busiest rank must send or receive. To that, the call, and a message's way where every rank waits
 *  for others.
 *  Errors   as hkt_plan_candidates */
HKT_API HKT_NODISCARD enum hkt_status hkt_plan_bound(const struct hkt_choice_query *query, struct hkt_bound *out_bound);

#ifdef __cplusplus
}
#endif
#endif
