/* net, inside: what its files share. The story:
 *
 *   net.c         the operations table: instances, which devices, who reaches whom
 *   net_plugin.c  the plugin: loading, and calls by the signatures of its version (net_abi.h)
 *   net_dom.c     domains: progress, the pump, sleeping, closing
 *   net_link.c    the two channels of a lane to one peer: opening, what the peer says over tcp
 *   net_chan.c    frames over a link
 *
 * A link is two connections of the plugin, one each way. Handles of listeners travel over a tcp channel of the same domain,
 * which proves both ends to each other, as the plugin's connections do not. It stays open: over it an end hears that the
 * other has closed and how many frames it has sent, or that its process has ended, which not all plugins notice. Where the
 * plugin finds no way between two ranks, and both may use tcp, the tcp channels become the link's.
 *
 * Frames. Each end has a ring of registered slots to send from and one to receive into; frame n uses slot n modulo SLOTS of
 * both, and is one message: header and payload. All free slots of the receiving ring are posted. A slot is the sender's again
 * when the plugin says that its message has ended; whatever holds messages back (no receive posted, full sockets) is the
 * credit, and it is the plugin's.
 *
 * The pump. Published frames must arrive even if their sender computes, but plugins may move data only within calls. So a
 * domain with messages under way has a thread that makes the calls when its user does not.
 *
 * Ownership: all of a domain is guarded by its lock, since the pump takes part; the tcp channels are the user's thread's. */
#ifndef HOCKET_TRANSPORT_NET_H
#define HOCKET_TRANSPORT_NET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "core/settings.h"
#include "transport/net_plugin.h"
#include "transport/transport.h"

#define HKT__NET_MAGIC 0x4e544b48u   /* "HKTN" */
#define HKT__NET_WIRE_VERSION 2
#define HKT__NET_SLOTS 8             /* the interface promises 8 messages under way per connection */
#define HKT__NET_FRAME_BYTES 131072
#define HKT__NET_TEXT_MAX 512

/** What one instance tells all others, in front of what its tcp tells; a wire format. */
struct hkt__net_blob {
    uint32_t magic;
    uint16_t version;
    uint8_t may_use_tcp, ndevices;
    char plugin[HKT__NET_NAME_MAX];  /* both ends need the same */
};

struct hkt__net {
    struct hkt__tp tp;               /* first */
    int job_rank, job_nranks;
    const _Atomic int *abort_word;
    struct hkt__settings wire_settings;
    struct hkt__tp *wire;            /* tcp */
    bool may_use_tcp;
    struct hkt__net_plugin *plugin;
    bool has_context;
    void *context;
    int ndevices;                    /* those used: the fastest */
    struct hkt__net_device devices[HKT__NET_DEVICES_MAX];
    struct hkt__net_blob *peers;     /* [job_nranks] after reach, of those that are in it */
};

struct hkt__net_link;

struct hkt__net_dom {
    struct hkt__tp_dom dom;          /* first */
    struct hkt__net *net;
    struct hkt__tp_dom *wire;
    int nranks, rank, lanes;
    const int32_t *job_ranks;
    unsigned char *use;              /* [nranks] */
    struct hkt__net_link **links;    /* [nranks * lanes], NULL until asked for */
    int wire_users;                  /* links that are being opened, or went over to tcp */
    int wake_fd;
    int64_t nap_ns;                  /* of the next park */
    pthread_mutex_t lock;            /* guards all of this, and the links */
    /* The pump. */
    pthread_cond_t work;             /* there is something to send, or the domain closes */
    pthread_t pump;
    bool has_pump, is_pump_idle, is_closing;
    int flying;                      /* frames that the plugin has yet to send */
    uint64_t calls;                  /* of the user: while they go on, the pump rests */
};

struct hkt__net_tx {
    struct hkt__chan chan;           /* first */
    struct hkt__net_link *link;
    uint32_t seq;                    /* of the next frame, from 1 */
    uint32_t posted, done;           /* frames that the plugin has taken; that it has sent */
    uint32_t bytes[HKT__NET_SLOTS];
    void *requests[HKT__NET_SLOTS];
    unsigned char *memory;
    void *region;
    bool has_region;
};

struct hkt__net_rx {
    struct hkt__chan chan;           /* first */
    struct hkt__net_link *link;
    uint32_t seq;                    /* of the oldest frame, here or awaited, from 1 */
    uint32_t posted, ready;          /* frames that the plugin may receive; that it has */
    uint32_t bytes[HKT__NET_SLOTS];
    void *requests[HKT__NET_SLOTS];
    unsigned char *memory;
    void *region;
    bool has_region;
    unsigned vain;                   /* looks that found nothing */
};

enum hkt__net_stage { HKT__NET_WIRE, HKT__NET_HELLO, HKT__NET_CONNECTING, HKT__NET_VERDICT, HKT__NET_OPEN, HKT__NET_MOVED };

/** What the ends of a link tell each other over tcp, in this order: HELLO, VERDICT, BYE. A wire format. */
struct hkt__net_message {
    uint32_t magic;
    uint16_t version, kind;          /* enum hkt__net_stage: HELLO, VERDICT, or MOVED for BYE */
    uint32_t is_well;                /* HELLO, VERDICT: 0: the plugin failed at this end, see why */
    uint32_t number;                 /* HELLO: bytes of a frame; BYE: frames sent */
    char why[HKT__NET_TEXT_MAX];
    unsigned char handle[HKT__NET_HANDLE_BYTES]; /* HELLO */
};

/** A message that is being sent or received, in as many frames as the channel likes. */
struct hkt__net_mail {
    struct hkt__net_message message;
    size_t done;                     /* bytes */
};

struct hkt__net_link {
    struct hkt__net_dom *dom;
    int peer, lane;
    enum hkt__net_stage stage;
    enum hkt_status failed;          /* sticky */
    char why[HKT__NET_TEXT_MAX];
    bool is_well, is_peer_well;      /* while opening: the plugin has done, or may yet do, its part */
    bool is_connecting;              /* the plugin keeps a connection half made in the handle */
    bool is_leaving;                 /* the peer closes, after frames_last frames */
    uint32_t frames_last;
    struct hkt__chan *wire_tx, *wire_rx;
    struct hkt__net_mail out, in;
    struct hkt__net_site site;
    unsigned char handle[HKT__NET_HANDLE_BYTES]; /* of the peer: plugins keep state in it */
    void *listener, *sender, *receiver;
    size_t frame_bytes;              /* the smaller of both ends' */
    struct hkt__net_tx tx;
    struct hkt__net_rx rx;
};

/** A slot: room for a header right before a payload that starts a cache line. */
#define HKT__NET_HEAD ((size_t)64)
#define HKT__NET_HEADER_AT (HKT__NET_HEAD - sizeof(struct hkt__frame_header))

static inline size_t hkt__net_stride(const struct hkt__net_link *link)
{
    return HKT__NET_HEAD + link->frame_bytes;
}

/* ---- domains (net_dom.c) ---- */

HKT_NODISCARD enum hkt_status hkt__net_dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members,
                                                struct hkt__tp_dom **out_dom, void *out_blob, size_t *out_bytes);
HKT_NODISCARD enum hkt_status hkt__net_dom_connect(struct hkt__tp_dom *dom, const unsigned char *blobs, const size_t *bytes,
                                                   const unsigned char *use);
void hkt__net_dom_close(struct hkt__tp_dom *dom);
void hkt__net_park(struct hkt__tp_dom *dom, int64_t timeout_ns);
void hkt__net_wake(struct hkt__tp_dom *dom);
/** A frame was published: the pump must know. Under the lock. */
void hkt__net_took_off(struct hkt__net_dom *dom);
/** Go on sending what waits, on all links. True: something moved. Under the lock. */
bool hkt__net_push(struct hkt__net_dom *dom);

/* ---- links (net_link.c); under the lock ---- */

HKT_NODISCARD enum hkt_status hkt__net_link_create(struct hkt__net_dom *dom, int peer, int lane,
                                                   struct hkt__net_link **out_link);
/** One step towards open; IN_PROGRESS, OK or an error. */
enum hkt_status hkt__net_link_step(struct hkt__net_link *link);
void hkt__net_link_destroy(struct hkt__net_link *link);
/** What this thread last failed with is the end of the link. */
void hkt__net_link_fail(struct hkt__net_link *link, enum hkt_status status);
/** Record the link's failure for the caller. */
enum hkt_status hkt__net_link_failed(const struct hkt__net_link *link);
/** Hear what the peer says over tcp: that it closes, or nothing any more. */
void hkt__net_link_listen(struct hkt__net_link *link);
/** Tell the peer that this end closes. */
void hkt__net_link_say_bye(struct hkt__net_link *link);

/* ---- frames (net_chan.c) ---- */

extern const struct hkt__chan_ops hkt__net_chan_ops;
void hkt__net_chan_init(struct hkt__net_link *link);
/** Let the plugin send; post receives and take what has arrived. True: something moved. Failures are the link's. Under the
 *  lock. */
bool hkt__net_chan_push(struct hkt__net_link *link);
bool hkt__net_chan_pull(struct hkt__net_link *link);

#endif
