/* Kernels for the emulation: the sources that nvcc builds, through g++. */
#include "kernels/scale.cu"
#include "kernels/move.cu"
