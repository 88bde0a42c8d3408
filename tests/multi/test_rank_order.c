/* What could break: with HOCKET_DETERMINISTIC=rank_order a reduction rounds differently by algorithm, transport, slice
 * size, number of lanes or placement. Every algorithm of every reducing collective runs on values whose sum depends on
 * the order of addition, and must give, to the bit, what adding in rank order gives here; or be refused, for a reason of
 * its own or because it does not sum in rank order. So all that are not refused agree. Sums, averages, pre-multiplied
 * sums, sums that are rounded once (bf16), and a callback that does not even commute. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exact.h"
#include "ranks.h"

enum { COUNT = 3001, RANKS_TEST_MAX = 5, COUNTER_SERVED = 0, COUNTER_REFUSED };
enum kind { SUM_F32, AVG_F32, PREMULSUM_F32, CALLBACK_F32, SUM_BF16, KINDS };
static const float scalar = 1.1f;

static const enum hkt_coll colls[] = { HKT_ALL_REDUCE, HKT_REDUCE, HKT_REDUCE_SCATTER, HKT_REDUCE_SCATTER_V };
enum { COLLS = sizeof colls / sizeof colls[0] };

/* One rank's state on one communicator. */
struct order {
    struct ranks_rank *rank;
    struct hkt_comm *comm;
    enum hkt_op ops[KINDS];
    unsigned char *in, *out, *want; /* RANKS_TEST_MAX * COUNT elements each */
};

/* ---- values ---- */

static enum hkt_dtype dtype_of(enum kind kind)
{
    return kind == SUM_BF16 ? HKT_BF16 : HKT_F32;
}

static void put(void *to, enum kind kind, size_t at, float value)
{
    const uint16_t bits = kind == SUM_BF16 ? (uint16_t)exact_encode(HKT_BF16, value) : 0;

    if (kind == SUM_BF16)
        memcpy((char *)to + at * sizeof bits, &bits, sizeof bits);
    else
        memcpy((char *)to + at * sizeof value, &value, sizeof value);
}

static float rounded(enum kind kind, float value)
{
    return kind == SUM_BF16 ? (float)exact_decode(HKT_BF16, exact_encode(HKT_BF16, value)) : value;
}

/* Of any sign and of 12 orders of magnitude, so that what is lost in a sum depends on what comes first. */
static float input(enum kind kind, int rank, size_t at)
{
    uint64_t x = ((uint64_t)rank << 40 | at) * UINT64_C(0x9e3779b97f4a7c15) + 1;

    x = (x ^ (x >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 29;
    const float value = (float)(1 + (double)(x >> 40) * 0x1p-24) * (float)(1u << (x & 15)) * (x & 16 ? 1e-6f : 1.0f);
    return rounded(kind, (x & 32) != 0 ? -value : value);
}

static float combine(enum kind kind, float so_far, float next)
{
    return kind == CALLBACK_F32 ? 0.5f * so_far + next : so_far + next;
}

static void callback(void *out, const void *a, const void *b, size_t count, enum hkt_dtype dtype, void *arg)
{
    (void)dtype;
    (void)arg;
    for (size_t i = 0; i < count; i++) {
        float x, y;

        memcpy(&x, (const char *)a + i * sizeof x, sizeof x);
        memcpy(&y, (const char *)b + i * sizeof y, sizeof y);
        put(out, CALLBACK_F32, i, combine(CALLBACK_F32, x, y));
    }
}

static float term(enum kind kind, int rank, size_t at)
{
    return kind == PREMULSUM_F32 ? input(kind, rank, at) * scalar : input(kind, rank, at);
}

/* The result of an element, before it is rounded to its type. */
static float reduced(enum kind kind, int nranks, size_t at)
{
    float sum = term(kind, 0, at);

    for (int rank = 1; rank < nranks; rank++)
        sum = combine(kind, sum, term(kind, rank, at));
    return kind == AVG_F32 ? sum / (float)nranks : sum;
}

/* As another algorithm might have it: from the last rank on, rounded after each addition. */
static float reduced_otherwise(enum kind kind, int nranks, size_t at)
{
    float sum = term(kind, nranks - 1, at);

    for (int rank = nranks - 2; rank >= 0; rank--)
        sum = rounded(kind, combine(kind, sum, term(kind, rank, at)));
    return kind == AVG_F32 ? sum / (float)nranks : sum;
}

static void values_tell_orders_apart(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++)
        for (int nranks = 3; nranks <= RANKS_TEST_MAX; nranks++) {
            int differ = 0;

            for (size_t i = 0; i < COUNT; i++)
                differ += rounded((enum kind)kind, reduced((enum kind)kind, nranks, i)) !=
                          rounded((enum kind)kind, reduced_otherwise((enum kind)kind, nranks, i));
            assert_true(differ > COUNT / 100);
        }
}

/* ---- calls ---- */

/* Elements of a block of the v-variant; uneven, one of them empty. */
static size_t v_count(int rank)
{
    return rank == 1 ? 0 : COUNT / 2 + 13 * (size_t)rank;
}

/* Elements of the input, and which of them are this rank's result. */
static size_t lay_out(enum hkt_coll coll, int nranks, int rank, size_t *out_first, size_t *out_count)
{
    size_t total = 0;

    *out_first = 0;
    *out_count = COUNT;
    if (coll == HKT_ALL_REDUCE || coll == HKT_REDUCE)
        return COUNT;
    for (int r = 0; r < nranks; r++) {
        const size_t count = coll == HKT_REDUCE_SCATTER ? COUNT : v_count(r);

        if (r == rank) {
            *out_first = total;
            *out_count = count;
        }
        total += count;
    }
    return total;
}

static enum hkt_status issue(const struct order *o, enum hkt_coll coll, enum kind kind, int root, void *out)
{
    const enum hkt_dtype dtype = dtype_of(kind);
    size_t counts[RANKS_TEST_MAX];

    for (int r = 0; r < o->rank->nranks; r++)
        counts[r] = v_count(r);
    switch (coll) {
    case HKT_ALL_REDUCE: return hkt_all_reduce(o->in, out, COUNT, dtype, o->ops[kind], o->comm, NULL);
    case HKT_REDUCE: return hkt_reduce(o->in, out, COUNT, dtype, o->ops[kind], root, o->comm, NULL);
    case HKT_REDUCE_SCATTER: return hkt_reduce_scatter(o->in, out, COUNT, dtype, o->ops[kind], o->comm, NULL);
    default: return hkt_reduce_scatter_v(o->in, out, counts, dtype, o->ops[kind], o->comm, NULL);
    }
}

/* One call: OK and right to the bit, or UNSUPPORTED. */
static enum hkt_status run(const struct order *o, enum hkt_coll coll, enum kind kind, int root, bool in_place)
{
    const int nranks = o->rank->nranks, rank = o->rank->rank;
    const size_t elem_bytes = dtype_of(kind) == HKT_BF16 ? 2 : 4;
    size_t first, count;
    const size_t total = lay_out(coll, nranks, rank, &first, &count);
    unsigned char *out = in_place ? o->in + first * elem_bytes : o->out;

    for (size_t i = 0; i < total; i++)
        put(o->in, kind, i, input(kind, rank, i));
    const enum hkt_status rc = issue(o, coll, kind, root, out);

    if (rc != HKT_OK || (coll == HKT_REDUCE && rank != root))
        return rc;
    for (size_t i = 0; i < count; i++)
        put(o->want, kind, i, reduced(kind, nranks, first + i));
    ranks_require(o->rank, memcmp(out, o->want, count * elem_bytes) == 0, "%s, kind %d, root %d%s: other bits",
                  hkt_coll_name(coll), kind, root, in_place ? ", in place" : "");
    return rc;
}

/* All kinds and placements with one algorithm ("": the library's choice). */
static void run_algo(struct order *o, enum hkt_coll coll, const char *algo)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    char list[64] = "";
    int served = 0;

    if (algo[0] != '\0')
        snprintf(list, sizeof list, "%s=%s", hkt_coll_name(coll), algo);
    config.algo = list;
    ranks_require_ok(o->rank, hkt_comm_split(o->rank->comm, 0, o->rank->rank, &config, &o->comm), list);
    ranks_require_ok(o->rank, hkt_op_create_premulsum(&o->ops[PREMULSUM_F32], &scalar, HKT_F32, o->comm), "premulsum");
    ranks_require_ok(o->rank, hkt_op_create_callback(&o->ops[CALLBACK_F32], callback, NULL, o->comm), "callback");
    for (int kind = 0; kind < KINDS; kind++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const enum hkt_status rc = run(o, coll, (enum kind)kind, o->rank->nranks / 2, in_place != 0);

            if (algo[0] != '\0' && strcmp(algo, "ring") == 0)
                ranks_require_text(o->rank, hkt_last_error(), "does not sum in rank order");
            ranks_require(o->rank, rc == HKT_OK || (rc == HKT_ERR_UNSUPPORTED && algo[0] != '\0'), "%s: %s", list,
                          rc == HKT_OK ? "" : hkt_last_error());
            served += rc == HKT_OK;
        }
    atomic_fetch_add(&o->rank->shared->counters[served == 0 ? COUNTER_REFUSED : COUNTER_SERVED], 1);
    ranks_require(o->rank, served == 0 || strcmp(algo, "ring") != 0, "%s was not refused", list);
    ranks_require_ok(o->rank, hkt_comm_destroy(o->comm), "hkt_comm_destroy");
}

static void run_all(struct ranks_rank *rank)
{
    struct order o = { .rank = rank, .ops = { [SUM_F32] = HKT_SUM, [AVG_F32] = HKT_AVG, [SUM_BF16] = HKT_SUM } };

    o.in = malloc(RANKS_TEST_MAX * COUNT * sizeof(float));
    o.out = malloc(RANKS_TEST_MAX * COUNT * sizeof(float));
    o.want = malloc(RANKS_TEST_MAX * COUNT * sizeof(float));
    ranks_require(rank, o.in != NULL && o.out != NULL && o.want != NULL, "no memory");
    for (int c = 0; c < COLLS; c++) {
        run_algo(&o, colls[c], "");
        for (int i = 0; i < hkt_algo_count(); i++) {
            struct hkt_algo_info info;

            ranks_require_ok(rank, hkt_algo_get(i, &info), "hkt_algo_get");
            if (info.coll == colls[c])
                run_algo(&o, colls[c], info.name);
        }
    }
    free(o.in);
    free(o.out);
    free(o.want);
}

static void run_job(const char *transport, int nranks, const char *slice_bytes)
{
    const char *const settings[] = { "HOCKET_DETERMINISTIC=rank_order", slice_bytes, "HOCKET_LANES=2", NULL };
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = { .kind = strcmp(transport, "thread") == 0 ? RANKS_THREADS : RANKS_PROCESSES,
                                   .nranks = nranks, .config = &config, .settings = settings, .fn = run_all };
    const bool is_tcp = strcmp(transport, "tcp") == 0;
    struct ranks_shared *shared;
    static char text[RANKS_TEXT_MAX];

    config.transport = transport;
    const bool ok = ranks_try(&job, &shared);
    const int64_t served = shared->counters[COUNTER_SERVED], refused = shared->counters[COUNTER_REFUSED];

    snprintf(text, sizeof text, "%s", shared->text);
    ranks_release(shared);
    if (!ok)
        fail_msg("%s, %d ranks, %s: %s", transport, nranks, slice_bytes, text);
    printf("%s, %d ranks, %s: %d of the algorithms served, %d refused\n", transport, nranks, slice_bytes,
           (int)served / nranks, (int)refused / nranks);
    /* The choice, and at least one algorithm by name; several where memory is shared. */
    assert_true(served >= nranks * COLLS * (is_tcp ? 2 : 3) && refused >= nranks * COLLS);
}

static void all_algorithms_add_in_rank_order(void **state)
{
    static const char *const transports[] = { "thread", "shm", "tcp" };
    static const char *const slices[] = { "HOCKET_SLICE_BYTES=1000", "HOCKET_SLICE_BYTES=1M" };

    (void)state;
    for (int t = 0; t < 3; t++)
        for (int nranks = 3; nranks <= RANKS_TEST_MAX; nranks += 2)
            for (int s = 0; s < 2; s++)
                if (!ranks_small() || (nranks == 3 && s == 0))
                    run_job(transports[t], nranks, slices[s]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_tell_orders_apart),
        cmocka_unit_test(all_algorithms_add_in_rank_order),
    };

    setvbuf(stdout, NULL, _IOLBF, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
