/* Words for the verifier's messages: steps and chunks as a person would look them up in a printed schedule. */
#include <stdio.h>

#include "sched/verify_int.h"

static const char *const buf_names[HKT__BUF_COUNT] = { "IN", "OUT", "SCRATCH" };

static const char *buf_name(int buf)
{
    return buf >= 0 && buf < HKT__BUF_COUNT ? buf_names[buf] : "?";
}

struct operand_text {
    char s[64];
};

static struct operand_text operand_text(const struct hkt__operand *x)
{
    const struct hkt__span *at = &x->at;
    struct operand_text text;

    if (x->count == 0 || at->modulus < 1)
        snprintf(text.s, sizeof text.s, "nothing");
    else if (x->count == 1)
        snprintf(text.s, sizeof text.s, "%s[%d]", buf_name(x->buf), (int)hkt__span_at(at, 0));
    else if (at->stride == 1 && at->start >= 0 && (int64_t)at->start + x->count <= at->modulus)
        snprintf(text.s, sizeof text.s, "%s[%d..%d]", buf_name(x->buf), (int)at->start,
                 (int)(at->start + x->count - 1));
    else
        snprintf(text.s, sizeof text.s, "%s[%d%+d x%d mod %d]", buf_name(x->buf), (int)at->start, (int)at->stride,
                 (int)x->count, (int)at->modulus);
    return text;
}

struct hkt__proof_text hkt__proof_chunk_text(int32_t rank, int buf, int32_t chunk)
{
    struct hkt__proof_text text;

    snprintf(text.s, sizeof text.s, "rank %d %s[%d]", (int)rank, buf_name(buf), (int)chunk);
    return text;
}

struct hkt__proof_text hkt__proof_step_text(const struct hkt__proof *v, int32_t step)
{
    const int32_t rank = v->rank_of[step], index = step - v->base[rank];
    const struct hkt__step *s = hkt__proof_step(v, step);
    const bool has_dst = s->kind != HKT__SEND && s->kind != HKT__WRITE;
    struct hkt__proof_text text;
    char peer[48] = "";

    if (hkt__is_tx(s->kind) || hkt__is_rx(s->kind))
        snprintf(peer, sizeof peer, " %s rank %d, lane %d", hkt__is_tx(s->kind) ? "to" : "from", (int)s->peer, s->lane);
    const struct hkt__operand nothing = { .count = 0 };
    const struct hkt__operand *x = has_dst ? &s->dst : s->arg_count > 0 ? &hkt__proof_args(v, step)->x : &nothing;

    snprintf(text.s, sizeof text.s, "rank %d step %d (%s%s: %s)", (int)rank, (int)index, hkt__step_kind_name(s->kind),
             peer, operand_text(x).s);
    return text;
}
