/* All kernels of one instruction set, for the three store types: the templates kernels_*.h, three times. Compiled once per
 * set, with its flags and HKT__ISA its name, and without contraction, so that all sets give the same bits. */
#include <math.h>
#include <string.h>

#include "parallel/gemm.h"
#include "parallel/isa.h"
#include "parallel/math_ops.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define LANEWISE
#else
#define LANEWISE _Pragma("GCC ivdep")
#endif

/* Sums of squares are made in chunks, in doubles (kernels_update.h). */
#define EXACT_CHUNK 2048
#define EXACT_LANES 8
#define EXACT_PIECES 3
#define EXACT_PIECE_BITS 38
#define EXACT_TOP_MIN (-400)
#define EXACT_TOP_MAX 500

#include "parallel/kernels_random.h"

#define REAL float
#define INT int32_t
#define UINT uint32_t
#define REAL_DTYPE HKT_F32
#define REAL_SQRT sqrtf
#define REAL_LOG logf
#define REAL_ERFC erfcf
#define REAL_GEMM hkt__gemm_f32

#define STORE float
#define STORE_DTYPE HKT_F32
#define N(name) name##_f32
#define TABLE HKT__ISA_NAME(hkt__math_f32_)
#include "parallel/kernels_real.h"
#include "parallel/kernels_pointwise.h"
#include "parallel/kernels_rows.h"
#include "parallel/kernels_attention.h"
#include "parallel/kernels_update.h"
#include "parallel/kernels_table.h"
#include "parallel/kernels_end.h"

#define IS_BF16
#define STORE uint16_t
#define STORE_DTYPE HKT_BF16
#define N(name) name##_bf16
#define TABLE HKT__ISA_NAME(hkt__math_bf16_)
#include "parallel/kernels_real.h"
#include "parallel/kernels_pointwise.h"
#include "parallel/kernels_rows.h"
#include "parallel/kernels_attention.h"
#include "parallel/kernels_update.h"
#include "parallel/kernels_table.h"
#include "parallel/kernels_end.h"
#undef IS_BF16

#undef REAL
#undef INT
#undef UINT
#undef REAL_DTYPE
#undef REAL_SQRT
#undef REAL_LOG
#undef REAL_ERFC
#undef REAL_GEMM
#define REAL double
#define INT int64_t
#define UINT uint64_t
#define REAL_DTYPE HKT_F64
#define REAL_SQRT sqrt
#define REAL_LOG log
#define REAL_ERFC erfc
#define REAL_GEMM hkt__gemm_f64

#define STORE double
#define STORE_DTYPE HKT_F64
#define N(name) name##_f64
#define TABLE HKT__ISA_NAME(hkt__math_f64_)
#include "parallel/kernels_real.h"
#include "parallel/kernels_pointwise.h"
#include "parallel/kernels_rows.h"
#include "parallel/kernels_attention.h"
#include "parallel/kernels_update.h"
#include "parallel/kernels_table.h"
