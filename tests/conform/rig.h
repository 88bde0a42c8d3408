/* The rig: runs a body as N ranks over one transport, as processes or as threads, with a deadline.
 *
 * Each run happens in a process group of its own. That runner starts the ranks and serves them an all-gather over a socket
 * pair each (the hub); nothing of the library is used for control. When the deadline passes, or a check fails, the whole
 * group is killed: no run can hang the suite or leave a process behind. */
#ifndef HOCKET_TESTS_CONFORM_RIG_H
#define HOCKET_TESTS_CONFORM_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/error.h"
#include "core/settings.h"
#include "transport/transport.h"

#define RIG_RANKS_MAX 16

/* What one run is. */
struct rig_opts {
    const char *transport;
    const char *faults;      /* NULL: none */
    bool is_rank0_faulty;    /* the faults are rank 0's alone; the others run under faulty without any */
    int nranks;
    bool is_threads;         /* ranks are threads of the runner, else its children */
    int64_t deadline_ms;
    int victim;              /* rank that must end by SIGKILL; -1: none */
    int64_t slots, slot_bytes; /* of shared memory channels; 0: default */
};

struct rig_rank {
    int rank, nranks;
    const char *transport;
    bool is_threads;
    const struct hkt__tp_ops *ops;   /* possibly under faulty */
    struct hkt__tp *tp;
    struct hkt__tp_caps caps;
    struct hkt__settings settings;
    uint32_t dom_count;
    int hub;
};

/* One domain over all ranks, with what the checks need at hand. */
struct rig_dom {
    struct rig_rank *rank;
    struct hkt__tp_dom *dom;
    int lanes;
    int32_t job_ranks[RIG_RANKS_MAX];
    struct hkt__chan *tx[RIG_RANKS_MAX][8], *rx[RIG_RANKS_MAX][8];
};

typedef void rig_body(struct rig_rank *rank, const void *arg);

/** How much less of everything that is only repeated: 1, or 5 under the sanitizers (HOCKET_TEST_SMALL). */
int rig_thinning(void);
/** Run; 0 when every rank returned from the body (and the victim was killed). Otherwise says what went wrong. */
int rig_run(const struct rig_opts *opts, rig_body *body, const void *arg);

/* For bodies. Anything that goes wrong ends the run with a message. */
void rig_exchange(struct rig_rank *rank, const void *in, size_t bytes, void *out);
void rig_barrier(struct rig_rank *rank);
/** Open a domain over all ranks with its channels to every peer. Collective. */
void rig_dom_open(struct rig_rank *rank, int lanes, size_t window_bytes, struct rig_dom *out_dom);
/** The same in two steps: the domain without channels, and those to the ranks [first, end), all again each time. */
void rig_dom_join(struct rig_rank *rank, int lanes, size_t window_bytes, struct rig_dom *out_dom);
void rig_chans_open(struct rig_dom *dom, int first, int end);
void rig_dom_close(struct rig_dom *dom);
/** What to do after a fruitless poll: spin a little, then yield, then park. *spins starts at 0. */
void rig_idle(struct rig_dom *dom, int *spins);
/** Stop the run with a message. */
_Noreturn void rig_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
int64_t rig_now_ms(void);
/** Built with a sanitizer: slow, and memory is not what it seems. */
bool rig_is_sanitized(void);
/** Pseudo-random numbers, the same for the same state (xorshift64*). */
uint64_t rig_random(uint64_t *state);

#define RIG_CHECK(condition)                                                                                           \
    ((condition) ? (void)0 : rig_fail(__FILE__, __LINE__, "%s [%s]", #condition, hkt_last_error()))
#define RIG_EQUAL(a, b) rig_equal(__FILE__, __LINE__, #a " == " #b, (long long)(a), (long long)(b))

static inline void rig_equal(const char *file, int line, const char *text, long long a, long long b)
{
    if (a != b)
        rig_fail(file, line, "%s: %lld, %lld [%s]", text, a, b, hkt_last_error());
}

#endif
