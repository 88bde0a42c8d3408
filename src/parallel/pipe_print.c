/* Schedules as text, drawing, JSON and trace. */
#include <inttypes.h>
#include <string.h>

#include "parallel/fail.h"
#include "parallel/pipe.h"

const char *hkt_pipe_kind_name(enum hkt_pipe_kind kind)
{
    static const char *const names[] = {
#define KIND_NAME(name, text) text,
        HKT_PIPE_KIND_TABLE(KIND_NAME)
#undef KIND_NAME
    };

    return (unsigned)kind < HKT_PIPE_KIND_COUNT ? names[kind] : "?";
}

const char *hkt_pipe_op_name(enum hkt_pipe_op_kind kind)
{
    static const char *const names[] = {
#define OP_NAME(name, text) text,
        HKT_PIPE_OP_TABLE(OP_NAME)
#undef OP_NAME
    };

    return (unsigned)kind < HKT_PIPE_OP_COUNT ? names[kind] : "?";
}

enum hkt_status hkt_pipe_kind_parse(const char *text, enum hkt_pipe_kind *out_kind)
{
    for (int kind = 0; text != NULL && kind < HKT_PIPE_KIND_COUNT; kind++)
        if (strcmp(text, hkt_pipe_kind_name((enum hkt_pipe_kind)kind)) == 0) {
            *out_kind = (enum hkt_pipe_kind)kind;
            return HKT_OK;
        }
#define KIND_LIST(name, text) " " text
    return hkt__parallel_fail(HKT_ERR_INVALID, "no pipeline schedule \"%s\"; there are" HKT_PIPE_KIND_TABLE(KIND_LIST),
                              text == NULL ? "" : text);
#undef KIND_LIST
}

static enum hkt_status written(FILE *file)
{
    return ferror(file) ? hkt__parallel_fail(HKT_ERR_SYSTEM, "a schedule could not be written") : HKT_OK;
}

/* "F 3", "F 3b" with more than one chunk. */
static void label(const struct hkt_pipe *pipe, const struct hkt_pipe_op *op, const char *space, char out_text[32])
{
    char chunk[12] = "";

    if (pipe->chunks > 26)
        snprintf(chunk, sizeof chunk, ".%d", op->chunk);
    else if (pipe->chunks > 1)
        snprintf(chunk, sizeof chunk, "%c", 'a' + op->chunk);
    snprintf(out_text, 32, "%s%s%d%s", hkt_pipe_op_name(op->kind), space, op->micro, chunk);
}

enum hkt_status hkt_pipe_print(const struct hkt_pipe *pipe, int stage, FILE *file)
{
    if (pipe == NULL || file == NULL || stage < -1 || stage >= pipe->stages)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_pipe_print: a NULL, or no such stage %d", stage);
    for (int s = stage < 0 ? 0 : stage; s < (stage < 0 ? pipe->stages : stage + 1); s++) {
        fprintf(file, "stage %d:", s);
        for (int i = pipe->first[s]; i < pipe->first[s + 1]; i++) {
            const struct hkt_pipe_op *op = &pipe->ops[i];
            char text[32];

            label(pipe, op, " ", text);
            fprintf(file, "%s %s", i == pipe->first[s] ? "" : ",", text);
            if (!hkt__pipe_is_compute(op->kind))
                fprintf(file, " %s %d", hkt__pipe_is_send(op->kind) ? "to" : "from", op->peer);
        }
        fputc('\n', file);
    }
    return written(file);
}

/* ---- the drawing ---- */

static int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Virtual time per column, and letters per column (the longest label and a space). */
static void measure(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim, int64_t *out_unit, int *out_width)
{
    int64_t unit = 0;
    size_t width = 1;

    for (int i = 0; i < hkt__pipe_nops(pipe); i++) {
        char text[32];

        if (!hkt__pipe_is_compute(pipe->ops[i].kind))
            continue;
        unit = gcd(unit, gcd(sim->start[i], sim->end[i] - sim->start[i]));
        label(pipe, &pipe->ops[i], "", text);
        width = strlen(text) > width ? strlen(text) : width;
    }
    *out_unit = unit == 0 ? 1 : unit;
    *out_width = (int)width + 1;
}

static void fill(FILE *file, char c, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        fputc(c, file);
}

/* One stage: "F0 F1 .  B0----"; idle columns are dots. */
static void draw_stage(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim, int stage, int64_t unit, int width,
                       FILE *file)
{
    int64_t at = 0;

    fprintf(file, "stage %-4d ", stage);
    for (int i = pipe->first[stage]; i <= pipe->first[stage + 1]; i++) {
        const int is_last = i == pipe->first[stage + 1];
        char text[32];

        if (!is_last && (!hkt__pipe_is_compute(pipe->ops[i].kind) || sim->end[i] == sim->start[i]))
            continue;
        for (; at < (is_last ? sim->makespan / unit : sim->start[i] / unit); at++) {
            fputc('.', file);
            fill(file, ' ', width - 1);
        }
        if (is_last)
            break;
        label(pipe, &pipe->ops[i], "", text);
        const int64_t letters = (sim->end[i] - sim->start[i]) / unit * width, used = (int64_t)strlen(text);

        fputs(text, file);
        fill(file, '-', letters - 1 - used < 0 || letters == width ? 0 : letters - 1 - used);
        fill(file, ' ', letters == width ? width - used : 1);
        at = sim->end[i] / unit;
    }
    fputc('\n', file);
}

/* How many stages compute in each column. */
static void draw_busy(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim, int64_t unit, int width, FILE *file)
{
    int next[HKT_PIPE_STAGES_MAX];

    memcpy(next, pipe->first, (size_t)pipe->stages * sizeof next[0]);
    fputs("busy       ", file);
    for (int64_t column = 0; column < sim->makespan / unit; column++) {
        int busy = 0;

        for (int stage = 0; stage < pipe->stages; stage++) {
            int *i = &next[stage];

            while (*i < pipe->first[stage + 1]
                   && (!hkt__pipe_is_compute(pipe->ops[*i].kind) || sim->end[*i] <= column * unit))
                ++*i;
            busy += *i < pipe->first[stage + 1] && sim->start[*i] <= column * unit;
        }
        fprintf(file, "%-*d", width, busy);
    }
    fputc('\n', file);
}

enum hkt_status hkt_pipe_draw(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim, FILE *file)
{
    int64_t unit, busy = 0;
    int width;

    if (pipe == NULL || sim == NULL || file == NULL || sim->stages != pipe->stages)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_pipe_draw: a NULL, or a simulation of another schedule");
    measure(pipe, sim, &unit, &width);
    fprintf(file, "%s: %d stages, %d micro-batches", hkt_pipe_kind_name(pipe->kind), pipe->stages, pipe->micros);
    if (pipe->chunks > 1)
        fprintf(file, ", %d chunks per stage", pipe->chunks);
    fprintf(file, "; a column is %" PRId64 "\n", unit);
    for (int stage = 0; stage < pipe->stages; stage++) {
        draw_stage(pipe, sim, stage, unit, width, file);
        busy += sim->busy[stage];
    }
    draw_busy(pipe, sim, unit, width, file);
    const int64_t all = sim->makespan * pipe->stages;

    fprintf(file, "makespan %" PRId64 ", idle %" PRId64 " of %" PRId64 " (%.2f%%)\n", sim->makespan, all - busy, all,
            all == 0 ? 0.0 : 100.0 * (double)(all - busy) / (double)all);
    return written(file);
}

/* ---- for programs ---- */

enum hkt_status hkt_pipe_json(const struct hkt_pipe *pipe, FILE *file)
{
    if (pipe == NULL || file == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_pipe_json: pipe and file must not be NULL");
    fprintf(file,
            "{\"schedule\": \"%s\", \"stages\": %d, \"micro_batches\": %d, \"chunks\": %d, \"splits_backward\": %s,\n",
            hkt_pipe_kind_name(pipe->kind), pipe->stages, pipe->micros, pipe->chunks,
            pipe->splits_backward ? "true" : "false");
    fputs(" \"operations\": [", file);
    for (int stage = 0; stage < pipe->stages; stage++) {
        fprintf(file, "%s\n  [", stage == 0 ? "" : ",");
        for (int i = pipe->first[stage]; i < pipe->first[stage + 1]; i++) {
            const struct hkt_pipe_op *op = &pipe->ops[i];

            fprintf(file, "%s{\"op\": \"%s\", \"micro\": %d, \"chunk\": %d", i == pipe->first[stage] ? "" : ", ",
                    hkt_pipe_op_name(op->kind), op->micro, op->chunk);
            if (!hkt__pipe_is_compute(op->kind))
                fprintf(file, ", \"peer\": %d", op->peer);
            fputc('}', file);
        }
        fputc(']', file);
    }
    fputs("\n]}\n", file);
    return written(file);
}

enum hkt_status hkt_pipe_trace(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim, FILE *file)
{
    if (pipe == NULL || sim == NULL || file == NULL || sim->stages != pipe->stages)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_pipe_trace: a NULL, or a simulation of another schedule");
    fputs("{\"traceEvents\": [", file);
    for (int stage = 0; stage < pipe->stages; stage++) {
        fprintf(
            file,
            "%s\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": %d, \"args\": {\"name\": \"stage %d\"}}",
            stage == 0 ? "" : ",", stage, stage);
        for (int i = pipe->first[stage]; i < pipe->first[stage + 1]; i++) {
            const struct hkt_pipe_op *op = &pipe->ops[i];
            char text[32];

            if (!hkt__pipe_is_compute(op->kind) && sim->end[i] == sim->start[i])
                continue;
            label(pipe, op, " ", text);
            fprintf(file,
                    ",\n{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %" PRId64
                    ", \"dur\": %" PRId64 ", \"args\": {\"micro\": %d, \"chunk\": %d, \"peer\": %d}}",
                    text, hkt__pipe_is_compute(op->kind) ? "compute" : "message",
                    hkt__pipe_is_compute(op->kind) ? 0 : 1, stage, sim->start[i], sim->end[i] - sim->start[i],
                    op->micro, op->chunk, op->peer);
        }
    }
    fputs("\n], \"displayTimeUnit\": \"ms\"}\n", file);
    return written(file);
}
