/* See calls.h. */
#include "calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 128, GUARD_BYTE = 0xc3, BLANK_BYTE = 0xa5 };

bool calls_reduces(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_REDUCE_SCATTER_V;
}

bool calls_has_root(enum hkt_coll coll)
{
    return coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER;
}

bool calls_init(struct calls *calls, struct hkt_comm *comm, size_t room)
{
    const size_t bytes = (room + 2 * GUARD + 63) / 64 * 64;

    memset(calls, 0, sizeof *calls);
    calls->comm = comm;
    calls->rank = hkt_comm_rank(comm);
    calls->nranks = hkt_comm_size(comm);
    calls->room = room;
    calls->send = aligned_alloc(64, bytes);
    calls->recv = aligned_alloc(64, bytes);
    calls->expect = aligned_alloc(64, bytes);
    return calls->send != NULL && calls->recv != NULL && calls->expect != NULL;
}

void calls_fini(struct calls *calls)
{
    free(calls->send);
    free(calls->recv);
    free(calls->expect);
}

/** Elements that rank i sends to rank j in an all-to-all-v: uneven, some nothing. */
static size_t pair_count(size_t count, int i, int j)
{
    return count * (size_t)((i + 2 * j + 1) % 3) + (i * j % 2 == 1 && count > 0);
}

/** Elements of rank i's block in the other v-variants. */
static size_t block_count(size_t count, int i)
{
    return count * (size_t)((i + 1) % 3) + (i % 2 == 1 && count > 0);
}

static size_t pack(const size_t *counts, int n, size_t *out_displs)
{
    size_t end = 0;

    for (int i = 0; i < n; i++) {
        out_displs[i] = end;
        end += counts[i];
    }
    return end;
}

/** Last block first, with gaps of 3 elements. */
static size_t scatter_blocks(const size_t *counts, int n, size_t *out_displs)
{
    size_t end = 2;

    for (int i = n - 1; i >= 0; i--) {
        out_displs[i] = end;
        end += counts[i] + 3;
    }
    return end;
}

/** All-gather-v has displacements when the count is odd, else none. */
static bool passes_displs(const struct call *call)
{
    return call->count % 2 == 1;
}

static void measure_v(struct calls *calls, const struct call *call)
{
    const int n = calls->nranks;

    for (int i = 0; i < n; i++) {
        calls->send_counts[i] = calls->recv_counts[i] = block_count(call->count, i);
        if (call->coll == HKT_ALL_TO_ALL_V) {
            calls->send_counts[i] = pair_count(call->count, calls->rank, i);
            calls->recv_counts[i] = pair_count(call->count, i, calls->rank);
        }
    }
    calls->send_elems = pack(calls->send_counts, n, calls->send_displs);
    if (call->coll == HKT_ALL_TO_ALL_V || (call->coll == HKT_ALL_GATHER_V && passes_displs(call)))
        calls->recv_elems = scatter_blocks(calls->recv_counts, n, calls->recv_displs);
    else
        calls->recv_elems = pack(calls->recv_counts, n, calls->recv_displs);
    if (call->coll == HKT_ALL_GATHER_V)
        calls->send_elems = calls->recv_counts[calls->rank];
    if (call->coll == HKT_REDUCE_SCATTER_V)
        calls->recv_elems = calls->send_counts[calls->rank];
}

/** Elements of the buffers at this rank. */
static void measure(struct calls *calls, const struct call *call)
{
    const size_t count = call->count, all = count * (size_t)calls->nranks;
    const bool is_root = calls->rank == call->root;

    calls->send_elems = calls->recv_elems = count;
    switch (call->coll) {
    case HKT_REDUCE_SCATTER: calls->send_elems = all; break;
    case HKT_ALL_GATHER: calls->recv_elems = all; break;
    case HKT_ALL_TO_ALL: calls->send_elems = calls->recv_elems = all; break;
    case HKT_BROADCAST: calls->send_elems = is_root ? count : 0; break;
    case HKT_REDUCE: calls->recv_elems = is_root ? count : 0; break;
    case HKT_GATHER: calls->recv_elems = is_root ? all : 0; break;
    case HKT_SCATTER: calls->send_elems = is_root ? all : 0; break;
    case HKT_BARRIER: calls->send_elems = calls->recv_elems = 0; break;
    case HKT_ALL_GATHER_V:
    case HKT_REDUCE_SCATTER_V:
    case HKT_ALL_TO_ALL_V: measure_v(calls, call); break;
    default: break;
    }
}

size_t calls_room(const struct call *call, int nranks)
{
    size_t elems = call->count;

    if (call->coll >= HKT_ALL_GATHER_V)
        elems = (call->count * 2 + 4) * (size_t)nranks + 8; /* blocks of at most 2 count + 1 elements, gaps of 3 */
    else if (call->coll != HKT_ALL_REDUCE && call->coll != HKT_BROADCAST && call->coll != HKT_REDUCE)
        elems = call->count * (size_t)nranks;
    return elems * hkt_dtype_size(call->dtype) + 64;
}

/** Where the input begins in the output when in place (or the output in the input, where that is larger), in elements. */
static size_t in_place_at(const struct calls *calls, const struct call *call)
{
    switch (call->coll) {
    case HKT_REDUCE_SCATTER:
    case HKT_ALL_GATHER:
    case HKT_GATHER:
    case HKT_SCATTER: return (size_t)calls->rank * call->count;
    case HKT_ALL_GATHER_V: return calls->recv_displs[calls->rank];
    case HKT_REDUCE_SCATTER_V: return calls->send_displs[calls->rank];
    default: return 0;
    }
}

/** In place concerns ranks that have both buffers. */
static bool is_in_place_here(const struct calls *calls, const struct call *call)
{
    const bool both = !calls_has_root(call->coll) || call->root == calls->rank;

    return call->in_place && both && call->coll != HKT_ALL_TO_ALL_V && !(call->is_mixed && calls->rank % 2 == 1);
}

/** The output is a part of the input, whose other blocks may be overwritten in place. */
static bool is_output_inside(enum hkt_coll coll)
{
    return coll == HKT_REDUCE_SCATTER || coll == HKT_SCATTER || coll == HKT_REDUCE_SCATTER_V;
}

static void spoil(const struct calls *calls, unsigned char *buffer)
{
    memset(buffer, GUARD_BYTE, GUARD);
    memset(buffer + GUARD, BLANK_BYTE, calls->room);
    memset(buffer + GUARD + calls->room, GUARD_BYTE, GUARD);
}

/** Bytes that can differ from the spoiled state; spoiling all of a large room for a small call would take the time. */
static void spoil_used(struct calls *calls, const struct call *call)
{
    const size_t room = calls->room, need = calls_room(call, calls->nranks);

    calls->room = need < room ? need : room;
    spoil(calls, calls->send);
    spoil(calls, calls->recv);
    calls->room = room;
}

void calls_fill(struct calls *calls, const struct call *call)
{
    const struct exact_case c = {.dtype = call->dtype, .op = call->kind == EXACT_BUILTIN ? call->op : HKT_SUM,
                                 .kind = call->kind, .nranks = calls->nranks, .seed = calls->seed};
    const size_t elem_bytes = hkt_dtype_size(call->dtype);
    unsigned char *send = calls->send + GUARD + call->offset, *recv = calls->recv + GUARD + call->offset;

    exact_make(&calls->exact, &c);
    measure(calls, call);
    spoil_used(calls, call);
    if (is_in_place_here(calls, call)) {
        if (is_output_inside(call->coll))
            recv = send + in_place_at(calls, call) * elem_bytes;
        else
            send = recv + in_place_at(calls, call) * elem_bytes;
    }
    exact_write(&calls->exact, calls->exact.inputs[calls->rank], 0, calls->send_elems, send);
    calls->in = call->coll == HKT_BROADCAST || call->coll == HKT_SCATTER ? (calls->rank == call->root ? send : NULL) : send;
    calls->out = call->coll == HKT_REDUCE || call->coll == HKT_GATHER ? (calls->rank == call->root ? recv : NULL) : recv;
}

enum hkt_status calls_issue(const struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    const struct hkt_blocks blocks = {calls->send_counts, calls->send_displs, calls->recv_counts, calls->recv_displs};
    const void *in = calls->in;
    void *out = calls->out;
    const size_t count = call->count;
    struct hkt_comm *comm = calls->comm;

    switch (call->coll) {
    case HKT_ALL_REDUCE: return hkt_all_reduce(in, out, count, call->dtype, call->op, comm, stream);
    case HKT_REDUCE_SCATTER: return hkt_reduce_scatter(in, out, count, call->dtype, call->op, comm, stream);
    case HKT_ALL_GATHER: return hkt_all_gather(in, out, count, call->dtype, comm, stream);
    case HKT_BROADCAST: return hkt_broadcast(in, out, count, call->dtype, call->root, comm, stream);
    case HKT_REDUCE: return hkt_reduce(in, out, count, call->dtype, call->op, call->root, comm, stream);
    case HKT_ALL_TO_ALL: return hkt_all_to_all(in, out, count, call->dtype, comm, stream);
    case HKT_GATHER: return hkt_gather(in, out, count, call->dtype, call->root, comm, stream);
    case HKT_SCATTER: return hkt_scatter(in, out, count, call->dtype, call->root, comm, stream);
    case HKT_BARRIER: return hkt_barrier(comm, stream);
    case HKT_ALL_GATHER_V:
        return hkt_all_gather_v(in, calls->send_elems, out, calls->recv_counts,
                                passes_displs(call) ? calls->recv_displs : NULL, call->dtype, comm, stream);
    case HKT_REDUCE_SCATTER_V:
        return hkt_reduce_scatter_v(in, out, calls->send_counts, call->dtype, call->op, comm, stream);
    case HKT_ALL_TO_ALL_V: return hkt_all_to_all_v(in, out, &blocks, call->dtype, comm, stream);
    default: return HKT_ERR_INVALID;
    }
}

/** A stretch of the output. */
struct part {
    const unsigned char *stream;
    size_t first, count, at;   /* of the stream; in the output; elements */
};

/** What comes from rank i. Reductions have one part, at i == 0. */
static struct part part_from(const struct calls *calls, const struct call *call, int i)
{
    const struct exact *exact = &calls->exact;
    const size_t me = (size_t)calls->rank, count = call->count;
    struct part part = {exact->result, 0, i == 0 ? calls->recv_elems : 0, 0};

    switch (call->coll) {
    case HKT_REDUCE_SCATTER: part.first = me * count; break;
    case HKT_REDUCE_SCATTER_V: part.first = calls->send_displs[me]; break;
    case HKT_BROADCAST: part.stream = exact->inputs[call->root]; break;
    case HKT_SCATTER:
        part.stream = exact->inputs[call->root];
        part.first = me * count;
        break;
    case HKT_ALL_GATHER:
    case HKT_GATHER: part = (struct part){exact->inputs[i], 0, calls->recv_elems > 0 ? count : 0, (size_t)i * count}; break;
    case HKT_ALL_TO_ALL: part = (struct part){exact->inputs[i], me * count, count, (size_t)i * count}; break;
    case HKT_ALL_GATHER_V: part = (struct part){exact->inputs[i], 0, calls->recv_counts[i], calls->recv_displs[i]}; break;
    case HKT_ALL_TO_ALL_V:
        part = (struct part){exact->inputs[i], 0, calls->recv_counts[i], calls->recv_displs[i]};
        for (int j = 0; j < calls->rank; j++)
            part.first += pair_count(count, i, j);
        break;
    default: break;
    }
    return part;
}

/** Compare a whole buffer, guards included, with `expect`. */
static size_t compare(const struct calls *calls, const unsigned char *buffer, size_t bytes, const char *name,
                      char *out_text, size_t text_bytes)
{
    const unsigned char *want = calls->expect;
    size_t wrong = 0, where = 0;

    if (memcmp(buffer, want, bytes) == 0)
        return 0;
    for (size_t i = 0; i < bytes; i++)
        if (buffer[i] != want[i] && wrong++ == 0)
            where = i;
    snprintf(out_text, text_bytes, "%s: %zu wrong bytes, the first %ld after its start: 0x%02x, not 0x%02x", name, wrong,
             (long)where - GUARD, buffer[where], want[where]);
    return wrong;
}

static void expect_blank(const struct calls *calls, size_t used)
{
    memset(calls->expect, BLANK_BYTE, used);
    memset(calls->expect, GUARD_BYTE, GUARD);
    memset(calls->expect + used - GUARD, GUARD_BYTE, GUARD);
}

/** The buffer that holds the output: all of it, or, inside an input in place, just the own block. */
static size_t check_output(struct calls *calls, const struct call *call, size_t used, char *out_text, size_t text_bytes)
{
    const size_t elem_bytes = calls->exact.elem_bytes;
    const bool in_place = is_in_place_here(calls, call);
    unsigned char *buffer = in_place && is_output_inside(call->coll) ? calls->send : calls->recv;
    size_t out_at = GUARD + call->offset;

    expect_blank(calls, used);
    if (in_place && is_output_inside(call->coll)) {
        memcpy(calls->expect + out_at, buffer + out_at, calls->send_elems * elem_bytes);
        out_at += in_place_at(calls, call) * elem_bytes;
    }
    for (int i = 0; i < calls->nranks && calls->out != NULL; i++) {
        const struct part part = part_from(calls, call, i);

        exact_write(&calls->exact, part.stream, part.first, part.count, calls->expect + out_at + part.at * elem_bytes);
    }
    return compare(calls, buffer, used, "output", out_text, text_bytes);
}

size_t calls_check(struct calls *calls, const struct call *call, char *out_text, size_t text_bytes)
{
    const size_t need = calls_room(call, calls->nranks);
    const size_t used = (need < calls->room ? need : calls->room) + 2 * GUARD;
    const size_t wrong = check_output(calls, call, used, out_text, text_bytes);

    if (wrong > 0 || is_in_place_here(calls, call))
        return wrong;
    expect_blank(calls, used);
    exact_write(&calls->exact, calls->exact.inputs[calls->rank], 0, calls->send_elems,
                calls->expect + GUARD + call->offset);
    return compare(calls, calls->send, used, "input", out_text, text_bytes);
}

void calls_print(const struct call *call, char *out_text, size_t text_bytes)
{
    const char *op = "";
    char root[32] = "";

    if (calls_reduces(call->coll))
        op = call->kind == EXACT_PREMULSUM ? " premulsum" : call->kind == EXACT_CALLBACK ? " callback" : hkt_op_name(call->op);
    if (calls_has_root(call->coll))
        snprintf(root, sizeof root, " root=%d", call->root);
    snprintf(out_text, text_bytes, "%s %s %s count=%zu%s%s offset=%zu", hkt_coll_name(call->coll),
             hkt_dtype_name(call->dtype), op, call->count, root, !call->in_place ? "" : call->is_mixed ? " in place on even ranks" : " in place", call->offset);
}
