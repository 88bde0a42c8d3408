/* All of it by CLOCK_MONOTONIC, against which the rate of the time-stamp counter is measured once per process. */
#include "core/clock.h"

#include <pthread.h>
#include <time.h>

int64_t hkt__now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static double ns_per_tick = 1.0;

static void measure_rate(void)
{
#if defined(__x86_64__)
    const int64_t start_ns = hkt__now_ns();
    const uint64_t start = hkt__ticks();
    int64_t end_ns = start_ns;

    while (end_ns - start_ns < 2000000)
        end_ns = hkt__now_ns();
    ns_per_tick = (double)(end_ns - start_ns) / (double)(hkt__ticks() - start);
#endif
}

double hkt__ticks_ns(uint64_t ticks)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, measure_rate);
    return (double)ticks * ns_per_tick;
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

void hkt__sleep_ns(int64_t ns)
{
    const struct timespec duration = timespec_of(ns);

    (void)nanosleep(&duration, NULL);
}

int hkt__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic); /* these two cannot fail on Linux */
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    const int error = pthread_cond_init(cond, &monotonic);

    pthread_condattr_destroy(&monotonic);
    return error;
}

void hkt__cond_wait_ns(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns)
{
    const struct timespec until = timespec_of(hkt__now_ns() + ns);

    (void)pthread_cond_timedwait(cond, lock, &until);
}
