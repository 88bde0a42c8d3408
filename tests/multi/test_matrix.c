/* What could break: a wrong element, a byte outside the result touched, an input changed, a hang, for some collective,
 * algorithm, type, operation, root, count, placement, number of ranks, transport or setting. Every combination of
 * collective x algorithm x type x operation x placement runs at small counts; at counts of several slices and frames each
 * type with one operation and each operation with one type. All comparisons are exact (support/exact.h). What an algorithm
 * cannot do is skipped with the library's own reason, and only where the registry says so.
 *
 * Usage: test_matrix TRANSPORT [MIN [MAX]], the numbers of ranks, or test_matrix settings (small slices, lanes, CRC,
 * few slots, ...; a reduced set each) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "ranks.h"

enum { ALGOS_MAX = 20, OPS = HKT_OP_COUNT + 2, OP_PREMULSUM = HKT_OP_COUNT, OP_CALLBACK };
enum { TIMEOUT_MS = 120000 }; /* a hang says where it hangs */
enum { COUNT_CALLS, COUNT_WRONG, COUNT_SKIPS, COUNT_ELEMENTS };

/** How much of the matrix: all, or few types and operations. */
enum depth { DEPTH_FULL, DEPTH_REDUCED };

struct pass {
    const char *transport;
    enum ranks_kind kind;
    int nranks;
    enum depth depth;
    const char *const *settings;
};

/** One rank's state. Column k runs the k-th algorithm of each collective; the last column the library's choice. */
struct matrix {
    struct ranks_rank *rank;
    const struct pass *pass;
    int columns;
    struct hkt_comm *comms[ALGOS_MAX];
    struct hkt_algo_info algos[HKT_COLL_COUNT][ALGOS_MAX];
    int algo_counts[HKT_COLL_COUNT];
    bool skips[HKT_COLL_COUNT][ALGOS_MAX][2];      /* by placement */
    enum hkt_op premulsums[ALGOS_MAX][HKT_DTYPE_COUNT], callbacks[ALGOS_MAX];
    _Atomic uint64_t callback_elements;
    struct calls calls;
    int64_t ncalls, nwrong, nelements;
};

static const char *algo_name(const struct matrix *m, enum hkt_coll coll, int column)
{
    return column < m->algo_counts[coll] ? m->algos[coll][column].name : "(chosen)";
}

/** The last column is everybody's; others have an algorithm or nothing to do. */
static bool has_column(const struct matrix *m, enum hkt_coll coll, int column)
{
    return column == m->columns - 1 || column < m->algo_counts[coll];
}

/* ---- the columns ---- */

static void find_algos(struct matrix *m)
{
    for (int i = 0; i < hkt_algo_count(); i++) {
        struct hkt_algo_info info;

        ranks_require_ok(m->rank, hkt_algo_get(i, &info), "hkt_algo_get");
        ranks_require(m->rank, m->algo_counts[info.coll] < ALGOS_MAX - 1, "more than %d algorithms", ALGOS_MAX - 1);
        m->algos[info.coll][m->algo_counts[info.coll]++] = info;
        if (m->columns < m->algo_counts[info.coll] + 1)
            m->columns = m->algo_counts[info.coll] + 1;
    }
}

static void make_columns(struct matrix *m)
{
    for (int k = 0; k < m->columns; k++) {
        char list[512] = "";
        struct hkt_config config = HKT_CONFIG_INIT;
        size_t used = 0;

        for (int coll = 0; coll < HKT_SEND_RECV && k < m->columns - 1; coll++)
            if (k < m->algo_counts[coll])
                used += (size_t)snprintf(list + used, sizeof list - used, "%s%s=%s", used > 0 ? "," : "",
                                         hkt_coll_name((enum hkt_coll)coll), m->algos[coll][k].name);
        config.algo = list;
        config.timeout_ms = TIMEOUT_MS;
        ranks_require_ok(m->rank, hkt_comm_split(m->rank->comm, 0, m->rank->rank, &config, &m->comms[k]), list);
        for (int dtype = 0; dtype < HKT_DTYPE_COUNT; dtype++) {
            unsigned char scalar[8];

            exact_scalar((enum hkt_dtype)dtype, scalar);
            if (hkt_op_check(HKT_SUM, (enum hkt_dtype)dtype) == HKT_OK)
                ranks_require_ok(m->rank, hkt_op_create_premulsum(&m->premulsums[k][dtype], scalar,
                                                                  (enum hkt_dtype)dtype, m->comms[k]), "premulsum");
        }
        ranks_require_ok(m->rank, hkt_op_create_callback(&m->callbacks[k], exact_callback, &m->callback_elements,
                                                         m->comms[k]), "callback");
    }
}

/** The registry's own reasons, and none else, let an algorithm refuse. */
static bool may_refuse(const struct matrix *m, const struct call *call, int column)
{
    if (column >= m->algo_counts[call->coll])
        return false;
    const struct hkt_algo_info *info = &m->algos[call->coll][column];
    const bool is_thread = strcmp(m->pass->transport, "thread") == 0;
    const bool is_memory = is_thread || strcmp(m->pass->transport, "shm") == 0;

    if (m->rank->nranks > 1 && info->needs_direct && !is_memory)
        return true;
    if (m->rank->nranks > 1 && info->needs_direct && !is_thread && strstr(info->restriction, "threads") != NULL)
        return true;
    return hkt_algo_check(call->coll, info->name, m->rank->nranks, call->in_place) == HKT_ERR_UNSUPPORTED;
}

/** Try each algorithm once; those that refuse are skipped from then on. */
static void find_skips(struct matrix *m)
{
    for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
        for (int k = 0; k < m->algo_counts[coll]; k++) {
            for (int in_place = 0; in_place < 2; in_place++) {
                const bool reduces = calls_reduces((enum hkt_coll)coll);
                const struct call call = {.coll = (enum hkt_coll)coll, .dtype = HKT_INT32, .op = HKT_SUM, .count = 4,
                                          .kind = reduces ? EXACT_BUILTIN : EXACT_PLAIN, .in_place = in_place != 0};

                if (coll == HKT_ALL_TO_ALL_V && in_place)
                    continue;
                m->calls.comm = m->comms[k];
                calls_fill(&m->calls, &call);
                const enum hkt_status rc = calls_issue(&m->calls, &call, NULL);

                if (rc == HKT_OK)
                    continue;
                char why[512];

                snprintf(why, sizeof why, "%s", hkt_last_error());
                ranks_require(m->rank, rc == HKT_ERR_UNSUPPORTED && may_refuse(m, &call, k), "%s/%s%s: %s: %s",
                              hkt_coll_name(call.coll), m->algos[coll][k].name, in_place ? " in place" : "",
                              hkt_status_name(rc), why);
                m->skips[coll][k][in_place] = true;
                if (m->rank->rank == 0 && m->pass->depth == DEPTH_FULL)
                    printf("  skip, p=%d: %s\n", m->rank->nranks, why);
            }
        }
    }
}

/* ---- one call ---- */

static void run_call(struct matrix *m, const struct call *call, int column)
{
    char what[256], wrong_text[256];

    m->calls.comm = m->comms[column];
    calls_fill(&m->calls, call);
    const enum hkt_status rc = calls_issue(&m->calls, call, NULL);

    m->ncalls++;
    m->nelements += (int64_t)m->calls.recv_elems;
    if (rc == HKT_OK && calls_check(&m->calls, call, wrong_text, sizeof wrong_text) == 0)
        return;
    calls_print(call, what, sizeof what);
    ranks_require(m->rank, rc == HKT_OK, "%s/%s, p=%d, seed %llu: %s: %s", what, algo_name(m, call->coll, column),
                  m->rank->nranks, (unsigned long long)m->calls.seed, hkt_status_name(rc), hkt_last_error());
    if (m->nwrong++ < 3)
        printf("rank %d: %s/%s, p=%d, seed %llu: %s\n", m->rank->rank, what, algo_name(m, call->coll, column),
               m->rank->nranks, (unsigned long long)m->calls.seed, wrong_text);
}

/** All roots of few ranks, else the first, one within, and the last. */
static bool wants_root(const struct matrix *m, enum hkt_coll coll, int root)
{
    const int n = m->rank->nranks;

    if (!calls_has_root(coll))
        return root == 0;
    return (n <= 4 && m->pass->depth == DEPTH_FULL) || root == 0 || root == n / 2 || root == n - 1;
}

/** Apart, in place, and a rank's own affair where it is one. */
static int placements(enum hkt_coll coll)
{
    return coll == HKT_ALL_TO_ALL_V ? 1 : coll == HKT_ALL_GATHER_V || coll == HKT_REDUCE_SCATTER_V ? 3 : 2;
}

/** All algorithms, roots and placements for one type, operation and count. */
static void run_shapes(struct matrix *m, const struct call *base, int op)
{
    static const size_t offsets[] = {0, 1, 8, 3, 36};
    struct call call = *base;

    for (int k = 0; k < m->columns; k++) {
        if (!has_column(m, call.coll, k))
            continue;
        if (op == OP_PREMULSUM)
            call.op = m->premulsums[k][call.dtype];
        else if (op == OP_CALLBACK)
            call.op = m->callbacks[k];
        for (int place = 0; place < placements(call.coll); place++) {
            call.in_place = place > 0;
            call.is_mixed = place > 1;
            if (k < m->algo_counts[call.coll] && m->skips[call.coll][k][call.in_place])
                continue;
            for (int root = 0; root < m->rank->nranks; root++) {
                if (!wants_root(m, call.coll, root))
                    continue;
                call.root = root;
                call.offset = offsets[(m->ncalls + m->rank->rank) % 5];
                run_call(m, &call, k);
            }
        }
    }
}

/* ---- what is combined ---- */

static bool is_defined(int op, enum hkt_dtype dtype)
{
    if (op == OP_CALLBACK)
        return dtype == HKT_UINT64;
    return hkt_op_check(op == OP_PREMULSUM ? HKT_SUM : (enum hkt_op)op, dtype) == HKT_OK;
}

/** The smaller set: each type with sum (or what it has), each operation with one type of integers and one of floats. Thin:
 * one of each kind of operation, since what types and operations do, kernels do, and they have a test of their own. */
static bool is_in_reduced_set(int op, enum hkt_dtype dtype, bool thin)
{
    if (thin)
        return op == OP_CALLBACK || (op == HKT_SUM && dtype == HKT_F32) || (op == HKT_AVG && dtype == HKT_BF16) ||
               (op == OP_PREMULSUM && dtype == HKT_INT32) || (op == HKT_LXOR && dtype == HKT_BOOL);
    return op == HKT_SUM || op == OP_CALLBACK || (op == HKT_LXOR && dtype == HKT_BOOL) || dtype == HKT_INT32 ||
           (dtype == HKT_BF16 && op < HKT_BAND);
}

static bool moves_in_reduced_set(enum hkt_dtype dtype, bool thin)
{
    if (thin)
        return dtype == HKT_UINT8 || dtype == HKT_INT64;
    return dtype == HKT_UINT8 || dtype == HKT_BF16 || dtype == HKT_F32 || dtype == HKT_INT64;
}

static enum exact_kind kind_of(int op)
{
    return op == OP_PREMULSUM ? EXACT_PREMULSUM : op == OP_CALLBACK ? EXACT_CALLBACK : EXACT_BUILTIN;
}

/** Under the sanitizers, and where ranks are so many that all sets but the thin one would take long. */
static bool is_thin(const struct matrix *m, int nranks_max)
{
    return ranks_small() || m->rank->nranks > nranks_max;
}

static void run_reductions(struct matrix *m, const size_t *counts, int ncounts, bool full)
{
    for (int dtype = 0; dtype < HKT_DTYPE_COUNT; dtype++)
        for (int op = 0; op < OPS; op++) {
            struct call call = {.dtype = (enum hkt_dtype)dtype, .op = (enum hkt_op)op, .kind = kind_of(op)};

            if (!is_defined(op, call.dtype) || (!full && !is_in_reduced_set(op, call.dtype, is_thin(m, 8))))
                continue;
            for (int coll = 0; coll < HKT_SEND_RECV; coll++)
                for (int i = 0; i < ncounts && calls_reduces((enum hkt_coll)coll); i++) {
                    call.coll = (enum hkt_coll)coll;
                    call.count = counts[i];
                    run_shapes(m, &call, op);
                }
        }
}

static void run_movements(struct matrix *m, const size_t *counts, int ncounts, bool full)
{
    for (int dtype = 0; dtype < HKT_DTYPE_COUNT; dtype++)
        for (int coll = 0; coll < HKT_SEND_RECV; coll++)
            for (int i = 0; i < ncounts && !calls_reduces((enum hkt_coll)coll); i++) {
                const struct call call = {.coll = (enum hkt_coll)coll, .dtype = (enum hkt_dtype)dtype, .op = HKT_SUM,
                                          .kind = EXACT_PLAIN, .count = counts[i]};

                if (!full && !moves_in_reduced_set(call.dtype, is_thin(m, 8)))
                    continue;
                if (coll != HKT_BARRIER || (dtype == 0 && i == 0))
                    run_shapes(m, &call, 0);
            }
}

/** Few ranks: everything at every count. More: everything at some counts, the reduced set at all. 7 ranks: that alone, since what types
 * and operations do at a number that is no power of two, they do at 5. */
static void run_small(struct matrix *m, bool full)
{
    static const size_t all[] = {0, 1, 7, 1001}, some[] = {1, 1001}, others[] = {0, 7}, few[] = {0, 1001};

    if (!full) {
        run_reductions(m, few, 2, false);
        run_movements(m, few, 2, false);
    } else if (m->rank->nranks <= 4) {
        run_reductions(m, all, 4, true);
        run_movements(m, all, 4, true);
    } else {
        run_reductions(m, some, 2, m->rank->nranks != 7);
        run_movements(m, some, 2, m->rank->nranks != 7);
        run_reductions(m, others, 2, false);
        run_movements(m, others, 2, false);
    }
}

/** Elements of a call of blocks of about `bytes`. A vector cut in up to p chunks gets as many blocks. */
static size_t large_count(const struct matrix *m, const struct call *call, size_t bytes)
{
    const size_t count = bytes / hkt_dtype_size(call->dtype) + 1;
    const bool is_vector = call->coll == HKT_ALL_REDUCE || call->coll == HKT_REDUCE || call->coll == HKT_BROADCAST;

    return is_vector ? count * (size_t)m->rank->nranks : count;
}

/** Several slices (64 KiB) and frames (32 KiB) of few ranks, frames of more; nothing divides: the reduced set, of more than
 * 4 ranks the thin one. */
static void run_large(struct matrix *m, size_t bytes)
{
    const bool thin = is_thin(m, 4);

    for (int dtype = 0; dtype < HKT_DTYPE_COUNT; dtype++)
        for (int op = 0; op < OPS; op++)
            for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
                struct call call = {.coll = (enum hkt_coll)coll, .dtype = (enum hkt_dtype)dtype, .op = (enum hkt_op)op,
                                    .kind = kind_of(op)};

                if (!calls_reduces(call.coll)) {
                    call.kind = EXACT_PLAIN;
                    if (op != HKT_SUM || !moves_in_reduced_set(call.dtype, thin) || coll == HKT_BARRIER)
                        continue;
                } else if (!is_defined(op, call.dtype) || !is_in_reduced_set(op, call.dtype, thin)) {
                    continue;
                }
                call.count = large_count(m, &call, bytes);
                run_shapes(m, &call, op);
            }
}

static void run_matrix(struct ranks_rank *rank)
{
    const struct pass *pass = rank->arg;
    struct matrix *m = calloc(1, sizeof *m);
    const bool full = pass->depth == DEPTH_FULL && !ranks_small();
    const size_t large = !full ? 9000 : rank->nranks <= 4 ? 70000 : 36000; /* more than a slice, than a frame */
    const struct call largest = {.coll = HKT_ALL_TO_ALL_V, .dtype = HKT_INT64, .count = large / 8 + 1001};

    ranks_require(rank, m != NULL, "no memory");
    m->rank = rank;
    m->pass = pass;
    ranks_require(rank, rank->nranks == 1 || strcmp(hkt_comm_transport(rank->comm, (rank->rank + 1) % rank->nranks),
                                                    pass->transport) == 0, "the transport is not %s", pass->transport);
    ranks_require(rank, calls_init(&m->calls, rank->comm, calls_room(&largest, rank->nranks)), "no memory");
    m->calls.seed = 1000u + (unsigned)rank->nranks;
    find_algos(m);
    m->columns = m->columns > 0 ? m->columns : 1;
    make_columns(m);
    find_skips(m);
    run_small(m, full);
    run_large(m, large);
    ranks_require(rank, rank->nranks == 1 || m->callback_elements > 0, "no callback was called");
    atomic_fetch_add(&rank->shared->counters[COUNT_WRONG], m->nwrong);
    atomic_fetch_add(&rank->shared->counters[COUNT_ELEMENTS], m->nelements);
    if (rank->rank == 0) {
        atomic_store(&rank->shared->counters[COUNT_CALLS], m->ncalls);
        for (int i = 0; i < HKT_COLL_COUNT * ALGOS_MAX * 2; i++)
            atomic_fetch_add(&rank->shared->counters[COUNT_SKIPS], (&m->skips[0][0][0])[i]);
    }
    for (int k = 0; k < m->columns; k++)
        ranks_require_ok(rank, hkt_comm_destroy(m->comms[k]), "hkt_comm_destroy");
    calls_fini(&m->calls);
    free(m);
}

/* ---- passes ---- */

static void run_pass(const struct pass *pass, int64_t totals[RANKS_COUNTERS])
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = pass->kind, .nranks = pass->nranks, .config = &config, .deadline_s = 600,
                                  .settings = pass->settings, .fn = run_matrix, .arg = (void *)(uintptr_t)pass,
                                  /* memory of devices stays while another process has it open */
                                  .leaves_descriptors = strcmp(pass->transport, "cuda_p2p") == 0};
    struct ranks_shared *shared;
    static char text[RANKS_TEXT_MAX];
    const int64_t begin_ms = ranks_now_ms();

    config.transport = pass->transport;
    config.timeout_ms = TIMEOUT_MS;
    const bool ok = ranks_try(&job, &shared);
    const int64_t wrong = atomic_load(&shared->counters[COUNT_WRONG]);

    snprintf(text, sizeof text, "%s", shared->text);
    printf("%s, %d %s%s%s: %lld calls, %lld elements, %lld wrong, %lld skipped, %.1f s\n", pass->transport, pass->nranks,
           pass->kind == RANKS_THREADS ? "threads" : "processes", pass->settings != NULL ? ", " : "",
           pass->settings != NULL ? pass->settings[0] : "", (long long)shared->counters[COUNT_CALLS],
           (long long)shared->counters[COUNT_ELEMENTS], (long long)wrong, (long long)shared->counters[COUNT_SKIPS],
           (double)(ranks_now_ms() - begin_ms) / 1e3);
    for (int i = 0; i < RANKS_COUNTERS; i++)
        totals[i] += shared->counters[i];
    ranks_release(shared);
    if (!ok)
        fail_msg("%s, %d ranks: %s", pass->transport, pass->nranks, text);
}

static const char *transport_wanted;
static int ranks_min = 1, ranks_max = RANKS_MAX;

static void every_combination_is_exact(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8}, few_sizes[] = {2, 3, 5};
    /* Other programs may want the cores: who spins then, spins in vain. */
    static const char *const patient[] = {"HOCKET_SPIN=100", NULL};
    const bool is_thread = strcmp(transport_wanted, "thread") == 0;
    const int count = !ranks_small() ? 7 : is_thread ? 3 : 2; /* sanitizers see one process */
    int64_t totals[RANKS_COUNTERS] = {0};
    const int64_t begin_ms = ranks_now_ms();

    (void)state;
    for (int i = 0; i < count; i++) {
        const int nranks = ranks_small() ? few_sizes[i] : sizes[i];
        const struct pass pass = {.transport = transport_wanted, .kind = is_thread ? RANKS_THREADS : RANKS_PROCESSES,
                                  .nranks = nranks, .depth = DEPTH_FULL, .settings = nranks <= 2 ? patient : NULL};

        if (nranks >= ranks_min && nranks <= ranks_max)
            run_pass(&pass, totals);
    }
    printf("%s: %lld calls, %lld elements checked, %lld wrong, %lld skipped with a reason, %.1f s\n", transport_wanted,
           (long long)totals[COUNT_CALLS], (long long)totals[COUNT_ELEMENTS], (long long)totals[COUNT_WRONG],
           (long long)totals[COUNT_SKIPS], (double)(ranks_now_ms() - begin_ms) / 1e3);
    assert_int_equal(totals[COUNT_WRONG], 0);
    assert_true(totals[COUNT_CALLS] > 0);
}

static void every_setting_is_exact(void **state)
{
#define SETTINGS(...) (const char *const[]){__VA_ARGS__, NULL}
    const struct pass passes[] = {
        {"thread", RANKS_THREADS, 3, DEPTH_REDUCED, SETTINGS("HOCKET_SLICE_BYTES=256")},
        {"shm", RANKS_PROCESSES, 4, DEPTH_REDUCED, SETTINGS("HOCKET_SLICE_BYTES=1000")},
        {"tcp", RANKS_PROCESSES, 3, DEPTH_REDUCED, SETTINGS("HOCKET_SLICE_BYTES=777")},
        {"thread", RANKS_THREADS, 4, DEPTH_REDUCED, SETTINGS("HOCKET_LANES=2", "HOCKET_SLICE_BYTES=1K")},
        {"shm", RANKS_PROCESSES, 3, DEPTH_REDUCED, SETTINGS("HOCKET_LANES=4", "HOCKET_SLICE_BYTES=1K")},
        {"tcp", RANKS_PROCESSES, 3, DEPTH_REDUCED, SETTINGS("HOCKET_LANES=2", "HOCKET_SLICE_BYTES=1K")},
        {"thread", RANKS_THREADS, 2, DEPTH_REDUCED, SETTINGS("HOCKET_CRC=1")},
        {"shm", RANKS_PROCESSES, 3, DEPTH_REDUCED, SETTINGS("HOCKET_CRC=1")},
        {"tcp", RANKS_PROCESSES, 3, DEPTH_REDUCED, SETTINGS("HOCKET_CRC=1")},
        {"shm", RANKS_PROCESSES, 3, DEPTH_REDUCED, SETTINGS("HOCKET_SHM_SLOTS=2", "HOCKET_SHM_SLOT_BYTES=1K")},
        {"thread", RANKS_THREADS, 3, DEPTH_REDUCED, SETTINGS("HOCKET_SHM_SLOTS=2", "HOCKET_SHM_SLOT_BYTES=1K")},
        {"thread", RANKS_THREADS, 17, DEPTH_REDUCED, SETTINGS("HOCKET_SPIN=20")}, /* more arguments than a kernel takes */
        {"thread", RANKS_THREADS, 4, DEPTH_REDUCED, SETTINGS("HOCKET_SCRATCH_BYTES=64K")},
        {"shm", RANKS_PROCESSES, 5, DEPTH_REDUCED, SETTINGS("HOCKET_SCRATCH_BYTES=64K", "HOCKET_SHM_SLOTS=2")},
        {"tcp", RANKS_PROCESSES, 3, DEPTH_REDUCED, SETTINGS("HOCKET_TCP_FRAME_BYTES=4K", "HOCKET_TCP_SOCKETS=1")},
        {"tcp", RANKS_PROCESSES, 2, DEPTH_REDUCED, SETTINGS("HOCKET_TCP_SOCKETS=5", "HOCKET_TCP_FRAME_BYTES=5000")},
        {"shm", RANKS_PROCESSES, 2, DEPTH_REDUCED, SETTINGS("HOCKET_SPIN=0", "HOCKET_YIELD=0")},
        {"tcp", RANKS_PROCESSES, 2, DEPTH_REDUCED, SETTINGS("HOCKET_SPIN=0", "HOCKET_YIELD=0")},
        {"thread", RANKS_THREADS, 3, DEPTH_REDUCED, SETTINGS("HOCKET_VERIFY=1", "HOCKET_ISA=c")},
        {"shm", RANKS_THREADS, 3, DEPTH_REDUCED, SETTINGS("HOCKET_RECORDER=16")},
        {"tcp", RANKS_THREADS, 3, DEPTH_REDUCED, SETTINGS("HOCKET_RECORDER=16")},
        {"shm", RANKS_ENV, 3, DEPTH_REDUCED, SETTINGS("HOCKET_DEBUG=")},
    };
#undef SETTINGS
    int64_t totals[RANKS_COUNTERS] = {0};
    const int64_t begin_ms = ranks_now_ms();

    (void)state;
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++)
        if (!ranks_small() || i % 5 == 0)
            run_pass(&passes[i], totals);
    printf("settings: %lld calls, %lld elements checked, %lld wrong, %.1f s\n", (long long)totals[COUNT_CALLS],
           (long long)totals[COUNT_ELEMENTS], (long long)totals[COUNT_WRONG], (double)(ranks_now_ms() - begin_ms) / 1e3);
    assert_int_equal(totals[COUNT_WRONG], 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest matrix[] = {cmocka_unit_test(every_combination_is_exact)};
    const struct CMUnitTest settings[] = {cmocka_unit_test(every_setting_is_exact)};

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: test_matrix TRANSPORT [MIN [MAX]]\n       test_matrix settings\n");
        return 2;
    }
    transport_wanted = argv[1];
    if (argc > 2)
        ranks_min = ranks_max = (int)strtol(argv[2], NULL, 10);
    if (argc > 3)
        ranks_max = (int)strtol(argv[3], NULL, 10);
    if (ranks_small() && ranks_min > 5) {
        printf("the smaller set (HOCKET_TEST_SMALL) has no more than 5 ranks\n");
        return 77;
    }
    if (strcmp(argv[1], "settings") == 0)
        return cmocka_run_group_tests(settings, NULL, NULL);
    return cmocka_run_group_tests(matrix, NULL, NULL);
}
