/* What this system allows ranks that share a host: for `hocket info`, and for choices made before there are peers. */
#ifndef HOCKET_TRANSPORT_MACHINE_H
#define HOCKET_TRANSPORT_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/settings.h"
#include "hocket/status.h"

/** May processes of one user copy from each other's memory in one step (process_vm_readv)? Else the error says why not,
 *  what that costs and what would allow it. */
HKT_NODISCARD enum hkt_status hkt__machine_copies(const struct hkt__settings *settings);
/** Is there a /dev/shm? The text says how large it is, and that it does not matter. */
bool hkt__machine_shm_dir(char *out_text, size_t bytes);
/** Has this host RDMA devices that the kernel serves (/sys/class/infiniband)? Cheap. */
bool hkt__machine_has_rdma(void);

#endif
