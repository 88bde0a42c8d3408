/* The cost model: what a call should take. It is a sum of amounts times prices (prices.h):
 *   a call, and for its first slice the critical path of the schedule: rounds of waiting, messages, steps, bytes by what
 *   happens to them; for every further slice the busiest rank alone, since slices overlap;
 *   over several lanes slices wait less for each other, and each lane is more to look at;
 *   between hosts, no less than the link of the busiest host takes for what all its ranks send;
 *   where ranks outnumber cores (crowd > 1) work adds up: crowd times the mean rank, if that is more, and ranks switch;
 *   those that are bound to one core exchange messages at a lower price (site.h).
 * Bytes are priced by how much memory the call touches, and with it the calls of other ranks of the core: second-level cache,
 * last-level cache, memory. */
#ifndef HOCKET_COST_MODEL_H
#define HOCKET_COST_MODEL_H

#include "cost/prices.h"
#include "cost/work.h"

/** Of one machine for one set of transports and number of ranks. */
struct hkt__prices {
    double price[HKT__PRICE_COUNT];
    double crowd;                         /* ranks per core, at least 1 */
    bool over_sockets;                    /* messages within a host */
    double l1_bytes, l2_bytes, llc_bytes; /* one core's, and the last level */
};

/** Defaults for ranks of a host whose transport moves a frame in latency_ns and a byte in ns_per_byte, through memory or
 *  sockets. What is between hosts has defaults of its own (prices.h). */
void hkt__prices_init(struct hkt__prices *prices, double latency_ns, double ns_per_byte, bool is_memory, double crowd);

/** A network that is described: of the link of each host, 0: not known. */
void hkt__prices_net(struct hkt__prices *prices, double bytes_per_s, double latency_ns);

struct hkt__model_args {
    size_t bytes;                         /* n */
    double touched;                       /* bytes of a rank's buffers, as a multiple of n */
    size_t slice_bytes, scratch_bytes;    /* what cuts n into slices */
    int32_t lanes;                        /* replicas of the schedule's lanes, which slices are dealt to; 0: one */
    int host_ranks;                       /* ranks of each host; 0: not known */
    bool one_slice;                       /* nothing is staged: nothing is cut */
    bool far;                             /* memory of peers is reached by system calls */
};
/** Where a call's bytes are found. */
struct hkt__cache_shares {
    double share[3]; /* in a core's second-level cache, in the last one, in memory */
    double near;     /* what bytes that nobody else writes cost, as a multiple of the same in a second-level cache */
};
/** Between half a cache and twice it some of the data is found there. Ranks that crowd the cores have
 *  a share each of their core's second level and of the last one (fitted for ranks that have one to themselves, whatever the others take). */
void hkt__model_caches(const struct hkt__prices *prices, int host_ranks, double touched,
                       struct hkt__cache_shares *out_shares);
/** How many slices a call is cut in: hkt__lower_slices by shares of the vector. */
double hkt__model_slices(const struct hkt__profile *profile, const struct hkt__model_args *args);
/** How much of each price a call pays. */
void hkt__model_amounts(const struct hkt__profile *profile, const struct hkt__prices *prices,
                        const struct hkt__model_args *args, double out_amounts[HKT__PRICE_COUNT]);
double hkt__model_ns(const struct hkt__profile *profile, const struct hkt__prices *prices,
                     const struct hkt__model_args *args);

#endif
