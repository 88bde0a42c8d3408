/* Stage 1: every step alone is well formed, and the memory of all ranks is laid out as cells for the stages after it.
 * Here a schedule is data from anywhere: nothing is indexed before it was checked. */
#include "core/mem.h"
#include "sched/verify_int.h"

struct form {
    struct hkt__proof *v;
    int32_t rank;
    const struct hkt__sched *sched;
    /* Per cell of a rank: serial << 32 | piece, for the operand with that serial which writes it. */
    uint64_t *marks;
    uint64_t serial;
};

/* Numbers of arguments by kind; and which operands there are. */
static const struct {
    int8_t args_min, args_max; /* -1: any number */
    bool has_peer, has_dst;
} kinds[HKT__STEP_KIND_COUNT] = {
    [HKT__SEND] = { 1, 1, true, false },       [HKT__RECV] = { 0, 0, true, true },
    [HKT__RECV_REDUCE] = { 1, 1, true, true }, [HKT__COPY] = { 1, 1, false, true },
    [HKT__REDUCE] = { 1, -1, false, true },    [HKT__WRITE] = { 2, -1, false, false },
    [HKT__SIGNAL] = { 0, 0, true, true },      [HKT__WAIT] = { 0, 0, true, true },
};

static enum hkt_status fail_at(const struct form *f, int32_t index, const char *why)
{
    return hkt__proof_fail(f->v, "rank %d step %d: %s", (int)f->rank, (int)index, why);
}

/* What can be said without following any index. */
static const char *header_defect(const struct form *f, int32_t index)
{
    const struct hkt__sched *sched = f->sched;
    const struct hkt__step *s = &sched->steps[index];

    if (s->kind >= HKT__STEP_KIND_COUNT)
        return "no such kind of step";
    if (s->lane >= sched->nlanes)
        return "the lane is out of range";
    if (s->arg_count < kinds[s->kind].args_min
        || (kinds[s->kind].args_max >= 0 && s->arg_count > kinds[s->kind].args_max))
        return "too many or too few arguments for its kind";
    if (s->arg_first < 0 || s->arg_first > sched->nargs - s->arg_count)
        return "arguments beyond the schedule's table";
    if (s->dep_count < 0 || s->dep_first < 0 || s->dep_first > sched->ndeps - s->dep_count)
        return "dependencies beyond the schedule's table";
    for (int32_t i = 0; i < s->dep_count; i++)
        if (sched->deps[s->dep_first + i] < 0 || sched->deps[s->dep_first + i] >= index)
            return "a dependency on a step that is not earlier";
    if (!kinds[s->kind].has_peer && s->peer != -1)
        return "a peer where none belongs";
    if (kinds[s->kind].has_peer && (s->peer < 0 || s->peer >= sched->nranks || s->peer == f->rank))
        return "the peer is out of range or the rank itself";
    return NULL;
}

static const char *operand_defect(const struct form *f, int32_t rank, const struct hkt__operand *x)
{
    const struct hkt__sched *holder = f->v->scheds[rank];

    if (x->count == 0)
        return NULL;
    if (x->count < 0 || x->buf >= HKT__BUF_COUNT || x->like_buf > HKT__OUT || x->at.modulus < 1 || x->like.modulus < 1)
        return "a malformed operand";
    if (x->at.modulus > hkt__buf_chunks(holder, (enum hkt__buf)x->buf))
        return x->buf == HKT__SCRATCH ? "an operand beyond the scratch slots reserved"
                                      : "an operand beyond the chunks of its buffer";
    if (x->like.modulus > hkt__buf_chunks(holder, (enum hkt__buf)x->like_buf))
        return "an operand whose sizes are those of chunks that do not exist";
    if (x->buf != HKT__SCRATCH
        && (x->buf != x->like_buf || x->at.start != x->like.start || x->at.stride != x->like.stride
            || x->at.modulus != x->like.modulus))
        return "an operand outside scratch that takes its sizes from elsewhere";
    return NULL;
}

static const char *operands_defect(const struct form *f, const struct hkt__step *s)
{
    const struct hkt__arg *args = &f->sched->args[s->arg_first];
    const bool has_dst = kinds[s->kind].has_dst;
    const char *why = has_dst ? operand_defect(f, f->rank, &s->dst) : NULL;

    for (int32_t i = 0; i < s->arg_count && why == NULL; i++) {
        const bool may_be_remote = s->kind == HKT__REDUCE || (s->kind == HKT__WRITE && i > 0);
        const int32_t count = has_dst ? s->dst.count : args[0].x.count;

        if (args[i].rank < 0 || args[i].rank >= f->v->nranks || (args[i].rank != f->rank && !may_be_remote))
            return "an argument at a rank it may not be at";
        if (args[i].x.count != count)
            return "operands with different numbers of pieces";
        why = operand_defect(f, args[i].rank, &args[i].x);
    }
    return why;
}

/* Do the pieces of x and y have the same sizes, one by one, whatever the counts of a call are? */
static bool sizes_agree(const struct form *f, const struct hkt__arg *x, const struct hkt__arg *y)
{
    const struct hkt__span *a = &x->x.like, *b = &y->x.like;

    if (x->x.count == 0
        || (x->rank == y->rank && x->x.like_buf == y->x.like_buf && a->start == b->start && a->stride == b->stride
            && a->modulus == b->modulus))
        return true;
    struct hkt__walk walk_x = hkt__walk_start(a), walk_y = hkt__walk_start(b);

    for (int32_t i = 0; i < x->x.count; i++)
        if (hkt__proof_class(f->v, x->rank, &x->x, hkt__walk_next(&walk_x))
            != hkt__proof_class(f->v, y->rank, &y->x, hkt__walk_next(&walk_y)))
            return false;
    return true;
}

static bool all_sizes_agree(const struct form *f, const struct hkt__step *s)
{
    const struct hkt__arg *args = &f->sched->args[s->arg_first];
    const struct hkt__arg dst = { f->rank, s->dst };
    const struct hkt__arg *first = kinds[s->kind].has_dst ? &dst : args;

    if (hkt__proof_one_size(f->v))
        return true;
    for (int32_t i = 0; i < s->arg_count; i++)
        if (!sizes_agree(f, first, &args[i]))
            return false;
    return true;
}

/* IN is the caller's: constant, unless it is also OUT's memory, or the collective says that it may be overwritten. */
static bool is_writable(const struct form *f, int32_t rank, const struct hkt__operand *x, int64_t cell)
{
    const struct hkt__sched *holder = f->v->scheds[rank];
    const int64_t *home = &f->v->home[(int64_t)rank * HKT__BUF_COUNT];

    if (x->buf != HKT__IN)
        return true;
    if (home[HKT__IN] == HKT__PROOF_CONST)
        return false;
    return holder->coll == HKT_REDUCE_SCATTER || holder->coll == HKT_REDUCE_SCATTER_V
           || (cell >= home[HKT__OUT] && cell < home[HKT__OUT] + hkt__buf_chunks(holder, HKT__OUT));
}

/* Note the cells that the operand writes. NULL or what is wrong. */
static const char *mark_written(struct form *f, int32_t rank, const struct hkt__operand *x)
{
    const struct hkt__proof *v = f->v;
    const int64_t home = v->home[(int64_t)rank * HKT__BUF_COUNT + x->buf];

    f->serial++;
    if (x->count == 0)
        return NULL;
    struct hkt__walk walk = hkt__walk_start(&x->at);

    for (int32_t i = 0; i < x->count; i++) {
        const int64_t cell = home + hkt__walk_next(&walk);

        if (!is_writable(f, rank, x, cell))
            return "it writes IN, which is the caller's";
        uint64_t *mark = &f->marks[cell - v->own_home[rank]];

        if (*mark >> 32 == f->serial)
            return "it writes one chunk twice";
        *mark = f->serial << 32 | (uint32_t)i;
    }
    return NULL;
}

/* Does x read, as piece i, a cell that the operand marked last writes as another piece? The bits would then depend on
 * the order of pieces. Both are memory of `rank`. */
static bool overlaps_shifted(const struct form *f, int32_t rank, const struct hkt__operand *x)
{
    const struct hkt__proof *v = f->v;
    const int64_t home = v->home[(int64_t)rank * HKT__BUF_COUNT + x->buf];

    if (x->count == 0 || home == HKT__PROOF_CONST)
        return false;
    struct hkt__walk walk = hkt__walk_start(&x->at);

    for (int32_t i = 0; i < x->count; i++) {
        const uint64_t mark = f->marks[home - v->own_home[rank] + hkt__walk_next(&walk)];

        if (mark >> 32 == f->serial && (uint32_t)mark != (uint32_t)i)
            return true;
    }
    return false;
}

static const char *overlap_defect(struct form *f, const struct hkt__step *s)
{
    static const char shifted[] = "it reads a chunk that it writes as another piece";
    const struct hkt__arg *args = &f->sched->args[s->arg_first];
    const char *why = NULL;

    if (s->kind == HKT__WRITE)
        for (int32_t i = 1; i < s->arg_count && why == NULL; i++) {
            why = mark_written(f, args[i].rank, &args[i].x);
            if (why == NULL && args[i].rank == f->rank && overlaps_shifted(f, f->rank, &args[0].x))
                why = shifted;
        }
    else if (kinds[s->kind].has_dst && s->kind != HKT__SIGNAL && s->kind != HKT__WAIT)
        why = mark_written(f, f->rank, &s->dst);
    if (s->kind == HKT__WRITE || s->kind == HKT__SEND)
        return why;
    for (int32_t i = 0; i < s->arg_count && why == NULL; i++)
        if (args[i].rank == f->rank && overlaps_shifted(f, f->rank, &args[i].x))
            why = shifted;
    return why;
}

static bool is_same_operand(const struct hkt__operand *x, const struct hkt__operand *y)
{
    return x->buf == y->buf && x->count == y->count && x->at.start == y->at.start && x->at.stride == y->at.stride
           && x->at.modulus == y->at.modulus;
}

/* fused links a receive with the later send of what it brought; both ends name each other. */
static bool is_fuse_sound(const struct form *f, int32_t index)
{
    const struct hkt__sched *sched = f->sched;
    const struct hkt__step *s = &sched->steps[index];

    if (s->fused == -1)
        return true;
    if (s->fused < 0 || s->fused >= sched->nsteps || sched->steps[s->fused].fused != index)
        return false;
    if (s->kind != HKT__SEND) /* told from the SEND's side, when that is reached */
        return (s->kind == HKT__RECV || s->kind == HKT__RECV_REDUCE) && sched->steps[s->fused].kind == HKT__SEND;
    return s->fused < index && is_same_operand(&sched->steps[s->fused].dst, &sched->args[s->arg_first].x);
}

static enum hkt_status check_step(struct form *f, int32_t index)
{
    const struct hkt__step *s = &f->sched->steps[index];
    const char *why = header_defect(f, index);

    if (why == NULL)
        why = operands_defect(f, s);
    if (why != NULL)
        return fail_at(f, index, why);
    why = all_sizes_agree(f, s) ? overlap_defect(f, s) : "operands whose pieces differ in size for some counts";
    if (why == NULL && !is_fuse_sound(f, index))
        why = "it is fused with a step that does not fit";
    if (why != NULL)
        return hkt__proof_fail(f->v, "%s: %s", hkt__proof_step_text(f->v, f->v->base[f->rank] + index).s, why);
    return HKT_OK;
}

/* Where the cells of each buffer lie. Returns the cells of the largest rank, or -1 when a schedule's grid is wrong. */
static int64_t lay_out(struct hkt__proof *v)
{
    int64_t cells_max = 0;

    for (int32_t r = 0; r < v->nranks; r++) {
        const struct hkt__sched *sched = v->scheds[r];
        int64_t *home = &v->home[(int64_t)r * HKT__BUF_COUNT], own = v->own_home[r], cells;
        int32_t blocks[2];

        hkt__coll_blocks(sched->coll, sched->nranks, r, sched->root, blocks);
        if (sched->blocks[HKT__IN] != blocks[HKT__IN] || sched->blocks[HKT__OUT] != blocks[HKT__OUT]
            || sched->scratch_chunks < 0 || sched->scratch_chunks != v->scheds[0]->scratch_chunks || sched->nlanes < 1
            || sched->nlanes > HKT__LANES_MAX)
            return -1;
        if (sched->in_place && blocks[HKT__IN] > 0 && blocks[HKT__OUT] > 0) {
            for (int buf = 0; buf < HKT__BUF_COUNT; buf++)
                home[buf] = own + hkt__cell_base(sched, (enum hkt__buf)buf);
            cells = hkt__cell_count(sched);
        } else {
            home[HKT__IN] = HKT__PROOF_CONST;
            home[HKT__OUT] = own;
            home[HKT__SCRATCH] = own + hkt__buf_chunks(sched, HKT__OUT);
            cells = hkt__buf_chunks(sched, HKT__OUT) + sched->scratch_chunks;
        }
        v->own_home[r + 1] = own + cells;
        cells_max = cells > cells_max ? cells : cells_max;
    }
    return cells_max;
}

enum hkt_status hkt__proof_form(struct hkt__proof *v)
{
    const int64_t cells_max = lay_out(v);
    struct form f = { .v = v };
    enum hkt_status rc = HKT_OK;

    if (cells_max < 0)
        return hkt__proof_fail(
            v, "a rank's blocks, lanes or scratch slots are not those of the collective, or not the same on "
               "all ranks");
    f.marks = hkt__calloc((size_t)cells_max, sizeof *f.marks);
    if (f.marks == NULL)
        return hkt__proof_nomem();
    for (f.rank = 0; f.rank < v->nranks && rc == HKT_OK; f.rank++) {
        f.sched = v->scheds[f.rank];
        for (int32_t i = 0; i < f.sched->nsteps && rc == HKT_OK; i++)
            rc = check_step(&f, i);
    }
    hkt__free(f.marks);
    return rc;
}
