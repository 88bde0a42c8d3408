/* Groups: calls between start and end are kept per thread and run together at the outermost end. A bad argument inside
 * a group is reported by its call, and again by the end, which then runs nothing. Memory that has run out is no affair of
 * this rank alone: the others run the group, so its communicators fail. */
#include "comm/call.h"
#include "core/keep.h"

#define GROUP_FIRST 16        /* calls that a thread's first group has room for */

struct group {
    int depth;
    size_t count;
    struct hkt__kept calls;   /* of struct hkt__call; taken at the first call */
    struct hkt_stream *stream;
    bool is_far;              /* each call has a stream of CUDA's of its own; stream is NULL then */
    enum hkt_status status;   /* first failure of a call inside */
    struct hkt__error error;
};

static _Thread_local struct group group;

bool hkt__group_is_open(void)
{
    return group.depth > 0;
}

enum hkt_status hkt__group_spoil(enum hkt_status status)
{
    if (group.status == HKT_OK) {
        group.status = status;
        group.error = *hkt__error_here();
    }
    return status;
}

/** Room for one call more; false: no memory. */
static bool reserve(void)
{
    const size_t bytes = sizeof(struct hkt__call);

    if (group.calls.memory == NULL)
        group.calls = hkt__keep_take(HKT__KEEP_GROUP, GROUP_FIRST * bytes);
    else if ((group.count + 1) * bytes > group.calls.bytes)
        return hkt__keep_grow(&group.calls, group.count * 2 * bytes);
    return group.calls.memory != NULL;
}

enum hkt_status hkt__group_add(const struct hkt__call *call, struct hkt_stream *stream)
{
    if (group.count == HKT_GROUP_OPS_MAX)
        return hkt__group_spoil(hkt__fail(HKT_ERR_INVALID, "a group holds at most %d operations", HKT_GROUP_OPS_MAX));
    if (group.count > 0 && (group.stream != stream || group.is_far != (call->far != NULL)))
        return hkt__group_spoil(hkt__fail(HKT_ERR_INVALID, "all operations of a group must use the same stream, or streams of CUDA"));
    if (!reserve()) {
        hkt__fail(HKT_ERR_NOMEM, "no memory for a group of more than %zu operations", group.count);
        return hkt__group_spoil(hkt__batch_refuse(call, 1));
    }
    ((struct hkt__call *)group.calls.memory)[group.count++] = *call;
    group.stream = stream;
    group.is_far = call->far != NULL;
    return HKT_OK;
}

enum hkt_status hkt_group_start(void)
{
    group.depth++;
    return HKT_OK;
}

static enum hkt_status run_group(const struct group *ended)
{
    struct hkt__call *calls = ended->calls.memory;

    if (ended->status < 0) {
        *hkt__error_here() = ended->error;
        return ended->status == HKT_ERR_NOMEM ? hkt__batch_refuse(calls, ended->count) : ended->status;
    }
    if (ended->count == 0)
        return HKT_OK;
    if (ended->stream != NULL)
        return hkt__stream_enqueue(ended->stream, calls, ended->count);
    hkt__batch_queue(calls, ended->count);
    return hkt__batch_run(calls, ended->count);
}

enum hkt_status hkt_group_end(void)
{
    if (group.depth == 0)
        return hkt__fail(HKT_ERR_INVALID, "hkt_group_end without hkt_group_start");
    if (--group.depth > 0)
        return HKT_OK;
    const struct group ended = group;

    group = (struct group){0};
    const enum hkt_status rc = run_group(&ended);

    hkt__keep_give(HKT__KEEP_GROUP, ended.calls);
    return rc;
}
