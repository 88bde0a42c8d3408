/* Checkpoints of a trainer: the clock and the shape of the model as texts of the files, and their way back. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/fail.h"
#include "parallel/train_state.h"

/* The fields that make a model what it is. */
#define FIELD(name) #name, offsetof(struct hkt_train_config, shape.name), sizeof ((struct hkt_shape *)0)->name
static const struct {
    const char *name;
    size_t offset, bytes;
} fields[] = {
    { FIELD(layers) }, { FIELD(heads) }, { FIELD(kv_heads) }, { FIELD(experts) }, { FIELD(top_k) }, { FIELD(hidden) },
    { FIELD(head_dim) }, { FIELD(ffn) }, { FIELD(vocab) }, { FIELD(positions) }, { FIELD(gated) }, { FIELD(biases) },
    { FIELD(tied) }, { FIELD(dense_layers) }, { FIELD(dense_ffn) },
    { "norm", offsetof(struct hkt_train_config, norm), sizeof(enum hkt_train_norm) },
};
#define FIELD_COUNT (sizeof fields / sizeof fields[0])

static int64_t field_get(const struct hkt_train_config *config, size_t i)
{
    const char *at = (const char *)config + fields[i].offset;
    int64_t wide = 0;
    int narrow = 0;

    if (fields[i].bytes == sizeof wide) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

static void field_set(struct hkt_train_config *config, size_t i, int64_t value)
{
    char *at = (char *)config + fields[i].offset;
    const int narrow = (int)value;

    if (fields[i].bytes == sizeof value)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &narrow, sizeof narrow);
}

void hkt__shape_texts(const struct hkt_train_config *config, struct hkt__shape_texts *out)
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        snprintf(out->values[i], sizeof out->values[i], "%" PRId64, field_get(config, i));
        out->metas[i] = (struct hkt__st_meta){ fields[i].name, out->values[i] };
    }
    out->count = FIELD_COUNT;
}

enum hkt_status hkt__shape_read(const struct hkt__st_file *file, struct hkt_train_config *config)
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        const char *text = hkt__st_meta(file, fields[i].name);

        if (text == NULL)
            return hkt__parallel_fail(HKT_ERR_INVALID, "%s does not say what its model's \"%s\" is: hocket train did not write it",
                                      file->path, fields[i].name);
        field_set(config, i, strtoll(text, NULL, 10));
    }
    return HKT_OK;
}

enum hkt_status hkt__shape_find(const char *folder, struct hkt_train_config *config)
{
    char full[HKT__ST_PATH_MAX + 32];
    struct hkt__st_file file;
    enum hkt_status rc;

    snprintf(full, sizeof full, "%s/model.safetensors", folder);
    rc = hkt__st_open(full, &file);
    if (rc < 0)
        return rc;
    if (hkt__st_meta(&file, fields[0].name) == NULL && hkt__hf_config_exists(folder))
        rc = hkt__hf_config_read(folder, config);
    else
        rc = hkt__shape_read(&file, config);
    hkt__st_close(&file);
    return rc;
}

static struct hkt__checkpoint checkpoint_of(struct hkt_trainer *t)
{
    return (struct hkt__checkpoint){ .own = hkt__gpt_own(t->gpt), .infos = t->infos, .engine = t->engine,
                                     .ops = hkt__gpt_ops(t->gpt),
                                     .memory = &t->memory, .config = t->hf_config, .comm = t->save_comm,
                                     .tokenizer = t->tokenizer };
}

enum hkt_status hkt_trainer_save(struct hkt_trainer *t, const char *dir, int is_async)
{
    const struct hkt__engine_clock clock = hkt__engine_clock_get(t->engine);
    const struct hkt__checkpoint checkpoint = checkpoint_of(t);
    struct hkt__shape_texts shape;
    struct hkt__st_meta metas[HKT__SHAPE_FIELDS_MAX + 8];
    char step[32], updates[32], scale[48], good[32], seed[32], name[64];
    int n = 0;
    enum hkt_status rc = hkt__save_wait(t->save);

    t->save = NULL;
    if (rc < 0)
        return rc;
    hkt__shape_texts(&t->config, &shape);
    hkt__hf_config_write(&t->config, t->hf_config);
    snprintf(step, sizeof step, "%" PRId64, t->step);
    snprintf(updates, sizeof updates, "%" PRId64, clock.steps);
    snprintf(scale, sizeof scale, "%a", clock.loss_scale);
    snprintf(good, sizeof good, "%" PRId64, clock.good_steps);
    snprintf(seed, sizeof seed, "%" PRIu64, t->config.seed);
    snprintf(name, sizeof name, "step-%08" PRId64, t->step);
    const struct hkt__st_meta clocks[] = { { "format", "pt" }, { "step", step }, { "updates", updates },
                                           { "loss_scale", scale }, { "good_steps", good }, { "seed", seed },
                                           { HKT__ST_CHECKSUM_KEY, HKT__ST_CHECKSUM_BLANK } };

    for (size_t i = 0; i < sizeof clocks / sizeof clocks[0]; i++)
        metas[n++] = clocks[i];
    for (int i = 0; i < shape.count; i++)
        metas[n++] = shape.metas[i];
    metas[n] = (struct hkt__st_meta){ NULL, NULL };
    rc = hkt__save_start(&checkpoint, dir, name, metas, is_async != 0, &t->save);
    if (rc < 0 || is_async != 0)
        return rc;
    rc = hkt__save_wait(t->save);
    t->save = NULL;
    return rc;
}

static enum hkt_status check_model(const struct hkt_trainer *t, const struct hkt__st_file *file)
{
    struct hkt_train_config saved = t->config;
    const char *seed = hkt__st_meta(file, "seed");
    enum hkt_status rc = hkt__shape_read(file, &saved);

    if (rc == HKT_OK && !file->is_sealed)
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s has no checksum: hocket train did not write it, or it is damaged", file->path);
    for (size_t i = 0; i < FIELD_COUNT && rc == HKT_OK; i++)
        if (field_get(&saved, i) != field_get(&t->config, i))
            rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s is of a model whose %s is %" PRId64 ", this one's is %" PRId64,
                                    file->path, fields[i].name, field_get(&saved, i), field_get(&t->config, i));
    if (rc == HKT_OK && (seed == NULL || strtoull(seed, NULL, 10) != t->config.seed))
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s was trained with seed %s, this run has %" PRIu64 ": text and dropout would "
                                "not go on as they were", file->path, seed != NULL ? seed : "?", t->config.seed);
    return rc;
}

static enum hkt_status read_clock(struct hkt_trainer *t, const char *path, int64_t *out_step,
                                  struct hkt__engine_clock *out_clock)
{
    char full[HKT__ST_PATH_MAX + 32];
    struct hkt__st_file file;
    enum hkt_status rc;

    snprintf(full, sizeof full, "%s/model.safetensors", path);
    rc = hkt__st_open(full, &file);
    if (rc < 0)
        return rc;
    rc = check_model(t, &file);
    const char *step = hkt__st_meta(&file, "step"), *updates = hkt__st_meta(&file, "updates");
    const char *scale = hkt__st_meta(&file, "loss_scale"), *good = hkt__st_meta(&file, "good_steps");

    if (rc == HKT_OK && (step == NULL || updates == NULL || scale == NULL || good == NULL))
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s does not say which step it is of", full);
    if (rc == HKT_OK) {
        *out_step = strtoll(step, NULL, 10);
        *out_clock = (struct hkt__engine_clock){ strtoll(updates, NULL, 10), strtod(scale, NULL), strtoll(good, NULL, 10) };
    }
    hkt__st_close(&file);
    return rc;
}

enum hkt_status hkt_trainer_resume(struct hkt_trainer *t, const char *dir)
{
    const struct hkt__checkpoint checkpoint = checkpoint_of(t);
    struct hkt__engine_clock clock = { 0 };
    char path[HKT__ST_PATH_MAX];
    int64_t step = 0;
    enum hkt_status rc = hkt__checkpoint_find(dir, path, sizeof path);

    if (rc == HKT_OK)
        rc = hkt__train_tokens_check(t, path);
    if (rc == HKT_OK)
        rc = read_clock(t, path, &step, &clock);
    rc = hkt__agree(t->comm, rc, "resuming");
    if (rc == HKT_OK)
        rc = hkt__checkpoint_load(&checkpoint, path, false, NULL);
    if (rc < 0)
        return rc;
    t->step = step;
    hkt__engine_clock_set(t->engine, &clock);
    return HKT_OK;
}

enum hkt_status hkt_train_shape(const char *dir, struct hkt_train_config *config)
{
    struct hkt_train_config found = *config;
    char path[HKT__ST_PATH_MAX];
    enum hkt_status rc = hkt__checkpoint_find(dir, path, sizeof path);

    if (rc == HKT_OK)
        rc = hkt__shape_find(path, &found);
    if (rc == HKT_OK)
        *config = found;
    return rc;
}

/* Shapes of tensors do not tell how rows of q, k and v fall into heads. A folder that does not tell either is taken at its word;
 * one that cannot be read fails when it is. */
static enum hkt_status check_heads(const struct hkt_trainer *t, const char *path)
{
    const struct hkt_shape *ours = &t->config.shape;
    struct hkt_train_config theirs = hkt_train_defaults();
    const enum hkt_status rc = hkt__shape_find(path, &theirs);

    if (rc < 0)
        return hkt__hf_config_exists(path) ? rc : HKT_OK;
    return theirs.shape.heads == ours->heads
               ? HKT_OK
               : hkt__parallel_fail(HKT_ERR_INVALID, "the model in %s has %d heads, this one has %d", path, theirs.shape.heads,
                                    ours->heads);
}

enum hkt_status hkt_trainer_load_weights(struct hkt_trainer *t, const char *dir)
{
    const struct hkt__checkpoint checkpoint = checkpoint_of(t);
    char path[HKT__ST_PATH_MAX];
    enum hkt_status rc = hkt__checkpoint_find(dir, path, sizeof path);

    if (rc == HKT_OK)
        rc = check_heads(t, path);
    rc = hkt__agree(t->comm, rc, "finding weights");
    return rc == HKT_OK ? hkt__checkpoint_load(&checkpoint, path, true, NULL) : rc;
}
