/* What could break: a rank dies (kill -9) in the middle of a running all-reduce loop, and a survivor hangs, crashes, blames
 * the wrong rank or notices only when its time is over; or something stays behind: a process, a descriptor of a socket.
 *
 * usage: test_kill [TRANSPORT] [ROUNDS]   each rank in turn is killed, ROUNDS times in all */
#include <hocket/hocket.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 4
#define COUNT_MAX 70000

/** What the ranks tell the test, in memory they share. */
struct board {
    _Atomic int64_t iterations[RANKS];   /* all-reduces finished */
    _Atomic int64_t failed_ns[RANKS];    /* when the failure was reported; 0: not yet */
    int status[RANKS];
    char text[RANKS][512];
};

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/** One rank: all-reduces of changing size until something fails. */
static void run_rank(struct board *board, const struct hkt_unique_id *id, int rank, const char *transport)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    float *data = calloc(COUNT_MAX, sizeof *data);
    struct hkt_comm *comm;
    enum hkt_status rc;

    config.transport = transport;
    config.timeout_ms = 60000; /* reap waits for less */
    rc = hkt_comm_init_rank(&comm, RANKS, id, rank, &config);
    for (int64_t i = 0; rc == HKT_OK; i++) {
        rc = hkt_all_reduce(data, data, i % 3 == 0 ? 2 : i % 3 == 1 ? 1000 : COUNT_MAX, HKT_F32, HKT_SUM, comm, NULL);
        atomic_store_explicit(&board->iterations[rank], i, memory_order_relaxed);
    }
    board->status[rank] = rc;
    snprintf(board->text[rank], sizeof board->text[rank], "%s", hkt_last_error());
    atomic_store_explicit(&board->failed_ns[rank], now_ns(), memory_order_release);
    hkt_comm_destroy(comm);
    free(data);
    _exit(0);
}

static int fail(const char *what, const struct board *board, int victim)
{
    fprintf(stderr, "test_kill: victim %d: %s\n", victim, what);
    for (int r = 0; r < RANKS; r++)
        fprintf(stderr, "  rank %d: %s: %s\n", r, hkt_status_name((enum hkt_status)board->status[r]), board->text[r]);
    return 1;
}

/** Wait until every rank has done some work, so that the kill falls into the loop. */
static int wait_for_loop(const struct board *board)
{
    const int64_t deadline_ns = now_ns() + 30000000000;

    for (int r = 0; r < RANKS; r++)
        while (atomic_load_explicit(&board->iterations[r], memory_order_relaxed) < 5) {
            if (now_ns() > deadline_ns || atomic_load_explicit(&board->failed_ns[r], memory_order_acquire) != 0)
                return -1;
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    return 0;
}

/** All children end by themselves; those that do not are ended and counted. */
static int reap(const pid_t *pids, int victim)
{
    const int64_t deadline_ns = now_ns() + 30000000000;
    int hung = 0;

    for (int r = 0; r < RANKS; r++) {
        int status = 0;

        while (waitpid(pids[r], &status, WNOHANG) == 0) {
            if (now_ns() > deadline_ns) {
                hung++;
                kill(pids[r], SIGKILL);
                waitpid(pids[r], &status, 0);
                break;
            }
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        if (r != victim && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
            hung++;
    }
    return hung;
}

/** Survivors blame the dead rank. Returns the latest report: milliseconds, but that is the machine's affair, too. */
static int64_t check_survivors(struct board *board, int victim, int64_t killed_ns)
{
    char blame[32];
    int64_t latest_ns = 0;

    snprintf(blame, sizeof blame, "rank %d", victim);
    for (int r = 0; r < RANKS; r++) {
        const int64_t failed_ns = atomic_load_explicit(&board->failed_ns[r], memory_order_acquire);

        if (r == victim)
            continue;
        if (failed_ns == 0 || board->status[r] != HKT_ERR_PEER_LOST)
            return -(int64_t)fail("a survivor did not report a lost peer", board, victim);
        if (strstr(board->text[r], blame) == NULL)
            return -(int64_t)fail("a survivor does not name the dead rank", board, victim);
        latest_ns = failed_ns - killed_ns > latest_ns ? failed_ns - killed_ns : latest_ns;
    }
    return latest_ns;
}

static int64_t one_round(struct board *board, int victim, unsigned *seed, const char *transport)
{
    struct hkt_unique_id id;
    pid_t pids[RANKS];

    memset(board, 0, sizeof *board);
    if (hkt_get_unique_id(&id) < 0)
        return -(int64_t)fail(hkt_last_error(), board, victim);
    for (int r = 0; r < RANKS; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            run_rank(board, &id, r, transport);
    }
    if (wait_for_loop(board) != 0) {
        for (int r = 0; r < RANKS; r++)
            kill(pids[r], SIGKILL);
        reap(pids, victim);
        return -(int64_t)fail("the ranks did not start to work", board, victim);
    }
    nanosleep(&(struct timespec){.tv_nsec = rand_r(seed) % 3000000}, NULL);
    const int64_t killed_ns = now_ns();

    kill(pids[victim], SIGKILL);
    if (reap(pids, victim) > 0)
        return -(int64_t)fail("a survivor hung or crashed", board, victim);
    return check_survivors(board, victim, killed_ns);
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const char *transport = argc > 1 ? argv[1] : "shm";
    const int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 8;
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int64_t *noticed_ns = calloc((size_t)rounds, sizeof *noticed_ns);
    unsigned seed = 20261129;

    if (board == MAP_FAILED || noticed_ns == NULL || rounds < 1)
        return 1;
    printf("seed %u\n", seed);
    for (int i = 0; i < rounds; i++) {
        noticed_ns[i] = one_round(board, i % RANKS, &seed, transport);
        if (noticed_ns[i] < 0) {
            free(noticed_ns);
            return 1;
        }
    }
    qsort(noticed_ns, (size_t)rounds, sizeof *noticed_ns, compare);
    printf("%s: %d ranks killed, all survivors named them; last report after median %.1f ms, worst %.1f ms\n", transport,
           rounds, (double)noticed_ns[rounds / 2] / 1e6, (double)noticed_ns[rounds - 1] / 1e6);
    free(noticed_ns);
    return 0;
}
