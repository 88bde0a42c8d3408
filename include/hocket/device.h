/* Memory of CUDA devices, for programs that do not see CUDA's own headers. Collectives take any memory of devices, whoever
 * allocated it: docs/gpu.md says in which order and at what cost. */
#ifndef HOCKET_DEVICE_H
#define HOCKET_DEVICE_H

#include <stddef.h>

#include "hocket/status.h"

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

#ifdef __cplusplus
}
#endif
#endif
