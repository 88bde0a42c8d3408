/* The slow side of the doorbell: system calls. See bell.h for the protocol. */
#include "transport/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Not FUTEX_PRIVATE: the waker may be another process, which maps the word at another address. */
static void wake_all(struct hkt__bell *bell)
{
    syscall(SYS_futex, (uint32_t *)&bell->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void hkt__bell_ring(struct hkt__bell *bell)
{
    /* Of several ringers, the one that clears the flag makes the call. Relaxed: the data were published by the caller's
     * own release; the owner acquires them when it looks. */
    if (atomic_exchange_explicit(&bell->asleep, 0, memory_order_relaxed) == 0)
        return;
    atomic_fetch_add_explicit(&bell->word, 1, memory_order_release); /* R1: pairs with A1 in get_up */
    wake_all(bell);
}

void hkt__bell_force(struct hkt__bell *bell)
{
    atomic_fetch_add_explicit(&bell->word, 1, memory_order_release); /* R1 */
    wake_all(bell);
}

void hkt__bell_lie_down(struct hkt__bell *bell, uint32_t reasons)
{
    /* seq_cst: keeps the owner's second look after the announcement, its half of the protocol. An exchange rather than a
     * fence, since it is the same instruction here and ThreadSanitizer understands it. */
    atomic_exchange_explicit(&bell->asleep, reasons, memory_order_seq_cst);
}

void hkt__bell_sleep(struct hkt__bell *bell, uint32_t seen, int64_t timeout_ns)
{
    const struct timespec timeout = { .tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000 };

    if (timeout_ns > 0)
        syscall(SYS_futex, (uint32_t *)&bell->word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

uint32_t hkt__bell_get_up(struct hkt__bell *bell)
{
    atomic_store_explicit(&bell->asleep, 0, memory_order_relaxed);
    return atomic_load_explicit(&bell->word, memory_order_acquire); /* A1 */
}
