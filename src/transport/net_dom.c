/* net: domains. Nothing of a plugin can be slept on, so who sleeps does so for a while, longer and longer as long as nothing
 * comes, and then looks. */
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "transport/net.h"

#define NAP_MIN_NS INT64_C(20000)
#define NAP_MAX_NS INT64_C(1000000)
#define PUMP_TICK_NS INT64_C(1000000)    /* as long as the user's calls go on, the pump looks this often whether they still do */
#define PUMP_NAP_NS INT64_C(100000)
#define FLUSH_NS INT64_C(2000000000)     /* dom_close: for what the plugin has not sent, since it last sent something */

static struct hkt__net_dom *dom_of(struct hkt__tp_dom *tp_dom)
{
    return (struct hkt__net_dom *)tp_dom;
}

static size_t link_count(const struct hkt__net_dom *dom)
{
    return (size_t)dom->nranks * (size_t)dom->lanes;
}

/* ---- work; under the lock ---- */

bool hkt__net_push(struct hkt__net_dom *dom)
{
    bool is_moving = false;

    for (size_t i = 0; i < link_count(dom) && dom->flying > 0; i++) {
        struct hkt__net_link *link = dom->links[i];

        if (link != NULL && link->stage == HKT__NET_OPEN && link->failed == HKT_OK && link->tx.done != link->tx.seq - 1)
            is_moving |= hkt__net_chan_push(link);
    }
    return is_moving;
}

static bool pull(struct hkt__net_dom *dom)
{
    bool is_moving = false;

    for (size_t i = 0; i < link_count(dom); i++)
        if (dom->links[i] != NULL && dom->links[i]->stage == HKT__NET_OPEN && dom->links[i]->failed == HKT_OK)
            is_moving |= hkt__net_chan_pull(dom->links[i]);
    return is_moving;
}

/** Frames that links which are well have yet to send. */
static int deliverable(const struct hkt__net_dom *dom)
{
    int count = 0;

    for (size_t i = 0; i < link_count(dom); i++) {
        const struct hkt__net_link *link = dom->links[i];

        if (link != NULL && link->stage == HKT__NET_OPEN && link->failed == HKT_OK && !link->is_leaving)
            count += (int)(link->tx.seq - 1 - link->tx.done);
    }
    return count;
}

/* ---- the pump ---- */

/* Works while frames are to be sent and the user makes no calls. */
static void *pump_main(void *arg)
{
    struct hkt__net_dom *dom = arg;

    pthread_mutex_lock(&dom->lock);
    while (!dom->is_closing) {
        const uint64_t calls = dom->calls;

        if (deliverable(dom) == 0) {
            dom->is_pump_idle = true;
            pthread_cond_wait(&dom->work, &dom->lock);
            dom->is_pump_idle = false;
            continue;
        }
        hkt__cond_wait_ns(&dom->work, &dom->lock, PUMP_TICK_NS);
        while (dom->calls == calls && deliverable(dom) > 0 && !dom->is_closing)
            if (!hkt__net_push(dom))
                hkt__cond_wait_ns(&dom->work, &dom->lock, PUMP_NAP_NS);
    }
    pthread_mutex_unlock(&dom->lock);
    return NULL;
}

void hkt__net_took_off(struct hkt__net_dom *dom)
{
    dom->flying++;
    if (!dom->has_pump && !dom->is_closing)
        dom->has_pump = pthread_create(&dom->pump, NULL, pump_main, dom) == 0; /* failing: frames go on in later calls */
    if (dom->is_pump_idle)
        pthread_cond_signal(&dom->work);
}

/* ---- sleeping ---- */

void hkt__net_wake(struct hkt__tp_dom *tp_dom)
{
    struct hkt__net_dom *dom = dom_of(tp_dom);

    dom->wire->ops->wake(dom->wire);
    (void)eventfd_write(dom->wake_fd, 1);
}

void hkt__net_park(struct hkt__tp_dom *tp_dom, int64_t timeout_ns)
{
    struct hkt__net_dom *dom = dom_of(tp_dom);
    struct pollfd ready = {.fd = dom->wake_fd, .events = POLLIN};
    eventfd_t count;

    pthread_mutex_lock(&dom->lock);
    dom->calls++;
    bool is_moving = hkt__net_push(dom);

    is_moving |= pull(dom);
    dom->nap_ns = is_moving || dom->nap_ns == 0 ? NAP_MIN_NS : dom->nap_ns < NAP_MAX_NS / 2 ? 2 * dom->nap_ns : NAP_MAX_NS;
    const int64_t nap_ns = timeout_ns < dom->nap_ns ? timeout_ns : dom->nap_ns;
    const struct timespec limit = {.tv_nsec = nap_ns > 0 ? nap_ns : 0};

    pthread_mutex_unlock(&dom->lock);
    if (is_moving)
        return;
    if (dom->wire_users > 0)
        dom->wire->ops->park(dom->wire, nap_ns);
    else
        (void)ppoll(&ready, 1, &limit, NULL);
    (void)eventfd_read(dom->wake_fd, &count); /* does not block; nothing there: nobody woke us */
}

/* ---- opening ---- */

static void dom_free(struct hkt__net_dom *dom)
{
    if (dom->wake_fd >= 0)
        close(dom->wake_fd);
    pthread_cond_destroy(&dom->work);
    pthread_mutex_destroy(&dom->lock);
    hkt__free(dom->use);
    hkt__free(dom->links);
    hkt__free(dom);
}

enum hkt_status hkt__net_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members, struct hkt__tp_dom **out_dom,
                                  void *out_blob, size_t *out_bytes)
{
    struct hkt__net *net = (struct hkt__net *)tp;
    struct hkt__net_dom *dom = hkt__calloc(1, sizeof *dom);
    enum hkt_status rc;

    if (dom == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "net: no memory for a communicator");
    dom->dom.ops = tp->ops;
    dom->net = net;
    dom->nranks = members->nranks;
    dom->rank = members->rank;
    dom->lanes = members->lanes;
    dom->job_ranks = members->job_ranks;
    dom->use = hkt__calloc((size_t)members->nranks, 1);
    dom->links = hkt__calloc(link_count(dom), sizeof(struct hkt__net_link *));
    dom->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&dom->lock, NULL);
    (void)hkt__cond_init(&dom->work);
    if (dom->use == NULL || dom->links == NULL)
        rc = hkt__fail(HKT_ERR_NOMEM, "net: no memory for a communicator of %d ranks", members->nranks);
    else if (dom->wake_fd < 0)
        rc = hkt__fail_sys(HKT_ERR_SYSTEM, "net: eventfd (ulimit -n)");
    else
        rc = net->wire->ops->dom_open(net->wire, members, &dom->wire, out_blob, out_bytes);
    if (rc < 0) {
        dom_free(dom);
        return rc;
    }
    *out_dom = &dom->dom;
    return HKT_OK;
}

enum hkt_status hkt__net_dom_connect(struct hkt__tp_dom *tp_dom, const unsigned char *blobs, const size_t *bytes,
                                     const unsigned char *use)
{
    struct hkt__net_dom *dom = dom_of(tp_dom);

    memcpy(dom->use, use, (size_t)dom->nranks);
    return dom->wire->ops->dom_connect(dom->wire, blobs, bytes, use);
}

/* ---- closing ---- */

static bool is_aborted(const struct hkt__net_dom *dom)
{
    /* Relaxed: a stop sign, nothing is read behind it. */
    return dom->net->abort_word != NULL && atomic_load_explicit(dom->net->abort_word, memory_order_relaxed) != 0;
}

static void stop_pump(struct hkt__net_dom *dom)
{
    pthread_mutex_lock(&dom->lock);
    dom->is_closing = true;
    pthread_cond_signal(&dom->work);
    pthread_mutex_unlock(&dom->lock);
    if (dom->has_pump)
        pthread_join(dom->pump, NULL);
}

/** A frame that was sent must arrive, though this end closes now: until the plugin has sent all. It may need calls of the
 *  peer's that wait for calls of ours, so what arrives is received, too. */
static void flush(struct hkt__net_dom *dom)
{
    int64_t end_ns = hkt__now_ns() + FLUSH_NS;
    int left;

    while ((left = deliverable(dom)) > 0 && hkt__now_ns() < end_ns && !is_aborted(dom)) {
        bool is_moving = hkt__net_push(dom);

        is_moving |= pull(dom);
        for (size_t i = 0; i < link_count(dom) && !is_moving; i++)
            if (dom->links[i] != NULL)
                hkt__net_link_listen(dom->links[i]);
        if (is_moving)
            end_ns = hkt__now_ns() + FLUSH_NS;
        else
            hkt__sleep_ns(PUMP_NAP_NS);
    }
    if (left > 0)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "net: closed with %d frames that the plugin has not sent", left);
}

void hkt__net_dom_close(struct hkt__tp_dom *tp_dom)
{
    struct hkt__net_dom *dom = dom_of(tp_dom);

    if (dom == NULL)
        return;
    stop_pump(dom);
    flush(dom);
    for (size_t i = 0; i < link_count(dom); i++)
        if (dom->links[i] != NULL)
            hkt__net_link_say_bye(dom->links[i]);
    for (size_t i = 0; i < link_count(dom); i++)
        hkt__net_link_destroy(dom->links[i]);
    dom->wire->ops->dom_close(dom->wire);
    dom_free(dom);
}
