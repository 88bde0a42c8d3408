/* Errors of the parallelism layer. The record of libhocket belongs to libhocket, so this layer keeps a text of its own per
 * thread: whoever first knows calls hkt__parallel_fail, callers pass the status on. A failure that came up from a call of
 * libhocket is taken over with hkt__parallel_pass, which copies hkt_last_error() behind a context. */
#ifndef HOCKET_PARALLEL_FAIL_H
#define HOCKET_PARALLEL_FAIL_H

#include "hocket/status.h"

#define HKT__PARALLEL_TEXT_MAX 1024

/** Record a failure of this thread (what, where, the mend; no newline) and return `status`. */
enum hkt_status hkt__parallel_fail(enum hkt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** The same for the failure of a call of libhocket: the text becomes "context: hkt_last_error()". */
enum hkt_status hkt__parallel_pass(enum hkt_status status, const char *context);

/** Text of this thread's last failure in this layer; "" when nothing failed yet. */
const char *hkt__parallel_error(void);

#endif
