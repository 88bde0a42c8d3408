/* The module hocket_cuda.so: whether it is here, and its table. The library itself links nothing of CUDA; what a process
 * that does not use GPUs pays is one look at the list of what it has loaded, when it makes a communicator. */
#ifndef HOCKET_DEVICE_CUDA_H
#define HOCKET_DEVICE_CUDA_H

#include <stddef.h>

#include "kernels/kernels.h"

/* Between two looks at what a device does: a look is a call of the driver's, of some microseconds, that holds up others. */
#define HKT__CUDA_NAP_NS 20000

/** The module, opened at the first call; NULL: none, and why in out_why. `on`: HOCKET_CUDA of the settings. Starts the
 *  driver. */
const struct hkt__cuda_module *hkt__cuda_open(const char *on, char *out_why, size_t bytes);

/** The module where this process uses CUDA: it has loaded the driver's library, or HOCKET_CUDA names a module. NULL
 *  otherwise: then none of its memory can be a device's. */
const struct hkt__cuda_module *hkt__cuda_in_use(const char *on);

/** "3 devices". Any thread. */
void hkt__cuda_describe(const struct hkt__cuda_module *module, char *out_text, size_t bytes);

#endif
