/* What could break: the verifier might accept a wrong schedule (each rule has a smallest schedule that breaks it),
 * refuse a right one, or lose its way when memory runs out. Schedules are written by hand here, without the builder, so
 * that nothing that the builder would add or refuse stands in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "hocket/status.h"
#include "sched/verify.h"

enum { RANKS_MAX = 4, STEPS_MAX = 16, ARGS_MAX = 32 };

struct plan {
    int nranks;
    struct hkt__sched sched[RANKS_MAX], *list[RANKS_MAX];
    struct hkt__step steps[RANKS_MAX][STEPS_MAX];
    struct hkt__arg args[RANKS_MAX][ARGS_MAX];
    int32_t deps[RANKS_MAX][ARGS_MAX];
};

static void start(struct plan *plan, enum hkt_coll coll, int nranks, int scratch)
{
    memset(plan, 0, sizeof *plan);
    plan->nranks = nranks;
    for (int r = 0; r < nranks; r++) {
        struct hkt__sched *s = &plan->sched[r];

        *s = (struct hkt__sched){
            .coll = coll,
            .algo = "by_hand",
            .nranks = nranks,
            .rank = r,
            .cuts = 1,
            .scratch_chunks = scratch,
            .nlanes = 2,
            .uniform_blocks = coll != HKT_ALL_GATHER_V && coll != HKT_REDUCE_SCATTER_V && coll != HKT_ALL_TO_ALL_V,
            .steps = plan->steps[r],
            .args = plan->args[r],
            .deps = plan->deps[r],
        };
        hkt__coll_blocks(coll, nranks, r, 0, s->blocks);
        plan->list[r] = s;
    }
}

static void in_place(struct plan *plan)
{
    for (int r = 0; r < plan->nranks; r++)
        plan->sched[r].in_place = true;
}

static void set_cuts(struct plan *plan, int cuts)
{
    for (int r = 0; r < plan->nranks; r++)
        plan->sched[r].cuts = cuts;
}

static struct hkt__operand many(enum hkt__buf buf, int first, int count)
{
    const struct hkt__span span = { first, 1, first + count };

    return (
        struct hkt__operand){ .buf = (uint8_t)buf, .like_buf = (uint8_t)buf, .count = count, .at = span, .like = span };
}

static struct hkt__operand in(int chunk)
{
    return many(HKT__IN, chunk, 1);
}

static struct hkt__operand out(int chunk)
{
    return many(HKT__OUT, chunk, 1);
}

/* A scratch slot with the size of `like`. */
static struct hkt__operand slot(int slot_index, struct hkt__operand like)
{
    like.buf = HKT__SCRATCH;
    like.at = (struct hkt__span){ slot_index, 1, slot_index + 1 };
    return like;
}

static const struct hkt__operand none = { .at = { 0, 1, 1 }, .like = { 0, 1, 1 } };

static struct hkt__step *step_of(struct plan *plan, int rank, int index)
{
    return &plan->steps[rank][index];
}

static struct hkt__arg *arg_of(struct plan *plan, int rank, int index, int k)
{
    return &plan->args[rank][plan->steps[rank][index].arg_first + k];
}

static int add(struct plan *plan, int rank, enum hkt__step_kind kind, int peer, struct hkt__operand dst)
{
    struct hkt__sched *s = &plan->sched[rank];

    assert_true(s->nsteps < STEPS_MAX);
    s->steps[s->nsteps] = (struct hkt__step){
        .kind = (uint8_t)kind,
        .peer = peer,
        .dst = dst,
        .arg_first = s->nargs,
        .dep_first = s->ndeps,
        .fused = -1,
    };
    return s->nsteps++;
}

/* One more argument or dependency of the rank's last step. */
static void with(struct plan *plan, int rank, int holder, struct hkt__operand x)
{
    struct hkt__sched *s = &plan->sched[rank];

    assert_true(s->nargs < ARGS_MAX);
    s->args[s->nargs++] = (struct hkt__arg){ holder, x };
    s->steps[s->nsteps - 1].arg_count++;
}

static void after(struct plan *plan, int rank, int dep)
{
    struct hkt__sched *s = &plan->sched[rank];

    assert_true(s->ndeps < ARGS_MAX);
    s->deps[s->ndeps++] = dep;
    s->steps[s->nsteps - 1].dep_count++;
}

static int send(struct plan *plan, int rank, int peer, struct hkt__operand x)
{
    const int step = add(plan, rank, HKT__SEND, peer, none);

    with(plan, rank, rank, x);
    return step;
}

static int recv_reduce(struct plan *plan, int rank, int peer, struct hkt__operand y, struct hkt__operand x)
{
    const int step = add(plan, rank, HKT__RECV_REDUCE, peer, y);

    with(plan, rank, rank, x);
    return step;
}

static int copy(struct plan *plan, int rank, struct hkt__operand y, struct hkt__operand x)
{
    const int step = add(plan, rank, HKT__COPY, -1, y);

    with(plan, rank, rank, x);
    return step;
}

static struct hkt_verify_report expect_ok(struct plan *plan)
{
    struct hkt_verify_report exact, prints;

    /* Both ways of keeping values must agree. */
    const enum hkt_status rc = hkt__verify(plan->list, plan->nranks, -1, &exact);

    if (rc != HKT_OK)
        print_error("%s\n", hkt_last_error());
    assert_int_equal(rc, HKT_OK);
    assert_int_equal(exact.exact, 1);
    assert_string_equal(exact.failure, "");
    assert_int_equal(hkt__verify(plan->list, plan->nranks, 0, &prints), HKT_OK);
    assert_int_equal(prints.exact, 0);
    assert_int_equal(prints.races_checked, exact.races_checked);
    return exact;
}

static void expect_bug_exact(struct plan *plan, const char *part)
{
    struct hkt_verify_report report = { 0 };

    assert_int_equal(hkt__verify(plan->list, plan->nranks, -1, &report), HKT_ERR_BUG);
    if (strstr(report.failure, part) == NULL)
        print_error("expected \"%s\" in: %s\n", part, report.failure);
    assert_non_null(strstr(report.failure, part));
    assert_string_equal(hkt_last_error(), report.failure);
}

/* Rejected in both modes, with `part` in the message of the exact one. */
static void expect_bug(struct plan *plan, const char *part)
{
    struct hkt_verify_report report;

    expect_bug_exact(plan, part);
    assert_int_equal(hkt__verify(plan->list, plan->nranks, 0, &report), HKT_ERR_BUG);
}

/* --- right schedules --- */

/* Two ranks exchange IN and add. Steps of each rank: 0 send, 1 receive. */
static void make_exchange(struct plan *plan)
{
    start(plan, HKT_ALL_REDUCE, 2, 1);
    for (int r = 0; r < 2; r++) {
        send(plan, r, 1 - r, in(0));
        recv_reduce(plan, r, 1 - r, out(0), in(0));
    }
}

/* The textbook ring in place over `n` ranks, one chunk a rank, one scratch-free pass round and one back. */
static void make_ring(struct plan *plan, int n)
{
    start(plan, HKT_ALL_REDUCE, n, 0);
    set_cuts(plan, n);
    in_place(plan);
    for (int r = 0; r < n; r++) {
        const int next = (r + 1) % n, prev = (r + n - 1) % n;
        int first_send = -1, last = -1;

        for (int k = 0; k < 2 * (n - 1); k++) {
            const int sent = (r + 2 * n - k) % n, got = (r + 2 * n - k - 1) % n;
            const int s = send(plan, r, next, out(sent));

            if (last >= 0)
                after(plan, r, last);
            first_send = first_send < 0 ? s : first_send;
            if (k < n - 1) {
                last = recv_reduce(plan, r, prev, out(got), out(got));
            } else {
                last = add(plan, r, HKT__RECV, prev, out(got));
                after(plan, r, 2 * (k - n + 1)); /* it overwrites what that step sent */
            }
        }
    }
}

/* Each rank puts its data in scratch, and reduces everybody's. Steps: 0 copy, then signals, waits, 2n-1 reduce. */
static void make_direct(struct plan *plan, int n)
{
    start(plan, HKT_ALL_REDUCE, n, 1);
    for (int r = 0; r < n; r++) {
        copy(plan, r, slot(0, out(0)), in(0));
        for (int k = 1; k < n; k++) {
            add(plan, r, HKT__SIGNAL, (r + k) % n, slot(0, out(0)));
            after(plan, r, 0);
        }
        for (int k = 1; k < n; k++)
            add(plan, r, HKT__WAIT, (r + n - k) % n, none);
        add(plan, r, HKT__REDUCE, -1, out(0));
        for (int k = 0; k < n; k++)
            with(plan, r, k, slot(0, out(0)));
        for (int k = 0; k < n; k++)
            after(plan, r, k == 0 ? 0 : n - 1 + k);
    }
}

/* Broadcast from rank 0 by reading its IN: granted, read, handed back. Steps of 0: copy, signal, wait; of 1: wait,
 * read, signal. */
static void make_read(struct plan *plan)
{
    start(plan, HKT_BROADCAST, 2, 0);
    copy(plan, 0, out(0), in(0));
    add(plan, 0, HKT__SIGNAL, 1, in(0));
    add(plan, 0, HKT__WAIT, 1, in(0));
    add(plan, 1, HKT__WAIT, 0, none);
    add(plan, 1, HKT__REDUCE, -1, out(0));
    with(plan, 1, 0, in(0));
    after(plan, 1, 0);
    add(plan, 1, HKT__SIGNAL, 0, none);
    after(plan, 1, 1);
}

/* Broadcast by writing in rank 1's OUT. Steps of 0: copy, wait, write, signal; of 1: signal, wait. */
static void make_write(struct plan *plan)
{
    start(plan, HKT_BROADCAST, 2, 0);
    copy(plan, 0, out(0), in(0));
    add(plan, 0, HKT__WAIT, 1, none);
    add(plan, 0, HKT__WRITE, -1, none);
    with(plan, 0, 0, in(0));
    with(plan, 0, 1, out(0));
    after(plan, 0, 1);
    add(plan, 0, HKT__SIGNAL, 1, none);
    after(plan, 0, 2);
    add(plan, 1, HKT__SIGNAL, 0, out(0));
    add(plan, 1, HKT__WAIT, 0, out(0));
}

/* Dissemination over four ranks: two rounds. */
static void make_barrier(struct plan *plan)
{
    start(plan, HKT_BARRIER, 4, 0);
    for (int r = 0; r < 4; r++) {
        add(plan, r, HKT__SIGNAL, (r + 1) % 4, none);
        add(plan, r, HKT__WAIT, (r + 3) % 4, none);
        add(plan, r, HKT__SIGNAL, (r + 2) % 4, none);
        after(plan, r, 1);
        add(plan, r, HKT__WAIT, (r + 2) % 4, none);
    }
}

static void right_schedules_pass(void **state)
{
    struct plan plan;
    struct hkt_verify_report report;

    (void)state;
    make_exchange(&plan);
    report = expect_ok(&plan);
    assert_int_equal(report.steps, 4);
    assert_int_equal(report.messages, 2);
    assert_int_equal(report.rounds, 1);
    assert_int_equal(report.chunks_checked, 2);
    assert_int_equal(report.bytes_chunks_max, 1);
    assert_int_equal(report.same_bits, 1);
    make_ring(&plan, 4);
    report = expect_ok(&plan);
    assert_int_equal(report.rounds, 6);
    assert_int_equal(report.bytes_chunks_max, 6);
    assert_int_equal(report.chunks_checked, 16);
    assert_true(report.races_checked > 0);
    for (int n = 2; n <= 4; n++) {
        make_direct(&plan, n);
        report = expect_ok(&plan);
        assert_int_equal(report.bytes_chunks_max, n - 1);
        assert_int_equal(report.rounds, 1);
    }
    make_read(&plan);
    assert_int_equal(expect_ok(&plan).rounds, 2);
    make_write(&plan);
    assert_int_equal(expect_ok(&plan).rounds, 2);
    make_barrier(&plan);
    assert_int_equal(expect_ok(&plan).rounds, 2);
}

static void one_rank_alone(void **state)
{
    struct plan plan;

    (void)state;
    start(&plan, HKT_ALL_REDUCE, 1, 0);
    expect_bug(&plan, "never written");
    copy(&plan, 0, out(0), in(0));
    expect_ok(&plan);
    start(&plan, HKT_ALL_REDUCE, 1, 0);
    in_place(&plan);
    expect_ok(&plan);
    start(&plan, HKT_BARRIER, 1, 0);
    expect_ok(&plan);
}

static void schedules_that_do_not_belong_together_are_invalid(void **state)
{
    struct plan plan;
    struct hkt_verify_report report = { .nranks = 77 };

    (void)state;
    make_exchange(&plan);
    assert_int_equal(hkt__verify(NULL, 2, -1, &report), HKT_ERR_INVALID);
    assert_int_equal(hkt__verify(plan.list, 0, -1, &report), HKT_ERR_INVALID);
    assert_int_equal(hkt__verify(plan.list, 1, -1, &report), HKT_ERR_INVALID);
    plan.list[1] = NULL;
    assert_int_equal(hkt__verify(plan.list, 2, -1, &report), HKT_ERR_INVALID);
    plan.list[1] = plan.list[0];
    assert_int_equal(hkt__verify(plan.list, 2, -1, &report), HKT_ERR_INVALID);
    make_exchange(&plan);
    plan.sched[1].algo = "another";
    assert_int_equal(hkt__verify(plan.list, 2, -1, &report), HKT_ERR_INVALID);
    make_exchange(&plan);
    plan.sched[1].in_place = true;
    assert_int_equal(hkt__verify(plan.list, 2, -1, &report), HKT_ERR_INVALID);
    start(&plan, HKT_SEND_RECV, 2, 0);
    assert_int_equal(hkt__verify(plan.list, 2, -1, &report), HKT_ERR_INVALID);
    assert_int_equal(report.nranks, 77); /* untouched */
}

/* --- rule 1: form and matching --- */

static void malformed_steps_are_rejected(void **state)
{
    struct plan plan;

    (void)state;
    make_exchange(&plan);
    step_of(&plan, 0, 0)->kind = HKT__STEP_KIND_COUNT;
    expect_bug(&plan, "rank 0 step 0: no such kind");
    make_exchange(&plan);
    step_of(&plan, 1, 0)->lane = 2;
    expect_bug(&plan, "rank 1 step 0: the lane");
    make_exchange(&plan);
    step_of(&plan, 0, 0)->peer = 2;
    expect_bug(&plan, "the peer is out of range");
    make_exchange(&plan);
    step_of(&plan, 0, 0)->peer = 0;
    expect_bug(&plan, "the rank itself");
    make_exchange(&plan);
    step_of(&plan, 0, 1)->arg_count = 0;
    expect_bug(&plan, "too many or too few arguments");
    make_exchange(&plan);
    step_of(&plan, 0, 1)->arg_first = 2;
    expect_bug(&plan, "arguments beyond");
    make_exchange(&plan);
    after(&plan, 0, 1); /* step 1 on itself */
    expect_bug(&plan, "a dependency on a step that is not earlier");
    make_exchange(&plan);
    step_of(&plan, 0, 1)->dep_count = 1;
    expect_bug(&plan, "dependencies beyond");
    make_exchange(&plan);
    copy(&plan, 0, out(0), in(0));
    step_of(&plan, 0, 2)->peer = 1;
    expect_bug(&plan, "a peer where none belongs");
    make_exchange(&plan);
    plan.sched[1].scratch_chunks = 2;
    expect_bug(&plan, "not the same on all ranks");
    make_exchange(&plan);
    plan.sched[1].blocks[HKT__OUT] = 2;
    expect_bug(&plan, "not those of the collective");
}

static void malformed_operands_are_rejected(void **state)
{
    struct plan plan;

    (void)state;
    make_exchange(&plan);
    copy(&plan, 0, slot(1, out(0)), in(0));
    expect_bug(&plan, "beyond the scratch slots");
    make_exchange(&plan);
    arg_of(&plan, 0, 0, 0)->x = in(1);
    expect_bug(&plan, "beyond the chunks");
    make_exchange(&plan);
    arg_of(&plan, 0, 0, 0)->x.at.modulus = 0;
    expect_bug(&plan, "a malformed operand");
    make_exchange(&plan);
    arg_of(&plan, 0, 0, 0)->rank = 1;
    expect_bug(&plan, "a rank it may not be at");
    make_exchange(&plan);
    step_of(&plan, 0, 1)->dst = none;
    expect_bug(&plan, "different numbers of pieces");
    make_exchange(&plan);
    step_of(&plan, 0, 1)->dst = in(0);
    expect_bug(&plan, "it writes IN");
    start(&plan, HKT_ALL_REDUCE, 2, 0);
    set_cuts(&plan, 3);
    copy(&plan, 0, many(HKT__OUT, 1, 2), many(HKT__IN, 0, 2));
    expect_bug(&plan, "differ in size");
    start(&plan, HKT_ALL_GATHER, 2, 4);
    copy(&plan, 0, many(HKT__OUT, 0, 2), many(HKT__OUT, 0, 2));
    step_of(&plan, 0, 0)->dst.at = step_of(&plan, 0, 0)->dst.like = (struct hkt__span){ 0, 2, 2 };
    expect_bug(&plan, "writes one chunk twice");
    start(&plan, HKT_ALL_GATHER, 3, 0);
    copy(&plan, 0, many(HKT__OUT, 1, 2), many(HKT__OUT, 0, 2));
    expect_bug(&plan, "writes as another piece");
}

static void unmatched_messages_are_rejected(void **state)
{
    struct plan plan;

    (void)state;
    make_exchange(&plan);
    plan.sched[1].nsteps = 1;
    expect_bug(&plan, "nothing receives it");
    make_exchange(&plan);
    step_of(&plan, 1, 0)->lane = 1;
    expect_bug(&plan, "nothing is sent that it could receive");
    make_exchange(&plan);
    add(&plan, 0, HKT__SIGNAL, 1, none);
    add(&plan, 1, HKT__RECV, 0, slot(0, out(0)));
    expect_bug(&plan, "a signal meets a wait");
    start(&plan, HKT_ALL_GATHER, 2, 2);
    send(&plan, 0, 1, in(0));
    add(&plan, 1, HKT__RECV, 0, many(HKT__OUT, 0, 2));
    expect_bug(&plan, "different numbers of chunks");
    start(&plan, HKT_ALL_GATHER_V, 2, 0);
    copy(&plan, 0, out(0), in(0));
    copy(&plan, 1, out(1), in(0));
    send(&plan, 0, 1, in(0));
    add(&plan, 1, HKT__RECV, 0, out(1));
    expect_bug(&plan, "their chunks differ in size");
}

/* Scratch has no size of its own: a slot must be read as what was written. Two copies through slots, one of them of a
 * foreign size, would lose the tail of the chunk and still look right from end to end. */
static void scratch_read_as_another_size_is_rejected(void **state)
{
    struct plan plan;

    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        start(&plan, HKT_ALL_GATHER_V, 2, 2);
        for (int r = 0; r < 2; r++) {
            copy(&plan, r, slot(0, out(r)), in(0));
            copy(&plan, r, slot(1, out(wrong ? 1 - r : r)), slot(0, out(wrong ? 1 - r : r)));
            copy(&plan, r, out(r), slot(1, out(r)));
            send(&plan, r, 1 - r, in(0));
            add(&plan, r, HKT__RECV, 1 - r, out(1 - r));
        }
        if (wrong)
            expect_bug(&plan, "another size than was written");
        else
            expect_ok(&plan);
    }
}

static void fused_hints_are_checked(void **state)
{
    struct plan plan;

    (void)state;
    for (int fault = 0; fault < 4; fault++) {
        start(&plan, HKT_BROADCAST, 3, 1);
        copy(&plan, 0, out(0), in(0));
        send(&plan, 0, 1, in(0));
        add(&plan, 1, HKT__RECV, 0, out(0));
        if (fault == 1) { /* the chunk changes between receive and send */
            copy(&plan, 1, slot(0, out(0)), out(0));
            after(&plan, 1, 0);
            copy(&plan, 1, out(0), slot(0, out(0)));
        }
        send(&plan, 1, 2, out(0));
        after(&plan, 1, plan.sched[1].nsteps - 2);
        add(&plan, 2, HKT__RECV, 1, out(0));
        step_of(&plan, 1, 0)->fused = plan.sched[1].nsteps - 1;
        step_of(&plan, 1, plan.sched[1].nsteps - 1)->fused = fault == 2 ? -1 : fault == 3 ? 7 : 0;
        if (fault == 0)
            expect_ok(&plan);
        else
            expect_bug(&plan, fault == 1 ? "something else is written" : "fused with a step that does not fit");
    }
}

/* --- rule 2: deadlock --- */

static void deadlock_is_found_and_told(void **state)
{
    struct plan plan;

    (void)state;
    /* Both send first and receive after: right with buffers, stuck without. */
    start(&plan, HKT_ALL_REDUCE, 2, 0);
    for (int r = 0; r < 2; r++) {
        send(&plan, r, 1 - r, in(0));
        recv_reduce(&plan, r, 1 - r, out(0), in(0));
        after(&plan, r, 0);
    }
    expect_bug(&plan, "deadlock: rank");
    make_barrier(&plan);
    start(&plan, HKT_BARRIER, 3, 0);
    for (int r = 0; r < 3; r++) { /* everybody waits before it signals */
        add(&plan, r, HKT__WAIT, (r + 2) % 3, none);
        add(&plan, r, HKT__SIGNAL, (r + 1) % 3, none);
        after(&plan, r, 0);
    }
    expect_bug(&plan, "holds up the first again");
}

/* --- rule 3: results --- */

static void wrong_results_are_rejected(void **state)
{
    struct plan plan;

    (void)state;
    make_exchange(&plan); /* a receive that does not add */
    step_of(&plan, 1, 1)->kind = HKT__RECV;
    step_of(&plan, 1, 1)->arg_count = 0;
    expect_bug(&plan, "rank 1 OUT[0] lacks the contribution of rank 1");
    make_exchange(&plan); /* one more exchange: counted twice */
    for (int r = 0; r < 2; r++) {
        send(&plan, r, 1 - r, in(0));
        recv_reduce(&plan, r, 1 - r, out(0), out(0));
    }
    expect_bug(&plan, "counts the contribution of rank 0 to IN[0] twice");
    make_exchange(&plan);
    send(&plan, 0, 1, slot(0, out(0)));
    add(&plan, 1, HKT__RECV, 0, slot(0, out(0)));
    expect_bug(&plan, "which nothing before it has written");
    start(&plan, HKT_REDUCE_SCATTER, 2, 0);
    for (int r = 0; r < 2; r++) { /* the wrong block of the peer */
        send(&plan, r, 1 - r, in(r));
        recv_reduce(&plan, r, 1 - r, out(0), in(r));
    }
    expect_bug(&plan, "different chunks");
    start(&plan, HKT_BROADCAST, 2, 0);
    copy(&plan, 0, out(0), in(0));
    expect_bug(&plan, "rank 1 OUT[0] is never written");
    start(&plan, HKT_ALL_TO_ALL, 2, 0);
    for (int r = 0; r < 2; r++) {
        copy(&plan, r, out(r), in(r));
        send(&plan, r, 1 - r, in(r)); /* its own block instead of the peer's */
        add(&plan, r, HKT__RECV, 1 - r, out(1 - r));
    }
    expect_bug(&plan, "holds IN[1] where IN[0] belongs");
    make_barrier(&plan);
    for (int r = 0; r < 4; r++)
        plan.sched[r].nsteps = 2; /* one round is too few */
    expect_bug(&plan, "may leave before rank");
    make_barrier(&plan);
    plan.steps[1][2].dep_count = 0; /* rank 1 passes on what it has not heard yet */
    expect_bug(&plan, "rank 3 may leave before rank 0 has entered");
}

/* --- rule 4: races --- */

static void a_missing_dependency_is_a_race(void **state)
{
    struct plan plan;

    (void)state;
    make_ring(&plan, 4);
    step_of(&plan, 2, 9)->dep_count = 0; /* what it overwrites has been sent: it comes back round the ring */
    expect_ok(&plan);
    make_ring(&plan, 4);
    step_of(&plan, 2, 2)->dep_count = 0; /* sends a chunk that may not have arrived */
    expect_bug(&plan, "rank 2");
    start(&plan, HKT_ALL_REDUCE, 1, 1);
    copy(&plan, 0, slot(0, out(0)), in(0));
    copy(&plan, 0, out(0), slot(0, out(0)));
    step_of(&plan, 0, 1)->lane = 1; /* another queue */
    expect_bug(&plan, "race: rank 0 step 0 (copy: SCRATCH[0]) and rank 0 step 1 (copy: OUT[0])");
    after(&plan, 0, 0);
    expect_ok(&plan);
}

/* Nobody reads in between, so only the two writes themselves conflict. */
static void two_writes_without_order_are_a_race(void **state)
{
    struct plan plan;

    (void)state;
    start(&plan, HKT_ALL_REDUCE, 1, 0);
    copy(&plan, 0, out(0), in(0));
    copy(&plan, 0, out(0), in(0));
    expect_ok(&plan); /* one queue */
    step_of(&plan, 0, 1)->lane = 1;
    expect_bug(&plan, "race: rank 0 step 0 (copy: OUT[0]) and rank 0 step 1 (copy: OUT[0])");
}

/* A SEND that is done tells nothing about its receiver: it may have been buffered. */
static void a_send_tells_nothing_about_its_receiver(void **state)
{
    struct plan plan;

    (void)state;
    start(&plan, HKT_BROADCAST, 2, 1);
    copy(&plan, 0, slot(0, out(0)), in(0));
    add(&plan, 0, HKT__SIGNAL, 1, none);
    after(&plan, 0, 0);
    copy(&plan, 0, out(0), in(0));
    send(&plan, 0, 1, in(0));
    copy(&plan, 0, slot(0, out(0)), in(0)); /* while rank 1 may still read it */
    after(&plan, 0, 3);
    add(&plan, 1, HKT__WAIT, 0, none);
    add(&plan, 1, HKT__REDUCE, -1, out(0));
    with(&plan, 1, 0, slot(0, out(0)));
    after(&plan, 1, 0);
    add(&plan, 1, HKT__RECV, 0, slot(0, out(0)));
    after(&plan, 1, 1);
    expect_bug(&plan, "race: rank 1 step 1 (reduce: OUT[0]) and rank 0 step 4 (copy: SCRATCH[0])");
}

/* Rank 0 may overwrite a slot only when rank 2 has read it; it knows from rank 1, who knows from rank 2. */
static void order_through_other_ranks_counts(void **state)
{
    struct plan plan;

    (void)state;
    for (int is_told = 0; is_told < 2; is_told++) {
        start(&plan, HKT_BROADCAST, 3, 1);
        copy(&plan, 0, slot(0, out(0)), in(0));
        add(&plan, 0, HKT__SIGNAL, 2, none);
        after(&plan, 0, 0);
        add(&plan, 2, HKT__WAIT, 0, none);
        add(&plan, 2, HKT__REDUCE, -1, out(0));
        with(&plan, 2, 0, slot(0, out(0)));
        after(&plan, 2, 0);
        send(&plan, 2, 1, out(0));
        after(&plan, 2, 1);
        add(&plan, 1, HKT__RECV, 2, out(0));
        add(&plan, 1, HKT__SIGNAL, 0, none);
        if (is_told)
            after(&plan, 1, 0);
        add(&plan, 0, HKT__WAIT, 1, none);
        copy(&plan, 0, slot(0, out(0)), in(0));
        after(&plan, 0, 2);
        copy(&plan, 0, out(0), in(0));
        if (is_told)
            expect_ok(&plan);
        else
            expect_bug(&plan, "race: rank 0 step 3 (copy: SCRATCH[0]) and rank 2 step 1 (reduce: OUT[0])");
    }
}

static void remote_memory_must_be_granted_and_handed_back(void **state)
{
    struct plan plan;

    (void)state;
    make_read(&plan);
    step_of(&plan, 1, 1)->dep_count = 0;
    expect_bug(&plan, "without a message from there that grants it");
    make_read(&plan);
    step_of(&plan, 1, 2)->dep_count = 0;
    expect_bug(&plan, "no message hands it back");
    make_write(&plan);
    step_of(&plan, 0, 2)->dep_count = 0;
    expect_bug(&plan, "without a message from there that grants it");
    make_write(&plan);
    step_of(&plan, 0, 3)->dep_count = 0;
    expect_bug(&plan, "no message hands it back");
    make_direct(&plan, 3); /* the slot is granted before it is filled */
    step_of(&plan, 1, 1)->dep_count = 0;
    expect_bug(&plan, "race: rank 1 step 0 (copy: SCRATCH[0]) and rank 2 step 5 (reduce: OUT[0])");
    make_direct(&plan, 3); /* the owner uses the slot again while peers read */
    copy(&plan, 1, slot(0, out(0)), in(0));
    expect_bug(&plan, "race: ");
}

/* --- rule 5: bits --- */

static void different_association_is_rejected(void **state)
{
    struct plan plan;

    (void)state;
    make_direct(&plan, 3);
    arg_of(&plan, 1, 5, 0)->rank = 1; /* the first two commute */
    arg_of(&plan, 1, 5, 1)->rank = 0;
    expect_ok(&plan);
    make_direct(&plan, 3);
    arg_of(&plan, 1, 5, 0)->rank = 2; /* (2 1) 0 is not (0 1) 2 */
    arg_of(&plan, 1, 5, 2)->rank = 0;
    expect_bug(&plan, "bits: rank 1 OUT[0] is associated differently than at rank 0");
}

/* --- garbage --- */

static uint32_t draw(uint64_t *rng)
{
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*rng >> 33);
}

/* Overwrites one aligned word of a table: small numbers, which pass more checks, more often than large ones. */
static void corrupt(void *table, size_t bytes, uint64_t *rng)
{
    const size_t at = draw(rng) % (bytes / 4) * 4;
    const uint32_t word = draw(rng) % 4 != 0 ? draw(rng) % 9 - 3 : draw(rng) << 1 | draw(rng) % 2;

    memcpy((char *)table + at, &word, sizeof word);
}

/* The verifier is also for schedules that no builder made: whatever the tables hold, it answers. */
static void garbage_is_answered(void **state)
{
    const uint64_t seed = 7;
    uint64_t rng = seed;
    int rejected = 0, accepted = 0;

    (void)state;
    print_message("seed %d\n", (int)seed);
    for (int i = 0; i < 20000; i++) {
        struct plan plan;
        struct hkt_verify_report report;

        if (i % 3 == 0)
            make_ring(&plan, 4);
        else if (i % 3 == 1)
            make_direct(&plan, 4);
        else
            make_write(&plan);
        for (uint32_t k = draw(&rng) % 3 + 1; k > 0; k--) {
            const int r = (int)(draw(&rng) % (uint32_t)plan.nranks);
            struct hkt__sched *sched = &plan.sched[r];

            if (draw(&rng) % 3 == 0)
                corrupt(sched->steps, (size_t)sched->nsteps * sizeof *sched->steps, &rng);
            else if (draw(&rng) % 2 == 0)
                corrupt(sched->args, (size_t)ARGS_MAX * sizeof *sched->args, &rng);
            else
                corrupt(sched->deps, (size_t)ARGS_MAX * sizeof *sched->deps, &rng);
        }
        const enum hkt_status rc = hkt__verify(plan.list, plan.nranks, i % 2 ? -1 : 0, &report);

        assert_true(rc == HKT_OK || rc == HKT_ERR_BUG);
        accepted += rc == HKT_OK;
        rejected += rc == HKT_ERR_BUG;
    }
    assert_true(rejected > 1000 && accepted > 100); /* both ways were taken */
}

/* --- out of memory --- */

static void every_failed_allocation_is_reported(void **state)
{
    struct plan plan;
    int64_t k = 0;
    enum hkt_status rc;

    (void)state;
    for (int which = 0; which < 3; which++) {
        struct hkt_verify_report report = { .nranks = 77 };

        if (which == 0)
            make_direct(&plan, 4);
        else if (which == 1)
            make_barrier(&plan);
        else
            make_ring(&plan, 4);
        if (which == 2)
            step_of(&plan, 2, 9)->dep_count = 0; /* ordered round the ring only: the full search must run */
        k = 0;
        do {
            hkt__mem_fail_at(++k);
            rc = hkt__verify(plan.list, plan.nranks, -1, &report);
            hkt__mem_fail_at(0);
            assert_true(k < 1000);
            if (rc == HKT_ERR_NOMEM)
                assert_int_equal(report.nranks, 77);
        } while (rc == HKT_ERR_NOMEM);
        assert_int_equal(rc, HKT_OK);
        assert_true(k > 20); /* the walk has seen the arrays of all stages */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_schedules_pass),
        cmocka_unit_test(one_rank_alone),
        cmocka_unit_test(schedules_that_do_not_belong_together_are_invalid),
        cmocka_unit_test(malformed_steps_are_rejected),
        cmocka_unit_test(malformed_operands_are_rejected),
        cmocka_unit_test(unmatched_messages_are_rejected),
        cmocka_unit_test(scratch_read_as_another_size_is_rejected),
        cmocka_unit_test(fused_hints_are_checked),
        cmocka_unit_test(deadlock_is_found_and_told),
        cmocka_unit_test(wrong_results_are_rejected),
        cmocka_unit_test(a_missing_dependency_is_a_race),
        cmocka_unit_test(two_writes_without_order_are_a_race),
        cmocka_unit_test(a_send_tells_nothing_about_its_receiver),
        cmocka_unit_test(order_through_other_ranks_counts),
        cmocka_unit_test(remote_memory_must_be_granted_and_handed_back),
        cmocka_unit_test(different_association_is_rejected),
        cmocka_unit_test(garbage_is_answered),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
