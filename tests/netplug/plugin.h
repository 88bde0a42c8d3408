/* A network plugin as for NCCL, over sockets of this host: what it does (plugin.c), and the tables that offer it (tables.c).
 *
 * It is strict - whatever a caller does that the interface forbids is an error - and lazy: data moves within calls of test
 * alone, and whatever may be refused for now is, at first. What else it does wrong is the environment's to say, read at init:
 *
 *   NETPLUG_FAULT=CALL:N[:die]  the N-th call of that name fails with ncclSystemError, or kills the process
 *   NETPLUG_DEVICES=N           devices (3): the last one is slow
 *   NETPLUG_BYTES=N             longest message of a device (version 9 and later); 0: any
 *   NETPLUG_PTR=N               kinds of memory that devices take (1: the host's) */
#ifndef HOCKET_TESTS_NETPLUG_PLUGIN_H
#define HOCKET_TESTS_NETPLUG_PLUGIN_H

#include "interface.h"

enum { OK, SYSTEM_ERROR = 2, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR };

/** The signatures common to all versions; tables.c adapts the others to them. */
int plug_init(logger *log);
int plug_devices(int *out_count);
int plug_listen(int device, void *handle, void **out_listener);
int plug_connect(int device, void *handle, void **out_comm);
int plug_accept(void *listener, void **out_comm);
int plug_reg(void *comm, void *data, size_t bytes, int type, void **out_region);
int plug_dereg(void *comm, void *region);
int plug_isend(void *comm, void *data, size_t bytes, int tag, void *region, void **out_request);
int plug_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **out_request);
int plug_iflush(void *comm, int n, void **data, int *sizes, void **regions, void **out_request);
int plug_test(void *request, int *out_done, int *sizes);
int plug_close(void *comm);
int plug_close_listen(void *listener);

/** Facts of a device for all versions. */
struct plug_device {
    char *name;
    int ptr, speed;
    size_t bytes_max;
};
int plug_device(int device, struct plug_device *out_device);

/** Contexts, listeners, comms and regions that exist: a test looks it up. */
int netplug_alive(void);
extern _Atomic int plug_alive;

#endif
