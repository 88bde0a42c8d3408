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

/* peers.c */
struct hkt__cuda_handle;
int hkt__cuda_device_current(int *out_device);
int hkt__cuda_device_use(int device, int *out_before);
int hkt__cuda_device_place(int device, char *out_text, size_t bytes);
int hkt__cuda_device_multiprocessors(int device, int *out_count);
int hkt__cuda_peer_enable(int device, int peer);
int hkt__cuda_ipc_handle(void *p, int device, struct hkt__cuda_handle *out_handle);
int hkt__cuda_ipc_open(const struct hkt__cuda_handle *handle, int device, void **out);
int hkt__cuda_ipc_close(void *p, int device);
int hkt__cuda_mapped_alloc(void **out, size_t bytes);
int hkt__cuda_mapped_free(void *p);

/* foreign.c */
struct hkt__cuda_memory;
int hkt__cuda_memory_find(const void *p, struct hkt__cuda_memory *out_memory);
int hkt__cuda_memory_export(const void *p, int *out_fd);
int hkt__cuda_memory_import(int fd, size_t bytes, int device, void **out);
int hkt__cuda_memory_unmap(void *p, size_t bytes);
/** A function of the driver, as of its version 12.0. */
int hkt__cuda_driver_find(const char *symbol, void **out_function);

/* dmabuf.c */
int hkt__cuda_dmabuf_can(int device, int *out_yes);
int hkt__cuda_dmabuf_open(const void *p, size_t bytes, int *out_fd, size_t *out_offset);

/* streams.c */
int hkt__cuda_stream_create(void **out_stream, int device);
int hkt__cuda_stream_destroy(void *stream);
int hkt__cuda_stream_query(void *stream, int device);
int hkt__cuda_stream_is_capturing(void *stream, int device, int *out_yes);
int hkt__cuda_capture_mode(int *mode);
int hkt__cuda_event_create(void **out_event, int device);
int hkt__cuda_event_destroy(void *event);
int hkt__cuda_event_record(void *event, void *stream);
int hkt__cuda_event_query(void *event);
int hkt__cuda_stream_wait(void *stream, void *event);
int hkt__cuda_stream_copy(void *dst, const void *src, size_t bytes, void *stream);
int hkt__cuda_stream_set(void *p, int value, size_t bytes, void *stream);
int hkt__cuda_stream_call(void *stream, void (*function)(void *user), void *user);

/** Between these two `device` is current. The first fails: nothing has changed. The second returns rc, or why the device
 *  before could not be had again. */
int hkt__cuda_enter(int device, int *out_before);
int hkt__cuda_leave(int rc, int device, int before);

#endif
