/* Gradient sizes of models, in the order in which backward makes them ready: last layer first. Shapes are those of the
 * published configurations: GPT-2 124M (Radford et al. 2019: 12 layers, width 768, vocabulary 50257, context 1024, tied
 * head) and Llama 3 8B (Grattafiori et al. 2024: 32 layers, width 4096, 8 key-value heads of 128, feed-forward 14336,
 * vocabulary 128256, untied head). */
#include <stdlib.h>
#include <string.h>

#include "perf.h"

static void add(struct perf_model *model, size_t elems)
{
    model->sizes[model->count++] = elems;
}

static void gpt2_124m(struct perf_model *model)
{
    const size_t d = 768, vocabulary = 50257, context = 1024;

    add(model, d); /* final layer norm: bias, weight */
    add(model, d);
    for (int layer = 0; layer < 12; layer++) {
        add(model, d); /* MLP down: bias, weight */
        add(model, 4 * d * d);
        add(model, 4 * d); /* MLP up */
        add(model, 4 * d * d);
        add(model, d); /* second layer norm */
        add(model, d);
        add(model, d); /* attention output */
        add(model, d * d);
        add(model, 3 * d); /* query, key, value */
        add(model, 3 * d * d);
        add(model, d); /* first layer norm */
        add(model, d);
    }
    add(model, context * d);
    add(model, vocabulary * d);
}

static void llama3_8b(struct perf_model *model)
{
    const size_t d = 4096, kv = 8 * 128, ff = 14336, vocabulary = 128256;

    add(model, vocabulary * d); /* head */
    add(model, d);              /* final norm */
    for (int layer = 0; layer < 32; layer++) {
        add(model, d * ff); /* down, up, gate */
        add(model, d * ff);
        add(model, d * ff);
        add(model, d);
        add(model, d * d); /* output, value, key, query */
        add(model, d * kv);
        add(model, d * kv);
        add(model, d * d);
        add(model, d);
    }
    add(model, vocabulary * d);
}

static const struct {
    const char *name;
    void (*make)(struct perf_model *model);
} models[] = {
    {"gpt2-124m", gpt2_124m},
    {"llama3-8b", llama3_8b},
};

#define TENSORS_MAX 512

bool perf_model_make(const char *name, struct perf_model *out_model)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (strcmp(models[i].name, name) != 0)
            continue;
        *out_model = (struct perf_model){.name = models[i].name, .sizes = malloc(TENSORS_MAX * sizeof(size_t))};
        if (out_model->sizes != NULL)
            models[i].make(out_model);
        return out_model->sizes != NULL;
    }
    return false;
}

const char *perf_model_names(void)
{
    return "gpt2-124m, llama3-8b";
}
