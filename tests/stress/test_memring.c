/* Stress of the ring: two threads, millions of frames of random sizes, every byte and every stamp checked; rings of two,
 * eight and 64 slots, with four lines each, also across the wrap of the frame numbers. Meant to be run under ThreadSanitizer too, where the frames
 * are fewer. What could break: an order of stores that publishes a frame before its payload, or frees a slot before its
 * last read. Output is TAP. */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "transport/memring.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define FRAMES 100000
#else
#define FRAMES 1000000
#endif

enum { SLOT_BYTES = 2048, SLOTS_MAX = 64, LINES_PER_SLOT = 4, LINES_MAX = SLOTS_MAX * LINES_PER_SLOT };

struct job {
    struct hkt__ring_mem mem;
    uint32_t first;      /* frames "already sent" */
    uint64_t seed;
    uint64_t nbad;       /* the consumer's verdict */
};

static struct hkt__ring_line lines[LINES_MAX];
static struct hkt__ring_count count;
static _Alignas(64) unsigned char small[LINES_MAX * HKT__RING_SMALL], data[SLOTS_MAX * SLOT_BYTES];

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Mostly inline, now and then beside the line, seldom in a slot. */
static size_t frame_bytes(uint64_t draw)
{
    const uint64_t bound = draw % 8 != 0 ? HKT__RING_INLINE : draw % 64 != 0 ? HKT__RING_SMALL : SLOT_BYTES;

    return draw / 64 % (bound + 1);
}

static void *produce(void *arg)
{
    struct job *job = arg;
    struct hkt__ring_tx tx;
    uint64_t state = job->seed;

    hkt__ring_tx_init(&tx, &job->mem);
    tx.sent = tx.seen = job->first;
    for (uint64_t n = 0; n < FRAMES; n++) {
        const uint64_t draw = next(&state);
        const size_t bytes = frame_bytes(draw);
        const struct hkt__stamp stamp = { .op_seq = (uint32_t)n, .count = draw };
        unsigned char payload[HKT__RING_SMALL];
        struct hkt__room room = { 0 };

        if (bytes <= HKT__RING_SMALL && draw >> 55 & 1) {
            memset(payload, (int)(draw >> 56), bytes);
            while (hkt__ring_send(&tx, payload, bytes, &stamp) == HKT_AGAIN)
                sched_yield();
            continue;
        }
        while (hkt__ring_room(&tx, bytes, &room) == HKT_AGAIN)
            sched_yield();
        memset(room.data, (int)(draw >> 56), room.bytes);
        hkt__ring_publish(&tx, bytes, &stamp);
    }
    return NULL;
}

static void *consume(void *arg)
{
    struct job *job = arg;
    struct hkt__ring_rx rx;
    uint64_t state = job->seed;

    hkt__ring_rx_init(&rx, &job->mem);
    rx.taken = job->first;
    for (uint64_t n = 0; n < FRAMES; n++) {
        const uint64_t draw = next(&state);
        struct hkt__view view = { 0 };
        enum hkt_status rc;

        while ((rc = hkt__ring_peek(&rx, &view)) == HKT_AGAIN)
            sched_yield();
        job->nbad += rc != HKT_OK || view.bytes != frame_bytes(draw) || view.stamp.op_seq != (uint32_t)n ||
                     view.stamp.count != draw;
        if (rc != HKT_OK)
            break;
        for (size_t i = 0; i < view.bytes; i++)
            job->nbad += ((const unsigned char *)view.data)[i] != draw >> 56;
        hkt__ring_release(&rx);
    }
    return NULL;
}

static uint64_t run(uint32_t nslots, uint32_t first, uint64_t seed)
{
    const uint32_t nlines = nslots * LINES_PER_SLOT;
    struct job job = { .mem = { .lines = lines, .small = small, .data = data, .count = &count, .nslots = nslots,
                                .nlines = nlines, .slot_bytes = SLOT_BYTES },
                       .first = first, .seed = seed };
    pthread_t threads[2];

    /* As `first` frames would have left it. */
    for (uint32_t n = first - nlines + 1; n != first + 1; n++)
        atomic_store_explicit(&lines[(n - 1) & (nlines - 1)].seq, first == 0 ? 0 : n, memory_order_relaxed);
    atomic_store_explicit(&count.taken, first, memory_order_relaxed);
    if (pthread_create(&threads[0], NULL, produce, &job) != 0 || pthread_create(&threads[1], NULL, consume, &job) != 0)
        abort();
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return job.nbad;
}

int main(void)
{
    static const uint32_t slots[] = { 2, 8, 64 }, firsts[] = { 0, UINT32_MAX - FRAMES / 2 };
    const uint64_t seed = 0x9e3779b97f4a7c15u;
    int nrun = 0, nfailed = 0;

    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            const uint64_t nbad = run(slots[i], firsts[k], seed + (uint64_t)nrun);

            nrun++;
            nfailed += nbad != 0;
            printf("%s %d ring of %u slots from frame %u: %d frames, %llu wrong (seed %llu)\n", nbad == 0 ? "ok" : "not ok",
                   nrun, slots[i], firsts[k], FRAMES, (unsigned long long)nbad, (unsigned long long)(seed + (uint64_t)nrun - 1));
        }
    printf("1..%d\n", nrun);
    return nfailed > 0;
}
