/* Handing a file descriptor to peers on the same host.
 *
 * The owner listens on an abstract unix socket (no file; gone with its process) under a random name that travels in its
 * address blob. A peer connects and says a proof that it holds the job's token; it gets the descriptor, and the connection
 * ends. Processes of other users are refused before they have said anything. Garbage, slow and silent clients cost one
 * place in a bounded table until their deadline, a second at most; nobody waits for them.
 *
 * The socket belongs to a network namespace: containers that do not share one cannot connect, and do without. */
#ifndef HOCKET_TRANSPORT_FDPASS_H
#define HOCKET_TRANSPORT_FDPASS_H

#include <stdint.h>
#include <sys/types.h>

#include "hocket/status.h"

#define HKT__FDPASS_NAME_BYTES 16

struct hkt__fdserver;

/** Serve fd (borrowed until the stop) in a small thread. key: 16 bytes, copied. */
HKT_NODISCARD enum hkt_status hkt__fdserver_start(int fd, const unsigned char *key, struct hkt__fdserver **out_server);
const unsigned char *hkt__fdserver_name(const struct hkt__fdserver *server);
/** Waits for the thread, which never waits itself. NULL is allowed. */
void hkt__fdserver_stop(struct hkt__fdserver *server);

struct hkt__fdfetch {
    const unsigned char *name, *key;
    int64_t deadline_ns;
    const _Atomic int *abort_word;   /* may be NULL */
};
/** Get a peer's descriptor (close-on-exec; to be closed by the caller) and process id (0: not visible from here).
 *  Errors   UNSUPPORTED: nobody listens under that name here; AUTH, TIMEOUT, ABORTED, SYSTEM */
HKT_NODISCARD enum hkt_status hkt__fdfetch(const struct hkt__fdfetch *fetch, int *out_fd, pid_t *out_pid);

#endif
