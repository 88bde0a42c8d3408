/* The choice of algorithm on this machine: what it weighs, at what prices, and how measured choices are kept. `hocket tune`
 * is made of these calls. */
#ifndef HOCKET_TUNE_H
#define HOCKET_TUNE_H

#include "hocket/comm.h"
#include "hocket/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A row of the cost model: what something costs in nanoseconds, each, or for each byte. A predicted time is the sum of
 *  amounts times prices. Strings live as long as the library. */
struct hkt_price {
    const char *name;        /* "message_ns", "copy_l2_ns_per_byte": also its key in tables */
    const char *help;
};
/** Row index of [0, HKT_PRICE_COUNT); INVALID out of range. */
HKT_API HKT_NODISCARD enum hkt_status hkt_price_get(int index, struct hkt_price *out_price);

/** Prices in force for a communicator: measured ones if there is a table for it, else defaults; the same on all ranks. */
HKT_API void hkt_comm_prices(const struct hkt_comm *comm, double out_prices[HKT_PRICE_COUNT]);
/** The transports that reach the peers, in the order of preference: "shm", "shm+tcp". */
HKT_API const char *hkt_comm_route(const struct hkt_comm *comm);
/** 1: measured choices hold for this communicator (HOCKET_TUNE of rank 0). */
HKT_API int hkt_comm_is_tuned(const struct hkt_comm *comm);

/** As hkt_plan_candidates, for a communicator as it is: of the query's fields nranks, transport and crowd do not count.
 *  No call of the communicator may run meanwhile. */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_candidates(struct hkt_comm *comm, const struct hkt_choice_query *query,
                                                          struct hkt_candidate *out_candidates, int capacity,
                                                          int *out_count);

/** A choice that was measured. */
struct hkt_tuned {
    enum hkt_coll coll;
    int in_place;            /* counts where all ranks must agree on it: all_reduce, reduce_scatter, all_gather, all_to_all */
    int registered;          /* 1: for buffers of hkt_mem_alloc */
    size_t bytes_from, bytes_to; /* of the whole vector, as in hkt_choice_query */
    const char *algo;
    double measured_us;      /* at the smallest of these sizes, as measured near it */
};

/** The file that HOCKET_TUNE names, or where tables are looked for without it ($XDG_CACHE_HOME/hocket/tune.json, else
 *  ~/.cache/hocket/tune.json); "" when there is no such place. Lives as long as the library. */
HKT_API const char *hkt_tune_path(void);

/** Keep prices and choices (the first that fits counts) for jobs like comm's: this machine, as many ranks per host, the same
 *  transports. Tables in the file for other machines and jobs stay. The file is replaced in one step; its folder is made.
 *  Any rank may call it, alone; one does.
 *  Errors   INVALID: a choice names no algorithm, the file is no such table, or too large; SYSTEM: it cannot be written */
HKT_API HKT_NODISCARD enum hkt_status hkt_tune_save(const struct hkt_comm *comm, const char *path,
                                                    const double prices[HKT_PRICE_COUNT],
                                                    const struct hkt_tuned *choices, int count);

#ifdef __cplusplus
}
#endif
#endif
