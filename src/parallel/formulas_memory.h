/* What the files that count a step's memory share: a meter, the activations of a layer (formulas_layer.c), and the books of units
 * that come and go (formulas_units.c). formulas_memory.c walks the schedule with them. */
#ifndef HOCKET_PARALLEL_FORMULAS_MEMORY_H
#define HOCKET_PARALLEL_FORMULAS_MEMORY_H

#include <stdbool.h>

#include "hocket/step_memory.h"

struct hkt__meter {
    double now, peak;
};

static inline void hkt__take(struct hkt__meter *meter, double bytes)
{
    meter->now += bytes;
    meter->peak = meter->now > meter->peak ? meter->now : meter->peak;
}

static inline void hkt__drop(struct hkt__meter *meter, double bytes)
{
    meter->now -= bytes;
}

/* ---- activations ---- */

/** Bytes of the arrays that a rank makes in a block: rows are a micro-batch's tokens. */
struct hkt__sizes {
    bool is_cut;  /* rows are cut over tp between blocks: gathers and reductions change sizes */
    enum hkt_recompute recompute;
    double whole, here;      /* [rows][hidden], all rows, or those of this rank */
    double statistics;       /* of a norm */
    double queries, qkv, lse; /* of this rank's heads; queries: also attention's result */
    double pre, mid;         /* MLP without experts: before and after the activation */
    double row, expert_pre, expert_mid; /* of one row that an expert takes: itself, and its pre and mid */
    double routes, dlogits;  /* of a router: what it keeps for backward, and the gradient of its logits */
    double logits, numbers;  /* of the head: logits of this rank's words, and four numbers a row */
    struct hkt_step_routing even; /* the same for each rank and expert */
};

/** Errors   INVALID: heads do not divide */
HKT_NODISCARD enum hkt_status hkt__sizes_of(const struct hkt_step_opts *opts, struct hkt__sizes *out_sizes);
/** What embedding or head begin and end with: whole rows to this rank's, and back. */
void hkt__meter_reduce(struct hkt__meter *meter, const struct hkt__sizes *z);
void hkt__meter_gather(struct hkt__meter *meter, const struct hkt__sizes *z);
/** A norm and what leads to a block's input: [rows][hidden] and statistics are taken. */
void hkt__meter_norm(struct hkt__meter *meter, const struct hkt__sizes *z);
/** A layer. routing NULL: without experts. Its input and output, and the gradients of both, are its caller's. What backward
 *  leaves stays for W. */
void hkt__meter_forward(struct hkt__meter *meter, const struct hkt__sizes *z, const struct hkt_step_routing *routing);
void hkt__meter_backward(struct hkt__meter *meter, const struct hkt__sizes *z, const struct hkt_step_routing *routing);
void hkt__meter_weights(struct hkt__meter *meter, const struct hkt__sizes *z, const struct hkt_step_routing *routing);

/* ---- units ---- */

enum { HKT__BOOKS_KINDS = 2 }; /* flat buffers: dense, experts */

/** One unit in one flat buffer. */
struct hkt__books_unit {
    bool has_param, has_grad, is_reducing;
    bool was_reduced; /* in this step */
};

struct hkt__books {
    const struct hkt_step_memory_opts *o;
    struct hkt__meter comm, grad; /* of what comes and goes */
    int nunits, backward_first;
    bool has_stream;
    struct hkt__books_unit *unit[HKT__BOOKS_KINDS]; /* [nunits] each, in one piece of memory */
    int *uses;                                      /* [nunits] */
    int uses_all;
    int *reducing; /* [2 * nunits] kind * nunits + unit, oldest first */
    int nreducing;
};

enum { HKT__BOOKS_PARAM = 1, HKT__BOOKS_GRAD = 2, HKT__BOOKS_BACKWARD = 4 };

/** Errors   NOMEM: then, too, fini is to be called */
HKT_NODISCARD enum hkt_status hkt__books_init(struct hkt__books *books, const struct hkt_step_memory_opts *opts);
void hkt__books_fini(struct hkt__books *books);
/** As the engine's begin, end and final. */
void hkt__books_begin(struct hkt__books *books, int unit, unsigned use);
void hkt__books_end(struct hkt__books *books, int unit, unsigned use);
void hkt__books_final(struct hkt__books *books, int unit);
/** The end of a step: everything is reduced, and nothing stays. */
void hkt__books_finish(struct hkt__books *books);

#endif
