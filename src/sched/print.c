/* Printers: by step for learning an algorithm, by rank for debugging one, JSON for programs. Nothing is left out, so
 * the text of many ranks is long. Operands read as BUFFER[chunks], "@r" after them names a peer whose memory it is,
 * "as" the chunks whose sizes scratch slots take. */
#include "sched/print.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "sched/rounds.h"

static const char *const buf_names[HKT__BUF_COUNT] = { "IN", "OUT", "SCRATCH" };
static const char *const json_buf_names[HKT__BUF_COUNT] = { "in", "out", "scratch" };

/* Chunks in order, consecutive ones as "a..b". */
static void put_span(FILE *file, const struct hkt__span *span, int32_t count)
{
    for (int32_t i = 0; i < count;) {
        const int32_t first = hkt__span_at(span, i);
        int32_t run = 1;

        while (i + run < count && hkt__span_at(span, i + run) == first + run)
            run++;
        fprintf(file, "%s%d", i > 0 ? "," : "", (int)first);
        if (run > 1)
            fprintf(file, "..%d", (int)(first + run - 1));
        i += run;
    }
}

/* at_rank: whose memory it is, if it is a peer's; -1: this rank's. */
static void put_placed(FILE *file, const struct hkt__operand *x, int32_t at_rank)
{
    fprintf(file, "%s[", buf_names[x->buf]);
    put_span(file, &x->at, x->count);
    fputc(']', file);
    if (at_rank >= 0)
        fprintf(file, "@%d", (int)at_rank);
    if (x->buf == HKT__SCRATCH) {
        fprintf(file, " as %s[", buf_names[x->like_buf]);
        put_span(file, &x->like, x->count);
        fputc(']', file);
    }
}

static void put_operand(FILE *file, const struct hkt__operand *x)
{
    put_placed(file, x, -1);
}

static void put_arg(FILE *file, const struct hkt__sched *sched, const struct hkt__arg *arg)
{
    put_placed(file, &arg->x, arg->rank != sched->rank ? arg->rank : -1);
}

static void put_args(FILE *file, const struct hkt__sched *sched, const struct hkt__step *step, int32_t from,
                     const char *between)
{
    for (int32_t i = from; i < step->arg_count; i++) {
        if (i > from)
            fputs(between, file);
        put_arg(file, sched, &sched->args[step->arg_first + i]);
    }
}

static bool same_operand(const struct hkt__operand *a, const struct hkt__operand *b)
{
    return a->buf == b->buf && a->count == b->count && memcmp(&a->at, &b->at, sizeof a->at) == 0;
}

/* A local step, or the local view of a message. */
static void put_step(FILE *file, const struct hkt__sched *sched, const struct hkt__step *step)
{
    const struct hkt__arg *args = step->arg_count > 0 ? &sched->args[step->arg_first] : NULL;

    fputs(hkt__step_kind_name(step->kind), file);
    if (step->dst.count > 0) {
        fputc(' ', file);
        put_operand(file, &step->dst);
    }
    switch (step->kind) {
    case HKT__SEND:
        fputc(' ', file);
        put_args(file, sched, step, 0, ", ");
        fprintf(file, " to %d", (int)step->peer);
        break;
    case HKT__RECV_REDUCE:
        if (same_operand(&args[0].x, &step->dst)) {
            fputs(" op= received", file);
        } else {
            fputs(" = ", file);
            put_args(file, sched, step, 0, ", ");
            fputs(" op received", file);
        }
        fprintf(file, " from %d", (int)step->peer);
        break;
    case HKT__COPY:
    case HKT__REDUCE:
        fputs(" = ", file);
        put_args(file, sched, step, 0, " op ");
        break;
    case HKT__WRITE:
        fputc(' ', file);
        put_args(file, sched, step, 1, ", ");
        fputs(" = ", file);
        put_arg(file, sched, &args[0]);
        break;
    default: fprintf(file, " %s %d", step->kind == HKT__SIGNAL ? "to" : "from", (int)step->peer); break;
    }
}

static const char *plural(int32_t count)
{
    return count == 1 ? "" : "s";
}

static void put_title(FILE *file, const struct hkt__sched *sched)
{
    fprintf(file, "%s %s, %d rank%s", hkt_coll_name(sched->coll), sched->algo, (int)sched->nranks,
            plural(sched->nranks));
    if (sched->coll == HKT_BROADCAST || sched->coll == HKT_REDUCE || sched->coll == HKT_GATHER
        || sched->coll == HKT_SCATTER)
        fprintf(file, ", root %d", (int)sched->root);
    fprintf(file, ", %s, %d chunk%s per block, %d scratch slot%s\n", sched->in_place ? "in place" : "out of place",
            (int)sched->cuts, plural(sched->cuts), (int)sched->scratch_chunks, plural(sched->scratch_chunks));
}

static void print_by_rank(FILE *file, struct hkt__sched *const *scheds, int nranks)
{
    put_title(file, scheds[0]);
    for (int r = 0; r < nranks; r++) {
        const struct hkt__sched *sched = scheds[r];

        fprintf(file, "\nrank %d: IN %d chunk%s, OUT %d chunk%s, %d step%s\n", (int)sched->rank,
                (int)hkt__buf_chunks(sched, HKT__IN), plural(hkt__buf_chunks(sched, HKT__IN)),
                (int)hkt__buf_chunks(sched, HKT__OUT), plural(hkt__buf_chunks(sched, HKT__OUT)), (int)sched->nsteps,
                plural(sched->nsteps));
        for (int32_t i = 0; i < sched->nsteps; i++) {
            const struct hkt__step *step = &sched->steps[i];

            fprintf(file, "rank %d step %d lane %d: ", (int)sched->rank, (int)i, (int)step->lane);
            put_step(file, sched, step);
            for (int32_t k = 0; k < step->dep_count; k++)
                fprintf(file, "%s%d", k == 0 ? ", after: " : ",", (int)sched->deps[step->dep_first + k]);
            if (step->fused >= 0)
                fprintf(file, ", fused with: %d", (int)step->fused);
            fputc('\n', file);
        }
    }
}

/* A message: what the sender sends, then what the receiver does with it, if that is more than receiving it. */
static void put_message(FILE *file, const struct hkt__sched *from, const struct hkt__step *send,
                        const struct hkt__sched *to, const struct hkt__step *recv)
{
    fprintf(file, "  %d -> %d", (int)from->rank, (int)to->rank);
    if (from->nlanes > 1)
        fprintf(file, " lane %d", (int)send->lane);
    fputs(": ", file);
    if (send->kind == HKT__SIGNAL) {
        fputs("signal", file);
        if (send->dst.count > 0) {
            fputc(' ', file);
            put_operand(file, &send->dst);
        }
        if (recv->dst.count > 0) {
            fputs(", gives ", file);
            put_operand(file, &recv->dst);
        }
    } else {
        const struct hkt__operand *x = &from->args[send->arg_first].x;

        put_operand(file, x);
        if (recv->kind == HKT__RECV_REDUCE) {
            const struct hkt__operand *y = &to->args[recv->arg_first].x;

            fputs(", reduced ", file);
            if (!same_operand(y, &recv->dst)) {
                fputs("with ", file);
                put_operand(file, y);
                fputc(' ', file);
            }
            fputs("into ", file);
            put_operand(file, &recv->dst);
        } else if (!same_operand(x, &recv->dst)) {
            fputs(" into ", file);
            put_operand(file, &recv->dst);
        }
    }
    fputc('\n', file);
}

/* Steps in the order of their rounds; within a round messages before local steps, then by rank. */
static int32_t *sort_by_round(const struct hkt__rounds *rounds, int32_t nsteps, int32_t *out_first)
{
    int32_t *order = hkt__calloc((size_t)nsteps, sizeof *order);

    if (order == NULL)
        return NULL;
    for (int32_t i = 0; i < nsteps; i++)
        out_first[2 * rounds->round[i] + (rounds->mate[i] < 0) + 1]++;
    for (int32_t i = 0; i < 2 * (rounds->count + 1); i++)
        out_first[i + 1] += out_first[i];
    for (int32_t i = 0; i < nsteps; i++)
        order[out_first[2 * rounds->round[i] + (rounds->mate[i] < 0)]++] = i;
    return order;
}

static void put_dated(FILE *file, struct hkt__sched *const *scheds, const struct hkt__rounds *rounds, int32_t *owner,
                      int32_t number)
{
    const int32_t mate = rounds->mate[number], rank = owner[number];
    const struct hkt__sched *sched = scheds[rank];
    const struct hkt__step *step = &sched->steps[number - rounds->first[rank]];

    if (mate < 0) {
        fprintf(file, "  %d: ", (int)rank);
        put_step(file, sched, step);
        fputc('\n', file);
    } else if (step->kind == HKT__SEND || step->kind == HKT__SIGNAL) {
        const struct hkt__sched *to = scheds[owner[mate]];

        put_message(file, sched, step, to, &to->steps[mate - rounds->first[owner[mate]]]);
    }
}

static enum hkt_status print_by_step(FILE *file, struct hkt__sched *const *scheds, int nranks)
{
    struct hkt__rounds rounds;
    enum hkt_status rc = hkt__rounds_init(&rounds, scheds, nranks);
    int32_t *first = NULL, *owner = NULL, *order = NULL;

    if (rc != HKT_OK) {
        hkt__rounds_fini(&rounds);
        return rc;
    }
    const int32_t nsteps = rounds.first[nranks];

    first = hkt__calloc(2 * ((size_t)rounds.count + 1) + 1, sizeof *first);
    owner = hkt__calloc((size_t)nsteps, sizeof *owner);
    order = first != NULL ? sort_by_round(&rounds, nsteps, first) : NULL;
    if (first == NULL || owner == NULL || order == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory to print %d steps", (int)nsteps);
    } else {
        for (int rank = 0; rank < nranks; rank++)
            for (int32_t i = rounds.first[rank]; i < rounds.first[rank + 1]; i++)
                owner[i] = rank;
        put_title(file, scheds[0]);
        int32_t section = -1;

        for (int32_t i = 0; i < nsteps; i++) {
            const int32_t round = rounds.round[order[i]];

            if (round != section)
                fprintf(file, round == 0 ? "\nbefore round 1:\n" : "\nround %d:\n", (int)round);
            section = round;
            put_dated(file, scheds, &rounds, owner, order[i]);
        }
    }
    hkt__free(order);
    hkt__free(owner);
    hkt__free(first);
    hkt__rounds_fini(&rounds);
    return rc;
}

static void json_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text != '\0'; text++)
        if (*text == '"' || *text == '\\')
            fprintf(file, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(file, "\\u%04x", (unsigned)(unsigned char)*text);
        else
            fputc(*text, file);
    fputc('"', file);
}

static void json_span(FILE *file, const char *key, const struct hkt__span *span)
{
    fprintf(file, "\"%s\": {\"start\": %d, \"stride\": %d, \"modulus\": %d}", key, (int)span->start, (int)span->stride,
            (int)span->modulus);
}

static void json_operand(FILE *file, int32_t rank, const struct hkt__operand *x)
{
    fprintf(file, "{\"rank\": %d, \"buf\": \"%s\", \"count\": %d, ", (int)rank, json_buf_names[x->buf], (int)x->count);
    json_span(file, "at", &x->at);
    fprintf(file, ", \"like_buf\": \"%s\", ", json_buf_names[x->like_buf]);
    json_span(file, "like", &x->like);
    fputc('}', file);
}

static void json_number_or_null(FILE *file, const char *key, bool is_known, int32_t number)
{
    if (is_known)
        fprintf(file, ", \"%s\": %d", key, (int)number);
    else
        fprintf(file, ", \"%s\": null", key);
}

/* number: the step among all ranks' steps; rounds NULL: not known. */
static void json_step(FILE *file, const struct hkt__sched *sched, int32_t index, const struct hkt__rounds *rounds,
                      int32_t number)
{
    const struct hkt__step *step = &sched->steps[index];
    const bool is_matched = rounds != NULL && step->peer >= 0;

    fprintf(file, "        {\"step\": %d, \"kind\": \"%s\", \"lane\": %d", (int)index, hkt__step_kind_name(step->kind),
            (int)step->lane);
    json_number_or_null(file, "peer", step->peer >= 0, step->peer);
    json_number_or_null(file, "peer_step", is_matched,
                        is_matched ? rounds->mate[number] - rounds->first[step->peer] : 0);
    json_number_or_null(file, "round", rounds != NULL, rounds != NULL ? rounds->round[number] : 0);
    fputs(", \"dst\": ", file);
    if (step->dst.count > 0)
        json_operand(file, sched->rank, &step->dst);
    else
        fputs("null", file);
    fputs(", \"args\": [", file);
    for (int32_t i = 0; i < step->arg_count; i++) {
        const struct hkt__arg *arg = &sched->args[step->arg_first + i];

        fputs(i > 0 ? ", " : "", file);
        json_operand(file, arg->rank, &arg->x);
    }
    fputs("], \"after\": [", file);
    for (int32_t i = 0; i < step->dep_count; i++)
        fprintf(file, "%s%d", i > 0 ? ", " : "", (int)sched->deps[step->dep_first + i]);
    fputc(']', file);
    json_number_or_null(file, "fused", step->fused >= 0, step->fused);
    fputc('}', file);
}

static void json_rank(FILE *file, const struct hkt__sched *sched, const struct hkt__rounds *rounds)
{
    fprintf(file, "    {\"rank\": %d, \"in_blocks\": %d, \"out_blocks\": %d, \"lanes\": %d, \"steps\": [",
            (int)sched->rank, (int)sched->blocks[HKT__IN], (int)sched->blocks[HKT__OUT], (int)sched->nlanes);
    for (int32_t i = 0; i < sched->nsteps; i++) {
        fputs(i > 0 ? ",\n" : "\n", file);
        json_step(file, sched, i, rounds, rounds != NULL ? rounds->first[sched->rank] + i : 0);
    }
    fputs("]}", file);
}

/* rounds NULL: only some ranks are here, or they do not fit together; "round" and "peer_step" are null then. */
static void print_json(FILE *file, struct hkt__sched *const *scheds, int nranks, const struct hkt__rounds *rounds)
{
    const struct hkt__sched *sched = scheds[0];

    fputs("{\n  \"collective\": ", file);
    json_text(file, hkt_coll_name(sched->coll));
    fputs(",\n  \"algorithm\": ", file);
    json_text(file, sched->algo);
    fprintf(file, ",\n  \"nranks\": %d,\n  \"root\": %d,\n  \"in_place\": %s,\n  \"uniform_blocks\": %s,\n",
            (int)sched->nranks, (int)sched->root, sched->in_place ? "true" : "false",
            sched->uniform_blocks ? "true" : "false");
    fprintf(file, "  \"cuts\": %d,\n  \"scratch_chunks\": %d", (int)sched->cuts, (int)sched->scratch_chunks);
    fputs(",\n  \"rounds\": ", file);
    if (rounds != NULL)
        fprintf(file, "%d", (int)rounds->count);
    else
        fputs("null", file);
    fputs(",\n  \"ranks\": [\n", file);
    for (int rank = 0; rank < nranks; rank++) {
        json_rank(file, scheds[rank], rounds);
        fputs(rank < nranks - 1 ? ",\n" : "\n", file);
    }
    fputs("  ]\n}\n", file);
}

static bool is_complete(struct hkt__sched *const *scheds, int nranks)
{
    bool complete = nranks == scheds[0]->nranks;

    for (int i = 0; i < nranks; i++)
        complete = complete && scheds[i]->rank == i && scheds[i]->nranks == nranks;
    return complete;
}

enum hkt_status hkt__print(struct hkt__sched *const *scheds, int nranks, enum hkt_plan_format format, FILE *file)
{
    enum hkt_status rc = HKT_OK;

    if (nranks < 1)
        return hkt__fail(HKT_ERR_INVALID, "there is no schedule to print");
    switch (format) {
    case HKT_PLAN_BY_RANK: print_by_rank(file, scheds, nranks); break;
    case HKT_PLAN_BY_STEP:
        if (!is_complete(scheds, nranks))
            return hkt__fail(HKT_ERR_INVALID, "printing by step needs the schedules of all ranks, in order");
        rc = print_by_step(file, scheds, nranks);
        break;
    case HKT_PLAN_JSON: {
        struct hkt__rounds rounds = { NULL, NULL, NULL, 0 };
        bool has_rounds = is_complete(scheds, nranks);

        if (has_rounds) {
            rc = hkt__rounds_init(&rounds, scheds, nranks);
            has_rounds = rc == HKT_OK;
            rc = rc == HKT_ERR_INVALID ? HKT_OK : rc; /* wrong schedules are printed without rounds */
        }
        if (rc == HKT_OK)
            print_json(file, scheds, nranks, has_rounds ? &rounds : NULL);
        hkt__rounds_fini(&rounds);
        break;
    }
    default: return hkt__fail(HKT_ERR_INVALID, "%d is no plan format", (int)format);
    }
    if (rc == HKT_OK && (fflush(file) != 0 || ferror(file) != 0))
        rc = hkt__fail_sys(HKT_ERR_SYSTEM, "writing the schedule failed: is the disk full?");
    return rc;
}
