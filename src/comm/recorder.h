/* The flight recorder: a ring of the last operations of a communicator, always on. One writer, the thread that runs the
 * operations; others may read, at any moment.
 *
 * Fields are stored with release and loaded with acquire, which costs nothing on x86. R1: `written` counts a record when
 *   its fields stand; pairs with A1 in hkt__recorder_read. R2: a field of the record that takes over a slot is stored after
 *   `written` has reached that record's number, so who loads such a field (A2) finds the count too high afterwards, and
 *   knows that what it read is of two records. */
#ifndef HOCKET_COMM_RECORDER_H
#define HOCKET_COMM_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "transport/transport.h"

enum hkt__record_state { HKT__RECORD_FREE, HKT__RECORD_RUNNING, HKT__RECORD_DONE, HKT__RECORD_FAILED };

/** As the ring holds it. */
struct hkt__record {
    _Atomic uint32_t op_seq, call;       /* the stamp, without its crc */
    _Atomic int32_t root;
    _Atomic int32_t peer;                /* point-to-point; -1 */
    _Atomic uint64_t count;
    const char *_Atomic algo;
    _Atomic uint64_t started, ended;     /* ticks */
    _Atomic int32_t status;
    _Atomic uint8_t state;
};

struct hkt__recorder {
    struct hkt__record *ring;
    uint32_t capacity;                   /* power of two */
    _Atomic uint64_t written;
    _Atomic uint32_t entered;            /* op_seq of the newest collective */
    uint64_t finished;
    uint64_t origin;                     /* ticks at creation */
};

/** A copy of a record. */
struct hkt__recorded {
    struct hkt__stamp stamp;
    const char *algo;
    uint64_t started, ended;
    int32_t peer, status;
    enum hkt__record_state state;
};

HKT_NODISCARD enum hkt_status hkt__recorder_init(struct hkt__recorder *recorder, int64_t capacity);
void hkt__recorder_fini(struct hkt__recorder *recorder);
/** Begin a record; the pointer is good until capacity more operations have begun. */
static inline struct hkt__record *hkt__recorder_begin(struct hkt__recorder *recorder,
                                                      const struct hkt__stamp *stamp, const char *algo, int peer)
{
    /* Relaxed: only this thread counts. */
    const uint64_t index = atomic_load_explicit(&recorder->written, memory_order_relaxed);
    struct hkt__record *record = &recorder->ring[index & (recorder->capacity - 1)];

    atomic_store_explicit(&record->op_seq, stamp->op_seq, memory_order_release); /* R2, as all that follow */
    atomic_store_explicit(&record->call, stamp->call, memory_order_release);
    atomic_store_explicit(&record->root, stamp->root, memory_order_release);
    atomic_store_explicit(&record->count, stamp->count, memory_order_release);
    atomic_store_explicit(&record->algo, algo, memory_order_release);
    atomic_store_explicit(&record->peer, peer, memory_order_release);
    atomic_store_explicit(&record->started, hkt__ticks(), memory_order_release);
    atomic_store_explicit(&record->ended, 0, memory_order_release);
    atomic_store_explicit(&record->status, HKT_IN_PROGRESS, memory_order_release);
    atomic_store_explicit(&record->state, HKT__RECORD_RUNNING, memory_order_release);
    if (peer < 0)
        atomic_store_explicit(&recorder->entered, stamp->op_seq, memory_order_release);
    atomic_store_explicit(&recorder->written, index + 1, memory_order_release); /* R1 */
    return record;
}

/** is_brief: it ended as soon as it began, and is recorded so: the clock is not read again, which takes 10 ns. */
static inline void hkt__recorder_end(struct hkt__recorder *recorder, struct hkt__record *record,
                                     enum hkt_status status, bool is_brief)
{
    /* Relaxed: this thread wrote it. */
    const uint64_t ended = is_brief ? atomic_load_explicit(&record->started, memory_order_relaxed) : hkt__ticks();

    atomic_store_explicit(&record->ended, ended, memory_order_release);
    atomic_store_explicit(&record->status, status, memory_order_release);
    atomic_store_explicit(&record->state, status == HKT_OK ? HKT__RECORD_DONE : HKT__RECORD_FAILED, memory_order_release);
    recorder->finished++;
}

/** Records begun so far. Any thread, as the next ones. */
uint64_t hkt__recorder_count(const struct hkt__recorder *recorder);
/** Record number `index`, from 0; false when it does not exist or has been overwritten. */
bool hkt__recorder_read(const struct hkt__recorder *recorder, uint64_t index, struct hkt__recorded *out_record);
/** The newest collective: DONE with an unknown call if it was forgotten, its op_seq 0 if there was none. */
void hkt__recorder_newest(const struct hkt__recorder *recorder, struct hkt__recorded *out_record);
/** The collective of that number; false: not begun, or forgotten. */
bool hkt__recorder_find(const struct hkt__recorder *recorder, uint32_t op_seq, struct hkt__recorded *out_record);

#endif
