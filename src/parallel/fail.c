/* The text of the last failure in this layer, one per thread. */
#include "parallel/fail.h"

#include <stdarg.h>
#include <stdio.h>

#include "hocket/parallel.h"

static _Thread_local char text[HKT__PARALLEL_TEXT_MAX];

enum hkt_status hkt__parallel_fail(enum hkt_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return status;
}

enum hkt_status hkt__parallel_pass(enum hkt_status status, const char *context)
{
    snprintf(text, sizeof text, "%s: %s", context, hkt_last_error());
    return status;
}

const char *hkt__parallel_error(void)
{
    return text;
}

const char *hkt_parallel_last_error(void)
{
    return text;
}
