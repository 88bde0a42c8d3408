/* What could break: an allocation fails somewhere in the life of a communicator - joining, first use of an algorithm, a
 * group, a split, memory, streams - and a rank crashes, hangs, leaks a descriptor, or reports success on wrong data.
 * Allocation k fails, for k = 1, 1 + stride, ... until a whole life needs fewer than k; stride 1 with the argument "all". */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/settings.h"
#include "hocket/hocket.h"
#include "ranks.h"

#define RANKS 2

static int stride = 5;

struct life {
    pthread_t thread;
    struct hkt_comm *comm;
    enum hkt_status status;
    const char *wrong;        /* a result that was reported as good and is not */
};

/** What a rank does with a communicator; stops at the first failure. */
static enum hkt_status use(struct life *life)
{
    struct hkt_comm *comm = life->comm, *child = NULL;
    const int rank = hkt_comm_rank(comm), peer = 1 - rank;
    int32_t mine = rank + 1, sum = 0, got = 0, data[64] = {0};
    struct hkt_stream *stream = NULL;
    enum hkt_status rc = hkt_all_reduce(&mine, &sum, 1, HKT_INT32, HKT_SUM, comm, NULL);

    if (rc == HKT_OK && sum != 3)
        life->wrong = "all_reduce";
    if (rc == HKT_OK)
        rc = hkt_group_start();
    if (rc == HKT_OK) {
        rc = hkt_send(&mine, 1, HKT_INT32, peer, comm, NULL);
        const enum hkt_status recv = hkt_recv(&got, 1, HKT_INT32, peer, comm, NULL), end = hkt_group_end();

        rc = rc < 0 ? rc : recv < 0 ? recv : end;
        if (rc == HKT_OK && got != peer + 1)
            life->wrong = "send and receive";
    }
    if (rc == HKT_OK)
        rc = hkt_comm_split(comm, 0, -rank, NULL, &child);
    if (rc == HKT_OK) {
        rc = hkt_broadcast(data, data, 64, HKT_INT32, 0, child, NULL);
        const enum hkt_status end = hkt_comm_destroy(child);

        rc = rc < 0 ? rc : end;
    }
    if (rc == HKT_OK)
        rc = hkt_stream_create(&stream);
    if (rc == HKT_OK)
        rc = hkt_all_reduce(&mine, &sum, 1, HKT_INT32, HKT_MAX, comm, stream);
    if (stream != NULL) {
        const enum hkt_status end = hkt_stream_synchronize(stream);

        rc = rc < 0 ? rc : end;
    }
    hkt_stream_destroy(stream);
    return rc;
}

static void *live(void *arg)
{
    struct life *life = arg;

    life->status = use(life);
    /* A rank that stops tells the other: it may wait for this one. */
    if (life->status < 0)
        hkt_comm_abort(life->comm);
    else
        life->status = hkt_comm_destroy(life->comm);
    return NULL;
}

/** One life with allocation k failing; returns true when all went well. */
static bool live_once(int64_t k)
{
    struct hkt_comm *comms[RANKS] = {NULL};
    struct life lives[RANKS] = {{0}};
    bool ok = true;

    hkt__mem_fail_at(k);
    if (hkt_comm_init_all(comms, RANKS, NULL) < 0) {
        assert_string_not_equal(hkt_last_error(), "");
        return false;
    }
    for (int r = 0; r < RANKS; r++) {
        lives[r].comm = comms[r];
        assert_int_equal(pthread_create(&lives[r].thread, NULL, live, &lives[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(lives[r].thread, NULL);
        if (lives[r].wrong != NULL)
            fail_msg("allocation %lld failed: rank %d: %s is wrong", (long long)k, r, lives[r].wrong);
        ok &= lives[r].status == HKT_OK;
    }
    return ok;
}

static void walk(const char *transport)
{
    int64_t k = 1;

    setenv("HOCKET_TRANSPORT", transport, 1);
    setenv("HOCKET_INIT_TIMEOUT", "2s", 1);
    setenv("HOCKET_TIMEOUT", "2s", 1);
    hkt__settings_reset();
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

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        stride = 1;
    else if (ranks_small())
        stride = 23;

    const struct CMUnitTest tests[] = {cmocka_unit_test(threads), cmocka_unit_test(tcp)};

    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
