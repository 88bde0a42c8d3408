/* See bench_loop.h. Linux only: futex, shared mapping.
 *
 * DIRECTORY holds `page` (zeroed, PAGE_BYTES or more), and the FIFOs `commands` and `results`, which rank 0 alone
 * opens. A command is one line, "COLLECTIVE COUNT SAMPLES_MIN SAMPLES_MAX BUDGET_US"; the answer one line of JSON. */
#include "bench_loop.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 64, SAMPLES_MAX = 1000, PAGE_BYTES = 1 << 20, CALLS_MAX = 256, PERIOD = 64 };
enum { SAMPLE_NS = 20000, POLLS_BEFORE_YIELD = 20 };
enum { PATIENCE = 20 }; /* times the budget: a turn ends then, even with fewer samples than asked for */

static const char *const coll_names[BENCH_COLL_COUNT] = { "all_reduce", "reduce_scatter", "all_gather",
                                                          "broadcast",  "all_to_all",     "barrier" };

struct command {
    int coll; /* enum bench_coll; -1: end */
    size_t count;
    int samples_min, samples_max;
    int64_t budget_ns;
};

/* Rank 0 writes command, calls and stop; each rank its own entry of the arrays; turn and the barrier publish them. */
struct page {
    _Alignas(64) atomic_uint turn; /* futex: number of the command */
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint phase;
    struct command command;
    int64_t calls; /* per sample */
    int stop;
    int64_t pilot_ns[RANKS_MAX], cpu_ns[RANKS_MAX]; /* cpu: of all threads of the process, during the calls alone */
    uint64_t wrong[RANKS_MAX];
    double sample_us[RANKS_MAX][SAMPLES_MAX];
};
_Static_assert(sizeof(struct page) <= PAGE_BYTES, "the page holds the largest set");

struct bench {
    const struct bench_driver *driver;
    struct page *page;
    struct bench_call call;
    float *send, *recv;
    int crowded; /* more ranks than cores: waiting ranks give way at once */
    FILE *commands, *results;
};

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static void meet(struct bench *bench)
{
    struct page *page = bench->page;
    const unsigned phase =
        atomic_load_explicit(&page->phase, memory_order_relaxed); /* cannot change before we arrive */

    /* B1: acquire-release, so that the last to arrive holds what all others wrote */
    if (atomic_fetch_add_explicit(&page->arrived, 1, memory_order_acq_rel) == bench->driver->nranks - 1) {
        atomic_store_explicit(&page->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&page->phase, phase + 1, memory_order_release); /* B2: passes it on; pairs with B3 */
        return;
    }
    for (int polls = 0; atomic_load_explicit(&page->phase, memory_order_acquire) == phase; polls++) { /* B3 */
        if (bench->crowded && polls >= POLLS_BEFORE_YIELD)
            sched_yield();
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

/* ---- contents ---- */

/* Element i of block b of what `rank` sends in the salt-th filling: an integer below 64, so that sums of 64 ranks are
 * exact in float in any order. */
static float value(int rank, int block, size_t i, unsigned salt)
{
    return (float)((i + 17u * (unsigned)rank + 29u * (unsigned)block + 5u * salt) % PERIOD);
}

static int is_blocked(enum bench_coll coll) /* the send buffer has a block per rank */
{
    return coll == BENCH_REDUCE_SCATTER || coll == BENCH_ALL_TO_ALL;
}

static int is_in_place(const struct bench *bench) /* results are left in the send buffer */
{
    return (bench->call.coll == BENCH_REDUCE_SCATTER && bench->driver->reduce_scatter_in_place)
           || (bench->call.coll == BENCH_ALL_REDUCE && bench->driver->all_reduce_in_place);
}

static void fill(struct bench *bench, unsigned salt)
{
    const struct bench_call *call = &bench->call;
    const int rank = bench->driver->rank, nranks = bench->driver->nranks;
    const size_t sent = call->count * (size_t)(is_blocked(call->coll) ? nranks : 1);
    const size_t received =
        call->count * (size_t)(call->coll == BENCH_ALL_GATHER || call->coll == BENCH_ALL_TO_ALL ? nranks : 1);

    if (call->coll == BENCH_BARRIER)
        return;
    for (size_t i = 0; i < received; i++)
        call->recv[i] = -1.0F;
    float *to = call->coll == BENCH_BROADCAST ? call->recv : call->send;
    if (call->coll == BENCH_BROADCAST && rank != 0)
        return;
    for (size_t start = 0, block = 0; start < sent; start += call->count, block++)
        for (size_t i = 0; i < call->count; i++)
            to[start + i] = value(rank, (int)block, i, salt);
}

static uint64_t count_wrong(const float *have, size_t count, const float *period)
{
    uint64_t wrong = 0;

    for (size_t i = 0; i < count; i++)
        wrong += have[i] != period[i % PERIOD];
    return wrong;
}

/* Elements of the result that differ from what they must be. */
static uint64_t check(struct bench *bench, unsigned salt)
{
    const struct bench_call *call = &bench->call;
    const int rank = bench->driver->rank, nranks = bench->driver->nranks;
    const int sums = call->coll == BENCH_ALL_REDUCE || call->coll == BENCH_REDUCE_SCATTER;
    const int block = is_blocked(call->coll) ? rank : 0;
    const int in_place = is_in_place(bench);
    const int sources = call->coll == BENCH_ALL_GATHER || call->coll == BENCH_ALL_TO_ALL ? nranks : 1;
    uint64_t wrong = 0;

    if (call->coll == BENCH_BARRIER)
        return 0;
    for (int source = 0; source < sources; source++) {
        float period[PERIOD];

        for (size_t i = 0; i < PERIOD; i++) {
            period[i] = value(source, block, i, salt);
            for (int other = 1; sums && other < nranks; other++)
                period[i] += value(other, block, i, salt);
        }
        wrong += count_wrong((in_place ? call->send : call->recv) + (size_t)source * call->count, call->count, period);
    }
    return wrong;
}

/* ---- a turn ---- */

static void make_calls(struct bench *bench, int64_t calls)
{
    for (int64_t i = 0; i < calls; i++) {
        if (bench->driver->call(bench->driver->context, &bench->call) != 0) {
            fprintf(stderr, "rank %d: %s of %zu elements failed\n", bench->driver->rank, coll_names[bench->call.coll],
                    bench->call.count);
            exit(1);
        }
    }
}

static void checked_call(struct bench *bench, unsigned salt)
{
    fill(bench, salt);
    meet(bench);
    make_calls(bench, 1);
    bench->page->wrong[bench->driver->rank] += check(bench, salt);
    meet(bench);
}

static int64_t slowest(const int64_t *ns, int nranks)
{
    int64_t most = 0;

    for (int rank = 0; rank < nranks; rank++)
        most = ns[rank] > most ? ns[rank] : most;
    return most;
}

/* Warm up for a tenth of the budget, and settle how many calls make a sample: by the last, fastest look. */
static void settle_calls(struct bench *bench)
{
    struct page *page = bench->page;
    const int rank = bench->driver->rank;
    const int64_t begin_ns = now_ns();
    int64_t calls = 1;

    for (int done = 0; !done;) {
        meet(bench);
        const int64_t start_ns = now_ns();
        make_calls(bench, calls);
        page->pilot_ns[rank] = now_ns() - start_ns;
        meet(bench);
        if (rank == 0) {
            const int64_t took_ns = slowest(page->pilot_ns, bench->driver->nranks) / calls + 1;

            page->calls = SAMPLE_NS / took_ns + 1 < CALLS_MAX ? SAMPLE_NS / took_ns + 1 : CALLS_MAX;
            page->stop = now_ns() - begin_ns > page->command.budget_ns / 10;
        }
        meet(bench);
        calls = page->calls;
        done = page->stop;
    }
}

/* Returns how many samples were taken. */
static int take_samples(struct bench *bench)
{
    struct page *page = bench->page;
    const struct command *command = &page->command;
    const int rank = bench->driver->rank;
    const int64_t calls = page->calls, begin_ns = now_ns();
    int64_t cpu_ns = 0;
    int taken = 0;

    for (int done = 0; !done;) {
        meet(bench);
        const int64_t start_cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID), start_ns = now_ns();
        make_calls(bench, calls);
        page->sample_us[rank][taken] = (double)(now_ns() - start_ns) / (double)calls / 1e3;
        cpu_ns += clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start_cpu_ns;
        taken++;
        if (rank == 0)
            page->stop = taken == command->samples_max
                         || (taken >= command->samples_min && now_ns() - begin_ns > command->budget_ns)
                         || now_ns() - begin_ns > PATIENCE * command->budget_ns;
        meet(bench);
        done = page->stop;
    }
    page->cpu_ns[rank] = cpu_ns;
    meet(bench);
    return taken;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(struct bench *bench, int taken)
{
    const struct page *page = bench->page;
    double worst[SAMPLES_MAX], sum = 0;
    uint64_t wrong = 0;
    int64_t cpu = 0;

    for (int i = 0; i < taken; i++) {
        worst[i] = 0;
        for (int rank = 0; rank < bench->driver->nranks; rank++)
            worst[i] = page->sample_us[rank][i] > worst[i] ? page->sample_us[rank][i] : worst[i];
        sum += worst[i];
    }
    for (int rank = 0; rank < bench->driver->nranks; rank++) {
        wrong += page->wrong[rank];
        cpu += page->cpu_ns[rank];
    }
    qsort(worst, (size_t)taken, sizeof *worst, compare);
    fprintf(bench->results,
            "{\"median_us\": %.4f, \"min_us\": %.4f, \"mean_us\": %.4f, \"p99_us\": %.4f, \"cpu_us\": %.4f, "
            "\"samples\": %d, \"calls\": %lld, \"wrong\": %llu}\n",
            worst[taken / 2], worst[0], sum / taken, worst[taken * 99 / 100],
            (double)cpu / taken / (double)page->calls / 1e3, taken, (long long)page->calls, (unsigned long long)wrong);
    fflush(bench->results);
}

static void take_turn(struct bench *bench)
{
    const struct bench_driver *driver = bench->driver;
    const struct command *command = &bench->page->command;

    bench->call = (struct bench_call){ (enum bench_coll)command->coll, command->count, bench->send, bench->recv };
    bench->page->wrong[driver->rank] = 0;
    if (driver->prepare && driver->prepare(driver->context, &bench->call) != 0)
        exit(1);
    checked_call(bench, 0);
    settle_calls(bench);
    checked_call(bench, 1);
    fill(bench, 2);
    const int taken = take_samples(bench);
    if (is_in_place(bench)) /* the samples have spoiled what it sent */
        checked_call(bench, 2);
    else
        bench->page->wrong[driver->rank] += check(bench, 2);
    meet(bench);
    if (driver->rank == 0)
        report(bench, taken);
}

/* ---- the conversation ---- */

static void read_command(struct bench *bench, struct command *out_command)
{
    char line[256], name[32];
    long long budget_us;

    out_command->coll = -1;
    if (!fgets(line, sizeof line, bench->commands))
        return;
    if (sscanf(line, "%31s %zu %d %d %lld", name, &out_command->count, &out_command->samples_min,
               &out_command->samples_max, &budget_us)
            != 5
        || out_command->samples_min < 1 || out_command->samples_max > SAMPLES_MAX) {
        fprintf(stderr, "not a command: %s", line);
        exit(1);
    }
    out_command->budget_ns = budget_us * 1000;
    for (int coll = 0; coll < BENCH_COLL_COUNT; coll++)
        if (strcmp(name, coll_names[coll]) == 0)
            out_command->coll = coll;
}

/* Rank 0 reads the next command and wakes the others. Returns 0 at the end. */
static int next_turn(struct bench *bench, unsigned turn)
{
    struct page *page = bench->page;

    if (bench->driver->rank == 0) {
        read_command(bench, &page->command);
        atomic_store_explicit(&page->turn, turn, memory_order_release); /* T1: publishes command; pairs with T2 */
        syscall(SYS_futex, &page->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    } else {
        while (atomic_load_explicit(&page->turn, memory_order_acquire) != turn) /* T2 */
            syscall(SYS_futex, &page->turn, FUTEX_WAIT, turn - 1, NULL, NULL, 0);
    }
    return page->command.coll >= 0;
}

/* Every thread of the process onto core number `rank` of those allowed. After the library's start, so that what it
 * concludes from the cores it sees is what it would conclude without us. */
static void pin(int rank)
{
    cpu_set_t allowed, one;
    int left = rank;
    DIR *tasks = opendir("/proc/self/task");

    CPU_ZERO(&one);
    if (!tasks || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    left %= CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE && left >= 0; cpu++)
        if (CPU_ISSET(cpu, &allowed) && left-- == 0)
            CPU_SET(cpu, &one);
    for (struct dirent *task; (task = readdir(tasks));)
        if (task->d_name[0] != '.')
            sched_setaffinity((pid_t)strtol(task->d_name, NULL, 10), sizeof one, &one);
    closedir(tasks);
}

static void *open_page(const char *directory)
{
    char path[4096];
    void *page = MAP_FAILED;

    snprintf(path, sizeof path, "%s/page", directory);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    close(fd);
    return page;
}

static FILE *open_fifo(const char *directory, const char *name, const char *mode)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, mode);
    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    return file;
}

static float *allocate(const struct bench_driver *driver, size_t bytes)
{
    return driver->allocate ? driver->allocate(driver->context, bytes) : malloc(bytes);
}

int bench_serve(const struct bench_driver *driver, int argc, char **argv)
{
    struct bench bench = { .driver = driver };
    cpu_set_t allowed;

    if (argc != 4 || driver->nranks > RANKS_MAX) {
        fprintf(stderr, "usage: %s DIRECTORY MAX_BYTES PIN, on at most %d ranks; started by benchmarks/peers/run\n",
                argv[0], RANKS_MAX);
        return 2;
    }
    const size_t bytes = (size_t)strtoull(argv[2], NULL, 10);

    sched_getaffinity(0, sizeof allowed, &allowed);
    bench.crowded = driver->nranks > CPU_COUNT(&allowed);
    bench.page = open_page(argv[1]);
    bench.send = allocate(driver, bytes);
    bench.recv = allocate(driver, bytes);
    if (!bench.send || !bench.recv) {
        fprintf(stderr, "no memory for two buffers of %zu bytes\n", bytes);
        return 1;
    }
    if (strcmp(argv[3], "1") == 0)
        pin(driver->rank);
    memset(bench.send, 1, bytes); /* first touch, on the core that will use it */
    memset(bench.recv, 1, bytes);
    meet(&bench);
    if (driver->rank == 0) {
        bench.commands = open_fifo(argv[1], "commands", "r");
        bench.results = open_fifo(argv[1], "results", "w");
        fprintf(bench.results, "ready\n");
        fflush(bench.results);
    }
    for (unsigned turn = 1; next_turn(&bench, turn); turn++)
        take_turn(&bench);
    if (!driver->allocate) {
        free(bench.send);
        free(bench.recv);
    }
    return 0;
}
