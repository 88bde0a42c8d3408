/* Host streams: FIFO queues of operations served by one worker thread each, so that communication overlaps
 * computation. The semantics are those of CUDA streams: an operation given a stream returns at once and its buffers
 * stay borrowed until the stream has passed it. A NULL stream runs the operation in the calling thread. */
#ifndef HOCKET_STREAM_H
#define HOCKET_STREAM_H

#include "hocket/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hkt_stream;
struct hkt_event;

/** Gives *out_stream, released by hkt_stream_destroy (which waits for the queue to drain; NULL is allowed). */
HKT_API HKT_NODISCARD enum hkt_status hkt_stream_create(struct hkt_stream **out_stream);
HKT_API void hkt_stream_destroy(struct hkt_stream *stream);
/** Wait until all work enqueued so far is done; returns, and clears, the first failure among it. */
HKT_API HKT_NODISCARD enum hkt_status hkt_stream_synchronize(struct hkt_stream *stream);
/** HKT_OK when idle, HKT_IN_PROGRESS when not. */
HKT_API HKT_NODISCARD enum hkt_status hkt_stream_query(struct hkt_stream *stream);

HKT_API HKT_NODISCARD enum hkt_status hkt_event_create(struct hkt_event **out_event);
HKT_API void hkt_event_destroy(struct hkt_event *event);
/** The event completes when the stream has done all enqueued before this call. Re-recording replaces. */
HKT_API HKT_NODISCARD enum hkt_status hkt_event_record(struct hkt_event *event, struct hkt_stream *stream);
/** Work enqueued on `stream` afterwards waits for the event's last record; a never recorded event is complete. */
HKT_API HKT_NODISCARD enum hkt_status hkt_stream_wait_event(struct hkt_stream *stream, struct hkt_event *event);
HKT_API HKT_NODISCARD enum hkt_status hkt_event_synchronize(struct hkt_event *event);
HKT_API HKT_NODISCARD enum hkt_status hkt_event_query(struct hkt_event *event);
/** When the event's last record was reached, in nanoseconds of CLOCK_MONOTONIC; HKT_IN_PROGRESS before that.
 *  Errors   INVALID: the event was never recorded */
HKT_API HKT_NODISCARD enum hkt_status hkt_event_time(struct hkt_event *event, int64_t *out_ns);

#ifdef __cplusplus
}
#endif
#endif
