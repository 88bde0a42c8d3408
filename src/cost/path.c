/* See path.h. Steps are started one by one, earliest possible start first: after the step before in its queue, its
 * dependencies, the arrival of its message, and whatever its rank does before. The last of these to be done is its cause; the
 * path of a step is the path of its cause and itself. Quadratic in the steps, which are few: this runs once per algorithm. */
#include "cost/path.h"

#include "core/error.h"
#include "core/mem.h"
#include "sched/queues.h"
#include "sched/rounds.h"

#define STEPS_MAX 768

/* What things cost on paper, in units of one message's way: the longest path hardly depends on it, only on whether waiting
 * or bytes count most. */
struct scale {
    double round, message, step, n;
};
static const struct scale scales[2] = {{1, 0.25, 0.2, 0.1}, {1, 0.25, 0.2, 100}};

struct node {
    const struct hkt__sched *sched;
    const struct hkt__step *step;
    int32_t rank, before, message;       /* before: in its queue; message: the send that a receive waits for; -1: none */
    bool is_done;
    double finish;
    struct hkt__path path;
};

struct paper {
    struct node *nodes;
    const int32_t *first;                /* [rank]: number of its first step */
    int32_t count;
    int32_t last[HKT__PROFILE_LOOKS];    /* what each rank did last; -1: nothing yet */
    const struct scale *scale;
};

static double duration(const struct hkt__work *work, const struct scale *scale)
{
    const double moved = work->sent + work->received + work->copied + work->reduced + work->fresh + work->relayed + work->read + work->written;

    return work->messages * scale->message + work->steps * scale->step + moved * scale->n;
}

/** A step may not start before `cause` is done, and what it did has travelled. */
static bool after(const struct paper *paper, int32_t cause, double travel, double *start, int32_t *out_cause)
{
    if (cause < 0)
        return true;
    if (!paper->nodes[cause].is_done)
        return false;
    if (*out_cause < 0 || paper->nodes[cause].finish + travel > *start) {
        *start = paper->nodes[cause].finish + travel;
        *out_cause = cause;
    }
    return true;
}

/** When a step can start, and because of what; false: not yet known. */
static bool find_start(const struct paper *paper, const struct node *node, double *out_start, int32_t *out_cause)
{
    const struct hkt__sched *sched = node->sched;
    bool ok;

    *out_start = 0;
    *out_cause = -1;
    ok = after(paper, paper->last[node->rank], 0, out_start, out_cause) && after(paper, node->before, 0, out_start, out_cause);
    for (int32_t i = 0; i < node->step->dep_count && ok; i++)
        ok = after(paper, paper->first[node->rank] + sched->deps[node->step->dep_first + i], 0, out_start, out_cause);
    return ok && after(paper, node->message, paper->scale->round, out_start, out_cause);
}

static void run_step(struct paper *paper, int32_t at, double start, int32_t cause)
{
    struct node *node = &paper->nodes[at];
    struct hkt__work own = {0};

    hkt__work_add_step(node->sched, node->step, &own);
    node->path = cause >= 0 ? paper->nodes[cause].path : (struct hkt__path){0};
    node->path.rounds += cause >= 0 && cause == node->message;
    hkt__work_add(&node->path.work, &own, 1);
    node->finish = start + duration(&own, paper->scale);
    node->is_done = true;
    paper->last[node->rank] = at;
}

/** Run all steps; the path of the one that ends last. */
static struct hkt__path run_all(struct paper *paper)
{
    int32_t latest = -1;

    for (int32_t r = 0; r < HKT__PROFILE_LOOKS; r++)
        paper->last[r] = -1;
    for (int32_t i = 0; i < paper->count; i++)
        paper->nodes[i].is_done = false;
    for (int32_t done = 0; done < paper->count; done++) {
        int32_t best = -1, best_cause = -1;
        double best_start = 0;

        for (int32_t i = 0; i < paper->count; i++) {
            int32_t cause;
            double start;

            if (paper->nodes[i].is_done || !find_start(paper, &paper->nodes[i], &start, &cause))
                continue;
            if (best < 0 || start < best_start) {
                best = i;
                best_start = start;
                best_cause = cause;
            }
        }
        if (best < 0)
            break; /* cannot happen: the rounds were found, so nothing waits in a circle */
        run_step(paper, best, best_start, best_cause);
        if (latest < 0 || paper->nodes[best].finish > paper->nodes[latest].finish)
            latest = best;
    }
    return latest >= 0 ? paper->nodes[latest].path : (struct hkt__path){0};
}

static enum hkt_status fill_rank(struct node *nodes, struct hkt__sched *const *scheds, int32_t rank,
                                 const struct hkt__rounds *rounds)
{
    const struct hkt__sched *sched = scheds[rank];
    const int32_t first = rounds->first[rank];
    struct hkt__queues queues;
    enum hkt_status rc = hkt__queues_init(&queues, sched);
    int32_t *last = rc == HKT_OK ? hkt__calloc((size_t)queues.count + 1, sizeof *last) : NULL; /* plus 1 */

    if (rc == HKT_OK && last == NULL)
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for the critical path of %s", sched->algo);
    for (int32_t i = 0; i < sched->nsteps && rc == HKT_OK; i++) {
        const struct hkt__step *step = &sched->steps[i];

        nodes[first + i] = (struct node){
            .sched = sched, .step = step, .rank = rank, .before = -1,
            .message = hkt__queue_kind(step) == HKT__QUEUE_RX ? rounds->mate[first + i] : -1};
        if (last[queues.of_step[i]] > 0)
            nodes[first + i].before = first + last[queues.of_step[i]] - 1;
        last[queues.of_step[i]] = i + 1;
    }
    hkt__free(last);
    hkt__queues_fini(&queues);
    return rc;
}

enum hkt_status hkt__path_find(struct hkt__sched *const *scheds, int nranks, struct hkt__profile *profile)
{
    struct hkt__rounds rounds;
    struct paper paper = {0};
    enum hkt_status rc;

    for (int r = 0; r < nranks; r++)
        paper.count += scheds[r]->nsteps;
    if (paper.count == 0 || paper.count > STEPS_MAX || nranks > HKT__PROFILE_LOOKS)
        return HKT_OK;
    rc = hkt__rounds_init(&rounds, scheds, nranks);
    paper.nodes = rc == HKT_OK ? hkt__calloc((size_t)paper.count, sizeof *paper.nodes) : NULL;
    if (rc == HKT_OK && paper.nodes == NULL)
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for a critical path of %d steps", (int)paper.count);
    for (int32_t r = 0; r < nranks && rc == HKT_OK; r++)
        rc = fill_rank(paper.nodes, scheds, r, &rounds);
    paper.first = rounds.first;
    for (int32_t i = 0; i < 2 && rc == HKT_OK; i++) {
        paper.scale = &scales[i];
        profile->paths[profile->npaths++] = run_all(&paper);
    }
    hkt__free(paper.nodes);
    hkt__rounds_fini(&rounds);
    return rc;
}
