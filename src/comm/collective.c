/* One collective: choose an algorithm, get its plan, bind the call to it, run, post-process.
 *
 * Averages divide the finished sum; pre-multiplied sums multiply the input first, into the output where that is allowed
 * (all_reduce, reduce at the root), else into a buffer that the communicator keeps. */
#include <stdio.h>
#include <string.h>

#include "comm/call.h"
#include "core/bits.h"
#include "core/log.h"
#include "core/mem.h"
#include "cost/select.h"
#include "exec/call.h"
#include "sched/lower.h"

static bool is_v(enum hkt_coll coll)
{
    return coll == HKT_ALL_GATHER_V || coll == HKT_REDUCE_SCATTER_V || coll == HKT_ALL_TO_ALL_V;
}

static const struct hkt__user_op *user_op(const struct hkt__call *call)
{
    return (int)call->op >= HKT_OP_USER ? &call->comm->user_ops[(int)call->op - HKT_OP_USER] : NULL;
}

static size_t sum_counts(const size_t *counts, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/** Elements of the collective's whole vector, for the choice; the same on all ranks. For all_to_all_v nobody knows it:
 *  its algorithms do not depend on it. */
static size_t vector_elems(const struct hkt__call *call)
{
    const int n = call->comm->nranks;

    switch (call->coll) {
    case HKT_ALL_GATHER_V:
        return sum_counts(call->blocks.recv_counts, n);
    case HKT_REDUCE_SCATTER_V:
        return sum_counts(call->blocks.send_counts, n);
    case HKT_ALL_TO_ALL_V:
    case HKT_BARRIER:
        return 0;
    case HKT_ALL_REDUCE:
    case HKT_BROADCAST:
    case HKT_REDUCE:
        return call->count;
    default:
        return call->count * (size_t)n;
    }
}

/** Whether all ranks must be in place or none. Elsewhere it is a rank's own affair (a root; a rank whose block is empty),
 *  and neither the choice nor the messages may depend on it: a test over the registry holds the builders to that. */
static bool in_place_is_agreed(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_ALL_GATHER || coll == HKT_ALL_TO_ALL;
}

static enum hkt_status choose(const struct hkt__call *call, const struct hkt__algo **out_algo)
{
    const struct hkt_comm *comm = call->comm;
    const struct hkt__select_args args = {
        .coll = call->coll, .nranks = comm->nranks, .in_place = call->in_place && in_place_is_agreed(call->coll),
        .direct_ok = comm->routes.all_memory, .user_ok = comm->routes.all_user,
        .bytes = vector_elems(call) * hkt_dtype_size(call->dtype), .latency_ns = comm->routes.latency_ns,
        .ns_per_byte = comm->routes.ns_per_byte, .slice_bytes = comm->options.slice_bytes};
    const struct hkt__algo *forced = comm->options.forced[call->coll];

    if (forced == NULL)
        return hkt__select(&args, out_algo);
    const char *why = hkt__unfit(forced, &args);

    if (why[0] != '\0')
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s: the forced algorithm %s does not serve %d ranks%s: %s",
                         hkt_coll_name(call->coll), forced->info.name, comm->nranks, args.in_place ? " in place" : "",
                         why);
    *out_algo = forced;
    return HKT_OK;
}

/** Elements of the largest block over all ranks: what slicing depends on, so it must be the same everywhere. */
static size_t block_elems_max(const struct hkt__call *call)
{
    const size_t *counts = call->coll == HKT_ALL_GATHER_V ? call->blocks.recv_counts : call->blocks.send_counts;
    size_t most = 0;

    if (!is_v(call->coll))
        return call->count;
    if (call->coll == HKT_ALL_TO_ALL_V)
        return 0; /* known to nobody: one slice, frames cut it */
    for (int i = 0; i < call->comm->nranks; i++)
        most = counts[i] > most ? counts[i] : most;
    return most;
}

/** Displacements of packed blocks, in the communicator's own memory. */
static enum hkt_status pack_displs(struct hkt_comm *comm, const size_t *counts, size_t **out_displs)
{
    if (comm->displs == NULL)
        comm->displs = hkt__calloc((size_t)comm->nranks, sizeof(size_t));
    if (comm->displs == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for displacements of %d ranks", comm->nranks);
    for (int i = 0, first = 1; i < comm->nranks; i++, first = 0)
        comm->displs[i] = first ? 0 : comm->displs[i - 1] + counts[i - 1];
    *out_displs = comm->displs;
    return HKT_OK;
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

/** Memory for the multiplied input of a pre-multiplied sum that may not go into the output. */
static enum hkt_status reserve_temp(struct hkt_comm *comm, size_t bytes)
{
    if (bytes <= comm->temp_bytes)
        return HKT_OK;
    hkt__free(comm->temp);
    comm->temp_bytes = 0;
    comm->temp = hkt__calloc_line(1, bytes);
    if (comm->temp == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for %zu bytes of multiplied input", bytes);
    comm->temp_bytes = bytes;
    return HKT_OK;
}

static enum hkt_status premultiply(struct hkt__call *call, const struct hkt__user_op *op, struct hkt__bind *bind)
{
    struct hkt_comm *comm = call->comm;
    const bool into_out = call->coll == HKT_ALL_REDUCE || (call->coll == HKT_REDUCE && call->root == comm->rank);
    const size_t elems = call->coll == HKT_REDUCE ? call->count : vector_elems(call);
    void *to = call->out;

    if (!into_out) {
        const enum hkt_status rc = reserve_temp(comm, elems * bind->elem_bytes);

        if (rc < 0)
            return rc;
        to = comm->temp;
    }
    hkt__premultiply(to, call->in, elems, call->dtype, op->scalar);
    bind->in = to;
    call->in_place = into_out;
    return HKT_OK;
}

static void bind_reduction(const struct hkt__call *call, struct hkt__bind *bind)
{
    const struct hkt__user_op *op = user_op(call);

    if (call->op == HKT_OP_COUNT)
        return;
    if (op != NULL && op->function != NULL) {
        bind->callback = op->function;
        bind->callback_arg = op->arg;
    } else {
        bind->reduce = hkt__reduce_get(op != NULL ? HKT_SUM : call->op, call->dtype, hkt__isa_best());
    }
}

static enum hkt_status bind_slices(struct hkt__collective *work)
{
    const struct hkt_comm *comm = work->call->comm;
    const struct hkt__sched *shape = hkt__plan_shape(work->cached->plan);
    struct hkt__bind *bind = &work->bind;
    const bool direct = hkt__plan_is_direct(work->cached->plan);
    const size_t scratch_bytes = hkt__exec_instance_bytes(&comm->env, direct) * HKT__SCRATCH_INSTANCES;

    bind->channels = direct ? 1 : comm->options.channels;
    while (bind->channels > 1 && bind->channels * shape->nlanes > HKT__COLL_LANES)
        bind->channels /= 2;
    return hkt__lower_slices(shape, block_elems_max(work->call), bind->elem_bytes, comm->options.slice_bytes,
                             scratch_bytes, HKT__SCRATCH_INSTANCES, &bind->nslices, &bind->scratch_pitch);
}

static struct hkt__stamp make_stamp(const struct hkt__call *call, const struct hkt__algo *algo)
{
    const unsigned op = call->op == HKT_OP_COUNT ? HKT__CALL_NO_OP : (unsigned)call->op;
    const bool tell_in_place = call->in_place && in_place_is_agreed(call->coll);

    return (struct hkt__stamp){
        .op_seq = ++call->comm->op_seq,
        .call = hkt__call_pack(call->coll, call->dtype, op, (unsigned)(algo - hkt__algos),
                               tell_in_place ? HKT__CALL_IN_PLACE : 0),
        .root = call->root,
        .count = is_v(call->coll) ? 0 : call->count};
}

enum hkt_status hkt__collective_start(struct hkt__collective *work, struct hkt__call *call)
{
    struct hkt_comm *comm = call->comm;
    const struct hkt__user_op *op = user_op(call);
    struct hkt__bind *bind = &work->bind;
    enum hkt_status rc;

    *work = (struct hkt__collective){.call = call, .state = HKT__COLLECTIVE_LINKING};
    *bind = (struct hkt__bind){.in = call->in, .out = call->out, .elem_bytes = hkt_dtype_size(call->dtype),
                               .dtype = call->dtype};
    if (op != NULL && op->function == NULL) {
        rc = premultiply(call, op, bind);
        if (rc < 0)
            return rc;
    }
    rc = choose(call, &work->algo);
    if (rc < 0)
        return rc;
    bind->stamp = make_stamp(call, work->algo);
    work->record = hkt__recorder_begin(&comm->recorder, &bind->stamp, work->algo->info.name, -1);
    rc = hkt__plans_get(comm, work->algo, call->root < 0 ? 0 : call->root, call->in_place, &work->cached);
    if (rc < 0)
        return rc;
    bind->grid = (struct hkt__grid){.cuts = hkt__plan_shape(work->cached->plan)->cuts, .count = call->count};
    if (is_v(call->coll)) {
        rc = bind_blocks(work, &bind->grid);
        if (rc < 0)
            return rc;
    }
    bind->empty_frames = call->count == 0 && !is_v(call->coll);
    bind_reduction(call, bind);
    rc = bind_slices(work);
    return rc < 0 ? rc : hkt__run_reserve(comm->run, work->cached->plan, bind->channels);
}

enum hkt_status hkt__collective_poll(struct hkt__collective *work)
{
    struct hkt_comm *comm = work->call->comm;

    if (work->state == HKT__COLLECTIVE_LINKING) {
        const enum hkt_status rc = hkt__plans_link(comm, work->cached, work->bind.channels);

        if (rc != HKT_OK)
            return rc < 0 ? rc : HKT_AGAIN;
        hkt__run_start(comm->run, work->cached->plan, &work->bind);
        work->state = HKT__COLLECTIVE_RUNNING;
    }
    return hkt__run_poll(comm->run);
}

enum hkt_status hkt__collective_finish(struct hkt__collective *work, enum hkt_status status)
{
    const struct hkt__call *call = work->call;

    work->state = HKT__COLLECTIVE_DONE;
    if (status == HKT_OK && call->op == HKT_AVG) {
        size_t count = call->count;

        if (call->coll == HKT_REDUCE_SCATTER_V)
            count = call->blocks.send_counts[call->comm->rank];
        if (call->coll != HKT_REDUCE || call->root == call->comm->rank)
            hkt__divide(call->out, count, call->dtype, call->comm->nranks);
    }
    if (work->record != NULL)
        hkt__recorder_end(&call->comm->recorder, work->record, status);
    return status;
}
