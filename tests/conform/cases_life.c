/* Life of domains: opening and closing many, windows, sleeping, death. What could break: memory or descriptors that pile up;
 * memory given to a new domain while a peer still writes for the old one; a sleeper nobody wakes; a survivor that crashes
 * with its peer. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "cases.h"

static long resident_kib(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    long kib = -1;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Rss: %ld", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib;
}

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    RIG_CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* A round trip with a message large enough to touch memory. */
static void exchange_message(struct rig_dom *dom, uint64_t number, size_t bytes)
{
    const int peer = 1 - dom->rank->rank;
    struct transfer out = { .chan = dom->tx[peer][0], .number = number, .bytes = bytes };
    struct transfer in = { .chan = dom->rx[peer][0], .number = number, .bytes = bytes };

    transfer_finish(dom, &out, &in);
}

/* Hundreds of domains, one after the other and some at a time, leave nothing behind. */
void case_many_domains(struct rig_rank *rank, const void *arg)
{
    enum { ALIVE = 4, WINDOW = 256 * 1024 };
    const int count = *(const int *)arg;
    struct rig_dom *doms = calloc(ALIVE, sizeof *doms);
    long early_kib = 0;
    int early_files = 0;

    RIG_CHECK(doms != NULL);
    for (int i = 0; i < count + ALIVE; i++) {
        struct rig_dom *dom = &doms[i % ALIVE];

        if (i >= ALIVE)
            rig_dom_close(dom);
        if (i >= count)
            continue;
        rig_dom_open(rank, 1, WINDOW, dom);
        exchange_message(dom, (uint64_t)i, 40000);
        if (rank->caps.flags & HKT__TP_MEMORY) {
            unsigned char *window = dom->dom->ops->window(dom->dom, rank->rank);

            for (size_t at = 0; at < WINDOW; at += 512)
                RIG_EQUAL(window[at], 0); /* memory that was used before comes back clean */
            memset(window, 0x5a, WINDOW);
        }
        rig_barrier(rank);
        if (i == count / 4) {
            early_kib = resident_kib();
            early_files = open_files();
        }
    }
    /* A leak of one window a domain would be 256 KiB * 3/4 count; half of that is generous, where it is more than libraries
     * below us take for their pools (UCX: 9 MiB seen). Sanitizers keep freed memory for a while, and shadows of it: there
     * the heap's own leak check, and test_transport, must do. */
    if (!rig_is_sanitized() && count >= 200 && resident_kib() - early_kib > (long)count * 256 * 3 / 8)
        rig_fail(__FILE__, __LINE__, "memory grows with the number of domains: %ld KiB, then %ld KiB", early_kib,
                 resident_kib());
    RIG_CHECK(open_files() <= early_files + 8); /* other threads may be looking, too; a leak would be one a domain */
    rig_barrier(rank);
    free(doms);
}

/* What is written to a peer's window before a frame is seen after the frame; and nobody else's window changes. */
void case_window(struct rig_rank *rank, const void *arg)
{
    enum { WINDOW = 20000 };
    struct rig_dom dom;

    (void)arg;
    rig_dom_open(rank, 1, WINDOW, &dom);
    const int to = (rank->rank + 1) % rank->nranks, from = (rank->rank + rank->nranks - 1) % rank->nranks;
    unsigned char *own = dom.dom->ops->window(dom.dom, rank->rank), *next = dom.dom->ops->window(dom.dom, to);

    RIG_CHECK(own != NULL && next != NULL && own != next && (uintptr_t)own % 64 == 0);
    for (uint64_t round = 0; round < 300; round++) {
        struct transfer signal = { .chan = dom.tx[to][0], .number = round }, wait = { .chan = dom.rx[from][0], .number = round };
        struct transfer thanks = { .chan = dom.tx[from][0], .number = round }, done = { .chan = dom.rx[to][0], .number = round };

        pattern_fill(next, round * 16 + (uint64_t)rank->rank, 0, WINDOW); /* the peer has thanked for the last one */
        transfer_finish(&dom, &signal, &wait);
        RIG_EQUAL(pattern_check(own, round * 16 + (uint64_t)from, 0, WINDOW), (size_t)WINDOW);
        transfer_finish(&dom, &thanks, &done);
    }
    rig_barrier(rank);
    rig_dom_close(&dom);
}

static void nap_ms(long ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

/* Sleep for a second at most; true: it was not cut short. */
static bool park_is_long(struct rig_dom *dom)
{
    const int64_t begin_ms = rig_now_ms();

    dom->dom->ops->park(dom->dom, 1000000000);
    return rig_now_ms() - begin_ms >= 1000;
}

/* A sleeper is woken by a frame, and by credit. Each sleep would otherwise last to its end; a rare miss is within the
 * contract. */
void case_park_wakes(struct rig_rank *rank, const void *arg)
{
    const uint64_t rounds = 60 / (uint64_t)rig_thinning(), large = 40 / (uint64_t)rig_thinning();
    uint64_t nlong = 0;
    struct rig_dom dom;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    for (uint64_t number = 0; number < rounds; number++) {
        const bool is_sleeper = (uint64_t)rank->rank == number % 2;
        struct transfer out = { .chan = dom.tx[1 - rank->rank][0], .number = number, .bytes = 24 };
        struct transfer in = { .chan = dom.rx[1 - rank->rank][0], .number = number, .bytes = 24 };

        if (is_sleeper) {
            while (!transfer_receive(&in))
                nlong += park_is_long(&dom);
        } else {
            nap_ms(2); /* long enough, as a rule, for the other to have fallen asleep */
            transfer_finish(&dom, &out, NULL);
        }
    }
    rig_barrier(rank);
    if (rank->rank == 0) { /* credit: far more than the buffers hold, with sleeps between */
        for (uint64_t number = 0; number < large; number++) {
            struct transfer out = { .chan = dom.tx[1][0], .number = number, .bytes = 1 << 20 };

            while (!out.is_done)
                if (!transfer_send(&out))
                    nlong += park_is_long(&dom);
        }
    } else {
        for (uint64_t number = 0; number < large; number++) {
            struct transfer in = { .chan = dom.rx[0][0], .number = number, .bytes = 1 << 20 };

            if (number % 16 == 0)
                nap_ms(2);
            while (!in.is_done)
                if (!transfer_receive(&in))
                    nlong += park_is_long(&dom);
        }
    }
    rig_barrier(rank);
    RIG_CHECK(nlong < rounds / 4); /* of at least rounds / 2 */
    rig_dom_close(&dom);
}

static void *wake_later(void *arg)
{
    struct rig_dom *dom = arg;

    nap_ms(5);
    dom->dom->ops->wake(dom->dom);
    return NULL;
}

/* wake() ends a sleep, also one that begins after it. */
void case_wake(struct rig_rank *rank, const void *arg)
{
    const int64_t start_ms = rig_now_ms();
    struct rig_dom dom;

    (void)arg;
    rig_dom_open(rank, 1, 0, &dom);
    for (int round = 0; round < 5; round++) {
        pthread_t waker;

        RIG_CHECK(pthread_create(&waker, NULL, wake_later, &dom) == 0);
        dom.dom->ops->park(dom.dom, INT64_C(30000000000));
        pthread_join(waker, NULL);
        dom.dom->ops->park(dom.dom, 1); /* swallow a wake that came before the first park */
    }
    dom.dom->ops->wake(dom.dom);
    dom.dom->ops->park(dom.dom, INT64_C(30000000000));
    RIG_CHECK(rig_now_ms() - start_ms < 30000);
    rig_barrier(rank);
    rig_dom_close(&dom);
}

/* The last rank is killed while it and rank 0 stream to each other: at its 50th message. The survivor may get PEER_LOST or,
 * for as long as it waits, nothing more; it neither crashes nor reads nonsense, and can close. The others only look on. */
void case_peer_dies(struct rig_rank *rank, const void *arg)
{
    enum { MESSAGES = 50, AHEAD = 20, QUIET_MS = 300 };
    const int victim = rank->nranks - 1, peer = rank->rank == victim ? 0 : victim;
    const bool is_looking_on = rank->rank != 0 && rank->rank != victim;
    struct rig_dom dom;
    uint64_t sent = 0, received = 0;

    (void)arg;
    rig_dom_open(rank, 1, 4096, &dom);
    int64_t moved_ms = rig_now_ms();
    struct transfer out = { .chan = dom.tx[peer][0], .bytes = 5000, .may_fail = true };
    struct transfer in = { .chan = dom.rx[peer][0], .bytes = 5000, .may_fail = true };

    while (!is_looking_on && out.status == HKT_OK && in.status == HKT_OK) {
        /* Rank 0 sends as much as it gets, or the other could be gone before rank 0 looks. */
        bool is_moving = (rank->rank != 0 || sent < received + AHEAD) && transfer_send(&out);

        is_moving |= transfer_receive(&in);
        if (out.is_done)
            out = (struct transfer){ .chan = out.chan, .number = ++sent, .bytes = 5000, .may_fail = true };
        if (in.is_done)
            in = (struct transfer){ .chan = in.chan, .number = ++received, .bytes = 5000, .may_fail = true };
        if (is_moving)
            moved_ms = rig_now_ms();
        else
            dom.dom->ops->park(dom.dom, 1000000);
        if (rank->rank == victim && received >= MESSAGES)
            raise(SIGKILL);
        if (rank->rank == 0 && sent >= MESSAGES && received > 0 && rig_now_ms() - moved_ms > QUIET_MS)
            break;
    }
    if (rank->rank == victim)
        raise(SIGKILL); /* rank 0 took it for dead */
    RIG_CHECK(out.status == HKT_OK || out.status == HKT_ERR_PEER_LOST);
    RIG_CHECK(in.status == HKT_OK || in.status == HKT_ERR_PEER_LOST);
    RIG_CHECK(is_looking_on || received >= 1);
    rig_dom_close(&dom);
    transfer_drop(&in);
}

struct two_threads_arg {
    struct rig_dom *dom;
    int count;
};

static void *run_domain(void *data)
{
    struct two_threads_arg *arg = data;

    for (int i = 0; i < arg->count; i++)
        exchange_message(arg->dom, (uint64_t)i, (size_t)(i * 37 % 9000));
    return NULL;
}

/* Two threads of each rank use a domain each, at the same time. */
void case_two_threads(struct rig_rank *rank, const void *arg)
{
    struct rig_dom doms[2];
    struct two_threads_arg args[2];
    pthread_t other;

    rig_dom_open(rank, 1, 0, &doms[0]);
    rig_dom_open(rank, 1, 0, &doms[1]);
    for (int i = 0; i < 2; i++)
        args[i] = (struct two_threads_arg){ .dom = &doms[i], .count = *(const int *)arg };
    RIG_CHECK(pthread_create(&other, NULL, run_domain, &args[1]) == 0);
    run_domain(&args[0]);
    pthread_join(other, NULL);
    rig_barrier(rank);
    rig_dom_close(&doms[0]);
    rig_dom_close(&doms[1]);
}

/* A rank that has received its last frame closes at once and opens the next domain, while its peer is still at the end of
 * the old one; what the peer still does there must not reach the new one. No barrier between: only the opening's exchange. */
void case_early_close(struct rig_rank *rank, const void *arg)
{
    const int count = *(const int *)arg;
    const int peer = 1 - rank->rank;

    for (int i = 0; i < count; i++) {
        struct rig_dom dom;
        struct transfer out = { .number = (uint64_t)i, .bytes = (size_t)(i * 977 % 70000) };
        struct transfer in = { .number = (uint64_t)i, .bytes = (size_t)(i * 977 % 70000) };

        rig_dom_open(rank, 1, 0, &dom);
        out.chan = dom.tx[peer][0];
        in.chan = dom.rx[peer][0];
        /* One way only in turn, so that one side ends before the other. */
        if (rank->rank == i % 2)
            transfer_finish(&dom, &out, NULL);
        else
            transfer_finish(&dom, NULL, &in);
        rig_dom_close(&dom);
    }
}

/* The last rank leaves when its channels are open, and the others see that before they open theirs to each other: asking for
 * all channels, as often as one of them is still opening, must not fail for what became of another one. */
void case_leaves_early(struct rig_rank *rank, const void *arg)
{
    enum { LOOK_MS = 100 };
    const int last = rank->nranks - 1;
    struct rig_dom dom;

    (void)arg;
    rig_dom_join(rank, 1, 0, &dom);
    rig_chans_open(&dom, rank->rank == last ? 0 : last, rank->nranks);
    rig_barrier(rank);
    if (rank->rank == last)
        rig_dom_close(&dom);
    rig_barrier(rank);
    const int64_t end_ms = rig_now_ms() + LOOK_MS; /* shared memory never tells */

    if (rank->rank != last) {
        struct hkt__view view;

        while (dom.rx[last][0]->ops->rx_begin(dom.rx[last][0], &view) == HKT_AGAIN && rig_now_ms() < end_ms)
            dom.dom->ops->park(dom.dom, 1000000);
        rig_chans_open(&dom, 0, rank->nranks);
        exchange_message(&dom, 1, 5000);
    }
    rig_barrier(rank);
    if (rank->rank != last)
        rig_dom_close(&dom);
}
