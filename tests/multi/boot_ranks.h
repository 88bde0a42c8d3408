/* For the tests of the bootstrap: ranks as threads of this process, each with its own say about who it is. */
#ifndef HOCKET_TESTS_BOOT_RANKS_H
#define HOCKET_TESTS_BOOT_RANKS_H

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/boot_int.h"
#include "core/clock.h"
#include "core/settings.h"

#define RANKS_MAX 64

/** One rank: what it is told, and what came of it. */
struct boot_rank {
    struct hkt__boot_id id;
    int rank, nranks;
    int64_t timeout_ms;
    int delay_ms;              /* before it arrives */
    enum hkt_status status;
    char text[HKT__ERROR_TEXT_MAX];
    struct hkt__boot *boot;
    pthread_t thread;
};

static inline void *boot_rank_main(void *arg)
{
    struct boot_rank *rank = arg;

    if (rank->delay_ms > 0)
        (void)poll(NULL, 0, rank->delay_ms);
    rank->status = hkt__boot_meet(&rank->id, rank->nranks, rank->rank, rank->timeout_ms, &rank->boot);
    if (rank->status < 0)
        memcpy(rank->text, hkt__error_here()->text, sizeof rank->text);
    return NULL;
}

static inline void boot_ranks_init(struct boot_rank *ranks, int nranks, const struct hkt__boot_id *id)
{
    memset(ranks, 0, (size_t)nranks * sizeof *ranks);
    for (int r = 0; r < nranks; r++)
        ranks[r] = (struct boot_rank){.id = *id, .rank = r, .nranks = nranks, .timeout_ms = 30000};
}

static inline void boot_ranks_start(struct boot_rank *ranks, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, boot_rank_main, &ranks[i]), 0);
}

static inline void boot_ranks_join(struct boot_rank *ranks, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(pthread_join(ranks[i].thread, NULL), 0);
}

static inline void boot_ranks_destroy(struct boot_rank *ranks, int count)
{
    for (int i = 0; i < count; i++)
        hkt__boot_destroy(ranks[i].boot);
}

/** Start, join, and demand success of all. */
static inline void boot_ranks_meet(struct boot_rank *ranks, int count)
{
    boot_ranks_start(ranks, count);
    boot_ranks_join(ranks, count);
    for (int i = 0; i < count; i++)
        if (ranks[i].status != HKT_OK)
            fail_msg("rank %d of %d: %s", ranks[i].rank, ranks[i].nranks, ranks[i].text);
}

static inline void boot_text_has(const struct boot_rank *rank, const char *part)
{
    if (strstr(rank->text, part) == NULL)
        fail_msg("rank %d (%s): \"%s\" is not in: %s", rank->rank, hkt_status_name(rank->status), part, rank->text);
}

/** Have all failed for want of time, and do they say that? Some tests give ranks little time, since all of it passes, and
 *  more when the machine let them do too little in it. */
static inline bool boot_all_say(const struct boot_rank *ranks, int count, const char *part)
{
    for (int i = 0; i < count; i++)
        if (ranks[i].status != HKT_ERR_TIMEOUT || strstr(ranks[i].text, part) == NULL)
            return false;
    return true;
}

/** An id of this process (its listener waits). */
static inline struct hkt__boot_id boot_id_here(void)
{
    struct hkt__boot_id id;

    if (hkt__boot_id_create(&id) != HKT_OK)
        fail_msg("%s", hkt_last_error());
    return id;
}

static int boot_port_fd = -1; /* keeps the port of boot_id_at */

static inline void boot_port_free(void)
{
    if (boot_port_fd >= 0)
        close(boot_port_fd);
    boot_port_fd = -1;
}

/** An id at a port of 127.0.0.1 without a listener, until the test's end or the next such id. A socket that is bound to the
 *  port keeps the kernel from giving it to anybody else; as both say SO_REUSEADDR, a listener may still come. */
static inline struct hkt__boot_id boot_id_at_free_port(void)
{
    struct hkt__boot_id id = {.host = "127.0.0.1", .token = {1, 2, 3}};
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int on = 1;

    boot_port_free();
    boot_port_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(boot_port_fd >= 0);
    assert_int_equal(setsockopt(boot_port_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(boot_port_fd, (const struct sockaddr *)&address, sizeof address), 0);
    id.port = hkt__net_port(boot_port_fd);
    return id;
}

/** Open descriptors of this process. */
static inline int boot_count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static int boot_fds_before;

static inline int boot_setup(void **state)
{
    (void)state;
    boot_fds_before = boot_count_fds();
    return 0;
}

/** Every test ends with as many open descriptors as it began with. */
static inline int boot_teardown(void **state)
{
    (void)state;
    boot_port_free();
    const int now = boot_count_fds();

    if (now != boot_fds_before)
        print_error("%d descriptors were open before the test, %d are now\n", boot_fds_before, now);
    return now == boot_fds_before ? 0 : -1;
}

#endif
