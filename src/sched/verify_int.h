/* Private to the verifier: its state, and the stages that verify.c runs one after the other. A stage may rely on what
 * the ones before it have proved; each returns OK, NOMEM, or BUG with the counterexample recorded by hkt__vrf_fail.
 *
 *   form    every step alone is well formed          fills base, rank_of, home, is_const
 *   match   every send has its receive               fills match
 *   order   no deadlock without any buffering        fills queue, before, order
 *   values  every result is right, exactly once      notes every pair of conflicting accesses that is not ordered at once
 *   races   those pairs are ordered by happens-before
 *
 * Steps are numbered over all ranks: step i of rank r is base[r] + i. */
#ifndef HOCKET_SCHED_VERIFY_INT_H
#define HOCKET_SCHED_VERIFY_INT_H

#include "sched/verify.h"

#define HKT__VRF_CONST (-1) /* home of an IN that nobody may write: its values are made up when read, not stored */

/* What one cell of memory holds. Exact mode: a is the IN chunk of all contributions, the set lies in `sets`. Fingerprint
 * mode: a and b are sums, modulo 2^61 - 1, of random numbers that stand for (rank, IN chunk). */
struct hkt__vrf_cell {
    uint64_t a; /* with HKT__VRF_DEFINED; 0: nothing was ever written here */
    uint64_t b;
    uint64_t hash; /* of the expression that made the value: leaves and association */
};
#define HKT__VRF_DEFINED (UINT64_C(1) << 63)

/* Who touched a cell: last writer + 1, and the readers since. readers: 0 none, > 0 one step + 1, < 0 -(node + 1). */
struct hkt__vrf_touch {
    int32_t writer, readers;
};
struct hkt__vrf_reader {
    int32_t step, next; /* next: node, -1: end */
};

/* `first` must happen before `then`. Beyond the steps, nsteps + r is the start of rank r as first, its end as then. */
struct hkt__vrf_pair {
    int32_t first, then;
};

struct hkt__vrf {
    struct hkt__sched *const *scheds;
    int32_t nranks, nsteps;
    struct hkt_verify_report *report;

    int32_t *base;        /* [nranks + 1] */
    int64_t *home;        /* [nranks * HKT__BUF_COUNT] number of chunk 0's cell over all ranks, or HKT__VRF_CONST */
    int64_t *own_home;    /* [nranks + 1] first cell of each rank */
    int32_t *rank_of;     /* [nsteps], as all below */
    int32_t *match;       /* the other end of a message, -1: none */
    int32_t *queue;       /* number of the FIFO queue the step is in, over all ranks */
    int32_t *before;      /* the step before it in its queue, -1: none */
    int32_t *order;       /* all steps, in an order that happens-before allows; a RECV follows its SEND at once */

    int32_t words;        /* of a contribution set; 0: fingerprint mode */
    struct hkt__vrf_cell *cells;
    uint64_t *sets;
    uint32_t *classes;    /* [nranks * scratch_chunks] size class of what was written; NULL: all chunks have one size */
    struct hkt__vrf_touch *touches;
    struct hkt__vrf_reader *readers;
    int32_t nreaders, readers_cap, free_reader;
    int32_t *seen;        /* [nsteps] == step + 1: known to be ordered before the step, or already noted */
    struct hkt__vrf_pair *pairs; /* accesses whose order is still to be proved */
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

static inline const struct hkt__sched *hkt__vrf_sched(const struct hkt__vrf *v, int32_t step)
{
    return v->scheds[v->rank_of[step]];
}

static inline const struct hkt__step *hkt__vrf_step(const struct hkt__vrf *v, int32_t step)
{
    return &hkt__vrf_sched(v, step)->steps[step - v->base[v->rank_of[step]]];
}

static inline const struct hkt__arg *hkt__vrf_args(const struct hkt__vrf *v, int32_t step)
{
    return hkt__vrf_sched(v, step)->args + hkt__vrf_step(v, step)->arg_first;
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
static inline bool hkt__vrf_one_size(const struct hkt__vrf *v)
{
    return v->scheds[0]->uniform_blocks && v->scheds[0]->cuts == 1;
}

/** Size class of a piece given the walk over its `like` span; rank: who holds the operand. */
static inline int64_t hkt__vrf_class(const struct hkt__vrf *v, int32_t rank, const struct hkt__operand *x, int32_t chunk)
{
    const struct hkt__sched *sched = v->scheds[rank];

    if (sched->uniform_blocks) /* the common case of hkt__size_class, without a call for each of millions of pieces */
        return chunk % sched->cuts;
    return hkt__size_class(sched, rank, (enum hkt__buf)x->like_buf, chunk);
}

/* verify.c */
/** Record the counterexample; returns BUG. */
enum hkt_status hkt__vrf_fail(struct hkt__vrf *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum hkt_status hkt__vrf_nomem(void);

/* verify_text.c: parts of messages. */
struct hkt__vrf_text {
    char s[160];
};
/** "rank 2 step 5 (send to rank 3, lane 0: OUT[4])" */
struct hkt__vrf_text hkt__vrf_step_text(const struct hkt__vrf *v, int32_t step);
/** "rank 2 OUT[4]" */
struct hkt__vrf_text hkt__vrf_chunk_text(int32_t rank, int buf, int32_t chunk);

/* The stages. */
HKT_NODISCARD enum hkt_status hkt__vrf_form(struct hkt__vrf *v);
HKT_NODISCARD enum hkt_status hkt__vrf_match(struct hkt__vrf *v);
HKT_NODISCARD enum hkt_status hkt__vrf_order(struct hkt__vrf *v);
HKT_NODISCARD enum hkt_status hkt__vrf_values(struct hkt__vrf *v);
HKT_NODISCARD enum hkt_status hkt__vrf_races(struct hkt__vrf *v);
/** Every rank has heard from every rank before it ends: what a barrier promises. */
HKT_NODISCARD enum hkt_status hkt__vrf_barrier(struct hkt__vrf *v);

/* verify_touch.c: the accesses of one step, noted in `order`. */
/** A step begins: what it directly follows needs no proof. */
void hkt__vrf_touch_begin(struct hkt__vrf *v, int32_t step);
/** It uses memory of another rank: after that rank has started, and for IN and OUT before it has ended. */
HKT_NODISCARD enum hkt_status hkt__vrf_touch_remote(struct hkt__vrf *v, int32_t step, int32_t owner, int buf);
HKT_NODISCARD enum hkt_status hkt__vrf_touch_read(struct hkt__vrf *v, int32_t step, int64_t cell);
HKT_NODISCARD enum hkt_status hkt__vrf_touch_write(struct hkt__vrf *v, int32_t step, int64_t cell);

#endif
