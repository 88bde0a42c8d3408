/* What could break: a wrong lane, head, tail or stride of the grid for one dtype and operation; a source that is not
 * aligned as dst is; dst read after it was written where it is a source too; a byte touched outside; a rounding, a NaN,
 * -0 or a subnormal other than the host's; rows of a strided copy; arguments that must be refused.
 *
 * Everything is compared with the host's kernels in plain C, bit for bit, the bytes around the result included. */
#include "device_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/kernels.h"
#include "kernels/kernels.h"

static const struct hkt__cuda_module *module;
static cudaStream_t stream;

/** Whether the call enqueued its kernel. Where only some kernels are there (PTX that was translated) it need not have. */
static bool is_enqueued(int rc)
{
#ifdef HKT__SOME_KERNELS
    if (rc == cudaErrorInvalidDeviceFunction)
        return false;
#endif
    must(rc);
    return true;
}

static bool is_small(void)
{
    return getenv("HOCKET_TEST_SMALL") != NULL;
}

/* --- Reductions ----------------------------------------------------------------------------------------------------- */

struct shape {
    size_t count;
    int nsrcs, in_place;          /* in_place: the source that is dst; -1: none */
    unsigned dst_shift, src_shift; /* in elements; source j is shifted by src_shift * (j + 1) */
    unsigned odd;                 /* bytes by which everything is shifted besides */
    int blocks_max;
};

static const struct shape shapes[] = {
    { 0, 2, -1, 0, 0, 0, 1 },   { 1, 1, -1, 0, 0, 0, 1 },   { 1, 2, -1, 3, 0, 0, 1 },    { 37, 3, 1, 0, 0, 0, 1 },
    { 37, 2, -1, 1, 1, 0, 2 },  { 129, 4, 3, 3, 1, 0, 1 },  { 1000, 5, -1, 5, 0, 0, 2 }, { 1000, 2, 0, 0, 0, 1, 1 },
    { 9001, 3, 0, 0, 0, 0, 2 }, { 40001, 2, 0, 1, 0, 0, 2 },
};

static void one_reduce(enum hkt_op op, enum hkt_dtype dtype, const struct shape *s)
{
    const size_t size = hkt_dtype_size(dtype), bytes = s->count * size;
    const struct hkt__kernel_on on = { stream, s->blocks_max };
    struct hkt__reduce_args args = { .count = s->count, .nsrcs = s->nsrcs };
    struct area dst = area_make(bytes, (unsigned)((s->dst_shift * size + s->odd) % 16)), srcs[8];
    const void *host_srcs[8];
    char what[160];

    args.dst = dst.data;
    for (int j = 0; j < s->nsrcs; ++j) {
        srcs[j] = j == s->in_place ? dst : area_make(bytes, (unsigned)((s->src_shift * (j + 1) * size + s->odd) % 16));
        random_elements(srcs[j].want, s->count, dtype);
        area_upload(&srcs[j], stream);
        args.srcs[j] = srcs[j].data;
        host_srcs[j] = srcs[j].want;
    }
    if (s->in_place < 0)
        area_upload(&dst, stream);
    if (is_enqueued(module->reduce(&args, op, dtype, &on)))
        hkt__reduce_get(op, dtype, HKT__ISA_C)(dst.want, host_srcs, s->nsrcs, s->count);
    snprintf(what, sizeof what, "%s of %s, count %zu, sources %d, in place %d, shifts %u %u %u", hkt_op_name(op),
             hkt_dtype_name(dtype), s->count, s->nsrcs, s->in_place, s->dst_shift, s->src_shift, s->odd);
    area_check(&dst, stream, what);
    for (int j = 0; j < s->nsrcs; ++j)
        if (j != s->in_place)
            area_free(&srcs[j]);
    area_free(&dst);
}

static void reductions_match_the_host(void **state)
{
    int pairs = 0;

    (void)state;
    for (int op = 0; op < HKT_OP_COUNT; ++op)
        for (int dtype = 0; dtype < HKT_DTYPE_COUNT; ++dtype) {
            if (hkt_op_check((enum hkt_op)op, (enum hkt_dtype)dtype) != HKT_OK)
                continue;
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
                if (!is_small() || i % 5 == (size_t)(op + dtype) % 5)
                    one_reduce((enum hkt_op)op, (enum hkt_dtype)dtype, &shapes[i]);
            ++pairs;
        }
    assert_int_equal(pairs, 14 * 5 + 8 * 6 + 8); /* sum prod avg min max; six on integers; bool's eight */
}

static void most_sources_at_once(void **state)
{
    const size_t count = 333;
    const struct hkt__kernel_on on = { stream, 1 };
    struct hkt__reduce_args args = { .count = count, .nsrcs = HKT__KERNEL_SRCS_MAX };
    struct area dst = area_make(count * 2, 0), all = area_make(count * 2 * HKT__KERNEL_SRCS_MAX, 0);
    const void *host_srcs[HKT__KERNEL_SRCS_MAX];

    (void)state;
    for (size_t i = 0; i < count * HKT__KERNEL_SRCS_MAX; ++i)
        hkt__from_f32(all.want + i * 2, HKT_BF16, (float)(random_bits() % 1000) / 64);
    for (int j = 0; j < HKT__KERNEL_SRCS_MAX; ++j) {
        args.srcs[j] = all.data + (size_t)j * count * 2;
        host_srcs[j] = all.want + (size_t)j * count * 2;
    }
    args.dst = dst.data;
    area_upload(&all, stream);
    area_upload(&dst, stream);
    must(module->reduce(&args, HKT_SUM, HKT_BF16, &on));
    hkt__reduce_get(HKT_SUM, HKT_BF16, HKT__ISA_C)(dst.want, host_srcs, args.nsrcs, count);
    area_check(&dst, stream, "64 sources");
    args.nsrcs = HKT__KERNEL_SRCS_MAX + 1;
    assert_int_equal(module->reduce(&args, HKT_SUM, HKT_BF16, &on), cudaErrorInvalidValue);
    area_free(&all);
    area_free(&dst);
}

/* --- Scaling -------------------------------------------------------------------------------------------------------- */

static void one_scale(enum hkt_dtype dtype, bool divides, size_t count, unsigned shift)
{
    const size_t size = hkt_dtype_size(dtype);
    const struct hkt__kernel_on on = { stream, 2 };
    const int n = divides ? (int)(random_bits() % 65536) + 1 : 0;
    struct hkt__scale_args args = { .count = count, .factor = n, .integer = (uint64_t)n };
    struct area x = area_make(count * size, shift);
    char what[80];
    uint64_t factor = 0;

    random_elements(x.want, count, dtype);
    area_upload(&x, stream);
    args.dst = x.data;
    args.src = x.data;
    if (divides) {
        if (is_enqueued(module->divide(&args, dtype, &on)))
            hkt__divide(x.want, count, dtype, n);
    } else {
        random_elements(&factor, 1, dtype);
        args.integer = factor;
        if (dtype == HKT_F64)
            memcpy(&args.factor, &factor, sizeof args.factor);
        else if (dtype >= HKT_F16)
            args.factor = hkt__to_f32(&factor, dtype);
        if (is_enqueued(module->multiply(&args, dtype, &on)))
            hkt__premultiply(x.want, x.want, count, dtype, &factor);
    }
    snprintf(what, sizeof what, "%s %s by %d, code %llx, count %zu", divides ? "divide" : "multiply", hkt_dtype_name(dtype),
             n, (unsigned long long)factor, count);
    area_check(&x, stream, what);
    area_free(&x);
}

static void scaling_matches_the_host(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < HKT_DTYPE_COUNT; ++dtype)
        for (int i = 0; i < (is_small() ? 2 : 8); ++i) {
            const size_t count = (size_t)(random_bits() % 3000);

            one_scale((enum hkt_dtype)dtype, true, count, i % 2 == 0 ? 0 : 5);
            if (dtype != HKT_BOOL)
                one_scale((enum hkt_dtype)dtype, false, count, i % 2 == 0 ? 8 : 3);
        }
}

/* --- Copies ------------------------------------------------------------------------------------------------------- */

static void one_copy(size_t row_bytes, size_t rows, size_t pitch, unsigned shift, bool packs)
{
    const struct hkt__kernel_on on = { stream, 3 };
    const size_t strided = rows == 0 ? 0 : (rows - 1) * pitch + row_bytes, packed = rows * row_bytes;
    struct area dst = area_make(packs ? packed : strided, shift), src = area_make(packs ? strided : packed, shift / 2);
    const struct hkt__copy_args args = { dst.data, src.data, row_bytes, rows, packs ? row_bytes : pitch,
                                         packs ? pitch : row_bytes };
    char what[120];

    area_upload(&src, stream);
    area_upload(&dst, stream);
    must(module->copy(&args, &on));
    for (size_t r = 0; r < rows; ++r)
        memcpy(dst.want + r * args.dst_pitch, src.want + r * args.src_pitch, row_bytes);
    snprintf(what, sizeof what, "copy of %zu rows of %zu bytes, pitch %zu, shift %u, %s", rows, row_bytes, pitch, shift,
             packs ? "packed" : "unpacked");
    area_check(&dst, stream, what);
    area_free(&src);
    area_free(&dst);
}

static void copies_pack_and_unpack(void **state)
{
    (void)state;
    for (int packs = 0; packs < 2; ++packs) {
        one_copy(0, 5, 16, 0, packs);
        one_copy(100, 0, 128, 0, packs);
        one_copy(1, 1, 1, 0, packs);
        one_copy(64, 33, 80, 0, packs);
        one_copy(7, 200, 11, 3, packs);
        one_copy(16384, 2, 16400, 4, packs);
        one_copy(50001, 3, 60000, 1, packs);
        one_copy(is_small() ? 70000 : 300007, 1, 400000, 0, packs);
    }
}

static void wrong_arguments_are_refused(void **state)
{
    const struct hkt__kernel_on on = { stream, 1 }, none = { stream, 0 };
    struct area x = area_make(64, 0);
    struct hkt__reduce_args args = { .dst = x.data, .count = 4, .nsrcs = 2, .srcs = { x.data, x.data } };
    const struct hkt__scale_args scale = { x.data, x.data, 4, 1, 1 };

    (void)state;
    assert_int_equal(module->abi, HKT__CUDA_ABI);
    area_upload(&x, stream);
    assert_int_equal(module->reduce(&args, HKT_BXOR, HKT_F32, &on), cudaErrorInvalidValue);
    assert_int_equal(module->reduce(&args, HKT_SUM, HKT_BOOL, &on), cudaErrorInvalidValue);
    assert_int_equal(module->reduce(&args, HKT_SUM, HKT_F32, &none), cudaErrorInvalidValue);
    args.nsrcs = 0;
    assert_int_equal(module->reduce(&args, HKT_SUM, HKT_F32, &on), cudaErrorInvalidValue);
    args.nsrcs = 1;
    args.count = SIZE_MAX / 2;
    assert_int_equal(module->reduce(&args, HKT_SUM, HKT_F32, &on), cudaErrorInvalidValue);
    assert_int_equal(module->multiply(&scale, HKT_BOOL, &on), cudaErrorInvalidValue);
    assert_int_equal(module->divide(&scale, HKT_BOOL, &on), cudaSuccess);
    area_check(&x, stream, "after calls that were refused");
    area_free(&x);
}

static int begin(void **state)
{
    (void)state;
    module = hkt__cuda_module();
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    return cudaStreamDestroy(stream) == cudaSuccess ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_match_the_host), cmocka_unit_test(most_sources_at_once),
        cmocka_unit_test(scaling_matches_the_host),  cmocka_unit_test(copies_pack_and_unpack),
        cmocka_unit_test(wrong_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
