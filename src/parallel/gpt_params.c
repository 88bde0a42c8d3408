/* The list of a model's tensors, and where each lies now.
 *
 * Flat buffers hold tensors in the reverse of this list, so what is listed v, k, q lies as q, k, v: one matrix for one
 * product, though three tensors to the ownership map (key-value heads may be on several ranks, query heads never). The same
 * with gate and up. What sequence parallelism must add up over tp (norms, biases behind a reduction, positions) is listed
 * together too. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/gpt_state.h"

enum dim { NONE, HIDDEN, QUERIES, KEYS, FFN, VOCAB, POSITIONS, EXPERTS };

/* When a model, or a layer of it, has the tensor: all of the bits must hold. */
enum {
    BIASES = 1,
    NORM_BIAS = 2,
    GATED = 4,
    PLAIN = 8,
    DENSE = 16,
    SPARSE = 32,
    LEARNED = 64,
    UNTIED = 128,
};

struct row {
    enum hkt__gpt_tensor tensor;
    unsigned when;
    const char *name, *file_name; /* file_name NULL: as name; after the prefix */
    enum dim out, in;             /* in NONE: a vector */
    enum hkt__cut cut;
    int cut_dim, file_part, file_parts;
};

static const struct row first_rows[] = {
    { HKT__T_WPE, LEARNED, "wpe.weight", NULL, POSITIONS, HIDDEN, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_WTE, 0, "wte.weight", NULL, VOCAB, HIDDEN, HKT__CUT_VOCAB, 0, 0, 1 },
};

static const struct row layer_rows[] = {
    { HKT__T_NORM1, 0, "ln_1.weight", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_NORM1_BIAS, NORM_BIAS, "ln_1.bias", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_NORM2, 0, "ln_2.weight", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_NORM2_BIAS, NORM_BIAS, "ln_2.bias", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_ATTN_BIAS, BIASES, "attn.c_proj.bias", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_MLP_BIAS, BIASES | DENSE, "mlp.c_proj.bias", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_V_BIAS, BIASES, "attn.c_attn.v.bias", "attn.c_attn.bias", KEYS, NONE, HKT__CUT_KV, 0, 2, 3 },
    { HKT__T_K_BIAS, BIASES, "attn.c_attn.k.bias", "attn.c_attn.bias", KEYS, NONE, HKT__CUT_KV, 0, 1, 3 },
    { HKT__T_Q_BIAS, BIASES, "attn.c_attn.q.bias", "attn.c_attn.bias", QUERIES, NONE, HKT__CUT_Q, 0, 0, 3 },
    { HKT__T_V, 0, "attn.c_attn.v.weight", "attn.c_attn.weight", KEYS, HIDDEN, HKT__CUT_KV, 0, 2, 3 },
    { HKT__T_K, 0, "attn.c_attn.k.weight", "attn.c_attn.weight", KEYS, HIDDEN, HKT__CUT_KV, 0, 1, 3 },
    { HKT__T_Q, 0, "attn.c_attn.q.weight", "attn.c_attn.weight", QUERIES, HIDDEN, HKT__CUT_Q, 0, 0, 3 },
    { HKT__T_ATTN_OUT, 0, "attn.c_proj.weight", NULL, HIDDEN, QUERIES, HKT__CUT_Q, 1, 0, 1 },
    { HKT__T_ROUTER, SPARSE, "mlp.router.weight", NULL, EXPERTS, HIDDEN, HKT__CUT_NONE, 0, 0, 1 },
};

/* Of a dense layer under "mlp.", of an expert under "mlp.experts.<e>.". The bias behind the product is above in a dense
 * layer. */
static const struct row mlp_rows[] = {
    { HKT__T_MLP_BIAS, BIASES | SPARSE, "c_proj.bias", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_UP_BIAS, BIASES | GATED, "c_up.bias", NULL, FFN, NONE, HKT__CUT_EVEN, 0, 0, 1 },
    { HKT__T_GATE_BIAS, BIASES | GATED, "c_gate.bias", NULL, FFN, NONE, HKT__CUT_EVEN, 0, 0, 1 },
    { HKT__T_GATE_BIAS, BIASES | PLAIN, "c_fc.bias", NULL, FFN, NONE, HKT__CUT_EVEN, 0, 0, 1 },
    { HKT__T_UP, GATED, "c_up.weight", NULL, FFN, HIDDEN, HKT__CUT_EVEN, 0, 0, 1 },
    { HKT__T_GATE, GATED, "c_gate.weight", NULL, FFN, HIDDEN, HKT__CUT_EVEN, 0, 0, 1 },
    { HKT__T_GATE, PLAIN, "c_fc.weight", NULL, FFN, HIDDEN, HKT__CUT_EVEN, 0, 0, 1 },
    { HKT__T_MLP_OUT, 0, "c_proj.weight", NULL, HIDDEN, FFN, HKT__CUT_EVEN, 1, 0, 1 },
};

static const struct row last_rows[] = {
    { HKT__T_NORM_LAST, 0, "transformer.ln_f.weight", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_NORM_LAST_BIAS, NORM_BIAS, "transformer.ln_f.bias", NULL, HIDDEN, NONE, HKT__CUT_NONE, 0, 0, 1 },
    { HKT__T_HEAD, UNTIED, "lm_head.weight", NULL, VOCAB, HIDDEN, HKT__CUT_VOCAB, 0, 0, 1 },
};

/* Where in the model the next rows are, and how many tensors there were. params of the model NULL: just count. */
struct list {
    struct hkt__gpt *gpt;
    char prefix[64];
    int unit, stage, expert, count;
    unsigned has;
    int64_t ffn;
};

static int64_t extent(const struct list *list, enum dim dim)
{
    const struct hkt_shape *shape = &list->gpt->config.shape;

    switch (dim) {
    case NONE:
        break;
    case HIDDEN:
        return shape->hidden;
    case QUERIES:
        return shape->heads * shape->head_dim;
    case KEYS:
        return shape->kv_heads * shape->head_dim;
    case FFN:
        return list->ffn;
    case VOCAB:
        return shape->vocab;
    case POSITIONS:
        return shape->positions;
    case EXPERTS:
        return shape->experts;
    }
    return 1;
}

static void add(struct list *list, const struct row *row)
{
    struct hkt__gpt *gpt = list->gpt;
    const int index = list->count++;

    if (gpt->params == NULL)
        return;
    struct hkt__param *param = &gpt->params[index];
    struct hkt__gpt_param *info = &gpt->infos[index];

    snprintf(info->name, sizeof info->name, "%s%s", list->prefix, row->name);
    snprintf(info->file_name, sizeof info->file_name, "%s%s", list->prefix,
             row->file_name == NULL ? row->name : row->file_name);
    info->file_part = row->file_part;
    info->file_parts = row->file_parts;
    info->file_transposed = row->in != NONE && list->unit > 0 && list->unit <= gpt->config.shape.layers
                            && row->tensor != HKT__T_ROUTER;
    info->tensor = (int)row->tensor;
    param->name = info->name;
    param->ndims = row->in == NONE ? 1 : 2;
    param->shape[0] = extent(list, row->out);
    param->shape[1] = extent(list, row->in);
    param->cut = row->cut;
    param->cut_dim = row->cut_dim;
    param->stage = list->stage;
    param->tied_stage = row->tensor == HKT__T_WTE && gpt->config.shape.tied && gpt->pp > 1 ? gpt->pp - 1 : -1;
    param->unit = list->unit;
    param->expert = list->expert;
    if (list->expert < 0)
        gpt->index[list->unit][row->tensor] = index;
}

/* Place of an expert's tensor in the six. */
static int expert_slot(enum hkt__gpt_tensor tensor)
{
    switch (tensor) {
    case HKT__T_GATE:
        return 0;
    case HKT__T_GATE_BIAS:
        return 1;
    case HKT__T_MLP_OUT:
        return 2;
    default:
        return 3; /* HKT__T_MLP_BIAS */
    }
}

static void add_rows(struct list *list, const struct row *rows, size_t nrows)
{
    struct hkt__gpt *gpt = list->gpt;

    for (size_t i = 0; i < nrows; i++) {
        if ((rows[i].when & ~list->has) != 0)
            continue;
        if (list->expert >= 0 && gpt->params != NULL && rows[i].tensor != HKT__T_UP && rows[i].tensor != HKT__T_UP_BIAS)
            gpt->expert_index[(list->unit * gpt->config.shape.experts + list->expert) * HKT__T_EXPERT_COUNT
                              + expert_slot(rows[i].tensor)] = list->count;
        add(list, &rows[i]);
    }
}

#define ADD(list, rows) add_rows(list, rows, sizeof rows / sizeof rows[0])

static void add_layer(struct list *list, int layer)
{
    const struct hkt_shape *shape = &list->gpt->config.shape;
    const unsigned has = list->has;
    const bool is_sparse = hkt__gpt_has_experts(&list->gpt->config, layer);
    int stage = 0;

    while (list->gpt->stage_first[stage + 1] <= layer)
        stage++;
    list->unit = 1 + layer;
    list->stage = stage % list->gpt->pp;
    list->ffn = shape->experts > 0 && !is_sparse ? shape->dense_ffn : shape->ffn;
    list->has = has | (is_sparse ? SPARSE : DENSE);
    snprintf(list->prefix, sizeof list->prefix, "transformer.h.%d.", layer);
    ADD(list, layer_rows);
    for (int e = 0; e < shape->experts && is_sparse; e++) {
        list->expert = e;
        snprintf(list->prefix, sizeof list->prefix, "transformer.h.%d.mlp.experts.%d.", layer, e);
        ADD(list, mlp_rows);
    }
    list->expert = -1;
    snprintf(list->prefix, sizeof list->prefix, "transformer.h.%d.mlp.", layer);
    if (!is_sparse)
        ADD(list, mlp_rows);
    list->has = has;
}

static int list_all(struct hkt__gpt *gpt)
{
    const struct hkt_shape *shape = &gpt->config.shape;
    struct list list = { .gpt = gpt, .prefix = "transformer.", .expert = -1 };

    list.has = (shape->biases ? (unsigned)BIASES : 0)
               | (shape->biases && gpt->config.norm == HKT__NORM_LAYER ? (unsigned)NORM_BIAS : 0)
               | (shape->gated ? (unsigned)GATED : (unsigned)PLAIN) | (shape->positions > 0 ? (unsigned)LEARNED : 0)
               | (shape->tied ? 0 : (unsigned)UNTIED);
    ADD(&list, first_rows);
    for (int layer = 0; layer < shape->layers; layer++)
        add_layer(&list, layer);
    list.unit = shape->layers + 1;
    list.stage = gpt->pp - 1;
    list.prefix[0] = '\0';
    ADD(&list, last_rows);
    return list.count;
}

enum hkt_status hkt__gpt_list_params(struct hkt__gpt *gpt)
{
    const size_t units = (size_t)gpt->config.shape.layers + 2, experts = (size_t)gpt->config.shape.experts;
    const int count = list_all(gpt);

    gpt->infos = hkt__parallel_calloc((size_t)count, sizeof *gpt->infos);
    gpt->index = hkt__parallel_calloc(units, sizeof *gpt->index);
    gpt->expert_index = hkt__parallel_calloc(units * experts * HKT__T_EXPERT_COUNT + 1, sizeof *gpt->expert_index);
    gpt->params = hkt__parallel_calloc((size_t)count, sizeof *gpt->params);
    if (gpt->infos == NULL || gpt->index == NULL || gpt->expert_index == NULL || gpt->params == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a list of %d tensors", count);
    memset(gpt->index, 0xff, units * sizeof *gpt->index); /* all -1 */
    memset(gpt->expert_index, 0xff, units * experts * HKT__T_EXPERT_COUNT * sizeof *gpt->expert_index);
    gpt->nparams = list_all(gpt);
    return HKT_OK;
}

struct hkt__weight hkt__gpt_weight(const struct hkt__gpt *gpt, int index)
{
    struct hkt__weight weight = { NULL, NULL };

    if (index < 0 || !gpt->own->held[index].holds)
        return weight;
    const int unit = gpt->params[index].unit, flat = hkt__own_flat(&gpt->params[index]);
    const size_t at = (size_t)(gpt->own->flat[flat]->first[index] - hkt__gpt_unit_range(gpt, unit, flat).first);
    char *param = gpt->param[unit][flat], *grad = gpt->grad[unit][flat];

    if (param != NULL)
        weight.value = param + at * gpt->math.ops->store_bytes;
    if (grad != NULL)
        weight.grad = grad + at * gpt->math.ops->real_bytes;
    return weight;
}

static struct hkt__weight weight_of(const struct hkt__gpt *gpt, int unit, enum hkt__gpt_tensor tensor)
{
    return hkt__gpt_weight(gpt, gpt->index[unit][tensor]);
}

static int64_t width_of(const struct hkt__gpt *gpt, int index)
{
    return gpt->own->held[index].local_shape[0];
}

static void expert_weights(const struct hkt__gpt *gpt, int unit, struct hkt__mlp_weights *out_experts)
{
    const struct hkt_range mine = hkt_shard_even(gpt->config.shape.experts, gpt->block.ep.size, gpt->block.ep.rank);

    for (int64_t e = 0; e < mine.count; e++) {
        const int *index =
            gpt->expert_index + (unit * gpt->config.shape.experts + mine.first + e) * HKT__T_EXPERT_COUNT;

        out_experts[e].gate = hkt__gpt_weight(gpt, index[expert_slot(HKT__T_GATE)]);
        out_experts[e].gate_bias = hkt__gpt_weight(gpt, index[expert_slot(HKT__T_GATE_BIAS)]);
        out_experts[e].out = hkt__gpt_weight(gpt, index[expert_slot(HKT__T_MLP_OUT)]);
        out_experts[e].out_bias = hkt__gpt_weight(gpt, index[expert_slot(HKT__T_MLP_BIAS)]);
        out_experts[e].width = width_of(gpt, index[expert_slot(HKT__T_GATE)]);
    }
}

void hkt__gpt_layer_weights(const struct hkt__gpt *gpt, int layer, struct hkt__layer_weights *out_weights)
{
    const int unit = 1 + layer;
    struct hkt__layer_weights weights = {
        .layer = layer,
        .norm1 = { weight_of(gpt, unit, HKT__T_NORM1), weight_of(gpt, unit, HKT__T_NORM1_BIAS) },
        .norm2 = { weight_of(gpt, unit, HKT__T_NORM2), weight_of(gpt, unit, HKT__T_NORM2_BIAS) },
        .qkv = weight_of(gpt, unit, HKT__T_Q),
        .qkv_bias = weight_of(gpt, unit, HKT__T_Q_BIAS),
        .attn_out = weight_of(gpt, unit, HKT__T_ATTN_OUT),
        .attn_bias = weight_of(gpt, unit, HKT__T_ATTN_BIAS),
        .router = weight_of(gpt, unit, HKT__T_ROUTER),
    };

    if (hkt__gpt_has_experts(&gpt->config, layer)) {
        expert_weights(gpt, unit, gpt->experts);
        weights.experts = gpt->experts;
    } else {
        weights.mlp.gate = weight_of(gpt, unit, HKT__T_GATE);
        weights.mlp.gate_bias = weight_of(gpt, unit, HKT__T_GATE_BIAS);
        weights.mlp.out = weight_of(gpt, unit, HKT__T_MLP_OUT);
        weights.mlp.out_bias = weight_of(gpt, unit, HKT__T_MLP_BIAS);
        weights.mlp.width = width_of(gpt, gpt->index[unit][HKT__T_GATE]);
    }
    *out_weights = weights;
}

/* The rows of a tensor that are here, in its whole one, for random numbers. */
static void fill_piece(const struct hkt__gpt *gpt, int index, const struct hkt__math_ops *ops,
                       const struct hkt__piece *piece, void *out)
{
    const struct hkt__param *param = &gpt->params[index];
    const struct hkt__held *held = &gpt->own->held[index];
    const int tensor = gpt->infos[index].tensor;
    const bool is_back = tensor == HKT__T_ATTN_OUT || tensor == HKT__T_MLP_OUT;
    const double deviation =
        gpt->config.init_deviation / (is_back ? sqrt(2.0 * (double)gpt->config.shape.layers) : 1);
    const bool is_cut_in = held->npieces > 0 && param->cut_dim == 1;
    const struct hkt__region region = {
        .rows = is_cut_in || held->npieces == 0 ? held->local_shape[0] : piece->count,
        .cols = held->local_shape[1],
        .first_row = is_cut_in ? 0 : piece->first,
        .first_col = is_cut_in ? piece->first : 0,
        .cols_all = param->shape[1],
    };
    const struct hkt__rng rng = { gpt->config.seed, hkt__rng_site(HKT__SITE_INIT, (unsigned)index, 0) };
    const size_t at = is_cut_in ? 0 : (size_t)(piece->local_first * held->local_shape[1]);

    ops->normal((char *)out + at * ops->store_bytes, &region, &rng, deviation);
}

void hkt__gpt_init_tensor(const struct hkt__gpt *gpt, int index, const struct hkt__math_ops *ops, void *out)
{
    const struct hkt__param *param = &gpt->params[index];
    const struct hkt__held *held = &gpt->own->held[index];
    const int tensor = gpt->infos[index].tensor;
    const struct hkt__piece all = { 0, held->local_shape[0], 0 };
    const double one = 1;

    if (!held->holds)
        return;
    if (param->ndims == 2) {
        for (int i = 0; i < held->npieces; i++)
            fill_piece(gpt, index, ops, &held->piece[i], out);
        if (held->npieces == 0)
            fill_piece(gpt, index, ops, &all, out);
        return;
    }
    memset(out, 0, (size_t)held->local_count * ops->store_bytes);
    if (tensor == HKT__T_NORM1 || tensor == HKT__T_NORM2 || tensor == HKT__T_NORM_LAST)
        for (int64_t i = 0; i < held->local_count; i++)
            ops->from_f64((char *)out + (size_t)i * ops->store_bytes, &one, 1);
}
