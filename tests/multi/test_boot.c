/* What could break: ranks do not find each other in some order of arrival or at some size, an all-gather mixes up
 * blocks, a mistake of one rank (missing, doubled, wrong size, wrong token, dead, stuck) hangs the others or is
 * blamed on someone else, a failure leaks sockets or memory. */
#include "boot_ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "core/mem.h"

enum { PATIENCE_MS = 30000 };

static const int sizes[] = {1, 2, 3, 5, 8, 16, 33};

/* ---- meeting ---- */

struct gather_run {
    struct hkt__boot *boot;
    int rank, nranks;
    size_t bytes;
    enum hkt_status status;
    struct hkt__error error;
    pthread_t thread;
};

static unsigned char block_byte(int rank, size_t i)
{
    return (unsigned char)((size_t)rank * 31 + i * 7 + i / 251);
}

/* All-gather a pattern and check every byte. */
static void *gather_main(void *arg)
{
    struct gather_run *run = arg;
    unsigned char *in = malloc(run->bytes + 1), *out = malloc((size_t)run->nranks * run->bytes + 1);

    for (size_t i = 0; i < run->bytes; i++)
        in[i] = block_byte(run->rank, i);
    out[(size_t)run->nranks * run->bytes] = 0xa5;
    run->status = hkt__boot_all_gather(run->boot, in, run->bytes, out);
    run->error = *hkt__error_here();
    for (int r = 0; r < run->nranks && run->status == HKT_OK; r++)
        for (size_t i = 0; i < run->bytes; i++)
            if (out[(size_t)r * run->bytes + i] != block_byte(r, i))
                run->status = HKT_ERR_BUG;
    if (out[(size_t)run->nranks * run->bytes] != 0xa5)
        run->status = HKT_ERR_BUG;
    free(in);
    free(out);
    return NULL;
}

static void gather_all(struct gather_run *runs, struct boot_rank *ranks, int nranks, size_t bytes)
{
    for (int r = 0; r < nranks; r++) {
        runs[r] = (struct gather_run){.boot = ranks[r].boot, .rank = r, .nranks = nranks, .bytes = bytes};
        assert_int_equal(pthread_create(&runs[r].thread, NULL, gather_main, &runs[r]), 0);
    }
    for (int r = 0; r < nranks; r++)
        assert_int_equal(pthread_join(runs[r].thread, NULL), 0);
}

static void meet_and_gather_at_any_size(void **state)
{
    static const size_t bytes[] = {1, 0, 1000, 3, 100003};
    struct boot_rank ranks[RANKS_MAX];
    struct gather_run runs[RANKS_MAX];

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const struct hkt__boot_id id = boot_id_here();

        boot_ranks_init(ranks, sizes[s], &id);
        boot_ranks_meet(ranks, sizes[s]);
        for (size_t b = 0; b < sizeof bytes / sizeof bytes[0]; b++) {
            gather_all(runs, ranks, sizes[s], bytes[b]);
            for (int r = 0; r < sizes[s]; r++)
                assert_int_equal(runs[r].status, HKT_OK);
        }
        for (int r = 0; r < sizes[s]; r++)
            assert_true(hkt__boot_local_address(ranks[r].boot)[0] != '\0');
        boot_ranks_destroy(ranks, sizes[s]);
    }
}

/* The root does not listen before it arrives: the port is only a number until then. */
static void meet_in_any_order(void **state)
{
    struct boot_rank ranks[RANKS_MAX];

    (void)state;
    for (unsigned seed = 1; seed <= 12; seed++) {
        const struct hkt__boot_id id = boot_id_at_free_port();
        unsigned random = seed;

        boot_ranks_init(ranks, 6, &id);
        for (int r = 0; r < 6; r++) {
            random = random * 1103515245u + 12345u;
            ranks[r].delay_ms = (int)(random >> 16) % 60;
        }
        ranks[seed % 6].delay_ms = 100;
        boot_ranks_meet(ranks, 6);
        boot_ranks_destroy(ranks, 6);
    }
}

static void meet_at_any_kind_of_address(void **state)
{
    static const char *const hosts[] = {"127.0.0.1", "::1", "localhost", "no-such-host.invalid,127.0.0.1",
                                        "::1,127.0.0.1"};
    struct boot_rank ranks[RANKS_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        struct hkt__boot_id id = boot_id_at_free_port();

        snprintf(id.host, sizeof id.host, "%s", hosts[i]);
        boot_ranks_init(ranks, 4, &id);
        boot_ranks_meet(ranks, 4);
        boot_ranks_destroy(ranks, 4);
    }
}

static void meet_twice_in_one_process_at_once(void **state)
{
    struct boot_rank ranks[RANKS_MAX];
    const struct hkt__boot_id a = boot_id_here(), b = boot_id_here();

    (void)state;
    boot_ranks_init(ranks, 4, &a);
    boot_ranks_init(ranks + 4, 4, &b);
    boot_ranks_meet(ranks, 8);
    boot_ranks_destroy(ranks, 8);
}

/* ---- mistakes ---- */

static void missing_ranks_are_named(void **state)
{
    static const int here[] = {0, 1, 2, 4, 7};
    struct boot_rank ranks[RANKS_MAX];

    (void)state;
    for (int64_t ms = 400; ms == 400 || (ms <= PATIENCE_MS && !boot_all_say(ranks, 5, "5 of 10 are here")); ms *= 4) {
        const struct hkt__boot_id id = boot_id_here();

        boot_ranks_init(ranks, 5, &id);
        for (int i = 0; i < 5; i++) {
            ranks[i].rank = here[i];
            ranks[i].nranks = 10;
            ranks[i].timeout_ms = ms;
        }
        boot_ranks_start(ranks, 5);
        boot_ranks_join(ranks, 5);
    }
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ranks[i].status, HKT_ERR_TIMEOUT);
        boot_text_has(&ranks[i], "ranks 3, 5, 6, 8, 9 of 10 did not arrive");
        boot_text_has(&ranks[i], "5 of 10 are here");
    }
}

static void missing_root_is_named(void **state)
{
    struct boot_rank ranks[RANKS_MAX];
    const struct hkt__boot_id id = boot_id_at_free_port();

    (void)state;
    for (int64_t ms = 300; ms == 300 || (ms <= PATIENCE_MS && !boot_all_say(ranks + 1, 2, "refused")); ms *= 4) {
        boot_ranks_init(ranks, 3, &id);
        for (int i = 1; i < 3; i++)
            ranks[i].timeout_ms = ms;
        boot_ranks_start(ranks + 1, 2);
        boot_ranks_join(ranks + 1, 2);
    }
    for (int i = 1; i < 3; i++) {
        assert_int_equal(ranks[i].status, HKT_ERR_TIMEOUT);
        boot_text_has(&ranks[i], "did not reach the root");
        boot_text_has(&ranks[i], "refused");
        boot_text_has(&ranks[i], "HOCKET_ROOT");
    }
}

static void unknown_host_is_named(void **state)
{
    struct boot_rank rank;
    const struct hkt__boot_id id = {.host = "no-such-host.invalid", .port = 4711};

    (void)state;
    rank = (struct boot_rank){.id = id, .rank = 1, .nranks = 2, .timeout_ms = 200};
    boot_ranks_start(&rank, 1);
    boot_ranks_join(&rank, 1);
    assert_int_equal(rank.status, HKT_ERR_TIMEOUT);
    boot_text_has(&rank, "\"no-such-host.invalid\" does not resolve");
}

/* The stranger is told the mend; the job goes on without it. */
static void wrong_token_is_refused(void **state)
{
    struct boot_rank ranks[RANKS_MAX];
    const struct hkt__boot_id id = boot_id_here();

    (void)state;
    boot_ranks_init(ranks, 4, &id);
    for (int i = 0; i < 4; i++)
        ranks[i].nranks = 3;
    ranks[2].id.token[15] ^= 0x80;
    ranks[3].rank = 2; /* the true rank 2 comes after the false one */
    boot_ranks_start(ranks, 3);
    boot_ranks_join(ranks + 2, 1);
    boot_ranks_start(ranks + 3, 1);
    boot_ranks_join(ranks, 2);
    boot_ranks_join(ranks + 3, 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ranks[i].status, i == 2 ? HKT_ERR_AUTH : HKT_OK);
    boot_text_has(&ranks[2], "HOCKET_TOKEN");
    boot_ranks_destroy(ranks, 4);
}

static void different_sizes_are_told_to_both(void **state)
{
    struct boot_rank ranks[RANKS_MAX];
    const struct hkt__boot_id id = boot_id_here();

    (void)state;
    boot_ranks_init(ranks, 3, &id);
    ranks[2].nranks = 4;
    ranks[2].delay_ms = 100; /* rank 1 is there, as a rule, and learns it too; else it finds no root */
    ranks[1].timeout_ms = 10000;
    boot_ranks_start(ranks, 3);
    boot_ranks_join(ranks, 3);
    for (int i = 0; i < 3; i++) {
        if (i == 1 && boot_all_say(&ranks[1], 1, "did not reach the root"))
            continue;
        assert_int_equal(ranks[i].status, HKT_ERR_INVALID);
        boot_text_has(&ranks[i], "rank 2");
        boot_text_has(&ranks[i], "one of 4 ranks, rank 0 as one of 3");
    }
}

static void doubled_rank_is_told_to_both(void **state)
{
    struct boot_rank ranks[RANKS_MAX];
    struct hkt__boot_id id = boot_id_here();

    (void)state;
    boot_ranks_init(ranks, 3, &id);
    for (int i = 0; i < 3; i++)
        ranks[i].nranks = 4;
    ranks[2].rank = 1;
    boot_ranks_start(ranks, 3);
    boot_ranks_join(ranks, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ranks[i].status, HKT_ERR_INVALID);
        boot_text_has(&ranks[i], "two processes say they are rank 1");
    }
}

/* Two roots: the second finds its port taken. */
static void taken_port_is_named(void **state)
{
    struct boot_rank rank;
    struct hkt__boot_id id = {.host = "127.0.0.1"};
    int fd;
    char port[32];

    (void)state;
    assert_int_equal(hkt__net_listen(NULL, 0, 0, &fd), HKT_OK);
    id.port = hkt__net_port(fd);
    rank = (struct boot_rank){.id = id, .rank = 0, .nranks = 2, .timeout_ms = 300};
    boot_ranks_start(&rank, 1);
    boot_ranks_join(&rank, 1);
    close(fd);
    assert_int_equal(rank.status, HKT_ERR_SYSTEM);
    snprintf(port, sizeof port, "port %u is taken", id.port);
    boot_text_has(&rank, port);
    boot_text_has(&rank, "HOCKET_ROOT");
}

static void impossible_ranks_are_refused(void **state)
{
    static const int bad[][2] = {{0, 0}, {0, -1}, {-1, 2}, {2, 2}, {0, HKT__BOOT_NRANKS_MAX + 1}};
    const struct hkt__boot_id id = {.host = "127.0.0.1", .port = 4711}, nowhere = {.port = 0};
    struct hkt__boot *boot = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(hkt__boot_meet(&id, bad[i][1], bad[i][0], 100, &boot), HKT_ERR_INVALID);
    assert_int_equal(hkt__boot_meet(&nowhere, 2, 0, 100, &boot), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_ROOT"));
    assert_null(boot);
}

/* Ranks 0 and 1 of 4; rank 2 is killed after so long. */
static void meet_with_one_to_be_killed(struct boot_rank *ranks, int after_ms)
{
    const struct hkt__boot_id id = boot_id_here();

    boot_ranks_init(ranks, 2, &id);
    for (int i = 0; i < 2; i++) {
        ranks[i].nranks = 4;
        ranks[i].timeout_ms = after_ms + 10000;
    }
    const pid_t child = fork();

    if (child == 0) {
        ranks[1].rank = 2;
        (void)boot_rank_main(&ranks[1]);
        _exit(0);
    }
    boot_ranks_start(ranks, 2);
    (void)poll(NULL, 0, after_ms);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    boot_ranks_join(ranks, 2);
}

/* A rank that dies while it waits for others ends the meeting, not the deadline does: unless it died before it was there. */
static void dead_rank_ends_the_meeting(void **state)
{
    struct boot_rank ranks[2];

    (void)state;
    meet_with_one_to_be_killed(ranks, 300);
    if (boot_all_say(ranks, 2, "ranks 2, 3 of 4 did not arrive"))
        meet_with_one_to_be_killed(ranks, 5000);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, HKT_ERR_PEER_LOST);
        boot_text_has(&ranks[i], "rank 2");
    }
}

/* ---- all-gather ---- */

static void gather_of_different_sizes_is_a_mismatch(void **state)
{
    struct boot_rank ranks[RANKS_MAX];
    struct gather_run runs[RANKS_MAX];
    const struct hkt__boot_id id = boot_id_here();

    (void)state;
    boot_ranks_init(ranks, 8, &id);
    boot_ranks_meet(ranks, 8);
    for (int r = 0; r < 8; r++) {
        runs[r] = (struct gather_run){.boot = ranks[r].boot, .rank = r, .nranks = 8, .bytes = r == 6 ? 12 : 8};
        assert_int_equal(pthread_create(&runs[r].thread, NULL, gather_main, &runs[r]), 0);
    }
    for (int r = 0; r < 8; r++) {
        assert_int_equal(pthread_join(runs[r].thread, NULL), 0);
        assert_int_equal(runs[r].status, HKT_ERR_MISMATCH);
        if (strstr(runs[r].error.text, "rank 6 exchanges 12 bytes") == NULL)
            fail_msg("rank %d: %s", r, runs[r].error.text);
        assert_int_equal(hkt__boot_all_gather(ranks[r].boot, NULL, 0, NULL), HKT_ERR_FAILED);
    }
    boot_ranks_destroy(ranks, 8);
}

/* Rank `gone` closes its sockets without a word, as a killed process does. Everyone must blame it, at any place in the
 * tree, also those who only see a neighbour give up. */
static void gather_blames_the_rank_that_is_gone(void **state)
{
    struct boot_rank ranks[RANKS_MAX];
    struct gather_run runs[RANKS_MAX];

    (void)state;
    for (int gone = 0; gone < 8; gone++) {
        const struct hkt__boot_id id = boot_id_here();

        boot_ranks_init(ranks, 8, &id);
        boot_ranks_meet(ranks, 8);
        for (int i = 0; i < HKT__LINK_COUNT; i++) {
            close(ranks[gone].boot->links[i].fd);
            ranks[gone].boot->links[i].fd = -1;
        }
        for (int r = 0; r < 8; r++) {
            runs[r] = (struct gather_run){.boot = ranks[r].boot, .rank = r, .nranks = 8, .bytes = 1000};
            if (r != gone)
                assert_int_equal(pthread_create(&runs[r].thread, NULL, gather_main, &runs[r]), 0);
        }
        for (int r = 0; r < 8; r++) {
            if (r == gone)
                continue;
            assert_int_equal(pthread_join(runs[r].thread, NULL), 0);
            if (runs[r].status != HKT_ERR_PEER_LOST || runs[r].error.peer != gone)
                fail_msg("rank %d is gone, but rank %d blames rank %d: %s", gone, r, runs[r].error.peer,
                         runs[r].error.text);
        }
        boot_ranks_destroy(ranks, 8);
    }
}

/* Rank 0 gives up and says why before rank 1 even begins: rank 1's send fails, but the reason is there to be read. */
static void gather_reads_the_last_words_of_a_rank_that_left(void **state)
{
    struct boot_rank ranks[2];
    struct gather_run run;
    const struct hkt__boot_id id = boot_id_here();
    const struct hkt__boot_event event = {.reporter = 0, .culprit = -1, .status = HKT_ERR_NOMEM, .text = "no memory"};

    (void)state;
    boot_ranks_init(ranks, 2, &id);
    boot_ranks_meet(ranks, 2);
    hkt__boot_tell(ranks[0].boot, &event);
    hkt__boot_destroy(ranks[0].boot);
    run = (struct gather_run){.boot = ranks[1].boot, .rank = 1, .nranks = 2, .bytes = 20000000};
    gather_main(&run);
    assert_int_equal(run.status, HKT_ERR_NOMEM);
    assert_non_null(strstr(run.error.text, "rank 0 reports: no memory"));
    hkt__boot_destroy(ranks[1].boot);
}

static void gather_has_a_deadline(void **state)
{
    struct boot_rank ranks[RANKS_MAX];
    struct gather_run runs[2];
    const struct hkt__boot_id id = boot_id_here();

    (void)state;
    boot_ranks_init(ranks, 3, &id);
    boot_ranks_meet(ranks, 3);
    for (int r = 0; r < 2; r++) {
        ranks[r].boot->timeout_ms = 200;
        runs[r] = (struct gather_run){.boot = ranks[r].boot, .rank = r, .nranks = 3, .bytes = 8};
        assert_int_equal(pthread_create(&runs[r].thread, NULL, gather_main, &runs[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(pthread_join(runs[r].thread, NULL), 0);
        assert_int_equal(runs[r].status, HKT_ERR_TIMEOUT);
    }
    assert_non_null(strstr(runs[0].error.text, "for rank 2"));
    boot_ranks_destroy(ranks, 3);
}

/* ---- memory ---- */

/* Every allocation of a two-rank meeting fails once: a clean failure on at least one side, success or failure on the
 * other, who does not wait for the one without memory; nothing left behind (descriptors: teardown; memory: the sanitizer). */
static void meeting_survives_no_memory(void **state)
{
    struct boot_rank ranks[2];
    int k = 0, failures;

    (void)state;
    do {
        const struct hkt__boot_id id = boot_id_here();

        boot_ranks_init(ranks, 2, &id);
        hkt__mem_fail_at(++k);
        boot_ranks_start(ranks, 2);
        boot_ranks_join(ranks, 2);
        hkt__mem_fail_at(0);
        failures = 0;
        for (int r = 0; r < 2; r++) {
            failures += ranks[r].status < 0;
            if (ranks[r].status != HKT_OK && (ranks[r].status == HKT_ERR_TIMEOUT || ranks[r].text[0] == '\0'))
                fail_msg("allocation %d failed: rank %d: %s: %s", k, r, hkt_status_name(ranks[r].status), ranks[r].text);
        }
        const int listener = hkt__boot_listener_take(&id); /* of a root that failed before it took it */

        if (listener >= 0)
            close(listener);
        boot_ranks_destroy(ranks, 2);
    } while (failures > 0 && k < 100);
    assert_in_range(k, 4, 99);
}

#define BOOT_TEST(name) cmocka_unit_test_setup_teardown(name, boot_setup, boot_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOT_TEST(meet_and_gather_at_any_size),
        BOOT_TEST(meet_in_any_order),
        BOOT_TEST(meet_at_any_kind_of_address),
        BOOT_TEST(meet_twice_in_one_process_at_once),
        BOOT_TEST(missing_ranks_are_named),
        BOOT_TEST(missing_root_is_named),
        BOOT_TEST(unknown_host_is_named),
        BOOT_TEST(wrong_token_is_refused),
        BOOT_TEST(different_sizes_are_told_to_both),
        BOOT_TEST(doubled_rank_is_told_to_both),
        BOOT_TEST(taken_port_is_named),
        BOOT_TEST(impossible_ranks_are_refused),
        BOOT_TEST(dead_rank_ends_the_meeting),
        BOOT_TEST(gather_of_different_sizes_is_a_mismatch),
        BOOT_TEST(gather_blames_the_rank_that_is_gone),
        BOOT_TEST(gather_reads_the_last_words_of_a_rank_that_left),
        BOOT_TEST(gather_has_a_deadline),
        BOOT_TEST(meeting_survives_no_memory),
    };

    return cmocka_run_group_tests_name("boot", tests, NULL, NULL);
}
