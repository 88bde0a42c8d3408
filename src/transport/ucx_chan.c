/* ucx: frames over a link. The sender's payload lies in a slot of the link until UCX has sent it; the receiver's is used
 * where UCX put it, or is fetched to where it is wanted. */
#include "transport/ucx.h"

#include <assert.h>
#include <string.h>

#define CREDIT_AFTER (HKT__UCX_SLOTS / 2) /* frames used before the peer is told, if no frame of ours tells it */

/* ---- failures ---- */

static enum hkt_status fail_lost(const struct hkt__ucx_link *link, const char *when)
{
    const struct hkt__ucx_peer *peer = link->peer;

    return hkt__fail_peer(HKT_ERR_PEER_LOST, peer->rank, "ucx: rank %d is gone: %s %s", peer->rank,
                          peer->why != UCS_OK ? ucs_status_string(peer->why) : "it left the communicator", when);
}

static enum hkt_status fail_corrupt(const struct hkt__ucx_link *link)
{
    return hkt__fail_peer(HKT_ERR_CORRUPT, link->peer->rank, "ucx: %s from rank %d, after frame %u", link->corrupt,
                          link->peer->rank, link->rx.seq - 1);
}

/* ---- sending; under the lock unless said otherwise ---- */

void hkt__ucx_give_credit(struct hkt__ucx_link *link)
{
    if (link->rx.seq - 1 - link->rx.told >= CREDIT_AFTER)
        hkt__ucx_tell(&link->credit, link->peer, HKT__UCX_CREDIT);
}

static void frame_sent(void *request, ucs_status_t status, void *user)
{
    struct hkt__ucx_slot *slot = user;
    struct hkt__ucx_peer *peer = slot->link->peer;

    slot->is_busy = false;
    hkt__ucx_landed(peer);
    if (status != UCS_OK && peer->why == UCS_OK)
        peer->why = status;
    ucp_request_free(request);
}

/** May the next frame leave? The slot is free, and the peer has a place for it. */
static bool has_room(const struct hkt__ucx_tx *tx)
{
    return !tx->slots[tx->seq % HKT__UCX_SLOTS].is_busy && tx->seq - 1 - tx->consumed < HKT__UCX_SLOTS;
}

static enum hkt_status begin(struct hkt__ucx_tx *tx)
{
    struct hkt__ucx_link *link = tx->link;

    link->dom->calls++;
    if (!has_room(tx))
        hkt__ucx_progress(link->dom);
    if (link->peer->why != UCS_OK || (link->peer->is_leaving && !has_room(tx)))
        return fail_lost(link, "when sending");
    return has_room(tx) ? HKT_OK : HKT_AGAIN;
}

static enum hkt_status tx_begin(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room)
{
    struct hkt__ucx_tx *tx = (struct hkt__ucx_tx *)chan;

    pthread_mutex_lock(&tx->link->dom->lock);
    const enum hkt_status rc = begin(tx);

    pthread_mutex_unlock(&tx->link->dom->lock);
    if (rc != HKT_OK)
        return rc;
    out_room->data = tx->memory + tx->seq % HKT__UCX_SLOTS * HKT__UCX_FRAME_BYTES;
    out_room->bytes = bytes < HKT__UCX_FRAME_BYTES ? bytes : HKT__UCX_FRAME_BYTES;
    return HKT_OK;
}

static enum hkt_status send_slot(struct hkt__ucx_tx *tx, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__ucx_link *link = tx->link;
    struct hkt__ucx_slot *slot = &tx->slots[tx->seq % HKT__UCX_SLOTS];
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = frame_sent, .user_data = slot};

    assert(!slot->is_busy);
    slot->wire = (struct hkt__ucx_wire){
        .nonce = link->dom->members[link->peer->rank].nonce, .consumed = link->rx.seq - 1, .from = link->dom->rank,
        .lane = (uint16_t)link->lane, .kind = HKT__UCX_FRAME,
        .frame = {.seq = tx->seq, .bytes = (uint32_t)bytes, .stamp = *stamp}};
    link->rx.told = slot->wire.consumed;
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(link->peer->ep, HKT__UCX_AM_ID, &slot->wire, sizeof slot->wire,
                        tx->memory + tx->seq % HKT__UCX_SLOTS * HKT__UCX_FRAME_BYTES, bytes, &param);

    tx->seq++;
    if (UCS_PTR_IS_ERR(request)) {
        link->peer->why = UCS_PTR_STATUS(request);
        return fail_lost(link, "when sending");
    }
    if (request != NULL) {
        slot->is_busy = true;
        hkt__ucx_took_off(link->peer);
    }
    return HKT_OK;
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__ucx_tx *tx = (struct hkt__ucx_tx *)chan;

    pthread_mutex_lock(&tx->link->dom->lock);
    const enum hkt_status rc = tx->link->peer->why != UCS_OK ? fail_lost(tx->link, "when sending")
                                                             : send_slot(tx, bytes, stamp);

    pthread_mutex_unlock(&tx->link->dom->lock);
    return rc;
}

/* ---- receiving; under the lock unless said otherwise ---- */

static void fetched(void *request, ucs_status_t status, size_t bytes, void *user)
{
    struct hkt__ucx_frame *frame = user;

    (void)bytes;
    hkt__ucx_landed(frame->link->peer);
    if (status == UCS_OK)
        frame->state = HKT__UCX_READY;
    else if (frame->link->peer->why == UCS_OK)
        frame->link->peer->why = status;
    ucp_request_free(request);
}

void hkt__ucx_fetch(struct hkt__ucx_frame *frame, void *to)
{
    struct hkt__ucx_dom *dom = frame->link->dom;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.recv_am = fetched, .user_data = frame};
    void *offer = frame->held;

    frame->held = NULL;
    frame->state = HKT__UCX_FETCHING;
    frame->view.data = to;
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(dom->worker, offer, to, frame->view.bytes, &param);

    if (UCS_PTR_IS_ERR(request)) {
        frame->link->peer->why = UCS_PTR_STATUS(request);
    } else if (request == NULL) {
        frame->state = HKT__UCX_READY;
    } else {
        hkt__ucx_took_off(frame->link->peer);
    }
}

static unsigned char *own_place(const struct hkt__ucx_rx *rx, const struct hkt__ucx_frame *frame)
{
    return rx->memory + (size_t)(frame - rx->frames) * HKT__UCX_FRAME_BYTES;
}

/** The oldest frame, once it is there. to: where to fetch it if it has yet to be and fits; NULL: where there is room. */
static enum hkt_status oldest(struct hkt__ucx_rx *rx, void *to, size_t room, struct hkt__view *out_view)
{
    struct hkt__ucx_link *link = rx->link;
    struct hkt__ucx_frame *frame = &rx->frames[rx->seq % HKT__UCX_SLOTS];

    link->dom->calls++;
    if (frame->state != HKT__UCX_READY)
        hkt__ucx_progress(link->dom);
    if (frame->state == HKT__UCX_OFFERED)
        hkt__ucx_fetch(frame, to != NULL && frame->view.bytes <= room ? to : own_place(rx, frame));
    if (frame->state == HKT__UCX_READY) {
        if (frame->held != NULL && (uintptr_t)frame->view.data % sizeof(uint64_t) != 0) { /* UCX's promise, checked */
            memcpy(own_place(rx, frame), frame->view.data, frame->view.bytes);
            frame->view.data = own_place(rx, frame);
        }
        *out_view = frame->view;
        return HKT_OK;
    }
    if (link->corrupt != NULL)
        return fail_corrupt(link);
    if (link->peer->why != UCS_OK || (link->peer->is_leaving && frame->state == HKT__UCX_EMPTY))
        return fail_lost(link, "while a frame was awaited");
    return HKT_AGAIN;
}

static enum hkt_status rx_into(struct hkt__chan *chan, void *to, size_t room, struct hkt__view *out_view)
{
    struct hkt__ucx_rx *rx = (struct hkt__ucx_rx *)chan;

    pthread_mutex_lock(&rx->link->dom->lock);
    const enum hkt_status rc = oldest(rx, to, room, out_view);

    pthread_mutex_unlock(&rx->link->dom->lock);
    return rc;
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    return rx_into(chan, NULL, 0, out_view);
}

static void rx_end(struct hkt__chan *chan)
{
    struct hkt__ucx_rx *rx = (struct hkt__ucx_rx *)chan;
    struct hkt__ucx_dom *dom = rx->link->dom;
    struct hkt__ucx_frame *frame = &rx->frames[rx->seq % HKT__UCX_SLOTS];

    pthread_mutex_lock(&dom->lock);
    assert(frame->state == HKT__UCX_READY);
    if (frame->held != NULL)
        ucp_am_data_release(dom->worker, frame->held);
    frame->held = NULL;
    frame->state = HKT__UCX_EMPTY;
    rx->seq++;
    /* An offer that has become the oldest waits to be asked for from now on. */
    if (rx->frames[rx->seq % HKT__UCX_SLOTS].state == HKT__UCX_OFFERED)
        dom->fetchable--;
    hkt__ucx_give_credit(rx->link);
    pthread_mutex_unlock(&dom->lock);
}

const struct hkt__chan_ops hkt__ucx_chan_ops = {.tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end, .rx_into = rx_into};
