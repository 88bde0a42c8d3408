/* Kernels for the emulation: the sources that nvcc builds, through g++. */
#include "kernels/plan_move.cu"
#include "kernels/plan_floats.cu"
