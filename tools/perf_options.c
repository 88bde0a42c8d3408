/* The flags of `hocket perf`: nccl-tests' where they exist, so that scripts carry over. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"
#include "tools.h"

enum { OPT_JSON = 256, OPT_ALGO, OPT_TRANSPORT, OPT_REPLAY, OPT_PER_TENSOR, OPT_DEVICE };

static const struct option long_options[] = {
    {"minbytes", required_argument, NULL, 'b'},     {"maxbytes", required_argument, NULL, 'e'},
    {"stepbytes", required_argument, NULL, 'i'},    {"stepfactor", required_argument, NULL, 'f'},
    {"iters", required_argument, NULL, 'n'},        {"warmup_iters", required_argument, NULL, 'w'},
    {"datatype", required_argument, NULL, 'd'},     {"op", required_argument, NULL, 'o'},
    {"root", required_argument, NULL, 'r'},         {"check", required_argument, NULL, 'c'},
    {"blocking", required_argument, NULL, 'z'},     {"average", required_argument, NULL, 'a'},
    {"nthreads", required_argument, NULL, 't'},     {"local_register", required_argument, NULL, 'R'},
    {"ngpus", required_argument, NULL, 'g'},
    {"json", required_argument, NULL, OPT_JSON},
    {"algo", required_argument, NULL, OPT_ALGO},    {"transport", required_argument, NULL, OPT_TRANSPORT},
    {"device", no_argument, NULL, OPT_DEVICE},
    {"replay", required_argument, NULL, OPT_REPLAY}, {"per-tensor", no_argument, NULL, OPT_PER_TENSOR},
    {"help", no_argument, NULL, 'h'},               {NULL, 0, NULL, 0},
};

static const char *perf_collectives(void)
{
    static char text[256];
    size_t used = 0;

    for (int c = 0; c < HKT_COLL_COUNT && used < sizeof text; c++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", c > 0 ? ", " : "", hkt_coll_name((enum hkt_coll)c));
    return text;
}

static void print_help(void)
{
    printf("usage: hocket perf COLLECTIVE [OPTIONS]\n"
           "Times a collective and checks its result. Start it with `hocket run -n N`, mpirun, torchrun or srun;\n"
           "alone it is one rank. Collectives:");
    printf(" %s", perf_collectives());
    printf("\n\n"
           "  -b, --minbytes BYTES      smallest size (32M); K, M, G are binary\n"
           "  -e, --maxbytes BYTES      largest size (as -b, when not given)\n"
           "  -f, --stepfactor N        multiply the size by N\n"
           "  -i, --stepbytes BYTES     or add BYTES (1M)\n"
           "  -n, --iters N             timed calls of each case (20)\n"
           "  -w, --warmup_iters N      untimed calls before (5)\n"
           "  -c, --check N             check the result of this many calls (1); 0: do not check\n"
           "  -d, --datatype TYPE       float (default), double, half, bfloat16, int8 ... bool, or all\n"
           "  -o, --op OP               sum (default), prod, min, max, avg, band ... lxor, or all\n"
           "  -r, --root RANK           root of rooted collectives (0); all: every rank in turn\n"
           "  -z, --blocking N          0: calls back to back (default), 1: a barrier before each call\n"
           "  -a, --average N           time is 0: rank 0's, 1: the mean (default), 2: the least, 3: the largest\n"
           "  -t, --nthreads N          ranks per process, each a thread (1)\n"
           "  -R, --local_register N    buffers are 0: malloc'ed (default), 2: of hkt_mem_alloc, which peers address;\n"
           "                            with --device of hkt_mem_alloc_device\n"
           "      --device              buffers are in memory of CUDA devices, to which ranks are dealt in turn; calls are\n"
           "                            enqueued on a stream each: without -z 1, p50 and p99 are the mean\n"
           "  -g, --ngpus N             the same with N ranks for each of -t; each is a thread of its own\n"
           "      --algo NAME           force an algorithm (`hocket explain --list`)\n"
           "      --transport LIST      allow just these transports, e.g. tcp; ^shm: all but shm\n"
           "      --replay MODEL        all-reduce the gradients of a model (%s) in buckets of 25 MB\n"
           "                            (the first of 1 MB), as DistributedDataParallel does; buckets and tensors larger\n"
           "                            than 256 MB (or --maxbytes) in parts\n"
           "      --per-tensor          with --replay: one call per tensor\n"
           "      --json FILE           write results as JSON too\n\n"
           "Columns as in nccl-tests: time is microseconds per call, algbw = size / time, busbw = algbw * factor\n"
           "(all_reduce 2(p-1)/p; reduce_scatter, all_gather, all_to_all, gather, scatter (p-1)/p; others 1), GB = 1e9.\n"
           "p50 and p99 are over calls, each as long as its slowest rank. wire is what the busiest rank moved per call\n"
           "(sent or received, the larger; or read and written directly), x min its ratio to the least possible.\n"
           "Exit code 1 when a result is wrong or the run was stopped, 2 for wrong usage.\n",
           perf_model_names());
}

/** A value that its flag does not take; the library has said which names it knows. */
static int refuse(int flag, const char *value)
{
    const char *name = "";

    for (const struct option *option = long_options; option->name != NULL; option++)
        if (option->val == flag)
            name = option->name;
    if (flag == 'd' || flag == 'o')
        return hkt_tool_usage("perf", "-%c, --%s: %s, or all", flag, name, hkt_last_error());
    return hkt_tool_usage("perf", "-%c, --%s does not take \"%s\"", flag, name, value);
}

static bool is_only(const bool *set, int count, int only)
{
    for (int i = 0; i < count; i++)
        if (set[i] != (i == only))
            return false;
    return true;
}

/** The collective, and what only several options together tell. */
static int finish(int argc, char **argv, struct perf_options *o)
{
    if (optind == argc && o->replay == NULL)
        return hkt_tool_usage("perf", "say which collective: %s", perf_collectives());
    if (optind < argc && hkt_coll_parse(argv[optind], &o->coll) < 0)
        return hkt_tool_usage("perf", "%s", hkt_last_error());
    if (optind + 1 < argc)
        return hkt_tool_usage("perf", "\"%s\" is one argument too many", argv[optind + 1]);
    if (o->bytes_max < o->bytes_min)
        return hkt_tool_usage("perf", "--maxbytes (%zu) is less than --minbytes (%zu; default 32M)", o->bytes_max,
                              o->bytes_min);
    o->on_device |= o->gpus > 0;
    o->threads *= o->gpus > 0 ? o->gpus : 1;
    if (o->replay == NULL && o->per_tensor)
        return hkt_tool_usage("perf", "--per-tensor goes with --replay");
    if (o->replay != NULL && (o->coll != HKT_ALL_REDUCE || !is_only(o->dtypes, HKT_DTYPE_COUNT, HKT_F32) ||
                              !is_only(o->ops, HKT_OP_COUNT, HKT_SUM)))
        return hkt_tool_usage("perf", "--replay is all_reduce of float by sum, as gradients are");
    return TOOL_OK;
}

static bool parse_int(const char *text, int min, int max, int *out_value)
{
    char *end;
    const long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || value < min || value > max)
        return false;
    *out_value = (int)value;
    return true;
}

static bool parse_dtypes(const char *text, struct perf_options *options)
{
    enum hkt_dtype dtype = HKT_F32;
    const bool all = strcmp(text, "all") == 0;

    if (!all && hkt_dtype_parse(text, &dtype) < 0)
        return false;
    for (int d = 0; d < HKT_DTYPE_COUNT; d++)
        options->dtypes[d] = all || d == (int)dtype;
    return true;
}

static bool parse_ops(const char *text, struct perf_options *options)
{
    enum hkt_op op = HKT_SUM;
    const bool all = strcmp(text, "all") == 0;

    if (!all && hkt_op_parse(text, &op) < 0)
        return false;
    for (int o = 0; o < HKT_OP_COUNT; o++)
        options->ops[o] = all || o == (int)op;
    return true;
}

static bool parse_root(const char *text, struct perf_options *options)
{
    if (strcmp(text, "all") == 0) {
        options->root = -1;
        return true;
    }
    return parse_int(text, -1, HKT_RANKS_MAX, &options->root);
}

/** One flag with its value; false: the value does not fit. */
static bool apply(int flag, const char *value, struct perf_options *o)
{
    int average = 0;

    switch (flag) {
    case 'b': return hkt_tool_parse_bytes(value, &o->bytes_min);
    case 'e': return hkt_tool_parse_bytes(value, &o->bytes_max);
    case 'i': return hkt_tool_parse_bytes(value, &o->step_bytes) && o->step_bytes > 0;
    case 'f': return parse_int(value, 2, 1 << 20, &o->step_factor);
    case 'n': return parse_int(value, 1, 1 << 24, &o->iters);
    case 'w': return parse_int(value, 0, 1 << 24, &o->warmup_iters);
    case 'c': return parse_int(value, 0, 1 << 24, &o->check_iters);
    case 'z': return parse_int(value, 0, 1, &o->blocking);
    case 't': return parse_int(value, 1, 256, &o->threads);
    case 'g': return parse_int(value, 1, 256, &o->gpus);
    case 'R': return parse_int(value, 0, 2, &o->local_register) && o->local_register != 1;
    case 'd': return parse_dtypes(value, o);
    case 'o': return parse_ops(value, o);
    case 'r': return parse_root(value, o);
    case 'a':
        if (!parse_int(value, 0, 3, &average))
            return false;
        o->average = (enum perf_average)average;
        return true;
    case OPT_JSON: o->json_path = value; return true;
    case OPT_ALGO: o->algo = value; return true;
    case OPT_TRANSPORT: o->transport = value; return true;
    case OPT_REPLAY: o->replay = value; return true;
    case OPT_DEVICE: o->on_device = true; return true;
    default: o->per_tensor = true; return true;
    }
}

int perf_parse(int argc, char **argv, struct perf_options *options, int *out_code)
{
    bool has_max = false;
    int flag;

    *options = (struct perf_options){.bytes_min = 32u << 20, .step_bytes = 1u << 20, .iters = 20, .warmup_iters = 5,
                                     .check_iters = 1, .threads = 1, .gpus = 0, .average = PERF_MEAN};
    options->dtypes[HKT_F32] = options->ops[HKT_SUM] = true;
    *out_code = TOOL_OK;
    optind = opterr = 0;
    while ((flag = getopt_long(argc, argv, ":b:e:i:f:n:w:d:o:r:c:z:a:t:g:R:h", long_options, NULL)) != -1) {
        if (flag == 'h') {
            print_help();
            *out_code = TOOL_OK;
            return 1;
        }
        if (flag == ':')
            *out_code = hkt_tool_usage("perf", "%s needs a value", argv[optind - 1]);
        else if (flag == '?')
            *out_code = hkt_tool_usage("perf", "there is no option %s", argv[optind - 1]);
        else if (!apply(flag, optarg, options))
            *out_code = refuse(flag, optarg);
        else
            has_max |= flag == 'e';
        if (*out_code != TOOL_OK)
            return 1;
    }
    if (!has_max)
        options->bytes_max = options->bytes_min;
    *out_code = finish(argc, argv, options);
    return *out_code != TOOL_OK;
}
