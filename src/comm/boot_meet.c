/* The meeting. The root's side and everyone else's, in the order in which things happen:
 *
 *   rank r > 0                                  root
 *   connect, prove, say where it listens   -->  register
 *                                          <--  when all are there: where your parent listens (PLACE)
 *   link to the parent, accept children
 *   READY                                  -->
 *                                          <--  when all are ready: GO
 *
 * Connections to the root stay open until GO, so whatever goes wrong on any rank before is known to the root, which
 * tells all: it fails on all ranks with the first cause. A rank that fails while GO travels is past that; its
 * neighbours will see its links end. The connections of the root's own children become their links in the tree; those
 * of the others are closed. */
#include "comm/boot_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "core/settings.h"

#define NS_PER_MS INT64_C(1000000)
#define VERDICT_MS 1000        /* for the root to say who was missing */
#define LINGER_MS 1000         /* a meeting that failed early still answers those who come */
#define GIVE_UP_MS 1000        /* for who fails before it meets to tell the others */
#define BIND_PATIENCE_MS 2000  /* the launcher that chose the port may hold it for a moment longer */

enum hkt_status hkt__boot_random(void *out, size_t bytes)
{
    size_t got = 0;

    while (got < bytes) {
        const ssize_t n = getrandom((unsigned char *)out + got, bytes - got, 0);

        if (n < 0 && errno != EINTR)
            return hkt__fail_sys(HKT_ERR_SYSTEM, "no random bytes from the kernel");
        got += n > 0 ? (size_t)n : 0;
    }
    return HKT_OK;
}

/* One meeting of one rank. */
struct meet {
    struct hkt__boot *boot;
    const struct hkt__boot_id *id;
    const struct hkt__settings *settings;
    int64_t deadline_ns;
    struct hkt__boot_server server;      /* opened by the root and by ranks with children */
    bool is_serving;
    struct hkt__boot_root_link root;     /* of the others */
    struct hkt__net_addresses parent;
};

static double seconds(const struct meet *meet)
{
    return (double)meet->boot->timeout_ms / 1e3;
}

static void link_set(struct hkt__boot *boot, int which, int fd, int rank)
{
    boot->links[which].fd = fd;
    boot->links[which].rank = rank;
}

static bool is_late(const struct meet *meet)
{
    return hkt__now_ns() >= meet->deadline_ns;
}

/* ---- root ---- */

static enum hkt_status root_listen(const struct meet *meet, int *out_fd)
{
    const char *address = meet->settings->address;
    const bool is_local = hkt__net_is_loopback_name(meet->id->host);
    const char *host = address[0] != '\0' && !is_local ? address : NULL;
    const int64_t until_ns = hkt__now_ns() + BIND_PATIENCE_MS * NS_PER_MS;

    *out_fd = hkt__boot_listener_take(meet->id);
    if (*out_fd >= 0)
        return HKT_OK;
    /* A root at a loopback name serves this host only, so no other host needs to see the port; and there it is looked for. */
    if (is_local)
        host = strcmp(meet->id->host, "localhost") == 0 ? "127.0.0.1" : meet->id->host;
    return hkt__net_listen(host, meet->id->port, until_ns < meet->deadline_ns ? until_ns : meet->deadline_ns, out_fd);
}

/* The limit has passed, here or on the rank `who`: say who is missing. */
static enum hkt_status root_timed_out(const struct meet *meet, int who)
{
    const struct hkt__boot_server *server = &meet->server;
    const int nranks = meet->boot->nranks;
    const bool is_place_known = server->narrived == server->nwanted;
    char missing[512], limit[64];

    hkt__boot_server_missing(server, is_place_known, missing, sizeof missing);
    const char *plural = strpbrk(missing, ",-") != NULL ? "s" : "";

    if (who == 0)
        snprintf(limit, sizeof limit, "within %g s", seconds(meet));
    else
        snprintf(limit, sizeof limit, "before rank %d's time was over", who);
    if (is_place_known)
        return hkt__fail(HKT_ERR_TIMEOUT, "rank%s %s of %d reached the root, but could not link to their neighbours "
                         "%s: can their hosts reach each other by TCP?", plural, missing, nranks, limit);
    return hkt__fail(HKT_ERR_TIMEOUT, "rank%s %s of %d did not arrive %s at the root (rank 0, port %u; %d of %d are "
                     "here): are they running, and were they given its address? HOCKET_INIT_TIMEOUT sets the limit",
                     plural, missing, nranks, limit, hkt__net_port(server->listener), server->narrived + 1, nranks);
}

/* Serve until `*counter` reaches the number of other ranks. */
static enum hkt_status root_serve_until(struct meet *meet, const int *counter)
{
    while (*counter < meet->server.nwanted) {
        const enum hkt_status status = hkt__boot_server_step(&meet->server, meet->deadline_ns);

        if (status == HKT_ERR_TIMEOUT)
            return root_timed_out(meet, hkt__error_here()->peer);
        if (status < 0)
            return status;
        if (*counter < meet->server.nwanted && is_late(meet))
            return root_timed_out(meet, 0);
    }
    return HKT_OK;
}

static void root_place_all(const struct meet *meet)
{
    const struct hkt__boot_server *server = &meet->server;
    struct hkt__wire_writer message;

    for (int rank = 1; rank < meet->boot->nranks; rank++) {
        const int parent = hkt__boot_tree_parent(rank);
        const struct hkt__net_addresses nothing = {0};

        hkt__wire_put_place(&message, parent == 0 ? &nothing : &server->arrived[parent]->addresses);
        (void)hkt__wire_send(server->arrived[rank]->fd, &message);
    }
}

/* The address under which others saw this host: that of any link that does not stay within the host. */
static void root_local_address(struct meet *meet)
{
    for (int rank = 1; rank < meet->boot->nranks; rank++) {
        struct sockaddr_storage own = {0};
        socklen_t bytes = sizeof own;

        if (getsockname(meet->server.arrived[rank]->fd, (struct sockaddr *)&own, &bytes) != 0)
            continue;
        if (meet->boot->local_address[0] == '\0' || !hkt__net_is_loopback(&own))
            hkt__net_host(&own, meet->boot->local_address);
        if (!hkt__net_is_loopback(&own))
            return;
    }
}

/* Those who are on their way learn the reason, too, instead of finding the port closed until their time is over. */
static enum hkt_status root_fail(struct meet *meet)
{
    const struct hkt__error verdict = *hkt__error_here();
    const int64_t until_ns = hkt__now_ns() + LINGER_MS * NS_PER_MS;

    hkt__boot_server_fail_all(&meet->server, &verdict, until_ns < meet->deadline_ns ? until_ns : meet->deadline_ns);
    *hkt__error_here() = verdict;
    return verdict.status;
}

static enum hkt_status root_open(struct meet *meet)
{
    int listener;
    const enum hkt_status status = root_listen(meet, &listener);

    if (status < 0)
        return status;
    meet->is_serving = true;
    return hkt__boot_server_open(&meet->server, meet->boot, listener);
}

static enum hkt_status root_run(struct meet *meet)
{
    struct hkt__boot *boot = meet->boot;
    struct hkt__wire_writer message;
    enum hkt_status status = root_open(meet);

    if (!meet->is_serving)
        return status;
    if (status == HKT_OK)
        status = root_serve_until(meet, &meet->server.narrived);
    if (status == HKT_OK) {
        root_place_all(meet);
        root_local_address(meet);
        status = root_serve_until(meet, &meet->server.nready);
    }
    if (status < 0)
        return root_fail(meet);
    hkt__wire_begin(&message, HKT__WIRE_GO);
    hkt__boot_server_send_all(&meet->server, &message);
    for (int i = 0; i < 2; i++) {
        const int child = hkt__boot_tree_child(0, i, boot->nranks);

        if (child >= 0)
            link_set(boot, HKT__CHILD_A + i, hkt__boot_server_take(&meet->server, child), child);
    }
    return HKT_OK;
}

/* ---- the others ---- */

/* Open the port for this rank's children, before anyone is told of it. */
static enum hkt_status other_listen(struct meet *meet, uint16_t *out_port)
{
    const bool is_local = hkt__net_is_loopback_name(meet->id->host);
    const char *host = !is_local ? NULL : strchr(meet->id->host, ':') != NULL ? "::1" : "127.0.0.1";
    int listener;
    enum hkt_status status;

    *out_port = 0;
    if (hkt__boot_tree_child(meet->boot->rank, 0, meet->boot->nranks) < 0)
        return HKT_OK;
    status = hkt__net_listen(host, 0, 0, &listener);
    if (status < 0)
        return status;
    meet->is_serving = true;
    *out_port = hkt__net_port(listener);
    return hkt__boot_server_open(&meet->server, meet->boot, listener);
}

/* Reach the root; children find this rank at own_port. */
static enum hkt_status other_register(struct meet *meet, uint16_t own_port)
{
    struct hkt__boot_goal goal = {.purpose = HKT__WIRE_REGISTER, .rank = 0, .hosts = meet->id->host,
                                  .port = meet->id->port, .interface = meet->settings->interface,
                                  .deadline_ns = meet->deadline_ns, .timeout_ms = meet->boot->timeout_ms};
    struct sockaddr_storage own = {0};
    socklen_t bytes = sizeof own;
    int fd = -1;

    goal.own.port = own_port;
    const enum hkt_status status = hkt__boot_join(meet->boot, &goal, &meet->root, &fd, meet->root.name);

    if (status < 0)
        return status;
    meet->root.fd = fd;
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) == 0)
        hkt__net_host(&own, meet->boot->local_address);
    return HKT_OK;
}

static enum hkt_status other_wait_place(struct meet *meet)
{
    struct hkt__wire_message message;
    const enum hkt_status status = hkt__boot_root_wait(&meet->root, HKT__WIRE_PLACE, meet->deadline_ns, &message);

    if (status == HKT_OK && !hkt__wire_get_place(&message, &meet->parent))
        return hkt__fail_peer(HKT_ERR_CORRUPT, 0, "rank 0 (%s) sent a damaged message", meet->root.name);
    if (status == HKT_AGAIN)
        return hkt__fail(HKT_ERR_TIMEOUT, "rank %d reached the root (rank 0 at %s), but not all of %d ranks arrived "
                         "there within %g s", meet->boot->rank, meet->root.name, meet->boot->nranks, seconds(meet));
    return status;
}

static enum hkt_status other_link_parent(struct meet *meet)
{
    struct hkt__boot *boot = meet->boot;
    const int parent = hkt__boot_tree_parent(boot->rank);
    struct hkt__boot_goal goal = {.purpose = HKT__WIRE_LINK, .rank = parent, .deadline_ns = meet->deadline_ns,
                                  .timeout_ms = boot->timeout_ms};
    char name[HKT__NET_NAME_MAX];
    int fd = -1;

    if (parent == 0)
        return HKT_OK; /* the connection to the root becomes the link */
    hkt__net_targets_of(&meet->parent, &goal.targets);
    const enum hkt_status status = hkt__boot_join(boot, &goal, &meet->root, &fd, name);

    if (status == HKT_OK)
        link_set(boot, HKT__PARENT, fd, parent);
    return status;
}

static enum hkt_status other_accept_children(struct meet *meet)
{
    struct hkt__boot_server *server = &meet->server;
    struct hkt__boot *boot = meet->boot;

    if (!meet->is_serving)
        return HKT_OK;
    enum hkt_status status = hkt__boot_server_watch(server, meet->root.fd);

    while (status == HKT_OK && server->narrived < server->nwanted) {
        status = hkt__boot_server_step(server, meet->deadline_ns);
        if (status == HKT_OK && server->is_watch_ready)
            status = hkt__boot_root_poll(&meet->root);
        if (status == HKT_OK && server->narrived < server->nwanted && is_late(meet)) {
            char missing[64];

            hkt__boot_server_missing(server, false, missing, sizeof missing);
            status = hkt__fail(HKT_ERR_TIMEOUT, "rank %d waited %g s for rank %s to link to it at port %u: can their "
                               "hosts reach each other by TCP?", boot->rank, seconds(meet), missing,
                               hkt__net_port(server->listener));
        }
    }
    for (int i = 0; i < 2 && status == HKT_OK; i++) {
        const int child = hkt__boot_tree_child(boot->rank, i, boot->nranks);

        if (child >= 0)
            link_set(boot, HKT__CHILD_A + i, hkt__boot_server_take(server, i), child);
    }
    return status;
}

static enum hkt_status other_wait_go(struct meet *meet)
{
    struct hkt__wire_writer ready;
    struct hkt__wire_message message;
    enum hkt_status status;

    hkt__wire_begin(&ready, HKT__WIRE_READY);
    (void)hkt__wire_send(meet->root.fd, &ready); /* if it fails, so does the wait */
    status = hkt__boot_root_wait(&meet->root, HKT__WIRE_GO, meet->deadline_ns, &message);
    if (status == HKT_AGAIN)
        return hkt__fail(HKT_ERR_TIMEOUT, "rank %d is linked, but other ranks could not link to each other within %g s",
                         meet->boot->rank, seconds(meet));
    return status;
}

/* This rank has failed: the root tells the others. If time was over, the root knows better who was late. */
static enum hkt_status other_give_up(struct meet *meet, enum hkt_status status)
{
    const struct hkt__error own = *hkt__error_here();
    struct hkt__wire_writer message;
    struct hkt__wire_message verdict;

    hkt__wire_put_fail(&message, status, own.text);
    if (meet->root.fd < 0 || meet->root.is_over || hkt__wire_send(meet->root.fd, &message) != 0)
        return status;
    if (status == HKT_ERR_TIMEOUT) {
        status = hkt__boot_root_wait(&meet->root, HKT__WIRE_FAIL, hkt__now_ns() + VERDICT_MS * NS_PER_MS, &verdict);
        struct hkt__wire_fail fail;

        if (status == HKT_OK && hkt__wire_get_fail(&verdict, &fail))
            return hkt__fail_peer(fail.status, 0, "rank 0 ended the meeting: %.900s", fail.text);
    }
    *hkt__error_here() = own;
    return own.status;
}

static enum hkt_status other_run(struct meet *meet)
{
    uint16_t own_port;
    enum hkt_status status = other_listen(meet, &own_port);

    if (status < 0) {
        hkt__boot_give_up(meet->id, meet->boot->nranks, meet->boot->rank);
        return status;
    }
    status = other_register(meet, own_port);
    if (status == HKT_OK)
        status = other_wait_place(meet);
    if (status == HKT_OK)
        status = other_link_parent(meet);
    if (status == HKT_OK)
        status = other_accept_children(meet);
    if (status == HKT_OK)
        status = other_wait_go(meet);
    if (status < 0)
        return other_give_up(meet, status);
    if (hkt__boot_tree_parent(meet->boot->rank) == 0) {
        link_set(meet->boot, HKT__PARENT, meet->root.fd, 0);
        meet->root.fd = -1;
    }
    return status;
}

/* ---- the call ---- */

static enum hkt_status boot_create(const struct hkt__boot_id *id, int nranks, int rank, int64_t timeout_ms,
                                   struct hkt__boot **out_boot)
{
    struct hkt__boot *boot = hkt__calloc(1, sizeof *boot);

    if (boot == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the bootstrap");
    boot->rank = rank;
    boot->nranks = nranks;
    boot->timeout_ms = timeout_ms;
    memcpy(boot->token, id->token, sizeof boot->token);
    boot->epoll = boot->wake = -1;
    for (int i = 0; i < HKT__LINK_COUNT; i++)
        link_set(boot, i, -1, -1);
    if (pthread_mutex_init(&boot->mutex, NULL) != 0) {
        hkt__free(boot);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the bootstrap");
    }
    *out_boot = boot;
    return HKT_OK;
}

static enum hkt_status meet_check(const struct hkt__boot_id *id, int nranks, int rank)
{
    if (nranks < 1 || nranks > HKT__BOOT_NRANKS_MAX)
        return hkt__fail(HKT_ERR_INVALID, "%d is no number of ranks: 1 to %d are possible", nranks,
                         HKT__BOOT_NRANKS_MAX);
    if (rank < 0 || rank >= nranks)
        return hkt__fail(HKT_ERR_INVALID, "rank %d does not exist: the %d ranks of this job are 0 to %d", rank, nranks,
                         nranks - 1);
    if (nranks > 1 && (id->port == 0 || id->host[0] == '\0' || memchr(id->host, '\0', sizeof id->host) == NULL))
        return hkt__fail(HKT_ERR_INVALID, "the address of the root (rank 0) is missing: set HOCKET_ROOT=host:port");
    return HKT_OK;
}

static enum hkt_status meet_alone(const struct meet *meet)
{
    const int listener = hkt__boot_listener_take(meet->id);

    if (listener >= 0)
        close(listener);
    snprintf(meet->boot->local_address, sizeof meet->boot->local_address, "127.0.0.1");
    return HKT_OK;
}

static void meet_end(struct meet *meet)
{
    if (meet->is_serving)
        hkt__boot_server_close(&meet->server);
    hkt__net_close_gently(meet->root.fd);
}

void hkt__boot_give_up(const struct hkt__boot_id *id, int nranks, int rank)
{
    static const struct hkt__settings defaults = {.address = "", .interface = ""};
    const struct hkt__error own = *hkt__error_here();
    struct hkt__boot boot = {.rank = rank, .nranks = nranks, .timeout_ms = GIVE_UP_MS};
    struct meet meet = {.boot = &boot, .id = id, .root = {.fd = -1},
                        .deadline_ns = hkt__now_ns() + GIVE_UP_MS * NS_PER_MS};

    memcpy(boot.token, id->token, sizeof boot.token);
    if (nranks > 1 && meet_check(id, nranks, rank) == HKT_OK) {
        if (hkt__settings_get(&meet.settings) < 0)
            meet.settings = &defaults; /* what is wrong with them may be why this rank gives up */
        const enum hkt_status status = rank == 0 ? root_open(&meet) : other_register(&meet, 0);

        *hkt__error_here() = own;
        if (rank == 0 && meet.is_serving)
            (void)root_fail(&meet);
        else if (rank > 0 && status == HKT_OK)
            (void)other_give_up(&meet, own.status);
        meet_end(&meet);
    }
    *hkt__error_here() = own;
}

enum hkt_status hkt__boot_meet(const struct hkt__boot_id *id, int nranks, int rank, int64_t timeout_ms,
                               struct hkt__boot **out_boot)
{
    struct meet meet = {.id = id, .root = {.fd = -1}};
    enum hkt_status status = meet_check(id, nranks, rank);

    if (status < 0)
        return status;
    status = hkt__settings_get(&meet.settings);
    if (status == HKT_OK)
        status = boot_create(id, nranks, rank, timeout_ms, &meet.boot);
    if (status < 0) {
        hkt__boot_give_up(id, nranks, rank);
        return status;
    }
    meet.deadline_ns = hkt__now_ns() + timeout_ms * NS_PER_MS;
    status = nranks == 1 ? meet_alone(&meet) : rank == 0 ? root_run(&meet) : other_run(&meet);
    meet_end(&meet);
    if (status < 0) {
        const struct hkt__error first = *hkt__error_here();

        hkt__boot_destroy(meet.boot);
        *hkt__error_here() = first;
        return status;
    }
    hkt__boot_fork_add(meet.boot);
    *out_boot = meet.boot;
    return HKT_OK;
}

const char *hkt__boot_local_address(const struct hkt__boot *boot)
{
    return boot->local_address;
}
