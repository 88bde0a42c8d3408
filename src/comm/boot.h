/* Bootstrap and control plane: how the ranks of a job find each other, and how they learn that one has gone.
 *
 * Meeting.  Rank 0 (the root) listens at a known address. Every other rank opens a listener of its own, proves to the
 *   root that it holds the job's token (challenge and SipHash-2-4 response: the token never travels), registers, and is
 *   told its place: a binary tree over ranks, O(log p) deep, whose links stay open. All-gathers run up and down it.
 *   Garbage, slow and half-open clients cost the root one file descriptor until their own short deadline; they never
 *   stall the meeting. What fails on one rank fails it for all, with the first cause; a rank that fails in the very
 *   last step, while the root's "go" travels, is noticed by its neighbours as a death.
 * Control.  Afterwards one monitor thread per job sleeps on the tree's links. An abort is flooded over them; a link
 *   that closes without a farewell means its rank died, which is flooded likewise. So are the notes of ranks that wait
 *   for long, by which they find out who is where. Handlers run in the monitor thread. */
#ifndef HOCKET_COMM_BOOT_H
#define HOCKET_COMM_BOOT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "hocket/comm.h"
#include "transport/transport.h"

struct hkt__boot;

#define HKT__TOKEN_BYTES 16

/** What a unique id holds, and what the environment yields. */
struct hkt__boot_id {
    char host[64];                 /* numeric address or host name of the root */
    uint16_t port;
    unsigned char token[HKT__TOKEN_BYTES];
};

/** Pack and unpack the public unique id (magic, version, checksum); INVALID says what is wrong with the bytes. */
void hkt__boot_id_pack(const struct hkt__boot_id *id, struct hkt_unique_id *out_id);
HKT_NODISCARD enum hkt_status hkt__boot_id_unpack(const struct hkt_unique_id *id, struct hkt__boot_id *out_id);

/** Open a rendezvous listener for a new id in this process (hkt_get_unique_id); rank 0's hkt__boot_meet in the same
 *  process takes it over. If rank 0 lives in another process, it binds the port itself: see hkt__boot_meet. A listener
 *  never taken over closes when the process ends. */
HKT_NODISCARD enum hkt_status hkt__boot_id_create(struct hkt__boot_id *out_id);
/** Close the listener of an id made in this process that no meeting will take over. */
void hkt__boot_id_drop(const struct hkt__boot_id *id);

struct hkt__boot_env {
    int rank, nranks;              /* -1 rank: environment says nothing, single process */
    int local_rank, local_nranks;  /* -1 when unknown */
    struct hkt__boot_id id;
    const char *launcher;          /* "hocket run", "torchrun", "Open MPI", "PMI", "Slurm", "none" */
};
/** Find rank, size, address and token in the environment. getenv_fn is getenv in production, a table in tests.
 *  Launcher: the first whose rank and size are both set: HOCKET_RANK/HOCKET_SIZE as set by `hocket run`; RANK/
 *    WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK/SIZE; PMI_RANK/PMI_SIZE (MPICH, srun --mpi=pmi2); SLURM_PROCID with
 *    SLURM_STEP_NUM_TASKS or SLURM_NTASKS, within a step.
 *  Address: the first that is set: HOCKET_ROOT=host:port; MASTER_ADDR and MASTER_PORT (torchrun's own store listens on
 *    that port, so under it the port is derived from them). Else, under mpirun and srun, the loopback for a job on one
 *    host, or Slurm's first host, with a port in 20000..32000 derived from the job's id.
 *  Token: from HOCKET_TOKEN, else from the job's id: that keeps jobs apart, but is no secret.
 *  INVALID names the variable. */
HKT_NODISCARD enum hkt_status hkt__boot_env_find(char *(*getenv_fn)(const char *), struct hkt__boot_env *out_env);

/** Meet: collective over nranks; returns when the tree stands. On timeout the error names the missing ranks (root) or
 *  what was waited for (others). */
HKT_NODISCARD enum hkt_status hkt__boot_meet(const struct hkt__boot_id *id, int nranks, int rank, int64_t timeout_ms,
                                             struct hkt__boot **out_boot);

/** A rank that has failed before it could meet tells the others, so that they do not wait for it: for a second at most, it
 *  answers whoever comes (rank 0), or tries to reach the root. With this thread's error, which it leaves as it is. Needs no memory
 *  of its own; the root some for each who comes. */
void hkt__boot_give_up(const struct hkt__boot_id *id, int nranks, int rank);

/** bytes from each rank, in rank order, to all: out has nranks * bytes. Collective; only before the monitor starts. */
HKT_NODISCARD enum hkt_status hkt__boot_all_gather(struct hkt__boot *boot, const void *in, size_t bytes, void *out);

/** bytes from rank 0 to all, in place. Collective, likewise. */
HKT_NODISCARD enum hkt_status hkt__boot_broadcast(struct hkt__boot *boot, void *data, size_t bytes);

/** Numeric address of this host as peers saw or may use it (the local address of the link to the root). */
const char *hkt__boot_local_address(const struct hkt__boot *boot);

/** A failure that travels: which communicator (0: the whole job), who reports, who is to blame (-1: nobody). */
struct hkt__boot_event {
    uint32_t comm_id;
    int32_t reporter, culprit;     /* job ranks */
    int32_t status;                /* enum hkt_status */
    int32_t sys_errno;
    char text[HKT__ERROR_TEXT_MAX];
};
/** Called once per distinct event, in the monitor thread, perhaps before hkt__boot_monitor_start has returned; must not
 *  block, may tell. Events are the same when comm_id, reporter, culprit and status are. */
typedef void hkt__boot_handler(void *arg, const struct hkt__boot_event *event);

/** What a rank says of itself while ranks wait. Lost ones do no harm: they are said again. */
enum hkt__note_kind {
    HKT__NOTE_WAITS = 1,           /* it waits in this call */
    HKT__NOTE_ASKS,                /* it wants answers; the stamp is zero, so that all such questions are equal */
    HKT__NOTE_ANSWERS,             /* its newest call */
    HKT__NOTE_KIND_COUNT
};
struct hkt__boot_note {
    enum hkt__note_kind kind;
    uint32_t comm_id;
    int32_t rank;                  /* who says so, in the job */
    bool is_running;               /* the call has not ended */
    struct hkt__stamp stamp;       /* of the call; op_seq 0: none yet. Its crc does not travel */
};
/** In the monitor thread; must not block, may tell and note. */
typedef void hkt__boot_note_handler(void *arg, const struct hkt__boot_note *note);

struct hkt__boot_handlers {
    hkt__boot_handler *on_event;
    hkt__boot_note_handler *on_note; /* NULL: notes are passed on only */
    void *arg;
};

HKT_NODISCARD enum hkt_status hkt__boot_monitor_start(struct hkt__boot *boot, const struct hkt__boot_handlers *handlers);
/** Flood an event to all other ranks; never blocks, any thread. Not delivered to the own handler. Ranks that an earlier
 *  death or farewell cut off the tree are not reached: transports notice their own peers. */
void hkt__boot_tell(struct hkt__boot *boot, const struct hkt__boot_event *event);
#define HKT__BOOT_NOTE_REPEAT_MS 500
/** Flood a note likewise. Notes but answers that say the same, whoever says it, go once in HKT__BOOT_NOTE_REPEAT_MS: however
 *  many ranks wait in a call, each rank hears of it about as often as from one. Never allocates. */
void hkt__boot_note(struct hkt__boot *boot, const struct hkt__boot_note *note);
/** Say farewell, stop the monitor, close the links. NULL is allowed. Does not wait for peers. */
void hkt__boot_destroy(struct hkt__boot *boot);

#endif
