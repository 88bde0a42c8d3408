/* The part of a module that meets the library: its entry, and core's errors, memory and log by way of the host's table.
 * Compiled into every module, into nothing else; the functions behave as those of core/error.c, mem.c and log.c do. */
#include "transport/module.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/settings.h"
#include "hocket/info.h"

static const struct hkt__module_host *host; /* set before any other call, then constant */

const struct hkt__module *hocket_module(const struct hkt__module_host *from);

__attribute__((visibility("default"))) const struct hkt__module *hocket_module(const struct hkt__module_host *from)
{
    static struct hkt__module module = {
        .abi = HKT__MODULE_ABI,
        .ops_bytes = sizeof(struct hkt__tp_ops),
        .settings_bytes = sizeof(struct hkt__settings),
        .version = HKT_VERSION_MAJOR * 10000 + HKT_VERSION_MINOR * 100 + HKT_VERSION_PATCH,
    };

    if (from->abi != HKT__MODULE_ABI)
        return NULL;
    host = from;
    module.transport = hkt__module_transport;
    return &module;
}

enum hkt_status hkt__fail(enum hkt_status status, const char *format, ...)
{
    char text[HKT__ERROR_TEXT_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return host->fail(status, 0, -1, text);
}

enum hkt_status hkt__fail_sys(enum hkt_status status, const char *format, ...)
{
    const int sys_errno = errno;
    char text[HKT__ERROR_TEXT_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return host->fail(status, sys_errno, -1, text);
}

enum hkt_status hkt__fail_peer(enum hkt_status status, int peer, const char *format, ...)
{
    char text[HKT__ERROR_TEXT_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return host->fail(status, 0, peer, text);
}

struct hkt__error *hkt__error_here(void)
{
    return host->error_here();
}

const char *hkt_last_error(void)
{
    return host->error_here()->text;
}

enum hkt_status hkt__error_context(enum hkt_status status, const char *format, ...)
{
    const struct hkt__error old = *host->error_here();
    struct hkt__error *error = host->error_here();
    char context[256];
    va_list args;

    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    snprintf(error->text, sizeof error->text, "%s: %.*s", context, (int)(sizeof error->text - strlen(context) - 3), old.text);
    return status;
}

int hkt__log_level(enum hkt__log_subsystem subsystem)
{
    return host->log_level((int)subsystem);
}

void hkt__log(enum hkt__log_subsystem subsystem, enum hkt__log_level level, const char *format, ...)
{
    const int saved_errno = errno;
    char text[2048]; /* as long as a line of the log may be */
    va_list args;

    if (host->log_level((int)subsystem) >= (int)level) {
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        host->log((int)subsystem, (int)level, text);
    }
    errno = saved_errno;
}

void *hkt__calloc(size_t count, size_t bytes)
{
    return host->calloc(count, bytes);
}

void *hkt__calloc_line(size_t count, size_t bytes)
{
    return host->calloc_line(count, bytes);
}

void *hkt__realloc(void *old, size_t count, size_t bytes)
{
    return host->realloc(old, count, bytes);
}

void hkt__free(void *memory)
{
    host->free(memory);
}

void *hkt__pages_alloc(size_t bytes)
{
    return host->pages_alloc(bytes);
}

void hkt__pages_free(void *memory, size_t bytes)
{
    host->pages_free(memory, bytes);
}

enum hkt_status hkt__settings_get(const struct hkt__settings **out_settings)
{
    return host->settings_get(out_settings);
}

const struct hkt__tp_ops *hkt__transport_find(const char *name)
{
    return host->transport_find(name);
}
