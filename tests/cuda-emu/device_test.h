/* What tests on a device share: random elements that matter, memory of the device with a margin that must stay as it was,
 * and one way to say that a call of CUDA failed. Written against CUDA's interface alone, so that the same programs run on
 * a GPU. */
#ifndef HOCKET_CUDA_EMU_DEVICE_TEST_H
#define HOCKET_CUDA_EMU_DEVICE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "hocket/types.h"

#define DEVICE_TEST_SEED UINT64_C(20261130)

/** Fails the test when rc (a cudaError_t) is not success. */
#define must(rc) must_at((int)(rc), #rc, __FILE__, __LINE__)
void must_at(int rc, const char *what, const char *file, int line);

uint64_t random_bits(void);
/** Zeros, infinities, NaNs, subnormals, numbers near 1 and any bits, in random order. */
void random_elements(void *out, size_t count, enum hkt_dtype dtype);

/** `bytes` on the device at an address of the given remainder by 16, between margins of random bytes. */
struct area {
    char *device, *host; /* whole: margins and all. host: what it was filled with, later what is expected */
    char *data, *want;   /* the bytes: on the device, in `host` */
    size_t whole;
};

#define AREA_MARGIN 64
struct area area_make(size_t bytes, unsigned remainder);
/** host -> device, in stream order. */
void area_upload(const struct area *area, cudaStream_t stream);
/** Waits for the stream, and fails the test where the device's bytes are not the host's. */
void area_check(const struct area *area, cudaStream_t stream, const char *what);
void area_free(struct area *area);

#endif
