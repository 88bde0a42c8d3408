/* The vector kernels for AVX2 and F16C: Intel from Haswell (2013), AMD from Zen (2017). */
#define VB 32
#define KERNELS hkt__kernels_avx2

#include "device/kernels_vec.h"
