/* A ring of slots in shared memory: one direction of one lane between two ranks. The shm and thread transports are
 * this ring; everything else about them is finding the memory.
 *
 * Layout. `nlines` lines of 64 bytes, each a frame header followed by 32 bytes of inline payload; as many places of 1 KiB
 *  for payloads that are small but not tiny; `nslots` data slots for larger ones; and one line for the consumer's count. Each
 *  kind has pages of its own, so that tiny messages touch few pages. A frame of at most 32 bytes is one cache line, hence one
 *  transfer between two cores. There are more lines than slots: slots are few so that they stay in the caches, lines many so
 *  that a sender of small frames may run ahead.
 *
 * Participants. Exactly one producer and one consumer, each a thread, in one process or in two.
 *  The producer stores to lines and data, the consumer to its count: no location has two writers, no read-modify-write.
 *  All of it lies in the consumer's arena, so that each side's stores go either to its own memory or to that of a peer which
 *  has yet to receive something.
 *
 * States of line i, with n = 1, 2, ... the number of a frame and i = (n - 1) mod nlines:
 *  free      line.seq == n - nlines (0 in the first lap), count >= n - nlines    the producer may write it
 *  full      line.seq == n, not released                                         the consumer may read it
 *  The producer moves free -> full by storing seq = n; the consumer full -> free by storing a count >= n.
 *  Its payload, if too large for the line, is in place (n - 1) mod nlines; if too large for that, in data slot
 *  (n - 1) mod nslots, which is free when count >= n - nslots.
 *
 * Credit. The consumer stores its count after each frame from a slot, but after every HKT__RING_CREDIT-th small one alone
 *  (nslots-th, if that is less): each store takes the line away from a producer that waits for it. Nobody waits for what is not
 *  told: it is less than nslots frames, so a producer that finds no room has frames that the consumer has not released.
 *
 * Happens-before.
 *  R1 (release store of seq, in seal) -> A1 (acquire load of seq, in peek): the consumer sees header, payload, and all
 *     the producer wrote before, a window of shared memory for instance.
 *  R2 (release store of count, in release) -> A2 (acquire load of count, in refresh): the consumer's reads of a slot
 *     are over before the producer writes it again.
 *  Between two refreshes the producer trusts a stale count: too small, hence safe.
 *
 * Wrap and ABA. Numbers are 32 bits and wrap. A line can only hold n or n - nlines when the consumer looks for n, which
 *  differ for any nlines < 2^31; 0 needs no special case after the first lap. Anything else in seq, or a size beyond the
 *  slot, is damage and reported as such.
 *
 * Progress. Wait-free on both sides: every call ends in a bounded number of steps. A producer killed in the middle of a
 *  frame leaves the slot free (seq is stored last).
 *
 * Attacked by tests/stress/test_memring.c (threads under tsan; all interleavings of a small ring) and tests/conform. */
#ifndef HOCKET_TRANSPORT_MEMRING_H
#define HOCKET_TRANSPORT_MEMRING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "core/mem.h"
#include "transport/transport.h"

#define HKT__RING_INLINE 32   /* largest payload that travels in the header's line */
#define HKT__RING_SMALL HKT__TP_SMALL /* largest payload that does not need a data slot */
#define HKT__RING_CREDIT 8u   /* small frames released between two stores of the count */
#define HKT__RING_ASKED 16384 /* largest payload whose successor's place is asked for ahead */
#define HKT__RING_AHEAD 2u    /* lines from the one being written to that which is asked for meanwhile */

/** One frame's header and small payload. Same order of fields as struct hkt__frame_header. */
struct hkt__ring_line {
    _Alignas(HKT__LINE) _Atomic uint32_t seq; /* written by the producer, last */
    uint32_t bytes;
    struct hkt__stamp stamp;
    unsigned char payload[HKT__RING_INLINE];
};
_Static_assert(sizeof(struct hkt__ring_line) == HKT__LINE, "a tiny frame is one cache line");

/** How many frames the consumer has released. */
struct hkt__ring_count {
    _Alignas(HKT__LINE) _Atomic uint32_t taken;
};

/** Where a ring lies, in this process's addresses. All zero in the beginning. */
struct hkt__ring_mem {
    struct hkt__ring_line *lines; /* [nlines] */
    unsigned char *small;         /* [nlines * HKT__RING_SMALL] */
    unsigned char *data;          /* [nslots * slot_bytes] */
    struct hkt__ring_count *count;
    uint32_t nslots, nlines;      /* powers of two; nslots <= nlines */
    size_t slot_bytes;
};

/** The producer's end; owned by its thread. */
struct hkt__ring_tx {
    struct hkt__ring_mem mem;
    uint32_t line_mask;
    uint32_t sent;     /* frames published */
    uint32_t seen;     /* the count when it was last looked at */
    uint32_t window;   /* frames that may be in flight, of the kind the last refresh was for */
    bool is_starved;   /* the last try found no room */
    void *room;        /* what the last try gave */
};

/** The consumer's end; owned by its thread. */
struct hkt__ring_rx {
    struct hkt__ring_mem mem;
    uint32_t line_mask, credit_mask;
    uint32_t taken;    /* frames released */
    bool is_starved;   /* the last look found no frame */
};

void hkt__ring_tx_init(struct hkt__ring_tx *tx, const struct hkt__ring_mem *mem);
void hkt__ring_rx_init(struct hkt__ring_rx *rx, const struct hkt__ring_mem *mem);

/** Look at the consumer's count again. AGAIN: `window` frames are in flight. CORRUPT: the count is impossible. */
HKT_NODISCARD enum hkt_status hkt__ring_refresh(struct hkt__ring_tx *tx, uint32_t window);
/** What a line means that does not hold the frame expected: AGAIN, or CORRUPT with the reason. */
HKT_NODISCARD enum hkt_status hkt__ring_judge(const struct hkt__ring_rx *rx, uint32_t seq, uint32_t bytes);

/** Where frame number `index` (from 0) has a payload of `bytes`. */
static inline unsigned char *hkt__ring_place(const struct hkt__ring_mem *mem, uint32_t index, size_t bytes)
{
    const uint32_t line = index & (mem->nlines - 1), slot = index & (mem->nslots - 1);

    if (bytes <= HKT__RING_INLINE)
        return mem->lines[line].payload;
    return bytes <= HKT__RING_SMALL ? mem->small + (size_t)line * HKT__RING_SMALL : mem->data + slot * mem->slot_bytes;
}

/** Room for a payload of `bytes`, or as much of it as a slot holds. AGAIN: the ring is full. */
static inline enum hkt_status hkt__ring_room(struct hkt__ring_tx *tx, size_t bytes, struct hkt__room *out_room)
{
    const uint32_t window = bytes <= HKT__RING_SMALL ? tx->mem.nlines : tx->mem.nslots;

    if (__builtin_expect(tx->sent - tx->seen >= window, 0)) {
        const enum hkt_status rc = hkt__ring_refresh(tx, window);

        if (rc != HKT_OK)
            return rc;
    }
    out_room->data = hkt__ring_place(&tx->mem, tx->sent, bytes);
    out_room->bytes = bytes < tx->mem.slot_bytes ? bytes : tx->mem.slot_bytes;
    tx->room = out_room->data;
    return HKT_OK;
}

/** Publish the frame whose payload is in its place. */
static inline void hkt__ring_seal(struct hkt__ring_tx *tx, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__ring_line *line = &tx->mem.lines[tx->sent & tx->line_mask];

    hkt__prefetch_write(&tx->mem.lines[(tx->sent + HKT__RING_AHEAD) & tx->line_mask]);
    line->bytes = (uint32_t)bytes;
    line->stamp = *stamp;
    tx->sent++;
    atomic_store_explicit(&line->seq, tx->sent, memory_order_release); /* R1: publishes the frame; pairs with A1 in peek */
}

/** Ask for where the next frame goes, if it is as long as this one: its reader has these lines from the last lap, and they
 *  come back while this frame is on its way. Nothing is written, so it does not matter whether the reader is through with
 *  them. Small ones lie one after the other, where the processor fetches ahead by itself: asked for besides, exchanges of
 *  256 bytes took 1.08 of the time. */
static inline void hkt__ring_ask(const struct hkt__ring_tx *tx, size_t bytes)
{
    const unsigned char *place = hkt__ring_place(&tx->mem, tx->sent, bytes);

    if (bytes <= HKT__RING_SMALL || bytes > HKT__RING_ASKED)
        return;
    for (size_t at = 0; at < bytes; at += HKT__LINE)
        hkt__prefetch_write(place + at);
}

/** Publish the first `bytes` bytes of the room given last. */
static inline void hkt__ring_publish(struct hkt__ring_tx *tx, size_t bytes, const struct hkt__stamp *stamp)
{
    /* A sender that asked for much and wrote little: where the payload lies follows from its size alone. */
    if (bytes <= HKT__RING_SMALL) {
        unsigned char *place = hkt__ring_place(&tx->mem, tx->sent, bytes);

        if (tx->room != place)
            memcpy(place, tx->room, bytes);
    }
    hkt__ring_seal(tx, bytes, stamp);
    hkt__ring_ask(tx, bytes);
}

/** The room, the copy and the publishing of a small frame (at most HKT__RING_SMALL bytes) in one. AGAIN: the ring is full. */
static inline enum hkt_status hkt__ring_send(struct hkt__ring_tx *tx, const void *data, size_t bytes,
                                             const struct hkt__stamp *stamp)
{
    if (__builtin_expect(tx->sent - tx->seen >= tx->mem.nlines, 0)) {
        const enum hkt_status rc = hkt__ring_refresh(tx, tx->mem.nlines);

        if (rc != HKT_OK)
            return rc;
    }
    memcpy(hkt__ring_place(&tx->mem, tx->sent, bytes), data, bytes);
    hkt__ring_seal(tx, bytes, stamp);
    return HKT_OK;
}

/** Is a frame there? What the consumer of a frame must use is hkt__ring_peek. */
static inline bool hkt__ring_has_frame(const struct hkt__ring_rx *rx)
{
    /* Relaxed: decides only whether to look properly. */
    return atomic_load_explicit(&rx->mem.lines[rx->taken & rx->line_mask].seq, memory_order_relaxed) == rx->taken + 1;
}

/** The oldest frame, in place. AGAIN: none yet. */
static inline enum hkt_status hkt__ring_peek(struct hkt__ring_rx *rx, struct hkt__view *out_view)
{
    struct hkt__ring_line *line = &rx->mem.lines[rx->taken & rx->line_mask];
    const uint32_t seq = atomic_load_explicit(&line->seq, memory_order_acquire); /* A1: pairs with R1 in seal */

    if (seq != rx->taken + 1 || __builtin_expect(line->bytes > rx->mem.slot_bytes, 0)) {
        rx->is_starved = true;
        return hkt__ring_judge(rx, seq, seq == rx->taken + 1 ? line->bytes : 0);
    }
    rx->is_starved = false;
    out_view->bytes = line->bytes;
    out_view->data = hkt__ring_place(&rx->mem, rx->taken, line->bytes);
    out_view->stamp = line->stamp;
    return HKT_OK;
}

/** Release the frame peek gave; its memory belongs to the producer from here on. True: the producer was told. */
static inline bool hkt__ring_release(struct hkt__ring_rx *rx)
{
    const bool is_small = rx->mem.lines[rx->taken & rx->line_mask].bytes <= HKT__RING_SMALL;

    rx->taken++;
    if (is_small && (rx->taken & rx->credit_mask) != 0)
        return false;
    /* R2: the reads of all frames up to this one are over; pairs with A2 in refresh */
    atomic_store_explicit(&rx->mem.count->taken, rx->taken, memory_order_release);
    return true;
}

#endif
