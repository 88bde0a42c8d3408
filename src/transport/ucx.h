/* ucx, inside: what its files share. The story:
 *
 *   ucx.c       the operations table: instances
 *   ucx_dom.c   domains: workers, sleeping, the pump, closing
 *   ucx_link.c  endpoints, and the two channels of a lane to one peer: opening, what arrives for them
 *   ucx_chan.c  frames over a link
 *
 * A domain is a UCP worker; a peer in it is an endpoint, made at first use; every message is an active message with a
 * header of ours (struct hkt__ucx_wire) and at most one frame's payload. Frame n of a direction leaves from slot n modulo
 * SLOTS of the sender and has place n modulo SLOTS in the receiver's table, so neither the order in which UCX delivers nor
 * the protocol it takes matters; at most SLOTS frames are on their way or unread (credit: `consumed` in each header).
 * Small payloads stay in UCX's own receive buffers until used; large ones arrive as a request to fetch them, and are
 * fetched to where the receiver wants them, or into a slot of the link when it does not wait for them.
 *
 * The pump. Published frames must arrive even if their sender computes, but UCX moves large or late ones only within calls.
 * So a domain with sends under way has a thread that makes them when its user does not.
 *
 * Errors: endpoints to other hosts report a peer's end (UCP_ERR_HANDLING_MODE_PEER). UCX's shared memory cannot, and is not
 * used where that is asked for; so within a host it is not: the end of a peer's process is looked for (its pidfd), and the
 * control plane tells. Ownership: all of a domain is guarded by its lock, since the pump takes part. */
#ifndef HOCKET_TRANSPORT_UCX_H
#define HOCKET_TRANSPORT_UCX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

#include "core/error.h"
#include "transport/transport.h"

#define HKT__UCX_VERSION 1
#define HKT__UCX_MAGIC 0x55544b48u   /* "HKTU" */
#define HKT__UCX_SLOTS 8
#define HKT__UCX_FRAME_BYTES 262144  /* as tcp's */
#define HKT__UCX_AM_ID 0
#define HKT__UCX_ALIGN 64            /* of payloads */
#define HKT__UCX_FLUSH_NS INT64_C(2000000000)  /* dom_close: for what peers have not taken, since the last progress */
#define HKT__UCX_FAREWELL_NS INT64_C(1000000000) /* dom_close: for peers to say that they have it */

/** What one instance tells all others; a wire format. */
struct hkt__ucx_blob {
    uint32_t magic;
    uint16_t version, zero;
    char boot_id[40];                /* of the kernel that runs it, as text */
    uint64_t pid_space;              /* inode of its PID namespace; 0: unknown */
    int32_t pid;
    int32_t zero2;
};

/** What a member tells about its side of a domain; a wire format. */
struct hkt__ucx_dom_blob {
    uint64_t nonce;                  /* names this side of the domain to those who may send to it; never used twice */
    uint16_t address_bytes;
    uint16_t zero[3];
    unsigned char address[HKT__TP_BLOB_MAX - 16]; /* of the worker */
};
_Static_assert(sizeof(struct hkt__ucx_dom_blob) == HKT__TP_BLOB_MAX, "the blob must fit");

enum hkt__ucx_kind {
    HKT__UCX_FRAME,
    HKT__UCX_HELLO,                  /* the sender has opened its end of a link */
    HKT__UCX_CREDIT,
    HKT__UCX_BYE,                    /* the sender closes; all before it was sent */
    HKT__UCX_BYE_HEARD
};

/** Header of every message; a wire format. */
struct hkt__ucx_wire {
    uint64_t nonce;                  /* of the receiving side */
    uint32_t consumed;               /* frames of the other direction, all in all */
    int32_t from;                    /* rank in the communicator */
    uint16_t lane, kind;
    uint32_t zero;
    struct hkt__frame_header frame;  /* FRAME alone */
};
_Static_assert(sizeof(struct hkt__ucx_wire) == 56, "a wire format");

struct hkt__ucx {
    struct hkt__tp tp;               /* first */
    int job_rank, job_nranks;
    const _Atomic int *abort_word;
    ucp_context_h context;
    struct hkt__ucx_blob own;
    struct hkt__ucx_blob *peers;     /* [job_nranks] after reach; magic 0: absent */
};

struct hkt__ucx_dom;
struct hkt__ucx_link;

/** A message without payload: its memory is in use until UCX has sent it. */
struct hkt__ucx_note {
    struct hkt__ucx_peer *peer;
    struct hkt__ucx_link *link;      /* NULL: about no lane */
    struct hkt__ucx_wire wire;
    bool is_busy;
};

struct hkt__ucx_peer {
    struct hkt__ucx_dom *dom;
    int rank;
    ucp_ep_h ep;                     /* NULL: none yet */
    int pidfd;                       /* readable at the end of its process; -1: none, UCX tells */
    int flying;                      /* of the domain's, those to and from it */
    ucs_status_t why;                /* UCS_OK until the endpoint or a send fails; then sticky */
    bool is_leaving, has_heard;      /* it said BYE; it has heard ours */
    struct hkt__ucx_note bye, bye_heard;
};

struct hkt__ucx_dom {
    struct hkt__tp_dom dom;          /* first */
    struct hkt__ucx *ucx;
    int nranks, rank, lanes;
    const int32_t *job_ranks;
    ucp_worker_h worker;
    int efd;                         /* the worker's: readable when there may be something to do */
    uint64_t nonce;
    struct hkt__ucx_dom_blob *members; /* [nranks] after dom_connect; nonce 0: not served */
    struct hkt__ucx_peer *peers;     /* [nranks] */
    struct hkt__ucx_link **links;    /* [nranks * lanes], NULL until asked for */
    bool *greeted;                   /* [nranks * lanes]: the peer has opened its end */
    int fetchable;                   /* frames that wait to be fetched by hkt__ucx_progress */
    pthread_mutex_t lock;            /* guards all of this but what follows */
    int wake_fd;
    atomic_int woken;                /* see ucx_dom.c */
    atomic_bool is_parked;
    /* The pump; guarded by the lock. */
    pthread_cond_t work;             /* flying is no longer 0, or the domain closes */
    pthread_t pump;
    bool has_pump, is_closing;
    int flying;                      /* messages that UCX has not sent yet */
    uint64_t calls;                  /* of the user: while they go on, the pump rests */
};

struct hkt__ucx_slot {
    struct hkt__ucx_link *link;
    struct hkt__ucx_wire wire;
    bool is_busy;                    /* UCX reads wire and payload */
};

struct hkt__ucx_tx {
    struct hkt__chan chan;           /* first */
    struct hkt__ucx_link *link;
    uint32_t seq;                    /* of the next frame */
    uint32_t consumed;               /* frames that the peer has used, as it last said */
    struct hkt__ucx_slot slots[HKT__UCX_SLOTS];
    unsigned char *memory;           /* SLOTS times a frame */
};

enum hkt__ucx_state {
    HKT__UCX_EMPTY,
    HKT__UCX_OFFERED,                /* the peer holds the payload: to be fetched */
    HKT__UCX_FETCHING,
    HKT__UCX_READY
};

struct hkt__ucx_frame {
    struct hkt__ucx_link *link;
    enum hkt__ucx_state state;
    struct hkt__view view;
    void *held;                      /* UCX's: payload, or the offer; NULL: none */
};

struct hkt__ucx_rx {
    struct hkt__chan chan;           /* first */
    struct hkt__ucx_link *link;
    uint32_t seq;                    /* of the oldest frame, from 1 */
    uint32_t told;                   /* frames consumed, as the peer was last told */
    struct hkt__ucx_frame frames[HKT__UCX_SLOTS];
    unsigned char *memory;           /* SLOTS times a frame, touched only where used */
};

struct hkt__ucx_link {
    struct hkt__ucx_dom *dom;
    struct hkt__ucx_peer *peer;
    int lane;
    const char *corrupt;             /* what was wrong with a frame; NULL: nothing. Sticky */
    struct hkt__ucx_note hello, credit;
    struct hkt__ucx_tx tx;
    struct hkt__ucx_rx rx;
};

/* ---- domains (ucx_dom.c) ---- */

HKT_NODISCARD enum hkt_status hkt__ucx_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members,
                                                struct hkt__tp_dom **out_dom, void *out_blob, size_t *out_bytes);
HKT_NODISCARD enum hkt_status hkt__ucx_dom_connect(struct hkt__tp_dom *dom, const unsigned char *blobs,
                                                   const size_t *bytes, const unsigned char *use);
void hkt__ucx_dom_close(struct hkt__tp_dom *dom);
void hkt__ucx_park(struct hkt__tp_dom *dom, int64_t timeout_ns);
void hkt__ucx_wake(struct hkt__tp_dom *dom);
/** Let UCX work, and fetch what was offered and is not the oldest of its link. Under the lock. */
void hkt__ucx_progress(struct hkt__ucx_dom *dom);
/** A send or fetch is under way: the pump must know. Its end. Under the lock. */
void hkt__ucx_took_off(struct hkt__ucx_peer *peer);
void hkt__ucx_landed(struct hkt__ucx_peer *peer);
/** What UCX calls its statuses, as one of ours. */
enum hkt_status hkt__ucx_fail(ucs_status_t why, const char *what);

/* ---- links (ucx_link.c); all under the lock ---- */

HKT_NODISCARD enum hkt_status hkt__ucx_chan_open(struct hkt__tp_dom *dom, int peer, int lane, struct hkt__chan **out_tx,
                                                 struct hkt__chan **out_rx);
/** Send a note of a kind, unless it is on its way: then nothing happens. */
void hkt__ucx_tell(struct hkt__ucx_note *note, struct hkt__ucx_peer *peer, enum hkt__ucx_kind kind);
/** The handler of all messages. */
ucs_status_t hkt__ucx_arrived(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const ucp_am_recv_param_t *param);
void hkt__ucx_link_destroy(struct hkt__ucx_link *link);

/* ---- frames (ucx_chan.c) ---- */

extern const struct hkt__chan_ops hkt__ucx_chan_ops;
/** Tell the peer how many frames were used, if enough were. Under the lock. */
void hkt__ucx_give_credit(struct hkt__ucx_link *link);
/** Fetch an offered frame to `to`. Under the lock. */
void hkt__ucx_fetch(struct hkt__ucx_frame *frame, void *to);

#endif
