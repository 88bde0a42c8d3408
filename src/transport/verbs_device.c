/* Whether adapters read memory of a device: each writes some of it to memory of the host, over a queue pair that is connected
 * to itself, and the bytes are compared. That a dmabuf could be registered does not say so: bridges on the way, or how the
 * system isolates devices, may keep the adapter's reads from the other device, or send them elsewhere.
 *
 * No peer takes part and no link is needed: what differs between adapters and devices shows at home. */
#include <errno.h>
#include <string.h>
#include <sched.h>

#include "core/clock.h"
#include "core/mem.h"
#include "transport/verbs.h"

#define PROVE_NS INT64_C(2000000000) /* the adapter's own timeout and retries, as set below, end it before that */
#define ENTRIES 2

/** What one adapter is tried with. */
struct trial {
    const struct hkt__verbs_rail *rail;
    size_t bytes;
    void *landing;                /* [bytes] */
    struct ibv_mr *landing_mr;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

static void end(struct trial *trial)
{
    if (trial->qp != NULL)
        (void)ibv_destroy_qp(trial->qp);
    if (trial->cq != NULL)
        (void)ibv_destroy_cq(trial->cq);
    if (trial->landing_mr != NULL)
        (void)ibv_dereg_mr(trial->landing_mr);
    hkt__pages_free(trial->landing, trial->bytes);
}

/** The queue pair is its own peer. False: errno. */
static bool connect_to_itself(const struct trial *trial)
{
    const struct hkt__verbs_port *port = &trial->rail->port;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = port->port,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};

    if (ibv_modify_qp(trial->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
        return false;
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = (enum ibv_mtu)port->mtu, .dest_qp_num = trial->qp->qp_num, .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = port->lid, .port_num = port->port, .is_global = port->is_roce,
                    .grh = {.dgid = port->gid, .sgid_index = (uint8_t)port->gid_index, .hop_limit = 64}},
    };
    if (ibv_modify_qp(trial->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
        return false;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 15, .retry_cnt = 6, .max_rd_atomic = 1};
    return ibv_modify_qp(trial->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC) == 0;
}

static enum hkt_status begin(struct trial *trial)
{
    const struct hkt__verbs_rail *rail = trial->rail;
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = ENTRIES, .max_recv_wr = 1, .max_send_sge = 1,
                                                                   .max_recv_sge = 1}};

    trial->landing = hkt__pages_alloc(trial->bytes);
    if (trial->landing == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for %zu bytes", trial->bytes);
    trial->landing_mr = ibv_reg_mr(rail->pd, trial->landing, trial->bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (trial->landing_mr == NULL)
        return hkt__verbs_fail_register(rail->port.device, trial->bytes);
    trial->cq = ibv_create_cq(rail->context, ENTRIES, NULL, NULL, 0);
    init.send_cq = init.recv_cq = trial->cq;
    if (trial->cq != NULL)
        trial->qp = ibv_create_qp(rail->pd, &init);
    if (trial->qp == NULL || !connect_to_itself(trial))
        return hkt__fail_sys(HKT_ERR_SYSTEM, "verbs: %s cannot be tried on memory of a device", rail->port.device);
    return HKT_OK;
}

/** The adapter reads `data` and writes it to the landing. */
static enum hkt_status transfer(const struct trial *trial, const void *data, uint32_t key)
{
    struct ibv_sge from = {.addr = (uintptr_t)data, .length = (uint32_t)trial->bytes, .lkey = key};
    struct ibv_send_wr request = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
                                  .wr.rdma = {.remote_addr = (uintptr_t)trial->landing, .rkey = trial->landing_mr->rkey}};
    struct ibv_send_wr *bad;
    const int64_t until_ns = hkt__now_ns() + PROVE_NS;
    struct ibv_wc wc = {.status = IBV_WC_RESP_TIMEOUT_ERR};
    const char *device = trial->rail->port.device;
    int count = 0;

    errno = ibv_post_send(trial->qp, &request, &bad);
    if (errno != 0)
        return hkt__fail_sys(HKT_ERR_UNSUPPORTED, "%s does not send from memory of a device", device);
    while ((count = ibv_poll_cq(trial->cq, 1, &wc)) == 0 && hkt__now_ns() < until_ns)
        sched_yield();
    if (count == 1 && wc.status == IBV_WC_SUCCESS)
        return HKT_OK;
    return hkt__fail(HKT_ERR_UNSUPPORTED, "%s registers memory of a device and cannot read it: %s", device,
                     count == 0 ? "nothing came in 2 s" : ibv_wc_status_str(wc.status));
}

enum hkt_status hkt__verbs_mem_prove(struct hkt__tp_dom *tp_dom, const void *data, const void *expected, size_t bytes)
{
    struct hkt__verbs_dom *dom = (struct hkt__verbs_dom *)tp_dom;
    uint32_t keys[HKT__VERBS_RAILS_MAX];
    enum hkt_status rc = HKT_OK;
    bool is_device;

    if (!hkt__verbs_mem_find(dom, data, bytes, keys, &is_device))
        return hkt__fail(HKT_ERR_BUG, "verbs: memory is to be tried that is not pinned");
    for (int i = 0; i < dom->verbs->nrails && rc == HKT_OK; i++) {
        struct trial trial = {.rail = &dom->verbs->rails[i], .bytes = bytes};

        rc = begin(&trial);
        if (rc == HKT_OK)
            rc = transfer(&trial, data, keys[i]);
        if (rc == HKT_OK && memcmp(trial.landing, expected, bytes) != 0)
            rc = hkt__fail(HKT_ERR_UNSUPPORTED, "%s reads other bytes in memory of a device than are there", trial.rail->port.device);
        end(&trial);
    }
    return rc;
}
