/* Two tcp instances of one process that meet on loopback, driven by one thread; and raw clients at the door of rank 1. Every
 * wait has a deadline. */
#ifndef HOCKET_TESTS_UNIT_TCP_PAIR_H
#define HOCKET_TESTS_UNIT_TCP_PAIR_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/mem.h"
#include "core/settings.h"
#include "transport/tcp.h"

#define DEADLINE_NS INT64_C(20000000000)

/* ---- a pair of ranks in this process ---- */

struct side {
    struct hkt__settings settings;
    struct hkt__tp *tp;
    struct hkt__tp_dom *dom;
    struct hkt__chan *tx, *rx;
    unsigned char dom_blob[HKT__TP_BLOB_MAX];
    size_t dom_bytes;
};

struct pair {
    const struct hkt__tp_ops *ops;
    struct side sides[2];
    unsigned char addresses[2 * HKT__TP_BLOB_MAX];
    size_t address_bytes[2];
    int32_t job_ranks[2];
};

static const unsigned char token[16] = "fifteen letters";
static const unsigned char other_token[16] = "FIFTEEN LETTERS";

static inline int64_t deadline(void)
{
    return hkt__now_ns() + DEADLINE_NS;
}

static inline void side_open(struct pair *pair, int rank, const char *interface, const unsigned char *secret)
{
    struct side *side = &pair->sides[rank];

    side->settings.interface = interface;
    const struct hkt__tp_params params = {.job_rank = rank, .job_nranks = 2, .token = secret, .settings = &side->settings};

    if (pair->ops->open(&params, &side->tp) != HKT_OK)
        fail_msg("open: %s", hkt_last_error());
    assert_int_equal(pair->ops->address(side->tp, pair->addresses + rank * HKT__TP_BLOB_MAX, &pair->address_bytes[rank]),
                     HKT_OK);
}

static inline void side_join(struct pair *pair, int rank)
{
    struct side *side = &pair->sides[rank];
    unsigned char is_ok[2];
    const struct hkt__tp_members members = {.comm_id = 9, .nranks = 2, .rank = rank, .job_ranks = pair->job_ranks, .lanes = 2};

    assert_int_equal(pair->ops->reach(side->tp, pair->addresses, pair->address_bytes, deadline(), is_ok), HKT_OK);
    assert_true(is_ok[0] && is_ok[1]);
    assert_int_equal(pair->ops->dom_open(side->tp, &members, &side->dom, side->dom_blob, &side->dom_bytes), HKT_OK);
}

static inline void pair_meet(struct pair *pair)
{
    static const unsigned char use[2] = {1, 1};
    unsigned char blobs[2 * HKT__TP_BLOB_MAX];
    const size_t bytes[2] = {pair->sides[0].dom_bytes, pair->sides[1].dom_bytes};

    for (int i = 0; i < 2; i++)
        memcpy(blobs + i * HKT__TP_BLOB_MAX, pair->sides[i].dom_blob, HKT__TP_BLOB_MAX);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pair->ops->dom_connect(pair->sides[i].dom, blobs, bytes, use), HKT_OK);
}

/* Two instances with a domain each, not connected yet. */
/** Two ranks, none of them open yet; each has the settings of the process, with few sockets and small frames, for a test to change. */
static inline struct pair *pair_plan(void)
{
    struct pair *pair = calloc(1, sizeof *pair);
    const struct hkt__settings *settings;

    assert_non_null(pair);
    pair->ops = hkt__transport_find("tcp");
    assert_non_null(pair->ops);
    pair->job_ranks[1] = 1;
    assert_int_equal(hkt__settings_get(&settings), HKT_OK);
    for (int i = 0; i < 2; i++) {
        pair->sides[i].settings = *settings;
        pair->sides[i].settings.tcp_sockets = 2;
        pair->sides[i].settings.tcp_frame_bytes = 16384;
    }
    return pair;
}

static inline struct pair *pair_new(const char *interface)
{
    struct pair *pair = pair_plan();

    for (int i = 0; i < 2; i++)
        side_open(pair, i, interface, token);
    for (int i = 0; i < 2; i++)
        side_join(pair, i);
    pair_meet(pair);
    return pair;
}

static inline enum hkt_status side_step(struct pair *pair, int rank)
{
    struct side *side = &pair->sides[rank];

    return pair->ops->chan_open(side->dom, 1 - rank, 0, &side->tx, &side->rx);
}

/* Step both sides until both are open or one fails; which, and how, is returned. */
static inline enum hkt_status pair_connect(struct pair *pair)
{
    const int64_t end_ns = deadline();

    while (hkt__now_ns() < end_ns) {
        const enum hkt_status first = side_step(pair, 0);

        if (first < 0)
            return first;
        const enum hkt_status second = side_step(pair, 1);

        if (second < 0)
            return second;
        if (first == HKT_OK && second == HKT_OK)
            return HKT_OK;
        pair->ops->park(pair->sides[0].dom, 1000000);
    }
    return HKT_ERR_TIMEOUT;
}

static inline void pair_free(struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        if (pair->sides[i].dom != NULL)
            pair->ops->dom_close(pair->sides[i].dom);
    for (int i = 0; i < 2; i++)
        if (pair->sides[i].tp != NULL)
            pair->ops->close(pair->sides[i].tp);
    free(pair);
}

static inline void assert_connects(struct pair *pair)
{
    if (pair_connect(pair) != HKT_OK)
        fail_msg("connect: %s", hkt_last_error());
}

static inline struct hkt__view receive(struct pair *pair, int rank)
{
    const int64_t end_ns = deadline();
    struct hkt__view view = {0};

    while (pair->sides[rank].rx->ops->rx_begin(pair->sides[rank].rx, &view) != HKT_OK)
        if (hkt__now_ns() > end_ns)
            fail_msg("nothing arrives: %s", hkt_last_error());
    return view;
}

static inline void send_text(struct pair *pair, int rank, const char *text)
{
    struct hkt__chan *tx = pair->sides[rank].tx;
    const struct hkt__stamp stamp = {.op_seq = (uint32_t)strlen(text)};
    struct hkt__room room;

    assert_int_equal(tx->ops->tx_begin(tx, strlen(text), &room), HKT_OK);
    assert_int_equal(room.bytes, strlen(text));
    memcpy(room.data, text, strlen(text));
    assert_int_equal(tx->ops->tx_end(tx, strlen(text), &stamp), HKT_OK);
}

static inline void expect_text(struct pair *pair, int rank, const char *text)
{
    const struct hkt__view view = receive(pair, rank);

    assert_int_equal(view.bytes, strlen(text));
    assert_memory_equal(view.data, text, view.bytes);
    assert_int_equal(view.stamp.op_seq, strlen(text));
    pair->sides[rank].rx->ops->rx_end(pair->sides[rank].rx);
}

static inline void assert_talks(struct pair *pair)
{
    for (int i = 0; i < 5; i++) {
        send_text(pair, 0, "to the higher rank");
        send_text(pair, 1, "and back");
        expect_text(pair, 1, "to the higher rank");
        expect_text(pair, 0, "and back");
    }
}

static inline int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = -1; /* the directory itself */

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* ---- a client that is no hocket ---- */

static inline const struct hkt__tcp_blob *blob_of(const struct pair *pair, int rank)
{
    return (const struct hkt__tcp_blob *)(const void *)(pair->addresses + rank * HKT__TP_BLOB_MAX);
}

static inline int knock(const struct pair *pair)
{
    struct sockaddr_storage sock;
    const socklen_t bytes = hkt__tcp_addr_to_sock(&blob_of(pair, 1)->addrs[0], &sock);
    const int fd = socket(sock.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&sock, bytes), 0);
    return fd;
}

/* Read exactly that many bytes while rank 1 serves its door; fewer when the connection closes. */
static inline size_t hear(struct pair *pair, int fd, void *out, size_t bytes)
{
    const int64_t end_ns = deadline();
    size_t done = 0;

    while (done < bytes && hkt__now_ns() < end_ns) {
        (void)hkt__tcp_door_serve((struct hkt__tcp *)pair->sides[1].tp);
        const ssize_t got = recv(fd, (char *)out + done, bytes - done, MSG_DONTWAIT);

        if (got > 0)
            done += (size_t)got;
        else if (got == 0 || (errno != EAGAIN && errno != EINTR))
            break;
    }
    return done;
}

static inline struct hkt__tcp_challenge hear_challenge(struct pair *pair, int fd)
{
    struct hkt__tcp_challenge challenge = {0};

    assert_int_equal(hear(pair, fd, &challenge, sizeof challenge), sizeof challenge);
    assert_int_equal(challenge.magic, HKT__TCP_MAGIC_CHALLENGE);
    return challenge;
}

/* What rank 0 would say for one of its sockets. */
static inline struct hkt__tcp_hello good_hello(const struct pair *pair, const struct hkt__tcp_challenge *challenge, int socket)
{
    struct hkt__tcp_hello hello = {.magic = HKT__TCP_MAGIC_HELLO, .version = HKT__TCP_VERSION, .order = HKT__TCP_ORDER,
                                   .comm_id = 9, .to_job = 1, .socket = (uint16_t)socket, .frame_bytes = 16384};

    memcpy(&hello.dom_nonce, pair->sides[1].dom_blob, sizeof hello.dom_nonce);
    hello.mac = hkt__tcp_hello_mac(token, challenge->nonce, &hello);
    return hello;
}

static inline int32_t answer_to(struct pair *pair, int fd, const struct hkt__tcp_hello *hello)
{
    struct hkt__tcp_reply reply = {0};

    assert_int_equal(send(fd, hello, sizeof *hello, MSG_NOSIGNAL), sizeof *hello);
    assert_int_equal(hear(pair, fd, &reply, sizeof reply), sizeof reply);
    assert_int_equal(reply.magic, HKT__TCP_MAGIC_REPLY);
    return reply.status;
}

#endif
