/* What could break: ranks that merge the same views to different graphs, a part seen by one rank only that gets lost, two
 * hosts taken for one or one for two, bytes of a peer that crash (mutated blobs, deterministic), an exchange in which one
 * rank without a view stops the others. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/mem.h"
#include "topology/merge.h"
#include "topology/text.h"

#define RANKS_MAX 16

static struct hkt_topo *parse(const char *text)
{
    struct hkt_topo *topo = NULL;

    if (hkt__topo_parse(text, strlen(text), "text", &topo) != HKT_OK)
        fail_msg("%s in\n%s", hkt_last_error(), text);
    return topo;
}

static struct hkt_topo *machine(const char *line)
{
    struct hkt_topo *topo = NULL;

    if (hkt_topo_synthetic(line, &topo) != HKT_OK)
        fail_msg("%s: %s", line, hkt_last_error());
    return topo;
}

struct views {
    unsigned char *blobs[RANKS_MAX];
    size_t bytes[RANKS_MAX];
    int nranks;
};

static void put(struct views *views, const char *text)
{
    if (text != NULL) {
        struct hkt_topo *topo = parse(text);

        assert_int_equal(hkt__topo_pack(topo, &views->blobs[views->nranks], &views->bytes[views->nranks]), HKT_OK);
        hkt_topo_destroy(topo);
    }
    views->nranks++;
}

static enum hkt_status merge(const struct views *views, struct hkt_topo **out_topo)
{
    const unsigned char *blobs[RANKS_MAX];

    for (int r = 0; r < views->nranks; r++)
        blobs[r] = views->blobs[r];
    return hkt__topo_merge(blobs, views->bytes, views->nranks, out_topo);
}

static void drop(struct views *views)
{
    for (int r = 0; r < views->nranks; r++)
        hkt__free(views->blobs[r]);
    *views = (struct views){ 0 };
}

static void assert_merges_to(struct views *views, const char *want)
{
    struct hkt_topo *topo = NULL, *wanted = parse(want);
    char *text = NULL;
    size_t bytes;

    if (merge(views, &topo) != HKT_OK)
        fail_msg("%s", hkt_last_error());
    if (!hkt__topo_equal(topo, wanted)) {
        FILE *file = open_memstream(&text, &bytes);

        assert_int_equal(hkt_topo_save(topo, file), HKT_OK);
        fclose(file);
        fail_msg("wanted\n%sgot\n%s", want, text);
    }
    hkt_topo_destroy(topo);
    hkt_topo_destroy(wanted);
    drop(views);
}

static void blobs_come_back_and_are_small(void **state)
{
    static const char *const lines[] = { "core:1", "package:2 numa:4 l3:2 core:8",
                                         "host:3 package:2 gpu:8 nvswitch:1 nic:8",
                                         "rack:2 host:2@1TB/s,100ms core:2 pu:4" };

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct hkt_topo *topo = machine(lines[i]), *again = NULL;
        unsigned char *blob;
        size_t bytes;

        assert_int_equal(hkt__topo_pack(topo, &blob, &bytes), HKT_OK);
        assert_int_equal(hkt__topo_unpack(blob, bytes, &again), HKT_OK);
        assert_true(hkt__topo_equal(topo, again));
        assert_true(bytes <= 64 + 16 * (size_t)(topo->nnodes + topo->nlinks));
        hkt__free(blob);
        hkt_topo_destroy(topo);
        hkt_topo_destroy(again);
    }
}

static void ranks_of_a_host_add_what_only_they_see(void **state)
{
    struct views views = { 0 };

    (void)state;
    put(&views,
        "hocket-topology 1\nnet 0\n  host 0 name=a id=5 link=network:1GB/s:-:sysfs\n    package 1\n      core 2\n"
        "        pu 2\n    nic 0 name=eth0\nlink net0 host0/nic0 network:1GB/s:-:sysfs\n");
    put(&views,
        "hocket-topology 1\nnet 0\n  host 0 name=other id=5 link=network:2GB/s:-:sysfs\n    package 0\n      core 0\n"
        "        pu 0\n    package 1 link=socket:-:1ns:given\n      core 3\n        pu 3\n    nic 0 name=eth0\n");
    put(&views, "hocket-topology 1\nnet 0\n  host 0 name=a id=5\n    package 1\n      core 2\n        pu 2\n");
    assert_merges_to(
        &views, "hocket-topology 1\nnet 0\n  host 0 name=a id=5 link=network:1GB/s:-:sysfs\n    package 0\n"
                "      core 0\n        pu 0\n    package 1\n      core 2\n        pu 2\n      core 3\n        pu 3\n"
                "    nic 0 name=eth0\nlink net0 host0/nic0 network:1GB/s:-:sysfs\n");
}

static void hosts_come_in_the_order_of_their_lowest_rank(void **state)
{
    struct views views = { 0 };

    (void)state;
    put(&views, "hocket-topology 1\nnet 0\n  host 0 name=late id=ff\n    core 0\n");
    put(&views, "hocket-topology 1\nnet 0\n  host 0 name=early id=1\n    core 0\n");
    put(&views, "hocket-topology 1\nnet 0\n  host 0 name=late id=ff\n    core 1\n");
    put(&views, NULL); /* a rank that sees nothing */
    put(&views, "hocket-topology 1\nnet 0\n  host 0 name=third id=2\n    core 0\n");
    assert_merges_to(&views, "hocket-topology 1\nnet 0\n  host 0 name=late id=ff\n    core 0\n    core 1\n"
                             "  host 1 name=early id=1\n    core 0\n  host 2 name=third id=2\n    core 0\n");
    put(&views, NULL);
    put(&views, NULL);
    assert_merges_to(&views, "hocket-topology 1\nnet 0\n");
}

/* Two views may count devices differently, when one sees fewer: the name decides. */
static void devices_are_known_by_name(void **state)
{
    struct views views = { 0 };

    (void)state;
    put(&views, "hocket-topology 1\nnet 0\n  host 0 id=5\n    numa 0\n      gpu 0 name=0000:01:00.0\n      gpu 1 "
                "name=0000:02:00.0\nlink host0/gpu0 host0/gpu1 nvlink:1GB/s:-:given\n");
    put(&views, "hocket-topology 1\nnet 0\n  host 0 id=5\n    numa 0\n      gpu 0 name=0000:02:00.0\n      gpu 1 "
                "name=0000:03:00.0\nlink host0/gpu0 host0/gpu1 nvlink:2GB/s:-:given\n");
    assert_merges_to(
        &views, "hocket-topology 1\nnet 0\n  host 0 id=5\n    numa 0\n      gpu 0 name=0000:01:00.0\n"
                "      gpu 1 name=0000:02:00.0\n      gpu 2 name=0000:03:00.0\n"
                "link host0/gpu0 host0/gpu1 nvlink:1GB/s:-:given\nlink host0/gpu1 host0/gpu2 nvlink:2GB/s:-:given\n");
}

static void a_wrong_view_is_named_with_its_rank(void **state)
{
    struct views views = { 0 };
    struct hkt_topo *topo = NULL;

    (void)state;
    put(&views, "hocket-topology 1\nnet 0\n  host 0 id=5\n");
    put(&views, "hocket-topology 1\nnet 0\n  host 0 id=5\n  host 1 id=6\n");
    assert_int_equal(merge(&views, &topo), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "rank 1"));
    views.bytes[0]--;
    assert_int_equal(merge(&views, &topo), HKT_ERR_CORRUPT);
    assert_non_null(strstr(hkt_last_error(), "rank 0"));
    assert_null(topo);
    drop(&views);
}

static uint64_t seed;

static uint32_t pick(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % below;
}

static void mutated_blobs_are_taken_or_refused(void **state)
{
    struct hkt_topo *topo = machine("package:2 numa:2 core:2 gpu:4 nvswitch:1 nic:2@25GB/s");
    unsigned char *blob, *copy;
    size_t bytes;
    int taken = 0;

    (void)state;
    print_message("seeds 1 to 20000\n");
    assert_int_equal(hkt__topo_pack(topo, &blob, &bytes), HKT_OK);
    for (uint64_t s = 1; s <= 20000; s++) {
        struct hkt_topo *again = NULL;
        size_t length = bytes;

        seed = s;
        if (pick(4) == 0)
            length = pick((uint32_t)bytes + 1);
        copy = malloc(length + 1); /* a copy of just this size: reading beyond it is seen */
        memcpy(copy, blob, length);
        for (uint32_t i = 0, count = 1 + pick(3); i < count && length > 0; i++)
            copy[pick((uint32_t)length)] = (unsigned char)pick(256);
        copy = realloc(copy, length > 0 ? length : 1);
        const enum hkt_status rc = hkt__topo_unpack(copy, length, &again);

        if (rc != HKT_OK && rc != HKT_ERR_CORRUPT && rc != HKT_ERR_INVALID)
            fail_msg("seed %llu: %s", (unsigned long long)s, hkt_last_error());
        assert_int_equal(again != NULL, rc == HKT_OK);
        taken += rc == HKT_OK;
        hkt_topo_destroy(again);
        free(copy);
    }
    print_message("%d of 20000 taken\n", taken);
    assert_true(taken > 1000 && taken < 19000);
    hkt__free(blob);
    hkt_topo_destroy(topo);
}

/* An all-gather among threads. */

struct job {
    pthread_barrier_t barrier;
    int nranks;
    unsigned char *buffer;
};

struct member {
    struct job *job;
    int rank;
    const struct hkt_topo *own;
    struct hkt_topo *merged;
    enum hkt_status status;
};

static enum hkt_status gather(void *arg, const void *in, size_t bytes, void *out)
{
    struct member *member = arg;
    struct job *job = member->job;

    pthread_barrier_wait(&job->barrier);
    if (member->rank == 0)
        job->buffer = malloc((size_t)job->nranks * bytes);
    pthread_barrier_wait(&job->barrier);
    memcpy(job->buffer + (size_t)member->rank * bytes, in, bytes);
    pthread_barrier_wait(&job->barrier);
    memcpy(out, job->buffer, (size_t)job->nranks * bytes);
    pthread_barrier_wait(&job->barrier);
    if (member->rank == 0)
        free(job->buffer);
    return HKT_OK;
}

static void *take_part(void *arg)
{
    struct member *member = arg;

    member->status = hkt__topo_exchange(member->own, member->job->nranks, gather, member, &member->merged);
    return NULL;
}

static void all_ranks_get_the_same_graph(void **state)
{
    static const char *const texts[] = {
        "hocket-topology 1\nnet 0\n  host 0 id=9\n    core 0\n",
        "hocket-topology 1\nnet 0\n  host 0 id=3\n    core 0\n    core 1\n    core 2\n",
        "hocket-topology 1\nnet 0\n  host 0 id=9\n    core 1\n", NULL
    };
    struct job job = { .nranks = 4 };
    struct member members[4];
    struct hkt_topo *own[4];
    pthread_t threads[4];

    (void)state;
    for (int with_views = 1; with_views >= 0; with_views--) {
        assert_int_equal(pthread_barrier_init(&job.barrier, NULL, 4), 0);
        for (int r = 0; r < 4; r++) {
            own[r] = with_views && texts[r] != NULL ? parse(texts[r]) : NULL;
            members[r] = (struct member){ .job = &job, .rank = r, .own = own[r] };
            assert_int_equal(pthread_create(&threads[r], NULL, take_part, &members[r]), 0);
        }
        for (int r = 0; r < 4; r++)
            assert_int_equal(pthread_join(threads[r], NULL), 0);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(members[r].status, HKT_OK);
            assert_true(hkt__topo_equal(members[r].merged, members[0].merged));
        }
        assert_int_equal(hkt__topo_count(members[0].merged, 0, HKT_TOPO_HOST), with_views ? 2 : 0);
        assert_int_equal(hkt__topo_count(members[0].merged, 0, HKT_TOPO_CORE), with_views ? 5 : 0);
        for (int r = 0; r < 4; r++) {
            hkt_topo_destroy(members[r].merged);
            hkt_topo_destroy(own[r]);
        }
        pthread_barrier_destroy(&job.barrier);
    }
}

static void merging_survives_every_failed_allocation(void **state)
{
    struct views views = { 0 };

    (void)state;
    put(&views, "hocket-topology 1\nnet 0\n  host 0 id=5\n    gpu 0 name=x\n");
    put(&views, "hocket-topology 1\nnet 0\n  host 0 id=6\n    gpu 0 name=x\n");
    for (int64_t k = 1;; k++) {
        struct hkt_topo *topo = NULL;

        hkt__mem_fail_at(k);
        const enum hkt_status rc = merge(&views, &topo);

        hkt__mem_fail_at(0);
        hkt_topo_destroy(topo);
        if (rc == HKT_OK)
            break;
        assert_int_equal(rc, HKT_ERR_NOMEM);
        assert_null(topo);
    }
    drop(&views);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blobs_come_back_and_are_small),
        cmocka_unit_test(ranks_of_a_host_add_what_only_they_see),
        cmocka_unit_test(hosts_come_in_the_order_of_their_lowest_rank),
        cmocka_unit_test(devices_are_known_by_name),
        cmocka_unit_test(a_wrong_view_is_named_with_its_rank),
        cmocka_unit_test(mutated_blobs_are_taken_or_refused),
        cmocka_unit_test(all_ranks_get_the_same_graph),
        cmocka_unit_test(merging_survives_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
