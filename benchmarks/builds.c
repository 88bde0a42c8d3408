/* Builds of the library side by side: which one makes small calls faster, and by how much?
 *
 *     build/benchmarks/builds RANKS SECONDS CASES LIBRARY LIBRARY...
 *     build/benchmarks/builds 2 1 broadcast:8,all_reduce:8,barrier:0 old/libhocket.so.0.1.0 build/src/libhocket.so.0.1.0
 *
 * A case is a collective and the bytes of its larger buffer (float, sum, root 0). The ranks are forked once and open all
 * builds, each with a communicator of its own; samples of the builds take turns within milliseconds, so that what comes over
 * the machine for seconds or minutes comes over all alike. A sample is a batch of calls of about 20 us from a common barrier,
 * its time that of the slowest rank. Printed per build: median and lower quartile in microseconds per call, and the median of
 * the ratios to the first build within a turn. With the same file twice, under two names, the ratio is within 1 % as a rule,
 * within 8 % for messages of more than 256 bytes, where it matters which pages a build got. */
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hocket/hocket.h"

enum { RANKS_MAX = 16, BUILDS_MAX = 4, TURNS_MAX = 200000, BYTES_MAX = 1 << 20, WARM_UP = 2000, BATCH_US = 20 };

/** One build: its calls, and this rank's communicator. */
struct build {
    __typeof__(hkt_get_unique_id) *get_unique_id;
    __typeof__(hkt_comm_init_rank) *comm_init_rank;
    __typeof__(hkt_comm_destroy) *comm_destroy;
    __typeof__(hkt_all_reduce) *all_reduce;
    __typeof__(hkt_reduce_scatter) *reduce_scatter;
    __typeof__(hkt_all_gather) *all_gather;
    __typeof__(hkt_broadcast) *broadcast;
    __typeof__(hkt_all_to_all) *all_to_all;
    __typeof__(hkt_barrier) *barrier;
    struct hkt_unique_id id;
    struct hkt_comm *comm;
    double *us, *ratio; /* [TURNS_MAX]: of the turns */
};

/** Where the ranks meet, and leave their times. */
struct page {
    _Atomic int arrived, generation;
    double us[RANKS_MAX];
    bool goes_on;
};

static struct page *page;
static struct build builds[BUILDS_MAX];
static int nbuilds, nranks, rank;
static float *in, *out;

static _Noreturn void stop(const char *what)
{
    fprintf(stderr, "builds: %s\n", what);
    exit(1);
}

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void meet(void)
{
    const int generation = atomic_load(&page->generation);

    if (atomic_fetch_add(&page->arrived, 1) == nranks - 1) {
        atomic_store(&page->arrived, 0);
        atomic_store(&page->generation, generation + 1);
    }
    while (atomic_load(&page->generation) == generation)
        if (nranks > 2)
            sched_yield();
}

/** A call of a build, into a pointer to a function. */
static void find(void *library, const char *name, void *out_function)
{
    void *found = dlsym(library, name);

    if (found == NULL)
        stop(dlerror());
    memcpy(out_function, &found, sizeof found);
}

static void open_build(struct build *build, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        stop(dlerror());
    find(library, "hkt_get_unique_id", &build->get_unique_id);
    find(library, "hkt_comm_init_rank", &build->comm_init_rank);
    find(library, "hkt_comm_destroy", &build->comm_destroy);
    find(library, "hkt_all_reduce", &build->all_reduce);
    find(library, "hkt_reduce_scatter", &build->reduce_scatter);
    find(library, "hkt_all_gather", &build->all_gather);
    find(library, "hkt_broadcast", &build->broadcast);
    find(library, "hkt_all_to_all", &build->all_to_all);
    find(library, "hkt_barrier", &build->barrier);
    build->us = calloc(TURNS_MAX, sizeof *build->us);
    build->ratio = calloc(TURNS_MAX, sizeof *build->ratio);
    if (build->us == NULL || build->ratio == NULL || build->get_unique_id(&build->id) != HKT_OK)
        stop("no memory or no job");
}

/** A collective by name, of `bytes` of its larger buffer. */
static void call(const struct build *build, const char *coll, size_t bytes)
{
    const size_t whole = bytes / sizeof(float), part = whole > (size_t)nranks ? whole / (size_t)nranks : 1;
    enum hkt_status rc = HKT_ERR_INVALID;

    if (strcmp(coll, "all_reduce") == 0)
        rc = build->all_reduce(in, out, whole, HKT_F32, HKT_SUM, build->comm, NULL);
    else if (strcmp(coll, "broadcast") == 0)
        rc = build->broadcast(out, out, whole, HKT_F32, 0, build->comm, NULL);
    else if (strcmp(coll, "reduce_scatter") == 0)
        rc = build->reduce_scatter(in, out, part, HKT_F32, HKT_SUM, build->comm, NULL);
    else if (strcmp(coll, "all_gather") == 0)
        rc = build->all_gather(in, out, part, HKT_F32, build->comm, NULL);
    else if (strcmp(coll, "all_to_all") == 0)
        rc = build->all_to_all(in, out, part, HKT_F32, build->comm, NULL);
    else if (strcmp(coll, "barrier") == 0)
        rc = build->barrier(build->comm, NULL);
    if (rc != HKT_OK)
        stop(coll);
}

/** Microseconds per call of a batch, those of the slowest rank. */
static double sample(const struct build *build, const char *coll, size_t bytes, int batch)
{
    double slowest = 0;

    meet();
    const double begin = now_us();

    for (int i = 0; i < batch; i++)
        call(build, coll, bytes);
    page->us[rank] = (now_us() - begin) / batch;
    meet();
    for (int r = 0; r < nranks; r++)
        slowest = page->us[r] > slowest ? page->us[r] : slowest;
    meet();
    return slowest;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_case(const char *coll, size_t bytes, size_t turns)
{
    printf("%-14s %6zu", coll, bytes);
    for (struct build *build = builds; build < builds + nbuilds; build++) {
        qsort(build->us, turns, sizeof *build->us, by_size);
        qsort(build->ratio, turns, sizeof *build->ratio, by_size);
        printf("   %8.3f (%.3f) %.3f", build->us[turns / 2], build->us[turns / 4], build->ratio[turns / 2]);
    }
    printf("   %zu turns\n", turns);
    fflush(stdout);
}

static void measure(const char *coll, size_t bytes, double seconds)
{
    size_t turns = 0;

    for (int b = 0; b < nbuilds; b++)
        (void)sample(&builds[b], coll, bytes, WARM_UP);
    const int batch = (int)(BATCH_US / sample(&builds[0], coll, bytes, 50)) + 1;
    const double end = now_us() + seconds * 1e6;

    for (page->goes_on = true;; turns++) {
        meet();
        if (rank == 0)
            page->goes_on = now_us() < end && turns < TURNS_MAX;
        meet();
        if (!page->goes_on)
            break;
        for (int i = 0; i < nbuilds; i++) { /* each is the first in turn */
            struct build *build = &builds[(i + (int)(turns % (size_t)nbuilds)) % nbuilds];

            build->us[turns] = sample(build, coll, bytes, batch);
        }
        for (int b = 0; b < nbuilds; b++)
            builds[b].ratio[turns] = builds[b].us[turns] / builds[0].us[turns];
    }
    if (rank == 0 && turns > 0)
        print_case(coll, bytes, turns);
}

/** A whole number from 0 to `most`; -1: it is none. */
static long number(const char *text, long most)
{
    char *end;
    const long value = strtol(text, &end, 10);

    return end == text || *end != '\0' || value < 0 || value > most ? -1 : value;
}

/** Forks the other ranks, each on a core where there are as many, and joins all builds' jobs. */
static void start_ranks(void)
{
    const struct hkt_config config = HKT_CONFIG_INIT;

    for (int r = 1; r < nranks && rank == 0; r++)
        if (fork() == 0)
            rank = r;
    if (nranks <= sysconf(_SC_NPROCESSORS_ONLN)) {
        cpu_set_t core;

        CPU_ZERO(&core);
        CPU_SET((size_t)rank, &core);
        (void)sched_setaffinity(0, sizeof core, &core);
    }
    for (struct build *build = builds; build < builds + nbuilds; build++)
        if (build->comm_init_rank(&build->comm, nranks, &build->id, rank, &config) != HKT_OK)
            stop("the ranks do not find each other");
}

int main(int argc, char **argv)
{
    nranks = argc > 1 ? (int)number(argv[1], RANKS_MAX) : 0;
    const long seconds = argc > 2 ? number(argv[2], 3600) : -1;

    nbuilds = argc - 4;
    if (nranks < 2 || seconds < 1 || nbuilds < 1 || nbuilds > BUILDS_MAX)
        stop("usage: builds RANKS SECONDS COLLECTIVE:BYTES,... LIBRARY LIBRARY...");
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    in = aligned_alloc(4096, BYTES_MAX);
    out = aligned_alloc(4096, BYTES_MAX);
    if (page == MAP_FAILED || in == NULL || out == NULL)
        stop("no memory");
    memset(in, 0, BYTES_MAX);
    memset(out, 0, BYTES_MAX);
    for (int b = 0; b < nbuilds; b++)
        open_build(&builds[b], argv[4 + b]);
    start_ranks();
    for (char *at = strtok(argv[3], ","); at != NULL; at = strtok(NULL, ",")) {
        char *colon = strchr(at, ':');
        const long bytes = colon != NULL ? number(colon + 1, BYTES_MAX) : -1;

        if (bytes < 0)
            stop("a case is COLLECTIVE:BYTES, at most 1M");
        *colon = '\0';
        measure(at, (size_t)bytes, (double)seconds);
    }
    for (int b = 0; b < nbuilds; b++)
        (void)builds[b].comm_destroy(builds[b].comm);
    while (rank == 0 && wait(NULL) > 0)
        continue;
    return 0;
}
