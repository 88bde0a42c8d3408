/* `hocket doctor` as ranks of a job: every host's report reaches every rank, then pairs of hosts (of ranks, where there is
 * one host) measure what lies between them, one pair and direction at a time, so that none disturbs another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "doctor.h"
#include "hocket/hocket.h"

#define PINGS 20
#define BULK_BYTES ((size_t)4 << 20)
#define TIMEOUT_MS 20000
#define SLOW 0.5                 /* of the median bandwidth */

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/** There and back; the answer is a byte. */
static enum hkt_status bounce(struct hkt_comm *comm, char *data, size_t bytes, int peer, bool is_first)
{
    const enum hkt_status rc = is_first ? hkt_send(data, bytes, HKT_UINT8, peer, comm, NULL)
                                        : hkt_recv(data, bytes, HKT_UINT8, peer, comm, NULL);

    if (rc < 0)
        return rc;
    return is_first ? hkt_recv(data, 1, HKT_UINT8, peer, comm, NULL) : hkt_send(data, 1, HKT_UINT8, peer, comm, NULL);
}

/** From `from` to `to`; everybody else waits. Results on `from`. */
static enum hkt_status measure(struct hkt_comm *comm, char *data, int from, int to, struct doctor_job *job)
{
    const int own = hkt_comm_rank(comm);
    enum hkt_status rc = HKT_OK;

    if (own == from || own == to) {
        const int peer = own == from ? to : from;
        double times[3];

        rc = bounce(comm, data, BULK_BYTES, peer, own == from); /* connections, first touch */
        times[0] = now_us();
        for (int i = 0; i < PINGS && rc == HKT_OK; i++)
            rc = bounce(comm, data, 1, peer, own == from);
        times[1] = now_us();
        if (rc == HKT_OK)
            rc = bounce(comm, data, BULK_BYTES, peer, own == from);
        times[2] = now_us();
        if (own == from) {
            const double latency_us = (times[1] - times[0]) / PINGS / 2, bulk_us = times[2] - times[1] - latency_us;

            job->latency_us[from][to] = latency_us;
            job->gbytes_per_s[from][to] = bulk_us > 0 ? (double)BULK_BYTES / bulk_us / 1e3 : 0;
        }
    }
    return rc == HKT_OK ? hkt_barrier(comm, NULL) : rc;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/** Pairs that are much slower than most. */
static void judge(const struct doctor_job *job, struct doctor_report *report)
{
    double sorted[DOCTOR_NODES_MAX * DOCTOR_NODES_MAX];
    int count = 0;

    for (int from = 0; from < job->nnodes; from++)
        for (int to = 0; to < job->nnodes; to++)
            if (from != to)
                sorted[count++] = job->gbytes_per_s[from][to];
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    const double median = sorted[count / 2];

    hkt_doctor_add(report, "pairs", DOCTOR_OK, "", "all %d reached; GB/s least %.2f, median %.2f, most %.2f", count, sorted[0],
                   median, sorted[count - 1]);
    for (int from = 0; from < job->nnodes; from++)
        for (int to = 0; to < job->nnodes; to++)
            if (from != to && job->gbytes_per_s[from][to] < SLOW * median)
                hkt_doctor_add(report, "slow pair", DOCTOR_WARN, "compare link speed, MTU and errors of the two (ethtool -S), and "
                               "what else uses them now", "%.64s to %.64s: %.2f GB/s where %.2f is the median", job->nodes[from],
                               job->nodes[to], job->gbytes_per_s[from][to], median);
}

static enum hkt_status measure_all(struct hkt_comm *nodes, struct doctor_job *job, struct doctor_report *report)
{
    static const size_t cells = (size_t)DOCTOR_NODES_MAX * DOCTOR_NODES_MAX;
    char *data = calloc(1, BULK_BYTES);
    enum hkt_status rc = HKT_OK;
    int from = 0, to = 0;

    if (data == NULL)
        return HKT_ERR_NOMEM;
    for (from = 0; from < job->nnodes && rc == HKT_OK; from++)
        for (to = 0; to < job->nnodes && rc == HKT_OK; to++)
            rc = from == to ? HKT_OK : measure(nodes, data, from, to, job);
    free(data);
    if (rc < 0) {
        hkt_doctor_add(report, "pairs", DOCTOR_FAIL, "see the reason; HOCKET_INTERFACE and HOCKET_TRANSPORT choose the way",
                       "%.64s to %.64s failed: %.100s", job->nodes[from - 1], job->nodes[to - 1], hkt_comm_last_error(nodes));
        return rc;
    }
    rc = hkt_all_reduce(job->gbytes_per_s, job->gbytes_per_s, cells, HKT_F64, HKT_SUM, nodes, NULL);
    if (rc == HKT_OK)
        rc = hkt_all_reduce(job->latency_us, job->latency_us, cells, HKT_F64, HKT_SUM, nodes, NULL);
    if (rc == HKT_OK)
        judge(job, report);
    return rc;
}

/** Rank of the first rank on the host of `rank`. */
static int first_on_host(const struct doctor_report *all, int rank)
{
    int first = 0;

    while (strcmp(all[first].host, all[rank].host) != 0)
        first++;
    return first;
}

/** Keep one report per host, and say which ranks are nodes of the matrix: the first of each host, or all of one host. */
static void choose_nodes(struct doctor_report *all, int nranks, bool *out_is_node, struct doctor_job *job)
{
    bool is_one_host = true;

    for (int r = 1; r < nranks; r++)
        is_one_host &= strcmp(all[r].host, all[0].host) == 0;
    for (int r = 0; r < nranks; r++) {
        out_is_node[r] = (is_one_host || first_on_host(all, r) == r) && job->nnodes < DOCTOR_NODES_MAX;
        if (!out_is_node[r])
            continue;
        if (is_one_host)
            snprintf(job->nodes[job->nnodes++], sizeof job->nodes[0], "rank %d", r);
        else
            snprintf(job->nodes[job->nnodes++], sizeof job->nodes[0], "%s", all[r].host);
    }
    for (int r = 0; r < nranks; r++)
        if (first_on_host(all, r) == r)
            all[job->nreports++] = all[r]; /* never past r */
}

static enum hkt_status meet(struct hkt_comm *comm, struct doctor_report *own, struct doctor_job *job)
{
    const int nranks = hkt_comm_size(comm), rank = hkt_comm_rank(comm);
    struct doctor_report *all = calloc((size_t)nranks, sizeof *all);
    bool *is_node = calloc((size_t)nranks, sizeof *is_node);
    struct hkt_comm *nodes = NULL;
    enum hkt_status rc = HKT_ERR_NOMEM;

    if (all == NULL || is_node == NULL)
        goto free_all;
    rc = hkt_all_gather(own, all, sizeof *own, HKT_UINT8, comm, NULL);
    if (rc < 0)
        goto free_all;
    choose_nodes(all, nranks, is_node, job);
    rc = hkt_comm_split(comm, is_node[rank] ? 0 : -1, rank, NULL, &nodes);
    if (rc == HKT_OK && nodes != NULL && job->nnodes > 1)
        rc = measure_all(nodes, job, &all[0]);
    if (nodes != NULL)
        (void)hkt_comm_destroy(nodes);
    job->reports = all;
    all = NULL;

free_all:
    free(all);
    free(is_node);
    return rc;
}

int hkt_doctor_meet(struct doctor_report *own, struct doctor_job *out_job)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    struct hkt_comm *comm = NULL;
    int rank = 0;

    config.timeout_ms = TIMEOUT_MS;
    if (hkt_comm_init_env(&comm, &config) < 0) {
        hkt_doctor_add(own, "job", DOCTOR_FAIL, "see the reason", "the ranks do not meet: %.160s", hkt_last_error());
        return 0;
    }
    if (hkt_comm_size(comm) > 1) {
        rank = hkt_comm_rank(comm);
        if (meet(comm, own, out_job) < 0) {
            struct doctor_report *report = out_job->reports != NULL ? out_job->reports : own;

            hkt_doctor_add(report, "job", DOCTOR_FAIL, "see the reason", "%.160s", hkt_last_error());
        }
    }
    (void)hkt_comm_destroy(comm);
    return rank;
}
