/* The cases of the conformance suite: each runs on every rank of a transport and knows nothing about it but the contract
 * in transport/transport.h. */
#ifndef HOCKET_TESTS_CONFORM_CASES_H
#define HOCKET_TESTS_CONFORM_CASES_H

#include "rig.h"

/* frames: what arrives (cases_frames.c) */
rig_body case_fifo_order, case_sizes, case_same_answer_twice, case_publish_less, case_stop_and_go, case_flood, case_lanes,
    case_tiny_ring;
/* life: domains, windows, sleep, death (cases_life.c) */
rig_body case_many_domains, case_window, case_park_wakes, case_wake, case_peer_dies, case_two_threads, case_early_close,
    case_leaves_early;
/* lend: frames sent from where they lie (cases_lend.c) */
rig_body case_lend, case_lend_only_pinned, case_lend_many_pins, case_lend_and_close, case_lend_to_the_dead;
/* faults: damage is noticed (cases_faults.c) */
rig_body case_loss_is_noticed, case_damage_is_noticed, case_killed;

/* ---- helpers they share (cases_frames.c) ---- */

/** Byte `at` of message `number`. */
unsigned char pattern_at(uint64_t number, size_t at);
void pattern_fill(void *data, uint64_t number, size_t at, size_t bytes);
/** Index of the first byte that differs from the pattern, or bytes. */
size_t pattern_check(const void *data, uint64_t number, size_t at, size_t bytes);

/** A stamp with every field in use, and its check. */
struct hkt__stamp stamp_of(uint64_t number, size_t bytes);
void stamp_check(const struct hkt__stamp *stamp, uint64_t number, size_t bytes);

/** A message under way on a channel; advance it until it is done. Zero bytes are one bare frame. */
struct transfer {
    struct hkt__chan *chan;
    uint64_t number;     /* which pattern */
    size_t bytes, done;
    bool is_done;
    bool may_fail;       /* a failure is recorded in status rather than ending the run */
    enum hkt_status status;
    unsigned char *place; /* owned: the caller's memory, while in use */
};
/** Send or receive what goes now; true when something went. Checks content and stamp on receipt. Every other message is sent
 *  from, and received into, memory of the caller where the channel offers that. */
bool transfer_send(struct transfer *transfer);
bool transfer_receive(struct transfer *transfer);
/** Give up a message that may be half received; the channel is not asked for it again. */
void transfer_drop(struct transfer *transfer);
/** Run both until done; either may be NULL. */
void transfer_finish(struct rig_dom *dom, struct transfer *send, struct transfer *receive);

#endif
