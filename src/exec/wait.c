/* The slow half of waiting. The numbers: a yield costs about 1 us where nobody else runs, a sleep and wake-up 10 us or
 * more (measured on a 2-core virtual machine); so yields go on for some hundred microseconds before the first sleep, and
 * sleeps grow to a bound that keeps a missed wake-up harmless. */
#include "exec/wait.h"

#include <sched.h>

#define SPINS_ALONE 2000          /* about 50 us: longer than any exchange between two cores */
#define SPINS_CROWDED 20          /* ranks outnumber cores: the peer may need this very core */
#define YIELDS 400
#define SLEEP_FIRST_NS 100000
#define SLEEP_MAX_NS 2000000
#define CLOCK_EVERY 64            /* yields between looks at the clock */

enum hkt__wait_advice hkt__wait_longer(struct hkt__wait *wait)
{
    const int32_t past = wait->idle - wait->policy->spins;

    if (past % CLOCK_EVERY == 0 || past > wait->policy->yields) {
        const int64_t now_ns = hkt__now_ns();

        if (wait->deadline_ns == 0)
            wait->deadline_ns = now_ns + wait->policy->timeout_ns;
        if (now_ns >= wait->deadline_ns)
            return HKT__WAIT_EXPIRED;
    }
    if (past <= wait->policy->yields) {
        wait->yielded++;
        sched_yield();
        return HKT__WAIT_POLL;
    }
    wait->idle = wait->policy->spins + wait->policy->yields + 1; /* stays here; cannot overflow */
    wait->sleep_ns = wait->sleep_ns == 0 ? SLEEP_FIRST_NS : wait->sleep_ns * 2;
    if (wait->sleep_ns > SLEEP_MAX_NS)
        wait->sleep_ns = SLEEP_MAX_NS;
    wait->parked++;
    return HKT__WAIT_PARK;
}

void hkt__wait_policy_init(struct hkt__wait_policy *policy, int64_t spins, int64_t yields, int host_ranks, int cores)
{
    if (spins < 0)
        spins = host_ranks > cores ? SPINS_CROWDED : SPINS_ALONE;
    policy->spins = (int32_t)spins;
    policy->yields = (int32_t)(yields < 0 ? YIELDS : yields);
}
