/* Hugging Face's description of a GPT-2, read and written. */
#include "parallel/hf_config.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/safetensors.h"

#define FILE_BYTES_MAX 65536
#define EPSILON 1e-5 /* of our norms */

/* ---- writing ---- */

static bool is_gpt2(const struct hkt_train_config *c)
{
    const struct hkt_shape *s = &c->shape;

    return c->norm == HKT_TRAIN_LAYER_NORM && s->biases != 0 && s->gated == 0 && s->experts == 0 && s->positions > 0
           && s->kv_rank == 0 && (s->kv_heads == 0 || s->kv_heads == s->heads)
           && (s->head_dim == 0 || s->head_dim * s->heads == s->hidden);
}

void hkt__hf_config_write(const struct hkt_train_config *config, char out_text[HKT__HF_CONFIG_MAX])
{
    const struct hkt_shape *s = &config->shape;

    out_text[0] = '\0';
    if (!is_gpt2(config))
        return;
    snprintf(out_text, HKT__HF_CONFIG_MAX,
             "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
             "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
             "  \"vocab_size\": %lld,\n  \"n_positions\": %lld,\n  \"n_embd\": %lld,\n  \"n_layer\": %d,\n  \"n_head\": %d,\n"
             "  \"n_inner\": %lld,\n  \"tie_word_embeddings\": %s,\n"
             "  \"embd_pdrop\": %g,\n  \"resid_pdrop\": %g,\n  \"attn_pdrop\": %g,\n"
             "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n  \"torch_dtype\": \"%s\"\n}\n",
             (long long)s->vocab, (long long)s->positions, (long long)s->hidden, s->layers, s->heads,
             (long long)(s->ffn > 0 ? s->ffn : 4 * s->hidden), s->tied ? "true" : "false", config->dropout, config->dropout,
             config->attention_dropout, config->dtype == HKT_F64 ? "float64" : "float32");
}

/* ---- reading ---- */

static void path_of(const char *folder, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s/%s", folder, HKT__HF_CONFIG_NAME);
}

bool hkt__hf_config_exists(const char *folder)
{
    char path[HKT__ST_PATH_MAX + 32];

    path_of(folder, path, sizeof path);
    return access(path, F_OK) == 0;
}

static enum hkt_status parse_file(const char *path, cJSON **out_root)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = hkt__parallel_calloc(FILE_BYTES_MAX, 1);
    const ssize_t got = fd < 0 || text == NULL ? -1 : read(fd, text, FILE_BYTES_MAX);
    const int error = errno;
    enum hkt_status rc = HKT_OK;

    if (fd >= 0)
        close(fd);
    *out_root = got > 0 && got < FILE_BYTES_MAX ? cJSON_ParseWithLength(text, (size_t)got) : NULL;
    if (text == NULL)
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory to read %s", path);
    else if (got < 0)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be read: %s", path, strerror(error));
    else if (!cJSON_IsObject(*out_root))
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s does not hold a JSON object of less than %d bytes", path, FILE_BYTES_MAX);
    hkt__parallel_free(text);
    return rc;
}

/* A text, number or truth that the model's mathematics depends on; missing ones are as in GPT-2. */
static enum hkt_status check_kind(const cJSON *root, const char *path)
{
    static const struct {
        const char *name;
        bool usual;
    } truths[] = { { "scale_attn_weights", true }, { "scale_attn_by_inverse_layer_idx", false }, { "add_cross_attention", false } };
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(root, "model_type");
    const cJSON *activation = cJSON_GetObjectItemCaseSensitive(root, "activation_function");
    const cJSON *epsilon = cJSON_GetObjectItemCaseSensitive(root, "layer_norm_epsilon");
    const char *gelu = cJSON_IsString(activation) ? activation->valuestring : "gelu_new";

    if (!cJSON_IsString(type) || strcmp(type->valuestring, "gpt2") != 0)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "%s: model_type is \"%s\"; \"gpt2\" can be read", path,
                                  cJSON_IsString(type) ? type->valuestring : "");
    /* Three names of the tanh form. */
    if (strcmp(gelu, "gelu_new") != 0 && strcmp(gelu, "gelu_fast") != 0 && strcmp(gelu, "gelu_pytorch_tanh") != 0)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "%s: activation_function is \"%s\"; \"gelu_new\" can be computed", path, gelu);
    if (cJSON_IsNumber(epsilon) && fabs(epsilon->valuedouble - EPSILON) > EPSILON * 1e-6)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "%s: layer_norm_epsilon is %g; %g can be computed", path,
                                  epsilon->valuedouble, EPSILON);
    for (size_t i = 0; i < sizeof truths / sizeof truths[0]; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, truths[i].name);

        if (cJSON_IsBool(item) && (cJSON_IsTrue(item) != 0) != truths[i].usual)
            return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "%s: %s is not as in GPT-2", path, truths[i].name);
    }
    return HKT_OK;
}

static enum hkt_status take_shape(const cJSON *root, const char *path, struct hkt_shape *shape)
{
    static const char *const names[] = { "n_layer", "n_head", "n_embd", "vocab_size", "n_positions", "n_inner" };
    enum { LAYERS, HEADS, HIDDEN, VOCAB, POSITIONS, INNER, COUNT };
    int64_t values[COUNT] = { 0 };

    for (int i = 0; i < COUNT; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, names[i]);
        const double value = cJSON_IsNumber(item) ? item->valuedouble : 0;

        if (i == INNER && !cJSON_IsNumber(item)) /* null: as wide as usual */
            continue;
        if (!(value >= 1 && value <= INT32_MAX) || value != floor(value))
            return hkt__parallel_fail(HKT_ERR_INVALID, "%s: %s is not a whole number from 1", path, names[i]);
        values[i] = (int64_t)value;
    }
    const cJSON *tied = cJSON_GetObjectItemCaseSensitive(root, "tie_word_embeddings");

    *shape = (struct hkt_shape){ .layers = (int)values[LAYERS], .heads = (int)values[HEADS], .hidden = values[HIDDEN],
                                 .ffn = values[INNER], .vocab = values[VOCAB], .positions = values[POSITIONS],
                                 .biases = 1, .tied = !cJSON_IsFalse(tied) };
    return HKT_OK;
}

enum hkt_status hkt__hf_config_read(const char *folder, struct hkt_train_config *config)
{
    char path[HKT__ST_PATH_MAX + 32];
    cJSON *root = NULL;
    enum hkt_status rc;

    path_of(folder, path, sizeof path);
    rc = parse_file(path, &root);
    if (rc == HKT_OK)
        rc = check_kind(root, path);
    if (rc == HKT_OK)
        rc = take_shape(root, path, &config->shape);
    if (rc == HKT_OK)
        config->norm = HKT_TRAIN_LAYER_NORM;
    cJSON_Delete(root);
    return rc;
}
