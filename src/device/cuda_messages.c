/* Launches of messages: see cuda_messages.h. */
#include "device/cuda_messages.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"

#define PART_BYTES 32768u /* below, one more block costs more than it brings */
#define LL_BYTES 8192u    /* up to here twice the bytes on the way cost less than the way back of a flag */
#define QUEUES_MAX (2 * (HKT__PLAN_RANKS_MAX - 1))

struct hkt__cuda_messages {
    const struct hkt__cuda_module *module;
    struct hkt__cuda_plan *plan;
    struct hkt__plan_message *table;  /* on the device: of launches with many */
    struct hkt__plan_message *sorted; /* of the launch that is being made, by queue */
};

/** The queue of a peer and direction. */
static int32_t queue_of(int32_t rank, int32_t peer, bool is_send)
{
    return 2 * (peer < rank ? peer : peer - 1) + is_send;
}

/** The program of all launches: queue q, entry q, operand q. */
static enum hkt_status make_plan(struct hkt__cuda_messages *messages, const struct hkt__cuda_peers *peers)
{
    struct hkt__plan_queue_row queues[QUEUES_MAX];
    struct hkt__plan_entry entries[QUEUES_MAX];
    struct hkt__plan_operand operands[QUEUES_MAX];
    int32_t n = 0;

    if (peers->nranks > HKT__PLAN_RANKS_MAX)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "messages on devices serve up to %d ranks, not %d", HKT__PLAN_RANKS_MAX,
                         (int)peers->nranks);
    for (int32_t peer = 0; peer < peers->nranks; peer++)
        for (int is_send = 0; is_send < 2 && peer != peers->rank; is_send++, n++) {
            const int16_t buf = is_send ? HKT__PLAN_IN : HKT__PLAN_OUT;
            const struct hkt__plan_span at = {n, 0, QUEUES_MAX};

            queues[n] = (struct hkt__plan_queue_row){.kind = is_send ? HKT__PLAN_TX : HKT__PLAN_RX, .peer = peer, .first = n,
                                                     .count = 1};
            entries[n] = (struct hkt__plan_entry){.kind = is_send ? HKT__PLAN_SEND : HKT__PLAN_RECV, .arg_first = n,
                                                  .arg_count = is_send, .dst = is_send ? -1 : n, .feeder = -1};
            operands[n] = (struct hkt__plan_operand){.rank = peers->rank, .buf = buf, .like_buf = buf, .count = 1, .at = at,
                                                     .like = at};
        }
    const struct hkt__plan_program program = {
        .coll = HKT_SEND_RECV, .algo = "messages", .nranks = peers->nranks, .rank = peers->rank, .cuts = 1, .nlanes = 1,
        .nqueues = n, .nentries = n, .noperands = n, .queues = queues, .entries = entries, .operands = operands};

    return hkt__cuda_plan_make(messages->module, peers, &program, &messages->plan);
}

enum hkt_status hkt__cuda_messages_make(const struct hkt__cuda_module *module, const struct hkt__cuda_peers *peers,
                                        struct hkt__cuda_messages **out_messages)
{
    struct hkt__cuda_messages *messages = hkt__calloc(1, sizeof *messages);
    enum hkt_status status = HKT_ERR_NOMEM;
    void *table = NULL;
    int rc;

    if (messages != NULL)
        messages->sorted = hkt__calloc(HKT__CUDA_MESSAGES_MAX, sizeof *messages->sorted);
    if (messages == NULL || messages->sorted == NULL) {
        hkt__free(messages);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for messages of a device");
    }
    messages->module = module;
    rc = module->device_alloc(&table, HKT__CUDA_MESSAGES_MAX * sizeof *messages->table, peers->device);
    messages->table = table;
    status = rc == 0 ? make_plan(messages, peers)
                     : hkt__fail(HKT_ERR_SYSTEM, "allocating for messages of a GPU: %s", module->error_text(rc));
    if (status < 0)
        hkt__cuda_messages_free(messages);
    else
        *out_messages = messages;
    return status;
}

void hkt__cuda_messages_free(struct hkt__cuda_messages *messages)
{
    if (messages == NULL)
        return;
    hkt__cuda_plan_free(messages->plan);
    if (messages->table != NULL)
        (void)messages->module->device_free(messages->table);
    hkt__free(messages->sorted);
    hkt__free(messages);
}

int32_t hkt__cuda_messages_channels(const struct hkt__cuda_messages *messages, int32_t blocks_max)
{
    const struct hkt__cuda_peers *peers = hkt__cuda_plan_peers(messages->plan);
    const int32_t queues = hkt__cuda_plan_program(messages->plan)->nqueues;
    const int32_t each = queues == 0 ? 1 : HKT__PLAN_CURSORS_MAX / queues;
    const int32_t all = each * hkt__cuda_plan_blocks(messages->plan, blocks_max);

    return all < peers->shape.lanes ? all : peers->shape.lanes;
}

/** Replicas that a message is cut for: as plan_message_part in kernels/plan.cuh. */
static int32_t parts_of(const struct hkt__plan_args *args, size_t bytes)
{
    const size_t worth = bytes / args->part_bytes;

    return worth < 1 ? 1 : worth < (size_t)args->parts_most ? (int32_t)worth : args->parts_most;
}

/** Sorts messages by queue, their order kept, and says how the launch is cut. Returns how many are not empty. */
static size_t sort(const struct hkt__cuda_messages *messages, const struct hkt__cuda_messages_call *call,
                   struct hkt__plan_args *args)
{
    size_t ends[QUEUES_MAX] = {0}, first = 0;
    int32_t rounds = 0;

    args->channels = 1;
    for (size_t i = 0; i < call->count; i++) {
        const struct hkt__cuda_message *m = &call->list[i];
        const int32_t parts = parts_of(args, m->bytes);

        ends[queue_of(args->rank, m->peer, m->is_send)] += m->bytes > 0;
        args->channels = parts > args->channels ? parts : args->channels;
    }
    for (int32_t q = 0; q < args->nqueues; q++) {
        const size_t of_queue = ends[q];

        args->firsts[q] = (uint16_t)first;
        ends[q] = first;
        first += of_queue;
        rounds = (int32_t)of_queue > rounds ? (int32_t)of_queue : rounds;
    }
    args->firsts[args->nqueues] = (uint16_t)first;
    args->nslices = rounds * args->channels;
    for (size_t i = 0; i < call->count; i++) {
        const struct hkt__cuda_message *m = &call->list[i];

        if (m->bytes > 0)
            messages->sorted[ends[queue_of(args->rank, m->peer, m->is_send)]++] =
                (struct hkt__plan_message){(uint64_t)(uintptr_t)m->memory, m->bytes};
    }
    return first;
}

/** Few messages go with the launch, many to the table before it. */
static enum hkt_status tell(const struct hkt__cuda_messages *messages, const struct hkt__cuda_messages_call *call, size_t count,
                            struct hkt__plan_args *args)
{
    const struct hkt__kernel_on on = {.stream = call->stream, .blocks_max = 1};
    const int device = hkt__cuda_plan_peers(messages->plan)->device;
    struct hkt__plan_note note = {.table = messages->table};
    int before, back, rc;

    if (count <= HKT__PLAN_MESSAGES_HERE) {
        for (size_t i = 0; i < count; i++) {
            args->displs[i / HKT__PLAN_RANKS_MAX][i % HKT__PLAN_RANKS_MAX] = messages->sorted[i].address;
            args->counts[i / HKT__PLAN_RANKS_MAX][i % HKT__PLAN_RANKS_MAX] = messages->sorted[i].bytes;
        }
        return HKT_OK;
    }
    args->table = messages->table;
    rc = messages->module->device_use(device, &before);
    if (rc == 0) {
        for (size_t at = 0; at < count && rc == 0; at += note.count, note.table += note.count) {
            note.count = count - at < HKT__PLAN_MESSAGES_HERE ? (uint32_t)(count - at) : HKT__PLAN_MESSAGES_HERE;
            memcpy(note.messages, messages->sorted + at, note.count * sizeof *note.messages);
            rc = messages->module->plan_note(&note, &on);
        }
        back = messages->module->device_use(before, &(int){0});
        rc = rc != 0 ? rc : back;
    }
    return rc == 0 ? HKT_OK : hkt__fail(HKT_ERR_SYSTEM, "telling a GPU of messages: %s", messages->module->error_text(rc));
}

enum hkt_status hkt__cuda_messages_launch(struct hkt__cuda_messages *messages, const struct hkt__cuda_messages_call *call)
{
    struct hkt__plan_args args = *hkt__cuda_plan_args(messages->plan);
    const struct hkt__cuda_start start = {.stream = call->stream, .blocks_max = call->blocks_max, .op = HKT_OP_COUNT,
                                          .dtype = HKT_UINT8};
    size_t count;

    if (call->count > HKT__CUDA_MESSAGES_MAX)
        return hkt__fail(HKT_ERR_INVALID, "%zu messages in one launch on a GPU: at most %d", call->count, HKT__CUDA_MESSAGES_MAX);
    args.part_bytes = call->part_bytes > 0 ? call->part_bytes : PART_BYTES;
    args.parts_most = call->channels;
    args.ll_most = call->no_ll ? 0 : LL_BYTES;
    args.elem_bytes = 1;
    count = sort(messages, call, &args);
    if (count == 0)
        return HKT_OK;
    const enum hkt_status rc = tell(messages, call, count, &args);

    return rc < 0 ? rc : hkt__cuda_plan_start(messages->plan, &args, &start);
}
