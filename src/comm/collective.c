/* One collective: bind the call to its prepared plan, run, post-process.
 *
 * Averages divide the finished sum, logical results of one rank alone become 0 or 1; pre-multiplied sums multiply the
 * input first, into the output where that is allowed (all_reduce, reduce at the root), else into a buffer that the
 * communicator keeps. */

#include "comm/far.h"
#include "comm/stage.h"
#include "core/mem.h"
#include "exec/call.h"

#define BRIEF_BYTES 4096 /* calls on fewer take under a microsecond where nothing is waited for */

static const struct hkt__user_op *user_op(const struct hkt__call *call)
{
    return (int)call->op >= HKT_OP_USER ? &call->comm->user_ops[(int)call->op - HKT_OP_USER] : NULL;
}

/* In the communicator's own memory, [nranks] each. */
enum { DISPLS_PACKED, COUNTS_SORTED, DISPLS_SORTED, DISPLS_ARRAYS };

static enum hkt_status reserve_displs(struct hkt_comm *comm)
{
    if (comm->room.displs == NULL)
        comm->room.displs = hkt__calloc((size_t)comm->nranks * DISPLS_ARRAYS, sizeof(size_t));
    return comm->room.displs != NULL ? HKT_OK
                                : hkt__fail(HKT_ERR_NOMEM, "no memory for displacements of %d ranks", comm->nranks);
}

static enum hkt_status pack_displs(struct hkt_comm *comm, const size_t *counts, size_t **out_displs)
{
    const enum hkt_status rc = reserve_displs(comm);

    for (int i = 0, first = 1; i < comm->nranks && rc == HKT_OK; i++, first = 0)
        comm->room.displs[i] = first ? 0 : comm->room.displs[i - 1] + counts[i - 1];
    *out_displs = comm->room.displs;
    return rc;
}

static enum hkt_status bind_blocks(struct hkt__collective *work, struct hkt__grid *grid)
{
    const struct hkt__call *call = work->call;
    const struct hkt_blocks *b = &call->blocks;
    size_t *packed = NULL;
    enum hkt_status rc = HKT_OK;

    if (call->coll == HKT_ALL_TO_ALL_V) {
        grid->counts[0] = b->send_counts;
        grid->displs[0] = b->send_displs;
        grid->counts[1] = b->recv_counts;
        grid->displs[1] = b->recv_displs;
    } else if (call->coll == HKT_ALL_GATHER_V) {
        if (b->recv_displs == NULL)
            rc = pack_displs(call->comm, b->recv_counts, &packed);
        work->own_count = b->recv_counts[call->comm->rank];
        grid->counts[0] = &work->own_count;
        grid->counts[1] = b->recv_counts;
        grid->displs[1] = b->recv_displs != NULL ? b->recv_displs : packed;
    } else {
        rc = pack_displs(call->comm, b->send_counts, &packed);
        work->own_count = b->send_counts[call->comm->rank];
        grid->counts[0] = b->send_counts;
        grid->displs[0] = packed;
        grid->counts[1] = &work->own_count;
    }
    return rc;
}

/** Block v of the schedule is that of rank ranks[v]: say where it lies, and how large it is. */
static enum hkt_status sort_blocks(const struct hkt__collective *work, const int32_t *ranks, struct hkt__grid *grid)
{
    struct hkt_comm *comm = work->call->comm;
    const struct hkt__sched *shape = hkt__plan_shape(work->cached->plan);
    const size_t n = (size_t)comm->nranks;
    const enum hkt_status rc = reserve_displs(comm);

    if (rc < 0 || n == 1)
        return rc;
    size_t *counts = comm->room.displs + COUNTS_SORTED * n, *displs = comm->room.displs + DISPLS_SORTED * n;

    for (int buf = 0; buf < 2; buf++) { /* in all_to_all both are alike; elsewhere one has blocks of all ranks */
        if (shape->blocks[buf] != comm->nranks)
            continue;
        const size_t *old_counts = grid->counts[buf], *old_displs = grid->displs[buf];

        for (size_t v = 0; v < n; v++) {
            counts[v] = old_counts != NULL ? old_counts[ranks[v]] : grid->count;
            displs[v] = old_displs != NULL ? old_displs[ranks[v]] : (size_t)ranks[v] * grid->count;
        }
        grid->counts[buf] = old_counts != NULL ? counts : NULL;
        grid->displs[buf] = displs;
    }
    return HKT_OK;
}

/** Memory for the multiplied input of a pre-multiplied sum that may not go into the output. */
static enum hkt_status reserve_temp(struct hkt_comm *comm, size_t bytes)
{
    if (bytes <= comm->room.temp_bytes)
        return HKT_OK;
    hkt__pages_free(comm->room.temp, comm->room.temp_bytes);
    comm->room.temp_bytes = 0;
    comm->room.temp = hkt__pages_alloc(bytes);
    if (comm->room.temp == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for %zu bytes of multiplied input", bytes);
    comm->room.temp_bytes = bytes;
    return HKT_OK;
}

/** Multiply the input: into the output, to go on in place, unless no algorithm that the user allows can; else aside. */
static enum hkt_status premultiply(struct hkt__call *call, const struct hkt__user_op *op, const void **out_in)
{
    const size_t elem_bytes = hkt_dtype_size(call->dtype);
    struct hkt_comm *comm = call->comm;
    const bool has_out = call->coll == HKT_ALL_REDUCE || (call->coll == HKT_REDUCE && call->root == comm->rank);
    const bool into_out = has_out && (call->in_place || hkt__prepare_serves(call, true));
    const size_t elems = call->coll == HKT_REDUCE ? call->count : hkt__vector_elems(call);
    void *to = call->out;

    if (!into_out) {
        const enum hkt_status rc = reserve_temp(comm, elems * elem_bytes);

        if (rc < 0)
            return rc;
        to = comm->room.temp;
    }
    hkt__premultiply(to, call->in, elems, call->dtype, op->scalar);
    *out_in = to;
    call->in_place = into_out;
    call->registered &= into_out && call->coll == HKT_ALL_REDUCE; /* else some rank's input lies where peers do not reach it */
    return HKT_OK;
}

enum hkt_status hkt__collective_grid(struct hkt__collective *work, const struct hkt__algo *algo)
{
    const int32_t *ranks = hkt__site_ranks(&work->call->comm->site, algo);
    const enum hkt_status rc = hkt__coll_is_v(work->call->coll) ? bind_blocks(work, &work->bind->grid) : HKT_OK;

    return rc == HKT_OK && ranks != NULL ? sort_blocks(work, ranks, &work->bind->grid) : rc;
}

enum hkt_status hkt__collective_start(struct hkt__collective *work, struct hkt__call *call)
{
    work->call = call;
    work->is_brief = call->far == NULL && call->staging.in_bytes + call->staging.out_bytes <= BRIEF_BYTES;
    work->record = NULL;
    work->cached = NULL;
    if (call->far != NULL)
        return hkt__far_start(work);
    return hkt__collective_go_on(work);
}

enum hkt_status hkt__collective_go_on(struct hkt__collective *work)
{
    struct hkt__call *call = work->call;
    struct hkt_comm *comm = call->comm;
    const struct hkt__user_op *op = user_op(call);
    struct hkt__prepared *prepared;
    struct hkt__bind *bind;
    const void *in;
    enum hkt_status rc;

    work->state = HKT__COLLECTIVE_LINKING;
    if (call->staging.in_is_far || call->staging.out_is_far) {
        rc = hkt__stage_begin(call, &comm->room.stage);
        if (rc < 0)
            return rc;
    }
    in = call->in;
    if (op != NULL && op->function == NULL) {
        rc = premultiply(call, op, &in);
        if (rc < 0)
            return rc;
    }
    rc = hkt__prepare(call, &prepared);
    if (rc < 0)
        return rc;
    work->cached = prepared->cached;
    if (!prepared->is_plain)
        work->own = prepared->bind;
    work->bind = bind = prepared->is_plain ? &prepared->bind : &work->own;
    bind->in = in;
    bind->out = call->out;
    bind->device = call->staging.is_lent ? &call->staging.device : NULL;
    bind->stamp.op_seq = ++comm->counts.op_seq;
    if (op != NULL) {
        bind->callback = op->function;
        bind->callback_arg = op->arg;
    }
    work->record = hkt__recorder_begin(&comm->watch.recorder, &bind->stamp, prepared->choice.algo->info.name, -1);
    return prepared->is_plain ? HKT_OK : hkt__collective_grid(work, prepared->choice.algo);
}

/** While connections are missing: what has arrived on those that stand. Ranks that called something else may never open
 *  what this plan needs, but what they sent tells. Frames of later calls are left alone: a rank that has nothing to send
 *  in this one may be ahead. */
static enum hkt_status look_at_arrivals(const struct hkt__collective *work)
{
    const struct hkt_comm *comm = work->call->comm;
    const struct hkt__stamp *own = &work->bind->stamp;
    const int links = hkt__plan_links(work->cached->plan);

    for (int i = 0; i < links; i++) {
        struct hkt__view view;
        int peer, lane;

        hkt__plan_link(work->cached->plan, i, &peer, &lane);
        struct hkt__chan *chan = comm->env.rx[peer * HKT__COMM_LANES + lane];
        const enum hkt_status rc = chan == NULL ? HKT_AGAIN : chan->ops->rx_begin(chan, &view);

        if (rc < 0)
            return rc;
        if (rc != HKT_OK || view.stamp.op_seq != own->op_seq)
            continue;
        if (view.stamp.call != own->call || view.stamp.root != own->root ||
            (!hkt__coll_is_v(work->call->coll) && view.stamp.count != own->count))
            return hkt__stamp_mismatch(peer, own, &view.stamp);
    }
    return HKT_AGAIN;
}

enum hkt_status hkt__collective_poll(struct hkt__collective *work)
{
    struct hkt_comm *comm = work->call->comm;
    enum hkt_status rc;

    if (work->state == HKT__COLLECTIVE_FAR)
        return hkt__far_poll(work);
    if (work->state == HKT__COLLECTIVE_LINKING) {
        rc = work->cached->channels_open >= work->bind->channels ? HKT_OK
                                                                : hkt__plans_link(comm, work->cached, work->bind->channels);
        if (rc != HKT_OK) {
            work->is_brief = false;
            return rc < 0 ? rc : look_at_arrivals(work);
        }
        hkt__run_start(comm->run, work->cached->plan, work->bind);
        work->state = HKT__COLLECTIVE_RUNNING;
    }
    rc = hkt__run_poll(comm->run);
    work->is_brief = work->is_brief && rc == HKT_OK;
    return rc;
}

size_t hkt__collective_result(const struct hkt__call *call)
{
    if (call->coll == HKT_REDUCE && call->root != call->comm->rank)
        return 0;
    return call->coll == HKT_REDUCE_SCATTER_V ? call->blocks.send_counts[call->comm->rank] : call->count;
}

/** What is left to do where the result lies: averages divide; one rank alone has met no other input, so that only now
 *  the operation makes a logical result 0 or 1 (the others leave it as it is). */
static void finish_result(const struct hkt__collective *work)
{
    const struct hkt__call *call = work->call;
    const size_t count = hkt__collective_result(call);
    const void *const result[] = {call->out};

    if (count == 0)
        return;
    if (call->op == HKT_AVG)
        hkt__divide(call->out, count, call->dtype, call->comm->nranks);
    else
        work->bind->reduce(call->out, result, 1, count);
}

enum hkt_status hkt__collective_finish(struct hkt__collective *work, enum hkt_status status)
{
    struct hkt__call *call = work->call;

    const bool was_far = work->state == HKT__COLLECTIVE_FAR; /* all is enqueued, or the communicator has failed */

    if (was_far)
        hkt__far_give_up(call->comm->far, status);

    work->state = HKT__COLLECTIVE_DONE;
    if (status == HKT_OK && !was_far && (call->op == HKT_AVG || (call->comm->nranks == 1 && work->bind->reduce != NULL)))
        finish_result(work);
    if (call->staging.is_staged)
        status = hkt__stage_end(call, status);
    if (work->record != NULL)
        hkt__recorder_end(&call->comm->watch.recorder, work->record, status, work->is_brief);
    return status;
}
