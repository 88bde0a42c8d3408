/* Stages 5 and 6: happens-before. Its edges are the queues, the dependencies, and every message from its sending step
 * to its receiving one; never back, since a SEND may be buffered. Memory of a peer is used only between two messages:
 * one that comes, however far round, from its owner, and (IN and OUT) one that goes back.
 *
 * The pairs noted while values were computed are searched in full: each first step gets a bit, and the bits flow
 * through the steps in order, BATCH at a time, from the earliest first step to the last step that any of them must
 * reach. For a plan of n steps that is n^2 / BATCH visits at worst; conflicts are usually close, and most need no
 * search at all. Where the end of a rank must be reached, the ends get the bits, being fewer, and they flow back. */
#include "core/mem.h"
#include "sched/verify_int.h"

#include <stdlib.h>
#include <string.h>

enum {
    WORDS = 4,          /* of a mask */
    BATCH = 64 * WORDS, /* first steps whose bits flow at a time */
};
/* Steps visited by the searches of one verification, at most: about a minute. Beyond it pairs are refused unproved. */
#define VISITS_MAX INT64_C(4000000000)

struct mask {
    uint64_t word[WORDS];
};

struct search {
    struct hkt__proof *v;
    int64_t visits;
    int32_t *place;         /* per step: its index in order */
    struct mask *masks;     /* per place from `from` on: bits that have reached the end of the step there */
    int32_t from;           /* no bit starts before this place */
    struct mask *own, *end; /* per rank: bits that all its steps have; bits that have reached any of its steps */
};

static bool is_step(const struct hkt__proof *v, int32_t node)
{
    return node < v->nsteps;
}

static int32_t rank_of(const struct hkt__proof *v, int32_t node)
{
    return is_step(v, node) ? v->rank_of[node] : node - v->nsteps;
}

static void merge(struct mask *into, const struct mask *from)
{
    for (int w = 0; w < WORDS; w++)
        into->word[w] |= from->word[w];
}

static void merge_step(const struct search *s, struct mask *into, int32_t step)
{
    if (s->place[step] >= s->from)
        merge(into, &s->masks[s->place[step] - s->from]);
}

/* Forget all bits. Those of the next batch will start at `from` or later and flow up to `to`. */
static void clear(struct search *s, int32_t from, int32_t to)
{
    s->from = from;
    memset(s->masks, 0, (size_t)(to - from + 1) * sizeof *s->masks);
    memset(s->own, 0, (size_t)s->v->nranks * sizeof *s->own);
    memset(s->end, 0, (size_t)s->v->nranks * sizeof *s->end);
}

static void flow(struct search *s, int32_t to)
{
    const struct hkt__proof *v = s->v;

    for (int32_t at = s->from; at <= to; at++) {
        const int32_t node = v->order[at], rank = v->rank_of[node], base = v->base[rank];
        const struct hkt__step *step = &v->scheds[rank]->steps[node - base];
        const int32_t *deps = v->scheds[rank]->deps + step->dep_first;
        struct mask mask = s->masks[at - s->from];

        merge(&mask, &s->own[rank]);
        if (v->before[node] >= 0)
            merge_step(s, &mask, v->before[node]);
        for (int32_t k = 0; k < step->dep_count; k++)
            merge_step(s, &mask, base + deps[k]);
        if (hkt__is_rx(step->kind))
            merge_step(s, &mask, v->match[node]);
        s->masks[at - s->from] = mask;
        merge(&s->end[rank], &mask);
    }
    s->visits += to - s->from + 1;
}

/* The other way, through all steps: a step gets the bits of all that happens after it. */
static void flow_back(struct search *s)
{
    const struct hkt__proof *v = s->v;

    for (int32_t at = v->nsteps - 1; at >= 0; at--) {
        const int32_t node = v->order[at], rank = v->rank_of[node], base = v->base[rank];
        const struct hkt__step *step = &v->scheds[rank]->steps[node - base];
        const int32_t *deps = v->scheds[rank]->deps + step->dep_first;
        struct mask *mask = &s->masks[at];

        merge(mask, &s->own[rank]);
        if (v->before[node] >= 0)
            merge(&s->masks[s->place[v->before[node]]], mask);
        for (int32_t k = 0; k < step->dep_count; k++)
            merge(&s->masks[s->place[base + deps[k]]], mask);
        if (hkt__is_rx(step->kind))
            merge(&s->masks[s->place[v->match[node]]], mask);
    }
    s->visits += v->nsteps;
}

static void set_bit(struct mask *mask, int32_t bit)
{
    mask->word[bit / 64] |= UINT64_C(1) << bit % 64;
}

static bool has_bit(const struct mask *mask, int32_t bit)
{
    return (mask->word[bit / 64] >> bit % 64 & 1) != 0;
}

static enum hkt_status fail_pair(struct hkt__proof *v, const struct hkt__proof_pair *pair)
{
    if (!is_step(v, pair->first))
        return hkt__proof_fail(v, "race: %s uses memory of rank %d without a message from there that grants it",
                               hkt__proof_step_text(v, pair->then).s, (int)rank_of(v, pair->first));
    if (!is_step(v, pair->then))
        return hkt__proof_fail(v, "race: %s uses IN or OUT of rank %d, which may end first: no message hands it back",
                               hkt__proof_step_text(v, pair->first).s, (int)rank_of(v, pair->then));
    return hkt__proof_fail(v, "race: %s and %s touch one chunk, one of them writes it, and nothing orders them",
                           hkt__proof_step_text(v, pair->first).s, hkt__proof_step_text(v, pair->then).s);
}

/* While pairs are searched, first is a key that sorts by where its bit starts to flow: rank starts, then places. */
static int32_t key_of(const struct search *s, int32_t node)
{
    return is_step(s->v, node) ? s->v->nranks + s->place[node] : node - s->v->nsteps;
}

static int32_t node_of(const struct search *s, int32_t key)
{
    return key < s->v->nranks ? s->v->nsteps + key : s->v->order[key - s->v->nranks];
}

static int compare_pairs(const void *a, const void *b)
{
    const struct hkt__proof_pair *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

/* The pairs in [at, npairs) whose first steps fit in one batch end before the index returned; *out_to is the last place
 * that one of them must reach. */
static int32_t batch_end(const struct search *s, int32_t at, int32_t npairs, int32_t *out_to)
{
    const struct hkt__proof *v = s->v;
    int32_t nbits = 0;

    *out_to = 0;
    for (; at < npairs; at++) {
        const struct hkt__proof_pair *pair = &v->pairs[at];
        const bool is_new = nbits == 0 || pair->first != pair[-1].first;
        const int32_t place = s->place[pair->then];

        if (is_new && nbits == BATCH)
            break;
        nbits += is_new;
        *out_to = place > *out_to ? place : *out_to;
    }
    return at;
}

static enum hkt_status prove_batch(struct search *s, int32_t first, int32_t end, int32_t to)
{
    struct hkt__proof *v = s->v;
    const int32_t from = v->pairs[first].first - v->nranks;
    int32_t bit = -1;

    clear(s, from < 0 ? 0 : from, to);
    for (int32_t i = first; i < end; i++) {
        const int32_t node = node_of(s, v->pairs[i].first);

        if (i == first || v->pairs[i].first != v->pairs[i - 1].first)
            set_bit(is_step(v, node) ? &s->masks[s->place[node] - s->from] : &s->own[rank_of(v, node)], ++bit);
    }
    flow(s, to);
    bit = -1;
    for (int32_t i = first; i < end; i++) {
        const struct hkt__proof_pair pair = { node_of(s, v->pairs[i].first), v->pairs[i].then };

        bit += i == first || v->pairs[i].first != v->pairs[i - 1].first;
        if (!has_bit(&s->masks[s->place[pair.then] - s->from], bit))
            return fail_pair(v, &pair);
    }
    return HKT_OK;
}

static enum hkt_status init(struct search *s)
{
    struct hkt__proof *v = s->v;

    s->place = hkt__calloc((size_t)v->nsteps, sizeof *s->place);
    s->masks = hkt__calloc((size_t)v->nsteps, sizeof *s->masks);
    s->own = hkt__calloc((size_t)v->nranks, sizeof *s->own);
    s->end = hkt__calloc((size_t)v->nranks, sizeof *s->end);
    if (s->place == NULL || s->masks == NULL || s->own == NULL || s->end == NULL)
        return hkt__proof_nomem();
    for (int32_t i = 0; i < v->nsteps; i++)
        s->place[v->order[i]] = i;
    return HKT_OK;
}

static void fini(struct search *s)
{
    hkt__free(s->place);
    hkt__free(s->masks);
    hkt__free(s->own);
    hkt__free(s->end);
}

static enum hkt_status check_limit(const struct search *s)
{
    if (s->visits <= VISITS_MAX)
        return HKT_OK;
    return hkt__proof_fail(s->v,
                           "race: %d pairs of accesses could not be searched within the limit; verify fewer ranks",
                           (int)s->v->npairs);
}

/* The pairs [0, npairs), where `then` is a step. */
static enum hkt_status prove_steps(struct search *s, int32_t npairs)
{
    struct hkt__proof *v = s->v;
    enum hkt_status rc = HKT_OK;

    for (int32_t i = 0; i < npairs; i++)
        v->pairs[i].first = key_of(s, v->pairs[i].first);
    qsort(v->pairs, (size_t)npairs, sizeof *v->pairs, compare_pairs);
    for (int32_t at = 0, to; at < npairs && rc == HKT_OK;) {
        const int32_t end = batch_end(s, at, npairs, &to);

        rc = prove_batch(s, at, end, to);
        if (rc == HKT_OK)
            rc = check_limit(s);
        at = end;
    }
    return rc;
}

/* The pairs [first, npairs), where `then` is the end of a rank. */
static enum hkt_status prove_ends(struct search *s, int32_t first)
{
    struct hkt__proof *v = s->v;

    for (int32_t low = 0; first < v->npairs && low < v->nranks; low += BATCH) {
        const int32_t count = v->nranks - low < BATCH ? v->nranks - low : BATCH;

        clear(s, 0, v->nsteps - 1);
        for (int32_t k = 0; k < count; k++)
            set_bit(&s->own[low + k], k);
        flow_back(s);
        for (int32_t i = first; i < v->npairs; i++) {
            const int32_t bit = rank_of(v, v->pairs[i].then) - low;

            if (bit >= 0 && bit < count && !has_bit(&s->masks[s->place[v->pairs[i].first]], bit))
                return fail_pair(v, &v->pairs[i]);
        }
    }
    return check_limit(s);
}

/* Moves the pairs that lead to steps to the front. Returns how many there are. */
static int32_t part_pairs(struct hkt__proof *v)
{
    int32_t front = 0;

    for (int32_t i = 0; i < v->npairs; i++) {
        const struct hkt__proof_pair pair = v->pairs[i];

        if (!is_step(v, pair.then))
            continue;
        v->pairs[i] = v->pairs[front];
        v->pairs[front++] = pair;
    }
    return front;
}

enum hkt_status hkt__proof_races(struct hkt__proof *v)
{
    struct search s = { .v = v };
    enum hkt_status rc;

    if (v->npairs == 0)
        return HKT_OK;
    const int32_t front = part_pairs(v);

    rc = init(&s);
    if (rc == HKT_OK)
        rc = prove_steps(&s, front);
    if (rc == HKT_OK)
        rc = prove_ends(&s, front);
    fini(&s);
    return rc;
}

static enum hkt_status check_heard(struct search *s, int32_t first, int32_t count)
{
    for (int32_t r = 0; r < s->v->nranks; r++)
        for (int32_t k = 0; k < count; k++)
            if (r != first + k && !has_bit(&s->end[r], k))
                return hkt__proof_fail(s->v, "result: rank %d may leave before rank %d has entered", (int)r,
                                       (int)(first + k));
    return HKT_OK;
}

enum hkt_status hkt__proof_barrier(struct hkt__proof *v)
{
    struct search s = { .v = v };
    enum hkt_status rc;

    if (v->scheds[0]->coll != HKT_BARRIER)
        return HKT_OK;
    rc = init(&s);
    for (int32_t first = 0; first < v->nranks && rc == HKT_OK; first += BATCH) {
        const int32_t count = v->nranks - first < BATCH ? v->nranks - first : BATCH;

        clear(&s, 0, v->nsteps - 1);
        for (int32_t k = 0; k < count; k++)
            set_bit(&s.own[first + k], k);
        flow(&s, v->nsteps - 1);
        rc = check_heard(&s, first, count);
    }
    fini(&s);
    return rc;
}
