/* What could break: wrong arguments are not refused, or refused without a line that names the call, what is wrong and the
 * mend; the communicator does not work afterwards, or an outcome depends on the transport. Calls that a rank alone can see
 * to be wrong: each is refused with INVALID on threads, shm and tcp, then an all-reduce must still be right. What
 * only several ranks together can see is in test_mismatch.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <hocket/tune.h>

#include "calls.h"
#include "ranks.h"

enum { N = 3 };

static unsigned char buffer[1 << 16], other[1 << 16]; /* of a process; thread ranks never get as far as to touch them */

/** The refusal of a call: INVALID, one line, with these words in it. */
static void refused(struct ranks_rank *rank, enum hkt_status status, const char *const *words)
{
    char text[RANKS_TEXT_MAX];

    snprintf(text, sizeof text, "%s", status < 0 ? hkt_last_error() : "");
    ranks_require(rank, status == HKT_ERR_INVALID, "%s instead of INVALID, where \"%s\" was to be refused: %s",
                  hkt_status_name(status), words[0], text);
    ranks_require(rank, strchr(text, '\n') == NULL, "more than one line: %s", text);
    for (int i = 0; words[i] != NULL; i++)
        ranks_require_text(rank, text, words[i]);
}
#define REFUSED(rank, status, ...) refused(rank, status, (const char *const[]){__VA_ARGS__, NULL})

static void still_works(struct ranks_rank *rank)
{
    const int64_t mine = rank->rank + 1;
    int64_t sum = 0;

    ranks_require_ok(rank, hkt_comm_status(rank->comm), "hkt_comm_status");
    ranks_require_ok(rank, hkt_all_reduce(&mine, &sum, 1, HKT_INT64, HKT_SUM, rank->comm, NULL), "all_reduce afterwards");
    ranks_require(rank, sum == rank->nranks * (rank->nranks + 1) / 2, "all_reduce afterwards is wrong");
}

/* ---- arguments ---- */

static void types_and_operations(struct ranks_rank *rank)
{
    struct hkt_comm *comm = rank->comm;
    unsigned char *a = buffer, *b = other;
    const int32_t scalar = 3;
    enum hkt_op op, none = HKT_SUM;

    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_F32, HKT_BAND, comm, NULL), "all_reduce", "band", "float");
    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_BOOL, HKT_SUM, comm, NULL), "all_reduce", "sum", "bool");
    REFUSED(rank, hkt_reduce(a, b, 4, HKT_F8E4M3, HKT_LXOR, 0, comm, NULL), "reduce", "lxor", "f8e4m3");
    REFUSED(rank, hkt_reduce_scatter(a, b, 4, HKT_F64, HKT_BXOR, comm, NULL), "reduce_scatter", "bxor", "double");
    REFUSED(rank, hkt_all_reduce(a, b, 4, (enum hkt_dtype)99, HKT_SUM, comm, NULL), "all_reduce", "dtype", "99");
    REFUSED(rank, hkt_broadcast(a, b, 4, (enum hkt_dtype)-1, 0, comm, NULL), "broadcast", "dtype", "-1");
    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_F32, (enum hkt_op)13, comm, NULL), "all_reduce", "op");
    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_F32, (enum hkt_op)-1, comm, NULL), "all_reduce", "op");
    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_F32, (enum hkt_op)64, comm, NULL), "all_reduce", "op");
    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_F32, (enum hkt_op)HKT_OP_USER, comm, NULL), "all_reduce", "op", "handle");
    ranks_require_ok(rank, hkt_op_create_premulsum(&op, &scalar, HKT_INT32, comm), "premulsum");
    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_F32, op, comm, NULL), "all_reduce", "int32", "float");
    REFUSED(rank, hkt_op_create_premulsum(&none, &scalar, HKT_BOOL, comm), "bool");
    REFUSED(rank, hkt_op_create_premulsum(&none, &scalar, (enum hkt_dtype)99, comm), "99");
    REFUSED(rank, hkt_op_create_premulsum(NULL, &scalar, HKT_INT32, comm), "NULL");
    REFUSED(rank, hkt_op_create_premulsum(&none, NULL, HKT_INT32, comm), "NULL");
    REFUSED(rank, hkt_op_create_premulsum(&none, &scalar, HKT_INT32, NULL), "NULL");
    REFUSED(rank, hkt_op_create_callback(&none, NULL, NULL, comm), "NULL");
    REFUSED(rank, hkt_op_create_callback(NULL, exact_callback, NULL, comm), "NULL");
    ranks_require(rank, none == HKT_SUM, "a refused creation wrote its result");
    ranks_require_ok(rank, hkt_op_destroy(op, comm), "hkt_op_destroy");
    REFUSED(rank, hkt_op_destroy(op, comm), "hkt_op_destroy");
    REFUSED(rank, hkt_op_destroy(HKT_SUM, comm), "hkt_op_destroy");
    REFUSED(rank, hkt_op_destroy((enum hkt_op)1000, comm), "hkt_op_destroy");
    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_INT32, op, comm, NULL), "all_reduce", "op");
}

static void too_many_operations(struct ranks_rank *rank)
{
    enum hkt_op ops[HKT_OP_LAST - HKT_OP_USER + 1], one_more;
    const int room = HKT_OP_LAST - HKT_OP_USER + 1;

    for (int i = 0; i < room; i++)
        ranks_require_ok(rank, hkt_op_create_callback(&ops[i], exact_callback, NULL, rank->comm), "callback");
    REFUSED(rank, hkt_op_create_callback(&one_more, exact_callback, NULL, rank->comm), "48", "destroy");
    for (int i = 0; i < room; i++)
        ranks_require_ok(rank, hkt_op_destroy(ops[i], rank->comm), "hkt_op_destroy");
}

static void overlaps(struct ranks_rank *rank)
{
    struct hkt_comm *comm = rank->comm;
    unsigned char *a = buffer;
    const size_t counts[N] = {4, 4, 4}, displs[N] = {0, 4, 8};
    const struct hkt_blocks blocks = {counts, displs, counts, displs};
    const int me = rank->rank;

    REFUSED(rank, hkt_all_reduce(a, a + 4, 4, HKT_INT32, HKT_SUM, comm, NULL), "all_reduce", "overlap");
    REFUSED(rank, hkt_all_reduce(a + 15, a, 4, HKT_INT32, HKT_SUM, comm, NULL), "all_reduce", "overlap");
    REFUSED(rank, hkt_reduce_scatter(a, a + 16 * ((me + 1) % N), 4, HKT_INT32, HKT_SUM, comm, NULL), "reduce_scatter",
            "overlap");
    REFUSED(rank, hkt_all_gather(a + 16 * ((me + 1) % N), a, 4, HKT_INT32, comm, NULL), "all_gather", "overlap");
    REFUSED(rank, hkt_all_to_all(a, a + 4, 4, HKT_INT32, comm, NULL), "all_to_all", "overlap");
    REFUSED(rank, hkt_all_gather_v(a + 4 * displs[(me + 1) % N], 4, a, counts, displs, HKT_INT32, comm, NULL),
            "all_gather_v", "overlap");
    REFUSED(rank, hkt_reduce_scatter_v(a, a + 4 * displs[(me + 1) % N], counts, HKT_INT32, HKT_SUM, comm, NULL),
            "reduce_scatter_v", "overlap");
    REFUSED(rank, hkt_all_to_all_v(a, a + 4, &blocks, HKT_INT32, comm, NULL), "all_to_all_v", "overlap");
    REFUSED(rank, hkt_all_to_all_v(a, a, &blocks, HKT_INT32, comm, NULL), "all_to_all_v", "in place");
    if (me == 1) {
        REFUSED(rank, hkt_broadcast(a, a + 4, 4, HKT_INT32, 1, comm, NULL), "broadcast", "overlap");
        REFUSED(rank, hkt_reduce(a, a + 4, 4, HKT_INT32, HKT_SUM, 1, comm, NULL), "reduce", "overlap");
        REFUSED(rank, hkt_gather(a, a, 4, HKT_INT32, 1, comm, NULL), "gather", "overlap");
        REFUSED(rank, hkt_scatter(a, a, 4, HKT_INT32, 1, comm, NULL), "scatter", "overlap");
    }
}

static void roots_and_peers(struct ranks_rank *rank)
{
    static const int outside[] = {-1, N, 1 << 30, -(1 << 30)};
    struct hkt_comm *comm = rank->comm;
    unsigned char *a = buffer, *b = other;

    for (int i = 0; i < 4; i++) {
        const int root = outside[i];
        char name[16];

        snprintf(name, sizeof name, "%d", root);
        REFUSED(rank, hkt_broadcast(a, b, 4, HKT_INT8, root, comm, NULL), "broadcast", "root", name, "0..2");
        REFUSED(rank, hkt_reduce(a, b, 4, HKT_INT8, HKT_SUM, root, comm, NULL), "reduce", "root", name, "0..2");
        REFUSED(rank, hkt_gather(a, b, 4, HKT_INT8, root, comm, NULL), "gather", "root", name, "0..2");
        REFUSED(rank, hkt_scatter(a, b, 4, HKT_INT8, root, comm, NULL), "scatter", "root", name, "0..2");
        REFUSED(rank, hkt_send(a, 4, HKT_INT8, root, comm, NULL), "peer", name, "0..2");
        REFUSED(rank, hkt_recv(a, 4, HKT_INT8, root, comm, NULL), "peer", name, "0..2");
        ranks_require(rank, hkt_comm_transport(comm, root) == NULL, "a transport to rank %d", root);
    }
}

static void counts_too_large(struct ranks_rank *rank)
{
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX / 8, SIZE_MAX / 8 + 1, PTRDIFF_MAX / 8 + 1, (size_t)PTRDIFF_MAX};
    struct hkt_comm *comm = rank->comm;
    unsigned char *a = buffer, *b = other;

    for (int i = 0; i < 5; i++) {
        const size_t counts[N] = {4, huge[i], 4}, displs[N] = {0, 4, 8}, far[N] = {0, 4, huge[i]}, few[N] = {4, 4, 4};
        const struct hkt_blocks wide = {counts, displs, few, displs}, away = {few, displs, few, far};

        REFUSED(rank, hkt_all_reduce(a, b, huge[i], HKT_F64, HKT_SUM, comm, NULL), "all_reduce", "overflow");
        REFUSED(rank, hkt_all_gather(a, b, huge[i], HKT_F64, comm, NULL), "all_gather", "overflow");
        REFUSED(rank, hkt_send(a, huge[i], HKT_F64, (rank->rank + 1) % N, comm, NULL), "send", "overflow");
        REFUSED(rank, hkt_reduce_scatter_v(a, b, counts, HKT_F64, HKT_SUM, comm, NULL), "reduce_scatter_v", "overflow");
        REFUSED(rank, hkt_all_gather_v(a, counts[rank->rank], b, counts, NULL, HKT_F64, comm, NULL), "all_gather_v",
                "overflow");
        REFUSED(rank, hkt_all_to_all_v(a, b, &wide, HKT_F64, comm, NULL), "all_to_all_v", "overflow");
        REFUSED(rank, hkt_all_to_all_v(a, b, &away, HKT_F64, comm, NULL), "all_to_all_v", "overflow");
    }
    /* One block fits, all blocks together do not. */
    REFUSED(rank, hkt_all_gather(a, b, PTRDIFF_MAX / 2, HKT_INT8, comm, NULL), "all_gather", "overflow");

    static const double prices[HKT_PRICE_COUNT];
    static const struct hkt_tuned choices[1025];

    REFUSED(rank, hkt_tune_save(comm, "no file", prices, choices, 1025), "hkt_tune_save", "1025 choices", "holds 1024");
}

static void nothing_where_something_must_be(struct ranks_rank *rank)
{
    struct hkt_comm *comm = rank->comm;
    unsigned char *a = buffer, *b = other;
    const size_t counts[N] = {4, 4, 4}, displs[N] = {0, 4, 8}, zeros[N] = {0, 0, 0};
    const struct hkt_blocks no_displs = {counts, NULL, counts, displs}, no_counts = {counts, displs, NULL, displs};
    const struct hkt_blocks empty = {zeros, zeros, zeros, zeros};
    struct hkt_topo *topo = NULL;

    REFUSED(rank, hkt_all_reduce(NULL, b, 4, HKT_INT8, HKT_SUM, comm, NULL), "all_reduce", "send buffer", "NULL");
    REFUSED(rank, hkt_all_reduce(a, NULL, 4, HKT_INT8, HKT_SUM, comm, NULL), "all_reduce", "receive buffer", "NULL");
    REFUSED(rank, hkt_all_reduce(a, b, 4, HKT_INT8, HKT_SUM, NULL, NULL), "all_reduce", "comm", "NULL");
    REFUSED(rank, hkt_barrier(NULL, NULL), "barrier", "comm", "NULL");
    REFUSED(rank, hkt_send(NULL, 4, HKT_INT8, 0, comm, NULL), "NULL");
    REFUSED(rank, hkt_recv(NULL, 4, HKT_INT8, 0, comm, NULL), "NULL");
    REFUSED(rank, hkt_all_to_all(a, NULL, 4, HKT_INT8, comm, NULL), "all_to_all", "NULL");
    REFUSED(rank, hkt_all_to_all_v(a, b, NULL, HKT_INT8, comm, NULL), "all_to_all_v", "blocks", "NULL");
    REFUSED(rank, hkt_all_to_all_v(a, b, &no_displs, HKT_INT8, comm, NULL), "all_to_all_v", "displacements", "NULL");
    REFUSED(rank, hkt_all_to_all_v(a, b, &no_counts, HKT_INT8, comm, NULL), "all_to_all_v", "counts", "NULL");
    REFUSED(rank, hkt_all_gather_v(a, 4, b, NULL, displs, HKT_INT8, comm, NULL), "all_gather_v", "counts", "NULL");
    REFUSED(rank, hkt_reduce_scatter_v(a, b, NULL, HKT_INT8, HKT_SUM, comm, NULL), "reduce_scatter_v", "counts", "NULL");
    REFUSED(rank, hkt_all_gather_v(a, 3, b, counts, displs, HKT_INT8, comm, NULL), "all_gather_v", "sendcount 3", "= 4");
    if (rank->rank == 1) {
        REFUSED(rank, hkt_broadcast(NULL, b, 4, HKT_INT8, 1, comm, NULL), "broadcast", "send buffer", "NULL");
        REFUSED(rank, hkt_reduce(a, NULL, 4, HKT_INT8, HKT_SUM, 1, comm, NULL), "reduce", "receive buffer", "NULL");
        REFUSED(rank, hkt_gather(a, NULL, 4, HKT_INT8, 1, comm, NULL), "gather", "receive buffer", "NULL");
        REFUSED(rank, hkt_scatter(NULL, b, 4, HKT_INT8, 1, comm, NULL), "scatter", "send buffer", "NULL");
    }
    REFUSED(rank, hkt_comm_dump(comm, NULL, 0), "hkt_comm_dump", "NULL");
    REFUSED(rank, hkt_comm_dump(NULL, stderr, 0), "hkt_comm_dump", "NULL");
    REFUSED(rank, hkt_comm_topo(NULL, &topo, NULL), "hkt_comm_topo", "comm", "NULL");
    REFUSED(rank, hkt_comm_topo(comm, NULL, NULL), "hkt_comm_topo", "out_topo", "NULL");
    struct hkt_comm_stats stats = {.ops = 7};

    hkt_comm_revoke(NULL);
    hkt_comm_get_stats(NULL, &stats);
    hkt_comm_get_stats(comm, NULL);
    ranks_require(rank, hkt_comm_rank(NULL) == -1 && hkt_comm_size(NULL) == 0 && hkt_comm_status(NULL) == HKT_ERR_INVALID &&
                  hkt_comm_last_error(NULL)[0] == '\0' && hkt_comm_transport(NULL, 0) == NULL && stats.ops == 0, "of no comm");
    /* No elements: no buffers needed. */
    ranks_require_ok(rank, hkt_all_reduce(NULL, NULL, 0, HKT_INT8, HKT_SUM, comm, NULL), "empty all_reduce");
    ranks_require_ok(rank, hkt_all_gather(NULL, NULL, 0, HKT_INT8, comm, NULL), "empty all_gather");
    ranks_require_ok(rank, hkt_all_to_all_v(NULL, NULL, &empty, HKT_INT8, comm, NULL), "empty all_to_all_v");
}

/* ---- configurations ---- */

static void split_refused(struct ranks_rank *rank, const struct hkt_config *config, const char *const *words)
{
    struct hkt_comm *untouched = rank->comm, *child = untouched;

    refused(rank, hkt_comm_split(rank->comm, 0, 0, config, &child), words);
    ranks_require(rank, child == untouched, "a refused split wrote its result");
    still_works(rank);
}
#define SPLIT_REFUSED(rank, config, ...) split_refused(rank, config, (const char *const[]){__VA_ARGS__, NULL})

static void configurations(struct ranks_rank *rank)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    struct hkt_comm *child;

    config.algo = "all_reduce=rign";
    SPLIT_REFUSED(rank, &config, "all_reduce", "rign", "ring", "two_shot");
    config.algo = "all_redcue=ring";
    SPLIT_REFUSED(rank, &config, "all_redcue");
    config.algo = "ring";
    SPLIT_REFUSED(rank, &config, "ring");
    config = (struct hkt_config)HKT_CONFIG_INIT;
    config.struct_bytes = 8;
    SPLIT_REFUSED(rank, &config, "HKT_CONFIG_INIT", "struct_bytes");
    config = (struct hkt_config){0};
    SPLIT_REFUSED(rank, &config, "HKT_CONFIG_INIT", "struct_bytes");
    config = (struct hkt_config)HKT_CONFIG_INIT;
    config.timeout_ms = -5;
    SPLIT_REFUSED(rank, &config, "timeout_ms", "-5");
    config = (struct hkt_config)HKT_CONFIG_INIT;
    config.lanes = 99;
    SPLIT_REFUSED(rank, &config, "lanes", "99");
    config.lanes = -1;
    SPLIT_REFUSED(rank, &config, "lanes", "-1");
    config = (struct hkt_config)HKT_CONFIG_INIT;
    config.slice_bytes = 1;
    SPLIT_REFUSED(rank, &config, "slice_bytes", "256", "could not make comm");
    config.slice_bytes = SIZE_MAX;
    SPLIT_REFUSED(rank, &config, "slice_bytes", "16777216");
    config = (struct hkt_config)HKT_CONFIG_INIT;
    config.crc = 7;
    SPLIT_REFUSED(rank, &config, "crc", "7");
    /* One rank's mistake is everybody's failure, and names it. */
    config = (struct hkt_config)HKT_CONFIG_INIT;
    config.lanes = rank->rank == 1 ? 99 : 0;
    SPLIT_REFUSED(rank, &config, "lanes", "99", "rank 1");
    REFUSED(rank, hkt_comm_split(NULL, 0, 0, NULL, &child), "hkt_comm_split", "NULL");
    REFUSED(rank, hkt_comm_split(rank->comm, 0, 0, NULL, NULL), "hkt_comm_split", "NULL");
}

/* ---- groups, streams ---- */

static void groups(struct ranks_rank *rank)
{
    struct hkt_comm *comm = rank->comm, *child;
    unsigned char *a = buffer, *b = other;
    struct hkt_stream *stream;
    struct hkt_topo *topo;

    REFUSED(rank, hkt_group_end(), "hkt_group_end", "hkt_group_start");
    /* A refused call spoils its group: nothing of it runs. */
    ranks_require_ok(rank, hkt_group_start(), "start");
    ranks_require_ok(rank, hkt_barrier(comm, NULL), "barrier in a group");
    REFUSED(rank, hkt_send(a, 4, HKT_INT8, 77, comm, NULL), "peer", "77");
    REFUSED(rank, hkt_group_end(), "peer", "77");
    still_works(rank);
    ranks_require_ok(rank, hkt_stream_create(&stream), "hkt_stream_create");
    ranks_require_ok(rank, hkt_group_start(), "start");
    ranks_require_ok(rank, hkt_barrier(comm, NULL), "barrier in a group");
    REFUSED(rank, hkt_barrier(comm, stream), "stream");
    REFUSED(rank, hkt_group_end(), "stream");
    hkt_stream_destroy(stream);
    still_works(rank);
    ranks_require_ok(rank, hkt_group_start(), "start");
    REFUSED(rank, hkt_comm_split(comm, 0, 0, NULL, &child), "hkt_comm_split", "group");
    REFUSED(rank, hkt_comm_topo(comm, &topo, NULL), "hkt_comm_topo", "group");
    for (int i = 0; i < HKT_GROUP_OPS_MAX; i++)
        ranks_require_ok(rank, hkt_barrier(comm, NULL), "barrier in a group");
    REFUSED(rank, hkt_barrier(comm, NULL), "4096");
    REFUSED(rank, hkt_group_end(), "4096");
    still_works(rank);
    /* Messages to oneself need both sides in the group. */
    ranks_require_ok(rank, hkt_group_start(), "start");
    ranks_require_ok(rank, hkt_send(a, 4, HKT_INT8, rank->rank, comm, NULL), "send to self");
    REFUSED(rank, hkt_group_end(), "itself", "group");
    ranks_require_ok(rank, hkt_group_start(), "start");
    ranks_require_ok(rank, hkt_send(a, 4, HKT_INT8, rank->rank, comm, NULL), "send to self");
    ranks_require_ok(rank, hkt_recv(b, 5, HKT_INT8, rank->rank, comm, NULL), "receive from self");
    REFUSED(rank, hkt_group_end(), "self", "4", "5");
    REFUSED(rank, hkt_send(a, 4, HKT_INT8, rank->rank, comm, NULL), "itself", "group");
    still_works(rank);
}

static void streams_and_events(struct ranks_rank *rank)
{
    struct hkt_event *event;
    struct hkt_stream *stream;

    ranks_require_ok(rank, hkt_event_create(&event), "hkt_event_create");
    ranks_require_ok(rank, hkt_stream_create(&stream), "hkt_stream_create");
    REFUSED(rank, hkt_stream_create(NULL), "hkt_stream_create", "NULL");
    REFUSED(rank, hkt_event_create(NULL), "hkt_event_create", "NULL");
    REFUSED(rank, hkt_event_record(event, NULL), "NULL");
    REFUSED(rank, hkt_event_record(NULL, stream), "NULL");
    REFUSED(rank, hkt_stream_wait_event(NULL, event), "NULL");
    REFUSED(rank, hkt_stream_wait_event(stream, NULL), "NULL");
    REFUSED(rank, hkt_event_synchronize(NULL), "NULL");
    REFUSED(rank, hkt_event_query(NULL), "NULL");
    REFUSED(rank, hkt_event_time(event, NULL), "NULL");
    /* What is wrong with a call is said at once, not by the stream. */
    REFUSED(rank, hkt_all_reduce(buffer, other, 4, HKT_F32, HKT_BAND, rank->comm, stream), "all_reduce", "band");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "hkt_stream_synchronize");
    ranks_require_ok(rank, hkt_stream_synchronize(NULL), "synchronize NULL");
    hkt_event_destroy(NULL);
    hkt_stream_destroy(NULL);
    hkt_event_destroy(event);
    hkt_stream_destroy(stream);
}

/* ---- running them ---- */

typedef void case_fn(struct ranks_rank *rank);

static void run_case(struct ranks_rank *rank)
{
    case_fn *const *fn = rank->arg;

    still_works(rank);
    (*fn)(rank);
    still_works(rank);
}

static void on_all_transports(case_fn *fn)
{
    static const char *const transports[] = {"thread", "shm", "tcp"};

    for (int t = 0; t < 3; t++) {
        struct hkt_config config = HKT_CONFIG_INIT;
        const struct ranks_job job = {.kind = t == 0 ? RANKS_THREADS : RANKS_PROCESSES, .nranks = N, .config = &config,
                                      .fn = run_case, .arg = &fn};

        config.transport = transports[t];
        ranks_run(&job);
    }
}

#define ON_ALL_TRANSPORTS(name)                                                                                        \
    static void name##_are_refused(void **state)                                                                       \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        on_all_transports(name);                                                                                       \
    }
ON_ALL_TRANSPORTS(types_and_operations)
ON_ALL_TRANSPORTS(too_many_operations)
ON_ALL_TRANSPORTS(overlaps)
ON_ALL_TRANSPORTS(roots_and_peers)
ON_ALL_TRANSPORTS(counts_too_large)
ON_ALL_TRANSPORTS(nothing_where_something_must_be)
ON_ALL_TRANSPORTS(configurations)
ON_ALL_TRANSPORTS(groups)
ON_ALL_TRANSPORTS(streams_and_events)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_and_operations_are_refused),
        cmocka_unit_test(too_many_operations_are_refused),
        cmocka_unit_test(overlaps_are_refused),
        cmocka_unit_test(roots_and_peers_are_refused),
        cmocka_unit_test(counts_too_large_are_refused),
        cmocka_unit_test(nothing_where_something_must_be_are_refused),
        cmocka_unit_test(configurations_are_refused),
        cmocka_unit_test(groups_are_refused),
        cmocka_unit_test(streams_and_events_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
