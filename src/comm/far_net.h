/* Memory of devices that networks send from where it lies: adapters of network read it by themselves, once it is registered with
 * them (transport.h, mem_pin_device). Whether they can is tried, and all ranks of a communicator vote, when the first such memory
 * is allocated; the vote's outcome is what hkt_comm_device and hkt_comm_dump tell. Memory is registered from then on until it is
 * freed, which its owner says: never by its address alone (transport/verbs_mem.c says why).
 *
 * Where the vote succeeds, calls that only move bytes run on the devices' buffers themselves: sent from there, received through the
 * adapters' memory of the host, frame by frame. Reductions, and memory that is not registered, are staged (stage.h). */
#ifndef HOCKET_COMM_FAR_NET_H
#define HOCKET_COMM_FAR_NET_H

#include "comm/call.h"

/** A network serves this rank, and it is not known yet how: where any rank says so, all must agree. */
bool hkt__far_net_is_open(const struct hkt_comm *comm);
/** Tries, and votes: collective. Fails as an exchange does. */
HKT_NODISCARD enum hkt_status hkt__far_net_agree(struct hkt_comm *comm, int device);
/** UNSUPPORTED on all ranks: HOCKET_CUDA_DMABUF insists, and the vote failed. */
HKT_NODISCARD enum hkt_status hkt__far_net_check(const struct hkt_comm *comm);
/** Makes memory of a device known to the networks, where these read it; else it will be staged. */
void hkt__far_net_pin(struct hkt_comm *comm, const void *data, size_t bytes, int device);
/** Before it is freed; nothing to do for other memory. */
void hkt__far_net_unpin(struct hkt_comm *comm, const void *data);
void hkt__far_net_fini(struct hkt_comm *comm);

/** Can the call run on its buffers where they lie? */
bool hkt__far_net_serves(const struct hkt__call *call);
/** Waits for what was enqueued on the buffers before, and fills call->staging.device. */
HKT_NODISCARD enum hkt_status hkt__far_net_begin(struct hkt__call *call);

#endif
