/* The builder: operands, steps, errors. What a step must come after is derived in depend.c; here a step is checked as
 * far as one rank alone can check it (form, counts, sizes, peer, lane), stored, and closed. Whether the ranks fit
 * together is the verifier's question.
 *
 * Invariant: the first error sticks, everything after it is a no-op, and finish names algorithm, rank and step. */
#include "sched/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/mem.h"
#include "sched/depend.h"
#include "sched/grow.h"

struct hkt__build_state {
    struct hkt__sched *sched; /* under construction */
    struct hkt__depend depend;
    int32_t steps_cap, args_cap, deps_cap;
    int32_t scratch_set;    /* hkt__set_scratch, 0: not called */
    bool has_operands;      /* the grid is fixed */
    enum hkt_status status; /* first error */
    char why[256];
};

/* A step as the appenders describe it. */
struct draft {
    enum hkt__step_kind kind;
    int peer, lane;
    bool is_after_all; /* SIGNAL only: after all that was received */
    struct hkt__operand dst;
    const struct hkt__arg *args;
    int nargs;
};

static const struct hkt__operand nothing = {
    .buf = HKT__IN,
    .like_buf = HKT__IN,
    .count = 0,
    .at = { 0, 1, 1 },
    .like = { 0, 1, 1 },
};

static bool is_ok(const struct hkt__builder *b)
{
    return b->state != NULL && b->state->status == HKT_OK;
}

void hkt__builder_fail(struct hkt__builder *b, enum hkt_status status, const char *why)
{
    struct hkt__build_state *st = b->state;

    if (!is_ok(b))
        return;
    st->status = status;
    snprintf(st->why, sizeof st->why, "%s %s, rank %d of %d, step %d: %s", hkt_coll_name(b->coll), st->sched->algo,
             b->rank, b->nranks, (int)st->sched->nsteps, why);
}

static void fail_kind(struct hkt__builder *b, enum hkt__step_kind kind, const char *why)
{
    char text[160];

    snprintf(text, sizeof text, "%s: %s", hkt__step_kind_name(kind), why);
    hkt__builder_fail(b, HKT_ERR_BUG, text);
}

static bool is_v(enum hkt_coll coll)
{
    return coll == HKT_ALL_GATHER_V || coll == HKT_REDUCE_SCATTER_V || coll == HKT_ALL_TO_ALL_V;
}

enum hkt_status hkt__builder_init(struct hkt__builder *b, const struct hkt__build_args *args)
{
    *b = (struct hkt__builder){ .coll = args->coll,
                                .nranks = args->nranks,
                                .rank = args->rank,
                                .root = args->root,
                                .in_place = args->in_place,
                                .user_direct = args->user_direct,
                                .radix = 2 };
    if (args->nranks < 1 || args->nranks > HKT_RANKS_MAX || args->rank < 0 || args->rank >= args->nranks
        || args->root < 0 || args->root >= args->nranks)
        return hkt__fail(HKT_ERR_INVALID,
                         "%s %s: rank %d and root %d must lie below the number of ranks, %d (at most %d)",
                         hkt_coll_name(args->coll), args->algo, args->rank, args->root, args->nranks, HKT_RANKS_MAX);
    if (args->in_place && args->coll == HKT_ALL_TO_ALL_V)
        return hkt__fail(HKT_ERR_INVALID, "all_to_all_v is not defined in place: give it two buffers");

    struct hkt__build_state *st = hkt__calloc(1, sizeof *st);
    struct hkt__sched *sched = hkt__calloc(1, sizeof *sched);

    if (st == NULL || sched == NULL) {
        hkt__free(st);
        hkt__free(sched);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a schedule of %s %s", hkt_coll_name(args->coll), args->algo);
    }
    sched->coll = args->coll;
    sched->algo = args->algo;
    sched->nranks = args->nranks;
    sched->rank = args->rank;
    sched->root = args->root;
    sched->in_place = args->in_place;
    sched->uniform_blocks = !is_v(args->coll);
    sched->cuts = 1;
    sched->nlanes = 1;
    hkt__coll_blocks(args->coll, args->nranks, args->rank, args->root, sched->blocks);
    hkt__depend_init(&st->depend, args->nranks);
    st->sched = sched;
    b->state = st;
    return HKT_OK;
}

void hkt__set_cuts(struct hkt__builder *b, int cuts)
{
    if (!is_ok(b))
        return;
    if (b->state->has_operands)
        hkt__builder_fail(b, HKT_ERR_BUG, "set_cuts after an operand was made: the grid would change under it");
    else if (cuts < 1 || (int64_t)cuts * b->nranks > INT32_MAX / 4)
        hkt__builder_fail(b, HKT_ERR_BUG, "set_cuts: too many or too few chunks per block");
    else
        b->state->sched->cuts = cuts;
}

void hkt__set_scratch(struct hkt__builder *b, int slots)
{
    if (!is_ok(b))
        return;
    if (slots < 0 || slots > INT32_MAX / 4)
        hkt__builder_fail(b, HKT_ERR_BUG, "set_scratch: slots out of range");
    else
        b->state->scratch_set = slots;
}

enum hkt_status hkt__builder_finish(struct hkt__builder *b, struct hkt__sched **out_sched)
{
    struct hkt__build_state *st = b->state;
    enum hkt_status rc;

    if (st == NULL) { /* init failed and has said why */
        rc = hkt__error_here()->status;
        return rc < 0 ? rc : hkt__fail(HKT_ERR_BUG, "a builder was finished that was never started");
    }
    if (st->scratch_set > 0 && st->sched->scratch_chunks > st->scratch_set)
        hkt__builder_fail(b, HKT_ERR_BUG, "more scratch slots are used than set_scratch announced");
    rc = st->status;
    if (rc == HKT_OK) {
        if (st->scratch_set > 0)
            st->sched->scratch_chunks = st->scratch_set;
        *out_sched = st->sched;
    } else {
        hkt__fail(rc, "%s", st->why);
        hkt__sched_destroy(st->sched);
    }
    hkt__depend_fini(&st->depend);
    hkt__free(st);
    b->state = NULL;
    return rc;
}

int hkt__rank_at(const struct hkt__builder *b, int64_t offset)
{
    return hkt__mod(b->rank + offset, b->nranks);
}

int hkt__vrank(const struct hkt__builder *b)
{
    return hkt__mod((int64_t)b->rank - b->root, b->nranks);
}

int hkt__from_vrank(const struct hkt__builder *b, int64_t vrank)
{
    return hkt__mod(vrank + b->root, b->nranks);
}

struct hkt__operand hkt__in(struct hkt__builder *b, int64_t chunk)
{
    return hkt__range(b, HKT__IN, chunk, 1, 1);
}

struct hkt__operand hkt__out(struct hkt__builder *b, int64_t chunk)
{
    return hkt__range(b, HKT__OUT, chunk, 1, 1);
}

static struct hkt__operand all_of(struct hkt__builder *b, enum hkt__buf buf)
{
    return hkt__range(b, buf, 0, 1, is_ok(b) ? hkt__buf_chunks(b->state->sched, buf) : 0);
}

struct hkt__operand hkt__in_all(struct hkt__builder *b)
{
    return all_of(b, HKT__IN);
}

struct hkt__operand hkt__out_all(struct hkt__builder *b)
{
    return all_of(b, HKT__OUT);
}

static struct hkt__operand range_of(enum hkt__buf buf, int32_t chunks, int64_t start, int64_t stride, int count)
{
    struct hkt__operand x = nothing;

    x.buf = x.like_buf = (uint8_t)buf;
    x.count = count;
    x.at = (struct hkt__span){ hkt__mod(start, chunks), (int32_t)(stride % chunks), chunks };
    if (chunks == 1)
        x.at.stride = 1;
    x.like = x.at;
    return x;
}

struct hkt__operand hkt__range(struct hkt__builder *b, enum hkt__buf buf, int64_t start, int64_t stride, int count)
{
    struct hkt__operand x = nothing;

    if (!is_ok(b))
        return x;
    if (buf != HKT__IN && buf != HKT__OUT) {
        hkt__builder_fail(b, HKT_ERR_BUG, "a range lies in IN or OUT; make scratch operands with hkt__scratch");
        return x;
    }
    const int32_t chunks = hkt__buf_chunks(b->state->sched, buf);

    b->state->has_operands = true;
    if (chunks == 0 || count < 0) {
        hkt__builder_fail(b, HKT_ERR_BUG,
                          count < 0        ? "an operand of a negative number of chunks"
                          : buf == HKT__IN ? "IN has no blocks at this rank"
                                           : "OUT has no blocks at this rank");
        return x;
    }
    return range_of(buf, chunks, start, stride, count);
}

struct hkt__operand hkt__scratch(struct hkt__builder *b, int slot, struct hkt__operand like)
{
    struct hkt__operand x = like;

    if (slot < 0 || slot > INT32_MAX / 4 - like.count) {
        hkt__builder_fail(b, HKT_ERR_BUG, "a scratch slot out of range");
        return nothing;
    }
    x.buf = HKT__SCRATCH;
    x.at = (struct hkt__span){ slot, 1, like.count > 0 ? slot + like.count : slot + 1 };
    return x;
}

struct hkt__arg hkt__at(int rank, struct hkt__operand x)
{
    return (struct hkt__arg){ rank, x };
}

struct hkt__arg hkt__chunk_at(struct hkt__builder *b, int rank, enum hkt__buf buf, int64_t chunk)
{
    int32_t blocks[2];

    if (!is_ok(b))
        return (struct hkt__arg){ rank, nothing };
    b->state->has_operands = true;
    hkt__coll_blocks(b->state->sched->coll, b->nranks, rank, b->root, blocks);
    return (struct hkt__arg){ rank, range_of(buf, blocks[buf] * b->state->sched->cuts, chunk, 1, 1) };
}

/* Is the operand well formed in the memory of `rank`? NULL, or what is wrong. */
static const char *operand_defect(const struct hkt__builder *b, int rank, const struct hkt__operand *x)
{
    const struct hkt__sched *sched = b->state->sched;
    int32_t blocks[2];

    if (x->count == 0)
        return NULL;
    if (x->count < 0 || x->buf >= HKT__BUF_COUNT || x->like_buf > HKT__OUT || x->at.modulus < 1 || x->like.modulus < 1)
        return "a malformed operand";
    hkt__coll_blocks(sched->coll, sched->nranks, rank, sched->root, blocks);
    if (x->like.modulus > blocks[x->like_buf] * sched->cuts)
        return "an operand whose sizes are those of chunks its rank does not have";
    if (x->buf != HKT__SCRATCH && (x->buf != x->like_buf || x->at.modulus > blocks[x->buf] * sched->cuts))
        return "an operand beyond the chunks of its buffer";
    return NULL;
}

/* Do the pieces of x and y have the same sizes, one by one, whatever the counts of a call are? */
static bool sizes_agree(const struct hkt__sched *sched, const struct hkt__arg *x, const struct hkt__arg *y)
{
    if (sched->uniform_blocks && sched->cuts == 1)
        return true;
    if (x->rank == y->rank && x->x.like_buf == y->x.like_buf && memcmp(&x->x.like, &y->x.like, sizeof x->x.like) == 0)
        return true;
    for (int32_t i = 0; i < x->x.count; i++)
        if (hkt__size_class(sched, x->rank, x->x.like_buf, hkt__span_at(&x->x.like, i))
            != hkt__size_class(sched, y->rank, y->x.like_buf, hkt__span_at(&y->x.like, i)))
            return false;
    return true;
}

/* What is wrong with the draft, NULL if nothing. All operands are compared with the first one. */
static const char *draft_defect(const struct hkt__builder *b, const struct draft *d)
{
    const bool has_peer = d->kind != HKT__COPY && d->kind != HKT__REDUCE && d->kind != HKT__WRITE;
    const bool is_sync = d->kind == HKT__SIGNAL || d->kind == HKT__WAIT;
    const bool has_dst = d->kind != HKT__SEND && d->kind != HKT__WRITE;
    const struct hkt__arg dst = { b->rank, d->dst };
    const struct hkt__arg *first = has_dst ? &dst : d->args;

    if (d->lane < 0 || d->lane >= HKT__LANES_MAX)
        return "the lane is out of range";
    if (has_peer && (d->peer < 0 || d->peer >= b->nranks))
        return "the peer is out of range";
    if (has_peer && d->peer == b->rank)
        return "the peer is this rank itself";
    if (has_dst) {
        const char *why = operand_defect(b, b->rank, &d->dst);

        if (why != NULL)
            return why;
    }
    for (int i = 0; i < d->nargs; i++) {
        const struct hkt__arg *arg = &d->args[i];
        const bool may_be_remote = d->kind == HKT__REDUCE || (d->kind == HKT__WRITE && i > 0);

        if (arg->rank < 0 || arg->rank >= b->nranks || (arg->rank != b->rank && !may_be_remote))
            return "an argument at a rank it may not be at";
        if (arg->rank != b->rank && arg->x.buf != HKT__SCRATCH && !b->user_direct)
            return "IN or OUT of a peer, which only an algorithm marked user_direct may touch";
        if (arg->x.count != first->x.count)
            return "operands with different numbers of pieces";
        const char *why = operand_defect(b, arg->rank, &arg->x);

        if (why != NULL)
            return why;
        if (!is_sync && arg->x.count > 0 && !sizes_agree(b->state->sched, first, arg))
            return "operands whose pieces differ in size for some counts";
    }
    return NULL;
}

/* Scratch slots that the operand needs. */
static int32_t slots_end(const struct hkt__operand *x)
{
    const int64_t end = (int64_t)x->at.start + x->count;

    if (x->buf != HKT__SCRATCH || x->count == 0)
        return 0;
    return x->at.stride == 1 && x->at.start >= 0 && end <= x->at.modulus ? (int32_t)end : x->at.modulus;
}

static void reserve_slots(struct hkt__sched *sched, const struct hkt__operand *x)
{
    const int32_t end = slots_end(x);

    if (end > sched->scratch_chunks)
        sched->scratch_chunks = end;
}

static enum hkt_status derive_operands(struct hkt__builder *b, const struct draft *d)
{
    struct hkt__depend *depend = &b->state->depend;
    const struct hkt__sched *sched = b->state->sched;
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < d->nargs && rc == HKT_OK; i++) {
        const struct hkt__operand *x = &d->args[i].x;
        const bool is_written = d->kind == HKT__WRITE && i > 0;

        if (d->args[i].rank != b->rank)
            rc = hkt__depend_touch(depend, d->args[i].rank);
        else if (is_written)
            rc = hkt__depend_write(depend, hkt__cell_base(sched, x->buf), &x->at, x->count);
        else
            rc = hkt__depend_read(depend, hkt__cell_base(sched, x->buf), &x->at, x->count);
    }
    if (rc == HKT_OK && d->kind == HKT__SIGNAL && d->dst.count > 0)
        rc = hkt__depend_grant(depend, hkt__cell_base(sched, d->dst.buf), &d->dst.at, d->dst.count);
    else if (rc == HKT_OK && d->dst.count > 0)
        rc = hkt__depend_write(depend, hkt__cell_base(sched, d->dst.buf), &d->dst.at, d->dst.count);
    return rc;
}

static enum hkt_status derive(struct hkt__builder *b, const struct draft *d)
{
    struct hkt__depend *depend = &b->state->depend;
    enum hkt_status rc = hkt__depend_begin(depend, b->state->sched->nsteps);

    if (rc == HKT_OK)
        rc = derive_operands(b, d);
    if (rc == HKT_OK && d->kind == HKT__SIGNAL)
        rc = hkt__depend_signal(depend, d->peer);
    if (rc == HKT_OK && d->is_after_all)
        rc = hkt__depend_all_received(depend);
    if (rc == HKT_OK && (d->kind == HKT__RECV || d->kind == HKT__RECV_REDUCE || d->kind == HKT__WAIT))
        rc = hkt__depend_receive(depend, d->peer, d->lane, d->kind == HKT__WAIT);
    return rc;
}

static int compare_steps(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

/* Room for one more step, its arguments and its dependencies. */
static bool make_room(struct hkt__build_state *st, int nargs)
{
    struct hkt__sched *sched = st->sched;
    const int32_t nfound = st->depend.nfound;
    struct hkt__step *steps = hkt__grow(sched->steps, &st->steps_cap, (int64_t)sched->nsteps + 1, sizeof *steps);

    if (steps == NULL)
        return false;
    sched->steps = steps;
    struct hkt__arg *args = hkt__grow(sched->args, &st->args_cap, (int64_t)sched->nargs + nargs, sizeof *args);

    if (args == NULL)
        return false;
    sched->args = args;
    int32_t *deps = hkt__grow(sched->deps, &st->deps_cap, (int64_t)sched->ndeps + nfound, sizeof *deps);

    if (deps == NULL)
        return false;
    sched->deps = deps;
    return true;
}

static void store(struct hkt__build_state *st, const struct draft *d)
{
    struct hkt__sched *sched = st->sched;
    const int32_t nfound = st->depend.nfound;

    if (nfound > 0)
        memcpy(&sched->deps[sched->ndeps], st->depend.found, (size_t)nfound * sizeof *sched->deps);
    if (nfound > 1)
        qsort(&sched->deps[sched->ndeps], (size_t)nfound, sizeof *sched->deps, compare_steps);
    if (d->nargs > 0)
        memcpy(&sched->args[sched->nargs], d->args, (size_t)d->nargs * sizeof *d->args);
    sched->steps[sched->nsteps++] = (struct hkt__step){
        .kind = (uint8_t)d->kind,
        .lane = (uint8_t)d->lane,
        .peer = d->peer,
        .dst = d->dst,
        .arg_first = sched->nargs,
        .arg_count = d->nargs,
        .dep_first = sched->ndeps,
        .dep_count = nfound,
        .fused = -1,
    };
    sched->nargs += d->nargs;
    sched->ndeps += nfound;
    if (d->lane >= sched->nlanes)
        sched->nlanes = d->lane + 1;
    reserve_slots(sched, &d->dst);
    for (int i = 0; i < d->nargs; i++)
        reserve_slots(sched, &d->args[i].x);
}

static void append(struct hkt__builder *b, const struct draft *d)
{
    if (!is_ok(b))
        return;
    b->state->has_operands = true;
    const char *why = draft_defect(b, d);

    if (why != NULL) {
        fail_kind(b, d->kind, why);
        return;
    }
    enum hkt_status rc = derive(b, d);

    if (rc == HKT_ERR_BUG)
        fail_kind(b, d->kind, "a chunk that is written is named twice, so the order of pieces would matter");
    else if (rc != HKT_OK || !make_room(b->state, d->nargs))
        hkt__builder_fail(b, HKT_ERR_NOMEM, "no memory for a step");
    else
        store(b->state, d);
}

void hkt__send(struct hkt__builder *b, int peer, int lane, struct hkt__operand x)
{
    const struct hkt__arg arg = { b->rank, x };

    if (x.count != 0)
        append(b, &(struct draft){ HKT__SEND, peer, lane, false, nothing, &arg, 1 });
}

void hkt__recv(struct hkt__builder *b, int peer, int lane, struct hkt__operand y)
{
    if (y.count != 0)
        append(b, &(struct draft){ HKT__RECV, peer, lane, false, y, NULL, 0 });
}

void hkt__recv_reduce(struct hkt__builder *b, int peer, int lane, struct hkt__operand y, struct hkt__operand x)
{
    const struct hkt__arg arg = { b->rank, x };

    if (y.count != 0 || x.count != 0)
        append(b, &(struct draft){ HKT__RECV_REDUCE, peer, lane, false, y, &arg, 1 });
}

/* Are x and y the same cells, piece by piece? */
static bool same_memory(const struct hkt__builder *b, const struct hkt__operand *x, const struct hkt__operand *y)
{
    const struct hkt__sched *sched = b->state->sched;
    const int32_t base_x = hkt__cell_base(sched, x->buf), base_y = hkt__cell_base(sched, y->buf);

    if (x->count != y->count)
        return false;
    for (int32_t i = 0; i < x->count; i++)
        if (base_x + hkt__span_at(&x->at, i) != base_y + hkt__span_at(&y->at, i))
            return false;
    return true;
}

void hkt__copy(struct hkt__builder *b, int lane, struct hkt__operand y, struct hkt__operand x)
{
    const struct hkt__arg arg = { b->rank, x };

    if (!is_ok(b) || same_memory(b, &x, &y))
        return;
    append(b, &(struct draft){ HKT__COPY, -1, lane, false, y, &arg, 1 });
}

void hkt__reduce(struct hkt__builder *b, int lane, struct hkt__operand y, const struct hkt__arg *args, int nargs)
{
    bool is_empty = y.count == 0;

    if (!is_ok(b))
        return;
    if (nargs < 1) {
        fail_kind(b, HKT__REDUCE, "no arguments");
        return;
    }
    for (int i = 0; i < nargs; i++)
        is_empty = is_empty && args[i].x.count == 0;
    if (nargs == 1 && args[0].rank == b->rank)
        hkt__copy(b, lane, y, args[0].x);
    else if (!is_empty)
        append(b, &(struct draft){ HKT__REDUCE, -1, lane, false, y, args, nargs });
}

void hkt__write(struct hkt__builder *b, int lane, const struct hkt__arg *to, int nto, struct hkt__operand x)
{
    if (!is_ok(b) || nto == 0 || x.count == 0)
        return;
    struct hkt__arg *args = hkt__calloc((size_t)nto + 1, sizeof *args);
    int nargs = 1;

    if (args == NULL) {
        hkt__builder_fail(b, HKT_ERR_NOMEM, "no memory for the destinations of a write");
        return;
    }
    args[0] = hkt__at(b->rank, x);
    for (int i = 0; i < nto; i++) /* a destination that is x itself holds it already */
        if (to[i].rank != b->rank || !same_memory(b, &to[i].x, &x))
            args[nargs++] = to[i];
    if (nargs > 1)
        append(b, &(struct draft){ HKT__WRITE, -1, lane, false, nothing, args, nargs });
    hkt__free(args);
}

void hkt__signal(struct hkt__builder *b, int peer, int lane, struct hkt__operand x)
{
    append(b, &(struct draft){ HKT__SIGNAL, peer, lane, false, x, NULL, 0 });
}

void hkt__wait(struct hkt__builder *b, int peer, int lane, struct hkt__operand x)
{
    append(b, &(struct draft){ HKT__WAIT, peer, lane, false, x, NULL, 0 });
}

void hkt__signal_all_done(struct hkt__builder *b, int peer, int lane)
{
    append(b, &(struct draft){ HKT__SIGNAL, peer, lane, true, nothing, NULL, 0 });
}
