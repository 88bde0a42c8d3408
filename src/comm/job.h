/* A job: one rank's membership in the set of processes that met. Owns the control plane and the transports; the world
 * communicator and all that are split from it share it. */
#ifndef HOCKET_COMM_JOB_H
#define HOCKET_COMM_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/boot.h"
#include "core/settings.h"
#include "topology/order.h"
#include "transport/transport.h"

#define HKT__TRANSPORTS_MAX 8
#define HKT__TP_NONE 255

struct hkt_comm;
struct hkt__tune;
struct hkt__tune_key;

struct hkt__job {
    struct hkt__boot *boot;              /* NULL: a job of one rank */
    const struct hkt__settings *settings;
    int rank, nranks;
    struct hkt__topo_place *places;      /* [nranks]: where each rank runs */
    int host_ranks, cpus;                /* ranks on this host, CPUs that they may use together */
    int cores;                           /* of these, as many as quotas of cgroups let them use (transport/cores.h) */
    bool is_short;                       /* all ranks at once would use more than these quotas */
    int32_t *homes;                      /* [nranks]: the CPU that each keeps to, unbound as it is (exec/seats.h); -1: none */
    int ntransports;
    struct hkt__tp *tps[HKT__TRANSPORTS_MAX]; /* by preference; NULL: not usable here */
    struct hkt__tune *tune;              /* rank 0's measured choices; NULL: none */
    char absent[HKT__TRANSPORTS_MAX][256]; /* why a transport is NULL; "": it is not, or is not allowed */
    unsigned char *usable;               /* [rank * HKT__TRANSPORTS_MAX + t]: both sides of the pair agreed */
    _Atomic int aborted;                 /* transports stop waiting */
    pthread_mutex_t lock;                /* guards what follows; taken by the monitor thread too */
    int references;                      /* communicators alive */
    unsigned comms_led;                  /* communicators in which this rank was the first: makes their ids unique */
    struct hkt_comm *comms;              /* list through comm->listed.next */
    unsigned char *lost;                 /* [nranks]: ranks known to be gone */
};

/** Meet and set up transports; collective. transports: allowed list. Gives *out_job with one reference. */
HKT_NODISCARD enum hkt_status hkt__job_create(const struct hkt__boot_id *id, int nranks, int rank,
                                              const char *transports, struct hkt__job **out_job);
/** What tables of measured choices must say to be valid on this host; transport is left empty. */
void hkt__job_tune_key(const struct hkt__job *job, struct hkt__tune_key *out_key);
/** The same for a job that is only thought of. */
void hkt__tune_key_make(int host_ranks, int cores, struct hkt__tune_key *out_key);
/** Tables of the file that HOCKET_TUNE names, or of the default one if it exists, that are valid for key. NULL: none.
 *  Gives *out_tune, released by hkt__free. */
HKT_NODISCARD enum hkt_status hkt__tune_load(const struct hkt__settings *settings, const struct hkt__tune_key *key,
                                             struct hkt__tune **out_tune);
/** Rank 0 reads its file, if there is one (HOCKET_TUNE), and all get what it says of this machine. Collective, while the
 *  job is made. */
HKT_NODISCARD enum hkt_status hkt__job_share_tune(struct hkt__job *job);
/** Start listening for failures; before the first communicator is handed to the user. */
HKT_NODISCARD enum hkt_status hkt__job_watch(struct hkt__job *job);
/** Put a communicator on the list of those that hear of failures. */
void hkt__job_enter(struct hkt__job *job, struct hkt_comm *comm);
/** Take it off, before it is freed. */
void hkt__job_forget(struct hkt__job *job, struct hkt_comm *comm);
/** References: one per open communicator, and the creator's. The last release ends the job. */
void hkt__job_hold(struct hkt__job *job);
void hkt__job_release(struct hkt__job *job);

/** Why no transport reaches a rank, for errors: each transport's reason, then those that are not allowed. */
void hkt__job_explain_unreachable(const struct hkt__job *job, char *out_text, size_t bytes);

/** All-gather among the members of something; `arg` says of what. */
typedef enum hkt_status hkt__exchange_fn(void *arg, const void *in, size_t bytes, void *out);

#endif
