/* Stage 3: no deadlock, even when no message is ever buffered. A SEND and its receive are one event that needs both
 * ends to be ready; a SIGNAL needs only its sender; queues and dependencies order the rest. Such a network is
 * determinate: running it once, in any order, shows whether it ever stops (Kahn; Siegel and Avrunin for the
 * rendezvous). The run's order is kept for the stages after this one, and its longest chain of messages is the number
 * of rounds. */
#include "core/mem.h"
#include "sched/verify_int.h"

#include <stdio.h>

struct run {
    struct hkt__proof *v;
    int32_t *pending;    /* per step: what it still waits for, besides the other end of a SEND or receive */
    int32_t *after;      /* per step: the next one of its queue, -1: none */
    int32_t *succ_first; /* [nsteps + 1] steps that depend on a step: succ[succ_first[step]..) */
    int32_t *succ;
    int32_t *level;   /* per step: messages on the longest chain up to its end */
    int32_t *last_of; /* per queue key of one rank: last step so far, plus 1 */
    int32_t ndone;
};

static int64_t queue_key(const struct hkt__proof *v, const struct hkt__step *s)
{
    const int64_t lanes = HKT__LANES_MAX;

    if (hkt__is_tx(s->kind))
        return s->peer * lanes + s->lane;
    if (hkt__is_rx(s->kind))
        return (v->nranks + s->peer) * lanes + s->lane;
    return 2 * v->nranks * lanes + s->lane;
}

static enum hkt_status init(struct run *run)
{
    struct hkt__proof *v = run->v;
    const size_t nsteps = (size_t)v->nsteps;
    int64_t ndeps = 0;

    for (int32_t i = 0; i < v->nsteps; i++)
        ndeps += hkt__proof_step(v, i)->dep_count;
    if (ndeps > INT32_MAX)
        return hkt__proof_nomem();
    run->pending = hkt__calloc(nsteps, sizeof *run->pending);
    run->after = hkt__calloc(nsteps, sizeof *run->after);
    run->succ_first = hkt__calloc(nsteps + 1, sizeof *run->succ_first);
    run->succ = hkt__calloc((size_t)ndeps, sizeof *run->succ);
    run->level = hkt__calloc(nsteps, sizeof *run->level);
    run->last_of = hkt__calloc(((size_t)v->nranks * 2 + 1) * HKT__LANES_MAX, sizeof *run->last_of);
    if (run->pending == NULL || run->after == NULL || run->succ_first == NULL || run->succ == NULL || run->level == NULL
        || run->last_of == NULL)
        return hkt__proof_nomem();
    return HKT_OK;
}

static void fini(struct run *run)
{
    hkt__free(run->pending);
    hkt__free(run->after);
    hkt__free(run->succ_first);
    hkt__free(run->succ);
    hkt__free(run->level);
    hkt__free(run->last_of);
}

static void find_queues(struct run *run)
{
    struct hkt__proof *v = run->v;
    int32_t nqueues = 0;

    for (int32_t r = 0; r < v->nranks; r++) {
        for (int32_t i = v->base[r]; i < v->base[r + 1]; i++) {
            int32_t *last = &run->last_of[queue_key(v, hkt__proof_step(v, i))];

            v->before[i] = *last - 1;
            run->after[i] = -1;
            v->queue[i] = *last > 0 ? v->queue[*last - 1] : nqueues++;
            if (*last > 0)
                run->after[*last - 1] = i;
            *last = i + 1;
        }
        for (int32_t i = v->base[r]; i < v->base[r + 1]; i++)
            run->last_of[queue_key(v, hkt__proof_step(v, i))] = 0;
    }
}

/* The reverse of the dependencies, and how much each step waits for. */
static void find_successors(struct run *run)
{
    const struct hkt__proof *v = run->v;

    for (int32_t i = 0; i < v->nsteps; i++) {
        const struct hkt__step *s = hkt__proof_step(v, i);
        const int32_t *deps = hkt__proof_sched(v, i)->deps + s->dep_first;

        run->pending[i] = s->dep_count + (v->before[i] >= 0) + (s->kind == HKT__WAIT);
        for (int32_t k = 0; k < s->dep_count; k++)
            run->succ_first[v->base[v->rank_of[i]] + deps[k] + 1]++;
    }
    for (int32_t i = 0; i < v->nsteps; i++)
        run->succ_first[i + 1] += run->succ_first[i];
    const int32_t nsucc = run->succ_first[v->nsteps];

    for (int32_t i = v->nsteps - 1; i >= 0; i--) {
        const struct hkt__step *s = hkt__proof_step(v, i);
        const int32_t *deps = hkt__proof_sched(v, i)->deps + s->dep_first;

        for (int32_t k = 0; k < s->dep_count; k++)
            run->succ[--run->succ_first[v->base[v->rank_of[i]] + deps[k] + 1]] = i;
    }
    /* The lists were filled from their ends: succ_first[i + 1] is now where the list of i begins. */
    for (int32_t i = 0; i < v->nsteps; i++)
        run->succ_first[i] = run->succ_first[i + 1];
    run->succ_first[v->nsteps] = nsucc;
}

static void finish(struct run *run, int32_t step)
{
    run->v->order[run->ndone++] = step;
    if (run->level[step] > run->v->report->rounds)
        run->v->report->rounds = run->level[step];
}

/* Nothing local holds the step back any more. */
static void become_ready(struct run *run, int32_t step)
{
    const struct hkt__proof *v = run->v;
    const int kind = hkt__proof_step(v, step)->kind;

    if (kind != HKT__SEND && kind != HKT__RECV && kind != HKT__RECV_REDUCE) {
        finish(run, step);
        return;
    }
    const int32_t peer = v->match[step];
    const int32_t send = kind == HKT__SEND ? step : peer, receive = kind == HKT__SEND ? peer : step;

    if (run->pending[peer] > 0)
        return;
    const int32_t level = 1 + (run->level[send] > run->level[receive] ? run->level[send] : run->level[receive]);

    run->level[send] = run->level[receive] = level;
    finish(run, send);
    finish(run, receive);
}

static void release(struct run *run, int32_t step, int32_t level)
{
    if (run->level[step] < level)
        run->level[step] = level;
    if (--run->pending[step] == 0)
        become_ready(run, step);
}

static void run_all(struct run *run)
{
    const struct hkt__proof *v = run->v;

    for (int32_t i = 0; i < v->nsteps; i++) {
        /* Both ends of a pair may be ready from the start: let the SEND, or the only one that is ready, call. */
        const int kind = hkt__proof_step(v, i)->kind;
        const bool is_second = (kind == HKT__RECV || kind == HKT__RECV_REDUCE) && run->pending[v->match[i]] == 0;

        if (run->pending[i] == 0 && !is_second)
            become_ready(run, i);
    }
    for (int32_t at = 0; at < run->ndone; at++) {
        const int32_t step = v->order[at];

        if (run->after[step] >= 0)
            release(run, run->after[step], run->level[step]);
        for (int32_t k = run->succ_first[step]; k < run->succ_first[step + 1]; k++)
            release(run, run->succ[k], run->level[step]);
        if (hkt__proof_step(v, step)->kind == HKT__SIGNAL)
            release(run, v->match[step], run->level[step] + 1);
    }
}

/* Deadlock: find who waits for whom. Steps that are done have pending == -1 from here on. */

static int32_t local_blocker(const struct run *run, int32_t step, int32_t k)
{
    const struct hkt__proof *v = run->v;
    const struct hkt__step *s = hkt__proof_step(v, step);

    return k == 0 ? v->before[step] : v->base[v->rank_of[step]] + hkt__proof_sched(v, step)->deps[s->dep_first + k - 1];
}

/* The k-th thing that the step waits for, done or not (-1: none there); false when there are no more than k. */
static bool blocker(const struct run *run, int32_t step, int32_t k, int32_t *out_step)
{
    const struct hkt__proof *v = run->v;
    const struct hkt__step *s = hkt__proof_step(v, step);
    const int32_t peer = v->match[step];

    if (k <= s->dep_count) {
        *out_step = local_blocker(run, step, k);
        return true;
    }
    k -= s->dep_count + 1;
    if (s->kind == HKT__WAIT && k == 0) {
        *out_step = peer;
        return true;
    }
    if (peer < 0 || s->kind == HKT__WAIT || s->kind == HKT__SIGNAL || k > hkt__proof_step(v, peer)->dep_count)
        return false;
    *out_step = local_blocker(run, peer, k); /* the other end is not ready for this reason */
    return true;
}

static int32_t first_blocker(const struct run *run, int32_t step)
{
    int32_t found = -1;

    for (int32_t k = 0; blocker(run, step, k, &found); k++)
        if (found >= 0 && run->pending[found] >= 0)
            return found;
    return -1;
}

/* Breadth first from `start` back to itself: from[x] is a step that waits for x, -1 when x was not met. */
static void shortest_cycle(struct run *run, int32_t start, int32_t *queue, int32_t *from)
{
    int32_t nqueued = 0, found;

    for (int32_t i = 0; i < run->v->nsteps; i++)
        from[i] = -1;
    queue[nqueued++] = start;
    for (int32_t at = 0; at < nqueued; at++)
        for (int32_t k = 0; blocker(run, queue[at], k, &found); k++) {
            if (found < 0 || run->pending[found] < 0 || from[found] >= 0)
                continue;
            from[found] = queue[at];
            if (found == start)
                return;
            queue[nqueued++] = found;
        }
}

static enum hkt_status fail_cycle(struct run *run)
{
    struct hkt__proof *v = run->v;
    int32_t *queue = run->succ_first, *from = run->level; /* no longer needed for the run */
    int32_t start = 0;
    char text[400] = "";
    int used = 0;

    for (int32_t i = 0; i < run->ndone; i++)
        run->pending[v->order[i]] = -1;
    while (run->pending[start] < 0)
        start++;
    for (int32_t i = 0; i < v->nsteps; i++) /* after so many moves the walk is on a cycle */
        start = first_blocker(run, start);
    shortest_cycle(run, start, queue, from);
    int32_t at = start;

    do {
        if (used >= 0 && (size_t)used < sizeof text)
            used +=
                snprintf(text + used, sizeof text - (size_t)used, "%s, which holds up ", hkt__proof_step_text(v, at).s);
        at = from[at];
    } while (at != start);
    return hkt__proof_fail(v, "deadlock: %sthe first again", text);
}

enum hkt_status hkt__proof_order(struct hkt__proof *v)
{
    struct run run = { .v = v };
    enum hkt_status rc = init(&run);

    if (rc == HKT_OK) {
        find_queues(&run);
        find_successors(&run);
        run_all(&run);
        if (run.ndone < v->nsteps)
            rc = fail_cycle(&run);
    }
    fini(&run);
    return rc;
}
