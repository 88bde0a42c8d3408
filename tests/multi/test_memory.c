/* What could break: memory of hkt_mem_alloc that a peer does not see, or sees at the wrong place; a result that differs
 * when buffers are registered, or copied between processes, or neither is allowed; ranks that disagree about a buffer;
 * memory that is not given back; a wrong vector, tail or line where buffers are too large for caches, so that lines are asked for
 * ahead and stored past them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "ranks.h"

static const enum hkt_coll colls[] = {HKT_ALL_REDUCE, HKT_REDUCE_SCATTER, HKT_ALL_GATHER, HKT_BROADCAST, HKT_ALL_TO_ALL};
static const size_t counts[] = {0, 1, 7, 1001, 40000};

/** Buffers of a rank, registered or not, used by calls in place of its own. */
static void use_memory(struct calls *calls, void *send, void *recv)
{
    free(calls->send);
    free(calls->recv);
    calls->send = send;
    calls->recv = recv;
}

static void check_calls(struct ranks_rank *rank, struct calls *calls)
{
    char text[256] = "", what[128];

    for (size_t c = 0; c < sizeof colls / sizeof colls[0]; c++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0] * 2; i++) {
            const bool reduces = calls_reduces(colls[c]);
            struct call call = {.coll = colls[c], .dtype = i % 3 ? HKT_F32 : HKT_INT16,
                                .kind = reduces ? EXACT_BUILTIN : EXACT_PLAIN, .op = reduces ? HKT_SUM : HKT_OP_COUNT,
                                .root = calls_has_root(colls[c]) ? rank->nranks - 1 : 0, .count = counts[i / 2],
                                .in_place = i % 2};

            calls_print(&call, what, sizeof what);
            calls_fill(calls, &call);
            ranks_require_ok(rank, calls_issue(calls, &call, NULL), what);
            ranks_require(rank, calls_check(calls, &call, text, sizeof text) == 0, "%s: %s", what, text);
        }
    }
}

typedef void check_fn(struct ranks_rank *rank, struct calls *calls);

/** Calls on registered buffers. */
static void on_registered(struct ranks_rank *rank, size_t room, check_fn *check)
{
    struct calls calls = {0};
    void *send, *recv;

    ranks_require(rank, calls_init(&calls, rank->comm, room), "no memory");
    ranks_require_ok(rank, hkt_mem_alloc(&send, room + 65536, rank->comm), "hkt_mem_alloc");
    ranks_require_ok(rank, hkt_mem_alloc(&recv, room + 65536, rank->comm), "hkt_mem_alloc");
    use_memory(&calls, send, recv);
    check(rank, &calls);
    calls.send = calls.recv = NULL;
    calls_fini(&calls);
    ranks_require_ok(rank, hkt_mem_free(send, rank->comm), "hkt_mem_free");
    ranks_require_status(rank, hkt_mem_free(send, rank->comm), HKT_ERR_INVALID, "hkt_mem_free twice");
    /* The other block is released with the communicator. */
}

static void on_ordinary(struct ranks_rank *rank, size_t room, check_fn *check)
{
    struct calls calls = {0};

    ranks_require(rank, calls_init(&calls, rank->comm, room), "no memory");
    check(rank, &calls);
    calls_fini(&calls);
}

/** All collectives, with the library's choice and with each algorithm that touches the users' buffers. */
static void registered(struct ranks_rank *rank)
{
    const struct call largest = {.coll = HKT_ALL_TO_ALL, .dtype = HKT_F32, .count = 40000};

    on_registered(rank, calls_room(&largest, rank->nranks), check_calls);
}

static void ordinary(struct ranks_rank *rank)
{
    const struct call largest = {.coll = HKT_ALL_TO_ALL, .dtype = HKT_F32, .count = 40000};

    on_ordinary(rank, calls_room(&largest, rank->nranks), check_calls);
}

static const char user_rows[] = "all_reduce=two_shot_user,reduce_scatter=direct_user,all_gather=write_user,"
                                "broadcast=shared_user,gather=direct_user,scatter=direct_user";

static void each_way(ranks_fn *fn, const char *const *settings, const char *algo)
{
    for (int nranks = 1; nranks <= (ranks_small() ? 3 : 5); nranks += nranks == 1 ? 1 : nranks == 2 ? 1 : 2) {
        for (int kind = 0; kind < 2; kind++) {
            struct hkt_config config = HKT_CONFIG_INIT;
            struct ranks_job job = {.kind = kind ? RANKS_PROCESSES : RANKS_THREADS, .nranks = nranks, .fn = fn,
                                    .settings = settings, .config = &config};

            config.algo = nranks > 1 ? algo : NULL;
            ranks_run(&job);
        }
    }
}

static void registered_buffers_give_the_same(void **state)
{
    (void)state;
    each_way(registered, NULL, NULL);
    each_way(registered, NULL, user_rows);
}

static void without_copies_between_processes(void **state)
{
    static const char *const settings[] = {"HOCKET_CMA=0", NULL};

    (void)state;
    each_way(registered, settings, user_rows);
    each_way(ordinary, settings, NULL);
}

static void copies_between_processes(void **state)
{
    (void)state;
    each_way(ordinary, NULL, user_rows);
}

/** A large call. Of the bytes in the row, ranks touch twice as many in an all-reduce (in place: as many) and 4/3 or 3/2 times as many in
 *  a reduce-scatter and an all-gather: some 2.5 MB for what src/exec/local.c calls BEYOND, 3.5 for PAST. Copies do that from
 *  4 MiB on. */
struct large {
    enum hkt_coll coll;
    enum hkt_dtype dtype;
    size_t bytes;               /* of the vector, of all blocks together; about */
    bool in_place;
    size_t offset, rank_offset; /* the second times the rank: no two places lie alike */
};

static const struct large larges[] = {
    {HKT_ALL_REDUCE, HKT_F32, 4300000, false, 4, 0},       {HKT_ALL_REDUCE, HKT_BF16, 1200000, false, 2, 0},
    {HKT_ALL_REDUCE, HKT_INT32, 1800000, false, 4, 8},     {HKT_ALL_REDUCE, HKT_BF16, 2600000, true, 20, 0},
    {HKT_ALL_REDUCE, HKT_F32, 3300000, true, 1, 3},        {HKT_REDUCE_SCATTER, HKT_F32, 1800000, false, 12, 0},
    {HKT_REDUCE_SCATTER, HKT_BF16, 2600000, false, 6, 0},  {HKT_REDUCE_SCATTER, HKT_INT32, 2600000, false, 35, 1},
    {HKT_REDUCE_SCATTER, HKT_F32, 2600000, true, 4, 0},    {HKT_ALL_GATHER, HKT_BF16, 2600000, false, 2, 0},
    {HKT_ALL_GATHER, HKT_F32, 4300000, false, 1, 3},       {HKT_ALL_GATHER, HKT_INT32, 2600000, true, 28, 0},
    {HKT_BROADCAST, HKT_F32, 4300000, false, 1, 2},        {HKT_BROADCAST, HKT_BF16, 3300000, true, 4, 0},
};

static size_t large_room(int nranks)
{
    size_t room = 0;

    for (size_t i = 0; i < sizeof larges / sizeof larges[0]; i++)
        room = larges[i].bytes > room ? larges[i].bytes : room;
    return room + 4096 * (size_t)nranks;
}

static void check_large(struct ranks_rank *rank, struct calls *calls)
{
    const size_t step = ranks_small() ? 5 : 1;
    char text[256] = "", what[128];

    for (size_t i = 0; i < sizeof larges / sizeof larges[0]; i += step) {
        const struct large *large = &larges[i];
        const bool reduces = calls_reduces(large->coll), has_blocks = large->coll == HKT_REDUCE_SCATTER || large->coll == HKT_ALL_GATHER;
        const size_t elems = large->bytes / hkt_dtype_size(large->dtype) / (has_blocks ? (size_t)rank->nranks : 1);
        struct call call = {.coll = large->coll, .dtype = large->dtype, .kind = reduces ? EXACT_BUILTIN : EXACT_PLAIN,
                            .op = reduces ? HKT_SUM : HKT_OP_COUNT, .count = elems | 1, .in_place = large->in_place,
                            .offset = large->offset + large->rank_offset * (size_t)rank->rank};

        calls_print(&call, what, sizeof what);
        calls_fill(calls, &call);
        ranks_require_ok(rank, calls_issue(calls, &call, NULL), what);
        ranks_require(rank, calls_check(calls, &call, text, sizeof text) == 0, "%s: %s", what, text);
    }
}

static void large_registered(struct ranks_rank *rank)
{
    on_registered(rank, large_room(rank->nranks), check_large);
}

static void large_ordinary(struct ranks_rank *rank)
{
    on_ordinary(rank, large_room(rank->nranks), check_large);
}

/** Stored straight from registers, in shared memory and in that of threads, and by system calls; and by way of scratch. */
static void large_buffers_give_the_same(void **state)
{
    const struct hkt_config none = HKT_CONFIG_INIT;

    (void)state;
    for (int nranks = ranks_small() ? 3 : 2; nranks <= 3; nranks++) {
        for (int way = 0; way < 4; way++) {
            struct hkt_config config = none;

            config.algo = way < 3 ? user_rows : "all_reduce=two_shot,reduce_scatter=direct,all_gather=direct,broadcast=direct";
            ranks_run(&(struct ranks_job){.kind = way == 0 ? RANKS_THREADS : RANKS_PROCESSES, .nranks = nranks, .config = &config,
                                          .fn = way == 1 ? large_registered : large_ordinary});
        }
    }
}

/** What is lent to a network is not written until it was read, however late that is. */
static void lent_memory_gives_the_same(void **state)
{
    static const char *const settings[] = {"HOCKET_TRANSPORT=tcp", "HOCKET_FAULTS=seed=3,lend=0.7", NULL};

    (void)state;
    each_way(registered, settings, NULL);
}

/** Over tcp memory is ordinary, and registering it is refused on all ranks. */
static void over_tcp(struct ranks_rank *rank)
{
    void *memory;

    ranks_require_ok(rank, hkt_mem_alloc(&memory, 100000, rank->comm), "hkt_mem_alloc");
    memset(memory, 7, 100000);
    ranks_require_status(rank, hkt_comm_register(rank->comm, memory, 1000), HKT_ERR_UNSUPPORTED, "register over tcp");
    ranks_require_text(rank, hkt_last_error(), "peers cannot address the buffer of rank");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "the communicator stays usable");
    ranks_require_ok(rank, hkt_mem_free(memory, rank->comm), "hkt_mem_free");
}

/** One rank's buffer is not shared memory: all are told, nothing is registered. */
static void one_cannot(struct ranks_rank *rank)
{
    static char own[4096];
    struct hkt_comm *child;
    void *memory;

    ranks_require_ok(rank, hkt_mem_alloc(&memory, 4096, rank->comm), "hkt_mem_alloc");
    ranks_require_status(rank, hkt_comm_register(rank->comm, rank->rank == 1 ? own : memory, 4096), HKT_ERR_UNSUPPORTED,
                         "register");
    ranks_require_text(rank, hkt_last_error(), "rank 1");
    ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, rank->nranks - rank->rank, NULL, &child), "split");
    ranks_require_ok(rank, hkt_comm_register(child, memory, 4096), "register with a child");
    ranks_require_ok(rank, hkt_all_reduce(memory, memory, 100, HKT_INT32, HKT_SUM, child, NULL), "all_reduce");
    ranks_require_ok(rank, hkt_comm_deregister(child, memory), "deregister");
    ranks_require_status(rank, hkt_comm_deregister(child, memory), HKT_ERR_INVALID, "deregister twice");
    ranks_require_ok(rank, hkt_comm_destroy(child), "destroy");
}

/** Pre-multiplied input of a call out of place goes into the output where an algorithm that is left works in place, else aside. */
static void premultiplied(struct ranks_rank *rank, const char *algo, enum hkt_coll coll, enum hkt_status want)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const float two = 2;
    struct hkt_comm *child;
    enum hkt_op op;
    float *in, *out;

    config.algo = algo;
    ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, rank->rank, &config, &child), "split");
    ranks_require_ok(rank, hkt_op_create_premulsum(&op, &two, HKT_F32, child), "premulsum");
    ranks_require_ok(rank, hkt_mem_alloc((void **)&in, 4096, child), "hkt_mem_alloc");
    ranks_require_ok(rank, hkt_mem_alloc((void **)&out, 4096, child), "hkt_mem_alloc");
    for (int i = 0; i < rank->nranks; i++)
        in[i] = (float)(i + 1);
    const enum hkt_status rc = coll == HKT_ALL_REDUCE ? hkt_all_reduce(in, out, 1, HKT_F32, op, child, NULL)
                                                      : hkt_reduce_scatter(in, out, 1, HKT_F32, op, child, NULL);
    const int own = coll == HKT_ALL_REDUCE ? 0 : rank->rank;

    ranks_require_status(rank, rc, want, algo);
    ranks_require(rank, out[0] == (want == HKT_OK ? (float)(2 * (own + 1) * rank->nranks) : 0), "%s: %g", algo, (double)out[0]);
    ranks_require_ok(rank, hkt_comm_destroy(child), "destroy");
}

static void premultiplied_copied(struct ranks_rank *rank)
{
    static const char one_left[] =
        "all_reduce=^ring,all_reduce=^circulant,all_reduce=^rabenseifner,all_reduce=^recursive_doubling,all_reduce=^double_tree,"
        "all_reduce=^swing,all_reduce=^near_first,all_reduce=^hierarchical,all_reduce=^leaders,all_reduce=^exchange,"
        "all_reduce=^ordered,all_reduce=^two_shot,all_reduce=^one_shot,all_reduce=^two_shot_user";

    premultiplied(rank, one_left, HKT_ALL_REDUCE, HKT_OK);
    premultiplied(rank, "reduce_scatter=direct_user", HKT_REDUCE_SCATTER, HKT_OK);
}

static void premultiplied_uncopied(struct ranks_rank *rank)
{
    premultiplied(rank, "all_reduce=two_shot_user", HKT_ALL_REDUCE, HKT_OK);
    premultiplied(rank, "all_reduce=one_shot_user", HKT_ALL_REDUCE, HKT_ERR_UNSUPPORTED);
    premultiplied(rank, "reduce_scatter=direct_user", HKT_REDUCE_SCATTER, HKT_ERR_UNSUPPORTED);
    premultiplied(rank, NULL, HKT_REDUCE_SCATTER, HKT_OK);
}

/** Blocks are given back: many more bytes in all than the arena has. */
static void again_and_again(struct ranks_rank *rank)
{
    for (int i = 0; i < 40; i++) {
        void *memory;

        ranks_require_ok(rank, hkt_mem_alloc(&memory, 1 << 20, rank->comm), "hkt_mem_alloc");
        ((volatile char *)memory)[i * 4096] = 1;
        ranks_require_ok(rank, hkt_mem_free(memory, rank->comm), "hkt_mem_free");
    }
}

static void refusals(void **state)
{
    static const char *const tcp[] = {"HOCKET_TRANSPORT=tcp", NULL}, *const small[] = {"HOCKET_SHM_BYTES=32M", NULL};
    static const char *const uncopied[] = {"HOCKET_CMA=0", NULL};

    (void)state;
    ranks_run(&(struct ranks_job){.kind = RANKS_PROCESSES, .nranks = 2, .fn = premultiplied_copied});
    ranks_run(&(struct ranks_job){.kind = RANKS_PROCESSES, .nranks = 2, .fn = premultiplied_uncopied, .settings = uncopied});
    ranks_run(&(struct ranks_job){.kind = RANKS_PROCESSES, .nranks = 2, .fn = over_tcp, .settings = tcp});
    ranks_run(&(struct ranks_job){.kind = RANKS_PROCESSES, .nranks = 3, .fn = one_cannot});
    ranks_run(&(struct ranks_job){.kind = RANKS_PROCESSES, .nranks = 2, .fn = again_and_again, .settings = small});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registered_buffers_give_the_same),
        cmocka_unit_test(large_buffers_give_the_same),
        cmocka_unit_test(lent_memory_gives_the_same),
        cmocka_unit_test(without_copies_between_processes),
        cmocka_unit_test(copies_between_processes),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
