/* An arena: one rank's memory that peers on its host can address.
 *
 * It is a sealed memfd, mapped shared and sparse: address space is reserved at once, pages exist once touched. The file
 * has no name anywhere, so nothing is left when its processes are gone, however they went; and it is not limited by the
 * size of /dev/shm. The rank that created it hands out blocks of it (first fit; a control-plane matter, under a mutex).
 * A block is all zero when it is given.
 *
 * Within one process arenas are found by id and counted, so that a rank that is a thread can use a peer's arena where it
 * lies, and the mapping outlives whichever of the two leaves first. */
#ifndef HOCKET_TRANSPORT_ARENA_H
#define HOCKET_TRANSPORT_ARENA_H

#include <pthread.h>

#include "hocket/status.h"

#define HKT__ARENA_ID_BYTES 16
#define HKT__ARENA_ALIGN ((size_t)4096)
#define HKT__ARENA_HUGE ((size_t)2 << 20) /* a huge page: blocks of this size and more begin on such a boundary */

/** Part of an arena; the caller keeps this object until it gives the block back. */
struct hkt__block {
    size_t offset, bytes;
    struct hkt__block *next; /* by offset; under the arena's lock */
};

struct hkt__arena {
    unsigned char *base;
    size_t bytes;
    int fd;                                /* -1 in a mapping of a peer's arena */
    unsigned char id[HKT__ARENA_ID_BYTES]; /* random; zero in a mapping of a peer's arena */
    int refs;                              /* under the registry's lock */
    struct hkt__arena *next;               /* likewise */
    pthread_mutex_t lock;                  /* guards blocks */
    struct hkt__block *blocks;             /* those given out, by offset */
};

/** A new arena of `bytes` bytes of address space. Gives *out_arena, released by hkt__arena_drop. */
HKT_NODISCARD enum hkt_status hkt__arena_create(size_t bytes, struct hkt__arena **out_arena);

/** Map an arena of another process. Borrows fd (the mapping needs it no more afterwards); refuses a file that is smaller
 *  than `bytes` or could still shrink, since touching it could then kill us. Gives *out_arena. */
HKT_NODISCARD enum hkt_status hkt__arena_map(int fd, size_t bytes, struct hkt__arena **out_arena);

/** The arena of this process that has this id, with one reference more; NULL when there is none. */
struct hkt__arena *hkt__arena_find(const unsigned char *id);

/** Give back a reference; the last one unmaps. NULL is allowed. */
void hkt__arena_drop(struct hkt__arena *arena);

/** A zeroed block of the own arena, page aligned. NOMEM, with the mend, when no gap is large enough. */
HKT_NODISCARD enum hkt_status hkt__arena_alloc(struct hkt__arena *arena, size_t bytes, struct hkt__block *out_block);

/** Give a block back, its pages to the system. Nobody may touch it any more, in any process. */
void hkt__arena_free(struct hkt__arena *arena, struct hkt__block *block);

/** Bytes of address space given out. */
size_t hkt__arena_used(struct hkt__arena *arena);

#endif
