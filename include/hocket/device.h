/* Memory of CUDA devices, for programs that do not see CUDA's own headers. Collectives take any memory of devices, whoever
 * allocated it: docs/gpu.md says in which order and at what cost. */
#ifndef HOCKET_DEVICE_H
#define HOCKET_DEVICE_H

#include <stddef.h>

#include "hocket/comm.h"
#include "hocket/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Devices that this process may use. Starts the driver: call it before making communicators, so that they know of devices.
 *  Errors   UNSUPPORTED: none, and hkt_last_error says why; *out_count is untouched */
HKT_API HKT_NODISCARD enum hkt_status hkt_device_count(int *out_count);

/** `bytes` on a device, contents undefined.
 *  Owns     gives *out_memory, released by hkt_device_free
 *  Threads  any; the thread's current device stays
 *  Errors   INVALID, UNSUPPORTED (no devices), NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_device_alloc(void **out_memory, size_t bytes, int device);
/** NULL is allowed. Waits for the work of the device. Errors: INVALID, SYSTEM. */
HKT_API HKT_NODISCARD enum hkt_status hkt_device_free(void *memory);

/** Copy between any two of host and device memory, in the order of the default stream of `device`; done on return.
 *  Errors   INVALID, UNSUPPORTED, SYSTEM with CUDA's text */
HKT_API HKT_NODISCARD enum hkt_status hkt_device_copy(void *dst, const void *src, size_t bytes, int device);

/** A stream of CUDA's for collectives, sends and receives. All ranks of a call pass one, with buffers that are memory of its device. Where the
 *  devices of the group reach each other the call is enqueued and returns; else it waits for the stream, and is done when it
 *  returns: docs/gpu.md. One thread that drives several ranks makes their calls in a group, each on a stream of its own.
 *  hkt_stream_synchronize and _query work on it, hocket's events do not: use CUDA's.
 *  cuda_stream  a cudaStream_t of the calling thread's current device; NULL: its default stream
 *  Owns     borrows cuda_stream until hkt_stream_destroy, which neither waits for it nor ends it
 *  Errors   UNSUPPORTED: no devices; SYSTEM, NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_stream_from_cuda(struct hkt_stream **out_stream, void *cuda_stream);
/** The same with a new stream of a device, which does not wait for the default stream; hkt_stream_destroy waits for it. */
HKT_API HKT_NODISCARD enum hkt_status hkt_device_stream_create(struct hkt_stream **out_stream, int device);

/** How calls on CUDA streams run on a communicator, in one line: on the devices, or through memory of the host and why. Then what
 *  it costs, in one sum and in parts: memory of its device for the communicator (the arena, at most HOCKET_CUDA_BYTES and 2 MiB;
 *  hkt_mem_alloc_device; registered buffers), and memory of peers that is mapped beside it, at most as much again for each peer, or
 *  what the allocations of registered buffers have. Then, where a network serves ranks, whether it sends memory of
 *  hkt_mem_alloc_device from where that lies, or why not. "": no call and no such memory yet. Valid until the next call of comm. */
HKT_API const char *hkt_comm_device(const struct hkt_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
