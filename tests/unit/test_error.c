/* What could break: a text cut without its end, errno lost between failure and record, a record that leaks into another
 * thread, an argument that points into the record it is written to. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"

static void fail_records_status_and_text(void **state)
{
    (void)state;
    assert_int_equal(hkt__fail(HKT_ERR_TIMEOUT, "rank %d waited %d ms", 3, 250), HKT_ERR_TIMEOUT);
    assert_string_equal(hkt_last_error(), "rank 3 waited 250 ms");
    assert_int_equal(hkt__error_here()->status, HKT_ERR_TIMEOUT);
    assert_int_equal(hkt__error_here()->sys_errno, 0);
    assert_int_equal(hkt__error_here()->peer, -1);
}

/* Whatever wanted one more file, the mend is the same. */
static void a_full_table_of_files_names_the_limit(void **state)
{
    (void)state;
    errno = EMFILE;
    assert_int_equal(hkt__fail_sys(HKT_ERR_SYSTEM, "memfd_create"), HKT_ERR_SYSTEM);
    assert_non_null(strstr(hkt_last_error(), "Too many open files"));
    assert_non_null(strstr(hkt_last_error(), "ulimit -n"));
    errno = EMFILE;
    assert_int_equal(hkt__fail_sys(HKT_ERR_SYSTEM, "socket (ulimit -n)"), HKT_ERR_SYSTEM);
    assert_string_equal(strstr(hkt_last_error(), "ulimit -n"), "ulimit -n): Too many open files"); /* said once */
}

static void fail_sys_appends_errno(void **state)
{
    (void)state;
    errno = ENOENT;
    assert_int_equal(hkt__fail_sys(HKT_ERR_SYSTEM, "open %s", "/none"), HKT_ERR_SYSTEM);
    assert_string_equal(hkt_last_error(), "open /none: No such file or directory");
    assert_int_equal(hkt__error_here()->sys_errno, ENOENT);
}

static void fail_peer_keeps_the_rank(void **state)
{
    (void)state;
    assert_int_equal(hkt__fail_peer(HKT_ERR_PEER_LOST, 7, "gone"), HKT_ERR_PEER_LOST);
    assert_int_equal(hkt__error_here()->peer, 7);
}

static void context_goes_in_front(void **state)
{
    (void)state;
    assert_int_equal(hkt__error_context(hkt__fail(HKT_ERR_INVALID, "bad root"), "broadcast %d", 4), HKT_ERR_INVALID);
    assert_string_equal(hkt_last_error(), "broadcast 4: bad root");
}

static void an_argument_may_be_the_record_itself(void **state)
{
    (void)state;
    assert_int_equal(hkt__fail(HKT_ERR_INVALID, "inner"), HKT_ERR_INVALID);
    assert_int_equal(hkt__fail(HKT_ERR_FAILED, "outer (%s)", hkt_last_error()), HKT_ERR_FAILED);
    assert_string_equal(hkt_last_error(), "outer (inner)");
}

static void long_texts_are_cut_not_overrun(void **state)
{
    char big[3 * HKT__ERROR_TEXT_MAX];

    (void)state;
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    errno = EIO;
    assert_int_equal(hkt__fail_sys(HKT_ERR_SYSTEM, "%s", big), HKT_ERR_SYSTEM);
    assert_int_equal(strlen(hkt_last_error()), HKT__ERROR_TEXT_MAX - 1);
    assert_int_equal(hkt__error_context(HKT_ERR_SYSTEM, "%s", big), HKT_ERR_SYSTEM);
    assert_true(strlen(hkt_last_error()) < HKT__ERROR_TEXT_MAX);
}

static void *fail_elsewhere(void *arg)
{
    *(int *)arg = hkt_last_error()[0] == '\0' && hkt__fail(HKT_ERR_NOMEM, "other thread") == HKT_ERR_NOMEM;
    return NULL;
}

static void records_are_per_thread(void **state)
{
    pthread_t thread;
    int was_clean = 0;

    (void)state;
    assert_int_equal(hkt__fail(HKT_ERR_INVALID, "mine"), HKT_ERR_INVALID);
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &was_clean), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(was_clean);
    assert_string_equal(hkt_last_error(), "mine");
}

static void every_status_has_name_and_text(void **state)
{
    static const enum hkt_status all[] = {
#define STATUS_VALUE(name, value, text) name,
        HKT_STATUS_TABLE(STATUS_VALUE)
#undef STATUS_VALUE
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(strncmp(hkt_status_name(all[i]), "HKT_", 4), 0);
        assert_string_not_equal(hkt_status_text(all[i]), "unknown status");
    }
    assert_string_equal(hkt_status_name((enum hkt_status)12345), "HKT_STATUS_UNKNOWN");
    assert_string_equal(hkt_status_text((enum hkt_status) - 12345), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_records_status_and_text),
        cmocka_unit_test(fail_sys_appends_errno),
        cmocka_unit_test(a_full_table_of_files_names_the_limit),
        cmocka_unit_test(fail_peer_keeps_the_rank),
        cmocka_unit_test(context_goes_in_front),
        cmocka_unit_test(an_argument_may_be_the_record_itself),
        cmocka_unit_test(long_texts_are_cut_not_overrun),
        cmocka_unit_test(records_are_per_thread),
        cmocka_unit_test(every_status_has_name_and_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
