/* Tickets: calls take a number, whoever runs them waits for it. Uncontended (one thread, no streams) it is two loads and
 * two stores; waiters sleep on a condition variable.
 *   T1: pass stores serving with release after the operation's last effect; T2: the next runner's acquire. */
#include <errno.h>

#include "comm/comm_int.h"

enum hkt_status hkt__turn_init(struct hkt__turn *turn)
{
    if (pthread_mutex_init(&turn->lock, NULL) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot make a mutex");
    if (pthread_cond_init(&turn->changed, NULL) != 0) {
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

uint64_t hkt__turn_take(struct hkt__turn *turn)
{
    /* Relaxed: one caller per communicator at a time, so the order of tickets is the caller's own. */
    return atomic_fetch_add_explicit(&turn->next, 1, memory_order_relaxed);
}

void hkt__turn_wait(struct hkt__turn *turn, uint64_t ticket)
{
    if (atomic_load_explicit(&turn->serving, memory_order_acquire) >= ticket) /* T2 */
        return;
    pthread_mutex_lock(&turn->lock);
    /* seq_cst, with the load in pass: either pass sees the waiter, or the waiter sees the new number. */
    atomic_fetch_add_explicit(&turn->waiters, 1, memory_order_seq_cst);
    while (atomic_load_explicit(&turn->serving, memory_order_seq_cst) < ticket)
        pthread_cond_wait(&turn->changed, &turn->lock);
    atomic_fetch_sub_explicit(&turn->waiters, 1, memory_order_relaxed);
    pthread_mutex_unlock(&turn->lock);
}

void hkt__turn_pass(struct hkt__turn *turn)
{
    atomic_fetch_add_explicit(&turn->serving, 1, memory_order_seq_cst); /* T1, and the order with waiters */
    if (atomic_load_explicit(&turn->waiters, memory_order_seq_cst) == 0)
        return;
    pthread_mutex_lock(&turn->lock);
    pthread_cond_broadcast(&turn->changed);
    pthread_mutex_unlock(&turn->lock);
}

void hkt__turn_drain(struct hkt__turn *turn)
{
    hkt__turn_wait(turn, atomic_load_explicit(&turn->next, memory_order_relaxed));
}
