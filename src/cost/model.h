/* The cost model: what work costs on a machine. T = rounds * latency + crowd * (messages * overhead + sum of bytes times the
 * price of what happens to them), with prices by how much memory the call touches: second-level cache, last-level cache,
 * memory. crowd is ranks per core: where ranks take turns, their work adds up. */
#ifndef HOCKET_COST_MODEL_H
#define HOCKET_COST_MODEL_H

#include "cost/work.h"

enum hkt__level { HKT__LEVEL_L2, HKT__LEVEL_LLC, HKT__LEVEL_MEMORY, HKT__LEVEL_COUNT };

/** Prices on one machine for one set of transports. ns_per_byte of: putting into a channel, taking out, copying, reducing,
 *  touching memory of a peer. */
struct hkt__prices {
    double latency_ns;                    /* one message, one way, receiver waiting */
    double message_ns;                    /* one message: time of the core, at either end */
    double send[HKT__LEVEL_COUNT], receive[HKT__LEVEL_COUNT];
    double copy[HKT__LEVEL_COUNT], reduce[HKT__LEVEL_COUNT], direct[HKT__LEVEL_COUNT];
    double access_ns;                     /* memory of a peer: each access misses the caches once */
    double far_access_ns, far[HKT__LEVEL_COUNT]; /* the same by system call: each access, each byte */
    double crowd;                         /* ranks per core, at least 1 */
    double l2_bytes, llc_bytes;           /* one core's, and its share of the last level */
};

/** Defaults for a transport that moves a frame in latency_ns and a byte in ns_per_byte; memory or network. */
void hkt__prices_init(struct hkt__prices *prices, double latency_ns, double ns_per_byte, bool is_memory, double crowd);

struct hkt__model_args {
    size_t bytes;                         /* n */
    size_t slice_bytes;
    bool pipelined;
    bool far;                             /* memory of peers is reached by system calls */
};
double hkt__model_ns(const struct hkt__work *work, const struct hkt__prices *prices, const struct hkt__model_args *args);

#endif
