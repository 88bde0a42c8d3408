/* Keeping spans, and writing them down. */
#include "parallel/timeline.h"

#include <string.h>
#include <time.h>

#include "parallel/alloc.h"

#define WAIT_NS_MIN 1000 /* a shorter wait is no span: what was waited for had come */

int64_t hkt__timeline_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void hkt__timeline_fini(struct hkt__timeline *t)
{
    for (int i = 0; i < t->pending_room; i++) {
        hkt_event_destroy(t->pending[i].begin);
        hkt_event_destroy(t->pending[i].end);
    }
    hkt__parallel_free(t->pending);
    hkt__parallel_free(t->spans);
    memset(t, 0, sizeof *t);
}

/* Twice the room, or NULL. `old` is freed if it is given up for a new one. */
static void *grow(void *old, int64_t count, size_t bytes, int64_t *room)
{
    const int64_t more = *room > 0 ? 2 * *room : 256;
    void *fresh = hkt__parallel_calloc((size_t)more, bytes);

    if (fresh == NULL)
        return NULL;
    if (count > 0)
        memcpy(fresh, old, (size_t)count * bytes);
    hkt__parallel_free(old);
    *room = more;
    return fresh;
}

void hkt__timeline_add(struct hkt__timeline *t, const struct hkt__span *span)
{
    if (t == NULL || !t->is_on)
        return;
    if (t->count == t->room) {
        void *spans = t->count < HKT__SPANS_MAX ? grow(t->spans, t->count, sizeof *span, &t->room) : NULL;

        if (spans == NULL) {
            t->lost++;
            return;
        }
        t->spans = spans;
    }
    t->spans[t->count++] = *span;
}

void hkt__timeline_computed(struct hkt__timeline *t, const char *name, int64_t number, int64_t begin_ns)
{
    if (t == NULL || !t->is_on)
        return;
    const struct hkt__span span = { begin_ns, hkt__timeline_now(), name, number, HKT__SPAN_COMPUTE, HKT__TRAFFIC_DP };

    hkt__timeline_add(t, &span);
}

void hkt__timeline_waited(struct hkt__timeline *t, enum hkt__span_kind kind, const struct hkt__span *span)
{
    struct hkt__span whole = *span;

    if (t == NULL)
        return;
    whole.end_ns = hkt__timeline_now();
    whole.kind = kind;
    t->waited_ns[span->axis] += whole.end_ns - whole.begin_ns;
    if (kind == HKT__SPAN_CALL || whole.end_ns - whole.begin_ns >= WAIT_NS_MIN)
        hkt__timeline_add(t, &whole);
}

/* The next place of a pending span, with its events; NULL: there is no memory for it. */
static struct hkt__span_pending *next_pending(struct hkt__timeline *t)
{
    if (t->npending == t->pending_room) {
        int64_t room = t->pending_room;
        void *pending = grow(t->pending, t->npending, sizeof *t->pending, &room);

        if (pending == NULL)
            return NULL;
        t->pending = pending;
        t->pending_room = (int)room;
    }
    struct hkt__span_pending *next = &t->pending[t->npending];

    if ((next->begin == NULL && hkt_event_create(&next->begin) < 0)
        || (next->end == NULL && hkt_event_create(&next->end) < 0))
        return NULL;
    return next;
}

void hkt__timeline_stream_begin(struct hkt__timeline *t, struct hkt_stream *stream)
{
    if (t == NULL || !t->is_on)
        return;
    struct hkt__span_pending *next = next_pending(t);

    if (next != NULL && hkt_event_record(next->begin, stream) < 0)
        t->lost++; /* and the span shows the event's last use; the trace says that something is missing */
}

void hkt__timeline_stream_end(struct hkt__timeline *t, struct hkt_stream *stream, const struct hkt__span *span)
{
    if (t == NULL || !t->is_on)
        return;
    struct hkt__span_pending *next = next_pending(t);

    if (next == NULL || hkt_event_record(next->end, stream) < 0) {
        t->lost++;
        return;
    }
    next->span = *span;
    next->span.kind = HKT__SPAN_STREAM;
    t->npending++;
}

void hkt__timeline_settle(struct hkt__timeline *t)
{
    if (t == NULL)
        return;
    for (int i = 0; i < t->npending; i++) {
        struct hkt__span_pending *p = &t->pending[i];

        if (hkt_event_time(p->begin, &p->span.begin_ns) == HKT_OK && hkt_event_time(p->end, &p->span.end_ns) == HKT_OK)
            hkt__timeline_add(t, &p->span);
        else
            t->lost++;
    }
    t->npending = 0;
}

/* ---- the file ---- */

static void print_span(const struct hkt__span *s, int rank, int64_t origin_ns, FILE *file)
{
    static const char *const kinds[] = { "compute", "call", "wait", "stream" };
    const bool is_comm = s->kind != HKT__SPAN_COMPUTE;

    fprintf(file, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"cat\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,\"name\":\"", rank,
            s->kind == HKT__SPAN_STREAM, kinds[s->kind], (double)(s->begin_ns - origin_ns) * 1e-3,
            (double)(s->end_ns - s->begin_ns) * 1e-3);
    if (s->kind == HKT__SPAN_WAIT)
        fprintf(file, "wait for %s\",\"args\":{\"axis\":\"%s\"}}", hkt__traffic_axis_name(s->axis),
                hkt__traffic_axis_name(s->axis));
    else if (is_comm)
        fprintf(file, "%s %s\",\"args\":{\"axis\":\"%s\",\"bytes\":%lld}}", hkt__traffic_axis_name(s->axis), s->name,
                hkt__traffic_axis_name(s->axis), (long long)s->number);
    else if (s->number >= 0)
        fprintf(file, "%s %lld\"}", s->name, (long long)s->number);
    else
        fprintf(file, "%s\"}", s->name);
}

void hkt__timeline_print(const struct hkt__timeline *t, int rank, int64_t origin_ns, FILE *file)
{
    static const char *const threads[] = { "computing", "stream" };

    fprintf(file, ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\",\"lost\":%lld}}", rank,
            rank, (long long)t->lost);
    for (int i = 0; i < 2; i++)
        fprintf(file, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}", rank, i,
                threads[i]);
    for (int64_t i = 0; i < t->count; i++)
        print_span(&t->spans[i], rank, origin_ns, file);
}

const char *hkt__traffic_axis_name(enum hkt__traffic_axis axis)
{
    static const char *const names[] = {
#define TRAFFIC_NAME(name, text) text,
        HKT__TRAFFIC_TABLE(TRAFFIC_NAME)
#undef TRAFFIC_NAME
    };

    return axis < HKT__TRAFFIC_COUNT ? names[axis] : "?";
}
