/* Fibers on x86-64: see fiber.h. */
#include "fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Enough for every kernel here; the canary tells when it is not. */
#define STACK_BYTES ((size_t)64 << 10)
#define CANARY UINT64_C(0x5afe57ac0ddba115)

#ifdef EMU_TSAN
void *__tsan_create_fiber(unsigned flags);
void *__tsan_get_current_fiber(void);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *at);
void __tsan_release(void *at);
#define TSAN_NO_SYNC 1u /* a switch orders nothing: barriers and flags do */
#endif
#ifdef EMU_ASAN
void __sanitizer_start_switch_fiber(void **fake, const void *stack, size_t bytes);
void __sanitizer_finish_switch_fiber(void *fake, const void **out_stack, size_t *out_bytes);
#endif

/* Stores the callee-saved registers and the stack pointer in *save, and goes on where `load` was saved. */
void emu_switch(void **save, void *load);
__asm__(".text\n"
        ".globl emu_switch\n"
        ".hidden emu_switch\n"
        ".type emu_switch, @function\n"
        "emu_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size emu_switch, . - emu_switch\n");

static char *take_stack(struct emu_host *host)
{
    char *stack = host->free_stacks;
    const uint64_t canary = CANARY;

    if (stack != NULL) {
        memcpy(&host->free_stacks, stack + STACK_BYTES - sizeof(char *), sizeof(char *));
        return stack;
    }
    stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        fprintf(stderr, "emu: no memory for the stack of a CUDA thread\n");
        abort();
    }
    memcpy(stack, &canary, sizeof canary); /* no guard page: so many mappings are not allowed */
    return stack;
}

void emu_fiber_start(struct emu_host *host, struct emu_fiber *fiber, void (*entry)(void))
{
    void **sp;

    if (fiber->stack == NULL)
        fiber->stack = take_stack(host);
    fiber->fake = NULL;
    sp = (void **)(fiber->stack + STACK_BYTES - 64);
    *--sp = NULL;                                  /* entry finds the stack as after a call */
    *--sp = (void *)(uintptr_t)entry;              /* where emu_switch returns to */
    for (int i = 0; i < 6; ++i)
        *--sp = NULL;
    fiber->sp = sp;
#ifdef EMU_TSAN
    if (fiber->tsan == NULL)
        fiber->tsan = __tsan_create_fiber(0);
#endif
}

void emu_fiber_resume(struct emu_host *host, struct emu_fiber *fiber)
{
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&host->fake, fiber->stack, STACK_BYTES);
#endif
#ifdef EMU_TSAN
    host->tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber->tsan, TSAN_NO_SYNC);
#endif
    emu_switch(&host->sp, fiber->sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(host->fake, NULL, NULL);
#endif
}

void emu_fiber_entered(struct emu_host *host)
{
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(NULL, &host->stack, &host->stack_bytes);
#endif
    (void)host;
}

void emu_fiber_leave(struct emu_host *host, struct emu_fiber *fiber, bool is_last)
{
    (void)is_last;
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(is_last ? NULL : &fiber->fake, host->stack, host->stack_bytes);
#endif
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(host->tsan, TSAN_NO_SYNC);
#endif
    emu_switch(&fiber->sp, host->sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(fiber->fake, &host->stack, &host->stack_bytes);
#endif
}

bool emu_fiber_end(struct emu_host *host, struct emu_fiber *fiber)
{
    const uint64_t canary = CANARY;
    const bool is_whole = memcmp(fiber->stack, &canary, sizeof canary) == 0;

#ifndef EMU_TSAN /* nothing orders two threads of a block: one stack for both would be a race */
    memcpy(fiber->stack + STACK_BYTES - sizeof(char *), &host->free_stacks, sizeof(char *));
    host->free_stacks = fiber->stack;
    fiber->stack = NULL;
#endif
    (void)host;
    return is_whole;
}

void emu_fibers_fini(struct emu_host *host)
{
    while (host->free_stacks != NULL) {
        char *stack = host->free_stacks;

        memcpy(&host->free_stacks, stack + STACK_BYTES - sizeof(char *), sizeof(char *));
        munmap(stack, STACK_BYTES);
    }
}

void emu_tsan_release(void *at)
{
#ifdef EMU_TSAN
    __tsan_release(at);
#endif
    (void)at;
}

void emu_tsan_acquire(void *at)
{
#ifdef EMU_TSAN
    __tsan_acquire(at);
#endif
    (void)at;
}
