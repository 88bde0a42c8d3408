/* Choosing addresses, on hosts that are only described. What could break: docker0 or a VPN taken before the real network; a
 * pin that matches too much ("eth1" and eth10) or nothing without saying so; the loopback dropped, so that ranks of a host
 * without network cannot meet; the loopback of another host tried, which is our own; a blob from the wire believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>

#include "transport/tcp.h"

/* "eth0 192.0.2.7/24", with " down" behind it. */
static struct hkt__tcp_nic nic(const char *text)
{
    struct hkt__tcp_nic nic = {0};
    char ip[64], state[8] = "";
    int bits;

    assert_true(sscanf(text, "%15s %63[^/]/%d %7s", nic.addr.name, ip, &bits, state) >= 3);
    nic.addr.family = strchr(ip, ':') != NULL ? 6 : 4;
    assert_int_equal(inet_pton(nic.addr.family == 4 ? AF_INET : AF_INET6, ip, nic.addr.ip), 1);
    nic.addr.prefix_bits = (uint8_t)bits;
    nic.up = strcmp(state, "down") != 0;
    return nic;
}

struct host {
    struct hkt__tcp_nic nics[32];
    int count;
};

static struct host host_of(const char *const *lines)
{
    struct host host = {.count = 0};

    for (; *lines != NULL; lines++)
        host.nics[host.count++] = nic(*lines);
    return host;
}

static const char *const server[] = {
    "lo 127.0.0.1/8", "docker0 172.17.0.1/16", "eth1 10.1.0.5/16 down", "eth0 192.0.2.7/24", "eth10 198.51.100.7/24",
    "eth0 fe80::1/64", "lo ::1/128", "eth0 2001:db8::7/64", "tun0 10.8.0.2/24", "eth2 169.254.3.4/16", NULL};

/* "name ip" of the chosen ones, separated by commas. */
static const char *chosen(const char *const *lines, const char *pin)
{
    static char text[1024];
    const struct host host = host_of(lines);
    struct hkt__tcp_addr addrs[HKT__TCP_ADDRS_MAX];
    int count = 0;
    size_t used = 0;

    text[0] = '\0';
    if (hkt__tcp_nics_choose(host.nics, host.count, pin, addrs, &count) != HKT_OK)
        return "none";
    for (int i = 0; i < count; i++) {
        char ip[64];

        inet_ntop(addrs[i].family == 4 ? AF_INET : AF_INET6, addrs[i].ip, ip, sizeof ip);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", i > 0 ? "," : "", addrs[i].name, ip);
    }
    return text;
}

static void real_networks_come_first_and_loopback_last(void **state)
{
    (void)state;
    assert_string_equal(chosen(server, ""), "eth0 192.0.2.7,eth10 198.51.100.7,eth0 2001:db8::7,eth2 169.254.3.4,"
                                            "docker0 172.17.0.1,tun0 10.8.0.2,lo 127.0.0.1,lo ::1");
    assert_string_equal(chosen(server, NULL), chosen(server, ""));
}

static void a_host_with_loopback_only_has_it(void **state)
{
    static const char *const lonely[] = {"lo 127.0.0.1/8", NULL}, *const nothing[] = {"eth0 192.0.2.1/24 down", NULL};

    (void)state;
    assert_string_equal(chosen(lonely, ""), "lo 127.0.0.1");
    assert_string_equal(chosen(nothing, ""), "none");
    assert_int_equal(hkt__error_here()->status, HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "eth0 192.0.2.1/24 (down)"));
}

static void a_service_address_on_lo_is_not_preferred(void **state)
{
    static const char *const lines[] = {"lo 203.0.113.9/32", "eth0 192.0.2.7/24", "lo 127.0.0.1/8", NULL};

    (void)state;
    assert_string_equal(chosen(lines, ""), "eth0 192.0.2.7,lo 203.0.113.9,lo 127.0.0.1");
}

static void pins_match_what_they_say(void **state)
{
    static const struct {
        const char *pin, *want;
    } rows[] = {
        {"eth0", "eth0 192.0.2.7,eth0 2001:db8::7"},
        {"eth10", "eth10 198.51.100.7"},
        {"=eth10", "eth10 198.51.100.7"},
        {"eth1", "eth10 198.51.100.7"}, /* eth1 itself is down: the name is a prefix then */
        {"=eth1", "none"},
        {"eth", "eth0 192.0.2.7,eth10 198.51.100.7,eth0 2001:db8::7,eth2 169.254.3.4"},
        {"docker0", "docker0 172.17.0.1"},
        {"lo", "lo 127.0.0.1,lo ::1"},
        {"127.0.0.1", "lo 127.0.0.1"},
        {"192.0.2.0/24", "eth0 192.0.2.7"},
        {"192.0.2.0/29", "eth0 192.0.2.7"},
        {"192.0.2.0/30", "none"},
        {"2001:db8::/32", "eth0 2001:db8::7"},
        {"0.0.0.0/0", "eth0 192.0.2.7,eth10 198.51.100.7,eth2 169.254.3.4,docker0 172.17.0.1,tun0 10.8.0.2,lo 127.0.0.1"},
        {"tun0,eth0", "eth0 192.0.2.7,eth0 2001:db8::7,tun0 10.8.0.2"},
        {"^eth,docker,tun", "lo 127.0.0.1,lo ::1"},
        {"wlan0", "none"},
        {"10.1.0.5", "none"},      /* down */
        {"fe80::/10", "none"},     /* link-local */
        {"192.0.2.0/99", "none"},  /* no network, and no such interface */
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *got = chosen(server, rows[i].pin);

        if (strcmp(got, rows[i].want) != 0)
            fail_msg("pin %s: %s, expected %s", rows[i].pin, got, rows[i].want);
    }
}

static void a_pin_that_matches_nothing_lists_what_there_is(void **state)
{
    (void)state;
    assert_string_equal(chosen(server, "wlan0"), "none");
    assert_int_equal(hkt__error_here()->status, HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_INTERFACE=wlan0"));
    assert_non_null(strstr(hkt_last_error(), "eth0 192.0.2.7/24"));
    assert_non_null(strstr(hkt_last_error(), "eth1 10.1.0.5/16 (down)"));
}

static void many_addresses_keep_a_loopback(void **state)
{
    struct host host = {.count = 0};
    struct hkt__tcp_addr addrs[HKT__TCP_ADDRS_MAX];
    int count;

    (void)state;
    for (int i = 0; i < 20; i++) {
        char text[64];

        snprintf(text, sizeof text, "eth%d 10.0.%d.1/24", i, i);
        host.nics[host.count++] = nic(text);
    }
    host.nics[host.count++] = nic("lo 127.0.0.1/8");
    host.nics[host.count++] = nic("lo ::1/128");
    assert_int_equal(hkt__tcp_nics_choose(host.nics, host.count, "", addrs, &count), HKT_OK);
    assert_int_equal(count, HKT__TCP_ADDRS_MAX);
    assert_string_equal(addrs[0].name, "eth0");
    assert_string_equal(addrs[HKT__TCP_ADDRS_MAX - 2].name, "eth6");
    assert_int_equal(addrs[HKT__TCP_ADDRS_MAX - 1].family, 4);
    assert_int_equal(addrs[HKT__TCP_ADDRS_MAX - 1].ip[0], 127);
}

static struct hkt__tcp_blob blob_of(const char *const *lines, uint64_t host_id)
{
    const struct host host = host_of(lines);
    struct hkt__tcp_blob blob = {.magic = HKT__TCP_MAGIC_BLOB, .version = HKT__TCP_VERSION, .host_id = host_id};
    int count = 0;

    assert_int_equal(hkt__tcp_nics_choose(host.nics, host.count, "", blob.addrs, &count), HKT_OK);
    blob.addr_count = (uint16_t)count;
    return blob;
}

static const char *route(const struct hkt__tcp_blob *own, const struct hkt__tcp_blob *peer)
{
    static char text[512];
    unsigned char order[HKT__TCP_ADDRS_MAX];
    const int count = hkt__tcp_route(own, peer, order);
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s/%d", i > 0 ? " " : "", peer->addrs[order[i]].name,
                                 peer->addrs[order[i]].family);
    return text;
}

static void routes(void **state)
{
    static const char *const a_lines[] = {"lo 127.0.0.1/8", "docker0 172.17.0.1/16", "eth0 192.0.2.7/24",
                                          "ib0 10.9.0.7/16", NULL};
    static const char *const b_lines[] = {"lo 127.0.0.1/8", "docker0 172.17.0.1/16", "eth0 198.51.100.8/24",
                                          "ib0 10.9.1.8/16", "eth0 2001:db8::8/64", NULL};
    const struct hkt__tcp_blob a = blob_of(a_lines, 1), b = blob_of(b_lines, 2), same = blob_of(b_lines, 1);

    (void)state;
    /* The shared network first; what both hosts call their own, last; another host's loopback never. */
    assert_string_equal(route(&a, &b), "ib0/4 eth0/4 eth0/6 docker0/4");
    assert_string_equal(route(&b, &a), "ib0/4 eth0/4 docker0/4");
    assert_string_equal(route(&a, &same), "lo/4 ib0/4 eth0/4 eth0/6 docker0/4");
}

static void a_blob_comes_back_and_damaged_ones_are_refused(void **state)
{
    const struct hkt__tcp_blob blob = blob_of(server, 77);
    const size_t size = hkt__tcp_blob_bytes(&blob);
    struct hkt__tcp_blob got, bad;

    (void)state;
    assert_true(size <= HKT__TP_BLOB_MAX);
    assert_true(hkt__tcp_blob_read(&blob, size, &got));
    assert_memory_equal(&got, &blob, size);
    for (size_t cut = 0; cut < size; cut++)
        assert_false(hkt__tcp_blob_read(&blob, cut, &got));
    bad = blob;
    bad.magic ^= 1;
    assert_false(hkt__tcp_blob_read(&bad, size, &got));
    bad = blob;
    bad.addr_count = HKT__TCP_ADDRS_MAX + 1;
    assert_false(hkt__tcp_blob_read(&bad, size, &got));
    bad = blob;
    bad.addrs[0].family = 5;
    assert_false(hkt__tcp_blob_read(&bad, size, &got));
    bad = blob;
    bad.addrs[0].prefix_bits = 33;
    assert_false(hkt__tcp_blob_read(&bad, size, &got));
    bad = blob;
    memset(bad.addrs[0].name, '\n', sizeof bad.addrs[0].name); /* neither ended nor printable */
    assert_true(hkt__tcp_blob_read(&bad, size, &got));
    assert_string_equal(got.addrs[0].name, "???????????????");
}

static void noise_is_no_blob_and_harms_nobody(void **state)
{
    unsigned char noise[HKT__TP_BLOB_MAX];
    struct hkt__tcp_blob valid = blob_of(server, 1), got;
    uint64_t x = 42;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        memcpy(noise, &valid, sizeof valid);
        for (int hits = round % 7; hits >= 0; hits--) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            noise[(x >> 33) % sizeof valid] = (unsigned char)(x >> 20);
        }
        if (hkt__tcp_blob_read(noise, hkt__tcp_blob_bytes(&valid), &got)) {
            unsigned char order[HKT__TCP_ADDRS_MAX];
            char text[HKT__TCP_TEXT_MAX];

            assert_in_range(hkt__tcp_route(&valid, &got, order), 0, HKT__TCP_ADDRS_MAX);
            for (int i = 0; i < got.addr_count; i++)
                hkt__tcp_addr_text(&got.addrs[i], text);
        }
    }
}

static void this_host_has_addresses(void **state)
{
    struct hkt__tcp_nic nics[HKT__TCP_NICS_MAX];
    int count = 0;

    (void)state;
    assert_int_equal(hkt__tcp_nics_list(nics, HKT__TCP_NICS_MAX, &count), HKT_OK);
    assert_true(count > 0);
    assert_true(hkt__tcp_host_id() == hkt__tcp_host_id());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_networks_come_first_and_loopback_last),
        cmocka_unit_test(a_host_with_loopback_only_has_it),
        cmocka_unit_test(a_service_address_on_lo_is_not_preferred),
        cmocka_unit_test(pins_match_what_they_say),
        cmocka_unit_test(a_pin_that_matches_nothing_lists_what_there_is),
        cmocka_unit_test(many_addresses_keep_a_loopback),
        cmocka_unit_test(routes),
        cmocka_unit_test(a_blob_comes_back_and_damaged_ones_are_refused),
        cmocka_unit_test(noise_is_no_blob_and_harms_nobody),
        cmocka_unit_test(this_host_has_addresses),
    };

    return cmocka_run_group_tests_name("tcp_addr", tests, NULL, NULL);
}
