/* What could break: a bad value taken silently (a suffix ignored, an overflow wrapped), a limit off by one, an error that
 * does not name variable, value and range, a default that its own rules refuse, the token shown to whoever asks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/settings.h"

/* Every test starts from an environment without settings. */
static int clean(void **state)
{
    (void)state;
#define UNSET(field, name, type, min, max, fallback, help) unsetenv(name);
    HKT__SETTINGS_TABLE(UNSET)
#undef UNSET
    hkt__settings_reset();
    return 0;
}

static enum hkt_status load_with(const char *name, const char *value, const struct hkt__settings **out_settings)
{
    setenv(name, value, 1);
    hkt__settings_reset();
    const enum hkt_status status = hkt__settings_get(out_settings);

    unsetenv(name);
    return status;
}

static void assert_refused(const char *name, const char *value, const char *allowed)
{
    const struct hkt__settings *settings = NULL;

    if (load_with(name, value, &settings) != HKT_ERR_INVALID)
        fail_msg("%s=%s was taken", name, value);
    assert_null(settings);
    if (strstr(hkt_last_error(), name) == NULL || strstr(hkt_last_error(), allowed) == NULL)
        fail_msg("%s=%s: the error does not say so: %s", name, value, hkt_last_error());
    /* and again from the record */
    assert_int_equal(hkt__fail(HKT_ERR_BUG, "another"), HKT_ERR_BUG);
    assert_int_equal(hkt__settings_get(&settings), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), name));
}

static void defaults_are_those_of_the_table(void **state)
{
    const struct hkt__settings *settings = NULL;

    (void)state;
    assert_int_equal(hkt__settings_get(&settings), HKT_OK);
    assert_int_equal(settings->timeout_ms, 600000);
    assert_int_equal(settings->shm_slot_bytes, 32 * 1024);
    assert_int_equal(settings->shm_bytes, INT64_C(16) << 30);
    assert_int_equal(settings->spin, -1);
    assert_int_equal(settings->crc, 0);
    assert_string_equal(settings->transport, "");
}

static void values_are_taken(void **state)
{
    const struct hkt__settings *settings = NULL;

    (void)state;
    assert_int_equal(load_with("HOCKET_TIMEOUT", "1500ms", &settings), HKT_OK);
    assert_int_equal(settings->timeout_ms, 1500);
    assert_int_equal(load_with("HOCKET_TIMEOUT", "2m", &settings), HKT_OK);
    assert_int_equal(settings->timeout_ms, 120000);
    assert_int_equal(load_with("HOCKET_SCRATCH_BYTES", "1G", &settings), HKT_OK);
    assert_int_equal(settings->scratch_bytes, 1 << 30);
    assert_int_equal(load_with("HOCKET_SPIN", "-1", &settings), HKT_OK);
    assert_int_equal(settings->spin, -1);
    assert_int_equal(load_with("HOCKET_CRC", "1", &settings), HKT_OK);
    assert_int_equal(settings->crc, 1);
    assert_int_equal(load_with("HOCKET_ALGO", "all_reduce=ring", &settings), HKT_OK);
    assert_string_equal(settings->algo, "all_reduce=ring");
    assert_int_equal(load_with("HOCKET_DETERMINISTIC", "rank_order", &settings), HKT_OK);
    assert_string_equal(settings->deterministic, "rank_order");
}

static void an_empty_variable_is_unset(void **state)
{
    const struct hkt__settings *settings = NULL;

    (void)state;
    assert_int_equal(load_with("HOCKET_TIMEOUT", "", &settings), HKT_OK);
    assert_int_equal(settings->timeout_ms, 600000);
}

static void bad_values_are_refused_with_name_and_range(void **state)
{
    static const char *const bad[][3] = {
        { "HOCKET_TIMEOUT", "600", "1ms..240h" },
        { "HOCKET_TIMEOUT", "0ms", "1ms..240h" },
        { "HOCKET_TIMEOUT", "-5s", "1ms..240h" },
        { "HOCKET_TIMEOUT", "5 s", "1ms..240h" },
        { "HOCKET_TIMEOUT", "241h", "1ms..240h" },
        { "HOCKET_TIMEOUT", "s", "1ms..240h" },
        { "HOCKET_TIMEOUT", "5sec", "1ms..240h" },
        { "HOCKET_LANES", "-1", "0..4" },
        { "HOCKET_LANES", "5", "0..4" },
        { "HOCKET_LANES", "2x", "0..4" },
        { "HOCKET_LANES", " 2", "0..4" },
        { "HOCKET_LANES", "0x2", "0..4" },
        { "HOCKET_LANES", "1e1", "0..4" },
        { "HOCKET_LANES", "two", "0..4" },
        { "HOCKET_SPIN", "-2", "-1..1000000" },
        { "HOCKET_SPIN", "--1", "-1..1000000" },
        { "HOCKET_CRC", "yes", "0|1" },
        { "HOCKET_CRC", "2", "0|1" },
        { "HOCKET_SHM_SLOT_BYTES", "1023", "1K..4M" },
        { "HOCKET_SHM_SLOT_BYTES", "4097K", "1K..4M" },
        { "HOCKET_SHM_SLOT_BYTES", "64KB", "1K..4M" },
        { "HOCKET_SHM_SLOT_BYTES", "99999999999999999999", "1K..4M" },
        { "HOCKET_SHM_SLOT_BYTES", "18014398509481984K", "1K..4M" },
        { "HOCKET_SHM_SLOTS", "12", "power of two" },
        { "HOCKET_SLICE_BYTES", "100", "0, or 256" },
        { "HOCKET_ISA", "sse9", "c|sse2|avx2|avx512" },
        { "HOCKET_DETERMINISTIC", "1", "rank_order" },
        { "HOCKET_DEBUG", "loud", "none, error, warn" },
        { "HOCKET_DEBUG", "radio=info", "transport" },
        { "HOCKET_DEBUG", "info,", "trace" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(bad[i][0], bad[i][1], bad[i][2]);
}

static void a_text_too_long_is_refused(void **state)
{
    char text[600];

    (void)state;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_refused("HOCKET_ALGO", text, "longer than 511 bytes");
}

static void limits_are_inside(void **state)
{
    const struct hkt__settings *settings = NULL;

    (void)state;
    assert_int_equal(load_with("HOCKET_LANES", "1", &settings), HKT_OK);
    assert_int_equal(load_with("HOCKET_LANES", "4", &settings), HKT_OK);
    assert_int_equal(load_with("HOCKET_SHM_SLOT_BYTES", "1K", &settings), HKT_OK);
    assert_int_equal(load_with("HOCKET_SHM_SLOT_BYTES", "4096k", &settings), HKT_OK);
    assert_int_equal(load_with("HOCKET_TIMEOUT", "1ms", &settings), HKT_OK);
    assert_int_equal(load_with("HOCKET_TIMEOUT", "240h", &settings), HKT_OK);
}

static void settings_do_not_follow_the_environment_after_load(void **state)
{
    const struct hkt__settings *settings = NULL;

    (void)state;
    setenv("HOCKET_ALGO", "all_reduce=ring", 1);
    hkt__settings_reset();
    assert_int_equal(hkt__settings_get(&settings), HKT_OK);
    setenv("HOCKET_ALGO", "nonsense", 1);
    assert_int_equal(hkt__settings_get(&settings), HKT_OK);
    assert_string_equal(settings->algo, "all_reduce=ring");
}

static void setting_get_lists_every_row(void **state)
{
    struct hkt_setting setting;
    int count = 0, set = 0;

    (void)state;
    setenv("HOCKET_LANES", "4", 1);
    setenv("HOCKET_TOKEN", "0123456789abcdef0123456789abcdef", 1);
    setenv("HOCKET_CRC", "maybe", 1); /* a bad value must not stop the listing that helps to find it */
    hkt__settings_reset();
    for (; hkt_setting_get(count, &setting) == HKT_OK; count++) {
        assert_int_equal(strncmp(setting.name, "HOCKET_", 7), 0);
        assert_true(strlen(setting.help) > 5);
        assert_true(strlen(setting.range) > 0);
        set += setting.is_set;
        if (strcmp(setting.name, "HOCKET_LANES") == 0)
            assert_string_equal(setting.value, "4");
        if (strcmp(setting.name, "HOCKET_CRC") == 0)
            assert_string_equal(setting.value, "maybe");
        if (strcmp(setting.name, "HOCKET_TOKEN") == 0)
            assert_string_equal(setting.value, "(hidden)");
        if (strcmp(setting.name, "HOCKET_TIMEOUT") == 0)
            assert_string_equal(setting.value, setting.fallback);
    }
    assert_int_equal(set, 3);
    assert_true(count >= 20);
    assert_int_equal(hkt_setting_get(-1, &setting), HKT_ERR_INVALID);
    assert_int_equal(hkt_setting_get(0, NULL), HKT_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults_are_those_of_the_table, clean),
        cmocka_unit_test_setup(values_are_taken, clean),
        cmocka_unit_test_setup(an_empty_variable_is_unset, clean),
        cmocka_unit_test_setup(bad_values_are_refused_with_name_and_range, clean),
        cmocka_unit_test_setup(a_text_too_long_is_refused, clean),
        cmocka_unit_test_setup(limits_are_inside, clean),
        cmocka_unit_test_setup(settings_do_not_follow_the_environment_after_load, clean),
        cmocka_unit_test_setup(setting_get_lists_every_row, clean),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
