/* What makes memory of devices that all ranks map, whoever allocated it: the exchanges, and the row of such a pool in the table
 * that kernels read. far_memory.c allocates, far_register.c takes what the user has allocated. */
#ifndef HOCKET_COMM_FAR_POOLS_H
#define HOCKET_COMM_FAR_POOLS_H

#include "comm/far.h"
#include "device/cuda_registered.h"
#include "transport/fdpass.h"

/** What a rank says after each step. */
struct hkt__pool_note {
    int32_t status, can_share, is_open;                   /* open: whether networks read memory of devices */
    uint64_t bytes, mapped, serial;
    char text[320];
    struct hkt__cuda_offer offer;                         /* of memory that is allocated here; */
    struct hkt__cuda_buffer_offer buffer;                 /* of the user's, */
    unsigned char name[HKT__FDPASS_NAME_BYTES], key[16];  /* and who gives out its descriptor */
};

/** A pool in the making, or about to end. */
struct hkt__pool_making {
    struct hkt_comm *comm;
    const char *what;          /* the call, for errors */
    struct hkt__far_memory *memory;
    struct hkt__pool_note own, *all;
    int failed;                /* the first rank that could not go on; -1: none */
    bool is_mapped;            /* some rank may have mapped memory of another one */
    bool is_open;              /* on any rank */
};

/** Gives m->all, to be freed. */
HKT_NODISCARD enum hkt_status hkt__pool_begin(struct hkt__pool_making *m, struct hkt_comm *comm, const char *what);
/** A step is done, here: hears how the others got on. Fails as the all-gather does. */
HKT_NODISCARD enum hkt_status hkt__pool_tell(struct hkt__pool_making *m, enum hkt_status status);
/** What all ranks return when one could not go on. */
enum hkt_status hkt__pool_failure(const struct hkt__pool_making *m);
/** The pool that the next memory gets, on all ranks; HKT__PLAN_POOLS: there are no more. */
int hkt__pool_next(const struct hkt_comm *comm);
/** Tells kernels where the parts of the next pool are, on a stream of the communicator's device. */
HKT_NODISCARD enum hkt_status hkt__pool_fill(struct hkt__far *far, void *const *parts, void *stream);
/** From now on calls find it. */
void hkt__pool_list(struct hkt__far *far, struct hkt__far_memory *memory);

#endif
