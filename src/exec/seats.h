/* Which core each rank of a communicator runs on, where ranks outnumber cores, and the move that evens it out.
 *
 * Ranks that wait by yielding never sleep, and so the system hardly moves them: it places who wakes up, and its balancer looks
 * again after many milliseconds. 8 ranks on 2 cores were found as 5 and 3, or 6 and 2, in two starts of three, and stayed so
 * for as long as anybody looked; all then wait for the fuller core. So each says in its window where it last waited, and now
 * and then counts. The highest rank of a core that has too many moves to the one with fewest, if it may run there: it
 * restricts itself to that core, which moves it, and takes the restriction back. Where all may run on all cores and are a multiple
 * of them, each has a home to return to instead, so that it is known who shares a core with whom. */
#ifndef HOCKET_EXEC_SEATS_H
#define HOCKET_EXEC_SEATS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "exec/exec.h"

/** Of one communicator that has all ranks of its host; used by one thread at a time. */
struct hkt__seats {
    struct hkt__window_head *const *windows; /* [nranks] */
    int nranks, rank, cores, home;           /* home: a CPU, -1: none */
    int32_t *seen;                           /* [nranks]: seats, as last read; owned */
    uint32_t looks;
    int64_t moved_ns, pause_ns;              /* the last move, or attempt; how long to leave it at that */
};

/** Goes home, if there is one. Gives *out_seats, released by hkt__seats_destroy. The windows, all of them mapped, must outlive it.
 *  NOMEM. */
HKT_NODISCARD enum hkt_status hkt__seats_create(const struct hkt__exec_env *env, int cores, int home,
                                                struct hkt__seats **out_seats);
void hkt__seats_destroy(struct hkt__seats *seats);

/** To be called when the rank has yielded: say where it is, and see from time to time whether it should be elsewhere. */
void hkt__seats_look(struct hkt__seats *seats);

/** The core that `rank` should move to, -1: it stays. seats[nranks]: 1 + the core of each, 0: not known. `cores` are shared by
 *  all; `allowed`: those that the rank may run on. */
int hkt__seats_pick(const int32_t *seats, int nranks, int rank, int cores, const cpu_set_t *allowed);

#endif
