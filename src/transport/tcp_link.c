/* A link: the two channels of one lane to one peer, over nsockets sockets. The lower rank connects each socket on its own:
 *
 *   CLOSED --connect--> CHALLENGE --hello--> REPLY --confirm--> OPEN
 *
 * and falls back to CLOSED, the next address and a growing pause when an attempt fails. The address that worked last for
 * a peer is tried first. The higher rank waits for arrivals at the door. Nothing here blocks: hkt__tcp_link_step does
 * what can be done now. A peer that computes does not serve its door, so a connection that is silent is no failure: the
 * caller's deadline decides; other addresses are only tried meanwhile, at growing intervals. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "transport/tcp.h"

#define PAUSE_NS INT64_C(20000000) /* after a fruitless round through all addresses; doubled each round */

static const struct hkt__tcp_blob *peer_blob(const struct hkt__tcp_link *link)
{
    return &link->dom->tcp->peers[link->dom->job_ranks[link->peer]];
}

static const struct hkt__tcp_addr *addr_of_turn(const struct hkt__tcp_link *link, int turn)
{
    return &peer_blob(link)->addrs[link->order[turn % link->order_count]];
}

/* ---- connecting ---- */

static void close_socket(struct hkt__tcp_socket *socket)
{
    if (socket->fd >= 0)
        close(socket->fd); /* leaves the epoll set by itself */
    socket->fd = -1;
    socket->stage = HKT__TCP_CLOSED;
    socket->got = 0;
}

static int weight(enum hkt_status status)
{
    return status == HKT_ERR_AUTH ? 3 : status == HKT_ERR_UNSUPPORTED ? 2 : 1;
}

/* An attempt failed: keep the reason for the final word, and go on with the next address. */
static void attempt_failed(struct hkt__tcp_link *link, struct hkt__tcp_socket *socket, enum hkt_status status,
                           const char *reason)
{
    char text[HKT__TCP_TEXT_MAX];
    const unsigned address = 1u << socket->turn % link->order_count;

    hkt__tcp_addr_text(addr_of_turn(link, socket->turn), text);
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "tcp: rank %d at %s: %s", link->peer, text, reason);
    if (link->why_status == HKT_OK || weight(status) >= weight(link->why_status))
        link->why_status = status;
    /* The first reason per address is enough. */
    if ((link->why_seen & address) == 0) {
        const size_t used = strlen(link->why);

        snprintf(link->why + used, sizeof link->why - used, "%s%s: %s", used > 0 ? "; " : "", text, reason);
        link->why_seen |= address;
    }
    close_socket(socket);
    socket->turn++;
    socket->failures++;
    if (socket->failures % link->order_count == 0) {
        const int rounds = socket->failures / link->order_count;

        socket->retry_ns = hkt__now_ns() + (PAUSE_NS << (rounds < 6 ? rounds : 6));
    }
}

static bool is_hopeless(const struct hkt__tcp_link *link, const struct hkt__tcp_socket *socket)
{
    const int rounds = socket->failures / link->order_count;

    return rounds >= HKT__TCP_ROUNDS_MAX || (rounds > 0 && hkt__now_ns() - socket->start_ns > HKT__TCP_REACH_NS);
}

static enum hkt_status give_up(const struct hkt__tcp_link *link)
{
    const enum hkt_status status = link->why_status;

    return hkt__fail_peer(status, link->peer, "tcp: no connection to rank %d: %s (%s)", link->peer, link->why,
                          status == HKT_ERR_AUTH          ? "give all ranks the same HOCKET_TOKEN"
                          : status == HKT_ERR_UNSUPPORTED ? "run the same version of hocket on all ranks"
                          : status == HKT_ERR_TIMEOUT
                              ? "a firewall or a wrong interface? HOCKET_INTERFACE chooses another one"
                              : "has it ended?");
}

/* From the pinned interface, if there is a pin: the way back is then the same. */
static void bind_source(const struct hkt__tcp *tcp, const struct hkt__tcp_addr *to, int fd)
{
    for (int i = 0; tcp->pinned && i < tcp->own.addr_count; i++) {
        struct hkt__tcp_addr from = tcp->own.addrs[i];
        struct sockaddr_storage sock;

        if (from.family != to->family || (from.rank_class == HKT__TCP_LOOPBACK) != (to->rank_class == HKT__TCP_LOOPBACK))
            continue;
        from.port = 0;
        const socklen_t bytes = hkt__tcp_addr_to_sock(&from, &sock);
        const int one = 1;

        (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one); /* connect picks it: many may share */
        (void)bind(fd, (const struct sockaddr *)&sock, bytes); /* failing, the kernel chooses */
        return;
    }
}

static int new_fd(int family)
{
    return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static enum hkt_status start_connect(struct hkt__tcp_link *link, struct hkt__tcp_socket *socket)
{
    const struct hkt__tcp_addr *addr = addr_of_turn(link, socket->turn);
    struct sockaddr_storage sock;
    const socklen_t bytes = hkt__tcp_addr_to_sock(addr, &sock);
    const int fd = new_fd(sock.ss_family);

    if (fd < 0 && errno == EAFNOSUPPORT) {
        attempt_failed(link, socket, HKT_ERR_PEER_LOST, "this host has no such addresses");
        return HKT_IN_PROGRESS;
    }
    if (fd < 0)
        return hkt__tcp_fail_fd("socket");
    socket->fd = fd;
    hkt__tcp_congestion_set(link->dom->tcp, fd, addr);
    hkt__tcp_socket_tune(fd);
    bind_source(link->dom->tcp, addr, fd);
    if (connect(fd, (const struct sockaddr *)&sock, bytes) != 0 && errno != EINPROGRESS && errno != EINTR) {
        attempt_failed(link, socket, HKT_ERR_PEER_LOST, strerror(errno));
        return HKT_IN_PROGRESS;
    }
    socket->stage = HKT__TCP_CHALLENGE;
    socket->deadline_ns = hkt__now_ns() + link->dom->tcp->connect_ns;
    const enum hkt_status status = hkt__tcp_dom_watch(link->dom, fd);

    return status == HKT_OK ? HKT_IN_PROGRESS : status;
}

/* A port nobody listens on may connect to itself, when the system chooses the same one for this end. */
static bool is_own_echo(int fd, const struct sockaddr_storage *peer)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;

    memset(&own, 0, sizeof own);
    return getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 && memcmp(&own, peer, sizeof own) == 0;
}

/* The deadline of an attempt has passed: without a connection it has failed; with one, the peer may be busy. */
static void overdue(struct hkt__tcp_link *link, struct hkt__tcp_socket *socket)
{
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof peer;
    const int round = socket->turn / link->order_count;
    const int64_t silent_ns = link->dom->tcp->silent_ns << (round < 7 ? round : 7);
    const int64_t since_ns = hkt__now_ns() - socket->deadline_ns;

    memset(&peer, 0, sizeof peer);
    if (getpeername(socket->fd, (struct sockaddr *)&peer, &bytes) != 0) {
        attempt_failed(link, socket, HKT_ERR_TIMEOUT, "no answer");
        return;
    }
    if (is_own_echo(socket->fd, &peer)) {
        attempt_failed(link, socket, HKT_ERR_PEER_LOST, "nobody listens there");
        return;
    }
    if (since_ns < silent_ns)
        return;
    if (link->order_count == 1) {
        socket->deadline_ns += silent_ns; /* nothing else to try: it has the caller's time */
        return;
    }
    /* No failure: a peer may compute for as long as the caller allows. */
    close_socket(socket);
    socket->turn++;
    socket->failures = 0;
    socket->start_ns = hkt__now_ns();
}

static void send_hello(struct hkt__tcp_link *link, struct hkt__tcp_socket *socket)
{
    const struct hkt__tcp_dom *dom = link->dom;
    const struct hkt__tcp_challenge *challenge = &socket->in.challenge;
    struct hkt__tcp_hello *hello = &socket->hello;

    if (challenge->magic != HKT__TCP_MAGIC_CHALLENGE) {
        attempt_failed(link, socket, HKT_ERR_PEER_LOST, "another program answers there");
        return;
    }
    if (challenge->version != HKT__TCP_VERSION || challenge->order != HKT__TCP_ORDER) {
        attempt_failed(link, socket, HKT_ERR_UNSUPPORTED, "it runs another version of hocket or has another byte order");
        return;
    }
    memcpy(socket->nonce, challenge->nonce, sizeof socket->nonce);
    *hello = (struct hkt__tcp_hello){
        .magic = HKT__TCP_MAGIC_HELLO, .version = HKT__TCP_VERSION, .order = HKT__TCP_ORDER,
        .dom_nonce = dom->members[link->peer].nonce, .comm_id = dom->comm_id, .from_job = dom->job_ranks[dom->rank],
        .to_job = dom->job_ranks[link->peer], .from = dom->rank, .lane = (uint16_t)link->lane,
        .socket = (uint16_t)(socket - link->sockets), .frame_bytes = (uint32_t)link->frame_bytes};
    if (hkt__tcp_random(hello->nonce, sizeof hello->nonce) != HKT_OK) {
        attempt_failed(link, socket, HKT_ERR_SYSTEM, "no random bytes from the system");
        return;
    }
    hello->mac = hkt__tcp_hello_mac(dom->tcp->token, socket->nonce, hello);
    if (send(socket->fd, hello, sizeof *hello, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof *hello) {
        attempt_failed(link, socket, HKT_ERR_PEER_LOST, strerror(errno));
        return;
    }
    socket->stage = HKT__TCP_REPLY;
    socket->got = 0;
}

/* Not OK: a definite refusal by the peer itself. */
static enum hkt_status read_reply(struct hkt__tcp_link *link, struct hkt__tcp_socket *socket)
{
    struct hkt__tcp *tcp = link->dom->tcp;
    const struct hkt__tcp_reply *reply = &socket->in.reply;
    const struct hkt__tcp_confirm confirm = {.magic = HKT__TCP_MAGIC_CONFIRM};
    const bool genuine = reply->mac == hkt__tcp_reply_mac(tcp->token, socket->nonce, &socket->hello, reply->status);
    char text[HKT__TCP_TEXT_MAX];

    if (reply->magic != HKT__TCP_MAGIC_REPLY || !genuine) {
        const bool other_version = reply->magic == HKT__TCP_MAGIC_REPLY && reply->status == HKT_ERR_UNSUPPORTED;

        attempt_failed(link, socket, other_version ? HKT_ERR_UNSUPPORTED : HKT_ERR_AUTH,
                       other_version ? "it runs another version of hocket" : "it holds another token");
        return HKT_OK;
    }
    hkt__tcp_addr_text(addr_of_turn(link, socket->turn), text);
    if (reply->status == HKT_ERR_PEER_LOST)
        return hkt__fail_peer(HKT_ERR_PEER_LOST, link->peer, "tcp: rank %d at %s has closed this communicator",
                              link->peer, text);
    if (reply->status != HKT_OK) {
        attempt_failed(link, socket, HKT_ERR_PEER_LOST, "another rank answers there");
        return HKT_OK;
    }
    if (send(socket->fd, &confirm, sizeof confirm, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof confirm) {
        attempt_failed(link, socket, HKT_ERR_PEER_LOST, strerror(errno));
        return HKT_OK;
    }
    socket->stage = HKT__TCP_OPEN;
    atomic_store_explicit(&tcp->good[link->dom->job_ranks[link->peer]],
                          (signed char)link->order[socket->turn % link->order_count], memory_order_relaxed);
    memcpy(link->where, text, sizeof link->where);
    return HKT_OK;
}

static enum hkt_status connect_step(struct hkt__tcp_link *link, struct hkt__tcp_socket *socket)
{
    while (socket->stage != HKT__TCP_OPEN) {
        enum hkt_status status = HKT_OK;

        if (socket->stage == HKT__TCP_CLOSED) {
            if (is_hopeless(link, socket))
                return give_up(link);
            if (socket->retry_ns > hkt__now_ns())
                return HKT_IN_PROGRESS;
            status = start_connect(link, socket);
            if (status < 0)
                return status;
            continue;
        }
        const size_t want = socket->stage == HKT__TCP_CHALLENGE ? sizeof socket->in.challenge : sizeof socket->in.reply;
        const ssize_t got = recv(socket->fd, socket->in.bytes + socket->got, want - socket->got, MSG_DONTWAIT);

        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (hkt__now_ns() > socket->deadline_ns)
                overdue(link, socket);
            return HKT_IN_PROGRESS;
        }
        if (got <= 0) {
            attempt_failed(link, socket, HKT_ERR_PEER_LOST, got == 0 ? "closed the connection" : strerror(errno));
            continue;
        }
        socket->got += (unsigned)got;
        if (socket->got < want)
            continue;
        if (socket->stage == HKT__TCP_CHALLENGE)
            send_hello(link, socket);
        else
            status = read_reply(link, socket);
        if (status != HKT_OK)
            return status;
    }
    return HKT_OK;
}

/* ---- accepting ---- */

static enum hkt_status accept_step(struct hkt__tcp_link *link, struct hkt__tcp_socket *socket)
{
    const int fd = hkt__tcp_door_take(link->dom, link->peer, link->lane, (int)(socket - link->sockets));
    struct hkt__tcp_addr from = {.name = "incoming"};
    struct sockaddr_storage sock;
    socklen_t bytes = sizeof sock;

    if (fd < 0)
        return HKT_IN_PROGRESS;
    socket->fd = fd;
    socket->stage = HKT__TCP_OPEN;
    if (getpeername(fd, (struct sockaddr *)&sock, &bytes) == 0)
        hkt__tcp_addr_from_sock(&sock, &from);
    hkt__tcp_addr_text(&from, link->where);
    return hkt__tcp_dom_watch(link->dom, fd);
}

enum hkt_status hkt__tcp_link_step(struct hkt__tcp_link *link)
{
    const bool connects = link->dom->rank < link->peer;
    int open_count = 0;

    if (link->is_open)
        return HKT_OK;
    enum hkt_status status = hkt__tcp_door_serve(link->dom->tcp);

    if (status != HKT_OK)
        return status;
    for (int i = 0; i < link->nsockets; i++) {
        struct hkt__tcp_socket *socket = &link->sockets[i];

        if (socket->stage != HKT__TCP_OPEN) {
            status = connects ? connect_step(link, socket) : accept_step(link, socket);
            if (status < 0)
                return status;
        }
        open_count += socket->stage == HKT__TCP_OPEN;
    }
    if (open_count < link->nsockets)
        return HKT_IN_PROGRESS;
    link->is_open = true;
    link->dom->connecting -= link->is_connecting;
    link->is_connecting = false;
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "tcp: rank %d, lane %d: %d sockets, %s", link->peer, link->lane,
             link->nsockets, link->where);
    return HKT_OK;
}

/* ---- life ---- */

/* The order of attempts: the address that worked last for this peer, then the likely ones. */
static void plan_route(struct hkt__tcp_link *link)
{
    const struct hkt__tcp *tcp = link->dom->tcp;
    const int good = atomic_load_explicit(&tcp->good[link->dom->job_ranks[link->peer]], memory_order_relaxed);

    link->order_count = hkt__tcp_route(&tcp->own, peer_blob(link), link->order);
    for (int i = 1; i < link->order_count; i++)
        if (link->order[i] == good) {
            memmove(link->order + 1, link->order, (size_t)i);
            link->order[0] = (unsigned char)good;
        }
}

enum hkt_status hkt__tcp_link_create(struct hkt__tcp_dom *dom, int peer, int lane, struct hkt__tcp_link **out_link)
{
    const struct hkt__tcp_dom_blob *theirs = &dom->members[peer];
    const int nsockets = (int)theirs->nsockets < dom->tcp->nsockets ? (int)theirs->nsockets : dom->tcp->nsockets;
    const size_t frame_bytes = theirs->frame_bytes < (size_t)dom->tcp->frame_bytes ? theirs->frame_bytes
                                                                                  : (size_t)dom->tcp->frame_bytes;
    struct hkt__tcp_link *link = hkt__calloc(1, sizeof *link + (size_t)nsockets * sizeof link->sockets[0]);

    if (link == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "tcp: no memory for a channel to rank %d", peer);
    link->dom = dom;
    link->peer = peer;
    link->lane = lane;
    link->nsockets = nsockets;
    link->frame_bytes = frame_bytes;
    for (int i = 0; i < nsockets; i++)
        link->sockets[i] = (struct hkt__tcp_socket){.fd = -1, .start_ns = hkt__now_ns()};
    link->memory = hkt__pages_alloc(hkt__tcp_chan_memory(nsockets, frame_bytes));
    if (link->memory == NULL) {
        hkt__free(link);
        return hkt__fail(HKT_ERR_NOMEM, "tcp: no memory for the buffers of a channel to rank %d (%zu bytes): set "
                         "HOCKET_TCP_FRAME_BYTES or HOCKET_TCP_SOCKETS lower", peer,
                         hkt__tcp_chan_memory(nsockets, frame_bytes));
    }
    hkt__tcp_chan_init(link);
    if (dom->rank < peer) {
        plan_route(link);
        link->is_connecting = true;
        dom->connecting++;
        if (link->order_count == 0) {
            hkt__tcp_link_destroy(link);
            return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "tcp: rank %d has no address that this host could reach: it "
                                  "is on another host and listens on %s only", peer,
                                  dom->tcp->peers[dom->job_ranks[peer]].addrs[0].name);
        }
    }
    *out_link = link;
    return HKT_OK;
}

void hkt__tcp_link_destroy(struct hkt__tcp_link *link)
{
    if (link == NULL)
        return;
    link->dom->connecting -= link->is_connecting;
    for (int i = 0; i < link->nsockets; i++)
        close_socket(&link->sockets[i]);
    hkt__pages_free(link->memory, hkt__tcp_chan_memory(link->nsockets, link->frame_bytes));
    hkt__free(link);
}
