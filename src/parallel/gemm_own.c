/* The own matrix product of one instruction set. Compiled once per set, with its flags and HKT__ISA its name; unlike the
 * other kernels with contraction, because a fused multiply-add doubles the speed and products depend on the CPU anyway. */
#include <string.h>

#include "parallel/gemm.h"
#include "parallel/isa.h"

#if defined(__AVX512F__)
#define VEC_BYTES 64
#define MR 12
#elif defined(__AVX2__)
#define VEC_BYTES 32
#define MR 6
#else
#define VEC_BYTES 16
#define MR 6
#endif
/* A's block stays in the second-level cache, one panel of B in the first. MC is a multiple of every MR, NC of every NR. */
#define MC 96
#define KC 256
#define NC 512

#define REAL float
#define N(name) name##_f32
#include "parallel/gemm_kernels.h"
#undef REAL
#undef N

#define REAL double
#define N(name) name##_f64
#include "parallel/gemm_kernels.h"

const struct hkt__gemm_own HKT__ISA_NAME(hkt__gemm_own_) = { gemm_f32, gemm_f64 };
