/* Faults that must be noticed: rank 0 sends under injection, rank 1 receives. What could break: a lost frame that nobody
 * misses, a repeated one taken for the next, a receiver that takes something from a dead sender's half-written frame. */
#include <string.h>

#include "cases.h"

/* Rank 0 sends until it is told to stop. Whatever rank 1 accepts is the next frame in line, until it reports damage. */
void case_loss_is_noticed(struct rig_rank *rank, const void *arg)
{
    struct rig_dom dom;
    uint64_t number = 0;
    int spins = 0;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    if (rank->rank == 0) {
        struct transfer stop = { .chan = dom.rx[1][0], .number = 77 };
        struct transfer out = { .chan = dom.tx[1][0], .bytes = 0 };

        while (!stop.is_done) {
            bool is_moving = transfer_send(&out);

            is_moving |= transfer_receive(&stop);
            if (out.is_done) {
                number++;
                out = (struct transfer){ .chan = out.chan, .number = number, .bytes = (size_t)(number * 31 % 900) };
            }
            spins = is_moving ? 0 : spins;
            if (!is_moving)
                rig_idle(&dom, &spins);
        }
    } else {
        struct transfer in = { .chan = dom.rx[0][0], .bytes = 0 }, stop = { .chan = dom.tx[0][0], .number = 77 };

        for (;;) {
            struct hkt__view view;
            const enum hkt_status rc = in.chan->ops->rx_begin(in.chan, &view);

            if (rc == HKT_ERR_CORRUPT)
                break;
            if (rc == HKT_AGAIN) {
                rig_idle(&dom, &spins);
                continue;
            }
            spins = 0;
            RIG_CHECK(transfer_receive(&in));
            if (in.is_done) {
                number++;
                in = (struct transfer){ .chan = in.chan, .number = number, .bytes = (size_t)(number * 31 % 900) };
            }
        }
        RIG_CHECK(strstr(hkt_last_error(), "rank 0") != NULL);
        transfer_finish(&dom, &stop, NULL);
    }
    rig_barrier(rank);
    rig_dom_close(&dom);
}

static int bits_that_differ(const unsigned char *data, uint64_t number, size_t bytes)
{
    int count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += __builtin_popcount((unsigned)(data[i] ^ pattern_at(number, i)));
    return count;
}

/* Damage hits payloads only, one bit each: order and stamps stand, and a checksum would find each hit. */
void case_damage_is_noticed(struct rig_rank *rank, const void *arg)
{
    enum { FRAMES = 2000 };
    struct rig_dom dom;
    int nhits = 0;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    for (uint64_t number = 0; number < FRAMES; number++) {
        const size_t bytes = 1 + (size_t)(number * 17 % 500);
        struct transfer out = { .chan = dom.tx[1 - rank->rank][0], .number = number, .bytes = bytes };
        struct hkt__view view;
        int spins = 0;

        if (rank->rank == 0) {
            transfer_finish(&dom, &out, NULL);
            continue;
        }
        while (dom.rx[0][0]->ops->rx_begin(dom.rx[0][0], &view) == HKT_AGAIN)
            rig_idle(&dom, &spins);
        stamp_check(&view.stamp, number, bytes);
        RIG_EQUAL(view.bytes, bytes);
        const int nbits = bits_that_differ(view.data, number, bytes);

        RIG_CHECK(nbits <= 1);
        nhits += nbits;
        dom.rx[0][0]->ops->rx_end(dom.rx[0][0]);
    }
    RIG_CHECK(rank->rank == 0 || nhits > FRAMES / 100);
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* Rank 0 ends at its 100th frame, before that frame is sent: rank 1 gets 99, all whole, and for a while no more. */
void case_killed(struct rig_rank *rank, const void *arg)
{
    enum { FRAMES = 99, QUIET_MS = 100 };
    struct rig_dom dom;
    uint64_t number = 0;
    int64_t end_ms = 0;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    for (; rank->rank == 0; number++) {
        struct transfer out = { .chan = dom.tx[1][0], .number = number, .bytes = 700 };

        transfer_finish(&dom, &out, NULL);
    }
    struct transfer in = { .chan = dom.rx[0][0], .bytes = 700 };

    while (number < FRAMES || rig_now_ms() < end_ms) {
        struct hkt__view view;
        const enum hkt_status rc = in.chan->ops->rx_begin(in.chan, &view);

        RIG_CHECK(rc == HKT_OK || rc == HKT_AGAIN || rc == HKT_ERR_PEER_LOST);
        if (rc == HKT_ERR_PEER_LOST)
            break;
        if (rc == HKT_OK && transfer_receive(&in) && in.is_done) {
            in = (struct transfer){ .chan = in.chan, .number = ++number, .bytes = 700 };
            end_ms = rig_now_ms() + QUIET_MS;
        }
        if (rc == HKT_AGAIN)
            dom.dom->ops->park(dom.dom, 1000000);
    }
    RIG_EQUAL(number, FRAMES);
    rig_dom_close(&dom);
    transfer_drop(&in);
}
