/* See raw.h. */
#include "raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEPTH = 128, INLINE_BYTES = 64, PING_BYTES = 8, WAIT_S = 10 };

/** What the ends tell each other. */
struct raw_end {
    union ibv_gid gid;
    uint64_t memory;
    uint32_t key, qpn;
    uint16_t lid;
};

static int fail(const char *what)
{
    perror(what);
    return -1;
}

static struct ibv_context *open_device(const char *name)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;

    for (int i = 0; i < count && context == NULL; i++)
        if (strcmp(ibv_get_device_name(devices[i]), name) == 0)
            context = ibv_open_device(devices[i]);
    if (devices != NULL)
        ibv_free_device_list(devices);
    return context;
}

static int make(struct raw *raw, const char *device)
{
    raw->context = open_device(device);
    raw->memory = aligned_alloc(4096, 2 * RAW_BYTES_MAX);
    if (raw->context == NULL || raw->memory == NULL)
        return fail(device);
    memset(raw->memory, 0, 2 * RAW_BYTES_MAX);
    raw->pd = ibv_alloc_pd(raw->context);
    raw->cq = ibv_create_cq(raw->context, 2 * DEPTH, NULL, NULL, 0);
    if (raw->pd == NULL || raw->cq == NULL)
        return fail("ibv_create_cq");
    raw->mr = ibv_reg_mr(raw->pd, raw->memory, 2 * RAW_BYTES_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_qp_init_attr init = {
        .send_cq = raw->cq, .recv_cq = raw->cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = INLINE_BYTES},
    };

    raw->qp = raw->mr != NULL ? ibv_create_qp(raw->pd, &init) : NULL;
    return raw->qp != NULL ? 0 : fail("ibv_create_qp");
}

static int connect_qp(struct raw *raw, const struct ibv_port_attr *port, int gid_index, const struct raw_end *peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    int rc = ibv_modify_qp(raw->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = port->active_mtu, .dest_qp_num = peer->qpn, .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12, .ah_attr = {.dlid = peer->lid, .port_num = 1, .is_global = port->link_layer == IBV_LINK_LAYER_ETHERNET,
                                         .grh = {.sgid_index = (uint8_t)gid_index, .hop_limit = 64, .dgid = peer->gid}},
    };
    if (rc == 0)
        rc = ibv_modify_qp(raw->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    if (rc == 0)
        rc = ibv_modify_qp(raw->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC);
    return rc == 0 ? 0 : fail("ibv_modify_qp");
}

int raw_open(struct raw *raw, int rank, const char *device, int gid_index, raw_exchange *exchange, void *arg)
{
    struct raw_end mine = {0}, theirs;
    struct ibv_port_attr port;

    *raw = (struct raw){.rank = rank};
    if (make(raw, device) != 0)
        return -1;
    if (ibv_query_port(raw->context, 1, &port) != 0 || ibv_query_gid(raw->context, 1, gid_index, &mine.gid) != 0)
        return fail("ibv_query_port");
    mine.memory = (uintptr_t)raw->memory;
    mine.key = raw->mr->rkey;
    mine.qpn = raw->qp->qp_num;
    mine.lid = port.lid;
    if (exchange(rank, &mine, &theirs, sizeof mine, arg) != 0)
        return -1;
    raw->peer_memory = theirs.memory;
    raw->peer_key = theirs.key;
    return connect_qp(raw, &port, gid_index, &theirs);
}

void raw_close(struct raw *raw)
{
    if (raw->qp != NULL)
        ibv_destroy_qp(raw->qp);
    if (raw->mr != NULL)
        ibv_dereg_mr(raw->mr);
    if (raw->cq != NULL)
        ibv_destroy_cq(raw->cq);
    if (raw->pd != NULL)
        ibv_dealloc_pd(raw->pd);
    if (raw->context != NULL)
        ibv_close_device(raw->context);
    free(raw->memory);
}

static int post(struct raw *raw, size_t bytes)
{
    struct ibv_sge sge = {.addr = (uintptr_t)raw->memory + RAW_BYTES_MAX, .length = (uint32_t)bytes, .lkey = raw->mr->lkey};
    struct ibv_send_wr request = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED | (bytes <= INLINE_BYTES ? IBV_SEND_INLINE : 0u),
        .wr.rdma = {.remote_addr = raw->peer_memory, .rkey = raw->peer_key},
    };
    struct ibv_send_wr *bad;

    return ibv_post_send(raw->qp, &request, &bad) == 0 ? 0 : fail("ibv_post_send");
}

/** Completions there are; -1: one of a failure. */
static int take(struct raw *raw)
{
    struct ibv_wc wcs[16];
    const int count = ibv_poll_cq(raw->cq, 16, wcs);

    for (int i = 0; i < count; i++)
        if (wcs[i].status != IBV_WC_SUCCESS) {
            fprintf(stderr, "raw: %s\n", ibv_wc_status_str(wcs[i].status));
            return -1;
        }
    return count;
}

int raw_stream(struct raw *raw, size_t bytes, int count)
{
    for (int posted = 0, done = 0; done < count;) {
        for (; posted < count && posted - done < DEPTH; posted++)
            if (post(raw, bytes) != 0)
                return -1;
        const int more = take(raw);

        if (more < 0)
            return -1;
        done += more;
    }
    return 0;
}

int raw_ping(struct raw *raw, unsigned turn)
{
    const volatile unsigned char *arrived = raw->memory + PING_BYTES - 1;
    const unsigned char mark = (unsigned char)(turn % 255 + 1);

    for (int way = 0; way < 2; way++) {
        if ((raw->rank ^ way) == 0) {
            raw->memory[RAW_BYTES_MAX + PING_BYTES - 1] = mark;
            if (post(raw, PING_BYTES) != 0)
                return -1;
            for (int more = 0; more == 0;)
                if ((more = take(raw)) < 0)
                    return -1;
        } else {
            const time_t end = time(NULL) + WAIT_S;

            for (unsigned looks = 1; *arrived != mark; looks++)
                if (looks % 65536 == 0 && time(NULL) > end)
                    return -1;
        }
    }
    return 0;
}
