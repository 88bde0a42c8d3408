/* The parts of `hocket tune`: options and order of work (tune.c), cases (tune_cases.c), measuring (tune_measure.c), who is measured
 * where and how often (tune_contest.c), the choices made of that (tune_choose.c), the fit of prices (tune_fit.c), the report of
 * --check (tune_check.c). All ranks do the same; what only one can know, rank 0 decides and sends. */
#ifndef HOCKET_TOOLS_TUNE_H
#define HOCKET_TOOLS_TUNE_H

#include <hocket/hocket.h>
#include <stdbool.h>

#include "perf.h"

#define TUNE_ALGOS_MAX 32   /* of one collective */
#define TUNE_SIZES_MAX 32
#define TUNE_CHOICES_MAX 1024
#define TUNE_STARTS 4       /* with communicators and buffers of their own */
#define TUNE_ROUNDS_MAX 1000
#define TUNE_SMALL_BYTES ((size_t)131072) /* vectors up to it lie in buffers of their own: their pages are small ones */
#define TUNE_BYTES_MAX ((size_t)1000000000000000)

struct tune_options {
    const char *output, *transport, *json_path;
    bool colls[HKT_COLL_COUNT];
    size_t bytes_min, bytes_max;
    int factor, rounds, nranks;
    bool is_check;
};

/** One kind of call at one size. */
struct tune_case {
    enum hkt_coll coll;
    bool in_place, registered;
    size_t bytes;                    /* of the whole vector, as it will be called: a multiple of the ranks */
};

/** Cases that differ in size alone. */
struct tune_series {
    struct tune_case kind;
    size_t sizes[TUNE_SIZES_MAX];
    int count;
};

/** This rank's communicators and buffers. */
struct tune_rank {
    struct hkt_comm *comm;           /* free choice; what is not measured goes over it */
    struct hkt_comm *forced[TUNE_ALGOS_MAX]; /* number k forces each collective's k-th algorithm */
    const struct tune_options *options;
    int rank, nranks, nforced;
    bool has_memory;                 /* buffers of hkt_mem_alloc make a difference */
    struct tune_buffers {            /* send and receive: allocated; of hkt_mem_alloc */
        unsigned char *own[2], *shared[2];
        size_t bytes;
    } buffers[2];                    /* for vectors up to TUNE_SMALL_BYTES, for larger ones */
};

/** What an algorithm took for a case. */
struct tune_sample {
    struct tune_case c;
    int algo;                        /* the collective's so-manieth row */
    const char *name;
    double measured_us;
};
struct tune_samples {
    struct tune_sample *list;
    int count, capacity;
};

/* tune_cases.c */
bool tune_measures(enum hkt_coll coll);
/** Kinds of calls to look at, one after the other: false past the last. */
bool tune_series_get(const struct tune_rank *rank, int index, int factor, struct tune_series *out_series);
/** Whole elements for each rank, at least one. */
size_t tune_round_bytes(const struct tune_rank *rank, enum hkt_coll coll, size_t bytes);
void tune_query(const struct tune_case *c, const double *prices, struct hkt_choice_query *out_query);
/** Candidates of a case, by the collective's rows, unfit ones too; prices NULL: those in force. Returns how many, -1 on
 *  failure. */
int tune_candidates(const struct tune_rank *rank, const struct tune_case *c, const double *prices,
                    struct hkt_candidate out_candidates[TUNE_ALGOS_MAX]);
const char *tune_case_text(const struct tune_case *c, char *text, size_t bytes);

/* tune_measure.c */
HKT_NODISCARD enum hkt_status tune_open(struct tune_rank *rank);
void tune_close(struct tune_rank *rank);
/** New communicators and buffers, but for rank->comm. */
HKT_NODISCARD enum hkt_status tune_reopen(struct tune_rank *rank);
/** Time the algorithms marked in `which`, turn and turn about; the times of the others are untouched. The median over the rounds
 *  of the slowest rank's time. */
HKT_NODISCARD enum hkt_status tune_measure(struct tune_rank *rank, const struct tune_case *c, const bool *which,
                                           double out_us[TUNE_ALGOS_MAX]);

/** Medians over rounds of ratios of times that were taken one after the other. */
struct tune_duel {
    double ratio; /* the algorithm's time over its rival's */
    double self;  /* over its own, taken as the rival's is: what noise does to a ratio */
};
HKT_NODISCARD enum hkt_status tune_duel(struct tune_rank *rank, const struct tune_case *c, int algo, int rival,
                                        struct tune_duel *out_duel);

/* tune_choose.c */
/** The middle between two sizes, by ratio. */
size_t tune_between(size_t a, size_t b);
/** Times of a series' algorithms over their predictions; 0: not measured. And who won; -1: it was not contested. */
struct tune_curve {
    struct tune_series series;
    double ratio[TUNE_SIZES_MAX][TUNE_ALGOS_MAX];
    int winner[TUNE_SIZES_MAX];
};

struct tune_choices {
    struct hkt_tuned list[TUNE_CHOICES_MAX];
    int count;
    bool is_full;                    /* there were more */
    int cases, measured, unsteady;   /* of the measured: won by one in the first start, by another in all */
};

/** Add choices for all sizes of a series. False: no candidates. */
bool tune_choose(const struct tune_rank *rank, const struct tune_curve *curve, const double *prices,
                 struct tune_choices *choices);

/* tune_contest.c */
/** Measure what predictions by these prices leave open, and add choices. */
HKT_NODISCARD enum hkt_status tune_contest(struct tune_rank *rank, const double *prices, struct tune_choices *choices);

/* tune_fit.c */
bool tune_samples_add(struct tune_samples *samples, const struct tune_sample *sample);
/** Prices that predict the samples best; in and out: starts from prices. Returns the median relative error, -1 on failure. */
double tune_fit(const struct tune_rank *rank, const struct tune_samples *samples, double prices[HKT_PRICE_COUNT]);

/* tune_check.c */
/** Measure every candidate of every case, and say how good choice and predictions are. Returns the exit code. */
int tune_check(struct tune_rank *rank);

#endif
