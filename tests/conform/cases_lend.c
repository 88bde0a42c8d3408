/* Lending: frames sent from pinned memory where they lie. What could break: memory that is read after it was said to be the
 * caller's again; memory that is not pinned, no longer, or not all of it, and is read all the same; pages that were pinned
 * there before; a frame lost when the sender closes, a sender that waits for ever when its peer dies. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cases.h"

enum { DEADLINE_MS = 30000, PAGE = 4096 };

/* A message that is sent from pinned memory, as far as the channel takes it from there. */
struct loan {
    struct hkt__chan *chan;
    unsigned char *place;
    uint64_t number;
    size_t bytes, done;
    uint64_t *lent_frames;
};

static unsigned char *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    RIG_CHECK(memory != MAP_FAILED);
    return memory;
}

static void loan_start(struct loan *loan, uint64_t number, size_t bytes)
{
    loan->number = number;
    loan->bytes = bytes;
    loan->done = 0;
    pattern_fill(loan->place, number, 0, bytes);
}

/* One frame, if it goes now. A channel that refuses memory must still take the same bytes by the room it gave. */
static enum hkt_status loan_try(struct loan *loan)
{
    const struct hkt__chan_ops *ops = loan->chan->ops;
    const struct hkt__stamp stamp = stamp_of(loan->number, loan->bytes);
    const unsigned char *from = loan->place + loan->done;
    struct hkt__room room;
    enum hkt_status rc = ops->tx_begin(loan->chan, loan->bytes - loan->done, &room);

    if (rc != HKT_OK)
        return rc;
    if (room.bytes > loan->bytes - loan->done)
        room.bytes = loan->bytes - loan->done;
    rc = ops->tx_lend(loan->chan, from, room.bytes, &stamp);
    *loan->lent_frames += rc == HKT_OK;
    if (rc == HKT_AGAIN) {
        memcpy(room.data, from, room.bytes);
        rc = ops->tx_end(loan->chan, room.bytes, &stamp);
        RIG_CHECK(rc != HKT_AGAIN);
    }
    loan->done += rc == HKT_OK ? room.bytes : 0;
    return rc;
}

static bool loan_send(struct loan *loan)
{
    const enum hkt_status rc = loan_try(loan);

    RIG_CHECK(rc == HKT_OK || rc == HKT_AGAIN);
    return rc == HKT_OK;
}

static void loan_await(struct rig_dom *dom, struct loan *loan)
{
    const int64_t end_ms = rig_now_ms() + DEADLINE_MS;

    for (int spins = 0; loan->chan->ops->tx_is_lent(loan->chan); rig_idle(dom, &spins))
        RIG_CHECK(rig_now_ms() < end_ms);
    memset(loan->place, 0xee, loan->bytes); /* it is the caller's again */
}

/* Send a message and take one of the same size at the same time, as far as each is wanted. */
static void loan_exchange(struct rig_dom *dom, struct loan *out, struct transfer *in)
{
    const int64_t end_ms = rig_now_ms() + DEADLINE_MS;

    for (int spins = 0; (out != NULL && out->done < out->bytes) || (in != NULL && !in->is_done);) {
        bool is_moving = out != NULL && out->done < out->bytes && loan_send(out);

        is_moving |= in != NULL && transfer_receive(in);
        if (is_moving)
            spins = 0;
        else
            rig_idle(dom, &spins);
        RIG_CHECK(rig_now_ms() < end_ms);
    }
}

struct pinner {
    struct hkt__tp_dom *dom;
    unsigned char *memory;
    atomic_bool is_over;
};

/* Registers and forgets other memory all the time, from a thread of its own. */
static void *pin_and_unpin(void *data)
{
    struct pinner *pinner = data;

    while (!atomic_load_explicit(&pinner->is_over, memory_order_relaxed)) {
        for (size_t i = 0; i < 3; i++)
            if (pinner->dom->ops->mem_pin(pinner->dom, pinner->memory + i * PAGE, PAGE))
                pinner->dom->ops->mem_unpin(pinner->dom, pinner->memory + i * PAGE);
        nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL); /* the ranks need the processors more */
    }
    return NULL;
}

/* Messages of all sizes both ways, from memory that is overwritten as soon as it is the caller's again, while another thread
 * pins other memory. */
void case_lend(struct rig_rank *rank, const void *arg)
{
    static const size_t sizes[] = { 1, 31, 300, 32767, 32768, 70001, 262144, 300007, 1000003 };
    enum { ROOM = 1 << 20, NSIZES = sizeof sizes / sizeof sizes[0] };
    const int count = *(const int *)arg, peer = 1 - rank->rank;
    struct rig_dom dom;
    uint64_t lent_frames = 0;
    pthread_t other;

    rig_dom_open(rank, 1, 0, &dom);
    unsigned char *memory = map(ROOM + PAGE);
    struct pinner pinner = { .dom = dom.dom, .memory = map(3 * PAGE) };
    struct loan out = { .chan = dom.tx[peer][0], .lent_frames = &lent_frames };

    RIG_CHECK(dom.dom->ops->mem_pin(dom.dom, memory, ROOM + PAGE));
    RIG_CHECK(pthread_create(&other, NULL, pin_and_unpin, &pinner) == 0);
    for (int i = 0; i < count; i++) {
        const size_t bytes = sizes[i % NSIZES];
        struct transfer in = { .chan = dom.rx[peer][0], .number = (uint64_t)i, .bytes = bytes };

        out.place = memory + (size_t)i * 13 % PAGE;
        loan_start(&out, (uint64_t)i, bytes);
        loan_exchange(&dom, &out, &in);
        loan_await(&dom, &out);
    }
    atomic_store_explicit(&pinner.is_over, true, memory_order_relaxed);
    pthread_join(other, NULL);
    RIG_CHECK(lent_frames > (uint64_t)count / 4);
    rig_barrier(rank);
    rig_dom_close(&dom);
    munmap(memory, ROOM + PAGE);
    munmap(pinner.memory, 3 * PAGE);
}

/* Send a message one way; the number of frames that were lent. */
static uint64_t send_one_way(struct rig_dom *dom, unsigned char *place, uint64_t number, size_t bytes)
{
    uint64_t lent_frames = 0;

    if (dom->rank->rank == 0) {
        struct loan out = { .chan = dom->tx[1][0], .place = place, .lent_frames = &lent_frames };

        loan_start(&out, number, bytes);
        loan_exchange(dom, &out, NULL);
        loan_await(dom, &out);
    } else {
        struct transfer in = { .chan = dom->rx[0][0], .number = number, .bytes = bytes };

        transfer_finish(dom, NULL, &in);
    }
    return lent_frames;
}

/* Only what is pinned is lent, and it is what lies there now. */
void case_lend_only_pinned(struct rig_rank *rank, const void *arg)
{
    enum { BYTES = 65536, ROOM = 2 * BYTES, TURNS = 8 };
    struct rig_dom dom;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    unsigned char *memory = map(ROOM);
    uint64_t number = 0, lent_frames = 0;

    RIG_EQUAL(send_one_way(&dom, memory, number++, BYTES), 0);
    for (int i = 0; i < TURNS; i++) {
        RIG_CHECK(dom.dom->ops->mem_pin(dom.dom, memory, BYTES));
        lent_frames += send_one_way(&dom, memory, number++, BYTES);
        RIG_EQUAL(send_one_way(&dom, memory + BYTES, number++, BYTES), 0);
        dom.dom->ops->mem_unpin(dom.dom, memory + PAGE); /* was not pinned under that address: nothing happens */
        dom.dom->ops->mem_unpin(dom.dom, memory);
        RIG_EQUAL(send_one_way(&dom, memory, number++, BYTES), 0);
        /* Other pages at the same address. */
        RIG_CHECK(mmap(memory, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
    }
    RIG_CHECK(rank->rank != 0 || lent_frames > 0);
    RIG_CHECK(dom.dom->ops->mem_pin(dom.dom, memory, BYTES - 1));
    if (rank->rank == 0) { /* one byte more than is pinned, in one frame */
        const struct hkt__stamp stamp = stamp_of(number, BYTES);
        struct hkt__room room;
        enum hkt_status rc = HKT_AGAIN;

        for (int spins = 0; rc == HKT_AGAIN; rig_idle(&dom, &spins))
            rc = dom.tx[1][0]->ops->tx_begin(dom.tx[1][0], BYTES, &room);
        RIG_EQUAL(rc, HKT_OK);
        RIG_EQUAL(dom.tx[1][0]->ops->tx_lend(dom.tx[1][0], memory + BYTES - room.bytes, room.bytes, &stamp), HKT_AGAIN);
    }
    rig_barrier(rank);
    rig_dom_close(&dom);
    munmap(memory, ROOM);
}

/* More pins than any transport takes: refused, not half done; those that are taken serve. */
void case_lend_many_pins(struct rig_rank *rank, const void *arg)
{
    enum { PINS = 300, BYTES = 65536 };
    struct rig_dom dom;
    bool *is_pinned = calloc(PINS, sizeof *is_pinned);

    (void)arg;
    RIG_CHECK(is_pinned != NULL);
    rig_dom_open(rank, 1, 0, &dom);
    unsigned char *memory = map((size_t)PINS * PAGE + BYTES);

    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < PINS; i++)
            is_pinned[i] = dom.dom->ops->mem_pin(dom.dom, memory + i * PAGE, PAGE);
        RIG_CHECK(is_pinned[0]);
        for (int i = 0; i < PINS; i++)
            if (is_pinned[i])
                dom.dom->ops->mem_unpin(dom.dom, memory + i * PAGE);
    }
    RIG_CHECK(dom.dom->ops->mem_pin(dom.dom, memory, (size_t)PINS * PAGE + BYTES));
    (void)send_one_way(&dom, memory + PAGE, 1, BYTES);
    rig_barrier(rank);
    rig_dom_close(&dom); /* forgets the pin */
    munmap(memory, (size_t)PINS * PAGE + BYTES);
    free(is_pinned);
}

/* The sender closes while frames may be lent, and unmaps them: all arrive. */
void case_lend_and_close(struct rig_rank *rank, const void *arg)
{
    enum { ROOM = 1 << 20, TRIES = 40 };
    const int count = *(const int *)arg;

    for (int i = 0; i < count; i++) {
        struct rig_dom dom;
        uint64_t sent = 0, all[2], lent_frames = 0;

        rig_dom_open(rank, 1, 0, &dom);
        if (rank->rank == 0) {
            unsigned char *memory = map(ROOM);

            RIG_CHECK(dom.dom->ops->mem_pin(dom.dom, memory, ROOM));
            struct loan out = { .chan = dom.tx[1][0], .place = memory, .lent_frames = &lent_frames };

            loan_start(&out, (uint64_t)i, ROOM);
            for (int tries = 0; tries < i % TRIES && out.done < ROOM; tries++)
                (void)loan_send(&out); /* soon without credit: the peer looks only later */
            sent = out.done;
            rig_exchange(rank, &sent, sizeof sent, all);
            rig_dom_close(&dom);
            munmap(memory, ROOM);
            continue;
        }
        rig_exchange(rank, &sent, sizeof sent, all);
        struct transfer in = { .chan = dom.rx[0][0], .number = (uint64_t)i, .bytes = ROOM };
        const int64_t end_ms = rig_now_ms() + DEADLINE_MS;

        for (int spins = 0; in.done < all[0]; rig_idle(&dom, &spins)) {
            (void)transfer_receive(&in);
            RIG_CHECK(rig_now_ms() < end_ms);
        }
        transfer_drop(&in);
        rig_dom_close(&dom);
    }
}

/* The peer is killed while it should take what is lent to it: the sender learns in time that nothing is lent any more. */
void case_lend_to_the_dead(struct rig_rank *rank, const void *arg)
{
    enum { ROOM = 1 << 20, QUIET_MS = 50 };
    struct rig_dom dom;
    uint64_t lent_frames = 0;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    if (rank->rank == 1)
        raise(SIGKILL);
    unsigned char *memory = map(ROOM);
    struct loan out = { .chan = dom.tx[1][0], .place = memory, .lent_frames = &lent_frames };
    const int64_t start_ms = rig_now_ms();
    int64_t moved_ms = start_ms;
    enum hkt_status rc = HKT_OK;

    RIG_CHECK(dom.dom->ops->mem_pin(dom.dom, memory, ROOM));
    loan_start(&out, 1, ROOM);
    while (rc >= 0 && out.done < ROOM && rig_now_ms() - moved_ms < QUIET_MS) { /* until it fails, or there is no credit */
        rc = loan_try(&out);
        if (rc == HKT_OK)
            moved_ms = rig_now_ms();
    }
    RIG_CHECK(rc == HKT_OK || rc == HKT_AGAIN || rc == HKT_ERR_PEER_LOST);
    for (int spins = 0; out.chan->ops->tx_is_lent(out.chan); rig_idle(&dom, &spins))
        RIG_CHECK(rig_now_ms() - start_ms < DEADLINE_MS);
    rig_dom_close(&dom);
    munmap(memory, ROOM);
}
