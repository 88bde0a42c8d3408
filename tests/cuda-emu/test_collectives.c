/* What could break: a collective on memory of a GPU that reads or writes it as the host's; a buffer copied in part, to the
 * wrong place, or over what a call must leave alone; buffers of which only one is on a GPU; calls in place; messages to
 * oneself; the order of a stream; pinned memory that stays behind; a call of CUDA that fails and leaves other ranks waiting,
 * or says nothing; a module that is not there, not of this version, or has no driver.
 *
 * The module is the emulated one, with memory that faults when the program touches it (EMU_BLIND); or, by tests/gpu/run, the
 * real one, of which no call can be made to fail. */
#include "far_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLIND "EMU_BLIND=1"
#define LAUNCH_FAILURE 719

/* --- All collectives ------------------------------------------------------------------------------------------------ */

static void every_collective(struct ranks_rank *rank)
{
    const size_t kinds = ranks_small() ? FAR_KINDS - 1 : FAR_KINDS;
    struct call call;
    struct far far;

    far_init(&far, rank, far_room(kinds, rank->nranks));
    for (int coll = 0; coll < HKT_SEND_RECV; coll++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (size_t i = 0; i < kinds; i++)
                for (int place = BOTH; place < (in_place ? ONLY_IN : PLACES); place++)
                    if (far_kind((enum hkt_coll)coll, in_place != 0, i, rank->nranks, &call))
                        far_call(&far, &call, (enum place)place, NULL);
    far_fini(&far);
}

static void on_a_stream(struct ranks_rank *rank)
{
    const struct call call = { .coll = HKT_ALL_REDUCE, .dtype = HKT_F32, .op = HKT_SUM, .count = 5000,
                               .kind = EXACT_BUILTIN };
    struct hkt_stream *stream;
    struct far far;

    far_init(&far, rank, 5000 * 4);
    ranks_require_ok(rank, hkt_stream_create(&stream), "stream");
    for (int i = 0; i < 3; i++)
        far_call(&far, &call, BOTH, stream);
    hkt_stream_destroy(stream);
    far_fini(&far);
}

/* --- Messages ------------------------------------------------------------------------------------------------------- */

/** Two messages to the next rank, two from the one before, one to itself; on devices but for one buffer. */
static void messages(struct ranks_rank *rank)
{
    enum { N = 1000, EACH = N * 4 };
    const struct hkt__cuda_module *cuda = module_of(rank);
    const int next = (rank->rank + 1) % rank->nranks, before = (rank->rank + rank->nranks - 1) % rank->nranks;
    const int device = ndevices(rank) - 1;
    static _Thread_local int32_t near[6][N];
    char *far;
    void *p;

    ranks_require(rank, cuda->device_alloc(&p, 6 * EACH, device) == 0, "no memory on the device");
    far = p;
    for (int m = 0; m < 6; m++)
        for (int i = 0; i < N; i++)
            near[m][i] = m < 3 ? rank->rank * 1000000 + m * 10000 + i : -1;
    ranks_require(rank, cuda->copy_wait(far, near, sizeof near, device) == 0, "a copy should work");
    ranks_require_ok(rank, hkt_group_start(), "group");
    ranks_require_ok(rank, hkt_send(far, N, HKT_INT32, next, rank->comm, NULL), "send");
    ranks_require_ok(rank, hkt_send(near[1], N, HKT_INT32, next, rank->comm, NULL), "send from the host");
    ranks_require_ok(rank, hkt_send(far + 2 * EACH, N, HKT_INT32, rank->rank, rank->comm, NULL), "send to itself");
    ranks_require_ok(rank, hkt_recv(far + 3 * EACH, N, HKT_INT32, before, rank->comm, NULL), "receive");
    ranks_require_ok(rank, hkt_recv(far + 4 * EACH, N, HKT_INT32, before, rank->comm, NULL), "receive");
    ranks_require_ok(rank, hkt_recv(far + 5 * EACH, N, HKT_INT32, rank->rank, rank->comm, NULL), "receive from itself");
    ranks_require_ok(rank, hkt_group_end(), "group");
    ranks_require(rank, cuda->copy_wait(near, far, sizeof near, device) == 0, "a copy should work");
    for (int m = 3; m < 6; m++)
        for (int i = 0; i < N; i++)
            ranks_require(rank, near[m][i] == (m == 5 ? rank->rank : before) * 1000000 + (m - 3) * 10000 + i,
                          "message %d, element %d should not be %d", m - 3, i, near[m][i]);
    ranks_require(rank, cuda->device_free(far) == 0, "memory of the device should be freed");
}

/** All of the above on one communicator, and nothing is left when it is gone. */
static void whole_life(struct ranks_rank *rank)
{
    every_collective(rank);
    on_a_stream(rank);
    if (rank->nranks > 1)
        messages(rank);
    ranks_require_ok(rank, hkt_comm_destroy(rank->comm), "destroy");
    rank->comm = NULL;
    ranks_meet(rank, 0);
    ranks_require(rank, live_objects(rank) == 0, "%d objects of CUDA are left", live_objects(rank));
}

static void run(enum ranks_kind kind, int nranks, const char *transport)
{
    char setting[64];
    const char *settings[] = { far_module_setting(), DEVICES, BLIND, setting, NULL };
    const struct ranks_job job = { .kind = kind, .nranks = nranks, .settings = settings, .fn = whole_life,
                                   .leaves_descriptors = true };

    snprintf(setting, sizeof setting, "HOCKET_TRANSPORT=%s", transport);
    ranks_run(&job);
}

static void collectives_work_on_device_memory(void **state)
{
    (void)state;
    run(RANKS_THREADS, 1, "");
    run(RANKS_THREADS, 3, "thread");
    run(RANKS_PROCESSES, 2, "shm");
    run(RANKS_PROCESSES, 2, "tcp");
}

/* --- Failures ------------------------------------------------------------------------------------------------------- */

/** One all-reduce of two ranks that this thread drives, both on devices, with the k-th call of CUDA failing. False: there
 *  were fewer calls. */
static bool fails_at(struct ranks_rank *rank, long k)
{
    const struct hkt__cuda_module *cuda = module_of(rank);
    void (*fail_call)(long k, int error);
    const char *(*failed_call)(void);
    struct hkt_comm *comms[2];
    void *buffers[2];
    enum hkt_status rc;

    *(void **)&fail_call = emulator(rank, "emu_fail_call");
    *(void **)&failed_call = emulator(rank, "emu_failed_call");
    ranks_require_ok(rank, hkt_comm_init_all(comms, 2, NULL), "init");
    for (int r = 0; r < 2; r++)
        ranks_require(rank, cuda->device_alloc(&buffers[r], 4000, r) == 0, "no memory on the device");
    ranks_require_ok(rank, hkt_group_start(), "group");
    fail_call(k, LAUNCH_FAILURE);
    rc = HKT_OK;
    for (int r = 0; r < 2 && rc == HKT_OK; r++)
        rc = hkt_all_reduce(buffers[r], buffers[r], 1000, HKT_F32, HKT_MAX, comms[r], NULL);
    const enum hkt_status end = hkt_group_end();
    const char *failed = failed_call();

    fail_call(0, 0);
    if (rc == HKT_OK)
        rc = end;
    ranks_require(rank, (rc != HKT_OK) == (failed != NULL), "%s failed, and the call said %s", failed != NULL ? failed : "none",
                  hkt_status_name(rc));
    if (failed != NULL) {
        ranks_require_text(rank, hkt_last_error(), "CUDA");
        ranks_require_text(rank, hkt_last_error(), "unspecified launch failure");
        ranks_require(rank, hkt_comm_status(comms[0]) != HKT_OK || hkt_comm_status(comms[1]) != HKT_OK,
                      "after %s failed a communicator should have failed", failed);
    }
    for (int r = 0; r < 2; r++) {
        (void)!hkt_comm_destroy(comms[r]);
        ranks_require(rank, cuda->device_free(buffers[r]) == 0, "memory of the device should be freed");
    }
    ranks_require(rank, live_objects(rank) == 0, "%d objects of CUDA are left after call %ld failed", live_objects(rank), k);
    return failed != NULL;
}

static void every_call_fails(struct ranks_rank *rank)
{
    long k = 1;

    while (fails_at(rank, k))
        k += ranks_small() ? 5 : 1;
    ranks_require(rank, k > 16, "only %ld calls of CUDA were made", k - 1);
}

static void a_call_of_cuda_that_fails_ends_the_communicator(void **state)
{
    const char *settings[] = { far_module_setting(), DEVICES, BLIND, "HOCKET_TIMEOUT=20s", NULL };
    const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 1, .settings = settings, .fn = every_call_fails,
                                   .no_comm = true, .leaves_descriptors = true };

    (void)state;
    far_need_emulation("of a GPU no call of CUDA can be made to fail");
    ranks_run(&job);
}

/* --- The public calls ----------------------------------------------------------------------------------------------- */

static void memory_of_devices(struct ranks_rank *rank)
{
    char out[1000], in[1000];
    void *memory = NULL, *none = NULL;
    int count = 0;

    ranks_require_ok(rank, hkt_device_count(&count), "count");
    ranks_require(rank, count > 0, "there should be a device");
    ranks_require_ok(rank, hkt_device_alloc(&memory, sizeof in, count - 1), "alloc");
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (char)(i * 7);
    ranks_require_ok(rank, hkt_device_copy(memory, in, sizeof in, count - 1), "copy to the device");
    ranks_require_ok(rank, hkt_device_copy(out, memory, sizeof out, count - 1), "copy from the device");
    ranks_require(rank, memcmp(in, out, sizeof in) == 0, "what comes back should be what was sent");
    ranks_require_status(rank, hkt_device_copy(out, NULL, 1, 0), HKT_ERR_INVALID, "copy from NULL");
    ranks_require_status(rank, hkt_device_copy(out, memory, 1, count), HKT_ERR_INVALID, "copy on a device that is not");
    ranks_require_status(rank, hkt_device_alloc(&none, 1, -1), HKT_ERR_INVALID, "alloc on device -1");
    ranks_require_status(rank, hkt_device_alloc(NULL, 1, 0), HKT_ERR_INVALID, "alloc for nobody");
    ranks_require_status(rank, hkt_device_alloc(&none, (size_t)1 << 50, 0), HKT_ERR_NOMEM, "alloc of 1 PiB");
    ranks_require(rank, none == NULL, "an output should be untouched on failure");
    ranks_require_ok(rank, hkt_device_free(NULL), "free of NULL");
    ranks_require_ok(rank, hkt_device_free(memory), "free");
    ranks_require_status(rank, hkt_device_free(memory), HKT_ERR_SYSTEM, "free of what was freed");
    ranks_require(rank, live_objects(rank) == 0, "%d objects of CUDA are left", live_objects(rank));
}

static void no_devices(struct ranks_rank *rank)
{
    void *memory = NULL;
    int count = -1;

    ranks_require_status(rank, hkt_device_count(&count), HKT_ERR_UNSUPPORTED, "count without devices");
    ranks_require_text(rank, hkt_last_error(), "switched off");
    ranks_require(rank, count == -1, "an output should be untouched on failure");
    ranks_require_status(rank, hkt_device_alloc(&memory, 1, 0), HKT_ERR_UNSUPPORTED, "alloc without devices");
}

static void memory_of_devices_is_public(void **state)
{
    const char *settings[] = { far_module_setting(), DEVICES, BLIND, NULL }, *off[] = { "HOCKET_CUDA=off", NULL };
    struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 1, .settings = settings, .fn = memory_of_devices,
                             .no_comm = true, .leaves_descriptors = true };

    (void)state;
    ranks_run(&job);
    job.settings = off;
    job.fn = no_devices;
    ranks_run(&job);
}

/* --- The module ----------------------------------------------------------------------------------------------------- */

static void feature_says(struct ranks_rank *rank)
{
    const char *const *want = rank->arg; /* "yes" or "no", and part of the reason */
    struct hkt_feature feature;

    for (int i = 0; hkt_feature_get(i, &feature) == HKT_OK; i++) {
        if (strcmp(feature.name, "cuda") != 0)
            continue;
        ranks_require(rank, feature.present == (strcmp(want[0], "yes") == 0), "cuda is present: %d", feature.present);
        ranks_require_text(rank, feature.reason, want[1]);
        return;
    }
    ranks_require(rank, false, "there should be a row on cuda");
}

static void info_tells_what_is_there(void **state)
{
    static const char *const cases[][4] = {
        { NULL, DEVICES, "yes", "2 devices" },
        { NULL, "EMU_DEVICES=1", "yes", "1 device;" },
        { NULL, "EMU_DEVICES=0", "no", "no CUDA-capable device" },
        { NULL, "EMU_NO_DRIVER=1", "no", "driver version is insufficient" },
        { "HOCKET_CUDA=off", DEVICES, "no", "switched off" },
        { "HOCKET_CUDA=/nowhere/hocket_cuda.so", DEVICES, "no", "/nowhere/hocket_cuda.so" },
        { "HOCKET_CUDA=libm.so.6", DEVICES, "no", "not of this version" },
    };

    (void)state;
    far_need_emulation("a real machine's devices and driver are what they are");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *settings[] = { cases[i][0] != NULL ? cases[i][0] : far_module_setting(), cases[i][1], NULL };
        const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 1, .settings = settings, .fn = feature_says,
                                       .arg = (void *)&cases[i][2], .no_comm = true, .leaves_descriptors = true };

        ranks_run(&job);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_work_on_device_memory),
        cmocka_unit_test(a_call_of_cuda_that_fails_ends_the_communicator),
        cmocka_unit_test(memory_of_devices_is_public),
        cmocka_unit_test(info_tells_what_is_there),
    };

    if (!far_test_begin(argc, argv))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
