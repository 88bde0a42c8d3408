/* A tiny GPT run on a mesh of threads, and its gradients as those of the whole model, wherever they were made. Include after
 * cmocka.h.
 *
 * Each rank leaves for every element of every tensor it holds the gradient it ended with. Ranks that hold the same element for
 * the same data must agree to the last bit; sums over ranks with different data are what one rank with all data makes. */
#ifndef HOCKET_TESTS_PARALLEL_GPT_RIG_H
#define HOCKET_TESTS_PARALLEL_GPT_RIG_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hocket/parallel.h"
#include "parallel/gemm.h"
#include "parallel/gpt.h"
#include "ranks.h"

enum { RIG_RANKS_MAX = 8, RIG_MICROS_MAX = 12, RIG_ELEMS_MAX = 120000, RIG_ROWS_MAX = 128 };

/* Models with odd shapes, initial values far from 0 so that nothing is negligible. */
static inline struct hkt__gpt_config tiny(void)
{
    const struct hkt__gpt_config config = {
        .shape = { .layers = 4,
                   .heads = 4,
                   .kv_heads = 2,
                   .hidden = 24,
                   .ffn = 50,
                   .vocab = 101,
                   .positions = 16,
                   .biases = 1,
                   .tied = 1 },
        .dtype = HKT_F64,
        .seq = 8,
        .micro_batch = 2,
        .seed = 3,
        .init_deviation = 0.15,
    };

    return config;
}

/* SwiGLU, RMS norm, rotary, untied, no biases. */
static inline struct hkt__gpt_config tiny_modern(void)
{
    struct hkt__gpt_config config = tiny();

    config.shape.gated = 1;
    config.shape.positions = 0;
    config.shape.biases = 0;
    config.shape.tied = 0;
    config.norm = HKT__NORM_RMS;
    return config;
}

static inline struct hkt__gpt_config tiny_experts(void)
{
    struct hkt__gpt_config config = tiny_modern();

    config.shape.experts = 4;
    config.shape.top_k = 2;
    config.shape.ffn = 18;
    config.shape.biases = 1;
    config.shape.dense_layers = 1;
    config.capacity_factor = 1.25;
    config.balance_weight = 0.1;
    config.z_weight = 0.01;
    config.renormalise = 1;
    return config;
}

/* Parameters and tokens from elsewhere, by their place in the whole model and batch, instead of random ones. */
struct rig_given {
    const double *params;          /* in the order of rig_result.grad */
    const int32_t *ids, *targets;
};

struct rig_case {
    const struct rig_given *given; /* NULL: random ones */
    const char *layout; /* "tp:2 pp:2"; NULL: one rank */
    struct hkt__gpt_config config;
    enum hkt_pipe_kind schedule;
    int micros;        /* of one data-parallel rank */
    int steps;         /* gradients of the last; 0: 1 */
    int reduces_every; /* gradients of each micro-batch are taken out, as ZeRO 2 does */
};

struct rig_rank {
    double loss, balance, z;
    int64_t tokens, dropped, routed;
    struct hkt__traffic traffic;
    uint64_t peak;                  /* bytes of activations */
    double grad[RIG_ELEMS_MAX];     /* NaN: not held */
};

struct rig_result {
    double loss, balance, z;
    int64_t tokens, dropped, routed, elems;
    int nparams;
    struct {
        char name[96];
        int64_t first, count;
    } tensor[256];
    double grad[RIG_ELEMS_MAX];
    struct rig_rank rank[RIG_RANKS_MAX];
};

struct rig_job {
    const struct rig_case *run;
    struct rig_result *result;
};

static inline struct rig_result *rig_alloc(void)
{
    void *memory = mmap(NULL, sizeof(struct rig_result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static inline void rig_free(struct rig_result *result)
{
    munmap(result, sizeof *result);
}

/* Token `row` of the whole batch, and whether it counts: in some sequences all do, in some a part, in every fifth none. */
static inline int32_t rig_token(const struct hkt__gpt_config *config, int64_t row, int is_target)
{
    const struct hkt__rng rng = { 7, hkt__rng_site((unsigned)is_target, 0, 0) };
    const uint32_t bits = hkt__rng_bits(&rng, (uint64_t)row), sequence = (uint32_t)(row / config->seq);

    if (is_target && ((bits >> 20) % 4 < sequence % 3 || sequence % 5 == 4))
        return -1;
    return (int32_t)(bits % (uint32_t)config->shape.vocab);
}

struct rig_data {
    int32_t ids[RIG_MICROS_MAX][RIG_ROWS_MAX], targets[RIG_MICROS_MAX][RIG_ROWS_MAX];
    struct hkt__gpt_micro micros[RIG_MICROS_MAX];
};

static inline void rig_data(const struct rig_case *run, int dp_index, struct rig_data *data)
{
    const int64_t rows = run->config.seq * run->config.micro_batch;

    for (int m = 0; m < run->micros; m++) {
        const int global = dp_index * run->micros + m;

        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = global * rows + r;

            data->ids[m][r] = run->given != NULL ? run->given->ids[at] : rig_token(&run->config, at, 0);
            data->targets[m][r] = run->given != NULL ? run->given->targets[at] : rig_token(&run->config, at, 1);
        }
        data->micros[m].ids = data->ids[m];
        data->micros[m].targets = data->targets[m];
        data->micros[m].first_row = global * rows;
    }
}

/* A rank's buffers. */
struct rig {
    struct hkt__memory memory;
    struct hkt_mesh *mesh;
    struct hkt__gpt *gpt;
    void *param[HKT__FLAT_COUNT], *grad[HKT__FLAT_COUNT];
};

static inline enum hkt_status rig_bind(struct rig *rig)
{
    const struct hkt__math_ops *ops = hkt__gpt_ops(rig->gpt);
    enum hkt_status rc = HKT_OK;

    for (int f = 0; f < HKT__FLAT_COUNT && rc == HKT_OK; f++) {
        const uint64_t elems = (uint64_t)hkt__gpt_own(rig->gpt)->flat[f]->padded;

        rc = hkt__memory_zalloc(&rig->memory, HKT__MEMORY_PARAM, elems * ops->store_bytes, &rig->param[f]);
        if (rc == HKT_OK)
            rc = hkt__memory_zalloc(&rig->memory, HKT__MEMORY_GRAD, elems * ops->real_bytes, &rig->grad[f]);
        hkt__gpt_bind_flat(rig->gpt, f, rig->param[f], rig->grad[f]);
    }
    if (rc == HKT_OK)
        hkt__gpt_init(rig->gpt);
    return rc;
}

/* Biases and norms that are not at their start, so that a lost one shows. Functions of the element's place. */
static inline void rig_disturb(struct rig *rig)
{
    const struct hkt__own *own = hkt__gpt_own(rig->gpt);
    const struct hkt__math_ops *ops = hkt__gpt_ops(rig->gpt);

    for (int i = 0; i < own->nparams; i++) {
        const int flat = hkt__own_flat(&own->params[i]);
        int64_t run;

        if (own->params[i].ndims != 1 || !own->held[i].holds)
            continue;
        for (int64_t e = 0; e < own->held[i].local_count; e++) {
            const struct hkt__rng rng = { 11, (uint64_t)i };
            char *at = (char *)rig->param[flat] + (size_t)(own->flat[flat]->first[i] + e) * ops->store_bytes;
            double x;

            ops->to_f64(&x, at, 1);
            x += 0.1 * hkt__rng_normal(&rng, (uint64_t)hkt__held_global(&own->params[i], &own->held[i], e, &run));
            ops->from_f64(at, &x, 1);
        }
    }
}

static inline void rig_take_params(struct rig *rig, const double *params)
{
    const struct hkt__own *own = hkt__gpt_own(rig->gpt);
    const struct hkt__math_ops *ops = hkt__gpt_ops(rig->gpt);

    for (int i = 0; i < own->nparams; i++) {
        const int flat = hkt__own_flat(&own->params[i]);
        char *to = (char *)rig->param[flat] + (size_t)own->flat[flat]->first[i] * ops->store_bytes;
        int64_t whole = 1, run;

        for (int64_t e = 0; own->held[i].holds && e < own->held[i].local_count; e++)
            ops->from_f64(to + (size_t)e * ops->store_bytes,
                          &params[hkt__held_global(&own->params[i], &own->held[i], e, &run)], 1);
        for (int d = 0; d < own->params[i].ndims; d++)
            whole *= own->params[i].shape[d];
        params += whole;
    }
}

/* Gradients by their place in the whole model. */
static inline void rig_collect(const struct rig *rig, double *grad, int is_added)
{
    const struct hkt__own *own = hkt__gpt_own(rig->gpt);
    const struct hkt__math_ops *ops = hkt__gpt_ops(rig->gpt), *real = hkt__math_ops_of(ops->real);
    int64_t first = 0;

    for (int i = 0; i < own->nparams; i++) {
        const int flat = hkt__own_flat(&own->params[i]);
        int64_t whole = 1, run;

        for (int d = 0; d < own->params[i].ndims; d++)
            whole *= own->params[i].shape[d];
        for (int64_t e = 0; own->held[i].holds && e < own->held[i].local_count; e++) {
            double *to = &grad[first + hkt__held_global(&own->params[i], &own->held[i], e, &run)], x;

            real->to_f64(&x, (char *)rig->grad[flat] + (size_t)(own->flat[flat]->first[i] + e) * ops->real_bytes, 1);
            *to = is_added && !isnan(*to) ? *to + x : x;
        }
        first += whole;
    }
}

/* With reduces_every: what was added to a unit is taken out. */
struct rig_hooks {
    struct rig *rig;
    double *grad;
};

static inline enum hkt_status rig_take(void *arg, int unit, int micro, int is_last)
{
    const struct rig_hooks *hooks = arg;
    const struct hkt__own *own = hkt__gpt_own(hooks->rig->gpt);
    const struct hkt__math_ops *ops = hkt__gpt_ops(hooks->rig->gpt), *real = hkt__math_ops_of(ops->real);
    int64_t first = 0;

    (void)micro;
    (void)is_last;
    for (int i = 0; i < own->nparams; i++) {
        const int flat = hkt__own_flat(&own->params[i]);
        char *at = (char *)hooks->rig->grad[flat] + (size_t)own->flat[flat]->first[i] * ops->real_bytes;
        int64_t whole = 1, run;

        for (int d = 0; d < own->params[i].ndims; d++)
            whole *= own->params[i].shape[d];
        for (int64_t e = 0; own->params[i].unit == unit && own->held[i].holds && e < own->held[i].local_count; e++) {
            double *to = &hooks->grad[first + hkt__held_global(&own->params[i], &own->held[i], e, &run)], x;

            real->to_f64(&x, at + (size_t)e * ops->real_bytes, 1);
            *to = isnan(*to) ? x : *to + x;
        }
        if (own->params[i].unit == unit && own->held[i].holds)
            memset(at, 0, (size_t)own->held[i].local_count * ops->real_bytes);
        first += whole;
    }
    return HKT_OK;
}

/* Elements of all parameters; noted in result, one rank's affair, unless it is NULL. */
static inline int64_t rig_list(const struct rig *rig, struct rig_result *result)
{
    const struct hkt__own *own = hkt__gpt_own(rig->gpt);
    int64_t first = 0;

    for (int i = 0; i < own->nparams; i++) {
        int64_t whole = 1;

        for (int d = 0; d < own->params[i].ndims; d++)
            whole *= own->params[i].shape[d];
        first += whole;
        if (result == NULL)
            continue;
        snprintf(result->tensor[i].name, sizeof result->tensor[i].name, "%s", own->params[i].name);
        result->tensor[i].first = first - whole;
        result->tensor[i].count = whole;
        result->nparams = i + 1;
        result->elems = first;
    }
    return first;
}

static inline enum hkt_status rig_steps(struct rig *rig, const struct rig_case *run, const struct rig_data *data,
                                        struct rig_rank *out)
{
    const struct hkt_pipe_opts opts = { .kind = run->schedule,
                                        .stages = hkt_mesh_size(rig->mesh, "pp"),
                                        .micros = run->micros,
                                        .chunks = run->config.chunks };
    struct rig_hooks taken = { rig, out->grad };
    const struct hkt__gpt_hooks hooks = { .arg = &taken, .grad = rig_take };
    struct hkt__gpt_step step = { .micros = data->micros,
                                  .scale = 1,
                                  .reduces_every = run->reduces_every,
                                  .hooks = run->reduces_every ? &hooks : NULL };
    struct hkt__gpt_result result;
    struct hkt_pipe *pipe = NULL;
    enum hkt_status rc = hkt_pipe_create(&opts, &pipe);

    step.pipe = pipe;
    for (int s = 0; s < (run->steps > 0 ? run->steps : 1) && rc == HKT_OK; s++) {
        for (int f = 0; f < HKT__FLAT_COUNT; f++)
            memset(rig->grad[f], 0,
                   (size_t)hkt__gpt_own(rig->gpt)->flat[f]->padded * hkt__gpt_ops(rig->gpt)->real_bytes);
        step.number = (uint64_t)s;
        hkt__memory_mark(&rig->memory);
        memset(hkt__gpt_traffic(rig->gpt), 0, sizeof(struct hkt__traffic));
        rc = hkt__gpt_forward_backward(rig->gpt, &step, &result);
    }
    hkt_pipe_destroy(pipe);
    if (rc < 0)
        return rc;
    out->loss = hkt__exact_value(&result.loss);
    out->tokens = result.tokens;
    out->balance = result.balance;
    out->z = result.z;
    out->dropped = result.dropped;
    out->routed = result.routed;
    out->traffic = *hkt__gpt_traffic(rig->gpt);
    out->peak = rig->memory.peak[HKT__MEMORY_ACTIVATION];
    rig_collect(rig, out->grad, run->reduces_every);
    return HKT_OK;
}

/* One rank, on its communicator or (one rank) without. */
static inline enum hkt_status rig_rank(const struct rig_case *run, int rank, struct hkt_comm *comm,
                                       struct rig_result *result)
{
    struct rig_rank *out = &result->rank[rank];
    struct rig_data *data = calloc(1, sizeof *data);
    struct rig rig = { 0 };
    enum hkt_status rc = data == NULL ? HKT_ERR_NOMEM
                                      : hkt_mesh_create(run->layout == NULL ? "tp:1" : run->layout,
                                                        comm == NULL ? 1 : hkt_comm_size(comm), &rig.mesh);

    for (int64_t i = 0; i < RIG_ELEMS_MAX; i++)
        out->grad[i] = NAN;
    hkt__memory_init(&rig.memory, 0);
    if (rc == HKT_OK && comm != NULL)
        rc = hkt_mesh_attach(rig.mesh, comm);
    if (rc == HKT_OK)
        rc = hkt__gpt_create(&run->config, rig.mesh, rank, &rig.memory, &rig.gpt);
    if (rc == HKT_OK)
        rc = rig_bind(&rig);
    if (rc == HKT_OK) {
        if (run->given != NULL)
            rig_take_params(&rig, run->given->params);
        else
            rig_disturb(&rig);
        rig_data(run, hkt_mesh_coord(rig.mesh, "dp", rank), data);
        rc = rig_list(&rig, rank == 0 ? result : NULL) > RIG_ELEMS_MAX ? HKT_ERR_BUG : rig_steps(&rig, run, data, out);
    }
    hkt__gpt_destroy(rig.gpt);
    for (int f = 0; f < HKT__FLAT_COUNT; f++) {
        hkt__memory_free(&rig.memory, rig.param[f]);
        hkt__memory_free(&rig.memory, rig.grad[f]);
    }
    const enum hkt_status left = hkt__memory_fini(&rig.memory);

    hkt_mesh_destroy(rig.mesh);
    free(data);
    return rc < 0 ? rc : left;
}

static inline void rig_thread(struct ranks_rank *rank)
{
    const struct rig_job *job = rank->arg;
    const enum hkt_status rc = rig_rank(job->run, rank->rank, rank->comm, job->result);

    ranks_require(rank, rc == HKT_OK, "%s, rank %d: %s", job->run->layout, rank->rank, hkt_parallel_last_error());
}

/* Sum over ranks with different data; ranks with the same data must agree. Returns the first element that does not, -1. */
static inline int64_t rig_sum(const struct hkt_mesh *mesh, struct rig_result *result)
{
    for (int64_t e = 0; e < result->elems; e++) {
        int is_expert = 0;

        for (int i = 0; i < result->nparams && !is_expert; i++)
            is_expert = e >= result->tensor[i].first && e < result->tensor[i].first + result->tensor[i].count
                        && strstr(result->tensor[i].name, "experts") != NULL;
        const char *axis = is_expert && hkt_mesh_axis_find(mesh, "ep") >= 0 ? "edp" : "dp";
        double value[RIG_RANKS_MAX];
        int has[RIG_RANKS_MAX] = { 0 };

        for (int rank = 0; rank < hkt_mesh_nranks(mesh); rank++) {
            const int group = hkt_mesh_coord(mesh, axis, rank);
            const double x = result->rank[rank].grad[e];

            if (isnan(x))
                continue;
            if (has[group] && memcmp(&value[group], &x, sizeof x) != 0)
                return e;
            has[group] = 1;
            value[group] = x;
        }
        result->grad[e] = 0;
        for (int group = 0; group < hkt_mesh_size(mesh, axis); group++)
            result->grad[e] += has[group] ? value[group] : NAN;
    }
    return -1;
}

static inline const char *rig_name(const struct rig_result *result, int64_t elem)
{
    for (int i = 0; i < result->nparams; i++)
        if (elem < result->tensor[i].first + result->tensor[i].count)
            return result->tensor[i].name;
    return "?";
}

/* Sums over the ranks that made them: one of each tp group; losses are on the last stage alone. */
static inline void rig_totals(const struct hkt_mesh *mesh, struct rig_result *result)
{
    result->loss = result->balance = result->z = 0;
    result->tokens = result->dropped = result->routed = 0;
    for (int rank = 0; rank < hkt_mesh_nranks(mesh); rank++) {
        const struct rig_rank *r = &result->rank[rank];

        if (hkt_mesh_coord(mesh, "tp", rank) != 0)
            continue;
        result->loss += r->loss;
        result->tokens += r->tokens;
        result->balance += r->balance;
        result->z += r->z;
        result->dropped += r->dropped;
        result->routed += r->routed;
    }
}

/* Run a case; fails the test when a rank fails or replicas differ. */
static inline void rig_run(const struct rig_case *run, int nranks, struct rig_result *result)
{
    struct rig_job job = { run, result };
    struct hkt_mesh *mesh = NULL;

    hkt__gemm_threads_set(1);
    if (nranks == 1) {
        if (rig_rank(run, 0, NULL, result) != HKT_OK)
            fail_msg("one rank: %s", hkt_parallel_last_error());
    } else {
        const struct ranks_job threads = { .kind = RANKS_THREADS, .nranks = nranks, .fn = rig_thread, .arg = &job };

        ranks_run(&threads);
    }
    assert_int_equal(hkt_mesh_create(run->layout == NULL ? "tp:1" : run->layout, nranks, &mesh), HKT_OK);
    const int64_t differs = rig_sum(mesh, result);

    if (differs >= 0)
        fail_msg("%s: ranks that hold the same element of %s have different gradients", run->layout,
                 rig_name(result, differs));
    rig_totals(mesh, result);
    hkt_mesh_destroy(mesh);
}

/* The tensor with another last part of its name; -1: none. */
static inline int rig_find(const struct rig_result *result, const char *name, const char *last)
{
    const size_t same = (size_t)(strrchr(name, '.') - name);

    for (int i = 0; i < result->nparams; i++)
        if (strncmp(result->tensor[i].name, name, same) == 0 && strcmp(result->tensor[i].name + same, last) == 0)
            return i;
    return -1;
}

static inline double rig_largest(const struct rig_result *result, int tensor)
{
    double largest = 0;

    for (int64_t e = 0; tensor >= 0 && e < result->tensor[tensor].count; e++)
        largest = fmax(largest, fabs(result->grad[result->tensor[tensor].first + e]));
    return largest;
}

/* Each tensor's largest error relative to its largest gradient, losses relative; 0: to the last bit. */
static inline void rig_compare(const char *what, const struct rig_result *got, const struct rig_result *want,
                               double bound)
{
    assert_int_equal(got->elems, want->elems);
    assert_int_equal(got->tokens, want->tokens);
    assert_int_equal(got->dropped, want->dropped);
    assert_int_equal(got->routed, want->routed);
    const double pairs[3][2] = { { got->loss, want->loss }, { got->balance, want->balance }, { got->z, want->z } };

    for (int i = 0; i < 3; i++)
        if (!(fabs(pairs[i][0] - pairs[i][1]) <= bound * fabs(pairs[i][1])))
            fail_msg("%s: %s %.17g, expected %.17g", what, i == 0 ? "loss" : i == 1 ? "balance" : "z", pairs[i][0],
                     pairs[i][1]);
    for (int i = 0; i < got->nparams; i++) {
        const int64_t first = got->tensor[i].first, end = first + got->tensor[i].count;
        double largest = rig_largest(want, i), error = 0;

        for (int64_t e = first; e < end; e++) {
            const double d = fabs(got->grad[e] - want->grad[e]);

            error = d <= error ? error : d; /* NaN stays */
        }
        /* Without rotary positions it is mathematically zero: a sum of what k.weight's gradient has times x. */
        if (strstr(got->tensor[i].name, ".k.bias") != NULL)
            largest = fmax(largest, rig_largest(want, rig_find(want, got->tensor[i].name, ".weight")));
        if (!(error <= bound * largest))
            fail_msg("%s: gradient of %s is off by %.3g of %.3g", what, got->tensor[i].name, error, largest);
    }
}

#endif
