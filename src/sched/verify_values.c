/* Stage 4: run the schedules on symbols. Each cell holds which ranks' IN chunk has been reduced into it, and a hash of
 * the expression that did it; at the end each OUT chunk must hold exactly what the collective promises.
 *
 * Exact mode keeps a set of ranks per cell, and refuses to reduce sets that overlap or that stand for different chunks.
 * Fingerprint mode keeps two sums modulo the prime 2^61 - 1 of numbers that stand for (rank, chunk), and compares them
 * at the end: a wrong multiset passes with probability 2^-122 a chunk.
 *
 * The hash is commutative in the first two operands, as rounding is (a op b == b op a, but (a op b) op c is another
 * value than a op (b op c)); equal hashes mean equal bits. */
#include "core/mem.h"
#include "sched/verify_int.h"

#include <string.h>

#define PRIME ((UINT64_C(1) << 61) - 1)

/* One end of a move: an operand being walked, piece by piece. */
struct end {
    const struct hkt__operand *x;
    struct hkt__walk at, like;
    int64_t home;
    int32_t rank;  /* whose memory */
    int32_t step;  /* who touches it */
    int32_t chunk; /* of the current piece */
    bool is_noted; /* for the race check; false when the other end of a message notes it */
};

struct value {
    struct hkt__proof_cell cell;
    const uint64_t *set;
};

struct exec {
    struct hkt__proof *v;
    struct end *ends;             /* the sources of a step, then its destinations */
    uint64_t *set, *leaf;         /* [words] the value being made; the set of a constant */
    struct hkt__proof_cell *sums; /* fingerprint mode: per IN chunk, the sum over all ranks, when first needed */
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9); /* the finalizer of splitmix64 */
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t reduce61(uint64_t x)
{
    x = (x & PRIME) + (x >> 61);
    return x >= PRIME ? x - PRIME : x;
}

/* Rank's IN chunk, as everything starts. */
static struct hkt__proof_cell leaf(const struct hkt__proof *v, int32_t rank, int32_t chunk)
{
    const uint64_t id = ((uint64_t)(uint32_t)rank << 32 | (uint32_t)chunk) + UINT64_C(0x9e3779b97f4a7c15);
    struct hkt__proof_cell cell = { .hash = mix(id) };

    if (v->words > 0) {
        cell.a = (uint32_t)chunk;
    } else {
        cell.a = reduce61(mix(id ^ UINT64_C(0x6a09e667f3bcc908)));
        cell.b = reduce61(mix(id ^ UINT64_C(0xbb67ae8584caa73b)));
    }
    cell.a |= HKT__PROOF_DEFINED;
    return cell;
}

static struct end end_of(const struct hkt__proof *v, int32_t step, const struct hkt__arg *arg)
{
    return (struct end){
        .x = &arg->x,
        .at = hkt__walk_start(&arg->x.at),
        .like = hkt__walk_start(&arg->x.like),
        .rank = arg->rank,
        .home = v->home[(int64_t)arg->rank * HKT__BUF_COUNT + arg->x.buf],
        .step = step,
        .is_noted = true,
    };
}

/* The place of the current piece in classes, NULL unless it is scratch and chunks differ in size. */
static uint32_t *class_of(struct hkt__proof *v, struct end *end)
{
    if (v->classes == NULL || end->x->buf != HKT__SCRATCH)
        return NULL;
    return &v->classes[(int64_t)end->rank * v->scheds[0]->scratch_chunks + end->chunk];
}

static enum hkt_status load(struct exec *e, struct end *end, struct value *out)
{
    struct hkt__proof *v = e->v;

    end->chunk = hkt__walk_next(&end->at);
    if (end->home == HKT__PROOF_CONST) {
        out->cell = leaf(v, end->rank, end->chunk);
        if (v->words > 0) {
            memset(e->leaf, 0, (size_t)v->words * sizeof *e->leaf);
            e->leaf[end->rank / 64] = UINT64_C(1) << end->rank % 64;
            out->set = e->leaf;
        }
        return HKT_OK;
    }
    const int64_t cell = end->home + end->chunk;
    const uint32_t *size_class = class_of(v, end);

    if ((v->cells[cell].a & HKT__PROOF_DEFINED) == 0)
        return hkt__proof_fail(v, "%s reads %s, which nothing before it has written",
                               hkt__proof_step_text(v, end->step).s,
                               hkt__proof_chunk_text(end->rank, end->x->buf, end->chunk).s);
    if (size_class != NULL
        && *size_class != (uint32_t)hkt__proof_class(v, end->rank, end->x, hkt__walk_next(&end->like)))
        return hkt__proof_fail(v, "%s reads %s as a chunk of another size than was written there",
                               hkt__proof_step_text(v, end->step).s,
                               hkt__proof_chunk_text(end->rank, end->x->buf, end->chunk).s);
    out->cell = v->cells[cell];
    out->set = &v->sets[cell * v->words];
    return end->is_noted ? hkt__proof_touch_read(v, end->step, cell) : HKT_OK;
}

static enum hkt_status store(struct exec *e, struct end *end, const struct hkt__proof_cell *value)
{
    struct hkt__proof *v = e->v;

    end->chunk = hkt__walk_next(&end->at);
    const int64_t cell = end->home + end->chunk;
    uint32_t *size_class = class_of(v, end);

    if (size_class != NULL)
        *size_class = (uint32_t)hkt__proof_class(v, end->rank, end->x, hkt__walk_next(&end->like));
    v->cells[cell] = *value;
    memcpy(&v->sets[cell * v->words], e->set, (size_t)v->words * sizeof *v->sets);
    return hkt__proof_touch_write(v, end->step, cell);
}

static int32_t shared_rank(const struct hkt__proof *v, const uint64_t *a, const uint64_t *b)
{
    for (int32_t w = 0; w < v->words; w++)
        if ((a[w] & b[w]) != 0)
            return w * 64 + __builtin_ctzll(a[w] & b[w]);
    return -1;
}

/* Reduce the k-th operand (k >= 1) into the value being made. */
static enum hkt_status reduce(struct exec *e, struct hkt__proof_cell *sum, const struct value *x, int32_t k,
                              int32_t step)
{
    struct hkt__proof *v = e->v;
    const uint64_t a = mix(sum->hash), b = mix(x->cell.hash);

    sum->hash = mix(k == 1 ? a + b : a * 3 + b + (uint64_t)k);
    if (v->words == 0) {
        sum->a = reduce61((sum->a & ~HKT__PROOF_DEFINED) + (x->cell.a & ~HKT__PROOF_DEFINED)) | HKT__PROOF_DEFINED;
        sum->b = reduce61(sum->b + x->cell.b);
        return HKT_OK;
    }
    if (sum->a != x->cell.a)
        return hkt__proof_fail(v, "%s reduces IN[%d] with IN[%d]: different chunks", hkt__proof_step_text(v, step).s,
                               (int)(uint32_t)sum->a, (int)(uint32_t)x->cell.a);
    const int32_t twice = shared_rank(v, e->set, x->set);

    if (twice >= 0)
        return hkt__proof_fail(v, "%s counts the contribution of rank %d to IN[%d] twice",
                               hkt__proof_step_text(v, step).s, (int)twice, (int)(uint32_t)sum->a);
    for (int32_t w = 0; w < v->words; w++)
        e->set[w] |= x->set[w];
    return HKT_OK;
}

/* Each of the ends behind the sources = the first source op the second op ... */
static enum hkt_status move(struct exec *e, int32_t step, int32_t nsources, int32_t nends)
{
    const int32_t count = e->ends[0].x->count;
    enum hkt_status rc = HKT_OK;

    for (int32_t i = 0; i < count && rc == HKT_OK; i++) {
        struct hkt__proof_cell sum = { 0 };

        for (int32_t k = 0; k < nsources && rc == HKT_OK; k++) {
            struct value x = { .set = NULL };

            rc = load(e, &e->ends[k], &x);
            if (rc != HKT_OK)
                break;
            if (k > 0) {
                rc = reduce(e, &sum, &x, k, step);
                continue;
            }
            sum = x.cell;
            if (e->v->words > 0)
                memcpy(e->set, x.set, (size_t)e->v->words * sizeof *e->set);
        }
        for (int32_t k = nsources; k < nends && rc == HKT_OK; k++)
            rc = store(e, &e->ends[k], &sum);
    }
    return rc;
}

/* A SEND only notes what it reads: its receive, which comes next in order, takes the values. */
static enum hkt_status send(struct exec *e, int32_t step)
{
    struct hkt__proof *v = e->v;
    const struct hkt__step *s = hkt__proof_step(v, step);
    const struct end end = end_of(v, step, hkt__proof_args(v, step));
    const int32_t source = s->fused < 0 ? -1 : v->base[end.rank] + s->fused;
    struct hkt__walk at = end.at;
    enum hkt_status rc = HKT_OK;

    if (end.home == HKT__PROOF_CONST)
        return HKT_OK;
    for (int32_t i = 0; i < end.x->count && rc == HKT_OK; i++) {
        const int64_t cell = end.home + hkt__walk_next(&at);

        if (source >= 0 && v->touches[cell].writer != source + 1)
            return hkt__proof_fail(v, "%s is fused with step %d, but something else is written there in between",
                                   hkt__proof_step_text(v, step).s, (int)s->fused);
        rc = hkt__proof_touch_read(v, step, cell);
    }
    return rc;
}

static enum hkt_status exec_step(struct exec *e, int32_t step)
{
    struct hkt__proof *v = e->v;
    const struct hkt__step *s = hkt__proof_step(v, step);
    const struct hkt__arg *args = hkt__proof_args(v, step);
    const struct hkt__arg dst = { v->rank_of[step], s->dst };
    const bool is_receive = s->kind == HKT__RECV || s->kind == HKT__RECV_REDUCE;
    int32_t nends = 0;
    enum hkt_status rc = HKT_OK;

    hkt__proof_touch_begin(v, step);
    if (s->kind == HKT__SEND)
        return args[0].x.count > 0 ? send(e, step) : HKT_OK;
    if (s->kind == HKT__SIGNAL || s->kind == HKT__WAIT || (s->arg_count > 0 ? args[0].x.count : s->dst.count) == 0)
        return HKT_OK;
    for (int32_t i = 0; i < s->arg_count && rc == HKT_OK; i++) {
        if (args[i].rank != v->rank_of[step])
            rc = hkt__proof_touch_remote(v, step, args[i].rank, args[i].x.buf);
        e->ends[nends++] = end_of(v, step, &args[i]);
    }
    if (rc != HKT_OK || s->kind == HKT__WRITE)
        return rc != HKT_OK ? rc : move(e, step, 1, nends);
    if (is_receive) {
        e->ends[nends] = end_of(v, v->match[step], hkt__proof_args(v, v->match[step]));
        e->ends[nends++].is_noted = false;
    }
    e->ends[nends] = end_of(v, step, &dst);
    return move(e, step, nends, nends + 1);
}

/* In place, IN is memory like any other, and begins with the caller's data. */
static void fill_in(struct hkt__proof *v)
{
    for (int32_t r = 0; r < v->nranks; r++) {
        const int64_t home = v->home[(int64_t)r * HKT__BUF_COUNT + HKT__IN];

        for (int32_t c = 0; home != HKT__PROOF_CONST && c < hkt__buf_chunks(v->scheds[r], HKT__IN); c++) {
            v->cells[home + c] = leaf(v, r, c);
            if (v->words > 0)
                v->sets[(home + c) * v->words + r / 64] = UINT64_C(1) << r % 64;
        }
    }
}

/* What OUT chunk `chunk` of `rank` must be: IN chunk *out_chunk of the rank returned, or of all ranks reduced (-1). */
static int32_t expected(const struct hkt__sched *sched, int32_t rank, int32_t chunk, int32_t *out_chunk)
{
    const int32_t block = chunk / sched->cuts, cut = chunk % sched->cuts;

    switch (sched->coll) {
    case HKT_REDUCE_SCATTER:
    case HKT_REDUCE_SCATTER_V: *out_chunk = rank * sched->cuts + cut; return -1;
    case HKT_ALL_GATHER:
    case HKT_ALL_GATHER_V:
    case HKT_GATHER: *out_chunk = cut; return block;
    case HKT_ALL_TO_ALL:
    case HKT_ALL_TO_ALL_V: *out_chunk = rank * sched->cuts + cut; return block;
    case HKT_SCATTER: *out_chunk = rank * sched->cuts + cut; return sched->root;
    case HKT_BROADCAST: *out_chunk = chunk; return sched->root;
    default: /* all_reduce, reduce */ *out_chunk = chunk; return -1;
    }
}

static struct hkt__proof_cell expected_sum(struct exec *e, int32_t from, int32_t chunk)
{
    struct hkt__proof_cell *sum;

    if (from >= 0)
        return leaf(e->v, from, chunk);
    sum = &e->sums[chunk];
    for (int32_t r = 0; (sum->a & HKT__PROOF_DEFINED) == 0 && r < e->v->nranks; r++) {
        const struct hkt__proof_cell x = leaf(e->v, r, chunk);

        sum->a = reduce61(sum->a + (x.a & ~HKT__PROOF_DEFINED));
        sum->b = reduce61(sum->b + x.b);
    }
    sum->a |= HKT__PROOF_DEFINED;
    return *sum;
}

/* Exact mode: the first rank whose contribution is there without being asked for, or the other way round; -1: none. */
static int32_t odd_rank(const struct hkt__proof *v, const uint64_t *set, int32_t from)
{
    for (int32_t w = 0; w < v->words; w++) {
        const int32_t ranks = v->nranks - w * 64;
        const uint64_t all = ranks < 64 ? (UINT64_C(1) << ranks) - 1 : UINT64_MAX;
        const uint64_t odd = set[w] ^ (from < 0 ? all : from / 64 == w ? UINT64_C(1) << from % 64 : 0);

        if (odd != 0)
            return w * 64 + __builtin_ctzll(odd);
    }
    return -1;
}

/* Does the cell hold IN chunk in_chunk of rank `from`, or of all ranks? */
static bool is_right(struct exec *e, int64_t cell, int32_t from, int32_t in_chunk)
{
    const struct hkt__proof *v = e->v;
    const struct hkt__proof_cell *have = &v->cells[cell];

    if (v->words > 0)
        return have->a == (HKT__PROOF_DEFINED | (uint32_t)in_chunk) && odd_rank(v, &v->sets[cell * v->words], from) < 0;
    const struct hkt__proof_cell want = expected_sum(e, from, in_chunk);

    return have->a == want.a && have->b == want.b;
}

static enum hkt_status check_chunk(struct exec *e, int32_t rank, int32_t chunk)
{
    struct hkt__proof *v = e->v;
    int32_t in_chunk;
    const int32_t from = expected(v->scheds[rank], rank, chunk, &in_chunk);
    const int64_t at = v->home[(int64_t)rank * HKT__BUF_COUNT + HKT__OUT] + chunk;
    const struct hkt__proof_cell *cell = &v->cells[at];

    if (is_right(e, at, from, in_chunk))
        return HKT_OK;
    const struct hkt__proof_text where = hkt__proof_chunk_text(rank, HKT__OUT, chunk);

    if ((cell->a & HKT__PROOF_DEFINED) == 0)
        return hkt__proof_fail(v, "result: %s is never written", where.s);
    if (v->words == 0)
        return hkt__proof_fail(v, "result: %s is not exactly IN[%d] of %s%d (by fingerprint)", where.s, (int)in_chunk,
                               from < 0 ? "all ranks below " : "rank ", from < 0 ? (int)v->nranks : (int)from);
    if ((int32_t)(uint32_t)cell->a != in_chunk)
        return hkt__proof_fail(v, "result: %s holds IN[%d] where IN[%d] belongs", where.s, (int)(uint32_t)cell->a,
                               (int)in_chunk);
    const int32_t odd = odd_rank(v, &v->sets[at * v->words], from);

    return hkt__proof_fail(v, "result: %s %s the contribution of rank %d", where.s,
                           from < 0 || from == odd ? "lacks" : "has", (int)odd);
}

static enum hkt_status check_results(struct exec *e)
{
    struct hkt__proof *v = e->v;
    const bool must_agree = v->scheds[0]->coll == HKT_ALL_REDUCE;
    enum hkt_status rc = HKT_OK;

    for (int32_t r = 0; r < v->nranks; r++)
        for (int32_t c = 0; c < hkt__buf_chunks(v->scheds[r], HKT__OUT); c++) {
            const int64_t out = v->home[(int64_t)r * HKT__BUF_COUNT + HKT__OUT] + c, out0 = v->home[HKT__OUT] + c;

            rc = check_chunk(e, r, c);
            if (rc != HKT_OK)
                return rc;
            v->report->chunks_checked++;
            if (must_agree && v->cells[out].hash != v->cells[out0].hash)
                return hkt__proof_fail(v,
                                       "bits: %s is associated differently than at rank 0, so the two may differ in "
                                       "the last place",
                                       hkt__proof_chunk_text(r, HKT__OUT, c).s);
        }
    v->report->same_bits = 1;
    return rc;
}

static enum hkt_status init(struct exec *e)
{
    struct hkt__proof *v = e->v;
    const size_t ncells = (size_t)v->own_home[v->nranks], words = (size_t)v->words;
    int32_t args_max = 0, chunks_max = 0;

    for (int32_t r = 0; r < v->nranks; r++) {
        const struct hkt__sched *sched = v->scheds[r];

        for (int32_t i = 0; i < sched->nsteps; i++)
            args_max = sched->steps[i].arg_count > args_max ? sched->steps[i].arg_count : args_max;
        if (hkt__buf_chunks(sched, HKT__IN) > chunks_max)
            chunks_max = hkt__buf_chunks(sched, HKT__IN);
    }
    v->cells = hkt__calloc(ncells, sizeof *v->cells);
    v->sets = hkt__calloc(ncells, words * sizeof *v->sets);
    v->touches = hkt__calloc(ncells, sizeof *v->touches);
    v->seen = hkt__calloc((size_t)v->nsteps, sizeof *v->seen);
    e->ends = hkt__calloc((size_t)args_max + 2, sizeof *e->ends);
    e->set = hkt__calloc(words, sizeof *e->set);
    e->leaf = hkt__calloc(words, sizeof *e->leaf);
    e->sums = hkt__calloc(words > 0 ? 0 : (size_t)chunks_max, sizeof *e->sums);
    if (v->cells == NULL || v->sets == NULL || v->touches == NULL || v->seen == NULL || e->ends == NULL
        || e->set == NULL || e->leaf == NULL || e->sums == NULL)
        return hkt__proof_nomem();
    if (hkt__proof_one_size(v))
        return HKT_OK;
    v->classes = hkt__calloc((size_t)v->nranks * (size_t)v->scheds[0]->scratch_chunks, sizeof *v->classes);
    return v->classes != NULL ? HKT_OK : hkt__proof_nomem();
}

enum hkt_status hkt__proof_values(struct hkt__proof *v)
{
    struct exec e = { .v = v };
    enum hkt_status rc = init(&e);

    if (rc == HKT_OK)
        fill_in(v);
    for (int32_t i = 0; i < v->nsteps && rc == HKT_OK; i++)
        rc = exec_step(&e, v->order[i]);
    if (rc == HKT_OK)
        rc = check_results(&e);
    hkt__free(e.ends);
    hkt__free(e.set);
    hkt__free(e.leaf);
    hkt__free(e.sums);
    return rc;
}
