/* Faults that only a look inside verbs can cause, on a real RDMA device (see `run`). What could break: a queue pair that fails
 * without anybody noticing, or takes frames with it that another path should have carried; a peer that is not ready to
 * receive; queue pairs or memory regions that pile up; messages that cost more calls of libibverbs than they must.
 *
 * The channels are the module's; this program knows their layout (transport/verbs.h), and works on them by libibverbs. */
#include <string.h>
#include <time.h>

#include "../conform/cases.h"
#include "transport/verbs.h"

enum { DEADLINE_MS = 20000 };

static struct hkt__verbs_link *link_of(struct hkt__chan *tx)
{
    return ((struct hkt__verbs_tx *)tx)->link;
}

static void force_to_error(struct hkt__verbs_path *path)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    RIG_EQUAL(ibv_modify_qp(path->qp, &attr, IBV_QP_STATE), 0);
}

/** Send and receive messages until `count` are through both ways, or something fails; its status. */
static enum hkt_status stream(struct rig_dom *dom, uint64_t first, uint64_t count)
{
    const int peer = 1 - dom->rank->rank;
    uint64_t sent = first, received = first;
    const int64_t end_ms = rig_now_ms() + DEADLINE_MS;
    struct transfer out = { .chan = dom->tx[peer][0], .number = sent, .bytes = 9000, .may_fail = true };
    struct transfer in = { .chan = dom->rx[peer][0], .number = received, .bytes = 9000, .may_fail = true };

    while (sent < first + count || received < first + count) {
        bool is_moving = sent < first + count && transfer_send(&out);

        is_moving |= received < first + count && transfer_receive(&in);
        if (out.status != HKT_OK || in.status != HKT_OK) {
            transfer_drop(&in);
            return out.status != HKT_OK ? out.status : in.status;
        }
        if (out.is_done)
            out = (struct transfer){ .chan = out.chan, .number = ++sent, .bytes = 9000, .may_fail = true };
        if (in.is_done)
            in = (struct transfer){ .chan = in.chan, .number = ++received, .bytes = 9000, .may_fail = true };
        if (!is_moving)
            dom->dom->ops->park(dom->dom, 1000000);
        RIG_CHECK(rig_now_ms() < end_ms);
    }
    return HKT_OK;
}

/* The only path fails: both ends get an error that says so. */
static void case_queue_pair_fails(struct rig_rank *rank, const void *arg)
{
    struct rig_dom dom;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    RIG_EQUAL(stream(&dom, 0, 30), HKT_OK);
    rig_barrier(rank); /* else the end may come while the peer is still at these */
    if (rank->rank == 0)
        force_to_error(&link_of(dom.tx[1][0])->paths[0]);
    const enum hkt_status rc = stream(&dom, 30, 1000);

    if (rank->rank == 0) {
        RIG_EQUAL(rc, HKT_ERR_SYSTEM);
        RIG_CHECK(strstr(hkt_last_error(), "IBV_WC_WR_FLUSH_ERR") != NULL);
    } else {
        RIG_EQUAL(rc, HKT_ERR_PEER_LOST);
        RIG_CHECK(strstr(hkt_last_error(), "rank 0 says") != NULL || strstr(hkt_last_error(), "IBV_WC_RETRY_EXC_ERR") != NULL);
    }
    RIG_CHECK(strstr(hkt_last_error(), "rank") != NULL && strstr(hkt_last_error(), "queue pair") != NULL);
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* The device says that it was removed: nothing on it completes any more, so both ends must end by what that end says. Only
 * said here, since the kernel removes a Soft-RoCE device when its last user has gone, and lets it work until then. */
static void case_device_is_removed(struct rig_rank *rank, const void *arg)
{
    struct rig_dom dom;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    RIG_EQUAL(stream(&dom, 0, 30), HKT_OK);
    if (rank->rank == 0)
        atomic_store_explicit(&link_of(dom.tx[1][0])->dom->verbs->rails[0].is_gone, true, memory_order_relaxed);
    const int64_t end_ms = rig_now_ms() + DEADLINE_MS;
    enum hkt_status rc = HKT_AGAIN;

    while (rc == HKT_AGAIN) { /* for a frame that nobody sends */
        struct hkt__view view;

        dom.dom->ops->park(dom.dom, 1000000);
        rc = dom.rx[1 - rank->rank][0]->ops->rx_begin(dom.rx[1 - rank->rank][0], &view);
        RIG_CHECK(rig_now_ms() < end_ms);
    }
    RIG_EQUAL(rc, rank->rank == 0 ? HKT_ERR_SYSTEM : HKT_ERR_PEER_LOST);
    RIG_CHECK(strstr(hkt_last_error(), "rank") != NULL);
    if (rank->rank == 0)
        RIG_CHECK(strstr(hkt_last_error(), "IBV_EVENT_DEVICE_FATAL") != NULL);
    else /* told, or by itself */
        RIG_CHECK(strstr(hkt_last_error(), "IBV_EVENT_DEVICE_FATAL") != NULL || strstr(hkt_last_error(), "IBV_WC_") != NULL);
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* One of four paths fails on each side, one after the other: nothing is lost, repeated or damaged. */
static void case_paths_fail_in_turn(struct rig_rank *rank, const void *arg)
{
    struct rig_dom dom;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    RIG_EQUAL(link_of(dom.tx[1 - rank->rank][0])->npaths, 4);
    for (int i = 0; i < 3; i++) {
        RIG_EQUAL(stream(&dom, (uint64_t)i * 200, 200), HKT_OK);
        if (rank->rank == i % 2)
            force_to_error(&link_of(dom.tx[1 - rank->rank][0])->paths[i]);
    }
    RIG_EQUAL(stream(&dom, 600, 200), HKT_OK);
    RIG_CHECK(link_of(dom.tx[1 - rank->rank][0])->up >= 1);
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* Rank 0 writes more immediates than rank 1 has requests for, while that one sleeps. With few retries that is an error which
 * says so; with retries for ever it is over when rank 1 wakes. */
static void case_not_ready(struct rig_rank *rank, const void *arg)
{
    const bool is_patient = *(const int *)arg != 0;
    struct rig_dom dom;

    rig_dom_open(rank, 1, 0, &dom);
    RIG_EQUAL(stream(&dom, 0, 30), HKT_OK);
    rig_barrier(rank);
    if (rank->rank == 1) {
        nanosleep(&(struct timespec){ .tv_nsec = 700000000 }, NULL);
    } else {
        struct hkt__verbs_link *link = link_of(dom.tx[1][0]);
        struct hkt__verbs_path *path = &link->paths[0];
        const int64_t end_ms = rig_now_ms() + 500;

        for (uint64_t n = 0; rig_now_ms() < end_ms && link->failed == HKT_OK;) {
            struct ibv_send_wr request = {
                .wr_id = (uint64_t)link->peer << 32 | (uint64_t)HKT__VERBS_PROBE << 16 | ((path->posted + 1) & 0xffff),
                .send_flags = IBV_SEND_SIGNALED,
                .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(hkt__verbs_imm_make(HKT__VERBS_IMM_PROBE, 0, 0)),
                .wr.rdma = { .remote_addr = link->peer_ring, .rkey = path->peer_key },
            };
            struct ibv_send_wr *bad;
            struct hkt__view view;

            if (n < 38 /* two more than there are requests */ && ibv_post_send(path->qp, &request, &bad) == 0) {
                path->posted++;
                n++;
            }
            (void)dom.rx[1][0]->ops->rx_begin(dom.rx[1][0], &view); /* takes completions */
        }
        if (!is_patient) {
            struct hkt__room room;

            RIG_EQUAL(dom.tx[1][0]->ops->tx_begin(dom.tx[1][0], 8, &room), HKT_ERR_PEER_LOST);
            RIG_CHECK(strstr(hkt_last_error(), "IBV_WC_RNR_RETRY_EXC_ERR") != NULL);
            RIG_CHECK(strstr(hkt_last_error(), "HOCKET_IB_RNR_RETRY") != NULL);
        }
    }
    if (is_patient)
        RIG_EQUAL(stream(&dom, 30, 300), HKT_OK);
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/** Send or receive one message to its end. */
static void pass(struct rig_dom *dom, bool sends, uint64_t number, size_t bytes)
{
    const int peer = 1 - dom->rank->rank;
    struct transfer message = { .chan = sends ? dom->tx[peer][0] : dom->rx[peer][0], .number = number, .bytes = bytes };

    transfer_finish(dom, sends ? &message : NULL, sends ? NULL : &message);
}

/* Calls of libibverbs that messages cost: `count` of them, from rank 0 to rank 1, and each back again where they are answered.
 * docs/bench/2026-11-30-rdma.md has what perftest's programs do. */
struct cost {
    size_t bytes;
    uint64_t count;
    bool is_answered;
};

static void case_calls_per_message(struct rig_rank *rank, const void *arg)
{
    static const struct cost costs[] = { { 8, 512, true }, { 8, 512, false }, { 262144, 64, false } };
    const struct cost *cost = &costs[*(const int *)arg];
    struct rig_dom dom;

    rig_dom_open(rank, 1, 0, &dom);
    const struct hkt__verbs_link *link = link_of(dom.tx[1 - rank->rank][0]);
    const struct hkt__verbs_counts before = link->dom->counts, *now = &link->dom->counts;

    rig_barrier(rank); /* nothing is sent before both have begun to count */
    for (uint64_t n = 0; n < cost->count; n++) {
        pass(&dom, rank->rank == 0, n, cost->bytes);
        if (cost->is_answered)
            pass(&dom, rank->rank == 1, n, cost->bytes);
    }
    const uint64_t sent = rank->rank == 0 || cost->is_answered ? cost->count : 0;
    const uint64_t received = rank->rank == 1 || cost->is_answered ? cost->count : 0;
    const uint64_t posts = now->posts - before.posts, credits = now->credits - before.credits;
    const uint64_t acks = now->acks - before.acks, arrivals = now->arrivals - before.arrivals;
    const uint64_t refills = now->refills - before.refills, slots = link->slots;

    printf("# %zu bytes, %llu sent, %llu received: %llu posts, %llu of them for credit, %llu and %llu completions, %llu refills, "
           "%llu polls with success\n", cost->bytes, (unsigned long long)sent, (unsigned long long)received,
           (unsigned long long)posts, (unsigned long long)credits, (unsigned long long)acks, (unsigned long long)arrivals,
           (unsigned long long)refills, (unsigned long long)(now->polls - now->vain - before.polls + before.vain));
    fflush(stdout);
    RIG_EQUAL(posts - credits, sent);
    RIG_CHECK(credits <= (cost->is_answered ? 1 : received / (slots / 2) + 1));
    RIG_CHECK(acks <= posts / slots + 1);
    RIG_CHECK(arrivals >= received && arrivals <= received + (cost->is_answered ? 1 : sent / (slots / 2) + 1));
    RIG_CHECK(refills <= arrivals / slots + 1);
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/** What the kernel counts on the device: "qp 5 cm_id 0 mr 8 ctx 2 pd 3 cq 4". */
static void count_resources(char *out_text, size_t bytes)
{
    FILE *pipe = popen("/usr/sbin/rdma resource show 2>/dev/null || rdma resource show", "re");

    RIG_CHECK(pipe != NULL);
    out_text[0] = '\0';
    RIG_CHECK(fgets(out_text, (int)bytes, pipe) != NULL);
    pclose(pipe);
}

/* Domains leave no queue pair, region, queue behind, whether their links were opened, failed, or never asked for. */
static void case_nothing_is_left(struct rig_rank *rank, const void *arg)
{
    char before[256], after[256];
    struct rig_dom dom;

    (void)arg;
    rig_barrier(rank);
    count_resources(before, sizeof before);
    rig_barrier(rank);
    for (int i = 0; i < 6; i++) {
        rig_dom_open(rank, 2, 0, &dom);
        RIG_EQUAL(stream(&dom, 0, 5), HKT_OK);
        rig_barrier(rank);
        if (i % 3 == 1 && rank->rank == 0)
            force_to_error(&link_of(dom.tx[1][0])->paths[0]);
        if (i % 3 == 1)
            RIG_CHECK(stream(&dom, 5, 500) < 0);
        rig_barrier(rank);
        if (i == 0) { /* the counter counts */
            count_resources(after, sizeof after);
            RIG_CHECK(strcmp(before, after) != 0);
            rig_barrier(rank);
        }
        rig_dom_close(&dom);
    }
    rig_barrier(rank);
    count_resources(after, sizeof after);
    if (strcmp(before, after) != 0)
        rig_fail(__FILE__, __LINE__, "before: %s after: %s", before, after);
    rig_barrier(rank);
}

static const struct {
    const char *name;
    rig_body *body;
    int arg;
    const char *qps, *rnr_retry;
} cases[] = {
    { "queue_pair_fails", case_queue_pair_fails, 0, "1", "7" },
    { "device_is_removed", case_device_is_removed, 0, "1", "7" },
    { "paths_fail_in_turn", case_paths_fail_in_turn, 0, "4", "7" },
    { "not_ready", case_not_ready, 0, "1", "1" },
    { "not_ready_yet", case_not_ready, 1, "1", "7" },
    { "calls_per_small_message", case_calls_per_message, 0, "1", "7" },
    { "calls_of_one_way", case_calls_per_message, 1, "1", "7" },
    { "calls_per_slice", case_calls_per_message, 2, "1", "7" },
    { "nothing_is_left", case_nothing_is_left, 0, "1", "7" },
};

int main(void)
{
    int nfailed = 0;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct rig_opts opts = { .transport = "verbs", .nranks = 2, .deadline_ms = 60000, .victim = -1 };
        const int64_t start_ms = rig_now_ms();

        setenv("HOCKET_IB_QPS", cases[i].qps, 1); /* read by the ranks, which are forked */
        setenv("HOCKET_IB_RNR_RETRY", cases[i].rnr_retry, 1);
        const int rc = rig_run(&opts, cases[i].body, &cases[i].arg);

        nfailed += rc != 0;
        printf("%s %zu %s (%lld ms)\n", rc == 0 ? "ok" : "not ok", i + 1, cases[i].name, (long long)(rig_now_ms() - start_ms));
        fflush(stdout);
    }
    printf("1..%zu\n", sizeof cases / sizeof cases[0]);
    return nfailed > 0;
}
