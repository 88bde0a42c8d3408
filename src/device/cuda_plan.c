/* Arenas, programs on the device, launches: see cuda_plan.h. */
#include "device/cuda_plan.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/mem.h"

#define SLOTS_BYTES_MOST ((size_t)20 << 20) /* of an arena by default: Simple; */
#define LL_BYTES_MOST ((size_t)6 << 20)     /* LL, of which half is data; */
#define SCRATCH_BYTES_MOST ((size_t)16 << 20) /* scratch */

struct hkt__cuda_plan {
    const struct hkt__cuda_module *module;
    const struct hkt__cuda_peers *peers;
    struct hkt__plan_program program; /* its arrays are NULL */
    int32_t multiprocessors;
    char *image;                      /* on the device: arenas, then the program's arrays */
    struct hkt__plan_args args;       /* what all calls have alike */
};

static enum hkt_status failed(const struct hkt__cuda_module *module, int rc, const char *what)
{
    return hkt__fail(HKT_ERR_SYSTEM, "%s: %s", what, module->error_text(rc));
}

/* --- Arenas ---------------------------------------------------------------------------------------------------------- */

static uint32_t bounded(size_t all, size_t parts, uint32_t least, uint32_t most)
{
    const size_t bytes = all / parts / 128 * 128;

    return bytes < least ? least : bytes > most ? most : (uint32_t)bytes;
}

void hkt__cuda_shape_default(int nranks, struct hkt__cuda_shape *out_shape)
{
    const size_t frames = (size_t)nranks * HKT__PLAN_LANES_MAX * HKT__PLAN_SLOTS;

    *out_shape = (struct hkt__cuda_shape){
        .nranks = nranks,
        .lanes = HKT__PLAN_LANES_MAX,
        .slot_bytes = bounded(SLOTS_BYTES_MOST, frames, 2048, 65536),
        .ll_bytes = bounded(LL_BYTES_MOST / 2, frames, 512, 8192),
        .scratch_bytes = SCRATCH_BYTES_MOST / HKT__PLAN_LANES_MAX,
    };
}

/** Gives the next `bytes` of a layout, from a line on that nothing else shares. */
static uint64_t take(struct hkt__plan_layout *layout, size_t bytes)
{
    const uint64_t at = layout->bytes;

    layout->bytes += hkt__round_up(bytes, 128);
    return at;
}

static struct hkt__plan_layout layout_of(const struct hkt__cuda_shape *shape)
{
    const size_t lanes = (size_t)shape->lanes, channels = (size_t)shape->nranks * lanes, word = sizeof(uint64_t);
    struct hkt__plan_layout layout = {0};

    layout.published = take(&layout, 4 * word);
    layout.own = take(&layout, channels * 4 * word);
    layout.rounds = take(&layout, lanes * word);
    layout.came = take(&layout, channels * word);
    layout.room[0] = take(&layout, channels * word);
    layout.room[1] = take(&layout, channels * word);
    layout.finished = take(&layout, channels * word);
    layout.slots = take(&layout, channels * HKT__PLAN_SLOTS * shape->slot_bytes);
    layout.ll = take(&layout, channels * HKT__PLAN_SLOTS * shape->ll_bytes * 2);
    layout.stage = take(&layout, lanes * shape->ll_bytes);
    layout.scratch = take(&layout, lanes * shape->scratch_bytes);
    return layout;
}

size_t hkt__cuda_arena_bytes(const struct hkt__cuda_shape *shape)
{
    return layout_of(shape).bytes;
}

/** Waits for what a stream of our own was given; no call that would disturb a capture of the user's. */
static int settle(const struct hkt__cuda_module *module, void *stream, int device)
{
    int rc;

    while ((rc = module->stream_query(stream, device)) == HKT__CUDA_NOT_READY)
        sched_yield();
    return rc;
}

/** to = from, or 0 where from is NULL, on a stream of our own, and waits. */
static int fill(const struct hkt__cuda_module *module, int device, void *to, const void *from, size_t bytes)
{
    void *stream;
    int before, gone, rc = module->device_use(device, &before);

    if (rc != 0)
        return rc;
    rc = module->stream_create(&stream, device);
    if (rc == 0) {
        rc = from == NULL ? module->stream_set(to, 0, bytes, stream) : module->stream_copy(to, from, bytes, stream);
        if (rc == 0)
            rc = settle(module, stream, device);
        gone = module->stream_destroy(stream);
        rc = rc != 0 ? rc : gone;
    }
    gone = module->device_use(before, &device);
    return rc != 0 ? rc : gone;
}

enum hkt_status hkt__cuda_arena_clear(const struct hkt__cuda_module *module, const struct hkt__cuda_peers *peers)
{
    const int rc = fill(module, peers->device, peers->arenas[peers->rank], NULL, hkt__cuda_arena_bytes(&peers->shape));

    return rc == 0 ? HKT_OK : failed(module, rc, "clearing the memory that GPUs share");
}

/* --- The watch ------------------------------------------------------------------------------------------------------- */

enum hkt_status hkt__cuda_watch_make(const struct hkt__cuda_module *module, int device, struct hkt__plan_watch **out_watch,
                                     struct hkt__plan_watch **out_on_device)
{
    void *watch;
    const int rc = module->mapped_alloc(&watch, sizeof(struct hkt__plan_watch));

    (void)device; /* it is at one address for all */
    if (rc != 0)
        return failed(module, rc, "memory that a GPU and the host share");
    *out_watch = *out_on_device = watch;
    return HKT_OK;
}

void hkt__cuda_watch_free(const struct hkt__cuda_module *module, struct hkt__plan_watch *watch)
{
    if (watch != NULL)
        (void)module->mapped_free(watch);
}

void hkt__cuda_abort(struct hkt__plan_watch *watch)
{
    __atomic_store_n(&watch->abort, 1, __ATOMIC_RELAXED);
}

void hkt__cuda_watch_describe(const struct hkt__plan_watch *watch, char *out_text, size_t bytes)
{
    const uint64_t waiting = __atomic_load_n(&watch->waiting, __ATOMIC_RELAXED);
    const unsigned kind = (unsigned)(waiting & 255), peer = (unsigned)(waiting >> 8 & 0xffffff);

    if (__atomic_load_n(&watch->aborted, __ATOMIC_RELAXED) == 0)
        out_text[0] = '\0';
    else if (kind == 0)
        snprintf(out_text, bytes, "its own work");
    else
        snprintf(out_text, bytes, "%s rank %u in slice %u", kind == 1 + HKT__PLAN_RX ? "a message of" : "room for a message to",
                 peer, (unsigned)(waiting >> 32));
}

/* --- Plans ----------------------------------------------------------------------------------------------------------- */

static enum hkt_status check(const struct hkt__cuda_peers *peers, const struct hkt__plan_program *program)
{
    if (peers->nranks > HKT__PLAN_RANKS_MAX)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "plans on devices serve up to %d ranks, not %d", HKT__PLAN_RANKS_MAX,
                         (int)peers->nranks);
    if (program->nlanes > peers->shape.lanes || peers->shape.lanes > HKT__PLAN_LANES_MAX)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "a plan of %d lanes where GPUs have channels for %d (at most %d)",
                         (int)program->nlanes, (int)peers->shape.lanes, HKT__PLAN_LANES_MAX);
    if (program->nqueues > HKT__PLAN_CURSORS_MAX)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "a plan of %d queues, and a block of a GPU serves %d", (int)program->nqueues,
                         HKT__PLAN_CURSORS_MAX);
    if (program->user_direct && !peers->is_one_process && peers->pools == NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "the algorithm reads buffers of other processes, which GPUs reach in pools only");
    for (int32_t i = 0; i < program->nentries; i++)
        if (program->entries[i].kind == HKT__PLAN_REDUCE && program->entries[i].arg_count > HKT__KERNEL_SRCS_MAX)
            return hkt__fail(HKT_ERR_UNSUPPORTED, "a reduction of %d inputs, and kernels take %d at a time",
                             (int)program->entries[i].arg_count, HKT__KERNEL_SRCS_MAX);
    return HKT_OK;
}

/** Appends an array to the image: copied where there is one to copy to. Returns where it will be on the device. */
static const char *append(const struct hkt__cuda_plan *plan, char *image, size_t *at, const void *from, size_t bytes)
{
    const char *there = (const char *)((uintptr_t)plan->image + *at); /* no image yet: nobody looks there */

    if (image != NULL && bytes > 0)
        memcpy(image + *at, from, bytes);
    *at += hkt__round_up(bytes, 16);
    return there;
}

/** Writes the image, or with NULL only measures it; plan->args point into it. */
static size_t write_image(struct hkt__cuda_plan *plan, const struct hkt__plan_program *program, char *image)
{
    const struct hkt__cuda_peers *peers = plan->peers;
    const size_t table = (size_t)peers->nranks * sizeof(void *);
    struct hkt__plan_args *args = &plan->args;
    size_t at = 0;

    args->arenas = (char *const *)append(plan, image, &at, peers->arenas, table);
    args->queues = (const void *)append(plan, image, &at, program->queues, (size_t)program->nqueues * sizeof *program->queues);
    args->entries = (const void *)append(plan, image, &at, program->entries, (size_t)program->nentries * sizeof *program->entries);
    args->operands = (const void *)append(plan, image, &at, program->operands,
                                          (size_t)program->noperands * sizeof *program->operands);
    args->needs = (const void *)append(plan, image, &at, program->needs, (size_t)program->nneeds * sizeof *program->needs);
    return at;
}

/** The image on the device. Allocations are allowed to a thread that captures if it says that it knows. */
static enum hkt_status upload(struct hkt__cuda_plan *plan, const struct hkt__plan_program *program)
{
    const struct hkt__cuda_module *module = plan->module;
    const size_t bytes = write_image(plan, program, NULL);
    char *image = hkt__calloc(bytes, 1);
    void *there = NULL;
    int mode = 2, rc;

    if (image == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a plan of %zu bytes", bytes);
    rc = module->capture_mode(&mode);
    if (rc == 0) {
        rc = module->device_alloc(&there, bytes, plan->peers->device);
        if (rc == 0) {
            plan->image = there;
            write_image(plan, program, image);
            rc = fill(module, plan->peers->device, there, image, bytes);
        }
        (void)module->capture_mode(&mode);
    }
    hkt__free(image);
    return rc == 0 ? HKT_OK : failed(module, rc, "copying a plan to a GPU");
}

static void fill_args(struct hkt__cuda_plan *plan)
{
    const struct hkt__cuda_peers *peers = plan->peers;
    const struct hkt__plan_program *program = &plan->program;
    struct hkt__plan_args *args = &plan->args;

    args->watch = peers->watch_on_device;
    args->layout = layout_of(&peers->shape);
    args->scratch_bytes = peers->shape.scratch_bytes;
    args->slot_bytes = peers->shape.slot_bytes;
    args->ll_bytes = peers->shape.ll_bytes;
    args->rank = peers->rank;
    args->nranks = peers->nranks;
    args->lanes = peers->shape.lanes;
    args->nlanes = program->nlanes;
    args->cuts = program->cuts;
    args->nqueues = program->nqueues;
    args->direct = (int16_t)program->direct;
    args->user_direct = (int16_t)program->user_direct;
}

static int load_kernels(const struct hkt__cuda_module *module, int device)
{
    int before, back, rc = module->device_use(device, &before);

    if (rc != 0)
        return rc;
    rc = module->plan_load();
    back = module->device_use(before, &device);
    return rc != 0 ? rc : back;
}

enum hkt_status hkt__cuda_plan_make(const struct hkt__cuda_module *module, const struct hkt__cuda_peers *peers,
                                    const struct hkt__plan_program *program, struct hkt__cuda_plan **out_plan)
{
    struct hkt__cuda_plan *plan;
    int multiprocessors = 0, rc;
    enum hkt_status status = check(peers, program);

    if (status < 0)
        return status;
    rc = module->device_multiprocessors(peers->device, &multiprocessors);
    if (rc != 0)
        return failed(module, rc, "asking for the multiprocessors of a GPU");
    if (multiprocessors < peers->ranks_here)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%d ranks share a GPU of %d multiprocessors, and each needs one",
                         (int)peers->ranks_here, multiprocessors);
    rc = load_kernels(module, peers->device);
    if (rc != 0)
        return failed(module, rc, "loading the kernels of plans");
    plan = hkt__calloc(1, sizeof *plan);
    if (plan == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a plan");
    plan->module = module;
    plan->peers = peers;
    plan->multiprocessors = multiprocessors;
    plan->program = *program;
    plan->program.queues = NULL;
    plan->program.entries = NULL;
    plan->program.operands = NULL;
    plan->program.needs = NULL;
    status = upload(plan, program);
    if (status < 0) {
        hkt__cuda_plan_free(plan);
        return status;
    }
    fill_args(plan);
    *out_plan = plan;
    return HKT_OK;
}

void hkt__cuda_plan_free(struct hkt__cuda_plan *plan)
{
    if (plan == NULL)
        return;
    if (plan->image != NULL)
        (void)plan->module->device_free(plan->image);
    hkt__free(plan);
}

const struct hkt__plan_program *hkt__cuda_plan_program(const struct hkt__cuda_plan *plan)
{
    return &plan->program;
}

const struct hkt__cuda_peers *hkt__cuda_plan_peers(const struct hkt__cuda_plan *plan)
{
    return plan->peers;
}

/* --- Launches -------------------------------------------------------------------------------------------------------- */

/** The word that tells peers in which pool a buffer lies, and where; 0: in none. */
static uint64_t place_in_pools(const struct hkt__cuda_pools *pools, const void *p)
{
    const uintptr_t at = (uintptr_t)p;

    for (uint64_t i = 0; i < HKT__PLAN_POOLS && pools != NULL && p != NULL; i++) {
        const uintptr_t own = (uintptr_t)pools->own[i];

        if (own != 0 && at >= own && at - own < pools->bytes[i])
            return i << HKT__PLAN_POOL_SHIFT | (at - own + 1);
    }
    return 0;
}

static void bind_blocks(struct hkt__plan_args *args, const struct hkt__plan_program *program, const struct hkt__cuda_call *call)
{
    for (int buf = 0; buf < 2; buf++) {
        args->has_counts[buf] = call->counts[buf] != NULL;
        args->has_displs[buf] = call->displs[buf] != NULL;
        for (int32_t i = 0; i < program->blocks[buf]; i++) {
            args->counts[buf][i] = call->counts[buf] != NULL ? call->counts[buf][i] : 0;
            args->displs[buf][i] = call->displs[buf] != NULL ? call->displs[buf][i] : 0;
        }
    }
}

int32_t hkt__cuda_plan_blocks(const struct hkt__cuda_plan *plan, int32_t blocks_max)
{
    const int32_t fit = plan->multiprocessors / plan->peers->ranks_here;

    return blocks_max < fit ? blocks_max : fit;
}

/** Replicas that one block serves: as many as make the blocks as few as the call and the device allow, and no more than a
 *  block has cursors for. */
static int32_t replicas_per_block(const struct hkt__cuda_plan *plan, int32_t blocks_max, int32_t channels)
{
    const int32_t blocks = hkt__cuda_plan_blocks(plan, blocks_max), queues = plan->program.nqueues;
    const int32_t most = queues == 0 ? channels : HKT__PLAN_CURSORS_MAX / queues, each = (channels - 1) / blocks + 1;

    return each < most ? each : most;
}

const struct hkt__plan_args *hkt__cuda_plan_args(const struct hkt__cuda_plan *plan)
{
    return &plan->args;
}

enum hkt_status hkt__cuda_plan_start(const struct hkt__cuda_plan *plan, struct hkt__plan_args *args,
                                     const struct hkt__cuda_start *start)
{
    struct hkt__kernel_on on = {.stream = start->stream};
    int before, rc, back;

    args->replicas_here = replicas_per_block(plan, start->blocks_max, args->channels);
    on.blocks_max = (args->channels - 1) / args->replicas_here + 1;
    rc = plan->module->device_use(plan->peers->device, &before);
    if (rc == 0) {
        rc = plan->module->plan(args, start->op, start->dtype, &on);
        back = plan->module->device_use(before, &(int){0});
        rc = rc != 0 ? rc : back;
    }
    return rc == 0 ? HKT_OK : failed(plan->module, rc, "launching work on a GPU");
}

enum hkt_status hkt__cuda_plan_launch(const struct hkt__cuda_plan *plan, const struct hkt__cuda_call *call,
                                      const struct hkt__cuda_cut *cut)
{
    const struct hkt__cuda_peers *peers = plan->peers;
    struct hkt__plan_args args = plan->args;
    const struct hkt__cuda_start start = {.stream = call->stream, .blocks_max = call->blocks_max, .dtype = call->dtype,
                                          .op = plan->program.reduces || call->factor != NULL ? call->op : HKT_OP_COUNT};

    args.in = (char *)(uintptr_t)call->in;
    args.out = call->out;
    args.pools = peers->pools != NULL ? peers->pools->table : NULL;
    args.in_pool = place_in_pools(peers->pools, call->in);
    args.out_pool = place_in_pools(peers->pools, call->out);
    args.count = call->count;
    args.elem_bytes = (uint32_t)hkt_dtype_size(call->dtype);
    args.nslices = cut->nslices;
    args.channels = cut->channels;
    args.scratch_pitch = cut->scratch_pitch;
    args.ll_most = cut->use_ll ? UINT64_MAX : 0;
    bind_blocks(&args, &plan->program, call);
    if (call->factor != NULL) {
        args.is_scaled = 1;
        args.factor = call->factor->factor;
        args.integer = call->factor->integer;
    }
    return hkt__cuda_plan_start(plan, &args, &start);
}
