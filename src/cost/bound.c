/* See bound.h. Shared memory: every input byte is read and every result byte written by some core, once; all cores do so at
 * the price of a plain copy, which reads and writes one byte each. Network: the busiest rank sends or receives what the
 * collective's definition demands (Chan et al., CCPE 19(13), 2007). Several hosts: so does the link of the busiest host, whose
 * ranks may first combine what they have; more than one rank sends to others only where each has something else. Added to that, one message's way, if there is anybody to
 * wait for. A bound, not an estimate: data that another core wrote last never comes at the price of a plain copy. */
#include "cost/bound.h"

#include <stdio.h>

/** Bytes read and written by all ranks together, as multiples of n, the whole vector. */
static double moved_by_all(enum hkt_coll coll, double p)
{
    switch (coll) {
    case HKT_ALL_REDUCE:
    case HKT_ALL_TO_ALL:
    case HKT_ALL_TO_ALL_V:
        return 2 * p;
    case HKT_BROADCAST:
        return p;
    case HKT_GATHER:
    case HKT_SCATTER:
        return 2;
    case HKT_BARRIER:
        return 0;
    default: /* p n read and n written, or the reverse */
        return p + 1;
    }
}

/** Bytes that the busiest rank sends or receives, as multiples of n. */
static double wire_factor(enum hkt_coll coll, double p)
{
    switch (coll) {
    case HKT_ALL_REDUCE:
        return 2 * (p - 1) / p;
    case HKT_BROADCAST:
    case HKT_REDUCE:
        return p > 1 ? 1 : 0;
    case HKT_BARRIER:
        return 0;
    default:
        return (p - 1) / p;
    }
}

/** Several hosts: bytes over the link of the busiest, as multiples of n. */
static double host_factor(enum hkt_coll coll, double hosts, double p)
{
    const bool is_personal = coll == HKT_ALL_TO_ALL || coll == HKT_ALL_TO_ALL_V;

    return is_personal ? p / hosts * (hosts - 1) / hosts : wire_factor(coll, hosts);
}

static void bound_hosts(const struct hkt__select_args *args, const struct hkt__prices *prices, struct hkt_bound *bound)
{
    const double factor = host_factor(args->coll, args->site->nhosts, args->nranks);

    *bound = (struct hkt_bound){0};
    bound->bytes = factor * (double)args->bytes;
    bound->ns_per_byte = prices->price[HKT__PRICE_NET_WIRE];
    bound->time_us = (prices->price[HKT__PRICE_NET_ROUND] + 2 * prices->price[HKT__PRICE_NET_MESSAGE] +
                      bound->bytes * bound->ns_per_byte) / 1e3;
    snprintf(bound->text, sizeof bound->text, "%.4g n bytes over the link of the busiest of %d hosts at %.3g GB/s, and one message's way",
             factor, args->site->nhosts, 1 / bound->ns_per_byte);
}

void hkt__bound(const struct hkt__select_args *args, const struct hkt__prices *prices, bool is_memory,
                struct hkt_bound *out_bound)
{
    const double p = args->nranks, n = (double)args->bytes, cores = p / prices->crowd;
    const double *price = prices->price;
    const int level = 2 * n <= prices->l2_bytes ? 0 : 2 * n <= prices->llc_bytes ? 1 : 2;
    double latency_ns = p > 1 ? price[HKT__PRICE_ROUND] : 0;
    struct hkt_bound bound = {.bytes = (is_memory ? moved_by_all(args->coll, p) : wire_factor(args->coll, p)) * n};

    if (args->site != NULL && args->site->nhosts > 1) {
        bound_hosts(args, prices, out_bound);
        return;
    }
    if (is_memory) {
        bound.ns_per_byte = price[HKT__PRICE_COPY_L2 + level] / 2 / (cores < 1 ? 1 : cores);
        snprintf(bound.text, sizeof bound.text, "%g n bytes read and written by %g cores at %.3g GB/s each, and one message's way",
                 moved_by_all(args->coll, p), cores < 1 ? 1 : cores, 2 / price[HKT__PRICE_COPY_L2 + level]);
    } else {
        const double send = price[HKT__PRICE_SEND_L2 + level], receive = price[HKT__PRICE_RECEIVE_L2 + level];

        latency_ns += p > 1 ? 2 * price[HKT__PRICE_MESSAGE] : 0;
        bound.ns_per_byte = send > receive ? send : receive;
        snprintf(bound.text, sizeof bound.text, "%.4g n bytes on the wire of the busiest rank at %.3g GB/s, and one message's way",
                 wire_factor(args->coll, p), 1 / bound.ns_per_byte);
    }
    bound.time_us = (latency_ns + bound.bytes * bound.ns_per_byte) / 1e3;
    *out_bound = bound;
}
