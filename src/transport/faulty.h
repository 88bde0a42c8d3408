/* What HOCKET_FAULTS says, parsed. For faulty.c and its tests. */
#ifndef HOCKET_TRANSPORT_FAULTY_H
#define HOCKET_TRANSPORT_FAULTY_H

#include <stdint.h>

#include "hocket/status.h"

struct hkt__faults {
    uint64_t seed;                                  /* seed=N: same seed, same faults */
    double drop, dup, corrupt;                      /* probability per frame; a receiver must notice */
    double delay, short_room;                       /* delay=P, short=P: a sender and a receiver must not notice */
    double lend;                                    /* lend=P: so often memory that may be lent is, and read late */
    uint64_t kill;                                  /* kill=N: SIGKILL to itself at the N-th frame sent; 0: never */
};

/** Parse "seed=7,drop=0.01,kill=1000". INVALID names the item that is wrong and what is allowed. */
HKT_NODISCARD enum hkt_status hkt__faults_parse(const char *text, struct hkt__faults *out_faults);

#endif
