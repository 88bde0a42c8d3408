/* The schedule: what one rank of p does in a collective, as data. It holds no pointers to user memory, no byte counts,
 * no transport, and is immutable once built.
 *
 * Buffers.  IN and OUT are cut in blocks (one, or one per rank, by collective) and each block in `cuts` chunks; chunk
 *   index = block * cuts + cut. The grid does not depend on the byte count; hkt__grid_span maps a chunk to elements.
 *   SCRATCH is an array of `scratch_chunks` slots, each able to hold the largest chunk.
 * Operand.  A strided wrap-around range of chunks: piece i is chunk (start + i * stride) mod modulus of `buf`. A
 *   piece in SCRATCH has no size of its own: `like` names the range of IN or OUT chunks whose sizes it takes.
 * Lanes and order.  A lane is a set of FIFO queues: one of sends per peer, one of receives per peer, one of local work.
 *   Steps of one queue run in program order; everything else is ordered by dependencies alone, which the builder
 *   derives from operands. (Were a lane one single sequence, the textbook ring would deadlock without buffering.)
 *   The k-th SEND or SIGNAL on (src, dst, lane) meets the k-th RECV, RECV_REDUCE or WAIT on it. No tags.
 * Direct steps.  READ_REDUCE and WRITE touch memory of peers. SIGNAL(peer, x) says: what I did to x before is visible
 *   to you, and x is yours until you signal back; WAIT(peer, x) takes it back. Remote SCRATCH is granted by a SIGNAL
 *   until the end of the slice: the executor does not reuse a slice's scratch before every rank has finished it.
 *   Remote IN and OUT must be handed back by SIGNAL/WAIT before the owner's schedule ends.
 * Slices.  The schedule describes one slice; the executor streams slices 0..S-1 through it, element-disjoint in IN and
 *   OUT, with SCRATCH in several instances. */
#ifndef HOCKET_SCHED_IR_H
#define HOCKET_SCHED_IR_H

#include <stdbool.h>
#include <stdint.h>

#include "hocket/types.h"

#define HKT__LANES_MAX 8

enum hkt__buf { HKT__IN, HKT__OUT, HKT__SCRATCH, HKT__BUF_COUNT };

struct hkt__span {
    int32_t start, stride, modulus; /* piece i is (start + i * stride) mod modulus */
};

struct hkt__operand {
    uint8_t buf;        /* enum hkt__buf */
    uint8_t like_buf;   /* HKT__IN or HKT__OUT: whose chunk sizes the pieces have; == buf unless SCRATCH */
    int32_t count;      /* pieces; 0 is legal and moves nothing */
    struct hkt__span at;
    struct hkt__span like; /* == at unless SCRATCH */
};

enum hkt__step_kind {
    HKT__SEND,        /* args[0] -> peer */
    HKT__RECV,        /* dst = from peer */
    HKT__RECV_REDUCE, /* dst = args[0] op from peer; args[0] is local, often dst itself */
    HKT__COPY,        /* dst = args[0] */
    HKT__REDUCE,      /* dst = args[0] op args[1] op ...: in this order, one rounding for 16- and 8-bit types. Any
                         argument may be remote (READ_REDUCE); with one argument it is a READ */
    HKT__WRITE,       /* args[1..] (remote or local) = args[0] (local) */
    HKT__SIGNAL,      /* dst = local range handed to peer (count 0: pure synchronisation) */
    HKT__WAIT,        /* dst = local range taken back from peer */
    HKT__STEP_KIND_COUNT
};

/** An operand with the rank that holds it; rank == own rank means local. */
struct hkt__arg {
    int32_t rank;
    struct hkt__operand x;
};

struct hkt__step {
    uint8_t kind;
    uint8_t lane;
    int32_t peer;                  /* two-sided and SYNC steps; -1 otherwise */
    struct hkt__operand dst;       /* RECV, RECV_REDUCE, COPY, REDUCE, SIGNAL, WAIT */
    int32_t arg_first, arg_count;  /* in sched->args */
    int32_t dep_first, dep_count;  /* in sched->deps: indices of earlier steps that must be done first */
    int32_t fused;                 /* after lowering: index of the SEND this receive may be fused with, and from
                                      that SEND back to the receive; -1: none. A hint, the meaning is unchanged */
};

struct hkt__sched {
    enum hkt_coll coll;
    const char *algo;              /* borrowed from the registry */
    int32_t nranks, rank, root;
    bool in_place;
    bool uniform_blocks;           /* true: all blocks have one size; false: sizes differ (v-variants) */
    int32_t cuts;                  /* chunks per block */
    int32_t blocks[2];             /* of IN and of OUT: 0 (not significant here), 1 or nranks */
    int32_t scratch_chunks;        /* slots reserved; the same on all ranks, see hkt__set_scratch */
    int32_t nlanes;
    int32_t nsteps, nargs, ndeps;
    struct hkt__step *steps;
    struct hkt__arg *args;
    int32_t *deps;
};

/** Frees a schedule made by hkt__builder_finish or a lowering pass; NULL is allowed. */
void hkt__sched_destroy(struct hkt__sched *sched);

/** Blocks of IN and OUT for a rank of a collective (root matters for gather, scatter, broadcast, reduce). OUT of a
 *  non-root in reduce and gather has 0 blocks, as has IN of a non-root in broadcast and scatter. */
void hkt__coll_blocks(enum hkt_coll coll, int nranks, int rank, int root, int32_t out_blocks[2]);

/** Chunks of a buffer: blocks * cuts, or scratch_chunks. */
int32_t hkt__buf_chunks(const struct hkt__sched *sched, enum hkt__buf buf);

/** "send", "recv", ...; "?" for a value that is no kind. */
const char *hkt__step_kind_name(int kind);

/** Where a chunk really lives: with in_place, IN and OUT are one memory, and both names give one cell. Cells number
 *  0 .. hkt__cell_count - 1 over all memory of the rank. Layouts in place: see coll.h for each collective. */
int32_t hkt__cell(const struct hkt__sched *sched, enum hkt__buf buf, int32_t chunk);
int32_t hkt__cell_count(const struct hkt__sched *sched);
/** hkt__cell(sched, buf, c) == hkt__cell_base(sched, buf) + c for every chunk c: the alias is a shift. */
int32_t hkt__cell_base(const struct hkt__sched *sched, enum hkt__buf buf);

/** Chunks of one class have one size for whatever counts a call brings; chunks of different classes may differ. Classes
 *  are comparable between ranks of one collective. buf is HKT__IN or HKT__OUT as rank `rank` numbers it. */
int64_t hkt__size_class(const struct hkt__sched *sched, int32_t rank, enum hkt__buf buf, int32_t chunk);

static inline int32_t hkt__span_at(const struct hkt__span *span, int32_t i)
{
    int64_t at = (int64_t)span->start + (int64_t)i * span->stride;

    if (at < 0 || at >= span->modulus) { /* a division costs more than most small messages can bear */
        at %= span->modulus;
        at = at < 0 ? at + span->modulus : at;
    }
    return (int32_t)at;
}

/** How many elements things have at run time: binds a schedule's grid to a call. */
struct hkt__grid {
    int32_t cuts;
    size_t count;               /* elements per block, uniform */
    const size_t *counts[2];    /* v-variants: elements per block of IN, OUT; NULL: uniform */
    const size_t *displs[2];    /* start of each block; NULL: packed (uniform) */
};

/** Elements of one chunk in one slice of nslices: slices cut a block first, chunks cut the slice. */
static inline void hkt__grid_span(const struct hkt__grid *grid, int buf, int32_t chunk, int32_t slice, int32_t nslices,
                                  size_t *out_first, size_t *out_count)
{
    const int32_t block = grid->cuts == 1 ? chunk : chunk / grid->cuts, cut = grid->cuts == 1 ? 0 : chunk % grid->cuts;
    const size_t elems = grid->counts[buf] != NULL ? grid->counts[buf][block] : grid->count;
    size_t first = grid->displs[buf] != NULL ? grid->displs[buf][block] : (size_t)block * grid->count;
    size_t count = elems, part;

    if (nslices > 1) {
        const size_t base = elems / (size_t)nslices, rest = elems % (size_t)nslices;

        first += (size_t)slice * base + ((size_t)slice < rest ? (size_t)slice : rest);
        count = base + ((size_t)slice < rest);
    }
    if (grid->cuts > 1) {
        const size_t base = count / (size_t)grid->cuts, rest = count % (size_t)grid->cuts;

        part = (size_t)cut * base + ((size_t)cut < rest ? (size_t)cut : rest);
        first += part;
        count = base + ((size_t)cut < rest);
    }
    *out_first = first;
    *out_count = count;
}

#endif
