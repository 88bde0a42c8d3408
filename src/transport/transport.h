/* What a transport is: a small table of operations that never block.
 *
 *   instance (hkt__tp)       one per rank of a job: listens, knows how to reach peers
 *   domain   (hkt__tp_dom)   one per communicator: owns the memory and connections of that communicator's channels
 *   channel  (hkt__chan)     one direction of one lane to one peer: a FIFO of frames
 *
 * A frame is a 32-byte header and 0..frame_bytes_max bytes of payload. A sender asks for room (tx_begin), writes the
 * payload there and publishes it (tx_end); a receiver looks at the oldest frame (rx_begin), uses the payload where it
 * lies - reduces from it, say - and releases it (rx_end). So no transport copies more than its medium demands. Frames of
 * a channel arrive once, in order, whole, or the channel reports an error: PEER_LOST, CORRUPT. How a message is cut into
 * frames is the sender's choice: receivers accept any cut.
 *
 * Threads: the channels of one domain are used by one thread at a time; different domains of one instance concurrently.
 * Missing operations are overlaid with defaults at registration: no call site tests for NULL. */
#ifndef HOCKET_TRANSPORT_TRANSPORT_H
#define HOCKET_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "hocket/types.h"

struct hkt__settings;
struct hkt__tp;
struct hkt__tp_dom;
struct hkt__chan;

/** What a frame belongs to; compared by the receiver with its own, so that different calls are found out. */
struct hkt__stamp {
    uint32_t op_seq; /* operation number on the communicator (p2p: on the pair), low 32 bits */
    uint32_t call;   /* coll | dtype << 5 | op << 10 | algo << 16 | flags << 24 | cut << 27 (exec/call.h) */
    int32_t root;    /* root, or -1 */
    uint32_t crc;    /* CRC32C of the payload when the communicator uses it, else 0 */
    uint64_t count;  /* the API's count argument */
};

struct hkt__frame_header {
    uint32_t seq;   /* frame number on the channel, from 1; the last field a sender writes in shared memory */
    uint32_t bytes; /* of payload */
    struct hkt__stamp stamp;
};
_Static_assert(sizeof(struct hkt__frame_header) == 32, "the frame header is a wire format");

/** Room for the payload of one frame. */
struct hkt__room {
    void *data;
    size_t bytes;
};

/** The oldest frame of a channel. */
struct hkt__view {
    const void *data;
    size_t bytes;
    struct hkt__stamp stamp;
};

#define HKT__ROOM_MIN 32 /* a payload up to this size is never cut */

#define HKT__TP_SMALL 1024 /* bytes at most, for tx_small */

struct hkt__chan_ops {
    /** Room for a frame of at most `bytes`: min(bytes, HKT__ROOM_MIN) <= room <= frame_bytes_max; bytes == 0 is a bare
     *  signal. AGAIN: no credit now. Calling it again before tx_end replaces the room: for the same bytes by the same or a
     *  larger one, for fewer bytes by one that fits them as above (room beyond `bytes` is to be ignored). For more bytes it
     *  may be AGAIN: large frames may need credit of another kind. */
    enum hkt_status (*tx_begin)(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room);
    /** Publish the room's first `bytes` bytes as a frame: OK or a failure, never AGAIN (a room granted can be filled). */
    enum hkt_status (*tx_end)(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp);
    /** The oldest frame. AGAIN: none yet. Calling it again before rx_end returns the same frame. */
    enum hkt_status (*rx_begin)(struct hkt__chan *chan, struct hkt__view *out_view);
    void (*rx_end)(struct hkt__chan *chan);
    /* The next two spare a copy where the medium copies anyway. NULL: not offered; payloads then go through the room and
     * the view, as is best where both ends see the same memory. */
    /** As tx_end, with the payload at `data`, which stays the caller's, instead of in the room. */
    enum hkt_status (*tx_end_from)(struct hkt__chan *chan, const void *data, size_t bytes, const struct hkt__stamp *stamp);
    /** As rx_begin, but the payload is put at `to` if it has at most `room` bytes and is worth it; the view says where it
     *  is. AGAIN may leave a part of it there: until OK, ask again for the same place (or give the channel up). */
    enum hkt_status (*rx_into)(struct hkt__chan *chan, void *to, size_t room, struct hkt__view *out_view);
    /* These two spare the sender's copy where the medium reads memory by itself, later. NULL, both: not offered. */
    /** As tx_end_from, but the payload is only lent: nobody may write there while tx_is_lent says so. AGAIN: not from this
     *  memory (see mem_pin), or not so little; nothing was sent, the room is still there. */
    enum hkt_status (*tx_lend)(struct hkt__chan *chan, const void *data, size_t bytes, const struct hkt__stamp *stamp);
    /** Is anything lent that was not given back? Takes what came back. False too when the channel has failed, after which
     *  nothing is read any more: the next operation on it reports that. */
    bool (*tx_is_lent)(struct hkt__chan *chan);
    /** tx_begin, a copy from `data` and tx_end in one step, for a payload of at most HKT__TP_SMALL bytes, where these steps cost
     *  more than the message. AGAIN: no credit now. NULL: not offered. */
    enum hkt_status (*tx_small)(struct hkt__chan *chan, const void *data, size_t bytes, const struct hkt__stamp *stamp);
};

/** Embedded first in each transport's own channel. One object serves one direction. */
struct hkt__chan {
    const struct hkt__chan_ops *ops;
    size_t frame_bytes_max;
    int peer;                 /* rank in the communicator */
};

enum {
    HKT__TP_MEMORY = 1u << 0, /* window(): peers' windows are addressable by load and store */
    HKT__TP_USER = 1u << 1,   /* all memory of the peer is addressable (same process) */
    HKT__TP_POLLED = 1u << 2, /* looking for a frame makes no system call */
    HKT__TP_LENDS = 1u << 3   /* mem_pin and tx_lend: frames are sent from pinned memory where they lie */
};

/** What a transport can do and what it costs, for choosing (src/cost). Sources of the numbers: beside each table. */
struct hkt__tp_caps {
    unsigned flags;
    double latency_ns;        /* one small frame, one way */
    double ns_per_byte;
    size_t slice_bytes;       /* pieces that large messages are best cut in: large enough that what a frame costs vanishes, small
                               * enough to overlap. 0: HKT__SLICE_BYTES */
    size_t slice_bytes_least; /* of vectors of a few of these: smaller pieces overlap better. 0: all alike */
    double link_ns_per_byte;  /* of what joins this host to others, for all its ranks together; 0: not known */
};

#define HKT__SLICE_BYTES ((size_t)65536) /* stays in a core's second-level cache, as memory and sockets like it */

/** Most that a piece has over sockets (hkt__tp_caps.slice_bytes; the least is HKT__SLICE_BYTES), by what joins the hosts (ns per byte,
 *  0: not known), and whether each rank has it to itself. */
size_t hkt__tcp_slice_bytes(double link_ns_per_byte, bool is_alone);

/** Everything an instance may need to know; borrowed during open. */
struct hkt__tp_params {
    int job_rank, job_nranks;
    const unsigned char *token;           /* 16 bytes, secret of the job */
    const struct hkt__settings *settings;
    const _Atomic int *abort_word;        /* non-zero: stop waiting; borrowed until close; may be NULL */
};

/** A domain's members: index = rank in the communicator, value = rank in the job. */
struct hkt__tp_members {
    uint32_t comm_id;                     /* unique in the job, the same on all members */
    int nranks, rank;
    const int32_t *job_ranks;             /* borrowed for the domain's life */
    int lanes;                            /* channels per peer and direction */
    size_t window_bytes;                  /* memory transports: scratch that peers can address; 0: none */
    bool crc;
};

/** Memory of a device (a GPU's), for mem_pin_device. What a transport does not need it ignores: adapters know such memory by a
 *  dmabuf, other media by its address or its device. */
struct hkt__tp_device_memory {
    const void *data;                     /* as the program and its device address it; the CPU may not */
    size_t bytes;
    int device;                           /* CUDA's number */
    int dmabuf;                           /* descriptor, borrowed during the call; -1: none can be had */
    uint64_t dmabuf_offset;               /* where in it data begins */
};

#define HKT__TP_BLOB_MAX 512 /* bytes of an address or domain blob */

struct hkt__tp_ops {
    const char *name;
    const char *summary;
    /** Can this machine use it? OK, or UNSUPPORTED with the reason and mend in hkt__error_here(). */
    enum hkt_status (*probe)(const struct hkt__settings *settings);
    /** Is it to be used without being named in a list of transports? NULL: yes. Cheap. */
    bool (*is_wanted)(void);
    /** One line for `hocket info` where probe is OK: devices, say. NULL: the summary. */
    void (*describe)(char *out_text, size_t bytes);
    /** tp may be NULL: what an instance on this machine would say. */
    void (*query)(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps);
    enum hkt_status (*open)(const struct hkt__tp_params *params, struct hkt__tp **out_tp);
    void (*close)(struct hkt__tp *tp);
    /** What peers need to reach this instance; at most HKT__TP_BLOB_MAX bytes. */
    enum hkt_status (*address)(struct hkt__tp *tp, void *out_blob, size_t *out_bytes);
    /** Given all ranks' addresses (blob i at blobs + i * HKT__TP_BLOB_MAX, bytes[i] may be 0: transport absent there),
     *  find out who is reachable: out_ok[i] in {0, 1}, out_ok[own] = 1. Collective over the ranks of one host; may wait
     *  for them, at most until deadline_ns. Both sides of a pair must be ok before the pair uses the transport. */
    enum hkt_status (*reach)(struct hkt__tp *tp, const unsigned char *blobs, const size_t *bytes, int64_t deadline_ns,
                             unsigned char *out_ok);
    /** Local half of a communicator: reserve memory; *out_bytes of blob go to all members. */
    enum hkt_status (*dom_open)(struct hkt__tp *tp, const struct hkt__tp_members *members, struct hkt__tp_dom **out_dom,
                                void *out_blob, size_t *out_bytes);
    /** Other half: blobs of all members, as in reach; use[i] != 0 where this transport serves the pair. */
    enum hkt_status (*dom_connect)(struct hkt__tp_dom *dom, const unsigned char *blobs, const size_t *bytes,
                                   const unsigned char *use);
    void (*dom_close)(struct hkt__tp_dom *dom);
    /** The two channels of a lane to a peer. Connects on first use: IN_PROGRESS until the peer asks too; call again.
     *  Once OK, it stays OK: what becomes of them later is theirs to tell. Channels belong to the domain. */
    enum hkt_status (*chan_open)(struct hkt__tp_dom *dom, int peer, int lane, struct hkt__chan **out_tx,
                                 struct hkt__chan **out_rx);
    /** Base of a member's window (own included) in this address space; NULL without HKT__TP_MEMORY. */
    void *(*window)(struct hkt__tp_dom *dom, int peer);
    /** Memory of this rank that members of its domains can address, as they can its windows. Page aligned, zeroed; released
     *  by mem_free. UNSUPPORTED without HKT__TP_MEMORY. */
    enum hkt_status (*mem_alloc)(struct hkt__tp *tp, size_t bytes, void **out_memory);
    void (*mem_free)(struct hkt__tp *tp, void *memory);
    /** Is [data, data + bytes) part of such memory? Then *out_offset is where, relative to what peer_base gives. */
    bool (*mem_locate)(struct hkt__tp *tp, const void *data, size_t bytes, uint64_t *out_offset);
    /** Where a member's memory of that kind begins in this address space; NULL without HKT__TP_MEMORY. */
    void *(*peer_base)(struct hkt__tp_dom *dom, int peer);
    /** Can this rank copy from and to all memory of a rank of the job? Known after reach; each end asks for itself. */
    bool (*peer_copies)(const struct hkt__tp *tp, int job_rank);
    /** Do so; the memory is named by its address there. */
    enum hkt_status (*peer_read)(struct hkt__tp_dom *dom, int peer, void *to, uint64_t from, size_t bytes);
    enum hkt_status (*peer_write)(struct hkt__tp_dom *dom, int peer, uint64_t to, const void *from, size_t bytes);
    /** Make memory known to the devices that send of this domain, until mem_unpin with the same address or dom_close: frames
     *  may then be lent from it. False, with nothing done: none does that, or not with more or such memory. Peers need not
     *  know. Any thread. The memory must stay mapped until unpinned, and be in no operation when it is. */
    bool (*mem_pin)(struct hkt__tp_dom *dom, const void *data, size_t bytes);
    void (*mem_unpin)(struct hkt__tp_dom *dom, const void *data);
    /** As mem_pin, of memory of a device; mem_unpin takes it back. UNSUPPORTED, with the reason, where none can send from it. */
    enum hkt_status (*mem_pin_device)(struct hkt__tp_dom *dom, const struct hkt__tp_device_memory *memory);
    /** Tries it: do all that would send from [data, data + bytes), pinned by mem_pin_device, read there what is at `expected`?
     *  No channel is needed, no peer takes part. UNSUPPORTED, with what went wrong: they do not. */
    enum hkt_status (*mem_prove)(struct hkt__tp_dom *dom, const void *data, const void *expected, size_t bytes);
    /** Sleep until something may have arrived on this domain for a channel that was polled in vain, at most timeout_ns;
     *  early return is fine. An arrival may, rarely, be missed: choose a timeout of milliseconds. wake makes a sleeper of
     *  this process return, or the next sleep if there is none (any thread; for aborts); it is never missed. */
    void (*park)(struct hkt__tp_dom *dom, int64_t timeout_ns);
    void (*wake)(struct hkt__tp_dom *dom);
};

/** First member of each transport's own struct. */
struct hkt__tp {
    const struct hkt__tp_ops *ops;
};
struct hkt__tp_dom {
    const struct hkt__tp_ops *ops;
};

/** All transports in order of preference, defaults overlaid; NULL past the end. Those that are modules (module.h) are here
 *  whether they can be opened or not: of these, only name, summary, is_wanted, describe, probe, query(NULL) and open. An
 *  instance's own ops have everything. */
const struct hkt__tp_ops *hkt__transport_get(int index);

/** The same by name; NULL if there is none. */
const struct hkt__tp_ops *hkt__transport_find(const char *name);

/** What this machine has for it, one line. */
void hkt__transport_describe(const struct hkt__tp_ops *ops, char *out_text, size_t bytes);

/** "thread, shm, tcp": all names, for messages. */
void hkt__transport_names(char *out_text, size_t bytes);

/** Does a list like "shm,tcp" or "^tcp" (NULL, "": all) allow `name`? Without being named, only those are allowed that are
 *  wanted. INVALID when the list names no known transport. */
HKT_NODISCARD enum hkt_status hkt__transport_allowed(const char *list, const char *name, bool *out_allowed);

/** CRC32C (Castagnoli) of bytes, hardware instruction where there is one. */
uint32_t hkt__crc32c(uint32_t crc, const void *data, size_t bytes);

/** faulty: wrap the channels of a domain's transport with fault injection as settings->faults says (see faulty.c).
 *  Given the inner table, returns a table that wraps it; NULL when settings->faults is empty. */
const struct hkt__tp_ops *hkt__faulty_wrap(const struct hkt__tp_ops *inner, const struct hkt__settings *settings);

#endif
