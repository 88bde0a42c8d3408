/* What a run says about itself when it does not go on: for timeouts, mismatches, dumps. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "exec/call.h"
#include "exec/run.h"
#include "hocket/plan.h"

/** The queue that holds the others up: a receive that has begun, else any that has not finished. */
static const struct hkt__cursor *blocked_cursor(const struct hkt__run *run)
{
    const struct hkt__cursor *blocked = NULL;

    for (int32_t i = 0; i < run->nactive; i++) {
        const struct hkt__cursor *cursor = &run->cursors[run->active[i]];

        if (blocked == NULL)
            blocked = cursor;
        if (cursor->open && run->plan->queues[cursor->queue].kind == HKT__QUEUE_RX)
            return cursor;
        if (cursor->open)
            blocked = cursor;
    }
    return blocked;
}

int hkt__run_blocked_on(const struct hkt__run *run)
{
    const struct hkt__cursor *cursor = blocked_cursor(run);

    return cursor == NULL ? -1 : run->plan->queues[cursor->queue].peer;
}

void hkt__run_describe(const struct hkt__run *run, char *out_text, size_t bytes)
{
    static const char *const waits[] = {[HKT__QUEUE_RX] = "waits for data from", [HKT__QUEUE_TX] = "waits for room at",
                                        [HKT__QUEUE_LOCAL] = "waits for memory held by"};
    const struct hkt__cursor *cursor = blocked_cursor(run);

    if (cursor == NULL) {
        snprintf(out_text, bytes, run->has_lent ? "waits for acknowledgements of what it sent" : "nothing is outstanding");
        return;
    }
    const struct hkt__plan_queue *queue = &run->plan->queues[cursor->queue];
    char who[32] = "its peers";

    if (queue->peer >= 0)
        snprintf(who, sizeof who, "rank %d", queue->peer);
    snprintf(out_text, bytes, "%s %s (%s, slice %d of %d, step %d of %d)", waits[queue->kind], who,
             run->plan->shape.algo, cursor->slice + 1, run->bind->nslices, cursor->pos + 1, queue->count);
}

void hkt__call_print(const struct hkt__stamp *stamp, char *out_text, size_t bytes)
{
    const enum hkt_coll coll = hkt__call_coll(stamp->call);
    const unsigned dtype = stamp->call >> 5 & 31u, op = stamp->call >> 10 & 63u;
    size_t used;

    used = (size_t)snprintf(out_text, bytes, "%s(count=%llu", hkt_coll_name(coll), (unsigned long long)stamp->count);
    if (coll != HKT_BARRIER && used < bytes)
        used += (size_t)snprintf(out_text + used, bytes - used, ", %s", hkt_dtype_name((enum hkt_dtype)dtype));
    if (op != HKT__CALL_NO_OP && used < bytes)
        used += (size_t)(op < HKT_OP_USER
                             ? snprintf(out_text + used, bytes - used, ", %s", hkt_op_name((enum hkt_op)op))
                             : snprintf(out_text + used, bytes - used, ", user op %u", op - HKT_OP_USER));
    if (hkt__call_has_digest(coll) && used < bytes)
        used += (size_t)snprintf(out_text + used, bytes - used, ", counts #%08x", (unsigned)stamp->root);
    else if (stamp->root >= 0 && used < bytes)
        used += (size_t)snprintf(out_text + used, bytes - used, ", root=%d", stamp->root);
    if ((stamp->call >> 24 & HKT__CALL_IN_PLACE) != 0 && used < bytes)
        used += (size_t)snprintf(out_text + used, bytes - used, ", in place");
    if (used < bytes)
        snprintf(out_text + used, bytes - used, ") as operation %u", stamp->op_seq);
}

static const char *algo_name(const struct hkt__stamp *stamp)
{
    struct hkt_algo_info info;

    return hkt_algo_get((int)(stamp->call >> 16 & 255u), &info) == HKT_OK ? info.name : "one that is not known here";
}

enum hkt_status hkt__stamp_mismatch(int peer, const struct hkt__stamp *own, const struct hkt__stamp *theirs)
{
    char mine[160], other[160];

    hkt__call_print(own, mine, sizeof mine);
    hkt__call_print(theirs, other, sizeof other);
    if (strcmp(mine, other) == 0 && (own->call >> 16 & 255u) == (theirs->call >> 16 & 255u))
        return hkt__fail_peer(HKT_ERR_MISMATCH, peer,
                              "this rank and rank %d run %s by %s in different slices or on different lanes: HOCKET_* settings and "
                              "versions must agree on all ranks", peer, mine, algo_name(own));
    if (strcmp(mine, other) == 0)
        return hkt__fail_peer(HKT_ERR_MISMATCH, peer,
                              "this rank and rank %d run %s with different algorithms (%s and %s): "
                              "HOCKET_* settings must agree on all ranks",
                              peer, mine, algo_name(own), algo_name(theirs));
    return hkt__fail_peer(HKT_ERR_MISMATCH, peer, "this rank called %s but rank %d called %s: all ranks must make the same calls in the same order", mine, peer, other);
}
