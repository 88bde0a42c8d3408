/* The engine: runs a grid of blocks, each block on one OS thread, its CUDA threads as fibers that stop at barriers and
 * while they spin. Blocks of different grids, devices and processes run side by side as the system schedules them, so
 * that protocols on flags make progress on any number of cores.
 *
 * What a kernel does wrong ends the process with a report of kernel, block, threads and place: a barrier that some
 * thread never reaches, spinning without end, a fault, a 16-byte access that is not aligned or outside all memory. */
#ifndef HOCKET_CUDA_EMU_ENGINE_H
#define HOCKET_CUDA_EMU_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fiber.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_THREADS_MAX 1024 /* of a block, as on every GPU */

struct emu_dim3 {
    unsigned x, y, z;
};

enum emu_state { EMU_NEW, EMU_READY, EMU_SPINNING, EMU_AT_BARRIER, EMU_DONE };

struct emu_thread {
    struct emu_dim3 index;
    struct emu_block *block;
    enum emu_state state;
    const void *where; /* of the last stop */
    struct emu_fiber fiber;
};

/** One per kernel, made by emu_kernel.h (or by translated PTX). */
struct emu_kernel {
    const void *address;                        /* what cudaLaunchKernel is given */
    size_t param_bytes;
    void (*pack)(void **params, void *packed);  /* copies the parameters of a launch */
    void (*run)(const void *packed);            /* one thread */
    char name[256];                             /* mangled */
    size_t shared_bytes;                        /* of translated PTX; the compiler's thread-local variables otherwise */
    struct emu_kernel *next;
};

/** What runs: set before, const during. */
struct emu_grid {
    const struct emu_kernel *kernel;
    const void *packed;
    struct emu_dim3 blocks, threads;
    size_t shared_bytes; /* given by the launch */
    int device;
};

struct emu_block {
    const struct emu_grid *grid;
    struct emu_dim3 index;
    char *shared; /* translated PTX: its own; then the launch's */
    int nthreads, nalive, narrived;
    struct emu_thread *threads;
    struct emu_host host;
};

/** The CUDA thread that runs; NULL outside of kernels. */
extern __thread struct emu_thread *emu_self;

/* Called by kernels. */
void emu_barrier(void);
void emu_spin(void);
void emu_check_access(const void *p, size_t bytes);

/* Called by the runtime. */
void emu_register_kernel(struct emu_kernel *kernel);
/** By address or, when that is NULL, by name; NULL: there is none. */
struct emu_kernel *emu_find_kernel(const void *address, const char *name);
/** Runs the grid to its end, at most `resident` blocks at a time. */
void emu_run_grid(const struct emu_grid *grid, int resident);
/** Runs one block on the calling thread. */
void emu_run_block(const struct emu_grid *grid, struct emu_dim3 index);
/** Frees what the calling thread keeps between blocks. */
void emu_block_fini(void);
/** Whether [p, p + bytes) lies in one allocation (memory.c). */
bool emu_is_allocated(const void *p, size_t bytes);
/** A number from the environment; `otherwise` when unset. */
long emu_setting(const char *name, long otherwise);

#ifdef __cplusplus
}
#endif
#endif
