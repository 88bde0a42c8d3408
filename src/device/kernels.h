/* What each instruction set provides, and the one table that says which kernel serves which operation and dtype. The
 * table names kernels (sum_f32); kernels_c.c and kernels_vec.h each define a static function of every such name. */
#ifndef HOCKET_DEVICE_KERNELS_H
#define HOCKET_DEVICE_KERNELS_H

#include "device/device.h"

/** dst[i] = src[i] * factor or src[i] / factor, floating dtypes; f64 computes in f64, all others in f32 (which holds
 *  `factor` exactly), rounded once. dst may be src. */
typedef void hkt__scale_fn(void *dst, const void *src, size_t count, double factor);

struct hkt__kernels {
    hkt__reduce_fn *reduce[HKT_OP_COUNT][HKT_DTYPE_COUNT]; /* NULL: not defined */
    hkt__scale_fn *multiply[HKT_DTYPE_COUNT];              /* NULL for integers and bool */
    hkt__scale_fn *divide[HKT_DTYPE_COUNT];
    hkt__spread_fn *spread_sum[HKT_DTYPE_COUNT];           /* NULL: none */
    void (*copy_streaming)(void *dst, const void *src, size_t bytes); /* non-temporal; NULL: none */
};

/** Kernels of an instruction set; plain C where the build lacks it. Never NULL. */
const struct hkt__kernels *hkt__kernels_get(enum hkt__isa isa);

extern const struct hkt__kernels hkt__kernels_c;
#if defined(__x86_64__)
extern const struct hkt__kernels hkt__kernels_sse2;
#endif
#ifndef HKT__NO_AVX
extern const struct hkt__kernels hkt__kernels_avx2, hkt__kernels_avx512;
#endif

/* X(op, dtype, kernel). Signed and unsigned integers share all but min and max. */
#define HKT__ARITHMETIC_TABLE(X, op, name)                                                                     \
    X(op, HKT_INT8, name##_u8) X(op, HKT_UINT8, name##_u8) X(op, HKT_INT16, name##_u16)                        \
    X(op, HKT_UINT16, name##_u16) X(op, HKT_INT32, name##_u32) X(op, HKT_UINT32, name##_u32)                   \
    X(op, HKT_INT64, name##_u64) X(op, HKT_UINT64, name##_u64) X(op, HKT_F16, name##_f16)                      \
    X(op, HKT_BF16, name##_bf16) X(op, HKT_F32, name##_f32) X(op, HKT_F64, name##_f64)                         \
    X(op, HKT_F8E4M3, name##_f8e4m3) X(op, HKT_F8E5M2, name##_f8e5m2)
#define HKT__ORDER_TABLE(X, op, name, on_bool)                                                                 \
    X(op, HKT_INT8, name##_i8) X(op, HKT_UINT8, name##_u8) X(op, HKT_INT16, name##_i16)                        \
    X(op, HKT_UINT16, name##_u16) X(op, HKT_INT32, name##_i32) X(op, HKT_UINT32, name##_u32)                   \
    X(op, HKT_INT64, name##_i64) X(op, HKT_UINT64, name##_u64) X(op, HKT_F16, name##_f16)                      \
    X(op, HKT_BF16, name##_bf16) X(op, HKT_F32, name##_f32) X(op, HKT_F64, name##_f64)                         \
    X(op, HKT_F8E4M3, name##_f8e4m3) X(op, HKT_F8E5M2, name##_f8e5m2) X(op, HKT_BOOL, on_bool)
#define HKT__BITS_TABLE(X, op, name, on_bool)                                                                  \
    X(op, HKT_INT8, name##_u8) X(op, HKT_UINT8, name##_u8) X(op, HKT_INT16, name##_u16)                        \
    X(op, HKT_UINT16, name##_u16) X(op, HKT_INT32, name##_u32) X(op, HKT_UINT32, name##_u32)                   \
    X(op, HKT_INT64, name##_u64) X(op, HKT_UINT64, name##_u64) X(op, HKT_BOOL, on_bool)
#define HKT__REDUCE_TABLE(X)                                                                                   \
    HKT__ARITHMETIC_TABLE(X, HKT_SUM, sum)                                                                     \
    HKT__ARITHMETIC_TABLE(X, HKT_PROD, prod)                                                                   \
    HKT__ARITHMETIC_TABLE(X, HKT_AVG, sum)                                                                     \
    HKT__ORDER_TABLE(X, HKT_MIN, min, land_u8)                                                                 \
    HKT__ORDER_TABLE(X, HKT_MAX, max, lor_u8)                                                                  \
    HKT__BITS_TABLE(X, HKT_BAND, band, land_u8)                                                                \
    HKT__BITS_TABLE(X, HKT_BOR, bor, lor_u8)                                                                   \
    HKT__BITS_TABLE(X, HKT_BXOR, bxor, lxor_u8)                                                                \
    HKT__BITS_TABLE(X, HKT_LAND, land, land_u8)                                                                \
    HKT__BITS_TABLE(X, HKT_LOR, lor, lor_u8)                                                                   \
    HKT__BITS_TABLE(X, HKT_LXOR, lxor, lxor_u8)
#define HKT__REDUCE_ROW(op, dtype, kernel) [op][dtype] = kernel,

/* X(dtype, kernel): sums that are stored to several places; vector kernels alone. */
#define HKT__SPREAD_TABLE(X)                                                                                   \
    X(HKT_INT8, spread_u8) X(HKT_UINT8, spread_u8) X(HKT_INT16, spread_u16) X(HKT_UINT16, spread_u16)          \
    X(HKT_INT32, spread_u32) X(HKT_UINT32, spread_u32) X(HKT_INT64, spread_u64) X(HKT_UINT64, spread_u64)      \
    X(HKT_F16, spread_f16) X(HKT_BF16, spread_bf16) X(HKT_F32, spread_f32) X(HKT_F64, spread_f64)
#define HKT__SPREAD_ROW(dtype, kernel) [dtype] = kernel,

/* X(dtype, suffix): the floating dtypes, each with a multiply_ and a divide_ kernel. */
#define HKT__SCALE_TABLE(X)                                                                                    \
    X(HKT_F16, f16) X(HKT_BF16, bf16) X(HKT_F32, f32) X(HKT_F64, f64) X(HKT_F8E4M3, f8e4m3) X(HKT_F8E5M2, f8e5m2)
#define HKT__MULTIPLY_ROW(dtype, suffix) [dtype] = multiply_##suffix,
#define HKT__DIVIDE_ROW(dtype, suffix) [dtype] = divide_##suffix,

#endif
