/* `hocket tune`: measures what things cost on this machine and writes a table that hocket then chooses by. First it times all
 * candidates of each collective at a few sizes and fits the prices of the cost model to that; then it times, at more sizes,
 * those that the model with these prices cannot tell apart (tune_contest.c), and notes the winners. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools.h"
#include "tune.h"

#define FIT_FACTOR 32      /* between sizes the prices are fitted at */

static const char help_text[] =
    "usage: hocket tune [OPTIONS]\n\n"
    "Measures what algorithms cost on this machine and writes a table that hocket then chooses them by (HOCKET_TUNE). Start it\n"
    "with `hocket run -n N`, mpirun or srun as your jobs are started; alone it starts ranks on this machine, bound to cores if\n"
    "there is no core for which there is no rank. A table holds for this machine, this many ranks per host and these transports;\n"
    "tables for others in the same file stay. Let nothing else run meanwhile.\n\n"
    "  -n, --ranks P          ranks to start when run alone; default: one per CPU, at least 2\n"
    "  -o, --output FILE      the table; default: where hocket looks for it (HOCKET_TUNE, else ~/.cache/hocket/tune.json)\n"
    "  -t, --transport LIST   allow just these transports, e.g. tcp\n"
    "  -c, --collectives LIST all_reduce,broadcast,...; default: all but the -v ones, whose sizes no table could hold\n"
    "  -b, --minbytes SIZE    smallest vector; default 8\n"
    "  -e, --maxbytes SIZE    largest vector; default 32M\n"
    "  -f, --stepfactor N     between sizes; default 2\n"
    "  -r, --rounds N         timed rounds of each case, 3 to 1000; default 7, and that in each of 4 starts; 15 with --check\n"
    "  -C, --check            write nothing: measure all candidates, and say how good choices and predictions are\n"
    "  -j, --json FILE        with --check: everything that was measured\n"
    "  -h, --help             this text\n";

static bool parse_colls(const char *list, bool colls[HKT_COLL_COUNT])
{
    char name[64];
    bool any = false;

    memset(colls, 0, sizeof(bool) * HKT_COLL_COUNT);
    while (*list != '\0') {
        const size_t bytes = strcspn(list, ",");
        enum hkt_coll coll;

        snprintf(name, sizeof name, "%.*s", (int)bytes, list);
        if (hkt_coll_parse(name, &coll) < 0 || !tune_measures(coll))
            return false;
        any = true;
        colls[coll] = true;
        list += bytes + (list[bytes] == ',');
    }
    return any;
}

static bool take_number(const char *text, long min, long max, int *out_value)
{
    long value;

    if (!hkt_tool_parse_int(text, min, max, &value))
        return false;
    *out_value = (int)value;
    return true;
}

/** One option with its value; false: the value does not fit. */
static bool apply(int flag, const char *value, struct tune_options *o)
{
    switch (flag) {
    case 'n': return take_number(value, 2, 4096, &o->nranks);
    case 'r': return take_number(value, 3, TUNE_ROUNDS_MAX, &o->rounds);
    case 'f': return take_number(value, 2, 1 << 20, &o->factor);
    case 'b': return hkt_tool_parse_bytes(value, &o->bytes_min) && o->bytes_min > 0;
    case 'e': return hkt_tool_parse_bytes(value, &o->bytes_max) && o->bytes_max <= (size_t)1 << 34;
    case 'c': return parse_colls(value, o->colls);
    case 'o': o->output = value; return value[0] != '\0';
    case 't': o->transport = value; return true;
    case 'j': o->json_path = value; return true;
    default: o->is_check = true; return true;
    }
}

/** -1: go on; else the exit code. */
static int read_options(int argc, char **argv, struct tune_options *options)
{
    static const struct option names[] = {
        {"ranks", required_argument, NULL, 'n'},       {"output", required_argument, NULL, 'o'},
        {"transport", required_argument, NULL, 't'},   {"collectives", required_argument, NULL, 'c'},
        {"minbytes", required_argument, NULL, 'b'},    {"maxbytes", required_argument, NULL, 'e'},
        {"stepfactor", required_argument, NULL, 'f'},  {"rounds", required_argument, NULL, 'r'},
        {"check", no_argument, NULL, 'C'},             {"json", required_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},              {NULL, 0, NULL, 0},
    };

    *options = (struct tune_options){.bytes_min = 8, .bytes_max = 32u << 20, .factor = 2};
    memset(options->colls, 1, sizeof options->colls);
    opterr = 0;
    for (int flag; (flag = getopt_long(argc, argv, ":n:o:t:c:b:e:f:r:Cj:h", names, NULL)) != -1;) {
        if (flag == 'h') {
            fputs(help_text, stdout);
            return TOOL_OK;
        }
        if (flag == ':')
            return hkt_tool_usage("tune", "%s needs a value", argv[optind - 1]);
        if (flag == '?')
            return hkt_tool_usage("tune", "there is no option %s", argv[optind - 1]);
        if (!apply(flag, optarg, options))
            return hkt_tool_usage("tune", "-%c does not take \"%s\"", flag, optarg);
    }
    if (optind < argc)
        return hkt_tool_usage("tune", "\"%s\" is one argument too many", argv[optind]);
    if (options->bytes_max < options->bytes_min)
        return hkt_tool_usage("tune", "--maxbytes is less than --minbytes");
    if (options->is_check ? options->output != NULL : options->json_path != NULL)
        return hkt_tool_usage("tune", options->is_check ? "--check writes no table: without --output" : "--json goes with --check");
    if (options->rounds == 0)
        options->rounds = options->is_check ? 15 : 7; /* in each of TUNE_STARTS */
    return -1;
}

/** Whether ranks fill the cores. Then `hocket run` binds them: ranks that move between cores differ in times from run to run. */
static bool fill_cores(long nranks)
{
    struct hkt_topo *topo = NULL;
    int cores = 0;

    if (hkt_topo_detect(&topo) == HKT_OK)
        cores = hkt_tool_count(topo, HKT_TOPO_CORE);
    hkt_topo_destroy(topo);
    return cores > 0 && nranks >= cores;
}

/** Run alone: become `hocket run -n P` of this very command. Returns only on failure. */
static int start_ranks(int argc, char **argv, const struct tune_options *options)
{
    const int cpus = hkt_tool_cpus();
    const long nranks = options->nranks > 0 ? options->nranks : cpus > 2 ? cpus : 2;
    char self[4096], count[24], run[] = "run", flag[] = "-n", bind[] = "--bind", core[] = "core", none[] = "none", tune[] = "tune";
    const ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    char **args = calloc((size_t)argc + 8, sizeof *args);

    if (bytes < 0 || args == NULL) {
        hkt_tool_say("tune", "cannot start ranks (%s): use hocket run -n P hocket tune", strerror(errno));
        free(args);
        return TOOL_FAILED;
    }
    self[bytes] = '\0';
    snprintf(count, sizeof count, "%ld", nranks);
    char *head[] = {self, run, flag, count, bind, fill_cores(nranks) ? core : none, self, tune};

    memcpy(args, head, sizeof head);
    for (int i = 1; i < argc; i++)
        args[7 + i] = argv[i];
    execv(self, args);
    hkt_tool_say("tune", "cannot start %s: %s", self, strerror(errno));
    free(args);
    return TOOL_FAILED;
}

/** Measure all candidates of all series at sizes FIT_FACTOR apart. */
static enum hkt_status take_samples(struct tune_rank *rank, struct tune_samples *samples)
{
    struct tune_series series;
    struct hkt_candidate candidates[TUNE_ALGOS_MAX];
    enum hkt_status rc = HKT_OK;

    for (int i = 0; tune_series_get(rank, i, FIT_FACTOR, &series) && rc == HKT_OK; i++) {
        if (series.kind.in_place)
            continue; /* costs what it does out of place, for all the model knows */
        for (int s = 0; s < series.count && rc == HKT_OK; s++) {
            struct tune_case c = series.kind;
            bool which[TUNE_ALGOS_MAX] = {false};
            double us[TUNE_ALGOS_MAX];

            c.bytes = series.sizes[s];
            const int count = tune_candidates(rank, &c, NULL, candidates);

            for (int k = 0; k < count; k++)
                which[k] = candidates[k].unfit[0] == '\0';
            rc = count < 0 ? HKT_ERR_INVALID : tune_measure(rank, &c, which, us);
            for (int k = 0; k < count && rc == HKT_OK; k++) {
                const struct tune_sample sample = {c, k, candidates[k].algo, us[k]};

                if (which[k] && !tune_samples_add(samples, &sample))
                    rc = HKT_ERR_NOMEM;
            }
        }
    }
    return rc;
}

static enum hkt_status measure_all(struct tune_rank *rank, double prices[HKT_PRICE_COUNT], struct tune_choices *choices,
                                   double *out_error)
{
    struct tune_samples samples = {0};
    enum hkt_status rc = take_samples(rank, &samples);

    if (rc == HKT_OK) {
        *out_error = tune_fit(rank, &samples, prices);
        rc = hkt_broadcast(prices, prices, HKT_PRICE_COUNT, HKT_F64, 0, rank->comm, NULL);
    }
    free(samples.list);
    if (rc == HKT_OK && rank->rank == 0)
        printf("prices fitted to %d measurements: half of them are predicted within %.0f %%\n", samples.count,
               *out_error * 100);
    return rc == HKT_OK ? tune_contest(rank, prices, choices) : rc;
}

/** Whether a file can be written at `path`, whose folders may not be there yet; says why not. */
static bool can_write(const char *path)
{
    char above[1024];
    struct stat file = {0};

    if (path[0] == '\0') {
        hkt_tool_say("tune", "HOCKET_TUNE=off, or no home folder: say with --output where the table goes");
        return false;
    }
    snprintf(above, sizeof above, "%s", path);
    bool is_good = stat(above, &file) != 0 || !S_ISDIR(file.st_mode);

    for (bool is_there = false; is_good && !is_there;) { /* up to the first folder that is there */
        char *slash = strrchr(above, '/');

        if (slash == NULL || slash == above)
            snprintf(above, sizeof above, "%s", slash == NULL ? "." : "/");
        else
            *slash = '\0';
        is_there = stat(above, &file) == 0;
        is_good = is_there || (errno == ENOENT && slash != NULL && slash != above);
    }
    if (is_good && S_ISDIR(file.st_mode) && access(above, W_OK | X_OK) == 0)
        return true;
    if (S_ISDIR(file.st_mode) != is_good) /* a folder where a file should be, or the reverse */
        errno = is_good ? ENOTDIR : EISDIR;
    hkt_tool_say("tune", "the table cannot be written to %s: %s", path, strerror(errno));
    return false;
}

/** Rank 0 looks where the table will go before anything is measured; all ranks go on only if it can be written. */
static bool has_place(const struct tune_rank *rank, const char *path)
{
    int32_t is_good = rank->rank == 0 && can_write(path);

    return hkt_broadcast(&is_good, &is_good, 1, HKT_INT32, 0, rank->comm, NULL) == HKT_OK && is_good;
}

static int tune(struct tune_rank *rank)
{
    const char *path = rank->options->output != NULL ? rank->options->output : hkt_tune_path();
    struct tune_choices *choices = calloc(1, sizeof *choices);
    double prices[HKT_PRICE_COUNT], error = 0;
    enum hkt_status rc = HKT_ERR_NOMEM;

    if (!has_place(rank, path)) {
        free(choices);
        return TOOL_FAILED;
    }
    if (choices != NULL) {
        hkt_comm_prices(rank->comm, prices);
        rc = measure_all(rank, prices, choices, &error);
    }
    if (rc == HKT_OK && rank->rank == 0) {
        rc = hkt_tune_save(rank->comm, path, prices, choices->list, choices->count);
        if (rc == HKT_OK)
            printf("%d cases, %d contested and measured, in up to %d starts with new memory; in %d the fastest of one start was not "
                   "that of all\n%d choices%s; table for %d ranks over %s: %s\n", choices->cases, choices->measured, TUNE_STARTS,
                   choices->unsteady, choices->count, choices->is_full ? ", and no place for more" : "", rank->nranks,
                   hkt_comm_route(rank->comm), path);
    }
    if (rc < 0)
        hkt_tool_say("tune", "rank %d: %s: %s", rank->rank, hkt_status_name(rc), hkt_last_error());
    free(choices);
    return rc == HKT_OK ? TOOL_OK : TOOL_FAILED;
}

int hkt_tool_tune(int argc, char **argv)
{
    struct tune_options options;
    struct tune_rank rank = {.options = &options};
    int code = read_options(argc, argv, &options);

    if (code >= 0)
        return code;
    const enum hkt_status rc = tune_open(&rank);

    if (rc < 0) {
        hkt_tool_say("tune", "%s: %s", hkt_status_name(rc), hkt_last_error());
        return TOOL_FAILED;
    }
    if (rank.nranks == 1) {
        tune_close(&rank);
        return start_ranks(argc, argv, &options);
    }
    code = options.is_check ? tune_check(&rank) : tune(&rank);
    tune_close(&rank);
    return code;
}
