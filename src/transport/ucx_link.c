/* ucx: endpoints and links. A link is open when each end has said HELLO to the other; so no frame arrives before there is a
 * place for it. Who sends must know the nonce of the receiving side, which the job's control plane gave to its members
 * alone: anything else is dropped. */
#include "transport/ucx.h"

#include <assert.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/log.h"
#include "core/mem.h"

/* ---- sending notes ---- */

static void note_sent(void *request, ucs_status_t status, void *user)
{
    struct hkt__ucx_note *note = user;

    note->is_busy = false;
    hkt__ucx_landed(note->peer);
    ucp_request_free(request);
    if (note->link != NULL && status == UCS_OK)
        hkt__ucx_give_credit(note->link);
}

void hkt__ucx_tell(struct hkt__ucx_note *note, struct hkt__ucx_peer *peer, enum hkt__ucx_kind kind)
{
    struct hkt__ucx_dom *dom = peer->dom;
    struct hkt__ucx_link *link = note->link;

    if (note->is_busy || peer->why != UCS_OK)
        return;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER, .cb.send = note_sent, .user_data = note};

    note->peer = peer;
    note->wire = (struct hkt__ucx_wire){.nonce = dom->members[peer->rank].nonce, .from = dom->rank, .kind = (uint16_t)kind};
    if (link != NULL) {
        note->wire.lane = (uint16_t)link->lane;
        note->wire.consumed = link->rx.told = link->rx.seq - 1;
    }
    const ucs_status_ptr_t request = ucp_am_send_nbx(peer->ep, HKT__UCX_AM_ID, &note->wire, sizeof note->wire, NULL, 0, &param);

    if (UCS_PTR_IS_ERR(request)) {
        peer->why = peer->why == UCS_OK ? UCS_PTR_STATUS(request) : peer->why;
        return;
    }
    if (request != NULL) {
        note->is_busy = true;
        hkt__ucx_took_off(peer);
    }
}

/* ---- endpoints ---- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct hkt__ucx_peer *peer = arg;

    (void)ep;
    if (peer->why == UCS_OK)
        peer->why = status;
}

/** An endpoint to a peer, made at first use, whoever of the two asks first. */
static enum hkt_status need_endpoint(struct hkt__ucx_peer *peer)
{
    struct hkt__ucx_dom *dom = peer->dom;
    const struct hkt__ucx_blob *own = &dom->ucx->own, *theirs = &dom->ucx->peers[dom->job_ranks[peer->rank]];
    const bool is_local = own->boot_id[0] != '\0' && memcmp(own->boot_id, theirs->boot_id, sizeof own->boot_id) == 0;
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)dom->members[peer->rank].address,
        .err_mode = is_local ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = peer}};

    if (peer->ep != NULL)
        return HKT_OK;
    if (is_local && own->pid_space != 0 && own->pid_space == theirs->pid_space && own->pid != theirs->pid)
        peer->pidfd = (int)syscall(SYS_pidfd_open, theirs->pid, 0); /* failing: the control plane alone tells */
    const ucs_status_t rc = ucp_ep_create(dom->worker, &params, &peer->ep);

    if (rc == UCS_OK)
        return HKT_OK;
    peer->ep = NULL;
    return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer->rank, "ucx: UCX finds no way to rank %d: %s; compare `ucx_info -d` on "
                          "both hosts, or allow tcp (HOCKET_TRANSPORT)", peer->rank, ucs_status_string(rc));
}

/* ---- links ---- */

static void chan_init(struct hkt__chan *chan, int peer)
{
    chan->ops = &hkt__ucx_chan_ops;
    chan->frame_bytes_max = HKT__UCX_FRAME_BYTES;
    chan->peer = peer;
}

static enum hkt_status link_create(struct hkt__ucx_peer *peer, int lane, struct hkt__ucx_link **out_link)
{
    struct hkt__ucx_link *link = hkt__calloc(1, sizeof *link);

    if (link != NULL) {
        link->tx.memory = hkt__pages_alloc((size_t)HKT__UCX_SLOTS * HKT__UCX_FRAME_BYTES);
        link->rx.memory = hkt__pages_alloc((size_t)HKT__UCX_SLOTS * HKT__UCX_FRAME_BYTES);
    }
    if (link == NULL || link->tx.memory == NULL || link->rx.memory == NULL) {
        hkt__ucx_link_destroy(link);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a channel to rank %d", peer->rank);
    }
    link->dom = peer->dom;
    link->peer = peer;
    link->lane = lane;
    link->hello.link = link->credit.link = link;
    chan_init(&link->tx.chan, peer->rank);
    chan_init(&link->rx.chan, peer->rank);
    link->tx.link = link->rx.link = link;
    link->tx.seq = link->rx.seq = 1;
    for (int i = 0; i < HKT__UCX_SLOTS; i++)
        link->tx.slots[i].link = link->rx.frames[i].link = link;
    *out_link = link;
    return HKT_OK;
}

void hkt__ucx_link_destroy(struct hkt__ucx_link *link)
{
    if (link == NULL)
        return;
    hkt__pages_free(link->tx.memory, (size_t)HKT__UCX_SLOTS * HKT__UCX_FRAME_BYTES);
    hkt__pages_free(link->rx.memory, (size_t)HKT__UCX_SLOTS * HKT__UCX_FRAME_BYTES);
    hkt__free(link);
}

static enum hkt_status open_link(struct hkt__ucx_dom *dom, int rank, int lane, struct hkt__ucx_link **out_link)
{
    struct hkt__ucx_link **link = &dom->links[(size_t)rank * (size_t)dom->lanes + (size_t)lane];
    struct hkt__ucx_peer *peer = &dom->peers[rank];

    if (dom->members[rank].nonce == 0)
        return hkt__fail_peer(HKT_ERR_UNSUPPORTED, rank, "ucx does not serve rank %d", rank);
    if (*link == NULL) {
        enum hkt_status rc = need_endpoint(peer);

        if (rc == HKT_OK)
            rc = link_create(peer, lane, link);
        if (rc < 0)
            return rc;
        hkt__ucx_tell(&(*link)->hello, peer, HKT__UCX_HELLO);
    }
    hkt__ucx_progress(dom);
    *out_link = *link;
    if (dom->greeted[(size_t)rank * (size_t)dom->lanes + (size_t)lane])
        return HKT_OK;
    if (peer->why != UCS_OK || peer->is_leaving)
        return hkt__fail_peer(HKT_ERR_PEER_LOST, rank, "ucx: rank %d is gone: %s", rank,
                              peer->why != UCS_OK ? ucs_status_string(peer->why) : "it left the communicator");
    return HKT_IN_PROGRESS;
}

enum hkt_status hkt__ucx_chan_open(struct hkt__tp_dom *tp_dom, int peer, int lane, struct hkt__chan **out_tx,
                                   struct hkt__chan **out_rx)
{
    struct hkt__ucx_dom *dom = (struct hkt__ucx_dom *)tp_dom;
    struct hkt__ucx_link *link = NULL;

    assert(peer >= 0 && peer < dom->nranks && peer != dom->rank && lane >= 0 && lane < dom->lanes);
    pthread_mutex_lock(&dom->lock);
    const enum hkt_status rc = open_link(dom, peer, lane, &link);

    pthread_mutex_unlock(&dom->lock);
    if (rc == HKT_OK) {
        *out_tx = &link->tx.chan;
        *out_rx = &link->rx.chan;
    }
    return rc;
}

/* ---- what arrives ---- */

/** Frame n of a link. Returns whether UCX must keep the data for us. */
static bool take_frame(struct hkt__ucx_link *link, const struct hkt__ucx_wire *wire, void *data, size_t bytes, bool is_offer)
{
    const uint32_t ahead = wire->frame.seq - link->rx.seq;
    struct hkt__ucx_frame *frame = &link->rx.frames[wire->frame.seq % HKT__UCX_SLOTS];

    if (ahead >= HKT__UCX_SLOTS || frame->state != HKT__UCX_EMPTY)
        link->corrupt = "a frame that was not due";
    else if (bytes != wire->frame.bytes || bytes > HKT__UCX_FRAME_BYTES)
        link->corrupt = "a frame of the wrong size";
    if (link->corrupt != NULL)
        return false;
    frame->view = (struct hkt__view){.data = data, .bytes = bytes, .stamp = wire->frame.stamp};
    frame->held = is_offer || bytes > 0 ? data : NULL;
    frame->state = is_offer ? HKT__UCX_OFFERED : HKT__UCX_READY;
    link->dom->fetchable += is_offer && ahead > 0;
    return frame->held != NULL;
}

static void take_note(struct hkt__ucx_dom *dom, const struct hkt__ucx_wire *wire)
{
    struct hkt__ucx_peer *peer = &dom->peers[wire->from];

    if (wire->kind == HKT__UCX_HELLO)
        dom->greeted[(size_t)wire->from * (size_t)dom->lanes + wire->lane] = true;
    else if (wire->kind == HKT__UCX_BYE_HEARD)
        peer->has_heard = true;
    if (wire->kind != HKT__UCX_BYE)
        return;
    peer->is_leaving = true;
    if (peer->ep != NULL)
        hkt__ucx_tell(&peer->bye_heard, peer, HKT__UCX_BYE_HEARD);
}

ucs_status_t hkt__ucx_arrived(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const ucp_am_recv_param_t *param)
{
    struct hkt__ucx_dom *dom = arg;
    struct hkt__ucx_wire wire;

    if (header_bytes != sizeof wire)
        return UCS_OK;
    memcpy(&wire, header, sizeof wire);
    if (wire.nonce != dom->nonce || wire.from < 0 || wire.from >= dom->nranks || wire.from == dom->rank ||
        wire.lane >= dom->lanes || dom->members == NULL || dom->members[wire.from].nonce == 0) {
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "ucx: dropped a message that is not of this job");
        return UCS_OK;
    }
    struct hkt__ucx_link *link = dom->links[(size_t)wire.from * (size_t)dom->lanes + wire.lane];

    if (link != NULL && wire.consumed - link->tx.consumed <= HKT__UCX_SLOTS)
        link->tx.consumed = wire.consumed;
    if (wire.kind != HKT__UCX_FRAME) {
        take_note(dom, &wire);
        return UCS_OK;
    }
    const bool is_offer = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;

    return link != NULL && take_frame(link, &wire, data, bytes, is_offer) ? UCS_INPROGRESS : UCS_OK;
}
