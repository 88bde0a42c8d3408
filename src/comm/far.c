/* Calls on streams of CUDA: which plan, whether the group runs it on devices, and the launch. See far.h. */
#include "comm/far.h"

#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "exec/call.h"
#include "hocket/device.h"

#define ABORT_NS 10000000000 /* a launch that was told to end, and has not by then, never will */
#define BLOCKS 32 /* of a launch: some 32 multiprocessors saturate NVLink, the rest is the user's (NCCL takes as many at most) */

/** The operation that a user made; NULL: it is a built-in one. */
static const struct hkt__user_op *user_op(const struct hkt__call *call)
{
    return (int)call->op >= HKT_OP_USER ? &call->comm->user_ops[(int)call->op - HKT_OP_USER] : NULL;
}

/** What no plan of a device does, on any rank: functions of users run on the host. */
static bool is_for_host(const struct hkt__call *call)
{
    const struct hkt__user_op *op = user_op(call);

    return op != NULL && op->function != NULL;
}

static enum hkt_status create(struct hkt_comm *comm, int device)
{
    struct hkt__far *far = hkt__calloc(1, sizeof *far);

    if (far != NULL)
        far->all = hkt__calloc((size_t)comm->nranks, sizeof *far->all);
    if (far == NULL || far->all == NULL) {
        hkt__free(far);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for calls on devices of %d ranks", comm->nranks);
    }
    far->comm = comm;
    far->peers.device = device;
    comm->far = far;
    hkt__far_enter(far);
    return HKT_OK;
}

enum hkt_status hkt__far_enter_device(struct hkt_comm *comm, int device, const char *what)
{
    const enum hkt_status rc = comm->far == NULL ? create(comm, device) : HKT_OK;

    if (rc < 0 || comm->far->peers.device == device)
        return rc;
    return hkt__fail(HKT_ERR_INVALID, "%s: %s is on device %d since its first call there, this one is on device %d", what,
                     comm->name, comm->far->peers.device, device);
}

/** UNSUPPORTED: the call would have to wait, or the communicator to be set up, while the stream is being captured. */
static enum hkt_status check_capture(const struct hkt__far *far, const struct hkt__call *call)
{
    const struct hkt__cuda_module *cuda = call->far->cuda;
    int is_capturing = 0;
    const int error = cuda->stream_is_capturing(call->far->stream, call->far->device, &is_capturing);

    if (error != 0)
        return hkt__cuda_failed(cuda, error, "tell whether a stream is captured");
    if (!is_capturing || far->step == HKT__FAR_PLAN)
        return HKT_OK;
    if (far->step == HKT__FAR_OFFER)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s: the first call on a CUDA stream cannot be captured: make one before",
                         hkt_coll_name(call->coll));
    return hkt__fail(HKT_ERR_UNSUPPORTED, "%s cannot be captured: it runs through memory of the host (%s)",
                     hkt_coll_name(call->coll), is_for_host(call) ? "it needs the host" : far->text);
}

enum hkt_status hkt__far_start(struct hkt__collective *work)
{
    struct hkt__call *call = work->call;
    struct hkt_comm *comm = call->comm;
    enum hkt_status rc = hkt__far_enter_device(comm, call->far->device, hkt_coll_name(call->coll));

    work->state = HKT__COLLECTIVE_FAR;
    if (rc < 0)
        return rc;
    struct hkt__far *far = comm->far;

    if (is_for_host(call) || far->path == HKT__FAR_STAGED)
        far->step = HKT__FAR_STAGE;
    else
        far->step = far->path == HKT__FAR_PLANS ? HKT__FAR_PLAN : HKT__FAR_OFFER;
    rc = check_capture(far, call);
    if (rc < 0)
        return rc;
    work->own = (struct hkt__bind){.stamp = hkt__call_stamp(call)};
    work->bind = &work->own;
    if (far->step == HKT__FAR_STAGE)
        return HKT_OK;
    work->bind->stamp.op_seq = ++comm->counts.op_seq;
    work->record = hkt__recorder_begin(&comm->watch.recorder, &work->bind->stamp, "device", -1);
    return HKT_OK;
}

const struct hkt__collective *hkt__far_waiting(const struct hkt__collective *work)
{
    const struct hkt__far *far = work->call->comm->far;

    return work->state == HKT__COLLECTIVE_FAR && far != NULL && far->is_exchanging ? &far->exchanging : work;
}

/* --- Plans ---------------------------------------------------------------------------------------------------------- */

static int find_row(const struct hkt__far *far, const struct hkt__algo *algo, int root, bool in_place)
{
    for (int i = 0; i < far->nrows; i++)
        if (far->rows[i].algo == algo && far->rows[i].root == root && far->rows[i].in_place == in_place)
            return i;
    return -1;
}

/** A new row, with its plan. Fails only where the vote could not heal it. */
static enum hkt_status add_row(struct hkt__far *far, const struct hkt__far_row *row, const struct hkt__plan *plan)
{
    struct hkt__far_row *rows = hkt__realloc(far->rows, (size_t)far->nrows + 1, sizeof *rows);
    const struct hkt__cuda_module *cuda = far->comm->cuda;
    int mode = 2; /* relaxed: its allocations are no part of what the user may be capturing */

    if (rows == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for plans of a device");
    far->rows = rows;
    rows[far->nrows] = *row;
    const int error = cuda->capture_mode(&mode);

    if (error != 0)
        return hkt__cuda_failed(cuda, error, "allocate while capturing");
    rows[far->nrows].status = hkt__device_plan_make(cuda, &far->peers, plan, &rows[far->nrows].plan);
    (void)cuda->capture_mode(&mode);
    far->current = far->nrows++;
    return HKT_OK;
}

/** The call's plan. Of a kind (algorithm and root) that is new all ranks must hear how the others got on. */
static enum hkt_status find_plan(struct hkt__far *far, struct hkt__collective *work)
{
    const struct hkt__call *call = work->call;
    struct hkt__far_row row = {.root = call->root, .in_place = call->in_place};
    const bool is_premul = user_op(call) != NULL; /* peers may not read what is still to be multiplied */
    const bool user_ok = !is_premul && (far->peers.is_one_process || hkt__far_memory_covers(far, call));
    enum hkt_status rc = hkt__prepare_far(call, user_ok, &row.algo, &work->cached);

    if (rc == HKT_ERR_UNSUPPORTED && is_premul) {
        far->step = HKT__FAR_STAGE;
        return HKT_OK;
    }
    if (rc < 0)
        return rc;
    work->bind->grid = (struct hkt__grid){.cuts = hkt__plan_shape(work->cached->plan)->cuts, .count = call->count};
    far->current = find_row(far, row.algo, row.root, row.in_place);
    far->step = HKT__FAR_RUN;
    if (far->current >= 0)
        return HKT_OK;
    const int other = find_row(far, row.algo, row.root, !row.in_place);

    rc = add_row(far, &row, work->cached->plan);
    if (rc < 0)
        return rc;
    if (other >= 0) /* in place or not is a rank's own affair: the vote was then */
        return far->rows[other].status < 0 ? HKT_OK : far->rows[far->current].status;
    far->own.stamp = work->bind->stamp;
    far->own.stamp.call |= hkt__call_pack(0, 0, 0, (unsigned)(row.algo - hkt__algos), 0); /* buffers in mapped memory on some only */
    far->step = HKT__FAR_VOTE;
    return hkt__far_exchange(far, far->rows[far->current].status);
}

static enum hkt_status count_votes(struct hkt__far *far)
{
    struct hkt__far_row *row = &far->rows[far->current];

    far->step = HKT__FAR_RUN;
    for (int r = 0; r < far->comm->nranks; r++) {
        const struct hkt__stamp *own = &far->own.stamp, *theirs = &far->all[r].stamp;

        if (own->call != theirs->call || own->root != theirs->root || own->count != theirs->count)
            return hkt__stamp_mismatch(r, own, theirs);
    }
    for (int r = 0; r < far->comm->nranks; r++) {
        if (far->all[r].status >= 0)
            continue;
        hkt__log(HKT__SUB_PLAN, HKT__LOG_INFO, "%s: %s by %s runs through memory of the host: rank %d: %s", far->comm->name,
                 hkt_coll_name(hkt__call_coll(far->own.stamp.call)), row->algo->info.name, r, far->all[r].text);
        row->status = HKT_ERR_UNSUPPORTED;
        return HKT_OK;
    }
    return HKT_OK;
}

/* --- Launches ------------------------------------------------------------------------------------------------------- */

/** What is left to do on the result: as finish_result of calls of the host. */
static int finish_result(const struct hkt__call *call, const struct hkt__kernel_on *on)
{
    const struct hkt__cuda_module *cuda = call->far->cuda;
    const size_t count = hkt__collective_result(call);
    const int n = call->comm->nranks;

    if (call->op == HKT_OP_COUNT || user_op(call) != NULL || count == 0)
        return 0;
    if (call->op == HKT_AVG) {
        const struct hkt__scale_args args = {.dst = call->out, .src = call->out, .count = count, .factor = n,
                                             .integer = (uint64_t)n};

        return cuda->divide(&args, call->dtype, on);
    }
    if (n > 1)
        return 0;
    const struct hkt__reduce_args args = {.dst = call->out, .count = count, .nsrcs = 1, .srcs = {call->out}};

    return cuda->reduce(&args, call->op, call->dtype, on);
}

int hkt__far_blocks_max(const struct hkt__far *far)
{
    const int asked = (int)far->comm->job->settings->cuda_blocks, most = far->multiprocessors / far->peers.ranks_here;
    const int blocks = asked > 0 ? asked : BLOCKS;

    return blocks < most ? blocks : most > 0 ? most : 1;
}

int hkt__far_order(struct hkt__far *far, const struct hkt__far_stream *on, int is_capturing)
{
    if (is_capturing || !far->has_launched || far->last_stream == on->stream)
        return 0;
    return on->cuda->stream_wait(on->stream, far->event);
}

/* A failure is tried again once, since what was launched must be waited for. */
int hkt__far_mark(struct hkt__far *far, const struct hkt__far_stream *on)
{
    int error = on->cuda->event_record(far->event, on->stream);

    if (error != 0)
        far->is_lost = on->cuda->event_record(far->event, on->stream) != 0;
    far->has_launched = true;
    far->last_stream = on->stream;
    atomic_store_explicit(&far->seen_on[0], (uintptr_t)on->stream + 1, memory_order_release); /* V1 */
    for (int i = 1; i < HKT__FAR_STREAMS; i++)
        atomic_store_explicit(&far->seen_on[i], 0, memory_order_release);
    return error;
}

/** What a pre-multiplied sum multiplies by. */
static struct hkt__cuda_factor factor_of(const struct hkt__call *call)
{
    const void *scalar = user_op(call)->scalar;
    struct hkt__cuda_factor factor = {.factor = 0};

    if (call->dtype == HKT_F64)
        memcpy(&factor.factor, scalar, sizeof factor.factor);
    else if (call->dtype <= HKT_UINT64)
        memcpy(&factor.integer, scalar, hkt_dtype_size(call->dtype));
    else
        factor.factor = (double)hkt__to_f32(scalar, call->dtype);
    return factor;
}

/** In place all of the input may be overwritten. */
static int multiply_in_place(const struct hkt__call *call, const struct hkt__cuda_factor *factor, const struct hkt__kernel_on *on)
{
    const struct hkt__scale_args args = {.dst = (void *)(uintptr_t)call->in, .src = call->in, .factor = factor->factor,
                                         .integer = factor->integer, .count = call->staging.in_bytes / hkt_dtype_size(call->dtype)};

    return call->far->cuda->multiply(&args, call->dtype, on);
}

static enum hkt_status enqueue(struct hkt__far *far, struct hkt__collective *work)
{
    const struct hkt__call *call = work->call;
    const struct hkt__grid *grid = &work->bind->grid;
    struct hkt__cuda_factor factor;
    struct hkt__cuda_call launch = {
        .in = call->in, .out = call->out, .stream = call->far->stream, .dtype = call->dtype,
        .op = call->op == HKT_OP_COUNT || user_op(call) != NULL ? HKT_SUM : call->op, .count = grid->count,
        .counts = {grid->counts[0], grid->counts[1]}, .displs = {grid->displs[0], grid->displs[1]},
        .block_elems_max = hkt__block_elems_max(call), .channels_max = far->peers.shape.lanes,
        .blocks_max = hkt__far_blocks_max(far)};
    const struct hkt__kernel_on on = {.stream = call->far->stream, .blocks_max = launch.blocks_max};
    const struct hkt__cuda_module *cuda = call->far->cuda;
    int is_capturing = 0, error = cuda->stream_is_capturing(on.stream, call->far->device, &is_capturing);

    if (error == 0)
        error = hkt__far_order(far, call->far, is_capturing);
    if (error != 0)
        return hkt__cuda_failed(cuda, error, "order streams");
    if (user_op(call) != NULL) {
        factor = factor_of(call);
        launch.factor = call->in_place ? NULL : &factor;
        error = call->in_place ? multiply_in_place(call, &factor, &on) : 0;
        if (error != 0)
            return hkt__cuda_failed(cuda, error, "multiply the input");
    }
    const enum hkt_status rc = hkt__device_plan_enqueue(far->rows[far->current].plan, &launch);

    if (rc < 0)
        return rc;
    error = finish_result(call, &on);
    const int marked = is_capturing ? 0 : hkt__far_mark(far, call->far);

    if (error == 0)
        error = marked;
    return error == 0 ? HKT_OK : hkt__cuda_failed(cuda, error, "finish a collective");
}

/** OK: enqueued. IN_PROGRESS: it is to be staged. */
static enum hkt_status run(struct hkt__far *far, struct hkt__collective *work)
{
    const struct hkt__far_row *row = &far->rows[far->current];
    const struct hkt__cuda_module *cuda = work->call->far->cuda;
    enum hkt_status rc = row->status;
    int before = 0, error;

    if (rc == HKT_OK)
        rc = hkt__collective_grid(work, row->algo);
    if (rc == HKT_OK) {
        error = cuda->device_use(work->call->far->device, &before);
        if (error != 0)
            return hkt__cuda_failed(cuda, error, "use a stream's device");
        rc = enqueue(far, work);
        error = before != work->call->far->device ? cuda->device_use(before, &(int){0}) : 0;
        if (rc == HKT_OK && error != 0)
            return hkt__cuda_failed(cuda, error, "give the device before back");
    }
    if (rc != HKT_ERR_UNSUPPORTED)
        return rc;
    far->step = HKT__FAR_STAGE;
    return HKT_IN_PROGRESS;
}

/** When the stream is idle the call is one of the host. */
static enum hkt_status go_on_staged(struct hkt__collective *work)
{
    const enum hkt_status rc = hkt__far_stream_query(work->call->far);

    if (rc == HKT_IN_PROGRESS)
        hkt__sleep_ns(HKT__CUDA_NAP_NS); /* what it does may take long: that is no wait for a peer */
    if (rc != HKT_OK)
        return rc;
    if (work->record != NULL)
        hkt__recorder_end(&work->call->comm->watch.recorder, work->record, HKT_OK, false);
    const enum hkt_status started = hkt__collective_go_on(work);

    return started < 0 ? started : HKT_IN_PROGRESS;
}

enum hkt_status hkt__far_poll(struct hkt__collective *work)
{
    struct hkt__far *far = work->call->comm->far;
    enum hkt_status rc = hkt__far_exchanged(far);

    if (rc != HKT_OK)
        return rc;
    switch (far->step) {
    case HKT__FAR_PLAN:
        rc = find_plan(far, work);
        break;
    case HKT__FAR_VOTE:
        rc = count_votes(far);
        break;
    case HKT__FAR_RUN:
        return run(far, work);
    case HKT__FAR_STAGE:
        return go_on_staged(work);
    default:
        rc = hkt__far_setup_step(far);
    }
    return rc < 0 ? rc : HKT_IN_PROGRESS;
}

/** Until the last launch is done, or the time has come. */
static int await_launches(const struct hkt__far *far, int64_t until_ns)
{
    int rc;

    while ((rc = far->comm->cuda->event_query(far->event)) == HKT__CUDA_NOT_READY && hkt__now_ns() < until_ns)
        hkt__sleep_ns(HKT__CUDA_NAP_NS);
    return rc;
}

bool hkt__far_drain(struct hkt__far *far)
{
    int rc;

    if (!far->has_launched)
        return true;
    rc = await_launches(far, hkt__now_ns() + far->comm->options.wait.timeout_ns);
    if (rc == HKT__CUDA_NOT_READY) {
        hkt__cuda_abort(far->peers.watch);
        rc = await_launches(far, hkt__now_ns() + ABORT_NS);
    }
    far->is_lost |= rc == HKT__CUDA_NOT_READY;
    return !far->is_lost;
}

const char *hkt_comm_device(const struct hkt_comm *comm)
{
    return comm != NULL && comm->far != NULL ? comm->far->line : "";
}
