/* Communicators: how ranks find each other, and how they part.
 *
 * Dangers first:
 *  - A communicator is used by one thread at a time; different communicators may be used by different threads.
 *  - All ranks make the same calls in the same order. hocket detects a mismatch and fails the communicator on all
 *    ranks; it does not try to go on.
 *  - After a failure (a status < 0 other than HKT_ERR_INVALID, HKT_ERR_UNSUPPORTED) the communicator is dead: the call
 *    in flight, or the next one, returns the first cause, every later call HKT_ERR_FAILED; hkt_comm_last_error keeps
 *    saying what happened first. Destroy it.
 *  - A process that forks must not use a communicator of the parent in the child. */
#ifndef HOCKET_COMM_H
#define HOCKET_COMM_H

#include <stdio.h>

#include "hocket/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hkt_comm;
struct hkt_topo;

/** Opaque token that names a job: the address of its root and the secret its ranks prove they hold. */
struct hkt_unique_id {
    unsigned char bytes[128];
};

/** Per-communicator settings. Start from HKT_CONFIG_INIT; a field left at its zero takes the environment's value,
 *  else the default. A set field wins over the environment. Strings are borrowed during the call only. */
struct hkt_config {
    size_t struct_bytes;     /* sizeof(struct hkt_config), so that old callers keep working */
    int64_t timeout_ms;      /* deadline of every wait; 0: HOCKET_TIMEOUT (default 600000) */
    const char *transport;   /* "shm,tcp" allows just these, "^tcp" all but these; NULL: HOCKET_TRANSPORT */
    const char *algo;        /* "all_reduce=ring" forces, "all_reduce=^ring" forbids; commas between; NULL: HOCKET_ALGO */
    const char *name;        /* label in errors, logs and dumps; NULL: "comm<id>" */
    size_t slice_bytes;      /* pipeline unit; 0: HOCKET_SLICE_BYTES, else what should be fastest */
    int lanes;               /* channels to replicate plans over; 0: HOCKET_LANES, else what should be fastest */
    int crc;                 /* 1: CRC32C on every frame, -1: off; 0: HOCKET_CRC */
};
#define HKT_CONFIG_INIT { sizeof(struct hkt_config), 0, NULL, NULL, NULL, 0, 0, 0 }

/** Make a new unique id and open its rendezvous port on this host. Call it in the process that will be rank 0 (in any of
 *  its threads, or before it forks rank 0), then ship the bytes to all ranks; whoever holds them can join.
 *  Errors   SYSTEM: no usable interface or port; INVALID: HOCKET_ADDRESS names no local address */
HKT_API HKT_NODISCARD enum hkt_status hkt_get_unique_id(struct hkt_unique_id *out_id);

/** Join as `rank` of `nranks`; returns when all have joined.
 *  Owns     gives *out_comm, released by hkt_comm_destroy or hkt_comm_abort
 *  Threads  collective over the ranks; ranks may be threads, processes or hosts in any mix
 *  Errors   INVALID, TIMEOUT (names the ranks that are missing), AUTH, SYSTEM, NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_init_rank(struct hkt_comm **out_comm, int nranks,
                                                         const struct hkt_unique_id *id, int rank,
                                                         const struct hkt_config *config);

/** As hkt_comm_init_rank, with rank, size and address from the environment of `hocket run`, torchrun, mpirun
 *  (Open MPI, MPICH/PMI) or srun, found in this order. A process started by none of them is rank 0 of 1.
 *  Errors   INVALID names the variable that is missing or wrong */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_init_env(struct hkt_comm **out_comm, const struct hkt_config *config);

/** One communicator per thread of this process: fills out_comms[nranks], rank i at index i. */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_init_all(struct hkt_comm **out_comms, int nranks,
                                                        const struct hkt_config *config);

/** Split by color; ranks of one color form a communicator, ordered by (key, old rank). color < 0: takes part, gets
 *  NULL. Collective over the parent; operations outstanding on the parent are finished first. */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_split(struct hkt_comm *comm, int color, int key,
                                                     const struct hkt_config *config, struct hkt_comm **out_comm);

/** Finish outstanding operations, then free. Does not wait for peers. NULL is allowed; the communicator may have
 *  failed. Returns the first failure of an outstanding operation, else INVALID where buffers of devices are still registered. */
HKT_API enum hkt_status hkt_comm_destroy(struct hkt_comm *comm);

/** Fail the communicator on all ranks, now, and free it. Never waits for a peer. May be called from any thread only
 *  as the last call on the communicator. NULL is allowed. */
HKT_API void hkt_comm_abort(struct hkt_comm *comm);

/** As hkt_comm_abort, without freeing: any thread, at any time; operations in flight return HKT_ERR_ABORTED. */
HKT_API void hkt_comm_revoke(struct hkt_comm *comm);

/** What follows takes NULL too: rank -1 of 0, INVALID, no text, no transport, counters 0. */
HKT_API int hkt_comm_rank(const struct hkt_comm *comm);
HKT_API int hkt_comm_size(const struct hkt_comm *comm);
/** HKT_OK, or the status of the first failure. Any thread. */
HKT_API enum hkt_status hkt_comm_status(const struct hkt_comm *comm);
/** Text of the first failure, "" if none: rank, operation, peer, transport, mend. Valid while comm lives. */
HKT_API const char *hkt_comm_last_error(const struct hkt_comm *comm);
/** Name of the transport that reaches `peer` ("self", "thread", "shm", "tcp"); NULL if there is no such rank. */
HKT_API const char *hkt_comm_transport(const struct hkt_comm *comm, int peer);

/** The machines of all ranks as one graph: each reads what it may use of its host (hkt_topo_detect), and all merge what they
 *  read. The same on all ranks, parts that only some may use included.
 *  Shapes   out_nodes[nranks]: the innermost part that holds all CPUs of rank r when it joined; 0, the root, where its
 *           host could not be read. NULL: not wanted. It serves hkt_topo_order_create
 *  Owns     gives *out_topo, released by hkt_topo_destroy
 *  Threads  collective over the ranks
 *  Errors   those of hkt_all_gather; INVALID inside a group; NOMEM fails the communicator */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_topo(struct hkt_comm *comm, struct hkt_topo **out_topo, int *out_nodes);

/** Write the flight recorder (the last operations with state and times), how memory of devices is sent where that was settled, and
 *  in which operation every rank is, as text, or as JSON when json != 0. The other ranks are asked, and their answers awaited for 300 ms at most; after a failure what
 *  they said before it is written. Any thread. */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_dump(const struct hkt_comm *comm, FILE *file, int json);

/** Counters since creation; all monotonic. */
struct hkt_comm_stats {
    uint64_t ops;            /* operations finished */
    uint64_t bytes_sent;     /* payload handed to transports, headers not counted */
    uint64_t bytes_received;
    uint64_t bytes_direct;   /* payload read from or written to memory of peers by direct steps */
    uint64_t plans_built;    /* plan cache misses */
    uint64_t yields, parks;  /* how waits were spent */
};
HKT_API void hkt_comm_get_stats(const struct hkt_comm *comm, struct hkt_comm_stats *out_stats);

#ifdef __cplusplus
}
#endif
#endif
