/* What could break: a record that has been overwritten is taken for another, half of two records is taken for one, a
 * collective is not found behind messages, or found under a number that wrapped. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/recorder.h"
#include "exec/call.h"

enum { CAPACITY = 16, MANY = 200000 };

/** A stamp all of whose fields follow from its number. */
static struct hkt__stamp stamp_of(uint32_t op_seq, enum hkt_coll coll)
{
    return (struct hkt__stamp){.op_seq = op_seq, .call = hkt__call_pack(coll, HKT_F32, HKT__CALL_NO_OP, op_seq & 255u, 0),
                               .root = (int32_t)(op_seq & 0xffffffu), .count = (uint64_t)op_seq << 20};
}

static void open_recorder(struct hkt__recorder *recorder)
{
    *recorder = (struct hkt__recorder){.ring = NULL};
    assert_int_equal(hkt__recorder_init(recorder, CAPACITY), HKT_OK);
    assert_int_equal(recorder->capacity, CAPACITY);
}

static void add(struct hkt__recorder *recorder, uint32_t op_seq, enum hkt_coll coll, bool ends)
{
    const struct hkt__stamp stamp = stamp_of(op_seq, coll);
    struct hkt__record *record = hkt__recorder_begin(recorder, &stamp, "algo", coll == HKT_SEND_RECV ? 1 : -1);

    if (ends)
        hkt__recorder_end(recorder, record, HKT_OK, false);
}

static void assert_stamp(const struct hkt__recorded *record, uint32_t op_seq, enum hkt_coll coll)
{
    const struct hkt__stamp want = stamp_of(op_seq, coll);

    assert_int_equal(record->stamp.op_seq, want.op_seq);
    assert_int_equal(record->stamp.call, want.call);
    assert_int_equal(record->stamp.root, want.root);
    assert_true(record->stamp.count == want.count);
}

static void an_empty_recorder_knows_nothing(void **state)
{
    struct hkt__recorder recorder;
    struct hkt__recorded record;

    (void)state;
    open_recorder(&recorder);
    hkt__recorder_newest(&recorder, &record);
    assert_int_equal(record.stamp.op_seq, 0);
    assert_false(hkt__recorder_find(&recorder, 0, &record));
    assert_false(hkt__recorder_read(&recorder, 0, &record));
    hkt__recorder_fini(&recorder);
}

static void collectives_are_found_as_far_back_as_the_ring_goes(void **state)
{
    struct hkt__recorder recorder;
    struct hkt__recorded record;
    const uint32_t first = UINT32_MAX - 20; /* numbers wrap on the way */

    (void)state;
    open_recorder(&recorder);
    for (uint32_t i = 0; i < 50; i++) {
        add(&recorder, first + i, HKT_ALL_REDUCE, i < 49);
        hkt__recorder_newest(&recorder, &record);
        assert_stamp(&record, first + i, HKT_ALL_REDUCE);
        assert_int_equal(record.state, i < 49 ? HKT__RECORD_DONE : HKT__RECORD_RUNNING);
        assert_false(hkt__recorder_find(&recorder, first + i + 1, &record));
        /* One less than the capacity: the slot of the oldest may be in the writer's hands. */
        for (uint32_t back = 0; back <= i; back++) {
            assert_int_equal(hkt__recorder_find(&recorder, first + i - back, &record), back < CAPACITY - 1);
            if (back < CAPACITY - 1)
                assert_stamp(&record, first + i - back, HKT_ALL_REDUCE);
        }
    }
    hkt__recorder_fini(&recorder);
}

static void messages_do_not_hide_collectives(void **state)
{
    struct hkt__recorder recorder;
    struct hkt__recorded record;

    (void)state;
    open_recorder(&recorder);
    add(&recorder, 7, HKT_BARRIER, true);
    for (uint32_t i = 1; i <= CAPACITY + 3; i++) {
        add(&recorder, i, HKT_SEND_RECV, true);
        hkt__recorder_newest(&recorder, &record);
        assert_int_equal(record.stamp.op_seq, 7);
        assert_int_equal(record.state, HKT__RECORD_DONE);
        const bool is_there = i < CAPACITY - 1;

        assert_int_equal(hkt__recorder_find(&recorder, 7, &record), is_there);
        if (is_there)
            assert_stamp(&record, 7, HKT_BARRIER);
        else
            assert_true(hkt__call_coll(HKT__CALL_UNKNOWN) >= HKT_COLL_COUNT);
    }
    hkt__recorder_fini(&recorder);
}

static void *write_many(void *arg)
{
    struct hkt__recorder *recorder = arg;

    for (uint32_t i = 1; i <= MANY; i++)
        add(recorder, i, i % 5 == 0 ? HKT_SEND_RECV : HKT_REDUCE, true);
    return NULL;
}

static void readers_never_see_half_of_two(void **state)
{
    struct hkt__recorder recorder;
    struct hkt__recorded record;
    pthread_t writer;
    uint64_t seen = 0;

    (void)state;
    open_recorder(&recorder);
    assert_int_equal(pthread_create(&writer, NULL, write_many, &recorder), 0);
    while (hkt__recorder_count(&recorder) < MANY) {
        const uint64_t count = hkt__recorder_count(&recorder);

        for (uint64_t back = 1; back <= CAPACITY && back <= count; back++) {
            if (!hkt__recorder_read(&recorder, count - back, &record))
                continue;
            seen++;
            assert_int_equal(record.stamp.op_seq, count - back + 1);
            assert_stamp(&record, record.stamp.op_seq, record.stamp.op_seq % 5 == 0 ? HKT_SEND_RECV : HKT_REDUCE);
        }
    }
    pthread_join(writer, NULL);
    print_message("%llu records read while %d were written\n", (unsigned long long)seen, MANY);
    hkt__recorder_fini(&recorder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_recorder_knows_nothing),
        cmocka_unit_test(collectives_are_found_as_far_back_as_the_ring_goes),
        cmocka_unit_test(messages_do_not_hide_collectives),
        cmocka_unit_test(readers_never_see_half_of_two),
    };

    return cmocka_run_group_tests_name("recorder", tests, NULL, NULL);
}
