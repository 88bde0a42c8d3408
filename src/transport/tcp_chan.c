/* Frames over the sockets of a link.
 *
 * On the wire a frame is the 32-byte header, the payload and zeros up to a multiple of HKT__TCP_ALIGN; frame i of a
 * direction (from 0) is on socket i modulo nsockets and is read in that order.
 *
 * Sending. A frame that tx_end took must reach the peer even if the caller never calls again: it may return from its
 * collective and compute. There is no thread to help, so the kernel has to take the frame whole. Hence credit: tx_begin
 * gives only as much room as the socket's send buffer has free, asking the kernel (SO_MEMINFO) when what it knows is used
 * up, not each time. The kernel may still refuse a part when it is short of memory; that rest is offered again by every
 * later call on the domain, and tx_begin waits for it.
 *
 * Receiving. One recv takes a whole small frame and whatever follows it; frames are used where recv put them, aligned by
 * the padding. The buffer holds two of the largest frames. recv into an empty buffer asks for at most one, so a frame that
 * it has begun always finds its rest within the second half; only what was read ahead after that is ever moved. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <linux/sock_diag.h>
#include <sys/epoll.h>

#include "core/bits.h"
#include "core/mem.h"
#include "transport/tcp.h"

#define HEADER sizeof(struct hkt__frame_header)
#define READ_AHEAD 4096 /* asked for beyond a frame that is being completed */

static size_t frame_span(size_t payload)
{
    return HEADER + hkt__round_up(payload, HKT__TCP_ALIGN);
}

/* The frame being sent starts a header before a cache line, so that its payload starts one. */
static size_t out_bytes(size_t frame_bytes)
{
    return hkt__round_up(HKT__LINE + frame_span(frame_bytes), HKT__LINE);
}

static size_t in_bytes(size_t frame_bytes)
{
    return hkt__round_up(HKT__LINE + 2 * frame_span(frame_bytes), HKT__LINE);
}

size_t hkt__tcp_chan_memory(int nsockets, size_t frame_bytes)
{
    return HKT__LINE + out_bytes(frame_bytes) + (size_t)nsockets * in_bytes(frame_bytes);
}

void hkt__tcp_chan_init(struct hkt__tcp_link *link)
{
    unsigned char *at = link->memory + (HKT__LINE - (uintptr_t)link->memory % HKT__LINE) % HKT__LINE;
    const struct hkt__chan chan = {.ops = &hkt__tcp_chan_ops, .frame_bytes_max = link->frame_bytes, .peer = link->peer};

    link->tx = (struct hkt__tcp_tx){.chan = chan, .link = link, .seq = 1, .granted = -1, .frame = at + HKT__LINE - HEADER};
    link->rx = (struct hkt__tcp_rx){.chan = chan, .link = link, .seq = 1};
    at += out_bytes(link->frame_bytes);
    for (int i = 0; i < link->nsockets; i++, at += in_bytes(link->frame_bytes))
        link->sockets[i].buffer = at + HKT__LINE - HEADER; /* the first payload starts a line */
}

static enum hkt_status fail_lost(const struct hkt__tcp_link *link, int sys_errno, const char *when)
{
    const enum hkt_status status =
        hkt__fail_peer(HKT_ERR_PEER_LOST, link->peer, "tcp: rank %d at %s is gone: %s %s",
                       link->peer, link->where, sys_errno != 0 ? strerror(sys_errno) : "it closed the connection", when);

    hkt__error_here()->sys_errno = sys_errno;
    return status;
}

/* ---- sending ---- */

static struct hkt__tcp_socket *tx_socket(const struct hkt__tcp_tx *tx)
{
    return &tx->link->sockets[tx->socket];
}

static bool has_rest(const struct hkt__tcp_tx *tx)
{
    return tx->sent < tx->bytes;
}

/* Offer the kernel the rest of the frame. */
static void push(struct hkt__tcp_tx *tx)
{
    while (has_rest(tx)) {
        const ssize_t sent = send(tx_socket(tx)->fd, tx->frame + tx->sent, tx->bytes - tx->sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent >= 0) {
            tx->sent += (size_t)sent;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)
            return;
        tx->failed = HKT_ERR_PEER_LOST;
        tx->sys_errno = errno;
        tx->bytes = tx->sent = 0;
        return;
    }
    tx->socket = tx->socket + 1 == tx->link->nsockets ? 0 : tx->socket + 1;
}

/* What a frame uses up of a send buffer, generously: the kernel's bookkeeping counts too (struct sk_buff and page
 * fragments; about 2 KiB per 64 KiB, at least one). */
static int64_t credit_of(size_t payload)
{
    const int64_t bytes = (int64_t)frame_span(payload);

    return bytes + bytes / 8 + 4096;
}

/* Ask the kernel what a socket takes. Returns the payload to send now, up to `want`; -1: wait. */
static int64_t measure(struct hkt__tcp_socket *socket, size_t want)
{
    struct pollfd out = {.fd = socket->fd, .events = POLLOUT};
    uint32_t info[SK_MEMINFO_VARS] = {0};
    socklen_t bytes = sizeof info;

    /* Not writable: less than a third is free. Asking makes the kernel enlarge the buffer, if it may, and epoll report
     * when it is writable again, which therefore must never be answered with "wait". */
    if (poll(&out, 1, 0) == 0)
        return -1;
    if (getsockopt(socket->fd, SOL_SOCKET, SO_MEMINFO, info, &bytes) != 0)
        return (int64_t)want; /* a kernel before 4.12: a rest may stay until the next call */
    const int64_t size = info[SK_MEMINFO_SNDBUF];

    socket->credit = size - (int64_t)info[SK_MEMINFO_WMEM_QUEUED];
    if (socket->credit >= credit_of(want))
        return (int64_t)want;
    /* An eighth of the buffer fits in a third of it, except in tiny buffers, where a rest may stay. */
    int64_t fits = (socket->credit - 4096 - HKT__LINE) * 8 / 9;

    if (fits < size / 8)
        fits = size / 8;
    fits = fits / HKT__LINE * HKT__LINE;
    return fits < HKT__LINE ? (int64_t)want : fits < (int64_t)want ? fits : (int64_t)want;
}

static void remember_blocked(struct hkt__tcp_link *link)
{
    if (link->is_blocked)
        return;
    link->is_blocked = true;
    link->next_blocked = link->dom->blocked;
    link->dom->blocked = link;
}

void hkt__tcp_flush(struct hkt__tcp_dom *dom)
{
    for (struct hkt__tcp_link *link = dom->blocked; link != NULL; link = link->next_blocked)
        if (has_rest(&link->tx)) {
            push(&link->tx);
            dom->rests -= !has_rest(&link->tx);
        }
}

void hkt__tcp_watch_blocked(struct hkt__tcp_dom *dom)
{
    struct hkt__tcp_link **at = &dom->blocked;

    while (*at != NULL) {
        struct hkt__tcp_link *link = *at;
        struct hkt__tcp_socket *socket = tx_socket(&link->tx);
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT | EPOLLET};

        /* Stays so: room is reported once per time it ran out. Failing, the sleeper is late by its timeout. */
        if (!socket->is_out_watched && epoll_ctl(link->dom->epoll, EPOLL_CTL_MOD, socket->fd, &event) == 0)
            socket->is_out_watched = true;
        if (has_rest(&link->tx)) {
            at = &link->next_blocked;
            continue;
        }
        link->is_blocked = false;
        *at = link->next_blocked;
    }
}

static enum hkt_status tx_begin(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room)
{
    struct hkt__tcp_tx *tx = (struct hkt__tcp_tx *)chan;
    const size_t want = bytes < chan->frame_bytes_max ? bytes : chan->frame_bytes_max;
    int64_t room = (int64_t)want;

    if (has_rest(tx))
        hkt__tcp_flush(tx->link->dom);
    if (tx->failed != HKT_OK)
        return fail_lost(tx->link, tx->sys_errno, "when sending");
    if (has_rest(tx))
        return HKT_AGAIN;
    if (tx_socket(tx)->credit < credit_of(want))
        room = measure(tx_socket(tx), want);
    const int64_t promised = tx->granted < (int64_t)want ? tx->granted : (int64_t)want;

    if (room < promised)
        room = promised; /* by an earlier call */
    if (room < 0) {
        remember_blocked(tx->link);
        return HKT_AGAIN;
    }
    if (room > tx->granted)
        tx->granted = room;
    out_room->data = tx->frame + HEADER;
    out_room->bytes = (size_t)room;
    return HKT_OK;
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__tcp_tx *tx = (struct hkt__tcp_tx *)chan;
    const struct hkt__frame_header header = {.seq = tx->seq, .bytes = (uint32_t)bytes, .stamp = *stamp};

    assert(tx->granted >= (int64_t)bytes && !has_rest(tx));
    if (tx->failed != HKT_OK)
        return fail_lost(tx->link, tx->sys_errno, "when sending");
    memcpy(tx->frame, &header, HEADER);
    tx->bytes = frame_span(bytes);
    tx->sent = 0;
    memset(tx->frame + HEADER + bytes, 0, tx->bytes - HEADER - bytes);
    tx->seq++;
    tx->granted = -1;
    tx_socket(tx)->credit -= credit_of(bytes);
    push(tx);
    if (tx->failed != HKT_OK)
        return fail_lost(tx->link, tx->sys_errno, "when sending");
    if (has_rest(tx)) {
        tx->link->dom->rests++;
        remember_blocked(tx->link);
    }
    return HKT_OK;
}

/* ---- receiving ---- */

/* One recv for the frame that starts at socket->first, of `need` bytes as far as known (HEADER: not yet). */
static enum hkt_status fill(struct hkt__tcp_rx *rx, struct hkt__tcp_socket *socket, size_t need)
{
    struct hkt__tcp_link *link = rx->link;
    const size_t largest = frame_span(link->frame_bytes);
    const size_t have = socket->last - socket->first;

    if (have == 0)
        socket->first = socket->last = 0;
    if (socket->first + need > 2 * largest || socket->first >= largest) {
        memmove(socket->buffer, socket->buffer + socket->first, have);
        socket->first = 0;
        socket->last = have;
    }
    size_t want = need > HEADER ? need - have + READ_AHEAD : largest - have;

    if (want > 2 * largest - socket->last)
        want = 2 * largest - socket->last;
    for (;;) {
        const ssize_t got = recv(socket->fd, socket->buffer + socket->last, want, MSG_DONTWAIT);

        if (got > 0) {
            socket->last += (size_t)got;
            return HKT_OK;
        }
        if (got == 0)
            return fail_lost(link, 0, have > 0 ? "in the middle of a frame" : "while a frame was awaited");
        if (errno != EINTR)
            return errno == EAGAIN ? HKT_AGAIN : fail_lost(link, errno, "when receiving");
    }
}

static enum hkt_status fail_header(const struct hkt__tcp_rx *rx, const struct hkt__frame_header *header)
{
    return hkt__fail_peer(HKT_ERR_CORRUPT, rx->link->peer, "tcp: bad frame from rank %d at %s: number %u where %u was due, "
                          "%u bytes where at most %zu may be", rx->link->peer, rx->link->where, header->seq, rx->seq,
                          header->bytes, rx->chan.frame_bytes_max);
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    struct hkt__tcp_rx *rx = (struct hkt__tcp_rx *)chan;
    struct hkt__tcp_socket *socket = &rx->link->sockets[rx->socket];

    if (rx->link->dom->rests > 0)
        hkt__tcp_flush(rx->link->dom);
    for (;;) {
        const size_t have = socket->last - socket->first;
        struct hkt__frame_header header;
        size_t need = HEADER;

        if (have >= HEADER) {
            memcpy(&header, socket->buffer + socket->first, HEADER);
            if (header.seq != rx->seq || header.bytes > chan->frame_bytes_max)
                return fail_header(rx, &header);
            need = frame_span(header.bytes);
            if (have >= need) {
                out_view->data = socket->buffer + socket->first + HEADER;
                out_view->bytes = header.bytes;
                out_view->stamp = header.stamp;
                return HKT_OK;
            }
        }
        const enum hkt_status status = fill(rx, socket, need);

        if (status != HKT_OK)
            return status;
    }
}

static void rx_end(struct hkt__chan *chan)
{
    struct hkt__tcp_rx *rx = (struct hkt__tcp_rx *)chan;
    struct hkt__tcp_socket *socket = &rx->link->sockets[rx->socket];
    struct hkt__frame_header header;

    memcpy(&header, socket->buffer + socket->first, HEADER);
    socket->first += frame_span(header.bytes);
    rx->seq++;
    rx->socket = rx->socket + 1 == rx->link->nsockets ? 0 : rx->socket + 1;
}

const struct hkt__chan_ops hkt__tcp_chan_ops = {tx_begin, tx_end, rx_begin, rx_end};
