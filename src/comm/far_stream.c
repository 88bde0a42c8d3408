/* Streams of CUDA as streams of hocket. A communicator's launches end by themselves or because it fails: so who waits for a
 * stream looks at the communicators that use it, and gives those up whose deadline has passed. */
#include <pthread.h>

#include "comm/far.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/settings.h"

/* All communicators with calls on streams of CUDA. A leaver waits for the lock, so that what is looked at lives. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hkt__far *users;

void hkt__far_enter(struct hkt__far *far)
{
    pthread_mutex_lock(&lock);
    far->next = users;
    users = far;
    pthread_mutex_unlock(&lock);
}

void hkt__far_leave(struct hkt__far *far)
{
    pthread_mutex_lock(&lock);
    for (struct hkt__far **link = &users; *link != NULL; link = &(*link)->next)
        if (*link == far) {
            *link = far->next;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/** Was the last launch given to the stream? */
static bool was_seen_on(struct hkt__far *far, const struct hkt__far_stream *stream)
{
    for (int i = 0; i < HKT__FAR_STREAMS; i++)
        if (atomic_load_explicit(&far->seen_on[i], memory_order_acquire) == (uintptr_t)stream->stream + 1) /* V2 */
            return true;
    return false;
}

/** Communicators that use the stream and wait for longer than they may fail; those that have failed are reported. */
static enum hkt_status look_at_users(const struct hkt__far_stream *stream, int64_t waited_ns, int error)
{
    enum hkt_status rc = HKT_OK;

    pthread_mutex_lock(&lock);
    for (struct hkt__far *far = users; far != NULL; far = far->next) {
        char waits[160] = "";

        if (!was_seen_on(far, stream))
            continue;
        if (error != 0 && hkt__comm_failed(far->comm) == HKT_OK)
            (void)hkt__comm_fail_here(far->comm, hkt__cuda_failed(stream->cuda, error, "end a collective"), "on a CUDA stream");
        if (waited_ns > far->comm->options.wait.timeout_ns && hkt__comm_failed(far->comm) == HKT_OK) {
            hkt__cuda_watch_describe(far->peers.watch, waits, sizeof waits);
            (void)hkt__comm_fail_here(far->comm, hkt__fail(HKT_ERR_TIMEOUT, "a launch has not ended for %lld ms (HOCKET_TIMEOUT)%s%s",
                                      (long long)(waited_ns / 1000000), waits[0] != '\0' ? ": it waits for " : "", waits),
                                      "on a CUDA stream");
        }
        if (hkt__comm_failed(far->comm) != HKT_OK && rc == HKT_OK)
            rc = hkt__comm_report(far->comm);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static enum hkt_status failed(const struct hkt__far_stream *far, int error)
{
    const enum hkt_status rc = look_at_users(far, 0, error);

    return rc < 0 ? rc : hkt__cuda_failed(far->cuda, error, "run what a stream was given");
}

enum hkt_status hkt__far_stream_query(const struct hkt__far_stream *far)
{
    const int error = far->cuda->stream_query(far->stream, far->device);

    if (error == HKT__CUDA_NOT_READY)
        return HKT_IN_PROGRESS;
    return error == 0 ? HKT_OK : failed(far, error);
}

enum hkt_status hkt__far_stream_wait(const struct hkt__far_stream *far)
{
    const int64_t begin_ns = hkt__now_ns();
    enum hkt_status rc;

    for (int polls = 0; (rc = hkt__far_stream_query(far)) == HKT_IN_PROGRESS; polls++) {
        if (polls < 100)
            continue;
        hkt__sleep_ns(HKT__CUDA_NAP_NS);
        (void)look_at_users(far, hkt__now_ns() - begin_ns, 0); /* one that has failed ends its launches: soon all is over */
    }
    return rc == HKT_OK ? look_at_users(far, 0, 0) : rc;
}

static enum hkt_status make(int device, bool is_owned, void *stream, struct hkt__far_stream **out_far)
{
    const struct hkt__settings *settings;
    struct hkt__far_stream *far;
    char why[HKT__ERROR_TEXT_MAX / 2];
    enum hkt_status rc = hkt__settings_get(&settings);
    int error = 0;

    if (rc < 0)
        return rc;
    const struct hkt__cuda_module *cuda = hkt__cuda_open(settings->cuda, why, sizeof why);

    if (cuda == NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "no CUDA device: %s", why);
    far = hkt__calloc(1, sizeof *far);
    if (far == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a stream");
    *far = (struct hkt__far_stream){.cuda = cuda, .stream = stream, .device = device, .is_owned = is_owned};
    if (is_owned)
        error = cuda->stream_create(&far->stream, device);
    else
        error = cuda->device_current(&far->device);
    if (error != 0) {
        hkt__free(far);
        return hkt__cuda_failed(cuda, error, is_owned ? "make a stream" : "tell the thread's device");
    }
    *out_far = far;
    return HKT_OK;
}

enum hkt_status hkt__far_stream_borrow(void *cuda_stream, struct hkt__far_stream **out_far)
{
    return make(-1, false, cuda_stream, out_far);
}

enum hkt_status hkt__far_stream_create(int device, struct hkt__far_stream **out_far)
{
    return make(device, true, NULL, out_far);
}

void hkt__far_stream_destroy(struct hkt__far_stream *far)
{
    if (far->is_owned) {
        (void)!hkt__far_stream_wait(far);
        (void)far->cuda->stream_destroy(far->stream);
    }
    hkt__free(far);
}
