/* All interleavings of a producer and a consumer on a small ring, and of a ringer and a sleeper at a doorbell.
 *
 * The code under test is included as it is, with its atomic operations replaced by ones that first hand control to a
 * scheduler; payloads are written and read in two halves with a switch between them. The scheduler replays every sequence
 * of choices (depth first, no pruning). A side that polls in vain waits until the other side has moved, so every run is
 * finite; if neither can move, that is a deadlock - a lost wake, for the doorbell - and the test fails.
 *
 * This explores sequentially consistent executions: what it proves is the protocol. That release and acquire suffice for
 * it is ThreadSanitizer's part (test_memring), and the store buffer's part in a missed wake is argued in bell.h. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static void step(void);
static long model_syscall(uint32_t *word, int op, uint32_t value, const void *timeout);

/* One thread runs at a time: plain accesses are atomic here. */
static uint32_t plain_exchange(_Atomic uint32_t *object, uint32_t value)
{
    const uint32_t old = *object;

    *object = value;
    return old;
}

static uint32_t plain_add(_Atomic uint32_t *object, uint32_t value)
{
    return plain_exchange(object, *object + value);
}

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#undef atomic_fetch_add_explicit
#define atomic_load_explicit(object, order) (step(), *(object))
#define atomic_store_explicit(object, value, order) (step(), (void)(*(object) = (value)))
#define atomic_exchange_explicit(object, value, order) (step(), plain_exchange(object, value))
#define atomic_fetch_add_explicit(object, value, order) (step(), plain_add(object, value))
#define syscall(number, word, op, value, timeout, ...) model_syscall(word, op, value, timeout)

#include "transport/bell.c"
#include "transport/memring.c"

#undef syscall

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CAN_SWITCH 0 /* sanitizers do not follow switches of stacks */
#else
#define CAN_SWITCH 1
#endif

enum { SIDES = 2, STACK_BYTES = 256 * 1024, CHOICES_MAX = 200, SLOTS = 2, LINES_MAX = 4, SLOT_BYTES = 2048 };

/* ---- the scheduler ---- */

static struct {
    ucontext_t main, sides[SIDES];
    unsigned char stacks[SIDES][STACK_BYTES];
    bool is_done[SIDES], is_waiting[SIDES], is_asleep[SIDES];
    int running;
    unsigned char choices[CHOICES_MAX];
    int nchoices, depth;   /* choices made so far in this run; how many of them were given */
    const char *defect;
} model;

static void yield(void)
{
    swapcontext(&model.sides[model.running], &model.main);
}

/* Before an access to shared memory. Whatever the other side waited for may now change. */
static void step(void)
{
    yield();
    model.is_waiting[1 - model.running] = false;
}

/* A poll in vain. */
static void wait_for_the_other(void)
{
    model.is_waiting[model.running] = true;
    yield();
}

static long model_syscall(uint32_t *word, int op, uint32_t value, const void *timeout)
{
    (void)timeout;
    step();
    if (op == FUTEX_WAKE) {
        model.is_asleep[1 - model.running] = false;
    } else if (*word == value) { /* no timeout in the model: a lost wake is a deadlock */
        model.is_asleep[model.running] = true;
        yield();
    }
    return 0;
}

static bool can_run(int side)
{
    return !model.is_done[side] && !model.is_waiting[side] && !model.is_asleep[side];
}

static int choose(void)
{
    if (!can_run(0) || !can_run(1))
        return can_run(0) ? 0 : can_run(1) ? 1 : -1;
    if (model.depth == model.nchoices) {
        if (model.nchoices == CHOICES_MAX) {
            model.defect = "more choices than planned for";
            return -1;
        }
        model.choices[model.nchoices++] = 0;
    }
    return model.choices[model.depth++];
}

/* One run of two sides along the choices given, taking side 0 beyond them. */
static void run_once(void (*const bodies[SIDES])(void))
{
    model.depth = 0;
    model.defect = NULL;
    for (int side = 0; side < SIDES; side++) {
        model.is_done[side] = model.is_waiting[side] = model.is_asleep[side] = false;
        getcontext(&model.sides[side]);
        model.sides[side].uc_stack.ss_sp = model.stacks[side];
        model.sides[side].uc_stack.ss_size = STACK_BYTES;
        model.sides[side].uc_link = &model.main;
        makecontext(&model.sides[side], bodies[side], 0);
    }
    while (!(model.is_done[0] && model.is_done[1]) && model.defect == NULL) {
        model.running = choose();
        if (model.running < 0) {
            if (model.defect == NULL)
                model.defect = "neither side can move";
            return;
        }
        swapcontext(&model.main, &model.sides[model.running]);
    }
}

/* The next sequence of choices; false after the last. */
static bool advance(void)
{
    while (model.nchoices > 0 && model.choices[model.nchoices - 1] == 1)
        model.nchoices--;
    if (model.nchoices == 0)
        return false;
    model.choices[model.nchoices - 1] = 1;
    return true;
}

static void finish(void)
{
    model.is_done[model.running] = true;
    model.is_waiting[1 - model.running] = false;
}

/* ---- the ring ---- */

struct row {
    const char *name;
    void (*bodies[SIDES])(void);
    uint32_t nlines;
    int nframes;
    size_t bytes, last_bytes; /* of the payload of all frames but the last, of the last */
    uint32_t first;           /* frames sent before */
};

static struct hkt__ring_line lines[LINES_MAX];
static struct hkt__ring_count count;
static unsigned char small[LINES_MAX * HKT__RING_SMALL], data[SLOTS * SLOT_BYTES];
static struct hkt__bell bell;
static struct hkt__ring_tx tx;
static struct hkt__ring_rx rx;
static uint32_t bell_seen;
static const struct row *row; /* what is explored */
static size_t payload_bytes(int frame);

static void reset(void)
{
    const struct hkt__ring_mem mem = { .lines = lines, .small = small, .data = data, .count = &count, .nslots = SLOTS,
                                       .nlines = row->nlines, .slot_bytes = SLOT_BYTES };
    const uint32_t first = row->first;

    memset(lines, 0, sizeof lines);
    memset(small, 0, sizeof small);
    memset(data, 0, sizeof data);
    for (uint32_t n = first - row->nlines + 1; first != 0 && n != first + 1; n++)
        lines[(n - 1) % row->nlines].seq = n;
    count.taken = first;
    memset(&bell, 0, sizeof bell);
    bell_seen = 0;
    hkt__ring_tx_init(&tx, &mem);
    hkt__ring_rx_init(&rx, &mem);
    tx.sent = tx.seen = rx.taken = first;
}

static void send(int frame)
{
    const struct hkt__stamp stamp = { .op_seq = (uint32_t)frame };
    struct hkt__room room = { 0 };

    while (hkt__ring_room(&tx, payload_bytes(frame), &room) == HKT_AGAIN)
        wait_for_the_other();
    memset(room.data, frame, room.bytes / 2);
    if (room.bytes > 0)
        step();
    memset((unsigned char *)room.data + room.bytes / 2, frame, room.bytes - room.bytes / 2);
    hkt__ring_publish(&tx, payload_bytes(frame), &stamp);
}

static bool is_all(const unsigned char *bytes, size_t number, int value)
{
    for (size_t i = 0; i < number; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

static void check_and_release(const struct hkt__view *view, int frame)
{
    const unsigned char *payload = view->data;

    if (view->bytes != payload_bytes(frame) || view->stamp.op_seq != (uint32_t)frame || !is_all(payload, view->bytes / 2, frame))
        model.defect = "a frame is wrong";
    if (view->bytes > 0)
        step();
    if (!is_all(payload, view->bytes, frame))
        model.defect = "a frame changes while it is read";
    hkt__ring_release(&rx);
}

static void producer(void)
{
    for (int frame = 1; frame <= row->nframes; frame++)
        send(frame);
    finish();
}

static void consumer(void)
{
    for (int frame = 1; frame <= row->nframes; frame++) {
        struct hkt__view view = { 0 };
        enum hkt_status rc;

        while ((rc = hkt__ring_peek(&rx, &view)) == HKT_AGAIN)
            wait_for_the_other();
        if (rc != HKT_OK)
            model.defect = "damage where there is none";
        check_and_release(&view, frame);
    }
    finish();
}

/* ---- the doorbell ---- */

static void ringer(void)
{
    for (int frame = 1; frame <= row->nframes; frame++) {
        send(frame);
        hkt__bell_check(&bell, HKT__BELL_FRAMES);
    }
    finish();
}

/* As memdom.c parks: lie down, look again, sleep, get up. */
static void sleeper(void)
{
    for (int frame = 1; frame <= row->nframes; frame++) {
        struct hkt__view view = { 0 };

        while (hkt__ring_peek(&rx, &view) == HKT_AGAIN) {
            hkt__bell_lie_down(&bell, HKT__BELL_FRAMES);
            if (!hkt__ring_has_frame(&rx))
                hkt__bell_sleep(&bell, bell_seen, 1000);
            bell_seen = hkt__bell_get_up(&bell);
        }
        check_and_release(&view, frame);
    }
    finish();
}

/* wake() of another thread, at any moment: the sleep after it, or around it, ends. */
static void waker(void)
{
    hkt__bell_force(&bell);
    finish();
}

static void sleeps_once(void)
{
    hkt__bell_lie_down(&bell, HKT__BELL_FRAMES);
    hkt__bell_sleep(&bell, bell_seen, 1000);
    bell_seen = hkt__bell_get_up(&bell);
    finish();
}

/* ---- the suite ---- */

static size_t payload_bytes(int frame)
{
    return frame < row->nframes ? row->bytes : row->last_bytes;
}

static const struct row rows[] = {
    { "ring of 2, 3 inline frames", { producer, consumer }, 2, 3, 16, 16, 0 },
    { "ring of 2, 2 small frames", { producer, consumer }, 2, 2, 40, 40, 0 },
    { "ring of 2, 3 frames in slots", { producer, consumer }, 2, 3, 1100, 1100, 0 },
    { "ring of 2, 3 frames across the wrap", { producer, consumer }, 2, 3, 16, 16, UINT32_MAX - 1 },
    { "ring of 4 and 2 slots, 3 signals before a slot", { producer, consumer }, 4, 4, 0, 1100, 0 },
    { "doorbell, 1 frame", { ringer, sleeper }, 2, 1, 16, 16, 0 },
    { "doorbell, 2 bare signals", { ringer, sleeper }, 2, 2, 0, 0, 0 },
    { "doorbell, wake", { waker, sleeps_once }, 2, 0, 0, 0, 0 },
};

static bool explore(const struct row *which, long *out_nruns)
{
    model.nchoices = 0;
    row = which;
    *out_nruns = 0;
    do {
        reset();
        run_once(row->bodies);
        ++*out_nruns;
        if (model.defect != NULL) {
            printf("# %s, after the choices", model.defect);
            for (int i = 0; i < model.depth; i++)
                printf(" %d", model.choices[i]);
            printf("\n");
            return false;
        }
    } while (advance());
    return true;
}

int main(void)
{
    int nfailed = 0;
    const int nrows = (int)(sizeof rows / sizeof rows[0]);

    if (!CAN_SWITCH) {
        printf("switching stacks is not for sanitizers\n");
        return 77;
    }
    for (int i = 0; i < nrows; i++) {
        long nruns;
        const bool is_ok = explore(&rows[i], &nruns);

        nfailed += !is_ok;
        printf("%s %d %s: %ld interleavings\n", is_ok ? "ok" : "not ok", i + 1, rows[i].name, nruns);
        fflush(stdout);
    }
    printf("1..%d\n", nrows);
    return nfailed > 0;
}
