/* What could break: a model that is consistent with itself in all layouts, and the derivative of its own loss, but not the model
 * that its name says: a norm with another mean, positions that turn the other way, heads that read another's keys, a mask off by
 * one, a loss of experts with another factor, a file whose q, k and v are in another order. Loss, logits and every gradient are
 * compared with those that PyTorch made of the same formulas, written apart (tests/parallel/oracle.py), on one and two ranks.
 *
 * HOCKET_SOURCE_ROOT: where the sources are (default: here). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpt_rig.h"
#include "numbers.h"
#include "parallel/train_state.h"

enum { ELEMS_MAX = 8192, TOKENS_MAX = 64 };

struct oracle {
    const char *name;
    char folder[1024];
    struct hkt__gpt_config config;
    int micros;
    double params[ELEMS_MAX];
    int32_t ids[TOKENS_MAX], targets[TOKENS_MAX];
    double *logits; /* [tokens][vocab] */
    int64_t tokens;
    struct rig_result *want;
};

static const char *const names[] = { "gpt2", "llama", "experts", "drops" };
static struct rig_result *result;

/* ---- what the oracle wrote ---- */

static void read_tensor(const struct hkt__st_file *file, const char *name, enum hkt_dtype dtype, int64_t count, void *to)
{
    const struct hkt__st_tensor *tensor = hkt__st_find(file, name);

    if (tensor == NULL || tensor->dtype != dtype || tensor->bytes != (uint64_t)count * hkt_dtype_size(dtype))
        fail_msg("%s has no tensor %s of %lld numbers", file->path, name, (long long)count);
    assert_int_equal(hkt__st_read(file, tensor, 0, to, tensor->bytes), HKT_OK);
}

static double meta(const struct hkt__st_file *file, const char *key)
{
    const char *text = hkt__st_meta(file, key);

    assert_non_null(text);
    return strtod(text, NULL);
}

static void read_config(const struct hkt__st_file *file, struct hkt__gpt_config *config)
{
    struct hkt_train_config train = hkt_train_defaults();

    assert_int_equal(hkt__shape_read(file, &train), HKT_OK);
    *config = (struct hkt__gpt_config){
        .shape = train.shape,
        .norm = train.norm == HKT_TRAIN_RMS_NORM ? HKT__NORM_RMS : HKT__NORM_LAYER,
        .dtype = HKT_F64,
        .seq = (int64_t)meta(file, "seq"),
        .micro_batch = (int64_t)meta(file, "micro_batch"),
        .capacity_factor = meta(file, "capacity"),
        .balance_weight = meta(file, "balance"),
        .z_weight = meta(file, "z"),
        .renormalise = (int)meta(file, "renormalise"),
    };
}

/* Tensor `index` of the model, from the file's: q, k and v stand side by side there, and matrices of layers are [in][out]. */
static void read_param(const struct hkt__st_file *file, const struct hkt__gpt *gpt, int index, const char *prefix, double *to)
{
    const struct hkt__own *own = hkt__gpt_own(gpt);
    const struct hkt__gpt_param *info = hkt__gpt_param_info(gpt, index);
    const struct hkt__param *param = &own->params[index];
    const int64_t rows = param->shape[0], cols = param->ndims > 1 ? param->shape[1] : 1;
    int64_t first = 0, all = 0;
    double *data = calloc(ELEMS_MAX, sizeof *data);
    char name[128];

    for (int i = 0; i < own->nparams; i++)
        if (strcmp(hkt__gpt_param_info(gpt, i)->file_name, info->file_name) == 0) {
            all += own->params[i].shape[0];
            first += hkt__gpt_param_info(gpt, i)->file_part < info->file_part ? own->params[i].shape[0] : 0;
        }
    snprintf(name, sizeof name, "%s%s", prefix, info->file_name);
    read_tensor(file, name, HKT_F64, all * cols, data);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            to[r * cols + c] = data[info->file_transposed ? c * all + first + r : (first + r) * cols + c];
    free(data);
}

static void read_model(const struct hkt__st_file *file, struct oracle *oracle)
{
    struct rig rig = { 0 };

    hkt__memory_init(&rig.memory, 0);
    assert_int_equal(hkt_mesh_create("tp:1", 1, &rig.mesh), HKT_OK);
    assert_int_equal(hkt__gpt_create(&oracle->config, rig.mesh, 0, &rig.memory, &rig.gpt), HKT_OK);
    assert_true(rig_list(&rig, oracle->want) <= ELEMS_MAX);
    for (int i = 0; i < oracle->want->nparams; i++) {
        const int64_t first = oracle->want->tensor[i].first;

        read_param(file, rig.gpt, i, "", oracle->params + first);
        read_param(file, rig.gpt, i, "grad.", oracle->want->grad + first);
    }
    hkt__gpt_destroy(rig.gpt);
    hkt_mesh_destroy(rig.mesh);
    assert_int_equal(hkt__memory_fini(&rig.memory), HKT_OK);
}

static struct oracle *open_oracle(const char *name)
{
    const char *root = getenv("HOCKET_SOURCE_ROOT");
    struct oracle *oracle = calloc(1, sizeof *oracle);
    struct hkt__st_file file;
    double losses[4];
    char path[1100];

    assert_non_null(oracle);
    oracle->name = name;
    oracle->want = rig_alloc();
    assert_non_null(oracle->want);
    snprintf(oracle->folder, sizeof oracle->folder, "%s/tests/golden/oracle/%s", root != NULL ? root : ".", name);
    snprintf(path, sizeof path, "%s/model.safetensors", oracle->folder);
    if (hkt__st_open(path, &file) < 0)
        fail_msg("%s", hkt_parallel_last_error());
    read_config(&file, &oracle->config);
    oracle->tokens = (int64_t)(hkt__st_find(&file, "ids")->bytes / sizeof(int32_t));
    assert_true(oracle->tokens <= TOKENS_MAX);
    oracle->micros = (int)(oracle->tokens / (oracle->config.seq * oracle->config.micro_batch));
    read_tensor(&file, "ids", HKT_INT32, oracle->tokens, oracle->ids);
    read_tensor(&file, "targets", HKT_INT32, oracle->tokens, oracle->targets);
    oracle->logits = calloc((size_t)(oracle->tokens * oracle->config.shape.vocab), sizeof(double));
    read_tensor(&file, "logits", HKT_F64, oracle->tokens * oracle->config.shape.vocab, oracle->logits);
    read_tensor(&file, "losses", HKT_F64, 4, losses);
    read_model(&file, oracle);
    hkt__st_close(&file);
    oracle->want->loss = losses[0];
    oracle->want->balance = losses[1];
    oracle->want->z = losses[2];
    oracle->want->dropped = (int64_t)losses[3];
    for (int64_t i = 0; i < oracle->tokens; i++)
        oracle->want->tokens += oracle->targets[i] >= 0;
    if (oracle->config.shape.experts > 0)
        oracle->want->routed = oracle->tokens * oracle->config.shape.top_k
                               * (oracle->config.shape.layers - oracle->config.shape.dense_layers);
    return oracle;
}

static void close_oracle(struct oracle *oracle)
{
    rig_free(oracle->want);
    free(oracle->logits);
    free(oracle);
}

/* Roundings between a parameter and the loss, and back to a gradient: one for each term of the longest sums on the way (width
 * of a norm, of a product, of a softmax), and some for the functions between. Each is at most half a unit of the last place of a
 * number that is no larger than what it is added to; they are taken to add up, as at worst they do. */
static double bound_of(const struct hkt__gpt_config *config, double epsilon)
{
    const struct hkt_shape *s = &config->shape;
    const int64_t queries = s->heads * s->head_dim, functions = 16;
    const int64_t layer = 4 * s->hidden + s->head_dim + 2 * config->seq + queries + s->ffn + functions;
    const int64_t forward = s->layers * layer + 2 * s->hidden + s->vocab + functions;
    const int64_t rows = config->seq * config->micro_batch * 2; /* a gradient of a parameter is a sum over them */

    return (double)(2 * forward + rows) * epsilon / 2;
}

/* ---- the model against it ---- */

static void loss_and_gradients(const struct oracle *oracle, const char *layout, int nranks, int sp)
{
    const struct rig_given given = { oracle->params, oracle->ids, oracle->targets };
    const int dp = strstr(layout, "dp:2") != NULL ? 2 : 1;
    struct rig_case run = { .given = &given, .layout = layout, .config = oracle->config, .schedule = HKT_PIPE_1F1B,
                            .micros = oracle->micros / dp };
    char what[128];

    run.config.sequence_parallel = sp;
    for (int is_narrow = 0; is_narrow <= 1; is_narrow++) {
        run.config.dtype = is_narrow ? HKT_F32 : HKT_F64;
        rig_run(&run, nranks, result);
        snprintf(what, sizeof what, "%s, %s%s, %s", oracle->name, layout, sp ? " sp" : "",
                 hkt_dtype_name(run.config.dtype));
        rig_compare(what, result, oracle->want, bound_of(&run.config, is_narrow ? 0x1p-23 : 0x1p-52));
    }
}

static void losses_and_gradients_are_the_oracles(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct oracle *oracle = open_oracle(names[i]);

        loss_and_gradients(oracle, "tp:1", 1, 0);
        loss_and_gradients(oracle, "tp:2", 2, 0);
        loss_and_gradients(oracle, "tp:2", 2, 1);
        loss_and_gradients(oracle, "pp:2", 2, 0);
        loss_and_gradients(oracle, oracle->config.shape.experts == 4 ? "dp:2=ep:2*edp:1" : "dp:2", 2, 0);
        close_oracle(oracle);
    }
}

/* What decoding makes of a sequence, token by token, from the file itself. */
static void sequence_logits(const struct oracle *oracle, struct hkt_comm *comm, enum hkt_dtype dtype, int64_t sequence)
{
    const struct hkt_generate_config config = { .dir = oracle->folder, .dtype = dtype };
    const int64_t vocab = oracle->config.shape.vocab, first = sequence * oracle->config.seq;
    const double bound = bound_of(&oracle->config, dtype == HKT_F32 ? 0x1p-23 : 0x1p-52);
    struct hkt_generator *generator = NULL;
    double *logits = calloc((size_t)vocab, sizeof *logits);

    if (hkt_generator_create(&config, comm, &generator) < 0)
        fail_msg("%s: %s", oracle->folder, hkt_parallel_last_error());
    for (int64_t i = first; i < first + oracle->config.seq; i++) {
        assert_int_equal(hkt_generator_prompt(generator, &oracle->ids[i], 1), HKT_OK);
        assert_int_equal(hkt_generator_logits(generator, logits), HKT_OK);
        assert_near("logits", logits, oracle->logits + i * vocab, vocab, bound);
    }
    free(logits);
    assert_int_equal(hkt_generator_destroy(generator), HKT_OK);
}

static void all_logits(struct ranks_rank *rank)
{
    const struct oracle *oracle = rank->arg;

    for (int64_t s = 0; s < oracle->tokens / oracle->config.seq; s++) {
        sequence_logits(oracle, rank->comm, HKT_F64, s);
        sequence_logits(oracle, rank->comm, HKT_F32, s);
    }
}

static void logits_are_the_oracles(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct oracle *oracle = open_oracle(names[i]);
        struct ranks_job job = { .kind = RANKS_PROCESSES, .nranks = 1, .fn = all_logits, .arg = oracle };

        /* Decoding drops no tokens and has weights that add up to 1. */
        for (; job.nranks <= 2 && oracle->config.renormalise; job.nranks++)
            ranks_run(&job);
        close_oracle(oracle);
    }
}

static int setup(void **state)
{
    (void)state;
    result = rig_alloc();
    return result == NULL;
}

static int teardown(void **state)
{
    (void)state;
    rig_free(result);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients_are_the_oracles),
        cmocka_unit_test(logits_are_the_oracles),
    };

    return cmocka_run_group_tests_name("oracle", tests, setup, teardown);
}
