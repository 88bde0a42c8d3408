/* Processes, threads and the hub of the conformance rig; see rig.h. */
#include "rig.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "core/clock.h"

#define MESSAGE_MAX 4096
#define REACH_MS 20000

/* ---- talking to the hub ---- */

static bool read_all(int fd, void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = read(fd, (char *)data + done, bytes - done);

        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t put = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);

        if (put < 0 && errno != EINTR)
            return false;
        done += put > 0 ? (size_t)put : 0;
    }
    return true;
}

void rig_exchange(struct rig_rank *rank, const void *in, size_t bytes, void *out)
{
    const uint32_t head = (uint32_t)bytes;

    RIG_CHECK(bytes <= MESSAGE_MAX);
    RIG_CHECK(write_all(rank->hub, &head, sizeof head) && write_all(rank->hub, in, bytes));
    RIG_CHECK(read_all(rank->hub, out, bytes * (size_t)rank->nranks));
}

void rig_barrier(struct rig_rank *rank)
{
    char all[RIG_RANKS_MAX];

    rig_exchange(rank, "b", 1, all);
}

/* ---- checks, time, chance ---- */

void rig_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "# %s:%d: %s\n", file, line, text);
    _exit(1);
}

int64_t rig_now_ms(void)
{
    return hkt__now_ns() / 1000000;
}

bool rig_is_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

uint64_t rig_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

void rig_idle(struct rig_dom *dom, int *spins)
{
    if (++*spins < 50)
        return;
    if (*spins < 100)
        sched_yield();
    else
        dom->dom->ops->park(dom->dom, 2000000);
}

/* ---- a rank ---- */

static void rank_open(struct rig_rank *rank, const struct rig_opts *opts)
{
    static const unsigned char token[16] = "rig-rig-rig-rig";
    static const _Atomic int no_abort = 0;
    const struct hkt__settings *settings = NULL;
    unsigned char blob[HKT__TP_BLOB_MAX] = { 0 }, blobs[RIG_RANKS_MAX * HKT__TP_BLOB_MAX], is_ok[RIG_RANKS_MAX];
    size_t bytes = 0, all_bytes[RIG_RANKS_MAX];

    RIG_CHECK(hkt__settings_get(&settings) == HKT_OK);
    rank->settings = *settings;
    if (opts->slots > 0)
        rank->settings.shm_slots = opts->slots;
    if (opts->slot_bytes > 0)
        rank->settings.shm_slot_bytes = opts->slot_bytes;
    rank->settings.tcp_frame_bytes = 16384;
    rank->settings.faults = opts->faults == NULL ? "" : opts->is_rank0_faulty && rank->rank != 0 ? "seed=1" : opts->faults;
    rank->ops = hkt__transport_find(opts->transport);
    RIG_CHECK(rank->ops != NULL);
    if (opts->faults != NULL)
        rank->ops = hkt__faulty_wrap(rank->ops, &rank->settings);
    RIG_CHECK(rank->ops != NULL);
    const struct hkt__tp_params params = { .job_rank = rank->rank, .job_nranks = rank->nranks, .token = token,
                                           .settings = &rank->settings, .abort_word = &no_abort };

    RIG_EQUAL(rank->ops->open(&params, &rank->tp), HKT_OK);
    RIG_CHECK(rank->tp->ops->window != NULL && rank->tp->ops->park != NULL && rank->tp->ops->wake != NULL);
    rank->tp->ops->query(rank->tp, &rank->caps);
    RIG_EQUAL(rank->tp->ops->address(rank->tp, blob, &bytes), HKT_OK);
    rig_exchange(rank, blob, sizeof blob, blobs);
    rig_exchange(rank, &bytes, sizeof bytes, all_bytes);
    RIG_EQUAL(rank->tp->ops->reach(rank->tp, blobs, all_bytes, hkt__now_ns() + REACH_MS * INT64_C(1000000), is_ok), HKT_OK);
    for (int i = 0; i < rank->nranks; i++)
        RIG_CHECK(is_ok[i]);
    rig_barrier(rank);
}

struct rank_arg {
    const struct rig_opts *opts;
    rig_body *body;
    const void *arg;
    int rank, hub;
};

static void *rank_main(void *data)
{
    const struct rank_arg *arg = data;
    struct rig_rank rank = { .rank = arg->rank, .nranks = arg->opts->nranks, .hub = arg->hub,
                             .transport = arg->opts->transport, .is_threads = arg->opts->is_threads };

    rank_open(&rank, arg->opts);
    arg->body(&rank, arg->arg);
    rank.tp->ops->close(rank.tp);
    close(rank.hub);
    return NULL;
}

/* ---- domains ---- */

void rig_dom_join(struct rig_rank *rank, int lanes, size_t window_bytes, struct rig_dom *out_dom)
{
    unsigned char blob[HKT__TP_BLOB_MAX] = { 0 }, blobs[RIG_RANKS_MAX * HKT__TP_BLOB_MAX], use[RIG_RANKS_MAX];
    size_t bytes = 0, all_bytes[RIG_RANKS_MAX];

    memset(out_dom, 0, sizeof *out_dom);
    out_dom->rank = rank;
    out_dom->lanes = lanes;
    for (int i = 0; i < rank->nranks; i++)
        out_dom->job_ranks[i] = i;
    memset(use, 1, sizeof use);
    const struct hkt__tp_members members = { .comm_id = ++rank->dom_count, .nranks = rank->nranks, .rank = rank->rank,
                                             .job_ranks = out_dom->job_ranks, .lanes = lanes,
                                             .window_bytes = window_bytes };

    RIG_EQUAL(rank->tp->ops->dom_open(rank->tp, &members, &out_dom->dom, blob, &bytes), HKT_OK);
    RIG_CHECK(bytes <= HKT__TP_BLOB_MAX);
    rig_exchange(rank, blob, sizeof blob, blobs);
    rig_exchange(rank, &bytes, sizeof bytes, all_bytes);
    RIG_EQUAL(out_dom->dom->ops->dom_connect(out_dom->dom, blobs, all_bytes, use), HKT_OK);
}

void rig_chans_open(struct rig_dom *dom, int first, int end)
{
    const int own = dom->rank->rank, npeers = end - first - (own >= first && own < end);

    for (int spins = 0, nopen = 0; nopen < npeers * dom->lanes; rig_idle(dom, &spins)) {
        nopen = 0;
        for (int peer = first; peer < end; peer++)
            for (int lane = 0; peer != own && lane < dom->lanes; lane++) {
                const enum hkt_status rc = dom->dom->ops->chan_open(dom->dom, peer, lane, &dom->tx[peer][lane],
                                                                    &dom->rx[peer][lane]);

                RIG_CHECK(rc == HKT_OK || rc == HKT_IN_PROGRESS);
                nopen += rc == HKT_OK;
            }
    }
}

void rig_dom_open(struct rig_rank *rank, int lanes, size_t window_bytes, struct rig_dom *out_dom)
{
    rig_dom_join(rank, lanes, window_bytes, out_dom);
    rig_chans_open(out_dom, 0, rank->nranks);
}

void rig_dom_close(struct rig_dom *dom)
{
    dom->dom->ops->dom_close(dom->dom);
}

/* ---- the runner ---- */

struct runner {
    const struct rig_opts *opts;
    struct rank_arg args[RIG_RANKS_MAX];
    int hubs[RIG_RANKS_MAX];
    pid_t pids[RIG_RANKS_MAX];
    pthread_t threads[RIG_RANKS_MAX];
    bool is_gone[RIG_RANKS_MAX], has_arrived[RIG_RANKS_MAX];
    uint32_t bytes;                          /* of each part of the current all-gather */
    char all[RIG_RANKS_MAX * MESSAGE_MAX];
};

static void start_ranks(struct runner *runner)
{
    for (int i = 0; i < runner->opts->nranks; i++) {
        int pair[2];

        RIG_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        runner->hubs[i] = pair[0];
        runner->args[i].rank = i;
        runner->args[i].hub = pair[1];
        if (runner->opts->is_threads) {
            RIG_CHECK(pthread_create(&runner->threads[i], NULL, rank_main, &runner->args[i]) == 0);
            continue;
        }
        runner->pids[i] = fork();
        RIG_CHECK(runner->pids[i] >= 0);
        if (runner->pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int k = 0; k <= i; k++)
                close(runner->hubs[k]);
            rank_main(&runner->args[i]);
            exit(0);
        }
        close(pair[1]);
    }
}

/* A rank has hung up. Unless it ended as planned, the run is over: the others would wait for it in vain. */
static void rank_ended(struct runner *runner, int rank)
{
    int status = 0;

    runner->is_gone[rank] = true;
    if (runner->opts->is_threads) {
        pthread_join(runner->threads[rank], NULL);
        return;
    }
    RIG_CHECK(waitpid(runner->pids[rank], &status, 0) == runner->pids[rank]);
    if (rank == runner->opts->victim ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status != 0) {
        fprintf(stderr, "# rank %d ended with status 0x%x\n", rank, status);
        _exit(1);
    }
}

static void rank_speaks(struct runner *runner, int rank)
{
    char part[MESSAGE_MAX];
    uint32_t head = 0;

    if (!read_all(runner->hubs[rank], &head, sizeof head) || head > MESSAGE_MAX ||
        !read_all(runner->hubs[rank], part, head)) {
        rank_ended(runner, rank);
        return;
    }
    memcpy(runner->all + (size_t)rank * head, part, head);
    runner->bytes = head;
    runner->has_arrived[rank] = true;
}

/* One all-gather among the ranks that are left; the part of one that is gone is zero. Returns how many took part. */
static int serve_once(struct runner *runner)
{
    const int nranks = runner->opts->nranks;
    int narrived = 0;

    memset(runner->all, 0, sizeof runner->all);
    memset(runner->has_arrived, 0, sizeof runner->has_arrived);
    for (;;) {
        struct pollfd polls[RIG_RANKS_MAX];
        int nawaited = 0;

        for (int i = 0; i < nranks; i++) {
            const bool is_awaited = !runner->is_gone[i] && !runner->has_arrived[i];

            polls[i] = (struct pollfd){ .fd = is_awaited ? runner->hubs[i] : -1, .events = POLLIN };
            nawaited += is_awaited;
        }
        if (nawaited == 0)
            break;
        (void)poll(polls, (nfds_t)nranks, -1); /* the run's deadline is the caller's */
        for (int i = 0; i < nranks; i++)
            if (polls[i].revents != 0)
                rank_speaks(runner, i);
    }
    for (int i = 0; i < nranks; i++)
        if (runner->has_arrived[i]) {
            narrived++;
            (void)write_all(runner->hubs[i], runner->all, (size_t)runner->bytes * (size_t)nranks);
        }
    return narrived;
}

static void runner_main(const struct rig_opts *opts, rig_body *body, const void *arg)
{
    static struct runner runner;

    runner.opts = opts;
    for (int i = 0; i < opts->nranks; i++)
        runner.args[i] = (struct rank_arg){ .opts = opts, .body = body, .arg = arg };
    start_ranks(&runner);
    while (serve_once(&runner) > 0)
        continue;
    exit(0);
}

int rig_thinning(void)
{
    return getenv("HOCKET_TEST_SMALL") != NULL ? 5 : 1;
}

int rig_run(const struct rig_opts *opts, rig_body *body, const void *arg)
{
    fflush(NULL);
    const pid_t runner = fork();

    if (runner == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        runner_main(opts, body, arg);
    }
    if (runner < 0)
        return -1;
    setpgid(runner, runner); /* whichever of the two comes first */
    const int64_t deadline_ms = rig_now_ms() + opts->deadline_ms;
    siginfo_t ended = { 0 };
    int status = 0;

    while (ended.si_pid == 0 && rig_now_ms() < deadline_ms)
        if (waitid(P_PID, (id_t)runner, &ended, WEXITED | WNOWAIT | WNOHANG) == 0 && ended.si_pid == 0)
            (void)poll(NULL, 0, 2);
    kill(-runner, SIGKILL); /* ranks that outlive their runner, too; it is not reaped yet, so the id is still its own */
    waitpid(runner, &status, 0);
    if (ended.si_pid == 0)
        fprintf(stderr, "# not finished after %lld ms\n", (long long)opts->deadline_ms);
    else if (status != 0)
        fprintf(stderr, "# runner ended with status 0x%x\n", status);
    return ended.si_pid != 0 && status == 0 ? 0 : -1;
}
