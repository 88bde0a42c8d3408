/* The vector kernels for AVX-512 F, BW, DQ, VL: Intel servers from Skylake (2017), AMD from Zen 4 (2022). */
#define VB 64
#define KERNELS hkt__kernels_avx512

#include "device/kernels_vec.h"
