/* What remains of a training run: the loss curve as SVG, everything as JSON. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "tools.h"
#include "train.h"

enum { WIDTH = 720, HEIGHT = 400, LEFT = 60, RIGHT = 20, TOP = 30, BOTTOM = 50 };

static int write_failed(const char *path)
{
    hkt_tool_say("train", "%s cannot be written: %s", path, strerror(errno));
    return TOOL_FAILED;
}

struct plot {
    double steps_max, low, high;
};

static double place_x(const struct plot *plot, int64_t step)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (double)step / plot->steps_max;
}

static double place_y(const struct plot *plot, double loss)
{
    return TOP + (HEIGHT - TOP - BOTTOM) * (plot->high - loss) / (plot->high - plot->low);
}

static struct plot measure(const struct train_point *points, long count)
{
    struct plot plot = { 1, points[0].report.loss, points[0].report.loss };

    for (long i = 0; i < count; i++) {
        plot.steps_max = fmax(plot.steps_max, (double)points[i].report.step);
        plot.low = fmin(plot.low, fmin(points[i].report.loss, isnan(points[i].held_out) ? plot.low : points[i].held_out));
        plot.high = fmax(plot.high, points[i].report.loss);
    }
    plot.low = floor(plot.low * 2) / 2;
    plot.high = ceil(plot.high * 2) / 2;
    if (!(plot.high > plot.low))
        plot.high = plot.low + 0.5;
    return plot;
}

static void draw_axes(FILE *file, const struct plot *plot)
{
    double step = 0.5;

    while ((plot->high - plot->low) / step > 16) /* of a run that went astray */
        step *= 2;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%d\" y=\"18\">loss, nats per token</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT, WIDTH / 2, HEIGHT - 10);
    for (double y = plot->low; y <= plot->high + 1e-9; y += step)
        fprintf(file, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%.1f</text>\n", LEFT, WIDTH - RIGHT, place_y(plot, y), place_y(plot, y), LEFT - 6,
                place_y(plot, y) + 4, y);
    for (int i = 0; i <= 5; i++)
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
                place_x(plot, 0) + (WIDTH - LEFT - RIGHT) * i / 5.0, HEIGHT - BOTTOM + 18, plot->steps_max * i / 5);
}

int train_write_svg(const char *path, const struct train_point *points, long count)
{
    FILE *file = fopen(path, "w");

    if (file == NULL)
        return write_failed(path);
    const struct plot plot = measure(points, count);

    draw_axes(file, &plot);
    fputs("<polyline fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"1.5\" points=\"", file);
    for (long i = 0; i < count; i++)
        fprintf(file, "%.1f,%.1f ", place_x(&plot, points[i].report.step), place_y(&plot, points[i].report.loss));
    fputs("\"/>\n", file);
    for (long i = 0; i < count; i++)
        if (!isnan(points[i].held_out))
            fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#d62728\"><title>held out: %.4f</title></circle>\n",
                    place_x(&plot, points[i].report.step), place_y(&plot, points[i].held_out), points[i].held_out);
    fprintf(file, "<text x=\"%d\" y=\"18\" text-anchor=\"end\" fill=\"#1f77b4\">training <tspan fill=\"#d62728\">held out"
            "</tspan></text>\n</svg>\n", WIDTH - RIGHT);
    const int failed = ferror(file);

    return fclose(file) != 0 || failed ? write_failed(path) : TOOL_OK;
}

static cJSON *layout_json(const struct train_options *o, const struct hkt_trainer *trainer)
{
    const struct hkt_layout *l = &o->config.layout;
    const struct hkt_shape *s = &o->config.shape;
    cJSON *root = cJSON_CreateObject();
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        { "dp", l->dp }, { "tp", l->tp }, { "pp", l->pp }, { "ep", l->ep }, { "zero", l->zero }, { "shard", l->shard },
        { "sequence_parallel", l->sequence_parallel }, { "batch", (double)l->global_batch },
        { "micro_batch", (double)l->micro_batch }, { "seq", (double)l->seq }, { "layers", s->layers },
        { "hidden", (double)s->hidden }, { "heads", s->heads }, { "experts", s->experts },
        { "params", (double)hkt_trainer_params(trainer) },
        { "vocab", (double)(hkt_trainer_tokenizer(trainer) != NULL ? hkt_tokenizer_vocab(hkt_trainer_tokenizer(trainer)) : 256) },
        { "text_bytes", (double)hkt_trainer_data_bytes(trainer) }, { "text_tokens", (double)hkt_trainer_data_tokens(trainer) },
    };

    cJSON_AddStringToObject(root, "mesh", hkt_trainer_mesh(trainer));
    cJSON_AddStringToObject(root, "schedule", hkt_pipe_kind_name(l->schedule));
    cJSON_AddStringToObject(root, "dtype", hkt_dtype_name(o->config.dtype));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        cJSON_AddNumberToObject(root, numbers[i].name, numbers[i].value);
    return root;
}

static cJSON *counted_json(const struct hkt_trainer *trainer, const char *const *names,
                           uint64_t (*count)(const struct hkt_trainer *, const char *))
{
    cJSON *root = cJSON_CreateObject();

    for (; *names != NULL; names++)
        cJSON_AddNumberToObject(root, *names, (double)count(trainer, *names));
    return root;
}

static cJSON *waited_json(const struct hkt_trainer *trainer, const char *const *axes)
{
    cJSON *root = cJSON_CreateObject();

    for (; *axes != NULL; axes++)
        cJSON_AddNumberToObject(root, *axes, hkt_trainer_waited(trainer, *axes));
    return root;
}

static cJSON *point_json(const struct train_point *point)
{
    const struct hkt_train_report *r = &point->report;
    cJSON *root = cJSON_CreateObject();

    cJSON_AddNumberToObject(root, "step", (double)r->step);
    cJSON_AddNumberToObject(root, "loss", r->loss);
    cJSON_AddNumberToObject(root, "grad_norm", r->grad_norm);
    cJSON_AddNumberToObject(root, "lr", r->lr);
    cJSON_AddNumberToObject(root, "tokens", (double)r->tokens);
    cJSON_AddNumberToObject(root, "seconds", r->seconds);
    cJSON_AddNumberToObject(root, "comm_seconds", r->comm_seconds);
    cJSON_AddNumberToObject(root, "memory_bytes", (double)r->memory_bytes);
    if (r->skipped)
        cJSON_AddTrueToObject(root, "skipped");
    if (r->dropped > 0)
        cJSON_AddNumberToObject(root, "dropped", (double)r->dropped);
    if (r->balance != 0)
        cJSON_AddNumberToObject(root, "balance", r->balance);
    if (r->z != 0)
        cJSON_AddNumberToObject(root, "z", r->z);
    if (!isnan(point->held_out))
        cJSON_AddNumberToObject(root, "held_out_loss", point->held_out);
    return root;
}

/* ---- what was sent and held ---- */

const char *const train_axes[TRAIN_AXES + 1] = { "dp", "tp", "sp", "pp", "ep", "scalars", NULL };
static const char *const classes[TRAIN_CLASSES] = { "parameters", "gradients", "optimizer", "activations", "gathered" };

static void put_sent(const struct hkt_step_bytes *b, struct train_amounts *out)
{
    const struct hkt_coll_bytes *const all[TRAIN_AXES] = { &b->dp, &b->tp, &b->sp, &b->pp, &b->ep, &b->scalars };

    for (int i = 0; i < TRAIN_AXES; i++)
        out->sent[i] = hkt_coll_bytes_sum(all[i]);
}

static void put_held(const struct hkt_step_memory *m, struct train_amounts *out)
{
    const double all[TRAIN_CLASSES] = { m->param, m->grad, m->optimizer, m->activation, m->comm };

    memcpy(out->held, all, sizeof all);
}

int train_add_bytes(const struct hkt_trainer *trainer, struct hkt_comm *comm, struct train_bytes *out_bytes)
{
    struct hkt_step_bytes sent[2];
    struct hkt_step_memory held[2];

    if (hkt_trainer_step_bytes(trainer, &sent[0], &sent[1]) < 0 || hkt_trainer_step_memory(trainer, &held[0], &held[1]) < 0) {
        hkt_tool_say("train", "%s", hkt_parallel_last_error());
        return TOOL_FAILED;
    }
    put_sent(&sent[0], &out_bytes->counted);
    put_sent(&sent[1], &out_bytes->predicted);
    put_held(&held[0], &out_bytes->counted);
    put_held(&held[1], &out_bytes->predicted);
    out_bytes->buffers = (double)hkt_trainer_memory(trainer, "buffer");
    if (hkt_all_reduce(out_bytes, out_bytes, sizeof *out_bytes / sizeof(double), HKT_F64, HKT_SUM, comm, NULL) < 0) {
        hkt_tool_say("train", "adding up bytes: %s", hkt_last_error());
        return TOOL_FAILED;
    }
    return TOOL_OK;
}

void train_print_bytes(const struct train_bytes *bytes, bool may_leave_early)
{
    const struct train_amounts *c = &bytes->counted, *p = &bytes->predicted;

    printf("bytes of the last step, all ranks together\n%11s %16s %16s\n", "sent", "counted", "by formula");
    for (int i = 0; i < TRAIN_AXES; i++)
        if (c->sent[i] > 0 || p->sent[i] > 0)
            printf("%11s %16.0f %16.0f\n", train_axes[i], c->sent[i], p->sent[i]);
    printf("%11s\n", "held");
    for (int i = 0; i < TRAIN_CLASSES; i++)
        if (c->held[i] > 0 || p->held[i] > 0)
            printf("%11s %16.0f %16.0f%s\n", classes[i], c->held[i], p->held[i], may_leave_early && i == 3 ? " at most" : "");
    printf("%11s %16.0f %16s\n", "buffers", bytes->buffers, "-");
    fflush(stdout);
}

static cJSON *amounts_json(const char *const *names, const double *counted, const double *predicted, int count)
{
    cJSON *root = cJSON_CreateObject();

    for (int i = 0; i < count; i++) {
        cJSON *row = cJSON_AddObjectToObject(root, names[i]);

        cJSON_AddNumberToObject(row, "counted", counted[i]);
        cJSON_AddNumberToObject(row, "by_formula", predicted[i]);
    }
    return root;
}

int train_write_json(const char *path, const struct train_log *log)
{
    const struct hkt_trainer *trainer = log->trainer;
    const struct train_amounts *counted = &log->bytes->counted, *predicted = &log->bytes->predicted;
    static const char *const kinds[] = { "param", "grad", "main_grad", "optimizer", "activation", "buffer", "comm", NULL };
    cJSON *root = cJSON_CreateObject(), *steps = cJSON_CreateArray();
    FILE *file = fopen(path, "w");

    cJSON_AddItemToObject(root, "run", layout_json(log->options, trainer));
    cJSON_AddItemToObject(root, "bytes_of_rank_0", counted_json(trainer, train_axes, hkt_trainer_bytes));
    cJSON_AddItemToObject(root, "bytes_of_the_last_step", amounts_json(train_axes, counted->sent, predicted->sent, TRAIN_AXES));
    cJSON_AddItemToObject(root, "memory_of_the_last_step", amounts_json(classes, counted->held, predicted->held, TRAIN_CLASSES));
    cJSON_AddItemToObject(root, "waited_seconds_of_rank_0", waited_json(trainer, train_axes));
    cJSON_AddItemToObject(root, "peak_memory_of_rank_0", counted_json(trainer, kinds, hkt_trainer_memory));
    for (long i = 0; i < log->count; i++)
        cJSON_AddItemToArray(steps, point_json(&log->points[i]));
    cJSON_AddItemToObject(root, "steps", steps);
    char *text = cJSON_Print(root);
    const bool is_ok = file != NULL && text != NULL && fputs(text, file) >= 0 && fputc('\n', file) >= 0;

    cJSON_Delete(root);
    cJSON_free(text);
    return (file != NULL && fclose(file) != 0) || !is_ok ? write_failed(path) : TOOL_OK;
}
