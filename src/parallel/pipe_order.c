/* The order of compute on each stage, schedule by schedule. One rule per function; the papers' pictures follow from
 * them.
 *
 * Sources: GPipe (Huang et al. 2019); 1F1B and interleaving (Narayanan et al. 2021); ZB-H1 (Qi et al. 2024). */
#include <stddef.h>

#include "parallel/pipe.h"

/* Operations appended so far; `ops` NULL: they are just counted. */
struct list {
    struct hkt_pipe_op *ops;
    int count;
};

static void put(struct list *list, enum hkt_pipe_op_kind kind, int micro, int chunk)
{
    if (list->ops != NULL)
        list->ops[list->count] = (struct hkt_pipe_op){ kind, micro, chunk, -1 };
    list->count++;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void all_of(struct list *list, enum hkt_pipe_op_kind kind, int micros)
{
    for (int micro = 0; micro < micros; micro++)
        put(list, kind, micro, 0);
}

/* Stage i runs p - 1 - i F ahead, then F and B in turn, then the B that are left. */
static void order_1f1b(const struct hkt_pipe *pipe, int stage, struct list *list)
{
    const int ahead = least(pipe->micros, pipe->stages - 1 - stage);

    for (int f = 0; f < ahead; f++)
        put(list, HKT_PIPE_F, f, 0);
    for (int b = 0; b < pipe->micros; b++) {
        if (b + ahead < pipe->micros)
            put(list, HKT_PIPE_F, b + ahead, 0);
        put(list, HKT_PIPE_B, b, 0);
    }
}

/* As 1F1B, and W follows B by `stage` micro-batches: stage i then holds p - 1 - i micro-batches that wait for B and i
 * that wait for W, p in all on every stage, and the last stages have W left for the time in which others drain. */
static void order_zb_h1(const struct hkt_pipe *pipe, int stage, struct list *list)
{
    const int ahead = least(pipe->micros, pipe->stages - 1 - stage);
    int w = 0;

    for (int f = 0; f < ahead; f++)
        put(list, HKT_PIPE_F, f, 0);
    for (int b = 0; b < pipe->micros; b++) {
        if (b + ahead < pipe->micros)
            put(list, HKT_PIPE_F, b + ahead, 0);
        put(list, HKT_PIPE_B, b, 0);
        if (b - w >= stage)
            put(list, HKT_PIPE_W, w++, 0);
    }
    while (w < pipe->micros)
        put(list, HKT_PIPE_W, w++, 0);
}

/* The n-th turn of a pass: micro-batches go in groups of `stages`, and a group passes chunk 0, then chunk 1, ...; in
 * the backward pass from the last chunk to the first. The turns of micro-batches that the last group lacks are left
 * out: what remains of an order that runs runs too. */
static void put_turn(const struct hkt_pipe *pipe, struct list *list, enum hkt_pipe_op_kind kind, int n)
{
    const int in_group = n % (pipe->stages * pipe->chunks), chunk = in_group / pipe->stages;
    const int micro = n / (pipe->stages * pipe->chunks) * pipe->stages + in_group % pipe->stages;

    if (micro < pipe->micros)
        put(list, kind, micro, kind == HKT_PIPE_F ? chunk : pipe->chunks - 1 - chunk);
}

/* As the forward pass of the interleaved schedule; with one chunk, micro-batch after micro-batch. */
static void order_forward(const struct hkt_pipe *pipe, struct list *list)
{
    const int groups = (pipe->micros + pipe->stages - 1) / pipe->stages, turns = groups * pipe->stages * pipe->chunks;

    for (int f = 0; f < turns; f++)
        put_turn(pipe, list, HKT_PIPE_F, f);
}

/* Stage i runs so many F ahead that its first B finds all chunks of the first group forwarded, and 2 (p - 1 - i)
 * more, the way to the last stage and back. */
static void order_interleaved(const struct hkt_pipe *pipe, int stage, struct list *list)
{
    const int groups = (pipe->micros + pipe->stages - 1) / pipe->stages, turns = groups * pipe->stages * pipe->chunks;
    const int ahead = least(turns, 2 * (pipe->stages - 1 - stage) + (pipe->chunks - 1) * pipe->stages);

    for (int f = 0; f < ahead; f++)
        put_turn(pipe, list, HKT_PIPE_F, f);
    for (int b = 0; b < turns; b++) {
        if (b + ahead < turns)
            put_turn(pipe, list, HKT_PIPE_F, b + ahead);
        put_turn(pipe, list, HKT_PIPE_B, b);
    }
}

int hkt__pipe_order(const struct hkt_pipe *pipe, int stage, struct hkt_pipe_op *out_ops)
{
    struct list list = { out_ops, 0 };

    switch (pipe->kind) {
    case HKT_PIPE_FORWARD:
        order_forward(pipe, &list);
        break;
    case HKT_PIPE_GPIPE:
        all_of(&list, HKT_PIPE_F, pipe->micros);
        all_of(&list, HKT_PIPE_B, pipe->micros);
        break;
    case HKT_PIPE_1F1B:
        order_1f1b(pipe, stage, &list);
        break;
    case HKT_PIPE_INTERLEAVED:
        order_interleaved(pipe, stage, &list);
        break;
    case HKT_PIPE_ZB_H1:
        order_zb_h1(pipe, stage, &list);
        break;
    case HKT_PIPE_KIND_COUNT:
        break;
    }
    return list.count;
}
