/* What could break: an element is written to, or read from, another place of a file than the whole tensor has it (parts of one
 * tensor, transposed matrices, shards that begin in the middle of a row); a truncated or foreign file is believed; the header
 * does not say what the bytes are; config.json describes another model, or one that is not ours is taken for a GPT-2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"
#include "parallel/checkpoint.h"
#include "parallel/hf_config.h"

static char folder[] = "/tmp/hocket-test-checkpoint-XXXXXX";

/* ---- places in files ---- */

enum { NPARAMS = 6 };
static const struct hkt__param params[NPARAMS] = {
    { "norm", 1, { 7 }, HKT__CUT_NONE, 0, 0, -1, 0, -1 },   { "v", 2, { 4, 5 }, HKT__CUT_NONE, 0, 0, -1, 0, -1 },
    { "k", 2, { 4, 5 }, HKT__CUT_NONE, 0, 0, -1, 0, -1 },   { "q", 2, { 8, 5 }, HKT__CUT_NONE, 0, 0, -1, 0, -1 },
    { "out", 2, { 5, 8 }, HKT__CUT_NONE, 0, 0, -1, 1, -1 }, { "words", 2, { 11, 5 }, HKT__CUT_NONE, 0, 0, -1, 1, -1 },
};
static const struct hkt__gpt_param infos[NPARAMS] = {
    { .name = "norm", .file_parts = 1 },
    { .name = "v", .file_name = "qkv", .file_parts = 3, .file_part = 2, .file_transposed = 1 },
    { .name = "k", .file_name = "qkv", .file_parts = 3, .file_part = 1, .file_transposed = 1 },
    { .name = "q", .file_name = "qkv", .file_parts = 3, .file_part = 0, .file_transposed = 1 },
    { .name = "out", .file_name = "proj", .file_parts = 1, .file_transposed = 1 },
    { .name = "words", .file_parts = 1 },
};

/* Where element `global` of a parameter must be in its file tensor. */
static int64_t place(int param, int64_t global)
{
    static const int64_t rows_before[NPARAMS] = { 0, 12, 8, 0, 0, 0 }, out_all[NPARAMS] = { 0, 16, 16, 16, 5, 0 };
    const int64_t cols = params[param].shape[1];

    return out_all[param] == 0 ? global : global % cols * out_all[param] + rows_before[param] + global / cols;
}

static void each_element_has_its_place(void **state)
{
    (void)state;
    for (int nranks = 1; nranks <= 5; nranks++)
        for (int64_t align = 1; align <= 16; align *= 4) {
            int seen[3][256] = { { 0 } }, elements = 0;

            for (int rank = 0; rank < nranks; rank++) {
                struct hkt_mesh *mesh = NULL;
                struct hkt__own *own = NULL;
                struct hkt__files files;
                struct hkt__own_cursor cursor = { 0 };
                struct hkt__run run;
                char layout[16];

                snprintf(layout, sizeof layout, "dp:%d", nranks);
                assert_int_equal(hkt_mesh_create(layout, nranks, &mesh), HKT_OK);
                const struct hkt__own_opts opts = { .mesh = mesh, .rank = rank, .params = params, .nparams = NPARAMS,
                                                    .heads = 1, .kv_heads = 1, .align = align, .bucket_elems = 40 };

                assert_int_equal(hkt__own_create(&opts, &own), HKT_OK);
                assert_int_equal(hkt__files_init(own, infos, HKT_F32, &files), HKT_OK);
                assert_int_equal(files.ntensors, 4);
                while (hkt__own_next(own, true, &cursor, &run)) {
                    struct hkt__file_block block;
                    int64_t count = 0;

                    for (int64_t at = 0; hkt__files_next(&files, own, &run, &at, &block); count += block.count)
                        for (int64_t i = 0; i < block.count; i++) {
                            const int64_t in_run = block.run_first + i * block.run_stride;

                            assert_true(in_run >= 0 && in_run < run.count);
                            assert_int_equal(block.file_first + i, place(run.param, run.global_first + in_run));
                            seen[block.tensor % 3][block.file_first + i + 128 * (block.tensor / 3)]++;
                            elements++;
                        }
                    assert_int_equal(count, run.count);
                }
                hkt__files_fini(&files);
                hkt__own_destroy(own);
                hkt_mesh_destroy(mesh);
            }
            assert_int_equal(elements, 7 + 80 + 40 + 55);
            for (int t = 0; t < 3; t++)
                for (int i = 0; i < 256; i++)
                    assert_true(seen[t][i] <= 1);
        }
}

/* ---- files ---- */

static void write_bytes(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void refuse(const char *path, const char *why)
{
    struct hkt__st_file file;

    assert_true(hkt__st_open(path, &file) < 0);
    if (strstr(hkt_parallel_last_error(), why) == NULL || strstr(hkt_parallel_last_error(), path) == NULL)
        fail_msg("\"%s\" does not say \"%s\" of %s", hkt_parallel_last_error(), why, path);
}

static void a_file_says_what_was_laid_out(void **state)
{
    struct hkt__st_tensor tensors[2] = { { .name = "a", .dtype = HKT_F32, .ndims = 2, .shape = { 3, 5 } },
                                         { .name = "b.c", .dtype = HKT_BF16, .ndims = 1, .shape = { 7 } } };
    const struct hkt__st_meta metas[] = { { "step", "12" }, { "odd", "\"quoted\"\n" }, { NULL, NULL } };
    char *head = NULL, path[300], all[4096] = { 0 }, values[28];
    uint64_t end = 0;
    struct hkt__st_file file;

    (void)state;
    snprintf(path, sizeof path, "%s/good.safetensors", folder);
    assert_int_equal(hkt__st_layout(tensors, 2, metas, &head, &end), HKT_OK);
    assert_int_equal(tensors[0].first % 8, 0);
    assert_int_equal(tensors[1].first, tensors[0].first + 60);
    assert_int_equal(end, tensors[1].first + 14);
    memcpy(all, head, tensors[0].first);
    for (size_t i = tensors[0].first; i < end; i++)
        all[i] = (char)i;
    hkt__parallel_free(head);
    write_bytes(path, all, end);
    assert_int_equal(hkt__st_open(path, &file), HKT_OK);
    assert_int_equal(file.ntensors, 2);
    assert_string_equal(hkt__st_meta(&file, "step"), "12");
    assert_string_equal(hkt__st_meta(&file, "odd"), "\"quoted\"\n");
    assert_null(hkt__st_meta(&file, "none"));
    assert_null(hkt__st_find(&file, "b"));
    const struct hkt__st_tensor *b = hkt__st_find(&file, "b.c");

    assert_true(b != NULL && b->dtype == HKT_BF16 && b->ndims == 1 && b->shape[0] == 7 && b->first == tensors[1].first);
    assert_int_equal(hkt__st_read(&file, b, 4, values, 10), HKT_OK);
    assert_memory_equal(values, all + b->first + 4, 10);
    assert_int_equal(hkt__st_read(&file, b, 5, values, 10), HKT_ERR_INVALID);
    hkt__st_close(&file);
    /* Every truncation is seen. */
    for (uint64_t bytes = 0; bytes < end; bytes++) {
        write_bytes(path, all, bytes);
        refuse(path, bytes < 8 ? "shorter than 8 bytes" : "is truncated");
    }
}

/* A file with this header, and 16 bytes behind it. */
static void with_header(const char *path, const char *header)
{
    char all[1024] = { 0 };
    const size_t bytes = strlen(header);

    all[0] = (char)bytes;
    all[1] = (char)(bytes >> 8);
    memcpy(all + 8, header, bytes);
    write_bytes(path, all, 8 + bytes + 16);
}

static void foreign_files_are_refused(void **state)
{
    static const char *const headers[][2] = {
        { "[]", "its header is not JSON" },
        { "{\"a\": ", "its header is not JSON" },
        { "{\"a\": 3}", "of a type that is not known" },
        { "{\"a\": {\"dtype\": \"F31\", \"shape\": [4], \"data_offsets\": [0, 16]}}", "of a type that is not known" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [-4], \"data_offsets\": [0, 16]}}", "a shape is none" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1e30], \"data_offsets\": [0, 16]}}", "a shape is none" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [0, 20]}}", "is truncated: tensor a ends" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [8, 4]}}", "data_offsets are no range" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [0]}}", "data_offsets are no range" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [0, 16]}}", "which is not its shape" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1, 1, 1, 1, 4], \"data_offsets\": [0, 16]}}", "at most 4 dimensions" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [4503599627370496, 4503599627370496], \"data_offsets\": [0, 0]}}", "a shape is none" },
    };
    char path[300];

    (void)state;
    snprintf(path, sizeof path, "%s/foreign", folder);
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        with_header(path, headers[i][0]);
        refuse(path, headers[i][1]);
    }
    write_bytes(path, "GGUF\x03\0\0\0and so on", 17);
    refuse(path, "not the length of a header");
    write_bytes(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    refuse(path, "not the length of a header");
    refuse(folder, "it is no file");
    snprintf(path, sizeof path, "%s/nothing", folder);
    refuse(path, "cannot be opened");
}

/* ---- config.json ---- */

static void put_config(const char *text)
{
    char path[300];

    snprintf(path, sizeof path, "%s/config.json", folder);
    write_bytes(path, text, strlen(text));
}

static void a_gpt2_is_described(void **state)
{
    struct hkt_train_config ours = hkt_train_defaults(), read = hkt_train_defaults();
    char text[HKT__HF_CONFIG_MAX];

    (void)state;
    ours.shape = (struct hkt_shape){ .layers = 3, .heads = 5, .kv_heads = 5, .head_dim = 4, .hidden = 20, .ffn = 27, .vocab = 269,
                                     .positions = 9, .biases = 1 };
    for (ours.shape.tied = 0; ours.shape.tied <= 1; ours.shape.tied++) {
        hkt__hf_config_write(&ours, text);
        put_config(text);
        assert_true(hkt__hf_config_exists(folder));
        assert_int_equal(hkt__hf_config_read(folder, &read), HKT_OK);
        assert_int_equal(read.shape.tied, ours.shape.tied);
        assert_true(read.shape.layers == 3 && read.shape.heads == 5 && read.shape.hidden == 20 && read.shape.ffn == 27
                    && read.shape.vocab == 269 && read.shape.positions == 9 && read.shape.biases == 1);
    }
}

static void other_models_are_not(void **state)
{
    struct hkt_train_config config[8];
    char text[HKT__HF_CONFIG_MAX];

    (void)state;
    for (int i = 0; i < 8; i++)
        config[i] = hkt_train_defaults();
    hkt__hf_config_write(&config[0], text);
    assert_true(text[0] != '\0');
    config[0].shape.gated = 1;
    config[1].shape.biases = 0;
    config[2].shape.positions = 0;
    config[3].shape.experts = 4;
    config[4].shape.kv_heads = 2;
    config[5].shape.head_dim = 16;
    config[6].norm = HKT_TRAIN_RMS_NORM;
    config[7].shape.kv_rank = 8;
    for (int i = 0; i < 8; i++) {
        hkt__hf_config_write(&config[i], text);
        assert_string_equal(text, "");
    }
}

static void other_configs_are_refused(void **state)
{
#define SIZES "\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8, \"vocab_size\": 5, \"n_positions\": 7"
#define GPT2 "\"model_type\": \"gpt2\", "
    static const struct {
        const char *text;
        enum hkt_status status;
        const char *why;
    } cases[] = {
        { "{" GPT2 SIZES "}", HKT_OK, NULL },
        { "{" GPT2 SIZES ", \"n_inner\": null, \"scale_attn_weights\": true}", HKT_OK, NULL },
        { "", HKT_ERR_INVALID, "does not hold a JSON object" },
        { "{" GPT2 SIZES, HKT_ERR_INVALID, "does not hold a JSON object" },
        { "[]", HKT_ERR_INVALID, "does not hold a JSON object" },
        { "{" SIZES "}", HKT_ERR_UNSUPPORTED, "model_type is \"\"" },
        { "{\"model_type\": \"llama\", " SIZES "}", HKT_ERR_UNSUPPORTED, "model_type is \"llama\"" },
        { "{" GPT2 "\"n_layer\": 2}", HKT_ERR_INVALID, "n_head is not" },
        { "{" GPT2 SIZES ", \"n_inner\": 0}", HKT_ERR_INVALID, "n_inner is not" },
        { "{" GPT2 SIZES ", \"n_inner\": 2.5}", HKT_ERR_INVALID, "n_inner is not" },
        { "{" GPT2 SIZES ", \"n_inner\": 1e12}", HKT_ERR_INVALID, "n_inner is not" },
        { "{" GPT2 SIZES ", \"activation_function\": \"relu\"}", HKT_ERR_UNSUPPORTED, "activation_function is \"relu\"" },
        { "{" GPT2 SIZES ", \"layer_norm_epsilon\": 1e-6}", HKT_ERR_UNSUPPORTED, "layer_norm_epsilon is 1e-06" },
        { "{" GPT2 SIZES ", \"scale_attn_weights\": false}", HKT_ERR_UNSUPPORTED, "scale_attn_weights" },
        { "{" GPT2 SIZES ", \"scale_attn_by_inverse_layer_idx\": true}", HKT_ERR_UNSUPPORTED, "inverse_layer_idx" },
        { "{" GPT2 SIZES ", \"add_cross_attention\": true}", HKT_ERR_UNSUPPORTED, "add_cross_attention" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hkt_train_config config = hkt_train_defaults();

        put_config(cases[i].text);
        const enum hkt_status rc = hkt__hf_config_read(folder, &config);

        if (rc != cases[i].status || (rc < 0 && strstr(hkt_parallel_last_error(), cases[i].why) == NULL))
            fail_msg("%s: %d, \"%s\"", cases[i].text, (int)rc, hkt_parallel_last_error());
        assert_int_equal(config.shape.hidden, rc < 0 ? hkt_train_defaults().shape.hidden : 8);
    }
    struct hkt_train_config config = hkt_train_defaults();

    assert_int_equal(hkt__hf_config_read("/nonexistent", &config), HKT_ERR_SYSTEM);
    assert_false(hkt__hf_config_exists("/nonexistent"));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    char command[300];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_has_its_place),
        cmocka_unit_test(a_file_says_what_was_laid_out),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(a_gpt2_is_described),
        cmocka_unit_test(other_models_are_not),
        cmocka_unit_test(other_configs_are_refused),
    };

    return cmocka_run_group_tests_name("checkpoint", tests, make_folder, remove_folder);
}
