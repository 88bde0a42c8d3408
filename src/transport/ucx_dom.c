/* ucx: domains. Who sleeps (park) waits for the worker's descriptor and for wake_fd, which is written by hkt__ucx_wake, and
 * by the pump when it has moved something while the user slept. */
#include "transport/ucx.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#define PUMP_TICK_NS 1000000 /* as long as the user's calls go on, the pump looks this often whether they still do */
#define PROGRESS_MAX 16      /* calls of ucp_worker_progress in a row */

enum hkt_status hkt__ucx_fail(ucs_status_t why, const char *what)
{
    const enum hkt_status status = why == UCS_ERR_NO_MEMORY ? HKT_ERR_NOMEM : HKT_ERR_SYSTEM;

    return hkt__fail(status, "ucx: failed %s: %s", what, ucs_status_string(why));
}

/* ---- work ---- */

/** Fetch what was offered, but for the oldest frame of a link: whoever asks for that one may want it elsewhere. */
static void fetch_ahead(struct hkt__ucx_dom *dom)
{
    for (size_t i = 0; dom->fetchable > 0 && i < (size_t)dom->nranks * (size_t)dom->lanes; i++) {
        struct hkt__ucx_rx *rx = dom->links[i] != NULL ? &dom->links[i]->rx : NULL;

        for (uint32_t ahead = 1; rx != NULL && ahead < HKT__UCX_SLOTS; ahead++) {
            const uint32_t place = (rx->seq + ahead) % HKT__UCX_SLOTS;

            if (rx->frames[place].state != HKT__UCX_OFFERED)
                continue;
            dom->fetchable--;
            hkt__ucx_fetch(&rx->frames[place], rx->memory + (size_t)place * HKT__UCX_FRAME_BYTES);
        }
    }
}

static bool work(struct hkt__ucx_dom *dom)
{
    int count = 0;

    while (count < PROGRESS_MAX && ucp_worker_progress(dom->worker) != 0)
        count++;
    if (dom->fetchable > 0)
        fetch_ahead(dom);
    return count > 0;
}

void hkt__ucx_progress(struct hkt__ucx_dom *dom)
{
    (void)work(dom);
}

/* ---- the pump ---- */

/** Sleep until the worker has something to do, or a tick has passed. Under the lock, which is open meanwhile. */
static void wait_for_worker(struct hkt__ucx_dom *dom)
{
    struct pollfd ready = {.fd = dom->efd, .events = POLLIN};

    if (ucp_worker_arm(dom->worker) != UCS_OK)
        return;
    pthread_mutex_unlock(&dom->lock);
    (void)poll(&ready, 1, 1);
    pthread_mutex_lock(&dom->lock);
}

/* Works while sends are under way and the user makes no calls. */
static void *pump_main(void *arg)
{
    struct hkt__ucx_dom *dom = arg;

    pthread_mutex_lock(&dom->lock);
    while (!dom->is_closing) {
        const uint64_t calls = dom->calls;

        if (dom->flying == 0) {
            pthread_cond_wait(&dom->work, &dom->lock);
            continue;
        }
        hkt__cond_wait_ns(&dom->work, &dom->lock, PUMP_TICK_NS);
        while (dom->calls == calls && dom->flying > 0 && !dom->is_closing) {
            const bool moved = work(dom);

            /* Acquire: pairs with the release in park, whose sleeper must not miss what has moved. */
            if (moved && atomic_load_explicit(&dom->is_parked, memory_order_acquire))
                (void)eventfd_write(dom->wake_fd, 1);
            if (!moved)
                wait_for_worker(dom);
        }
    }
    pthread_mutex_unlock(&dom->lock);
    return NULL;
}

void hkt__ucx_landed(struct hkt__ucx_peer *peer)
{
    peer->flying--;
    peer->dom->flying--;
}

void hkt__ucx_took_off(struct hkt__ucx_peer *peer)
{
    struct hkt__ucx_dom *dom = peer->dom;

    peer->flying++;
    if (dom->flying++ > 0)
        return;
    if (!dom->has_pump && !dom->is_closing)
        dom->has_pump = pthread_create(&dom->pump, NULL, pump_main, dom) == 0; /* failing: sends go on in later calls */
    pthread_cond_signal(&dom->work);
}

/* ---- sleeping ---- */

/** Has a peer's process ended that UCX does not watch? */
static void look_for_ends(struct hkt__ucx_dom *dom)
{
    for (int r = 0; r < dom->nranks; r++) {
        struct hkt__ucx_peer *peer = &dom->peers[r];
        struct pollfd end = {.fd = peer->pidfd, .events = POLLIN};

        if (peer->ep != NULL && peer->pidfd >= 0 && peer->why == UCS_OK && poll(&end, 1, 0) > 0)
            peer->why = UCS_ERR_CONNECTION_RESET;
    }
}

void hkt__ucx_park(struct hkt__tp_dom *tp_dom, int64_t timeout_ns)
{
    struct hkt__ucx_dom *dom = (struct hkt__ucx_dom *)tp_dom;
    struct pollfd ready[2] = {{.fd = dom->efd, .events = POLLIN}, {.fd = dom->wake_fd, .events = POLLIN}};
    const struct timespec limit = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    eventfd_t count;

    pthread_mutex_lock(&dom->lock);
    const bool is_quiet = ucp_worker_arm(dom->worker) == UCS_OK;

    if (!is_quiet)
        (void)work(dom);
    else
        look_for_ends(dom);
    /* Release, and under the lock: the pump moves nothing before it is set and after we have looked. */
    atomic_store_explicit(&dom->is_parked, true, memory_order_release);
    pthread_mutex_unlock(&dom->lock);
    if (is_quiet && timeout_ns > 0)
        (void)ppoll(ready, 2, &limit, NULL);
    atomic_store_explicit(&dom->is_parked, false, memory_order_release);
    (void)eventfd_read(dom->wake_fd, &count); /* does not block; nothing there: nobody woke us */
}

void hkt__ucx_wake(struct hkt__tp_dom *tp_dom)
{
    (void)eventfd_write(((struct hkt__ucx_dom *)tp_dom)->wake_fd, 1);
}

/* ---- opening ---- */

static enum hkt_status make_worker(struct hkt__ucx_dom *dom)
{
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED, .am_alignment = HKT__UCX_ALIGN};
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = HKT__UCX_AM_ID, .flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA, .cb = hkt__ucx_arrived,
        .arg = dom};
    ucs_status_t rc = ucp_worker_create(dom->ucx->context, &params, &dom->worker);

    if (rc != UCS_OK) {
        dom->worker = NULL;
        return hkt__ucx_fail(rc, "to create a worker");
    }
    rc = ucp_worker_set_am_recv_handler(dom->worker, &handler);
    if (rc == UCS_OK)
        rc = ucp_worker_get_efd(dom->worker, &dom->efd);
    return rc == UCS_OK ? HKT_OK : hkt__ucx_fail(rc, "to set up a worker");
}

static enum hkt_status take_address(struct hkt__ucx_dom *dom, struct hkt__ucx_dom_blob *out_blob)
{
    ucp_address_t *address;
    size_t bytes;
    const ucs_status_t rc = ucp_worker_get_address(dom->worker, &address, &bytes);
    enum hkt_status status = HKT_OK;

    if (rc != UCS_OK)
        return hkt__ucx_fail(rc, "to tell a worker's address");
    if (bytes > sizeof out_blob->address)
        status = hkt__fail(HKT_ERR_UNSUPPORTED, "ucx: an address takes %zu bytes where %zu may be: this host has too many "
                           "network devices; name those to use (HOCKET_INTERFACE, or UCX_NET_DEVICES)", bytes,
                           sizeof out_blob->address);
    else
        memcpy(out_blob->address, address, bytes);
    out_blob->address_bytes = (uint16_t)bytes;
    ucp_worker_release_address(dom->worker, address);
    return status;
}

static enum hkt_status draw_nonce(uint64_t *out_nonce)
{
    *out_nonce = 0;
    while (*out_nonce == 0)
        if (getrandom(out_nonce, sizeof *out_nonce, 0) != (ssize_t)sizeof *out_nonce && errno != EINTR)
            return hkt__fail_sys(HKT_ERR_SYSTEM, "ucx: no random bytes from the system (getrandom)");
    return HKT_OK;
}

static void dom_free(struct hkt__ucx_dom *dom)
{
    if (dom->worker != NULL)
        ucp_worker_destroy(dom->worker);
    if (dom->wake_fd >= 0)
        close(dom->wake_fd);
    for (int r = 0; dom->peers != NULL && r < dom->nranks; r++)
        if (dom->peers[r].pidfd >= 0)
            close(dom->peers[r].pidfd);
    for (size_t i = 0; dom->links != NULL && i < (size_t)dom->nranks * (size_t)dom->lanes; i++)
        hkt__ucx_link_destroy(dom->links[i]);
    pthread_cond_destroy(&dom->work);
    pthread_mutex_destroy(&dom->lock);
    hkt__free(dom->members);
    hkt__free(dom->peers);
    hkt__free(dom->links);
    hkt__free(dom->greeted);
    hkt__free(dom);
}

static enum hkt_status dom_fill(struct hkt__ucx_dom *dom, struct hkt__ucx_dom_blob *out_blob)
{
    const size_t n = (size_t)dom->nranks, links = n * (size_t)dom->lanes;
    enum hkt_status rc;

    dom->members = hkt__calloc(n, sizeof *dom->members);
    dom->peers = hkt__calloc(n, sizeof *dom->peers);
    dom->links = hkt__calloc(links, sizeof *dom->links);
    dom->greeted = hkt__calloc(links, sizeof *dom->greeted);
    if (dom->members == NULL || dom->peers == NULL || dom->links == NULL || dom->greeted == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a domain of %d ranks", dom->nranks);
    for (int r = 0; r < dom->nranks; r++) {
        dom->peers[r].dom = dom;
        dom->peers[r].rank = r;
        dom->peers[r].pidfd = -1;
    }
    dom->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (dom->wake_fd < 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "ucx: eventfd");
    rc = draw_nonce(&dom->nonce);
    if (rc == HKT_OK)
        rc = make_worker(dom);
    out_blob->nonce = dom->nonce;
    return rc == HKT_OK ? take_address(dom, out_blob) : rc;
}

enum hkt_status hkt__ucx_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members, struct hkt__tp_dom **out_dom,
                                  void *out_blob, size_t *out_bytes)
{
    struct hkt__ucx_dom *dom = hkt__calloc(1, sizeof *dom);
    struct hkt__ucx_dom_blob blob = {0};

    if (dom == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a domain");
    dom->dom.ops = tp->ops;
    dom->ucx = (struct hkt__ucx *)tp;
    dom->nranks = members->nranks;
    dom->rank = members->rank;
    dom->lanes = members->lanes;
    dom->job_ranks = members->job_ranks;
    dom->wake_fd = -1;
    pthread_mutex_init(&dom->lock, NULL);
    (void)hkt__cond_init(&dom->work);
    const enum hkt_status rc = dom_fill(dom, &blob);

    if (rc < 0) {
        dom_free(dom);
        return rc;
    }
    memcpy(out_blob, &blob, sizeof blob);
    *out_bytes = sizeof blob;
    *out_dom = &dom->dom;
    return HKT_OK;
}

enum hkt_status hkt__ucx_dom_connect(struct hkt__tp_dom *tp_dom, const unsigned char *blobs, const size_t *bytes,
                                     const unsigned char *use)
{
    struct hkt__ucx_dom *dom = (struct hkt__ucx_dom *)tp_dom;

    for (int r = 0; r < dom->nranks; r++)
        if (r != dom->rank && use[r] && bytes[r] == sizeof dom->members[r])
            memcpy(&dom->members[r], blobs + (size_t)r * HKT__TP_BLOB_MAX, sizeof dom->members[r]);
    return HKT_OK;
}

/* ---- closing; the pump has ended ---- */

static bool is_aborted(const struct hkt__ucx_dom *dom)
{
    const _Atomic int *word = dom->ucx->abort_word;

    /* Relaxed: a stop sign, nothing is read behind it. */
    return word != NULL && atomic_load_explicit(word, memory_order_relaxed) != 0;
}

static void nap(struct hkt__ucx_dom *dom)
{
    struct pollfd ready = {.fd = dom->efd, .events = POLLIN};

    look_for_ends(dom);
    if (ucp_worker_arm(dom->worker) == UCS_OK)
        (void)poll(&ready, 1, 1);
}

/** Messages under way to peers that may still take them. */
static int deliverable(const struct hkt__ucx_dom *dom)
{
    int count = 0;

    for (int r = 0; r < dom->nranks; r++)
        count += dom->peers[r].why == UCS_OK && !dom->peers[r].is_leaving ? dom->peers[r].flying : 0;
    return count;
}

/** Until UCX has sent everything, for as long as something moves. */
static void flush_out(struct hkt__ucx_dom *dom)
{
    int64_t deadline_ns = hkt__now_ns() + HKT__UCX_FLUSH_NS;
    int left;

    while ((left = deliverable(dom)) > 0 && hkt__now_ns() < deadline_ns && !is_aborted(dom)) {
        if (!work(dom))
            nap(dom);
        if (deliverable(dom) < left)
            deadline_ns = hkt__now_ns() + HKT__UCX_FLUSH_NS;
    }
    if (left > 0)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "ucx: closed with %d messages that peers did not take", left);
}

/** Has a peer yet to say that it has everything, or that it leaves too? */
static bool is_awaited(const struct hkt__ucx_dom *dom, const struct hkt__ucx_peer *peer)
{
    bool is_open = false;

    for (int lane = 0; lane < dom->lanes; lane++)
        is_open |= dom->greeted[(size_t)peer->rank * (size_t)dom->lanes + (size_t)lane];
    return is_open && peer->ep != NULL && peer->why == UCS_OK && !peer->has_heard && !peer->is_leaving;
}

/** A connection that is closed with unread data is reset, and takes what is on its way to the peer along. So both ends
 *  tell each other when they have everything. */
static void say_farewell(struct hkt__ucx_dom *dom)
{
    const int64_t deadline_ns = hkt__now_ns() + HKT__UCX_FAREWELL_NS;
    bool is_busy = true;

    for (int r = 0; r < dom->nranks; r++)
        if (is_awaited(dom, &dom->peers[r]))
            hkt__ucx_tell(&dom->peers[r].bye, &dom->peers[r], HKT__UCX_BYE);
    while (is_busy && hkt__now_ns() < deadline_ns && !is_aborted(dom)) {
        is_busy = false;
        for (int r = 0; r < dom->nranks; r++)
            is_busy |= is_awaited(dom, &dom->peers[r]) || (dom->peers[r].why == UCS_OK && dom->peers[r].bye_heard.is_busy);
        if (is_busy && !work(dom))
            nap(dom);
    }
}

static void let_frames_go(struct hkt__ucx_dom *dom)
{
    for (size_t i = 0; i < (size_t)dom->nranks * (size_t)dom->lanes; i++)
        for (int k = 0; dom->links[i] != NULL && k < HKT__UCX_SLOTS; k++) {
            struct hkt__ucx_frame *frame = &dom->links[i]->rx.frames[k];

            if (frame->held != NULL)
                ucp_am_data_release(dom->worker, frame->held);
            frame->held = NULL;
        }
}

/** Endpoints end at once: what could be sent has been. Their requests complete, with errors, within this. */
static void close_endpoints(struct hkt__ucx_dom *dom)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};

    for (int r = 0; r < dom->nranks; r++) {
        if (dom->peers[r].ep == NULL)
            continue;
        const ucs_status_ptr_t request = ucp_ep_close_nbx(dom->peers[r].ep, &param);

        if (!UCS_PTR_IS_PTR(request))
            continue;
        for (int64_t end_ns = hkt__now_ns() + HKT__UCX_FLUSH_NS;
             ucp_request_check_status(request) == UCS_INPROGRESS && hkt__now_ns() < end_ns;)
            (void)ucp_worker_progress(dom->worker);
        ucp_request_free(request);
    }
}

void hkt__ucx_dom_close(struct hkt__tp_dom *tp_dom)
{
    struct hkt__ucx_dom *dom = (struct hkt__ucx_dom *)tp_dom;

    if (dom == NULL)
        return;
    pthread_mutex_lock(&dom->lock);
    dom->is_closing = true;
    pthread_cond_signal(&dom->work);
    pthread_mutex_unlock(&dom->lock);
    if (dom->has_pump)
        pthread_join(dom->pump, NULL);
    pthread_mutex_lock(&dom->lock);
    flush_out(dom);
    say_farewell(dom);
    let_frames_go(dom);
    close_endpoints(dom);
    pthread_mutex_unlock(&dom->lock);
    dom_free(dom);
}
