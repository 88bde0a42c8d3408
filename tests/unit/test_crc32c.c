/* What could break: a wrong polynomial, bit order or final inversion (known vectors); the joining of the three streams of
 * the hardware version (every length around the block edges, against the portable version); unaligned input; a CRC taken
 * in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transport/crc32c.h"
#include "transport/transport.h"

static void expect_both(uint32_t want, const void *data, size_t bytes)
{
    assert_int_equal(hkt__crc32c(0, data, bytes), want);
    assert_int_equal(hkt__crc32c_portable(0, data, bytes), want);
}

/* RFC 3720, B.4, and the usual check value. */
static void known_vectors(void **state)
{
    unsigned char block[32];
    static const unsigned char read_command[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
        0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};

    (void)state;
    expect_both(0, "", 0);
    expect_both(0xe3069283u, "123456789", 9);
    memset(block, 0, sizeof block);
    expect_both(0x8a9136aau, block, sizeof block);
    memset(block, 0xff, sizeof block);
    expect_both(0x62a8ab43u, block, sizeof block);
    for (unsigned i = 0; i < sizeof block; i++)
        block[i] = (unsigned char)i;
    expect_both(0x46dd794eu, block, sizeof block);
    for (unsigned i = 0; i < sizeof block; i++)
        block[i] = (unsigned char)(31 - i);
    expect_both(0x113fdb5cu, block, sizeof block);
    expect_both(0xd9963a56u, read_command, sizeof read_command);
}

static unsigned char noise[16384 + 64];

static void fill_noise(void)
{
    uint64_t x = 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < sizeof noise; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        noise[i] = (unsigned char)(x >> 32);
    }
}

static void both_versions_agree(void **state)
{
    (void)state;
    fill_noise();
    for (size_t bytes = 0; bytes <= 16384; bytes += bytes < 70 || (bytes > 3060 && bytes < 3090) ||
                                                    (bytes > 6130 && bytes < 6160) ? 1 : 61)
        for (size_t shift = 0; shift < 9; shift++) {
            const uint32_t a = hkt__crc32c(7, noise + shift, bytes), b = hkt__crc32c_portable(7, noise + shift, bytes);

            if (a != b)
                fail_msg("bytes %zu shift %zu: %08x, portable %08x", bytes, shift, a, b);
        }
}

static void pieces_give_the_same(void **state)
{
    (void)state;
    fill_noise();
    const uint32_t whole = hkt__crc32c(0, noise, 10000);

    for (size_t cut = 0; cut <= 10000; cut += 97)
        assert_int_equal(hkt__crc32c(hkt__crc32c(0, noise, cut), noise + cut, 10000 - cut), whole);
}

static void one_flipped_bit_is_seen(void **state)
{
    (void)state;
    fill_noise();
    const uint32_t whole = hkt__crc32c(0, noise, 9000);

    for (size_t bit = 0; bit < 9000 * 8; bit += 41) {
        noise[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_not_equal(hkt__crc32c(0, noise, 9000), whole);
        noise[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_vectors),
        cmocka_unit_test(both_versions_agree),
        cmocka_unit_test(pieces_give_the_same),
        cmocka_unit_test(one_flipped_bit_is_seen),
    };

    return cmocka_run_group_tests_name("crc32c", tests, NULL, NULL);
}
