/* Kernels for the emulation: the sources that nvcc builds, through g++. */
#include "kernels/plan_ints.cu"
#include "kernels/plan_small.cu"
