/* What could break: a pass that drops an order it should keep (races), keeps what it should drop (slow plans), fuses a
 * receive with a send of other data; a slice count that lets a chunk or the scratch overflow; slices that reuse scratch
 * too early. Orders are compared as transitive closures, sizes by brute force, slicing by the verifier. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/mem.h"
#include "sched/lower.h"
#include "sched/queues.h"
#include "sched/rounds.h"
#include "sched/verify.h"
#include "sched_samples.h"

enum { STEPS = 80 };

/* order[later][earlier]: what queues and dependencies say together. */
static void closure(const struct hkt__sched *sched, bool (*order)[STEPS])
{
    struct hkt__queues queues;

    assert_true(sched->nsteps <= STEPS);
    assert_int_equal(hkt__queues_init(&queues, sched), HKT_OK);
    memset(order, 0, STEPS * sizeof *order);
    for (int32_t i = 0; i < sched->nsteps; i++) {
        for (int32_t j = 0; j < i; j++)
            order[i][j] = queues.of_step[i] == queues.of_step[j];
        for (int32_t k = 0; k < sched->steps[i].dep_count; k++)
            order[i][sched->deps[sched->steps[i].dep_first + k]] = true;
        for (int32_t j = 0; j < i; j++)
            for (int32_t k = 0; order[i][j] && k < j; k++)
                order[i][k] |= order[j][k];
    }
    hkt__queues_fini(&queues);
}

static struct hkt__sched *nonsense(uint64_t seed, int nsteps)
{
    struct hkt__builder b;
    struct hkt__sched *sched = NULL;

    assert_int_equal(hkt__builder_init(&b, &(struct hkt__build_args){ HKT_ALL_REDUCE, "test", 4, 0, 0, false, true }),
                     HKT_OK);
    sample_nonsense(&b, seed, nsteps);
    assert_int_equal(hkt__builder_finish(&b, &sched), HKT_OK);
    return sched;
}

static void dropping_keeps_the_order_and_nothing_superfluous(void **state)
{
    static bool before[STEPS][STEPS], after[STEPS][STEPS], without[STEPS][STEPS];
    int32_t dropped = 0, kept = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct hkt__sched *sched = nonsense(seed, STEPS);
        const int32_t ndeps = sched->ndeps;

        closure(sched, before);
        assert_int_equal(hkt__lower_drop_implied(sched), HKT_OK);
        closure(sched, after);
        if (memcmp(before, after, sizeof before) != 0)
            fail_msg("seed %d: the order has changed", (int)seed);
        dropped += ndeps - sched->ndeps;
        kept += sched->ndeps;
        for (int32_t i = 0; i < sched->nsteps; i++) /* taking out any one dependency must change the order */
            for (int32_t k = 0; k < sched->steps[i].dep_count; k++) {
                int32_t *dep = &sched->deps[sched->steps[i].dep_first + k];
                const int32_t was = *dep;

                assert_true(k == 0 || dep[-1] < was);
                *dep = i; /* a dependency on itself says nothing */
                closure(sched, without);
                if (without[i][was])
                    fail_msg("seed %d: step %d keeps step %d without need", (int)seed, (int)i, (int)was);
                *dep = was;
            }
        hkt__sched_destroy(sched);
    }
    assert_true(dropped > 100 && kept > 100);
}

static void dropping_is_safe_when_a_schedule_is_too_large_for_vectors(void **state)
{
    enum { RANKS = 2500 };
    struct hkt__builder b;
    struct hkt__sched *sched = NULL;

    (void)state;
    assert_int_equal(hkt__builder_init(&b, &(struct hkt__build_args){ HKT_ALL_GATHER, "t", RANKS, 0, 0, false, false }),
                     HKT_OK);
    for (int k = 1; k < RANKS; k++)
        hkt__recv(&b, k, 0, hkt__out(&b, k));
    for (int k = 1; k < RANKS; k++)
        hkt__recv(&b, k, 0, hkt__out(&b, k)); /* after the first, which its queue says too */
    hkt__copy(&b, 0, hkt__out(&b, 1), hkt__in(&b, 0));
    hkt__copy(&b, 0, hkt__out(&b, 1), hkt__in(&b, 0)); /* after the one before, as its queue says */
    for (int k = 1; k < RANKS; k++)
        hkt__send(&b, k, 0, hkt__range(&b, HKT__OUT, 1, 1, 2)); /* after the copy and the receive of chunk 2 */
    assert_int_equal(hkt__builder_finish(&b, &sched), HKT_OK);
    assert_int_equal(sched->ndeps, (RANKS - 1) + 2 + 2 * (RANKS - 1));
    assert_int_equal(hkt__lower_drop_implied(sched), HKT_OK);
    assert_int_equal(sched->ndeps, 1 + 2 * (RANKS - 1));
    assert_int_equal(sched->deps[0], RANKS - 1); /* the copy after the second receive */
    for (int32_t k = 0; k < RANKS - 1; k++) {
        const struct hkt__step *send = &sched->steps[2 * RANKS + k];

        assert_int_equal(send->kind, HKT__SEND);
        assert_int_equal(send->dep_count, 2);
        assert_int_equal(sched->deps[send->dep_first], RANKS);
        assert_int_equal(sched->deps[send->dep_first + 1], 2 * RANKS - 1);
    }
    hkt__sched_destroy(sched);
}

static void a_receive_is_fused_with_the_send_that_forwards_it(void **state)
{
    struct hkt__sched *scheds[4];

    (void)state;
    for (int in_place = 0; in_place < 2; in_place++) {
        assert_int_equal(sample_all(sample_ring, "ring", 4, in_place != 0, scheds), HKT_OK);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(hkt__lower(scheds[r]), HKT_OK);
            assert_int_equal(scheds[r]->steps[0].fused, -1); /* the first send is of IN */
            for (int32_t i = 1; i < 11; i++)
                assert_int_equal(scheds[r]->steps[i].fused, i % 2 == 1 ? i + 1 : i - 1);
            assert_int_equal(scheds[r]->steps[11].fused, -1); /* the last receive stays here */
        }
        sample_destroy(scheds, 4);
    }
}

static void nothing_else_is_fused(void **state)
{
    struct hkt__builder b;
    struct hkt__sched *sched = NULL;
    struct hkt__arg far;

    (void)state;
    assert_int_equal(hkt__builder_init(&b, &(struct hkt__build_args){ HKT_ALL_GATHER, "test", 8, 0, 0, false, false }),
                     HKT_OK);
    hkt__recv(&b, 1, 0, hkt__out(&b, 1));                       /* 0 */
    hkt__copy(&b, 0, hkt__out(&b, 1), hkt__in(&b, 0));          /* 1: written in between */
    hkt__send(&b, 2, 0, hkt__out(&b, 1));                       /* 2 */
    hkt__recv(&b, 1, 0, hkt__out(&b, 2));                       /* 3 */
    hkt__send(&b, 3, 0, hkt__range(&b, HKT__OUT, 2, 1, 2));     /* 4: more than was received */
    hkt__recv(&b, 1, 0, hkt__range(&b, HKT__OUT, 4, 1, 2));     /* 5 */
    hkt__send(&b, 4, 0, hkt__out(&b, 4));                       /* 6: less */
    hkt__send(&b, 4, 0, hkt__range(&b, HKT__OUT, 5, -1, 2));    /* 7: in another order */
    hkt__recv(&b, 1, 0, hkt__out(&b, 6));                       /* 8 */
    hkt__send(&b, 2, 0, hkt__out(&b, 6));                       /* 9: the first one */
    hkt__send(&b, 3, 0, hkt__out(&b, 6));                       /* 10: not the second */
    hkt__wait(&b, 1, 0, hkt__out(&b, 7));                       /* 11 */
    hkt__send(&b, 3, 0, hkt__out(&b, 7));                       /* 12: no receive */
    hkt__recv(&b, 1, 1, hkt__scratch(&b, 0, hkt__in(&b, 0)));   /* 13 */
    hkt__signal(&b, 5, 1, hkt__scratch(&b, 0, hkt__in(&b, 0))); /* 14: the peer may write */
    hkt__send(&b, 5, 1, hkt__scratch(&b, 0, hkt__in(&b, 0)));   /* 15 */
    hkt__recv(&b, 1, 2, hkt__out(&b, 3));                       /* 16 */
    far = hkt__at(0, hkt__out(&b, 3));
    hkt__write(&b, 2, &far, 1, hkt__in(&b, 0)); /* 17: a write at this rank */
    hkt__send(&b, 5, 2, hkt__out(&b, 3));       /* 18 */
    assert_int_equal(hkt__builder_finish(&b, &sched), HKT_OK);
    assert_int_equal(hkt__lower_fuse(sched), HKT_OK);
    assert_int_equal(hkt__lower_fuse(sched), HKT_OK); /* again: the links are made anew */
    for (int32_t i = 0; i < sched->nsteps; i++)
        assert_int_equal(sched->steps[i].fused, i == 8 ? 9 : i == 9 ? 8 : -1);
    hkt__sched_destroy(sched);
}

static void a_send_that_must_wait_for_more_is_not_fused(void **state)
{
    struct hkt__builder b;
    struct hkt__sched *sched = NULL;

    (void)state;
    assert_int_equal(hkt__builder_init(&b, &(struct hkt__build_args){ HKT_ALL_GATHER, "test", 4, 0, 0, false, false }),
                     HKT_OK);
    hkt__recv(&b, 1, 0, hkt__out(&b, 1));               /* 0 */
    hkt__copy(&b, 0, hkt__out(&b, 2), hkt__out(&b, 1)); /* 1 */
    hkt__send(&b, 2, 0, hkt__out(&b, 2));               /* 2: after 1, so after 0 */
    hkt__send(&b, 2, 0, hkt__out(&b, 1));               /* 3: same queue */
    hkt__send(&b, 3, 0, hkt__out(&b, 1));               /* 4: free to run along with 0 */
    assert_int_equal(hkt__builder_finish(&b, &sched), HKT_OK);
    assert_int_equal(hkt__lower(sched), HKT_OK);
    assert_int_equal(sched->steps[3].fused, -1);
    assert_int_equal(sched->steps[4].fused, 0);
    assert_int_equal(sched->steps[0].fused, 4);
    hkt__sched_destroy(sched);
}

static size_t up(size_t x, size_t y)
{
    return (x + y - 1) / y;
}

/* Largest chunk in bytes, and whether it fits. */
static bool fits(const struct hkt__sched *sched, size_t elems, size_t elem_bytes, size_t nslices,
                 const size_t limits[2], int instances)
{
    const size_t chunk = up(up(elems, nslices), (size_t)sched->cuts) * elem_bytes;
    const size_t scratch = (size_t)sched->scratch_chunks * (size_t)instances * hkt__round_up(chunk, HKT__LINE);

    return (chunk <= limits[0] || chunk <= elem_bytes) && scratch <= limits[1];
}

static void slices_are_as_few_as_fit(void **state)
{
    uint64_t random = 77;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct hkt__sched sched = { .coll = HKT_ALL_REDUCE,
                                    .algo = "test",
                                    .nranks = 4,
                                    .cuts = 1 + (int32_t)sample_random(&random, 9),
                                    .scratch_chunks = (int32_t)sample_random(&random, 4) };
        const size_t elems = sample_random(&random, 100000), elem_bytes = (size_t)1 << sample_random(&random, 4);
        const size_t limits[2] = { sample_random(&random, 5000), sample_random(&random, 30000) };
        const int instances = 1 + (int)sample_random(&random, 4);
        int32_t nslices = -1;
        size_t pitch = 1;
        const enum hkt_status rc =
            hkt__lower_slices(&sched, elems, elem_bytes, limits[0], limits[1], instances, &nslices, &pitch);

        if (rc == HKT_ERR_UNSUPPORTED) {
            assert_int_equal(nslices, -1);
            assert_true((size_t)sched.scratch_chunks * (size_t)instances * HKT__LINE > limits[1]);
            continue;
        }
        assert_int_equal(rc, HKT_OK);
        assert_true(nslices >= 1);
        assert_true(fits(&sched, elems, elem_bytes, (size_t)nslices, limits, instances));
        assert_int_equal(pitch,
                         hkt__round_up(up(up(elems, (size_t)nslices), (size_t)sched.cuts) * elem_bytes, HKT__LINE));
        if (nslices > 1 && fits(&sched, elems, elem_bytes, (size_t)nslices - 1, limits, instances))
            fail_msg("case %d: %d slices, one less would do", i, (int)nslices);
    }
}

static void small_vectors_have_small_slices(void **state)
{
    (void)state;
    assert_int_equal(hkt__slice_bytes(65536, 131072, 0), 65536);
    assert_int_equal(hkt__slice_bytes(65536, 131072, 262144), 65536);
    assert_int_equal(hkt__slice_bytes(65536, 131072, 800000), 100000);
    assert_int_equal(hkt__slice_bytes(65536, 131072, 1 << 20), 131072);
    assert_int_equal(hkt__slice_bytes(65536, 131072, SIZE_MAX), 131072);
    assert_int_equal(hkt__slice_bytes(262144, 262144, 262144), 262144);
}

static void slices_of_extreme_sizes(void **state)
{
    struct hkt__sched sched = { .coll = HKT_ALL_REDUCE, .algo = "test", .nranks = 4, .cuts = 4, .scratch_chunks = 1 };
    int32_t nslices = 0;
    size_t pitch = 1;

    (void)state;
    assert_int_equal(hkt__lower_slices(&sched, 0, 8, 4096, 65536, 4, &nslices, &pitch), HKT_OK);
    assert_int_equal(nslices, 1);
    assert_int_equal(pitch, 0);
    assert_int_equal(hkt__lower_slices(&sched, 1, 8, 0, 256, 4, &nslices, &pitch), HKT_OK);
    assert_int_equal(nslices, 1);
    assert_int_equal(hkt__lower_slices(&sched, 1000, 8, SIZE_MAX, SIZE_MAX, 1, &nslices, &pitch), HKT_OK);
    assert_int_equal(nslices, 1);
    assert_int_equal(hkt__lower_slices(&sched, 1000, 8, 4096, 255, 4, &nslices, &pitch), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "raise the scratch size"));
    assert_int_equal(hkt__lower_slices(&sched, (size_t)1 << 50, 1, 1, 65536, 4, &nslices, &pitch), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "raise the slice size"));
}

static void unroll_all(struct hkt__sched **scheds, int nranks, int nslices, int instances)
{
    for (int r = 0; r < nranks; r++) {
        struct hkt__sched *sliced = NULL;

        assert_int_equal(hkt__lower_unroll(scheds[r], nslices, instances, &sliced), HKT_OK);
        hkt__sched_destroy(scheds[r]);
        scheds[r] = sliced;
    }
}

static void expect_right(struct hkt__sched *const *scheds, int nranks)
{
    struct hkt_verify_report report;

    if (hkt__verify(scheds, nranks, -1, &report) != HKT_OK)
        fail_msg("%s", report.failure);
}

static sample_fn *const samples[] = { sample_ring, sample_collect, sample_direct };
enum { SAMPLES = sizeof samples / sizeof *samples };

static void slicing_is_proved_by_the_verifier(void **state)
{
    (void)state;
    for (int i = 0; i < SAMPLES; i++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (int nslices = 1; nslices <= 5; nslices++)
                for (int instances = 1; instances <= 3; instances++) {
                    struct hkt__sched *scheds[5];

                    assert_int_equal(sample_all(samples[i], "test", 5, in_place != 0, scheds), HKT_OK);
                    expect_right(scheds, 5);
                    for (int r = 0; r < 5; r++)
                        assert_int_equal(hkt__lower(scheds[r]), HKT_OK);
                    expect_right(scheds, 5);
                    unroll_all(scheds, 5, nslices, instances);
                    expect_right(scheds, 5);
                    for (int r = 0; r < 5; r++)
                        assert_int_equal(hkt__lower(scheds[r]), HKT_OK);
                    expect_right(scheds, 5);
                    sample_destroy(scheds, 5);
                }
}

/* Take out, at all ranks, what makes steps wait for older slices; the verifier must see scratch reused too early. */
static int cut_reuse_waits(struct hkt__sched *sched, int nslices, int instances, int32_t slice_steps, int32_t syncs)
{
    int cut = 0;

    for (int slice = instances; slice < nslices; slice++) {
        const int32_t base = slice * slice_steps + (slice - instances + 1) * syncs;

        for (int32_t i = base; i < base + slice_steps; i++) {
            struct hkt__step *step = &sched->steps[i];

            while (step->dep_count > 0 && sched->deps[step->dep_first] < base) {
                step->dep_first++;
                step->dep_count--;
                cut++;
            }
        }
    }
    return cut;
}

static void slices_that_reuse_scratch_early_are_found_out(void **state)
{
    (void)state;
    for (int i = 1; i < SAMPLES; i++) {
        struct hkt__sched *scheds[5];
        struct hkt_verify_report report;
        int32_t slice_steps[5];
        int cut = 0;

        assert_int_equal(sample_all(samples[i], "test", 5, false, scheds), HKT_OK);
        for (int r = 0; r < 5; r++)
            slice_steps[r] = scheds[r]->nsteps;
        unroll_all(scheds, 5, 4, 1); /* two instances would make the direct one safe: its queues alternate */
        expect_right(scheds, 5);
        for (int r = 0; r < 5; r++)
            cut += cut_reuse_waits(scheds[r], 4, 1, slice_steps[r], samples[i] == sample_direct ? 2 * 4 : 0);
        assert_true(cut > 0);
        assert_int_equal(hkt__verify(scheds, 5, -1, &report), HKT_ERR_BUG);
        sample_destroy(scheds, 5);
    }
}

static void unrolled_slices_flow_through_the_queues(void **state)
{
    struct hkt__sched *scheds[4];
    struct hkt__rounds rounds;

    (void)state;
    assert_int_equal(sample_all(sample_ring, "ring", 4, false, scheds), HKT_OK);
    for (int r = 0; r < 4; r++)
        assert_int_equal(hkt__lower(scheds[r]), HKT_OK);
    unroll_all(scheds, 4, 3, 2);
    assert_int_equal(scheds[1]->cuts, 12);
    assert_int_equal(scheds[1]->nsteps, 36);
    assert_int_equal(scheds[1]->nlanes, 1);
    assert_int_equal(scheds[1]->steps[13].fused, 14);
    assert_int_equal(hkt__rounds_init(&rounds, scheds, 4), HKT_OK);
    assert_int_equal(rounds.count, 18);
    hkt__rounds_fini(&rounds);
    sample_destroy(scheds, 4);
}

static void what_cannot_be_unrolled_is_refused(void **state)
{
    struct hkt__sched *scheds[3], *out = NULL;

    (void)state;
    assert_int_equal(sample_all(sample_direct, "test", 3, false, scheds), HKT_OK);
    assert_int_equal(hkt__lower_unroll(scheds[0], 1 << 30, 1, &out), HKT_ERR_UNSUPPORTED);
    scheds[0]->nlanes = HKT__LANES_MAX;
    assert_int_equal(hkt__lower_unroll(scheds[0], 3, 1, &out), HKT_ERR_UNSUPPORTED);
    assert_null(out);
    assert_int_equal(hkt__lower_unroll(scheds[0], 3, 3, &out), HKT_OK); /* nothing is reused: no extra lane */
    hkt__sched_destroy(out);
    sample_destroy(scheds, 3);
}

static void every_failed_allocation_is_survived(void **state)
{
    struct hkt__sched *sched = nonsense(3, STEPS);
    const int32_t ndeps = sched->ndeps;
    int failures = 0;

    (void)state;
    for (int64_t k = 1;; k++) {
        struct hkt__sched *out = NULL;

        hkt__mem_fail_at(k);
        enum hkt_status rc = hkt__lower_unroll(sched, 3, 2, &out);

        if (rc == HKT_OK)
            rc = hkt__lower(out);
        hkt__mem_fail_at(0);
        hkt__sched_destroy(out);
        if (rc == HKT_OK)
            break;
        assert_int_equal(rc, HKT_ERR_NOMEM);
        failures++;
    }
    assert_true(failures > 10);
    assert_int_equal(sched->ndeps, ndeps);
    hkt__sched_destroy(sched);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropping_keeps_the_order_and_nothing_superfluous),
        cmocka_unit_test(dropping_is_safe_when_a_schedule_is_too_large_for_vectors),
        cmocka_unit_test(a_receive_is_fused_with_the_send_that_forwards_it),
        cmocka_unit_test(nothing_else_is_fused),
        cmocka_unit_test(a_send_that_must_wait_for_more_is_not_fused),
        cmocka_unit_test(slices_are_as_few_as_fit),
        cmocka_unit_test(small_vectors_have_small_slices),
        cmocka_unit_test(slices_of_extreme_sizes),
        cmocka_unit_test(slicing_is_proved_by_the_verifier),
        cmocka_unit_test(slices_that_reuse_scratch_early_are_found_out),
        cmocka_unit_test(unrolled_slices_flow_through_the_queues),
        cmocka_unit_test(what_cannot_be_unrolled_is_refused),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
