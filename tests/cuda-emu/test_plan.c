/* What could break: data that is used before it came or overwritten before it was used, by frames, words, scratch or
 * buffers of peers; counters that do not hold from one launch to the next; chunks taken for others; a rank or a block that
 * waits for ever, or for a peer that is gone.
 *
 * Every algorithm of the registry runs on 1 to 8 ranks of this process, and each call must leave the bits that the host
 * executor leaves. Everything is enqueued, inputs and results too, each rank after a delay of its own, and several calls before
 * anything is waited for: where the host waits in between, missing barriers are not seen. Written against CUDA's interface, so
 * that it runs on a GPU too. Usage: test_cuda_plan [large] */
#include "device_test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algos/registry.h"
#include "exec/device.h"
#include "plan_group.h"
#include "plan_host.h"
#include "sched/lower.h"

#define RANKS PLAN_HOST_RANKS
#define ROOM_BYTES PLAN_ROOM_BYTES

static const struct hkt__cuda_module *module;
static bool is_large; /* on a GPU: more data, the arenas that users get */

/** An algorithm on all ranks of a group, for the host and for the devices. */
struct team {
    struct plan_group *group;
    const struct hkt__algo *algo;
    bool in_place;
    struct hkt__sched *scheds[RANKS];
    struct hkt__plan *plans[RANKS];
    struct hkt__cuda_plan *device[RANKS];
};

/** False: the algorithm does not serve so many ranks. */
static bool team_make(struct team *t, struct plan_group *g, const struct hkt__algo *algo, bool in_place)
{
    *t = (struct team){g, algo, in_place, {NULL}, {NULL}, {NULL}};
    if (algo->restriction != NULL && algo->restriction(g->nranks, in_place)[0] != '\0')
        return false;
    for (int r = 0; r < g->nranks; r++) {
        const struct hkt__algo_case c = {.nranks = g->nranks, .rank = r, .root = g->nranks - 1, .in_place = in_place};
        const bool several = g->nranks > 1;

        assert_int_equal(hkt__algo_build_case(algo, &c, &t->scheds[r]), HKT_OK);
        assert_int_equal(hkt__lower(t->scheds[r]), HKT_OK);
        assert_int_equal(hkt__plan_create(t->scheds[r], several && algo->info.needs_direct, several && algo->user_direct,
                                          &t->plans[r]), HKT_OK);
        if (hkt__device_plan_make(module, &g->peers[r], t->plans[r], &t->device[r]) != HKT_OK)
            fail_msg("%s", hkt_last_error());
    }
    return true;
}

static void team_free(struct team *t)
{
    for (int r = 0; r < t->group->nranks; r++) {
        hkt__cuda_plan_free(t->device[r]);
        hkt__plan_destroy(t->plans[r]);
        hkt__sched_destroy(t->scheds[r]);
    }
}

/** How a call is made. */
struct how {
    enum hkt_dtype dtype;
    enum hkt_op op;
    size_t count, slice_bytes;
    int channels, blocks;
    bool no_ll, is_scaled;
};

/** One rank's buffers in a call: IN and OUT lie in one stretch, of the device's room and of the host's. */
struct buffers {
    size_t at, bytes;                  /* in the rooms; the results come back to the second half of the host's */
    size_t in, out;                    /* from `at` on */
    size_t in_bytes, out_bytes;
    size_t counts[2][RANKS];           /* of blocks, v-variants */
    size_t displs[2][RANKS];
    char *want;
};

struct running {
    struct team *team;
    struct how how;
    size_t largest;                    /* elements of a block */
    struct buffers of[RANKS];
};

/** Elements of the block that rank `from` has for rank `to`. */
static size_t v_count(const struct running *run, int from, int to)
{
    const int shift = run->team->algo->info.coll == HKT_ALL_TO_ALL_V ? from * 5 + to * 3
                      : run->team->algo->info.coll == HKT_ALL_GATHER_V ? from : to;

    return run->how.count * (size_t)(shift % 4) / 3;
}

static size_t v_blocks(const struct running *run, int rank, int buf, struct buffers *b)
{
    const int nblocks = run->team->scheds[rank]->blocks[buf];
    size_t total = 0;

    for (int i = 0; i < nblocks; i++) {
        const int peer = nblocks == 1 ? rank : i;

        b->counts[buf][i] = buf == HKT__IN ? v_count(run, rank, peer) : v_count(run, peer, rank);
        b->displs[buf][i] = total;
        total += b->counts[buf][i];
    }
    return total;
}

static bool is_v(const struct running *run)
{
    return !run->team->scheds[0]->uniform_blocks;
}

/** Lays out the buffers of a rank, and fills them with what the call is to work on. */
static void prepare_rank(struct running *run, int rank)
{
    struct plan_group *g = run->team->group;
    struct buffers *b = &run->of[rank];
    const struct hkt__sched *sched = run->team->scheds[rank];
    const size_t elem = hkt_dtype_size(run->how.dtype), block = run->how.count * elem;
    size_t in_bytes, out_bytes;

    if (is_v(run)) {
        in_bytes = v_blocks(run, rank, HKT__IN, b) * elem;
        out_bytes = v_blocks(run, rank, HKT__OUT, b) * elem;
        b->out = in_bytes;
    } else {
        in_bytes = (size_t)sched->blocks[0] * block;
        out_bytes = (size_t)sched->blocks[1] * block;
        b->in = (size_t)(hkt__cell_base(sched, HKT__IN) / sched->cuts) * block;
        b->out = run->team->in_place ? (size_t)(hkt__cell_base(sched, HKT__OUT) / sched->cuts) * block : in_bytes;
    }
    b->in_bytes = in_bytes;
    b->out_bytes = out_bytes;
    b->bytes = b->in + in_bytes > b->out + out_bytes ? b->in + in_bytes : b->out + out_bytes;
    b->at = g->used + (run->how.count % 3) * elem; /* not always where vectors begin */
    assert_true(b->at + b->bytes <= ROOM_BYTES);
    random_elements(g->host_room[rank] + b->at, b->bytes / elem, run->how.dtype);
    b->want = malloc(b->bytes + 1);
    assert_non_null(b->want);
    memcpy(b->want, g->host_room[rank] + b->at, b->bytes);
}

/** What rank r multiplies its input by, as its dtype has it. */
static void scalar_of(int rank, enum hkt_dtype dtype, void *out)
{
    const float factor = 1.25f + (float)rank;
    const double wide = (double)factor / 3;
    const uint64_t integer = UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)rank;

    if (dtype == HKT_F64)
        memcpy(out, &wide, sizeof wide);
    else if (dtype <= HKT_UINT64)
        memcpy(out, &integer, hkt_dtype_size(dtype));
    else
        hkt__from_f32(out, dtype, factor);
}

static struct hkt__cuda_factor factor_of(const struct running *run, int rank)
{
    struct hkt__cuda_factor factor = {.factor = 0};
    char scalar[8];

    scalar_of(rank, run->how.dtype, scalar);
    if (run->how.dtype == HKT_F64)
        memcpy(&factor.factor, scalar, sizeof factor.factor);
    else if (run->how.dtype <= HKT_UINT64)
        memcpy(&factor.integer, scalar, hkt_dtype_size(run->how.dtype));
    else
        factor.factor = (double)hkt__to_f32(scalar, run->how.dtype);
    return factor;
}

static struct hkt__cuda_call call_of(const struct running *run, int rank)
{
    struct plan_group *g = run->team->group;
    const struct buffers *b = &run->of[rank];
    char *room = g->device_room[rank] + b->at;
    struct hkt__cuda_call call = {
        .in = room + b->in, .out = room + b->out, .stream = g->streams[rank], .dtype = run->how.dtype, .op = run->how.op,
        .count = run->how.count, .block_elems_max = run->largest, .slice_bytes = run->how.slice_bytes,
        .channels_max = run->how.channels, .blocks_max = run->how.blocks, .no_ll = run->how.no_ll};

    for (int buf = 0; buf < 2 && is_v(run); buf++) {
        call.counts[buf] = b->counts[buf];
        call.displs[buf] = b->displs[buf];
    }
    return call;
}

/** What the host makes of it, cut as the device will cut it. */
static void expect(struct running *run)
{
    const int n = run->team->group->nranks;
    const struct hkt__cuda_call call = call_of(run, 0);
    struct hkt__bind binds[RANKS];
    char *scaled[RANKS] = {NULL}, scalar[8]; /* inputs that were multiplied aside */
    struct hkt__cuda_cut cut;

    if (hkt__device_plan_cut(run->team->device[0], &call, &cut) != HKT_OK)
        fail_msg("%s", hkt_last_error());
    for (int r = 0; r < n; r++) {
        const struct buffers *b = &run->of[r];
        char *base = b->want;

        if (run->how.is_scaled) {
            if (!run->team->in_place)
                base = scaled[r] = malloc(b->bytes + 1);
            assert_non_null(base);
            memmove(base, b->want, b->bytes);
            scalar_of(r, run->how.dtype, scalar);
            hkt__premultiply(base + b->in, b->want + b->in, b->in_bytes / hkt_dtype_size(run->how.dtype), run->how.dtype, scalar);
        }
        binds[r] = (struct hkt__bind){
            .in = base + b->in, .out = base + b->out, .elem_bytes = hkt_dtype_size(run->how.dtype),
            .grid = {.cuts = run->team->scheds[r]->cuts, .count = run->how.count}, .nslices = cut.nslices, .channels = 1,
            .scratch_pitch = cut.scratch_pitch, .dtype = run->how.dtype,
            .reduce = hkt__reduce_get(run->how.op, run->how.dtype, HKT__ISA_C)};
        for (int buf = 0; buf < 2 && is_v(run); buf++) {
            binds[r].grid.counts[buf] = b->counts[buf];
            binds[r].grid.displs[buf] = b->displs[buf];
        }
    }
    assert_true(plan_host_run(run->team->plans, binds, n));
    for (int r = 0; r < n; r++) {
        if (scaled[r] == NULL)
            continue;
        memcpy(run->of[r].want + run->of[r].out, scaled[r] + run->of[r].out, run->of[r].out_bytes);
        free(scaled[r]);
    }
}

/** As the communicator does: in place beforehand, else as the input is read. */
static void multiply(const struct running *run, int rank, const struct hkt__cuda_factor *factor, struct hkt__cuda_call *call)
{
    char *in = run->team->group->device_room[rank] + run->of[rank].at + run->of[rank].in;
    const struct hkt__scale_args args = {.dst = in, .src = in, .factor = factor->factor, .integer = factor->integer,
                                         .count = run->of[rank].in_bytes / hkt_dtype_size(run->how.dtype)};
    const struct hkt__kernel_on on = {.stream = call->stream, .blocks_max = 2};

    if (run->team->in_place)
        must(module->multiply(&args, run->how.dtype, &on));
    else
        call->factor = factor;
}

/** Enqueues a call on all ranks: a delay, the inputs, the plan, the results. */
static void enqueue(struct running *run, struct team *team, struct how how)
{
    struct plan_group *g = team->group;
    size_t most = 0;

    *run = (struct running){.team = team, .how = how, .largest = how.count};
    if (team->algo->info.coll == HKT_ALL_TO_ALL_V)
        run->largest = 0;
    for (int r = 0; r < g->nranks; r++) {
        prepare_rank(run, r);
        most = run->of[r].at + run->of[r].bytes > most ? run->of[r].at + run->of[r].bytes : most;
    }
    g->used = (most + 255) / 256 * 256;
    expect(run);
    for (int r = 0; r < g->nranks; r++) {
        const struct buffers *b = &run->of[r];
        const struct hkt__cuda_factor factor = how.is_scaled ? factor_of(run, r) : (struct hkt__cuda_factor){.factor = 0};
        struct hkt__cuda_call call = call_of(run, r);

        must(cudaSetDevice(g->peers[r].device));
        must(cudaLaunchHostFunc(g->streams[r], plan_dawdle, (void *)(uintptr_t)(random_bits() % 4 * 60)));
        must(cudaMemcpyAsync(g->device_room[r] + b->at, g->host_room[r] + b->at, b->bytes, cudaMemcpyHostToDevice,
                             g->streams[r]));
        if (how.is_scaled)
            multiply(run, r, &factor, &call);
        if (hkt__device_plan_enqueue(team->device[r], &call) != HKT_OK)
            fail_msg("%s", hkt_last_error());
        must(cudaMemcpyAsync(g->host_room[r] + ROOM_BYTES + b->at, g->device_room[r] + b->at, b->bytes,
                             cudaMemcpyDeviceToHost, g->streams[r]));
    }
}

/** After the streams are done: what came back is what was expected. */
static void verify(struct running *run)
{
    const struct plan_group *g = run->team->group;

    for (int r = 0; r < g->nranks; r++) {
        struct buffers *b = &run->of[r];
        const char *got = g->host_room[r] + ROOM_BYTES + b->at;

        for (size_t i = 0; i < b->bytes; i++)
            if (got[i] != b->want[i])
                fail_msg("%s %s%s, %d ranks, %zu of %s, %s: byte %zu of rank %d (in at %zu, out at %zu) is %02x, not %02x (seed %llu)",
                         hkt_coll_name(run->team->algo->info.coll), run->team->algo->info.name,
                         run->team->in_place ? " in place" : "", g->nranks, run->how.count, hkt_dtype_name(run->how.dtype),
                         hkt_op_name(run->how.op), i, r, b->in, b->out, (unsigned char)got[i], (unsigned char)b->want[i],
                         (unsigned long long)DEVICE_TEST_SEED);
        free(b->want);
    }
}

/* The calls an algorithm is tried with: few bytes by LL and by Simple, many frames and slices, blocks that serve several
 * replicas, types of all widths. `count` is of a block. */
#define CALLS 6
static struct how call_number(int k, unsigned turn)
{
#ifdef HKT__SOME_KERNELS
    static const struct { enum hkt_dtype dtype; enum hkt_op op; } kinds[] = {
        {HKT_F32, HKT_SUM}, {HKT_INT32, HKT_SUM}, {HKT_BF16, HKT_AVG}, {HKT_F32, HKT_MAX}};
#else
    static const struct { enum hkt_dtype dtype; enum hkt_op op; } kinds[] = {
        {HKT_F32, HKT_SUM}, {HKT_BF16, HKT_SUM}, {HKT_INT8, HKT_MIN}, {HKT_F64, HKT_AVG}, {HKT_UINT16, HKT_PROD},
        {HKT_F16, HKT_MAX}, {HKT_BOOL, HKT_LOR}, {HKT_INT64, HKT_BAND}, {HKT_F8E4M3, HKT_SUM}, {HKT_INT32, HKT_MAX}};
#endif
    static const struct how hows[CALLS] = {
        {.count = 1, .channels = 1, .blocks = 1},                                     /* LL, no whole word */
        {.count = 37, .channels = 1, .blocks = 1},                                    /* LL, several frames */
        {.count = 37, .channels = 1, .blocks = 1, .no_ll = true},
        {.count = 611, .channels = 2, .blocks = 2, .slice_bytes = 400, .no_ll = true}, /* slices, two blocks */
        {.count = 1100, .channels = 3, .blocks = 1, .slice_bytes = 300, .no_ll = true}, /* three replicas in one block */
        {.count = 0, .channels = 2, .blocks = 2},
    };
    struct how how = hows[k];
    const unsigned kind = (turn + (unsigned)k) % (sizeof kinds / sizeof *kinds);

    how.dtype = kinds[kind].dtype;
    how.op = kinds[kind].op;
    if (is_large)
        how.count = how.count * 97 % 100003, how.slice_bytes *= 64, how.channels *= 4, how.blocks *= 4;
    return how;
}

#ifdef HKT__SOME_KERNELS
#define MULTIPLIES false /* kernels that multiply are not among them */
#else
#define MULTIPLIES true
#endif

/** Pre-multiplied sums are of collectives that reduce, by algorithms that read only what was multiplied. */
static bool has_scaled(const struct hkt__algo *algo, bool in_place)
{
    const enum hkt_coll coll = algo->info.coll;

    return (MULTIPLIES || !in_place) && !algo->user_direct && (coll == HKT_ALL_REDUCE || coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER ||
                                  coll == HKT_REDUCE_SCATTER_V);
}

static struct how scaled_call(int k, unsigned turn)
{
#ifdef HKT__SOME_KERNELS
    static const enum hkt_dtype dtypes[] = {HKT_F32, HKT_INT32, HKT_BF16};
#else
    static const enum hkt_dtype dtypes[] = {HKT_F32, HKT_INT8, HKT_BF16, HKT_F64, HKT_UINT16, HKT_F8E4M3, HKT_INT64, HKT_INT32,
                                            HKT_F16, HKT_F8E5M2};
#endif
    struct how how = call_number(k, turn);

    how.dtype = dtypes[turn % (sizeof dtypes / sizeof *dtypes)];
    how.op = HKT_SUM;
    how.is_scaled = true;
    return how;
}

static void run_algorithm(struct plan_group *g, const struct hkt__algo *algo, bool in_place, unsigned turn, int ncalls)
{
    struct running runs[CALLS];
    struct team team;
    int n = 0;

    if (!team_make(&team, g, algo, in_place))
        return;
    for (int k = 0; k < ncalls; k++) {
        const int number = (int)(turn + (unsigned)k * 2) % CALLS;

        enqueue(&runs[n++], &team, call_number(number, turn));
    }
    if (has_scaled(algo, in_place))
        enqueue(&runs[n++], &team, scaled_call((int)(turn / 2) % CALLS, turn)); /* in place or not goes by the lowest bit */
    plan_group_settle(g, algo->info.name);
    for (int k = 0; k < n; k++)
        verify(&runs[k]);
    team_free(&team);
}

static void all_algorithms(int nranks, int ncalls)
{
    unsigned turn = (unsigned)nranks;
    struct plan_group g;

    plan_group_open(&g, nranks, is_large);
    for (int i = 0; i < hkt__algo_count; i++, turn++) {
        const bool is_fixed = hkt__algos[i].info.coll == HKT_BARRIER || hkt__algos[i].info.coll >= HKT_ALL_GATHER_V;

        run_algorithm(&g, &hkt__algos[i], !is_fixed && turn % 2 == 0, turn, ncalls);
        if (is_large && !is_fixed)
            run_algorithm(&g, &hkt__algos[i], turn % 2 != 0, turn, ncalls);
    }
    plan_group_close(&g);
}

static void every_algorithm_leaves_the_bits_of_the_host(void **state)
{
    static const int all[] = {1, 2, 3, 4, 5, 6, 7, 8}, few[] = {3, 5};
    const int *sizes = plan_test_small() ? few : all;
    const int nsizes = plan_test_small() ? 2 : 8;

    (void)state;
    for (int i = 0; i < nsizes; i++)
        all_algorithms(sizes[i], 2);
}

/** Calls, one after another on all ranks, that use the same memory of arenas again and again: counters go on growing. */
static void launches_follow_each_other(void **state)
{
    static const char *const names[] = {"ring", "two_shot", "recursive_doubling", "one_shot"};
    struct running runs[4];
    struct team teams[4];
    struct plan_group g;

    (void)state;
    plan_group_open(&g, 4, is_large);
    for (int k = 0; k < 4; k++)
        assert_true(team_make(&teams[k], &g, hkt__algo_find(HKT_ALL_REDUCE, names[k]), k % 2 == 1));
    for (int i = 0; i < (plan_test_small() ? 3 : 10); i++) {
        for (int k = 0; k < 4; k++)
            enqueue(&runs[k], &teams[k], call_number((i + k * 3) % (CALLS - 1), (unsigned)(i + k)));
        plan_group_settle(&g, "launches one after another");
        for (int k = 0; k < 4; k++)
            verify(&runs[k]);
    }
    for (int k = 0; k < 4; k++)
        team_free(&teams[k]);
    plan_group_close(&g);
}

/** Who has come to the barriers so far, and who was let through too early. */
struct meeting {
    _Atomic int come, early;
    int want[8];
};
static struct meeting meeting;

static void come(void *microseconds)
{
    plan_dawdle(microseconds);
    atomic_fetch_add(&meeting.come, 1);
}

static void look_around(void *want)
{
    if (atomic_load(&meeting.come) < *(int *)want)
        atomic_fetch_add(&meeting.early, 1);
}

static void a_barrier_holds_back_until_all_have_come(void **state)
{
    struct plan_group g;
    struct team team;

    (void)state;
    plan_group_open(&g, 5, is_large);
    for (int i = 0; i < hkt__algo_count; i++) {
        if (hkt__algos[i].info.coll != HKT_BARRIER || !team_make(&team, &g, &hkt__algos[i], false))
            continue;
        meeting = (struct meeting){.come = 0};
        for (int k = 0; k < 8; k++) {
            meeting.want[k] = (k + 1) * g.nranks;
            for (int r = 0; r < g.nranks; r++) {
                const struct hkt__cuda_call call = {.stream = g.streams[r], .dtype = HKT_UINT8, .channels_max = 1, .blocks_max = 1};

                must(cudaSetDevice(g.peers[r].device));
                must(cudaLaunchHostFunc(g.streams[r], come, (void *)(uintptr_t)(random_bits() % 4 * 100)));
                if (hkt__device_plan_enqueue(team.device[r], &call) != HKT_OK)
                    fail_msg("%s", hkt_last_error());
                must(cudaLaunchHostFunc(g.streams[r], look_around, &meeting.want[k]));
            }
        }
        plan_group_settle(&g, hkt__algos[i].info.name);
        if (meeting.early != 0)
            fail_msg("%s let ranks through %d times before all had come", hkt__algos[i].info.name, meeting.early);
        team_free(&team);
    }
    plan_group_close(&g);
}

/** Rank 1 never comes: the others must leave when told to, and say what they were waiting for. */
static void an_abort_ends_launches_that_wait(void **state)
{
    static const char *const names[] = {"ring", "recursive_doubling", "two_shot"};
    char text[128];

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct running run = {.how = call_number(k == 1 ? 1 : 2, 0)};
        struct plan_group g;
        struct team team;

        run.how.dtype = HKT_F32;
        run.how.op = HKT_SUM;
        plan_group_open(&g, 2, is_large);
        assert_true(team_make(&team, &g, hkt__algo_find(HKT_ALL_REDUCE, names[k]), false));
        run.team = &team;
        run.largest = run.how.count;
        prepare_rank(&run, 0);
        free(run.of[0].want);
        const struct hkt__cuda_call call = call_of(&run, 0);

        must(cudaSetDevice(g.peers[0].device));
        assert_int_equal(hkt__device_plan_enqueue(team.device[0], &call), HKT_OK);
        usleep(2000);
        assert_int_equal(module->stream_query(g.streams[0], g.peers[0].device), HKT__CUDA_NOT_READY);
        hkt__cuda_watch_describe(g.peers[0].watch, text, sizeof text);
        assert_string_equal(text, "");
        hkt__cuda_abort(g.peers[0].watch);
        plan_group_settle(&g, "an aborted launch");
        hkt__cuda_watch_describe(g.peers[0].watch, text, sizeof text);
        assert_string_equal(text, "a message of rank 1 in slice 0");
        team_free(&team);
        plan_group_close(&g);
    }
}

static void what_cannot_run_is_refused(void **state)
{
    struct hkt__cuda_peers peers;
    struct hkt__plan_program program = {.nlanes = 5, .cuts = 1};
    struct hkt__cuda_plan *plan = NULL;
    struct plan_group g;

    (void)state;
    plan_group_open(&g, 2, is_large);
    peers = g.peers[0];
    peers.shape.lanes = 4;
    assert_int_equal(hkt__cuda_plan_make(module, &peers, &program, &plan), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "5 lanes"));
    program.nlanes = 1;
    program.user_direct = true;
    peers.is_one_process = false;
    assert_int_equal(hkt__cuda_plan_make(module, &peers, &program, &plan), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "other processes"));
    program.user_direct = false;
    peers.ranks_here = 100000;
    assert_int_equal(hkt__cuda_plan_make(module, &peers, &program, &plan), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "multiprocessors"));
    assert_null(plan);
    plan_group_close(&g);
}

static void arenas_are_bounded(void **state)
{
    (void)state;
    for (int p = 1; p <= HKT__PLAN_RANKS_MAX; p++) {
        struct hkt__cuda_shape shape;

        hkt__cuda_shape_default(p, &shape);
        assert_true(hkt__cuda_arena_bytes(&shape) <= (size_t)48 << 20);
        assert_int_equal(shape.slot_bytes % 16 + shape.ll_bytes % 16, 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arenas_are_bounded),
        cmocka_unit_test(what_cannot_run_is_refused),
        cmocka_unit_test(an_abort_ends_launches_that_wait),
        cmocka_unit_test(launches_follow_each_other),
        cmocka_unit_test(a_barrier_holds_back_until_all_have_come),
        cmocka_unit_test(messages_arrive_in_order),
        cmocka_unit_test(many_messages_go_with_one_launch),
        cmocka_unit_test(all_messages_of_a_launch_are_under_way),
        cmocka_unit_test(every_algorithm_leaves_the_bits_of_the_host),
    };

    is_large = argc > 1 && strcmp(argv[1], "large") == 0;
    module = hkt__cuda_module();
    return cmocka_run_group_tests_name("cuda_plan", tests, NULL, NULL);
}
