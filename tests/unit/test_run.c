/* What could break: a rank that sends without end before anything has come back, which fills sockets and the caches; one that
 * waits although it may go on; a bound that stays once slices are done. The channels here take everything, and deliver as many
 * bytes as they are told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "algos/registry.h"
#include "device/device.h"
#include "exec/exec.h"
#include "sched/lower.h"

enum { SLICE = 1024, SLICES = 16, BYTES = SLICE * SLICES };

struct line {
    struct hkt__chan chan; /* first */
    size_t sent;
    size_t frames_due;     /* frames that may still be received */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sends_keep_near_the_oldest_slice),
                                       cmocka_unit_test(a_leaf_of_a_broadcast_only_receives)};

    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
