/* Cutting the tensors, deciding who counts, and walking over what this rank updates. */
#include "parallel/ownership.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/mesh.h"

/* Coordinates of the rank, and what each axis adds to its number. */
struct place {
    const struct hkt__own_opts *opts;
    int tp, tp_index, pp, pp_index, ep, ep_index;
    const char *shard_axis[HKT__FLAT_COUNT];
};

static void place_of(const struct hkt__own_opts *opts, struct place *place)
{
    const struct hkt_mesh *mesh = opts->mesh;

    place->opts = opts;
    place->tp = hkt_mesh_size(mesh, "tp");
    place->tp_index = hkt_mesh_coord(mesh, "tp", opts->rank);
    place->pp = hkt_mesh_size(mesh, "pp");
    place->pp_index = hkt_mesh_coord(mesh, "pp", opts->rank);
    place->ep = hkt_mesh_size(mesh, "ep");
    place->ep_index = hkt_mesh_coord(mesh, "ep", opts->rank);
    place->shard_axis[HKT__FLAT_DENSE] = opts->shard_axis == NULL ? "dp" : opts->shard_axis;
    place->shard_axis[HKT__FLAT_EXPERT] = opts->expert_shard_axis != NULL       ? opts->expert_shard_axis
                                          : hkt_mesh_axis_find(mesh, "ep") >= 0 ? "edp"
                                                                                : place->shard_axis[HKT__FLAT_DENSE];
}

static void add_piece(struct hkt__held *held, int64_t first, int64_t count, int64_t unit)
{
    struct hkt__piece *piece = &held->piece[held->npieces++];
    const struct hkt__piece *before = piece - 1;

    piece->first = first * unit;
    piece->count = count * unit;
    piece->local_first = held->npieces == 1 ? 0 : before->local_first + before->count;
}

static enum hkt_status cut_by_heads(const struct place *place, const struct hkt__param *param, struct hkt__held *held,
                                    int *out_copy)
{
    const int heads = place->opts->heads, kv_heads = place->opts->kv_heads;
    const int64_t all = (param->cut != HKT__CUT_KV ? heads : 0)
                        + (param->cut == HKT__CUT_QKV ? 2 : 1) * (param->cut != HKT__CUT_Q ? kv_heads : 0);
    struct hkt_head_shard shard;
    const enum hkt_status rc = hkt_shard_heads(heads, kv_heads, place->tp, place->tp_index, &shard);

    if (rc < 0)
        return rc;
    if (param->shape[param->cut_dim] % all != 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "tensor %s: %lld does not divide by its %lld heads", param->name,
                                  (long long)param->shape[param->cut_dim], (long long)all);
    const int64_t unit = param->shape[param->cut_dim] / all;

    if (param->cut != HKT__CUT_KV)
        add_piece(held, shard.q.first, shard.q.count, unit);
    if (param->cut == HKT__CUT_KV)
        add_piece(held, shard.kv.first, shard.kv.count, unit);
    if (param->cut == HKT__CUT_QKV) {
        add_piece(held, heads + shard.kv.first, shard.kv.count, unit);
        add_piece(held, heads + kv_heads + shard.kv.first, shard.kv.count, unit);
    }
    *out_copy = param->cut == HKT__CUT_Q ? 0 : shard.copy;
    /* The q part of a fused tensor is on one rank while its kv part is on several: no rank could count the whole. */
    if (param->cut == HKT__CUT_QKV && shard.copies > 1)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED,
                                  "tensor %s: q, k and v in one tensor cannot be cut by tp %d with %d kv heads; keep q "
                                  "apart from k and v",
                                  param->name, place->tp, kv_heads);
    return HKT_OK;
}

static enum hkt_status cut(const struct place *place, const struct hkt__param *param, struct hkt__held *held,
                           int *out_copy)
{
    const int64_t whole = param->shape[param->cut_dim];
    struct hkt_range part;

    *out_copy = 0;
    switch (param->cut) {
    case HKT__CUT_NONE:
        break;
    case HKT__CUT_EVEN:
        part = hkt_shard_even(whole, place->tp, place->tp_index);
        add_piece(held, part.first, part.count, 1);
        break;
    case HKT__CUT_VOCAB:
        part = hkt_shard_vocab(whole, place->opts->vocab_multiple > 0 ? place->opts->vocab_multiple : 1, place->tp,
                               place->tp_index)
                   .rows;
        add_piece(held, part.first, part.count, 1);
        break;
    case HKT__CUT_GATE_UP:
        if (whole % 2 != 0)
            return hkt__parallel_fail(HKT_ERR_INVALID, "tensor %s: gate and up are halves, but %lld is odd",
                                      param->name, (long long)whole);
        part = hkt_shard_even(whole / 2, place->tp, place->tp_index);
        add_piece(held, part.first, part.count, 1);
        add_piece(held, whole / 2 + part.first, part.count, 1);
        break;
    case HKT__CUT_Q:
    case HKT__CUT_KV:
    case HKT__CUT_QKV:
        return cut_by_heads(place, param, held, out_copy);
    }
    return HKT_OK;
}

/* Is the rank the lowest of those that hold and update the same elements? Along the axes that tell them apart its
 * coordinate is taken off; what is left of its number must be 0. */
static bool is_lowest(const struct place *place, const struct hkt__param *param)
{
    const struct hkt_mesh *mesh = place->opts->mesh;
    const char *apart[4] = { "pp", place->shard_axis[hkt__own_flat(param)], NULL, NULL };
    int rank = place->opts->rank, n = 2;

    if (param->cut != HKT__CUT_NONE)
        apart[n++] = "tp";
    if (param->expert >= 0)
        apart[n++] = "ep";
    for (int i = 0; i < n; i++)
        rank = hkt_mesh_moved(mesh, apart[i], rank, 0);
    return rank == 0;
}

static enum hkt_status check_param(const struct place *place, const struct hkt__param *param)
{
    bool is_ok = param->ndims >= 1 && param->ndims <= HKT__PARAM_DIMS_MAX && param->cut_dim >= 0
                 && param->cut_dim < param->ndims;

    for (int i = 0; i < param->ndims && is_ok; i++)
        is_ok = param->shape[i] >= 1;
    if (!is_ok)
        return hkt__parallel_fail(HKT_ERR_INVALID, "tensor %s: its shape or cut_dim is impossible", param->name);
    if (param->stage < 0 || param->stage >= place->pp || param->tied_stage < -1 || param->tied_stage >= place->pp)
        return hkt__parallel_fail(HKT_ERR_INVALID, "tensor %s: stage %d (tied: %d) of %d", param->name, param->stage,
                                  param->tied_stage, place->pp);
    if (param->expert < -1 || param->expert >= place->opts->experts)
        return hkt__parallel_fail(HKT_ERR_INVALID, "tensor %s: expert %d of %d", param->name, param->expert,
                                  place->opts->experts);
    return HKT_OK;
}

static enum hkt_status hold(const struct place *place, const struct hkt__param *param, struct hkt__held *held)
{
    int copy = 0;
    enum hkt_status rc = check_param(place, param);

    if (rc == HKT_OK)
        rc = cut(place, param, held, &copy);
    if (rc < 0)
        return rc;
    held->holds = param->stage == place->pp_index || param->tied_stage == place->pp_index;
    if (param->expert >= 0) {
        const struct hkt_range mine = hkt_shard_even(place->opts->experts, place->ep, place->ep_index);

        held->holds = held->holds && param->expert >= mine.first && param->expert < mine.first + mine.count;
    }
    held->local_count = held->holds;
    for (int i = 0; i < param->ndims; i++) {
        const struct hkt__piece *last = &held->piece[held->npieces > 0 ? held->npieces - 1 : 0];

        held->local_shape[i] =
            i == param->cut_dim && held->npieces > 0 ? last->local_first + last->count : param->shape[i];
        held->local_count *= held->local_shape[i];
    }
    held->counts = held->holds && param->stage == place->pp_index && copy == 0 && is_lowest(place, param);
    return HKT_OK;
}

static enum hkt_status make_flats(const struct place *place, struct hkt__own *own)
{
    const struct hkt__own_opts *opts = place->opts;
    int64_t *counts = hkt__parallel_calloc((size_t)own->nparams, sizeof *counts);
    int *units = hkt__parallel_calloc((size_t)own->nparams, sizeof *units);
    enum hkt_status rc = HKT_OK;

    if (counts == NULL || units == NULL)
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for an ownership map");
    for (int flat = 0; flat < HKT__FLAT_COUNT && rc == HKT_OK; flat++) {
        const char *axis = place->shard_axis[flat];
        const struct hkt_flat_opts flat_opts = { .counts = counts,
                                                 .units = units,
                                                 .ntensors = own->nparams,
                                                 .shards = hkt_mesh_size(opts->mesh, axis),
                                                 .align = opts->align > 0 ? opts->align : 1,
                                                 .bucket_elems = opts->bucket_elems,
                                                 .unit_buckets = opts->unit_buckets };

        for (int i = 0; i < own->nparams; i++) {
            counts[i] = hkt__own_flat(&own->params[i]) == flat ? own->held[i].local_count : 0;
            units[i] = own->params[i].unit;
        }
        own->shard[flat] = hkt_mesh_coord(opts->mesh, axis, opts->rank);
        rc = hkt_flat_create(&flat_opts, &own->flat[flat]);
    }
    hkt__parallel_free(counts);
    hkt__parallel_free(units);
    return rc;
}

/* Flat buffers are sharded along dp or a part of it; experts' not along what tells their holders apart. */
static enum hkt_status check_axes(const struct place *place)
{
    const struct hkt_mesh *mesh = place->opts->mesh;
    const int dp = hkt_mesh_axis_find(mesh, "dp");

    for (int flat = 0; flat < HKT__FLAT_COUNT; flat++) {
        const char *name = place->shard_axis[flat];
        const int index = hkt_mesh_axis_find(mesh, name);

        if (index < 0 && (strcmp(name, "dp") == 0 || strcmp(name, "edp") == 0))
            continue;
        if (index < 0 || (index != dp && hkt_mesh_axis_get(mesh, index)->of != dp))
            return hkt__parallel_fail(HKT_ERR_INVALID,
                                      "mesh \"%s\": \"%s\" is neither dp nor a part of it; state is "
                                      "sharded over ranks that hold the same",
                                      hkt_mesh_layout(mesh), name);
        uint32_t mask;
        char both[2 * HKT_MESH_NAME_MAX];

        snprintf(both, sizeof both, "ep+%s", name);
        if (flat == HKT__FLAT_EXPERT && place->ep > 1) {
            const enum hkt_status rc = hkt__mesh_mask(mesh, both, &mask);

            if (rc < 0)
                return rc;
        }
    }
    return HKT_OK;
}

enum hkt_status hkt__own_create(const struct hkt__own_opts *opts, struct hkt__own **out_own)
{
    struct hkt__own *own = hkt__parallel_calloc(1, sizeof *own);
    struct place place;
    enum hkt_status rc;

    if (own != NULL)
        own->held = hkt__parallel_calloc((size_t)opts->nparams, sizeof *own->held);
    if (own == NULL || own->held == NULL) {
        hkt__own_destroy(own);
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for an ownership map");
    }
    place_of(opts, &place);
    rc = check_axes(&place);
    own->params = opts->params;
    own->nparams = opts->nparams;
    for (int i = 0; i < opts->nparams && rc == HKT_OK; i++)
        rc = hold(&place, &opts->params[i], &own->held[i]);
    if (rc == HKT_OK)
        rc = make_flats(&place, own);
    if (rc < 0) {
        hkt__own_destroy(own);
        return rc;
    }
    *out_own = own;
    return HKT_OK;
}

void hkt__own_destroy(struct hkt__own *own)
{
    if (own == NULL)
        return;
    for (int flat = 0; flat < HKT__FLAT_COUNT; flat++)
        hkt_flat_destroy(own->flat[flat]);
    hkt__parallel_free(own->held);
    hkt__parallel_free(own);
}

int64_t hkt__held_global(const struct hkt__param *param, const struct hkt__held *held, int64_t local, int64_t *out_run)
{
    if (held->npieces == 0) {
        *out_run = held->local_count - local;
        return local;
    }
    int64_t inner = 1;

    for (int i = param->cut_dim + 1; i < param->ndims; i++)
        inner *= param->shape[i];
    const int64_t here = held->local_shape[param->cut_dim], whole = param->shape[param->cut_dim];
    const int64_t outer = local / (here * inner), d = local / inner % here;
    const struct hkt__piece *piece = held->piece;

    while (d >= piece->local_first + piece->count)
        piece++;
    *out_run = (piece->local_first + piece->count - d) * inner - local % inner;
    return (outer * whole + piece->first + d - piece->local_first) * inner + local % inner;
}

/* The tensor that lies at a place of a flat buffer; -1 in padding. out_left: how far its end is, or that of the
 * padding. */
static int tensor_at(const struct hkt_flat *flat, int64_t at, int64_t *out_left)
{
    /* first[] descends. The lowest tensor with first <= at holds it: of several that begin at one place, only the
     * lowest has elements. */
    int low = 0, high = flat->ntensors - 1;

    while (low < high) {
        const int middle = (low + high) / 2;

        if (flat->first[middle] <= at)
            high = middle;
        else
            low = middle + 1;
    }
    const int64_t end = flat->first[low] + flat->count[low];

    *out_left = (at < end ? end : low == 0 ? flat->padded : flat->first[low - 1]) - at;
    return at < end ? low : -1;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

bool hkt__own_next(const struct hkt__own *own, bool counted_only, struct hkt__own_cursor *cursor,
                   struct hkt__run *out_run)
{
    while (cursor->flat < HKT__FLAT_COUNT) {
        const struct hkt_flat *flat = own->flat[cursor->flat];

        if (cursor->bucket == flat->nbuckets) {
            cursor->flat++;
            cursor->bucket = 0;
            continue;
        }
        const struct hkt_range shard = hkt_flat_shard(flat, cursor->bucket, own->shard[cursor->flat]);
        const int64_t at = shard.first + cursor->at;
        int64_t left, run;

        if (cursor->at == shard.count) {
            cursor->bucket++;
            cursor->at = 0;
            continue;
        }
        const int param = tensor_at(flat, at, &left);
        const int64_t count = least(left, shard.count - cursor->at);

        if (param < 0 || (counted_only && !own->held[param].counts)) {
            cursor->at += count;
            continue;
        }
        const int64_t local = at - flat->first[param];

        out_run->param = param;
        out_run->flat = cursor->flat;
        out_run->bucket = cursor->bucket;
        out_run->flat_first = at;
        out_run->local_first = local;
        out_run->global_first = hkt__held_global(&own->params[param], &own->held[param], local, &run);
        out_run->count = least(count, run);
        cursor->at += out_run->count;
        return true;
    }
    return false;
}
