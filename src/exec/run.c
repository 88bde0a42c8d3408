/* Queues and order: who may go next. See exec.h for the idea.
 *
 * Scratch. Slice s uses instance s mod HKT__SCRATCH_INSTANCES. It may begin when slice s - instances is done here, and,
 * if peers read this scratch, done at every peer. Peers announce in their window how many slices of direct plans they
 * have finished since the communicator began; all ranks run the same plans, so the numbers mean the same everywhere.
 *   W1 (announce_slices): release after this rank's last access to peers' scratch of the slice.
 *   W2 (peers_finished): acquire; what the peer read before W1 was read before this rank overwrites it.
 * Rounds of instances that use little of them lie side by side in them, until all ranks together have used SHIFT_BYTES of the same
 * one: lines that peers have read cost their owner half as much to write once 128 KiB of others have been (4 ns instead of 8, with any
 * kind of store; 2 cores of a Xeon). 2 ranks in place, 8, 16 and 32 KiB: all_gather by direct 1.47, 2.31 and 4.1 us, and now 1.36, 2.03
 * and 3.5; all_reduce of 16 KiB by two_shot 4.3, and 3.8 (2026-11-30). To W1 and W2 it is the same instance.
 *
 * Pace. Nothing is sent of a slice that is further ahead than that of the oldest one unfinished here, scratch or not. Where no
 * message waits for another, ranks would else send all they have before they receive anything, and sockets take megabytes: the
 * data leave the caches, windows close, and the kernel sends what waited from whichever core an acknowledgement comes to, out of
 * order. Between 2 hosts 16 MB by recursive doubling then took 45 to 90 ms, and takes 13 to 26. Nobody waits for ever: what the oldest
 * unfinished slice of all ranks needs is held back by none. */
#include "exec/run.h"

#include "core/error.h"
#include "core/mem.h"

#define SHIFT_MIN ((size_t)2048)    /* what is smaller stays in a first-level cache, and gained nothing */
#define SHIFT_BYTES ((size_t)65536) /* of all ranks: 8 on 2 cores take 6 % longer with 4 times as much */

enum hkt_status hkt__run_create(struct hkt__exec_env *env, struct hkt__run **out_run)
{
    struct hkt__run *run = hkt__calloc(1, sizeof *run);

    if (run == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a run");
    run->env = env;
    *out_run = run;
    return HKT_OK;
}

enum hkt_status hkt__run_reserve(struct hkt__run *run, const struct hkt__plan *plan, int channels)
{
    const int32_t need = plan->nqueues * channels;

    if (need <= run->capacity)
        return HKT_OK;
    struct hkt__cursor *cursors = hkt__realloc(run->cursors, (size_t)need, sizeof *cursors);

    if (cursors != NULL)
        run->cursors = cursors;
    int32_t *active = hkt__realloc(run->active, (size_t)need, sizeof *active);

    if (active != NULL)
        run->active = active;
    if (cursors == NULL || active == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a run of %d queues", need);
    run->capacity = need;
    return HKT_OK;
}

void hkt__run_destroy(struct hkt__run *run)
{
    if (run == NULL)
        return;
    hkt__free(run->cursors);
    hkt__free(run->active);
    hkt__free(run);
}

size_t hkt__exec_instance_bytes(const struct hkt__exec_env *env, bool direct)
{
    const size_t bytes = direct ? env->window_bytes - sizeof(struct hkt__window_head) : env->scratch_bytes;

    return bytes / HKT__SCRATCH_INSTANCES / HKT__LINE * HKT__LINE;
}

/** Tell peers where IN and OUT of this call are. */
static void publish_buffers(const struct hkt__run *run, struct hkt__window_head *head)
{
    const void *const data[2] = {run->bind->in, run->bind->out};
    struct hkt__tp *tp = run->env->memory_tp;

    for (int buf = HKT__IN; buf <= HKT__OUT; buf++) {
        uint64_t offset = 0;
        /* A byte tells: shared memory is given out in whole blocks, and calls were checked to lie within one. */
        const bool is_shared = tp != NULL && data[buf] != NULL && tp->ops->mem_locate(tp, data[buf], 1, &offset);

        head->buffers[buf] = (struct hkt__published){(uint64_t)(uintptr_t)data[buf], is_shared ? offset + 1 : 0};
    }
}

/** Slices that every queue of every replica has finished: [0, result). */
static int32_t slices_finished(const struct hkt__run *run)
{
    int32_t low = run->bind->nslices;

    for (int32_t i = 0; i < run->ncursors; i++)
        if (run->cursors[i].slice < low)
            low = run->cursors[i].slice;
    return low;
}

static void announce_slices(struct hkt__run *run)
{
    const int32_t finished = slices_finished(run);
    struct hkt__window_head *own = run->env->windows[run->env->rank];

    if (finished == run->slices_told)
        return;
    run->slices_told = finished;
    atomic_store_explicit(&own->slices_done, run->direct_base + (uint64_t)finished, memory_order_release); /* W1 */
}

/** Slices of direct plans that all peers have finished. */
static uint64_t peers_finished(struct hkt__exec_env *env)
{
    uint64_t low = UINT64_MAX;

    for (int r = 0; r < env->nranks; r++) {
        const uint64_t done = atomic_load_explicit(&env->windows[r]->slices_done, memory_order_acquire); /* W2 */

        if (r != env->rank && done < low)
            low = done;
    }
    return low;
}

/** Is a slice no further ahead of the oldest unfinished one than there are instances of scratch? */
static bool is_near(struct hkt__run *run, int32_t slice)
{
    if (slice < run->slices_near)
        return true;
    if (slices_finished(run) <= slice - HKT__SCRATCH_INSTANCES)
        return false;
    run->slices_near = slice + 1;
    return true;
}

/** May slice `slice` use its scratch instance? */
static bool scratch_is_free(struct hkt__run *run, int32_t slice)
{
    struct hkt__exec_env *env = run->env;

    if (slice < run->slices_free)
        return true;
    if (run->plan->direct && run->direct_base + (uint64_t)slice >= HKT__SCRATCH_INSTANCES) {
        const uint64_t need = run->direct_base + (uint64_t)slice - HKT__SCRATCH_INSTANCES + 1;

        if (env->peers_done < need) {
            env->peers_done = peers_finished(env);
            if (env->peers_done < need)
                return false;
        }
    }
    if (!is_near(run, slice))
        return false;
    run->slices_free = slice + 1;
    return true;
}

bool hkt__deps_are_done(const struct hkt__run *run, const struct hkt__cursor *cursor, const struct hkt__entry *entry)
{
    const struct hkt__plan *plan = run->plan;
    const struct hkt__cursor *replica = &run->cursors[cursor->replica * plan->nqueues];

    for (int32_t i = 0; i < entry->dep_count; i++) {
        const struct hkt__plan_dep *dep = &plan->deps[entry->dep_first + i];
        const uint64_t need =
            (uint64_t)cursor->rounds * (uint64_t)plan->queues[dep->queue].count + (uint64_t)dep->count;

        if (replica[dep->queue].finished < need)
            return false;
    }
    return true;
}

/** Bytes of a SEND that may go out: all, or what its feeder has received of the same operand so far. */
static size_t send_limit(const struct hkt__run *run, const struct hkt__cursor *cursor, const struct hkt__entry *entry)
{
    if (entry->feeder < 0)
        return SIZE_MAX;
    const struct hkt__cursor *feeder = &run->cursors[cursor->replica * run->plan->nqueues + entry->feeder];

    if (feeder->rounds != cursor->rounds)
        return feeder->rounds > cursor->rounds ? SIZE_MAX : 0;
    if (feeder->pos != entry->feeder_pos)
        return feeder->pos > entry->feeder_pos ? SIZE_MAX : 0;
    return feeder->open ? feeder->done : 0;
}

int hkt__run_blocked_route(const struct hkt__run *run, const unsigned char *route_of)
{
    int route = -1;

    for (int32_t i = 0; i < run->nactive; i++) {
        const struct hkt__cursor *cursor = &run->cursors[run->active[i]];
        const struct hkt__plan_queue *queue = &run->plan->queues[cursor->queue];

        if (!cursor->open) /* it waits for another queue */
            continue;
        if (queue->peer < 0)
            return -1;
        if (queue->kind == HKT__QUEUE_TX && cursor->done >= send_limit(run, cursor, &run->plan->entries[queue->first + cursor->pos]))
            continue; /* for its feeder */
        if (route >= 0 && route != route_of[queue->peer])
            return -1;
        route = route_of[queue->peer];
    }
    return route;
}

static enum hkt_status advance_entry(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry)
{
    const bool is_empty = cursor->total == 0 && run->bind->empty_frames;

    switch (entry->kind) {
    case HKT__SEND:
        if (is_empty)
            return hkt__step_signal(run, cursor);
        return hkt__step_send(run, cursor, entry, send_limit(run, cursor, entry));
    case HKT__RECV:
    case HKT__RECV_REDUCE:
        if (is_empty)
            return hkt__step_wait(run, cursor);
        return hkt__step_recv(run, cursor, entry);
    case HKT__SIGNAL:
        return hkt__step_signal(run, cursor);
    case HKT__WAIT:
        return hkt__step_wait(run, cursor);
    default:
        return hkt__step_local(run, cursor, entry);
    }
}

/** hkt__step_measure, with the common case of small calls here: one chunk of a buffer, in one piece. */
static void measure(const struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__operand *x)
{
    const struct hkt__bind *bind = run->bind;

    if (bind->chunk_bytes == 0 || x->count != 1 || x->buf == HKT__SCRATCH) {
        hkt__step_measure(run, cursor, x);
        return;
    }
    char *base = x->buf == HKT__OUT ? bind->out : (char *)(uintptr_t)bind->in;

    cursor->whole = base + (size_t)hkt__span_at(&x->at, 0) * bind->chunk_bytes;
    cursor->total = bind->chunk_bytes;
}

/** Begin the entry at the head if its turn has come. */
static bool open_entry(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry)
{
    if (entry->dep_count > 0 && !hkt__deps_are_done(run, cursor, entry))
        return false;
    if (entry->uses_scratch && !scratch_is_free(run, cursor->slice))
        return false;
    if (entry->kind == HKT__SEND && !is_near(run, cursor->slice))
        return false;
    cursor->open = true;
    cursor->piece = 0;
    cursor->offset = 0;
    cursor->done = 0;
    cursor->total = 0;
    if (entry->kind <= HKT__RECV_REDUCE)
        measure(run, cursor, entry->kind == HKT__SEND ? &run->plan->args[entry->arg_first].x : &entry->dst);
    return true;
}

static void close_entry(struct hkt__run *run, struct hkt__cursor *cursor, int32_t count)
{
    cursor->open = false;
    cursor->finished++;
    if (++cursor->pos < count)
        return;
    cursor->pos = 0;
    cursor->rounds++;
    cursor->slice += run->bind->channels;
    if (cursor->slice > run->bind->nslices)
        cursor->slice = run->bind->nslices;
    if (run->plan->direct)
        announce_slices(run);
}

/** Advance one queue as far as it goes. OK: the queue is done. */
static enum hkt_status advance_queue(struct hkt__run *run, struct hkt__cursor *cursor)
{
    const struct hkt__plan_queue *queue = &run->plan->queues[cursor->queue];
    enum hkt_status result = HKT_AGAIN;

    while (cursor->slice < run->bind->nslices) {
        const struct hkt__entry *entry = &run->plan->entries[queue->first + cursor->pos];

        if (!cursor->open && !open_entry(run, cursor, entry))
            return result;
        const enum hkt_status rc = advance_entry(run, cursor, entry);

        if (rc == HKT_AGAIN)
            return result;
        if (rc != HKT_OK)
            return rc;
        close_entry(run, cursor, queue->count);
        result = HKT_IN_PROGRESS;
    }
    return HKT_OK;
}

/** Small messages that wait for nothing go out before anything else of a call is set up. */
static void begin_with_send(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__plan_queue *queue)
{
    if (hkt__step_send_at_once(run, cursor, &run->plan->entries[queue->first]))
        close_entry(run, cursor, queue->count);
}

/** By how much, and how often, rounds of instances are shifted within them. */
static void shift_scratch(struct hkt__run *run)
{
    const size_t used = run->bind->scratch_pitch * (size_t)run->plan->shape.scratch_chunks, ranks = (size_t)run->env->nranks;

    run->scratch_shift = 0;
    run->scratch_shifts = 1;
    if (!run->plan->direct || used < SHIFT_MIN)
        return;
    while (run->scratch_shifts * used * ranks < SHIFT_BYTES && 2 * run->scratch_shifts * used <= hkt__exec_instance_bytes(run->env, true))
        run->scratch_shifts *= 2;
    run->scratch_shift = used;
}

void hkt__run_start(struct hkt__run *run, const struct hkt__plan *plan, const struct hkt__bind *bind)
{
    struct hkt__exec_env *env = run->env;
    const bool is_small = bind->chunk_bytes - 1 < HKT__TP_SMALL && bind->device == NULL && !env->crc;

    run->plan = plan;
    run->bind = bind;
    run->direct_base = env->direct_slices;
    shift_scratch(run);
    run->slices_free = 0;
    run->slices_near = HKT__SCRATCH_INSTANCES;
    run->slices_told = 0;
    run->has_lent = false;
    run->ncursors = plan->nqueues * bind->channels;
    run->nactive = 0;
    for (int32_t i = 0, queue = 0, replica = 0; i < run->ncursors; i++) {
        struct hkt__cursor *cursor = &run->cursors[i];

        *cursor = (struct hkt__cursor){.queue = queue, .replica = replica, .slice = replica};
        if (is_small && plan->queues[queue].is_prompt && replica == 0)
            begin_with_send(run, cursor, &plan->queues[queue]);
        if (cursor->slice < bind->nslices)
            run->active[run->nactive++] = i;
        if (++queue == plan->nqueues) {
            queue = 0;
            replica++;
        }
    }
    if (plan->user_direct)
        publish_buffers(run, env->windows[env->rank]);
    if (plan->direct)
        env->direct_slices += (uint64_t)bind->nslices;
}

/** What was sent from where it lies is the caller's again when the run is over, not before. */
static bool is_given_back(struct hkt__run *run)
{
    for (int32_t i = 0; i < run->ncursors && run->has_lent; i++)
        if (run->plan->queues[run->cursors[i].queue].kind == HKT__QUEUE_TX && hkt__step_is_lent(run, &run->cursors[i]))
            return false;
    run->has_lent = false;
    return true;
}

enum hkt_status hkt__run_poll(struct hkt__run *run)
{
    bool moved = false;

    for (int32_t i = 0; i < run->nactive;) {
        const enum hkt_status rc = advance_queue(run, &run->cursors[run->active[i]]);

        if (rc < 0)
            return rc;
        moved |= rc != HKT_AGAIN;
        if (rc == HKT_OK)
            run->active[i] = run->active[--run->nactive];
        else
            i++;
    }
    if (run->nactive == 0 && (!run->has_lent || is_given_back(run)))
        return HKT_OK;
    return moved ? HKT_IN_PROGRESS : HKT_AGAIN;
}
