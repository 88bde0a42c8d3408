/* Making a trainer: a mesh, a model, an engine, a text, and the schedule of a step. */
#include <stdio.h>
#include <string.h>

#include "hocket/info.h"
#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/gemm.h"
#include "parallel/train_state.h"

#define BUCKET_BYTES_DEFAULT (4 << 20)
#define FLAT_ALIGN 64
#define KEPT_MEMORY_MAX ((uint64_t)1 << 32) /* of freed buffers, for the next step */

struct hkt_train_config hkt_train_defaults(void)
{
    return (struct hkt_train_config){
        .shape = { .layers = 4, .heads = 4, .hidden = 128, .vocab = 256, .positions = 64, .biases = 1, .tied = 1 },
        .layout = { .dp = 1, .tp = 1, .pp = 1, .ep = 1, .global_batch = 16, .micro_batch = 1, .seq = 64,
                    .schedule = HKT_PIPE_1F1B },
        .dtype = HKT_F32, .seed = 1, .held_out = 0.1, .lr = 1e-3, .lr_min = 1e-4, .warmup_steps = 10, .beta1 = 0.9,
        .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1, .balance_weight = 0.01, .prefetch = 1, .overlap = 1,
    };
}

static int or_one(int value)
{
    return value > 0 ? value : 1;
}

/* What is 0 is 1; the size of the world. */
static void complete(struct hkt_train_config *config, int nranks)
{
    struct hkt_layout *l = &config->layout;

    l->nranks = nranks;
    l->dp = or_one(l->dp);
    l->tp = or_one(l->tp);
    l->pp = or_one(l->pp);
    l->ep = or_one(l->ep);
    if (config->shape.kv_heads == 0)
        config->shape.kv_heads = config->shape.heads;
    if (config->shape.ffn == 0)
        config->shape.ffn = 4 * config->shape.hidden;
    if (config->shape.experts > 0 && config->shape.top_k == 0)
        config->shape.top_k = 1;
}

static bool is_hybrid(const struct hkt_layout *l)
{
    return l->zero > 0 && l->shard > 0 && l->shard < l->dp;
}

/* Every stage has layers, together all. */
static enum hkt_status check_stages(const struct hkt_train_config *c)
{
    const int stages = c->layout.pp * or_one(c->layout.chunks);
    int64_t sum = 0;

    for (int i = 0; i < stages; i++) {
        if (c->stage_layers[i] < 1)
            return hkt__parallel_fail(HKT_ERR_INVALID, "stage %d has %d layers; each needs one", i, c->stage_layers[i]);
        sum += c->stage_layers[i];
    }
    return sum == c->shape.layers ? HKT_OK
                                  : hkt__parallel_fail(HKT_ERR_INVALID, "the %d stages have %lld layers, the model has %d", stages,
                                                       (long long)sum, c->shape.layers);
}

static enum hkt_status check(const struct hkt_train_config *c)
{
    if (c->shape.vocab < 256)
        return hkt__parallel_fail(HKT_ERR_INVALID, "a vocabulary of %lld: bytes are tokens, so it is 256 or more",
                                  (long long)c->shape.vocab);
    if (c->shape.positions > 0 && c->shape.positions < c->layout.seq)
        return hkt__parallel_fail(HKT_ERR_INVALID, "sequences of %lld tokens, but %lld positions are learned",
                                  (long long)c->layout.seq, (long long)c->shape.positions);
    if (c->dtype != HKT_F32 && c->dtype != HKT_F64 && c->dtype != HKT_BF16)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "training in %s; float, double and bfloat16 are possible",
                                  hkt_dtype_name(c->dtype));
    const enum hkt_status rc = hkt_layout_check(&c->shape, &c->layout);

    return rc == HKT_OK && c->stage_layers != NULL ? check_stages(c) : rc;
}

/* "tp:2 dp:4=ep:2*edp:rest=inner:2*outer:rest pp:1", in the order that was asked for. */
static enum hkt_status write_mesh(const struct hkt_train_config *c, char *text, size_t bytes)
{
    const struct hkt_layout *l = &c->layout;
    const char *order = c->mesh != NULL ? c->mesh : "tp dp pp";
    bool seen[3] = { false };
    size_t at = 0;

    for (const char *p = order; *p != '\0'; p += strspn(p, " ")) {
        static const char *const names[] = { "dp", "tp", "pp" };
        const int sizes[] = { l->dp, l->tp, l->pp };
        const size_t word = strcspn(p, " ");
        size_t i = 0;

        while (i < 3 && (word != 2 || strncmp(names[i], p, 2) != 0))
            i++;
        if (i == 3 || seen[i])
            return hkt__parallel_fail(HKT_ERR_INVALID, "the mesh \"%s\" is no order of the axes tp, dp and pp", order);
        seen[i] = true;
        at += (size_t)snprintf(text + at, bytes - at, "%s%s:%d", at > 0 ? " " : "", names[i], sizes[i]);
        if (i == 0 && c->shape.experts > 0 && l->ep > 1)
            at += (size_t)snprintf(text + at, bytes - at, "=ep:%d*edp:rest", l->ep);
        if (i == 0 && is_hybrid(l))
            at += (size_t)snprintf(text + at, bytes - at, "=inner:%d*outer:rest", l->shard);
        p += word;
    }
    return seen[0] && seen[1] && seen[2]
               ? HKT_OK
               : hkt__parallel_fail(HKT_ERR_INVALID, "the mesh \"%s\" must name tp, dp and pp", order);
}

static enum hkt_status make_mesh(struct hkt_trainer *t, const struct hkt_train_config *config)
{
    char text[256];
    enum hkt_status rc = write_mesh(config, text, sizeof text);

    if (rc == HKT_OK)
        rc = hkt_mesh_create(text, t->nranks, &t->mesh);
    if (rc == HKT_OK && t->comm != NULL)
        rc = hkt_mesh_attach(t->mesh, t->comm);
    if (rc == HKT_OK && t->comm != NULL) {
        rc = hkt_comm_split(t->comm, 0, t->rank, NULL, &t->save_comm);
        if (rc < 0)
            return hkt__parallel_pass(rc, "the communicator of checkpoints");
    }
    return rc;
}

struct hkt__gpt_config hkt__train_model(const struct hkt_train_config *c)
{
    const struct hkt_layout *l = &c->layout;
    const int real_bytes = c->dtype == HKT_F64 ? 8 : 4;
    const int64_t bucket_bytes = c->bucket_bytes > 0 ? c->bucket_bytes : l->zero >= 2 ? 0 : BUCKET_BYTES_DEFAULT;

    return (struct hkt__gpt_config){
        .shape = c->shape, .norm = c->norm == HKT_TRAIN_RMS_NORM ? HKT__NORM_RMS : HKT__NORM_LAYER, .dtype = c->dtype,
        .seq = l->seq, .micro_batch = l->micro_batch, .dropout = c->dropout,
        .attention_dropout = c->attention_dropout, .seed = c->seed, .recompute = c->recompute,
        .sequence_parallel = l->sequence_parallel, .chunks = or_one(l->chunks), .capacity_factor = c->capacity_factor,
        .balance_weight = c->balance_weight, .z_weight = c->z_weight, .renormalise = 1,
        .shard_axis = is_hybrid(l) ? "inner" : NULL, .align = FLAT_ALIGN, .bucket_elems = bucket_bytes / real_bytes,
        .unit_buckets = l->zero >= 2, .overlap = c->overlap,
    };
}

/* ---- the model and the engine meet ---- */

static void bind(void *arg, int unit, int flat, void *param, void *grad)
{
    struct hkt_trainer *t = arg;

    if (unit < 0)
        hkt__gpt_bind_flat(t->gpt, flat, param, grad);
    else
        hkt__gpt_bind_unit(t->gpt, unit, flat, param, grad);
}

static unsigned use_of(enum hkt__gpt_use use)
{
    switch (use) {
    case HKT__GPT_FORWARD: return HKT__USE_PARAM;
    case HKT__GPT_BACKWARD: return HKT__USE_PARAM | HKT__USE_GRAD | HKT__USE_BACKWARD;
    default: return HKT__USE_GRAD | HKT__USE_BACKWARD;
    }
}

static enum hkt_status on_use(void *arg, int unit, enum hkt__gpt_use use)
{
    return hkt__engine_begin(((struct hkt_trainer *)arg)->engine, unit, use_of(use));
}

static enum hkt_status on_done(void *arg, int unit, enum hkt__gpt_use use)
{
    struct hkt_trainer *t = arg;

    /* Where no backward follows nothing is kept for it. */
    return hkt__engine_end(t->engine, unit, use_of(use) | (t->is_evaluating ? HKT__USE_BACKWARD : 0u));
}

static enum hkt_status on_grad(void *arg, int unit, int micro, int is_last)
{
    struct hkt_trainer *t = arg;

    (void)micro;
    return is_last != 0 || t->config.reduce_every != 0 ? hkt__engine_final(t->engine, unit) : HKT_OK;
}

const struct hkt__gpt_hooks hkt__train_hooks = { NULL, on_use, on_done, on_grad };

/* The gradient of the lookup needs no parameters, but only a schedule that splits backward leaves them alone. */
static int backward_first(const struct hkt_trainer *t)
{
    return hkt_mesh_coord(t->mesh, "pp", t->rank) == 0 && t->config.layout.schedule != HKT_PIPE_ZB_H1 ? 0 : 1;
}

static enum hkt_status make_engine(struct hkt_trainer *t)
{
    const struct hkt_train_config *c = &t->config;
    const struct hkt__engine_opts opts = {
        .mesh = t->mesh, .own = hkt__gpt_own(t->gpt), .ops = hkt__gpt_ops(t->gpt), .memory = &t->memory,
        .traffic = hkt__gpt_traffic(t->gpt), .bind = bind, .bind_arg = t, .zero = c->layout.zero,
        .shard_axis = is_hybrid(&c->layout) ? "inner" : NULL, .replica_axis = is_hybrid(&c->layout) ? "outer" : NULL,
        .prefetch = c->prefetch, .backward_first = backward_first(t), .overlap = c->overlap != 0, .keep_gathered = c->keep_gathered != 0,
        .reduce_every = c->reduce_every != 0,
        .optimizer = c->optimizer == HKT_TRAIN_SGD ? HKT__SGD : HKT__ADAMW, .beta1 = c->beta1, .beta2 = c->beta2,
        .eps = c->eps, .weight_decay = c->weight_decay, .momentum = c->momentum, .clip = c->clip,
        .loss_scale = c->loss_scale,
    };

    return hkt__engine_create(&opts, &t->engine);
}

static enum hkt_status init_params(struct hkt_trainer *t)
{
    const struct hkt__own *own = hkt__gpt_own(t->gpt);
    const struct hkt__math_ops *ops = hkt__gpt_ops(t->gpt);
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < own->nparams && rc == HKT_OK; i++) {
        void *values = NULL;

        if (own->held[i].local_count == 0)
            continue;
        rc = hkt__memory_alloc(&t->memory, HKT__MEMORY_BUFFER, (uint64_t)own->held[i].local_count * ops->store_bytes,
                               &values);
        if (rc < 0)
            break;
        hkt__gpt_init_tensor(t->gpt, i, ops, values);
        hkt__engine_param_set(t->engine, i, values);
        hkt__memory_free(&t->memory, values);
    }
    return rc;
}

/* Layers are shared out over stages evenly, or as the caller says. */
static enum hkt_status create_gpt(struct hkt_trainer *t)
{
    const int *layers = t->config.stage_layers;
    struct hkt__gpt_config config = hkt__train_model(&t->config);
    const int stages = t->config.layout.pp * config.chunks;
    int *first = hkt__parallel_calloc((size_t)stages + 1, sizeof *first);
    enum hkt_status rc;

    if (first == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for %d stages", stages);
    for (int i = 0; layers != NULL && i < stages; i++)
        first[i + 1] = first[i] + layers[i];
    config.stage_first = layers != NULL ? first : NULL;
    rc = hkt__gpt_create(&config, t->mesh, t->rank, &t->memory, &t->gpt);
    hkt__parallel_free(first);
    return rc;
}

static enum hkt_status make_model(struct hkt_trainer *t)
{
    enum hkt_status rc = create_gpt(t);

    if (rc < 0)
        return rc;
    const struct hkt__own *own = hkt__gpt_own(t->gpt);

    hkt__gpt_traffic(t->gpt)->timeline = &t->timeline;
    t->infos = hkt__parallel_calloc((size_t)own->nparams, sizeof *t->infos);
    if (t->infos == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a list of %d tensors", own->nparams);
    for (int i = 0; i < own->nparams; i++)
        t->infos[i] = *hkt__gpt_param_info(t->gpt, i);
    rc = make_engine(t);
    return rc == HKT_OK ? init_params(t) : rc;
}

static enum hkt_status make_batch(struct hkt_trainer *t)
{
    const struct hkt_layout *l = &t->config.layout;
    const int64_t elems = hkt_layout_micros(l) * l->micro_batch * l->seq;
    struct hkt_pipe_opts pipe = { .kind = l->schedule, .stages = l->pp, .micros = (int)hkt_layout_micros(l),
                                  .chunks = l->chunks };
    enum hkt_status rc;

    t->nmicros = hkt_layout_micros(l);
    t->micros = hkt__parallel_calloc((size_t)t->nmicros, sizeof *t->micros);
    t->ids = hkt__parallel_calloc((size_t)elems, sizeof *t->ids);
    t->targets = hkt__parallel_calloc((size_t)elems, sizeof *t->targets);
    if (t->config.shape.experts > 0)
        t->routing = hkt__parallel_calloc((size_t)(t->nmicros * t->config.shape.layers), sizeof *t->routing);
    if (t->micros == NULL || t->ids == NULL || t->targets == NULL || (t->config.shape.experts > 0 && t->routing == NULL))
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a batch of %lld tokens", (long long)elems);
    rc = hkt__train_list_units(t);
    if (rc == HKT_OK)
        rc = hkt_pipe_create(&pipe, &t->pipe);
    pipe.kind = HKT_PIPE_FORWARD;
    return rc == HKT_OK ? hkt_pipe_create(&pipe, &t->forward) : rc;
}

/* Products of this process take the cores that its ranks leave each other. */
static void set_threads(int wanted, int nranks)
{
    const int cores = hkt_cores();

    hkt__gemm_threads_set(wanted > 0 ? wanted : cores > nranks ? cores / nranks : 1);
}

enum hkt_status hkt_trainer_create(const struct hkt_train_config *config, struct hkt_comm *comm,
                                   struct hkt_trainer **out_trainer)
{
    struct hkt_trainer *t = hkt__parallel_calloc(1, sizeof *t);
    enum hkt_status rc;

    if (t == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a trainer");
    hkt__memory_init(&t->memory, KEPT_MEMORY_MAX);
    t->config = *config;
    t->config.mesh = t->config.data = t->config.tokens = NULL;
    t->nranks = comm != NULL ? hkt_comm_size(comm) : 1;
    t->rank = comm != NULL ? hkt_comm_rank(comm) : 0;
    t->comm = t->nranks > 1 ? comm : NULL;
    complete(&t->config, t->nranks);
    rc = check(&t->config);
    if (rc == HKT_OK)
        rc = hkt__data_init(config->data, config->held_out, config->layout.seq, &t->data);
    t->data.seed = config->seed;
    rc = hkt__agree(t->comm, rc, "reading the text");
    if (rc == HKT_OK)
        rc = hkt__train_tokens(t, config->tokens);
    if (rc == HKT_OK) {
        struct hkt_train_config whole = t->config;

        whole.mesh = config->mesh;
        rc = make_mesh(t, &whole);
    }
    set_threads(config->threads, t->nranks);
    if (rc == HKT_OK)
        rc = make_model(t);
    t->config.stage_layers = NULL; /* it was borrowed */
    if (rc == HKT_OK)
        rc = make_batch(t);
    if (rc == HKT_OK)
        *out_trainer = t;
    else
        (void)hkt_trainer_destroy(t);
    return rc;
}

enum hkt_status hkt_trainer_destroy(struct hkt_trainer *t)
{
    enum hkt_status rc;

    if (t == NULL)
        return HKT_OK;
    rc = hkt__save_wait(t->save);
    hkt__engine_destroy(t->engine);
    hkt__gpt_destroy(t->gpt);
    hkt__timeline_fini(&t->timeline);
    hkt_mesh_destroy(t->mesh);
    (void)hkt_comm_destroy(t->save_comm);
    hkt_pipe_destroy(t->pipe);
    hkt_pipe_destroy(t->forward);
    hkt__data_fini(&t->data);
    hkt_tokenizer_destroy(t->tokenizer);
    hkt__parallel_free(t->micros);
    hkt__parallel_free(t->ids);
    hkt__parallel_free(t->targets);
    hkt__parallel_free(t->infos);
    hkt__parallel_free(t->routing);
    hkt__parallel_free(t->units);
    const enum hkt_status freed = hkt__memory_fini(&t->memory);

    hkt__parallel_free(t);
    return rc < 0 ? rc : freed;
}

int64_t hkt_trainer_params(const struct hkt_trainer *t)
{
    const struct hkt__own *own = hkt__gpt_own(t->gpt);
    int64_t all = 0;

    for (int i = 0; i < own->nparams; i++) {
        int64_t elems = 1;

        for (int d = 0; d < own->params[i].ndims; d++)
            elems *= own->params[i].shape[d];
        all += elems;
    }
    return all;
}

int64_t hkt_trainer_steps(const struct hkt_trainer *t)
{
    return t->step;
}

const char *hkt_trainer_mesh(const struct hkt_trainer *t)
{
    return hkt_mesh_layout(t->mesh);
}

int64_t hkt_trainer_data_bytes(const struct hkt_trainer *t)
{
    return t->data.text_bytes;
}

int64_t hkt_trainer_data_tokens(const struct hkt_trainer *t)
{
    return t->data.count;
}

const struct hkt_tokenizer *hkt_trainer_tokenizer(const struct hkt_trainer *t)
{
    return t->tokenizer;
}

uint64_t hkt_trainer_bytes(const struct hkt_trainer *t, const char *axis)
{
    const struct hkt__traffic *traffic = hkt__gpt_traffic(t->gpt);
    uint64_t bytes = 0;

    for (int a = 0; a < HKT__TRAFFIC_COUNT; a++)
        for (int coll = 0; coll < HKT_COLL_COUNT; coll++)
            if (strcmp(hkt__traffic_axis_name((enum hkt__traffic_axis)a), axis) == 0)
                bytes += traffic->bytes[a][coll];
    return bytes;
}

uint64_t hkt_trainer_memory(const struct hkt_trainer *t, const char *kind)
{
    for (int c = 0; c < HKT__MEMORY_COUNT; c++)
        if (strcmp(hkt__memory_class_name((enum hkt__memory_class)c), kind) == 0)
            return t->memory.peak[c] > t->peak[c] ? t->memory.peak[c] : t->peak[c];
    return 0;
}
