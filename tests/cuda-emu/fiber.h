/* Fibers: the CUDA threads of a block, all on the one OS thread that runs the block. A fiber runs until it leaves; then
 * its host, the scheduler of the block, goes on. The sanitizers are told of every switch.
 *
 * This and all other files of the emulator are built without instrumentation: to a race detector the scheduler would be
 * what orders the threads of a block, and every missing barrier would be hidden. */
#ifndef HOCKET_CUDA_EMU_FIBER_H
#define HOCKET_CUDA_EMU_FIBER_H

#include <stdbool.h>
#include <stddef.h>

/** One slot, used by one CUDA thread after another. Zero at first. */
struct emu_fiber {
    void *sp;
    char *stack;
    void *tsan; /* the race detector's context: kept with the slot, since to make one takes some 0.3 ms */
    void *fake; /* the address sanitizer's */
};

/** The OS thread's side. */
struct emu_host {
    void *sp, *tsan, *fake;
    const void *stack;
    size_t stack_bytes;
    char *free_stacks; /* a list through their last words */
};

/** Gives the fiber a stack on which `entry` will run at the next resume. entry never returns: it leaves for good. */
void emu_fiber_start(struct emu_host *host, struct emu_fiber *fiber, void (*entry)(void));
/** Runs the fiber until it leaves. */
void emu_fiber_resume(struct emu_host *host, struct emu_fiber *fiber);
/** First thing on a new fiber. */
void emu_fiber_entered(struct emu_host *host);
/** Back to the host; returns at the next resume, or never when is_last. */
void emu_fiber_leave(struct emu_host *host, struct emu_fiber *fiber, bool is_last);
/** After the last leave: the stack goes back, or stays with the slot. False: it ran over its end. */
bool emu_fiber_end(struct emu_host *host, struct emu_fiber *fiber);

/** Gives back the stacks that are free. */
void emu_fibers_fini(struct emu_host *host);

/* What orders CUDA threads, told to the race detector; nothing without one. */
void emu_tsan_release(void *at);
void emu_tsan_acquire(void *at);

#endif
