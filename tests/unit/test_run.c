/* What could break: a rank that sends without end before anything has come back, which fills sockets and the caches; one that
 * waits although it may go on; a bound that stays once slices are done; a small message that is sent twice, or never, because the
 * start of the call has tried it; ranks that cut a call otherwise and take each other's bytes, or are told something else. The channels here take everything, except small messages as one likes, and deliver as many
 * bytes as they are told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "algos/registry.h"
#include "device/device.h"
#include "exec/call.h"
#include "exec/exec.h"
#include "sched/lower.h"

enum { SLICE = 1024, SLICES = 16, BYTES = SLICE * SLICES };

struct line {
    struct hkt__chan chan; /* first */
    size_t sent;
    size_t frames_due;     /* frames that may still be received */
    int small_due;         /* small messages that may still be sent */
    unsigned char room[SLICE];
    struct hkt__stamp stamp;
};

static enum hkt_status tx_begin(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room)
{
    *out_room = (struct hkt__room){((struct line *)chan)->room, bytes < SLICE ? bytes : SLICE};
    return HKT_OK;
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    (void)stamp;
    ((struct line *)chan)->sent += bytes;
    return HKT_OK;
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    struct line *line = (struct line *)chan;

    if (line->frames_due == 0)
        return HKT_AGAIN;
    *out_view = (struct hkt__view){line->room, SLICE, line->stamp};
    return HKT_OK;
}

static void rx_end(struct hkt__chan *chan)
{
    ((struct line *)chan)->frames_due--;
}

static enum hkt_status tx_small(struct hkt__chan *chan, const void *data, size_t bytes, const struct hkt__stamp *stamp)
{
    struct line *line = (struct line *)chan;

    if (line->small_due == 0)
        return HKT_AGAIN;
    line->small_due--;
    line->sent += bytes;
    line->stamp = *stamp;
    memcpy(line->room, data, bytes);
    return HKT_OK;
}

static const struct hkt__chan_ops small_ops = {.tx_begin = tx_begin, .tx_end = tx_end, .tx_small = tx_small};
static const struct hkt__chan_ops ops = {.tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end};

/** Poll until nothing moves. */
static enum hkt_status settle(struct hkt__run *run)
{
    enum hkt_status rc;

    do
        rc = hkt__run_poll(run);
    while (rc == HKT_IN_PROGRESS);
    return rc;
}

static struct hkt__plan *make_plan(enum hkt_coll coll, const char *name, int rank)
{
    const struct hkt__algo_case c = {.nranks = 2, .rank = rank, .in_place = false};
    struct hkt__sched *sched;
    struct hkt__plan *plan;

    assert_int_equal(hkt__algo_build_case(hkt__algo_find(coll, name), &c, &sched), HKT_OK);
    assert_int_equal(hkt__lower(sched), HKT_OK);
    assert_int_equal(hkt__plan_create(sched, false, false, &plan), HKT_OK);
    hkt__sched_destroy(sched);
    return plan;
}

static void sends_keep_near_the_oldest_slice(void **state)
{
    static unsigned char in[BYTES], out[BYTES], scratch[HKT__SCRATCH_INSTANCES * 2 * SLICE];
    struct line tx = {.chan = {&ops, SLICE, 1}}, rx = {.chan = {&ops, SLICE, 1}};
    struct hkt__chan *tx_of[2] = {NULL, &tx.chan}, *rx_of[2] = {NULL, &rx.chan};
    struct hkt__exec_env env = {.tx = tx_of, .rx = rx_of, .nranks = 2, .lanes = 1, .scratch = (char *)scratch,
                                .scratch_bytes = sizeof scratch};
    struct hkt__plan *plan = make_plan(HKT_ALL_REDUCE, "recursive_doubling", 0);
    const struct hkt__bind bind = {.in = in, .out = out, .elem_bytes = 4, .grid = {.cuts = 1, .count = BYTES / 4},
                                   .nslices = SLICES, .channels = 1, .scratch_pitch = SLICE, .dtype = HKT_F32,
                                   .reduce = hkt__reduce_get(HKT_SUM, HKT_F32, HKT__ISA_C), .stamp = {.count = BYTES / 4}};
    struct hkt__run *run;

    (void)state;
    rx.stamp = bind.stamp;
    assert_int_equal(hkt__run_create(&env, &run), HKT_OK);
    assert_int_equal(hkt__run_reserve(run, plan, 1), HKT_OK);
    hkt__run_start(run, plan, &bind);
    assert_int_equal(settle(run), HKT_AGAIN);
    assert_int_equal(tx.sent, HKT__SCRATCH_INSTANCES * SLICE);
    for (size_t got = 1; got <= SLICES; got++) {
        const size_t most = got + HKT__SCRATCH_INSTANCES;

        rx.frames_due = 1;
        assert_int_equal(settle(run), got < SLICES ? HKT_AGAIN : HKT_OK);
        assert_int_equal(tx.sent, (most < SLICES ? most : SLICES) * SLICE);
    }
    hkt__run_destroy(run);
    hkt__plan_destroy(plan);
}

static void a_leaf_of_a_broadcast_only_receives(void **state)
{
    static const struct {
        enum hkt_coll coll;
        const char *algo;
        int rank;
        bool only_receives;
    } cases[] = {
        {HKT_BROADCAST, "binomial", 0, false},
        {HKT_BROADCAST, "binomial", 1, true},
        {HKT_ALL_REDUCE, "recursive_doubling", 1, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hkt__plan *plan = make_plan(cases[i].coll, cases[i].algo, cases[i].rank);

        assert_int_equal(hkt__plan_only_receives(plan), cases[i].only_receives);
        hkt__plan_destroy(plan);
    }
}

static void small_messages_leave_once_and_as_soon_as_they_can(void **state)
{
    static const struct {
        size_t bytes;
        int due;             /* small messages that the channel takes before the first poll */
        bool crc;
        size_t sent_at_start;
    } cases[] = {
        {8, 1, false, 8},
        {HKT__TP_SMALL, 1, false, HKT__TP_SMALL},
        {HKT__TP_SMALL + 8, 1, false, 0},
        {8, 0, false, 0},    /* no room: by a poll, later */
        {8, 1, true, 0},     /* a checksum is made by the polls */
    };
    unsigned char data[2 * HKT__TP_SMALL];
    struct hkt__plan *plan = make_plan(HKT_BROADCAST, "binomial", 0);
    struct hkt__run *run;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t bytes = cases[i].bytes;
        struct line tx = {.chan = {&small_ops, SLICE, 1}, .small_due = cases[i].due};
        struct hkt__chan *tx_of[2] = {NULL, &tx.chan}, *rx_of[2] = {NULL, NULL};
        struct hkt__exec_env env = {.tx = tx_of, .rx = rx_of, .nranks = 2, .lanes = 1, .crc = cases[i].crc};
        const struct hkt__bind bind = {.in = data, .out = data, .elem_bytes = 1, .grid = {.cuts = 1, .count = bytes},
                                       .chunk_bytes = bytes, .nslices = 1, .channels = 1, .dtype = HKT_UINT8,
                                       .stamp = {.op_seq = 5, .count = bytes}};

        assert_int_equal(hkt__run_create(&env, &run), HKT_OK);
        assert_int_equal(hkt__run_reserve(run, plan, 1), HKT_OK);
        hkt__run_start(run, plan, &bind);
        assert_int_equal(tx.sent, cases[i].sent_at_start);
        assert_int_equal(settle(run), cases[i].due > 0 ? HKT_OK : HKT_AGAIN);
        tx.small_due = 1;
        assert_int_equal(settle(run), HKT_OK);
        assert_int_equal(tx.sent, bytes);
        assert_int_equal(env.bytes_sent, bytes);
        if (bytes <= HKT__TP_SMALL) { /* in one frame */
            assert_memory_equal(tx.room, data, bytes);
            assert_int_equal(tx.stamp.op_seq, 5);
        }
        hkt__run_destroy(run);
    }
    hkt__plan_destroy(plan);
}

/** Calls that differ in their slices or lanes alone are told so; a cut does not reach into the other fields. */
static void another_cut_is_told(void **state)
{
    static const int cuts[][2] = {{1, 1}, {2, 1}, {8, 1}, {8, 2}, {8, 4}, {64, 1}, {65536, 4}};
    const uint32_t call = hkt__call_pack(HKT_ALL_REDUCE, HKT_F32, HKT_SUM, 0, HKT__CALL_IN_PLACE);
    const struct hkt__stamp own = {.call = call | hkt__call_cut(4, 1), .root = -1, .count = 7};

    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct hkt__stamp theirs = own;

        theirs.call = call | hkt__call_cut(cuts[i][0], cuts[i][1]);
        assert_int_not_equal(theirs.call, own.call);
        assert_int_equal(theirs.call & (UINT32_MAX >> 5), call);
        assert_int_equal(hkt__stamp_mismatch(1, &own, &theirs), HKT_ERR_MISMATCH);
        assert_non_null(strstr(hkt_last_error(), "different slices or on different lanes"));
    }
    struct hkt__stamp another = own;

    another.call |= 1u << 16; /* algorithm 1 */
    assert_int_equal(hkt__stamp_mismatch(1, &own, &another), HKT_ERR_MISMATCH);
    assert_non_null(strstr(hkt_last_error(), "different algorithms"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sends_keep_near_the_oldest_slice),
                                       cmocka_unit_test(another_cut_is_told),
                                       cmocka_unit_test(a_leaf_of_a_broadcast_only_receives),
                                       cmocka_unit_test(small_messages_leave_once_and_as_soon_as_they_can)};

    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
