/* Kernels for the emulation: the sources that nvcc builds, through g++. */
#include "kernels/scale.cu"
#include "kernels/convert.cu"
#include "kernels/move.cu"
#include "kernels/checksum.cu"
