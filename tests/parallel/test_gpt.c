/* What could break: a gradient of the whole model that is not the derivative of its loss (blocks right, joints wrong); bits
 * that change with recompute, with a second run, with the pass that has no backward; sums that change with the size of
 * micro-batches; a model of one expert that is not the dense one; memory that recompute should have saved; a layout that is
 * impossible and not refused, or refused without its numbers; a leak where memory ends. One rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpt_rig.h"
#include "numbers.h"
#include "parallel/alloc.h"

enum { MICROS = 2 };

struct model {
    struct rig rig;
    struct rig_data data;
    struct rig_case run;
    struct hkt_pipe *forward;
};

static struct rig_result *results[2];

static void open_model(struct model *model, const struct hkt__gpt_config *config)
{
    const struct hkt_pipe_opts opts = { .kind = HKT_PIPE_FORWARD, .stages = 1, .micros = MICROS };

    model->run = (struct rig_case){ .config = *config, .schedule = HKT_PIPE_GPIPE, .micros = MICROS };
    assert_int_equal(hkt_mesh_create("tp:1", 1, &model->rig.mesh), HKT_OK);
    hkt__memory_init(&model->rig.memory, 1 << 24);
    assert_int_equal(hkt__gpt_create(config, model->rig.mesh, 0, &model->rig.memory, &model->rig.gpt), HKT_OK);
    assert_int_equal(rig_bind(&model->rig), HKT_OK);
    rig_disturb(&model->rig);
    rig_data(&model->run, 0, &model->data);
    assert_int_equal(hkt_pipe_create(&opts, &model->forward), HKT_OK);
}

static void close_model(struct model *model)
{
    hkt_pipe_destroy(model->forward);
    hkt__gpt_destroy(model->rig.gpt);
    for (int f = 0; f < HKT__FLAT_COUNT; f++) {
        hkt__memory_free(&model->rig.memory, model->rig.param[f]);
        hkt__memory_free(&model->rig.memory, model->rig.grad[f]);
    }
    assert_int_equal(hkt__memory_fini(&model->rig.memory), HKT_OK);
    hkt_mesh_destroy(model->rig.mesh);
}

/* What gradients are of: the sum over tokens, and the losses of the router. */
static double loss_of(void *context)
{
    struct model *model = context;
    const struct hkt__gpt_step step = { .pipe = model->forward, .micros = model->data.micros, .scale = 1, .number = 5 };
    struct hkt__gpt_result result;

    assert_int_equal(hkt__gpt_forward_backward(model->rig.gpt, &step, &result), HKT_OK);
    return hkt__exact_value(&result.loss) + result.balance + result.z;
}

static void check_differences(const struct hkt__gpt_config *config)
{
    const struct hkt_pipe_opts opts = { .kind = HKT_PIPE_GPIPE, .stages = 1, .micros = MICROS };
    struct model *model = calloc(1, sizeof *model);
    struct hkt_pipe *pipe = NULL;
    struct hkt__gpt_result result;

    assert_non_null(model);
    open_model(model, config);
    assert_int_equal(hkt_pipe_create(&opts, &pipe), HKT_OK);
    const struct hkt__gpt_step step = { .pipe = pipe, .micros = model->data.micros, .scale = 1, .number = 5 };
    const struct hkt__own *own = hkt__gpt_own(model->rig.gpt);

    assert_int_equal(hkt__gpt_forward_backward(model->rig.gpt, &step, &result), HKT_OK);
    assert_true(loss_of(model) == hkt__exact_value(&result.loss) + result.balance + result.z);
    for (int i = 0; i < own->nparams; i++) {
        const int flat = hkt__own_flat(&own->params[i]);
        const int64_t first = own->flat[flat]->first[i], count = own->held[i].local_count;

        if (config->shape.positions > 0 && strstr(own->params[i].name, ".k.bias") != NULL)
            continue; /* it moves all scores of a row alike: its gradient is 0 but for rounding */
        /* All of a router: tokens' gates, balance and z-loss meet in it. */
        assert_gradient(own->params[i].name, loss_of, model, (double *)model->rig.param[flat] + first,
                        (double *)model->rig.grad[flat] + first, count,
                        strstr(own->params[i].name, "router") != NULL ? 1 : count / 5 + 1);
    }
    hkt_pipe_destroy(pipe);
    close_model(model);
    free(model);
}

static struct hkt__gpt_config smaller(struct hkt__gpt_config config)
{
    config.shape.layers = 2;
    config.seq = 5;
    config.shape.vocab = 19;
    config.shape.hidden = 16;
    config.shape.ffn = 14;
    config.dropout = 0.2;
    config.attention_dropout = 0.3;
    config.norm_eps = 1e-3; /* smooth where a row is nearly constant */
    return config;
}

static void gradients_are_derivatives(void **state)
{
    const struct hkt__gpt_config plain = smaller(tiny()), modern = smaller(tiny_modern());

    (void)state;
    check_differences(&plain);
    check_differences(&modern);
}

static void gradients_of_experts_are_derivatives(void **state)
{
    struct hkt__gpt_config config = smaller(tiny_experts());

    (void)state;
    config.shape.dense_layers = 0;
    check_differences(&config);
    config.renormalise = 0;
    config.shape.gated = 0;
    config.shape.top_k = 1;
    config.capacity_factor = 0;
    check_differences(&config);
}

static void run_one(const struct hkt__gpt_config *config, struct rig_result *result)
{
    const struct rig_case run = { .config = *config, .schedule = HKT_PIPE_GPIPE, .micros = 3, .steps = 2 };

    rig_run(&run, 1, result);
}

/* Each kind against none, which also is: the same twice. Memory of a layer that is made anew is not held. */
static void recompute_gives_the_same_bits(void **state)
{
    (void)state;
    for (int experts = 0; experts <= 1; experts++) {
        struct hkt__gpt_config config = experts ? tiny_experts() : tiny();
        uint64_t peak = UINT64_MAX;

        config.dropout = config.attention_dropout = 0.1;
        run_one(&config, results[0]);
        for (int kind = HKT_RECOMPUTE_NONE; kind <= HKT_RECOMPUTE_FULL; kind++) {
            config.recompute = (enum hkt_recompute)kind;
            run_one(&config, results[1]);
            rig_compare("recompute", results[1], results[0], 0);
            assert_true(results[1]->rank[0].peak < peak);
            peak = results[1]->rank[0].peak;
        }
    }
}

/* Eight sequences in micro-batches of one, two, four and eight: the same tokens, the same dropout, the same sums. */
static void micro_batches_of_any_size(void **state)
{
    (void)state;
    for (int size = 1; size <= 8; size *= 2) {
        struct rig_case run = { .config = tiny(), .schedule = HKT_PIPE_GPIPE, .micros = 8 / size };

        run.config.micro_batch = size;
        run.config.dropout = run.config.attention_dropout = 0.2;
        rig_run(&run, 1, results[size > 1]);
        if (size > 1)
            rig_compare("micro-batches", results[1], results[0], 1e-12);
    }
}

/* The tensor of the dense model that is this one of the model with one expert; -1: none. */
static int dense_tensor(const struct hkt__own *dense, const char *name)
{
    const char *part = strstr(name, "experts.0.");
    char plain[96];

    snprintf(plain, sizeof plain, "%.*s%s", part == NULL ? 96 : (int)(part - name), name,
             part == NULL ? "" : part + strlen("experts.0."));
    for (int i = 0; i < dense->nparams; i++)
        if (strcmp(dense->params[i].name, plain) == 0)
            return i;
    return -1;
}

/* Where a tensor is in the buffers of its kind. */
static size_t bytes_to(const struct hkt__own *own, int i)
{
    return (size_t)own->flat[hkt__own_flat(&own->params[i])]->first[i] * sizeof(double);
}

static double step_of(struct model *model)
{
    const struct hkt_pipe_opts opts = { .kind = HKT_PIPE_GPIPE, .stages = 1, .micros = MICROS };
    struct hkt_pipe *pipe = NULL;
    struct hkt__gpt_result result;

    assert_int_equal(hkt_pipe_create(&opts, &pipe), HKT_OK);
    const struct hkt__gpt_step step = { .pipe = pipe, .micros = model->data.micros, .scale = 1 };

    assert_int_equal(hkt__gpt_forward_backward(model->rig.gpt, &step, &result), HKT_OK);
    hkt_pipe_destroy(pipe);
    return hkt__exact_value(&result.loss);
}

/* One expert that every token goes to, with weight 1: the same parameters give the same bits. */
static void one_expert_is_the_dense_model(void **state)
{
    struct hkt__gpt_config config = tiny_modern();
    struct model *dense = calloc(1, sizeof *dense), *sparse = calloc(1, sizeof *sparse);

    (void)state;
    assert_true(dense != NULL && sparse != NULL);
    config.shape.biases = 1;
    open_model(dense, &config);
    config.shape.experts = 1;
    open_model(sparse, &config);
    const struct hkt__own *d = hkt__gpt_own(dense->rig.gpt), *s = hkt__gpt_own(sparse->rig.gpt);

    for (int i = 0; i < s->nparams; i++) {
        const int at = dense_tensor(d, s->params[i].name);

        if (at >= 0)
            memcpy((char *)sparse->rig.param[hkt__own_flat(&s->params[i])] + bytes_to(s, i),
                   (char *)dense->rig.param[0] + bytes_to(d, at), (size_t)s->held[i].local_count * sizeof(double));
    }
    assert_true(step_of(dense) == step_of(sparse));
    for (int i = 0; i < s->nparams; i++) {
        const int at = dense_tensor(d, s->params[i].name);
        const double *got = (double *)((char *)sparse->rig.grad[hkt__own_flat(&s->params[i])] + bytes_to(s, i));
        const double *want = at < 0 ? NULL : (double *)((char *)dense->rig.grad[0] + bytes_to(d, at));

        for (int64_t e = 0; e < s->held[i].local_count; e++)
            if (want != NULL ? got[e] != want[e] : got[e] != 0)
                fail_msg("%s[%lld]: %g", s->params[i].name, (long long)e, got[e]);
    }
    close_model(dense);
    close_model(sparse);
    free(dense);
    free(sparse);
}

/* Narrow types give what f64 gives, up to what their rounding allows; norms of whole tensors. */
static void narrow_types_are_near(void **state)
{
    static const struct {
        enum hkt_dtype dtype;
        double loss, grad;
    } types[] = { { HKT_F32, 1e-5, 1e-4 }, { HKT_BF16, 2e-2, 0.15 } };

    (void)state;
    for (int modern = 0; modern <= 1; modern++) {
        struct hkt__gpt_config config = modern ? tiny_modern() : tiny();

        run_one(&config, results[0]);
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            double error = 0, norm = 0;

            config.dtype = types[t].dtype;
            run_one(&config, results[1]);
            for (int64_t e = 0; e < results[0]->elems; e++) {
                const double d = results[1]->grad[e] - results[0]->grad[e];

                error += d * d;
                norm += results[0]->grad[e] * results[0]->grad[e];
            }
            if (!(fabs(results[1]->loss / results[0]->loss - 1) <= types[t].loss)
                || !(sqrt(error / norm) <= types[t].grad))
                fail_msg("%s: loss off by %.3g, gradients by %.3g", hkt_dtype_name(types[t].dtype),
                         results[1]->loss / results[0]->loss - 1, sqrt(error / norm));
        }
    }
}

static void refuse(const struct hkt__gpt_config *config, const char *layout, int nranks, const char *text)
{
    struct hkt__memory memory;
    struct hkt_mesh *mesh = NULL;
    struct hkt__gpt *gpt = NULL;

    hkt__memory_init(&memory, 0);
    assert_int_equal(hkt_mesh_create(layout, nranks, &mesh), HKT_OK);
    assert_true(hkt__gpt_create(config, mesh, 0, &memory, &gpt) < 0);
    if (strstr(hkt_parallel_last_error(), text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", hkt_parallel_last_error(), text);
    assert_null(gpt);
    hkt_mesh_destroy(mesh);
    assert_int_equal(hkt__memory_fini(&memory), HKT_OK);
}

static void impossible_models_are_refused(void **state)
{
    static const int gap[] = { 0, 1, 1, 4 };
    struct hkt__gpt_config config = tiny();

    (void)state;
    refuse(&config, "tp:3", 3, "4 heads");
    refuse(&config, "pp:5", 5, "4 layers cannot fill");
    config.shape.positions = 4;
    refuse(&config, "tp:1", 1, "4 learned positions");
    config = tiny();
    config.sequence_parallel = 1;
    config.seq = 7;
    refuse(&config, "tp:2", 2, "sequence");
    config = tiny();
    config.stage_first = gap;
    refuse(&config, "pp:3", 3, "stage 1 has layers [1, 1)");
    config = tiny();
    config.shape.shared = 1;
    refuse(&config, "tp:1", 1, "shared experts");
    config = tiny();
    config.shape.positions = 0;
    config.shape.head_dim = 5;
    refuse(&config, "tp:1", 1, "5 dimensions");
    config = tiny();
    config.dtype = HKT_INT8;
    refuse(&config, "tp:1", 1, "");
}

/* The k-th allocation fails, for all k, of accounts and of descriptions. A step that failed leaves a model that can be
 * destroyed, and nothing behind. */
static enum hkt_status whole_life(int64_t account_at)
{
    struct rig_case run = { .config = smaller(tiny_experts()), .schedule = HKT_PIPE_ZB_H1, .micros = 1 };
    const struct hkt_pipe_opts opts = { .kind = run.schedule, .stages = 1, .micros = 1 };
    struct rig_data *data = calloc(1, sizeof *data);
    struct rig rig = { 0 };
    struct hkt__gpt_result result;
    struct hkt_pipe *pipe = NULL;

    assert_non_null(data);
    rig_data(&run, 0, data);
    hkt__memory_init(&rig.memory, 0);
    rig.memory.fail_at = account_at;
    enum hkt_status rc = hkt_mesh_create("tp:1", 1, &rig.mesh);

    if (rc == HKT_OK)
        rc = hkt__gpt_create(&run.config, rig.mesh, 0, &rig.memory, &rig.gpt);
    if (rc == HKT_OK)
        rc = rig_bind(&rig);
    if (rc == HKT_OK)
        rc = hkt_pipe_create(&opts, &pipe);
    const struct hkt__gpt_step step = { .pipe = pipe, .micros = data->micros, .scale = 1 };

    if (rc == HKT_OK)
        rc = hkt__gpt_forward_backward(rig.gpt, &step, &result);
    hkt_pipe_destroy(pipe);
    hkt__gpt_destroy(rig.gpt);
    for (int f = 0; f < HKT__FLAT_COUNT; f++) {
        hkt__memory_free(&rig.memory, rig.param[f]);
        hkt__memory_free(&rig.memory, rig.grad[f]);
    }
    assert_int_equal(hkt__memory_fini(&rig.memory), HKT_OK);
    hkt_mesh_destroy(rig.mesh);
    free(data);
    return rc;
}

static void every_allocation_may_fail(void **state)
{
    enum hkt_status rc = HKT_ERR_NOMEM;
    int64_t k;

    (void)state;
    for (k = 1; rc < 0; k++) {
        rc = whole_life(k);
        assert_true(rc == HKT_OK || rc == HKT_ERR_NOMEM);
    }
    assert_true(k > 50);
    rc = HKT_ERR_NOMEM;
    for (k = 1; rc < 0; k++) {
        hkt__parallel_alloc_fail_at(k);
        rc = whole_life(0);
        hkt__parallel_alloc_fail_at(0);
        assert_true(rc == HKT_OK || rc == HKT_ERR_NOMEM);
    }
    assert_true(k > 20);
}

static int setup(void **state)
{
    (void)state;
    hkt__gemm_threads_set(1);
    results[0] = rig_alloc();
    results[1] = rig_alloc();
    return results[0] == NULL || results[1] == NULL;
}

static int teardown(void **state)
{
    (void)state;
    rig_free(results[0]);
    rig_free(results[1]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_derivatives),
        cmocka_unit_test(gradients_of_experts_are_derivatives),
        cmocka_unit_test(recompute_gives_the_same_bits),
        cmocka_unit_test(micro_batches_of_any_size),
        cmocka_unit_test(one_expert_is_the_dense_model),
        cmocka_unit_test(narrow_types_are_near),
        cmocka_unit_test(impossible_models_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests_name("gpt", tests, setup, teardown);
}
