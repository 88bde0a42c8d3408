/* Pipeline schedules as data. A schedule is one list of operations per stage: compute (F, B, W of a micro-batch on a
 * chunk of layers) and the sends and receives between stages, in the order the stage issues them. The same list is
 * checked, simulated, drawn, and executed; nothing about it is decided while it runs.
 *
 * A model is cut in stages * chunks virtual stages; virtual stage k is chunk k / stages of stage k % stages. F passes
 * activations from k to k + 1, B gradients from k to k - 1. Where the backward pass is split (ZB-H1), B computes the
 * gradient of the input and W that of the weights; elsewhere B does both. Gradients of a chunk are always added in
 * the order of the micro-batches, so that every schedule gives the same bits.
 *
 * A maximal run of sends and receives in a list is one batch: its members progress together (hkt_group_start,
 * hkt_group_end), and the batch is over when all are. The k-th send from stage i to j meets the k-th receive on j
 * from i. */
#ifndef HOCKET_PIPELINE_H
#define HOCKET_PIPELINE_H

#include <stdint.h>
#include <stdio.h>

#include "hocket/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HKT_PIPE_STAGES_MAX 1024
#define HKT_PIPE_OPS_MAX (1 << 26) /* of all stages together */

/* X(name, text) */
#define HKT_PIPE_KIND_TABLE(X)                                                                                         \
    X(HKT_PIPE_FORWARD, "forward")         /* no backward pass: inference */                                           \
    X(HKT_PIPE_GPIPE, "gpipe")             /* all F, then all B: holds every micro-batch */                            \
    X(HKT_PIPE_1F1B, "1f1b")               /* as long as gpipe, but holds at most `stages` micro-batches */            \
    X(HKT_PIPE_INTERLEAVED, "interleaved") /* 1f1b over several chunks per stage: the bubble divides by chunks */      \
    X(HKT_PIPE_ZB_H1, "zb-h1")             /* 1f1b with B and W apart; W fills the bubble */

enum hkt_pipe_kind {
#define HKT_PIPE_KIND_ENUM(name, text) name,
    HKT_PIPE_KIND_TABLE(HKT_PIPE_KIND_ENUM)
#undef HKT_PIPE_KIND_ENUM
        HKT_PIPE_KIND_COUNT
};

/* X(name, text) */
#define HKT_PIPE_OP_TABLE(X)                                                                                           \
    X(HKT_PIPE_F, "F")                                                                                                 \
    X(HKT_PIPE_B, "B")                                                                                                 \
    X(HKT_PIPE_W, "W")                                                                                                 \
    X(HKT_PIPE_SEND_ACT, "send_act")                                                                                   \
    X(HKT_PIPE_RECV_ACT, "recv_act")                                                                                   \
    X(HKT_PIPE_SEND_GRAD, "send_grad")                                                                                 \
    X(HKT_PIPE_RECV_GRAD, "recv_grad")

enum hkt_pipe_op_kind {
#define HKT_PIPE_OP_ENUM(name, text) name,
    HKT_PIPE_OP_TABLE(HKT_PIPE_OP_ENUM)
#undef HKT_PIPE_OP_ENUM
        HKT_PIPE_OP_COUNT
};

struct hkt_pipe_op {
    enum hkt_pipe_op_kind kind;
    int micro; /* micro-batch, from 0 */
    int chunk; /* of this stage: the one that computes, that made what is sent, or that waits for what is received */
    int peer;  /* stage at the other end; -1 for compute */
};

/** Operations of stage i: ops[first[i]] .. ops[first[i + 1] - 1]. Plain data; a caller may write one of its own and
 *  have it checked. */
struct hkt_pipe {
    enum hkt_pipe_kind kind;
    int stages, micros, chunks;
    int splits_backward; /* 1: W stands apart from B */
    struct hkt_pipe_op *ops;
    int *first; /* [stages + 1] */
};

/** Virtual durations in any unit: of one operation on one chunk. */
struct hkt_pipe_times {
    int64_t f;
    int64_t b;    /* gradient of the input */
    int64_t w;    /* gradient of the weights; where B does both it takes b + w */
    int64_t send; /* from the end of the operation that makes a message until it has arrived */
};
#define HKT_PIPE_TIMES_UNIT                                                                                            \
    {                                                                                                                  \
        1, 1, 1, 0                                                                                                     \
    }

struct hkt_pipe_opts {
    enum hkt_pipe_kind kind;
    int stages, micros;
    int chunks;                  /* interleaved: at least 2; forward: any; 0 or 1 for the others */
    struct hkt_pipe_times times; /* by which the order of messages is chosen; all 0: HKT_PIPE_TIMES_UNIT */
};

/** Build a schedule. It has passed hkt_pipe_check.
 *  Owns     gives *out_pipe, released by hkt_pipe_destroy
 *  Errors   INVALID, UNSUPPORTED: the text names the numbers and what is possible; NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_pipe_create(const struct hkt_pipe_opts *opts, struct hkt_pipe **out_pipe);
/** NULL is allowed. */
HKT_API void hkt_pipe_destroy(struct hkt_pipe *pipe);

/** Prove a schedule: every F, B, W of every micro-batch and chunk once, in an order that respects what they need,
 *  inputs received before use and outputs sent after; each send meets a receive of the same thing; gradients are
 *  added in the order of micro-batches; and no deadlock even when no message is ever buffered.
 *  Errors   INVALID names stage, operation and what is wrong; for a deadlock every stage that waits and for whom.
 *           NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_pipe_check(const struct hkt_pipe *pipe);

/** Most micro-batches of a stage that wait for their backward pass at once, counted in chunks: activations held. */
HKT_API int hkt_pipe_peak(const struct hkt_pipe *pipe, int stage);

/** How time passes in a simulation. */
struct hkt_pipe_sim_opts {
    struct hkt_pipe_times times; /* all 0: HKT_PIPE_TIMES_UNIT */
    int blocking; /* 0: messages travel while stages compute; 1: a stage stands still in each batch until both ends have
                     come and the message has passed */
    const struct hkt_pipe_times *uneven; /* [stages * chunks] times of each virtual stage in the place of f, b, w above;
                                            NULL: all are alike */
};
/** When everything happened. start and end belong to ops of the schedule; an operation that took no time of its own
 *  (a message that travels) has the times of the message. */
struct hkt_pipe_sim {
    int stages;
    int64_t makespan;     /* end of the last operation */
    int64_t *start, *end; /* per operation */
    int64_t *busy;        /* [stages] time in F, B and W */
};
/** Run a schedule in virtual time.
 *  Owns     gives *out_sim, released by hkt_pipe_sim_destroy
 *  Errors   INVALID: the schedule does not run to its end (hkt_pipe_check says why); NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_pipe_simulate(const struct hkt_pipe *pipe,
                                                        const struct hkt_pipe_sim_opts *opts,
                                                        struct hkt_pipe_sim **out_sim);
/** NULL is allowed. */
HKT_API void hkt_pipe_sim_destroy(struct hkt_pipe_sim *sim);
/** How uneven the stages are: the longest time in compute over the mean, 1 when balanced; out_stage (NULL: not
 *  wanted) is the stage that has it. */
HKT_API double hkt_pipe_sim_imbalance(const struct hkt_pipe_sim *sim, int *out_stage);

/** Idle time of a stage by closed form; makespan = compute + bubble. stages - 1 times f + b + w, times f + b - w with
 *  ZB-H1, times f forward only. It equals the simulation with send 0. -1 where no closed form holds: several chunks
 *  unless stages divides micros, ZB-H1 unless micros >= stages and w is at most f and b. */
HKT_API int64_t hkt_pipe_bubble(const struct hkt_pipe_opts *opts);

/** "gpipe", ...; "?" for a value out of range. */
HKT_API const char *hkt_pipe_kind_name(enum hkt_pipe_kind kind);
HKT_API const char *hkt_pipe_op_name(enum hkt_pipe_op_kind kind);
/** The kind of that name; INVALID lists them. */
HKT_API HKT_NODISCARD enum hkt_status hkt_pipe_kind_parse(const char *text, enum hkt_pipe_kind *out_kind);

/** Write the operations, a line per stage ("stage 1: recv_act 0 from 0, F 0, ..."); stage -1: all.
 *  Errors   SYSTEM: the file could not be written; so for all below */
HKT_API HKT_NODISCARD enum hkt_status hkt_pipe_print(const struct hkt_pipe *pipe, int stage, FILE *file);
/** Draw compute against time: a row per stage, a column per unit (the greatest common divisor of all durations), and
 *  how many stages are busy in each. */
HKT_API HKT_NODISCARD enum hkt_status hkt_pipe_draw(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim,
                                                    FILE *file);
/** The operations as JSON. */
HKT_API HKT_NODISCARD enum hkt_status hkt_pipe_json(const struct hkt_pipe *pipe, FILE *file);
/** A trace in Chrome's format (chrome://tracing, Perfetto): a thread per stage, one virtual unit is one microsecond. */
HKT_API HKT_NODISCARD enum hkt_status hkt_pipe_trace(const struct hkt_pipe *pipe, const struct hkt_pipe_sim *sim,
                                                     FILE *file);

#ifdef __cplusplus
}
#endif
#endif
