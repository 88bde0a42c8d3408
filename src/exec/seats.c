/* See seats.h. Moves are rare on purpose: whoever has other work on a core knows better, and moves ranks back. */
#include "exec/seats.h"

#include "core/clock.h"
#include "core/mem.h"

#define LOOK_EVERY 16             /* yields, of some microseconds each where cores are shared */
#define PAUSE_FIRST_NS 1000000
#define PAUSE_MOST_NS 64000000
#define CALM 16                   /* pauses without a move: the next one begins with a short pause again */

static void move_to(int cpu, const cpu_set_t *allowed)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0)
        (void)sched_setaffinity(0, sizeof *allowed, allowed); /* a refusal leaves it where it runs well */
}

static void go_home(struct hkt__seats *seats)
{
    cpu_set_t allowed;

    if (seats->home != sched_getcpu() && sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_ISSET(seats->home, &allowed))
        move_to(seats->home, &allowed);
}

enum hkt_status hkt__seats_create(const struct hkt__exec_env *env, int cores, int home, struct hkt__seats **out_seats)
{
    struct hkt__seats *seats = hkt__calloc(1, sizeof *seats);

    if (seats != NULL)
        seats->seen = hkt__calloc((size_t)env->nranks, sizeof *seats->seen);
    if (seats == NULL || seats->seen == NULL) {
        hkt__free(seats);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for where %d ranks run", env->nranks);
    }
    seats->windows = env->windows;
    seats->nranks = env->nranks;
    seats->rank = env->rank;
    seats->cores = cores;
    seats->home = home;
    if (home >= 0)
        go_home(seats);
    *out_seats = seats;
    return HKT_OK;
}

void hkt__seats_destroy(struct hkt__seats *seats)
{
    if (seats == NULL)
        return;
    hkt__free(seats->seen);
    hkt__free(seats);
}

/** Ranks on the own core; 0 if a higher one is there too, which then moves first. */
static int count_here(const int32_t *seats, int nranks, int rank)
{
    int here = 0;

    for (int r = 0; r < nranks; r++) {
        if (seats[r] != seats[rank])
            continue;
        if (r > rank)
            return 0;
        here++;
    }
    return here;
}

int hkt__seats_pick(const int32_t *seats, int nranks, int rank, int cores, const cpu_set_t *allowed)
{
    const int here = count_here(seats, nranks, rank), own = seats[rank] - 1;
    uint16_t counts[CPU_SETSIZE] = {0};
    int best = -1;

    if (own < 0 || here <= (nranks + cores - 1) / cores)
        return -1;
    for (int r = 0; r < nranks; r++)
        if (seats[r] > 0 && seats[r] <= CPU_SETSIZE)
            counts[seats[r] - 1]++;
    for (int k = 1; k < CPU_SETSIZE; k++) { /* from the own one on, so that not all full cores send to the same */
        const int cpu = (own + k) % CPU_SETSIZE;

        if (CPU_ISSET(cpu, allowed) && (best < 0 || counts[cpu] < counts[best]))
            best = cpu;
    }
    return best >= 0 && counts[best] + 2 <= here ? best : -1;
}

/** Whether to move again: rarely, and more so the more often it was in vain. */
static bool may_move(struct hkt__seats *seats)
{
    const int64_t now_ns = hkt__now_ns();

    if (now_ns - seats->moved_ns < seats->pause_ns)
        return false;
    if (now_ns - seats->moved_ns > CALM * seats->pause_ns)
        seats->pause_ns = 0;
    seats->pause_ns = seats->pause_ns < PAUSE_FIRST_NS ? PAUSE_FIRST_NS : 2 * seats->pause_ns;
    if (seats->pause_ns > PAUSE_MOST_NS)
        seats->pause_ns = PAUSE_MOST_NS;
    seats->moved_ns = now_ns;
    return true;
}

static void even_out(struct hkt__seats *seats)
{
    cpu_set_t allowed;

    if (!may_move(seats) || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    const int cpu = hkt__seats_pick(seats->seen, seats->nranks, seats->rank, seats->cores, &allowed);

    if (cpu >= 0)
        move_to(cpu, &allowed);
}

void hkt__seats_look(struct hkt__seats *seats)
{
    _Atomic int32_t *own = &seats->windows[seats->rank]->seat;
    const int32_t seat = sched_getcpu() + 1;

    /* Relaxed, here and below: hints, which nothing is read after. */
    if (atomic_load_explicit(own, memory_order_relaxed) != seat)
        atomic_store_explicit(own, seat, memory_order_relaxed);
    if (++seats->looks % LOOK_EVERY != 0)
        return;
    if (seats->home >= 0) {
        if (seat != seats->home + 1 && may_move(seats))
            go_home(seats);
        return;
    }
    for (int r = 0; r < seats->nranks; r++)
        seats->seen[r] = atomic_load_explicit(&seats->windows[r]->seat, memory_order_relaxed);
    if (count_here(seats->seen, seats->nranks, seats->rank) > (seats->nranks + seats->cores - 1) / seats->cores)
        even_out(seats);
}
