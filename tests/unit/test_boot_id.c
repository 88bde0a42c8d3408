/* What could break: an id changes on its way and is believed, a field does not survive, the listener behind an id is
 * not found again, or found by another id, or leaks. */
#include "comm/boot_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/settings.h"

static void id_survives_packing(void **state)
{
    struct hkt__boot_id id = {.host = "fd77::1,10.0.0.1", .port = 65001}, back;
    struct hkt_unique_id packed;

    (void)state;
    for (int i = 0; i < HKT__TOKEN_BYTES; i++)
        id.token[i] = (unsigned char)(200 + i);
    hkt__boot_id_pack(&id, &packed);
    assert_int_equal(hkt__boot_id_unpack(&packed, &back), HKT_OK);
    assert_memory_equal(&id, &back, sizeof id);

    memset(id.host, 'h', sizeof id.host - 1);
    hkt__boot_id_pack(&id, &packed);
    assert_int_equal(hkt__boot_id_unpack(&packed, &back), HKT_OK);
    assert_string_equal(id.host, back.host);
}

static void id_refuses_every_flipped_bit(void **state)
{
    const struct hkt__boot_id id = {.host = "10.0.0.1", .port = 65001};
    struct hkt__boot_id back = {.port = 7};
    struct hkt_unique_id packed;

    (void)state;
    hkt__boot_id_pack(&id, &packed);
    for (size_t bit = 0; bit < 8 * sizeof packed; bit++) {
        packed.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(hkt__boot_id_unpack(&packed, &back), HKT_ERR_INVALID);
        packed.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(back.port, 7);
    assert_int_equal(hkt__boot_id_unpack(&packed, &back), HKT_OK);
}

static void id_says_what_is_wrong(void **state)
{
    const struct hkt__boot_id id = {.host = "10.0.0.1", .port = 65001}, nowhere = {.port = 0};
    struct hkt__boot_id back;
    struct hkt_unique_id packed = {{0}};

    (void)state;
    assert_int_equal(hkt__boot_id_unpack(&packed, &back), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "no unique id"));
    hkt__boot_id_pack(&id, &packed);
    packed.bytes[6] = 99;
    assert_int_equal(hkt__boot_id_unpack(&packed, &back), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "version 99"));
    packed.bytes[6] = 1;
    packed.bytes[127] ^= 1;
    assert_int_equal(hkt__boot_id_unpack(&packed, &back), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "damaged"));
    hkt__boot_id_pack(&nowhere, &packed);
    assert_int_equal(hkt__boot_id_unpack(&packed, &back), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "no address"));
}

static void id_create_opens_a_listener_that_only_its_id_finds(void **state)
{
    struct hkt__boot_id a, b, other;

    (void)state;
    assert_int_equal(hkt__boot_id_create(&a), HKT_OK);
    assert_int_equal(hkt__boot_id_create(&b), HKT_OK);
    assert_int_not_equal(a.port, b.port);
    assert_memory_not_equal(a.token, b.token, sizeof a.token);
    assert_true(a.host[0] != '\0');
    other = a;
    other.token[3] ^= 1;
    assert_int_equal(hkt__boot_listener_take(&other), -1);
    const int fd_b = hkt__boot_listener_take(&b), fd_a = hkt__boot_listener_take(&a);

    assert_true(fd_a >= 0 && fd_b >= 0);
    assert_int_equal(hkt__net_port(fd_a), a.port);
    assert_int_equal(hkt__net_port(fd_b), b.port);
    assert_int_equal(hkt__boot_listener_take(&a), -1);
    close(fd_a);
    close(fd_b);
}

static void id_create_takes_the_address_of_the_settings(void **state)
{
    struct hkt__boot_id id;

    (void)state;
    setenv("HOCKET_ADDRESS", "127.0.0.1", 1);
    hkt__settings_reset();
    assert_int_equal(hkt__boot_id_create(&id), HKT_OK);
    assert_string_equal(id.host, "127.0.0.1");
    close(hkt__boot_listener_take(&id));
    setenv("HOCKET_ADDRESS", "192.0.2.77", 1); /* a documentation address (RFC 5737): nobody's */
    hkt__settings_reset();
    assert_int_equal(hkt__boot_id_create(&id), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_ADDRESS=192.0.2.77"));
    unsetenv("HOCKET_ADDRESS");
    setenv("HOCKET_INTERFACE", "no-such-if0", 1);
    hkt__settings_reset();
    assert_int_equal(hkt__boot_id_create(&id), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "no-such-if0"));
    setenv("HOCKET_INTERFACE", "lo", 1);
    hkt__settings_reset();
    assert_int_equal(hkt__boot_id_create(&id), HKT_OK);
    assert_non_null(strstr(id.host, "127.0.0.1"));
    close(hkt__boot_listener_take(&id));
    unsetenv("HOCKET_INTERFACE");
    hkt__settings_reset();
}

static void id_create_survives_no_memory(void **state)
{
    struct hkt__boot_id id = {.port = 7};
    const struct hkt__settings *settings;

    (void)state;
    assert_int_equal(hkt__settings_get(&settings), HKT_OK);
    hkt__mem_fail_at(1);
    assert_int_equal(hkt__boot_id_create(&id), HKT_ERR_NOMEM);
    hkt__mem_fail_at(0);
    assert_int_equal(id.port, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(id_survives_packing),
        cmocka_unit_test(id_refuses_every_flipped_bit),
        cmocka_unit_test(id_says_what_is_wrong),
        cmocka_unit_test(id_create_opens_a_listener_that_only_its_id_finds),
        cmocka_unit_test(id_create_takes_the_address_of_the_settings),
        cmocka_unit_test(id_create_survives_no_memory),
    };

    return cmocka_run_group_tests_name("boot_id", tests, NULL, NULL);
}
