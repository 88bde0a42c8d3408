/* One queue pair: its life, what is posted on it, what its completions mean.
 *
 * Completions. Only every slots-th write asks for one, besides those that must be known to be acknowledged: a completion
 * stands for all writes of its queue pair before it, and what frees a slot is credit. A write that fails completes, asked
 * or not.
 *
 * Sizes. A peer has at most `slots` frames under way that are not told as consumed, and tells at most as many credits; after
 * a path fails both may come once more by another one. So 3 * slots tokens, and a few, always suffice; used ones are put back
 * `slots` at a time, so there are as many more. The send queue takes frames while fewer than 3 * slots writes are not known
 * to be complete, of which slots-th ones asked; credits while fewer than 4 * slots are; and what a failed path hands
 * over, at most `slots` frames. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "core/log.h"
#include "transport/verbs.h"

#define SPARE 4

static const uint64_t index_shift = 32, path_shift = 24, kind_shift = 16;

/** What a completion says: whose it is, and the lowest bits of the write's number. */
static uint64_t make_id(const struct hkt__verbs_path *path, enum hkt__verbs_kind kind, uint32_t order)
{
    const struct hkt__verbs_link *link = path->link;
    const uint64_t index = (uint64_t)link->peer * (uint64_t)link->dom->lanes + (uint64_t)link->lane;

    return index << index_shift | (uint64_t)path->index << path_shift | (uint64_t)kind << kind_shift | (order & 0xffff);
}

static uint32_t send_entries(const struct hkt__verbs_link *link)
{
    return 5 * link->slots + SPARE;
}

static uint32_t receive_entries(const struct hkt__verbs_link *link)
{
    return 4 * link->slots + SPARE;
}

bool hkt__verbs_path_has_room(const struct hkt__verbs_path *path, enum hkt__verbs_kind kind)
{
    return path->posted - path->done < (kind == HKT__VERBS_FRAME ? 3 : 4) * path->link->slots;
}

int hkt__verbs_path_entries(const struct hkt__verbs_link *link)
{
    return (int)(send_entries(link) + receive_entries(link));
}

static const struct hkt__verbs_rail *rail_of(const struct hkt__verbs_path *path)
{
    return &path->link->dom->verbs->rails[path->rail];
}

/* ---- life ---- */

static enum hkt_status create_qp(struct hkt__verbs_path *path)
{
    const struct hkt__verbs_rail *rail = rail_of(path);
    struct ibv_cq *cq = path->link->dom->queues[path->rail].cq;
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 0,
        .cap = {.max_send_wr = send_entries(path->link), .max_recv_wr = receive_entries(path->link), .max_send_sge = 2,
                .max_recv_sge = 1, .max_inline_data = rail->inline_max},
    };

    path->qp = ibv_create_qp(rail->pd, &init);
    if (path->qp == NULL && init.cap.max_inline_data > 0) { /* the largest inline size cannot be asked for */
        init.cap.max_inline_data = 0;
        path->qp = ibv_create_qp(rail->pd, &init);
    }
    if (path->qp == NULL)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "verbs: %s cannot make a queue pair of %u and %u entries; HOCKET_IB_SLOTS, "
                             "HOCKET_IB_QPS and HOCKET_LANES say how many there are", rail->port.device,
                             init.cap.max_send_wr, init.cap.max_recv_wr);
    path->inline_max = init.cap.max_inline_data;
    return HKT_OK;
}

/** Put tokens for immediates back, at most HKT__VERBS_SLOTS_MAX, by one call. */
static void refill(struct hkt__verbs_path *path)
{
    struct ibv_recv_wr requests[HKT__VERBS_SLOTS_MAX], *bad;
    const uint32_t count = path->owed < HKT__VERBS_SLOTS_MAX ? path->owed : HKT__VERBS_SLOTS_MAX;

    for (uint32_t i = 0; i < count; i++)
        requests[i] = (struct ibv_recv_wr){.wr_id = make_id(path, HKT__VERBS_RECV, 0),
                                           .next = i + 1 < count ? &requests[i + 1] : NULL};
    /* Cannot fail while the number of tokens is kept; on a queue pair that failed, its completions say so. */
    (void)ibv_post_recv(path->qp, requests, &bad);
    path->owed -= count;
    path->link->dom->counts.refills++;
}

enum hkt_status hkt__verbs_path_create(struct hkt__verbs_path *path)
{
    const struct hkt__verbs_rail *rail = rail_of(path);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = rail->port.port,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    const enum hkt_status rc = create_qp(path);

    if (rc < 0)
        return rc;
    (void)!getrandom(&path->psn, sizeof path->psn, GRND_NONBLOCK); /* any number will do */
    path->psn &= 0xffffff;
    if (ibv_modify_qp(path->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "verbs: %s cannot prepare a queue pair on port %d", rail->port.device,
                             rail->port.port);
    path->owed = receive_entries(path->link);
    while (path->owed > 0)
        refill(path);
    return HKT_OK;
}

static void describe_route(const struct hkt__verbs_path *path, char *out_text, size_t bytes)
{
    const struct hkt__verbs_rail *rail = rail_of(path);
    const struct hkt__verbs_link *link = path->link;
    const struct hkt__verbs_rail_blob *peer =
        &link->dom->verbs->peers[link->dom->job_ranks[link->peer]].rails[path->peer_rail];
    struct ibv_gid_entry entry = {.gid_type = rail->port.is_roce ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB};
    char to[96], own[80];

    memcpy(entry.gid.raw, peer->gid, sizeof peer->gid);
    hkt__verbs_gid_text(&entry, to, sizeof to);
    hkt__verbs_port_name(&rail->port, own, sizeof own);
    snprintf(out_text, bytes, "from %s (%s) to %s", own, rail->port.gid_text, to);
}

static void set_down(struct hkt__verbs_path *path, const char *what)
{
    char route[320];
    const int sys_errno = errno;

    describe_route(path, route, sizeof route);
    snprintf(path->why, sizeof path->why, "%s %s: %s", what, route, strerror(sys_errno));
    path->state = HKT__VERBS_PATH_DOWN;
}

void hkt__verbs_path_connect(struct hkt__verbs_path *path)
{
    const struct hkt__verbs_link *link = path->link;
    const struct hkt__settings *settings = link->dom->verbs->settings;
    const struct hkt__verbs_rail *rail = rail_of(path);
    const struct hkt__verbs_rail_blob *peer =
        &link->dom->verbs->peers[link->dom->job_ranks[link->peer]].rails[path->peer_rail];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = (enum ibv_mtu)path->mtu, .dest_qp_num = path->peer_qpn,
        .rq_psn = path->peer_psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12 /* 0.64 ms */,
        .ah_attr = {.dlid = peer->lid, .sl = (uint8_t)settings->ib_sl, .port_num = rail->port.port,
                    .is_global = rail->port.is_roce,
                    .grh = {.sgid_index = (uint8_t)rail->port.gid_index, .hop_limit = 64,
                            .traffic_class = (uint8_t)settings->ib_traffic_class}},
    };

    memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
    if (ibv_modify_qp(path->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0) {
        set_down(path, "there is no way");
        return;
    }
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = (uint8_t)settings->ib_timeout,
                                .retry_cnt = (uint8_t)settings->ib_retry, .rnr_retry = (uint8_t)settings->ib_rnr_retry,
                                .sq_psn = path->psn, .max_rd_atomic = 1};
    if (ibv_modify_qp(path->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0) {
        set_down(path, "nothing can be sent");
        return;
    }
    path->state = HKT__VERBS_PATH_READY;
}

void hkt__verbs_path_destroy(struct hkt__verbs_path *path)
{
    if (path->qp != NULL)
        (void)ibv_destroy_qp(path->qp);
    path->qp = NULL;
}

void hkt__verbs_path_fail(struct hkt__verbs_path *path, enum hkt_status status, const char *why)
{
    struct hkt__verbs_link *link = path->link;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    const bool was_up = path->state == HKT__VERBS_PATH_UP;

    if (path->state == HKT__VERBS_PATH_DOWN)
        return;
    path->state = HKT__VERBS_PATH_DOWN;
    snprintf(path->why, sizeof path->why, "%s", why);
    (void)ibv_modify_qp(path->qp, &attr, IBV_QP_STATE); /* the peer's writes fail from now on, so that it finds out too */
    if (!was_up)
        return;
    link->up--;
    hkt__verbs_link_warn(link);
    if (link->up == 0) {
        hkt__verbs_link_fail(link, status, why);
        return;
    }
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "verbs: to rank %d, lane %d: path %d of %d failed, the others go on: %s",
             link->peer, link->lane, path->index, link->npaths, why);
    hkt__verbs_chan_resend(path);
}

/* ---- posting ---- */

bool hkt__verbs_path_post(struct hkt__verbs_path *path, const struct hkt__verbs_write *write)
{
    const struct hkt__verbs_piece *first = &write->from[0], *second = &write->from[1];
    const uint32_t bytes = first->bytes + second->bytes, order = path->posted + 1;
    const bool asks = write->wants_ack || order - path->asked >= path->link->slots;
    struct ibv_sge sges[2] = {{.addr = (uintptr_t)first->data, .length = first->bytes, .lkey = first->key},
                              {.addr = (uintptr_t)second->data, .length = second->bytes, .lkey = second->key}};
    struct ibv_send_wr request = {
        .wr_id = make_id(path, write->kind, order), .sg_list = sges, .num_sge = (first->bytes > 0) + (second->bytes > 0),
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        /* What is lent is the adapter's to read: the CPU, which copies what goes inline, may not be able to. */
        .send_flags = (asks ? IBV_SEND_SIGNALED : 0u) |
                      (bytes > 0 && bytes <= path->inline_max && second->bytes == 0 ? IBV_SEND_INLINE : 0u),
        .imm_data = htobe32(write->imm), .wr.rdma = {.remote_addr = write->to, .rkey = path->peer_key},
    };
    struct ibv_send_wr *bad;
    const int rc = ibv_post_send(path->qp, &request, &bad);

    if (rc != 0) {
        char why[128];

        snprintf(why, sizeof why, "%s refused a request: %s", rail_of(path)->port.device, strerror(rc));
        hkt__verbs_path_fail(path, HKT_ERR_SYSTEM, why);
        return false;
    }
    path->flying += bytes;
    path->posted = order;
    path->asked = asks ? order : path->asked;
    path->link->dom->counts.posts++;
    path->link->dom->counts.credits += write->kind == HKT__VERBS_CONTROL;
    return true;
}

/* ---- completions ---- */

static void complete_failed(struct hkt__verbs_path *path, const struct ibv_wc *wc)
{
    const bool is_peer = wc->status == IBV_WC_RETRY_EXC_ERR || wc->status == IBV_WC_RNR_RETRY_EXC_ERR ||
                         wc->status == IBV_WC_REM_ACCESS_ERR || wc->status == IBV_WC_REM_OP_ERR ||
                         wc->status == IBV_WC_REM_ABORT_ERR || wc->status == IBV_WC_RESP_TIMEOUT_ERR;
    char why[HKT__VERBS_TEXT_MAX * 2];

    if (path->state == HKT__VERBS_PATH_DOWN)
        return; /* the rest of what it had: flushed */
    hkt__verbs_wc_text(path, wc, why, sizeof why);
    hkt__verbs_path_fail(path, is_peer ? HKT_ERR_PEER_LOST : HKT_ERR_SYSTEM, why);
}

void hkt__verbs_path_complete(struct hkt__verbs_dom *dom, const struct ibv_wc *wc)
{
    struct hkt__verbs_link *link = dom->links[wc->wr_id >> index_shift];
    struct hkt__verbs_path *path = &link->paths[wc->wr_id >> path_shift & 0xff];
    const enum hkt__verbs_kind kind = (enum hkt__verbs_kind)(wc->wr_id >> kind_shift & 0xff);

    if (wc->status != IBV_WC_SUCCESS) {
        complete_failed(path, wc);
        return;
    }
    if (kind == HKT__VERBS_RECV) {
        dom->counts.arrivals++;
        if (++path->owed == link->slots)
            refill(path);
        hkt__verbs_chan_arrived(link, be32toh(wc->imm_data));
        return;
    }
    dom->counts.acks++;
    path->done += ((uint32_t)wc->wr_id - path->done) & 0xffff;
    path->is_proved |= kind == HKT__VERBS_PROBE;
    hkt__verbs_chan_acked(path);
    hkt__verbs_chan_retell(link);
}
