/* A generator: a model made as a checkpoint says, and the choice of tokens. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/generate_state.h"
#include "parallel/train_state.h"

#define POSITIONS_DEFAULT 1024 /* of models with rotary ones */
#define SITE_CHOICE 0xd1       /* of hkt__rng_site */

static enum hkt_status plan(struct hkt_generator *g, const struct hkt_train_config *model, int nranks)
{
    struct hkt_layout layout = { .nranks = nranks, .tp = nranks, .global_batch = 1, .micro_batch = 1, .seq = 1 };
    const int64_t learned = model->shape.positions;

    if (nranks > HKT__GENERATE_RANKS_MAX)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "%d ranks for one model; at most %d", nranks, HKT__GENERATE_RANKS_MAX);
    if (learned > 0 && g->config.positions > learned)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%lld positions, but the model has learned %lld",
                                  (long long)g->config.positions, (long long)learned);
    g->positions = g->config.positions > 0 ? g->config.positions : learned > 0 ? learned : POSITIONS_DEFAULT;
    g->vocab = model->shape.vocab;
    return hkt_layout_check(&model->shape, &layout);
}

static void bind(void *arg, int unit, int flat, void *param, void *grad)
{
    (void)unit; /* -1: everything lies where it is for good */
    hkt__gpt_bind_flat(((struct hkt_generator *)arg)->gpt, flat, param, grad);
}

static enum hkt_status make_model(struct hkt_generator *g, const struct hkt_train_config *model, int rank, int nranks)
{
    struct hkt_train_config config = *model;
    char layout[32];
    enum hkt_status rc;

    config.dtype = g->config.dtype;
    config.layout = (struct hkt_layout){ .tp = nranks, .micro_batch = 1, .seq = g->positions };
    snprintf(layout, sizeof layout, "tp:%d", nranks);
    rc = hkt_mesh_create(layout, nranks, &g->mesh);
    if (rc == HKT_OK && g->comm != NULL)
        rc = hkt_mesh_attach(g->mesh, g->comm);
    if (rc < 0)
        return rc;
    const struct hkt__gpt_config gpt = hkt__train_model(&config);

    rc = hkt__gpt_create(&gpt, g->mesh, rank, &g->memory, &g->gpt);
    if (rc < 0)
        return rc;
    const struct hkt__engine_opts opts = { .mesh = g->mesh, .own = hkt__gpt_own(g->gpt), .ops = hkt__gpt_ops(g->gpt),
                                           .memory = &g->memory, .bind = bind, .bind_arg = g, .only_params = true };

    return hkt__engine_create(&opts, &g->engine);
}

static enum hkt_status load(struct hkt_generator *g, const char *path)
{
    const struct hkt__own *own = hkt__gpt_own(g->gpt);
    const struct hkt__checkpoint checkpoint = { .own = own, .infos = hkt__gpt_param_info(g->gpt, 0), .engine = g->engine,
                                                .ops = hkt__gpt_ops(g->gpt), .memory = &g->memory, .comm = g->comm };

    return hkt__checkpoint_load(&checkpoint, path, true, NULL);
}

/* The vocabulary beside the model, if there is one. */
static enum hkt_status load_tokens(struct hkt_generator *g, const char *path)
{
    char file[HKT__ST_PATH_MAX + 16];
    enum hkt_status rc = HKT_OK;

    snprintf(file, sizeof file, "%s/vocab.json", path);
    if (access(file, F_OK) == 0)
        rc = hkt_tokenizer_load(path, &g->tokenizer);
    if (rc == HKT_OK && g->tokenizer != NULL && hkt_tokenizer_vocab(g->tokenizer) > g->vocab)
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s has %lld pieces, but the model beside it %lld tokens", file,
                                (long long)hkt_tokenizer_vocab(g->tokenizer), (long long)g->vocab);
    return rc;
}

static enum hkt_status make_cache(struct hkt_generator *g)
{
    const struct hkt__block *block = &g->gpt->block;
    const struct hkt__math_ops *ops = block->ops;
    const int layers = g->gpt->config.shape.layers;
    const uint64_t bytes = (uint64_t)(g->positions * block->kv_heads * block->head_dim) * ops->store_bytes;
    enum hkt_status rc;

    g->keys = hkt__parallel_calloc((size_t)layers, sizeof(void *));
    g->values = hkt__parallel_calloc((size_t)layers, sizeof(void *));
    g->logits = hkt__parallel_calloc((size_t)g->vocab, sizeof *g->logits);
    g->order = hkt__parallel_calloc((size_t)g->vocab, sizeof *g->order);
    if (g->keys == NULL || g->values == NULL || g->logits == NULL || g->order == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a generator");
    rc = hkt__memory_alloc(&g->memory, HKT__MEMORY_BUFFER, (uint64_t)g->vocab * ops->real_bytes, &g->part);
    if (rc == HKT_OK)
        rc = hkt__memory_alloc(&g->memory, HKT__MEMORY_BUFFER, (uint64_t)g->vocab * ops->real_bytes, &g->whole);
    for (int i = 0; i < layers && rc == HKT_OK; i++) {
        rc = hkt__memory_alloc(&g->memory, HKT__MEMORY_ACTIVATION, bytes, &g->keys[i]);
        if (rc == HKT_OK)
            rc = hkt__memory_alloc(&g->memory, HKT__MEMORY_ACTIVATION, bytes, &g->values[i]);
    }
    return rc;
}

enum hkt_status hkt_generator_create(const struct hkt_generate_config *config, struct hkt_comm *comm,
                                     struct hkt_generator **out_generator)
{
    const int nranks = comm != NULL ? hkt_comm_size(comm) : 1, rank = comm != NULL ? hkt_comm_rank(comm) : 0;
    struct hkt_generator *g = hkt__parallel_calloc(1, sizeof *g);
    struct hkt_train_config model = hkt_train_defaults();
    char path[HKT__ST_PATH_MAX];
    enum hkt_status rc;

    if (g == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a generator");
    hkt__memory_init(&g->memory, UINT64_C(1) << 28);
    g->config = *config;
    g->config.dir = NULL;
    g->comm = nranks > 1 ? comm : NULL;
    rc = hkt__checkpoint_find(config->dir, path, sizeof path);
    if (rc == HKT_OK)
        rc = hkt__shape_find(path, &model);
    if (rc == HKT_OK)
        rc = plan(g, &model, nranks);
    if (rc == HKT_OK)
        rc = load_tokens(g, path);
    rc = hkt__agree(g->comm, rc, "reading a checkpoint");
    if (rc == HKT_OK)
        rc = make_model(g, &model, rank, nranks);
    if (rc == HKT_OK)
        rc = load(g, path);
    if (rc == HKT_OK)
        rc = make_cache(g);
    if (rc == HKT_OK)
        *out_generator = g;
    else
        (void)hkt_generator_destroy(g);
    return rc;
}

enum hkt_status hkt_generator_destroy(struct hkt_generator *g)
{
    if (g == NULL)
        return HKT_OK;
    for (int i = 0; g->gpt != NULL && i < g->gpt->config.shape.layers; i++) {
        hkt__memory_free(&g->memory, g->keys != NULL ? g->keys[i] : NULL);
        hkt__memory_free(&g->memory, g->values != NULL ? g->values[i] : NULL);
    }
    hkt__memory_free(&g->memory, g->part);
    hkt__memory_free(&g->memory, g->whole);
    hkt__engine_destroy(g->engine);
    hkt__gpt_destroy(g->gpt);
    hkt_mesh_destroy(g->mesh);
    hkt_tokenizer_destroy(g->tokenizer);
    hkt__parallel_free(g->keys);
    hkt__parallel_free(g->values);
    hkt__parallel_free(g->logits);
    hkt__parallel_free(g->order);
    const enum hkt_status rc = hkt__memory_fini(&g->memory);

    hkt__parallel_free(g);
    return rc;
}

int64_t hkt_generator_positions(const struct hkt_generator *g)
{
    return g->positions;
}

int64_t hkt_generator_vocab(const struct hkt_generator *g)
{
    return g->vocab;
}

static enum hkt_status read_token(struct hkt_generator *g, int32_t token)
{
    if (token < 0 || token >= g->vocab)
        return hkt__parallel_fail(HKT_ERR_INVALID, "there is no token %d; the model has %lld", token, (long long)g->vocab);
    if (g->read == g->positions)
        return hkt__parallel_fail(HKT_ERR_INVALID, "all %lld positions are used", (long long)g->positions);
    return hkt__generate_read(g, token);
}

enum hkt_status hkt_generator_prompt(struct hkt_generator *g, const int32_t *tokens, int64_t count)
{
    enum hkt_status rc = HKT_OK;

    for (int64_t i = 0; i < count && rc == HKT_OK; i++)
        rc = read_token(g, tokens[i]);
    return rc;
}

enum hkt_status hkt_generator_logits(struct hkt_generator *g, double *out_logits)
{
    if (g->read == 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "nothing was read yet: a prompt has at least one token");
    memcpy(out_logits, g->logits, (size_t)g->vocab * sizeof *out_logits);
    return HKT_OK;
}

const struct hkt_tokenizer *hkt_generator_tokenizer(const struct hkt_generator *g)
{
    return g->tokenizer;
}

/* ---- the choice ---- */

/* Largest logit first, of equal ones the lower token: the `count` first are put in g->order. */
static void rank_tokens(const struct hkt_generator *g, int64_t count)
{
    for (int64_t i = 0; i < g->vocab; i++)
        g->order[i] = (int32_t)i;
    for (int64_t i = 0; i < count; i++) {
        int64_t best = i;

        for (int64_t j = i + 1; j < g->vocab; j++) {
            const double a = g->logits[g->order[j]], b = g->logits[g->order[best]];

            if (a > b || (a == b && g->order[j] < g->order[best]))
                best = j;
        }
        const int32_t token = g->order[best];

        g->order[best] = g->order[i];
        g->order[i] = token;
    }
}

static int32_t choose(const struct hkt_generator *g)
{
    const bool all = g->config.top_k <= 0 || g->config.top_k > g->vocab;
    const int64_t count = g->config.temperature <= 0 ? 1 : all ? g->vocab : g->config.top_k;
    const struct hkt__rng rng = { g->config.seed, hkt__rng_site(SITE_CHOICE, 0, 0) };
    double sum = 0;

    rank_tokens(g, count);
    if (count == 1)
        return g->order[0];
    for (int64_t i = 0; i < count; i++)
        sum += exp((g->logits[g->order[i]] - g->logits[g->order[0]]) / g->config.temperature);
    double left = sum * hkt__rng_uniform(&rng, (uint64_t)g->read);

    for (int64_t i = 0; i < count; i++) {
        left -= exp((g->logits[g->order[i]] - g->logits[g->order[0]]) / g->config.temperature);
        if (left < 0)
            return g->order[i];
    }
    return g->order[count - 1];
}

enum hkt_status hkt_generator_next(struct hkt_generator *g, int32_t *out_token)
{
    if (g->read == 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "nothing was read yet: a prompt has at least one token");
    const int32_t token = choose(g);
    const enum hkt_status rc = read_token(g, token);

    if (rc == HKT_OK)
        *out_token = token;
    return rc;
}
