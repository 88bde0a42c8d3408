/* Frames over the paths of a link. Frame n goes from the sender's slot n mod slots to the receiver's; the numbers in flight
 * are few, so 15 bits of them in an immediate name one without doubt. Credit rides on frames: where both ends send, as in
 * most collectives and in every exchange of small messages, none needs a packet of its own.
 *
 * A receiver's slot is free when its frame was told as consumed, and so is the sender's: an adapter that has not seen the
 * acknowledgement may read the slot again, but then the other one drops what it has had. What is lent waits for the
 * acknowledgement, since its owner may take it away from the adapter.
 *
 * A frame that a failed path had under way is written again by another one, into the same slot, with the same bytes: if it had
 * arrived after all, nothing changes, and its slot cannot hold a later frame, since the sender's is free only when this second
 * write is acknowledged. What the failed path still had on the network is at least as old as the time that made it fail, and both
 * ends close it when they know. */
#include <assert.h>
#include <string.h>

#include "transport/verbs.h"

#define LEND_LEAST 32768 /* bytes: below, a copy costs less than waiting at the end for what was lent */
#define LEND_LEAST_DEVICE 1 /* but none from a device, which takes more than ten microseconds, whatever the size */
#define LOOK_AT_WIRE 64 /* fruitless looks for a frame or credit between looks at what the peer says over tcp: a system call */

void hkt__verbs_chan_init(struct hkt__verbs_link *link)
{
    const struct hkt__chan chan = {.ops = &hkt__verbs_chan_ops, .frame_bytes_max = link->slot_bytes, .peer = link->peer};

    link->tx = (struct hkt__verbs_tx){.chan = chan, .link = link, .seq = 1};
    link->rx = (struct hkt__verbs_rx){.chan = chan, .link = link, .seq = 1};
}

static uint32_t slot_of(const struct hkt__verbs_link *link, uint32_t seq)
{
    return seq % link->slots; /* not a power of two: the counts are the user's; at most 64, so cheap enough */
}

/* ---- sending ---- */

/** The path that is idle first with this frame: what it has under way, over its speed. NULL: none is up. */
static struct hkt__verbs_path *choose_path(struct hkt__verbs_link *link, uint64_t bytes)
{
    const struct hkt__verbs *verbs = link->dom->verbs;
    struct hkt__verbs_path *best = NULL;
    double best_time = 0;

    if (link->npaths == 1)
        return link->up > 0 ? &link->paths[0] : NULL;
    for (int i = 0; i < link->npaths; i++) {
        struct hkt__verbs_path *path = &link->paths[i];
        const struct hkt__verbs_rail *rail = &verbs->rails[path->rail];

        if (path->state != HKT__VERBS_PATH_UP)
            continue;
        double time = (double)(path->flying + bytes) / (double)rail->port.mbits;

        if (atomic_load_explicit(&rail->is_down, memory_order_relaxed))
            time += 1e9; /* only if there is no other */
        if (best == NULL || time < best_time) {
            best = path;
            best_time = time;
        }
    }
    return best;
}

/** Post a frame that lies in its slot. A path that refuses it fails, and hands it to the others itself. */
static void post_frame(struct hkt__verbs_link *link, uint32_t slot)
{
    struct hkt__verbs_flight *flight = &link->tx.flights[slot];
    struct hkt__verbs_path *path = choose_path(link, flight->bytes);
    const uint32_t consumed = link->rx.seq - 1;

    if (path == NULL)
        return; /* the link has failed */
    const uint32_t in_slot = flight->lent != NULL ? (uint32_t)sizeof(struct hkt__frame_header) : flight->bytes;
    const struct hkt__verbs_write write = {
        .from = {{hkt__verbs_send_slot(link, slot) + HKT__VERBS_HEADER_AT, in_slot, link->send_mr[path->rail]->lkey},
                 {flight->lent, flight->bytes - in_slot, flight->lent_keys[path->rail]}},
        .to = link->peer_ring + slot * hkt__verbs_stride(link) + HKT__VERBS_HEADER_AT,
        .imm = hkt__verbs_imm_make(HKT__VERBS_IMM_FRAME, consumed, flight->seq),
        .kind = HKT__VERBS_FRAME, .wants_ack = flight->wants_ack,
    };

    flight->path = path->index;
    flight->order = path->posted + 1;
    if (!hkt__verbs_path_post(path, &write))
        return; /* what it had, this frame too, has gone to the others */
    link->rx.told = consumed;
    link->rx.is_told_late = false;
}

static void land(struct hkt__verbs_link *link, struct hkt__verbs_flight *flight)
{
    link->paths[flight->path].flying -= flight->bytes;
    flight->is_busy = false;
    link->tx.lent -= flight->lent != NULL;
}

void hkt__verbs_chan_acked(struct hkt__verbs_path *path)
{
    struct hkt__verbs_link *link = path->link;

    for (uint32_t slot = 0; slot < link->slots; slot++) {
        struct hkt__verbs_flight *flight = &link->tx.flights[slot];

        if (flight->is_busy && flight->path == path->index && (int32_t)(flight->order - path->done) <= 0)
            land(link, flight);
    }
}

/** The peer has consumed this many frames more. */
static void take_credit(struct hkt__verbs_link *link, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct hkt__verbs_flight *flight = &link->tx.flights[slot_of(link, ++link->tx.consumed)];

        if (flight->is_busy && flight->seq == link->tx.consumed && !flight->wants_ack)
            land(link, flight);
    }
}

void hkt__verbs_chan_resend(struct hkt__verbs_path *path)
{
    struct hkt__verbs_link *link = path->link;

    for (uint32_t slot = 0; slot < link->slots; slot++)
        if (link->tx.flights[slot].is_busy && link->tx.flights[slot].path == path->index) {
            link->tx.flights[slot].wants_ack = true;
            post_frame(link, slot);
        }
    link->rx.is_told_late = true;
    hkt__verbs_chan_retell(link);
}

bool hkt__verbs_chan_is_flying(const struct hkt__verbs_link *link)
{
    for (uint32_t slot = 0; slot < link->slots; slot++)
        if (link->tx.flights[slot].is_busy)
            return true;
    return false;
}

static bool has_room(const struct hkt__verbs_link *link)
{
    bool ok = link->tx.seq - 1 - link->tx.consumed < link->slots && !link->tx.flights[slot_of(link, link->tx.seq)].is_busy;

    for (int i = 0; i < link->npaths && ok; i++)
        ok = link->paths[i].state != HKT__VERBS_PATH_UP || hkt__verbs_path_has_room(&link->paths[i], HKT__VERBS_FRAME);
    return ok;
}

static enum hkt_status tx_begin(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room)
{
    struct hkt__verbs_link *link = ((struct hkt__verbs_tx *)chan)->link;

    if (!has_room(link))
        (void)hkt__verbs_progress(link->dom);
    if (link->failed != HKT_OK)
        return hkt__verbs_link_failed(link);
    if (!has_room(link)) {
        if (++link->rx.vain % LOOK_AT_WIRE == 0 && hkt__verbs_link_listen(link))
            return hkt__verbs_link_failed(link);
        return HKT_AGAIN;
    }
    out_room->data = hkt__verbs_send_slot(link, slot_of(link, link->tx.seq)) + HKT__VERBS_HEAD;
    out_room->bytes = bytes < chan->frame_bytes_max ? bytes : chan->frame_bytes_max;
    return HKT_OK;
}

/** Send the next frame, of `bytes` bytes of payload, as `flight` has it. */
static enum hkt_status take_off(struct hkt__verbs_link *link, struct hkt__verbs_flight flight, size_t bytes,
                                const struct hkt__stamp *stamp)
{
    const uint32_t seq = link->tx.seq, slot = slot_of(link, seq);
    const struct hkt__frame_header header = {.seq = seq, .bytes = (uint32_t)bytes, .stamp = *stamp};

    assert(has_room(link) && bytes <= link->slot_bytes);
    memcpy(hkt__verbs_send_slot(link, slot) + HKT__VERBS_HEADER_AT, &header, sizeof header);
    flight.seq = seq;
    flight.bytes = (uint32_t)(sizeof header + bytes);
    flight.is_busy = true;
    link->tx.flights[slot] = flight;
    link->tx.seq++;
    if (link->failed == HKT_OK)
        post_frame(link, slot);
    return link->failed == HKT_OK ? HKT_OK : hkt__verbs_link_failed(link);
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    return take_off(((struct hkt__verbs_tx *)chan)->link, (struct hkt__verbs_flight){.lent = NULL}, bytes, stamp);
}

static enum hkt_status tx_lend(struct hkt__chan *chan, const void *data, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__verbs_link *link = ((struct hkt__verbs_tx *)chan)->link;
    struct hkt__verbs_flight flight = {.lent = data, .wants_ack = true};
    bool is_device = false;

    if (bytes < LEND_LEAST_DEVICE || !hkt__verbs_mem_find(link->dom, data, bytes, flight.lent_keys, &is_device) ||
        (!is_device && bytes < LEND_LEAST))
        return HKT_AGAIN;
    link->tx.lent++;
    link->tx.lent_frames++;
    return take_off(link, flight, bytes, stamp);
}

static bool tx_is_lent(struct hkt__chan *chan)
{
    struct hkt__verbs_link *link = ((struct hkt__verbs_tx *)chan)->link;

    if (link->tx.lent > 0 && link->failed == HKT_OK && !hkt__verbs_progress(link->dom) && ++link->rx.vain % LOOK_AT_WIRE == 0)
        (void)hkt__verbs_link_listen(link);
    return link->tx.lent > 0 && link->failed == HKT_OK;
}

/* ---- receiving ---- */

/** Tell the peer what is consumed. */
static void tell_by(struct hkt__verbs_path *path, bool wants_ack)
{
    struct hkt__verbs_link *link = path->link;
    const uint32_t consumed = link->rx.seq - 1;
    const struct hkt__verbs_write write = {
        .to = link->peer_ring, .imm = hkt__verbs_imm_make(HKT__VERBS_IMM_CREDIT, consumed, 0),
        .kind = HKT__VERBS_CONTROL, .wants_ack = wants_ack,
    };

    link->rx.is_told_late = true;
    if (!hkt__verbs_path_has_room(path, HKT__VERBS_CONTROL) || !hkt__verbs_path_post(path, &write))
        return; /* a completion, or the path's failure, tells by another one */
    link->rx.told = consumed;
    link->rx.is_told_late = false;
}

static void tell(struct hkt__verbs_link *link)
{
    struct hkt__verbs_path *path = choose_path(link, 0);

    link->rx.is_told_late = true;
    if (path != NULL)
        tell_by(path, false);
}

void hkt__verbs_chan_ask(struct hkt__verbs_link *link)
{
    for (int i = 0; i < link->npaths; i++)
        if (link->paths[i].state == HKT__VERBS_PATH_UP && link->paths[i].posted != link->paths[i].asked)
            tell_by(&link->paths[i], true);
}

void hkt__verbs_chan_retell(struct hkt__verbs_link *link)
{
    if (link->rx.is_told_late && link->failed == HKT_OK)
        tell(link);
}

void hkt__verbs_chan_arrived(struct hkt__verbs_link *link, uint32_t imm)
{
    const enum hkt__verbs_imm kind = (enum hkt__verbs_imm)(imm >> 2 * HKT__VERBS_IMM_BITS);
    const uint32_t ahead = (imm - link->rx.seq) & HKT__VERBS_IMM_MASK;
    const uint32_t consumed = ((imm >> HKT__VERBS_IMM_BITS) - link->tx.consumed) & HKT__VERBS_IMM_MASK;

    if (kind == HKT__VERBS_IMM_PROBE)
        return;
    if (kind == HKT__VERBS_IMM_FRAME && ahead < link->slots) /* else it came before, by a path that failed afterwards */
        link->rx.arrived[slot_of(link, link->rx.seq + ahead)] = link->rx.seq + ahead;
    if (consumed <= link->slots) /* else it was overtaken */
        take_credit(link, consumed);
}

static enum hkt_status fail_header(const struct hkt__verbs_link *link, const struct hkt__frame_header *header)
{
    return hkt__fail_peer(HKT_ERR_CORRUPT, link->peer, "verbs: bad frame from rank %d: number %u where %u was due, %u bytes "
                          "where at most %u may be", link->peer, header->seq, link->rx.seq, header->bytes, link->slot_bytes);
}

static bool is_here(const struct hkt__verbs_link *link)
{
    return link->rx.arrived[slot_of(link, link->rx.seq)] == link->rx.seq;
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    struct hkt__verbs_link *link = ((struct hkt__verbs_rx *)chan)->link;
    struct hkt__frame_header header;

    if (!is_here(link))
        (void)hkt__verbs_progress(link->dom);
    if (!is_here(link) && link->failed == HKT_OK && ++link->rx.vain % LOOK_AT_WIRE == 0 && hkt__verbs_link_listen(link))
        (void)hkt__verbs_progress(link->dom); /* what came before the end was complete by then */
    if (!is_here(link))
        return link->failed != HKT_OK ? hkt__verbs_link_failed(link) : HKT_AGAIN;
    const unsigned char *slot = hkt__verbs_ring_slot(link, slot_of(link, link->rx.seq));

    memcpy(&header, slot + HKT__VERBS_HEADER_AT, sizeof header);
    if (header.seq != link->rx.seq || header.bytes > link->slot_bytes)
        return fail_header(link, &header);
    *out_view = (struct hkt__view){slot + HKT__VERBS_HEAD, header.bytes, header.stamp};
    return HKT_OK;
}

static void rx_end(struct hkt__chan *chan)
{
    struct hkt__verbs_link *link = ((struct hkt__verbs_rx *)chan)->link;

    link->rx.seq++;
    link->rx.vain = 0;
    /* Half of the slots at a time: the peer always has others left. */
    if (link->failed == HKT_OK && link->rx.seq - 1 - link->rx.told >= (link->slots + 1) / 2)
        tell(link);
}

const struct hkt__chan_ops hkt__verbs_chan_ops = {.tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end,
                                                  .tx_lend = tx_lend, .tx_is_lent = tx_is_lent};
