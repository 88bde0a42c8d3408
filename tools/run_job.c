/* The supervisor of `hocket run`: one thread around one epoll. It learns of the end of a rank from its pidfd, and takes
 * the events in the order in which they happened, so that "failed first" is true even when several ranks die within
 * the same microseconds. Orphans that became its children are reaped on SIGCHLD.
 *
 * How a job ends: the first failure of a rank, or the timeout, starts a countdown: after grace_ms, in which the others
 * may notice and report for themselves, SIGTERM; RUN_KILL_AFTER_MS later SIGKILL to every process below. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"
#include "tools.h"

#define NEVER INT64_MAX

struct rank {
    pid_t pid;
    int pidfd; /* -1: ended, or this kernel has none */
    bool live;
    struct run_tag tags[2];
};

struct job {
    const struct run_opts *opts;
    struct rank *ranks;
    int live;
    int epoll_fd, signal_fd;
    int root_fd; /* keeps the port of HOCKET_ROOT reserved until the job has ended */
    bool has_pidfds, reap_pending, launcher_died;
    int interrupts;                       /* INT, TERM, HUP, QUIT passed on so far */
    int last_signal;                      /* the last of them */
    int exit_code;                        /* of the first failure; 0: none */
    int64_t timeout_at, term_at, kill_at; /* run_now_ms times */
};

/* What an epoll event is about: a kind, and for ranks which. */
enum source { SOURCE_SIGNAL, SOURCE_LAUNCHER, SOURCE_RANK, SOURCE_OUTPUT };

static bool watch(struct job *job, int fd, enum source source, int index)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = (uint64_t)source << 32 | (unsigned)index };

    if (epoll_ctl(job->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0)
        return true;
    hkt_tool_say("run", "epoll: %s", strerror(errno));
    return false;
}

static void signal_ranks(struct job *job, int signal_number)
{
    for (int i = 0; i < job->opts->nranks; i++)
        if (job->ranks[i].live)
            kill(-job->ranks[i].pid, signal_number);
}

/* "0, 2, 5" of the ranks still running, cut with "..." when there are many. */
static const char *live_ranks(const struct job *job)
{
    static char text[200];
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < job->opts->nranks; i++) {
        if (!job->ranks[i].live)
            continue;
        if (used > sizeof text - 24) {
            snprintf(text + used, sizeof text - used, ", ...");
            break;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", used > 0 ? ", " : "", i);
    }
    return text;
}

static void describe_end(int status, char *out, size_t bytes)
{
    if (WIFEXITED(status)) {
        snprintf(out, bytes, "exit code %d", WEXITSTATUS(status));
        return;
    }
    const char *name = sigabbrev_np(WTERMSIG(status));

    snprintf(out, bytes, "killed by SIG%s%s", name != NULL ? name : "?", WCOREDUMP(status) ? " (core dumped)" : "");
}

static void rank_ended(struct job *job, int index, int status)
{
    struct rank *rank = &job->ranks[index];
    char how[64];

    rank->live = false;
    job->live--;
    if (rank->pidfd >= 0)
        close(rank->pidfd);
    rank->pidfd = -1;
    if (status == 0 || job->exit_code != 0)
        return;
    describe_end(status, how, sizeof how);
    job->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (job->interrupts > 0 && WIFSIGNALED(status) && WTERMSIG(status) == job->last_signal)
        hkt_tool_say("run", "ended by the SIG%s that was passed on", sigabbrev_np(job->last_signal));
    else
        hkt_tool_say("run", "rank %d (pid %ld) failed first: %s", index, (long)rank->pid, how);
    job->term_at = run_now_ms() + job->opts->grace_ms;
}

static int rank_of_pid(const struct job *job, pid_t pid)
{
    for (int i = 0; i < job->opts->nranks; i++)
        if (job->ranks[i].live && job->ranks[i].pid == pid)
            return i;
    return -1;
}

/* Reap what has ended. A rank with a pidfd is left to the event of that pidfd, which keeps the order; reaping then goes
 * on after it. */
static void reap(struct job *job)
{
    siginfo_t info;

    job->reap_pending = false;
    for (;;) {
        int status;

        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return;
        const int index = rank_of_pid(job, info.si_pid);

        if (index >= 0 && job->ranks[index].pidfd >= 0) {
            job->reap_pending = true;
            return;
        }
        if (waitpid(info.si_pid, &status, 0) == info.si_pid && index >= 0)
            rank_ended(job, index, status);
    }
}

/* The first is passed on and left to the ranks; who sends a second means it, who sends a third will not wait. */
static void pass_on(struct job *job, int signal_number)
{
    const bool ends = signal_number != SIGUSR1 && signal_number != SIGUSR2;
    const int64_t now_ms = run_now_ms();

    signal_ranks(job, signal_number);
    if (!ends)
        return;
    job->interrupts++;
    job->last_signal = signal_number;
    if (job->interrupts == 2)
        hkt_tool_say("run", "second signal: SIGKILL in %d s", RUN_KILL_AFTER_MS / 1000);
    if (job->interrupts >= 2) {
        const int64_t kill_at = job->interrupts == 2 ? now_ms + RUN_KILL_AFTER_MS : now_ms;

        job->kill_at = kill_at < job->kill_at ? kill_at : job->kill_at;
    }
}

static void read_signals(struct job *job)
{
    struct signalfd_siginfo info;

    while (read(job->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            job->reap_pending = true;
        else
            pass_on(job, (int)info.ssi_signo);
    }
}

static void handle(struct job *job, const struct epoll_event *event)
{
    const enum source source = (enum source)(event->data.u64 >> 32);
    const int index = (int)(uint32_t)event->data.u64;
    int status;

    switch (source) {
    case SOURCE_SIGNAL:
        read_signals(job);
        return;
    case SOURCE_LAUNCHER:
        job->launcher_died = true;
        return;
    case SOURCE_RANK:
        if (job->ranks[index].live && waitpid(job->ranks[index].pid, &status, WNOHANG) == job->ranks[index].pid)
            rank_ended(job, index, status);
        return;
    case SOURCE_OUTPUT:
        run_tag_pump(&job->ranks[index / 2].tags[index % 2]);
        return;
    }
}

/* Act on the deadlines that have passed; returns the time until the next one in ms for epoll, -1 for none. */
static int run_deadlines(struct job *job)
{
    const int64_t now_ms = run_now_ms();

    if (now_ms >= job->timeout_at) {
        hkt_tool_say("run", "timed out after %g s; still running: %s", (double)job->opts->timeout_ms / 1000,
                     live_ranks(job));
        job->timeout_at = NEVER;
        job->exit_code = job->exit_code != 0 ? job->exit_code : RUN_EXIT_TIMEOUT;
        job->term_at = now_ms;
    }
    if (now_ms >= job->term_at) {
        hkt_tool_say("run", "ending the others (SIGTERM, after %d s SIGKILL): %s", RUN_KILL_AFTER_MS / 1000,
                     live_ranks(job));
        job->term_at = NEVER;
        signal_ranks(job, SIGTERM);
        job->kill_at = now_ms + RUN_KILL_AFTER_MS < job->kill_at ? now_ms + RUN_KILL_AFTER_MS : job->kill_at;
    }
    if (now_ms >= job->kill_at) {
        run_tree_kill(SIGKILL);
        job->kill_at = now_ms + 50; /* again, until all are gone: some may have forked meanwhile */
    }
    int64_t next = job->timeout_at < job->term_at ? job->timeout_at : job->term_at;

    next = job->kill_at < next ? job->kill_at : next;
    if (next == NEVER)
        return -1;
    return next - now_ms > 1000000 ? 1000000 : (int)(next > now_ms ? next - now_ms : 0);
}

static void run_loop(struct job *job)
{
    struct epoll_event events[64];

    while (job->live > 0 && !job->launcher_died) {
        int wait_ms = run_deadlines(job);

        if (job->reap_pending)
            wait_ms = 0;
        const int count = epoll_wait(job->epoll_fd, events, 64, wait_ms);

        for (int i = 0; i < count; i++)
            handle(job, &events[i]);
        if (job->reap_pending)
            reap(job);
    }
}

static bool start_rank(struct job *job, struct run_spawn *spawn, int index)
{
    struct rank *rank = &job->ranks[index];
    int ends[2] = { -1, -1 };
    bool ok = true;

    for (int i = 0; i < 2 && job->opts->tag_output && ok; i++) {
        ends[i] = run_tag_open(&rank->tags[i], index, i == 0 ? STDOUT_FILENO : STDERR_FILENO);
        ok = ends[i] >= 0;
        if (!ok)
            hkt_tool_say("run", "rank %d: no pipe: %s; `ulimit -n` shows the limit", index, strerror(errno));
        ok = ok && watch(job, rank->tags[i].fd, SOURCE_OUTPUT, 2 * index + i);
    }
    if (ok) {
        spawn->rank = index;
        spawn->out_fd = ends[0];
        spawn->err_fd = ends[1];
        rank->pid = run_spawn(spawn, &job->exit_code);
        rank->live = ok = rank->pid > 0;
    }
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    if (!ok) {
        job->exit_code = job->exit_code != 0 ? job->exit_code : 1;
        return false;
    }
    job->live++;
    job->exit_code = 0;
    rank->pidfd = job->has_pidfds ? (int)syscall(SYS_pidfd_open, rank->pid, 0) : -1;
    if (rank->pidfd < 0)
        job->has_pidfds = false; /* before Linux 5.3: SIGCHLD alone, the order within one wake-up is lost */
    return rank->pidfd < 0 || watch(job, rank->pidfd, SOURCE_RANK, index);
}

static bool start_ranks(struct job *job, const sigset_t *inherited)
{
    char token[33];
    int master_fd = -1;
    struct run_spawn spawn = { .opts = job->opts, .inherited = inherited, .token = token };

    spawn.root_port = run_pick_port(&job->root_fd);
    spawn.master_port = spawn.root_port > 0 ? run_pick_port(&master_fd) : -1;
    bool ok = spawn.master_port > 0 && run_make_token(token);

    /* The two differ since both may be in use at once. MASTER_PORT is given up here: programs that do not set
     * SO_REUSEADDR must be able to bind it. */
    if (master_fd >= 0)
        close(master_fd);
    for (int i = 0; i < job->opts->nranks && ok; i++)
        ok = start_rank(job, &spawn, i);
    if (!ok && job->exit_code == 0)
        job->exit_code = 1;
    return ok;
}

static bool open_job(struct job *job, const struct run_opts *opts, int launcher_pipe)
{
    sigset_t signals;

    run_signals(&signals);
    *job = (struct job){ .opts = opts,
                         .has_pidfds = true,
                         .root_fd = -1,
                         .timeout_at = NEVER,
                         .term_at = NEVER,
                         .kill_at = NEVER };
    job->ranks = calloc((size_t)opts->nranks, sizeof *job->ranks);
    job->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    job->signal_fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    if (job->ranks == NULL || job->epoll_fd < 0 || job->signal_fd < 0) {
        hkt_tool_say("run", "cannot supervise: %s", strerror(errno));
        return false;
    }
    for (int i = 0; i < opts->nranks; i++)
        job->ranks[i] = (struct rank){ .pidfd = -1, .tags = { { .fd = -1 }, { .fd = -1 } } };
    return watch(job, job->signal_fd, SOURCE_SIGNAL, 0) && watch(job, launcher_pipe, SOURCE_LAUNCHER, 0);
}

int run_supervise(const struct run_opts *opts, int launcher_pipe, const sigset_t *inherited)
{
    struct job job;

    setpgid(0, 0);            /* the terminal's signals reach the launcher alone, which passes them on once */
    signal(SIGTTOU, SIG_IGN); /* writing to the terminal from here is all right */
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!open_job(&job, opts, launcher_pipe))
        return TOOL_FAILED;
    const bool started = start_ranks(&job, inherited);

    if (started) {
        if (opts->timeout_ms > 0)
            job.timeout_at = run_now_ms() + opts->timeout_ms;
        run_loop(&job);
    }
    /* All ranks have ended, or must; nothing of the job may outlive it. */
    run_tree_end(started && !job.launcher_died ? RUN_KILL_AFTER_MS : 0);
    for (int i = 0; i < opts->nranks; i++)
        for (int j = 0; j < 2; j++)
            run_tag_close(&job.ranks[i].tags[j]);
    if (job.root_fd >= 0)
        close(job.root_fd);
    free(job.ranks);
    return job.exit_code;
}
