/* The slow half of waiting. The numbers: a yield costs about 1 us where nobody else runs, a sleep and wake-up 10 us or
 * more (measured on a 2-core virtual machine); so yields go on for some hundred microseconds before the first sleep, and
 * sleeps grow to a bound that keeps a missed wake-up harmless. */
#include "exec/wait.h"

#include <sched.h>

#define SPINS_ALONE 2000          /* about 50 us: longer than any exchange between two cores */
#define SPINS_CROWDED 2           /* ranks outnumber cores: the peer may need this very core */
#define YIELDS 400
/* Over sockets a poll is a system call, 0.3 us or more per channel, and data that arrive wake a sleeper. So a rank spins
 * for some 50 us, a few times what a small frame takes, and then sleeps at once: yields would leave the core to strangers for
 * whole time slices where these want it, and keep it busy where nobody does. Where it is other ranks that want the core,
 * yields are right: 4 and 4 ranks on two cores need 54 us for 8 bytes instead of 300, and 40 ms instead of 65 for 16 MiB.
 *
 * Longer spinning would help two ranks that one disturbance has put to sleep: an exchange whose ranks sleep and are woken takes
 * 60 to 75 us, so they may go on sleeping, call after call (8 bytes, loopback, in turns: p99 of 5000 calls 24 to 110 us with
 * 100 spins, 6 to 44 with 400). But who spins where cores are fewer than a rank can know, as in containers, holds up its peers:
 * 4 and 8 ranks on two cores took 322 and 986 us with 400 spins, 141 and 452 with 100. */
#define SPINS_NETWORK 100
#define YIELDS_NETWORK 0
#define SLEEP_FIRST_NS 100000
#define SLEEP_MAX_NS 2000000
#define CLOCK_EVERY 64            /* yields between looks at the clock */
/* Ranks of a healthy job often wait for each other, but seldom for as long as the first; who called something else should
 * be found out within a second or so. */
#define TELL_FIRST_NS 100000000
#define TELL_AGAIN_NS 1000000000

enum hkt__wait_advice hkt__wait_longer(struct hkt__wait *wait)
{
    const int32_t past = wait->idle - wait->policy->spins;

    if (past % CLOCK_EVERY == 0 || past > wait->policy->yields) {
        const int64_t now_ns = hkt__now_ns();

        if (wait->deadline_ns == 0) {
            wait->deadline_ns = now_ns + wait->policy->timeout_ns;
            wait->tell_ns = now_ns + TELL_FIRST_NS;
        }
        if (now_ns >= wait->deadline_ns)
            return HKT__WAIT_EXPIRED;
        if (now_ns >= wait->tell_ns && past > wait->policy->yields) {
            wait->tell_ns = now_ns + TELL_AGAIN_NS;
            return HKT__WAIT_TELL;
        }
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

void hkt__wait_policy_init(struct hkt__wait_policy *policy, int64_t spins, int64_t yields,
                           const struct hkt__wait_place *place)
{
    const bool is_crowded = place->host_ranks > place->cores;

    if (spins < 0)
        spins = is_crowded ? SPINS_CROWDED : place->is_network ? SPINS_NETWORK : SPINS_ALONE;
    if (yields < 0)
        yields = place->is_network && !is_crowded ? YIELDS_NETWORK : YIELDS;
    policy->spins = (int32_t)spins;
    policy->yields = (int32_t)yields;
}
