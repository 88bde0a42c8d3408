/* One block: its threads take turns in the order EMU_ORDER says (forward, backward, or random:SEED), each until it stops.
 * Round by round, until all have ended; a round in which none could go on is a deadlock or, when some spin, a wait for
 * another block, which is given the processor. */
#include "engine.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum order { FORWARD, BACKWARD, RANDOM };

__thread struct emu_thread *emu_self;

/* Kept by an OS thread for the blocks it runs one after another. */
static _Thread_local struct {
    struct emu_thread *threads;
    char *shared, *free_stacks;
    size_t shared_bytes;
} kept;

static atomic_ulong progress; /* rounds of any block in which a thread went on; relaxed: a measure of being alive */
static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;
static struct {
    enum order order;
    unsigned seed;
    long timeout_s;
    long check; /* 0: none, 1: alignment, 2: bounds too */
} settings;

static void report_place(const void *where)
{
    Dl_info info;

    if (where != NULL && dladdr(where, &info) != 0 && info.dli_fname != NULL)
        fprintf(stderr, " at %s+0x%lx (%s)", info.dli_fname, (unsigned long)((const char *)where - (char *)info.dli_fbase),
                info.dli_sname != NULL ? info.dli_sname : "?");
}

/** Prints what the threads of a block do, equal neighbours together. */
static void report(const struct emu_block *block, const char *what)
{
    static const char *const names[] = { "new", "ready", "spinning", "at a barrier", "done" };
    const struct emu_grid *grid = block->grid;
    int shown = 0;

    pthread_mutex_lock(&report_lock);
    fprintf(stderr, "emu: %s\n  kernel %s, device %d, block (%u,%u,%u) of (%u,%u,%u), %d threads, %d alive\n", what,
            grid->kernel->name, grid->device, block->index.x, block->index.y, block->index.z, grid->blocks.x,
            grid->blocks.y, grid->blocks.z, block->nthreads, block->nalive);
    for (int i = 0, end; i < block->nthreads && shown < 12; i = end, ++shown) {
        const struct emu_thread *first = &block->threads[i];

        for (end = i + 1; end < block->nthreads; ++end)
            if (block->threads[end].state != first->state || block->threads[end].where != first->where)
                break;
        fprintf(stderr, "  threads %d to %d: %s", i, end - 1, names[first->state]);
        if (first->state != EMU_DONE)
            report_place(first->where);
        fputc('\n', stderr);
    }
    pthread_mutex_unlock(&report_lock);
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    signal(signal_number, SIG_DFL);
    if (emu_self != NULL) {
        fprintf(stderr, "emu: thread (%u,%u,%u) faults at %p\n", emu_self->index.x, emu_self->index.y, emu_self->index.z,
                info->si_addr);
        report(emu_self->block, "illegal memory access");
    }
    raise(signal_number);
}

static void load_settings(void)
{
    const char *order = getenv("EMU_ORDER");
    struct sigaction old, mine = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };

    settings.order = order == NULL ? FORWARD : strcmp(order, "backward") == 0 ? BACKWARD
                                           : strncmp(order, "random", 6) == 0 ? RANDOM : FORWARD;
    if (settings.order == RANDOM)
        settings.seed = order[6] == ':' ? (unsigned)strtoul(order + 7, NULL, 10) : 1;
    settings.timeout_s = emu_setting("EMU_TIMEOUT_S", 60);
    settings.check = emu_setting("EMU_CHECK", 1);
    if (sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL) /* the sanitizers have their own */
        sigaction(SIGSEGV, &mine, NULL);
}

long emu_setting(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text == NULL || *text == '\0' ? otherwise : strtol(text, NULL, 10);
}

static void thread_main(void)
{
    struct emu_block *block = emu_self->block;

    emu_fiber_entered(&block->host);
    emu_tsan_acquire(&block->host);
    block->grid->kernel->run(block->grid->packed);
    emu_tsan_release(&block->nalive); /* not what threads acquire: one that ended comes not before one that starts later */
    emu_self->state = EMU_DONE;
    emu_fiber_leave(&block->host, &emu_self->fiber, true);
}

/** Lets a thread run to its next stop. */
static void turn(struct emu_block *block, struct emu_thread *thread)
{
    if (thread->state == EMU_NEW)
        emu_fiber_start(&block->host, &thread->fiber, thread_main);
    thread->state = EMU_READY;
    emu_self = thread;
    emu_fiber_resume(&block->host, &thread->fiber);
    emu_self = NULL;
    if (thread->state != EMU_DONE)
        return;
    --block->nalive;
    if (!emu_fiber_end(&block->host, &thread->fiber)) {
        report(block, "a thread ran over the end of its stack");
        abort();
    }
}

/** Gives every thread that may go on a turn. Returns whether any did more than spin. */
static bool turns(struct emu_block *block, unsigned *random, bool *out_spinning)
{
    const int n = block->nthreads;
    int start = 0;
    bool moved = false;

    *out_spinning = false;
    if (settings.order == RANDOM)
        start = (int)((*random = *random * 1664525u + 1013904223u) >> 8) % n;
    for (int i = 0; i < n; ++i) {
        struct emu_thread *thread = &block->threads[settings.order == BACKWARD ? n - 1 - i : (i + start) % n];

        if (thread->state > EMU_SPINNING)
            continue;
        turn(block, thread);
        *out_spinning |= thread->state == EMU_SPINNING;
        moved |= thread->state != EMU_SPINNING;
    }
    if (block->narrived > 0 && block->narrived == block->nalive) {
        for (int i = 0; i < n; ++i)
            if (block->threads[i].state == EMU_AT_BARRIER)
                block->threads[i].state = EMU_READY;
        block->narrived = 0;
        moved = true;
    }
    return moved;
}

/** How long nothing has moved anywhere. */
struct patience {
    unsigned spins;
    unsigned long seen;
    time_t since;
};

static void wait_for_others(const struct emu_block *block, struct patience *p)
{
    const unsigned long now = atomic_load_explicit(&progress, memory_order_relaxed);

    if (++p->spins < 50)
        sched_yield();
    else
        usleep(p->spins < 500 ? 20 : 200);
    if (p->spins == 1 || now != p->seen) {
        p->seen = now;
        p->since = time(NULL);
    } else if (time(NULL) - p->since > settings.timeout_s) {
        report(block, "no progress: all threads that live spin (EMU_TIMEOUT_S)");
        abort();
    }
}

static void run(struct emu_block *block)
{
    unsigned random = settings.seed * 2654435761u + block->index.x * 40503u + 1;
    struct patience patience = { 0 };

    emu_tsan_release(&block->host);
    while (block->nalive > 0) {
        bool spinning;

        if (turns(block, &random, &spinning)) {
            atomic_fetch_add_explicit(&progress, 1, memory_order_relaxed);
            patience.spins = 0;
        } else if (spinning) {
            wait_for_others(block, &patience);
        } else {
            report(block, "deadlock: threads wait at a barrier that the others never reach");
            abort();
        }
    }
    emu_tsan_acquire(&block->nalive);
}

void emu_run_block(const struct emu_grid *grid, struct emu_dim3 index)
{
    const struct emu_dim3 size = grid->threads;
    const size_t shared = (grid->kernel->shared_bytes + 127) / 128 * 128 + grid->shared_bytes;
    struct emu_block block = { .grid = grid, .index = index, .nthreads = (int)(size.x * size.y * size.z) };

    pthread_once(&settings_once, load_settings);
    if (kept.threads == NULL)
        kept.threads = calloc(EMU_THREADS_MAX, sizeof *kept.threads);
    if (shared > kept.shared_bytes) {
        free(kept.shared);
        kept.shared_bytes = (shared + 127) / 128 * 128;
        kept.shared = aligned_alloc(128, kept.shared_bytes);
    }
    if (shared > 0)
        memset(kept.shared, 0xa5, shared); /* what was not written is seen */
    block.shared = kept.shared;
    block.threads = kept.threads;
    block.nalive = block.nthreads;
    block.host.free_stacks = kept.free_stacks;
    for (int i = 0; i < block.nthreads; ++i) {
        struct emu_thread *thread = &block.threads[i];
        const unsigned n = (unsigned)i;

        thread->index = (struct emu_dim3){ n % size.x, n / size.x % size.y, n / size.x / size.y };
        thread->block = &block;
        thread->state = EMU_NEW;
        thread->where = NULL;
    }
    run(&block);
    kept.free_stacks = block.host.free_stacks;
}

void emu_block_fini(void)
{
    struct emu_host host = { .free_stacks = kept.free_stacks };

    emu_fibers_fini(&host);
    free(kept.threads);
    free(kept.shared);
}

/* --- Called by kernels ---------------------------------------------------------------------------------------------- */

void emu_barrier(void)
{
    struct emu_thread *self = emu_self;
    struct emu_block *block = self->block;

    self->where = __builtin_return_address(0);
    self->state = EMU_AT_BARRIER;
    ++block->narrived;
    emu_tsan_release(&block->narrived);
    emu_fiber_leave(&block->host, &self->fiber, false);
    emu_tsan_acquire(&block->narrived);
}

void emu_spin(void)
{
    struct emu_thread *self = emu_self;

    self->where = __builtin_return_address(0);
    self->state = EMU_SPINNING;
    emu_fiber_leave(&self->block->host, &self->fiber, false);
}

void emu_check_access(const void *p, size_t bytes)
{
    const char *what = NULL;

    if (settings.check >= 1 && ((uintptr_t)p & (bytes - 1)) != 0)
        what = "an access that its size does not divide";
    else if (settings.check >= 2 && !emu_is_allocated(p, bytes))
        what = "an access outside all allocations";
    if (what == NULL)
        return;
    emu_self->where = __builtin_return_address(0);
    fprintf(stderr, "emu: thread (%u,%u,%u), address %p, %zu bytes\n", emu_self->index.x, emu_self->index.y,
            emu_self->index.z, p, bytes);
    report(emu_self->block, what);
    abort();
}
