/* Frames over the sockets of a link.
 *
 * On the wire a frame is the 32-byte header, the payload and zeros up to a multiple of HKT__TCP_ALIGN; frame i of a
 * direction (from 0) is on socket i modulo nsockets and is read in that order.
 *
 * Sending. A frame that tx_end took must reach the peer even if the caller never calls again: it may return from its
 * collective and compute. There is no thread to help, so the kernel has to take the frame whole. Hence credit: tx_begin
 * gives only as much room as the socket's send buffer has free, asking the kernel (SO_MEMINFO) when what it knows is used
 * up, not each time. The kernel may still refuse a part when it is short of memory; that rest is offered again by every
 * later call on the domain, and tx_begin waits for it. A frame may be sent from the caller's memory (tx_end_from), which the
 * kernel copies; only a rest is copied here.
 *
 * Receiving. One recv takes a whole small frame and whatever follows it; frames are used where recv put them, aligned by
 * the padding. The buffer holds two of the largest frames. recv into an empty buffer asks for at most one, so a frame that
 * it has begun always finds its rest within the second half; only what was read ahead after that is ever moved.
 *
 * Receiving into the caller's memory (rx_into): the header is read with little behind it; the payload then goes where it is
 * wanted, and the same call reads a little of what follows into the buffer. So a large frame costs one call and one copy, the
 * kernel's. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <linux/sock_diag.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "core/bits.h"
#include "core/mem.h"
#include "transport/tcp.h"

/* The end of a frame is a record's (MSG_EOR): Linux then does not hold back its last bytes until what it has handed to the
 * device before is gone (tcp_autocorking), which on slow links costs more than it saves. */
#define SEND_FLAGS (MSG_NOSIGNAL | MSG_DONTWAIT | MSG_EOR)

#define HEADER sizeof(struct hkt__frame_header)
#define READ_AHEAD 4096 /* asked for beyond a frame that is being completed */
#define INTO_MIN 8192   /* payloads from this size on are worth a call of their own */

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

/* The kernel took nothing. False: try again at once. */
static bool is_refused(struct hkt__tcp_tx *tx)
{
    if (errno == EINTR)
        return false;
    if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)
        return true;
    tx->failed = HKT_ERR_PEER_LOST;
    tx->sys_errno = errno;
    tx->bytes = tx->sent = 0;
    return true;
}

/* Offer the kernel the rest of the frame. */
static void push(struct hkt__tcp_tx *tx)
{
    while (has_rest(tx)) {
        const ssize_t sent = send(tx_socket(tx)->fd, tx->frame + tx->sent, tx->bytes - tx->sent, SEND_FLAGS);

        if (sent >= 0)
            tx->sent += (size_t)sent;
        else if (is_refused(tx))
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

/* A frame of `bytes` is about to be sent: its header is in its place. */
static void open_frame(struct hkt__tcp_tx *tx, size_t bytes, const struct hkt__stamp *stamp)
{
    const struct hkt__frame_header header = {.seq = tx->seq, .bytes = (uint32_t)bytes, .stamp = *stamp};

    assert(tx->granted >= (int64_t)bytes && !has_rest(tx));
    memcpy(tx->frame, &header, HEADER);
    tx->bytes = frame_span(bytes);
    tx->sent = 0;
    tx->seq++;
    tx->granted = -1;
    tx_socket(tx)->credit -= credit_of(bytes);
}

/* The kernel has what it took. */
static enum hkt_status close_frame(struct hkt__tcp_tx *tx)
{
    if (tx->failed != HKT_OK)
        return fail_lost(tx->link, tx->sys_errno, "when sending");
    if (has_rest(tx)) {
        tx->link->dom->rests++;
        remember_blocked(tx->link);
    }
    return HKT_OK;
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__tcp_tx *tx = (struct hkt__tcp_tx *)chan;

    if (tx->failed != HKT_OK)
        return fail_lost(tx->link, tx->sys_errno, "when sending");
    open_frame(tx, bytes, stamp);
    memset(tx->frame + HEADER + bytes, 0, tx->bytes - HEADER - bytes);
    push(tx);
    return close_frame(tx);
}

static enum hkt_status tx_end_from(struct hkt__chan *chan, const void *data, size_t bytes, const struct hkt__stamp *stamp)
{
    static const unsigned char zeros[HKT__TCP_ALIGN];
    struct hkt__tcp_tx *tx = (struct hkt__tcp_tx *)chan;

    if (tx->failed != HKT_OK)
        return fail_lost(tx->link, tx->sys_errno, "when sending");
    open_frame(tx, bytes, stamp);
    struct iovec parts[3] = {{tx->frame, HEADER}, {(void *)(uintptr_t)data, bytes},
                             {(void *)(uintptr_t)zeros, tx->bytes - HEADER - bytes}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    ssize_t sent;

    do
        sent = sendmsg(tx_socket(tx)->fd, &message, SEND_FLAGS);
    while (sent < 0 && !is_refused(tx));
    if (tx->failed == HKT_OK) {
        const size_t taken = sent > 0 ? (size_t)sent : 0, from = taken > HEADER ? taken - HEADER : 0;

        if (from < bytes) /* the rest has to outlive this call */
            memcpy(tx->frame + HEADER + from, (const unsigned char *)data + from, bytes - from);
        memset(tx->frame + HEADER + bytes, 0, tx->bytes - HEADER - bytes);
        tx->sent = taken;
        push(tx);
    }
    return close_frame(tx);
}

/* ---- receiving ---- */

/* What a call that reads has said; *out_got is what came, if anything. `begun`: a part of the frame is here. */
static enum hkt_status judge(const struct hkt__tcp_link *link, ssize_t got, bool begun, size_t *out_got)
{
    if (got > 0) {
        *out_got = (size_t)got;
        return HKT_OK;
    }
    if (got == 0)
        return fail_lost(link, 0, begun ? "in the middle of a frame" : "while a frame was awaited");
    return errno == EAGAIN ? HKT_AGAIN : fail_lost(link, errno, "when receiving");
}

/* One recv for the frame that starts at socket->first, of `need` bytes as far as known (HEADER: not yet), and up to `ahead`
 * bytes behind what is needed. */
static enum hkt_status fill(struct hkt__tcp_rx *rx, struct hkt__tcp_socket *socket, size_t need, size_t ahead)
{
    struct hkt__tcp_link *link = rx->link;
    const size_t largest = frame_span(link->frame_bytes);
    const size_t have = socket->last - socket->first;
    size_t got = 0;

    if (have == 0)
        socket->first = socket->last = 0;
    if (socket->first + need > 2 * largest || socket->first >= largest) {
        memmove(socket->buffer, socket->buffer + socket->first, have);
        socket->first = 0;
        socket->last = have;
    }
    size_t want = need - have + ahead;

    if (want > 2 * largest - socket->last)
        want = 2 * largest - socket->last;
    ssize_t rc;

    do
        rc = recv(socket->fd, socket->buffer + socket->last, want, MSG_DONTWAIT);
    while (rc < 0 && errno == EINTR);
    const enum hkt_status status = judge(link, rc, have > 0, &got);

    socket->last += got;
    return status;
}

static enum hkt_status fail_header(const struct hkt__tcp_rx *rx, const struct hkt__frame_header *header)
{
    return hkt__fail_peer(HKT_ERR_CORRUPT, rx->link->peer, "tcp: bad frame from rank %d at %s: number %u where %u was due, "
                          "%u bytes where at most %zu may be", rx->link->peer, rx->link->where, header->seq, rx->seq,
                          header->bytes, rx->chan.frame_bytes_max);
}

/* Is the header of the oldest frame here, and is it right? */
static enum hkt_status read_header(const struct hkt__tcp_rx *rx, const struct hkt__tcp_socket *socket,
                                   struct hkt__frame_header *out_header)
{
    if (socket->last - socket->first < HEADER)
        return HKT_AGAIN;
    memcpy(out_header, socket->buffer + socket->first, HEADER);
    if (out_header->seq != rx->seq || out_header->bytes > rx->chan.frame_bytes_max)
        return fail_header(rx, out_header);
    return HKT_OK;
}

static struct hkt__tcp_socket *rx_socket(const struct hkt__tcp_rx *rx)
{
    return &rx->link->sockets[rx->socket];
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    struct hkt__tcp_rx *rx = (struct hkt__tcp_rx *)chan;
    struct hkt__tcp_socket *socket = rx_socket(rx);

    assert(rx->into == NULL);
    if (rx->link->dom->rests > 0)
        hkt__tcp_flush(rx->link->dom);
    for (;;) {
        struct hkt__frame_header header;
        size_t need = HEADER, ahead = frame_span(rx->link->frame_bytes) - HEADER;
        enum hkt_status status = read_header(rx, socket, &header);

        if (status == HKT_OK) {
            need = frame_span(header.bytes);
            ahead = READ_AHEAD;
            if (socket->last - socket->first >= need) {
                *out_view = (struct hkt__view){socket->buffer + socket->first + HEADER, header.bytes, header.stamp};
                return HKT_OK;
            }
        } else if (status != HKT_AGAIN) {
            return status;
        }
        status = fill(rx, socket, need, ahead);
        if (status != HKT_OK)
            return status;
    }
}

static size_t padding_of(const struct hkt__frame_header *header)
{
    return frame_span(header->bytes) - HEADER - header->bytes;
}

/* The payload of the oldest frame, whose header has been read, goes to the caller's place from now on. */
static void turn_into(struct hkt__tcp_rx *rx, struct hkt__tcp_socket *socket, void *to)
{
    rx->into = to;
    rx->into_got = socket->last - socket->first - HEADER;
    memcpy(to, socket->buffer + socket->first + HEADER, rx->into_got);
    /* The next header must lie as all do: the padding ends at a multiple of HKT__TCP_ALIGN. */
    socket->first = socket->last = (HKT__TCP_ALIGN - padding_of(&rx->into_header)) % HKT__TCP_ALIGN;
}

/* Read on, into the caller's place and behind it. */
static enum hkt_status fill_into(struct hkt__tcp_rx *rx, struct hkt__tcp_socket *socket)
{
    const size_t left = rx->into_header.bytes - rx->into_got;
    struct iovec parts[2] = {{rx->into + rx->into_got, left}, {socket->buffer + socket->last, READ_AHEAD}};
    size_t got = 0;
    ssize_t rc;

    do
        rc = readv(socket->fd, parts, 2); /* the socket does not block */
    while (rc < 0 && errno == EINTR);
    const enum hkt_status status = judge(rx->link, rc, true, &got);

    rx->into_got += got < left ? got : left;
    socket->last += got > left ? got - left : 0;
    return status;
}

static enum hkt_status rx_into(struct hkt__chan *chan, void *to, size_t room, struct hkt__view *out_view)
{
    struct hkt__tcp_rx *rx = (struct hkt__tcp_rx *)chan;
    struct hkt__tcp_socket *socket = rx_socket(rx);

    if (rx->link->dom->rests > 0)
        hkt__tcp_flush(rx->link->dom);
    while (rx->into == NULL) {
        enum hkt_status status = read_header(rx, socket, &rx->into_header);

        if (status == HKT_AGAIN)
            status = fill(rx, socket, HEADER, READ_AHEAD - HEADER);
        else if (status == HKT_OK && (rx->into_header.bytes < INTO_MIN || rx->into_header.bytes > room ||
                                      socket->last - socket->first >= HEADER + rx->into_header.bytes))
            return rx_begin(chan, out_view);
        else if (status == HKT_OK)
            turn_into(rx, socket, to);
        if (status != HKT_OK)
            return status;
    }
    assert(rx->into == to && rx->into_header.bytes <= room);
    while (rx->into_got < rx->into_header.bytes || socket->last - socket->first < padding_of(&rx->into_header)) {
        const enum hkt_status status = fill_into(rx, socket);

        if (status != HKT_OK)
            return status;
    }
    *out_view = (struct hkt__view){to, rx->into_header.bytes, rx->into_header.stamp};
    return HKT_OK;
}

static void rx_end(struct hkt__chan *chan)
{
    struct hkt__tcp_rx *rx = (struct hkt__tcp_rx *)chan;
    struct hkt__tcp_socket *socket = rx_socket(rx);
    struct hkt__frame_header header;

    if (rx->into != NULL) {
        socket->first += padding_of(&rx->into_header);
        rx->into = NULL;
    } else {
        memcpy(&header, socket->buffer + socket->first, HEADER);
        socket->first += frame_span(header.bytes);
    }
    rx->seq++;
    rx->socket = rx->socket + 1 == rx->link->nsockets ? 0 : rx->socket + 1;
}

const struct hkt__chan_ops hkt__tcp_chan_ops = {.tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end, .tx_end_from = tx_end_from,
                                                .rx_into = rx_into};
