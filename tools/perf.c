/* `hocket perf`: sets ranks up (one per process, or several threads of a process), walks the sizes, types, operations and
 * roots, and lets rank 0 print. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "perf.h"
#include "tools.h"

#define BUCKET_BYTES (25u << 20)      /* DistributedDataParallel's default bucket_cap_mb */
#define BUCKET_FIRST_BYTES (1u << 20) /* and its first bucket (torch/csrc/distributed/c10d/reducer.hpp) */
#define REPLAY_BYTES (256u << 20)     /* buffer of a replay, unless --maxbytes is larger */

/** One thread of this process. */
struct worker {
    pthread_t thread;
    struct perf_rank rank;
    struct hkt_unique_id id;
    const struct hkt_config *config;
    int index, total;                /* its rank, and ranks over all processes */
    int code;                        /* exit code */
};

static bool is_v(enum hkt_coll coll)
{
    return coll == HKT_ALL_GATHER_V || coll == HKT_REDUCE_SCATTER_V || coll == HKT_ALL_TO_ALL_V;
}

static bool is_reduction(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_REDUCE_SCATTER_V;
}

static bool is_rooted(enum hkt_coll coll)
{
    return coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER;
}

static bool has_in_place(enum hkt_coll coll)
{
    return coll != HKT_SEND_RECV && coll != HKT_BARRIER && coll != HKT_ALL_TO_ALL_V;
}

/** The API's count for a size in bytes: sizes are of the whole vector, as in nccl-tests. */
static size_t count_of(const struct perf_rank *rank, enum hkt_coll coll, enum hkt_dtype dtype, size_t bytes)
{
    const size_t elems = bytes / hkt_dtype_size(dtype);

    switch (coll) {
    case HKT_ALL_REDUCE:
    case HKT_BROADCAST:
    case HKT_REDUCE:
    case HKT_SEND_RECV:
        return elems;
    case HKT_BARRIER:
        return 0;
    default:
        return elems / (size_t)rank->nranks;
    }
}

/** The buffers of the host are memory that peers address. */
static bool is_registered(const struct perf_rank *rank)
{
    return rank->options->local_register > 0 && !rank->options->on_device;
}

/** Buffers on a device: ranks are dealt to them in turn. */
static bool allocate_far(struct perf_rank *rank)
{
    void *memory[2] = {NULL, NULL};
    int count;
    enum hkt_status rc = hkt_device_count(&count);

    if (rc == HKT_OK)
        rank->device = rank->rank % count;
    for (int i = 0; i < 2 && rc == HKT_OK; i++)
        rc = rank->options->local_register > 0 ? hkt_mem_alloc_device(&memory[i], rank->buffer_bytes, rank->device, rank->comm)
                                               : hkt_device_alloc(&memory[i], rank->buffer_bytes, rank->device);
    rank->far_send = memory[0];
    rank->far_recv = memory[1];
    if (rc == HKT_OK)
        rc = hkt_device_stream_create(&rank->stream, rank->device);
    if (rc == HKT_OK)
        rc = perf_upload(rank);
    if (rc < 0)
        hkt_tool_say("perf", "rank %d: %s", rank->rank, hkt_last_error());
    return rc == HKT_OK;
}

static bool allocate(struct perf_rank *rank)
{
    const size_t n = (size_t)rank->nranks;
    /* v-variants move up to twice the even share per pair; a page of slack for empty cases. */
    const size_t bytes = rank->options->bytes_max * (is_v(rank->options->coll) ? 2 : 1) + n * 16 + 4096;

    rank->buffer_bytes = (bytes + 4095) / 4096 * 4096;
    if (is_registered(rank)) {
        void *memory[2] = {NULL, NULL};

        for (int i = 0; i < 2; i++)
            if (hkt_mem_alloc(&memory[i], rank->buffer_bytes, rank->comm) < 0)
                hkt_tool_say("perf", "rank %d: %s", rank->rank, hkt_last_error());
        rank->send = memory[0];
        rank->recv = memory[1];
    } else {
        rank->send = aligned_alloc(4096, rank->buffer_bytes);
        rank->recv = aligned_alloc(4096, rank->buffer_bytes);
    }
    rank->times = calloc((size_t)rank->options->iters, sizeof(double));
    rank->counts = calloc(n * 4, sizeof(size_t));
    rank->inputs = calloc(n + 1, (size_t)PERF_PATTERN * 8);
    if (rank->send == NULL || rank->recv == NULL || rank->times == NULL || rank->counts == NULL || rank->inputs == NULL)
        return false;
    rank->displs = rank->counts + n;
    rank->peer_counts = rank->displs + n;
    rank->peer_displs = rank->peer_counts + n;
    rank->expected = rank->inputs + n * PERF_PATTERN * 8;
    memset(rank->send, 0, rank->buffer_bytes);
    memset(rank->recv, 0, rank->buffer_bytes);
    return !rank->options->on_device || allocate_far(rank);
}

static void release(struct perf_rank *rank)
{
    hkt_stream_destroy(rank->stream);
    /* Registered buffers end with the communicator. */
    if (rank->options->local_register == 0 && (hkt_device_free(rank->far_send) < 0 || hkt_device_free(rank->far_recv) < 0))
        hkt_tool_say("perf", "rank %d: %s", rank->rank, hkt_last_error());
    if (!is_registered(rank)) {
        free(rank->send);
        free(rank->recv);
    }
    free(rank->times);
    free(rank->counts);
    free(rank->inputs);
}

/** Out of place, then in place. Returns false on failure, which it reports. */
static bool run_case(struct perf_rank *rank, struct perf_case *c, struct perf_report *report, int64_t *wrong)
{
    struct perf_result results[2] = {0};

    if (is_v(c->coll))
        perf_make_counts(rank, c);
    perf_make_patterns(rank, c);
    for (int i = 0; i < 1 + has_in_place(c->coll); i++) {
        c->in_place = i == 1;
        const enum hkt_status rc = perf_measure(rank, c, &results[i]);

        if (rc == HKT_ERR_UNSUPPORTED && i == 1) { /* on all ranks; a forced algorithm may need two buffers */
            if (rank->rank == 0 && !rank->has_told)
                hkt_tool_say("perf", "in place is left out: %s", hkt_last_error());
            rank->has_told = true;
            results[1] = (struct perf_result){0};
            break;
        }
        if (rc < 0) {
            hkt_tool_say("perf", "rank %d: %s: %s", rank->rank, hkt_status_name(rc), hkt_last_error());
            return false;
        }
        *wrong += results[i].wrong > 0 ? results[i].wrong : 0;
    }
    perf_report_row(report, c, perf_size_bytes(rank, c), results);
    return true;
}

static bool run_roots(struct perf_rank *rank, struct perf_case *c, struct perf_report *report, int64_t *wrong)
{
    const int root = rank->options->root;
    const bool all = root < 0 && is_rooted(c->coll);

    for (int r = all ? 0 : root < 0 ? 0 : root; r <= (all ? rank->nranks - 1 : root < 0 ? 0 : root); r++) {
        c->root = r;
        if (!run_case(rank, c, report, wrong))
            return false;
    }
    return true;
}

static bool run_size(struct perf_rank *rank, size_t bytes, struct perf_report *report, int64_t *wrong)
{
    const struct perf_options *options = rank->options;

    for (int d = 0; d < HKT_DTYPE_COUNT; d++) {
        for (int o = 0; o < HKT_OP_COUNT; o++) {
            struct perf_case c = {.coll = options->coll, .dtype = (enum hkt_dtype)d, .op = (enum hkt_op)o};

            if (!options->dtypes[d] || !options->ops[o])
                continue;
            /* Of `all`, leave out what is not defined; movement ignores the operation. */
            if (is_reduction(c.coll) && hkt_op_check(c.op, c.dtype) < 0)
                continue;
            if (!is_reduction(c.coll))
                c.op = HKT_SUM;
            c.count = count_of(rank, c.coll, c.dtype, bytes);
            if (!run_roots(rank, &c, report, wrong))
                return false;
            if (!is_reduction(c.coll))
                break;
        }
        if (options->coll == HKT_BARRIER)
            break; /* has no type */
    }
    return true;
}

static bool run_sweep(struct perf_rank *rank, struct perf_report *report, int64_t *wrong)
{
    const struct perf_options *options = rank->options;

    for (size_t bytes = options->bytes_min; bytes <= options->bytes_max;) {
        if (!run_size(rank, bytes, report, wrong))
            return false;
        if (options->coll == HKT_BARRIER)
            break;
        bytes = options->step_factor > 1 && bytes > 0 ? bytes * (size_t)options->step_factor : bytes + options->step_bytes;
    }
    return true;
}

/** One call of a replay, checked and timed on its own; times add up. */
static bool replay_call(struct perf_rank *rank, size_t elems, struct perf_result *sum, int64_t *wrong)
{
    struct perf_case c = {.coll = HKT_ALL_REDUCE, .dtype = HKT_F32, .op = HKT_SUM, .count = elems, .in_place = true};
    struct perf_result result = {0};
    const enum hkt_status rc = perf_measure(rank, &c, &result);

    if (rc < 0) {
        hkt_tool_say("perf", "rank %d: %s: %s", rank->rank, hkt_status_name(rc), hkt_last_error());
        return false;
    }
    sum->time_us += result.time_us;
    sum->wire_bytes += result.wire_bytes;
    sum->p99_us = result.p99_us > sum->p99_us ? result.p99_us : sum->p99_us;
    sum->p50_us += result.p50_us;
    sum->wrong += result.wrong > 0 ? result.wrong : 0;
    *wrong += result.wrong > 0 ? result.wrong : 0;
    return true;
}

/** The gradients of a model in buckets, as DistributedDataParallel fills them: a bucket closes when it has reached its size,
 *  and the first is small, so that communication begins early. What is larger than the buffer is replayed in parts. */
static bool run_replay(struct perf_rank *rank, const struct perf_model *model, struct perf_report *report, int64_t *wrong)
{
    const bool per_tensor = rank->options->per_tensor;
    const size_t most = rank->buffer_bytes / 4;
    struct perf_result sum = {0};
    struct perf_case c = {.coll = HKT_ALL_REDUCE, .dtype = HKT_F32, .op = HKT_SUM};
    size_t bucket = 0, total = 0;
    int calls = 0;
    char what[64];

    perf_make_patterns(rank, &c);
    for (int i = 0; i < model->count; i++) {
        bucket += model->sizes[i];
        if (!per_tensor && i + 1 < model->count && bucket < (calls == 0 ? BUCKET_FIRST_BYTES : BUCKET_BYTES) / 4)
            continue;
        while (bucket > 0) {
            const size_t part = bucket < most ? bucket : most;

            if (!replay_call(rank, part, &sum, wrong))
                return false;
            bucket -= part;
            total += part;
            calls++;
        }
    }
    sum.algbw = (double)total * 4 / (sum.time_us * 1e3);
    sum.busbw = sum.algbw * perf_bus_factor(HKT_ALL_REDUCE, rank->nranks);
    snprintf(what, sizeof what, "%s %s", model->name, per_tensor ? "per tensor" : "25 MB buckets");
    perf_report_replay(report, what, calls, (double)total * 4, &sum);
    return true;
}

/** CPU seconds of all ranks together, and the wall seconds of this one. */
struct cost {
    double cpu[2]; /* user, system */
    double wall;
};

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static struct cost cost_now(void)
{
    struct rusage usage;

    getrusage(RUSAGE_THREAD, &usage);
    return (struct cost){{(double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6,
                          (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6}, now_s()};
}

/** What the measurement cost: tells a rank that waits from one that burns its core. */
static enum hkt_status cost_since(struct perf_rank *rank, const struct cost *start, struct perf_end *out_end)
{
    const struct cost now = cost_now();

    out_end->cpu_s[0] = now.cpu[0] - start->cpu[0];
    out_end->cpu_s[1] = now.cpu[1] - start->cpu[1];
    out_end->wall_s = now.wall - start->wall;
    return hkt_all_reduce(out_end->cpu_s, out_end->cpu_s, 2, HKT_F64, HKT_SUM, rank->side, NULL);
}

/** Rank 0 opens the report; all ranks go on only when it could. */
static bool open_report(struct perf_rank *rank, struct perf_report **out_report)
{
    struct perf_report *report = rank->rank == 0 ? perf_report_open(rank->options, rank) : NULL;
    int32_t is_open = report != NULL;

    *out_report = report;
    const enum hkt_status rc = hkt_broadcast(&is_open, &is_open, 1, HKT_INT32, 0, rank->side, NULL);

    if (rc < 0)
        hkt_tool_say("perf", "rank %d: %s: %s", rank->rank, hkt_status_name(rc), hkt_last_error());
    return rc == HKT_OK && is_open;
}

/** The first collective on a CUDA stream finds out whether the devices reach each other; until then messages go through the
 *  host. */
static enum hkt_status meet_on_devices(struct perf_rank *rank)
{
    const enum hkt_status rc = rank->stream != NULL ? hkt_barrier(rank->comm, rank->stream) : HKT_OK;

    if (rc < 0)
        hkt_tool_say("perf", "rank %d: %s: %s", rank->rank, hkt_status_name(rc), hkt_last_error());
    return rc;
}

static int measure_all(struct perf_rank *rank)
{
    const struct cost start = cost_now();
    struct perf_report *report;
    struct perf_model model = {0};
    struct perf_end end = {0};
    int64_t wrong = 0;
    bool ok;

    if (!allocate(rank)) {
        hkt_tool_say("perf", "rank %d: no memory for two buffers of %zu bytes; lower --maxbytes", rank->rank,
                     rank->options->bytes_max);
        hkt_comm_revoke(rank->side);
        hkt_comm_revoke(rank->comm);
        return TOOL_FAILED;
    }
    if (!open_report(rank, &report))
        return TOOL_FAILED;
    if (meet_on_devices(rank) < 0)
        ok = false;
    else if (rank->options->replay == NULL)
        ok = run_sweep(rank, report, &wrong);
    else
        ok = perf_model_make(rank->options->replay, &model) && run_replay(rank, &model, report, &wrong);
    free(model.sizes);
    end.completed = ok && cost_since(rank, &start, &end) == HKT_OK;
    if (rank->rank == 0 && rank->options->on_device && end.completed)
        printf("# calls ran %s\n", hkt_comm_device(rank->comm)[0] != '\0' ? hkt_comm_device(rank->comm) : "through memory of the host");
    ok = perf_report_close(report, &end) && end.completed;
    return ok && wrong == 0 ? TOOL_OK : TOOL_FAILED;
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    enum hkt_status rc = HKT_OK;

    worker->code = TOOL_FAILED;
    if (worker->rank.comm == NULL)
        rc = hkt_comm_init_rank(&worker->rank.comm, worker->total, &worker->id, worker->index, worker->config);
    if (rc < 0) {
        hkt_tool_say("perf", "rank %d: %s: %s", worker->index, hkt_status_name(rc), hkt_last_error());
        return NULL;
    }
    struct perf_rank *rank = &worker->rank;
    struct hkt_config side = *worker->config;

    side.algo = "";
    rank->rank = hkt_comm_rank(rank->comm);
    rank->nranks = hkt_comm_size(rank->comm);
    rc = hkt_comm_split(rank->comm, 0, rank->rank, &side, &rank->side);
    if (rc < 0) {
        hkt_tool_say("perf", "rank %d: %s: %s", rank->rank, hkt_status_name(rc), hkt_last_error());
    } else {
        worker->code = measure_all(rank);
        release(rank);
    }
    if (hkt_comm_destroy(rank->side) < 0)
        worker->code = TOOL_FAILED;
    if (hkt_comm_destroy(rank->comm) < 0)
        worker->code = TOOL_FAILED;
    return NULL;
}

/** Several ranks per process: the process's communicator only spreads the unique id of the real one. */
static int run_threads(struct hkt_comm *processes, const struct perf_options *options, const struct hkt_config *config)
{
    struct worker *workers = calloc((size_t)options->threads, sizeof *workers);
    struct hkt_unique_id id;
    enum hkt_status rc = HKT_OK;
    int code = TOOL_OK, started = 0;

    if (workers == NULL)
        return TOOL_FAILED;
    if (hkt_comm_rank(processes) == 0)
        rc = hkt_get_unique_id(&id);
    if (rc == HKT_OK)
        rc = hkt_broadcast(&id, &id, sizeof id, HKT_UINT8, 0, processes, NULL);
    for (; started < options->threads && rc == HKT_OK; started++) {
        workers[started] = (struct worker){.rank = {.options = options}, .id = id, .config = config,
                                           .index = hkt_comm_rank(processes) * options->threads + started,
                                           .total = hkt_comm_size(processes) * options->threads};
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0) {
            hkt_tool_say("perf", "cannot start thread %d of %d (ulimit -u)", started + 1, options->threads);
            code = TOOL_FAILED;
            break;
        }
    }
    if (rc < 0) {
        hkt_tool_say("perf", "%s: %s", hkt_status_name(rc), hkt_last_error());
        code = TOOL_FAILED;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
        code = workers[i].code > code ? workers[i].code : code;
    }
    free(workers);
    return code;
}

/** "ring" names the algorithm of the measured collective; lists pass through. */
static const char *algo_setting(const struct perf_options *options, char *text, size_t bytes)
{
    if (options->algo == NULL || strchr(options->algo, '=') != NULL)
        return options->algo;
    snprintf(text, bytes, "%s=%s", hkt_coll_name(options->coll), options->algo);
    return text;
}

/** What can be refused before ranks meet; room for a replay. */
static int check_options(struct perf_options *options)
{
    struct perf_model model;

    if (options->replay != NULL) {
        if (!perf_model_make(options->replay, &model))
            return hkt_tool_usage("perf", "--replay knows %s, not \"%s\"", perf_model_names(), options->replay);
        size_t largest = 0;

        for (int i = 0; i < model.count; i++)
            largest = model.sizes[i] * 4 > largest ? model.sizes[i] * 4 : largest;
        largest += BUCKET_BYTES; /* a bucket that it closes */
        largest = largest < REPLAY_BYTES ? largest : REPLAY_BYTES;
        options->bytes_max = largest > options->bytes_max ? largest : options->bytes_max;
        free(model.sizes);
    }
    if (!is_reduction(options->coll))
        return TOOL_OK;
    for (int d = 0; d < HKT_DTYPE_COUNT; d++)
        for (int o = 0; o < HKT_OP_COUNT; o++)
            if (options->dtypes[d] && options->ops[o] && hkt_op_check((enum hkt_op)o, (enum hkt_dtype)d) == HKT_OK)
                return TOOL_OK;
    return hkt_tool_usage("perf", "the operation is not defined on this type: %s", hkt_last_error());
}

int hkt_tool_perf(int argc, char **argv)
{
    struct perf_options options;
    struct hkt_config config = HKT_CONFIG_INIT;
    char algo[128];
    int code;

    if (perf_parse(argc, argv, &options, &code))
        return code;
    if (check_options(&options) != TOOL_OK)
        return TOOL_USAGE;
    int ndevices;

    if (options.on_device && hkt_device_count(&ndevices) < 0) { /* before communicators, which then know of devices */
        hkt_tool_say("perf", "%s", hkt_last_error());
        return TOOL_FAILED;
    }
    config.algo = algo_setting(&options, algo, sizeof algo);
    config.transport = options.transport;
    struct hkt_comm *comm;
    const enum hkt_status rc = hkt_comm_init_env(&comm, &config);

    if (rc < 0) {
        hkt_tool_say("perf", "%s: %s", hkt_status_name(rc), hkt_last_error());
        return TOOL_FAILED;
    }
    const int nranks = hkt_comm_size(comm) * options.threads;

    if (options.root >= nranks) {
        code = hkt_tool_usage("perf", "root %d is not a rank: there are ranks 0..%d", options.root, nranks - 1);
        hkt_comm_destroy(comm);
        return code;
    }
    if (options.threads > 1) {
        code = run_threads(comm, &options, &config);
        hkt_comm_destroy(comm);
        return code;
    }
    struct worker worker = {.rank = {.options = &options, .comm = comm}, .config = &config};

    work(&worker);
    return worker.code;
}
