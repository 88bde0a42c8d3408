/* Server and client of fdpass.h. A request is one packet (SOCK_SEQPACKET keeps its borders), the answer another that
 * carries the descriptor. */
#include "transport/fdpass.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/siphash.h"

#define REQUEST_MAGIC 0x68666431u /* "hfd1" */
#define CLIENTS_MAX 64
#define CLIENT_PATIENCE_NS 1000000000
#define ABORT_LOOK_MS 50          /* how often a waiting client looks at the abort word */

struct request {
    uint32_t magic;
    uint32_t pad;
    uint64_t proof; /* SipHash of the server's name under the job's token, which itself does not travel */
};

struct hkt__fdserver {
    pthread_t thread;
    int fd, listener, stop_event;
    unsigned char name[HKT__FDPASS_NAME_BYTES];
    uint64_t proof;
    bool is_out_of_files;                  /* from here on: the thread's own. accept failed: rest before the next try */
    int nclients;
    int clients[CLIENTS_MAX];
    int64_t deadlines_ns[CLIENTS_MAX];
};

static socklen_t make_address(const unsigned char *name, struct sockaddr_un *out_address)
{
    int used = 0;

    memset(out_address, 0, sizeof *out_address);
    out_address->sun_family = AF_UNIX;
    /* sun_path[0] stays 0: abstract. Hex, so that /proc/net/unix can be read. */
    used = snprintf(out_address->sun_path + 1, sizeof out_address->sun_path - 1, "hocket-");
    for (int i = 0; i < HKT__FDPASS_NAME_BYTES; i++)
        used += snprintf(out_address->sun_path + 1 + used, sizeof out_address->sun_path - 1 - (size_t)used, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

/* ---- server ---- */

static void client_drop(struct hkt__fdserver *server, int index)
{
    close(server->clients[index]);
    server->nclients--;
    server->clients[index] = server->clients[server->nclients];
    server->deadlines_ns[index] = server->deadlines_ns[server->nclients];
}

static bool is_same_user(int connection)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;

    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

static void client_accept(struct hkt__fdserver *server)
{
    const int connection = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    server->is_out_of_files = connection < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
    if (connection < 0)
        return;
    if (server->nclients == CLIENTS_MAX || !is_same_user(connection)) {
        close(connection);
        return;
    }
    server->clients[server->nclients] = connection;
    server->deadlines_ns[server->nclients] = hkt__now_ns() + CLIENT_PATIENCE_NS;
    server->nclients++;
}

static void send_fd(int connection, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    uint32_t magic = REQUEST_MAGIC;
    struct iovec part = { .iov_base = &magic, .iov_len = sizeof magic };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                              .msg_controllen = sizeof control.bytes };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    memset(&control, 0, sizeof control);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    /* One small packet on a fresh connection always fits; whoever does not get it asks again or does without. */
    (void)sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* One packet decides: the descriptor, or the door. */
static void client_serve(struct hkt__fdserver *server, int index)
{
    struct request request;
    const ssize_t got = recv(server->clients[index], &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got == (ssize_t)sizeof request && request.magic == REQUEST_MAGIC && request.proof == server->proof)
        send_fd(server->clients[index], server->fd);
    client_drop(server, index);
}

static void *serve(void *arg)
{
    struct hkt__fdserver *server = arg;
    struct pollfd polls[2 + CLIENTS_MAX];

    for (;;) {
        const int nclients = server->nclients;

        polls[0] = (struct pollfd){ .fd = server->stop_event, .events = POLLIN };
        /* With a full table new clients wait in the backlog: somebody's patience ends within a second. */
        const bool can_accept = nclients < CLIENTS_MAX && !server->is_out_of_files;

        polls[1] = (struct pollfd){ .fd = can_accept ? server->listener : -1, .events = POLLIN };
        for (int i = 0; i < nclients; i++)
            polls[2 + i] = (struct pollfd){ .fd = server->clients[i], .events = POLLIN };
        (void)poll(polls, (nfds_t)(2 + nclients), nclients > 0 || server->is_out_of_files ? 50 : -1);
        server->is_out_of_files = false;
        if (polls[0].revents != 0)
            break;
        for (int i = nclients - 1; i >= 0; i--) { /* backwards: a dropped client is replaced by the last */
            if (polls[2 + i].revents != 0)
                client_serve(server, i);
            else if (hkt__now_ns() > server->deadlines_ns[i])
                client_drop(server, i);
        }
        if (polls[1].revents != 0)
            client_accept(server);
    }
    while (server->nclients > 0)
        client_drop(server, server->nclients - 1);
    return NULL;
}

static void server_free(struct hkt__fdserver *server)
{
    if (server->listener >= 0)
        close(server->listener);
    if (server->stop_event >= 0)
        close(server->stop_event);
    hkt__free(server);
}

static enum hkt_status server_listen(struct hkt__fdserver *server)
{
    struct sockaddr_un address;

    if (getrandom(server->name, sizeof server->name, 0) != (ssize_t)sizeof server->name)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "no random bytes for a socket's name");
    server->stop_event = eventfd(0, EFD_CLOEXEC);
    server->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const socklen_t bytes = make_address(server->name, &address);

    if (server->stop_event < 0 || server->listener < 0 ||
        bind(server->listener, (struct sockaddr *)&address, bytes) < 0 || listen(server->listener, SOMAXCONN) < 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot listen on a unix socket for the ranks of this host");
    return HKT_OK;
}

/* The application's signals are not for this thread. */
static int start_thread(struct hkt__fdserver *server)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(&server->thread, NULL, serve, server);

    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

enum hkt_status hkt__fdserver_start(int fd, const unsigned char *key, struct hkt__fdserver **out_server)
{
    struct hkt__fdserver *server = hkt__calloc(1, sizeof *server);

    if (server == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to serve a shared segment");
    server->fd = fd;
    server->listener = server->stop_event = -1;
    enum hkt_status rc = server_listen(server);

    if (rc == HKT_OK) {
        server->proof = hkt__siphash(key, server->name, sizeof server->name);
        errno = start_thread(server);
        if (errno != 0)
            rc = hkt__fail_sys(HKT_ERR_SYSTEM, "cannot start a thread to serve a shared segment");
    }
    if (rc < 0) {
        server_free(server);
        return rc;
    }
    *out_server = server;
    return HKT_OK;
}

const unsigned char *hkt__fdserver_name(const struct hkt__fdserver *server)
{
    return server->name;
}

void hkt__fdserver_stop(struct hkt__fdserver *server)
{
    if (server == NULL)
        return;
    (void)eventfd_write(server->stop_event, 1);
    pthread_join(server->thread, NULL);
    server_free(server);
}

/* ---- client ---- */

/* Connecting to a unix socket is immediate, unless the backlog is full: then the kernel offers nothing to wait for but
 * time, so the caller's deadline is spent in short naps. */
static enum hkt_status client_connect(const struct hkt__fdfetch *fetch, int connection)
{
    struct sockaddr_un address;
    const socklen_t bytes = make_address(fetch->name, &address);

    while (connect(connection, (struct sockaddr *)&address, bytes) < 0) {
        if (errno == ECONNREFUSED || errno == ENOENT)
            return hkt__fail_sys(HKT_ERR_UNSUPPORTED, "no rank listens under its local address here (another network "
                                 "namespace, or it has ended)");
        if (errno != EAGAIN && errno != EINTR)
            return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot connect to a rank of this host");
        if (hkt__now_ns() > fetch->deadline_ns)
            return hkt__fail(HKT_ERR_TIMEOUT, "a rank of this host does not accept connections in time");
        if (fetch->abort_word != NULL && atomic_load_explicit(fetch->abort_word, memory_order_relaxed) != 0)
            return hkt__fail(HKT_ERR_ABORTED, "aborted while connecting to a rank of this host");
        (void)poll(NULL, 0, 1);
    }
    return HKT_OK;
}

static enum hkt_status wait_readable(const struct hkt__fdfetch *fetch, int connection)
{
    for (;;) {
        struct pollfd poll_fd = { .fd = connection, .events = POLLIN };

        if (poll(&poll_fd, 1, ABORT_LOOK_MS) > 0)
            return HKT_OK;
        if (hkt__now_ns() > fetch->deadline_ns)
            return hkt__fail(HKT_ERR_TIMEOUT, "a rank of this host does not hand over its shared segment in time");
        if (fetch->abort_word != NULL && atomic_load_explicit(fetch->abort_word, memory_order_relaxed) != 0)
            return hkt__fail(HKT_ERR_ABORTED, "aborted while waiting for a shared segment");
    }
}

static enum hkt_status receive_fd(int connection, int *out_fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    uint32_t magic = 0;
    struct iovec part = { .iov_base = &magic, .iov_len = sizeof magic };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                              .msg_controllen = sizeof control.bytes };
    const ssize_t got = recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;

    if (got == 0 || (got < 0 && errno == ECONNRESET))
        return hkt__fail(HKT_ERR_AUTH, "a rank of this host refuses to share memory: do all ranks run as the same user and "
                         "hold the same token?");
    if (got != (ssize_t)sizeof magic || magic != REQUEST_MAGIC || header == NULL || header->cmsg_level != SOL_SOCKET ||
        header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof *out_fd))
        return hkt__fail_sys(HKT_ERR_SYSTEM, "a rank of this host hands over no shared segment (too many open files?)");
    memcpy(out_fd, CMSG_DATA(header), sizeof *out_fd);
    return HKT_OK;
}

enum hkt_status hkt__fdfetch(const struct hkt__fdfetch *fetch, int *out_fd, pid_t *out_pid)
{
    const struct request request = { .magic = REQUEST_MAGIC,
                                     .proof = hkt__siphash(fetch->key, fetch->name, HKT__FDPASS_NAME_BYTES) };
    struct ucred server = { 0 };
    socklen_t bytes = sizeof server;
    const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (connection < 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot make a unix socket");
    enum hkt_status rc = client_connect(fetch, connection);

    if (rc == HKT_OK && getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &server, &bytes) == 0 && server.uid != geteuid())
        rc = hkt__fail(HKT_ERR_AUTH, "a rank of this host runs as another user (%u)", (unsigned)server.uid);
    if (rc == HKT_OK && send(connection, &request, sizeof request, MSG_NOSIGNAL) != (ssize_t)sizeof request && errno != EPIPE)
        rc = hkt__fail_sys(HKT_ERR_SYSTEM, "cannot ask a rank of this host for its shared segment");
    if (rc == HKT_OK)
        rc = wait_readable(fetch, connection);
    if (rc == HKT_OK)
        rc = receive_fd(connection, out_fd);
    if (rc == HKT_OK)
        *out_pid = server.pid;
    close(connection);
    return rc;
}
