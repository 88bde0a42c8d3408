/* tcp between two instances of this process, on loopback. What could break: a wrong address that is never left; frames cut
 * anywhere by the network; a damaged header believed; a peer that is gone and not named; words lost at closing; descriptors
 * that leak or run out silently; a failed allocation that loses a connection. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>

#include "tcp_pair.h"

static void two_ranks_talk_over(const char *interface)
{
    struct pair *pair = pair_new(interface);

    assert_connects(pair);
    assert_talks(pair);
    pair_free(pair);
}

static void ipv4_loopback(void **state)
{
    (void)state;
    two_ranks_talk_over("127.0.0.1");
}

static void ipv6_loopback(void **state)
{
    struct hkt__tcp_nic nics[HKT__TCP_NICS_MAX];
    struct hkt__tcp_addr addrs[HKT__TCP_ADDRS_MAX];
    int count;

    (void)state;
    assert_int_equal(hkt__tcp_nics_list(nics, HKT__TCP_NICS_MAX, &count), HKT_OK);
    if (hkt__tcp_nics_choose(nics, count, "::1", addrs, &count) != HKT_OK) {
        print_message("no ::1 on this machine\n");
        skip();
    }
    two_ranks_talk_over("::1");
}

static void congestion_of(int fd, char out_name[HKT__TCP_CONGESTION_MAX])
{
    socklen_t bytes = HKT__TCP_CONGESTION_MAX - 1;

    memset(out_name, 0, HKT__TCP_CONGESTION_MAX);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, out_name, &bytes), 0);
}

/* NULL: anything that does not pace. */
static void assert_congestion(const struct hkt__tcp_link *link, const char *want)
{
    for (int i = 0; i < link->nsockets; i++) {
        char name[HKT__TCP_CONGESTION_MAX];

        congestion_of(link->sockets[i].fd, name);
        if (want != NULL)
            assert_string_equal(name, want);
        else
            assert_int_not_equal(strncmp(name, "bbr", 3), 0);
    }
}

static void the_smaller_wish_counts(void **state)
{
    struct pair *pair = pair_plan();

    (void)state;
    for (int i = 0; i < 2; i++) {
        pair->sides[i].settings.tcp_sockets = i == 0 ? 5 : 3;
        pair->sides[i].settings.tcp_frame_bytes = i == 0 ? 4096 : 65536;
        pair->sides[i].settings.tcp_congestion = i == 0 ? "reno" : ""; /* whichever connects */
        side_open(pair, i, "lo", token);
    }
    for (int i = 0; i < 2; i++)
        side_join(pair, i);
    pair_meet(pair);
    assert_connects(pair);
    for (int i = 0; i < 2; i++) {
        const struct hkt__tcp_link *link = ((struct hkt__tcp_tx *)pair->sides[i].tx)->link;

        assert_int_equal(pair->sides[i].tx->frame_bytes_max, 4096);
        assert_int_equal(link->nsockets, 3);
        assert_congestion(link, i == 0 ? "reno" : NULL);
    }
    assert_talks(pair);
    pair_free(pair);
}

static void who_comes_from_afar_gets_the_systems_congestion_control(void **state)
{
    struct pair *pair = pair_plan();
    const int fresh = socket(AF_INET, SOCK_STREAM, 0);

    (void)state;
    for (int i = 0; i < 2; i++) {
        pair->sides[i].settings.tcp_congestion = "reno"; /* inherited from the listener */
        side_open(pair, i, "127.0.0.1", token);
    }
    struct hkt__tcp *tcp = (struct hkt__tcp *)pair->sides[1].tp;

    congestion_of(fresh, tcp->far_congestion);
    tcp->own.addrs[0].ip[0] = 10;
    for (int i = 0; i < 2; i++)
        side_join(pair, i);
    pair_meet(pair);
    assert_connects(pair);
    assert_congestion(((struct hkt__tcp_tx *)pair->sides[0].tx)->link, "reno");
    assert_congestion(((struct hkt__tcp_tx *)pair->sides[1].tx)->link, tcp->far_congestion);
    close(fresh);
    pair_free(pair);
}

static void who_is_alone_on_a_fast_link_likes_large_slices(void **state)
{
    struct pair *pair = pair_new("lo");
    struct hkt__tp *tp = pair->sides[0].tp;
    struct hkt__tcp *tcp = (struct hkt__tcp *)tp;
    struct hkt__tcp_blob *peer = (struct hkt__tcp_blob *)(void *)(pair->addresses + HKT__TP_BLOB_MAX);
    unsigned char is_ok[2];
    struct hkt__tp_caps caps;

    (void)state;
    tcp->link_ns_per_byte = 0.8;
    tp->ops->query(tp, &caps);
    assert_int_equal(caps.slice_bytes, 0); /* the other rank is on this host */
    peer->host_id++;
    assert_int_equal(tp->ops->reach(tp, pair->addresses, pair->address_bytes, deadline(), is_ok), HKT_OK);
    tp->ops->query(tp, &caps);
    assert_int_equal(caps.slice_bytes, 131072);
    assert_int_equal(caps.slice_bytes_least, HKT__SLICE_BYTES);
    tcp->link_ns_per_byte = 8;
    tp->ops->query(tp, &caps);
    assert_int_equal(caps.slice_bytes, 0);
    pair_free(pair);
}

static void an_unknown_interface_is_an_error_that_lists(void **state)
{
    const struct hkt__tp_ops *ops = hkt__transport_find("tcp");
    const struct hkt__settings *settings;
    struct hkt__settings mine;
    struct hkt__tp *tp = NULL;

    (void)state;
    assert_int_equal(hkt__settings_get(&settings), HKT_OK);
    mine = *settings;
    mine.interface = "nonesuch7";
    const struct hkt__tp_params params = {.job_nranks = 2, .token = token, .settings = &mine};
    const int files = open_files();

    assert_int_equal(ops->open(&params, &tp), HKT_ERR_INVALID);
    assert_null(tp);
    assert_non_null(strstr(hkt_last_error(), "nonesuch7"));
    assert_non_null(strstr(hkt_last_error(), "lo 127.0.0.1"));
    assert_int_equal(ops->probe(&mine), HKT_ERR_UNSUPPORTED);
    assert_int_equal(open_files(), files);
    mine.interface = "lo";
    assert_int_equal(ops->probe(&mine), HKT_OK);
    mine.tcp_congestion = "nonesuch8";
    assert_int_equal(ops->open(&params, &tp), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_TCP_CONGESTION=nonesuch8"));
    mine.tcp_congestion = "longer than names are";
    errno = 0;
    assert_int_equal(ops->open(&params, &tp), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "too long"));
    assert_int_equal(open_files(), files);
}

static void a_taken_port_is_named(void **state)
{
    struct hkt__tcp_addr first = {.family = 4, .ip = {127, 0, 0, 1}, .name = "lo"}, second;
    int fd = -1, fd2 = -1;

    (void)state;
    assert_int_equal(hkt__tcp_listen(&first, &fd), HKT_OK);
    assert_true(first.port != 0);
    second = first;
    assert_int_equal(hkt__tcp_listen(&second, &fd2), HKT_ERR_SYSTEM);
    assert_int_equal(hkt__error_here()->sys_errno, EADDRINUSE);
    char port[32];

    snprintf(port, sizeof port, "127.0.0.1:%u (lo)", (unsigned)first.port);
    assert_non_null(strstr(hkt_last_error(), port));
    close(fd);
}

/* Put `count` addresses of our making before those of rank 1, as rank 0 sees it. */
static void prepend(struct pair *pair, const struct hkt__tcp_addr *addrs, int count)
{
    unsigned char is_ok[2];
    struct hkt__tcp_blob blob = *blob_of(pair, 1);

    memmove(&blob.addrs[count], &blob.addrs[0], (size_t)blob.addr_count * sizeof blob.addrs[0]);
    memcpy(blob.addrs, addrs, (size_t)count * sizeof *addrs);
    blob.addr_count = (uint16_t)(blob.addr_count + count);
    pair->address_bytes[1] = hkt__tcp_blob_bytes(&blob);
    memcpy(pair->addresses + HKT__TP_BLOB_MAX, &blob, pair->address_bytes[1]);
    assert_int_equal(pair->ops->reach(pair->sides[0].tp, pair->addresses, pair->address_bytes, deadline(), is_ok), HKT_OK);
}

static struct hkt__tcp_addr loopback(void)
{
    return (struct hkt__tcp_addr){.family = 4, .prefix_bits = 8, .rank_class = HKT__TCP_LOOPBACK, .ip = {127, 0, 0, 1},
                                  .name = "lo"};
}

static void wrong_addresses_are_left(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    struct hkt__tcp_addr addrs[3] = {loopback(), loopback(), loopback()};
    int refusing, talking;

    (void)state;
    /* A port where nobody listens, one where somebody says something else, and our own: the wrong rank answers. */
    assert_int_equal(hkt__tcp_listen(&addrs[0], &refusing), HKT_OK);
    close(refusing);
    assert_int_equal(hkt__tcp_listen(&addrs[1], &talking), HKT_OK);
    addrs[2].port = blob_of(pair, 0)->addrs[0].port;
    prepend(pair, addrs, 3);
    int strangers[4], stranger_count = 0;
    const int64_t end_ns = deadline();
    enum hkt_status first = HKT_IN_PROGRESS, second = HKT_IN_PROGRESS;

    while ((first != HKT_OK || second != HKT_OK) && hkt__now_ns() < end_ns) {
        first = side_step(pair, 0);
        second = side_step(pair, 1);
        if (first < 0 || second < 0)
            fail_msg("%s", hkt_last_error());
        const int fd = stranger_count < 4 ? accept(talking, NULL, NULL) : -1;

        if (fd >= 0) {
            assert_true(send(fd, "220 mail.example ESMTP ready for anything\r\n", 43, MSG_NOSIGNAL) == 43);
            strangers[stranger_count++] = fd;
        }
    }
    assert_int_equal(first, HKT_OK);
    assert_int_equal(second, HKT_OK);
    assert_int_equal(stranger_count, 2); /* once per socket */
    assert_talks(pair);
    while (stranger_count > 0)
        close(strangers[--stranger_count]);
    close(talking);
    pair_free(pair);
}

/* A stranger that accepts and says nothing might be a peer that computes: it is left after a while, and others are tried. */
static void a_silent_address_is_left(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    struct hkt__tcp_addr silent = loopback();
    int fd;

    (void)state;
    assert_int_equal(hkt__tcp_listen(&silent, &fd), HKT_OK);
    prepend(pair, &silent, 1);
    ((struct hkt__tcp *)pair->sides[0].tp)->connect_ns = 1000000;
    ((struct hkt__tcp *)pair->sides[0].tp)->silent_ns = 20000000;
    assert_connects(pair);
    assert_talks(pair);
    close(fd);
    pair_free(pair);
}

/* A peer that does not come to its door for long is waited for: no number of turns gives it up. */
static void a_busy_peer_is_waited_for(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    struct hkt__tcp_addr refusing = loopback();
    int fd;

    (void)state;
    assert_int_equal(hkt__tcp_listen(&refusing, &fd), HKT_OK);
    close(fd);
    prepend(pair, &refusing, 1);
    ((struct hkt__tcp *)pair->sides[0].tp)->connect_ns = 100000;
    ((struct hkt__tcp *)pair->sides[0].tp)->silent_ns = 200000;
    for (const int64_t end_ns = hkt__now_ns() + 300000000; hkt__now_ns() < end_ns;)
        if (side_step(pair, 0) != HKT_IN_PROGRESS)
            fail_msg("%s", hkt_last_error());
    assert_connects(pair);
    assert_talks(pair);
    pair_free(pair);
}

static void an_absent_peer_is_given_up_and_named(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    char address[HKT__TCP_TEXT_MAX];
    const int64_t end_ns = deadline();
    enum hkt_status status = HKT_IN_PROGRESS;

    (void)state;
    hkt__tcp_addr_text(&blob_of(pair, 1)->addrs[0], address);
    pair->ops->dom_close(pair->sides[1].dom);
    pair->ops->close(pair->sides[1].tp);
    pair->sides[1].dom = NULL;
    pair->sides[1].tp = NULL;
    while (status == HKT_IN_PROGRESS && hkt__now_ns() < end_ns) {
        status = side_step(pair, 0);
        pair->ops->park(pair->sides[0].dom, 5000000);
    }
    assert_int_equal(status, HKT_ERR_PEER_LOST);
    assert_int_equal(hkt__error_here()->peer, 1);
    assert_non_null(strstr(hkt_last_error(), address));
    assert_non_null(strstr(hkt_last_error(), "refused"));
    pair_free(pair);
}

static void a_closed_communicator_is_told(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    const int64_t end_ns = deadline();
    enum hkt_status status = HKT_IN_PROGRESS;

    (void)state;
    pair->ops->dom_close(pair->sides[1].dom);
    pair->sides[1].dom = NULL;
    while (status == HKT_IN_PROGRESS && hkt__now_ns() < end_ns) {
        status = side_step(pair, 0);
        (void)hkt__tcp_door_serve((struct hkt__tcp *)pair->sides[1].tp);
    }
    assert_int_equal(status, HKT_ERR_PEER_LOST);
    assert_non_null(strstr(hkt_last_error(), "closed this communicator"));
    pair_free(pair);
}

static void different_tokens_are_an_auth_error(void **state)
{
    struct pair *pair = pair_plan();

    (void)state;
    side_open(pair, 0, "127.0.0.1", token);
    side_open(pair, 1, "127.0.0.1", other_token);
    for (int i = 0; i < 2; i++)
        side_join(pair, i);
    pair_meet(pair);
    assert_int_equal(pair_connect(pair), HKT_ERR_AUTH);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_TOKEN"));
    pair_free(pair);
}

static void what_was_sent_before_closing_arrives(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    struct hkt__view view;
    enum hkt_status status = HKT_AGAIN;
    const int64_t end_ns = deadline();

    (void)state;
    assert_connects(pair);
    send_text(pair, 1, "never read"); /* makes the kernel of rank 0 reset the connection when it closes */
    send_text(pair, 0, "first");
    send_text(pair, 0, "second");
    send_text(pair, 0, "last words");
    pair->ops->dom_close(pair->sides[0].dom);
    pair->sides[0].dom = NULL;
    expect_text(pair, 1, "first");
    expect_text(pair, 1, "second");
    expect_text(pair, 1, "last words");
    while (status == HKT_AGAIN && hkt__now_ns() < end_ns)
        status = pair->sides[1].rx->ops->rx_begin(pair->sides[1].rx, &view);
    assert_int_equal(status, HKT_ERR_PEER_LOST);
    assert_int_equal(hkt__error_here()->peer, 0);
    assert_non_null(strstr(hkt_last_error(), "rank 0"));
    /* Sending notices as well, at the latest once the reset has come back. */
    status = HKT_OK;
    while (status != HKT_ERR_PEER_LOST && hkt__now_ns() < end_ns) {
        struct hkt__room room;

        status = pair->sides[1].tx->ops->tx_begin(pair->sides[1].tx, 8, &room);
        if (status == HKT_OK)
            status = pair->sides[1].tx->ops->tx_end(pair->sides[1].tx, 8, &(struct hkt__stamp){0});
    }
    assert_int_equal(status, HKT_ERR_PEER_LOST);
    pair_free(pair);
}

/* Rank 1 with a raw client in place of rank 0: sockets after the handshake. */
static void raw_sockets(struct pair *pair, int fds[2])
{
    const struct hkt__tcp_confirm confirm = {.magic = HKT__TCP_MAGIC_CONFIRM};

    for (int i = 0; i < 2; i++) {
        fds[i] = knock(pair);
        const struct hkt__tcp_challenge challenge = hear_challenge(pair, fds[i]);
        const struct hkt__tcp_hello hello = good_hello(pair, &challenge, i);

        assert_int_equal(answer_to(pair, fds[i], &hello), HKT_OK);
        assert_int_equal(send(fds[i], &confirm, sizeof confirm, MSG_NOSIGNAL), sizeof confirm);
    }
    const int64_t end_ns = deadline();

    while (side_step(pair, 1) != HKT_OK)
        assert_true(hkt__now_ns() < end_ns);
}

static size_t raw_frame(unsigned char *out, uint32_t seq, size_t bytes)
{
    const struct hkt__frame_header header = {.seq = seq, .bytes = (uint32_t)bytes, .stamp = {.op_seq = seq}};
    const size_t span = 32 + (bytes + 31) / 32 * 32;

    memset(out, 0, span);
    memcpy(out, &header, sizeof header);
    for (size_t i = 0; i < bytes; i++)
        out[32 + i] = (unsigned char)(seq + i);
    return span;
}

static void check_frame(struct pair *pair, uint32_t seq, size_t bytes)
{
    const struct hkt__view view = receive(pair, 1);

    assert_int_equal(view.bytes, bytes);
    assert_int_equal(view.stamp.op_seq, seq);
    assert_int_equal((uintptr_t)view.data % HKT__TCP_ALIGN, 0);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((const unsigned char *)view.data)[i], (unsigned char)(seq + i));
    pair->sides[1].rx->ops->rx_end(pair->sides[1].rx);
}

/* As rx_begin, into the caller's memory when asked for: some places are too small for the frame. */
static enum hkt_status look(struct hkt__chan *rx, bool is_into, uint32_t i, struct hkt__view *out_view)
{
    static unsigned char place[16500];

    return is_into ? rx->ops->rx_into(rx, place, i % 5 == 4 ? 10000 : sizeof place, out_view) : rx->ops->rx_begin(rx, out_view);
}

static void check_view(struct hkt__chan *rx, const struct hkt__view *view, uint32_t seq, size_t bytes)
{
    assert_int_equal(view->bytes, bytes);
    assert_int_equal(view->stamp.op_seq, seq);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((const unsigned char *)view->data)[i], (unsigned char)(seq + i));
    rx->ops->rx_end(rx);
}

/* Frames that arrive a few bytes at a time, then several at once. */
static void survive_any_cut(bool is_into)
{
    enum { FRAMES = 24 };
    struct pair *pair = pair_new("127.0.0.1");
    static unsigned char streams[2][FRAMES * 16500];
    size_t sizes[2] = {0, 0}, frame_sizes[FRAMES];
    int fds[2];
    struct hkt__view view;
    struct hkt__chan *rx;

    raw_sockets(pair, fds);
    rx = pair->sides[1].rx;
    for (uint32_t i = 0; i < FRAMES; i++) {
        frame_sizes[i] = i % 3 == 0 ? i : i % 3 == 1 ? 16384 - i : 5000 + 37 * i;
        sizes[i % 2] += raw_frame(streams[i % 2] + sizes[i % 2], i + 1, frame_sizes[i]);
    }
    /* The first frame byte by byte: never seen before its last byte. */
    const size_t first = 32 + (frame_sizes[0] + 31) / 32 * 32;

    for (size_t i = 0; i < first; i++) {
        assert_int_equal(look(rx, is_into, 0, &view), HKT_AGAIN);
        assert_int_equal(send(fds[0], streams[0] + i, 1, MSG_NOSIGNAL), 1);
    }
    check_frame(pair, 1, frame_sizes[0]);
    /* The rest in pieces of all lengths, frame after frame. */
    size_t sent[2] = {first, 0}, piece = 1;

    for (uint32_t i = 1; i < FRAMES;) {
        for (int k = 0; k < 2; k++) {
            const size_t left = sizes[k] - sent[k], bytes = piece % 4000 + 1 < left ? piece % 4000 + 1 : left;

            assert_true(send(fds[k], streams[k] + sent[k], bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
            sent[k] += bytes;
            piece = piece * 5 + 3;
        }
        while (i < FRAMES && look(rx, is_into, i, &view) == HKT_OK) {
            check_view(rx, &view, i + 1, frame_sizes[i]);
            i++;
        }
    }
    close(fds[0]);
    close(fds[1]);
    pair_free(pair);
}

static void frames_survive_any_cut(void **state)
{
    (void)state;
    survive_any_cut(false);
}

static void frames_survive_any_cut_into_the_callers_memory(void **state)
{
    (void)state;
    survive_any_cut(true);
}

static void expect_corrupt(uint32_t seq, size_t bytes, uint32_t claimed_bytes)
{
    struct pair *pair = pair_new("127.0.0.1");
    static unsigned char frame[32 + 1024];
    int fds[2];
    struct hkt__view view;
    enum hkt_status status = HKT_AGAIN;
    const int64_t end_ns = deadline();

    raw_sockets(pair, fds);
    const size_t span = raw_frame(frame, seq, bytes);

    memcpy(frame + 4, &claimed_bytes, sizeof claimed_bytes);
    assert_int_equal(send(fds[0], frame, span, MSG_NOSIGNAL), span);
    while (status == HKT_AGAIN && hkt__now_ns() < end_ns)
        status = pair->sides[1].rx->ops->rx_begin(pair->sides[1].rx, &view);
    assert_int_equal(status, HKT_ERR_CORRUPT);
    assert_int_equal(hkt__error_here()->peer, 0);
    assert_int_equal(pair->sides[1].rx->ops->rx_begin(pair->sides[1].rx, &view), HKT_ERR_CORRUPT);
    close(fds[0]);
    close(fds[1]);
    pair_free(pair);
}

static void a_bad_header_is_corrupt(void **state)
{
    (void)state;
    expect_corrupt(2, 100, 100);
    expect_corrupt(0, 100, 100);
    expect_corrupt(1, 100, 16385);
    expect_corrupt(1, 100, 0xffffffffu);
}

static void the_end_within_a_frame_is_peer_lost(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    unsigned char frame[32 + 1024];
    int fds[2];
    struct hkt__view view;
    enum hkt_status status = HKT_AGAIN;
    const int64_t end_ns = deadline();

    (void)state;
    raw_sockets(pair, fds);
    assert_int_equal(send(fds[0], frame, raw_frame(frame, 1, 500) - 1, MSG_NOSIGNAL), 543);
    close(fds[0]);
    while (status == HKT_AGAIN && hkt__now_ns() < end_ns)
        status = pair->sides[1].rx->ops->rx_begin(pair->sides[1].rx, &view);
    assert_int_equal(status, HKT_ERR_PEER_LOST);
    assert_non_null(strstr(hkt_last_error(), "middle of a frame"));
    close(fds[1]);
    pair_free(pair);
}

static void no_descriptor_left_names_the_mend(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    struct rlimit limit, none;
    enum hkt_status status = HKT_IN_PROGRESS;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    for (rlim_t extra = 0; extra < 5; extra++) { /* each of the descriptors a first channel takes */
        none.rlim_cur = (rlim_t)open_files() + extra;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        status = side_step(pair, 0);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        if (status == HKT_IN_PROGRESS)
            break;
        assert_int_equal(status, HKT_ERR_SYSTEM);
        assert_non_null(strstr(hkt_last_error(), "ulimit -n"));
        assert_non_null(strstr(hkt_last_error(), "HOCKET_TCP_SOCKETS=1"));
    }
    assert_connects(pair); /* nothing is broken by having failed */
    assert_talks(pair);
    pair_free(pair);
}

static void only_open_channels_cost_descriptors(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    const struct hkt__tp_members members = {.comm_id = 10, .nranks = 2, .rank = 0, .job_ranks = pair->job_ranks, .lanes = 2};
    struct hkt__tp_dom *doms[300];
    unsigned char blob[HKT__TP_BLOB_MAX];
    size_t bytes;
    const int files = open_files();

    (void)state;
    for (int i = 0; i < 300; i++)
        assert_int_equal(pair->ops->dom_open(pair->sides[0].tp, &members, &doms[i], blob, &bytes), HKT_OK);
    assert_int_equal(open_files(), files);
    for (int i = 0; i < 300; i++)
        pair->ops->dom_close(doms[i]);
    assert_connects(pair);
    assert_int_equal(open_files(), files + 8); /* 2 sockets, epoll and wake descriptor on each side */
    pair_free(pair);
}

static void every_failed_allocation_is_reported(void **state)
{
    const int files = open_files();
    int failures = 0;

    (void)state;
    for (int64_t k = 1; k < 100; k++) {
        struct pair *pair = pair_new("127.0.0.1");
        enum hkt_status status;

        hkt__mem_fail_at(k);
        status = pair_connect(pair);
        hkt__mem_fail_at(0);
        if (status != HKT_OK) {
            failures++;
            assert_int_equal(status, HKT_ERR_NOMEM);
            assert_connects(pair); /* trying again is allowed */
        }
        assert_talks(pair);
        pair_free(pair);
        assert_int_equal(open_files(), files);
        if (status == HKT_OK && k > 20)
            break;
    }
    assert_true(failures >= 4);
}

/* ---- several threads ---- */

enum { DOMS = 4, ROUNDS = 40 };

struct worker {
    struct pair *pair;
    struct hkt__tp_dom *dom;
    int rank;
    pthread_t thread;
};

/* Open a channel and pass numbers to and fro; NULL when all went well. cmocka's asserts are for the main thread. */
static void *work(void *data)
{
    const struct worker *worker = data;
    const struct hkt__tp_ops *ops = worker->pair->ops;
    const int64_t end_ns = deadline();
    struct hkt__chan *tx, *rx;
    enum hkt_status status;

    while ((status = ops->chan_open(worker->dom, 1 - worker->rank, 0, &tx, &rx)) == HKT_IN_PROGRESS && hkt__now_ns() < end_ns)
        ops->park(worker->dom, 100000000);
    for (int i = 0; i < ROUNDS && status == HKT_OK; i++) {
        const struct hkt__stamp stamp = {.op_seq = (uint32_t)i};
        struct hkt__room room;
        struct hkt__view view;

        if (tx->ops->tx_begin(tx, sizeof i, &room) != HKT_OK)
            return data;
        memcpy(room.data, &i, sizeof i);
        if (tx->ops->tx_end(tx, sizeof i, &stamp) != HKT_OK)
            return data;
        while ((status = rx->ops->rx_begin(rx, &view)) == HKT_AGAIN && hkt__now_ns() < end_ns)
            ops->park(worker->dom, 100000000);
        if (status != HKT_OK || view.bytes != sizeof i || memcmp(view.data, &i, sizeof i) != 0)
            return data;
        rx->ops->rx_end(rx);
    }
    return status == HKT_OK ? NULL : data;
}

static void domains_open_from_several_threads(void **state)
{
    static const unsigned char use[2] = {1, 1};
    struct pair *pair = pair_new("127.0.0.1");
    struct worker workers[DOMS][2];
    int failures = 0;

    (void)state;
    for (int i = 0; i < DOMS; i++) {
        unsigned char blobs[2 * HKT__TP_BLOB_MAX];
        size_t bytes[2];

        for (int rank = 0; rank < 2; rank++) {
            const struct hkt__tp_members members = {.comm_id = 20 + (uint32_t)i, .nranks = 2, .rank = rank,
                                                    .job_ranks = pair->job_ranks, .lanes = 1};

            workers[i][rank] = (struct worker){.pair = pair, .rank = rank};
            assert_int_equal(pair->ops->dom_open(pair->sides[rank].tp, &members, &workers[i][rank].dom,
                                                 blobs + rank * HKT__TP_BLOB_MAX, &bytes[rank]), HKT_OK);
        }
        for (int rank = 0; rank < 2; rank++)
            assert_int_equal(pair->ops->dom_connect(workers[i][rank].dom, blobs, bytes, use), HKT_OK);
    }
    for (int k = 0; k < 2 * DOMS; k++)
        assert_int_equal(pthread_create(&workers[k / 2][k % 2].thread, NULL, work, &workers[k / 2][k % 2]), 0);
    for (int k = 0; k < 2 * DOMS; k++) {
        void *failed;

        assert_int_equal(pthread_join(workers[k / 2][k % 2].thread, &failed), 0);
        failures += failed != NULL;
    }
    assert_int_equal(failures, 0);
    for (int k = 0; k < 2 * DOMS; k++)
        pair->ops->dom_close(workers[k / 2][k % 2].dom);
    pair_free(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ipv4_loopback),
        cmocka_unit_test(ipv6_loopback),
        cmocka_unit_test(the_smaller_wish_counts),
        cmocka_unit_test(who_comes_from_afar_gets_the_systems_congestion_control),
        cmocka_unit_test(who_is_alone_on_a_fast_link_likes_large_slices),
        cmocka_unit_test(an_unknown_interface_is_an_error_that_lists),
        cmocka_unit_test(a_taken_port_is_named),
        cmocka_unit_test(wrong_addresses_are_left),
        cmocka_unit_test(a_silent_address_is_left),
        cmocka_unit_test(a_busy_peer_is_waited_for),
        cmocka_unit_test(an_absent_peer_is_given_up_and_named),
        cmocka_unit_test(a_closed_communicator_is_told),
        cmocka_unit_test(different_tokens_are_an_auth_error),
        cmocka_unit_test(what_was_sent_before_closing_arrives),
        cmocka_unit_test(frames_survive_any_cut),
        cmocka_unit_test(frames_survive_any_cut_into_the_callers_memory),
        cmocka_unit_test(a_bad_header_is_corrupt),
        cmocka_unit_test(the_end_within_a_frame_is_peer_lost),
        cmocka_unit_test(no_descriptor_left_names_the_mend),
        cmocka_unit_test(only_open_channels_cost_descriptors),
        cmocka_unit_test(domains_open_from_several_threads),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };

    return cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
