/* Private to the bootstrap: the tree's links, the accepting side of a meeting, and what its files share. */
#ifndef HOCKET_COMM_BOOT_INT_H
#define HOCKET_COMM_BOOT_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/boot.h"
#include "comm/boot_net.h"
#include "comm/boot_wire.h"

#define HKT__BOOT_NRANKS_MAX (1 << 20)
#define HKT__BOOT_CLIENT_MS 5000         /* an accepted connection proves itself within this time or is dropped */
#define HKT__BOOT_PENDING_MAX 512        /* unproven connections kept; one more drops the oldest */
#define HKT__BOOT_QUEUE_MAX (1 << 20)    /* bytes waiting for a link; more: the peer is taken for dead */
#define HKT__BOOT_SEEN_MAX 1024          /* distinct events remembered; then the oldest is forgotten */
#define HKT__BOOT_NOTED_MAX 64           /* likewise notes */
#define HKT__BOOT_NOTES_QUEUE_MIN 4096   /* bytes each link has for its queue before notes are said */

/* Links of a rank in the tree. */
enum { HKT__PARENT, HKT__CHILD_A, HKT__CHILD_B, HKT__LINK_COUNT };

struct hkt__link {
    int fd;                  /* -1: none, or lost */
    int rank;                /* job rank at the other end, -1: none */
    bool has_left;           /* said farewell: its end of stream is no death */
    bool is_cut;             /* a transfer stopped half-way: a message now would be taken for its data */
    struct hkt__wire_reader reader;
    /* Bytes for the peer that the socket has not taken yet; guarded by the boot's mutex. */
    unsigned char *queue;
    size_t queue_bytes, queue_room;
    bool is_overfull;        /* the queue reached its limit: lost */
    bool is_armed;           /* monitor thread only: waiting for room in the socket */
};

/* What makes two events the same. */
struct hkt__event_key {
    uint32_t comm_id;
    int32_t reporter, culprit, status;
};

/* A note that was passed on, and when. */
struct hkt__noted {
    struct hkt__boot_note note;
    int64_t when_ns;
};

struct hkt__boot {
    struct hkt__boot *next;          /* in the list that fork looks at */
    bool is_inherited;               /* this is a forked child: nothing here is its own */
    int rank, nranks;
    int64_t timeout_ms;
    unsigned char token[HKT__TOKEN_BYTES];
    char local_address[HKT__NET_NAME_MAX];
    struct hkt__link links[HKT__LINK_COUNT];
    uint32_t gather_seq;
    enum hkt_status gather_status;   /* first failure of an all-gather: the tree is out of step ever after */

    /* Monitor. The handlers, epoll and wake are set before the thread starts and do not change while it runs. */
    bool is_monitored;
    int epoll, wake;
    pthread_t thread;
    struct hkt__boot_handlers handlers;
    pthread_mutex_t mutex;           /* queues, the tables of what was seen and noted, is_stopping */
    bool is_stopping;
    struct hkt__event_key seen[HKT__BOOT_SEEN_MAX];
    unsigned seen_count;             /* of all times; slot = count mod the table's size */
    struct hkt__noted noted[HKT__BOOT_NOTED_MAX];
    unsigned noted_next;             /* slot that gives way next */
};

/* Tree shape: a binary heap over ranks; -1 where there is none. */
int hkt__boot_tree_parent(int rank);
int hkt__boot_tree_child(int rank, int which, int nranks);

/** The listener that hkt__boot_id_create opened for this id in this process; the caller owns it. -1: none. */
int hkt__boot_listener_take(const struct hkt__boot_id *id);
/** The 16 bytes of a job's token from any text: equal texts, equal tokens. */
void hkt__boot_token_of(const char *text, unsigned char out_token[HKT__TOKEN_BYTES]);
/** Random bytes from the kernel. */
HKT_NODISCARD enum hkt_status hkt__boot_random(void *out, size_t bytes);

/* ---- the accepting side of a meeting: at the root for all ranks, at an inner node for its children ---- */

/** One accepted connection. */
struct hkt__boot_client {
    struct hkt__boot_client *next;   /* in the list of pending or gone ones */
    int fd;
    int rank;                        /* -1 until proven */
    int pid;
    bool is_ready;
    int64_t deadline_ns;             /* while pending */
    char name[HKT__NET_NAME_MAX];
    struct hkt__wire_challenge challenge;
    struct hkt__net_addresses addresses;
    struct hkt__wire_reader reader;
};

struct hkt__boot_server {
    const struct hkt__boot *boot;
    enum hkt__wire_purpose purpose;
    int listener, epoll;             /* the server owns both */
    struct hkt__boot_client **arrived; /* slot: rank at the root, number of the child elsewhere */
    int nslots, nwanted, narrived, nready;
    struct hkt__boot_client *pending, **pending_tail, *gone;
    int npending;
    bool is_watch_ready;             /* after a step: input on the watched connection */
    const struct hkt__error *verdict;/* the meeting has failed: all who come are told; NULL: it goes on */
    int ntold;
};

/** Serve on `listener`, which the server takes over, also on failure: close it in any case. One that failed for want of memory can
 *  fail all who come. */
HKT_NODISCARD enum hkt_status hkt__boot_server_open(struct hkt__boot_server *server, const struct hkt__boot *boot,
                                                    int listener);
/** End steps also when there is input on fd; see is_watch_ready. */
HKT_NODISCARD enum hkt_status hkt__boot_server_watch(struct hkt__boot_server *server, int fd);
/** Accept, read and answer what is there, waiting at most until until_ns. A failure is the meeting's. */
HKT_NODISCARD enum hkt_status hkt__boot_server_step(struct hkt__boot_server *server, int64_t until_ns);
/** Take the connection of a slot out; the caller owns it. -1: none. */
int hkt__boot_server_take(struct hkt__boot_server *server, int slot);
/** The meeting has failed: tell those who arrived, and, until until_ns, those who still come. */
void hkt__boot_server_fail_all(struct hkt__boot_server *server, const struct hkt__error *verdict, int64_t until_ns);
/** Send one message to all that arrived; those who cannot take it are noticed by their silence. */
void hkt__boot_server_send_all(struct hkt__boot_server *server, const struct hkt__wire_writer *message);
/** "3, 7-9": ranks that have not arrived (or, is_ready_wanted, are not ready), cut to fit. */
void hkt__boot_server_missing(const struct hkt__boot_server *server, bool is_ready_wanted, char *out_text,
                              size_t text_bytes);
void hkt__boot_server_close(struct hkt__boot_server *server);

/* ---- the connecting side ---- */

/** Where to and as whom. */
struct hkt__boot_goal {
    enum hkt__wire_purpose purpose;
    int rank;                        /* who must answer */
    const char *hosts;               /* resolved anew in each round; NULL: `targets` is fixed */
    uint16_t port;
    struct hkt__net_targets targets;
    struct hkt__net_addresses own;   /* where this rank listens; without addresses: its end of the link and more */
    const char *interface;           /* see hkt__net_own_addresses */
    int64_t deadline_ns;
    int64_t timeout_ms;              /* for the text */
};

/** The connection to the root while the meeting lasts. */
struct hkt__boot_root_link {
    int fd;                          /* -1: not there yet */
    char name[HKT__NET_NAME_MAX];
    bool is_over;                    /* it ended the meeting, or is gone: nothing more to say to it */
    struct hkt__wire_reader reader;
};

/** Connect and prove, in turn to all addresses, until the deadline. root: watched meanwhile when its fd >= 0. */
HKT_NODISCARD enum hkt_status hkt__boot_join(const struct hkt__boot *boot, struct hkt__boot_goal *goal,
                                             struct hkt__boot_root_link *root, int *out_fd,
                                             char out_name[HKT__NET_NAME_MAX]);
/** Wait for a message of one type from the root. AGAIN: the deadline passed. */
HKT_NODISCARD enum hkt_status hkt__boot_root_wait(struct hkt__boot_root_link *root, enum hkt__wire_type type,
                                                  int64_t deadline_ns, struct hkt__wire_message *out_message);
/** Look whether the root has ended the meeting, or itself. */
HKT_NODISCARD enum hkt_status hkt__boot_root_poll(struct hkt__boot_root_link *root);

/* ---- forks of the application ---- */

/** From now on a forked child closes its copies of this boot's descriptors. */
void hkt__boot_fork_add(struct hkt__boot *boot);
void hkt__boot_fork_remove(struct hkt__boot *boot);

/* ---- events ---- */

/** Queue an event for all links but `from` (-1: none); false when it was seen before. */
bool hkt__boot_event_spread(struct hkt__boot *boot, const struct hkt__boot_event *event, int from);
/** Give the sockets what they take. Monitor thread, or any when there is none. */
void hkt__boot_queues_flush(struct hkt__boot *boot);

#endif
