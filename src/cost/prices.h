/* ONE table of what a machine charges: the rows of the cost model, of the table that `hocket tune` writes, and of the
 * public list (hocket/tune.h). Everything predicted is a sum of amounts times these prices, so measuring them is a linear
 * fit. */
#ifndef HOCKET_COST_PRICES_H
#define HOCKET_COST_PRICES_H

/* Where bytes lie decides what they cost: in one core's second-level cache, in the last level, in memory. */
#define HKT__LEVELS(X, ID, name, l2, llc, memory, help)                                                                \
    X(ID##_L2, name "_l2_ns_per_byte", l2, help ": in a second-level cache")                                           \
    X(ID##_LLC, name "_llc_ns_per_byte", llc, help ": in the last-level cache")                                        \
    X(ID##_MEMORY, name "_memory_ns_per_byte", memory, help ": in memory")

/* Between hosts. Defaults: bytes as on the loopback (model.c), over a link of 10 Gbit/s. 8 bytes take 14 us to arrive. 3.7 of them
 * are system calls at either end: two ranks in network namespaces, each with a core of its own and no wire between them, need 7.5
 * for an exchange. Interrupt and wakeup are time of a core as well, and other messages wait for them: 5.5 tells best what 2 and 4
 * hosts of 2 and 4 ranks do fastest (2026-11). */
#define HKT__NET_TABLE(X)                                                                                              \
    X(NET_ROUND, "net_round_ns", 3200, "a message on its way to another host, its receiver waiting")                   \
    X(NET_MESSAGE, "net_message_ns", 5500, "a message between hosts, at either end: time of the core")                 \
    X(NET_WIRE, "net_wire_ns_per_byte", 0.8, "on the link of a host, which its ranks share")                           \
    HKT__LEVELS(X, NET_SEND, "net_send", 0.15, 0.23, 0.23, "sent to another host: time of the core")                   \
    HKT__LEVELS(X, NET_RECEIVE, "net_receive", 0.13, 0.18, 0.18, "received from another host: time of the core")

/* X(ID, name, default, help). Defaults: fitted by `hocket tune` on a 2-core virtual Xeon (2 MiB second-level cache, shared
 * last level) for 2 and 4 ranks, 2026-11; ratios carry over to other machines better than the figures. */
#define HKT__PRICES_TABLE(X)                                                                                           \
    X(CALL, "call_ns", 37, "a call, whatever it does")                                                                 \
    X(ROUND, "round_ns", 148, "a message on its way, its receiver waiting")                                            \
    X(MESSAGE, "message_ns", 40, "a message, at either end: time of the core")                                         \
    X(PAYLOAD, "payload_ns", 500, "a message too large for its header's line, at either end")                          \
    X(STEP, "step_ns", 29, "a local step")                                                                             \
    X(SWITCH, "switch_ns", 450, "a rank gives its core to another one")                                                \
    X(SHARED_CALL, "shared_call_ns", 24, "a call that touches memory of peers: all tell when they are done with it")   \
    X(ACCESS, "access_ns", 130, "an operand in memory of a peer: the caches miss once")                                \
    X(FAR_ACCESS, "far_access_ns", 780, "an operand reached by a system call")                                         \
    HKT__LEVELS(X, SEND, "send", 0.049, 0.052, 0.07, "put into a channel")                                             \
    HKT__LEVELS(X, RECEIVE, "receive", 0.052, 0.086, 0.16, "taken out of a channel")                                   \
    HKT__LEVELS(X, COPY, "copy", 0.019, 0.045, 0.08, "copied within a rank")                                           \
    HKT__LEVELS(X, REDUCE, "reduce", 0.0069, 0.015, 0.03, "an input of a reduction beyond the first")                  \
    HKT__LEVELS(X, FRESH, "fresh", 0.054, 0.063, 0.085, "written for peers to read, or read so")                       \
    HKT__LEVELS(X, DIRECT, "direct", 0.017, 0.036, 0.06, "else read or written in memory of a peer")                   \
    HKT__LEVELS(X, FAR, "far", 0.073, 0.12, 0.25, "read from a peer by a system call")                                 \
    HKT__LEVELS(X, FAR_WRITE, "far_write", 0.075, 0.14, 0.25, "written to a peer by a system call")                    \
    HKT__NET_TABLE(X)

enum hkt__price {
#define HKT__PRICE_ENUM(ID, name, fallback, help) HKT__PRICE_##ID,
    HKT__PRICES_TABLE(HKT__PRICE_ENUM)
#undef HKT__PRICE_ENUM
    HKT__PRICE_COUNT
};

struct hkt__price_info {
    const char *name, *help;
};
extern const struct hkt__price_info hkt__price_infos[HKT__PRICE_COUNT];

#endif
