/* What runtime.c puts in the module's table: see struct hkt__cuda_module. */
#ifndef HOCKET_KERNELS_RUNTIME_H
#define HOCKET_KERNELS_RUNTIME_H

#include <stddef.h>

int hkt__cuda_device_count(int *out_count);
int hkt__cuda_where_is(const void *p, int *out_device);
int hkt__cuda_copy_wait(void *dst, const void *src, size_t bytes, int device);
int hkt__cuda_pin(void *p, size_t bytes);
int hkt__cuda_unpin(void *p);
int hkt__cuda_device_alloc(void **out, size_t bytes, int device);
int hkt__cuda_device_free(void *p);
const char *hkt__cuda_error_text(int rc);

#endif
