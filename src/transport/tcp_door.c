/* The accepting side. There is no thread of its own; whoever opens a channel or sleeps on a domain of the instance serves
 * the door meanwhile, under the instance's lock, and never waits for anybody there.
 *
 *   listener --accept--> guest --hello, reply, confirm--> arrived at a domain --chan_open--> socket of a link
 *
 * A guest costs one descriptor until it has proved itself, at most HKT__TCP_GUEST_NS and at most HKT__TCP_GUESTS_MAX of
 * them, so garbage, slow and half-open clients are dropped without anybody noticing. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "transport/tcp.h"

#define BACKLOG 4096               /* the kernel cuts it to net.core.somaxconn */
#define ACCEPTS_MAX 64             /* per listener and visit: a flood must not keep the visitor */

enum hkt_status hkt__tcp_fail_fd(const char *what)
{
    struct rlimit limit = {0};

    if (errno != EMFILE && errno != ENFILE)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "tcp: %s failed", what);
    const int sys_errno = errno;

    getrlimit(RLIMIT_NOFILE, &limit);
    errno = sys_errno;
    return hkt__fail_sys(HKT_ERR_SYSTEM, "tcp: %s: no file descriptor left (limit %llu%s): raise it (ulimit -n), use fewer "
                         "communicators, or set HOCKET_TCP_SOCKETS=1", what, (unsigned long long)limit.rlim_cur,
                         sys_errno == ENFILE ? " of this process; the system's own limit is reached" : "");
}

void hkt__tcp_socket_tune(int fd)
{
    /* Keep-alive finds a host that vanished while a connection was idle. Whatever fails here costs speed, not truth. */
    const int one = 1, idle_s = 10, interval_s = 5, probes = 3;
    const unsigned unlimited = UINT32_MAX; /* net.ipv4.tcp_notsent_lowat would make send refuse what the buffer can hold */

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unlimited, sizeof unlimited);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

enum hkt_status hkt__tcp_listen(struct hkt__tcp_addr *addr, int *out_fd)
{
    const int one = 1;
    char text[HKT__TCP_TEXT_MAX];
    struct sockaddr_storage sock;
    socklen_t bytes = hkt__tcp_addr_to_sock(addr, &sock);
    const int fd = socket(sock.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    hkt__tcp_addr_text(addr, text);
    if (fd < 0)
        return hkt__tcp_fail_fd("socket");
    if (sock.ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)&sock, bytes) != 0 || listen(fd, BACKLOG) != 0) {
        const enum hkt_status status =
            errno == EADDRINUSE
                ? hkt__fail_sys(HKT_ERR_SYSTEM, "tcp: cannot listen on %s: %s", text,
                                addr->port != 0 ? "another program has this port; choose another one"
                                                : "no free port; see net.ipv4.ip_local_port_range")
                : hkt__fail_sys(HKT_ERR_SYSTEM, "tcp: cannot listen on %s", text);

        close(fd);
        return status;
    }
    bytes = sizeof sock;
    if (getsockname(fd, (struct sockaddr *)&sock, &bytes) != 0) {
        const enum hkt_status status = hkt__fail_sys(HKT_ERR_SYSTEM, "tcp: no name for the listener on %s", text);

        close(fd);
        return status;
    }
    hkt__tcp_addr_from_sock(&sock, addr);
    *out_fd = fd;
    return HKT_OK;
}

static enum hkt_status watch(struct hkt__tcp *tcp, struct hkt__tcp_entry *entry)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = entry};

    if (epoll_ctl(tcp->door, EPOLL_CTL_ADD, entry->fd, &event) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "tcp: cannot watch a socket (epoll_ctl)");
    return HKT_OK;
}

/* Listen on tcp->own's addresses. One that fails is left out, unless none remains. */
enum hkt_status hkt__tcp_door_open(struct hkt__tcp *tcp)
{
    int count = 0;

    tcp->door = epoll_create1(EPOLL_CLOEXEC);
    if (tcp->door < 0)
        return hkt__tcp_fail_fd("epoll_create1");
    for (int i = 0; i < tcp->own.addr_count; i++) {
        struct hkt__tcp_addr addr = tcp->own.addrs[i];
        struct hkt__tcp_entry *entry = &tcp->listeners[count];

        if (hkt__tcp_listen(&addr, &entry->fd) != HKT_OK) {
            entry->fd = -1;
            hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "%s; going on without this address", hkt__error_here()->text);
            continue;
        }
        hkt__tcp_congestion_set(tcp, entry->fd, NULL);
        entry->is_listener = true;
        tcp->own.addrs[count++] = addr;
        const enum hkt_status status = watch(tcp, entry);

        if (status != HKT_OK)
            return status;
    }
    tcp->own.addr_count = (uint16_t)count;
    return count > 0 ? HKT_OK : hkt__error_here()->status; /* hkt__tcp_listen said why */
}

static void guest_unlink(struct hkt__tcp *tcp, struct hkt__tcp_guest *guest)
{
    (void)epoll_ctl(tcp->door, EPOLL_CTL_DEL, guest->entry.fd, NULL);
    *(guest->previous != NULL ? &guest->previous->next : &tcp->guests) = guest->next;
    *(guest->next != NULL ? &guest->next->previous : &tcp->guests_last) = guest->previous;
    tcp->unproved_count -= !guest->proved;
}

static void guest_drop(struct hkt__tcp *tcp, struct hkt__tcp_guest *guest, const char *why)
{
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "tcp: dropped a connection before it was admitted: %s", why);
    guest_unlink(tcp, guest);
    close(guest->entry.fd);
    hkt__free(guest);
}

void hkt__tcp_door_close(struct hkt__tcp *tcp)
{
    while (tcp->guests != NULL)
        guest_drop(tcp, tcp->guests, "the instance closes");
    for (int i = 0; i < HKT__TCP_ADDRS_MAX; i++)
        if (tcp->listeners[i].fd >= 0)
            close(tcp->listeners[i].fd);
    if (tcp->door >= 0)
        close(tcp->door);
}

/* Say hello to a new connection: challenge it. Takes fd. */
static enum hkt_status guest_admit(struct hkt__tcp *tcp, int fd)
{
    struct hkt__tcp_challenge challenge = {.magic = HKT__TCP_MAGIC_CHALLENGE, .version = HKT__TCP_VERSION,
                                           .order = HKT__TCP_ORDER};
    struct hkt__tcp_guest *guest = hkt__calloc(1, sizeof *guest);
    enum hkt_status status = guest != NULL ? hkt__tcp_random(challenge.nonce, sizeof challenge.nonce)
                                           : hkt__fail(HKT_ERR_NOMEM, "tcp: no memory for an incoming connection");

    if (status == HKT_OK) {
        guest->entry.fd = fd;
        status = watch(tcp, &guest->entry);
    }
    if (status != HKT_OK) {
        hkt__free(guest);
        close(fd);
        return status;
    }
    memcpy(guest->nonce, challenge.nonce, sizeof guest->nonce);
    guest->deadline_ns = hkt__now_ns() + HKT__TCP_GUEST_NS;
    guest->previous = tcp->guests_last;
    *(tcp->guests_last != NULL ? &tcp->guests_last->next : &tcp->guests) = guest;
    tcp->guests_last = guest;
    tcp->unproved_count++;
    hkt__tcp_congestion_meet(tcp, fd);
    hkt__tcp_socket_tune(fd);
    /* A fresh socket has room for 24 bytes; if not, the connection is already broken. */
    if (send(fd, &challenge, sizeof challenge, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof challenge)
        guest_drop(tcp, guest, "it was gone at once");
    return HKT_OK;
}

/* When the room is full of unproved guests, others wait in the kernel's queue until deadlines make place. */
static enum hkt_status accept_some(struct hkt__tcp *tcp, int listener)
{
    for (int i = 0; i < ACCEPTS_MAX && tcp->unproved_count < HKT__TCP_GUESTS_MAX; i++) {
        const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0) {
            if (errno == EAGAIN)
                return HKT_OK;
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                return hkt__tcp_fail_fd("accept");
            continue; /* that connection died in the queue */
        }
        const enum hkt_status status = guest_admit(tcp, fd);

        if (status != HKT_OK)
            return status;
    }
    return HKT_OK;
}

/* Whom does a hello with a good MAC want? OK with *out_dom, or why not. */
static enum hkt_status find_dom(struct hkt__tcp *tcp, const struct hkt__tcp_hello *hello, struct hkt__tcp_dom **out_dom)
{
    if (hello->to_job != tcp->job_rank)
        return HKT_ERR_INVALID; /* it meant a rank at the same address and port of another host */
    for (struct hkt__tcp_dom *dom = tcp->doms; dom != NULL; dom = dom->next) {
        if (dom->nonce != hello->dom_nonce)
            continue;
        if (dom->comm_id != hello->comm_id || hello->from < 0 || hello->from >= dom->rank ||
            dom->job_ranks[hello->from] != hello->from_job || hello->lane >= dom->lanes ||
            hello->socket >= HKT__TCP_SOCKETS_MAX)
            return HKT_ERR_INVALID;
        *out_dom = dom;
        return HKT_OK;
    }
    return HKT_ERR_PEER_LOST; /* closed already: names of domains are never used twice */
}

/* Answer a complete hello. The guest is gone afterwards unless it is welcome. */
static void guest_answer(struct hkt__tcp *tcp, struct hkt__tcp_guest *guest)
{
    const struct hkt__tcp_hello *hello = &guest->in.hello;
    struct hkt__tcp_reply reply = {.magic = HKT__TCP_MAGIC_REPLY, .status = HKT_ERR_AUTH};
    struct hkt__tcp_dom *dom;

    if (hello->magic != HKT__TCP_MAGIC_HELLO) {
        guest_drop(tcp, guest, "it does not speak hocket");
        return;
    }
    if (hello->version != HKT__TCP_VERSION || hello->order != HKT__TCP_ORDER)
        reply.status = HKT_ERR_UNSUPPORTED;
    else if (hello->mac == hkt__tcp_hello_mac(tcp->token, guest->nonce, hello)) {
        reply.status = find_dom(tcp, hello, &dom);
        reply.mac = hkt__tcp_reply_mac(tcp->token, guest->nonce, hello, reply.status);
    }
    if (send(guest->entry.fd, &reply, sizeof reply, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof reply ||
        reply.status != HKT_OK) {
        guest_drop(tcp, guest, reply.status == HKT_ERR_AUTH ? "it does not hold the job's token" : "refused");
        return;
    }
    guest->proved = true;
    guest->deadline_ns = INT64_MAX; /* it may compute before it confirms */
    tcp->unproved_count--;
    guest->got = 0;
}

/* The guest confirmed: hand it to the domain, which may have closed meanwhile. Nothing may fail here that could be tried
 * again: for the connector, this socket is open. */
static void guest_arrive(struct hkt__tcp *tcp, struct hkt__tcp_guest *guest)
{
    struct hkt__tcp_dom *dom;

    if (guest->in2.confirm.magic != HKT__TCP_MAGIC_CONFIRM || find_dom(tcp, &guest->in.hello, &dom) != HKT_OK) {
        guest_drop(tcp, guest, "the communicator has been closed");
        return;
    }
    guest_unlink(tcp, guest);
    guest->next = dom->arrivals;
    dom->arrivals = guest;
    hkt__tcp_wake(&dom->dom);
}

/* Read what the guest sent, as far as its current message goes. */
static void guest_step(struct hkt__tcp *tcp, struct hkt__tcp_guest *guest)
{
    for (;;) {
        unsigned char *into = guest->proved ? guest->in2.bytes : guest->in.bytes;
        const size_t want = guest->proved ? sizeof guest->in2.bytes : sizeof guest->in.bytes;
        const ssize_t got = recv(guest->entry.fd, into + guest->got, want - guest->got, MSG_DONTWAIT);

        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            guest_drop(tcp, guest, "it closed the connection");
            return;
        }
        guest->got += (unsigned)got;
        if (guest->got < want)
            continue;
        if (guest->proved)
            guest_arrive(tcp, guest);
        else
            guest_answer(tcp, guest); /* the confirm comes a round trip later */
        return;
    }
}

int hkt__tcp_door_take(struct hkt__tcp_dom *dom, int peer, int lane, int socket)
{
    int fd = -1;

    pthread_mutex_lock(&dom->tcp->lock);
    for (struct hkt__tcp_guest **at = &dom->arrivals; *at != NULL; at = &(*at)->next) {
        struct hkt__tcp_guest *guest = *at;
        const struct hkt__tcp_hello *hello = &guest->in.hello;

        if (hello->from == peer && hello->lane == lane && hello->socket == socket) {
            fd = guest->entry.fd;
            *at = guest->next;
            hkt__free(guest);
            break;
        }
    }
    pthread_mutex_unlock(&dom->tcp->lock);
    return fd;
}

void hkt__tcp_door_enter(struct hkt__tcp_dom *dom)
{
    pthread_mutex_lock(&dom->tcp->lock);
    dom->next = dom->tcp->doms;
    dom->tcp->doms = dom;
    pthread_mutex_unlock(&dom->tcp->lock);
}

void hkt__tcp_door_leave(struct hkt__tcp_dom *dom)
{
    struct hkt__tcp_guest *next;

    pthread_mutex_lock(&dom->tcp->lock);
    for (struct hkt__tcp_dom **at = &dom->tcp->doms; *at != NULL; at = &(*at)->next)
        if (*at == dom) {
            *at = dom->next;
            break;
        }
    pthread_mutex_unlock(&dom->tcp->lock);
    for (struct hkt__tcp_guest *guest = dom->arrivals; guest != NULL; guest = next) {
        next = guest->next;
        close(guest->entry.fd);
        hkt__free(guest);
    }
    dom->arrivals = NULL;
}

static void expire(struct hkt__tcp *tcp)
{
    struct hkt__tcp_guest *next;

    if (tcp->unproved_count == 0)
        return;
    const int64_t now_ns = hkt__now_ns();

    for (struct hkt__tcp_guest *guest = tcp->guests; guest != NULL; guest = next) {
        next = guest->next;
        if (guest->deadline_ns <= now_ns)
            guest_drop(tcp, guest, "it did not prove itself in time");
    }
}

enum hkt_status hkt__tcp_door_serve(struct hkt__tcp *tcp)
{
    struct epoll_event events[32];
    int ready[HKT__TCP_ADDRS_MAX], ready_count = 0;
    enum hkt_status status = HKT_OK;

    pthread_mutex_lock(&tcp->lock);
    const int count = epoll_wait(tcp->door, events, sizeof events / sizeof *events, 0);

    /* Listeners last: guests that leave make place. */
    for (int i = 0; i < count; i++) {
        struct hkt__tcp_entry *entry = events[i].data.ptr;

        if (entry->is_listener)
            ready[ready_count++] = entry->fd;
        else
            guest_step(tcp, (struct hkt__tcp_guest *)entry);
    }
    expire(tcp);
    for (int i = 0; i < ready_count && status == HKT_OK; i++)
        status = accept_some(tcp, ready[i]);
    pthread_mutex_unlock(&tcp->lock);
    return status;
}
