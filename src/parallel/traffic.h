/* Collectives of a model's blocks, counted: each call is tagged with the kind of parallelism it serves and the bytes of the
 * vector it works on, so that what was sent can be compared with the formulas of hocket/formulas.h.
 *
 * A link is one group of ranks as seen by one of them. Over a single rank every call is the identity, and counts nothing.
 * Invariant: bytes[axis][coll] is the sum over calls of count * element size, where count is that of the whole vector (all
 * blocks of a gather or scatter), or of what this rank sends (all-to-all, point-to-point). */
#ifndef HOCKET_PARALLEL_TRAFFIC_H
#define HOCKET_PARALLEL_TRAFFIC_H

#include <stdint.h>

#include "hocket/coll.h"
#include "parallel/timeline.h"

struct hkt__traffic {
    uint64_t calls[HKT__TRAFFIC_COUNT][HKT_COLL_COUNT];
    uint64_t bytes[HKT__TRAFFIC_COUNT][HKT_COLL_COUNT];
    struct hkt__timeline *timeline; /* borrowed; told of every call; NULL: none */
};

/** A group of ranks and this rank's place in it. comm may be NULL when size is 1. */
struct hkt__link {
    struct hkt_comm *comm;
    struct hkt_stream *stream; /* NULL: calls block */
    struct hkt__traffic *traffic;
    enum hkt__traffic_axis axis;
    int size, rank;
};

/** Around calls that communicate, alone or in a group: they are exposed, or a stream's. The calls below do so themselves, but for
 *  link_send and link_recv, which are parts of groups. begin gives what end wants. */
int64_t hkt__link_begin(const struct hkt__link *link);
void hkt__link_end(const struct hkt__link *link, int64_t begin_ns, const char *name, int64_t bytes);

/** In place over count elements. Errors, here and below: those of the collective, quoted. */
HKT_NODISCARD enum hkt_status hkt__link_all_reduce(const struct hkt__link *link, void *data, int64_t count,
                                                   enum hkt_dtype dtype, enum hkt_op op);
/** to[size * count] from from[count] of each; over one rank a copy, unless they are the same memory. */
HKT_NODISCARD enum hkt_status hkt__link_all_gather(const struct hkt__link *link, const void *from, void *to,
                                                   int64_t count, enum hkt_dtype dtype);
/** to[count] is this rank's block of the sum of from[size * count]. */
HKT_NODISCARD enum hkt_status hkt__link_reduce_scatter(const struct hkt__link *link, const void *from, void *to,
                                                       int64_t count, enum hkt_dtype dtype);
/** As hkt_all_to_all_v; over one rank a copy. */
HKT_NODISCARD enum hkt_status hkt__link_all_to_all_v(const struct hkt__link *link, const void *from, void *to,
                                                     const struct hkt_blocks *blocks, enum hkt_dtype dtype);
/** What rank i contributes to a gather of blocks of different sizes: counts[i] elements, packed. */
HKT_NODISCARD enum hkt_status hkt__link_all_gather_v(const struct hkt__link *link, const void *from, void *to,
                                                     const size_t *counts, enum hkt_dtype dtype);
HKT_NODISCARD enum hkt_status hkt__link_send(const struct hkt__link *link, const void *data, int64_t count,
                                             enum hkt_dtype dtype, int peer);
HKT_NODISCARD enum hkt_status hkt__link_recv(const struct hkt__link *link, void *data, int64_t count,
                                             enum hkt_dtype dtype, int peer);

/** Bytes that ranks send for all calls counted of one kind, by the bandwidth-optimal formulas of hocket/formulas.h. */
double hkt__traffic_wire(const struct hkt__traffic *traffic, enum hkt__traffic_axis axis, int size);
#endif
