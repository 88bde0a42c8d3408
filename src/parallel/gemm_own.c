/* The own matrix product of one instruction set. Compiled once per set, with its flags and HKT__ISA its name; unlike the
 * other kernels with contraction, because a fused multiply-add doubles the speed and products depend on the CPU anyway. */

#include "parallel/gemm.h"
#include "parallel/isa.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define PREFETCH_STEPS 16 /* of k, about 200 cycles */
#define PACK_AHEAD 4      /* rows */
#define DIRECT_MAX 8192   /* elements that are read where they lie: with those of the other operand they fit near caches */

#if defined(__AVX512F__)
#define VEC_BYTES 64
#define MR 12 /* of 32 registers 24 sum */
#elif defined(__AVX2__)
#define VEC_BYTES 32
#define MR 6 /* of 16 registers 12 sum */
#else
#define VEC_BYTES 16
#define MR 6
#endif
_Static_assert(HKT__GEMM_MC % MR == 0 && HKT__GEMM_NC % (2 * VEC_BYTES / 4) == 0, "packed panels must fit the blocks");

#define REAL float
#define N(name) name##_f32
#include "parallel/gemm_kernels.h"
#undef REAL
#undef N

#define REAL double
#define N(name) name##_f64
#include "parallel/gemm_kernels.h"

const struct hkt__gemm_own HKT__ISA_NAME(hkt__gemm_own_) = { gemm_f32, gemm_f64 };
