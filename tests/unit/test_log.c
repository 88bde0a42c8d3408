/* What could break: a line in more than one write (lines of ranks mix), a newline inside a line, a line beyond its buffer,
 * a level of one subsystem applied to another, errno or the error record changed by logging. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/log.h"
#include "core/settings.h"

/* Stderr becomes a datagram socket: each write(2) is one packet, so packets count the writes. */
static int packets = -1, old_stderr = -1;

static int capture(void **state)
{
    int pair[2];

    (void)state;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0)
        return -1;
    fflush(stderr);
    old_stderr = dup(STDERR_FILENO);
    dup2(pair[1], STDERR_FILENO);
    close(pair[1]);
    packets = pair[0];
    return 0;
}

static int release(void **state)
{
    (void)state;
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    close(packets);
    unsetenv("HOCKET_DEBUG");
    hkt__log_set_rank(-1);
    hkt__settings_reset();
    return 0;
}

static void set_debug(const char *value)
{
    setenv("HOCKET_DEBUG", value, 1);
    hkt__settings_reset();
}

/* Next packet as a string, "" when there is none. */
static const char *packet(void)
{
    static char text[8192];
    const ssize_t bytes = recv(packets, text, sizeof text - 1, MSG_DONTWAIT);

    text[bytes > 0 ? bytes : 0] = '\0';
    return text;
}

static void silent_by_default(void **state)
{
    (void)state;
    unsetenv("HOCKET_DEBUG");
    hkt__settings_reset();
    hkt__log(HKT__SUB_BOOT, HKT__LOG_ERROR, "nobody asked");
    assert_string_equal(packet(), "");
    assert_int_equal(hkt__log_level(HKT__SUB_BOOT), 0);
}

static void one_line_is_one_write(void **state)
{
    (void)state;
    set_debug("info");
    hkt__log_set_rank(5);
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "two\nlines of %d", 7);
    const char *line = packet();

    assert_int_equal(strncmp(line, "hocket ", 7), 0);
    assert_non_null(strstr(line, " rank 5 transport info: two lines of 7\n"));
    assert_int_equal(strchr(line, '\n')[1], '\0');
    assert_string_equal(packet(), "");
}

static void levels_are_per_subsystem(void **state)
{
    (void)state;
    set_debug("warn,transport=debug,boot=none");
    assert_int_equal(hkt__log_level(HKT__SUB_TRANSPORT), HKT__LOG_DEBUG);
    assert_int_equal(hkt__log_level(HKT__SUB_BOOT), 0);
    assert_int_equal(hkt__log_level(HKT__SUB_EXEC), HKT__LOG_WARN);
    hkt__log(HKT__SUB_EXEC, HKT__LOG_INFO, "below");
    hkt__log(HKT__SUB_BOOT, HKT__LOG_ERROR, "off");
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_TRACE, "too fine");
    assert_string_equal(packet(), "");
    hkt__log(HKT__SUB_EXEC, HKT__LOG_WARN, "seen");
    assert_non_null(strstr(packet(), "exec warn: seen"));
}

static void a_later_item_wins(void **state)
{
    unsigned char levels[HKT__SUB_COUNT] = { 0 };

    (void)state;
    assert_int_equal(hkt__log_parse("boot=trace,error", levels), HKT_OK);
    assert_int_equal(levels[HKT__SUB_BOOT], HKT__LOG_ERROR);
    assert_int_equal(hkt__log_parse("boot=trace,nonsense", levels), HKT_ERR_INVALID);
    assert_int_equal(levels[HKT__SUB_BOOT], HKT__LOG_ERROR);
    assert_int_equal(hkt__log_parse("", levels), HKT_OK);
    assert_int_equal(levels[HKT__SUB_BOOT], 0);
}

static void a_long_line_is_cut(void **state)
{
    char text[10000];

    (void)state;
    set_debug("trace");
    memset(text, 'y', sizeof text);
    text[sizeof text - 1] = '\0';
    hkt__log(HKT__SUB_CORE, HKT__LOG_TRACE, "%s", text);
    const char *line = packet();
    const size_t bytes = strlen(line);

    assert_true(bytes > 1000 && bytes <= 4096);
    assert_string_equal(line + bytes - 5, "y...\n");
    assert_string_equal(packet(), "");
}

static void errno_and_error_record_survive(void **state)
{
    (void)state;
    set_debug("bad value");
    assert_int_equal(hkt__fail(HKT_ERR_TIMEOUT, "the first cause"), HKT_ERR_TIMEOUT);
    errno = EPIPE;
    hkt__log(HKT__SUB_COMM, HKT__LOG_ERROR, "silent, as the settings are bad");
    assert_int_equal(errno, EPIPE);
    assert_string_equal(hkt_last_error(), "the first cause");
    assert_string_equal(packet(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(silent_by_default, capture, release),
        cmocka_unit_test_setup_teardown(one_line_is_one_write, capture, release),
        cmocka_unit_test_setup_teardown(levels_are_per_subsystem, capture, release),
        cmocka_unit_test_setup_teardown(a_later_item_wins, capture, release),
        cmocka_unit_test_setup_teardown(a_long_line_is_cut, capture, release),
        cmocka_unit_test_setup_teardown(errno_and_error_record_survive, capture, release),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
