/* What could break: a call on a stream blocks its caller, operations of one communicator change their order when they
 * come from several streams and threads, an event completes too early or never, two communicators disturb each other when
 * used at once, a failure in a stream is lost or reported twice, a stream leaves threads behind. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "ranks.h"

enum { N = 3, CHAIN = 300, LARGE = 100000 };

static void make_streams(struct ranks_rank *rank, struct hkt_stream **streams, int count)
{
    for (int i = 0; i < count; i++)
        ranks_require_ok(rank, hkt_stream_create(&streams[i]), "hkt_stream_create");
}

static void end_streams(struct ranks_rank *rank, struct hkt_stream **streams, int count)
{
    for (int i = 0; i < count; i++) {
        ranks_require_ok(rank, hkt_stream_synchronize(streams[i]), "hkt_stream_synchronize");
        ranks_require_ok(rank, hkt_stream_query(streams[i]), "hkt_stream_query");
        hkt_stream_destroy(streams[i]);
    }
}

static struct hkt_comm *sibling(struct ranks_rank *rank)
{
    struct hkt_comm *comm;

    ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, rank->rank, NULL, &comm), "split");
    return comm;
}

/** Rank 0 queues before any other rank has come: it must get back to compute, or nobody ever comes. */
static void queueing_does_not_wait(struct ranks_rank *rank)
{
    static const struct call call = {.coll = HKT_ALL_REDUCE, .dtype = HKT_F32, .op = HKT_SUM, .count = LARGE};
    struct hkt_stream *stream;
    struct calls calls;
    char text[256];

    make_streams(rank, &stream, 1);
    ranks_require(rank, calls_init(&calls, rank->comm, calls_room(&call, N)), "no memory");
    calls_fill(&calls, &call);
    if (rank->rank != 0)
        ranks_meet(rank, 0);
    ranks_require_ok(rank, calls_issue(&calls, &call, stream), "all_reduce on a stream");
    if (rank->rank == 0) {
        ranks_require(rank, hkt_stream_query(stream) == HKT_IN_PROGRESS, "done without the other ranks");
        ranks_meet(rank, 0);
    }
    end_streams(rank, &stream, 1);
    ranks_require(rank, calls_check(&calls, &call, text, sizeof text) == 0, "%s", text);
    calls_fini(&calls);
}

/** Each operation adds up the previous one's result: element i is N^i in the order of the calls alone. Each rank deals
 *  them to its streams, and to its own thread, in its own way. */
static void order_is_that_of_the_calls(struct ranks_rank *rank)
{
    static const int ways[N] = {7, 4, 3};
    uint64_t *chain = calloc(CHAIN, sizeof *chain), want = 1;
    struct hkt_stream *streams[3];

    ranks_require(rank, chain != NULL, "no memory");
    make_streams(rank, streams, 3);
    for (int round = 0; round < 3; round++) {
        memset(chain, 0, CHAIN * sizeof *chain);
        chain[0] = want = 1;
        for (int i = 1; i < CHAIN; i++) {
            const int way = i * ways[(rank->rank + round) % N] % 10;
            struct hkt_stream *stream = way < 9 ? streams[way % 3] : NULL;
            const enum hkt_op op = i % 5 == 0 ? HKT_MAX : HKT_SUM;

            ranks_require_ok(rank, hkt_all_reduce(&chain[i - 1], &chain[i], 1, HKT_UINT64, op, rank->comm, stream),
                             "all_reduce");
        }
        for (int s = 0; s < 3; s++)
            ranks_require_ok(rank, hkt_stream_synchronize(streams[s]), "hkt_stream_synchronize");
        for (int i = 1; i < CHAIN; i++) {
            want = i % 5 == 0 ? want : want * N;
            ranks_require(rank, chain[i] == want, "round %d: element %d is %llu, not %llu", round, i,
                          (unsigned long long)chain[i], (unsigned long long)want);
        }
    }
    end_streams(rank, streams, 3);
    free(chain);
}

/** Data goes from stream to stream, on two communicators, through events alone. */
static void events_order_streams(struct ranks_rank *rank)
{
    struct hkt_comm *comms[2] = {rank->comm, sibling(rank)};
    struct hkt_stream *streams[2];
    struct hkt_event *event, *never, *first;
    int64_t begin_ns = 0, end_ns = 0;
    uint64_t *chain = calloc(CHAIN, sizeof *chain), want = 1;

    ranks_require(rank, chain != NULL, "no memory");
    make_streams(rank, streams, 2);
    ranks_require_ok(rank, hkt_event_create(&event), "hkt_event_create");
    ranks_require_ok(rank, hkt_event_create(&never), "hkt_event_create");
    ranks_require_ok(rank, hkt_event_create(&first), "hkt_event_create");
    ranks_require_ok(rank, hkt_event_query(never), "an event never recorded");
    ranks_require_ok(rank, hkt_event_synchronize(never), "an event never recorded");
    ranks_require_ok(rank, hkt_stream_wait_event(streams[0], never), "an event never recorded");
    ranks_require(rank, hkt_event_time(never, &begin_ns) == HKT_ERR_INVALID, "an event never recorded has a time");
    ranks_require_ok(rank, hkt_event_record(first, streams[0]), "hkt_event_record");
    chain[0] = 1;
    for (int i = 1; i < CHAIN; i++) {
        struct hkt_stream *stream = streams[i % 2];

        ranks_require_ok(rank, hkt_all_reduce(&chain[i - 1], &chain[i], 1, HKT_UINT64, HKT_SUM, comms[i % 2], stream),
                         "all_reduce");
        ranks_require_ok(rank, hkt_event_record(event, stream), "hkt_event_record");
        ranks_require_ok(rank, hkt_stream_wait_event(streams[(i + 1) % 2], event), "hkt_stream_wait_event");
    }
    ranks_require_ok(rank, hkt_event_synchronize(event), "hkt_event_synchronize");
    ranks_require_ok(rank, hkt_event_query(event), "hkt_event_query");
    ranks_require_ok(rank, hkt_event_time(first, &begin_ns), "hkt_event_time");
    ranks_require_ok(rank, hkt_event_time(event, &end_ns), "hkt_event_time");
    ranks_require(rank, begin_ns > 0 && begin_ns < end_ns, "times of events: %lld, then %lld", (long long)begin_ns,
                  (long long)end_ns);
    for (int i = 1; i < CHAIN; i++)
        ranks_require(rank, chain[i] == (want *= N), "element %d is wrong", i);
    hkt_event_destroy(event);
    hkt_event_destroy(never);
    hkt_event_destroy(first);
    end_streams(rank, streams, 2);
    ranks_require_ok(rank, hkt_comm_destroy(comms[1]), "hkt_comm_destroy");
    free(chain);
}

/** Events may be destroyed, and streams too, while work that refers to them is queued. */
static void events_and_streams_may_go_early(struct ranks_rank *rank)
{
    struct hkt_stream *streams[2];
    struct hkt_event *event;
    uint64_t chain[4] = {1};

    make_streams(rank, streams, 2);
    ranks_require_ok(rank, hkt_event_create(&event), "hkt_event_create");
    if (rank->rank != 0)
        ranks_meet(rank, 0);
    ranks_require_ok(rank, hkt_all_reduce(&chain[0], &chain[1], 1, HKT_UINT64, HKT_SUM, rank->comm, streams[0]), "1");
    ranks_require_ok(rank, hkt_event_record(event, streams[0]), "hkt_event_record");
    ranks_require_ok(rank, hkt_stream_wait_event(streams[1], event), "hkt_stream_wait_event");
    ranks_require_ok(rank, hkt_all_reduce(&chain[1], &chain[2], 1, HKT_UINT64, HKT_SUM, rank->comm, streams[1]), "2");
    if (rank->rank == 0)
        ranks_require(rank, hkt_event_query(event) == HKT_IN_PROGRESS, "the event completed early");
    hkt_event_destroy(event);
    if (rank->rank == 0)
        ranks_meet(rank, 0);
    hkt_stream_destroy(streams[1]);
    hkt_stream_destroy(streams[0]);
    ranks_require(rank, chain[2] == (uint64_t)N * N, "destroying a stream did not wait for it");
}

struct user {
    struct ranks_rank rank;
    struct hkt_comm *comm;
    int seed;
};

/** One thread's sequence of collectives on its communicator. */
static void *use_comm(void *arg)
{
    struct user *user = arg;
    struct calls calls;
    char text[256];
    static const struct call largest = {.coll = HKT_ALL_TO_ALL, .dtype = HKT_F64, .count = 5000};

    ranks_require(&user->rank, calls_init(&calls, user->comm, calls_room(&largest, N)), "no memory");
    for (int i = 0; i < 150; i++) {
        const struct call call = {.coll = i % 3 == 0 ? HKT_ALL_REDUCE : i % 3 == 1 ? HKT_ALL_GATHER : HKT_ALL_TO_ALL,
                                  .dtype = HKT_F64, .op = HKT_SUM, .count = (size_t)(i * 37 % 5000),
                                  .kind = i % 3 == 0 ? EXACT_BUILTIN : EXACT_PLAIN, .in_place = i % 2 == 1};

        calls.seed = (uint64_t)user->seed;
        calls_fill(&calls, &call);
        ranks_require_ok(&user->rank, calls_issue(&calls, &call, NULL), "a call");
        ranks_require(&user->rank, calls_check(&calls, &call, text, sizeof text) == 0, "call %d: %s", i, text);
    }
    calls_fini(&calls);
    return NULL;
}

static void communicators_are_independent(struct ranks_rank *rank)
{
    struct user users[3];
    pthread_t threads[3];

    for (int i = 0; i < 3; i++)
        users[i] = (struct user){.rank = *rank, .comm = sibling(rank), .seed = i};
    for (int i = 0; i < 3; i++)
        ranks_require(rank, pthread_create(&threads[i], NULL, use_comm, &users[(i + rank->rank) % 3]) == 0, "pthread_create");
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        ranks_require_ok(rank, hkt_comm_destroy(users[i].comm), "hkt_comm_destroy");
}

/** The first failure among a stream's operations is kept until somebody asks, then cleared. */
static void failures_are_told_once(struct ranks_rank *rank)
{
    struct hkt_comm *comm = sibling(rank);
    struct hkt_stream *stream;
    int64_t x = 1, sum = 0;

    make_streams(rank, &stream, 1);
    ranks_require_ok(rank, hkt_all_reduce(&x, &sum, 1, HKT_INT64, rank->rank == 1 ? HKT_MAX : HKT_SUM, comm, stream),
                     "all_reduce");
    ranks_require_ok(rank, hkt_all_reduce(&x, &sum, 1, HKT_INT64, HKT_SUM, comm, stream), "all_reduce");
    ranks_require_status(rank, hkt_stream_synchronize(stream), HKT_ERR_MISMATCH, "hkt_stream_synchronize");
    ranks_require_text(rank, hkt_last_error(), "rank 1");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "a second synchronize");
    /* The stream itself works on, with other communicators. */
    ranks_require_ok(rank, hkt_all_reduce(&x, &sum, 1, HKT_INT64, HKT_SUM, rank->comm, stream), "all_reduce");
    end_streams(rank, &stream, 1);
    ranks_require(rank, sum == N, "the sum is wrong");
    ranks_require_status(rank, hkt_comm_destroy(comm), HKT_ERR_MISMATCH, "hkt_comm_destroy");
}

/** hkt_comm_destroy finishes what is queued. */
static void destroy_finishes_the_queue(struct ranks_rank *rank)
{
    struct hkt_comm *comm = sibling(rank);
    struct hkt_stream *streams[2];
    uint64_t chain[51] = {1}, want = 1;

    make_streams(rank, streams, 2);
    for (int i = 1; i <= 50; i++)
        ranks_require_ok(rank, hkt_all_reduce(&chain[i - 1], &chain[i], 1, HKT_UINT64, HKT_SUM, comm, streams[i % 2]), "x");
    ranks_require_ok(rank, hkt_comm_destroy(comm), "hkt_comm_destroy");
    for (int i = 1; i <= 50; i++)
        ranks_require(rank, chain[i] == (want *= N), "element %d was not finished", i);
    end_streams(rank, streams, 2);
}

/* ---- running them ---- */

static void run_all(struct ranks_rank *rank)
{
    queueing_does_not_wait(rank);
    order_is_that_of_the_calls(rank);
    events_order_streams(rank);
    communicators_are_independent(rank);
    failures_are_told_once(rank);
    destroy_finishes_the_queue(rank);
}

static void on_transport(const char *transport, ranks_fn *fn)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = strcmp(transport, "thread") == 0 ? RANKS_THREADS : RANKS_PROCESSES,
                                  .nranks = N, .config = &config, .fn = fn};

    config.transport = transport;
    ranks_run(&job);
}

static void threads_use_streams(void **state)
{
    (void)state;
    on_transport("thread", run_all);
    on_transport("thread", events_and_streams_may_go_early);
}

static void processes_use_streams_over_shm(void **state)
{
    (void)state;
    on_transport("shm", run_all);
    on_transport("shm", events_and_streams_may_go_early);
}

static void processes_use_streams_over_tcp(void **state)
{
    (void)state;
    on_transport("tcp", run_all);
    on_transport("tcp", events_and_streams_may_go_early);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_use_streams),
        cmocka_unit_test(processes_use_streams_over_shm),
        cmocka_unit_test(processes_use_streams_over_tcp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
