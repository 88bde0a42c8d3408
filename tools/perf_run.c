/* The measuring loop. Each case: warm up, check some calls, then time calls one by one. A call's time on the slowest rank
 * is what a training step would feel, so p50 and p99 are over the maxima of ranks. */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "perf.h"
#include "tools.h"

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/** A ring of sends and receives, as nccl-tests' sendrecv. */
static enum hkt_status send_recv(struct perf_rank *rank, const struct perf_case *c, const void *send, void *recv)
{
    const int next = (rank->rank + 1) % rank->nranks, prev = (rank->rank + rank->nranks - 1) % rank->nranks;
    enum hkt_status rc = hkt_group_start();

    if (rc == HKT_OK)
        rc = hkt_send(send, c->count, c->dtype, next, rank->comm, rank->stream);
    if (rc == HKT_OK)
        rc = hkt_recv(recv, c->count, c->dtype, prev, rank->comm, rank->stream);
    const enum hkt_status end = hkt_group_end();

    return rc < 0 ? rc : end;
}

static enum hkt_status call_v(struct perf_rank *rank, const struct perf_case *c, const void *send, void *recv)
{
    const struct hkt_blocks blocks = {rank->counts, rank->displs, rank->peer_counts, rank->peer_displs};

    switch (c->coll) {
    case HKT_ALL_GATHER_V:
        return hkt_all_gather_v(send, rank->counts[rank->rank], recv, rank->counts, rank->displs, c->dtype, rank->comm,
                                rank->stream);
    case HKT_REDUCE_SCATTER_V:
        return hkt_reduce_scatter_v(send, recv, rank->counts, c->dtype, c->op, rank->comm, rank->stream);
    default:
        return hkt_all_to_all_v(send, recv, &blocks, c->dtype, rank->comm, rank->stream);
    }
}

enum hkt_status perf_call(struct perf_rank *rank, const struct perf_case *c)
{
    const size_t elem_bytes = hkt_dtype_size(c->dtype), own = (size_t)rank->rank * c->count * elem_bytes;
    const bool is_root = rank->rank == c->root;
    unsigned char *recv = rank->far_recv != NULL ? rank->far_recv : rank->recv;
    const void *send = c->in_place ? recv : rank->far_send != NULL ? rank->far_send : rank->send;
    struct hkt_comm *comm = rank->comm;

    switch (c->coll) {
    case HKT_ALL_REDUCE:
        return hkt_all_reduce(send, recv, c->count, c->dtype, c->op, comm, rank->stream);
    case HKT_REDUCE_SCATTER:
        return hkt_reduce_scatter(send, c->in_place ? recv + own : recv, c->count, c->dtype, c->op, comm, rank->stream);
    case HKT_ALL_GATHER:
        return hkt_all_gather(c->in_place ? recv + own : send, recv, c->count, c->dtype, comm, rank->stream);
    case HKT_BROADCAST:
        return hkt_broadcast(send, recv, c->count, c->dtype, c->root, comm, rank->stream);
    case HKT_REDUCE:
        return hkt_reduce(send, recv, c->count, c->dtype, c->op, c->root, comm, rank->stream);
    case HKT_ALL_TO_ALL:
        return hkt_all_to_all(send, recv, c->count, c->dtype, comm, rank->stream);
    case HKT_GATHER:
        return hkt_gather(c->in_place ? recv + own : send, recv, c->count, c->dtype, c->root, comm, rank->stream);
    case HKT_SCATTER:
        return hkt_scatter(send, c->in_place && is_root ? recv + own : recv, c->count, c->dtype, c->root, comm, rank->stream);
    case HKT_BARRIER:
        return hkt_barrier(comm, rank->stream);
    case HKT_SEND_RECV:
        return send_recv(rank, c, send, recv);
    default:
        if (c->in_place && c->coll == HKT_ALL_GATHER_V)
            send = recv + rank->displs[rank->rank] * elem_bytes;
        if (c->in_place && c->coll == HKT_REDUCE_SCATTER_V)
            recv += rank->displs[rank->rank] * elem_bytes;
        return call_v(rank, c, send, recv);
    }
}

double perf_size_bytes(const struct perf_rank *rank, const struct perf_case *c)
{
    double elems = (double)c->count;

    switch (c->coll) {
    case HKT_BARRIER:
        return 0;
    case HKT_REDUCE_SCATTER:
    case HKT_ALL_GATHER:
    case HKT_ALL_TO_ALL:
    case HKT_GATHER:
    case HKT_SCATTER:
        elems *= rank->nranks;
        break;
    case HKT_ALL_GATHER_V:
    case HKT_REDUCE_SCATTER_V:
    case HKT_ALL_TO_ALL_V:
        elems = 0;
        for (int i = 0; i < rank->nranks; i++)
            elems += (double)rank->counts[i];
        break;
    default:
        break;
    }
    return elems * (double)hkt_dtype_size(c->dtype);
}

double perf_bus_factor(enum hkt_coll coll, int nranks)
{
    const double n = nranks;

    switch (coll) {
    case HKT_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case HKT_BROADCAST:
    case HKT_REDUCE:
    case HKT_SEND_RECV:
        return 1;
    default:
        return (n - 1) / n;
    }
}

double perf_wire_factor(enum hkt_coll coll, int nranks)
{
    const double n = nranks;

    if (nranks == 1)
        return 0;
    return coll == HKT_ALL_REDUCE ? 2 * (n - 1) / n : coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_SEND_RECV
               ? 1 : (n - 1) / n;
}

/** Bytes that this rank moved per call since `start`. A root may receive much and send nothing. */
static double moved_bytes(const struct perf_rank *rank, const struct hkt_comm_stats *start)
{
    struct hkt_comm_stats now;

    hkt_comm_get_stats(rank->comm, &now);
    const uint64_t sent = now.bytes_sent - start->bytes_sent, received = now.bytes_received - start->bytes_received;

    return (double)((sent > received ? sent : received) + now.bytes_direct - start->bytes_direct) / rank->options->iters;
}

static enum hkt_status check_calls(struct perf_rank *rank, const struct perf_case *c, int64_t *out_wrong)
{
    char text[256] = "";
    int64_t wrong = 0;
    enum hkt_status rc = HKT_OK;

    for (int i = 0; i < rank->options->check_iters && rc == HKT_OK; i++) { /* on all ranks, whoever found some wrong */
        perf_fill(rank, c);
        rc = perf_upload(rank);
        if (rc == HKT_OK)
            rc = perf_call(rank, c);
        if (rc == HKT_OK)
            rc = hkt_stream_synchronize(rank->stream);
        if (rc == HKT_OK)
            rc = perf_download(rank);
        if (rc == HKT_OK)
            wrong += perf_check(rank, c, text, sizeof text);
    }
    if (text[0] != '\0')
        hkt_tool_say("perf", "%s", text);
    if (rc == HKT_OK)
        rc = hkt_all_reduce(&wrong, &wrong, 1, HKT_INT64, HKT_SUM, rank->side, NULL);
    *out_wrong = rank->options->check_iters > 0 ? wrong : -1;
    return rc;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/** Combine ranks' views: the mean time as -a says, percentiles over the slowest rank's calls, most bytes moved. */
static enum hkt_status combine(struct perf_rank *rank, double time_us, double wire, struct perf_result *out)
{
    static const enum hkt_op ops[] = {[PERF_RANK0] = HKT_SUM, [PERF_MEAN] = HKT_SUM, [PERF_MIN] = HKT_MIN,
                                      [PERF_MAX] = HKT_MAX};
    const enum perf_average average = rank->options->average;
    const int iters = rank->options->iters;
    enum hkt_status rc;

    if (average == PERF_RANK0 && rank->rank != 0)
        time_us = 0;
    rc = hkt_all_reduce(&time_us, &time_us, 1, HKT_F64, ops[average], rank->side, NULL);
    if (rc == HKT_OK)
        rc = hkt_all_reduce(&wire, &wire, 1, HKT_F64, HKT_MAX, rank->side, NULL);
    if (rc == HKT_OK)
        rc = hkt_all_reduce(rank->times, rank->times, (size_t)iters, HKT_F64, HKT_MAX, rank->side, NULL);
    if (rc < 0)
        return rc;
    qsort(rank->times, (size_t)iters, sizeof(double), compare_doubles);
    out->time_us = average == PERF_MEAN ? time_us / rank->nranks : time_us;
    out->p50_us = rank->times[iters / 2];
    out->p99_us = rank->times[(int)ceil(iters * 0.99) - 1];
    out->wire_bytes = wire;
    return HKT_OK;
}

enum hkt_status perf_measure(struct perf_rank *rank, const struct perf_case *c, struct perf_result *out_result)
{
    const struct perf_options *options = rank->options;
    enum hkt_status rc = check_calls(rank, c, &out_result->wrong);

    for (int i = 0; i < options->warmup_iters && rc == HKT_OK; i++)
        rc = perf_call(rank, c);
    if (rc == HKT_OK)
        rc = hkt_stream_synchronize(rank->stream);
    if (rc == HKT_OK)
        rc = hkt_barrier(rank->comm, NULL);
    struct hkt_comm_stats stats;

    hkt_comm_get_stats(rank->comm, &stats);
    const double start = now_us();
    double last = start, waiting = 0;

    for (int i = 0; i < options->iters && rc == HKT_OK; i++) {
        if (options->blocking) {
            rc = hkt_barrier(rank->comm, NULL);
            waiting += now_us() - last;
            last = now_us();
        }
        if (rc == HKT_OK)
            rc = perf_call(rank, c);
        if (rc == HKT_OK && (options->blocking || i == options->iters - 1))
            rc = hkt_stream_synchronize(rank->stream);
        const double now = now_us();

        rank->times[i] = now - last;
        last = now;
    }
    if (rc < 0)
        return rc;
    const double time_us = (last - start - waiting) / options->iters;

    /* Calls that were only enqueued have no times of their own. */
    for (int i = 0; i < options->iters && rank->stream != NULL && !options->blocking; i++)
        rank->times[i] = time_us;

    rc = combine(rank, time_us, moved_bytes(rank, &stats), out_result);
    if (rc < 0)
        return rc;
    out_result->algbw = perf_size_bytes(rank, c) / (out_result->time_us * 1e3);
    out_result->busbw = out_result->algbw * perf_bus_factor(c->coll, rank->nranks);
    return HKT_OK;
}
