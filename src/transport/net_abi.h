/* The binary interface of NCCL's network plugins, versions 5 to 12, as far as it is used here: for net_plugin.c alone. Facts
 * of the interface (order, signatures, layouts) are those NVIDIA documents for authors of plugins: github.com/NVIDIA/nccl,
 * plugins/net/README.md and src/include/plugin/net.
 *
 * A plugin exports one table for each version that it serves, ncclNetPlugin_vN: a name, then functions. From version to
 * version functions were appended, once inserted (6), and signatures changed; the numbers in the names below are those of
 * the version that brought the signature. All functions return 0, or one of the errors of hkt__net_result. */
#ifndef HOCKET_TRANSPORT_NET_ABI_H
#define HOCKET_TRANSPORT_NET_ABI_H

#include <stddef.h>
#include <stdint.h>

#define HKT__NET_VERSION_MIN 5
#define HKT__NET_VERSION_MAX 12
#define HKT__NET_SYMBOL "ncclNetPlugin_v%d"
#define HKT__NET_PTR_HOST 1           /* kind of memory: the host's */
#define HKT__NET_CLASS_UNSET (-1)

enum hkt__net_result {
    HKT__NET_SUCCESS, HKT__NET_CUDA_ERROR, HKT__NET_SYSTEM_ERROR, HKT__NET_INTERNAL_ERROR, HKT__NET_INVALID_ARGUMENT,
    HKT__NET_INVALID_USAGE, HKT__NET_REMOTE_ERROR, HKT__NET_IN_PROGRESS
};

enum hkt__net_log_level { HKT__NET_LOG_VERSION = 1, HKT__NET_LOG_WARN, HKT__NET_LOG_INFO, HKT__NET_LOG_ABORT, HKT__NET_LOG_TRACE };

/** Place of a function in the table, from version 6 on; version 5 has no REG_DMABUF. */
enum hkt__net_place {
    HKT__NET_INIT, HKT__NET_DEVICES, HKT__NET_PROPERTIES, HKT__NET_LISTEN, HKT__NET_CONNECT, HKT__NET_ACCEPT, HKT__NET_REG,
    HKT__NET_REG_DMABUF, HKT__NET_DEREG, HKT__NET_ISEND, HKT__NET_IRECV, HKT__NET_IFLUSH, HKT__NET_TEST, HKT__NET_CLOSE_SEND,
    HKT__NET_CLOSE_RECV, HKT__NET_CLOSE_LISTEN,
    HKT__NET_DEVICE_MR, HKT__NET_CONSUMED,     /* 7: for sending and receiving by a device */
    HKT__NET_VDEVICE,                          /* 9: several devices as one */
    HKT__NET_FINALIZE, HKT__NET_ATTRIBUTES,    /* 11 */
    HKT__NET_PLACES
};

/** Any function, to be cast to what it is. */
typedef void hkt__net_function(void);

struct hkt__net_table {
    const char *name;
    hkt__net_function *functions[];
};

/* ---- what init is given ---- */

typedef void hkt__net_logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
typedef int hkt__net_profiler(void **event, int type, void *parent, int64_t plugin_id, void *data);

struct hkt__net_config {
    int traffic_class;
};

/* ---- properties of a device ---- */

struct hkt__net_props_6 {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, speed_mbits, port;
    float latency_us;
    int comms_max, recvs_max;
};

struct hkt__net_props_7 {
    struct hkt__net_props_6 base;
    int device_type, device_version;
};

struct hkt__net_props_8 {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, is_reg_global, speed_mbits, port;
    float latency_us;
    int comms_max, recvs_max, device_type, device_version;
};

/** Version 10's are the same. */
struct hkt__net_props_9 {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, is_reg_global, must_flush, speed_mbits, port;
    float latency_us;
    int comms_max, recvs_max, device_type, device_version;
    int vdevice_count, vdevices[4];
    size_t p2p_bytes_max, coll_bytes_max;
};

struct hkt__net_props_11 {
    struct hkt__net_props_9 base;
    int requests_max;
};

struct hkt__net_props_12 {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support, is_reg_global, must_flush, speed_mbits, port;
    float latency_us;
    int comms_max, recvs_max, device_type, device_version;
    int vdevice_count, vdevices[8];
    size_t p2p_bytes_max, coll_bytes_max;
    int requests_max;
    int16_t rail, plane;
};

union hkt__net_props {
    struct hkt__net_props_6 v6;
    struct hkt__net_props_7 v7;
    struct hkt__net_props_8 v8;
    struct hkt__net_props_9 v9;
    struct hkt__net_props_11 v11;
    struct hkt__net_props_12 v12;
};

/* ---- signatures ---- */

typedef int hkt__net_init_5(hkt__net_logger *logger);
typedef int hkt__net_init_10(hkt__net_logger *logger, hkt__net_profiler *profiler);
typedef int hkt__net_init_11(void **out_context, uint64_t comm_id, struct hkt__net_config *config, hkt__net_logger *logger,
                             hkt__net_profiler *profiler);
typedef int hkt__net_devices_5(int *out_count);
typedef int hkt__net_properties_5(int device, union hkt__net_props *out_props);
typedef int hkt__net_listen_5(int device, void *out_handle, void **out_listener);
typedef int hkt__net_listen_11(void *context, int device, void *out_handle, void **out_listener);
typedef int hkt__net_connect_5(int device, void *handle, void **out_comm);
typedef int hkt__net_connect_7(int device, void *handle, void **out_comm, void **offload);
typedef int hkt__net_connect_10(int device, struct hkt__net_config *config, void *handle, void **out_comm, void **offload);
typedef int hkt__net_connect_11(void *context, int device, void *handle, void **out_comm, void **offload);
typedef int hkt__net_accept_5(void *listener, void **out_comm);
typedef int hkt__net_accept_7(void *listener, void **out_comm, void **offload);
typedef int hkt__net_reg_5(void *comm, void *memory, int bytes, int kind, void **out_region);
typedef int hkt__net_reg_8(void *comm, void *memory, size_t bytes, int kind, void **out_region);
typedef int hkt__net_dereg_5(void *comm, void *region);
typedef int hkt__net_isend_5(void *comm, void *data, int bytes, int tag, void *region, void **out_request);
typedef int hkt__net_isend_9(void *comm, void *data, size_t bytes, int tag, void *region, void **out_request);
typedef int hkt__net_isend_10(void *comm, void *data, size_t bytes, int tag, void *region, void *event, void **out_request);
typedef int hkt__net_irecv_5(void *comm, int count, void **to, int *bytes, int *tags, void **regions, void **out_request);
typedef int hkt__net_irecv_9(void *comm, int count, void **to, size_t *bytes, int *tags, void **regions, void **out_request);
typedef int hkt__net_irecv_10(void *comm, int count, void **to, size_t *bytes, int *tags, void **regions, void **events,
                              void **out_request);
typedef int hkt__net_test_5(void *request, int *out_is_done, int *out_bytes);
typedef int hkt__net_close_5(void *comm); /* and finalize of version 11 */

#endif
