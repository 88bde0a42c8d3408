/* What could break: ranks that do not agree whether their devices reach each other; a mapping that does not work and is used; a
 * launch on the wrong stream, or out of order; a call that is captured in a graph and waits for something; two ranks of one
 * thread that wait for each other; a group that falls back to memory of the host and says nothing; launches that wait for
 * ever for a rank that failed, or never came; arenas freed while a peer maps them, or never; a call of CUDA that fails.
 *
 * The module is the emulated one, whose kernels run; or, by tests/gpu/run, the real one, of which nothing can be refused. */
#include <string.h>

#include <cuda_runtime_api.h>

#include "far_test.h"

#define LAUNCH_FAILURE 719

/** A group, and what it should come to. */
struct group {
    enum ranks_kind kind;
    int nranks;
    const char *setting;  /* of all ranks; NULL: none */
    const char *says;     /* part of hkt_comm_device */
};

static struct hkt_stream *new_stream(struct ranks_rank *rank, int device)
{
    struct hkt_stream *stream;

    ranks_require_ok(rank, hkt_device_stream_create(&stream, device), "stream");
    return stream;
}

/** Destroys the communicator, and waits until nothing of it is left: the last of those who mapped an arena frees it. */
static void end_comm(struct ranks_rank *rank)
{
    const int64_t until_ms = ranks_now_ms() + 20000;
    void *memory;

    ranks_require_ok(rank, hkt_comm_destroy(rank->comm), "destroy");
    rank->comm = NULL;
    ranks_meet(rank, 0);
    do { /* what others have closed is freed when memory is wanted */
        ranks_require_ok(rank, hkt_device_alloc(&memory, 1, 0), "alloc");
        ranks_require_ok(rank, hkt_device_free(memory), "free");
    } while (live_objects(rank) != 0 && ranks_now_ms() < until_ms);
    ranks_meet(rank, 1);
    ranks_require(rank, live_objects(rank) == 0, "%d objects of CUDA are left", live_objects(rank));
}

static void every_collective(struct ranks_rank *rank)
{
    const struct group *group = rank->arg;
    const size_t kinds = group->setting != NULL ? 1 : ranks_small() || rank->nranks > 4 ? FAR_KINDS - 1 : FAR_KINDS;
    struct hkt_stream *streams[2];
    struct call call;
    struct far far;

    far_init(&far, rank, far_room(kinds, rank->nranks));
    for (int i = 0; i < 2; i++)
        streams[i] = new_stream(rank, far.device);
    ranks_require(rank, hkt_comm_device(rank->comm)[0] == '\0', "nothing should be known yet");
    for (int coll = 0; coll < HKT_SEND_RECV; coll++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (size_t i = 0; i < kinds; i++)
                if (far_kind((enum hkt_coll)coll, in_place != 0, i, rank->nranks, &call))
                    far_call(&far, &call, BOTH, streams[(i + (size_t)in_place) % 2]);
    ranks_require_text(rank, hkt_comm_device(rank->comm), group->says);
    ranks_require_ok(rank, hkt_barrier(rank->comm, streams[0]), "barrier");
    for (int i = 0; i < 2; i++)
        hkt_stream_destroy(streams[i]);
    far_fini(&far);
    end_comm(rank);
}

static void run(const struct group *group, ranks_fn *fn)
{
    const char *settings[] = { far_module_setting(), DEVICES, "HOCKET_TIMEOUT=30s", "HOCKET_CUDA_BYTES=4M", group->setting, NULL };
    const struct ranks_job job = { .kind = group->kind, .nranks = group->nranks, .settings = settings, .fn = fn,
                                   .arg = (void *)group, .leaves_descriptors = true };

    ranks_run(&job);
}

static void collectives_run_on_streams_of_cuda(void **state)
{
    static const struct group groups[] = {
        { RANKS_THREADS, 1, NULL, "on the devices" },
        { RANKS_THREADS, 3, NULL, "all in this process" },
        { RANKS_PROCESSES, 2, NULL, "CUDA IPC" },
        { RANKS_PROCESSES, 5, NULL, "CUDA IPC" },
        { RANKS_THREADS, 8, NULL, "all in this process" },
        { RANKS_PROCESSES, 8, NULL, "CUDA IPC" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups - (ranks_small() ? 3 : 0); i++)
        run(&groups[i], every_collective);
}

static void where_devices_do_not_reach_each_other_all_ranks_use_the_host(void **state)
{
    static const struct group groups[] = {
        { RANKS_PROCESSES, 2, "EMU_IPC=0", "of another process" },
        { RANKS_THREADS, 2, "EMU_PEERS=0", "peer access is not supported" },
        { RANKS_THREADS, 2, "HOCKET_CUDA_DIRECT=0", "HOCKET_CUDA_DIRECT" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (far_is_emulated() || i == 2)
            run(&groups[i], every_collective);
}

/* --- Graphs --------------------------------------------------------------------------------------------------------- */

/** A graph of one all-reduce, in place, of f32 in memory of the device. */
static cudaGraphExec_t capture(struct ranks_rank *rank, const struct far_cuda *cuda, cudaStream_t stream, float *memory, size_t n)
{
    struct hkt_stream *ours;
    cudaGraph_t graph;
    cudaGraphExec_t executable;

    ranks_require_ok(rank, hkt_stream_from_cuda(&ours, stream), "from_cuda");
    ranks_require(rank, cuda->begin(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "a capture should begin");
    ranks_require_ok(rank, hkt_all_reduce(memory, memory, n, HKT_F32, HKT_SUM, rank->comm, ours), "captured call");
    ranks_require(rank, cuda->end(stream, &graph) == cudaSuccess, "the capture should be whole");
    hkt_stream_destroy(ours);
    ranks_require(rank, cuda->instantiate(&executable, graph, 0) == cudaSuccess, "the graph should be usable");
    ranks_require(rank, cuda->free_graph(graph) == cudaSuccess, "the graph should be freed");
    return executable;
}

/** A first call, then a graph of one that is launched three times: sums multiply by the ranks each time. */
static void graphs(struct ranks_rank *rank)
{
    enum { N = 500 };
    const struct far_cuda cuda = far_cuda(rank);
    const int device = rank->rank % ndevices(rank);
    struct hkt_stream *ours;
    cudaStream_t stream;
    cudaGraph_t graph;
    float x[N], want = 1;
    void *memory;

    ranks_require(rank, cuda.set_device(device) == cudaSuccess && cuda.create(&stream, cudaStreamNonBlocking) == cudaSuccess,
                  "there should be a stream");
    ranks_require_ok(rank, hkt_stream_from_cuda(&ours, stream), "from_cuda");
    ranks_require_ok(rank, hkt_device_alloc(&memory, sizeof x, device), "alloc");
    for (int i = 0; i < N; i++)
        x[i] = 1;
    ranks_require_ok(rank, hkt_device_copy(memory, x, sizeof x, device), "copy");
    ranks_meet(rank, 2); /* allocations of one thread spoil what another captures: so CUDA has it */
    ranks_require(rank, cuda.begin(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "a capture should begin");
    ranks_require_status(rank, hkt_all_reduce(memory, memory, N, HKT_F32, HKT_SUM, rank->comm, ours), HKT_ERR_UNSUPPORTED,
                         "the first call, captured");
    ranks_require(rank, cuda.end(stream, &graph) == cudaSuccess && cuda.free_graph(graph) == cudaSuccess,
                  "a call that is refused should leave the capture alone");
    ranks_meet(rank, 3);
    ranks_require_ok(rank, hkt_all_reduce(memory, memory, N, HKT_F32, HKT_SUM, rank->comm, ours), "the first call");
    ranks_meet(rank, 4);
    const cudaGraphExec_t executable = capture(rank, &cuda, stream, memory, N);

    ranks_meet(rank, 5);
    for (int i = 0; i < 3; i++)
        ranks_require(rank, cuda.launch(executable, stream) == cudaSuccess, "the graph should be launched");
    ranks_require_ok(rank, hkt_stream_synchronize(ours), "synchronize");
    ranks_require_ok(rank, hkt_device_copy(x, memory, sizeof x, device), "copy");
    for (int i = 0; i < 4; i++)
        want *= (float)rank->nranks;
    for (int i = 0; i < N; i++)
        ranks_require(rank, x[i] == want, "element %d should be %g, not %g", i, (double)want, (double)x[i]);
    ranks_require(rank, cuda.free_executable(executable) == cudaSuccess, "the graph should be freed");
    hkt_stream_destroy(ours);
    ranks_require(rank, cuda.destroy(stream) == cudaSuccess, "the stream should still be the user's");
    ranks_require_ok(rank, hkt_device_free(memory), "free");
    end_comm(rank);
}

static void calls_are_captured_in_graphs(void **state)
{
    static const struct group groups[] = { { RANKS_THREADS, 2, NULL, NULL }, { RANKS_PROCESSES, 2, NULL, NULL } };

    (void)state;
    far_need_emulation("the module for GPUs hides CUDA's own functions");
    for (size_t i = 0; i < sizeof groups / sizeof *groups - (ranks_small() ? 1 : 0); i++) /* each sees its own calls alone */
        run(&groups[i], graphs);
}

/* --- Wrong calls, and ranks that do not come --------------------------------------------------------------------------- */

static void wrong_calls(struct ranks_rank *rank)
{
    const int device = rank->rank % ndevices(rank), other = (device + 1) % ndevices(rank);
    struct hkt_stream *stream = new_stream(rank, device), *elsewhere = new_stream(rank, other), *none = NULL;
    struct hkt_event *event;
    float near[4] = { 0 };
    void *memory;

    ranks_require_ok(rank, hkt_device_alloc(&memory, sizeof near, device), "alloc");
    ranks_require_status(rank, hkt_all_reduce(near, near, 4, HKT_F32, HKT_SUM, rank->comm, stream), HKT_ERR_INVALID,
                         "memory of the host on a CUDA stream");
    ranks_require_ok(rank, hkt_all_reduce(memory, memory, 4, HKT_F32, HKT_SUM, rank->comm, stream), "after a wrong call");
    if (other != device)
        ranks_require_status(rank, hkt_all_reduce(memory, memory, 4, HKT_F32, HKT_SUM, rank->comm, elsewhere), HKT_ERR_INVALID,
                             "a stream of another device");
    ranks_require_ok(rank, hkt_event_create(&event), "event");
    ranks_require_status(rank, hkt_event_record(event, stream), HKT_ERR_UNSUPPORTED, "an event of the host");
    ranks_require_status(rank, hkt_stream_from_cuda(NULL, NULL), HKT_ERR_INVALID, "a stream for nobody");
    ranks_require_status(rank, hkt_device_stream_create(&none, 1000), HKT_ERR_SYSTEM, "a stream of a device that is not");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "synchronize");
    ranks_require_ok(rank, hkt_stream_query(stream), "query");
    hkt_event_destroy(event);
    hkt_stream_destroy(stream);
    hkt_stream_destroy(elsewhere);
    ranks_require_ok(rank, hkt_device_free(memory), "free");
    end_comm(rank);
}

/** The last rank makes one call only, and then waits or revokes; what the others have launched ends with an error. */
static void left_alone(struct ranks_rank *rank)
{
    const bool revokes = strcmp(rank->arg, "revoke") == 0, is_last = rank->rank == rank->nranks - 1;
    const int device = rank->rank % ndevices(rank);
    struct hkt_stream *stream = new_stream(rank, device);
    void *memory;

    ranks_require_ok(rank, hkt_device_alloc(&memory, 4000, device), "alloc");
    ranks_require_ok(rank, hkt_all_reduce(memory, memory, 1000, HKT_F32, HKT_MAX, rank->comm, stream), "first call");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "first synchronize");
    if (!is_last) {
        ranks_require_ok(rank, hkt_all_reduce(memory, memory, 1000, HKT_F32, HKT_MAX, rank->comm, stream), "second call");
        ranks_meet(rank, 0);
        const enum hkt_status rc = hkt_stream_synchronize(stream);

        ranks_require(rank, rc == (revokes ? HKT_ERR_ABORTED : HKT_ERR_TIMEOUT), "it should not end as %s: %s",
                      hkt_status_name(rc), hkt_last_error());
        ranks_require(rank, hkt_comm_status(rank->comm) == rc, "the communicator should have failed");
    } else {
        ranks_meet(rank, 0);
        if (revokes)
            hkt_comm_revoke(rank->comm);
    }
    ranks_meet(rank, 1);
    hkt_stream_destroy(stream);
    ranks_require_ok(rank, hkt_device_free(memory), "free");
    (void)!hkt_comm_destroy(rank->comm);
    rank->comm = NULL;
}

static void launches_end_when_the_communicator_fails(void **state)
{
    const char *settings[] = { far_module_setting(), DEVICES, "HOCKET_TIMEOUT=30s", "HOCKET_CUDA_BYTES=4M", NULL };
    struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 2, .settings = settings, .fn = left_alone, .arg = (void *)"revoke",
                             .leaves_descriptors = true };

    (void)state;
    ranks_run(&job);
    job.kind = RANKS_PROCESSES;
    if (!ranks_small()) /* where each start takes a second */
        ranks_run(&job);
    job.arg = (void *)"wait";
    /* what a rank may be late by before the last call */
    settings[2] = ranks_small() ? "HOCKET_TIMEOUT=6s" : "HOCKET_TIMEOUT=4s";
    ranks_run(&job);
}

static void wrong_calls_are_refused(void **state)
{
    static const struct group group = { RANKS_THREADS, 2, NULL, NULL };

    (void)state;
    run(&group, wrong_calls);
}

/* --- Failures of CUDA ----------------------------------------------------------------------------------------------- */

/** A call of a kind, of few elements; buffers of 4000 bytes each. */
static enum hkt_status issue(enum hkt_coll coll, char *in, char *out, struct hkt_comm *comm, struct hkt_stream *stream)
{
    enum { N = 300 };
    static const size_t counts[2] = { N, N }, displs[2] = { 0, N };
    const struct hkt_blocks blocks = { counts, displs, counts, displs };

    switch (coll) {
    case HKT_ALL_REDUCE:
        return hkt_all_reduce(in, out, N, HKT_F32, HKT_AVG, comm, stream);
    case HKT_REDUCE:
        return hkt_reduce(in, out, N, HKT_F32, HKT_MAX, 1, comm, stream);
    case HKT_BROADCAST:
        return hkt_broadcast(in, out, N, HKT_F32, 1, comm, stream);
    case HKT_REDUCE_SCATTER:
        return hkt_reduce_scatter(in, out, N, HKT_F32, HKT_SUM, comm, stream);
    case HKT_ALL_GATHER:
        return hkt_all_gather(in, out, N, HKT_F32, comm, stream);
    case HKT_ALL_TO_ALL:
        return hkt_all_to_all(in, out, N, HKT_F32, comm, stream);
    case HKT_GATHER:
        return hkt_gather(in, out, N, HKT_F32, 1, comm, stream);
    case HKT_SCATTER:
        return hkt_scatter(in, out, N, HKT_F32, 1, comm, stream);
    case HKT_ALL_GATHER_V:
        return hkt_all_gather_v(in, N, out, counts, displs, HKT_F32, comm, stream);
    case HKT_REDUCE_SCATTER_V:
        return hkt_reduce_scatter_v(in, out, counts, HKT_F32, HKT_SUM, comm, stream);
    case HKT_ALL_TO_ALL_V:
        return hkt_all_to_all_v(in, out, &blocks, HKT_F32, comm, stream);
    default:
        return hkt_barrier(comm, stream);
    }
}

/** Each of two ranks sends to the other. */
static enum hkt_status exchange(int me, char *in, char *out, struct hkt_comm *comm, struct hkt_stream *stream)
{
    enum { N = 300 };
    const enum hkt_status rc = hkt_send(in, N, HKT_F32, 1 - me, comm, stream);

    return rc == HKT_OK ? hkt_recv(out, N, HKT_F32, 1 - me, comm, stream) : rc;
}

/** Two ranks that this thread drives, each on a stream of its own. */
struct pair {
    struct ranks_rank *rank;
    struct hkt_comm *comms[2];
    struct hkt_stream *streams[2];
    void *buffers[2];
    int objects; /* before it was made */
};

static void pair_open(struct pair *p, struct ranks_rank *rank)
{
    p->rank = rank;
    p->objects = live_objects(rank);
    ranks_require_ok(rank, hkt_comm_init_all(p->comms, 2, NULL), "init");
    for (int r = 0; r < 2; r++) {
        ranks_require_ok(rank, hkt_device_alloc(&p->buffers[r], 8000, r), "alloc");
        p->streams[r] = new_stream(rank, r);
    }
}

static enum hkt_status pair_issue(struct pair *p, enum hkt_coll coll)
{
    enum hkt_status rc = hkt_group_start();

    for (int r = 0; r < 2 && rc == HKT_OK; r++) {
        char *in = p->buffers[r];

        rc = coll == HKT_SEND_RECV ? exchange(r, in, in + 4000, p->comms[r], p->streams[r])
                                   : issue(coll, in, in + 4000, p->comms[r], p->streams[r]);
    }
    const enum hkt_status end = hkt_group_end();

    return rc == HKT_OK ? end : rc;
}

static void pair_close(struct pair *p, const char *failed)
{
    for (int r = 0; r < 2; r++) {
        hkt_stream_destroy(p->streams[r]);
        (void)!hkt_comm_destroy(p->comms[r]);
        ranks_require_ok(p->rank, hkt_device_free(p->buffers[r]), "free");
    }
    ranks_require_ok(p->rank, hkt_device_alloc(&p->buffers[0], 1, 0), "alloc");
    ranks_require_ok(p->rank, hkt_device_free(p->buffers[0]), "free");
    if (failed == NULL || (strstr(failed, "Destroy") == NULL && strstr(failed, "Free") == NULL)) /* those leave what they are of */
        ranks_require(p->rank, live_objects(p->rank) == p->objects, "%d objects of CUDA are left after %s failed",
                      live_objects(p->rank) - p->objects, failed != NULL ? failed : "nothing");
}

/** A first call of a kind, after another one or not, with the k-th call of CUDA from then on failing; 0: none. */
struct first {
    enum hkt_coll before, coll; /* before == coll: it is the communicator's first */
    long k;
};

/** Names of calls of CUDA, in order. */
struct names {
    const char *list[512];
    long count;
};

/** Makes the call and tells what calls of CUDA it made. */
static void fails_at(struct ranks_rank *rank, const struct first *first, struct names *out_names)
{
    void (*fail_call)(long k, int error);
    const char *(*failed_call)(void), *(*call_name)(long call);
    long (*calls)(void);
    struct pair p;

    *(void **)&fail_call = emulator(rank, "emu_fail_call");
    *(void **)&failed_call = emulator(rank, "emu_failed_call");
    *(void **)&call_name = emulator(rank, "emu_call_name");
    *(void **)&calls = emulator(rank, "emu_calls");
    pair_open(&p, rank);
    if (first->before != first->coll) {
        ranks_require_ok(rank, pair_issue(&p, first->before), "the first call");
        for (int r = 0; r < 2; r++)
            ranks_require_ok(rank, hkt_stream_synchronize(p.streams[r]), "the first call");
    }
    const long begin = calls();

    fail_call(first->k, LAUNCH_FAILURE);
    const enum hkt_status rc = pair_issue(&p, first->coll);
    const char *failed = failed_call();

    fail_call(0, 0);
    out_names->count = calls() - begin;
    ranks_require(rank, out_names->count <= 512, "%ld calls of CUDA are more than the test has room for", out_names->count);
    for (long i = 0; i < out_names->count; i++)
        out_names->list[i] = call_name(begin + 1 + i);
    for (int r = 0; r < 2; r++) {
        const enum hkt_status synchronized = hkt_stream_synchronize(p.streams[r]);

        ranks_require(rank, synchronized == HKT_OK || rc < 0, "%s failed and only the stream said so", failed);
    }
    if (rc < 0)
        ranks_require_text(rank, hkt_last_error(), "unspecified launch failure");
    if (rc == HKT_OK && failed != NULL && first->coll != HKT_SEND_RECV) /* the group has agreed on the host, and why */
        ranks_require(rank, strstr(hkt_comm_device(p.comms[0]), "unspecified launch failure") != NULL ||
                      strstr(hkt_comm_device(p.comms[0]), "on the devices") != NULL, "after %s: %s", failed,
                      hkt_comm_device(p.comms[0]));
    ranks_require(rank, rc == HKT_OK || failed != NULL, "nothing failed, and the call said %s", hkt_last_error());
    ranks_require(rank, first->k == 0 || failed != NULL, "call %ld of %s should have failed", first->k, hkt_coll_name(first->coll));
    pair_close(&p, failed);
}

/** Was a call, and those just before it, made in the same order among those of the list? */
static bool is_known(const struct names *list, const struct names *of, long at)
{
    enum { BEFORE = 6 };

    for (long i = BEFORE; at >= BEFORE && i < list->count; i++) {
        long n = 0;

        while (n <= BEFORE && strcmp(list->list[i - n], of->list[at - n]) == 0)
            n++;
        if (n > BEFORE)
            return true;
    }
    return false;
}

/** All-reduce as the first call of all, with what ranks agree upon: each call of CUDA fails in turn. Then the first of each other
 *  kind, after that; messages also before anything else, when they go another way. What these do as one before did is left out. */
static void every_call_fails(struct ranks_rank *rank)
{
    static struct names lists[HKT_SEND_RECV + 2];
    struct names none;
    int step = 0;

    (void)module_of(rank); /* opened, so that the emulator's functions are there */
    for (int kind = 0; kind < HKT_SEND_RECV + 2; kind++) {
        const bool is_first = kind == HKT_ALL_REDUCE || kind > HKT_SEND_RECV;
        const enum hkt_coll coll = kind > HKT_SEND_RECV ? HKT_SEND_RECV : (enum hkt_coll)kind;
        struct first call = { is_first ? coll : HKT_ALL_REDUCE, coll, 0 };

        fails_at(rank, &call, &lists[kind]);
        for (call.k = 1; call.k <= lists[kind].count; call.k++) {
            bool known = false;

            for (int i = 0; i < kind && !known; i++)
                known = is_known(&lists[i], &lists[kind], call.k - 1);
            if (known || (ranks_small() && step++ % 31 != 0))
                continue;
            fails_at(rank, &call, &none);
        }
        ranks_require(rank, lists[kind].count > (kind == HKT_ALL_REDUCE ? 100 : 10), "only %ld calls of CUDA were made", lists[kind].count);
    }
}

static void a_call_of_cuda_that_fails_is_agreed_upon(void **state)
{
    const char *settings[] = { far_module_setting(), DEVICES, "HOCKET_TIMEOUT=20s", "HOCKET_CUDA_BYTES=2M", NULL };
    const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 1, .settings = settings, .fn = every_call_fails,
                                   .no_comm = true, .leaves_descriptors = true };

    (void)state;
    far_need_emulation("of a GPU no call of CUDA can be made to fail");
    ranks_run(&job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_run_on_streams_of_cuda),
        cmocka_unit_test(where_devices_do_not_reach_each_other_all_ranks_use_the_host),
        cmocka_unit_test(calls_are_captured_in_graphs),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(launches_end_when_the_communicator_fails),
        cmocka_unit_test(a_call_of_cuda_that_fails_is_agreed_upon),
    };

    return far_test_begin(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
