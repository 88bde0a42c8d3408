/* Measuring: one communicator per algorithm number, so that algorithms can take turns, which makes whatever disturbs the machine
 * disturb all of them alike. What one leaves in the caches must not: 2 ranks gathered 4.7 MB to all in 350 us by an algorithm
 * after itself, in 530 after another one. So whoever's turn it is makes a call that is not timed first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools.h"
#include "tune.h"

#define BATCH_US 150.0     /* calls timed in one go take at least this long */
#define BATCH_CALLS 300
#define WARM_CALLS 2      /* before these, and */
#define BATCH_LEAST 4     /* so many: the caches are as an algorithm's own calls leave them. All_gather of 4 MiB of 4 ranks by
                           * writes took 0.66 ms call after call, and 1.05 when one was timed after one that followed another algorithm */
#define ALGO_US 30000.0    /* what one algorithm may take for one case in one start, but for its least number of rounds */
#define ALGO_CHECK_US 300000.0 /* the same with --check */
#define ROUNDS_LEAST 2
#define PILOTS 3           /* to find that out: of PILOT_CALLS, of vectors up to PILOT_BYTES */
#define PILOT_CALLS 10
#define PILOT_BYTES 262144

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/** "all_reduce=ring,broadcast=binomial,...": each collective's row number k. False: there is none. */
static bool force_list(int k, char *list, size_t bytes)
{
    int rows[HKT_COLL_COUNT] = {0};
    struct hkt_algo_info info;
    size_t used = 0;

    list[0] = '\0';
    for (int i = 0; hkt_algo_get(i, &info) == HKT_OK; i++)
        if (rows[info.coll]++ == k && used < bytes)
            used += (size_t)snprintf(list + used, bytes - used, "%s%s=%s", used > 0 ? "," : "", hkt_coll_name(info.coll),
                                     info.name);
    return used > 0 && used < bytes;
}

/** Buffers for vectors of `bytes`. */
static enum hkt_status open_buffers(struct tune_rank *rank, size_t bytes, struct tune_buffers *buffers)
{
    enum hkt_status rc = HKT_OK;

    buffers->bytes = (bytes + (size_t)rank->nranks * 16 + 8191) / 4096 * 4096;
    for (int i = 0; i < 2 && rc == HKT_OK; i++) {
        void *memory = NULL;

        buffers->own[i] = aligned_alloc(4096, buffers->bytes);
        if (buffers->own[i] == NULL) {
            hkt_tool_say("tune", "no memory for buffers of %zu bytes", buffers->bytes);
            return HKT_ERR_NOMEM;
        }
        memset(buffers->own[i], 0, buffers->bytes);
        if (!rank->has_memory)
            continue;
        rc = hkt_mem_alloc(&memory, buffers->bytes, rank->comm);
        buffers->shared[i] = memory;
        if (rc == HKT_OK)
            memset(memory, 0, buffers->bytes);
        for (int k = 0; k < rank->nforced && rc == HKT_OK; k++)
            rc = hkt_comm_register(rank->forced[k], memory, buffers->bytes);
    }
    return rc;
}

/** A communicator for each algorithm number, and buffers. */
static enum hkt_status open_field(struct tune_rank *rank)
{
    const size_t bytes = rank->options->bytes_max;
    struct hkt_config config = HKT_CONFIG_INIT;
    char list[2048];

    config.transport = rank->options->transport;
    while (rank->nforced < TUNE_ALGOS_MAX && force_list(rank->nforced, list, sizeof list)) {
        config.algo = list;
        const enum hkt_status rc = hkt_comm_split(rank->comm, 0, rank->rank, &config, &rank->forced[rank->nforced]);

        if (rc < 0)
            return rc;
        rank->nforced++;
    }
    const enum hkt_status rc = open_buffers(rank, bytes < TUNE_SMALL_BYTES ? bytes : TUNE_SMALL_BYTES, &rank->buffers[0]);

    return rc == HKT_OK && bytes > TUNE_SMALL_BYTES ? open_buffers(rank, bytes, &rank->buffers[1]) : rc;
}

static void close_field(struct tune_rank *rank)
{
    for (int k = 0; k < rank->nforced; k++)
        (void)hkt_comm_destroy(rank->forced[k]);
    rank->nforced = 0;
    for (int i = 0; i < 4; i++)
        free(rank->buffers[i / 2].own[i % 2]);
}

enum hkt_status tune_open(struct tune_rank *rank)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    enum hkt_status rc;

    config.transport = rank->options->transport;
    rc = hkt_comm_init_env(&rank->comm, &config);
    if (rc < 0)
        return rc;
    rank->rank = hkt_comm_rank(rank->comm);
    rank->nranks = hkt_comm_size(rank->comm);
    rank->has_memory = strcmp(hkt_comm_route(rank->comm), "shm") == 0;
    if (rank->nranks == 1)
        return HKT_OK;
    return open_field(rank);
}

enum hkt_status tune_reopen(struct tune_rank *rank)
{
    enum hkt_status rc = hkt_barrier(rank->comm, NULL);

    close_field(rank);
    for (int i = 0; i < 4 && rc == HKT_OK; i++)
        rc = hkt_mem_free(rank->buffers[i / 2].shared[i % 2], rank->comm);
    memset(rank->buffers, 0, sizeof rank->buffers);
    return rc == HKT_OK ? open_field(rank) : rc;
}

void tune_close(struct tune_rank *rank)
{
    close_field(rank);
    (void)hkt_comm_destroy(rank->comm); /* shared buffers end with it */
}

/** The case as perf_call takes it. */
static struct perf_case call_of(const struct tune_rank *rank, const struct tune_case *c)
{
    const bool whole = c->coll == HKT_ALL_REDUCE || c->coll == HKT_BROADCAST || c->coll == HKT_REDUCE;

    return (struct perf_case){.coll = c->coll, .dtype = HKT_F32, .op = HKT_SUM,
                              .in_place = c->in_place || c->coll == HKT_BROADCAST, /* as the model has it */
                              .count = c->bytes / 4 / (whole ? 1 : (size_t)rank->nranks)};
}

static enum hkt_status time_calls(struct tune_rank *rank, const struct tune_case *c, int algo, int calls, double *out_us)
{
    const struct tune_buffers *buffers = &rank->buffers[c->bytes > TUNE_SMALL_BYTES];
    struct perf_rank perf = {.comm = rank->forced[algo], .rank = rank->rank, .nranks = rank->nranks,
                             .send = c->registered ? buffers->shared[0] : buffers->own[0],
                             .recv = c->registered ? buffers->shared[1] : buffers->own[1]};
    const struct perf_case call = call_of(rank, c);
    enum hkt_status rc = hkt_barrier(rank->comm, NULL);

    for (int i = 0; i < WARM_CALLS && rc == HKT_OK; i++)
        rc = perf_call(&perf, &call);
    const double start = now_us();

    for (int i = 0; i < calls && rc == HKT_OK; i++)
        rc = perf_call(&perf, &call);
    *out_us = (now_us() - start) / calls;
    return rc;
}

/** Algorithms that are timed turn and turn about, how many calls in a batch, how many rounds; rank 0 decides. */
struct field {
    int32_t count;
    struct entrant {
        int32_t algo, calls, rounds;
    } entrants[TUNE_ALGOS_MAX];
};

/** An entrant's calls and rounds, from how long a call takes. */
static enum hkt_status find_pace(struct tune_rank *rank, const struct tune_case *c, struct entrant *entrant)
{
    double us = 0, second = 0;
    enum hkt_status rc = time_calls(rank, c, entrant->algo, 1, &us); /* the first opens channels and touches memory */

    for (int i = 0; i < PILOTS && c->bytes <= PILOT_BYTES && rc == HKT_OK; i++) {
        rc = time_calls(rank, c, entrant->algo, PILOT_CALLS, &second); /* as many on all ranks */
        us = second < us ? second : us;
    }
    us = us > 0.05 ? us : 0.05;
    const double calls = fmax(BATCH_LEAST, ceil(BATCH_US / us)),
                 rounds = (rank->options->is_check ? ALGO_CHECK_US : ALGO_US) / (us * (calls + WARM_CALLS));

    entrant->calls = calls > BATCH_CALLS ? BATCH_CALLS : (int32_t)calls;
    entrant->rounds = rounds < ROUNDS_LEAST              ? ROUNDS_LEAST
                      : rounds > rank->options->rounds ? rank->options->rounds
                                                       : (int32_t)rounds;
    return rc;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/** The lower one of an even number; sorts them. */
static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[(count - 1) / 2];
}

/** Gives *out_times [entrant * rounds + round]: a call's time on the slowest rank. */
static enum hkt_status take_turns(struct tune_rank *rank, const struct tune_case *c, const struct field *field,
                                  double **out_times)
{
    const int rounds = rank->options->rounds;
    double *times = calloc((size_t)rounds * TUNE_ALGOS_MAX, sizeof *times);
    enum hkt_status rc = HKT_OK;

    if (times == NULL) {
        hkt_tool_say("tune", "no memory for %d rounds", rounds);
        return HKT_ERR_NOMEM;
    }
    for (int round = 0; round < rounds && rc == HKT_OK; round++) {
        for (int i = 0; i < field->count && rc == HKT_OK; i++) {
            const int k = (i + round) % field->count; /* who is first has no advantage */
            const struct entrant *entrant = &field->entrants[k];

            if (round < entrant->rounds)
                rc = time_calls(rank, c, entrant->algo, entrant->calls, &times[k * rounds + round]);
        }
    }
    if (rc == HKT_OK)
        rc = hkt_all_reduce(times, times, (size_t)rounds * (size_t)field->count, HKT_F64, HKT_MAX, rank->comm, NULL);
    *out_times = times;
    return rc;
}

enum hkt_status tune_measure(struct tune_rank *rank, const struct tune_case *c, const bool *which,
                             double out_us[TUNE_ALGOS_MAX])
{
    struct field field = {0};
    double *times = NULL;
    enum hkt_status rc = HKT_OK;

    for (int k = 0; k < rank->nforced && rc == HKT_OK; k++) {
        if (!which[k])
            continue;
        field.entrants[field.count] = (struct entrant){.algo = k};
        rc = find_pace(rank, c, &field.entrants[field.count++]);
    }
    if (rc == HKT_OK)
        rc = hkt_broadcast(&field, &field, sizeof field, HKT_UINT8, 0, rank->comm, NULL);
    if (rc == HKT_OK)
        rc = take_turns(rank, c, &field, &times);
    for (int i = 0; i < field.count && rc == HKT_OK; i++)
        out_us[field.entrants[i].algo] = median(&times[i * rank->options->rounds], field.entrants[i].rounds);
    free(times);
    return rc;
}

/** The median over rounds of one entrant's time over another's. */
static double median_ratio(const struct tune_rank *rank, const double *times, int over, int under, int rounds)
{
    double ratios[TUNE_ROUNDS_MAX];

    for (int i = 0; i < rounds; i++)
        ratios[i] = times[over * rank->options->rounds + i] / times[under * rank->options->rounds + i];
    return median(ratios, rounds);
}

enum hkt_status tune_duel(struct tune_rank *rank, const struct tune_case *c, int algo, int rival, struct tune_duel *out_duel)
{
    struct field field = {.count = 3, .entrants = {{.algo = algo}, {.algo = rival}, {.algo = algo}}};
    double *times = NULL;
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < 2 && rc == HKT_OK; i++)
        rc = find_pace(rank, c, &field.entrants[i]);
    field.entrants[2] = field.entrants[0];
    const int rounds = field.entrants[0].rounds < field.entrants[1].rounds ? field.entrants[0].rounds : field.entrants[1].rounds;

    for (int i = 0; i < field.count; i++)
        field.entrants[i].rounds = rounds;
    if (rc == HKT_OK)
        rc = hkt_broadcast(&field, &field, sizeof field, HKT_UINT8, 0, rank->comm, NULL);
    if (rc == HKT_OK)
        rc = take_turns(rank, c, &field, &times);
    if (rc == HKT_OK)
        *out_duel = (struct tune_duel){median_ratio(rank, times, 0, 1, field.entrants[0].rounds),
                                       median_ratio(rank, times, 0, 2, field.entrants[0].rounds)};
    free(times);
    return rc;
}
