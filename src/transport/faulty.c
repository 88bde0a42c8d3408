/* faulty: any transport, with faults injected into its channels by seed (HOCKET_FAULTS, see faulty.h).
 *
 * What a channel must hide:  delay (no credit, or no frame, for some calls), short (less room than asked for).
 * What a sender must respect: lend (memory that is pinned is lent, and read some calls later, by any transport: as an adapter
 *   would that reads memory by itself).
 * What must be noticed:      drop, dup, corrupt, kill. Nothing of the inner transport is bent for this: each frame carries
 *   eight bytes more at its end, a number of the wrapper's own, so that a receiver sees a frame missing or repeated exactly
 *   as it would see a hole in the sequence of a real medium. A flipped payload bit is left for the checksum to find.
 * Both sides of a channel must run under faulty, and the probabilities apply to what each side sends.
 *
 * Each channel draws from its own generator, seeded by seed, ranks, lane and communicator: the faults a channel injects do
 * not depend on timing elsewhere. */
#include "transport/faulty.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "core/settings.h"
#include "transport/faulty_pins.h"
#include "transport/transport.h"

#define TRAILER_MAGIC 0x68667431u  /* "hft1" */
#define TABLES_MAX 8
#define DELAY_CALLS_MAX 32         /* a delay is this many calls at most that find nothing */
#define DELAY_PARK_NS 50000        /* longest sleep while a delay runs: nothing arrives that could end it */
#define LEND_LEAST 256             /* bytes; less is sent by a copy, which real media prefer too */

struct trailer {
    uint32_t seq;
    uint32_t magic;
};

struct faulty_tp {
    struct hkt__tp base;
    struct hkt__tp *inner;
    struct hkt__faults faults;
    int job_rank;
    _Atomic uint64_t frames_sent; /* by all threads; relaxed, a mere count */
};

struct faulty_chan {
    struct hkt__chan base;
    struct hkt__chan *inner;
    struct faulty_dom *dom;
    uint64_t random;
    uint32_t seq;                 /* of the last frame sent or received */
    uint32_t delay_calls;         /* still to be answered with AGAIN */
    bool is_granted;              /* between tx_begin and tx_end, rx_begin and rx_end: no new faults */
    size_t room_max;              /* of the granted room */
    void *room;
    unsigned char *copy;          /* a frame to be sent again; allocated when dup is on */
    size_t copy_bytes;            /* 0: none */
    struct hkt__stamp copy_stamp;
    const void *lent;             /* the payload of the granted room, not read yet; NULL: none */
    size_t lent_bytes;
    struct hkt__stamp lent_stamp;
    uint32_t lent_calls;          /* until it is read */
    bool is_broken;               /* what was lent was unpinned */
};

struct faulty_pair {
    struct faulty_chan tx, rx;
    int peer, lane;
    struct faulty_pair *next;
};

struct faulty_dom {
    struct hkt__tp_dom base;
    struct hkt__tp_dom *inner;
    struct faulty_tp *tp;
    uint32_t comm_id;
    bool is_delaying;             /* a delay was answered since the last sleep */
    struct faulty_pair *pairs;
    int nlent;                    /* channels with something lent */
    struct hkt__faulty_pins pins;
};

/* ---- chance ---- */

static uint64_t draw(struct faulty_chan *chan)
{
    chan->random ^= chan->random >> 12;
    chan->random ^= chan->random << 25;
    chan->random ^= chan->random >> 27;
    return chan->random * 2685821657736338717u;
}

static bool is_hit(struct faulty_chan *chan, double probability)
{
    return probability > 0 && (double)(draw(chan) >> 11) * 0x1p-53 < probability;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 29;
}

/* True while the call is to be answered with AGAIN. */
static bool is_delayed(struct faulty_chan *chan)
{
    if (chan->delay_calls == 0 && is_hit(chan, chan->dom->tp->faults.delay))
        chan->delay_calls = 2 + (uint32_t)(draw(chan) % DELAY_CALLS_MAX);
    if (chan->delay_calls == 0)
        return false;
    chan->dom->is_delaying = true;
    return --chan->delay_calls > 0;
}

/* ---- pinned memory ---- */

static bool mem_pin(struct hkt__tp_dom *base, const void *data, size_t bytes)
{
    struct faulty_dom *dom = (struct faulty_dom *)base;

    return dom->tp->faults.lend > 0 && hkt__faulty_pin(&dom->pins, data, bytes);
}

static void mem_unpin(struct hkt__tp_dom *base, const void *data)
{
    hkt__faulty_unpin(&((struct faulty_dom *)base)->pins, data);
}

static enum hkt_status mem_pin_device(struct hkt__tp_dom *base, const struct hkt__tp_device_memory *memory)
{
    struct faulty_dom *dom = (struct faulty_dom *)base;

    if (dom->tp->faults.lend <= 0)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s does not send from memory of devices under faults, but for lend", base->ops->name);
    return hkt__faulty_pin_device(&dom->pins, memory);
}

static enum hkt_status mem_prove(struct hkt__tp_dom *base, const void *data, const void *expected, size_t bytes)
{
    const char *at = hkt__faulty_reach(&((struct faulty_dom *)base)->pins, data, bytes);

    return at != NULL && memcmp(at, expected, bytes) == 0
               ? HKT_OK : hkt__fail(HKT_ERR_UNSUPPORTED, "faulty reads other bytes in memory of a device than are there");
}

/* ---- sending ---- */

static void read_lent(struct faulty_dom *dom, bool all);

static enum hkt_status send_copy(struct faulty_chan *chan)
{
    struct hkt__room room;
    enum hkt_status rc = chan->inner->ops->tx_begin(chan->inner, chan->copy_bytes, &room);

    if (rc != HKT_OK)
        return rc;
    if (room.bytes == chan->copy_bytes) { /* a copy that cannot be sent whole is not sent at all */
        memcpy(room.data, chan->copy, chan->copy_bytes);
        rc = chan->inner->ops->tx_end(chan->inner, chan->copy_bytes, &chan->copy_stamp);
    }
    chan->copy_bytes = 0;
    return rc;
}

static enum hkt_status tx_begin(struct hkt__chan *base, size_t bytes, struct hkt__room *out_room)
{
    struct faulty_chan *chan = (struct faulty_chan *)base;
    struct hkt__room room;

    read_lent(chan->dom, false);
    if (chan->is_broken)
        return hkt__fail_peer(HKT_ERR_SYSTEM, base->peer, "memory was unpinned while it was lent to the channel to rank %d",
                              base->peer);
    if (chan->lent != NULL || (!chan->is_granted && is_delayed(chan)))
        return HKT_AGAIN;
    if (chan->copy_bytes > 0) {
        const enum hkt_status rc = send_copy(chan);

        if (rc != HKT_OK)
            return rc;
    }
    if (!chan->is_granted) {
        chan->room_max = base->frame_bytes_max;
        if (bytes > HKT__ROOM_MIN && is_hit(chan, chan->dom->tp->faults.short_room))
            chan->room_max = HKT__ROOM_MIN + draw(chan) % (bytes - HKT__ROOM_MIN);
    }
    const size_t wanted = bytes < chan->room_max ? bytes : chan->room_max;
    const enum hkt_status rc = chan->inner->ops->tx_begin(chan->inner, wanted + sizeof(struct trailer), &room);

    if (rc != HKT_OK)
        return rc;
    assert(room.bytes > sizeof(struct trailer) || bytes == 0);
    chan->is_granted = true;
    chan->room = room.data;
    out_room->data = room.data;
    out_room->bytes = room.bytes - sizeof(struct trailer);
    return HKT_OK;
}

static enum hkt_status tx_end(struct hkt__chan *base, size_t bytes, const struct hkt__stamp *stamp)
{
    struct faulty_chan *chan = (struct faulty_chan *)base;
    const struct hkt__faults *faults = &chan->dom->tp->faults;
    const struct trailer trailer = { .seq = ++chan->seq, .magic = TRAILER_MAGIC };
    const size_t frame_bytes = bytes + sizeof trailer;

    chan->is_granted = false;
    if (atomic_fetch_add_explicit(&chan->dom->tp->frames_sent, 1, memory_order_relaxed) + 1 == faults->kill)
        raise(SIGKILL);
    if (is_hit(chan, faults->drop))
        return HKT_OK;
    if (bytes > 0 && is_hit(chan, faults->corrupt)) {
        const uint64_t bit = draw(chan) % (bytes * 8);

        ((unsigned char *)chan->room)[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    memcpy((unsigned char *)chan->room + bytes, &trailer, sizeof trailer);
    if (is_hit(chan, faults->dup)) {
        memcpy(chan->copy, chan->room, frame_bytes);
        chan->copy_bytes = frame_bytes;
        chan->copy_stamp = *stamp;
    }
    enum hkt_status rc = chan->inner->ops->tx_end(chan->inner, frame_bytes, stamp);

    if (rc == HKT_OK && chan->copy_bytes > 0)
        rc = send_copy(chan);
    return rc == HKT_AGAIN ? HKT_OK : rc; /* no credit for the copy: before the next frame, then */
}

/* ---- lending ---- */

/** What was lent is read and sent. */
static void land(struct faulty_chan *chan)
{
    const char *data = hkt__faulty_reach(&chan->dom->pins, chan->lent, chan->lent_bytes);

    chan->lent = NULL;
    chan->dom->nlent--;
    chan->is_broken = data == NULL;
    if (chan->is_broken)
        return;
    memcpy(chan->room, data, chan->lent_bytes);
    (void)tx_end(&chan->base, chan->lent_bytes, &chan->lent_stamp); /* the next operation reports a failure */
}

/* The time until lent memory is read passes by calls on any channel of the domain. */
static void read_lent(struct faulty_dom *dom, bool all)
{
    for (struct faulty_pair *pair = dom->pairs; pair != NULL && dom->nlent > 0; pair = pair->next) {
        dom->is_delaying = true;
        if (pair->tx.lent != NULL && (all || --pair->tx.lent_calls == 0))
            land(&pair->tx);
    }
}

static enum hkt_status tx_lend(struct hkt__chan *base, const void *data, size_t bytes, const struct hkt__stamp *stamp)
{
    struct faulty_chan *chan = (struct faulty_chan *)base;

    assert(chan->is_granted && chan->lent == NULL);
    if (bytes < LEND_LEAST || hkt__faulty_reach(&chan->dom->pins, data, bytes) == NULL || !is_hit(chan, chan->dom->tp->faults.lend))
        return HKT_AGAIN;
    chan->lent = data;
    chan->lent_bytes = bytes;
    chan->lent_stamp = *stamp;
    chan->lent_calls = 1 + (uint32_t)(draw(chan) % DELAY_CALLS_MAX);
    chan->dom->nlent++;
    return HKT_OK;
}

static bool tx_is_lent(struct hkt__chan *base)
{
    struct faulty_chan *chan = (struct faulty_chan *)base;

    read_lent(chan->dom, false);
    return chan->lent != NULL;
}

/* ---- receiving ---- */

static enum hkt_status rx_begin(struct hkt__chan *base, struct hkt__view *out_view)
{
    struct faulty_chan *chan = (struct faulty_chan *)base;
    struct trailer trailer = { 0 };
    struct hkt__view view;

    read_lent(chan->dom, false);
    if (!chan->is_granted && is_delayed(chan))
        return HKT_AGAIN;
    const enum hkt_status rc = chan->inner->ops->rx_begin(chan->inner, &view);

    if (rc != HKT_OK)
        return rc;
    if (view.bytes >= sizeof trailer)
        memcpy(&trailer, (const unsigned char *)view.data + view.bytes - sizeof trailer, sizeof trailer);
    if (trailer.magic != TRAILER_MAGIC)
        return hkt__fail_peer(HKT_ERR_CORRUPT, base->peer, "a frame from rank %d carries no number: set HOCKET_FAULTS on all "
                              "ranks or on none", base->peer);
    if (trailer.seq != chan->seq + 1)
        return hkt__fail_peer(HKT_ERR_CORRUPT, base->peer, "frame %u from rank %d where frame %u was expected: %s",
                              trailer.seq, base->peer, chan->seq + 1,
                              (int32_t)(trailer.seq - chan->seq) <= 0 ? "repeated" : "lost on the way");
    chan->is_granted = true;
    *out_view = view;
    out_view->bytes -= sizeof trailer;
    return HKT_OK;
}

static void rx_end(struct hkt__chan *base)
{
    struct faulty_chan *chan = (struct faulty_chan *)base;

    chan->seq++;
    chan->is_granted = false;
    chan->inner->ops->rx_end(chan->inner);
}

static const struct hkt__chan_ops chan_ops = {
    .tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end,
};
static const struct hkt__chan_ops lending_ops = {
    .tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end, .tx_lend = tx_lend, .tx_is_lent = tx_is_lent,
};

/* ---- domains ---- */

static enum hkt_status dom_open(struct hkt__tp *base, const struct hkt__tp_members *members, struct hkt__tp_dom **out_dom,
                                void *out_blob, size_t *out_bytes)
{
    struct faulty_tp *tp = (struct faulty_tp *)base;
    struct faulty_dom *dom = hkt__calloc(1, sizeof *dom);

    if (dom == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a domain");
    const enum hkt_status rc = tp->inner->ops->dom_open(tp->inner, members, &dom->inner, out_blob, out_bytes);

    if (rc < 0) {
        hkt__free(dom);
        return rc;
    }
    dom->base.ops = base->ops;
    dom->tp = tp;
    dom->comm_id = members->comm_id;
    hkt__faulty_pins_init(&dom->pins);
    *out_dom = &dom->base;
    return HKT_OK;
}

static enum hkt_status dom_connect(struct hkt__tp_dom *base, const unsigned char *blobs, const size_t *bytes,
                                   const unsigned char *use)
{
    struct hkt__tp_dom *inner = ((struct faulty_dom *)base)->inner;

    return inner->ops->dom_connect(inner, blobs, bytes, use);
}

static void dom_close(struct hkt__tp_dom *base)
{
    struct faulty_dom *dom = (struct faulty_dom *)base;

    read_lent(dom, true); /* what was sent must arrive */
    dom->inner->ops->dom_close(dom->inner);
    hkt__faulty_pins_fini(&dom->pins);
    while (dom->pairs != NULL) {
        struct faulty_pair *pair = dom->pairs;

        dom->pairs = pair->next;
        hkt__free(pair->tx.copy);
        hkt__free(pair);
    }
    hkt__free(dom);
}

static void chan_init(struct faulty_chan *chan, struct faulty_dom *dom, struct hkt__chan *inner, int lane)
{
    chan->base = (struct hkt__chan){ .ops = dom->tp->faults.lend > 0 ? &lending_ops : &chan_ops, .peer = inner->peer,
                                     .frame_bytes_max = inner->frame_bytes_max - sizeof(struct trailer) };
    chan->inner = inner;
    chan->dom = dom;
    chan->random = mix(mix(mix(mix(dom->tp->faults.seed, (uint64_t)dom->tp->job_rank), (uint64_t)inner->peer),
                           (uint64_t)lane), dom->comm_id) | 1;
}

static enum hkt_status chan_open(struct hkt__tp_dom *base, int peer, int lane, struct hkt__chan **out_tx,
                                 struct hkt__chan **out_rx)
{
    struct faulty_dom *dom = (struct faulty_dom *)base;
    struct hkt__chan *tx, *rx;
    struct faulty_pair *pair = dom->pairs;
    const enum hkt_status rc = dom->inner->ops->chan_open(dom->inner, peer, lane, &tx, &rx);

    if (rc != HKT_OK)
        return rc;
    while (pair != NULL && (pair->peer != peer || pair->lane != lane))
        pair = pair->next;
    if (pair == NULL) {
        pair = hkt__calloc(1, sizeof *pair);
        if (pair == NULL)
            return hkt__fail(HKT_ERR_NOMEM, "no memory for a channel to rank %d", peer);
        chan_init(&pair->tx, dom, tx, lane);
        chan_init(&pair->rx, dom, rx, lane);
        pair->tx.copy = dom->tp->faults.dup > 0 ? hkt__calloc(1, tx->frame_bytes_max) : NULL;
        if (dom->tp->faults.dup > 0 && pair->tx.copy == NULL) {
            hkt__free(pair);
            return hkt__fail(HKT_ERR_NOMEM, "no memory for a channel to rank %d", peer);
        }
        pair->peer = peer;
        pair->lane = lane;
        pair->next = dom->pairs;
        dom->pairs = pair;
    }
    *out_tx = &pair->tx.base;
    *out_rx = &pair->rx.base;
    return HKT_OK;
}

static void *window(struct hkt__tp_dom *base, int peer)
{
    struct hkt__tp_dom *inner = ((struct faulty_dom *)base)->inner;

    return inner->ops->window(inner, peer);
}

/* Memory of peers is not a channel: what is read or written there cannot be lost, only the channels' signals about it. */
static enum hkt_status mem_alloc(struct hkt__tp *base, size_t bytes, void **out_memory)
{
    struct hkt__tp *inner = ((struct faulty_tp *)base)->inner;

    return inner->ops->mem_alloc(inner, bytes, out_memory);
}

static void mem_free(struct hkt__tp *base, void *memory)
{
    struct hkt__tp *inner = ((struct faulty_tp *)base)->inner;

    inner->ops->mem_free(inner, memory);
}

static bool mem_locate(struct hkt__tp *base, const void *data, size_t bytes, uint64_t *out_offset)
{
    struct hkt__tp *inner = ((struct faulty_tp *)base)->inner;

    return inner->ops->mem_locate(inner, data, bytes, out_offset);
}

static void *peer_base(struct hkt__tp_dom *base, int peer)
{
    struct hkt__tp_dom *inner = ((struct faulty_dom *)base)->inner;

    return inner->ops->peer_base(inner, peer);
}

static bool peer_copies(const struct hkt__tp *base, int job_rank)
{
    const struct hkt__tp *inner = ((const struct faulty_tp *)base)->inner;

    return inner->ops->peer_copies(inner, job_rank);
}

static enum hkt_status peer_read(struct hkt__tp_dom *base, int peer, void *to, uint64_t from, size_t bytes)
{
    struct hkt__tp_dom *inner = ((struct faulty_dom *)base)->inner;

    return inner->ops->peer_read(inner, peer, to, from, bytes);
}

static enum hkt_status peer_write(struct hkt__tp_dom *base, int peer, uint64_t to, const void *from, size_t bytes)
{
    struct hkt__tp_dom *inner = ((struct faulty_dom *)base)->inner;

    return inner->ops->peer_write(inner, peer, to, from, bytes);
}

static void park(struct hkt__tp_dom *base, int64_t timeout_ns)
{
    struct faulty_dom *dom = (struct faulty_dom *)base;

    read_lent(dom, false);
    const int64_t limit_ns = dom->is_delaying && timeout_ns > DELAY_PARK_NS ? DELAY_PARK_NS : timeout_ns;

    dom->is_delaying = false;
    dom->inner->ops->park(dom->inner, limit_ns);
}

static void wake(struct hkt__tp_dom *base)
{
    struct hkt__tp_dom *inner = ((struct faulty_dom *)base)->inner;

    inner->ops->wake(inner);
}

/* ---- instances ---- */

static struct hkt__tp_ops tables[TABLES_MAX]; /* table i wraps hkt__transport_get(i); written once, then constant */

static void tp_close(struct hkt__tp *base)
{
    struct faulty_tp *tp = (struct faulty_tp *)base;

    if (tp == NULL)
        return;
    tp->inner->ops->close(tp->inner);
    hkt__free(tp);
}

static enum hkt_status open_on(int index, const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    struct faulty_tp *tp = hkt__calloc(1, sizeof *tp);

    if (tp == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to inject faults");
    enum hkt_status rc = hkt__faults_parse(params->settings->faults, &tp->faults);

    if (rc == HKT_OK)
        rc = hkt__transport_get(index)->open(params, &tp->inner);
    if (rc < 0) {
        hkt__free(tp);
        return rc;
    }
    tp->base.ops = &tables[index];
    tp->job_rank = params->job_rank;
    *out_tp = &tp->base;
    return HKT_OK;
}

static enum hkt_status probe_on(int index, const struct hkt__settings *settings)
{
    struct hkt__faults faults;
    const enum hkt_status rc = hkt__faults_parse(settings->faults, &faults);

    return rc < 0 ? rc : hkt__transport_get(index)->probe(settings);
}

static void query(const struct hkt__tp *base, struct hkt__tp_caps *out_caps)
{
    const struct faulty_tp *tp = (const struct faulty_tp *)base;

    tp->inner->ops->query(tp->inner, out_caps);
    out_caps->flags = (out_caps->flags & ~(unsigned)HKT__TP_LENDS) | (tp->faults.lend > 0 ? HKT__TP_LENDS : 0u);
}

static enum hkt_status address(struct hkt__tp *base, void *out_blob, size_t *out_bytes)
{
    struct hkt__tp *inner = ((struct faulty_tp *)base)->inner;

    return inner->ops->address(inner, out_blob, out_bytes);
}

static enum hkt_status reach(struct hkt__tp *base, const unsigned char *blobs, const size_t *bytes, int64_t deadline_ns,
                             unsigned char *out_ok)
{
    struct hkt__tp *inner = ((struct faulty_tp *)base)->inner;

    return inner->ops->reach(inner, blobs, bytes, deadline_ns, out_ok);
}

/* The two operations without an object to find the inner transport by: one of each per table. */
#define FAULTY_ENTRY(i)                                                                                                \
    static enum hkt_status open_##i(const struct hkt__tp_params *params, struct hkt__tp **out_tp)                     \
    {                                                                                                                  \
        return open_on(i, params, out_tp);                                                                             \
    }                                                                                                                  \
    static enum hkt_status probe_##i(const struct hkt__settings *settings)                                            \
    {                                                                                                                  \
        return probe_on(i, settings);                                                                                  \
    }
FAULTY_ENTRY(0)
FAULTY_ENTRY(1)
FAULTY_ENTRY(2)
FAULTY_ENTRY(3)
FAULTY_ENTRY(4)
FAULTY_ENTRY(5)
FAULTY_ENTRY(6)
FAULTY_ENTRY(7)
#undef FAULTY_ENTRY

static const struct {
    enum hkt_status (*open)(const struct hkt__tp_params *params, struct hkt__tp **out_tp);
    enum hkt_status (*probe)(const struct hkt__settings *settings);
} entries[TABLES_MAX] = {
    { open_0, probe_0 }, { open_1, probe_1 }, { open_2, probe_2 }, { open_3, probe_3 },
    { open_4, probe_4 }, { open_5, probe_5 }, { open_6, probe_6 }, { open_7, probe_7 },
};

static void fill(void)
{
    const struct hkt__tp_ops *inner;

    assert(hkt__transport_get(TABLES_MAX) == NULL);
    for (int i = 0; i < TABLES_MAX && (inner = hkt__transport_get(i)) != NULL; i++)
        tables[i] = (struct hkt__tp_ops){
            .name = inner->name, .summary = inner->summary, .probe = entries[i].probe, .query = query,
            .open = entries[i].open, .close = tp_close, .address = address, .reach = reach, .dom_open = dom_open,
            .dom_connect = dom_connect, .dom_close = dom_close, .chan_open = chan_open, .window = window,
            .mem_alloc = mem_alloc, .mem_free = mem_free, .mem_locate = mem_locate, .peer_base = peer_base,
            .peer_copies = peer_copies, .peer_read = peer_read, .peer_write = peer_write,
            .mem_pin = mem_pin, .mem_unpin = mem_unpin, .mem_pin_device = mem_pin_device, .mem_prove = mem_prove, .park = park, .wake = wake,
        };
}

const struct hkt__tp_ops *hkt__faulty_wrap(const struct hkt__tp_ops *inner, const struct hkt__settings *settings)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (settings->faults == NULL || settings->faults[0] == '\0')
        return NULL;
    pthread_once(&once, fill);
    int index = 0;

    while (index < TABLES_MAX && hkt__transport_get(index) != inner)
        index++;
    assert(index < TABLES_MAX); /* a registered transport */
    return &tables[index];
}
