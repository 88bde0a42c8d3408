/* The tree and its all-gather. Ranks form a binary heap (children of r: 2r + 1 and 2r + 2), so each rank knows the
 * shape without being told. The ranks of a subtree are one contiguous range per level, so blocks travel straight
 * between the callers' result arrays: up the tree each rank sends its subtree's ranges, down the tree everyone gets
 * the whole. */
#include "comm/boot_int.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "core/clock.h"

#define NS_PER_MS INT64_C(1000000)
#define RANGES_MAX 24 /* levels of a heap of HKT__BOOT_NRANKS_MAX ranks, and the message in front */

int hkt__boot_tree_parent(int rank)
{
    return rank == 0 ? -1 : (rank - 1) / 2;
}

int hkt__boot_tree_child(int rank, int which, int nranks)
{
    const int64_t child = 2 * (int64_t)rank + 1 + which;

    return child < nranks ? (int)child : -1;
}

/* ---- transfers ---- */

enum transfer_kind { SENDING, RECEIVING };

/* Bytes that cross one link in one phase: a message, then ranges of the result array. */
struct transfer {
    enum transfer_kind kind;
    int which;                     /* link */
    bool has_message;              /* receiving: the message in front is in */
    bool is_done;
    struct hkt__wire_writer message;
    struct iovec ranges[RANGES_MAX];
    int next, count;
};

struct gather {
    struct hkt__boot *boot;
    unsigned char *out;
    size_t bytes;
    bool is_broadcast;             /* rank 0's bytes are all there is */
    int64_t deadline_ns;
};

/* The blocks of the subtree of `rank`, level by level. */
static void subtree_ranges(const struct gather *gather, int rank, struct transfer *transfer)
{
    const int64_t nranks = gather->boot->nranks;
    int64_t first = rank, width = 1;

    if (gather->is_broadcast) {
        transfer->ranges[transfer->count++] = (struct iovec){.iov_base = gather->out, .iov_len = gather->bytes};
        return;
    }
    for (; first < nranks; first = 2 * first + 1, width *= 2) {
        const int64_t count = first + width <= nranks ? width : nranks - first;

        assert(transfer->count < RANGES_MAX);
        transfer->ranges[transfer->count++] = (struct iovec){.iov_base = gather->out + (size_t)first * gather->bytes,
                                                             .iov_len = (size_t)count * gather->bytes};
    }
}

static void transfer_init(const struct gather *gather, enum transfer_kind kind, int which, int subtree,
                          struct transfer *out_transfer)
{
    const struct hkt__wire_gather message = {.seq = gather->boot->gather_seq, .bytes = gather->bytes};

    out_transfer->kind = kind;
    out_transfer->which = which;
    out_transfer->has_message = out_transfer->is_done = false;
    out_transfer->next = out_transfer->count = 0;
    hkt__wire_put_gather(&out_transfer->message, &message);
    if (kind == SENDING)
        out_transfer->ranges[out_transfer->count++] = (struct iovec){.iov_base = out_transfer->message.bytes,
                                                                     .iov_len = out_transfer->message.used};
    subtree_ranges(gather, subtree, out_transfer);
}

static void transfer_advance(struct transfer *transfer, size_t bytes)
{
    while (transfer->next < transfer->count && bytes >= transfer->ranges[transfer->next].iov_len)
        bytes -= transfer->ranges[transfer->next++].iov_len;
    if (bytes > 0) {
        struct iovec *range = &transfer->ranges[transfer->next];

        range->iov_base = (unsigned char *)range->iov_base + bytes;
        range->iov_len -= bytes;
    }
}

static enum hkt_status link_lost(const struct hkt__link *link, int sys_errno)
{
    errno = sys_errno;
    if (sys_errno != 0)
        (void)hkt__fail_sys(HKT_ERR_PEER_LOST, "rank %d was lost while the ranks exchanged addresses", link->rank);
    else
        (void)hkt__fail(HKT_ERR_PEER_LOST, "rank %d ended while the ranks exchanged addresses: look at its own output "
                        "for the reason", link->rank);
    hkt__error_here()->peer = link->rank;
    return HKT_ERR_PEER_LOST;
}

/* The message in front of the data: it must be of the same all-gather. */
static enum hkt_status transfer_message(const struct gather *gather, const struct hkt__link *link,
                                        const struct hkt__wire_message *message)
{
    struct hkt__wire_gather theirs;
    struct hkt__boot_event event;

    if (hkt__wire_get_gather(message, &theirs)) {
        if (theirs.bytes == gather->bytes && theirs.seq == gather->boot->gather_seq)
            return HKT_OK;
        return hkt__fail_peer(HKT_ERR_MISMATCH, link->rank, "rank %d exchanges %llu bytes per rank in step %u of the "
                              "setup, rank %d %zu bytes in step %u: do all ranks run the same program and hocket?",
                              link->rank, (unsigned long long)theirs.bytes, theirs.seq, gather->boot->rank,
                              gather->bytes, gather->boot->gather_seq);
    }
    if (hkt__wire_get_event(message, &event))
        return hkt__fail_peer((enum hkt_status)event.status, event.culprit, "rank %d reports: %.900s", event.reporter,
                              event.text);
    if (message->type == HKT__WIRE_FAREWELL)
        return hkt__fail_peer(HKT_ERR_PEER_LOST, link->rank, "rank %d left while the ranks exchanged addresses: look "
                              "at its own output for the reason", link->rank);
    return hkt__fail_peer(HKT_ERR_CORRUPT, link->rank, "rank %d sent a message of type %d that has no place in the "
                          "setup", link->rank, (int)message->type);
}

static enum hkt_status transfer_begin(const struct gather *gather, struct hkt__link *link, struct transfer *transfer)
{
    struct hkt__wire_message message;
    enum hkt_status status = hkt__wire_read(&link->reader, link->fd, &message);

    if (status == HKT_AGAIN)
        return status;
    if (status == HKT_ERR_PEER_LOST)
        return link_lost(link, link->reader.sys_errno);
    if (status == HKT_ERR_CORRUPT)
        return hkt__fail_peer(status, link->rank, "rank %d sent bytes that are no message", link->rank);
    status = transfer_message(gather, link, &message);
    transfer->has_message = status == HKT_OK;
    return status;
}

/* Move what the socket allows. OK: the transfer is complete; AGAIN: not yet. */
static enum hkt_status transfer_step(const struct gather *gather, struct transfer *transfer)
{
    struct hkt__link *link = &gather->boot->links[transfer->which];

    if (transfer->kind == RECEIVING && !transfer->has_message) {
        const enum hkt_status status = transfer_begin(gather, link, transfer);

        if (status != HKT_OK)
            return status;
    }
    transfer_advance(transfer, 0); /* empty ranges */
    while (transfer->next < transfer->count) {
        struct msghdr header = {.msg_iov = &transfer->ranges[transfer->next],
                                .msg_iovlen = (size_t)(transfer->count - transfer->next)};
        const ssize_t n = transfer->kind == SENDING ? sendmsg(link->fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT)
                                                    : recvmsg(link->fd, &header, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return HKT_AGAIN;
        if (n < 0 || (n == 0 && transfer->kind == RECEIVING))
            return link_lost(link, n < 0 ? errno : 0);
        transfer_advance(transfer, (size_t)n);
        link->is_cut = transfer->kind == SENDING && transfer->next < transfer->count;
    }
    transfer->is_done = true;
    return HKT_OK;
}

/* A failed send may hide the reason: the peer's last words wait in the other direction. */
static enum hkt_status last_words(const struct gather *gather, const struct transfer *transfer, enum hkt_status status)
{
    const struct hkt__error first = *hkt__error_here();
    struct hkt__link *link = &gather->boot->links[transfer->which];
    struct transfer unused = {0};

    if (transfer->kind == SENDING && status == HKT_ERR_PEER_LOST) {
        const enum hkt_status told = transfer_begin(gather, link, &unused);

        if (told < 0 && told != HKT_ERR_CORRUPT)
            return told;
        *hkt__error_here() = first;
    }
    return status;
}

static enum hkt_status gather_timed_out(const struct gather *gather, const struct transfer *late)
{
    const struct hkt__boot *boot = gather->boot;
    const int rank = boot->links[late->which].rank;

    return hkt__fail_peer(HKT_ERR_TIMEOUT, rank, "rank %d waited %g s for rank %d in step %u of the setup: it, or a "
                          "rank behind it, is stuck", boot->rank, (double)boot->timeout_ms / 1e3, rank,
                          boot->gather_seq);
}

/* Run the transfers of a phase side by side until all are complete. */
static enum hkt_status transfers_run(const struct gather *gather, struct transfer *transfers, int count)
{
    for (;;) {
        struct pollfd pfds[2];
        nfds_t waiting = 0;
        const struct transfer *late = NULL;
        const int64_t left_ms = (gather->deadline_ns - hkt__now_ns()) / NS_PER_MS;

        for (int i = 0; i < count; i++) {
            struct transfer *transfer = &transfers[i];
            const enum hkt_status status = transfer->is_done ? HKT_OK : transfer_step(gather, transfer);

            if (status < 0)
                return last_words(gather, transfer, status);
            if (status == HKT_OK)
                continue;
            late = transfer;
            pfds[waiting++] = (struct pollfd){.fd = gather->boot->links[transfer->which].fd,
                                              .events = transfer->kind == SENDING ? POLLOUT : POLLIN};
        }
        if (waiting == 0)
            return HKT_OK;
        if (left_ms <= 0)
            return gather_timed_out(gather, late);
        (void)poll(pfds, waiting, left_ms < 3600000 ? (int)left_ms : 3600000);
    }
}

/* ---- the all-gather ---- */

static enum hkt_status children_run(const struct gather *gather, enum transfer_kind kind)
{
    const struct hkt__boot *boot = gather->boot;
    struct transfer transfers[2];
    int count = 0;

    for (int i = HKT__CHILD_A; i <= HKT__CHILD_B; i++)
        if (boot->links[i].rank >= 0)
            transfer_init(gather, kind, i, kind == RECEIVING ? boot->links[i].rank : 0, &transfers[count++]);
    return transfers_run(gather, transfers, count);
}

static enum hkt_status parent_run(const struct gather *gather, enum transfer_kind kind)
{
    struct transfer transfer;

    if (gather->boot->rank == 0)
        return HKT_OK;
    transfer_init(gather, kind, HKT__PARENT, kind == SENDING ? gather->boot->rank : 0, &transfer);
    return transfers_run(gather, &transfer, 1);
}

/* Tell the neighbours who is to blame before their links go silent: a rank that only sees this one leave would blame
 * it. The culprit is told, too, in case it lives. */
static void gather_failed(struct hkt__boot *boot, enum hkt_status status)
{
    const struct hkt__error *error = hkt__error_here();
    struct hkt__boot_event event = {.reporter = boot->rank, .culprit = error->peer, .status = (int32_t)status,
                                    .sys_errno = error->sys_errno};
    struct hkt__wire_writer message;

    snprintf(event.text, sizeof event.text, "%s", error->text);
    hkt__wire_put_event(&message, &event);
    for (int i = 0; i < HKT__LINK_COUNT; i++)
        if (boot->links[i].fd >= 0 && !boot->links[i].is_cut)
            (void)hkt__wire_send(boot->links[i].fd, &message);
    boot->gather_status = status;
}

static enum hkt_status check_open(const struct hkt__boot *boot)
{
    if (boot->is_monitored)
        return hkt__fail(HKT_ERR_BUG, "an exchange of the bootstrap after its monitor started");
    if (boot->gather_status < 0)
        return hkt__fail(HKT_ERR_FAILED, "an earlier exchange of the setup failed (%s)",
                         hkt_status_name(boot->gather_status));
    return HKT_OK;
}

enum hkt_status hkt__boot_broadcast(struct hkt__boot *boot, void *data, size_t bytes)
{
    const struct gather gather = {.boot = boot, .out = data, .bytes = bytes, .is_broadcast = true,
                                  .deadline_ns = hkt__now_ns() + boot->timeout_ms * NS_PER_MS};
    enum hkt_status status = check_open(boot);

    if (status < 0)
        return status;
    status = parent_run(&gather, RECEIVING);
    if (status == HKT_OK)
        status = children_run(&gather, SENDING);
    boot->gather_seq++;
    if (status < 0)
        gather_failed(boot, status);
    return status;
}

enum hkt_status hkt__boot_all_gather(struct hkt__boot *boot, const void *in, size_t bytes, void *out)
{
    const struct gather gather = {.boot = boot, .out = out, .bytes = bytes,
                                  .deadline_ns = hkt__now_ns() + boot->timeout_ms * NS_PER_MS};
    enum hkt_status status = check_open(boot);
    size_t total;

    if (status < 0)
        return status;
    if (__builtin_mul_overflow((size_t)boot->nranks, bytes, &total))
        return hkt__fail(HKT_ERR_INVALID, "%zu bytes from each of %d ranks are too many", bytes, boot->nranks);
    if (bytes > 0)
        memmove(gather.out + (size_t)boot->rank * bytes, in, bytes);
    status = children_run(&gather, RECEIVING);
    if (status == HKT_OK)
        status = parent_run(&gather, SENDING);
    if (status == HKT_OK)
        status = parent_run(&gather, RECEIVING);
    if (status == HKT_OK)
        status = children_run(&gather, SENDING);
    boot->gather_seq++;
    if (status < 0)
        gather_failed(boot, status);
    return status;
}
