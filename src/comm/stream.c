/* Host streams: a FIFO of work served by one thread, and events that mark places in it.
 *
 * Items and the copies of groups' calls are recycled, so a stream in steady use allocates nothing: it keeps as many as were
 * in flight at once. While the thread is at work a call costs a lock that nobody holds for long, and no system call; one
 * that comes when the thread sleeps wakes it, and hkt_stream_synchronize sleeps in turn. Sleepers are woken after the lock
 * is released, so that they do not wake into it. */
#include "hocket/stream.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "hocket/device.h"

#include "comm/far.h"
#include "core/clock.h"
#include "core/mem.h"

enum item_kind { ITEM_CALLS, ITEM_RECORD, ITEM_WAIT };

/** A group's calls. */
struct call_list {
    struct call_list *next;
    size_t count, capacity;
    struct hkt__call calls[];
};

struct item {
    struct item *next;
    enum item_kind kind;
    struct hkt__call call;           /* the common case: one */
    struct call_list *list;          /* a group's; NULL: `call` alone. Owned by the item */
    struct hkt_event *event;
    uint64_t generation;
};

struct hkt_stream {
    struct hkt__far_stream *far;     /* of CUDA: then all below is unused, and there is no thread */
    pthread_t thread;
    pthread_mutex_t lock;            /* guards all below */
    pthread_cond_t changed;          /* work came, or the queue drained */
    struct item *head, **tail, *spare;
    struct call_list *spare_lists;
    bool is_busy, is_ending;
    enum hkt_status status;          /* first failure since the last synchronize */
    struct hkt__error error;
};

/** Lives until it is destroyed and no stream refers to it. */
struct hkt_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, completed;    /* generations */
    int64_t completed_ns;
    int references;
};

static void event_release(struct hkt_event *event)
{
    pthread_mutex_lock(&event->lock);
    const bool last = --event->references == 0;

    pthread_mutex_unlock(&event->lock);
    if (!last)
        return;
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
    hkt__free(event);
}

static void event_complete(struct hkt_event *event, uint64_t generation)
{
    const int64_t now = hkt__now_ns();

    pthread_mutex_lock(&event->lock);
    if (event->completed < generation) {
        event->completed = generation;
        event->completed_ns = now;
    }
    pthread_mutex_unlock(&event->lock);
    pthread_cond_broadcast(&event->changed);
}

static void event_await(struct hkt_event *event, uint64_t generation)
{
    pthread_mutex_lock(&event->lock);
    while (event->completed < generation)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

static enum hkt_status run_item(struct item *item)
{
    switch (item->kind) {
    case ITEM_CALLS:
        if (item->list == NULL)
            return hkt__batch_run(&item->call, 1);
        return hkt__batch_run(item->list->calls, item->list->count);
    case ITEM_RECORD:
        event_complete(item->event, item->generation);
        return HKT_OK;
    case ITEM_WAIT:
        event_await(item->event, item->generation);
        return HKT_OK;
    }
    return HKT_OK;
}

/** With the lock held: make an item free for reuse. */
static void recycle(struct hkt_stream *stream, struct item *item)
{
    if (item->list != NULL) {
        item->list->next = stream->spare_lists;
        stream->spare_lists = item->list;
    }
    memset(item, 0, sizeof *item);
    item->next = stream->spare;
    stream->spare = item;
}

static void *serve(void *arg)
{
    struct hkt_stream *stream = arg;

    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (stream->head == NULL && !stream->is_ending)
            pthread_cond_wait(&stream->changed, &stream->lock);
        struct item *item = stream->head;

        if (item == NULL)
            break;
        stream->head = item->next;
        if (stream->head == NULL)
            stream->tail = &stream->head;
        stream->is_busy = true;
        pthread_mutex_unlock(&stream->lock);
        const enum hkt_status rc = run_item(item);

        if (item->event != NULL)
            event_release(item->event);
        pthread_mutex_lock(&stream->lock);
        if (rc < 0 && stream->status == HKT_OK) {
            stream->status = rc;
            stream->error = *hkt__error_here();
        }
        stream->is_busy = false;
        recycle(stream, item);
        if (stream->head != NULL)
            continue;
        pthread_mutex_unlock(&stream->lock);
        pthread_cond_broadcast(&stream->changed);
        pthread_mutex_lock(&stream->lock);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/** Signals belong to the program's own threads. */
static int start_thread(struct hkt_stream *stream)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int failed = pthread_create(&stream->thread, NULL, serve, stream);

    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed;
}

enum hkt_status hkt_stream_create(struct hkt_stream **out_stream)
{
    struct hkt_stream *stream;

    if (out_stream == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_stream_create: out_stream is NULL");
    stream = hkt__calloc(1, sizeof *stream);
    if (stream == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a stream");
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->tail = &stream->head;
    if (start_thread(stream) != 0) {
        pthread_cond_destroy(&stream->changed);
        pthread_mutex_destroy(&stream->lock);
        hkt__free(stream);
        return hkt__fail(HKT_ERR_SYSTEM, "cannot start a stream's thread: too many threads (ulimit -u)?");
    }
    *out_stream = stream;
    return HKT_OK;
}

/** A stream of CUDA's; takes far, also on failure. */
static enum hkt_status wrap(struct hkt__far_stream *far, struct hkt_stream **out_stream)
{
    struct hkt_stream *stream = hkt__calloc(1, sizeof *stream);

    if (stream == NULL) {
        hkt__far_stream_destroy(far);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a stream");
    }
    stream->far = far;
    *out_stream = stream;
    return HKT_OK;
}

enum hkt_status hkt_stream_from_cuda(struct hkt_stream **out_stream, void *cuda_stream)
{
    struct hkt__far_stream *far = NULL;
    enum hkt_status rc;

    if (out_stream == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_stream_from_cuda: out_stream must not be NULL");
    rc = hkt__far_stream_borrow(cuda_stream, &far);
    return rc < 0 ? rc : wrap(far, out_stream);
}

enum hkt_status hkt_device_stream_create(struct hkt_stream **out_stream, int device)
{
    struct hkt__far_stream *far = NULL;
    enum hkt_status rc;

    if (out_stream == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_device_stream_create: out_stream must not be NULL");
    rc = hkt__far_stream_create(device, &far);
    return rc < 0 ? rc : wrap(far, out_stream);
}

struct hkt__far_stream *hkt__stream_far(struct hkt_stream *stream)
{
    return stream != NULL ? stream->far : NULL;
}

void hkt_stream_destroy(struct hkt_stream *stream)
{
    if (stream == NULL)
        return;
    if (stream->far != NULL) {
        hkt__far_stream_destroy(stream->far);
        hkt__free(stream);
        return;
    }
    pthread_mutex_lock(&stream->lock);
    stream->is_ending = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    while (stream->spare != NULL) {
        struct item *item = stream->spare;

        stream->spare = item->next;
        hkt__free(item);
    }
    while (stream->spare_lists != NULL) {
        struct call_list *list = stream->spare_lists;

        stream->spare_lists = list->next;
        hkt__free(list);
    }
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    hkt__free(stream);
}

/** A blank item, with the lock held; NULL: out of memory. */
static struct item *take_item(struct hkt_stream *stream)
{
    struct item *item = stream->spare;

    if (item == NULL)
        return hkt__calloc(1, sizeof *item);
    stream->spare = item->next;
    item->next = NULL;
    return item;
}

/** A list for count calls, with the lock held; NULL: out of memory. Too small a spare one gives way to it. */
static struct call_list *take_list(struct hkt_stream *stream, size_t count)
{
    struct call_list **at = &stream->spare_lists, *list;

    while (*at != NULL && (*at)->capacity < count)
        at = &(*at)->next;
    list = *at;
    if (list != NULL) {
        *at = list->next;
        return list;
    }
    list = stream->spare_lists;
    if (list != NULL)
        stream->spare_lists = list->next;
    hkt__free(list);
    list = hkt__calloc(1, sizeof *list + count * sizeof list->calls[0]);
    if (list != NULL)
        list->capacity = count;
    return list;
}

/** Appends the item, and releases the lock. */
static void append_and_unlock(struct hkt_stream *stream, struct item *item)
{
    *stream->tail = item;
    stream->tail = &item->next;
    pthread_mutex_unlock(&stream->lock);
    pthread_cond_broadcast(&stream->changed);
}

enum hkt_status hkt__stream_enqueue(struct hkt_stream *stream, const struct hkt__call *calls, size_t count)
{
    pthread_mutex_lock(&stream->lock);
    struct item *item = take_item(stream);

    if (item != NULL && count > 1)
        item->list = take_list(stream, count);
    if (item == NULL || (count > 1 && item->list == NULL)) {
        if (item != NULL)
            recycle(stream, item);
        pthread_mutex_unlock(&stream->lock);
        hkt__fail(HKT_ERR_NOMEM, "no memory to queue %zu operations", count);
        return hkt__batch_refuse(calls, count);
    }
    item->kind = ITEM_CALLS;
    if (count > 1) {
        memcpy(item->list->calls, calls, count * sizeof calls[0]);
        item->list->count = count;
        hkt__batch_queue(item->list->calls, count);
    } else {
        item->call = calls[0];
        hkt__batch_queue(&item->call, 1);
    }
    append_and_unlock(stream, item);
    return HKT_OK;
}

enum hkt_status hkt_stream_synchronize(struct hkt_stream *stream)
{
    if (stream == NULL)
        return HKT_OK;
    if (stream->far != NULL)
        return hkt__far_stream_wait(stream->far);
    pthread_mutex_lock(&stream->lock);
    while (stream->head != NULL || stream->is_busy)
        pthread_cond_wait(&stream->changed, &stream->lock);
    const enum hkt_status rc = stream->status;

    if (rc < 0)
        *hkt__error_here() = stream->error;
    stream->status = HKT_OK;
    pthread_mutex_unlock(&stream->lock);
    return rc;
}

enum hkt_status hkt_stream_query(struct hkt_stream *stream)
{
    if (stream == NULL)
        return HKT_OK;
    if (stream->far != NULL)
        return hkt__far_stream_query(stream->far);
    pthread_mutex_lock(&stream->lock);
    const bool idle = stream->head == NULL && !stream->is_busy;

    pthread_mutex_unlock(&stream->lock);
    return idle ? HKT_OK : HKT_IN_PROGRESS;
}

enum hkt_status hkt_event_create(struct hkt_event **out_event)
{
    struct hkt_event *event;

    if (out_event == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_event_create: out_event is NULL");
    event = hkt__calloc(1, sizeof *event);
    if (event == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for an event");
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
    event->references = 1;
    *out_event = event;
    return HKT_OK;
}

void hkt_event_destroy(struct hkt_event *event)
{
    if (event != NULL)
        event_release(event);
}

/** Queue a record or a wait; the item holds a reference to the event. */
static enum hkt_status enqueue_event(struct hkt_stream *stream, struct hkt_event *event, enum item_kind kind)
{
    if (stream == NULL || event == NULL)
        return hkt__fail(HKT_ERR_INVALID, "event and stream must not be NULL: a NULL stream has nothing to mark");
    if (stream->far != NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "this event is the host's: mark places in a CUDA stream with CUDA's own");
    pthread_mutex_lock(&stream->lock);
    struct item *item = take_item(stream);

    if (item == NULL) {
        pthread_mutex_unlock(&stream->lock);
        return hkt__fail(HKT_ERR_NOMEM, "no memory to queue an event");
    }
    pthread_mutex_lock(&event->lock);
    item->kind = kind;
    item->event = event;
    item->generation = kind == ITEM_RECORD ? ++event->recorded : event->recorded;
    event->references++;
    pthread_mutex_unlock(&event->lock);
    append_and_unlock(stream, item);
    return HKT_OK;
}

enum hkt_status hkt_event_record(struct hkt_event *event, struct hkt_stream *stream)
{
    return enqueue_event(stream, event, ITEM_RECORD);
}

enum hkt_status hkt_stream_wait_event(struct hkt_stream *stream, struct hkt_event *event)
{
    return enqueue_event(stream, event, ITEM_WAIT);
}

enum hkt_status hkt_event_synchronize(struct hkt_event *event)
{
    if (event == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_event_synchronize: event is NULL");
    pthread_mutex_lock(&event->lock);
    const uint64_t generation = event->recorded;

    pthread_mutex_unlock(&event->lock);
    event_await(event, generation);
    return HKT_OK;
}

enum hkt_status hkt_event_query(struct hkt_event *event)
{
    if (event == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_event_query: event is NULL");
    pthread_mutex_lock(&event->lock);
    const bool done = event->completed >= event->recorded;

    pthread_mutex_unlock(&event->lock);
    return done ? HKT_OK : HKT_IN_PROGRESS;
}

enum hkt_status hkt_event_time(struct hkt_event *event, int64_t *out_ns)
{
    if (event == NULL || out_ns == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_event_time: event or out_ns is NULL");
    pthread_mutex_lock(&event->lock);
    const bool was_recorded = event->recorded > 0, done = event->completed >= event->recorded;
    const int64_t ns = event->completed_ns;

    pthread_mutex_unlock(&event->lock);
    if (!was_recorded)
        return hkt__fail(HKT_ERR_INVALID, "hkt_event_time: the event was never recorded, so it has no time");
    if (!done)
        return HKT_IN_PROGRESS;
    *out_ns = ns;
    return HKT_OK;
}
