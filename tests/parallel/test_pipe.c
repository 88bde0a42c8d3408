/* What could break: a schedule is slower than its closed form, holds more activations than promised, or deadlocks,
 * above all where micro-batches do not divide by stages or are fewer; the checker passes a schedule that is wrong;
 * the drawing shows something else than the simulation. Numbers are from the papers' closed forms (see docs of each
 * item). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"

static struct hkt_pipe *build(enum hkt_pipe_kind kind, int stages, int micros, int chunks)
{
    const struct hkt_pipe_opts opts = { .kind = kind, .stages = stages, .micros = micros, .chunks = chunks };
    struct hkt_pipe *pipe = NULL;

    if (hkt_pipe_create(&opts, &pipe) != HKT_OK)
        fail_msg("%s, %d stages, %d micro-batches, %d chunks: %s", hkt_pipe_kind_name(kind), stages, micros, chunks,
                 hkt_parallel_last_error());
    return pipe;
}

static struct hkt_pipe_sim *simulate(const struct hkt_pipe *pipe, struct hkt_pipe_times times, int blocking)
{
    struct hkt_pipe_sim *sim = NULL;

    if (hkt_pipe_simulate(pipe, &(struct hkt_pipe_sim_opts){ times, blocking, NULL }, &sim) != HKT_OK)
        fail_msg("%s", hkt_parallel_last_error());
    return sim;
}

static int64_t makespan(enum hkt_pipe_kind kind, int stages, int micros, int chunks, struct hkt_pipe_times times)
{
    struct hkt_pipe *pipe = build(kind, stages, micros, chunks);
    struct hkt_pipe_sim *sim = simulate(pipe, times, 0);
    const int64_t total = sim->makespan;

    hkt_pipe_sim_destroy(sim);
    hkt_pipe_destroy(pipe);
    return total;
}

static const struct hkt_pipe_times some_times[] = { { 1, 1, 1, 0 }, { 1, 1, 0, 0 }, { 2, 2, 1, 0 },
                                                    { 1, 2, 0, 0 }, { 3, 4, 2, 0 }, { 5, 5, 5, 0 } };

/* Simulated time is compute plus the closed form of the bubble, wherever there is one. */
static void simulated_bubbles_are_the_closed_forms(void **state)
{
    int compared = 0;

    (void)state;
    for (int kind = 0; kind < HKT_PIPE_KIND_COUNT; kind++)
        for (int stages = 1; stages <= 8; stages++)
            for (int micros = 1; micros <= 17; micros++)
                for (size_t t = 0; t < sizeof some_times / sizeof some_times[0]; t++) {
                    const struct hkt_pipe_times *times = &some_times[t];
                    const int chunks = kind == HKT_PIPE_INTERLEAVED ? 2 + micros % 3 : kind == HKT_PIPE_FORWARD ? 1 + micros % 2 : 1;
                    const struct hkt_pipe_opts opts = { (enum hkt_pipe_kind)kind, stages, micros, chunks, *times };
                    const int64_t bubble = hkt_pipe_bubble(&opts);
                    const int64_t each = kind == HKT_PIPE_FORWARD ? times->f : times->f + times->b + times->w;
                    const int64_t total = makespan(opts.kind, stages, micros, chunks, *times);

                    assert_true(total >= micros * chunks * each);
                    if (bubble < 0)
                        continue;
                    compared++;
                    if (total != micros * chunks * each + bubble)
                        fail_msg("%s, %d stages, %d micro-batches, %d chunks, times %d %d %d: %d, not %d + %d",
                                 hkt_pipe_kind_name(opts.kind), stages, micros, chunks, (int)times->f, (int)times->b,
                                 (int)times->w, (int)total, (int)(micros * chunks * each), (int)bubble);
                }
    assert_in_range(compared, 3000, 10000);
}

/* bubble / total and bubble / ideal as fractions. */
static void check_fractions(enum hkt_pipe_kind kind, const int *pmv, struct hkt_pipe_times times, const int *fractions)
{
    const int64_t total = makespan(kind, pmv[0], pmv[1], pmv[2], times);
    const int64_t ideal = (int64_t)pmv[1] * pmv[2] * (kind == HKT_PIPE_FORWARD ? times.f : times.f + times.b + times.w);
    const int64_t bubble = total - ideal;

    assert_int_equal(bubble * fractions[1], total * fractions[0]);
    assert_int_equal(bubble * fractions[3], ideal * fractions[2]);
}

static void published_fractions(void **state)
{
    static const struct {
        int pmv[3], fractions[4];
    } one[] = { { { 4, 1, 1 }, { 3, 4, 3, 1 } },
                { { 4, 16, 1 }, { 3, 19, 3, 16 } },
                { { 4, 8, 1 }, { 3, 11, 3, 8 } },
                { { 8, 8, 1 }, { 7, 15, 7, 8 } },
                { { 8, 32, 1 }, { 7, 39, 7, 32 } } },
      many[] = { { { 4, 8, 2 }, { 3, 19, 3, 16 } }, { { 8, 32, 4 }, { 7, 135, 7, 128 } } };
    static const struct hkt_pipe_times equal = { 1, 1, 0, 0 }, twice = { 1, 1, 1, 0 };

    (void)state;
    for (size_t i = 0; i < 5; i++)
        for (int kind = HKT_PIPE_FORWARD; kind <= HKT_PIPE_1F1B; kind++) {
            check_fractions((enum hkt_pipe_kind)kind, one[i].pmv, equal, one[i].fractions);
            check_fractions((enum hkt_pipe_kind)kind, one[i].pmv, twice, one[i].fractions);
        }
    for (size_t i = 0; i < 2; i++) {
        check_fractions(HKT_PIPE_INTERLEAVED, many[i].pmv, equal, many[i].fractions);
        check_fractions(HKT_PIPE_INTERLEAVED, many[i].pmv, twice, many[i].fractions);
    }
    /* Zero bubble: 4 stages in unit times have a bubble of 3 where 1F1B has 9; with (2, 2, 1) it is 9. */
    for (int micros = 4; micros < 12; micros++) {
        assert_int_equal(makespan(HKT_PIPE_ZB_H1, 4, micros, 1, twice), 3 * micros + 3);
        assert_int_equal(makespan(HKT_PIPE_1F1B, 4, micros, 1, twice), 3 * micros + 9);
        assert_int_equal(makespan(HKT_PIPE_ZB_H1, 4, micros, 1, (struct hkt_pipe_times){ 2, 2, 1, 0 }), 5 * micros + 9);
    }
    check_fractions(HKT_PIPE_ZB_H1, (int[]){ 4, 8, 1 }, twice, (int[]){ 1, 9, 1, 8 }); /* exact, not a third of 3/11 */
    /* 8 stages, F 1, B 2 of which W 1: 21 and 7. */
    assert_int_equal(makespan(HKT_PIPE_1F1B, 8, 20, 1, twice), 60 + 21);
    assert_int_equal(makespan(HKT_PIPE_ZB_H1, 8, 20, 1, twice), 60 + 7);
}

static void activations_held(void **state)
{
    (void)state;
    for (int stages = 1; stages <= 8; stages++)
        for (int micros = 1; micros <= 20; micros++) {
            struct hkt_pipe *gpipe = build(HKT_PIPE_GPIPE, stages, micros, 1);
            struct hkt_pipe *one = build(HKT_PIPE_1F1B, stages, micros, 1),
                            *zb = build(HKT_PIPE_ZB_H1, stages, micros, 1);

            for (int i = 0; i < stages; i++) {
                assert_int_equal(hkt_pipe_peak(gpipe, i), micros);
                assert_int_equal(hkt_pipe_peak(one, i), micros < stages - i ? micros : stages - i);
                assert_int_equal(hkt_pipe_peak(zb, i), micros < stages ? micros : stages);
            }
            hkt_pipe_destroy(gpipe);
            hkt_pipe_destroy(one);
            hkt_pipe_destroy(zb);
        }
    struct hkt_pipe *pipe = build(HKT_PIPE_INTERLEAVED, 4, 8, 2);

    assert_int_equal(hkt_pipe_peak(pipe, 0), 11); /* stages * chunks * (1 + (stages - 1) / (stages * chunks)) */
    hkt_pipe_destroy(pipe);
    pipe = build(HKT_PIPE_FORWARD, 4, 8, 1);
    assert_int_equal(hkt_pipe_peak(pipe, 0), 1);
    hkt_pipe_destroy(pipe);
}

/* Building checks each schedule, deadlock included; standing still in batches may cost time but ends; and any number
 * of micro-batches is allowed. Slow messages must not deadlock either. */
static void any_number_of_micro_batches(void **state)
{
    (void)state;
    for (int stages = 1; stages <= 7; stages++)
        for (int micros = 1; micros <= 15; micros++)
            for (int kind = 0; kind < HKT_PIPE_KIND_COUNT; kind++)
                for (int chunks = 2; chunks <= (kind == HKT_PIPE_INTERLEAVED || kind == HKT_PIPE_FORWARD ? 4 : 2);
                     chunks++) {
                    const int is_cut = kind == HKT_PIPE_INTERLEAVED || kind == HKT_PIPE_FORWARD;
                    struct hkt_pipe *pipe = build((enum hkt_pipe_kind)kind, stages, micros, is_cut ? chunks : 1);
                    struct hkt_pipe_sim *free_sim = simulate(pipe, (struct hkt_pipe_times){ 2, 3, 2, 1 }, 0);
                    struct hkt_pipe_sim *sim = simulate(pipe, (struct hkt_pipe_times){ 2, 3, 2, 1 }, 1);

                    assert_true(sim->makespan >= free_sim->makespan);
                    hkt_pipe_sim_destroy(free_sim);
                    hkt_pipe_sim_destroy(sim);
                    hkt_pipe_destroy(pipe);
                }
}

/* With messages that take no time and unit times, batches cost nothing where every stage turns at the same moments. */
static void batches_cost_nothing_in_step(void **state)
{
    static const struct hkt_pipe_times equal = { 1, 1, 0, 0 };

    (void)state;
    for (int stages = 1; stages <= 8; stages++)
        for (int micros = 1; micros <= 12; micros++) {
            const struct hkt_pipe_opts opts = { HKT_PIPE_1F1B, stages, micros, 1, equal };
            struct hkt_pipe *pipe = NULL;

            assert_int_equal(hkt_pipe_create(&opts, &pipe), HKT_OK);
            struct hkt_pipe_sim *sim = simulate(pipe, equal, 1);

            assert_int_equal(sim->makespan, 2 * (micros + stages - 1));
            hkt_pipe_sim_destroy(sim);
            hkt_pipe_destroy(pipe);
        }
}

/* More micro-batches: a smaller share of bubble; 1F1B holds no more activations, GPipe does. */
static void more_micro_batches(void **state)
{
    double before = 1;

    (void)state;
    for (int micros = 4; micros <= 64; micros *= 2) {
        const double total = (double)makespan(HKT_PIPE_1F1B, 4, micros, 1, (struct hkt_pipe_times)HKT_PIPE_TIMES_UNIT);
        struct hkt_pipe *one = build(HKT_PIPE_1F1B, 4, micros, 1), *gpipe = build(HKT_PIPE_GPIPE, 4, micros, 1);

        assert_true(1 - 3 * micros / total < before);
        before = 1 - 3 * micros / total;
        assert_int_equal(hkt_pipe_peak(one, 0), 4);
        assert_int_equal(hkt_pipe_peak(gpipe, 0), micros);
        hkt_pipe_destroy(one);
        hkt_pipe_destroy(gpipe);
    }
}

/* Gradients of the last stage are complete, and can be reduced, while the first still has backward passes to do. */
static void last_stages_finish_first(void **state)
{
    (void)state;
    for (int kind = HKT_PIPE_GPIPE; kind <= HKT_PIPE_1F1B; kind++) {
        struct hkt_pipe *pipe = build((enum hkt_pipe_kind)kind, 4, 8, 1);
        struct hkt_pipe_sim *sim = simulate(pipe, (struct hkt_pipe_times)HKT_PIPE_TIMES_UNIT, 0);
        int64_t end[4] = { 0 };

        for (int stage = 0; stage < 4; stage++)
            for (int i = pipe->first[stage]; i < pipe->first[stage + 1]; i++)
                end[stage] = pipe->ops[i].kind == HKT_PIPE_B ? sim->end[i] : end[stage];
        for (int stage = 0; stage < 4; stage++)
            assert_int_equal(end[stage], sim->makespan - 2 * stage);
        hkt_pipe_sim_destroy(sim);
        hkt_pipe_destroy(pipe);
    }
}

/* A stage twice as slow is named, and sets the pace. */
static void a_slow_stage_is_named(void **state)
{
    const struct hkt_pipe_times uneven[] = { { 1, 1, 1, 0 }, { 1, 1, 1, 0 }, { 2, 2, 2, 0 }, { 1, 1, 1, 0 } };
    struct hkt_pipe *pipe = build(HKT_PIPE_1F1B, 4, 8, 1);
    struct hkt_pipe_sim *sim = NULL;
    int stage = -1;

    (void)state;
    assert_int_equal(hkt_pipe_simulate(pipe, &(struct hkt_pipe_sim_opts){ .uneven = uneven }, &sim), HKT_OK);
    assert_true(hkt_pipe_sim_imbalance(sim, &stage) == 2.0 * 4 / 5);
    assert_int_equal(stage, 2);
    /* Its 8 times 6, two F before its first, two B after its last; and less than a stage more. */
    assert_in_range(sim->makespan, 48 + 2 + 4, 48 + 2 + 4 + 6);
    hkt_pipe_sim_destroy(sim);
    assert_int_equal(hkt_pipe_simulate(pipe, NULL, &sim), HKT_OK);
    assert_true(hkt_pipe_sim_imbalance(sim, NULL) == 1);
    hkt_pipe_sim_destroy(sim);
    hkt_pipe_destroy(pipe);
}

static void large_schedules_are_built(void **state)
{
    (void)state;
    hkt_pipe_destroy(build(HKT_PIPE_1F1B, 64, 512, 1));
    hkt_pipe_destroy(build(HKT_PIPE_INTERLEAVED, 16, 128, 8));
    hkt_pipe_destroy(build(HKT_PIPE_ZB_H1, 1024, 16, 1));
}

/* ---- the checker ---- */

static void swap(struct hkt_pipe *pipe, int stage, int a, int b)
{
    struct hkt_pipe_op *ops = pipe->ops + pipe->first[stage], op = ops[a];

    ops[a] = ops[b];
    ops[b] = op;
}

static void refuse(struct hkt_pipe *pipe, const char *part)
{
    assert_int_equal(hkt_pipe_check(pipe), HKT_ERR_INVALID);
    if (strstr(hkt_parallel_last_error(), part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, hkt_parallel_last_error());
    hkt_pipe_destroy(pipe);
}

static int find(const struct hkt_pipe *pipe, int stage, enum hkt_pipe_op_kind kind, int micro)
{
    for (int i = pipe->first[stage]; i < pipe->first[stage + 1]; i++)
        if (pipe->ops[i].kind == kind && pipe->ops[i].micro == micro)
            return i - pipe->first[stage];
    fail_msg("stage %d has no %s %d", stage, hkt_pipe_op_name(kind), micro);
    return -1;
}

static void remove_op(struct hkt_pipe *pipe, int stage, int i)
{
    memmove(pipe->ops + pipe->first[stage] + i, pipe->ops + pipe->first[stage] + i + 1,
            (size_t)(pipe->first[pipe->stages] - pipe->first[stage] - i - 1) * sizeof *pipe->ops);
    for (int s = stage + 1; s <= pipe->stages; s++)
        pipe->first[s]--;
}

static void wrong_schedules_are_refused(void **state)
{
    struct hkt_pipe *pipe;

    (void)state;
    pipe = build(HKT_PIPE_1F1B, 2, 3, 1); /* B before F */
    swap(pipe, 1, find(pipe, 1, HKT_PIPE_F, 0), find(pipe, 1, HKT_PIPE_B, 0));
    refuse(pipe, "before what it needs");
    pipe = build(HKT_PIPE_1F1B, 2, 3, 1); /* F before its input has come */
    swap(pipe, 1, 0, 1);
    refuse(pipe, "stage 1, operation 0 (F of micro-batch 0, chunk 0): before what it needs");
    pipe = build(HKT_PIPE_1F1B, 2, 3, 1);
    pipe->ops[find(pipe, 0, HKT_PIPE_B, 2)].micro = 1;
    refuse(pipe, "for the second time");
    pipe = build(HKT_PIPE_1F1B, 2, 3, 1);
    remove_op(pipe, 0, find(pipe, 0, HKT_PIPE_B, 2));
    refuse(pipe, "stage 0: B of micro-batch 2, chunk 0 is missing");
    pipe = build(HKT_PIPE_ZB_H1, 2, 3, 1);
    remove_op(pipe, 1, find(pipe, 1, HKT_PIPE_W, 2));
    refuse(pipe, "stage 1: W of micro-batch 2, chunk 0 is missing");
    pipe = build(HKT_PIPE_ZB_H1, 2, 3, 1); /* sums would get other bits */
    swap(pipe, 1, find(pipe, 1, HKT_PIPE_W, 1), find(pipe, 1, HKT_PIPE_W, 2));
    refuse(pipe, "gradients must be added in the order of micro-batches");
    pipe = build(HKT_PIPE_GPIPE, 1, 3, 1);
    swap(pipe, 0, find(pipe, 0, HKT_PIPE_B, 0), find(pipe, 0, HKT_PIPE_B, 2)); /* last in, first out */
    refuse(pipe, "gradients must be added in the order of micro-batches");
    pipe = build(HKT_PIPE_1F1B, 2, 3, 1);
    remove_op(pipe, 0, find(pipe, 0, HKT_PIPE_SEND_ACT, 1));
    refuse(pipe, "stage 0: send_act of micro-batch 1, chunk 0 is missing");
    pipe = build(HKT_PIPE_1F1B, 4, 3, 1);
    pipe->ops[find(pipe, 0, HKT_PIPE_SEND_ACT, 1)].peer = 2;
    refuse(pipe, "the wrong stage at the other end");
    pipe = build(HKT_PIPE_FORWARD, 2, 3, 1);
    pipe->ops[0].kind = HKT_PIPE_B;
    refuse(pipe, "it has no place in this schedule");
    pipe = build(HKT_PIPE_FORWARD, 2, 3, 1);
    pipe->ops[0].micro = 3;
    refuse(pipe, "micro-batch 3 of 3");
    pipe = build(HKT_PIPE_GPIPE, 2, 3, 1); /* two sends swapped: each meets the other's receive */
    swap(pipe, 0, find(pipe, 0, HKT_PIPE_F, 0), find(pipe, 0, HKT_PIPE_F, 1));
    swap(pipe, 0, find(pipe, 0, HKT_PIPE_SEND_ACT, 0), find(pipe, 0, HKT_PIPE_SEND_ACT, 1));
    refuse(pipe, "messages of a pair of stages meet in order, and this one meets recv_act of micro-batch 0");
    assert_int_equal(hkt_pipe_check(NULL), HKT_ERR_INVALID);
}

/* Each stage sends before it receives: fine with buffers, a deadlock without. In one batch it is fine. */
static void unbuffered_sends_that_cross_deadlock(void **state)
{
    struct hkt_pipe_op ops[] = {
        { HKT_PIPE_F, 0, 0, -1 },
        { HKT_PIPE_SEND_ACT, 0, 0, 1 },
        { HKT_PIPE_F, 1, 0, -1 },
        { HKT_PIPE_SEND_ACT, 1, 0, 1 },
        { HKT_PIPE_RECV_GRAD, 0, 0, 1 },
        { HKT_PIPE_F, 2, 0, -1 },
        { HKT_PIPE_SEND_ACT, 2, 0, 1 },
        { HKT_PIPE_B, 0, 0, -1 },
        { HKT_PIPE_RECV_GRAD, 1, 0, 1 },
        { HKT_PIPE_B, 1, 0, -1 },
        { HKT_PIPE_RECV_GRAD, 2, 0, 1 },
        { HKT_PIPE_B, 2, 0, -1 },
        { HKT_PIPE_W, 0, 0, -1 },
        { HKT_PIPE_W, 1, 0, -1 },
        { HKT_PIPE_W, 2, 0, -1 },
        /* stage 1 */
        { HKT_PIPE_RECV_ACT, 0, 0, 0 },
        { HKT_PIPE_F, 0, 0, -1 },
        { HKT_PIPE_B, 0, 0, -1 },
        { HKT_PIPE_SEND_GRAD, 0, 0, 0 },
        { HKT_PIPE_W, 0, 0, -1 },
        { HKT_PIPE_RECV_ACT, 1, 0, 0 },
        { HKT_PIPE_F, 1, 0, -1 },
        { HKT_PIPE_RECV_ACT, 2, 0, 0 },
        { HKT_PIPE_B, 1, 0, -1 },
        { HKT_PIPE_SEND_GRAD, 1, 0, 0 },
        { HKT_PIPE_F, 2, 0, -1 },
        { HKT_PIPE_B, 2, 0, -1 },
        { HKT_PIPE_SEND_GRAD, 2, 0, 0 },
        { HKT_PIPE_W, 1, 0, -1 },
        { HKT_PIPE_W, 2, 0, -1 },
    };
    int first[] = { 0, 15, 30 };
    struct hkt_pipe pipe = { HKT_PIPE_ZB_H1, 2, 3, 1, 1, ops, first };
    struct hkt_pipe_sim *sim = NULL;

    (void)state;
    assert_int_equal(hkt_pipe_check(&pipe), HKT_OK); /* send_act 1 and recv_grad 0 are one batch */
    swap(&pipe, 0, 4, 5);
    assert_int_equal(hkt_pipe_check(&pipe), HKT_ERR_INVALID);
    assert_string_equal(
        hkt_parallel_last_error(),
        "the schedule deadlocks: stage 0 waits in operation 3 (send_act of micro-batch 1, chunk 0, to stage 1), "
        "stage 1 waits in operation 3 (send_grad of micro-batch 0, chunk 0, to stage 0)");
    assert_int_equal(hkt_pipe_simulate(&pipe, &(struct hkt_pipe_sim_opts){ .blocking = 1 }, &sim), HKT_ERR_INVALID);
    assert_null(sim);
    assert_int_equal(hkt_pipe_simulate(&pipe, NULL, &sim), HKT_OK); /* with buffers it runs */
    hkt_pipe_sim_destroy(sim);
}

/* Any two neighbouring operations of a stage exchanged, any one left out: the checker and the blocking run must agree
 * that the schedule ends, and what the checker passes must give the same results (checked by what it proves). */
static void mutants(void **state)
{
    int refused = 0, passed = 0;

    (void)state;
    for (int kind = HKT_PIPE_GPIPE; kind < HKT_PIPE_KIND_COUNT; kind++) {
        struct hkt_pipe *pipe = build((enum hkt_pipe_kind)kind, 3, 5, kind == HKT_PIPE_INTERLEAVED ? 2 : 1);

        for (int stage = 0; stage < 3; stage++)
            for (int i = 0; i < pipe->first[stage + 1] - pipe->first[stage] - 1; i++) {
                struct hkt_pipe_sim *sim = NULL;

                swap(pipe, stage, i, i + 1);
                const int ok = hkt_pipe_check(pipe) == HKT_OK;
                const int ends = hkt_pipe_simulate(pipe, &(struct hkt_pipe_sim_opts){ .blocking = 1 }, &sim) == HKT_OK;

                assert_true(!ok || ends);
                passed += ok;
                refused += !ok;
                hkt_pipe_sim_destroy(sim);
                swap(pipe, stage, i, i + 1);
            }
        for (int stage = 0; stage < 3; stage++) {
            const int nops = pipe->first[stage + 1] - pipe->first[stage];

            for (int i = 0; i < nops; i++) {
                struct hkt_pipe *cut = build((enum hkt_pipe_kind)kind, 3, 5, kind == HKT_PIPE_INTERLEAVED ? 2 : 1);

                remove_op(cut, stage, i);
                refuse(cut, "");
            }
        }
        hkt_pipe_destroy(pipe);
    }
    assert_true(refused > 100 && passed > 50);
}

/* ---- what people see ---- */

typedef enum hkt_status print_fn(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim, FILE *file);

static enum hkt_status print_ops(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim, FILE *file)
{
    (void)sim;
    return hkt_pipe_print(pipe, -1, file);
}

static enum hkt_status print_json(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim, FILE *file)
{
    (void)sim;
    return hkt_pipe_json(pipe, file);
}

static char *text_of(print_fn *fn, const struct hkt_pipe *pipe, struct hkt_pipe_times times)
{
    struct hkt_pipe_sim *sim = simulate(pipe, times, 0);
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_int_equal(fn(pipe, sim, file), HKT_OK);
    fclose(file);
    file = fopen("/dev/full", "we");
    assert_non_null(file);
    setvbuf(file, NULL, _IONBF, 0);
    assert_int_equal(fn(pipe, sim, file), HKT_ERR_SYSTEM);
    fclose(file);
    hkt_pipe_sim_destroy(sim);
    return text;
}

static void check_text(print_fn *fn, struct hkt_pipe *pipe, struct hkt_pipe_times times, const char *want)
{
    char *text = text_of(fn, pipe, times);

    assert_string_equal(text, want);
    free(text);
    hkt_pipe_destroy(pipe);
}

static void drawings(void **state)
{
    (void)state;
    check_text(hkt_pipe_draw, build(HKT_PIPE_FORWARD, 4, 4, 1), (struct hkt_pipe_times)HKT_PIPE_TIMES_UNIT,
               "forward: 4 stages, 4 micro-batches; a column is 1\n"
               "stage 0    F0 F1 F2 F3 .  .  .  \n"
               "stage 1    .  F0 F1 F2 F3 .  .  \n"
               "stage 2    .  .  F0 F1 F2 F3 .  \n"
               "stage 3    .  .  .  F0 F1 F2 F3 \n"
               "busy       1  2  3  4  3  2  1  \n"
               "makespan 7, idle 12 of 28 (42.86%)\n");
    check_text(hkt_pipe_draw, build(HKT_PIPE_1F1B, 2, 2, 1), (struct hkt_pipe_times){ 10, 10, 10, 0 },
               "1f1b: 2 stages, 2 micro-batches; a column is 10\n"
               "stage 0    F0 F1 .  .  B0--- .  B1--- \n"
               "stage 1    .  F0 B0--- F1 B1--- .  .  \n"
               "busy       1  2  1  1  2  2  1  1  1  \n"
               "makespan 90, idle 60 of 180 (33.33%)\n");
    check_text(hkt_pipe_draw, build(HKT_PIPE_ZB_H1, 2, 2, 1), (struct hkt_pipe_times)HKT_PIPE_TIMES_UNIT,
               "zb-h1: 2 stages, 2 micro-batches; a column is 1\n"
               "stage 0    F0 F1 .  B0 W0 B1 W1 \n"
               "stage 1    .  F0 B0 F1 B1 W0 W1 \n"
               "busy       1  2  1  2  2  2  2  \n"
               "makespan 7, idle 2 of 14 (14.29%)\n");
    check_text(print_ops, build(HKT_PIPE_1F1B, 2, 1, 1), (struct hkt_pipe_times)HKT_PIPE_TIMES_UNIT,
               "stage 0: F 0, send_act 0 to 1, recv_grad 0 from 1, B 0\n"
               "stage 1: recv_act 0 from 0, F 0, B 0, send_grad 0 to 0\n");
    check_text(print_ops, build(HKT_PIPE_INTERLEAVED, 1, 1, 2), (struct hkt_pipe_times)HKT_PIPE_TIMES_UNIT,
               "stage 0: F 0a, F 0b, B 0b, B 0a\n");
    check_text(
        print_json, build(HKT_PIPE_FORWARD, 2, 1, 1), (struct hkt_pipe_times)HKT_PIPE_TIMES_UNIT,
        "{\"schedule\": \"forward\", \"stages\": 2, \"micro_batches\": 1, \"chunks\": 1, \"splits_backward\": false,\n"
        " \"operations\": [\n"
        "  [{\"op\": \"F\", \"micro\": 0, \"chunk\": 0}, {\"op\": \"send_act\", \"micro\": 0, \"chunk\": 0, \"peer\": 1}],\n"
        "  [{\"op\": \"recv_act\", \"micro\": 0, \"chunk\": 0, \"peer\": 0}, {\"op\": \"F\", \"micro\": 0, \"chunk\": 0}]\n"
        "]}\n");
    struct hkt_pipe *pipe = build(HKT_PIPE_FORWARD, 2, 1, 1);
    char *text = text_of(hkt_pipe_trace, pipe, (struct hkt_pipe_times){ 3, 0, 0, 2 });

    assert_non_null(
        strstr(text, "{\"name\": \"F 0\", \"cat\": \"compute\", \"ph\": \"X\", \"pid\": 0, \"tid\": 1, \"ts\": 5, "
                     "\"dur\": 3,"));
    assert_non_null(strstr(text,
                           "{\"name\": \"recv_act 0\", \"cat\": \"message\", \"ph\": \"X\", \"pid\": 1, \"tid\": 1, "
                           "\"ts\": 3, \"dur\": 2,"));
    free(text);
    hkt_pipe_destroy(pipe);
}

static void names(void **state)
{
    enum hkt_pipe_kind kind = HKT_PIPE_KIND_COUNT;

    (void)state;
    for (int i = 0; i < HKT_PIPE_KIND_COUNT; i++) {
        assert_int_equal(hkt_pipe_kind_parse(hkt_pipe_kind_name((enum hkt_pipe_kind)i), &kind), HKT_OK);
        assert_int_equal(kind, i);
    }
    assert_int_equal(hkt_pipe_kind_parse("dualpipe", &kind), HKT_ERR_INVALID);
    assert_string_equal(hkt_parallel_last_error(),
                        "no pipeline schedule \"dualpipe\"; there are forward gpipe 1f1b interleaved zb-h1");
    assert_string_equal(hkt_pipe_kind_name(HKT_PIPE_KIND_COUNT), "?");
    assert_string_equal(hkt_pipe_op_name(HKT_PIPE_OP_COUNT), "?");
}

static void impossible(struct hkt_pipe_opts opts, enum hkt_status want, const char *part)
{
    struct hkt_pipe *pipe = NULL;

    assert_int_equal(hkt_pipe_create(&opts, &pipe), want);
    if (strstr(hkt_parallel_last_error(), part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, hkt_parallel_last_error());
    assert_null(pipe);
}

static void impossible_schedules(void **state)
{
    (void)state;
    impossible((struct hkt_pipe_opts){ .kind = HKT_PIPE_1F1B, .stages = 0, .micros = 4 }, HKT_ERR_INVALID,
               "of 0 stages");
    impossible((struct hkt_pipe_opts){ .kind = HKT_PIPE_1F1B, .stages = 2, .micros = 0 }, HKT_ERR_INVALID,
               "0 micro-batches");
    impossible((struct hkt_pipe_opts){ .kind = HKT_PIPE_1F1B, .stages = 2, .micros = 2, .chunks = 2 }, HKT_ERR_INVALID,
               "2 chunks per stage need the interleaved schedule; 1f1b has 1");
    impossible((struct hkt_pipe_opts){ .kind = HKT_PIPE_INTERLEAVED, .stages = 2, .micros = 2 }, HKT_ERR_INVALID,
               "at least 2 chunks");
    impossible((struct hkt_pipe_opts){ .kind = HKT_PIPE_KIND_COUNT, .stages = 2, .micros = 2 }, HKT_ERR_INVALID,
               "no pipeline");
    impossible((struct hkt_pipe_opts){ .kind = HKT_PIPE_1F1B, .stages = 1024, .micros = 1 << 20 }, HKT_ERR_UNSUPPORTED,
               "more operations");
    impossible((struct hkt_pipe_opts){ HKT_PIPE_1F1B, 2, 2, 1, { -1, 1, 1, 0 } }, HKT_ERR_INVALID, "negative");
}

static void no_memory_is_an_error(void **state)
{
    const struct hkt_pipe_opts opts = { .kind = HKT_PIPE_1F1B, .stages = 2, .micros = 2 };
    struct hkt_pipe *pipe = NULL;
    struct hkt_pipe_sim *sim = NULL;
    enum hkt_status status = HKT_ERR_NOMEM;
    int k = 0;

    (void)state;
    while (status != HKT_OK) {
        hkt__parallel_alloc_fail_at(++k);
        status = hkt_pipe_create(&opts, &pipe);
        assert_true(status == HKT_OK || status == HKT_ERR_NOMEM);
    }
    assert_true(k > 8);
    for (int blocking = 0; blocking < 2; blocking++) {
        status = HKT_ERR_NOMEM;
        for (k = 1; status != HKT_OK; k++) {
            hkt__parallel_alloc_fail_at(k);
            status = hkt_pipe_simulate(pipe, &(struct hkt_pipe_sim_opts){ .blocking = blocking }, &sim);
            assert_true(status == HKT_OK || status == HKT_ERR_NOMEM);
        }
        hkt__parallel_alloc_fail_at(0);
        hkt_pipe_sim_destroy(sim);
    }
    hkt_pipe_destroy(pipe);
    hkt_pipe_destroy(NULL);
    hkt_pipe_sim_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulated_bubbles_are_the_closed_forms),
        cmocka_unit_test(published_fractions),
        cmocka_unit_test(activations_held),
        cmocka_unit_test(any_number_of_micro_batches),
        cmocka_unit_test(batches_cost_nothing_in_step),
        cmocka_unit_test(more_micro_batches),
        cmocka_unit_test(last_stages_finish_first),
        cmocka_unit_test(a_slow_stage_is_named),
        cmocka_unit_test(large_schedules_are_built),
        cmocka_unit_test(wrong_schedules_are_refused),
        cmocka_unit_test(unbuffered_sends_that_cross_deadlock),
        cmocka_unit_test(mutants),
        cmocka_unit_test(drawings),
        cmocka_unit_test(names),
        cmocka_unit_test(impossible_schedules),
        cmocka_unit_test(no_memory_is_an_error),
    };

    return cmocka_run_group_tests_name("pipe", tests, NULL, NULL);
}
