/* See ranks.h. */
#include "ranks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { DEADLINE_S = 60, GRACE_MS = 3000, QUICK_MS = 5, TRIES_MAX = 8 };

bool ranks_small(void)
{
    return getenv("HOCKET_TEST_SMALL") != NULL;
}

int64_t ranks_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void ranks_sleep_ms(int ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

int ranks_count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = -1; /* the directory's own */

    if (dir == NULL)
        return -1;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

int ranks_keep_port(int *out_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *out_port = ntohs(address.sin_port);
    return fd;
}

/* ---- inside the children ---- */

/** Keep the first failure's text; the process then ends. */
static void fail_rank(struct ranks_shared *shared, int rank, const char *text)
{
    if (atomic_exchange(&shared->failed, 1) == 0)
        snprintf(shared->text, sizeof shared->text, "rank %d: %s", rank, text);
    fprintf(stderr, "rank %d: %s\n", rank, text);
    _exit(1);
}

void ranks_require(struct ranks_rank *rank, bool ok, const char *format, ...)
{
    char text[RANKS_TEXT_MAX - 32];
    va_list args;

    if (ok)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail_rank(rank->shared, rank->rank, text);
}

void ranks_require_status(struct ranks_rank *rank, enum hkt_status got, enum hkt_status want, const char *what)
{
    ranks_require(rank, got == want, "%s: %s, not %s: %s", what, hkt_status_name(got), hkt_status_name(want),
                  got < 0 ? hkt_last_error() : "");
}

void ranks_require_ok(struct ranks_rank *rank, enum hkt_status got, const char *what)
{
    ranks_require_status(rank, got, HKT_OK, what);
}

void ranks_require_text(struct ranks_rank *rank, const char *text, const char *part)
{
    ranks_require(rank, strstr(text, part) != NULL, "\"%s\" is not in: %s", part, text);
}

void ranks_note(struct ranks_rank *rank, enum hkt_status status)
{
    rank->shared->rank[rank->rank].status = status;
    snprintf(rank->shared->rank[rank->rank].text, RANKS_TEXT_MAX, "%s", status < 0 ? hkt_last_error() : "");
}

void ranks_meet(struct ranks_rank *rank, int place)
{
    const int ticket = atomic_fetch_add(&rank->shared->met[place], 1);

    while (atomic_load(&rank->shared->met[place]) < (ticket / rank->nranks + 1) * rank->nranks)
        ranks_sleep_ms(1); /* the job's deadline bounds it */
}

static void apply_settings(const struct ranks_job *job)
{
    for (int i = 0; job->settings != NULL && job->settings[i] != NULL; i++) {
        char name[64];
        const char *value = strchr(job->settings[i], '=');

        snprintf(name, sizeof name, "%.*s", (int)(value - job->settings[i]), job->settings[i]);
        setenv(name, value + 1, 1);
    }
}

static void end_comm(struct ranks_rank *rank)
{
    if (rank->comm == NULL)
        return;
    const enum hkt_status before = hkt_comm_status(rank->comm), rc = hkt_comm_destroy(rank->comm);

    /* Peers may leave, and so fail it, in the meantime only if it had failed before. */
    ranks_require(rank, rc == HKT_OK || before != HKT_OK, "hkt_comm_destroy: %s: %s", hkt_status_name(rc),
                  hkt_last_error());
}

struct thread {
    pthread_t thread;
    struct ranks_rank rank;
    ranks_fn *fn;
};

static void *thread_main(void *arg)
{
    struct thread *thread = arg;

    thread->fn(&thread->rank);
    end_comm(&thread->rank);
    return NULL;
}

static void run_threads(const struct ranks_job *job, struct ranks_shared *shared)
{
    static struct thread threads[RANKS_MAX];
    struct hkt_comm *comms[RANKS_MAX] = {NULL};
    struct ranks_rank all = {.rank = 0, .nranks = job->nranks, .shared = shared};

    if (!job->no_comm)
        ranks_require_ok(&all, hkt_comm_init_all(comms, job->nranks, job->config), "hkt_comm_init_all");
    for (int r = 0; r < job->nranks; r++) {
        threads[r] = (struct thread){.rank = all, .fn = job->fn};
        threads[r].rank.rank = r;
        threads[r].rank.comm = comms[r];
        threads[r].rank.arg = job->arg;
        ranks_require(&all, pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]) == 0, "pthread_create");
    }
    for (int r = 0; r < job->nranks; r++)
        pthread_join(threads[r].thread, NULL);
}

enum hkt_status ranks_join(struct ranks_rank *rank, int nranks, const struct hkt_config *config)
{
    struct ranks_shared *shared = rank->shared;

    if (rank->rank == 0) {
        ranks_require_ok(rank, hkt_get_unique_id(&shared->id), "hkt_get_unique_id");
        atomic_store_explicit(&shared->id_ready, 1, memory_order_release);
    }
    while (!atomic_load_explicit(&shared->id_ready, memory_order_acquire))
        ranks_sleep_ms(1);
    return hkt_comm_init_rank(&rank->comm, nranks, &shared->id, rank->rank, config);
}

static void run_process(const struct ranks_job *job, struct ranks_shared *shared, int r)
{
    struct ranks_rank rank = {.rank = r, .nranks = job->nranks, .shared = shared, .arg = job->arg};

    if (!job->no_comm && job->kind == RANKS_ENV)
        ranks_require_ok(&rank, hkt_comm_init_env(&rank.comm, job->config), "hkt_comm_init_env");
    else if (!job->no_comm)
        ranks_require_ok(&rank, ranks_join(&rank, job->nranks, job->config), "hkt_comm_init_rank");
    job->fn(&rank);
    end_comm(&rank);
}

static void set_env(const struct ranks_job *job, int rank, int port)
{
    char text[64];

    snprintf(text, sizeof text, "%d", rank);
    setenv("HOCKET_RANK", text, 1);
    snprintf(text, sizeof text, "%d", job->nranks);
    setenv("HOCKET_SIZE", text, 1);
    snprintf(text, sizeof text, "127.0.0.1:%d", port);
    setenv("HOCKET_ROOT", text, 1);
    setenv("HOCKET_TOKEN", "ranks", 1);
}

static void child_main(const struct ranks_job *job, struct ranks_shared *shared, int r, int port)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        signal(faults[i], SIG_DFL); /* cmocka's handlers are for its own process */
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives the test */
    apply_settings(job);
    if (job->kind == RANKS_ENV)
        set_env(job, r, port);
    const int before = ranks_count_fds();

    if (job->kind == RANKS_THREADS)
        run_threads(job, shared);
    else
        run_process(job, shared, r);
    const int after = ranks_count_fds();

    if (!job->leaves_descriptors && after != before) {
        char text[128];

        snprintf(text, sizeof text, "%d descriptors were open before, %d are after", before, after);
        fail_rank(shared, r, text);
    }
    exit(0); /* not _exit: sanitizers look for leaks */
}

/* ---- the test's side ---- */

/** Wait for children until a deadline; the number still running. */
static int await(pid_t *pids, int count, int64_t deadline_ms, struct ranks_shared *shared)
{
    int running = 0;

    do {
        running = 0;
        for (int i = 0; i < count; i++) {
            int status = 0;

            if (pids[i] <= 0)
                continue;
            if (waitpid(pids[i], &status, WNOHANG) == 0) {
                running++;
                continue;
            }
            pids[i] = 0;
            if (status == 0 || atomic_exchange(&shared->failed, 1) != 0)
                continue;
            if (WIFSIGNALED(status))
                snprintf(shared->text, sizeof shared->text, "process %d was ended by signal %d", i, WTERMSIG(status));
            else
                snprintf(shared->text, sizeof shared->text, "process %d exited with code %d", i, WEXITSTATUS(status));
        }
        /* Others get a moment to say what they saw, then are ended. */
        if (atomic_load(&shared->failed) != 0 && deadline_ms > ranks_now_ms() + GRACE_MS)
            deadline_ms = ranks_now_ms() + GRACE_MS;
        if (running > 0) {
            const int64_t begin_ms = ranks_now_ms();

            ranks_sleep_ms(1);
            const int64_t nap_ms = ranks_now_ms() - begin_ms;

            shared->longest_nap_ms = nap_ms > shared->longest_nap_ms ? nap_ms : shared->longest_nap_ms;
        }
    } while (running > 0 && ranks_now_ms() < deadline_ms);
    return running;
}

/** Where a rank that hangs is: its last words are in its own output; here, which ones they are. */
static void report_hang(const pid_t *pids, int count, int seconds, struct ranks_shared *shared)
{
    size_t used;

    if (atomic_exchange(&shared->failed, 1) != 0)
        return;
    used = (size_t)snprintf(shared->text, sizeof shared->text, "not done after %d s, killed: processes", seconds);
    for (int i = 0; i < count && used < sizeof shared->text; i++)
        if (pids[i] > 0)
            used += (size_t)snprintf(shared->text + used, sizeof shared->text - used, " %d", i);
}

static bool try_job(const struct ranks_job *job, int tried, struct ranks_shared **out_shared)
{
    struct ranks_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int count = job->kind == RANKS_THREADS ? 1 : job->nranks;
    const int seconds = (job->deadline_s > 0 ? job->deadline_s : DEADLINE_S) * (ranks_small() ? 4 : 1);
    int port = 0;
    const int port_fd = job->kind == RANKS_ENV ? ranks_keep_port(&port) : -1;
    pid_t pids[RANKS_MAX];

    assert_true(shared != MAP_FAILED && job->nranks <= RANKS_MAX);
    shared->tried = tried;
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0)
            child_main(job, shared, i, port);
    }
    if (await(pids, count, ranks_now_ms() + seconds * 1000L, shared) > 0) {
        report_hang(pids, count, seconds, shared);
        for (int i = 0; i < count; i++)
            if (pids[i] > 0)
                kill(pids[i], SIGKILL);
        await(pids, count, ranks_now_ms() + 10000, shared);
    }
    if (port_fd >= 0)
        close(port_fd);
    const bool ok = atomic_load(&shared->failed) == 0;

    if (out_shared != NULL)
        *out_shared = shared;
    else
        ranks_release(shared);
    return ok;
}

bool ranks_try(const struct ranks_job *job, struct ranks_shared **out_shared)
{
    return try_job(job, 0, out_shared);
}

void ranks_release(struct ranks_shared *shared)
{
    munmap(shared, sizeof *shared);
}

void ranks_run(const struct ranks_job *job)
{
    static char text[RANKS_TEXT_MAX];
    bool ok = false, is_last = false;

    for (int tried = 0; !ok && !is_last; tried++) {
        struct ranks_shared *shared;

        ok = try_job(job, tried, &shared);
        const bool is_excused = shared->longest_nap_ms >= QUICK_MS || atomic_load(&shared->preparing) > 0;

        is_last = !job->is_timed || !is_excused || tried + 1 == TRIES_MAX;
        snprintf(text, sizeof text, "%s", shared->text);
        if (!ok && !is_last)
            print_message("tried again, since cores were taken for %lld ms, or before its subject: %s\n",
                          (long long)shared->longest_nap_ms, text);
        ranks_release(shared);
    }
    if (!ok)
        fail_msg("%s", text);
}
