/* Memory that peers can address. Collectives work on any memory; on memory that all ranks of a host map, they move each
 * byte once: a rank reads its peers' inputs and writes their outputs in place, nothing is staged. Between hosts, over RDMA, what is
 * sent from such memory is read by the network card where it lies; other memory is copied first.
 *
 * Danger: such memory must be used by all ranks of a call or by none. A call whose significant buffers lie in registered
 * memory on one rank and not on another may choose different algorithms there, which is reported as a mismatch; on CUDA streams
 * only the first call of a kind is compared, and a later one ends in TIMEOUT or gives wrong results. */
#ifndef HOCKET_MEM_H
#define HOCKET_MEM_H

#include "hocket/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Allocate `bytes` on every rank of comm, registered with comm. Where ranks share no memory (several hosts) it is ordinary
 *  memory, and works the same. Contents are zero; alignment is a page; huge pages are asked for.
 *  Owns     gives *out_memory, released by hkt_mem_free, at the latest by the end of comm
 *  Threads  collective; bytes may differ by rank
 *  Errors   NOMEM on all ranks when any rank has none (HOCKET_SHM_BYTES bounds shared memory) */
HKT_API HKT_NODISCARD enum hkt_status hkt_mem_alloc(void **out_memory, size_t bytes, struct hkt_comm *comm);

/** The same on a device, for collectives on CUDA streams (hocket/device.h), between processes too. All ranks get as much as the
 *  one that asks for most. Where the devices of the group do not reach each other it is memory that only its own rank uses, and
 *  works the same, without the algorithms that read and write peers' buffers; HOCKET_DEBUG=comm=info tells which it is. The first
 *  one makes what calls on CUDA streams need, as the first of these does, if that was not yet: hkt_comm_device tells what it costs.
 *  Between hosts it is registered with the network adapters, where these read it (docs/gpu.md).
 *  device   of this rank; the one of its CUDA streams on comm, which calls on other devices are refused from then on
 *  Owns     gives *out_memory, released by hkt_mem_free, at the latest by the end of comm; not by CUDA
 *  Threads  collective; waits for all ranks, and may not run while a thread of the process captures into a CUDA graph
 *  Errors   on all ranks when any has them: NOMEM; INVALID, a wrong device; UNSUPPORTED, comm does not know of devices, or adapters
 *           do not read their memory and HOCKET_CUDA_DMABUF is on */
HKT_API HKT_NODISCARD enum hkt_status hkt_mem_alloc_device(void **out_memory, size_t bytes, int device, struct hkt_comm *comm);

/** Release memory of hkt_mem_alloc or hkt_mem_alloc_device. Collective: no rank may still use it in an operation, nor a graph that
 *  will be launched. NULL is allowed, on all ranks. */
HKT_API HKT_NODISCARD enum hkt_status hkt_mem_free(void *memory, struct hkt_comm *comm);

/** Register [data, data + bytes) with comm, so that its collectives may use it in place. It is one of two kinds, on all ranks:
 *
 *  Host     part of memory from hkt_mem_alloc of any communicator of the same job: what was allocated on a parent serves its
 *           children. Where all ranks are threads of a process, or where ranks of several hosts meet over RDMA, it may be any memory.
 *  Device   memory of a CUDA device, whoever allocated it: cudaMalloc or cuMemAlloc (any part of an allocation), cuMemCreate with
 *           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, hkt_mem_alloc_device of another communicator. As many bytes on all ranks. From
 *           then on collectives on CUDA streams whose buffers lie in it, on all ranks, run as in memory of hkt_mem_alloc_device.
 *           Peers map all of the allocation; each mapping is tried with patterns at the buffer's end, whose bytes are put back: so
 *           what streams were given to do with it must be done before the call, contents are lost if comm fails in it, and no
 *           other communicator may register the same memory at the same time.
 *
 *  A registration is the communicator's alone: a child, or a parent, needs its own, of the same memory if wanted. The memory stays
 *  the caller's, who deregisters it, from each, before it is freed: else peers read and write what is there no more.
 *  Unlike ncclCommRegister it is collective, and names its buffer by its address; register whole allocations, once.
 *  Threads  collective; each rank names its own buffer. Of a device: waits for all ranks, and may not run while a thread of the
 *           process captures into a CUDA graph
 *  Errors   on all ranks when any has them, and nothing is registered then. UNSUPPORTED names a rank whose buffer peers cannot
 *           address, and says why: memory of pools (cudaMallocAsync) or without a handle, but for ranks of one process on one
 *           device; managed memory; ranks that do not reach each other's devices. INVALID: host and device memory, other sizes of a
 *           device, more than one allocation, fewer than 4 bytes a rank, registered already; a wrong device. NOMEM, SYSTEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_register(struct hkt_comm *comm, void *data, size_t bytes);
/** Undo it; data as given to register. Collective; of a device, waits for the communicator's launches, and until no peer maps
 *  the buffer. No graph that uses the buffer may be launched any more; replays are not known here: wait for their streams, on all
 *  ranks, first. A communicator that ends with buffers of devices registered gives its mappings up, and hkt_comm_destroy says INVALID:
 *  nobody has waited for the peers. After a failure nobody can be waited for: free the memory when their processes have ended, or
 *  their communicators. */
HKT_API HKT_NODISCARD enum hkt_status hkt_comm_deregister(struct hkt_comm *comm, void *data);

#ifdef __cplusplus
}
#endif
#endif
