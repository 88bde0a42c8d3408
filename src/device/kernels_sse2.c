/* The vector kernels for SSE2: every x86-64 processor. */
#define VB 16
#define KERNELS hkt__kernels_sse2

#include "device/kernels_vec.h"
