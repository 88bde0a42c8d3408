/* Collectives on streams of CUDA. A call on one is a promise that all ranks make it on one, with buffers in the memory of its
 * device: so the group can agree how such calls run. At the first, or when all allocate or register memory of devices, ranks map
 * each other's arenas, try the mappings, and vote (far_setup.c); at the first of each kind of plan, they vote on that (far.c). Then
 * a call is a launch: nobody waits. Where a vote fails, calls are staged (stage.h) after the stream has been waited for: the same
 * on all ranks.
 *
 * A call that needs a vote exchanges words by collectives of the host, one after another, while it polls. */
#ifndef HOCKET_COMM_FAR_H
#define HOCKET_COMM_FAR_H

#include <stdatomic.h>

#include "comm/call.h"
#include "device/cuda_group.h"
#include "device/cuda_messages.h"
#include "exec/device.h"

/** Memory of hkt_mem_alloc_device: far_memory.c. The user's, registered: far_register.c. */
struct hkt__far_memory {
    struct hkt__far_memory *next;
    void *data;
    size_t bytes;                  /* at least, on all ranks */
    int pool;                      /* in peers.pools; -1: peers do not map it */
    uint64_t serial;               /* the same on all ranks */
    struct hkt__cuda_group group;  /* of a pool: its mappings */
    uint64_t mapped_by;
    struct hkt__cuda_registered *registered; /* the user's, and its mappings; NULL: allocated here */
};

/** A stream of CUDA's: what is behind struct hkt_stream. */
struct hkt__far_stream {
    const struct hkt__cuda_module *cuda;
    void *stream;
    int device;
    bool is_owned;
};

/** What a rank says in an exchange. */
struct hkt__far_note {
    int32_t status;
    char text[192];
    uint64_t mapped;               /* set of ranks whose arenas this one mapped */
    int32_t channels;              /* parts of a message that this one can have under way */
    struct hkt__stamp stamp;       /* what it is about to run: hkt__call_stamp */
    struct hkt__cuda_offer offer;
};

enum hkt__far_step {
    HKT__FAR_OFFER, HKT__FAR_MAP, HKT__FAR_CHECK, HKT__FAR_SETTLE, /* each ends with an exchange, but the last */
    HKT__FAR_PLAN, HKT__FAR_VOTE, HKT__FAR_RUN, HKT__FAR_STAGE
};

/** A plan of the device's; status UNSUPPORTED: calls of it are staged. */
struct hkt__far_row {
    const struct hkt__algo *algo;
    int32_t root;
    bool in_place;
    enum hkt_status status;
    struct hkt__cuda_plan *plan;
};

#define HKT__FAR_STREAMS 8 /* of CUDA's, that sends and receives of a communicator in a group may use */

struct hkt__far {
    struct hkt_comm *comm;
    struct hkt__far *next;         /* of those that streams know: far_stream.c */
    enum { HKT__FAR_UNKNOWN, HKT__FAR_PLANS, HKT__FAR_STAGED } path;
    char text[256];                /* how calls run, and why; read by others when path is set */
    char line[800];                /* the same, what memory it costs, and how networks send it: hkt_comm_device */
    enum hkt__far_step step;       /* of the call in flight */
    struct hkt__cuda_group group;
    struct hkt__cuda_peers peers;
    uint64_t mapped_by;
    struct hkt__far_row *rows;
    int nrows, current;            /* the row of the call in flight */
    struct hkt__cuda_messages *messages; /* sends and receives; their list, while they are made: grown as needed */
    struct hkt__cuda_message *list;
    size_t list_room;
    int32_t channels;              /* of messages: the least of what ranks can have under way */
    void *event, *last_stream;     /* recorded after each launch, on it */
    void *fork;                    /* an event that joins streams of one launch */
    const struct hkt__far_stream *on; /* of the messages that are being enqueued */
    bool has_launched;
    bool is_lost;                  /* a launch may run that nobody can wait for: what it touches stays */
    _Atomic uintptr_t seen_on[HKT__FAR_STREAMS]; /* 1 + each stream of the last launch; 0: none. Release V1 after a launch,
                                      acquire V2 by those who wait for the stream */
    int multiprocessors;
    struct hkt__far_memory *memory;
    struct hkt__cuda_pools pools;
    uint64_t memory_serial;

    struct hkt__far_note own, *all; /* of the exchange in flight */
    struct hkt__call exchange;
    struct hkt__collective exchanging;
    bool is_exchanging;
    bool is_blocking;              /* exchanges are calls of their own, which wait */
};

/** The stream of CUDA's behind one of hocket's; NULL: it is the host's, or none. */
struct hkt__far_stream *hkt__stream_far(struct hkt_stream *stream);
/** The user's stream, of the calling thread's device; one of its own. */
HKT_NODISCARD enum hkt_status hkt__far_stream_borrow(void *cuda_stream, struct hkt__far_stream **out_far);
HKT_NODISCARD enum hkt_status hkt__far_stream_create(int device, struct hkt__far_stream **out_far);
/** Waits for what was given to the stream so far. */
HKT_NODISCARD enum hkt_status hkt__far_stream_wait(const struct hkt__far_stream *far);
enum hkt_status hkt__far_stream_query(const struct hkt__far_stream *far);
void hkt__far_stream_destroy(struct hkt__far_stream *far);
/** Streams find communicators that use them. */
void hkt__far_enter(struct hkt__far *far);
void hkt__far_leave(struct hkt__far *far);

/** Begins a call with call->far. Failures as hkt__collective_start. */
HKT_NODISCARD enum hkt_status hkt__far_start(struct hkt__collective *work);
/** As hkt__run_poll; a call that is staged goes on as one of the host: then work->state says so. */
HKT_NODISCARD enum hkt_status hkt__far_poll(struct hkt__collective *work);
/** An exchange that is in flight when a call ends has ended with it. */
void hkt__far_give_up(struct hkt__far *far, enum hkt_status status);
/** Sends and receives on streams of CUDA: enqueues them all. IN_PROGRESS: they are to go through the host, after their streams.
 *  UNSUPPORTED, INVALID: nothing was enqueued. Copies to the own rank are the caller's: hkt__p2p_self. */
HKT_NODISCARD enum hkt_status hkt__far_messages(struct hkt_comm *comm, const struct hkt__call *calls, size_t count);
/** At most so many blocks for a launch. */
int hkt__far_blocks_max(const struct hkt__far *far);
/** Launches of a communicator follow each other, whatever their streams. What is captured is for the user to order. */
int hkt__far_order(struct hkt__far *far, const struct hkt__far_stream *on, int is_capturing);
/** Marks the end of a launch in its stream. */
int hkt__far_mark(struct hkt__far *far, const struct hkt__far_stream *on);
/** The communicator's place for calls on streams of CUDA, on this device: made at the first, of what is named. INVALID: it is
 *  on another. */
HKT_NODISCARD enum hkt_status hkt__far_enter_device(struct hkt_comm *comm, int device, const char *what);
/** Writes far->line anew: how calls run, and how much memory is the communicator's. After each change of either. */
void hkt__far_describe(struct hkt__far *far);
/** What a call waits for: the exchange it is at, or itself. */
const struct hkt__collective *hkt__far_waiting(const struct hkt__collective *work);

/** One step of the agreement; AGAIN: an exchange is in flight. */
HKT_NODISCARD enum hkt_status hkt__far_setup_step(struct hkt__far *far);
/** The agreement as a call of its own, for those that all ranks make and that name a device: far->path is known then. */
HKT_NODISCARD enum hkt_status hkt__far_prepare(struct hkt_comm *comm, int device, const char *what);
/** Starts an exchange of far->own to far->all; hkt__far_exchanged says when it is done. */
HKT_NODISCARD enum hkt_status hkt__far_exchange(struct hkt__far *far, enum hkt_status status);
HKT_NODISCARD enum hkt_status hkt__far_exchanged(struct hkt__far *far);

/** Why devices cannot reach each other, whatever these are; "": nothing that is known so far. The same on all ranks, but for
 *  the setting. */
const char *hkt__far_why_not(const struct hkt_comm *comm);
/** Set of the ranks that are not gone: those map nothing any more. */
uint64_t hkt__far_living(const struct hkt_comm *comm);

/** Do the call's buffers lie in memory that all ranks map? Where one rank's do, all ranks' must. */
bool hkt__far_memory_covers(const struct hkt__far *far, const struct hkt__call *call);
/** What hkt_mem_alloc_device gave at that address, or what was registered; NULL: nothing. */
struct hkt__far_memory *hkt__far_memory_find(const struct hkt_comm *comm, const void *data, bool is_registered);
/** hkt_comm_register of memory of a device. */
HKT_NODISCARD enum hkt_status hkt__far_register(struct hkt_comm *comm, const struct hkt__cuda_memory *found, void *data, size_t bytes);
/** Buffers of devices that are registered still. */
int hkt__far_registered_left(const struct hkt_comm *comm);
/** hkt_mem_free, or hkt_comm_deregister, of it. */
HKT_NODISCARD enum hkt_status hkt__far_memory_free(struct hkt_comm *comm, struct hkt__far_memory *memory);
/** Gives up what is left, without a word to peers. No launch may run. */
void hkt__far_memory_fini(struct hkt__far *far);

/** Launches end without a result from now on. Under failure.lock of the communicator. */
void hkt__far_abort(struct hkt_comm *comm);
/** Waits for launches, with the communicator's deadline. False: they do not end. */
bool hkt__far_drain(struct hkt__far *far);
void hkt__far_fini(struct hkt_comm *comm);

#endif
