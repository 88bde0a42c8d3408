/* See path.h. Steps are started one by one, earliest possible start first: after the step before in its queue, its
 * dependencies, the arrival of its message, and whatever its rank does before. The last of these to be done is its cause; the
 * path of a step is the path of its cause and itself. What could start is kept in a heap by when it could, as far as known
 * when it got there; a rank that was busy since puts a step back. */
#include "cost/path.h"

#include "core/error.h"
#include "core/mem.h"
#include "sched/queues.h"
#include "sched/rounds.h"

/* What things cost on paper, in units of one message's way within a cache: the longest path hardly depends on it, only on
 * whether waiting or bytes count most. Between hosts all is dearer, as in the defaults of prices.h. */
struct scale {
    double round, message, step, n;
    double net_round, net_message, net_n;
};
static const struct scale scales[2] = {{1, 0.25, 0.2, 0.1, 60, 13, 1}, {1, 0.25, 0.2, 100, 60, 13, 1000}};
/* Where ranks take turns on cores, to wait is all that counts: whoever waits for a turn has done its work when it comes. */
static const struct scale turns = {1, 0.02, 0.02, 0.01, 60, 13, 1};

/* Where ranks take turns on cores, a call of several rounds takes longer if its last wait is for a rank of another core: whoever
 * waits for the neighbour on the same core gives it its turn and finds the message when it is back, and what the call after that
 * sends to other cores first is on its way meanwhile. In rounds, of 4 ranks on 2 cores: by regression over all algorithms, to 300
 * bytes, 2026-11-30. */
#define LAST_ELSEWHERE 0.2

struct node {
    const struct hkt__sched *sched;
    const struct hkt__step *step;
    int32_t rank, before, message;       /* before: in its queue; message: the send that a receive waits for; -1: none */
    int32_t missing, unmet;              /* what it comes after, in all and not yet done */
    int32_t followers;                   /* list of edges, -1: end */
    bool is_net, is_core;                /* a receive from another host, from a rank of the same core */
    double wait;                         /* factor of the way of its message */
    double finish;
    bool is_elsewhere;                   /* the last wait of the path: for a rank of another core */
    struct hkt__path path;
};

/** A step that comes after another. */
struct edge {
    int32_t node, next;
};

/** A step that can be done, as far as it is known not before `start`. */
struct candidate {
    double start;
    int32_t node;
};

struct paper {
    const struct hkt__footing *footing;
    struct node *nodes;
    const int32_t *first;                /* [rank]: number of its first step */
    int32_t count;
    struct edge *edges;
    int32_t nedges;
    struct candidate *heap;
    int32_t nheap;
    int32_t *last;                       /* [rank]: what it did last; -1: nothing yet */
    const struct scale *scale;
};

static double duration(const struct hkt__work *work, const struct scale *scale)
{
    const double moved = work->sent + work->received + work->copied + work->stored + work->reduced + work->fresh + work->relayed +
                         work->read + work->written;

    return work->messages * scale->message + work->steps * scale->step + moved * scale->n +
           work->net_messages * scale->net_message + (work->net_sent + work->net_received) * scale->net_n;
}

/** A step may not start before `cause` is done, and what it did has travelled. */
static void after(const struct paper *paper, int32_t cause, double travel, double *start, int32_t *out_cause)
{
    if (cause < 0)
        return;
    if (*out_cause < 0 || paper->nodes[cause].finish + travel > *start) {
        *start = paper->nodes[cause].finish + travel;
        *out_cause = cause;
    }
}

/** When a step whose conditions are met can start, and because of what. */
static void find_start(const struct paper *paper, const struct node *node, double *out_start, int32_t *out_cause)
{
    const struct hkt__sched *sched = node->sched;

    *out_start = 0;
    *out_cause = -1;
    after(paper, paper->last[node->rank], 0, out_start, out_cause);
    after(paper, node->before, 0, out_start, out_cause);
    for (int32_t i = 0; i < node->step->dep_count; i++)
        after(paper, paper->first[node->rank] + sched->deps[node->step->dep_first + i], 0, out_start, out_cause);
    after(paper, node->message, node->is_net ? paper->scale->net_round * node->wait : paper->scale->round * node->wait, out_start,
          out_cause);
}

static bool comes_first(const struct candidate *a, const struct candidate *b)
{
    return a->start < b->start || (a->start <= b->start && a->node < b->node);
}

static void heap_push(struct paper *paper, struct candidate candidate)
{
    int32_t at = paper->nheap++;

    for (; at > 0 && comes_first(&candidate, &paper->heap[(at - 1) / 2]); at = (at - 1) / 2)
        paper->heap[at] = paper->heap[(at - 1) / 2];
    paper->heap[at] = candidate;
}

static struct candidate heap_pop(struct paper *paper)
{
    const struct candidate top = paper->heap[0], moved = paper->heap[--paper->nheap];
    int32_t at = 0;

    for (int32_t child = 1; child < paper->nheap; child = 2 * at + 1) {
        if (child + 1 < paper->nheap && comes_first(&paper->heap[child + 1], &paper->heap[child]))
            child++;
        if (!comes_first(&paper->heap[child], &moved))
            break;
        paper->heap[at] = paper->heap[child];
        at = child;
    }
    paper->heap[at] = moved;
    return top;
}

static void run_step(struct paper *paper, int32_t at, double start, int32_t cause)
{
    struct node *node = &paper->nodes[at];
    struct hkt__work own = {0};

    hkt__work_add_step(paper->footing, node->sched, node->step, &own);
    node->path = cause >= 0 ? paper->nodes[cause].path : (struct hkt__path){0};
    node->is_elsewhere = cause >= 0 && paper->nodes[cause].is_elsewhere;
    if (cause >= 0 && cause == node->message) {
        *(node->is_net ? &node->path.waits.net_rounds : &node->path.waits.rounds) += node->wait;
        node->is_elsewhere = !node->is_net && !node->is_core;
    }
    hkt__work_add(&node->path.work, &own, 1);
    node->finish = start + duration(&own, paper->scale);
    paper->last[node->rank] = at;
    for (int32_t e = node->followers; e >= 0; e = paper->edges[e].next) {
        const int32_t next = paper->edges[e].node;
        double next_start;
        int32_t ignored;

        if (--paper->nodes[next].unmet > 0)
            continue;
        find_start(paper, &paper->nodes[next], &next_start, &ignored);
        heap_push(paper, (struct candidate){next_start, next});
    }
}

/** Run all steps; the path of the one that ends last. */
static struct hkt__path run_all(struct paper *paper, int nranks)
{
    int32_t latest = -1;

    for (int r = 0; r < nranks; r++)
        paper->last[r] = -1;
    for (int32_t i = 0; i < paper->count; i++) {
        paper->nodes[i].unmet = paper->nodes[i].missing;
        if (paper->nodes[i].missing == 0)
            heap_push(paper, (struct candidate){0, i});
    }
    while (paper->nheap > 0) {
        const struct candidate best = heap_pop(paper);
        double start;
        int32_t cause;

        find_start(paper, &paper->nodes[best.node], &start, &cause);
        if (start > best.start) { /* its rank did something else meanwhile */
            heap_push(paper, (struct candidate){start, best.node});
            continue;
        }
        run_step(paper, best.node, start, cause);
        if (latest < 0 || paper->nodes[best.node].finish > paper->nodes[latest].finish)
            latest = best.node;
    }
    if (latest < 0)
        return (struct hkt__path){0};
    struct hkt__path path = paper->nodes[latest].path;

    const struct hkt__site *site = paper->footing->site;

    if (site != NULL && site->is_shared && paper->nodes[latest].is_elsewhere && path.waits.rounds > 1)
        path.waits.rounds += LAST_ELSEWHERE;
    return path;
}

static void add_edge(struct paper *paper, int32_t from, int32_t to)
{
    if (from < 0)
        return;
    paper->edges[paper->nedges] = (struct edge){to, paper->nodes[from].followers};
    paper->nodes[from].followers = paper->nedges++;
    paper->nodes[to].missing++;
}

static void add_edges(struct paper *paper)
{
    for (int32_t i = 0; i < paper->count; i++) {
        const struct node *node = &paper->nodes[i];

        add_edge(paper, node->before, i);
        add_edge(paper, node->message, i);
        for (int32_t d = 0; d < node->step->dep_count; d++)
            add_edge(paper, paper->first[node->rank] + node->sched->deps[node->step->dep_first + d], i);
    }
}

static enum hkt_status fill_rank(struct paper *paper, struct hkt__sched *const *scheds, int32_t rank,
                                 const struct hkt__rounds *rounds)
{
    struct node *nodes = paper->nodes;
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
            .sched = sched, .step = step, .rank = rank, .before = -1, .followers = -1,
            .message = hkt__queue_kind(step) == HKT__QUEUE_RX ? rounds->mate[first + i] : -1};
        if (nodes[first + i].message >= 0) {
            const struct hkt__link link = hkt__footing_link(paper->footing, rank, step->peer);

            nodes[first + i].is_net = link.is_net;
            nodes[first + i].is_core = link.is_core;
            nodes[first + i].wait = link.wait;
        }
        if (last[queues.of_step[i]] > 0)
            nodes[first + i].before = first + last[queues.of_step[i]] - 1;
        last[queues.of_step[i]] = i + 1;
    }
    hkt__free(last);
    hkt__queues_fini(&queues);
    return rc;
}

static enum hkt_status allocate(struct paper *paper, struct hkt__sched *const *scheds, int nranks)
{
    const size_t count = (size_t)paper->count;
    size_t nedges = 2 * count;

    for (int r = 0; r < nranks; r++)
        nedges += (size_t)scheds[r]->ndeps;
    paper->nodes = hkt__calloc(count, sizeof *paper->nodes);
    paper->edges = hkt__calloc(nedges, sizeof *paper->edges);
    paper->heap = hkt__calloc(count, sizeof *paper->heap);
    paper->last = hkt__calloc((size_t)nranks, sizeof *paper->last);
    if (paper->nodes == NULL || paper->edges == NULL || paper->heap == NULL || paper->last == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a critical path of %d steps", (int)paper->count);
    return HKT_OK;
}

enum hkt_status hkt__path_find(const struct hkt__footing *footing, struct hkt__sched *const *scheds, int nranks,
                               struct hkt__profile *profile)
{
    struct hkt__rounds rounds;
    struct paper paper = {.footing = footing};
    enum hkt_status rc;

    for (int r = 0; r < nranks; r++)
        paper.count += scheds[r]->nsteps;
    if (paper.count == 0 || paper.count > HKT__PATH_STEPS_MAX)
        return HKT_OK;
    rc = hkt__rounds_init(&rounds, scheds, nranks);
    if (rc == HKT_OK)
        rc = allocate(&paper, scheds, nranks);
    paper.first = rounds.first;
    for (int32_t r = 0; r < nranks && rc == HKT_OK; r++)
        rc = fill_rank(&paper, scheds, r, &rounds);
    if (rc == HKT_OK)
        add_edges(&paper);
    for (int32_t i = 0; i < 2 && rc == HKT_OK; i++) {
        paper.scale = i == 0 && footing->site != NULL && footing->site->is_shared ? &turns : &scales[i];
        profile->paths[profile->npaths++] = run_all(&paper, nranks);
    }
    hkt__free(paper.nodes);
    hkt__free(paper.edges);
    hkt__free(paper.heap);
    hkt__free(paper.last);
    hkt__rounds_fini(&rounds);
    return rc;
}
