/* What could break: a table with a hole in it; a list of transports misread; an instance that leaks when memory runs out at
 * any point of its life; memory of a domain given out again while a peer may still write to it; a fault setting that
 * silently does nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/settings.h"
#include "transport/faulty.h"
#include "transport/memdom.h"
#include "transport/transport.h"

static void every_table_is_complete(void **state)
{
    static const char *const names[] = { "thread", "shm", "net", "verbs", "ucx", "cuda_p2p", "tcp" };
    const struct hkt__tp_ops *table;
    int count = 0;

    (void)state;
    for (; (table = hkt__transport_get(count)) != NULL; count++) {
        assert_string_equal(table->name, names[count]);
        assert_ptr_equal(hkt__transport_find(names[count]), table);
        assert_true(table->summary[0] != '\0');
        assert_true(table->probe && table->is_wanted && table->query && table->open);
        if (strcmp(table->name, "verbs") == 0 || strcmp(table->name, "ucx") == 0 || strcmp(table->name, "cuda_p2p") == 0)
            continue; /* a module: the rest is in its own table */
        assert_true(table->close && table->address && table->reach);
        assert_true(table->dom_open && table->dom_connect && table->dom_close && table->chan_open);
        assert_true(table->window && table->park && table->wake);
    }
    assert_int_equal(count, 7);
    assert_null(hkt__transport_get(-1));
    assert_null(hkt__transport_find("sh"));
    assert_null(hkt__transport_find("shmm"));
    assert_null(hkt__transport_find(""));
}

static void a_list_allows_or_forbids(void **state)
{
    static const struct {
        const char *list, *name;
        int expected; /* 0, 1; -1: INVALID */
    } rows[] = {
        { NULL, "shm", 1 },       { "", "tcp", 1 },          { "shm", "shm", 1 },        { "shm", "tcp", 0 },
        { "shm,tcp", "tcp", 1 },  { "shm,tcp", "thread", 0 }, { "^tcp", "tcp", 0 },       { "^tcp", "shm", 1 },
        { "^tcp,shm", "shm", 0 }, { "^tcp,shm", "thread", 1 }, { "shn", "shm", -1 },      { "shm,", "shm", -1 },
        { ",shm", "shm", -1 },    { "^", "shm", -1 },         { "shm,^tcp", "shm", -1 }, { "shm tcp", "shm", -1 },
        { "SHM", "shm", -1 },     { "sh", "shm", -1 },         { "", "ucx", 0 },          { "^tcp", "ucx", 0 },
        { "shm,ucx", "ucx", 1 },  { "^ucx", "ucx", 0 },       { "", "cuda_p2p", 0 },     { "cuda_p2p", "cuda_p2p", 1 },
        { "", "net", 0 },         { "^tcp", "net", 0 },       { "net,tcp", "net", 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool is_allowed = !rows[i].expected;
        const enum hkt_status rc = hkt__transport_allowed(rows[i].list, rows[i].name, &is_allowed);

        assert_int_equal(rc, rows[i].expected < 0 ? HKT_ERR_INVALID : HKT_OK);
        if (rc == HKT_OK)
            assert_int_equal(is_allowed, rows[i].expected);
        else
            assert_non_null(strstr(hkt_last_error(), rows[i].list));
    }
}

/* ---- two ranks in this thread ---- */

struct pair {
    struct hkt__settings settings;
    struct hkt__tp *tp[2];
    struct hkt__tp_dom *dom[2];
    struct hkt__chan *tx[2], *rx[2];
};

static const int32_t job_ranks[2] = { 0, 1 };
static const unsigned char token[16] = "0123456789abcde";

static enum hkt_status pair_open(struct pair *pair, const char *transport)
{
    const struct hkt__tp_ops *ops = hkt__transport_find(transport);
    unsigned char blobs[2 * HKT__TP_BLOB_MAX] = { 0 }, is_ok[2];
    size_t bytes[2] = { 0 };
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < 2 && rc == HKT_OK; i++) {
        const struct hkt__tp_params params = { .job_rank = i, .job_nranks = 2, .token = token, .settings = &pair->settings };

        rc = ops->open(&params, &pair->tp[i]);
        if (rc == HKT_OK)
            rc = pair->tp[i]->ops->address(pair->tp[i], blobs + i * HKT__TP_BLOB_MAX, &bytes[i]);
    }
    for (int i = 0; i < 2 && rc == HKT_OK; i++) {
        rc = ops->reach(pair->tp[i], blobs, bytes, hkt__now_ns() + INT64_C(20000000000), is_ok);
        if (rc == HKT_OK && !(is_ok[0] && is_ok[1]))
            rc = HKT_ERR_NOMEM; /* what keeps two ranks of one process apart here */
    }
    return rc;
}

static enum hkt_status pair_connect(struct pair *pair, size_t window_bytes)
{
    unsigned char blobs[2 * HKT__TP_BLOB_MAX] = { 0 }, use[2] = { 1, 1 };
    size_t bytes[2] = { 0 };
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < 2 && rc == HKT_OK; i++) {
        const struct hkt__tp_members members = { .comm_id = 5, .nranks = 2, .rank = i, .job_ranks = job_ranks, .lanes = 2,
                                                 .window_bytes = window_bytes };

        rc = pair->tp[i]->ops->dom_open(pair->tp[i], &members, &pair->dom[i], blobs + i * HKT__TP_BLOB_MAX, &bytes[i]);
    }
    for (int i = 0; i < 2 && rc == HKT_OK; i++)
        rc = pair->dom[i]->ops->dom_connect(pair->dom[i], blobs, bytes, use);
    for (int i = 0; i < 2 && rc == HKT_OK; i++)
        rc = pair->dom[i]->ops->chan_open(pair->dom[i], 1 - i, 1, &pair->tx[i], &pair->rx[i]);
    return rc;
}

static void dom_close(struct pair *pair, int i)
{
    if (pair->dom[i] != NULL)
        pair->dom[i]->ops->dom_close(pair->dom[i]);
    pair->dom[i] = NULL;
}

static void pair_close(struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        dom_close(pair, i);
    for (int i = 0; i < 2; i++)
        if (pair->tp[i] != NULL)
            pair->tp[i]->ops->close(pair->tp[i]);
}

static struct pair new_pair(void)
{
    const struct hkt__settings *settings = NULL;

    assert_int_equal(hkt__settings_get(&settings), HKT_OK);
    struct pair pair = { .settings = *settings };

    pair.settings.shm_bytes = 64 << 20;
    return pair;
}

static void put(struct hkt__chan *tx, unsigned char value)
{
    const struct hkt__stamp stamp = { 0 };
    struct hkt__room room = { 0 };

    assert_int_equal(tx->ops->tx_begin(tx, 1000, &room), HKT_OK);
    memset(room.data, value, room.bytes);
    assert_int_equal(tx->ops->tx_end(tx, room.bytes, &stamp), HKT_OK);
}

static void get(struct hkt__chan *rx, unsigned char value)
{
    struct hkt__view view = { 0 };

    assert_int_equal(rx->ops->rx_begin(rx, &view), HKT_OK);
    assert_int_equal(view.bytes, 1000);
    assert_int_equal(((const unsigned char *)view.data)[999], value);
    rx->ops->rx_end(rx);
}

/* Fail the k-th allocation of a whole life, for every k until none fails. Leaks are for the sanitizer to find. */
static void every_allocation_may_fail(void **state)
{
    static const char *const names[] = { "thread", "shm" };

    (void)state;
    for (int n = 0; n < 2; n++) {
        enum hkt_status rc = HKT_ERR_NOMEM;

        for (int64_t k = 1; rc != HKT_OK; k++) {
            struct pair pair = new_pair();

            assert_true(k < 100);
            hkt__mem_fail_at(k);
            rc = pair_open(&pair, names[n]);
            if (rc == HKT_OK)
                rc = pair_connect(&pair, 5000);
            hkt__mem_fail_at(0);
            if (rc == HKT_OK) {
                put(pair.tx[0], 42);
                get(pair.rx[1], 42);
            } else {
                assert_int_equal(rc, HKT_ERR_NOMEM);
            }
            pair_close(&pair);
        }
    }
}

/* A rank closes and opens the next domain while its peer still holds, and writes to, the last one. */
static void memory_rests_until_every_peer_has_left(void **state)
{
    struct pair old = new_pair(), next;
    struct hkt__arena *arena;

    (void)state;
    assert_int_equal(pair_open(&old, "shm"), HKT_OK);
    assert_int_equal(pair_connect(&old, 8192), HKT_OK);
    arena = ((struct hkt__mem_tp *)old.tp[0])->arena;
    const size_t one = hkt__arena_used(arena);
    unsigned char *far_window = old.dom[1]->ops->window(old.dom[1], 0);

    dom_close(&old, 0);
    assert_int_equal(hkt__arena_used(arena), one); /* rank 1 has not left */
    next = old;
    next.dom[1] = NULL;
    assert_int_equal(pair_connect(&next, 8192), HKT_OK);
    assert_int_equal(hkt__arena_used(arena), 2 * one);
    memset(far_window, 0xee, 8192);                 /* a late writer, after a failure say */
    put(old.tx[1], 0xee);
    put(next.tx[1], 5);
    get(next.rx[0], 5);
    for (int i = 0; i < 8192; i++)
        assert_int_equal(((unsigned char *)next.dom[0]->ops->window(next.dom[0], 0))[i], 0);
    dom_close(&old, 1);
    dom_close(&next, 0);
    dom_close(&next, 1);
    assert_int_equal(hkt__arena_used(((struct hkt__mem_tp *)old.tp[1])->arena), 0);
    /* Rank 0 looks at its limbo when it opens or closes a domain. */
    assert_int_equal(pair_connect(&next, 8192), HKT_OK);
    assert_int_equal(hkt__arena_used(arena), one);
    assert_int_equal(((unsigned char *)next.dom[0]->ops->window(next.dom[0], 0))[8191], 0);
    old.dom[0] = next.dom[0];
    old.dom[1] = next.dom[1];
    pair_close(&old);
}

/* A peer whose process is gone will never say that it has left. */
static void memory_a_dead_peer_held_comes_back(void **state)
{
    struct pair pair = new_pair();
    int status;
    const pid_t child = fork();

    (void)state;
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(pair_open(&pair, "shm"), HKT_OK);
    struct hkt__mem_tp *tp = (struct hkt__mem_tp *)pair.tp[0];

    tp->peers[1].pid = child; /* as if rank 1 had been that process */
    assert_int_equal(pair_connect(&pair, 8192), HKT_OK);
    dom_close(&pair, 0);
    assert_int_equal(hkt__arena_used(tp->arena), 0);
    pair_close(&pair);
}

static void a_nonsensical_blob_is_refused(void **state)
{
    struct pair pair = new_pair();
    unsigned char blobs[2 * HKT__TP_BLOB_MAX], use[2] = { 1, 1 };
    size_t bytes[2];

    (void)state;
    assert_int_equal(pair_open(&pair, "thread"), HKT_OK);
    for (size_t at = 0; at < 48; at += 4) {
        memset(blobs, 0, sizeof blobs);
        for (int i = 0; i < 2; i++) {
            const struct hkt__tp_members members = { .comm_id = 5, .nranks = 2, .rank = i, .job_ranks = job_ranks,
                                                     .lanes = 1 };

            assert_int_equal(pair.tp[i]->ops->dom_open(pair.tp[i], &members, &pair.dom[i], blobs + i * HKT__TP_BLOB_MAX,
                                                       &bytes[i]), HKT_OK);
        }
        memset(blobs + HKT__TP_BLOB_MAX + at, 0xff, 4); /* one field of rank 1's description */
        const enum hkt_status rc = pair.dom[0]->ops->dom_connect(pair.dom[0], blobs, bytes, use);

        if (at != 20) /* the padding means nothing */
            assert_int_equal(rc, HKT_ERR_BUG);
        bytes[1]--;
        assert_int_equal(pair.dom[0]->ops->dom_connect(pair.dom[0], blobs, bytes, use), HKT_ERR_BUG);
        dom_close(&pair, 0);
        dom_close(&pair, 1);
    }
    pair_close(&pair);
}

static void slots_must_be_a_power_of_two(void **state)
{
    struct pair pair = new_pair();

    (void)state;
    pair.settings.shm_slots = 6;
    assert_int_equal(pair_open(&pair, "shm"), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_SHM_SLOTS"));
    pair_close(&pair);
}

static void a_small_segment_says_what_to_do(void **state)
{
    struct pair pair = new_pair();

    (void)state;
    pair.settings.shm_bytes = 1 << 20;
    assert_int_equal(pair_open(&pair, "thread"), HKT_OK);
    assert_int_equal(pair_connect(&pair, 4 << 20), HKT_ERR_NOMEM);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_SHM_BYTES"));
    pair_close(&pair);
}

/* ---- HOCKET_FAULTS ---- */

static void faults_are_parsed(void **state)
{
    struct hkt__faults faults;

    (void)state;
    assert_int_equal(hkt__faults_parse("seed=7,drop=0.01,dup=1,corrupt=0.5,delay=.1", &faults), HKT_ERR_INVALID);
    assert_int_equal(hkt__faults_parse("seed=7,drop=0.01,dup=1,corrupt=0.5,delay=0.125,short=0,lend=0.5,kill=1000", &faults), HKT_OK);
    assert_int_equal(faults.seed, 7);
    assert_true(faults.drop == 0.01 && faults.dup == 1 && faults.corrupt == 0.5);
    assert_true(faults.delay == 0.125 && faults.short_room == 0 && faults.lend == 0.5);
    assert_int_equal(faults.kill, 1000);
}

static void bad_faults_name_the_item(void **state)
{
    static const char *const rows[][2] = {
        { "", "\"\"" },                    { "drop", "\"drop\"" },          { "drop=", "\"drop=\"" },
        { "drop=2", "\"drop=2\"" },        { "drop=1.5", "\"drop=1.5\"" },  { "drop=-0.1", "\"drop=-0.1\"" },
        { "drop=0,1", "\"1\"" },           { "drop=0.1x", "\"drop=0.1x\"" }, { "drop=0..1", "\"drop=0..1\"" },
        { "seed=1,,drop=0", "\"\"" },      { "seed=0x7", "\"seed=0x7\"" },  { "kill=1e3", "\"kill=1e3\"" },
        { "Drop=0.1", "\"Drop=0.1\"" },    { "drops=0.1", "\"drops=0.1\"" }, { "seed=1 ", "\"seed=1 \"" },
        { "seed=99999999999999999999", "\"seed=9999" }, { "drop=nan", "\"drop=nan\"" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hkt__faults faults = { .kill = 3 };

        assert_int_equal(hkt__faults_parse(rows[i][0], &faults), HKT_ERR_INVALID);
        assert_int_equal(faults.kill, 3);
        assert_non_null(strstr(hkt_last_error(), rows[i][1]));
        assert_non_null(strstr(hkt_last_error(), "HOCKET_FAULTS"));
    }
}

static void a_wrapped_table_keeps_its_name_and_refuses_bad_settings(void **state)
{
    struct hkt__settings settings = new_pair().settings;
    const struct hkt__tp_ops *inner = hkt__transport_find("shm");
    struct hkt__tp *tp = NULL;

    (void)state;
    settings.faults = "";
    assert_null(hkt__faulty_wrap(inner, &settings));
    settings.faults = "drop=maybe";
    const struct hkt__tp_ops *wrapped = hkt__faulty_wrap(inner, &settings);
    const struct hkt__tp_params params = { .job_nranks = 1, .token = token, .settings = &settings };

    assert_string_equal(wrapped->name, "shm");
    assert_int_equal(wrapped->probe(&settings), HKT_ERR_INVALID);
    assert_int_equal(wrapped->open(&params, &tp), HKT_ERR_INVALID);
    assert_null(tp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_is_complete),
        cmocka_unit_test(a_list_allows_or_forbids),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(memory_rests_until_every_peer_has_left),
        cmocka_unit_test(memory_a_dead_peer_held_comes_back),
        cmocka_unit_test(a_nonsensical_blob_is_refused),
        cmocka_unit_test(slots_must_be_a_power_of_two),
        cmocka_unit_test(a_small_segment_says_what_to_do),
        cmocka_unit_test(faults_are_parsed),
        cmocka_unit_test(bad_faults_name_the_item),
        cmocka_unit_test(a_wrapped_table_keeps_its_name_and_refuses_bad_settings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
