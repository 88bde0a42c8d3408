/* Plans for the device executor: see device.h. */
#include "exec/device.h"

#include "core/error.h"
#include "core/mem.h"
#include "sched/lower.h"

/* A channel's worth of data to begin with: below, one more block costs more than it brings. */
#define CHANNEL_BYTES ((size_t)32768)
#define CHUNK_BYTES ((size_t)131072) /* largest by default: a few frames, so that a block has several slices in flight */
#define LL_CHUNK_BYTES ((size_t)8192) /* up to here twice the bytes on the way cost less than the way back of a flag */

_Static_assert((int)HKT__PLAN_SEND == HKT__SEND && (int)HKT__PLAN_RECV_REDUCE == HKT__RECV_REDUCE &&
               (int)HKT__PLAN_WRITE == HKT__WRITE && (int)HKT__PLAN_WAIT == HKT__WAIT, "kinds of steps are numbered alike");
_Static_assert((int)HKT__PLAN_SCRATCH == HKT__SCRATCH && (int)HKT__PLAN_TX == HKT__QUEUE_TX &&
               (int)HKT__PLAN_LOCAL == HKT__QUEUE_LOCAL, "buffers and queues too");
_Static_assert(sizeof(struct hkt__plan_need) == sizeof(struct hkt__plan_dep), "needs are dependencies");

/** The arrays of a program, in the making. */
struct translation {
    struct hkt__plan_queue_row *queues;
    struct hkt__plan_entry *entries;
    struct hkt__plan_operand *operands;
    struct hkt__plan_need *needs;
    int32_t noperands, nneeds;
    bool reduces;
};

static struct hkt__plan_operand operand(const struct hkt__operand *x, int32_t rank)
{
    return (struct hkt__plan_operand){
        .rank = rank, .buf = x->buf, .like_buf = x->like_buf, .count = x->count,
        .at = {x->at.start, x->at.stride, x->at.modulus}, .like = {x->like.start, x->like.stride, x->like.modulus}};
}

static bool has_dst(const struct hkt__entry *entry)
{
    return entry->kind == HKT__RECV || entry->kind == HKT__RECV_REDUCE || entry->kind == HKT__COPY || entry->kind == HKT__REDUCE;
}

static void translate_entry(const struct hkt__plan *plan, const struct hkt__entry *entry, struct translation *t, int32_t i)
{
    t->entries[i] = (struct hkt__plan_entry){
        .kind = entry->kind, .uses_scratch = entry->uses_scratch, .arg_first = t->noperands, .arg_count = entry->arg_count,
        .dst = -1, .dep_first = t->nneeds, .dep_count = entry->dep_count, .feeder = entry->feeder,
        .feeder_pos = entry->feeder_pos};
    for (int32_t k = 0; k < entry->arg_count; k++) {
        const struct hkt__arg *arg = &plan->args[entry->arg_first + k];

        t->operands[t->noperands++] = operand(&arg->x, arg->rank);
    }
    if (has_dst(entry)) {
        t->entries[i].dst = t->noperands;
        t->operands[t->noperands++] = operand(&entry->dst, plan->shape.rank);
    }
    for (int32_t k = 0; k < entry->dep_count; k++) {
        const struct hkt__plan_dep *dep = &plan->deps[entry->dep_first + k];

        t->needs[t->nneeds++] = (struct hkt__plan_need){dep->queue, dep->count};
    }
    t->reduces |= entry->kind == HKT__RECV_REDUCE || (entry->kind == HKT__REDUCE && entry->arg_count > 1);
}

static enum hkt_status translate(const struct hkt__plan *plan, struct translation *t)
{
    const struct hkt__sched *shape = &plan->shape;
    int32_t nentries = 0;

    t->queues = hkt__calloc((size_t)plan->nqueues, sizeof *t->queues);
    t->entries = hkt__calloc((size_t)shape->nsteps, sizeof *t->entries);
    t->operands = hkt__calloc((size_t)shape->nargs + (size_t)shape->nsteps, sizeof *t->operands);
    t->needs = hkt__calloc((size_t)shape->ndeps, sizeof *t->needs);
    if ((t->queues == NULL && plan->nqueues > 0) || (t->entries == NULL && shape->nsteps > 0) ||
        (t->operands == NULL && shape->nsteps > 0) || (t->needs == NULL && shape->ndeps > 0))
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a plan of %d steps", shape->nsteps);
    for (int32_t q = 0; q < plan->nqueues; q++) {
        const struct hkt__plan_queue *queue = &plan->queues[q];

        t->queues[q] = (struct hkt__plan_queue_row){
            .kind = queue->kind, .lane = queue->lane, .peer = queue->peer, .first = queue->first, .count = queue->count};
        for (int32_t i = 0; i < queue->count; i++, nentries++)
            translate_entry(plan, &plan->entries[queue->first + i], t, queue->first + i);
    }
    return HKT_OK;
}

enum hkt_status hkt__device_plan_make(const struct hkt__cuda_module *module, const struct hkt__cuda_peers *peers,
                                      const struct hkt__plan *plan, struct hkt__cuda_plan **out_plan)
{
    const struct hkt__sched *shape = &plan->shape;
    struct translation t = {0};
    enum hkt_status rc = translate(plan, &t);

    if (rc == HKT_OK) {
        const struct hkt__plan_program program = {
            .nranks = shape->nranks, .rank = shape->rank, .cuts = shape->cuts, .nlanes = shape->nlanes,
            .scratch_chunks = shape->scratch_chunks, .blocks = {shape->blocks[0], shape->blocks[1]}, .coll = shape->coll,
            .algo = shape->algo, .direct = plan->direct, .user_direct = plan->user_direct, .reduces = t.reduces,
            .nqueues = plan->nqueues, .nentries = shape->nsteps, .noperands = t.noperands, .nneeds = t.nneeds,
            .queues = t.queues, .entries = t.entries, .operands = t.operands, .needs = t.needs};

        rc = hkt__cuda_plan_make(module, peers, &program, out_plan);
    }
    hkt__free(t.queues);
    hkt__free(t.entries);
    hkt__free(t.operands);
    hkt__free(t.needs);
    return rc;
}

/** How many replicas a call is worth, and how large chunks then are. */
static void widen(const struct hkt__cuda_plan *plan, const struct hkt__cuda_call *call, struct hkt__cuda_cut *cut,
                  size_t *out_slice_bytes)
{
    const struct hkt__plan_program *program = hkt__cuda_plan_program(plan);
    const size_t chunk = call->block_elems_max / (size_t)program->cuts * hkt_dtype_size(call->dtype);
    int32_t most = hkt__cuda_plan_peers(plan)->shape.lanes / program->nlanes;

    most = call->channels_max < most ? call->channels_max : most;
    cut->channels = chunk / CHANNEL_BYTES < (size_t)most ? (int32_t)(chunk / CHANNEL_BYTES) : most;
    cut->channels = cut->channels < 1 ? 1 : cut->channels;
    *out_slice_bytes = chunk / (size_t)cut->channels + 1 < CHUNK_BYTES ? chunk / (size_t)cut->channels + 1 : CHUNK_BYTES;
    if (call->slice_bytes > 0)
        *out_slice_bytes = call->slice_bytes;
}

enum hkt_status hkt__device_plan_cut(const struct hkt__cuda_plan *plan, const struct hkt__cuda_call *call,
                                     struct hkt__cuda_cut *out_cut)
{
    const struct hkt__plan_program *program = hkt__cuda_plan_program(plan);
    const struct hkt__sched shape = {.coll = program->coll, .algo = program->algo, .nranks = program->nranks,
                                     .cuts = program->cuts, .scratch_chunks = program->scratch_chunks};
    const size_t elem_bytes = hkt_dtype_size(call->dtype);
    struct hkt__cuda_cut cut = {.nslices = 1, .channels = 1};
    size_t slice_bytes;

    widen(plan, call, &cut, &slice_bytes);
    const enum hkt_status rc = hkt__lower_slices(&shape, call->block_elems_max, elem_bytes, slice_bytes,
                                                 hkt__cuda_plan_peers(plan)->shape.scratch_bytes, HKT__PLAN_INSTANCES,
                                                 &cut.nslices, &cut.scratch_pitch);

    if (rc < 0)
        return rc;
    cut.channels = cut.channels < cut.nslices ? cut.channels : cut.nslices;
    cut.use_ll = !call->no_ll && cut.nslices == 1 && call->block_elems_max > 0 &&
                 call->block_elems_max / (size_t)program->cuts * elem_bytes <= LL_CHUNK_BYTES;
    *out_cut = cut;
    return HKT_OK;
}

enum hkt_status hkt__device_plan_enqueue(const struct hkt__cuda_plan *plan, const struct hkt__cuda_call *call)
{
    struct hkt__cuda_cut cut;

    if (call->channels_max < 1 || call->blocks_max < 1 || hkt_dtype_size(call->dtype) == 0)
        return hkt__fail(HKT_ERR_INVALID, "a call on a GPU by %d channels and %d blocks: at least one of each",
                         (int)call->channels_max, (int)call->blocks_max);
    if (call->factor != NULL && hkt__cuda_plan_program(plan)->user_direct)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "peers read the input before it is multiplied");
    if (hkt__cuda_plan_program(plan)->reduces && call->op >= HKT_OP_COUNT)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "kernels know the built-in operations only");
    const enum hkt_status rc = hkt__device_plan_cut(plan, call, &cut);

    return rc < 0 ? rc : hkt__cuda_plan_launch(plan, call, &cut);
}
