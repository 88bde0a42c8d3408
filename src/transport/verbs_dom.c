/* Domains of verbs: completion queues, one per NIC for all links; sleeping; closing.
 *
 * Sleeping: a sleeper arms its queues (ibv_req_notify_cq), looks once more, and then waits for their event channels, so that
 * no completion is missed. While links are being opened it sleeps on tcp, whose messages open them. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "transport/verbs.h"

#define BATCH 16
#define QUEUE_MIN 256                       /* entries of a new completion queue */
#define WIRE_PARK_NS INT64_C(2000000)       /* longest sleep on tcp where verbs may have news too */
#define FLUSH_NS INT64_C(5000000000)        /* closing: for frames under way */
#define FLUSH_LOOK_NS INT64_C(2000000)      /* between looks whether the peer is gone: it does not acknowledge then */

static struct hkt__verbs_dom *dom_of(struct hkt__tp_dom *dom)
{
    return (struct hkt__verbs_dom *)dom;
}

/* ---- completion queues ---- */

static enum hkt_status create_queue(struct hkt__verbs_dom *dom, int rail, int entries)
{
    const struct hkt__verbs_rail *r = &dom->verbs->rails[rail];
    struct hkt__verbs_queue *queue = &dom->queues[rail];

    queue->channel = ibv_create_comp_channel(r->context);
    if (queue->channel != NULL)
        queue->cq = ibv_create_cq(r->context, entries, NULL, queue->channel, 0);
    if (queue->cq == NULL)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "verbs: %s cannot make a completion queue of %d entries", r->port.device, entries);
    queue->entries = queue->cq->cqe;
    const int flags = fcntl(queue->channel->fd, F_GETFL);

    if (flags < 0 || fcntl(queue->channel->fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "verbs: the event channel of %s cannot be polled", r->port.device);
    return HKT_OK;
}

enum hkt_status hkt__verbs_queue_reserve(struct hkt__verbs_dom *dom, int rail, int entries)
{
    const struct hkt__verbs_rail *r = &dom->verbs->rails[rail];
    struct hkt__verbs_queue *queue = &dom->queues[rail];
    int need = queue->used + entries, want = QUEUE_MIN;

    while (want < need)
        want *= 2;
    if (want > r->cqe_max)
        want = need;
    if (queue->cq == NULL) {
        const enum hkt_status rc = create_queue(dom, rail, want);

        if (rc < 0)
            return rc;
    }
    if (queue->entries < need) {
        const int rc = ibv_resize_cq(queue->cq, want);

        if (rc != 0) {
            errno = rc;
            return hkt__fail_sys(HKT_ERR_SYSTEM, "verbs: the completion queue of %s cannot grow to %d entries (it may have %d); "
                                 "fewer HOCKET_IB_SLOTS, HOCKET_IB_QPS or HOCKET_LANES need less", r->port.device, want,
                                 r->cqe_max);
        }
        queue->entries = queue->cq->cqe;
    }
    queue->used = need;
    return HKT_OK;
}

bool hkt__verbs_progress(struct hkt__verbs_dom *dom)
{
    bool any = false;

    for (int rail = 0; rail < dom->verbs->nrails; rail++) {
        struct ibv_wc wcs[BATCH];
        const int count = dom->queues[rail].cq != NULL ? ibv_poll_cq(dom->queues[rail].cq, BATCH, wcs) : 0;

        for (int i = 0; i < count; i++)
            hkt__verbs_path_complete(dom, &wcs[i]);
        dom->counts.polls += dom->queues[rail].cq != NULL;
        dom->counts.vain += dom->queues[rail].cq != NULL && count == 0;
        any |= count > 0;
    }
    return any;
}

static void close_queue(struct hkt__verbs_queue *queue)
{
    if (queue->cq != NULL) {
        if (queue->unacked > 0)
            ibv_ack_cq_events(queue->cq, queue->unacked);
        (void)ibv_destroy_cq(queue->cq);
    }
    if (queue->channel != NULL)
        (void)ibv_destroy_comp_channel(queue->channel);
}

/* ---- opening ---- */

static void free_dom(struct hkt__verbs_dom *dom)
{
    if (dom->wake_fd >= 0)
        close(dom->wake_fd);
    pthread_mutex_destroy(&dom->pins.lock);
    hkt__free(dom->use);
    hkt__free(dom->links);
    hkt__free(dom);
}

enum hkt_status hkt__verbs_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members,
                                    struct hkt__tp_dom **out_dom, void *out_blob, size_t *out_bytes)
{
    struct hkt__verbs *verbs = (struct hkt__verbs *)tp;
    struct hkt__verbs_dom *dom = hkt__calloc(1, sizeof *dom);

    if (dom == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for a communicator");
    pthread_mutex_init(&dom->pins.lock, NULL);
    dom->dom.ops = tp->ops;
    dom->verbs = verbs;
    dom->nranks = members->nranks;
    dom->rank = members->rank;
    dom->lanes = members->lanes;
    dom->job_ranks = members->job_ranks;
    dom->use = hkt__calloc((size_t)members->nranks, 1);
    dom->links = hkt__calloc((size_t)members->nranks * (size_t)members->lanes, sizeof *dom->links);
    dom->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum hkt_status rc = HKT_OK;

    if (dom->use == NULL || dom->links == NULL)
        rc = hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for a communicator of %d ranks", members->nranks);
    else if (dom->wake_fd < 0)
        rc = hkt__fail_sys(HKT_ERR_SYSTEM, "verbs: eventfd (ulimit -n)");
    else
        rc = verbs->wire->ops->dom_open(verbs->wire, members, &dom->wire, out_blob, out_bytes);
    if (rc < 0) {
        free_dom(dom);
        return rc;
    }
    *out_dom = &dom->dom;
    return HKT_OK;
}

enum hkt_status hkt__verbs_dom_connect(struct hkt__tp_dom *tp_dom, const unsigned char *blobs, const size_t *bytes,
                                       const unsigned char *use)
{
    struct hkt__verbs_dom *dom = dom_of(tp_dom);

    memcpy(dom->use, use, (size_t)dom->nranks);
    return dom->wire->ops->dom_connect(dom->wire, blobs, bytes, use);
}

/* ---- sleeping ---- */

void hkt__verbs_wake(struct hkt__tp_dom *tp_dom)
{
    struct hkt__verbs_dom *dom = dom_of(tp_dom);
    const uint64_t one = 1;

    atomic_store_explicit(&dom->woken, 1, memory_order_release); /* pairs with the exchange in park */
    dom->wire->ops->wake(dom->wire);
    if (write(dom->wake_fd, &one, sizeof one) < 0)
        return; /* the counter is full: it wakes already */
}

/** Arm all queues. False: there may be completions already, or there is none to wait for. */
static bool arm(struct hkt__verbs_dom *dom)
{
    for (int rail = 0; rail < dom->verbs->nrails; rail++)
        if (dom->queues[rail].cq != NULL && ibv_req_notify_cq(dom->queues[rail].cq, 0) != 0)
            return false;
    return !hkt__verbs_progress(dom);
}

static void take_events(struct hkt__verbs_queue *queue)
{
    struct ibv_cq *cq;
    void *context;

    while (ibv_get_cq_event(queue->channel, &cq, &context) == 0)
        queue->unacked++;
    if (queue->unacked > 1000) { /* in batches: it takes a lock */
        ibv_ack_cq_events(queue->cq, queue->unacked);
        queue->unacked = 0;
    }
}

/** Whichever domain looks first takes the events of the device; what matters to all is kept with the rail. */
static void take_async_events(struct hkt__verbs_rail *rail)
{
    struct pollfd fd = {.fd = rail->context->async_fd, .events = POLLIN};
    struct ibv_async_event event;

    while (poll(&fd, 1, 0) > 0 && (fd.revents & POLLIN) != 0 && ibv_get_async_event(rail->context, &event) == 0) {
        const bool is_port = event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE;

        if (is_port && event.element.port_num == rail->port.port)
            atomic_store_explicit(&rail->is_down, event.event_type == IBV_EVENT_PORT_ERR, memory_order_relaxed);
        if (event.event_type == IBV_EVENT_DEVICE_FATAL)
            atomic_store_explicit(&rail->is_gone, true, memory_order_relaxed);
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "verbs: %s:%d: %s", rail->port.device, rail->port.port,
                 ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
}

static void sleep_on_queues(struct hkt__verbs_dom *dom, int64_t timeout_ns)
{
    const struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    struct pollfd fds[2 * HKT__VERBS_RAILS_MAX + 1];
    const int nrails = dom->verbs->nrails;

    for (int i = 0; i < nrails; i++) {
        const struct ibv_comp_channel *channel = dom->queues[i].channel;

        fds[i] = (struct pollfd){.fd = channel != NULL ? channel->fd : -1, .events = POLLIN};
        fds[nrails + i] = (struct pollfd){.fd = dom->verbs->rails[i].context->async_fd, .events = POLLIN};
    }
    fds[2 * nrails] = (struct pollfd){.fd = dom->wake_fd, .events = POLLIN};
    dom->counts.sleeps++;
    if (ppoll(fds, (nfds_t)(2 * nrails + 1), &timeout, NULL) <= 0)
        return;
    for (int i = 0; i < nrails; i++) {
        if (fds[i].revents != 0)
            take_events(&dom->queues[i]);
        if (fds[nrails + i].revents != 0)
            take_async_events(&dom->verbs->rails[i]);
    }
}

void hkt__verbs_park(struct hkt__tp_dom *tp_dom, int64_t timeout_ns)
{
    struct hkt__verbs_dom *dom = dom_of(tp_dom);
    uint64_t ignored;

    /* A wake after this finds the sleeper by the descriptor; one before it is seen here. */
    if (atomic_exchange_explicit(&dom->woken, 0, memory_order_acquire) == 0 && arm(dom)) {
        if (dom->connecting > 0 || dom->moved > 0)
            dom->wire->ops->park(dom->wire, timeout_ns < WIRE_PARK_NS ? timeout_ns : WIRE_PARK_NS);
        else
            sleep_on_queues(dom, timeout_ns);
    }
    if (read(dom->wake_fd, &ignored, sizeof ignored) > 0)
        atomic_store_explicit(&dom->woken, 0, memory_order_relaxed); /* the caller looks at everything now */
}

/* ---- closing ---- */

static bool is_aborted(const struct hkt__verbs_dom *dom)
{
    /* Relaxed: a stop sign, nothing is read behind it. */
    return dom->verbs->abort_word != NULL && atomic_load_explicit(dom->verbs->abort_word, memory_order_relaxed) != 0;
}

/** Frames are under way to a peer that has not hung up; when it was looked whether it has, it is asked to acknowledge them. */
static bool is_flying(struct hkt__verbs_dom *dom, bool look)
{
    bool any = false;

    for (size_t i = 0; i < (size_t)dom->nranks * (size_t)dom->lanes; i++) {
        struct hkt__verbs_link *link = dom->links[i];

        if (link == NULL || link->stage != HKT__VERBS_OPEN || link->failed != HKT_OK || !hkt__verbs_chan_is_flying(link) ||
            (look && hkt__verbs_link_listen(link)))
            continue;
        if (look)
            hkt__verbs_chan_ask(link);
        any = true;
    }
    return any;
}

static void log_counts(const struct hkt__verbs_counts *counts)
{
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "verbs: %" PRIu64 " posts, %" PRIu64 " of them for credit alone, %" PRIu64
             " and %" PRIu64 " completions of what was sent and received, %" PRIu64 " refills, %" PRIu64 " polls, %" PRIu64
             " of them in vain, %" PRIu64 " sleeps", counts->posts, counts->credits, counts->acks, counts->arrivals,
             counts->refills, counts->polls, counts->vain, counts->sleeps);
}

/** A frame that was sent must arrive, though this end closes now: until the peers' adapters have acknowledged all. */
static void flush(struct hkt__verbs_dom *dom)
{
    const int64_t end_ns = hkt__now_ns() + FLUSH_NS;
    int64_t look_ns = 0;

    while (is_flying(dom, hkt__now_ns() >= look_ns) && hkt__now_ns() < end_ns && !is_aborted(dom)) {
        if (hkt__now_ns() >= look_ns)
            look_ns = hkt__now_ns() + FLUSH_LOOK_NS;
        if (!hkt__verbs_progress(dom) && arm(dom))
            sleep_on_queues(dom, 1000000);
    }
    if (is_flying(dom, false))
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "verbs: closed with frames that a peer has not acknowledged");
}

void hkt__verbs_dom_close(struct hkt__tp_dom *tp_dom)
{
    struct hkt__verbs_dom *dom = dom_of(tp_dom);

    if (dom == NULL)
        return;
    flush(dom);
    log_counts(&dom->counts);
    for (size_t i = 0; i < (size_t)dom->nranks * (size_t)dom->lanes; i++)
        hkt__verbs_link_destroy(dom->links[i]);
    for (int rail = 0; rail < HKT__VERBS_RAILS_MAX; rail++)
        close_queue(&dom->queues[rail]);
    hkt__verbs_mem_fini(dom);
    dom->wire->ops->dom_close(dom->wire);
    free_dom(dom);
}
