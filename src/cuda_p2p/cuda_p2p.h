/* cuda_p2p, inside: ranks of one host that have CUDA devices, driven by the host. What its files share:
 *
 *   cuda_p2p.c  the operations table: instances
 *   dom.c       domains: the arena of slots, sleeping, closing
 *   link.c      the two channels of a lane to one peer: opening, and whether the devices reach each other
 *   chan.c      frames over a link
 *
 * An instance holds one of shm's, and each lane has a channel of shm's below it, which carries all that is small: payloads
 * of up to HKT__P2P_SMALL bytes, and for each larger one a note. Its payload goes to a slot of the receiver's arena, memory
 * of its device, by the copy engine: from pinned memory of the host, or, when it is lent (tx_lend), from memory of a device.
 * The receiver's engine brings it to pinned memory of the host, or to where it is wanted on a device (rx_into).
 *
 * Credit is that of the channel below. Frames are counted there and here alike; frame n has slot n modulo the slots of
 * the channel below, and its note asks for room that only large frames take, so it is granted when frame n - slots was
 * released. Thus nothing can be written to a slot, nor to what its payload was copied from, that is still in use.
 *
 * Arrival is told by words in memory of the host that both ends map (struct hkt__p2p_word, in the window of the domain below):
 * after each copy the stream calls a function that stores the frame's number there. So frames arrive while their sender
 * computes, nothing waits for a stream, and no call is made that CUDA synchronises by itself.
 *
 * Trust. When a link opens each end maps the arena of the other and sends it a pattern the way frames go; both tell what they
 * saw. Where a device cannot reach the other, all frames of the link go through the channel below, at both ends. */
#ifndef HOCKET_CUDA_P2P_CUDA_P2P_H
#define HOCKET_CUDA_P2P_CUDA_P2P_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/cuda_group.h"
#include "transport/memring.h"
#include "transport/transport.h"

#define HKT__P2P_VERSION 1
#define HKT__P2P_MAGIC 0x50325048u /* "HP2P" */
#define HKT__P2P_SLOTS_MAX 8       /* as shm's default */
#define HKT__P2P_PREFIX sizeof(struct hkt__p2p_prefix)
#define HKT__P2P_SMALL (4096 - HKT__P2P_PREFIX) /* up to here through the host: shared memory takes less than a microsecond, an
                                                 * engine several to begin. And such frames survive a sender that is killed */
#define HKT__P2P_NOTE (HKT__RING_SMALL + HKT__P2P_PREFIX) /* bytes of a note: enough to need a slot of the channel below */
#define HKT__P2P_ARENA_MAX ((size_t)256 << 20)             /* a domain that would need more does without the device */
#define HKT__P2P_TEXT 160

/** Before the payload of each frame of the channel below. */
struct hkt__p2p_prefix {
    uint32_t kind;
    uint32_t bytes;                  /* of payload, wherever it is */
};

enum hkt__p2p_kind {
    HKT__P2P_INLINE = 1,             /* the payload follows */
    HKT__P2P_SLOT,                   /* it is in a slot */
    HKT__P2P_HELLO,                  /* struct hkt__p2p_verdict: is the arena mapped? */
    HKT__P2P_VERDICT                 /* the same: was the pattern right? */
};

struct hkt__p2p_verdict {
    int32_t is_ok;
    char why[HKT__P2P_TEXT];
};
_Static_assert(sizeof(struct hkt__p2p_verdict) <= HKT__P2P_SMALL, "a verdict is small");

/** What an instance tells all others, before shm's own address. */
struct hkt__p2p_address {
    uint32_t magic, version;
};

/** What a member tells about its domain, before shm's own blob. */
struct hkt__p2p_dom_blob {
    uint32_t nslots, has_arena;
    uint64_t slot_bytes;
    struct hkt__cuda_offer offer;
};

/** Of one member and lane, in the window of the receiver. The sender writes all of it. */
struct hkt__p2p_word {
    _Alignas(HKT__LINE) _Atomic uint32_t landed; /* the last frame whose slot is filled: publishes sizes and slots; release
                                                  * P1 by the stream's thread, acquire P2 by the receiver */
    _Atomic uint32_t broken;         /* 1: the sender's device failed. Relaxed: nothing else goes with it */
    _Atomic uint32_t mapped;         /* lane 0: 1 while that member maps the arena. At the owner's own place: the domain is
                                      * closing, do not map it. Sequentially consistent: each end stores one, then loads
                                      * the other */
    struct {
        uint32_t frame, bytes;
    } sizes[HKT__P2P_SLOTS_MAX];     /* what the slots hold */
};

struct hkt__p2p {
    struct hkt__tp tp;               /* first */
    struct hkt__tp *below;           /* shm's */
    const struct hkt__cuda_module *cuda;
    int job_rank, job_nranks;
    int device;                      /* current for the thread that opened the instance */
    uint32_t nslots;
    size_t slot_bytes;
};

struct hkt__p2p_link;

/** Tells the receiver that a frame has landed, from the stream's thread. */
struct hkt__p2p_landing {
    _Atomic uint32_t *word, *own;    /* the receiver's; this end's */
    void *slot;
    uint32_t frame;
};

/* Ranks of one process map the words of a window, and the counts of a channel, each at an address of its own, but a slot at
 * the same. So the thread sanitizer sees the slot, and not what orders its uses: these tell it. */
#ifdef __SANITIZE_THREAD__
void __tsan_release(void *address);
void __tsan_acquire(void *address);
static inline void hkt__p2p_pass_on(void *slot)
{
    __tsan_release(slot);
}
static inline void hkt__p2p_take_over(void *slot)
{
    __tsan_acquire(slot);
}
#else
static inline void hkt__p2p_pass_on(void *slot)
{
    (void)slot;
}
static inline void hkt__p2p_take_over(void *slot)
{
    (void)slot;
}
#endif

struct hkt__p2p_tx {
    struct hkt__chan chan;           /* first */
    struct hkt__p2p_link *link;
    struct hkt__chan *below;
    uint32_t sent;                   /* frames published, those of the opening included */
    bool is_slot;                    /* the room given last is a slot's */
    unsigned char *room;             /* of the channel below */
    bool has_lent;
    uint32_t lent;                   /* the last frame whose payload was lent: in use until it has landed */
    _Atomic uint32_t landed;         /* as the receiver's word; release P5 by the stream's thread, acquire P6 */
    struct hkt__p2p_word *word;      /* the receiver's */
    struct hkt__p2p_landing landings[HKT__P2P_SLOTS_MAX];
    unsigned char *memory;           /* pinned: a place for each slot */
    unsigned char *slots;            /* where this device sees the receiver's */
};

struct hkt__p2p_rx {
    struct hkt__chan chan;           /* first */
    struct hkt__p2p_link *link;
    struct hkt__chan *below;
    uint32_t taken;                  /* frames released */
    bool is_waiting;                 /* the last look found a note, and its payload under way */
    bool is_direct;                  /* rx_into was given memory of a device: nothing is fetched ahead */
    struct hkt__p2p_word *word;      /* the own */
    _Atomic uint32_t fetched;        /* the last frame that left its slot; release P3 by the stream's thread, acquire P4 */
    uint32_t started[HKT__P2P_SLOTS_MAX]; /* frames whose fetching has begun */
    void *places[HKT__P2P_SLOTS_MAX];     /* where to */
    struct hkt__p2p_landing landings[HKT__P2P_SLOTS_MAX];
    unsigned char *memory;           /* pinned: a place for each slot */
    unsigned char *slots;            /* in the own arena */
};

enum hkt__p2p_state {
    HKT__P2P_START,
    HKT__P2P_GREET,                  /* HELLO is to be sent */
    HKT__P2P_MEET,                   /* and to be received */
    HKT__P2P_SHOW,                   /* the pattern is to be sent */
    HKT__P2P_TRY,                    /* and to come */
    HKT__P2P_JUDGE,                  /* VERDICT is to be sent */
    HKT__P2P_AGREE,                  /* and to be received */
    HKT__P2P_OPEN
};

struct hkt__p2p_link {
    struct hkt__p2p_dom *dom;
    int peer, lane;
    enum hkt__p2p_state state;
    bool is_device;                  /* payloads go through slots */
    int64_t until_ns;                /* TRY: for the pattern */
    unsigned polls;                  /* in vain: now and then the streams are asked whether they are well */
    struct hkt__p2p_verdict own;
    struct hkt__p2p_tx tx;
    struct hkt__p2p_rx rx;
};

struct hkt__p2p_dom {
    struct hkt__tp_dom dom;          /* first */
    struct hkt__p2p *tp;
    struct hkt__tp_dom *below;
    int nranks, rank, lanes;
    struct hkt__cuda_group group;    /* module NULL: no arena, and why_not says why */
    struct hkt__cuda_offer offer;
    char why_not[HKT__P2P_TEXT];
    void *rx_stream;                 /* fetches; the group's own stream sends */
    int cuda_rc;                     /* what CUDA said first; 0: nothing. Sticky */
    struct hkt__p2p_dom_blob *members; /* [nranks] */
    struct hkt__p2p_link **links;    /* [nranks * lanes], NULL until asked for */
};

/* ---- domains (dom.c) ---- */

HKT_NODISCARD enum hkt_status hkt__p2p_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members,
                                                struct hkt__tp_dom **out_dom, void *out_blob, size_t *out_bytes);
HKT_NODISCARD enum hkt_status hkt__p2p_dom_connect(struct hkt__tp_dom *dom, const unsigned char *blobs,
                                                   const size_t *bytes, const unsigned char *use);
void hkt__p2p_dom_close(struct hkt__tp_dom *dom);
void hkt__p2p_park(struct hkt__tp_dom *dom, int64_t timeout_ns);
void hkt__p2p_wake(struct hkt__tp_dom *dom);
/** The word of a member and lane in the window of another; NULL: it has none. */
struct hkt__p2p_word *hkt__p2p_word_at(const struct hkt__p2p_dom *dom, int owner, int member, int lane);
/** Where the slots of a member and lane begin in an arena, in bytes. */
size_t hkt__p2p_slots_at(const struct hkt__p2p_dom *dom, int member, int lane);
/** Maps the arena of a peer, once. */
HKT_NODISCARD enum hkt_status hkt__p2p_map(struct hkt__p2p_dom *dom, int peer);

/* ---- links (link.c) ---- */

HKT_NODISCARD enum hkt_status hkt__p2p_chan_open(struct hkt__tp_dom *dom, int peer, int lane, struct hkt__chan **out_tx,
                                                 struct hkt__chan **out_rx);
void hkt__p2p_link_destroy(struct hkt__p2p_link *link);

/* ---- frames (chan.c) ---- */

extern const struct hkt__chan_ops hkt__p2p_chan_ops;
/** Notes what CUDA said, here and at all peers, and returns it as a failure. */
enum hkt_status hkt__p2p_fail(struct hkt__p2p_dom *dom, int rc, int peer);
/** After a poll in vain: AGAIN, or what has failed here or there. Asks the streams now and then. */
HKT_NODISCARD enum hkt_status hkt__p2p_idle(struct hkt__p2p_link *link);
/** Sends a frame of another kind. AGAIN: there is no room. */
HKT_NODISCARD enum hkt_status hkt__p2p_send_small(struct hkt__p2p_tx *tx, enum hkt__p2p_kind kind, const void *data,
                                                  size_t bytes);
/** Room for a frame that goes through a slot, of any size up to a slot's. */
HKT_NODISCARD enum hkt_status hkt__p2p_begin_slot(struct hkt__p2p_tx *tx, size_t bytes, struct hkt__room *out_room);
/** Sends bytes at `from` to the slot of the next frame, for which the channel below has given room, and publishes it. */
HKT_NODISCARD enum hkt_status hkt__p2p_send_slot(struct hkt__p2p_tx *tx, const void *from, size_t bytes,
                                                 const struct hkt__stamp *stamp);
/** The next frame of the channel below, split. AGAIN, or a failure. */
HKT_NODISCARD enum hkt_status hkt__p2p_peek(struct hkt__p2p_rx *rx, struct hkt__p2p_prefix *out_prefix,
                                            struct hkt__view *out_view);
/** Brings the payload of that frame, of `bytes` bytes, to `to`, or, where that is NULL, to memory of the channel; AGAIN: it is
 *  under way. */
HKT_NODISCARD enum hkt_status hkt__p2p_fetch(struct hkt__p2p_rx *rx, size_t bytes, void *to, const void **out_data);
/** Releases the frame. */
void hkt__p2p_release(struct hkt__p2p_rx *rx);
/** Is memory that was lent still being read? */
bool hkt__p2p_is_lent(const struct hkt__p2p_tx *tx);

#endif
