/* Dividing by the number of ranks (AVG) and multiplying by a scalar (pre-multiplied sum). Floats have kernels;
 * integers, which no instruction set divides in vectors, are done here one by one. */
#include "device/formats.h"
#include "device/kernels.h"

#include <assert.h>

/* Integers of one size. Products wrap: formed in 64 unsigned bits, then cut. n >= 1: no quotient overflows. */
#define INTEGERS(bits)                                                                                         \
    static void divide_u##bits(char *x, size_t count, int n)                                                   \
    {                                                                                                          \
        for (size_t i = 0; i < count; ++i) {                                                                   \
            uint##bits##_t value;                                                                              \
                                                                                                               \
            memcpy(&value, x + i * sizeof value, sizeof value);                                                \
            value = (uint##bits##_t)(value / (uint64_t)n);                                                     \
            memcpy(x + i * sizeof value, &value, sizeof value);                                                \
        }                                                                                                      \
    }                                                                                                          \
    static void divide_i##bits(char *x, size_t count, int n)                                                   \
    {                                                                                                          \
        for (size_t i = 0; i < count; ++i) {                                                                   \
            int##bits##_t value;                                                                               \
                                                                                                               \
            memcpy(&value, x + i * sizeof value, sizeof value);                                                \
            value = (int##bits##_t)(value / n);                                                                \
            memcpy(x + i * sizeof value, &value, sizeof value);                                                \
        }                                                                                                      \
    }                                                                                                          \
    static void multiply_u##bits(char *dst, const char *src, size_t count, const void *scalar)                 \
    {                                                                                                          \
        uint##bits##_t value, factor;                                                                          \
                                                                                                               \
        memcpy(&factor, scalar, sizeof factor);                                                                \
        for (size_t i = 0; i < count; ++i) {                                                                   \
            memcpy(&value, src + i * sizeof value, sizeof value);                                              \
            value = (uint##bits##_t)((uint64_t)value * factor);                                                \
            memcpy(dst + i * sizeof value, &value, sizeof value);                                              \
        }                                                                                                      \
    }
INTEGERS(8)
INTEGERS(16)
INTEGERS(32)
INTEGERS(64)

static void divide_integers(char *x, size_t count, enum hkt_dtype dtype, int n)
{
    switch (dtype) {
    case HKT_INT8: divide_i8(x, count, n); break;
    case HKT_UINT8: divide_u8(x, count, n); break;
    case HKT_INT16: divide_i16(x, count, n); break;
    case HKT_UINT16: divide_u16(x, count, n); break;
    case HKT_INT32: divide_i32(x, count, n); break;
    case HKT_UINT32: divide_u32(x, count, n); break;
    case HKT_INT64: divide_i64(x, count, n); break;
    case HKT_UINT64: divide_u64(x, count, n); break;
    default: break; /* bool */
    }
}

void hkt__divide(void *x, size_t count, enum hkt_dtype dtype, int n)
{
    assert(n >= 1 && (unsigned)dtype < HKT_DTYPE_COUNT);
    hkt__scale_fn *divide = hkt__kernels_get(hkt__isa_best())->divide[dtype];

    if (divide != NULL)
        divide(x, x, count, n);
    else
        divide_integers(x, count, dtype, n);
}

void hkt__premultiply(void *dst, const void *src, size_t count, enum hkt_dtype dtype, const void *scalar)
{
    assert((unsigned)dtype < HKT_DTYPE_COUNT && dtype != HKT_BOOL);
    hkt__scale_fn *multiply = hkt__kernels_get(hkt__isa_best())->multiply[dtype];
    double factor;

    switch (dtype) {
    case HKT_INT8:
    case HKT_UINT8: multiply_u8(dst, src, count, scalar); break;
    case HKT_INT16:
    case HKT_UINT16: multiply_u16(dst, src, count, scalar); break;
    case HKT_INT32:
    case HKT_UINT32: multiply_u32(dst, src, count, scalar); break;
    case HKT_INT64:
    case HKT_UINT64: multiply_u64(dst, src, count, scalar); break;
    case HKT_F64:
        memcpy(&factor, scalar, sizeof factor);
        multiply(dst, src, count, factor);
        break;
    default:
        if (multiply != NULL)
            multiply(dst, src, count, hkt__to_f32(scalar, dtype));
        break;
    }
}
