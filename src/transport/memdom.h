/* Domains and channels over memory that peers share: all of the thread and shm transports but the finding of arenas.
 *
 * A domain is one block of the own arena (its region): a doorbell, a table of the members that may use it, a ring per
 * member and lane that the member writes and this rank reads, and the window. The blob peers get says where the block is
 * and how it is cut; a peer finds its own row in the table by searching.
 *
 * When may a region be used again? A peer may still touch it after this rank has closed its domain: ring the bell, read
 *  a count or the window, and, when an operation has failed on one side only, even write frames. So a region is given
 *  back to the arena only when every peer that uses it has stored `left` in its row - the last thing a peer does to
 *  it - or that peer's process is gone. Until then it waits in limbo; opening and closing other domains looks again. What a
 *  dead or silent peer can cost is address space and the pages once touched, until the instance is closed. */
#ifndef HOCKET_TRANSPORT_MEMDOM_H
#define HOCKET_TRANSPORT_MEMDOM_H

#include <pthread.h>
#include <sys/types.h>

#include "transport/arena.h"
#include "transport/transport.h"

struct hkt__mem_region;
struct hkt__mem_user;

/** A rank of the job whose arena this process can address. */
struct hkt__mem_peer {
    struct hkt__arena *arena; /* NULL: not reachable; one reference */
    pid_t pid;                /* as this process would signal it; 0: unknown */
    bool can_copy;            /* process_vm_readv and writev reach all its memory: tried, not assumed */
};

/** What both instances have in common; embedded first. Written by open and reach, afterwards only read, but for limbo. */
struct hkt__mem_tp {
    struct hkt__tp base;
    struct hkt__arena *arena;
    int job_rank, job_nranks;
    struct hkt__mem_peer *peers;       /* [job rank]; the own rank included */
    uint32_t nslots;
    size_t slot_bytes;
    pthread_mutex_t lock;              /* guards limbo and users */
    struct hkt__mem_region *limbo;
    struct hkt__mem_user *users;       /* blocks of the arena that the user holds: memuser.c */
};

/** Create the arena and the table of peers. hkt__mem_tp_fini accepts an object that init failed on. */
HKT_NODISCARD enum hkt_status hkt__mem_tp_init(struct hkt__mem_tp *tp, const struct hkt__tp_params *params,
                                               const char *name);
void hkt__mem_tp_fini(struct hkt__mem_tp *tp);

/** The instance a domain belongs to. */
struct hkt__mem_tp *hkt__mem_dom_instance(struct hkt__tp_dom *dom);

/** Domain operations, for the tables of thread.c and shm.c. */
enum hkt_status hkt__mem_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members, struct hkt__tp_dom **out_dom,
                                  void *out_blob, size_t *out_bytes);
enum hkt_status hkt__mem_dom_connect(struct hkt__tp_dom *dom, const unsigned char *blobs, const size_t *bytes,
                                     const unsigned char *use);
void hkt__mem_dom_close(struct hkt__tp_dom *dom);
enum hkt_status hkt__mem_chan_open(struct hkt__tp_dom *dom, int peer, int lane, struct hkt__chan **out_tx,
                                   struct hkt__chan **out_rx);
void *hkt__mem_window(struct hkt__tp_dom *dom, int peer);
void hkt__mem_park(struct hkt__tp_dom *dom, int64_t timeout_ns);
void hkt__mem_wake(struct hkt__tp_dom *dom);

/** Job rank of a member, for memuser.c. */
int hkt__mem_dom_job_rank(const struct hkt__tp_dom *dom, int peer);

/* memuser.c: memory for users in the arena, and copies to and from memory elsewhere. */
enum hkt_status hkt__mem_user_alloc(struct hkt__tp *tp, size_t bytes, void **out_memory);
void hkt__mem_user_free(struct hkt__tp *tp, void *memory);
void hkt__mem_user_fini(struct hkt__mem_tp *tp);
bool hkt__mem_user_locate(struct hkt__tp *tp, const void *data, size_t bytes, uint64_t *out_offset);
void *hkt__mem_peer_base(struct hkt__tp_dom *dom, int peer);
bool hkt__mem_peer_copies(const struct hkt__tp *tp, int job_rank);
enum hkt_status hkt__mem_peer_read(struct hkt__tp_dom *dom, int peer, void *to, uint64_t from, size_t bytes);
enum hkt_status hkt__mem_peer_write(struct hkt__tp_dom *dom, int peer, uint64_t to, const void *from, size_t bytes);
/** Read a word of a peer whose value is known: may this process copy from it? */
bool hkt__mem_try_copy(pid_t pid, uint64_t address, uint64_t expected);

#endif
