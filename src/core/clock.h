/* Time, and waiting by it. hkt__now_ns is CLOCK_MONOTONIC; hkt__ticks is the cheapest counter there is, for the recorder and
 * for deadlines on the fast path; hkt__ticks_ns converts a difference of ticks. */
#ifndef HOCKET_CORE_CLOCK_H
#define HOCKET_CORE_CLOCK_H

#include <pthread.h>
#include <stdint.h>

int64_t hkt__now_ns(void);

static inline uint64_t hkt__ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return (uint64_t)hkt__now_ns();
#endif
}

/** Nanoseconds in a difference of ticks. The rate is measured once, at the first call (about 2 ms). */
double hkt__ticks_ns(uint64_t ticks);

void hkt__sleep_ns(int64_t ns);

/** A condition variable to wait on by hkt__now_ns's clock. 0, or an error number. */
int hkt__cond_init(pthread_cond_t *cond);
/** Wait for a signal, at most that long. */
void hkt__cond_wait_ns(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns);

#endif
