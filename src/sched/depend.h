/* Derives dependencies while a schedule is written: who wrote each memory cell last, who has read it since, which peers
 * have granted their memory. Time and space are linear in the pieces that the steps name. */
#ifndef HOCKET_SCHED_DEPEND_H
#define HOCKET_SCHED_DEPEND_H

#include "sched/ir.h"

struct hkt__depend_node;

struct hkt__depend {
    int32_t nranks;
    int32_t step; /* the step being derived */
    /* Per cell: last step that wrote it (-1: none), and lists of the readers and grants since (-1: empty). */
    int32_t *writer, *readers, *grants;
    int32_t ncells, writer_cap, readers_cap, grants_cap;
    /* Per rank, made at the first direct step: list of steps that touched its memory since they were last signalled. */
    int32_t *touched;
    /* Per receive queue, index rank * HKT__LANES_MAX + lane, made when first needed: last step, last WAIT; plus 1. */
    int32_t *rx_last, *wait_last;
    int32_t *rx_queues; /* indices of the receive queues in use */
    int32_t nrx_queues, rx_queues_cap;
    struct hkt__depend_node *nodes; /* pool of all lists */
    int32_t nnodes, nodes_cap;
    int32_t *mark; /* per step: == step + 1 when already found for the current step */
    int32_t mark_cap, nmarks;
    int32_t *found; /* dependencies of the current step, each once */
    int32_t nfound, found_cap;
};

void hkt__depend_init(struct hkt__depend *d, int nranks);
void hkt__depend_fini(struct hkt__depend *d);

/* Each returns OK or NOMEM; hkt__depend_write also BUG when the step names a cell twice such that the order of its
 * pieces would matter. Call begin once per step with consecutive numbers from 0, reads before writes. */
HKT_NODISCARD enum hkt_status hkt__depend_begin(struct hkt__depend *d, int32_t step);
/** The step reads / writes cells base + chunk for the pieces of span. */
HKT_NODISCARD enum hkt_status hkt__depend_read(struct hkt__depend *d, int32_t base, const struct hkt__span *span,
                                               int32_t count);
HKT_NODISCARD enum hkt_status hkt__depend_write(struct hkt__depend *d, int32_t base, const struct hkt__span *span,
                                                int32_t count);
/** The step hands the cells to a peer that may write them: after the last writer and the readers since, but not after
 *  other grants. To later steps it is a read: what the peer does is ordered by the WAIT that takes the cells back. */
HKT_NODISCARD enum hkt_status hkt__depend_grant(struct hkt__depend *d, int32_t base, const struct hkt__span *span,
                                                int32_t count);
/** The step reads or writes memory of `rank`: after every grant (WAIT) got from it so far. */
HKT_NODISCARD enum hkt_status hkt__depend_touch(struct hkt__depend *d, int32_t rank);
/** The step is a SIGNAL to `rank`: after all that touched its memory. */
HKT_NODISCARD enum hkt_status hkt__depend_signal(struct hkt__depend *d, int32_t rank);
/** The step is the newest of the receive queue (rank, lane). */
HKT_NODISCARD enum hkt_status hkt__depend_receive(struct hkt__depend *d, int32_t rank, int lane, bool is_wait);
/** The step comes after all that was received or waited for so far. */
HKT_NODISCARD enum hkt_status hkt__depend_all_received(struct hkt__depend *d);

#endif
