/* What could break: a head or tail of an unaligned streaming copy lost or written twice beyond its end, the threshold
 * taking the wrong path, a copy onto itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/kernels.h"

#define GUARD 128

static unsigned char pattern(size_t i)
{
    return (unsigned char)(i * 131 + (i >> 8) * 17 + 5);
}

/* Copies `bytes` to a place `to_skew` bytes off a line, from one `from_skew` off; checks all of it and its
 * surroundings. kernels, spread NULL: hkt__copy_bytes. */
static void check_copy(const struct hkt__kernels *kernels, hkt__spread_fn *spread, size_t bytes, size_t to_skew, size_t from_skew)
{
    const size_t room = GUARD + 128 + bytes + GUARD;
    unsigned char *dst = malloc(room), *src = malloc(bytes + 64);

    assert_non_null(dst);
    assert_non_null(src);
    memset(dst, 0xa5, room);
    for (size_t i = 0; i < bytes; ++i)
        src[from_skew + i] = pattern(i);
    unsigned char *at = dst + GUARD + (64 - (uintptr_t)dst % 64) % 64 + to_skew;

    const void *const from[] = {src + from_skew};
    char *const to[] = {(char *)at};

    if (spread != NULL)
        spread(&(struct hkt__spread){.dsts = to, .srcs = from, .ndsts = 1, .nsrcs = 1, .count = bytes,
                                      .reach = (enum hkt__reach)(bytes % 3)});
    else if (kernels != NULL)
        kernels->copy_streaming(at, src + from_skew, bytes);
    else
        hkt__copy_bytes(at, src + from_skew, bytes, 1);
    for (unsigned char *p = dst; p < dst + room; ++p) {
        const int inside = p >= at && p < at + bytes;

        if (*p != (inside ? pattern((size_t)(p - at)) : 0xa5))
            fail_msg("%zu bytes, skews %zu and %zu: byte %td is 0x%02x", bytes, to_skew, from_skew, p - at, *p);
    }
    free(dst);
    free(src);
}

static void streaming_copies_exactly_the_bytes(void **state)
{
    static const size_t skews[] = {0, 1, 15, 31, 33, 63};
    static const size_t sizes[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 130, 200, 1000, 4099};

    (void)state;
    for (int isa = HKT__ISA_C; isa <= (int)hkt__isa_best(); ++isa) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
            for (size_t k = 0; k < sizeof skews / sizeof skews[0]; ++k) {
                if (isa > HKT__ISA_C)
                    check_copy(hkt__kernels_get((enum hkt__isa)isa), NULL, sizes[s], skews[k], skews[k] * 7 % 61);
                check_copy(NULL, hkt__spread_bytes_get((enum hkt__isa)isa), sizes[s], skews[k], skews[k] * 7 % 61);
            }
        }
    }
}

static void copies_around_the_threshold_are_exact(void **state)
{
    (void)state;
    check_copy(NULL, NULL, HKT__NT_BYTES - 1, 0, 0);
    check_copy(NULL, NULL, HKT__NT_BYTES, 3, 5);
    check_copy(NULL, NULL, HKT__NT_BYTES + 77, 63, 1);
    check_copy(NULL, NULL, 100, 1, 0);
}

static void copy_onto_itself_does_nothing(void **state)
{
    char bytes[] = "hocket";

    (void)state;
    hkt__copy_bytes(bytes, bytes, sizeof bytes, 0);
    hkt__copy_bytes(bytes, bytes, 0, 1);
    hkt__copy_bytes(NULL, NULL, 0, 1);
    assert_string_equal(bytes, "hocket");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streaming_copies_exactly_the_bytes),
        cmocka_unit_test(copies_around_the_threshold_are_exact),
        cmocka_unit_test(copy_onto_itself_does_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
