/* `hocket generate`: lets a trained model go on with a text. Rank 0 speaks. */
#include <getopt.h>
#include <hocket/hocket.h>
#include <hocket/parallel.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"

#define BYTES 256

static const char help_text[] =
    "usage: hocket generate --from DIR [OPTIONS]\n\n"
    "Goes on with a text, token by token (bytes, or the pieces of a vocab.json and merges.txt beside the model), by a model that\n"
    "`hocket train --save DIR` has written. Under `hocket run -n N` every layer\n"
    "is shared out over the N ranks (tensor parallelism), whatever layout it was trained in.\n\n"
    "  -f, --from DIR        the checkpoint\n"
    "                        a folder with model.safetensors and config.json, as Hugging Face's transformers saves a GPT-2, will do too\n"
    "  -p, --prompt TEXT     what to go on with (\"The \")\n"
    "  -i, --ids LIST        the same as numbers of tokens, e.g. 464,3290: the answer is numbers\n"
    "                        too, without the prompt\n"
    "  -n, --tokens N        tokens to write (200, or as many as the model has positions for)\n"
    "  -t, --temperature X   0: always the likeliest token (0.8)\n"
    "  -k, --top-k N         choose among the N likeliest (0: all)\n"
    "  -s, --seed N          of the choices (1)\n"
    "  -d, --dtype TYPE      to compute in: float (default), double, bfloat16\n"
    "  -h, --help            this text\n\n"
    "Exit codes: 0 success, 1 failure, 2 wrong usage.\n";

struct options {
    struct hkt_generate_config config;
    const char *prompt;
    bool is_ids; /* the prompt is a list of numbers, and so is the answer */
    long tokens;
};

static bool parse_real(const char *text, double *out_value)
{
    char *end;

    *out_value = strtod(text, &end);
    return end != text && *end == '\0' && *out_value >= 0 && *out_value <= 1e6;
}

/* The number at *text, which then stands behind it and a comma; -1: there is none. */
static int32_t take_id(const char **text)
{
    char *end;
    const long id = strtol(*text, &end, 10);

    if (**text < '0' || **text > '9' || id > INT32_MAX || (*end != ',' && *end != '\0'))
        return -1;
    *text = *end == ',' && end[1] != '\0' ? end + 1 : end;
    return *end == ',' && end[1] == '\0' ? -1 : (int32_t)id;
}

/* 0: it is no list. */
static long count_ids(const char *text)
{
    long count = 0;

    for (; *text != '\0'; count++)
        if (take_id(&text) < 0)
            return 0;
    return count;
}

static bool apply(int flag, const char *value, struct options *o)
{
    long number = 0;

    switch (flag) {
    case 'f': o->config.dir = value; return value[0] != '\0';
    case 'p': o->prompt = value; o->is_ids = false; return value[0] != '\0';
    case 'i': o->prompt = value; o->is_ids = true; return count_ids(value) > 0;
    case 'n': return hkt_tool_parse_int(value, 1, 1L << 40, &o->tokens);
    case 't': return parse_real(value, &o->config.temperature);
    case 'd': return hkt_dtype_parse(value, &o->config.dtype) == HKT_OK;
    default: break;
    }
    if (!hkt_tool_parse_int(value, 0, flag == 'k' ? 1 << 30 : 1L << 62, &number))
        return false;
    if (flag == 'k')
        o->config.top_k = (int)number;
    else
        o->config.seed = (uint64_t)number;
    return true;
}

/* The option's name, and what it takes, for whoever gave it something else. */
static int refuse(const struct option *names, int flag, const char *value)
{
    static const struct {
        int flag;
        const char *takes;
    } rows[] = { { 'f', "a folder" }, { 'p', "a text that is not empty" }, { 'i', "numbers of tokens with commas between them" },
                 { 'n', "a number from 1" }, { 't', "a number from 0 to 1000000" }, { 'k', "a number from 0" },
                 { 's', "a number from 0" }, { 'd', "float, double or bfloat16" } };
    size_t at = 0;

    while (names->val != flag)
        names++;
    while (rows[at].flag != flag)
        at++;
    return hkt_tool_usage("generate", "--%s does not take \"%s\"; it takes %s", names->name, value, rows[at].takes);
}

/* -1: go on; else the exit code. Every rank finds the same; one tells. */
static int read_options(int argc, char **argv, struct options *o)
{
    const bool speaks = hkt_tool_is_first();
    static const struct option names[] = {
        { "from", required_argument, NULL, 'f' }, { "prompt", required_argument, NULL, 'p' },
        { "ids", required_argument, NULL, 'i' },
        { "tokens", required_argument, NULL, 'n' }, { "temperature", required_argument, NULL, 't' },
        { "top-k", required_argument, NULL, 'k' }, { "seed", required_argument, NULL, 's' },
        { "dtype", required_argument, NULL, 'd' }, { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 },
    };

    *o = (struct options){ .config = { .dtype = HKT_F32, .temperature = 0.8, .seed = 1 }, .prompt = "The ", .tokens = 0 };
    opterr = 0;
    for (int flag; (flag = getopt_long(argc, argv, ":f:p:i:n:t:k:s:d:h", names, NULL)) != -1;) {
        const bool is_known = flag != 'h' && flag != ':' && flag != '?';

        if (is_known && apply(flag, optarg, o))
            continue;
        if (flag == 'h' && speaks)
            fputs(help_text, stdout);
        else if (flag == ':' && speaks)
            hkt_tool_usage("generate", "%s needs a value", argv[optind - 1]);
        else if (flag == '?' && speaks)
            hkt_tool_usage("generate", "there is no option %s", argv[optind - 1]);
        else if (is_known && speaks)
            refuse(names, flag, optarg);
        return flag == 'h' ? TOOL_OK : TOOL_USAGE;
    }
    if (optind >= argc && o->config.dir != NULL)
        return -1;
    if (speaks && optind < argc)
        hkt_tool_usage("generate", "\"%s\" is one argument too many", argv[optind]);
    else if (speaks)
        hkt_tool_usage("generate", "--from DIR says which checkpoint");
    return TOOL_USAGE;
}

static int failed(bool speaks)
{
    if (speaks)
        hkt_tool_say("generate", "%s", hkt_parallel_last_error());
    return TOOL_FAILED;
}

/* Whether prompt and answer fit in the positions of the model. */
static bool has_room(const struct hkt_generator *generator, const struct options *o, size_t count, bool speaks)
{
    const long long positions = hkt_generator_positions(generator), left = positions - (long long)count;

    if (left > 0 && o->tokens <= left)
        return true;
    if (speaks && left <= 0)
        hkt_tool_say("generate", "the prompt has %zu tokens, the model %lld positions, so nothing can be written; a shorter prompt would do",
                     count, positions);
    else if (speaks)
        hkt_tool_say("generate", "%ld tokens do not fit: after the prompt of %zu and %lld more all %lld positions are used", o->tokens, count,
                     left, positions);
    return false;
}

/* The prompt is read, as bytes, pieces or numbers. */
static int read_prompt(struct hkt_generator *generator, const struct options *o, size_t *out_count, bool speaks)
{
    const struct hkt_tokenizer *tokenizer = hkt_generator_tokenizer(generator);
    const size_t bytes = strlen(o->prompt); /* there are no more tokens than that */
    int32_t *tokens = malloc(bytes * sizeof *tokens);
    enum hkt_status rc = tokens == NULL ? HKT_ERR_NOMEM : HKT_OK;

    *out_count = 0;
    if (rc == HKT_OK && tokenizer != NULL && !o->is_ids)
        rc = hkt_tokenizer_encode(tokenizer, o->prompt, bytes, tokens, out_count);
    else if (rc == HKT_OK)
        for (const char *p = o->prompt; *p != '\0';)
            tokens[(*out_count)++] = o->is_ids ? take_id(&p) : (unsigned char)*p++;
    const bool fits = rc == HKT_OK && has_room(generator, o, *out_count, speaks);

    if (fits)
        rc = hkt_generator_prompt(generator, tokens, (int64_t)*out_count);
    free(tokens);
    return rc < 0 ? failed(speaks) : fits ? TOOL_OK : TOOL_FAILED;
}

static void write_token(const struct hkt_generator *generator, int32_t token)
{
    const struct hkt_tokenizer *tokenizer = hkt_generator_tokenizer(generator);
    size_t bytes = 0;
    const char *piece = tokenizer != NULL ? hkt_tokenizer_piece(tokenizer, token, &bytes) : NULL;

    if (piece != NULL)
        fwrite(piece, 1, bytes, stdout);
    else
        putchar(tokenizer == NULL && token < 256 ? token : '?');
}

static int write_text(struct hkt_generator *generator, const struct options *o, bool speaks)
{
    size_t read = 0;

    if (!o->is_ids && hkt_generator_tokenizer(generator) == NULL && hkt_generator_vocab(generator) > BYTES) {
        if (speaks)
            hkt_tool_say("generate", "the model has %lld tokens, which are not bytes, and no vocab.json beside it; give the prompt "
                         "as numbers, with --ids", (long long)hkt_generator_vocab(generator));
        return TOOL_FAILED;
    }
    const int code = read_prompt(generator, o, &read, speaks);

    if (code != TOOL_OK)
        return code;
    const long room = (long)hkt_generator_positions(generator) - (long)read;
    const long wanted = o->tokens > 0 ? o->tokens : 200, count = o->tokens == 0 && wanted > room ? room : wanted;

    if (speaks && !o->is_ids)
        fputs(o->prompt, stdout);
    for (long i = 0; i < count; i++) {
        int32_t token;

        if (hkt_generator_next(generator, &token) < 0)
            return failed(speaks);
        if (speaks && o->is_ids)
            printf("%s%d", i > 0 ? " " : "", token);
        else if (speaks)
            write_token(generator, token);
    }
    if (speaks)
        putchar('\n');
    return TOOL_OK;
}

int hkt_tool_generate(int argc, char **argv)
{
    struct options options;
    struct hkt_comm *comm = NULL;
    struct hkt_generator *generator = NULL;
    int code = read_options(argc, argv, &options);

    if (code >= 0)
        return code;
    if (hkt_comm_init_env(&comm, NULL) < 0) {
        hkt_tool_say("generate", "%s", hkt_last_error());
        return TOOL_FAILED;
    }
    const bool speaks = hkt_comm_rank(comm) == 0;

    code = hkt_generator_create(&options.config, comm, &generator) < 0 ? failed(speaks)
                                                                       : write_text(generator, &options, speaks);
    const enum hkt_status ended = hkt_generator_destroy(generator);

    return (hkt_comm_destroy(comm) < 0 || ended < 0) && code == TOOL_OK ? TOOL_FAILED : code;
}
