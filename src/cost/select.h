/* The choice of algorithm: what the user forces, else what was measured for the case (`hocket tune`), else the least predicted
 * time over the registry rows that serve it and are not forbidden. Every rank chooses from the same inputs, so all choose alike. */
#ifndef HOCKET_COST_SELECT_H
#define HOCKET_COST_SELECT_H

#include "cost/tune.h"

/** What the user says of algorithms (HOCKET_ALGO, config.algo). */
struct hkt__wish {
    const struct hkt__algo *forced[HKT_COLL_COUNT]; /* NULL: free choice */
    bool forbidden[HKT__ALGOS_MAX];                 /* by row of the registry */
};

struct hkt__select_args {
    enum hkt_coll coll;
    int nranks;
    bool in_place;
    bool direct_ok;            /* all peers' windows are addressable */
    bool user_ok;              /* so are the buffers of this call, on all ranks */
    bool copy_ok;              /* or the system copies between processes */
    bool ordered;              /* reductions must sum in rank order */
    size_t bytes;              /* the collective's whole vector: count, or nranks * count, elements */
    size_t slice_bytes, scratch_bytes; /* what large vectors are cut in as a rule, or as the user says */
    bool slices_set;           /* the user says it */
    int lanes;                 /* the user says so; 0: free */
    int lanes_max;             /* that there are; 0: one */
    const struct hkt__site *site; /* where the ranks run; NULL: near each other */
    const struct hkt__tune_table *tuned; /* measured choices; NULL: none */
    const struct hkt__wish *wish; /* NULL: none */
};

/** How an algorithm's schedule is run. */
struct hkt__cut {
    size_t slice_bytes;        /* for hkt__lower_slices */
    int slices;                /* as far as the model knows */
    int lanes;                 /* replicas that slices are dealt to */
    double ns;                 /* predicted */
};

struct hkt__choice {
    const struct hkt__algo *algo;
    struct hkt__cut cut;
    bool is_tuned;             /* by measurement, not by prediction */
    bool is_forced;
};

/** What schedules cost in work on one site, remembered: building them for every choice would take longer than the calls. */
struct hkt__work_table;
HKT_NODISCARD enum hkt_status hkt__work_table_create(struct hkt__work_table **out_table);
void hkt__work_table_destroy(struct hkt__work_table *table);

/** UNSUPPORTED when no row serves the case, or the forced one does not (reason recorded); NOMEM. */
HKT_NODISCARD enum hkt_status hkt__select(const struct hkt__select_args *args, const struct hkt__prices *prices,
                                          struct hkt__work_table *table, struct hkt__choice *out_choice);

/** How one row that serves the case is best cut: of one, two, four and eight times the usual slice, and of 1, 2 and 4 lanes,
 *  what should take least; what is nearly as good and nearer to the usual is preferred. What the user says is not varied. */
HKT_NODISCARD enum hkt_status hkt__select_cut(const struct hkt__algo *algo, const struct hkt__select_args *args,
                                              const struct hkt__prices *prices, struct hkt__work_table *table,
                                              struct hkt__cut *out_cut);
/** What one row that serves the case should pay, cut so, in nanoseconds: by price (NULL: not wanted) and in all. */
HKT_NODISCARD enum hkt_status hkt__select_predict(const struct hkt__algo *algo, const struct hkt__select_args *args,
                                                  const struct hkt__prices *prices, struct hkt__work_table *table,
                                                  double *out_terms, double *out_ns);

/** Bytes of the buffers of a rank, as a multiple of the whole vector. */
double hkt__touched_share(const struct hkt__select_args *args);

/** Does any row serve the case (of those that the user allows)? */
bool hkt__select_serves(const struct hkt__select_args *args);

/** "" or why a row does not serve the case. */
const char *hkt__unfit(const struct hkt__algo *algo, const struct hkt__select_args *args);

/** The measured choice for the case; NULL: there is none that serves it. */
const struct hkt__tune_row *hkt__select_tuned(const struct hkt__select_args *args);

#endif
