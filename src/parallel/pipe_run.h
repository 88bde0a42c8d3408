/* Running a schedule: one stage's list of operations, in its order, with messages in batches. What an operation computes is
 * the caller's; buffers of what goes between stages belong to the runner.
 *
 * A buffer that came in with F stays until that micro-batch's B is over, so a caller may read it in between; one that came
 * with B until B is over. What goes out is sent in the batch that the schedule has for it, and freed when it has left. On a
 * single stage chunks hand their buffers to each other.
 *
 * When the link has a stream, messages travel on it while the stage computes: an operation waits for the batch that brings what
 * it needs, and for nothing else. Batches keep their order, so what cannot deadlock when stages stand still cannot here. */
#ifndef HOCKET_PARALLEL_PIPE_RUN_H
#define HOCKET_PARALLEL_PIPE_RUN_H

#include "hocket/pipeline.h"
#include "parallel/memory.h"
#include "parallel/traffic.h"

struct hkt__pipe_run {
    const struct hkt_pipe *pipe;
    int stage;
    const struct hkt__link *link; /* ranks are stages; not used with one stage. Its stream is idle before and after */
    struct hkt__memory *memory;
    int64_t elems; /* of a message */
    enum hkt_dtype dtype;
    /* Compute op. F: in is the activation (NULL on the first virtual stage), out where the result goes (NULL on the last). B:
     * in is the gradient of F's result (NULL on the last), out that of its input (NULL on the first). W: both NULL. */
    enum hkt_status (*compute)(void *arg, const struct hkt_pipe_op *op, const void *in, void *out);
    void *arg;
};

/** Errors: those of compute and of messages, NOMEM. */
HKT_NODISCARD enum hkt_status hkt__pipe_run(const struct hkt__pipe_run *run);

#endif
