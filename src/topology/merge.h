/* One graph out of the views of many ranks. A view is packed into a compact blob; every rank merges the same blobs in the
 * same way, so all get the same graph. */
#ifndef HOCKET_TOPOLOGY_MERGE_H
#define HOCKET_TOPOLOGY_MERGE_H

#include <stddef.h>

#include "topology/topo.h"

/** The blob of a graph; *out_blob is the caller's, released with hkt__free. */
HKT_NODISCARD enum hkt_status hkt__topo_pack(const struct hkt_topo *topo, unsigned char **out_blob, size_t *out_bytes);
/** CORRUPT: these bytes are no blob. */
HKT_NODISCARD enum hkt_status hkt__topo_unpack(const unsigned char *blob, size_t bytes, struct hkt_topo **out_topo);

/** views[r], bytes[r] of rank r: the blob of a graph with one host, or nothing (bytes 0: a rank that cannot see its machine).
 *  Hosts with equal ids become one, in the order of their lowest rank; of parts that several ranks of a host see, the view of
 *  the lowest counts. CORRUPT or INVALID name the rank whose view is none. */
HKT_NODISCARD enum hkt_status hkt__topo_merge(const unsigned char *const *views, const size_t *bytes, int nranks,
                                              struct hkt_topo **out_topo);

/** `bytes` from every rank to all, in rank order (the bootstrap's all-gather). */
typedef enum hkt_status hkt__topo_gather_fn(void *arg, const void *in, size_t bytes, void *out);
/** Collective: exchange views and merge them. own may be NULL. All ranks fail together, except for memory. */
HKT_NODISCARD enum hkt_status hkt__topo_exchange(const struct hkt_topo *own, int nranks, hkt__topo_gather_fn *gather,
                                                 void *arg, struct hkt_topo **out_topo);

#endif
