/* tcp, inside: what its files share. The story:
 *
 *   tcp.c       the operations table: instances, domains, sleeping
 *   tcp_addr.c  which addresses of this host to listen on, and in which order to try a peer's (pure functions)
 *   tcp_congestion.c which congestion control sockets use
 *   tcp_hello.c the messages that open a socket, and their proofs
 *   tcp_door.c  the accepting side of a socket: listeners, guests that have not proved anything yet, arrivals
 *   tcp_link.c  the two channels of a lane to one peer: opening, the connecting side, closing
 *   tcp_chan.c  frames over the sockets of a link
 *
 * A link (one peer, one lane, both directions) has `nsockets` sockets; frame i of a direction travels on socket i modulo
 * nsockets and is read in that order, so the channel is a FIFO without any reordering buffer. The lower rank of the
 * communicator connects, the higher one accepts. Ownership: an instance's door is guarded by its lock; everything else of
 * a domain belongs to the one thread that uses the domain. */
#ifndef HOCKET_TRANSPORT_TCP_H
#define HOCKET_TRANSPORT_TCP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "core/error.h"
#include "transport/transport.h"

#define HKT__TCP_ADDRS_MAX 8
#define HKT__TCP_NICS_MAX 256
#define HKT__TCP_SOCKETS_MAX 16
#define HKT__TCP_TEXT_MAX 96      /* of an address with port and interface */
#define HKT__TCP_GUESTS_MAX 256   /* connections that have not proved themselves yet */

#define HKT__TCP_CONGESTION_MAX 16 /* of a name; as Linux has it */

/* Deadlines. An address that does not answer the SYN is left after CONNECT; one that connects but stays silent may be a
 * peer that computes, so it gets SILENT, doubled at each turn; a guest must prove itself within GUEST. */
#define HKT__TCP_CONNECT_NS INT64_C(2000000000)
#define HKT__TCP_SILENT_NS INT64_C(5000000000)
#define HKT__TCP_GUEST_NS INT64_C(2000000000)
#define HKT__TCP_FLUSH_NS INT64_C(2000000000) /* dom_close: for rests of frames, since the last progress */
/* A peer is given up after this many fruitless rounds through its addresses (about a second, if they refuse at once),
 * or at the end of a round after REACH. */
#define HKT__TCP_ROUNDS_MAX 5
#define HKT__TCP_REACH_NS INT64_C(20000000000)

/* ---- addresses (tcp_addr.c) ---- */

/** How willingly an address is used, best first. */
enum hkt__tcp_class { HKT__TCP_GLOBAL, HKT__TCP_LOCAL_ONLY, HKT__TCP_VIRTUAL, HKT__TCP_LOOPBACK };

/** One address of a host; a wire format. */
struct hkt__tcp_addr {
    uint8_t family;       /* 4 or 6 */
    uint8_t prefix_bits;
    uint8_t rank_class;   /* enum hkt__tcp_class */
    uint8_t zero;
    uint16_t port;        /* host order; 0 until it is listened on */
    uint16_t zero2;
    unsigned char ip[16]; /* network order; 4 or 16 bytes used */
    char name[16];        /* interface on its host */
};
_Static_assert(sizeof(struct hkt__tcp_addr) == 40, "part of a wire format");

/** What one instance tells all others; a wire format. */
struct hkt__tcp_blob {
    uint32_t magic;
    uint16_t version;
    uint16_t addr_count;
    uint64_t host_id;     /* the same on two ranks: they share a kernel and a network namespace, so loopback works */
    struct hkt__tcp_addr addrs[HKT__TCP_ADDRS_MAX];
};
_Static_assert(sizeof(struct hkt__tcp_blob) <= HKT__TP_BLOB_MAX, "the blob must fit");

/** One address as the system lists it. */
struct hkt__tcp_nic {
    struct hkt__tcp_addr addr;
    bool up;
};

/** List the addresses of this host's interfaces. */
HKT_NODISCARD enum hkt_status hkt__tcp_nics_list(struct hkt__tcp_nic *out_nics, int nics_max, int *out_count);
/** Choose the addresses to listen on, best first; pin is settings->interface. INVALID, naming what there is, when the pin
 *  matches nothing. Pure. */
HKT_NODISCARD enum hkt_status hkt__tcp_nics_choose(const struct hkt__tcp_nic *nics, int nic_count, const char *pin,
                                                   struct hkt__tcp_addr out_addrs[HKT__TCP_ADDRS_MAX], int *out_count);
/** In which order to try the addresses of `peer`, from a host described by `own`: indices into peer->addrs. May leave out
 *  addresses that cannot be meant, such as the loopback of another host. Pure. */
int hkt__tcp_route(const struct hkt__tcp_blob *own, const struct hkt__tcp_blob *peer,
                   unsigned char out_order[HKT__TCP_ADDRS_MAX]);
/** Is an address in a network of one of our addresses, or of this host? Pure. */
bool hkt__tcp_is_neighbour(const struct hkt__tcp_blob *own, const struct hkt__tcp_addr *addr);
/** Check and copy a blob that came over the wire. */
bool hkt__tcp_blob_read(const void *bytes, size_t size, struct hkt__tcp_blob *out_blob);
/** What the interface of an address says it carries, in ns per byte; 0: it does not say, or software made it. */
double hkt__tcp_link_ns_per_byte(const struct hkt__tcp_addr *addr);
size_t hkt__tcp_blob_bytes(const struct hkt__tcp_blob *blob);

/** "192.0.2.2:4711 (eth0)". */
void hkt__tcp_addr_text(const struct hkt__tcp_addr *addr, char out_text[HKT__TCP_TEXT_MAX]);
socklen_t hkt__tcp_addr_to_sock(const struct hkt__tcp_addr *addr, struct sockaddr_storage *out_sock);
/** Family, address and port; the other fields stay. */
void hkt__tcp_addr_from_sock(const struct sockaddr_storage *sock, struct hkt__tcp_addr *out_addr);
uint64_t hkt__tcp_host_id(void);

/* ---- opening a socket (tcp_hello.c) ---- */

#define HKT__TCP_VERSION 1

/* acceptor -> connector, first */
struct hkt__tcp_challenge {
    uint32_t magic;
    uint16_t version;
    uint16_t order;           /* 0x0102 in the sender's byte order: frames travel in it */
    unsigned char nonce[16];
};
/* connector -> acceptor */
struct hkt__tcp_hello {
    uint32_t magic;
    uint16_t version;
    uint16_t order;
    unsigned char nonce[16];
    uint64_t dom_nonce;       /* of the acceptor's domain */
    uint32_t comm_id;
    int32_t from_job, to_job; /* ranks in the job */
    int32_t from;             /* rank in the communicator */
    uint16_t lane, socket;
    uint32_t frame_bytes;
    uint64_t mac;             /* over the challenge's nonce and all the above, under the job's token */
};
/* acceptor -> connector */
struct hkt__tcp_reply {
    uint32_t magic;
    int32_t status;           /* enum hkt_status */
    uint64_t mac;             /* over both nonces and the status */
};
/* connector -> acceptor: this very socket is the one; frames follow */
struct hkt__tcp_confirm {
    uint32_t magic;
    uint32_t zero;
};
_Static_assert(sizeof(struct hkt__tcp_challenge) == 24 && sizeof(struct hkt__tcp_hello) == 64 &&
               sizeof(struct hkt__tcp_reply) == 16 && sizeof(struct hkt__tcp_confirm) == 8, "wire formats");

#define HKT__TCP_MAGIC_CHALLENGE 0x43544b48u /* "HKTC" read as little endian, and so on */
#define HKT__TCP_MAGIC_HELLO 0x48544b48u
#define HKT__TCP_MAGIC_REPLY 0x52544b48u
#define HKT__TCP_MAGIC_CONFIRM 0x4b544b48u
#define HKT__TCP_MAGIC_BLOB 0x42544b48u
#define HKT__TCP_ORDER 0x0102u

HKT_NODISCARD enum hkt_status hkt__tcp_random(void *out_bytes, size_t count);
uint64_t hkt__tcp_hello_mac(const unsigned char token[16], const unsigned char nonce[16],
                            const struct hkt__tcp_hello *hello);
uint64_t hkt__tcp_reply_mac(const unsigned char token[16], const unsigned char nonce[16],
                            const struct hkt__tcp_hello *hello, int32_t status);

/* ---- objects ---- */

struct hkt__tcp_dom;
struct hkt__tcp_link;

/** A listener or a guest in the door's epoll set. */
struct hkt__tcp_entry {
    int fd;
    bool is_listener;
};

/** A connection that was accepted and has not become a channel's yet: in the instance's list until it has confirmed, then
 *  in its domain's. Guarded by the instance's lock. */
struct hkt__tcp_guest {
    struct hkt__tcp_entry entry;  /* first */
    struct hkt__tcp_guest *next, *previous;
    int64_t deadline_ns;          /* of its proof; INT64_MAX afterwards */
    unsigned char nonce[16];
    bool proved;                  /* hello accepted and answered, confirm awaited */
    unsigned got;                 /* bytes of the message being read */
    union {
        struct hkt__tcp_hello hello;
        unsigned char bytes[sizeof(struct hkt__tcp_hello)];
    } in;
    union {
        struct hkt__tcp_confirm confirm;
        unsigned char bytes[sizeof(struct hkt__tcp_confirm)];
    } in2;
};

struct hkt__tcp {
    struct hkt__tp tp;            /* first */
    int job_rank, job_nranks;
    int nsockets, frame_bytes;
    bool pinned;                  /* connect from the pinned addresses too */
    /* Of sockets to neighbours, and to others; "": the system's, untouched (tcp_congestion.c). */
    char near_congestion[HKT__TCP_CONGESTION_MAX], far_congestion[HKT__TCP_CONGESTION_MAX];
    double link_ns_per_byte;      /* of the best address; 0: not known */
    bool is_alone;                /* no other rank is on this host; known once peers are */
    int64_t connect_ns, silent_ns; /* HKT__TCP_CONNECT_NS and SILENT_NS; shorter in tests */
    unsigned char token[16];
    const _Atomic int *abort_word;
    struct hkt__tcp_blob own;
    struct hkt__tcp_blob *peers;  /* [job_nranks] after reach; addr_count 0: absent */
    /* Written and read by threads of all domains, relaxed: a hint which address of a peer worked last, as an index into
     * its addrs; stale costs one more attempt. */
    _Atomic signed char *good;    /* [job_nranks], -1: none yet */
    char text[HKT__TCP_TEXT_MAX * HKT__TCP_ADDRS_MAX];

    pthread_mutex_t lock;         /* guards all below, and the arrivals of every domain */
    int door;                     /* epoll set of listeners and guests; itself a member of every domain's set */
    struct hkt__tcp_entry listeners[HKT__TCP_ADDRS_MAX];
    struct hkt__tcp_guest *guests, *guests_last; /* oldest first */
    int unproved_count;
    struct hkt__tcp_dom *doms;
};

/** What a member tells about its side of a domain; a wire format. */
struct hkt__tcp_dom_blob {
    uint64_t nonce;               /* names this side of the domain; never used twice */
    uint32_t nsockets, frame_bytes; /* its wish: a pair uses the smaller one */
};

struct hkt__tcp_dom {
    struct hkt__tp_dom dom;       /* first */
    struct hkt__tcp *tcp;
    struct hkt__tcp_dom *next;    /* in tcp->doms; guarded by the lock */
    struct hkt__tcp_guest *arrivals; /* confirmed, not taken by chan_open yet; guarded by the lock */
    uint32_t comm_id;
    int nranks, rank, lanes;
    const int32_t *job_ranks;
    uint64_t nonce;
    struct hkt__tcp_dom_blob *members; /* [nranks] after dom_connect; nonce 0: not served */
    struct hkt__tcp_link **links; /* [nranks * lanes], NULL until asked for */
    struct hkt__tcp_link *blocked; /* links that wait for room to send */
    int rests;                    /* those of them with a frame that the kernel took in part */
    int connecting;               /* links whose connecting side is at work */
    int epoll;                    /* -1 until first needed */
    /* wake (any thread) and park (the domain's) meet here: see tcp.c. */
    atomic_int wake_fd;           /* -1 until first needed */
    atomic_int woken;
};

/** The addresses an instance listens on, best first: "192.0.2.2:4711 (eth0), 127.0.0.1:4712 (lo)". */
const char *hkt__tcp_describe(const struct hkt__tp *tp);

/* ---- congestion control (tcp_congestion.c) ---- */

/** Find out which to use; wish is settings->tcp_congestion. tcp->own is known. INVALID: the wish cannot be had. */
HKT_NODISCARD enum hkt_status hkt__tcp_congestion_choose(struct hkt__tcp *tcp, const char *wish);
/** Of a socket that is about to connect to `peer`; of a listener, peer NULL. */
void hkt__tcp_congestion_set(const struct hkt__tcp *tcp, int fd, const struct hkt__tcp_addr *peer);
/** Of one that was accepted. */
void hkt__tcp_congestion_meet(const struct hkt__tcp *tcp, int fd);

/* ---- the door (tcp_door.c) ---- */

HKT_NODISCARD enum hkt_status hkt__tcp_door_open(struct hkt__tcp *tcp);
/** Accepts half-open instances. */
void hkt__tcp_door_close(struct hkt__tcp *tcp);
/** Listen on an address; port 0 lets the system choose, the port is filled in. */
HKT_NODISCARD enum hkt_status hkt__tcp_listen(struct hkt__tcp_addr *addr, int *out_fd);
/** Serve whoever knocks; never blocks. Takes the lock. An error means that nobody can be let in (descriptors). */
enum hkt_status hkt__tcp_door_serve(struct hkt__tcp *tcp);
/** Take an arrival meant for a socket of a link; -1: none yet. Takes the lock. */
int hkt__tcp_door_take(struct hkt__tcp_dom *dom, int peer, int lane, int socket);
/** Let hellos find a domain, from dom_open on; and no more, which drops what arrived and was not taken. */
void hkt__tcp_door_enter(struct hkt__tcp_dom *dom);
void hkt__tcp_door_leave(struct hkt__tcp_dom *dom);
/** Non-blocking, no delay, keep-alive. */
void hkt__tcp_socket_tune(int fd);
/** Record the failure of a call that makes a descriptor, with the mend when the process has no more. */
enum hkt_status hkt__tcp_fail_fd(const char *what);

/* ---- links (tcp_link.c) ---- */

enum hkt__tcp_stage { HKT__TCP_CLOSED, HKT__TCP_CHALLENGE, HKT__TCP_REPLY, HKT__TCP_OPEN };

struct hkt__tcp_socket {
    int fd;
    enum hkt__tcp_stage stage;
    bool is_out_watched;          /* its epoll entry asks for room to send */
    int64_t credit;               /* bytes the send buffer surely takes */

    unsigned char *buffer;        /* receive: [first, last) is not used up yet */
    size_t first, last;

    /* the connecting side, until stage OPEN */
    int turn;                     /* attempts so far; chooses the address */
    int failures;                 /* attempts that failed since the peer was last heard */
    int64_t start_ns, deadline_ns, retry_ns;
    unsigned got;
    unsigned char nonce[16];
    union {
        struct hkt__tcp_challenge challenge;
        struct hkt__tcp_reply reply;
        unsigned char bytes[sizeof(struct hkt__tcp_challenge)];
    } in;
    struct hkt__tcp_hello hello;
};

struct hkt__tcp_tx {
    struct hkt__chan chan;        /* first */
    struct hkt__tcp_link *link;
    uint32_t seq;                 /* of the next frame */
    int socket;                   /* of the frame with a rest, else of the next one */
    unsigned char *frame;         /* header, payload, padding in one piece */
    size_t bytes, sent;           /* of the frame last published; sent < bytes: the kernel has not taken the rest */
    int64_t granted;              /* room given out by tx_begin; -1: none */
    enum hkt_status failed;       /* sticky: frames are lost */
    int sys_errno;
};

struct hkt__tcp_rx {
    struct hkt__chan chan;        /* first */
    struct hkt__tcp_link *link;
    uint32_t seq;
    int socket;
    unsigned char *into;          /* the caller's place for the payload of the oldest frame; NULL: it is in the buffer */
    size_t into_got;              /* bytes that are there; then its padding follows in the buffer */
    struct hkt__frame_header into_header;
};

struct hkt__tcp_link {
    struct hkt__tcp_dom *dom;
    struct hkt__tcp_link *next_blocked;
    bool is_blocked, is_open, is_connecting;
    int peer, lane, nsockets;
    size_t frame_bytes;
    int order_count;
    unsigned char order[HKT__TCP_ADDRS_MAX];
    enum hkt_status why_status;   /* why attempts failed, for the final word */
    unsigned why_seen;            /* addresses that have their reason in `why` */
    char why[512];
    char where[HKT__TCP_TEXT_MAX]; /* the peer's address, once connected */
    struct hkt__tcp_tx tx;
    struct hkt__tcp_rx rx;
    unsigned char *memory;        /* all buffers */
    struct hkt__tcp_socket sockets[]; /* [nsockets] */
};

HKT_NODISCARD enum hkt_status hkt__tcp_link_create(struct hkt__tcp_dom *dom, int peer, int lane,
                                                   struct hkt__tcp_link **out_link);
/** One step towards open; IN_PROGRESS, OK or an error. Never blocks. */
enum hkt_status hkt__tcp_link_step(struct hkt__tcp_link *link);
void hkt__tcp_link_destroy(struct hkt__tcp_link *link);
/** Give the domain an epoll set and a wake descriptor, if it has none. */
HKT_NODISCARD enum hkt_status hkt__tcp_dom_arm(struct hkt__tcp_dom *dom);
/** Make the domain's sleeper return; any thread. */
void hkt__tcp_wake(struct hkt__tp_dom *dom);
/** Put a socket into the domain's epoll set. */
HKT_NODISCARD enum hkt_status hkt__tcp_dom_watch(struct hkt__tcp_dom *dom, int fd);

/* ---- frames (tcp_chan.c) ---- */

extern const struct hkt__chan_ops hkt__tcp_chan_ops;

#define HKT__TCP_ALIGN 32 /* frames are padded to it, so that every payload is aligned in the receive buffer */

/** Bytes a link needs for its buffers. */
size_t hkt__tcp_chan_memory(int nsockets, size_t frame_bytes);
void hkt__tcp_chan_init(struct hkt__tcp_link *link);
/** Offer the kernel the rests of frames it took in part; failures are recorded in their channels. */
void hkt__tcp_flush(struct hkt__tcp_dom *dom);
/** Before sleeping: have epoll report room for the blocked links. */
void hkt__tcp_watch_blocked(struct hkt__tcp_dom *dom);

#endif
