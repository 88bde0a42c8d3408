/* When a rank computed, communicated and waited: always the sums of waiting by kind of parallelism, and while recording is on
 * every span, for a picture (docs/parallelism.md, Traces).
 *
 * Communication is exposed while the rank's own thread stands still for it: during calls that block, and waiting for what a
 * stream has not done yet. Waiting for a slower peer is a part of it.
 *
 * One thread uses a timeline: the one that computes. What a stream does is seen through events recorded around it, whose times
 * are read when the stream is idle. */
#ifndef HOCKET_PARALLEL_TIMELINE_H
#define HOCKET_PARALLEL_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "hocket/stream.h"

/* X(name, text) */
#define HKT__TRAFFIC_TABLE(X)                                                                                          \
    X(DP, "dp") /* gradients and parameters of replicas and shards */                                                  \
    X(TP, "tp") /* inside a layer */                                                                                   \
    X(SP, "sp") /* the same, with the sequence cut */                                                                  \
    X(PP, "pp") /* between stages */                                                                                   \
    X(EP, "ep") /* tokens to experts and back */                                                                       \
    X(SCALARS, "scalars") /* losses, counts and the norm, over all ranks */

enum hkt__traffic_axis {
#define HKT__TRAFFIC_ENUM(name, text) HKT__TRAFFIC_##name,
    HKT__TRAFFIC_TABLE(HKT__TRAFFIC_ENUM)
#undef HKT__TRAFFIC_ENUM
        HKT__TRAFFIC_COUNT
};

enum hkt__span_kind {
    HKT__SPAN_COMPUTE,
    HKT__SPAN_CALL,   /* communication in the computing thread */
    HKT__SPAN_WAIT,   /* for communication on a stream */
    HKT__SPAN_STREAM  /* communication on a stream */
};

#define HKT__SPANS_MAX 1000000 /* further ones are counted, not kept */

struct hkt__span {
    int64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
    const char *name;         /* a constant */
    int64_t number;           /* micro-batch, layer, or bytes of communication */
    enum hkt__span_kind kind;
    enum hkt__traffic_axis axis; /* of communication */
};

/** A span whose stream is not there yet. */
struct hkt__span_pending {
    struct hkt__span span;
    struct hkt_event *begin, *end; /* kept from step to step */
};

struct hkt__timeline {
    int64_t waited_ns[HKT__TRAFFIC_COUNT]; /* exposed communication so far */
    bool is_on;                            /* spans are kept */
    struct hkt__span *spans;
    int64_t count, room, lost;
    struct hkt__span_pending *pending;
    int npending, pending_room;
};

/** A zeroed timeline is an empty one. Streams it looked at must be idle. */
void hkt__timeline_fini(struct hkt__timeline *timeline);

int64_t hkt__timeline_now(void);

/** Keep a span. Here and below a timeline of NULL keeps nothing. */
void hkt__timeline_add(struct hkt__timeline *timeline, const struct hkt__span *span);
/** Keep that this thread computed from begin_ns to now. */
void hkt__timeline_computed(struct hkt__timeline *timeline, const char *name, int64_t number, int64_t begin_ns);
/** This thread stood still for communication from begin_ns to now. */
void hkt__timeline_waited(struct hkt__timeline *timeline, enum hkt__span_kind kind, const struct hkt__span *span);

/** Before communication is put on a stream; after it, with its name, number and axis. */
void hkt__timeline_stream_begin(struct hkt__timeline *timeline, struct hkt_stream *stream);
void hkt__timeline_stream_end(struct hkt__timeline *timeline, struct hkt_stream *stream, const struct hkt__span *span);
/** Streams are idle: read when they did what. */
void hkt__timeline_settle(struct hkt__timeline *timeline);

#define HKT__TRACE_HEAD_LINES 3
#define HKT__TRACE_LINE_MAX 256 /* bytes; names are short constants */

/** Append the spans as events of the Chrome trace format, each begun by ",\n": HKT__TRACE_HEAD_LINES, then one a span. Times
 *  count from origin_ns. */
void hkt__timeline_print(const struct hkt__timeline *timeline, int rank, int64_t origin_ns, FILE *file);

/** "dp", ... */
const char *hkt__traffic_axis_name(enum hkt__traffic_axis axis);

#endif
