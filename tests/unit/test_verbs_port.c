/* Which GID and which devices verbs uses. What could break: a link-local or RoCE v1 GID taken where a routable one is there, a
 * GID of another port, an empty one; a GID that was asked for and is not there replaced by another; a list of devices read
 * wrongly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>

#include "transport/verbs.h"

static struct ibv_gid_entry entry(unsigned index, unsigned port, unsigned type, const char *address)
{
    struct ibv_gid_entry e = {.gid_index = index, .port_num = port, .gid_type = type};

    assert_int_equal(inet_pton(AF_INET6, address, e.gid.raw), 1);
    return e;
}

static void gids_are_chosen_by_worth(void **state)
{
    const struct ibv_gid_entry all[] = {
        entry(0, 1, IBV_GID_TYPE_ROCE_V1, "fe80::1"),          entry(1, 1, IBV_GID_TYPE_ROCE_V2, "fe80::1"),
        entry(2, 1, IBV_GID_TYPE_ROCE_V1, "::ffff:192.0.2.1"), entry(3, 1, IBV_GID_TYPE_ROCE_V2, "::ffff:169.254.1.1"),
        entry(4, 1, IBV_GID_TYPE_ROCE_V2, "2001:db8::1"),      entry(5, 1, IBV_GID_TYPE_ROCE_V2, "::ffff:192.0.2.1"),
        entry(6, 1, IBV_GID_TYPE_ROCE_V2, "::ffff:192.0.2.9"), entry(7, 2, IBV_GID_TYPE_ROCE_V2, "::ffff:192.0.2.2"),
        entry(8, 1, IBV_GID_TYPE_ROCE_V2, "::"),
    };
    const int best_of_first[] = {-1, 0, 1, 1, 3, 4, 5, 5, 5, 5}; /* with so many of them there */

    (void)state;
    for (int count = 0; count <= 9; count++)
        assert_int_equal(hkt__verbs_gid_choose(all, count, 1, -1), best_of_first[count]);
    assert_int_equal(hkt__verbs_gid_choose(all, 9, 2, -1), 7);
    assert_int_equal(hkt__verbs_gid_choose(all, 9, 3, -1), -1);
}

static void gids_that_are_asked_for_must_be_there(void **state)
{
    const struct ibv_gid_entry all[] = {entry(0, 1, IBV_GID_TYPE_IB, "fe80::1"), entry(3, 1, IBV_GID_TYPE_ROCE_V2, "2001:db8::1"),
                                        entry(4, 2, IBV_GID_TYPE_ROCE_V2, "2001:db8::2"), entry(5, 1, IBV_GID_TYPE_ROCE_V2, "::")};

    (void)state;
    assert_int_equal(hkt__verbs_gid_choose(all, 4, 1, 0), 0);
    assert_int_equal(hkt__verbs_gid_choose(all, 4, 1, 3), 1);
    assert_int_equal(hkt__verbs_gid_choose(all, 4, 1, 1), -1);
    assert_int_equal(hkt__verbs_gid_choose(all, 4, 1, 4), -1); /* another port's */
    assert_int_equal(hkt__verbs_gid_choose(all, 4, 1, 5), -1); /* empty */
}

static void gids_are_printed_as_addresses(void **state)
{
    const struct ibv_gid_entry four = entry(1, 1, IBV_GID_TYPE_ROCE_V2, "::ffff:192.0.2.1");
    const struct ibv_gid_entry six = entry(1, 1, IBV_GID_TYPE_ROCE_V1, "fe80::1");
    char text[96];

    (void)state;
    hkt__verbs_gid_text(&four, text, sizeof text);
    assert_string_equal(text, "192.0.2.1, RoCE v2");
    hkt__verbs_gid_text(&six, text, sizeof text);
    assert_string_equal(text, "fe80::1, RoCE v1");
}

static void devices_are_listed_or_not(void **state)
{
    static const struct {
        const char *list, *device;
        int port;
        bool is_listed;
    } rows[] = {
        {"", "mlx5_0", 1, true},           {"mlx5_0", "mlx5_0", 2, true},       {"mlx5_0", "mlx5_01", 1, false},
        {"mlx5_01", "mlx5_0", 1, false},   {"mlx5_1,mlx5_0", "mlx5_0", 1, true}, {"mlx5_0:2", "mlx5_0", 1, false},
        {"mlx5_0:2", "mlx5_0", 2, true},   {"mlx5_0:12", "mlx5_0", 1, false},   {"^mlx5_0", "mlx5_0", 1, false},
        {"^mlx5_0", "rxe0", 1, true},      {"^a,mlx5_0:1", "mlx5_0", 1, false}, {"^a,mlx5_0:1", "mlx5_0", 2, true},
        {",", "mlx5_0", 1, false},         {"mlx5_0:", "mlx5_0", 1, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (hkt__verbs_is_listed(rows[i].list, rows[i].device, rows[i].port) != rows[i].is_listed)
            fail_msg("\"%s\" and %s:%d", rows[i].list, rows[i].device, rows[i].port);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gids_are_chosen_by_worth),
        cmocka_unit_test(gids_that_are_asked_for_must_be_there),
        cmocka_unit_test(gids_are_printed_as_addresses),
        cmocka_unit_test(devices_are_listed_or_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
