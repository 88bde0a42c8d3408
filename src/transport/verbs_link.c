/* A link: two channels to one peer, and the way to open them.
 *
 *   WIRE      the tcp channel opens, which proves the ends to each other
 *   HELLO     memory is registered, queue pairs are made; their numbers and keys are exchanged
 *   READY     queue pairs are connected; each end tells which of its paths receive
 *   PROVING   a packet of full size crosses each path: a wrong route or MTU is found out now, not in the first operation
 *   VERDICT   each end tells which paths brought an acknowledgement; those that both name are used
 *   OPEN      or MOVED, where no path is left and tcp may be used: then the tcp channels are the link's */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "transport/below.h"
#include "transport/verbs.h"

static const struct hkt__verbs_blob *peer_blob(const struct hkt__verbs_link *link)
{
    return &link->dom->verbs->peers[link->dom->job_ranks[link->peer]];
}

/* ---- making ---- */

static enum hkt_status register_memory(struct hkt__verbs_link *link)
{
    struct hkt__verbs *verbs = link->dom->verbs;
    const size_t half = link->slots * hkt__verbs_stride(link);

    link->memory_bytes = 2 * half;
    link->memory = hkt__pages_alloc(link->memory_bytes);
    if (link->memory == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for %zu KiB of slots", link->memory_bytes >> 10);
    for (int i = 0; i < verbs->nrails; i++) {
        link->ring_mr[i] = ibv_reg_mr(verbs->rails[i].pd, link->memory, half, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        if (link->ring_mr[i] != NULL)
            link->send_mr[i] = ibv_reg_mr(verbs->rails[i].pd, link->memory + half, half, 0);
        if (link->send_mr[i] == NULL)
            return hkt__error_context(hkt__verbs_fail_register(verbs->rails[i].port.device, half), "verbs");
    }
    return HKT_OK;
}

/** Path i joins this end's NIC i to the peer's NIC i, each counted around its own NICs: both ends see the same pairs. */
static void plan_paths(struct hkt__verbs_link *link)
{
    const struct hkt__verbs *verbs = link->dom->verbs;
    const struct hkt__verbs_blob *peer = peer_blob(link);
    const int own_qps = (int)verbs->settings->ib_qps, qps = peer->qps < own_qps ? peer->qps : own_qps;
    const int pairs = peer->nrails > verbs->nrails ? peer->nrails : verbs->nrails;
    const int64_t most = verbs->settings->ib_mtu;

    link->npaths = pairs * qps;
    for (int i = 0; i < link->npaths; i++) {
        struct hkt__verbs_path *path = &link->paths[i];

        path->link = link;
        path->index = i;
        path->rail = i % verbs->nrails;
        path->peer_rail = i % peer->nrails;
        path->mtu = verbs->rails[path->rail].port.mtu;
        if (peer->rails[path->peer_rail].mtu < path->mtu)
            path->mtu = peer->rails[path->peer_rail].mtu;
        while (most > 0 && path->mtu > IBV_MTU_256 && (INT64_C(128) << path->mtu) > most)
            path->mtu--;
    }
}

static enum hkt_status make_paths(struct hkt__verbs_link *link)
{
    enum hkt_status rc = register_memory(link);

    for (int i = 0; i < link->npaths && rc == HKT_OK; i++) {
        rc = hkt__verbs_queue_reserve(link->dom, link->paths[i].rail, hkt__verbs_path_entries(link));
        if (rc == HKT_OK)
            rc = hkt__verbs_path_create(&link->paths[i]);
    }
    return rc;
}

enum hkt_status hkt__verbs_link_create(struct hkt__verbs_dom *dom, int peer, int lane, struct hkt__verbs_link **out_link)
{
    const struct hkt__verbs_blob *blob = &dom->verbs->peers[dom->job_ranks[peer]];
    struct hkt__verbs_link *link = hkt__calloc(1, sizeof *link);

    if (link == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for a link to rank %d", peer);
    link->dom = dom;
    link->peer = peer;
    link->lane = lane;
    link->slots = blob->slots < dom->verbs->slots ? blob->slots : dom->verbs->slots;
    link->slot_bytes = blob->slot_bytes < dom->verbs->slot_bytes ? blob->slot_bytes : dom->verbs->slot_bytes;
    dom->connecting++;
    plan_paths(link);
    hkt__verbs_chan_init(link);
    *out_link = link;
    return HKT_OK;
}

static void free_paths(struct hkt__verbs_link *link)
{
    for (int i = 0; i < link->npaths; i++)
        hkt__verbs_path_destroy(&link->paths[i]);
    for (int i = 0; i < HKT__VERBS_RAILS_MAX; i++) {
        if (link->send_mr[i] != NULL)
            (void)ibv_dereg_mr(link->send_mr[i]);
        if (link->ring_mr[i] != NULL)
            (void)ibv_dereg_mr(link->ring_mr[i]);
        link->send_mr[i] = link->ring_mr[i] = NULL;
    }
    if (link->memory != NULL)
        hkt__pages_free(link->memory, link->memory_bytes);
    link->memory = NULL;
}

void hkt__verbs_link_destroy(struct hkt__verbs_link *link)
{
    if (link == NULL)
        return;
    if (link->stage == HKT__VERBS_OPEN)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "verbs: rank %d, lane %d: %u frames sent, %llu of them without a copy",
                 link->peer, link->lane, link->tx.seq - 1, (unsigned long long)link->tx.lent_frames);
    free_paths(link);
    hkt__free(link);
}

/* ---- failing ---- */

void hkt__verbs_link_fail(struct hkt__verbs_link *link, enum hkt_status status, const char *why)
{
    if (link->failed != HKT_OK)
        return;
    link->failed = status;
    snprintf(link->why, sizeof link->why, "%s", why);
}

enum hkt_status hkt__verbs_link_failed(const struct hkt__verbs_link *link)
{
    return hkt__fail_peer(link->failed, link->peer, "verbs: the link to rank %d failed: %s", link->peer, link->why);
}

/* ---- opening ---- */

static void say_hello(struct hkt__verbs_link *link)
{
    struct hkt__verbs_hello hello = {.magic = HKT__VERBS_MAGIC, .version = HKT__VERBS_VERSION,
                                     .npaths = (uint16_t)link->npaths, .ring = (uintptr_t)link->memory};

    for (int i = 0; i < link->dom->verbs->nrails; i++)
        hello.keys[i] = link->ring_mr[i]->rkey;
    for (int i = 0; i < link->npaths; i++) {
        hello.qpns[i] = link->paths[i].qp->qp_num;
        hello.psns[i] = link->paths[i].psn;
    }
    memcpy(link->out.data, &hello, sizeof hello);
    link->out.bytes = link->in.bytes = sizeof hello;
    link->out.done = link->in.done = 0;
}

static enum hkt_status take_hello(struct hkt__verbs_link *link)
{
    struct hkt__verbs_hello hello;

    memcpy(&hello, link->in.data, sizeof hello);
    if (hello.magic != HKT__VERBS_MAGIC || hello.version != HKT__VERBS_VERSION || hello.npaths != link->npaths)
        return hkt__fail_peer(HKT_ERR_CORRUPT, link->peer, "verbs: rank %d opens a link of %u paths where %d are planned: run "
                              "the same version of hocket on all ranks", link->peer, hello.npaths, link->npaths);
    link->peer_ring = hello.ring;
    for (int i = 0; i < link->npaths; i++) {
        link->paths[i].peer_key = hello.keys[link->paths[i].peer_rail];
        link->paths[i].peer_qpn = hello.qpns[i];
        link->paths[i].peer_psn = hello.psns[i];
        hkt__verbs_path_connect(&link->paths[i]);
    }
    return HKT_OK;
}

/** The paths that are well, or proved, and the reason of the first that is not. */
static void write_state(struct hkt__verbs_link *link)
{
    struct hkt__verbs_state state = {.magic = HKT__VERBS_MAGIC};

    for (int i = 0; i < link->npaths; i++) {
        if (link->paths[i].state != HKT__VERBS_PATH_DOWN)
            state.paths |= UINT32_C(1) << i;
        else if (state.why[0] == '\0')
            snprintf(state.why, sizeof state.why, "%s", link->paths[i].why);
    }
    memcpy(link->out.data, &state, sizeof state);
    link->out.bytes = sizeof state;
    link->out.done = 0;
}

/** Tell it, and expect the same from the peer. */
static void say_state(struct hkt__verbs_link *link)
{
    write_state(link);
    link->in.bytes = sizeof(struct hkt__verbs_state);
    link->in.done = 0;
}

/** Paths the peer has given up are given up here too. */
static enum hkt_status take_state(struct hkt__verbs_link *link)
{
    struct hkt__verbs_state state;

    memcpy(&state, link->in.data, sizeof state);
    if (state.magic != HKT__VERBS_MAGIC)
        return hkt__fail_peer(HKT_ERR_CORRUPT, link->peer, "verbs: rank %d sent something else where the state of a link was "
                              "due: run the same version of hocket on all ranks", link->peer);
    state.why[sizeof state.why - 1] = '\0';
    for (int i = 0; i < link->npaths; i++) {
        struct hkt__verbs_path *path = &link->paths[i];
        char why[HKT__VERBS_TEXT_MAX + 32];

        if (path->state == HKT__VERBS_PATH_DOWN || (state.paths >> i & 1) != 0)
            continue;
        snprintf(why, sizeof why, "rank %d says: %s", link->peer, state.why);
        hkt__verbs_path_fail(path, HKT_ERR_PEER_LOST, why);
    }
    return HKT_OK;
}

/* ---- telling of failures, when open ---- */

/** Go on with the warning that is under way, then with the one that is due; what tcp does not take now goes later. */
static void push_warning(struct hkt__verbs_link *link)
{
    for (;;) {
        if (link->out.done == link->out.bytes) {
            if (!link->is_warning_due)
                return;
            write_state(link);
            link->is_warning_due = false;
        }
        if (hkt__mail_send(link->wire_tx, link->out.data, link->out.bytes, &link->out.done) != HKT_OK)
            return; /* a peer that is gone is noticed by listening */
    }
}

void hkt__verbs_link_warn(struct hkt__verbs_link *link)
{
    link->is_warning_due = true;
    push_warning(link);
}

/** Requests of a device that was removed neither complete nor fail. */
static void fail_gone(struct hkt__verbs_link *link)
{
    for (int i = 0; i < link->npaths; i++) {
        const struct hkt__verbs_rail *rail = &link->dom->verbs->rails[link->paths[i].rail];
        char why[HKT__VERBS_TEXT_MAX];

        if (!atomic_load_explicit(&rail->is_gone, memory_order_relaxed) || link->paths[i].state == HKT__VERBS_PATH_DOWN)
            continue;
        snprintf(why, sizeof why, "%s:%d: the device was removed or failed (IBV_EVENT_DEVICE_FATAL): see this host's kernel log",
                 rail->port.device, rail->port.port);
        hkt__verbs_path_fail(&link->paths[i], HKT_ERR_SYSTEM, why);
    }
}

bool hkt__verbs_link_listen(struct hkt__verbs_link *link)
{
    struct hkt__view view;
    enum hkt_status rc = HKT_OK;

    fail_gone(link);
    if (link->stage != HKT__VERBS_OPEN) /* the next message is for the next stage */
        rc = link->wire_rx->ops->rx_begin(link->wire_rx, &view);
    else
        push_warning(link);
    while (rc == HKT_OK && link->stage == HKT__VERBS_OPEN && link->failed == HKT_OK) {
        rc = hkt__mail_receive(link->wire_rx, link->in.data, link->in.bytes, &link->in.done);
        if (rc == HKT_OK)
            rc = take_state(link);
        if (rc == HKT_OK)
            link->in.done = 0;
    }
    if (rc < 0)
        hkt__verbs_link_fail(link, rc, hkt_last_error());
    return link->failed != HKT_OK;
}

static void prove_paths(struct hkt__verbs_link *link)
{
    const size_t half = link->memory_bytes / 2;

    for (int i = 0; i < link->npaths; i++) {
        struct hkt__verbs_path *path = &link->paths[i];
        const size_t mtu = (size_t)128 << path->mtu;
        const struct hkt__verbs_write write = {
            .from = {{link->memory + half, (uint32_t)(mtu < half ? mtu : half), link->send_mr[path->rail]->lkey}},
            .to = link->peer_ring, .kind = HKT__VERBS_PROBE, .wants_ack = true,
            .imm = hkt__verbs_imm_make(HKT__VERBS_IMM_PROBE, 0, 0),
        };

        if (path->state == HKT__VERBS_PATH_READY)
            (void)hkt__verbs_path_post(path, &write);
    }
}

static bool are_proved(const struct hkt__verbs_link *link)
{
    for (int i = 0; i < link->npaths; i++)
        if (link->paths[i].state == HKT__VERBS_PATH_READY && !link->paths[i].is_proved)
            return false;
    return true;
}

static void log_open(const struct hkt__verbs_link *link)
{
    for (int i = 0; i < link->npaths; i++) {
        const struct hkt__verbs_path *path = &link->paths[i];
        const struct hkt__verbs_port *port = &link->dom->verbs->rails[path->rail].port;

        if (path->state == HKT__VERBS_PATH_UP)
            hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "verbs: rank %d, lane %d, path %d: %s:%d, %s, MTU %d, %u slots of %u "
                     "bytes, up to %u inline", link->peer, link->lane, i, port->device, port->port, port->gid_text,
                     128 << path->mtu, link->slots, link->slot_bytes, path->inline_max);
        else
            hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "verbs: rank %d, lane %d: path %d of %d is not used: %s", link->peer,
                     link->lane, i, link->npaths, path->why);
    }
}

/** Both verdicts are known. */
static enum hkt_status conclude(struct hkt__verbs_link *link)
{
    for (int i = 0; i < link->npaths; i++)
        if (link->paths[i].state == HKT__VERBS_PATH_READY) {
            link->paths[i].state = HKT__VERBS_PATH_UP;
            link->paths[i].flying = 0;
            link->up++;
        }
    link->dom->connecting--;
    if (link->up > 0) {
        log_open(link);
        link->stage = HKT__VERBS_OPEN;
        link->in.done = 0; /* for warnings */
        return HKT_OK;
    }
    if (link->dom->verbs->may_use_tcp && peer_blob(link)->may_use_tcp) {
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "verbs: lane %d to rank %d goes over tcp instead: %s", link->lane, link->peer,
                 link->paths[0].why);
        link->stage = HKT__VERBS_MOVED;
        link->dom->moved++;
        return HKT_OK;
    }
    hkt__verbs_link_fail(link, HKT_ERR_PEER_LOST, link->paths[0].why);
    return hkt__verbs_link_failed(link);
}

/** Both directions of the current message. */
static enum hkt_status exchange(struct hkt__verbs_link *link)
{
    enum hkt_status rc = hkt__mail_send(link->wire_tx, link->out.data, link->out.bytes, &link->out.done);

    if (rc == HKT_OK)
        rc = hkt__mail_receive(link->wire_rx, link->in.data, link->in.bytes, &link->in.done);
    return rc == HKT_AGAIN ? HKT_IN_PROGRESS : rc;
}

/** Do what the stage asks for. OK: go on with the next stage; IN_PROGRESS: wait. */
static enum hkt_status advance(struct hkt__verbs_link *link)
{
    enum hkt_status rc = HKT_OK;

    switch (link->stage) {
    case HKT__VERBS_WIRE:
        rc = link->dom->wire->ops->chan_open(link->dom->wire, link->peer, link->lane, &link->wire_tx, &link->wire_rx);
        if (rc == HKT_OK)
            rc = make_paths(link);
        if (rc == HKT_OK)
            say_hello(link);
        return rc;
    case HKT__VERBS_HELLO:
        rc = exchange(link);
        if (rc == HKT_OK)
            rc = take_hello(link);
        if (rc == HKT_OK)
            say_state(link);
        return rc;
    case HKT__VERBS_READY:
        rc = exchange(link);
        if (rc == HKT_OK)
            rc = take_state(link);
        if (rc == HKT_OK)
            prove_paths(link);
        return rc;
    case HKT__VERBS_PROVING:
        (void)hkt__verbs_progress(link->dom);
        if (!are_proved(link))
            return hkt__verbs_link_listen(link) ? hkt__verbs_link_failed(link) : HKT_IN_PROGRESS;
        say_state(link);
        return HKT_OK;
    case HKT__VERBS_VERDICT:
        rc = exchange(link);
        if (rc == HKT_OK)
            rc = take_state(link);
        return rc == HKT_OK ? conclude(link) : rc;
    case HKT__VERBS_OPEN:
    case HKT__VERBS_MOVED:
        break;
    }
    return HKT_OK;
}

enum hkt_status hkt__verbs_link_step(struct hkt__verbs_link *link)
{
    while (link->failed == HKT_OK && link->stage != HKT__VERBS_OPEN && link->stage != HKT__VERBS_MOVED) {
        const enum hkt_status rc = advance(link);

        if (rc == HKT_IN_PROGRESS)
            return rc;
        if (rc < 0) {
            if (link->failed == HKT_OK)
                hkt__verbs_link_fail(link, rc, hkt_last_error());
            return rc;
        }
        if (link->stage < HKT__VERBS_VERDICT)
            link->stage++;
    }
    /* What became of an open link later is for its channels to tell: others may still be opening. */
    return link->stage == HKT__VERBS_OPEN || link->failed == HKT_OK ? HKT_OK : hkt__verbs_link_failed(link);
}
