/* Element types, reduction operations and collectives: the vocabulary shared by every header. */
#ifndef HOCKET_TYPES_H
#define HOCKET_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "hocket/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Most ranks in one communicator (ranks are carried in 20 bits on the wire). */
#define HKT_RANKS_MAX 65536

/* X(name, wire value, bytes, text). f16 is IEEE binary16, bf16 truncated binary32; f8e4m3 and f8e5m2 follow the
 * OCP 8-bit format (e4m3 has no infinity). bool is one byte, 0 or 1. */
#define HKT_DTYPE_TABLE(X)                                                                         \
    X(HKT_INT8, 0, 1, "int8")                                                                      \
    X(HKT_UINT8, 1, 1, "uint8")                                                                    \
    X(HKT_INT16, 2, 2, "int16")                                                                    \
    X(HKT_UINT16, 3, 2, "uint16")                                                                  \
    X(HKT_INT32, 4, 4, "int32")                                                                    \
    X(HKT_UINT32, 5, 4, "uint32")                                                                  \
    X(HKT_INT64, 6, 8, "int64")                                                                    \
    X(HKT_UINT64, 7, 8, "uint64")                                                                  \
    X(HKT_F16, 8, 2, "half")                                                                       \
    X(HKT_BF16, 9, 2, "bfloat16")                                                                  \
    X(HKT_F32, 10, 4, "float")                                                                     \
    X(HKT_F64, 11, 8, "double")                                                                    \
    X(HKT_F8E4M3, 12, 1, "f8e4m3")                                                                 \
    X(HKT_F8E5M2, 13, 1, "f8e5m2")                                                                 \
    X(HKT_BOOL, 14, 1, "bool")

enum hkt_dtype {
#define HKT_DTYPE_ENUM(name, value, bytes, text) name = value,
    HKT_DTYPE_TABLE(HKT_DTYPE_ENUM)
#undef HKT_DTYPE_ENUM
    HKT_DTYPE_COUNT
};

/* X(name, wire value, text). Every operation is commutative and associative up to rounding. */
#define HKT_OP_TABLE(X)                                                                            \
    X(HKT_SUM, 0, "sum")                                                                           \
    X(HKT_PROD, 1, "prod")                                                                         \
    X(HKT_MIN, 2, "min")                                                                           \
    X(HKT_MAX, 3, "max")                                                                           \
    X(HKT_AVG, 4, "avg")                                                                           \
    X(HKT_BAND, 5, "band")                                                                         \
    X(HKT_BOR, 6, "bor")                                                                           \
    X(HKT_BXOR, 7, "bxor")                                                                         \
    X(HKT_LAND, 8, "land")                                                                         \
    X(HKT_LOR, 9, "lor")                                                                           \
    X(HKT_LXOR, 10, "lxor")

/** Values from HKT_OP_USER on are handles made by hkt_op_create_*. */
enum hkt_op {
#define HKT_OP_ENUM(name, value, text) name = value,
    HKT_OP_TABLE(HKT_OP_ENUM)
#undef HKT_OP_ENUM
    HKT_OP_COUNT,
    HKT_OP_USER = 16,
    HKT_OP_LAST = 63
};

/* X(name, wire value, text) */
#define HKT_COLL_TABLE(X)                                                                          \
    X(HKT_ALL_REDUCE, 0, "all_reduce")                                                             \
    X(HKT_REDUCE_SCATTER, 1, "reduce_scatter")                                                     \
    X(HKT_ALL_GATHER, 2, "all_gather")                                                             \
    X(HKT_BROADCAST, 3, "broadcast")                                                               \
    X(HKT_REDUCE, 4, "reduce")                                                                     \
    X(HKT_ALL_TO_ALL, 5, "all_to_all")                                                             \
    X(HKT_GATHER, 6, "gather")                                                                     \
    X(HKT_SCATTER, 7, "scatter")                                                                   \
    X(HKT_BARRIER, 8, "barrier")                                                                   \
    X(HKT_ALL_GATHER_V, 9, "all_gather_v")                                                         \
    X(HKT_REDUCE_SCATTER_V, 10, "reduce_scatter_v")                                                \
    X(HKT_ALL_TO_ALL_V, 11, "all_to_all_v")                                                        \
    X(HKT_SEND_RECV, 12, "send_recv")

enum hkt_coll {
#define HKT_COLL_ENUM(name, value, text) name = value,
    HKT_COLL_TABLE(HKT_COLL_ENUM)
#undef HKT_COLL_ENUM
    HKT_COLL_COUNT
};

/** Bytes of one element; 0 for a value that is no dtype. Any thread, as all below. */
HKT_API size_t hkt_dtype_size(enum hkt_dtype dtype);
/** Names as the command line writes them ("float", "sum", "all_reduce"); "?" for a value out of range. */
HKT_API const char *hkt_dtype_name(enum hkt_dtype dtype);
HKT_API const char *hkt_op_name(enum hkt_op op);
HKT_API const char *hkt_coll_name(enum hkt_coll coll);
/** The reverse of the names; HKT_ERR_INVALID (output untouched) when no name fits. f32, f64, f16, bf16 and the
 *  C names of the integers ("int", "char") are accepted too. */
HKT_API HKT_NODISCARD enum hkt_status hkt_dtype_parse(const char *text, enum hkt_dtype *out_dtype);
HKT_API HKT_NODISCARD enum hkt_status hkt_op_parse(const char *text, enum hkt_op *out_op);
HKT_API HKT_NODISCARD enum hkt_status hkt_coll_parse(const char *text, enum hkt_coll *out_coll);
/** HKT_OK when `op` (a built-in one) is defined on `dtype`: bitwise and logical ones on integers and bool only;
 *  on bool also min and max, but no arithmetic. Otherwise HKT_ERR_INVALID with the reason in hkt_last_error(). */
HKT_API HKT_NODISCARD enum hkt_status hkt_op_check(enum hkt_op op, enum hkt_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
