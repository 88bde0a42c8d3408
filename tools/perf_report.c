/* What rank 0 prints: nccl-tests' table with three more columns per placement, and the same as JSON. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"
#include "tools.h"

struct perf_report {
    const struct perf_options *options;
    int nranks;
    cJSON *root, *rows;              /* NULL without --json */
    FILE *file;                      /* where they go, opened first: a wrong path must not cost a run */
    double busbw_sum;
    int busbw_count;
    int64_t wrong;
};

static const char *average_name(enum perf_average average)
{
    static const char *const names[] = {"rank 0", "mean of ranks", "fastest rank", "slowest rank"};

    return names[average];
}

static void print_header(const struct perf_options *o, const struct perf_rank *rank)
{
    char host[256] = "?";

    gethostname(host, sizeof host - 1);
    printf("# hocket %d.%d.%d  %d ranks  %d threads per process  host %s  pid %d\n", HKT_VERSION_MAJOR, HKT_VERSION_MINOR,
           HKT_VERSION_PATCH, rank->nranks, o->threads, host, (int)getpid());
    printf("# minbytes %zu maxbytes %zu step %s%zu iters %d warmup %d check %d blocking %d time: %s  transport to rank 1: "
           "%s\n", o->bytes_min, o->bytes_max, o->step_factor > 1 ? "x " : "+ ",
           o->step_factor > 1 ? (size_t)o->step_factor : o->step_bytes, o->iters, o->warmup_iters, o->check_iters,
           o->blocking, average_name(o->average), rank->nranks > 1 ? hkt_comm_transport(rank->comm, 1) : "none");
    if (o->replay != NULL) {
        printf("#\n# %-32s %8s %12s %12s %8s %8s %10s\n", "replay", "calls", "size", "time", "algbw", "busbw", "p99/call");
        printf("# %-32s %8s %12s %12s %8s %8s %10s\n", "", "", "(B)", "(us)", "(GB/s)", "(GB/s)", "(us)");
        return;
    }
    printf("#\n# %10s %12s %8s %6s %6s  %-61s  %s\n", "", "", "", "", "", "out-of-place", "in-place");
    printf("# %10s %12s %8s %6s %6s", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; i++)
        printf("  %9s %7s %7s %6s %9s %9s %7s", "time", "algbw", "busbw", "#wrong", "p50", "p99", "wire");
    printf("\n# %10s %12s %8s %6s %6s", "(B)", "(elements)", "", "", "");
    for (int i = 0; i < 2; i++)
        printf("  %9s %7s %7s %6s %9s %9s %7s", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(x min)");
    printf("\n");
}

static void add_header_json(cJSON *root, const struct perf_options *o, const struct perf_rank *rank)
{
    cJSON *config = cJSON_AddObjectToObject(root, "config");

    cJSON_AddNumberToObject(root, "version", 1);
    cJSON_AddNumberToObject(root, "hocket_version", hkt_version());
    cJSON_AddStringToObject(root, "collective", hkt_coll_name(o->coll));
    cJSON_AddNumberToObject(config, "nranks", rank->nranks);
    cJSON_AddNumberToObject(config, "nthreads", o->threads);
    cJSON_AddNumberToObject(config, "minimum_bytes", (double)o->bytes_min);
    cJSON_AddNumberToObject(config, "maximum_bytes", (double)o->bytes_max);
    cJSON_AddNumberToObject(config, "iterations", o->iters);
    cJSON_AddNumberToObject(config, "warmup_iters", o->warmup_iters);
    cJSON_AddNumberToObject(config, "validation", o->check_iters);
    cJSON_AddNumberToObject(config, "blocking_collectives", o->blocking);
    cJSON_AddStringToObject(config, "average", average_name(o->average));
    cJSON_AddStringToObject(config, "algo", o->algo != NULL ? o->algo : "default");
    cJSON_AddStringToObject(config, "transport", rank->nranks > 1 ? hkt_comm_transport(rank->comm, 1) : "none");
    cJSON_AddNumberToObject(root, "start_time", (double)time(NULL));
}

struct perf_report *perf_report_open(const struct perf_options *options, const struct perf_rank *rank)
{
    struct perf_report *report = calloc(1, sizeof *report);

    if (report == NULL)
        return NULL;
    report->options = options;
    report->nranks = rank->nranks;
    if (options->json_path != NULL) {
        report->file = fopen(options->json_path, "we");
        if (report->file == NULL) {
            hkt_tool_say("perf", "cannot write %s: %s", options->json_path, strerror(errno));
            free(report);
            return NULL;
        }
        report->root = cJSON_CreateObject();
        add_header_json(report->root, options, rank);
        report->rows = cJSON_AddArrayToObject(report->root, "results");
    }
    print_header(options, rank);
    return report;
}

static void print_result(const struct perf_report *report, const struct perf_case *c, double size_bytes,
                         const struct perf_result *r)
{
    const double least = size_bytes * perf_wire_factor(c->coll, report->nranks);
    char wrong[24] = "N/A", wire[24] = "-";

    if (r->wrong >= 0)
        snprintf(wrong, sizeof wrong, "%lld", (long long)r->wrong);
    if (least > 0)
        snprintf(wire, sizeof wire, "%.2f", r->wire_bytes / least);
    printf("  %9.2f %7.2f %7.2f %6s %9.2f %9.2f %7s", r->time_us, r->algbw, r->busbw, wrong, r->p50_us, r->p99_us, wire);
}

static void add_result_json(cJSON *row, const char *name, const struct perf_result *r)
{
    cJSON *object = cJSON_AddObjectToObject(row, name);

    cJSON_AddNumberToObject(object, "time", r->time_us);
    cJSON_AddNumberToObject(object, "p50", r->p50_us);
    cJSON_AddNumberToObject(object, "p99", r->p99_us);
    cJSON_AddNumberToObject(object, "alg_bw", r->algbw);
    cJSON_AddNumberToObject(object, "bus_bw", r->busbw);
    cJSON_AddNumberToObject(object, "wire_bytes", r->wire_bytes);
    if (r->wrong >= 0)
        cJSON_AddNumberToObject(object, "nwrong", (double)r->wrong);
    else
        cJSON_AddNullToObject(object, "nwrong");
}

static bool is_rooted(enum hkt_coll coll)
{
    return coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER;
}

static bool is_reduction(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_REDUCE_SCATTER_V;
}

void perf_report_row(struct perf_report *report, const struct perf_case *c, double size_bytes,
                     const struct perf_result results[2])
{
    const char *op = is_reduction(c->coll) ? hkt_op_name(c->op) : "none";
    const int root = is_rooted(c->coll) ? c->root : -1;

    if (report == NULL)
        return;
    printf("  %10.0f %12zu %8s %6s %6d", size_bytes, c->count, hkt_dtype_name(c->dtype), op, root);
    print_result(report, c, size_bytes, &results[0]);
    if (results[1].time_us > 0)
        print_result(report, c, size_bytes, &results[1]);
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        if (results[i].time_us <= 0)
            continue;
        report->busbw_sum += results[i].busbw;
        report->busbw_count++;
        report->wrong += results[i].wrong > 0 ? results[i].wrong : 0;
    }
    if (report->root == NULL)
        return;
    cJSON *row = cJSON_CreateObject();

    cJSON_AddItemToArray(report->rows, row);
    cJSON_AddNumberToObject(row, "size", size_bytes);
    cJSON_AddNumberToObject(row, "count", (double)c->count);
    cJSON_AddStringToObject(row, "type", hkt_dtype_name(c->dtype));
    cJSON_AddStringToObject(row, "redop", op);
    cJSON_AddNumberToObject(row, "root", root);
    add_result_json(row, "out_of_place", &results[0]);
    if (results[1].time_us > 0)
        add_result_json(row, "in_place", &results[1]);
}

void perf_report_replay(struct perf_report *report, const char *what, int calls, double bytes,
                        const struct perf_result *r)
{
    if (report == NULL)
        return;
    printf("  %-32s %8d %12.0f %12.1f %8.2f %8.2f %10.1f\n", what, calls, bytes, r->time_us, r->algbw, r->busbw,
           r->p99_us);
    report->busbw_sum += r->busbw;
    report->busbw_count++;
    report->wrong += r->wrong > 0 ? r->wrong : 0;
    if (report->root == NULL)
        return;
    cJSON *row = cJSON_CreateObject();

    cJSON_AddItemToArray(report->rows, row);
    cJSON_AddStringToObject(row, "replay", what);
    cJSON_AddNumberToObject(row, "calls", calls);
    cJSON_AddNumberToObject(row, "size", bytes);
    add_result_json(row, "out_of_place", r);
}

static bool write_json(const struct perf_report *report)
{
    char *text = cJSON_Print(report->root);
    bool ok = text != NULL && fprintf(report->file, "%s\n", text) > 0;

    ok &= fclose(report->file) == 0;
    if (!ok)
        hkt_tool_say("perf", "cannot write %s", report->options->json_path);
    free(text);
    return ok;
}

static void print_footer(const struct perf_report *report, const struct perf_end *end, double average)
{
    if (report->options->check_iters > 0 && (end->completed || report->wrong > 0))
        printf("# Out of bounds values : %lld %s\n", (long long)report->wrong, report->wrong == 0 ? "OK" : "FAILED");
    if (!end->completed) {
        printf("# FAILED: stopped by an error, what is above is not all\n");
        return;
    }
    printf("# Avg bus bandwidth    : %g\n", average);
    printf("# CPU time             : %.2f s user + %.2f s system over %d ranks in %.2f s\n", end->cpu_s[0], end->cpu_s[1],
           report->nranks, end->wall_s);
    if (report->nranks == 1)
        printf("# One rank: nothing is exchanged. Start more with `hocket run -n 4 hocket perf ...`\n");
}

bool perf_report_close(struct perf_report *report, const struct perf_end *end)
{
    bool ok = true;

    if (report == NULL)
        return true;
    const double average = report->busbw_count > 0 ? report->busbw_sum / report->busbw_count : 0;

    print_footer(report, end, average);
    if (report->root != NULL) {
        cJSON_AddBoolToObject(report->root, "completed", end->completed);
        cJSON_AddNumberToObject(report->root, "out_of_bounds", (double)report->wrong);
        cJSON_AddNumberToObject(report->root, "average_bus_bandwidth", average);
        cJSON_AddNumberToObject(report->root, "cpu_user_s", end->cpu_s[0]);
        cJSON_AddNumberToObject(report->root, "cpu_system_s", end->cpu_s[1]);
        cJSON_AddNumberToObject(report->root, "wall_s", end->wall_s);
        cJSON_AddNumberToObject(report->root, "end_time", (double)time(NULL));
        ok = write_json(report);
        cJSON_Delete(report->root);
    }
    free(report);
    return ok;
}
