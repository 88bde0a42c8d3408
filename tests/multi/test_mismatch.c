/* What could break: ranks make different calls and one of them hangs, gets a wrong result without an error, or is told
 * something that does not lead to the mistake. Each case runs on a communicator of its own, on threads, shm and tcp:
 * rank 1 does something else than ranks 0 and 2. All ranks must get MISMATCH (from that call, or from a later one where
 * the difference was not theirs to see), with a text that names rank 1 and the calls; the parent communicator lives on.
 *
 * No message may meet another: over tcp, where connections are made when an algorithm first needs them, two algorithms may
 * each wait for connections that the other does not make; and a rank that only sends to those who do not listen is long
 * gone. Then ranks must find out by what they tell each other while they wait - and must not take for a mismatch what is
 * none: a rank that comes late, one that is ahead, another communicator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "ranks.h"

enum { N = 3, ODD = 1, LARGE = 100000 };

struct mismatch {
    struct ranks_rank *rank;
    struct hkt_comm *comm;
    bool is_odd;
    float *in, *out;        /* room for 2 * N * LARGE elements */
};
typedef enum hkt_status mismatch_fn(const struct mismatch *m);

/* ---- what ranks do ---- */

static enum hkt_status all_reduce(const struct mismatch *m, size_t count, enum hkt_dtype dtype, enum hkt_op op)
{
    return hkt_all_reduce(m->in, m->out, count, dtype, op, m->comm, NULL);
}

static enum hkt_status different_collectives(const struct mismatch *m)
{
    return m->is_odd ? hkt_all_gather(m->in, m->out, 4, HKT_F32, m->comm, NULL) : all_reduce(m, 4, HKT_F32, HKT_SUM);
}

static enum hkt_status different_counts(const struct mismatch *m)
{
    return all_reduce(m, m->is_odd ? 5 : 4, HKT_F32, HKT_SUM);
}

static enum hkt_status equal_calls(const struct mismatch *m)
{
    return all_reduce(m, 4, HKT_F32, HKT_SUM);
}

static enum hkt_status nothing_and_something(const struct mismatch *m)
{
    return all_reduce(m, m->is_odd ? 0 : 4, HKT_F32, HKT_SUM);
}

static enum hkt_status something_and_nothing(const struct mismatch *m)
{
    return all_reduce(m, m->is_odd ? 4 : 0, HKT_F32, HKT_SUM);
}

static enum hkt_status different_large_counts(const struct mismatch *m)
{
    return all_reduce(m, m->is_odd ? LARGE + 1 : LARGE, HKT_F32, HKT_SUM);
}

static enum hkt_status large_and_small(const struct mismatch *m)
{
    return all_reduce(m, m->is_odd ? LARGE : 3, HKT_F32, HKT_SUM);
}

static enum hkt_status small_and_large(const struct mismatch *m)
{
    return all_reduce(m, m->is_odd ? 3 : LARGE, HKT_F32, HKT_SUM);
}

static enum hkt_status different_types(const struct mismatch *m)
{
    return all_reduce(m, 4, m->is_odd ? HKT_INT32 : HKT_F32, HKT_SUM);
}

static enum hkt_status different_operations(const struct mismatch *m)
{
    return all_reduce(m, 4, HKT_F32, m->is_odd ? HKT_MAX : HKT_SUM);
}

static enum hkt_status different_roots(const struct mismatch *m)
{
    return hkt_broadcast(m->in, m->out, 4, HKT_F32, m->is_odd ? 1 : 0, m->comm, NULL);
}

static enum hkt_status different_reduce_roots(const struct mismatch *m)
{
    return hkt_reduce(m->in, m->out, 4, HKT_F32, HKT_SUM, m->is_odd ? 1 : 0, m->comm, NULL);
}

static enum hkt_status gather_and_scatter(const struct mismatch *m)
{
    return m->is_odd ? hkt_gather(m->in, m->out, 4, HKT_F32, 0, m->comm, NULL)
                     : hkt_scatter(m->in, m->out, 4, HKT_F32, 0, m->comm, NULL);
}

static enum hkt_status different_placements(const struct mismatch *m)
{
    return hkt_all_reduce(m->is_odd ? m->out : m->in, m->out, 4, HKT_F32, HKT_SUM, m->comm, NULL);
}

static enum hkt_status different_large_placements(const struct mismatch *m)
{
    return hkt_all_reduce(m->is_odd ? m->out : m->in, m->out, LARGE, HKT_F32, HKT_SUM, m->comm, NULL);
}

static enum hkt_status different_order(const struct mismatch *m)
{
    const enum hkt_status first = m->is_odd ? hkt_barrier(m->comm, NULL) : all_reduce(m, 4, HKT_F32, HKT_SUM);

    if (first < 0)
        return first;
    return m->is_odd ? all_reduce(m, 4, HKT_F32, HKT_SUM) : hkt_barrier(m->comm, NULL);
}

static enum hkt_status one_call_too_many(const struct mismatch *m)
{
    for (int i = 0; i < (m->is_odd ? 4 : 3); i++) {
        const enum hkt_status rc = all_reduce(m, 4, HKT_F32, HKT_SUM);

        if (rc < 0)
            return rc;
    }
    return hkt_barrier(m->comm, NULL);
}

static enum hkt_status different_callbacks(const struct mismatch *m)
{
    static _Atomic uint64_t elements;
    enum hkt_op ops[2];

    for (int i = 0; i < 2; i++)
        ranks_require_ok(m->rank, hkt_op_create_callback(&ops[i], exact_callback, &elements, m->comm), "callback");
    return all_reduce(m, 4, HKT_UINT64, ops[m->is_odd]);
}

static enum hkt_status different_block_counts(const struct mismatch *m)
{
    const size_t counts[N] = {4, 4, m->is_odd ? 5 : 4};

    return hkt_all_gather_v(m->in, counts[m->rank->rank], m->out, counts, NULL, HKT_F32, m->comm, NULL);
}

static enum hkt_status different_reduced_block_counts(const struct mismatch *m)
{
    const size_t counts[N] = {4, 4, m->is_odd ? 5 : 4};

    return hkt_reduce_scatter_v(m->in, m->out, counts, HKT_F32, HKT_SUM, m->comm, NULL);
}

static enum hkt_status different_pair_counts(const struct mismatch *m)
{
    const size_t sends[N] = {m->is_odd ? 5 : 4, 4, 4}, receives[N] = {4, 4, 4}, displs[N] = {0, 8, 16};
    const struct hkt_blocks blocks = {sends, displs, receives, displs};

    return hkt_all_to_all_v(m->in, m->out, &blocks, HKT_F32, m->comm, NULL);
}

/** Rank 0 sends what rank 1 does not expect. */
static enum hkt_status message(const struct mismatch *m, size_t sent, size_t received, enum hkt_dtype dtype)
{
    if (m->rank->rank == 0)
        return hkt_send(m->in, sent, HKT_F32, 1, m->comm, NULL);
    return m->is_odd ? hkt_recv(m->out, received, dtype, 0, m->comm, NULL) : HKT_OK;
}

static enum hkt_status message_too_long(const struct mismatch *m)
{
    return message(m, 8, 4, HKT_F32);
}

static enum hkt_status message_too_short(const struct mismatch *m)
{
    return message(m, 4, LARGE, HKT_F32);
}

static enum hkt_status message_for_nothing(const struct mismatch *m)
{
    return message(m, 4, 0, HKT_F32);
}

static enum hkt_status nothing_for_a_message(const struct mismatch *m)
{
    return message(m, 0, 4, HKT_F32);
}

static enum hkt_status message_of_another_type(const struct mismatch *m)
{
    return message(m, 4, 4, HKT_INT32);
}

static const struct {
    const char *name;
    mismatch_fn *fn;
    const char *algos[2];    /* of the others, of rank 1; NULL: the library's choice */
    const char *words[3];    /* NULL ends them */
} cases[] = {
    {"different collectives", different_collectives, {NULL}, {"all_reduce(count=4", "all_gather(count=4"}},
    {"different counts", different_counts, {NULL}, {"all_reduce(count=4", "all_reduce(count=5"}},
    {"nothing and something", nothing_and_something, {NULL}, {"all_reduce(count=0", "all_reduce(count=4"}},
    {"something and nothing", something_and_nothing, {NULL}, {"all_reduce(count=0", "all_reduce(count=4"}},
    {"different large counts", different_large_counts, {NULL}, {"all_reduce(count=100000", "all_reduce(count=100001"}},
    {"large and small", large_and_small, {NULL}, {"all_reduce(count=100000", "all_reduce(count=3"}},
    {"small and large", small_and_large, {NULL}, {"all_reduce(count=100000", "all_reduce(count=3"}},
    {"different types", different_types, {NULL}, {"float", "int32"}},
    {"different operations", different_operations, {NULL}, {"sum", "max"}},
    {"different roots", different_roots, {NULL}, {"broadcast(count=4", "root="}},
    {"different roots of a reduce", different_reduce_roots, {NULL}, {"reduce(count=4", "root="}},
    {"gather and scatter", gather_and_scatter, {NULL}, {"(count=4, float, root=0)"}},
    {"different placements", different_placements, {NULL}, {"in place"}},
    {"different placements of a large vector", different_large_placements, {NULL}, {"in place"}},
    {"different order", different_order, {NULL}, {"all_reduce(count=4", "barrier("}},
    {"one call too many", one_call_too_many, {NULL}, {"all_reduce(count=4", "barrier("}},
    {"different callbacks", different_callbacks, {NULL}, {"user op 0", "user op 1"}},
    {"different block counts", different_block_counts, {NULL}, {"all_gather_v(count=", "counts #"}},
    {"different reduced block counts", different_reduced_block_counts, {NULL}, {"reduce_scatter_v(count=", "counts #"}},
    {"different pair counts", different_pair_counts, {NULL}, {"all_to_all_v(count=4", "all_to_all_v(count=5"}},
    {"different algorithms and counts", different_counts, {"all_reduce=ring", "all_reduce=circulant"}, {"all_reduce(count="}},
    {"different algorithms", equal_calls, {"all_reduce=exchange", "all_reduce=ordered"}, {"different algorithms (", "exchange"}},
    /* Rank 1 wants a connection to rank 2 that rank 2 does not. */
    {"different connections", equal_calls, {"all_reduce=recursive_doubling", "all_reduce=ring"}, {"all_reduce(count=4"}},
    {"message too long", message_too_long, {NULL}, {"send_recv(count=8", "send_recv(count=4"}},
    {"message too short", message_too_short, {NULL}, {"send_recv(count=4", "send_recv(count=100000"}},
    {"message for nothing", message_for_nothing, {NULL}, {"send_recv(count=4", "send_recv(count=0"}},
    {"nothing for a message", nothing_for_a_message, {NULL}, {"send_recv(count=4", "send_recv(count=0"}},
    {"message of another type", message_of_another_type, {NULL}, {"float", "int32"}},
};

/* ---- running them ---- */

static void check_text(struct ranks_rank *rank, size_t i, const char *text)
{
    const char *first = strstr(text, "rank 1");

    ranks_require(rank, first != NULL, "%s: rank 1 is not named: %s", cases[i].name, text);
    ranks_require(rank, strstr(text, "rank 0") != NULL || strstr(text, "rank 2") != NULL,
                  "%s: only one rank is named: %s", cases[i].name, text);
    for (const char *const *word = cases[i].words; *word != NULL; word++)
        ranks_require(rank, strstr(text, *word) != NULL, "%s: \"%s\" is not in: %s", cases[i].name, *word, text);
}

static void run_case(struct mismatch *m, size_t i)
{
    struct ranks_rank *rank = m->rank;
    struct hkt_config config = HKT_CONFIG_INIT;
    char text[RANKS_TEXT_MAX] = "";
    enum hkt_status rc;

    config.timeout_ms = 60000;
    config.algo = cases[i].algos[m->is_odd] != NULL ? cases[i].algos[m->is_odd] : "";
    ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, rank->rank, &config, &m->comm), "split");
    rc = cases[i].fn(m);
    /* Where a rank only sends it may not have met the difference yet. */
    for (int later = 0; later < 4 && rc == HKT_OK; later++)
        rc = hkt_barrier(m->comm, NULL);
    snprintf(text, sizeof text, "%s", rc < 0 ? hkt_last_error() : "");
    ranks_require(rank, rc == HKT_ERR_MISMATCH, "%s: %s: %s", cases[i].name, hkt_status_name(rc), text);
    check_text(rank, i, text);
    ranks_require(rank, hkt_comm_status(m->comm) == HKT_ERR_MISMATCH, "%s: hkt_comm_status", cases[i].name);
    check_text(rank, i, hkt_comm_last_error(m->comm));
    rc = hkt_barrier(m->comm, NULL);
    ranks_require(rank, rc == HKT_ERR_FAILED, "%s: then %s", cases[i].name, hkt_status_name(rc));
    check_text(rank, i, hkt_last_error());
    rc = hkt_comm_destroy(m->comm);
    ranks_require(rank, rc == HKT_ERR_MISMATCH, "%s: destroy: %s", cases[i].name, hkt_status_name(rc));
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "the parent's barrier");
}

static void run_cases(struct ranks_rank *rank)
{
    struct mismatch m = {.rank = rank, .is_odd = rank->rank == ODD};

    m.in = calloc(2 * N * LARGE, sizeof *m.in);
    m.out = calloc(2 * N * LARGE, sizeof *m.out);
    ranks_require(rank, m.in != NULL && m.out != NULL, "no memory");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        run_case(&m, i);
    free(m.in);
    free(m.out);
}

static void run_on(const char *transport, enum ranks_kind kind, ranks_fn *fn)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = kind, .nranks = N, .config = &config, .fn = fn};

    config.transport = transport;
    ranks_run(&job);
}

/* ---- what waiting ranks tell each other ---- */

enum { FOUR = 4, MANY = 32, LATE_MS = 1500, LONG_MS = 60000 };

/** Rank 3 was to broadcast and gives its input to rank 2 instead, which does not listen to it in a broadcast; then it is
 *  done and turns to something else. Ranks 0 and 1 wait for it. */
static void gone_on(struct ranks_rank *rank)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const int64_t deadline_ms = ranks_now_ms() + LONG_MS;
    struct hkt_comm *child;
    float in[8] = {0}, out[8];
    enum hkt_status rc = HKT_OK;

    config.timeout_ms = LONG_MS;
    config.algo = "broadcast=chain,reduce=binomial";
    ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, rank->rank, &config, &child), "split");
    for (int i = 0; i < 2; i++) {
        ranks_require_ok(rank, hkt_broadcast(in, out, 8, HKT_F32, 3, child, NULL), "broadcast");
        ranks_require_ok(rank, hkt_reduce(in, out, 8, HKT_F32, HKT_SUM, 2, child, NULL), "reduce");
    }
    if (rank->rank == 3) {
        rc = hkt_reduce(in, out, 8, HKT_F32, HKT_SUM, 2, child, NULL);
        while (rc == HKT_OK && hkt_comm_status(child) == HKT_OK && ranks_now_ms() < deadline_ms)
            ranks_sleep_ms(1);
        rc = hkt_comm_status(child);
        ranks_require_text(rank, hkt_comm_last_error(child), "rank 3");
    } else {
        rc = hkt_broadcast(in, out, 8, HKT_F32, 3, child, NULL);
        ranks_require_text(rank, hkt_last_error(), "rank 3");
        ranks_require_text(rank, hkt_last_error(), "broadcast(count=8");
        ranks_require_text(rank, hkt_last_error(), "reduce(count=8");
    }
    ranks_require_status(rank, rc, HKT_ERR_MISMATCH, "who only sent and went on");
    ranks_require_status(rank, hkt_comm_destroy(child), HKT_ERR_MISMATCH, "destroy");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "the parent's barrier");
}

/** Nothing here is a mismatch: a rank comes late; one that only sends is several calls ahead; two communicators of the
 *  same ranks stand at the same number in different calls. */
static void late_but_right(struct ranks_rank *rank)
{
    const int half = rank->rank / 2;
    struct hkt_comm *child;
    float in[8] = {0}, out[8];

    ranks_require_ok(rank, hkt_comm_split(rank->comm, half, rank->rank, NULL, &child), "split");
    if (rank->rank % 2 == 1)
        ranks_sleep_ms(LATE_MS);
    for (int i = 0; i < 3; i++) {
        if (half == 0)
            ranks_require_ok(rank, hkt_broadcast(in, out, 8, HKT_F32, 0, child, NULL), "broadcast");
        else
            ranks_require_ok(rank, hkt_all_reduce(in, out, 8, HKT_F32, HKT_SUM, child, NULL), "all_reduce");
    }
    if (rank->rank == 3)
        ranks_sleep_ms(LATE_MS);
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "barrier");
    ranks_require_ok(rank, hkt_comm_destroy(child), "destroy");
}

/** Ranks that wait and tell while another ends the communicator: it is an abort, and nothing of it is touched later. */
static void aborted_while_telling(struct ranks_rank *rank)
{
    struct hkt_comm *child;

    for (int i = 0; i < 4; i++) {
        ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, rank->rank, NULL, &child), "split");
        if (rank->rank == 0) {
            ranks_sleep_ms(90 + 10 * i);
            hkt_comm_abort(child);
        } else {
            ranks_require_status(rank, hkt_barrier(child, NULL), HKT_ERR_ABORTED, "barrier");
            ranks_require_status(rank, hkt_comm_destroy(child), HKT_ERR_ABORTED, "destroy");
        }
    }
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "the parent's barrier");
}

/** Many ranks wait, and all are told by the one that differs, or by those that it meets. */
static void one_of_many(struct ranks_rank *rank)
{
    float in[8] = {0}, out[8 * MANY];
    enum hkt_status rc;

    if (rank->rank == ODD)
        rc = hkt_all_gather(in, out, 8, HKT_F32, rank->comm, NULL);
    else
        rc = hkt_broadcast(in, out, 8, HKT_F32, ODD, rank->comm, NULL);
    for (int later = 0; later < 4 && rc == HKT_OK; later++)
        rc = hkt_barrier(rank->comm, NULL);
    ranks_require_status(rank, rc, HKT_ERR_MISMATCH, "one of many");
    ranks_require_text(rank, hkt_last_error(), "rank 1");
    ranks_require_text(rank, hkt_last_error(), "broadcast(count=8");
    ranks_require_text(rank, hkt_last_error(), "all_gather(count=8");
    ranks_require_status(rank, hkt_comm_destroy(rank->comm), HKT_ERR_MISMATCH, "destroy");
    rank->comm = NULL;
}

static void run_four(const char *transport, enum ranks_kind kind, ranks_fn *fn)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = kind, .nranks = FOUR, .config = &config, .fn = fn};

    config.transport = transport;
    ranks_run(&job);
}

static void who_went_on_is_told(void **state)
{
    (void)state;
    run_four("thread", RANKS_THREADS, gone_on);
    run_four("shm", RANKS_PROCESSES, gone_on);
    run_four("tcp", RANKS_PROCESSES, gone_on);
}

static void many_are_told(void **state)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = RANKS_THREADS, .nranks = MANY, .config = &config, .fn = one_of_many};

    (void)state;
    config.transport = "tcp";
    ranks_run(&job);
}

static void late_is_no_mismatch(void **state)
{
    (void)state;
    run_four("shm", RANKS_PROCESSES, late_but_right);
    run_four("tcp", RANKS_PROCESSES, late_but_right);
}

static void aborts_meet_what_is_told(void **state)
{
    (void)state;
    run_four("thread", RANKS_THREADS, aborted_while_telling);
    run_four("tcp", RANKS_PROCESSES, aborted_while_telling);
}

static void threads_are_told(void **state)
{
    (void)state;
    run_on("thread", RANKS_THREADS, run_cases);
}

static void processes_are_told_over_shm(void **state)
{
    (void)state;
    run_on("shm", RANKS_PROCESSES, run_cases);
}

static void processes_are_told_over_tcp(void **state)
{
    (void)state;
    run_on("tcp", RANKS_PROCESSES, run_cases);
}

static const char *named; /* the transport that this program was asked for */

static void processes_are_told_over_the_named(void **state)
{
    (void)state;
    run_on(named, RANKS_PROCESSES, run_cases);
}

/* ---- settings ---- */

/** Ranks that cut or check messages differently would read each other's bytes wrongly: nobody gets a communicator. */
static void split_with_different_settings(struct ranks_rank *rank)
{
    static const char *const words[] = {"HOCKET_SLICE_BYTES", "HOCKET_LANES", "HOCKET_CRC"};

    for (int i = 0; i < 3; i++) {
        struct hkt_config config = HKT_CONFIG_INIT;
        struct hkt_comm *child = NULL;

        if (rank->rank == ODD) {
            config.slice_bytes = i == 0 ? 4096 : 0;
            config.lanes = i == 1 ? 2 : 0;
            config.crc = i == 2 ? 1 : 0;
        }
        const enum hkt_status rc = hkt_comm_split(rank->comm, 0, 0, &config, &child);

        ranks_require(rank, rc == HKT_ERR_INVALID, "different %s: %s: %s", words[i], hkt_status_name(rc),
                      rc < 0 ? hkt_last_error() : "");
        ranks_require_text(rank, hkt_last_error(), words[i]);
        ranks_require_text(rank, hkt_last_error(), "rank 1");
        ranks_require(rank, child == NULL, "a refused split wrote its result");
        ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "the parent's barrier");
    }
}

static void join_with_different_scratch(struct ranks_rank *rank)
{
    setenv("HOCKET_SCRATCH_BYTES", rank->rank == ODD ? "128K" : "256K", 1);
    const enum hkt_status rc = ranks_join(rank, N, NULL);

    ranks_require(rank, rc == HKT_ERR_INVALID, "different scratch: %s: %s", hkt_status_name(rc),
                  rc < 0 ? hkt_last_error() : "");
    ranks_require_text(rank, hkt_last_error(), "HOCKET_SCRATCH_BYTES");
    ranks_require_text(rank, hkt_last_error(), "rank 1");
}

/** Sizes of frames, slots and numbers of sockets are a sender's and a receiver's own: they may differ. */
static void join_with_different_buffers(struct ranks_rank *rank)
{
    static const char *const slots[N] = {"2", "8", "16"}, *const slot_bytes[N] = {"32K", "1K", "8K"};
    static const char *const frames[N] = {"256K", "4K", "10000"}, *const sockets[N] = {"1", "3", "2"};
    struct calls calls;
    char text[256];

    setenv("HOCKET_SHM_SLOTS", slots[rank->rank], 1);
    setenv("HOCKET_SHM_SLOT_BYTES", slot_bytes[rank->rank], 1);
    setenv("HOCKET_TCP_FRAME_BYTES", frames[rank->rank], 1);
    setenv("HOCKET_TCP_SOCKETS", sockets[rank->rank], 1);
    setenv("HOCKET_TRANSPORT", rank->arg, 1);
    ranks_require_ok(rank, ranks_join(rank, N, NULL), "joining");
    for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
        const struct call call = {.coll = (enum hkt_coll)coll, .dtype = HKT_F32, .op = HKT_SUM, .count = LARGE, .root = 2,
                                  .kind = calls_reduces((enum hkt_coll)coll) ? EXACT_BUILTIN : EXACT_PLAIN};

        ranks_require(rank, calls_init(&calls, rank->comm, calls_room(&call, N)), "no memory");
        calls_fill(&calls, &call);
        ranks_require_ok(rank, calls_issue(&calls, &call, NULL), hkt_coll_name(call.coll));
        ranks_require(rank, calls_check(&calls, &call, text, sizeof text) == 0, "%s: %s", hkt_coll_name(call.coll), text);
        calls_fini(&calls);
    }
}

static void different_buffers_work(void **state)
{
    static const char *const transports[] = {"shm", "tcp"};

    (void)state;
    for (int t = 0; t < 2; t++) {
        const struct ranks_job job = {.kind = RANKS_PROCESSES, .nranks = N, .no_comm = true,
                                      .fn = join_with_different_buffers, .arg = (void *)(uintptr_t)transports[t]};

        ranks_run(&job);
    }
}

static void different_settings_are_told(void **state)
{
    const struct ranks_job job = {.kind = RANKS_PROCESSES, .nranks = N, .no_comm = true, .fn = join_with_different_scratch};

    (void)state;
    run_on("thread", RANKS_THREADS, split_with_different_settings);
    run_on("tcp", RANKS_PROCESSES, split_with_different_settings);
    ranks_run(&job);
}

/** Without an argument all of it; with the name of a transport its cases alone. */
int main(int argc, char **argv)
{
    const struct CMUnitTest over_one[] = {cmocka_unit_test(processes_are_told_over_the_named)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_told),
        cmocka_unit_test(processes_are_told_over_shm),
        cmocka_unit_test(processes_are_told_over_tcp),
        cmocka_unit_test(who_went_on_is_told),
        cmocka_unit_test(many_are_told),
        cmocka_unit_test(late_is_no_mismatch),
        cmocka_unit_test(aborts_meet_what_is_told),
        cmocka_unit_test(different_settings_are_told),
        cmocka_unit_test(different_buffers_work),
    };

    named = argc > 1 ? argv[1] : NULL;
    return named != NULL ? cmocka_run_group_tests(over_one, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
