/* Making a model: what the configuration leaves open, its groups of ranks, its list of tensors and who holds which, and what
 * does not change from step to step. */
#include "parallel/gpt.h"

#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/gpt_state.h"

static void fill_zeros(struct hkt__gpt_config *config)
{
    struct hkt_shape *shape = &config->shape;

    shape->kv_heads = shape->kv_heads > 0 ? shape->kv_heads : shape->heads;
    shape->head_dim = shape->head_dim > 0 || shape->heads < 1 ? shape->head_dim : shape->hidden / shape->heads;
    shape->ffn = shape->ffn > 0 ? shape->ffn : 4 * shape->hidden;
    shape->dense_ffn = shape->dense_ffn > 0 ? shape->dense_ffn : shape->ffn;
    shape->top_k = shape->top_k > 0 ? shape->top_k : 1;
    config->norm_eps = config->norm_eps > 0 ? config->norm_eps : 1e-5;
    config->rotary_base = config->rotary_base > 0 ? config->rotary_base : 10000;
    config->init_deviation = config->init_deviation > 0 ? config->init_deviation : 0.02;
    config->chunks = config->chunks > 0 ? config->chunks : 1;
    config->vocab_multiple = config->vocab_multiple > 0 ? config->vocab_multiple : 1;
}

static enum hkt_status check(const struct hkt__gpt_config *config, const struct hkt_mesh *mesh)
{
    const struct hkt_shape *shape = &config->shape;
    const struct hkt_layout layout = {
        .nranks = hkt_mesh_nranks(mesh),
        .dp = hkt_mesh_size(mesh, "dp"),
        .tp = hkt_mesh_size(mesh, "tp"),
        .pp = hkt_mesh_size(mesh, "pp"),
        .ep = hkt_mesh_size(mesh, "ep"),
        .chunks = config->chunks,
        .sequence_parallel = config->sequence_parallel,
        .global_batch = config->micro_batch * hkt_mesh_size(mesh, "dp"),
        .micro_batch = config->micro_batch,
        .seq = config->seq,
        .schedule = config->chunks > 1 ? HKT_PIPE_INTERLEAVED : HKT_PIPE_GPIPE,
    };

    if (config->seq < 1 || config->micro_batch < 1)
        return hkt__parallel_fail(HKT_ERR_INVALID, "a model of sequences of %lld, %lld in a micro-batch: both must be at least 1",
                                  (long long)config->seq, (long long)config->micro_batch);
    if (!(config->dropout >= 0 && config->dropout < 1 && config->attention_dropout >= 0 && config->attention_dropout < 1))
        return hkt__parallel_fail(HKT_ERR_INVALID, "dropout %g, of attention %g: each is from 0 to less than 1", config->dropout,
                                  config->attention_dropout);
    if (shape->shared > 0 || shape->kv_rank > 0 || shape->q_rank > 0)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED,
                                  "shared experts and latent attention can be counted and planned, but not run");
    if (shape->positions == 0 && shape->head_dim % 2 != 0)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "rotary positions turn pairs, but a head has %lld dimensions; an even number, or "
                                  "learned positions",
                                  (long long)shape->head_dim);
    return hkt_layout_check(shape, &layout);
}

static enum hkt_status split_layers(struct hkt__gpt *gpt, const int *wanted)
{
    const int stages = gpt->pp * gpt->chunks, layers = gpt->config.shape.layers;
    const struct hkt_stage_opts opts = { .layers = layers, .stages = stages };

    gpt->stage_first = hkt__parallel_calloc((size_t)stages + 1, sizeof *gpt->stage_first);
    if (gpt->stage_first == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a split in %d stages", stages);
    if (wanted == NULL)
        return hkt_stage_split(&opts, gpt->stage_first);
    memcpy(gpt->stage_first, wanted, ((size_t)stages + 1) * sizeof *wanted);
    for (int i = 0; i < stages; i++)
        if (wanted[i + 1] <= wanted[i] || wanted[0] != 0 || wanted[stages] != layers)
            return hkt__parallel_fail(HKT_ERR_INVALID,
                                      "stage %d has layers [%d, %d): stages must cover the %d layers in their order, "
                                      "each at least one",
                                      i, wanted[i], wanted[i + 1], layers);
    return HKT_OK;
}

static enum hkt_status join(struct hkt__gpt *gpt, const char *name, enum hkt__traffic_axis axis,
                            struct hkt__link *out_link)
{
    out_link->axis = axis;
    out_link->traffic = &gpt->traffic;
    out_link->size = hkt_mesh_size(gpt->mesh, name);
    out_link->rank = hkt_mesh_coord(gpt->mesh, name, gpt->rank);
    return out_link->size == 1 ? HKT_OK : hkt_mesh_comm(gpt->mesh, name, &out_link->comm);
}

static enum hkt_status make_links(struct hkt__gpt *gpt)
{
    struct hkt__block *block = &gpt->block;
    const enum hkt__traffic_axis tp = block->is_cut ? HKT__TRAFFIC_SP : HKT__TRAFFIC_TP;
    struct hkt_head_shard heads;
    enum hkt_status rc = join(gpt, "tp", tp, &block->tp);

    if (rc == HKT_OK)
        rc = join(gpt, "pp", HKT__TRAFFIC_PP, &gpt->pp_link);
    if (rc == HKT_OK)
        rc = join(gpt, "ep", HKT__TRAFFIC_EP, &block->ep);
    if (rc == HKT_OK)
        rc = hkt_shard_heads(gpt->config.shape.heads, gpt->config.shape.kv_heads, block->tp.size, block->tp.rank,
                             &heads);
    if (rc < 0)
        return rc;
    gpt->copies = block->tp;
    gpt->copies.size = heads.copies;
    gpt->copies.rank = heads.copy;
    gpt->copies.comm = NULL;
    if (heads.copies > 1) {
        rc = hkt_comm_split(block->tp.comm, block->tp.rank / heads.copies, block->tp.rank, NULL, &gpt->copies.comm);
        if (rc < 0)
            return hkt__parallel_pass(rc, "ranks that hold the same key-value heads");
    }
    if (gpt->config.overlap && gpt->pp > 1) {
        rc = hkt_stream_create(&gpt->pp_link.stream);
        if (rc < 0)
            return hkt__parallel_pass(rc, "a stream for messages between stages");
    }
    block->heads = heads.q.count;
    block->first_head = heads.q.first;
    block->kv_heads = heads.kv.count;
    return HKT_OK;
}

static enum hkt_status make_own(struct hkt__gpt *gpt)
{
    const struct hkt__gpt_config *config = &gpt->config;
    const struct hkt__own_opts opts = {
        .mesh = gpt->mesh,
        .rank = gpt->rank,
        .params = gpt->params,
        .nparams = gpt->nparams,
        .heads = config->shape.heads,
        .kv_heads = config->shape.kv_heads,
        .experts = config->shape.experts,
        .vocab_multiple = config->vocab_multiple,
        .shard_axis = config->shard_axis,
        .expert_shard_axis = config->expert_shard_axis,
        .align = config->align,
        .bucket_elems = config->bucket_elems,
        .unit_buckets = config->unit_buckets,
    };
    const size_t units = (size_t)config->shape.layers + 2;
    enum hkt_status rc = hkt__own_create(&opts, &gpt->own);

    if (rc < 0)
        return rc;
    gpt->param = hkt__parallel_calloc(units, sizeof *gpt->param);
    gpt->grad = hkt__parallel_calloc(units, sizeof *gpt->grad);
    gpt->experts = hkt__parallel_calloc((size_t)config->shape.experts + 1, sizeof *gpt->experts);
    if (gpt->param == NULL || gpt->grad == NULL || gpt->experts == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a model of %zu units", units);
    return HKT_OK;
}

static enum hkt_status make_rotary(struct hkt__gpt *gpt)
{
    struct hkt__block *block = &gpt->block;
    const struct hkt__rotary_angles angles = { block->head_dim, gpt->config.rotary_base };
    const uint64_t bytes = (uint64_t)(gpt->config.seq * (block->head_dim / 2)) * block->ops->real_bytes;
    enum hkt_status rc = hkt__memory_alloc(block->memory, HKT__MEMORY_BUFFER, bytes, &block->cosines);

    if (rc == HKT_OK)
        rc = hkt__memory_alloc(block->memory, HKT__MEMORY_BUFFER, bytes, &block->sines);
    if (rc == HKT_OK)
        hkt__rotary_table(block->ops, block->cosines, block->sines, gpt->config.seq, &angles);
    return rc;
}

static enum hkt_status make_block(struct hkt__gpt *gpt)
{
    struct hkt__block *block = &gpt->block;
    const struct hkt__gpt_config *config = &gpt->config;
    void *positions = NULL;

    block->config = config;
    block->math = &gpt->math;
    block->ops = gpt->math.ops;
    block->real_ops = hkt__math_ops_of(gpt->math.ops->real);
    block->hidden = config->shape.hidden;
    block->head_dim = config->shape.head_dim;
    block->rows = config->seq * config->micro_batch;
    block->rows_here = block->is_cut ? block->rows / block->tp.size : block->rows;
    block->first_here = block->is_cut ? block->rows_here * block->tp.rank : 0;
    block->vocab =
        hkt_shard_vocab(config->shape.vocab, config->vocab_multiple, block->tp.size, block->tp.rank).rows;
    const enum hkt_status rc = hkt__memory_alloc(block->memory, HKT__MEMORY_BUFFER,
                                                 (uint64_t)block->rows * sizeof(int32_t), &positions);

    if (rc < 0)
        return rc;
    block->positions = positions;
    for (int64_t r = 0; r < block->rows; r++)
        block->positions[r] = (int32_t)(r % config->seq);
    return config->shape.positions > 0 ? HKT_OK : make_rotary(gpt);
}

static enum hkt_status make(struct hkt__gpt *gpt, const struct hkt__gpt_config *config, struct hkt__memory *memory)
{
    enum hkt_status rc;

    gpt->config = *config;
    fill_zeros(&gpt->config);
    gpt->config.stage_first = NULL;
    gpt->pp = hkt_mesh_size(gpt->mesh, "pp");
    gpt->stage = hkt_mesh_coord(gpt->mesh, "pp", gpt->rank);
    gpt->chunks = gpt->config.chunks;
    gpt->block.memory = memory;
    gpt->block.is_cut = gpt->config.sequence_parallel && hkt_mesh_size(gpt->mesh, "tp") > 1;
    rc = check(&gpt->config, gpt->mesh);
    if (rc == HKT_OK)
        rc = split_layers(gpt, config->stage_first);
    if (rc == HKT_OK)
        rc = hkt__gpt_list_params(gpt);
    if (rc == HKT_OK)
        rc = make_own(gpt);
    if (rc == HKT_OK)
        rc = make_links(gpt);
    if (rc == HKT_OK)
        rc = hkt__math_init(&gpt->math, gpt->config.dtype, memory);
    return rc < 0 ? rc : make_block(gpt);
}

enum hkt_status hkt__gpt_create(const struct hkt__gpt_config *config, struct hkt_mesh *mesh, int rank,
                                struct hkt__memory *memory, struct hkt__gpt **out_gpt)
{
    struct hkt__gpt *gpt = hkt__parallel_calloc(1, sizeof *gpt);

    if (gpt == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a model");
    gpt->mesh = mesh;
    gpt->rank = rank;
    const enum hkt_status rc = make(gpt, config, memory);

    if (rc < 0) {
        hkt__gpt_destroy(gpt);
        return rc;
    }
    *out_gpt = gpt;
    return HKT_OK;
}

void hkt__gpt_destroy(struct hkt__gpt *gpt)
{
    if (gpt == NULL)
        return;
    hkt__gpt_drop_slots(gpt);
    hkt_stream_destroy(gpt->pp_link.stream);
    hkt__memory_free(gpt->block.memory, gpt->block.positions);
    hkt__memory_free(gpt->block.memory, gpt->block.cosines);
    hkt__memory_free(gpt->block.memory, gpt->block.sines);
    if (gpt->math.ops != NULL)
        hkt__math_fini(&gpt->math);
    hkt_comm_destroy(gpt->copies.comm);
    hkt__own_destroy(gpt->own);
    hkt__parallel_free(gpt->param);
    hkt__parallel_free(gpt->grad);
    hkt__parallel_free(gpt->experts);
    hkt__parallel_free(gpt->params);
    hkt__parallel_free(gpt->infos);
    hkt__parallel_free(gpt->index);
    hkt__parallel_free(gpt->expert_index);
    hkt__parallel_free(gpt->stage_first);
    hkt__parallel_free(gpt);
}

const struct hkt__own *hkt__gpt_own(const struct hkt__gpt *gpt)
{
    return gpt->own;
}

const struct hkt__gpt_param *hkt__gpt_param_info(const struct hkt__gpt *gpt, int index)
{
    return &gpt->infos[index];
}

const struct hkt__math_ops *hkt__gpt_ops(const struct hkt__gpt *gpt)
{
    return gpt->math.ops;
}

struct hkt__traffic *hkt__gpt_traffic(struct hkt__gpt *gpt)
{
    return &gpt->traffic;
}

const int *hkt__gpt_stage_first(const struct hkt__gpt *gpt)
{
    return gpt->stage_first;
}

int hkt__gpt_units(const struct hkt__gpt *gpt)
{
    return gpt->config.shape.layers + 2;
}

/* Last tensor of a unit in the list: the first of its range. */
static int last_of(const struct hkt__gpt *gpt, int unit)
{
    int low = 0, high = gpt->nparams - 1;

    while (low < high) {
        const int middle = (low + high + 1) / 2;

        if (gpt->params[middle].unit <= unit)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

struct hkt_range hkt__gpt_unit_range(const struct hkt__gpt *gpt, int unit, int flat)
{
    const struct hkt_flat *buffer = gpt->own->flat[flat];
    const int64_t first = buffer->first[last_of(gpt, unit)];
    const int64_t end = unit == 0 ? buffer->padded : buffer->first[last_of(gpt, unit - 1)];
    const struct hkt_range range = { first, end - first };

    return range;
}

void hkt__gpt_bind_unit(struct hkt__gpt *gpt, int unit, int flat, void *param, void *grad)
{
    gpt->param[unit][flat] = param;
    gpt->grad[unit][flat] = grad;
}

void hkt__gpt_bind_flat(struct hkt__gpt *gpt, int flat, void *param, void *grad)
{
    for (int unit = 0; unit < hkt__gpt_units(gpt); unit++) {
        const size_t first = (size_t)hkt__gpt_unit_range(gpt, unit, flat).first;

        hkt__gpt_bind_unit(gpt, unit, flat,
                           param == NULL ? NULL : (char *)param + first * gpt->math.ops->store_bytes,
                           grad == NULL ? NULL : (char *)grad + first * gpt->math.ops->real_bytes);
    }
}

void hkt__gpt_init(struct hkt__gpt *gpt)
{
    for (int i = 0; i < gpt->nparams; i++) {
        const struct hkt__weight weight = hkt__gpt_weight(gpt, i);

        if (weight.value != NULL)
            hkt__gpt_init_tensor(gpt, i, gpt->math.ops, (void *)weight.value);
    }
}
