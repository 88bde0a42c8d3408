/* Kernels for the emulation: the sources that nvcc builds, through g++. */
#include "kernels/reduce_ints.cu"
#include "kernels/reduce_floats.cu"
