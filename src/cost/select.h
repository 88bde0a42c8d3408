/* The default choice of algorithm: the least of rounds * latency + volume * bytes / bandwidth over the registry rows that
 * serve the case. Every rank computes it from the same inputs, so all choose alike. */
#ifndef HOCKET_COST_SELECT_H
#define HOCKET_COST_SELECT_H

#include "algos/registry.h"

struct hkt__select_args {
    enum hkt_coll coll;
    int nranks;
    bool in_place;
    bool direct_ok;            /* all peers' windows are addressable */
    bool user_ok;              /* so are the buffers of this call, on all ranks */
    bool copy_ok;              /* or the system copies between processes */
    size_t bytes;              /* the collective's whole vector: count, or nranks * count, elements */
    double latency_ns, ns_per_byte;
    size_t slice_bytes;
};

/** Never NULL for a collective of the registry; UNSUPPORTED when no row serves the case (reason recorded). */
HKT_NODISCARD enum hkt_status hkt__select(const struct hkt__select_args *args, const struct hkt__algo **out_algo);

/** Predicted nanoseconds of one row; for explain. */
double hkt__predict_ns(const struct hkt__algo *algo, const struct hkt__select_args *args);

/** "" or why a row does not serve the case. */
const char *hkt__unfit(const struct hkt__algo *algo, const struct hkt__select_args *args);

#endif
