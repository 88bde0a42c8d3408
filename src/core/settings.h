/* ONE table of every environment setting: name, type, range, default, help. Read once, at the library's first use;
 * code asks the struct, never the environment. A value that does not parse or is out of range is an error with the
 * name, the value and what is allowed; it is never silently replaced. */
#ifndef HOCKET_CORE_SETTINGS_H
#define HOCKET_CORE_SETTINGS_H

#include <stdint.h>

#include "hocket/info.h"
#include "hocket/status.h"

/* X(field, NAME, type, min, max, default, help); types: int, bytes (K, M, G suffixes), ms (s, m suffixes), string, flag.
 * Numbers of the shm slots: research on this class of machine shows 32 KiB x 8 within 20 % of the best size at a
 * quarter of the first-touch cost. */
#define HKT__SETTINGS_TABLE(X)                                                                                         \
    X(timeout_ms, "HOCKET_TIMEOUT", ms, 1, 864000000, "600s", "deadline of every wait of an operation")               \
    X(init_timeout_ms, "HOCKET_INIT_TIMEOUT", ms, 1, 864000000, "120s", "deadline for all ranks to meet at init")     \
    X(transport, "HOCKET_TRANSPORT", string, 0, 0, "", "allowed transports, e.g. shm,tcp; ^tcp forbids tcp")           \
    X(algo, "HOCKET_ALGO", string, 0, 0, "", "algorithms to force, or with ^ to forbid, e.g. all_reduce=ring,broadcast=^chain")\
    X(tune, "HOCKET_TUNE", string, 0, 0, "", "file of `hocket tune` with measured choices, or off; rank 0's counts; default ~/.cache/hocket/tune.json if it exists") \
    X(debug, "HOCKET_DEBUG", string, 0, 0, "", "log to stderr: level or subsystem=level list; levels error, warn, info, debug, trace") \
    X(interface, "HOCKET_INTERFACE", string, 0, 0, "", "network interface or address prefix for tcp, e.g. eth0")      \
    X(address, "HOCKET_ADDRESS", string, 0, 0, "", "address the rendezvous root listens on, unless ranks were told a loopback one")                           \
    X(token, "HOCKET_TOKEN", string, 0, 0, "", "job secret, the same on all ranks; ranks without it are refused")     \
    X(modules, "HOCKET_MODULES", string, 0, 0, "", "folder of the modules (hocket_ucx.so and others); default: where libhocket.so is") \
    X(net_plugin, "HOCKET_NET_PLUGIN", string, 0, 0, "", "NCCL network plugin for HOCKET_TRANSPORT=net: a path, or NAME for libnccl-net-NAME.so; default libnccl-net.so") \
    X(tcp_sockets, "HOCKET_TCP_SOCKETS", int, 1, 16, "2", "sockets per peer and lane")                                 \
    X(tcp_frame_bytes, "HOCKET_TCP_FRAME_BYTES", bytes, 4096, 4194304, "256K", "largest tcp frame")                    \
    X(tcp_congestion, "HOCKET_TCP_CONGESTION", string, 0, 0, "", "congestion control of tcp sockets, e.g. dctcp; default: the system's, but between neighbours cubic instead of bbr") \
    X(ib_devices, "HOCKET_IB_DEVICES", string, 0, 0, "", "RDMA devices or device:port for verbs, e.g. mlx5_0,mlx5_1:1; ^mlx5_2 leaves one out; default: all, the fastest four") \
    X(ib_gid_index, "HOCKET_IB_GID_INDEX", int, -1, 255, "-1", "GID for verbs; -1: RoCE v2 with an IPv4 address if there is one") \
    X(ib_mtu, "HOCKET_IB_MTU", int, 0, 4096, "0", "largest packet of verbs: 256, 512, 1024, 2048, 4096; 0: what both ports allow") \
    X(ib_sl, "HOCKET_IB_SL", int, 0, 15, "0", "service level of verbs packets: InfiniBand lane, Ethernet priority")    \
    X(ib_traffic_class, "HOCKET_IB_TRAFFIC_CLASS", int, 0, 255, "0", "traffic class of verbs packets: the IP header's DSCP and ECN bits") \
    X(ib_timeout, "HOCKET_IB_TIMEOUT", int, 1, 31, "17", "verbs waits 4.096 us * 2^n for an acknowledgement before it sends again; 17: half a second") \
    X(ib_retry, "HOCKET_IB_RETRY", int, 0, 7, "6", "how often verbs sends again before a path is given up; 7 is for ever on Soft-RoCE") \
    X(ib_rnr_retry, "HOCKET_IB_RNR_RETRY", int, 0, 7, "7", "the same where a peer is not ready to receive; 7: for ever") \
    X(ib_qps, "HOCKET_IB_QPS", int, 1, 4, "1", "queue pairs of verbs per pair of NICs, peer and lane: more spread over more routes") \
    X(ib_slots, "HOCKET_IB_SLOTS", int, 2, 64, "8", "frames of verbs in flight per peer and lane")                     \
    X(ib_slot_bytes, "HOCKET_IB_SLOT_BYTES", bytes, 0, 4194304, "0", "largest verbs frame, at least 1K; 0: 256K, down to 16K where little memory may be locked") \
    X(shm_slots, "HOCKET_SHM_SLOTS", int, 2, 256, "8", "slots of a shared-memory channel (power of two)")              \
    X(shm_slot_bytes, "HOCKET_SHM_SLOT_BYTES", bytes, 1024, 4194304, "32K", "payload of one slot")                     \
    X(shm_bytes, "HOCKET_SHM_BYTES", bytes, 1048576, 1099511627776, "16G", "address space of a rank's shared segment; pages are used only when touched") \
    X(scratch_bytes, "HOCKET_SCRATCH_BYTES", bytes, 65536, 1073741824, "4M", "scratch of one communicator, reused by its operations") \
    X(cma, "HOCKET_CMA", flag, 0, 1, "1", "copy between processes in one step (process_vm_readv) where the system allows it") \
    X(slice_bytes, "HOCKET_SLICE_BYTES", bytes, 0, 16777216, "0", "pipeline unit, 256 or more: a larger chunk is cut into slices; 0: what should be fastest of one to eight times what the transport likes, 64K, verbs 256K, tcp between fast hosts of one rank up to 128K") \
    X(lanes, "HOCKET_LANES", int, 0, 4, "0", "channels a plan is replicated over; 0: the number that should be fastest")                                     \
    X(crc, "HOCKET_CRC", flag, 0, 1, "0", "CRC32C on every frame")                                                     \
    X(spin, "HOCKET_SPIN", int, -1, 1000000, "-1", "polls before yielding the core; -1: 2000, 100 over sockets or under a quota of CPU time, 2 where ranks outnumber cores")  \
    X(yield, "HOCKET_YIELD", int, -1, 1000000, "-1", "yields before sleeping; -1: 400, 20 under a quota of CPU time; 0 with HOCKET_SPIN=1000000 spins only") \
    X(spread, "HOCKET_SPREAD", flag, 0, 1, "1", "where ranks outnumber cores, those that wait move to even that out; 0: the system alone places them") \
    X(isa, "HOCKET_ISA", string, 0, 0, "", "highest instruction set for kernels: c, sse2, avx2, avx512")               \
    X(cuda, "HOCKET_CUDA", string, 0, 0, "", "path of hocket_cuda.so, or off; default: beside the library, where a driver is loaded") \
    X(cuda_direct, "HOCKET_CUDA_DIRECT", flag, 0, 1, "1", "calls on CUDA streams run on the devices where these reach each other; 0: through memory of the host") \
    X(cuda_bytes, "HOCKET_CUDA_BYTES", bytes, 1048576, 1073741824, "40M", "memory of its device that a rank gives to a communicator with calls on CUDA streams") \
    X(cuda_blocks, "HOCKET_CUDA_BLOCKS", int, 0, 1024, "0", "thread blocks of a collective on a device at most; 0: as many as 32, shared by the ranks on it") \
    X(cuda_dmabuf, "HOCKET_CUDA_DMABUF", string, 0, 0, "", "off: network adapters do not read memory of devices; on: it is refused where they cannot; default: they do where all ranks' can") \
    X(faults, "HOCKET_FAULTS", string, 0, 0, "", "inject faults, for tests: seed=N,drop=P,dup=P,corrupt=P,delay=P,short=P,kill=N") \
    X(recorder, "HOCKET_RECORDER", int, 16, 65536, "256", "operations the flight recorder keeps per communicator")     \
    X(verify, "HOCKET_VERIFY", flag, 0, 1, "0", "verify every plan before its first use")                              \
    X(deterministic, "HOCKET_DETERMINISTIC", string, 0, 0, "", "rank_order: same bits whatever algorithm, size, transport, placement")

#define HKT__SLICE_LEAST 256 /* of HOCKET_SLICE_BYTES, where it is not 0 */

struct hkt__settings {
#define HKT__TYPE_int int64_t
#define HKT__TYPE_bytes int64_t
#define HKT__TYPE_ms int64_t
#define HKT__TYPE_flag int64_t
#define HKT__TYPE_string const char *
#define HKT__SETTINGS_FIELD(field, name, type, min, max, fallback, help) HKT__TYPE_##type field;
    HKT__SETTINGS_TABLE(HKT__SETTINGS_FIELD)
#undef HKT__SETTINGS_FIELD
};

/** Settings of this process, loaded at the first call; a bad value yields HKT_ERR_INVALID from this and every later
 *  call, *out_settings untouched. */
HKT_NODISCARD enum hkt_status hkt__settings_get(const struct hkt__settings **out_settings);

/** Parse "64K", "4M", "1G", "123" (binary units) into bytes, or "10s", "500ms", "2m" into milliseconds. */
HKT_NODISCARD enum hkt_status hkt__parse_bytes(const char *text, int64_t *out_bytes);
HKT_NODISCARD enum hkt_status hkt__parse_ms(const char *text, int64_t *out_ms);

/** Where measured choices are kept: HOCKET_TUNE's file, else tune.json in the user's cache folder; "" when it is "off" or
 *  there is no such folder. After a successful hkt__settings_get. */
const char *hkt__settings_tune_path(void);

/** Test hook: forget the loaded settings, so that the next get reads the environment again. Not thread safe. */
void hkt__settings_reset(void);

#endif
