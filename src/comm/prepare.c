/* What depends on the kind of call alone, not on its buffers: the algorithm, the plan, slices, the kernel. Calls repeat, so
 * the answers are kept: a direct-mapped table per communicator, looked up by coll, dtype, op, place, root and count.
 * The v-variants, whose counts are arrays, are prepared anew each time, but for the choice, which depends on the bytes of the whole
 * vector alone and takes 3 us, or 20 where there are slices to weigh (2 ranks, all_gather_v of 32 bytes: 2.6 us with it, 0.3
 * without). */

#include "comm/call.h"
#include "core/log.h"
#include "cost/select.h"
#include "exec/call.h"
#include "sched/lower.h"

static size_t sum_counts(const size_t *counts, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/** Elements of the collective's whole vector, for the choice; the same on all ranks. For all_to_all_v nobody knows it:
 *  its algorithms do not depend on it. */
size_t hkt__vector_elems(const struct hkt__call *call)
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

/** What communicator and call say about a case. */
static struct hkt__select_args select_args(const struct hkt__call *call)
{
    const struct hkt_comm *comm = call->comm;
    const size_t bytes = hkt__vector_elems(call) * hkt_dtype_size(call->dtype);

    return (struct hkt__select_args){
        .coll = call->coll, .nranks = comm->nranks, .in_place = call->in_place && hkt__in_place_is_agreed(call->coll),
        .direct_ok = comm->routes.all_memory, .user_ok = comm->routes.all_user || call->registered,
        .copy_ok = comm->routes.all_copy, .ordered = comm->options.ordered, .bytes = bytes,
        .slice_bytes = hkt__comm_slice_bytes(comm, bytes), .slices_set = comm->options.slice_bytes_set > 0,
        .lanes = comm->options.channels, .lanes_max = HKT__COLL_LANES, .scratch_bytes = comm->env.scratch_bytes, .site = &comm->site,
        .tuned = hkt__comm_tuned(comm), .wish = call->is_internal ? NULL : &comm->options.wish};
}

bool hkt__prepare_serves(const struct hkt__call *call, bool in_place)
{
    struct hkt__select_args args = select_args(call);

    args.in_place = in_place && hkt__in_place_is_agreed(call->coll);
    return hkt__select_serves(&args);
}

size_t hkt__block_elems_max(const struct hkt__call *call)
{
    const size_t *counts = call->coll == HKT_ALL_GATHER_V ? call->blocks.recv_counts : call->blocks.send_counts;
    size_t most = 0;

    if (!hkt__coll_is_v(call->coll))
        return call->count;
    if (call->coll == HKT_ALL_TO_ALL_V)
        return 0; /* known to nobody: one slice, frames cut it */
    for (int i = 0; i < call->comm->nranks; i++)
        most = counts[i] > most ? counts[i] : most;
    return most;
}

static enum hkt_status slice(const struct hkt__call *call, struct hkt__prepared *prepared)
{
    const struct hkt_comm *comm = call->comm;
    const struct hkt__sched *shape = hkt__plan_shape(prepared->cached->plan);
    const bool direct = hkt__plan_is_direct(prepared->cached->plan);
    const size_t scratch_bytes = hkt__exec_instance_bytes(&comm->env, direct) * HKT__SCRATCH_INSTANCES;

    if (prepared->choice.algo->user_direct) {
        prepared->bind.channels = prepared->bind.nslices = 1; /* nothing is staged: nothing to cut */
        return HKT_OK;
    }
    prepared->bind.channels = prepared->choice.cut.lanes;
    return hkt__lower_slices(shape, hkt__block_elems_max(call), hkt_dtype_size(call->dtype), prepared->choice.cut.slice_bytes,
                             scratch_bytes, HKT__SCRATCH_INSTANCES, &prepared->bind.nslices, &prepared->bind.scratch_pitch);
}

/** The counts that all ranks pass, in 31 bits: messages carry their own count alone, and signals none. FNV-1a over words
 *  (Fowler, Noll, Vo, 1991). */
static int32_t counts_digest(const struct hkt__call *call)
{
    const size_t *counts = call->coll == HKT_ALL_GATHER_V ? call->blocks.recv_counts : call->blocks.send_counts;
    uint64_t hash = 0xcbf29ce484222325u;

    for (int i = 0; i < call->comm->nranks; i++)
        hash = (hash ^ counts[i]) * 0x100000001b3u;
    return (int32_t)((hash ^ hash >> 31) & 0x7fffffff);
}

/** The call's identity without its count: also what ranks compare, once the algorithm is put in. */
static uint32_t call_word(const struct hkt__call *call)
{
    const unsigned op = call->op == HKT_OP_COUNT ? HKT__CALL_NO_OP : (unsigned)call->op;

    return hkt__call_pack(call->coll, call->dtype, op, 0,
                          (call->in_place ? HKT__CALL_IN_PLACE : 0) | (call->registered ? HKT__CALL_REGISTERED : 0) |
                              (call->is_internal ? HKT__CALL_INTERNAL : 0));
}

struct hkt__stamp hkt__call_stamp(const struct hkt__call *call)
{
    const unsigned op = call->op == HKT_OP_COUNT ? HKT__CALL_NO_OP : (unsigned)call->op;
    const bool tell_in_place = call->in_place && hkt__in_place_is_agreed(call->coll);

    return (struct hkt__stamp){
        .call = hkt__call_pack(call->coll, call->dtype, op, 0, tell_in_place ? HKT__CALL_IN_PLACE : 0),
        .root = hkt__call_has_digest(call->coll) ? counts_digest(call) : call->root,
        .count = hkt__coll_is_v(call->coll) ? 0 : call->count};
}

/** Where a kind of call is kept. */
static struct hkt__prepared *find_slot(const struct hkt__call *call, uint32_t key)
{
    const uint64_t hash = (key ^ (uint64_t)call->count << 7 ^ (uint64_t)call->root << 32) * 0x9E3779B97F4A7C15u;

    return &call->comm->planning.prepared[hash >> 55];
}

/** Choose, unless the slot knows the choice for such a call. */
static enum hkt_status choose(const struct hkt_comm *comm, const struct hkt__select_args *args, const struct hkt__prepared *slot,
                              struct hkt__prepared *prepared)
{
    prepared->bytes = args->bytes;
    if (slot->choice.algo == NULL || slot->key != prepared->key || slot->bytes != args->bytes)
        return hkt__select(args, &comm->routes.prices, comm->planning.work, &prepared->choice);
    prepared->choice = slot->choice;
    return HKT_OK;
}

enum hkt_status hkt__prepare_far(const struct hkt__call *call, bool user_ok, const struct hkt__algo **out_algo,
                                 struct hkt__cached_plan **out_cached)
{
    struct hkt_comm *comm = call->comm;
    struct hkt__select_args args = select_args(call);
    struct hkt__prepared prepared = {.key = call_word(call) ^ hkt__call_pack(0, 0, 0, 0, HKT__CALL_ON_DEVICE)};

    if (user_ok != call->registered)
        prepared.key ^= hkt__call_pack(0, 0, 0, 0, HKT__CALL_REGISTERED);
    args.direct_ok = true; /* scratch of all ranks lies in arenas */
    args.user_ok = user_ok;
    args.copy_ok = false;
    args.tuned = NULL; /* measured in memory of the host */
    struct hkt__prepared *slot = find_slot(call, prepared.key);
    const enum hkt_status rc = choose(comm, &args, slot, &prepared);

    if (rc < 0)
        return rc;
    *slot = prepared;
    *out_algo = prepared.choice.algo;
    return hkt__plans_get(comm, prepared.choice.algo, call->root < 0 ? 0 : call->root, call->in_place, out_cached);
}

/** Into a slot that may hold the same kind of call. */
static enum hkt_status prepare_anew(const struct hkt__call *call, struct hkt__prepared *slot)
{
    struct hkt_comm *comm = call->comm;
    const struct hkt__select_args args = select_args(call);
    struct hkt__prepared prepared = {.key = call_word(call), .root = call->root, .count = call->count};
    const unsigned op = prepared.key >> 10 & 63u;
    enum hkt_status rc = choose(comm, &args, slot, &prepared);

    if (rc == HKT_OK)
        rc = hkt__plans_get(comm, prepared.choice.algo, call->root < 0 ? 0 : call->root, call->in_place, &prepared.cached);
    if (rc == HKT_OK)
        rc = slice(call, &prepared);
    if (rc == HKT_OK)
        rc = hkt__run_reserve(comm->run, prepared.cached->plan, prepared.bind.channels);
    if (rc < 0)
        return rc;
    prepared.generation = comm->planning.plans.generation;
    prepared.is_plain = !hkt__coll_is_v(call->coll) && hkt__site_ranks(&comm->site, prepared.choice.algo) == NULL;
    prepared.bind.elem_bytes = hkt_dtype_size(call->dtype);
    prepared.bind.dtype = call->dtype;
    prepared.bind.empty_frames = call->count == 0 && !hkt__coll_is_v(call->coll);
    prepared.bind.grid = (struct hkt__grid){.cuts = hkt__plan_shape(prepared.cached->plan)->cuts, .count = call->count};
    if (prepared.is_plain && prepared.bind.grid.cuts == 1 && prepared.bind.nslices == 1)
        prepared.bind.chunk_bytes = call->count * prepared.bind.elem_bytes;
    prepared.bind.stamp = hkt__call_stamp(call);
    prepared.bind.stamp.call |= hkt__call_pack(0, 0, 0, (unsigned)(prepared.choice.algo - hkt__algos), 0) |
                                hkt__call_cut(prepared.bind.nslices, prepared.bind.channels);
    prepared.bind.streaming = hkt__vector_elems(call) * hkt_dtype_size(call->dtype) >= HKT__NT_BYTES;
    if (call->op != HKT_OP_COUNT) {
        const enum hkt_op built_in = op < HKT_OP_USER ? call->op : HKT_SUM;

        prepared.bind.reduce = hkt__reduce_get(built_in, call->dtype, hkt__isa_best());
        prepared.bind.spread = hkt__spread_get(built_in, call->dtype, hkt__isa_best());
    }
    if (hkt__log_level(HKT__SUB_PLAN) >= HKT__LOG_INFO)
        hkt__choice_log(comm, &args, &prepared.choice, &prepared.bind);
    *slot = prepared;
    return HKT_OK;
}

enum hkt_status hkt__prepare(const struct hkt__call *call, struct hkt__prepared **out_prepared)
{
    struct hkt_comm *comm = call->comm;
    const uint32_t key = call_word(call);
    struct hkt__prepared *slot = find_slot(call, key);

    *out_prepared = slot;
    if (slot->choice.algo != NULL && slot->key == key && slot->count == call->count && slot->root == call->root &&
        slot->generation == comm->planning.plans.generation && !hkt__coll_is_v(call->coll))
        return HKT_OK;
    return prepare_anew(call, slot);
}
