/* What could break: strangers on the rendezvous port (scanners, other protocols, silence, floods, byte-wise senders,
 * replays) stall or end a meeting, or leave descriptors behind; a proven rank that then goes silent hangs the job;
 * bytes from the net break a parser. All random data comes from printed seeds. */
#include "boot_ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* xorshift64*, S. Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2016. */
static uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* A connection to the root's port; -1: nobody listens there. */
static int knock(const struct hkt__boot_id *id)
{
    struct hkt__net_targets targets;

    assert_int_equal(hkt__net_resolve("127.0.0.1", id->port, &targets), HKT_OK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&targets.at[0].address, targets.at[0].bytes) == 0)
        return fd;
    close(fd);
    return -1;
}

static int stranger(const struct hkt__boot_id *id)
{
    const int fd = knock(id);

    assert_true(fd >= 0);
    return fd;
}

/* Read one message from the root, at most 10 s. */
static bool stranger_read(int fd, struct hkt__wire_reader *reader, struct hkt__wire_message *out_message)
{
    for (;;) {
        const enum hkt_status status = hkt__wire_read(reader, fd, out_message);
        struct pollfd pfd = {.fd = fd, .events = POLLIN};

        if (status != HKT_AGAIN)
            return status == HKT_OK;
        if (poll(&pfd, 1, 10000) != 1)
            return false;
    }
}

/* Three ranks: the root at once, the others when the strangers have had their time. */
static void meeting_begin(struct boot_rank *ranks, const struct hkt__boot_id *id)
{
    boot_ranks_init(ranks, 3, id);
    boot_ranks_start(ranks, 1);
}

/* Milliseconds in which the others and the root, which waits, meet. */
static int64_t meeting_end(struct boot_rank *ranks)
{
    const int64_t begin_ns = hkt__now_ns();

    boot_ranks_start(ranks + 1, 2);
    boot_ranks_join(ranks, 3);
    for (int r = 0; r < 3; r++)
        if (ranks[r].status != HKT_OK)
            fail_msg("rank %d: %s", r, ranks[r].text);
    boot_ranks_destroy(ranks, 3);
    return (hkt__now_ns() - begin_ns) / 1000000;
}

/* Among strangers it takes no time that is like their deadline, on a machine where meetings take no such time anyway. */
static void meeting_succeeds(struct boot_rank *ranks)
{
    const int64_t among_strangers_ms = meeting_end(ranks);
    const struct hkt__boot_id id = boot_id_here();

    meeting_begin(ranks, &id);
    assert_true(among_strangers_ms < HKT__BOOT_CLIENT_MS - 500 + 10 * meeting_end(ranks));
}

static void random_bytes_do_not_disturb(void **state)
{
    struct boot_rank ranks[3];
    const struct hkt__boot_id id = boot_id_here();
    uint64_t seed = 20240601;
    int fds[50];

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    meeting_begin(ranks, &id);
    for (int i = 0; i < 50; i++) {
        unsigned char bytes[3000];

        fds[i] = stranger(&id);
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (unsigned char)random_next(&seed);
        (void)send(fds[i], bytes, 1 + random_next(&seed) % sizeof bytes, MSG_NOSIGNAL);
    }
    meeting_succeeds(ranks);
    for (int i = 0; i < 50; i++)
        close(fds[i]);
}

static void silence_and_scanners_do_not_disturb(void **state)
{
    struct boot_rank ranks[3];
    const struct hkt__boot_id id = boot_id_here();
    const struct linger reset = {.l_onoff = 1};
    int fds[100];

    (void)state;
    meeting_begin(ranks, &id);
    for (int i = 0; i < 100; i++) {
        fds[i] = stranger(&id);
        if (i % 3 == 1)
            (void)shutdown(fds[i], SHUT_WR);
        if (i % 3 == 2) { /* a scanner: gone with a reset */
            (void)setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
            close(fds[i]);
            fds[i] = -1;
        }
    }
    meeting_succeeds(ranks);
    for (int i = 0; i < 100; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void byte_by_byte_does_not_disturb(void **state)
{
    struct boot_rank ranks[3];
    const struct hkt__boot_id id = boot_id_here();
    struct hkt__wire_writer fail;
    int fds[10];

    (void)state;
    meeting_begin(ranks, &id);
    hkt__wire_put_fail(&fail, HKT_ERR_ABORTED, "I am nobody, and slow");
    for (int i = 0; i < 10; i++)
        fds[i] = stranger(&id);
    for (size_t k = 0; k < 20; k++) {
        for (int i = 0; i < 10; i++)
            (void)send(fds[i], fail.bytes + k, 1, MSG_NOSIGNAL);
        (void)poll(NULL, 0, 3);
    }
    meeting_succeeds(ranks);
    for (int i = 0; i < 10; i++)
        close(fds[i]);
}

/* A whole message of every type, from someone who has proven nothing. */
static void messages_of_the_unproven_are_ignored(void **state)
{
    struct boot_rank ranks[3];
    const struct hkt__boot_id id = boot_id_here();
    int fds[HKT__WIRE_TYPE_COUNT];

    (void)state;
    meeting_begin(ranks, &id);
    for (int type = 0; type < HKT__WIRE_TYPE_COUNT; type++) {
        struct hkt__wire_writer message;

        fds[type] = stranger(&id);
        if (type == HKT__WIRE_FAIL)
            hkt__wire_put_fail(&message, HKT_ERR_ABORTED, "stop the meeting");
        else
            hkt__wire_begin(&message, (enum hkt__wire_type)type);
        (void)hkt__wire_send(fds[type], &message);
    }
    meeting_succeeds(ranks);
    for (int type = 0; type < HKT__WIRE_TYPE_COUNT; type++)
        close(fds[type]);
}

static void hello_put(struct hkt__wire_writer *message, const struct hkt__boot_id *id, int rank,
                      const unsigned char nonce[HKT__WIRE_NONCE_BYTES])
{
    const struct hkt__wire_hello hello = {.purpose = HKT__WIRE_REGISTER, .version = HKT__WIRE_VERSION, .rank = rank,
                                          .nranks = 3, .pid = 1};

    hkt__wire_put_hello(message, &hello, id->token, nonce);
}

/* Does the root answer a hello with a refusal for want of proof? */
static void assert_refused(int fd, struct hkt__wire_reader *reader)
{
    struct hkt__wire_message message;
    struct hkt__wire_fail fail;

    assert_true(stranger_read(fd, reader, &message));
    assert_true(hkt__wire_get_fail(&message, &fail));
    assert_int_equal(fail.status, HKT_ERR_AUTH);
}

/* A proof made for one connection proves nothing on another; nor does one whose fields were changed. */
static void replayed_and_altered_proofs_are_refused(void **state)
{
    struct boot_rank ranks[3];
    const struct hkt__boot_id id = boot_id_here();
    struct hkt__wire_writer hello;
    struct hkt__wire_reader readers[3] = {{0}};
    struct hkt__wire_challenge challenges[3];
    int fds[3];

    (void)state;
    meeting_begin(ranks, &id);
    for (int i = 0; i < 3; i++) {
        struct hkt__wire_message message;

        fds[i] = stranger(&id);
        assert_true(stranger_read(fds[i], &readers[i], &message));
        assert_true(hkt__wire_get_challenge(&message, &challenges[i]));
    }
    hello_put(&hello, &id, 1, challenges[0].nonce);
    assert_int_equal(hkt__wire_send(fds[1], &hello), 0);
    assert_refused(fds[1], &readers[1]);
    hello_put(&hello, &id, 1, challenges[2].nonce);
    hello.bytes[HKT__WIRE_HEADER_BYTES + 5] ^= 3; /* rank 2 instead */
    assert_int_equal(hkt__wire_send(fds[2], &hello), 0);
    assert_refused(fds[2], &readers[2]);
    meeting_succeeds(ranks);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

/* Ranks 0 and 1 of 3, with a time limit; a stranger with the token says it is rank 2, and nothing more. */
static void meet_with_a_silent_rank(struct boot_rank *ranks, int64_t timeout_ms)
{
    const struct hkt__boot_id id = boot_id_here();
    struct hkt__wire_reader reader = {0};
    struct hkt__wire_message message;
    struct hkt__wire_challenge challenge;
    struct hkt__wire_writer hello;
    const int fd = stranger(&id); /* in time: the listener is there, and what the root says can be read later */

    boot_ranks_init(ranks, 2, &id);
    for (int r = 0; r < 2; r++) {
        ranks[r].nranks = 3;
        ranks[r].timeout_ms = timeout_ms;
    }
    boot_ranks_start(ranks, 2);
    if (stranger_read(fd, &reader, &message) && hkt__wire_get_challenge(&message, &challenge)) {
        hello_put(&hello, &id, 2, challenge.nonce);
        (void)hkt__wire_send(fd, &hello);
    }
    boot_ranks_join(ranks, 2);
    close(fd);
}

/* It holds the token, says it is rank 2, and does nothing more: the others are told who is stuck. */
static void proven_but_silent_rank_is_named(void **state)
{
    static const char words[] = "rank 2 of 3 reached the root, but could not link";
    struct boot_rank ranks[3];

    (void)state;
    for (int64_t ms = 500; ms == 500 || (ms <= 32000 && !boot_all_say(ranks, 2, words)); ms *= 4)
        meet_with_a_silent_rank(ranks, ms);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, HKT_ERR_TIMEOUT);
        boot_text_has(&ranks[r], words);
    }
}

/* Rank 1 of 2 comes to the port of this test. The connection; the listener is the caller's, too. */
static int false_root_start(struct boot_rank *rank, int *out_listener)
{
    struct hkt__boot_id id = {.host = "127.0.0.1", .token = {7}};

    assert_int_equal(hkt__net_listen("127.0.0.1", 0, 0, out_listener), HKT_OK);
    id.port = hkt__net_port(*out_listener);
    *rank = (struct boot_rank){.id = id, .rank = 1, .nranks = 2, .timeout_ms = 30000};
    boot_ranks_start(rank, 1);
    struct pollfd pfd = {.fd = *out_listener, .events = POLLIN};

    assert_int_equal(poll(&pfd, 1, 10000), 1);
    const int fd = accept4(*out_listener, NULL, NULL, SOCK_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

/* It welcomes everyone, but cannot prove that it holds the token. Ranks must not believe it. */
static void false_root_is_not_believed(void **state)
{
    const struct hkt__wire_challenge challenge = {.version = HKT__WIRE_VERSION, .rank = 0};
    const unsigned char guess[HKT__TOKEN_BYTES] = {8};
    struct hkt__wire_reader reader = {0};
    struct hkt__wire_message message;
    struct hkt__wire_writer answer;
    struct hkt__wire_hello hello;
    struct boot_rank rank;
    bool is_proven = false;
    int listener;

    (void)state;
    const int fd = false_root_start(&rank, &listener);

    hkt__wire_put_challenge(&answer, &challenge);
    assert_int_equal(hkt__wire_send(fd, &answer), 0);
    assert_true(stranger_read(fd, &reader, &message));
    assert_true(hkt__wire_get_hello(&message, rank.id.token, challenge.nonce, &hello, &is_proven));
    assert_true(is_proven);
    hkt__wire_put_welcome(&answer, &challenge, &hello, guess);
    assert_int_equal(hkt__wire_send(fd, &answer), 0);
    boot_ranks_join(&rank, 1);
    close(fd);
    close(listener);
    assert_int_equal(rank.status, HKT_ERR_AUTH);
    boot_text_has(&rank, "does not hold this job's token");
}

/* Another build of hocket at the root. */
static void other_version_is_named(void **state)
{
    const struct hkt__wire_challenge challenge = {.version = HKT__WIRE_VERSION + 1, .rank = 0};
    struct hkt__wire_writer message;
    struct boot_rank rank;
    char text[96];
    int listener;

    (void)state;
    const int fd = false_root_start(&rank, &listener);

    hkt__wire_put_challenge(&message, &challenge);
    assert_int_equal(hkt__wire_send(fd, &message), 0);
    boot_ranks_join(&rank, 1);
    close(fd);
    close(listener);
    assert_int_equal(rank.status, HKT_ERR_INVALID);
    snprintf(text, sizeof text, "version %d of the protocol, this rank version %d", HKT__WIRE_VERSION + 1,
             HKT__WIRE_VERSION);
    boot_text_has(&rank, text);
}

/* Some other service has the port. */
static void other_service_at_the_port_is_named(void **state)
{
    struct boot_rank rank;
    int listener;

    (void)state;
    const int fd = false_root_start(&rank, &listener);

    (void)send(fd, "SSH-2.0-OpenSSH_9.2\r\n", 21, MSG_NOSIGNAL);
    boot_ranks_join(&rank, 1);
    close(fd);
    close(listener);
    assert_int_equal(rank.status, HKT_ERR_INVALID);
    boot_text_has(&rank, "is not a rank of hocket");
    boot_text_has(&rank, "HOCKET_ROOT");
}

/* ---- floods, from and in processes of their own ---- */

/* Open `count` silent connections and hold them until the parent ends it. */
static pid_t flood_start(const struct hkt__boot_id *id, int count)
{
    int ready[2];
    char byte = 0;

    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
            limit.rlim_cur = limit.rlim_max;
            (void)setrlimit(RLIMIT_NOFILE, &limit);
        }
        for (int i = 0; i < count; i++)
            (void)stranger(id);
        if (write(ready[1], &byte, 1) != 1)
            _exit(1);
        (void)poll(NULL, 0, 60000);
        _exit(0);
    }
    close(ready[1]);
    while (read(ready[0], &byte, 1) < 0 && errno == EINTR)
        ;
    close(ready[0]);
    return child;
}

static void flood_end(pid_t child)
{
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void flood_beyond_the_limit_does_not_disturb(void **state)
{
    struct boot_rank ranks[3];
    const struct hkt__boot_id id = boot_id_here();

    (void)state;
    const pid_t child = flood_start(&id, HKT__BOOT_PENDING_MAX + 100);

    meeting_begin(ranks, &id);
    meeting_succeeds(ranks);
    flood_end(child);
}

/* Until the root listens, at most 20 s. */
static void wait_for_root(const struct hkt__boot_id *id)
{
    int fd = knock(id);

    for (int i = 0; i < 20000 && fd < 0; i++) {
        (void)poll(NULL, 0, 1);
        fd = knock(id);
    }
    assert_true(fd >= 0);
    close(fd);
}

/* The same with hardly any descriptors left in the root's process. */
static void flood_without_descriptors_does_not_disturb(void **state)
{
    struct boot_rank ranks[3];
    const struct hkt__boot_id id = boot_id_at_free_port();
    struct rlimit limit, low;
    int status = 0;

    (void)state;
    const pid_t root = fork();

    if (root == 0) {
        getrlimit(RLIMIT_NOFILE, &limit);
        low = limit;
        low.rlim_cur = (rlim_t)boot_count_fds() + 6;
        boot_ranks_init(ranks, 3, &id);
        setrlimit(RLIMIT_NOFILE, &low);
        (void)boot_rank_main(&ranks[0]);
        hkt__boot_destroy(ranks[0].boot);
        _exit(ranks[0].status == HKT_OK ? 0 : 1);
    }
    wait_for_root(&id);
    const pid_t child = flood_start(&id, 60);

    boot_ranks_init(ranks, 3, &id);
    boot_ranks_start(ranks + 1, 2);
    boot_ranks_join(ranks + 1, 2);
    assert_int_equal(waitpid(root, &status, 0), root);
    assert_int_equal(status, 0);
    for (int r = 1; r < 3; r++)
        assert_int_equal(ranks[r].status, HKT_OK);
    boot_ranks_destroy(ranks + 1, 2);
    flood_end(child);
}

/* ---- parsers ---- */

/* Every decoder on every message; whatever they accept must be within bounds. */
static void decode_all(const struct hkt__wire_message *message)
{
    static const unsigned char token[HKT__TOKEN_BYTES] = {9}, nonce[HKT__WIRE_NONCE_BYTES] = {8};
    struct hkt__wire_challenge challenge = {0};
    struct hkt__wire_hello hello = {0};
    struct hkt__wire_fail fail;
    struct hkt__wire_gather gather;
    struct hkt__net_addresses addresses;
    struct hkt__boot_event event;
    bool is_proven;

    (void)hkt__wire_get_challenge(message, &challenge);
    if (hkt__wire_get_hello(message, token, nonce, &hello, &is_proven))
        assert_true(hello.addresses.count <= HKT__NET_ADDRESSES_MAX);
    (void)hkt__wire_get_welcome(message, &challenge, &hello, token, &is_proven);
    if (hkt__wire_get_fail(message, &fail))
        assert_true(fail.status < 0 && strlen(fail.text) < sizeof fail.text);
    if (hkt__wire_get_place(message, &addresses)) {
        struct hkt__net_targets targets;

        hkt__net_targets_of(&addresses, &targets);
        assert_int_equal(targets.count, addresses.count);
    }
    (void)hkt__wire_get_gather(message, &gather);
    if (hkt__wire_get_event(message, &event))
        assert_true(event.status < 0 && strlen(event.text) < sizeof event.text);
}

/* A well-formed message of some kind, to be damaged. */
static void example(struct hkt__wire_writer *message, uint64_t *seed)
{
    static const unsigned char token[HKT__TOKEN_BYTES] = {9}, nonce[HKT__WIRE_NONCE_BYTES] = {8};
    const struct hkt__wire_challenge challenge = {.version = 1, .rank = 0};
    struct hkt__wire_hello hello = {.purpose = HKT__WIRE_LINK, .version = 1, .rank = 3, .nranks = 9};
    const struct hkt__wire_gather gather = {.seq = 1, .bytes = 2};
    const struct hkt__boot_event event = {.reporter = 1, .culprit = 2, .status = HKT_ERR_PEER_LOST, .text = "lost"};

    hello.addresses.count = (uint8_t)(random_next(seed) % (HKT__NET_ADDRESSES_MAX + 1));
    for (int i = 0; i < hello.addresses.count; i++)
        hello.addresses.at[i].family = i % 2 == 0 ? 4 : 6;
    switch (random_next(seed) % 7) {
    case 0: hkt__wire_put_challenge(message, &challenge); break;
    case 1: hkt__wire_put_hello(message, &hello, token, nonce); break;
    case 2: hkt__wire_put_welcome(message, &challenge, &hello, token); break;
    case 3: hkt__wire_put_fail(message, HKT_ERR_TIMEOUT, "too late"); break;
    case 4: hkt__wire_put_place(message, &hello.addresses); break;
    case 5: hkt__wire_put_gather(message, &gather); break;
    default: hkt__wire_put_event(message, &event); break;
    }
}

static void fuzzed_payloads_stay_in_bounds(void **state)
{
    (void)state;
    for (uint64_t round = 1; round <= 60000; round++) {
        uint64_t seed = round;
        struct hkt__wire_writer writer;
        enum hkt__wire_type type;
        size_t bytes;

        example(&writer, &seed);
        for (uint64_t k = random_next(&seed) % 4; k > 0; k--)
            writer.bytes[random_next(&seed) % writer.used] = (unsigned char)random_next(&seed);
        if (hkt__wire_check_header(writer.bytes, &type, &bytes) != HKT_OK)
            continue;
        if (random_next(&seed) % 2 == 0) /* cut or longer than it says */
            bytes = random_next(&seed) % (HKT__WIRE_PAYLOAD_MAX + 1);
        /* On the heap and of the exact size, so that the sanitizer sees one byte too far. */
        unsigned char *payload = calloc(1, bytes + 1);
        const struct hkt__wire_message message = {.type = type, .bytes = bytes, .payload = payload};

        assert_non_null(payload);
        memcpy(payload, writer.bytes + HKT__WIRE_HEADER_BYTES,
               bytes < writer.used - HKT__WIRE_HEADER_BYTES ? bytes : writer.used - HKT__WIRE_HEADER_BYTES);
        decode_all(&message);
        free(payload);
    }
}

/* Streams of damaged messages in random cuts through a real socket: the reader ends with OK messages, then AGAIN or
 * CORRUPT, never a message that was not within the stream's bytes. */
static void fuzzed_streams_end_well(void **state)
{
    (void)state;
    for (uint64_t round = 1; round <= 3000; round++) {
        uint64_t seed = round * 77;
        struct hkt__wire_reader reader = {0};
        size_t sent = 0, taken = 0;
        enum hkt_status status = HKT_AGAIN;
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        for (int i = 0; i < 5 && status == HKT_AGAIN; i++) {
            struct hkt__wire_writer writer;
            struct hkt__wire_message message;

            example(&writer, &seed);
            if (random_next(&seed) % 3 == 0)
                writer.bytes[random_next(&seed) % writer.used] ^= (unsigned char)random_next(&seed);
            for (size_t at = 0; at < writer.used;) {
                const size_t cut = 1 + random_next(&seed) % (writer.used - at);

                assert_true(send(pair[0], writer.bytes + at, cut, MSG_NOSIGNAL) == (ssize_t)cut);
                at += cut;
                sent += cut;
                while ((status = hkt__wire_read(&reader, pair[1], &message)) == HKT_OK) {
                    taken += message.bytes + HKT__WIRE_HEADER_BYTES;
                    assert_true(taken <= sent);
                    decode_all(&message);
                }
                if (status != HKT_AGAIN)
                    break;
            }
        }
        assert_true(status == HKT_AGAIN || status == HKT_ERR_CORRUPT);
        close(pair[0]);
        close(pair[1]);
    }
}

#define BOOT_TEST(name) cmocka_unit_test_setup_teardown(name, boot_setup, boot_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOT_TEST(random_bytes_do_not_disturb),
        BOOT_TEST(silence_and_scanners_do_not_disturb),
        BOOT_TEST(byte_by_byte_does_not_disturb),
        BOOT_TEST(messages_of_the_unproven_are_ignored),
        BOOT_TEST(replayed_and_altered_proofs_are_refused),
        BOOT_TEST(proven_but_silent_rank_is_named),
        BOOT_TEST(false_root_is_not_believed),
        BOOT_TEST(other_version_is_named),
        BOOT_TEST(other_service_at_the_port_is_named),
        BOOT_TEST(flood_beyond_the_limit_does_not_disturb),
        BOOT_TEST(flood_without_descriptors_does_not_disturb),
        BOOT_TEST(fuzzed_payloads_stay_in_bounds),
        BOOT_TEST(fuzzed_streams_end_well),
    };

    return cmocka_run_group_tests_name("boot_hostile", tests, NULL, NULL);
}
