/* Work on memory: reduce, copy, scale, convert. The plain C version is the definition; faster ones are compared with
 * it, bit for bit where the order is fixed. Host memory only for now; a device adds a table. */
#ifndef HOCKET_DEVICE_DEVICE_H
#define HOCKET_DEVICE_DEVICE_H

#include <stddef.h>

#include "hocket/coll.h"
#include "hocket/types.h"

/** dst[i] = srcs[0][i] op srcs[1][i] op ... op srcs[nsrcs-1][i], i < count, nsrcs >= 1, folded left to right.
 *  16- and 8-bit floats accumulate in f32 and round once at the end. dst may be any one of srcs (element by element);
 *  no other overlap. No alignment is required. AVG folds like SUM (hkt__scale divides at the end). Integers wrap. Float min and max: NaN if any
 *  input is NaN, -0 < +0; so the result does not depend on the order of the inputs. bool is 0 or 1: SUM and PROD are not defined on it (hkt_op_check). */
typedef void hkt__reduce_fn(void *dst, const void *const *srcs, int nsrcs, size_t count);

enum hkt__isa { HKT__ISA_C, HKT__ISA_SSE2, HKT__ISA_AVX2, HKT__ISA_AVX512, HKT__ISA_COUNT };

/** Best instruction set this CPU and OS allow, capped by HOCKET_ISA. */
enum hkt__isa hkt__isa_best(void);
const char *hkt__isa_name(enum hkt__isa isa);

/** Kernel for a built-in op on a dtype; NULL when hkt_op_check refuses the pair. isa: at most this. */
hkt__reduce_fn *hkt__reduce_get(enum hkt_op op, enum hkt_dtype dtype, enum hkt__isa isa);

/** memcpy for collectives: non-temporal stores from HKT__NT_BYTES on when `streaming` (the destination will not be
 *  read soon); otherwise ordinary stores. No overlap. */
void hkt__copy_bytes(void *dst, const void *src, size_t bytes, int streaming);

/** x[i] /= n for AVG: floats divide (f16, bf16, f8 in f32, rounded once), integers divide and truncate toward zero. */
void hkt__divide(void *x, size_t count, enum hkt_dtype dtype, int n);

/** dst[i] = src[i] * *scalar for the pre-multiplied sum; dst may be src. Not for bool. */
void hkt__premultiply(void *dst, const void *src, size_t count, enum hkt_dtype dtype, const void *scalar);

/** Scalar conversions that define the small formats: round to nearest even; f8e4m3 saturates to NaN as OCP says. */
float hkt__to_f32(const void *x, enum hkt_dtype dtype);
void hkt__from_f32(void *x, enum hkt_dtype dtype, float value);

#endif
