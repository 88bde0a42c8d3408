/* Waiting: poll a little, then give the core away, then sleep; the deadline runs all the while. Ranks often outnumber
 * cores: then a waiting rank must cost the working one nothing, so it yields almost at once. */
#ifndef HOCKET_EXEC_WAIT_H
#define HOCKET_EXEC_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"

struct hkt__seats;

/** Of one communicator; used by one thread at a time, whose waits may change it (feels). */
struct hkt__wait_policy {
    int32_t spins;         /* polls without result before the first yield */
    int32_t yields;        /* yields before the first sleep */
    int64_t timeout_ns;    /* of the whole wait */
    bool feels;            /* finds out by its yields who else wants the core, and waits accordingly: wait.c */
    int32_t quick;         /* yields in a row that gave the core to nobody */
    int64_t nap_ns, nap_pause_ns; /* when to sleep once between yields, so that another core may be given; how long after the last */
    bool was_late;         /* the last yield was to somebody who kept the core */
    struct hkt__seats *seats; /* to be looked at after yields (exec/seats.h); NULL: nobody moves; borrowed */
    int32_t shy, shy_next; /* waits to come that do not yield, since strangers keep the core; how many these were at first */
    bool may_rest;         /* see hkt__wait_follow */
    int32_t followed;      /* calls in a row that only received and had nothing to wait for, as far as HKT__WAIT_FOLLOWED */
};

#define HKT__WAIT_FOLLOWED 4 /* so many calls make a stream */

struct hkt__wait {
    struct hkt__wait_policy *policy;
    int32_t spins;         /* the policy's, when the wait began */
    int32_t quick;         /* as the policy's, in this wait */
    int32_t idle;          /* polls without result since something last moved */
    int64_t deadline_ns;   /* 0: not yet computed, so that short waits read no clock */
    int64_t sleep_ns;      /* of the next sleep */
    int64_t tell_ns;       /* when the next TELL is due; set with the deadline */
    bool rests;            /* the first poll without result is followed by a rest */
    uint64_t yielded, parked;
};

enum hkt__wait_advice { HKT__WAIT_POLL, HKT__WAIT_PARK, HKT__WAIT_TELL, HKT__WAIT_EXPIRED };

static inline void hkt__wait_begin(struct hkt__wait *wait, struct hkt__wait_policy *policy)
{
    *wait = (struct hkt__wait){.policy = policy, .spins = policy->spins};
}

/** A call begins. True: let its wait rest, if there is one. Where calls that only receive come one after the other, the
 *  sender waits for nobody, and a receiver that keeps up looks at each line before it is written: it takes the line away from
 *  a sender that is about to write it. So whoever found all there in some calls, and then nothing, rests: the sender gets ahead
 *  by some calls, whose lines are then moved undisturbed. 8 bytes from a root to one rank, a call: 0.15 us, with rests 0.11
 *  (two cores of a Xeon, 2026-11). Ranks that send in between are not concerned: there a rest would hold up both sides. */
static inline bool hkt__wait_follow(struct hkt__wait_policy *policy, bool only_receives)
{
    const int32_t followed = policy->followed;

    if (!only_receives) {
        policy->followed = 0;
        return false;
    }
    policy->followed = followed + (followed < HKT__WAIT_FOLLOWED);
    return followed == HKT__WAIT_FOLLOWED && policy->may_rest;
}

/** Something moved: the wait starts over. */
static inline void hkt__wait_moved(struct hkt__wait *wait)
{
    wait->idle = 0;
    wait->spins = wait->policy->spins;
    wait->deadline_ns = 0;
}

/** Leave what is waited for alone for a moment. */
void hkt__wait_rest(struct hkt__wait *wait);

/** Past the spins: yields, or says to park for wait->sleep_ns, to tell others, or that the deadline has passed. */
enum hkt__wait_advice hkt__wait_longer(struct hkt__wait *wait);

/** Nothing moved. POLL: poll again (it may have yielded). PARK: sleep for wait->sleep_ns, then poll again. TELL: the wait
 *  has become a long one, so tell the other ranks in which call, then poll again; it comes now and then, between sleeps. */
static inline enum hkt__wait_advice hkt__wait_idle(struct hkt__wait *wait)
{
    wait->policy->followed = 0;
    if (wait->idle++ >= wait->spins)
        return hkt__wait_longer(wait);
    if (wait->rests)
        hkt__wait_rest(wait);
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    return HKT__WAIT_POLL;
}

/** What defaults depend on. */
struct hkt__wait_place {
    int host_ranks, cores; /* ranks of this host, cores they may use */
    bool is_short;         /* cgroups stop ranks that all run at once, however many cores there are */
    bool is_network;       /* a poll asks the kernel, and the kernel wakes sleepers */
};
/** Policy from settings: spins and yields < 0 take the defaults for the place. */
void hkt__wait_policy_init(struct hkt__wait_policy *policy, int64_t spins, int64_t yields,
                           const struct hkt__wait_place *place);

#endif
