/* Tagged output: what a rank writes goes through a pipe and leaves in whole lines, "[rank] " in front of each. One
 * process writes for all ranks, so lines never mix. A line beyond LINE_MAX_BYTES is cut into several. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

#define LINE_MAX_BYTES (1 << 20)
#define READ_BYTES 65536

int run_tag_open(struct run_tag *tag, int rank, int to)
{
    int ends[2];

    *tag = (struct run_tag){ .fd = -1, .to = to, .rank = rank };
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    /* Only our end: the rank must see an ordinary blocking pipe. */
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    tag->fd = ends[0];
    return ends[1];
}

static bool write_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t done = write(fd, bytes, count);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        bytes += done;
        count -= (size_t)done;
    }
    return true;
}

/* Nobody reads our output any more: close the pipe, so that the rank learns it as it would without us (SIGPIPE). */
static void drop_reader(struct run_tag *tag)
{
    close(tag->fd);
    tag->fd = -1;
    tag->bytes = 0;
}

static bool emit(struct run_tag *tag, const char *text, size_t bytes)
{
    char head[32];
    const int head_bytes = snprintf(head, sizeof head, "[%d] ", tag->rank);
    const size_t total = (size_t)head_bytes + bytes + 1;
    char *whole = malloc(total);
    bool ok;

    if (whole == NULL)
        return false;
    memcpy(whole, head, (size_t)head_bytes);
    memcpy(whole + head_bytes, text, bytes);
    whole[total - 1] = '\n';
    ok = write_all(tag->to, whole, total);
    free(whole);
    return ok;
}

static bool make_room(struct run_tag *tag)
{
    if (tag->room - tag->bytes >= READ_BYTES)
        return true;
    char *more = realloc(tag->line, tag->bytes + 2 * READ_BYTES);

    if (more == NULL)
        return false;
    tag->line = more;
    tag->room = tag->bytes + 2 * READ_BYTES;
    return true;
}

/* Emit the complete lines; `fresh` is where bytes not searched yet begin. */
static bool emit_lines(struct run_tag *tag, size_t fresh)
{
    size_t start = 0;

    for (char *newline; (newline = memchr(tag->line + fresh, '\n', tag->bytes - fresh)) != NULL; fresh = start) {
        const size_t end = (size_t)(newline - tag->line);

        if (!emit(tag, tag->line + start, end - start))
            return false;
        start = end + 1;
    }
    if (tag->bytes - start > LINE_MAX_BYTES) {
        if (!emit(tag, tag->line + start, tag->bytes - start))
            return false;
        start = tag->bytes;
    }
    memmove(tag->line, tag->line + start, tag->bytes - start);
    tag->bytes -= start;
    return true;
}

void run_tag_pump(struct run_tag *tag)
{
    while (tag->fd >= 0) {
        if (!make_room(tag)) {
            drop_reader(tag);
            return;
        }
        const ssize_t got = read(tag->fd, tag->line + tag->bytes, tag->room - tag->bytes);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            close(tag->fd);
            tag->fd = -1;
            return;
        }
        const size_t fresh = tag->bytes;

        tag->bytes += (size_t)got;
        if (!emit_lines(tag, fresh)) {
            drop_reader(tag);
            return;
        }
    }
}

void run_tag_close(struct run_tag *tag)
{
    run_tag_pump(tag);
    if (tag->bytes > 0)
        emit(tag, tag->line, tag->bytes);
    if (tag->fd >= 0)
        close(tag->fd);
    free(tag->line);
    *tag = (struct run_tag){ .fd = -1 };
}
