/* Point-to-point: each send and receive is a run of its own with a plan of one step, on the lane kept for it. All of a
 * group are in flight together, except that those of one direction to one peer follow each other: they share a channel,
 * and their order is what matches them. Each pair counts its messages by itself, since not all ranks take part.
 *
 * Those on streams of CUDA run on the devices where they can (far_messages.c); else here, once their streams are idle. */
#include <stdio.h>
#include <string.h>

#include "comm/far.h"
#include "comm/stage.h"
#include "core/clock.h"
#include "core/mem.h"
#include "exec/call.h"

/** One direction to one peer. */
struct direction {
    struct hkt__plan *plan;      /* made at first use */
    struct hkt__run *run;
    uint32_t seq;                /* messages started */
    int32_t head, tail;          /* calls of the group waiting for this direction; -1: none */
    bool is_running;
    struct hkt__record *record;
    struct hkt__bind bind;       /* of the message that is running */
    struct hkt__stage_room stage; /* of messages on a GPU */
};

struct hkt__p2p {
    struct direction *dirs;      /* [peer * 2 + is_send] */
    struct hkt__call *calls;     /* of the group in flight, borrowed */
    size_t count, nwaited;       /* of those, how many have streams of CUDA that are known to be idle */
    bool has_begun;              /* messages are in flight, or done */
    int32_t *next;               /* [call]: the one after it in its direction */
    size_t capacity;
    int32_t *busy;               /* directions with work */
    int nbusy;
    int nranks;
};

void hkt__p2p_destroy(struct hkt__p2p *p2p)
{
    if (p2p == NULL)
        return;
    for (int i = 0; p2p->dirs != NULL && i < p2p->nranks * 2; i++) {
        hkt__plan_destroy(p2p->dirs[i].plan);
        hkt__run_destroy(p2p->dirs[i].run);
        hkt__stage_free(&p2p->dirs[i].stage);
    }
    hkt__free(p2p->dirs);
    hkt__free(p2p->next);
    hkt__free(p2p->busy);
    hkt__free(p2p);
}

static enum hkt_status p2p_reserve(struct hkt_comm *comm, size_t count)
{
    struct hkt__p2p *p2p = comm->p2p;

    if (p2p == NULL) {
        comm->p2p = p2p = hkt__calloc(1, sizeof *p2p);
        if (p2p == NULL)
            return hkt__fail(HKT_ERR_NOMEM, "no memory for point-to-point");
        p2p->nranks = comm->nranks;
        p2p->dirs = hkt__calloc((size_t)comm->nranks * 2, sizeof *p2p->dirs);
        p2p->busy = hkt__calloc((size_t)comm->nranks * 2, sizeof *p2p->busy);
        if (p2p->dirs == NULL || p2p->busy == NULL) {
            hkt__p2p_destroy(p2p);
            comm->p2p = NULL;
            return hkt__fail(HKT_ERR_NOMEM, "no memory for point-to-point with %d ranks", comm->nranks);
        }
    }
    if (count > p2p->capacity) {
        int32_t *next = hkt__realloc(p2p->next, count, sizeof *next);

        if (next == NULL)
            return hkt__fail(HKT_ERR_NOMEM, "no memory for %zu messages", count);
        p2p->next = next;
        p2p->capacity = count;
    }
    return HKT_OK;
}

/** The plan of one message: a single step. */
static enum hkt_status make_direction(struct hkt_comm *comm, int peer, bool is_send, struct direction *dir)
{
    struct hkt__operand all = {.buf = is_send ? HKT__IN : HKT__OUT, .like_buf = is_send ? HKT__IN : HKT__OUT,
                               .count = 1, .at = {0, 1, 1}, .like = {0, 1, 1}};
    struct hkt__arg arg = {.rank = comm->rank, .x = all};
    struct hkt__step step = {.kind = is_send ? HKT__SEND : HKT__RECV, .peer = peer, .dst = all,
                             .arg_count = is_send, .fused = -1};
    const struct hkt__sched sched = {.coll = HKT_SEND_RECV, .algo = is_send ? "send" : "recv", .nranks = comm->nranks,
                                     .rank = comm->rank, .root = peer, .uniform_blocks = true, .cuts = 1,
                                     .blocks = {is_send, !is_send}, .nlanes = 1, .nsteps = 1, .nargs = is_send,
                                     .steps = &step, .args = &arg};
    enum hkt_status rc;

    if (dir->run != NULL)
        return HKT_OK;
    rc = hkt__plan_create(&sched, false, false, &dir->plan);
    if (rc == HKT_OK)
        rc = hkt__run_create(&comm->env, &dir->run);
    return rc == HKT_OK ? hkt__run_reserve(dir->run, dir->plan, 1) : rc;
}

static enum hkt_status move_to_self(const struct hkt_comm *comm, const struct hkt__call *recv, const struct hkt__call *send)
{
    const size_t bytes = send->count * hkt_dtype_size(send->dtype);

    if (recv->staging.out_is_far || send->staging.in_is_far)
        return hkt__stage_copy(comm, recv->out, send->in, bytes,
                               recv->staging.out_is_far ? recv->staging.out_device : send->staging.in_device);
    if (bytes > 0)
        memmove(recv->out, send->in, bytes);
    return HKT_OK;
}

enum hkt_status hkt__p2p_self(const struct hkt_comm *comm, const struct hkt__call *calls, size_t count,
                              enum hkt_status (*move)(const struct hkt_comm *comm, const struct hkt__call *recv,
                                                      const struct hkt__call *send))
{
    size_t r = 0, sends = 0, recvs = 0;

    for (size_t i = 0; i < count; i++) {
        sends += calls[i].root == comm->rank && calls[i].is_send;
        recvs += calls[i].root == comm->rank && !calls[i].is_send;
    }
    if (sends != recvs)
        return hkt__fail(HKT_ERR_INVALID, "a rank that sends to itself must receive as often in the same group: %zu sends, "
                         "%zu receives", sends, recvs);
    for (size_t s = 0; s < count; s++) {
        if (calls[s].root != comm->rank || !calls[s].is_send)
            continue;
        while (calls[r].root != comm->rank || calls[r].is_send)
            r++;
        if (calls[s].count != calls[r].count || calls[s].dtype != calls[r].dtype)
            return hkt__fail(HKT_ERR_INVALID, "send to self of %zu %s meets a receive of %zu %s", calls[s].count,
                             hkt_dtype_name(calls[s].dtype), calls[r].count, hkt_dtype_name(calls[r].dtype));
        const enum hkt_status rc = move(comm, &calls[r], &calls[s]);

        if (rc < 0)
            return rc;
        r++;
    }
    return HKT_OK;
}

/** Puts the group's messages in the queues of their directions. */
static enum hkt_status queue_messages(struct hkt_comm *comm)
{
    struct hkt__p2p *p2p = comm->p2p;
    const struct hkt__call *calls = p2p->calls;
    enum hkt_status rc = hkt__p2p_self(comm, calls, p2p->count, move_to_self);

    p2p->has_begun = true;
    for (size_t i = 0; i < p2p->count && rc == HKT_OK; i++) {
        const int32_t at = calls[i].root * 2 + calls[i].is_send;
        struct direction *dir = &p2p->dirs[at];
        bool is_new = true;

        if (calls[i].root == comm->rank)
            continue;
        for (int b = 0; b < p2p->nbusy && is_new; b++)
            is_new = p2p->busy[b] != at;
        p2p->next[i] = -1;
        if (is_new) {
            rc = make_direction(comm, calls[i].root, calls[i].is_send, dir);
            p2p->busy[p2p->nbusy++] = at;
            dir->head = dir->tail = (int32_t)i;
            dir->is_running = false;
            dir->record = NULL;
        } else {
            p2p->next[dir->tail] = (int32_t)i;
            dir->tail = (int32_t)i;
        }
    }
    return rc;
}

static struct hkt__stamp message_stamp(const struct hkt__call *call, uint32_t seq)
{
    return (struct hkt__stamp){.op_seq = seq,
                               .call = hkt__call_pack(HKT_SEND_RECV, call->dtype, HKT__CALL_NO_OP, 0, 0),
                               .root = -1, .count = call->count};
}

static enum hkt_status move_nothing(const struct hkt_comm *comm, const struct hkt__call *recv, const struct hkt__call *send)
{
    (void)comm;
    (void)recv;
    (void)send;
    return HKT_OK;
}

/** Messages that the device has: they count and are recorded as those of the host. */
static void record_far(struct hkt_comm *comm)
{
    for (size_t i = 0; i < comm->p2p->count; i++) {
        const struct hkt__call *call = &comm->p2p->calls[i];

        if (call->root == comm->rank)
            continue;
        const struct hkt__stamp stamp = message_stamp(call, ++comm->p2p->dirs[call->root * 2 + call->is_send].seq);

        hkt__recorder_end(&comm->watch.recorder,
                          hkt__recorder_begin(&comm->watch.recorder, &stamp, call->is_send ? "send" : "recv", call->root),
                          HKT_OK, true);
    }
}

static enum hkt_status start_far(struct hkt_comm *comm)
{
    struct hkt__p2p *p2p = comm->p2p;
    enum hkt_status rc = hkt__p2p_self(comm, p2p->calls, p2p->count, move_nothing); /* before anything is enqueued */

    if (rc == HKT_OK)
        rc = hkt__far_messages(comm, p2p->calls, p2p->count);
    if (rc == HKT_IN_PROGRESS) /* its streams are waited for in hkt__p2p_poll */
        return HKT_OK;
    p2p->has_begun = true;
    if (rc == HKT_OK)
        record_far(comm);
    return rc;
}

enum hkt_status hkt__p2p_start(struct hkt_comm *comm, struct hkt__call *calls, size_t count)
{
    const enum hkt_status rc = p2p_reserve(comm, count);

    if (rc < 0)
        return rc;
    struct hkt__p2p *p2p = comm->p2p;

    p2p->calls = calls;
    p2p->count = count;
    p2p->nwaited = 0;
    p2p->nbusy = 0;
    p2p->has_begun = false;
    return calls[0].far != NULL ? start_far(comm) : queue_messages(comm);
}

/** The message at the head is next: known to the recorder before its channel is open. */
static void record_message(struct hkt_comm *comm, struct direction *dir)
{
    const struct hkt__call *call = &comm->p2p->calls[dir->head];
    const struct hkt__stamp stamp = message_stamp(call, ++dir->seq);

    dir->record = hkt__recorder_begin(&comm->watch.recorder, &stamp, call->is_send ? "send" : "recv", call->root);
}

static enum hkt_status start_message(struct hkt_comm *comm, struct direction *dir)
{
    struct hkt__call *call = &comm->p2p->calls[dir->head];
    const enum hkt_status rc = hkt__stage_begin(call, &dir->stage);

    if (rc < 0)
        return rc;
    dir->bind = (struct hkt__bind){
        .in = call->in, .out = call->out, .elem_bytes = hkt_dtype_size(call->dtype),
        .grid = {.cuts = 1, .count = call->count}, .chunk_bytes = call->count * hkt_dtype_size(call->dtype),
        .nslices = 1, .channels = 1, .lane_first = HKT__P2P_LANE, .empty_frames = true,
        .device = call->staging.is_lent ? &call->staging.device : NULL, .dtype = call->dtype,
        .stamp = message_stamp(call, dir->seq)};
    hkt__run_start(dir->run, dir->plan, &dir->bind);
    dir->is_running = true;
    return HKT_OK;
}

static enum hkt_status end_message(struct hkt_comm *comm, struct direction *dir, enum hkt_status status)
{
    status = hkt__stage_end(&comm->p2p->calls[dir->head], status);
    hkt__recorder_end(&comm->watch.recorder, dir->record, status, false);
    dir->record = NULL;
    dir->is_running = false;
    return status;
}

/** Advance one direction; OK: its queue is empty. */
static enum hkt_status poll_direction(struct hkt_comm *comm, struct direction *dir)
{
    enum hkt_status result = HKT_AGAIN;

    while (dir->head >= 0) {
        enum hkt_status rc = HKT_OK;

        if (dir->record == NULL)
            record_message(comm, dir);
        if (!dir->is_running) {
            rc = hkt__comm_link(comm, comm->p2p->calls[dir->head].root, HKT__P2P_LANE);
            if (rc != HKT_OK)
                return rc < 0 ? rc : result;
            rc = start_message(comm, dir);
            if (rc < 0)
                return rc;
        }
        rc = hkt__run_poll(dir->run);
        if (rc == HKT_IN_PROGRESS || rc == HKT_AGAIN)
            return rc == HKT_AGAIN ? result : rc;
        rc = end_message(comm, dir, rc);
        if (rc < 0)
            return rc;
        dir->head = comm->p2p->next[dir->head];
        result = HKT_IN_PROGRESS;
    }
    return HKT_OK;
}

/** What the streams were given may take long: that is no wait for a peer. */
static enum hkt_status wait_for_streams(struct hkt_comm *comm)
{
    struct hkt__p2p *p2p = comm->p2p;

    for (; p2p->nwaited < p2p->count; p2p->nwaited++) {
        const enum hkt_status rc = hkt__far_stream_query(p2p->calls[p2p->nwaited].far);

        if (rc == HKT_IN_PROGRESS)
            hkt__sleep_ns(HKT__CUDA_NAP_NS);
        if (rc != HKT_OK)
            return rc;
    }
    return queue_messages(comm);
}

enum hkt_status hkt__p2p_poll(struct hkt_comm *comm)
{
    struct hkt__p2p *p2p = comm->p2p;
    enum hkt_status result = HKT_AGAIN;

    if (!p2p->has_begun) {
        const enum hkt_status rc = wait_for_streams(comm);

        return rc == HKT_OK ? HKT_IN_PROGRESS : rc;
    }
    for (int b = 0; b < p2p->nbusy;) {
        const enum hkt_status rc = poll_direction(comm, &p2p->dirs[p2p->busy[b]]);

        if (rc < 0)
            return rc;
        if (rc != HKT_AGAIN)
            result = HKT_IN_PROGRESS;
        if (rc == HKT_OK)
            p2p->busy[b] = p2p->busy[--p2p->nbusy];
        else
            b++;
    }
    return p2p->nbusy == 0 ? HKT_OK : result;
}

void hkt__p2p_finish(struct hkt_comm *comm, enum hkt_status status)
{
    struct hkt__p2p *p2p = comm->p2p;

    for (int b = 0; p2p != NULL && b < p2p->nbusy; b++)
        if (p2p->dirs[p2p->busy[b]].record != NULL)
            (void)end_message(comm, &p2p->dirs[p2p->busy[b]], status);
}

void hkt__p2p_describe(const struct hkt_comm *comm, char *out_text, size_t bytes)
{
    const struct hkt__p2p *p2p = comm->p2p;
    size_t used = (size_t)snprintf(out_text, bytes, "waits for");

    for (int b = 0; b < p2p->nbusy && used < bytes; b++) {
        const int n = snprintf(out_text + used, bytes - used, "%s a %s rank %d", b > 0 ? "," : "",
                               p2p->busy[b] % 2 ? "receive by" : "send from", p2p->busy[b] / 2);

        used += n > 0 ? (size_t)n : 0;
    }
}

int hkt__p2p_blocked_on(const struct hkt_comm *comm)
{
    return comm->p2p->nbusy > 0 ? comm->p2p->busy[0] / 2 : -1;
}

int hkt__p2p_blocked_route(const struct hkt_comm *comm)
{
    const struct hkt__p2p *p2p = comm->p2p;
    int route = -1;

    for (int b = 0; p2p->has_begun && b < p2p->nbusy; b++) {
        const int of_peer = comm->routes.tp_of[p2p->busy[b] / 2];

        if (!p2p->dirs[p2p->busy[b]].is_running || (route >= 0 && route != of_peer))
            return -1;
        route = of_peer;
    }
    return route;
}
