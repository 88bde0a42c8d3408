/* What could break: a name that does not parse back, a size that differs from C's, an op allowed where it has no
 * meaning (or refused where it has), an out-of-range enum read past a table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/types.h"

static void dtype_names_parse_back(void **state)
{
    (void)state;
    for (int i = 0; i < HKT_DTYPE_COUNT; i++) {
        enum hkt_dtype dtype = HKT_DTYPE_COUNT;

        assert_int_equal(hkt_dtype_parse(hkt_dtype_name((enum hkt_dtype)i), &dtype), HKT_OK);
        assert_int_equal(dtype, i);
    }
}

static void op_and_coll_names_parse_back(void **state)
{
    (void)state;
    for (int i = 0; i < HKT_OP_COUNT; i++) {
        enum hkt_op op = HKT_OP_COUNT;

        assert_int_equal(hkt_op_parse(hkt_op_name((enum hkt_op)i), &op), HKT_OK);
        assert_int_equal(op, i);
    }
    for (int i = 0; i < HKT_COLL_COUNT; i++) {
        enum hkt_coll coll = HKT_COLL_COUNT;

        assert_int_equal(hkt_coll_parse(hkt_coll_name((enum hkt_coll)i), &coll), HKT_OK);
        assert_int_equal(coll, i);
    }
}

static void aliases_are_known(void **state)
{
    static const struct {
        const char *text;
        enum hkt_dtype dtype;
    } cases[] = { { "int", HKT_INT32 }, { "char", HKT_INT8 }, { "f16", HKT_F16 },  { "bf16", HKT_BF16 },
                  { "f32", HKT_F32 },   { "f64", HKT_F64 },   { "float", HKT_F32 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum hkt_dtype dtype = HKT_DTYPE_COUNT;

        assert_int_equal(hkt_dtype_parse(cases[i].text, &dtype), HKT_OK);
        assert_int_equal(dtype, cases[i].dtype);
    }
}

static void unknown_names_fail_and_name_the_known(void **state)
{
    enum hkt_dtype dtype = HKT_F64;
    enum hkt_op op = HKT_MAX;
    enum hkt_coll coll = HKT_REDUCE;

    (void)state;
    assert_int_equal(hkt_dtype_parse("quad", &dtype), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "quad"));
    assert_non_null(strstr(hkt_last_error(), "bfloat16"));
    assert_int_equal(hkt_dtype_parse(NULL, &dtype), HKT_ERR_INVALID);
    assert_int_equal(hkt_dtype_parse("", &dtype), HKT_ERR_INVALID);
    assert_int_equal(hkt_dtype_parse("FLOAT", &dtype), HKT_ERR_INVALID);
    assert_int_equal(dtype, HKT_F64);
    assert_int_equal(hkt_op_parse("median", &op), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "lxor"));
    assert_int_equal(op, HKT_MAX);
    assert_int_equal(hkt_coll_parse("allreduce!", &coll), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "all_reduce"));
    assert_int_equal(coll, HKT_REDUCE);
}

static void sizes_are_those_of_c(void **state)
{
    (void)state;
    assert_int_equal(hkt_dtype_size(HKT_INT8), 1);
    assert_int_equal(hkt_dtype_size(HKT_UINT16), 2);
    assert_int_equal(hkt_dtype_size(HKT_F16), 2);
    assert_int_equal(hkt_dtype_size(HKT_BF16), 2);
    assert_int_equal(hkt_dtype_size(HKT_F32), sizeof(float));
    assert_int_equal(hkt_dtype_size(HKT_F64), sizeof(double));
    assert_int_equal(hkt_dtype_size(HKT_UINT64), 8);
    assert_int_equal(hkt_dtype_size(HKT_F8E4M3), 1);
    assert_int_equal(hkt_dtype_size(HKT_BOOL), 1);
}

static void values_out_of_range_are_answered(void **state)
{
    static const int wild[] = { -1, -1000000, 15, 16, 63, 1000000 };

    (void)state;
    for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) {
        assert_int_equal(hkt_dtype_size((enum hkt_dtype)wild[i]), 0);
        assert_string_equal(hkt_dtype_name((enum hkt_dtype)wild[i]), "?");
        assert_string_equal(hkt_op_name((enum hkt_op)wild[i]), "?");
        assert_string_equal(hkt_coll_name((enum hkt_coll)wild[i]), "?");
        assert_int_equal(hkt_op_check(HKT_SUM, (enum hkt_dtype)wild[i]), HKT_ERR_INVALID);
        assert_int_equal(hkt_op_check((enum hkt_op)wild[i], HKT_F32), HKT_ERR_INVALID);
    }
}

/* The whole table, by a rule written apart from the code: letters are ops allowed, in order of HKT_OP_TABLE. */
static void op_check_matches_the_contract(void **state)
{
    static const char integers[] = "sp<>abBxlLX", floats[] = "sp<>a", bools[] = "<>bBxlLX", all[] = "sp<>abBxlLX";

    (void)state;
    for (int dtype = 0; dtype < HKT_DTYPE_COUNT; dtype++) {
        const char *allowed = dtype < HKT_F16 ? integers : dtype == HKT_BOOL ? bools : floats;

        for (int op = 0; op < HKT_OP_COUNT; op++) {
            const enum hkt_status want = strchr(allowed, all[op]) != NULL ? HKT_OK : HKT_ERR_INVALID;

            assert_int_equal(hkt_op_check((enum hkt_op)op, (enum hkt_dtype)dtype), want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtype_names_parse_back),
        cmocka_unit_test(op_and_coll_names_parse_back),
        cmocka_unit_test(aliases_are_known),
        cmocka_unit_test(unknown_names_fail_and_name_the_known),
        cmocka_unit_test(sizes_are_those_of_c),
        cmocka_unit_test(values_out_of_range_are_answered),
        cmocka_unit_test(op_check_matches_the_contract),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
