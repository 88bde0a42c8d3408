/* cuda_p2p: frames over a link. A payload that is small follows its prefix in the channel below; a larger one goes through a
 * slot, and its frame below is a note. See cuda_p2p.h for who may write what when. */
#include "cuda_p2p/cuda_p2p.h"

#include <string.h>

#include "core/error.h"

#define ASK_AFTER 64u /* polls in vain between two questions to the streams, each some microseconds */

/* ---- failures ---- */

enum hkt_status hkt__p2p_fail(struct hkt__p2p_dom *dom, int rc, int peer)
{
    if (dom->cuda_rc == 0)
        dom->cuda_rc = rc;
    for (size_t i = 0; i < (size_t)dom->nranks * (size_t)dom->lanes; i++)
        if (dom->links[i] != NULL && dom->links[i]->tx.word != NULL)
            atomic_store_explicit(&dom->links[i]->tx.word->broken, 1, memory_order_relaxed);
    return hkt__fail_peer(HKT_ERR_SYSTEM, peer, "CUDA: cannot move frames between device %d and that of rank %d: %s",
                          dom->tp->device, peer, dom->tp->cuda->error_text(dom->cuda_rc));
}

static enum hkt_status ask(struct hkt__p2p_dom *dom, int peer)
{
    void *const streams[2] = {dom->group.stream, dom->rx_stream};

    for (int i = 0; i < 2; i++) {
        const int rc = dom->tp->cuda->stream_query(streams[i], dom->tp->device);

        if (rc != 0 && rc != HKT__CUDA_NOT_READY)
            return hkt__p2p_fail(dom, rc, peer);
    }
    return HKT_OK;
}

enum hkt_status hkt__p2p_idle(struct hkt__p2p_link *link)
{
    struct hkt__p2p_dom *dom = link->dom;

    if (!link->is_device)
        return HKT_AGAIN;
    if (dom->cuda_rc != 0)
        return hkt__p2p_fail(dom, dom->cuda_rc, link->peer);
    if (atomic_load_explicit(&link->rx.word->broken, memory_order_relaxed) != 0)
        return hkt__fail_peer(HKT_ERR_PEER_LOST, link->peer, "cuda_p2p: the device of rank %d has failed", link->peer);
    if (++link->polls % ASK_AFTER != 0)
        return HKT_AGAIN;
    const enum hkt_status rc = ask(dom, link->peer);

    return rc < 0 ? rc : HKT_AGAIN;
}

/* ---- copies ---- */

/** Called by the stream's thread when the copy before it is done. The landing may be used again as soon as its last store is
 *  seen, so it is not looked at after the first. */
static void land(void *user)
{
    const struct hkt__p2p_landing landing = *(const struct hkt__p2p_landing *)user;

    hkt__p2p_pass_on(landing.slot);
    atomic_store_explicit(landing.word, landing.frame, memory_order_release); /* P1, P3: publishes what was copied */
    if (landing.own != NULL)
        atomic_store_explicit(landing.own, landing.frame, memory_order_release); /* P5 */
}

/** Copies in a stream's order, and tells. */
static enum hkt_status move(struct hkt__p2p_link *link, void *to, const void *from, size_t bytes, void *stream,
                            struct hkt__p2p_landing *landing)
{
    const struct hkt__cuda_module *cuda = link->dom->tp->cuda;
    int rc = cuda->stream_copy(to, from, bytes, stream);

    if (rc == 0)
        rc = cuda->stream_call(stream, land, landing);
    return rc == 0 ? HKT_OK : hkt__p2p_fail(link->dom, rc, link->peer);
}

static bool has_come(uint32_t counted, uint32_t frame)
{
    return (int32_t)(counted - frame) >= 0;
}

static bool is_on_device(const struct hkt__p2p_link *link, const void *data)
{
    int device = -1;

    return link->dom->tp->cuda->where_is(data, &device) == 0 && device >= 0;
}

/* ---- sending ---- */

/** Where the next frame's payload waits to be copied. */
static unsigned char *next_place(const struct hkt__p2p_tx *tx)
{
    return tx->memory + (tx->sent + 1) % tx->link->dom->tp->nslots * tx->chan.frame_bytes_max;
}

/** Was the payload before it in that place read? Where there is room below it was, but its landing may still be at work. */
static bool is_read(const struct hkt__p2p_tx *tx)
{
    const struct hkt__p2p_landing *last = &tx->landings[(tx->sent + 1) % tx->link->dom->tp->nslots];

    /* P6: the reads of the place are over; pairs with P5 */
    return last->word == NULL || has_come(atomic_load_explicit(&tx->landed, memory_order_acquire), last->frame);
}

enum hkt_status hkt__p2p_begin_slot(struct hkt__p2p_tx *tx, size_t bytes, struct hkt__room *out_room)
{
    struct hkt__room below;
    const enum hkt_status rc = tx->below->ops->tx_begin(tx->below, HKT__P2P_NOTE, &below);

    if (rc == HKT_AGAIN || (rc == HKT_OK && !is_read(tx)))
        return hkt__p2p_idle(tx->link);
    if (rc < 0)
        return rc;
    tx->is_slot = true;
    tx->room = below.data;
    *out_room = (struct hkt__room){next_place(tx), bytes};
    return HKT_OK;
}

static enum hkt_status tx_begin(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room)
{
    struct hkt__p2p_tx *tx = (struct hkt__p2p_tx *)chan;
    const size_t most = bytes < chan->frame_bytes_max ? bytes : chan->frame_bytes_max;
    struct hkt__room below;

    if (tx->link->is_device && most > HKT__P2P_SMALL)
        return hkt__p2p_begin_slot(tx, most, out_room);
    const enum hkt_status rc = tx->below->ops->tx_begin(tx->below, most + HKT__P2P_PREFIX, &below);

    if (rc != HKT_OK)
        return rc == HKT_AGAIN ? hkt__p2p_idle(tx->link) : rc;
    const size_t room = below.bytes - HKT__P2P_PREFIX;

    tx->is_slot = false;
    tx->room = below.data;
    *out_room = (struct hkt__room){tx->room + HKT__P2P_PREFIX, room < most ? room : most};
    return HKT_OK;
}

/** Publishes the frame of the channel below. */
static enum hkt_status publish(struct hkt__p2p_tx *tx, enum hkt__p2p_kind kind, size_t bytes, const struct hkt__stamp *stamp)
{
    const struct hkt__p2p_prefix prefix = {(uint32_t)kind, (uint32_t)bytes};

    memcpy(tx->room, &prefix, sizeof prefix);
    tx->sent++;
    return tx->below->ops->tx_end(tx->below, kind == HKT__P2P_SLOT ? HKT__P2P_NOTE : bytes + HKT__P2P_PREFIX, stamp);
}

enum hkt_status hkt__p2p_send_slot(struct hkt__p2p_tx *tx, const void *from, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__p2p_link *link = tx->link;
    const uint32_t frame = tx->sent + 1, slot = frame % link->dom->tp->nslots;
    unsigned char *to = tx->slots + slot * link->dom->tp->slot_bytes;

    hkt__p2p_take_over(to);
    tx->word->sizes[slot].frame = frame;
    tx->word->sizes[slot].bytes = (uint32_t)bytes;
    tx->landings[slot] = (struct hkt__p2p_landing){.word = &tx->word->landed, .own = &tx->landed, .slot = to, .frame = frame};
    const enum hkt_status rc = move(link, to, from, bytes, link->dom->group.stream, &tx->landings[slot]);

    return rc == HKT_OK ? publish(tx, HKT__P2P_SLOT, bytes, stamp) : rc;
}

enum hkt_status hkt__p2p_send_small(struct hkt__p2p_tx *tx, enum hkt__p2p_kind kind, const void *data, size_t bytes)
{
    struct hkt__room below;
    const enum hkt_status rc = tx->below->ops->tx_begin(tx->below, bytes + HKT__P2P_PREFIX, &below);

    if (rc != HKT_OK)
        return rc;
    tx->room = below.data;
    memcpy(tx->room + HKT__P2P_PREFIX, data, bytes);
    return publish(tx, kind, bytes, &(struct hkt__stamp){0});
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__p2p_tx *tx = (struct hkt__p2p_tx *)chan;

    if (tx->is_slot && bytes > HKT__RING_SMALL) /* less has room beside the prefix of a note */
        return hkt__p2p_send_slot(tx, next_place(tx), bytes, stamp);
    if (tx->is_slot && bytes > 0)
        memcpy(tx->room + HKT__P2P_PREFIX, next_place(tx), bytes);
    return publish(tx, HKT__P2P_INLINE, bytes, stamp);
}

/** Of memory of devices alone: the host's is copied to pinned memory, which takes less than to pin it. */
static enum hkt_status tx_lend(struct hkt__chan *chan, const void *data, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__p2p_tx *tx = (struct hkt__p2p_tx *)chan;

    if (!tx->is_slot || bytes <= HKT__RING_SMALL || !is_on_device(tx->link, data))
        return HKT_AGAIN;
    tx->lent = tx->sent + 1;
    tx->has_lent = true;
    return hkt__p2p_send_slot(tx, data, bytes, stamp);
}

bool hkt__p2p_is_lent(const struct hkt__p2p_tx *tx)
{
    /* P6: the reads of lent memory are over; pairs with P5 */
    return tx->has_lent && tx->link->dom->cuda_rc == 0 &&
           !has_come(atomic_load_explicit(&tx->landed, memory_order_acquire), tx->lent);
}

static bool tx_is_lent(struct hkt__chan *chan)
{
    struct hkt__p2p_tx *tx = (struct hkt__p2p_tx *)chan;

    if (!hkt__p2p_is_lent(tx))
        tx->has_lent = false;
    return tx->has_lent && hkt__p2p_idle(tx->link) == HKT_AGAIN;
}

/* ---- receiving ---- */

static enum hkt_status fail_corrupt(const struct hkt__p2p_rx *rx)
{
    return hkt__fail_peer(HKT_ERR_CORRUPT, rx->link->peer, "cuda_p2p: a frame from rank %d that cannot be, after frame %u",
                          rx->link->peer, rx->taken);
}

enum hkt_status hkt__p2p_peek(struct hkt__p2p_rx *rx, struct hkt__p2p_prefix *out_prefix, struct hkt__view *out_view)
{
    struct hkt__view below;
    const enum hkt_status rc = rx->below->ops->rx_begin(rx->below, &below);

    if (rc != HKT_OK)
        return rc;
    if (below.bytes < HKT__P2P_PREFIX)
        return fail_corrupt(rx);
    memcpy(out_prefix, below.data, sizeof *out_prefix);
    if (out_prefix->kind == HKT__P2P_SLOT
            ? !rx->link->is_device || out_prefix->bytes > rx->chan.frame_bytes_max
            : below.bytes != out_prefix->bytes + HKT__P2P_PREFIX)
        return fail_corrupt(rx);
    *out_view = (struct hkt__view){(const unsigned char *)below.data + HKT__P2P_PREFIX, out_prefix->bytes, below.stamp};
    return HKT_OK;
}

/** Begins to bring a slot's payload to `to`. */
static enum hkt_status start(struct hkt__p2p_rx *rx, uint32_t frame, size_t bytes, void *to)
{
    struct hkt__p2p *tp = rx->link->dom->tp;
    const uint32_t slot = frame % tp->nslots;
    unsigned char *from = rx->slots + slot * tp->slot_bytes;

    hkt__p2p_take_over(from);
    rx->started[slot] = frame;
    rx->places[slot] = to != NULL ? to : rx->memory + slot * tp->slot_bytes;
    rx->landings[slot] = (struct hkt__p2p_landing){.word = &rx->fetched, .slot = from, .frame = frame};
    return move(rx->link, rx->places[slot], from, bytes, rx->link->dom->rx_stream, &rx->landings[slot]);
}

/** The frames after the oldest that have landed: their copies overlap with what the caller does with that. */
static enum hkt_status fetch_ahead(struct hkt__p2p_rx *rx, uint32_t landed)
{
    const uint32_t nslots = rx->link->dom->tp->nslots;
    enum hkt_status rc = HKT_OK;

    for (uint32_t ahead = 2; ahead <= nslots && rc == HKT_OK; ahead++) {
        const uint32_t frame = rx->taken + ahead, slot = frame % nslots;

        if (!has_come(landed, frame))
            break;
        if (rx->word->sizes[slot].frame == frame && rx->started[slot] != frame)
            rc = start(rx, frame, rx->word->sizes[slot].bytes, NULL);
    }
    return rc;
}

enum hkt_status hkt__p2p_fetch(struct hkt__p2p_rx *rx, size_t bytes, void *to, const void **out_data)
{
    const uint32_t frame = rx->taken + 1, slot = frame % rx->link->dom->tp->nslots;
    /* P2: the slot is filled, and its size is known; pairs with P1 */
    const uint32_t landed = atomic_load_explicit(&rx->word->landed, memory_order_acquire);
    enum hkt_status rc = HKT_OK;

    rx->is_waiting = true;
    if (rx->started[slot] != frame && has_come(landed, frame))
        rc = start(rx, frame, bytes, to);
    if (rc == HKT_OK && rx->started[slot] == frame && !rx->is_direct)
        rc = fetch_ahead(rx, landed);
    if (rc < 0)
        return rc;
    /* P4: the payload is where it was to go; pairs with P3 */
    if (rx->started[slot] != frame || !has_come(atomic_load_explicit(&rx->fetched, memory_order_acquire), frame))
        return HKT_AGAIN;
    rx->is_waiting = false;
    *out_data = rx->places[slot];
    return HKT_OK;
}

void hkt__p2p_release(struct hkt__p2p_rx *rx)
{
    rx->taken++;
    rx->is_waiting = false;
    rx->below->ops->rx_end(rx->below);
}

static enum hkt_status rx_into(struct hkt__chan *chan, void *to, size_t room, struct hkt__view *out_view)
{
    struct hkt__p2p_rx *rx = (struct hkt__p2p_rx *)chan;
    struct hkt__p2p_prefix prefix;
    struct hkt__view view;
    enum hkt_status rc = hkt__p2p_peek(rx, &prefix, &view);

    if (rc == HKT_OK && prefix.kind == HKT__P2P_SLOT) {
        const bool is_begun = rx->started[(rx->taken + 1) % rx->link->dom->tp->nslots] == rx->taken + 1;

        if (!is_begun)
            rx->is_direct = to != NULL && prefix.bytes <= room && is_on_device(rx->link, to);
        rc = hkt__p2p_fetch(rx, prefix.bytes, rx->is_direct ? to : NULL, &view.data);
    } else if (rc == HKT_OK && prefix.kind != HKT__P2P_INLINE) {
        rc = fail_corrupt(rx);
    }
    if (rc == HKT_OK)
        *out_view = view;
    return rc == HKT_AGAIN ? hkt__p2p_idle(rx->link) : rc;
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    return rx_into(chan, NULL, 0, out_view);
}

static void rx_end(struct hkt__chan *chan)
{
    hkt__p2p_release((struct hkt__p2p_rx *)chan);
}

const struct hkt__chan_ops hkt__p2p_chan_ops = {.tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end,
                                                .rx_into = rx_into, .tx_lend = tx_lend, .tx_is_lent = tx_is_lent};
