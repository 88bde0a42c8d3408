/* Proof that a schedule is right: what each stage does, then all stages together with messages that are never
 * buffered. */
#include <stdlib.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/pipe.h"

#define STUCK_MAX 4 /* waiting stages that the text of a deadlock names */

int hkt__pipe_stage_of(const struct hkt_pipe *pipe, int op)
{
    int low = 0, high = pipe->stages - 1; /* the last stage that begins at or before op */

    while (low < high) {
        const int middle = (low + high + 1) / 2;

        if (pipe->first[middle] <= op)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void op_text(const struct hkt_pipe_op *op, char *out_text, size_t bytes)
{
    if (hkt__pipe_is_compute(op->kind))
        snprintf(out_text, bytes, "%s of micro-batch %d, chunk %d", hkt_pipe_op_name(op->kind), op->micro, op->chunk);
    else
        snprintf(out_text, bytes, "%s of micro-batch %d, chunk %d, %s stage %d", hkt_pipe_op_name(op->kind), op->micro,
                 op->chunk, hkt__pipe_is_send(op->kind) ? "to" : "from", op->peer);
}

static enum hkt_status wrong(const struct hkt_pipe *pipe, int i, const char *what)
{
    const int stage = hkt__pipe_stage_of(pipe, i);
    char text[128];

    op_text(&pipe->ops[i], text, sizeof text);
    return hkt__parallel_fail(HKT_ERR_INVALID, "stage %d, operation %d (%s): %s", stage, i - pipe->first[stage], text,
                              what);
}

/* ---- one stage at a time ---- */

/* What has happened on a stage: bits per (chunk, micro-batch), and per chunk the next micro-batch whose gradient is
 * added. */
enum { DID_F = 1, DID_B = 2, DID_W = 4, GOT_ACT = 8, GOT_GRAD = 16, PUT_ACT = 32, PUT_GRAD = 64 };

struct seen {
    const struct hkt_pipe *pipe;
    unsigned char *bits;
    int *next_gradient;
};

/* The bit an operation sets, and those that must be set before. */
static void needs(const struct hkt_pipe *pipe, int stage, const struct hkt_pipe_op *op, unsigned *out_sets,
                  unsigned *out_needs)
{
    const int k = hkt__pipe_virtual(pipe, stage, op->chunk), last = pipe->stages * pipe->chunks - 1;
    const bool talks = pipe->stages > 1;

    *out_needs = 0;
    switch (op->kind) {
    case HKT_PIPE_F:
        *out_sets = DID_F;
        *out_needs = k > 0 && talks ? GOT_ACT : 0;
        break;
    case HKT_PIPE_B:
        *out_sets = DID_B;
        *out_needs = DID_F | (k < last && talks ? GOT_GRAD : 0);
        break;
    case HKT_PIPE_W:
        *out_sets = DID_W;
        *out_needs = DID_B;
        break;
    case HKT_PIPE_SEND_ACT:
        *out_sets = PUT_ACT;
        *out_needs = DID_F;
        break;
    case HKT_PIPE_SEND_GRAD:
        *out_sets = PUT_GRAD;
        *out_needs = DID_B;
        break;
    case HKT_PIPE_RECV_ACT:
        *out_sets = GOT_ACT;
        break;
    default:
        *out_sets = GOT_GRAD;
        break;
    }
}

/* All bits of a (chunk, micro-batch) at the end of a stage's list. */
static unsigned expected(const struct hkt_pipe *pipe, int stage, int chunk)
{
    const int k = hkt__pipe_virtual(pipe, stage, chunk), last = pipe->stages * pipe->chunks - 1;
    const bool talks = pipe->stages > 1, trains = pipe->kind != HKT_PIPE_FORWARD;
    unsigned bits = DID_F;

    bits |= trains ? DID_B : 0;
    bits |= trains && pipe->splits_backward ? DID_W : 0;
    if (talks && k > 0)
        bits |= GOT_ACT | (trains ? PUT_GRAD : 0);
    if (talks && k < last)
        bits |= PUT_ACT | (trains ? GOT_GRAD : 0);
    return bits;
}

/* Is the peer of a message the neighbour it must be? */
static bool peer_is_right(const struct hkt_pipe *pipe, int stage, const struct hkt_pipe_op *op)
{
    const int step = op->kind == HKT_PIPE_SEND_ACT || op->kind == HKT_PIPE_RECV_GRAD ? 1 : pipe->stages - 1;

    return op->peer == (stage + step) % pipe->stages;
}

static enum hkt_status check_op(struct seen *seen, int stage, int i)
{
    const struct hkt_pipe *pipe = seen->pipe;
    const struct hkt_pipe_op *op = &pipe->ops[i];
    unsigned sets, before;

    if ((unsigned)op->kind >= HKT_PIPE_OP_COUNT || op->micro < 0 || op->micro >= pipe->micros || op->chunk < 0
        || op->chunk >= pipe->chunks)
        return hkt__parallel_fail(
            HKT_ERR_INVALID, "stage %d, operation %d: kind %d, micro-batch %d of %d, chunk %d of %d", stage,
            i - pipe->first[stage], (int)op->kind, op->micro, pipe->micros, op->chunk, pipe->chunks);
    unsigned char *bits = &seen->bits[op->chunk * pipe->micros + op->micro];

    needs(pipe, stage, op, &sets, &before);
    if ((sets & ~expected(pipe, stage, op->chunk)) != 0)
        return wrong(pipe, i, "it has no place in this schedule");
    if ((*bits & sets) != 0)
        return wrong(pipe, i, "for the second time");
    if ((before & ~*bits) != 0)
        return wrong(pipe, i, "before what it needs has been computed or received");
    if (!hkt__pipe_is_compute(op->kind) && !peer_is_right(pipe, stage, op))
        return wrong(pipe, i, "the wrong stage at the other end");
    if (op->kind == (pipe->splits_backward ? HKT_PIPE_W : HKT_PIPE_B) && seen->next_gradient[op->chunk]++ != op->micro)
        return wrong(pipe, i, "gradients must be added in the order of micro-batches");
    *bits |= (unsigned char)sets;
    return HKT_OK;
}

static const char *missing_text(unsigned missing)
{
    static const char *const names[] = { "F", "B", "W", "recv_act", "recv_grad", "send_act", "send_grad" };
    int bit = 0;

    while ((missing >> bit & 1) == 0)
        bit++;
    return names[bit];
}

static enum hkt_status check_stage(struct seen *seen, int stage)
{
    const struct hkt_pipe *pipe = seen->pipe;

    memset(seen->bits, 0, (size_t)pipe->chunks * (size_t)pipe->micros);
    memset(seen->next_gradient, 0, (size_t)pipe->chunks * sizeof *seen->next_gradient);
    for (int i = pipe->first[stage]; i < pipe->first[stage + 1]; i++) {
        const enum hkt_status rc = check_op(seen, stage, i);

        if (rc < 0)
            return rc;
    }
    for (int chunk = 0; chunk < pipe->chunks; chunk++)
        for (int micro = 0; micro < pipe->micros; micro++) {
            const unsigned missing = expected(pipe, stage, chunk) & ~seen->bits[chunk * pipe->micros + micro];

            if (missing != 0)
                return hkt__parallel_fail(HKT_ERR_INVALID, "stage %d: %s of micro-batch %d, chunk %d is missing", stage,
                                          missing_text(missing), micro, chunk);
        }
    return HKT_OK;
}

/* ---- all stages together ---- */

/* A send or receive, so that sorting brings partners together. */
struct end {
    int from, to, nth, is_recv, op;
};

static int compare(const void *a, const void *b)
{
    const struct end *x = a, *y = b;
    const int keys[][2] = { { x->from, y->from }, { x->to, y->to }, { x->nth, y->nth }, { x->is_recv, y->is_recv } };

    for (int i = 0; i < 4; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

/* Ends of messages with the place of each in its list standing for nth; then numbered within (from, to, is_recv). */
static int compare_by_place(const void *a, const void *b)
{
    const struct end *x = a, *y = b;
    const int keys[][2] = { { x->from, y->from }, { x->to, y->to }, { x->is_recv, y->is_recv }, { x->op, y->op } };

    for (int i = 0; i < 4; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

enum hkt_status hkt__pipe_partners(const struct hkt_pipe *pipe, int *out_partner)
{
    const int nops = hkt__pipe_nops(pipe);
    struct end *ends = hkt__parallel_calloc((size_t)nops, sizeof *ends);
    int count = 0;

    if (ends == NULL)
        return HKT_ERR_NOMEM;
    for (int stage = 0; stage < pipe->stages; stage++)
        for (int i = pipe->first[stage]; i < pipe->first[stage + 1]; i++) {
            const struct hkt_pipe_op *op = &pipe->ops[i];
            const bool is_send = hkt__pipe_is_send(op->kind);

            out_partner[i] = -1;
            if (!hkt__pipe_is_compute(op->kind))
                ends[count++] = (struct end){ is_send ? stage : op->peer, is_send ? op->peer : stage, 0, !is_send, i };
        }
    qsort(ends, (size_t)count, sizeof *ends, compare_by_place);
    for (int i = 1; i < count; i++)
        if (ends[i].from == ends[i - 1].from && ends[i].to == ends[i - 1].to && ends[i].is_recv == ends[i - 1].is_recv)
            ends[i].nth = ends[i - 1].nth + 1;
    qsort(ends, (size_t)count, sizeof *ends, compare);
    for (int i = 1; i < count; i++)
        if (ends[i].is_recv && !ends[i - 1].is_recv && ends[i].from == ends[i - 1].from && ends[i].to == ends[i - 1].to
            && ends[i].nth == ends[i - 1].nth) {
            out_partner[ends[i].op] = ends[i - 1].op;
            out_partner[ends[i - 1].op] = ends[i].op;
        }
    hkt__parallel_free(ends);
    return HKT_OK;
}

/* Does a receive wait for what the send that meets it carries? */
static bool same_message(const struct hkt_pipe *pipe, int send, int recv)
{
    const struct hkt_pipe_op *s = &pipe->ops[send], *r = &pipe->ops[recv];
    const int from = hkt__pipe_virtual(pipe, hkt__pipe_stage_of(pipe, send), s->chunk);
    const int to = hkt__pipe_virtual(pipe, hkt__pipe_stage_of(pipe, recv), r->chunk);

    return s->micro == r->micro && (s->kind == HKT_PIPE_SEND_ACT) == (r->kind == HKT_PIPE_RECV_ACT)
           && to - from == (s->kind == HKT_PIPE_SEND_ACT ? 1 : -1);
}

static enum hkt_status check_partners(const struct hkt_pipe *pipe, const int *partner)
{
    for (int i = 0; i < hkt__pipe_nops(pipe); i++) {
        if (hkt__pipe_is_compute(pipe->ops[i].kind))
            continue;
        if (partner[i] < 0)
            return wrong(pipe, i, "nothing at the other end meets it");
        if (hkt__pipe_is_send(pipe->ops[i].kind) && !same_message(pipe, i, partner[i])) {
            char text[128], what[192];

            op_text(&pipe->ops[partner[i]], text, sizeof text);
            snprintf(what, sizeof what, "messages of a pair of stages meet in order, and this one meets %s", text);
            return wrong(pipe, i, what);
        }
    }
    return HKT_OK;
}

/* A stage passes its batch when every partner has been reached. */
static bool can_pass(const struct hkt_pipe *pipe, const int *partner, const int *reached, int first, int end)
{
    for (int i = first; i < end; i++)
        if (partner[i] >= reached[hkt__pipe_stage_of(pipe, partner[i])])
            return false;
    return true;
}

/* Move a stage as far as it comes. next: its first operation that is not done; reached: the end of the batch it
 * stands in. */
static bool advance(const struct hkt_pipe *pipe, const int *partner, int stage, int *next, int *reached)
{
    const int end = pipe->first[stage + 1], next_before = next[stage], reached_before = reached[stage];

    while (next[stage] < end) {
        int i = next[stage];

        if (hkt__pipe_is_compute(pipe->ops[i].kind)) {
            next[stage] = reached[stage] = i + 1;
            continue;
        }
        while (i < end && !hkt__pipe_is_compute(pipe->ops[i].kind))
            i++;
        reached[stage] = i;
        if (!can_pass(pipe, partner, reached, next[stage], i))
            break;
        next[stage] = i;
    }
    return next[stage] != next_before || reached[stage] != reached_before;
}

static enum hkt_status deadlock(const struct hkt_pipe *pipe, const int *partner, const int *next, const int *reached)
{
    char text[512] = "", op[128];
    size_t used = 0;
    int named = 0;

    for (int stage = 0; stage < pipe->stages && named < STUCK_MAX; stage++)
        for (int i = next[stage]; i < reached[stage] && used < sizeof text; i++) {
            const int other = hkt__pipe_stage_of(pipe, partner[i]);

            if (partner[i] < reached[other])
                continue;
            op_text(&pipe->ops[i], op, sizeof op);
            used += (size_t)snprintf(text + used, sizeof text - used, "%s stage %d waits in operation %d (%s)",
                                     named == 0 ? "" : ",", stage, i - pipe->first[stage], op);
            named++;
            break;
        }
    return hkt__parallel_fail(HKT_ERR_INVALID, "the schedule deadlocks:%s%s", text, named == STUCK_MAX ? ", ..." : "");
}

static enum hkt_status check_together(const struct hkt_pipe *pipe)
{
    int *partner = hkt__parallel_calloc((size_t)hkt__pipe_nops(pipe), sizeof *partner);
    int next[HKT_PIPE_STAGES_MAX], reached[HKT_PIPE_STAGES_MAX];

    if (partner == NULL || hkt__pipe_partners(pipe, partner) < 0) {
        hkt__parallel_free(partner);
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory to check a schedule");
    }
    enum hkt_status rc = check_partners(pipe, partner);

    memcpy(next, pipe->first, (size_t)pipe->stages * sizeof next[0]);
    memcpy(reached, pipe->first, (size_t)pipe->stages * sizeof next[0]);
    for (bool moved = rc == HKT_OK; moved;) {
        moved = false;
        for (int stage = 0; stage < pipe->stages; stage++)
            moved = advance(pipe, partner, stage, next, reached) || moved;
    }
    for (int stage = 0; stage < pipe->stages && rc == HKT_OK; stage++)
        if (next[stage] < pipe->first[stage + 1])
            rc = deadlock(pipe, partner, next, reached);
    hkt__parallel_free(partner);
    return rc;
}

enum hkt_status hkt_pipe_check(const struct hkt_pipe *pipe)
{
    if (pipe == NULL || pipe->stages < 1 || pipe->stages > HKT_PIPE_STAGES_MAX || pipe->micros < 1 || pipe->chunks < 1)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "hkt_pipe_check: NULL, or an impossible number of stages, micro-batches or "
                                  "chunks");
    struct seen seen = { pipe, hkt__parallel_calloc((size_t)pipe->chunks * (size_t)pipe->micros, 1),
                         hkt__parallel_calloc((size_t)pipe->chunks, sizeof(int)) };
    enum hkt_status rc = HKT_OK;

    if (seen.bits == NULL || seen.next_gradient == NULL)
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory to check a schedule");
    for (int stage = 0; stage < pipe->stages && rc == HKT_OK; stage++)
        rc = check_stage(&seen, stage);
    hkt__parallel_free(seen.bits);
    hkt__parallel_free(seen.next_gradient);
    return rc < 0 ? rc : check_together(pipe);
}

int hkt_pipe_peak(const struct hkt_pipe *pipe, int stage)
{
    const enum hkt_pipe_op_kind frees = pipe->splits_backward ? HKT_PIPE_W : HKT_PIPE_B;
    int held = 0, peak = 0;

    for (int i = pipe->first[stage]; i < pipe->first[stage + 1]; i++) {
        held += pipe->ops[i].kind == HKT_PIPE_F;
        held -= pipe->ops[i].kind == frees;
        peak = held > peak ? held : peak;
    }
    return pipe->kind == HKT_PIPE_FORWARD ? 1 : peak;
}
