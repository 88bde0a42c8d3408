/* A call as the user made it, and the steps of its life: check, queue or run. */
#ifndef HOCKET_COMM_CALL_H
#define HOCKET_COMM_CALL_H

#include "comm/comm_int.h"

/** Bytes of the two buffers, which of them lie in memory of a GPU, and, while the call runs on copies of those, what the
 *  user gave: stage.h. */
struct hkt__staging {
    size_t in_bytes, out_bytes;
    bool in_is_far, out_is_far; /* on in_device, on out_device */
    int in_device, out_device;
    bool is_lent;               /* it runs on those themselves: far_net.h */
    struct hkt__bind_device device;
    bool is_staged;
    const void *user_in;
    void *user_out;
};

struct hkt__call {
    enum hkt_coll coll;
    enum hkt_dtype dtype;
    enum hkt_op op;             /* HKT_OP_COUNT: none */
    int root;                   /* -1: none; the peer of send and recv */
    bool is_send;               /* of HKT_SEND_RECV */
    bool in_place;              /* set by the check */
    bool is_internal;           /* the library's own: HOCKET_ALGO does not bind it */
    bool registered;            /* set by the check: all significant buffers lie in registered memory */
    const void *in;
    void *out;
    size_t count;
    struct hkt_blocks blocks;   /* v-variants; borrowed */
    struct hkt__staging staging;
    struct hkt_comm *comm;
    const struct hkt__far_stream *far; /* of CUDA; borrowed while the call runs. NULL: a call of the host, whatever memory it is on */
    uint64_t ticket;            /* its turn on comm: taken when it is queued, or is about to run */
};

/** Refuse what cannot work, before anything is sent; fills in_place. */
HKT_NODISCARD enum hkt_status hkt__call_check(struct hkt__call *call);
/** Check, then run now, or queue in the group or stream. */
HKT_NODISCARD enum hkt_status hkt__call_submit(struct hkt__call *call, struct hkt_stream *stream);

/** All-gather of `bytes` per rank for the library's own purposes, in the communicator's turn: not part of a group, not bound
 *  by HOCKET_ALGO. */
HKT_NODISCARD enum hkt_status hkt__internal_all_gather(const void *in, void *out, size_t bytes, struct hkt_comm *comm);

/** Take the turns of calls. */
void hkt__batch_queue(struct hkt__call *calls, size_t count);
/** Run calls, whose turns have been taken, to their ends: together, each communicator's in order. Passes the turns. Returns
 *  the first failure after all have ended. */
HKT_NODISCARD enum hkt_status hkt__batch_run(struct hkt__call *calls, size_t count);
/** This rank cannot take part in calls that others make, for want of memory: their communicators fail, since they would wait
 *  for it. Returns the status that the calling thread has recorded. */
enum hkt_status hkt__batch_refuse(const struct hkt__call *calls, size_t count);

/** True between group start and end on this thread. */
bool hkt__group_is_open(void);
HKT_NODISCARD enum hkt_status hkt__group_add(const struct hkt__call *call, struct hkt_stream *stream);
/** A call inside the group was refused: the group's end reports it and runs nothing. Returns status. */
enum hkt_status hkt__group_spoil(enum hkt_status status);
/** Queue calls on a stream; copies them, and takes their turns. */
HKT_NODISCARD enum hkt_status hkt__stream_enqueue(struct hkt_stream *stream, const struct hkt__call *calls, size_t count);

/** "all_reduce=ring,broadcast=^chain": forces the one, forbids the other. INVALID names what does not fit. NULL and "": no wishes. */
HKT_NODISCARD enum hkt_status hkt__algo_list_parse(const char *list, struct hkt__wish *out_wish);

/** One line to the log: what was chosen, what it should cost, the bound, and what else was weighed. */
void hkt__choice_log(const struct hkt_comm *comm, const struct hkt__select_args *args, const struct hkt__choice *choice,
                     const struct hkt__bind *bind);

/* prepare.c */
/** Algorithm, plan, slices and kernel for a call; kept by the communicator, good until its next preparation. What its bind
 *  leaves open is the caller's to fill. */
HKT_NODISCARD enum hkt_status hkt__prepare(const struct hkt__call *call, struct hkt__prepared **out_prepared);
/** The same for a device: the algorithm and its plan, good until the next preparation; user_ok: as struct hkt__select_args. */
HKT_NODISCARD enum hkt_status hkt__prepare_far(const struct hkt__call *call, bool user_ok, const struct hkt__algo **out_algo,
                                               struct hkt__cached_plan **out_cached);
/** Would an algorithm serve the call, were it in place or not? The same on all ranks. */
bool hkt__prepare_serves(const struct hkt__call *call, bool in_place);
/** Elements of the largest block over all ranks: what slicing depends on, so it must be the same everywhere. */
size_t hkt__block_elems_max(const struct hkt__call *call);
/** What all ranks must say alike, but for the algorithm. */
struct hkt__stamp hkt__call_stamp(const struct hkt__call *call);
static inline bool hkt__coll_is_v(enum hkt_coll coll)
{
    return coll == HKT_ALL_GATHER_V || coll == HKT_REDUCE_SCATTER_V || coll == HKT_ALL_TO_ALL_V;
}
/** Whether all ranks must be in place or none. Elsewhere it is a rank's own affair (a root; a rank whose block is empty),
 *  and neither the choice nor the messages may depend on it: a test over the registry holds the builders to that. */
static inline bool hkt__in_place_is_agreed(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_ALL_GATHER || coll == HKT_ALL_TO_ALL;
}
/** Elements of the collective's whole vector, the same on all ranks. 0 for all_to_all_v, of which no rank knows it. */
size_t hkt__vector_elems(const struct hkt__call *call);

/* collective.c: one collective in flight on a communicator. */
struct hkt__collective {
    struct hkt__call *call;
    struct hkt__cached_plan *cached;
    struct hkt__bind *bind;      /* that of the prepared call, or own */
    struct hkt__bind own;        /* where the grid is the call's own, or it runs on a device */
    struct hkt__record *record;
    size_t own_count;           /* what grid.counts points at for the buffer with one block */
    bool is_brief;              /* few bytes, and nothing has been waited for */
    enum { HKT__COLLECTIVE_FAR, HKT__COLLECTIVE_LINKING, HKT__COLLECTIVE_RUNNING, HKT__COLLECTIVE_DONE } state;
};
/** Choose, plan, bind. A failure here ends the communicator, except UNSUPPORTED and INVALID (nothing was sent). */
HKT_NODISCARD enum hkt_status hkt__collective_start(struct hkt__collective *work, struct hkt__call *call);
/** The same for a call that was begun on a stream of CUDA and goes on in memory of the host. */
HKT_NODISCARD enum hkt_status hkt__collective_go_on(struct hkt__collective *work);
/** Fills work->bind.grid for a plan of algo: where the blocks of this call's buffers lie. */
HKT_NODISCARD enum hkt_status hkt__collective_grid(struct hkt__collective *work, const struct hkt__algo *algo);
/** Elements of the result at this rank, where averages divide; 0: it has none. */
size_t hkt__collective_result(const struct hkt__call *call);
/** As hkt__run_poll. */
HKT_NODISCARD enum hkt_status hkt__collective_poll(struct hkt__collective *work);
/** Post-process and close the record; status is what the poll ended with. */
enum hkt_status hkt__collective_finish(struct hkt__collective *work, enum hkt_status status);

/* p2p.c: the sends and receives of a group on one communicator, all in flight together. */
struct hkt__p2p;
void hkt__p2p_destroy(struct hkt__p2p *p2p);
/** Start calls[0..count), all HKT_SEND_RECV on comm; those to the own rank are done at once. */
HKT_NODISCARD enum hkt_status hkt__p2p_start(struct hkt_comm *comm, struct hkt__call *calls, size_t count);
HKT_NODISCARD enum hkt_status hkt__p2p_poll(struct hkt_comm *comm);
/** A failure ended the messages in flight: close their records. */
void hkt__p2p_finish(struct hkt_comm *comm, enum hkt_status status);
/** Does `move` for the k-th send and the k-th receive of a rank to itself; INVALID: they do not match. */
HKT_NODISCARD enum hkt_status hkt__p2p_self(const struct hkt_comm *comm, const struct hkt__call *calls, size_t count,
                                            enum hkt_status (*move)(const struct hkt_comm *comm, const struct hkt__call *recv,
                                                                    const struct hkt__call *send));
void hkt__p2p_describe(const struct hkt_comm *comm, char *out_text, size_t bytes);
/** A rank whose message is outstanding, -1 if none. */
int hkt__p2p_blocked_on(const struct hkt_comm *comm);
/** The one route of all that is in flight; -1: there are several, or a connection is not there yet. */
int hkt__p2p_blocked_route(const struct hkt_comm *comm);

#endif
