/* tcp: frames over sockets, to anywhere. The operations table, instances, domains, sleeping; tcp.h tells the whole story.
 *
 * Descriptors: an instance has a listener per address and one epoll set, the door; a domain gets an epoll set and a wake
 * descriptor when it opens its first channel, a link has nsockets sockets. A domain without channels costs none.
 *
 * Sleeping: the domain's epoll set holds its sockets edge-triggered, so data for a channel that nobody asks for now wakes
 * the sleeper once, not forever; the channel returns AGAIN only after recv found nothing more, so no edge is missed. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/settings.h"
#include "transport/tables.h"
#include "transport/tcp.h"

/* What an epoll entry of a domain is about; sockets have no name, whoever polls finds their data. */
enum { EVENT_SOCKET, EVENT_WAKE, EVENT_DOOR };

#define SLICE_BYTES ((size_t)128 << 10)
#define SLICE_LINK_NS_PER_BYTE 0.8
#define CONNECT_POLL_NS INT64_C(20000000) /* a sleeper that connects looks after its deadlines this often */
#define LINGER_NS INT64_C(500000000)      /* closing on a peer that still sends: for what it has not acknowledged */

static struct hkt__tcp *tcp_of(struct hkt__tp *tp)
{
    return (struct hkt__tcp *)tp;
}

static struct hkt__tcp_dom *dom_of(struct hkt__tp_dom *dom)
{
    return (struct hkt__tcp_dom *)dom;
}

/* ---- instance ---- */

static enum hkt_status choose(const struct hkt__settings *settings, struct hkt__tcp_addr addrs[HKT__TCP_ADDRS_MAX],
                              int *out_count)
{
    struct hkt__tcp_nic nics[HKT__TCP_NICS_MAX];
    int count;
    const enum hkt_status status = hkt__tcp_nics_list(nics, HKT__TCP_NICS_MAX, &count);

    return status != HKT_OK ? status : hkt__tcp_nics_choose(nics, count, settings->interface, addrs, out_count);
}

static enum hkt_status tcp_probe(const struct hkt__settings *settings)
{
    struct hkt__tcp_addr addrs[HKT__TCP_ADDRS_MAX];
    int count;

    return choose(settings, addrs, &count) == HKT_OK ? HKT_OK : HKT_ERR_UNSUPPORTED;
}

/* 0: the usual. A rank that has its host's link to itself, at 10 Gbit/s or more: between 2 and 4 such hosts pieces of 128 KiB
 * took 0.65 to 0.95 of the time that those of 64 KiB take, from 1 MiB on; smaller vectors are left too few of them. At 1 Gbit/s
 * they fill a broadcast's pipeline later: 1.2. With several ranks per host nothing is gained for sure.
 * (docs/bench/2026-11-30-hosts.md) */
size_t hkt__tcp_slice_bytes(double link_ns_per_byte, bool is_alone)
{
    const bool is_fast = link_ns_per_byte > 0 && link_ns_per_byte <= SLICE_LINK_NS_PER_BYTE;

    return is_fast && is_alone ? SLICE_BYTES : 0;
}

static void tcp_query(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)
{
    const struct hkt__tcp *tcp = (const struct hkt__tcp *)tp;

    /* Loopback between two processes of a 2-core virtual machine: 8 bytes one way 4-6 us spinning, stream 2.5-4 GB/s. A
     * network adds to the first and may take from the second; a tuning table replaces both. */
    *out_caps = (struct hkt__tp_caps){.flags = 0, .latency_ns = 6000, .ns_per_byte = 0.33,
                                     .slice_bytes = tcp != NULL ? hkt__tcp_slice_bytes(tcp->link_ns_per_byte, tcp->is_alone) : 0,
                                     .slice_bytes_least = HKT__SLICE_BYTES,
                                     .link_ns_per_byte = tcp != NULL ? tcp->link_ns_per_byte : 0};
}

static void tcp_close(struct hkt__tp *tp)
{
    struct hkt__tcp *tcp = tcp_of(tp);

    if (tcp == NULL)
        return;
    hkt__tcp_door_close(tcp);
    pthread_mutex_destroy(&tcp->lock);
    hkt__free(tcp->peers);
    hkt__free(tcp->good);
    hkt__free(tcp);
}

static void describe(struct hkt__tcp *tcp)
{
    size_t used = 0;

    for (int i = 0; i < tcp->own.addr_count; i++) {
        char text[HKT__TCP_TEXT_MAX];

        hkt__tcp_addr_text(&tcp->own.addrs[i], text);
        const int wrote = snprintf(tcp->text + used, sizeof tcp->text - used, "%s%s", i > 0 ? ", " : "", text);

        if (wrote < 0 || (size_t)wrote >= sizeof tcp->text - used)
            return;
        used += (size_t)wrote;
    }
}

const char *hkt__tcp_describe(const struct hkt__tp *tp)
{
    return ((const struct hkt__tcp *)tp)->text;
}

static enum hkt_status open_instance(struct hkt__tcp *tcp, const struct hkt__settings *settings)
{
    int count = 0;

    tcp->peers = hkt__calloc((size_t)tcp->job_nranks, sizeof *tcp->peers);
    tcp->good = hkt__calloc((size_t)tcp->job_nranks, sizeof *tcp->good);
    if (tcp->peers == NULL || tcp->good == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "tcp: no memory for the addresses of %d ranks", tcp->job_nranks);
    for (int i = 0; i < tcp->job_nranks; i++)
        atomic_init(&tcp->good[i], -1);
    enum hkt_status status = choose(settings, tcp->own.addrs, &count);

    if (status != HKT_OK)
        return status;
    tcp->own.magic = HKT__TCP_MAGIC_BLOB;
    tcp->own.version = HKT__TCP_VERSION;
    tcp->own.host_id = hkt__tcp_host_id();
    tcp->own.addr_count = (uint16_t)count;
    tcp->link_ns_per_byte = count > 0 ? hkt__tcp_link_ns_per_byte(&tcp->own.addrs[0]) : 0;
    status = hkt__tcp_congestion_choose(tcp, settings->tcp_congestion);
    if (status == HKT_OK)
        status = hkt__tcp_door_open(tcp);
    if (status != HKT_OK)
        return status;
    describe(tcp);
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "tcp listens on %s; %s", tcp->text,
             tcp->pinned ? "chosen by HOCKET_INTERFACE" : "best first; HOCKET_INTERFACE pins one");
    return HKT_OK;
}

static enum hkt_status tcp_open(const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    const struct hkt__settings *settings = params->settings;
    struct hkt__tcp *tcp = hkt__calloc(1, sizeof *tcp);

    if (tcp == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "tcp: no memory for the transport");
    tcp->tp.ops = hkt__transport_find("tcp");
    tcp->job_rank = params->job_rank;
    tcp->job_nranks = params->job_nranks;
    tcp->nsockets = (int)settings->tcp_sockets;
    /* Whole cache lines, so that a cut falls between elements of every type. */
    tcp->frame_bytes = (int)(settings->tcp_frame_bytes / HKT__LINE * HKT__LINE);
    tcp->pinned = settings->interface != NULL && settings->interface[0] != '\0';
    memcpy(tcp->token, params->token, sizeof tcp->token);
    tcp->connect_ns = HKT__TCP_CONNECT_NS;
    tcp->silent_ns = HKT__TCP_SILENT_NS;
    tcp->abort_word = params->abort_word;
    tcp->door = -1;
    for (int i = 0; i < HKT__TCP_ADDRS_MAX; i++)
        tcp->listeners[i].fd = -1;
    pthread_mutex_init(&tcp->lock, NULL);
    const enum hkt_status status = open_instance(tcp, settings);

    if (status != HKT_OK) {
        tcp_close(&tcp->tp);
        return status;
    }
    *out_tp = &tcp->tp;
    return HKT_OK;
}

static enum hkt_status tcp_address(struct hkt__tp *tp, void *out_blob, size_t *out_bytes)
{
    const struct hkt__tcp *tcp = tcp_of(tp);

    *out_bytes = hkt__tcp_blob_bytes(&tcp->own);
    memcpy(out_blob, &tcp->own, *out_bytes);
    return HKT_OK;
}

/* Addresses are believed here and proved when a channel opens: connecting everybody to everybody would cost p^2 sockets
 * for the few pairs that talk. */
static enum hkt_status tcp_reach(struct hkt__tp *tp, const unsigned char *blobs, const size_t *bytes,
                                 int64_t deadline_ns, unsigned char *out_ok)
{
    struct hkt__tcp *tcp = tcp_of(tp);
    unsigned char order[HKT__TCP_ADDRS_MAX];

    (void)deadline_ns;
    tcp->is_alone = true;
    for (int i = 0; i < tcp->job_nranks; i++) {
        struct hkt__tcp_blob *peer = &tcp->peers[i];
        const bool known = hkt__tcp_blob_read(blobs + (size_t)i * HKT__TP_BLOB_MAX, bytes[i], peer);

        tcp->is_alone &= i == tcp->job_rank || !known || peer->host_id != tcp->own.host_id;
        out_ok[i] = i == tcp->job_rank || (known && hkt__tcp_route(&tcp->own, peer, order) > 0);
        if (!out_ok[i])
            hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "tcp: job rank %d is out of reach: %s", i,
                     bytes[i] == 0 ? "it has no tcp" : !known ? "its address is in another format"
                                                              : "another host, which listens on its loopback only");
    }
    return HKT_OK;
}

/* ---- domain ---- */

static enum hkt_status tcp_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members,
                                    struct hkt__tp_dom **out_dom, void *out_blob, size_t *out_bytes)
{
    struct hkt__tcp *tcp = tcp_of(tp);
    struct hkt__tcp_dom_blob blob = {.nsockets = (uint32_t)tcp->nsockets, .frame_bytes = (uint32_t)tcp->frame_bytes};
    struct hkt__tcp_dom *dom = hkt__calloc(1, sizeof *dom);

    while (dom != NULL && blob.nonce == 0) {
        const enum hkt_status status = hkt__tcp_random(&blob.nonce, sizeof blob.nonce);

        if (status != HKT_OK) {
            hkt__free(dom);
            return status;
        }
    }
    if (dom != NULL) {
        dom->members = hkt__calloc((size_t)members->nranks, sizeof *dom->members);
        dom->links = hkt__calloc((size_t)members->nranks * (size_t)members->lanes, sizeof *dom->links);
    }
    if (dom == NULL || dom->members == NULL || dom->links == NULL) {
        if (dom != NULL) {
            hkt__free(dom->members);
            hkt__free(dom->links);
        }
        hkt__free(dom);
        return hkt__fail(HKT_ERR_NOMEM, "tcp: no memory for a communicator of %d ranks", members->nranks);
    }
    dom->dom.ops = tcp->tp.ops;
    dom->tcp = tcp;
    dom->comm_id = members->comm_id;
    dom->nranks = members->nranks;
    dom->rank = members->rank;
    dom->lanes = members->lanes;
    dom->job_ranks = members->job_ranks;
    dom->nonce = blob.nonce;
    dom->epoll = -1;
    atomic_init(&dom->wake_fd, -1);
    hkt__tcp_door_enter(dom);
    memcpy(out_blob, &blob, sizeof blob);
    *out_bytes = sizeof blob;
    *out_dom = &dom->dom;
    return HKT_OK;
}

static enum hkt_status tcp_dom_connect(struct hkt__tp_dom *tp_dom, const unsigned char *blobs, const size_t *bytes,
                                       const unsigned char *use)
{
    struct hkt__tcp_dom *dom = dom_of(tp_dom);

    for (int i = 0; i < dom->nranks; i++) {
        struct hkt__tcp_dom_blob *member = &dom->members[i];

        if (!use[i] || i == dom->rank)
            continue;
        if (bytes[i] != sizeof *member)
            return hkt__fail_peer(HKT_ERR_UNSUPPORTED, i, "tcp: rank %d describes its communicator in %zu bytes instead of "
                                  "%zu: run the same version of hocket on all ranks", i, bytes[i], sizeof *member);
        memcpy(member, blobs + (size_t)i * HKT__TP_BLOB_MAX, sizeof *member);
        if (member->nonce == 0 || member->nsockets < 1 || member->frame_bytes < HKT__LINE)
            return hkt__fail_peer(HKT_ERR_CORRUPT, i, "tcp: rank %d describes its communicator with %u sockets and frames of "
                                  "%u bytes", i, member->nsockets, member->frame_bytes);
    }
    return HKT_OK;
}

static enum hkt_status tcp_chan_open(struct hkt__tp_dom *tp_dom, int peer, int lane, struct hkt__chan **out_tx,
                                     struct hkt__chan **out_rx)
{
    struct hkt__tcp_dom *dom = dom_of(tp_dom);

    if (peer < 0 || peer >= dom->nranks || lane < 0 || lane >= dom->lanes || dom->members[peer].nonce == 0)
        return hkt__fail_peer(HKT_ERR_BUG, peer, "tcp: no channel to rank %d, lane %d, in a communicator of %d ranks and %d "
                              "lanes, or the pair does not use tcp", peer, lane, dom->nranks, dom->lanes);
    struct hkt__tcp_link **slot = &dom->links[(size_t)peer * (size_t)dom->lanes + (size_t)lane];
    enum hkt_status status = hkt__tcp_dom_arm(dom);

    if (status == HKT_OK && *slot == NULL)
        status = hkt__tcp_link_create(dom, peer, lane, slot);
    if (status == HKT_OK)
        status = hkt__tcp_link_step(*slot);
    if (status == HKT_OK) {
        *out_tx = &(*slot)->tx.chan;
        *out_rx = &(*slot)->rx.chan;
    }
    return status;
}

/* ---- sleeping ---- */

static enum hkt_status watch(struct hkt__tcp_dom *dom, int fd, uint32_t events, uint64_t what)
{
    struct epoll_event event = {.events = events, .data.u64 = what};

    if (epoll_ctl(dom->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "tcp: cannot watch a descriptor (epoll_ctl)");
    return HKT_OK;
}

enum hkt_status hkt__tcp_dom_watch(struct hkt__tcp_dom *dom, int fd)
{
    return watch(dom, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, EVENT_SOCKET);
}

enum hkt_status hkt__tcp_dom_arm(struct hkt__tcp_dom *dom)
{
    if (dom->epoll >= 0)
        return HKT_OK;
    const int epoll = epoll_create1(EPOLL_CLOEXEC);

    if (epoll < 0)
        return hkt__tcp_fail_fd("epoll_create1");
    const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    if (wake < 0) {
        const enum hkt_status status = hkt__tcp_fail_fd("eventfd");

        close(epoll);
        return status;
    }
    dom->epoll = epoll;
    enum hkt_status status = watch(dom, wake, EPOLLIN, EVENT_WAKE);

    if (status == HKT_OK)
        status = watch(dom, dom->tcp->door, EPOLLIN, EVENT_DOOR);
    if (status != HKT_OK) {
        close(epoll);
        close(wake);
        dom->epoll = -1;
        return status;
    }
    /* W1, with the load of woken in park: either wake sees the descriptor or park sees the word, hence seq_cst. */
    atomic_store_explicit(&dom->wake_fd, wake, memory_order_seq_cst);
    return HKT_OK;
}

void hkt__tcp_wake(struct hkt__tp_dom *tp_dom)
{
    struct hkt__tcp_dom *dom = dom_of(tp_dom);
    const uint64_t one = 1;

    atomic_store_explicit(&dom->woken, 1, memory_order_seq_cst); /* W2, pairs with W1 */
    const int fd = atomic_load_explicit(&dom->wake_fd, memory_order_seq_cst);

    if (fd >= 0 && write(fd, &one, sizeof one) < 0)
        return; /* the counter is full: it wakes already */
}

static void sleep_on(int fd, int64_t timeout_ns)
{
    struct pollfd watched = {.fd = fd, .events = POLLIN};
    const struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};

    (void)ppoll(&watched, fd >= 0, &timeout, NULL); /* interrupted is as good as woken */
}

static void tcp_park(struct hkt__tp_dom *tp_dom, int64_t timeout_ns)
{
    struct hkt__tcp_dom *dom = dom_of(tp_dom);
    struct epoll_event events[32];

    if (hkt__tcp_dom_arm(dom) != HKT_OK) {
        sleep_on(-1, timeout_ns < CONNECT_POLL_NS ? timeout_ns : CONNECT_POLL_NS);
        return;
    }
    if (atomic_exchange_explicit(&dom->woken, 0, memory_order_seq_cst) != 0)
        return;
    hkt__tcp_flush(dom);
    hkt__tcp_watch_blocked(dom);
    if (dom->connecting > 0 && timeout_ns > CONNECT_POLL_NS)
        timeout_ns = CONNECT_POLL_NS;
    sleep_on(dom->epoll, timeout_ns);
    const int count = epoll_wait(dom->epoll, events, sizeof events / sizeof *events, 0);

    for (int i = 0; i < count; i++) {
        uint64_t ignored;

        if (events[i].data.u64 == EVENT_WAKE) {
            const int wake = atomic_load_explicit(&dom->wake_fd, memory_order_relaxed); /* written by this thread */

            atomic_store_explicit(&dom->woken, 0, memory_order_relaxed); /* the caller looks at everything now */
            if (read(wake, &ignored, sizeof ignored) < 0)
                continue;
        } else if (events[i].data.u64 == EVENT_DOOR && hkt__tcp_door_serve(dom->tcp) != HKT_OK) {
            /* Nobody can be let in now, and the listener stays ready: do not spin on it. chan_open reports it. */
            sleep_on(-1, timeout_ns < CONNECT_POLL_NS ? timeout_ns : CONNECT_POLL_NS);
        }
    }
}

/* ---- closing ---- */

/* Throw away what the peer still sends; true when there was something. */
static bool discard(struct hkt__tcp_link *link)
{
    bool any = false;

    for (int i = 0; i < link->nsockets; i++) {
        struct hkt__tcp_socket *socket = &link->sockets[i];

        while (socket->fd >= 0 && recv(socket->fd, socket->buffer, link->frame_bytes, MSG_DONTWAIT) > 0)
            any = true;
    }
    return any;
}

static bool discard_all(struct hkt__tcp_dom *dom)
{
    bool any = false;

    for (size_t i = 0; i < (size_t)dom->nranks * (size_t)dom->lanes; i++)
        if (dom->links[i] != NULL && dom->links[i]->is_open)
            any = discard(dom->links[i]) || any;
    return any;
}

static bool is_aborted(const struct hkt__tcp_dom *dom)
{
    const _Atomic int *word = dom->tcp->abort_word;

    /* Relaxed: a stop sign, nothing is read behind it. */
    return word != NULL && atomic_load_explicit(word, memory_order_relaxed) != 0;
}

static size_t rest_bytes(const struct hkt__tcp_dom *dom)
{
    size_t bytes = 0;

    for (const struct hkt__tcp_link *link = dom->blocked; link != NULL; link = link->next_blocked)
        bytes += link->tx.bytes - link->tx.sent;
    return bytes;
}

/* Give the kernel the rests of frames, for as long as the peers take any. They may be closing likewise, with full buffers
 * on both ways, hence the reading. */
static void flush_out(struct hkt__tcp_dom *dom)
{
    struct epoll_event events[32];
    int64_t deadline_ns = hkt__now_ns() + HKT__TCP_FLUSH_NS;
    size_t left = rest_bytes(dom);

    while (dom->rests > 0 && hkt__now_ns() < deadline_ns && !is_aborted(dom)) {
        (void)discard_all(dom);
        hkt__tcp_flush(dom);
        if (rest_bytes(dom) < left) {
            left = rest_bytes(dom);
            deadline_ns = hkt__now_ns() + HKT__TCP_FLUSH_NS;
        }
        hkt__tcp_watch_blocked(dom);
        if (dom->rests > 0)
            (void)epoll_wait(dom->epoll, events, sizeof events / sizeof *events, 10);
    }
    if (dom->rests > 0)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "tcp: closed with %zu bytes that rank %d did not take",
                 rest_bytes(dom), dom->blocked->peer);
}

/* A reset connection counts its bytes as unacknowledged for ever. */
static bool is_reset(int fd)
{
    struct tcp_info info = {.tcpi_state = TCP_CLOSE};
    socklen_t bytes = sizeof info;

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_state == TCP_CLOSE;
}

/* Bytes the peers' kernels have not acknowledged. */
static bool has_unacknowledged(const struct hkt__tcp_link *link)
{
    for (int i = 0; i < link->nsockets; i++) {
        const int fd = link->sockets[i].fd;
        int bytes = 0;

        if (fd >= 0 && ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 && !is_reset(fd))
            return true;
    }
    return false;
}

/* close on a socket with unread data resets the connection, and a reset throws away what is still on its way to the peer.
 * So where the peer still sends, read on until it has acknowledged all; usually there is nothing to do. */
static void linger(struct hkt__tcp_dom *dom)
{
    const int64_t deadline_ns = hkt__now_ns() + LINGER_NS;

    for (size_t i = 0; i < (size_t)dom->nranks * (size_t)dom->lanes; i++) {
        struct hkt__tcp_link *link = dom->links[i];
        bool busy = link != NULL && link->is_open;

        for (int k = 0; busy && k < link->nsockets; k++)
            (void)shutdown(link->sockets[k].fd, SHUT_WR);
        busy = busy && discard(link);
        while (busy && has_unacknowledged(link) && hkt__now_ns() < deadline_ns && !is_aborted(dom)) {
            sleep_on(-1, 1000000);
            (void)discard(link);
        }
    }
}

static void tcp_dom_close(struct hkt__tp_dom *tp_dom)
{
    struct hkt__tcp_dom *dom = dom_of(tp_dom);

    if (dom == NULL)
        return;
    hkt__tcp_door_leave(dom);
    flush_out(dom);
    linger(dom);
    for (size_t i = 0; i < (size_t)dom->nranks * (size_t)dom->lanes; i++)
        hkt__tcp_link_destroy(dom->links[i]);
    if (dom->epoll >= 0) {
        close(dom->epoll);
        close(atomic_load_explicit(&dom->wake_fd, memory_order_relaxed));
    }
    hkt__free(dom->links);
    hkt__free(dom->members);
    hkt__free(dom);
}

const struct hkt__tp_ops hkt__tp_tcp = {
    .name = "tcp",
    .summary = "sockets over any network, IPv4 and IPv6",
    .probe = tcp_probe,
    .query = tcp_query,
    .open = tcp_open,
    .close = tcp_close,
    .address = tcp_address,
    .reach = tcp_reach,
    .dom_open = tcp_dom_open,
    .dom_connect = tcp_dom_connect,
    .dom_close = tcp_dom_close,
    .chan_open = tcp_chan_open,
    .park = tcp_park,
    .wake = hkt__tcp_wake,
};
