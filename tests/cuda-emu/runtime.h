/* What the parts of the substitute runtime share. One lock guards all of it; `changed` is broadcast whenever something
 * that somebody may wait for has happened. */
#ifndef HOCKET_CUDA_EMU_RUNTIME_H
#define HOCKET_CUDA_EMU_RUNTIME_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "emu.h"

/** Name of the kernel that an object built by nvcc launches by this address; NULL: none. */
const char *emu_name_of(const void *address);
/** Allocations and mappings that live. */
int emu_live_regions(void);

struct emu_runtime {
    pthread_mutex_t lock;
    pthread_cond_t changed;
};
extern struct emu_runtime emu_runtime;

/** Every entry begins with this: counts the call and loads the settings once. Anything but success is to be returned:
 *  there is no device, or the call is the one that was to fail (emu_fail_call). */
cudaError_t emu_enter(const char *function);
/** What a query says. Until it is asked and says success, what the thread calls to ask again is not counted, so that calls have
 *  the same numbers in every run. */
cudaError_t emu_answer(bool is_done);
/** Keeps an error for cudaGetLastError and gives it back. */
cudaError_t emu_note(cudaError_t error);
/** The calling thread's device. */
int emu_device(void);
/** Whether it has a context, as after cudaSetDevice. */
bool emu_is_bound(void);
int emu_device_count(void);

/** Where the runtime reads and writes what lies at p (EMU_BLIND). */
void *emu_reach(const void *p);
/** The device whose memory p is; -1: none's. */
int emu_device_of(const void *p);
/** Waits until everything enqueued so far on a device, or on all (-1), is done. */
void emu_drain(int device);

#endif
