/* Small hand-written schedules for the tests of src/sched, one of each kind: messages only, messages through scratch,
 * direct steps. */
#ifndef HOCKET_TESTS_UNIT_SCHED_SAMPLES_H
#define HOCKET_TESTS_UNIT_SCHED_SAMPLES_H

#include <string.h>

#include "sched/build.h"

#define SAMPLE_RANKS_MAX 8

typedef void sample_fn(struct hkt__builder *b);

/* What a signal hands over that only synchronises. */
static inline struct hkt__operand sample_nothing(void)
{
    return (struct hkt__operand){ .at = { 0, 1, 1 }, .like = { 0, 1, 1 } };
}

/* All-reduce, ring: reduce-scatter, then all-gather. */
static inline void sample_ring(struct hkt__builder *b)
{
    const int n = b->nranks, right = hkt__rank_at(b, 1), left = hkt__rank_at(b, -1);

    hkt__set_cuts(b, n);
    for (int k = 0; k < n - 1; k++) {
        const int at = b->rank - k;

        hkt__send(b, right, 0, k == 0 ? hkt__in(b, at) : hkt__out(b, at));
        hkt__recv_reduce(b, left, 0, hkt__out(b, at - 1), hkt__in(b, at - 1));
    }
    for (int k = 0; k < n - 1; k++) {
        hkt__send(b, right, 0, hkt__out(b, b->rank + 1 - k));
        hkt__recv(b, left, 0, hkt__out(b, b->rank - k));
    }
}

/* All-reduce: rank 0 collects all inputs in scratch, reduces them at once, sends the result to all. */
static inline void sample_collect(struct hkt__builder *b)
{
    struct hkt__arg args[SAMPLE_RANKS_MAX];

    hkt__set_scratch(b, b->nranks - 1);
    if (b->rank > 0) {
        hkt__send(b, 0, 0, hkt__in_all(b));
        hkt__recv(b, 0, 0, hkt__out_all(b));
        return;
    }
    args[0] = hkt__at(0, hkt__in_all(b));
    for (int r = 1; r < b->nranks; r++) {
        args[r] = hkt__at(0, hkt__scratch(b, r - 1, hkt__in_all(b)));
        hkt__recv(b, r, 0, args[r].x);
    }
    hkt__reduce(b, 0, hkt__out_all(b), args, b->nranks);
    for (int r = 1; r < b->nranks; r++)
        hkt__send(b, r, 0, hkt__out_all(b));
}

/* All-reduce, one shot: everyone shows its input in scratch, and reads that of all. */
static inline void sample_direct(struct hkt__builder *b)
{
    const struct hkt__operand mine = hkt__scratch(b, 0, hkt__in_all(b));
    struct hkt__arg args[SAMPLE_RANKS_MAX];

    hkt__copy(b, 0, mine, hkt__in_all(b));
    for (int k = 1; k < b->nranks; k++)
        hkt__signal(b, hkt__rank_at(b, k), 0, mine);
    for (int k = 1; k < b->nranks; k++)
        hkt__wait(b, hkt__rank_at(b, -k), 0, sample_nothing());
    for (int r = 0; r < b->nranks; r++)
        args[r] = hkt__at(r, mine);
    hkt__reduce(b, 0, hkt__out_all(b), args, b->nranks);
}

static inline enum hkt_status sample_build(sample_fn *fn, const struct hkt__build_args *args,
                                           struct hkt__sched **out_sched)
{
    struct hkt__builder b;
    enum hkt_status rc = hkt__builder_init(&b, args);

    if (rc != HKT_OK)
        return rc;
    fn(&b);
    return hkt__builder_finish(&b, out_sched);
}

/* All ranks of an all-reduce; the array belongs to the caller, who destroys each. */
static inline enum hkt_status sample_all(sample_fn *fn, const char *algo, int nranks, bool in_place,
                                         struct hkt__sched **out_scheds)
{
    enum hkt_status rc = HKT_OK;

    memset(out_scheds, 0, (size_t)nranks * sizeof *out_scheds);
    for (int r = 0; r < nranks && rc == HKT_OK; r++)
        rc = sample_build(fn, &(struct hkt__build_args){ HKT_ALL_REDUCE, algo, nranks, r, 0, in_place, false },
                          &out_scheds[r]);
    return rc;
}

static inline void sample_destroy(struct hkt__sched **scheds, int nranks)
{
    for (int r = 0; r < nranks; r++)
        hkt__sched_destroy(scheds[r]);
}

/* A step appended by the test of a random schedule draws from this (xorshift64*; state must not be 0). */
static inline uint32_t sample_random(uint64_t *state, uint32_t below)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 2685821657736338717u) >> 33) % below;
}

/* Random steps of rank 0 of 4: what they compute is nonsense, their order of accesses is what tests look at. */
static inline void sample_nonsense(struct hkt__builder *b, uint64_t seed, int nsteps)
{
    uint64_t state = seed;

    hkt__set_cuts(b, 5);
    for (int i = 0; i < nsteps; i++) {
        const int lane = (int)sample_random(&state, 2), peer = 1 + (int)sample_random(&state, 3);
        const int count = 1 + (int)sample_random(&state, 3), stride = 1 + (int)sample_random(&state, 3);
        const int64_t at = sample_random(&state, 5);
        const struct hkt__operand in = hkt__range(b, HKT__IN, at, stride, count);
        const struct hkt__operand out = hkt__range(b, HKT__OUT, at, stride, count);
        const struct hkt__operand slot = hkt__scratch(b, (int)sample_random(&state, 4), in);
        const struct hkt__arg three[3] = { hkt__at(0, out), hkt__at(peer, slot), hkt__at(0, in) };

        switch (sample_random(&state, 9)) {
        case 0: hkt__send(b, peer, lane, in); break;
        case 1: hkt__send(b, peer, lane, out); break;
        case 2: hkt__recv(b, peer, lane, slot); break;
        case 3: hkt__recv_reduce(b, peer, lane, out, slot); break;
        case 4: hkt__copy(b, lane, out, in); break;
        case 5: hkt__reduce(b, lane, out, three, 3); break;
        case 6: hkt__write(b, lane, &three[1], 1, out); break;
        case 7: hkt__signal(b, peer, lane, slot); break;
        default: hkt__wait(b, peer, lane, slot); break;
        }
    }
}

#endif
