/* See bound.h. Shared memory: every input byte is read and every result byte written by some core, once; all cores do
 * so at the price of a plain copy, which reads and writes one byte each, or of one from a peer if that is less; inputs
 * of sums beyond the first are just read. Network: the busiest rank sends or receives, whichever is cheaper, what the
 * collective's definition demands (Chan et al., CCPE 19(13), 2007). Several hosts: so does the link of the busiest
 * host, whose ranks may first combine what they have; more than one rank sends to others only where each has something
 * else. Added to that, the call, and one message's way where every rank waits for others: where some only give, they
 * run ahead, and the way of a message is hidden behind the calls before it. A bound, not an estimate: data that
 * another core wrote last never comes at the price of a plain copy. */
#include "cost/bound.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/** Bytes read and written by all ranks together, as multiples of n, the whole vector. In place own blocks stay where they are.
 *  Roots of broadcasts are in place as a rule. */
static double moved_by_all(enum hkt_coll coll, double p, bool in_place)
{
    if (p <= 1 && (in_place || coll == HKT_BROADCAST))
        return 0;
    switch (coll) {
    case HKT_ALL_GATHER:
    case HKT_ALL_GATHER_V:
        return in_place ? p : p + 1;
    case HKT_ALL_REDUCE:
        return 2 * p;
    case HKT_ALL_TO_ALL:
    case HKT_ALL_TO_ALL_V:
        return in_place ? 2 * (p - 1) : 2 * p;
    case HKT_BROADCAST:
        return p;
    case HKT_GATHER:
    case HKT_SCATTER:
        return in_place ? 2 * (p - 1) / p : 2;
    case HKT_BARRIER:
        return 0;
    default: /* p n read and n written, or the reverse */
        return p + 1;
    }
}

/** Of these, bytes of inputs that are summed where a result is made, beyond one for each byte of the result: read alone. */
static double just_summed(enum hkt_coll coll, double p)
{
    return coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_REDUCE_SCATTER_V ? p - 1 : 0;
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

/** Nobody waits for all others. */
static bool has_root(enum hkt_coll coll)
{
    return coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER;
}

static void add_latency(const struct hkt__select_args *args, const struct hkt__prices *prices, double way_ns,
                        struct hkt_bound *bound)
{
    const bool is_waited_for = args->nranks > 1 && !has_root(args->coll);
    const size_t used = strlen(bound->text);

    bound->time_us = (bound->bytes * bound->ns_per_byte + prices->price[HKT__PRICE_CALL] + (is_waited_for ? way_ns : 0)) / 1e3;
    snprintf(bound->text + used, sizeof bound->text - used, is_waited_for ? ", a call and one message's way" : " and a call");
}

static void bound_hosts(const struct hkt__select_args *args, const struct hkt__prices *prices, struct hkt_bound *bound)
{
    const double factor = host_factor(args->coll, args->site->nhosts, args->nranks);

    *bound = (struct hkt_bound){0};
    bound->bytes = factor * (double)args->bytes;
    bound->ns_per_byte = prices->price[HKT__PRICE_NET_WIRE];
    snprintf(bound->text, sizeof bound->text, "%.4g n bytes over the link of the busiest of %d hosts at %.3g GB/s", factor,
             args->site->nhosts, 1 / bound->ns_per_byte);
    /* Cores work on messages while others are on the wire. */
    const double wire_ns = bound->bytes * bound->ns_per_byte, beside_ns = 2 * prices->price[HKT__PRICE_NET_MESSAGE] - wire_ns;

    add_latency(args, prices, prices->price[HKT__PRICE_NET_ROUND] + fmax(0, beside_ns), bound);
}

/** The price of a byte in the cheaper of two ways; some bytes are in caches, as the model has it. */
static double mean_price(const struct hkt__prices *prices, enum hkt__price one, enum hkt__price other, const double share[3])
{
    double price = 0;

    for (int level = 0; level < 3; level++)
        price += share[level] * fmin(prices->price[(int)one + level], prices->price[(int)other + level]);
    return price;
}

void hkt__bound(const struct hkt__select_args *args, const struct hkt__prices *prices, bool is_memory,
                struct hkt_bound *out_bound)
{
    const double p = args->nranks, n = (double)args->bytes, cores = p / prices->crowd < 1 ? 1 : p / prices->crowd;
    const double factor = is_memory ? moved_by_all(args->coll, p, args->in_place) : wire_factor(args->coll, p);
    struct hkt_bound bound = {.bytes = factor * n};
    struct hkt__cache_shares caches;

    if (args->site != NULL && args->site->nhosts > 1) {
        bound_hosts(args, prices, out_bound);
        return;
    }
    hkt__model_caches(prices, args->nranks, hkt__touched_share(args) * n, &caches);
    if (is_memory) {
        const double copy = caches.near * mean_price(prices, HKT__PRICE_COPY_L2, HKT__PRICE_DIRECT_L2, caches.share) / 2;
        const double sum = caches.near * mean_price(prices, HKT__PRICE_REDUCE_L2, HKT__PRICE_REDUCE_L2, caches.share);
        const double summed = just_summed(args->coll, p);
        const double ns = factor > 0 ? copy - summed / factor * (copy - fmin(sum, copy)) : copy;

        bound.ns_per_byte = ns / cores;
        snprintf(bound.text, sizeof bound.text, "%g n bytes read and written by %g cores at %.3g GB/s each", factor, cores, 1 / ns);
    } else {
        bound.ns_per_byte = mean_price(prices, HKT__PRICE_SEND_L2, HKT__PRICE_RECEIVE_L2, caches.share);
        snprintf(bound.text, sizeof bound.text, "%.4g n bytes on the wire of the busiest rank at %.3g GB/s",
                 factor, 1 / bound.ns_per_byte);
    }
    add_latency(args, prices, prices->price[HKT__PRICE_ROUND] + (is_memory ? 0 : 2 * prices->price[HKT__PRICE_MESSAGE]), &bound);
    *out_bound = bound;
}
