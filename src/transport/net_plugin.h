/* A network plugin made for NCCL, whatever version of the interface it serves, as one set of calls with our errors.
 *
 * A plugin is loaded once per process and stays: those of before version 11 are initialised once and have no end. Messages
 * of a plugin go to the log (HOCKET_DEBUG=transport=...); its last warning is part of the error of the call that failed.
 * Threads: calls on different comms concurrently; those on one comm, and init, one at a time. No call waits for a peer. */
#ifndef HOCKET_TRANSPORT_NET_PLUGIN_H
#define HOCKET_TRANSPORT_NET_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>

#include "hocket/status.h"

#define HKT__NET_HANDLE_BYTES 256 /* of a listener: 128 by the interface, with a margin for what some plugins write */
#define HKT__NET_DEVICES_MAX 32
#define HKT__NET_NAME_MAX 48

struct hkt__net_plugin;

struct hkt__net_device {
    int index;                    /* the plugin's number of it */
    char name[HKT__NET_NAME_MAX];
    bool can_host;                /* sends and receives memory of the host */
    int mbits;                    /* per second; 0: not told */
    double latency_us;            /* 0: not told */
    size_t message_bytes_max;     /* 0: any size used here */
};

/** The plugin that HOCKET_NET_PLUGIN's value names: a path, or NAME for libnccl-net-NAME.so; "": libnccl-net.so. The newest
 *  version of its tables is taken. UNSUPPORTED with what is wrong with it. */
HKT_NODISCARD enum hkt_status hkt__net_plugin_open(const char *name, struct hkt__net_plugin **out_plugin);
/** What it calls itself, and the version of the interface. */
const char *hkt__net_plugin_name(const struct hkt__net_plugin *plugin);
int hkt__net_plugin_version(const struct hkt__net_plugin *plugin);

/** Initialise; before version 11 once per process. Gives *out_context, released by finalize. UNSUPPORTED. */
HKT_NODISCARD enum hkt_status hkt__net_plugin_init(struct hkt__net_plugin *plugin, void **out_context);
void hkt__net_plugin_finalize(struct hkt__net_plugin *plugin, void *context);
/** All devices, at most HKT__NET_DEVICES_MAX. UNSUPPORTED if there is none. */
HKT_NODISCARD enum hkt_status hkt__net_plugin_devices(struct hkt__net_plugin *plugin, struct hkt__net_device *out_devices,
                                                      int *out_count);

/** A device, in a context. */
struct hkt__net_site {
    struct hkt__net_plugin *plugin;
    void *context;
    int device;
};

/* Failures of all that follows: PEER_LOST where the plugin blames the system or the peer, else SYSTEM. */

/** Listen for one connection. handle: HKT__NET_HANDLE_BYTES, for the connector. */
HKT_NODISCARD enum hkt_status hkt__net_plugin_listen(const struct hkt__net_site *site, void *out_handle, void **out_listener);
/** Connect to a handle, which must stay where it is from call to call: plugins keep their state in it. AGAIN: not yet. */
HKT_NODISCARD enum hkt_status hkt__net_plugin_connect(const struct hkt__net_site *site, void *handle, void **out_comm);
/** The connection to a listener. AGAIN: not yet. */
HKT_NODISCARD enum hkt_status hkt__net_plugin_accept(struct hkt__net_plugin *plugin, void *listener, void **out_comm);
HKT_NODISCARD enum hkt_status hkt__net_plugin_reg(struct hkt__net_plugin *plugin, void *comm, void *memory, size_t bytes,
                                           void **out_region);
void hkt__net_plugin_dereg(struct hkt__net_plugin *plugin, void *comm, void *region);

/** Memory of a message, within a region. */
struct hkt__net_span {
    void *data;
    size_t bytes;
    void *region;
};

/** Start to send or to receive a message; k-th sent is k-th received. AGAIN: not now. */
HKT_NODISCARD enum hkt_status hkt__net_plugin_isend(struct hkt__net_plugin *plugin, void *comm, const struct hkt__net_span *span,
                                             void **out_request);
HKT_NODISCARD enum hkt_status hkt__net_plugin_irecv(struct hkt__net_plugin *plugin, void *comm, const struct hkt__net_span *span,
                                             void **out_request);
/** Has it ended? OK, with the bytes moved; AGAIN. This is also what makes many plugins move data. */
HKT_NODISCARD enum hkt_status hkt__net_plugin_test(struct hkt__net_plugin *plugin, void *request, size_t *out_bytes);

enum hkt__net_end { HKT__NET_SENDER, HKT__NET_RECEIVER, HKT__NET_LISTENER };
/** Close what connect, accept or listen gave; NULL is fine. */
void hkt__net_plugin_close(struct hkt__net_plugin *plugin, enum hkt__net_end end, void *comm);

#endif
