/* Frames: order, content, sizes, credit, independence of lanes. What could break: a frame lost, repeated, out of order, or
 * seen before its payload; a boundary between inline and slot payload; a sender that overwrites what is still being read; two
 * sides that wait for each other. */
#include <string.h>

#include "cases.h"

/* ---- helpers ---- */

unsigned char pattern_at(uint64_t number, size_t at)
{
    return (unsigned char)(number * 131 + at * 7 + (at >> 8) * 13 + 1);
}

void pattern_fill(void *data, uint64_t number, size_t at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)data)[i] = pattern_at(number, at + i);
}

size_t pattern_check(const void *data, uint64_t number, size_t at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)data)[i] != pattern_at(number, at + i))
            return i;
    return bytes;
}

struct hkt__stamp stamp_of(uint64_t number, size_t bytes)
{
    return (struct hkt__stamp){ .op_seq = (uint32_t)number, .call = (uint32_t)(number * 2654435761u), .root = -1 - (int)number,
                                .crc = (uint32_t)~number, .count = bytes ^ 0x0123456789abcdefu };
}

void stamp_check(const struct hkt__stamp *stamp, uint64_t number, size_t bytes)
{
    const struct hkt__stamp expected = stamp_of(number, bytes);

    RIG_EQUAL(stamp->op_seq, expected.op_seq);
    RIG_EQUAL(stamp->call, expected.call);
    RIG_EQUAL(stamp->root, expected.root);
    RIG_EQUAL(stamp->crc, expected.crc);
    RIG_CHECK(stamp->count == expected.count);
}

/* True when the call was a success; AGAIN and an allowed failure are not. */
static bool is_ok(struct transfer *transfer, enum hkt_status rc)
{
    if (rc < 0 && transfer->may_fail)
        transfer->status = rc;
    else if (rc != HKT_AGAIN)
        RIG_EQUAL(rc, HKT_OK);
    return rc == HKT_OK;
}

/* Memory of the caller for what is left of a message, a little off the start of a line. */
static unsigned char *place_of(struct transfer *transfer, size_t bytes)
{
    if (transfer->place == NULL)
        transfer->place = malloc(bytes + 5);
    RIG_CHECK(transfer->place != NULL);
    return transfer->place + 5;
}

void transfer_drop(struct transfer *transfer)
{
    free(transfer->place);
    transfer->place = NULL;
}

static enum hkt_status publish(struct transfer *transfer, const struct hkt__room *room, const struct hkt__stamp *stamp)
{
    const struct hkt__chan_ops *ops = transfer->chan->ops;

    if (ops->tx_end_from == NULL || transfer->number % 2 == 0) {
        pattern_fill(room->data, transfer->number, transfer->done, room->bytes);
        return ops->tx_end(transfer->chan, room->bytes, stamp);
    }
    unsigned char *place = place_of(transfer, room->bytes);

    pattern_fill(place, transfer->number, transfer->done, room->bytes);
    const enum hkt_status status = ops->tx_end_from(transfer->chan, place, room->bytes, stamp);

    memset(place, 0xee, room->bytes); /* it is the caller's again */
    transfer_drop(transfer);
    return status;
}

/* What is left of a message, in one step. False: it was not sent. */
static bool send_small(struct transfer *transfer, const struct hkt__stamp *stamp)
{
    unsigned char payload[HKT__TP_SMALL];
    const size_t left = transfer->bytes - transfer->done;

    pattern_fill(payload, transfer->number, transfer->done, left);
    const bool is_sent = is_ok(transfer, transfer->chan->ops->tx_small(transfer->chan, payload, left, stamp));

    memset(payload, 0xee, left); /* it is the caller's again */
    return is_sent;
}

/* Some places are too small for what comes. */
static enum hkt_status look(struct transfer *transfer, struct hkt__view *out_view)
{
    const struct hkt__chan_ops *ops = transfer->chan->ops;
    const size_t left = transfer->bytes - transfer->done;

    if (ops->rx_into == NULL || transfer->number % 4 < 2)
        return ops->rx_begin(transfer->chan, out_view);
    return ops->rx_into(transfer->chan, place_of(transfer, left), transfer->number % 16 < 4 && left > 20000 ? 20000 : left,
                        out_view);
}

bool transfer_send(struct transfer *transfer)
{
    const size_t left = transfer->bytes - transfer->done;
    const struct hkt__stamp stamp = stamp_of(transfer->number, transfer->bytes);
    struct hkt__room room;

    if (transfer->is_done)
        return false;
    if (transfer->chan->ops->tx_small != NULL && left <= HKT__TP_SMALL && transfer->number % 3 == 0) {
        transfer->is_done = send_small(transfer, &stamp);
        transfer->done += transfer->is_done ? left : 0;
        return transfer->is_done;
    }
    if (!is_ok(transfer, transfer->chan->ops->tx_begin(transfer->chan, left, &room)))
        return false;
    RIG_CHECK(room.bytes <= left && room.bytes >= (left < 32 ? left : 32) && room.bytes <= transfer->chan->frame_bytes_max);
    if (!is_ok(transfer, publish(transfer, &room, &stamp)))
        return false;
    transfer->done += room.bytes;
    transfer->is_done = transfer->done == transfer->bytes;
    return true;
}

bool transfer_receive(struct transfer *transfer)
{
    struct hkt__view view;

    if (transfer->is_done)
        return false;
    if (!is_ok(transfer, look(transfer, &view)))
        return false;
    stamp_check(&view.stamp, transfer->number, transfer->bytes);
    RIG_CHECK(view.bytes <= transfer->bytes - transfer->done);
    RIG_CHECK(view.bytes > 0 || transfer->bytes == 0);
    const size_t same = pattern_check(view.data, transfer->number, transfer->done, view.bytes);

    if (same != view.bytes)
        rig_fail(__FILE__, __LINE__, "message %llu of %zu bytes is wrong from byte %zu on",
                 (unsigned long long)transfer->number, transfer->bytes, transfer->done + same);
    transfer->done += view.bytes;
    transfer->is_done = transfer->done == transfer->bytes;
    transfer->chan->ops->rx_end(transfer->chan);
    transfer_drop(transfer);
    return true;
}

void transfer_finish(struct rig_dom *dom, struct transfer *send, struct transfer *receive)
{
    int spins = 0;

    while ((send != NULL && !send->is_done) || (receive != NULL && !receive->is_done)) {
        bool is_moving = send != NULL && transfer_send(send);

        is_moving |= receive != NULL && transfer_receive(receive);
        if (is_moving)
            spins = 0;
        else
            rig_idle(dom, &spins);
    }
}

static void send_one(struct rig_dom *dom, int peer, int lane, uint64_t number, size_t bytes)
{
    struct transfer transfer = { .chan = dom->tx[peer][lane], .number = number, .bytes = bytes };

    transfer_finish(dom, &transfer, NULL);
}

static void receive_one(struct rig_dom *dom, int peer, int lane, uint64_t number, size_t bytes)
{
    struct transfer transfer = { .chan = dom->rx[peer][lane], .number = number, .bytes = bytes };

    transfer_finish(dom, NULL, &transfer);
}

/* ---- cases ---- */

/* Frames arrive in order, each once, with their stamps. Rank 0 sends, rank 1 receives. */
void case_fifo_order(struct rig_rank *rank, const void *arg)
{
    const uint64_t count = *(const int *)arg;
    struct rig_dom dom;

    rig_dom_open(rank, 1, 0, &dom);
    for (uint64_t number = 1; number <= count; number++) {
        if (rank->rank == 0)
            send_one(&dom, 1, 0, number, number % 41);
        else
            receive_one(&dom, 0, 0, number, number % 41);
    }
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* Every size from 0 to 3 * frame_bytes_max when that is small; else the borders and a sample. */
void case_sizes(struct rig_rank *rank, const void *arg)
{
    static const size_t borders[] = { 0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 100, 4095, 4096, 4097, 65535, 65536, 65537 };
    struct rig_dom dom;
    uint64_t number = 0, state = 88172645463325252u;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    /* A frame's limit is the receiver's affair: each direction has its own. Both are the same here. */
    const size_t frame_max = dom.tx[1 - rank->rank][0]->frame_bytes_max;
    const size_t top = 3 * frame_max, step = (frame_max <= 1024 ? 1 : frame_max / 61) * (size_t)rig_thinning();

    for (size_t bytes = 0; bytes <= top; bytes += step) {
        struct transfer out = { .chan = dom.tx[1 - rank->rank][0], .number = ++number, .bytes = bytes };
        struct transfer in = { .chan = dom.rx[1 - rank->rank][0], .number = number, .bytes = bytes };

        transfer_finish(&dom, &out, &in);
    }
    for (size_t i = 0; i < 200; i++) {
        const size_t around = frame_max * (1 + i % 3) - 2 + i / 3 % 5;
        const size_t bytes = i < sizeof borders / sizeof borders[0] ? borders[i] : i % 2 ? around : rig_random(&state) % top;
        struct transfer out = { .chan = dom.tx[1 - rank->rank][0], .number = ++number, .bytes = bytes };
        struct transfer in = { .chan = dom.rx[1 - rank->rank][0], .number = number, .bytes = bytes };

        transfer_finish(&dom, &out, &in);
    }
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* tx_begin before tx_end, and rx_begin before rx_end, give the same thing however often they are called. */
void case_same_answer_twice(struct rig_rank *rank, const void *arg)
{
    struct rig_dom dom;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    for (uint64_t number = 1; number <= 200; number++) {
        const size_t bytes = number * 3 % 120;
        int spins = 0;

        if (rank->rank == 0) {
            struct hkt__chan *chan = dom.tx[1][0];
            struct hkt__room room, again;

            while (chan->ops->tx_begin(chan, bytes, &room) == HKT_AGAIN)
                rig_idle(&dom, &spins);
            RIG_EQUAL(chan->ops->tx_begin(chan, bytes, &again), HKT_OK);
            RIG_CHECK(again.data == room.data && again.bytes >= room.bytes && again.bytes <= bytes);
            /* Second thoughts: more, less, and back. */
            const enum hkt_status rc = chan->ops->tx_begin(chan, 5000, &again);

            RIG_CHECK(rc == HKT_AGAIN || (rc == HKT_OK && again.bytes >= 32));
            RIG_EQUAL(chan->ops->tx_begin(chan, 3, &again), HKT_OK);
            RIG_CHECK(again.bytes >= 3);
            RIG_EQUAL(chan->ops->tx_begin(chan, bytes, &again), HKT_OK);
            const size_t fits = again.bytes < bytes ? again.bytes : bytes;
            const struct hkt__stamp stamp = stamp_of(number, fits);

            RIG_CHECK(fits >= (bytes < 32 ? bytes : 32));
            pattern_fill(again.data, number, 0, fits);
            RIG_EQUAL(chan->ops->tx_end(chan, fits, &stamp), HKT_OK);
        } else {
            struct hkt__chan *chan = dom.rx[0][0];
            struct hkt__view view, again;

            while (chan->ops->rx_begin(chan, &view) == HKT_AGAIN)
                rig_idle(&dom, &spins);
            RIG_EQUAL(chan->ops->rx_begin(chan, &again), HKT_OK);
            RIG_CHECK(again.data == view.data && again.bytes == view.bytes && view.bytes <= bytes);
            stamp_check(&again.stamp, number, view.bytes);
            RIG_EQUAL(pattern_check(view.data, number, 0, view.bytes), view.bytes);
            chan->ops->rx_end(chan);
        }
    }
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* A sender may publish less than it asked room for, across the border of inline payloads too. */
void case_publish_less(struct rig_rank *rank, const void *arg)
{
    static const size_t sizes[] = { 0, 1, 31, 32, 33, 64, 700, 1000 };
    struct rig_dom dom;
    uint64_t number = 0;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    for (size_t i = 0; i < 8; i++)
        for (size_t j = 0; j <= i; j++) {
            const struct hkt__stamp stamp = stamp_of(++number, sizes[j]);
            struct hkt__chan *chan = dom.tx[1 - rank->rank][0];
            struct hkt__room room;
            int spins = 0;

            if (rank->rank == 1) {
                receive_one(&dom, 0, 0, number, sizes[j]);
                continue;
            }
            while (chan->ops->tx_begin(chan, sizes[i], &room) == HKT_AGAIN)
                rig_idle(&dom, &spins);
            const size_t bytes = sizes[j] <= room.bytes ? sizes[j] : room.bytes;

            RIG_EQUAL(bytes, sizes[j]); /* the smallest frame_bytes_max in use is larger */
            pattern_fill(room.data, number, 0, bytes);
            RIG_EQUAL(chan->ops->tx_end(chan, bytes, &stamp), HKT_OK);
        }
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* One frame of at most `bytes` bytes; false when there is no credit. */
static bool frame_send(struct hkt__chan *chan, uint64_t number, size_t bytes)
{
    struct hkt__room room;
    const enum hkt_status rc = chan->ops->tx_begin(chan, bytes, &room);

    if (rc == HKT_AGAIN)
        return false;
    RIG_EQUAL(rc, HKT_OK);
    const struct hkt__stamp stamp = stamp_of(number, room.bytes);

    pattern_fill(room.data, number, 0, room.bytes);
    RIG_EQUAL(chan->ops->tx_end(chan, room.bytes, &stamp), HKT_OK);
    return true;
}

static void frame_receive(struct rig_dom *dom, struct hkt__chan *chan, uint64_t number)
{
    struct hkt__view view;
    enum hkt_status rc;
    int spins = 0;

    while ((rc = chan->ops->rx_begin(chan, &view)) == HKT_AGAIN)
        rig_idle(dom, &spins);
    RIG_EQUAL(rc, HKT_OK);
    stamp_check(&view.stamp, number, view.bytes);
    RIG_EQUAL(pattern_check(view.data, number, 0, view.bytes), view.bytes);
    chan->ops->rx_end(chan);
}

/* Send until there is no credit while the receiver does not look; then everything is there, and credit comes back. */
void case_stop_and_go(struct rig_rank *rank, const void *arg)
{
    struct rig_dom dom;
    uint64_t number = 0;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    for (int round = 0; round < 5; round++) {
        uint64_t sent = 0, all[2];
        const size_t bytes = round % 2 == 0 ? 20 : dom.tx[1 - rank->rank][0]->frame_bytes_max;

        while (rank->rank == 0 && frame_send(dom.tx[1][0], number + sent, bytes)) {
            sent++;
            RIG_CHECK(sent < 10000000); /* buffers have a bound */
        }
        rig_exchange(rank, &sent, sizeof sent, all);
        RIG_CHECK(all[0] > 0);
        for (uint64_t i = 0; rank->rank == 1 && i < all[0]; i++)
            frame_receive(&dom, dom.rx[0][0], number + i);
        number += all[0];
        rig_barrier(rank);
    }
    rig_dom_close(&dom);
}

/* The most frames a ring of two slots can be asked for: wraps at once, full most of the time. */
void case_tiny_ring(struct rig_rank *rank, const void *arg)
{
    struct rig_dom dom;
    uint64_t state = 7;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    for (uint64_t number = 1; number <= 3000; number++) {
        const size_t bytes = rig_random(&state) % 2500;
        struct transfer out = { .chan = dom.tx[1 - rank->rank][0], .number = number, .bytes = bytes };
        struct transfer in = { .chan = dom.rx[1 - rank->rank][0], .number = number, .bytes = bytes };

        transfer_finish(&dom, &out, &in);
    }
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* One direction of the flood: where each pair of ranks stands. */
struct flood {
    struct transfer out[RIG_RANKS_MAX], in[RIG_RANKS_MAX];
    uint64_t out_state[RIG_RANKS_MAX], in_state[RIG_RANKS_MAX];
};

static size_t flood_bytes(uint64_t *state)
{
    const uint64_t draw = rig_random(state);

    return draw % 4 != 0 ? draw / 4 % 200 : draw / 4 % 100000;
}

/* Everybody sends to everybody at once, random sizes, far more than the buffers hold: nobody may wait for anybody. */
void case_flood(struct rig_rank *rank, const void *arg)
{
    const int count = *(const int *)arg;
    struct flood *flood = calloc(1, sizeof *flood);
    struct rig_dom dom;
    int nleft = 2 * (rank->nranks - 1), spins = 0;

    RIG_CHECK(flood != NULL);
    rig_dom_open(rank, 1, 0, &dom);
    for (int peer = 0; peer < rank->nranks; peer++) {
        flood->out_state[peer] = 1000 + (uint64_t)(rank->rank * 64 + peer); /* both ends draw the same sizes */
        flood->in_state[peer] = 1000 + (uint64_t)(peer * 64 + rank->rank);
        flood->out[peer] = (struct transfer){ .chan = dom.tx[peer][0], .bytes = flood_bytes(&flood->out_state[peer]) };
        flood->in[peer] = (struct transfer){ .chan = dom.rx[peer][0], .bytes = flood_bytes(&flood->in_state[peer]) };
    }
    while (nleft > 0) {
        bool is_moving = false;

        for (int k = 0; k < 2 * rank->nranks; k++) {
            const int peer = k / 2;
            struct transfer *transfer = k % 2 == 0 ? &flood->out[peer] : &flood->in[peer];
            uint64_t *state = k % 2 == 0 ? &flood->out_state[peer] : &flood->in_state[peer];

            if (peer == rank->rank || transfer->is_done)
                continue;
            is_moving |= k % 2 == 0 ? transfer_send(transfer) : transfer_receive(transfer);
            if (!transfer->is_done)
                continue;
            const uint64_t number = transfer->number + 1;

            nleft -= number == (uint64_t)count;
            if (number < (uint64_t)count)
                *transfer = (struct transfer){ .chan = transfer->chan, .number = number, .bytes = flood_bytes(state) };
        }
        if (is_moving)
            spins = 0;
        else
            rig_idle(&dom, &spins);
    }
    rig_barrier(rank);
    rig_dom_close(&dom);
    free(flood);
}

/* A lane that is full, and that nobody reads, does not hold up the others. */
void case_lanes(struct rig_rank *rank, const void *arg)
{
    struct rig_dom dom;
    uint64_t stuck = 0, all[2];

    (void)arg;
    rig_dom_open(rank, 4, 0, &dom);
    if (rank->rank == 0)
        for (struct transfer out;; stuck++) {
            out = (struct transfer){ .chan = dom.tx[1][0], .number = stuck, .bytes = 32 };
            if (!transfer_send(&out))
                break;
        }
    rig_exchange(rank, &stuck, sizeof stuck, all);
    for (uint64_t number = 0; number < 300; number++)
        for (int lane = 1; lane < 4; lane++) {
            if (rank->rank == 0)
                send_one(&dom, 1, lane, number * 4 + (uint64_t)lane, number * 5);
            else
                receive_one(&dom, 0, lane, number * 4 + (uint64_t)lane, number * 5);
        }
    for (uint64_t number = 0; rank->rank == 1 && number < all[0]; number++)
        receive_one(&dom, 0, 0, number, 32);
    rig_barrier(rank);
    rig_dom_close(&dom);
}
