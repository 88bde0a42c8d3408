/* The plugin's tables, one per version of the interface. Each is exported under its official name by a library of its own
 * (meson.build): what several tables in one library mean, and a library without any, is for the loader to find out. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define NAME "netplug"

/* ---- what one version has and others have not ---- */

static int init_10(logger *log, profiler *prof)
{
    return prof != NULL ? plug_init(log) : INVALID_ARGUMENT;
}

/** A context is only to be given back. */
static int init_11(void **context, uint64_t comm_id, struct config *config, logger *log, profiler *prof)
{
    (void)comm_id;
    if (config == NULL || config->traffic_class != -1 || prof == NULL)
        return INVALID_ARGUMENT;
    const int rc = plug_init(log);

    if (rc != OK)
        return rc;
    *context = malloc(1);
    atomic_fetch_add(&plug_alive, 1);
    return OK;
}

static int finalize(void *context)
{
    free(context);
    atomic_fetch_sub(&plug_alive, 1);
    return OK;
}

static int listen_11(void *context, int device, void *handle, void **comm)
{
    return context != NULL ? plug_listen(device, handle, comm) : INVALID_ARGUMENT;
}

static int connect_7(int device, void *handle, void **comm, void **offload)
{
    return offload != NULL && *offload == NULL ? plug_connect(device, handle, comm) : INVALID_ARGUMENT;
}

static int connect_10(int device, struct config *config, void *handle, void **comm, void **offload)
{
    return config != NULL && config->traffic_class == -1 ? connect_7(device, handle, comm, offload) : INVALID_ARGUMENT;
}

static int connect_11(void *context, int device, void *handle, void **comm, void **offload)
{
    return context != NULL ? connect_7(device, handle, comm, offload) : INVALID_ARGUMENT;
}

static int accept_7(void *listener, void **comm, void **offload)
{
    return offload != NULL && *offload == NULL ? plug_accept(listener, comm) : INVALID_ARGUMENT;
}

static int reg_5(void *comm, void *data, int bytes, int type, void **region)
{
    return plug_reg(comm, data, (size_t)bytes, type, region);
}

static int isend_5(void *comm, void *data, int bytes, int tag, void *region, void **request)
{
    return plug_isend(comm, data, (size_t)bytes, tag, region, request);
}

static int isend_10(void *comm, void *data, size_t bytes, int tag, void *region, void *event, void **request)
{
    return event == NULL ? plug_isend(comm, data, bytes, tag, region, request) : INVALID_ARGUMENT;
}

static int irecv_5(void *comm, int n, void **data, int *sizes, int *tags, void **regions, void **request)
{
    size_t wide[8];

    for (int i = 0; i < n && i < 8; i++)
        wide[i] = (size_t)sizes[i];
    return plug_irecv(comm, n, data, wide, tags, regions, request);
}

static int irecv_10(void *comm, int n, void **data, size_t *sizes, int *tags, void **regions, void **events, void **request)
{
    return events != NULL ? plug_irecv(comm, n, data, sizes, tags, regions, request) : INVALID_ARGUMENT;
}

/* ---- properties: the fields that all versions have; the rest is zero, or set where it is ---- */

#define FILL_PROPS(props, device)                                                                                      \
    (memset((props), 0, sizeof *(props)), (props)->name = (device).name, (props)->ptrSupport = (device).ptr,           \
     (props)->speed = (device).speed, (props)->latency = 5, (props)->port = 1, (props)->maxComms = 1024, (props)->maxRecvs = 4)

#define PROPS_FUNCTION(name, type)                                                                                     \
    static int name(int dev, struct type *props)                                                                      \
    {                                                                                                                  \
        struct plug_device device;                                                                                     \
        const int rc = plug_device(dev, &device);                                                                      \
                                                                                                                       \
        if (rc == OK)                                                                                                  \
            FILL_PROPS(props, device);                                                                                 \
        return rc;                                                                                                     \
    }
PROPS_FUNCTION(props_of_6, props_6)
PROPS_FUNCTION(props_of_7, props_7)
PROPS_FUNCTION(props_of_8, props_8)
#undef PROPS_FUNCTION

/* From version 9 on, the longest message. */
#define PROPS_FUNCTION(name, type)                                                                                     \
    static int name(int dev, struct type *props)                                                                      \
    {                                                                                                                  \
        struct plug_device device;                                                                                     \
        const int rc = plug_device(dev, &device);                                                                      \
                                                                                                                       \
        if (rc == OK)                                                                                                  \
            FILL_PROPS(props, device), props->maxP2pBytes = device.bytes_max;                                          \
        return rc;                                                                                                     \
    }
PROPS_FUNCTION(props_of_9, props_9)
PROPS_FUNCTION(props_of_11, props_11)
PROPS_FUNCTION(props_of_12, props_12)
#undef PROPS_FUNCTION

/* ---- the tables ---- */

#define EXPORTED extern __attribute__((visibility("default"))) const struct

EXPORTED table_5 netplug_v5;
EXPORTED table_6 netplug_v6;
EXPORTED table_7 netplug_v7;
EXPORTED table_8 netplug_v8;
EXPORTED table_9 netplug_v9;
EXPORTED table_10 netplug_v10;
EXPORTED table_11 netplug_v11;
EXPORTED table_12 netplug_v12;
EXPORTED table_8 netplug_partial;

#define ENDS .iflush = plug_iflush, .test = plug_test, .closeSend = plug_close, .closeRecv = plug_close, .closeListen = plug_close_listen

const struct table_5 netplug_v5 = {NAME, plug_init, plug_devices, props_of_6, plug_listen, plug_connect, plug_accept, reg_5,
                                   plug_dereg, isend_5, irecv_5, ENDS};
const struct table_6 netplug_v6 = {NAME, plug_init, plug_devices, props_of_6, plug_listen, plug_connect, plug_accept, reg_5,
                                   NULL, plug_dereg, isend_5, irecv_5, ENDS};
const struct table_7 netplug_v7 = {NAME, plug_init, plug_devices, props_of_7, plug_listen, connect_7, accept_7, reg_5, NULL,
                                   plug_dereg, isend_5, irecv_5, ENDS};
const struct table_8 netplug_v8 = {NAME, plug_init, plug_devices, props_of_8, plug_listen, connect_7, accept_7, plug_reg, NULL,
                                   plug_dereg, isend_5, irecv_5, ENDS};
const struct table_9 netplug_v9 = {NAME, plug_init, plug_devices, props_of_9, plug_listen, connect_7, accept_7, plug_reg, NULL,
                                   plug_dereg, plug_isend, plug_irecv, ENDS};
const struct table_10 netplug_v10 = {NAME, init_10, plug_devices, props_of_9, plug_listen, connect_10, accept_7, plug_reg, NULL,
                                     plug_dereg, isend_10, irecv_10, ENDS};
const struct table_11 netplug_v11 = {NAME, init_11, plug_devices, props_of_11, listen_11, connect_11, accept_7, plug_reg, NULL,
                                     plug_dereg, isend_10, irecv_10, ENDS, .finalize = finalize};
const struct table_12 netplug_v12 = {NAME, init_11, plug_devices, props_of_12, listen_11, connect_11, accept_7, plug_reg, NULL,
                                     plug_dereg, isend_10, irecv_10, ENDS, .finalize = finalize};
/* One that forgot a function. */
const struct table_8 netplug_partial = {NAME, plug_init, plug_devices, props_of_8, plug_listen, connect_7, accept_7, plug_reg,
                                        NULL, plug_dereg, NULL, irecv_5, ENDS};
