/* `hocket verify`: runs the symbolic verifier (hocket/plan.h) over rows of the registry, for a range of rank counts, in
 * and out of place, for the first and the last root, as the algorithm wrote the schedule and as it is executed. */
#include <cjson/cJSON.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hocket/hocket.h"
#include "tools.h"

static const char help_text[] =
    "usage: hocket verify [COLLECTIVE [ALGORITHM]] [OPTIONS]\n\n"
    "Proves schedules right by running all ranks symbolically: each result chunk holds every contribution exactly once,\n"
    "sends and receives match, no deadlock even without any buffering, no race, scratch in bounds, and every rank\n"
    "associates each chunk in the same order. Without arguments: the whole registry.\n\n"
    "  -n, --ranks P|A-B  number of ranks, or all from A to B; default 1-16\n"
    "  -i, --in-place     in place only; default: in place and out of place\n"
    "  -r, --root R       this root only; default: the first and the last rank\n"
    "  -j, --json         the table as JSON\n"
    "  -h, --help         this text\n\n"
    "exit code: 0 all right, 1 a schedule is wrong (the counterexample is printed), 2 wrong usage\n";

struct scope {
    int coll;         /* -1: all */
    const char *algo; /* NULL: all */
    long first, last; /* ranks */
    bool in_place_only, json;
    long root; /* -1: first and last */
};

/* What was found for one row of the registry. */
struct tally {
    int64_t cases, not_served, wrong, steps, messages, races, chunks;
    int rounds_max;
    bool same_bits, exact;
    char failure[640], restriction[200];
    double seconds;
};

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool is_rooted(enum hkt_coll coll)
{
    return coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER;
}

static void verify_case(const struct hkt_plan_query *query, struct tally *tally)
{
    struct hkt_verify_report report = { 0 };
    const enum hkt_status status = hkt_plan_verify(query, &report);

    tally->cases++;
    if (status != HKT_OK) {
        if (tally->wrong++ == 0)
            snprintf(tally->failure, sizeof tally->failure, "%d ranks, root %d, %s, %s: %.500s", query->nranks,
                     query->root, query->in_place ? "in place" : "out of place",
                     query->lowered ? "as executed" : "as written",
                     report.failure[0] != '\0' ? report.failure : hkt_last_error());
        return;
    }
    tally->steps += report.steps;
    tally->messages += report.messages;
    tally->races += report.races_checked;
    tally->chunks += report.chunks_checked;
    tally->rounds_max = report.rounds > tally->rounds_max ? report.rounds : tally->rounds_max;
    tally->same_bits = tally->same_bits && report.same_bits;
    tally->exact = tally->exact && report.exact;
}

static void verify_ranks(const struct scope *scope, const struct hkt_algo_info *info, int nranks, struct tally *tally)
{
    struct hkt_plan_query query = { .coll = info->coll, .algo = info->name, .nranks = nranks };

    for (query.in_place = scope->in_place_only; query.in_place <= 1; query.in_place++) {
        if (hkt_algo_check(info->coll, info->name, nranks, query.in_place) != HKT_OK) {
            tally->not_served++;
            snprintf(tally->restriction, sizeof tally->restriction, "%.199s", hkt_last_error());
            continue;
        }
        const int roots[] = { scope->root < 0 ? 0 : (int)scope->root, nranks - 1 };
        const int root_count = scope->root < 0 && is_rooted(info->coll) && nranks > 1 ? 2 : 1;

        for (int i = 0; i < root_count; i++) {
            query.root = is_rooted(info->coll) ? roots[i] : 0;
            if (query.root >= nranks)
                continue;
            for (query.lowered = 0; query.lowered <= 1; query.lowered++)
                verify_case(&query, tally);
        }
    }
}

static void print_row(const struct hkt_algo_info *info, const struct tally *tally)
{
    printf("%-16s %-20s %6lld %8lld %10lld %10lld %10lld %7d  %-5s %-11s %7.2f s  %s\n", hkt_coll_name(info->coll),
           info->name, (long long)tally->cases, (long long)tally->not_served, (long long)tally->steps,
           (long long)tally->messages, (long long)tally->races, tally->rounds_max, tally->same_bits ? "yes" : "no",
           tally->exact ? "exact" : "fingerprint", tally->seconds,
           tally->wrong != 0   ? "WRONG"
           : tally->cases == 0 ? "nothing to verify"
                               : "ok");
    if (tally->wrong != 0)
        printf("    %lld wrong; the first: %s\n", (long long)tally->wrong, tally->failure);
    if (tally->cases == 0)
        printf("    %s\n", tally->restriction);
    fflush(stdout);
}

static cJSON *row_json(const struct hkt_algo_info *info, const struct tally *tally)
{
    cJSON *row = cJSON_CreateObject();

    cJSON_AddStringToObject(row, "collective", hkt_coll_name(info->coll));
    cJSON_AddStringToObject(row, "algorithm", info->name);
    cJSON_AddNumberToObject(row, "cases", (double)tally->cases);
    cJSON_AddNumberToObject(row, "not_served", (double)tally->not_served);
    cJSON_AddNumberToObject(row, "wrong", (double)tally->wrong);
    cJSON_AddNumberToObject(row, "steps", (double)tally->steps);
    cJSON_AddNumberToObject(row, "messages", (double)tally->messages);
    cJSON_AddNumberToObject(row, "races_checked", (double)tally->races);
    cJSON_AddNumberToObject(row, "chunks_checked", (double)tally->chunks);
    cJSON_AddNumberToObject(row, "rounds_max", tally->rounds_max);
    cJSON_AddBoolToObject(row, "same_bits", tally->same_bits);
    cJSON_AddBoolToObject(row, "exact", tally->exact);
    cJSON_AddNumberToObject(row, "seconds", tally->seconds);
    if (tally->wrong != 0)
        cJSON_AddStringToObject(row, "failure", tally->failure);
    return row;
}

static bool is_in_scope(const struct scope *scope, const struct hkt_algo_info *info)
{
    return (scope->coll < 0 || (int)info->coll == scope->coll)
           && (scope->algo == NULL || strcmp(info->name, scope->algo) == 0);
}

static int verify_scope(const struct scope *scope)
{
    const double start = now_s();
    int64_t cases = 0, wrong = 0, not_served = 0;
    struct hkt_algo_info info;
    int rows = 0;
    cJSON *list = scope->json ? cJSON_CreateArray() : NULL;

    if (list == NULL)
        printf("%-16s %-20s %6s %8s %10s %10s %10s %7s  %-5s %-11s\n", "collective", "algorithm", "cases", "unserved",
               "steps", "messages", "races", "rounds", "bits", "proof");
    for (int i = 0; hkt_algo_get(i, &info) == HKT_OK; i++) {
        struct tally tally = { .same_bits = true, .exact = true };
        const double row_start = now_s();

        if (!is_in_scope(scope, &info))
            continue;
        for (long nranks = scope->first; nranks <= scope->last; nranks++)
            verify_ranks(scope, &info, (int)nranks, &tally);
        tally.seconds = now_s() - row_start;
        if (list != NULL)
            cJSON_AddItemToArray(list, row_json(&info, &tally));
        else
            print_row(&info, &tally);
        rows++;
        cases += tally.cases;
        wrong += tally.wrong;
        not_served += tally.not_served;
    }
    if (list != NULL) {
        const int code = hkt_tool_print_json("verify", list);

        return code != TOOL_OK ? code : wrong != 0 ? TOOL_FAILED : TOOL_OK;
    }
    printf(
        "\n%d algorithms, %ld to %ld ranks: %lld cases verified, %lld wrong, %lld not served (restrictions) in %.1f s\n",
        rows, scope->first, scope->last, (long long)cases, (long long)wrong, (long long)not_served, now_s() - start);
    return wrong != 0 ? TOOL_FAILED : TOOL_OK;
}

/* "P" or "A-B". */
static bool parse_range(const char *text, long *out_first, long *out_last)
{
    char first[16];
    const char *dash = strchr(text, '-');
    long low, high;

    if (dash == NULL) {
        if (!hkt_tool_parse_int(text, 1, HKT_RANKS_MAX, &low))
            return false;
        high = low;
    } else {
        snprintf(first, sizeof first, "%.*s", (int)(dash - text), text);
        if (!hkt_tool_parse_int(first, 1, HKT_RANKS_MAX, &low)
            || !hkt_tool_parse_int(dash + 1, low, HKT_RANKS_MAX, &high))
            return false;
    }
    *out_first = low;
    *out_last = high;
    return true;
}

/* Returns -1 to go on, else the exit code. */
static int read_names(int argc, char **argv, struct scope *scope)
{
    enum hkt_coll coll;

    if (optind < argc) {
        if (hkt_coll_parse(argv[optind], &coll) != HKT_OK)
            return hkt_tool_usage("verify", "%s", hkt_last_error());
        scope->coll = (int)coll;
        optind++;
    }
    if (optind < argc)
        scope->algo = argv[optind++];
    if (optind < argc)
        return hkt_tool_usage("verify", "\"%s\" is one argument too many", argv[optind]);
    struct hkt_algo_info info;

    for (int i = 0; hkt_algo_get(i, &info) == HKT_OK; i++)
        if (is_in_scope(scope, &info))
            return -1;
    return hkt_tool_usage("verify", "there is no algorithm \"%s\" for %s; `hocket explain --list` shows them",
                          scope->algo != NULL ? scope->algo : "", hkt_coll_name((enum hkt_coll)scope->coll));
}

int hkt_tool_verify(int argc, char **argv)
{
    static const struct option options[] = {
        { "ranks", required_argument, NULL, 'n' }, { "in-place", no_argument, NULL, 'i' },
        { "root", required_argument, NULL, 'r' },  { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },        { NULL, 0, NULL, 0 },
    };
    struct scope scope = { .coll = -1, .first = 1, .last = 16, .root = -1 };

    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":n:ir:jh", options, NULL)) != -1;) {
        switch (c) {
        case 'n':
            if (!parse_range(optarg, &scope.first, &scope.last))
                return hkt_tool_usage("verify", "-n %s: give P or A-B, 1 to %d", optarg, HKT_RANKS_MAX);
            break;
        case 'i':
            scope.in_place_only = true;
            break;
        case 'r':
            if (!hkt_tool_parse_int(optarg, 0, HKT_RANKS_MAX - 1, &scope.root))
                return hkt_tool_usage("verify", "--root %s: give a rank, 0 to %d", optarg, HKT_RANKS_MAX - 1);
            break;
        case 'j':
            scope.json = true;
            break;
        case 'h':
            fputs(help_text, stdout);
            return TOOL_OK;
        case ':':
            return hkt_tool_usage("verify", "%s needs a value", argv[optind - 1]);
        default:
            return hkt_tool_usage("verify", "there is no option %s", argv[optind - 1]);
        }
    }
    const int code = read_names(argc, argv, &scope);

    if (code >= 0)
        return code;
    if (scope.root >= scope.last)
        return hkt_tool_usage("verify", "root %ld is no rank of %ld", scope.root, scope.last);
    return verify_scope(&scope);
}
