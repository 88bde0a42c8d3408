/* What could break: memory of hkt_mem_alloc_device that peers map at another place than kernels look; algorithms that touch peers'
 * buffers chosen where these are not mapped, or on some ranks only; ranks that do not agree whether memory is mapped; memory freed
 * while a peer maps it, or never; a call of CUDA that fails and leaves something behind.
 *
 * The module is the emulated one, whose kernels run; or, by tests/gpu/run, the real one, of which nothing can be refused. */
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "far_test.h"

#define LAUNCH_FAILURE 719
#define USERS "all_reduce=two_shot_user,reduce_scatter=direct_user,all_gather=direct_user,broadcast=direct_user," \
              "all_to_all=direct_user,gather=direct_user,scatter=direct_user"

/** A group, and what it is made with. */
struct group {
    enum ranks_kind kind;
    int nranks;
    const char *setting;  /* of all ranks; NULL: none */
};

static void run(const struct group *group, ranks_fn *fn)
{
    /* without HOCKET_CMA the host's way has no use for algorithms that touch peers' buffers: they run on devices, or nowhere */
    const char *settings[] = { far_module_setting(), DEVICES, "HOCKET_TIMEOUT=30s", "HOCKET_CUDA_BYTES=4M", "HOCKET_CMA=0",
                               group->setting, NULL };
    const struct ranks_job job = { .kind = group->kind, .nranks = group->nranks, .settings = settings, .fn = fn,
                                   .arg = (void *)group, .leaves_descriptors = true };

    ranks_run(&job);
}

/** What peers have closed is freed when memory is wanted. */
static void sweep(struct ranks_rank *rank)
{
    void *memory;

    ranks_require_ok(rank, hkt_device_alloc(&memory, 1, 0), "alloc");
    ranks_require_ok(rank, hkt_device_free(memory), "free");
}

/** Destroys the communicator, which has come to `status`, and waits until nothing of it is left. */
static void end_comm(struct ranks_rank *rank, enum hkt_status status)
{
    const int64_t until_ms = ranks_now_ms() + 20000;

    ranks_require_status(rank, hkt_comm_destroy(rank->comm), status, "destroy");
    rank->comm = NULL;
    ranks_meet(rank, 0);
    do
        sweep(rank);
    while (live_objects(rank) != 0 && ranks_now_ms() < until_ms);
    ranks_meet(rank, 1);
    ranks_require(rank, live_objects(rank) == 0, "%d objects of CUDA are left", live_objects(rank));
}

static char *shared(struct ranks_rank *rank, size_t bytes)
{
    void *memory;

    ranks_require_ok(rank, hkt_mem_alloc_device(&memory, bytes, rank->rank % ndevices(rank), rank->comm), "mem_alloc_device");
    return memory;
}

/* --- Calls ---------------------------------------------------------------------------------------------------------- */

/** All collectives with both buffers in shared memory, then in other memory, unless algorithms that touch peers' are forced. */
static void every_collective(struct ranks_rank *rank)
{
    const struct group *group = rank->arg;
    const bool is_forced = group->setting != NULL && strstr(group->setting, "_user") != NULL;
    const size_t kinds = ranks_small() ? FAR_KINDS - 1 : FAR_KINDS;
    struct hkt_stream *stream;
    struct call call;
    struct far far;

    far_init(&far, rank, far_room(kinds, rank->nranks));
    ranks_require_ok(rank, hkt_device_stream_create(&stream, far.device), "stream");
    char *const plain[2] = { far.send, far.recv }, *mine[2];

    mine[0] = shared(rank, far.bytes);
    mine[1] = shared(rank, far.bytes + (size_t)rank->rank); /* all get as much as the last asks for */
    for (int coll = 0; coll < HKT_SEND_RECV; coll++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (size_t i = 0; i < kinds; i++) {
                if (!far_kind((enum hkt_coll)coll, in_place != 0, i, rank->nranks, &call) ||
                    (is_forced && coll == HKT_ALL_TO_ALL && in_place != 0)) /* that algorithm needs two buffers */
                    continue;
                far.send = mine[i % 2];
                far.recv = mine[(i + 1) % 2];
                far_call(&far, &call, BOTH, stream);
                far.send = plain[0];
                far.recv = plain[1];
                if (!is_forced)
                    far_call(&far, &call, BOTH, stream);
            }
    ranks_require_ok(rank, hkt_mem_free(mine[0], rank->comm), "mem_free");
    hkt_stream_destroy(stream);
    far_fini(&far);
    end_comm(rank, HKT_OK); /* and with it mine[1] */
}

/** Rank 0 makes the last call, in other memory: that it is refused shows, too, that those in shared memory run on devices. */
static void other_memory(struct ranks_rank *rank)
{
    const int device = rank->rank % ndevices(rank);
    char *mine = shared(rank, 4000);
    struct hkt_stream *stream;
    void *plain;

    ranks_require_ok(rank, hkt_device_stream_create(&stream, device), "stream");
    ranks_require_ok(rank, hkt_device_alloc(&plain, 4000, device), "alloc");
    ranks_require_ok(rank, hkt_all_reduce(mine, mine, 1000, HKT_F32, HKT_SUM, rank->comm, stream), "shared memory");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "synchronize");
    ranks_meet(rank, 2);
    if (rank->rank == 0)
        ranks_require_status(rank, hkt_all_reduce(plain, plain, 1000, HKT_F32, HKT_SUM, rank->comm, stream), HKT_ERR_UNSUPPORTED,
                             "other memory, by an algorithm that touches it");
    ranks_meet(rank, 3);
    hkt_stream_destroy(stream);
    ranks_require_ok(rank, hkt_device_free(plain), "free");
    (void)!hkt_comm_destroy(rank->comm); /* others have heard of it, or not yet */
    rank->comm = NULL;
}

static void algorithms_that_touch_other_memory_are_refused(void **state)
{
    static const struct group group = { RANKS_PROCESSES, 2, "HOCKET_ALGO=" USERS };

    (void)state;
    run(&group, other_memory);
}

static void collectives_run_in_memory_that_all_ranks_map(void **state)
{
    static const struct group groups[] = {
        { RANKS_PROCESSES, 2, "HOCKET_ALGO=" USERS },
        { RANKS_THREADS, 3, NULL },
        { RANKS_PROCESSES, 3, NULL },
        { RANKS_THREADS, 4, "HOCKET_ALGO=" USERS },
        { RANKS_PROCESSES, 5, "HOCKET_ALGO=" USERS },
        { RANKS_THREADS, 1, NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups - (ranks_small() ? 3 : 0); i++)
        run(&groups[i], every_collective);
}

static void where_it_cannot_be_mapped_it_is_as_other_memory(void **state)
{
    static const struct group groups[] = {
        { RANKS_THREADS, 2, "HOCKET_CUDA_DIRECT=0" },
        { RANKS_PROCESSES, 2, "EMU_IPC=0" },
        { RANKS_THREADS, 2, "EMU_PEERS=0" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (far_is_emulated() || i == 0)
            run(&groups[i], every_collective);
}

/* --- Allocations that fail, frees that do not match ------------------------------------------------------------------- */

static void wrong_calls(struct ranks_rank *rank)
{
    const int device = rank->rank % ndevices(rank);
    const bool is_last = rank->rank == rank->nranks - 1;
    void *memory = rank, *first, *second;

    ranks_require_status(rank, hkt_mem_alloc_device(NULL, 1, device, rank->comm), HKT_ERR_INVALID, "memory for nobody");
    ranks_require_status(rank, hkt_mem_alloc_device(&memory, is_last ? (size_t)64 << 20 : 1, device, rank->comm), HKT_ERR_NOMEM,
                         "more than there is, on one rank");
    ranks_require_status(rank, hkt_mem_alloc_device(&memory, is_last ? SIZE_MAX : 1, device, rank->comm), HKT_ERR_NOMEM,
                         "more than any address");
    ranks_require_status(rank, hkt_mem_alloc_device(&memory, 1, is_last ? 1000 : device, rank->comm), HKT_ERR_INVALID,
                         "a device that is not, on one rank");
    ranks_require(rank, memory == rank, "a failure should leave the pointer alone");
    first = shared(rank, 0);
    second = shared(rank, 100);
    ranks_require_status(rank, hkt_mem_alloc_device(&memory, 1, is_last ? 1 - device : device, rank->comm), HKT_ERR_INVALID,
                         "another device, on one rank");
    ranks_require_status(rank, hkt_mem_free(is_last ? first : second, rank->comm), HKT_ERR_INVALID, "frees that do not match");
    ranks_require_status(rank, hkt_mem_free((char *)first + 1, rank->comm), HKT_ERR_INVALID, "no start of memory");
    ranks_require_ok(rank, hkt_mem_free(first, rank->comm), "free");
    first = shared(rank, 200); /* where the first was */
    ranks_require_ok(rank, hkt_mem_free(second, rank->comm), "free");
    ranks_require_ok(rank, hkt_mem_free(first, rank->comm), "free");
    ranks_require_ok(rank, hkt_mem_free(NULL, rank->comm), "free of nothing");
    end_comm(rank, HKT_OK);
}

static void what_is_wrong_on_one_rank_is_refused_on_all(void **state)
{
    static const struct group groups[] = { { RANKS_THREADS, 2, "EMU_MEMORY_MB=32" }, { RANKS_PROCESSES, 2, "EMU_MEMORY_MB=32" } };

    (void)state;
    if (!far_is_emulated()) /* whose memory is not small */
        skip();
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        run(&groups[i], wrong_calls);
}

/** The last rank ends the communicator while others hold memory, and have launched what it will not take part in. */
static void left_alone(struct ranks_rank *rank)
{
    const int device = rank->rank % ndevices(rank);
    char *memory = shared(rank, 8000), *other = shared(rank, 8000);
    struct hkt_stream *stream;

    ranks_require_ok(rank, hkt_device_stream_create(&stream, device), "stream");
    ranks_require_ok(rank, hkt_all_reduce(memory, other, 1000, HKT_F32, HKT_MAX, rank->comm, stream), "first call");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "first synchronize");
    if (rank->rank < rank->nranks - 1)
        ranks_require_ok(rank, hkt_all_reduce(memory, other, 1000, HKT_F32, HKT_MAX, rank->comm, stream), "second call");
    ranks_meet(rank, 2);
    if (rank->rank == rank->nranks - 1)
        hkt_comm_revoke(rank->comm);
    ranks_require_status(rank, hkt_mem_free(memory, rank->comm), HKT_ERR_ABORTED, "free after the end");
    hkt_stream_destroy(stream);
    end_comm(rank, HKT_ERR_ABORTED); /* and with it the other */
}

static void memory_is_freed_when_the_communicator_has_failed(void **state)
{
    static const struct group groups[] = { { RANKS_THREADS, 2, NULL }, { RANKS_PROCESSES, 3, NULL } };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        run(&groups[i], left_alone);
}

/** An allocation with the k-th call of CUDA failing, on whichever rank makes it. False: there were fewer calls. */
static bool fails_at(struct ranks_rank *rank, long k)
{
    void (*fail_call)(long k, int error);
    const char *(*failed_call)(void);
    const int device = rank->rank % ndevices(rank);
    void *memory = NULL;

    *(void **)&fail_call = emulator(rank, "emu_fail_call");
    *(void **)&failed_call = emulator(rank, "emu_failed_call");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all is quiet");
    const int before = live_objects(rank);

    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have counted");
    if (rank->rank == 0)
        fail_call(k, LAUNCH_FAILURE);
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "the failure is set");
    const enum hkt_status rc = hkt_mem_alloc_device(&memory, 100, device, rank->comm);

    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have allocated");
    const char *failed = failed_call();

    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have asked");
    if (rank->rank == 0)
        fail_call(0, 0);
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "nothing fails any more");
    ranks_require(rank, rc == HKT_OK || failed != NULL, "nothing failed, and the call said %s", hkt_last_error());
    if (rc < 0)
        ranks_require_text(rank, hkt_last_error(), "rank ");
    if (rc == HKT_OK)
        ranks_require_ok(rank, hkt_mem_free(memory, rank->comm), "free");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have freed");
    sweep(rank);
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have swept");
    ranks_require(rank, live_objects(rank) == before || (failed != NULL && strstr(failed, "Destroy") != NULL),
                  "%d objects of CUDA are left after call %ld (%s) failed", live_objects(rank) - before, k,
                  failed != NULL ? failed : "none");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have looked");
    return failed != NULL;
}

static void every_call_fails(struct ranks_rank *rank)
{
    void *memory = shared(rank, 100); /* with all that is made once */
    long k = 1;

    ranks_require_ok(rank, hkt_mem_free(memory, rank->comm), "free");
    sweep(rank);
    while (fails_at(rank, k))
        k += ranks_small() ? 7 : 1;
    ranks_require(rank, k > 20, "only %ld calls of CUDA were made", k - 1);
    hkt_comm_abort(rank->comm);
    rank->comm = NULL;
}

static void a_call_of_cuda_that_fails_leaves_nothing(void **state)
{
    static const struct group group = { RANKS_THREADS, 2, NULL };

    (void)state;
    if (!far_is_emulated())
        skip();
    run(&group, every_call_fails);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_run_in_memory_that_all_ranks_map),
        cmocka_unit_test(algorithms_that_touch_other_memory_are_refused),
        cmocka_unit_test(where_it_cannot_be_mapped_it_is_as_other_memory),
        cmocka_unit_test(what_is_wrong_on_one_rank_is_refused_on_all),
        cmocka_unit_test(memory_is_freed_when_the_communicator_has_failed),
        cmocka_unit_test(a_call_of_cuda_that_fails_leaves_nothing),
    };

    return far_test_begin(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
