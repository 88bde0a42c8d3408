/* The connecting side of a meeting: reach the root (which may not listen yet) or the parent, prove the token, and have
 * it proven back. Every wait has the meeting's deadline; while a rank looks for its parent it also listens to the root,
 * so that a failure anywhere ends its wait at once. */
#include "comm/boot_int.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

#define NS_PER_MS INT64_C(1000000)
#define CONNECT_PATIENCE_MS 5000   /* for the TCP connection; then the next address is tried */
#define ANSWER_PATIENCE_MS 5000    /* for the challenge when there are other addresses to try; doubles per round */
#define BACKOFF_MIN_MS 2           /* between rounds; doubles up to the maximum */
#define BACKOFF_MAX_MS 200

/* ---- waiting ---- */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int poll_ms(int64_t until_ns)
{
    const int64_t left_ns = until_ns - hkt__now_ns();

    if (left_ns <= 0)
        return 0;
    return left_ns > 3600 * 1000 * NS_PER_MS ? 3600 * 1000 : (int)((left_ns + NS_PER_MS - 1) / NS_PER_MS);
}

/* The root is gone, or talks nonsense. */
static enum hkt_status root_lost(struct hkt__boot_root_link *root, enum hkt_status status)
{
    root->is_over = true;
    errno = root->reader.sys_errno;
    if (status == HKT_ERR_CORRUPT)
        (void)hkt__fail(status, "rank 0 (%s) sent bytes that are no message", root->name);
    else if (errno != 0)
        (void)hkt__fail_sys(status, "rank 0 (%s) was lost while the ranks met", root->name);
    else
        (void)hkt__fail(status, "rank 0 (%s) ended while the ranks met: look at its own output for the reason",
                        root->name);
    hkt__error_here()->peer = 0;
    return status;
}

/* One message from the root if there is one: OK it is the wanted one; AGAIN: none yet. `wanted` 0: none is due. */
static enum hkt_status root_read(struct hkt__boot_root_link *root, int wanted, struct hkt__wire_message *out_message)
{
    struct hkt__wire_fail fail;
    const enum hkt_status status = hkt__wire_read(&root->reader, root->fd, out_message);

    if (status == HKT_AGAIN)
        return status;
    if (status != HKT_OK)
        return root_lost(root, status);
    if ((int)out_message->type == wanted)
        return HKT_OK;
    root->is_over = true;
    if (hkt__wire_get_fail(out_message, &fail))
        return hkt__fail_peer(fail.status, 0, "rank 0 ended the meeting: %.900s", fail.text);
    return hkt__fail_peer(HKT_ERR_CORRUPT, 0, "rank 0 (%s) sent a message of type %d that has no place in the meeting",
                          root->name, (int)out_message->type);
}

enum hkt_status hkt__boot_root_poll(struct hkt__boot_root_link *root)
{
    struct hkt__wire_message message;
    const enum hkt_status status = root_read(root, 0, &message);

    return status == HKT_AGAIN ? HKT_OK : status;
}

enum hkt_status hkt__boot_root_wait(struct hkt__boot_root_link *root, enum hkt__wire_type type, int64_t deadline_ns,
                                    struct hkt__wire_message *out_message)
{
    for (;;) {
        const enum hkt_status status = root_read(root, (int)type, out_message);
        struct pollfd pfd = {.fd = root->fd, .events = POLLIN};
        const int timeout_ms = poll_ms(deadline_ns);

        if (status != HKT_AGAIN || timeout_ms == 0)
            return status;
        (void)poll(&pfd, 1, timeout_ms);
    }
}

/* Wait for events on fd (-1: just wait) or for time to pass. OK: something on fd; AGAIN: time is up; else the root
 * ended the meeting. */
static enum hkt_status wait_on(int fd, short events, int64_t until_ns, struct hkt__boot_root_link *root)
{
    for (;;) {
        struct pollfd pfds[2] = {{.fd = fd, .events = events}, {.fd = root->fd, .events = POLLIN}};
        const int timeout_ms = poll_ms(until_ns);
        const int n = poll(pfds, 2, timeout_ms);

        if (n > 0 && pfds[1].revents != 0) {
            const enum hkt_status status = hkt__boot_root_poll(root);

            if (status < 0)
                return status;
        }
        if (n > 0 && pfds[0].revents != 0)
            return HKT_OK;
        if (timeout_ms == 0)
            return HKT_AGAIN;
    }
}

/* ---- one attempt ---- */

/* An attempt: its connection, the peer's name, and the handshake so far. */
struct attempt {
    int fd;
    char name[HKT__NET_NAME_MAX];
    bool is_foreign;               /* what answered does not speak the protocol */
    int64_t answer_until_ns;
    struct hkt__wire_reader reader;
    struct hkt__wire_challenge challenge;
    struct hkt__wire_hello hello;
};

/* Attempts return OK; AGAIN with the reason recorded, to be tried anew; or a failure that another try would not mend.
 * */
static enum hkt_status attempt_connect(struct attempt *attempt, const struct hkt__net_target *target,
                                       const struct hkt__boot_goal *goal, struct hkt__boot_root_link *root)
{
    attempt->fd = hkt__net_connect_start(target);
    if (attempt->fd < 0) {
        const bool is_ours = errno == EMFILE || errno == ENFILE;

        (void)hkt__fail_sys(HKT_ERR_SYSTEM, "cannot connect to %s", attempt->name);
        return is_ours ? HKT_ERR_SYSTEM : HKT_AGAIN;
    }
    const int64_t until_ns = earlier(goal->deadline_ns, hkt__now_ns() + CONNECT_PATIENCE_MS * NS_PER_MS);
    const enum hkt_status status = wait_on(attempt->fd, POLLOUT, until_ns, root);

    if (status == HKT_AGAIN)
        (void)hkt__fail(HKT_ERR_TIMEOUT, "no TCP connection to %s within %d s", attempt->name,
                        CONNECT_PATIENCE_MS / 1000);
    if (status != HKT_OK)
        return status;
    errno = hkt__net_connect_result(attempt->fd);
    if (errno != 0) {
        (void)hkt__fail_sys(HKT_ERR_SYSTEM, "cannot connect to %s", attempt->name);
        return HKT_AGAIN;
    }
    hkt__net_keep(attempt->fd);
    return HKT_OK;
}

static enum hkt_status attempt_read(struct attempt *attempt, int64_t until_ns, struct hkt__boot_root_link *root,
                                    struct hkt__wire_message *out_message)
{
    for (;;) {
        enum hkt_status status = hkt__wire_read(&attempt->reader, attempt->fd, out_message);

        if (status == HKT_OK)
            return status;
        if (status == HKT_ERR_CORRUPT) {
            (void)hkt__fail(status, "what listens at %s is not a rank of hocket", attempt->name);
            attempt->is_foreign = true;
            return HKT_AGAIN;
        }
        if (status == HKT_ERR_PEER_LOST) {
            errno = attempt->reader.sys_errno != 0 ? attempt->reader.sys_errno : ECONNRESET;
            (void)hkt__fail_sys(status, "%s accepted the connection but closed it", attempt->name);
            return HKT_AGAIN;
        }
        status = wait_on(attempt->fd, POLLIN, until_ns, root);
        if (status == HKT_AGAIN)
            (void)hkt__fail(HKT_ERR_TIMEOUT, "%s accepted the connection but did not answer", attempt->name);
        if (status != HKT_OK)
            return status;
    }
}

/* Say who we are. The link's own address goes in front of those where this rank listens. */
static enum hkt_status attempt_hello(const struct hkt__boot *boot, struct attempt *attempt,
                                     const struct hkt__boot_goal *goal)
{
    struct sockaddr_storage own = {0};
    socklen_t own_bytes = sizeof own;
    struct hkt__wire_writer message;
    enum hkt_status status;

    attempt->hello = (struct hkt__wire_hello){.purpose = goal->purpose, .version = HKT__WIRE_VERSION,
                                              .rank = boot->rank, .nranks = boot->nranks, .pid = getpid()};
    status = hkt__boot_random(attempt->hello.nonce, sizeof attempt->hello.nonce);
    if (status < 0)
        return status;
    if (getsockname(attempt->fd, (struct sockaddr *)&own, &own_bytes) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot learn the own address of a connection");
    if (goal->own.port != 0) {
        status = hkt__net_own_addresses(goal->interface, &own, &attempt->hello.addresses);
        if (status < 0)
            return status;
        attempt->hello.addresses.port = goal->own.port;
    }
    hkt__wire_put_hello(&message, &attempt->hello, boot->token, attempt->challenge.nonce);
    if (hkt__wire_send(attempt->fd, &message) != 0) {
        (void)hkt__fail_sys(HKT_ERR_PEER_LOST, "%s accepted the connection but closed it", attempt->name);
        return HKT_AGAIN;
    }
    return HKT_OK;
}

static enum hkt_status attempt_answer(const struct hkt__boot *boot, const struct attempt *attempt,
                                      const struct hkt__boot_goal *goal, const struct hkt__wire_message *message)
{
    struct hkt__wire_fail fail;
    bool is_proven = false;

    if (hkt__wire_get_welcome(message, &attempt->challenge, &attempt->hello, boot->token, &is_proven)) {
        if (is_proven)
            return HKT_OK;
        return hkt__fail_peer(HKT_ERR_AUTH, goal->rank, "what answers at %s does not hold this job's token: check that "
                              "the address is that of this job's root", attempt->name);
    }
    if (hkt__wire_get_fail(message, &fail) && fail.status == HKT_ERR_AUTH)
        return hkt__fail_peer(HKT_ERR_AUTH, goal->rank, "rank %d at %s refused this process: %.800s", goal->rank,
                              attempt->name, fail.text);
    if (message->type == HKT__WIRE_FAIL)
        return hkt__fail_peer(fail.status, goal->rank, "rank %d at %s: %.900s", goal->rank, attempt->name, fail.text);
    return hkt__fail_peer(HKT_ERR_CORRUPT, goal->rank, "rank %d at %s sent a message of type %d where its proof of the "
                          "token was due", goal->rank, attempt->name, (int)message->type);
}

static enum hkt_status attempt_run(const struct hkt__boot *boot, struct attempt *attempt,
                                   const struct hkt__net_target *target, const struct hkt__boot_goal *goal,
                                   struct hkt__boot_root_link *root)
{
    struct hkt__wire_message message;
    enum hkt_status status = attempt_connect(attempt, target, goal, root);

    if (status != HKT_OK)
        return status;
    status = attempt_read(attempt, attempt->answer_until_ns, root, &message);
    if (status != HKT_OK)
        return status;
    if (!hkt__wire_get_challenge(&message, &attempt->challenge)) {
        (void)hkt__fail(HKT_ERR_CORRUPT, "what listens at %s is not a rank that accepts others", attempt->name);
        return HKT_AGAIN;
    }
    if (attempt->challenge.version != HKT__WIRE_VERSION)
        return hkt__fail_peer(HKT_ERR_INVALID, goal->rank, "rank %d at %s speaks version %d of the protocol, this rank "
                              "version %d: use the same hocket on all hosts", goal->rank, attempt->name,
                              attempt->challenge.version, HKT__WIRE_VERSION);
    if (attempt->challenge.rank != goal->rank) {
        (void)hkt__fail(HKT_ERR_INVALID, "at %s answers rank %d, not rank %d", attempt->name, attempt->challenge.rank,
                        goal->rank);
        return HKT_AGAIN;
    }
    status = attempt_hello(boot, attempt, goal);
    if (status == HKT_OK)
        status = attempt_read(attempt, goal->deadline_ns, root, &message);
    return status == HKT_OK ? attempt_answer(boot, attempt, goal, &message) : status;
}

/* ---- rounds ---- */

/* Try every address once. AUTH is final only when no other address leads to the right place, and a foreign program only
 * when it is all there is: then the port is taken, and waiting would not help. */
static enum hkt_status round_run(const struct hkt__boot *boot, struct hkt__boot_goal *goal, int round,
                                 struct hkt__boot_root_link *root, struct attempt *attempt)
{
    char refusal[HKT__ERROR_TEXT_MAX] = "";
    enum hkt_status status = HKT_AGAIN;
    int nforeign = 0;

    if (goal->hosts != NULL) {
        status = hkt__net_resolve(goal->hosts, goal->port, &goal->targets);
        if (status < 0)
            return HKT_AGAIN; /* names may appear later, as hosts boot */
    }
    for (int i = 0; i < goal->targets.count; i++) {
        const int64_t patience_ms = (int64_t)ANSWER_PATIENCE_MS << (round < 8 ? round : 8);

        memset(attempt, 0, sizeof *attempt);
        attempt->answer_until_ns = goal->deadline_ns;
        if (goal->targets.count > 1)
            attempt->answer_until_ns = earlier(goal->deadline_ns, hkt__now_ns() + patience_ms * NS_PER_MS);
        hkt__net_name(&goal->targets.at[i].address, attempt->name);
        status = attempt_run(boot, attempt, &goal->targets.at[i], goal, root);
        if (status == HKT_OK)
            return status;
        if (attempt->fd >= 0)
            hkt__net_close_gently(attempt->fd);
        nforeign += attempt->is_foreign;
        if (status == HKT_ERR_AUTH)
            snprintf(refusal, sizeof refusal, "%s", hkt__error_here()->text);
        else if (status != HKT_AGAIN)
            return status;
    }
    if (refusal[0] != '\0')
        return hkt__fail_peer(HKT_ERR_AUTH, goal->rank, "%s", refusal);
    if (nforeign == goal->targets.count)
        return hkt__fail_peer(HKT_ERR_INVALID, goal->rank, "what listens at %s, where rank %d should be, is not a rank "
                              "of hocket: another program has this port; name a free one with HOCKET_ROOT=host:port",
                              attempt->name, goal->rank);
    return HKT_AGAIN;
}

static enum hkt_status join_timed_out(const struct hkt__boot *boot, const struct hkt__boot_goal *goal, const char *last)
{
    if (goal->purpose == HKT__WIRE_LINK)
        return hkt__fail_peer(HKT_ERR_TIMEOUT, goal->rank, "rank %d could not link to rank %d within %g s (%s): can "
                              "their hosts reach each other by TCP? HOCKET_INTERFACE chooses the interface", boot->rank,
                              goal->rank, (double)goal->timeout_ms / 1e3, last);
    return hkt__fail_peer(HKT_ERR_TIMEOUT, goal->rank, "rank %d did not reach the root (rank 0 at %s port %u) within "
                          "%g s (%s): is rank 0 running, and is this its address? HOCKET_ROOT=host:port sets it",
                          boot->rank, goal->hosts, goal->port, (double)goal->timeout_ms / 1e3, last);
}

enum hkt_status hkt__boot_join(const struct hkt__boot *boot, struct hkt__boot_goal *goal,
                               struct hkt__boot_root_link *root, int *out_fd, char out_name[HKT__NET_NAME_MAX])
{
    struct attempt attempt;
    char last[512] = "";
    int64_t backoff_ms = BACKOFF_MIN_MS;

    for (int round = 0;; round++) {
        enum hkt_status status = round_run(boot, goal, round, root, &attempt);

        if (status == HKT_OK) {
            *out_fd = attempt.fd;
            memcpy(out_name, attempt.name, sizeof attempt.name);
            return HKT_OK;
        }
        if (status != HKT_AGAIN)
            return status;
        /* An attempt that the deadline cut short tells less than one before. */
        if (last[0] == '\0' || hkt__error_here()->status != HKT_ERR_TIMEOUT)
            snprintf(last, sizeof last, "%.511s", hkt__error_here()->text);
        if (hkt__now_ns() >= goal->deadline_ns)
            return join_timed_out(boot, goal, last);
        status = wait_on(-1, 0, earlier(goal->deadline_ns, hkt__now_ns() + backoff_ms * NS_PER_MS), root);
        if (status < 0)
            return status;
        backoff_ms = earlier(2 * backoff_ms, BACKOFF_MAX_MS);
    }
}
