/* Buffers in memory of a GPU. A call on such buffers runs on copies in pinned memory of the host: the input is copied in
 * when the call starts, the output back when it is done. So every algorithm and transport works on them. */
#ifndef HOCKET_COMM_STAGE_H
#define HOCKET_COMM_STAGE_H

#include "comm/call.h"
#include "device/cuda.h"

/** Which buffers of a call are a device's; for communicators of processes that use CUDA. SYSTEM: CUDA cannot tell. */
HKT_NODISCARD enum hkt_status hkt__stage_look(struct hkt__call *call);
/** Copies the input, and makes the call one on host memory. On failure the call is as it was. */
HKT_NODISCARD enum hkt_status hkt__stage_begin(struct hkt__call *call, struct hkt__stage_room *room);
/** The call is on the user's buffers again; its output is copied to them if status is OK. Returns status, or the failure
 *  of that copy. Nothing to do for calls that were not staged. */
HKT_NODISCARD enum hkt_status hkt__stage_end(struct hkt__call *call, enum hkt_status status);
/** memmove where either side may be a device's. */
HKT_NODISCARD enum hkt_status hkt__stage_copy(const struct hkt_comm *comm, void *dst, const void *src, size_t bytes,
                                              int device);
void hkt__stage_free(struct hkt__stage_room *room);

#endif
