/* verbs, inside: what its files share. The story:
 *
 *   verbs.c        the operations table: instances, who reaches whom
 *   verbs_port.c   devices, ports and GIDs of this host, which of them to use, and why not the others
 *   verbs_dom.c    domains: completion queues, sleeping, closing
 *   verbs_link.c   the two channels of a lane to one peer: memory, queue pairs, opening
 *   verbs_path.c   one queue pair: posting, completions, its end
 *   verbs_chan.c   frames over the paths of a link
 *   verbs_mem.c    memory of the user that frames are sent from where they lie
 *   verbs_device.c whether adapters read memory of devices
 *   verbs_text.c   errors in words, with the mend
 *
 * Frames. Each end of a link has a ring of slots for what it receives; the peer writes frame n into slot n mod slots by an
 * RDMA write with immediate, straight out of its own registered memory. The immediate says "frame n is there", and how many
 * frames of the other direction were consumed (credit); where nothing goes that way, empty writes say so. So a receive
 * request is only ever a token for an immediate, the number of tokens needed is known beforehand, and no receiver is ever "not
 * ready".
 *
 * Paths. A link has one queue pair per pair of NICs, or several; a frame takes the path that will be idle first, and since
 * its slot follows from its number, frames may arrive in any order. A path that fails hands its unacknowledged frames to
 * the others, where they are written into the same slots again; a link fails with its last path.
 *
 * Opening. Queue pairs are connected by messages over a tcp channel of the same domain, which proves both ends to each
 * other. It stays open: over it an end hears, where it is not sending itself, that a path failed at the other, or that the
 * other has ended. Before a path counts, a packet
 * of the path's full MTU crosses it each way.
 *
 * Ownership: everything of a domain belongs to the one thread that uses the domain; an instance's rails are constant but
 * for the state of their ports. */
#ifndef HOCKET_TRANSPORT_VERBS_H
#define HOCKET_TRANSPORT_VERBS_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "core/settings.h"
#include "transport/transport.h"

#define HKT__VERBS_RAILS_MAX 4    /* NICs that one rank uses */
#define HKT__VERBS_QPS_MAX 4      /* queue pairs per pair of NICs */
#define HKT__VERBS_PATHS_MAX (HKT__VERBS_RAILS_MAX * HKT__VERBS_QPS_MAX)
#define HKT__VERBS_PORTS_MAX 32
#define HKT__VERBS_SLOTS_MAX 64
#define HKT__VERBS_TEXT_MAX 256

/* ---- ports (verbs_port.c) ---- */

/** A port of a device: what it offers, or why it is of no use. */
struct hkt__verbs_port {
    char device[64];
    uint8_t port;
    bool is_roce;                 /* else InfiniBand */
    int gid_index;
    union ibv_gid gid;
    char gid_text[96];            /* "GID 1: 192.0.2.1, RoCE v2" */
    uint16_t lid;
    uint8_t mtu;                  /* enum ibv_mtu */
    uint32_t mbits;               /* per second */
    char why[HKT__VERBS_TEXT_MAX]; /* "": usable */
};

/** All ports of this host, or of the devices that settings->ib_devices allows. Gives *out_count, at most max; UNSUPPORTED,
 *  with the mend, where there is no device. */
HKT_NODISCARD enum hkt_status hkt__verbs_ports_list(const struct hkt__settings *settings, struct hkt__verbs_port *out_ports,
                                                    int max, int *out_count);
/** Index into entries of the GID to use on a port; -1: none is usable. want < 0: the best. RoCE v2 before v1, IPv4 before
 *  IPv6, global before link-local, then by index. Pure. */
int hkt__verbs_gid_choose(const struct ibv_gid_entry *entries, int count, int port, int want);
/** "192.0.2.1, RoCE v2". */
void hkt__verbs_gid_text(const struct ibv_gid_entry *entry, char *out_text, size_t bytes);
/** "rxe0:1". */
void hkt__verbs_port_name(const struct hkt__verbs_port *port, char *out_text, size_t bytes);
/** Does a list like "mlx5_0,mlx5_1:2" or "^mlx5_2" ("": all) name a port? Pure. */
bool hkt__verbs_is_listed(const char *list, const char *device, int port);
/** Open a device by name. Gives *out_context; SYSTEM or UNSUPPORTED with the mend. */
HKT_NODISCARD enum hkt_status hkt__verbs_device_open(const char *name, struct ibv_context **out_context);

/* ---- instances (verbs.c) ---- */

/** What a rank tells about one of its NICs; a wire format. */
struct hkt__verbs_rail_blob {
    unsigned char gid[16];
    uint16_t lid;
    uint8_t mtu, is_roce;
    uint32_t mbits;
};

/** What one instance tells all others, in front of what its tcp tells; a wire format. */
struct hkt__verbs_blob {
    uint32_t magic;
    uint16_t version, nrails;
    uint32_t slots, slot_bytes;
    uint8_t qps, may_use_tcp, zero[2];
    struct hkt__verbs_rail_blob rails[HKT__VERBS_RAILS_MAX];
};
#define HKT__VERBS_MAGIC 0x56544b48u /* "HKTV" */
#define HKT__VERBS_VERSION 3

struct hkt__verbs_rail {
    struct hkt__verbs_port port;
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t inline_max;          /* asked of its queue pairs */
    int cqe_max;
    /* Set by whichever thread reads an event of the device; relaxed. Down: a hint, traffic prefers the others. Gone: the device
     * was removed, nothing completes any more. */
    atomic_bool is_down, is_gone;
};

struct hkt__verbs {
    struct hkt__tp tp;            /* first */
    int job_rank, job_nranks;
    const struct hkt__settings *settings;
    const _Atomic int *abort_word;
    struct hkt__settings wire_settings;
    struct hkt__tp *wire;         /* tcp, for opening links and noticing ends */
    uint32_t slots, slot_bytes;
    bool may_use_tcp;             /* where verbs finds no way after all */
    int nrails;
    struct hkt__verbs_rail rails[HKT__VERBS_RAILS_MAX];
    struct hkt__verbs_blob *peers; /* [job_nranks] after reach; nrails 0: absent */
};

/* ---- domains (verbs_dom.c) ---- */

struct hkt__verbs_link;

/** Memory of the user that the devices know. */
struct hkt__verbs_pin {
    uintptr_t first;
    size_t bytes;
    bool is_device;               /* memory of a device: the CPU does not touch it */
    struct ibv_mr *mrs[HKT__VERBS_RAILS_MAX];
};
#define HKT__VERBS_PINS_MAX 64 /* per domain */

struct hkt__verbs_pins {
    pthread_mutex_t lock;         /* pin and unpin (any thread) against the domain's, which looks things up */
    struct hkt__verbs_pin pins[HKT__VERBS_PINS_MAX]; /* [0, count) */
    int count, last;              /* last: found last */
    size_t bytes;                 /* of the host's */
};

struct hkt__verbs_queue {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    int entries, used;            /* used: what the paths on it may need */
    unsigned unacked;             /* events to acknowledge before the queue ends */
};

/** Calls of libibverbs that a domain's traffic has cost; a line of the log when it closes. */
struct hkt__verbs_counts {
    uint64_t posts, credits;      /* ibv_post_send, one doorbell each; of these, empty ones that only tell of credit */
    uint64_t acks, arrivals;      /* completions: of what was sent, of what was received */
    uint64_t refills;             /* ibv_post_recv, of many tokens each */
    uint64_t polls, vain;         /* ibv_poll_cq; those that found nothing */
    uint64_t sleeps;              /* waits for an event */
};

struct hkt__verbs_dom {
    struct hkt__tp_dom dom;       /* first */
    struct hkt__verbs *verbs;
    struct hkt__tp_dom *wire;
    int nranks, rank, lanes;
    const int32_t *job_ranks;
    unsigned char *use;           /* [nranks] */
    struct hkt__verbs_link **links; /* [nranks * lanes], NULL until asked for */
    int connecting, moved;        /* links that are being opened; that went over to tcp */
    struct hkt__verbs_pins pins;
    struct hkt__verbs_counts counts;
    struct hkt__verbs_queue queues[HKT__VERBS_RAILS_MAX];
    /* wake (any thread) and park (the domain's) meet here; as in tcp.c. */
    int wake_fd;
    atomic_int woken;
};

/** Take completions. True: there were some. */
bool hkt__verbs_progress(struct hkt__verbs_dom *dom);
/** Make room for `entries` completions more on a rail's queue, creating it if need be. */
HKT_NODISCARD enum hkt_status hkt__verbs_queue_reserve(struct hkt__verbs_dom *dom, int rail, int entries);

HKT_NODISCARD enum hkt_status hkt__verbs_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members,
                                                  struct hkt__tp_dom **out_dom, void *out_blob, size_t *out_bytes);
HKT_NODISCARD enum hkt_status hkt__verbs_dom_connect(struct hkt__tp_dom *dom, const unsigned char *blobs,
                                                     const size_t *bytes, const unsigned char *use);
void hkt__verbs_dom_close(struct hkt__tp_dom *dom);
void hkt__verbs_park(struct hkt__tp_dom *dom, int64_t timeout_ns);
void hkt__verbs_wake(struct hkt__tp_dom *dom);

/* ---- memory (verbs_mem.c) ---- */

bool hkt__verbs_mem_pin(struct hkt__tp_dom *dom, const void *data, size_t bytes);
void hkt__verbs_mem_unpin(struct hkt__tp_dom *dom, const void *data);
enum hkt_status hkt__verbs_mem_pin_device(struct hkt__tp_dom *dom, const struct hkt__tp_device_memory *memory);
/** The keys of the pinned memory that [data, data + bytes) is part of, and whose it is. False: none. */
bool hkt__verbs_mem_find(struct hkt__verbs_dom *dom, const void *data, size_t bytes, uint32_t out_keys[HKT__VERBS_RAILS_MAX],
                         bool *out_is_device);
/** Unpin what is left. */
void hkt__verbs_mem_fini(struct hkt__verbs_dom *dom);

/* ---- memory of devices (verbs_device.c) ---- */

enum hkt_status hkt__verbs_mem_prove(struct hkt__tp_dom *dom, const void *data, const void *expected, size_t bytes);

/* ---- paths (verbs_path.c) ---- */

enum hkt__verbs_kind { HKT__VERBS_RECV, HKT__VERBS_FRAME, HKT__VERBS_CONTROL, HKT__VERBS_PROBE };

/** What an immediate says, highest bits first: its kind, how many frames are consumed, the number of a frame; the lowest bits of
 *  both numbers, of which at most HKT__VERBS_SLOTS_MAX neighbours can be meant. */
#define HKT__VERBS_IMM_BITS 15
#define HKT__VERBS_IMM_MASK ((UINT32_C(1) << HKT__VERBS_IMM_BITS) - 1)
enum hkt__verbs_imm { HKT__VERBS_IMM_FRAME, HKT__VERBS_IMM_CREDIT, HKT__VERBS_IMM_PROBE };

static inline uint32_t hkt__verbs_imm_make(enum hkt__verbs_imm kind, uint32_t consumed, uint32_t number)
{
    return (uint32_t)kind << 2 * HKT__VERBS_IMM_BITS | (consumed & HKT__VERBS_IMM_MASK) << HKT__VERBS_IMM_BITS |
           (number & HKT__VERBS_IMM_MASK);
}

enum hkt__verbs_path_state { HKT__VERBS_PATH_NONE, HKT__VERBS_PATH_READY, HKT__VERBS_PATH_UP, HKT__VERBS_PATH_DOWN };

/** A queue pair of a link. */
struct hkt__verbs_path {
    struct hkt__verbs_link *link;
    int index;
    int rail, peer_rail;
    enum hkt__verbs_path_state state;
    bool is_proved;               /* the packet of full size was acknowledged */
    struct ibv_qp *qp;
    uint32_t psn, peer_qpn, peer_psn;
    uint32_t inline_max;
    uint32_t peer_key;            /* of the peer's ring, on its rail */
    uint8_t mtu;
    uint64_t flying;              /* bytes of frames that are posted and not known to have arrived */
    uint32_t posted, asked, done; /* writes: number of the last one posted, of the last that asked for a completion, and of the
                                   * last completed, which completes all before it */
    uint32_t owed;                /* tokens used up and not put back */
    char why[HKT__VERBS_TEXT_MAX * 2]; /* when DOWN */
};

/** Bytes on this side. */
struct hkt__verbs_piece {
    const void *data;
    uint32_t bytes;
    uint32_t key;
};

/** A write of a frame: one piece or two on this side, slot on the other. */
struct hkt__verbs_write {
    struct hkt__verbs_piece from[2];
    uint64_t to;
    uint32_t imm;
    enum hkt__verbs_kind kind;
    bool wants_ack;               /* else only every `slots`-th asks for a completion */
};

HKT_NODISCARD enum hkt_status hkt__verbs_path_create(struct hkt__verbs_path *path);
/** To the state where it receives and sends. Failures are recorded in the path, which is DOWN then. */
void hkt__verbs_path_connect(struct hkt__verbs_path *path);
void hkt__verbs_path_destroy(struct hkt__verbs_path *path);
/** False: the path went DOWN. */
bool hkt__verbs_path_post(struct hkt__verbs_path *path, const struct hkt__verbs_write *write);
/** How many frames, and credits, may be posted now: there is room for a failed path's frames besides. */
bool hkt__verbs_path_has_room(const struct hkt__verbs_path *path, enum hkt__verbs_kind kind);
/** Take a path out of service: nothing it sent and has not completed counts as sent. */
void hkt__verbs_path_fail(struct hkt__verbs_path *path, enum hkt_status status, const char *why);
/** Completions a path may have under way: for the queue. */
int hkt__verbs_path_entries(const struct hkt__verbs_link *link);
/** A completion of one of the domain's queues. */
void hkt__verbs_path_complete(struct hkt__verbs_dom *dom, const struct ibv_wc *wc);

/* ---- the wire ---- */

/** What the ends of a link tell each other, in this order: HELLO, READY, VERDICT. A wire format. */
struct hkt__verbs_hello {
    uint32_t magic;
    uint16_t version, npaths;
    uint64_t ring;                /* address of the first slot */
    uint32_t keys[HKT__VERBS_RAILS_MAX];
    uint32_t qpns[HKT__VERBS_PATHS_MAX], psns[HKT__VERBS_PATHS_MAX];
};
struct hkt__verbs_state {
    uint32_t magic;
    uint32_t paths;               /* bit i: path i is connected (READY), or proved (VERDICT) */
    char why[HKT__VERBS_TEXT_MAX]; /* of the first that is not */
};

/** A message that is being sent or received, in as many frames as the channel likes. */
struct hkt__verbs_message {
    unsigned char data[HKT__VERBS_TEXT_MAX + 64];
    size_t bytes, done;
};
_Static_assert(sizeof(struct hkt__verbs_hello) <= HKT__VERBS_TEXT_MAX + 64 &&
               sizeof(struct hkt__verbs_state) <= HKT__VERBS_TEXT_MAX + 64, "messages must fit");

/* ---- links (verbs_link.c) ---- */

enum hkt__verbs_stage { HKT__VERBS_WIRE, HKT__VERBS_HELLO, HKT__VERBS_READY, HKT__VERBS_PROVING, HKT__VERBS_VERDICT,
                        HKT__VERBS_OPEN, HKT__VERBS_MOVED };

/** A frame on its way. */
struct hkt__verbs_flight {
    uint32_t seq;
    uint32_t bytes;               /* header and payload */
    int path;
    uint32_t order;               /* of its write among the path's */
    bool is_busy;                 /* posted; the slot, or what is lent, may still be read */
    bool wants_ack;               /* is busy until its write is acknowledged, whatever the peer has consumed */
    const void *lent;             /* where the payload is; NULL: in the slot, behind the header */
    uint32_t lent_keys[HKT__VERBS_RAILS_MAX];
};

struct hkt__verbs_tx {
    struct hkt__chan chan;        /* first */
    struct hkt__verbs_link *link;
    uint32_t seq;                 /* of the next frame, from 1 */
    uint32_t consumed;            /* frames the peer has used up */
    int lent;                     /* busy frames whose payload is the caller's memory */
    uint64_t lent_frames;         /* so far */
    struct hkt__verbs_flight flights[HKT__VERBS_SLOTS_MAX];
};

struct hkt__verbs_rx {
    struct hkt__chan chan;        /* first */
    struct hkt__verbs_link *link;
    uint32_t seq;                 /* of the oldest frame, here or awaited */
    uint32_t told;                /* frames told as consumed */
    bool is_told_late;            /* a credit could not be sent, or was lost */
    uint32_t arrived[HKT__VERBS_SLOTS_MAX]; /* number of the frame in the slot */
    int vain;                     /* looks that found nothing */
};

struct hkt__verbs_link {
    struct hkt__verbs_dom *dom;
    int peer, lane;
    enum hkt__verbs_stage stage;
    enum hkt_status failed;       /* sticky */
    char why[HKT__VERBS_TEXT_MAX * 3];
    struct hkt__chan *wire_tx, *wire_rx;
    struct hkt__verbs_message out, in;
    uint32_t slots, slot_bytes;   /* the smaller ones of both ends */
    uint64_t peer_ring;
    int npaths, up;               /* up: paths that are UP */
    bool is_warning_due;          /* the peer does not know yet that a path failed */
    struct hkt__verbs_path paths[HKT__VERBS_PATHS_MAX];
    unsigned char *memory;        /* the ring, then the slots frames are sent from */
    size_t memory_bytes;
    struct ibv_mr *ring_mr[HKT__VERBS_RAILS_MAX], *send_mr[HKT__VERBS_RAILS_MAX];
    struct hkt__verbs_tx tx;
    struct hkt__verbs_rx rx;
};

/** A slot: room for a header right before a payload that starts a cache line. */
#define HKT__VERBS_HEAD ((size_t)64)
#define HKT__VERBS_HEADER_AT (HKT__VERBS_HEAD - sizeof(struct hkt__frame_header))

static inline size_t hkt__verbs_stride(const struct hkt__verbs_link *link)
{
    return HKT__VERBS_HEAD + link->slot_bytes;
}
static inline unsigned char *hkt__verbs_ring_slot(const struct hkt__verbs_link *link, uint32_t slot)
{
    return link->memory + slot * hkt__verbs_stride(link);
}
static inline unsigned char *hkt__verbs_send_slot(const struct hkt__verbs_link *link, uint32_t slot)
{
    return link->memory + (link->slots + slot) * hkt__verbs_stride(link);
}

HKT_NODISCARD enum hkt_status hkt__verbs_link_create(struct hkt__verbs_dom *dom, int peer, int lane,
                                                     struct hkt__verbs_link **out_link);
/** One step towards open; IN_PROGRESS, OK or an error. */
enum hkt_status hkt__verbs_link_step(struct hkt__verbs_link *link);
void hkt__verbs_link_destroy(struct hkt__verbs_link *link);
/** The last path is gone, or the peer. */
void hkt__verbs_link_fail(struct hkt__verbs_link *link, enum hkt_status status, const char *why);
/** Record the link's failure for the caller. */
enum hkt_status hkt__verbs_link_failed(const struct hkt__verbs_link *link);
/** Hear what the peer has to say over the wire: that paths failed there, or nothing any more. True: the link has failed. */
bool hkt__verbs_link_listen(struct hkt__verbs_link *link);
/** Tell the peer which paths are left: what fails here may look well there, where nothing is being sent. */
void hkt__verbs_link_warn(struct hkt__verbs_link *link);

/* ---- frames (verbs_chan.c) ---- */

extern const struct hkt__chan_ops hkt__verbs_chan_ops;

void hkt__verbs_chan_init(struct hkt__verbs_link *link);
/** An immediate has arrived. */
void hkt__verbs_chan_arrived(struct hkt__verbs_link *link, uint32_t imm);
/** Writes of a path are acknowledged, up to path->done. */
void hkt__verbs_chan_acked(struct hkt__verbs_path *path);
/** Ask for acknowledgement of all that was sent. */
void hkt__verbs_chan_ask(struct hkt__verbs_link *link);
/** Send by the other paths what one that failed had under way, credit included. */
void hkt__verbs_chan_resend(struct hkt__verbs_path *path);
/** A credit that could not go may now. */
void hkt__verbs_chan_retell(struct hkt__verbs_link *link);
/** Frames sent that may not have arrived. */
bool hkt__verbs_chan_is_flying(const struct hkt__verbs_link *link);

/* ---- words (verbs_text.c) ---- */

/** What a completion's status means here, and the mend: "... (IBV_WC_RETRY_EXC_ERR, vendor 129)". */
void hkt__verbs_wc_text(const struct hkt__verbs_path *path, const struct ibv_wc *wc, char *out_text, size_t bytes);
/** Memory that this process may lock, SIZE_MAX: any. */
size_t hkt__verbs_lockable_bytes(void);
/** Registration failed with errno: which limit, and how to raise it. Records and returns the failure. */
enum hkt_status hkt__verbs_fail_register(const char *device, size_t bytes);

#endif
