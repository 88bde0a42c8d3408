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

/** An id of this process (its listener waits). */
static inline struct hkt__boot_id boot_id_here(void)
{
    struct hkt__boot_id id;

    if (hkt__boot_id_create(&id) != HKT_OK)
        fail_msg("%s", hkt_last_error());
    return id;
}

/** An id at a port that was free a moment ago, without a listener. */
static inline struct hkt__boot_id boot_id_at(const char *host)
{
    struct hkt__boot_id id = {.token = {1, 2, 3}};
    int fd;

    assert_int_equal(hkt__net_listen(host, 0, 0, &fd), HKT_OK);
    id.port = hkt__net_port(fd);
    close(fd);
    snprintf(id.host, sizeof id.host, "%s", host);
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
    const int now = boot_count_fds();

    (void)state;
    if (now != boot_fds_before)
        print_error("%d descriptors were open before the test, %d are now\n", boot_fds_before, now);
    return now == boot_fds_before ? 0 : -1;
}

#endif
