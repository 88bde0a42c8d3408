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

/* X(ID, name, default, help). Defaults: fitted by `hocket tune` on a 2-core virtual Xeon (2 MiB second-level cache, shared
 * last level) for 2 and 4 ranks, 2026-11; ratios carry over to other machines better than the figures. */
#define HKT__PRICES_TABLE(X)                                                                                           \
    X(CALL, "call_ns", 150, "a call, whatever it does")                                                               \
    X(ROUND, "round_ns", 160, "a message on its way, its receiver waiting")                                            \
    X(MESSAGE, "message_ns", 40, "a message, at either end: time of the core")                                         \
    X(STEP, "step_ns", 30, "a local step")                                                                            \
    X(SWITCH, "switch_ns", 2000, "a rank gives its core to another one")                                              \
    X(ACCESS, "access_ns", 100, "an operand in memory of a peer: the caches miss once")                                \
    X(FAR_ACCESS, "far_access_ns", 2500, "the same by a system call")                                                  \
    HKT__LEVELS(X, SEND, "send", 0.03, 0.04, 0.06, "put into a channel")                                               \
    HKT__LEVELS(X, RECEIVE, "receive", 0.035, 0.045, 0.07, "taken out of a channel")                                   \
    HKT__LEVELS(X, COPY, "copy", 0.015, 0.03, 0.07, "copied within a rank")                                            \
    HKT__LEVELS(X, REDUCE, "reduce", 0.02, 0.035, 0.05, "an input of a reduction beyond the first")                    \
    HKT__LEVELS(X, DIRECT, "direct", 0.03, 0.04, 0.06, "read or written in memory of a peer")                          \
    HKT__LEVELS(X, FAR, "far", 0.08, 0.1, 0.2, "the same by a system call")

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
