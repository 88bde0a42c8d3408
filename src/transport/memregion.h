/* The shape of a domain's region (see memdom.h), and its life from allocation to limbo to the arena again. */
#ifndef HOCKET_TRANSPORT_MEMREGION_H
#define HOCKET_TRANSPORT_MEMREGION_H

#include "transport/bell.h"
#include "transport/memdom.h"
#include "transport/memring.h"

/** How a region is cut; travels in the domain's blob. */
struct hkt__mem_shape {
    uint32_t magic;
    uint32_t comm_id;
    uint32_t nrows;        /* members that may use the region, the owner included */
    uint32_t lanes;
    uint32_t nslots;
    uint32_t pad;
    uint64_t slot_bytes;
    uint64_t window_bytes;
    uint64_t offset;       /* of the region in its arena */
};

/** One member in the table at the head of a region. */
struct hkt__mem_row {
    int32_t rank;          /* in the communicator; rows are sorted by it; written by the owner before the blob is sent */
    _Atomic uint32_t left; /* written by that member: 1 when it will not touch the region any more */
};

/** The head of a region, in shared memory. */
struct hkt__mem_head {
    struct hkt__bell bell;
    struct hkt__mem_row rows[];
};

/** The owner's private half. */
struct hkt__mem_region {
    struct hkt__block block;
    struct hkt__mem_shape shape;
    struct hkt__mem_head *head;
    struct hkt__mem_region *next;  /* in limbo */
    struct {
        pid_t pid;
        bool is_awaited;           /* may still touch the region */
    } users[];                     /* [shape.nrows] */
};

/** Reserve and label a region for those members whose arenas are known. Gives *out_region. */
HKT_NODISCARD enum hkt_status hkt__mem_region_create(struct hkt__mem_tp *tp, const struct hkt__tp_members *members,
                                                     struct hkt__mem_region **out_region);
/** Takes the region: frees it now or, while a peer may still touch it, later. */
void hkt__mem_region_retire(struct hkt__mem_tp *tp, struct hkt__mem_region *region);
/** Free what nobody touches any more. */
void hkt__mem_limbo_reap(struct hkt__mem_tp *tp);

/** Is this the shape of a region within an arena of arena_bytes? For what a peer has sent. */
bool hkt__mem_shape_is_valid(const struct hkt__mem_shape *shape, size_t arena_bytes);
/** Row of a member: index, or -1. */
int hkt__mem_row_find(const struct hkt__mem_head *head, uint32_t nrows, int rank);
/** The ring that the member in `row` writes on `lane`, in the region at `base`. */
struct hkt__ring_mem hkt__mem_ring_at(unsigned char *base, const struct hkt__mem_shape *shape, uint32_t row, uint32_t lane);
/** The window of the region at `base`; NULL if it has none. */
void *hkt__mem_window_at(unsigned char *base, const struct hkt__mem_shape *shape);
/** Bytes of the region's head: bell and rows. */
size_t hkt__mem_head_bytes(uint32_t nrows);

#endif
