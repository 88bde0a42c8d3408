/* What could break: a killed rank goes unnoticed, or someone else is blamed for it; an event is lost, delivered twice
 * or to its sender; a normal end looks like a death; a link that talks nonsense or stops reading stalls its
 * neighbour; an application's signal runs on the monitor's stack. */
#include "boot_ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define NRANKS 8

/* ---- processes: the parent kills, the children report what their handlers saw ---- */

struct report {
    int32_t rank, culprit, status, reporter;
    int64_t when_ns;
};

struct child {
    int rank;
    bool is_exiting;           /* its handler ends the process at once */
    bool is_forking;           /* it has a child of its own, which lives on */
    int report_fd;
};

static void child_handler(void *arg, const struct hkt__boot_event *event)
{
    const struct child *child = arg;
    const struct report report = {.rank = child->rank, .culprit = event->culprit, .status = event->status,
                                  .reporter = event->reporter, .when_ns = hkt__now_ns()};

    if (write(child->report_fd, &report, sizeof report) != sizeof report || child->is_exiting)
        _exit(0);
}

/* Meet, watch, say so, and live until the parent closes life_fd. */
static void child_main(struct child *child, const struct hkt__boot_id *id, int life_fd)
{
    const struct report ready = {.rank = child->rank, .culprit = -2};
    struct hkt__boot *boot;
    char byte;

    if (hkt__boot_meet(id, NRANKS, child->rank, 30000, &boot) != HKT_OK ||
        hkt__boot_monitor_start(boot, &(struct hkt__boot_handlers){.on_event = child_handler, .arg = child}) != HKT_OK)
        _exit(1);
    if (child->is_forking && fork() == 0) {
        hkt__boot_destroy(boot); /* not allowed, but it must do no harm */
    } else if (write(child->report_fd, &ready, sizeof ready) != sizeof ready) {
        _exit(1);
    }
    while (read(life_fd, &byte, 1) < 0 && errno == EINTR)
        ;
    _exit(0);
}

struct family {
    pid_t pids[NRANKS];
    int report_fd, life_fd;
};

static void family_start(struct family *family, int exiting, int forking)
{
    struct hkt__boot_id id = boot_id_at_free_port();
    int report[2], life[2];

    assert_int_equal(pipe(report), 0);
    assert_int_equal(pipe(life), 0);
    for (int r = 0; r < NRANKS; r++) {
        family->pids[r] = fork();
        assert_true(family->pids[r] >= 0);
        if (family->pids[r] == 0) {
            struct child child = {.rank = r, .is_exiting = r == exiting, .is_forking = r == forking,
                                  .report_fd = report[1]};

            close(report[0]);
            close(life[1]);
            child_main(&child, &id, life[0]);
        }
    }
    close(report[1]);
    close(life[0]);
    family->report_fd = report[0];
    family->life_fd = life[1];
}

/* The next report within 20 s; false: none. */
static bool family_report(const struct family *family, struct report *out_report)
{
    struct pollfd pfd = {.fd = family->report_fd, .events = POLLIN};

    return poll(&pfd, 1, 20000) == 1 && read(family->report_fd, out_report, sizeof *out_report) == sizeof *out_report;
}

static void family_wait_ready(const struct family *family)
{
    struct report report;

    for (int i = 0; i < NRANKS; i++) {
        assert_true(family_report(family, &report));
        assert_int_equal(report.culprit, -2);
    }
}

static void family_end(struct family *family)
{
    close(family->life_fd);
    close(family->report_fd);
    for (int r = 0; r < NRANKS; r++)
        assert_int_equal(waitpid(family->pids[r], NULL, 0), family->pids[r]);
}

/* Collect until each rank in `wanted` (a bit mask) has reported; its first report must blame the victim. */
static int64_t family_blames(const struct family *family, int victim, unsigned wanted)
{
    const int64_t begin_ns = hkt__now_ns();
    unsigned seen = 0;
    int64_t last_ns = begin_ns;

    while ((seen & wanted) != wanted) {
        struct report report;

        if (!family_report(family, &report))
            fail_msg("rank %d was killed; of the survivors %#x only %#x noticed", victim, wanted, seen);
        if ((seen & 1u << report.rank) != 0)
            continue;
        if (report.culprit != victim || report.status != HKT_ERR_PEER_LOST)
            fail_msg("rank %d was killed, but rank %d heard first from rank %d that rank %d is to blame (%s)", victim,
                     report.rank, report.reporter, report.culprit, hkt_status_name((enum hkt_status)report.status));
        seen |= 1u << report.rank;
        last_ns = report.when_ns > last_ns ? report.when_ns : last_ns;
    }
    return last_ns - begin_ns;
}

static void every_killed_rank_is_noticed_by_all(void **state)
{
    (void)state;
    for (int victim = 0; victim < NRANKS; victim++) {
        struct family family;

        family_start(&family, -1, -1);
        family_wait_ready(&family);
        kill(family.pids[victim], SIGKILL);
        const int64_t ns = family_blames(&family, victim, 0xffu & ~(1u << victim));

        print_message("rank %d killed: all survivors knew within %.2f ms\n", victim, (double)ns / 1e6);
        family_end(&family);
    }
}

/* Rank 3 ends its process from its handler; those behind it (rank 7) must still learn about rank 1 first. */
static void blame_passes_through_a_rank_that_ends_at_once(void **state)
{
    struct family family;

    (void)state;
    family_start(&family, 3, -1);
    family_wait_ready(&family);
    kill(family.pids[1], SIGKILL);
    (void)family_blames(&family, 1, 0xffu & ~(1u << 1));
    family_end(&family);
}

/* The victim's own forked child (a data loader, say) keeps its sockets open unless we see to it. */
static void killed_rank_is_noticed_though_its_child_lives(void **state)
{
    struct family family;

    (void)state;
    family_start(&family, -1, 1);
    family_wait_ready(&family);
    kill(family.pids[1], SIGKILL);
    (void)family_blames(&family, 1, 0xffu & ~(1u << 1));
    family_end(&family);
}

/* ---- threads ---- */

struct inbox {
    pthread_mutex_t mutex;
    int count;
    struct hkt__boot_event events[256];
    int waits, answers;        /* notes */
    struct hkt__boot_note last;
};

static void inbox_handler(void *arg, const struct hkt__boot_event *event)
{
    struct inbox *inbox = arg;

    pthread_mutex_lock(&inbox->mutex);
    if (inbox->count < 256)
        inbox->events[inbox->count] = *event;
    inbox->count++;
    pthread_mutex_unlock(&inbox->mutex);
}

static void inbox_note_handler(void *arg, const struct hkt__boot_note *note)
{
    struct inbox *inbox = arg;

    pthread_mutex_lock(&inbox->mutex);
    inbox->waits += note->kind == HKT__NOTE_WAITS;
    inbox->answers += note->kind == HKT__NOTE_ANSWERS;
    inbox->last = *note;
    pthread_mutex_unlock(&inbox->mutex);
}

static enum hkt_status inbox_watch(struct hkt__boot *boot, struct inbox *inbox)
{
    const struct hkt__boot_handlers handlers = {inbox_handler, inbox_note_handler, inbox};

    return hkt__boot_monitor_start(boot, &handlers);
}

/* Wait until it has had that many answers, at most 20 s. */
static void inbox_wait_answers(struct inbox *inbox, int count)
{
    int answers = 0;

    for (int i = 0; i < 20000 && answers < count; i++) {
        (void)poll(NULL, 0, 1);
        pthread_mutex_lock(&inbox->mutex);
        answers = inbox->answers;
        pthread_mutex_unlock(&inbox->mutex);
    }
    assert_int_equal(answers, count);
}

static int inbox_count(struct inbox *inbox)
{
    pthread_mutex_lock(&inbox->mutex);
    const int count = inbox->count;

    pthread_mutex_unlock(&inbox->mutex);
    return count;
}

/* Wait until it holds that many, at most 20 s. */
static void inbox_wait(struct inbox *inbox, int count)
{
    for (int i = 0; i < 20000 && inbox_count(inbox) < count; i++)
        (void)poll(NULL, 0, 1);
    assert_true(inbox_count(inbox) >= count);
}

struct team {
    struct boot_rank ranks[RANKS_MAX];
    struct inbox *inboxes;
    int nranks;
};

static struct team *team_start(int nranks)
{
    struct team *team = calloc(1, sizeof *team);
    const struct hkt__boot_id id = boot_id_here();

    team->nranks = nranks;
    team->inboxes = calloc((size_t)nranks, sizeof *team->inboxes);
    boot_ranks_init(team->ranks, nranks, &id);
    boot_ranks_meet(team->ranks, nranks);
    for (int r = 0; r < nranks; r++) {
        pthread_mutex_init(&team->inboxes[r].mutex, NULL);
        assert_int_equal(inbox_watch(team->ranks[r].boot, &team->inboxes[r]), HKT_OK);
    }
    return team;
}

static void team_end(struct team *team)
{
    boot_ranks_destroy(team->ranks, team->nranks);
    free(team->inboxes);
    free(team);
}

static struct hkt__boot_event event_of(int reporter, uint32_t comm_id, const char *text)
{
    struct hkt__boot_event event = {.comm_id = comm_id, .reporter = reporter, .culprit = -1,
                                    .status = HKT_ERR_ABORTED, .sys_errno = 5};

    snprintf(event.text, sizeof event.text, "%s", text);
    return event;
}

static void told_events_reach_all_others_once(void **state)
{
    static const int sizes[] = {1, 2, 3, 8, 33};

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct team *team = team_start(sizes[s]);

        for (int r = 0; r < sizes[s]; r++) {
            const struct hkt__boot_event event = event_of(r, 77, "stop\nnow");

            hkt__boot_tell(team->ranks[r].boot, &event);
            hkt__boot_tell(team->ranks[r].boot, &event); /* the same again: no news */
        }
        for (int r = 0; r < sizes[s]; r++)
            inbox_wait(&team->inboxes[r], sizes[s] - 1);
        (void)poll(NULL, 0, 20); /* room for a wrong repetition */
        for (int r = 0; r < sizes[s]; r++) {
            uint64_t from = 0;

            assert_int_equal(inbox_count(&team->inboxes[r]), sizes[s] - 1);
            for (int i = 0; i < sizes[s] - 1; i++) {
                const struct hkt__boot_event *event = &team->inboxes[r].events[i];

                from |= UINT64_C(1) << event->reporter;
                assert_int_equal(event->comm_id, 77);
                assert_int_equal(event->culprit, -1);
                assert_int_equal(event->status, HKT_ERR_ABORTED);
                assert_int_equal(event->sys_errno, 5);
                assert_string_equal(event->text, "stop?now"); /* it will be printed: one line */
            }
            assert_true(from == ((UINT64_C(1) << sizes[s]) - 1 - (UINT64_C(1) << r)));
        }
        team_end(team);
    }
}

/* ---- notes ---- */

static struct hkt__boot_note note_of(int rank, enum hkt__note_kind kind)
{
    return (struct hkt__boot_note){.kind = kind, .comm_id = 9, .rank = rank, .is_running = kind == HKT__NOTE_WAITS,
                                   .stamp = {.op_seq = 4000000000u, .call = 0x12345678, .root = -1,
                                             .count = UINT64_C(1) << 40}};
}

/* All ranks but the first wait in one call and say so over and over: the first hears of it, but not as often as it is said.
 * Answers arrive one by one. */
static void notes_reach_all_and_equal_ones_seldom(void **state)
{
    enum { NOTES = 50 };
    static const int sizes[] = {1, 2, 8, 33};

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct team *team = team_start(sizes[s]);

        for (int i = 0; i < NOTES; i++)
            for (int r = 1; r < sizes[s]; r++) {
                const struct hkt__boot_note note = note_of(r, HKT__NOTE_WAITS);

                hkt__boot_note(team->ranks[r].boot, &note);
            }
        /* Answers travel behind on the same links, so that afterwards nothing is under way. */
        for (int r = 0; r < sizes[s]; r++) {
            const struct hkt__boot_note note = note_of(r, HKT__NOTE_ANSWERS);

            hkt__boot_note(team->ranks[r].boot, &note);
        }
        for (int r = 0; r < sizes[s]; r++)
            inbox_wait_answers(&team->inboxes[r], sizes[s] - 1);
        if (sizes[s] > 1)
            assert_true(team->inboxes[0].waits > 0);
        for (int r = 0; r < sizes[s]; r++) {
            const struct hkt__boot_note *last = &team->inboxes[r].last, want = note_of(last->rank, HKT__NOTE_ANSWERS);

            assert_int_equal(inbox_count(&team->inboxes[r]), 0);
            assert_true(team->inboxes[r].waits < NOTES);
            if (sizes[s] == 1)
                continue;
            assert_true(last->rank != r && last->comm_id == want.comm_id && last->is_running == want.is_running);
            assert_true(last->stamp.op_seq == want.stamp.op_seq && last->stamp.call == want.stamp.call &&
                        last->stamp.root == want.stamp.root && last->stamp.count == want.stamp.count);
        }
        team_end(team);
    }
}

/* An abort is told and the communicator freed in one breath: the event must still go out. */
static void events_told_just_before_the_end_arrive(void **state)
{
    struct team *team = team_start(8);
    struct hkt__boot_event event = event_of(1, 5, "last words");

    (void)state;
    hkt__boot_tell(team->ranks[1].boot, &event);
    hkt__boot_destroy(team->ranks[1].boot);
    team->ranks[1].boot = NULL;
    for (int r = 0; r < 8; r++)
        if (r != 1)
            inbox_wait(&team->inboxes[r], 1);
    (void)poll(NULL, 0, 20);
    for (int r = 0; r < 8; r++)
        if (r != 1) {
            assert_int_equal(inbox_count(&team->inboxes[r]), 1);
            assert_string_equal(team->inboxes[r].events[0].text, "last words");
        }
    team_end(team);
}

/* Events before the monitor starts wait at the receiver. */
static void events_told_before_the_monitor_arrive(void **state)
{
    struct boot_rank ranks[3];
    struct inbox inbox = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    const struct hkt__boot_id id = boot_id_here();
    const struct hkt__boot_event event = event_of(1, 5, "early");

    (void)state;
    boot_ranks_init(ranks, 3, &id);
    boot_ranks_meet(ranks, 3);
    hkt__boot_tell(ranks[1].boot, &event);
    assert_int_equal(inbox_watch(ranks[0].boot, &inbox), HKT_OK);
    inbox_wait(&inbox, 1);
    assert_string_equal(inbox.events[0].text, "early");
    boot_ranks_destroy(ranks, 3);
}

static void farewell_is_no_death(void **state)
{
    struct team *team = team_start(8);
    static const int order[] = {5, 1, 0, 7, 3};

    (void)state;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        hkt__boot_destroy(team->ranks[order[i]].boot);
        team->ranks[order[i]].boot = NULL;
        (void)poll(NULL, 0, 10);
    }
    for (int r = 0; r < 8; r++)
        assert_int_equal(inbox_count(&team->inboxes[r]), 0);
    team_end(team);
}

/* Bytes on a link that are no message: the neighbour is lost as CORRUPT, everyone hears it. */
static void nonsense_on_a_link_is_corrupt(void **state)
{
    static const char *const nonsense[] = {
        "GET / HTTP/1.1\r\n\r\n",
        "hkt\xb7\xff\xff\x0a", /* longer than any message */
        "hkt\xb7\x01\x01\x01\x01\x01", /* wrong last byte of the header */
    };
    (void)state;
    for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
        struct team *team = team_start(3);
        const size_t bytes = strlen(nonsense[i]);

        /* A strlen of 7 leaves the header's last byte, zero, to the terminator. */
        assert_true(send(team->ranks[1].boot->links[HKT__PARENT].fd, nonsense[i], bytes + 1, MSG_NOSIGNAL) > 0);
        inbox_wait(&team->inboxes[0], 1);
        inbox_wait(&team->inboxes[2], 1);
        assert_int_equal(team->inboxes[0].events[0].status, HKT_ERR_CORRUPT);
        assert_int_equal(team->inboxes[0].events[0].culprit, 1);
        assert_int_equal(team->inboxes[0].events[0].reporter, 0);
        assert_int_equal(team->inboxes[2].events[0].status, HKT_ERR_CORRUPT);
        assert_int_equal(team->inboxes[2].events[0].culprit, 1);
        team_end(team);
    }
}

/* A neighbour that does not read fills its queue, not our memory and time. */
static void neighbour_that_does_not_read_is_lost(void **state)
{
    struct boot_rank ranks[2];
    struct inbox inbox = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    const struct hkt__boot_id id = boot_id_here();
    struct hkt__boot_event event = event_of(0, 0, "");

    (void)state;
    boot_ranks_init(ranks, 2, &id);
    boot_ranks_meet(ranks, 2);
    assert_int_equal(inbox_watch(ranks[0].boot, &inbox), HKT_OK);
    memset(event.text, 'x', sizeof event.text - 1);
    for (int i = 0; i < 40000 && inbox_count(&inbox) == 0; i++) {
        event.comm_id++;
        hkt__boot_tell(ranks[0].boot, &event);
    }
    inbox_wait(&inbox, 1);
    assert_int_equal(inbox.events[0].culprit, 1);
    assert_int_equal(inbox.events[0].status, HKT_ERR_PEER_LOST);
    boot_ranks_destroy(ranks, 2);
}

/* Many threads tell at once while events also pass through. */
struct teller {
    struct hkt__boot *boot;
    int reporter;
    uint32_t first;
    pthread_t thread;
};

static void *teller_main(void *arg)
{
    const struct teller *teller = arg;

    for (uint32_t i = 0; i < 10; i++) {
        const struct hkt__boot_event event = event_of(teller->reporter, teller->first + i, "many");

        hkt__boot_tell(teller->boot, &event);
    }
    return NULL;
}

static void many_threads_may_tell_at_once(void **state)
{
    struct team *team = team_start(5);
    struct teller tellers[20];

    (void)state;
    for (int i = 0; i < 20; i++) {
        tellers[i] = (struct teller){.boot = team->ranks[i / 4].boot, .reporter = i / 4, .first = (uint32_t)i * 10};
        assert_int_equal(pthread_create(&tellers[i].thread, NULL, teller_main, &tellers[i]), 0);
    }
    for (int i = 0; i < 20; i++)
        pthread_join(tellers[i].thread, NULL);
    for (int r = 0; r < 5; r++)
        inbox_wait(&team->inboxes[r], 160);
    (void)poll(NULL, 0, 20);
    for (int r = 0; r < 5; r++) {
        unsigned char seen[200] = {0};

        assert_int_equal(inbox_count(&team->inboxes[r]), 160);
        for (int i = 0; i < 160; i++)
            seen[team->inboxes[r].events[i].comm_id]++;
        for (int i = 0; i < 200; i++)
            assert_int_equal(seen[i], i / 40 != r);
    }
    team_end(team);
}

static atomic_int signal_count;

static void count_signal(int number)
{
    (void)number;
    atomic_fetch_add_explicit(&signal_count, 1, memory_order_relaxed);
}

/* With the signal blocked everywhere else, it may only run on the monitor: it must not. */
static void monitor_takes_no_signals(void **state)
{
    const struct sigaction count = {.sa_handler = count_signal};
    struct sigaction before_action;
    sigset_t usr1, before;
    const struct timespec soon = {.tv_sec = 1};

    (void)state;
    struct team *team = team_start(2);

    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigaction(SIGUSR1, &count, &before_action);
    pthread_sigmask(SIG_BLOCK, &usr1, &before);
    kill(getpid(), SIGUSR1);
    (void)poll(NULL, 0, 50);
    assert_int_equal(atomic_load_explicit(&signal_count, memory_order_relaxed), 0);
    assert_int_equal(sigtimedwait(&usr1, NULL, &soon), SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGUSR1, &before_action, NULL);
    team_end(team);
}

static void destroy_of_nothing_is_allowed(void **state)
{
    (void)state;
    hkt__boot_destroy(NULL);
}

#define BOOT_TEST(name) cmocka_unit_test_setup_teardown(name, boot_setup, boot_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOOT_TEST(every_killed_rank_is_noticed_by_all),
        BOOT_TEST(blame_passes_through_a_rank_that_ends_at_once),
        BOOT_TEST(killed_rank_is_noticed_though_its_child_lives),
        BOOT_TEST(told_events_reach_all_others_once),
        BOOT_TEST(notes_reach_all_and_equal_ones_seldom),
        BOOT_TEST(events_told_just_before_the_end_arrive),
        BOOT_TEST(events_told_before_the_monitor_arrive),
        BOOT_TEST(farewell_is_no_death),
        BOOT_TEST(nonsense_on_a_link_is_corrupt),
        BOOT_TEST(neighbour_that_does_not_read_is_lost),
        BOOT_TEST(many_threads_may_tell_at_once),
        BOOT_TEST(monitor_takes_no_signals),
        BOOT_TEST(destroy_of_nothing_is_allowed),
    };

    return cmocka_run_group_tests_name("boot_monitor", tests, NULL, NULL);
}
