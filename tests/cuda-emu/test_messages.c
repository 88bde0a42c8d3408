/* What could break: sends, receives, barriers and pre-multiplied sums on CUDA streams that wait for something, or go through the host and say
 * nothing; messages that overtake collectives; a group on several streams that starts before, or is over before, all of them;
 * ranks that take no part; captured messages that forget what they were; the way through the host where devices do not reach
 * each other, or before anybody knows. Each piece of data is enqueued, nothing is waited for in between. */
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "exact.h"
#include "far_test.h"

#define ROOM (2 << 20)

/** A rank's memory on its device, and what should be there. */
struct desk {
    struct ranks_rank *rank;
    struct hkt_comm *comm;
    int device, me, n;
    struct hkt_stream *streams[3];
    char *memory;
    unsigned char want[ROOM], got[ROOM];
    size_t used;
};

static void desk_open(struct desk *d, struct ranks_rank *rank, struct hkt_comm *comm, int me)
{
    void *memory;

    memset(d, 0, sizeof *d);
    d->rank = rank;
    d->comm = comm;
    d->me = me;
    d->n = hkt_comm_size(comm);
    d->device = me % ndevices(rank);
    for (int i = 0; i < 3; i++)
        ranks_require_ok(rank, hkt_device_stream_create(&d->streams[i], d->device), "stream");
    ranks_require_ok(rank, hkt_device_alloc(&memory, ROOM, d->device), "alloc");
    ranks_require_ok(rank, hkt_device_copy(memory, d->want, ROOM, d->device), "clear");
    d->memory = memory;
}

/** For the rank's thread: too large for its stack. */
static struct desk *desk_new(struct ranks_rank *rank)
{
    struct desk *d = malloc(sizeof *d);

    ranks_require(rank, d != NULL, "no memory");
    return d;
}

static void desk_settle(struct desk *d)
{
    for (int i = 0; i < 3; i++)
        ranks_require_ok(d->rank, hkt_stream_synchronize(d->streams[i]), "synchronize");
}

static void desk_check(struct desk *d, const char *what)
{
    desk_settle(d);
    ranks_require_ok(d->rank, hkt_device_copy(d->got, d->memory, d->used, d->device), "copy");
    for (size_t i = 0; i < d->used; i++)
        ranks_require(d->rank, d->got[i] == d->want[i], "%s: byte %zu of rank %d should be %02x, not %02x", what, i, d->me,
                      d->want[i], d->got[i]);
}

static void desk_close(struct desk *d)
{
    for (int i = 0; i < 3; i++)
        hkt_stream_destroy(d->streams[i]);
    ranks_require_ok(d->rank, hkt_device_free(d->memory), "free");
}

static unsigned char byte_of(int from, int to, int k, size_t i)
{
    return (unsigned char)((unsigned)from * 61u + (unsigned)to * 17u + (unsigned)k * 101u + (unsigned)i * 7u);
}

/** The next `bytes` of the room, somewhat misaligned. */
static size_t take(struct desk *d, size_t bytes)
{
    const size_t at = d->used + (d->used / 64) % 5;

    d->used = (at + bytes + 63) / 64 * 64;
    ranks_require(d->rank, d->used <= ROOM, "the room is too small");
    return at;
}

/** The k-th message of a pair, as a call: on stream (k + peer) % nstreams. */
static void send_one(struct desk *d, int to, int k, size_t bytes, int nstreams)
{
    const size_t at = take(d, bytes);

    for (size_t i = 0; i < bytes; i++)
        d->want[at + i] = byte_of(d->me, to, k, i);
    ranks_require_ok(d->rank, hkt_device_copy(d->memory + at, d->want + at, bytes, d->device), "fill");
    ranks_require_ok(d->rank, hkt_send(d->memory + at, bytes, HKT_UINT8, to, d->comm, d->streams[(k + to) % nstreams]), "send");
}

static void receive_one(struct desk *d, int from, int k, size_t bytes, int nstreams)
{
    const size_t at = take(d, bytes);

    for (size_t i = 0; i < bytes; i++)
        d->want[at + i] = byte_of(from, d->me, k, i);
    ranks_require_ok(d->rank, hkt_recv(d->memory + at, bytes, HKT_UINT8, from, d->comm, d->streams[(k + from) % nstreams]), "recv");
}

/** Bytes of the k-th message from one rank to another. */
static size_t size_of(int from, int to, int k)
{
    static const size_t sizes[] = { 1, 300, 5000, 70001, 0 };

    return sizes[(from + to + k) % 5] % (k < 3 ? SIZE_MAX : 777);
}

/** One group with every rank, the own one included: `many` messages each way. */
static void all_to_all(struct desk *d, int many, int nstreams)
{
    for (int peer = 0; peer < d->n; peer++)
        for (int k = 0; k < many; k++) {
            send_one(d, peer, k, size_of(d->me, peer, k), nstreams);
            receive_one(d, peer, k, size_of(d->me, peer, k), nstreams);
        }
}

static void group_of_all(struct desk *d, int many, int nstreams)
{
    ranks_require_ok(d->rank, hkt_group_start(), "group");
    all_to_all(d, many, nstreams);
    ranks_require_ok(d->rank, hkt_group_end(), "group of messages");
}

static void sum(struct desk *d, int nstream)
{
    const size_t at = (take(d, 4000) + 3) / 4 * 4;
    int32_t ones[900];

    for (int i = 0; i < 900; i++)
        ones[i] = i + d->me;
    ranks_require_ok(d->rank, hkt_device_copy(d->memory + at, ones, sizeof ones, d->device), "fill");
    for (int i = 0; i < 900; i++)
        ones[i] = i * d->n + d->n * (d->n - 1) / 2;
    memcpy(d->want + at, ones, sizeof ones);
    ranks_require_ok(d->rank, hkt_all_reduce(d->memory + at, d->memory + at, 900, HKT_INT32, HKT_SUM, d->comm, d->streams[nstream]),
                     "all_reduce");
}

/** Neighbours alone, one call after another, not in a group. */
static void pass_on(struct desk *d, int k)
{
    if (d->me < 2 && d->n > 1) {
        if (d->me == 0)
            send_one(d, 1, k, 3001, 1);
        else
            receive_one(d, 0, k, 3001, 1);
    }
}

struct group {
    enum ranks_kind kind;
    int nranks;
    const char *setting, *says;
};

static void messages(struct ranks_rank *rank)
{
    const struct group *group = rank->arg;
    struct desk *d = desk_new(rank);
    void *shared;

    desk_open(d, rank, rank->comm, rank->rank);
    ranks_meet(rank, 2);
    pass_on(d, 0);
    group_of_all(d, 1, 2);
    desk_check(d, "before any collective");
    ranks_require(rank, hkt_comm_device(rank->comm)[0] == '\0', "messages alone should decide nothing");
    if (rank->nranks % 2 == 0)
        ranks_require_ok(rank, hkt_barrier(rank->comm, d->streams[0]), "barrier");
    else
        ranks_require_ok(rank, hkt_mem_alloc_device(&shared, 1, d->device, rank->comm), "mem_alloc_device");
    ranks_require_text(rank, hkt_comm_device(rank->comm), group->says);
    group_of_all(d, 3, 1);
    sum(d, 0);
    pass_on(d, 1);
    ranks_require_ok(rank, hkt_barrier(rank->comm, d->streams[0]), "barrier");
    pass_on(d, 2);
    sum(d, 1);
    if (rank->nranks == 2) /* three times as many messages as a launch holds */
        group_of_all(d, 70, 1);
    group_of_all(d, 2, 3);
    desk_check(d, "after collectives");
    desk_close(d);
    free(d);
}

static void run(const struct group *group, ranks_fn *fn)
{
    const char *settings[] = { far_module_setting(), DEVICES, "HOCKET_TIMEOUT=30s", "HOCKET_CUDA_BYTES=4M", group->setting, NULL };
    const struct ranks_job job = { .kind = group->kind, .nranks = group->nranks, .settings = settings, .fn = fn,
                                   .arg = (void *)group, .leaves_descriptors = true };

    ranks_run(&job);
}

static void messages_run_on_streams_of_cuda(void **state)
{
    static const struct group groups[] = {
        { RANKS_THREADS, 1, NULL, "on the devices" },
        { RANKS_THREADS, 2, NULL, "all in this process" },
        { RANKS_PROCESSES, 3, NULL, "CUDA IPC" },
        { RANKS_PROCESSES, 2, "EMU_IPC=0", "of another process" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (far_is_emulated() || groups[i].setting == NULL)
            run(&groups[i], messages);
}

/* --- One thread, graphs, wrong calls, peers that do not come ----------------------------------------------------------- */

/** Two ranks of this thread: their calls are one group, and each waits for the other's. */
static void one_thread(struct ranks_rank *rank)
{
    static struct desk desks[2];
    struct hkt_comm *comms[2];

    ranks_require_ok(rank, hkt_comm_init_all(comms, 2, NULL), "init");
    for (int r = 0; r < 2; r++)
        desk_open(&desks[r], rank, comms[r], r);
    for (int again = 0; again < 2; again++) {
        ranks_require_ok(rank, hkt_group_start(), "group");
        for (int r = 0; r < 2; r++)
            all_to_all(&desks[r], 2, 1);
        ranks_require_ok(rank, hkt_group_end(), "messages of two ranks");
        ranks_require_ok(rank, hkt_group_start(), "group");
        for (int r = 0; r < 2; r++)
            ranks_require_ok(rank, hkt_barrier(comms[r], desks[r].streams[0]), "barrier");
        ranks_require_ok(rank, hkt_group_end(), "barriers of two ranks");
    }
    for (int r = 0; r < 2; r++)
        desk_check(&desks[r], "two ranks of a thread");
    for (int r = 0; r < 2; r++) {
        desk_close(&desks[r]);
        ranks_require_ok(rank, hkt_comm_destroy(comms[r]), "destroy");
    }
}

static void one_thread_drives_two_ranks(void **state)
{
    const char *settings[] = { far_module_setting(), DEVICES, "HOCKET_TIMEOUT=20s", "HOCKET_CUDA_BYTES=2M", NULL };
    const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 1, .settings = settings, .fn = one_thread, .no_comm = true,
                                   .leaves_descriptors = true };

    (void)state;
    ranks_run(&job);
}

/** A ring of groups and barriers, captured on one stream, which is all that the emulation captures: each launch moves every
 *  rank's block one rank on. */
static void graph_of_a_ring(struct ranks_rank *rank)
{
    enum { N = 200, TIMES = 3 };
    const struct far_cuda cuda = far_cuda(rank);
    const int device = rank->rank % ndevices(rank), n = rank->nranks, me = rank->rank;
    struct hkt_stream *ours[2];
    cudaStream_t streams[2];
    cudaGraphExec_t executable;
    cudaGraph_t graph;
    int32_t x[2 * N];
    void *memory;

    ranks_require(rank, cuda.set_device(device) == cudaSuccess, "there should be a device");
    for (int i = 0; i < 2; i++) {
        ranks_require(rank, cuda.create(&streams[i], cudaStreamNonBlocking) == cudaSuccess, "there should be a stream");
        ranks_require_ok(rank, hkt_stream_from_cuda(&ours[i], streams[i]), "from_cuda");
    }
    ranks_require_ok(rank, hkt_device_alloc(&memory, sizeof x, device), "alloc");
    for (int i = 0; i < 2 * N; i++)
        x[i] = me * 1000 + i % N;
    ranks_require_ok(rank, hkt_device_copy(memory, x, sizeof x, device), "copy");
    int32_t *from = memory, *to = from + N;

    ranks_meet(rank, 2);
    ranks_require(rank, cuda.begin(streams[0], cudaStreamCaptureModeGlobal) == cudaSuccess, "a capture should begin");
    ranks_require_status(rank, hkt_send(from, N, HKT_INT32, (me + 1) % n, rank->comm, ours[0]), HKT_ERR_UNSUPPORTED,
                         "captured before any collective");
    ranks_require(rank, cuda.end(streams[0], &graph) == cudaSuccess && cuda.free_graph(graph) == cudaSuccess, "and left alone");
    ranks_meet(rank, 3);
    ranks_require_ok(rank, hkt_barrier(rank->comm, ours[0]), "the first call");
    ranks_meet(rank, 4);
    ranks_require(rank, cuda.begin(streams[0], cudaStreamCaptureModeGlobal) == cudaSuccess, "a capture should begin");
    ranks_require_ok(rank, hkt_group_start(), "group");
    for (int i = 0; i < 2; i++)
        ranks_require_ok(rank, hkt_send(from, N, HKT_INT32, (me + 1) % n, rank->comm, ours[i]), "send");
    ranks_require_status(rank, hkt_group_end(), HKT_ERR_INVALID, "a stream that is captured, and one that is not");
    for (int half = 0; half < 2; half++) {
        ranks_require_ok(rank, hkt_group_start(), "group");
        ranks_require_ok(rank, hkt_send(half == 0 ? from : to, N, HKT_INT32, (me + 1) % n, rank->comm, ours[0]), "send");
        ranks_require_ok(rank, hkt_recv(half == 0 ? to : from, N, HKT_INT32, (me + n - 1) % n, rank->comm, ours[0]), "recv");
        ranks_require_ok(rank, hkt_group_end(), "captured group");
        ranks_require_ok(rank, hkt_barrier(rank->comm, ours[0]), "captured barrier");
    }
    ranks_require(rank, cuda.end(streams[0], &graph) == cudaSuccess, "the capture should be whole");
    ranks_require(rank, cuda.instantiate(&executable, graph, 0) == cudaSuccess && cuda.free_graph(graph) == cudaSuccess,
                  "the graph should be usable");
    ranks_meet(rank, 5);
    for (int i = 0; i < TIMES; i++)
        ranks_require(rank, cuda.launch(executable, streams[0]) == cudaSuccess, "the graph should be launched");
    ranks_require_ok(rank, hkt_stream_synchronize(ours[0]), "synchronize");
    ranks_require_ok(rank, hkt_device_copy(x, memory, sizeof x, device), "copy");
    for (int i = 0; i < N; i++)
        ranks_require(rank, x[i] == (me + n * 2 * TIMES - 2 * TIMES) % n * 1000 + i, "element %d came out as %d", i, (int)x[i]);
    ranks_require(rank, cuda.free_executable(executable) == cudaSuccess, "the graph should be freed");
    for (int i = 0; i < 2; i++) {
        hkt_stream_destroy(ours[i]);
        ranks_require(rank, cuda.destroy(streams[i]) == cudaSuccess, "the stream should still be the user's");
    }
    ranks_require_ok(rank, hkt_device_free(memory), "free");
}

static void messages_are_captured_in_graphs(void **state)
{
    static const struct group groups[] = { { RANKS_THREADS, 2, NULL, NULL }, { RANKS_PROCESSES, 3, NULL, NULL } };

    (void)state;
    far_need_emulation("the module for GPUs hides CUDA's own functions");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        run(&groups[i], graph_of_a_ring);
}

/** All that reduce, by a sum that multiplies; and one captured, as only what runs on the devices can be. */
static void premultiplied_sums(struct ranks_rank *rank)
{
    static const enum hkt_dtype dtypes[] = { HKT_F32, HKT_INT8, HKT_BF16 };
    const struct far_cuda cuda = far_cuda(rank);
    enum hkt_op ops[3];
    struct hkt_stream *stream;
    cudaStream_t captured;
    cudaGraph_t graph;
    struct far far;

    far_init(&far, rank, far_room(3, rank->nranks));
    ranks_require(rank, cuda.set_device(far.device) == cudaSuccess && cuda.create(&captured, cudaStreamNonBlocking) == cudaSuccess,
                  "there should be a stream");
    ranks_require_ok(rank, hkt_stream_from_cuda(&stream, captured), "from_cuda");
    for (int i = 0; i < 3; i++) {
        unsigned char scalar[8];

        exact_scalar(dtypes[i], scalar);
        ranks_require_ok(rank, hkt_op_create_premulsum(&ops[i], scalar, dtypes[i], rank->comm), "premulsum");
    }
    for (int coll = 0; coll < HKT_SEND_RECV; coll++)
        for (int k = 0; k < 6 && calls_reduces((enum hkt_coll)coll); k++) {
            const struct call call = { .coll = (enum hkt_coll)coll, .dtype = dtypes[k % 3], .op = ops[k % 3], .kind = EXACT_PREMULSUM,
                                       .count = k == 1 ? 1 : 777, .in_place = k >= 3, .offset = k % 2 == 0 ? 0 : 8,
                                       .root = calls_has_root((enum hkt_coll)coll) ? rank->nranks - 1 : 0 };

            far_call(&far, &call, BOTH, stream);
        }
    ranks_meet(rank, 2);
    ranks_require(rank, cuda.begin(captured, cudaStreamCaptureModeGlobal) == cudaSuccess, "a capture should begin");
    ranks_require_ok(rank, hkt_all_reduce(far.send, far.recv, 100, HKT_F32, ops[0], rank->comm, stream), "captured");
    ranks_require(rank, cuda.end(captured, &graph) == cudaSuccess && cuda.free_graph(graph) == cudaSuccess, "a graph");
    hkt_stream_destroy(stream);
    ranks_require(rank, cuda.destroy(captured) == cudaSuccess, "the stream should still be the user's");
    ranks_meet(rank, 3);
    far_fini(&far);
}

static void premultiplied_sums_run_on_streams_of_cuda(void **state)
{
    static const struct group groups[] = { { RANKS_THREADS, 1, NULL, NULL }, { RANKS_THREADS, 3, NULL, NULL },
                                           { RANKS_PROCESSES, 2, NULL, NULL } };

    (void)state;
    far_need_emulation("of a GPU no call of CUDA can be made to fail");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        run(&groups[i], premultiplied_sums);
}

static void wrong_messages(struct ranks_rank *rank)
{
    struct hkt_stream *more[9];
    struct desk *d = desk_new(rank);
    char near[8];

    desk_open(d, rank, rank->comm, rank->rank);
    ranks_require_ok(rank, hkt_barrier(rank->comm, d->streams[0]), "barrier");
    ranks_require_status(rank, hkt_send(near, 8, HKT_UINT8, 1 - rank->rank, rank->comm, d->streams[0]), HKT_ERR_INVALID,
                         "memory of the host");
    ranks_require_status(rank, hkt_send(d->memory, 8, HKT_UINT8, rank->rank, rank->comm, d->streams[0]), HKT_ERR_INVALID,
                         "to itself, and no receive");
    ranks_require_ok(rank, hkt_group_start(), "group");
    for (int i = 0; i < 9; i++) {
        ranks_require_ok(rank, hkt_device_stream_create(&more[i], d->device), "stream");
        ranks_require_ok(rank, hkt_send(d->memory, 8, HKT_UINT8, 1 - rank->rank, rank->comm, more[i]), "send");
    }
    ranks_require_status(rank, hkt_group_end(), HKT_ERR_INVALID, "nine streams");
    for (int i = 0; i < 9; i++)
        hkt_stream_destroy(more[i]);
    group_of_all(d, 1, 1);
    desk_check(d, "after wrong calls");
    if (rank->rank == 0) { /* nobody sends that */
        ranks_require_ok(rank, hkt_recv(d->memory, 8, HKT_UINT8, 1, rank->comm, d->streams[1]), "recv");
        ranks_meet(rank, 0);
        ranks_require_status(rank, hkt_stream_synchronize(d->streams[1]), HKT_ERR_ABORTED, "a message that never comes");
    } else {
        ranks_meet(rank, 0);
        hkt_comm_revoke(rank->comm);
    }
    ranks_meet(rank, 1);
    desk_close(d);
    free(d);
    (void)!hkt_comm_destroy(rank->comm);
    rank->comm = NULL;
}

static void wrong_messages_are_refused_and_missing_ones_end(void **state)
{
    static const struct group group = { RANKS_PROCESSES, 2, NULL, NULL };

    (void)state;
    run(&group, wrong_messages);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_run_on_streams_of_cuda),
        cmocka_unit_test(one_thread_drives_two_ranks),
        cmocka_unit_test(messages_are_captured_in_graphs),
        cmocka_unit_test(premultiplied_sums_run_on_streams_of_cuda),
        cmocka_unit_test(wrong_messages_are_refused_and_missing_ones_end),
    };

    return far_test_begin(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
