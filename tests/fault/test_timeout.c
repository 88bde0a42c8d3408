/* What could break: a rank that does not come, or stops in the middle, hangs the others, or the error does not say what
 * was waited for, over what, and who is missing; an abort does not reach an operation in flight somewhere; a communicator
 * that has failed cannot be destroyed, or its flight recorder does not show the operation that did not finish, and where
 * the other ranks are. On threads, shm and tcp; each case has a communicator of its own. Where ranks must give up, each case
 * is a job of its own, since the machine may make them give up, or seem silent, when it stands still for some moments: then
 * it is tried again with more patience.
 *
 * Usage: test_timeout [TRANSPORT]: over that one alone, between processes. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "ranks.h"

enum { N = 3, ABSENT = 2, LARGE = 200000, TIMEOUT_MS = 250, TIMEOUT_MAX_MS = 4000, LONG_MS = 60000 };

struct place {
    struct ranks_rank *rank;
    struct hkt_comm *comm;
    const char *transport;
    int64_t timeout_ms;
    float *in, *out;
};

static enum hkt_status sum(const struct place *p, size_t count, struct hkt_stream *stream)
{
    return hkt_all_reduce(p->in, p->out, count, HKT_F32, HKT_SUM, p->comm, stream);
}

/** A communicator for one case. */
static void open_place(struct place *p, int64_t timeout_ms, const char *algo)
{
    struct hkt_config config = HKT_CONFIG_INIT;

    config.timeout_ms = timeout_ms;
    config.algo = algo;
    config.name = "late";
    atomic_fetch_add(&p->rank->shared->preparing, 1);
    ranks_require_ok(p->rank, hkt_comm_split(p->rank->comm, 0, p->rank->rank, &config, &p->comm), "split");
    /* Once through, so that connections exist: a timeout is then about the operation. It holds for this too: where ranks
     * are slow to connect, the job is tried again with more patience. */
    ranks_require_ok(p->rank, sum(p, LARGE, NULL), "all_reduce");
    /* Through on all ranks, or one that goes on to fail the communicator fails this for another. */
    ranks_require_ok(p->rank, hkt_barrier(p->rank->comm, NULL), "the parent's barrier");
    atomic_fetch_sub(&p->rank->shared->preparing, 1);
}

/** All know the failure; the communicator can be destroyed; the parent works. */
static void close_place(struct place *p, enum hkt_status want)
{
    ranks_require(p->rank, hkt_comm_status(p->comm) == want, "hkt_comm_status is %s",
                  hkt_status_name(hkt_comm_status(p->comm)));
    ranks_require_status(p->rank, sum(p, 1, NULL), HKT_ERR_FAILED, "a later call");
    ranks_require_status(p->rank, hkt_comm_destroy(p->comm), want, "hkt_comm_destroy");
    ranks_require_ok(p->rank, hkt_barrier(p->rank->comm, NULL), "the parent's barrier");
}

/* ---- a rank that does not come ---- */

typedef enum hkt_status late_fn(const struct place *p);

static enum hkt_status late_all_reduce(const struct place *p)
{
    return sum(p, 4, NULL);
}

static enum hkt_status late_large_all_reduce(const struct place *p)
{
    return sum(p, LARGE, NULL);
}

static enum hkt_status late_barrier(const struct place *p)
{
    return hkt_barrier(p->comm, NULL);
}

static enum hkt_status late_root(const struct place *p)
{
    return hkt_broadcast(p->in, p->out, 4, HKT_F32, ABSENT, p->comm, NULL);
}

static enum hkt_status late_large_root(const struct place *p)
{
    return hkt_scatter(p->in, p->out, LARGE / N, HKT_F32, ABSENT, p->comm, NULL);
}

static enum hkt_status late_all_to_all(const struct place *p)
{
    return hkt_all_to_all(p->in, p->out, 4, HKT_F32, p->comm, NULL);
}

static enum hkt_status late_sender(const struct place *p)
{
    return hkt_recv(p->out, 4, HKT_F32, ABSENT, p->comm, NULL);
}

static enum hkt_status late_receiver(const struct place *p)
{
    return hkt_send(p->in, LARGE, HKT_F32, ABSENT, p->comm, NULL);
}

static enum hkt_status late_in_a_group(const struct place *p)
{
    ranks_require_ok(p->rank, hkt_group_start(), "start");
    ranks_require_ok(p->rank, hkt_send(p->in, 4, HKT_F32, 1 - p->rank->rank, p->comm, NULL), "send");
    ranks_require_ok(p->rank, hkt_recv(p->out, 4, HKT_F32, 1 - p->rank->rank, p->comm, NULL), "recv");
    ranks_require_ok(p->rank, sum(p, 4, NULL), "all_reduce in a group");
    return hkt_group_end();
}

static enum hkt_status late_on_a_stream(const struct place *p)
{
    struct hkt_stream *stream;

    ranks_require_ok(p->rank, hkt_stream_create(&stream), "hkt_stream_create");
    ranks_require_ok(p->rank, sum(p, 4, stream), "all_reduce on a stream");
    ranks_require_ok(p->rank, sum(p, 4, stream), "all_reduce on a stream");
    const enum hkt_status rc = hkt_stream_synchronize(stream);

    ranks_require_ok(p->rank, hkt_stream_synchronize(stream), "a second synchronize");
    hkt_stream_destroy(stream);
    return rc;
}

static const struct {
    const char *name;
    late_fn *fn;
    const char *algo, *words[2];
    bool is_message;         /* names the rank it waits for; messages are between two, and nobody else enters them */
} late[] = {
    {"all_reduce", late_all_reduce, "", {"all_reduce(count=4"}, false},
    {"large all_reduce", late_large_all_reduce, "", {"all_reduce(count=200000"}, false},
    {"ring", late_large_all_reduce, "all_reduce=ring", {"all_reduce(count=200000", "ring"}, false},
    {"double tree", late_large_all_reduce, "all_reduce=double_tree", {"all_reduce(count=200000", "double_tree"}, false},
    {"barrier", late_barrier, "", {"barrier("}, false},
    {"root", late_root, "", {"broadcast(count=4", "root=2"}, false},
    {"large root", late_large_root, "", {"scatter(count=66666", "root=2"}, false},
    {"all_to_all", late_all_to_all, "", {"all_to_all(count=4"}, false},
    {"sender", late_sender, "", {"a send from rank 2"}, true},
    {"receiver", late_receiver, "", {"a receive by rank 2"}, true},
    {"group", late_in_a_group, "", {"all_reduce(count=4"}, false},
    {"stream", late_on_a_stream, "", {"all_reduce(count=4"}, false},
};

/** The dump's ranks: the absent one is behind the two others, which are in the operation. */
static void check_ranks(const struct place *p, const cJSON *ranks, const char *text)
{
    double seq[N] = {0};
    const cJSON *one;

    ranks_require(p->rank, cJSON_GetArraySize(ranks) == N, "ranks: %s", text);
    cJSON_ArrayForEach(one, ranks)
    {
        const int r = (int)cJSON_GetNumberValue(cJSON_GetObjectItem(one, "rank"));
        const char *state = cJSON_GetStringValue(cJSON_GetObjectItem(one, "state"));

        ranks_require(p->rank, r >= 0 && r < N && state != NULL, "a rank without number or state: %s", text);
        seq[r] = cJSON_GetNumberValue(cJSON_GetObjectItem(one, "seq"));
        ranks_require(p->rank, strcmp(state, r == ABSENT ? "done" : "running") == 0 || r == p->rank->rank,
                      "rank %d is %s: %s", r, state, text);
    }
    ranks_require(p->rank, seq[0] == seq[1] && seq[ABSENT] == seq[0] - 1, "the absent rank is not behind: %s", text);
}

/** The operation in the flight recorder, as text and as JSON. */
static void check_dump(const struct place *p, bool is_message)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    int unfinished = 0;

    ranks_require_ok(p->rank, hkt_comm_dump(p->comm, file, 0), "hkt_comm_dump");
    fclose(file);
    ranks_require_text(p->rank, text, "late: rank");
    ranks_require_text(p->rank, text, "failed");
    ranks_require_text(p->rank, text, "first failure: ");
    if (!is_message)
        ranks_require_text(p->rank, text, "rank 2: has finished all_reduce(count=200000");
    free(text);
    file = open_memstream(&text, &bytes);
    ranks_require_ok(p->rank, hkt_comm_dump(p->comm, file, 1), "hkt_comm_dump");
    fclose(file);
    cJSON *root = cJSON_Parse(text);

    ranks_require(p->rank, root != NULL, "not JSON: %s", text);
    ranks_require(p->rank, cJSON_GetNumberValue(cJSON_GetObjectItem(root, "nranks")) == N, "nranks: %s", text);
    const cJSON *operations = cJSON_GetObjectItem(root, "operations"), *operation;

    ranks_require(p->rank, cJSON_GetArraySize(operations) >= 2, "operations: %s", text);
    cJSON_ArrayForEach(operation, operations)
    {
        const char *state = cJSON_GetStringValue(cJSON_GetObjectItem(operation, "state"));

        ranks_require(p->rank, state != NULL && cJSON_GetStringValue(cJSON_GetObjectItem(operation, "call")) != NULL,
                      "an operation without state or call: %s", text);
        unfinished += strcmp(state, "done") != 0;
    }
    ranks_require(p->rank, unfinished > 0, "all operations are done: %s", text);
    if (!is_message)
        check_ranks(p, cJSON_GetObjectItem(root, "ranks"), text);
    cJSON_Delete(root);
    free(text);
}

static void run_late(struct place *p, size_t i)
{
    const bool is_absent = p->rank->rank == ABSENT;
    const char *text = "";
    char over[32], time[64];

    open_place(p, p->timeout_ms, late[i].algo);
    /* The absent rank comes when the others have given up. It is told why. */
    if (is_absent)
        for (int64_t deadline_ms = ranks_now_ms() + LONG_MS; hkt_comm_status(p->comm) == HKT_OK;) {
            ranks_require(p->rank, ranks_now_ms() < deadline_ms, "%s: no failure arrives at the absent rank", late[i].name);
            ranks_sleep_ms(1);
        }
    const int64_t begin_ms = ranks_now_ms();
    const enum hkt_status rc = is_absent ? late_all_reduce(p) : late[i].fn(p);

    ranks_require_status(p->rank, rc, HKT_ERR_TIMEOUT, late[i].name);
    text = hkt_last_error();
    if (!is_absent)
        ranks_require(p->rank, ranks_now_ms() - begin_ms >= p->timeout_ms - 50, "%s: given up after %lld ms", late[i].name,
                      (long long)(ranks_now_ms() - begin_ms));
    ranks_require_text(p->rank, text, "late");
    snprintf(time, sizeof time, "%lld ms (HOCKET_TIMEOUT)", (long long)p->timeout_ms);
    ranks_require_text(p->rank, text, time);
    for (int w = 0; w < 2 && late[i].words[w] != NULL; w++)
        ranks_require_text(p->rank, text, late[i].words[w]);
    snprintf(over, sizeof over, "over %s", p->transport);
    ranks_require_text(p->rank, text, over);
    ranks_require_text(p->rank, text, late[i].is_message ? "rank 2" : "not entered yet: rank 2");
    if (!is_absent)
        check_dump(p, late[i].is_message);
    close_place(p, HKT_ERR_TIMEOUT);
}

/* ---- a rank that stops in the middle ---- */

static void sleepy(void *out, const void *a, const void *b, size_t count, enum hkt_dtype dtype, void *arg)
{
    const struct place *p = arg;
    int32_t x, y;

    (void)dtype;
    for (int64_t deadline_ms = ranks_now_ms() + LONG_MS;
         p->rank->rank == ABSENT && hkt_comm_status(p->comm) == HKT_OK && ranks_now_ms() < deadline_ms;)
        ranks_sleep_ms(1);
    for (size_t i = 0; i < count; i++) {
        memcpy(&x, (const char *)a + 4 * i, 4);
        memcpy(&y, (const char *)b + 4 * i, 4);
        x += y;
        memcpy((char *)out + 4 * i, &x, 4);
    }
}

static void run_stuck(struct place *p, size_t i)
{
    enum hkt_op op;

    (void)i;
    open_place(p, p->timeout_ms, "all_reduce=ring");
    ranks_require_ok(p->rank, hkt_op_create_callback(&op, sleepy, p, p->comm), "callback");
    const enum hkt_status rc = hkt_all_reduce(p->in, p->out, LARGE, HKT_INT32, op, p->comm, NULL);

    ranks_require_status(p->rank, rc, HKT_ERR_TIMEOUT, "a rank stuck in its callback");
    ranks_require_text(p->rank, hkt_last_error(), "user op 0");
    ranks_require(p->rank, strstr(hkt_last_error(), "not entered") == NULL, "all have entered: %s", hkt_last_error());
    close_place(p, HKT_ERR_TIMEOUT);
}

/** Who has done its part and gone on to a message is not said to be absent. The vector is larger than what the absent rank's
 *  channel holds, by less than the slices that a root may be ahead. */
static void run_gone_on(struct place *p, size_t i)
{
    enum { COUNT = 100000 };
    enum hkt_status rc;

    (void)i;
    open_place(p, p->rank->rank == 0 ? p->timeout_ms : LONG_MS, "broadcast=binomial");
    if (p->rank->rank == ABSENT)
        while (hkt_comm_status(p->comm) == HKT_OK)
            ranks_sleep_ms(1);
    rc = hkt_broadcast(p->in, p->out, COUNT, HKT_F32, 0, p->comm, NULL);
    if (p->rank->rank == 1 && rc == HKT_OK)
        rc = hkt_send(p->in, COUNT, HKT_F32, 0, p->comm, NULL);
    ranks_require_status(p->rank, rc, HKT_ERR_TIMEOUT, "a broadcast to a rank that does not come");
    ranks_require_text(p->rank, hkt_last_error(), "not entered yet: rank 2; finished by rank 1");
    close_place(p, HKT_ERR_TIMEOUT);
}

/** A rank whose process is stopped is waited for, but does not hold up the report. */
static void run_stopped(struct place *p, size_t i)
{
    _Atomic int64_t *pid = &p->rank->shared->counters[0];

    (void)i;
    open_place(p, p->timeout_ms, "");
    if (p->rank->rank == ABSENT) {
        atomic_store(pid, getpid());
        raise(SIGSTOP);
        while (hkt_comm_status(p->comm) == HKT_OK)
            ranks_sleep_ms(1);
        ranks_require_status(p->rank, sum(p, 4, NULL), HKT_ERR_TIMEOUT, "a rank that was stopped");
    } else {
        while (atomic_load(pid) == 0)
            ranks_sleep_ms(1);
        ranks_require_status(p->rank, sum(p, 4, NULL), HKT_ERR_TIMEOUT, "a stopped rank");
        ranks_require_text(p->rank, hkt_last_error(), "gives no answer: rank 2");
    }
    ranks_require_text(p->rank, hkt_last_error(), "late");
    if (p->rank->rank == 0)
        kill((pid_t)atomic_load(pid), SIGCONT);
    close_place(p, HKT_ERR_TIMEOUT);
}

/* ---- dumps ---- */

/** A dump of a communicator that works shows where the others are, and does it no harm. */
static void run_dump(struct place *p)
{
    const int64_t deadline_ms = ranks_now_ms() + LONG_MS;
    bool is_seen = p->rank->rank != ABSENT;

    open_place(p, LONG_MS, "");
    while (!is_seen) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);

        ranks_require_ok(p->rank, hkt_comm_dump(p->comm, file, 0), "hkt_comm_dump");
        fclose(file);
        is_seen = strstr(text, "rank 0-1: in all_reduce(count=4") != NULL &&
                  strstr(text, "rank 2: has finished all_reduce(count=200000") != NULL;
        ranks_require(p->rank, ranks_now_ms() < deadline_ms, "ranks 0 and 1 are not seen inside: %s", text);
        free(text);
    }
    ranks_require_ok(p->rank, sum(p, 4, NULL), "all_reduce");
    ranks_require_ok(p->rank, hkt_comm_destroy(p->comm), "hkt_comm_destroy");
    ranks_require_ok(p->rank, hkt_barrier(p->rank->comm, NULL), "the parent's barrier");
}

/** What a dump says, as text or JSON; the caller frees it. */
static char *dump_of(const struct place *p, int json)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    ranks_require_ok(p->rank, hkt_comm_dump(p->comm, file, json), "hkt_comm_dump");
    fclose(file);
    return text;
}

/** Ranks in different calls are told apart, also after that has failed; and a name cannot break the JSON. */
static void run_dump_of_mismatch(struct place *p)
{
    const int64_t deadline_ms = ranks_now_ms() + LONG_MS;
    struct hkt_config config = HKT_CONFIG_INIT;
    const bool is_odd = p->rank->rank == ABSENT;
    int32_t one = 1;

    config.name = "a \"name\"\\\n";
    config.timeout_ms = LONG_MS;
    ranks_require_ok(p->rank, hkt_comm_split(p->rank->comm, 0, p->rank->rank, &config, &p->comm), "split");
    for (bool is_seen = !is_odd; !is_seen;) {
        char *text = dump_of(p, 0);

        is_seen = strstr(text, "rank 0-1: in all_reduce(count=4, float") != NULL;
        ranks_require(p->rank, ranks_now_ms() < deadline_ms, "ranks 0 and 1 are not seen inside: %s", text);
        free(text);
    }
    const enum hkt_status rc = is_odd ? hkt_all_reduce(&one, &one, 1, HKT_INT32, HKT_SUM, p->comm, NULL) : sum(p, 4, NULL);

    ranks_require(p->rank, rc == HKT_ERR_MISMATCH, "%s instead of MISMATCH", hkt_status_name(rc));
    char *text = dump_of(p, 0), *json = dump_of(p, 1);
    cJSON *root = cJSON_Parse(json);

    if (is_odd) {
        ranks_require_text(p->rank, text, "rank 0-1: in all_reduce(count=4, float");
        ranks_require_text(p->rank, text, "rank 2: in all_reduce(count=1, int32");
    }
    ranks_require(p->rank, root != NULL, "not JSON: %s", json);
    ranks_require(p->rank, strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(root, "comm")), config.name) == 0, "name: %s", json);
    ranks_require(p->rank, strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(root, "failure")), hkt_comm_last_error(p->comm)) == 0,
                  "failure: %s", json);
    cJSON_Delete(root);
    free(text);
    free(json);
    ranks_require(p->rank, hkt_comm_destroy(p->comm) < 0, "the failed communicator's end");
    ranks_require_ok(p->rank, hkt_barrier(p->rank->comm, NULL), "the parent's barrier");
}

/* ---- aborts ---- */

/** Give ranks 0 and 1 time to enter their operation (the result does not depend on it), then end it from this thread. */
static void *revoke_soon(void *arg)
{
    const struct place *p = arg;

    ranks_sleep_ms(50);
    hkt_comm_revoke(p->comm);
    return NULL;
}

/** Ranks 0 and 1 wait in an operation; a second thread of rank 0 revokes it. */
static void run_revoke(struct place *p, late_fn *fn)
{
    pthread_t thread;
    enum hkt_status rc = HKT_OK;

    open_place(p, LONG_MS, "");
    if (p->rank->rank == 0)
        ranks_require(p->rank, pthread_create(&thread, NULL, revoke_soon, p) == 0, "pthread_create");
    if (p->rank->rank == ABSENT)
        while (hkt_comm_status(p->comm) == HKT_OK)
            ranks_sleep_ms(1);
    rc = p->rank->rank == ABSENT ? late_all_reduce(p) : fn(p);
    ranks_require_status(p->rank, rc, HKT_ERR_ABORTED, "a revoked operation");
    ranks_require_text(p->rank, hkt_last_error(), "rank 0");
    if (p->rank->rank == 0)
        pthread_join(thread, NULL);
    close_place(p, HKT_ERR_ABORTED);
}

/** The rank that does not come aborts instead: it never waits. */
static void run_abort(struct place *p, late_fn *fn)
{
    open_place(p, LONG_MS, "");
    if (p->rank->rank == ABSENT) {
        ranks_sleep_ms(50);
        hkt_comm_abort(p->comm);
        ranks_require_ok(p->rank, hkt_barrier(p->rank->comm, NULL), "the parent's barrier");
        return;
    }
    ranks_require_status(p->rank, fn(p), HKT_ERR_ABORTED, "an aborted operation");
    ranks_require_text(p->rank, hkt_last_error(), "rank 2");
    close_place(p, HKT_ERR_ABORTED);
}

/** Operations queued on a stream end too, and the abort waits for just that. */
static void run_abort_stream(struct place *p)
{
    struct hkt_stream *stream;

    open_place(p, LONG_MS, "");
    ranks_require_ok(p->rank, hkt_stream_create(&stream), "hkt_stream_create");
    for (int i = 0; i < 5 && p->rank->rank != ABSENT; i++)
        ranks_require_ok(p->rank, sum(p, LARGE, stream), "all_reduce on a stream");
    if (p->rank->rank == 0)
        hkt_comm_abort(p->comm);
    const enum hkt_status rc = hkt_stream_synchronize(stream);

    if (p->rank->rank != ABSENT)
        ranks_require_status(p->rank, rc, HKT_ERR_ABORTED, "an aborted stream");
    while (p->rank->rank != 0 && hkt_comm_status(p->comm) == HKT_OK)
        ranks_sleep_ms(1);
    hkt_stream_destroy(stream);
    if (p->rank->rank != 0)
        ranks_require_status(p->rank, hkt_comm_destroy(p->comm), HKT_ERR_ABORTED, "hkt_comm_destroy");
    ranks_require_ok(p->rank, hkt_barrier(p->rank->comm, NULL), "the parent's barrier");
}

/* ---- joining ---- */

static void join_without_rank_1(struct ranks_rank *rank)
{
    if (rank->rank == ABSENT)
        return;
    const int as = rank->rank == 0 ? 0 : 2;

    if (rank->rank == 0) {
        ranks_require_ok(rank, hkt_get_unique_id(&rank->shared->id), "hkt_get_unique_id");
        atomic_store(&rank->shared->id_ready, 1);
    }
    while (!atomic_load(&rank->shared->id_ready))
        ranks_sleep_ms(1);
    ranks_require_status(rank, hkt_comm_init_rank(&rank->comm, N, &rank->shared->id, as, NULL), HKT_ERR_TIMEOUT,
                         "joining");
    ranks_require_text(rank, hkt_last_error(), "rank 1 of 3 did not arrive");
    ranks_require(rank, rank->comm == NULL, "a communicator without rank 1");
}

/* ---- running them ---- */

static void run_patient(struct place *p, size_t i)
{
    (void)i;
    run_dump(p);
    run_dump_of_mismatch(p);
    run_revoke(p, late_all_reduce);
    run_revoke(p, late_large_all_reduce);
    run_revoke(p, late_receiver);
    run_abort(p, late_barrier);
    run_abort(p, late_large_all_reduce);
    run_abort(p, late_on_a_stream);
    run_abort_stream(p);
}

struct part {
    void (*run)(struct place *p, size_t i);
    size_t i;
    bool is_timed;
    const char *transport;
};

static void run_part(struct ranks_rank *rank)
{
    const struct part *part = rank->arg;
    struct place p = {.rank = rank, .transport = part->transport};

    p.timeout_ms = TIMEOUT_MS << rank->shared->tried;
    if (p.timeout_ms > TIMEOUT_MAX_MS)
        p.timeout_ms = TIMEOUT_MAX_MS;
    p.in = calloc(LARGE * N, sizeof *p.in);
    p.out = calloc(LARGE * N, sizeof *p.out);
    ranks_require(rank, p.in != NULL && p.out != NULL, "no memory");
    part->run(&p, part->i);
    free(p.in);
    free(p.out);
}

static void run_on(const char *transport, enum ranks_kind kind, struct part part)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = kind, .nranks = N, .is_timed = part.is_timed, .config = &config, .fn = run_part,
                                  .arg = &part};

    config.transport = part.transport = transport;
    ranks_run(&job);
}

static void run_all(const char *transport, enum ranks_kind kind)
{
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++)
        run_on(transport, kind, (struct part){.run = run_late, .i = i, .is_timed = true});
    run_on(transport, kind, (struct part){.run = run_stuck, .is_timed = true});
    if (kind == RANKS_THREADS || strcmp(transport, "shm") == 0) /* the buffers of others would hold all of it */
        run_on(transport, kind, (struct part){.run = run_gone_on, .is_timed = true});
    if (kind == RANKS_PROCESSES)
        run_on(transport, kind, (struct part){.run = run_stopped, .is_timed = true});
    run_on(transport, kind, (struct part){.run = run_patient});
}

static void on_threads(void **state)
{
    (void)state;
    run_all("thread", RANKS_THREADS);
}

static void on_shm(void **state)
{
    (void)state;
    run_all("shm", RANKS_PROCESSES);
}

static const char *transport_wanted = "tcp";

static void on_network(void **state)
{
    (void)state;
    run_all(transport_wanted, RANKS_PROCESSES);
}

static void a_missing_rank_ends_the_join(void **state)
{
    static const char *const settings[] = {"HOCKET_INIT_TIMEOUT=400ms", NULL};
    const struct ranks_job job = {.kind = RANKS_PROCESSES, .nranks = N, .settings = settings, .is_timed = true,
                                  .no_comm = true, .fn = join_without_rank_1};

    (void)state;
    ranks_run(&job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest network[] = {cmocka_unit_test(on_network)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_threads),
        cmocka_unit_test(on_shm),
        cmocka_unit_test(on_network),
        cmocka_unit_test(a_missing_rank_ends_the_join),
    };

    if (argc > 1) {
        transport_wanted = argv[1];
        return cmocka_run_group_tests(network, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
