/* Private to the verifier: its state, and the stages that verify.c runs one after the other. A stage may rely on what
 * the ones before it have proved; each returns OK, NOMEM, or BUG with the counterexample recorded by hkt__proof_fail.
 *
 *   form    every step alone is well formed          fills home, own_home
 *   match   every send has its receive               fills match
 *   order   no deadlock without any buffering        fills queue, before, order
 *   values  every result is right, exactly once      fills pairs: conflicting accesses not ordered at once
 *   races   the pairs are ordered by happens-before
 *   barrier every rank has heard from every rank
 *
 * Steps are numbered over all ranks: step i of rank r is base[r] + i. */
#ifndef HOCKET_SCHED_VERIFY_INT_H
#define HOCKET_SCHED_VERIFY_INT_H

#include "sched/verify.h"

#define HKT__PROOF_CONST (-1) /* home of an IN that nobody may write: its values are made up when read, not stored */

/* What one cell of memory holds. Exact mode: a is the IN chunk of all contributions, the set lies in `sets`.
 * Fingerprint mode: a and b are sums, modulo 2^61 - 1, of random numbers that stand for (rank, IN chunk). */
struct hkt__proof_cell {
    uint64_t a; /* with HKT__PROOF_DEFINED; 0: nothing was ever written here */
    uint64_t b;
    uint64_t hash; /* of the expression that made the value: leaves and association */
};
#define HKT__PROOF_DEFINED (UINT64_C(1) << 63)

/* Who touched a cell: last writer + 1, and the readers since. readers: 0 none, > 0 one step + 1, < 0 -(node + 1). */
struct hkt__proof_touch {
    int32_t writer, readers;
};
struct hkt__proof_reader {
    int32_t step, next; /* next: node, -1: end */
};

/* `first` must happen before `then`. Beyond the steps, nsteps + r is the start of rank r as first, its end as then. */
struct hkt__proof_pair {
    int32_t first, then;
};

struct hkt__proof {
    struct hkt__sched *const *scheds;
    int32_t nranks, nsteps;
    struct hkt_verify_report *report;

    int32_t *base;     /* [nranks + 1] */
    int64_t *home;     /* [nranks * HKT__BUF_COUNT] number of chunk 0's cell over all ranks, or HKT__PROOF_CONST */
    int64_t *own_home; /* [nranks + 1] first cell of each rank */
    int32_t *rank_of;  /* [nsteps], as all below */
    int32_t *match;    /* the other end of a message, -1: none */
    int32_t *queue;    /* number of the FIFO queue the step is in, over all ranks */
    int32_t *before;   /* the step before it in its queue, -1: none */
    int32_t *order;    /* all steps, in an order that happens-before allows; a RECV follows its SEND at once */

    int32_t words; /* of a contribution set; 0: fingerprint mode */
    struct hkt__proof_cell *cells;
    uint64_t *sets;
    uint32_t *classes; /* [nranks * scratch_chunks] size class of what was written; NULL: all chunks have one size */
    struct hkt__proof_touch *touches;
    struct hkt__proof_reader *readers;
    int32_t nreaders, readers_cap, free_reader;
    int32_t *seen;                 /* [nsteps] == step + 1: known to be ordered before the step, or already noted */
    struct hkt__proof_pair *pairs; /* accesses whose order is still to be proved */
    int32_t npairs, pairs_cap;
};

/* Walks the pieces of a span without a division for each. */
struct hkt__walk {
    int32_t at, step, modulus;
};

static inline struct hkt__walk hkt__walk_start(const struct hkt__span *span)
{
    const int32_t step = span->stride % span->modulus;

    return (struct hkt__walk){ hkt__span_at(span, 0), step < 0 ? step + span->modulus : step, span->modulus };
}

static inline int32_t hkt__walk_next(struct hkt__walk *walk)
{
    const int32_t at = walk->at, room = walk->modulus - walk->step;

    walk->at = at >= room ? at - room : at + walk->step;
    return at;
}

static inline const struct hkt__sched *hkt__proof_sched(const struct hkt__proof *v, int32_t step)
{
    return v->scheds[v->rank_of[step]];
}

static inline const struct hkt__step *hkt__proof_step(const struct hkt__proof *v, int32_t step)
{
    return &hkt__proof_sched(v, step)->steps[step - v->base[v->rank_of[step]]];
}

static inline const struct hkt__arg *hkt__proof_args(const struct hkt__proof *v, int32_t step)
{
    return hkt__proof_sched(v, step)->args + hkt__proof_step(v, step)->arg_first;
}

static inline bool hkt__is_tx(int kind)
{
    return kind == HKT__SEND || kind == HKT__SIGNAL;
}

static inline bool hkt__is_rx(int kind)
{
    return kind == HKT__RECV || kind == HKT__RECV_REDUCE || kind == HKT__WAIT;
}

/** Do all chunks have one size, whatever the counts of a call? Then nothing about sizes is left to compare. */
static inline bool hkt__proof_one_size(const struct hkt__proof *v)
{
    return v->scheds[0]->uniform_blocks && v->scheds[0]->cuts == 1;
}

/** Size class of a piece given the walk over its `like` span; rank: who holds the operand. */
static inline int64_t hkt__proof_class(const struct hkt__proof *v, int32_t rank, const struct hkt__operand *x,
                                       int32_t chunk)
{
    const struct hkt__sched *sched = v->scheds[rank];

    if (sched->uniform_blocks) /* the common case of hkt__size_class, without a call for each of millions of pieces */
        return chunk % sched->cuts;
    return hkt__size_class(sched, rank, (enum hkt__buf)x->like_buf, chunk);
}

/* verify.c */
/** Record the counterexample; returns BUG. */
enum hkt_status hkt__proof_fail(struct hkt__proof *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum hkt_status hkt__proof_nomem(void);

/* verify_text.c: parts of messages. */
struct hkt__proof_text {
    char s[160];
};
/** "rank 2 step 5 (send to rank 3, lane 0: OUT[4])" */
struct hkt__proof_text hkt__proof_step_text(const struct hkt__proof *v, int32_t step);
/** "rank 2 OUT[4]" */
struct hkt__proof_text hkt__proof_chunk_text(int32_t rank, int buf, int32_t chunk);

/* The stages. */
HKT_NODISCARD enum hkt_status hkt__proof_form(struct hkt__proof *v);
HKT_NODISCARD enum hkt_status hkt__proof_match(struct hkt__proof *v);
HKT_NODISCARD enum hkt_status hkt__proof_order(struct hkt__proof *v);
HKT_NODISCARD enum hkt_status hkt__proof_values(struct hkt__proof *v);
HKT_NODISCARD enum hkt_status hkt__proof_races(struct hkt__proof *v);
/** Every rank has heard from every rank before it ends: what a barrier promises. */
HKT_NODISCARD enum hkt_status hkt__proof_barrier(struct hkt__proof *v);

/* verify_touch.c: the accesses of one step, noted in `order`. */
/** A step begins: what it directly follows needs no proof. */
void hkt__proof_touch_begin(struct hkt__proof *v, int32_t step);
/** It uses memory of another rank: after that rank has started, and for IN and OUT before it has ended. */
HKT_NODISCARD enum hkt_status hkt__proof_touch_remote(struct hkt__proof *v, int32_t step, int32_t owner, int buf);
HKT_NODISCARD enum hkt_status hkt__proof_touch_read(struct hkt__proof *v, int32_t step, int64_t cell);
HKT_NODISCARD enum hkt_status hkt__proof_touch_write(struct hkt__proof *v, int32_t step, int64_t cell);

#endif
