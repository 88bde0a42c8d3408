/* What could break: over all ranks an element is counted twice (a layer norm once per tensor-parallel rank, the tied
 * embedding on both stages, a replica) or never (the short last shard, a padded vocabulary); two ranks that share
 * state update it in different places; a fused tensor is cut by raw rows instead of heads; what is local maps to
 * another global element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/ownership.h"

enum { HEADS = 12, KV_HEADS = 4, EXPERTS = 5, PARAMS_MAX = 40, LAYERS = 3 };

static void add(struct hkt__param *params, int *n, struct hkt__param param)
{
    assert_true(*n < PARAMS_MAX);
    params[(*n)++] = param;
}

/* A model of every kind of tensor, with sizes that divide by nothing; the embedding is tied when there is more than a
 * stage. */
static int make_params(struct hkt__param *params, int pp, bool fused)
{
    int n = 0;

    add(params, &n, (struct hkt__param){ "embedding", 2, { 101, 7 }, HKT__CUT_VOCAB, 0, 0, pp - 1, 0, -1 });
    for (int layer = 0; layer < LAYERS; layer++) {
        const int stage = layer * pp / LAYERS;

        add(params, &n, (struct hkt__param){ "norm", 1, { 7 }, HKT__CUT_NONE, 0, stage, -1, 1 + layer, -1 });
        if (fused) {
            add(params, &n,
                (struct hkt__param){
                    "qkv", 2, { 7, 3 * (HEADS + 2 * KV_HEADS) }, HKT__CUT_QKV, 1, stage, -1, 1 + layer, -1 });
        } else {
            add(params, &n, (struct hkt__param){ "q", 2, { 3 * HEADS, 7 }, HKT__CUT_Q, 0, stage, -1, 1 + layer, -1 });
            add(params, &n,
                (struct hkt__param){ "kv", 3, { 2, 3 * KV_HEADS, 7 }, HKT__CUT_KV, 1, stage, -1, 1 + layer, -1 });
        }
        add(params, &n, (struct hkt__param){ "out", 2, { 3 * HEADS, 7 }, HKT__CUT_Q, 0, stage, -1, 1 + layer, -1 });
        add(params, &n, (struct hkt__param){ "router", 2, { 7, EXPERTS }, HKT__CUT_NONE, 0, stage, -1, 1 + layer, -1 });
        for (int expert = 0; layer == 1 && expert < EXPERTS; expert++) {
            add(params, &n,
                (struct hkt__param){ "up", 2, { 7, 2 * 13 }, HKT__CUT_GATE_UP, 1, stage, -1, 1 + layer, expert });
            add(params, &n,
                (struct hkt__param){ "down", 2, { 13, 7 }, HKT__CUT_EVEN, 0, stage, -1, 1 + layer, expert });
        }
        add(params, &n,
            (struct hkt__param){ "bias", 1, { 2 }, HKT__CUT_EVEN, 0, stage, -1, 1 + layer, -1 }); /* shorter than tp */
    }
    return n;
}

static int64_t elements(const struct hkt__param *param)
{
    int64_t count = 1;

    for (int i = 0; i < param->ndims; i++)
        count *= param->shape[i];
    return count;
}

static struct hkt__own *own_of(const struct hkt__own_opts *opts)
{
    struct hkt__own *own = NULL;

    if (hkt__own_create(opts, &own) != HKT_OK)
        fail_msg("%s", hkt_parallel_last_error());
    return own;
}

/* What a rank counts, added to times[param][element]. The runs of the rank are checked against its flat buffer. */
static void count_owned(const struct hkt__own *own, unsigned char *const *times)
{
    struct hkt__own_cursor cursor = { 0 };
    struct hkt__run run;
    int64_t before = -1;
    int flat = 0;

    while (hkt__own_next(own, true, &cursor, &run)) {
        const struct hkt_range shard = hkt_flat_shard(own->flat[run.flat], run.bucket, own->shard[run.flat]);

        before = run.flat == flat ? before : -1;
        flat = run.flat;
        assert_true(run.count > 0 && run.flat_first > before);
        assert_true(run.flat_first >= shard.first && run.flat_first + run.count <= shard.first + shard.count);
        assert_int_equal(run.flat_first - own->flat[run.flat]->first[run.param], run.local_first);
        assert_int_equal(run.flat, hkt__own_flat(&own->params[run.param]));
        before = run.flat_first + run.count - 1;
        for (int64_t i = 0; i < run.count; i++)
            times[run.param][run.global_first + i]++;
    }
}

/* Elements that a rank updates, counted or not, cover every local element exactly once over the group it shards with. */
static void add_updated(const struct hkt__own *own, int64_t *totals)
{
    struct hkt__own_cursor cursor = { 0 };
    struct hkt__run run;

    while (hkt__own_next(own, false, &cursor, &run))
        totals[run.param] += run.count;
}

static void check_mesh(const char *layout, int nranks, struct hkt__own_opts opts)
{
    struct hkt__param params[PARAMS_MAX];
    unsigned char *times[PARAMS_MAX];
    int64_t updated[PARAMS_MAX] = { 0 }, held[PARAMS_MAX] = { 0 };
    struct hkt_mesh *mesh = NULL;

    assert_int_equal(hkt_mesh_create(layout, nranks, &mesh), HKT_OK);
    const bool kv_copies = hkt_mesh_size(mesh, "tp") > KV_HEADS;

    opts.mesh = mesh;
    opts.params = params;
    opts.nparams = make_params(params, hkt_mesh_size(mesh, "pp"), !kv_copies);
    opts.heads = HEADS;
    opts.kv_heads = KV_HEADS;
    opts.experts = EXPERTS;
    for (int i = 0; i < opts.nparams; i++)
        times[i] = calloc((size_t)elements(&params[i]), 1);
    for (opts.rank = 0; opts.rank < nranks; opts.rank++) {
        struct hkt__own *own = own_of(&opts);

        count_owned(own, times);
        add_updated(own, updated);
        for (int i = 0; i < opts.nparams; i++) /* per rank, its share of what the ranks that shard with it hold */
            held[i] += own->held[i].local_count * 1000 / own->flat[hkt__own_flat(&params[i])]->shards;
        hkt__own_destroy(own);
    }
    for (int i = 0; i < opts.nparams; i++) {
        for (int64_t e = 0; e < elements(&params[i]); e++)
            if (times[i][e] != 1)
                fail_msg("%s, buckets of %lld: element %lld of tensor %d (%s) is counted %d times", layout,
                         (long long)opts.bucket_elems, (long long)e, i, params[i].name, times[i][e]);
        assert_true(llabs(updated[i] * 1000 - held[i]) < 1000);
        free(times[i]);
    }
    hkt_mesh_destroy(mesh);
}

static void every_element_is_counted_once(void **state)
{
    static const struct {
        const char *layout;
        int nranks;
        const char *shard_axis, *expert_shard_axis;
    } cases[] = {
        { "dp:1", 1, NULL, NULL },
        { "dp:3", 3, NULL, NULL },
        { "tp:4", 4, NULL, NULL },
        { "tp:12", 12, NULL, NULL }, /* each kv head on three ranks */
        { "pp:3", 3, NULL, NULL },
        { "tp:2 dp:5", 10, NULL, NULL },
        { "dp:2 tp:4 pp:2", 16, NULL, NULL },
        { "pp:2 dp:4=ep:2*edp:2 tp:2", 16, NULL, NULL },
        { "dp:6=ep:3*edp:2=inner:2*outer:3 pp:3", 18, "inner", NULL },
        { "dp:4=inner:2*outer:2 tp:1", 4, "inner", NULL },
        { "dp:4=inner:2*outer:2 tp:1", 4, "outer", NULL },
        { "dp:4=ep:4*edp:1", 4, NULL, NULL },
        { "tp:2 dp:4=ep:2*edp:2", 8, NULL, "edp" },
        { "dp:8=ep:8*edp:1", 8, NULL, NULL }, /* ranks without an expert */
        { "tp:12 dp:2 pp:2", 48, NULL, NULL },
        { "cp:2 dp:2 tp:2", 8, NULL, NULL }, /* an axis the map does not know: replicas */
    };
    static const int64_t buckets[] = { 0, 1, 64, 1000 }, aligns[] = { 1, 16 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int b = 0; b < 4; b++)
            for (int a = 0; a < 4; a++)
                check_mesh(cases[i].layout, cases[i].nranks,
                           (struct hkt__own_opts){ .shard_axis = cases[i].shard_axis,
                                                   .expert_shard_axis = cases[i].expert_shard_axis,
                                                   .bucket_elems = buckets[b],
                                                   .align = aligns[a % 2],
                                                   .unit_buckets = a / 2,
                                                   .vocab_multiple = a % 2 == 0 ? 0 : 8 });
}

static void a_fused_tensor_is_cut_by_heads(void **state)
{
    /* 4 heads and 2 kv heads of 2: q is columns 0-7, k 8-11, v 12-15 of 3 rows. The second of two ranks has heads 2,
     * 3 and kv head 1. */
    static const int64_t want[] = { 4, 5, 6, 7, 10, 11, 14, 15 };
    const struct hkt__param param = { "qkv", 2, { 3, 16 }, HKT__CUT_QKV, 1, 0, -1, 0, -1 };
    struct hkt_mesh *mesh = NULL;

    (void)state;
    assert_int_equal(hkt_mesh_create("tp:2", 2, &mesh), HKT_OK);
    struct hkt__own *own = own_of(
        &(struct hkt__own_opts){ .mesh = mesh, .rank = 1, .params = &param, .nparams = 1, .heads = 4, .kv_heads = 2 });
    const struct hkt__held *held = &own->held[0];

    assert_int_equal(held->local_count, 24);
    assert_int_equal(held->local_shape[0], 3);
    assert_int_equal(held->local_shape[1], 8);
    for (int64_t row = 0; row < 3; row++)
        for (int64_t column = 0; column < 8; column++) {
            int64_t run;

            assert_int_equal(hkt__held_global(&param, held, row * 8 + column, &run), row * 16 + want[column]);
            assert_int_equal(run, column < 4 ? 4 - column : column % 2 == 0 ? 2 : 1);
        }
    hkt__own_destroy(own);
    hkt_mesh_destroy(mesh);
}

static void who_counts(void **state)
{
    struct hkt__param params[PARAMS_MAX];
    struct hkt_mesh *mesh = NULL;

    (void)state;
    assert_int_equal(hkt_mesh_create("tp:2 pp:2 dp:2", 8, &mesh), HKT_OK);
    struct hkt__own_opts opts = { .mesh = mesh,
                                  .params = params,
                                  .nparams = make_params(params, 2, true),
                                  .heads = HEADS,
                                  .kv_heads = KV_HEADS,
                                  .experts = EXPERTS };

    for (opts.rank = 0; opts.rank < 8; opts.rank++) {
        const int tp = opts.rank % 2, pp = opts.rank / 2 % 2;
        struct hkt__own *own = own_of(&opts);

        assert_true(own->held[0].holds); /* the tied embedding is held by both stages, counted by the first */
        assert_int_equal(own->held[0].counts, pp == 0);
        assert_int_equal(own->held[0].local_count, (tp == 0 ? 51 : 50) * 7);
        assert_int_equal(own->held[1].holds,
                         pp == 0); /* a norm of stage 0: one of the tensor-parallel ranks counts it */
        assert_int_equal(own->held[1].counts, pp == 0 && tp == 0);
        hkt__own_destroy(own);
    }
    hkt_mesh_destroy(mesh);
}

static void refuse(const char *layout, int nranks, struct hkt__param param, struct hkt__own_opts opts, const char *part)
{
    struct hkt_mesh *mesh = NULL;
    struct hkt__own *own = NULL;

    assert_int_equal(hkt_mesh_create(layout, nranks, &mesh), HKT_OK);
    opts.mesh = mesh;
    opts.params = &param;
    opts.nparams = 1;
    opts.heads = opts.heads > 0 ? opts.heads : 4;
    opts.kv_heads = opts.kv_heads > 0 ? opts.kv_heads : 2;
    opts.experts = 4;
    assert_int_not_equal(hkt__own_create(&opts, &own), HKT_OK);
    if (strstr(hkt_parallel_last_error(), part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, hkt_parallel_last_error());
    assert_null(own);
    hkt_mesh_destroy(mesh);
}

static void impossible_maps(void **state)
{
    const struct hkt__own_opts none = { 0 };
    const struct hkt__param whole = { "w", 1, { 8 }, HKT__CUT_NONE, 0, 0, -1, 0, -1 };
    struct hkt__param param = whole;

    (void)state;
    refuse("tp:2 dp:2", 4, whole, (struct hkt__own_opts){ .shard_axis = "tp" },
           "\"tp\" is neither dp nor a part of it");
    refuse("tp:2 dp:2", 4, whole, (struct hkt__own_opts){ .shard_axis = "inner" }, "\"inner\" is neither dp");
    refuse("dp:4=ep:2*edp:2", 4, whole, (struct hkt__own_opts){ .expert_shard_axis = "dp" }, "ep and dp overlap");
    param.stage = 1;
    refuse("dp:2", 2, param, none, "tensor w: stage 1 (tied: -1) of 1");
    param = whole;
    param.expert = 4;
    refuse("dp:2", 2, param, none, "expert 4 of 4");
    param = whole;
    param.cut_dim = 1;
    refuse("dp:2", 2, param, none, "impossible");
    param = whole;
    param.cut = HKT__CUT_GATE_UP;
    param.shape[0] = 9;
    refuse("tp:2", 2, param, none, "9 is odd");
    param.cut = HKT__CUT_Q;
    refuse("tp:2", 2, param, none, "9 does not divide by its 4 heads");
    refuse("tp:3", 3, param, none, "4 heads do not divide by tp 3");
    param.shape[0] = 8;
    param.cut = HKT__CUT_QKV;
    refuse("tp:4", 4, param, none, "keep q apart from k and v");
}

static void no_memory_is_an_error(void **state)
{
    const struct hkt__param param = { "w", 1, { 8 }, HKT__CUT_NONE, 0, 0, -1, 0, -1 };
    struct hkt__own *own = NULL;
    struct hkt_mesh *mesh = NULL;
    int64_t k = 0;
    enum hkt_status status;

    (void)state;
    assert_int_equal(hkt_mesh_create("dp:2", 2, &mesh), HKT_OK);
    do {
        hkt__parallel_alloc_fail_at(++k);
        status = hkt__own_create(&(struct hkt__own_opts){ .mesh = mesh, .params = &param, .nparams = 1 }, &own);
        assert_true(status == HKT_ERR_NOMEM || status == HKT_OK);
    } while (status != HKT_OK);
    hkt__parallel_alloc_fail_at(0);
    assert_in_range(k, 9, 20);
    hkt__own_destroy(own);
    hkt__own_destroy(NULL);
    hkt_mesh_destroy(mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_counted_once),
        cmocka_unit_test(a_fused_tensor_is_cut_by_heads),
        cmocka_unit_test(who_counts),
        cmocka_unit_test(impossible_maps),
        cmocka_unit_test(no_memory_is_an_error),
    };

    return cmocka_run_group_tests_name("ownership", tests, NULL, NULL);
}
