/* The options of `hocket train`. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"
#include "train.h"

static const char help_text[] =
    "usage: hocket train [OPTIONS]\n\n"
    "Trains a small GPT on a text, cut over ranks as you say. Start it with `hocket run -n N`, mpirun, torchrun or\n"
    "srun; alone it is one rank. dp * tp * pp must be the number of ranks. The layout does not change what is computed.\n\n"
    "layout\n"
    "      --dp N  --tp N  --pp N  ranks along data, tensor and pipeline parallelism (1)\n"
    "      --ep N                  experts shared out over N ranks of dp (1)\n"
    "      --zero 0..3             what data-parallel ranks share out: nothing, optimizer, gradients too, parameters too (0)\n"
    "      --shard N               hybrid: only N ranks of dp share out, the groups of N are replicas\n"
    "      --sp                    norms and dropout are cut along the sequence over tp\n"
    "      --schedule NAME         gpipe, 1f1b (default), interleaved, zb-h1;  --chunks N: per stage, interleaved (2)\n"
    "      --stages 2,1,1          layers of each stage, of all first chunks first (as even as can be)\n"
    "      --mesh ORDER            of the axes, fastest first (\"tp dp pp\");  --groups: print which ranks are together\n"
    "      --recompute KIND        none (default), selective, full\n"
    "model\n"
    "      --layers N --hidden N --heads N --kv-heads N --ffn N     4, 128, 4, heads, 4 * hidden\n"
    "      --experts N --top-k N   experts instead of each MLP, and how many a token goes to (0, 1)\n"
    "      --capacity X            tokens an expert takes, times the even share (0: all); what is dropped is counted\n"
    "      --balance X --z-loss X  weights of the losses that spread tokens over experts, and keep scores small (0.01, 0)\n"
    "      --rms-norm --gated --rotary --no-biases --untied    RMS norm, SwiGLU, rotary positions, no biases, a head of its own:\n"
    "                              each where GPT-2 has the other;  --llama: all five\n"
    "      --dtype TYPE            float (default), double, bfloat16 (with float masters and gradients)\n"
    "      --dropout P --attention-dropout P   after embedding, attention and MLP (0); of attention's weights (0)\n"
    "training\n";
static const char help_rest[] =
    "      --data FILE             a text, or a folder of texts; default: the licences in /usr/share/common-licenses\n"
    "      --tokens KIND           bytes (default); bpe:N: N pieces learned from the text; a folder with GPT-2's vocab.json and\n"
    "                              merges.txt. Checkpoints keep them\n"
    "      --batch N               sequences per step on all ranks together (16)\n"
    "      --micro-batches N       per step and data-parallel rank (as many as sequences)\n"
    "      --seq N                 tokens of a sequence (64)\n"
    "      --steps N               up to which step (100)\n"
    "      --lr X --lr-min X --warmup N --decay N      1e-3, a tenth of lr, 10, --steps\n"
    "      --held-out X            share of the text, at its end, that is not trained on (0.1)\n"
    "      --optimizer NAME        adamw (default) or sgd;  --momentum X: of sgd (0)\n"
    "      --beta1 X --beta2 X --eps X     of adamw (0.9, 0.95, 1e-8)\n"
    "      --weight-decay X --clip X --seed N          0.1, 1 (0: none), 1\n"
    "      --loss-scale X          first loss scale, adapted to overflows (0: none)\n"
    "      --bucket BYTES          of gradients, e.g. 4M (with --zero 2 and 3: a layer)\n"
    "      --prefetch N            --zero 3: layers gathered ahead (1);  --keep-gathered: parameters stay until backward\n"
    "      --reduce-every          --zero 2, 3: reduce gradients after every micro-batch\n"
    "      --no-overlap            communicate after backward, not during it\n"
    "      --threads N             of a rank's matrix products (its share of the cores)\n"
    "      --fast-sums             any order of summation: less time for small vectors, other bits in other layouts\n"
    "      --check                 after each step compare what several ranks hold, to the bit: finds faulty memory and links\n"
    "output\n"
    "      --every N               a line each N steps (10);  --eval-every N, --eval-batches N: held-out loss (0: at the end; 4)\n"
    "      --save DIR              checkpoints, each --save-every N steps (0: at the end);  --save-sync: wait for each\n"
    "      --resume DIR            go on from there, in whatever layout it was made\n"
    "      --weights DIR           take parameters only, of a checkpoint or a GPT-2 that Hugging Face's transformers saved, and the\n"
    "                              model's shape unless options say it\n"
    "      --json FILE --svg FILE  everything that was measured; the loss curve: at each checkpoint, and at the end\n"
    "      --trace FILE            the last three steps of all ranks, to look at in chrome://tracing or ui.perfetto.dev\n"
    "  -h, --help                  this text\n\n"
    "Columns: loss in nats per token, norm of the gradient before clipping, memory of rank 0, and which share of the step rank 0\n"
    "stood still for communication of any kind.\n"
    "Exit codes: 0 success, 1 failure, 2 wrong usage or an impossible layout.\n";

enum option_kind { INT, WIDE, LONG, REAL, BYTES, FLAG, TEXT, OTHER };
/* From O_LLAMA to O_UNTIED: of the model's shape. */
enum other { O_SCHEDULE, O_RECOMPUTE, O_LLAMA, O_ROTARY, O_NO_BIASES, O_UNTIED, O_DTYPE, O_OPTIMIZER, O_NO_OVERLAP, O_MICROS, O_DATA,
             O_TOKENS, O_STAGES, O_MESH, O_GROUPS, O_SEED, O_FAST, O_SYNC, O_HELP };

struct row {
    const char *name;
    enum option_kind kind;
    size_t offset;
    double min, max;
};

#define AT(member) offsetof(struct train_options, member)

static const struct row rows[] = {
    { "dp", INT, AT(config.layout.dp), 1, 65536 },
    { "tp", INT, AT(config.layout.tp), 1, 65536 },
    { "pp", INT, AT(config.layout.pp), 1, 1024 },
    { "ep", INT, AT(config.layout.ep), 1, 65536 },
    { "zero", INT, AT(config.layout.zero), 0, 3 },
    { "shard", INT, AT(config.layout.shard), 1, 65536 },
    { "sp", FLAG, AT(config.layout.sequence_parallel), 0, 0 },
    { "chunks", INT, AT(config.layout.chunks), 1, 1024 },
    { "layers", INT, AT(config.shape.layers), 1, 100000 },
    { "hidden", WIDE, AT(config.shape.hidden), 1, 1 << 24 },
    { "heads", INT, AT(config.shape.heads), 1, 1 << 20 },
    { "kv-heads", INT, AT(config.shape.kv_heads), 1, 1 << 20 },
    { "ffn", WIDE, AT(config.shape.ffn), 1, 1 << 26 },
    { "experts", INT, AT(config.shape.experts), 0, 1 << 20 },
    { "top-k", INT, AT(config.shape.top_k), 1, 1 << 20 },
    { "capacity", REAL, AT(config.capacity_factor), 0, 1e6 },
    { "balance", REAL, AT(config.balance_weight), 0, 1e6 },
    { "z-loss", REAL, AT(config.z_weight), 0, 1e6 },
    { "rms-norm", FLAG, AT(config.norm), 0, 0 },
    { "gated", FLAG, AT(config.shape.gated), 0, 0 },
    { "dropout", REAL, AT(config.dropout), 0, 0.999 },
    { "attention-dropout", REAL, AT(config.attention_dropout), 0, 0.999 },
    { "batch", WIDE, AT(config.layout.global_batch), 1, 1 << 30 },
    { "seq", WIDE, AT(config.layout.seq), 1, 1 << 24 },
    { "steps", LONG, AT(steps), 1, 1e12 },
    { "lr", REAL, AT(config.lr), 0, 1e6 },
    { "lr-min", REAL, AT(config.lr_min), 0, 1e6 },
    { "warmup", WIDE, AT(config.warmup_steps), 0, 1e12 },
    { "decay", WIDE, AT(config.decay_steps), 0, 1e12 },
    { "held-out", REAL, AT(config.held_out), 0, 0.999 },
    { "beta1", REAL, AT(config.beta1), 0, 0.999999 },
    { "beta2", REAL, AT(config.beta2), 0, 0.999999 },
    { "eps", REAL, AT(config.eps), 0, 1 },
    { "threads", INT, AT(config.threads), 1, 4096 },
    { "momentum", REAL, AT(config.momentum), 0, 1 },
    { "weight-decay", REAL, AT(config.weight_decay), 0, 1e6 },
    { "clip", REAL, AT(config.clip), 0, 1e12 },
    { "loss-scale", REAL, AT(config.loss_scale), 0, 1e12 },
    { "bucket", BYTES, AT(config.bucket_bytes), 1, 1e12 },
    { "prefetch", INT, AT(config.prefetch), 0, 16 },
    { "keep-gathered", FLAG, AT(config.keep_gathered), 0, 0 },
    { "reduce-every", FLAG, AT(config.reduce_every), 0, 0 },
    { "check", FLAG, AT(config.check), 0, 0 },
    { "every", LONG, AT(every), 1, 1e12 },
    { "eval-every", LONG, AT(eval_every), 0, 1e12 },
    { "eval-batches", LONG, AT(eval_batches), 0, 1e6 },
    { "save-every", LONG, AT(save_every), 0, 1e12 },
    { "save", TEXT, AT(save), 0, 0 },
    { "resume", TEXT, AT(resume), 0, 0 },
    { "weights", TEXT, AT(weights), 0, 0 },
    { "json", TEXT, AT(json), 0, 0 },
    { "svg", TEXT, AT(svg), 0, 0 },
    { "trace", TEXT, AT(trace), 0, 0 },
    { "schedule", OTHER, O_SCHEDULE, 1, 0 },
    { "recompute", OTHER, O_RECOMPUTE, 1, 0 },
    { "dtype", OTHER, O_DTYPE, 1, 0 },
    { "optimizer", OTHER, O_OPTIMIZER, 1, 0 },
    { "micro-batches", OTHER, O_MICROS, 1, 0 },
    { "data", OTHER, O_DATA, 1, 0 },
    { "tokens", OTHER, O_TOKENS, 1, 0 },
    { "stages", OTHER, O_STAGES, 1, 0 },
    { "mesh", OTHER, O_MESH, 1, 0 },
    { "seed", OTHER, O_SEED, 1, 0 },
    { "llama", OTHER, O_LLAMA, 0, 0 },
    { "rotary", OTHER, O_ROTARY, 0, 0 },
    { "no-biases", OTHER, O_NO_BIASES, 0, 0 },
    { "untied", OTHER, O_UNTIED, 0, 0 },
    { "groups", OTHER, O_GROUPS, 0, 0 },
    { "no-overlap", OTHER, O_NO_OVERLAP, 0, 0 },
    { "fast-sums", OTHER, O_FAST, 0, 0 },
    { "save-sync", OTHER, O_SYNC, 0, 0 },
    { "help", OTHER, O_HELP, 0, 0 },
};

#define ROW_COUNT (sizeof rows / sizeof rows[0])

/* Options that only make sense once all are read. */
struct late {
    long micros;
    bool has_shape, has_lr_min, has_decay, is_llama, is_rotary;
};

static bool parse_recompute(const char *text, enum hkt_recompute *out)
{
    static const char *const names[] = { "none", "selective", "full" };

    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum hkt_recompute)i;
            return true;
        }
    return false;
}

/* "2,1,1" */
static bool parse_stages(const char *text, struct train_options *o)
{
    char *end;

    for (o->nstages = 0; o->nstages < TRAIN_STAGES_MAX; text = end + 1) {
        const long layers = strtol(text, &end, 10);

        if (end == text || layers < 1 || layers > 100000)
            return false;
        o->stages[o->nstages++] = (int)layers;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
    }
    return false;
}

static bool apply_other(enum other other, const char *value, struct train_options *o, struct late *late)
{
    long number = 0;

    switch (other) {
    case O_SCHEDULE: return hkt_pipe_kind_parse(value, &o->config.layout.schedule) == HKT_OK
                            && o->config.layout.schedule != HKT_PIPE_FORWARD;
    case O_RECOMPUTE: return parse_recompute(value, &o->config.recompute);
    case O_DTYPE: return hkt_dtype_parse(value, &o->config.dtype) == HKT_OK;
    case O_OPTIMIZER:
        o->config.optimizer = strcmp(value, "sgd") == 0 ? HKT_TRAIN_SGD : HKT_TRAIN_ADAMW;
        return strcmp(value, "sgd") == 0 || strcmp(value, "adamw") == 0;
    case O_MICROS: return hkt_tool_parse_int(value, 1, 1 << 20, &late->micros);
    case O_DATA: snprintf(o->data, sizeof o->data, "%s", value); return value[0] != '\0';
    case O_TOKENS: snprintf(o->tokens, sizeof o->tokens, "%s", value); return value[0] != '\0';
    case O_STAGES: return parse_stages(value, o);
    case O_MESH: snprintf(o->mesh, sizeof o->mesh, "%s", value); return value[0] != '\0';
    case O_SEED:
        if (!hkt_tool_parse_int(value, 0, 1L << 62, &number))
            return false;
        o->config.seed = (uint64_t)number;
        return true;
    case O_LLAMA: late->is_llama = true; return true;
    case O_ROTARY: late->is_rotary = true; return true;
    case O_NO_BIASES: o->config.shape.biases = 0; return true;
    case O_UNTIED: o->config.shape.tied = 0; return true;
    case O_GROUPS: o->shows_groups = true; return true;
    case O_NO_OVERLAP: o->config.overlap = 0; return true;
    case O_FAST: o->is_fast = true; return true;
    default: o->saves_sync = true; return true;
    }
}

static bool says_shape(const struct row *row)
{
    if (row->kind == OTHER)
        return row->offset >= O_LLAMA && row->offset <= O_UNTIED;
    return row->offset == AT(config.norm) || row->offset - AT(config.shape) < sizeof(struct hkt_shape); /* one before wraps round */
}

/** One option with its value; false: the value does not fit. */
static bool apply(const struct row *row, const char *value, struct train_options *o, struct late *late)
{
    char *at = (char *)o + row->offset, *end;
    long number = 1;
    size_t bytes;
    double real;

    late->has_shape = late->has_shape || says_shape(row);
    late->has_lr_min = late->has_lr_min || strcmp(row->name, "lr-min") == 0;
    late->has_decay = late->has_decay || strcmp(row->name, "decay") == 0;
    switch (row->kind) {
    case FLAG: *(int *)(void *)at = 1; return true;
    case TEXT: *(const char **)(void *)at = value; return value[0] != '\0';
    case OTHER: return apply_other((enum other)row->offset, value, o, late);
    case REAL:
        real = strtod(value, &end);
        *(double *)(void *)at = real;
        return end != value && *end == '\0' && real >= row->min && real <= row->max;
    case BYTES:
        if (!hkt_tool_parse_bytes(value, &bytes) || bytes == 0)
            return false;
        *(int64_t *)(void *)at = (int64_t)bytes;
        return true;
    default: break;
    }
    if (!hkt_tool_parse_int(value, (long)row->min, (long)row->max, &number))
        return false;
    if (row->kind == INT)
        *(int *)(void *)at = (int)number;
    else if (row->kind == WIDE)
        *(int64_t *)(void *)at = number;
    else
        *(long *)(void *)at = number;
    return true;
}

/* What an option takes, for whoever gave it something else. */
static void say_range(const struct row *row, char *text, size_t bytes)
{
    static const char *const words[] = {
        [O_SCHEDULE] = "gpipe, 1f1b, interleaved or zb-h1", [O_RECOMPUTE] = "none, selective or full",
        [O_DTYPE] = "float, double or bfloat16", [O_OPTIMIZER] = "adamw or sgd", [O_MICROS] = "a number from 1 to 1048576",
        [O_STAGES] = "numbers of layers, from 1, with commas between them", [O_SEED] = "a number from 0",
    };
    const size_t other = row->kind == OTHER ? row->offset : sizeof words;

    if (other < sizeof words / sizeof words[0] && words[other] != NULL)
        snprintf(text, bytes, "%s", words[other]);
    else if (row->kind == OTHER || row->kind == TEXT)
        snprintf(text, bytes, "a name");
    else if (row->kind == BYTES)
        snprintf(text, bytes, "bytes, as 65536, 64K or 4M");
    else
        snprintf(text, bytes, "a number from %.15g to %.15g", row->min, row->max);
}

/* Options that do nothing beside others: whoever gives them wants something else. NULL: there are none. */
static const char *without_effect(const struct hkt_train_config *c)
{
    const struct {
        bool is_idle;
        const char *text;
    } idle[] = {
        { c->layout.shard > 0 && c->layout.zero == 0, "--shard without --zero 1, 2 or 3: nothing is shared out" },
        { c->keep_gathered && c->layout.zero < 3, "--keep-gathered without --zero 3: parameters are always there" },
        { c->shape.experts == 0 && (c->capacity_factor > 0 || c->shape.top_k > 1), "--capacity and --top-k are of experts; --experts N" },
        { c->optimizer == HKT_TRAIN_ADAMW && c->momentum > 0, "--momentum is of --optimizer sgd; adamw has --beta1" },
    };

    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++)
        if (idle[i].is_idle)
            return idle[i].text;
    return NULL;
}

/* -1: go on. Sequences of a micro-batch from their number; what Llama has other than GPT-2. */
static int finish(struct train_options *o, const struct late *late, bool speaks)
{
    struct hkt_layout *l = &o->config.layout;
    const int64_t parts = (int64_t)l->dp * (late->micros > 0 ? late->micros : 1);

    if (l->global_batch % l->dp != 0 || (late->micros > 0 && l->global_batch % parts != 0)) {
        if (speaks)
            hkt_tool_usage("train", "--batch %lld does not divide by --dp %d%s; %lld sequences would", (long long)l->global_batch,
                           l->dp, late->micros > 0 ? " times --micro-batches" : "",
                           (long long)((l->global_batch + parts - 1) / parts * parts));
        return TOOL_USAGE;
    }
    l->micro_batch = late->micros > 0 ? l->global_batch / parts : 1;
    if (l->schedule == HKT_PIPE_INTERLEAVED && l->chunks == 0)
        l->chunks = 2;
    const int stages = l->pp * (l->chunks > 0 ? l->chunks : 1);

    if (o->nstages > 0 && o->nstages != stages) {
        if (speaks)
            hkt_tool_usage("train", "--stages names %d, but there are %d", o->nstages, stages);
        return TOOL_USAGE;
    }
    const char *idle = without_effect(&o->config);

    if (idle != NULL) {
        if (speaks)
            hkt_tool_usage("train", "%s", idle);
        return TOOL_USAGE;
    }
    o->config.stage_layers = o->nstages > 0 ? o->stages : NULL;
    o->config.shape.positions = late->is_llama || late->is_rotary ? 0 : l->seq;
    if (late->is_llama) {
        o->config.shape.gated = 1;
        o->config.shape.biases = o->config.shape.tied = 0;
        o->config.norm = HKT_TRAIN_RMS_NORM;
    }
    if (o->weights != NULL && !late->has_shape && hkt_train_shape(o->weights, &o->config) < 0) {
        if (speaks)
            hkt_tool_say("train", "--weights: %s", hkt_parallel_last_error());
        return TOOL_FAILED;
    }
    if (!late->has_lr_min)
        o->config.lr_min = o->config.lr / 10;
    if (!late->has_decay)
        o->config.decay_steps = o->steps;
    o->config.data = o->data[0] != '\0' ? o->data : NULL;
    o->config.tokens = o->tokens[0] != '\0' ? o->tokens : NULL;
    o->config.mesh = o->mesh[0] != '\0' ? o->mesh : NULL;
    return -1;
}

int train_options_read(int argc, char **argv, bool speaks, struct train_options *out_options)
{
    struct option names[ROW_COUNT + 1] = { { NULL, 0, NULL, 0 } };
    struct train_options *o = out_options;
    struct late late = { .micros = 0 };

    *o = (struct train_options){ .config = hkt_train_defaults(), .steps = 100, .every = 10, .eval_batches = 4 };
    for (size_t i = 0; i < ROW_COUNT; i++)
        names[i] = (struct option){ rows[i].name,
                                    rows[i].kind == FLAG || (rows[i].kind == OTHER && rows[i].min == 0) ? no_argument
                                                                                                       : required_argument,
                                    NULL, 256 + (int)i };
    opterr = 0;
    for (int flag; (flag = getopt_long(argc, argv, ":h", names, NULL)) != -1;) {
        if (flag == 'h' || (flag >= 256 && rows[flag - 256].kind == OTHER && rows[flag - 256].offset == O_HELP)) {
            if (speaks)
                printf("%s%s", help_text, help_rest);
            return TOOL_OK;
        }
        if (flag == ':' || flag == '?' || !apply(&rows[flag - 256], optarg, o, &late)) {
            if (speaks && flag == ':')
                hkt_tool_usage("train", "%s needs a value", argv[optind - 1]);
            else if (speaks && flag == '?')
                hkt_tool_usage("train", "there is no option %s", argv[optind - 1]);
            else if (speaks) {
                char range[80];

                say_range(&rows[flag - 256], range, sizeof range);
                hkt_tool_usage("train", "--%s does not take \"%s\"; it takes %s", rows[flag - 256].name, optarg, range);
            }
            return TOOL_USAGE;
        }
    }
    if (optind < argc) {
        if (speaks)
            hkt_tool_usage("train", "\"%s\" is one argument too many", argv[optind]);
        return TOOL_USAGE;
    }
    return finish(o, &late, speaks);
}
