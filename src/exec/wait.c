/* The slow half of waiting. The numbers: a yield costs about 1 us where nobody else runs, a sleep and wake-up 10 us or
 * more (measured on a 2-core virtual machine); so yields go on for some hundred microseconds before the first sleep, and
 * sleeps grow to a bound that keeps a missed wake-up harmless. */
#include "exec/wait.h"

#include <sched.h>

#include "exec/seats.h"

#define SPINS_ALONE 2000          /* about 50 us: longer than any exchange between two cores */
#define SPINS_CROWDED 2           /* ranks outnumber cores: the peer may need this very core */
#define YIELDS 400
/* Under a quota of CPU time yields to nobody are paid for too, so whoever waits sleeps after some 10 us. 2 ranks with work of 200
 * us between calls on 8 bytes, cpu.cfs_quota_us of one CPU: 458 us a call, 549 by spinning, 501 by yielding; without work alike. */
#define SPINS_SHORT 100
#define YIELDS_SHORT 20
#define REST_NS 400               /* some small calls of a sender that is left alone; 200 to 900 are alike */
/* Over sockets a poll is a system call, 0.3 us or more per channel, and data that arrive wake a sleeper. How to wait depends on
 * who wants the core meanwhile, and that a rank cannot know: containers share cores without a word. So after some 50 us, a few
 * times what a small frame takes, it yields and looks at the clock (`feels`):
 *   - back at once: nobody. Polling goes on for some 150 us: two ranks that one disturbance has put to sleep need 60 to 75 us
 *     for an exchange, and would else go on sleeping, call after call. Then it sleeps.
 *   - back soon: whoever had the core gave it back, as ranks do that wait. Then yields are right from the first poll on, and spins
 *     hold others up: 8 bytes between 4 and 8 hosts that share two cores took 201 and 1021 us, and take 44 and 332.
 *   - back late, twice and not soon in between (one stranger gives it back at once each other time): strangers, who keep a core for
 *     a time slice. Whoever sleeps is woken sooner: 2 ranks beside two of them need 1711 us for 8 bytes if they yield, 17 if they
 *     spin and sleep. So the next waits do not yield. */
#define SPINS_NETWORK 100
#define QUICK_NS 2000             /* a yield to nobody: 0.3 to 0.6 us; to a rank that polls once and yields: 4 and more */
#define QUICK_MAX 200
#define LATE_NS 2000000           /* strangers' time slices: 3 ms and more. Two, as a rank may copy for as long */
#define SHY_FIRST 8               /* waits, doubled each time that strangers are still there */
#define SHY_MOST 1024
#define NAP_FIRST_NS 2000000
#define NAP_MOST_NS 64000000
#define SLEEP_FIRST_NS 100000
#define SLEEP_MAX_NS 2000000
#define CLOCK_EVERY 64            /* yields between looks at the clock */
/* Ranks of a healthy job often wait for each other, but seldom for as long as the first; who called something else should
 * be found out within a second or so. */
#define TELL_FIRST_NS 100000000
#define TELL_AGAIN_NS 1000000000

/** Strangers have the core: do not yield for a while, longer each time. */
static void be_shy(struct hkt__wait_policy *policy)
{
    const int32_t next = policy->shy_next < SHY_FIRST ? SHY_FIRST : 2 * policy->shy_next;

    policy->shy = policy->shy_next = next < SHY_MOST ? next : SHY_MOST;
    policy->spins = SPINS_NETWORK;
}

/** Ranks that yield to each other on one core do so for seconds while another core idles: only who wakes up is given that one.
 *  So they sleep now and then, ever more seldom where it does not help. */
static bool is_time_to_nap(struct hkt__wait_policy *policy, int64_t now_ns)
{
    if (now_ns < policy->nap_ns && policy->nap_pause_ns > 0)
        return false;
    policy->nap_pause_ns = policy->nap_pause_ns < NAP_FIRST_NS ? NAP_FIRST_NS : 2 * policy->nap_pause_ns;
    if (policy->nap_pause_ns > NAP_MOST_NS)
        policy->nap_pause_ns = NAP_MOST_NS;
    policy->nap_ns = now_ns + policy->nap_pause_ns;
    return true;
}

/** Yield, and find out who else wants the core. False: better sleep. */
static bool feel(struct hkt__wait *wait)
{
    struct hkt__wait_policy *policy = wait->policy;

    if (wait->quick >= QUICK_MAX)
        return false;
    if (policy->shy > 0) {
        policy->shy--;
        return false;
    }
    const int64_t begin_ns = hkt__now_ns();

    sched_yield();
    const int64_t took_ns = hkt__now_ns() - begin_ns;

    if (took_ns >= LATE_NS) {
        if (policy->was_late)
            be_shy(policy);
        policy->was_late = true;
        return true;
    }
    policy->shy_next -= policy->shy_next > 0;
    if (took_ns >= QUICK_NS) {
        policy->was_late = false;
        policy->quick = wait->quick = 0;
        policy->spins = SPINS_CROWDED;
        return !is_time_to_nap(policy, begin_ns + took_ns);
    }
    wait->quick++;
    if (++policy->quick >= QUICK_MAX) {
        policy->quick = 0;
        policy->nap_pause_ns = 0;
        policy->spins = SPINS_NETWORK;
    }
    return true;
}

/** False: it is time to sleep. */
static bool yield(struct hkt__wait *wait)
{
    if (wait->policy->feels && !feel(wait))
        return false;
    if (!wait->policy->feels)
        sched_yield();
    wait->yielded++;
    if (wait->policy->seats != NULL)
        hkt__seats_look(wait->policy->seats);
    return true;
}

void hkt__wait_rest(struct hkt__wait *wait)
{
    const int64_t end_ns = hkt__now_ns() + REST_NS;

    wait->rests = false;
    do {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } while (hkt__now_ns() < end_ns);
}

enum hkt__wait_advice hkt__wait_longer(struct hkt__wait *wait)
{
    const int32_t past = wait->idle - wait->spins;

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
    if (past <= wait->policy->yields && yield(wait))
        return HKT__WAIT_POLL;
    wait->idle = wait->spins + wait->policy->yields + 1; /* stays here; cannot overflow */
    wait->sleep_ns = wait->sleep_ns == 0 ? SLEEP_FIRST_NS : wait->sleep_ns * 2;
    if (wait->sleep_ns > SLEEP_MAX_NS)
        wait->sleep_ns = SLEEP_MAX_NS;
    wait->parked++;
    return HKT__WAIT_PARK;
}

void hkt__wait_policy_init(struct hkt__wait_policy *policy, int64_t spins, int64_t yields,
                           const struct hkt__wait_place *place)
{
    const bool is_crowded = place->host_ranks > place->cores, is_short = place->is_short && !is_crowded && !place->is_network;

    policy->feels = place->is_network && !is_crowded && spins < 0 && yields < 0;
    policy->quick = policy->shy = policy->shy_next = 0;
    policy->nap_ns = policy->nap_pause_ns = 0;
    policy->was_late = false;
    policy->may_rest = !is_crowded && !place->is_network;
    policy->followed = 0;
    policy->seats = NULL;
    if (spins < 0)
        spins = is_crowded ? SPINS_CROWDED : is_short ? SPINS_SHORT : place->is_network ? SPINS_NETWORK : SPINS_ALONE;
    if (yields < 0)
        yields = place->is_network && !is_crowded && !policy->feels ? 0 : is_short ? YIELDS_SHORT : YIELDS;
    policy->spins = (int32_t)spins;
    policy->yields = (int32_t)yields;
}
