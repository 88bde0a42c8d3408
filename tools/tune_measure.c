/* Measuring: one communicator per algorithm number, so that algorithms can take turns call by call, which makes whatever
 * disturbs the machine disturb all of them alike. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools.h"
#include "tune.h"

#define BATCH_US 150.0     /* calls timed in one go take at least this long */
#define BATCH_CALLS 300
#define ALGO_US 300000.0   /* what one algorithm may take for one case, but for its least number of rounds */
#define ROUNDS_LEAST 3
#define PILOTS 3           /* to find that out */
#define PILOT_CALLS 10     /* each, of calls up to PILOT_BYTES; one of larger ones */
#define PILOT_BYTES 65536

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

static enum hkt_status open_buffers(struct tune_rank *rank)
{
    enum hkt_status rc = HKT_OK;

    rank->buffer_bytes = (rank->options->bytes_max + (size_t)rank->nranks * 16 + 8191) / 4096 * 4096;
    for (int i = 0; i < 2 && rc == HKT_OK; i++) {
        void *memory = NULL;

        rank->own[i] = aligned_alloc(4096, rank->buffer_bytes);
        if (rank->own[i] == NULL) {
            hkt_tool_say("tune", "no memory for buffers of %zu bytes", rank->buffer_bytes);
            return HKT_ERR_NOMEM;
        }
        memset(rank->own[i], 0, rank->buffer_bytes);
        if (!rank->has_memory)
            continue;
        rc = hkt_mem_alloc(&memory, rank->buffer_bytes, rank->comm);
        rank->shared[i] = memory;
        if (rc == HKT_OK)
            memset(memory, 0, rank->buffer_bytes);
        for (int k = 0; k < rank->nforced && rc == HKT_OK; k++)
            rc = hkt_comm_register(rank->forced[k], memory, rank->buffer_bytes);
    }
    return rc;
}

enum hkt_status tune_open(struct tune_rank *rank)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    char list[2048];
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
    while (rank->nforced < TUNE_ALGOS_MAX && force_list(rank->nforced, list, sizeof list)) {
        config.algo = list;
        rc = hkt_comm_split(rank->comm, 0, rank->rank, &config, &rank->forced[rank->nforced]);
        if (rc < 0)
            return rc;
        rank->nforced++;
    }
    return open_buffers(rank);
}

void tune_close(struct tune_rank *rank)
{
    for (int k = 0; k < rank->nforced; k++)
        (void)hkt_comm_destroy(rank->forced[k]);
    (void)hkt_comm_destroy(rank->comm); /* shared buffers end with it */
    free(rank->own[0]);
    free(rank->own[1]);
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
    struct perf_rank perf = {.comm = rank->forced[algo], .rank = rank->rank, .nranks = rank->nranks,
                             .send = c->registered ? rank->shared[0] : rank->own[0],
                             .recv = c->registered ? rank->shared[1] : rank->own[1]};
    const struct perf_case call = call_of(rank, c);
    enum hkt_status rc = hkt_barrier(rank->comm, NULL);
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
    enum hkt_status rc = time_calls(rank, c, entrant->algo, 1, &us); /* opens channels, touches memory */

    for (int i = 0; i < PILOTS && rc == HKT_OK; i++) {
        rc = time_calls(rank, c, entrant->algo, c->bytes <= PILOT_BYTES ? PILOT_CALLS : 1, &second); /* as many on all ranks */
        us = second < us ? second : us;
    }
    us = us > 0.05 ? us : 0.05;
    const double calls = BATCH_US / us, rounds = ALGO_US / (us > BATCH_US ? us : BATCH_US);

    entrant->calls = calls < 1 ? 1 : calls > BATCH_CALLS ? BATCH_CALLS : (int32_t)calls;
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

/** What `count` values reach by that share of them; sorts them. */
static double quantile(double *values, int count, double share)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[(int)(count * share)];
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
        out_us[field.entrants[i].algo] = quantile(&times[i * rank->options->rounds], field.entrants[i].rounds, 0.25);
    free(times);
    return rc;
}

/** The median over rounds of one entrant's time over another's. */
static double median_ratio(const struct tune_rank *rank, const double *times, int over, int under, int rounds)
{
    double ratios[TUNE_ROUNDS_MAX];

    for (int i = 0; i < rounds; i++)
        ratios[i] = times[over * rank->options->rounds + i] / times[under * rank->options->rounds + i];
    return quantile(ratios, rounds, 0.5);
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
