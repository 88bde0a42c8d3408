/* The tables of NCCL's network plugins as a plugin writes them, versions 5 to 12: after the interface that NVIDIA documents
 * for authors of plugins (github.com/NVIDIA/nccl, src/include/plugin/net). Apart from src/transport/net_abi.h on purpose:
 * the loader calls by places in a row of functions, these are the structs, and a mistake in one of them shows. */
#ifndef HOCKET_TESTS_NETPLUG_INTERFACE_H
#define HOCKET_TESTS_NETPLUG_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

typedef void logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
typedef int profiler(void **event, int type, void *parent, int64_t plugin_id, void *data);
struct config {
    int traffic_class;
};
struct vdevice_4 {
    int ndevs, devs[4];
};
struct vdevice_8 {
    int ndevs, devs[8];
};

struct props_6 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, speed, port;
    float latency;
    int maxComms, maxRecvs;
};
struct props_7 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
};
struct props_8 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
};
struct props_9 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
    struct vdevice_4 vProps;
    size_t maxP2pBytes, maxCollBytes;
};
struct props_11 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
    struct vdevice_4 vProps;
    size_t maxP2pBytes, maxCollBytes;
    int maxMultiRequestSize;
};
struct props_12 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
    struct vdevice_8 vProps;
    size_t maxP2pBytes, maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId, planeId;
};

/* The rows that several versions share. */
#define CLOSES                                                                                                         \
    int (*closeSend)(void *comm);                                                                                      \
    int (*closeRecv)(void *comm);                                                                                      \
    int (*closeListen)(void *comm);
#define DEVICE_CALLS                                                                                                   \
    int (*getDeviceMr)(void *comm, void *region, void **out);                                                          \
    int (*irecvConsumed)(void *comm, int n, void *request);
#define REG_DMABUF int (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **region);
#define FLUSH_AND_TEST                                                                                                 \
    int (*iflush)(void *comm, int n, void **data, int *sizes, void **regions, void **request);                         \
    int (*test)(void *request, int *done, int *sizes);

struct table_5 {
    const char *name;
    int (*init)(logger *log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct props_6 *props);
    int (*listen)(int dev, void *handle, void **comm);
    int (*connect)(int dev, void *handle, void **comm);
    int (*accept)(void *listener, void **comm);
    int (*regMr)(void *comm, void *data, int size, int type, void **region);
    int (*deregMr)(void *comm, void *region);
    int (*isend)(void *comm, void *data, int size, int tag, void *region, void **request);
    int (*irecv)(void *comm, int n, void **data, int *sizes, int *tags, void **regions, void **request);
    FLUSH_AND_TEST CLOSES
};
struct table_6 {
    const char *name;
    int (*init)(logger *log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct props_6 *props);
    int (*listen)(int dev, void *handle, void **comm);
    int (*connect)(int dev, void *handle, void **comm);
    int (*accept)(void *listener, void **comm);
    int (*regMr)(void *comm, void *data, int size, int type, void **region);
    REG_DMABUF
    int (*deregMr)(void *comm, void *region);
    int (*isend)(void *comm, void *data, int size, int tag, void *region, void **request);
    int (*irecv)(void *comm, int n, void **data, int *sizes, int *tags, void **regions, void **request);
    FLUSH_AND_TEST CLOSES
};
struct table_7 {
    const char *name;
    int (*init)(logger *log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct props_7 *props);
    int (*listen)(int dev, void *handle, void **comm);
    int (*connect)(int dev, void *handle, void **comm, void **offload);
    int (*accept)(void *listener, void **comm, void **offload);
    int (*regMr)(void *comm, void *data, int size, int type, void **region);
    REG_DMABUF
    int (*deregMr)(void *comm, void *region);
    int (*isend)(void *comm, void *data, int size, int tag, void *region, void **request);
    int (*irecv)(void *comm, int n, void **data, int *sizes, int *tags, void **regions, void **request);
    FLUSH_AND_TEST CLOSES DEVICE_CALLS
};
struct table_8 {
    const char *name;
    int (*init)(logger *log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct props_8 *props);
    int (*listen)(int dev, void *handle, void **comm);
    int (*connect)(int dev, void *handle, void **comm, void **offload);
    int (*accept)(void *listener, void **comm, void **offload);
    int (*regMr)(void *comm, void *data, size_t size, int type, void **region);
    REG_DMABUF
    int (*deregMr)(void *comm, void *region);
    int (*isend)(void *comm, void *data, int size, int tag, void *region, void **request);
    int (*irecv)(void *comm, int n, void **data, int *sizes, int *tags, void **regions, void **request);
    FLUSH_AND_TEST CLOSES DEVICE_CALLS
};
struct table_9 {
    const char *name;
    int (*init)(logger *log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct props_9 *props);
    int (*listen)(int dev, void *handle, void **comm);
    int (*connect)(int dev, void *handle, void **comm, void **offload);
    int (*accept)(void *listener, void **comm, void **offload);
    int (*regMr)(void *comm, void *data, size_t size, int type, void **region);
    REG_DMABUF
    int (*deregMr)(void *comm, void *region);
    int (*isend)(void *comm, void *data, size_t size, int tag, void *region, void **request);
    int (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **request);
    FLUSH_AND_TEST CLOSES DEVICE_CALLS
    int (*makeVDevice)(int *dev, struct vdevice_4 *props);
};
struct table_10 {
    const char *name;
    int (*init)(logger *log, profiler *prof);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct props_9 *props);
    int (*listen)(int dev, void *handle, void **comm);
    int (*connect)(int dev, struct config *config, void *handle, void **comm, void **offload);
    int (*accept)(void *listener, void **comm, void **offload);
    int (*regMr)(void *comm, void *data, size_t size, int type, void **region);
    REG_DMABUF
    int (*deregMr)(void *comm, void *region);
    int (*isend)(void *comm, void *data, size_t size, int tag, void *region, void *event, void **request);
    int (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **events, void **request);
    FLUSH_AND_TEST CLOSES DEVICE_CALLS
    int (*makeVDevice)(int *dev, struct vdevice_4 *props);
};
/* 11 and 12 differ in their properties alone. */
#define TABLE_11(props_type, vdevice_type)                                                                             \
    const char *name;                                                                                                  \
    int (*init)(void **context, uint64_t comm_id, struct config *config, logger *log, profiler *prof);                 \
    int (*devices)(int *ndev);                                                                                         \
    int (*getProperties)(int dev, struct props_type *props);                                                           \
    int (*listen)(void *context, int dev, void *handle, void **comm);                                                  \
    int (*connect)(void *context, int dev, void *handle, void **comm, void **offload);                                 \
    int (*accept)(void *listener, void **comm, void **offload);                                                        \
    int (*regMr)(void *comm, void *data, size_t size, int type, void **region);                                        \
    REG_DMABUF                                                                                                         \
    int (*deregMr)(void *comm, void *region);                                                                          \
    int (*isend)(void *comm, void *data, size_t size, int tag, void *region, void *event, void **request);             \
    int (*irecv)(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **events, void **request); \
    FLUSH_AND_TEST CLOSES DEVICE_CALLS                                                                                 \
    int (*makeVDevice)(int *dev, struct vdevice_type *props);                                                          \
    int (*finalize)(void *context);                                                                                    \
    int (*setNetAttr)(void *context, void *attributes);
struct table_11 {
    TABLE_11(props_11, vdevice_4)
};
struct table_12 {
    TABLE_11(props_12, vdevice_8)
};

#endif
