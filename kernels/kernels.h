/* The device kernels as C sees them: what each is given, and the functions that enqueue one. The same sources are built
 * by nvcc into the module hocket_cuda.so and, for machines without a GPU, by g++ for the emulation in tests/cuda-emu.
 *
 * All of them enqueue on a stream and return; memory is the device's (or mapped by it), of any alignment. Bits are
 * those of the host's kernels (src/device, docs/numerics.md): each reduction folds its sources in the order given, one
 * thread an element, so neither the grid nor the alignment can change a result. */
#ifndef HOCKET_KERNELS_KERNELS_H
#define HOCKET_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "hocket/types.h"
#include "kernels/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HKT__KERNEL_SRCS_MAX 64 /* sources of one reduction: 64 pointers are 512 of the 4096 bytes a launch may pass */
#ifndef HKT__KERNEL_THREADS
#define HKT__KERNEL_THREADS 512 /* of a block: whole warps */
#endif

/** Where and how wide. blocks_max >= 1: at most so many blocks, whatever the size; fewer for small calls. */
struct hkt__kernel_on {
    void *stream; /* a cudaStream_t */
    int blocks_max;
};

/** dst[i] = srcs[0][i] op srcs[1][i] op ..., 1 <= nsrcs <= HKT__KERNEL_SRCS_MAX. dst may be any one of srcs, element by
 *  element; no other overlap. Rounding, NaN and wrapping: hkt__reduce_fn (device/device.h). */
struct hkt__reduce_args {
    void *dst;
    size_t count;
    int nsrcs;
    const void *srcs[HKT__KERNEL_SRCS_MAX];
};

/** dst[i] = src[i] * factor, or src[i] / factor: as hkt__premultiply and hkt__divide. dst may be src. Integers take
 *  `integer` (a divisor is 1 or more), floats `factor`; small floats multiply and divide in f32 and round once. */
struct hkt__scale_args {
    void *dst;
    const void *src;
    size_t count;
    double factor;
    uint64_t integer;
};

/** rows rows of row_bytes bytes each, whose starts lie dst_pitch and src_pitch bytes apart: dst_pitch == row_bytes
 *  packs a strided operand, src_pitch == row_bytes unpacks one, a single row is a plain copy. No overlap. */
struct hkt__copy_args {
    void *dst;
    const void *src;
    size_t row_bytes, rows;
    size_t dst_pitch, src_pitch;
};

/** Names memory of a device to other processes of the host. */
struct hkt__cuda_handle {
    char bytes[64];
};

/** Memory that somebody allocated: the allocation that a pointer lies in. */
enum hkt__cuda_kind {
    HKT__CUDA_HOST,     /* or nobody's: the rest is not known */
    HKT__CUDA_WHOLE,    /* cudaMalloc, cuMemAlloc: other processes map all of it by CUDA IPC */
    HKT__CUDA_NAMED,    /* cuMemCreate, with a file descriptor for others */
    HKT__CUDA_NAMELESS, /* cuMemCreate without, or another process's: nobody else can map it */
    HKT__CUDA_POOLED,   /* cudaMallocAsync and the like */
    HKT__CUDA_MANAGED   /* moves between host and devices */
};
struct hkt__cuda_memory {
    enum hkt__cuda_kind kind;
    int device;
    char *base;
    size_t bytes;
};

/** What the module gives. First functions that enqueue: each returns a cudaError_t as int, 0 when enqueued; a pair that is
 *  not defined (hkt_op_check) or a wrong argument is cudaErrorInvalidValue and enqueues nothing. An empty call is
 *  success and enqueues nothing. Any thread; the current device must be the stream's. */
struct hkt__cuda_module {
    int abi; /* HKT__CUDA_ABI of the build */
    int (*reduce)(const struct hkt__reduce_args *args, enum hkt_op op, enum hkt_dtype dtype,
                  const struct hkt__kernel_on *on);
    int (*multiply)(const struct hkt__scale_args *args, enum hkt_dtype dtype, const struct hkt__kernel_on *on);
    int (*divide)(const struct hkt__scale_args *args, enum hkt_dtype dtype, const struct hkt__kernel_on *on);
    int (*copy)(const struct hkt__copy_args *args, const struct hkt__kernel_on *on);
    /** One rank's part of a collective, by exactly on->blocks_max blocks, of which all that may run at a time must fit the
     *  device beside those of other ranks (device/cuda_plan.h). A plan that only moves bytes has no operation:
     *  HKT_OP_COUNT. */
    /** Loads the kernels of plans, and the divisions that follow them, on the current device: loading one may wait for all that
     *  run, and those of plans wait for each other. */
    int (*plan_load)(void);
    int (*plan)(const struct hkt__plan_args *args, enum hkt_op op, enum hkt_dtype dtype, const struct hkt__kernel_on *on);
    /** Stores messages that plans after it read: kernels/plan.h. */
    int (*plan_note)(const struct hkt__plan_note *args, const struct hkt__kernel_on *on);

    /* The CUDA runtime, as far as the library needs it. Status as above; the calling thread's current device stays. */
    int (*device_count)(int *out_count);
    /** The device whose memory p is; -1: the host's, pinned or not. */
    int (*where_is)(const void *p, int *out_device);
    /** Copies between any two of host and devices, in the order of the default stream of `device`, and waits for it. */
    int (*copy_wait)(void *dst, const void *src, size_t bytes, int device);
    /** Locks memory of the host, so that devices copy to and from it directly. Not memory that CUDA allocates: other
     *  processes could not copy from and to that. */
    int (*pin)(void *p, size_t bytes);
    int (*unpin)(void *p);
    int (*device_alloc)(void **out, size_t bytes, int device);
    int (*device_free)(void *p);
    const char *(*error_text)(int rc);

    /* Devices and what they reach. */
    /** Of the calling thread. */
    int (*device_current)(int *out_device);
    /** Makes `device` current for functions that enqueue, and says which was; the caller puts that back. */
    int (*device_use)(int device, int *out_before);
    /** Where the device sits on its bus: the same text in all processes that use it. */
    int (*device_place)(int device, char *out_text, size_t bytes);
    int (*device_multiprocessors)(int device, int *out_count);
    /** Lets `device` read and write memory of `peer`. 0 as well when it does already, or when they are the same. */
    int (*peer_enable)(int device, int peer);
    /** Memory of device_alloc for other processes; a handle is not for the process that made it. */
    int (*ipc_handle)(void *p, int device, struct hkt__cuda_handle *out_handle);
    int (*ipc_open)(const struct hkt__cuda_handle *handle, int device, void **out);
    int (*ipc_close)(void *p, int device);
    /** What memory p is of. */
    int (*memory_find)(const void *p, struct hkt__cuda_memory *out_memory);
    /** A descriptor of the NAMED allocation that p lies in: whoever has it may import all of it. The caller's, to be closed;
     *  with a failure too, unless it is as it was. */
    int (*memory_export)(const void *p, int *out_fd);
    /** Maps it for a device; fd stays the caller's. */
    int (*memory_import)(int fd, size_t bytes, int device, void **out);
    int (*memory_unmap)(void *p, size_t bytes);
    /** Memory of the host that kernels of all devices reach at the same address; zero. */
    int (*mapped_alloc)(void **out, size_t bytes);
    int (*mapped_free)(void *p);
    /** *out_yes: other drivers, such as those of network adapters, can be told of memory of the device. */
    int (*dmabuf_can)(int device, int *out_yes);
    /** A descriptor by which they are, of the host's pages that hold [p, p + bytes), part of one allocation; it is the caller's to
     *  close, which takes nothing back from who was told. p lies *out_offset bytes behind its beginning. */
    int (*dmabuf_open)(const void *p, size_t bytes, int *out_fd, size_t *out_offset);

    /* Streams that do not wait for the default one, and events without times. query: 0 done, HKT__CUDA_NOT_READY not yet,
     * anything else is a failure of the work. */
    int (*stream_create)(void **out_stream, int device);
    int (*stream_destroy)(void *stream);
    int (*stream_query)(void *stream, int device);
    /** *out_yes: what is enqueued on the stream now becomes part of a graph. */
    int (*stream_is_capturing)(void *stream, int device, int *out_yes);
    /** While a thread captures into a graph, allocations and the like are refused to it, unless it asks: *mode 2 before,
     *  then with what that left in *mode. */
    int (*capture_mode)(int *mode);
    int (*event_create)(void **out_event, int device);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    /** What is enqueued on the stream from now on runs after the event's last record. */
    int (*stream_wait)(void *stream, void *event);
    /** Copies, or sets to a value, in the stream's order. */
    int (*stream_copy)(void *dst, const void *src, size_t bytes, void *stream);
    int (*stream_set)(void *p, int value, size_t bytes, void *stream);
    /** Calls a function of the host, in the stream's order, by a thread of CUDA's; it must not call CUDA. Not called when
     *  what was enqueued before it has failed. */
    int (*stream_call)(void *stream, void (*function)(void *user), void *user);
};
#define HKT__CUDA_ABI 9
#define HKT__CUDA_NOT_READY 600 /* cudaErrorNotReady */

/** The one symbol that leaves hocket_cuda.so. */
HKT_API const struct hkt__cuda_module *hkt__cuda_module(void);

/* Addresses of kernels for cudaLaunchKernel, by the file that holds them; NULL: not there. For launch.c alone. */
const void *hkt__kernel_reduce_ints(enum hkt_op op, enum hkt_dtype dtype);
const void *hkt__kernel_reduce_floats(enum hkt_op op, enum hkt_dtype dtype);
const void *hkt__kernel_multiply(enum hkt_dtype dtype);
const void *hkt__kernel_divide(enum hkt_dtype dtype);
const void *hkt__kernel_copy(void);
const void *hkt__kernel_plan_move(void);
const void *hkt__kernel_plan_note(void);
const void *hkt__kernel_plan_ints(enum hkt_dtype dtype);
const void *hkt__kernel_plan_floats(enum hkt_dtype dtype);
const void *hkt__kernel_plan_small(enum hkt_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
