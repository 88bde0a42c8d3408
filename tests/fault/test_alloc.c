/* What could break: an allocation fails somewhere in the life of a communicator - joining, first use of an algorithm, groups
 * small and large, splits in which some sit out, memory, registration, streams, events - and a rank crashes, hangs, leaks a
 * descriptor, reports success on wrong data, fails without a word, or leaves the others waiting: after a failure either the
 * communicator has failed on all ranks, or all ranks go on with it. Nobody helps by aborting, and deadlines are long, so
 * that a wait in vain shows as TIMEOUT, or, while ranks join, as a call that takes as long. A rank whose thread cannot be started
 * is such a rank, too.
 * Allocation k fails, for k = 1, 1 + stride, ... until a whole life needs fewer than k; stride 1 with the argument "all". */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/settings.h"
#include "hocket/hocket.h"
#include "ranks.h"

enum { RANKS = 3, MANY = 20, INIT_LIMIT_S = 60 };

static int stride = 29;
static _Atomic int ended;     /* ranks that make no more calls */

struct life {
    pthread_t thread;
    struct hkt_comm *comm;
    enum hkt_status status;   /* of the first call that failed */
    const char *failed;       /* which, and how */
    char text[512];
    const char *wrong;        /* a result that was reported as good and is not */
};

/** Keep the first failure. */
static enum hkt_status note(struct life *life, enum hkt_status rc, const char *what)
{
    if (rc < 0 && life->status == HKT_OK) {
        life->status = rc;
        life->failed = what;
        snprintf(life->text, sizeof life->text, "%s", hkt_last_error());
    }
    return rc;
}

/** A rank that cannot make the calls that others make says so. */
static bool can_go_on(struct life *life, enum hkt_status rc, const char *what)
{
    if (note(life, rc, what) < 0)
        hkt_comm_revoke(life->comm);
    return rc == HKT_OK;
}

static void check(struct life *life, enum hkt_status rc, const char *what, bool is_right)
{
    if (note(life, rc, what) == HKT_OK && !is_right)
        life->wrong = what;
}

/* ---- threads that cannot be started ---- */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg);

static _Atomic int refused; /* the refused-th thread from now; 0: none */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg)
{
    if (atomic_load(&refused) > 0 && atomic_fetch_sub(&refused, 1) == 1)
        return EAGAIN;
    return __real_pthread_create(thread, attributes, fn, arg);
}

/* ---- what a rank does with a communicator ---- */

static void sums(struct life *life)
{
    static const size_t counts[RANKS] = {1, 2, 1};
    int32_t mine = hkt_comm_rank(life->comm) + 1, sum = 0, all[4] = {mine, mine, mine, mine}, part[2] = {0, 0};
    const int32_t two = 2;
    enum hkt_op twice;
    enum hkt_status rc = hkt_all_reduce(&mine, &sum, 1, HKT_INT32, HKT_SUM, life->comm, NULL);

    check(life, rc, "all_reduce", sum == 6);
    if (!can_go_on(life, hkt_op_create_premulsum(&twice, &two, HKT_INT32, life->comm), "hkt_op_create_premulsum"))
        return;
    rc = hkt_reduce_scatter_v(all, part, counts, HKT_INT32, twice, life->comm, NULL);
    check(life, rc, "reduce_scatter_v", part[0] == 12);
    note(life, hkt_op_destroy(twice, life->comm), "hkt_op_destroy");
}

static enum hkt_status issue_ring(struct hkt_comm *comm, int messages, const int32_t *out, int32_t *in,
                                  struct hkt_stream *stream)
{
    const int n = hkt_comm_size(comm), rank = hkt_comm_rank(comm);
    enum hkt_status rc = hkt_group_start(), end;

    for (int i = 0; i < messages && rc == HKT_OK; i++) {
        rc = hkt_send(out, 1, HKT_INT32, (rank + 1) % n, comm, stream);
        if (rc == HKT_OK)
            rc = hkt_recv(&in[i], 1, HKT_INT32, (rank + n - 1) % n, comm, stream);
    }
    end = hkt_group_end();
    return rc < 0 ? rc : end;
}

static void groups(struct life *life)
{
    const int n = hkt_comm_size(life->comm), rank = hkt_comm_rank(life->comm), from = (rank + n - 1) % n;
    int32_t mine = rank + 1, got[MANY] = {0};
    enum hkt_status rc = issue_ring(life->comm, 1, &mine, got, NULL);

    check(life, rc, "a group", got[0] == from + 1);
    rc = issue_ring(life->comm, MANY, &mine, got, NULL);
    check(life, rc, "a large group", got[MANY - 1] == from + 1);
}

/** Ranks 0 and 1 become one communicator, rank 2 sits out or is another. */
static void splits(struct life *life)
{
    const int rank = hkt_comm_rank(life->comm);

    for (int i = 0; i < 2; i++) {
        const int color = rank < 2 ? 0 : i == 0 ? -1 : 1;
        struct hkt_comm *child = NULL;
        int32_t data[64] = {0};
        enum hkt_status rc = hkt_comm_split(life->comm, color, -rank, NULL, &child);

        check(life, rc, "hkt_comm_split", (child == NULL) == (color < 0));
        if (rc < 0 || child == NULL)
            continue;
        data[5] = rank == 1 || rank == 2 ? 7 : 0;
        rc = hkt_broadcast(data, data, 64, HKT_INT32, 0, child, NULL);
        check(life, rc, "a child's broadcast", data[5] == 7);
        note(life, hkt_comm_destroy(child), "hkt_comm_destroy of a child");
    }
}

static void memory(struct life *life)
{
    struct hkt_comm *child = NULL;
    void *shared = NULL;
    int32_t sum = 0;

    if (note(life, hkt_mem_alloc(&shared, 10000, life->comm), "hkt_mem_alloc") < 0)
        return;
    if (note(life, hkt_comm_split(life->comm, 0, 0, NULL, &child), "hkt_comm_split for memory") == HKT_OK) {
        enum hkt_status rc = hkt_comm_register(child, shared, 10000);

        ((int32_t *)shared)[0] = 5;
        if (rc == HKT_ERR_UNSUPPORTED || note(life, rc, "hkt_comm_register") == HKT_OK) { /* tcp shares no memory */
            rc = hkt_all_reduce(shared, &sum, 1, HKT_INT32, HKT_SUM, child, NULL);
            check(life, rc, "all_reduce of shared memory", sum == 5 * RANKS);
        }
        note(life, hkt_comm_destroy(child), "hkt_comm_destroy of a child with memory");
    }
    note(life, hkt_mem_free(shared, life->comm), "hkt_mem_free");
}

static void streams(struct life *life)
{
    const int n = hkt_comm_size(life->comm), rank = hkt_comm_rank(life->comm), from = (rank + n - 1) % n;
    int32_t mine = rank + 1, most = 0, got[MANY] = {0};
    struct hkt_stream *stream = NULL, *other = NULL;
    struct hkt_event *event = NULL;

    if (can_go_on(life, hkt_stream_create(&stream), "hkt_stream_create") &&
        can_go_on(life, hkt_stream_create(&other), "hkt_stream_create") &&
        can_go_on(life, hkt_event_create(&event), "hkt_event_create")) {
        note(life, hkt_all_reduce(&mine, &most, 1, HKT_INT32, HKT_MAX, life->comm, stream), "all_reduce on a stream");
        if (can_go_on(life, hkt_event_record(event, stream), "hkt_event_record") &&
            can_go_on(life, hkt_stream_wait_event(other, event), "hkt_stream_wait_event"))
            note(life, issue_ring(life->comm, MANY, &mine, got, other), "a group on a stream");
        note(life, hkt_stream_synchronize(stream), "hkt_stream_synchronize");
        note(life, hkt_stream_synchronize(other), "hkt_stream_synchronize of the other");
        if (life->status == HKT_OK && (most != RANKS || got[MANY - 1] != from + 1))
            life->wrong = "streams";
    }
    hkt_stream_destroy(stream);
    hkt_stream_destroy(other);
    hkt_event_destroy(event);
}

static void *live(void *arg)
{
    static void (*const steps[])(struct life *) = {sums, groups, splits, memory, streams};
    struct life *life = arg;

    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && hkt_comm_status(life->comm) == HKT_OK; i++)
        steps[i](life);
    for (atomic_fetch_add(&ended, 1); atomic_load(&ended) < RANKS;)
        ranks_sleep_ms(1);
    note(life, hkt_comm_destroy(life->comm), "hkt_comm_destroy");
    return NULL;
}

/** One life with allocation k failing; returns true when all went well. */
static bool live_once(int64_t k)
{
    struct hkt_comm *comms[RANKS] = {NULL};
    struct life lives[RANKS] = {{0}};
    bool ok = true;

    atomic_store(&ended, 0);
    hkt__mem_fail_at(k);
    const int64_t began_ms = ranks_now_ms();
    const enum hkt_status rc = hkt_comm_init_all(comms, RANKS, NULL);

    if (rc < 0) {
        if (rc == HKT_ERR_TIMEOUT || ranks_now_ms() - began_ms >= INIT_LIMIT_S * 1000 || hkt_last_error()[0] == '\0')
            fail_msg("allocation %lld failed: hkt_comm_init_all, after %lld ms: %s: %s", (long long)k,
                     (long long)(ranks_now_ms() - began_ms), hkt_status_name(rc), hkt_last_error());
        return false;
    }
    for (int r = 0; r < RANKS; r++) {
        lives[r].comm = comms[r];
        assert_int_equal(pthread_create(&lives[r].thread, NULL, live, &lives[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(lives[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) {
        const struct life *life = &lives[r];

        if (life->wrong != NULL)
            fail_msg("allocation %lld failed: rank %d: %s is wrong", (long long)k, r, life->wrong);
        if (life->status == HKT_ERR_TIMEOUT || (life->status < 0 && life->text[0] == '\0'))
            fail_msg("allocation %lld failed: rank %d: %s: %s: %s", (long long)k, r, life->failed,
                     hkt_status_name(life->status), life->text);
        ok &= life->status == HKT_OK;
    }
    return ok;
}

static void set_up(const char *transport)
{
    char limit[16];

    snprintf(limit, sizeof limit, "%ds", INIT_LIMIT_S);
    setenv("HOCKET_TRANSPORT", transport, 1);
    setenv("HOCKET_INIT_TIMEOUT", limit, 1);
    setenv("HOCKET_TIMEOUT", "60s", 1);
    hkt__settings_reset();
}

static void walk(const char *transport)
{
    int64_t k = 1;

    set_up(transport);
    assert_true(live_once(0));
    const int fds = ranks_count_fds();

    for (;; k += stride) {
        const uint64_t before = hkt__mem_count();
        const bool ok = live_once(k);

        hkt__mem_fail_at(0);
        if (ok && hkt__mem_count() - before < (uint64_t)k)
            break;
        if (ranks_count_fds() != fds)
            fail_msg("allocation %lld failed and left %d descriptors open", (long long)k, ranks_count_fds() - fds);
        assert_true(k < 20000);
    }
    printf("%s: every %d. of %lld allocations failed in turn\n", transport, stride, (long long)k - 1);
}

static void threads(void **state)
{
    (void)state;
    walk("thread");
}

static void tcp(void **state)
{
    (void)state;
    walk("tcp");
}

static void no_thread_for_a_rank(void **state)
{
    struct hkt_comm *comms[RANKS];

    (void)state;
    set_up("thread");
    for (int r = 0; r < RANKS; r++) {
        const int fds = ranks_count_fds();
        const int64_t began_ms = ranks_now_ms();

        atomic_store(&refused, r + 1);
        assert_int_equal(hkt_comm_init_all(comms, RANKS, NULL), HKT_ERR_SYSTEM);
        assert_non_null(strstr(hkt_last_error(), "cannot start a thread for rank"));
        assert_true(ranks_now_ms() - began_ms < INIT_LIMIT_S * 1000);
        assert_int_equal(ranks_count_fds(), fds);
    }
}

static void alone_without_memory(void **state)
{
    struct hkt_unique_id id;
    struct hkt_comm *comm;
    const int fds = ranks_count_fds();
    enum hkt_status rc = HKT_ERR_NOMEM;

    (void)state;
    set_up("thread");
    for (int64_t k = 1; rc != HKT_OK; k++) {
        assert_int_equal(hkt_get_unique_id(&id), HKT_OK);
        hkt__mem_fail_at(k);
        rc = hkt_comm_init_rank(&comm, 1, &id, 0, NULL);
        hkt__mem_fail_at(0);
        if (rc == HKT_OK)
            assert_int_equal(hkt_comm_destroy(comm), HKT_OK);
        assert_int_equal(ranks_count_fds(), fds);
    }
}

/* ---- the machines of a communicator ---- */

static int64_t view_fails_at; /* of the last rank's allocations in hkt_comm_topo */

/** Wait until nobody has allocated for a while: the others wait in the exchange. If they are only slow it is one of them whose
 *  allocation fails, and all the same must hold. */
static void await_stillness(void)
{
    for (int still = 0; still < 50;) {
        const uint64_t before = hkt__mem_count();

        ranks_sleep_ms(1);
        still = hkt__mem_count() == before ? still + 1 : 0;
    }
}

static void *view(void *arg)
{
    struct life *life = arg;
    struct hkt_topo *all = NULL;
    const bool is_last = hkt_comm_rank(life->comm) == RANKS - 1;

    if (is_last) {
        await_stillness();
        hkt__mem_fail_at(view_fails_at);
    }
    note(life, hkt_comm_topo(life->comm, &all, NULL), "hkt_comm_topo");
    if (is_last)
        hkt__mem_fail_at(0);
    hkt_topo_destroy(all);
    for (atomic_fetch_add(&ended, 1); atomic_load(&ended) < RANKS;)
        ranks_sleep_ms(1);
    (void)!hkt_comm_destroy(life->comm); /* it may have failed by now, on ranks that had their graph before */
    return NULL;
}

static void machines_without_memory(void **state)
{
    struct hkt_topo *own = NULL;
    int nwithout = 0;

    (void)state;
    set_up("thread");
    const uint64_t start = hkt__mem_count();

    assert_int_equal(hkt_topo_detect(&own), HKT_OK);
    const int64_t detection = (int64_t)(hkt__mem_count() - start);

    hkt_topo_destroy(own);
    for (int k = 1; k <= 4; k++) { /* the first ones of the exchange */
        struct hkt_comm *comms[RANKS];
        struct life lives[RANKS] = {{0}};
        int nfailed = 0;

        view_fails_at = detection + k;
        atomic_store(&ended, 0);
        assert_int_equal(hkt_comm_init_all(comms, RANKS, NULL), HKT_OK);
        for (int r = 0; r < RANKS; r++) {
            lives[r].comm = comms[r];
            assert_int_equal(pthread_create(&lives[r].thread, NULL, view, &lives[r]), 0);
        }
        for (int r = 0; r < RANKS; r++)
            pthread_join(lives[r].thread, NULL);
        for (int r = 0; r < RANKS; r++) {
            nfailed += lives[r].status < 0;
            if (lives[r].status == HKT_ERR_TIMEOUT)
                fail_msg("allocation %d: rank %d: %s", k, r, lives[r].text);
        }
        nwithout += lives[RANKS - 1].status == HKT_ERR_NOMEM && nfailed == RANKS;
    }
    assert_true(nwithout >= 1);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        stride = 1;
    else if (ranks_small())
        stride = 149;

    const struct CMUnitTest tests[] = {cmocka_unit_test(threads), cmocka_unit_test(tcp),
                                       cmocka_unit_test(no_thread_for_a_rank), cmocka_unit_test(alone_without_memory),
                                       cmocka_unit_test(machines_without_memory)};

    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
