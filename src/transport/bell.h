/* A doorbell: how a rank that sleeps is woken by memory that peers write.
 *
 * One bell per domain and rank, in the memory of the rank that sleeps on it (the owner: one thread at a time).
 *  `asleep`  written by the owner (what it waits for) and cleared by whoever wakes it.
 *  `word`    the futex; anyone adds to it, nobody subtracts. The owner remembers the value it last saw (`seen`).
 *
 * The owner  sets asleep, fences, looks once more at what it waits for, then sleeps while word == seen.
 * A ringer   publishes its data, then looks at asleep; only if it is set does it clear it, add to word, and wake.
 * So a running owner costs its peers one load of a line that stays in their cache, and no fence.
 *
 * A missed wake. The ringer's load of asleep may be carried out before its own earlier store is visible, so the two can
 *  miss each other: the ringer sees asleep == 0 and the owner sees no data. That window is as short as a store buffer.
 *  It is not closed, because the fence that closes it would be paid by every frame; it is bounded, because every sleep has
 *  a timeout of a few milliseconds (hkt__tp_ops.park), after which the owner looks again. Nothing is lost but that time.
 * hkt__bell_force is exact: word != seen is remembered, whether it came before or after the owner went to sleep.
 * Wrap: word would have to be added to 2^32 times between two looks of the owner. */
#ifndef HOCKET_TRANSPORT_BELL_H
#define HOCKET_TRANSPORT_BELL_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/mem.h"

enum {
    HKT__BELL_FRAMES = 1u << 0, /* wake me when a frame arrives */
    HKT__BELL_CREDIT = 1u << 1  /* wake me when a peer frees a slot */
};

struct hkt__bell {
    _Alignas(HKT__LINE) _Atomic uint32_t asleep;
    _Atomic uint32_t word;
};
_Static_assert(sizeof(struct hkt__bell) == HKT__LINE, "a bell has a line of its own");
_Static_assert(sizeof(_Atomic uint32_t) == 4, "the kernel waits on 32 bits");

/** Wake the owner if it still sleeps. */
void hkt__bell_ring(struct hkt__bell *bell);
/** Wake the owner, or keep it from falling asleep. */
void hkt__bell_force(struct hkt__bell *bell);

/** To be called after publishing: rings when the owner sleeps for one of `reasons`. */
static inline void hkt__bell_check(struct hkt__bell *bell, uint32_t reasons)
{
    /* Relaxed: a stale 0 is the missed wake above; a stale 1 costs a system call. */
    if (__builtin_expect(atomic_load_explicit(&bell->asleep, memory_order_relaxed) & reasons, 0))
        hkt__bell_ring(bell);
}

/** Owner: announce the intention to sleep. Everything looked at afterwards is newer than the announcement. */
void hkt__bell_lie_down(struct hkt__bell *bell, uint32_t reasons);
/** Owner: sleep while word == *seen, at most timeout_ns. Early return is normal. */
void hkt__bell_sleep(struct hkt__bell *bell, uint32_t seen, int64_t timeout_ns);
/** Owner: no longer asleep; returns the word to compare with next time. */
uint32_t hkt__bell_get_up(struct hkt__bell *bell);

#endif
