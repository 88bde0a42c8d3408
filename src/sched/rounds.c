/* Rounds of a set of schedules: the k-th send of a queue is matched with the k-th receive, then steps are dated in a
 * topological order of all ranks together. A message happens when both of its ends may: that is how the schedules run
 * with no buffering at all, so what cannot be dated would hang. Linear but for the sort that matches. */
#include "sched/rounds.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/mem.h"
#include "sched/queues.h"

/* One end of a message. Ends sort such that a send and its receive get the same place in their arrays. */
struct end {
    int32_t src, dst, lane, step;
};

/* Who waits for a step. */
struct edge {
    int32_t step, next;
};

struct dating {
    struct hkt__rounds *rounds;
    struct hkt__sched *const *scheds;
    int nranks;
    int32_t nsteps;
    struct end *sends, *recvs;
    int32_t nsends, nrecvs;
    int32_t *waiting;   /* [step]: steps it still waits for */
    int32_t *followers; /* [step]: list of edges, -1: end */
    struct edge *edges;
    int32_t nedges;
    int32_t *ready; /* steps whose own conditions are met: a stack */
    int32_t nready;
    int32_t ndone;
};

static int compare_ends(const void *a, const void *b)
{
    const struct end *x = a, *y = b;

    if (x->src != y->src)
        return x->src < y->src ? -1 : 1;
    if (x->dst != y->dst)
        return x->dst < y->dst ? -1 : 1;
    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    return (x->step > y->step) - (x->step < y->step);
}

static int32_t rank_of(const struct dating *d, int32_t step)
{
    int32_t low = 0, high = d->nranks - 1;

    while (low < high) { /* the last rank whose first step is not beyond */
        const int32_t middle = low + (high - low + 1) / 2;

        if (d->rounds->first[middle] <= step)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static const struct hkt__step *step_at(const struct dating *d, int32_t step, int32_t rank)
{
    return &d->scheds[rank]->steps[step - d->rounds->first[rank]];
}

static enum hkt_status fail_at(const struct dating *d, int32_t step, const char *why)
{
    const int32_t rank = rank_of(d, step);

    return hkt__fail(HKT_ERR_INVALID, "%s %s: rank %d step %d (%s) %s: hocket verify says more",
                     hkt_coll_name(d->scheds[rank]->coll), d->scheds[rank]->algo, (int)rank,
                     (int)(step - d->rounds->first[rank]), hkt__step_kind_name(step_at(d, step, rank)->kind), why);
}

static enum hkt_status dating_init(struct dating *d)
{
    struct hkt__rounds *rounds = d->rounds;
    int64_t nsteps = 0, nedges = 0;

    rounds->first = hkt__calloc((size_t)d->nranks + 1, sizeof *rounds->first);
    for (int rank = 0; rank < d->nranks && rounds->first != NULL; rank++) {
        rounds->first[rank] = (int32_t)nsteps;
        nsteps += d->scheds[rank]->nsteps;
        nedges += (int64_t)d->scheds[rank]->nsteps + d->scheds[rank]->ndeps;
        if (nsteps > INT32_MAX || nedges > INT32_MAX)
            return hkt__fail(HKT_ERR_UNSUPPORTED, "schedules of more than 2^31 steps in all have no printable rounds");
        rounds->first[rank + 1] = (int32_t)nsteps;
    }
    const size_t count = (size_t)nsteps;

    rounds->round = hkt__calloc(count, sizeof *rounds->round);
    rounds->mate = hkt__calloc(count, sizeof *rounds->mate);
    d->sends = hkt__calloc(count, sizeof *d->sends);
    d->recvs = hkt__calloc(count, sizeof *d->recvs);
    d->waiting = hkt__calloc(count, sizeof *d->waiting);
    d->followers = hkt__calloc(count, sizeof *d->followers);
    d->ready = hkt__calloc(count, sizeof *d->ready);
    d->edges = hkt__calloc((size_t)nedges, sizeof *d->edges);
    if (rounds->first == NULL || rounds->round == NULL || rounds->mate == NULL || d->sends == NULL || d->recvs == NULL
        || d->waiting == NULL || d->followers == NULL || d->ready == NULL || d->edges == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the rounds of %zu steps", count);
    d->nsteps = (int32_t)nsteps;
    for (int32_t i = 0; i < d->nsteps; i++)
        rounds->mate[i] = d->followers[i] = -1;
    return HKT_OK;
}

static void dating_fini(struct dating *d)
{
    hkt__free(d->sends);
    hkt__free(d->recvs);
    hkt__free(d->waiting);
    hkt__free(d->followers);
    hkt__free(d->ready);
    hkt__free(d->edges);
}

static enum hkt_status match(struct dating *d)
{
    for (int32_t rank = 0; rank < d->nranks; rank++)
        for (int32_t i = 0; i < d->scheds[rank]->nsteps; i++) {
            const struct hkt__step *step = &d->scheds[rank]->steps[i];
            const int32_t number = d->rounds->first[rank] + i;

            if (hkt__queue_kind(step) == HKT__QUEUE_TX)
                d->sends[d->nsends++] = (struct end){ rank, step->peer, step->lane, number };
            else if (hkt__queue_kind(step) == HKT__QUEUE_RX)
                d->recvs[d->nrecvs++] = (struct end){ step->peer, rank, step->lane, number };
        }
    qsort(d->sends, (size_t)d->nsends, sizeof *d->sends, compare_ends);
    qsort(d->recvs, (size_t)d->nrecvs, sizeof *d->recvs, compare_ends);
    for (int32_t i = 0; i < d->nsends || i < d->nrecvs; i++) {
        const struct end *send = &d->sends[i], *recv = &d->recvs[i];

        if (i == d->nrecvs)
            return fail_at(d, send->step, "has no receive to meet");
        if (i == d->nsends)
            return fail_at(d, recv->step, "has no send to meet");
        if (send->src != recv->src || send->dst != recv->dst || send->lane != recv->lane) {
            struct end a = *send, b = *recv;

            a.step = b.step = 0;
            return compare_ends(&a, &b) < 0 ? fail_at(d, send->step, "has no receive to meet")
                                            : fail_at(d, recv->step, "has no send to meet");
        }
        d->rounds->mate[send->step] = recv->step;
        d->rounds->mate[recv->step] = send->step;
    }
    return HKT_OK;
}

static void wait_for(struct dating *d, int32_t step, int32_t before)
{
    d->edges[d->nedges] = (struct edge){ step, d->followers[before] };
    d->followers[before] = d->nedges++;
    d->waiting[step]++;
}

/* What each step of a rank waits for: its dependencies, and the step before it in its queue. */
static enum hkt_status link_rank(struct dating *d, int32_t rank)
{
    const struct hkt__sched *sched = d->scheds[rank];
    const int32_t first = d->rounds->first[rank];
    struct hkt__queues queues;
    enum hkt_status rc = hkt__queues_init(&queues, sched);
    int32_t *last = rc == HKT_OK ? hkt__calloc((size_t)queues.count, sizeof *last) : NULL; /* plus 1 */

    if (rc == HKT_OK && last == NULL)
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for the rounds of rank %d", (int)rank);
    for (int32_t i = 0; rc == HKT_OK && i < sched->nsteps; i++) {
        const struct hkt__step *step = &sched->steps[i];
        int32_t *before = &last[queues.of_step[i]];

        if (*before > 0)
            wait_for(d, first + i, first + *before - 1);
        *before = i + 1;
        for (int32_t k = 0; k < step->dep_count; k++)
            wait_for(d, first + i, first + sched->deps[step->dep_first + k]);
        if (d->waiting[first + i] == 0)
            d->ready[d->nready++] = first + i;
    }
    hkt__free(last);
    hkt__queues_fini(&queues);
    return rc;
}

/* The step is done in `round`: hand the date on to those who wait for it. */
static void finish(struct dating *d, int32_t step, int32_t round)
{
    d->rounds->round[step] = round;
    d->ndone++;
    if (round > d->rounds->count)
        d->rounds->count = round;
    for (int32_t at = d->followers[step]; at >= 0; at = d->edges[at].next) {
        const int32_t next = d->edges[at].step;

        /* Until it is done itself, a step's round holds the largest among those it waited for. */
        if (round > d->rounds->round[next])
            d->rounds->round[next] = round;
        if (--d->waiting[next] == 0)
            d->ready[d->nready++] = next;
    }
}

static enum hkt_status date(struct dating *d)
{
    const int32_t *mate = d->rounds->mate, *round = d->rounds->round;

    while (d->nready > 0) {
        const int32_t step = d->ready[--d->nready];

        d->waiting[step] = -1; /* ready: a message's second end starts it */
        if (mate[step] < 0) {
            finish(d, step, round[step]);
        } else if (d->waiting[mate[step]] == -1) {
            const int32_t other = mate[step];
            const int32_t now = 1 + (round[step] > round[other] ? round[step] : round[other]);

            finish(d, step, now);
            finish(d, other, now);
        }
    }
    for (int32_t i = 0; d->ndone < d->nsteps && i < d->nsteps; i++)
        if (d->waiting[i] > 0 || (d->waiting[i] == -1 && mate[i] >= 0 && d->waiting[mate[i]] > 0))
            return fail_at(d, i, "never gets to run");
    return HKT_OK;
}

enum hkt_status hkt__rounds_init(struct hkt__rounds *rounds, struct hkt__sched *const *scheds, int nranks)
{
    struct dating d = { .rounds = rounds, .scheds = scheds, .nranks = nranks };
    enum hkt_status rc;

    *rounds = (struct hkt__rounds){ NULL, NULL, NULL, 0 };
    rc = dating_init(&d);
    if (rc == HKT_OK)
        rc = match(&d);
    for (int rank = 0; rc == HKT_OK && rank < nranks; rank++)
        rc = link_rank(&d, rank);
    if (rc == HKT_OK)
        rc = date(&d);
    dating_fini(&d);
    return rc;
}

void hkt__rounds_fini(struct hkt__rounds *rounds)
{
    hkt__free(rounds->first);
    hkt__free(rounds->round);
    hkt__free(rounds->mate);
    *rounds = (struct hkt__rounds){ NULL, NULL, NULL, 0 };
}
