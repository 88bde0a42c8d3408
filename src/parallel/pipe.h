/* What the files on pipeline schedules share. An order is the compute alone; messages are put in by time. */
#ifndef HOCKET_PARALLEL_PIPE_H
#define HOCKET_PARALLEL_PIPE_H

#include <stdbool.h>

#include "hocket/pipeline.h"

static inline bool hkt__pipe_is_compute(enum hkt_pipe_op_kind kind)
{
    return kind <= HKT_PIPE_W;
}

static inline bool hkt__pipe_is_send(enum hkt_pipe_op_kind kind)
{
    return kind == HKT_PIPE_SEND_ACT || kind == HKT_PIPE_SEND_GRAD;
}

static inline int hkt__pipe_nops(const struct hkt_pipe *pipe)
{
    return pipe->first[pipe->stages];
}

/** Virtual stage of a chunk of a stage. */
static inline int hkt__pipe_virtual(const struct hkt_pipe *pipe, int stage, int chunk)
{
    return chunk * pipe->stages + stage;
}

/** Where the result of (compute kind, virtual stage, micro-batch) is kept in a table of 3 * virtual stages * micros. */
static inline size_t hkt__pipe_cell(const struct hkt_pipe *pipe, enum hkt_pipe_op_kind kind, int virtual_stage,
                                    int micro)
{
    return ((size_t)kind * (size_t)(pipe->stages * pipe->chunks) + (size_t)virtual_stage) * (size_t)pipe->micros
           + (size_t)micro;
}

static inline size_t hkt__pipe_cells(const struct hkt_pipe *pipe)
{
    return (size_t)3 * (size_t)(pipe->stages * pipe->chunks) * (size_t)pipe->micros;
}

/** Write the compute operations of one stage in their order; returns how many. out_ops NULL: just count. */
int hkt__pipe_order(const struct hkt_pipe *pipe, int stage, struct hkt_pipe_op *out_ops);

/** Times of all virtual stages: uneven[k], or `times` for each. */
struct hkt__pipe_clock {
    struct hkt_pipe_times times;
    const struct hkt_pipe_times *uneven;
};
/** Duration of a compute operation of a stage. */
int64_t hkt__pipe_duration(const struct hkt_pipe *pipe, const struct hkt__pipe_clock *clock, int stage,
                           const struct hkt_pipe_op *op);
/** Start and end of every compute operation when messages take times.send and nothing waits for anything else; false:
 *  the order cannot be run. done: a table of hkt__pipe_cells, filled with end times (-1: not computed). */
bool hkt__pipe_flow(const struct hkt_pipe *pipe, const struct hkt__pipe_clock *clock, struct hkt_pipe_sim *sim,
                    int64_t *done);
/** Unit times where all are 0. */
struct hkt_pipe_times hkt__pipe_times_or_unit(const struct hkt_pipe_times *times);

/** partner[i]: the operation that meets send or receive i, -1: none (or compute). The k-th of a pair meets the k-th.
 *  Errors   NOMEM */
HKT_NODISCARD enum hkt_status hkt__pipe_partners(const struct hkt_pipe *pipe, int *out_partner);
/** Stage of an operation. */
int hkt__pipe_stage_of(const struct hkt_pipe *pipe, int op);

#endif
