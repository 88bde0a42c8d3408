/* Thread-local failure records, and the names of the status codes. */
#include "core/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct hkt__error error_here;

/* Composed apart, since an argument may point into the record itself (hkt__fail(..., "%s", hkt_last_error())). */
static void record(enum hkt_status status, int sys_errno, int peer, const char *format, va_list args)
{
    char text[HKT__ERROR_TEXT_MAX] = "";
    const int used = vsnprintf(text, sizeof text, format, args);

    if (sys_errno != 0 && used >= 0 && (size_t)used < sizeof text - 3) {
        char why[128];

        const bool is_full = sys_errno == EMFILE && strstr(text, "ulimit") == NULL;

        snprintf(text + used, sizeof text - (size_t)used, ": %s%s", strerror_r(sys_errno, why, sizeof why),
                 is_full ? ": raise the limit (ulimit -n), or use fewer communicators" : "");
    }
    error_here.status = status;
    error_here.sys_errno = sys_errno;
    error_here.peer = peer;
    memcpy(error_here.text, text, sizeof text);
}

enum hkt_status hkt__fail(enum hkt_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    record(status, 0, -1, format, args);
    va_end(args);
    return status;
}

enum hkt_status hkt__fail_sys(enum hkt_status status, const char *format, ...)
{
    const int sys_errno = errno;
    va_list args;

    va_start(args, format);
    record(status, sys_errno, -1, format, args);
    va_end(args);
    return status;
}

enum hkt_status hkt__fail_peer(enum hkt_status status, int peer, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    record(status, 0, peer, format, args);
    va_end(args);
    return status;
}

struct hkt__error *hkt__error_here(void)
{
    return &error_here;
}

enum hkt_status hkt__error_context(enum hkt_status status, const char *format, ...)
{
    char old[HKT__ERROR_TEXT_MAX], context[256];
    va_list args;

    memcpy(old, error_here.text, sizeof old);
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    int used = snprintf(error_here.text, sizeof error_here.text, "%s: ", context);

    if (used >= 0 && (size_t)used < sizeof error_here.text)
        snprintf(error_here.text + used, sizeof error_here.text - (size_t)used, "%.*s",
                 (int)(sizeof error_here.text - (size_t)used - 1), old);
    return status;
}

const char *hkt_last_error(void)
{
    return error_here.text;
}

const char *hkt_status_name(enum hkt_status status)
{
    switch (status) {
#define STATUS_NAME(name, value, text)                                                                                 \
    case name:                                                                                                         \
        return #name;
        HKT_STATUS_TABLE(STATUS_NAME)
#undef STATUS_NAME
    }
    return "HKT_STATUS_UNKNOWN";
}

const char *hkt_status_text(enum hkt_status status)
{
    switch (status) {
#define STATUS_TEXT(name, value, text)                                                                                 \
    case name:                                                                                                         \
        return text;
        HKT_STATUS_TABLE(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}
