/* What could break: a collective on memory of a GPU that reads or writes it as the host's; a buffer copied in part, to the
 * wrong place, or over what a call must leave alone; buffers of which only one is on a GPU; calls in place; messages to
 * oneself; the order of a stream; pinned memory that stays behind; a call of CUDA that fails and leaves other ranks waiting,
 * or says nothing; a module that is not there, not of this version, or has no driver.
 *
 * The module is the emulated one, with memory that faults when the program touches it (EMU_BLIND); or, by tests/gpu/run, the
 * real one, of which no call can be made to fail. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "device/cuda.h"
#include "ranks.h"

#define MARGINS 256 /* bytes that calls.h keeps before and behind a buffer */
#define DEVICES "EMU_DEVICES=2"
#define BLIND "EMU_BLIND=1"
#define LAUNCH_FAILURE 719

enum place { BOTH, ONLY_IN, ONLY_OUT, PLACES };

static char module_setting[4096]; /* "HOCKET_CUDA=path" */
static bool is_emulated;

static const struct hkt__cuda_module *module_of(struct ranks_rank *rank)
{
    char why[512];
    const struct hkt__cuda_module *module = hkt__cuda_open(module_setting + strlen("HOCKET_CUDA="), why, sizeof why);

    ranks_require(rank, module != NULL, "the emulated module should open: %s", why);
    return module;
}

/** A function of emu.h in the module. */
static void *emulator(struct ranks_rank *rank, const char *name)
{
    void *handle = dlopen(module_setting + strlen("HOCKET_CUDA="), RTLD_NOW | RTLD_NOLOAD);
    void *function = handle != NULL ? dlsym(handle, name) : NULL;

    ranks_require(rank, function != NULL, "%s should be in the module", name);
    dlclose(handle);
    return function;
}

/** 0 on a GPU, where nobody counts them. */
static int live_objects(struct ranks_rank *rank)
{
    int (*live)(void);

    if (!is_emulated)
        return 0;
    *(void **)&live = emulator(rank, "emu_live_objects");
    return live();
}

static int ndevices(struct ranks_rank *rank)
{
    int n = 0;

    ranks_require(rank, module_of(rank)->device_count(&n) == 0 && n > 0, "there should be a device");
    return n;
}

/* --- All collectives ------------------------------------------------------------------------------------------------ */

/** A rank's device, and both buffers of its calls there. */
struct far {
    struct ranks_rank *rank;
    const struct hkt__cuda_module *cuda;
    struct calls calls;
    int device;
    size_t bytes;
    char *send, *recv;
};

static void far_init(struct far *far, struct ranks_rank *rank, size_t room)
{
    void *p;

    *far = (struct far){ .rank = rank, .cuda = module_of(rank), .bytes = room + MARGINS };
    far->device = rank->rank % ndevices(rank);
    ranks_require(rank, calls_init(&far->calls, rank->comm, room), "no memory");
    ranks_require(rank, far->cuda->device_alloc(&p, far->bytes, far->device) == 0, "no memory on the device");
    far->send = p;
    ranks_require(rank, far->cuda->device_alloc(&p, far->bytes, far->device) == 0, "no memory on the device");
    far->recv = p;
}

static void far_fini(struct far *far)
{
    ranks_require(far->rank, far->cuda->device_free(far->send) == 0 && far->cuda->device_free(far->recv) == 0,
                  "memory of the device should be freed");
    calls_fini(&far->calls);
}

static void far_copy(const struct far *far, void *dst, const void *src)
{
    ranks_require(far->rank, far->cuda->copy_wait(dst, src, far->bytes, far->device) == 0, "a copy should work");
}

/** The buffers' image on the device; the call's pointers go there as `place` says. */
static void far_place(struct far *far, enum place place)
{
    struct calls *c = &far->calls;
    const unsigned char *in = c->in, *out = c->out;
    const bool in_send = in >= c->send && in < c->send + far->bytes, out_send = out >= c->send && out < c->send + far->bytes;

    far_copy(far, far->send, c->send);
    far_copy(far, far->recv, c->recv);
    if (in != NULL && place != ONLY_OUT)
        c->in = in_send ? far->send + (in - c->send) : far->recv + (in - c->recv);
    if (out != NULL && place != ONLY_IN)
        c->out = out_send ? far->send + (out - c->send) : far->recv + (out - c->recv);
}

/** Makes a call and looks at every byte of the buffers, wherever they were. */
static void far_call(struct far *far, const struct call *call, enum place place, struct hkt_stream *stream)
{
    char what[256], wrong[256];

    calls_fill(&far->calls, call);
    far_place(far, place);
    calls_print(call, what, sizeof what);
    ranks_require_ok(far->rank, calls_issue(&far->calls, call, stream), what);
    if (stream != NULL)
        ranks_require_ok(far->rank, hkt_stream_synchronize(stream), what);
    if (place != ONLY_OUT)
        far_copy(far, far->calls.send, far->send);
    if (place != ONLY_IN)
        far_copy(far, far->calls.recv, far->recv);
    ranks_require(far->rank, calls_check(&far->calls, call, wrong, sizeof wrong) == 0, "%s, place %d: %s", what,
                  (int)place, wrong);
}

/** Bytes of the largest buffer of any collective of so many elements. */
static size_t room_for(size_t count, int nranks)
{
    size_t room = 0;

    for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
        const struct call call = { .coll = (enum hkt_coll)coll, .dtype = HKT_F64, .count = count, .offset = 8 };
        const size_t need = calls_room(&call, nranks);

        room = need > room ? need : room;
    }
    return room;
}

static void every_collective(struct ranks_rank *rank)
{
    static const size_t counts[] = { 0, 1, 777, 40000 };
    static const enum hkt_dtype dtypes[] = { HKT_F32, HKT_INT8, HKT_F64 };
    struct far far;

    far_init(&far, rank, room_for(counts[ranks_small() ? 2 : 3], rank->nranks));
    for (int coll = 0; coll < HKT_SEND_RECV; coll++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (size_t i = 0; i < (ranks_small() ? 3 : 4); i++) {
                const bool reduces = calls_reduces((enum hkt_coll)coll);
                const struct call call = { .coll = (enum hkt_coll)coll, .dtype = dtypes[i % 3],
                                           .op = i % 2 == 0 ? HKT_SUM : HKT_AVG, .count = counts[i],
                                           .kind = reduces ? EXACT_BUILTIN : EXACT_PLAIN, .in_place = in_place != 0,
                                           .root = calls_has_root((enum hkt_coll)coll) ? rank->nranks - 1 : 0,
                                           .offset = i % 2 == 0 ? 0 : 8 };

                if (coll == HKT_BARRIER || (coll == HKT_ALL_TO_ALL_V && in_place))
                    continue;
                for (int place = BOTH; place < (in_place ? ONLY_IN : PLACES); place++)
                    far_call(&far, &call, (enum place)place, NULL);
            }
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
    const char *settings[] = { module_setting, DEVICES, BLIND, setting, NULL };
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
    const char *settings[] = { module_setting, DEVICES, BLIND, "HOCKET_TIMEOUT=20s", NULL };
    const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 1, .settings = settings, .fn = every_call_fails,
                                   .no_comm = true, .leaves_descriptors = true };

    (void)state;
    if (!is_emulated)
        skip();
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
    const char *settings[] = { module_setting, DEVICES, BLIND, NULL }, *off[] = { "HOCKET_CUDA=off", NULL };
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
    if (!is_emulated)
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *settings[] = { cases[i][0] != NULL ? cases[i][0] : module_setting, cases[i][1], NULL };
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

    if (argc != 2) {
        fprintf(stderr, "usage: test_cuda_collectives MODULE\n");
        return 2;
    }
    snprintf(module_setting, sizeof module_setting, "HOCKET_CUDA=%s", argv[1]);
    is_emulated = strstr(argv[1], "_emu") != NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
