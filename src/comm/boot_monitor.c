/* The control plane after the meeting: one thread sleeps on the tree's links, spreads failures and notes, and turns a link
 * that ends without farewell into a failure.
 *
 * Threads.  Links' sockets and readers belong to the monitor thread while it runs. Any thread may queue an event:
 *   queues, the table of seen events and is_stopping are guarded by boot->mutex, which nobody holds while waiting.
 * Order.  An event is handed to the sockets before the own handler sees it: the handler may end the process, and those
 *   behind this rank must learn who was really lost.
 * Once.  Links form a tree, so a flooded event meets no rank twice; the table of seen events catches equal reports made
 *   twice. It forgets the oldest of HKT__BOOT_SEEN_MAX: then such a repetition may be delivered again. */
#include "comm/boot_int.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#define STACK_BYTES (256 * 1024)   /* an event and an error record of 1 KB each per frame, and the handler's needs */
#define READS_PER_WAKE 64          /* then the other links have their turn */

/* ---- queues; the caller holds the mutex ---- */

static bool queue_reserve(struct hkt__link *link, size_t bytes)
{
    size_t room = link->queue_room > 0 ? link->queue_room : 4096;

    while (room < link->queue_bytes + bytes)
        room *= 2;
    if (room > HKT__BOOT_QUEUE_MAX)
        return false;
    if (room == link->queue_room)
        return true;
    unsigned char *queue = hkt__realloc(link->queue, room, 1);

    if (queue == NULL)
        return false;
    link->queue = queue;
    link->queue_room = room;
    return true;
}

static void queue_put(struct hkt__link *link, const struct hkt__wire_writer *message)
{
    if (link->fd < 0 || link->has_left || link->is_overfull || link->is_cut)
        return;
    if (!queue_reserve(link, message->used)) {
        link->is_overfull = true;
        return;
    }
    memcpy(link->queue + link->queue_bytes, message->bytes, message->used);
    link->queue_bytes += message->used;
}

/* A note may be lost: it never makes the queue grow, so that a long wait in steady state allocates nothing. */
static void queue_put_note(struct hkt__link *link, const struct hkt__wire_writer *message)
{
    if (link->queue_room - link->queue_bytes >= message->used)
        queue_put(link, message);
}

/* OK: empty. AGAIN: the socket is full. PEER_LOST: sending fails; the reading side will say why. */
static enum hkt_status queue_flush(struct hkt__link *link)
{
    size_t sent = 0;
    enum hkt_status status = HKT_OK;

    while (sent < link->queue_bytes && status == HKT_OK) {
        const ssize_t n = send(link->fd, link->queue + sent, link->queue_bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n > 0)
            sent += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            status = HKT_AGAIN;
        else if (n < 0 && errno != EINTR)
            status = HKT_ERR_PEER_LOST;
    }
    if (status == HKT_ERR_PEER_LOST)
        sent = link->queue_bytes;
    if (sent > 0)
        memmove(link->queue, link->queue + sent, link->queue_bytes - sent);
    link->queue_bytes -= sent;
    return status;
}

/* ---- events ---- */

static bool is_same_key(const struct hkt__event_key *a, const struct hkt__event_key *b)
{
    return a->comm_id == b->comm_id && a->reporter == b->reporter && a->culprit == b->culprit && a->status == b->status;
}

static bool seen_before(struct hkt__boot *boot, const struct hkt__boot_event *event)
{
    const struct hkt__event_key key = {.comm_id = event->comm_id, .reporter = event->reporter,
                                       .culprit = event->culprit, .status = event->status};
    const unsigned count = boot->seen_count < HKT__BOOT_SEEN_MAX ? boot->seen_count : HKT__BOOT_SEEN_MAX;

    for (unsigned i = 0; i < count; i++)
        if (is_same_key(&boot->seen[i], &key))
            return true;
    boot->seen[boot->seen_count % HKT__BOOT_SEEN_MAX] = key;
    /* The count only tells how full the table is and where to go on: it may wrap to a multiple of the size. */
    boot->seen_count = boot->seen_count + 1 == 2 * HKT__BOOT_SEEN_MAX ? HKT__BOOT_SEEN_MAX : boot->seen_count + 1;
    return false;
}

bool hkt__boot_event_spread(struct hkt__boot *boot, const struct hkt__boot_event *event, int from)
{
    struct hkt__wire_writer message;

    hkt__wire_put_event(&message, event);
    pthread_mutex_lock(&boot->mutex);
    const bool is_new = !seen_before(boot, event);

    for (int i = 0; i < HKT__LINK_COUNT && is_new; i++)
        if (i != from)
            queue_put(&boot->links[i], &message);
    pthread_mutex_unlock(&boot->mutex);
    return is_new;
}

static void monitor_wake(const struct hkt__boot *boot)
{
    const uint64_t one = 1;

    if (boot->wake >= 0 && write(boot->wake, &one, sizeof one) < 0)
        assert(errno == EAGAIN); /* the counter is full: the monitor is awake anyway */
}

void hkt__boot_tell(struct hkt__boot *boot, const struct hkt__boot_event *event)
{
    if (boot->is_inherited || !hkt__boot_event_spread(boot, event, -1))
        return;
    if (boot->is_monitored)
        monitor_wake(boot);
    else
        hkt__boot_queues_flush(boot);
}

/* ---- notes ---- */

static bool is_same_note(const struct hkt__boot_note *a, const struct hkt__boot_note *b)
{
    return a->kind == b->kind && a->comm_id == b->comm_id && a->is_running == b->is_running &&
           a->stamp.op_seq == b->stamp.op_seq && a->stamp.call == b->stamp.call && a->stamp.root == b->stamp.root &&
           a->stamp.count == b->stamp.count;
}

/* Whether the same was passed on a moment ago. The caller holds the mutex. */
static bool noted_before(struct hkt__boot *boot, const struct hkt__boot_note *note)
{
    const int64_t now_ns = hkt__now_ns();
    struct hkt__noted *slot = NULL;

    for (int i = 0; i < HKT__BOOT_NOTED_MAX && slot == NULL; i++)
        if (boot->noted[i].when_ns != 0 && is_same_note(&boot->noted[i].note, note))
            slot = &boot->noted[i];
    if (slot != NULL && now_ns - slot->when_ns < HKT__BOOT_NOTE_REPEAT_MS * INT64_C(1000000))
        return true;
    if (slot == NULL) {
        slot = &boot->noted[boot->noted_next];
        boot->noted_next = (boot->noted_next + 1) % HKT__BOOT_NOTED_MAX;
    }
    *slot = (struct hkt__noted){.note = *note, .when_ns = now_ns};
    return false;
}

/* As hkt__boot_event_spread. */
static bool note_spread(struct hkt__boot *boot, const struct hkt__boot_note *note, int from)
{
    struct hkt__wire_writer message;

    hkt__wire_put_note(&message, note);
    pthread_mutex_lock(&boot->mutex);
    const bool is_new = note->kind == HKT__NOTE_ANSWERS || !noted_before(boot, note);

    for (int i = 0; i < HKT__LINK_COUNT && is_new; i++)
        if (i != from)
            queue_put_note(&boot->links[i], &message);
    pthread_mutex_unlock(&boot->mutex);
    return is_new;
}

void hkt__boot_note(struct hkt__boot *boot, const struct hkt__boot_note *note)
{
    if (!boot->is_inherited && boot->is_monitored && note_spread(boot, note, -1))
        monitor_wake(boot);
}

/* ---- the monitor thread ---- */

static void deliver(struct hkt__boot *boot, const struct hkt__boot_event *event, int from)
{
    if (!hkt__boot_event_spread(boot, event, from))
        return;
    hkt__boot_queues_flush(boot);
    if (hkt__log_level(HKT__SUB_BOOT) >= HKT__LOG_INFO)
        hkt__log(HKT__SUB_BOOT, HKT__LOG_INFO, "rank %d reports, to blame rank %d: %s", event->reporter, event->culprit,
                 event->text);
    boot->handlers.on_event(boot->handlers.arg, event);
}

static void deliver_note(struct hkt__boot *boot, const struct hkt__boot_note *note, int from)
{
    if (!note_spread(boot, note, from))
        return;
    hkt__boot_queues_flush(boot);
    if (boot->handlers.on_note != NULL)
        boot->handlers.on_note(boot->handlers.arg, note);
}

/* Forget a link's socket; after this nothing is queued for it. */
static void link_close(struct hkt__boot *boot, struct hkt__link *link)
{
    pthread_mutex_lock(&boot->mutex);
    const int fd = link->fd;

    link->fd = -1;
    link->queue_bytes = 0;
    pthread_mutex_unlock(&boot->mutex);
    hkt__net_close_gently(fd); /* leaves the epoll set with its last descriptor */
}

static void link_lost(struct hkt__boot *boot, int which, enum hkt_status status, int sys_errno, const char *how)
{
    struct hkt__link *link = &boot->links[which];
    struct hkt__boot_event event = {.reporter = boot->rank, .culprit = link->rank, .status = (int32_t)status,
                                    .sys_errno = sys_errno};

    char why[128];

    link_close(boot, link);
    snprintf(event.text, sizeof event.text, "rank %d %s (seen by rank %d)%s%s", link->rank, how, boot->rank,
             sys_errno != 0 ? ": " : "", sys_errno != 0 ? strerror_r(sys_errno, why, sizeof why) : "");
    deliver(boot, &event, which);
}

static bool is_sane(const struct hkt__boot *boot, const struct hkt__boot_event *event)
{
    return event->reporter >= 0 && event->reporter < boot->nranks && event->culprit >= -1 &&
           event->culprit < boot->nranks;
}

/* One message of a link. False: nothing more to read now. */
static bool link_read(struct hkt__boot *boot, int which)
{
    struct hkt__link *link = &boot->links[which];
    struct hkt__wire_message message;
    struct hkt__boot_event event;
    struct hkt__boot_note note;
    const enum hkt_status status = hkt__wire_read(&link->reader, link->fd, &message);

    if (status == HKT_AGAIN)
        return false;
    if (status == HKT_ERR_PEER_LOST && link->has_left) {
        link_close(boot, link);
        return false;
    }
    if (status == HKT_ERR_PEER_LOST) {
        link_lost(boot, which, status, link->reader.sys_errno, "was lost: its process or host ended");
        return false;
    }
    if (status == HKT_OK && hkt__wire_get_event(&message, &event) && is_sane(boot, &event)) {
        deliver(boot, &event, which);
        return link->fd >= 0;
    }
    if (status == HKT_OK && hkt__wire_get_note(&message, &note) && note.rank >= 0 && note.rank < boot->nranks) {
        deliver_note(boot, &note, which);
        return true;
    }
    if (status == HKT_OK && message.type == HKT__WIRE_FAREWELL && message.bytes == 0) {
        pthread_mutex_lock(&boot->mutex);
        link->has_left = true;
        link->queue_bytes = 0;
        pthread_mutex_unlock(&boot->mutex);
        return true;
    }
    link_lost(boot, which, HKT_ERR_CORRUPT, 0, "sent bytes that are no message of the control plane");
    return false;
}

void hkt__boot_queues_flush(struct hkt__boot *boot)
{
    for (int i = 0; i < HKT__LINK_COUNT; i++) {
        struct hkt__link *link = &boot->links[i];

        pthread_mutex_lock(&boot->mutex);
        const bool must_wait = link->fd >= 0 && queue_flush(link) == HKT_AGAIN;

        pthread_mutex_unlock(&boot->mutex);
        if (link->fd < 0 || boot->epoll < 0 || must_wait == link->is_armed)
            continue;
        struct epoll_event want = {.events = must_wait ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.u32 = (uint32_t)i};

        link->is_armed = must_wait;
        (void)epoll_ctl(boot->epoll, EPOLL_CTL_MOD, link->fd, &want);
    }
}

/* Queues that ran over since the last look. */
static void overfull_close(struct hkt__boot *boot)
{
    for (int i = 0; i < HKT__LINK_COUNT; i++) {
        pthread_mutex_lock(&boot->mutex);
        const bool is_lost = boot->links[i].fd >= 0 && boot->links[i].is_overfull;

        pthread_mutex_unlock(&boot->mutex);
        if (is_lost)
            link_lost(boot, i, HKT_ERR_PEER_LOST, 0, "does not take messages of the control plane any more");
    }
}

static bool is_stopping(struct hkt__boot *boot)
{
    pthread_mutex_lock(&boot->mutex);
    const bool is_set = boot->is_stopping;

    pthread_mutex_unlock(&boot->mutex);
    return is_set;
}

static void *monitor_main(void *arg)
{
    struct hkt__boot *boot = arg;

    (void)pthread_setname_np(pthread_self(), "hkt-monitor");
    hkt__log_set_rank(boot->rank);
    while (!is_stopping(boot)) {
        struct epoll_event events[HKT__LINK_COUNT + 1];
        const int n = epoll_wait(boot->epoll, events, HKT__LINK_COUNT + 1, -1);

        for (int i = 0; i < n; i++) {
            const uint32_t which = events[i].data.u32;
            uint64_t count;

            if (which == HKT__LINK_COUNT && read(boot->wake, &count, sizeof count) < 0)
                assert(errno == EAGAIN);
            for (int k = 0; which < HKT__LINK_COUNT && boot->links[which].fd >= 0 && k < READS_PER_WAKE; k++)
                if (!link_read(boot, (int)which))
                    break;
        }
        hkt__boot_queues_flush(boot);
        overfull_close(boot);
    }
    return NULL;
}

/* ---- start and end ---- */

static enum hkt_status monitor_watch(struct hkt__boot *boot)
{
    boot->epoll = epoll_create1(EPOLL_CLOEXEC);
    boot->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (boot->epoll < 0 || boot->wake < 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot open the descriptors of the monitor");
    for (uint32_t i = 0; i <= HKT__LINK_COUNT; i++) {
        const int fd = i < HKT__LINK_COUNT ? boot->links[i].fd : boot->wake;
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};

        if (fd >= 0 && epoll_ctl(boot->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
            return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot watch the links of the monitor");
        if (fd >= 0 && i < HKT__LINK_COUNT && !queue_reserve(&boot->links[i], HKT__BOOT_NOTES_QUEUE_MIN))
            return hkt__fail(HKT_ERR_NOMEM, "no memory for the queues of the monitor");
    }
    return HKT_OK;
}

/* Signals are the application's: its handlers must not run on a small stack that is not its own. */
static enum hkt_status monitor_thread(struct hkt__boot *boot)
{
    pthread_attr_t attr;
    sigset_t all, before;
    int rc = pthread_attr_init(&attr);

    if (rc == 0) {
        const size_t least = (size_t)PTHREAD_STACK_MIN;

        (void)pthread_attr_setstacksize(&attr, STACK_BYTES > least ? STACK_BYTES : least);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        rc = pthread_create(&boot->thread, &attr, monitor_main, boot);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attr);
    }
    errno = rc;
    return rc == 0 ? HKT_OK : hkt__fail_sys(HKT_ERR_SYSTEM, "cannot start the monitor thread");
}

enum hkt_status hkt__boot_monitor_start(struct hkt__boot *boot, const struct hkt__boot_handlers *handlers)
{
    assert(!boot->is_monitored);
    boot->handlers = *handlers;
    enum hkt_status status = boot->nranks > 1 ? monitor_watch(boot) : HKT_OK;

    boot->is_monitored = status == HKT_OK; /* before the thread, whose handler may tell */
    if (status == HKT_OK && boot->nranks > 1)
        status = monitor_thread(boot);
    if (status < 0)
        boot->is_monitored = false;
    return status;
}

static void monitor_stop(struct hkt__boot *boot)
{
    if (!boot->is_monitored || boot->nranks == 1)
        return;
    assert(!pthread_equal(pthread_self(), boot->thread));
    pthread_mutex_lock(&boot->mutex);
    boot->is_stopping = true;
    pthread_mutex_unlock(&boot->mutex);
    monitor_wake(boot);
    pthread_join(boot->thread, NULL);
    boot->is_monitored = false;
}

static void farewell_say(struct hkt__boot *boot)
{
    struct hkt__wire_writer farewell;

    hkt__wire_begin(&farewell, HKT__WIRE_FAREWELL);
    pthread_mutex_lock(&boot->mutex);
    for (int i = 0; i < HKT__LINK_COUNT; i++)
        queue_put(&boot->links[i], &farewell);
    pthread_mutex_unlock(&boot->mutex);
    hkt__boot_queues_flush(boot);
}

void hkt__boot_destroy(struct hkt__boot *boot)
{
    if (boot == NULL)
        return;
    hkt__boot_fork_remove(boot);
    if (!boot->is_inherited) {
        monitor_stop(boot);
        farewell_say(boot);
    }
    for (int i = 0; i < HKT__LINK_COUNT; i++) {
        hkt__net_close_gently(boot->links[i].fd);
        hkt__free(boot->links[i].queue);
    }
    if (boot->epoll >= 0)
        close(boot->epoll);
    if (boot->wake >= 0)
        close(boot->wake);
    if (!boot->is_inherited) /* another thread may have held it at the fork */
        pthread_mutex_destroy(&boot->mutex);
    hkt__free(boot);
}
