/* What could break: messages in one group deadlock each other, arrive in the wrong order or at the wrong place; a group
 * that drives several communicators waits for one while another could go on; one thread cannot drive all ranks of a
 * process; collectives and messages in one group disturb each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "ranks.h"

enum { N = 4, LARGE = 300000, MESSAGES = 40 };

static void start(struct ranks_rank *rank)
{
    ranks_require_ok(rank, hkt_group_start(), "hkt_group_start");
}

static void end(struct ranks_rank *rank, const char *what)
{
    ranks_require_ok(rank, hkt_group_end(), what);
}

static void send(struct ranks_rank *rank, const void *data, size_t count, int peer)
{
    ranks_require_ok(rank, hkt_send(data, count, HKT_UINT8, peer, rank->comm, NULL), "hkt_send");
}

static void receive(struct ranks_rank *rank, void *data, size_t count, int peer)
{
    ranks_require_ok(rank, hkt_recv(data, count, HKT_UINT8, peer, rank->comm, NULL), "hkt_recv");
}

static unsigned char byte_of(int from, int to, int message, size_t i)
{
    return (unsigned char)((size_t)from * 89 + (size_t)to * 57 + (size_t)message * 31 + i * 7 + i / 255);
}

static unsigned char *make_message(struct ranks_rank *rank, int from, int to, int message, size_t bytes)
{
    unsigned char *data = malloc(bytes + 1);

    ranks_require(rank, data != NULL, "no memory");
    for (size_t i = 0; i < bytes; i++)
        data[i] = byte_of(from, to, message, i);
    data[bytes] = 0xee;
    return data;
}

static void check_message(struct ranks_rank *rank, const unsigned char *data, int from, int message, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ranks_require(rank, data[i] == byte_of(from, rank->rank, message, i), "byte %zu of message %d from rank %d", i,
                      message, from);
    ranks_require(rank, data[bytes] == 0xee, "message %d from rank %d ran over its end", message, from);
}

/** All send first, far more than channels hold: it must not matter. */
static void large_ring(struct ranks_rank *rank)
{
    const int next = (rank->rank + 1) % N, previous = (rank->rank + N - 1) % N;
    unsigned char *out = make_message(rank, rank->rank, next, 0, LARGE), *in = make_message(rank, 0, 0, 99, LARGE);

    for (int round = 0; round < 5; round++) {
        memset(in, 0, LARGE);
        start(rank);
        send(rank, out, LARGE, next);
        receive(rank, in, LARGE, previous);
        end(rank, "a ring of large messages");
        check_message(rank, in, previous, 0, LARGE);
    }
    free(out);
    free(in);
}

/** Every rank sends to every rank, itself included, in its own order, messages of all sizes. */
static void all_to_all_by_messages(struct ranks_rank *rank)
{
    static const size_t sizes[] = {0, 1, 33, 5000, 70000};
    unsigned char *out[N][5], *in[N][5];

    for (int peer = 0; peer < N; peer++)
        for (int s = 0; s < 5; s++) {
            out[peer][s] = make_message(rank, rank->rank, peer, s, sizes[s]);
            in[peer][s] = make_message(rank, 0, 0, 99, sizes[s]);
        }
    start(rank);
    for (int k = 0; k < N; k++) {
        const int to = (rank->rank * 3 + k) % N, from = (rank->rank + N - k) % N;

        for (int s = 0; s < 5; s++)
            send(rank, out[to][s], sizes[s], to);
        for (int s = 0; s < 5; s++)
            receive(rank, in[from][s], sizes[s], from);
    }
    end(rank, "an all-to-all of messages");
    for (int peer = 0; peer < N; peer++)
        for (int s = 0; s < 5; s++) {
            check_message(rank, in[peer][s], peer, s, sizes[s]);
            free(out[peer][s]);
            free(in[peer][s]);
        }
}

/** Outside groups, rank by rank: a blocking send and receive. Messages of one pair keep their order. */
static void one_after_the_other(struct ranks_rank *rank)
{
    unsigned char *data[MESSAGES];
    const int pair = rank->rank ^ 1;

    for (int i = 0; i < MESSAGES; i++) {
        const size_t bytes = (size_t)(i * 797 % 9000);

        data[i] = make_message(rank, rank->rank, pair, i, bytes);
        if (rank->rank < pair)
            send(rank, data[i], bytes, pair);
        memset(data[i], 0, bytes);
        receive(rank, data[i], bytes, pair);
        check_message(rank, data[i], pair, i, bytes);
        if (rank->rank > pair) {
            free(data[i]);
            data[i] = make_message(rank, rank->rank, pair, i, bytes);
            send(rank, data[i], bytes, pair);
        }
        free(data[i]);
    }
}

/** A group holds its most operations: messages and collectives in turn. */
static void full_group(struct ranks_rank *rank)
{
    static const int each = HKT_GROUP_OPS_MAX / 4;
    unsigned char *in = malloc((size_t)each * 2), *out = malloc((size_t)each * 2);
    int64_t *sums = calloc((size_t)each, sizeof *sums);
    const int64_t one = 1;
    const int pair = rank->rank ^ 1;

    ranks_require(rank, in != NULL && out != NULL && sums != NULL, "no memory");
    for (int i = 0; i < 2 * each; i++)
        out[i] = byte_of(rank->rank, pair, i, 0);
    start(rank);
    for (int i = 0; i < each; i++) {
        send(rank, &out[i], 1, pair);
        receive(rank, &in[i], 1, pair);
        if (i % 64 == 0)
            ranks_require_ok(rank, hkt_all_reduce(&one, &sums[i], 1, HKT_INT64, HKT_SUM, rank->comm, NULL), "all_reduce");
    }
    end(rank, "a large group");
    for (int i = 0; i < each; i++) {
        ranks_require(rank, in[i] == byte_of(pair, rank->rank, i, 0), "message %d", i);
        ranks_require(rank, sums[i] == (i % 64 == 0 ? N : 0), "sum %d", i);
    }
    free(in);
    free(out);
    free(sums);
}

/** Two communicators in one group, in a different order on each rank. */
static void several_communicators(struct ranks_rank *rank)
{
    struct hkt_comm *comms[2];
    int64_t one = 1, sums[2] = {0, 0};

    for (int i = 0; i < 2; i++)
        ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, rank->rank, NULL, &comms[i]), "split");
    for (int round = 0; round < 20; round++) {
        start(rank);
        start(rank); /* groups nest */
        for (int i = 0; i < 2; i++) {
            const int k = (i + rank->rank + round) % 2;

            ranks_require_ok(rank, hkt_all_reduce(&one, &sums[k], 1, HKT_INT64, HKT_SUM, comms[k], NULL), "all_reduce");
        }
        end(rank, "the inner end");
        end(rank, "two communicators");
        ranks_require(rank, sums[0] == N && sums[1] == N, "the sums are %lld, %lld", (long long)sums[0], (long long)sums[1]);
        sums[0] = sums[1] = 0;
    }
    for (int i = 0; i < 2; i++)
        ranks_require_ok(rank, hkt_comm_destroy(comms[i]), "hkt_comm_destroy");
}

/** A group on a stream runs as one, after what was queued before and before what comes later. */
static void group_on_a_stream(struct ranks_rank *rank)
{
    struct hkt_stream *stream;
    uint64_t x[4] = {1, 0, 0, 0};
    unsigned char out = (unsigned char)rank->rank, in = 0xff;

    ranks_require_ok(rank, hkt_stream_create(&stream), "hkt_stream_create");
    ranks_require_ok(rank, hkt_all_reduce(&x[0], &x[1], 1, HKT_UINT64, HKT_SUM, rank->comm, stream), "all_reduce");
    start(rank);
    ranks_require_ok(rank, hkt_send(&out, 1, HKT_UINT8, (rank->rank + 1) % N, rank->comm, stream), "send");
    ranks_require_ok(rank, hkt_recv(&in, 1, HKT_UINT8, (rank->rank + N - 1) % N, rank->comm, stream), "recv");
    ranks_require_ok(rank, hkt_all_reduce(&x[1], &x[2], 1, HKT_UINT64, HKT_SUM, rank->comm, stream), "all_reduce");
    end(rank, "a group on a stream");
    ranks_require_ok(rank, hkt_all_reduce(&x[2], &x[3], 1, HKT_UINT64, HKT_SUM, rank->comm, stream), "all_reduce");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "hkt_stream_synchronize");
    hkt_stream_destroy(stream);
    ranks_require(rank, x[3] == (uint64_t)N * N * N && in == (rank->rank + N - 1) % N, "the group's results are wrong");
}

static void run_all(struct ranks_rank *rank)
{
    start(rank);
    end(rank, "an empty group");
    large_ring(rank);
    all_to_all_by_messages(rank);
    one_after_the_other(rank);
    full_group(rank);
    several_communicators(rank);
    group_on_a_stream(rank);
}

/* ---- one thread, all ranks ---- */

static void one_thread_drives_all(struct ranks_rank *rank)
{
    struct hkt_comm *comms[N];
    struct hkt_config config = HKT_CONFIG_INIT;
    struct calls calls[N];
    char text[256];

    config.transport = rank->arg;
    ranks_require_ok(rank, hkt_comm_init_all(comms, N, &config), "hkt_comm_init_all");
    for (int coll = 0; coll < HKT_SEND_RECV; coll++)
        for (int in_place = 0; in_place < (coll == HKT_ALL_TO_ALL_V ? 1 : 2); in_place++) {
            const struct call call = {.coll = (enum hkt_coll)coll, .dtype = HKT_F32, .op = HKT_SUM, .root = 2,
                                      .kind = calls_reduces((enum hkt_coll)coll) ? EXACT_BUILTIN : EXACT_PLAIN,
                                      .count = 30001, .in_place = in_place != 0};

            start(rank);
            for (int r = 0; r < N; r++) {
                ranks_require(rank, calls_init(&calls[r], comms[r], calls_room(&call, N)), "no memory");
                calls_fill(&calls[r], &call);
                ranks_require_ok(rank, calls_issue(&calls[r], &call, NULL), hkt_coll_name(call.coll));
            }
            end(rank, hkt_coll_name(call.coll));
            for (int r = 0; r < N; r++) {
                ranks_require(rank, calls_check(&calls[r], &call, text, sizeof text) == 0, "%s: rank %d: %s",
                              hkt_coll_name(call.coll), r, text);
                calls_fini(&calls[r]);
            }
        }
    for (int r = 0; r < N; r++)
        ranks_require_ok(rank, hkt_comm_destroy(comms[r]), "hkt_comm_destroy");
}

static void run_on(const char *transport)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = strcmp(transport, "thread") == 0 ? RANKS_THREADS : RANKS_PROCESSES,
                                  .nranks = N, .config = &config, .fn = run_all};

    config.transport = transport;
    ranks_run(&job);
}

static void groups_of_threads(void **state)
{
    (void)state;
    run_on("thread");
}

static void groups_of_processes_over_shm(void **state)
{
    (void)state;
    run_on("shm");
}

static void groups_of_processes_over_tcp(void **state)
{
    (void)state;
    run_on("tcp");
}

static void a_group_drives_all_ranks_of_a_process(void **state)
{
    static const char *const transports[] = {"thread", "shm", "tcp"};

    (void)state;
    for (int t = 0; t < 3; t++) {
        const struct ranks_job job = {.kind = RANKS_PROCESSES, .nranks = 1, .no_comm = true, .fn = one_thread_drives_all,
                                      .arg = (void *)(uintptr_t)transports[t]};

        ranks_run(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_threads),
        cmocka_unit_test(groups_of_processes_over_shm),
        cmocka_unit_test(groups_of_processes_over_tcp),
        cmocka_unit_test(a_group_drives_all_ranks_of_a_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
