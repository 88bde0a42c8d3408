/* Communicators over network plugins (tests/netplug). What could break: a version of the interface is called by the signatures
 * of another; a plugin that is none, lacks a function, starts with an error or has no device of use is taken, or refused
 * without a word that helps; a call that fails in the middle is overlooked, blamed on nobody, or hangs the peer that did not
 * see it; tcp does not take over where it may; something of the plugin's is not given back.
 *
 * usage: test_net FOLDER_OF_THE_PLUGINS */
#include <dlfcn.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"

enum { N = 2, COUNT = 100003 };

static const char *folder;

/** A case: what differs on rank 1, and what becomes of the job. */
struct net_case {
    const char *plugin, *transport, *fault;
    const char *used;                        /* transport of the pair; NULL: it does not come to that */
    enum hkt_status statuses[N];             /* of the calls, or of joining */
    const char *words[N];                    /* in the errors; NULL: not looked at */
};

static void path_of(const char *plugin, char *out_path, size_t bytes)
{
    snprintf(out_path, bytes, "%s/libnccl-net-%s.so", folder, plugin);
}

/** What the plugin has handed out and not got back, in this process. */
static int count_alive(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    int (*alive)(void) = NULL;
    int count = -1;

    if (library == NULL)
        return 0;
    void *symbol = dlsym(library, "netplug_alive");

    memcpy(&alive, &symbol, sizeof alive);
    if (alive != NULL)
        count = alive();
    dlclose(library);
    return count;
}

/** All-reduces of several sizes; the first status that is not OK. */
static enum hkt_status reduce_all(struct ranks_rank *rank)
{
    float *data = malloc(COUNT * sizeof *data);
    enum hkt_status rc = HKT_OK;

    ranks_require(rank, data != NULL, "no memory");
    for (size_t count = 1; count <= COUNT && rc == HKT_OK; count = count * 10 + 3) {
        for (size_t i = 0; i < count; i++)
            data[i] = (float)((i + (size_t)rank->rank) % 1000);
        rc = hkt_all_reduce(data, data, count, HKT_F32, HKT_SUM, rank->comm, NULL);
        for (size_t i = 0; i < count && rc == HKT_OK; i++)
            ranks_require(rank, data[i] == (float)(i % 1000 + (i + 1) % 1000), "element %zu of %zu is %g", i, count,
                          (double)data[i]);
    }
    free(data);
    return rc;
}

static void run_case(struct ranks_rank *rank)
{
    const struct net_case *c = rank->arg;
    struct hkt_config config = HKT_CONFIG_INIT;
    char path[PATH_MAX];

    path_of(c->plugin, path, sizeof path);
    setenv("HOCKET_NET_PLUGIN", path, 1);
    setenv("HOCKET_TRANSPORT", c->transport, 1);
    if (rank->rank == 1 && c->fault != NULL)
        setenv("NETPLUG_FAULT", c->fault, 1);
    config.timeout_ms = 20000;
    enum hkt_status rc = ranks_join(rank, N, &config);

    if (rc == HKT_OK) {
        rc = reduce_all(rank);
        if (c->used != NULL)
            ranks_require(rank, strcmp(hkt_comm_transport(rank->comm, 1 - rank->rank), c->used) == 0, "over %s, not %s",
                          hkt_comm_transport(rank->comm, 1 - rank->rank), c->used);
    }
    ranks_require(rank, rc == c->statuses[rank->rank], "%s, %s, %s: %s, wanted %s: %s", c->plugin, c->transport,
                  c->fault != NULL ? c->fault : "no fault", hkt_status_name(rc), hkt_status_name(c->statuses[rank->rank]),
                  rc < 0 ? hkt_last_error() : "");
    if (c->words[rank->rank] != NULL)
        ranks_require_text(rank, hkt_last_error(), c->words[rank->rank]);
    ranks_meet(rank, 0);
    hkt_comm_destroy(rank->comm);
    rank->comm = NULL;
    ranks_require(rank, count_alive(path) == 0, "%s, %s: the plugin misses %d objects", c->plugin,
                  c->fault != NULL ? c->fault : "no fault", count_alive(path));
}

static void run(const struct net_case *c, const char *const *settings)
{
    /* The interface has no way to give up a connection that is half made: it may keep its socket. */
    const struct ranks_job job = {.kind = RANKS_PROCESSES, .nranks = N, .settings = settings, .no_comm = true, .fn = run_case,
                                  .arg = (void *)(uintptr_t)c, .leaves_descriptors = c->fault != NULL};

    ranks_run(&job);
}

static void every_version_serves(void **state)
{
    static const char *const versions[] = {"v5", "v6", "v7", "v8", "v9", "all", "v11", "v12"};

    (void)state;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const struct net_case c = {.plugin = versions[i], .transport = "net", .used = "net"};

        run(&c, NULL);
    }
}

static void devices_may_take_short_messages(void **state)
{
    static const char *const settings[] = {"NETPLUG_BYTES=1000", "HOCKET_LANES=2", "HOCKET_CRC=1", NULL};
    static const struct net_case c = {.plugin = "v9", .transport = "net", .used = "net"};

    (void)state;
    run(&c, settings);
}

#define BOTH(status) {status, status}

static void unfit_plugins_are_refused(void **state)
{
    static const char *const no_devices[] = {"NETPLUG_DEVICES=0", NULL}, *const no_host[] = {"NETPLUG_PTR=2", NULL};
    static const struct {
        struct net_case c;
        const char *const *settings;
    } cases[] = {
        {{"absent", "net", NULL, NULL, BOTH(HKT_ERR_UNSUPPORTED), BOTH("HOCKET_NET_PLUGIN")}, NULL},
        {{"none", "net", NULL, NULL, BOTH(HKT_ERR_UNSUPPORTED), BOTH("ncclNetPlugin_v5")}, NULL},
        {{"partial", "net", NULL, NULL, BOTH(HKT_ERR_UNSUPPORTED), BOTH("lacks the function isend")}, NULL},
        {{"v8", "net", NULL, NULL, BOTH(HKT_ERR_UNSUPPORTED), BOTH("no device")}, no_devices},
        {{"v8", "net", NULL, NULL, BOTH(HKT_ERR_UNSUPPORTED), BOTH("memory of the host")}, no_host},
        /* Where something else is allowed, that is used. */
        {{"none", "net,tcp", NULL, "tcp", BOTH(HKT_OK), BOTH(NULL)}, NULL},
        {{"v12", "net,tcp", "init:1", "tcp", BOTH(HKT_OK), BOTH(NULL)}, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        run(&cases[i].c, cases[i].settings);
}

static void calls_that_fail_are_told(void **state)
{
    static const char *const calls[] = {"listen", "connect", "accept", "regMr"};
    char fault[32];

    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        snprintf(fault, sizeof fault, "%s:1", calls[i]);
        const struct net_case c = {"v12", "net", fault, NULL, BOTH(HKT_ERR_PEER_LOST), BOTH("asked to fail")};

        run(&c, NULL);
    }
}

static void tcp_takes_over_when_links_open(void **state)
{
    static const char *const calls[] = {"listen:1", "connect:2", "accept:1", "regMr:2"};

    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const struct net_case c = {"v11", "net,tcp", calls[i], NULL, BOTH(HKT_OK), BOTH(NULL)};

        run(&c, NULL);
    }
}

static void failures_in_the_middle_end_the_call(void **state)
{
    static const char *const calls[] = {"isend:4", "irecv:11", "test:6"};

    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const struct net_case c = {"v8", "net", calls[i], NULL, BOTH(HKT_ERR_PEER_LOST), BOTH("asked to fail")};

        run(&c, NULL);
    }
}

/** The plugin takes rank 1 with it: rank 0 is told who is gone. */
static void see_rank_1_die(struct ranks_rank *rank)
{
    char path[PATH_MAX];

    path_of("v12", path, sizeof path);
    setenv("HOCKET_NET_PLUGIN", path, 1);
    setenv("HOCKET_TRANSPORT", "net", 1);
    if (rank->rank == 1)
        setenv("NETPLUG_FAULT", "isend:4:die", 1);
    ranks_require_ok(rank, ranks_join(rank, N, NULL), "joining");
    const enum hkt_status rc = reduce_all(rank);

    ranks_require(rank, rank->rank == 0 && rc == HKT_ERR_PEER_LOST, "%s", hkt_status_name(rc));
    ranks_require_text(rank, hkt_last_error(), "rank 1");
    ranks_note(rank, rc);
}

static void a_plugin_that_dies_is_noticed(void **state)
{
    const struct ranks_job job = {.kind = RANKS_PROCESSES, .nranks = N, .no_comm = true, .fn = see_rank_1_die};
    struct ranks_shared *shared = NULL;

    (void)state;
    assert_false(ranks_try(&job, &shared)); /* rank 1 was killed */
    if (shared->rank[0].status != HKT_ERR_PEER_LOST)
        fail_msg("%s", shared->text);
    ranks_release(shared);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_version_serves),
        cmocka_unit_test(devices_may_take_short_messages),
        cmocka_unit_test(unfit_plugins_are_refused),
        cmocka_unit_test(calls_that_fail_are_told),
        cmocka_unit_test(tcp_takes_over_when_links_open),
        cmocka_unit_test(failures_in_the_middle_end_the_call),
        cmocka_unit_test(a_plugin_that_dies_is_noticed),
    };

    if (argc < 2) {
        fprintf(stderr, "usage: test_net FOLDER_OF_THE_PLUGINS\n");
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
