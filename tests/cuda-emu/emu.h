/* What tests may ask of the substitute runtime beyond CUDA's own interface.
 *
 * Environment: EMU_DEVICES, how many there are (2); EMU_NO_DRIVER=1, none and every call fails as without a driver;
 * EMU_PEERS=0, no device reaches another's memory; EMU_IPC=0, no process another's;
 * EMU_DMABUF: 0, no memory of devices can be named to other drivers; 2, that of device 0 alone; 3, what they then find is not it.
 * What stands for a dmabuf is an open file, positioned where it begins;
 * EMU_RESIDENT, blocks of one launch that run side by side (32);
 * EMU_FRESH=1, blocks run on threads of their own, so that shared memory holds nothing of an earlier one;
 * EMU_BLIND=1, memory of devices faults when the program touches it, and kernels cannot run; EMU_MEMORY_MB, the largest
 * allocation (1024);
 * EMU_ORDER, EMU_TIMEOUT_S, EMU_CHECK: see block.c. */
#ifndef HOCKET_CUDA_EMU_EMU_H
#define HOCKET_CUDA_EMU_EMU_H

/** Calls of the runtime so far, those that can fail. Questions that are asked until something is ready are one. */
long emu_calls(void);
/** Name of a call by its number, the first being 1; of the last thousand. */
const char *emu_call_name(long call);
/** The k-th call from now on fails with `error` (a cudaError_t), k >= 1; 0: none. */
void emu_fail_call(long k, int error);
/** Name of the call that emu_fail_call made fail; NULL: none has yet. */
const char *emu_failed_call(void);
/** Objects that live: allocations, mappings, streams, events, graphs. 0 when nothing was leaked. */
int emu_live_objects(void);

#endif
