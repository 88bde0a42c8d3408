/* What could break: a dependency that is not derived (a race at run time), one that is derived without need (a slow or
 * deadlocking plan), in-place aliases that do not follow coll.h, a builder mistake that is not reported or leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/mem.h"
#include "sched/build.h"
#include "sched_samples.h"

static struct hkt__builder start(enum hkt_coll coll, int nranks, int rank, bool in_place)
{
    struct hkt__builder b;

    assert_int_equal(hkt__builder_init(&b, &(struct hkt__build_args){ coll, "test", nranks, rank, 0, in_place, true }),
                     HKT_OK);
    return b;
}

static struct hkt__sched *finish(struct hkt__builder *b)
{
    struct hkt__sched *sched = NULL;
    const enum hkt_status rc = hkt__builder_finish(b, &sched);

    if (rc != HKT_OK)
        print_error("%s\n", hkt_last_error());
    assert_int_equal(rc, HKT_OK);
    assert_non_null(sched);
    return sched;
}

static void expect_failure(struct hkt__builder *b, enum hkt_status status, const char *text)
{
    struct hkt__sched *sched = NULL;

    assert_int_equal(hkt__builder_finish(b, &sched), status);
    assert_null(sched);
    if (strstr(hkt_last_error(), text) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", hkt_last_error(), text);
}

/* deps as a string of step numbers, for instance "0 2". */
static void expect_deps(const struct hkt__sched *sched, int32_t step, const char *expected)
{
    char text[256] = "";
    int used = 0;

    assert_true(step < sched->nsteps);
    for (int32_t i = 0; i < sched->steps[step].dep_count; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, i > 0 ? " %d" : "%d",
                         (int)sched->deps[sched->steps[step].dep_first + i]);
    if (strcmp(text, expected) != 0)
        fail_msg("step %d depends on \"%s\", expected \"%s\"", (int)step, text, expected);
}

static void blocks_are_those_of_the_collective(void **state)
{
    static const struct {
        enum hkt_coll coll;
        int root_in, root_out, other_in, other_out;
    } rows[] = {
        { HKT_ALL_REDUCE, 1, 1, 1, 1 },   { HKT_REDUCE_SCATTER, 7, 1, 7, 1 },   { HKT_ALL_GATHER, 1, 7, 1, 7 },
        { HKT_BROADCAST, 1, 1, 0, 1 },    { HKT_REDUCE, 1, 1, 1, 0 },           { HKT_ALL_TO_ALL, 7, 7, 7, 7 },
        { HKT_GATHER, 1, 7, 1, 0 },       { HKT_SCATTER, 7, 1, 0, 1 },          { HKT_BARRIER, 0, 0, 0, 0 },
        { HKT_ALL_GATHER_V, 1, 7, 1, 7 }, { HKT_REDUCE_SCATTER_V, 7, 1, 7, 1 }, { HKT_ALL_TO_ALL_V, 7, 7, 7, 7 },
        { HKT_SEND_RECV, 1, 1, 1, 1 },
    };

    (void)state;
    assert_int_equal(sizeof rows / sizeof *rows, HKT_COLL_COUNT);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t at_root[2], elsewhere[2];

        hkt__coll_blocks(rows[i].coll, 7, 3, 3, at_root);
        hkt__coll_blocks(rows[i].coll, 7, 2, 3, elsewhere);
        assert_int_equal(at_root[HKT__IN], rows[i].root_in);
        assert_int_equal(at_root[HKT__OUT], rows[i].root_out);
        assert_int_equal(elsewhere[HKT__IN], rows[i].other_in);
        assert_int_equal(elsewhere[HKT__OUT], rows[i].other_out);
    }
}

static void in_place_cells_alias_as_the_public_header_says(void **state)
{
    static const struct {
        enum hkt_coll coll;
        int rank;
        int in_chunk, out_chunk; /* one memory; of 4 ranks with 2 cuts, root 2 */
    } rows[] = {
        { HKT_ALL_REDUCE, 1, 1, 1 },     { HKT_REDUCE, 2, 1, 1 },           { HKT_BROADCAST, 2, 0, 0 },
        { HKT_ALL_TO_ALL, 3, 5, 5 },     { HKT_ALL_GATHER, 3, 1, 7 },       { HKT_ALL_GATHER_V, 1, 0, 2 },
        { HKT_REDUCE_SCATTER, 3, 7, 1 }, { HKT_REDUCE_SCATTER_V, 1, 2, 0 }, { HKT_GATHER, 2, 1, 5 },
        { HKT_SCATTER, 2, 4, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            struct hkt__sched sched = { .coll = rows[i].coll,
                                        .nranks = 4,
                                        .rank = rows[i].rank,
                                        .root = 2,
                                        .in_place = in_place != 0,
                                        .cuts = 2,
                                        .scratch_chunks = 3 };
            int uses[64] = { 0 }, twice = 0, once = 0;

            hkt__coll_blocks(sched.coll, 4, sched.rank, 2, sched.blocks);
            assert_int_equal(hkt__cell(&sched, HKT__IN, rows[i].in_chunk)
                                 == hkt__cell(&sched, HKT__OUT, rows[i].out_chunk),
                             in_place);
            for (int buf = 0; buf < HKT__BUF_COUNT; buf++)
                for (int32_t c = 0; c < hkt__buf_chunks(&sched, (enum hkt__buf)buf); c++) {
                    assert_in_range(hkt__cell(&sched, (enum hkt__buf)buf, c), 0, hkt__cell_count(&sched) - 1);
                    uses[hkt__cell(&sched, (enum hkt__buf)buf, c)]++;
                }
            for (int32_t c = 0; c < hkt__cell_count(&sched); c++) {
                once += uses[c] == 1;
                twice += uses[c] == 2;
            }
            assert_int_equal(once + twice, hkt__cell_count(&sched)); /* no cell without a chunk, none with three */
            const int32_t in = sched.blocks[HKT__IN], out = sched.blocks[HKT__OUT];

            assert_int_equal(twice, in_place ? 2 * (in < out ? in : out) : 0);
        }
}

static void a_rank_that_is_not_the_root_has_no_alias_in_rooted_collectives(void **state)
{
    struct hkt__sched sched = {
        .coll = HKT_GATHER, .nranks = 4, .rank = 3, .root = 0, .in_place = true, .cuts = 1, .scratch_chunks = 2
    };

    (void)state;
    hkt__coll_blocks(sched.coll, 4, 3, 0, sched.blocks);
    assert_int_equal(hkt__cell(&sched, HKT__IN, 0), 0);
    assert_int_equal(hkt__cell_count(&sched), 3);
}

static void ranks_wrap_around_and_around_the_root(void **state)
{
    struct hkt__builder b;
    struct hkt__sched *sched;

    (void)state;
    assert_int_equal(hkt__builder_init(&b, &(struct hkt__build_args){ HKT_BROADCAST, "test", 5, 1, 3, false, false }),
                     HKT_OK);
    assert_int_equal(hkt__rank_at(&b, 1), 2);
    assert_int_equal(hkt__rank_at(&b, -2), 4);
    assert_int_equal(hkt__rank_at(&b, -12), 4);
    assert_int_equal(hkt__vrank(&b), 3);
    for (int v = 0; v < 5; v++)
        assert_int_equal(hkt__from_vrank(&b, v), (v + 3) % 5);
    sched = finish(&b);
    assert_int_equal(sched->nsteps, 0);
    assert_int_equal(sched->nlanes, 1);
    hkt__sched_destroy(sched);
}

static void operands_wrap_modulo_the_chunks(void **state)
{
    struct hkt__builder b = start(HKT_ALL_GATHER, 4, 1, false);

    (void)state;
    hkt__set_cuts(&b, 2);
    const struct hkt__operand x = hkt__out(&b, -1), y = hkt__range(&b, HKT__OUT, 9, -3, 4);
    const struct hkt__operand z = hkt__scratch(&b, 5, y), w = hkt__scratch(&b, 0, z);

    assert_int_equal(hkt__span_at(&x.at, 0), 7);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(hkt__span_at(&y.at, i), (9 - 3 * i + 8) % 8);
        assert_int_equal(hkt__span_at(&z.at, i), 5 + i);
        assert_int_equal(hkt__span_at(&z.like, i), hkt__span_at(&y.at, i));
        assert_int_equal(hkt__span_at(&w.at, i), i);
        assert_int_equal(hkt__span_at(&w.like, i), hkt__span_at(&y.at, i));
    }
    assert_int_equal(hkt__out_all(&b).count, 8);
    assert_int_equal(hkt__in_all(&b).count, 2);
    hkt__copy(&b, 0, z, y);
    struct hkt__sched *sched = finish(&b);

    assert_int_equal(sched->scratch_chunks, 9);
    hkt__sched_destroy(sched);
}

static void reads_and_writes_order_steps(void **state)
{
    struct hkt__builder b = start(HKT_ALL_GATHER, 4, 0, false);

    (void)state;
    hkt__recv(&b, 1, 0, hkt__out(&b, 1));                         /* 0 */
    hkt__recv(&b, 2, 0, hkt__out(&b, 2));                         /* 1: other cell */
    hkt__send(&b, 3, 0, hkt__out(&b, 1));                         /* 2: read after write */
    hkt__send(&b, 2, 0, hkt__out(&b, 1));                         /* 3: reads do not order each other */
    hkt__send(&b, 2, 1, hkt__range(&b, HKT__OUT, 1, 1, 2));       /* 4: each writer once */
    hkt__copy(&b, 0, hkt__out(&b, 1), hkt__in(&b, 0));            /* 5: write after write and reads */
    hkt__send(&b, 3, 0, hkt__out(&b, 1));                         /* 6: the last writer only */
    hkt__recv(&b, 1, 1, hkt__range(&b, HKT__OUT, 1, 1, 3));       /* 7 */
    hkt__recv_reduce(&b, 1, 1, hkt__out(&b, 3), hkt__out(&b, 3)); /* 8: its own read is no dependency */
    struct hkt__sched *sched = finish(&b);

    expect_deps(sched, 0, "");
    expect_deps(sched, 1, "");
    expect_deps(sched, 2, "0");
    expect_deps(sched, 3, "0");
    expect_deps(sched, 4, "0 1");
    expect_deps(sched, 5, "0 2 3 4");
    expect_deps(sched, 6, "5");
    expect_deps(sched, 7, "1 4 5 6");
    expect_deps(sched, 8, "7");
    assert_int_equal(sched->nlanes, 2);
    hkt__sched_destroy(sched);
}

static void in_place_orders_in_against_out(void **state)
{
    (void)state;
    for (int in_place = 0; in_place < 2; in_place++) {
        struct hkt__builder b = start(HKT_ALL_GATHER, 4, 2, in_place != 0);

        hkt__send(&b, 1, 0, hkt__in(&b, 0));
        hkt__recv(&b, 1, 0, hkt__out(&b, 2)); /* our own block: nonsense as an algorithm, but an access */
        struct hkt__sched *sched = finish(&b);

        expect_deps(sched, 1, in_place ? "0" : "");
        hkt__sched_destroy(sched);
    }
}

static void grants_order_direct_steps(void **state)
{
    struct hkt__builder b = start(HKT_ALL_REDUCE, 4, 0, false);

    (void)state;
    const struct hkt__operand none = sample_nothing(), slot = hkt__scratch(&b, 0, hkt__in(&b, 0));
    const struct hkt__operand other = hkt__scratch(&b, 1, hkt__in(&b, 0));
    const struct hkt__arg far[3] = { hkt__at(0, hkt__in(&b, 0)), hkt__at(1, slot), hkt__at(2, slot) };

    hkt__copy(&b, 0, slot, hkt__in(&b, 0));      /* 0 */
    hkt__signal(&b, 1, 0, slot);                 /* 1: what was done to slot is visible */
    hkt__wait(&b, 1, 0, none);                   /* 2 */
    hkt__wait(&b, 1, 1, none);                   /* 3 */
    hkt__wait(&b, 2, 0, none);                   /* 4 */
    hkt__reduce(&b, 0, hkt__out(&b, 0), far, 3); /* 5: after the grants of 1 (both lanes) and 2 */
    hkt__write(&b, 1, &far[1], 1, other);        /* 6: after those of 1 */
    hkt__signal(&b, 1, 0, none);                 /* 7: after all that touched 1 */
    hkt__signal(&b, 1, 1, none);                 /* 8: on another lane, so after 7 */
    hkt__signal(&b, 2, 0, none);                 /* 9: after 5 alone */
    hkt__wait(&b, 1, 0, slot);                   /* 10: takes slot back: after it was given */
    hkt__send(&b, 3, 0, slot);                   /* 11: reads what 1 may have written */
    hkt__signal(&b, 3, 0, none);                 /* 12: 3's memory was not touched */
    struct hkt__sched *sched = finish(&b);

    expect_deps(sched, 1, "0");
    expect_deps(sched, 2, "");
    expect_deps(sched, 5, "2 3 4");
    expect_deps(sched, 6, "2 3");
    expect_deps(sched, 7, "5 6");
    expect_deps(sched, 8, "7");
    expect_deps(sched, 9, "5");
    expect_deps(sched, 10, "0 1");
    expect_deps(sched, 11, "10");
    expect_deps(sched, 12, "");
    hkt__sched_destroy(sched);
}

static void signal_all_done_follows_everything_received(void **state)
{
    struct hkt__builder b = start(HKT_BARRIER, 8, 0, false);

    (void)state;
    hkt__signal_all_done(&b, 1, 0);        /* 0 */
    hkt__wait(&b, 7, 0, sample_nothing()); /* 1 */
    hkt__signal_all_done(&b, 2, 0);        /* 2 */
    hkt__wait(&b, 6, 0, sample_nothing()); /* 3 */
    hkt__wait(&b, 7, 0, sample_nothing()); /* 4 */
    hkt__signal_all_done(&b, 4, 0);        /* 5: the last of each queue */
    struct hkt__sched *sched = finish(&b);

    expect_deps(sched, 0, "");
    expect_deps(sched, 2, "1");
    expect_deps(sched, 5, "3 4");
    hkt__sched_destroy(sched);
}

static void moves_of_nothing_vanish(void **state)
{
    struct hkt__builder b = start(HKT_ALL_GATHER, 4, 1, true);

    (void)state;
    const struct hkt__operand none = hkt__range(&b, HKT__OUT, 0, 1, 0);
    const struct hkt__arg none_arg = hkt__at(1, none), two[2] = { none_arg, none_arg };
    const struct hkt__arg self = hkt__at(1, hkt__out(&b, 1)), in = hkt__at(1, hkt__in(&b, 0));

    hkt__send(&b, 2, 0, none);
    hkt__recv(&b, 2, 0, none);
    hkt__recv_reduce(&b, 2, 0, none, none);
    hkt__copy(&b, 0, none, none);
    hkt__reduce(&b, 0, none, two, 2);
    hkt__write(&b, 0, &none_arg, 1, none);
    hkt__write(&b, 0, NULL, 0, hkt__in(&b, 0));
    hkt__copy(&b, 0, hkt__out(&b, 1), hkt__in(&b, 0)); /* in place: itself */
    hkt__reduce(&b, 0, hkt__out(&b, 1), &in, 1);
    hkt__write(&b, 0, &self, 1, hkt__in(&b, 0));
    hkt__copy(&b, 0, hkt__out(&b, 2), hkt__in(&b, 0)); /* 0: stays */
    hkt__reduce(&b, 0, hkt__out(&b, 3), &in, 1);       /* 1: a reduction of one is a copy */
    struct hkt__sched *sched = finish(&b);

    assert_int_equal(sched->nsteps, 2);
    assert_int_equal(sched->steps[0].kind, HKT__COPY);
    assert_int_equal(sched->steps[1].kind, HKT__COPY);
    hkt__sched_destroy(sched);
}

/** Make mistake i, 8 and up; returns what the error must say. */
static const char *make_operand_mistake(struct hkt__builder *b, int i)
{
    const struct hkt__arg far = hkt__at(1, hkt__out(b, 0));

    switch (i) {
    case 8:
        hkt__reduce(b, 0, hkt__out(b, 1), NULL, 0);
        return "no arguments";
    case 9:
        hkt__recv(b, 1, 0, hkt__range(b, HKT__OUT, 0, 2, 4));
        return "named twice";
    case 10: /* two cells swapped in one copy */
        hkt__copy(b, 0, hkt__range(b, HKT__OUT, 0, 1, 2), hkt__range(b, HKT__OUT, 1, -1, 2));
        return "named twice";
    case 11:
        hkt__set_cuts(b, 2);
        return "set_cuts after";
    case 12:
        hkt__range(b, HKT__SCRATCH, 0, 1, 1);
        return "hkt__scratch";
    case 13:
        hkt__scratch(b, -1, hkt__in(b, 0));
        return "slot out of range";
    case 14:
        hkt__range(b, HKT__IN, 0, 1, -1);
        return "negative";
    default:
        b->user_direct = false;
        hkt__reduce(b, 0, hkt__out(b, 1), &far, 1);
        return "user_direct";
    }
}

/** The first eight, about peers, lanes and counts. */
static const char *make_mistake(struct hkt__builder *b, int i)
{
    const struct hkt__arg beyond = hkt__at(7, hkt__out(b, 0));
    const struct hkt__arg pair[2] = { hkt__at(2, hkt__out(b, 0)), hkt__at(2, hkt__range(b, HKT__OUT, 0, 1, 2)) };

    switch (i) {
    case 0:
        hkt__send(b, 2, 0, hkt__in(b, 0));
        return "rank itself";
    case 1:
        hkt__send(b, 4, 0, hkt__in(b, 0));
        return "peer is out of range";
    case 2:
        hkt__recv(b, -1, 0, hkt__out(b, 0));
        return "peer is out of range";
    case 3:
        hkt__recv(b, 1, HKT__LANES_MAX, hkt__out(b, 0));
        return "lane is out of range";
    case 4:
        hkt__copy(b, -1, hkt__out(b, 0), hkt__in(b, 0));
        return "lane is out of range";
    case 5:
        hkt__copy(b, 0, hkt__out_all(b), hkt__in(b, 0));
        return "different numbers of pieces";
    case 6:
        hkt__reduce(b, 0, hkt__out(b, 1), pair, 2);
        return "different numbers of pieces";
    case 7:
        hkt__reduce(b, 0, hkt__out(b, 1), &beyond, 1);
        return "a rank it may not be at";
    default:
        return make_operand_mistake(b, i);
    }
}

static void mistakes_are_reported_with_algorithm_rank_and_step(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        struct hkt__builder b = start(HKT_ALL_GATHER, 4, 2, true);

        hkt__send(&b, 3, 0, hkt__in(&b, 0)); /* step 0 is right */
        const char *text = make_mistake(&b, i);

        hkt__builder_fail(&b, HKT_ERR_UNSUPPORTED, "a later error");
        hkt__send(&b, 3, 0, hkt__in(&b, 0)); /* ignored */
        expect_failure(&b, HKT_ERR_BUG, text);
        assert_non_null(strstr(hkt_last_error(), "all_gather test, rank 2 of 4, step 1"));
    }
}

static void buffers_without_blocks_have_no_operands(void **state)
{
    (void)state;
    struct hkt__builder b = start(HKT_BROADCAST, 4, 2, false);

    hkt__send(&b, 1, 0, hkt__in(&b, 0));
    expect_failure(&b, HKT_ERR_BUG, "IN has no blocks at this rank");
    b = start(HKT_GATHER, 4, 2, false);
    hkt__recv(&b, 1, 0, hkt__out_all(&b));
    expect_failure(&b, HKT_ERR_BUG, "OUT has no blocks at this rank");
    /* Nor does a peer: the root's OUT can be reached, another rank's cannot. */
    b = start(HKT_REDUCE, 4, 0, false);
    const struct hkt__arg far = hkt__at(1, hkt__out(&b, 0));

    hkt__write(&b, 0, &far, 1, hkt__in(&b, 0));
    expect_failure(&b, HKT_ERR_BUG, "chunks its rank does not have");
}

static void pieces_must_agree_in_size_for_all_counts(void **state)
{
    struct hkt__sched *sched;

    (void)state;
    struct hkt__builder b = start(HKT_ALL_TO_ALL, 4, 1, false);

    hkt__set_cuts(&b, 2);
    hkt__copy(&b, 0, hkt__out(&b, 2), hkt__in(&b, 4)); /* first cut to first cut */
    sched = finish(&b);
    hkt__sched_destroy(sched);
    b = start(HKT_ALL_TO_ALL, 4, 1, false);
    hkt__set_cuts(&b, 2);
    hkt__copy(&b, 0, hkt__out(&b, 2), hkt__in(&b, 5)); /* a second cut may be one element shorter */
    expect_failure(&b, HKT_ERR_BUG, "differ in size");
    b = start(HKT_ALL_GATHER_V, 4, 1, false);
    hkt__copy(&b, 0, hkt__out(&b, 1), hkt__in(&b, 0)); /* IN is block 1 */
    sched = finish(&b);
    hkt__sched_destroy(sched);
    b = start(HKT_ALL_GATHER_V, 4, 1, false);
    hkt__copy(&b, 0, hkt__scratch(&b, 0, hkt__out(&b, 2)), hkt__in(&b, 0));
    expect_failure(&b, HKT_ERR_BUG, "differ in size");
    b = start(HKT_REDUCE_SCATTER_V, 4, 1, false);
    hkt__recv_reduce(&b, 2, 0, hkt__out(&b, 0), hkt__in(&b, 1));
    hkt__copy(&b, 0, hkt__out(&b, 0), hkt__in(&b, 0));
    expect_failure(&b, HKT_ERR_BUG, "step 1: copy: operands whose pieces differ in size");
    /* What rank 1 sends to 2 is as long as what 2 receives from 1, and as nothing else. */
    b = start(HKT_ALL_TO_ALL_V, 4, 1, false);
    const struct hkt__arg right = hkt__at(2, hkt__out(&b, 1)), wrong = hkt__at(2, hkt__out(&b, 0));

    hkt__write(&b, 0, &right, 1, hkt__in(&b, 2));
    hkt__copy(&b, 0, hkt__out(&b, 1), hkt__in(&b, 1));
    hkt__write(&b, 0, &wrong, 1, hkt__in(&b, 2));
    expect_failure(&b, HKT_ERR_BUG, "step 2: write: operands whose pieces differ in size");
}

static void scratch_is_what_is_used_or_what_is_set(void **state)
{
    struct hkt__sched *sched;

    (void)state;
    struct hkt__builder b = start(HKT_ALL_REDUCE, 4, 1, false);
    const struct hkt__arg far = hkt__at(3, hkt__scratch(&b, 6, hkt__in(&b, 0)));

    hkt__recv(&b, 0, 0, hkt__scratch(&b, 2, hkt__in(&b, 0)));
    hkt__write(&b, 0, &far, 1, hkt__in(&b, 0)); /* what a peer needs, this rank reserves too */
    sched = finish(&b);
    assert_int_equal(sched->scratch_chunks, 7);
    hkt__sched_destroy(sched);
    b = start(HKT_ALL_REDUCE, 4, 1, false);
    hkt__set_scratch(&b, 5);
    sched = finish(&b);
    assert_int_equal(sched->scratch_chunks, 5);
    hkt__sched_destroy(sched);
    b = start(HKT_ALL_REDUCE, 4, 1, false);
    hkt__set_scratch(&b, 2);
    hkt__recv(&b, 0, 0, hkt__scratch(&b, 2, hkt__in(&b, 0)));
    expect_failure(&b, HKT_ERR_BUG, "set_scratch announced");
}

static void what_cannot_be_built_is_refused(void **state)
{
    static const struct hkt__build_args bad[] = {
        { HKT_ALL_REDUCE, "test", 0, 0, 0, false, false },
        { HKT_ALL_REDUCE, "test", 4, 4, 0, false, false },
        { HKT_BROADCAST, "test", 4, 0, -1, false, false },
        { HKT_BROADCAST, "test", 4, 0, 4, false, false },
        { HKT_ALL_REDUCE, "test", HKT_RANKS_MAX + 1, 0, 0, false, false },
        { HKT_ALL_TO_ALL_V, "test", 4, 0, 0, true, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct hkt__builder b;
        struct hkt__sched *sched = NULL;

        assert_int_equal(hkt__builder_init(&b, &bad[i]), HKT_ERR_INVALID);
        hkt__set_cuts(&b, 2); /* everything is a no-op on a builder that did not start */
        hkt__send(&b, 1, 0, hkt__in(&b, 0));
        hkt__copy(&b, 0, hkt__out_all(&b), hkt__in_all(&b));
        assert_int_equal(hkt__builder_finish(&b, &sched), HKT_ERR_INVALID);
        assert_null(sched);
    }
    struct hkt__builder b = start(HKT_ALL_REDUCE, 3, 0, false);

    hkt__builder_fail(&b, HKT_ERR_UNSUPPORTED, "needs a power-of-two number of ranks");
    expect_failure(&b, HKT_ERR_UNSUPPORTED, "all_reduce test, rank 0 of 3, step 0: needs a power-of-two");
}

static void cells_may_be_shown_to_many_peers_at_once(void **state)
{
    struct hkt__builder b = start(HKT_ALL_REDUCE, 8, 0, false);
    const struct hkt__operand in = hkt__in(&b, 0);

    (void)state;
    hkt__recv(&b, 1, 0, in);   /* 0 */
    hkt__send(&b, 2, 0, in);   /* 1 */
    hkt__signal(&b, 3, 0, in); /* 2 */
    hkt__signal(&b, 4, 0, in); /* 3: not after 2 */
    hkt__send(&b, 2, 0, in);   /* 4: a read, not after 2 and 3 */
    hkt__wait(&b, 3, 0, in);   /* 5: after all of them */
    for (int i = 0; i < 5; i++)
        hkt__send(&b, 2, 0, in); /* 6 .. 10 */
    hkt__signal(&b, 5, 0, in);   /* 11: stands for its many readers from here on */
    hkt__signal(&b, 6, 0, in);   /* 12 */
    hkt__recv(&b, 1, 0, in);     /* 13 */
    struct hkt__sched *sched = finish(&b);

    expect_deps(sched, 2, "0 1");
    expect_deps(sched, 3, "0 1");
    expect_deps(sched, 4, "0");
    expect_deps(sched, 5, "0 1 2 3 4");
    expect_deps(sched, 11, "5 6 7 8 9 10");
    expect_deps(sched, 12, "5 11");
    expect_deps(sched, 13, "5 11 12");
    hkt__sched_destroy(sched);
}

/* Must step i, later, be kept from overtaking step j? Cells as bit masks; the cells of a SIGNAL count as written to
 * what is before it and as read to what is after it, and two SIGNALs may pass each other. */
static bool do_conflict(const struct hkt__sched *sched, const uint64_t *reads, const uint64_t *writes, int32_t i,
                        int32_t j)
{
    const bool i_signals = sched->steps[i].kind == HKT__SIGNAL, j_signals = sched->steps[j].kind == HKT__SIGNAL;
    const uint64_t j_writes = j_signals ? 0 : writes[j], j_reads = j_signals ? writes[j] : reads[j];

    if (i_signals && j_signals)
        return false;
    return (writes[i] & (j_reads | j_writes)) != 0 || (reads[i] & j_writes) != 0;
}

/* Local cells that a step reads and writes, as bit masks. */
static void accesses(const struct hkt__sched *sched, const struct hkt__step *step, uint64_t *out_read,
                     uint64_t *out_write)
{
    *out_read = *out_write = 0;
    for (int32_t k = 0; k < step->arg_count; k++) {
        const struct hkt__arg *arg = &sched->args[step->arg_first + k];

        for (int32_t i = 0; i < arg->x.count && arg->rank == sched->rank; i++)
            *out_read |= (uint64_t)1 << hkt__cell(sched, arg->x.buf, hkt__span_at(&arg->x.at, i));
    }
    for (int32_t i = 0; i < step->dst.count; i++)
        *out_write |= (uint64_t)1 << hkt__cell(sched, step->dst.buf, hkt__span_at(&step->dst.at, i));
}

static void dependencies_cover_all_conflicts_and_nothing_else(void **state)
{
    enum { STEPS = 60 };

    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        static bool before[STEPS][STEPS]; /* [later][earlier]: a path of dependencies */
        uint64_t reads[STEPS], writes[STEPS];
        struct hkt__builder b = start(HKT_ALL_REDUCE, 4, 0, seed % 2 == 0);

        sample_nonsense(&b, seed, STEPS);
        struct hkt__sched *sched = finish(&b);

        memset(before, 0, sizeof before);
        for (int32_t i = 0; i < sched->nsteps; i++) {
            const struct hkt__step *step = &sched->steps[i];

            accesses(sched, step, &reads[i], &writes[i]);
            for (int32_t k = 0; k < step->dep_count; k++) {
                const int32_t dep = sched->deps[step->dep_first + k];
                const bool is_direct = sched->steps[dep].kind == HKT__WAIT || step->kind == HKT__SIGNAL;

                assert_true(dep < i);
                if (!is_direct && !do_conflict(sched, reads, writes, i, dep))
                    fail_msg("seed %d: step %d needs no step %d", (int)seed, (int)i, (int)dep);
                before[i][dep] = true;
                for (int32_t j = 0; j < dep; j++)
                    before[i][j] |= before[dep][j];
            }
            for (int32_t j = 0; j < i; j++)
                if (do_conflict(sched, reads, writes, i, j) && !before[i][j])
                    fail_msg("seed %d: step %d may overtake step %d", (int)seed, (int)i, (int)j);
        }
        hkt__sched_destroy(sched);
    }
}

static void a_long_schedule_needs_memory_in_proportion(void **state)
{
    enum { RANKS = 4096 };
    struct hkt__builder b = start(HKT_ALL_GATHER, RANKS, 17, false);

    (void)state;
    hkt__copy(&b, 0, hkt__out(&b, 17), hkt__in(&b, 0));
    for (int k = 1; k < RANKS; k++) { /* direct: one cell read by all sends */
        hkt__send(&b, hkt__rank_at(&b, k), 0, hkt__in(&b, 0));
        hkt__recv(&b, hkt__rank_at(&b, -k), 0, hkt__out(&b, 17 - k));
    }
    hkt__copy(&b, 0, hkt__in(&b, 0), hkt__out(&b, 16)); /* a write after RANKS readers */
    struct hkt__sched *sched = finish(&b);

    assert_int_equal(sched->nsteps, 2 * RANKS);
    assert_int_equal(sched->steps[sched->nsteps - 1].dep_count, RANKS + 1);
    assert_int_equal(sched->ndeps, RANKS + 1);
    hkt__sched_destroy(sched);
}

static enum hkt_status build_each(void)
{
    static sample_fn *const samples[] = { sample_ring, sample_collect, sample_direct };
    enum hkt_status rc = HKT_OK;

    for (size_t i = 0; i < 3 && rc == HKT_OK; i++) {
        struct hkt__sched *scheds[4];

        rc = sample_all(samples[i], "test", 4, false, scheds);
        sample_destroy(scheds, 4);
    }
    if (rc == HKT_OK) {
        struct hkt__builder b;
        struct hkt__sched *sched = NULL;

        rc = hkt__builder_init(&b, &(struct hkt__build_args){ HKT_ALL_REDUCE, "test", 4, 0, 0, false, true });
        sample_nonsense(&b, 7, 50);
        if (rc == HKT_OK)
            rc = hkt__builder_finish(&b, &sched);
        hkt__sched_destroy(sched);
    }
    return rc;
}

static void every_failed_allocation_is_survived(void **state)
{
    int64_t failures = 0;

    (void)state;
    for (int64_t k = 1;; k++) {
        hkt__mem_fail_at(k);
        const enum hkt_status rc = build_each();

        hkt__mem_fail_at(0);
        if (rc == HKT_OK)
            break;
        assert_int_equal(rc, HKT_ERR_NOMEM);
        assert_non_null(strstr(hkt_last_error(), "no memory"));
        failures++;
    }
    assert_true(failures > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_those_of_the_collective),
        cmocka_unit_test(in_place_cells_alias_as_the_public_header_says),
        cmocka_unit_test(a_rank_that_is_not_the_root_has_no_alias_in_rooted_collectives),
        cmocka_unit_test(ranks_wrap_around_and_around_the_root),
        cmocka_unit_test(operands_wrap_modulo_the_chunks),
        cmocka_unit_test(reads_and_writes_order_steps),
        cmocka_unit_test(in_place_orders_in_against_out),
        cmocka_unit_test(grants_order_direct_steps),
        cmocka_unit_test(signal_all_done_follows_everything_received),
        cmocka_unit_test(moves_of_nothing_vanish),
        cmocka_unit_test(mistakes_are_reported_with_algorithm_rank_and_step),
        cmocka_unit_test(buffers_without_blocks_have_no_operands),
        cmocka_unit_test(pieces_must_agree_in_size_for_all_counts),
        cmocka_unit_test(scratch_is_what_is_used_or_what_is_set),
        cmocka_unit_test(what_cannot_be_built_is_refused),
        cmocka_unit_test(cells_may_be_shown_to_many_peers_at_once),
        cmocka_unit_test(dependencies_cover_all_conflicts_and_nothing_else),
        cmocka_unit_test(a_long_schedule_needs_memory_in_proportion),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
