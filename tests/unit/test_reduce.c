/* What could break: a wrong lane, tail or overlap in one instruction set for one dtype and operation; a source read
 * after dst, which may be that source, was written; a byte touched outside the buffers; a NaN, -0 or subnormal
 * treated differently by a faster version; 16- or 8-bit floats rounded at every source; signed overflow; a truth value
 * that is neither 0 nor 1, of one source too.
 *
 * Plain C is compared with arithmetic done here; every other instruction set with plain C, bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/kernels.h"

#define SEED UINT64_C(20260117)
#define SOURCES_MAX 17
#define COUNT_MAX 1000
#define GUARD 64
#define AREA (GUARD + 64 + COUNT_MAX * 8 + GUARD) /* guard, room for misalignment, elements, guard */

static uint64_t random_state = SEED;

/* splitmix64 */
static uint64_t random_bits(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Codes of a floating dtype that matter: zeros, subnormals, ones, the largest, infinities and NaNs of both signs. */
struct layout {
    int bits, mantissa_bits;
    uint64_t one, last_finite, inf, nan; /* inf 0: there is none */
};

static const struct layout *layout_of(enum hkt_dtype dtype)
{
    static const struct layout layouts[HKT_DTYPE_COUNT] = {
        [HKT_F16] = {16, 10, 0x3c00, 0x7bff, 0x7c00, 0x7e00},
        [HKT_BF16] = {16, 7, 0x3f80, 0x7f7f, 0x7f80, 0x7fc0},
        [HKT_F8E4M3] = {8, 3, 0x38, 0x7e, 0, 0x7f},
        [HKT_F8E5M2] = {8, 2, 0x3c, 0x7b, 0x7c, 0x7e},
        [HKT_F32] = {32, 23, 0x3f800000, 0x7f7fffff, 0x7f800000, 0x7fc00000},
        [HKT_F64] = {64, 52, UINT64_C(0x3ff0000000000000), UINT64_C(0x7fefffffffffffff), UINT64_C(0x7ff0000000000000),
                     UINT64_C(0x7ff8000000000000)},
    };

    return layouts[dtype].bits != 0 ? &layouts[dtype] : NULL;
}

static uint64_t special_code(const struct layout *l)
{
    const uint64_t r = random_bits(), normal_min = UINT64_C(1) << l->mantissa_bits;
    const uint64_t codes[] = {0, 1, normal_min - 1, normal_min, l->one, l->last_finite, l->inf, l->nan,
                              l->last_finite + 2 + r % (normal_min / 4 + 1), (UINT64_C(1) << (l->bits - 1)) - 1};

    return codes[r / 1024 % 10] | (r >> 63) << (l->bits - 1);
}

/* One third any bits, one third numbers of moderate size, one third the codes above. */
static uint64_t random_code(enum hkt_dtype dtype)
{
    const struct layout *l = layout_of(dtype);
    const uint64_t r = random_bits();

    if (dtype == HKT_BOOL) /* any byte but 0 is true */
        return r & 1 ? r >> 8 & 0xff : 0;
    if (l == NULL)
        return r % 4 == 0 ? (uint64_t)((int64_t)(r >> 8) % 3 - 1) : r % 4 == 1 ? UINT64_C(1) << (r >> 8) % 64 : r;
    if (r % 3 == 0)
        return r >> (64 - l->bits);
    if (r % 3 == 1) { /* up to two binades below one, or above */
        const uint64_t binade = UINT64_C(1) << l->mantissa_bits;

        return (l->one - 2 * binade + (random_bits() & (4 * binade - 1))) | (r >> 63) << (l->bits - 1);
    }
    return special_code(l);
}

static void fill(void *buffer, size_t count, enum hkt_dtype dtype)
{
    const size_t size = hkt_dtype_size(dtype);

    for (size_t i = 0; i < count; ++i) {
        const uint64_t code = random_code(dtype);

        memcpy((char *)buffer + i * size, &code, size);
    }
}

/* --- Plain C against arithmetic done here ------------------------------------------------------------------- */

static uint64_t code_at(const void *buffer, size_t i, enum hkt_dtype dtype)
{
    const size_t size = hkt_dtype_size(dtype);
    uint64_t code = 0;

    memcpy(&code, (const char *)buffer + i * size, size);
    return code;
}

static double value_of(uint64_t code, enum hkt_dtype dtype)
{
    double value;

    if (dtype != HKT_F64)
        return (double)hkt__to_f32(&code, dtype);
    memcpy(&value, &code, sizeof value);
    return value;
}

/* The value as the dtype holds it; one NaN for all. */
static uint64_t code_of(double value, enum hkt_dtype dtype)
{
    const float narrow = (float)value;
    uint64_t code = 0;

    if (isnan(value))
        return layout_of(dtype)->nan;
    if (dtype == HKT_F64)
        memcpy(&code, &value, sizeof value);
    else
        hkt__from_f32(&code, dtype, narrow);
    return code;
}

static uint64_t float_min_max(enum hkt_op op, enum hkt_dtype dtype, uint64_t a, uint64_t b)
{
    const double x = value_of(a, dtype), y = value_of(b, dtype);
    const uint64_t sign = UINT64_C(1) << (layout_of(dtype)->bits - 1);

    if (isnan(x) || isnan(y))
        return layout_of(dtype)->nan;
    if (x == 0 && y == 0)
        return op == HKT_MIN ? (a & sign) | (b & sign) : a & b & sign;
    return (x < y) == (op == HKT_MIN) ? a : b;
}

/* One step of a floating sum or product. In f64 the exact sum of two floats is rounded so finely that rounding it
 * again to f32 gives what f32 arithmetic gives (53 >= 2 * 24 + 2 bits: Figueroa, 1995). */
static double float_step(enum hkt_op op, enum hkt_dtype dtype, double x, double y)
{
    const double result = op == HKT_PROD ? x * y : x + y;

    return dtype == HKT_F64 ? result : (double)(float)result;
}

/* Integer result, cut to the size by the caller. */
static uint64_t integer_step(enum hkt_op op, bool is_signed, int bits, uint64_t a, uint64_t b)
{
    const int64_t sa = (int64_t)(a << (64 - bits)), sb = (int64_t)(b << (64 - bits));
    const bool less = is_signed ? sa < sb : a < b;

    switch (op) {
    case HKT_SUM:
    case HKT_AVG: return a + b;
    case HKT_PROD: return a * b;
    case HKT_MIN: return less ? a : b;
    case HKT_MAX: return less ? b : a;
    case HKT_BAND: return a & b;
    case HKT_BOR: return a | b;
    case HKT_BXOR: return a ^ b;
    case HKT_LAND: return a & b; /* truth values */
    case HKT_LOR: return a | b;
    case HKT_LXOR: return a ^ b;
    default: fail_msg("operation %d?", op); return 0;
    }
}

static uint64_t expected_code(enum hkt_op op, enum hkt_dtype dtype, const void *const *srcs, int nsrcs, size_t i)
{
    const bool is_signed = dtype == HKT_INT8 || dtype == HKT_INT16 || dtype == HKT_INT32 || dtype == HKT_INT64;
    const int bits = (int)(8 * hkt_dtype_size(dtype));
    const uint64_t mask = ~UINT64_C(0) >> (64 - bits);
    uint64_t acc = code_at(srcs[0], i, dtype);

    if (dtype == HKT_BOOL || op >= HKT_LAND) { /* truth values, of a single source too */
        acc = acc != 0;
        for (int j = 1; j < nsrcs; ++j)
            acc = integer_step(op, false, bits, acc, code_at(srcs[j], i, dtype) != 0);
    } else if (layout_of(dtype) == NULL) {
        for (int j = 1; j < nsrcs; ++j)
            acc = integer_step(op, is_signed, bits, acc, code_at(srcs[j], i, dtype)) & mask;
    } else if (op == HKT_MIN || op == HKT_MAX) {
        for (int j = 1; j < nsrcs; ++j)
            acc = float_min_max(op, dtype, acc, code_at(srcs[j], i, dtype));
    } else if (nsrcs > 1) {
        double sum = value_of(acc, dtype);

        for (int j = 1; j < nsrcs; ++j)
            sum = float_step(op, dtype, sum, value_of(code_at(srcs[j], i, dtype), dtype));
        acc = code_of(sum, dtype);
    }
    return acc;
}

#define FOR_EACH_PAIR(op, dtype)                                                                               \
    for (int op = 0; op < HKT_OP_COUNT; ++op)                                                                  \
        for (int dtype = 0; dtype < HKT_DTYPE_COUNT; ++dtype)                                                  \
            if (hkt_op_check((enum hkt_op)op, (enum hkt_dtype)dtype) == HKT_OK)

static void plain_c_matches_arithmetic(void **state)
{
    static const int source_counts[] = {1, 2, 3, 9};
    static char sources[9][256 * 8], result[256 * 8];
    const void *srcs[9];

    (void)state;
    FOR_EACH_PAIR(op, dtype) {
        hkt__reduce_fn *reduce = hkt__reduce_get((enum hkt_op)op, (enum hkt_dtype)dtype, HKT__ISA_C);

        for (size_t k = 0; k < sizeof source_counts / sizeof source_counts[0]; ++k) {
            for (int j = 0; j < 9; ++j) {
                fill(sources[j], 256, (enum hkt_dtype)dtype);
                srcs[j] = sources[j];
            }
            reduce(result, srcs, source_counts[k], 256);
            for (size_t i = 0; i < 256; ++i) {
                const uint64_t got = code_at(result, i, (enum hkt_dtype)dtype);
                const uint64_t want = expected_code((enum hkt_op)op, (enum hkt_dtype)dtype, srcs, source_counts[k], i);

                if (got != want)
                    fail_msg("%s of %d %s: 0x%llx, want 0x%llx (first two: 0x%llx 0x%llx; seed %llu)",
                             hkt_op_name((enum hkt_op)op), source_counts[k], hkt_dtype_name((enum hkt_dtype)dtype),
                             (unsigned long long)got, (unsigned long long)want,
                             (unsigned long long)code_at(sources[0], i, (enum hkt_dtype)dtype),
                             (unsigned long long)code_at(sources[1], i, (enum hkt_dtype)dtype),
                             (unsigned long long)SEED);
            }
        }
    }
}

static void one_rounding_at_the_end(void **state)
{
    /* In f16 2048 + 1 + 1 is 2050 in one sum, 2048 when rounded each time; likewise the others. */
    static const struct { enum hkt_dtype dtype; float big, small, want; } cases[] = {
        {HKT_F16, 2048, 1, 2050}, {HKT_BF16, 256, 1, 258}, {HKT_F8E4M3, 16, 1, 18}, {HKT_F8E5M2, 8, 1, 10}};

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; ++c) {
        for (int isa = 0; isa <= (int)hkt__isa_best(); ++isa) {
            uint16_t a = 0, b = 0, got = 0;
            const void *srcs[] = {&a, &b, &b};

            hkt__from_f32(&a, cases[c].dtype, cases[c].big);
            hkt__from_f32(&b, cases[c].dtype, cases[c].small);
            hkt__reduce_get(HKT_SUM, cases[c].dtype, (enum hkt__isa)isa)(&got, srcs, 3, 1);
            assert_true(hkt__to_f32(&got, cases[c].dtype) == cases[c].want);
        }
    }
}

static void kernels_exist_exactly_where_the_operation_is_defined(void **state)
{
    (void)state;
    for (int isa = 0; isa < HKT__ISA_COUNT; ++isa) {
        for (int op = 0; op < HKT_OP_COUNT; ++op) {
            for (int dtype = 0; dtype < HKT_DTYPE_COUNT; ++dtype) {
                const bool is_defined = hkt_op_check((enum hkt_op)op, (enum hkt_dtype)dtype) == HKT_OK;
                hkt__reduce_fn *reduce = hkt__reduce_get((enum hkt_op)op, (enum hkt_dtype)dtype, (enum hkt__isa)isa);

                if ((reduce != NULL) != is_defined)
                    fail_msg("%s on %s: %s", hkt_op_name((enum hkt_op)op), hkt_dtype_name((enum hkt_dtype)dtype),
                             is_defined ? "no kernel" : "a kernel, but not defined");
                if (isa == HKT__ISA_C || (op != HKT_SUM && op != HKT_AVG))
                    assert_null(hkt__spread_get((enum hkt_op)op, (enum hkt_dtype)dtype, (enum hkt__isa)isa));
                else if (dtype != HKT_BOOL && dtype != HKT_F8E4M3 && dtype != HKT_F8E5M2)
                    assert_non_null(hkt__spread_get((enum hkt_op)op, (enum hkt_dtype)dtype, (enum hkt__isa)isa));
            }
        }
    }
    assert_null(hkt__reduce_get(HKT_OP_USER, HKT_F32, HKT__ISA_C));
    assert_null(hkt__reduce_get((enum hkt_op)-1, HKT_F32, HKT__ISA_C));
    assert_null(hkt__reduce_get(HKT_SUM, HKT_DTYPE_COUNT, HKT__ISA_C));
}

/* --- Every instruction set against plain C ------------------------------------------------------------------ */

static unsigned char areas[SOURCES_MAX][AREA], want_area[AREA];
static _Alignas(64) unsigned char work[AREA];

/* One call of a kernel, by its inputs. alias: index of the source that dst is, or -1. */
struct call {
    enum hkt_op op;
    enum hkt_dtype dtype;
    enum hkt__isa isa;
    int nsrcs, alias;
    size_t count, skew;
};

static size_t skewed(const struct call *call, int j)
{
    return GUARD + call->skew * (size_t)(j + 1) % 61;
}

static void require_want(const struct call *call, const char *what, const unsigned char *have, size_t at, size_t bytes)
{
    for (size_t i = 0; i < at + bytes + GUARD; ++i) {
        if (have[i] != want_area[i])
            fail_msg("%s%s of %d x %zu %s, %s, skew %zu, dst is source %d: byte %td of %zu is 0x%02x, plain C gives "
                     "0x%02x (seed %llu)",
                     what, hkt_op_name(call->op), call->nsrcs, call->count, hkt_dtype_name(call->dtype),
                     hkt__isa_name(call->isa), call->skew, call->alias, (ptrdiff_t)(i - at), bytes, have[i],
                     want_area[i], (unsigned long long)SEED);
    }
}

/* The same to several places, of which the first is work. */
static void check_spread(const struct call *call, const void *const *srcs, enum hkt__reach reach, size_t at, size_t bytes)
{
    static _Alignas(64) unsigned char others[2][AREA];
    _Static_assert(AREA % 64 == 0, "all places lie alike");
    char *const dsts[] = {(char *)work + at, (char *)others[0] + at, (char *)others[1] + at};
    const struct hkt__spread spread = {.dsts = dsts, .srcs = srcs, .ndsts = 1 + ((int)reach + call->nsrcs) % 3,
                                       .nsrcs = call->nsrcs, .count = call->count, .reach = reach};

    for (int m = 1; m < spread.ndsts; ++m)
        memset(others[m - 1], 0xa5, at + bytes + GUARD);
    hkt__spread_get(call->op, call->dtype, call->isa)(&spread);
    hkt__stores_settle();
    require_want(call, "spread ", work, at, bytes);
    for (int m = 1; m < spread.ndsts; ++m)
        require_want(call, "another place of spread ", others[m - 1], at, bytes);
}

static void check_call(const struct call *call)
{
    const size_t bytes = call->count * hkt_dtype_size(call->dtype);
    const void *srcs[SOURCES_MAX];
    const size_t at = call->alias >= 0 ? skewed(call, call->alias) : GUARD + call->skew * 7 % 61;

    for (int j = 0; j < call->nsrcs; ++j)
        srcs[j] = areas[j] + skewed(call, j);
    memset(want_area, 0xa5, at + bytes + GUARD);
    hkt__reduce_get(call->op, call->dtype, HKT__ISA_C)(want_area + at, srcs, call->nsrcs, call->count);
    for (int way = -1; way <= (int)HKT__REACH_PAST; ++way) {
        memset(work, 0xa5, at + bytes + GUARD);
        if (call->alias >= 0) {
            memcpy(work + at, areas[call->alias] + skewed(call, call->alias), bytes);
            srcs[call->alias] = work + at;
        }
        if (way >= 0) {
            check_spread(call, srcs, (enum hkt__reach)way, at, bytes);
            continue;
        }
        hkt__reduce_get(call->op, call->dtype, call->isa)(work + at, srcs, call->nsrcs, call->count);
        require_want(call, "", work, at, bytes);
        /* AVG spreads as SUM does. */
        if (call->op != HKT_SUM || hkt__spread_get(call->op, call->dtype, call->isa) == NULL || call->nsrcs == 1 || call->nsrcs > 8)
            return;
    }
}

static void every_instruction_set_gives_the_bits_of_plain_c(void **state)
{
    static const int source_counts[] = {1, 2, 3, 5, 8, 9, 17};
    static const size_t counts[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 100, COUNT_MAX};
    static const size_t skews[] = {0, 1, 8};

    (void)state;
    FOR_EACH_PAIR(op, dtype) {
        struct call call = {.op = (enum hkt_op)op, .dtype = (enum hkt_dtype)dtype};

        for (size_t s = 0; s < sizeof skews / sizeof skews[0]; ++s) {
            call.skew = skews[s];
            for (int j = 0; j < SOURCES_MAX; ++j)
                fill(areas[j] + skewed(&call, j), COUNT_MAX, call.dtype);
            for (int isa = 0; isa <= (int)hkt__isa_best(); ++isa) {
                for (size_t k = 0; k < sizeof source_counts / sizeof source_counts[0]; ++k) {
                    for (size_t n = 0; n < sizeof counts / sizeof counts[0]; ++n) {
                        call.isa = (enum hkt__isa)isa;
                        call.nsrcs = source_counts[k];
                        call.count = counts[n];
                        call.alias = -1;
                        check_call(&call);
                        call.alias = 0;
                        check_call(&call);
                        call.alias = call.nsrcs - 1;
                        check_call(&call);
                    }
                }
            }
        }
    }
}

/* All counts up to several vectors, where each way to end a buffer occurs. */
static void every_small_count_gives_the_bits_of_plain_c(void **state)
{
    (void)state;
    FOR_EACH_PAIR(op, dtype) {
        struct call call = {.op = (enum hkt_op)op, .dtype = (enum hkt_dtype)dtype, .skew = 3};

        for (int j = 0; j < 3; ++j)
            fill(areas[j] + skewed(&call, j), COUNT_MAX, call.dtype);
        for (int isa = 0; isa <= (int)hkt__isa_best(); ++isa) {
            call.isa = (enum hkt__isa)isa;
            for (call.nsrcs = 2; call.nsrcs <= 3; ++call.nsrcs) {
                for (call.count = 0; call.count * hkt_dtype_size(call.dtype) <= 64 * 6; ++call.count) {
                    for (call.alias = -1; call.alias < 2; ++call.alias)
                        check_call(&call);
                }
            }
        }
    }
}

/* Every pair of codes of the 8-bit types, and every 16-bit code with a few others. */
static void every_pair_of_small_floats_gives_the_bits_of_plain_c(void **state)
{
    static unsigned char a[131072], b[131072], want[131072], got[131072];
    const void *srcs[] = {a, b};

    (void)state;
    FOR_EACH_PAIR(op, dtype) {
        const struct layout *l = layout_of((enum hkt_dtype)dtype);

        if (l == NULL || l->bits > 16)
            continue;
        for (int round = 0; round < (l->bits == 8 ? 1 : 24); ++round) {
            const uint64_t any = random_code((enum hkt_dtype)dtype);
            const uint16_t other = (uint16_t)(round % 2 == 0 ? special_code(l) : any);

            for (uint32_t i = 0; i < 65536; ++i) {
                const uint16_t code = (uint16_t)i;

                if (l->bits == 8) {
                    a[i] = (unsigned char)(i >> 8);
                    b[i] = (unsigned char)i;
                } else {
                    memcpy(a + 2 * i, &code, 2);
                    memcpy(b + 2 * i, &other, 2);
                }
            }
            hkt__reduce_get((enum hkt_op)op, (enum hkt_dtype)dtype, HKT__ISA_C)(want, srcs, 2, 65536);
            for (int isa = 1; isa <= (int)hkt__isa_best(); ++isa) {
                hkt__reduce_get((enum hkt_op)op, (enum hkt_dtype)dtype, (enum hkt__isa)isa)(got, srcs, 2, 65536);
                if (memcmp(want, got, (size_t)65536 * (l->bits / 8)) != 0)
                    fail_msg("%s on %s differs under %s (other operand 0x%x)", hkt_op_name((enum hkt_op)op),
                             hkt_dtype_name((enum hkt_dtype)dtype), hkt__isa_name((enum hkt__isa)isa), other);
            }
        }
    }
}

static void min_and_max_do_not_depend_on_the_order(void **state)
{
    static unsigned char a[4096 * 8], b[4096 * 8], ab[4096 * 8], ba[4096 * 8];

    (void)state;
    FOR_EACH_PAIR(op, dtype) {
        const void *forth[] = {a, b}, *back[] = {b, a};

        fill(a, 4096, (enum hkt_dtype)dtype);
        fill(b, 4096, (enum hkt_dtype)dtype);
        for (int isa = 0; isa <= (int)hkt__isa_best(); ++isa) {
            hkt__reduce_fn *reduce = hkt__reduce_get((enum hkt_op)op, (enum hkt_dtype)dtype, (enum hkt__isa)isa);

            reduce(ab, forth, 2, 4096);
            reduce(ba, back, 2, 4096);
            assert_memory_equal(ab, ba, 4096 * hkt_dtype_size((enum hkt_dtype)dtype));
        }
    }
}

/* Two pages of which the second cannot be touched. */
static unsigned char *page_before_the_end(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    return pages;
}

static void nothing_is_read_or_written_past_the_end(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages[4];

    (void)state;
    for (int j = 0; j < 4; ++j)
        pages[j] = page_before_the_end();
    FOR_EACH_PAIR(op, dtype) {
        for (int isa = 0; isa <= (int)hkt__isa_best(); ++isa) {
            for (size_t count = 1; count <= 100; count += count < 40 ? 1 : 13) {
                unsigned char *end[4];

                for (int j = 0; j < 4; ++j)
                    end[j] = pages[j] + page - count * hkt_dtype_size((enum hkt_dtype)dtype);
                const void *srcs[] = {end[0], end[1], end[2]};

                hkt__reduce_get((enum hkt_op)op, (enum hkt_dtype)dtype, (enum hkt__isa)isa)(end[3], srcs, 3, count);
                hkt__spread_fn *kernel = hkt__spread_get((enum hkt_op)op, (enum hkt_dtype)dtype, (enum hkt__isa)isa);
                char *const dsts[] = {(char *)end[3], (char *)end[2]};

                if (kernel != NULL)
                    kernel(&(struct hkt__spread){.dsts = dsts, .srcs = srcs, .ndsts = 2, .nsrcs = 3, .count = count});
            }
        }
    }
    for (int j = 0; j < 4; ++j)
        munmap(pages[j], 2 * page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_c_matches_arithmetic),
        cmocka_unit_test(one_rounding_at_the_end),
        cmocka_unit_test(kernels_exist_exactly_where_the_operation_is_defined),
        cmocka_unit_test(every_instruction_set_gives_the_bits_of_plain_c),
        cmocka_unit_test(every_small_count_gives_the_bits_of_plain_c),
        cmocka_unit_test(every_pair_of_small_floats_gives_the_bits_of_plain_c),
        cmocka_unit_test(min_and_max_do_not_depend_on_the_order),
        cmocka_unit_test(nothing_is_read_or_written_past_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
