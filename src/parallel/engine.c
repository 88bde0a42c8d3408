/* What the training engine keeps where: making it, and its books of units. */
#include "parallel/engine.h"

#include <stdio.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/engine_parts.h"
#include "parallel/fail.h"

#define GROWTH_STEPS_DEFAULT 2000

/* ---- making ---- */

static enum hkt_status check(const struct hkt__engine_opts *o)
{
    if (o->zero < 0 || o->zero > 3)
        return hkt__parallel_fail(HKT_ERR_INVALID, "there is no ZeRO stage %d; stages are 0 to 3", o->zero);
    if (o->reduce_every && o->zero < 2)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "ZeRO stage %d keeps whole gradients, so nothing is won by reducing them after every "
                                  "micro-batch; use stage 2 or 3",
                                  o->zero);
    if (o->prefetch < 0 || o->prefetch > HKT__PREFETCH_MAX)
        return hkt__parallel_fail(HKT_ERR_INVALID, "prefetch of %d units; it is 0 to %d", o->prefetch,
                                  HKT__PREFETCH_MAX);
    if (o->only_params && o->zero != 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "parameters alone are whole on every rank: stage 0, not %d", o->zero);
    if (o->replica_axis != NULL && o->zero == 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "ZeRO stage 0 shards nothing, so it has no hybrid; use stage 1 to 3");
    return HKT_OK;
}

/* All axes of the mesh, "tp+dp+pp". */
static void world_axes(const struct hkt_mesh *mesh, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int i = 0; i < hkt_mesh_axis_count(mesh); i++) {
        const struct hkt_mesh_axis *axis = hkt_mesh_axis_get(mesh, i);
        const size_t at = strlen(text);

        if (axis->of < 0)
            snprintf(text + at, bytes - at, "%s%s", at > 0 ? "+" : "", axis->name);
    }
}

static enum hkt_status make_link(struct hkt__engine *e, const char *axes, int size, struct hkt__link *out_link)
{
    enum hkt_status rc = HKT_OK;

    *out_link = (struct hkt__link){ .stream = e->stream,
                                    .traffic = e->opts.traffic != NULL ? e->opts.traffic : &e->uncounted,
                                    .axis = HKT__TRAFFIC_DP,
                                    .size = size };
    if (size > 1)
        rc = hkt_mesh_comm(e->opts.mesh, axes, &out_link->comm);
    if (size > 1 && rc == HKT_OK)
        out_link->rank = hkt_comm_rank(out_link->comm);
    return rc;
}

static enum hkt_status make_world(struct hkt__engine *e)
{
    char axes[HKT_MESH_AXES_MAX * (HKT_MESH_NAME_MAX + 1)];
    enum hkt_status rc;

    world_axes(e->opts.mesh, axes, sizeof axes);
    rc = make_link(e, axes, hkt_mesh_nranks(e->opts.mesh), &e->world);
    e->world.stream = NULL;
    e->world.axis = HKT__TRAFFIC_SCALARS;
    return rc;
}

/* The groups of a flat buffer. All ranks of the mesh come here, with or without tensors of the kind. */
static enum hkt_status make_links(struct hkt__engine *e, int kind)
{
    struct hkt__engine_flat *f = &e->flat[kind];
    const bool by_parts = kind == HKT__FLAT_EXPERT && hkt_mesh_axis_find(e->opts.mesh, "ep") >= 0;
    const char *dense = e->opts.shard_axis != NULL ? e->opts.shard_axis : "dp", *axis = by_parts ? "edp" : dense;
    const char *replica = by_parts || e->opts.replica_axis == NULL ? "" : e->opts.replica_axis;
    enum hkt_status rc;

    rc = make_link(e, axis, hkt_mesh_size(e->opts.mesh, axis), &f->shards);
    if (rc == HKT_OK)
        rc = make_link(e, replica, hkt_mesh_size(e->opts.mesh, replica), &f->replicas);
    if (rc == HKT_OK && (f->shards.size != f->flat->shards || f->shards.rank != e->own->shard[kind]))
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "the engine shards over %d ranks of axis %s, the ownership map over %d",
                                f->shards.size, axis, f->flat->shards);
    return rc;
}

static enum hkt_status zalloc(struct hkt__engine *e, enum hkt__memory_class kind, int64_t elems, void **out_data)
{
    const bool is_param = kind == HKT__MEMORY_PARAM;

    return hkt__memory_zalloc(e->opts.memory, kind,
                              (uint64_t)elems * (is_param ? e->opts.ops->store_bytes : e->opts.ops->real_bytes), out_data);
}

static enum hkt_status make_buffers(struct hkt__engine *e, struct hkt__engine_flat *f)
{
    const struct hkt__engine_opts *o = &e->opts;
    const int64_t whole = f->flat->padded, state = hkt__engine_state_elems(e, f);
    const bool has_master = o->ops->store != o->ops->real;
    const enum hkt__memory_class grads = has_master ? HKT__MEMORY_MAIN_GRAD : HKT__MEMORY_GRAD;
    enum hkt_status rc;

    if (whole == 0)
        return HKT_OK;
    rc = zalloc(e, HKT__MEMORY_PARAM, o->zero == 3 ? whole / f->shards.size : whole, &f->param);
    if (rc == HKT_OK && !o->only_params)
        rc = zalloc(e, grads, hkt__engine_grad_elems(e, f), &f->grad);
    if (rc == HKT_OK && has_master)
        rc = zalloc(e, HKT__MEMORY_OPTIMIZER, state, &f->master);
    for (int i = 0; i < 2 && rc == HKT_OK; i++)
        if (hkt__engine_has_state(e, (enum hkt__state)(HKT__STATE_MOMENT1 + i)))
            rc = zalloc(e, HKT__MEMORY_OPTIMIZER, state, &f->moment[i]);
    return rc;
}

/* Where a unit's elements lie, and in which buckets. */
static void place_unit(const struct hkt__engine *e, struct hkt__engine_flat *f, int number)
{
    struct hkt__engine_unit *unit = &f->unit[number];
    const struct hkt_flat *flat = f->flat;

    unit->first = INT64_MAX;
    for (int i = 0; i < e->own->nparams; i++)
        if (e->own->params[i].unit == number && flat->count[i] > 0) {
            unit->first = flat->first[i] < unit->first ? flat->first[i] : unit->first;
            unit->end = flat->first[i] + flat->count[i] > unit->end ? flat->first[i] + flat->count[i] : unit->end;
        }
    if (unit->end == 0) {
        unit->first = 0;
        return;
    }
    while (flat->bucket_first[unit->bucket_first + 1] <= unit->first)
        unit->bucket_first++;
    for (unit->bucket_end = unit->bucket_first; flat->bucket_first[unit->bucket_end] < unit->end;)
        unit->bucket_end++;
    if (e->opts.zero >= 2) {
        unit->first = flat->bucket_first[unit->bucket_first];
        unit->end = flat->bucket_first[unit->bucket_end];
    }
}

static enum hkt_status make_units(struct hkt__engine *e, struct hkt__engine_flat *f)
{
    enum hkt_status rc = HKT_OK;

    f->unit = hkt__parallel_calloc((size_t)e->nunits, sizeof *f->unit);
    f->pending = hkt__parallel_calloc((size_t)f->flat->nbuckets + 1, sizeof *f->pending);
    if (f->unit == NULL || f->pending == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the books of %d units", e->nunits);
    for (int u = 0; u < e->nunits && rc == HKT_OK; u++) {
        place_unit(e, f, u);
        if (e->stream != NULL && e->opts.zero >= 2 && f->unit[u].end > 0) {
            rc = hkt_event_create(&f->unit[u].gathered);
            if (rc == HKT_OK)
                rc = hkt_event_create(&f->unit[u].reduced);
            if (rc < 0)
                return hkt__parallel_pass(rc, "an event of the training engine");
        }
    }
    return rc;
}

/* Pointers to tensors that stay where they are. */
static void place_tensors(struct hkt__engine *e)
{
    const struct hkt__math_ops *ops = e->opts.ops;

    for (int i = 0; i < e->own->nparams; i++) {
        const struct hkt__engine_flat *f = &e->flat[hkt__own_flat(&e->own->params[i])];

        if (f->flat->count[i] > 0 && e->opts.zero < 3)
            e->param[i] = (char *)f->param + (size_t)f->flat->first[i] * ops->store_bytes;
        if (f->flat->count[i] > 0 && f->grad != NULL && e->opts.zero < 2)
            e->grad[i] = (char *)f->grad + (size_t)f->flat->first[i] * ops->real_bytes;
    }
    for (int kind = 0; kind < HKT__FLAT_COUNT && e->opts.zero < 2 && e->opts.bind != NULL; kind++)
        if (e->flat[kind].flat->padded > 0)
            e->opts.bind(e->opts.bind_arg, -1, kind, e->flat[kind].param, e->flat[kind].grad);
    for (int u = 0; u < e->nunits; u++)
        for (int kind = 0; kind < HKT__FLAT_COUNT && e->opts.zero >= 2; kind++)
            hkt__engine_bind(e, &e->flat[kind], u);
}

static enum hkt_status make_flat(struct hkt__engine *e, int kind)
{
    struct hkt__engine_flat *f = &e->flat[kind];
    enum hkt_status rc;

    f->flat = e->own->flat[kind];
    rc = make_links(e, kind);
    if (rc == HKT_OK)
        rc = make_buffers(e, f);
    if (rc == HKT_OK)
        rc = make_units(e, f);
    return rc;
}

static enum hkt_status make(struct hkt__engine *e)
{
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < e->own->nparams; i++)
        e->nunits = e->own->params[i].unit + 1;
    e->uses = hkt__parallel_calloc((size_t)e->nunits + 1, sizeof *e->uses);
    e->reducing = hkt__parallel_calloc(2 * (size_t)e->nunits + 1, sizeof(struct hkt__engine_unit *));
    e->param = hkt__parallel_calloc((size_t)e->own->nparams + 1, sizeof(void *));
    e->grad = hkt__parallel_calloc((size_t)e->own->nparams + 1, sizeof(void *));
    if (rc == HKT_OK && (e->uses == NULL || e->reducing == NULL || e->param == NULL || e->grad == NULL))
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a training engine");
    if (rc == HKT_OK && e->opts.overlap && hkt_mesh_nranks(e->opts.mesh) > 1) {
        rc = hkt_stream_create(&e->stream);
        if (rc < 0)
            return hkt__parallel_pass(rc, "the stream of the training engine");
    }
    if (rc == HKT_OK)
        rc = make_world(e);
    for (int kind = 0; kind < HKT__FLAT_COUNT && rc == HKT_OK; kind++)
        rc = make_flat(e, kind);
    if (rc == HKT_OK)
        place_tensors(e);
    return rc;
}

enum hkt_status hkt__engine_create(const struct hkt__engine_opts *opts, struct hkt__engine **out_engine)
{
    enum hkt_status rc = check(opts);

    if (rc < 0)
        return rc;
    struct hkt__engine *e = hkt__parallel_calloc(1, sizeof *e);

    if (e == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a training engine");
    e->opts = *opts;
    e->own = opts->own;
    e->real_ops = hkt__math_ops_of(opts->ops->real);
    e->opts.scale_growth_steps = opts->scale_growth_steps > 0 ? opts->scale_growth_steps : GROWTH_STEPS_DEFAULT;
    e->loss_scale = opts->loss_scale > 0 ? opts->loss_scale : 1;
    rc = make(e);
    if (rc < 0) {
        hkt__engine_destroy(e);
        return rc;
    }
    *out_engine = e;
    return HKT_OK;
}

static void destroy_flat(struct hkt__engine *e, struct hkt__engine_flat *f)
{
    for (int u = 0; u < e->nunits && f->unit != NULL; u++) {
        hkt__memory_free(e->opts.memory, f->unit[u].param);
        hkt__memory_free(e->opts.memory, f->unit[u].grad);
        hkt_event_destroy(f->unit[u].gathered);
        hkt_event_destroy(f->unit[u].reduced);
    }
    hkt__parallel_free(f->unit);
    hkt__parallel_free(f->pending);
    void *all[] = { f->param, f->grad, f->master, f->moment[0], f->moment[1] };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        hkt__memory_free(e->opts.memory, all[i]);
}

void hkt__engine_destroy(struct hkt__engine *e)
{
    if (e == NULL)
        return;
    hkt_stream_destroy(e->stream); /* waits: buffers are in use until then */
    for (int kind = 0; kind < HKT__FLAT_COUNT; kind++)
        destroy_flat(e, &e->flat[kind]);
    hkt__parallel_free(e->uses);
    hkt__parallel_free(e->reducing);
    hkt__parallel_free(e->param);
    hkt__parallel_free(e->grad);
    hkt__parallel_free(e);
}

/* ---- small questions ---- */

void *hkt__engine_param(const struct hkt__engine *e, int param)
{
    return e->param[param];
}

void *hkt__engine_grad(const struct hkt__engine *e, int param)
{
    return e->grad[param];
}

double hkt__engine_loss_scale(const struct hkt__engine *e)
{
    return e->loss_scale;
}

struct hkt__engine_clock hkt__engine_clock_get(const struct hkt__engine *e)
{
    return (struct hkt__engine_clock){ e->steps, e->loss_scale, e->good_steps };
}

void hkt__engine_clock_set(struct hkt__engine *e, const struct hkt__engine_clock *clock)
{
    e->steps = clock->steps;
    e->loss_scale = clock->loss_scale;
    e->good_steps = clock->good_steps;
}
