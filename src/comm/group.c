/* Groups: calls between start and end are kept per thread and run together at the outermost end. A bad argument inside
 * a group is reported by its call, and again by the end, which then runs nothing. */
#include <string.h>

#include "comm/call.h"
#include "core/mem.h"

struct group {
    int depth;
    size_t count, capacity;
    struct hkt__call *calls;  /* NULL while `few` holds them */
    struct hkt__call few[HKT__BATCH_SMALL];
    struct hkt_stream *stream;
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

enum hkt_status hkt__group_add(const struct hkt__call *call, struct hkt_stream *stream)
{
    if (group.count == HKT_GROUP_OPS_MAX)
        return hkt__group_spoil(hkt__fail(HKT_ERR_INVALID, "a group holds at most %d operations", HKT_GROUP_OPS_MAX));
    if (group.count > 0 && group.stream != stream)
        return hkt__group_spoil(hkt__fail(HKT_ERR_INVALID, "all operations of a group must use the same stream"));
    if (group.count >= HKT__BATCH_SMALL && group.count >= group.capacity) {
        const size_t capacity = group.count * 2;
        struct hkt__call *calls = hkt__realloc(group.calls, capacity, sizeof *calls);

        if (calls == NULL)
            return hkt__group_spoil(hkt__fail(HKT_ERR_NOMEM, "no memory for a group of %zu operations", capacity));
        if (group.calls == NULL)
            memcpy(calls, group.few, sizeof group.few);
        group.calls = calls;
        group.capacity = capacity;
    }
    (group.calls != NULL ? group.calls : group.few)[group.count++] = *call;
    group.stream = stream;
    return HKT_OK;
}

enum hkt_status hkt_group_start(void)
{
    group.depth++;
    return HKT_OK;
}

static enum hkt_status run_group(struct hkt__call *calls, size_t count, struct hkt_stream *stream)
{
    uint64_t few[HKT__BATCH_SMALL];
    enum hkt_status rc;

    if (stream != NULL)
        return hkt__stream_enqueue(stream, calls, count);
    uint64_t *tickets = count <= HKT__BATCH_SMALL ? few : hkt__calloc(count, sizeof *tickets);

    if (tickets == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a group of %zu operations", count);
    hkt__batch_tickets(calls, count, tickets);
    rc = hkt__batch_run(calls, tickets, count);
    if (tickets != few)
        hkt__free(tickets);
    return rc;
}

enum hkt_status hkt_group_end(void)
{
    if (group.depth == 0)
        return hkt__fail(HKT_ERR_INVALID, "hkt_group_end without hkt_group_start");
    if (--group.depth > 0)
        return HKT_OK;
    struct group ended = group;
    enum hkt_status rc = ended.status;

    group = (struct group){0};
    if (rc < 0)
        *hkt__error_here() = ended.error;
    else if (ended.count > 0)
        rc = run_group(ended.calls != NULL ? ended.calls : ended.few, ended.count, ended.stream);
    hkt__free(ended.calls);
    return rc;
}
