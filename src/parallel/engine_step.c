/* The step of the training engine: the norm of the mean gradient, the update of what this rank owns, and parameters back to
 * everyone. Also the ways in and out of its state. */
#include <math.h>
#include <string.h>

#include "parallel/engine_parts.h"
#include "parallel/exact.h"
#include "parallel/fail.h"

#define CLIP_EPS 1e-6 /* as PyTorch's clip_grad_norm_ */
#define LOSS_SCALE_MIN 1.0
#define LOSS_SCALE_MAX 16777216.0

/* Where element `flat_first` of a flat buffer lies in a buffer of whole things or of shards; -1: in another rank's shard. */
static int64_t place(const struct hkt__engine_flat *f, bool is_shard, int bucket, int64_t flat_first)
{
    if (!is_shard)
        return flat_first;
    const struct hkt_range shard = hkt_flat_shard(f->flat, bucket, f->shards.rank);

    return hkt__engine_shard_at(f, bucket) + flat_first - shard.first;
}

static char *at_real(const struct hkt__engine *e, void *buffer, int64_t elem)
{
    return (char *)buffer + (size_t)elem * e->opts.ops->real_bytes;
}

static char *at_store(const struct hkt__engine *e, void *buffer, int64_t elem)
{
    return (char *)buffer + (size_t)elem * e->opts.ops->store_bytes;
}

/* ---- the norm ---- */

/* Sum of squares of the summed gradient over the whole model: each element once, whatever the layout. */
static enum hkt_status sum_squares(struct hkt__engine *e, struct hkt__exact *sum)
{
    struct hkt__own_cursor cursor = { 0 };
    struct hkt__run run;

    hkt__exact_clear(sum);
    while (hkt__own_next(e->own, true, &cursor, &run)) {
        const struct hkt__engine_flat *f = &e->flat[run.flat];
        const int64_t at = place(f, e->opts.zero >= 2, run.bucket, run.flat_first);

        e->opts.ops->exact_add_squares(sum, at_real(e, f->grad, at), run.count);
    }
    hkt__exact_settle(sum);
    const enum hkt_status rc =
        e->world.size > 1 ? hkt__link_all_reduce(&e->world, sum, HKT__EXACT_WORDS, HKT_INT64, HKT_SUM) : HKT_OK;

    if (rc == HKT_OK)
        hkt__exact_settle(sum);
    return rc;
}

/* ---- the update ---- */

struct update {
    double lr, grad_scale;
};

static void update_range(struct hkt__engine *e, const struct hkt__optimizer_range *range, const struct update *u,
                         double decay)
{
    const struct hkt__engine_opts *o = &e->opts;

    if (o->optimizer == HKT__ADAMW) {
        const struct hkt__adamw adamw = { u->lr, o->beta1, o->beta2, o->eps, decay, e->steps + 1 };

        o->ops->adamw(range, &adamw);
    } else {
        const struct hkt__sgd sgd = { u->lr, o->momentum, decay };

        o->ops->sgd(range, &sgd);
    }
}

/* `count` elements of tensor `param`: at these places of the buffers of parameters, gradients and state. */
static void update_elems(struct hkt__engine *e, int param, const int64_t at[3], int64_t count, const struct update *u)
{
    const struct hkt__param *p = &e->own->params[param];
    const struct hkt__engine_flat *f = &e->flat[hkt__own_flat(p)];
    const struct hkt__optimizer_range range = {
        .elems = count,
        .param = at_store(e, f->param, at[0]),
        .grad = at_real(e, f->grad, at[1]),
        .master = f->master != NULL ? at_real(e, f->master, at[2]) : NULL,
        .moment1 = f->moment[0] != NULL ? at_real(e, f->moment[0], at[2]) : NULL,
        .moment2 = f->moment[1] != NULL ? at_real(e, f->moment[1], at[2]) : NULL,
        .grad_scale = u->grad_scale,
    };

    update_range(e, &range, u, p->ndims >= 2 ? e->opts.weight_decay : 0);
}

static enum hkt_status publish_bucket(struct hkt__engine *e, struct hkt__engine_flat *f, int bucket)
{
    void *shard = at_store(e, f->param, hkt_flat_shard(f->flat, bucket, f->shards.rank).first);

    return hkt__engine_gather_bucket(e, f, bucket, shard, at_store(e, f->param, f->flat->bucket_first[bucket]));
}

/* Stages 1 to 3: the shard, bucket by bucket; what is updated is on its way while the next one is. */
static enum hkt_status update_shards(struct hkt__engine *e, const struct update *u)
{
    struct hkt__own_cursor cursor = { 0 };
    struct hkt__run run;
    enum hkt_status rc = HKT_OK;
    int flat = 0, bucket = 0; /* the first that is not on its way */
    bool more;

    do {
        more = hkt__own_next(e->own, false, &cursor, &run);
        const int flat_end = more ? run.flat : HKT__FLAT_COUNT;

        while (rc == HKT_OK && (flat < flat_end || (more && bucket < run.bucket))) {
            if (bucket < e->flat[flat].flat->nbuckets) {
                if (e->opts.zero < 3)
                    rc = publish_bucket(e, &e->flat[flat], bucket);
                bucket++;
            } else {
                flat++;
                bucket = 0;
            }
        }
        if (more) {
            const struct hkt__engine_flat *f = &e->flat[run.flat];
            const int64_t at[3] = { place(f, e->opts.zero == 3, run.bucket, run.flat_first),
                                    place(f, e->opts.zero >= 2, run.bucket, run.flat_first),
                                    place(f, true, run.bucket, run.flat_first) };

            update_elems(e, run.param, at, run.count, u);
        }
    } while (more && rc == HKT_OK);
    return rc == HKT_OK ? hkt__engine_drain(e) : rc;
}

static enum hkt_status update(struct hkt__engine *e, const struct update *u)
{
    if (e->opts.zero >= 1)
        return update_shards(e, u);
    for (int i = 0; i < e->own->nparams; i++) {
        const struct hkt_flat *flat = e->flat[hkt__own_flat(&e->own->params[i])].flat;
        const int64_t at[3] = { flat->first[i], flat->first[i], flat->first[i] };

        if (flat->count[i] > 0)
            update_elems(e, i, at, flat->count[i], u);
    }
    return HKT_OK;
}

/* Overflows halve the loss scale, and skip the step; many good steps double it. */
static void adapt_scale(struct hkt__engine *e, bool overflowed)
{
    if (e->opts.loss_scale <= 0)
        return;
    e->good_steps = overflowed ? 0 : e->good_steps + 1;
    if (overflowed)
        e->loss_scale = fmax(e->loss_scale / 2, LOSS_SCALE_MIN);
    else if (e->good_steps % e->opts.scale_growth_steps == 0)
        e->loss_scale = fmin(e->loss_scale * 2, LOSS_SCALE_MAX);
}

enum hkt_status hkt__engine_step(struct hkt__engine *e, double tokens, double lr, struct hkt__engine_result *out_result)
{
    struct hkt__exact squares;
    enum hkt_status rc;

    if (!(tokens > 0))
        return hkt__parallel_fail(HKT_ERR_INVALID, "a step over %g tokens has no mean", tokens);
    rc = hkt__engine_finish(e);
    const int64_t finished = hkt__timeline_now();

    if (rc == HKT_OK)
        rc = sum_squares(e, &squares);
    hkt__timeline_computed(e->world.traffic->timeline, "norm", -1, finished);
    if (rc < 0)
        return rc;
    const double mean = 1 / (tokens * e->loss_scale), norm = sqrt(hkt__exact_value(&squares)) * mean;
    const double factor = e->opts.clip > 0 && norm > e->opts.clip ? e->opts.clip / (norm + CLIP_EPS) : 1;
    const struct hkt__engine_result result = { norm, squares.not_finite != 0 && e->opts.loss_scale > 0, e->loss_scale };

    if (!result.skipped) {
        const struct update u = { lr, mean * factor };
        const int64_t begin = hkt__timeline_now();

        rc = update(e, &u);
        hkt__timeline_computed(e->world.traffic->timeline, "update", -1, begin);
        e->steps++;
    }
    adapt_scale(e, result.skipped);
    if (rc == HKT_OK)
        *out_result = result;
    return rc;
}

/* ---- state in and out ---- */

void hkt__engine_param_set(struct hkt__engine *e, int param, const void *local)
{
    const struct hkt__math_ops *ops = e->opts.ops;
    const int kind = hkt__own_flat(&e->own->params[param]);
    struct hkt__engine_flat *f = &e->flat[kind];
    const struct hkt_range buckets = hkt_flat_buckets(f->flat, param);
    const int64_t first = f->flat->first[param], end = first + f->flat->count[param];

    if (first < end && e->opts.zero < 3)
        memcpy(at_store(e, f->param, first), local, (size_t)(end - first) * ops->store_bytes);
    for (int b = (int)buckets.first; first < end && b < buckets.first + buckets.count; b++) {
        const struct hkt_range range =
            e->opts.zero == 0 ? hkt_flat_bucket(f->flat, b) : hkt_flat_shard(f->flat, b, f->shards.rank);
        const int64_t from = range.first > first ? range.first : first;
        const int64_t to = range.first + range.count < end ? range.first + range.count : end;
        const char *values = (const char *)local + (size_t)(from - first) * ops->store_bytes;

        if (from >= to)
            continue;
        if (e->opts.zero == 3)
            memcpy(at_store(e, f->param, place(f, true, b, from)), values, (size_t)(to - from) * ops->store_bytes);
        if (f->master != NULL)
            ops->to_real(at_real(e, f->master, place(f, e->opts.zero >= 1, b, from)), values, to - from);
    }
}

/* Parameters from this rank's part of the masters. */
static void round_masters(struct hkt__engine *e, struct hkt__engine_flat *f)
{
    for (int b = 0; b < f->flat->nbuckets && f->master != NULL; b++) {
        const struct hkt_range shard = hkt_flat_shard(f->flat, b, f->shards.rank);

        e->opts.ops->from_real(at_store(e, f->param, place(f, e->opts.zero == 3, b, shard.first)),
                               at_real(e, f->master, place(f, e->opts.zero >= 1, b, shard.first)), shard.count);
    }
}

/* Stage 0: everyone holds all of the optimizer's state. */
static enum hkt_status publish_state(struct hkt__engine *e, struct hkt__engine_flat *f, int bucket)
{
    void *buffers[] = { f->master, f->moment[0], f->moment[1] };
    const struct hkt_range whole = hkt_flat_bucket(f->flat, bucket), shard = hkt_flat_shard(f->flat, bucket, f->shards.rank);
    enum hkt_status rc = HKT_OK;

    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0] && rc == HKT_OK && f->shards.size > 1; i++)
        if (buffers[i] != NULL)
            rc = hkt__link_all_gather(&f->shards, at_real(e, buffers[i], shard.first), at_real(e, buffers[i], whole.first),
                                      shard.count, e->opts.ops->real);
    return rc;
}

enum hkt_status hkt__engine_publish(struct hkt__engine *e)
{
    enum hkt_status rc = HKT_OK;

    for (int kind = 0; kind < HKT__FLAT_COUNT; kind++) {
        struct hkt__engine_flat *f = &e->flat[kind];

        round_masters(e, f);
        for (int b = 0; b < f->flat->nbuckets && e->opts.zero < 3 && rc == HKT_OK; b++)
            rc = publish_bucket(e, f, b);
        for (int b = 0; b < f->flat->nbuckets && e->opts.zero == 0 && rc == HKT_OK; b++)
            rc = publish_state(e, f, b);
    }
    return rc == HKT_OK ? hkt__engine_drain(e) : rc;
}

void *hkt__engine_state(const struct hkt__engine *e, const struct hkt__run *run, enum hkt__state state)
{
    const struct hkt__engine_flat *f = &e->flat[run->flat];
    const bool is_param = state == HKT__STATE_MASTER && f->master == NULL;
    void *buffer = state == HKT__STATE_MOMENT1   ? f->moment[0]
                   : state == HKT__STATE_MOMENT2 ? f->moment[1]
                   : is_param                    ? f->param
                                                 : f->master;
    const bool is_shard = is_param ? e->opts.zero == 3 : e->opts.zero >= 1;

    return buffer == NULL ? NULL : at_real(e, buffer, place(f, is_shard, run->bucket, run->flat_first));
}

bool hkt__engine_has_state(const struct hkt__engine *e, enum hkt__state state)
{
    if (state == HKT__STATE_MASTER || e->opts.only_params)
        return state == HKT__STATE_MASTER;
    return e->opts.optimizer == HKT__ADAMW || (state == HKT__STATE_MOMENT1 && e->opts.momentum != 0);
}
