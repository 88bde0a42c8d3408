/* The state of a call in flight, shared by run.c (queues and order), steps.c (what each step does) and report.c. */
#ifndef HOCKET_EXEC_RUN_H
#define HOCKET_EXEC_RUN_H

#include "exec/plan.h"

/** How far a queue of one replica has come. */
struct hkt__cursor {
    uint64_t finished;     /* entries done, over all slices of the replica: what dependencies compare with */
    int32_t queue;         /* in the plan */
    int32_t replica;
    int32_t slice, pos;    /* the entry at the head; slice == nslices: the queue is done */
    int32_t rounds;        /* slices of this replica finished: finished == rounds * count + pos */
    bool open;             /* the head entry has begun: total, done, piece and offset hold */
    bool is_spread;        /* the WRITE at the head was done by the REDUCE before it */
    int32_t piece;         /* of the moving operand */
    size_t offset;         /* bytes of that piece already moved */
    size_t done, total;    /* bytes of the entry */
    char *whole;           /* of a SEND, RECV or RECV_REDUCE: where its operand lies if that is one piece; NULL: in several */
};

struct hkt__run {
    struct hkt__exec_env *env;
    const struct hkt__plan *plan;
    const struct hkt__bind *bind;
    uint64_t direct_base;      /* slices of direct plans before this run */
    size_t scratch_shift;      /* direct: bytes that a round of instances lies after the one before, */
    uint64_t scratch_shifts;   /* for so many rounds; then again from the start: a power of 2 */
    int32_t slices_free;       /* slices whose scratch instance is known to be free: [0, slices_free) */
    int32_t slices_near;       /* slices that may be sent: [0, slices_near) */
    int32_t slices_told;       /* direct: slices announced as done to peers */
    bool has_lent;               /* memory of the call may be lent to channels */
    int32_t nactive, ncursors, capacity;
    struct hkt__cursor *cursors; /* [replica * nqueues + queue] */
    int32_t *active;             /* indices of cursors that are not done */
};

/** One contiguous run of bytes of an operand. */
struct hkt__segment {
    char *data;
    size_t bytes;
};

/** True when memory of `rank` is reached by copying alone: segments of its IN and OUT then hold its own addresses. */
bool hkt__is_far(const struct hkt__run *run, const struct hkt__operand *x, int rank);

/** True for operands in memory of a device, which the CPU does not touch. */
static inline bool hkt__is_on_device(const struct hkt__run *run, const struct hkt__operand *x)
{
    return run->bind->device != NULL && x->buf != HKT__SCRATCH && run->bind->device->has[x->buf];
}

/** Bytes of an operand in a slice; the first piece with bytes becomes the cursor's. */
size_t hkt__operand_bytes(const struct hkt__run *run, const struct hkt__operand *x, int32_t slice);
/** Find out where and how large the operand x is that the entry at the head moves through a channel. */
void hkt__step_measure(const struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__operand *x);
/** Segment at (piece, offset) of x as it lies at `rank`; adjacent pieces are joined. Never empty before the end. */
struct hkt__segment hkt__segment_at(const struct hkt__run *run, const struct hkt__operand *x, int rank,
                                    const struct hkt__cursor *at);
/** Move a cursor over `bytes` of its operand. */
void hkt__segment_advance(const struct hkt__run *run, const struct hkt__operand *x, struct hkt__cursor *at,
                          size_t bytes);

/** Are the dependencies of an entry of the cursor's queue done, for the cursor's slice? */
bool hkt__deps_are_done(const struct hkt__run *run, const struct hkt__cursor *cursor, const struct hkt__entry *entry);

/** Is anything lent to the channel that a queue sends to? */
bool hkt__step_is_lent(const struct hkt__run *run, const struct hkt__cursor *cursor);

/** Send the entry at the head of a prompt queue, at most HKT__TP_SMALL bytes. False: it was not; polls will do it, or find out
 *  why it cannot be. */
bool hkt__step_send_at_once(struct hkt__run *run, const struct hkt__cursor *cursor, const struct hkt__entry *entry);

/** Advance the head entry. OK: done. IN_PROGRESS: moved, then blocked. AGAIN: blocked. */
enum hkt_status hkt__step_send(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry,
                               size_t limit);
enum hkt_status hkt__step_recv(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry);
enum hkt_status hkt__step_signal(struct hkt__run *run, struct hkt__cursor *cursor);
enum hkt_status hkt__step_wait(struct hkt__run *run, struct hkt__cursor *cursor);
/** Local and direct steps are done in one go; failures come from copies to and from peers. */
enum hkt_status hkt__step_local(struct hkt__run *run, struct hkt__cursor *cursor, const struct hkt__entry *entry);
void hkt__run_fold(const struct hkt__run *run, void *dst, const void *const *srcs, int nsrcs, size_t bytes);

#endif
