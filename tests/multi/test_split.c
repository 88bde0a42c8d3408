/* What could break: ranks of a split get the wrong group, order or size; communicators made from one another depend on
 * each other's lives, mix their messages, or cost so much memory that a program cannot have hundreds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"

enum { N = 6, MANY = 300, MANY_RANKS = 3 };
#define BYTES_PER_COMM (512 * 1024) /* resident, of a communicator that has done a small all-reduce */

/** The sum of `value` over comm. */
static int64_t sum_over(struct ranks_rank *rank, struct hkt_comm *comm, int64_t value)
{
    int64_t sum = 0;

    ranks_require_ok(rank, hkt_all_reduce(&value, &sum, 1, HKT_INT64, HKT_SUM, comm, NULL), "all_reduce");
    return sum;
}

static struct hkt_comm *split(struct ranks_rank *rank, struct hkt_comm *parent, int color, int key)
{
    struct hkt_comm *comm = parent;

    ranks_require_ok(rank, hkt_comm_split(parent, color, key, NULL, &comm), "hkt_comm_split");
    return comm;
}

static void colors_and_keys(struct ranks_rank *rank)
{
    const int me = rank->rank;
    struct hkt_comm *comm = split(rank, rank->comm, me % 2, -me);

    /* Evens 0 2 4 and odds 1 3 5, the highest first. */
    ranks_require(rank, hkt_comm_size(comm) == 3 && hkt_comm_rank(comm) == 2 - me / 2, "rank %d of %d, not %d of 3",
                  hkt_comm_rank(comm), hkt_comm_size(comm), 2 - me / 2);
    ranks_require(rank, sum_over(rank, comm, 1 << me) == (me % 2 == 0 ? 1 + 4 + 16 : 2 + 8 + 32), "another group's sum");
    ranks_require_ok(rank, hkt_comm_destroy(comm), "hkt_comm_destroy");

    comm = split(rank, rank->comm, me == 3 ? -1 : 1000000, 7); /* equal keys: in rank order */
    ranks_require(rank, (comm == NULL) == (me == 3), "no color, no communicator");
    if (comm != NULL)
        ranks_require(rank, hkt_comm_size(comm) == 5 && hkt_comm_rank(comm) == me - (me > 3), "rank %d", hkt_comm_rank(comm));
    ranks_require_ok(rank, hkt_comm_destroy(comm), "hkt_comm_destroy");

    comm = split(rank, rank->comm, me, 0); /* alone */
    ranks_require(rank, hkt_comm_size(comm) == 1 && sum_over(rank, comm, 5) == 5, "a rank alone");
    ranks_require_ok(rank, hkt_comm_destroy(comm), "hkt_comm_destroy");

    comm = split(rank, rank->comm, -1 - me, 0); /* nobody */
    ranks_require(rank, comm == NULL, "nobody wanted a communicator");
}

/** A split of a split of a split; results of all levels, then the parents go first. */
static void nested(struct ranks_rank *rank)
{
    const int me = rank->rank;
    struct hkt_comm *halves = split(rank, rank->comm, me / 3, me), *pairs = split(rank, halves, me % 3 / 2, 0);
    struct hkt_comm *again = split(rank, pairs, 0, -me);

    for (int i = 0; i < 10; i++) {
        ranks_require(rank, sum_over(rank, rank->comm, 1) == N, "all");
        ranks_require(rank, sum_over(rank, halves, 1) == 3, "halves");
        ranks_require(rank, sum_over(rank, pairs, 1) == (me % 3 == 2 ? 1 : 2), "pairs");
        ranks_require(rank, sum_over(rank, again, me) == (me % 3 == 2 ? me : me / 3 * 6 + 1), "again");
    }
    ranks_require_ok(rank, hkt_comm_destroy(halves), "hkt_comm_destroy");
    ranks_require_ok(rank, hkt_comm_destroy(pairs), "hkt_comm_destroy");
    ranks_require(rank, sum_over(rank, again, me) == (me % 3 == 2 ? me : me / 3 * 6 + 1), "an orphan");
    ranks_require_ok(rank, hkt_comm_destroy(again), "hkt_comm_destroy");
}

/** The world goes first; its children work on, and go in a different order on each rank. */
static void any_order(struct ranks_rank *rank)
{
    struct hkt_comm *children[4];

    for (int i = 0; i < 4; i++)
        children[i] = split(rank, rank->comm, 0, i % 2 == 0 ? rank->rank : -rank->rank);
    ranks_require_ok(rank, hkt_comm_destroy(rank->comm), "hkt_comm_destroy");
    rank->comm = NULL;
    for (int i = 0; i < 4; i++)
        ranks_require(rank, sum_over(rank, children[i], 1) == N, "a child of a parent that is gone");
    struct hkt_comm *grandchild = split(rank, children[0], 0, 0);

    for (int i = 0; i < 4; i++)
        ranks_require_ok(rank, hkt_comm_destroy(children[(i + rank->rank) % 4]), "hkt_comm_destroy");
    ranks_require(rank, sum_over(rank, grandchild, 1) == N, "a grandchild");
    ranks_require_ok(rank, hkt_comm_destroy(grandchild), "hkt_comm_destroy");
}

/** Bytes of this process in memory. */
static int64_t resident_bytes(struct ranks_rank *rank)
{
    FILE *file = fopen("/proc/self/statm", "re");
    long long total, resident;

    ranks_require(rank, file != NULL && fscanf(file, "%lld %lld", &total, &resident) == 2, "/proc/self/statm");
    fclose(file);
    return resident * 4096;
}

/** Hundreds at once, all used, then again after they are gone: memory is bounded, nothing piles up. */
static void many(struct ranks_rank *rank)
{
    static struct hkt_comm *comms[MANY];
    int64_t before = 0, used[2];
    const int count = ranks_small() ? MANY / 4 : MANY;

    for (int round = 0; round < 2; round++) {
        before = round == 0 ? resident_bytes(rank) : before;
        for (int i = 0; i < count; i++)
            comms[i] = split(rank, rank->comm, i % 3 == 0 ? rank->rank % 2 : 0, i % 2 == 0 ? rank->rank : -rank->rank);
        for (int i = 0; i < count; i++) {
            const int64_t sum = sum_over(rank, comms[i], 1);

            ranks_require(rank, sum == hkt_comm_size(comms[i]), "communicator %d of %d", i, count);
        }
        used[round] = resident_bytes(rank) - before;
        for (int i = 0; i < count; i++)
            ranks_require_ok(rank, hkt_comm_destroy(comms[(i * 7 + rank->rank) % count]), "hkt_comm_destroy");
    }
    if (rank->rank == 0)
        printf("%d communicators: %.0f KiB each, %.0f the second time\n", count, (double)used[0] / 1024 / count,
               (double)used[1] / 1024 / count);
    if (ranks_small())
        return; /* sanitizers keep freed memory and shadow it */
    ranks_require(rank, used[0] < (int64_t)count * BYTES_PER_COMM, "%d communicators take %lld MiB, more than %d KiB each",
                  count, (long long)used[0] >> 20, BYTES_PER_COMM >> 10);
    ranks_require(rank, used[1] < used[0] + (int64_t)count * BYTES_PER_COMM / 4, "memory piles up: %lld, then %lld MiB",
                  (long long)used[0] >> 20, (long long)used[1] >> 20);
}

/* ---- running them ---- */

static void run_all(struct ranks_rank *rank)
{
    colors_and_keys(rank);
    nested(rank);
    any_order(rank);
}

static void run_on(const char *transport, int nranks, ranks_fn *fn)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = strcmp(transport, "thread") == 0 ? RANKS_THREADS : RANKS_PROCESSES,
                                  .nranks = nranks, .config = &config, .fn = fn};

    config.transport = transport;
    ranks_run(&job);
}

static void threads_split(void **state)
{
    (void)state;
    run_on("thread", N, run_all);
}

static void processes_split_over_shm(void **state)
{
    (void)state;
    run_on("shm", N, run_all);
    run_on("shm", MANY_RANKS, many);
}

static void processes_split_over_tcp(void **state)
{
    (void)state;
    run_on("tcp", N, run_all);
    run_on("tcp", MANY_RANKS, many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_split),
        cmocka_unit_test(processes_split_over_shm),
        cmocka_unit_test(processes_split_over_tcp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
