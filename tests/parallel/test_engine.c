/* What could break: a ZeRO stage, a bucket size, overlap or prefetch changes a bit of the parameters; a gradient is lost,
 * doubled or averaged twice; the norm counts replicas or padding, or misses a shard; clipping is off; a bf16 master loses
 * what its parameter cannot hold; memory or bytes are not what the stages promise. The reference is a plain loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/engine.h"
#include "ranks.h"

enum { NPARAMS = 9, UNITS = 5, MICROS = 2, STEPS = 3, ELEMS_MAX = 4096, ALIGN = 16 };

/* Odd sizes; unit 2 is large, unit 3 has one tensor. */
static const struct hkt__param params[NPARAMS] = {
    { "embedding", 2, { 101, 3 }, HKT__CUT_NONE, 0, 0, -1, 0, -1 },
    { "a.norm", 1, { 7 }, HKT__CUT_NONE, 0, 0, -1, 1, -1 },
    { "a.weight", 2, { 13, 11 }, HKT__CUT_NONE, 0, 0, -1, 1, -1 },
    { "b.norm", 1, { 7 }, HKT__CUT_NONE, 0, 0, -1, 2, -1 },
    { "b.weight", 2, { 50, 19 }, HKT__CUT_NONE, 0, 0, -1, 2, -1 },
    { "b.bias", 1, { 19 }, HKT__CUT_NONE, 0, 0, -1, 2, -1 },
    { "c.weight", 2, { 3, 5 }, HKT__CUT_NONE, 0, 0, -1, 3, -1 },
    { "norm", 1, { 31 }, HKT__CUT_NONE, 0, 0, -1, 4, -1 },
    { "head", 2, { 17, 9 }, HKT__CUT_NONE, 0, 0, -1, 4, -1 },
};

struct setting {
    int zero, prefetch, inner; /* inner: ranks that shard; 0: all */
    int64_t bucket_elems;
    bool overlap, keep_gathered, reduce_every;
    enum hkt__optimizer optimizer;
    enum hkt_dtype dtype;
    double clip;
};

static int64_t elems_of(int param)
{
    const struct hkt__param *p = &params[param];

    return p->ndims == 1 ? p->shape[0] : p->shape[0] * p->shape[1];
}

/* Numbers without a pattern, by place. */
static double noise(int kind, int a, int b, int64_t i)
{
    uint64_t x = (uint64_t)kind * 0x9E3779B97F4A7C15u + (uint64_t)(a * 131 + b) * 0xBF58476D1CE4E5B9u + (uint64_t)i;

    x = (x ^ (x >> 31)) * 0x94D049BB133111EBu;
    x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
    return (double)(int64_t)(x >> 11) / 0x1p52 - 1;
}

static double grad_of(int step, int rank, int micro, int param, int64_t i)
{
    return noise(2 + param, step * 100 + rank, micro, i) * (1 + rank);
}

/* Tokens: other counts on each rank. */
static double tokens_of(int nranks)
{
    double tokens = 0;

    for (int r = 0; r < nranks; r++)
        tokens += 3 + 2 * r;
    return tokens;
}

/* ---- the plain loop ---- */

struct reference {
    const struct hkt__math_ops *ops;
    char param[NPARAMS][ELEMS_MAX * 8], master[NPARAMS][ELEMS_MAX * 8], m[NPARAMS][ELEMS_MAX * 8], v[NPARAMS][ELEMS_MAX * 8];
    char grad[NPARAMS][ELEMS_MAX * 8], one[ELEMS_MAX * 8], sum[ELEMS_MAX * 8];
    double norm[STEPS];
};

/* to += from, in the real type. */
static void add(const struct reference *r, void *to, const void *from, int64_t n)
{
    hkt__math_ops_of(r->ops->real)->add(to, to, from, n);
}

static void fill_real(const struct hkt__math_ops *ops, void *to, int step, int rank, int micro, int param)
{
    double values[ELEMS_MAX];

    for (int64_t i = 0; i < elems_of(param); i++)
        values[i] = grad_of(step, rank, micro, param, i);
    hkt__math_ops_of(ops->real)->from_f64(to, values, elems_of(param));
}

/* One rank's gradient, over its micro-batches in order. */
static void local_grad(struct reference *r, void *to, int step, int rank, int param, int from, int end)
{
    memset(to, 0, ELEMS_MAX * 8);
    for (int micro = from; micro < end; micro++) {
        fill_real(r->ops, r->one, step, rank, micro, param);
        add(r, to, r->one, elems_of(param));
    }
}

static void sum_ranks(struct reference *r, void *to, const struct setting *s, int nranks, int step, int param, int from,
                      int end)
{
    const int inner = s->inner > 0 ? s->inner : nranks;
    static char group[ELEMS_MAX * 8];

    for (int first = 0; first < nranks; first += inner) {
        for (int rank = first; rank < first + inner; rank++) {
            local_grad(r, r->sum, step, rank, param, from, end);
            if (rank == first)
                memcpy(group, r->sum, sizeof group);
            else
                add(r, group, r->sum, elems_of(param));
        }
        if (first == 0)
            memcpy(to, group, sizeof group);
        else
            add(r, to, group, elems_of(param));
    }
}

static void reference_step(struct reference *r, const struct setting *s, int nranks, int step)
{
    struct hkt__exact squares;
    static char part[ELEMS_MAX * 8];

    hkt__exact_clear(&squares);
    for (int p = 0; p < NPARAMS; p++) {
        sum_ranks(r, r->grad[p], s, nranks, step, p, 0, s->reduce_every ? 1 : MICROS);
        for (int micro = 1; s->reduce_every && micro < MICROS; micro++) {
            sum_ranks(r, part, s, nranks, step, p, micro, micro + 1);
            add(r, r->grad[p], part, elems_of(p));
        }
        r->ops->exact_add_squares(&squares, r->grad[p], elems_of(p));
    }
    const double mean = 1 / tokens_of(nranks);

    r->norm[step] = sqrt(hkt__exact_value(&squares)) * mean;
    const double factor = s->clip > 0 && r->norm[step] > s->clip ? s->clip / (r->norm[step] + 1e-6) : 1;

    for (int p = 0; p < NPARAMS; p++) {
        const bool has_master = r->ops->store != r->ops->real;
        const struct hkt__optimizer_range range = { elems_of(p), r->param[p], has_master ? r->master[p] : NULL,
                                                    r->grad[p],  r->m[p],     r->v[p], mean * factor };
        const double decay = params[p].ndims >= 2 ? 0.1 : 0;
        const struct hkt__adamw adamw = { 0.01, 0.9, 0.95, 1e-8, decay, step + 1 };
        const struct hkt__sgd sgd = { 0.01, 0.9, decay };

        if (s->optimizer == HKT__ADAMW)
            r->ops->adamw(&range, &adamw);
        else
            r->ops->sgd(&range, &sgd);
    }
}

static void init_param(const struct hkt__math_ops *ops, void *to, int param)
{
    double values[ELEMS_MAX];

    for (int64_t i = 0; i < elems_of(param); i++)
        values[i] = noise(1, param, 0, i);
    ops->from_f64(to, values, elems_of(param));
}

static void make_reference(struct reference *r, const struct setting *s, int nranks)
{
    memset(r, 0, sizeof *r);
    r->ops = hkt__math_ops_of(s->dtype);
    for (int p = 0; p < NPARAMS; p++) {
        init_param(r->ops, r->param[p], p);
        r->ops->to_real(r->master[p], r->param[p], elems_of(p));
    }
    for (int step = 0; step < STEPS; step++)
        reference_step(r, s, nranks, step);
}

/* ---- the engine on ranks ---- */

struct job {
    struct setting setting;
    int nranks;
    struct reference *reference;
    void (*after)(struct ranks_rank *rank, struct hkt__engine *engine, struct hkt__memory *memory,
                  const struct hkt__own *own, const struct hkt__traffic *traffic);
};

static void require_ok(struct ranks_rank *rank, enum hkt_status got, const char *what)
{
    ranks_require(rank, got == HKT_OK, "%s: %s", what, hkt_parallel_last_error());
}

static void run_forward(struct ranks_rank *rank, struct hkt__engine *engine)
{
    for (int u = 0; u < UNITS; u++) {
        require_ok(rank, hkt__engine_begin(engine, u, HKT__USE_PARAM), "begin forward");
        for (int p = 0; p < NPARAMS; p++)
            ranks_require(rank, params[p].unit != u || hkt__engine_param(engine, p) != NULL, "%s is not here", params[p].name);
        require_ok(rank, hkt__engine_end(engine, u, HKT__USE_PARAM), "end forward");
    }
}

/* What a model does: forward up the units, backward down, gradients added. */
static void run_micro(struct ranks_rank *rank, struct hkt__engine *engine, const struct setting *s, int step, int micro)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(s->dtype);
    char values[ELEMS_MAX * 8];

    run_forward(rank, engine);
    for (int u = UNITS - 1; u >= 0; u--) {
        const unsigned use = HKT__USE_PARAM | HKT__USE_GRAD | HKT__USE_BACKWARD;

        require_ok(rank, hkt__engine_begin(engine, u, use), "begin backward");
        for (int p = 0; p < NPARAMS; p++) {
            if (params[p].unit != u)
                continue;
            fill_real(ops, values, step, rank->rank, micro, p);
            void *grad = hkt__engine_grad(engine, p);

            hkt__math_ops_of(ops->real)->add(grad, grad, values, elems_of(p));
        }
        require_ok(rank, hkt__engine_end(engine, u, use), "end backward");
        if (s->reduce_every || micro == MICROS - 1)
            require_ok(rank, hkt__engine_final(engine, u), "final");
    }
}

static void check_params(struct ranks_rank *rank, struct hkt__engine *engine, const struct job *job)
{
    const size_t bytes = job->reference->ops->store_bytes;

    for (int u = 0; u < UNITS; u++) {
        require_ok(rank, hkt__engine_begin(engine, u, HKT__USE_PARAM), "begin");
        for (int p = 0; p < NPARAMS; p++)
            ranks_require(rank,
                          params[p].unit != u
                              || memcmp(hkt__engine_param(engine, p), job->reference->param[p],
                                        (size_t)elems_of(p) * bytes) == 0,
                          "stage %d, buckets of %lld, %d ranks, overlap %d, prefetch %d: %s has other bits than the plain loop",
                          job->setting.zero, (long long)job->setting.bucket_elems, job->nranks, job->setting.overlap,
                          job->setting.prefetch, params[p].name);
        require_ok(rank, hkt__engine_end(engine, u, HKT__USE_PARAM | HKT__USE_BACKWARD), "end");
    }
}

static void train(struct ranks_rank *rank)
{
    const struct job *job = rank->arg;
    const struct setting *s = &job->setting;
    struct hkt_mesh *mesh = NULL;
    struct hkt__own *own = NULL;
    struct hkt__engine *engine = NULL;
    struct hkt__memory memory;
    struct hkt__traffic traffic = { 0 };
    char layout[64], values[ELEMS_MAX * 8];

    snprintf(layout, sizeof layout, s->inner > 0 ? "dp:%d=inner:%d*outer:rest" : "dp:%d", job->nranks, s->inner);
    hkt__memory_init(&memory, 0);
    require_ok(rank, hkt_mesh_create(layout, job->nranks, &mesh), layout);
    require_ok(rank, hkt_mesh_attach(mesh, rank->comm), "attach");
    const char *shard_axis = s->inner > 0 ? "inner" : NULL;
    const struct hkt__own_opts own_opts = { .mesh = mesh, .rank = rank->rank, .params = params, .nparams = NPARAMS,
                                            .heads = 1, .kv_heads = 1, .shard_axis = shard_axis, .align = ALIGN,
                                            .bucket_elems = s->bucket_elems, .unit_buckets = s->zero >= 2 };

    require_ok(rank, hkt__own_create(&own_opts, &own), "own");
    const struct hkt__engine_opts opts = {
        .mesh = mesh, .own = own, .ops = hkt__math_ops_of(s->dtype), .memory = &memory, .traffic = &traffic,
        .zero = s->zero, .shard_axis = shard_axis, .replica_axis = s->inner > 0 ? "outer" : NULL, .prefetch = s->prefetch,
        .overlap = s->overlap, .keep_gathered = s->keep_gathered, .reduce_every = s->reduce_every,
        .optimizer = s->optimizer, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .momentum = 0.9,
        .clip = s->clip,
    };

    require_ok(rank, hkt__engine_create(&opts, &engine), "engine");
    for (int p = 0; p < NPARAMS; p++) {
        init_param(opts.ops, values, p);
        hkt__engine_param_set(engine, p, values);
    }
    for (int step = 0; step < STEPS; step++) {
        struct hkt__engine_result result;

        require_ok(rank, hkt__engine_start(engine), "start");
        for (int micro = 0; micro < MICROS; micro++)
            run_micro(rank, engine, s, step, micro);
        if (s->keep_gathered && s->overlap)
            run_forward(rank, engine); /* an evaluation: what it kept is stale after the step */
        require_ok(rank, hkt__engine_step(engine, tokens_of(job->nranks), 0.01, &result), "step");
        ranks_require(rank, result.norm == job->reference->norm[step], "stage %d: the norm is %.17g, not %.17g", s->zero,
                      result.norm, job->reference->norm[step]);
    }
    if (job->after != NULL)
        job->after(rank, engine, &memory, own, &traffic);
    check_params(rank, engine, job);
    hkt__engine_destroy(engine);
    hkt__own_destroy(own);
    hkt_mesh_destroy(mesh);
    require_ok(rank, hkt__memory_fini(&memory), "all memory is free");
}

static struct reference reference; /* children inherit it */

static void run(struct job job)
{
    static const char *const settings[] = { "HOCKET_DETERMINISTIC=rank_order", NULL };

    make_reference(&reference, &job.setting, job.nranks);
    job.reference = &reference;
    const struct ranks_job ranks = { .kind = RANKS_THREADS, .nranks = job.nranks, .settings = settings, .fn = train, .arg = &job };

    ranks_run(&ranks);
}

static void stages_equal_the_plain_loop(void **state)
{
    static const int64_t buckets[] = { 0, 1, 200, 100000 };

    (void)state;
    for (int nranks = 1; nranks <= 4; nranks += ranks_small() ? 2 : 1)
        for (int zero = 0; zero < 4; zero++)
            for (size_t b = 0; b < sizeof buckets / sizeof buckets[0]; b++) {
                const struct setting s = { .zero = zero, .bucket_elems = buckets[b], .overlap = (b + (size_t)zero) % 2 == 1,
                                           .prefetch = (int)b % 3, .dtype = HKT_F64, .clip = 0.05,
                                           .optimizer = b == 2 ? HKT__SGD : HKT__ADAMW };

                run((struct job){ .setting = s, .nranks = nranks });
            }
}

static void overlap_prefetch_and_keeping_change_no_bit(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int overlap = 0; overlap < 2; overlap++)
            for (int prefetch = 0; prefetch < (zero == 3 ? 3 : 1); prefetch++)
                for (int keep = 0; keep < (zero == 3 ? 2 : 1); keep++) {
                    const struct setting s = { .zero = zero, .bucket_elems = 100, .overlap = overlap == 1, .dtype = HKT_F32,
                                               .prefetch = prefetch * 2, .keep_gathered = keep == 1 };

                    run((struct job){ .setting = s, .nranks = 3 });
                }
}

static void bf16_has_f32_masters_and_gradients(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        run((struct job){ .setting = { .zero = zero, .dtype = HKT_BF16, .clip = 0.1, .overlap = true, .prefetch = 1 }, .nranks = 2 });
}

static void hybrid_sums_inside_then_across(void **state)
{
    (void)state;
    for (int zero = 1; zero < 4; zero++)
        run((struct job){ .setting = { .zero = zero, .dtype = HKT_F64, .inner = 2, .overlap = zero == 2 }, .nranks = 4 });
}

static void reduction_of_every_micro_batch(void **state)
{
    (void)state;
    for (int zero = 2; zero < 4; zero++)
        for (int overlap = 0; overlap < 2; overlap++)
            run((struct job){ .setting = { .zero = zero, .dtype = HKT_F32, .reduce_every = true, .overlap = overlap == 1,
                                           .bucket_elems = 100 },
                              .nranks = 3 });
}

/* ---- memory and bytes ---- */

static int64_t largest_unit(const struct hkt_flat *flat)
{
    int64_t largest = 0;

    for (int b = 0; b < flat->nbuckets; b++) /* bucket_elems 0 and unit_buckets: a bucket is a unit */
        largest = hkt_flat_bucket(flat, b).count > largest ? hkt_flat_bucket(flat, b).count : largest;
    return largest;
}

static void check_memory(struct ranks_rank *rank, struct hkt__engine *engine, struct hkt__memory *memory,
                         const struct hkt__own *own, const struct hkt__traffic *traffic)
{
    const struct job *job = rank->arg;
    const struct setting *s = &job->setting;
    const struct hkt_flat *flat = own->flat[HKT__FLAT_DENSE];
    struct hkt_param_bytes recipe;

    (void)engine;
    (void)traffic;
    require_ok(rank, hkt_param_bytes_parse("mixed18", &recipe), "recipe");
    const struct hkt_state_bytes want = hkt_count_state((double)flat->padded, &recipe, s->zero, job->nranks);
    const double unit = (double)largest_unit(flat);

    ranks_require(rank, (double)memory->peak[HKT__MEMORY_PARAM] == want.param, "stage %d: %llu bytes of parameters, not %g",
                  s->zero, (unsigned long long)memory->peak[HKT__MEMORY_PARAM], want.param);
    ranks_require(rank, (double)memory->peak[HKT__MEMORY_OPTIMIZER] == want.optimizer, "stage %d: %llu bytes of state, not %g",
                  s->zero, (unsigned long long)memory->peak[HKT__MEMORY_OPTIMIZER], want.optimizer);
    /* Stages 2 and 3 accumulate whole gradients over micro-batches here, unless each is reduced. */
    double grads = want.grad;

    if (s->zero >= 2)
        grads += s->reduce_every ? 4 * unit * (s->overlap ? 2 : 1) : 4 * (double)flat->padded;
    ranks_require(rank, (double)memory->peak[HKT__MEMORY_MAIN_GRAD] <= grads, "stage %d: %llu bytes of gradients, more than %g",
                  s->zero, (unsigned long long)memory->peak[HKT__MEMORY_MAIN_GRAD], grads);
    ranks_require(rank, s->zero >= 2 || (double)memory->peak[HKT__MEMORY_MAIN_GRAD] == grads, "stage %d: gradients", s->zero);
    ranks_require(rank, memory->peak[HKT__MEMORY_COMM] <= (uint64_t)(s->zero == 3 ? 2 * unit * (1 + s->prefetch) : 0),
                  "stage %d: %llu bytes of gathered units", s->zero, (unsigned long long)memory->peak[HKT__MEMORY_COMM]);
}

static void memory_is_what_the_formulas_say(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int prefetch = 0; prefetch < 3; prefetch += 2)
            run((struct job){ .setting = { .zero = zero, .dtype = HKT_BF16, .prefetch = prefetch, .overlap = prefetch > 0,
                                           .reduce_every = zero >= 2 && prefetch > 0 },
                              .nranks = 4,
                              .after = check_memory });
}

static void check_bytes(struct ranks_rank *rank, struct hkt__engine *engine, struct hkt__memory *memory,
                        const struct hkt__own *own, const struct hkt__traffic *traffic)
{
    const struct job *job = rank->arg;
    const struct setting *s = &job->setting;
    const double padded = (double)own->flat[HKT__FLAT_DENSE]->padded;
    const struct hkt_dp_opts opts = { .zero = s->zero, .inner = job->nranks, .micros = MICROS, .reduce_every = s->reduce_every,
                                      .keep_gathered = s->keep_gathered, .grad_bytes = 4 * padded, .param_bytes = 2 * padded };
    const double want = hkt_count_dp(&opts).total * STEPS, got = hkt__traffic_wire(traffic, HKT__TRAFFIC_DP, job->nranks);

    (void)engine;
    (void)memory;
    ranks_require(rank, got == want, "stage %d, every %d, keep %d: %g bytes on the wire, the formula says %g", s->zero,
                  s->reduce_every, s->keep_gathered, got, want);
    ranks_require(rank, s->zero == 0 || traffic->calls[HKT__TRAFFIC_DP][HKT_ALL_REDUCE] == 0, "an all-reduce in stage %d", s->zero);
}

static void bytes_are_what_the_formulas_say(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int variant = 0; variant < 2; variant++)
            run((struct job){ .setting = { .zero = zero, .dtype = HKT_BF16, .reduce_every = zero >= 2 && variant == 1,
                                           .keep_gathered = variant == 1, .bucket_elems = variant == 1 ? 300 : 0 },
                              .nranks = 4,
                              .after = check_bytes });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_equal_the_plain_loop),
        cmocka_unit_test(overlap_prefetch_and_keeping_change_no_bit),
        cmocka_unit_test(bf16_has_f32_masters_and_gradients),
        cmocka_unit_test(hybrid_sums_inside_then_across),
        cmocka_unit_test(reduction_of_every_micro_batch),
        cmocka_unit_test(memory_is_what_the_formulas_say),
        cmocka_unit_test(bytes_are_what_the_formulas_say),
    };

    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
