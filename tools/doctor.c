/* `hocket doctor`: what will go wrong on this machine, or between the machines of a job, and how to mend it. */
#include "doctor.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hocket/hocket.h"
#include "tools.h"

static const char help_text[] =
    "usage: hocket doctor [--json] [--root DIR]\n"
    "       hocket run -n N [...] hocket doctor [--json]\n\n"
    "Looks for what will go wrong on this machine: locked memory, open files, /dev/shm, copies between processes,\n"
    "limits of the cgroup, cores, network interfaces, RDMA devices with their ports, GIDs and MTU. Each line says ok,\n"
    "warn or fail, the figure, and the mend. As ranks of a job (hocket run, mpirun, torchrun, srun) it does so on every\n"
    "host, then measures latency (us) and bandwidth (GB/s, 4 MiB) between all pairs of hosts, or of ranks on one host.\n\n"
    "  -j, --json      as JSON\n"
    "  -r, --root DIR  look at /proc, /sys and /dev below DIR: a copy of those of another machine\n"
    "  -h, --help      this text\n\n"
    "Exit code: 0 nothing fails (warnings or not), 1 something does, 2 wrong use.\n";

static const char *const level_names[] = {"ok", "warn", "fail"};

void hkt_doctor_add(struct doctor_report *report, const char *check, enum doctor_level level, const char *mend,
                    const char *format, ...)
{
    va_list args;

    if (report->count == DOCTOR_FINDINGS_MAX) {
        report->left_out++;
        return;
    }
    struct doctor_finding *finding = &report->findings[report->count++];

    finding->level = level;
    snprintf(finding->check, sizeof finding->check, "%s", check);
    snprintf(finding->mend, sizeof finding->mend, "%s", level == DOCTOR_OK ? "" : mend);
    va_start(args, format);
    vsnprintf(finding->figure, sizeof finding->figure, format, args);
    va_end(args);
}

bool hkt_doctor_read(const char *root, const char *path, char *out_text, size_t bytes)
{
    char full[512];

    snprintf(full, sizeof full, "%s%s", root, path);
    FILE *file = fopen(full, "re");
    const bool is_read = file != NULL && fgets(out_text, (int)bytes, file) != NULL;

    if (file != NULL)
        fclose(file);
    if (is_read)
        out_text[strcspn(out_text, "\n")] = '\0';
    return is_read;
}

/** What the library itself knows of this machine. */
static void look_at_features(struct doctor_report *report)
{
    struct hkt_feature feature;

    for (int i = 0; hkt_feature_get(i, &feature) == HKT_OK; i++) {
        const bool is_extra = strcmp(feature.name, "verbs") == 0 || strcmp(feature.name, "ucx") == 0 ||
                              strcmp(feature.name, "net") == 0 || strcmp(feature.name, "cuda_p2p") == 0;

        if (strcmp(feature.name, "copies") == 0 || strcmp(feature.name, "cores") == 0)
            hkt_doctor_add(report, feature.name, feature.present ? DOCTOR_OK : DOCTOR_WARN, "", "%s", feature.reason);
        else if (strcmp(feature.kind, "transport") == 0 && !is_extra && !feature.present)
            hkt_doctor_add(report, feature.name, DOCTOR_FAIL, "see the reason", "not usable: %s", feature.reason);
    }
}

static void look(struct doctor_report *report, const char *root)
{
    if (gethostname(report->host, sizeof report->host) != 0)
        snprintf(report->host, sizeof report->host, "this host");
    report->host[sizeof report->host - 1] = '\0';
    hkt_doctor_limits(report, root);
    hkt_doctor_cgroup(report, root);
    look_at_features(report);
    hkt_doctor_network(report, root);
    hkt_doctor_rdma(report, root);
}

static enum doctor_level worst_of(const struct doctor_report *report)
{
    enum doctor_level worst = DOCTOR_OK;

    for (int i = 0; i < report->count; i++)
        worst = report->findings[i].level > worst ? report->findings[i].level : worst;
    return worst;
}

static void print_report(const struct doctor_report *report)
{
    printf("%s\n", report->host);
    for (int i = 0; i < report->count; i++) {
        const struct doctor_finding *finding = &report->findings[i];

        printf("  %-4s %-12s %s\n", level_names[finding->level], finding->check, finding->figure);
        if (finding->mend[0] != '\0')
            printf("       %-12s -> %s\n", "", finding->mend);
    }
    if (report->left_out > 0)
        printf("  and %d lines more\n", report->left_out);
}

static void print_matrix(const struct doctor_job *job, const char *title, const double (*values)[DOCTOR_NODES_MAX])
{
    printf("\n%s, from (row) to (column)\n%16s", title, "");
    for (int to = 0; to < job->nnodes; to++)
        printf(" %10.10s", job->nodes[to]);
    for (int from = 0; from < job->nnodes; from++) {
        printf("\n%16.16s", job->nodes[from]);
        for (int to = 0; to < job->nnodes; to++) {
            if (values[from][to] > 0)
                printf(" %10.2f", values[from][to]);
            else
                printf(" %10s", "-");
        }
    }
    putchar('\n');
}

static cJSON *report_json(const struct doctor_report *report)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "findings");

    cJSON_AddStringToObject(root, "host", report->host);
    for (int i = 0; i < report->count; i++) {
        cJSON *row = cJSON_CreateObject();

        cJSON_AddStringToObject(row, "check", report->findings[i].check);
        cJSON_AddStringToObject(row, "level", level_names[report->findings[i].level]);
        cJSON_AddStringToObject(row, "figure", report->findings[i].figure);
        cJSON_AddStringToObject(row, "mend", report->findings[i].mend);
        cJSON_AddItemToArray(list, row);
    }
    return root;
}

static cJSON *matrix_json(const struct doctor_job *job, const double (*values)[DOCTOR_NODES_MAX])
{
    cJSON *rows = cJSON_CreateArray();

    for (int from = 0; from < job->nnodes; from++)
        cJSON_AddItemToArray(rows, cJSON_CreateDoubleArray(values[from], job->nnodes));
    return rows;
}

static int print_json(const struct doctor_job *job, const struct doctor_report *reports, int nreports, enum doctor_level worst)
{
    cJSON *root = cJSON_CreateObject(), *hosts = cJSON_AddArrayToObject(root, "hosts");

    cJSON_AddStringToObject(root, "worst", level_names[worst]);
    for (int i = 0; i < nreports; i++)
        cJSON_AddItemToArray(hosts, report_json(&reports[i]));
    if (job->nnodes > 1) {
        cJSON *nodes = cJSON_AddArrayToObject(root, "nodes");

        for (int i = 0; i < job->nnodes; i++)
            cJSON_AddItemToArray(nodes, cJSON_CreateString(job->nodes[i]));
        cJSON_AddItemToObject(root, "gbytes_per_s", matrix_json(job, job->gbytes_per_s));
        cJSON_AddItemToObject(root, "latency_us", matrix_json(job, job->latency_us));
    }
    return hkt_tool_print_json("doctor", root);
}

static int tell(const struct doctor_job *job, const struct doctor_report *own, bool json, int rank)
{
    const struct doctor_report *reports = job->reports != NULL ? job->reports : own;
    const int nreports = job->reports != NULL ? job->nreports : 1;
    enum doctor_level worst = DOCTOR_OK;
    int rc = TOOL_OK;

    if (rank != 0)
        return TOOL_OK; /* one verdict: a rank that ends in failure would end the others before they have told it */
    for (int i = 0; i < nreports; i++)
        worst = worst_of(&reports[i]) > worst ? worst_of(&reports[i]) : worst;
    if (json) {
        rc = print_json(job, reports, nreports, worst);
    } else {
        for (int i = 0; i < nreports; i++)
            print_report(&reports[i]);
        if (job->nnodes > 1) {
            print_matrix(job, "GB/s", job->gbytes_per_s);
            print_matrix(job, "us", job->latency_us);
        }
    }
    return rc != TOOL_OK ? rc : worst == DOCTOR_FAIL ? TOOL_FAILED : TOOL_OK;
}

int hkt_tool_doctor(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"root", required_argument, NULL, 'r'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *root = "";
    bool json = false;

    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "jr:h", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help_text, stdout);
            return TOOL_OK;
        }
        if (c == '?')
            return hkt_tool_usage("doctor", "there is no option %s, or it lacks its value", argv[optind - 1]);
        json |= c == 'j';
        root = c == 'r' ? optarg : root;
    }
    if (optind < argc)
        return hkt_tool_usage("doctor", "\"%s\" is one argument too many", argv[optind]);
    struct doctor_report *own = calloc(1, sizeof *own);
    struct doctor_job *job = calloc(1, sizeof *job);

    if (own == NULL || job == NULL) {
        hkt_tool_say("doctor", "no memory");
        free(own);
        free(job);
        return TOOL_FAILED;
    }
    look(own, root);
    const int rank = hkt_doctor_meet(own, job);
    const int rc = tell(job, own, json, rank);

    free(job->reports);
    free(job);
    free(own);
    return rc;
}
