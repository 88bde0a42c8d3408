/* Running calls: one, the common case, or a batch from a group. In a batch each communicator works through its calls in
 * order, a collective at a time and neighbouring sends and receives together; all communicators advance in turn, so one
 * thread may drive several ranks. */
#include <stdio.h>

#include "comm/far.h"
#include "core/keep.h"
#include "exec/call.h"

/** A communicator's share of a batch: calls[first..) of it, found by walking the batch. */
struct share {
    struct hkt_comm *comm;
    size_t next;                 /* index in the batch where to look for its next call */
    size_t phase_count;          /* calls of the phase in flight; 0: none */
    bool is_p2p;                 /* what the phase is */
    struct hkt__collective work;
    struct hkt__call *p2p_calls; /* the phase's sends and receives, gathered */
    enum hkt_status status;      /* first failure */
    bool done;
};

/** Describe what an operation waits for, over what, and where the others are (who: "" or "; ..."); fail with TIMEOUT. */
static enum hkt_status expired(const struct hkt_comm *comm, const char *waits, int peer, const char *who)
{
    const char *transport = peer >= 0 ? hkt_comm_transport(comm, peer) : "";

    return hkt__fail_peer(HKT_ERR_TIMEOUT, peer, "nothing moved for %lld ms (HOCKET_TIMEOUT): it %s%s%s%s",
                          (long long)(comm->options.wait.timeout_ns / 1000000), waits, peer >= 0 ? " over " : "",
                          transport, who);
}

/** What a collective waits for; returns the peer that it waits for, -1: no single one. */
static int describe_collective(const struct hkt__collective *work, char *out_text, size_t bytes)
{
    const struct hkt_comm *comm = work->call->comm;

    if (work->state == HKT__COLLECTIVE_RUNNING) {
        hkt__run_describe(comm->run, out_text, bytes);
        return hkt__run_blocked_on(comm->run);
    }
    const int peer = hkt__plans_missing(comm, work->cached, work->bind->channels);

    snprintf(out_text, bytes, "waits for rank %d to connect", peer);
    return peer;
}

/** A collective has waited for too long. */
static enum hkt_status collective_expired(const struct hkt__collective *call)
{
    const struct hkt__collective *work = hkt__far_waiting(call);
    const struct hkt_comm *comm = work->call->comm;
    char waits[384], who[384];
    const int peer = describe_collective(work, waits, sizeof waits);

    hkt__notes_absent(comm, work->bind->stamp.op_seq, who, sizeof who);
    return expired(comm, waits, peer, who);
}

/** Over which route all comes that a collective waits for; -1: over several, or it is not known. */
static int waits_on(const struct hkt__collective *work)
{
    const struct hkt_comm *comm = work->call->comm;

    return work->state == HKT__COLLECTIVE_RUNNING ? hkt__run_blocked_route(comm->run, comm->routes.tp_of) : -1;
}

/** After a poll that moved nothing: wait a little. OK: poll again. */
static enum hkt_status wait_a_little(const struct hkt__collective *work, struct hkt__wait *wait)
{
    struct hkt_comm *comm = work->call->comm;
    enum hkt__wait_advice advice;

    if (hkt__comm_failed(comm) != HKT_OK)
        return hkt__comm_report(comm);
    advice = hkt__wait_idle(wait);
    if (advice == HKT__WAIT_PARK)
        hkt__comm_park(comm, waits_on(work), wait->sleep_ns);
    if (advice == HKT__WAIT_TELL)
        hkt__notes_tell(comm, &hkt__far_waiting(work)->bind->stamp);
    return advice == HKT__WAIT_EXPIRED ? HKT_ERR_TIMEOUT : HKT_OK;
}

static void count_waits(struct hkt_comm *comm, const struct hkt__wait *wait)
{
    comm->counts.yields += wait->yielded;
    comm->counts.parks += wait->parked;
}

/** The first cause, told by the call that meets it first. */
static enum hkt_status tell_cause(struct hkt_comm *comm)
{
    comm->watch.failure.is_told = true;
    return hkt__comm_report(comm);
}

/** A call on a communicator that has failed: the first one learns the cause, even if it fell between two calls. */
static enum hkt_status refuse_failed(struct hkt_comm *comm)
{
    if (!comm->watch.failure.is_told)
        return tell_cause(comm);
    return hkt__fail(HKT_ERR_FAILED, "%s has failed before: %s", comm->name, hkt_comm_last_error(comm));
}

/** End a call that failed after it began: all ranks must know. */
static enum hkt_status fail_call(struct hkt_comm *comm, const struct hkt__collective *work, enum hkt_status status)
{
    char call[192] = "send_recv";

    if (work != NULL && work->record != NULL)
        hkt__call_print(&work->bind->stamp, call, sizeof call);
    if (hkt__comm_failed(comm) == HKT_OK)
        hkt__comm_fail_here(comm, status, call);
    return tell_cause(comm);
}

/** Start failed: UNSUPPORTED and INVALID are the same on all ranks and left no trace; the rest ends the communicator. */
static enum hkt_status fail_start(struct hkt__collective *work, enum hkt_status status)
{
    struct hkt_comm *comm = work->call->comm;

    hkt__collective_finish(work, status);
    if (status == HKT_ERR_UNSUPPORTED || status == HKT_ERR_INVALID)
        return status;
    return fail_call(comm, work, status);
}

/** Drive a collective to its end, from a poll that did not end it; rests: see hkt__wait_follow. */
static enum hkt_status wait_for(struct hkt__collective *work, enum hkt_status rc, bool rests)
{
    struct hkt_comm *comm = work->call->comm;
    struct hkt__wait wait;

    hkt__wait_begin(&wait, &comm->options.wait);
    wait.rests = rests;
    while (rc > HKT_OK) {
        if (rc == HKT_IN_PROGRESS)
            hkt__wait_moved(&wait);
        else if ((rc = wait_a_little(work, &wait)) < 0)
            break;
        rc = hkt__collective_poll(work);
    }
    count_waits(comm, &wait);
    if (rc == HKT_ERR_TIMEOUT && hkt__comm_failed(comm) == HKT_OK)
        rc = collective_expired(work);
    return rc;
}

/** The common case: one collective, driven to its end. */
static enum hkt_status run_one(struct hkt__call *call)
{
    struct hkt_comm *comm = call->comm;
    struct hkt__collective work;
    enum hkt_status rc;

    if (hkt__comm_failed(comm) != HKT_OK)
        return refuse_failed(comm);
    rc = hkt__collective_start(&work, call);
    if (rc < 0)
        return fail_start(&work, rc);
    const bool follows = work.cached != NULL && hkt__plan_only_receives(work.cached->plan);
    const bool rests = hkt__wait_follow(&comm->options.wait, follows);

    rc = hkt__collective_poll(&work);
    if (rc > HKT_OK)
        rc = wait_for(&work, rc, rests);
    rc = hkt__collective_finish(&work, rc);
    return rc < 0 ? fail_call(comm, &work, rc) : HKT_OK;
}

/** Find the share's next phase and start it. */
static enum hkt_status start_phase(struct share *share, struct hkt__call *calls, size_t count)
{
    size_t n = 0;

    for (; share->next < count; share->next++) {
        struct hkt__call *call = &calls[share->next];

        if (call->comm != share->comm)
            continue;
        if (call->coll != HKT_SEND_RECV) {
            if (n > 0)
                break;
            share->next++;
            share->phase_count = 1;
            share->is_p2p = false;
            const enum hkt_status rc = hkt__collective_start(&share->work, call);

            return rc < 0 ? fail_start(&share->work, rc) : HKT_OK;
        }
        share->p2p_calls[n++] = *call;
    }
    share->phase_count = n;
    share->is_p2p = n > 0;
    share->done = n == 0;
    if (n == 0)
        return HKT_OK;
    const enum hkt_status rc = hkt__p2p_start(share->comm, share->p2p_calls, n);

    return rc < 0 && rc != HKT_ERR_INVALID && rc != HKT_ERR_UNSUPPORTED ? fail_call(share->comm, NULL, rc) : rc;
}

/** Advance one communicator. As hkt__run_poll; failures end the share. */
static enum hkt_status poll_share(struct share *share, struct hkt__call *calls, size_t count)
{
    enum hkt_status rc;

    if (hkt__comm_failed(share->comm) != HKT_OK)
        return share->phase_count == 0 ? refuse_failed(share->comm) : tell_cause(share->comm);
    if (share->phase_count == 0) {
        rc = start_phase(share, calls, count);
        if (rc < 0 || share->done)
            return rc;
    }
    rc = share->is_p2p ? hkt__p2p_poll(share->comm) : hkt__collective_poll(&share->work);
    if (rc == HKT_IN_PROGRESS || rc == HKT_AGAIN)
        return rc;
    if (!share->is_p2p)
        rc = hkt__collective_finish(&share->work, rc);
    share->phase_count = 0;
    return rc < 0 ? fail_call(share->comm, share->is_p2p ? NULL : &share->work, rc) : HKT_IN_PROGRESS;
}

static enum hkt_status share_expired(struct share *share)
{
    struct hkt_comm *comm = share->comm;
    char waits[384];

    if (!share->is_p2p)
        return fail_call(comm, &share->work, collective_expired(&share->work));
    hkt__p2p_describe(comm, waits, sizeof waits);
    return fail_call(comm, NULL, expired(comm, waits, hkt__p2p_blocked_on(comm), ""));
}

static void end_share(struct share *share, enum hkt_status status)
{
    if (status < 0 && share->phase_count > 0 && !share->is_p2p && share->work.state != HKT__COLLECTIVE_DONE)
        hkt__collective_finish(&share->work, status);
    if (status < 0 && share->is_p2p)
        hkt__p2p_finish(share->comm, status);
    share->status = status;
    share->done = true;
}

/** One round over all shares; returns how many are still at it, *out_moved when any got further. */
static size_t poll_shares(struct share *shares, size_t nshares, struct hkt__call *calls, size_t count, bool *out_moved)
{
    size_t busy = 0;

    *out_moved = false;
    for (size_t i = 0; i < nshares; i++) {
        if (shares[i].done)
            continue;
        const enum hkt_status rc = poll_share(&shares[i], calls, count);

        if (rc < 0)
            end_share(&shares[i], rc);
        *out_moved |= rc != HKT_AGAIN;
        busy += !shares[i].done;
    }
    return busy;
}

static int share_waits_on(const struct share *share)
{
    return share->phase_count == 0 ? -1 : share->is_p2p ? hkt__p2p_blocked_route(share->comm) : waits_on(&share->work);
}

static enum hkt_status drive_shares(struct share *shares, size_t nshares, struct hkt__call *calls, size_t count)
{
    struct hkt__wait wait;
    enum hkt_status first = HKT_OK;
    bool moved;

    (void)hkt__wait_follow(&shares[0].comm->options.wait, false);
    hkt__wait_begin(&wait, &shares[0].comm->options.wait);
    while (poll_shares(shares, nshares, calls, count, &moved) > 0) {
        if (moved) {
            hkt__wait_moved(&wait);
            continue;
        }
        const enum hkt__wait_advice advice = hkt__wait_idle(&wait);

        for (size_t i = 0; i < nshares && advice != HKT__WAIT_POLL; i++) {
            if (shares[i].done)
                continue;
            if (advice == HKT__WAIT_EXPIRED) {
                end_share(&shares[i], share_expired(&shares[i]));
            } else if (advice == HKT__WAIT_TELL) {
                if (shares[i].phase_count > 0 && !shares[i].is_p2p)
                    hkt__notes_tell(shares[i].comm, &hkt__far_waiting(&shares[i].work)->bind->stamp);
            } else {
                /* Sleep on one of them only; the others are looked at again soon. */
                hkt__comm_park(shares[i].comm, share_waits_on(&shares[i]), nshares > 1 ? 100000 : wait.sleep_ns);
                break;
            }
        }
    }
    for (size_t i = 0; i < nshares; i++) {
        if (shares[i].status < 0 && first == HKT_OK) {
            first = shares[i].status;
            if (hkt__comm_failed(shares[i].comm) != HKT_OK)
                (void)hkt__comm_report(shares[i].comm);
        }
    }
    return first;
}

/** True for the first of a communicator's calls in a batch. */
static bool is_first_of_comm(const struct hkt__call *calls, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (calls[i].comm == calls[at].comm)
            return false;
    return true;
}

/** A share for each communicator. Each gathers its sends and receives in a stretch of p2p_calls as long as its share. */
static void make_shares(struct share *shares, struct hkt__call *p2p_calls, const struct hkt__call *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!is_first_of_comm(calls, i))
            continue;
        *shares++ = (struct share){.comm = calls[i].comm, .p2p_calls = p2p_calls};
        for (size_t j = i; j < count; j++)
            p2p_calls += calls[j].comm == calls[i].comm;
    }
}

static enum hkt_status run_many(struct hkt__call *calls, size_t count)
{
    size_t nshares = 0;

    for (size_t i = 0; i < count; i++)
        nshares += is_first_of_comm(calls, i);
    const struct hkt__kept block =
        hkt__keep_take(HKT__KEEP_BATCH, nshares * sizeof(struct share) + count * sizeof(struct hkt__call));
    struct share *shares = block.memory;

    if (shares == NULL) {
        hkt__fail(HKT_ERR_NOMEM, "no memory for a group of %zu operations", count);
        return hkt__batch_refuse(calls, count);
    }
    make_shares(shares, (struct hkt__call *)(shares + nshares), calls, count);
    const enum hkt_status rc = drive_shares(shares, nshares, calls, count);

    hkt__keep_give(HKT__KEEP_BATCH, block);
    return rc;
}

enum hkt_status hkt__batch_refuse(const struct hkt__call *calls, size_t count)
{
    const struct hkt__error error = *hkt__error_here();

    for (size_t i = 0; i < count; i++) {
        *hkt__error_here() = error;
        if (hkt__comm_failed(calls[i].comm) == HKT_OK)
            hkt__comm_fail_here(calls[i].comm, error.status, hkt_coll_name(calls[i].coll));
    }
    *hkt__error_here() = error;
    return error.status;
}

void hkt__batch_queue(struct hkt__call *calls, size_t count)
{
    for (size_t i = 0; i < count; i++)
        calls[i].ticket = hkt__turn_take(&calls[i].comm->turn);
}

/** Run the one collective of a batch in its turn. */
static enum hkt_status run_alone(struct hkt__call *call)
{
    struct hkt__turn *turn = &call->comm->turn;

    hkt__turn_wait(turn, call->ticket);
    const enum hkt_status rc = run_one(call);

    hkt__turn_pass(turn);
    return rc;
}

enum hkt_status hkt__batch_run(struct hkt__call *calls, size_t count)
{
    enum hkt_status rc;

    if (count == 1 && calls[0].coll != HKT_SEND_RECV)
        return run_alone(calls);
    /* A communicator's calls in the batch hold consecutive tickets: the turn of the first is the turn of all. */
    for (size_t i = 0; i < count; i++)
        if (is_first_of_comm(calls, i))
            hkt__turn_wait(&calls[i].comm->turn, calls[i].ticket);
    rc = run_many(calls, count);
    for (size_t i = 0; i < count; i++)
        hkt__turn_pass(&calls[i].comm->turn);
    return rc;
}

enum hkt_status hkt__call_submit(struct hkt__call *call, struct hkt_stream *stream)
{
    call->far = hkt__stream_far(stream);
    if (call->far != NULL)
        stream = NULL;
    const enum hkt_status rc = hkt__call_check(call);

    if (hkt__group_is_open())
        return rc < 0 ? hkt__group_spoil(rc) : hkt__group_add(call, stream);
    if (rc < 0)
        return rc;
    if (stream != NULL)
        return hkt__stream_enqueue(stream, call, 1);
    hkt__batch_queue(call, 1);
    return hkt__batch_run(call, 1);
}

enum hkt_status hkt__internal_all_gather(const void *in, void *out, size_t bytes, struct hkt_comm *comm)
{
    struct hkt__call call = {.coll = HKT_ALL_GATHER, .dtype = HKT_UINT8, .op = HKT_OP_COUNT, .root = -1, .in = in,
                             .out = out, .count = bytes, .comm = comm, .is_internal = true};
    const enum hkt_status rc = hkt__call_check(&call);

    if (rc < 0)
        return rc;
    hkt__batch_queue(&call, 1);
    return hkt__batch_run(&call, 1);
}
