/* The flight recorder: a ring of the last operations of a communicator, always on. One writer, the thread that runs the
 * operations; hkt_comm_dump may read it from another thread and then sees each record as it was at some moment. */
#ifndef HOCKET_COMM_RECORDER_H
#define HOCKET_COMM_RECORDER_H

#include <stdint.h>
#include <stdio.h>

#include "transport/transport.h"

enum hkt__record_state { HKT__RECORD_FREE, HKT__RECORD_RUNNING, HKT__RECORD_DONE, HKT__RECORD_FAILED };

struct hkt__record {
    struct hkt__stamp stamp;
    const char *algo;
    uint64_t started, ended;  /* ticks */
    int32_t peer;             /* point-to-point; -1 */
    int32_t status;
    uint8_t state;
};

struct hkt__recorder {
    struct hkt__record *ring;
    uint32_t capacity;        /* power of two */
    uint64_t written;
    uint64_t finished;
    uint64_t origin;          /* ticks at creation */
};

HKT_NODISCARD enum hkt_status hkt__recorder_init(struct hkt__recorder *recorder, int64_t capacity);
void hkt__recorder_fini(struct hkt__recorder *recorder);
/** Begin a record; the pointer is good until capacity more operations have begun. */
struct hkt__record *hkt__recorder_begin(struct hkt__recorder *recorder, const struct hkt__stamp *stamp,
                                        const char *algo, int peer);
void hkt__recorder_end(struct hkt__recorder *recorder, struct hkt__record *record, enum hkt_status status);

#endif
