/* The debug log. A line is composed in memory and leaves in one write(2), so lines of ranks that share a terminal or a
 * pipe do not mix. Levels come from HOCKET_DEBUG, once. */
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/settings.h"

#define LINE_MAX_BYTES 2048 /* below PIPE_BUF (4096), so that a write to a pipe is atomic */

static const char *const subsystem_names[HKT__SUB_COUNT] = { "core", "boot", "transport", "plan", "exec", "comm" };
static const char *const level_names[] = { "none", "error", "warn", "info", "debug", "trace" };

/* Level + 1, or 0 before the settings were read. Relaxed throughout: the byte is all there is to see, and reading the
 * settings twice yields the same. */
static _Atomic unsigned char levels_in_force[HKT__SUB_COUNT];
static _Thread_local int rank_here = -1;

static int find_name(const char *const *names, int count, const char *text, size_t bytes)
{
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == bytes && memcmp(names[i], text, bytes) == 0)
            return i;
    return -1;
}

/* One item, "info" or "transport=debug". */
static enum hkt_status parse_item(const char *item, size_t bytes, unsigned char levels[HKT__SUB_COUNT])
{
    const char *equals = memchr(item, '=', bytes);
    const char *level_text = equals != NULL ? equals + 1 : item;
    const int level = find_name(level_names, sizeof level_names / sizeof level_names[0], level_text,
                                bytes - (size_t)(level_text - item));

    if (level < 0)
        return hkt__fail(HKT_ERR_INVALID,
                         "\"%.*s\" has no valid level; the levels are none, error, warn, info, debug, "
                         "trace",
                         (int)(bytes < 64 ? bytes : 64), item);
    if (equals == NULL) {
        memset(levels, level, HKT__SUB_COUNT);
        return HKT_OK;
    }
    const int subsystem = find_name(subsystem_names, HKT__SUB_COUNT, item, (size_t)(equals - item));

    if (subsystem < 0)
        return hkt__fail(HKT_ERR_INVALID,
                         "\"%.*s\" names no subsystem; these are core, boot, transport, plan, exec, comm",
                         (int)(bytes < 64 ? bytes : 64), item);
    levels[subsystem] = (unsigned char)level;
    return HKT_OK;
}

enum hkt_status hkt__log_parse(const char *text, unsigned char out_levels[HKT__SUB_COUNT])
{
    unsigned char levels[HKT__SUB_COUNT] = { 0 };

    for (const char *item = text; *text != '\0';) {
        const size_t bytes = strcspn(item, ",");
        const enum hkt_status status = parse_item(item, bytes, levels);

        if (status != HKT_OK)
            return status;
        if (item[bytes] == '\0')
            break;
        item += bytes + 1;
    }
    memcpy(out_levels, levels, sizeof levels);
    return HKT_OK;
}

/* A log call may stand in an error path: the record of that error must survive the reading of the settings. */
static void load_levels(void)
{
    const struct hkt__error saved = *hkt__error_here();
    const struct hkt__settings *settings;
    unsigned char levels[HKT__SUB_COUNT] = { 0 };

    /* Bad settings: silent here; the call that needs them reports. */
    if (hkt__settings_get(&settings) == HKT_OK && hkt__log_parse(settings->debug, levels) != HKT_OK)
        memset(levels, 0, sizeof levels);
    for (int i = 0; i < HKT__SUB_COUNT; i++)
        atomic_store_explicit(&levels_in_force[i], (unsigned char)(levels[i] + 1), memory_order_relaxed);
    *hkt__error_here() = saved;
}

int hkt__log_level(enum hkt__log_subsystem subsystem)
{
    int level = atomic_load_explicit(&levels_in_force[subsystem], memory_order_relaxed);

    if (level == 0) {
        load_levels();
        level = atomic_load_explicit(&levels_in_force[subsystem], memory_order_relaxed);
    }
    return level - 1;
}

/* "hocket 14:03:07.123456 pid 4711 rank 2 transport info: " */
static size_t put_prefix(char *line, size_t bytes, enum hkt__log_subsystem subsystem, enum hkt__log_level level)
{
    struct timespec now;
    struct tm parts;
    char rank[24] = "";

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    if (rank_here >= 0)
        snprintf(rank, sizeof rank, " rank %d", rank_here);
    const int used = snprintf(line, bytes, "hocket %02d:%02d:%02d.%06ld pid %ld%s %s %s: ", parts.tm_hour, parts.tm_min,
                              parts.tm_sec, now.tv_nsec / 1000, (long)getpid(), rank, subsystem_names[subsystem],
                              level_names[level]);

    return used > 0 ? (size_t)used : 0;
}

static void write_line(const char *line, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t done = write(STDERR_FILENO, line, bytes);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return; /* nobody listens: a log has nowhere to complain */
        line += done;
        bytes -= (size_t)done;
    }
}

void hkt__log(enum hkt__log_subsystem subsystem, enum hkt__log_level level, const char *format, ...)
{
    const int saved_errno = errno;
    char line[LINE_MAX_BYTES];
    va_list args;

    if (hkt__log_level(subsystem) >= (int)level) {
        const size_t prefix = put_prefix(line, sizeof line / 2, subsystem, level);
        const size_t room = sizeof line - prefix - 1; /* the newline takes the last byte */

        va_start(args, format);
        const int wanted = vsnprintf(line + prefix, room, format, args);
        va_end(args);
        size_t used = strlen(line);

        if (wanted >= 0 && (size_t)wanted >= room)
            memcpy(line + used - 3, "...", 3);
        for (size_t i = 0; i < used; i++)
            if (line[i] == '\n')
                line[i] = ' ';
        line[used++] = '\n';
        write_line(line, used);
    }
    errno = saved_errno;
}

void hkt__log_set_rank(int rank)
{
    rank_here = rank;
}

void hkt__log_reset(void)
{
    for (int i = 0; i < HKT__SUB_COUNT; i++)
        atomic_store_explicit(&levels_in_force[i], 0, memory_order_relaxed);
}
