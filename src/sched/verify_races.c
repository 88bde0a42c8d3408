/* Stages 5 and 6: happens-before. Its edges are the queues, the dependencies, and every message from its sending step to
 * its receiving one; never back, since a SEND may be buffered. Memory of a peer is used only between two messages: one
 * that comes, however far round, from its owner, and (IN and OUT) one that goes back.
 *
 * The pairs noted while values were computed are proved in two ways. First a short search: within one rank, or over one
 * message from one rank to the other; this is sound, and for most pairs enough. What remains is searched in full: bits,
 * one per first step of a pair, flow through all steps in order, BATCH at a time. When that would take too long (many
 * ranks, many pairs), the remaining pairs are refused: the verifier never believes. */
#include "core/mem.h"
#include "sched/verify_int.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORDS = 4,               /* of a mask */
    BATCH = 64 * WORDS,      /* first steps whose bits flow at a time */
    VISITS_MAX = 256,        /* of one short search */
};
/* Steps visited by full searches, at most: some seconds. */
#define FULL_VISITS_MAX INT64_C(2000000000)

struct mask {
    uint64_t word[WORDS];
};

struct search {
    struct hkt__vrf *v;
    /* Short searches. */
    int32_t *visited;        /* per step: == query */
    int32_t query;
    int32_t stack[VISITS_MAX];
    /* Full searches. */
    int32_t *place;          /* per step: its index in order */
    struct mask *mask;       /* per step: bits that have reached its end */
    struct mask *start, *end; /* per rank: bits that are at all its steps; bits that have reached any of its steps */
};

static int32_t rank_of(const struct hkt__vrf *v, int32_t node)
{
    return node < v->nsteps ? v->rank_of[node] : node - v->nsteps;
}

static bool is_step(const struct hkt__vrf *v, int32_t node)
{
    return node < v->nsteps;
}

/* Is `first` before `then`, both of one rank, as far as that rank alone knows? May say no when the way is long. */
static bool is_before_locally(struct search *s, int32_t first, int32_t then)
{
    const struct hkt__vrf *v = s->v;
    const int32_t base = v->base[v->rank_of[then]];
    int32_t nstacked = 0, nvisits = 0;

    if (first >= then)
        return first == then;
    s->query++;
    s->stack[nstacked++] = then;
    while (nstacked > 0 && nvisits++ < VISITS_MAX) {
        const int32_t at = s->stack[--nstacked];
        const struct hkt__step *step = hkt__vrf_step(v, at);
        const int32_t *deps = hkt__vrf_sched(v, at)->deps + step->dep_first;

        if (v->queue[at] == v->queue[first])
            return true;
        for (int32_t k = -1; k < step->dep_count; k++) {
            const int32_t earlier = k < 0 ? v->before[at] : base + deps[k];

            if (earlier == first)
                return true;
            if (earlier < first || s->visited[earlier] == s->query || nstacked == VISITS_MAX)
                continue; /* steps are numbered in order: nothing before `first` can follow it */
            s->visited[earlier] = s->query;
            s->stack[nstacked++] = earlier;
        }
    }
    return false;
}

/* Where messages from `source` begin among those to a destination; they end where the sender changes. */
static int32_t first_message(const struct hkt__vrf *v, int32_t source, int32_t destination)
{
    int32_t low = v->tx_first[destination], high = v->tx_first[destination + 1];

    while (low < high) {
        const int32_t middle = low + (high - low) / 2;

        if (v->rank_of[v->tx[middle]] < source)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* One message leads from the first to the second, which are at different ranks. */
static bool is_one_message_away(struct search *s, const struct hkt__vrf_pair *pair)
{
    const struct hkt__vrf *v = s->v;
    const int32_t source = rank_of(v, pair->first), destination = rank_of(v, pair->then);

    for (int32_t i = first_message(v, source, destination); i < v->tx_first[destination + 1]; i++) {
        const int32_t tx = v->tx[i];

        if (v->rank_of[tx] != source)
            break;
        if ((!is_step(v, pair->first) || is_before_locally(s, pair->first, tx)) &&
            (!is_step(v, pair->then) || is_before_locally(s, v->match[tx], pair->then)))
            return true;
    }
    return false;
}

/* Drop the pairs that a short search proves. */
static void drop_near_pairs(struct search *s)
{
    struct hkt__vrf *v = s->v;
    int32_t nkept = 0;

    for (int32_t i = 0; i < v->npairs; i++) {
        const struct hkt__vrf_pair pair = v->pairs[i];
        const bool is_ordered = rank_of(v, pair.first) == rank_of(v, pair.then)
                                    ? is_before_locally(s, pair.first, pair.then)
                                    : is_one_message_away(s, &pair);

        if (!is_ordered)
            v->pairs[nkept++] = pair;
    }
    v->npairs = nkept;
}

static void merge(struct mask *into, const struct mask *from)
{
    for (int w = 0; w < WORDS; w++)
        into->word[w] |= from->word[w];
}

/* Let bits flow through the steps from place `from` on. Before that place no step holds any. */
static void flow(struct search *s, int32_t from)
{
    const struct hkt__vrf *v = s->v;

    for (int32_t at = from; at < v->nsteps; at++) {
        const int32_t node = v->order[at], rank = v->rank_of[node], base = v->base[rank];
        const struct hkt__step *step = hkt__vrf_step(v, node);
        const int32_t *deps = v->scheds[rank]->deps + step->dep_first;
        struct mask mask = s->mask[node];

        merge(&mask, &s->start[rank]);
        if (v->before[node] >= 0)
            merge(&mask, &s->mask[v->before[node]]);
        for (int32_t k = 0; k < step->dep_count; k++)
            merge(&mask, &s->mask[base + deps[k]]);
        if (hkt__is_rx(step->kind))
            merge(&mask, &s->mask[v->match[node]]);
        s->mask[node] = mask;
        merge(&s->end[rank], &mask);
    }
}

static void clear(struct search *s)
{
    memset(s->mask, 0, (size_t)s->v->nsteps * sizeof *s->mask);
    memset(s->start, 0, (size_t)s->v->nranks * sizeof *s->start);
    memset(s->end, 0, (size_t)s->v->nranks * sizeof *s->end);
}

static enum hkt_status fail_pair(struct hkt__vrf *v, const struct hkt__vrf_pair *pair, bool is_searched)
{
    const char *doubt = is_searched ? "" : " (too many steps to search ways over several ranks)";

    if (!is_step(v, pair->first))
        return hkt__vrf_fail(v, "race: %s uses memory of rank %d without a message from there that grants it%s",
                             hkt__vrf_step_text(v, pair->then).s, (int)rank_of(v, pair->first), doubt);
    if (!is_step(v, pair->then))
        return hkt__vrf_fail(v, "race: %s uses IN or OUT of rank %d, which may end first: no message hands it back%s",
                             hkt__vrf_step_text(v, pair->first).s, (int)rank_of(v, pair->then), doubt);
    return hkt__vrf_fail(v, "race: %s and %s touch one chunk, one of them writes it, and nothing orders them%s",
                         hkt__vrf_step_text(v, pair->first).s, hkt__vrf_step_text(v, pair->then).s, doubt);
}

/* Pairs sorted by where the bit of their first step starts to flow: rank starts, then steps as in order. */
static int32_t sort_key(const struct search *s, int32_t node)
{
    return is_step(s->v, node) ? s->v->nranks + s->place[node] : node - s->v->nsteps;
}

static int32_t from_sort_key(const struct search *s, int32_t key)
{
    return key < s->v->nranks ? s->v->nsteps + key : s->v->order[key - s->v->nranks];
}

static int compare_pairs(const void *a, const void *b)
{
    const struct hkt__vrf_pair *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

/* Prove pairs[at..) whose first steps fit in one batch. Gives the index behind them. */
static enum hkt_status prove_batch(struct search *s, int32_t at, int32_t *out_next)
{
    struct hkt__vrf *v = s->v;
    const int32_t lowest = v->pairs[at].first;
    int32_t next = at, nbits = 0;

    clear(s);
    for (; next < v->npairs; next++) { /* give each first step a bit */
        const int32_t node = from_sort_key(s, v->pairs[next].first);

        if (next > at && v->pairs[next].first == v->pairs[next - 1].first)
            continue;
        if (nbits == BATCH)
            break;
        struct mask *mask = is_step(v, node) ? &s->mask[node] : &s->start[rank_of(v, node)];

        mask->word[nbits / 64] |= UINT64_C(1) << nbits % 64;
        nbits++;
    }
    flow(s, lowest < v->nranks ? 0 : lowest - v->nranks);
    nbits = 0;
    for (int32_t i = at; i < next; i++) {
        const struct hkt__vrf_pair pair = { from_sort_key(s, v->pairs[i].first), v->pairs[i].then };
        const struct mask *mask = is_step(v, pair.then) ? &s->mask[pair.then] : &s->end[rank_of(v, pair.then)];

        if (i > at && v->pairs[i].first != v->pairs[i - 1].first)
            nbits++;
        if ((mask->word[nbits / 64] >> nbits % 64 & 1) == 0)
            return fail_pair(v, &pair, true);
    }
    *out_next = next;
    return HKT_OK;
}

static enum hkt_status init_full(struct search *s)
{
    struct hkt__vrf *v = s->v;

    s->place = hkt__calloc((size_t)v->nsteps, sizeof *s->place);
    s->mask = hkt__calloc((size_t)v->nsteps, sizeof *s->mask);
    s->start = hkt__calloc((size_t)v->nranks, sizeof *s->start);
    s->end = hkt__calloc((size_t)v->nranks, sizeof *s->end);
    if (s->place == NULL || s->mask == NULL || s->start == NULL || s->end == NULL)
        return hkt__vrf_nomem();
    for (int32_t i = 0; i < v->nsteps; i++)
        s->place[v->order[i]] = i;
    return HKT_OK;
}

static void fini(struct search *s)
{
    hkt__free(s->visited);
    hkt__free(s->place);
    hkt__free(s->mask);
    hkt__free(s->start);
    hkt__free(s->end);
}

static enum hkt_status prove_far_pairs(struct search *s)
{
    struct hkt__vrf *v = s->v;
    int32_t at = 0;
    enum hkt_status rc = HKT_OK;

    if ((int64_t)(v->npairs / BATCH + 1) * v->nsteps > FULL_VISITS_MAX) /* at most one batch per BATCH pairs */
        return fail_pair(v, &v->pairs[0], false);
    rc = init_full(s);
    if (rc != HKT_OK)
        return rc;
    for (int32_t i = 0; i < v->npairs; i++)
        v->pairs[i].first = sort_key(s, v->pairs[i].first);
    qsort(v->pairs, (size_t)v->npairs, sizeof *v->pairs, compare_pairs);
    while (at < v->npairs && rc == HKT_OK)
        rc = prove_batch(s, at, &at);
    return rc;
}

enum hkt_status hkt__vrf_races(struct hkt__vrf *v)
{
    struct search s = { .v = v };
    enum hkt_status rc = HKT_OK;

    if (v->npairs == 0)
        return HKT_OK;
    s.visited = hkt__calloc((size_t)v->nsteps, sizeof *s.visited);
    if (s.visited == NULL)
        return hkt__vrf_nomem();
    drop_near_pairs(&s);
    if (v->npairs > 0)
        rc = prove_far_pairs(&s);
    fini(&s);
    return rc;
}

static enum hkt_status check_heard(struct search *s, int32_t first, int32_t count)
{
    for (int32_t r = 0; r < s->v->nranks; r++)
        for (int32_t k = 0; k < count; k++)
            if (r != first + k && (s->end[r].word[k / 64] >> k % 64 & 1) == 0)
                return hkt__vrf_fail(s->v, "result: rank %d may leave before rank %d has entered", (int)r,
                                     (int)(first + k));
    return HKT_OK;
}

enum hkt_status hkt__vrf_barrier(struct hkt__vrf *v)
{
    struct search s = { .v = v };
    enum hkt_status rc;

    if (v->scheds[0]->coll != HKT_BARRIER)
        return HKT_OK;
    rc = init_full(&s);
    for (int32_t first = 0; first < v->nranks && rc == HKT_OK; first += BATCH) {
        const int32_t count = v->nranks - first < BATCH ? v->nranks - first : BATCH;

        clear(&s);
        for (int32_t k = 0; k < count; k++)
            s.start[first + k].word[k / 64] |= UINT64_C(1) << k % 64;
        flow(&s, 0);
        rc = check_heard(&s, first, count);
    }
    fini(&s);
    return rc;
}
