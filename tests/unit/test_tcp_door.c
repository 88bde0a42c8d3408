/* Strangers at the door of a tcp instance. What could break: garbage, slow, half-open or replaying clients that stall, crash or
 * enter; a member of the job that errs and is let in, or is not told why not. */
#include <sys/resource.h>

#include "tcp_pair.h"

static void garbage_at_the_door_disturbs_nobody(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    int strangers[40];
    unsigned char noise[4096];

    (void)state;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int i = 0; i < 40; i++) {
        strangers[i] = knock(pair);
        if (i % 4 == 1) /* noise of different lengths */
            assert_true(send(strangers[i], noise, 1 + (size_t)i * 100, MSG_NOSIGNAL) > 0);
        if (i % 4 == 2) { /* a hello that never ends */
            const struct hkt__tcp_hello hello = {.magic = HKT__TCP_MAGIC_HELLO, .version = HKT__TCP_VERSION};

            assert_true(send(strangers[i], &hello, (size_t)i + 1, MSG_NOSIGNAL) > 0);
        }
        if (i % 4 == 3) /* gone at once, with a reset */
            (void)setsockopt(strangers[i], SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger)),
                close(strangers[i]);
    }
    assert_connects(pair);
    assert_talks(pair);
    for (int i = 1; i < 40; i += 4) /* whoever sent a full hello of noise has been dropped, without an answer */
        if (1 + i * 100 >= 64) {
            struct hkt__tcp_challenge challenge;
            char more;

            assert_int_equal(hear(pair, strangers[i], &challenge, sizeof challenge), sizeof challenge);
            assert_int_equal(hear(pair, strangers[i], &more, 1), 0);
        }
    for (int i = 0; i < 40; i++)
        if (i % 4 != 3)
            close(strangers[i]);
    pair_free(pair);
}

static void the_token_is_what_counts(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    struct hkt__tcp_hello hello;
    struct hkt__tcp_challenge challenge;

    (void)state;
    int fd = knock(pair);

    challenge = hear_challenge(pair, fd);
    hello = good_hello(pair, &challenge, 0);
    hello.mac = hkt__tcp_hello_mac(other_token, challenge.nonce, &hello);
    assert_int_equal(answer_to(pair, fd, &hello), HKT_ERR_AUTH);
    close(fd);
    for (size_t at = 8; at < sizeof hello; at++) { /* a valid MAC does not fit anything else */
        fd = knock(pair);
        challenge = hear_challenge(pair, fd);
        hello = good_hello(pair, &challenge, 0);
        ((unsigned char *)&hello)[at] ^= 0x10;
        assert_int_equal(answer_to(pair, fd, &hello), HKT_ERR_AUTH);
        close(fd);
    }
    pair_free(pair);
}

static void a_replayed_hello_is_refused(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");

    (void)state;
    const int first = knock(pair), second = knock(pair);
    const struct hkt__tcp_challenge challenge = hear_challenge(pair, first);
    const struct hkt__tcp_hello hello = good_hello(pair, &challenge, 0);

    (void)hear_challenge(pair, second);
    assert_int_equal(answer_to(pair, first, &hello), HKT_OK);
    assert_int_equal(answer_to(pair, second, &hello), HKT_ERR_AUTH);
    char more;

    assert_int_equal(hear(pair, second, &more, 1), 0);
    close(first);
    close(second);
    assert_connects(pair); /* the first one never confirmed: the real rank 0 takes its place */
    assert_talks(pair);
    pair_free(pair);
}

/* Change one field of a good hello and sign it again: a member of the job that errs. */
static int32_t answer_to_changed(struct pair *pair, void (*change)(struct hkt__tcp_hello *))
{
    const int fd = knock(pair);
    const struct hkt__tcp_challenge challenge = hear_challenge(pair, fd);
    struct hkt__tcp_hello hello = good_hello(pair, &challenge, 0);

    change(&hello);
    hello.mac = hkt__tcp_hello_mac(token, challenge.nonce, &hello);
    const int32_t status = answer_to(pair, fd, &hello);

    close(fd);
    return status;
}

static void wrong_version(struct hkt__tcp_hello *hello)
{
    hello->version++;
}

static void wrong_order(struct hkt__tcp_hello *hello)
{
    hello->order = 0x0201;
}

static void wrong_target(struct hkt__tcp_hello *hello)
{
    hello->to_job = 0;
}

static void wrong_dom(struct hkt__tcp_hello *hello)
{
    hello->dom_nonce++;
}

static void wrong_comm(struct hkt__tcp_hello *hello)
{
    hello->comm_id++;
}

static void wrong_source(struct hkt__tcp_hello *hello)
{
    hello->from = 1;
}

static void wrong_job_rank(struct hkt__tcp_hello *hello)
{
    hello->from_job = 7;
}

static void negative_source(struct hkt__tcp_hello *hello)
{
    hello->from = -1;
}

static void wrong_lane(struct hkt__tcp_hello *hello)
{
    hello->lane = 2;
}

static void wrong_socket(struct hkt__tcp_hello *hello)
{
    hello->socket = HKT__TCP_SOCKETS_MAX;
}

static void a_member_that_errs_is_told(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");

    (void)state;
    assert_int_equal(answer_to_changed(pair, wrong_version), HKT_ERR_UNSUPPORTED);
    assert_int_equal(answer_to_changed(pair, wrong_order), HKT_ERR_UNSUPPORTED);
    assert_int_equal(answer_to_changed(pair, wrong_target), HKT_ERR_INVALID);
    assert_int_equal(answer_to_changed(pair, wrong_dom), HKT_ERR_PEER_LOST);
    assert_int_equal(answer_to_changed(pair, wrong_comm), HKT_ERR_INVALID);
    assert_int_equal(answer_to_changed(pair, wrong_source), HKT_ERR_INVALID);
    assert_int_equal(answer_to_changed(pair, wrong_job_rank), HKT_ERR_INVALID);
    assert_int_equal(answer_to_changed(pair, negative_source), HKT_ERR_INVALID);
    assert_int_equal(answer_to_changed(pair, wrong_lane), HKT_ERR_INVALID);
    assert_int_equal(answer_to_changed(pair, wrong_socket), HKT_ERR_INVALID);
    assert_connects(pair);
    pair_free(pair);
}

static void a_slow_client_is_dropped_at_its_deadline(void **state)
{
    struct pair *pair = pair_new("127.0.0.1");
    struct hkt__tcp *tcp = (struct hkt__tcp *)pair->sides[1].tp;
    const int slow = knock(pair);
    char more;

    (void)state;
    (void)hear_challenge(pair, slow);
    assert_int_equal(send(slow, "half a hello", 12, MSG_NOSIGNAL), 12);
    assert_int_equal(tcp->unproved_count, 1);
    tcp->guests->deadline_ns = hkt__now_ns() - 1;
    assert_int_equal(hear(pair, slow, &more, 1), 0);
    assert_int_equal(tcp->unproved_count, 0);
    assert_null(tcp->guests);
    assert_null(tcp->guests_last);
    close(slow);
    pair_free(pair);
}

/* More half-open connections than the door has places: it takes no more, until their deadlines let the real rank in. */
static void a_flood_of_half_open_clients_ends(void **state)
{
    enum { COUNT = HKT__TCP_GUESTS_MAX + 40 };
    struct rlimit limit;
    static int fds[COUNT];

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 2 * COUNT + 100) {
        print_message("needs %d descriptors, the limit is %llu\n", 2 * COUNT + 100, (unsigned long long)limit.rlim_cur);
        skip();
    }
    struct pair *pair = pair_new("127.0.0.1");
    struct hkt__tcp *tcp = (struct hkt__tcp *)pair->sides[1].tp;

    for (int i = 0; i < COUNT; i++)
        fds[i] = knock(pair);
    for (int i = 0; i < 20; i++)
        assert_int_equal(hkt__tcp_door_serve(tcp), HKT_OK);
    assert_int_equal(tcp->unproved_count, HKT__TCP_GUESTS_MAX);
    assert_int_equal(side_step(pair, 0), HKT_IN_PROGRESS); /* in the kernel's queue, behind the flood */
    for (struct hkt__tcp_guest *guest = tcp->guests; guest != NULL; guest = guest->next)
        guest->deadline_ns = hkt__now_ns() - 1;
    assert_connects(pair);
    assert_talks(pair);
    for (int i = 0; i < COUNT; i++)
        close(fds[i]);
    pair_free(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_at_the_door_disturbs_nobody),
        cmocka_unit_test(the_token_is_what_counts),
        cmocka_unit_test(a_replayed_hello_is_refused),
        cmocka_unit_test(a_member_that_errs_is_told),
        cmocka_unit_test(a_slow_client_is_dropped_at_its_deadline),
        cmocka_unit_test(a_flood_of_half_open_clients_ends),
    };

    return cmocka_run_group_tests_name("tcp_door", tests, NULL, NULL);
}
