/* What the last step sent and held, as counted and as the formulas have it (hocket/step_bytes.h, hocket/step_memory.h). */
#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/train_state.h"

static double unit_elems(const struct hkt_trainer *t, int unit, int kind)
{
    const bool any = hkt__gpt_own(t->gpt)->flat[kind]->padded > 0;

    return any ? (double)hkt__gpt_unit_range(t->gpt, unit, kind).count : 0;
}

static struct hkt_step_flat flat_of(const struct hkt_trainer *t, int kind)
{
    return (struct hkt_step_flat){ (double)hkt__gpt_own(t->gpt)->flat[kind]->padded, unit_elems(t, 0, kind) };
}

struct hkt_step_opts hkt__train_step_opts(const struct hkt_trainer *t)
{
    const struct hkt_train_config *c = &t->config;
    const struct hkt__math_ops *ops = hkt__gpt_ops(t->gpt);
    struct hkt_step_opts o = {
        .shape = c->shape, .layout = c->layout, .recompute = c->recompute, .rms_norm = c->norm == HKT_TRAIN_RMS_NORM,
        .reduce_every = c->reduce_every, .keep_gathered = c->keep_gathered, .element_bytes = (double)ops->store_bytes,
        .real_bytes = (double)ops->real_bytes, .stage = hkt_mesh_coord(t->mesh, "pp", t->rank),
        .tp_rank = hkt_mesh_coord(t->mesh, "tp", t->rank), .dense = flat_of(t, HKT__FLAT_DENSE),
        .experts = flat_of(t, HKT__FLAT_EXPERT),
    };

    for (int layer = 0; layer < c->shape.layers; layer++)
        if (hkt__gpt_unit_range(t->gpt, 1 + layer, HKT__FLAT_DENSE).count > 0) {
            o.layers++;
            o.expert_layers += c->shape.experts > 0 && layer >= c->shape.dense_layers;
        }
    o.pairs = (double)(t->nmicros * c->layout.micro_batch * c->layout.seq * c->shape.top_k * o.expert_layers - t->dropped);
    return o;
}

static struct hkt_coll_bytes counted(const struct hkt_trainer *t, enum hkt__traffic_axis axis)
{
    const uint64_t *b = t->step_traffic.bytes[axis];

    return (struct hkt_coll_bytes){ .all_reduce = (double)b[HKT_ALL_REDUCE], .reduce_scatter = (double)b[HKT_REDUCE_SCATTER],
                                    .all_gather = (double)(b[HKT_ALL_GATHER] + b[HKT_ALL_GATHER_V]),
                                    .all_to_all = (double)(b[HKT_ALL_TO_ALL] + b[HKT_ALL_TO_ALL_V]),
                                    .send = (double)b[HKT_SEND_RECV] };
}

enum hkt_status hkt_trainer_step_bytes(const struct hkt_trainer *t, struct hkt_step_bytes *out_counted,
                                       struct hkt_step_bytes *out_predicted)
{
    const struct hkt_step_opts opts = hkt__train_step_opts(t);

    *out_counted = (struct hkt_step_bytes){
        .dp = counted(t, HKT__TRAFFIC_DP), .tp = counted(t, HKT__TRAFFIC_TP), .sp = counted(t, HKT__TRAFFIC_SP),
        .pp = counted(t, HKT__TRAFFIC_PP), .ep = counted(t, HKT__TRAFFIC_EP), .scalars = counted(t, HKT__TRAFFIC_SCALARS),
    };
    return hkt_count_step(&opts, out_predicted);
}

void hkt__train_note_traffic(struct hkt_trainer *t, const struct hkt__traffic *before)
{
    const struct hkt__traffic *now = hkt__gpt_traffic(t->gpt);

    for (int axis = 0; axis < HKT__TRAFFIC_COUNT; axis++)
        for (int coll = 0; coll < HKT_COLL_COUNT; coll++) {
            t->step_traffic.calls[axis][coll] = now->calls[axis][coll] - before->calls[axis][coll];
            t->step_traffic.bytes[axis][coll] = now->bytes[axis][coll] - before->bytes[axis][coll];
        }
}

/* ---- memory ---- */

enum hkt_status hkt__train_list_units(struct hkt_trainer *t)
{
    const int count = hkt__gpt_units(t->gpt);

    t->units = hkt__parallel_calloc((size_t)count, sizeof *t->units);
    if (t->units == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a list of %d units", count);
    for (int u = 0; u < count; u++) {
        t->units[u].dense = unit_elems(t, u, HKT__FLAT_DENSE);
        t->units[u].experts = unit_elems(t, u, HKT__FLAT_EXPERT);
    }
    return HKT_OK;
}

static struct hkt_step_memory held(const struct hkt_trainer *t)
{
    const uint64_t *b = t->step_peak;

    return (struct hkt_step_memory){ .param = (double)b[HKT__MEMORY_PARAM],
                                     .grad = (double)(b[HKT__MEMORY_GRAD] + b[HKT__MEMORY_MAIN_GRAD]), /* there is only one of them */
                                     .optimizer = (double)b[HKT__MEMORY_OPTIMIZER],
                                     .activation = (double)b[HKT__MEMORY_ACTIVATION], .comm = (double)b[HKT__MEMORY_COMM] };
}

struct hkt_step_memory_opts hkt__train_memory_opts(const struct hkt_trainer *t)
{
    const struct hkt_train_config *c = &t->config;

    return (struct hkt_step_memory_opts){
        .step = hkt__train_step_opts(t), .pipe = t->pipe, .stage_first = hkt__gpt_stage_first(t->gpt), .units = t->units,
        .routing = t->routing, .moments = c->optimizer == HKT_TRAIN_ADAMW ? 2 : c->momentum != 0, .prefetch = c->prefetch,
        .overlap = c->overlap,
    };
}

enum hkt_status hkt_trainer_step_memory(const struct hkt_trainer *t, struct hkt_step_memory *out_counted,
                                        struct hkt_step_memory *out_predicted)
{
    const struct hkt_step_memory_opts opts = hkt__train_memory_opts(t);

    *out_counted = held(t);
    return hkt_count_memory(&opts, out_predicted);
}
