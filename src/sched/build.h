/* The builder: appends steps in program order and derives their dependencies from operands (last writer of each cell,
 * readers since), so that an algorithm states only what moves. It keeps the first error until finish, so an algorithm
 * has no error paths of its own. */
#ifndef HOCKET_SCHED_BUILD_H
#define HOCKET_SCHED_BUILD_H

#include "sched/ir.h"

struct hkt__levels; /* algos/levels.h */

struct hkt__builder {
    /* What an algorithm reads. */
    enum hkt_coll coll;
    int nranks, rank, root;
    bool in_place;
    bool user_direct;                 /* peers can address IN and OUT too, not only SCRATCH */
    const struct hkt__levels *levels; /* groups of near ranks; NULL: nothing is known. Set after init; borrowed */
    int radix;                        /* of algorithms that go by the digits of distances, at least 2. Set after init */
    /* Private to build.c. */
    struct hkt__build_state *state;
};

/** What to build; lanes and cuts are chosen by the algorithm. */
struct hkt__build_args {
    enum hkt_coll coll;
    const char *algo;
    int nranks, rank, root;
    bool in_place, user_direct;
};

/** Start. Release with finish (always, also after errors). */
HKT_NODISCARD enum hkt_status hkt__builder_init(struct hkt__builder *b, const struct hkt__build_args *args);
/** Chunks per block (default 1); call before the first operand is made. */
void hkt__set_cuts(struct hkt__builder *b, int cuts);
/** Slots of SCRATCH every rank reserves (default: what this rank's steps use here and at peers). Needed where ranks use
 *  different numbers of slots: all ranks must end with one number, since it decides how a call is sliced. Using more
 *  than was set is an error. */
void hkt__set_scratch(struct hkt__builder *b, int slots);
/** End: hands over the schedule, or returns the first error; the builder is released either way. */
HKT_NODISCARD enum hkt_status hkt__builder_finish(struct hkt__builder *b, struct hkt__sched **out_sched);
/** Record an error from an algorithm (a case it cannot serve). */
void hkt__builder_fail(struct hkt__builder *b, enum hkt_status status, const char *why);

/** Rank at a distance, wrapping: rank_at(b, 1) is the next one. */
int hkt__rank_at(const struct hkt__builder *b, int64_t offset);
/** Position relative to root: (rank - root) mod nranks, and back. */
int hkt__vrank(const struct hkt__builder *b);
int hkt__from_vrank(const struct hkt__builder *b, int64_t vrank);

/* Operands. Chunk numbers may be any integer: they wrap modulo the buffer's chunks. An operand of a buffer without
 * blocks (not significant at this rank) is an error kept until finish. */
struct hkt__operand hkt__in(struct hkt__builder *b, int64_t chunk);
struct hkt__operand hkt__out(struct hkt__builder *b, int64_t chunk);
struct hkt__operand hkt__in_all(struct hkt__builder *b);
struct hkt__operand hkt__out_all(struct hkt__builder *b);
/** count chunks from start, stride apart, modulo the number of chunks in buf. */
struct hkt__operand hkt__range(struct hkt__builder *b, enum hkt__buf buf, int64_t start, int64_t stride, int count);
/** count slots of scratch from `slot` on, with the sizes of `like`'s chunks (like.count == count). Scratch grows to
 *  what is used. A rank may use the same slot for different things at different times. */
struct hkt__operand hkt__scratch(struct hkt__builder *b, int slot, struct hkt__operand like);
/** The operand as it lies in another rank's memory: same form, for SCRATCH, and for IN/OUT whose blocks agree. */
struct hkt__arg hkt__at(int rank, struct hkt__operand x);
/** A chunk of another rank's IN or OUT, which may have other blocks than this rank's, or be significant there alone. */
struct hkt__arg hkt__chunk_at(struct hkt__builder *b, int rank, enum hkt__buf buf, int64_t chunk);

/* Steps. Operands of one step have equal counts and equal chunk sizes piece by piece. Moves of zero pieces vanish.
 * A copy of an operand onto itself (in place) vanishes. */
void hkt__send(struct hkt__builder *b, int peer, int lane, struct hkt__operand x);
void hkt__recv(struct hkt__builder *b, int peer, int lane, struct hkt__operand y);
/** y = x op (what peer sent); x may be y. */
void hkt__recv_reduce(struct hkt__builder *b, int peer, int lane, struct hkt__operand y, struct hkt__operand x);
void hkt__copy(struct hkt__builder *b, int lane, struct hkt__operand y, struct hkt__operand x);
/** y = args[0] op args[1] ...; arguments at other ranks are read in place (after a WAIT for that rank). */
void hkt__reduce(struct hkt__builder *b, int lane, struct hkt__operand y, const struct hkt__arg *args, int nargs);
/** Each of to[0..nto) = x; destinations at other ranks must have been granted by a WAIT for that rank. */
void hkt__write(struct hkt__builder *b, int lane, const struct hkt__arg *to, int nto, struct hkt__operand x);
/** In the order of steps at this rank WAIT counts as a write of x; SIGNAL comes after all earlier uses of x except
 *  other SIGNALs. */
void hkt__signal(struct hkt__builder *b, int peer, int lane, struct hkt__operand x);
void hkt__wait(struct hkt__builder *b, int peer, int lane, struct hkt__operand x);
/** A pure synchronisation: no operand, ordered after everything this rank waited for before (barrier). */
void hkt__signal_all_done(struct hkt__builder *b, int peer, int lane);

#endif
