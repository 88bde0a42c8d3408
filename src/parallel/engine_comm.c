/* What the training engine moves, and when: units in use, gradients that are final. Communication is started here by the
 * caller's thread and runs on the stream; memory is touched by the caller's thread only after an event says it is done. */
#include <string.h>

#include "parallel/engine_parts.h"
#include "parallel/fail.h"

/* This thread stood still since `begin`. */
static enum hkt_status waited(struct hkt__engine *e, enum hkt_status rc, int64_t begin)
{
    const struct hkt__span span = { .begin_ns = begin, .axis = HKT__TRAFFIC_DP };

    hkt__timeline_waited(e->world.traffic->timeline, HKT__SPAN_WAIT, &span);
    return rc < 0 ? hkt__parallel_pass(rc, "data-parallel communication") : HKT_OK;
}

enum hkt_status hkt__engine_wait(struct hkt__engine *e, struct hkt_event *event)
{
    const int64_t begin = hkt__timeline_now();

    return event == NULL ? HKT_OK : waited(e, hkt_event_synchronize(event), begin);
}

enum hkt_status hkt__engine_drain(struct hkt__engine *e)
{
    const int64_t begin = hkt__timeline_now();

    return e->stream == NULL ? HKT_OK : waited(e, hkt_stream_synchronize(e->stream), begin);
}

enum hkt_status hkt__engine_reduce_bucket(struct hkt__engine *e, struct hkt__engine_flat *f, int bucket, void *grad)
{
    const struct hkt__math_ops *ops = e->opts.ops;
    const int64_t elems = hkt_flat_bucket(f->flat, bucket).count, part = elems / f->shards.size;
    char *shard = (char *)grad + (size_t)(f->shards.rank * part) * ops->real_bytes;
    enum hkt_status rc = HKT_OK;

    if (f->shards.size > 1 && e->opts.zero == 0)
        rc = hkt__link_all_reduce(&f->shards, grad, elems, ops->real, HKT_SUM);
    else if (f->shards.size > 1)
        rc = hkt__link_reduce_scatter(&f->shards, grad, shard, part, ops->real);
    if (rc == HKT_OK && f->replicas.size > 1)
        rc = hkt__link_all_reduce(&f->replicas, shard, part, ops->real, HKT_SUM);
    return rc;
}

enum hkt_status hkt__engine_gather_bucket(struct hkt__engine *e, struct hkt__engine_flat *f, int bucket,
                                          const void *shard, void *whole)
{
    const int64_t elems = hkt_flat_bucket(f->flat, bucket).count;

    if (f->shards.size == 1) {
        if (shard != whole)
            memcpy(whole, shard, (size_t)elems * e->opts.ops->store_bytes);
        return HKT_OK;
    }
    return hkt__link_all_gather(&f->shards, shard, whole, elems / f->shards.size, e->opts.ops->store);
}

static enum hkt_status record(struct hkt__engine *e, struct hkt_event *event)
{
    if (event == NULL)
        return HKT_OK;
    const enum hkt_status rc = hkt_event_record(event, e->stream);

    return rc < 0 ? hkt__parallel_pass(rc, "an event of the training engine") : HKT_OK;
}

/* ---- parameters: stage 3 ---- */

void hkt__engine_bind(struct hkt__engine *e, struct hkt__engine_flat *f, int number)
{
    const struct hkt__engine_unit *unit = &f->unit[number];
    const struct hkt__math_ops *ops = e->opts.ops;
    const int kind = (int)(f - e->flat);
    char *param = e->opts.zero == 3 ? unit->param : (char *)f->param + (size_t)unit->first * ops->store_bytes;
    char *grad = unit->grad;

    if (unit->first == unit->end)
        return;
    for (int i = 0; i < e->own->nparams; i++) {
        if (e->own->params[i].unit != number || hkt__own_flat(&e->own->params[i]) != kind || f->flat->count[i] == 0)
            continue;
        const size_t at = (size_t)(f->flat->first[i] - unit->first);

        e->param[i] = param != NULL ? param + at * ops->store_bytes : NULL;
        e->grad[i] = grad != NULL ? grad + at * ops->real_bytes : NULL;
    }
    if (e->opts.bind != NULL)
        e->opts.bind(e->opts.bind_arg, number, kind, param, grad);
}

static enum hkt_status gather(struct hkt__engine *e, struct hkt__engine_flat *f, int number)
{
    struct hkt__engine_unit *unit = &f->unit[number];
    const size_t bytes = e->opts.ops->store_bytes;
    enum hkt_status rc;

    if (unit->first == unit->end || unit->param != NULL)
        return HKT_OK;
    rc = hkt__memory_alloc(e->opts.memory, HKT__MEMORY_COMM, (uint64_t)(unit->end - unit->first) * bytes, &unit->param);
    for (int b = unit->bucket_first; b < unit->bucket_end && rc == HKT_OK; b++)
        rc = hkt__engine_gather_bucket(e, f, b, (char *)f->param + (size_t)hkt__engine_shard_at(f, b) * bytes,
                                       (char *)unit->param + (size_t)(f->flat->bucket_first[b] - unit->first) * bytes);
    return rc == HKT_OK ? record(e, unit->gathered) : rc;
}

static enum hkt_status gather_both(struct hkt__engine *e, int number)
{
    enum hkt_status rc = gather(e, &e->flat[HKT__FLAT_DENSE], number);

    return rc == HKT_OK ? gather(e, &e->flat[HKT__FLAT_EXPERT], number) : rc;
}

static bool is_here(const struct hkt__engine *e, int number)
{
    return e->flat[HKT__FLAT_DENSE].unit[number].end > 0 || e->flat[HKT__FLAT_EXPERT].unit[number].end > 0;
}

static enum hkt_status use_params(struct hkt__engine *e, int number, unsigned use)
{
    const int step = (use & HKT__USE_BACKWARD) != 0 ? -1 : 1, first = step < 0 ? e->opts.backward_first : 0;
    enum hkt_status rc = gather_both(e, number);
    int ahead = e->uses_all > 1 ? e->opts.prefetch : 0; /* a use inside another one is on no way to the next unit */

    for (int u = number + step; ahead < e->opts.prefetch && u >= first && u < e->nunits && rc == HKT_OK; u += step) {
        if (is_here(e, u)) {
            rc = gather_both(e, u);
            ahead++;
        }
    }
    for (int kind = 0; kind < HKT__FLAT_COUNT && rc == HKT_OK; kind++) {
        struct hkt__engine_flat *f = &e->flat[kind];

        if (f->unit[number].param == NULL)
            continue;
        rc = hkt__engine_wait(e, f->unit[number].gathered);
        hkt__engine_bind(e, f, number);
    }
    return rc;
}

static void drop_params(struct hkt__engine *e, int number)
{
    for (int kind = 0; kind < HKT__FLAT_COUNT; kind++) {
        struct hkt__engine_flat *f = &e->flat[kind];

        if (f->unit[number].param == NULL)
            continue;
        hkt__memory_free(e->opts.memory, f->unit[number].param);
        f->unit[number].param = NULL;
        hkt__engine_bind(e, f, number);
    }
}

/* ---- gradients ---- */

static struct hkt__engine_flat *flat_of(struct hkt__engine *e, const struct hkt__engine_unit *unit)
{
    const struct hkt__engine_unit *dense = e->flat[HKT__FLAT_DENSE].unit;

    return &e->flat[unit >= dense && unit < dense + e->nunits ? HKT__FLAT_DENSE : HKT__FLAT_EXPERT];
}

/* The oldest reduction of a unit is over: its shard is added up, its whole gradients go. */
static enum hkt_status reap(struct hkt__engine *e)
{
    struct hkt__engine_unit *unit = e->reducing[0];
    struct hkt__engine_flat *f = flat_of(e, unit);
    const size_t bytes = e->opts.ops->real_bytes;
    const enum hkt_status rc = hkt__engine_wait(e, unit->reduced);

    if (rc < 0)
        return rc;
    for (int b = unit->bucket_first; b < unit->bucket_end; b++) {
        const struct hkt_range shard = hkt_flat_shard(f->flat, b, f->shards.rank);
        const char *part = (char *)unit->grad + (size_t)(shard.first - unit->first) * bytes;
        void *sum = (char *)f->grad + (size_t)hkt__engine_shard_at(f, b) * bytes;

        if (unit->reductions == 1)
            memcpy(sum, part, (size_t)shard.count * bytes);
        else
            e->real_ops->add(sum, sum, part, shard.count);
    }
    hkt__memory_free(e->opts.memory, unit->grad);
    unit->grad = NULL;
    unit->is_reducing = false;
    memmove(e->reducing, e->reducing + 1, (size_t)--e->nreducing * sizeof(struct hkt__engine_unit *));
    hkt__engine_bind(e, f, (int)(unit - f->unit));
    return HKT_OK;
}

static enum hkt_status use_grads(struct hkt__engine *e, struct hkt__engine_flat *f, int number)
{
    struct hkt__engine_unit *unit = &f->unit[number];
    const bool has_master = e->opts.ops->store != e->opts.ops->real;
    enum hkt_status rc = HKT_OK;

    /* One reduction at a time may be behind the computation: more would only hold more memory. */
    while (rc == HKT_OK && (e->nreducing > 1 || unit->is_reducing))
        rc = reap(e);
    if (rc < 0 || unit->first == unit->end || unit->grad != NULL)
        return rc;
    rc = hkt__memory_zalloc(e->opts.memory, has_master ? HKT__MEMORY_MAIN_GRAD : HKT__MEMORY_GRAD,
                            (uint64_t)(unit->end - unit->first) * e->opts.ops->real_bytes, &unit->grad);
    hkt__engine_bind(e, f, number);
    return rc;
}

static enum hkt_status reduce_unit(struct hkt__engine *e, struct hkt__engine_flat *f, int number)
{
    struct hkt__engine_unit *unit = &f->unit[number];
    enum hkt_status rc = use_grads(e, f, number);

    if (rc < 0 || unit->first == unit->end)
        return rc;
    for (int b = unit->bucket_first; b < unit->bucket_end && rc == HKT_OK; b++)
        rc = hkt__engine_reduce_bucket(
            e, f, b, (char *)unit->grad + (size_t)(f->flat->bucket_first[b] - unit->first) * e->opts.ops->real_bytes);
    if (rc == HKT_OK)
        rc = record(e, unit->reduced);
    if (rc < 0)
        return rc;
    unit->is_reducing = true;
    unit->reductions++;
    e->reducing[e->nreducing++] = unit;
    return e->stream == NULL ? reap(e) : HKT_OK;
}

static enum hkt_status start_bucket(struct hkt__engine *e, struct hkt__engine_flat *f, int bucket)
{
    f->pending[bucket] = -1;
    return hkt__engine_reduce_bucket(
        e, f, bucket, (char *)f->grad + (size_t)f->flat->bucket_first[bucket] * e->opts.ops->real_bytes);
}

/* Stages 0 and 1: buckets start when all their units are final. */
static enum hkt_status final_in_buckets(struct hkt__engine *e, struct hkt__engine_flat *f, int number)
{
    const struct hkt__engine_unit *unit = &f->unit[number];
    enum hkt_status rc = HKT_OK;

    for (int b = unit->bucket_first; b < unit->bucket_end && rc == HKT_OK; b++)
        if (f->pending[b] > 0 && --f->pending[b] == 0)
            rc = start_bucket(e, f, b);
    return rc;
}

/* ---- what the model calls ---- */

enum hkt_status hkt__engine_begin(struct hkt__engine *e, int unit, unsigned use)
{
    enum hkt_status rc = HKT_OK;

    if ((use & HKT__USE_PARAM) != 0 && e->opts.zero == 3) {
        e->uses[unit]++;
        e->uses_all++;
        rc = use_params(e, unit, use);
    }
    for (int kind = 0; kind < HKT__FLAT_COUNT && rc == HKT_OK; kind++)
        if ((use & HKT__USE_GRAD) != 0 && e->opts.zero >= 2)
            rc = use_grads(e, &e->flat[kind], unit);
    return rc;
}

enum hkt_status hkt__engine_end(struct hkt__engine *e, int unit, unsigned use)
{
    if ((use & HKT__USE_PARAM) == 0 || e->opts.zero < 3)
        return HKT_OK;
    e->uses_all--;
    if (--e->uses[unit] == 0 && ((use & HKT__USE_BACKWARD) != 0 || !e->opts.keep_gathered))
        drop_params(e, unit);
    return HKT_OK;
}

enum hkt_status hkt__engine_final(struct hkt__engine *e, int unit)
{
    enum hkt_status rc = HKT_OK;

    for (int kind = 0; kind < HKT__FLAT_COUNT && rc == HKT_OK; kind++) {
        struct hkt__engine_flat *f = &e->flat[kind];

        rc = e->opts.zero >= 2 ? reduce_unit(e, f, unit) : final_in_buckets(e, f, unit);
    }
    return rc;
}

/* ---- ends of a step ---- */

enum hkt_status hkt__engine_start(struct hkt__engine *e)
{
    for (int kind = 0; kind < HKT__FLAT_COUNT; kind++) {
        struct hkt__engine_flat *f = &e->flat[kind];

        if (f->flat->padded > 0)
            memset(f->grad, 0, (size_t)hkt__engine_grad_elems(e, f) * e->opts.ops->real_bytes);
        memset(f->pending, 0, (size_t)f->flat->nbuckets * sizeof *f->pending);
        for (int u = 0; u < e->nunits; u++) {
            f->unit[u].reductions = 0;
            for (int b = f->unit[u].bucket_first; b < f->unit[u].bucket_end; b++)
                f->pending[b]++;
        }
    }
    return HKT_OK;
}

enum hkt_status hkt__engine_finish(struct hkt__engine *e)
{
    enum hkt_status rc = HKT_OK;

    for (int kind = 0; kind < HKT__FLAT_COUNT; kind++) {
        struct hkt__engine_flat *f = &e->flat[kind];

        for (int b = 0; b < f->flat->nbuckets && e->opts.zero < 2 && rc == HKT_OK; b++)
            if (f->pending[b] >= 0)
                rc = start_bucket(e, f, b);
        for (int u = e->nunits - 1; u >= 0 && e->opts.zero >= 2 && rc == HKT_OK; u--)
            if (f->unit[u].reductions == 0 || (f->unit[u].grad != NULL && !f->unit[u].is_reducing))
                rc = reduce_unit(e, f, u);
    }
    while (rc == HKT_OK && e->nreducing > 0)
        rc = reap(e);
    /* What was kept or gathered ahead is about to change. */
    for (int u = 0; u < e->nunits && e->opts.zero == 3 && rc == HKT_OK; u++) {
        for (int kind = 0; kind < HKT__FLAT_COUNT && rc == HKT_OK; kind++)
            if (e->flat[kind].unit[u].param != NULL)
                rc = hkt__engine_wait(e, e->flat[kind].unit[u].gathered);
        if (rc == HKT_OK)
            drop_params(e, u);
    }
    return rc == HKT_OK ? hkt__engine_drain(e) : rc;
}
