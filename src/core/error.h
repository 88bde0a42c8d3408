/* The record of a failure. Whoever first knows calls hkt__fail, which stores code, errno and text for this thread and
 * returns the code; callers pass it on unchanged. A communicator keeps the first record that reaches it. */
#ifndef HOCKET_CORE_ERROR_H
#define HOCKET_CORE_ERROR_H

#include "hocket/status.h"

#define HKT__ERROR_TEXT_MAX 1024

struct hkt__error {
    enum hkt_status status;
    int sys_errno;   /* 0 when no system call was involved */
    int peer;        /* rank within the communicator, -1 when none */
    char text[HKT__ERROR_TEXT_MAX];
};

/** Record a failure of this thread and return `status`. The text says what, where and the mend, without a newline.
 *  hkt__fail_sys appends the text of errno as it was on entry. */
enum hkt_status hkt__fail(enum hkt_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum hkt_status hkt__fail_sys(enum hkt_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum hkt_status hkt__fail_peer(enum hkt_status status, int peer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** This thread's record; never NULL. Writable, so that an outer layer can put its context in front. */
struct hkt__error *hkt__error_here(void);
/** Put "context: " in front of this thread's text, and return its status. */
enum hkt_status hkt__error_context(enum hkt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
