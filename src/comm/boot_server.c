/* The accepting side of a meeting. A connection is "pending" until it has proven that it holds the token; it costs one
 * descriptor and about 2 KB, for HKT__BOOT_CLIENT_MS at most, and there are never more than HKT__BOOT_PENDING_MAX: so
 * garbage, silence and floods cannot stall the meeting. What a proven peer does wrong, in contrast, ends the meeting
 * for all, with one text for both sides.
 * One thread owns the server and all its clients. */
#include "comm/boot_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#define BATCH 64
#define NS_PER_MS INT64_C(1000000)

/* ---- lists ---- */

static void pending_remove(struct hkt__boot_server *server, struct hkt__boot_client *client)
{
    struct hkt__boot_client **at = &server->pending;

    while (*at != client)
        at = &(*at)->next;
    *at = client->next;
    if (server->pending_tail == &client->next)
        server->pending_tail = at;
    client->next = NULL;
    server->npending--;
}

/* Close a pending connection. Its memory lives until the end of the step: events already fetched may still name it. */
static void pending_drop(struct hkt__boot_server *server, struct hkt__boot_client *client, const char *why)
{
    if (hkt__log_level(HKT__SUB_BOOT) >= HKT__LOG_INFO)
        hkt__log(HKT__SUB_BOOT, HKT__LOG_INFO, "dropped connection from %s: %s", client->name, why);
    pending_remove(server, client);
    hkt__net_close_gently(client->fd);
    client->fd = -1;
    client->next = server->gone;
    server->gone = client;
}

static void gone_free(struct hkt__boot_server *server)
{
    while (server->gone != NULL) {
        struct hkt__boot_client *client = server->gone;

        server->gone = client->next;
        hkt__free(client);
    }
}

/* ---- opening and closing ---- */

static int watch(int epoll, int fd, void *who)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = who};

    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

enum hkt_status hkt__boot_server_open(struct hkt__boot_server *server, const struct hkt__boot *boot, int listener)
{
    const bool is_root = boot->rank == 0;

    *server = (struct hkt__boot_server){.boot = boot, .listener = listener,
                                        .purpose = is_root ? HKT__WIRE_REGISTER : HKT__WIRE_LINK};
    server->pending_tail = &server->pending;
    server->nslots = is_root ? boot->nranks : 2;
    if (is_root)
        server->nwanted = boot->nranks - 1;
    else
        for (int i = 0; i < 2; i++)
            server->nwanted += hkt__boot_tree_child(boot->rank, i, boot->nranks) >= 0;
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (server->epoll < 0 || watch(server->epoll, listener, NULL) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot watch the rendezvous port");
    server->arrived = hkt__calloc((size_t)server->nslots, sizeof *server->arrived); /* last: to refuse takes none */
    if (server->arrived == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for %d connections of the meeting", server->nslots);
    return HKT_OK;
}

enum hkt_status hkt__boot_server_watch(struct hkt__boot_server *server, int fd)
{
    if (watch(server->epoll, fd, &server->is_watch_ready) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot watch the connection to the root");
    return HKT_OK;
}

void hkt__boot_server_close(struct hkt__boot_server *server)
{
    while (server->pending != NULL)
        pending_drop(server, server->pending, "the meeting is over");
    gone_free(server);
    for (int i = 0; i < server->nslots && server->arrived != NULL; i++)
        if (server->arrived[i] != NULL) {
            hkt__net_close_gently(server->arrived[i]->fd);
            hkt__free(server->arrived[i]);
        }
    hkt__free(server->arrived);
    server->arrived = NULL;
    if (server->listener >= 0)
        close(server->listener);
    if (server->epoll >= 0)
        close(server->epoll);
    server->listener = server->epoll = -1;
}

int hkt__boot_server_take(struct hkt__boot_server *server, int slot)
{
    struct hkt__boot_client *client = server->arrived[slot];

    if (client == NULL)
        return -1;
    const int fd = client->fd;

    (void)epoll_ctl(server->epoll, EPOLL_CTL_DEL, fd, NULL);
    server->arrived[slot] = NULL;
    hkt__free(client);
    return fd;
}

void hkt__boot_server_send_all(struct hkt__boot_server *server, const struct hkt__wire_writer *message)
{
    for (int i = 0; i < server->nslots && server->arrived != NULL; i++)
        if (server->arrived[i] != NULL)
            (void)hkt__wire_send(server->arrived[i]->fd, message);
}

/* ---- accepting ---- */

static enum hkt_status client_admit(struct hkt__boot_server *server, int fd, const struct sockaddr_storage *address)
{
    struct hkt__wire_writer message;

    if (server->npending >= HKT__BOOT_PENDING_MAX)
        pending_drop(server, server->pending, "too many unproven connections");
    struct hkt__boot_client *client = hkt__calloc(1, sizeof *client);

    if (client == NULL) {
        close(fd);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a connection of the meeting");
    }
    client->fd = fd;
    client->rank = -1;
    client->deadline_ns = hkt__now_ns() + HKT__BOOT_CLIENT_MS * NS_PER_MS;
    client->challenge = (struct hkt__wire_challenge){.version = HKT__WIRE_VERSION, .rank = server->boot->rank};
    hkt__net_name(address, client->name);
    *server->pending_tail = client;
    server->pending_tail = &client->next;
    server->npending++;
    hkt__net_keep(fd);
    const enum hkt_status status = hkt__boot_random(client->challenge.nonce, sizeof client->challenge.nonce);

    if (status < 0)
        return status;
    hkt__wire_put_challenge(&message, &client->challenge);
    if (hkt__wire_send(fd, &message) != 0 || watch(server->epoll, fd, client) != 0)
        pending_drop(server, client, strerror(errno));
    return HKT_OK;
}

/* Out of descriptors: the oldest unproven connection makes room; if none is left, the limit is too low for the job. */
static enum hkt_status accept_short_of_fds(struct hkt__boot_server *server)
{
    if (server->pending == NULL)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "rank %d cannot accept more connections (%d of %d have come); raise the "
                             "limit of open files (`ulimit -n`) to at least %d", server->boot->rank, server->narrived,
                             server->nwanted, server->nwanted + 64);
    pending_drop(server, server->pending, "out of file descriptors");
    return HKT_OK;
}

static enum hkt_status accept_some(struct hkt__boot_server *server)
{
    enum hkt_status status = HKT_OK;

    for (int i = 0; i < BATCH && status == HKT_OK; i++) {
        struct sockaddr_storage address = {0};
        socklen_t bytes = sizeof address;
        const int fd = accept4(server->listener, (struct sockaddr *)&address, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0)
            status = client_admit(server, fd, &address);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return HKT_OK;
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            status = accept_short_of_fds(server);
        else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
            return hkt__fail_sys(HKT_ERR_SYSTEM, "the rendezvous port of rank %d was closed by someone else in this "
                                 "process", server->boot->rank);
        /* Anything else is the fate of one connection that ended before it was accepted. */
    }
    return status;
}

/* ---- proving ---- */

static void client_refuse(struct hkt__boot_server *server, struct hkt__boot_client *client, enum hkt_status status,
                          const char *text)
{
    struct hkt__wire_writer message;

    hkt__wire_put_fail(&message, status, text);
    (void)hkt__wire_send(client->fd, &message);
    pending_drop(server, client, text);
}

/* Slot of a proven peer, or -1 when it has no place here. */
static int slot_of(const struct hkt__boot_server *server, int rank)
{
    if (server->purpose == HKT__WIRE_REGISTER)
        return rank;
    for (int i = 0; i < 2; i++)
        if (hkt__boot_tree_child(server->boot->rank, i, server->boot->nranks) == rank)
            return i;
    return -1;
}

/* Does what a proven peer says fit this job? If not, both sides learn the same text. */
static enum hkt_status hello_check(const struct hkt__boot_server *server, const struct hkt__boot_client *client,
                                   const struct hkt__wire_hello *hello)
{
    const struct hkt__boot *boot = server->boot;

    if (hello->nranks != boot->nranks)
        return hkt__fail(HKT_ERR_INVALID, "rank %d (%s, pid %d) was started as one of %d ranks, rank %d as one of %d: "
                         "all ranks must be given the same number of ranks", hello->rank, client->name, hello->pid,
                         hello->nranks, boot->rank, boot->nranks);
    if (hello->rank < 0 || hello->rank >= boot->nranks)
        return hkt__fail(HKT_ERR_INVALID, "a process (%s, pid %d) says it is rank %d, but the %d ranks of this job are "
                         "0 to %d", client->name, hello->pid, hello->rank, boot->nranks, boot->nranks - 1);
    if (hello->rank == 0 && server->purpose == HKT__WIRE_REGISTER)
        return hkt__fail(HKT_ERR_INVALID, "two processes say they are rank 0: pid %d, which is the root, and pid %d "
                         "(%s): give each process its own rank", (int)getpid(), hello->pid, client->name);
    const int slot = slot_of(server, hello->rank);

    if (slot >= 0 && server->arrived[slot] != NULL)
        return hkt__fail(HKT_ERR_INVALID, "two processes say they are rank %d: pid %d (%s) and pid %d (%s): give each "
                         "process its own rank", hello->rank, server->arrived[slot]->pid, server->arrived[slot]->name,
                         hello->pid, client->name);
    return HKT_OK;
}

static enum hkt_status hello_arrived(struct hkt__boot_server *server, struct hkt__boot_client *client,
                                     const struct hkt__wire_message *message)
{
    struct hkt__wire_hello hello;
    struct hkt__wire_writer answer;
    bool is_proven = false;

    if (!hkt__wire_get_hello(message, server->boot->token, client->challenge.nonce, &hello, &is_proven)) {
        pending_drop(server, client, "its first message is no hello");
        return HKT_OK;
    }
    if (!is_proven) {
        client_refuse(server, client, HKT_ERR_AUTH, "its token is not this job's: start all ranks with the same unique "
                      "id or the same HOCKET_TOKEN, and check that the address is that of this job's root");
        return HKT_OK;
    }
    if (server->verdict != NULL) {
        server->ntold++;
        client_refuse(server, client, server->verdict->status, server->verdict->text);
        return HKT_OK;
    }
    const int slot = slot_of(server, hello.rank);

    if (hello.purpose != server->purpose || (slot < 0 && server->purpose == HKT__WIRE_LINK)) {
        client_refuse(server, client, HKT_ERR_INVALID, "it asked a rank of its job that is not its parent");
        return HKT_OK;
    }
    const enum hkt_status status = hello_check(server, client, &hello);

    if (status < 0) {
        server->ntold++;
        client_refuse(server, client, status, hkt__error_here()->text);
        return status;
    }
    hkt__wire_put_welcome(&answer, &client->challenge, &hello, server->boot->token);
    if (hkt__wire_send(client->fd, &answer) != 0) {
        pending_drop(server, client, strerror(errno));
        return HKT_OK;
    }
    pending_remove(server, client);
    client->rank = hello.rank;
    client->pid = hello.pid;
    client->addresses = hello.addresses;
    server->arrived[slot] = client;
    server->narrived++;
    return HKT_OK;
}

/* ---- those who have arrived ---- */

static enum hkt_status arrived_message(struct hkt__boot_server *server, struct hkt__boot_client *client,
                                       const struct hkt__wire_message *message)
{
    struct hkt__wire_fail fail;

    if (message->type == HKT__WIRE_READY && message->bytes == 0 && !client->is_ready) {
        client->is_ready = true;
        server->nready++;
        return HKT_OK;
    }
    if (hkt__wire_get_fail(message, &fail))
        return hkt__fail_peer(fail.status, client->rank, "rank %d (%s) gave up: %.900s", client->rank, client->name,
                              fail.text);
    return hkt__fail_peer(HKT_ERR_CORRUPT, client->rank, "rank %d (%s) sent a message of type %d that has no place in "
                          "the meeting", client->rank, client->name, (int)message->type);
}

static enum hkt_status arrived_lost(const struct hkt__boot_client *client, enum hkt_status status)
{
    if (status == HKT_ERR_CORRUPT)
        return hkt__fail_peer(status, client->rank, "rank %d (%s) sent bytes that are no message", client->rank,
                              client->name);
    errno = client->reader.sys_errno;
    if (errno != 0)
        (void)hkt__fail_sys(status, "rank %d (%s, pid %d) was lost while the ranks met", client->rank, client->name,
                            client->pid);
    else
        (void)hkt__fail(status, "rank %d (%s, pid %d) ended while the ranks met: look at its own output for the reason",
                        client->rank, client->name, client->pid);
    hkt__error_here()->peer = client->rank;
    return status;
}

static enum hkt_status client_readable(struct hkt__boot_server *server, struct hkt__boot_client *client)
{
    struct hkt__wire_message message;
    enum hkt_status status = HKT_OK;

    while (status == HKT_OK && client->fd >= 0) {
        const enum hkt_status got = hkt__wire_read(&client->reader, client->fd, &message);

        if (got == HKT_AGAIN)
            return HKT_OK;
        if (client->rank >= 0)
            status = got == HKT_OK ? arrived_message(server, client, &message) : arrived_lost(client, got);
        else if (got == HKT_OK)
            status = hello_arrived(server, client, &message);
        else
            pending_drop(server, client, got == HKT_ERR_CORRUPT ? "it does not speak hocket's protocol" : "it hung up");
    }
    return status;
}

/* ---- a step ---- */

static int step_timeout_ms(const struct hkt__boot_server *server, int64_t until_ns)
{
    int64_t left_ns;

    if (server->pending != NULL && server->pending->deadline_ns < until_ns)
        until_ns = server->pending->deadline_ns;
    left_ns = until_ns - hkt__now_ns();
    if (left_ns <= 0)
        return 0;
    return left_ns > 3600 * 1000 * NS_PER_MS ? 3600 * 1000 : (int)((left_ns + NS_PER_MS - 1) / NS_PER_MS);
}

enum hkt_status hkt__boot_server_step(struct hkt__boot_server *server, int64_t until_ns)
{
    struct epoll_event events[BATCH];
    enum hkt_status status = HKT_OK;

    server->is_watch_ready = false;
    const int n = epoll_wait(server->epoll, events, BATCH, step_timeout_ms(server, until_ns));

    if (n < 0 && errno != EINTR)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot wait for connections");
    for (int i = 0; i < n && status == HKT_OK; i++) {
        if (events[i].data.ptr == NULL)
            status = accept_some(server);
        else if (events[i].data.ptr == &server->is_watch_ready)
            server->is_watch_ready = true;
        else
            status = client_readable(server, events[i].data.ptr);
    }
    const int64_t now = hkt__now_ns();

    while (server->pending != NULL && server->pending->deadline_ns <= now)
        pending_drop(server, server->pending, "it stayed silent");
    gone_free(server);
    return status;
}

void hkt__boot_server_fail_all(struct hkt__boot_server *server, const struct hkt__error *verdict, int64_t until_ns)
{
    struct hkt__wire_writer message;

    hkt__wire_put_fail(&message, verdict->status, verdict->text);
    hkt__boot_server_send_all(server, &message);
    for (int i = 0; i < server->nslots && server->arrived != NULL; i++)
        if (server->arrived[i] != NULL) {
            hkt__net_close_gently(hkt__boot_server_take(server, i));
            server->ntold++;
        }
    server->verdict = verdict;
    while (server->ntold < server->nwanted && hkt__now_ns() < until_ns)
        if (hkt__boot_server_step(server, until_ns) < 0)
            return;
}

/* ---- who is missing ---- */

static bool is_missing(const struct hkt__boot_server *server, int rank, bool is_ready_wanted)
{
    const int slot = slot_of(server, rank);

    if (rank == server->boot->rank || slot < 0)
        return false;
    return server->arrived[slot] == NULL || (is_ready_wanted && !server->arrived[slot]->is_ready);
}

void hkt__boot_server_missing(const struct hkt__boot_server *server, bool is_ready_wanted, char *out_text,
                              size_t text_bytes)
{
    const int nranks = server->boot->nranks;
    size_t used = 0;

    out_text[0] = '\0';
    for (int first = 0; first < nranks; first++) {
        char range[32];
        int last = first;

        if (!is_missing(server, first, is_ready_wanted))
            continue;
        while (last + 1 < nranks && is_missing(server, last + 1, is_ready_wanted))
            last++;
        const char *comma = used > 0 ? ", " : "";
        const int n = last > first + 1 ? snprintf(range, sizeof range, "%s%d-%d", comma, first, last)
                      : last > first   ? snprintf(range, sizeof range, "%s%d, %d", comma, first, last)
                                       : snprintf(range, sizeof range, "%s%d", comma, first);

        if (used + (size_t)n + sizeof ", ..." > text_bytes) {
            snprintf(out_text + used, text_bytes - used, ", ...");
            return;
        }
        memcpy(out_text + used, range, (size_t)n + 1);
        used += (size_t)n;
        first = last;
    }
}
