/* Tickets: calls take a number, whoever runs them waits for it. Uncontended (one thread, no streams) it is a few loads and
 * stores; waiters sleep on a condition variable.
 * What is done in each call is in comm_int.h; here is the rest.
 *   T1: pass stores serving with release after the operation's last effect; T2: the next runner's acquire.
 *   T3: pass stores left with release as the last thing it does to the turn, after those before it have; T4: they, and who is
 *   about to free the turn, acquire.
 * No read-modify-write: `next` is written by the one caller of a communicator, `serving` by the one that runs. A locked
 * instruction would hold every call up until the line just sent to a peer has been fetched from there, 0.1 us or more.
 * So pass may look at `waiters` before its own store is visible and miss a waiter that has just looked at `serving`. That
 * window is as short as a store buffer: a waiter sleeps LOOK_AGAIN_NS at first, and only then for good. */
#include <sched.h>

#include "comm/comm_int.h"
#include "core/clock.h"

#define LOOK_AGAIN_NS 1000000
#define YIELDS 100
#define LEFT_NAP_NS 20000

enum hkt_status hkt__turn_init(struct hkt__turn *turn)
{
    if (pthread_mutex_init(&turn->lock, NULL) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot make a mutex");
    if (hkt__cond_init(&turn->changed) != 0) {
        pthread_mutex_destroy(&turn->lock);
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot make a condition variable");
    }
    return HKT_OK;
}

void hkt__turn_fini(struct hkt__turn *turn)
{
    pthread_cond_destroy(&turn->changed);
    pthread_mutex_destroy(&turn->lock);
}

void hkt__turn_await(struct hkt__turn *turn, uint64_t ticket)
{
    pthread_mutex_lock(&turn->lock);
    /* seq_cst: the waiter is announced before it looks. */
    atomic_fetch_add_explicit(&turn->waiters, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&turn->serving, memory_order_seq_cst) < ticket)
        hkt__cond_wait_ns(&turn->changed, &turn->lock, LOOK_AGAIN_NS);
    while (atomic_load_explicit(&turn->serving, memory_order_acquire) < ticket)
        pthread_cond_wait(&turn->changed, &turn->lock);
    atomic_fetch_sub_explicit(&turn->waiters, 1, memory_order_relaxed);
    pthread_mutex_unlock(&turn->lock);
}

/** A stream's thread that ran an operation may be on its way out still: a few instructions, once it has a core. Under a real-time
 *  policy a yield gives none to a thread of lower priority; a sleep does. */
void hkt__turn_await_left(struct hkt__turn *turn, uint64_t ticket)
{
    for (int tries = 0; atomic_load_explicit(&turn->left, memory_order_acquire) < ticket; tries += tries < YIELDS) { /* T4 */
        if (tries < YIELDS)
            sched_yield();
        else
            hkt__sleep_ns(LEFT_NAP_NS);
    }
}

void hkt__turn_wake(struct hkt__turn *turn)
{
    pthread_mutex_lock(&turn->lock);
    pthread_cond_broadcast(&turn->changed);
    pthread_mutex_unlock(&turn->lock);
}

void hkt__turn_drain(struct hkt__turn *turn)
{
    const uint64_t next = atomic_load_explicit(&turn->next, memory_order_relaxed);

    hkt__turn_wait(turn, next);
    hkt__turn_await_left(turn, next);
}
