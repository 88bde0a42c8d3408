/* See model.h. Default prices: medians on a 2-core virtual Xeon (2 MiB second-level cache, shared last level), measured
 * with benchmarks/device_bench and benchmarks/transport_bench, 2026-11; ratios carry over to other machines better than
 * the figures. */
#include "cost/model.h"

#include <unistd.h>

static double cache_bytes(int name, double fallback)
{
    const long bytes = sysconf(name);

    return bytes > 0 ? (double)bytes : fallback;
}

static void set_levels(double *prices, double l2, double llc, double memory)
{
    prices[HKT__LEVEL_L2] = l2;
    prices[HKT__LEVEL_LLC] = llc;
    prices[HKT__LEVEL_MEMORY] = memory;
}

void hkt__prices_init(struct hkt__prices *prices, double latency_ns, double ns_per_byte, bool is_memory, double crowd)
{
    *prices = (struct hkt__prices){.latency_ns = latency_ns, .message_ns = is_memory ? 40 : 3000,
                                   .access_ns = 100, .far_access_ns = 2500, .crowd = crowd < 1 ? 1 : crowd};
    set_levels(prices->copy, 0.015, 0.03, 0.07);
    set_levels(prices->reduce, 0.02, 0.035, 0.05);
    set_levels(prices->direct, 0.03, 0.04, 0.06);
    set_levels(prices->far, 0.08, 0.1, 0.2);
    if (is_memory) {
        /* A slot stays in the cache of both cores; the user's buffer is what comes from memory. */
        set_levels(prices->send, 0.03, 0.04, 0.06);
        set_levels(prices->receive, 0.035, 0.045, 0.07);
    } else {
        set_levels(prices->send, ns_per_byte / 2, ns_per_byte / 2, ns_per_byte / 2);
        set_levels(prices->receive, ns_per_byte / 2, ns_per_byte / 2, ns_per_byte / 2);
    }
    prices->l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20);
    prices->llc_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 16 << 20);
}

double hkt__model_ns(const struct hkt__work *work, const struct hkt__prices *prices, const struct hkt__model_args *args)
{
    const double n = (double)args->bytes, touched = 2 * n;
    const enum hkt__level level = touched <= prices->l2_bytes    ? HKT__LEVEL_L2
                                  : touched <= prices->llc_bytes ? HKT__LEVEL_LLC
                                                                 : HKT__LEVEL_MEMORY;
    const double slice = n < (double)args->slice_bytes ? n : (double)args->slice_bytes;
    const double slices = slice > 0 ? n / slice : 1;
    /* Messages are per slice, where a call is cut. */
    double core_ns = work->messages * prices->message_ns * (args->pipelined ? slices : 1);

    core_ns += work->sent * n * prices->send[level] + work->received * n * prices->receive[level] +
               work->copied * n * prices->copy[level] + work->reduced * n * prices->reduce[level];
    if (args->far)
        core_ns += work->accesses * prices->far_access_ns + (work->read + work->written) * n * prices->far[level];
    else
        core_ns += work->accesses * prices->access_ns + (work->read + work->written) * n * prices->direct[level];
    /* A pipeline fills once: each further round costs the time of one slice, not of the whole. */
    if (args->pipelined)
        core_ns += work->rounds * slice * (prices->send[level] + prices->receive[level]);
    return work->rounds * prices->latency_ns + prices->crowd * core_ns;
}
