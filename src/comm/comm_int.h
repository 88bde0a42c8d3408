/* The communicator and what hangs on it. Each part has a file of its own: failure.c, recorder.c, plans.c, turn.c. */
#ifndef HOCKET_COMM_COMM_INT_H
#define HOCKET_COMM_COMM_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "algos/registry.h"
#include "comm/job.h"
#include "comm/recorder.h"
#include "cost/select.h"
#include "cost/site.h"
#include "exec/exec.h"
#include "exec/wait.h"
#include "hocket/coll.h"
#include "sched/lower.h"

#define HKT__COLL_LANES 4                    /* lanes that collectives may use, replicas included */
#define HKT__P2P_LANE HKT__COLL_LANES        /* point-to-point has a lane of its own: neither blocks the other */
#define HKT__COMM_LANES (HKT__COLL_LANES + 1)
#define HKT__PLANS_MAX 256                   /* plans kept per communicator; the oldest gives way */
#define HKT__USER_OPS_MAX (HKT_OP_LAST - HKT_OP_USER + 1)

/** First cause of a communicator's failure, kept once. */
struct hkt__failure {
    _Atomic int status;                      /* enum hkt_status; release F1 after error is written, acquire F2 by readers */
    pthread_mutex_t lock;                    /* one writer at a time */
    struct hkt__error error;
    struct hkt__plan_watch *launches;        /* of calls on devices, to be aborted; guarded by lock; NULL: none */
    bool is_told;                            /* a call has returned the first cause; of the thread whose turn it is */
};

/** A cached plan and whether its channels are open. */
struct hkt__cached_plan {
    uint64_t key;                            /* 0: free */
    struct hkt__plan *plan;
    int32_t channels_open;                   /* replicas all of whose links are open */
};

struct hkt__plans {
    struct hkt__cached_plan *table;          /* [HKT__PLANS_MAX], open addressing */
    int count;
    uint64_t built;
    uint32_t generation;                     /* changes when pointers into the table go stale */
};

/** What is known about a kind of call before its buffers are: see prepare.c. */
struct hkt__prepared {
    uint32_t key, generation;
    int32_t root;
    size_t count, bytes;                     /* of the whole vector, as the choice was made for it */
    struct hkt__choice choice;               /* algo NULL: an empty slot */
    struct hkt__cached_plan *cached;
    bool is_plain;                           /* blocks are alike and lie in the order of ranks: the bind says it all */
    struct hkt__bind bind;                   /* buffers, blocks, callback and the stamp's op_seq left open */
};
#define HKT__PREPARED_MAX 512                /* slots, by the top 9 bits of a hash */

/** What a member has said of its newest collective. */
struct hkt__heard {
    int64_t when_ns;                         /* 0: never */
    struct hkt__stamp stamp;
    bool is_running;
};

/** Operations on one communicator run in the order of their calls, whichever thread runs them. */
struct hkt__turn {
    _Atomic uint64_t next, serving, left;    /* tickets given out; ticket whose turn it is (release T1, acquire T2); tickets
                                                whose runners do not touch the turn any more (release T3, acquire T4) */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic int waiters;
};

struct hkt__user_op {
    int used;
    hkt_op_function function;                /* NULL: pre-multiplied sum */
    void *arg;
    enum hkt_dtype dtype;                    /* of the scalar */
    unsigned char scalar[8];
};

/** Which transport serves whom. */
struct hkt__routes {
    unsigned char *tp_of;                    /* [nranks]: index into job->tps, HKT__TP_NONE for the own rank */
    struct hkt__tp_dom *doms[HKT__TRANSPORTS_MAX];
    int ndoms;
    bool all_memory, all_user;               /* every peer's window, every peer's memory is addressable */
    bool all_polled;                         /* looking for a frame makes no system call, from whichever peer */
    bool all_copy;                           /* every rank can copy from and to every peer's memory */
    struct hkt__tp *memory_tp;               /* the one that serves windows; NULL unless all_memory */
    struct hkt__prices prices;               /* within hosts of the slowest transport in use: the first member's for all */
    char label[32];                          /* the transports in use: "shm", "shm+tcp" */
    size_t slice_bytes, slice_bytes_least;   /* what the transports that this rank uses like */
    int tuned;                               /* index of job->tune's table for them; -1: none. The first member's, too */
};

struct hkt__comm_options {
    struct hkt__wait_policy wait;
    size_t slice_bytes_set;                  /* by the user; 0: not */
    size_t slice_bytes, slice_bytes_least;   /* in force, the same on all members; of small vectors (hkt__comm_slice_bytes) */
    int channels;                            /* that plans are replicated over, said by the user; 0: chosen */
    bool crc;
    bool ordered;                            /* reductions sum in rank order */
    struct hkt__wish wish;
};

/** How the job knows a communicator. */
struct hkt__listing {
    struct hkt_comm *next;
    uint32_t id;
    _Atomic int is_open;                     /* release O1 when the routes are made, acquire O2 before waking them */
};

/** What calls become. */
struct hkt__planning {
    struct hkt__plans plans;
    struct hkt__work_table *work;            /* what algorithms cost, for the choice */
    struct hkt__prepared *prepared;          /* [HKT__PREPARED_MAX], in pages of their own: those not used take no memory */
};

/** What tells how things stand when they go wrong. */
struct hkt__watch {
    struct hkt__recorder recorder;
    struct hkt__failure failure;
    struct hkt__heard *heard;                /* [nranks], guarded by job->lock; NULL until one is heard */
};

/** Pinned memory for the buffers of a call on a GPU; grows as needed. */
struct hkt__stage_room {
    char *memory;
    size_t bytes;
    const struct hkt__cuda_module *cuda;     /* whose it is */
};

/** Memory of the current call beside its buffers; made at first use, kept. */
struct hkt__call_room {
    size_t *displs;                          /* where blocks lie: collective.c */
    void *temp;                              /* input of pre-multiplied sums that have no output to hold it */
    size_t temp_bytes;
    struct hkt__stage_room stage;            /* of buffers on a GPU */
};

/** Bytes of the two buffers of a call at this rank. */
struct hkt__extent {
    size_t in_bytes, out_bytes;
    size_t own_in, own_out;                  /* where the own block lies in a buffer of blocks: for the in-place rules */
    bool in_used, out_used;
};

/** The call that was last found right, but for its buffers: calls repeat. Owned by the communicator's caller, as calls are. */
struct hkt__checked {
    enum hkt_coll coll;                      /* HKT_COLL_COUNT: none yet */
    enum hkt_dtype dtype;
    enum hkt_op op;
    int root;
    bool is_send;
    size_t count;
    struct hkt__extent extent;
};

enum hkt__far_net_path { HKT__FAR_NET_UNKNOWN, HKT__FAR_NET_LENT, HKT__FAR_NET_STAGED };

/** Memory of devices and the networks that serve the communicator: far_net.h. Of the thread whose turn it is; others tell of it. */
struct hkt__far_net {
    _Atomic int path;                        /* the same on all ranks; release N1 after text is written, acquire N2 by readers */
    bool insists;                            /* HOCKET_CUDA_DMABUF=on, on any rank */
    char text[256];                          /* how it is sent, and why */
    struct hkt__far_net_pin *pins;
    void *stream;                            /* of copies between frames and buffers; of CUDA, on `device` */
    int device;
};

struct hkt__comm_counts {
    uint32_t op_seq;                         /* collectives started */
    uint64_t yields, parks;
};

struct hkt_comm {
    struct hkt__job *job;
    struct hkt__listing listed;
    char name[48];
    int rank, nranks;
    int32_t *job_ranks;                      /* [nranks] */
    struct hkt__site site;                   /* where the ranks run: orders and groups */
    struct hkt__comm_options options;
    struct hkt__routes routes;
    struct hkt__exec_env env;
    struct hkt__run *run;
    struct hkt__planning planning;
    struct hkt__watch watch;
    struct hkt__turn turn;
    struct hkt__user_op *user_ops;           /* [HKT__USER_OPS_MAX] */
    struct hkt__registered *registered;      /* memory that peers can address: memory.c */
    struct hkt__p2p *p2p;                    /* point-to-point state, made at first use */
    struct hkt__call_room room;
    struct hkt__checked checked;
    struct hkt__comm_counts counts;
    const struct hkt__cuda_module *cuda;     /* NULL: this process does not use CUDA */
    struct hkt__far *far;                    /* calls on CUDA streams; NULL before the first: far.h */
    struct hkt__far_net net;
};

/** What a communicator is made of. */
struct hkt__comm_params {
    struct hkt__job *job;
    uint32_t id;
    int nranks, rank;
    const int32_t *job_ranks;                /* copied */
    const struct hkt_config *config;         /* NULL: defaults */
    hkt__exchange_fn *exchange;              /* all-gather among the members, for addresses */
    void *exchange_arg;
};
HKT_NODISCARD enum hkt_status hkt__comm_create(const struct hkt__comm_params *params, struct hkt_comm **out_comm);
/** What vectors of so many bytes are cut in. */
static inline size_t hkt__comm_slice_bytes(const struct hkt_comm *comm, size_t bytes)
{
    return hkt__slice_bytes(comm->options.slice_bytes_least, comm->options.slice_bytes, bytes);
}
/** Measured choices that hold for the communicator; NULL: none. */
static inline const struct hkt__tune_table *hkt__comm_tuned(const struct hkt_comm *comm)
{
    return comm->routes.tuned < 0 ? NULL : &comm->job->tune->tables[comm->routes.tuned];
}
/** Bytes each member exchanges while a communicator is made. */
size_t hkt__comm_contribution_bytes(void);
/** Free without a word to peers. */
void hkt__comm_free(struct hkt_comm *comm);

/* failure.c */
/** Keep `error` as first cause unless there is one; wakes sleepers of this process. Any thread. */
void hkt__comm_fail(struct hkt_comm *comm, const struct hkt__error *error);
/** A failure this thread has recorded ends the communicator on all ranks: put context in front, keep it, tell peers.
 *  Returns the status of the first cause, which may be another one. */
enum hkt_status hkt__comm_fail_here(struct hkt_comm *comm, enum hkt_status status, const char *context);
/** Monitor thread: something failed in the job; takes what concerns this communicator. */
void hkt__comm_on_event(struct hkt_comm *comm, const struct hkt__boot_event *event);
/** The calling thread's error becomes the communicator's first cause; returns its status. */
enum hkt_status hkt__comm_report(const struct hkt_comm *comm);
/** Rank in the communicator of a rank of the job; -1: no member. */
int hkt__comm_rank_of(const struct hkt_comm *comm, int job_rank);
static inline int hkt__comm_failed(const struct hkt_comm *comm)
{
    return atomic_load_explicit(&comm->watch.failure.status, memory_order_acquire); /* F2 */
}

/* far_net.c */
/** How memory of devices is sent, and why; "": nothing is known so far. Any thread. */
const char *hkt__far_net_text(const struct hkt_comm *comm);

/* notes.c */
/** A wait in this call has become a long one. Any thread. */
void hkt__notes_tell(const struct hkt_comm *comm, const struct hkt__stamp *stamp);
/** "; not entered yet: rank 2, 5-7" and the like: where the others are, seen from an operation of this rank that has waited
 *  for too long. Asks them, and waits for their answers for a moment. */
void hkt__notes_absent(const struct hkt_comm *comm, uint32_t op_seq, char *out_text, size_t bytes);
/** Monitor thread, under job->lock: a rank of the job has noted something of this communicator. */
void hkt__comm_on_note(struct hkt_comm *comm, const struct hkt__boot_note *note);
/** Where all ranks are: lines of text, or elements of a JSON array. Asks, unless the communicator has failed. */
void hkt__notes_dump(const struct hkt_comm *comm, FILE *file, int json);

/* turn.c */
enum hkt_status hkt__turn_init(struct hkt__turn *turn);
void hkt__turn_fini(struct hkt__turn *turn);
/** What wait and pass do where it is not done at once. */
void hkt__turn_await(struct hkt__turn *turn, uint64_t ticket);
void hkt__turn_wake(struct hkt__turn *turn);
void hkt__turn_await_left(struct hkt__turn *turn, uint64_t ticket);

static inline uint64_t hkt__turn_take(struct hkt__turn *turn)
{
    /* Relaxed: one caller per communicator at a time, so the order of tickets is the caller's own. */
    const uint64_t ticket = atomic_load_explicit(&turn->next, memory_order_relaxed);

    atomic_store_explicit(&turn->next, ticket + 1, memory_order_relaxed);
    return ticket;
}

static inline void hkt__turn_wait(struct hkt__turn *turn, uint64_t ticket)
{
    if (atomic_load_explicit(&turn->serving, memory_order_acquire) < ticket) /* T2 */
        hkt__turn_await(turn, ticket);
}

static inline void hkt__turn_pass(struct hkt__turn *turn)
{
    const uint64_t served = atomic_load_explicit(&turn->serving, memory_order_relaxed); /* nobody else writes it */

    atomic_store_explicit(&turn->serving, served + 1, memory_order_release); /* T1 */
    if (atomic_load_explicit(&turn->waiters, memory_order_relaxed) != 0)
        hkt__turn_wake(turn);
    if (atomic_load_explicit(&turn->left, memory_order_acquire) < served) /* T4 */
        hkt__turn_await_left(turn, served);
    atomic_store_explicit(&turn->left, served + 1, memory_order_release); /* T3 */
}

/** Wait until every ticket given out has been served. */
void hkt__turn_drain(struct hkt__turn *turn);

/* plans.c */
/** Find or make the plan of an algorithm for this rank; the pointer holds until the next call of this function. */
HKT_NODISCARD enum hkt_status hkt__plans_get(struct hkt_comm *comm, const struct hkt__algo *algo, int root, bool in_place,
                                             struct hkt__cached_plan **out_cached);
void hkt__plans_fini(struct hkt__plans *plans);
/** Open the channels of a plan; IN_PROGRESS until peers have answered: call again. */
HKT_NODISCARD enum hkt_status hkt__plans_link(struct hkt_comm *comm, struct hkt__cached_plan *cached, int channels);
/** First peer of a plan with whom not all channels are open yet; -1: none. */
int hkt__plans_missing(const struct hkt_comm *comm, const struct hkt__cached_plan *cached, int channels);
/** Open one lane to a peer. */
HKT_NODISCARD enum hkt_status hkt__comm_link(struct hkt_comm *comm, int peer, int lane);

/* memory.c */
/** Release what hkt_mem_alloc gave and was not freed. */
void hkt__registered_fini(struct hkt_comm *comm);
/** Does a buffer lie in registered memory? */
bool hkt__registered_covers(const struct hkt_comm *comm, const void *data, size_t bytes);

/** Sleep until what comes over a route wakes it, or for a while. route: as in routes.tp_of; -1: any. */
void hkt__comm_park(struct hkt_comm *comm, int route, int64_t timeout_ns);

#endif
