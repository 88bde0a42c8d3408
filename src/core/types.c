/* Names, sizes and rules of the vocabulary in hocket/types.h. All from the X tables there, so nothing can drift apart;
 * only the spellings that people carry over from C and other libraries are listed here. */
#include "hocket/types.h"

#include <string.h>

#include "core/error.h"

struct name_row {
    const char *text;
    int value;
};

static const struct name_row dtype_names[] = {
#define DTYPE_NAME(name, value, bytes, text) { text, value },
    HKT_DTYPE_TABLE(DTYPE_NAME)
#undef DTYPE_NAME
};

static const struct name_row dtype_aliases[] = {
    { "char", HKT_INT8 },   { "short", HKT_INT16 },   { "int", HKT_INT32 },   { "long", HKT_INT64 },
    { "uchar", HKT_UINT8 }, { "ushort", HKT_UINT16 }, { "uint", HKT_UINT32 }, { "ulong", HKT_UINT64 },
    { "f16", HKT_F16 },     { "bf16", HKT_BF16 },     { "f32", HKT_F32 },     { "f64", HKT_F64 },
    { "float16", HKT_F16 }, { "float32", HKT_F32 },   { "float64", HKT_F64 },
};

static const struct name_row op_names[] = {
#define OP_NAME(name, value, text) { text, value },
    HKT_OP_TABLE(OP_NAME)
#undef OP_NAME
};

static const struct name_row coll_names[] = {
#define COLL_NAME(name, value, text) { text, value },
    HKT_COLL_TABLE(COLL_NAME)
#undef COLL_NAME
};

#define ROWS(table) (sizeof(table) / sizeof(table)[0])

_Static_assert(ROWS(dtype_names) == HKT_DTYPE_COUNT, "dtype values must be 0, 1, 2, ...");
_Static_assert(ROWS(op_names) == HKT_OP_COUNT, "operation values must be 0, 1, 2, ...");
_Static_assert(ROWS(coll_names) == HKT_COLL_COUNT, "collective values must be 0, 1, 2, ...");

static const char *name_of(const struct name_row *rows, size_t count, int value)
{
    return value >= 0 && (size_t)value < count ? rows[value].text : "?";
}

/* Value of a name, or -1. */
static int value_of(const struct name_row *rows, size_t count, const char *text)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].text, text) == 0)
            return rows[i].value;
    return -1;
}

/* "there is no <what> "<text>"; known: a, b, c" */
static enum hkt_status no_such(const char *what, const char *text, const struct name_row *rows, size_t count)
{
    char known[512] = "";
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        const size_t bytes = strlen(rows[i].text);

        if (used + bytes + 3 > sizeof known)
            break;
        if (used > 0) {
            memcpy(known + used, ", ", 2);
            used += 2;
        }
        memcpy(known + used, rows[i].text, bytes + 1);
        used += bytes;
    }
    return hkt__fail(HKT_ERR_INVALID, "there is no %s \"%.64s\"; known: %s", what, text != NULL ? text : "", known);
}

size_t hkt_dtype_size(enum hkt_dtype dtype)
{
    static const unsigned char sizes[] = {
#define DTYPE_SIZE(name, value, bytes, text) bytes,
        HKT_DTYPE_TABLE(DTYPE_SIZE)
#undef DTYPE_SIZE
    };

    return (int)dtype >= 0 && (size_t)dtype < ROWS(sizes) ? sizes[dtype] : 0;
}

const char *hkt_dtype_name(enum hkt_dtype dtype)
{
    return name_of(dtype_names, ROWS(dtype_names), (int)dtype);
}

const char *hkt_op_name(enum hkt_op op)
{
    return name_of(op_names, ROWS(op_names), (int)op);
}

const char *hkt_coll_name(enum hkt_coll coll)
{
    return name_of(coll_names, ROWS(coll_names), (int)coll);
}

enum hkt_status hkt_dtype_parse(const char *text, enum hkt_dtype *out_dtype)
{
    int value = text != NULL ? value_of(dtype_names, ROWS(dtype_names), text) : -1;

    if (value < 0 && text != NULL)
        value = value_of(dtype_aliases, ROWS(dtype_aliases), text);
    if (value < 0)
        return no_such("dtype", text, dtype_names, ROWS(dtype_names));
    *out_dtype = (enum hkt_dtype)value;
    return HKT_OK;
}

enum hkt_status hkt_op_parse(const char *text, enum hkt_op *out_op)
{
    const int value = text != NULL ? value_of(op_names, ROWS(op_names), text) : -1;

    if (value < 0)
        return no_such("operation", text, op_names, ROWS(op_names));
    *out_op = (enum hkt_op)value;
    return HKT_OK;
}

enum hkt_status hkt_coll_parse(const char *text, enum hkt_coll *out_coll)
{
    const int value = text != NULL ? value_of(coll_names, ROWS(coll_names), text) : -1;

    if (value < 0)
        return no_such("collective", text, coll_names, ROWS(coll_names));
    *out_coll = (enum hkt_coll)value;
    return HKT_OK;
}

static int is_float(enum hkt_dtype dtype)
{
    return dtype == HKT_F16 || dtype == HKT_BF16 || dtype == HKT_F32 || dtype == HKT_F64 || dtype == HKT_F8E4M3
           || dtype == HKT_F8E5M2;
}

enum hkt_status hkt_op_check(enum hkt_op op, enum hkt_dtype dtype)
{
    if (hkt_dtype_size(dtype) == 0)
        return hkt__fail(HKT_ERR_INVALID, "dtype %d does not exist; the dtypes are 0 to %d", (int)dtype,
                         HKT_DTYPE_COUNT - 1);
    if ((int)op < 0 || op >= HKT_OP_COUNT)
        return hkt__fail(HKT_ERR_INVALID, "operation %d is not a built-in one; these are 0 to %d", (int)op,
                         HKT_OP_COUNT - 1);
    if (op >= HKT_BAND && is_float(dtype))
        return hkt__fail(HKT_ERR_INVALID,
                         "%s is not defined on %s: bitwise and logical operations take integers and "
                         "bool only",
                         hkt_op_name(op), hkt_dtype_name(dtype));
    if (dtype == HKT_BOOL && (op == HKT_SUM || op == HKT_PROD || op == HKT_AVG))
        return hkt__fail(HKT_ERR_INVALID,
                         "%s is not defined on bool: use lor, land, lxor, min or max, or a uint8 buffer",
                         hkt_op_name(op));
    return HKT_OK;
}
