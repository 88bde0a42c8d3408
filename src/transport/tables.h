/* The raw table of each transport, as its own file writes it: an operation that has a default may be NULL here. Only
 * transport.c reads these; everybody else, instances included (hkt__tp.ops), points to the registered copies, in which
 * defaults are filled in: hkt__transport_get, hkt__transport_find. */
#ifndef HOCKET_TRANSPORT_TABLES_H
#define HOCKET_TRANSPORT_TABLES_H

#include "transport/transport.h"

extern const struct hkt__tp_ops hkt__tp_thread; /* thread.c */
extern const struct hkt__tp_ops hkt__tp_shm;    /* shm.c */
extern const struct hkt__tp_ops hkt__tp_net;    /* net.c */
extern const struct hkt__tp_ops hkt__tp_tcp;    /* tcp.c */

#endif
