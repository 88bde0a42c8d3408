/* What could break: a wait that never says that it is long, or says so at every turn; one that makes others' sleep its own
 * while it should only yield; a deadline that is missed because of it; a move that does not start it over; ranks that share
 * cores and do not give them to each other, or crowd on one of them; one that moves where it may not, or stays bound there; a
 * rest where somebody waits for the one that rests, or that is taken twice; a sleep on a transport by a rank that waits for
 * another one, or a long sleep where several may bring news; a rank that waits for another's further lanes and does not know for whom;
 * who waits for another thread to leave a turn, and only yields: under a real-time policy to nobody. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/comm_int.h"
#include "exec/run.h"
#include "exec/seats.h"
#include "exec/wait.h"

#define MS INT64_C(1000000)

/** Idle until the advice is no longer to poll or park. */
static enum hkt__wait_advice idle_on(struct hkt__wait *wait)
{
    for (;;) {
        const enum hkt__wait_advice advice = hkt__wait_idle(wait);

        if (advice == HKT__WAIT_PARK)
            nanosleep(&(struct timespec){.tv_nsec = (long)wait->sleep_ns}, NULL);
        else if (advice != HKT__WAIT_POLL)
            return advice;
    }
}

static void a_long_wait_tells_and_then_expires(void **state)
{
    struct hkt__wait_policy policy = {.spins = 3, .yields = 3, .timeout_ns = 900 * MS};
    enum hkt__wait_advice first = HKT__WAIT_EXPIRED;
    struct hkt__wait wait;
    int64_t begin_ns = 0;

    (void)state;
    for (int i = 0; i < 20 && first == HKT__WAIT_EXPIRED; i++) { /* a machine may stand still for longer than the wait lasts */
        hkt__wait_begin(&wait, &policy);
        begin_ns = hkt__now_ns();
        first = idle_on(&wait);
        assert_true(hkt__now_ns() - begin_ns >= 50 * MS);
    }
    assert_int_equal(first, HKT__WAIT_TELL);
    assert_int_equal(idle_on(&wait), HKT__WAIT_EXPIRED); /* telling again would come later */
    assert_true(hkt__now_ns() - begin_ns >= 900 * MS);
}

static void a_move_starts_it_over(void **state)
{
    struct hkt__wait_policy policy = {.spins = 3, .yields = 3, .timeout_ns = 20000 * MS};
    struct hkt__wait wait;

    (void)state;
    hkt__wait_begin(&wait, &policy);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(idle_on(&wait), HKT__WAIT_TELL);
        hkt__wait_moved(&wait);
    }
}

static void who_only_yields_does_not_tell(void **state)
{
    struct hkt__wait_policy policy = {.spins = 3, .yields = INT32_MAX / 2, .timeout_ns = 300 * MS};
    struct hkt__wait wait;

    (void)state;
    hkt__wait_begin(&wait, &policy);
    assert_int_equal(idle_on(&wait), HKT__WAIT_EXPIRED);
    assert_int_equal(wait.parked, 0);
}

static void ranks_yield_to_ranks_and_sleep_for_strangers(void **state)
{
    static const struct {
        struct hkt__wait_place place;
        bool spins_long, yields;
    } cases[] = {
        {{.host_ranks = 2, .cores = 2}, true, true},
        {{.host_ranks = 4, .cores = 2}, false, true},
        {{.host_ranks = 2, .cores = 2, .is_network = true}, true, true},
        {{.host_ranks = 4, .cores = 2, .is_network = true}, false, true},
        {{.host_ranks = 2, .cores = 2, .is_short = true}, true, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hkt__wait_policy policy = {.timeout_ns = 1};

        hkt__wait_policy_init(&policy, -1, -1, &cases[i].place);
        assert_int_equal(policy.spins > 10, cases[i].spins_long);
        assert_int_equal(policy.yields > 0, cases[i].yields);
        assert_int_equal(policy.spins + policy.yields < 200, cases[i].place.is_short); /* polls before it sleeps */
        assert_int_equal(policy.feels, cases[i].spins_long && cases[i].place.is_network);
        hkt__wait_policy_init(&policy, 7, 0, &cases[i].place);
        assert_int_equal(policy.spins, 7);
        assert_int_equal(policy.yields, 0);
        assert_false(policy.feels);
    }
}

/** Calls that only receive, each of which finds all there. */
static void follow(struct hkt__wait_policy *policy, int count)
{
    for (int i = 0; i < count; i++)
        assert_false(hkt__wait_follow(policy, true));
}

static void only_who_keeps_up_with_a_stream_rests(void **state)
{
    static const struct hkt__wait_place alone = {.host_ranks = 2, .cores = 2}, crowded = {.host_ranks = 4, .cores = 2},
                                        network = {.host_ranks = 2, .cores = 2, .is_network = true};
    struct hkt__wait_policy policy = {.timeout_ns = MS};
    struct hkt__wait wait;

    (void)state;
    hkt__wait_policy_init(&policy, -1, -1, &alone);
    for (int round = 0; round < 2; round++) {
        follow(&policy, HKT__WAIT_FOLLOWED);
        hkt__wait_begin(&wait, &policy);
        wait.rests = hkt__wait_follow(&policy, true);
        assert_true(wait.rests);
        assert_int_equal(hkt__wait_idle(&wait), HKT__WAIT_POLL);
        assert_false(wait.rests);
    }
    follow(&policy, HKT__WAIT_FOLLOWED); /* the wait above ended the stream */
    assert_false(hkt__wait_follow(&policy, false)); /* and so does a call that sends */
    follow(&policy, HKT__WAIT_FOLLOWED);
    hkt__wait_policy_init(&policy, -1, -1, &crowded);
    follow(&policy, 3 * HKT__WAIT_FOLLOWED);
    hkt__wait_policy_init(&policy, -1, -1, &network);
    follow(&policy, 3 * HKT__WAIT_FOLLOWED);
}

/** Who else wants the core, and until when. */
struct company {
    atomic_bool over;
    bool yields;
};

#define POLL_NS 20000 /* longer than the least that is felt, by far: two switches between threads may take less than that */

/** Keep the core, or give it back after each short while, as ranks do that wait. */
static void *want_the_core(void *arg)
{
    struct company *company = arg;
    int64_t polled_ns = hkt__now_ns();

    while (!atomic_load_explicit(&company->over, memory_order_relaxed)) {
        if (!company->yields || hkt__now_ns() - polled_ns < POLL_NS)
            continue;
        sched_yield();
        polled_ns = hkt__now_ns();
    }
    return NULL;
}

/** Wait, again and again, beside other threads on this core, until the policy is as it should be or it takes too long. */
static void wait_beside(int nthreads, bool yields, struct hkt__wait_policy *policy, bool (*is_felt)(const struct hkt__wait_policy *))
{
    static const struct hkt__wait_place place = {.host_ranks = 2, .cores = 2, .is_network = true};
    struct company company = {.yields = yields};
    const int64_t deadline_ns = hkt__now_ns() + 40000 * MS;
    cpu_set_t before, one;
    pthread_t threads[2];

    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    for (int i = 0; i < nthreads; i++) /* on the same core */
        assert_int_equal(pthread_create(&threads[i], NULL, want_the_core, &company), 0);
    *policy = (struct hkt__wait_policy){.timeout_ns = 20000 * MS};
    hkt__wait_policy_init(policy, -1, -1, &place);
    while (!is_felt(policy) && hkt__now_ns() < deadline_ns) {
        struct hkt__wait wait;

        hkt__wait_begin(&wait, policy);
        while (hkt__wait_idle(&wait) == HKT__WAIT_POLL && !is_felt(policy))
            ;
    }
    atomic_store_explicit(&company.over, true, memory_order_relaxed);
    for (int i = 0; i < nthreads; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static bool is_shared(const struct hkt__wait_policy *policy)
{
    return policy->spins < 10;
}

static bool is_shy(const struct hkt__wait_policy *policy)
{
    return policy->shy > 0;
}

static void a_wait_feels_who_else_wants_the_core(void **state)
{
    struct hkt__wait_policy policy;
    struct hkt__wait wait;

    (void)state;
    wait_beside(2, true, &policy, is_shared);
    assert_true(is_shared(&policy));
    for (int strangers = 2; strangers > 0; strangers--) { /* from one each other yield comes back at once (Linux 6.18) */
        wait_beside(strangers, false, &policy, is_shy);
        assert_true(is_shy(&policy));
        assert_false(is_shared(&policy));
    }
    for (int left = policy.shy; left > 0; left--) { /* then waits sleep at once, one after the other */
        hkt__wait_begin(&wait, &policy);
        for (int i = 0; i < wait.spins; i++)
            assert_int_equal(hkt__wait_idle(&wait), HKT__WAIT_POLL);
        assert_int_equal(hkt__wait_idle(&wait), HKT__WAIT_PARK);
        assert_int_equal(policy.shy, left - 1);
    }
}

static void the_last_of_a_full_core_moves(void **state)
{
    static const struct {
        int32_t seats[8]; /* 1 + core */
        int nranks, rank, cores, core;
    } cases[] = {
        {{1, 1, 1, 1, 1, 2, 2, 2}, 8, 4, 2, 1},
        {{1, 1, 1, 1, 1, 2, 2, 2}, 8, 3, 2, -1},  /* rank 4 does */
        {{1, 1, 1, 1, 1, 2, 2, 2}, 8, 7, 2, -1},
        {{1, 1, 1, 1, 2, 2, 2, 2}, 8, 3, 2, -1},  /* even */
        {{1, 1, 2}, 3, 1, 2, -1},                 /* as even as can be */
        {{1, 1, 1, 0}, 4, 2, 2, 1},               /* where the last is nobody knows */
        {{0, 0, 0, 0}, 4, 3, 2, -1},
        {{2, 2, 2, 2, 2, 2, 1, 4}, 8, 5, 4, 2},   /* to the emptiest */
        {{4, 4, 4, 4, 4, 4, 3, 3}, 8, 5, 4, 0},   /* of those alike the next one, round the end */
        {{8, 8, 8, 8, 1, 1, 2, 2}, 8, 3, 4, 2},   /* of those allowed */
    };
    cpu_set_t allowed;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CPU_ZERO(&allowed);
        for (int cpu = 0; cpu < cases[i].cores; cpu++)
            CPU_SET(cpu, &allowed);
        assert_int_equal(hkt__seats_pick(cases[i].seats, cases[i].nranks, cases[i].rank, cases[i].cores, &allowed), cases[i].core);
    }
    CPU_ZERO(&allowed);
    CPU_SET(0, &allowed);
    assert_int_equal(hkt__seats_pick(cases[0].seats, 8, 4, 2, &allowed), -1); /* bound to where it is */
}

/** Look as the last of four ranks that all are where this one is, until it has moved or for `limit_ns`. Tries are far between, and
 *  on a machine with other work the system may have moved it back before anybody sees where it was. */
static bool moves_away(int64_t limit_ns)
{
    static struct hkt__window_head heads[4];
    struct hkt__window_head *const windows[4] = {&heads[0], &heads[1], &heads[2], &heads[3]};
    const struct hkt__exec_env env = {.windows = windows, .nranks = 4, .rank = 3};
    const int64_t deadline_ns = hkt__now_ns() + limit_ns;
    struct hkt__seats *seats = NULL;
    bool has_moved = false;

    assert_int_equal(hkt__seats_create(&env, 2, -1, &seats), HKT_OK);
    while (!has_moved && hkt__now_ns() < deadline_ns) {
        const int64_t tried_ns = seats->moved_ns;
        const int here = sched_getcpu();

        for (int r = 0; r < 3; r++)
            atomic_store_explicit(&heads[r].seat, here + 1, memory_order_relaxed);
        hkt__seats_look(seats);
        has_moved = seats->moved_ns != tried_ns && sched_getcpu() != here;
    }
    hkt__seats_destroy(seats);
    return has_moved;
}

/** Look, put on this CPU by hand, as a rank whose home is another one, until it is there or for `limit_ns`. */
static bool goes_home(int here, int home, const cpu_set_t *allowed, int64_t limit_ns)
{
    static struct hkt__window_head head;
    struct hkt__window_head *const windows[1] = {&head};
    const struct hkt__exec_env env = {.windows = windows, .nranks = 1};
    const int64_t deadline_ns = hkt__now_ns() + limit_ns;
    struct hkt__seats *seats = NULL;
    bool is_home = false;
    cpu_set_t one;

    assert_int_equal(hkt__seats_create(&env, 2, home, &seats), HKT_OK);
    CPU_ZERO(&one);
    CPU_SET(here, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(sched_setaffinity(0, sizeof *allowed, allowed), 0);
    while (!is_home && hkt__now_ns() < deadline_ns) {
        hkt__seats_look(seats);
        is_home = sched_getcpu() == home;
    }
    hkt__seats_destroy(seats);
    return is_home;
}

static void who_moves_is_free_again_and_who_is_bound_stays(void **state)
{
    cpu_set_t before, after, one;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) > 1) {
        assert_true(moves_away(20000 * MS));
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));
        const int home = sched_getcpu();
        int here = 0;

        while (here == home || !CPU_ISSET(here, &before))
            here++;
        assert_true(goes_home(here, home, &before, 20000 * MS));
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));
        CPU_ZERO(&one);
        CPU_SET(here, &one);
        assert_false(goes_home(here, home, &one, 20 * MS)); /* bound to where it is */
        assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    }
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_false(moves_away(20 * MS)); /* some tries */
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&one, &after));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/** Which transport is all that a run waits for? Queue 0 receives from rank 0, 1 from rank 1; 2 sends to rank 1 what 0 receives. */
static void a_run_waits_for_what_could_let_it_go_on(void **state)
{
    enum { NONE = 0, OPEN = 1, MEMORY = 4, SOCKETS = 9 };
    static const unsigned char route_of[] = {MEMORY, SOCKETS};
    static const struct {
        bool open[3];
        size_t got, sent; /* of the fused pair, bytes */
        int route;
    } cases[] = {
        {{OPEN, NONE, NONE}, 0, 0, MEMORY},
        {{NONE, OPEN, NONE}, 0, 0, SOCKETS},
        {{NONE, NONE, NONE}, 0, 0, -1},
        {{OPEN, OPEN, NONE}, 0, 0, -1},
        {{OPEN, NONE, OPEN}, 64, 64, MEMORY}, /* all that came was sent */
        {{OPEN, NONE, OPEN}, 64, 32, -1},     /* there is no room for it */
        {{NONE, OPEN, OPEN}, 64, 32, SOCKETS},
    };
    struct hkt__plan_queue queues[] = {{.kind = HKT__QUEUE_RX, .peer = 0, .count = 1},
                                       {.kind = HKT__QUEUE_RX, .peer = 1, .first = 1, .count = 1},
                                       {.kind = HKT__QUEUE_TX, .peer = 1, .first = 2, .count = 1}};
    struct hkt__entry entries[] = {{.kind = HKT__RECV, .feeder = -1}, {.kind = HKT__RECV, .feeder = -1}, {.kind = HKT__SEND}};
    const struct hkt__plan plan = {.nqueues = 3, .queues = queues, .entries = entries};
    int32_t active[] = {0, 1, 2};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hkt__cursor cursors[3] = {{.open = cases[i].open[0], .done = cases[i].got, .total = 128},
                                         {.queue = 1, .open = cases[i].open[1], .total = 128},
                                         {.queue = 2, .open = cases[i].open[2], .done = cases[i].sent, .total = 128}};
        const struct hkt__run run = {.plan = &plan, .nactive = 3, .ncursors = 3, .cursors = cursors, .active = active};

        assert_int_equal(hkt__run_blocked_route(&run, route_of), cases[i].route);
    }
}

struct bed {
    struct hkt__tp_dom dom; /* first */
    int64_t slept_ns;       /* -1: not at all */
};

static void lie(struct hkt__tp_dom *dom, int64_t timeout_ns)
{
    ((struct bed *)dom)->slept_ns = timeout_ns;
}

static void who_waits_for_one_transport_sleeps_there(void **state)
{
    static const struct hkt__tp_ops ops = {.park = lie};
    static const struct {
        int ndoms, route;
        int64_t memory_ns, sockets_ns;
    } cases[] = {
        {2, -1, -1, MS / 10}, /* wakes to look at memory */
        {2, 0, MS / 10, 0},   /* the sockets send what is left over */
        {2, 1, -1, MS},
        {1, -1, MS, -1},
        {1, 0, MS, -1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bed memory = {{&ops}, -1}, sockets = {{&ops}, -1};
        struct hkt_comm comm = {.routes = {.doms = {&memory.dom}, .ndoms = cases[i].ndoms}};

        if (cases[i].ndoms > 1)
            comm.routes.doms[1] = &sockets.dom;
        hkt__comm_park(&comm, cases[i].route, MS);
        assert_int_equal(memory.slept_ns, cases[i].memory_ns);
        assert_int_equal(sockets.slept_ns, cases[i].sockets_ns);
    }
}

/** Lanes are opened one by one, and plans differ in how many they have. */
static void who_waits_for_a_connection_says_whose(void **state)
{
    struct hkt__sched *sched = NULL;
    struct hkt__cached_plan cached = {0};
    struct hkt__chan open, *tx[2 * HKT__COMM_LANES] = {0};
    const struct hkt_comm comm = {.nranks = 2, .rank = 0, .env = {.tx = tx}};

    (void)state;
    assert_int_equal(hkt__algo_build(hkt__algo_find(HKT_ALL_REDUCE, "double_tree"), 2, 0, 0, false, &sched), HKT_OK);
    assert_int_equal(hkt__plan_create(sched, false, false, &cached.plan), HKT_OK);
    for (int lane = 0; lane < 2 * sched->nlanes; lane++) {
        assert_int_equal(hkt__plans_missing(&comm, &cached, 1), lane < sched->nlanes ? 1 : -1);
        assert_int_equal(hkt__plans_missing(&comm, &cached, 2), 1);
        tx[HKT__COMM_LANES + lane] = &open;
    }
    assert_int_equal(hkt__plans_missing(&comm, &cached, 2), -1);
    hkt__plan_destroy(cached.plan);
    hkt__sched_destroy(sched);
}

struct drain {
    struct hkt__turn turn;
    _Atomic int tid, has_ended;
};

static void *drain(void *arg)
{
    struct drain *d = arg;

    atomic_store(&d->tid, gettid());
    hkt__turn_drain(&d->turn);
    atomic_store(&d->has_ended, 1);
    return NULL;
}

/** How often a thread has given its core away to sleep; yields do not count. -1: not known. */
static long sleeps_of(int tid)
{
    char path[64], line[128];
    long count = -1;

    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *file = fopen(path, "r");

    while (file != NULL && count < 0 && fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    if (file != NULL)
        fclose(file);
    return count;
}

static void who_waits_for_another_to_leave_a_turn_sleeps(void **state)
{
    struct drain d = {.tid = 0};
    const int64_t deadline_ns = hkt__now_ns() + 20000 * MS;
    pthread_t thread;

    (void)state;
    assert_int_equal(hkt__turn_init(&d.turn), HKT_OK);
    assert_int_equal(hkt__turn_take(&d.turn), 0);
    atomic_store(&d.turn.serving, 1); /* its runner has passed it on, and was stopped before it left */
    assert_int_equal(pthread_create(&thread, NULL, drain, &d), 0);
    while ((atomic_load(&d.tid) == 0 || sleeps_of(atomic_load(&d.tid)) < 10) && hkt__now_ns() < deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    const long sleeps = sleeps_of(atomic_load(&d.tid));

    assert_int_equal(atomic_load(&d.has_ended), 0);
    atomic_store(&d.turn.left, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(sleeps >= 10);
    hkt__turn_fini(&d.turn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_wait_tells_and_then_expires),
        cmocka_unit_test(a_move_starts_it_over),
        cmocka_unit_test(who_only_yields_does_not_tell),
        cmocka_unit_test(ranks_yield_to_ranks_and_sleep_for_strangers),
        cmocka_unit_test(only_who_keeps_up_with_a_stream_rests),
        cmocka_unit_test(a_wait_feels_who_else_wants_the_core),
        cmocka_unit_test(the_last_of_a_full_core_moves),
        cmocka_unit_test(who_moves_is_free_again_and_who_is_bound_stays),
        cmocka_unit_test(a_run_waits_for_what_could_let_it_go_on),
        cmocka_unit_test(who_waits_for_one_transport_sleeps_there),
        cmocka_unit_test(who_waits_for_a_connection_says_whose),
        cmocka_unit_test(who_waits_for_another_to_leave_a_turn_sleeps),
    };

    return cmocka_run_group_tests_name("wait", tests, NULL, NULL);
}
