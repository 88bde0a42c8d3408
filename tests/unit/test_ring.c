/* What could break: the number of a frame wrapping around 2^32; a damaged line or count taken for a frame or for credit; the
 * borders between payload in the line, beside it and in a slot; credit that is not told while somebody waits for it. One thread plays both ends; two threads are in tests/stress/test_memring.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "core/error.h"
#include "transport/memring.h"

enum { SLOTS = 4, LINES = 16, SLOT_BYTES = 4096, LARGE = HKT__RING_SMALL + 1 };

struct fixture {
    struct hkt__ring_line lines[LINES];
    struct hkt__ring_count count;
    unsigned char small[LINES * HKT__RING_SMALL], data[SLOTS * SLOT_BYTES];
    struct hkt__ring_tx tx;
    struct hkt__ring_rx rx;
};

static void setup(struct fixture *f)
{
    const struct hkt__ring_mem mem = { .lines = f->lines, .small = f->small, .data = f->data, .count = &f->count,
                                       .nslots = SLOTS, .nlines = LINES, .slot_bytes = SLOT_BYTES };

    memset(f, 0, sizeof *f);
    hkt__ring_tx_init(&f->tx, &mem);
    hkt__ring_rx_init(&f->rx, &mem);
}

static void send_bytes(struct fixture *f, size_t bytes, unsigned char fill)
{
    const struct hkt__stamp stamp = { .op_seq = fill, .count = bytes };
    unsigned char payload[HKT__RING_SMALL];
    struct hkt__room room = { 0 };

    if (bytes <= HKT__RING_SMALL && fill % 2 == 0) {
        memset(payload, fill, bytes);
        assert_int_equal(hkt__ring_send(&f->tx, payload, bytes, &stamp), HKT_OK);
        return;
    }
    assert_int_equal(hkt__ring_room(&f->tx, bytes, &room), HKT_OK);
    assert_int_equal(room.bytes, bytes);
    memset(room.data, fill, bytes);
    hkt__ring_publish(&f->tx, bytes, &stamp);
}

static void receive_bytes(struct fixture *f, size_t bytes, unsigned char fill)
{
    struct hkt__view view = { 0 };

    assert_int_equal(hkt__ring_peek(&f->rx, &view), HKT_OK);
    assert_int_equal(view.bytes, bytes);
    assert_int_equal(view.stamp.op_seq, fill);
    assert_int_equal(view.stamp.count, bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((const unsigned char *)view.data)[i], fill);
    hkt__ring_release(&f->rx);
}

static void the_size_of_a_payload_decides_where_it_lies(void **state)
{
    struct fixture f;
    struct hkt__view view = { 0 };

    (void)state;
    setup(&f);
    send_bytes(&f, 32, 1);
    send_bytes(&f, 33, 2);
    send_bytes(&f, LARGE, 3);
    assert_int_equal(hkt__ring_peek(&f.rx, &view), HKT_OK);
    assert_ptr_equal(view.data, f.lines[0].payload);
    receive_bytes(&f, 32, 1);
    assert_int_equal(hkt__ring_peek(&f.rx, &view), HKT_OK);
    assert_ptr_equal(view.data, f.small + HKT__RING_SMALL);
    receive_bytes(&f, 33, 2);
    assert_int_equal(hkt__ring_peek(&f.rx, &view), HKT_OK);
    assert_ptr_equal(view.data, f.data + 2 * SLOT_BYTES);
    receive_bytes(&f, LARGE, 3);
}

static void a_slot_bounds_the_room(void **state)
{
    struct fixture f;
    struct hkt__room room = { 0 };

    (void)state;
    setup(&f);
    assert_int_equal(hkt__ring_room(&f.tx, SIZE_MAX, &room), HKT_OK);
    assert_int_equal(room.bytes, SLOT_BYTES);
    assert_int_equal(hkt__ring_room(&f.tx, 0, &room), HKT_OK);
    assert_int_equal(room.bytes, 0);
}

static void credit_is_exactly_the_number_of_lines_or_slots(void **state)
{
    struct fixture f;
    struct hkt__room room = { 0 };
    struct hkt__view view = { 0 };

    (void)state;
    setup(&f);
    for (int lap = 0; lap < 10; lap++) {
        for (unsigned char i = 0; i < LINES; i++)
            send_bytes(&f, i * 10u, i);
        assert_int_equal(lap % 2 ? hkt__ring_room(&f.tx, 1, &room) : hkt__ring_send(&f.tx, &lap, 1, &(struct hkt__stamp){ 0 }), HKT_AGAIN);
        assert_true(f.tx.is_starved);
        for (unsigned char i = 0; i < LINES; i++)
            receive_bytes(&f, i * 10u, i);
        for (unsigned char i = 0; i < SLOTS; i++)
            send_bytes(&f, LARGE, i);
        assert_int_equal(hkt__ring_room(&f.tx, LARGE, &room), HKT_AGAIN);
        assert_true(f.tx.is_starved);
        assert_int_equal(hkt__ring_refresh(&f.tx, f.tx.window), HKT_AGAIN); /* what was asked for is remembered */
        assert_int_equal(hkt__ring_room(&f.tx, 1, &room), HKT_OK);
        for (unsigned char i = 0; i < SLOTS; i++)
            receive_bytes(&f, LARGE, i);
        assert_int_equal(hkt__ring_peek(&f.rx, &view), HKT_AGAIN);
        assert_true(f.rx.is_starved);
        assert_false(hkt__ring_has_frame(&f.rx));
    }
}

/* Put both ends, and the memory, where they would be after `frames` frames. */
static void advance(struct fixture *f, uint32_t frames)
{
    for (uint32_t n = frames - LINES + 1; n != frames + 1; n++)
        atomic_store_explicit(&f->lines[(n - 1) % LINES].seq, n, memory_order_relaxed);
    atomic_store_explicit(&f->count.taken, frames, memory_order_relaxed);
    f->tx.sent = f->tx.seen = f->rx.taken = frames;
}

static void numbers_wrap(void **state)
{
    struct fixture f;
    struct hkt__view view = { 0 };
    struct hkt__room room = { 0 };

    (void)state;
    setup(&f);
    advance(&f, UINT32_MAX - 79); /* a multiple of LINES */
    for (unsigned i = 0; i < 32; i++) {
        const unsigned depth = (i % (LINES / SLOTS) + 1) * SLOTS; /* so that all credit is told */

        assert_int_equal(hkt__ring_peek(&f.rx, &view), HKT_AGAIN);
        for (unsigned k = 0; k < depth; k++)
            send_bytes(&f, 10 + k, (unsigned char)(i + k));
        if (depth == LINES)
            assert_int_equal(hkt__ring_room(&f.tx, 1, &room), HKT_AGAIN);
        for (unsigned k = 0; k < depth; k++)
            receive_bytes(&f, 10 + k, (unsigned char)(i + k));
    }
    assert_true(f.tx.sent < 1000);
}

/* Frames released that the producer has not been told of: never so many that none in a slot may be sent. */
static void credit_not_told_leaves_a_slot(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    for (unsigned n = 0; n < 3 * LINES; n++) {
        send_bytes(&f, n % 5 == 4 ? LARGE : 8, 1);
        receive_bytes(&f, n % 5 == 4 ? LARGE : 8, 1);
        assert_true(f.tx.sent - atomic_load_explicit(&f.count.taken, memory_order_relaxed) < SLOTS);
    }
}

static void damage_is_reported(void **state)
{
    struct fixture f;
    struct hkt__view view = { 0 };
    struct hkt__room room = { 0 };

    (void)state;
    setup(&f);
    atomic_store_explicit(&f.lines[0].seq, 2, memory_order_relaxed); /* neither free nor the next */
    assert_int_equal(hkt__ring_peek(&f.rx, &view), HKT_ERR_CORRUPT);
    atomic_store_explicit(&f.lines[0].seq, 1, memory_order_relaxed);
    f.lines[0].bytes = SLOT_BYTES + 1;                                /* beyond the slot */
    assert_int_equal(hkt__ring_peek(&f.rx, &view), HKT_ERR_CORRUPT);
    assert_non_null(strstr(hkt_last_error(), "4097"));
    setup(&f);
    for (unsigned char i = 0; i < SLOTS; i++)
        send_bytes(&f, LARGE, i);
    atomic_store_explicit(&f.count.taken, 5, memory_order_relaxed);   /* more than were sent */
    assert_int_equal(hkt__ring_room(&f.tx, LARGE, &room), HKT_ERR_CORRUPT);
}

static void published_bytes_decide_where_the_payload_lies(void **state)
{
    const struct hkt__stamp stamp = { .op_seq = 3, .count = 7 };
    struct fixture f;
    struct hkt__room room = { 0 };

    (void)state;
    setup(&f);
    assert_int_equal(hkt__ring_room(&f.tx, 500, &room), HKT_OK);
    memset(room.data, 3, 500);
    hkt__ring_publish(&f.tx, 7, &stamp);
    receive_bytes(&f, 7, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_size_of_a_payload_decides_where_it_lies),
        cmocka_unit_test(a_slot_bounds_the_room),
        cmocka_unit_test(credit_is_exactly_the_number_of_lines_or_slots),
        cmocka_unit_test(numbers_wrap),
        cmocka_unit_test(credit_not_told_leaves_a_slot),
        cmocka_unit_test(damage_is_reported),
        cmocka_unit_test(published_bytes_decide_where_the_payload_lies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
