#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nodes: all steps, then per rank its entry and its end. Edges: queues, dependencies, sender to receiver, entry to
 * every step of the rank, every step to its end. */
struct access {
    int32_t node, cell; /* cells are numbered over all ranks */
    bool is_write;
};

struct number {
    uint64_t sum;  /* the values, added */
    uint64_t tree; /* mixed: tells (a + b) + c from a + (b + c), but not a + b from b + a */
    uint64_t order; /* tells those, too */
};

struct oracle {
    struct hkt__sched *const *scheds;
    int nranks, nsteps, nnodes, nwords;
    int32_t *base, *cell_base; /* [nranks + 1] */
    int32_t *rank_of, *match;
    int32_t *npreds, *preds; /* per node: up to preds_max */
    int preds_max;
    uint64_t *before; /* per node: the set of nodes that happen before it */
    struct access *accesses;
    int naccesses;
    /* One run. */
    struct number *cells, **messages;
    int32_t *succ_first, *succ; /* the reverse of preds */
    int32_t *pending, *ready;
    int nready;
    bool *done, is_ordered;
    char why[256];
};

static void *take(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);

    if (memory == NULL)
        abort();
    return memory;
}

static const struct hkt__step *step_at(const struct oracle *o, int node)
{
    return &o->scheds[o->rank_of[node]]->steps[node - o->base[o->rank_of[node]]];
}

static const struct hkt__arg *args_at(const struct oracle *o, int node)
{
    return o->scheds[o->rank_of[node]]->args + step_at(o, node)->arg_first;
}

static int entry_of(const struct oracle *o, int rank)
{
    return o->nsteps + rank;
}

static int end_of(const struct oracle *o, int rank)
{
    return o->nsteps + o->nranks + rank;
}

static int side(const struct hkt__step *s) /* 0 sends, 1 receives, 2 works */
{
    return s->kind == HKT__SEND || s->kind == HKT__SIGNAL                                ? 0
           : s->kind == HKT__RECV || s->kind == HKT__RECV_REDUCE || s->kind == HKT__WAIT ? 1
                                                                                         : 2;
}

static bool same_queue(const struct hkt__step *a, const struct hkt__step *b)
{
    return side(a) == side(b) && a->lane == b->lane && (side(a) == 2 || a->peer == b->peer);
}

static int32_t cell_of(const struct oracle *o, int rank, const struct hkt__operand *x, int32_t piece)
{
    return o->cell_base[rank] + hkt__cell(o->scheds[rank], (enum hkt__buf)x->buf, hkt__span_at(&x->at, piece));
}

/* --- building --- */

/* The sender of a receive: as many sends on the stream come before it as receives before the receive. */
static int find_sender(const struct oracle *o, int receive)
{
    const struct hkt__step *r = step_at(o, receive);
    const int rank = o->rank_of[receive];
    int nth = 0;

    for (int i = o->base[rank]; i < receive; i++)
        nth += same_queue(step_at(o, i), r);
    for (int i = o->base[r->peer]; i < o->base[r->peer + 1]; i++) {
        const struct hkt__step *s = step_at(o, i);

        if (side(s) == 0 && s->peer == rank && s->lane == r->lane && nth-- == 0)
            return i;
    }
    return -1;
}

static bool find_matches(struct oracle *o)
{
    int open = 0;

    for (int i = 0; i < o->nsteps; i++) {
        const int way = side(step_at(o, i));

        open += way == 0 ? 1 : way == 1 ? -1 : 0;
        o->match[i] = -1;
    }
    for (int i = 0; i < o->nsteps; i++) {
        if (side(step_at(o, i)) != 1)
            continue;
        const int sender = find_sender(o, i);

        if (sender < 0)
            return false;
        o->match[i] = sender;
        o->match[sender] = i;
    }
    return open == 0;
}

static void add_pred(struct oracle *o, int node, int pred)
{
    if (o->npreds[node] == o->preds_max)
        abort();
    o->preds[node * o->preds_max + o->npreds[node]++] = pred;
}

static void find_preds(struct oracle *o)
{
    for (int r = 0; r < o->nranks; r++)
        for (int i = o->base[r]; i < o->base[r + 1]; i++) {
            const struct hkt__step *s = step_at(o, i);

            add_pred(o, i, entry_of(o, r));
            add_pred(o, end_of(o, r), i);
            for (int k = 0; k < s->dep_count; k++)
                add_pred(o, i, o->base[r] + o->scheds[r]->deps[s->dep_first + k]);
            for (int k = i - 1; k >= o->base[r]; k--)
                if (same_queue(step_at(o, k), s)) {
                    add_pred(o, i, k);
                    break;
                }
            if (side(s) == 1)
                add_pred(o, i, o->match[i]);
        }
}

static void find_succs(struct oracle *o)
{
    for (int node = 0; node < o->nnodes; node++)
        for (int k = 0; k < o->npreds[node]; k++)
            o->succ_first[o->preds[node * o->preds_max + k] + 1]++;
    for (int node = 0; node < o->nnodes; node++)
        o->succ_first[node + 1] += o->succ_first[node];
    o->succ = take((size_t)o->succ_first[o->nnodes], sizeof *o->succ);
    int32_t *fill = take((size_t)o->nnodes, sizeof *fill);

    for (int node = 0; node < o->nnodes; node++)
        for (int k = 0; k < o->npreds[node]; k++) {
            const int pred = o->preds[node * o->preds_max + k];

            o->succ[o->succ_first[pred] + fill[pred]++] = node;
        }
    free(fill);
}

static uint64_t *before(const struct oracle *o, int node)
{
    return &o->before[(size_t)node * (size_t)o->nwords];
}

static bool is_before(const struct oracle *o, int first, int then)
{
    return (before(o, then)[first / 64] >> first % 64 & 1) != 0;
}

/* Until nothing changes: slow, and it needs no order to start from. */
static void close_order(struct oracle *o)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (int node = 0; node < o->nnodes; node++)
            for (int k = 0; k < o->npreds[node]; k++) {
                const int pred = o->preds[node * o->preds_max + k];
                uint64_t *to = before(o, node);

                for (int w = 0; w < o->nwords; w++) {
                    const uint64_t bits = before(o, pred)[w] | (w == pred / 64 ? UINT64_C(1) << pred % 64 : 0);

                    changed = changed || (bits & ~to[w]) != 0;
                    to[w] |= bits;
                }
            }
    }
}

static void note_accesses(struct oracle *o, int node, int rank, const struct hkt__operand *x, bool is_write)
{
    for (int32_t i = 0; i < x->count; i++) {
        if (o->accesses != NULL)
            o->accesses[o->naccesses] = (struct access){ node, cell_of(o, rank, x, i), is_write };
        o->naccesses++;
    }
}

static void find_accesses(struct oracle *o)
{
    o->naccesses = 0;
    for (int node = 0; node < o->nsteps; node++) {
        const struct hkt__step *s = step_at(o, node);

        if (s->kind == HKT__SIGNAL || s->kind == HKT__WAIT)
            continue;
        for (int k = 0; k < s->arg_count; k++)
            note_accesses(o, node, args_at(o, node)[k].rank, &args_at(o, node)[k].x, s->kind == HKT__WRITE && k > 0);
        if (s->kind != HKT__SEND && s->kind != HKT__WRITE)
            note_accesses(o, node, o->rank_of[node], &s->dst, true);
    }
}

static void lay_out(struct oracle *o)
{
    o->base = take((size_t)o->nranks + 1, sizeof *o->base);
    o->cell_base = take((size_t)o->nranks + 1, sizeof *o->cell_base);
    o->preds_max = 3;
    for (int r = 0; r < o->nranks; r++) {
        const struct hkt__sched *sched = o->scheds[r];

        o->base[r + 1] = o->base[r] + sched->nsteps;
        o->cell_base[r + 1] = o->cell_base[r] + hkt__cell_count(sched);
        for (int i = 0; i < sched->nsteps; i++)
            if (sched->steps[i].dep_count + 3 > o->preds_max)
                o->preds_max = sched->steps[i].dep_count + 3;
        if (sched->nsteps > o->preds_max)
            o->preds_max = sched->nsteps;
    }
    o->nsteps = o->base[o->nranks];
    o->nnodes = o->nsteps + 2 * o->nranks;
    o->nwords = (o->nnodes + 63) / 64;
    o->rank_of = take((size_t)o->nnodes, sizeof *o->rank_of);
    for (int r = 0; r < o->nranks; r++) {
        for (int i = o->base[r]; i < o->base[r + 1]; i++)
            o->rank_of[i] = r;
        o->rank_of[entry_of(o, r)] = o->rank_of[end_of(o, r)] = r;
    }
}

struct oracle *oracle_create(struct hkt__sched *const *scheds, int nranks)
{
    struct oracle *o = take(1, sizeof *o);

    o->scheds = scheds;
    o->nranks = nranks;
    lay_out(o);
    const size_t nsteps = (size_t)o->nsteps, nnodes = (size_t)o->nnodes;

    o->match = take(nsteps, sizeof *o->match);
    o->npreds = take(nnodes, sizeof *o->npreds);
    o->preds = take(nnodes * (size_t)o->preds_max, sizeof *o->preds);
    o->succ_first = take(nnodes + 1, sizeof *o->succ_first);
    o->before = take(nnodes * (size_t)o->nwords, sizeof *o->before);
    o->cells = take((size_t)o->cell_base[nranks], sizeof *o->cells);
    o->messages = take(nsteps, sizeof *o->messages);
    o->pending = take(nnodes, sizeof *o->pending);
    o->ready = take(nnodes, sizeof *o->ready);
    o->done = take(nnodes, sizeof *o->done);
    if (!find_matches(o)) {
        oracle_destroy(o);
        return NULL;
    }
    find_preds(o);
    find_succs(o);
    close_order(o);
    find_accesses(o);
    o->accesses = take((size_t)o->naccesses, sizeof *o->accesses);
    find_accesses(o);
    return o;
}

void oracle_destroy(struct oracle *o)
{
    if (o == NULL)
        return;
    for (int i = 0; i < o->nsteps; i++)
        free(o->messages[i]);
    free(o->base);
    free(o->cell_base);
    free(o->rank_of);
    free(o->match);
    free(o->npreds);
    free(o->preds);
    free(o->before);
    free(o->cells);
    free(o->messages);
    free(o->pending);
    free(o->ready);
    free(o->succ_first);
    free(o->succ);
    free(o->done);
    free(o->accesses);
    free(o);
}

/* --- races --- */

static int owner_of(const struct oracle *o, int32_t cell)
{
    int rank = 0;

    while (cell >= o->cell_base[rank + 1])
        rank++;
    return rank;
}

static bool is_user_memory(const struct oracle *o, int32_t cell)
{
    const int rank = owner_of(o, cell);

    return cell - o->cell_base[rank] < hkt__cell_base(o->scheds[rank], HKT__SCRATCH);
}

static int compare_cells(const void *a, const void *b)
{
    const struct access *x = a, *y = b;

    return (x->cell > y->cell) - (x->cell < y->cell);
}

const char *oracle_find_race(struct oracle *o)
{
    for (int r = 0; o->scheds[0]->coll == HKT_BARRIER && r < o->nranks; r++)
        for (int k = 0; k < o->nranks; k++)
            if (!is_before(o, entry_of(o, k), end_of(o, r)))
                return "a rank may leave before another has entered";
    qsort(o->accesses, (size_t)o->naccesses, sizeof *o->accesses, compare_cells);
    for (int i = 0; i < o->naccesses; i++) {
        const struct access *a = &o->accesses[i];
        const int owner = owner_of(o, a->cell);

        if (!is_before(o, entry_of(o, owner), a->node))
            return "race: memory is used before its rank has entered";
        if (is_user_memory(o, a->cell) && !is_before(o, a->node, end_of(o, owner)))
            return "race: memory of the user is used after its rank has ended";
        for (int k = i + 1; k < o->naccesses && o->accesses[k].cell == a->cell; k++) {
            const struct access *b = &o->accesses[k];

            if (a->node != b->node && (a->is_write || b->is_write) && !is_before(o, a->node, b->node)
                && !is_before(o, b->node, a->node))
                return "race: two accesses in no order";
        }
    }
    return "";
}

bool oracle_same_order(const struct oracle *a, const struct oracle *b)
{
    return a->nnodes == b->nnodes
           && memcmp(a->before, b->before, (size_t)a->nnodes * (size_t)a->nwords * sizeof *a->before) == 0;
}

bool oracle_conflict(const struct oracle *o, int rank, int step, int other)
{
    const int a = o->base[rank] + step, b = o->base[rank] + other;

    for (int i = 0; i < o->naccesses; i++)
        for (int k = 0; o->accesses[i].node == a && k < o->naccesses; k++)
            if (o->accesses[k].node == b && o->accesses[k].cell == o->accesses[i].cell
                && (o->accesses[i].is_write || o->accesses[k].is_write))
                return true;
    return false;
}

/* --- running --- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 33)) * UINT64_C(0xff51afd7ed558ccd); /* the finalizer of MurmurHash3 */
    x = (x ^ (x >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ (x >> 33);
}

static struct number input(int rank, int32_t chunk)
{
    const uint64_t x = mix(((uint64_t)(unsigned)rank + 1) << 32 | (uint32_t)chunk);

    return (struct number){ x, mix(x), mix(x) };
}

/* k: how many operands have been folded before. Only the first two commute. */
static struct number add(struct number a, struct number b, int k)
{
    const uint64_t tree = k == 1 ? mix(a.tree) + mix(b.tree) : 3 * mix(a.tree) + mix(b.tree);
    const uint64_t order = 3 * mix(a.order) + mix(b.order);

    return (struct number){ a.sum + b.sum, mix(tree + (uint64_t)k), mix(order + (uint64_t)k) };
}

static const struct number poison = { UINT64_C(0xdeaddeaddeaddead), UINT64_C(0xbadbadbadbadbad), 0 };

static void poison_cells(struct oracle *o, int rank, int32_t first, int32_t end)
{
    for (int32_t c = first; c < end; c++)
        o->cells[o->cell_base[rank] + c] = poison;
}

static void enter(struct oracle *o, int rank)
{
    const struct hkt__sched *sched = o->scheds[rank];

    poison_cells(o, rank, 0, hkt__cell_count(sched));
    for (int32_t c = 0; c < hkt__buf_chunks(sched, HKT__IN); c++)
        o->cells[o->cell_base[rank] + hkt__cell(sched, HKT__IN, c)] = input(rank, c);
}

/* Of a sum: as if all ranks' inputs were added in one step, in rank order. */
static struct number wanted(const struct oracle *o, int rank, int32_t chunk)
{
    const struct hkt__sched *s = o->scheds[rank];
    const int32_t block = chunk / s->cuts, cut = chunk % s->cuts, mine = rank * s->cuts + cut;
    struct number all;
    int32_t at = chunk;

    switch (s->coll) {
    case HKT_ALL_GATHER:
    case HKT_ALL_GATHER_V:
    case HKT_GATHER: return input(block, cut);
    case HKT_ALL_TO_ALL:
    case HKT_ALL_TO_ALL_V: return input(block, mine);
    case HKT_BROADCAST: return input(s->root, chunk);
    case HKT_SCATTER: return input(s->root, mine);
    case HKT_REDUCE_SCATTER:
    case HKT_REDUCE_SCATTER_V: at = mine; break;
    default: break;
    }
    all = input(0, at);
    for (int r = 1; r < o->nranks; r++)
        all = add(all, input(r, at), r);
    return all;
}

/* Check the rank's result, then do with its memory what a user might. */
static void leave(struct oracle *o, int rank, struct number *trees)
{
    const struct hkt__sched *sched = o->scheds[rank];

    for (int32_t c = 0; c < hkt__buf_chunks(sched, HKT__OUT); c++) {
        const struct number have = o->cells[o->cell_base[rank] + hkt__cell(sched, HKT__OUT, c)];
        const struct number want = wanted(o, rank, c);

        o->is_ordered = o->is_ordered && have.order == want.order;
        if (have.sum != want.sum)
            snprintf(o->why, sizeof o->why, "result: rank %d OUT[%d] is wrong", rank, (int)c);
        if (sched->coll == HKT_ALL_REDUCE && trees[c].tree != 0 && trees[c].tree != have.tree)
            snprintf(o->why, sizeof o->why, "bits: rank %d OUT[%d] differs", rank, (int)c);
        if (sched->coll == HKT_ALL_REDUCE)
            trees[c] = have;
    }
    for (int32_t c = 0; !sched->in_place && c < hkt__buf_chunks(sched, HKT__IN); c++)
        if (o->cells[o->cell_base[rank] + hkt__cell(sched, HKT__IN, c)].sum != input(rank, c).sum)
            snprintf(o->why, sizeof o->why, "result: rank %d IN[%d] was written", rank, (int)c);
    for (int r = 0; sched->coll == HKT_BARRIER && r < o->nranks; r++)
        if (!o->done[entry_of(o, r)])
            snprintf(o->why, sizeof o->why, "result: rank %d leaves before rank %d has entered", rank, r);
    poison_cells(o, rank, 0, hkt__cell_base(sched, HKT__SCRATCH));
}

static struct number *value_at(struct oracle *o, int rank, const struct hkt__operand *x, int32_t piece)
{
    return &o->cells[cell_of(o, rank, x, piece)];
}

static void do_step(struct oracle *o, int node)
{
    const struct hkt__step *s = step_at(o, node);
    const struct hkt__arg *args = args_at(o, node);
    const int rank = o->rank_of[node];
    const int32_t count = s->arg_count > 0 ? args[0].x.count : s->dst.count;

    if (s->kind == HKT__SIGNAL || s->kind == HKT__WAIT)
        return;
    if (s->kind == HKT__SEND && o->messages[node] == NULL)
        o->messages[node] = take((size_t)count, sizeof *o->messages[node]);
    for (int32_t i = 0; i < count; i++) {
        const struct number *message = side(s) == 1 ? &o->messages[o->match[node]][i] : NULL;
        struct number sum = s->arg_count > 0 ? *value_at(o, args[0].rank, &args[0].x, i) : *message;

        for (int k = 1; s->kind == HKT__REDUCE && k < s->arg_count; k++)
            sum = add(sum, *value_at(o, args[k].rank, &args[k].x, i), k);
        if (s->kind == HKT__RECV_REDUCE)
            sum = add(sum, *message, 1);
        for (int k = 1; s->kind == HKT__WRITE && k < s->arg_count; k++)
            *value_at(o, args[k].rank, &args[k].x, i) = sum;
        if (s->kind == HKT__SEND)
            o->messages[node][i] = sum;
        else if (s->kind != HKT__WRITE)
            *value_at(o, rank, &s->dst, i) = sum;
    }
}

/* The ready node with the highest priority of this seed, taken off the list; -1: none. With rendezvous a SEND is ready
 * when it is all that its receive waits for. */
static int choose(struct oracle *o, uint64_t seed, bool has_rendezvous)
{
    uint64_t best = 0;
    int found = -1;

    for (int i = 0; i < o->nready; i++) {
        const int node = o->ready[i];
        const uint64_t priority = mix(seed * 1000003 + (uint64_t)node) | 1;

        if (priority > best
            && !(has_rendezvous && node < o->nsteps && step_at(o, node)->kind == HKT__SEND
                 && o->pending[o->match[node]] > 1)) {
            best = priority;
            found = i;
        }
    }
    if (found < 0)
        return -1;
    const int node = o->ready[found];

    o->ready[found] = o->ready[--o->nready];
    return node;
}

static void finish(struct oracle *o, int node)
{
    o->done[node] = true;
    for (int k = o->succ_first[node]; k < o->succ_first[node + 1]; k++)
        if (--o->pending[o->succ[k]] == 0)
            o->ready[o->nready++] = o->succ[k];
}

static void begin(struct oracle *o)
{
    o->why[0] = '\0';
    o->is_ordered = true;
    o->nready = 0;
    for (int node = 0; node < o->nnodes; node++) {
        o->done[node] = false;
        o->pending[node] = o->npreds[node];
        if (o->pending[node] == 0)
            o->ready[o->nready++] = node;
    }
    for (int r = 0; r < o->nranks; r++)
        poison_cells(o, r, 0, hkt__cell_count(o->scheds[r]));
}

const char *oracle_run(struct oracle *o, uint64_t seed, bool has_rendezvous)
{
    struct number *trees = take((size_t)hkt__buf_chunks(o->scheds[0], HKT__OUT), sizeof *trees);

    begin(o);
    for (int count = 0; count < o->nnodes; count++) {
        const int node = choose(o, seed, has_rendezvous);

        if (node < 0) {
            snprintf(o->why, sizeof o->why, "deadlock");
            break;
        }
        if (node < o->nsteps)
            do_step(o, node);
        else if (node < end_of(o, 0))
            enter(o, o->rank_of[node]);
        else
            leave(o, o->rank_of[node], trees);
        finish(o, node);
    }
    free(trees);
    return o->why;
}

bool oracle_is_ordered(const struct oracle *o)
{
    return o->is_ordered;
}
